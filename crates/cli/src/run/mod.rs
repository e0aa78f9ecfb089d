//! `terrace run`: runs a program with a part of its memory in DRAM and the
//! rest compressed.
//!
//! | file | concept |
//! |---|---|
//! | [`program`] | finds the program, and says why it could not be managed |
//! | [`library`] | finds the library that is loaded into it |
//! | [`child`] | starts it, hands signals on, waits |
//! | [`recorder`] | reads its statistics pages, writes its decisions down |
//! | [`ended`] | what is kept of processes that have ended |
//! | [`managed`] | a run whose memory is compressed |
//! | [`engine`](mod@engine) | which engine: the pager, or the kernel |
//! | [`kernel`] | the kernel serves the faults |
//! | [`across`] | several memories instead of compression |
//! | [`nodes`] | several memories above compression |
//! | [`outside`], [`memory`] | what lies outside of the budget, by what the kernel counts |
//! | [`shared_files`] | what several mappings and processes share counts once |
//! | [`warning`] | what it warns of while it goes on |
//! | [`plain`] | processes that nothing was loaded into |
//! | [`mod@render`] | what the run used, did and cost |
//! | [`secret`] | secret memory (`memfd_secret`), which is in no other count |
//! | [`spill`] | what `--spill` names |

mod across;
pub(crate) mod child;
mod ended;
pub(crate) mod engine;
mod kernel;
mod library;
mod managed;
pub(crate) mod memory;
mod nodes;
mod outside;
mod plain;
pub(crate) mod program;
mod recorder;
pub(crate) mod render;
pub(crate) mod secret;
mod shared_files;
mod spill;
pub(crate) mod warning;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use terrace_core::{Bytes, Compressing, Ladder, LadderFile, LadderTier};
use terrace_economics::Mode;
use terrace_kernel::support::Support;
use terrace_live::config::{HugePages, RunConfig};
use terrace_live::doctor::probe::UffdProbe;
use terrace_live::evict::quiet_window::QuietWindows;
use terrace_policy::PolicyName;

use self::engine::{Asked, Choice, Engine};
use self::kernel::RunError;
use self::program::{Program, Refusal};
pub(crate) use self::render::render;
use self::spill::SpillFile;
use crate::args::{economist, one_of};
use crate::attach::{self, Moving};
use crate::calibrate;
use crate::failure::Failure;
use crate::observing::{Observing, Watcher};
use crate::output::{self, Files, Kind, Output};

/// Run a program with at most so much of its memory in DRAM.
///
/// Large anonymous mappings and large allocations of the program are managed:
/// the part that does not fit the budget is held compressed. The program's own
/// exit status passes through. SIGUSR1 prints the report while it runs.
// More than twenty fields: one for each option, in the order of the help text.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: terrace run --fast 256MiB -- sort -S 1G big.txt")]
pub(crate) struct Args {
    /// DRAM that managed memory of all the program's processes together may use,
    /// at least 1MiB. They share it by need; `terrace set` changes it.
    #[arg(long, value_name = "SIZE", required_unless_present_any = ["join", "tiers", "total"])]
    fast: Option<Bytes>,

    /// DRAM for the same and for what is compressed of it: how much is which follows
    /// from how well it compresses, and pages are packed as tightly as pays.
    #[arg(long, value_name = "SIZE", conflicts_with_all = ["fast", "join", "slow"])]
    total: Option<Bytes>,

