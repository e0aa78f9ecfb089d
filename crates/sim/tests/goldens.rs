//! What others wrote means what it meant, byte for byte; and recorded programs
//! give the counters that they gave. `SNAPSHOTS=overwrite` writes the expected
//! files anew: look at the difference before it is committed.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use terrace_core::{Bytes, BytesPerSecond, Machine, Nanos};
use terrace_economics::Mode;
use terrace_policy::{HeMem, HeMemConfig, PolicyName};
use terrace_sim::exact::{Batch, ExactConfig, ExactMachine, ExactReport, Source, setup};
use terrace_sim::trace::{Format, import};
use terrace_sim::workload::catalog::{ProgramName, ProgramSpec};
use terrace_sim::{SimPolicy, machines};

fn data(directory: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(directory)
}

/// Compares with a file, or writes it.
fn check(file: &Path, found: &str) {
    if std::env::var_os("SNAPSHOTS").is_some_and(|value| value == "overwrite") {
        fs::write(file, found).expect("the file can be written");
        return;
    }
    let expected = fs::read_to_string(file).unwrap_or_default();
    let line = found.lines().zip(expected.lines()).position(|(a, b)| a != b);
    assert!(found == expected, "{} differs, first in line {:?}", file.display(), line);
}

/// An access a line: thread, what, address, size, instructions before it, and
/// whether it depends on the load before; then what was skipped, dropped or folded.
fn shown(file: &Path) -> String {
    let mut source = import::open(file, Format::of(file)).expect("readable");
    let (mut batch, mut text) = (Batch::default(), String::new());
    while source.next(&mut batch).expect("a good trace") {
        for access in &batch.accesses {
            if access.is_pass() {
                let (thread, instructions) = (batch.thread, access.counted());
                writeln!(text, "{thread} pass +{instructions}").expect("memory");
                continue;
            }
            let what = if access.is_store() { "store" } else { "load" };
            let depends = if access.is_dependent() { " dependent" } else { "" };
            let (address, size, after) = (access.address(), access.size(), access.instructions());
            let thread = batch.thread;
            let same = access.is_of_same_instruction();
            let after = if same { "same".to_owned() } else { format!("+{after}") };
            writeln!(text, "{thread} {what} {address:#x} {size} {after}{depends}").expect("memory");
        }
    }
    for note in source.summary().expect("a trace").notes {
        writeln!(text, "{note}").expect("memory");
    }
    text
}

fn foreign(name: &str) {
    let text = shown(&data("foreign").join(name));
    assert!(!text.is_empty(), "{name} has accesses");
    check(&data("foreign").join(format!("{name}.expected")), &text);
}

#[test]
fn champsim_plain_gzip_and_xz_are_the_same_trace() {
    foreign("mix.champsim");
    let plain = shown(&data("foreign").join("mix.champsim"));
    assert_eq!(shown(&data("foreign").join("mix-gz.champsim.gz")), plain);
    assert_eq!(shown(&data("foreign").join("mix-xz.champsimtrace.xz")), plain);
}

/// Lines of `valgrind --tool=lackey --trace-mem=yes /bin/true`.
#[test]
fn lackey() {
    foreign("true.lackey");
}

/// Two threads; encodings, a bundle, a branch, a prefetch, a footer.
#[test]
fn drmemtrace() {
    foreign("threads.drmemtrace");
}

#[test]
fn dramsim3() {
    foreign("requests.dramsim3");
}

#[test]
fn ramulator() {
    foreign("requests.ls");
}

/// Loads, a store, and a sample without an address.
#[test]
fn perf_script() {
    foreign("samples.perf");
}

/// Events as `perf script` prints them, `damo report raw`, and `damo`'s JSON.
#[test]
fn damo() {
    foreign("aggregated.damo");
    foreign("report-raw.damo");
    foreign("json.damo");
    let plain = shown(&data("foreign").join("json.damo"));
    assert_eq!(shown(&data("foreign").join("damon.data")), plain);
}

/// Counters of a run, a line each; times are in whole nanoseconds.
fn counters(report: &ExactReport) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: u64| {
        writeln!(text, "{name} {value}").expect("memory");
    };
    line("accesses", report.accesses);
    line("instructions", report.instructions);
    line("nanoseconds", report.time.get());
    for (name, cache) in [("L1", &report.l1), ("L2", &report.l2), ("LLC", &report.llc)] {
        line(&format!("{name} loads"), cache.loads);
        line(&format!("{name} load misses"), cache.load_misses);
        line(&format!("{name} stores"), cache.stores);
        line(&format!("{name} store misses"), cache.store_misses);
        line(&format!("{name} walk reads"), cache.walk_reads);
        line(&format!("{name} walk misses"), cache.walk_misses);
        line(&format!("{name} write-backs"), cache.write_backs);
    }
    line("second TLB look-ups", report.tlb.first_misses);
    line("page walks", report.tlb.walks);
    line("first touches", report.faults.first_touches);
    for tier in &report.tiers {
        line(&format!("{} reads", tier.name), tier.reads);
        line(&format!("{} walk reads", tier.name), tier.walk_reads);
        line(&format!("{} writes", tier.name), tier.writes);
        line(&format!("{} bytes in use", tier.name), tier.used.get());
    }
    line("ticks", report.ticks);
    line("samples", report.samples.delivered);
    line("promotions", report.migrated.promotions);
    line("demotions", report.migrated.demotions);
    line("exchanges", report.migrated.exchanges);
    line("vetoes", vetoes(report));
    text
}

