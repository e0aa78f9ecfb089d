//! The paper's statements, judged. Criteria were written before any run.

use super::{Judged, find};
use crate::mm::stand_ins::StandIn;
use crate::mm::{Fragmentation, MmPolicyName, RunReport};
use crate::reproduce::claim::{Bound, Claim};

/// What a statement compares: states of memory under Linux and under the other.
#[derive(Clone, Copy)]
struct Between {
    linux: Fragmentation,
    other: Fragmentation,
    words: &'static str,
}

/// The same memory for both.
const SAME: Between = Between {
    linux: Fragmentation::Released,
    other: Fragmentation::Released,
    words: "the same memory for both",
};
/// As the artifact's runner leaves memory: under Linux the fragmenter has huge pages, which stay
/// unsplit; under CBMM, which is on before it starts and knows no profile of it, base pages.
const AS_RUN: Between = Between {
    linux: Fragmentation::Deferred,
    other: Fragmentation::Released,
    words: "memory as the runner leaves it to each",
};
/// Not fragmented.
const PLAIN: Between =
    Between { linux: Fragmentation::None, other: Fragmentation::None, words: "unfragmented" };

struct Runs<'a> {
    runs: &'a [RunReport],
    programs: &'a [StandIn],
}

impl Runs<'_> {
    fn pair(
        &self,
        program: StandIn,
        policy: MmPolicyName,
        between: Between,
    ) -> Option<(&RunReport, &RunReport)> {
        let linux = find(self.runs, program.name(), between.linux, MmPolicyName::Always)?;
        Some((linux, find(self.runs, program.name(), between.other, policy)?))
    }

    /// Of each program, something of a run over the same of Linux.
    fn ratios(
        &self,
        policy: MmPolicyName,
        between: Between,
        of: impl Fn(&RunReport) -> f64,
    ) -> Vec<(StandIn, f64)> {
        let all = self.programs.iter();
        all.filter_map(|&program| {
            let (linux, other) = self.pair(program, policy, between)?;
            Some((program, of(other) / of(linux)))
        })
        .collect()
    }
}

fn mean(ratios: &[(StandIn, f64)]) -> f64 {
    (ratios.iter().map(|(_, ratio)| ratio.ln()).sum::<f64>() / ratios.len().max(1) as f64).exp()
}

fn list(ratios: &[(StandIn, f64)], digits: usize) -> String {
    let each = ratios.iter().map(|(program, ratio)| format!("{} {ratio:.digits$}", program.name()));
    each.collect::<Vec<_>>().join(", ")
}

fn time(run: &RunReport) -> f64 {
    run.time.as_f64()
}

fn longest(run: &RunReport) -> f64 {
    run.soft.max.as_f64()
}

