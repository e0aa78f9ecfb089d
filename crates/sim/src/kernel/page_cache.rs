//! The page cache: reads, writes, read-ahead, write-back, reclaim, and the journal.

use core::ops::Range;

use terrace_core::ObjectKind;
use terrace_core::context::{ContextChange, ObjectId};

use super::call::{Advice, CallError};
use super::disk::Transfer;
use super::file::{EXTENT, JOURNAL_BUFFER};
use super::kernel::{Caller, JOURNAL, Kernel};
use super::memory::{DIRTY, Lines, MARKER, NONE, PAGE, PageId, READING, Role, WRITEBACK};
use super::slab::{Cache, Object};

const BIO: Cache = Cache::Of(ObjectKind::Bio);
/// Files have fewer pages: 16 TiB.
const MOST_PAGES: u64 = (1 << 32) - 2;
/// Pages that reclaim takes at once (`SWAP_CLUSTER_MAX`).
const BATCH: u32 = 32;

/// The part of a page that a call reads or writes.
#[derive(Clone, Copy, Debug)]
struct Part {
    /// The page's place in its file.
    index: u32,
    first: u32,
    lines: u32,
    whole: bool,
}

/// The pages of a range, each with its part.
fn parts(offset: u64, bytes: u64) -> impl Iterator<Item = Part> {
    let end = offset + bytes;
    (offset / PAGE..end.div_ceil(PAGE)).map(move |index| {
        let begin = offset.max(index * PAGE) - index * PAGE;
        let stop = end.min((index + 1) * PAGE) - index * PAGE;
        let (first, last) = (begin / 64, (stop - 1) / 64);
        Part {
            index: index as u32,
            first: first as u32,
            lines: (last - first + 1) as u32,
            whole: begin == 0 && stop == PAGE,
        }
    })
}

fn in_range(file: u32, offset: u64, bytes: u32) -> Result<(), CallError> {
    let end = offset.checked_add(u64::from(bytes));
    if end.is_none_or(|end| end.div_ceil(PAGE) > MOST_PAGES) {
        return Err(CallError::TooFar(file, offset));
    }
    Ok(())
}

impl Kernel {
    // --- reading and writing ----------------------------------------------------

    pub(super) fn read(
        &mut self,
        caller: &mut Caller,
        number: u32,
        offset: u64,
        bytes: u32,
    ) -> Result<(), CallError> {
        let file = self.opened(number)?;
        let (context, size) = (file.context, file.size);
        in_range(number, offset, bytes)?;
        self.use_open(caller, number, false);
        self.tell(caller, context, ContextChange::Accessed);
        // Beyond the end nothing is read.
        let bytes = u64::from(bytes).min(size.saturating_sub(offset));
        let time = self.costs.time.read_page.value.as_f64();
        if bytes == 0 {
            caller.now += time;
            return Ok(());
        }
        let (first, last) = ((offset / PAGE) as u32, ((offset + bytes - 1) / PAGE) as u32);
        for part in parts(offset, bytes) {
            caller.now += time;
            let page = self.find_or_read(caller, number, part.index, last + 1 - part.index)?;
            self.touch(caller, page, Lines::run(part.first, part.lines, false));
            let buffer = Lines::run(part.first, part.lines, true);
            // From the buffer's start, wherever in the file.
            self.touch_buffer(caller, part.index - first, buffer)?;
            self.lists.used(&mut self.memory, page);
        }
        let ahead = core::mem::replace(&mut self.file(number).ahead.next, last + 1);
        if self.tells_ahead && (ahead == first || first == 0) {
            self.tell_ahead(caller, number, last + 1);
        }
        Ok(())
    }

    /// A sequential reader has come to a page: contexts are told which members it comes to within
    /// the largest window of read-ahead. Those that are not cached yet are told of when they are
    /// read ([`Kernel::read_further`]).
    fn tell_ahead(&mut self, caller: &Caller, number: u32, next: u32) {
        let most = self.most_ahead(number);
        let file = self.file(number);
        let context = file.context;
        let end = next.saturating_add(most).min(file.size.div_ceil(PAGE) as u32);
        if next == 0 || file.ahead.told < next || file.ahead.told > end {
            file.ahead.told = next;
        }
        // Half a window at a time, not a page with each read.
        if end - file.ahead.told.min(end) < most / 2 {
            return;
        }
        for index in core::mem::replace(&mut file.ahead.told, end)..end {
            if let Some(page) = self.cached(number, index) {
                let object = ObjectId(self.memory.page(page).object);
                self.tell(caller, context, ContextChange::Ahead { object });
            }
        }
    }

