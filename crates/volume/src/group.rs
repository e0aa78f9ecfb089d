//! Group commit: where a fence takes longer than many writes, they share it.
//!
//! The map is kept in memory, and the medium's copy follows in commits: all data that were written
//! since the last one become durable; then the entries are stored; then they become durable; then
//! the blocks that they replaced are free. The kernel may write any page at any time in between:
//! no entry is stored before its data are durable, and no block that a durable entry names is
//! written.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError, RwLock, RwLockReadGuard};

use crate::entry::{Block, Entry};
use crate::error::{Result, VolumeError};
use crate::pm::{Cpu, Fault, Pm};
use crate::volume::Volume;

/// What the next commit makes durable.
#[derive(Debug, Default)]
struct Pending {
    changed: Vec<u64>,
    replaced: Vec<Block>,
}

/// Who hears at once that a commit has failed.
pub(crate) struct Told(Box<dyn Fn(&VolumeError) + Send + Sync>);

impl core::fmt::Debug for Told {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Told")
    }
}

/// The map in memory, and what of it is not durable.
#[derive(Debug)]
pub(crate) struct Group {
    map: Vec<AtomicU64>,
    /// Shared by writes from before their data to after their entries: a commit that holds it
    /// alone sees no half of a write.
    gate: RwLock<()>,
    pending: Mutex<Pending>,
    commit: Mutex<()>,
    started: AtomicU64,
    failed: AtomicBool,
    told: OnceLock<Told>,
}

impl Group {
    pub(crate) fn new(map: Vec<Entry>) -> Self {
        Self {
            map: map.into_iter().map(|entry| AtomicU64::new(entry.0)).collect(),
            gate: RwLock::default(),
            pending: Mutex::default(),
            commit: Mutex::default(),
            started: AtomicU64::new(0),
            failed: AtomicBool::new(false),
            told: OnceLock::new(),
        }
    }

    /// See [`Volume::tell_failure`].
    pub(crate) fn tell_failure(&self, told: impl Fn(&VolumeError) + Send + Sync + 'static) {
        // The first one is told.
        let _ = self.told.set(Told(Box::new(told)));
    }

    pub(crate) fn entry(&self, lba: u64) -> Entry {
        Entry(self.map[lba as usize].load(Ordering::Acquire))
    }

    pub(crate) fn exchange(
        &self,
        lba: u64,
        current: Entry,
        new: Entry,
    ) -> std::result::Result<(), Entry> {
        let entry = &self.map[lba as usize];
        entry
            .compare_exchange(current.0, new.0, Ordering::AcqRel, Ordering::Acquire)
            .map(|_| ())
            .map_err(Entry)
    }

    /// For the time of a write.
    pub(crate) fn enter(&self) -> Result<RwLockReadGuard<'_, ()>> {
        let inside = self.gate.read().unwrap_or_else(PoisonError::into_inner);
        if self.failed.load(Ordering::Relaxed) { Err(VolumeError::Failed) } else { Ok(inside) }
    }

    /// A sector changed, inside of [`Group::enter`]; its block until then is free after the next
    /// commit.
    pub(crate) fn changed(&self, lba: u64, replaced: Option<Block>) {
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        pending.changed.push(lba);
        pending.replaced.extend(replaced);
    }

    /// Makes durable what was written before the call. Calls at the same time share commits.
    pub(crate) fn commit<P: Pm>(&self, volume: &Volume<P>, cpu: Cpu) -> Result {
        let before = self.started.load(Ordering::SeqCst);
        let _one = self.commit.lock().unwrap_or_else(PoisonError::into_inner);
        if self.failed.load(Ordering::Relaxed) {
            return Err(VolumeError::Failed);
        }
        if self.started.load(Ordering::SeqCst) > before {
            // A commit that began after the call has just ended.
            return Ok(());
        }
        self.started.fetch_add(1, Ordering::SeqCst);
        let (entries, replaced) = {
            let _alone = self.gate.write().unwrap_or_else(PoisonError::into_inner);
            let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
            let Pending { mut changed, replaced } = std::mem::take(&mut *pending);
            changed.sort_unstable();
            changed.dedup();
            let entries: Vec<_> = changed.into_iter().map(|lba| (lba, self.entry(lba))).collect();
            (entries, replaced)
        };
        if entries.is_empty() {
            return Ok(());
        }
        let stored = store(volume, cpu, &entries);
        if let Err(e) = &stored {
            // The kernel forgets what it could not write, so that a second try would succeed and
            // mean nothing.
            self.failed.store(true, Ordering::Relaxed);
            if let Some(Told(tell)) = self.told.get() {
                tell(e);
            }
        } else if !volume.pm.has_fault(Fault::EarlyReuse) {
            let mut free = volume.free();
            for block in replaced {
                free.give(block);
            }
        }
        stored
    }
}

fn store<P: Pm>(volume: &Volume<P>, cpu: Cpu, entries: &[(u64, Entry)]) -> Result {
    if !volume.pm.has_fault(Fault::NoDataFence) {
        volume.pm.fence(cpu)?;
    }
    let mut bytes = Vec::new();
    for run in entries.chunk_by(|a, b| a.0 + 1 == b.0) {
        bytes.clear();
        bytes.extend(run.iter().flat_map(|(_, entry)| entry.0.to_le_bytes()));
        volume.pm.write(cpu, volume.superblock.entry_at(run[0].0), &bytes)?;
    }
    if !volume.pm.has_fault(Fault::NoMapWriteBack) {
        volume.pm.fence(cpu)?;
    }
    Ok(())
}
