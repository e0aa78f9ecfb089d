//! What the engine asks of the system, as a trait, so that it can be run on memory that exists
//! only in a test.

use std::io;

use terrace_core::{Bytes, Nanos};

pub use super::brake::Braked;
pub use super::guard::Guarded;
pub use terrace_live::numa::moves::Advice;
pub use terrace_sampler::pagemap::Run;
pub use terrace_sampler::perf::direct::DirectReclaim;
pub use terrace_sampler::perf::major::MajorFault;

/// The system that programs run on.
pub trait World {
    /// The clock.
    fn now(&mut self) -> Nanos;
    /// Processor time of the calling thread.
    fn cpu(&mut self) -> Nanos;
    /// How busy the machine's processors are, 0 (idle) to 1: the price of Terrace's own time. What is not
    /// known is not free.
    fn load(&mut self) -> f64 {
        1.0
    }
    /// The processes of the run, in the order of their numbers.
    fn processes(&mut self) -> Vec<u32>;
    /// What these processes have in DRAM of what can be swapped.
    fn resident(&mut self, processes: &[u32]) -> Bytes;
    /// The kernel's own memory for the run that lay beside the budget at that look: more of it than the
    /// budget has a part for.
    fn kernel_beside(&self) -> Bytes {
        Bytes::ZERO
    }
    /// The mappings of a process whose pages a policy can decide about, in order.
    ///
    /// # Errors
    /// The system's.
    fn mappings(&mut self, process: u32) -> io::Result<Vec<(u64, u64)>>;
    /// The pages of a range that have content, in memory or in swap; bits of
    /// [`terrace_sampler::pagemap::is`].
    ///
    /// # Errors
    /// The system's.
    fn content(
        &mut self,
        process: u32,
        start: u64,
        end: u64,
        each: &mut dyn FnMut(Run),
    ) -> io::Result<()>;
    /// Says something about ranges (start, length) of a process.
    ///
    /// # Errors
    /// The system's.
    fn advise(&mut self, process: u32, advice: Advice, ranges: &[(u64, u64)]) -> io::Result<()>;
    /// Whether the kernel can be asked to put memory of the run out.
    fn can_reclaim(&self) -> bool;
    /// Asks it to, unless it is still at what it was asked for before; whether it was asked.
    ///
    /// # Errors
    /// Of kind `WouldBlock` if it found less than it was asked for the last time; nothing was
    /// asked for now.
    fn reclaim(&mut self, bytes: Bytes) -> io::Result<bool>;
    /// Processor time that others than the calling thread have spent for it since the last call.
    fn take_helped(&mut self) -> Nanos;
    /// What was done since the last call by somebody whom the kernel wakes as the run comes near its
    /// budget; nothing where there is nobody.
    fn take_guarded(&mut self) -> Guarded {
        Guarded::default()
    }
    /// How the run was slowed down since the last call, by [`World::brake`] or by whoever the kernel
    /// wakes; where both do at the same time it is counted once.
    fn take_braked(&mut self) -> Braked {
        Braked::default()
    }
    /// Slows the run down while its memory grows faster than it can be put out, or no longer.
    /// True if there is such a brake, that is not always on above the budget.
    ///
    /// # Errors
    /// The system's.
    fn brake(&mut self, on: bool) -> io::Result<bool>;
    /// Whether a limit above the budget is in force, at which the run's own threads put memory out.
    fn is_bound(&self) -> bool {
        false
    }
    /// Whether that is one that nothing can go beyond (of version 1), so that what is brought back there
    /// takes the place of what is oldest.
    fn has_hard_limit(&self) -> bool {
        false
    }
    /// Lets the run have more than its budget, as none of it can be put out, or no longer.
    ///
    /// # Errors
    /// The system's.
    fn let_go(&mut self, go: bool) -> io::Result<()>;
    /// The run is left alone from now on: takes off whatever slows it down or bounds it, and ends
    /// what is still being put out.
    ///
    /// # Errors
    /// The system's.
    fn release(&mut self) -> io::Result<()>;
    /// What swap there is, and what of it is free.
    fn swap(&mut self) -> (Bytes, Bytes);
    /// Major faults of these processes since the last time.
    ///
    /// # Errors
    /// If they cannot be told any more.
    fn faults(&mut self, processes: &[u32], each: &mut dyn FnMut(MajorFault)) -> io::Result<()>;
    /// What of the memory that the budget covers has left since the run began, whoever made room, where
    /// the kernel counts that. It falls where the run gives back what has left.
    fn left(&mut self) -> Option<Bytes> {
        None
    }
    /// What the run's threads had to put out themselves since it began, where the kernel counts that;
    /// else the sum of [`World::direct_reclaims`] is all that is known.
    fn reclaimed_by_itself(&mut self) -> Option<Bytes> {
        None
    }
    /// For how long some thread of the run waited for memory since it began, where the kernel says so.
    fn stalled(&mut self) -> Option<Nanos> {
        None
    }
    /// What these processes had to put out themselves since the last time.
    fn direct_reclaims(&mut self, _processes: &[u32], _each: &mut dyn FnMut(DirectReclaim)) {}
}
