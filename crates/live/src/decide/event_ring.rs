//! What the policy was told, and what was decided, on its way out of the process: two rings of
//! bytes, each in a file that `terrace run` maps too and empties.
//!
//! Whoever holds the decider writes, so there is one writer; `terrace run` is the one reader. The
//! writer neither waits nor allocates, and calls the kernel only for room in the file system on its
//! first way around ([`Room`]): what does not fit is dropped and counted. The last eighth is kept for
//! events without which the rest cannot be understood (regions, ticks), so that faults are lost first.
//! A reader that dies costs its recording the rest of the events, and the program nothing.
//!
//! Positions only grow. The writer publishes bytes by `head`, the reader gives
//! room back by `tail`; nothing is ever overwritten before it was read, so the
//! reader never sees half an event.

use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering::*};
use std::fs::{self, File};
use std::io;
use std::path::Path;

use terrace_core::{EventRef, RegionId};
use terrace_economics::{Decision, MAX_ALTERNATIVES};
use terrace_policy::Brain;
use terrace_policy::packed::{Packer, Weight};

use crate::broker::number;
use crate::config::RunConfig;
use crate::stats::opened::Opened;
use crate::sys;
use crate::sys::limits;
use crate::sys::mapped::{self, Room};

const MAGIC: u64 = 0x5445_5252_4556_5432; // "TERREVT2"
/// What of a ring only structure may use.
const RESERVED_PART: u64 = 8;
/// A decision with its length in front: two bytes.
const DECISION: usize = 512;
/// Set in the length of what is no decision but where a region lies. Decisions are shorter.
const REGION: u16 = 1 << 15;

/// For events: some 300,000 faults, at a million faults a second what comes in 300 ms.
pub type EventRing = Ring<{ 4 << 20 }>;
/// For decisions: some 35,000, beside where regions lie. They come in bursts of a
/// hundred thousand a second, while the reader waits for a processor like everybody.
pub type DecisionRing = Ring<{ 8 << 20 }>;

/// What the file names of rings of events end with.
pub const EXTENSION: &str = "events";
/// What those of rings of decisions end with.
pub const DECISIONS_EXTENSION: &str = "decisions";

/// The ring of this process; null where there is none (any more).
static RING: AtomicPtr<EventRing> = AtomicPtr::new(core::ptr::null_mut());
/// That of its decisions.
static DECISIONS: AtomicPtr<DecisionRing> = AtomicPtr::new(core::ptr::null_mut());

/// Records what a brain is told into a ring of this process's. Without a file,
/// for whatever reason, nothing is recorded and the program does not notice.
pub fn record(brain: &mut Brain, config: &RunConfig) {
    prepare(config);
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
pub(crate) fn prepare(config: &RunConfig) {
    make(&RING, config, EXTENSION);
}

/// Makes the ring of this process's decisions, unless there is one.
pub(crate) fn prepare_decisions(config: &RunConfig) {
    make(&DECISIONS, config, DECISIONS_EXTENSION);
}

fn make<const CAPACITY: usize>(
    to: &AtomicPtr<Ring<CAPACITY>>,
    config: &RunConfig,
    extension: &str,
) {
    if !to.load(Acquire).is_null() {
        return;
    }
    // A process may exec a program that is managed again: its own number is
    // not enough to name the file.
    let name = format!("{}-{}.{extension}", number::name(), sys::now());
    match Ring::create(&config.dir.join(name)) {
        Ok(ring) => to.store(core::ptr::from_ref(ring).cast_mut(), Release),
        Err(error) => tell(config, &error),
    }
}

/// Says once that nothing is recorded, where that is for want of room.
fn tell(config: &RunConfig, error: &io::Error) {
    static TOLD: AtomicBool = AtomicBool::new(false);
    if mapped::is_full(error) && !config.quiet && !TOLD.swap(true, Relaxed) {
        sys::complain(&["what is decided in a process is not recorded: ", mapped::NO_ROOM]);
    }
}

/// The ring of this process's decisions, if it has one.
pub(crate) fn decisions() -> Option<&'static DecisionRing> {
    // SAFETY: set above from `&'static`, or null.
    unsafe { DECISIONS.load(Acquire).as_ref() }
}

