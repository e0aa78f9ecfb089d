//! The kernel's own access monitor, DAMON, by its files in sysfs.
//!
//! DAMON divides an address space into regions, looks at the accessed bit of
//! one page of each at every sampling interval, and splits and merges regions
//! so that the pages of one are used alike. So its cost is bounded whatever
//! the size of the program, and its picture is coarse: a hot page amid cold
//! ones is seen only when its region has been split that far, or by what else
//! is known of its pages ([`crate::attribution`]).
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

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use terrace_core::{Access, Nanos, Sample, SampleSource};

use crate::attribution::{Cursor, Finds, Stores, within};
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
    /// Which pages were stored to, if somebody looks.
    stores: Stores,
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
    /// A sampler by the files below `root` (`/` for this machine), that gives what it finds in a
    /// region to pages in `stores` before others.
    pub fn new(root: &Path, stores: Stores) -> Self {
        Self {
            root: root.to_owned(),
            stores,
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
fn weight(found: f64, looks: u32) -> u16 {
    let looks = f64::from(looks.max(1));
    let vain = (looks - found).max(0.5);
    (-looks * (vain / looks).ln()).round().clamp(0.0, f64::from(u16::MAX)) as u16
}

/// Samples of what a picture says, for a process in which these ranges were stored to.
fn tell(picture: &Picture, stored: &[Range<u64>], pages: &dyn Pages, out: &mut Vec<Sample>) {
    let &Picture { process, looks, ref regions } = picture;
    for region in regions.iter().filter(|region| region.accesses > 0) {
        let bytes = region.start..region.end;
        let stored = within(stored, &bytes);
        let finds = Finds::of(region.accesses, looks, &bytes, stored);
        let (more, less) = (weight(finds.stored, looks), weight(finds.others, looks));
        let mut cursor = Cursor::new(stored);
        let range = ProcessRange { process, start: region.start, end: region.end };
        pages.pages_in(range, &mut |page, bytes| {
            let weight = if cursor.touches(&bytes) { more } else { less };
            if weight > 0 {
                // DAMON does not tell loads from stores.
                let (access, source) = (Access::Read, SampleSource::AccessedBit);
                out.push(Sample { page, access, source, weight });
            }
        });
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
        for picture in pictures {
            self.stores.of(picture.process, |stored| tell(&picture, stored, pages, out));
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
    use terrace_core::{PageNo, PageRef, RegionId};

    /// A hundred pages at their addresses, the last of them a huge one.
    struct Hundred;

    const HUGE: Range<u64> = 100 * 4096..100 * 4096 + (2 << 20);

    impl Pages for Hundred {
        fn page_at(&self, _: u32, _: u64) -> Option<PageRef> {
            None
        }
        fn pages_in(&self, range: ProcessRange, each: &mut dyn FnMut(PageRef, Range<u64>)) {
            let small = (0..100u64).map(|i| i * 4096..(i + 1) * 4096);
            for (i, bytes) in small.chain([HUGE]).enumerate() {
                if bytes.start < range.end && bytes.end > range.start {
                    each(PageRef { region: RegionId(0), page: PageNo(i as u32) }, bytes);
                }
            }
        }
        fn ranges(&self) -> Vec<ProcessRange> {
            Vec::new()
        }
    }

    /// Weights of the pages of one region that was found in use in so many of 20 looks.
    fn told(region: Range<u64>, accesses: u32, stored: &[Range<u64>]) -> Vec<(u32, u16)> {
        let region = DamonRegion { start: region.start, end: region.end, accesses };
        let picture = Picture { process: 1, looks: 20, regions: vec![region] };
        let mut out = Vec::new();
        tell(&picture, stored, &Hundred, &mut out);
        out.iter().map(|sample| (sample.page.page.0, sample.weight)).collect()
    }

    /// If its neighbours were told as well, or the stores of another region counted, who moves
    /// hot pages would move these.
    #[test]
    fn what_was_found_goes_to_the_pages_that_were_stored_to() {
        let page = |i: u64| i * 4096..(i + 1) * 4096;
        let stored = [page(0), page(10), page(13), page(16), page(30)];
        assert_eq!(told(10 * 4096..19 * 4096, 6, &stored), [(10, 46), (13, 46), (16, 46)]);
        assert_eq!(told(17 * 4096..20 * 4096, 20, &stored), [(17, 74), (18, 74), (19, 74)]);
        assert_eq!(told(10 * 4096..12 * 4096, 0, &stored), [], "nothing was found there");
    }

    #[test]
    fn a_huge_page_is_stored_to_if_any_part_of_it_is() {
        let part = HUGE.start + (1 << 20)..HUGE.end;
        assert_eq!(told(HUGE, 10, std::slice::from_ref(&part)), [(100, 74)]);
        assert_eq!(told(HUGE, 10, &[]), [(100, 14)]);
    }

    /// A page that is used all the time must weigh much more than one that a sweep has touched
    /// once.
    #[test]
    fn accesses_are_told_from_the_looks_that_found_one() {
        assert_eq!(weight(1.0, 20), 1);
        assert_eq!(weight(10.0, 20), 14);
        assert_eq!(weight(20.0, 20), 74);
        assert_eq!(weight(5.0, 5), 12);
        assert_eq!(weight(30.0, 20), 74, "more than it can be is all");
        let mut last = 0;
        for found in 1..=20 {
            let now = weight(f64::from(found), 20);
            assert!(now > last);
            last = now;
        }
    }
}
