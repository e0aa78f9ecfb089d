//! Turns: each target runs for a moment, then the next, round after round; medians and spread.

use std::io;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use serde::Serialize;
use terrace_clocks::thread_time;
use terrace_core::{Xorshift, splitmix64};

use crate::target::{Client, Target};

/// Whether sectors are read or written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Way {
    /// They are read.
    Read,
    /// They are written.
    Write,
}

/// In which order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Order {
    /// Any.
    Random,
    /// One after the other, from the beginning again at the end.
    Sequential,
}

/// What a thread does in its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Job {
    /// Read or write.
    pub way: Way,
    /// The order of positions.
    pub order: Order,
    /// Bytes of each operation.
    pub bytes: usize,
    /// Threads at the same time.
    pub threads: usize,
    /// Requests that each thread has under way at a time.
    pub depth: usize,
}

/// How often and how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// How often each target has its turn.
    pub rounds: usize,
    /// How long a turn is.
    pub turn: Duration,
    /// Whether time is that of the processor, so that programs that run beside do not count; for
    /// targets that do all work in the calling thread. Else it is that of the clock, and each
    /// operation is timed.
    pub processor_time: bool,
}

/// The median of the rounds, and the least and the largest of them.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// The middle one.
    pub median: f64,
    /// The least.
    pub low: f64,
    /// The largest.
    pub high: f64,
}

impl Spread {
    /// Of some values; `None` of none.
    pub fn of(mut values: Vec<f64>) -> Option<Self> {
        values.sort_by(f64::total_cmp);
        let median = *values.get(values.len() / 2)?;
        Some(Self { median, low: *values.first()?, high: *values.last()? })
    }
}

/// What one target did.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Its name.
    pub target: String,
    /// What it was asked for.
    pub job: Job,
    /// Operations a second, of all threads together. A second is one of the processor's time of
    /// each thread, or of the clock ([`Plan::processor_time`]).
    pub per_second: Spread,
    /// Operations a second of the clock, of all threads together, from the first one's beginning to
    /// the last one's end: whether threads disturb each other.
    pub per_second_by_clock: Spread,
    /// The median time of an operation in microseconds, where each was timed.
    pub p50_us: Option<Spread>,
}

/// Operations between two looks at the clock, where they are not timed one by one.
const BETWEEN_LOOKS: u64 = 64;

struct Turn {
    per_second: f64,
    per_second_by_clock: f64,
    p50_us: Option<f64>,
}

/// Runs all targets by turns.
pub fn measure(
    targets: &[&dyn Target],
    job: Job,
    plan: Plan,
    progress: &dyn Fn(usize, usize),
) -> io::Result<Vec<Row>> {
    let mut turns: Vec<Vec<Turn>> = targets.iter().map(|_| Vec::new()).collect();
    for round in 0..plan.rounds {
        for (number, target) in targets.iter().enumerate() {
            progress(round * targets.len() + number, plan.rounds * targets.len());
            let ran = turn(*target, job, plan, round as u64)
                .map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", target.name())))?;
            turns[number].push(ran);
        }
    }
    let row = |(target, turns): (&&dyn Target, Vec<Turn>)| {
        let per_second = Spread::of(turns.iter().map(|turn| turn.per_second).collect())?;
        let by_clock = turns.iter().map(|turn| turn.per_second_by_clock);
        let per_second_by_clock = Spread::of(by_clock.collect())?;
        let p50_us = Spread::of(turns.iter().filter_map(|turn| turn.p50_us).collect());
        Some(Row { target: target.name(), job, per_second, per_second_by_clock, p50_us })
    };
    Ok(targets.iter().zip(turns).filter_map(row).collect())
}

fn turn(target: &dyn Target, job: Job, plan: Plan, round: u64) -> io::Result<Turn> {
    let all = &Barrier::new(job.threads);
    let results: Vec<io::Result<Ran>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..job.threads)
            .map(|thread| {
                let seed = round * 1000 + thread as u64 + 1;
                scope.spawn(move || {
                    let client = target.client();
                    // Also who has no client comes here: the others wait.
                    all.wait();
                    run(&mut *client?, target.capacity(), job, plan, seed)
                })
            })
            .collect();
        let died = || Err(io::Error::other("a thread panicked"));
        threads.into_iter().map(|one| one.join().unwrap_or_else(|_| died())).collect()
    });
    let results = results.into_iter().collect::<io::Result<Vec<Ran>>>()?;
    let per_second: f64 = results.iter().map(|ran| ran.count as f64 / ran.seconds).sum();
    let count: u64 = results.iter().map(|ran| ran.count).sum();
    let from = results.iter().map(|ran| ran.from).min();
    let until = results.iter().map(|ran| ran.until).max();
    let took = from.zip(until).map_or(Duration::ZERO, |(from, until)| until - from);
    let mut times: Vec<u32> = results.into_iter().flat_map(|ran| ran.times).collect();
    times.sort_unstable();
    let p50_us = times.get(times.len() / 2).map(|nanos| f64::from(*nanos) / 1000.0);
    Ok(Turn { per_second, per_second_by_clock: count as f64 / took.as_secs_f64(), p50_us })
}

