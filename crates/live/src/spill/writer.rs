//! The thread that writes the spill file.
//!
//! While the store holds more than it may, the oldest pages' blobs are copied into
//! a batch, the batch is written, and only then do the pages' words name their
//! records. Meanwhile the pages are as they were: nobody waits for a write, and
//! a page that has changed by then keeps what it has. Records that die leave gaps;
//! when these are many, or no segment is free, what is left of the emptiest
//! segments is written anew together.

use core::mem::ManuallyDrop;
use core::sync::atomic::Ordering::*;

use terrace_core::{Bytes, Nanos};

use super::batch::{Batch, find};
use super::device::{DEPTH, Device};
use super::location::Location;
use super::publish::{self, Books, is_blob};
use super::reader::{read_at, read_mapped};
use super::{Spill, describe};
use crate::evict::staging::owner;
use crate::failsafe::inject::{self, Point};
use crate::failsafe::reserve_memory;
use crate::pager::{Pager, WRITER};
use crate::space::page_state::{BUSY, PageState};
use crate::store::slabs::Blob;
use crate::sys::{self, PAGE};
use crate::workers::worker::Worker;

/// Page words looked at, for pages that the ring of the oldest has lost, before
/// others get a turn.
const SWEEP: u32 = 64 << 10;
/// Segments emptied at once: all pages' words are looked through for it.
const VICTIMS: usize = 8;
/// How long (ns) the file is left alone after it has refused: at least, and at
/// most, as it doubles each time.
const REST: (u64, u64) = (100_000_000, 10_000_000_000);
/// While others may not be disturbed, look again after so long (ns).
const FROZEN: u64 = 100_000;
/// The longest sleep (ns).
const IDLE: u64 = 1_000_000_000;

/// What the thread works with. Made before anybody can fork: it allocates nothing
/// afterwards.
pub struct Desk {
    device: Device,
    batches: [Batch; DEPTH],
    /// Bytes of blobs that are being written.
    under_way: u64,
    /// Records to be moved: whose page, and where they are.
    moving: Vec<(u64, Location)>,
    /// A segment that is being emptied.
    segment: usize,
    /// Where looking through the pages goes on: region and page.
    next: (u32, u32),
    /// How long (ns) the file was left alone when it refused last; 0 once it has not.
    rest: u64,
    /// This thread's processor time when pages were last counted as being in the file.
    counted: Nanos,
}

impl Desk {
    /// For an open file; `None` if there is no memory.
    pub fn new(spill: &Spill) -> Option<Self> {
        let size = spill.segments.size();
        let [a, b, c, d] = [(); DEPTH].map(|()| Batch::new(size));
        Some(Self {
            device: if spill.mapping.is_open() {
                Device::none(spill.descriptor())
            } else {
                Device::new(spill.descriptor())
            },
            batches: [a?, b?, c?, d?],
            under_way: 0,
            moving: Vec::with_capacity(VICTIMS * size / 128),
            segment: reserve_memory::map(size).ok()?,
            next: (0, 0),
            rest: 0,
            counted: Nanos::ZERO,
        })
    }

    /// It stays where it is from here on, as [`Worker::settle_down`].
    fn settle_down(&mut self, pager: &Pager) {
        pager.workers[WRITER].beside.store(core::ptr::from_mut(self).expose_provenance(), Release);
    }

    /// Gives its buffers back, which are not used any more.
    fn give_back(&mut self) {
        let size = self.batches[0].size();
        self.batches.iter_mut().for_each(Batch::give_back);
        // SAFETY: as of a batch's buffer.
        let _ = unsafe { sys::munmap(self.segment, size) };
    }

    /// In a forked child: gives back the memory of its parent's writer, which is not here.
    ///
    /// # Safety
    /// As of [`Worker::disband`], with what [`Desk::settle_down`] has noted.
    pub(crate) unsafe fn disband(at: usize) {
        let at = core::ptr::with_exposed_provenance::<ManuallyDrop<Self>>(at);
        // SAFETY: the caller's.
        let mut desk = unsafe { at.read() };
        desk.give_back();
        // Not `device`: the kernel has not copied its ring, and its descriptor is the parent's.
        let Self { batches, moving, .. } = &mut *desk;
        // SAFETY: lists that nobody uses and that are not dropped.
        unsafe {
            core::ptr::drop_in_place(batches);
            core::ptr::drop_in_place(moving);
        }
    }
}

