//! The processors that a thread may run on, and how it gets one.

/// A set of processors. Without allocation: handlers ask for it while nobody
/// would serve a fault of theirs.
pub(crate) struct Processors(libc::cpu_set_t);

impl Processors {
    /// Those that the calling thread may run on.
    pub(crate) fn allowed() -> Self {
        // SAFETY: a plain set, filled by the call.
        unsafe {
            let mut set: libc::cpu_set_t = core::mem::zeroed();
            if libc::sched_getaffinity(0, size_of_val(&set), &raw mut set) != 0 {
                libc::CPU_ZERO(&mut set);
            }
            Self(set)
        }
    }
    /// How many there are; 0 if the kernel did not tell.
    pub(crate) fn count(&self) -> usize {
        // SAFETY: reads a plain set.
        unsafe { libc::CPU_COUNT(&self.0) }.cast_unsigned() as usize
    }
    /// Their numbers.
    pub(crate) fn iter(&self) -> impl Iterator<Item = u32> {
        // SAFETY: reads a plain set within its size.
        let is_set = |&cpu: &u32| unsafe { libc::CPU_ISSET(cpu as usize, &self.0) };
        (0..libc::CPU_SETSIZE.cast_unsigned()).filter(is_set)
    }
}

/// Keeps the calling thread on one processor; false if the kernel refuses.
pub(crate) fn pin_to(cpu: u32) -> bool {
    pin(0, cpu)
}

/// Keeps a thread of this process, or the calling one (0), on one processor; false if the kernel
/// refuses.
pub(crate) fn pin(tid: i32, cpu: u32) -> bool {
    // SAFETY: plain sets.
    unsafe {
        let mut one: libc::cpu_set_t = core::mem::zeroed();
        libc::CPU_SET(cpu as usize, &mut one);
        libc::sched_setaffinity(tid, size_of_val(&one), &raw const one) == 0
    }
}

/// Has a thread of this process go on on a processor, where it may stay or not. Nothing if it may
/// not run there.
pub(crate) fn bring(tid: i32, cpu: u32) {
    // SAFETY: a plain set, filled by the call and read by the other.
    unsafe {
        let mut before: libc::cpu_set_t = core::mem::zeroed();
        if libc::sched_getaffinity(tid, size_of_val(&before), &raw mut before) == 0
            && libc::CPU_ISSET(cpu as usize, &before)
            && pin(tid, cpu)
        {
            libc::sched_setaffinity(tid, size_of_val(&before), &raw const before);
        }
    }
}

/// The processor that the calling thread runs on just now.
pub(crate) fn current() -> u32 {
    // SAFETY: has no memory effects.
    unsafe { libc::sched_getcpu() }.cast_unsigned()
}

/// Has the calling thread run before all ordinary ones when it wakes up
/// (`SCHED_FIFO`, the lowest of its priorities); false without the right to it.
pub(crate) fn run_first() -> bool {
    let lowest = libc::sched_param { sched_priority: 1 };
    // SAFETY: reads a plain structure.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const lowest) == 0 }
}

/// Leaves all signals to the process's other threads.
pub(crate) fn block_signals() {
    // SAFETY: a plain set, filled before it is used.
    unsafe {
        let mut all: libc::sigset_t = core::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, core::ptr::null_mut());
    }
}
