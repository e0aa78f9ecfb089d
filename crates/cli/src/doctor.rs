//! `terrace doctor`: what this machine supports, what that leads to, and what
//! would have to change.

use std::fmt::Write as _;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde::Serialize;
use terrace_core::Bytes;
use terrace_kernel::support::Support;
use terrace_kloc_live::act::privileges;
use terrace_kloc_live::decide::nodes::slow_node;
use terrace_kloc_live::observe::hooks::{HookSet, Wanted};
use terrace_kloc_live::service::source::Source;
use terrace_live::costs::Known;
use terrace_live::doctor::facts::{Facts, SamplerSupport};
use terrace_live::doctor::probe::{SpillProbe, UffdProbe};
use terrace_live::numa::dax::DaxState;
use terrace_live::sys::uffd::{OpenedBy, feature};
use terrace_sampler::{Capabilities, Kind, choose};
use terrace_volume::ublk;

use crate::calibrate;
use crate::failure::Failure;
use crate::output::{self, facts};
use crate::run::engine::{self, Asked, Engine};

/// Say what this machine supports, and whether `terrace run` works on it.
///
/// Exit code 0 if it does, 3 if not.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Read the procfs and sysfs below this directory instead of this machine's.
    #[arg(long, env = "TERRACE_ROOT", hide = true)]
    root: Option<PathBuf>,
}

/// What the doctor found.
#[derive(Debug, Serialize)]
struct Diagnosis {
    /// Whether `terrace run` manages memory here.
    works: bool,
    /// Why not.
    obstacle: Option<String>,
    /// What was found by trying; `None` of a machine that is not this one.
    userfaultfd: Option<Userfaultfd>,
    /// What the kernel's engine has here; `None` of a machine that is not this one.
    kernel_engine: Option<Support>,
    /// Which engine `run --engine auto` is here; `None` of a machine that is not this one.
    auto: Option<Auto>,
    /// Ways to observe accesses, best first.
    samplers: Vec<SamplerSupport>,
    /// Ways to observe programs from outside; `None` of a machine that is not
    /// this one.
    attach: Option<AttachSupport>,
    /// How `run --spill` would write its file; `None` of a machine that is not this
    /// one.
    spill: Option<SpillSupport>,
    /// What the mechanisms cost here, if that was measured; `None` of a machine that is not
    /// this one.
    costs: Option<Costs>,
    /// What `volume serve` can make of a volume here; `None` of a machine that is not this one.
    volume: Option<VolumeSupport>,
    /// How `kloc run` would observe files; `None` of a machine that is not this one.
    kloc: Option<KlocSupport>,
    /// What the files say.
    facts: Facts,
}

/// Which engine a run has that names none, and asks for nothing that only one of them has.
#[derive(Debug, Serialize)]
struct Auto {
    /// `None` if it has none.
    engine: Option<&'static str>,
    /// Why.
    why: String,
    /// The one for a program that the pager cannot serve (a static one, say).
    of_others: Option<&'static str>,
}

impl Auto {
    fn of_this_machine(obstacle: Option<&str>, support: &Support) -> Self {
        let of = |obstacle| {
            let asked = Asked { obstacle, ..Asked::default() };
            engine::choose(asked, || engine::without_change(Bytes::ZERO), || support.is_fast())
        };
        let choice = of(obstacle);
        Self {
            engine: choice.engine.map(Engine::name),
            why: choice.why,
            of_others: of(Some("static")).engine.map(Engine::name),
        }
    }

    fn rows(&self) -> Vec<(&'static str, String)> {
        let of_others = self.of_others.unwrap_or("none: such programs are refused");
        vec![
            ("of most programs", format!("{}: {}", self.engine.unwrap_or("none"), self.why)),
            ("what the pager cannot serve", of_others.to_owned()),
        ]
    }
}