impl Drop for Desk {
    /// At the end of the writer's work, and where it breaks: what is still being written comes to
    /// nothing then, or to what nobody reads.
    fn drop(&mut self) {
        self.give_back();
    }
}

/// What became of an attempt to fill a batch.
enum Filled {
    /// It is being written.
    Submitted,
    /// There is nothing to write.
    Nothing,
    /// No segment is free.
    NoRoom,
}

impl Pager {
    /// Bytes that the store may occupy. Where the kernel gives it no more, a part of what it has
    /// is to become free for what leaves DRAM.
    pub fn store_limit(&self) -> u64 {
        let limit = self.config.store_limit.map_or(self.budget() * PAGE as u64, Bytes::get);
        let most = self.store.most();
        limit.min(most - most / 8)
    }

    /// The store has no memory for a page: others are to go to the file, if there is one.
    pub(crate) fn spill_sooner(&self) {
        if self.spill.is_open() {
            self.spill.wish();
        }
    }

    /// Whether the store holds more than it may. The memory that it occupies does
    /// not fall as fast as blobs leave, so that a fixed part of the limit may
    /// be used whatever it occupies.
    fn store_is_over(&self, under_way: u64) -> bool {
        let limit = self.store_limit();
        let blobs = self.stats().counters.blob_bytes.load(Relaxed).saturating_sub(under_way);
        self.store.occupied().saturating_sub(under_way) > limit && blobs > limit / 2
    }

    /// Brings what the statistics page says of the file up to date.
    pub(crate) fn account_spill(&self) {
        let counters = &self.stats().counters;
        let (read, written) = self.spill.traffic();
        counters.spill_bytes.store(self.spill.used().get(), Relaxed);
        counters.spill_read_bytes.store(read, Relaxed);
        counters.spill_written_bytes.store(written, Relaxed);
        if self.spill.is_open() {
            let is_over = self.store.occupied() > self.store_limit();
            counters.store_over_ns.fetch_add(self.spill.note_over(is_over), Relaxed);
        }
    }

    /// Tells the writer when there is something to do.
    pub(crate) fn stored(&self, owner: u64, state: PageState) {
        if self.spill.is_open() && is_blob(state) {
            self.spill.aged.push(owner, state.word());
            let over = self.store.occupied().saturating_sub(self.store_limit());
            if over > 0 {
                let counters = &self.stats().counters;
                counters.store_over_peak_bytes.fetch_max(over, Relaxed);
                self.spill.wish();
            }
        }
    }

    /// Whether the store holds so much more than it may that nobody should add to it.
    fn is_far_over(&self) -> bool {
        let limit = self.store_limit();
        self.spill.is_open()
            && !self.is_stopped()
            && self.store.occupied() > limit + (limit / 4).max(4 << 20)
            && self.store_is_over(0)
    }

    /// For who wants room, before it takes a lock: waits for a writer that is far behind, as
    /// long as it comes nearer. Not while a fork or another thread's request waits for us.
    pub(crate) fn throttle(&self) {
        if self.is_far_over() {
            let nobody_waits = || !self.freeze.is_on() && self.commands.pending().is_none();
            self.spill.wait_for_progress(|| self.is_far_over() && nobody_waits());
        }
    }

    /// Whether who makes room ahead of need should leave that: the writer is far behind, and
    /// works.
    pub(crate) fn should_hold_back(&self) -> bool {
        self.is_far_over() && self.spill.takes_more()
    }
}

