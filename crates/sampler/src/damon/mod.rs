//! The kernel's own access monitor, DAMON, by its files in sysfs.
//!
//! DAMON divides an address space into regions, looks at the accessed bit of
//! one page of each at every sampling interval, and splits and merges regions
//! so that the pages of one are used alike. So its cost is bounded whatever
//! the size of the program, and its picture is coarse: a hot page amid cold
//! ones is seen only when its region has been split that far.
//!
//! One kernel thread a process, because what DAMON reports of several
//! processes in one context does not say which is which. Waiting for the
//! kernel's next picture takes up to an aggregation interval, so a thread of
//! ours does it.
//!
//! | file | concept |
//! |---|---|
//! | [`control`] | the files |
//! | here | the thread, and samples from its pictures |

pub mod control;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use terrace_core::{Access, Nanos, Sample, SampleSource};

use crate::sampler::{ACCESSES_A_BIT, Health, Pages, ProcessRange, Sampler, SamplerError};
use crate::sys::{process_cpu, thread_cpu};
use control::{Control, DamonRegion};

const NAME: &str = "DAMON";

/// What one picture says.
struct Picture {
    process: u32,
    regions: Vec<DamonRegion>,
}

/// What the thread and the sampler share.
#[derive(Default)]
struct Shared {
    pictures: Vec<Picture>,
    cpu: Nanos,
    failure: Option<String>,
}

/// Accesses by DAMON.
pub struct Damon {
    admin: PathBuf,
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
            admin: root.join(control::ADMIN),
            worker: None,
            health: Health::default(),
            rarity: Arc::new(AtomicU32::new(1)),
            shared: Arc::default(),
        }
    }

    fn shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Watches these processes, and no others.
    fn watch(&mut self, processes: Vec<u32>) -> Result<(), SamplerError> {
        if self.worker.as_ref().is_some_and(|w| w.processes == processes) {
            return Ok(());
        }
        // The old thread has to have stopped DAMON before the new one starts it.
        self.worker = None;
        if processes.is_empty() {
            return Ok(());
        }
        let control = Control::start(&self.admin, &processes)
            .map_err(|what| SamplerError::new(NAME, what))?;
        let (stop, stopped) = mpsc::channel();
        let (shared, rarity) = (self.shared.clone(), self.rarity.clone());
        let thread = std::thread::Builder::new()
            .name("terrace-damon".into())
            .spawn(move || follow(control, &shared, &rarity, &stopped))
            .map_err(|e| SamplerError::new(NAME, format!("thread: {e}")))?;
        self.worker = Some(Worker { processes, stop: Some(stop), thread: Some(thread) });
        Ok(())
    }
}

/// The thread's life: a picture an aggregation interval, until it is told to
/// stop. Ends DAMON when it ends.
fn follow(
    mut control: Control,
    shared: &Mutex<Shared>,
    rarity: &AtomicU32,
    stopped: &Receiver<()>,
) {
    let lock = || shared.lock().unwrap_or_else(PoisonError::into_inner);
    let mut kernel = vec![Nanos::ZERO; control.processes().len()];
    let mut own = thread_cpu();
    loop {
        if let Err(what) = control.set_rarity(rarity.load(Relaxed)) {
            lock().failure = Some(what);
            return;
        }
        // While nobody takes the last pictures (the governor has sampling rest),
        // no further ones are taken.
        let wanted = lock().pictures.is_empty();
        for (i, before) in kernel.iter_mut().enumerate().filter(|_| wanted) {
            let regions = match control.picture(i) {
                Ok(regions) => regions,
                // The process ended, and DAMON with it.
                Err(_) if !control.is_on(i) => Vec::new(),
                Err(what) => {
                    lock().failure = Some(what);
                    return;
                }
            };
            let spent = control.thread(i).map_or(*before, process_cpu).max(*before);
            let mine = thread_cpu();
            let mut shared = lock();
            shared.cpu += spent.saturating_sub(*before) + mine.saturating_sub(own);
            *before = spent;
            own = mine;
            shared.pictures.push(Picture { process: control.processes()[i], regions });
        }
        if !wanted {
            let mut shared = lock();
            for (i, before) in kernel.iter_mut().enumerate() {
                let spent = control.thread(i).map_or(*before, process_cpu).max(*before);
                shared.cpu += spent.saturating_sub(*before);
                *before = spent;
            }
        }
        // The kernel has waited for us as long as a picture takes; a little
        // more, so that a process that has ended does not keep us spinning.
        match stopped.recv_timeout(Duration::from_millis(20)) {
            Err(RecvTimeoutError::Timeout) => {}
            _ => return,
        }
    }
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
        let mut processes: Vec<_> = pages.ranges().iter().map(|range| range.process).collect();
        processes.dedup();
        self.watch(processes)?;
        let (pictures, cpu, failure) = {
            let mut shared = self.shared();
            (std::mem::take(&mut shared.pictures), shared.cpu, shared.failure.take())
        };
        self.health.cpu = cpu;
        if let Some(what) = failure {
            self.worker = None;
            return Err(SamplerError::new(NAME, what));
        }
        let before = out.len();
        for Picture { process, regions } in pictures {
            for region in regions.into_iter().filter(|region| region.accesses > 0) {
                let range = ProcessRange { process, start: region.start, end: region.end };
                let weight = region.accesses.min(u32::from(u16::MAX)) as u16;
                pages.pages_in(range, &mut |page| {
                    // DAMON does not tell loads from stores.
                    let (access, source) = (Access::Read, SampleSource::AccessedBit);
                    out.push(Sample { page, access, source, weight });
                });
            }
        }
        self.health.delivered += (out.len() - before) as u64;
        Ok(())
    }

    fn set_rarity(&mut self, factor: u32) {
        self.rarity.store(factor, Relaxed);
    }

    fn health(&self) -> Health {
        self.health
    }
}