fn vetoes(report: &ExactReport) -> u64 {
    report.accounts.iter().map(|class| class.account.vetoed).sum()
}

/// A golden in which the policy does nothing would guard caches and TLBs only.
fn something_happens(report: &ExactReport) {
    let moved = report.migrated.promotions + report.migrated.exchanges;
    let of = [report.ticks, report.samples.delivered, moved, vetoes(report)];
    assert!(of.iter().all(|&n| n > 0), "ticks, samples, promotions, vetoes: {of:?}");
    assert!(report.ticks >= 5, "a policy that runs {} times", report.ticks);
}

/// A machine on which some moves pay and others do not: its slower tier is 4 ns
/// slower, and pages are copied slowly. (At the built-in 250 ns and 6.4 GB/s
/// everything that HeMem calls hot pays, and the economist has nothing to refuse.)
/// Its caches are as given; it has no second level.
fn machine(l1: Bytes, llc: Bytes, copy: BytesPerSecond) -> Machine {
    let mut machine = machines::builtin("cxl").expect("built in");
    machine.tiers[1].read_latency.value = Nanos(110);
    machine.tiers[1].write_latency.value = Nanos(110);
    machine.costs.copy_bandwidth.value = copy;
    machine.cpu.llc.value = llc;
    let detail = machine.detail.as_mut().expect("in detail");
    (detail.l1.size.value, detail.l1.ways.value) = (l1, 4);
    (detail.llc.ways.value, detail.l2) = (8, None);
    machine
}

fn golden(name: &str, mut config: ExactConfig, hemem: HeMemConfig, source: &mut dyn Source) {
    config.economist = Mode::Enforce;
    let policy = Box::new(HeMem::new(hemem));
    let mut machine = ExactMachine::with_policy(&config, Some(policy)).expect("it can be set up");
    let report = setup::run(&mut machine, &config, source, &mut |_, _| {}).expect("it fits");
    something_happens(&report);
    check(&data("programs").join(format!("{name}.expected")), &counters(&report));
}

/// The first 200 000 accesses of a program as `terrace record` saw them, with 128 KiB
/// of DRAM, a quarter of what they touch, and CXL memory.
///
/// A recording of this length takes about a millisecond, a tenth of one of HeMem's
/// ticks, and would fit into the machine's caches. So time and memory are scaled with
/// it: a tick of 20 µs instead of 10 ms, a sample of every third event instead of 5003,
/// 4 KiB and 32 KiB of caches.
fn recorded(name: &str) {
    let file = data("programs").join(format!("{name}.trace"));
    let mut machine = machine(Bytes::kib(4), Bytes::kib(32), BytesPerSecond(10e6));
    // Its only core is busy, so that time for copying is not to be had for nothing.
    machine.cpu.cores.value = 1;
    let mut config = ExactConfig::new(machine, SimPolicy::Policy(PolicyName::HeMem));
    config.fast = Some(Bytes::kib(128));
    config.sampler.period = 3;
    let hemem = HeMemConfig { tick: Nanos::micros(20), ..HeMemConfig::default() };
    let mut source = import::open(&file, Format::Terrace).expect("readable");
    golden(name, config, hemem, source.as_mut());
}

/// A generated program of 4 million accesses, an eighth of which fits, under HeMem with
/// its own ticks of 10 ms and its own thresholds. A recording of that length would be
/// too large to keep.
fn generated(name: ProgramName) {
    let machine = machine(Bytes::kib(48), Bytes::kib(256), BytesPerSecond(100e6));
    let mut config = ExactConfig::new(machine, SimPolicy::Policy(PolicyName::HeMem));
    config.fast = Some(Bytes::mib(8));
    config.sampler.period = 11;
    let spec = ProgramSpec::new(name, Bytes::mib(64), 4_000_000);
    let mut source = spec.build().expect("good parameters");
    golden(name.name(), config, HeMemConfig::default(), &mut source);
}

/// `sort -n numbers.txt`, 600 lines.
#[test]
fn recorded_sort() {
    recorded("sort");
}

/// `gzip -c numbers.txt`.
#[test]
fn recorded_gzip() {
    recorded("gzip");
}

/// `mawk '{s+=$1}END{print(s)}' numbers.txt`.
#[test]
fn recorded_mawk() {
    recorded("mawk");
}

/// The hot set moves, and HeMem after it.
#[test]
fn generated_gups_shifting() {
    generated(ProgramName::GupsShifting);
}

#[test]
fn generated_ycsb() {
    generated(ProgramName::Ycsb);
}
