//! `terrace attach --engine kernel`: programs that run already are kept within a budget, by pages
//! that the kernel puts out and brings back.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use terrace_core::{Bytes, Nanos};
use terrace_kernel::engine::linux::Whose;
use terrace_kernel::setup::group::{Group, Version};
use terrace_kernel::setup::{Wish, WishedGroup};
use terrace_live::attach::targets::Targets;

use super::{Args, session, whom};
use crate::calibrate;
use crate::failure::Failure;
use crate::kernel::chooser::Seeing;
use crate::kernel::made::Made;
use crate::kernel::session::{How, Session, Shown};
use crate::kernel::{LEAST, chooser, machine_memory};
use crate::output::{self, Files, Kind};
use crate::run::child::Watch;

/// The longest sleep, so that signals are obeyed soon.
const NAP: Duration = Duration::from_millis(50);

/// Keeps programs within a budget until they end, or somebody stops this.
pub(super) fn attach(args: Args, fast: Bytes, json: bool) -> Result<ExitCode, Failure> {
    if fast < LEAST {
        return Err(Failure::bad_input(format!("--fast: the budget must be at least {LEAST}")));
    }
    if args.duration.is_some_and(Nanos::is_zero) {
        return Err(Failure::bad_input("--for: must be above zero"));
    }
    if let Some(process) = args.pid {
        whom::check(process)?;
    }
    let targets = args.targets()?;
    let processes = targets.list().map_err(Failure::bad_input)?;
    if let (Targets::Process { process, .. }, []) = (&targets, processes.as_slice()) {
        return Err(Failure::bad_input(format!("--pid: there is no process {process}")));
    }
    let program = match (&targets, session::names(&processes).first()) {
        (Targets::Cgroup(path), _) => path.display().to_string(),
        (Targets::Process { .. }, Some((_, name))) => name.clone(),
        (Targets::Process { process, .. }, None) => process.to_string(),
    };
    let mut chooser = chooser::policy(args.policy, args.economist, args.quiet)?;
    let mut lacks = Vec::new();
    let whose = match &targets {
        Targets::Cgroup(path) => {
            let whose = whole_group(path)?;
            if let Whose::Group(group) = &whose
                && !group.can_be_reclaimed()
            {
                let lack = why_not(group);
                chooser = chooser::needed(chooser, args.economist, args.quiet, lack)?;
                lacks.push(format!("{lack}: a policy chooses what leaves"));
            }
            lacks.push(
                "nothing slows the programs down above the budget: the group is somebody else's, \
                 and no limit of it is changed"
                    .to_owned(),
            );
            whose
        }
        Targets::Process { .. } => {
            let lack = "of processes without a group";
            chooser = chooser::needed(chooser, args.economist, args.quiet, lack)?;
            lacks.push(
                "no control group: a policy chooses what leaves, nothing slows the programs down \
                 above the budget, and memory that they share is not counted"
                    .to_owned(),
            );
            Whose::Processes(targets)
        }
    };
    let mut files = Files::new();
    if let Some(tiers) = &args.tiers {
        files.reads("--tiers", super::ladder_file(tiers)?);
    }
    args.observing.names(&mut files);
    calibrate::names(&mut files);
    let report_to = args.report.as_deref();
    let report_to =
        report_to.map(|path| files.writes("--report", path, Kind::Whole)).transpose()?;
    let record = args.record.as_deref();
    let record = record.map(|path| files.writes("--record", path, Kind::Recording)).transpose()?;
    let wish = Wish {
        program: program.clone(),
        device_size: machine_memory(),
        need: fast,
        group: WishedGroup::None,
        backing: None,
        without_change: false,
    };
    let seeing = Seeing::of(chooser.as_ref(), &args.moving)?;
    let made = Made::new("--engine kernel", &wish, args.quiet)?;
    let how = How {
        verb: "attach",
        program: vec![program],
        fast,
        holds_store: false,
        division: None,
        whose,
        chooser,
        seeing,
        economist: args.economist,
        min_region: args.min_region,
        observing_cap: args.moving.cap(),
        store_limit: None,
        member: None,
        lacks,
        json,
        quiet: args.quiet,
    };
    let shown = Shown { record, observing: args.observing, files };
    let mut session = Session::new(how, shown, made)?;
    follow(&mut session, args.duration)?;
    let well = session.conclude(None, |text| match report_to {
        Some(report) => report.write_whole(text.as_bytes()),
        None => output::print(text),
    });
    Ok(if well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// A group of somebody else's with all of its memory.
fn whole_group(path: &Path) -> Result<Whose, Failure> {
    Group::at(path)
        .map(Whose::Group)
        .map_err(|why| Failure::bad_input(format!("--cgroup: {}: {why}", path.display())))
}

/// Why the kernel cannot be asked to put memory of a group out.
fn why_not(group: &Group) -> &'static str {
    match group.version() {
        Version::One => "of a group of version 1 nothing can be put out without changing its limit",
        Version::Two => "this kernel has no memory.reclaim (Linux 5.19)",
    }
}

/// Steps until the programs have ended, the time is over or somebody stops us.
fn follow(session: &mut Session, duration: Option<Nanos>) -> Result<(), Failure> {
    let (stop, ask) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let taken = [(SIGINT, &stop), (SIGTERM, &stop), (SIGHUP, &stop), (SIGUSR1, &ask)];
    for (signal, flag) in taken.into_iter().filter(|&(signal, _)| terrace_signals::may_stop(signal))
    {
        signal_hook::flag::register(signal, flag.clone())
            .map_err(|e| Failure::failed(format!("signal {signal}: {e}")))?;
    }
    let until = duration.map(|time| Instant::now() + Duration::from_nanos(time.get()));
    while !stop.load(Relaxed) && until.is_none_or(|until| Instant::now() < until) {
        let wait = session.step();
        if session.is_over() {
            break;
        }
        if ask.swap(false, Relaxed) {
            session.report();
        }
        std::thread::sleep(wait.min(NAP));
    }
    Ok(())
}
