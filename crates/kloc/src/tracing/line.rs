//! A line of `trace_pipe`, taken apart.

use terrace_core::Nanos;

/// A file of the running kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Inode {
    /// The device's major and minor number.
    pub device: (u32, u32),
    /// The inode's number.
    pub number: u64,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// A system call begins (`raw_syscalls:sys_enter`).
    Enter {
        /// Its number.
        number: i64,
        /// Its arguments.
        arguments: [u64; 6],
    },
    /// A system call ends (`raw_syscalls:sys_exit`).
    Exit {
        /// Its number.
        number: i64,
        /// What it gives back.
        result: i64,
    },
    /// A thread or process was made (`task:task_newtask`).
    Forked {
        /// The new thread.
        child: u32,
        /// How (`CLONE_…`).
        flags: u64,
    },
    /// Pages were added to the page cache (`filemap:mm_filemap_add_to_page_cache`).
    PagesAdded {
        /// Of this file.
        inode: Inode,
        /// How many: one folio.
        pages: u32,
    },
    /// Pages left the page cache (`filemap:mm_filemap_delete_from_page_cache`).
    PagesRemoved {
        /// Of this file.
        inode: Inode,
        /// How many: one folio.
        pages: u32,
    },
    /// A read looked pages up (`filemap:mm_filemap_get_pages`, Linux 6.12 and later).
    PagesRead {
        /// Of this file.
        inode: Inode,
        /// Where, in bytes.
        offset: u64,
    },
    /// An access to a mapping was not mapped (`filemap:mm_filemap_fault`).
    PageFaulted {
        /// Of this file.
        inode: Inode,
        /// Where, in bytes.
        offset: u64,
    },
    /// A page is about to be written (`ext4:ext4_da_write_begin`, `ext4:ext4_write_begin`).
    Written {
        /// Of this file.
        inode: Inode,
        /// Where, in bytes.
        offset: u64,
    },
    /// A file was made (`ext4:ext4_allocate_inode`).
    Made {
        /// The new file.
        inode: Inode,
    },
    /// A name of a file is deleted (`ext4:ext4_unlink_enter`).
    Unlinked {
        /// The file.
        inode: Inode,
    },
    /// An object was allocated (`kmem:kmem_cache_alloc`).
    Allocated {
        /// From this slab cache.
        cache: String,
    },
    /// A bio was handed to a device (`block:block_bio_queue`).
    BioQueued,
}

/// An event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The thread that it happened in.
    pub thread: u32,
    /// The processor.
    pub cpu: u16,
    /// When, since the machine started.
    pub at: Nanos,
    /// What.
    pub what: What,
}

impl Event {
    /// Takes a line apart. None of what is no event that we know.
    ///
    /// ```text
    ///     fio-31269   [000] .....  2407.604410: sys_exit: NR 1 = 2
    /// ```
    pub fn parse(line: &str) -> Option<Self> {
        // The command's name may have spaces, dashes and brackets: the first bracket with a
        // number in it after a dash and a number is the processor.
        let (thread, cpu, rest) = line.match_indices('[').find_map(|(at, _)| {
            let (cpu, rest) = line[at + 1..].split_once(']')?;
            let (_, thread) = line[..at].trim_end().rsplit_once('-')?;
            Some((thread.parse().ok()?, cpu.parse().ok()?, rest))
        })?;
        let mut words = rest.trim_start().splitn(2, char::is_whitespace);
        let rest = words.nth(1)?;
        let (time, rest) = rest.split_once(": ")?;
        let (seconds, fraction) = time.trim().split_once('.')?;
        let micros: u64 = fraction.parse().ok()?;
        let at = seconds.parse::<u64>().ok()?.checked_mul(1_000_000_000)?;
        let at = Nanos(at.checked_add(micros.checked_mul(1000)?)?);
        let (name, rest) = rest.split_once(':')?;
        Some(Self { thread, cpu, at, what: what(name, rest.trim())? })
    }

    /// How many events a line says were lost, if it says so.
    pub fn lost(line: &str) -> Option<u64> {
        let (_, rest) = line.split_once("[LOST ")?;
        rest.split_once(' ')?.0.parse().ok()
    }
}

