//! Accesses that are observed by page tables: hint faults and accessed bits.
//!
//! What the simulated accesses show would be too late and too little where each
//! of them stands for many real ones: an armed page would fault at the first
//! *simulated* access. So the time to a page's next access, and whether it was
//! accessed since some time, are drawn from the rate at which the threads
//! access it now (exponentially distributed, as for independent accesses).

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;

use rand_xoshiro::rand_core::Rng;
use terrace_core::{Access, Nanos};

use crate::workload::{SimRng, Workload};

/// A fault that was drawn to come later than this is drawn anew then, so that
/// a change of the program is noticed; for a steady rate that is the same.
const REDRAWN: f64 = 250e6;

/// The program as it runs now.
pub(crate) struct Program<'a> {
    pub(crate) workload: &'a dyn Workload,
    /// Real accesses each thread makes in a nanosecond.
    pub(crate) rates: &'a [f64],
    pub(crate) now: Nanos,
}

impl Program<'_> {
    /// Accesses to a page in a nanosecond.
    pub(crate) fn rate(&self, page: u32) -> f64 {
        let of = |(thread, rate): (usize, &f64)| {
            if *rate > 0.0 { rate * self.workload.share(thread, page, self.now) } else { 0.0 }
        };
        self.rates.iter().enumerate().map(of).sum()
    }

    /// Which thread makes an access to a page, and whether it stores.
    fn who(&self, page: u32, rng: &mut SimRng) -> Option<(usize, Access)> {
        let mut left = uniform(rng) * self.rate(page);
        for (thread, &rate) in self.rates.iter().enumerate() {
            let share = self.workload.share(thread, page, self.now);
            left -= rate * share;
            if rate * share > 0.0 && left <= 0.0 {
                let stores = self.workload.store_share(thread, page, self.now);
                let store = uniform(rng) * share <= stores;
                return Some((thread, if store { Access::Write } else { Access::Read }));
            }
        }
        None
    }
}

/// Above 0, up to 1.
fn uniform(rng: &mut SimRng) -> f64 {
    ((rng.next_u64() >> 11) + 1) as f64 / (1u64 << 53) as f64
}

/// A hint fault.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Hint {
    pub(crate) page: u32,
    pub(crate) thread: usize,
    pub(crate) access: Access,
    pub(crate) at: Nanos,
}

/// Armed pages and accessed bits.
#[derive(Debug)]
pub(crate) struct AccessObserver {
    /// Faults to come: when, of which page, which arming of it, and whether it
    /// is only to be drawn anew.
    coming: BinaryHeap<Reverse<(u64, u32, u32, bool)>>,
    /// The number of a page's arming; even while it is not armed.
    arming: Vec<u32>,
    /// When each page's accessed bit was cleared.
    cleared: Vec<Nanos>,
    rng: SimRng,
}

impl AccessObserver {
    pub(crate) fn new(pages: usize, rng: SimRng) -> Self {
        Self {
            coming: BinaryHeap::new(),
            arming: vec![0; pages],
            cleared: vec![Nanos::ZERO; pages],
            rng,
        }
    }

    fn draw(&mut self, page: u32, program: &Program<'_>, from: Nanos) {
        let wait = -uniform(&mut self.rng).ln() / program.rate(page);
        let again = wait.is_nan() || wait > REDRAWN;
        let at = from.get() + if again { REDRAWN } else { wait } as u64;
        self.coming.push(Reverse((at, page, self.arming[page as usize], again)));
    }

    /// The next access to a page faults.
    pub(crate) fn arm(&mut self, page: u32, program: &Program<'_>) {
        let arming = &mut self.arming[page as usize];
        *arming += if arming.is_multiple_of(2) { 1 } else { 2 };
        self.draw(page, program, program.now);
    }

    /// The next fault that comes before `until`.
    pub(crate) fn due(&mut self, until: Nanos, program: &Program<'_>) -> Option<Hint> {
        loop {
            let &Reverse((at, page, arming, again)) = self.coming.peek()?;
            if at >= until.get() {
                return None;
            }
            self.coming.pop();
            if self.arming[page as usize] != arming {
                continue;
            }
            if !again && let Some((thread, access)) = program.who(page, &mut self.rng) {
                self.arming[page as usize] += 1;
                return Some(Hint { page, thread, access, at: Nanos(at) });
            }
            self.draw(page, program, Nanos(at));
        }
    }

