//! The pages of which Terrace holds the content: those that a child is to be given.

use core::sync::atomic::Ordering::*;

use crate::pager::Pager;
use crate::space::page_state::PageState;
use crate::sys::PAGE;

impl Pager {
    /// The pages of which we hold the content, by the books as they are when the iterator comes to them, and
    /// their addresses there. Before each region `is_wanted` is asked; once it is false there are no more.
    pub(super) fn absent_pages(
        &self,
        is_wanted: impl Fn() -> bool,
    ) -> impl Iterator<Item = (PageState, usize)> {
        let regions = self.regions.iter().take_while(move |_| is_wanted());
        regions.flat_map(|(_, region)| {
            (0..region.pages())
                .map(|page| {
                    let state = PageState::of(region.word(page).load(Acquire));
                    (state, region.start() + page as usize * PAGE)
                })
                .filter(|(state, _)| state.is_held())
        })
    }
}

#[cfg(test)]
mod tests {
    use core::cell::Cell;

    use super::*;
    use crate::pager::fixture::{START, hold, pager, place, touch};
    use crate::space::regions::CHUNK;

    fn at(page: usize) -> usize {
        START + page * PAGE
    }

    #[test]
    fn what_a_child_needs_is_what_we_hold_the_content_of() {
        let pager = pager(6);
        touch(pager, 1);
        let held = hold(pager, 2, 5);
        place(pager, 3).word.store(PageState::Gone.word(), Release);
        place(pager, 4).word.store(PageState::Same(0).word(), Release);
        let absent: Vec<_> = pager.absent_pages(|| true).collect();
        assert_eq!(absent, [(held, at(2)), (PageState::Same(0), at(4))]);
    }

    #[test]
    fn of_a_child_that_has_ended_no_further_region_is_looked_at() {
        let pager = pager(2);
        let second = START + CHUNK;
        pager.enter_region(second, second + PAGE).expect("room for a region");
        for page in [0, 1, CHUNK / PAGE] {
            hold(pager, page, 5);
        }
        let lives = Cell::new(true);
        let mut absent = pager.absent_pages(|| lives.get()).map(|(_, address)| address);
        assert_eq!(absent.next(), Some(at(0)));
        lives.set(false);
        assert_eq!((absent.next(), absent.next()), (Some(at(1)), None));
        assert_eq!(pager.absent_pages(|| false).count(), 0);
    }
}
