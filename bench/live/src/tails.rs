//! First touches of real programs as they show from outside: what each run took, by how memory is and
//! under what it runs, and the tables of `make bench-tails`.

use std::fmt::Write as _;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::histogram::Latencies;
use crate::interrupt::Usage;
use crate::programs::Outcome;
use crate::programs::touching::Touching;
use crate::spread::Spread;
use crate::vmstat::Counts;

/// How free memory is when a program begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Memory {
    /// As the machine has it.
    AsItIs,
    /// Without whole blocks of 2 MiB, but for some that come back.
    Fragmented,
}

impl Memory {
    const fn name(self) -> &'static str {
        match self {
            Self::AsItIs => "as it is",
            Self::Fragmented => "fragmented",
        }
    }
}

/// Under what a program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Under {
    /// Plain Linux, transparent huge pages always.
    Always,
    /// Plain Linux, huge pages where the program advises so.
    Madvise,
    /// Plain Linux without huge pages.
    Never,
    /// `terrace run`, with the setting that the machine has.
    Run,
    /// The same with a profile of the program.
    Profile,
}

impl Under {
    const fn name(self) -> &'static str {
        match self {
            Self::Always => "Linux, always",
            Self::Madvise => "Linux, madvise",
            Self::Never => "Linux, never",
            Self::Run => "terrace run",
            Self::Profile => "terrace run --profile",
        }
    }
}

/// What a run took.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Run {
    /// What was timed.
    pub seconds: f64,
    /// The kernel's part of the processor time, of all of its processes.
    pub kernel_seconds: f64,
    /// Page faults that the kernel served at once.
    pub minor: u64,
    /// Page faults that had to be tried again, as those that a pager serves.
    pub major: u64,
    /// What the kernel counted meanwhile, on the whole machine.
    pub counts: Counts,
    /// How long requests took, where there are any.
    pub requests: Option<Latencies>,
    /// Of all that it answered.
    pub checksum: u64,
}

impl Run {
    /// Of a program's outcome.
    pub fn new(outcome: Outcome, requests: Option<Latencies>, counts: Counts) -> Self {
        let Outcome { time, usage: Usage { kernel, minor, major }, checksum, .. } = outcome;
        Self {
            seconds: time.as_secs_f64(),
            kernel_seconds: kernel.as_secs(),
            minor,
            major,
            counts,
            requests,
            checksum,
        }
    }
}

/// One run, and where it belongs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Row {
    /// How free memory was.
    pub memory: Memory,
    /// Which program.
    pub program: Touching,
    /// Under what.
    pub under: Under,
    /// Which time.
    pub round: u32,
    /// Free blocks of 2 MiB before it.
    pub blocks: u64,
    /// What it took, or why it came to nothing.
    pub run: Result<Run, String>,
    /// What `terrace run` reported of huge pages.
    pub huge: Option<String>,
}

/// How `terrace run` says that a profile cannot apply: it is told, and nothing is wrong.
const NO_EFFECT: &str = "would have no effect";

impl Row {
    /// What stands above rows.
    pub fn head() -> String {
        format!(
            "{:<22} {:>8} {:>8} {:>9} {:>8} {:>6} {:>8} {:>7} {:>8}",
            "", "seconds", "kernel s", "minor", "major", "huge", "fallback", "stalls", "blocks"
        )
    }

    /// One line and what belongs to it.
    pub fn text(&self) -> String {
        let name = self.under.name();
        let run = match &self.run {
            Ok(run) => run,
            Err(why) => return format!("{name:<22} came to nothing: {why}\n"),
        };
        let known = |count: Option<u64>| count.map_or("-".to_owned(), |count| count.to_string());
        let mut text = format!(
            "{name:<22} {:>8.2} {:>8.2} {:>9} {:>8} {:>6} {:>8} {:>7} {:>8}\n",
            run.seconds,
            run.kernel_seconds,
            run.minor,
            run.major,
            known(run.counts.huge),
            known(run.counts.fallback),
            known(run.counts.stalls),
            self.blocks
        );
        if let Some(huge) = &self.huge {
            let _ = writeln!(text, "    {huge}");
        }
        if let Some(requests) = &run.requests {
            let [p50, p99, p999, p9999, greatest] = figures(requests).map(micros);
            let _ = writeln!(
                text,
                "    {} requests, µs: p50 {p50}, p99 {p99}, p99.9 {p999}, p99.99 {p9999}, greatest \
                 {greatest}",
                requests.count
            );
            let below = requests.below.iter().map(|(power, count)| format!("{power}:{count}"));
            let _ = writeln!(text, "    ns: {}", below.collect::<Vec<_>>().join(" "));
        }
        text
    }
}

