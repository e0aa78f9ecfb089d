//! All of it as text.

use core::fmt;

use terrace_core::Bytes;

use super::claims::{mean, mean_of_all};
use super::placing::{Provider, Start};
use super::{DapperTable, Gain, Row};
use crate::workload::graph500::Phase;

fn provider(row: &Row) -> String {
    match row.provider {
        Provider::Daemon(kind) => kind.to_string(),
        Provider::Baseline => "far memory".into(),
    }
}

impl fmt::Display for DapperTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "On {}: {} processors of a node busy; {} accesses of each program are measured{}\n",
            self.machine,
            self.processors,
            self.accesses,
            if self.smaller > 1 {
                format!(", in a {}th of its memory", self.smaller)
            } else {
                String::new()
            }
        )?;
        self.near_and_far(f)?;
        self.bound(f)?;
        self.costs(f)?;
        self.policies(f)?;
        self.rows(f)?;
        writeln!(f, "Figure 10: work in the same time, over far memory, %")?;
        gains(
            f,
            &[
                ("mcf", &self.mcf, "paper 16 to 33"),
                ("of two", &self.mcf_of_two, "(two processors busy)"),
            ],
        )?;
        writeln!(f, "Figures 10 to 13 where programs are started one after the other, %")?;
        for gains in self.in_turn.chunk_by(|a, b| a.programs == b.programs) {
            write!(f, "  {:14}", gains[0].programs)?;
            for gain in gains {
                write!(f, " {:6.1}", gain.gain * 100.0)?;
            }
            let paper = match gains[0].programs {
                "mcf" => "16 to 33",
                "integer" => "20 to 31",
                "floating" => "26 to 34",
                "BFS" => "5.0",
                _ => "13.1",
            };
            writeln!(f, "   paper {paper}")?;
        }
        writeln!(f)?;
        for (half, all) in &self.mixes {
            let (figure, paper) = match half {
                super::Half::Integer => (11, "20 to 31"),
                super::Half::Floating => (12, "26 to 34"),
            };
            writeln!(f, "Figure {figure}: the same, and the share of the memory far away, %")?;
            self.mix(f, all, paper)?;
        }
        writeln!(f, "Figures 13 and 14: Graph500 of scale {}, %", self.scale)?;
        for phase in Phase::ALL {
            let name = phase.name();
            write!(f, "  {name:14}")?;
            for experiment in 1..=4 {
                write!(f, " {:6.1}", mean(&self.graph500, experiment, Some(name)))?;
            }
            let paper = match phase {
                Phase::Bfs => "5.0",
                Phase::Sssp => "13.1",
                _ => "shorter",
            };
            let mean = mean_of_all(&self.graph500, name);
            writeln!(f, "   mean {mean:5.1}   paper {paper}")?;
        }
        writeln!(f)?;
        for claim in &self.claims {
            writeln!(f, "{claim}")?;
        }
        Ok(())
    }
}

/// A line for each kind of program: the gain in each experiment.
fn gains(f: &mut fmt::Formatter<'_>, all: &[(&str, &Vec<Gain>, &str)]) -> fmt::Result {
    for (name, gains, paper) in all {
        write!(f, "  {name:14}")?;
        for experiment in 1..=4 {
            write!(f, " {:6.1}", mean(gains, experiment, None))?;
        }
        writeln!(f, "   {paper}")?;
    }
    writeln!(f)
}

impl DapperTable {
    fn mix(&self, f: &mut fmt::Formatter<'_>, all: &[Gain], paper: &str) -> fmt::Result {
        let mut names: Vec<&str> = all.iter().map(|gain| gain.program).collect();
        names.dedup();
        for name in names {
            write!(f, "  {name:14}")?;
            for experiment in 1..=4 {
                write!(f, " {:6.1}", mean(all, experiment, Some(name)))?;
            }
            let far = |experiment| {
                let of = |gain: &&Gain| gain.program == name && gain.experiment == experiment;
                all.iter().find(of).map_or(0.0, |gain| gain.baseline.far * 100.0)
            };
            let by = if self.is_recorded(name) { "   recorded" } else { "" };
            writeln!(f, "   far {:3.0} to {:3.0}{by}", far(1), far(4))?;
        }
        let recorded: Vec<Gain> =
            all.iter().filter(|gain| self.is_recorded(gain.program)).cloned().collect();
        let paper = format!("paper {paper}");
        let all = all.to_vec();
        let mut lines = vec![("mean", &all, paper.as_str())];
        if !recorded.is_empty() {
            lines.push(("recorded alone", &recorded, ""));
        }
        gains(f, &lines)
    }

