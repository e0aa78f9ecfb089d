//! What the kernel counts of a process's memory: in sum, and mapping by mapping.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader};
use std::os::linux::fs::MetadataExt;

use terrace_live::sys;
use terrace_live::sys::addresses::{WINDOW_LEN, may_be_window};
use terrace_report::outside::Cause;
use terrace_sampler::proc_text;

use super::shared_files::{FileId, Part};

/// What `/proc/PID/status` says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Memory {
    /// The process that started it.
    pub(crate) parent: u32,
    /// Private memory in RAM that is no file's, bytes; private copies of files' pages are in it.
    pub(crate) private: u64,
    /// Shared memory in RAM that is no file's, bytes. A page counts as often as it is mapped.
    pub(crate) shared: u64,
    /// Pages of files that are mapped, bytes; secret memory is in it.
    pub(crate) file: u64,
    /// Mappings that are locked, bytes: secret memory is.
    pub(crate) locked: u64,
    /// Huge pages of the kernel's pool (hugetlbfs) that are mapped, bytes; in none of the others.
    pub(crate) pool: u64,
    /// The most that private, shared and file had in sum, ever.
    pub(crate) most: u64,
}

impl Memory {
    /// Of a process; `None` of one that has none (any more).
    pub(crate) fn of(process: u32) -> Option<Self> {
        Self::parse(&proc_text(format!("/proc/{process}/status")).ok()?)
    }

    fn parse(status: &str) -> Option<Self> {
        let value = |name| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            line.split_ascii_whitespace().next()?.parse::<u64>().ok()
        };
        Some(Self {
            parent: value("PPid:")? as u32,
            private: value("RssAnon:")? << 10,
            shared: value("RssShmem:")? << 10,
            file: value("RssFile:")? << 10,
            locked: value("VmLck:").unwrap_or(0) << 10,
            pool: value("HugetlbPages:").unwrap_or(0) << 10,
            most: value("VmHWM:")? << 10,
        })
    }

    /// All that it has in RAM, as the most is counted.
    pub(super) fn all(&self) -> u64 {
        self.private + self.shared + self.file
    }
}

/// Bytes by cause, in the order of [`Cause::ALL`].
pub(super) type ByCause = [u64; Cause::ALL.len()];

/// What is told apart in a process by its mappings, in bytes. Private memory that relatives have in
/// the same frames counts in part (PSS), so that all of them together have it once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Mappings {
    /// Private memory outside of the budget.
    pub(super) causes: ByCause,
    /// Private memory in the window, or of the heap: what a process that is not managed yet has
    /// its share for.
    pub(super) expected: u64,
    /// Terrace's own, private.
    pub(super) own: u64,
    /// All that is in RAM, private and no file's, as `RssAnon` counts it (a page of relatives in full):
    /// what is neither in the books nor Terrace's own, and that.
    pub(super) anonymous: u64,
    pub(super) own_anonymous: u64,
    /// What is mapped of files in memory.
    pub(super) files: Vec<Part>,
    /// The same of the pool of huge pages.
    pub(super) pool: Vec<Part>,
}

/// Which file systems' files are memory: they have no other place.
#[derive(Debug, Default)]
pub(super) struct FileSystems {
    /// The kernel's own, which memfds, System V's segments and shared anonymous mappings lie on.
    internal: Option<u64>,
    memory: BTreeSet<u64>,
    others: BTreeSet<u64>,
}

impl FileSystems {
    /// Those of this machine.
    pub(super) fn new() -> Self {
        let memfd = rustix::fs::memfd_create("terrace", rustix::fs::MemfdFlags::CLOEXEC);
        let device = |fd| File::from(fd).metadata().map(|file| file.st_dev());
        Self { internal: memfd.ok().and_then(|fd| device(fd).ok()), ..Self::default() }
    }

    /// Whether a device is one of them, for a process that has a file of it mapped.
    fn is_memory(&mut self, device: u64, process: u32) -> bool {
        if self.internal == Some(device) || self.memory.contains(&device) {
            return true;
        }
        if !self.others.contains(&device) {
            // Of one that has ended nothing is known: the next is asked again.
            let Ok(mounts) = fs::read_to_string(format!("/proc/{process}/mountinfo")) else {
                return false;
            };
            self.memory.extend(in_memory(&mounts));
            if !self.memory.contains(&device) {
                self.others.insert(device);
            }
        }
        self.memory.contains(&device)
    }
}

