//! The content of absent pages, and how it comes back: out of the store or the spill file, or frame
//! and all out of the staging ring.

use core::sync::atomic::Ordering::*;

use libc::{EAGAIN, EEXIST, ENOENT};
use terrace_core::Nanos;

use crate::evict::staging::NOBODY;
use crate::fault::streams::MOST;
use crate::pager::Pager;
use crate::space::page_state::PageState;
use crate::space::regions::Place;
use crate::spill::location::Location;
use crate::spill::reader::Reader;
use crate::store::codec::{self, PageBytes};
use crate::store::slabs::Blob;
use crate::sys::uffd::Uffd;
use crate::sys::{self, PAGE};
use crate::workers::worker::Worker;

/// Ends the program: what we hold of a page is not what it wrote. Only damaged
/// memory can come here, and never shall a page be zero silently.
pub(crate) fn damaged() -> ! {
    sys::complain(&["a stored page is damaged; the program cannot go on"]);
    std::process::abort()
}

/// Brings a stored page's content, which is the caller's or does not change, into
/// a buffer. `wide`: its neighbours will be asked for, too.
pub(crate) fn unpack(
    pager: &Pager,
    state: PageState,
    page: &mut PageBytes,
    reader: &mut Reader,
    wide: bool,
) -> bool {
    let store = &pager.store;
    match state {
        PageState::Compressed(at) => {
            // SAFETY: the page is ours, or nothing changes: its blob stays.
            codec::unpack(unsafe { store.get(Blob(at)) }, page)
        }
        PageState::Raw(at) => {
            // SAFETY: as above.
            page.copy_from_slice(unsafe { store.get(Blob(at)) });
            true
        }
        PageState::Same(0) => {
            page.fill(0);
            true
        }
        PageState::Same(at) => {
            // SAFETY: as above.
            let word = unsafe { store.get(Blob(at)) };
            codec::fill(page, u64::from_ne_bytes(word.try_into().unwrap_or_default()));
            true
        }
        PageState::Spilled(location) => match read_spilled(pager, reader, location, wide) {
            Ok(bytes) if location.is_raw() => {
                let whole = bytes.len() == PAGE;
                if whole {
                    page.copy_from_slice(bytes);
                }
                whole
            }
            Ok(bytes) => codec::unpack(bytes, page),
            Err(error) => {
                sys::complain(&["the spill file cannot be read: ", crate::spill::describe(error)]);
                false
            }
        },
        _ => false,
    }
}

/// Reads a record of the spill file, and counts what that took.
fn read_spilled<'r>(
    pager: &'r Pager,
    reader: &'r mut Reader,
    location: Location,
    wide: bool,
) -> Result<&'r [u8], i32> {
    let start = sys::now();
    let bytes = reader.read(&pager.spill, location, wide);
    pager.spill.count_page_read(Nanos(sys::now() - start));
    pager.stats().counters.spill_read_bytes.store(pager.spill.traffic().0, Relaxed);
    bytes
}

/// A page-aligned buffer.
#[repr(C, align(4096))]
pub(crate) struct Aligned<const N: usize>(pub [u8; N]);

/// How often the lock for reading is tried where somebody waits for a page: some microseconds, without
/// yielding. Longer than another takes to read a fault, and who reads anything else may need the page.
const PATIENCE: u32 = 60;

/// The content of fresh pages.
static ZEROS: Aligned<{ PAGE * MOST }> = Aligned([0; PAGE * MOST]);

/// Where [`MOST`] pages of zeros are.
pub(crate) fn zeros() -> usize {
    ZEROS.0.as_ptr() as usize
}

