//! What is kept of processes that have ended while the run goes on.
//!
//! A service may start some thousand processes a day, and each has a file with its statistics.
//! Those of the last ones that mattered stay; of the others the figures go into one page
//! together, and their files go.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;

use terrace_live::stats::process_page::{ProcessPage, State, process_namespace};

use crate::runs::{STATISTICS, TOTALS};

/// Processes that have ended whose pages stay.
pub(super) const MOST_ENDED: usize = 64;

/// The page of those of which nothing else is left.
pub(super) struct Ended {
    directory: PathBuf,
    /// Locked while files get other names, or figures go from one page to another: others see each
    /// page once.
    file: File,
    page: &'static ProcessPage,
    namespace: u64,
    /// How many have ended.
    count: u64,
}

impl Ended {
    /// None yet.
    pub(super) fn new(directory: &Path) -> io::Result<Self> {
        let path = directory.join(TOTALS);
        let page = ProcessPage::create(&path)?;
        // Of no process. Nobody looks yet.
        page.pid.store(0, Relaxed);
        let file = File::open(&path)?;
        let namespace = process_namespace();
        Ok(Self { directory: directory.to_owned(), file, page, namespace, count: 0 })
    }

    /// The figures.
    pub(super) fn page(&self) -> &ProcessPage {
        self.page
    }

    /// Whether a process's number says which one it is: in another name space it is another's.
    pub(super) fn knows(&self, page: &ProcessPage) -> bool {
        let namespace = page.namespace.load(Relaxed);
        namespace != 0 && namespace == self.namespace
    }

    /// What its process had, it has no longer. Its page gets another name, under which no process
    /// that is given the same number can find it; returns that name, or `None` if it has kept its
    /// own.
    pub(super) fn has_ended(&mut self, page: &ProcessPage, path: &Path) -> Option<PathBuf> {
        page.ended.store(1, Relaxed);
        self.count += 1;
        let name = format!("{}-{}.{STATISTICS}", page.pid(), self.count);
        let to = self.directory.join(name);
        self.unseen(|| fs::rename(path, &to).is_ok()).then_some(to)
    }

    /// Takes the figures of a page in, and removes it; false if that could not be done now.
    pub(super) fn take_in(&self, page: &ProcessPage, path: &Path) -> bool {
        self.unseen(|| {
            let removed = fs::remove_file(path).is_ok();
            if removed {
                self.page.take_in(page);
            }
            removed
        })
    }

    /// Does something to the files that nobody sees half of; false if somebody looks just now, or
    /// it was not done. It does not wait: who looks may be stopped for as long as he likes.
    fn unseen(&self, work: impl FnOnce() -> bool) -> bool {
        if self.file.try_lock().is_err() {
            return false;
        }
        let done = work();
        // It was locked by us.
        let _ = self.file.unlock();
        done
    }

    /// Notes how much all processes together have, for the most that they had at once. What is
    /// resident the broker adds up.
    pub(super) fn look<'a>(&self, pages: impl Iterator<Item = &'a ProcessPage>) {
        let living: Vec<_> = pages.filter(|page| !page.has_ended()).collect();
        let mapped = living.iter().map(|page| page.counters.mapped_bytes.load(Relaxed)).sum();
        let store = ProcessPage::store_of(living);
        let most = &self.page.counters;
        most.mapped_peak_bytes.fetch_max(mapped, Relaxed);
        most.store_peak_bytes.fetch_max(store, Relaxed);
    }
}

/// How much it matters to keep a process's own page: why it was given up, before how long it
/// waited.
pub(super) fn importance(page: &ProcessPage) -> impl Ord + use<> {
    (page.state() == State::Failed, page.waited())
}
