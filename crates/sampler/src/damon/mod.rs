//! The kernel's own access monitor, DAMON, by its files in sysfs.
//!
//! DAMON divides an address space into regions, looks at the accessed bit of
//! one page of each at every sampling interval, and splits and merges regions
//! so that the pages of one are used alike. So its cost is bounded whatever
//! the size of the program, and its picture is coarse: a hot page amid cold
//! ones is seen only when its region has been split that far.
//!
//! One kernel thread a process, because what DAMON reports of several
//! processes in one context does not say which is which. Pictures come by a
//! tracepoint; where there is none, the kernel is asked for one, and answers
//! when the picture is complete. In both cases orders take effect at the
//! kernel's next look: so a thread of ours talks to the kernel.
//!
//! | file | concept |
//! |---|---|
//! | [`control`] | the files |
//! | [`trace`] | the tracepoint |
//! | here | the thread, and samples from its pictures |

pub mod control;
pub mod trace;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use terrace_core::{Access, Nanos, Sample, SampleSource};

use crate::sampler::{ACCESSES_A_BIT, Health, Pages, ProcessRange, Sampler, SamplerError};
use crate::sys::{KernelThread, thread_cpu};
use control::{Control, DamonRegion, Target};
use trace::{Format, Trace};

const NAME: &str = "DAMON";

/// What one picture says.
struct Picture {
    process: u32,
    /// How often DAMON has looked for it.
    looks: u32,
    regions: Vec<DamonRegion>,
}

/// What the thread and the sampler share.
#[derive(Default)]
struct Shared {
    pictures: Vec<Picture>,
    cpu: Nanos,
    /// Pictures that came while nobody took the last ones, and incomplete ones.
    lost: u64,
    /// What is to be watched.
    targets: Vec<Target>,
    failure: Option<String>,
}

/// Accesses by DAMON.
pub struct Damon {
    root: PathBuf,
    worker: Option<Worker>,
    health: Health,
    rarity: Arc<AtomicU32>,
    shared: Arc<Mutex<Shared>>,
}

struct Worker {
    processes: Vec<u32>,
    /// Closed to end the thread.
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Worker {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Damon {
    /// A sampler by the files below `root` (`/` for this machine).
    pub fn new(root: &Path) -> Self {
        Self {
            root: root.to_owned(),
            worker: None,
            health: Health::default(),
            rarity: Arc::new(AtomicU32::new(1)),
            shared: Arc::default(),
        }
    }

    fn shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Watches this memory, and no other.
    fn watch(&mut self, ranges: &[ProcessRange]) -> Result<(), SamplerError> {
        let targets = Target::all(ranges);
        let same = |w: &Worker| targets.iter().map(|t| t.process).eq(w.processes.iter().copied());
        if self.worker.as_ref().is_some_and(same) {
            self.shared().targets = targets;
            return Ok(());
        }
        // The old thread has to have stopped DAMON before the new one starts it.
        self.worker = None;
        if targets.is_empty() {
            return Ok(());
        }
        let processes = targets.iter().map(|target| target.process).collect();
        self.shared().targets.clone_from(&targets);
        let control = Control::start(&self.root.join(control::ADMIN), targets)
            .map_err(|what| SamplerError::new(NAME, what))?;
        let traces = traces(&self.root, &control);
        let (stop, stopped) = mpsc::channel();
        let (shared, rarity) = (self.shared.clone(), self.rarity.clone());
        let thread = std::thread::Builder::new()
            .name("terrace-damon".into())
            .spawn(move || Follower::new(control, traces, shared, rarity).follow(&stopped))
            .map_err(|e| SamplerError::new(NAME, format!("thread: {e}")))?;
        self.worker = Some(Worker { processes, stop: Some(stop), thread: Some(thread) });
        Ok(())
    }
}

/// Listens to each DAMON; `None` if there is no way to.
fn traces(root: &Path, control: &Control) -> Option<Vec<Trace>> {
    let format = Format::read(root).ok()?;
    let listen = |i| Trace::open(format, control.thread(i)?).ok();
    (0..control.targets().len()).map(listen).collect()
}

/// The shortest and the longest time between two looks at what the kernel says: a picture that
/// waits is late, and one look costs some ten microseconds.
const LOOK: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(250));

/// The thread that talks to the kernel.
struct Follower {
    control: Control,
    /// In the order of processes.
    traces: Option<Vec<Trace>>,
    /// The kernel's threads, and what each had used when it was last asked.
    threads: Vec<(KernelThread, Nanos)>,
    /// What this thread had used then.
    own: Nanos,
    shared: Arc<Mutex<Shared>>,
    rarity: Arc<AtomicU32>,
}

impl Follower {
    fn new(
        control: Control,
        traces: Option<Vec<Trace>>,
        shared: Arc<Mutex<Shared>>,
        rarity: Arc<AtomicU32>,
    ) -> Self {
        let threads = (0..control.targets().len()).filter_map(|i| control.thread(i));
        let threads = threads.map(|thread| (KernelThread::new(thread), Nanos::ZERO)).collect();
        Self { control, traces, threads, own: Nanos::ZERO, shared, rarity }
    }

