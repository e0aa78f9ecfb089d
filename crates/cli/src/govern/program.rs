//! A program that has a group of its own.

use std::process::{Command, ExitCode};
use std::time::Duration;

use terrace_core::Bytes;
use terrace_kernel::setup::{SwapUse, Wish, WishedGroup};

use super::Args;
use super::served::Served;
use super::session::Session;
use crate::failure::Failure;
use crate::kernel::machine_memory;
use crate::kernel::made::Made;
use crate::mode::Mode;
use crate::output::{self, Output};
use crate::run::child::{Running, Watch, exit_code};

struct Governed {
    session: Session,
    served: Option<Served>,
    json: bool,
    /// After an error the program goes on alone.
    failed: Option<Failure>,
}

impl Watch for Governed {
    fn poll(&mut self) -> Duration {
        const IDLE: Duration = Duration::from_secs(1);
        if self.failed.is_some() {
            return IDLE;
        }
        let stepped = self.session.step().and_then(|wait| {
            if let Some(served) = self.served.as_ref().filter(|_| self.session.has_looked()) {
                served.tell(&mut [&mut self.session])?;
            }
            Ok(wait)
        });
        match stepped {
            // A group that is gone is that of a program that ends in this moment.
            Ok(wait) => wait.unwrap_or(IDLE),
            Err(failure) => {
                self.failed = Some(failure);
                IDLE
            }
        }
    }

    fn report(&mut self) {
        match self.session.text(None, self.json) {
            Ok(text) => output::show(&text),
            Err(failure) => {
                failure.report();
            }
        }
    }
}

/// Runs a program in a group, governs it, and passes its exit status through.
pub(super) fn run(args: &Args, report_to: Option<Output>, json: bool) -> Result<ExitCode, Failure> {
    let Some((program, arguments)) = args.program.split_first() else {
        return Err(Failure::bad_input("PROGRAM: there is none"));
    };
    let shown: Vec<_> = args.program.iter().map(|word| word.to_string_lossy()).collect();
    let name = shown.join(" ");
    // What is only looked at needs no swap.
    let need = if args.mode == Mode::Enforce { machine_memory() / 4 } else { Bytes::ZERO };
    let device_size = machine_memory();
    let group = WishedGroup::Own;
    let wish = Wish {
        program: name.clone(),
        device_size,
        need,
        group,
        backing: None,
        without_change: false,
    };
    let made = Made::new("govern", &wish, args.quiet)?;
    let Some(group) = made.group().cloned() else {
        let lack = made.no_group().unwrap_or_default();
        return Err(Failure::unsupported(format!("govern: a control group is needed: {lack}")));
    };
    let served = Served::open(args)?;
    let running = start(program, arguments, &made)?;
    // Processes of the program's are this user's own.
    let mut session = Session::new(name, group, args, Vec::new());
    if let Some(lack) = short(made.swap()) {
        if !args.quiet {
            output::warn(&lack);
        }
        session.note(lack);
    }
    let mut governed = Governed { session, served, json, failed: None };
    let outcome = running.wait(&mut governed);
    governed.session.leave();
    let end = outcome.map(|outcome| outcome.end);
    let told = match &end {
        Ok(end) => governed.session.text(Some(*end), json).and_then(|text| {
            if let Some(report) = report_to {
                return report.write_whole(text.as_bytes());
            }
            output::show(&text);
            Ok(())
        }),
        Err(_) => Ok(()),
    };
    drop(made);
    for failure in governed.failed.into_iter().chain(told.err()) {
        // The program's own status is worth more than ours.
        failure.report();
    }
    match end {
        Ok(end) => Ok(exit_code(end)),
        Err(error) => Err(Failure::failed(format!("waiting for the program: {error}"))),
    }
}

fn start(
    program: &std::ffi::OsStr,
    arguments: &[std::ffi::OsString],
    made: &Made,
) -> Result<Running, Failure> {
    let mut command = Command::new(program);
    command.args(arguments);
    made.place(&mut command)?;
    Running::start(&mut command).map_err(|error| {
        let what = format!("program `{}`: {error}", program.to_string_lossy());
        match error.kind() {
            std::io::ErrorKind::NotFound => Failure::bad_input(what),
            _ => Failure::failed(what),
        }
    })
}

/// That less can be put out than what the program may leave alone, where swap may be too little for that.
fn short(swap: &SwapUse) -> Option<String> {
    let scarce = swap.scarce.as_ref()?;
    Some(format!("{scarce}: no more than that can be put out"))
}

#[cfg(test)]
mod tests {
    use terrace_kernel::setup::SwapKind;

    use super::*;

    #[test]
    fn that_swap_is_short_is_said_and_not_of_a_budget() {
        let what = "/dev/sda2, which was there (20.0 MiB free)".to_owned();
        let enough = SwapUse {
            kind: SwapKind::Disk,
            what,
            devices: Vec::new(),
            own: false,
            recompresses: false,
            writes_back: false,
            scarce: None,
        };
        assert_eq!(short(&enough), None);
        let scarce = Some("only 20.0 MiB of swap are free (no zram)".to_owned());
        let told = short(&SwapUse { scarce, ..enough }).unwrap();
        assert!(told.starts_with("only 20.0 MiB of swap are free (no zram): "), "{told}");
        assert!(!told.contains("budget"), "{told}");
    }
}