impl Worker<'_> {
    /// The writer's life; over when something of ours has broken.
    pub fn write_back(&mut self, desk: &mut Desk) {
        let pager = self.pager;
        self.settle_down();
        desk.settle_down(pager);
        let spill = &pager.spill;
        while !pager.is_stopped() {
            crate::workers::idle_priority::rest(self.id);
            let bell = spill.bell.load(SeqCst);
            let now = sys::now();
            let rest_until = spill.rest_until.load(Relaxed);
            if now >= rest_until && pager.store_is_over(desk.under_way) {
                if spill.segments.is_sparse() {
                    self.move_together(desk);
                }
                match self.fill_batch(desk) {
                    Filled::Submitted => {}
                    Filled::Nothing if self.complete_one(desk) => {}
                    Filled::Nothing => sys::sleep(FROZEN * 10),
                    Filled::NoRoom => {
                        if !self.complete_one(desk) && !self.move_together(desk) {
                            self.rest(REST.0, "it is as large as it may be");
                        }
                    }
                }
                continue;
            }
            if self.complete_one(desk) {
                continue;
            }
            spill.asleep.store(1, SeqCst);
            let wait = rest_until.saturating_sub(now).clamp(1, IDLE);
            let wait = if rest_until > now { wait } else { IDLE };
            if rest_until > now || !pager.store_is_over(0) {
                sys::futex_wait(&spill.bell, bell, Some(wait), false);
            }
            spill.asleep.store(0, SeqCst);
        }
    }

    /// The file takes no more, for so long (ns).
    fn rest(&self, time: u64, why: &str) {
        let spill = &self.pager.spill;
        spill.rest_until.store(sys::now() + time, Relaxed);
        spill.refused(why);
        spill.progressed();
    }

    /// Begins what changes pages; false while nothing may change. To be ended by `leave`.
    fn begin(&self) -> bool {
        let pager = self.pager;
        let may = pager.enter(self.id);
        if !may || pager.is_stopped() {
            pager.leave(self.id);
            return false;
        }
        true
    }

    /// Takes a batch that is not being written, and a segment for it.
    fn open_batch(&mut self, desk: &mut Desk, reserve: u32) -> Option<usize> {
        let spill = &self.pager.spill;
        let number = loop {
            if let Some(free) = (0..DEPTH).find(|&n| desk.device.is_free(n)) {
                break free;
            }
            self.complete_one(desk);
        };
        let segment = spill.segments.take(reserve)?;
        desk.batches[number].begin(segment, spill.segments.start(segment));
        Some(number)
    }

    /// Fills a batch with the oldest pages and has it written.
    fn fill_batch(&mut self, desk: &mut Desk) -> Filled {
        let pager = self.pager;
        // One is kept free: emptying segments needs it.
        let Some(number) = self.open_batch(desk, 1) else { return Filled::NoRoom };
        if !self.begin() {
            pager.spill.segments.close(desk.batches[number].segment);
            sys::sleep(FROZEN);
            return Filled::Nothing;
        }
        let batch = &mut desk.batches[number];
        let mut bytes = 0;
        let limit = pager.store_limit() / 2;
        let enough = |bytes: u64| {
            let blobs = pager.stats().counters.blob_bytes.load(Relaxed);
            blobs.saturating_sub(desk.under_way + bytes) <= limit
        };
        for _ in 0..SWEEP {
            let wanted = batch.has_room() && !enough(bytes);
            let Some((who, word)) = wanted.then(|| pager.spill.aged.pop()).flatten() else { break };
            bytes += copy(pager, batch, who, word);
        }
        if batch.entries.is_empty() {
            // Those that the ring had no room for, or lost when their memory moved.
            sweep(pager, &mut desk.next, SWEEP, |who, state| {
                if is_blob(state) && batch.has_room() && !enough(bytes) {
                    bytes += copy(pager, batch, who, state.word());
                }
            });
        }
        pager.leave(self.id);
        if batch.entries.is_empty() {
            pager.spill.segments.close(batch.segment);
            return Filled::Nothing;
        }
        desk.under_way += bytes;
        submit(&pager.spill, desk, number);
        Filled::Submitted
    }

    /// Waits for a batch and enters it into the books; false if none is being written.
    fn complete_one(&mut self, desk: &mut Desk) -> bool {
        let pager = self.pager;
        let spill = &pager.spill;
        let Some((number, error)) = desk.device.wait() else { return false };
        let batch = &mut desk.batches[number];
        if error == 0 {
            spill.written.fetch_add(batch.content().len() as u64, Relaxed);
            while !self.begin() {
                if pager.is_stopped() {
                    return true;
                }
                sys::sleep(FROZEN);
            }
            for entry in &batch.entries {
                if let Some(page) = word_of(pager, entry.owner) {
                    let (word, bytes) = (entry.word, batch.bytes(entry));
                    let passing = || inject::at(Point::Write);
                    publish::publish(page, word, entry.location, bytes, pager, passing);
                }
            }
            pager.leave(self.id);
            desk.rest = 0;
        }
        let blobs = batch.entries.iter().filter(|entry| is_blob(PageState::of(entry.word)));
        let (pages, bytes) = blobs
            .fold((0, 0), |(pages, bytes), entry| (pages + 1, bytes + entry.location.len() as u64));
        desk.under_way -= bytes;
        if error == 0 && pages > 0 {
            let cpu = sys::thread_cpu();
            let took = cpu.saturating_sub(desk.counted);
            desk.counted = cpu;
            spill.to_file.count(pages, bytes, took);
        }
        spill.segments.close(batch.segment);
        pager.account_spill();
        if error == 0 {
            spill.progressed();
        } else {
            desk.rest = (desk.rest * 2).clamp(REST.0, REST.1);
            self.rest(desk.rest, describe(error));
        }
        true
    }

    /// Writes what is left of the emptiest segments anew; false if that frees none.
    fn move_together(&mut self, desk: &mut Desk) -> bool {
        while self.complete_one(desk) {}
        let pager = self.pager;
        let segments = &pager.spill.segments;
        let mut victims = [0; VICTIMS];
        let found = segments.emptiest(&mut victims);
        let mut held = 0;
        for i in 0..found {
            if segments.hold(victims[i]) {
                victims[held] = victims[i];
                held += 1;
            }
        }
        let victims = &victims[..held];
        let before = segments.free_ones();
        desk.moving.clear();
        let mut place = (0, 0);
        loop {
            if held == 0 || !self.begin() {
                break;
            }
            let Desk { moving, .. } = desk;
            let more = sweep(pager, &mut place, SWEEP, |who, state| {
                if let PageState::Spilled(location) = state
                    && victims.contains(&segments.of(location))
                    && moving.len() < moving.capacity()
                {
                    moving.push((who, location));
                }
            });
            pager.leave(self.id);
            if !more {
                break;
            }
        }
        desk.moving.sort_unstable_by_key(|&(_, location)| location);
        self.copy_over(desk);
        while self.complete_one(desk) {}
        for &victim in victims {
            segments.close(victim);
        }
        segments.free_ones() > before
    }

    /// Copies the records that are to be moved into batches and has these written.
    fn copy_over(&mut self, desk: &mut Desk) {
        let spill = &self.pager.spill;
        let size = spill.segments.size();
        // SAFETY: a mapping of ours alone, of that size.
        let content = unsafe { core::slice::from_raw_parts(desk.segment as *const u8, size) };
        let mut read = None;
        let mut open = None;
        for i in 0..desk.moving.len() {
            let (who, location) = desk.moving[i];
            let segment = spill.segments.of(location);
            let start = spill.segments.start(segment);
            if !spill.mapping.is_open() && read != Some(segment) {
                if read_at(spill, desk.segment, start, start + size as u64).is_err() {
                    break;
                }
                read = Some(segment);
            }
            // What is damaged stays where it is: who asks for it will be told.
            let bytes = if spill.mapping.is_open() {
                // SAFETY: the segment is held.
                unsafe { read_mapped(spill, location) }
            } else {
                find(content, start, location)
            };
            let Some(bytes) = bytes else { continue };
            if let Some(number) = open.take_if(|&mut n: &mut usize| !desk.batches[n].has_room()) {
                submit(spill, desk, number);
            }
            if open.is_none() {
                open = self.open_batch(desk, 0);
            }
            let Some(number) = open else { break };
            let word = PageState::Spilled(location).word();
            desk.batches[number].push(who, word, location.is_raw(), bytes);
        }
        if let Some(number) = open {
            submit(spill, desk, number);
        }
    }
}

