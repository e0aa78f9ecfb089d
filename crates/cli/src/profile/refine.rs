//! `terrace profile refine`.

use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus};
use std::time::Instant;

use serde::Serialize;
use terrace_core::{Cycles, Nanos};
use terrace_live::activate;
use terrace_live::doctor::facts::Facts;
use terrace_profile::refine::Counted;
use terrace_profile::{Profile, WalkTime, perf_stat};
use terrace_report::End;
use terrace_sampler::perf::walks::{Started, Walks, without_huge_pages};

use super::{Summary, read};
use crate::failure::Failure;
use crate::output::{self, Files, Kind, facts};
use crate::run::child::exit_code;
use crate::sim::recorder;

/// Bring a recorded profile to the page walks that a processor counts.
///
/// The program runs once, in base pages, at full speed, and the processor counts the cycles in which
/// page walks are under way. Each place keeps its share, and their sum becomes what was counted.
/// Where counters are out of reach, as in most virtual machines, that is said (exit code 3); then
/// `--perf-stat` takes what `perf stat` counted on another machine.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example: terrace profile refine -o real.profile sort.profile -- sort -n numbers.txt"
)]
pub(crate) struct Args {
    /// Where the profile goes.
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,

    /// What `perf stat -x, -e duration_time,task-clock,cycles:u,dtlb_load_misses.walk_active:u,…`
    /// wrote of a run in base pages, instead of a run here.
    #[arg(long, value_name = "FILE", requires = "processor", conflicts_with = "program")]
    perf_stat: Option<PathBuf>,

    /// The model of the processor on which that was counted.
    #[arg(long, value_name = "MODEL", requires = "perf_stat")]
    processor: Option<String>,

    /// The profile, as `terrace profile record` made it.
    profile: PathBuf,

    /// The program and its arguments.
    #[arg(last = true, required_unless_present = "perf_stat", value_name = "PROGRAM")]
    program: Vec<OsString>,
}

#[derive(Serialize)]
struct Document {
    #[serde(flatten)]
    summary: Summary,
    /// Cycles of page walks: what the profile had, which may have been counted before, and what was
    /// counted now.
    before: Option<Cycles>,
    counted: Cycles,
    /// What was counted: cycles, or walks at what one takes here.
    by: &'static str,
    exit_code: Option<i32>,
}

impl Args {
    pub(crate) fn execute(self, json: bool) -> Result<ExitCode, Failure> {
        if self.processor.as_ref().is_some_and(|model| model.trim().is_empty()) {
            return Err(Failure::bad_input("--processor: is empty: no processor has such a model"));
        }
        let mut files = Files::new();
        files.reads("PROFILE", &self.profile);
        if let Some(path) = &self.perf_stat {
            files.reads("--perf-stat", path);
        }
        if let Some(program) = self.program.first() {
            files.runs(&recorder::executable(program)?, &self.program[1..]);
        }
        let profile = read(&self.profile)?;
        let out = files.writes("--output", &self.output, Kind::Whole)?;
        output::remove_when_interrupted();
        let (counted, by, end) = match &self.perf_stat {
            Some(path) => (self.counted_there(path)?, "cycles", End::Exited(0)),
            None => self.count()?,
        };
        let name = self.profile.display();
        let refined = terrace_profile::refine(&profile, &counted)
            .map_err(|why| Failure::bad_input(format!("{name}: {why}")))?;
        self.look_at_programs(&profile);
        let named = out.path().is_some();
        out.write_whole(refined.to_text().as_bytes())?;
        let document = Document {
            summary: Summary::new(&refined),
            before: profile.walks,
            counted: counted.walking,
            by,
            exit_code: match end {
                End::Exited(code) => Some(i32::from(code)),
                End::Killed(_) => None,
            },
        };
        let text = if json {
            output::json("terrace.profile.refine", &document)?
        } else {
            let mut rows = document.summary.facts();
            let before = document.before.map_or_else(String::new, |walks| walks.to_string());
            rows.push(("walks before", before));
            rows.push(("walks counted", format!("{} (by {by})", document.counted)));
            facts("", &rows)
        };
        // The program's own output goes to stdout; ours must not mix with it.
        if named && (json || self.program.is_empty()) {
            output::print(&text)?;
        } else {
            output::show(&text);
        }
        Ok(exit_code(end))
    }

    /// What was counted elsewhere.
    fn counted_there(&self, path: &Path) -> Result<Counted, Failure> {
        let name = path.display().to_string();
        let text = terrace_core::text::read_text(path)
            .map_err(|e| Failure::bad_input(format!("--perf-stat: {name}: {e}")))?;
        let processor = self.processor.as_deref().unwrap_or_default();
        perf_stat::parse(&name, &text, processor)
            .map_err(|e| Failure::bad_input(format!("--perf-stat: {e}")))
    }

    /// Runs the program in base pages, and counts.
    fn count(&self) -> Result<(Counted, &'static str, End), Failure> {
        let counter = Started::count().map_err(|why| {
            Failure::unsupported(format!(
                "page walks cannot be counted here: perf_event_open: {why} (a virtual machine \
                 without counters, or kernel.perf_event_paranoid)"
            ))
        })?;
        let clock = activate::calibrate().clock;
        let began = Instant::now();
        let status = in_base_pages(&self.program)?;
        let elapsed = Nanos::from_f64(began.elapsed().as_secs_f64() * 1e9);
        let walks = counter.read().map_err(|e| Failure::failed(format!("the counters: {e}")))?;
        let (walking, walk_time, by) = match walks {
            Walks::Cycles(cycles) => (Cycles(cycles), WalkTime::Elapsed, "cycles"),
            Walks::Number(number) => {
                let each = activate::page_walk()
                    .ok_or_else(|| Failure::failed("what a page walk takes cannot be measured"))?;
                let cycles = clock.cycles(each).as_f64() * number as f64;
                (Cycles::from_f64(cycles), WalkTime::Summed, "walks, at what one takes here")
            }
        };
        let processor = Facts::read(Path::new("/")).cpu.model;
        let counted = Counted { walking, walk_time, clock, elapsed, processor };
        Ok((counted, by, end_of(status)))
    }

    fn look_at_programs(&self, profile: &Profile) {
        let now: Vec<_> = self.program.iter().map(|word| word.to_string_lossy()).collect();
        if !now.is_empty() && now.iter().map(AsRef::as_ref).ne(profile.program.iter().map(|w| &**w))
        {
            output::warn(format_args!(
                "{} is of `{}`: what was counted is of another program or other arguments",
                self.profile.display(),
                profile.program.join(" ")
            ));
        }
    }
}

/// Runs a program without transparent huge pages.
fn in_base_pages(program: &[OsString]) -> Result<ExitStatus, Failure> {
    let mut command = Command::new(&program[0]);
    without_huge_pages(command.args(&program[1..]))
        .status()
        .map_err(|e| Failure::failed(format!("{}: {e}", program[0].to_string_lossy())))
}

fn end_of(status: ExitStatus) -> End {
    match (status.code(), status.signal()) {
        (Some(code), _) => End::Exited(code as u8),
        (None, signal) => End::Killed(signal.unwrap_or(0) as u8),
    }
}