/// `36 35 0:26 / /dev/shm rw,nosuid - tmpfs tmpfs rw`: the devices of those in memory.
fn in_memory(mountinfo: &str) -> impl Iterator<Item = u64> {
    mountinfo.lines().filter_map(|line| {
        let (mount, file_system) = line.split_once(" - ")?;
        let kind = file_system.split(' ').next()?;
        let (major, minor) = mount.split(' ').nth(2)?.split_once(':')?;
        let device = rustix::fs::makedev(major.parse().ok()?, minor.parse().ok()?);
        ["tmpfs", "devtmpfs"].contains(&kind).then_some(device)
    })
}

/// By what mappings are told apart.
pub(super) struct Known<'a> {
    /// Smaller mappings are left alone.
    pub(super) min_region: u64,
    /// Ranges that could not be managed, and why.
    pub(super) unmanaged: &'a [(u64, u64, Cause)],
    /// Where files of Terrace's own lie that are mapped.
    pub(super) directory: &'a str,
}

/// One mapping of `/proc/PID/smaps`.
#[derive(Debug, Default)]
struct Mapping {
    start: u64,
    end: u64,
    /// `rw-p`
    rights: String,
    /// Where it begins in its file.
    offset: u64,
    file: Option<FileId>,
    /// Its file's, or another that the kernel gives it.
    name: String,
    rss: u64,
    pss: u64,
    pss_dirty: Option<u64>,
    /// Of what is in RAM, what is private and no file's.
    anonymous: u64,
    /// In huge pages of the pool, which are in none of the others.
    pool: u64,
    /// Whether it is registered for missing pages.
    managed: bool,
}

impl Mappings {
    /// Reads a process's.
    ///
    /// # Errors
    /// It has ended, or is out of our reach.
    pub(super) fn of(
        process: u32,
        known: &Known<'_>,
        systems: &mut FileSystems,
    ) -> io::Result<Self> {
        let file = File::open(format!("/proc/{process}/smaps"))?;
        let smaps = BufReader::with_capacity(1 << 16, file);
        Self::read(smaps, known, |device| systems.is_memory(device, process))
    }

    fn read(
        mut smaps: impl BufRead,
        known: &Known<'_>,
        mut is_memory: impl FnMut(u64) -> bool,
    ) -> io::Result<Self> {
        let mut all = Self::default();
        let mut mapping: Option<Mapping> = None;
        let mut line = String::new();
        while smaps.read_line(&mut line)? != 0 {
            if let Some(begun) = Mapping::begin(&line) {
                all.enter(mapping.replace(begun).as_ref(), known, &mut is_memory);
            } else if let Some(mapping) = &mut mapping {
                mapping.field(&line);
            }
            line.clear();
        }
        all.enter(mapping.as_ref(), known, &mut is_memory);
        Ok(all)
    }

    fn enter(
        &mut self,
        mapping: Option<&Mapping>,
        known: &Known<'_>,
        is_memory: &mut impl FnMut(u64) -> bool,
    ) {
        let Some(m) = mapping.filter(|m| m.rss + m.pool > 0) else { return };
        if sys::is_own(m.start as usize) {
            self.own_anonymous += m.anonymous;
        } else if m.file.is_some() || !m.managed {
            self.anonymous += m.anonymous;
        }
        if let Some(file) = m.file.filter(|_| m.pool > 0) {
            // The kernel has no shares of these.
            self.pool.push(m.part(file, m.pool, 0));
        } else if let Some(file) = m.file {
            // What was changed of a private mapping is the process's own; the rest is the file's.
            let copies = m.copies();
            let resident = m.rss.saturating_sub(m.anonymous);
            let is_private = m.rights.ends_with('p');
            if !is_private && m.name.starts_with(known.directory) {
                // Terrace's own, which the process has mapped: it may lie in memory.
            } else if sys::is_own(m.start as usize) {
                self.own += m.pss;
            } else {
                self.add(known.cause_of_copies(m), copies);
                if resident > 0 && is_memory(file.device) {
                    let share = m.pss.saturating_sub(copies).min(resident);
                    self.files.push(m.part(file, resident, share));
                }
            }
        } else if sys::is_own(m.start as usize) {
            self.own += m.pss;
        } else if m.managed {
            // In the books.
        } else if may_be_window(m.start as usize) || m.name == "[heap]" {
            match known.cause_of(m) {
                Some(cause) => self.add(cause, m.pss),
                None => self.expected += m.pss,
            }
        } else {
            self.add(known.cause_of(m).unwrap_or_else(|| known.guess(m)), m.pss);
        }
    }

