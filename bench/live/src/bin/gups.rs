//! GUPS on memory that may be larger than its budget: read-modify-writes of 8
//! bytes, most of them to a hot set whose pages lie scattered.
//!
//! The program knows nothing of Terrace or swap; the driver decides under what
//! it runs. Prints one JSON line.

use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering::*};
use std::time::{Duration, Instant};

use clap::Parser;
use terrace_bench::{corpus, histogram::Histogram};
use terrace_core::Bytes;

const PAGE: usize = 4096;
const WORDS: u64 = (PAGE / 8) as u64;

/// 90 % of the updates go to the hot set, as in HeMem's evaluation.
#[derive(Parser)]
struct Args {
    /// The whole working set.
    #[arg(long, default_value = "4GiB")]
    size: Bytes,
    /// Its hot part.
    #[arg(long, default_value = "512MiB")]
    hot: Bytes,
    /// Percent of the updates that go to the hot set.
    #[arg(long, default_value_t = 90)]
    percent: u64,
    /// Threads; each updates the whole set.
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// Seconds before measuring.
    #[arg(long, default_value_t = 6.0)]
    warm: f64,
    /// Seconds of measuring the rate.
    #[arg(long, default_value_t = 4.0)]
    measure: f64,
    /// Seconds of timing single updates, after that.
    #[arg(long, default_value_t = 2.0)]
    latency: f64,
    /// A file whose pages fill the memory, over and over.
    #[arg(long)]
    corpus: std::path::PathBuf,
    /// Where random numbers begin.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Only read.
    #[arg(long)]
    read_only: bool,
    /// Does nothing until a line comes on standard input, then measures, says so in a line, and
    /// waits for the next.
    #[arg(long)]
    turns: bool,
}

struct Random(u64);

impl Random {
    /// xorshift64*, good enough to pick pages and cheap enough not to matter.
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
    /// Uniform below `n` (multiply-shift; the bias is below 2^-32).
    fn below(&mut self, n: u64) -> u64 {
        ((self.next() >> 32) * n) >> 32
    }
}

/// The phases, in order.
const WARM: u64 = 0;
const MEASURE: u64 = 1;
const LATENCY: u64 = 2;
const END: u64 = 3;
/// Waits to be woken.
const REST: u64 = 4;

