//! `terrace broker`: a budget for programs that have nothing else in common; and
//! what joins a run to one.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde::Serialize;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use terrace_core::{Bytes, Nanos};
use terrace_live::broker::keeper::Broker;
use terrace_live::broker::page::{FILE, Summary};
use terrace_live::config::RunConfig;
use terrace_signals::may_stop;

use crate::cgroups;
use crate::failure::Failure;
use crate::output;
use crate::runs::{self, LiveRun, Manifest, RunDirectory};

/// Divide a budget among programs that are started with `run --join`.
///
/// Runs until it is interrupted. Programs that are still under way then keep the
/// share that they have.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example: terrace broker --fast 4GiB & terrace run --join $! -- redis-server
         terrace broker --fast 4GiB --cgroup web.slice &
         terrace run --join cgroup -- redis-server"
)]
pub(crate) struct Args {
    /// DRAM that managed memory of all the programs together may use, at least 1MiB.
    #[arg(long, value_name = "SIZE")]
    fast: Bytes,

    /// The budget is that of a control group: programs in it and below it join by
    /// `run --join cgroup`. Its directory, or its path below /sys/fs/cgroup.
    #[arg(long, value_name = "PATH")]
    cgroup: Option<PathBuf>,
}

/// What was divided, as a document.
#[derive(Serialize)]
struct Divided {
    budget: Bytes,
    budget_peak: Bytes,
    changes: u32,
    processes: u32,
    granted_peak: Bytes,
    resident_peak: Bytes,
}

impl Args {
    pub(crate) fn execute(self, json: bool) -> Result<ExitCode, Failure> {
        if self.fast < RunConfig::MIN_FAST {
            let what = format!("--fast: the budget must be at least {}", RunConfig::MIN_FAST);
            return Err(Failure::bad_input(what));
        }
        let cgroup = self.cgroup.as_deref().map(|path| cgroups::directory("--cgroup", path));
        let cgroup = cgroup.transpose()?;
        // Before anybody is told of us, so that no signal finds us without.
        let mut signals =
            Signals::new([SIGINT, SIGTERM, SIGHUP].into_iter().filter(|&s| may_stop(s)))
                .map_err(|e| Failure::failed(format!("signals: {e}")))?;
        let name = vec!["terrace broker".to_owned()];
        let mut manifest = Manifest::new(name, "", "", self.fast, Nanos::ZERO, Vec::new(), None);
        manifest.cgroup = cgroup;
        let directory = RunDirectory::create(&manifest)?;
        let broker = start_broker(directory.path(), self.fast)?;
        if !json {
            let whom = match &self.cgroup {
                Some(_) => "cgroup".to_owned(),
                None => std::process::id().to_string(),
            };
            output::say(format_args!(
                "dividing {}; join with `terrace run --join {whom} -- PROGRAM`",
                self.fast
            ));
        }
        signals.forever().next();
        let summary = broker.summary();
        let divided = Divided {
            budget: summary.budget,
            budget_peak: summary.budget_peak,
            changes: summary.changes,
            processes: summary.processes,
            granted_peak: summary.granted,
            resident_peak: summary.resident,
        };
        if json {
            output::print(&output::json("terrace.broker", &divided)?)?;
        } else {
            output::print(&format!(
                "terrace: divided {}: {} resident at most, in {} processes at once\n",
                divided.budget, divided.resident_peak, divided.processes
            ))?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Begins to divide a budget among the processes that find a directory.
pub(crate) fn start_broker(directory: &Path, budget: Bytes) -> Result<Broker, Failure> {
    Broker::start(directory, budget).map_err(|e| runs::not_made(&e, "the budget cannot be shared"))
}

/// What `--join` says for the broker of the control group.
pub(crate) const CGROUP: &str = "cgroup";

/// Another run, or a broker, whose budget is shared.
#[derive(Debug)]
pub(crate) struct Joined {
    /// The process of its command.
    pub(crate) run: u32,
    pub(crate) directory: PathBuf,
    pub(crate) budget: Bytes,
    /// Whether that is for what is compressed, too.
    pub(crate) holds_store: bool,
}

impl Joined {
    /// Finds it by a process's number or a program's name, or as the broker of the control
    /// group that this process is in.
    pub(crate) fn find(choice: &str) -> Result<Self, Failure> {
        let run =
            if choice == CGROUP { of_our_cgroup()? } else { runs::the_one(choice, "--join")? };
        let directory = run.directory().to_owned();
        let summary = Summary::read(&directory.join(FILE));
        let none = |_| Failure::bad_input(format!("--join: {}", no_budget(choice).message()));
        let budget = summary.map_err(none)?.budget;
        let (run, holds_store) = (run.manifest.pid, run.manifest.holds_store);
        Ok(Self { run, directory, budget, holds_store })
    }
}

/// The broker of the innermost control group around this process that has one.
fn of_our_cgroup() -> Result<LiveRun, Failure> {
    let canonical = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let ours: Vec<_> = cgroups::ours().iter().map(|path| canonical(path)).collect();
    let depth = |run: &LiveRun| {
        let group = canonical(run.manifest.cgroup.as_deref()?);
        ours.iter().any(|path| path.starts_with(&group)).then(|| group.components().count())
    };
    let around = runs::all().into_iter().filter(|run| depth(run).is_some());
    around.max_by_key(depth).ok_or_else(|| {
        Failure::bad_input(
            "--join: no control group around this process has a `terrace broker --cgroup`",
        )
    })
}

/// A run that shares nothing.
pub(crate) fn no_budget(choice: &str) -> Failure {
    Failure::bad_input(format!("`{choice}` has no budget of its own to share or change"))
}
