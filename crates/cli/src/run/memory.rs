//! What the kernel counts of a process's memory: in sum, and mapping by mapping.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader};

use terrace_live::regions::{WINDOW_LEN, in_window};
use terrace_live::sys;
use terrace_report::outside::Cause;

/// What `/proc/PID/status` says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Memory {
    /// The process that started it.
    pub(super) parent: u32,
    /// Private memory in RAM that is no file's, bytes.
    pub(super) private: u64,
    /// Shared memory in RAM that is no file's, bytes.
    pub(super) shared: u64,
}

impl Memory {
    /// Of a process; `None` of one that has none (any more).
    pub(super) fn of(process: u32) -> Option<Self> {
        Self::parse(&fs::read_to_string(format!("/proc/{process}/status")).ok()?)
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
        })
    }
}

/// Bytes by cause, in the order of [`Cause::ALL`].
pub(super) type ByCause = [u64; Cause::ALL.len()];

/// What is told apart in a process by its mappings, in bytes. What other processes have, too,
/// counts in part (PSS), so that all of them together have it once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Mappings {
    /// Memory outside of the budget.
    pub(super) causes: ByCause,
    /// Private memory in the window, or of the heap: what a process that is not managed yet has
    /// its share for.
    pub(super) expected: u64,
    /// Terrace's own, private.
    pub(super) own: u64,
    /// What is in RAM of Terrace's files that are mapped.
    pub(super) own_files: u64,
    /// What is in RAM of memory that is shared, and this process's part of it.
    shared_resident: u64,
    shared_part: u64,
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
    /// Its file's, or another that the kernel gives it.
    name: String,
    file: bool,
    rss: u64,
    pss: u64,
    pss_dirty: Option<u64>,
    anonymous: u64,
    /// Whether it is registered for missing pages.
    managed: bool,
}

impl Mappings {
    /// Reads a process's.
    ///
    /// # Errors
    /// It has ended, or is out of our reach.
    pub(super) fn of(process: u32, known: &Known<'_>) -> io::Result<Self> {
        let file = File::open(format!("/proc/{process}/smaps"))?;
        Self::read(BufReader::with_capacity(1 << 16, file), known)
    }

    fn read(mut smaps: impl BufRead, known: &Known<'_>) -> io::Result<Self> {
        let mut all = Self::default();
        let mut mapping: Option<Mapping> = None;
        let mut line = String::new();
        while smaps.read_line(&mut line)? != 0 {
            if let Some(begun) = Mapping::begin(&line) {
                all.enter(mapping.replace(begun).as_ref(), known);
            } else if let Some(mapping) = &mut mapping {
                mapping.field(&line);
            }
            line.clear();
        }
        all.enter(mapping.as_ref(), known);
        Ok(all)
    }

