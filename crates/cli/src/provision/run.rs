//! `terrace provision run`: the daemon.

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use terrace_core::{Bytes, Nanos};
use terrace_provision::Config;
use terrace_provision::action::{How, Use};
use terrace_provision::blocks::BlockState;
use terrace_provision::config::{Floor, Offline};
use terrace_provision::discover::DeviceKind;
use terrace_provision::economist::Figures;
use terrace_provision::journal::Event;
use terrace_provision::live::{
    self, Actuator, Files, Host, Kernel, RunError, Setup, State, StateError, Stop, Sysfs,
    VirtualMachine, World,
};
use terrace_report::openmetrics::Provision;
use terrace_signals::may_stop;

use super::config;
use super::plan::{discover, namespaces, nothing, page};
use crate::failure::Failure;
use crate::metrics::{self, Listen};
use crate::output;

/// Bring slow memory in where a node runs short, and give it back when it is idle.
///
/// A daemon for root, until it is told to end (SIGTERM). It ends with memory as it is then: what
/// is online stays online. One daemon acts on a machine at a time; dry runs do not act.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: terrace provision run --config /etc/terrace/provision.toml")]
pub(crate) struct Args {
    /// What it is to do; without it, everything by default (docs/provision.md).
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Decide, say what would be done and why, and change nothing.
    #[arg(long)]
    dry_run: bool,

    /// End after this time.
    #[arg(long = "for", value_name = "TIME")]
    duration: Option<Nanos>,

    /// Serve the figures for Prometheus: PORT (on the loopback address), ADDRESS:PORT, or
    /// unix:PATH.
    #[arg(long, value_name = "WHERE")]
    metrics: Option<Listen>,

    /// Where the daemon keeps lock, status and journal.
    #[arg(long, value_name = "DIRECTORY", default_value = live::DIRECTORY)]
    state: PathBuf,

    /// Read the procfs and sysfs below this directory instead of this machine's.
    #[arg(long, env = "TERRACE_ROOT", hide = true)]
    root: Option<PathBuf>,
}

/// Whether the kernel puts page descriptors of new memory into itself.
const MEMMAP: &str = "sys/module/memory_hotplug/parameters/memmap_on_memory";

impl Args {
    pub(crate) fn execute(self, json: bool) -> Result<ExitCode, Failure> {
        let config = self.config.as_deref().map(config).transpose()?.unwrap_or_default();
        let root = self.root.clone().unwrap_or_else(|| PathBuf::from("/"));
        // What is missing is told before anything is begun.
        if config.vm.is_none() {
            self.can_work(&config)?;
        }
        let prices = self.prices(&config)?;
        let mut state = State::lock(&self.state).map_err(|error| self.no_state(&error))?;
        let is_host = config.vm.is_none();
        // QEMU itself has one at a time for each virtual machine.
        let _machine = (is_host && !self.dry_run)
            .then(|| live::lock_machine(&root).map_err(|error| self.no_state(&error)))
            .transpose()?;
        let kernel: Arc<dyn Kernel> = Arc::new(Files::below(&root));
        let (mut world, actuator) = self.world(&config, &root, &kernel)?;
        let stop = Stop::new().map_err(|e| Failure::failed(format!("eventfd: {e}")))?;
        end_at_a_signal(stop.clone())?;
        let figures = Arc::new(Mutex::new(None::<Provision>));
        let _socket =
            self.metrics.as_ref().map(|to| serve(to, Arc::clone(&figures))).transpose()?;
        let setup = Setup {
            config,
            root,
            dry_run: self.dry_run,
            duration: self.duration,
            // Of a virtual machine's, no more can be at work at once than the host has.
            processors: std::thread::available_parallelism().map_or(1, usize::from),
            prices,
            // What a virtual machine's kernel does is its own affair.
            kernel: is_host.then_some(kernel),
            protect: !self.dry_run && self.root.is_none(),
            pressure: is_host && self.root.is_none(),
        };
        // A reader who went away is no reason to end, nor is a full disk: the journal has
        // everything. That something was not printed is said at the end.
        let mut unprinted = None;
        let mut show = |event: &Event| {
            if json {
                let line = output::json_line("terrace.provision.event", event);
                match line.and_then(|line| output::print(&line)) {
                    Ok(()) | Err(Failure::ReaderGone) => {}
                    Err(failure) => unprinted = unprinted.take().or(Some(failure)),
                }
            } else {
                output::say(event);
            }
        };
        let mut publish = |status: &live::Status| {
            *figures.lock().unwrap_or_else(PoisonError::into_inner) =
                self.metrics.as_ref().map(|_| super::status::figures(status));
        };
        live::run(setup, &mut *world, actuator, &mut state, &stop, &mut show, &mut publish)
            .map_err(|error| self.failed(&error))?;
        unprinted.map_or(Ok(ExitCode::SUCCESS), Err)
    }

