//! Beginning to manage a range of memory that is mapped.

use crate::fork::thaw::adopt;
use crate::pager::Pager;
use crate::space::regions::{WINDOW_LEN, window};
use crate::space::unmanaged::Unmanaged;
use crate::space::{proc_maps, reservations};
use crate::sys::{PAGE, limits};
use crate::workers::worker::Worker;

/// Address space that is left to the program and to our books when more of its memory is managed.
const LEAST_SPACE_LEFT: u64 = 16 << 20;

impl Pager {
    /// The kernel does not say what is mapped (in another root, say): what the program has in the
    /// window by now may be on plain memory. The statistics say so.
    pub(crate) fn window_is_not_known(&self) {
        self.stats().unmanaged.enter(Unmanaged::NotNoted, window(), window() + WINDOW_LEN);
    }
}

impl Worker<'_> {
    /// Begins to manage a range that is mapped; of a reservation that is too large to be managed
    /// as a whole, all of the parts that it is in. If that cannot be done it is on plain memory,
    /// and the statistics say why.
    pub fn manage_by_parts(&mut self, start: usize, end: usize) -> Result<(), Unmanaged> {
        let mut result = Ok(());
        let mut at = start;
        while at < end {
            let mut until = reservations::until(at, end);
            if let Some((first, last)) = reservations::part_of(at) {
                until = last.min(until);
                if self.pager.regions.find(at).is_none()
                    && proc_maps::is_anonymous(first, last)
                    && self.try_to_manage(first, last).is_ok()
                {
                    at = until;
                    continue;
                }
            }
            result = result.and(self.manage_range(at, until));
            at = until;
        }
        result
    }

    /// Begins to manage a range that is mapped. If that cannot be done it is on plain memory, and
    /// the statistics say why.
    pub fn manage_range(&mut self, start: usize, end: usize) -> Result<(), Unmanaged> {
        self.try_to_manage(start, end)
            .inspect_err(|&why| self.pager.stats().unmanaged.enter(why, start, end))
    }

    fn try_to_manage(&mut self, start: usize, end: usize) -> Result<(), Unmanaged> {
        let pager = self.pager;
        // It is on plain memory if what leaves it could not be kept anywhere (`ulimit -v`, `ulimit -d`).
        let needed = (end - start) as u64 + LEAST_SPACE_LEFT;
        if limits::address_space_left().is_some_and(|left| left < needed) {
            return Err(Unmanaged::NoMemory);
        }
        // What was there before has been unmapped, and the message read; the
        // lock makes sure that it has also been carried out.
        let reading = pager.reading.lock();
        // Whoever puts the program on plain memory has the lock, and then it is too late.
        if pager.is_stopped() {
            return Err(Unmanaged::GivenUp);
        }
        pager.register(start, end - start).map_err(|error| match error {
            libc::ENOMEM => Unmanaged::NoMemory,
            _ => Unmanaged::Refused,
        })?;
        let covered = pager.cover(start, end);
        if covered.is_err() {
            pager.unregister_gaps(start, end);
        }
        drop(reading);
        self.ask_for_more();
        // What was touched before belongs into the books.
        let pagemap = proc_maps::Pagemap::open();
        pagemap.for_each_present(start, end, |first, count| {
            for i in 0..count {
                if let Some(place) = pager.regions.find(first + i * PAGE) {
                    // What is unmapped by now is not ours any more.
                    let _ = adopt(pager, &place, &pagemap);
                }
            }
        });
        covered
    }
}
