//! The paper's statements, judged.

use terrace_kloc::policy::Strategy;

use super::{Footprint, OnSockets, Prefetched, Run, Structures};
use crate::kernel::Class;
use crate::kernel::programs::Program;
use crate::reproduce::claim::{Bound, Claim};

/// Judges the paper's statements. Criteria were written before any table was made;
/// docs/reproduce-klocs.md has what had been seen by then.
pub(super) fn claims(
    footprints: &[Footprint],
    runs: &[Run],
    structures: &[Structures],
) -> Vec<Claim> {
    let mut claims = Vec::new();
    let of = |program: Program, strategy: Strategy| {
        runs.iter().find(|run| run.program == program && run.strategy == strategy.name())
    };
    let mut over =
        |paper, program: Program, a: Strategy, b: Strategy, criterion: &str, bound: Bound| {
            let (Some(a), Some(b)) = (of(program, a), of(program, b)) else { return };
            let value = a.throughput / b.throughput;
            let text = format!("{value:.2}");
            claims.push(Claim::new(paper, criterion, bound, value, text));
        };
    let faster = Bound::AtLeast(1.1);
    over(
        "RocksDB: KLOCs is 1.96x as fast as Naive (section 7.1)",
        Program::RocksDb,
        Strategy::Klocs,
        Strategy::Naive,
        "faster by at least 10 %",
        faster,
    );
    over(
        "RocksDB: KLOCs without migration is 1.61x as fast as Naive (section 7.1)",
        Program::RocksDb,
        Strategy::KlocsNoMigration,
        Strategy::Naive,
        "faster by at least 10 %",
        faster,
    );
    over(
        "Redis: KLOCs is 2.2x as fast as Naive (section 7.1)",
        Program::Redis,
        Strategy::Klocs,
        Strategy::Naive,
        "faster by at least 10 %",
        faster,
    );
    over(
        "Redis: KLOCs is 2.7x as fast as Nimble (section 7.1)",
        Program::Redis,
        Strategy::Klocs,
        Strategy::Nimble,
        "faster by at least 10 %",
        faster,
    );
    over(
        "Cassandra: KLOCs is about as fast as Nimble++ (section 7.1)",
        Program::Cassandra,
        Strategy::Klocs,
        Strategy::NimblePlusPlus,
        "within 10 %",
        Bound::Between(0.9, 1.1),
    );
    let klocs = || runs.iter().filter(|run| run.strategy == Strategy::Klocs.name());
    let down: u64 = klocs().flat_map(|run| run.demoted).sum();
    let up: u64 = klocs().flat_map(|run| run.promoted).sum();
    let cache: u64 = klocs().map(|run| run.demoted[Class::PageCache as usize]).sum();
    if down > 0 {
        let share = |a: u64, b: u64| a as f64 / b as f64;
        let percent = |value: f64| format!("{:.1} %", value * 100.0);
        let value = share(down, down + up);
        claims.push(Claim::new(
            "88 % of migrations are from fast to slow memory (section 4.4)",
            "at least 80 %",
            Bound::AtLeast(0.8),
            value,
            percent(value),
        ));
        let value = share(cache, down);
        claims.push(Claim::new(
            "79 % of these are of page-cache pages (section 4.4)",
            "at least 60 %",
            Bound::AtLeast(0.6),
            value,
            percent(value),
        ));
        let value = share(up, down + up);
        claims.push(Claim::new(
            "4 to 12 % of migrations are from slow to fast memory (section 4.4)",
            "4 to 12 %",
            Bound::Between(0.04, 0.12),
            value,
            percent(value),
        ));
    }
    if let Some(most) = structures.iter().map(|s| s.share).reduce(f64::max) {
        claims.push(Claim::new(
            "the structures take less than 1 % of memory (Table 6)",
            "below 1 % of the memory in use, in every program",
            Bound::Below(0.01),
            most,
            format!("{:.2} % at most", most * 100.0),
        ));
        let saved = structures.iter().map(|s| s.saved).sum::<f64>() / structures.len() as f64;
        claims.push(Claim::new(
            "per-CPU lists save 54 % of accesses to the trees (section 4.3)",
            "at least 40 % on average",
            Bound::AtLeast(0.4),
            saved,
            format!("{:.0} %", saved * 100.0),
        ));
    }
    for program in [Program::RocksDb, Program::Redis] {
        let Some(known) = footprints.iter().find(|f| f.program == program) else { continue };
        let of = |class: Class| known.all_ms[class as usize].unwrap_or(f64::NAN);
        let value = of(Class::Slab) / of(Class::PageCache);
        claims.push(Claim::new(
            "slab pages live for 36 ms, page-cache pages for 160 ms (section 3.3)",
            format!("{program}: slab pages live for less than page-cache pages"),
            Bound::Below(1.0),
            value,
            format!("{:.0} ms and {:.0} ms", of(Class::Slab), of(Class::PageCache)),
        ));
    }
    let least = Program::ALL
        .into_iter()
        .filter_map(|program| {
            let ours = of(program, Strategy::KlocsGuarded)?.throughput;
            Some(ours / of(program, Strategy::Klocs)?.throughput)
        })
        .fold(f64::INFINITY, f64::min);
    claims.push(Claim::new(
        "(ours) KLOCs with the reuse guard never loses to KLOCs",
        "at least 0.98 of it in every program",
        Bound::AtLeast(0.98),
        least,
        format!("{least:.3} at worst"),
    ));
    claims
}