/// Has a batch written.
fn submit(spill: &Spill, desk: &mut Desk, number: usize) {
    let batch = &mut desk.batches[number];
    let at = batch.entries.first().map_or(0, |entry| entry.location.at());
    if spill.mapping.is_open() {
        // SAFETY: no record of this segment is in use.
        let error = unsafe { spill.mapping.write(spill.descriptor(), batch.content(), at) };
        desk.device.finished(number, error);
        return;
    }
    // SAFETY: a batch is not touched before the device gives its number back.
    unsafe { desk.device.submit(number, batch.content(), at) };
}

/// A page's word, if its region is still there.
fn word_of(pager: &Pager, who: u64) -> Option<&core::sync::atomic::AtomicU64> {
    let (id, page) = ((who >> 32) as u32, who as u32);
    pager.regions.get(id).filter(|region| page < region.pages()).map(|region| region.word(page))
}

impl Books for Pager {
    unsafe fn bytes(&self, blob: PageState) -> &[u8] {
        match blob {
            // SAFETY: the caller's.
            PageState::Compressed(at) | PageState::Raw(at) => unsafe { self.store.get(Blob(at)) },
            _ => &[],
        }
    }
    fn gained(&self, location: Location) {
        self.spill.segments.add(location);
        self.stats().counters.spilled_pages.fetch_add(1, Relaxed);
    }
    fn lost(&self, state: PageState) {
        self.drop_content(state);
    }
}