    /// Reads and clears accessed and dirty bits; tells what was accessed.
    pub(crate) fn scan(
        &mut self,
        pages: Range<u32>,
        program: &Program<'_>,
        mut accessed: impl FnMut(u32, Access),
    ) {
        for page in pages {
            let since = &mut self.cleared[page as usize];
            let expected = program.rate(page) * (program.now - *since).as_f64();
            *since = program.now;
            if uniform(&mut self.rng) <= 1.0 - (-expected).exp()
                && let Some((_, access)) = program.who(page, &mut self.rng)
            {
                accessed(page, access);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::gups::{Gups, GupsConfig};
    use rand_xoshiro::rand_core::SeedableRng;
    use terrace_core::Bytes;

    /// 2 threads, 16 pages each, the first two of each hot with 90 %.
    fn gups() -> Gups {
        let config = GupsConfig {
            threads: 2,
            working_set: Bytes::mib(64),
            ..GupsConfig::hemem(Bytes::mib(8))
        };
        Gups::new(config).expect("valid")
    }

    fn observer() -> AccessObserver {
        AccessObserver::new(32, SimRng::seed_from_u64(5))
    }

    /// If faults came at another rate than accesses do, policies that take the
    /// time to a fault for heat would be misled.
    #[test]
    fn the_time_to_a_hint_fault_is_that_to_the_next_access() {
        let gups = gups();
        let program = |now| Program { workload: &gups, rates: &[0.01, 0.02], now };
        let (mut observer, mut total) = (observer(), 0.0);
        for round in 0..4000u64 {
            let now = Nanos::millis(round);
            observer.arm(16, &program(now));
            let hint = observer.due(now + Nanos::SECOND, &program(now)).expect("it is hot");
            assert_eq!((hint.page, hint.thread), (16, 1));
            total += (hint.at - now).as_f64();
        }
        // 0.02 accesses a nanosecond, of which 45 % and an eightieth.
        let expected = 1.0 / (0.02 * (0.45 + 0.1 / 16.0));
        let mean = total / 4000.0;
        // The mean of 4000 exponential times is within 5 % in 998 of 1000 cases;
        // times are whole nanoseconds.
        assert!((mean / expected - 1.0).abs() < 0.05, "{mean} ns, {expected} expected");
    }

    #[test]
    fn a_page_that_nobody_touches_never_faults_and_one_armed_twice_faults_once() {
        let gups = gups();
        let program = |rates| Program { workload: &gups, rates, now: Nanos::ZERO };
        let mut observer = observer();
        observer.arm(0, &program(&[0.0, 0.0]));
        assert_eq!(observer.due(Nanos::seconds(3), &program(&[0.0, 0.0])), None);
        observer.arm(0, &program(&[0.01, 0.0]));
        assert!(observer.due(Nanos::seconds(9), &program(&[0.01, 0.0])).is_some());
        assert_eq!(observer.due(Nanos::seconds(9), &program(&[0.01, 0.0])), None);
    }

    #[test]
    fn accessed_bits_show_what_was_accessed_since_they_were_cleared() {
        let gups = gups();
        let mut observer = observer();
        let mut scan = |ms| {
            let mut pages = Vec::new();
            let program =
                Program { workload: &gups, rates: &[0.0001, 0.0], now: Nanos::millis(ms) };
            observer.scan(0..32, &program, |page, _| pages.push(page));
            pages
        };
        assert_eq!(scan(1000), (0..16).collect::<Vec<_>>(), "the first thread's part");
        assert!(scan(1000).is_empty(), "no time has passed");
        // 100 accesses in a millisecond: 45 to each hot page, 0.6 to each other.
        let pages = scan(1001);
        assert!(pages.starts_with(&[0, 1]), "{pages:?}");
        assert!((3..14).contains(&pages.len()), "{pages:?}");
    }
}
