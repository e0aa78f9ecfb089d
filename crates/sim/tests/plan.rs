//! How much fast memory a program needs, on programs whose answer is known.

use terrace_core::{Bytes, Machine, PageSize};
use terrace_sim::exact::{Batch, ExactConfig, Source};
use terrace_sim::plan::{How, PlanConfig, PlanReport, plan};
use terrace_sim::workload::catalog::{ProgramName, ProgramSpec};
use terrace_sim::{SimPolicy, machines};

/// Small caches, so that a small program misses them.
fn machine(name: &str) -> Machine {
    let mut machine = machines::builtin(name).expect("built in");
    machine.cpu.llc.value = Bytes::mib(1);
    if let Some(detail) = &mut machine.detail {
        detail.llc.ways.value = 16;
        detail.l2 = None;
    }
    machine
}

fn config(name: &str, policies: Vec<SimPolicy>) -> PlanConfig {
    PlanConfig {
        base: ExactConfig::new(machine(name), SimPolicy::AllDram),
        slow: 1,
        policies,
        slowdown: 0.10,
        grid: 4,
        prices: None,
        budget: None,
        workers: 2,
    }
}

fn run(config: &PlanConfig, spec: &ProgramSpec) -> PlanReport {
    let workload = || {
        let program = spec.build()?;
        let initial = program.initial();
        Ok((Box::new(program) as Box<dyn Source>, initial))
    };
    plan(config, &workload, &|_| ()).expect("a plan")
}

fn gups() -> ProgramSpec {
    // All updates go to the first quarter.
    let spec = ProgramSpec::new(ProgramName::Gups, Bytes::mib(32), 400_000);
    ProgramSpec { hot: Some(Bytes::mib(8)), hot_percent: 100, ..spec }
}

#[test]
fn the_hot_set_is_what_has_to_be_fast() {
    let report = run(&config("cxl", vec![]), &gups());

    let best = &report.parts[0];
    assert_eq!(best.curve.how, How::BestPlacement);
    assert!(report.all_slow.expect("simulated") > 0.5, "{:?}", report.all_slow);
    let answer = best.answers.smallest.expect("fast memory alone is within any bound");
    // The hot set and page tables, less the tenth that may be slow.
    assert!(answer.fast > Bytes::mib(6) && answer.fast < Bytes::mib(9), "{}", answer.fast);
    assert!(answer.slowdown <= 0.10);
    assert!(report.footprint >= Bytes::mib(32) && report.footprint < Bytes::mib(33));
    let full = best.curve.points.last().expect("points");
    assert!(full.slowdown.abs() < 1e-9 && (full.share - 1.0).abs() < 1e-9);
}

#[test]
fn more_fast_memory_never_serves_less_and_a_policy_is_not_better_than_its_bound() {
    let policies = vec!["first-touch".parse().expect("a policy")];
    let report = run(&config("cxl", policies), &gups());

    for part in &report.parts {
        let points = &part.curve.points;
        assert!(points.windows(2).all(|pair| pair[0].fast < pair[1].fast));
    }
    let [best, policy] = report.parts.as_slice() else { panic!("two curves") };
    assert!(best.curve.points.windows(2).all(|pair| pair[0].share <= pair[1].share));
    let (bound, found) =
        (best.answers.smallest.expect("one"), policy.answers.smallest.expect("one"));
    assert!(found.slowdown <= 0.10);
    // Both are simulated to within a ninth of the step of the grid.
    assert!(bound.fast <= found.fast + Bytes::mib(1), "{} above {}", bound.fast, found.fast);
}

#[test]
fn prices_choose_within_the_budget_and_the_cheapest_work() {
    let mut config = config("cxl", vec![]);
    config.prices = Some([1024.0, 256.0]);
    // 16 MiB fast and 16 MiB slow are 16 + 4.
    config.budget = Some(20.0);
    let report = run(&config, &gups());

    let answers = report.parts[0].answers;
    let within = answers.within_budget.expect("a split");
    assert!(within.price.expect("priced") <= 20.0);
    assert!(within.slowdown < 0.02, "the hot set fits: {}", within.slowdown);
    let cheapest = answers.cheapest_work.expect("a split");
    let cost = |c: terrace_sim::plan::Choice| c.price.expect("priced") * (1.0 + c.slowdown);
    for point in &report.parts[0].curve.points {
        let slow = report.footprint.as_f64() - point.fast.as_f64();
        let mib = Bytes::mib(1).as_f64();
        let price = point.fast.as_f64() / mib + slow.max(0.0) / mib / 4.0;
        assert!(cost(cheapest) <= price * (1.0 + point.slowdown) + 1e-6);
    }
    config.prices = None;
    let workload = || unreachable!("refused before");
    let error = plan(&config, &workload, &|_| ()).expect_err("no prices").to_string();
    assert!(error.contains("budget") && error.contains("prices"), "{error}");
}

/// Faults of an LRU memory of so many pages, page by page, after so many accesses.
fn faults(spec: &ProgramSpec, pages: usize) -> u64 {
    let mut program = spec.build().expect("good parameters");
    let (mut held, mut seen, mut faults) = (Vec::<u64>::new(), 0, 0);
    let mut known = std::collections::HashSet::new();
    let mut batch = Batch::default();
    while program.next(&mut batch).expect("no input") {
        for access in &batch.accesses {
            let page = access.address() >> PageSize::Base.shift();
            if let Some(at) = held.iter().rposition(|&held| held == page) {
                held.remove(at);
            } else {
                if held.len() == pages {
                    held.remove(0);
                }
                // First touches are no faults that bring content in.
                faults += u64::from(seen >= program.initial() && !known.insert(page));
            }
            known.insert(page);
            held.push(page);
            seen += 1;
        }
    }
    faults
}

#[test]
fn one_pass_counts_the_faults_that_a_memory_of_each_size_has() {
    let spec = ProgramSpec::new(ProgramName::GupsWarm, Bytes::mib(1), 20_000);
    let mut config = config("laptop", vec![]);
    config.slowdown = 0.5;
    let report = run(&config, &spec);

    assert_eq!(report.parts[0].curve.how, How::Lru);
    let cost = report.fault.expect("a price");
    let each = (cost.fault + cost.content).as_f64() / report.fast_time.as_f64();
    let tables = report.footprint - Bytes::mib(1);
    for point in report.parts[0].curve.points.iter().step_by(25) {
        let pages = (point.fast - tables) / PageSize::Base.bytes();
        let counted = faults(&spec, pages as usize);
        let computed = point.slowdown / each;
        assert!(
            (computed - counted as f64).abs() < 0.5,
            "{pages} pages: {computed}, not {counted}"
        );
    }
    let answer = report.parts[0].answers.smallest.expect("all of it is enough");
    assert!(answer.slowdown <= 0.5);
}
