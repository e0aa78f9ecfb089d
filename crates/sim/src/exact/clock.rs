//! A core's time: what waits for what.
//!
//! Not a pipeline. Instructions issue in order at the core's width. What takes
//! longer than a first-level hit holds a miss slot until it is done, and the
//! core runs ahead of it by at most a reorder buffer of instructions. An access
//! that depends on the load before it begins when that load is done.

/// Parameters of a core.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CoreGeometry {
    /// Nanoseconds an instruction when nothing misses.
    pub instruction: f64,
    /// Misses in flight.
    pub slots: usize,
    /// Instructions that the core runs ahead of the oldest that waits.
    pub window: u64,
}

/// The most misses in flight that a core may have.
pub const MAX_SLOTS: usize = 64;

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    /// The instruction that holds it.
    instruction: u64,
    done: f64,
}

/// A core's time.
#[derive(Clone, Debug)]
pub struct CoreClock {
    geometry: CoreGeometry,
    /// Time at which instruction `origin` issued.
    base: f64,
    origin: u64,
    slots: [Slot; MAX_SLOTS],
    head: usize,
    held: usize,
    last_load: f64,
    /// Time that issue stood still.
    pub waited: f64,
}

impl CoreClock {
    /// A core at time 0.
    pub fn new(geometry: CoreGeometry) -> Self {
        let slots = geometry.slots.clamp(1, MAX_SLOTS);
        Self {
            geometry: CoreGeometry { slots, ..geometry },
            base: 0.0,
            origin: 0,
            slots: [Slot::default(); MAX_SLOTS],
            head: 0,
            held: 0,
            last_load: 0.0,
            waited: 0.0,
        }
    }

    /// When an instruction issues if nothing waits. One that was held may be asked about when the ones
    /// before it were issued.
    #[inline]
    pub fn time(&self, instruction: u64) -> f64 {
        let since = instruction.wrapping_sub(self.origin).cast_signed();
        self.base + since as f64 * self.geometry.instruction
    }

    /// Issue stands still until `until`.
    #[inline]
    fn hold(&mut self, instruction: u64, until: f64) {
        let now = self.time(instruction);
        if until > now {
            self.waited += until - now;
            self.base = until;
            self.origin = instruction;
        }
    }

    /// The core does something else for a while: a fault, an interrupt.
    pub fn spend(&mut self, instruction: u64, time: f64) {
        self.base += time;
        self.waited += time;
        debug_assert!(self.time(instruction).is_finite());
    }

    /// When an access that has to wait may begin: its slot is free, and what it
    /// depends on is done.
    #[inline]
    pub fn begin(&mut self, instruction: u64, dependent: bool) -> f64 {
        let mut until = f64::MIN;
        while self.held > 0 {
            let oldest = self.slots[self.head];
            let outrun = instruction - oldest.instruction >= self.geometry.window;
            if !outrun && self.held < self.geometry.slots {
                break;
            }
            until = until.max(oldest.done);
            self.head = (self.head + 1) % MAX_SLOTS;
            self.held -= 1;
        }
        self.hold(instruction, until);
        let now = self.time(instruction);
        if dependent { now.max(self.last_load) } else { now }
    }

    /// What [`begin`](Self::begin) would say; changes nothing.
    #[inline]
    pub fn would_begin(&self, instruction: u64, dependent: bool) -> f64 {
        let mut now = self.time(instruction);
        let (mut head, mut held) = (self.head, self.held);
        while held > 0 {
            let oldest = self.slots[head];
            let outrun = instruction - oldest.instruction >= self.geometry.window;
            if !outrun && held < self.geometry.slots {
                break;
            }
            now = now.max(oldest.done);
            head = (head + 1) % MAX_SLOTS;
            held -= 1;
        }
        if dependent { now.max(self.last_load) } else { now }
    }

    /// The core has nothing to do until `until`.
    pub fn sleep_until(&mut self, instruction: u64, until: f64) {
        self.base += (until - self.time(instruction)).max(0.0);
    }

    /// An access that began is done at `done`.
    #[inline]
    pub fn end(&mut self, instruction: u64, done: f64, load: bool) {
        self.slots[(self.head + self.held) % MAX_SLOTS] = Slot { instruction, done };
        self.held += 1;
        if load {
            self.last_load = done;
        }
    }

    /// A dependent access that hits the first level.
    #[inline]
    pub fn chained_hit(&mut self, instruction: u64, latency: f64, load: bool) {
        let begin = self.time(instruction).max(self.last_load);
        if load {
            self.last_load = begin + latency;
            self.hold(instruction, begin + latency - self.lookahead());
        }
    }

    /// How long instructions may go on issuing past a chain of hits.
    fn lookahead(&self) -> f64 {
        self.geometry.window as f64 * self.geometry.instruction
    }

    /// Waits for everything that is in flight, and returns the time.
    pub fn drain(&mut self, instruction: u64) -> f64 {
        while self.held > 0 {
            let done = self.slots[self.head].done;
            self.head = (self.head + 1) % MAX_SLOTS;
            self.held -= 1;
            self.hold(instruction, done);
        }
        self.hold(instruction, self.last_load);
        self.time(instruction)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clock(slots: usize, window: u64) -> CoreClock {
        CoreClock::new(CoreGeometry { instruction: 0.25, slots, window })
    }

    fn misses(clock: &mut CoreClock, count: u64, distance: u64, dependent: bool) -> f64 {
        for i in 0..count {
            let begin = clock.begin(i * distance, dependent);
            clock.end(i * distance, begin + 100.0, true);
        }
        clock.drain(count * distance)
    }

    #[test]
    fn a_chain_of_misses_takes_the_sum_of_their_latencies() {
        assert!((misses(&mut clock(10, 200), 1000, 1, true) - 100_000.0).abs() < 1.0);
    }

    #[test]
    fn independent_misses_share_the_slots() {
        let time = misses(&mut clock(10, 200), 1000, 1, false);
        assert!((time - 10_000.0).abs() < 150.0, "{time}");
    }

    #[test]
    fn the_reorder_buffer_bounds_how_far_a_core_runs_ahead() {
        // One miss in 50 instructions and a window of 100: two in flight.
        let time = misses(&mut clock(10, 100), 1000, 50, false);
        assert!((time / 50_000.0 - 1.0).abs() < 0.15, "{time}");
    }

    #[test]
    fn without_misses_instructions_take_their_time() {
        let clock = clock(10, 100);
        assert!((clock.time(1000) - 250.0).abs() < 1e-9);
    }

    #[test]
    fn a_chain_of_hits_takes_their_latency() {
        let mut clock = clock(10, 100);
        for i in 0..10_000 {
            clock.chained_hit(i, 2.0, true);
        }
        let time = clock.drain(10_000);
        assert!((time - 20_000.0).abs() < 1.0, "{time}");
    }
}