    pub(super) fn write(
        &mut self,
        caller: &mut Caller,
        number: u32,
        offset: u64,
        bytes: u32,
    ) -> Result<(), CallError> {
        let context = self.opened(number)?.context;
        in_range(number, offset, bytes)?;
        self.use_open(caller, number, true);
        self.tell(caller, context, ContextChange::Accessed);
        let first = (offset / PAGE) as u32;
        for part in parts(offset, u64::from(bytes)) {
            caller.now += self.costs.time.write_page.value.as_f64();
            let page = self.page_to_write(caller, number, part)?;
            let buffer = Lines::run(part.first, part.lines, false);
            self.touch_buffer(caller, part.index - first, buffer)?;
            self.touch(caller, page, Lines::run(part.first, part.lines, true));
            self.lists.used(&mut self.memory, page);
            self.soil(caller, number, part.index, page)?;
            // Page by page: the next one follows where the file ends then, in the same extent.
            let end = (u64::from(part.index) + 1) * PAGE;
            let file = self.file(number);
            file.size = file.size.max(end.min(offset + u64::from(bytes)));
        }
        self.throttle(caller)
    }

    /// Loads or stores to a mapping: no copy, and the kernel sees only what is not cached.
    pub(super) fn access(
        &mut self,
        caller: &mut Caller,
        number: u32,
        offset: u64,
        bytes: u32,
        store: bool,
    ) -> Result<(), CallError> {
        let file = self.files.get_mut(number as usize).and_then(Option::as_mut);
        let file = file.ok_or(CallError::NoFile(number))?;
        let (context, size, maps) = (file.context, file.size, file.maps);
        if maps == 0 {
            return Err(CallError::NotMapped(number));
        }
        if offset.checked_add(u64::from(bytes)).is_none_or(|end| end > size) {
            return Err(CallError::BeyondEnd(number, offset));
        }
        for part in parts(offset, u64::from(bytes)) {
            let cached = self.cached(number, part.index).is_some();
            if !cached {
                caller.now += self.costs.time.fault.value.as_f64();
                self.tell(caller, context, ContextChange::Accessed);
            }
            let page = self.find_or_read(caller, number, part.index, 1)?;
            self.touch(caller, page, Lines::run(part.first, part.lines, store));
            self.lists.used(&mut self.memory, page);
            if store {
                self.soil(caller, number, part.index, page)?;
            }
        }
        if store { self.throttle(caller) } else { Ok(()) }
    }

    /// Touches the node of the index that a page is found by.
    fn walk(&mut self, caller: &mut Caller, number: u32, index: u32) {
        let object = if number == JOURNAL {
            None
        } else {
            let file = self.files[number as usize].as_ref();
            file.and_then(|file| self.nodes.object(&file.index, index))
        };
        if let Some(object) = object {
            self.use_object(caller, object, Cache::IndexNode, false);
        }
    }

    fn cached(&self, number: u32, index: u32) -> Option<u32> {
        let file = self.files.get(number as usize)?.as_ref()?;
        self.nodes.get(&file.index, index).map(|(page, _)| page)
    }

    /// The page at a place, read from the disk if it is not cached; `wanted` pages will be read
    /// from there on.
    fn find_or_read(
        &mut self,
        caller: &mut Caller,
        number: u32,
        index: u32,
        wanted: u32,
    ) -> Result<u32, CallError> {
        self.walk(caller, number, index);
        if let Some(page) = self.cached(number, index) {
            self.memory.counts.cache_hits += 1;
            if self.memory.page(page).has(MARKER) {
                self.memory.page_mut(page).flags &= !MARKER;
                self.read_further(caller, number)?;
            }
            if self.memory.page(page).has(READING) {
                caller.now = caller.now.max(self.file(number).transfers.read_done);
                self.complete(caller.now);
            }
            return Ok(page);
        }
        self.memory.counts.cache_misses += 1;
        let most = self.most_ahead(number);
        let file = self.file(number);
        // Read-ahead begins at a file's start and where the last read ended; what is read at
        // random is read alone.
        let follows = index == 0 || index == file.ahead.next || index == file.ahead.end;
        let sequential = follows && file.ahead.advised != Advice::Random;
        let window = if sequential { first_window(wanted, most) } else { wanted.min(most) };
        file.ahead.window = window;
        file.ahead.end = index.saturating_add(window);
        let marker = (sequential && window > wanted).then(|| index + wanted);
        self.read_in(caller, number, index, window, marker)?;
        let file = self.file(number);
        caller.now = caller.now.max(file.transfers.read_done);
        self.complete(caller.now);
        // `index` is within the file, so it was read.
        self.cached(number, index).ok_or(CallError::BeyondEnd(number, u64::from(index) * PAGE))
    }