    fn add(&mut self, cause: Cause, bytes: u64) {
        self.causes[cause as usize] += bytes;
    }
}

impl Known<'_> {
    /// Why a mapping could not be managed that was to be.
    fn cause_of(&self, m: &Mapping) -> Option<Cause> {
        let (_, _, cause) =
            self.unmanaged.iter().find(|&&(start, end, _)| start < m.end && m.start < end)?;
        Some(*cause)
    }

    /// The same of private copies of its file's pages.
    fn cause_of_copies(&self, m: &Mapping) -> Cause {
        if m.end - m.start >= self.min_region && m.is_data() {
            Cause::FileCopies
        } else {
            Cause::Small
        }
    }

    /// The same of one that nobody has told of.
    fn guess(&self, m: &Mapping) -> Cause {
        let len = m.end - m.start;
        if len >= WINDOW_LEN as u64 / 2 {
            Cause::TooLarge
        } else if m.rights == "rw-p" && m.name.is_empty() && len >= self.min_region {
            Cause::NotAsked
        } else {
            Cause::Small
        }
    }
}

impl Mapping {
    fn part(&self, file: FileId, resident: u64, share: u64) -> Part {
        let (start, end) = (self.offset, self.offset + (self.end - self.start));
        Part { file, start, end, resident, share }
    }

    /// Whether it is of data, not of code or constants.
    fn is_data(&self) -> bool {
        self.rights.starts_with("rw-")
    }

    /// What a process has of its own in a mapping of a file, its part of what relatives have, too.
    fn copies(&self) -> u64 {
        if self.anonymous >= self.rss {
            return self.pss;
        }
        self.pss_dirty.unwrap_or(self.anonymous).min(self.anonymous)
    }

    /// `55d0c0000000-55d0c0021000 rw-p 00001000 fe:01 12    /usr/lib/x`; `None` of any other line.
    fn begin(line: &str) -> Option<Self> {
        let mut fields = line.split_ascii_whitespace();
        let hexadecimal = |text| u64::from_str_radix(text, 16).ok();
        let (start, end) = fields.next()?.split_once('-')?;
        let (start, end) = (hexadecimal(start)?, hexadecimal(end)?);
        let rights = fields.next()?.to_owned();
        let offset = hexadecimal(fields.next()?)?;
        let (major, minor) = fields.next()?.split_once(':')?;
        let (major, minor) =
            (u32::from_str_radix(major, 16).ok()?, u32::from_str_radix(minor, 16).ok()?);
        let inode = fields.next()?.parse().ok()?;
        let mut name = fields.collect::<Vec<_>>().join(" ");
        if name.starts_with("[anon:") {
            // Only a name that the program gave it.
            name = String::new();
        }
        let file = FileId { device: rustix::fs::makedev(major, minor), inode };
        // Shared anonymous memory may have a name that the program gave it, too (`[anon_shmem:x]`). The
        // first System V segment after a machine's start has inode 0, its number, as other mappings of
        // no file have; those have no device either.
        let file = (inode != 0 || major != 0 || minor != 0).then_some(file);
        Some(Self { start, end, rights, offset, file, name, ..Self::default() })
    }

