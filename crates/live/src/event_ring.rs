//! What the policy was told, on its way out of the process: a ring of bytes in
//! a file that `terrace run` maps too and empties.
//!
//! Whoever holds the mind writes, so there is one writer; `terrace run` is the
//! one reader. The writer neither waits nor allocates nor calls the kernel: what
//! does not fit is dropped and counted. The last eighth is kept for events
//! without which the rest cannot be understood (regions, ticks), so that faults
//! are lost first. A reader that dies costs its recording the rest of the
//! events, and the program nothing.
//!
//! Positions only grow. The writer publishes bytes by `head`, the reader gives
//! room back by `tail`; nothing is ever overwritten before it was read, so the
//! reader never sees half an event.

use core::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering::*};
use std::fs::File;
use std::io;
use std::path::Path;

use terrace_core::EventRef;
use terrace_policy::Brain;
use terrace_policy::packed::{Packer, Weight};

use crate::opened::Opened;
use crate::sys;

const MAGIC: u64 = 0x5445_5252_4556_5431; // "TERREVT1"
/// Some 300,000 faults: at a million faults a second, what comes in 300 ms.
const CAPACITY: usize = 4 << 20;
/// What only structure may use.
const KEPT: u64 = CAPACITY as u64 / 8;

/// What a ring's file name ends with.
pub const EXTENSION: &str = "events";

/// The ring of this process; null where there is none (any more).
static RING: AtomicPtr<EventRing> = AtomicPtr::new(core::ptr::null_mut());

/// Records what a brain is told into a ring of this process's. Without a file,
/// for whatever reason, nothing is recorded and the program does not notice.
pub fn record(brain: &mut Brain, directory: &Path) {
    prepare(directory);
    let mut packer = Packer::new();
    brain.record(Some(Box::new(move |event: EventRef<'_>| {
        // SAFETY: set above from `&'static`, or null.
        let Some(ring) = (unsafe { RING.load(Acquire).as_ref() }) else { return };
        let mut whole = true;
        packer.pack(event, |item, weight| {
            let pushed = ring.push(item, weight);
            whole &= pushed;
            pushed
        });
        if !whole {
            ring.count_lost();
        }
    })));
}

/// Makes the ring of this process, unless there is one: the directory may be out of reach later.
pub(crate) fn prepare(directory: &Path) {
    if !RING.load(Acquire).is_null() {
        return;
    }
    // A process may exec a program that is managed again: its own number is
    // not enough to name the file.
    let name = format!("{}-{}.{EXTENSION}", std::process::id(), sys::now());
    if let Ok(ring) = EventRing::create(&directory.join(name)) {
        RING.store(core::ptr::from_ref(ring).cast_mut(), Release);
    }
}

/// In a forked child: the ring is its parent's, which goes on writing. What
/// the child's policy is told from here on builds on what the parent's was
/// told, so a stream of its own would make no sense.
pub fn forked() {
    RING.store(core::ptr::null_mut(), Release);
}

/// The ring.
#[repr(C)]
pub struct EventRing {
    magic: AtomicU64,
    /// The process.
    pid: AtomicU32,
    _pad: AtomicU32,
    /// Bytes written ever.
    head: AtomicU64,
    /// Bytes read ever.
    tail: AtomicU64,
    /// Events dropped because there was no room.
    lost: AtomicU64,
    bytes: [AtomicU8; CAPACITY],
}