/// Copies a page's blob into a batch, if the page still is what it was; its bytes.
fn copy(pager: &Pager, batch: &mut Batch, who: u64, word: u64) -> u64 {
    let Some(page) = word_of(pager, who) else { return 0 };
    let raw = matches!(PageState::of(word), PageState::Raw(_));
    publish::copy(page, word, pager, |bytes| batch.push(who, word, raw, bytes))
}

/// Looks at up to so many pages' words from a place on, and says whether there are
/// more; if not, the place is the beginning again.
fn sweep(
    pager: &Pager,
    next: &mut (u32, u32),
    mut left: u32,
    mut each: impl FnMut(u64, PageState),
) -> bool {
    for (id, region) in pager.regions.iter() {
        let first = match id.cmp(&next.0) {
            core::cmp::Ordering::Less => continue,
            core::cmp::Ordering::Equal => next.1,
            core::cmp::Ordering::Greater => 0,
        };
        let count = region.pages().saturating_sub(first).min(left);
        if count == 0 {
            continue;
        }
        region.for_each_touched(first, count, |from, n| {
            for page in from..from + n {
                // It may be taken away meanwhile.
                let Some(word) = region.get(page) else { break };
                let word = word.load(Relaxed);
                if word & BUSY == 0 {
                    each(owner(id, page), PageState::of(word));
                }
            }
        });
        left -= count;
        if left == 0 {
            *next = (id, first + count);
            return true;
        }
    }
    *next = (0, 0);
    false
}

#[cfg(test)]
mod tests {
    use std::os::fd::IntoRawFd;

    use super::*;
    use crate::pager::fixture::{configured, hold, place, state};
    use crate::pager::freeze::Why;
    use crate::spill::reader::Reader;

    /// Records of a page as it is that a segment takes: of 64 KiB in a file of 1 MiB.
    const RECORDS: usize = 15;

    /// A pager whose store may hold nothing, with a file of 1 MiB; its writer, and that one's desk.
    fn writer(pages: usize) -> (&'static Pager, Worker<'static>, Desk) {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("spill");
        let pager = configured(pages, |config| {
            config.spill = Some(file.clone());
            config.spill_size = Bytes::mib(1);
            config.store_limit = Some(Bytes::ZERO);
        });
        pager.spill.open(&file, false).expect("a file");
        (pager, Worker::new(pager, WRITER), Desk::new(&pager.spill).expect("memory"))
    }