    /// All tiers from a ladder file, by its path or its name, instead: DRAM, compressed
    /// RAM and a file, or several memories as with `--slow`, or both.
    #[arg(long, value_name = "NAME|FILE",
          conflicts_with_all = ["fast", "total", "join", "slow", "spill", "spill_size", "store_limit"])]
    tiers: Option<PathBuf>,

    /// Share the budget of another `terrace run`, or of a `terrace broker`: the
    /// number of a process, or the program's name; or `cgroup` for the broker of the
    /// control group that this is in.
    #[arg(long, value_name = "PID|NAME|cgroup", conflicts_with_all = ["fast", "slow"])]
    join: Option<String>,

    /// Instead of compressing it, let the rest lie in a slower memory: `numa:N`, `dax:DEVICE`
    /// (a DAX device that is the kernel's memory), or `swap`; several, faster ones first.
    /// Nothing is loaded into the program, all its processes together have `--fast`, and pages
    /// stay mapped.
    #[arg(long, value_name = "TIER")]
    slow: Vec<LadderTier>,

    /// Who serves the program's page faults: Terrace's library, which is loaded into it (pager);
    /// or the kernel, from swap on compressed memory that is set up by itself, and Terrace only
    /// makes room (kernel); auto is the kernel where compressed swap is on already and nothing is
    /// asked for that only the pager has, or where the pager cannot serve the program, and else the
    /// pager: `terrace doctor` says which it is here.
    #[arg(long, value_name = "ENGINE", default_value = "auto",
          value_parser = one_of(&Engine::ALL, Engine::name))]
    engine: Engine,

    /// Have the budget cover the page cache of the program's files as well. How it is divided
    /// follows from what comes back of either side, and is explained (`terrace why --division`).
    /// The kernel's engine does that, with its own lists.
    #[arg(long = "files")]
    with_files: bool,

    /// Which policy decides what stays in DRAM: `refault` where the rest is compressed,
    /// `hemem` across several memories, and the kernel's own lists with --engine kernel, if this
    /// is not given.
    #[arg(long, value_name = "NAME",
          value_parser = one_of(&PolicyName::LIVE, PolicyName::name))]
    policy: Option<PolicyName>,

    /// What the economist does: nothing, record prices, also advise, or refuse what does not pay.
    #[arg(long, value_name = "MODE", default_value = "enforce", value_parser = economist())]
    economist: Mode,

    /// File that takes compressed pages beyond `--store-limit`, the oldest first; each
    /// process makes its own, which has no name any more and goes with it. With `dax:` in
    /// front it is mapped and used as memory, for file systems mounted with `-o dax`.
    #[arg(long, value_name = "[dax:]FILE")]
    spill: Option<SpillFile>,

    /// How large the file may be.
    #[arg(long, value_name = "SIZE", requires = "spill", default_value = "64GiB")]
    spill_size: Bytes,

    /// RAM that compressed pages may use before they go to the spill file; as much
    /// as the process has of `--fast` if this is not given.
    #[arg(long, value_name = "SIZE", requires = "spill")]
    store_limit: Option<Bytes>,

    /// Anonymous mappings of at least this size are managed.
    #[arg(long, value_name = "SIZE", default_value = "64KiB")]
    min_region: Bytes,

    /// When memory is backed by huge pages: ahead of the program's walks and where it
    /// touches much, as far as that pays (auto, unless told otherwise); wherever there is
    /// room for one; or not at all.
    #[arg(long, value_name = "WHEN", value_parser = one_of(&HugePages::ALL, HugePages::name))]
    huge_pages: Option<HugePages>,

    /// A profile of the program (`terrace profile record`): huge pages where it says that they
    /// pay, before memory is touched; base pages filled ahead where nearly all is touched; and
    /// base pages elsewhere in what it knows.
    #[arg(long, value_name = "FILE")]
    profile: Option<PathBuf>,

    /// Whether pages leave in quiet windows, where there are two to four processors and it
    /// pays (auto, unless told otherwise): all other processors are held for up to 0.6 ms,
    /// also from other programs. Or never.
    #[arg(long, value_name = "WHEN",
          value_parser = one_of(&QuietWindows::ALL, QuietWindows::name))]
    quiet_windows: Option<QuietWindows>,

    /// Write the report to a file instead of stderr.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,

    /// Write every decision, the figures over time and what the policy was told to a file,
    /// for `terrace why`, `report` and `replay`.
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,

    #[command(flatten)]
    observing: Observing,

    /// Where memory cannot be managed, run the program unmanaged instead of failing.
    #[arg(long)]
    best_effort: bool,

    /// Print neither a report nor warnings.
    #[arg(long, short)]
    quiet: bool,

    /// The program and its arguments.
    #[arg(required = true, trailing_var_arg = true,
          value_name = "PROGRAM", value_hint = clap::ValueHint::CommandWithArguments)]
    program: Vec<OsString>,

    /// What `--tiers` says of memories above compressed memory.
    #[arg(skip)]
    nodes: Option<Ladder>,

    /// That it is the pager, and why, where the kernel's engine was chosen and could not be set up.
    #[arg(skip)]
    instead_of_kernel: Option<String>,

    // Last, because the heading holds for all that follows.
    #[command(
        flatten,
        next_help_heading = "Moving, where pages stay mapped (--slow, or such --tiers), and observing"
    )]
    moving: Moving,
}

/// What `--min-region` is unless told otherwise.
const MIN_REGION: Bytes = Bytes::kib(64);

