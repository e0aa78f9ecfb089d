//! `terrace crash`: lets the power fail everywhere in a program.

use std::path::PathBuf;
use std::process::ExitCode;

use serde::Serialize;
use terrace_persist::crash::random_program;
use terrace_persist::program::parse;
use terrace_persist::{Effort, Fault, SchemeKind, explore, minimise};

use crate::args::{one_of, whole};
use crate::failure::Failure;
use crate::output;
use crate::progress::Progress;

/// Let the power fail at every point of a program that persists, and recover.
///
/// A program is a text file with a step a line: `map PAGE PAGES [dram]`, `unmap PAGE
/// PAGES`, `protect PAGE PAGES r|rw`, `move PAGE PAGES TO`, `store PAGE VALUE [LINE]`,
/// `register THREAD REGISTER VALUE`, `file FILE POSITION`, `background`,
/// `checkpoint`.
/// Without one, random programs are tried. If a crash leads to a wrong state,
/// the shortest schedule that does is printed, and the exit code is 1.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: terrace crash --scheme persistent --fault stale-mapping")]
pub(crate) struct Args {
    /// The program.
    file: Option<PathBuf>,

    /// How the mapping survives; without it, all schemes are tried.
    #[arg(long, value_name = "NAME", value_parser = one_of(&SchemeKind::ALL, SchemeKind::name))]
    scheme: Option<SchemeKind>,

    /// A mistake to make on purpose.
    #[arg(long, value_name = "NAME", value_parser = one_of(&Fault::ALL, Fault::name))]
    fault: Option<Fault>,

    /// Random programs to try if no file is given.
    #[arg(long, value_name = "COUNT", default_value_t = 40,
          value_parser = whole(1..=1_000_000))]
    programs: u64,

    /// Steps of a random program.
    #[arg(long, value_name = "COUNT", default_value_t = 20,
          value_parser = whole(1..=1000))]
    steps: u64,

    /// States tried at each point; if there are no more, all are.
    #[arg(long, value_name = "COUNT", default_value_t = 16,
          value_parser = whole(2..=65536))]
    states: u64,

    /// Where all randomness comes from.
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,
}

/// What was tried under a scheme.
#[derive(Debug, Serialize)]
struct Result {
    scheme: &'static str,
    points: u64,
    states: u64,
    second_failures: u64,
    finding: Option<String>,
}

#[derive(Serialize)]
struct Document {
    fault: Option<&'static str>,
    programs: usize,
    schemes: Vec<Result>,
}

impl Args {
    pub(crate) fn execute(self, json: bool) -> std::result::Result<ExitCode, Failure> {
        let programs = match &self.file {
            Some(path) => {
                let name = path.display().to_string();
                let text = terrace_core::read_text(path)
                    .map_err(|e| Failure::bad_input(format!("{name}: {e}")))?;
                vec![parse(&name, &text).map_err(Failure::bad_input)?]
            }
            None => (0..self.programs)
                .map(|i| random_program(self.steps as usize, self.seed.wrapping_add(i)))
                .collect(),
        };
        let kinds = self.scheme.map_or(SchemeKind::ALL.to_vec(), |kind| vec![kind]);
        let effort = Effort { states: self.states as usize, seed: self.seed, ..Effort::EXHAUSTIVE };
        let progress = Progress::new();
        let mut schemes = Vec::new();
        for kind in kinds {
            let bar = progress.bar(kind.name());
            let mut result = Result {
                scheme: kind.name(),
                points: 0,
                states: 0,
                second_failures: 0,
                finding: None,
            };
            for (i, program) in programs.iter().enumerate() {
                bar.set(i as f64 / programs.len() as f64, format!("{i}/{}", programs.len()));
                let make = || kind.make_small();
                let (tried, finding) = explore(program, &make, self.fault, effort);
                result.points += tried.points;
                result.states += tried.states;
                result.second_failures += tried.second;
                if let Some(finding) = finding {
                    let least = minimise(finding, &make, self.fault, effort);
                    result.finding = Some(least.to_string());
                    break;
                }
            }
            bar.finish();
            schemes.push(result);
        }
        let found = schemes.iter().any(|scheme| scheme.finding.is_some());
        let text = if json {
            let fault = self.fault.map(Fault::name);
            let programs = programs.len();
            output::json("terrace.crash", &Document { fault, programs, schemes })?
        } else {
            render(&schemes)
        };
        output::print(&text)?;
        Ok(if found { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }
}

fn render(schemes: &[Result]) -> String {
    let rows: Vec<_> = schemes
        .iter()
        .map(|scheme| {
            let found = if scheme.finding.is_some() { "WRONG STATE" } else { "recovered" };
            [
                scheme.scheme.to_owned(),
                output::count(scheme.points),
                output::count(scheme.states),
                output::count(scheme.second_failures),
                found.to_owned(),
            ]
        })
        .collect();
    let mut text =
        output::table(["scheme", "points", "states", "second failures", "result"], &rows);
    for scheme in schemes {
        if let Some(finding) = &scheme.finding {
            text += &format!("\n{}:\n{finding}\n", scheme.scheme);
        }
    }
    text
}