fn figures(requests: &Latencies) -> [f64; 5] {
    let Latencies { p50, p99, p999, p9999, greatest, .. } = *requests;
    [p50, p99, p999, p9999, greatest].map(|ns| ns as f64)
}

fn micros(ns: f64) -> String {
    format!("{:.0}", ns / 1000.0)
}

/// All runs.
#[derive(Debug)]
pub struct Rows<'a>(pub &'a [Row]);

impl Rows<'_> {
    /// What is wrong: runs that came to nothing though nothing refused them, and answers that are not
    /// the program's first ones.
    pub fn wrong(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        for row in self.0 {
            let of = format!(
                "{}, memory {}, {}",
                row.program.name(),
                row.memory.name(),
                row.under.name()
            );
            match &row.run {
                Err(why) if !why.contains(NO_EFFECT) => wrong.push(format!("{of}: {why}")),
                Err(_) => {}
                Ok(run) => {
                    let mut runs = self.0.iter().filter(|other| other.program == row.program);
                    let first = runs.find_map(|row| row.run.as_ref().ok());
                    if first.is_some_and(|first| first.checksum != run.checksum) {
                        wrong.push(format!("{of}: another answer than before"));
                    }
                }
            }
        }
        wrong
    }

    /// The tables, as documents have them: times, requests, and faults.
    pub fn tables(&self) -> String {
        let places = self.places();
        let mut text = format!(
            "| memory | program | {} | profile by the better of always and never |\n|---|---|{}---|\n",
            heads(),
            "---|".repeat(Under::value_variants().len())
        );
        for &(memory, program) in &places {
            let cells = Under::value_variants().iter().map(|&under| {
                let seconds = self.runs(memory, program, under).map(|run| run.seconds);
                Spread::of(seconds)
                    .map_or("-".to_owned(), |spread| format!("{:.2} s", spread.median))
            });
            let ratio = self.by_the_better(memory, program);
            let ratio = ratio.map_or("-".to_owned(), |ratio| ratio.to_string());
            line(&mut text, memory, program.name(), cells.chain([ratio]));
        }

        text.push_str(
            "\n| memory | requests, µs | p50 | p99 | p99.9 | p99.99 | greatest | all of them |\n\
             |---|---|---|---|---|---|---|---|\n",
        );
        for &(memory, program) in &places {
            for &under in Under::value_variants() {
                if let Some(cells) = self.requests(memory, program, under) {
                    let name = format!("{}, {}", program.name(), under.name());
                    line(&mut text, memory, &name, cells);
                }
            }
        }

        let _ = write!(
            text,
            "\n| memory | faults: minor + major (huge, fallen back, stalls) | {} |\n|---|---|{}\n",
            heads(),
            "---|".repeat(Under::value_variants().len())
        );
        for &(memory, program) in &places {
            let cells = Under::value_variants().iter().map(|&under| {
                // Of the last round: they hardly differ.
                self.runs(memory, program, under).last().map_or("-".to_owned(), faults)
            });
            line(&mut text, memory, program.name(), cells);
        }
        text
    }

    /// What was run, in its order.
    fn places(&self) -> Vec<(Memory, Touching)> {
        let mut places = Vec::new();
        for row in self.0 {
            let place = (row.memory, row.program);
            if !places.contains(&place) {
                places.push(place);
            }
        }
        places
    }

    fn runs(&self, memory: Memory, program: Touching, under: Under) -> impl Iterator<Item = &Run> {
        let at = (memory, program, under);
        let rows = self.0.iter().filter(move |row| (row.memory, row.program, row.under) == at);
        rows.filter_map(|row| row.run.as_ref().ok())
    }

    /// A run with a profile by the better of plain Linux with huge pages always and never, in the same
    /// round.
    fn by_the_better(&self, memory: Memory, program: Touching) -> Option<Spread> {
        let seconds = |under: Under, round: u32| {
            let at = (memory, program, under, round);
            let row = self.0.iter().find(|r| (r.memory, r.program, r.under, r.round) == at)?;
            row.run.as_ref().ok().map(|run| run.seconds)
        };
        let rounds = self.0.iter().map(|row| row.round).max().unwrap_or(0);
        Spread::of((0..=rounds).filter_map(|round| {
            let others = [Under::Always, Under::Never].into_iter();
            let better = others.filter_map(|under| seconds(under, round)).reduce(f64::min)?;
            Some(seconds(Under::Profile, round)? / better)
        }))
    }

    /// Medians of the rounds' percentiles, the greatest of all, and the median time.
    fn requests(&self, memory: Memory, program: Touching, under: Under) -> Option<Vec<String>> {
        let runs: Vec<_> = self
            .runs(memory, program, under)
            .filter_map(|run| Some((figures(run.requests.as_ref()?), run.seconds)))
            .collect();
        let all = Spread::of(runs.iter().map(|(_, seconds)| *seconds))?;
        let mut cells = Vec::new();
        for figure in 0..4 {
            let spread = Spread::of(runs.iter().map(|(figures, _)| figures[figure]))?;
            cells.push(micros(spread.median));
        }
        cells.push(micros(Spread::of(runs.iter().map(|(figures, _)| figures[4]))?.greatest));
        cells.push(format!("{:.2} s", all.median));
        Some(cells)
    }
}

