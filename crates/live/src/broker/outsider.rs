//! A run whose faults the kernel serves, as one of those that share a budget: all its processes
//! together have one slot, that of the command that keeps them within it.
//!
//! It has no pager, so nothing of [`member`](super::member) applies: its share is a budget like any
//! other, told ten times a second or so, and followed as fast as memory leaves.

use core::sync::atomic::Ordering::*;
use std::io;
use std::path::Path;

use terrace_core::Bytes;

use super::page::{BrokerPage, Slot};
use super::share::LEAST;

/// What a run asks for beyond what it has, while it grows: a quarter, and this at least.
const MORE: Bytes = Bytes::mib(32);

/// The run's side.
#[derive(Debug)]
pub struct Outsider {
    page: &'static BrokerPage,
    slot: &'static Slot,
}

/// What a run says of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Has {
    /// In DRAM, of what can be swapped.
    pub resident: Bytes,
    /// In swap.
    pub absent: Bytes,
    /// Pages that came back, ever.
    pub refaults: u64,
}

impl Outsider {
    /// Takes a slot for this process in the page of a broker.
    ///
    /// # Errors
    /// If the page is not a broker's, or has no slot left.
    pub fn join(path: &Path) -> io::Result<Self> {
        let page = BrokerPage::open(path)?;
        let own = std::process::id();
        let slot = page.claim(own).ok_or_else(|| {
            io::Error::new(io::ErrorKind::QuotaExceeded, "so many processes share it already")
        })?;
        slot.forget();
        slot.family.store(own, Relaxed);
        slot.want.store(MORE.get(), SeqCst);
        slot.managed.store(1, Release);
        page.ring();
        Ok(Self { page, slot })
    }

    /// Says what the run has, and is told what it may have from now on. A broker that is gone
    /// leaves the last share.
    pub fn follow(&self, has: Has) -> Bytes {
        let all = has.resident + has.absent;
        let want = all + MORE.max(all / 4);
        let old = self.slot.want.swap(want.get(), SeqCst);
        self.slot.resident.store(has.resident.get(), Relaxed);
        self.slot.absent.store(has.absent.get(), Relaxed);
        self.slot.refaults.store(has.refaults, Relaxed);
        // Others are given what has left, and not what is about to.
        let share = self.slot.grant.load(SeqCst);
        let held = share.max(has.resident.get().min(self.slot.held.load(Relaxed)));
        self.slot.held.store(held, SeqCst);
        if old.abs_diff(want.get()) > LEAST.get() {
            self.page.ring();
        }
        Bytes(share).max(LEAST)
    }

    /// What the run may have.
    pub fn share(&self) -> Bytes {
        Bytes(self.slot.grant.load(SeqCst)).max(LEAST)
    }
}

impl Drop for Outsider {
    fn drop(&mut self) {
        // The slot is emptied by the broker when this process has ended.
        self.slot.forget();
        self.page.ring();
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::super::keeper::Broker;
    use super::super::page::FILE;
    use super::*;

    fn until(what: impl Fn() -> bool) -> bool {
        let end = Instant::now() + Duration::from_secs(20);
        while !what() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(5));
        }
        what()
    }

    #[test]
    fn a_run_has_as_much_as_it_can_use_of_a_budget_and_gives_it_back_at_its_end() {
        let directory = tempfile::tempdir().unwrap();
        let broker = Broker::start(directory.path(), Bytes::mib(256)).unwrap();
        let path = directory.path().join(FILE);
        let run = Outsider::join(&path).unwrap();
        let has = Has { resident: Bytes::mib(20), absent: Bytes::mib(380), refaults: 10 };

        assert!(until(|| run.follow(has) >= Bytes::mib(200)), "{}", run.follow(has));
        assert!(run.share() <= Bytes::mib(256));
        assert!(broker.summary().processes >= 1);

        let wants = || {
            let page = BrokerPage::open(&path).unwrap();
            page.slots().iter().map(|slot| slot.want.load(Relaxed)).sum::<u64>()
        };
        assert!(wants() > 400 << 20);
        drop(run);
        assert_eq!(wants(), 0);
    }

    #[test]
    fn what_is_no_broker_s_page_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("page");
        std::fs::write(&path, "text").unwrap();
        assert!(Outsider::join(&path).is_err());
    }
}