    fn enter(&mut self, mapping: Option<&Mapping>, known: &Known<'_>) {
        let Some(m) = mapping.filter(|m| m.rss > 0) else { return };
        if m.is_shared_memory() {
            self.shared_resident += m.rss;
            self.shared_part += m.pss;
        } else if m.rights.ends_with('s') {
            // Files of Terrace's own may lie in memory.
            self.own_files += if m.name.starts_with(known.directory) { m.rss } else { 0 };
        } else if sys::is_own(m.start as usize) {
            self.own += m.pss;
        } else if m.file {
            // What was changed of it; the rest is the page cache's.
            self.add(Cause::Small, m.pss_dirty.unwrap_or(m.anonymous).min(m.anonymous));
        } else if m.managed {
            // In the books.
        } else if in_window(m.start as usize) || m.name == "[heap]" {
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

    /// A process's part of so much shared memory in RAM: all of it, as far as nothing is known.
    pub(super) fn part_of_shared(&self, resident: u64) -> u64 {
        if self.shared_resident == 0 {
            return resident;
        }
        (resident as f64 * (self.shared_part as f64 / self.shared_resident as f64)) as u64
    }
}

impl Known<'_> {
    /// Why a mapping could not be managed that was to be.
    fn cause_of(&self, m: &Mapping) -> Option<Cause> {
        let (_, _, cause) =
            self.unmanaged.iter().find(|&&(start, end, _)| start < m.end && m.start < end)?;
        Some(*cause)
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
    /// Whether it is of memory that can be shared, and of no file that has a place on a disk.
    fn is_shared_memory(&self) -> bool {
        let begins = |with| self.name.starts_with(with);
        ["/dev/zero", "/memfd:", "/SYSV", "/dev/shm/"].into_iter().any(begins)
    }

    /// `55d0c0000000-55d0c0021000 rw-p 00000000 00:00 0    [heap]`; `None` of any other line.
    fn begin(line: &str) -> Option<Self> {
        let mut fields = line.split_ascii_whitespace();
        let (start, end) = fields.next()?.split_once('-')?;
        let address = |text| u64::from_str_radix(text, 16).ok();
        let (start, end) = (address(start)?, address(end)?);
        let rights = fields.next()?;
        let (_offset, _device, inode) = (fields.next()?, fields.next()?, fields.next()?);
        let name = fields.collect::<Vec<_>>().join(" ");
        let rights = rights.to_owned();
        let (name, file) = if name.starts_with("[anon") {
            // Only a name that the program gave it.
            (String::new(), false)
        } else {
            (name, inode != "0")
        };
        Some(Self { start, end, rights, name, file, ..Self::default() })
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
        Mappings::read(text.as_bytes(), &known).unwrap()
    }

    fn of(mappings: &Mappings, cause: Cause) -> u64 {
        mappings.causes[cause as usize] >> 10
    }

    #[test]
    fn what_the_kernel_says_of_a_process_is_read() {
        let status = "Name:\tcat: PPid: 9\nPPid:\t12\nVmHWM:\t 99 kB\nRssAnon:\t     116 kB\n\
                      RssFile:\t 1664 kB\nRssShmem:\t 8 kB\n";
        let expected = Memory { parent: 12, private: 116 << 10, shared: 8 << 10 };

        assert_eq!(Memory::parse(status), Some(expected));
        assert_eq!(Memory::parse("Name:\tkthreadd\nPPid:\t0\n"), None, "it has no memory");
        assert!(Memory::of(std::process::id()).unwrap().private > 0);
    }

    #[test]
    fn each_mapping_counts_for_what_it_is() {
        let text = [
            smaps("7f00-5f00000 rw-s 0 00:01 5 /dev/zero (deleted)", 400, 200, "VmFlags: rd sh"),
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
            smaps("100000000000-100000200000 rw-p 0 00:00 0 ", 1000, 1000, "VmFlags: rd wr um"),
            smaps("0e0000001000-0e0000002000 rw-p 0 00:00 0 ", 77, 77, ""),
            smaps("7f60-7f70 rw-s 0 00:19 7 /run/terrace-x/1.stats", 8, 4, ""),
            smaps("7f8000000000-7f8000400000 rw-p 0 00:00 0 ", 500, 500, ""),
            smaps("300000000000-340000000000 rw-p 0 00:00 0 [anon:shadow]", 90, 90, ""),
        ];
        let listed = [(0x7f80_0010_0000, 0x7f80_0020_0000, Cause::TableFull)];

        let found = read(&text.concat(), &listed);

        assert_eq!((found.shared_resident >> 10, found.part_of_shared(800)), (400, 400));
        assert_eq!(of(&found, Cause::NotAsked), 300);
        assert_eq!(of(&found, Cause::Small), 4 + 40 + 16 + 5);
        assert_eq!(of(&found, Cause::TableFull), 500);
        assert_eq!(of(&found, Cause::TooLarge), 90);
        assert_eq!((found.own >> 10, found.own_files >> 10, found.expected), (77, 8, 0));
    }

    #[test]
    fn what_a_process_has_its_share_for_is_expected() {
        let text = smaps("55d0c0000000-55d0c0021000 rw-p 0 00:00 0 [heap]", 100, 100, "")
            + &smaps("100000000000-100000200000 rw-p 0 00:00 0 ", 1000, 1000, "VmFlags: rd wr");

        assert_eq!(read(&text, &[]).expected >> 10, 1100);
        let listed = [(0x1000_0000_0000, 0x1000_0020_0000, Cause::NoMemory)];
        let found = read(&text, &listed);
        assert_eq!((found.expected >> 10, of(&found, Cause::NoMemory)), (100, 1000));
    }

    #[test]
    fn our_own_mappings_can_be_read() {
        let memory = std::hint::black_box(vec![1u8; 32 << 20]);
        let known = Known { min_region: 65536, unmanaged: &[], directory: "/run/none" };

        let found = Mappings::of(std::process::id(), &known).unwrap();

        assert!(of(&found, Cause::NotAsked) >= 30 << 10, "{found:?}");
        drop(memory);
        assert!(Mappings::of(u32::MAX, &known).is_err());
    }
}
