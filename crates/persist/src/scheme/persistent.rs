//! Tables in NVM, durable entry by entry.
//!
//! Kindle's code has no log for entries: an entry that is replaced after a
//! checkpoint is lost to it. Here the old entry goes into an undo log before
//! the new one is stored; entries of pages that the checkpoint does not know
//! need none.

use std::collections::HashSet;

use super::Scheme;
use crate::fault::Fault;
use crate::nvm::{Frame, LogRecord, Nvm};
use crate::pmem::Persist;
use crate::table::{PRESENT, Table};

/// The scheme's state in DRAM.
#[derive(Debug, Default)]
pub struct PersistentTables {
    /// Pages whose entry at the last checkpoint is safe: logged, or there was none.
    safe: HashSet<u64>,
    /// The checkpoint that is being worked towards.
    epoch: u64,
}

impl Scheme for PersistentTables {
    fn name(&self) -> &'static str {
        "persistent"
    }

    fn lookup(&mut self, nvm: &mut Nvm, page: u64) -> u64 {
        Table::get(nvm, page)
    }

    fn set(&mut self, nvm: &mut Nvm, page: u64, entry: u64) -> Persist {
        let stale = nvm.pmem.has_fault(Fault::StaleMapping);
        let old = Table::get(nvm, page);
        // A page without an entry is logged, too: recovery must remove what came later.
        if self.safe.insert(page) && !stale {
            let epoch = self.epoch + 1;
            nvm.log.append(&mut nvm.pmem, epoch, LogRecord { page, entry: old });
            nvm.pmem.fence()?;
        }
        if stale && entry & PRESENT == 0 {
            // Only the cache learns of it.
            return Table::set_unflushed(nvm, page, entry);
        }
        Table::set(nvm, page, entry)?;
        nvm.pmem.fence()
    }

    fn prepare(&mut self, _: &mut Nvm, _: u64, _: &mut dyn Iterator<Item = u64>) -> Persist {
        Ok(())
    }

    fn committed(&mut self, nvm: &mut Nvm, epoch: u64) -> Persist {
        self.safe.clear();
        self.epoch = epoch;
        nvm.log.clear();
        Ok(())
    }

    fn recover(&mut self, nvm: &mut Nvm, epoch: u64) -> Persist {
        self.epoch = epoch;
        // Each page is logged once; cut short, the same records are applied again.
        for record in nvm.log.read(&mut nvm.pmem, epoch + 1) {
            // A page that never came to be needs no tables now.
            if Table::get(nvm, record.page) != record.entry {
                Table::set(nvm, record.page, record.entry)?;
            }
        }
        nvm.pmem.fence()
    }

    fn mappings(&mut self, nvm: &mut Nvm) -> (Vec<(u64, u64)>, Vec<Frame>) {
        Table::walk(nvm)
    }
}