    /// What the file has of a page; `None` if it is not there.
    fn read(pager: &Pager, page: usize) -> Option<u8> {
        let PageState::Spilled(location) = state(pager, page) else { return None };
        let mut reader = Reader::new();
        let bytes = reader.read(&pager.spill, location, false).expect("the record");
        assert!(bytes.len() == PAGE && bytes.iter().all(|&byte| byte == bytes[0]));
        let first = bytes[0];
        reader.give_back();
        Some(first)
    }

    fn submitted(worker: &mut Worker<'_>, desk: &mut Desk) -> bool {
        matches!(worker.fill_batch(desk), Filled::Submitted)
    }

    /// The page of this number comes back, or is discarded.
    fn leave_store(pager: &Pager, page: usize, now: PageState) {
        let before = state(pager, page);
        place(pager, page).word.store(now.word(), Release);
        pager.drop_content(before);
    }

    #[test]
    fn pages_are_where_they_were_until_their_segment_is_in_the_file() {
        let (pager, mut worker, mut desk) = writer(8);
        let held: Vec<_> = (0..3).map(|page| hold(pager, page, page as u8 + 1)).collect();
        assert!(submitted(&mut worker, &mut desk));
        assert_eq!((0..3).map(|page| state(pager, page)).collect::<Vec<_>>(), held);
        assert_eq!((desk.under_way, pager.spill.used()), (3 * PAGE as u64, Bytes::ZERO));
        assert!(!submitted(&mut worker, &mut desk), "enough is on its way");
        assert!(worker.complete_one(&mut desk));
        assert_eq!([0, 1, 2, 3].map(|page| read(pager, page)), [Some(1), Some(2), Some(3), None]);
        let counters = &pager.stats().counters;
        assert_eq!(counters.blob_bytes.load(Relaxed), 0, "the store has them no more");
        assert_eq!(counters.spilled_pages.load(Relaxed), 3);
        assert_eq!(desk.under_way, 0);
        assert!(!worker.complete_one(&mut desk), "nothing else is on its way");
    }

    #[test]
    fn a_page_that_changes_while_it_is_written_keeps_what_it_has() {
        let (pager, mut worker, mut desk) = writer(8);
        for page in 0..4 {
            hold(pager, page, page as u8 + 1);
        }
        assert!(submitted(&mut worker, &mut desk));
        leave_store(pager, 0, PageState::Resident);
        leave_store(pager, 1, PageState::Fresh);
        // It left again; the new blob may lie where the old one did.
        let again = hold(pager, 1, 9);
        place(pager, 2).word.fetch_or(BUSY, AcqRel);
        assert!(worker.complete_one(&mut desk));
        assert_eq!((state(pager, 0), state(pager, 1)), (PageState::Resident, again));
        assert!(matches!(state(pager, 2), PageState::Raw(_)), "somebody has it");
        assert_eq!(read(pager, 3), Some(4));
        assert_eq!(pager.stats().counters.spilled_pages.load(Relaxed), 1);
        assert_eq!(desk.under_way, 0, "what came to nothing is not under way either");
    }

    /// What a program is refused that fits its limits only without Terrace is given back, but not
    /// what a writer that broke had.
    #[test]
    fn a_writer_that_breaks_gives_its_buffers_back() {
        use std::os::unix::fs::FileExt;

        /// What no other test writes to a mapping of ours.
        const MARK: u64 = 0x5eed_de5c_7e44_0001;
        let (_, _, mut desk) = writer(1);
        let mut buffers = vec![desk.segment];
        buffers.extend(desk.batches.iter_mut().map(|batch| batch.content().as_ptr() as usize));
        for &at in &buffers {
            // SAFETY: a mapping of the desk's, which nobody else uses.
            unsafe { (at as *mut u64).write(MARK) };
        }
        let memory = std::fs::File::open("/proc/self/mem").expect("this process's memory");
        let is_there = |&at: &usize| {
            let mut found = [0; 8];
            memory.read_exact_at(&mut found, at as u64).is_ok() && u64::from_ne_bytes(found) == MARK
        };
        assert!(buffers.iter().all(is_there));

        let broken = std::panic::catch_unwind(core::panic::AssertUnwindSafe(move || {
            let _at_work = desk;
            // Not by the macro, whose message the test harness would print.
            std::panic::resume_unwind(Box::new("broken"));
        }));

        assert!(broken.is_err());
        assert!(!buffers.iter().any(is_there));
    }

