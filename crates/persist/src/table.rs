//! Four-level tables in non-volatile memory, with entries as x86 has them:
//! frame number and flags in an aligned word, so that an entry changes as a
//! whole or not at all.

use crate::fault::Fault;
use crate::nvm::{Frame, Nvm};
use crate::pmem::{Persist, WORDS};

/// The entry is in use.
pub const PRESENT: u64 = 1;
/// Stores are allowed.
pub const WRITABLE: u64 = 2;

/// The frame of an entry.
pub fn frame_of(entry: u64) -> Frame {
    Frame(entry >> 12)
}

/// An entry for a frame.
pub fn entry_for(frame: Frame, writable: bool) -> u64 {
    frame.0 << 12 | PRESENT | if writable { WRITABLE } else { 0 }
}

/// Pages that one table of the last level maps.
const FANOUT: u64 = 512;

/// A table; it lies in memory alone.
#[derive(Clone, Copy, Debug, Default)]
pub struct Table;

impl Table {
    /// The entry's address if all its tables are there.
    fn find(nvm: &mut Nvm, page: u64) -> Option<u64> {
        let mut table = nvm.root();
        for level in (0..4).rev() {
            if table & PRESENT == 0 {
                return None;
            }
            let index = page >> (9 * level) & (FANOUT - 1);
            let address = frame_of(table).address() + index * 8;
            if level == 0 {
                return Some(address);
            }
            table = nvm.pmem.load(address);
        }
        None
    }

    /// A page's entry; 0 if it has none.
    pub fn get(nvm: &mut Nvm, page: u64) -> u64 {
        Self::find(nvm, page).map_or(0, |address| nvm.pmem.load(address))
    }

    /// Stores an entry; durable after the next fence. Tables that are missing
    /// are made, each zeroed durably before anything points to it.
    pub fn set(nvm: &mut Nvm, page: u64, entry: u64) -> Persist {
        let mut table = nvm.root();
        if table & PRESENT == 0 {
            table = Self::make(nvm, Nvm::set_root)?;
        }
        for level in (1..4).rev() {
            let index = page >> (9 * level) & (FANOUT - 1);
            let address = frame_of(table).address() + index * 8;
            table = nvm.pmem.load(address);
            if table & PRESENT == 0 {
                table = Self::make(nvm, |nvm, entry| nvm.pmem.persist(address, entry))?;
            }
        }
        let address = frame_of(table).address() + (page & (FANOUT - 1)) * 8;
        nvm.pmem.store(address, entry);
        nvm.flush_metadata(address);
        Ok(())
    }

    /// Stores an entry that is there already, for the caches alone.
    pub fn set_unflushed(nvm: &mut Nvm, page: u64, entry: u64) -> Persist {
        if let Some(address) = Self::find(nvm, page) {
            nvm.pmem.store(address, entry);
        }
        Ok(())
    }

    fn make(nvm: &mut Nvm, link: impl Fn(&mut Nvm, u64) -> Persist) -> Persist<u64> {
        let frame = nvm.frames.allocate(&mut nvm.pmem);
        let entry = entry_for(frame, true);
        if nvm.pmem.has_fault(Fault::ParentBeforeChild) {
            link(nvm, entry)?;
            nvm.pmem.zero_page(frame.address());
            return Ok(entry);
        }
        nvm.pmem.zero_page(frame.address());
        nvm.pmem.fence()?;
        link(nvm, entry)?;
        Ok(entry)
    }

    /// All present entries by page, and the frames of the tables themselves.
    pub fn walk(nvm: &mut Nvm) -> (Vec<(u64, u64)>, Vec<Frame>) {
        let (mut entries, mut tables) = (Vec::new(), Vec::new());
        let root = nvm.root();
        Self::descend(nvm, root, 3, 0, &mut entries, &mut tables);
        (entries, tables)
    }

    fn descend(
        nvm: &mut Nvm,
        table: u64,
        level: u32,
        first: u64,
        entries: &mut Vec<(u64, u64)>,
        tables: &mut Vec<Frame>,
    ) {
        // Remains may point in circles; a sound table is a tree of few frames.
        if table & PRESENT == 0 || tables.len() > 4096 {
            return;
        }
        tables.push(frame_of(table));
        let base = frame_of(table).address();
        for start in (0..FANOUT).step_by(WORDS) {
            // A line is looked up once for all its entries, which nothing changes meanwhile: each crash is
            // followed by several walks, and most entries are empty. The costs are those of eight loads.
            let words = nvm.pmem.peek_line(base + start * 8);
            for (index, entry) in (start..).zip(words) {
                nvm.pmem.pay_load(base + index * 8);
                if entry & PRESENT == 0 {
                    continue;
                }
                let page = first | index << (9 * level);
                if level == 0 {
                    entries.push((page, entry));
                } else {
                    Self::descend(nvm, entry, level - 1, page, entries, tables);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pmem::Pmem;

    /// Recovery is timed by what it reads.
    #[test]
    fn a_walk_finds_what_was_set_and_pays_for_every_entry() {
        let mut nvm = Nvm::format(Pmem::used(), 64).expect("the power stays");
        let pages = [0, 7, 8, 511, 512, 1 << 18, 1 << 27];
        for page in pages {
            Table::set(&mut nvm, page, entry_for(Frame(page % 50), page != 8)).expect("the same");
        }
        nvm.pmem.fence().expect("the same");
        // What follows is in the caches alone.
        Table::set(&mut nvm, 9, entry_for(Frame(9), true)).expect("the same");
        Table::set(&mut nvm, 7, 0).expect("the same");

        let before = nvm.pmem.counts().loads;
        let (entries, tables) = Table::walk(&mut nvm);
        let loads = nvm.pmem.counts().loads - before;

        let found: Vec<u64> = entries.iter().map(|(page, _)| *page).collect();
        assert_eq!(found, [0, 8, 9, 511, 512, 1 << 18, 1 << 27]);
        for (page, entry) in entries {
            assert_eq!(entry, Table::get(&mut nvm, page), "page {page:#x}");
        }
        // The root of all is in the header.
        assert_eq!(loads, 1 + tables.len() as u64 * FANOUT);
    }
}
