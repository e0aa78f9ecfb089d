//! `terrace run --engine kernel`: the kernel serves the faults, Terrace decides. Nothing is
//! loaded into the program.

use std::process::ExitCode;

use terrace_core::Bytes;
use terrace_kernel::division;
use terrace_kernel::engine::linux::Whose;
use terrace_kernel::files::Root;
use terrace_kernel::setup::{Wish, WishedGroup};
use terrace_live::activate;

use super::child::{Running, exit_code};
use super::program::Program;
use super::{Args, not_started};
use crate::failure::Failure;
use crate::kernel::chooser::Seeing;
use crate::kernel::joined::{self, Joined};
use crate::kernel::made::Made;
use crate::kernel::member::Member;
use crate::kernel::session::{How, Session, Shown};
use crate::kernel::{LEAST, chooser, machine_memory, total};
use crate::output::{self, Kind, Output};

/// Runs a program.
pub(super) fn run(args: &Args, program: &Program, json: bool) -> Result<ExitCode, Failure> {
    let joined = args.join.as_deref().map(Joined::find).transpose()?;
    let member = match (&args.join, &joined) {
        (Some(choice), Some(None)) => Some(Member::join(choice)?),
        _ => None,
    };
    let mut files = args.files(program);
    let report_to = args.open_report(&mut files)?;
    if let Some(joined) = joined.flatten() {
        if args.with_files {
            return Err(Failure::bad_input(
                "--files: not with --join of a run whose group it shares: that run says what its \
                 budget covers",
            ));
        }
        let mut command = args.command(program);
        let made = joined.share(&args.shown().join(" "), args.quiet)?;
        made.place(&mut command)?;
        let running = Running::start(&mut command).map_err(|e| not_started(program, &e))?;
        let run = joined::Run::new(joined, args.shown(), made, (json, args.quiet));
        return follow(args, running, run, report_to);
    }
    let (fast, holds_store) = match &member {
        Some(member) => (member.share(), false),
        None => (args.fast(), args.total.is_some()),
    };
    if fast < LEAST {
        let option = if holds_store { "--total" } else { "--fast" };
        return Err(Failure::bad_input(format!("{option}: the budget must be at least {LEAST}")));
    }
    let mut chooser = chooser::policy(args.policy, args.economist, args.quiet)?;
    let record = args.record.as_deref();
    let record = record.map(|path| files.writes("--record", path, Kind::Recording)).transpose()?;
    let wish = Wish {
        program: args.shown().join(" "),
        // What it can hold takes a few bytes a page before it holds it.
        device_size: machine_memory(),
        need: fast,
        group: WishedGroup::Own,
        backing: args.spill.as_ref().map(|spill| spill.backing(args.spill_size)).transpose()?,
    };
    let made = Made::new("--engine kernel", &wish, args.quiet)?;
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
    let mut command = args.command(program);
    session.made().place(&mut command)?;
    let running = Running::start(&mut command).map_err(|e| not_started(program, &e))?;
    follow(args, running, joined::Run::of(session), report_to)
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
