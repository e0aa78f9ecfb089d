//! The statistics page: one file a process, mapped shared, written by the
//! pager with plain atomics and read by `terrace run` at any time — also after
//! the process was killed.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use terrace_core::Nanos;
use terrace_economics::Decision;

use crate::broker::number;
use crate::failsafe::reserve_memory;
use crate::interface;
use crate::space::unmanaged::Ledger;
use crate::stats::freed_regions::FreedRegions;
use crate::stats::histogram::Histogram;
use crate::stats::opened::Opened;
use crate::sys;
use crate::sys::limits;
use crate::sys::mapped::{self, Room};

const MAGIC: u64 = 0x5445_5252_4143_4531; // "TERRACE1"
/// Raised with every change of the layout.
pub const VERSION: u32 = 26;
/// Bytes of a text, with the zero at its end.
const TEXT: usize = 256;
/// Regions that the page has room for; the report shows the top of them.
pub const REGIONS: usize = 256;
/// Equal parts of a region that faults are counted by.
pub const PARTS: usize = 32;
/// Decisions that the ring holds; a reader that falls behind loses the oldest.
pub const RING: usize = 4096;
/// A serialised decision's room.
const SLOT: usize = 504;

macro_rules! counters {
    ($($(#[$doc:meta])* $kind:ident $name:ident),* $(,)?) => {
        /// Counters of one process.
        #[repr(C)]
        #[derive(Default)]
        pub struct Counters {
            $($(#[$doc])* pub $name: AtomicU64,)*
        }
        /// Every counter's name, for reports.
        pub const COUNTER_NAMES: &[&str] = &[$(stringify!($name)),*];
        impl Counters {
            /// Every counter's value, in the order of [`COUNTER_NAMES`].
            pub fn values(&self) -> Vec<u64> {
                vec![$(self.$name.load(Relaxed)),*]
            }
            /// Puts those of a process that has ended to these.
            fn take_in(&self, ended: &Self) {
                $(take_in::$kind(&self.$name, &ended.$name);)*
            }
        }
    };
}

/// What becomes of a counter when its process has ended, by kind.
mod take_in {
    use super::{AtomicU64, Relaxed};

    /// What has happened has happened.
    pub(super) fn sum(to: &AtomicU64, from: &AtomicU64) {
        to.fetch_add(from.load(Relaxed), Relaxed);
    }
    /// The most that any of them had.
    pub(super) fn peak(to: &AtomicU64, from: &AtomicU64) {
        to.fetch_max(from.load(Relaxed), Relaxed);
    }
    /// What it has, it has no longer.
    pub(super) fn level(_: &AtomicU64, _: &AtomicU64) {}
}

counters! {
    /// DRAM budget, bytes.
    level budget_bytes,
    /// Managed bytes mapped now.
    level mapped_bytes,
    /// Most managed bytes mapped at once.
    peak mapped_peak_bytes,
    /// Managed bytes resident in DRAM now, uncompressed.
    level resident_bytes,
    /// Most managed bytes resident at once.
    peak resident_peak_bytes,
    /// Most of what counts against the budget at once, where compressed pages do (`--total`): what
    /// was resident, and what the store occupied.
    peak held_peak_bytes,
    /// Bytes that were resident when it was put on plain memory: all that had left was brought in.
    peak given_up_bytes,
    /// Pages now held compressed.
    level stored_pages,
    /// Pages now held as one repeated word.
    level same_pages,
    /// Bytes that the compressed pages' blobs use, without the allocator's overhead.
    level blob_bytes,
    /// Bytes of memory that the store occupies, overhead included.
    level store_bytes,
    /// Most of it at once.
    peak store_peak_bytes,
    /// Of what it occupies, bytes that were there at the last fork, and that relatives may have in
    /// the same frames.
    level store_common_bytes,
    /// The process that began the program which this one was forked from.
    level family,
    /// Pages now in the spill file.
    level spilled_pages,
    /// Bytes now in the spill file.
    level spill_bytes,
    /// Bytes read from it.
    sum spill_read_bytes,
    /// Bytes written to it, those that were moved within it included.
    sum spill_written_bytes,
    /// Faults on memory never touched before.
    sum faults_first_touch,
    /// Faults on pages that had been compressed or spilled.
    sum faults_absent,
    /// Faults on pages that were about to be demoted, or armed on purpose.
    sum faults_hint,
    /// Faults that found the page already there.
    sum faults_spurious,
    /// Pages brought in from a slower tier.
    sum promotions,
    /// Pages brought in, or filled with zeros, before they were touched, because the
    /// program walks through memory.
    sum ahead,
    /// Huge pages zeroed ahead of need.
    sum huge_zeroed,
    /// Huge pages that backed memory ahead of its first touch.
    sum huge_backed,
    /// Of these, pages that the program has walked through since.
    sum huge_used,
    /// What deciding on actions has cost, in cycles.
    sum deciding_cycles,
    /// Time that actions whose gain is known have saved the program, ns
    /// ([`terrace_economics::Balance`]).
    sum brought_ns,
    /// Time that these actions took, ns.
    sum took_ns,
    /// Time that deciding on them took, ns.
    sum judging_ns,
    /// Huge pages that backed memory ahead of its first touch because a profile says so.
    sum huge_profiled,
    /// Base pages that were filled with zeros ahead of their first touch because a profile says
    /// so.
    sum populated,
    /// Large mappings that the profile knows, and that it does not know.
    sum profile_known,
    /// See there.
    sum profile_unknown,
    /// Bytes of large mappings for which the profile was asked.
    sum profile_mapped_bytes,
    /// Of these, bytes of which it says nothing.
    sum profile_unknown_bytes,
    /// What the profile averts in a run, in its own cycles.
    peak profile_benefit_cycles,
    /// Of that, what it averts in memory that was mapped: that of the process that has most.
    peak profile_matched_cycles,
    /// Processes that could not read the profile.
    sum profile_unread,
    /// Huge pages that were split again because a part of them left.
    sum huge_split,
    /// Huge pages made of base pages that were in use.
    sum huge_collapsed,
    /// Pages that left for a slower tier.
    sum demotions,
    /// Demotions given up because the program touched the page in time.
    sum demotions_cancelled,
    /// Pages that could not be demoted (locked, pinned, shared with a child).
    sum demotions_refused,
    /// Pages that could not be demoted since the kernel gave no memory for what they are packed
    /// into (a limit of the process's).
    sum store_refused,
    /// Pages that the kernel moved without counting them (a defect of Linux 6.18).
    sum moves_uncounted,
    /// Pages armed for a hint fault.
    sum armed,
    /// Samples given to the policy.
    sum samples,
    /// Samples that the kernel or the hardware lost.
    sum samples_lost,
    /// Times that the kernel throttled hardware samples.
    sum samples_throttled,
    /// What sampling took, ns: processor time, and what threads waited in faults on pages that
    /// were armed.
    sum sampling_ns,
    /// The most that the store held beyond `--store-limit`, with a spill file.
    peak store_over_peak_bytes,
    /// Time in which it held more, ns.
    sum store_over_ns,
    /// Pages compressed.
    sum compressed,
    /// Time spent compressing, ns.
    sum compress_ns,
    /// Pages decompressed.
    sum decompressed,
    /// Time spent decompressing, ns.
    sum decompress_ns,
    /// Of the pages compressed, those packed tightly because room was worth the time.
    sum packed_tightly,
    /// Pages that did not compress and are held as they are.
    level incompressible,
    /// Time spent handing stored pages' content to the kernel, ns.
    sum copy_ns,
    /// Time that faults spent making room themselves, ns.
    sum direct_reclaim_ns,
    /// Promotions that came sooner than [`crate::decide::ping_pong::SOON`] after the
    /// page's demotion: both were for nothing.
    sum ping_pongs,
    /// Time in which the program thrashed, see [`crate::decide::thrash`], ns.
    sum thrash_ns,
    /// What faults took on top of our own service time, ns: until a handler saw them, and
    /// until the thread ran again. As measured at the start, for handlers that slept and for
    /// those that polled.
    sum fault_overhead_ns,
    /// What was counted for faults, in service time and on top, beyond what the threads that
    /// took them can have waited, ns ([`crate::fault::stalls`]).
    sum overcounted_ns,
    /// What a fault takes of the processor time of the thread that takes it, ns, as measured at
    /// the start.
    level fault_own_ns,
    /// Processor time used by Terrace's own threads, ns.
    sum own_cpu_ns,
    /// Forks served.
    sum forks,
    /// Children that went on on plain memory: they were not made by the C library's `fork`.
    sum forks_unmanaged,
    /// Bytes of policy state.
    level policy_bytes,
    /// Pages that the policy's state is about.
    level policy_pages,
    /// Times a fault had to make room itself because the background could not keep up.
    sum direct_reclaims,
    /// Clock of the machine at the start (`CLOCK_MONOTONIC`), ns.
    level started_ns,
    /// The same at the last update, ns.
    level updated_ns,
    /// Decisions written to the ring, ever.
    sum decisions,
    /// Until when (`CLOCK_MONOTONIC`, ns) somebody wants decisions written to
    /// the ring although none are recorded: set by readers.
    level decisions_wanted_until_ns,
    /// Processes that have ended, and have no page of their own any more: their figures are
    /// in this one.
    sum ended_processes,
}

/// The economist's account of one class of action (see
/// [`terrace_economics::Account`]; the order is that of `ActionClass::ALL`).
#[repr(C)]
#[derive(Default)]
pub struct ClassCounters {
    /// Proposals seen.
    pub proposed: AtomicU64,
    /// Refused.
    pub vetoed: AtomicU64,
    /// Carried out.
    pub completed: AtomicU64,
    /// Let pass but not carried out.
    pub aborted: AtomicU64,
    /// Predicted cost of what was carried out, cycles.
    pub predicted_cost: AtomicU64,
    /// What it cost, with what came to nothing, cycles.
    pub realised_cost: AtomicU64,
    /// Predicted benefit of what was carried out, cycles.
    pub predicted_benefit: AtomicU64,
    /// Benefit as far as it was observed, cycles.
    pub realised_benefit: AtomicU64,
    /// Let pass for the sake of what they teach.
    pub explored: AtomicU64,
    /// Left out at random, though they would have paid.
    pub held_out: AtomicU64,
    /// What was predicted of those, and of pages that were left out of walks, cycles.
    pub held_out_predicted: AtomicU64,
    /// What they would have brought, as far as it was observed, cycles.
    pub held_out_observed: AtomicU64,
    /// Predicted benefit of those that were watched to the end, cycles.
    pub judged_predicted_benefit: AtomicU64,
    /// What they brought, cycles.
    pub judged_realised_benefit: AtomicU64,
    /// Predicted loss of accesses, cycles.
    pub predicted_harm: AtomicU64,
    /// That loss as far as it was observed, cycles.
    pub realised_harm: AtomicU64,
    /// Let pass although they do not pay, since the economist only watches or advises.
    pub would_veto: AtomicU64,
    /// What those were expected to cost, cycles.
    pub would_veto_cost: AtomicU64,
    /// What those were expected to bring, cycles.
    pub would_veto_benefit: AtomicU64,
}

impl ClassCounters {
    fn take_in(&self, ended: &Self) {
        for (to, from) in [
            (&self.proposed, &ended.proposed),
            (&self.vetoed, &ended.vetoed),
            (&self.completed, &ended.completed),
            (&self.aborted, &ended.aborted),
            (&self.predicted_cost, &ended.predicted_cost),
            (&self.realised_cost, &ended.realised_cost),
            (&self.predicted_benefit, &ended.predicted_benefit),
            (&self.realised_benefit, &ended.realised_benefit),
            (&self.explored, &ended.explored),
            (&self.held_out, &ended.held_out),
            (&self.held_out_predicted, &ended.held_out_predicted),
            (&self.held_out_observed, &ended.held_out_observed),
            (&self.judged_predicted_benefit, &ended.judged_predicted_benefit),
            (&self.judged_realised_benefit, &ended.judged_realised_benefit),
            (&self.predicted_harm, &ended.predicted_harm),
            (&self.realised_harm, &ended.realised_harm),
            (&self.would_veto, &ended.would_veto),
            (&self.would_veto_cost, &ended.would_veto_cost),
            (&self.would_veto_benefit, &ended.would_veto_benefit),
        ] {
            take_in::sum(to, from);
        }
    }
}

/// One region's line in the report.
#[repr(C)]
#[derive(Default)]
pub struct RegionStats {
    /// First address; 0 for an unused line.
    pub start: AtomicU64,
    /// The region's number, by which decisions name it.
    pub id: AtomicU64,
    /// Length in bytes.
    pub len: AtomicU64,
    /// Bytes resident now.
    pub resident: AtomicU64,
    /// Faults taken.
    pub faults: AtomicU64,
    /// The same by equal parts of the region, first address first.
    pub parts: [AtomicU32; PARTS],
}

/// How far the pager of a process has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum State {
    /// Everything fits: nothing is managed.
    Dormant = 0,
    /// Managing.
    Active = 1,
    /// Gave up; the program runs on plain memory.
    Failed = 2,
}

#[repr(C)]
struct Slot {
    /// Sequence number of the decision in it plus one; 0 while it is written.
    seq: AtomicU64,
    bytes: [AtomicU64; SLOT / 8],
}

/// The page.
#[repr(C)]
pub struct ProcessPage {
    magic: AtomicU64,
    version: AtomicU32,
    /// The process, as `terrace run` knows it: in a PID namespace of its own that is another number
    /// than it knows itself by.
    pub pid: AtomicU32,
    /// Of the library that writes it ([`interface::FINGERPRINT`]). The place of all so far stays the
    /// same.
    interface: AtomicU64,
    /// [`State`].
    pub state: AtomicU32,
    /// 1 once somebody has seen that the process has ended: what it had, it has no longer.
    pub ended: AtomicU32,
    /// In which name space of process numbers [`ProcessPage::pid`] is one; 0 if that is not known.
    pub namespace: AtomicU64,
    /// Command name, sampler and failure message: NUL-padded text.
    texts: [[AtomicU64; TEXT / 8]; 3],
    /// Counters.
    pub counters: Counters,
    /// The economist's accounts.
    pub classes: [ClassCounters; terrace_economics::CLASSES],
    /// Service time of faults: first touch, absent, hint.
    pub latency: [Histogram; 3],
    /// Regions.
    pub regions: [RegionStats; REGIONS],
    /// Regions that are no longer there, those with the most faults.
    pub freed: FreedRegions,
    /// What could not be managed.
    pub unmanaged: Ledger,
    /// How much of the ring the file system has room for.
    ring_room: Room,
    ring: [Slot; RING],
}

/// Why the statistics of a process cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unread {
    /// The library in it is of another version.
    OtherVersion,
    /// They could not be kept where they can be seen: there was no room, say.
    NotKept,
}

/// The length of a file of statistics that could not be kept.
const NOT_KEPT: u64 = 1;

/// Whose statistics a file has that cannot be read, and why. `None` of one that can be read, and of one
/// that is being made.
pub fn unread(path: &Path) -> Option<(u32, Unread)> {
    let file = File::open(path).ok()?;
    let len = file.metadata().ok()?.len();
    if len == NOT_KEPT {
        let process = path.file_stem()?.to_str()?.parse().ok()?;
        return Some((process, Unread::NotKept));
    }
    let mut words = [[0; 8]; 3];
    file.read_exact_at(words.as_flattened_mut(), 0).ok()?;
    let [magic, version, interface] = words.map(u64::from_le_bytes);
    let (version, process) = (version as u32, (version >> 32) as u32);
    let is_ours = len == size_of::<ProcessPage>() as u64
        && (version, interface) == (VERSION, interface::FINGERPRINT);
    (magic == MAGIC && !is_ours).then_some((process, Unread::OtherVersion))
}

/// The name space of process numbers that the calling process is in; 0 if that is not known.
pub fn process_namespace() -> u64 {
    std::fs::metadata("/proc/self/ns/pid").map_or(0, |file| file.ino())
}

/// Which of the page's texts.
#[derive(Clone, Copy, Debug)]
pub enum Text {
    /// The process's command name.
    Command = 0,
    /// The sampler in use, and why.
    Sampler = 1,
    /// Why the pager gave up.
    Failure = 2,
}

// SAFETY: atomic integers, arrays and structures of them.
unsafe impl mapped::Atomics for ProcessPage {}

impl ProcessPage {
    /// All but the ring, bytes.
    const HEAD: usize = core::mem::offset_of!(Self, ring);

    /// Creates the file and maps it. A program that executes another has one already,
    /// which `terrace run` may be looking at: it is emptied in its place, since who reads from a
    /// mapping beyond the end of its file, or where a full file system has no room, is killed.
    pub fn create(path: &Path) -> io::Result<&'static Self> {
        let file =
            File::options().read(true).write(true).create(true).truncate(false).open(path)?;
        let before = file.metadata()?.len();
        let made = mapped::make::<Self>(&file, Self::HEAD).inspect_err(|_| {
            if before != size_of::<Self>() as u64 {
                // Whoever looks sees that there is a process of which nothing is known.
                let _ = limits::with_files_of(NOT_KEPT, || file.set_len(NOT_KEPT));
            }
        });
        let page = made?;
        page.advise();
        if before > 0 {
            page.empty();
        }
        page.version.store(VERSION, Relaxed);
        page.interface.store(interface::FINGERPRINT, Relaxed);
        let (process, namespace) = number::with_namespace();
        page.pid.store(process, Relaxed);
        page.namespace.store(namespace, Relaxed);
        page.counters.family.store(u64::from(process), Relaxed);
        page.magic.store(MAGIC, Release);
        Ok(page)
    }

    /// Turns all but the ring into zeros. What is in the ring has numbers that nobody looks for.
    fn empty(&self) {
        let words = core::ptr::from_ref(self).cast::<AtomicU64>();
        // SAFETY: so many words of atomic integers are there. Others may read and write them meanwhile.
        let words = unsafe { core::slice::from_raw_parts(words, Self::HEAD / size_of::<u64>()) };
        for word in words {
            word.store(0, Relaxed);
        }
    }

    /// Whether it is of this version.
    fn is_ours(&self) -> bool {
        self.magic.load(Acquire) == MAGIC
            && self.version.load(Relaxed) == VERSION
            && self.interface.load(Relaxed) == interface::FINGERPRINT
    }

    /// A page that no other process can see.
    pub fn anonymous() -> io::Result<&'static Self> {
        let at = reserve_memory::map(size_of::<Self>()).map_err(io::Error::from_raw_os_error)?;
        // SAFETY: as in `map`.
        Ok(unsafe { &*(at as *const Self) })
    }

    /// Maps a file that a pager wrote.
    pub fn open(path: &Path) -> io::Result<Opened<Self>> {
        let file = File::options().read(true).write(true).open(path)?;
        if file.metadata()?.len() != size_of::<Self>() as u64 {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "not a statistics page"));
        }
        // SAFETY: just mapped, and known to nobody.
        let page = unsafe { Opened::new(mapped::map::<Self>(&file)?) };
        page.advise();
        if !page.is_ours() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "a statistics page of another version",
            ));
        }
        Ok(page)
    }

    /// A copy of what a pager wrote, without its decisions: for a reader that
    /// only looks. Unlike a mapping it cannot be pulled away by whoever owns
    /// the file.
    pub fn snapshot(path: &Path) -> io::Result<Box<Self>> {
        let invalid = |what| io::Error::new(io::ErrorKind::InvalidData, what);
        let mut file = File::open(path)?;
        if file.metadata()?.len() != size_of::<Self>() as u64 {
            return Err(invalid("not a statistics page"));
        }
        // SAFETY: every field is an atomic integer, valid for zero bytes.
        let mut page = unsafe { Box::<Self>::new_zeroed().assume_init() };
        let len = Self::HEAD;
        // SAFETY: the part before the ring, which lies at the end; its bytes
        // are initialised, valid whatever they are, and nobody else has them.
        let bytes = unsafe {
            core::slice::from_raw_parts_mut(core::ptr::from_mut(&mut *page).cast::<u8>(), len)
        };
        file.read_exact(bytes)?;
        if !page.is_ours() {
            return Err(invalid("a statistics page of another version"));
        }
        Ok(page)
    }

    /// Has the kernel read no more of it in than is asked for: where the directory is on disk, it would
    /// read all of the ring, 2 MiB of nothing.
    fn advise(&self) {
        let at = core::ptr::from_ref(self) as usize;
        // SAFETY: changes no content.
        let _ = unsafe { sys::madvise(at, size_of::<Self>(), libc::MADV_RANDOM) };
    }

    /// Writes one of the texts, cut at 255 bytes.
    pub fn set_text(&self, which: Text, text: &str) {
        let mut bytes = [0u8; TEXT];
        let n = text.len().min(TEXT - 1);
        bytes[..n].copy_from_slice(&text.as_bytes()[..n]);
        for (word, chunk) in self.texts[which as usize].iter().zip(bytes.chunks_exact(8)) {
            word.store(u64::from_ne_bytes(chunk.try_into().unwrap_or_default()), Relaxed);
        }
    }

    /// Reads one of the texts.
    pub fn text(&self, which: Text) -> String {
        let bytes: Vec<u8> = self.texts[which as usize]
            .iter()
            .flat_map(|w| w.load(Relaxed).to_ne_bytes())
            .take_while(|&b| b != 0)
            .collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Memory that the stores of living processes occupy together, bytes: what a family of forked
    /// processes has in common counts once.
    pub fn store_of<'a>(pages: impl IntoIterator<Item = &'a Self>) -> u64 {
        let mut common = BTreeMap::<u64, u64>::new();
        let mut all = 0;
        for page in pages {
            let counters = &page.counters;
            let store = counters.store_bytes.load(Relaxed);
            let shared = counters.store_common_bytes.load(Relaxed).min(store);
            let most = common.entry(counters.family.load(Relaxed)).or_default();
            *most = shared.max(*most);
            all += store - shared;
        }
        all + common.values().sum::<u64>()
    }

    /// Takes over what describes the present (not what happened so far) from
    /// the page of the process that this one was forked from.
    pub fn inherit(&self, parent: &Self) {
        let (to, from) = (&self.counters, &parent.counters);
        for (to, from) in [
            (&to.budget_bytes, &from.budget_bytes),
            (&to.mapped_bytes, &from.mapped_bytes),
            (&to.mapped_peak_bytes, &from.mapped_bytes),
            (&to.resident_bytes, &from.resident_bytes),
            (&to.resident_peak_bytes, &from.resident_bytes),
            (&to.stored_pages, &from.stored_pages),
            (&to.same_pages, &from.same_pages),
            (&to.blob_bytes, &from.blob_bytes),
            (&to.store_bytes, &from.store_bytes),
            (&to.store_peak_bytes, &from.store_bytes),
            (&to.store_common_bytes, &from.store_bytes),
            (&to.family, &from.family),
            (&to.incompressible, &from.incompressible),
            (&to.forks, &from.forks),
            (&to.fault_own_ns, &from.fault_own_ns),
        ] {
            to.store(from.load(Relaxed), Relaxed);
        }
        from.store_common_bytes.store(from.store_bytes.load(Relaxed), Relaxed);
        let held = from.resident_bytes.load(Relaxed) + from.store_bytes.load(Relaxed);
        to.held_peak_bytes.store(held.min(from.held_peak_bytes.load(Relaxed)), Relaxed);
        self.unmanaged.inherit(&parent.unmanaged);
    }

    /// Puts the figures of a process that has ended to these: what has happened, and the most
    /// that it had.
    pub fn take_in(&self, ended: &Self) {
        // A mean, by faults.
        let faults = |page: &Self| page.latency.iter().map(Histogram::count).sum::<u64>();
        let own = |page: &Self| page.counters.fault_own_ns.load(Relaxed);
        let (ours, theirs) = (faults(self), faults(ended));
        if theirs > 0 {
            let mean = (own(self) * ours + own(ended) * theirs) / (ours + theirs);
            self.counters.fault_own_ns.store(mean, Relaxed);
        }
        self.counters.take_in(&ended.counters);
        for (to, from) in self.classes.iter().zip(&ended.classes) {
            to.take_in(from);
        }
        for (to, from) in self.latency.iter().zip(&ended.latency) {
            to.take_in(from);
        }
        self.unmanaged.take_in(&ended.unmanaged);
        self.counters.ended_processes.fetch_add(1, Relaxed);
    }

    /// Whether the process was seen to have ended.
    pub fn has_ended(&self) -> bool {
        self.ended.load(Relaxed) != 0
    }

    /// The process.
    pub fn pid(&self) -> u32 {
        self.pid.load(Relaxed)
    }

    /// How far the pager has come.
    pub fn state(&self) -> State {
        match self.state.load(Relaxed) {
            1 => State::Active,
            2 => State::Failed,
            _ => State::Dormant,
        }
    }

    /// Time that threads spent in faults, all together: our service time as measured, and what
    /// reaching us and running again adds, but not more than they did not run.
    pub fn waited(&self) -> Nanos {
        let served: Nanos = self.latency.iter().map(Histogram::total).sum();
        let nanos = |counter: &AtomicU64| Nanos(counter.load(Relaxed));
        // Saturating: the counters are read one after the other.
        served + nanos(&self.counters.fault_overhead_ns) - nanos(&self.counters.overcounted_ns)
    }

    /// Of that, what these threads spent in the kernel, as processor time of their own.
    pub fn waited_running(&self) -> Nanos {
        let faults: u64 = self.latency.iter().map(Histogram::count).sum();
        (Nanos(self.counters.fault_own_ns.load(Relaxed)) * faults).min(self.waited())
    }

    /// Appends a decision to the ring. One writer at a time; does not allocate.
    pub fn push_decision(&self, decision: &Decision) {
        let mut bytes = [0u8; SLOT];
        // A decision that does not fit is counted and left out; the reader
        // sees the gap.
        let seq = self.counters.decisions.load(Relaxed);
        let fits = postcard::to_slice(decision, &mut bytes).is_ok();
        let index = seq as usize % RING;
        let ring = (self.ring.as_ptr() as usize, size_of_val(&self.ring));
        // Nor does one for which its file system has no room.
        if self.ring_room.take(ring, (index + 1) * size_of::<Slot>()) {
            let slot = &self.ring[index];
            slot.seq.store(0, Release);
            core::sync::atomic::fence(SeqCst);
            for (word, chunk) in slot.bytes.iter().zip(bytes.chunks_exact(8)) {
                word.store(u64::from_ne_bytes(chunk.try_into().unwrap_or_default()), Relaxed);
            }
            slot.seq.store(if fits { seq + 1 } else { 0 }, Release);
        }
        // Last, so that a reader never looks for what is not there yet.
        self.counters.decisions.store(seq + 1, Release);
    }

    /// Reads the decisions since `*next` and moves it on; returns how many
    /// were lost because the ring had come around.
    pub fn drain_decisions(&self, next: &mut u64, mut take: impl FnMut(Decision)) -> u64 {
        let end = self.counters.decisions.load(Acquire);
        let mut lost = 0;
        if end > *next + RING as u64 {
            lost = end - RING as u64 - *next;
            *next += lost;
        }
        while *next < end {
            let index = *next as usize % RING;
            if !self.ring_room.reaches((index + 1) * size_of::<Slot>()) {
                // Who reads where there is no room is killed.
                (lost, *next) = (lost + 1, *next + 1);
                continue;
            }
            let slot = &self.ring[index];
            let before = slot.seq.load(Acquire);
            let mut bytes = [0u8; SLOT];
            for (word, chunk) in slot.bytes.iter().zip(bytes.chunks_exact_mut(8)) {
                chunk.copy_from_slice(&word.load(Relaxed).to_ne_bytes());
            }
            core::sync::atomic::fence(SeqCst);
            if before == *next + 1 && slot.seq.load(Acquire) == before {
                match postcard::from_bytes(&bytes) {
                    Ok(decision) => take(decision),
                    Err(_) => lost += 1,
                }
            } else {
                lost += 1;
            }
            *next += 1;
        }
        lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program that executes another makes its page again under the eyes of `terrace
    /// run`, which was killed by SIGBUS when the file was short for a moment.
    #[test]
    fn a_page_is_made_again_without_becoming_shorter() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("1.stats");
        let first = ProcessPage::create(&path).expect("a page");
        first.counters.demotions.store(7, Relaxed);
        let over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let mut sum = 0;
                while !over.load(Relaxed) {
                    sum += first.counters.values().iter().sum::<u64>();
                }
                sum
            });
            for _ in 0..200 {
                let again = ProcessPage::create(&path).expect("a page");
                assert_eq!(again.counters.demotions.load(Relaxed), 0, "nothing is left over");
                again.counters.demotions.store(9, Relaxed);
            }
            over.store(true, Relaxed);
            reader.join().expect("no panic");
        });
        assert_eq!(first.counters.demotions.load(Relaxed), 9, "both see the same page");
    }

    /// Its figures were left out, and a report said that all had fitted.
    #[test]
    fn a_page_of_another_version_is_none_and_says_whose_it_is() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("77.stats");
        let page = ProcessPage::create(&path).expect("a page");
        let own = std::process::id();
        assert!(ProcessPage::open(&path).is_ok() && ProcessPage::snapshot(&path).is_ok());
        assert_eq!(unread(&path), None);
        let other = Some((own, Unread::OtherVersion));
        page.interface.store(!interface::FINGERPRINT, Relaxed);
        assert!(ProcessPage::open(&path).is_err() && ProcessPage::snapshot(&path).is_err());
        assert_eq!(unread(&path), other);
        page.interface.store(interface::FINGERPRINT, Relaxed);
        page.version.store(VERSION - 1, Relaxed);
        assert_eq!(unread(&path), other);
        // Of another length, as they mostly are.
        File::options().write(true).open(&path).expect("it").set_len(4096).expect("shorter");
        assert_eq!(unread(&path), other);
        std::fs::write(&path, "").expect("a file");
        assert_eq!(unread(&path), None, "it is being made");
    }

    #[test]
    fn a_page_that_cannot_be_kept_says_so_and_is_made_when_it_can() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("77.stats");
        std::fs::write(&path, vec![0; NOT_KEPT as usize]).expect("a file");
        assert_eq!(unread(&path), Some((77, Unread::NotKept)));
        ProcessPage::create(&path).expect("a page");
        assert_eq!(unread(&path), None);
    }

    #[test]
    fn what_a_process_did_outlives_it_and_what_it_had_does_not() {
        let [all, ended] = [(); 2].map(|()| ProcessPage::anonymous().expect("memory"));
        for (page, by) in [(all, 1), (ended, 10)] {
            page.counters.demotions.store(3 * by, Relaxed);
            page.counters.mapped_bytes.store(4096 * by, Relaxed);
            page.counters.mapped_peak_bytes.store(8192 * by, Relaxed);
            page.counters.fault_own_ns.store(100 * by, Relaxed);
            page.classes[0].vetoed.store(by, Relaxed);
            page.classes[0].held_out.store(2 * by, Relaxed);
            page.classes[0].realised_harm.store(5 * by, Relaxed);
            page.classes[0].would_veto_benefit.store(7 * by, Relaxed);
            page.latency[1].record(Nanos(50 * by));
        }
        all.take_in(ended);
        let counters = &all.counters;
        assert_eq!(counters.demotions.load(Relaxed), 33);
        assert_eq!(counters.mapped_bytes.load(Relaxed), 4096);
        assert_eq!(counters.mapped_peak_bytes.load(Relaxed), 81_920);
        assert_eq!(counters.fault_own_ns.load(Relaxed), 550, "the mean of two faults");
        assert_eq!(counters.ended_processes.load(Relaxed), 1);
        assert_eq!(all.classes[0].vetoed.load(Relaxed), 11);
        assert_eq!(all.classes[0].held_out.load(Relaxed), 22);
        assert_eq!(all.classes[0].realised_harm.load(Relaxed), 55);
        assert_eq!(all.classes[0].would_veto_benefit.load(Relaxed), 77);
        assert_eq!((all.latency[1].count(), all.latency[1].max()), (2, Nanos(500)));
        assert_eq!(all.latency[1].total(), Nanos(550));
    }

    /// Forty children of a process do not have forty times its store.
    #[test]
    fn what_a_family_of_processes_has_in_common_counts_once() {
        let page = |family: u64, store: u64| {
            let page = ProcessPage::anonymous().expect("memory");
            page.counters.family.store(family, Relaxed);
            page.counters.store_bytes.store(store, Relaxed);
            page
        };
        let (parent, other) = (page(7, 100), page(8, 30));
        assert_eq!(ProcessPage::store_of([parent, other]), 130);
        let children = [page(0, 0), page(0, 0)];
        for child in children {
            child.inherit(parent);
        }
        assert_eq!(ProcessPage::store_of([parent, children[0], children[1], other]), 130);
        children[0].counters.store_bytes.store(140, Relaxed);
        assert_eq!(ProcessPage::store_of([parent, children[0], children[1], other]), 170);
        // Whoever is left of a family has all of it.
        assert_eq!(ProcessPage::store_of([children[1]]), 100);
    }
}