fn heads() -> String {
    Under::value_variants().iter().map(|under| under.name()).collect::<Vec<_>>().join(" | ")
}

fn line(text: &mut String, memory: Memory, name: &str, cells: impl IntoIterator<Item = String>) {
    let cells: Vec<_> = cells.into_iter().collect();
    let _ = writeln!(text, "| {} | {name} | {} |", memory.name(), cells.join(" | "));
}

fn faults(run: &Run) -> String {
    let Counts { huge, fallback, stalls } = run.counts;
    let known = [huge, fallback, stalls]
        .map(|count| count.map_or("-".to_owned(), |count| count.to_string()))
        .join(", ");
    format!("{} + {} ({known})", run.minor, run.major)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::histogram::Histogram;

    fn row(under: Under, round: u32, seconds: f64) -> Row {
        let run = Run {
            seconds,
            kernel_seconds: 0.25,
            minor: 1200,
            major: 7,
            counts: Counts { huge: Some(80), fallback: Some(3), stalls: None },
            requests: None,
            checksum: 5,
        };
        Row {
            memory: Memory::AsItIs,
            program: Touching::Sort,
            under,
            round,
            blocks: 146,
            run: Ok(run),
            huge: None,
        }
    }

    #[test]
    fn a_profile_stands_beside_the_better_of_always_and_never_in_its_round() {
        let rows = [
            row(Under::Always, 1, 2.0),
            row(Under::Madvise, 1, 1.0),
            row(Under::Never, 1, 4.0),
            row(Under::Profile, 1, 3.0),
            row(Under::Always, 2, 8.0),
            row(Under::Never, 2, 6.0),
            row(Under::Profile, 2, 6.0),
        ];
        let spread = Rows(&rows).by_the_better(Memory::AsItIs, Touching::Sort).unwrap();
        assert_eq!(spread, Spread { median: 1.25, least: 1.0, greatest: 1.5 });
        let tables = Rows(&rows).tables();
        let times =
            "| as it is | sort | 5.00 s | 1.00 s | 5.00 s | - | 4.50 s | 1.25 (1.00-1.50) |\n";
        assert!(tables.contains(times), "{tables}");
        assert!(tables.contains("| as it is | sort | 1200 + 7 (80, 3, -) | "), "{tables}");
        let none = Rows(&rows[..3]).by_the_better(Memory::AsItIs, Touching::Sort);
        assert_eq!(none, None, "there was no run with a profile");
    }

    #[test]
    fn every_line_of_a_table_has_as_many_cells_as_its_head() {
        let mut redis = row(Under::Never, 1, 2.0);
        redis.program = Touching::Redis;
        let histogram = Histogram::new();
        histogram.record(20_000);
        redis.run.as_mut().unwrap().requests = Some(histogram.latencies(20_000));
        let tables = Rows(&[redis.clone(), row(Under::Run, 1, 1.0)]).tables();
        for table in tables.split("\n\n") {
            let cells: Vec<_> = table.lines().map(|line| line.matches('|').count()).collect();
            assert!(cells.iter().all(|count| *count == cells[0]), "{cells:?} in {table}");
        }
        let line = "| as it is | redis, Linux, never | 20 | 20 | 20 | 20 | 20 | 2.00 s |\n";
        assert!(tables.contains(line), "{tables}");
        let text = redis.text();
        assert!(
            text.contains("1 requests, µs: p50 20, ") && text.contains("ns: 32768:1"),
            "{text}"
        );
    }

    #[test]
    fn other_answers_and_lost_runs_are_wrong_and_a_profile_without_effect_is_not() {
        let mut rows =
            [row(Under::Always, 1, 1.0), row(Under::Run, 1, 1.0), row(Under::Profile, 1, 1.0)];
        assert_eq!(Rows(&rows).wrong(), Vec::<String>::new());
        rows[1].run.as_mut().unwrap().checksum = 6;
        rows[2].run = Err("exit status: 2: terrace: --profile: p: would have no effect: …".into());
        assert_eq!(
            Rows(&rows).wrong(),
            ["sort, memory as it is, terrace run: another answer than before"]
        );
        rows[2].run = Err("signal: 11".into());
        assert_eq!(Rows(&rows).wrong().len(), 2);
    }
}
