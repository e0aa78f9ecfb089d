//! `terrace run --engine kernel`: the kernel serves the faults, Terrace decides. Nothing is
//! loaded into the program.

use std::process::{Command, ExitCode};

use terrace_core::Bytes;
use terrace_kernel::division;
use terrace_kernel::engine::linux::Whose;
use terrace_kernel::files::Root;
use terrace_kernel::setup::{Site, Wish, WishedGroup};
use terrace_live::activate;

use super::child::{Running, exit_code};
use super::engine::Choice;
use super::program::Program;
use super::{Args, not_started};
use crate::clean;
use crate::failure::Failure;
use crate::kernel::chooser::Seeing;
use crate::kernel::joined::{self, Joined};
use crate::kernel::made::Made;
use crate::kernel::member::Member;
use crate::kernel::session::{How, Session, Shown};
use crate::kernel::{LEAST, chooser, machine_memory, total};
use crate::output::{self, Kind, Output};

/// What wants what is made, in errors.
const WHOM: &str = "--engine kernel";

/// Why a run failed.
#[derive(Debug)]
pub(super) enum RunError {
    /// What the engine needs could not be made. The program has not begun, and what was made is undone.
    SetUp(Failure),
    /// Anything else.
    Other(Failure),
}

impl RunError {
    /// What it is for a run that has no other engine.
    pub(super) fn failure(self) -> Failure {
        match self {
            Self::SetUp(failure) | Self::Other(failure) => failure,
        }
    }
}

impl From<Failure> for RunError {
    fn from(failure: Failure) -> Self {
        Self::Other(failure)
    }
}

/// Why the engine could not be set up, without its name.
pub(super) fn reason(failure: Failure) -> String {
    let line = failure.line();
    let reason = line.strip_prefix(WHOM).and_then(|rest| rest.strip_prefix(": "));
    reason.unwrap_or(&line).to_owned()
}

/// Runs a program. `over_pager` is how this engine was chosen where the pager serves the program as well. It
/// is told as soon as what the run needs is there.
pub(super) fn run(
    args: &Args,
    program: &Program,
    json: bool,
    over_pager: Option<&Choice>,
) -> Result<ExitCode, RunError> {
    let joined = args.join.as_deref().map(Joined::find).transpose()?;
    let member = match (&args.join, &joined) {
        (Some(run), Some(None)) => Some(Member::join(run)?),
        _ => None,
    };
    let mut files = args.files(program);
    // The report is not opened for this engine and then again for the pager: whoever reads a pipe would take
    // the first end for the last.
    let mut report_to = if over_pager.is_some() { None } else { args.open_report(&mut files)? };
    if let Some(joined) = joined.flatten() {
        if args.with_files {
            return Err(RunError::Other(Failure::bad_input(
                "--files: not with --join of a run whose group it shares: that run says what its \
                 budget covers",
            )));
        }
        let mut command = args.command(program);
        let made = joined.share(&args.shown().join(" "), args.quiet)?;
        made.place(&mut command)?;
        let running = Running::start(&mut command).map_err(|e| not_started(program, &e))?;
        let run = joined::Run::new(joined, args.shown(), made, (json, args.quiet));
        return Ok(follow(args, running, run, report_to)?);
    }
    let (fast, holds_store) = match &member {
        Some(member) => (member.share(), false),
        None => (args.fast(), args.total.is_some()),
    };
    if fast < LEAST {
        let option = if holds_store { "--total" } else { "--fast" };
        let what = format!("{option}: the budget must be at least {LEAST}");
        return Err(RunError::Other(Failure::bad_input(what)));
    }
    let mut chooser = chooser::policy(args.policy, args.economist, args.quiet)?;
    let record = args.record.as_deref();
    let record = record.map(|path| files.writes("--record", path, Kind::Recording)).transpose()?;
    let wish = Wish {
        program: args.shown().join(" "),
        // What it can hold takes a few bytes a page before it holds it, which counts where little may be taken.
        device_size: if holds_store {
            total::device_size(fast, machine_memory())
        } else {
            machine_memory()
        },
        need: fast,
        group: WishedGroup::Own,
        backing: args.spill.as_ref().map(|spill| spill.backing(args.spill_size)).transpose()?,
        without_change: over_pager.is_some(),
    };
    let mut command = args.command(program);
    let site = Site::machine(clean::records());
    let made = set_up(site, &wish, &mut command, args.quiet).map_err(RunError::SetUp)?;
    if let Some(choice) = over_pager {
        args.tell(choice);
        report_to = args.open_report(&mut files)?;
    }
    let division = args.with_files.then(|| divide(&made, fast)).transpose()?;
    let mut lacks = Vec::new();
    if let Some(lack) = made.no_group() {
        let why = format!("without a group ({lack})");
        chooser = chooser::needed(chooser, args.economist, args.quiet, &why)?;
        lacks.push(format!(
            "no control group: {lack}; a policy chooses what leaves, nothing slows the program \
             down above its budget, and memory that its processes share is not counted"
        ));
    }
    if holds_store {
        lacks.extend(total::lack(&Root::machine(), made.swap(), made.group().is_some()));
    }
    let seeing = Seeing::of(chooser.as_ref(), &args.moving)?;
    let whose = made.group().cloned().map_or(Whose::Started, Whose::Run);
    let how = How {
        verb: "run",
        program: args.shown(),
        fast,
        holds_store,
        division,
        whose,
        chooser,
        seeing,
        economist: args.economist,
        min_region: args.min_region,
        observing_cap: args.moving.cap(),
        member,
        store_limit: args.spill.is_some().then(|| args.store_limit.unwrap_or(fast)),
        lacks,
        json,
        quiet: args.quiet,
    };
    let shown = Shown { record, observing: args.observing.clone(), files };
    let session = Session::new(how, shown, made)?;
    let running = Running::start(&mut command).map_err(|e| not_started(program, &e))?;
    Ok(follow(args, running, joined::Run::of(session), report_to)?)
}

