//! What programs say of their files (`posix_fadvise`), and what becomes of it.

use super::call::{Advice, CallError};
use super::kernel::{Caller, Kernel};
use super::memory::{DIRTY, PAGE, READING, WRITEBACK};

impl Kernel {
    /// Pages of a file that are read ahead at most (`ra_pages`).
    pub(super) fn most_ahead(&self, number: u32) -> u32 {
        let most = self.read_ahead_pages();
        let file = self.files.get(number as usize).and_then(Option::as_ref);
        match file.map(|file| file.ahead.advised) {
            Some(Advice::Sequential) => most.saturating_mul(2),
            _ => most,
        }
    }

    /// A program says how it will use a file; of the part from `offset` on, `bytes` long (0 for
    /// all up to the end), what is read or dropped now.
    pub(super) fn advise(
        &mut self,
        caller: &mut Caller,
        number: u32,
        (offset, bytes): (u64, u64),
        advice: Advice,
    ) -> Result<(), CallError> {
        let size = self.opened(number)?.size;
        self.use_open(caller, number, false);
        caller.now += self.costs.time.stat.value.as_f64();
        let end = if bytes == 0 { u64::MAX } else { offset.saturating_add(bytes) };
        let pages = size.div_ceil(PAGE);
        // Files have fewer pages than 2^32.
        let page = |at: u64| at.min(pages) as u32;
        match advice {
            Advice::Normal | Advice::Random | Advice::Sequential => {
                self.file(number).ahead.advised = advice;
            }
            Advice::WillNeed => {
                let first = page(offset / PAGE);
                let count = page(end.div_ceil(PAGE)) - first;
                self.read_in(caller, number, first, count.min(self.most_ahead(number)), None)?;
            }
            Advice::DontNeed => {
                self.flush_part(caller, number, page(offset / PAGE)..page(end.div_ceil(PAGE)))?;
                // Pages of which only a part is not needed stay; but for the file's last one.
                let last = if end >= size { pages } else { end / PAGE };
                self.drop_part(caller, number, page(offset.div_ceil(PAGE))..page(last));
            }
        }
        Ok(())
    }

    /// Drops what the disk has of a part of a file (`invalidate_mapping_pages`). Which pages are
    /// in a page table is not known: of a file that is mapped, none is dropped.
    fn drop_part(&mut self, caller: &Caller, number: u32, part: core::ops::Range<u32>) {
        let file = self.files[number as usize].as_ref().expect("it is open");
        if file.maps > 0 {
            return;
        }
        for page in self.nodes.pages(&file.index) {
            let known = self.memory.page(page);
            let stays = known.has(DIRTY | WRITEBACK | READING);
            if part.contains(&known.index) && !stays {
                self.drop_page(caller, page);
            }
        }
    }
}
