//! `terrace profile import`.

use std::path::PathBuf;
use std::process::ExitCode;

use serde::Serialize;
use terrace_core::{Frequency, Nanos};
use terrace_profile::cbmm::{self, Idle};
use terrace_profile::text;

use super::{applied, tell, write};
use crate::failure::Failure;
use crate::output::{self, Files};

/// Read a profile of CBMM's: `policy,section,benefit[,quantity,cmp,value]…`
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example: terrace profile import --horizon 1h --clock 2.2GHz -o xz.profile xz.csv"
)]
pub(crate) struct Args {
    /// Where the profile goes.
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,

    /// How long the run was that the benefits are of; the file does not say.
    #[arg(long, value_name = "TIME")]
    horizon: Nanos,

    /// The clock whose cycles the file counts; CBMM's machine has 2.2 GHz.
    #[arg(long, value_name = "FREQUENCY", default_value = "2.2GHz")]
    clock: Frequency,

    /// The CSV.
    file: PathBuf,
}

#[derive(Serialize)]
struct Document {
    rules: usize,
    /// Rules that say nothing where addresses are random.
    of_fixed_addresses: usize,
    /// Rules, counted from 1, whose own conditions exclude each other.
    never: Vec<usize>,
    /// Rules that hold only where an earlier one does.
    hidden: Vec<usize>,
    /// Rules about mappings that hold for none that `terrace run` manages, counted from 1.
    not_in_a_run: Vec<usize>,
}

impl Args {
    pub(crate) fn execute(self, json: bool) -> Result<ExitCode, Failure> {
        if self.horizon.is_zero() {
            return Err(Failure::bad_input("--horizon: must be above zero"));
        }
        if !text::is_clock(self.clock) {
            return Err(Failure::bad_input(format!("--clock: {}", text::NO_CLOCK)));
        }
        let clock = Frequency(self.clock.get().round());
        let mut files = Files::new();
        files.reads("FILE", &self.file);
        let name = self.file.display().to_string();
        let text = terrace_core::text::read_text(&self.file)
            .map_err(|e| Failure::bad_input(format!("{name}: {e}")))?;
        let profile =
            cbmm::import(&name, &text, self.horizon, clock).map_err(Failure::bad_input)?;
        let fixed = profile.rules.iter().filter(|rule| !rule.survives_randomisation()).count();
        let Idle { never, hidden } = Idle::of(&profile.rules);
        let idle = applied::holding_nowhere(&profile.rules);
        let mut not_in_a_run: Vec<_> =
            idle.iter().flat_map(|(_, numbers)| numbers.iter().copied()).collect();
        not_in_a_run.sort_unstable();
        let document = Document {
            rules: profile.rules.len(),
            of_fixed_addresses: fixed,
            never,
            hidden,
            not_in_a_run,
        };
        let named = write(&mut files, &self.output, &profile.to_text())?;
        if fixed > 0 {
            output::warn(format_args!(
                "{fixed} of {} rules are about addresses or descriptors: they hold only where \
                 addresses are not random",
                document.rules
            ));
        }
        if !idle.is_empty() {
            output::warn(format_args!(
                "{name}: {} of {} rules hold for no mapping that `terrace run` manages: {}",
                document.not_in_a_run.len(),
                document.rules,
                applied::words(&idle)
            ));
        }
        for (rules, why) in [
            (&document.never, "its conditions exclude each other"),
            (&document.hidden, "an earlier rule holds wherever it does, and wins"),
        ] {
            for rule in rules {
                output::warn(format_args!("{name}: rule {rule} never comes to anything: {why}"));
            }
        }
        let text = if json {
            output::json("terrace.profile.import", &document)?
        } else {
            output::several(document.rules, "rule", "rules") + "\n"
        };
        tell(named, &text)?;
        Ok(ExitCode::SUCCESS)
    }
}