    /// A sequential reader has come to the marker: the next window is read, and nobody waits.
    fn read_further(&mut self, caller: &mut Caller, number: u32) -> Result<(), CallError> {
        let most = self.most_ahead(number);
        let file = self.file(number);
        file.ahead.window = next_window(file.ahead.window, most);
        let (start, window) = (file.ahead.end, file.ahead.window);
        file.ahead.end = start.saturating_add(window);
        self.read_in(caller, number, start, window, Some(start))
    }

    /// Asks the disk for those pages of a range that are not cached.
    pub(super) fn read_in(
        &mut self,
        caller: &mut Caller,
        number: u32,
        first: u32,
        count: u32,
        marker: Option<u32>,
    ) -> Result<(), CallError> {
        let end = self.file(number).size.div_ceil(PAGE) as u32;
        let mut run = 0;
        let stop = first.saturating_add(count).min(end);
        for index in first..=stop {
            let missing = index < stop && self.cached(number, index).is_none();
            if missing {
                let page = self.add_page(caller, number, index)?;
                self.memory.page_mut(page).flags |= READING;
                if marker == Some(index) {
                    self.memory.page_mut(page).flags |= MARKER;
                }
                caller.now += self.costs.time.new_page.value.as_f64() / 4.0;
                run += 1;
            } else if run > 0 {
                self.submit(caller, number, index - run, run, false)?;
                self.memory.counts.read_ahead += u64::from(run) - 1;
                run = 0;
            }
        }
        Ok(())
    }

    /// Adds a page to a file.
    fn add_page(&mut self, caller: &mut Caller, number: u32, index: u32) -> Result<u32, CallError> {
        let context = self.file(number).context;
        let has_node = {
            let file = self.files[number as usize].as_ref().expect("it was looked up");
            self.nodes.object(&file.index, index).is_some()
        };
        if !has_node {
            let object = self.allocate(caller, context, Cache::IndexNode)?;
            let file = self.files[number as usize].as_mut().expect("it was looked up");
            self.nodes.grow(&mut file.index, index, object);
        }
        let page = self.memory.reserve(Role::Cache, number, index);
        let object = self.new_object();
        self.memory.page_mut(page).object = object;
        self.added(caller, context, object, ObjectKind::PageCachePage, page);
        self.memory.place(PageId::Kernel(page), caller.now)?;
        self.lists.add(&mut self.memory, page);
        let file = self.files[number as usize].as_mut().expect("it was looked up");
        self.nodes.insert(&mut file.index, index, page);
        Ok(page)
    }

    /// Takes a page out of its file and frees it.
    pub(super) fn drop_page(&mut self, caller: &Caller, page: u32) {
        let known = *self.memory.page(page);
        let number = known.owner;
        let context = self.file(number).context;
        self.lists.remove(&mut self.memory, page);
        if known.has(DIRTY) {
            self.dirty -= 1;
        }
        let file = self.files[number as usize].as_mut().expect("its page is cached");
        let node = self.nodes.remove(&mut file.index, known.index);
        if let Some(object) = node {
            self.deallocate(caller, context, Cache::IndexNode, object);
        }
        if known.head != NONE {
            let head = Object { slab: known.head, slot: known.head_slot, id: 0 };
            self.deallocate(caller, context, Cache::BufferHead, head);
        }
        self.removed(caller, context, known.object, ObjectKind::PageCachePage);
        self.memory.release(page, caller.now);
    }

    /// Drops all pages of a file that is deleted.
    pub(super) fn drop_pages(&mut self, caller: &Caller, number: u32) {
        let file = self.file(number);
        file.dirty.clear();
        let pages = {
            let file = self.files[number as usize].as_ref().expect("it is deleted only now");
            self.nodes.pages(&file.index)
        };
        for page in pages {
            self.drop_page(caller, page);
        }
    }