/// What is known of the mechanisms' costs.
#[derive(Debug, Serialize)]
struct Costs {
    /// Whether `terrace run` and `attach` use measured ones.
    measured: bool,
    #[serde(skip)]
    rows: Vec<(&'static str, String)>,
    /// Why not.
    #[serde(skip_serializing_if = "Option::is_none")]
    lack: Option<String>,
}

impl Costs {
    fn of_this_machine() -> Self {
        let lack = match calibrate::known() {
            Ok(Known::Measured(measured)) => {
                return Self { measured: true, rows: calibrate::rows(&measured), lack: None };
            }
            Ok(Known::Nothing) => {
                "never measured; `terrace run` and `attach` use defaults".to_owned()
            }
            Ok(Known::Stale(why)) => {
                format!("stale, `terrace run` and `attach` use defaults: {why}")
            }
            Err(failure) => failure.message(),
        };
        Self { measured: false, rows: vec![("state", lack.clone())], lack: Some(lack) }
    }
}

/// How a spill file in the working directory would be written, as tried.
#[derive(Debug, Serialize)]
struct SpillSupport {
    /// Why not by `io_uring` (by `pwrite` then).
    io_uring_lacks: Option<String>,
    /// Why not past the page cache.
    direct_lacks: Option<String>,
    /// Why a mapped file would go through it, too.
    dax_lacks: Option<String>,
    /// Where file systems are mounted with DAX.
    dax_mounts: Vec<String>,
}

impl SpillSupport {
    fn of_this_machine() -> Self {
        let probe = SpillProbe::run(Path::new("."));
        Self {
            io_uring_lacks: probe.io_uring,
            direct_lacks: probe.direct,
            dax_lacks: probe.dax,
            dax_mounts: probe.dax_mounts,
        }
    }
}

/// Devices by which `terrace volume serve` serves, as opened.
#[derive(Debug, Serialize)]
struct VolumeSupport {
    /// Why not as a file.
    fuse_lacks: Option<String>,
    /// Why not as a block device of its own.
    ublk_lacks: Option<String>,
}

impl VolumeSupport {
    fn of_this_machine() -> Self {
        let lacks = |path: &str| {
            let opened = File::options().read(true).write(true).open(path);
            opened.err().map(|e| format!("{path}: {e}"))
        };
        Self { fuse_lacks: lacks("/dev/fuse"), ublk_lacks: lacks(ublk::CONTROL) }
    }

    fn rows(&self) -> Vec<(&'static str, String)> {
        let state = |lacks: &Option<String>, more: &str| match lacks {
            None => "yes".to_owned(),
            Some(why) => format!("no: {why}{more}"),
        };
        vec![
            ("NBD (--socket, --tcp)", "yes".to_owned()),
            ("a file (--fuse)", state(&self.fuse_lacks, "")),
            (
                "a block device (--ublk)",
                state(&self.ublk_lacks, " (the kernel's module is ublk_drv)"),
            ),
        ]
    }
}

/// How `terrace kloc run` would observe files, as tried.
#[derive(Debug, Serialize)]
struct KlocSupport {
    /// The set of hooks that it would use.
    hooks: Option<HookSet>,
    /// Why not others, or none.
    refused: Vec<String>,
    /// What would not be known, and why.
    lacks: Vec<String>,
    /// The node that pages would be moved to; they are dropped where there is none.
    slow_node: Option<u32>,
}

impl KlocSupport {
    fn of_this_machine() -> Self {
        let slow_node = slow_node();
        let missing = privileges::missing(true);
        if !missing.is_empty() {
            let lack = |need: &privileges::Need| format!("{} (to {})", need.name, need.reason);
            let refused = vec![format!(
                "this user lacks {}",
                missing.iter().map(lack).collect::<Vec<_>>().join(", ")
            )];
            return Self { hooks: None, refused, lacks: Vec::new(), slow_node };
        }
        let sentences = |refused: Vec<(HookSet, String)>| {
            refused.into_iter().map(|(set, why)| format!("{}: {why}", set.name())).collect()
        };
        match Source::new(&Wanted::default()) {
            Ok((source, refused)) => Self {
                hooks: Some(source.set()),
                refused: sentences(refused),
                lacks: source.lacks(),
                slow_node,
            },
            Err(refused) => {
                Self { hooks: None, refused: sentences(refused), lacks: Vec::new(), slow_node }
            }
        }
    }

