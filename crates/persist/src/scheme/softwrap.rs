//! `SoftWrAP`: transactional persistence by a user-level library (Giles, Doshi
//! and Varman, MSST 2015, "`SoftWrAP`: A lightweight framework for transactional
//! support of storage class memory").
//!
//! A store in a transaction goes to a log in NVM, by a store that streams past
//! the caches, and to an alias table in DRAM; its home is left alone. Loads ask
//! the alias table first. The commit waits for the log; after it the values are
//! written home (retired), and the log begins anew. Here an interval is one
//! transaction, and retirement is done by the same core at its end: the
//! machines that are compared have one.

use std::collections::HashMap;

use super::{Form, Rebuild, Scheme};
use crate::fault::Fault;
use crate::nvm::{Frame, Log, LogRecord, Nvm, layout};
use crate::pmem::{LINE, Persist};
use crate::table::frame_of;

/// The scheme's state in DRAM.
#[derive(Debug)]
pub struct SoftWrap {
    tables: Rebuild,
    log: Log,
    /// Values that are not home yet, by address.
    alias: HashMap<u64, u64>,
    /// The last complete checkpoint.
    epoch: u64,
    logged: u64,
    retired: u64,
}

impl Default for SoftWrap {
    fn default() -> Self {
        Self::new()
    }
}

impl SoftWrap {
    /// A scheme for a memory that is new or is to be recovered.
    pub fn new() -> Self {
        Self {
            tables: Rebuild::new(Form::Indexed),
            log: Log::new(layout::DATA_LOG, layout::DATA_LOG_RECORDS, 1),
            alias: HashMap::new(),
            epoch: 0,
            logged: 0,
            retired: 0,
        }
    }

    /// The log is of the life that the memory is in.
    fn live(&mut self, nvm: &Nvm) {
        if self.log.life() != nvm.log.life() {
            self.log = Log::new(layout::DATA_LOG, layout::DATA_LOG_RECORDS, nvm.log.life());
        }
    }

    /// Writes values home, durably.
    fn retire(nvm: &mut Nvm, values: impl IntoIterator<Item = (u64, u64)>) -> Persist {
        let mut lines: Vec<u64> = Vec::new();
        for (address, value) in values {
            nvm.pmem.store_data(address, value);
            lines.push(address / LINE * LINE);
        }
        lines.sort_unstable();
        lines.dedup();
        for line in lines {
            nvm.flush_data(line);
        }
        nvm.pmem.fence()
    }
}

impl Scheme for SoftWrap {
    fn name(&self) -> &'static str {
        "softwrap"
    }

    fn lookup(&mut self, nvm: &mut Nvm, page: u64) -> u64 {
        self.tables.lookup(nvm, page)
    }

    fn set(&mut self, nvm: &mut Nvm, page: u64, entry: u64) -> Persist {
        self.tables.set(nvm, page, entry)
    }

    fn prepare(&mut self, nvm: &mut Nvm, epoch: u64, _: &mut dyn Iterator<Item = u64>) -> Persist {
        self.tables.prepare(nvm, epoch, &mut std::iter::empty())?;
        nvm.pmem.fence()
    }

    fn committed(&mut self, nvm: &mut Nvm, epoch: u64) -> Persist {
        let mut values: Vec<(u64, u64)> = self.alias.drain().collect();
        values.sort_unstable();
        let early = nvm.pmem.has_fault(Fault::EarlyTruncation);
        if early {
            nvm.set_applied(epoch)?;
        }
        self.retired += values.len() as u64;
        Self::retire(nvm, values)?;
        if !early {
            nvm.set_applied(epoch)?;
        }
        self.epoch = epoch;
        self.log.clear();
        self.tables.committed(nvm, epoch)
    }

    fn recover(&mut self, nvm: &mut Nvm, epoch: u64) -> Persist {
        self.tables.recover(nvm, epoch)?;
        self.live(nvm);
        self.alias.clear();
        self.epoch = epoch;
        if nvm.applied() < epoch {
            let records = self.log.read(&mut nvm.pmem, epoch);
            Self::retire(nvm, records.into_iter().map(|record| (record.page, record.entry)))?;
            nvm.set_applied(epoch)?;
        }
        Ok(())
    }

    fn mappings(&mut self, nvm: &mut Nvm) -> (Vec<(u64, u64)>, Vec<Frame>) {
        self.tables.mappings(nvm)
    }

    fn keeps_data(&self) -> bool {
        true
    }

    fn store(
        &mut self,
        nvm: &mut Nvm,
        entry: u64,
        offset: u64,
        value: u64,
    ) -> Persist<Option<u64>> {
        self.live(nvm);
        let address = frame_of(entry).address() + offset;
        nvm.pmem.alias(address, true);
        self.log.append(&mut nvm.pmem, self.epoch + 1, LogRecord { page: address, entry: value });
        if nvm.pmem.has_fault(Fault::UncommittedOverwrite) {
            nvm.pmem.store_data(address, value);
        }
        self.logged += 1;
        self.alias.insert(address, value);
        Ok(None)
    }

    fn load(&mut self, nvm: &mut Nvm, entry: u64, offset: u64) -> u64 {
        let address = frame_of(entry).address() + offset;
        nvm.pmem.alias(address, false);
        match self.alias.get(&address) {
            Some(value) => *value,
            None => nvm.pmem.load_data(address),
        }
    }

    fn work(&self) -> Vec<(&'static str, u64)> {
        vec![("words logged", self.logged), ("words written home", self.retired)]
    }

    fn is_full(&self) -> bool {
        self.log.is_full()
    }
}