struct Ran {
    count: u64,
    seconds: f64,
    /// When its first operation began, and its last had ended.
    from: Instant,
    until: Instant,
    /// Nanoseconds of each operation.
    times: Vec<u32>,
}

fn nanos(time: Duration) -> u32 {
    time.as_nanos().min(u128::from(u32::MAX)) as u32
}

/// A buffer whose beginning suits reads and writes past the cache.
struct Buffer {
    bytes: Vec<u8>,
    from: usize,
    length: usize,
}

impl Buffer {
    const ALIGN: usize = 4096;

    fn new(length: usize) -> Self {
        let bytes = vec![0x5a; length + Self::ALIGN];
        let from = bytes.as_ptr().align_offset(Self::ALIGN);
        Self { bytes, from, length }
    }

    fn get(&mut self) -> &mut [u8] {
        &mut self.bytes[self.from..self.from + self.length]
    }
}

/// Where a thread reads or writes next.
struct Places {
    order: Order,
    bytes: u64,
    count: u64,
    next: u64,
    random: Xorshift,
}

impl Places {
    fn new(capacity: u64, job: Job, seed: u64) -> io::Result<Self> {
        let bytes = job.bytes as u64;
        let count = capacity / bytes;
        if count == 0 {
            return Err(io::Error::other("it is smaller than one operation"));
        }
        // Positions need no better randomness, and it costs no time.
        let random = Xorshift::new(splitmix64(seed));
        let mut places = Self { order: job.order, bytes, count, next: 0, random };
        places.next = places.any();
        Ok(places)
    }

    #[inline]
    fn any(&mut self) -> u64 {
        self.random.below(self.count).unwrap_or(0)
    }

    /// In bytes from the beginning.
    #[inline]
    fn next(&mut self) -> u64 {
        let at = self.next * self.bytes;
        self.next = match self.order {
            Order::Random => self.any(),
            Order::Sequential if self.next + 1 == self.count => 0,
            Order::Sequential => self.next + 1,
        };
        at
    }
}

fn run(client: &mut dyn Client, capacity: u64, job: Job, plan: Plan, seed: u64) -> io::Result<Ran> {
    let mut buffer = Buffer::new(job.bytes);
    let mut places = Places::new(capacity, job, seed)?;
    let start = Instant::now();
    let cpu = thread_time();
    let (mut count, mut times) = (0, Vec::new());
    if job.depth > 1 {
        times = overlapping(client, &mut places, &mut buffer, job, start, plan.turn)?;
        count = times.len() as u64;
    } else if plan.processor_time {
        loop {
            for _ in 0..BETWEEN_LOOKS {
                step(client, job.way, places.next(), &mut buffer)?;
            }
            count += BETWEEN_LOOKS;
            // Afterwards: who had no processor meanwhile has done something all the same.
            if start.elapsed() >= plan.turn {
                break;
            }
        }
    } else {
        let mut before = Instant::now();
        loop {
            step(client, job.way, places.next(), &mut buffer)?;
            let now = Instant::now();
            times.push(nanos(now - before));
            before = now;
            count += 1;
            if before - start >= plan.turn {
                break;
            }
        }
    }
    if job.way == Way::Write {
        client.flush()?;
    }
    let until = Instant::now();
    let spent = if plan.processor_time { thread_time().saturating_sub(cpu) } else { until - start };
    Ok(Ran { count, seconds: spent.as_secs_f64(), from: start, until, times })
}

#[inline]
fn step(client: &mut dyn Client, way: Way, at: u64, buffer: &mut Buffer) -> io::Result<()> {
    match way {
        Way::Read => client.read(at, buffer.get()),
        Way::Write => client.write(at, buffer.get()),
    }
}

/// Keeps several requests under way for the time of a turn, and waits for the last ones.
/// Nanoseconds of each, from when it could be sent to its reply.
fn overlapping(
    client: &mut dyn Client,
    places: &mut Places,
    buffer: &mut Buffer,
    job: Job,
    start: Instant,
    turn: Duration,
) -> io::Result<Vec<u32>> {
    let queue = client.queue().ok_or_else(|| io::Error::other("it takes one request at a time"))?;
    let mut begun = vec![None; job.depth];
    for (number, before) in (0..).zip(&mut begun) {
        *before = Some(Instant::now());
        queue.send(number, job.way, places.next(), buffer.get())?;
    }
    let mut times = Vec::new();
    let mut under_way = job.depth;
    while under_way > 0 {
        let number = queue.receive(job.way, buffer.get())?;
        let now = Instant::now();
        let Some(before) = begun.get_mut(number as usize).and_then(Option::take) else {
            return Err(io::Error::other(format!("a reply to request {number}, which is none")));
        };
        times.push(nanos(now - before));
        if now - start < turn {
            begun[number as usize] = Some(now);
            queue.send(number, job.way, places.next(), buffer.get())?;
        } else {
            under_way -= 1;
        }
    }
    Ok(times)
}

