//! `terrace attach`: tiers for programs that run already.
//!
//! | file | concept |
//! |---|---|
//! | [`session`] | an attachment that is under way |
//! | [`kernel`] | a budget that the kernel engine keeps |
//! | [`moving`] | how is observed and moved: options that `run` has, too |
//! | [`showing`] | what shows it meanwhile, and draws it afterwards |
//! | [`whom`] | who cannot be attached to |
//! | [`recorder`] | writes its decisions down |
//! | [`render`](mod@render) | the report as people read it |
//! | here | the options |

mod kernel;
mod moving;
pub(crate) mod recorder;
pub(crate) mod render;
pub(crate) mod session;
pub(crate) mod showing;
mod whom;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;

use terrace_core::{
    ByKernel, Bytes, Ladder, LadderFile, LadderTier, Nanos, NoLadder, ParseUnitError, Shelf,
};
use terrace_economics::Mode;
use terrace_live::attach::targets::Targets;
use terrace_policy::PolicyName;

pub(crate) use self::moving::{Moving, percent};
pub(crate) use self::session::{How, Session};
use crate::args::{economist, one_of};
use crate::calibrate;
use crate::cgroups;
use crate::failure::Failure;
use crate::observing::Observing;
use crate::output::{self, Files, Kind};
use crate::run::engine::Engine;

/// Move the pages of programs that run already between memories.
///
/// Watches the programs' accesses from outside, lets a policy plan, and moves
/// pages between NUMA nodes, or into swap. Pages stay mapped and nothing
/// faults. Ends with the programs, or when it is interrupted; what was moved
/// stays where it is. SIGUSR1 prints the report while it runs.
///
/// With --engine kernel the programs have a budget instead: what is beyond it
/// lies in swap on compressed memory, from which the kernel brings it back.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example: terrace attach --pid 4711 --fast numa:0=4GiB --slow numa:1\n         \
                  terrace attach --pid 4711 --tree --engine kernel --fast 1GiB",
    group = clap::ArgGroup::new("whom").required(true).args(["pid", "cgroup"]),
    group = clap::ArgGroup::new("where").required(true).args(["tiers", "fast"])
)]
pub(crate) struct Args {
    /// The process.
    #[arg(long, value_name = "PID", value_parser = clap::value_parser!(u32).range(1..))]
    pid: Option<u32>,

    /// Also the processes that it started.
    #[arg(long, requires = "pid")]
    tree: bool,

    /// A control group, by its directory or its path below /sys/fs/cgroup:
    /// every process in it and below it.
    #[arg(long, value_name = "PATH")]
    cgroup: Option<PathBuf>,

    /// The tiers, from a ladder file, by its path or its name.
    #[arg(long, value_name = "NAME|FILE", conflicts_with_all = ["fast", "slow"])]
    tiers: Option<PathBuf>,

    /// The fastest tier: `numa:N`, with a capacity as `numa:N=SIZE`; or a DAX device that is
    /// the kernel's memory, `dax:DEVICE`. With --engine kernel the budget, a SIZE.
    #[arg(long, value_name = "TIER|SIZE")]
    fast: Option<Fast>,

    /// Keep the programs within a budget by the kernel engine, instead of moving pages between
    /// memories.
    #[arg(long, value_name = "ENGINE", value_parser = one_of(&[Engine::Kernel], Engine::name))]
    engine: Option<Engine>,

    /// A slower tier: `numa:N`, `dax:DEVICE` or `swap`; several, faster ones first.
    #[arg(long, value_name = "TIER", requires = "fast")]
    slow: Vec<LadderTier>,

    #[command(flatten)]
    moving: Moving,

