//! The exact engine as a user sees it: published streams on machines that come
//! with Terrace. Bounds are arithmetic on the machine files, said at each.

use terrace_core::{Bytes, PageSize};
use terrace_policy::PolicyName;
use terrace_sim::exact::{
    Access, Batch, ExactConfig, ExactReport, Source, SpaceEvent, Stream, StreamKind, setup,
};
use terrace_sim::{SimError, SimPolicy, machines};

fn run(config: &ExactConfig, kind: StreamKind, accesses: u64, bytes: Bytes) -> ExactReport {
    let mut source = Stream::new(kind, accesses, bytes.get());
    setup::simulate(config, &mut source, &mut |_, _| {}).expect("the stream fits")
}

fn config(machine: &str, policy: SimPolicy) -> ExactConfig {
    ExactConfig::new(machines::builtin(machine).expect("built in"), policy)
}

/// A chain of misses is what latency is measured with: each load takes the
/// memory's latency, and with pages of 2 MiB hardly any walk.
#[test]
fn a_pointer_chase_measures_the_latency_of_the_memory() {
    let mut config = config("optane-cascade-lake", SimPolicy::AllSlow);
    config.page_size = PageSize::Huge;
    config.warm_up = 100_000;

    let report = run(&config, StreamKind::Chase, 400_000, Bytes::gib(1));

    let per_load = report.time.as_f64() / report.accesses as f64;
    // 305 ns of Optane and what the walks of the first touches left over.
    assert!((305.0..330.0).contains(&per_load), "{per_load} ns a load");
    let misses = report.llc.load_misses as f64 / report.accesses as f64;
    assert!(misses > 0.95, "{misses}");
}

/// Base pages: every load of a chase also waits for a page-table entry.
#[test]
fn walks_lengthen_a_chase_with_base_pages() {
    let time = |size| {
        let mut config = config("optane-cascade-lake", SimPolicy::AllDram);
        config.page_size = size;
        // Nine visits a page: all but a few have been touched before.
        config.warm_up = 1_200_000;
        run(&config, StreamKind::Chase, 1_500_000, Bytes::mib(512)).time.as_f64() / 300_000.0
    };
    let (huge, base) = (time(PageSize::Huge), time(PageSize::Base));
    // At least the second-level cache (6 ns), at most another miss (81 ns).
    assert!((6.0..90.0).contains(&(base - huge)), "{huge} ns, {base} ns");
}

/// Independent misses overlap up to the core's 12 fill buffers; the reorder
/// buffer of 224 instructions holds 112 accesses of 2 instructions each.
#[test]
fn independent_misses_overlap_as_the_fill_buffers_allow() {
    let mut config = config("optane-cascade-lake", SimPolicy::AllDram);
    config.page_size = PageSize::Huge;
    config.warm_up = 1_000_000;

    let report = run(&config, StreamKind::Gups, 3_000_000, Bytes::gib(4));

    let misses = report.llc.load_misses as f64;
    let per_miss = report.time.as_f64() / misses;
    assert!(per_miss > 81.0 / 12.0, "{per_miss} ns a miss is faster than 12 fill buffers");
    assert!(per_miss < 81.0 / 6.0, "{per_miss} ns a miss: misses do not overlap");
}

/// First touches are paid item by item, and add up.
#[test]
fn demand_faults_are_counted_and_paid() {
    let config = config("cxl", SimPolicy::AllDram);
    let report = run(&config, StreamKind::Sequential, 8 << 20, Bytes::mib(64));

    let faults = &report.faults;
    assert_eq!(faults.first_touches, 64 << 8, "one for each 4 KiB");
    // 32 tables of 2 MiB, one directory, one pointer table.
    assert_eq!(faults.tables, 34);
    assert_eq!(faults.trap.get(), (64 << 8) * 1500);
    assert_eq!(report.page_tables, 35);
    assert_eq!(report.tiers[0].used, Bytes::mib(64) + Bytes::kib(4) * 35);
}

/// GUPS whose memory was written from its end to its begin before, so that the
/// hot elements, which are first, find the fast memory full.
struct Populated {
    stream: Stream,
    first: Option<Batch>,
}

impl Source for Populated {
    fn describe(&self) -> String {
        self.stream.describe()
    }

    fn next(&mut self, batch: &mut Batch) -> Result<bool, SimError> {
        if let Some(first) = self.first.take() {
            *batch = first;
            return Ok(true);
        }
        self.stream.next(batch)
    }
}

fn populated(accesses: u64, bytes: Bytes) -> Populated {
    let mut stream = Stream::new(StreamKind::Gups, accesses, bytes.get());
    let mut first = Batch::default();
    stream.next(&mut first).expect("a stream does not fail");
    let SpaceEvent::Map { start, len } = first.events[0] else { panic!("it maps its memory") };
    first.accesses = (0..len >> 12).rev().map(|page| Access::store(start + (page << 12))).collect();
    Populated { stream, first: Some(first) }
}

/// The policy that runs live finds the hot tenth, and the program gets faster.
#[test]
fn hemem_brings_the_hot_set_into_fast_memory() {
    let share = |policy| {
        let mut config = config("optane-cascade-lake", policy);
        config.page_size = PageSize::Huge;
        config.fast = Some(Bytes::mib(256));
        config.sampler.period = 101;
        config.warm_up = 20_000_000;
        let mut source = populated(30_000_000, Bytes::gib(1));
        let report = setup::simulate(&config, &mut source, &mut |_, _| {}).expect("it fits");
        report.tiers[0].share
    };
    let first_touch = share(SimPolicy::Policy(PolicyName::FirstTouch));
    let hemem = share(SimPolicy::Policy(PolicyName::HeMem));
    assert!(first_touch < 0.1, "{first_touch}");
    // 90 % of the updates go to 102 MiB, and a quarter of the others to DRAM.
    assert!(hemem > 0.85, "{hemem}");
}

#[test]
fn the_same_configuration_gives_the_same_report() {
    let report = || {
        let config = config("cxl", SimPolicy::Policy(PolicyName::HeMem));
        let report = run(&config, StreamKind::Mix, 2_000_000, Bytes::mib(256));
        format!("{:?} {:?} {:?} {:?}", report.time, report.l2, report.llc, report.tiers)
    };
    assert_eq!(report(), report());
}

#[test]
fn a_machine_without_detail_says_what_it_lacks() {
    let mut machine = machines::builtin("cxl").expect("built in");
    machine.detail = None;
    let config = ExactConfig::new(machine, SimPolicy::AllDram);
    let mut source = Stream::new(StreamKind::Mix, 10, 1 << 21);

    let error = setup::simulate(&config, &mut source, &mut |_, _| {}).expect_err("no caches");

    assert!(error.to_string().contains("[detail]"), "{error}");
}

/// More memory than the tiers hold is an error with the address, not a hang.
#[test]
fn running_out_of_memory_is_an_error() {
    let mut machine = machines::builtin("cxl").expect("built in");
    machine.tiers[0].capacity.value = Bytes::mib(8);
    machine.tiers[1].capacity.value = Bytes::mib(8);
    let config = ExactConfig::new(machine, SimPolicy::Policy(PolicyName::FirstTouch));
    let mut source = Stream::new(StreamKind::Sequential, 20 << 20, 64 << 20);

    let error = setup::simulate(&config, &mut source, &mut |_, _| {}).expect_err("too much");

    assert!(error.to_string().contains("8.00 MiB + 8.00 MiB"), "{error}");
}
