//! `terrace govern`: takes memory from programs as far as their slowdown allows.
//!
//! | file | concept |
//! |---|---|
//! | [`session`] | a group that is being governed |
//! | [`watched`] | groups that are there: one, or each of those below one |
//! | [`served`] | the figures as they are served |
//! | [`program`] | one that is made for a program |
//! | [`render`](mod@render) | the report as people read it |
//! | here | the options, and a group that is there |

mod program;
mod render;
mod served;
mod session;
mod watched;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Instant;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;
use terrace_core::Nanos;
use terrace_kernel::files::Root;
use terrace_kernel::govern::touched::may_look;
use terrace_kernel::setup::group::{Group, Version};
use terrace_kernel::setup::swap;
use terrace_signals::may_stop;

use self::session::Session;
use self::watched::{NamePattern, Watched};
use crate::args::one_of;
use crate::attach::percent;
use crate::cgroups;
use crate::failure::Failure;
use crate::metrics::Listen;
use crate::mode::Mode;
use crate::output::{self, Files, Kind, Output};

/// Take memory from a program or a control group as far as its slowdown allows.
///
/// Memory that is not touched goes to swap on compressed memory, a little each second, while what
/// comes back slows the group down by less than the target. There is no limit: what the group asks
/// for it gets at once. `observe`, the default, puts nothing out: it measures how much memory is
/// touched within 1 s, 2 s, 4 s and so on, and forecasts what could be saved at several slowdowns.
/// SIGUSR1 prints the report meanwhile.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example: terrace govern --mode enforce --target 2% -- redis-server\n         \
                  terrace govern --cgroup system.slice/mysql.service --for 600s",
    group = clap::ArgGroup::new("whom").required(true).args(["cgroup", "program"])
)]
pub(crate) struct Args {
    /// The control group: its directory, or its path below `/sys/fs/cgroup`. Groups below it
    /// belong to it.
    #[arg(long, value_name = "PATH")]
    cgroup: Option<PathBuf>,

    /// Each group below it that is called so is governed by itself, as they come and go; `*` stands
    /// for anything: `*pod*.slice` for the pods of a Kubernetes node.
    #[arg(long, value_name = "NAME", requires = "cgroup")]
    each: Option<NamePattern>,

    /// The slowdown that is allowed.
    #[arg(long, value_name = "PERCENT", default_value = "2%", value_parser = percent)]
    target: f64,

    /// Forecast what could be saved, or put it out. Before anything is put out, working sets are
    /// measured for 32 s, so that what is saved can be held against a forecast.
    #[arg(long, value_name = "MODE", default_value = "observe",
          value_parser = one_of(&Mode::ALL, Mode::name))]
    mode: Mode,

    /// End after so long; what was put out stays where it is until it is touched.
    #[arg(long = "for", value_name = "TIME", conflicts_with = "program")]
    duration: Option<Nanos>,

    /// Write the report to a file instead of stdout.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,

    /// Serve the figures as OpenMetrics meanwhile: PORT, ADDRESS:PORT or unix:PATH.
    #[arg(long, value_name = "WHERE")]
    metrics: Option<Listen>,

    /// Print no warnings.
    #[arg(long, short)]
    quiet: bool,

    /// The program and its arguments. It has a control group, and swap on compressed memory where
    /// there is none, for as long as it runs.
    #[arg(last = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

impl Args {
    pub(crate) fn execute(self, json: bool) -> Result<ExitCode, Failure> {
        if self.duration.is_some_and(|duration| duration < session::EVERY) {
            return Err(Failure::bad_input("--for: the least is 1 s, in which one look is taken"));
        }
        let mut files = Files::new();
        crate::run::program::names(&mut files, &self.program);
        let report_to = self.report.as_deref();
        let report_to = report_to.map(|path| files.writes("--report", path, Kind::Whole));
        let report_to = report_to.transpose()?;
        match &self.cgroup {
            Some(path) => {
                let directory = cgroups::directory("--cgroup", path)?;
                let watched = if let Some(name) = &self.each {
                    Watched::each(directory, name.clone(), &self)?
                } else {
                    let group = self.group(path)?;
                    let lacks = self.lacks(&group);
                    let called = group.directory().display().to_string();
                    let session = Session::new(called, group, &self, lacks);
                    Watched::one(directory, session, &self)?
                };
                self.watch(watched, report_to, json)
            }
            None => program::run(&self, report_to, json),
        }
    }

    /// A group that is there, if what is asked for can be done with it.
    fn group(&self, path: &std::path::Path) -> Result<Group, Failure> {
        let directory = cgroups::directory("--cgroup", path)?;
        let bad =
            |why: String| Failure::bad_input(format!("--cgroup: {}: {why}", directory.display()));
        let group = Group::at(&directory).map_err(bad)?;
        if self.mode == Mode::Enforce {
            if group.version() == Version::One {
                return Err(Failure::unsupported(
                    "--mode enforce: of a group of version 1 of control groups that is somebody \
                     else's nothing can be put out without changing its limit; `terrace govern -- \
                     PROGRAM` makes one of its own",
                ));
            }
            let reclaim = directory.join("memory.reclaim");
            if let Err(e) = std::fs::File::options().write(true).open(&reclaim) {
                let reclaim = reclaim.display();
                return Err(Failure::unsupported(format!("--mode enforce: {reclaim}: {e}")));
            }
            if swap::areas(&Root::machine()).is_empty() {
                return Err(Failure::unsupported(
                    "--mode enforce: there is no swap that memory could go to (a zram device, say)",
                ));
            }
        }
        Ok(group)
    }

    /// What cannot be seen of a group's processes.
    fn lacks(&self, group: &Group) -> Vec<String> {
        let denied = group.members_below().into_iter().find_map(|process| {
            may_look(process).err().filter(|e| e.kind() == std::io::ErrorKind::PermissionDenied)
        });
        let lacks = denied.map(|e| format!("nothing is forecast: /proc/PID/clear_refs: {e}"));
        if let Some(lack) = lacks.as_ref().filter(|_| !self.quiet) {
            output::warn(lack);
        }
        lacks.into_iter().collect()
    }

    /// Governs until interrupted, or the time is over, or the group is gone.
    fn watch(
        self,
        mut watched: Watched,
        report_to: Option<Output>,
        json: bool,
    ) -> Result<ExitCode, Failure> {
        let stops = [SIGINT, SIGTERM, SIGHUP].into_iter().filter(|&signal| may_stop(signal));
        let mut signals = Signals::new(stops.chain([SIGUSR1]))
            .map_err(|e| Failure::failed(format!("signals: {e}")))?;
        let (tell, told) = mpsc::channel();
        thread::spawn(move || signals.forever().try_for_each(|signal| tell.send(signal)));
        let begun = Instant::now();
        let outcome = loop {
            let wait = match watched.step(&self) {
                Ok(Some(wait)) => wait,
                Ok(None) => break Ok(()),
                Err(failure) => break Err(failure),
            };
            match told.recv_timeout(wait) {
                Err(RecvTimeoutError::Timeout) => {}
                Ok(SIGUSR1) => output::show(&watched.text(json)?),
                Ok(_) | Err(RecvTimeoutError::Disconnected) => break Ok(()),
            }
            let elapsed = Nanos(begun.elapsed().as_nanos() as u64);
            if self.duration.is_some_and(|duration| elapsed >= duration) {
                break Ok(());
            }
        };
        let text = watched.text(json)?;
        match report_to {
            Some(report) => report.write_whole(text.as_bytes())?,
            None => output::print(&text)?,
        }
        outcome.map(|()| ExitCode::SUCCESS)
    }
}
