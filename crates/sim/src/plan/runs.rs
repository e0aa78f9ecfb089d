//! Simulations of one program with different amounts of fast memory.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use terrace_core::{Bytes, Machine, Nanos, PageSize};
use terrace_policy::Policy;

use super::{PlanConfig, PlanProgress, Point, Workload};
use crate::analytic::config::SimPolicy;
use crate::error::SimError;
use crate::exact::{ExactConfig, ExactMachine, ExactReport, setup};

/// Room beside the program's memory, so that a full slow memory is no limit.
const SLACK: Bytes = Bytes::mib(64);

/// What decides where pages lie in a run.
pub(super) enum Decider {
    /// A policy by name.
    Named(SimPolicy),
    /// A policy of one's own.
    Own(Box<dyn Policy>),
}

/// Simulations, counted for whoever waits.
pub(super) struct Runs<'a> {
    pub(super) config: &'a PlanConfig,
    pub(super) workload: &'a Workload<'a>,
    pub(super) progress: &'a (dyn Fn(PlanProgress) + Sync),
    done: AtomicUsize,
    total: AtomicUsize,
}

impl<'a> Runs<'a> {
    pub(super) fn new(
        config: &'a PlanConfig,
        workload: &'a Workload<'a>,
        progress: &'a (dyn Fn(PlanProgress) + Sync),
        total: usize,
    ) -> Self {
        let (done, total) = (AtomicUsize::new(0), AtomicUsize::new(total));
        Self { config, workload, progress, done, total }
    }

    /// Fewer simulations are needed than was thought.
    pub(super) fn fewer(&self, by: usize) {
        self.total.fetch_sub(by, Ordering::Relaxed);
    }

    /// One more ended.
    pub(super) fn count(&self) {
        let done = self.done.fetch_add(1, Ordering::Relaxed) + 1;
        let total = self.total.load(Ordering::Relaxed).max(done);
        (self.progress)(PlanProgress { done, total, accesses: 0 });
    }

    /// The machine with its fast and its slow memory alone.
    pub(super) fn machine(&self, slow: Option<Bytes>) -> Machine {
        let mut machine = self.config.base.machine.clone();
        let second = machine.tiers[self.config.slow].clone();
        machine.tiers.truncate(1);
        if let Some(bytes) = slow {
            machine.tiers.push(second);
            machine.tiers[1].capacity.value = bytes;
        }
        machine
    }

    /// Simulates the program in fast memory alone; the machine is handed back
    /// for what it counted.
    pub(super) fn in_fast(
        &self,
        wrap: impl FnOnce(Box<dyn crate::exact::Source>, u64) -> Box<dyn crate::exact::Source>,
    ) -> Result<(ExactReport, ExactMachine), SimError> {
        let mut config = self.config.base.clone();
        let all: Bytes = config.machine.tiers.iter().map(|tier| tier.capacity.value).sum();
        config.machine = self.machine(None);
        config.machine.tiers[0].capacity.value = all.max(Bytes::gib(256));
        config.policy = SimPolicy::AllDram;
        config.fast = None;
        let (source, warm_up) = (self.workload)()?;
        config.warm_up = warm_up;
        let mut source = wrap(source, warm_up);
        let mut machine = ExactMachine::new(&config)?;
        machine.profile_misses();
        let total = self.total.load(Ordering::Relaxed);
        let report = setup::run(&mut machine, &config, source.as_mut(), &mut |accesses, _| {
            (self.progress)(PlanProgress { done: 0, total, accesses });
        })?;
        self.count();
        if report.time.is_zero() {
            return Err(SimError::parameter("trace", "nothing is left to measure"));
        }
        Ok((report, machine))
    }

    /// Simulates the program with so much fast memory; `footprint` and `fast`
    /// are what the run in fast memory alone gave.
    pub(super) fn with_fast(
        &self,
        decider: Decider,
        bytes: Bytes,
        footprint: Bytes,
        fast: Nanos,
    ) -> Result<Point, SimError> {
        let slow = footprint + footprint / 4 + SLACK;
        let page = PageSize::Huge.bytes().get();
        let machine = self.machine(Some(Bytes(slow.get().next_multiple_of(page))));
        let (source, warm_up) = (self.workload)()?;
        let mut config =
            ExactConfig { machine, fast: Some(bytes), warm_up, ..self.config.base.clone() };
        let mut source = source;
        let mut machine = match decider {
            Decider::Named(policy) => {
                config.policy = policy;
                ExactMachine::new(&config)?
            }
            Decider::Own(policy) => ExactMachine::with_policy(&config, Some(policy))?,
        };
        let report = setup::run(&mut machine, &config, source.as_mut(), &mut |_, _| ())?;
        self.count();
        Ok(Point {
            fast: bytes,
            share: report.tiers[0].share,
            slowdown: (report.time / fast - 1.0).max(0.0),
        })
    }

    /// Does several simulations side by side; results in the order of the jobs.
    pub(super) fn side_by_side<J: Send>(
        &self,
        jobs: Vec<J>,
        one: impl Fn(J) -> Result<Point, SimError> + Sync,
    ) -> Result<Vec<Point>, SimError> {
        let workers = self.config.workers.clamp(1, jobs.len().max(1));
        let queue = Mutex::new(jobs.into_iter().enumerate());
        let results = Mutex::new(Vec::new());
        thread::scope(|scope| {
            for _ in 0..workers {
                scope.spawn(|| {
                    loop {
                        let next = queue.lock().unwrap_or_else(PoisonError::into_inner).next();
                        let Some((i, job)) = next else { break };
                        let result = one(job);
                        results.lock().unwrap_or_else(PoisonError::into_inner).push((i, result));
                    }
                });
            }
        });
        let mut results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
        results.sort_by_key(|(i, _)| *i);
        results.into_iter().map(|(_, result)| result).collect()
    }
}
