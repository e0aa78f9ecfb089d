//! Where events come from: the best set of hooks that can be had.

use std::collections::HashMap;

use terrace_core::Bytes;

use crate::observe::event::FileEvent;
use crate::observe::fanotify::Fanotify;
use crate::observe::hooks::{HookSet, Wanted};
use crate::observe::load::{Journaled, Loaded, Names};
use crate::observe::polls::OpenFiles;
use crate::observe::programs::Count;
use crate::service::worker::is_work;

/// A set of hooks that works.
#[derive(Debug)]
pub enum Source {
    /// Programs in the kernel.
    Programs(Box<Loaded>),
    /// Notifications of file systems.
    Notifications(Fanotify),
}

/// Why sets of hooks are not used.
pub type Refused = Vec<(HookSet, String)>;

impl Source {
    /// Tries one set after the other, the best first; or the one that is wanted. Gives why others
    /// were not taken.
    ///
    /// # Errors
    /// Why none can be had.
    pub fn new(wanted: &Wanted) -> Result<(Self, Refused), Refused> {
        let mut refused = Refused::new();
        let sets = wanted.set.map_or_else(|| HookSet::TRIED.to_vec(), |set| vec![set]);
        for set in sets {
            let tried = match set {
                HookSet::Fanotify => Fanotify::new(&wanted.devices).map(Self::Notifications),
                _ => Loaded::new(set, wanted)
                    .map(|loaded| Self::Programs(Box::new(loaded.leaving_out(is_work)))),
            };
            match tried {
                Ok(source) => return Ok((source, refused)),
                Err(why) => refused.push((set, why)),
            }
        }
        Err(refused)
    }

    /// Which set it is.
    pub fn set(&self) -> HookSet {
        match self {
            Self::Programs(loaded) => loaded.set(),
            Self::Notifications(_) => HookSet::Fanotify,
        }
    }

    /// What is not known, and why.
    pub fn lacks(&self) -> Vec<String> {
        match self {
            Self::Programs(loaded) => loaded.lacks(),
            Self::Notifications(fanotify) => fanotify.lacks().to_vec(),
        }
    }

    /// Whether there are hooks for this (`observe::hooks::NAMES`, say), all of them.
    pub fn knows(&self, what: &str) -> bool {
        match self {
            Self::Programs(loaded) => loaded.knows(what),
            Self::Notifications(_) => false,
        }
    }

    /// Whether events tell how many names a file has in the kernel's cache.
    pub fn has_names(&self) -> bool {
        match self {
            Self::Programs(loaded) => loaded.has_names(),
            Self::Notifications(_) => false,
        }
    }

    /// Whether events tell how many extents ext4 keeps of a file.
    pub fn has_extents(&self) -> bool {
        match self {
            Self::Programs(loaded) => loaded.has_extents(),
            Self::Notifications(_) => false,
        }
    }

    /// Looks which files are open, where that is how opens and closes are known, and if it is due.
    pub fn poll(&mut self, is_near: bool) {
        if let Self::Programs(loaded) = self {
            loaded.poll(is_near);
        }
    }

    /// Which files somebody has open, where looks tell.
    pub fn open_files(&self) -> Option<&OpenFiles> {
        match self {
            Self::Programs(loaded) => loaded.open_files(),
            Self::Notifications(_) => None,
        }
    }

    /// The next event that waits.
    pub fn next_event(&mut self) -> Option<FileEvent> {
        match self {
            Self::Programs(loaded) => loaded.next_event(),
            Self::Notifications(fanotify) => fanotify.next_event(),
        }
    }

    /// Events that were lost, for want of room.
    pub fn lost(&self) -> u64 {
        match self {
            Self::Programs(loaded) => loaded.count(Count::Lost),
            Self::Notifications(fanotify) => fanotify.lost(),
        }
    }

    /// How often something happened, if programs count it.
    pub fn count(&self, what: Count) -> Option<u64> {
        match self {
            Self::Programs(loaded) => Some(loaded.count(what)),
            Self::Notifications(_) => None,
        }
    }

    /// Takes what was transferred for files, by device and inode.
    pub fn take_transfers(&mut self) -> HashMap<(u64, u64), (u64, Bytes)> {
        match self {
            Self::Programs(loaded) => loaded
                .take_transfers()
                .into_iter()
                .map(|(file, transfers)| (file, (transfers.count, transfers.bytes)))
                .collect(),
            Self::Notifications(_) => HashMap::new(),
        }
    }

    /// Takes what files asked of the journal, by device and inode.
    pub fn take_journal(&mut self) -> HashMap<(u64, u64), Journaled> {
        match self {
            Self::Programs(loaded) => loaded.take_journal(),
            Self::Notifications(_) => HashMap::new(),
        }
    }

    /// Takes how many names files have of which one came or went, by device and inode.
    pub fn take_names(&mut self) -> HashMap<(u64, u64), Names> {
        match self {
            Self::Programs(loaded) => loaded.take_names(),
            Self::Notifications(_) => HashMap::new(),
        }
    }
}