    /// What slow memory costs, and the size of a base page, where the configuration names a machine.
    fn prices(&self, config: &Config) -> Result<Option<(Figures, Bytes)>, Failure> {
        let Some(economist) = &config.economist else { return Ok(None) };
        let file = self.config.as_deref().unwrap_or(Path::new("")).display();
        let name = &economist.machine;
        let refused = |why: &dyn Display| {
            Failure::bad_input(format!("{file}: field `economist.machine`: {why}"))
        };
        let machine = terrace_sim::machines::load(name).map_err(|error| refused(&error))?;
        let figures = Figures::of(&machine, economist.accesses)
            .map_err(|lacks| refused(&format!("`{name}` {lacks}")))?;
        Ok(Some((figures, page())))
    }

    /// Refuses a machine on which there is nothing to do.
    fn can_work(&self, config: &Config) -> Result<(), Failure> {
        let machine = discover(self.root.as_deref())?;
        let file = self.config.as_deref().unwrap_or(Path::new("")).display();
        let devices = || {
            let all = machine.devices.iter().chain(&machine.bound);
            all.filter(|device| device.kind == DeviceKind::Dax)
        };
        for node in config.nodes().into_iter().flatten() {
            let has_blocks = machine.pools.iter().any(|pool| pool.target_node == node);
            let has_device = devices().any(|device| device.target_node == Some(node));
            if has_blocks || (has_device && config.pools.devices) {
                continue;
            }
            let why = if has_device {
                "`pools.devices` is false".to_owned()
            } else {
                namespaces(&machine, Some(node))
            };
            let why = if why.is_empty() { why } else { format!(": {why}") };
            return Err(Failure::bad_input(format!(
                "{file}: field `pools.nodes`: {node} has no memory that could come or go{why}"
            )));
        }
        if !machine.has_any() {
            return Err(nothing(&machine));
        }
        if machine.pools.is_empty() && !config.pools.devices {
            return Err(Failure::bad_input(format!(
                "{file}: field `pools.devices`: the only slow memory that could come or go are DAX \
                 devices"
            )));
        }
        Ok(())
    }

    fn no_state(&self, error: &StateError) -> Failure {
        let what = format!("--state: {}: {error}", self.state.display());
        match error {
            StateError::Runs(_) | StateError::Acts(_) => Failure::failed(what),
            StateError::Open(_) | StateError::Foreign(_) | StateError::Io(_) => {
                Failure::bad_input(what)
            }
        }
    }

    /// What is looked at and acted on.
    fn world(
        &self,
        config: &Config,
        root: &Path,
        kernel: &Arc<dyn Kernel>,
    ) -> Result<Acted, Failure> {
        if let Some(vm) = &config.vm {
            let file = self.config.as_deref().unwrap_or(Path::new("")).display();
            let machine = VirtualMachine::connect(vm).map_err(|error| {
                Failure::bad_input(format!("{file}: field `vm.qmp`: {}: {error}", vm.qmp))
            })?;
            let actuator = machine.actuator();
            return Ok((Box::new(machine), actuator));
        }
        let online = &config.online;
        let how = How {
            r#use: online.r#use,
            memmap_on_memory: online.memmap_on_memory,
            kernel_block: config.kernel.floor == Floor::KernelBlock,
        };
        if how.memmap_on_memory && !kernel.read(MEMMAP).is_ok_and(|is| is != "N") {
            output::warn(
                "field `online.memmap-on-memory` has no effect: the kernel was not booted with \
                 memory_hotplug.memmap_on_memory=1 (`terrace provision hide --memmap-on-memory`)",
            );
        }
        let (nodes, devices) = (config.nodes(), config.pools.devices);
        let host =
            Host::new(root.to_owned(), page(), nodes, devices, how).map_err(Failure::failed)?;
        if how.r#use == Use::Kernel && config.offline != Offline::default() {
            let pools = host.machine().pools.iter();
            let movable: Bytes =
                pools.map(|pool| pool.amount(|state| state == BlockState::Movable)).sum();
            output::warn(format_args!(
                "table `offline`: memory that comes in for the kernel (`online.use`) never leaves; \
                 it concerns only the {movable} that are online as movable now"
            ));
        }
        Ok((Box::new(host), Box::new(Sysfs::new(Arc::clone(kernel)))))
    }

    fn failed(&self, error: &RunError) -> Failure {
        Failure::failed(format!(
            "{error}; memory stays as it is (`terrace provision why --state {}` tells what it was)",
            self.state.display()
        ))
    }
}

/// What is looked at, and what acts on it.
type Acted = (Box<dyn World>, Box<dyn Actuator>);

fn end_at_a_signal(stop: Stop) -> Result<(), Failure> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP].into_iter().filter(|&s| may_stop(s)))
        .map_err(|e| Failure::failed(format!("signals: {e}")))?;
    std::thread::Builder::new()
        .name("provision-signals".to_owned())
        .stack_size(256 << 10)
        .spawn(move || {
            for _ in signals.forever() {
                stop.stop();
            }
        })
        .map(|_| ())
        .map_err(|e| Failure::failed(format!("a thread: {e}")))
}

fn serve(
    to: &Listen,
    figures: Arc<Mutex<Option<Provision>>>,
) -> Result<Option<metrics::SocketFile>, Failure> {
    metrics::serve_text(to, false, move || {
        let figures = figures.lock().unwrap_or_else(PoisonError::into_inner).clone()?;
        terrace_report::openmetrics::provision(figures).ok()
    })
}
