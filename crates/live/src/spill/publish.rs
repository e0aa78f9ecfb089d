//! What becomes of a page's word while its content gets into the file.
//!
//! The page is taken twice, for moments: to copy its blob, and when the copy is in the
//! file. In between it is as free as any other, so that it may have been touched,
//! changed, and have left again, with another blob where the first one lay.
//! `tests/models` tries the orders in which that can happen.

use crate::atomic::{AtomicU64, Ordering::*};
use crate::space::page_state::{BUSY, PageState};
use crate::spill::location::Location;

/// Where contents are.
pub trait Books {
    /// A blob's bytes.
    ///
    /// # Safety
    /// The page whose word names the blob is the caller's while they are used.
    unsafe fn bytes(&self, blob: PageState) -> &[u8];
    /// A record of the file is in use from now on.
    fn gained(&self, location: Location);
    /// What holds a page's content is not in use any more.
    fn lost(&self, state: PageState);
}

/// Whether a page is a blob in RAM.
pub const fn is_blob(state: PageState) -> bool {
    matches!(state, PageState::Compressed(_) | PageState::Raw(_))
}

/// Takes possession of a page that still has this word.
fn take(page: &AtomicU64, word: u64) -> bool {
    page.compare_exchange(word, word | BUSY, AcqRel, Relaxed).is_ok()
}

/// Gives a page's blob to `to`, if the page still is what it was; bytes of the blob.
pub fn copy(page: &AtomicU64, word: u64, books: &impl Books, to: impl FnOnce(&[u8])) -> u64 {
    let state = PageState::of(word);
    if !is_blob(state) || !take(page, word) {
        return 0;
    }
    // SAFETY: the page is ours.
    let bytes = unsafe { books.bytes(state) };
    to(bytes);
    let len = bytes.len() as u64;
    page.store(word, Release);
    len
}

/// A record of a page that had this word is in the file, with these bytes: the page is
/// there from now on, if it has not changed. `passing` is called when that is half done.
pub fn publish(
    page: &AtomicU64,
    word: u64,
    location: Location,
    written: &[u8],
    books: &impl Books,
    passing: impl FnOnce(),
) {
    if !take(page, word) {
        return;
    }
    let state = PageState::of(word);
    let unchanged = match state {
        // Another blob may lie where the first one did.
        // SAFETY: the page is ours.
        PageState::Compressed(_) | PageState::Raw(_) => unsafe { books.bytes(state) == written },
        // A segment that is being emptied is not written, so a location in it
        // means the same record.
        PageState::Spilled(_) => true,
        _ => false,
    };
    if unchanged {
        books.gained(location);
        passing();
        page.store(PageState::Spilled(location).word(), Release);
        // Nobody knows of it any more.
        books.lost(state);
    } else {
        page.store(word, Release);
    }
}