/// Writes every place once, so that reads find data and writes replace some.
pub fn fill(target: &dyn Target, bytes: usize) -> io::Result<()> {
    let mut client = target.client()?;
    let mut buffer = Buffer::new(bytes);
    let mut at = 0;
    while at + bytes as u64 <= target.capacity() {
        client.write(at, buffer.get())?;
        at += bytes as u64;
    }
    client.flush()
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    struct Counted(Mutex<Vec<u64>>);

    impl Target for Counted {
        fn name(&self) -> String {
            "counted".into()
        }
        fn capacity(&self) -> u64 {
            10 * 512
        }
        fn client(&self) -> io::Result<Box<dyn Client + '_>> {
            Ok(Box::new(self))
        }
    }

    impl Client for &Counted {
        fn read(&mut self, at: u64, bytes: &mut [u8]) -> io::Result<()> {
            assert_eq!(bytes.as_ptr().addr() % 4096, 0);
            self.0.lock().unwrap().push(at / bytes.len() as u64);
            Ok(())
        }
        fn write(&mut self, at: u64, bytes: &[u8]) -> io::Result<()> {
            self.0.lock().unwrap().push(at / bytes.len() as u64);
            Ok(())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Operations that wait take no processor time, so only the clock tells how many there are.
    struct Waiting;

    impl Target for Waiting {
        fn name(&self) -> String {
            "waiting".into()
        }
        fn capacity(&self) -> u64 {
            1 << 20
        }
        fn client(&self) -> io::Result<Box<dyn Client + '_>> {
            Ok(Box::new(self))
        }
    }

    impl Client for &Waiting {
        fn read(&mut self, _: u64, _: &mut [u8]) -> io::Result<()> {
            std::thread::sleep(Duration::from_millis(1));
            Ok(())
        }
        fn write(&mut self, _: u64, _: &[u8]) -> io::Result<()> {
            Ok(())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn rates_by_the_clock_are_of_all_threads_and_of_the_time_that_has_passed() {
        let plan = Plan { rounds: 1, turn: Duration::from_millis(1), processor_time: true };
        for threads in [1, 3] {
            let (way, order) = (Way::Read, Order::Random);
            let job = Job { way, order, bytes: 512, threads, depth: 1 };
            let rows = measure(&[&Waiting], job, plan, &|_, _| ()).unwrap();
            let by_clock = rows[0].per_second_by_clock.median;
            assert!(by_clock <= 1000.0 * threads as f64, "{by_clock} of {threads} threads");
            assert!(by_clock < rows[0].per_second.median, "{rows:?}");
        }
    }

    /// One whose client cannot be had must be an error, and not be waited for.
    struct Refused;

    impl Target for Refused {
        fn name(&self) -> String {
            "refused".into()
        }
        fn capacity(&self) -> u64 {
            1 << 20
        }
        fn client(&self) -> io::Result<Box<dyn Client + '_>> {
            Err(io::ErrorKind::ConnectionRefused.into())
        }
    }

    #[test]
    fn threads_do_not_wait_for_one_that_has_no_client() {
        let plan = Plan { rounds: 1, turn: Duration::from_millis(1), processor_time: false };
        let (way, order) = (Way::Read, Order::Random);
        let job = Job { way, order, bytes: 512, threads: 2, depth: 1 };
        let refused = measure(&[&Refused], job, plan, &|_, _| ()).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
    }

    #[test]
    fn random_orders_reach_every_place_and_sequential_ones_go_round() {
        let plan = Plan { rounds: 1, turn: Duration::from_millis(5), processor_time: true };
        for order in [Order::Random, Order::Sequential] {
            let target = Counted(Mutex::default());
            let job = Job { way: Way::Read, order, bytes: 512, threads: 1, depth: 1 };
            let rows = measure(&[&target], job, plan, &|_, _| ()).unwrap();
            assert!(rows[0].per_second.median > 0.0);
            let seen = target.0.into_inner().unwrap();
            for place in 0..10 {
                assert!(seen.contains(&place), "{order:?} left out {place}");
            }
            if order == Order::Sequential {
                assert!(seen.windows(2).all(|two| two[1] == (two[0] + 1) % 10));
            }
        }
    }

    #[test]
    fn a_spread_is_of_the_middle_and_the_ends() {
        let spread = Spread::of(vec![3.0, 1.0, 2.0]).unwrap();
        assert_eq!((spread.low, spread.median, spread.high), (1.0, 2.0, 3.0));
        assert_eq!(Spread::of(Vec::new()), None);
    }
}