fn main() {
    let args = Args::parse();
    let pages = args.size.get() / PAGE as u64;
    let hot = (args.hot.get() / PAGE as u64).clamp(1, pages);
    let corpus = corpus::load(&args.corpus);

    // The working set, straight from the kernel as any allocator of large
    // blocks would get it.
    // SAFETY: a fresh private mapping.
    let base = unsafe {
        libc::mmap(
            core::ptr::null_mut(),
            args.size.get() as usize,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    assert!(base != libc::MAP_FAILED, "no memory for the working set");
    // SAFETY: as advice, changes no content: both sides run on base pages.
    unsafe { libc::madvise(base, args.size.get() as usize, libc::MADV_NOHUGEPAGE) };
    let base = base as usize;
    let filling = Instant::now();
    for page in 0..pages as usize {
        let from = (page * PAGE) % corpus.len();
        // SAFETY: inside of the mapping; the corpus is whole pages.
        unsafe {
            core::ptr::copy_nonoverlapping(
                corpus.as_ptr().add(from),
                (base + page * PAGE) as *mut u8,
                PAGE,
            );
        }
    }
    let fill = filling.elapsed();
    drop(corpus);

    // The hot set: the first pages of a random order.
    let mut random = Random(args.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let mut order: Vec<u32> = (0..pages as u32).collect();
    for i in (1..order.len()).rev() {
        order.swap(i, random.below(i as u64 + 1) as usize);
    }
    order.truncate(hot as usize);

    let phase = AtomicU64::new(WARM);
    let counted = AtomicU64::new(0);
    let latency = Histogram::new();
    let start = Barrier::new(args.threads + 1);
    let resting = AtomicU64::new(0);
    let mut measured = Duration::ZERO;
    std::thread::scope(|scope| {
        let mut workers = Vec::new();
        for thread in 0..args.threads {
            let (order, phase, counted, latency, start) =
                (&order, &phase, &counted, &latency, &start);
            let resting = &resting;
            let mut random = Random((args.seed + thread as u64 + 7).wrapping_mul(0x9e37_79b9) | 1);
            let (percent, read_only) = (args.percent, args.read_only);
            let worker = scope.spawn(move || {
                start.wait();
                let mut sum = 0u64;
                let mut update = || {
                    let page = if random.below(100) < percent {
                        u64::from(order[random.below(hot) as usize])
                    } else {
                        random.below(pages)
                    };
                    let word = random.below(WORDS);
                    let at = (base + page as usize * PAGE) as *mut u64;
                    // SAFETY: inside of the mapping. Two threads may update one
                    // word at once and lose a count, which nobody reads.
                    unsafe {
                        let cell = AtomicU64::from_ptr(at.add(word as usize));
                        let old = cell.load(Relaxed);
                        if read_only {
                            sum = sum.wrapping_add(old);
                        } else {
                            cell.store(old.wrapping_add(1), Relaxed);
                        }
                    }
                };
                let mut done = 0u64;
                let mut counting = false;
                loop {
                    match phase.load(Relaxed) {
                        WARM => (0..64).for_each(|_| update()),
                        MEASURE => {
                            if !counting {
                                counting = true;
                                done = 0;
                            }
                            (0..64).for_each(|_| update());
                            done += 64;
                        }
                        LATENCY => {
                            if counting {
                                counting = false;
                                counted.fetch_add(done, Relaxed);
                            }
                            for _ in 0..64 {
                                let before = Instant::now();
                                update();
                                latency.record(before.elapsed().as_nanos() as u64);
                            }
                        }
                        REST => {
                            if counting {
                                counting = false;
                                counted.fetch_add(done, Relaxed);
                            }
                            resting.fetch_add(1, AcqRel);
                            while phase.load(Acquire) == REST {
                                std::thread::park();
                            }
                            resting.fetch_sub(1, AcqRel);
                        }
                        _ => break,
                    }
                }
                std::hint::black_box(sum);
            });
            workers.push(worker.thread().clone());
        }
        start.wait();
        if args.turns {
            // The measuring thread only waits; when all rest, all has been counted.
            let rest = || {
                phase.store(REST, Release);
                while resting.load(Acquire) < args.threads as u64 {
                    std::thread::sleep(Duration::from_micros(200));
                }
            };
            let go = |next| {
                phase.store(next, Release);
                workers.iter().for_each(std::thread::Thread::unpark);
            };
            std::thread::sleep(Duration::from_secs_f64(args.warm));
            rest();
            let mut lines = std::io::stdin().lines();
            println!("ready");
            while let Some(Ok(_)) = lines.next() {
                let before = counted.load(Relaxed);
                let began = Instant::now();
                go(MEASURE);
                std::thread::sleep(Duration::from_secs_f64(args.measure));
                phase.store(REST, Release);
                let seconds = began.elapsed().as_secs_f64();
                measured += began.elapsed();
                rest();
                let updates = counted.load(Relaxed) - before;
                let turn = terrace_bench::Turn { updates, seconds };
                println!("{}", serde_json::to_string(&turn).expect("plain figures"));
            }
            go(END);
            return;
        }
        std::thread::sleep(Duration::from_secs_f64(args.warm));
        let began = Instant::now();
        phase.store(MEASURE, Relaxed);
        std::thread::sleep(Duration::from_secs_f64(args.measure));
        phase.store(LATENCY, Relaxed);
        measured += began.elapsed();
        std::thread::sleep(Duration::from_secs_f64(args.latency.max(0.05)));
        phase.store(END, Relaxed);
    });

    let result = terrace_bench::Gups {
        updates_per_second: counted.load(Relaxed) as f64 / measured.as_secs_f64(),
        fill_seconds: fill.as_secs_f64(),
        p50_ns: latency.percentile(0.5),
        p99_ns: latency.percentile(0.99),
        p999_ns: latency.percentile(0.999),
        p9999_ns: latency.percentile(0.9999),
        max_ns: latency.percentile(1.0),
    };
    println!("{}", serde_json::to_string(&result).expect("plain figures"));
}
