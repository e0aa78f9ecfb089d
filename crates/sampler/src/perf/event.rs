//! Which event to sample, by the processor.

use std::fs;
use std::path::Path;

use terrace_core::{Access, SampleSource};

/// A perf event to sample.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventSpec {
    /// Its name, as the processor's manual has it.
    pub name: &'static str,
    /// `perf_event_attr.type`: the unit.
    pub unit: u32,
    /// `perf_event_attr.config`
    pub config: u64,
    /// `perf_event_attr.config1`
    pub config1: u64,
    /// How precise the address has to be, 0 to 3 (`precise_ip`).
    pub precise: u8,
    /// Whether the unit can leave the kernel's accesses out.
    pub user_only: bool,
    /// Accesses a sample.
    pub period: u64,
    /// What is sampled, where the record does not tell.
    pub access: Option<Access>,
    /// What samples of it are called.
    pub source: SampleSource,
}

const SOFTWARE: u32 = 1;
const TRACEPOINT: u32 = 2;
const RAW: u32 = 4;
const PAGE_FAULTS: u64 = 2;

/// Accesses a sample: HeMem's 5003, a prime, so that loops of the program do
/// not fall into step with it.
const PERIOD: u64 = 5003;

/// `MEM_LOAD_RETIRED.L3_MISS` (Skylake and later; on Haswell and Broadwell
/// `MEM_LOAD_UOPS_RETIRED.L3_MISS`): event d1, umask 20. Loads that went to
/// memory, local or remote, DRAM or persistent.
const INTEL_L3_MISS: u64 = 0x20d1;
/// `MEM_INST_RETIRED.ALL_STORES` (before: `MEM_UOPS_RETIRED.ALL_STORES`):
/// event d0, umask 82. The processor cannot tell which stores missed.
const INTEL_STORES: u64 = 0x82d0;
/// `MEM_LOAD_UOPS_RETIRED.DRAM_HIT` of the efficient cores from Gracemont on:
/// event d1, umask 80.
const ATOM_DRAM_HIT: u64 = 0x80d1;
/// `MEM_UOPS_RETIRED.ALL_STORES` of the efficient cores: event d0, umask 82.
const ATOM_STORES: u64 = 0x82d0;
/// `IbsOpCntCtl`: count dispatched operations rather than cycles.
const IBS_COUNT_OPERATIONS: u64 = 1 << 19;
/// IBS counts in steps of 16 operations. About a third of all operations access
/// memory, and few of them miss: 2^18 gives some thousand samples a second.
const IBS_PERIOD: u64 = 1 << 18;

/// Why there is nothing to sample by hardware.
pub type Lack = String;

impl EventSpec {
    /// Page faults, by their addresses.
    pub fn page_faults(source: SampleSource) -> Self {
        Self {
            name: "page-faults",
            unit: SOFTWARE,
            config: PAGE_FAULTS,
            config1: 0,
            precise: 0,
            user_only: false,
            period: 1,
            access: None,
            source,
        }
    }

    /// Page faults that had to wait for a page to be brought in: from swap, or from a file. The
    /// software event comes with the address on every machine, whatever kind of program it is.
    pub fn major_faults() -> Self {
        const MAJOR_FAULTS: u64 = 6;
        let config = MAJOR_FAULTS;
        Self { name: "major-faults", config, ..Self::page_faults(SampleSource::Refault) }
    }

    /// Every passage through a tracepoint of the kernel. Its samples are no accesses.
    pub(super) fn tracepoint(number: u64) -> Self {
        let source = SampleSource::AccessedBit;
        Self { name: "tracepoint", unit: TRACEPOINT, config: number, ..Self::page_faults(source) }
    }

    fn intel(name: &'static str, unit: u32, config: u64, access: Access) -> Self {
        Self {
            name,
            unit,
            config,
            config1: 0,
            precise: 2,
            user_only: true,
            period: PERIOD,
            access: Some(access),
            source: SampleSource::Pmu,
        }
    }

    fn ibs(unit: u32) -> Self {
        Self {
            name: "ibs_op",
            unit,
            config: IBS_COUNT_OPERATIONS,
            config1: 0,
            // Instruction-based sampling is precise by nature, and cannot leave
            // the kernel out.
            precise: 0,
            user_only: false,
            period: IBS_PERIOD,
            access: None,
            source: SampleSource::Pmu,
        }
    }