impl Args {
    pub(crate) fn execute(mut self, json: bool) -> Result<ExitCode, Failure> {
        self.moving.check()?;
        if json && self.quiet && self.report.is_none() {
            return Err(Failure::bad_input(
                "--json: has no effect with --quiet, unless --report says where the report goes",
            ));
        }
        let ladder = self.ladder()?;
        self.check_files()?;
        if let Some(LadderFile::ByKernel(ladder)) = &ladder {
            if self.engine == Engine::Pager {
                let what = "--engine pager: the file of --tiers names the kernel's";
                return Err(Failure::bad_input(what));
            }
            (self.fast, self.engine) = (Some(ladder.resident), Engine::Kernel);
        } else if ladder.is_some() && self.engine == Engine::Kernel {
            let option = if self.with_files { "--files" } else { "--engine" };
            return Err(Failure::bad_input(format!(
                "{option}: the file of --tiers does not name the kernel engine (`engine = \"kernel\"`)"
            )));
        }
        if self.engine == Engine::Kernel {
            let program = Program::locate(&self.program[0]).map_err(Failure::bad_input)?;
            return kernel::run(&self, &program, json, None).map_err(RunError::failure);
        }
        match ladder {
            Some(LadderFile::InPlace(_)) => return self.run_across(json),
            Some(LadderFile::Compressing(ladder)) => self.take(&ladder)?,
            Some(LadderFile::ByKernel(_)) | None => {}
        }
        let joined = self.join.as_deref().map(crate::broker::Joined::find).transpose()?;
        if self.fast() < RunConfig::MIN_FAST && joined.is_none() {
            let option = if self.total.is_some() { "--total" } else { "--fast" };
            let what = format!("{option}: the budget must be at least {}", RunConfig::MIN_FAST);
            return Err(Failure::bad_input(what));
        }
        if !self.slow.is_empty() {
            return self.run_across(json);
        }
        if let Some(option) = self.moving.in_place_only().filter(|_| self.nodes.is_none()) {
            return Err(Failure::bad_input(format!(
                "{option}: only where pages stay mapped, with --slow or such memories in --tiers"
            )));
        }
        if self.profile.is_some() && self.huge_pages == Some(HugePages::Never) {
            let what = "--profile: has no effect with --huge-pages never";
            return Err(Failure::bad_input(what));
        }
        if let Some(spill) = &self.spill {
            spill.check()?;
            if self.spill_size < SpillFile::LEAST {
                return Err(Failure::bad_input(format!(
                    "--spill-size: the file must be at least {}",
                    SpillFile::LEAST
                )));
            }
        }
        let program = Program::resolve(&self.program[0]);
        if self.engine == Engine::Auto
            && let Some(choice) = self.choose_engine(&program)
        {
            let over_pager = Some(&choice).filter(|choice| choice.or_pager);
            if over_pager.is_none() {
                self.tell(&choice);
            }
            if choice.engine == Some(Engine::Kernel) {
                let program = Program::locate(&self.program[0]).map_err(Failure::bad_input)?;
                match kernel::run(&self, &program, json, over_pager) {
                    // An option that only the kernel's engine has names this engine, as --files and a ladder
                    // file do. So none is dropped here.
                    Err(RunError::SetUp(failure)) if choice.or_pager => self.take_pager(failure),
                    done => return done.map_err(RunError::failure),
                }
            }
        }
        let program = program.map_err(Failure::bad_input)?;
        match UffdProbe::run().usable() {
            Ok(()) => self.run_managed(&program, joined, json),
            Err(why) if self.best_effort => {
                if let Some(option) = self.managed_only() {
                    return Err(Failure::unsupported(format!(
                        "{option}: has no effect on a program that is not managed, and memory \
                         cannot be managed here: {why} (`terrace doctor` says more; without \
                         {option}, --best-effort runs the program unmanaged)"
                    )));
                }
                if !self.quiet {
                    output::warn(format_args!("running unmanaged: {why}"));
                }
                self.run_unmanaged(&program, why, json)
            }
            Err(why) => Err(Failure::unsupported(format!(
                "memory cannot be managed here: {why} (`terrace doctor` says more; \
                 --best-effort runs the program unmanaged)"
            ))),
        }
    }

