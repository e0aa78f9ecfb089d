//! Persistence schemes: how the mapping from pages to frames survives.
//!
//! A scheme answers lookups while the process runs, and brings the mapping of
//! the last complete checkpoint back after a failure. Everything else
//! (context, allocator, log, when frames may be reused) is common: see
//! [`crate::System`].
//!
//! | scheme | tables | durable |
//! |---|---|---|
//! | [`Ssp`] | in DRAM, rebuilt | data, too: lines alternate between two frames, bitmaps say which is current, a journal commits all bitmaps together |
//! | [`SoftWrap`] | in DRAM, rebuilt | data, too: stores go to a log and an alias table in DRAM, and home after the commit |
//! | [`PersistentTables`] | in NVM | each entry at once, with an undo log for what the last checkpoint needs |
//! | [`Rebuild`], indexed | in DRAM | entries that changed, at checkpoints, by a redo log into a radix tree |
//! | [`Rebuild`], list | in DRAM | the published form: every page of every area is looked up in a linear list at each checkpoint |

mod persistent;
mod rebuild;
mod softwrap;
mod ssp;

pub use persistent::PersistentTables;
pub use rebuild::{Form, Rebuild};
pub use softwrap::SoftWrap;
pub use ssp::{FlushScope, Ssp, SspConfig, SspCounts};

use crate::nvm::{Frame, Nvm};
use crate::pmem::Persist;
use crate::table::frame_of;

/// How a mapping survives, and (for some schemes) the data in its pages.
pub trait Scheme: core::fmt::Debug {
    /// What it is called.
    fn name(&self) -> &'static str;

    /// A page's entry in the running process; 0 if it has none.
    fn lookup(&mut self, nvm: &mut Nvm, page: u64) -> u64;

    /// Sets a page's entry (0 removes it) in the running process.
    ///
    /// When it returns, the durable state must still lead back to the mapping
    /// of the last complete checkpoint. The frame, its bit in the bitmap and
    /// its zeros are durable before.
    fn set(&mut self, nvm: &mut Nvm, page: u64, entry: u64) -> Persist;

    /// Makes durable whatever is needed for the mapping to survive once the
    /// checkpoint `epoch` is committed; what is needed for the one before must
    /// stay. `pages` are the pages of all areas, in order.
    fn prepare(
        &mut self,
        nvm: &mut Nvm,
        epoch: u64,
        pages: &mut dyn Iterator<Item = u64>,
    ) -> Persist;

    /// The checkpoint `epoch` is committed; what only the one before needed can go.
    fn committed(&mut self, nvm: &mut Nvm, epoch: u64) -> Persist;

    /// After a failure: restores the mapping of checkpoint `epoch`, the last
    /// that was committed. May itself be cut short and be called again.
    fn recover(&mut self, nvm: &mut Nvm, epoch: u64) -> Persist;

    /// The mapping of the running process, by page, and the frames that the
    /// scheme uses for itself.
    fn mappings(&mut self, nvm: &mut Nvm) -> (Vec<(u64, u64)>, Vec<Frame>);

    /// Whether a failure leads back to the data of the last checkpoint, and
    /// not to its mapping alone.
    fn keeps_data(&self) -> bool {
        false
    }

    /// Stores a word of a mapped page; returns an address whose line the next
    /// checkpoint must write back before anything else.
    fn store(
        &mut self,
        nvm: &mut Nvm,
        entry: u64,
        offset: u64,
        value: u64,
    ) -> Persist<Option<u64>> {
        let address = frame_of(entry).address() + offset;
        nvm.pmem.store_data(address, value);
        Ok(Some(address))
    }

    /// Reads a word of a mapped page.
    fn load(&mut self, nvm: &mut Nvm, entry: u64, offset: u64) -> u64 {
        nvm.pmem.load_data(frame_of(entry).address() + offset)
    }

    /// A frame was taken for a page; it is mapped after the next fence.
    fn taken(&mut self, _: &mut Nvm, _: Frame) {}

    /// A frame is about to be given back; no checkpoint needs it any more.
    fn released(&mut self, _: &mut Nvm, _: Frame) {}

    /// Work of a thread in the background.
    fn background(&mut self, _: &mut Nvm) -> Persist {
        Ok(())
    }

    /// What it did so far that is worth telling, by name.
    fn work(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }

    /// Whether there must be a checkpoint before the next store.
    fn is_full(&self) -> bool {
        false
    }
}

/// Schemes by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SchemeKind {
    /// [`PersistentTables`]
    Persistent,
    /// [`Rebuild`] in the published form.
    RebuildList,
    /// [`Rebuild`] in our form.
    RebuildIndexed,
    /// [`Ssp`]
    Ssp,
    /// [`SoftWrap`]
    SoftWrap,
}

impl SchemeKind {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::Persistent, Self::RebuildList, Self::RebuildIndexed, Self::Ssp, Self::SoftWrap];
    /// Those that keep the mapping alone: what Figure 4 and Table 3 of Kindle compare.
    pub const MAPPING: [Self; 3] = [Self::Persistent, Self::RebuildList, Self::RebuildIndexed];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Persistent => "persistent",
            Self::RebuildList => "rebuild-list",
            Self::RebuildIndexed => "rebuild-indexed",
            Self::Ssp => "ssp",
            Self::SoftWrap => "softwrap",
        }
    }

    /// A scheme of this kind, for a memory that is new or is to be recovered.
    pub fn make(self) -> Box<dyn Scheme> {
        match self {
            Self::Persistent => Box::new(PersistentTables::default()),
            Self::RebuildList => Box::new(Rebuild::new(Form::List)),
            Self::RebuildIndexed => Box::new(Rebuild::new(Form::Indexed)),
            Self::Ssp => Box::new(Ssp::new(SspConfig::KINDLE)),
            Self::SoftWrap => Box::new(SoftWrap::new()),
        }
    }

    /// The same with a TLB so small that programs of a few pages overflow it:
    /// for crashes.
    pub fn make_small(self) -> Box<dyn Scheme> {
        match self {
            Self::Ssp => Box::new(Ssp::new(SspConfig { tlb_entries: 2, ..SspConfig::KINDLE })),
            _ => self.make(),
        }
    }
}
