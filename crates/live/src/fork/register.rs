//! A child's memory is registered with a handle of its own: what its parent's pager had managed, and
//! what was mapped just before the fork.

use core::sync::atomic::Ordering::*;

use crate::failsafe::inject::{self, Point};
use crate::pager::Pager;
use crate::space::page_state::PageState;
use crate::space::proc_maps;
use crate::space::regions::{self, Region};
use crate::sys::{self, PAGE};
use crate::workers::worker::Worker;

/// A process that was killed has been taken down after so long (ns), however
/// busy the machine.
const UNCLAIMED_AFTER: u64 = 20_000_000_000;

/// In a child: takes the memory over that its parent's pager had managed.
pub(crate) fn adopt(worker: &mut Worker<'_>) -> Result<(), i32> {
    let pager = worker.pager;
    let (sentinel, _) = pager.fork.watched();
    register_unclaimed(pager, sentinel, PAGE)?;
    forget_unmapped(pager);
    for (_, region) in pager.regions.iter() {
        register_mapped(pager, region, &mut |start, len| register_unclaimed(pager, start, len))?;
    }
    let before = pager.resident();
    // What is not registered is seen below to be unknown.
    let _ = worker.adopt_present();
    worker.manage_late();
    for (start, end) in mapped_unknown(pager) {
        // What cannot be managed is told of by the statistics.
        let _ = worker.manage_range(start, end);
    }
    pager.budget.share.inherited_more(pager, pager.resident().saturating_sub(before));
    Ok(())
}

/// In a child: forgets what it has not inherited (`MADV_DONTFORK`), and what was
/// unmapped just before the fork, with the message still under way.
fn forget_unmapped(pager: &Pager) {
    let mut gaps = Vec::new();
    let mut end = 0;
    let told = proc_maps::for_each_mapping(|m| {
        gaps.push((end, m.start));
        end = m.end;
    });
    // Without `/proc` (another root) nobody knows, nor could the child be put on plain memory.
    if !told || end == 0 {
        return;
    }
    gaps.push((end, usize::MAX));
    for (_, region) in pager.regions.iter() {
        let (start, end) = (region.start(), region.end());
        let first = gaps.partition_point(|&(_, gap_end)| gap_end <= start);
        for &(from, to) in gaps[first..].iter().take_while(|&&(from, _)| from < end) {
            if from < to {
                pager.unmapped(from.max(start), to.min(end));
            }
        }
    }
}

/// In a child: what is mapped in the window and not in the books. Another thread of the parent's
/// had mapped it, and had not come to say so.
fn mapped_unknown(pager: &Pager) -> Vec<(usize, usize)> {
    let mut mapped = Vec::new();
    let is_told = proc_maps::for_each_mapping(|m| {
        if regions::in_window(m.start) && m.is_manageable() {
            mapped.push((m.start, m.end));
        }
    });
    if !is_told {
        pager.window_is_not_known();
    }
    let mut unknown: Vec<(usize, usize)> = Vec::new();
    for (start, end) in mapped {
        let mut at = start;
        while at < end {
            let next = match pager.regions.find(at) {
                Some(place) if place.region.mapped() == place.region.pages() => {
                    at = place.region.end();
                    continue;
                }
                Some(place) if PageState::of(place.word.load(Acquire)) != PageState::Gone => {
                    at += PAGE;
                    continue;
                }
                Some(_) => at + PAGE,
                None => pager.regions.next_start(at).map_or(end, |next| next.min(end)),
            };
            match unknown.last_mut() {
                Some(last) if last.1 == at => last.1 = next,
                _ => unknown.push((at, next)),
            }
            at = next;
        }
    }
    unknown
}

/// Registers a range with a child's handle, or says why the kernel does not take it.
fn register_unclaimed(pager: &Pager, start: usize, len: usize) -> Result<(), i32> {
    if inject::refuses(Point::Register) {
        return Err(libc::ENOMEM);
    }
    unclaimed(|| pager.register(start, len))
}

/// Registers the slots of the staging ring with this process's handle. In a child they may still be
/// claimed, too.
pub(crate) fn register_slots(pager: &Pager) -> Result<(), i32> {
    unclaimed(|| pager.evict.staging.register(pager.uffd()))
}

/// Registers a range once no parent that died has it.
fn unclaimed(register: impl FnMut() -> Result<(), i32>) -> Result<(), i32> {
    let until = sys::now() + UNCLAIMED_AFTER;
    let tried = retry_while_claimed(register, || {
        sys::sleep(100_000);
        sys::now() < until
    });
    tried.unwrap_or_else(|| {
        sys::complain(&["a parent that died holds its child's memory; it cannot go on"]);
        std::process::abort()
    })
}

