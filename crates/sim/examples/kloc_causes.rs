//! What keeps `terrace reproduce klocs` from the paper's factors: suspected causes are switched
//! off, one at a time, and the factors printed again.
//!
//! `kloc_causes [guard|tiers|nimble|prefetch|sockets]…` prints those parts, or all of them, at the scale of
//! `--quick`. `SCALE=128 kloc_causes guard` prints them at another scale.
//!
//! A switch is no machine that exists. It says how much of a factor something takes, and nothing
//! else: what is printed with it is not held against the paper.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use terrace_core::{Bytes, BytesPerSecond, Machine, Nanos};
use terrace_kloc::policy::{
    Halves, KernelObjects, Leaving, ObjectsConfig, Strategy, StrategyConfig,
};
use terrace_policy::{Nimble, NimbleConfig, Policy};
use terrace_sim::kernel::programs::{Amount, Program, Shapes};
use terrace_sim::kernel::{Class, Costs, Kernel, KernelConfig, KernelReport, SocketsConfig};
use terrace_sim::{SimError, machines};

const SHAPES: &str = include_str!("../data/io-programs.toml");
const FAST: Bytes = Bytes::gib(8);
const STREAMS: u32 = 16;

/// What is switched off, or made another.
#[derive(Clone, Copy, Debug)]
#[allow(clippy::struct_excessive_bools)] // each is a switch by itself
struct Switches {
    /// Transfers take no time.
    disk: bool,
    /// The program computes nothing between its calls.
    compute: bool,
    /// Calls take no time but for memory and disk.
    calls: bool,
    /// Nothing is read ahead.
    read_ahead: bool,
    /// Both memories have a quarter of their size.
    quarter: bool,
    /// The last-level cache holds next to nothing.
    cache: bool,
    /// Pages of files that are in use keep the program's out of the fast memory (`Klocs` alone).
    files_first: bool,
}

const NONE: Switches = Switches {
    disk: false,
    compute: false,
    calls: false,
    read_ahead: false,
    quarter: false,
    cache: false,
    files_first: false,
};

const OFF: [(&str, Switches); 8] = [
    ("as it is", NONE),
    ("disk takes no time", Switches { disk: true, ..NONE }),
    ("program computes nothing", Switches { compute: true, ..NONE }),
    ("calls take no time of their own", Switches { calls: true, ..NONE }),
    ("last-level cache of 4 KiB", Switches { cache: true, ..NONE }),
    ("disk, computing, calls", Switches { disk: true, compute: true, calls: true, ..NONE }),
    (
        "disk, computing, calls, cache",
        Switches { disk: true, compute: true, calls: true, cache: true, ..NONE },
    ),
    ("a quarter of the memory", Switches { quarter: true, ..NONE }),
];

#[derive(Clone, Copy, Debug)]
struct Job {
    program: Program,
    strategy: Strategy,
    switches: Switches,
    sockets: bool,
    seed: u64,
}

fn main() -> Result<(), SimError> {
    let parts: Vec<String> = std::env::args().skip(1).collect();
    let wants = |part: &str| parts.is_empty() || parts.iter().any(|other| other == part);
    let scale = std::env::var("SCALE").ok().and_then(|text| text.parse().ok()).unwrap_or(512);
    let operations = if scale >= 512 { 4_000 } else { 20_000 };
    let of = Setup { scale, operations };
    println!("scale 1:{scale}, {operations} operations of each thread");
    if wants("guard") {
        guard(&of)?;
    }
    if wants("tiers") {
        tiers(&of)?;
    }
    if wants("nimble") {
        nimble(&of)?;
    }
    if wants("prefetch") {
        prefetch(&of)?;
    }
    if wants("sockets") {
        sockets(&of)?;
    }
    Ok(())
}

struct Setup {
    scale: u64,
    operations: u64,
}

