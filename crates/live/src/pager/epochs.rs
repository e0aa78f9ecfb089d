//! Epochs: who is at work says since when, so that a region is freed only when nobody can be using it,
//! and a freeze begins only when nobody is in the middle of something.

use core::sync::atomic::Ordering::*;

use crate::pager::Pager;
use crate::sys::spin::backoff;

impl Pager {
    /// Begins work that uses regions; false while frozen.
    pub fn enter(&self, worker: usize) -> bool {
        self.workers[worker].busy.store(self.regions.epoch(), SeqCst);
        !self.freeze.is_on()
    }

    /// Ends it.
    pub fn leave(&self, worker: usize) {
        self.workers[worker].busy.store(0, Release);
    }

    /// Waits until no worker but this one is at work.
    pub fn wait_quiet(&self, except: usize) {
        for (i, worker) in self.workers.iter().enumerate() {
            let mut spins = 0;
            while i != except && worker.busy.load(SeqCst) != 0 && !self.is_abandoned() {
                backoff(&mut spins);
            }
        }
    }

    /// The oldest epoch that a worker still uses.
    pub fn oldest_epoch(&self) -> u64 {
        self.workers
            .iter()
            .map(|w| w.busy.load(SeqCst))
            .filter(|&e| e != 0)
            .min()
            .unwrap_or(u64::MAX)
    }
}