    /// The page that a write goes to.
    fn page_to_write(
        &mut self,
        caller: &mut Caller,
        number: u32,
        part: Part,
    ) -> Result<u32, CallError> {
        let size = self.file(number).size;
        let start = u64::from(part.index) * PAGE;
        let on_disk = start < size;
        if self.cached(number, part.index).is_some() || (on_disk && !part.whole) {
            return self.find_or_read(caller, number, part.index, 1);
        }
        self.walk(caller, number, part.index);
        caller.now += self.costs.time.new_page.value.as_f64();
        let page = self.add_page(caller, number, part.index)?;
        if !on_disk {
            self.grow_extent(caller, number, start == size.next_multiple_of(PAGE))?;
            self.change_metadata(caller, number, 0.0)?;
        }
        Ok(page)
    }

    /// A page was written: the disk has to get it.
    fn soil(
        &mut self,
        caller: &mut Caller,
        number: u32,
        index: u32,
        page: u32,
    ) -> Result<(), CallError> {
        if self.memory.page(page).head == NONE && self.costs.objects.buffer_heads_of_page.value > 0
        {
            let context = self.file(number).context;
            let head = self.allocate(caller, context, Cache::BufferHead)?;
            let page = self.memory.page_mut(page);
            (page.head, page.head_slot) = (head.slab, head.slot);
        }
        if self.memory.page(page).has(DIRTY) {
            return Ok(());
        }
        self.memory.page_mut(page).flags |= DIRTY;
        self.dirty += 1;
        let file = self.file(number);
        if file.dirty.is_empty() {
            self.dirty_files.push_back((number, caller.now));
        }
        self.file(number).dirty.push(index);
        Ok(())
    }

    // --- write-back ---------------------------------------------------------------

    /// Writers wait while too much is dirty, and write-back starts before that.
    fn throttle(&mut self, caller: &mut Caller) -> Result<(), CallError> {
        let frames = f64::from(self.memory.frames());
        let pace = &self.costs.pace;
        let background = (pace.dirty_background.value * frames) as u32;
        let limit = (pace.dirty_limit.value * frames) as u32;
        if self.dirty > background {
            let mut flusher = Caller { thread: caller.thread, now: caller.now };
            while self.dirty > background / 2 && self.flush_oldest(&mut flusher)? {}
        }
        while self.dirty + self.writing > limit {
            let Some(next) = self.disk.queue.front().map(|transfer| transfer.done) else { break };
            caller.now = caller.now.max(next);
            self.complete(caller.now);
        }
        Ok(())
    }

    /// Writes the file that has been dirty longest. False if there is none.
    fn flush_oldest(&mut self, caller: &mut Caller) -> Result<bool, CallError> {
        let Some((number, _)) = self.dirty_files.pop_front() else { return Ok(false) };
        if self.files.get(number as usize).is_some_and(Option::is_some) {
            self.flush(caller, number)?;
        }
        Ok(true)
    }

    /// The flusher thread looks for what has been dirty for too long.
    pub(super) fn write_back(&mut self, at: f64) -> Result<(), CallError> {
        let expires = self.costs.pace.dirty_expires.value.as_f64();
        let mut caller = Caller { thread: 0, now: at };
        while let Some(&(_, since)) = self.dirty_files.front()
            && since + expires <= at
        {
            self.make_room(&mut caller, 2 * BATCH)?;
            self.flush_oldest(&mut caller)?;
        }
        Ok(())
    }

    /// Asks the disk to write a file's dirty pages.
    fn flush(&mut self, caller: &mut Caller, number: u32) -> Result<(), CallError> {
        let dirty = core::mem::take(&mut self.file(number).dirty);
        self.write_pages(caller, number, dirty)
    }

    /// The same for a part of the file.
    pub(super) fn flush_part(
        &mut self,
        caller: &mut Caller,
        number: u32,
        part: Range<u32>,
    ) -> Result<(), CallError> {
        let file = self.file(number);
        let (dirty, others) =
            core::mem::take(&mut file.dirty).into_iter().partition(|index| part.contains(index));
        file.dirty = others;
        self.write_pages(caller, number, dirty)
    }