/// KLOCs with the guard over KLOCs, by seed.
fn guard(of: &Setup) -> Result<(), SimError> {
    const SEEDS: u64 = 8;
    let mut jobs = Vec::new();
    for program in Program::ALL {
        for seed in 1..=SEEDS {
            for strategy in [Strategy::Klocs, Strategy::KlocsGuarded] {
                jobs.push(Job { program, strategy, switches: NONE, sockets: false, seed });
            }
        }
    }
    let reports = of.run_all(&jobs)?;
    println!("\nKLOCs with the reuse guard over KLOCs, seeds 1 to {SEEDS}; KLOCs' own spread");
    for (program, of) in Program::ALL.into_iter().zip(reports.chunks(2 * SEEDS as usize)) {
        let ratios: Vec<f64> =
            of.chunks(2).map(|pair| pair[1].throughput() / pair[0].throughput()).collect();
        let plain: Vec<f64> = of.chunks(2).map(|pair| pair[0].throughput()).collect();
        let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
        let (low, high) = bounds(&plain);
        let text: Vec<String> = ratios.iter().map(|ratio| format!("{ratio:.3}")).collect();
        println!(
            "{:>10}  {}  mean {:.3}; spread {:.1} %",
            program.name(),
            text.join(" "),
            mean(&ratios),
            (high / low - 1.0) * 100.0
        );
        for pair in of.chunks(2).take(1) {
            for (name, report) in ["plain", "guarded"].into_iter().zip(pair) {
                let cache = report.counts.class(Class::PageCache);
                println!(
                    "            {name:8} down {:7} up {:7} misses fast {:9} slow {:9} (program slow {})",
                    cache.demoted,
                    cache.promoted,
                    cache.misses[0],
                    cache.misses[1],
                    report.counts.class(Class::Program).misses[1],
                );
            }
        }
    }
    Ok(())
}

fn bounds(values: &[f64]) -> (f64, f64) {
    let low = values.iter().copied().fold(f64::INFINITY, f64::min);
    (low, values.iter().copied().fold(0.0, f64::max))
}

/// What fast memory brings at most, and what KLOCs brings over Naive.
fn tiers(of: &Setup) -> Result<(), SimError> {
    let all = [Strategy::AllSlow, Strategy::AllFast, Strategy::Naive, Strategy::Klocs];
    let jobs: Vec<Job> = OFF
        .into_iter()
        .flat_map(|(_, switches)| {
            Program::ALL.into_iter().flat_map(move |program| {
                all.map(|strategy| Job { program, strategy, switches, sockets: false, seed: 1 })
            })
        })
        .collect();
    let reports = of.run_all(&jobs)?;
    println!("\nall fast over all slow / KLOCs over Naive");
    heads();
    for ((name, _), row) in OFF.into_iter().zip(reports.chunks(4 * Program::ALL.len())) {
        print!("{name:32}");
        for of in row.chunks(4) {
            let t: Vec<f64> = of.iter().map(KernelReport::throughput).collect();
            print!("  {:5.2} / {:4.2}", t[1] / t[0], t[3] / t[2]);
        }
        println!();
    }
    Ok(())
}

/// Why KLOCs was slower than Nimble where files in use fill the fast memory: with and without the
/// program's pages before theirs.
fn nimble(of: &Setup) -> Result<(), SimError> {
    let files_first = Switches { files_first: true, ..NONE };
    let rows = [
        ("nimble", Strategy::Nimble, NONE),
        ("klocs, files first", Strategy::Klocs, files_first),
        ("klocs", Strategy::Klocs, NONE),
    ];
    let jobs: Vec<Job> = Program::ALL
        .into_iter()
        .flat_map(|program| {
            let job =
                |strategy, switches| Job { program, strategy, switches, sockets: false, seed: 1 };
            let rest = rows.map(|(_, strategy, switches)| job(strategy, switches));
            core::iter::once(job(Strategy::AllSlow, NONE)).chain(rest)
        })
        .collect();
    let reports = of.run_all(&jobs)?;
    println!("\nover all slow; lines an operation that missed in slow memory: program, files");
    for (program, of) in Program::ALL.into_iter().zip(reports.chunks(1 + rows.len())) {
        for ((name, ..), report) in rows.iter().zip(&of[1..]) {
            let operations = report.operations.max(1) as f64;
            let missed = |class: Class| report.counts.class(class).misses[1] as f64 / operations;
            println!(
                "{:>10}  {name:20}  {:5.2}  {:8.1}  {:8.1}",
                program.name(),
                report.throughput() / of[0].throughput(),
                missed(Class::Program),
                missed(Class::PageCache),
            );
        }
    }
    Ok(())
}