    /// `Rss:                   8 kB`
    fn field(&mut self, line: &str) {
        let Some((name, value)) = line.split_once(':') else { return };
        let bytes = || {
            let kib = value.split_ascii_whitespace().next().and_then(|text| text.parse().ok());
            kib.unwrap_or(0u64) << 10
        };
        match name {
            "Rss" => self.rss = bytes(),
            "Pss" => self.pss = bytes(),
            "Pss_Dirty" => self.pss_dirty = Some(bytes()),
            "Anonymous" => self.anonymous = bytes(),
            "Private_Hugetlb" | "Shared_Hugetlb" => self.pool += bytes(),
            "VmFlags" => self.managed = value.split_ascii_whitespace().any(|flag| flag == "um"),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn smaps(head: &str, rss: u64, pss: u64, more: &str) -> String {
        format!("{head}\nSize: 9 kB\nRss: {rss} kB\nPss: {pss} kB\n{more}\n")
    }

    fn read(text: &str, unmanaged: &[(u64, u64, Cause)]) -> Mappings {
        let known = Known { min_region: 65536, unmanaged, directory: "/run/terrace-x/" };
        let is_memory =
            |device| [rustix::fs::makedev(0, 1), rustix::fs::makedev(0, 0x19)].contains(&device);
        Mappings::read(text.as_bytes(), &known, is_memory).unwrap()
    }

    fn of(mappings: &Mappings, cause: Cause) -> u64 {
        mappings.causes[cause as usize] >> 10
    }

    #[test]
    fn what_the_kernel_says_of_a_process_is_read() {
        let status = "Name:\tcat: PPid: 9\nPPid:\t12\nVmLck:\t 20 kB\nVmHWM:\t 99 kB\n\
                      RssAnon:\t     116 kB\n\
                      RssFile:\t 1664 kB\nRssShmem:\t 8 kB\nHugetlbPages:\t 4096 kB\n";
        let expected = Memory {
            parent: 12,
            private: 116 << 10,
            shared: 8 << 10,
            file: 1664 << 10,
            locked: 20 << 10,
            pool: 4 << 20,
            most: 99 << 10,
        };

        assert_eq!(Memory::parse(status), Some(expected));
        assert_eq!(Memory::parse("Name:\tkthreadd\nPPid:\t0\n"), None, "it has no memory");
        let own = Memory::of(std::process::id()).unwrap();
        assert!(own.private > 0 && own.most > own.private, "{own:?}");
    }

    #[test]
    fn each_mapping_counts_for_what_it_is() {
        let text = [
            smaps("7f0000000000-7f0000400000 rw-p 0 00:00 0 ", 300, 300, "VmFlags: rd wr mr"),
            smaps("7f1000000000-7f1000001000 rw-p 0 00:00 0 ", 4, 4, ""),
            smaps("7f2000000000-7f2000400000 rwxp 0 00:00 0 ", 40, 40, ""),
            smaps("7ffc00000000-7ffc00800000 rw-p 0 00:00 0 [stack]", 16, 16, ""),
            smaps(
                "7f30-7f50 rw-p 0 fe:00 12 /usr/lib/libc.so.6",
                60,
                30,
                "Pss_Dirty: 5 kB\nAnonymous: 20 kB",
            ),
            smaps("440000000000-440000200000 rw-p 0 00:00 0 ", 1000, 1000, "VmFlags: rd wr um"),
            smaps("3b0000001000-3b0000002000 rw-p 0 00:00 0 ", 77, 77, ""),
            smaps("7f60-7f70 rw-s 0 00:19 7 /run/terrace-x/1.stats", 8, 4, ""),
            smaps("7f8000000000-7f8000400000 rw-p 0 00:00 0 ", 500, 500, ""),
            smaps("300000000000-340000000000 rw-p 0 00:00 0 [anon:shadow]", 90, 90, ""),
        ];
        let listed = [(0x7f80_0010_0000, 0x7f80_0020_0000, Cause::TableFull)];

        let found = read(&text.concat(), &listed);

        assert_eq!(found.files, []);
        assert_eq!(of(&found, Cause::NotAsked), 300);
        assert_eq!(of(&found, Cause::Small), 4 + 40 + 16 + 5);
        assert_eq!(of(&found, Cause::TableFull), 500);
        assert_eq!(of(&found, Cause::TooLarge), 90);
        assert_eq!((found.own >> 10, found.expected), (77, 0));
    }

    /// What a process writes to in a private mapping is its own memory, whatever the mapping is of;
    /// the rest of it is the file's.
    #[test]
    fn private_copies_of_a_file_s_pages_are_the_process_s_own() {
        let text = [
            smaps("7f00000-7f80000 rw-p 0 00:05 4 /dev/zero", 400, 400, "Anonymous: 400 kB"),
            smaps(
                "8f00000-8f80000 rw-p 80000 00:01 9 /memfd:x (deleted)",
                500,
                500,
                "Pss_Dirty: 500 kB\nAnonymous: 200 kB",
            ),
            smaps("9f00000-9f80000 rw-p 0 00:19 7 /dev/shm/x", 60, 60, "Anonymous: 60 kB"),
            smaps("af00000-af80000 rw-p 0 fe:00 8 /home/x", 90, 90, "Anonymous: 80 kB"),
            smaps("bf00000-bf80000 rw-s 0 00:01 9 /memfd:x (deleted)", 70, 35, "Anonymous: 0 kB"),
            smaps("cf00000-cf80000 rw-s 0 fe:00 8 /home/x", 90, 90, "Anonymous: 0 kB"),
            smaps("e000000-e400000 rw-p 0 00:10 77 /anon_hugepage", 0, 0, "Private_Hugetlb: 9 kB"),
        ];

        let found = read(&text.concat(), &[]);

        assert_eq!(of(&found, Cause::FileCopies), 400 + 200 + 60 + 80);
        let part = |start: u64, resident: u64, share: u64| Part {
            file: FileId { device: rustix::fs::makedev(0, 1), inode: 9 },
            start,
            end: start + 0x80000,
            resident: resident << 10,
            share: share << 10,
        };
        assert_eq!(found.files, [part(0x80000, 300, 300), part(0, 70, 35)]);
        assert_eq!(found.pool.iter().map(|part| part.resident >> 10).sum::<u64>(), 9);
    }

    /// Its inode is its number, which begins with 0.
    #[test]
    fn the_first_system_v_segment_of_a_machine_is_shared_memory() {
        let head = "7f0000000000-7f0003000000 rw-s 0 00:01 0 /SYSV00000000 (deleted)";
        let found = read(&smaps(head, 49152, 49152, "Anonymous: 0 kB"), &[]);
        assert_eq!(found.files.len(), 1);
        assert_eq!(found.files[0].resident, 48 << 20);
    }

    #[test]
    fn which_file_systems_are_memory_is_looked_up() {
        let mounts = "23 28 0:22 / /sys rw shared:7 - sysfs sysfs rw\n\
                      30 28 0:26 / /dev/shm rw,nosuid master:2 - tmpfs tmpfs rw\n\
                      31 28 8:1 / /mnt/a\\040-\\040b rw - ext4 /dev/sda1 rw\n";
        assert_eq!(in_memory(mounts).collect::<Vec<_>>(), [rustix::fs::makedev(0, 26)]);
        let mut systems = FileSystems::new();
        assert!(systems.internal.is_some());
        let shm = fs::metadata("/dev/shm").unwrap().st_dev();
        let proc = fs::metadata("/proc").unwrap().st_dev();
        assert!(systems.is_memory(shm, std::process::id()));
        assert!(!systems.is_memory(proc, std::process::id()));
    }

    #[test]
    fn what_a_process_has_its_share_for_is_expected() {
        let text = smaps("55d0c0000000-55d0c0021000 rw-p 0 00:00 0 [heap]", 100, 100, "")
            + &smaps("440000000000-440000200000 rw-p 0 00:00 0 ", 1000, 1000, "VmFlags: rd wr");

        assert_eq!(read(&text, &[]).expected >> 10, 1100);
        let listed = [(0x4400_0000_0000, 0x4400_0020_0000, Cause::NoMemory)];
        let found = read(&text, &listed);
        assert_eq!((found.expected >> 10, of(&found, Cause::NoMemory)), (100, 1000));
    }

    #[test]
    fn what_relatives_have_too_is_also_summed_in_full() {
        let text = [
            smaps("7f0000000000-7f0000400000 rw-p 0 00:00 0 ", 300, 150, "Anonymous: 300 kB"),
            smaps("7f30-7f50 rw-p 0 fe:00 12 /usr/lib/libc.so.6", 60, 30, "Anonymous: 20 kB"),
            smaps(
                "440000000000-440000200000 rw-p 0 00:00 0 ",
                1000,
                500,
                "Anonymous: 1000 kB\nVmFlags: rd wr um",
            ),
            smaps("3b0000001000-3b0000002000 rw-p 0 00:00 0 ", 80, 40, "Anonymous: 80 kB"),
        ];

        let found = read(&text.concat(), &[]);

        assert_eq!((found.anonymous >> 10, found.own_anonymous >> 10), (320, 80));
        assert_eq!((of(&found, Cause::NotAsked), found.own >> 10), (150, 40));
    }

    #[test]
    fn our_own_mappings_can_be_read() {
        let memory = std::hint::black_box(vec![1u8; 32 << 20]);
        let known = Known { min_region: 65536, unmanaged: &[], directory: "/run/none" };

        let found = Mappings::of(std::process::id(), &known, &mut FileSystems::new()).unwrap();

        assert!(of(&found, Cause::NotAsked) >= 30 << 10, "{found:?}");
        drop(memory);
        assert!(Mappings::of(u32::MAX, &known, &mut FileSystems::new()).is_err());
    }
}
