//! What huge pages bring and what fragmented memory takes, beside a processor's counters and
//! closed forms.

use rand_xoshiro::rand_core::{Rng, SeedableRng};
use terrace_core::{Bytes, Cycles, Machine};

use super::{Criterion, Known, Line, Model, Reference};
use crate::error::SimError;
use crate::exact::{Access, Batch, Source, SpaceEvent};
use crate::mm::compaction::Compacted;
use crate::mm::program::{MmProgram, Recorded};
use crate::mm::run::run;
use crate::mm::stand_ins::{Size, StandIn};
use crate::mm::{Fragmentation, Mm, MmConfig, MmPolicyName};
use crate::workload::SimRng;

/// Independent loads anywhere in some memory.
struct Anywhere {
    bytes: u64,
    left: u64,
    rng: SimRng,
    mapped: bool,
}

impl Source for Anywhere {
    fn describe(&self) -> String {
        format!("loads anywhere in {}", Bytes(self.bytes))
    }
    fn next(&mut self, batch: &mut Batch) -> Result<bool, SimError> {
        const START: u64 = 0x10_0000_0000;
        batch.clear();
        if !std::mem::replace(&mut self.mapped, true) {
            batch.events.push(SpaceEvent::Map { start: START, len: self.bytes });
            let pages = (0..self.bytes / 4096).map(|page| START + page * 4096);
            batch.accesses.extend(pages.map(Access::store));
            return Ok(true);
        }
        for _ in 0..4096.min(self.left) {
            let offset = (self.rng.next_u64() % self.bytes) & !7;
            batch.accesses.push(Access::load(START + offset).after(3));
        }
        self.left -= 4096.min(self.left);
        Ok(!batch.accesses.is_empty())
    }
}

/// Run time in huge pages over that in base pages.
fn brings(machine: &Machine, program: StandIn) -> Result<f64, SimError> {
    let size = Size { smaller: 16, epochs: 6, sample: 60_000, seed: 1 };
    let of = |policy| {
        let config = MmConfig::new(Bytes::gib(192 / size.smaller), policy);
        let report = run(&config, machine, &mut program.build(&size), None)?;
        Ok::<f64, SimError>(report.time.as_f64())
    };
    Ok(of(MmPolicyName::Always)? / of(MmPolicyName::Never)?)
}

/// Walks for each load, where loads go anywhere in `pages` base pages.
fn walks(machine: &Machine, pages: u64) -> Result<f64, SimError> {
    const LOADS: u64 = 1 << 20;
    let source =
        |left| Anywhere { bytes: pages * 4096, left, rng: SimRng::seed_from_u64(1), mapped: false };
    let config = MmConfig::new(Bytes::mib(256), MmPolicyName::Never);
    let of = |loads| {
        let mut program: Box<dyn MmProgram> = Box::new(Recorded::new(Box::new(source(loads))));
        Ok::<f64, SimError>(run(&config, machine, program.as_mut(), None)?.walks)
    };
    Ok((of(2 * LOADS)? - of(LOADS)?) / LOADS as f64)
}

/// Huge pages that compaction makes of memory that was fragmented, until it makes no more.
fn compacted(memory: Bytes) -> Result<f64, SimError> {
    let config = MmConfig {
        fragmentation: Fragmentation::Released,
        files: Bytes::ZERO,
        ..MmConfig::new(memory, MmPolicyName::Never)
    };
    let mut mm = Mm::new(&config, None)?;
    let free = mm.physical().free_huge();
    let (how, _) = mm.compact_to(u64::MAX, Cycles::MAX);
    debug_assert_ne!(how, Compacted::Made);
    Ok((mm.physical().free_huge() - free) as f64)
}

/// The comparison, on a processor that is usually that of [`mod@crate::reproduce::cbmm`]; tests give
/// faulty ones.
///
/// # Errors
///
/// Where the machine cannot be simulated.
pub fn lines(machine: &Machine) -> Result<Vec<Line>, SimError> {
    let entries = machine.detail.as_ref().map_or(0, |detail| detail.stlb.entries.value);
    let published = |what: &str, program, reference, criterion| {
        Ok::<Line, SimError>(Line {
            what: format!("{what}: run time in huge pages over that in base pages (in-sample)"),
            unit: "",
            ours: brings(machine, program)?,
            reference,
            criterion,
            kind: Reference::Hardware,
            model: Model::Caches,
            // The runs whose times these are have given the stand-ins their memory and walks.
            arithmetic: true,
            source: "CBMM's artifact, fig1-*.csv: Xeon Silver 4114, medians of five runs; ours a \
                     16th of the size. In-sample, so that agreement checks arithmetic only: walks \
                     for a thousand instructions and memory of the stand-in are of the same \
                     counters, what a walk costs and how times relate is not"
                .to_owned(),
        })
    };
    let near = Criterion::Within(0.1);
    let known = Criterion::Differs(Known {
        ours: 0.83,
        within: 0.05,
        cause: "a walk of the stand-in takes four times as long as the program's: its chains go \
                anywhere, while a program's next match lies near the last one",
    });
    // What a reach of so many entries leaves of loads anywhere: a model of a TLB that keeps a
    // random part of the pages.
    let pages = 4096;
    Ok(vec![
        published("canneal", StandIn::Canneal, 11_241.5 / 16_148.6, near)?,
        published("mcf", StandIn::Mcf, 799.2 / 840.1, near)?,
        published("xz", StandIn::Xz, 5_696.9 / 5_931.8, known)?,
        Line::formula(
            Model::Caches,
            "loads anywhere in 16 MiB of base pages: page walks for each",
            walks(machine, pages)?,
            1.0 - f64::from(entries) / pages as f64,
            Criterion::Within(0.03),
            "one less the reach of the TLB over the pages",
        ),
        {
            // Each of the blocks holds a page; those that take the pages of others take 511.
            let blocks: f64 = (512.0 - 8.0) * 0.99;
            Line::formula(
                Model::Kernel,
                "1 GiB, fragmented, a page left in each block: huge pages that compaction makes",
                compacted(Bytes::gib(1))?,
                blocks - (blocks / 512.0).ceil(),
                Criterion::Within(0.02),
                "every block but the one that takes the pages",
            )
        },
    ])
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_core::Frequency;

    use crate::machines;
    use crate::validation::State;

    /// A processor that computes slowly hardly waits for walks, and gains little from huge pages.
    #[test]
    fn a_faulty_processor_is_seen() {
        let machine = machines::builtin("optane-cascade-lake").expect("built in");
        let state = |machine: &Machine, row: usize| {
            let lines = lines(machine).expect("it can be simulated");
            lines[row].state()
        };
        assert_eq!(state(&machine, 3), State::Holds);
        let mut faulty = machine;
        faulty.cpu.clock.value = Frequency(faulty.cpu.clock.value.get() / 50.0);
        let lines = lines(&faulty).expect("it can be simulated");
        let failed = lines.iter().filter(|line| line.state() == State::Fails).count();
        let ours: Vec<f64> = lines.iter().map(|line| line.ours).collect();
        assert!(failed > 0, "{ours:?}");
    }
}