    /// Which policy decides what lies where: `hemem` if this is not given. With --engine kernel
    /// which one chooses what leaves: the kernel's own lists, or `refault` where the kernel cannot
    /// be asked to choose.
    #[arg(long, value_name = "NAME",
          value_parser = one_of(&PolicyName::LIVE, PolicyName::name))]
    policy: Option<PolicyName>,

    /// What the economist does: nothing, record prices, also advise, or refuse what does not pay.
    #[arg(long, value_name = "MODE", default_value = "enforce", value_parser = economist())]
    economist: Mode,

    /// Anonymous mappings of at least this size are managed.
    #[arg(long, value_name = "SIZE", default_value = "64KiB")]
    min_region: Bytes,

    /// End after so long.
    #[arg(long = "for", value_name = "TIME")]
    duration: Option<Nanos>,

    /// Plan and report, but move nothing.
    #[arg(long)]
    dry_run: bool,

    /// Write the report to a file instead of stdout.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,

    /// Write every decision to a file, for `terrace why`.
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,

    #[command(flatten)]
    observing: Observing,

    /// Print no warnings.
    #[arg(long, short)]
    quiet: bool,
}

impl Args {
    pub(crate) fn execute(self, json: bool) -> Result<ExitCode, Failure> {
        self.moving.check()?;
        if let Some(ladder) = self.kernel_ladder()? {
            return kernel::attach(self, ladder.resident, json);
        }
        if self.engine.is_some() {
            return match self.fast {
                _ if self.tiers.is_some() => Err(Failure::bad_input(
                    "--engine: the file of --tiers does not name the kernel engine (`engine = \"kernel\"`)",
                )),
                Some(Fast::Size(fast)) => kernel::attach(self, fast, json),
                _ => Err(Failure::bad_input("--fast: with --engine kernel a size, such as `1GiB`")),
            };
        }
        let policy = self.policy.unwrap_or(PolicyName::HeMem);
        if !PolicyName::MAPPED.contains(&policy) {
            let what = format!("--policy {policy}: not where pages stay mapped");
            return Err(Failure::bad_input(what));
        }
        let ladder = self.ladder()?;
        if self.duration.is_some_and(Nanos::is_zero) {
            return Err(Failure::bad_input("--for: must be above zero"));
        }
        if let Some(process) = self.pid {
            whom::check(process)?;
        }
        let targets = self.targets()?;
        let processes = targets.list().map_err(Failure::bad_input)?;
        if let (Targets::Process { process, .. }, []) = (&targets, processes.as_slice()) {
            return Err(Failure::bad_input(format!("--pid: there is no process {process}")));
        }
        let mut files = Files::new();
        if let Some(tiers) = &self.tiers {
            files.reads("--tiers", ladder_file(tiers)?);
        }
        self.observing.names(&mut files);
        calibrate::names(&mut files);
        let report_to = self.report.as_deref();
        let report_to = report_to.map(|path| files.writes("--report", path, Kind::Whole));
        let report_to = report_to.transpose()?;
        let program = match (&targets, session::names(&processes).first()) {
            (Targets::Cgroup(path), _) => path.display().to_string(),
            (Targets::Process { .. }, Some((_, name))) => name.clone(),
            (Targets::Process { process, .. }, None) => process.to_string(),
        };
        let mut session = Session::new(How {
            verb: "attach",
            program: vec![program],
            ladder,
            targets,
            policy,
            economist: self.economist,
            prices: calibrate::for_run(self.quiet)?,
            moving: self.moving,
            min_region: self.min_region,
            dry_run: self.dry_run,
            record: self.record,
            observing: self.observing,
            files,
            quiet: self.quiet,
        })?;
        let end = session.run(self.duration, json);
        let text = session.finish(json)?;
        match report_to {
            Some(report) => report.write_whole(text.as_bytes())?,
            None => output::print(&text)?,
        }
        end.map(|()| ExitCode::SUCCESS)
    }