/// In a forked child: the rings are its parent's, which goes on writing. What
/// the child's policy is told from here on builds on what the parent's was
/// told, so a stream of its own would make no sense. Its decisions make sense: it gets a ring for
/// these with its statistics.
pub fn forked() {
    let_go(&RING);
    let_go(&DECISIONS);
}

/// In a forked child: unmaps a ring of its parent's.
fn let_go<const CAPACITY: usize>(of: &AtomicPtr<Ring<CAPACITY>>) {
    let ring = of.swap(core::ptr::null_mut(), AcqRel);
    if !ring.is_null() {
        // SAFETY: mapped by `Ring::create`, as long as a ring. The child has this thread alone, which
        // is not writing to it, and whoever writes asks for the ring anew.
        let _ = unsafe { sys::munmap(ring as usize, size_of::<Ring<CAPACITY>>()) };
    }
}

/// Where a region lies. Decisions name memory by the region's number; when they are read, the region
/// may be gone, and the process with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    /// Its number.
    pub region: RegionId,
    /// The address of its first byte.
    pub start: u64,
    /// How many base pages it has.
    pub pages: u32,
}

impl Placed {
    const BYTES: usize = 16;

    fn pack(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..4].copy_from_slice(&self.region.0.to_le_bytes());
        bytes[4..12].copy_from_slice(&self.start.to_le_bytes());
        bytes[12..].copy_from_slice(&self.pages.to_le_bytes());
        bytes
    }

    fn unpack(bytes: &[u8]) -> Option<Self> {
        let (&region, rest) = bytes.split_first_chunk()?;
        let (&start, rest) = rest.split_first_chunk()?;
        let pages = rest.try_into().ok()?;
        Some(Self {
            region: RegionId(u32::from_le_bytes(region)),
            start: u64::from_le_bytes(start),
            pages: u32::from_le_bytes(pages),
        })
    }
}

/// What comes out of a ring of decisions.
#[derive(Clone, Debug, PartialEq)]
pub enum Told {
    /// A region lies there from now on.
    Region(Placed),
    /// A decision.
    Decision(Box<Decision>),
}

/// Reads a decision. Those of before they had alternatives end where these begin, and zeros say that
/// there are none; behind a whole one they are not looked at.
fn decision_of(content: &[u8]) -> Option<Box<Decision>> {
    let mut padded = [0; DECISION + MAX_ALTERNATIVES];
    let length = content.len() + MAX_ALTERNATIVES;
    padded.get_mut(..content.len())?.copy_from_slice(content);
    postcard::from_bytes(padded.get(..length)?).ok().map(Box::new)
}

/// Reads what [`Ring::push_decision`] and [`Ring::push_region`] wrote; false if that is no whole
/// number of them.
pub fn unpack_decisions(mut bytes: &[u8], mut take: impl FnMut(Told)) -> bool {
    while let Some((&length, more)) = bytes.split_first_chunk::<2>() {
        let length = u16::from_le_bytes(length);
        let item = more.split_at_checked(usize::from(length & !REGION));
        let Some((content, more)) = item else { return false };
        let told = if length & REGION != 0 {
            Placed::unpack(content).map(Told::Region)
        } else {
            decision_of(content).map(Told::Decision)
        };
        let Some(told) = told else { return false };
        take(told);
        bytes = more;
    }
    bytes.is_empty()
}

/// The ring.
#[repr(C)]
pub struct Ring<const CAPACITY: usize> {
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
    /// How much of the bytes the file system has room for.
    room: Room,
    bytes: [AtomicU8; CAPACITY],
}

// SAFETY: atomic integers, arrays and structures of them.
unsafe impl<const CAPACITY: usize> mapped::Atomics for Ring<CAPACITY> {}

impl<const CAPACITY: usize> Ring<CAPACITY> {
    /// What only structure may use.
    const RESERVED: u64 = CAPACITY as u64 / RESERVED_PART;