/// Tries to register a range for as long as somebody else has it, and there is time; `None` when
/// that is over.
///
/// A parent that is killed while it forks dies thread by thread: that its manager
/// is gone says nothing yet of its handle for this memory, which closes with the
/// last of its threads. As long as it is open nobody else may register the range
/// (`EBUSY`), and to go on without would turn what is absent into zeros.
fn retry_while_claimed(
    mut register: impl FnMut() -> Result<(), i32>,
    mut wait: impl FnMut() -> bool,
) -> Option<Result<(), i32>> {
    loop {
        match register() {
            Err(libc::EBUSY) if wait() => {}
            Err(libc::EBUSY) => return None,
            result => return Some(result),
        }
    }
}

/// Registers a range (start, length), or says why not.
type Register<'a> = &'a mut dyn FnMut(usize, usize) -> Result<(), i32>;

/// Registers what of a region is still mapped. What cannot be registered must be brought in: it
/// would read zeros.
fn register_mapped(pager: &Pager, region: &Region, register: Register<'_>) -> Result<(), i32> {
    let (start, pages) = (region.start(), region.pages());
    match register(start, pages as usize * PAGE) {
        Err(libc::EINVAL) => {}
        result => return result,
    }
    // Parts of it are gone (told by us), or the child has not inherited them
    // (`MADV_DONTFORK`): run by run, and where that fails, page by page.
    let gone = |page: u32| PageState::of(region.word(page).load(Acquire)) == PageState::Gone;
    let mut page = 0;
    while page < pages {
        let first = page;
        while page < pages && !gone(page) {
            page += 1;
        }
        let at = start + first as usize * PAGE;
        let end = start + page as usize * PAGE;
        if at < end {
            match register(at, end - at) {
                Err(libc::EINVAL) => {
                    for at in (at..end).step_by(PAGE) {
                        register_page(pager, at, register)?;
                    }
                }
                result => result?,
            }
        }
        page += 1;
    }
    Ok(())
}