    fn is_recorded(&self, program: &str) -> bool {
        self.bound.iter().any(|bound| bound.program == program && bound.recorded)
    }

    fn near_and_far(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [near, far] = self.near_and_far.latency_ns;
        let [wide, narrow] = self.near_and_far.bandwidth_gb_s;
        writeln!(f, "Figure 1: memory near and far")?;
        writeln!(f, "  latency        {near:6.1} and {far:6.1} ns")?;
        writeln!(f, "  STREAM         {wide:6.1} and {narrow:6.1} GB/s\n")
    }

    fn bound(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "Figures 2 and 3: performance lost with all memory far away, %")?;
        writeln!(f, "  program          lost   misses for 1000 instructions   stand-in")?;
        for bound in &self.bound {
            let misses = bound.near.misses_per_thousand;
            let lost = bound.lost() * 100.0;
            writeln!(f, "  {:14} {lost:6.1}   {misses:10.2}   {}", bound.program, bound.stand_in)?;
        }
        writeln!(f, "  paper: 3 (h264ref) to 34 (mcf), floating up to 39 and two of 0\n")
    }

    fn costs(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "Figure 4: what the machine draws, and what page descriptors take")?;
        writeln!(f, "  memory     descriptors   idle W   of it memory   busy W   of it memory")?;
        for cost in &self.costs {
            writeln!(
                f,
                "  {:>8}   {:>11}   {:6.0}   {:10.1} %   {:6.0}   {:10.1} %",
                cost.memory.to_string(),
                cost.descriptors.to_string(),
                cost.idle.total(),
                cost.idle.memory_share() * 100.0,
                cost.busy.total(),
                cost.busy.memory_share() * 100.0,
            )?;
        }
        writeln!(f, "  paper: 26.7 % on average, up to 35.8 %; 14 or 16 GB for 1 TB\n")
    }

    fn policies(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "Table 3: free memory at most this brings in so many times the DRAM")?;
        for one in &self.thresholds {
            let rows: Vec<String> =
                one.rows.iter().map(|(end, factor)| format!("{end}: {factor}")).collect();
            let idle = one.idle.map_or("no row".into(), |factor| format!("{factor}"));
            writeln!(f, "  {:10}  {}   idle node: {idle}", one.kernel, rows.join(", "))?;
        }
        let row = |(free, gone): &(Bytes, Option<Bytes>)| {
            format!("{free}: {}", gone.map_or("no row".into(), |gone| gone.to_string()))
        };
        let rows: Vec<String> = self.removals.iter().map(row).collect();
        writeln!(f, "Table 4: so much is free beside 1 TiB; so much leaves")?;
        writeln!(f, "  {}", rows.join(", "))?;
        writeln!(f, "Tables 3 and 4 at work: a demand that rises and falls, for an hour")?;
        writeln!(
            f,
            "  policy                     decisions      moved   refused     online   far, at most     cost, kJ   pays above, accesses/s/GiB"
        )?;
        for hour in &self.hours {
            let [cost, above] = hour.bill.map_or(["-".into(), "-".into()], |bill| {
                let above = bill.pays_above.map_or("never".into(), |rate| format!("{rate:.0}"));
                [format!("{:.1}", bill.cost() / 1e3), above]
            });
            writeln!(
                f,
                "  {:26} {:9} {:>10} {:9} {:>10} {:>14} {cost:>12} {above:>30}",
                hour.policy.to_string(),
                hour.decisions,
                hour.moved.to_string(),
                hour.refused,
                hour.online.to_string(),
                hour.far.to_string(),
            )?;
        }
        writeln!(f)
    }

    fn rows(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "Table 6: where the programs' memory lies")?;
        writeln!(
            f,
            "  programs  ex.  instances     memory  by                          online descriptors       DRAM  near slow        far  killed"
        )?;
        for row in self.rows.iter().filter(|row| row.start == Start::AtOnce) {
            writeln!(
                f,
                "  {:9} {:3}  {:9} {:>10}  {:24} {:>9} {:>11} {:>10} {:>10} {:>10}  {:6}",
                row.programs,
                row.experiment,
                row.instances,
                row.wanted.to_string(),
                provider(row),
                row.placed.online.to_string(),
                row.placed.descriptors.to_string(),
                row.placed.dram.to_string(),
                row.placed.near.to_string(),
                row.placed.far.to_string(),
                row.placed.killed,
            )?;
        }
        writeln!(f)
    }
}
