//! `terrace calibrate`: what the mechanisms cost on this machine.

use std::process::ExitCode;
use std::time::Instant;

use clap::Subcommand;
use serde::Serialize;
use terrace_core::{Bytes, Nanos};
use terrace_live::costs::file::{CostsError, Text};
use terrace_live::costs::measure::{OthersTime, measure};
use terrace_live::costs::{CostsFile, Fingerprint, Known, Measured};
use terrace_live::doctor::probe::UffdProbe;

use crate::failure::Failure;
use crate::output::{self, Files, Kind, facts, percent};
use crate::progress::Progress;

mod kernel;
pub(crate) mod mm;

use self::kernel::KernelArgs;
use self::mm::MmArgs;

/// Measure what the mechanisms cost on this machine, once.
///
/// Faults, moves, the codec, copies, loads in flight, and what a manager's thread takes
/// from the program's: some seconds. The prices go to `terrace/costs.toml` in
/// `$XDG_STATE_HOME` or `~/.local/state`, with a fingerprint of machine and kernel; `run`
/// and `attach` decide by them while the fingerprint matches, and `doctor` shows them. To be run when
/// the machine is idle: where other programs use more than a tenth of a processor meanwhile, nothing
/// is kept.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Args {
    /// Keep what was measured, whatever other programs did meanwhile.
    #[arg(long)]
    busy: bool,

    #[command(subcommand)]
    what: Option<What>,
}

/// What else can be measured.
#[derive(Debug, Subcommand)]
enum What {
    Kernel(KernelArgs),
    Mm(MmArgs),
}

#[derive(Serialize)]
struct Document {
    file: String,
    machine: Machine,
    measured: Figures,
    /// How long measuring took.
    elapsed: Nanos,
    /// What other programs used meanwhile, as a share of one processor; `None` where the kernel
    /// does not tell.
    others: Option<f64>,
}

/// What other programs may use meanwhile, as a share of one processor.
const BESIDE: f64 = 0.1;

