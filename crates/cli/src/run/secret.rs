//! Memory of `memfd_secret`: it is in RAM and cannot leave it, and the kernel's sums count it among pages of
//! files. It is locked, too, so a process that has none locked has none. How much there is only the mappings tell,
//! which takes long to read. They are read again as soon as the sums have changed by a page, so the last time is
//! right after the last change. Callers look no more often than their share of a processor allows.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::time::{Duration, Instant};

use super::memory::Memory;

/// What may be secret is told apart from this on, and again after so long. Where none was, it is also again when so
/// much has changed: a program that has locked its files is not read all the time.
const LITTLE: u64 = 1 << 20;
const AGAIN: Duration = Duration::from_secs(5);
/// Where some is secret, it is told apart again when more than this has changed.
const PAGE: u64 = 4096;
/// How the kernel names it, on a file system of its own that has no device.
const NAME: &str = "/secretmem (deleted)";
const MAJOR: &str = "00";

/// What was read of a process.
#[derive(Clone, Copy, Debug)]
struct Read {
    at: Instant,
    /// What was locked, and in RAM of files, by the sums before.
    locked: u64,
    file: u64,
    /// What was secret.
    is: u64,
}

impl Read {
    /// Whether it is as it was for all that the sums say.
    fn holds(&self, memory: &Memory) -> bool {
        let changed = self.file.abs_diff(memory.file).max(self.locked.abs_diff(memory.locked));
        let least = if self.is == 0 { LITTLE.max(self.file / 8) } else { PAGE + 1 };
        self.at.elapsed() < AGAIN && changed < least
    }
}

/// Secret memory of processes, as it was read last.
#[derive(Debug, Default)]
pub(crate) struct Secrets(BTreeMap<u32, Read>);

impl Secrets {
    /// Secret memory of a process that is in RAM, bytes; the part of the process of what several have.
    /// Its mappings are read only where `may_read`.
    pub(crate) fn of(&mut self, process: u32, memory: &Memory, may_read: bool) -> u64 {
        let may_be = memory.locked.min(memory.file);
        if may_be < LITTLE {
            self.0.remove(&process);
            return 0;
        }
        let known = self.0.get(&process).copied();
        if !known.is_some_and(|read| read.holds(memory))
            && may_read
            && let Ok(is) = read_of(process)
        {
            let Memory { locked, file, .. } = *memory;
            self.0.insert(process, Read { at: Instant::now(), locked, file, is });
            return is;
        }
        known.map_or(0, |read| read.is.min(may_be))
    }

    /// Forgets processes that are gone.
    pub(crate) fn keep(&mut self, is_there: impl Fn(u32) -> bool) {
        self.0.retain(|&process, _| is_there(process));
    }
}

fn read_of(process: u32) -> io::Result<u64> {
    let file = File::open(format!("/proc/{process}/smaps"))?;
    read(BufReader::with_capacity(1 << 16, file))
}

/// Adds up what the text of `smaps` says of secret mappings.
fn read(mut smaps: impl BufRead) -> io::Result<u64> {
    let (mut sum, mut is_secret, mut bytes) = (0, false, Vec::new());
    loop {
        bytes.clear();
        if smaps.read_until(b'\n', &mut bytes)? == 0 {
            break;
        }
        // Files may have any name.
        let line = String::from_utf8_lossy(&bytes);
        match line.split_once(':') {
            Some(("Pss", value)) if is_secret => {
                let kib = value.split_ascii_whitespace().next().and_then(|text| text.parse().ok());
                sum += kib.unwrap_or(0u64) << 10;
            }
            // Of a field the name ends with the first colon; of a mapping, its device's major number.
            Some((head, _)) if head.contains(' ') => {
                let has_device = head.rsplit(' ').next() != Some(MAJOR);
                is_secret = !has_device && line.trim_end().ends_with(NAME);
            }
            _ => {}
        }
    }
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_names_so_is_secret_and_no_file_of_that_name() {
        let mapping = |head: &str| {
            format!("{head}\nSize: 9 kB\nRss: 8 kB\nPss: 4 kB\nPss_Dirty: 4 kB\nVmFlags: rd lo\n")
        };
        let text = [
            mapping("7f6275e23000-7f6276e23000 rw-s 00000000 00:0e 1511559   /secretmem (deleted)"),
            mapping("7f7275e23000-7f7276e23000 rw-s 00000000 fe:00 77   /secretmem (deleted)"),
            mapping("7f8275e23000-7f8276e23000 rw-s 00000000 00:01 9   /memfd:a (deleted)"),
            mapping("7f9275e23000-7f9276e23000 rw-s 00001000 00:0e 1511559   /secretmem (deleted)"),
            mapping("7fa275e23000-7fa276e23000 rw-p 00000000 00:00 0"),
        ];
        assert_eq!(read(text.concat().as_bytes()).unwrap(), 8 << 10);
        let file = b"7fb275e23000-7fb276e23000 r--s 00000000 fe:00 78   /data/\xff\n";
        let text = [&file[..], text.concat().as_bytes()].concat();
        assert_eq!(read(&text[..]).unwrap(), 8 << 10, "a name that is no UTF-8");
    }

    /// While a program fills it, and for the last time when it has.
    #[test]
    fn what_is_secret_is_read_again_when_a_page_has_come_and_files_when_many_have() {
        let memory =
            |pages: u64| Memory { file: pages * PAGE, locked: 40 << 20, ..Memory::default() };
        let read = |is| Read { at: Instant::now(), locked: 40 << 20, file: 9000 * PAGE, is };
        let (secret, files) = (read(30 << 20), read(0));
        assert!(secret.holds(&memory(9000)) && secret.holds(&memory(9001)));
        assert!(!secret.holds(&memory(9002)) && !secret.holds(&memory(8998)));
        assert!(!secret.holds(&Memory { locked: 48 << 20, ..memory(9000) }));
        assert!(files.holds(&memory(9500)) && !files.holds(&memory(11000)));
    }

    #[test]
    fn a_process_that_has_nothing_locked_is_not_read() {
        let mut secrets = Secrets::default();
        let process = std::process::id();
        let memory = Memory { file: 8 << 20, ..Memory::default() };
        assert_eq!(secrets.of(process, &memory, true), 0);
        let locked = Memory { locked: 16 << 20, ..memory };
        assert_eq!(secrets.of(process, &locked, false), 0);
        assert!(secrets.0.is_empty());
        assert_eq!(secrets.of(process, &locked, true), 0, "files that are locked");
        assert_eq!(secrets.0[&process].file, 8 << 20);
        secrets.keep(|_| false);
        assert!(secrets.0.is_empty());
    }
}
