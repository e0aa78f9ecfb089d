//! What hooks tell of files.

use terrace_core::{Bytes, ContextIdentity, Nanos};

/// What happened to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Kind {
    /// A program opened it.
    Opened = 1,
    /// An open file of it is gone: nobody has that one any more.
    Closed = 2,
    /// The kernel drops its inode.
    Evicted = 3,
}

/// What a page of a file takes on this machine.
pub fn page() -> Bytes {
    Bytes(rustix::param::page_size() as u64)
}

/// Something happened to a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileEvent {
    /// What.
    pub kind: Kind,
    /// When, on the monotonic clock.
    pub at: Nanos,
    /// Which file.
    pub file: ContextIdentity,
    /// Of which kind its file system is (`statfs(2)`, `f_type`).
    pub magic: u64,
    /// Pages of it in the page cache then.
    pub pages: u64,
    /// Its length.
    pub length: Bytes,
    /// Extents that the kernel holds of it; `None` if the file system has none, or it is not known.
    pub extents: Option<u32>,
    /// Names that it has.
    pub links: u32,
    /// Names of it that the kernel's cache has (dentries), no more than
    /// [`MOST_NAMES`](super::programs::MOST_NAMES); `None` if it is not known.
    pub names: Option<u32>,
    /// The memory control group of the process, by its directory's inode number; 0 if unknown.
    pub group: u64,
    /// The process.
    pub process: u32,
    /// The name of the process's thread.
    pub command: [u8; 16],
}

impl FileEvent {
    /// The name of the thread, as people read it.
    pub fn command_name(&self) -> String {
        let end = self.command.iter().position(|&byte| byte == 0).unwrap_or(16);
        String::from_utf8_lossy(&self.command[..end]).into_owned()
    }
}

/// An event as it lies in the ring. Offsets are in bytes.
pub struct Record;

impl Record {
    /// When.
    pub const AT: i16 = 0;
    /// `inode.i_ino`
    pub const INODE: i16 = 8;
    /// `address_space.nrpages`
    pub const PAGES: i16 = 16;
    /// `inode.i_size`
    pub const LENGTH: i16 = 24;
    /// The control group.
    pub const GROUP: i16 = 32;
    /// `super_block.s_magic`
    pub const MAGIC: i16 = 40;
    /// `super_block.s_dev`
    pub const DEVICE: i16 = 48;
    /// `inode.i_generation`
    pub const GENERATION: i16 = 52;
    /// The process.
    pub const PROCESS: i16 = 56;
    /// Extents, or −1.
    pub const EXTENTS: i16 = 60;
    /// [`Kind`]
    pub const KIND: i16 = 64;
    /// `inode.i_nlink`
    pub const LINKS: i16 = 68;
    /// The thread's name, 16 bytes.
    pub const COMMAND: i16 = 72;
    /// Names in the kernel's cache, or −1.
    pub const NAMES: i16 = 88;
    /// All of it.
    pub const SIZE: usize = 92;

    /// In the place of a [`Kind`]: a page of the file came into the cache. The file counts as opened, with
    /// nothing of it in place before, whatever is cached by the time that the record is written.
    pub const MISSED: u32 = 4;

    /// Reads one; nothing if it is none.
    pub fn read(bytes: &[u8]) -> Option<FileEvent> {
        let bytes: &[u8; Self::SIZE] = bytes.get(..Self::SIZE)?.try_into().ok()?;
        let double = |at: i16| {
            let at = at as usize;
            u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
        };
        let word = |at: i16| {
            let at = at as usize;
            u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
        };
        let (kind, in_place) = match word(Self::KIND) {
            1 => (Kind::Opened, true),
            2 => (Kind::Closed, true),
            3 => (Kind::Evicted, true),
            Self::MISSED => (Kind::Opened, false),
            _ => return None,
        };
        let device = device_number(word(Self::DEVICE));
        let command = bytes[Self::COMMAND as usize..Self::NAMES as usize].try_into().ok()?;
        let known = |count: u32| Some(count).filter(|&count| count != u32::MAX);
        Some(FileEvent {
            kind,
            at: Nanos(double(Self::AT)),
            file: ContextIdentity::File {
                device,
                inode: double(Self::INODE),
                generation: word(Self::GENERATION),
            },
            magic: double(Self::MAGIC),
            pages: if in_place { double(Self::PAGES) } else { 0 },
            length: Bytes(double(Self::LENGTH)),
            extents: known(word(Self::EXTENTS)),
            links: word(Self::LINKS),
            names: known(word(Self::NAMES)),
            group: double(Self::GROUP),
            process: word(Self::PROCESS),
            command,
        })
    }
}

/// A device number of the kernel (12 bits and 20) as programs see it (`st_dev`).
pub fn device_number(kernel: u32) -> u64 {
    libc::makedev(kernel >> 20, kernel & 0xf_ffff)
}

/// The same the other way round.
pub fn kernel_device(number: u64) -> u32 {
    libc::major(number) << 20 | libc::minor(number) & 0xf_ffff
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_has_all_that_hooks_write() {
        let mut bytes = [0u8; Record::SIZE];
        let mut put = |at: i16, value: &[u8]| {
            bytes[at as usize..at as usize + value.len()].copy_from_slice(value);
        };
        put(Record::AT, &5u64.to_le_bytes());
        put(Record::INODE, &77u64.to_le_bytes());
        put(Record::PAGES, &9u64.to_le_bytes());
        put(Record::DEVICE, &(254 << 20 | 3u32).to_le_bytes());
        put(Record::GENERATION, &11u32.to_le_bytes());
        put(Record::EXTENTS, &u32::MAX.to_le_bytes());
        put(Record::KIND, &2u32.to_le_bytes());
        put(Record::COMMAND, b"cat\0");
        put(Record::NAMES, &2u32.to_le_bytes());
        let event = Record::read(&bytes).expect("a record");
        let device = libc::makedev(254, 3);
        assert_eq!(event.file, ContextIdentity::File { device, inode: 77, generation: 11 });
        assert_eq!((event.kind, event.at, event.pages), (Kind::Closed, Nanos(5), 9));
        assert_eq!((event.extents, event.names), (None, Some(2)));
        assert_eq!(event.command_name(), "cat");
        bytes[Record::NAMES as usize..].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(Record::read(&bytes).map(|event| event.names), Some(None));
        bytes[Record::KIND as usize] = Record::MISSED as u8;
        let missed = Record::read(&bytes).map(|event| (event.kind, event.pages));
        assert_eq!(missed, Some((Kind::Opened, 0)), "the page was not in place");
        bytes[Record::KIND as usize] = 0;
        assert_eq!(Record::read(&bytes), None, "a kind that there is not");
    }

    #[test]
    fn devices_are_the_same_both_ways() {
        for (major, minor) in [(8, 1), (254, 0), (259, 1_000_000), (0, 42)] {
            let number = libc::makedev(major, minor);
            assert_eq!(device_number(kernel_device(number)), number);
        }
    }
}