    /// Asks the disk to write those of a file's pages that are dirty.
    fn write_pages(
        &mut self,
        caller: &mut Caller,
        number: u32,
        mut dirty: Vec<u32>,
    ) -> Result<(), CallError> {
        // A page that was written back and soiled again is in the list once more.
        dirty.sort_unstable();
        let longest = (self.costs.pace.largest_bio.value.get() / PAGE) as u32;
        let mut run: Option<(u32, u32)> = None;
        for index in dirty {
            let Some(page) = self.cached(number, index) else { continue };
            let entry = self.memory.page_mut(page);
            if !entry.has(DIRTY) {
                continue;
            }
            entry.flags = (entry.flags & !DIRTY) | WRITEBACK;
            self.dirty -= 1;
            self.writing += 1;
            run = match run {
                Some((first, count)) if first + count == index && count < longest => {
                    Some((first, count + 1))
                }
                Some((first, count)) => {
                    self.submit(caller, number, first, count, true)?;
                    Some((index, 1))
                }
                None => Some((index, 1)),
            };
        }
        if let Some((first, count)) = run {
            self.submit(caller, number, first, count, true)?;
            if core::mem::take(&mut self.file(number).unplaced) {
                let context = self.file(number).context;
                for _ in 0..self.costs.objects.extents_of_placing.value {
                    let extent = self.allocate(caller, context, EXTENT)?;
                    self.deallocate(caller, context, EXTENT, extent);
                }
            }
        }
        Ok(())
    }

    pub(super) fn fsync(&mut self, caller: &mut Caller, number: u32) -> Result<(), CallError> {
        self.opened(number)?;
        self.use_open(caller, number, false);
        caller.now += self.costs.time.stat.value.as_f64();
        self.flush(caller, number)?;
        if self.file(number).transfers.count > 0 {
            caller.now = caller.now.max(self.file(number).transfers.write_done);
        }
        self.commit(caller)?;
        self.complete(caller.now);
        Ok(())
    }

    /// Commits the journal's transaction; the caller waits for it.
    pub(super) fn commit(&mut self, caller: &mut Caller) -> Result<(), CallError> {
        let blocks = core::mem::take(&mut self.transaction_blocks);
        if blocks == 0 {
            return Ok(());
        }
        // A block that describes the others, and one that says that all are there.
        self.submit(caller, JOURNAL, self.journal_at, blocks + 2, true)?;
        self.journal_at = (self.journal_at + blocks + 2) % (1 << 15);
        caller.now = caller.now.max(self.journal_file.transfers.write_done);
        self.memory.counts.commits += 1;
        for number in core::mem::take(&mut self.transaction) {
            let Some(file) = self.files.get_mut(number as usize).and_then(Option::as_mut) else {
                continue;
            };
            let context = file.context;
            for buffer in core::mem::take(&mut file.journal) {
                self.use_object(caller, buffer, JOURNAL_BUFFER, true);
                self.deallocate(caller, context, JOURNAL_BUFFER, buffer);
            }
        }
        Ok(())
    }

    // --- the disk -------------------------------------------------------------------

    /// Asks the disk for a transfer.
    pub(super) fn submit(
        &mut self,
        caller: &mut Caller,
        number: u32,
        first: u32,
        count: u32,
        write: bool,
    ) -> Result<(), CallError> {
        let context = self.file(number).context;
        let bio = self.allocate(caller, context, BIO)?;
        let (request, request_page) = (self.new_object(), self.request_page());
        self.added(caller, context, request, ObjectKind::BlkMqRequest, request_page);
        let lines = self.costs.lines.blk_mq_request.value;
        self.touch(caller, request_page, Lines::fields(0, lines, true));
        let done = self.disk.submit(self.memory.behind, caller.now, number, first, count);
        let file = self.file(number);
        file.transfers.count += 1;
        let last =
            if write { &mut file.transfers.write_done } else { &mut file.transfers.read_done };
        *last = last.max(done);
        let transfer = Transfer { done, file: number, first, count, write, bio, request };
        self.disk.enter(transfer);
        Ok(())
    }

