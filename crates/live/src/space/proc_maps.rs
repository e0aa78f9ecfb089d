//! What is really mapped and present: `/proc/self/maps` and `/proc/self/pagemap`,
//! read without allocating.

use libc::c_int;
use terrace_sampler::pagemap::{self, Query, Run, is};

use crate::sys::{self, PAGE};

/// What may be done with a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MayDo {
    /// `rw-p`.
    ReadAndWrite,
    /// `---p`: it is only reserved.
    Nothing,
    /// Anything else: shared, read-only, executable.
    Else,
}

/// A mapping of `/proc/self/maps`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// First address.
    pub start: usize,
    /// One past the last.
    pub end: usize,
    /// What may be done with it.
    pub access: MayDo,
    /// Not a file's, not shared.
    pub anonymous: bool,
    /// The heap.
    pub heap: bool,
}

impl Mapping {
    /// Private anonymous memory that can be read and written.
    pub fn is_ordinary(&self) -> bool {
        self.anonymous && self.access == MayDo::ReadAndWrite
    }
    /// Private anonymous memory that can be read and written, or is only reserved.
    pub fn is_manageable(&self) -> bool {
        self.anonymous && self.access != MayDo::Else
    }
}

/// Calls `each` for every mapping, in order; false if they cannot be read.
pub fn for_each_mapping(mut each: impl FnMut(Mapping)) -> bool {
    sys::for_each_line(c"/proc/self/maps", |line| {
        if let Some(mapping) = parse(line) {
            each(mapping);
        }
    })
}

/// Whether whatever is mapped in a range is private anonymous memory; false if the kernel does not
/// say.
pub fn is_anonymous(start: usize, end: usize) -> bool {
    let mut all = true;
    for_each_mapping(|m| all &= m.anonymous || m.end <= start || end <= m.start) && all
}

/// What may be done with the memory at an address; nothing that is known where the kernel does not say.
pub fn access_at(address: usize) -> MayDo {
    let mut access = MayDo::Else;
    let is_told = for_each_mapping(|m| {
        if (m.start..m.end).contains(&address) {
            access = m.access;
        }
    });
    if is_told { access } else { MayDo::Else }
}

/// `55d0c0000000-55d0c0021000 rw-p 00000000 00:00 0    [heap]`
pub fn parse(line: &[u8]) -> Option<Mapping> {
    let mut fields = line.split(|&b| b == b' ').filter(|f| !f.is_empty());
    let range = fields.next()?;
    let dash = range.iter().position(|&b| b == b'-')?;
    let hex = |text: &[u8]| {
        text.iter().try_fold(0usize, |n, &b| Some(n << 4 | (b as char).to_digit(16)? as usize))
    };
    let (start, end) = (hex(&range[..dash])?, hex(&range[dash + 1..])?);
    let flags = fields.next()?;
    let _offset = fields.next()?;
    let _device = fields.next()?;
    let inode = fields.next()?;
    let name = fields.next();
    Some(Mapping {
        start,
        end,
        access: match flags {
            b"rw-p" => MayDo::ReadAndWrite,
            b"---p" => MayDo::Nothing,
            _ => MayDo::Else,
        },
        anonymous: inode == b"0" && name.is_none_or(|n| n == b"[heap]" || n.starts_with(b"[anon")),
        heap: name == Some(b"[heap]"),
    })
}

/// From this length on a range is looked at by `PAGEMAP_SCAN`.
const SPARSE: usize = 64 << 20;

/// Which pages have content in the page table: `/proc/self/pagemap`, or, where
/// that is out of reach (another root), `mincore`.
pub struct Pagemap(Option<c_int>);

impl Pagemap {
    /// Opens it.
    pub fn open() -> Self {
        Self(sys::open(c"/proc/self/pagemap"))
    }

    /// Whether a page has content in the page table (present, or swapped out
    /// by the kernel). `None` if the kernel does not say.
    pub fn is_present(&self, address: usize) -> Option<bool> {
        let mut entry = [0u64; 1];
        (self.read(address, &mut entry) == 1).then(|| present(entry[0]))
    }