impl Worker<'_> {
    /// Brings a stored page's content into the worker's buffer.
    pub(crate) fn unpack(&mut self, state: PageState) -> bool {
        unpack(self.pager, state, &mut self.buffer.0, &mut self.reader, false)
    }

    /// Moves frames from pages that are present to places that are not, as
    /// [`Uffd::move_frames`]; how many bytes, with the error that stopped it, if any.
    pub(crate) fn move_frames(
        &self,
        uffd: Uffd,
        to: usize,
        from: usize,
        len: usize,
    ) -> (usize, i32) {
        self.move_counted(uffd, to, from, len, true)
    }

    /// The same; without `wakes` nobody is woken who waits there.
    fn move_counted(
        &self,
        uffd: Uffd,
        to: usize,
        from: usize,
        len: usize,
        wakes: bool,
    ) -> (usize, i32) {
        let moved = uffd.move_frames(to, from, len, wakes, |at| self.pagemap.is_present(at));
        if moved.uncounted > 0 {
            let pages = (moved.uncounted / PAGE) as u64;
            self.pager.stats().counters.moves_uncounted.fetch_add(pages, Relaxed);
        }
        (moved.bytes, moved.error)
    }

    /// Has content come back to a page that is taken, and for which somebody waits: `put` puts it there,
    /// wakes nobody, and gives the error that stopped it, or 0. `EAGAIN` without that if
    /// what happens to the address space is being read, see [`Self::reading_if_free`].
    pub(crate) fn bring_back(&self, page: usize, put: impl FnOnce() -> i32) -> i32 {
        let Some(reading) = self.reading_within(PATIENCE) else { return EAGAIN };
        let error = put();
        drop(reading);
        if error == 0 {
            // Not before: it might take this thread's processor, and nobody could read its next fault.
            let _ = self.pager.uffd().wake(page, PAGE);
        }
        error
    }

    /// Moves a page's frame back from its staging slot.
    pub(crate) fn unstage(&mut self, place: &Place<'_>, slot: u32) -> i32 {
        let staging = &self.pager.evict.staging;
        let (uffd, from, to) = (self.pager.uffd(), staging.address(slot), place.address());
        let error = self.bring_back(to, || {
            let (_, error) = self.move_counted(uffd, to, from, PAGE, false);
            match error {
                0 | EAGAIN | ENOENT | EEXIST => error,
                // A frame that is shared with a forked child cannot move; copy it.
                // The slot's own copy goes when the tail comes by.
                _ => uffd.copy_unwoken(to, from, PAGE).1,
            }
        });
        if error == 0 || error == EEXIST {
            staging.owner_of(slot).store(NOBODY, Release);
        }
        error
    }
}

impl Pager {
    /// Frees what holds a page's content outside of DRAM, and counts.
    pub fn drop_content(&self, state: PageState) {
        let counters = &self.stats().counters;
        match state {
            PageState::Compressed(at) | PageState::Raw(at) => {
                // SAFETY: the word named the blob and is owned by the caller,
                // who replaces it; nobody else can name it.
                let len = unsafe { self.store.get(Blob(at)).len() };
                // SAFETY: as above.
                unsafe { self.store.free(Blob(at)) };
                counters.stored_pages.fetch_sub(1, Relaxed);
                counters.blob_bytes.fetch_sub(len as u64, Relaxed);
                if matches!(state, PageState::Raw(_)) {
                    counters.incompressible.fetch_sub(1, Relaxed);
                }
            }
            PageState::Same(at) => {
                if at != 0 {
                    // SAFETY: as above.
                    unsafe { self.store.free(Blob(at)) };
                }
                counters.same_pages.fetch_sub(1, Relaxed);
            }
            PageState::Spilled(location) => {
                self.spill.free(location);
                counters.spilled_pages.fetch_sub(1, Relaxed);
                counters.spill_bytes.store(self.spill.used().get(), Relaxed);
            }
            PageState::Fresh | PageState::Resident | PageState::Staged(_) | PageState::Gone => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pager::fixture::{hold, pager};

    fn read(pager: &Pager, state: PageState) -> Option<PageBytes> {
        let mut page = [0xee; PAGE];
        unpack(pager, state, &mut page, &mut Reader::none(), false).then_some(page)
    }

    #[test]
    fn content_comes_back_as_it_was_from_wherever_it_is() {
        let pager = pager(1);
        let raw = hold(pager, 0, 7);
        assert_eq!(read(pager, raw), Some([7; PAGE]));
        assert_eq!(read(pager, PageState::Same(0)), Some([0; PAGE]));
        let word = 0x0102_0304_0506_0708u64.to_ne_bytes();
        let same = PageState::Same(pager.store.put(&word).expect("memory").0);
        let page = read(pager, same).expect("a word");
        assert!(page.chunks(8).all(|part| part == word));
    }

    /// A page that holds nothing, or that lies elsewhere, must not be read as zeros.
    #[test]
    fn what_is_not_held_here_is_no_content() {
        let pager = pager(1);
        for state in [PageState::Fresh, PageState::Resident, PageState::Staged(0), PageState::Gone]
        {
            assert_eq!(read(pager, state), None, "{state:?}");
        }
    }

    #[test]
    fn content_that_is_dropped_is_counted_no_more() {
        let pager = pager(2);
        let counters = &pager.stats().counters;
        let held = || (counters.stored_pages.load(Relaxed), counters.blob_bytes.load(Relaxed));
        let (one, two) = (hold(pager, 0, 1), hold(pager, 1, 2));
        assert_eq!(held(), (2, 2 * PAGE as u64));
        pager.drop_content(one);
        pager.drop_content(PageState::Resident);
        assert_eq!(held(), (1, PAGE as u64));
        assert_eq!(read(pager, two), Some([2; PAGE]), "the other's is there");
        pager.drop_content(two);
        assert_eq!(held(), (0, 0));
        assert_eq!(counters.incompressible.load(Relaxed), 0);
    }
}