/// A mean of factors.
fn mean(factors: impl Iterator<Item = f64>) -> f64 {
    let (mut sum, mut count) = (0.0, 0.0);
    for factor in factors {
        sum += factor.ln();
        count += 1.0;
    }
    f64::exp(sum / count)
}

/// Judges Figure 5a. The paper's text does not say of which programs it speaks: means over all.
/// The criteria were written before the first run.
pub(super) fn on_sockets(rows: &[OnSockets]) -> Vec<Claim> {
    let of = |program: Program, strategy: Strategy| {
        let mut rows = rows.iter();
        rows.find(|row| row.program == program && row.strategy == strategy.name())
            .map_or(f64::NAN, |row| row.throughput)
    };
    let over = |paper, a: Strategy, b: Strategy| {
        let each = |program| of(program, a) / of(program, b);
        let value = mean(Program::ALL.into_iter().map(each));
        let text = format!("{value:.2} (geometric mean)");
        Claim::new(paper, "faster by at least 10 % on average", Bound::AtLeast(1.1), value, text)
    };
    vec![
        over(
            "two sockets: all memory at the own socket is 1.6x as fast as at the other (7.1)",
            Strategy::AllFast,
            Strategy::AllSlow,
        ),
        over(
            "two sockets: AutoNUMA with KLOCs is 1.5x as fast as AutoNUMA (7.1)",
            Strategy::AutoNumaKlocs,
            Strategy::AutoNuma,
        ),
        over(
            "two sockets: AutoNUMA with KLOCs is 1.4x as fast as Nimble (7.1)",
            Strategy::AutoNumaKlocs,
            Strategy::NimbleSockets,
        ),
    ]
}

/// Judges section 7.3. The criterion was written before the first run.
pub(super) fn prefetched(rows: &[Prefetched]) -> Vec<Claim> {
    let of = |strategy: Strategy| {
        let mut rows = rows.iter();
        rows.find(|row| row.program == Program::RocksDb && row.strategy == strategy.name())
            .map_or(f64::NAN, |row| row.throughput[1])
    };
    let value = of(Strategy::KlocsPrefetch) / of(Strategy::Klocs);
    vec![Claim::new(
        "RocksDB: read-ahead that knows contexts makes it 1.26x as fast (section 7.3)",
        "faster by at least 5 % than KLOCs with plain read-ahead",
        Bound::AtLeast(1.05),
        value,
        format!("{value:.2}"),
    )]
}
