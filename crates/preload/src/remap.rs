//! `mremap`: what grows is managed as what it was a part of, and begins to be once it is large.
//!
//! Once memory is managed, the kernel tells the pager of moves, and what grows stays registered
//! (`Worker::serve_unknown`): nobody has to be asked, or waited for. But nobody would notice a program
//! that has mapped little, and has made it large since.

use core::ffi::c_void;

use libc::c_int;
use terrace_live::presence;
use terrace_live::regions::in_window;
use terrace_live::sys::{self, PAGE};
use terrace_live::threads;

use crate::sanitizers::hand_on;
use crate::{mapping, places, state};

/// Changes a mapping's size, or moves it: `mremap(2)`.
///
/// # Safety
/// As of the C library's. There it takes its last argument only where the flags ask for it; the
/// calling conventions of `x86_64` and `aarch64` pass it in the same register, which is
/// looked at only then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mremap(
    old: *mut c_void,
    len: usize,
    new_len: usize,
    flags: c_int,
    to: *mut c_void,
) -> *mut c_void {
    hand_on!(
        c"mremap", old => *mut c_void, len => usize, new_len => usize, flags => c_int,
        to => *mut c_void; *mut c_void
    );
    let to = if flags & libc::MREMAP_FIXED == 0 { 0 } else { to as usize };
    state::await_child();
    let remap = |flags: c_int, to: usize| {
        // SAFETY: the caller's; sets `errno` as the C library's does.
        (unsafe { libc::syscall(libc::SYS_mremap, old, len, new_len, flags, to) }) as *mut c_void
    };
    let Some(config) = state::config().filter(|_| !threads::is_ours()) else {
        return remap(flags, to);
    };
    // What is too long to be rounded up the kernel refuses.
    let whole_pages = |len: usize| len.wrapping_add(PAGE - 1) & !(PAGE - 1);
    let (start, pages, new_pages) = (old as usize, whole_pages(len), whole_pages(new_len));
    let end = start.saturating_add(pages);
    let ours = pages != 0 && (places::contains(start, end) || state::is_managed(start, end));

    if ours && in_window(start) && new_pages > pages && flags == libc::MREMAP_MAYMOVE {
        // Where it goes is ours to choose.
        let at = remap(0, 0);
        if at != libc::MAP_FAILED {
            state::accessible(new_pages - pages);
            return at;
        }
        if sys::errno() == libc::ENOMEM
            && let Some(at) = mapping::move_block(start, len, new_pages, mapping::Kind::Mapping)
        {
            return at as *mut c_void;
        }
    }

    let at = remap(flags, to);
    if at == libc::MAP_FAILED {
        return at;
    }
    let now = (at as usize, at as usize + new_pages);
    if now.0 == start {
        if ours && new_pages < pages {
            places::unmapped(now.1, start + pages);
            state::unmapped(pages - new_pages);
        } else if ours && new_pages > pages {
            is_larger(start + pages, now.1);
        }
    } else {
        if flags & libc::MREMAP_DONTUNMAP == 0 && ours {
            mapping::forget(start, pages);
        }
        places::unmapped(now.0, now.1);
        if ours {
            is_larger(now.0, now.1);
        }
    }
    if !ours && has_become_large(pages, new_pages, config.min_region.get()) && is_ordinary(now) {
        begin_to_manage(now.0, now.1);
    }
    at
}

/// A range belongs to what is managed, or will be.
fn is_larger(start: usize, end: usize) {
    if state::pager().is_none() {
        begin_to_manage(start, end);
    }
}

fn begin_to_manage(start: usize, end: usize) {
    places::mapped(start, end);
    state::accessible(end - start);
}

/// Whether it is time to look at what kind of memory it is: it is large enough now and was not,
/// or has doubled since. Who grows by a page at a time must not pay for a look each time.
fn has_become_large(old: usize, new: usize, least: u64) -> bool {
    let is_large = |len: usize| len as u64 >= least;
    new > old && is_large(new) && (!is_large(old) || new.ilog2() > old.ilog2())
}

fn is_ordinary(range: (usize, usize)) -> bool {
    let mut ordinary = false;
    presence::for_each_mapping(|m| {
        ordinary |= m.start <= range.0 && range.1 <= m.end && m.is_ordinary() && !m.heap;
    });
    ordinary
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_grows_is_looked_at_when_it_becomes_large_and_each_time_it_doubles() {
        let looks = |sizes: &[usize]| {
            sizes.windows(2).filter(|two| has_become_large(two[0], two[1], 1 << 20)).count()
        };
        assert_eq!(looks(&[1 << 12, 1 << 16, 1 << 19]), 0, "small");
        assert_eq!(looks(&[1 << 19, 1 << 20]), 1);
        assert_eq!(looks(&[1 << 20, 1 << 16]), 0, "it shrinks");
        let by_pages: Vec<_> = (0..4096).map(|n| n << 12).collect();
        assert_eq!(looks(&by_pages), 4, "1, 2, 4 and 8 MiB");
    }
}