    /// Whether `N` pages are all present, each mapped here and nowhere else (by no child,
    /// and it is not the kernel's page of zeros). False if the kernel does not say.
    pub fn all_exclusive<const N: usize>(&self, address: usize) -> bool {
        let mut entries = [0u64; N];
        self.0.is_some()
            && self.read(address, &mut entries) == N
            && entries.iter().all(|&entry| is_exclusive(entry))
    }

    /// Calls `each` for every page that is in memory, of so many from an address on: which of
    /// them, and whether it is mapped here and nowhere else. False if the kernel does not say.
    pub fn for_each_frame(
        &self,
        start: usize,
        pages: usize,
        mut each: impl FnMut(usize, bool),
    ) -> bool {
        let mut entries = [0u64; 512];
        let mut done = 0;
        while self.0.is_some() && done < pages {
            let want = (pages - done).min(entries.len());
            let got = self.read(start + done * PAGE, &mut entries[..want]);
            if got == 0 {
                break;
            }
            for (i, &entry) in entries[..got].iter().enumerate() {
                if entry >> 63 != 0 {
                    each(done + i, is_exclusive(entry));
                }
            }
            done += got;
        }
        done == pages
    }

    /// Calls `each` for every run of present pages in a range: first page's
    /// address and how many. Guards (`MADV_GUARD_INSTALL`) are none.
    pub fn for_each_present(&self, start: usize, end: usize, mut each: impl FnMut(usize, usize)) {
        if end - start < SPARSE || !self.skim(start, end, &mut each) {
            self.look_at_all(start, end, &mut each);
        }
    }

    /// Finds present pages by looking at every page of a range.
    fn look_at_all(&self, start: usize, end: usize, each: &mut impl FnMut(usize, usize)) {
        let mut entries = [0u64; 512];
        let mut at = start;
        let mut run = (start, 0);
        while at < end {
            let want = ((end - at) / PAGE).min(entries.len());
            let got = self.read(at, &mut entries[..want]);
            if got == 0 {
                break;
            }
            for (i, &entry) in entries[..got].iter().enumerate() {
                if present(entry) && !is_guard(entry) {
                    if run.1 == 0 {
                        run.0 = at + i * PAGE;
                    }
                    run.1 += 1;
                } else if run.1 != 0 {
                    each(run.0, run.1);
                    run.1 = 0;
                }
            }
            at += got * PAGE;
        }
        if run.1 != 0 {
            each(run.0, run.1);
        }
    }

    /// Finds them by `PAGEMAP_SCAN` (Linux 6.7), which does not look at every page of a
    /// hole; false if the kernel has none. What it calls swapped is looked at: it may be guards.
    fn skim(&self, start: usize, end: usize, each: &mut impl FnMut(usize, usize)) -> bool {
        let query = Query { any: is::PRESENT | is::SWAPPED, tell: is::SWAPPED, protect: false };
        let each = &mut |run: Run| {
            let (start, end) = (run.start as usize, run.end as usize);
            if run.flags & is::SWAPPED == 0 {
                each(start, (end - start) / PAGE);
            } else {
                self.look_at_all(start, end, each);
            }
        };
        self.scan(start, end, query, each).is_ok()
    }

    /// Whether a page is a guard (`MADV_GUARD_INSTALL`): whoever touches it gets a signal, and no
    /// content is there. False if the kernel does not say.
    pub(crate) fn is_guard(&self, address: usize) -> bool {
        let mut entry = [0u64; 1];
        self.0.is_some() && self.read(address, &mut entry) == 1 && is_guard(entry[0])
    }

    /// Asks by `PAGEMAP_SCAN`; calls `each` for every run that was found.
    ///
    /// # Errors
    /// The kernel's error number, see [`pagemap::scan`]; `EBADF` if the pagemap is out of reach.
    pub fn scan(
        &self,
        start: usize,
        end: usize,
        query: Query,
        each: &mut dyn FnMut(Run),
    ) -> Result<(), i32> {
        let fd = self.0.ok_or(libc::EBADF)?;
        let mut found = [Run::default(); 128];
        pagemap::scan(fd, start as u64, end as u64, query, &mut found, each)
            .map_err(|error| error.raw_os_error().unwrap_or(libc::EIO))
    }