/// What read-ahead brings, and what read-ahead that knows contexts brings over KLOCs.
fn prefetch(of: &Setup) -> Result<(), SimError> {
    let program = Program::RocksDb;
    let job = |strategy, switches| Job { program, strategy, switches, sockets: false, seed: 1 };
    let jobs: Vec<Job> = OFF
        .into_iter()
        .flat_map(|(_, switches)| {
            [
                job(Strategy::Klocs, Switches { read_ahead: true, ..switches }),
                job(Strategy::Klocs, switches),
                job(Strategy::KlocsPrefetch, switches),
                job(Strategy::KlocsNoMigration, switches),
                job(Strategy::AllFast, switches),
            ]
        })
        .collect();
    let reports = of.run_all(&jobs)?;
    println!("\nRocksDB");
    println!(
        "{:32}  read-ahead  with contexts  no moves  all fast  found in the page cache",
        "factor over KLOCs"
    );
    for ((name, _), row) in OFF.into_iter().zip(reports.chunks(5)) {
        let t: Vec<f64> = row.iter().map(KernelReport::throughput).collect();
        let counts = &row[1].counts;
        let found = counts.cache_hits as f64 / (counts.cache_hits + counts.cache_misses) as f64;
        println!(
            "{name:32}  {:10.3}  {:13.3}  {:8.3}  {:8.3}  {:.1} %",
            t[1] / t[0],
            t[2] / t[1],
            t[3] / t[1],
            t[4] / t[1],
            found * 100.0
        );
    }
    Ok(())
}

/// Two sockets in Memory Mode.
fn sockets(of: &Setup) -> Result<(), SimError> {
    let all = [Strategy::AllSlow, Strategy::AllFast, Strategy::AutoNuma, Strategy::AutoNumaKlocs];
    let off = &OFF[..7];
    let jobs: Vec<Job> = off
        .iter()
        .flat_map(|&(_, switches)| {
            Program::ALL.into_iter().flat_map(move |program| {
                all.map(|strategy| Job { program, strategy, switches, sockets: true, seed: 1 })
            })
        })
        .collect();
    let reports = of.run_all(&jobs)?;
    println!("\ntwo sockets: all local over all remote / AutoNUMA with KLOCs over AutoNUMA");
    heads();
    for ((name, _), row) in off.iter().zip(reports.chunks(4 * Program::ALL.len())) {
        print!("{name:32}");
        let (mut local, mut klocs) = (0.0, 0.0);
        for of in row.chunks(4) {
            let t: Vec<f64> = of.iter().map(KernelReport::throughput).collect();
            local += (t[1] / t[0]).ln();
            klocs += (t[3] / t[2]).ln();
            print!("  {:5.2} / {:4.2}", t[1] / t[0], t[3] / t[2]);
        }
        let programs = Program::ALL.len() as f64;
        println!("  mean {:.2} / {:.2}", (local / programs).exp(), (klocs / programs).exp());
    }
    Ok(())
}

fn heads() {
    print!("{:32}", "");
    for program in Program::ALL {
        print!("  {:>12}", program.name());
    }
    println!();
}

