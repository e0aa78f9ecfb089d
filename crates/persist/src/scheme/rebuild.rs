//! Tables in DRAM, rebuilt after a failure from a mapping in NVM that
//! checkpoints keep up to date.
//!
//! Changes go through a redo log: first the changed entries are logged, then
//! the checkpoint is committed, then the entries are applied. A failure in
//! between finds log and commit in agreement and applies them again.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::hash::BuildHasherDefault;

use super::Scheme;
use crate::fault::Fault;
use crate::nvm::{Frame, LogRecord, Nvm, layout};
use crate::pmem::{LineHasher, Persist};
use crate::table::{PRESENT, Table};

/// How the mapping lies in NVM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// As published: a list of 2 MB areas, each with a list of up to 512
    /// pages. Each checkpoint goes over every page of every area and searches
    /// the list for it twice.
    List,
    /// A radix tree; each checkpoint writes what changed since the last.
    Indexed,
}

/// Pages of one node of the published list.
const NODE: u64 = 512;

/// The scheme's state in DRAM.
#[derive(Debug)]
pub struct Rebuild {
    form: Form,
    table: HashMap<u64, u64, BuildHasherDefault<LineHasher>>,
    changed: BTreeSet<u64>,
    /// Where each page stands in the list; what a search finds.
    places: HashMap<u64, u64>,
    logged: Vec<LogRecord>,
    /// For a seeded fault: pages that were ever written.
    known: HashSet<u64>,
}

impl Rebuild {
    /// The scheme in one of its forms.
    pub fn new(form: Form) -> Self {
        Self {
            form,
            table: HashMap::default(),
            changed: BTreeSet::new(),
            places: HashMap::new(),
            logged: Vec::new(),
            known: HashSet::new(),
        }
    }

    fn apply(&mut self, nvm: &mut Nvm, record: LogRecord) -> Persist {
        if self.form == Form::Indexed {
            return Table::set(nvm, record.page, record.entry);
        }
        let next = self.places.len() as u64;
        let place = *self.places.entry(record.page).or_insert(next);
        let address = layout::LIST + 64 + place * 16;
        nvm.pmem.store(address, record.page);
        nvm.pmem.store(address + 8, record.entry);
        nvm.flush_metadata(address);
        if place == next {
            // The page is durable before the length says that it is there.
            nvm.pmem.fence()?;
            nvm.pmem.persist(layout::LIST, next + 1)?;
        }
        Ok(())
    }

    /// The durable mapping.
    fn read(&mut self, nvm: &mut Nvm) -> (Vec<(u64, u64)>, Vec<Frame>) {
        if self.form == Form::Indexed {
            return Table::walk(nvm);
        }
        self.places.clear();
        let mut entries = Vec::new();
        for place in 0..nvm.pmem.load(layout::LIST).min(1 << 20) {
            let address = layout::LIST + 64 + place * 16;
            let (page, entry) = (nvm.pmem.load(address), nvm.pmem.load(address + 8));
            self.places.insert(page, place);
            if entry & PRESENT != 0 {
                entries.push((page, entry));
            }
        }
        (entries, Vec::new())
    }
}

impl Scheme for Rebuild {
    fn name(&self) -> &'static str {
        match self.form {
            Form::List => "rebuild-list",
            Form::Indexed => "rebuild-indexed",
        }
    }

    fn lookup(&mut self, nvm: &mut Nvm, page: u64) -> u64 {
        nvm.pmem.spend(|costs| costs.word);
        self.table.get(&page).copied().unwrap_or(0)
    }

    fn set(&mut self, nvm: &mut Nvm, page: u64, entry: u64) -> Persist {
        nvm.pmem.spend(|costs| costs.word);
        if entry & PRESENT == 0 {
            self.table.remove(&page);
        } else {
            self.table.insert(page, entry);
        }
        self.changed.insert(page);
        Ok(())
    }

    fn prepare(
        &mut self,
        nvm: &mut Nvm,
        epoch: u64,
        pages: &mut dyn Iterator<Item = u64>,
    ) -> Persist {
        if self.form == Form::List {
            // The published search, counted and not carried out: its result is
            // known. A step goes along the list of nodes, then along a node's
            // own; a page that is not there is sought to the end of both, and
            // appended.
            let mut length = self.places.len() as u64;
            let mut steps = 0;
            for page in pages.filter(|page| self.table.contains_key(page)) {
                let place = self.places.get(&page).copied().unwrap_or_else(|| {
                    length += 1;
                    length - 1
                });
                steps += 2 * (place / NODE + place % NODE + 1);
            }
            nvm.pmem.visit(steps);
        }
        self.logged.clear();
        for &page in &self.changed {
            let entry = self.table.get(&page).copied().unwrap_or(0);
            if nvm.pmem.has_fault(Fault::StaleMapping) {
                // Removed pages stay, and a page that is there keeps its frame.
                if entry == 0 || !self.known.insert(page) {
                    continue;
                }
            }
            self.logged.push(LogRecord { page, entry });
        }
        for record in &self.logged {
            nvm.log.append(&mut nvm.pmem, epoch, *record);
        }
        self.changed.clear();
        nvm.pmem.fence()
    }

    fn committed(&mut self, nvm: &mut Nvm, _: u64) -> Persist {
        for record in std::mem::take(&mut self.logged) {
            self.apply(nvm, record)?;
        }
        nvm.pmem.fence()?;
        nvm.log.clear();
        Ok(())
    }

    fn recover(&mut self, nvm: &mut Nvm, epoch: u64) -> Persist {
        if self.form == Form::List {
            self.read(nvm);
        }
        for record in nvm.log.read(&mut nvm.pmem, epoch) {
            self.apply(nvm, record)?;
        }
        nvm.pmem.fence()?;
        let (entries, _) = self.read(nvm);
        self.table = entries.into_iter().collect();
        Ok(())
    }

    fn mappings(&mut self, nvm: &mut Nvm) -> (Vec<(u64, u64)>, Vec<Frame>) {
        let frames = if self.form == Form::Indexed { Table::walk(nvm).1 } else { Vec::new() };
        let mut entries: Vec<(u64, u64)> = self.table.iter().map(|(p, e)| (*p, *e)).collect();
        entries.sort_unstable();
        (entries, frames)
    }
}