    fn rows(&self) -> Vec<(&'static str, String)> {
        let mut rows = vec![(
            "hooks",
            self.hooks.map_or("none: `terrace kloc run` does not work here".to_owned(), |set| {
                set.name().to_owned()
            }),
        )];
        rows.extend(self.refused.iter().map(|why| ("not used", why.clone())));
        rows.extend(self.lacks.iter().map(|why| ("not known", why.clone())));
        let pages = self.slow_node.map_or("dropped under pressure".to_owned(), |node| {
            format!("moved to node {node} where the machine is short, dropped for groups")
        });
        rows.push(("pages are", pages));
        rows
    }
}

/// What `terrace attach` would observe programs by, as tried.
#[derive(Debug, Serialize)]
struct AttachSupport {
    /// What it would use; empty if there is nothing.
    chosen: Vec<Kind>,
    /// Why.
    reason: String,
    /// What each kind lacks.
    capabilities: Capabilities,
}

impl AttachSupport {
    fn of_this_machine() -> Self {
        let capabilities = Capabilities::probe();
        let (chosen, reason) = match choose::choose(&capabilities) {
            Ok(choice) => (choice.kinds, choice.reason),
            Err(_) => (Vec::new(), "nothing here observes programs from outside".to_owned()),
        };
        Self { chosen, reason, capabilities }
    }
}

/// What userfaultfd offers, as tried.
#[derive(Debug, Serialize)]
struct Userfaultfd {
    /// How it was opened; `None` if it was refused.
    opened: Option<&'static str>,
    /// The kernel's feature bits.
    features: u64,
    /// Those that Terrace uses or could use, by name.
    has: Vec<Feature>,
    /// Whether forks may be reported to us.
    fork_events: bool,
}

#[derive(Debug, Serialize)]
struct Feature {
    name: &'static str,
    available: bool,
    needed: bool,
}

/// Features by their names in `linux/userfaultfd.h`.
const FEATURES: [(&str, u64); 9] = [
    ("MOVE", feature::MOVE),
    ("EVENT_REMAP", feature::EVENT_REMAP),
    ("EVENT_REMOVE", feature::EVENT_REMOVE),
    ("EVENT_UNMAP", feature::EVENT_UNMAP),
    ("WP_ASYNC", feature::WP_ASYNC),
    ("RWP", feature::RWP),
    ("RWP_ASYNC", feature::RWP_ASYNC),
    ("THREAD_ID", feature::THREAD_ID),
    ("SIGBUS", feature::SIGBUS),
];

impl Args {
    pub(crate) fn execute(self, json: bool) -> Result<ExitCode, Failure> {
        let diagnosis = match &self.root {
            Some(root) => Diagnosis::from_files(root),
            None => Diagnosis::of_this_machine(),
        };
        if json {
            output::print(&output::json("terrace.doctor", &diagnosis)?)?;
        } else {
            output::print(&render(&diagnosis))?;
        }
        Ok(if diagnosis.works { ExitCode::SUCCESS } else { ExitCode::from(3) })
    }
}

impl Diagnosis {
    fn of_this_machine() -> Self {
        let facts = Facts::read(Path::new("/"));
        let probe = UffdProbe::run();
        let obstacle = probe.usable().err();
        let support = Support::of_this_machine();
        Self {
            works: obstacle.is_none(),
            samplers: facts.samplers(obstacle.clone(), Some(probe.features)),
            auto: Some(Auto::of_this_machine(obstacle.as_deref(), &support)),
            obstacle,
            kernel_engine: Some(support),
            attach: Some(AttachSupport::of_this_machine()),
            userfaultfd: Some(Userfaultfd::from(&probe)),
            spill: Some(SpillSupport::of_this_machine()),
            costs: Some(Costs::of_this_machine()),
            volume: Some(VolumeSupport::of_this_machine()),
            kloc: Some(KlocSupport::of_this_machine()),
            facts,
        }
    }