/// Measures in so many parts, each of which is told, with a bar. With it comes what other programs
/// used meanwhile.
///
/// # Errors
/// What measuring failed with, and unless `busy` other programs that used more than [`BESIDE`].
fn alone<T, E: std::fmt::Display>(
    title: &str,
    parts: f64,
    busy: bool,
    measure: impl FnOnce(&mut dyn FnMut(&'static str)) -> Result<T, E>,
) -> Result<(T, Option<f64>), Failure> {
    let bar = Progress::new().bar(title);
    let (others, mut part) = (OthersTime::begin(), 0);
    let measured = measure(&mut |what| {
        bar.set(f64::from(part) / parts, what);
        part += 1;
    });
    bar.finish();
    let measured = measured.map_err(Failure::failed)?;
    let others = others.share();
    if let Some(share) = others.filter(|&share| share > BESIDE && !busy) {
        let used = if share <= 1.0 {
            format!("{} of a processor", percent(share))
        } else {
            format!("{share:.1} processors")
        };
        return Err(Failure::failed(format!(
            "other programs used {used} meanwhile, which the figures would be of: nothing is kept \
             (--busy keeps it)"
        )));
    }
    Ok((measured, others))
}

/// Of which machine the prices are.
#[derive(Debug, Serialize)]
struct Machine {
    processor: String,
    processors: u32,
    kernel: String,
    memory: Bytes,
    huge_pages: String,
}

impl From<Fingerprint> for Machine {
    fn from(machine: Fingerprint) -> Self {
        let Fingerprint { processor, processors, kernel, memory: Text(memory), huge_pages } =
            machine;
        Self { processor, processors, kernel, memory, huge_pages }
    }
}

/// Measured prices: times in nanoseconds.
#[derive(Debug, Serialize)]
struct Figures {
    user_fault: u64,
    bring_in: u64,
    take_out: u64,
    compress: u64,
    decompress: u64,
    copy_bandwidth: f64,
    parallelism: f64,
    interference: f64,
}

impl From<&Measured> for Figures {
    fn from(measured: &Measured) -> Self {
        Self {
            user_fault: measured.user_fault.get(),
            bring_in: measured.bring_in.get(),
            take_out: measured.take_out.get(),
            compress: measured.compress.get(),
            decompress: measured.decompress.get(),
            copy_bandwidth: measured.copy_bandwidth.get(),
            parallelism: measured.parallelism,
            interference: measured.interference,
        }
    }
}

impl Args {
    pub(crate) fn execute(mut self, json: bool) -> Result<ExitCode, Failure> {
        match self.what.take() {
            Some(What::Kernel(args)) => return args.execute(json),
            Some(What::Mm(args)) => return args.execute(json),
            None => {}
        }
        let place = CostsFile::place().ok_or_else(|| {
            Failure::bad_input("no place for the prices: neither XDG_STATE_HOME nor HOME is set")
        })?;
        UffdProbe::run().usable().map_err(Failure::unsupported)?;
        if let Some(directory) = place.parent() {
            std::fs::create_dir_all(directory)
                .map_err(|e| Failure::failed(format!("{}: {e}", directory.display())))?;
        }
        // What cannot be written is known before anything is measured.
        let out = Files::new().writes("costs.toml", &place, Kind::Whole)?;
        output::remove_when_interrupted();
        let begun = Instant::now();
        let (measured, others) = alone("calibrate", 6.0, self.busy, measure)?;
        let file = CostsFile { machine: Fingerprint::of_this_machine(), measured };
        out.write_whole(file.text().as_bytes())?;
        let elapsed = Nanos(begun.elapsed().as_nanos() as u64);
        let text = if json {
            let document = Document {
                file: place.display().to_string(),
                machine: Machine::from(file.machine),
                measured: Figures::from(&measured),
                elapsed,
                others,
            };
            output::json("terrace.calibrate", &document)?
        } else {
            let Text(memory) = file.machine.memory;
            format!(
                "measured in {:.1} s on {}, {} processors, {memory}, Linux {}\n{}\n{}\n",
                elapsed.as_f64() / 1e9,
                file.machine.processor,
                file.machine.processors,
                file.machine.kernel,
                facts("  ", &rows(&measured)),
                place.display()
            )
        };
        output::print(&text)?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Prices, for people.
pub(crate) fn rows(measured: &Measured) -> Vec<(&'static str, String)> {
    vec![
        ("a fault, resolved by us", format!("{}, content not included", measured.user_fault)),
        ("bringing a page in", format!("{}, copy not included", measured.bring_in)),
        ("taking a page out", measured.take_out.to_string()),
        ("compressing a page", measured.compress.to_string()),
        ("decompressing a page", measured.decompress.to_string()),
        ("copying", measured.copy_bandwidth.to_string()),
        ("loads in flight", format!("{:.1} on one processor", measured.parallelism)),
        (
            "beside a manager's thread",
            format!("loads take {} longer", percent(measured.interference)),
        ),
    ]
}

/// Where the prices that decide a run come from.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "kebab-case", tag = "prices", content = "why")]
pub(crate) enum Source {
    /// From the file of this machine.
    Measured,
    /// Constants, for the file is of another machine or kernel.
    Stale(String),
    /// Constants, for the file cannot be read: it may be another user's.
    Unreadable(String),
    /// Constants: nothing was measured.
    Defaults,
}

impl Source {
    /// For a report.
    pub(crate) fn line(&self) -> String {
        match self {
            Self::Measured => "measured on this machine".to_owned(),
            Self::Stale(_) => {
                "defaults: those that were measured are of another machine or kernel".to_owned()
            }
            Self::Unreadable(why) => format!("defaults: {why}"),
            Self::Defaults => "defaults; `terrace calibrate` measures this machine's".to_owned(),
        }
    }
}

/// What is known here. A file that is wrong is an error, as it would be silently ignored.
pub(crate) fn known() -> Result<Known, Failure> {
    CostsFile::known(&Fingerprint::of_this_machine()).map_err(refused)
}

fn refused(error: CostsError) -> Failure {
    match error {
        wrong @ (CostsError::Bad(_) | CostsError::NoText(..)) => {
            Failure::bad_input(format!("{wrong} (`terrace calibrate` writes the file anew)"))
        }
        unreadable @ CostsError::Unreadable(..) => Failure::bad_input(unreadable),
    }
}

/// Notes the file that prices are read from.
pub(crate) fn names(files: &mut Files) {
    if let Some(place) = CostsFile::place() {
        files.reads("the file of measured prices", place);
    }
}

/// The prices by which an economist decides.
#[derive(Clone, Debug)]
pub(crate) struct Prices {
    /// What was measured on this machine as it is; `None` for constants.
    pub(crate) measured: Option<Measured>,
    /// Where the prices come from.
    pub(crate) source: Source,
}

/// Prices for a run or an attachment; a warning where they are stale.
pub(crate) fn for_run(quiet: bool) -> Result<Prices, Failure> {
    let (measured, source) = match CostsFile::known(&Fingerprint::of_this_machine()) {
        // A user who is not the owner of HOME has no prices there.
        Err(unreadable @ CostsError::Unreadable(..)) => {
            (None, Source::Unreadable(unreadable.to_string()))
        }
        Err(error) => return Err(refused(error)),
        Ok(Known::Measured(measured)) => (Some(measured), Source::Measured),
        Ok(Known::Nothing) => (None, Source::Defaults),
        Ok(Known::Stale(why)) => {
            if !quiet {
                output::warn(format_args!(
                    "measured costs are stale, defaults are used ({why}); `terrace calibrate` \
                     measures again"
                ));
            }
            (None, Source::Stale(why))
        }
    };
    Ok(Prices { measured, source })
}
