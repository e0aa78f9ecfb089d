//! The command line as data.

use std::process::ExitCode;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::error::ErrorKind;
use clap::{Parser, Subcommand};
use terrace_economics::Mode;

use crate::failure::Failure;
use crate::output;
use crate::{
    attach, broker, check, compare, completions, convert, crash, doctor, man, metrics, plan,
    record, replay, report, reproduce, run, set, sim, sweep, top, validate, why,
};

/// Runs programs in less memory than they ask for, and simulates how memory
/// tiers are best used.
///
/// Exit codes: 0 done, 1 failed, 2 wrong usage or bad input, 3 not supported
/// on this machine. `terrace run` passes the program's own exit status through.
#[derive(Debug, Parser)]
#[command(
    name = "terrace",
    version,
    subcommand_required = true,
    arg_required_else_help = true,
    max_term_width = 100
)]
pub(crate) struct Cli {
    /// Print JSON instead of text for people.
    #[arg(long, global = true)]
    json: bool,

    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    Run(run::Args),
    Set(set::Args),
    Broker(broker::Args),
    Attach(attach::Args),
    Top(top::Args),
    Report(report::Args),
    Replay(replay::Args),
    Metrics(metrics::Args),
    Record(record::Args),
    Convert(convert::Args),
    Sim(sim::Args),
    Compare(compare::Args),
    Sweep(sweep::Args),
    Plan(plan::Args),
    Crash(crash::Args),
    Reproduce(reproduce::Args),
    Validate(validate::Args),
    Doctor(doctor::Args),
    Why(why::Args),
    Check(check::Args),
    Completions(completions::Args),
    Man(man::Args),
}

impl Cli {
    /// Does what was asked for.
    pub(crate) fn execute(self) -> Result<ExitCode, Failure> {
        let json = self.json;
        match self.verb {
            Verb::Run(args) => args.execute(json),
            Verb::Set(args) => args.execute(json),
            Verb::Broker(args) => args.execute(json),
            Verb::Attach(args) => args.execute(json),
            Verb::Top(args) => args.execute(json),
            Verb::Report(args) => args.execute(json),
            Verb::Replay(args) => args.execute(json),
            Verb::Metrics(args) => args.execute(json),
            Verb::Record(args) => args.execute(json),
            Verb::Convert(args) => args.execute(json),
            Verb::Sim(args) => args.execute(json),
            Verb::Compare(args) => args.execute(json),
            Verb::Sweep(args) => args.execute(json),
            Verb::Plan(args) => args.execute(json),
            Verb::Crash(args) => args.execute(json),
            Verb::Reproduce(args) => args.execute(json),
            Verb::Validate(args) => args.execute(json),
            Verb::Doctor(args) => args.execute(json),
            Verb::Why(args) => args.execute(json),
            Verb::Check(args) => args.execute(json),
            Verb::Completions(args) => args.execute(json),
            Verb::Man(args) => args.execute(json),
        }
    }
}

/// What a command line that was not understood (or asked for help) leads to.
pub(crate) fn explain(error: &clap::Error) -> Result<ExitCode, Failure> {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            output::print(&error.render().to_string())?;
            Ok(ExitCode::SUCCESS)
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            eprint!("{}", error.render());
            Ok(ExitCode::from(2))
        }
        _ => Err(Failure::BadInput(summary(&error.render().to_string()))),
    }
}

/// What is wrong, without clap's prefix, usage and pointer to the help.
fn summary(rendered: &str) -> String {
    let text = rendered.strip_prefix("error: ").unwrap_or(rendered);
    let end = ["\nUsage:", "\nFor more information"]
        .iter()
        .filter_map(|mark| text.find(mark))
        .min()
        .unwrap_or(text.len());
    text[..end].to_owned()
}

/// A parser for one of a closed set of names, which help and completions list.
pub(crate) fn one_of<T>(
    all: &'static [T],
    name: fn(T) -> &'static str,
) -> impl TypedValueParser<Value = T>
where
    T: Copy + Send + Sync + 'static,
{
    PossibleValuesParser::new(all.iter().copied().map(name)).map(move |text| {
        // The parser before has let only names of `all` pass.
        *all.iter().find(|item| name(**item) == text).unwrap_or(&all[0])
    })
}

/// The economist's modes.
const MODES: [Mode; 3] = [Mode::Off, Mode::Shadow, Mode::Enforce];

/// What a mode of the economist is called.
pub(crate) fn mode_name(mode: Mode) -> &'static str {
    match mode {
        Mode::Off => "off",
        Mode::Shadow => "shadow",
        Mode::Enforce => "enforce",
    }
}

/// A parser for a mode of the economist.
pub(crate) fn economist() -> impl TypedValueParser<Value = Mode> {
    one_of(&MODES, mode_name)
}