    /// Whether `PAGEMAP_SCAN` answers.
    pub fn scans(&self) -> bool {
        let query = Query { any: is::PRESENT, tell: 0, protect: false };
        self.scan(0, PAGE, query, &mut |_| {}).is_ok()
    }

    /// Reads entries as the pagemap has them.
    fn read(&self, address: usize, entries: &mut [u64]) -> usize {
        let Some(fd) = self.0 else { return mincore(address, entries) };
        // SAFETY: reads into a buffer of that length; any bytes are valid.
        let n = unsafe {
            libc::pread(
                fd,
                entries.as_mut_ptr().cast(),
                size_of_val(entries),
                (address / PAGE * 8) as i64,
            )
        };
        (n.max(0) as usize) / 8
    }
}

/// Entries as the pagemap would have them, from `mincore`. It says nothing of a
/// range with a hole in it, so that is asked page by page.
fn mincore(address: usize, entries: &mut [u64]) -> usize {
    let mut resident = [0u8; 512];
    let pages = entries.len().min(resident.len());
    // SAFETY: writes one byte a page.
    let ask = |at: usize, n: usize, to: *mut u8| unsafe {
        libc::mincore(at as *mut libc::c_void, n * PAGE, to) == 0
    };
    if !ask(address, pages, resident.as_mut_ptr()) {
        for (i, byte) in resident[..pages].iter_mut().enumerate() {
            if !ask(address + i * PAGE, 1, byte) {
                *byte = 0;
            }
        }
    }
    for (entry, byte) in entries[..pages].iter_mut().zip(resident) {
        *entry = u64::from(byte & 1) << 63;
    }
    pages
}

impl Drop for Pagemap {
    fn drop(&mut self) {
        if let Some(fd) = self.0 {
            sys::close(fd);
        }
    }
}

/// Bit 63: present; bit 62: swapped (`Documentation/admin-guide/mm/pagemap.rst`).
const fn present(entry: u64) -> bool {
    entry >> 62 != 0
}

/// Bit 58: a guard, which the kernel marks by an entry as of a page in swap (Linux 6.15; those of 6.13 and
/// 6.14 have guards and do not say so).
const fn is_guard(entry: u64) -> bool {
    entry >> 63 == 0 && entry >> 58 & 1 != 0
}

/// Bit 63: present; bit 56: mapped exclusively.
const fn is_exclusive(entry: u64) -> bool {
    entry >> 63 != 0 && entry >> 56 & 1 != 0
}

/// The order of a block of 2 MiB in pages of 4 KiB.
const HUGE_ORDER: usize = 9;

/// Whether programs have huge pages from blocks of this zone. Of x86, `DMA` is the first 16 MiB, which
/// the kernel keeps for old devices: with 4 GiB of memory and more, no page of it goes to a program, so
/// it lies free however fragmented memory is. Elsewhere, a zone of that name is memory like any other.
fn is_for_programs(zone: &[u8]) -> bool {
    !cfg!(target_arch = "x86_64") || zone != b"DMA"
}

/// Whether the kernel has a free block that a huge page fits in. Without one it would move
/// pages about to make one, and that takes long. True if it does not say.
pub fn free_huge_pages() -> bool {
    let mut buffer = [0u8; 4096];
    let read = sys::read_file(c"/proc/buddyinfo", &mut buffer);
    read.is_none_or(|n| n == 0 || has_huge_block(&buffer[..n]))
}

/// How the kernel's free memory lies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FreeMemory {
    /// Blocks that a huge page of a program's fits in.
    pub blocks: u64,
    /// Pages of 4 KiB, in blocks of any size and in all zones.
    pub pages: u64,
}

/// How free memory lies; `None` if the kernel does not say.
pub fn free_memory() -> Option<FreeMemory> {
    let mut buffer = [0u8; 4096];
    let read = sys::read_file(c"/proc/buddyinfo", &mut buffer)?;
    free_in(&buffer[..read])
}