    fn shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its life, until it is told to stop. Ends DAMON when it ends.
    fn follow(mut self, stopped: &Receiver<()>) {
        loop {
            let taken = self.pictures();
            let targets = self.shared().targets.clone();
            let set = self.control.set(self.rarity.load(Relaxed), &targets);
            let cost = self.cost();
            let mut shared = self.shared();
            shared.cpu += cost;
            match taken.and_then(|(pictures, lost)| set.map(|()| (pictures, lost))) {
                Ok((pictures, lost)) => {
                    shared.lost += lost;
                    for picture in pictures {
                        // The latest is what counts.
                        let before = shared.pictures.len();
                        shared.pictures.retain(|old| old.process != picture.process);
                        shared.lost += (before - shared.pictures.len()) as u64;
                        shared.pictures.push(picture);
                    }
                }
                Err(what) => {
                    shared.failure = Some(what);
                    return;
                }
            }
            drop(shared);
            let (_, picture) = self.control.picture_of();
            match stopped.recv_timeout((picture / 8).clamp(LOOK.0, LOOK.1)) {
                Err(RecvTimeoutError::Timeout) => {}
                _ => return,
            }
        }
    }

    /// Pictures that have come, or that were waited for; and how many were lost.
    fn pictures(&mut self) -> Result<(Vec<Picture>, u64), String> {
        let (looks, _) = self.control.picture_of();
        let (mut pictures, mut lost) = (Vec::new(), 0);
        for (i, target) in self.control.targets().iter().enumerate() {
            let process = target.process;
            let regions = match &mut self.traces {
                Some(traces) => {
                    let (picture, dropped) = traces[i].picture();
                    lost += dropped;
                    picture
                }
                // While nobody takes the last ones, no further ones are asked for.
                None if !self.shared.lock().is_ok_and(|shared| shared.pictures.is_empty()) => None,
                None => match self.control.picture(i) {
                    Ok(regions) => Some(regions),
                    // The process ended, and DAMON with it.
                    Err(_) if !self.control.is_on(i) => None,
                    Err(what) => return Err(what),
                },
            };
            pictures.extend(regions.map(|regions| Picture { process, looks, regions }));
        }
        Ok((pictures, lost))
    }

    /// Processor time since the last call: the kernel's, and ours.
    fn cost(&mut self) -> Nanos {
        let mut cost = Nanos::ZERO;
        for (thread, before) in &mut self.threads {
            let spent = thread.cpu().max(*before);
            cost += spent.saturating_sub(*before);
            *before = spent;
        }
        let spent = thread_cpu();
        cost += spent.saturating_sub(self.own);
        self.own = spent;
        cost
    }
}

/// Accesses that DAMON's finding one in so many of its looks stands for, in units of one a look.
///
/// An accessed bit says "at least one". Accesses that come at random at a rate of `r` a look are
/// found in a share of `1 - exp(-r)` of the looks; of a page that was found in use each time,
/// which has no upper bound, half a look in vain is assumed.
fn weight(found: u32, looks: u32) -> u16 {
    let looks = f64::from(looks.max(1));
    let vain = (looks - f64::from(found)).max(0.5);
    (-looks * (vain / looks).ln()).round().clamp(1.0, f64::from(u16::MAX)) as u16
}

impl Sampler for Damon {
    fn name(&self) -> &'static str {
        NAME
    }

    fn period(&self) -> u64 {
        ACCESSES_A_BIT
    }

    fn collect(
        &mut self,
        _now: Nanos,
        pages: &dyn Pages,
        out: &mut Vec<Sample>,
    ) -> Result<(), SamplerError> {
        let began = thread_cpu();
        self.watch(&pages.ranges())?;
        let (pictures, failure) = {
            let mut shared = self.shared();
            (std::mem::take(&mut shared.pictures), shared.failure.take())
        };
        if let Some(what) = failure {
            self.worker = None;
            return Err(SamplerError::new(NAME, what));
        }
        let before = out.len();
        for Picture { process, looks, regions } in pictures {
            for region in regions.into_iter().filter(|region| region.accesses > 0) {
                let range = ProcessRange { process, start: region.start, end: region.end };
                let weight = weight(region.accesses, looks);
                pages.pages_in(range, &mut |page| {
                    // DAMON does not tell loads from stores.
                    let (access, source) = (Access::Read, SampleSource::AccessedBit);
                    out.push(Sample { page, access, source, weight });
                });
            }
        }
        self.health.delivered += (out.len() - before) as u64;
        self.health.cpu += thread_cpu().saturating_sub(began);
        Ok(())
    }

    fn set_rarity(&mut self, factor: u32) {
        self.rarity.store(factor, Relaxed);
    }

    fn rests(&self) -> bool {
        // The kernel goes on in any case, and what it says is paid for.
        false
    }

    fn health(&self) -> Health {
        let mut health = self.health;
        let shared = self.shared();
        health.cpu += shared.cpu;
        health.lost += shared.lost;
        health
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A page that is used all the time must weigh much more than one that a sweep has touched
    /// once.
    #[test]
    fn accesses_are_told_from_the_looks_that_found_one() {
        assert_eq!(weight(1, 20), 1);
        assert_eq!(weight(10, 20), 14);
        assert_eq!(weight(20, 20), 74);
        assert_eq!(weight(5, 5), 12);
        assert_eq!(weight(30, 20), 74, "more than it can be is all");
        let mut last = 0;
        for found in 1..=20 {
            assert!(weight(found, 20) > last);
            last = weight(found, 20);
        }
    }
}