    /// Creates the file and maps it.
    pub fn create(path: &Path) -> io::Result<&'static Self> {
        // Where the program may not write so large a file, trying to would kill it.
        if limits::file_size_limit() < size_of::<Self>() as u64 {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let file = File::options().read(true).write(true).create_new(true).open(path)?;
        let made = mapped::make::<Self>(&file, core::mem::offset_of!(Self, bytes));
        let ring = made.inspect_err(|_| {
            // Nobody has to look at it again and again.
            let _ = fs::remove_file(path);
        })?;
        ring.pid.store(number::shown(), Relaxed);
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
        let ring = unsafe { Opened::new(mapped::map::<Self>(&file)?) };
        if ring.magic.load(Acquire) != MAGIC {
            return Err(invalid("a ring of events of another version"));
        }
        Ok(ring)
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
            Weight::Bulk => CAPACITY as u64 - Self::RESERVED,
        };
        // A reader that writes nonsense into `tail` makes the ring look full.
        if used.saturating_add(bytes.len() as u64) > room || !self.has_room(head, bytes.len()) {
            return false;
        }
        for (i, &byte) in bytes.iter().enumerate() {
            self.bytes[(head as usize + i) % CAPACITY].store(byte, Relaxed);
        }
        self.head.store(head + bytes.len() as u64, Release);
        true
    }

    /// Whether the file system has room for so many bytes from a position on: all of it once the ring
    /// was gone around.
    fn has_room(&self, head: u64, len: usize) -> bool {
        let until = head.saturating_add(len as u64).min(CAPACITY as u64) as usize;
        self.room.take((self.bytes.as_ptr() as usize, CAPACITY), until)
    }

    /// Appends a decision; one that does not fit is counted. One writer at a time; does not
    /// allocate.
    pub fn push_decision(&self, decision: &Decision) {
        let mut item = [0; DECISION];
        let (length, content) = item.split_at_mut(2);
        let written = postcard::to_slice(decision, content).map(|content| content.len());
        let Ok(written) = written else { return self.count_lost() };
        length.copy_from_slice(&(written as u16).to_le_bytes());
        if !self.push(&item[..2 + written], Weight::Bulk) {
            self.count_lost();
        }
    }

    /// Appends where a region lies; there is room where decisions find none any more, or what is
    /// decided later would seem to be about the region that had the number before. One that does not
    /// fit even so is counted. One writer at a time; does not allocate.
    pub fn push_region(&self, placed: Placed) {
        let mut item = [0; 2 + Placed::BYTES];
        let (length, content) = item.split_at_mut(2);
        length.copy_from_slice(&(Placed::BYTES as u16 | REGION).to_le_bytes());
        content.copy_from_slice(&placed.pack());
        if !self.push(&item, Weight::Structure) {
            self.count_lost();
        }
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
    use terrace_core::{
        Action, Heat, Nanos, OpId, PageNo, PageRef, PageSize, Proposal, Reason, RegionId,
        Telemetry, TierId, Urgency,
    };
    use terrace_economics::{Calibration, Economist, Mode};

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

        assert!(sent.len() > size_of::<EventRing>(), "the ring came around");
        assert!(sent == got);
        let _ = std::fs::remove_file(path);
    }

    /// What decides as on a real machine.
    fn economist() -> Economist {
        let machine = include_str!("../../../../machines/optane-cascade-lake.toml");
        let machine = terrace_core::Machine::parse("optane.toml", machine).expect("a machine");
        Economist::new(Mode::Enforce, Calibration::from_machine(&machine))
    }

    fn decision(economist: &mut Economist, number: u64) -> Decision {
        let page = PageRef { region: RegionId(3), page: PageNo(number as u32) };
        let proposal = Proposal {
            op: OpId(number),
            action: Action::Demote { page, from: TierId(0), to: TierId(1) },
            page_size: PageSize::Base,
            heat: Heat::default(),
            victim_heat: Heat::default(),
            urgency: Urgency::Forced,
            reason: Reason::PressureCold,
        };
        let telemetry = Telemetry { now: Nanos(number), tier_count: 2, ..Telemetry::default() };
        economist.decide(&proposal, &telemetry)
    }

    /// A reader that waits for a processor for a third of a second, in a burst, loses nothing.
    #[test]
    fn a_burst_of_decisions_fits_and_comes_back_as_it_was() {
        let path = std::env::temp_dir().join(format!("terrace-decisions-{}", std::process::id()));
        let writer = DecisionRing::create(&path).expect("a file");
        let reader = DecisionRing::open(&path).expect("the same file");
        let mut economist = economist();
        for burst in 0..3u64 {
            let decide = |n| decision(&mut economist, burst << 40 | n);
            let sent: Vec<_> = (0..20_000).map(decide).collect();
            for decision in &sent {
                writer.push_decision(decision);
            }

            let (mut bytes, mut got) = (Vec::new(), Vec::new());
            reader.drain(&mut bytes);

            assert_eq!(reader.lost(), 0);
            let take = |told| match told {
                Told::Decision(decision) => got.push(*decision),
                Told::Region(placed) => panic!("{placed:?}"),
            };
            assert!(unpack_decisions(&bytes, take));
            assert!(got == sent, "{} of {}", got.len(), sent.len());
            assert!(!unpack_decisions(&bytes[..bytes.len() - 1], |_| {}), "cut off");
        }
        let _ = std::fs::remove_file(path);
    }

    /// Whoever has kept a recording wants to read it with the next version, too.
    #[test]
    fn decisions_of_before_they_had_alternatives_are_read() {
        let decision = decision(&mut economist(), 1);
        assert!(decision.alternatives.iter().all(Option::is_none), "it had to be done");
        let mut place = [0; DECISION];
        let whole = postcard::to_slice(&decision, &mut place).expect("it fits");
        let old = &whole[..whole.len() - MAX_ALTERNATIVES];
        for content in [&*whole, old] {
            let mut bytes = (content.len() as u16).to_le_bytes().to_vec();
            bytes.extend_from_slice(content);
            let mut got = Vec::new();
            assert!(unpack_decisions(&bytes, |told| got.push(told)));
            assert_eq!(got, [Told::Decision(Box::new(decision))]);
        }
        let cut = &old[..old.len() - 1];
        let bytes = [&(cut.len() as u16).to_le_bytes()[..], cut].concat();
        assert!(!unpack_decisions(&bytes, |_| {}), "a part of it is missing");
    }

    /// A number is another region's when the first is gone: what comes between two is about the
    /// first.
    #[test]
    fn where_regions_lie_comes_before_what_is_decided_about_them() {
        let path = std::env::temp_dir().join(format!("terrace-placed-{}", std::process::id()));
        let writer = DecisionRing::create(&path).expect("a file");
        let reader = DecisionRing::open(&path).expect("the same file");
        let mut economist = economist();
        let placed = |start| Placed { region: RegionId(3), start, pages: u32::MAX };
        let decisions = [decision(&mut economist, 1), decision(&mut economist, 2)];
        writer.push_region(placed(0x7fff_ffff_f000));
        writer.push_decision(&decisions[0]);
        writer.push_region(placed(0x1000));
        writer.push_decision(&decisions[1]);

        let (mut bytes, mut got) = (Vec::new(), Vec::new());
        reader.drain(&mut bytes);
        assert!(unpack_decisions(&bytes, |told| got.push(told)));
        let [first, second] = decisions.map(|decision| Told::Decision(Box::new(decision)));
        let (before, after) = (placed(0x7fff_ffff_f000), placed(0x1000));
        assert_eq!(got, [Told::Region(before), first, Told::Region(after), second]);
        assert!(!unpack_decisions(&bytes[..2 + Placed::BYTES - 1], |_| {}), "cut off");
        let short = [8u16 | REGION].map(u16::to_le_bytes);
        let short = [&short[0][..], &[0; 8]].concat();
        assert!(!unpack_decisions(&short, |_| {}), "no region is so short");
        let _ = std::fs::remove_file(path);
    }

    /// What is decided once there is room again would have the address of what was there before.
    #[test]
    fn where_regions_lie_is_known_though_decisions_are_lost() {
        let path = std::env::temp_dir().join(format!("terrace-full-{}", std::process::id()));
        let writer = DecisionRing::create(&path).expect("a file");
        let reader = DecisionRing::open(&path).expect("the same file");
        let mut economist = economist();
        let decision = decision(&mut economist, 1);
        while writer.lost() == 0 {
            writer.push_decision(&decision);
        }
        let placed = Placed { region: RegionId(3), start: 0x1000, pages: 1 };
        writer.push_region(placed);
        assert_eq!(writer.lost(), 1, "the decision");
        let (mut bytes, mut last) = (Vec::new(), None);
        reader.drain(&mut bytes);
        assert!(unpack_decisions(&bytes, |told| last = Some(told)));
        assert_eq!(last, Some(Told::Region(placed)));
        // A reader that has gone.
        while writer.lost() == 1 {
            writer.push_region(placed);
        }
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