fn free_in(buddyinfo: &[u8]) -> Option<FreeMemory> {
    let mut found = None;
    for line in buddyinfo.split(|&b| b == b'\n') {
        let mut fields = line.split(|&b| b == b' ').filter(|f| !f.is_empty());
        let has_blocks = fields.nth(3).is_some_and(is_for_programs);
        for (order, field) in fields.enumerate() {
            let count: u64 = core::str::from_utf8(field).ok()?.parse().ok()?;
            let sum: &mut FreeMemory = found.get_or_insert_default();
            sum.pages = sum.pages.saturating_add(count.saturating_mul(1 << order.min(40)));
            if order >= HUGE_ORDER && has_blocks {
                let each = 1 << (order - HUGE_ORDER).min(40);
                sum.blocks = sum.blocks.saturating_add(count.saturating_mul(each));
            }
        }
    }
    found
}

/// `Node 0, zone   Normal   5054   5021   1605 …`: free blocks by order.
fn has_huge_block(buddyinfo: &[u8]) -> bool {
    buddyinfo.split(|&b| b == b'\n').any(|line| {
        let mut fields = line.split(|&b| b == b' ').filter(|f| !f.is_empty());
        fields.nth(3).is_some_and(is_for_programs)
            && fields.skip(HUGE_ORDER).any(|count| count != b"0")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_are_read_as_the_kernel_writes_them() {
        let heap =
            parse(b"55d0c0000000-55d0c0021000 rw-p 00000000 00:00 0                    [heap]");
        assert_eq!(
            heap,
            Some(Mapping {
                start: 0x55d0_c000_0000,
                end: 0x55d0_c002_1000,
                access: MayDo::ReadAndWrite,
                anonymous: true,
                heap: true
            })
        );
        let file = parse(b"7f00-7f10 r-xp 00001000 fe:00 1234 /usr/lib/libc.so.6").expect("a line");
        assert!(file.access == MayDo::Else && !file.anonymous && !file.heap);
        assert!(parse(b"7ff0-7ff1 rw-p 0 00:00 0 [stack]").is_some_and(|m| !m.anonymous));
        assert_eq!(parse(b"nonsense"), None);
    }

    #[test]
    fn free_memory_is_read_as_the_kernel_writes_it() {
        let text =
            b"Node 0, zone      DMA      1      0      0      0      0      0      0      0 \
            1      1      3 \nNode 0, zone   Normal  10  2  0  0  0  0  0  0  0  3  1\n";
        let pages = 1 + 256 + 512 + 3 * 1024 + 10 + 4 + 3 * 512 + 1024;
        let blocks = if cfg!(target_arch = "x86_64") { 5 } else { 12 };
        assert_eq!(free_in(text), Some(FreeMemory { blocks, pages }));
        assert_eq!(free_in(b""), None);
        assert_eq!(free_in(b"Node 0, zone Normal one two"), None);
        assert_eq!(free_in(b"Node 0, zone Normal 1 0").map(|free| free.blocks), Some(0));
    }

    #[test]
    fn touched_pages_of_a_huge_mapping_are_found_at_once() {
        let len = 4 * SPARSE;
        let at = crate::sys::map_private(len).expect("address space");
        for page in [0, 1, 5000, len / PAGE - 1] {
            // SAFETY: within the mapping.
            unsafe { ((at + page * PAGE) as *mut u8).write(1) };
        }
        let mut runs = Vec::new();
        Pagemap::open()
            .for_each_present(at, at + len, |start, n| runs.push(((start - at) / PAGE, n)));
        assert_eq!(runs, [(0, 2), (5000, 1), (len / PAGE - 1, 1)]);
        // SAFETY: ours.
        unsafe { crate::sys::munmap(at, len) }.expect("unmapped");
    }

    /// To the kernel they are in swap. A forked child took them for memory of its own, and others had to
    /// make room for it.
    #[test]
    fn guards_are_not_present_in_ranges_of_any_size() {
        for pages in [16, SPARSE / PAGE] {
            let at = crate::sys::map_private(pages * PAGE).expect("address space");
            // SAFETY: within the mapping; the guards take content that nobody needs.
            let installed = unsafe {
                (at as *mut u8).write(1);
                ((at + 9 * PAGE) as *mut u8).write(1);
                crate::sys::madvise(at + 2 * PAGE, 6 * PAGE, crate::sys::MADV_GUARD_INSTALL)
            };
            let pagemap = Pagemap::open();
            // Linux 6.12 and older have none; 6.13 and 6.14 do not say which pages they are.
            if installed.is_err() || !pagemap.is_guard(at + 2 * PAGE) {
                println!("this kernel does not tell of guards: NOT shown");
                return;
            }
            let mut runs = Vec::new();
            let note = |start, n| runs.push(((start - at) / PAGE, n));
            pagemap.for_each_present(at, at + pages * PAGE, note);
            assert_eq!(runs, [(0, 1), (9, 1)]);
            assert!([0, 1, 8, 9].iter().all(|page| !pagemap.is_guard(at + page * PAGE)));
            // SAFETY: ours.
            unsafe { crate::sys::munmap(at, pages * PAGE) }.expect("unmapped");
        }
    }

    #[test]
    fn pages_of_zeros_and_those_shared_with_a_child_are_not_exclusive() {
        let pagemap = Pagemap::open();
        let at = crate::sys::map_private(4 * PAGE).expect("memory");
        // SAFETY: within the mapping.
        unsafe {
            core::hint::black_box((at as *const u8).read_volatile());
            ((at + PAGE) as *mut u8).write(1);
            ((at + 2 * PAGE) as *mut u8).write(1);
        }
        assert!(pagemap.all_exclusive::<2>(at + PAGE));
        assert!(!pagemap.all_exclusive::<2>(at), "zeros");
        assert!(!pagemap.all_exclusive::<2>(at + 2 * PAGE), "absent");
        assert!(!Pagemap(None).all_exclusive::<1>(at + PAGE), "nobody knows");
        // SAFETY: the child does nothing but wait to be killed.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                libc::pause();
                libc::_exit(0);
            }
            let shared = !pagemap.all_exclusive::<1>(at + PAGE);
            libc::kill(child, libc::SIGKILL);
            libc::waitpid(child, core::ptr::null_mut(), 0);
            assert!(shared, "with a child");
        }
    }

    /// The blocks of x86's zone DMA are free on any large machine. Were they counted, no huge page
    /// would ever wait for others to be moved, as far as anybody is asked.
    #[test]
    fn a_free_block_is_found_in_any_zone_that_programs_have_memory_from() {
        let none = b"Node 0, zone      DMA  0 0 0 0 0 0 0 0 1 0 0 \n\
                     Node 0, zone   Normal  5054 5021 1605 946 756 582 390 239 127 0 0 \n";
        assert!(!has_huge_block(none));
        let for_devices = b"Node 0, zone      DMA  0 0 0 0 0 0 0 0 1 1 3 \n\
                            Node 0, zone   Normal  5054 5021 1605 946 756 582 390 239 127 0 0 \n";
        let is_x86 = cfg!(target_arch = "x86_64");
        assert_eq!(has_huge_block(for_devices), !is_x86);
        assert_eq!(free_in(for_devices).map(|free| free.blocks == 0), Some(is_x86));
        assert!(has_huge_block(b"Node 0, zone DMA32 0 0 0 0 0 0 0 0 0 0 7\nNode 0, zone N 0\n"));
    }

    #[test]
    fn touched_pages_are_present_and_others_are_not() {
        let at = crate::sys::map_private(16 * PAGE).expect("memory");
        for page in [3, 4, 9] {
            // SAFETY: within the mapping.
            unsafe { ((at + page * PAGE) as *mut u8).write(1) };
        }
        for pagemap in [Pagemap::open(), Pagemap(None)] {
            let mut runs = Vec::new();
            let note = |start, n| runs.push(((start - at) / PAGE, n));
            pagemap.for_each_present(at, at + 16 * PAGE, note);
            assert_eq!(runs, [(3, 2), (9, 1)]);
            assert_eq!(pagemap.is_present(at), Some(false));
        }
        let mut found = false;
        for_each_mapping(|m| found |= m.start <= at && at < m.end && m.is_ordinary());
        assert!(found);
    }
}