impl Setup {
    fn run_all(&self, jobs: &[Job]) -> Result<Vec<KernelReport>, SimError> {
        let next = AtomicUsize::new(0);
        let done: Mutex<Vec<(usize, Result<KernelReport, SimError>)>> = Mutex::new(Vec::new());
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    loop {
                        let number = next.fetch_add(1, Ordering::Relaxed);
                        let Some(job) = jobs.get(number) else { return };
                        let report = self.run(job);
                        done.lock().expect("nobody panics").push((number, report));
                    }
                });
            }
        });
        let mut done = done.into_inner().expect("nobody panicked");
        done.sort_by_key(|(number, _)| *number);
        done.into_iter().map(|(_, report)| report).collect()
    }

    fn machine(&self, job: &Job) -> Result<Machine, SimError> {
        let less = if job.switches.quarter { 4 } else { 1 };
        let name = if job.sockets { "kloc-memory-mode" } else { "kloc-two-tier" };
        let mut machine = machines::load(name)?;
        if job.sockets {
            for tier in &mut machine.tiers {
                tier.capacity.value = Bytes(tier.capacity.value.get() / self.scale);
            }
            if let Some(cache) = &mut machine.dram_cache {
                cache.capacity.value = Bytes(cache.capacity.value.get() / self.scale);
            }
        } else {
            let all = (FAST + machine.tiers[1].capacity.value).get() / self.scale / less;
            let (all, least) = (Bytes(all / 4096 * 4096), Bytes::kib(4));
            let fast = match job.strategy {
                Strategy::AllFast => all - least,
                Strategy::AllSlow => least,
                _ => Bytes(FAST.get() / self.scale / less),
            };
            machine.tiers[0].capacity.value = fast;
            machine.tiers[1].capacity.value = all - fast;
        }
        if job.switches.cache {
            machine.cpu.llc.value = Bytes(4096);
        }
        Ok(machine)
    }

    /// KLOCs without the program's pages before those of files.
    fn files_first(&self, cpus: usize) -> Box<dyn Policy> {
        let scaled = |time: Nanos| Nanos((time.get() / self.scale).max(1));
        let tick = Nanos::millis(1);
        let period = scaled(NimbleConfig::default().period).max(tick * 2);
        let objects = ObjectsConfig::new(cpus, Leaving::AtClose);
        let pass = scaled(objects.pass);
        let objects = ObjectsConfig { tick, pass, yields: false, ..objects };
        let program = Box::new(Nimble::new(NimbleConfig { period, tick }));
        let kernel = Box::new(KernelObjects::new(objects));
        Box::new(Halves::new("klocs", program, kernel))
    }

    fn run(&self, job: &Job) -> Result<KernelReport, SimError> {
        let Switches { disk, compute, calls, read_ahead, .. } = job.switches;
        let mut text = SHAPES.to_owned();
        if compute {
            for time in ["3us", "5us", "40us", "60us"] {
                text = text.replace(
                    &format!("compute = {{ value = \"{time}\""),
                    "compute = { value = \"0ns\"",
                );
            }
        }
        let shapes = Shapes::parse("io-programs.toml", &text)
            .map_err(|error| SimError::parameter("shapes", error.to_string()))?;
        let amount = Amount {
            data: Bytes(shapes.data.large.value.get() / self.scale),
            scale: self.scale,
            operations: self.operations,
            seed: job.seed,
        };
        let mut program = job.program.calls(&shapes, &amount);
        let mut costs = Costs::builtin().scaled(self.scale);
        if disk {
            costs.device.latency.value = Nanos::ZERO;
            costs.device.sequential.value = BytesPerSecond(1e18);
            costs.device.random.value = BytesPerSecond(1e18);
        }
        if calls {
            let time = &mut costs.time;
            for cost in [
                &mut time.open_and_close,
                &mut time.create_and_unlink,
                &mut time.read_page,
                &mut time.write_page,
                &mut time.new_page,
                &mut time.stat,
                &mut time.connection,
                &mut time.message,
                &mut time.epoll,
                &mut time.map,
            ] {
                cost.value = Nanos::ZERO;
            }
        }
        if read_ahead {
            costs.pace.read_ahead.value = Bytes::kib(4);
        }
        let machine = self.machine(job)?;
        let threads = program.threads();
        let cpus = threads.min(machine.cpu.cores.value as usize);
        let moves = job.strategy != Strategy::AllFast;
        let config = KernelConfig {
            costs,
            scale: self.scale,
            tells_ahead: job.strategy == Strategy::KlocsPrefetch,
            sockets: job.sockets.then_some(SocketsConfig { streams: STREAMS, moves }),
            ..KernelConfig::new(machine)
        };
        let policy = if job.switches.files_first {
            self.files_first(cpus)
        } else {
            job.strategy.build(&StrategyConfig::new(cpus, self.scale))
        };
        let mut kernel = Kernel::new(&config, policy, threads, program.pages())?;
        kernel
            .run(program.as_mut())
            .map_err(|refused| SimError::parameter("program", refused.to_string()))
    }
}
