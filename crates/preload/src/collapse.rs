//! `MADV_COLLAPSE`: huge pages that the program asks for.
//!
//! Of a range of which a page is absent the kernel makes no huge page where a userfaultfd serves
//! faults (`EBUSY`); on plain memory it fills such pages itself, and reads them in from swap. So
//! the pages are brought in, and the kernel is asked again. What the budget has no room for stays
//! in base pages: as far as the program can tell, its advice was taken. The same where pages are
//! protected to see what is used (`EINVAL`).

use terrace_live::huge::collapse::MADV_COLLAPSE;
use terrace_live::pager::Pager;
use terrace_live::space::regions::CHUNK;
use terrace_live::sys::{self, PAGE};
use terrace_live::workers::command::Command;

use crate::state;

/// How often the pages of a range are brought in: some may leave again before the kernel has
/// looked at all of them.
const TRIES: u32 = 4;

/// The kernel has answered to the advice on a range: what the program is told.
pub(crate) fn after(at: usize, len: usize, answer: Result<(), i32>) -> Result<(), i32> {
    let end = at.saturating_add(len);
    let Some(pager) = state::pager() else { return answer };
    let tracks = pager.tracks().is_some() && at.is_multiple_of(PAGE);
    // Where nothing was touched the kernel says `EINVAL` without us, too.
    let is_ours = |answer, start, end| match answer {
        Err(libc::EBUSY) => true,
        Err(libc::EINVAL) => tracks && state::is_touched(start, end),
        _ => false,
    };
    if answer.is_err() && !is_ours(answer, at, end) || !state::is_managed(at, end) {
        return answer;
    }
    // A huge page, and as much again while it is made.
    let has_room = pager.budget() > 3 * (CHUNK / PAGE) as u64;
    let mut result = Ok(());
    for part in (at.next_multiple_of(CHUNK)..end).step_by(CHUNK) {
        if part + CHUNK > end {
            break;
        }
        // SAFETY: changes no content.
        let mut part_is = answer.or_else(|_| unsafe { sys::madvise(part, CHUNK, MADV_COLLAPSE) });
        for _ in 0..TRIES {
            if !has_room || !is_ours(part_is, part, part + CHUNK) {
                break;
            }
            bring_in(part);
            // SAFETY: as above.
            part_is = unsafe { sys::madvise(part, CHUNK, MADV_COLLAPSE) };
        }
        match part_is {
            Ok(()) => is_huge(pager, part),
            // It does not fit, or not for long enough.
            Err(_) if is_ours(part_is, part, part + CHUNK) => {}
            Err(error) => result = Err(error),
        }
    }
    result
}

/// Touches every page of a range.
fn bring_in(part: usize) {
    for advice in [libc::MADV_POPULATE_WRITE, libc::MADV_POPULATE_READ] {
        loop {
            // SAFETY: changes no content.
            match unsafe { sys::madvise(part, CHUNK, advice) } {
                Ok(()) => return,
                // A signal came, or the pager was busy with its page.
                Err(libc::EINTR | libc::EAGAIN) => {}
                // It may not be written.
                Err(_) => break,
            }
        }
    }
}

/// Has the pager know it: it makes no page of a huge page fault only to see whether it is used.
fn is_huge(pager: &Pager, part: usize) {
    state::signals_blocked(|| {
        pager.commands.ask(pager, Command::Collapsed, part, part + CHUNK);
    });
}
