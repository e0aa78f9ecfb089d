//! The content of pages that we hold, out of the store or the spill file.

use core::sync::atomic::Ordering::*;

use terrace_core::Nanos;

use crate::codec::{self, PageBytes};
use crate::page_state::PageState;
use crate::pager::Pager;
use crate::spill::location::Location;
use crate::spill::reader::Reader;
use crate::store::Blob;
use crate::sys::{self, PAGE};

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