fn what(name: &str, rest: &str) -> Option<What> {
    Some(match name {
        "sys_enter" => {
            let (number, rest) = rest.strip_prefix("NR ")?.split_once(" (")?;
            let mut arguments = [0; 6];
            let given = rest.strip_suffix(')')?.split(", ");
            for (argument, text) in arguments.iter_mut().zip(given) {
                *argument = u64::from_str_radix(text, 16).ok()?;
            }
            What::Enter { number: number.parse().ok()?, arguments }
        }
        "sys_exit" => {
            let (number, result) = rest.strip_prefix("NR ")?.split_once(" = ")?;
            What::Exit { number: number.parse().ok()?, result: result.parse().ok()? }
        }
        "task_newtask" => {
            let flags = u64::from_str_radix(field(rest, "clone_flags=")?, 16).ok()?;
            What::Forked { child: field(rest, "pid=")?.parse().ok()?, flags }
        }
        "mm_filemap_add_to_page_cache" => {
            What::PagesAdded { inode: in_hex(rest, "dev ", "ino ")?, pages: folio(rest)? }
        }
        "mm_filemap_delete_from_page_cache" => {
            What::PagesRemoved { inode: in_hex(rest, "dev ", "ino ")?, pages: folio(rest)? }
        }
        "mm_filemap_get_pages" => {
            let offset = field(rest, "ofs=")?.split('-').next()?.parse().ok()?;
            What::PagesRead { inode: in_hex(rest, "dev=", "ino=")?, offset }
        }
        "mm_filemap_fault" => {
            let offset = field(rest, "ofs=")?.parse().ok()?;
            What::PageFaulted { inode: in_hex(rest, "dev=", "ino=")?, offset }
        }
        "ext4_da_write_begin" | "ext4_write_begin" => {
            What::Written { inode: in_decimal(rest)?, offset: field(rest, "pos ")?.parse().ok()? }
        }
        "ext4_allocate_inode" => What::Made { inode: in_decimal(rest)? },
        "ext4_unlink_enter" => What::Unlinked { inode: in_decimal(rest)? },
        "kmem_cache_alloc" => What::Allocated { cache: field(rest, "name=")?.to_owned() },
        "block_bio_queue" => What::BioQueued,
        _ => return None,
    })
}

/// The word after a key that begins a word.
fn field<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    let mut from = 0;
    loop {
        let at = from + text[from..].find(key)?;
        if at == 0 || text.as_bytes()[at - 1] == b' ' {
            return text[at + key.len()..].split([' ', ',']).next().filter(|word| !word.is_empty());
        }
        from = at + key.len();
    }
}

fn device(text: &str) -> Option<(u32, u32)> {
    let (major, minor) = text.split_once([':', ','])?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

fn in_hex(text: &str, device_key: &str, inode_key: &str) -> Option<Inode> {
    let number = u64::from_str_radix(field(text, inode_key)?, 16).ok()?;
    Some(Inode { device: device(field(text, device_key)?)?, number })
}

/// As ext4 writes it: `dev 254,0 ino 10101334`.
fn in_decimal(text: &str) -> Option<Inode> {
    let mut words = text.split_whitespace().skip_while(|word| *word != "dev").skip(1);
    let device = device(words.next()?)?;
    Some(Inode { device, number: field(text, "ino ")?.parse().ok()? })
}

/// Pages of the folio that an event is about; older kernels have pages only.
fn folio(text: &str) -> Option<u32> {
    match field(text, "order=") {
        Some(order) => 1u32.checked_shl(order.parse().ok()?),
        None => Some(1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn what(text: &str) -> What {
        let line = format!("    a b-c [x]-31269   [001] d..1.  2407.604410: {text}");
        let event = Event::parse(&line).unwrap_or_else(|| panic!("{line}"));
        assert_eq!((event.thread, event.cpu), (31269, 1));
        assert_eq!(event.at, Nanos(2_407_604_410_000));
        event.what
    }

    /// Lines as Linux 6.18 wrote them.
    #[test]
    fn lines_of_a_kernel_are_taken_apart() {
        let inode = Inode { device: (254, 0), number: 0x9b_2051 };
        assert_eq!(
            what("sys_enter: NR 33 (b, 1, 0, 0, 2, 55d65454bca1)"),
            What::Enter { number: 33, arguments: [11, 1, 0, 0, 2, 0x55d6_5454_bca1] }
        );
        assert_eq!(what("sys_exit: NR 1 = -2"), What::Exit { number: 1, result: -2 });
        assert_eq!(
            what("mm_filemap_add_to_page_cache: dev 254:0 ino 9b2051 pfn=0x454351 ofs=0 order=2"),
            What::PagesAdded { inode, pages: 4 }
        );
        assert_eq!(
            what("mm_filemap_get_pages: dev=254:0 ino=9b2051 ofs=8192-12287"),
            What::PagesRead { inode, offset: 8192 }
        );
        assert_eq!(
            what("ext4_da_write_begin: dev 254,0 ino 10166353 pos 4096 len 4096"),
            What::Written { inode, offset: 4096 }
        );
        assert_eq!(
            what("task_newtask: pid=31270 comm=sh clone_flags=4100 oom_score_adj=0"),
            What::Forked { child: 31270, flags: 0x4100 }
        );
        let alloc = "kmem_cache_alloc: call_site=alloc_empty_file+0x3c/0x110 \
                     ptr=00000000becee4c7 name=filp bytes_req=184 bytes_alloc=192";
        assert_eq!(what(alloc), What::Allocated { cache: "filp".to_owned() });
    }

    #[test]
    fn what_is_no_event_is_passed_over() {
        for line in ["", "# tracer: nop", "CPU:0 [LOST 12 EVENTS]", "x-1 [0] ..... 1.2: other: y"] {
            assert_eq!(Event::parse(line), None, "{line}");
        }
        assert_eq!(Event::lost("CPU:0 [LOST 12 EVENTS]"), Some(12));
    }
}