    #[test]
    fn the_oldest_go_first() {
        let (pager, mut worker, mut desk) = writer(RECORDS * 2);
        for page in (0..RECORDS * 2).rev() {
            let state = hold(pager, page, page as u8);
            let place = place(pager, page);
            pager.stored(owner(place.id, place.page), state);
        }
        assert!(submitted(&mut worker, &mut desk) && worker.complete_one(&mut desk));
        let written = |page: &usize| read(pager, *page).is_some();
        let all: Vec<_> = (0..RECORDS * 2).filter(written).collect();
        assert_eq!(all, (RECORDS..RECORDS * 2).collect::<Vec<_>>());
    }

    /// A disk that is full costs memory, never content.
    #[test]
    fn a_file_that_refuses_is_left_alone_twice_as_long_each_time_and_loses_nothing() {
        let (pager, mut worker, mut desk) = writer(4);
        let held = hold(pager, 0, 7);
        let full = std::fs::File::options().write(true).open("/dev/full").expect("/dev/full");
        let file = pager.spill.fd.swap(full.into_raw_fd(), AcqRel);
        let mut full = Desk::new(&pager.spill).expect("memory");
        for rest in [REST.0, REST.0 * 2, REST.0 * 4] {
            assert!(submitted(&mut worker, &mut full) && worker.complete_one(&mut full));
            assert_eq!((state(pager, 0), full.rest, full.under_way), (held, rest, 0));
            assert!(pager.spill.rest_until.load(Relaxed) > 0);
        }
        assert_eq!(pager.spill.segments.taken(), Bytes::ZERO, "its segments are free again");
        pager.spill.fd.store(file, Release);
        desk.rest = full.rest;
        assert!(submitted(&mut worker, &mut desk) && worker.complete_one(&mut desk));
        assert_eq!((read(pager, 0), desk.rest), (Some(7), 0));
    }

    #[test]
    fn while_a_fork_is_under_way_nothing_is_taken() {
        let (pager, mut worker, mut desk) = writer(4);
        let held = hold(pager, 0, 7);
        pager.freeze.begin(Why::Fork);
        assert!(matches!(worker.fill_batch(&mut desk), Filled::Nothing));
        assert_eq!((state(pager, 0), desk.under_way), (held, 0));
        assert_eq!(pager.spill.segments.taken(), Bytes::ZERO);
    }

    #[test]
    fn of_a_full_file_the_emptiest_segments_are_written_anew_together() {
        let segments = 16;
        let (pager, mut worker, mut desk) = writer(RECORDS * segments);
        for page in 0..RECORDS * segments {
            hold(pager, page, page as u8);
        }
        while submitted(&mut worker, &mut desk) {
            assert!(worker.complete_one(&mut desk));
        }
        // One segment is kept free for this.
        assert!(matches!(worker.fill_batch(&mut desk), Filled::NoRoom));
        let spilled = |page: &usize| matches!(state(pager, *page), PageState::Spilled(_));
        let written: Vec<_> = (0..RECORDS * segments).filter(spilled).collect();
        assert_eq!(written.len(), RECORDS * (segments - 1));
        assert!(!worker.move_together(&mut desk), "all are full");
        // Of every three records of most segments, one is left.
        let (emptied, full) = written.split_at(RECORDS * 9);
        for page in emptied.iter().filter(|&&page| page % 3 != 0) {
            leave_store(pager, *page, PageState::Fresh);
        }
        let used = pager.spill.used();
        assert!(worker.move_together(&mut desk));
        assert!(pager.spill.segments.free_ones() > 1);
        assert_eq!(pager.spill.used(), used, "records have moved, and none is there twice");
        for &page in emptied.iter().filter(|&&page| page % 3 == 0).chain(full) {
            assert_eq!(read(pager, page), Some(page as u8), "{page}");
        }
        assert!(submitted(&mut worker, &mut desk), "there is room again");
    }
}