    /// Of another machine, whose files somebody sent: nothing can be tried.
    fn from_files(root: &Path) -> Self {
        let facts = Facts::read(root);
        let obstacle = facts.obstacle();
        Self {
            works: obstacle.is_none(),
            samplers: facts.samplers(obstacle.clone(), None),
            obstacle,
            kernel_engine: None,
            auto: None,
            attach: None,
            userfaultfd: None,
            spill: None,
            costs: None,
            volume: None,
            kloc: None,
            facts,
        }
    }
}

impl From<&UffdProbe> for Userfaultfd {
    fn from(probe: &UffdProbe) -> Self {
        Self {
            opened: probe.opened.ok().map(|by| match by {
                OpenedBy::Device => "/dev/userfaultfd",
                OpenedBy::Syscall => "the system call",
            }),
            features: probe.features,
            has: FEATURES
                .into_iter()
                .map(|(name, bit)| Feature {
                    name,
                    available: probe.features & bit != 0,
                    needed: UffdProbe::REQUIRED & bit != 0,
                })
                .collect(),
            fork_events: probe.fork_events,
        }
    }
}

fn render(diagnosis: &Diagnosis) -> String {
    let mut text = match &diagnosis.obstacle {
        None => "`terrace run` works here\n".to_owned(),
        Some(why) => format!("`terrace run` does not work here: {why}\n"),
    };
    section(&mut text, "system", &system(&diagnosis.facts));
    section(&mut text, "userfaultfd", &userfaultfd(diagnosis));
    if let Some(auto) = &diagnosis.auto {
        section(&mut text, "engine of a run that names none (`run --engine auto`)", &auto.rows());
    }
    if let Some(support) = &diagnosis.kernel_engine {
        let title = "the kernel's engine (`run --engine kernel`)";
        section(&mut text, title, &kernel_engine(support));
    }
    section(&mut text, "observing accesses, best first", &samplers(diagnosis));
    if let Some(attach) = &diagnosis.attach {
        section(
            &mut text,
            "observing from outside (`terrace attach`), best first",
            &outside(attach),
        );
    }
    if let Some(support) = &diagnosis.spill {
        section(&mut text, "spill file in this directory (`run --spill`)", &spill(support));
    }
    if let Some(costs) = &diagnosis.costs {
        section(&mut text, "measured costs (`terrace calibrate`)", &costs.rows);
    }
    if let Some(support) = &diagnosis.volume {
        section(&mut text, "serving volumes (`terrace volume serve`)", &support.rows());
    }
    if let Some(support) = &diagnosis.kloc {
        section(&mut text, "files and their kernel objects (`terrace kloc run`)", &support.rows());
    }
    section(&mut text, "memory", &memory(&diagnosis.facts));
    text
}

fn section(text: &mut String, title: &str, rows: &[(&str, String)]) {
    let _ = write!(text, "\n{title}\n{}", facts("  ", rows));
}

fn unknown_if_empty(text: &str) -> String {
    if text.is_empty() { "unknown".to_owned() } else { text.to_owned() }
}

fn system(facts: &Facts) -> Vec<(&'static str, String)> {
    let cpu = &facts.cpu;
    let virtual_machine = if cpu.hypervisor { ", virtual machine" } else { "" };
    let mut rows = vec![
        ("kernel", unknown_if_empty(&facts.kernel.release)),
        (
            "processor",
            format!("{}, {} online{virtual_machine}", unknown_if_empty(&cpu.model), cpu.online),
        ),
    ];
    let mut rights = Vec::new();
    if facts.privileges.sys_ptrace {
        rights.push("CAP_SYS_PTRACE");
    }
    if facts.privileges.perfmon {
        rights.push("CAP_PERFMON");
    }
    if rights.is_empty() {
        rights.push("none of those that help");
    }
    rows.push(("privileges", rights.join(", ")));
    if facts.privileges.seccomp {
        rows.push(("seccomp", "system calls of this process are filtered".to_owned()));
    }
    rows
}

fn userfaultfd(diagnosis: &Diagnosis) -> Vec<(&'static str, String)> {
    let files = &diagnosis.facts.userfaultfd;
    let device = match (files.device, files.device_accessible) {
        (false, _) => "missing",
        (true, false) => "there, but this user may not open it",
        (true, true) => "accessible",
    };
    let unprivileged = match files.unprivileged {
        None => "unknown",
        Some(true) => "1: every user",
        Some(false) => "0: privileged users",
    };
    let mut rows = vec![
        ("/dev/userfaultfd", device.to_owned()),
        ("vm.unprivileged_userfaultfd", unprivileged.to_owned()),
    ];
    let Some(tried) = &diagnosis.userfaultfd else {
        rows.push(("tried", "no: these are another machine's files".to_owned()));
        return rows;
    };
    let opened = tried.opened.map_or("no: refused".to_owned(), |how| format!("yes, by {how}"));
    rows.push(("opened", opened));
    for feature in &tried.has {
        let needed = if feature.needed { "" } else { " (not needed)" };
        let available = if feature.available { "yes" } else { "no" };
        rows.push((feature.name, format!("{available}{needed}")));
    }
    let forks = if tried.fork_events { "yes" } else { "no: CAP_SYS_PTRACE is needed" };
    rows.push(("EVENT_FORK", forks.to_owned()));
    rows
}

fn kernel_engine(support: &Support) -> Vec<(&'static str, String)> {
    let works = if support.works { "yes" } else { "no" };
    let mut rows = vec![("works here", works.to_owned())];
    rows.extend(support.parts.iter().map(|part| {
        let state = match (&part.has, &part.lacks) {
            (Some(has), _) => format!("yes: {has}"),
            (None, lacks) => {
                let needed = if part.needed { "" } else { " (not needed)" };
                format!("no{needed}: {}", lacks.as_deref().unwrap_or("unknown"))
            }
        };
        (part.name, state)
    }));
    rows
}

fn samplers(diagnosis: &Diagnosis) -> Vec<(&'static str, String)> {
    diagnosis
        .samplers
        .iter()
        .map(|sampler| {
            let state = match &sampler.missing {
                Some(missing) => format!("no: {missing}"),
                None => "yes, used by `terrace run`".to_owned(),
            };
            (sampler.name, state)
        })
        .collect()
}

fn outside(attach: &AttachSupport) -> Vec<(&'static str, String)> {
    let state = |lack: Option<&str>| lack.map_or("yes".to_owned(), |lack| format!("no: {lack}"));
    let mut rows: Vec<_> = Kind::ALL
        .into_iter()
        .map(|kind| (kind.name(), state(attach.capabilities.lack(kind))))
        .collect();
    if let (None, Some(lack)) = (&attach.capabilities.damon, &attach.capabilities.damon_pictures)
        && let Some(row) = rows.iter_mut().find(|row| row.0 == Kind::Damon.name())
    {
        row.1 = format!("yes, but each picture has to be waited for: {lack}");
    }
    let chosen: Vec<_> = attach.chosen.iter().map(|kind| kind.name()).collect();
    let chosen = if chosen.is_empty() { "none".to_owned() } else { chosen.join(" and ") };
    rows.push(("chosen", format!("{chosen}: {}", attach.reason)));
    rows
}

fn spill(support: &SpillSupport) -> Vec<(&'static str, String)> {
    let state = |lack: &Option<String>, instead: &str| match lack {
        None => "yes".to_owned(),
        Some(lack) => format!("no, {instead}: {lack}"),
    };
    vec![
        ("written by io_uring", state(&support.io_uring_lacks, "by pwrite")),
        ("past the page cache", state(&support.direct_lacks, "through it")),
        ("as memory (`dax:FILE`)", state(&support.dax_lacks, "through the page cache")),
        (
            "mounted with DAX",
            match support.dax_mounts.as_slice() {
                [] => "nothing".to_owned(),
                mounts => mounts.join(", "),
            },
        ),
    ]
}

fn memory(facts: &Facts) -> Vec<(&'static str, String)> {
    let memory = &facts.memory;
    let mut rows = if memory.total.is_zero() {
        vec![("total", "unknown".to_owned())]
    } else {
        vec![
            ("total", memory.total.to_string()),
            ("available", memory.available.to_string()),
            ("swap", memory.swap.to_string()),
        ]
    };
    if memory.free_to_host {
        rows.push((
            "free memory",
            "reported to the host, which may take it back: who touches it next waits for the host"
                .to_owned(),
        ));
    }
    for node in &facts.nodes {
        let what = if node.cpus.is_empty() {
            "no processors".to_owned()
        } else {
            format!("processors {}", node.cpus)
        };
        rows.push((
            "NUMA node",
            format!("{}: {}, {} free, {what}", node.id, node.total, node.free),
        ));
    }
    rows.extend(facts.dax.iter().map(|device| ("DAX device", dax(device))));
    let huge_pages = facts.huge_pages.as_ref().map_or("not in this kernel".to_owned(), |huge| {
        format!("{}, defrag {}", huge.enabled, unknown_if_empty(&huge.defrag))
    });
    rows.push(("transparent huge pages", huge_pages));
    rows.push(("zram", zram(facts)));
    let zswap = match &facts.zswap {
        None => "not in this kernel".to_owned(),
        Some(zswap) if zswap.enabled => format!("on, {}", unknown_if_empty(&zswap.compressor)),
        Some(_) => "off".to_owned(),
    };
    rows.push(("zswap", zswap));
    if let Some(cgroup) = &facts.cgroup {
        let amount =
            |amount: Option<Bytes>, none: &str| amount.map_or(none.to_owned(), |a| a.to_string());
        rows.push((
            "control group",
            format!(
                "{} (version {}), limit {}, {} in use",
                cgroup.path,
                cgroup.version,
                amount(cgroup.limit, "none"),
                amount(cgroup.usage, "an unknown amount"),
            ),
        ));
    }
    let overcommit = match memory.overcommit {
        Some(0) => "heuristic",
        Some(1) => "always granted",
        Some(2) => "strict: large reservations may fail",
        _ => "unknown",
    };
    rows.push(("overcommit", overcommit.to_owned()));
    if let Some(maps) = memory.max_map_count {
        rows.push(("mappings a process", format!("{} at most", output::count(maps))));
    }
    rows
}

/// A device, and whether it is a tier.
fn dax(state: &DaxState) -> String {
    let driver = state.driver.as_deref().unwrap_or("none");
    let node = state.node.map_or("no node".to_owned(), |node| format!("node {node}"));
    let tier = if let Some(lacks) = &state.lacks {
        format!("no tier: {lacks}")
    } else {
        let also = if state.shares_node { " beside other memory" } else { "" };
        format!("tier `dax:{}`, {} online{also}", state.device, state.online)
    };
    format!("{}: {}, driver {driver}, {node}; {tier}", state.device, state.size)
}

fn zram(facts: &Facts) -> String {
    let active: Vec<_> = facts
        .zram
        .iter()
        .filter(|device| !device.size.is_zero())
        .map(|device| format!("{}: {}, {}", device.name, device.size, device.algorithm))
        .collect();
    match (facts.zram.is_empty(), active.is_empty()) {
        (true, _) => "no devices".to_owned(),
        (false, true) => "not set up".to_owned(),
        (false, false) => active.join("; "),
    }
}