/// All of them; none where no program of the paper was run.
pub(super) fn claims(runs: &[RunReport], programs: &[StandIn]) -> Vec<Judged> {
    let mut claims = Vec::new();
    if programs.is_empty() {
        return claims;
    }
    let all = Runs { runs, programs };
    let mut add = |claim: Claim, cause: &'static str| {
        let cause = (!claim.holds).then_some(cause);
        claims.push(Judged { claim, cause });
    };
    for (between, cause) in [
        (
            SAME,
            "a block of such memory is made by moving one page, some ten microseconds beside the \
             quarter of a millisecond that zeroing takes: compaction alone does not slow Linux down",
        ),
        (
            AS_RUN,
            "splitting and compaction together take a small part of the run; in the paper Linux \
             varies by 70 to 87 % here, with locks and lists that are not modelled",
        ),
    ] {
        let ratios = all.ratios(MmPolicyName::Cbmm, between, time);
        let ours = mean(&ratios);
        add(
            Claim::new(
                "on fragmented memory CBMM is 35 % faster on average (abstract; 31 % untuned)",
                format!("{}: run time over Linux's, geometric mean from 0.5 to 0.8", between.words),
                Bound::Between(0.5, 0.8),
                ours,
                format!("{ours:.3} ({})", list(&ratios, 2)),
            ),
            cause,
        );
    }
    let least = programs.len() as f64 * 2.0 / 3.0;
    for (between, cause) in [
        (
            SAME,
            "one page to move for a block: the longest fault of Linux is a few scans and a \
             zeroing, of CBMM a base fault",
        ),
        (AS_RUN, "with reclaim by the kernel's own thread in time, few faults split huge pages"),
    ] {
        let ratios: Vec<_> = all
            .ratios(MmPolicyName::Cbmm, between, longest)
            .into_iter()
            .map(|(program, ratio)| (program, 1.0 / ratio))
            .collect();
        let many = ratios.iter().filter(|(_, ratio)| *ratio >= 100.0).count() as f64;
        add(
            Claim::new(
                "the worst soft faults are shorter by two to three orders of magnitude (abstract)",
                format!("{}: at least 100 times in two thirds of the programs", between.words),
                Bound::AtLeast(least),
                many,
                format!("{many} of {} programs ({})", programs.len(), list(&ratios, 0)),
            ),
            cause,
        );
    }
    let rarer: Vec<_> = all
        .ratios(MmPolicyName::Cbmm, AS_RUN, |run| run.above_10us as f64 + 1.0)
        .into_iter()
        .map(|(program, ratio)| (program, 1.0 / ratio))
        .collect();
    let many = rarer.iter().filter(|(_, ratio)| *ratio >= 100.0).count() as f64;
    add(
        Claim::new(
            "soft faults of 10 to 1000 us are a hundred times rarer for several workloads (abstract)",
            format!("{}: faults of 10 us and more, 100 times in two programs", AS_RUN.words),
            Bound::AtLeast(2.0),
            many,
            format!("{many} of {} programs ({})", programs.len(), list(&rarer, 0)),
        ),
        "a fault of 10 us and more is a huge page that is zeroed; where Linux has few of them, \
         there is little to make rarer",
    );
    let ratios = all.ratios(MmPolicyName::Cbmm, PLAIN, time);
    let ours = mean(&ratios);
    add(
        Claim::new(
            "on unfragmented memory CBMM does not regress (artifact; 1.02 on average)",
            "run time over Linux's, geometric mean from 0.9 to 1.1",
            Bound::Between(0.9, 1.1),
            ours,
            format!("{ours:.3} ({})", list(&ratios, 2)),
        ),
        "CBMM has a profile of redis only in the mix, whose matrix product walks for half of its \
         accesses here",
    );
    if let Some((linux, cbmm)) = all.pair(StandIn::Mcf, MmPolicyName::Cbmm, SAME) {
        let ours = time(cbmm) / time(linux);
        add(
            Claim::new(
                "mcf pays for it: 1.36 times Linux's time on fragmented memory (Figure 5)",
                format!("{}: mcf is slower by 2 to 60 %", SAME.words),
                Bound::Between(1.02, 1.6),
                ours,
                format!("{ours:.3}"),
            ),
            "by the paper's own counters mcf without any huge page takes 1.05 times as long as \
             with all of them (fig1-mcf.csv)",
        );
    }
    let shares = programs.iter().filter_map(|&program| {
        let run = find(runs, program.name(), Fragmentation::Released, MmPolicyName::Cbmm)?;
        Some((program, run.huge_share))
    });
    let shares: Vec<_> = shares.collect();
    let most = shares.iter().map(|(_, share)| *share).fold(0.0, f64::max);
    add(
        Claim::new(
            "on fragmented memory CBMM has next to no huge pages: 3 % at most (Figure 6)",
            "at most 5 % of any program's memory",
            Bound::Below(0.05),
            most,
            format!("{most:.3} ({})", list(&shares, 3)),
        ),
        "the hundredth of memory that the fragmenter leaves is a larger part of a small program",
    );
    if let Some((linux, cbmm)) = all.pair(StandIn::Mongodb, MmPolicyName::Cbmm, AS_RUN) {
        let ratio = longest(linux) / longest(cbmm);
        add(
            Claim::new(
                "mongodb's longest fault does not become shorter (Figure 4e)",
                format!("{}: by less than ten times", AS_RUN.words),
                Bound::Below(10.0),
                ratio,
                format!("{ratio:.1} times"),
            ),
            "its longest faults were of its disk and its cache, which the stand-in has not",
        );
    }
    let mut worst = (f64::MIN, String::new());
    for &program in programs {
        for state in Fragmentation::ALL {
            let of = |policy| find(runs, program.name(), state, policy).map(time);
            let better = of(MmPolicyName::Always).zip(of(MmPolicyName::Never));
            if let Some((ours, (always, never))) = of(MmPolicyName::Economist).zip(better) {
                let ratio = ours / always.min(never);
                if ratio > worst.0 {
                    worst = (ratio, format!("{} {}", program.name(), state.name()));
                }
            }
        }
    }
    add(
        Claim::new(
            "(ours) the estimator of Terrace is no slower than the better of always and never",
            "by at most 2 % in any program and state of memory",
            Bound::Below(1.02),
            worst.0,
            format!("{:.3} at worst ({})", worst.0, worst.1),
        ),
        "see the run that is named",
    );
    let ratios: Vec<_> = all
        .ratios(MmPolicyName::Economist, Between { other: AS_RUN.linux, ..AS_RUN }, longest)
        .into_iter()
        .map(|(program, ratio)| (program, 1.0 / ratio))
        .collect();
    let least = ratios.iter().map(|(_, ratio)| *ratio).fold(f64::MAX, f64::min);
    add(
        Claim::new(
            "(ours) its longest soft fault is a tenth of Linux's on unsplit fragmented memory",
            "in every program",
            Bound::AtLeast(10.0),
            least,
            format!("{least:.1} times at least ({})", list(&ratios, 0)),
        ),
        "where Linux has no long fault, there is none to shorten",
    );
    claims
}
