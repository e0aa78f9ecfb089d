//! The paper's statements, judged. A figure holds where ours is between half of it and one and a
//! half times it.

use terrace_provision::PolicyKind;

use super::placing::Provider;
use super::{DapperTable, Gain};
use crate::reproduce::claim::{Bound, Claim};
use crate::workload::suite::Half;

/// The least gain that is printed as one, in percent: what is below is 0.0.
const SHOWN: f64 = 0.05;

/// The mean gain in an experiment, over all programs or one, in percent.
pub(super) fn mean(gains: &[Gain], experiment: u32, program: Option<&str>) -> f64 {
    let some = gains.iter().filter(|gain| {
        gain.experiment == experiment && program.is_none_or(|name| gain.program == name)
    });
    let (sum, count) = some.fold((0.0, 0), |(sum, count), gain| (sum + gain.share(), count + 1));
    100.0 * sum / f64::from(count.max(1))
}

/// The mean gain of a phase of Graph500 over all experiments, in percent.
pub(super) fn mean_of_all(gains: &[Gain], program: &str) -> f64 {
    (1..=4).map(|experiment| mean(gains, experiment, Some(program))).sum::<f64>() / 4.0
}

fn about(paper: &'static str, what: &str, figure: f64, ours: f64) -> Claim {
    let (least, most) = (figure / 2.0, figure * 1.5);
    Claim::new(
        paper,
        format!("{what}: between {least:.1} and {most:.1} %"),
        Bound::Between(least, most),
        ours,
        format!("{ours:.1} %"),
    )
}

/// All of them.
pub(super) fn claims(table: &DapperTable) -> Vec<Claim> {
    let mut claims = Vec::new();
    let lost = |half: Half| {
        let all = table.bound.iter().filter(move |bound| bound.half == half);
        all.map(|bound| bound.lost() * 100.0)
    };
    let most = |half| lost(half).fold(f64::MIN, f64::max);
    let named = |name: &str| {
        let bound = table.bound.iter().find(|bound| bound.program == name);
        bound.map_or(f64::NAN, |bound| bound.lost() * 100.0)
    };
    claims.push(about(
        "mcf loses 34 % with all memory remote (Figure 2)",
        "mcf",
        34.0,
        named("mcf"),
    ));
    let h264 = named("h264ref");
    claims.push(Claim::new(
        "h264ref loses 3 % (Figure 2)",
        "below 6 %",
        Bound::Below(6.0),
        h264,
        format!("{h264:.1} %"),
    ));
    claims.push(about(
        "floating point programs lose up to 39 % (Figure 3)",
        "the most",
        39.0,
        most(Half::Floating),
    ));
    let insensitive = lost(Half::Floating).filter(|lost| *lost < 2.0).count();
    claims.push(Claim::new(
        "calculix, povray and namd are not sensitive (section 6.1.2)",
        "at least three floating point programs lose less than 2 %",
        Bound::AtLeast(3.0),
        insensitive as f64,
        format!("{insensitive} programs"),
    ));
    let busy = table.costs.last().map_or(f64::NAN, |cost| cost.busy.memory_share() * 100.0);
    claims.push(Claim::new(
        "memory takes 26.7 % of a server's energy on average, and up to 35.8 % (Figure 4)",
        "all modules busy: between 20 and 36 %",
        Bound::Between(20.0, 36.0),
        busy,
        format!("{busy:.1} %"),
    ));
    let hour = |kind| table.hours.iter().find(|hour| hour.policy == kind);
    if let (Some(resolved), Some(literal)) =
        (hour(PolicyKind::Resolved), hour(PolicyKind::PaperLiteralIntegrated))
    {
        let times = literal.moved / resolved.moved;
        claims.push(Claim::new(
            "(ours) Tables 3 and 4 as written move memory for ever",
            "at least ten times what the resolved policy moves",
            Bound::AtLeast(10.0),
            times,
            format!("{times:.0} times"),
        ));
    }
    let dapper =
        table.rows.iter().filter(|row| row.provider == Provider::Daemon(PolicyKind::Resolved));
    let far = dapper.map(|row| 100.0 * (row.placed.far / row.wanted)).fold(0.0, f64::max);
    claims.push(Claim::new(
        "Dapper hinders access of a remote socket (section 1)",
        "at most a hundredth of any experiment's memory lies far away",
        Bound::Below(1.0),
        far,
        format!("{far:.2} %"),
    ));
    for (paper, experiment, figure) in [
        ("16 % with 62 instances of mcf (Figure 10)", 1, 16.0),
        ("33 % with 126 (Figure 10)", 4, 33.0),
    ] {
        claims.push(about(paper, "mcf", figure, mean(&table.mcf, experiment, None)));
    }
    let mix = |half: Half, experiment| {
        let gains = table.mixes.iter().find(|(other, _)| *other == half);
        gains.map_or(f64::NAN, |(_, gains)| mean(gains, experiment, None))
    };
    for (paper, half, experiment, figure) in [
        ("20 % on average with 180 integer instances (Figure 11)", Half::Integer, 1, 20.0),
        ("31 % with 372 (Figure 11)", Half::Integer, 4, 31.0),
        ("26 % on average with 180 floating instances (Figure 12)", Half::Floating, 1, 26.0),
        ("34 % with 375 (Figure 12)", Half::Floating, 4, 34.0),
    ] {
        claims.push(about(paper, "the mean", figure, mix(half, experiment)));
    }
    let grows = |gains: &[Gain]| {
        let means = [1, 2, 3, 4].map(|experiment| mean(gains, experiment, None));
        means.windows(2).all(|pair| pair[0] <= pair[1])
    };
    let all = [&table.mcf].into_iter().chain(table.mixes.iter().map(|(_, gains)| gains));
    let growing = all.filter(|gains| grows(gains)).count();
    claims.push(Claim::new(
        "the gain grows with the number of instances (section 6.1)",
        "from each experiment to the next, for mcf and both mixes",
        Bound::AtLeast(3.0),
        growing as f64,
        format!("{growing} of 3"),
    ));
    let [bfs, sssp] = ["BFS", "SSSP"].map(|name| mean_of_all(&table.graph500, name));
    claims.push(about("BFS gains 5.0 % on average (Figure 13)", "BFS", 5.0, bfs));
    claims.push(about("SSSP gains 13.1 % on average (Figure 13)", "SSSP", 13.1, sssp));
    claims.push(Claim::new(
        "SSSP is more sensitive than BFS (section 6.2)",
        "SSSP gains more",
        Bound::AtLeast(SHOWN),
        sssp - bfs,
        format!("{sssp:.1} % and {bfs:.1} %"),
    ));
    let least = ["generation", "construction", "validation"]
        .map(|name| mean_of_all(&table.graph500, name))
        .into_iter()
        .fold(f64::MAX, f64::min);
    claims.push(Claim::new(
        "generation, construction and validation take less time, too (Figure 14)",
        "each gains on average",
        Bound::AtLeast(SHOWN),
        least,
        format!("the least gains {least:.1} %"),
    ));
    claims
}