    /// The events that sample memory accesses on the machine whose sysfs and
    /// procfs lie below `root`; or what is missing.
    pub fn for_machine(root: &Path) -> Result<Vec<Self>, Lack> {
        let devices = root.join("sys/bus/event_source/devices");
        let unit = |name: &str| -> Option<u32> {
            fs::read_to_string(devices.join(name).join("type")).ok()?.trim().parse().ok()
        };
        let has_loads = |name: &str| devices.join(name).join("events/mem-loads").exists();
        if let Some(ibs) = unit("ibs_op") {
            return Ok(vec![Self::ibs(ibs)]);
        }
        let mut events = Vec::new();
        // The kernel offers mem-loads only where loads can be sampled with
        // their addresses. Processors with two kinds of cores have two units.
        if unit("cpu").is_some() && has_loads("cpu") {
            events.push(Self::intel("L3 misses", RAW, INTEL_L3_MISS, Access::Read));
            events.push(Self::intel("stores", RAW, INTEL_STORES, Access::Write));
        }
        if let Some(core) = unit("cpu_core").filter(|_| has_loads("cpu_core")) {
            events.push(Self::intel("L3 misses", core, INTEL_L3_MISS, Access::Read));
            events.push(Self::intel("stores", core, INTEL_STORES, Access::Write));
        }
        if let Some(atom) = unit("cpu_atom").filter(|_| has_loads("cpu_atom")) {
            events.push(Self::intel("DRAM hits", atom, ATOM_DRAM_HIT, Access::Read));
            events.push(Self::intel("stores", atom, ATOM_STORES, Access::Write));
        }
        if !events.is_empty() {
            return Ok(events);
        }
        let any_unit = ["cpu", "cpu_core", "cpu_atom"].into_iter().any(|name| unit(name).is_some());
        let cpuinfo = fs::read_to_string(root.join("proc/cpuinfo")).unwrap_or_default();
        let hypervisor = cpuinfo
            .lines()
            .filter(|line| line.starts_with("flags"))
            .any(|line| line.split_ascii_whitespace().any(|flag| flag == "hypervisor"));
        Err(match (any_unit, hypervisor) {
            (true, _) => "the counter unit cannot sample loads precisely".into(),
            (false, true) => "no hardware counter unit: the virtual machine hides it".into(),
            (false, false) => "no hardware counter unit".into(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().expect("a directory");
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().expect("a parent")).expect("directories");
            fs::write(path, text).expect("a file");
        }
        root
    }

    const UNITS: &str = "sys/bus/event_source/devices";

    #[test]
    fn intel_samples_misses_and_stores_precisely() {
        let root = tree(&[
            (&format!("{UNITS}/cpu/type"), "4\n"),
            (&format!("{UNITS}/cpu/events/mem-loads"), "event=0xcd,umask=0x1,ldlat=3\n"),
        ]);
        let events = EventSpec::for_machine(root.path()).expect("events");
        let what: Vec<_> = events.iter().map(|e| (e.unit, e.config, e.precise)).collect();
        assert_eq!(what, [(4, 0x20d1, 2), (4, 0x82d0, 2)]);
    }

    #[test]
    fn two_kinds_of_cores_have_a_unit_each_or_half_the_threads_are_not_seen() {
        let root = tree(&[
            (&format!("{UNITS}/cpu_core/type"), "4\n"),
            (&format!("{UNITS}/cpu_core/events/mem-loads"), "x"),
            (&format!("{UNITS}/cpu_atom/type"), "10\n"),
            (&format!("{UNITS}/cpu_atom/events/mem-loads"), "x"),
        ]);
        let events = EventSpec::for_machine(root.path()).expect("events");
        let units: Vec<_> = events.iter().map(|e| e.unit).collect();
        assert_eq!(units, [4, 4, 10, 10]);
    }

    #[test]
    fn amd_samples_operations_in_steps_that_the_hardware_has() {
        let root = tree(&[(&format!("{UNITS}/ibs_op/type"), "11\n")]);
        let events = EventSpec::for_machine(root.path()).expect("events");
        assert_eq!((events.len(), events[0].unit), (1, 11));
        assert!(events[0].period.is_multiple_of(16), "the kernel refuses any other");
    }

    #[test]
    fn a_machine_without_says_what_is_missing() {
        let plain = tree(&[("proc/cpuinfo", "flags : fpu\n")]);
        let guest = tree(&[("proc/cpuinfo", "flags : fpu hypervisor\n")]);
        let old = tree(&[(&format!("{UNITS}/cpu/type"), "4\n")]);
        let lack = |root: &tempfile::TempDir| EventSpec::for_machine(root.path()).unwrap_err();
        assert_eq!(lack(&plain), "no hardware counter unit");
        assert!(lack(&guest).contains("virtual machine"));
        assert!(lack(&old).contains("precisely"));
    }
}