    /// The disk has done what it has done until now.
    pub(super) fn complete(&mut self, now: f64) {
        while let Some(transfer) = self.disk.queue.front().copied().filter(|t| t.done <= now) {
            self.disk.queue.pop_front();
            let Transfer { file: number, first, count, write, bio, request, done, .. } = transfer;
            let caller = Caller { thread: 0, now: done };
            let context = self.file(number).context;
            let flag = if write { WRITEBACK } else { READING };
            for index in first..first.saturating_add(count) {
                if let Some(page) = self.cached(number, index)
                    && self.memory.page(page).has(flag)
                {
                    self.memory.page_mut(page).flags &= !flag;
                    if write {
                        self.writing -= 1;
                        self.memory.counts.written_back += 1;
                    }
                }
            }
            self.deallocate(&caller, context, BIO, bio);
            self.removed(&caller, context, request, ObjectKind::BlkMqRequest);
            self.file(number).transfers.count -= 1;
        }
    }

    /// Waits until the disk has done all that it was asked for of a file.
    pub(super) fn wait_for_transfers(&mut self, caller: &mut Caller, number: u32) {
        let file = self.file(number);
        if file.transfers.count > 0 {
            caller.now = caller.now.max(file.transfers.read_done).max(file.transfers.write_done);
            self.complete(caller.now);
        }
    }

    // --- reclaim ----------------------------------------------------------------------

    /// Frees memory until there are so many pages. Pages leave from the inactive list's end,
    /// dirty ones after they were written; inodes that nothing holds leave in proportion.
    pub(super) fn make_room(&mut self, caller: &mut Caller, pages: u32) -> Result<(), CallError> {
        if self.memory.free_frames() >= pages {
            return Ok(());
        }
        let target = pages + BATCH;
        let (mut scanned, mut rounds) = (0u32, 0);
        let mut inodes = 0.0;
        while self.memory.free_frames() < target {
            self.lists.balance(&mut self.memory);
            let page = self.lists.oldest();
            if page == NONE || scanned > self.lists.len() + BATCH {
                // All of it is dirty or on its way.
                rounds += 1;
                while self.flush_oldest(caller)? {}
                caller.now = caller.now.max(self.disk.drained());
                self.complete(caller.now);
                scanned = 0;
                if rounds > 3 {
                    break;
                }
                continue;
            }
            scanned += 1;
            inodes += self.closed.len() as f64 / f64::from(self.lists.len().max(1));
            let known = *self.memory.page(page);
            if known.has(DIRTY) {
                self.lists.rotate(&mut self.memory, page);
                // The flusher writes, not the caller.
                let mut flusher = Caller { ..*caller };
                self.flush(&mut flusher, known.owner)?;
            } else if known.has(READING | WRITEBACK) {
                self.lists.rotate(&mut self.memory, page);
            } else {
                self.drop_page(caller, page);
                self.memory.counts.reclaimed += 1;
            }
            while inodes >= 1.0 && self.evict_oldest(caller) {
                inodes -= 1.0;
            }
        }
        let mut left = self.closed.len();
        while self.memory.free_frames() < pages && left > 0 && self.evict_oldest(caller) {
            left -= 1;
        }
        if self.memory.free_frames() < pages { Err(CallError::OutOfMemory) } else { Ok(()) }
    }
}

/// The first window of a reader that asks for so many pages (`get_init_ra_size`).
fn first_window(wanted: u32, most: u32) -> u32 {
    let size = wanted.min(most).next_power_of_two();
    if size <= most / 32 {
        size * 4
    } else if size <= most / 4 {
        size * 2
    } else {
        most
    }
}

/// The window after one (`get_next_ra_size`).
fn next_window(window: u32, most: u32) -> u32 {
    if window < most / 16 {
        window * 4
    } else if window <= most / 2 {
        window * 2
    } else {
        most
    }
    .max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_grow_as_in_linux() {
        assert_eq!(first_window(1, 32), 4);
        assert_eq!(first_window(8, 32), 16);
        assert_eq!(first_window(100, 32), 32);
        let mut window = first_window(1, 32);
        let mut windows = vec![];
        for _ in 0..4 {
            window = next_window(window, 32);
            windows.push(window);
        }
        assert_eq!(windows, [8, 16, 32, 32]);
    }

    #[test]
    fn a_range_has_parts_of_its_first_and_last_page() {
        let parts: Vec<_> = parts(4000, 4300).collect();
        let shape: Vec<_> = parts.iter().map(|p| (p.index, p.first, p.lines, p.whole)).collect();
        assert_eq!(shape, [(0, 62, 2, false), (1, 0, 64, true), (2, 0, 2, false)]);
    }
}