    /// Files are in a budget only of the kernel's engine with the kernel's own lists.
    fn check_files(&mut self) -> Result<(), Failure> {
        if !self.with_files {
            return Ok(());
        }
        let why = if self.engine == Engine::Pager {
            "not with --engine pager, which sees nothing of the page cache"
        } else if self.policy.is_some() {
            "not with --policy: a policy knows nothing of files' pages"
        } else if !self.slow.is_empty() {
            "not with --slow, where files' pages are no part of the budget"
        } else {
            self.engine = Engine::Kernel;
            return Ok(());
        };
        Err(Failure::bad_input(format!("--files: {why}")))
    }

    /// Which engine a run has that names none; `None` for a program that runs by none.
    fn choose_engine(&self, program: &Result<Program, Refusal>) -> Option<Choice> {
        let obstacle = match program {
            Ok(_) => UffdProbe::run().usable().err(),
            Err(refusal) if refusal.is_of_the_library() => Some(refusal.to_string()),
            Err(_) => return None,
        };
        let asked = Asked {
            obstacle: obstacle.as_deref(),
            pagers_own: self.pagers_own(),
            pagers_better: self.better_by_pager(),
        };
        let without_change = || engine::without_change(self.fast());
        let with_change = || Support::of_this_machine().is_fast();
        Some(engine::choose(asked, without_change, with_change))
    }

    /// Says which engine was chosen, and why.
    fn tell(&self, choice: &Choice) {
        if let Some(engine) = choice.engine.filter(|_| choice.is_told && !self.quiet) {
            output::say(format_args!("--engine {}: {}", engine.name(), choice.why));
        }
    }

    /// Goes on with the pager where the kernel's engine was chosen and could not be set up; says so, and why.
    fn take_pager(&mut self, failure: Failure) {
        let (engine, why) = (Engine::Pager.name(), kernel::reason(failure));
        let told = format!("{engine}: the kernel's could not be set up: {why}");
        if !self.quiet {
            output::say(format_args!("--engine {told}"));
        }
        self.instead_of_kernel = Some(told);
    }

