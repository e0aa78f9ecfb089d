//! The userfaultfd by which the program's memory is registered, and what is tracked by it.

use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering::*};

use terrace_core::Nanos;

use crate::observe::protection::{Departed, Tracks};
use crate::pager::Pager;
use crate::sys;
use crate::sys::uffd::{Uffd, mode};

/// The handle, and what is known of it.
pub(crate) struct Handle {
    /// The program's memory is registered with this one.
    uffd: AtomicI32,
    /// What the kernel's userfaultfd can do: bits of [`crate::sys::uffd::feature`].
    pub(crate) features: AtomicU64,
    /// Whether the program's memory is registered for [`Tracks::Stores`] or
    /// [`Tracks::Accesses`], too: 0 if not, else 1 or 2.
    tracks: AtomicU32,
    /// Pages that have left since something was protected.
    pub(crate) departed: Departed,
    /// Readable once our threads are to end: who sleeps until there is a message wakes up.
    farewell: AtomicI32,
}

impl Handle {
    /// None yet.
    pub(crate) const fn new() -> Self {
        Self {
            uffd: AtomicI32::new(-1),
            features: AtomicU64::new(0),
            tracks: AtomicU32::new(0),
            departed: Departed::new(),
            farewell: AtomicI32::new(-1),
        }
    }
}

impl Pager {
    /// The handle with which the program's memory is registered.
    pub fn uffd(&self) -> Uffd {
        Uffd::from_raw(self.handle.uffd.load(Acquire))
    }

    /// Sets the handle, and what is tracked by it.
    pub fn set_uffd(&self, uffd: Uffd, tracks: Option<Tracks>) {
        self.handle.uffd.store(uffd.raw(), Release);
        self.handle.tracks.store(tracks.map_or(0, |tracks| tracks as u32 + 1), Release);
    }

    /// What of the program's memory is tracked by protection.
    pub fn tracks(&self) -> Option<Tracks> {
        match self.handle.tracks.load(Acquire) {
            0 => None,
            1 => Some(Tracks::Stores),
            _ => Some(Tracks::Accesses),
        }
    }

    /// Registers a range of the program's memory, or says why the kernel does not.
    pub fn register(&self, start: usize, len: usize) -> Result<(), i32> {
        let register = |modes| self.uffd().register(start, len, mode::MISSING | modes);
        match self.tracks() {
            None => register(0),
            // Memory that is only reserved cannot be protected. It may be accessible one day:
            // it is managed, and not tracked.
            Some(tracks) => register(tracks.mode()).or_else(|error| match error {
                libc::EINVAL => register(0),
                other => Err(other),
            }),
        }
    }

    /// A page is about to leave DRAM.
    pub fn departs(&self, address: usize) {
        if self.tracks().is_some() {
            self.handle.departed.note(address);
        }
    }

    /// Opens what [`Pager::say_farewell`] needs. In a thread of ours.
    pub(crate) fn open_farewell(&self) {
        // SAFETY: a new descriptor.
        self.handle.farewell.store(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) }, Release);
    }

    /// Wakes those of our threads that wait for a message. By one of them.
    pub(crate) fn say_farewell(&self) {
        self.fault.handlers.end_polling();
        let one = 1u64;
        // SAFETY: writes a number's eight bytes to a descriptor of ours.
        unsafe { libc::write(self.handle.farewell.load(Acquire), (&raw const one).cast(), 8) };
    }

    /// Sleeps until there is a message, for so long (`None`: for ever), or our threads are to end.
    pub(crate) fn await_message(&self, timeout: Option<Nanos>) {
        let poll = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let mut polls = [poll(self.uffd().raw()), poll(self.handle.farewell.load(Acquire))];
        sys::poll(&mut polls, timeout.map(Nanos::get));
    }
}