/// Makes what a run needs, and has its command's program begin in it; or undoes all of it. Where the pager
/// would serve the program as well, this engine is not taken without a control group.
fn set_up(site: Site, wish: &Wish, command: &mut Command, quiet: bool) -> Result<Made, Failure> {
    let made = Made::on(site, WHOM, wish, quiet)?;
    if let Some(lack) = made.no_group().filter(|_| wish.without_change) {
        let what = format!("{WHOM}: no control group can be made: {lack}");
        return Err(Failure::unsupported(what));
    }
    made.place(command)?;
    Ok(made)
}

/// One budget for the program and its files' pages.
fn divide(made: &Made, fast: Bytes) -> Result<division::Keeper, Failure> {
    let lack = |why: String| Failure::unsupported(format!("--files: {why}"));
    let Some(group) = made.group() else {
        let why = made.no_group().unwrap_or_default();
        return Err(lack(format!("a control group of the run's own is needed ({why})")));
    };
    division::Keeper::new(group.clone(), fast, &activate::calibrate(), made.swap()).map_err(lack)
}

/// Waits for the program's end, and tells of it.
fn follow(
    args: &Args,
    running: Running,
    mut run: joined::Run,
    report_to: Option<Output>,
) -> Result<ExitCode, Failure> {
    let end = running
        .wait(&mut run)
        .map_err(|e| Failure::failed(format!("waiting for the program: {e}")))?
        .end;
    // The program's own status is worth more than ours.
    run.conclude(end, |text| {
        match report_to {
            Some(report) => report.write_whole(text.as_bytes())?,
            None if !args.quiet => output::show(text),
            None => {}
        }
        Ok(())
    });
    Ok(exit_code(end))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use terrace_kernel::setup::swap;

    use super::*;

    /// A machine that is a directory. It swaps to zram, and groups are made below `us`. The files that the
    /// kernel puts into a new group are made by nobody.
    struct Machine(tempfile::TempDir);

    impl Machine {
        fn new() -> Self {
            let machine = Self(tempfile::tempdir().unwrap());
            let process = std::process::id();
            let swaps = "Filename Type Size Used Priority\n/dev/zram7 partition 1048572 0 100\n";
            machine.put("proc/swaps", swaps);
            machine.put("proc/sys/kernel/random/boot_id", "one\n");
            let zeros = "0 ".repeat(17);
            machine.put(&format!("proc/{process}/stat"), &format!("{process} (a) S 1 {zeros}77 0"));
            machine.put("proc/self/mounts", "cgroup2 /g cgroup2 rw 0 0\n");
            machine.put("proc/self/cgroup", "0::/us\n");
            machine.put("g/us/cgroup.subtree_control", "memory\n");
            machine
        }

        fn path(&self, path: &str) -> PathBuf {
            self.0.path().join(path)
        }

        fn put(&self, path: &str, text: &str) {
            let path = self.path(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }

        fn set_up(&self, or_pager: bool) -> Result<Made, Failure> {
            let site = Site {
                root: Root::at(self.0.path()),
                records: self.path("run"),
                swapping: Box::new(swap::Linux),
            };
            let wish = Wish {
                program: "prog".to_owned(),
                device_size: Bytes::gib(1),
                need: Bytes::mib(16),
                group: WishedGroup::Own,
                backing: None,
                without_change: or_pager,
            };
            set_up(site, &wish, &mut Command::new("prog"), true)
        }

        /// Why it cannot be set up; nothing must be left.
        fn refused(&self, or_pager: bool) -> String {
            let Err(failure) = self.set_up(or_pager) else { panic!("it was set up") };
            let group = self.path("g/us").join(format!("terrace-{}", std::process::id()));
            assert!(!group.exists());
            let records = fs::read_dir(self.path("run")).into_iter().flatten().flatten();
            let records = records.map(|entry| entry.file_name().into_string().unwrap());
            assert_eq!(records.filter(|name| name != "lock").collect::<Vec<_>>(), [""; 0]);
            reason(failure)
        }
    }

    #[test]
    fn of_a_set_up_that_fails_nothing_is_left() {
        for or_pager in [false, true] {
            // The group is made, and cannot be joined.
            let why = Machine::new().refused(or_pager);
            assert!(why.contains("/cgroup.procs: No such file"), "{why}");
            let machine = Machine::new();
            machine.put("proc/swaps", "");
            let why = machine.refused(or_pager);
            assert!(why.contains("of swap are free where"), "{why}");
            assert!(!why.contains(WHOM), "{why}");
            // What is made cannot be written down.
            let machine = Machine::new();
            machine.put("run", "");
            let why = machine.refused(or_pager);
            assert!(why.starts_with(&machine.path("run").display().to_string()), "{why}");
        }
    }

    #[test]
    fn an_engine_that_was_not_asked_for_is_not_had_without_a_control_group() {
        let machine = Machine::new();
        machine.put("g/us/cgroup.subtree_control", "cpu\n");

        let why = machine.refused(true);
        assert!(why.starts_with("no control group can be made: no control group above"), "{why}");

        let made = machine.set_up(false).unwrap();
        assert!(made.group().is_none() && made.no_group().is_some());
    }
}