impl EventRing {
    /// Creates the file and maps it.
    pub fn create(path: &Path) -> io::Result<&'static Self> {
        let file = File::options().read(true).write(true).create_new(true).open(path)?;
        file.set_len(size_of::<Self>() as u64)?;
        let ring = Self::map(&file)?;
        ring.pid.store(std::process::id(), Relaxed);
        ring.magic.store(MAGIC, Release);
        Ok(ring)
    }

    /// Maps a ring that a pager writes.
    pub fn open(path: &Path) -> io::Result<Opened<Self>> {
        let invalid = |what| io::Error::new(io::ErrorKind::InvalidData, what);
        let file = File::options().read(true).write(true).open(path)?;
        if file.metadata()?.len() != size_of::<Self>() as u64 {
            return Err(invalid("not a ring of events"));
        }
        // SAFETY: just mapped, and known to nobody.
        let ring = unsafe { Opened::new(Self::map(&file)?) };
        if ring.magic.load(Acquire) != MAGIC {
            return Err(invalid("a ring of events of another version"));
        }
        Ok(ring)
    }

    fn map(file: &File) -> io::Result<&'static Self> {
        let at = sys::map_shared_file(file, size_of::<Self>())?;
        // SAFETY: the mapping is as long as `Self`, page-aligned, not
        // unmapped but by `Opened`, and every field is an atomic integer, valid for any bytes.
        Ok(unsafe { &*at.cast::<Self>() })
    }

    /// The process that writes.
    pub fn pid(&self) -> u32 {
        self.pid.load(Relaxed)
    }

    /// Events dropped so far.
    pub fn lost(&self) -> u64 {
        self.lost.load(Relaxed)
    }

    /// Counts an event that was dropped.
    pub fn count_lost(&self) {
        self.lost.fetch_add(1, Relaxed);
    }

    /// Appends bytes, or nothing if they do not fit. One writer at a time.
    #[must_use]
    pub fn push(&self, bytes: &[u8], weight: Weight) -> bool {
        let head = self.head.load(Relaxed);
        let used = head.wrapping_sub(self.tail.load(Acquire));
        let room = match weight {
            Weight::Structure => CAPACITY as u64,
            Weight::Bulk => CAPACITY as u64 - KEPT,
        };
        // A reader that writes nonsense into `tail` makes the ring look full.
        if used.saturating_add(bytes.len() as u64) > room {
            return false;
        }
        for (i, &byte) in bytes.iter().enumerate() {
            self.bytes[(head as usize + i) % CAPACITY].store(byte, Relaxed);
        }
        self.head.store(head + bytes.len() as u64, Release);
        true
    }

    /// Takes everything that was written; says how many bytes that were.
    pub fn drain(&self, into: &mut Vec<u8>) -> usize {
        let head = self.head.load(Acquire);
        let tail = self.tail.load(Relaxed);
        let used = head.wrapping_sub(tail).min(CAPACITY as u64) as usize;
        into.extend((0..used).map(|i| self.bytes[(tail as usize + i) % CAPACITY].load(Relaxed)));
        self.tail.store(tail + used as u64, Release);
        used
    }

    /// How full it is, 0 to 1.
    pub fn fill(&self) -> f64 {
        let used = self.head.load(Relaxed).wrapping_sub(self.tail.load(Relaxed));
        used as f64 / CAPACITY as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rings() -> (&'static EventRing, Opened<EventRing>, std::path::PathBuf) {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("terrace-ring-{}-{}", std::process::id(), COUNT.fetch_add(1, Relaxed));
        let path = std::env::temp_dir().join(name);
        let writer = EventRing::create(&path).expect("a file");
        (writer, EventRing::open(&path).expect("the same file"), path)
    }

    #[test]
    fn what_one_writes_the_other_reads_in_order_also_around_the_end() {
        let (writer, reader, path) = rings();
        let (mut sent, mut got) = (Vec::new(), Vec::new());
        for round in 0..3_000u32 {
            let item = vec![round as u8; 1 + (round as usize * 7) % 4000];
            if !writer.push(&item, Weight::Bulk) {
                reader.drain(&mut got);
                assert!(writer.push(&item, Weight::Bulk), "there is room again");
            }
            sent.extend_from_slice(&item);
        }
        reader.drain(&mut got);

        assert!(sent.len() > CAPACITY, "the ring came around");
        assert!(sent == got);
        let _ = std::fs::remove_file(path);
    }

    #[test]
    fn a_full_ring_refuses_bulk_before_structure_and_never_waits() {
        let (writer, _, path) = rings();
        let item = [1; 1024];
        while writer.push(&item, Weight::Bulk) {}

        assert!(writer.push(&item, Weight::Structure));
        while writer.push(&item, Weight::Structure) {}
        assert!(writer.fill() > 0.99);
        let _ = std::fs::remove_file(path);
    }

    #[test]
    fn a_reader_beside_a_writer_never_sees_half_an_item() {
        let (writer, reader, path) = rings();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for n in 0..200_000u32 {
                    while !writer.push(&n.to_le_bytes(), Weight::Bulk) {
                        std::thread::yield_now();
                    }
                }
            });
            let (mut bytes, mut next) = (Vec::new(), 0u32);
            while next < 200_000 {
                bytes.clear();
                assert_eq!(reader.drain(&mut bytes) % 4, 0);
                for item in bytes.as_chunks::<4>().0 {
                    assert_eq!(u32::from_le_bytes(*item), next);
                    next += 1;
                }
            }
        });
        let _ = std::fs::remove_file(path);
    }
}
