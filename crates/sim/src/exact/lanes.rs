//! A device's lanes: work that was asked of it and is not done.
//!
//! Kept side by side rather than lane by lane: every line that reaches a memory changes all of
//! them, which is a few instructions for vectors of four.

/// Lanes of a device: reads, writes, both together
/// ([`Device::time`](crate::analytic::device::Device::time)), and one that is never used.
const LANES: usize = 4;
const READS: usize = 0;
const BOTH: usize = 2;

/// Work of each lane, in nanoseconds of its time.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Work([f64; LANES]);

impl Work {
    /// Of what a device says that some traffic takes.
    pub(super) fn new([reads, writes, both]: [f64; 3]) -> Self {
        Self([reads, writes, both, 0.0])
    }

    #[inline]
    fn add(&mut self, other: Self) {
        for (mine, other) in self.0.iter_mut().zip(other.0) {
            *mine += other;
        }
    }
}

/// The lanes of a device.
#[derive(Clone, Debug, Default)]
pub(super) struct Lanes {
    /// The program's work that is not done.
    backlog: Work,
    /// Work for copies that is not done.
    copying: Work,
    /// Work that was asked for, or copied, since the window began.
    window: Work,
    /// Whether any lane has work for copies.
    copies: bool,
}

impl Lanes {
    /// How long the program's next line waits.
    #[inline]
    pub(super) fn wait(&self) -> f64 {
        // While there is work of both kinds, each gets every other turn.
        let wait = |lane: usize| {
            let (backlog, copying) = (self.backlog.0[lane], self.copying.0[lane]);
            backlog + backlog.min(copying)
        };
        wait(READS).max(wait(BOTH))
    }

    /// The program asks for some work.
    #[inline]
    pub(super) fn ask(&mut self, work: Work) {
        self.backlog.add(work);
        self.window.add(work);
    }

    /// Somebody copies.
    pub(super) fn copy(&mut self, work: Work) {
        self.copying.add(work);
        self.copies = true;
    }

    /// Time passes.
    #[inline]
    pub(super) fn pass(&mut self, time: f64) {
        if self.copies {
            return self.take_turns(time);
        }
        for backlog in &mut self.backlog.0 {
            *backlog = (*backlog - time).max(0.0);
        }
    }

    /// Time passes while both kinds of work take turns.
    #[cold]
    fn take_turns(&mut self, time: f64) {
        for lane in 0..LANES {
            let (backlog, copying) = (&mut self.backlog.0[lane], &mut self.copying.0[lane]);
            let both = backlog.min(*copying);
            let (turns, alone) =
                if time < 2.0 * both { (time / 2.0, 0.0) } else { (both, time - 2.0 * both) };
            let copied = (turns + alone).min(*copying);
            *backlog = (*backlog - turns - alone).max(0.0);
            *copying -= copied;
            self.window.0[lane] += copied;
        }
        self.copies = self.copying.0.iter().any(|&copying| copying > 0.0);
    }

    /// The most work of a lane since this was asked last.
    pub(super) fn take_window(&mut self) -> f64 {
        std::mem::take(&mut self.window).0.into_iter().fold(0.0, f64::max)
    }
}