    /// An option that was given and that only the pager has.
    fn pagers_own(&self) -> Option<&'static str> {
        let by_lists = self.policy.is_none();
        let given = [
            (self.join.is_some(), "--join"),
            (self.tiers.is_some(), "--tiers"),
            (self.spill.is_some() || self.store_limit.is_some(), "--spill"),
            (self.huge_pages.is_some(), "--huge-pages"),
            (self.profile.is_some(), "--profile"),
            (self.quiet_windows.is_some(), "--quiet-windows"),
            (self.best_effort, "--best-effort"),
            (self.moving.names_sampler(), "--sampler"),
            (by_lists && self.min_region != MIN_REGION, "--min-region"),
        ];
        given.into_iter().find_map(|(given, option)| given.then_some(option))
    }

    /// An option that was given, and that the kernel's engine has as well and does less with. It makes few
    /// decisions without a policy, and has not all policies. It can only estimate what a program's
    /// compressed pages take of swap that others use as well.
    fn better_by_pager(&self) -> Option<&'static str> {
        let given = [
            (self.total.is_some(), "--total"),
            (self.policy.is_some(), "--policy"),
            (self.economist != Mode::Enforce, "--economist"),
            (self.record.is_some(), "--record"),
            (self.observing.report_html.is_some(), "--report-html"),
            (self.moving.names_cap(), "--sampling-cap"),
        ];
        given.into_iter().find_map(|(given, option)| given.then_some(option))
    }

    /// An option that was given and has nothing to show, or to choose, where nothing is managed.
    /// Those that say how much and how stay without effect: to run without is what --best-effort
    /// asks for.
    fn managed_only(&self) -> Option<&'static str> {
        let given = [
            (self.record.is_some(), "--record"),
            (self.observing.report_html.is_some(), "--report-html"),
            (self.observing.metrics.is_some(), "--metrics"),
        ];
        given.into_iter().find_map(|(given, option)| given.then_some(option))
    }

    /// What `--tiers` names.
    fn ladder(&self) -> Result<Option<LadderFile>, Failure> {
        let Some(path) = &self.tiers else { return Ok(None) };
        let (name, text) = attach::read_ladder(path)?;
        LadderFile::parse(&name, &text).map(Some).map_err(Failure::bad_input)
    }

    /// Goes on as if the options had said so.
    fn take(&mut self, ladder: &Compressing) -> Result<(), Failure> {
        if ladder.resident < RunConfig::MIN_FAST {
            let name = self.tiers.as_deref().unwrap_or(Path::new("")).display().to_string();
            let least = RunConfig::MIN_FAST;
            let what = format!("{name}: field `tier[0].capacity`: must be at least {least}");
            return Err(Failure::bad_input(what));
        }
        self.fast = Some(ladder.resident);
        self.nodes.clone_from(&ladder.nodes);
        self.store_limit = ladder.store;
        self.spill = ladder.spill.as_ref().map(SpillFile::from);
        if let Some(size) = ladder.spill.as_ref().and_then(|spill| spill.size) {
            self.spill_size = size;
        }
        Ok(())
    }

    fn run_across(self, json: bool) -> Result<ExitCode, Failure> {
        let mapped = |policy| PolicyName::MAPPED.contains(&policy);
        let policy = self.policy.filter(|&policy| !mapped(policy));
        let policy = policy.map_or(String::new(), |policy| format!("--policy {policy}"));
        let given = [
            (!policy.is_empty(), policy.as_str()),
            (self.spill.is_some(), "--spill"),
            (self.huge_pages.is_some(), "--huge-pages"),
            (self.profile.is_some(), "--profile"),
            (self.quiet_windows.is_some(), "--quiet-windows"),
            (self.best_effort, "--best-effort"),
        ];
        if let Some((_, option)) = given.into_iter().find(|(given, _)| *given) {
            return Err(Failure::bad_input(format!(
                "{option}: not where pages stay mapped, as in the memories of --slow"
            )));
        }
        let program = Program::locate(&self.program[0]).map_err(Failure::bad_input)?;
        across::run(&self, &program, json)
    }

    fn command(&self, program: &Program) -> Command {
        use std::os::unix::process::CommandExt;

        let mut command = Command::new(&program.path);
        // A program may look at the name that it was called by.
        command.arg0(&self.program[0]).args(&self.program[1..]);
        command
    }

    fn fast(&self) -> Bytes {
        self.fast.or(self.total).unwrap_or_default()
    }

    /// What is read: nothing of it must be written.
    fn files(&self, program: &Program) -> Files {
        let mut files = Files::new();
        files.runs(&program.path, &self.program[1..]);
        if let Some(tiers) = self.tiers.as_deref()
            && let Ok(tiers) = attach::ladder_file(tiers)
        {
            files.reads("--tiers", tiers);
        }
        if let Some(profile) = &self.profile {
            files.reads("--profile", profile);
        }
        if let Some(library) = library::place() {
            files.reads("Terrace's library", library);
        }
        calibrate::names(&mut files);
        self.observing.names(&mut files);
        files
    }

    fn open_report(&self, files: &mut Files) -> Result<Option<Output>, Failure> {
        let path = self.report.as_deref();
        path.map(|path| files.writes("--report", path, Kind::Whole)).transpose()
    }

    /// Opens everything before the program starts: what cannot be written is known at once.
    fn open(&self, program: &Program) -> Result<Outputs, Failure> {
        let files = &mut self.files(program);
        let report = self.open_report(files)?;
        let record = self.record.as_deref();
        let record = record.map(|path| files.writes("--record", path, Kind::Recording));
        let record = record.transpose()?;
        if self.observing.report_html.is_some()
            && record.as_ref().is_some_and(|to| to.path().is_none())
        {
            let what = "--report-html: is drawn from what --record writes, which is no file here";
            return Err(Failure::bad_input(what));
        }
        let (watch, page) = (self.observing.open_watch(files)?, self.observing.open_page(files)?);
        Ok(Outputs { report, record, watch, page })
    }

    /// The tiers' names, fastest first.
    fn tiers(&self) -> Vec<String> {
        // Which node a page lies on is not what the pager decides.
        let mut tiers = vec!["dram".to_owned(), "compressed".to_owned()];
        tiers.extend(self.spill.iter().map(|spill| spill.tier().to_owned()));
        tiers
    }

    /// Which policy decides where what does not fit is compressed.
    fn policy(&self) -> PolicyName {
        self.policy.unwrap_or(PolicyName::Refault)
    }

    /// The command line as text.
    fn shown(&self) -> Vec<String> {
        self.program.iter().map(|arg| arg.to_string_lossy().into_owned()).collect()
    }
}

/// What a run writes.
struct Outputs {
    report: Option<Output>,
    record: Option<Output>,
    watch: Option<Watcher>,
    page: Option<Output>,
}

fn not_started(program: &Program, error: &std::io::Error) -> Failure {
    let path = program.path.display();
    Failure::failed(format!("program `{path}` could not be started: {error}"))
}

/// A path that holds wherever the program goes.
pub(crate) fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}