    fn ladder(&self) -> Result<Ladder, Failure> {
        let fast = match self.fast {
            None => None,
            Some(Fast::Tier(tier)) => Some(tier),
            Some(Fast::Size(size)) => {
                return Err(Failure::bad_input(format!(
                    "--fast: `{size}` is a budget, which --engine kernel keeps; a tier is a memory, \
                     such as `numa:0={size}`"
                )));
            }
        };
        if fast.is_some() && self.slow.is_empty() {
            return Err(Failure::bad_input("--fast: a slower tier has to be there, --slow"));
        }
        ladder(self.tiers.as_deref(), fast, &self.slow, &self.moving)
    }

    /// What `--tiers` names, if that is a ladder of the kernel engine.
    fn kernel_ladder(&self) -> Result<Option<ByKernel>, Failure> {
        let Some(path) = &self.tiers else { return Ok(None) };
        let (name, text) = read_ladder(path)?;
        match LadderFile::parse(&name, &text).map_err(Failure::bad_input)? {
            LadderFile::ByKernel(ladder) => Ok(Some(ladder)),
            _ => Ok(None),
        }
    }

    fn targets(&self) -> Result<Targets, Failure> {
        if let Some(process) = self.pid {
            return Ok(Targets::Process { process, tree: self.tree });
        }
        let given = self.cgroup.clone().unwrap_or_default();
        cgroups::directory("--cgroup", &given).map(Targets::Cgroup)
    }
}

/// What `--fast` says.
#[derive(Clone, Copy, Debug)]
enum Fast {
    /// The fastest tier.
    Tier(LadderTier),
    /// A budget.
    Size(Bytes),
}

impl FromStr for Fast {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // A memory has a name, a size begins with a digit.
        if text.starts_with(|c: char| c.is_ascii_digit()) {
            return text.parse().map(Self::Size).map_err(|e: ParseUnitError| e.to_string());
        }
        text.parse().map(Self::Tier).map_err(|e: <LadderTier as FromStr>::Err| e.to_string())
    }
}

/// Names the option and the value that are wrong.
fn wrong_tier(fast: bool, tiers: &[LadderTier], wrong: &NoLadder) -> Failure {
    let Some((number, tier)) = wrong.tier.and_then(|n| Some((n, tiers.get(n)?))) else {
        return Failure::bad_input(format!("--slow: {wrong}"));
    };
    let option = if fast && number == 0 { "--fast" } else { "--slow" };
    let memory = tier.memory;
    let value = match tier.capacity {
        None => memory.to_string(),
        Some(Bytes::ZERO) => format!("{memory}=0"),
        Some(capacity) => format!("{memory}={capacity}"),
    };
    Failure::bad_input(format!("{option}: `{value}`: {wrong}"))
}

/// The ladder file that `--tiers` names, by its path or by its name.
pub(crate) fn ladder_file(named: &Path) -> Result<PathBuf, Failure> {
    Shelf::Ladders
        .find(named)
        .map_err(|missing| Failure::bad_input(format!("--tiers: {}: {missing}", named.display())))
}

/// The file that `--tiers` names, for messages, and its text.
pub(crate) fn read_ladder(named: &Path) -> Result<(String, String), Failure> {
    let path = ladder_file(named)?;
    let name = path.display().to_string();
    match terrace_core::read_text(&path) {
        Ok(text) => Ok((name, text)),
        Err(e) => Err(Failure::bad_input(format!("--tiers: {name}: {e}"))),
    }
}

/// The tiers as a file says, or else the options.
pub(crate) fn ladder(
    file: Option<&Path>,
    fast: Option<LadderTier>,
    slow: &[LadderTier],
    moving: &Moving,
) -> Result<Ladder, Failure> {
    let mut ladder = if let Some(path) = file {
        let (name, text) = read_ladder(path)?;
        Ladder::parse(&name, &text).map_err(Failure::bad_input)?
    } else {
        let tiers: Vec<_> = fast.iter().chain(slow).copied().collect();
        Ladder::new(tiers.clone()).map_err(|wrong| wrong_tier(fast.is_some(), &tiers, &wrong))?
    };
    moving.limit(&mut ladder)?;
    Ok(ladder)
}