/// The same of one page. Where something else is mapped by now, a file or nothing, with the
/// message still under way, what we hold is of no use to anybody.
fn register_page(pager: &Pager, at: usize, register: Register<'_>) -> Result<(), i32> {
    let Err(error) = register(at, PAGE) else { return Ok(()) };
    let mut is_ours = false;
    proc_maps::for_each_mapping(|m| {
        is_ours |= m.anonymous && m.start <= at && at < m.end;
    });
    if error != libc::EINVAL || is_ours {
        return Err(error);
    }
    pager.unmapped(at, at + PAGE);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pager::fixture::{self, Memory};

    /// Pages of [`Memory`] that are in the books, and not gone.
    fn known(memory: &Memory) -> Vec<usize> {
        let is_known = |page: &usize| {
            let place = memory.pager.regions.find(memory.at(*page));
            place.is_some_and(|p| PageState::of(p.word.load(Acquire)) != PageState::Gone)
        };
        (0..Memory::PAGES).filter(is_known).collect()
    }

    /// What is mapped there and not in the books, as pages.
    fn unknown(memory: &Memory) -> Vec<(usize, usize)> {
        let (start, end) = (memory.at(0), memory.at(Memory::PAGES));
        let all = mapped_unknown(memory.pager);
        let here = all.iter().filter(|(from, _)| (start..end).contains(from));
        here.map(|&(from, to)| ((from - start) / PAGE, (to - start) / PAGE)).collect()
    }

    /// Registers the region at a page with a kernel that takes a range only if all of it is mapped
    /// and none of it is among `refused`, as userfaultfd does; what it took, and what came of it.
    fn registered(
        memory: &Memory,
        page: usize,
        refused: &[(usize, i32)],
    ) -> (Vec<usize>, Result<(), i32>) {
        let place = memory.pager.regions.find(memory.at(page)).expect("a region");
        let mut taken = Vec::new();
        let result = register_mapped(memory.pager, place.region, &mut |start, len| {
            let first = (start - memory.at(0)) / PAGE;
            let pages = first..first + len / PAGE;
            if let Some((_, error)) = refused.iter().find(|(page, _)| pages.contains(page)) {
                return Err(*error);
            }
            let mut mapped = 0;
            proc_maps::for_each_mapping(|m| {
                mapped += m.end.min(start + len).saturating_sub(m.start.max(start));
            });
            if mapped < len {
                return Err(libc::EINVAL);
            }
            assert!(pages.clone().all(|page| !taken.contains(&page)), "{pages:?} twice");
            taken.extend(pages);
            Ok(())
        });
        (taken, result)
    }

    #[test]
    fn what_a_child_has_not_inherited_is_forgotten_and_nothing_else() {
        let memory = Memory::new();
        memory.map(1..3, Memory::USABLE);
        memory.map(5..8, Memory::USABLE);
        memory.enter(0..6);
        // The second region is mapped but for its end, the third not at all.
        memory.enter(6..10);
        memory.enter(12..14);
        memory.set(1, PageState::Same(0));
        memory.set(3, fixture::hold(memory.pager, 0, 1));
        // It is page 3's alone.
        fixture::place(memory.pager, 0).word.store(PageState::Fresh.word(), Release);
        forget_unmapped(memory.pager);
        assert_eq!(known(&memory), [1, 2, 5, 6, 7]);
        let kept = memory.pager.regions.find(memory.at(1)).expect("a page").word.load(Acquire);
        assert_eq!(PageState::of(kept), PageState::Same(0), "with what is held of it");
        assert_eq!(
            memory.pager.stats().counters.stored_pages.load(Relaxed),
            0,
            "the other is freed"
        );
        assert!(memory.pager.regions.find(memory.at(12)).is_none(), "nothing of it is left");
    }

    #[test]
    fn what_is_mapped_and_in_no_region_is_found_in_one_piece_a_gap() {
        let memory = Memory::new();
        memory.map(0..4, Memory::USABLE);
        // Only reserved: it may be accessible one day.
        memory.map(4..8, libc::PROT_NONE);
        memory.map(9..11, libc::PROT_READ);
        memory.map(12..14, Memory::USABLE);
        assert_eq!(unknown(&memory), [(0, 8), (12, 14)]);
        memory.enter(1..3);
        memory.enter(12..14);
        assert_eq!(unknown(&memory), [(0, 1), (3, 8)]);
        // Unmapped as far as the books know, and mapped anew.
        memory.set(2, PageState::Gone);
        memory.set(12, PageState::Gone);
        assert_eq!(unknown(&memory), [(0, 1), (2, 8), (12, 13)]);
    }

    #[test]
    fn a_region_is_registered_at_once_or_by_runs_between_what_is_gone() {
        let memory = Memory::new();
        memory.map(0..8, Memory::USABLE);
        memory.enter(0..8);
        assert_eq!(registered(&memory, 0, &[]), ((0..8).collect(), Ok(())));
        let memory = Memory::new();
        memory.map(1..4, Memory::USABLE);
        memory.map(5..7, Memory::USABLE);
        memory.enter(0..8);
        for page in [0, 4, 7] {
            memory.set(page, PageState::Gone);
        }
        assert_eq!(registered(&memory, 0, &[]), (vec![1, 2, 3, 5, 6], Ok(())));
        assert_eq!(known(&memory), [1, 2, 3, 5, 6]);
    }

    /// The message that a page is gone is still under way.
    #[test]
    fn a_page_that_is_gone_without_a_word_is_found_and_its_neighbours_are_registered() {
        let memory = Memory::new();
        memory.map(0..2, Memory::USABLE);
        memory.map(3..6, Memory::USABLE);
        memory.enter(0..6);
        memory.set(4, PageState::Gone);
        assert_eq!(registered(&memory, 0, &[]), (vec![0, 1, 3, 5], Ok(())));
        assert_eq!(known(&memory), [0, 1, 3, 5]);
    }

    /// It would read zeros instead of what is held of it.
    #[test]
    fn memory_of_ours_that_the_kernel_does_not_take_is_an_error() {
        let memory = Memory::new();
        memory.map(0..6, Memory::USABLE);
        memory.enter(0..6);
        let (taken, result) = registered(&memory, 0, &[(2, libc::EINVAL)]);
        assert_eq!((&taken[..], result), (&[0, 1][..], Err(libc::EINVAL)));
        assert_eq!(known(&memory), [0, 1, 2, 3, 4, 5], "and stays in the books");
        assert_eq!(registered(&memory, 0, &[(5, libc::ENOMEM)]), (vec![], Err(libc::ENOMEM)));
    }

    #[test]
    fn what_a_dying_parent_holds_is_waited_for_and_not_for_ever() {
        let attempt = |busy: u32, patience: u32, then: Result<(), i32>| {
            let (mut tried, mut waited) = (0, 0);
            let result = retry_while_claimed(
                || {
                    tried += 1;
                    if tried <= busy { Err(libc::EBUSY) } else { then }
                },
                || {
                    waited += 1;
                    waited <= patience
                },
            );
            (result, tried)
        };
        assert_eq!(attempt(3, 9, Ok(())), (Some(Ok(())), 4));
        assert_eq!(attempt(9, 3, Ok(())), (None, 4));
        assert_eq!(attempt(1, 9, Err(libc::ENOMEM)), (Some(Err(libc::ENOMEM)), 2), "at once");
    }
}
