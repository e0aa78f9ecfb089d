//! Machine, workload and phases from the command line; `sim` and `compare`
//! share it, so that what one shows the other can repeat.

use terrace_core::{Bytes, Nanos, PageSize};
use terrace_economics::Mode;
use terrace_sim::workload::gups::{Gups, GupsConfig, Shift};
use terrace_sim::{Phases, SimConfig, SimPolicy, Span, machines};

use crate::args::{economist, one_of};
use crate::failure::Failure;
use crate::output::Files;
use crate::sim::exact::{SEED, Shared};
use crate::sim::input::failure;

/// Everything that a simulation can run under.
pub(crate) const POLICIES: &[SimPolicy] = &SimPolicy::ALL;

/// What the simulated program does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WorkloadName {
    Gups,
    GupsOverlapping,
}

const WORKLOADS: &[WorkloadName] = &[WorkloadName::Gups, WorkloadName::GupsOverlapping];

impl WorkloadName {
    fn name(self) -> &'static str {
        match self {
            Self::Gups => "gups",
            Self::GupsOverlapping => "gups-overlapping",
        }
    }
}

/// Notes the files that a machine is read from, which an option names.
pub(crate) fn names_machine(files: &mut Files, option: &str, machine: &str) {
    let mut all = machines::files(machine).into_iter();
    if let Some(own) = all.next() {
        files.reads(option, own);
    }
    for memory in all {
        files.reads(format!("a memory of {option}"), memory);
    }
}

/// A page size, as it is written on the command line.
pub(crate) const PAGE_SIZES: &[PageSize] = &[PageSize::Base, PageSize::Huge];

pub(crate) fn page_size_name(size: PageSize) -> &'static str {
    match size {
        PageSize::Base => "4KiB",
        PageSize::Huge => "2MiB",
    }
}

/// What to simulate, the policy apart.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Setup {
    /// A machine that comes with Terrace (optane-cascade-lake, cxl, kindle, laptop), or a
    /// machine file by its path or its name.
    #[arg(long, value_name = "NAME|FILE", default_value = "optane-cascade-lake")]
    machine: String,

    /// The program: random updates with a hot set, one at a time as in HeMem's
    /// evaluation, or as many at once as a core can have in flight.
    #[arg(long, value_name = "NAME", default_value = "gups",
          value_parser = one_of(WORKLOADS, |workload| workload.name()))]
    workload: WorkloadName,

    /// Memory that is used most, of all threads together.
    #[arg(long, value_name = "SIZE", default_value = "64GiB")]
    hot: Bytes,

    /// Memory of all threads together.
    #[arg(long, value_name = "SIZE", default_value = "512GiB")]
    working_set: Bytes,

    /// Share of the updates that go to the hot memory, in percent.
    #[arg(long, value_name = "PERCENT", default_value_t = 90,
          value_parser = clap::value_parser!(u32).range(0..=100))]
    hot_percent: u32,

    /// Threads of the program.
    #[arg(long, value_name = "COUNT", default_value_t = 16)]
    threads: u32,

    /// The size in which memory is placed.
    #[arg(long, value_name = "SIZE", default_value = "2MiB",
          value_parser = one_of(PAGE_SIZES, |size| page_size_name(size)))]
    page_size: PageSize,

    /// Move a quarter of the hot memory at this simulated time.
    #[arg(long, value_name = "TIME")]
    shift_at: Option<Nanos>,

    /// Simulated time before anything is measured.
    #[arg(long, value_name = "TIME", default_value = "60s")]
    warm_up: Nanos,

    /// Simulated time of each measured run.
    #[arg(long, value_name = "TIME", default_value = "30s")]
    duration: Nanos,

    /// How many times it is measured.
    #[arg(long, value_name = "COUNT", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,

    /// Real accesses that each simulated access stands for.
    #[arg(long, value_name = "COUNT", default_value_t = 256,
          value_parser = clap::value_parser!(u32).range(1..))]
    scale: u32,

    /// Where all randomness comes from; 1 without it.
    #[arg(long, value_name = "NUMBER")]
    seed: Option<u64>,

    /// What the economist does: nothing, record prices, also advise, or refuse what does not pay.
    #[arg(long, value_name = "MODE", default_value = "shadow", value_parser = economist())]
    economist: Mode,
}

impl Setup {
    /// The configuration of a simulation under a policy.
    pub(crate) fn config(&self, policy: SimPolicy) -> Result<SimConfig, Failure> {
        if self.duration.is_zero() {
            return Err(Failure::bad_input("--duration: must be above zero"));
        }
        let end = self.warm_up + self.duration * u64::from(self.runs);
        if let Some(at) = self.shift_at.filter(|&at| at >= end) {
            return Err(Failure::bad_input(format!(
                "--shift-at: has no effect at {at}: the simulation ends after {end} (--warm-up, \
                 --duration, --runs)"
            )));
        }
        let machine = machines::load(&self.machine).map_err(Failure::bad_input)?;
        let workload = Gups::new(self.gups()).map_err(failure)?;
        let mut config = SimConfig::new(machine, Box::new(workload), policy);
        config.economist = self.economist;
        config.phases = Phases {
            warm_up: Span::Time(self.warm_up),
            runs: self.runs,
            run: Span::Time(self.duration),
        };
        config.scale = self.scale;
        config.seed = self.seed();
        Ok(config)
    }

    /// Names the files that it reads.
    pub(crate) fn names(&self, files: &mut Files) {
        names_machine(files, "--machine", &self.machine);
    }

    /// Where all randomness comes from.
    pub(crate) fn seed(&self) -> u64 {
        self.seed.unwrap_or(SEED)
    }

    /// The machine, as it was named.
    pub(crate) fn machine(&self) -> &str {
        &self.machine
    }

    /// What the economist does.
    pub(crate) fn economist(&self) -> Mode {
        self.economist
    }

    /// What both models are told.
    pub(crate) fn shared(&self, policy: SimPolicy) -> Shared<'_> {
        Shared {
            machine: &self.machine,
            policy,
            economist: self.economist,
            page_size: self.page_size,
            seed: self.seed,
        }
    }

    fn gups(&self) -> GupsConfig {
        let published = match self.workload {
            WorkloadName::Gups => GupsConfig::hemem(self.hot),
            WorkloadName::GupsOverlapping => GupsConfig::overlapping(self.hot),
        };
        GupsConfig {
            threads: self.threads,
            working_set: self.working_set,
            hot_percent: self.hot_percent,
            page_size: self.page_size,
            shift: self.shift_at.map(|at| Shift { at, part: 4 }),
            ..published
        }
    }
}
