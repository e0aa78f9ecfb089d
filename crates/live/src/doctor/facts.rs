//! What a machine offers, as its procfs and sysfs say.
//!
//! Everything is read below a root directory, so that tests (and reports that
//! somebody sent in) can be read instead of this machine. A file that is
//! missing is a fact like any other, never an error: containers hide half of
//! these files. What only a system call can tell is asked elsewhere.

use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::Serialize;
use terrace_core::Bytes;

use crate::doctor::probe::RIGHT;
use crate::numa::dax::{DaxDevices, DaxState};
use crate::observe::protection::Tracks;

/// What the files say.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Facts {
    /// The kernel's release, as `uname -r` prints it.
    pub kernel: Kernel,
    /// The processors.
    pub cpu: Cpu,
    /// The memory.
    pub memory: Memory,
    /// What this process may do.
    pub privileges: Privileges,
    /// What the files say about userfaultfd.
    pub userfaultfd: UserfaultfdFiles,
    /// What the files say about hardware sampling.
    pub perf: Perf,
    /// NUMA nodes with what they hold.
    pub nodes: Vec<Node>,
    /// DAX devices, which can be nodes.
    pub dax: Vec<DaxState>,
    /// Transparent huge pages; `None` where the kernel has none.
    pub huge_pages: Option<HugePages>,
    /// Compressed RAM of the kernel's own: block devices.
    pub zram: Vec<Zram>,
    /// Compressed RAM of the kernel's own: the cache before swap.
    pub zswap: Option<Zswap>,
    /// The memory control group that this process is in.
    pub cgroup: Option<Cgroup>,
}

/// The kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Kernel {
    /// As `uname -r` prints it; empty if unknown.
    pub release: String,
    /// Its first two numbers; zeros if unknown.
    pub version: (u32, u32),
}

/// The processors.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Cpu {
    /// The model's name; empty if unknown.
    pub model: String,
    /// The vendor's identification, such as `GenuineIntel`; empty if unknown.
    pub vendor: String,
    /// Processors that are online.
    pub online: u32,
    /// Whether this is a virtual machine.
    pub hypervisor: bool,
}

/// Memory as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Memory {
    /// All of it.
    pub total: Bytes,
    /// What a new program could use without swapping.
    pub available: Bytes,
    /// Swap space.
    pub swap: Bytes,
    /// `vm.overcommit_memory`: 0 heuristic, 1 always, 2 never.
    pub overcommit: Option<u32>,
    /// `vm.max_map_count`: mappings that one process may have.
    pub max_map_count: Option<u64>,
    /// Whether a virtual machine's host is told which memory is free, so that it can take it back.
    pub free_to_host: bool,
}

/// What this process may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Privileges {
    /// `CAP_SYS_PTRACE`: handle faults of kernel code, too.
    pub sys_ptrace: bool,
    /// `CAP_PERFMON` or `CAP_SYS_ADMIN`: sample hardware events.
    pub perfmon: bool,
    /// Whether system calls are filtered (containers do that).
    pub seccomp: bool,
}

/// What the files say about userfaultfd.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct UserfaultfdFiles {
    /// `vm.unprivileged_userfaultfd`; `None` where the kernel has no userfaultfd.
    pub unprivileged: Option<bool>,
    /// Whether `/dev/userfaultfd` exists.
    pub device: bool,
    /// Whether this process may open it.
    pub device_accessible: bool,
}

/// What the files say about hardware sampling.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Perf {
    /// `kernel.perf_event_paranoid`; `None` where the kernel has no perf events.
    pub paranoid: Option<i32>,
    /// Whether there is a hardware performance counter unit at all.
    pub pmu: bool,
    /// Intel's precise event sampling of loads.
    pub pebs: bool,
    /// AMD's instruction-based sampling.
    pub ibs: bool,
}

/// A NUMA node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Node {
    /// Its number.
    pub id: u32,
    /// Its processors, as the kernel lists them (`0-3,8`); empty for memory alone.
    pub cpus: String,
    /// Its memory.
    pub total: Bytes,
    /// What of it is free.
    pub free: Bytes,
    /// Distances to all nodes, in the order of their numbers.
    pub distances: Vec<u32>,
}

/// Transparent huge pages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HugePages {
    /// `always`, `madvise` or `never`.
    pub enabled: String,
    /// The setting for direct compaction.
    pub defrag: String,
}

/// A zram device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Zram {
    /// Its name.
    pub name: String,
    /// Its size; zero while it is not set up.
    pub size: Bytes,
    /// The compression algorithm in use.
    pub algorithm: String,
}

/// zswap.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Zswap {
    /// Whether it is on.
    pub enabled: bool,
    /// The compression algorithm.
    pub compressor: String,
}

/// A memory control group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Cgroup {
    /// Version of the hierarchy: 1 or 2.
    pub version: u32,
    /// Its path in the hierarchy.
    pub path: String,
    /// The limit; `None` without one.
    pub limit: Option<Bytes>,
    /// What is in use.
    pub usage: Option<Bytes>,
}

/// A balloon's number among virtio devices (`linux/virtio_ids.h`), as sysfs writes it.
const VIRTIO_ID_BALLOON: &str = "0x0005";
/// Its feature of reporting free pages (`linux/virtio_balloon.h`).
const VIRTIO_BALLOON_F_REPORTING: usize = 5;

/// Capability numbers of `linux/capability.h`.
const CAP_SYS_PTRACE: u64 = 1 << 19;
const CAP_SYS_ADMIN: u64 = 1 << 21;
const CAP_PERFMON: u64 = 1 << 38;

impl Facts {
    /// Reads the files below `root` (`/` for this machine).
    pub fn read(root: &Path) -> Self {
        let files = Files { root };
        Self {
            kernel: files.kernel(),
            cpu: files.cpu(),
            memory: files.memory(),
            privileges: files.privileges(),
            userfaultfd: files.userfaultfd(),
            perf: files.perf(),
            nodes: files.nodes(),
            dax: DaxDevices::new(root).list(),
            huge_pages: files.huge_pages(),
            zram: files.zram(),
            zswap: files.zswap(),
            cgroup: files.cgroup(),
        }
    }
}

struct Files<'a> {
    root: &'a Path,
}

impl Files<'_> {
    fn path(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }

    fn text(&self, path: &str) -> Option<String> {
        let bytes = fs::read(self.path(path)).ok()?;
        Some(String::from_utf8_lossy(&bytes).trim().to_owned())
    }

    fn number<T: FromStr>(&self, path: &str) -> Option<T> {
        self.text(path)?.parse().ok()
    }

    /// The names in a directory, in order; none if it does not exist.
    fn names(&self, path: &str) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(self.path(path))
            .into_iter()
            .flatten()
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .collect();
        names.sort();
        names
    }

    fn kernel(&self) -> Kernel {
        let release = self.text("proc/sys/kernel/osrelease").unwrap_or_default();
        let mut numbers = release
            .split(|c: char| !c.is_ascii_digit())
            .map(|number| number.parse().unwrap_or_default());
        let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
        Kernel { release, version }
    }

    fn cpu(&self) -> Cpu {
        let text = self.text("proc/cpuinfo").unwrap_or_default();
        let field = |name: &str| values(&text, name).next().unwrap_or_default().to_owned();
        Cpu {
            model: field("model name"),
            vendor: field("vendor_id"),
            online: values(&text, "processor").count() as u32,
            hypervisor: field("flags").split_ascii_whitespace().any(|f| f == "hypervisor"),
        }
    }

    fn memory(&self) -> Memory {
        let text = self.text("proc/meminfo").unwrap_or_default();
        let field = |name: &str| kib(values(&text, name).next());
        Memory {
            total: field("MemTotal"),
            available: field("MemAvailable"),
            swap: field("SwapTotal"),
            overcommit: self.number("proc/sys/vm/overcommit_memory"),
            max_map_count: self.number("proc/sys/vm/max_map_count"),
            free_to_host: self.reports_free_memory(),
        }
    }

    /// Whether a balloon has agreed with the host on free page reporting. Each character of `features` is
    /// a feature, from the first on.
    fn reports_free_memory(&self) -> bool {
        const DEVICES: &str = "sys/bus/virtio/devices";
        self.names(DEVICES).iter().any(|name| {
            let text = |file: &str| self.text(&format!("{DEVICES}/{name}/{file}"));
            let features = text("features").unwrap_or_default();
            text("device").as_deref() == Some(VIRTIO_ID_BALLOON)
                && features.as_bytes().get(VIRTIO_BALLOON_F_REPORTING) == Some(&b'1')
        })
    }

    fn privileges(&self) -> Privileges {
        let text = self.text("proc/self/status").unwrap_or_default();
        let capabilities = values(&text, "CapEff")
            .next()
            .and_then(|mask| u64::from_str_radix(mask, 16).ok())
            .unwrap_or(0);
        Privileges {
            sys_ptrace: capabilities & CAP_SYS_PTRACE != 0,
            perfmon: capabilities & (CAP_PERFMON | CAP_SYS_ADMIN) != 0,
            seccomp: values(&text, "Seccomp").next().is_some_and(|mode| mode != "0"),
        }
    }

    fn userfaultfd(&self) -> UserfaultfdFiles {
        let device = self.path("dev/userfaultfd");
        UserfaultfdFiles {
            unprivileged: self
                .number::<u32>("proc/sys/vm/unprivileged_userfaultfd")
                .map(|setting| setting != 0),
            device: device.exists(),
            device_accessible: fs::File::options().read(true).write(true).open(&device).is_ok(),
        }
    }

    fn perf(&self) -> Perf {
        let devices = self.names("sys/bus/event_source/devices");
        let has = |name: &str| devices.iter().any(|device| device == name);
        let device = |name: &str| format!("sys/bus/event_source/devices/{name}");
        // Processors with two kinds of cores have a unit for each kind.
        let units = ["cpu", "cpu_core", "cpu_atom"];
        Perf {
            paranoid: self.number("proc/sys/kernel/perf_event_paranoid"),
            pmu: units.into_iter().any(has),
            // The kernel offers this event only where loads can be sampled precisely.
            pebs: units
                .into_iter()
                .any(|unit| self.path(&format!("{}/events/mem-loads", device(unit))).exists()),
            ibs: has("ibs_op"),
        }
    }

    fn nodes(&self) -> Vec<Node> {
        let mut nodes: Vec<_> = self
            .names("sys/devices/system/node")
            .iter()
            .filter_map(|name| name.strip_prefix("node")?.parse().ok())
            .map(|id| self.node(id))
            .collect();
        nodes.sort_by_key(|node| node.id);
        nodes
    }

    fn node(&self, id: u32) -> Node {
        let file = |name: &str| {
            self.text(&format!("sys/devices/system/node/node{id}/{name}")).unwrap_or_default()
        };
        // Lines read `Node 0 MemTotal:  16384 kB`.
        let meminfo = file("meminfo").replace(&format!("Node {id} "), "");
        Node {
            id,
            cpus: file("cpulist"),
            total: kib(values(&meminfo, "MemTotal").next()),
            free: kib(values(&meminfo, "MemFree").next()),
            distances: file("distance")
                .split_ascii_whitespace()
                .filter_map(|distance| distance.parse().ok())
                .collect(),
        }
    }

    fn huge_pages(&self) -> Option<HugePages> {
        let choice = |name: &str| {
            let text = self.text(&format!("sys/kernel/mm/transparent_hugepage/{name}"))?;
            Some(chosen(&text))
        };
        Some(HugePages {
            enabled: choice("enabled")?,
            defrag: choice("defrag").unwrap_or_default(),
        })
    }

    fn zram(&self) -> Vec<Zram> {
        self.names("sys/block")
            .into_iter()
            .filter(|name| name.starts_with("zram"))
            .map(|name| Zram {
                size: Bytes(self.number(&format!("sys/block/{name}/disksize")).unwrap_or(0)),
                algorithm: self
                    .text(&format!("sys/block/{name}/comp_algorithm"))
                    .map(|text| chosen(&text))
                    .unwrap_or_default(),
                name,
            })
            .collect()
    }

    fn zswap(&self) -> Option<Zswap> {
        let parameter = |name: &str| self.text(&format!("sys/module/zswap/parameters/{name}"));
        Some(Zswap {
            enabled: matches!(parameter("enabled")?.as_str(), "Y" | "y" | "1"),
            compressor: parameter("compressor").unwrap_or_default(),
        })
    }

    fn cgroup(&self) -> Option<Cgroup> {
        // Lines read `hierarchy:controllers:path`; version 2 is `0::path`.
        let text = self.text("proc/self/cgroup")?;
        let entries: Vec<(&str, &str)> =
            text.lines().filter_map(|line| line.split_once(':')?.1.split_once(':')).collect();
        let of_v1 = entries.iter().find(|(names, _)| names.split(',').any(|n| n == "memory"));
        let of_v2 = entries.iter().find(|(names, _)| names.is_empty());
        let (version, path, base, limit, usage) = match (of_v1, of_v2) {
            (Some((_, path)), _) => {
                (1, path, "sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes")
            }
            (None, Some((_, path))) => (2, path, "sys/fs/cgroup", "memory.max", "memory.current"),
            (None, None) => return None,
        };
        let directory = format!("{base}{}", path.trim_end_matches('/'));
        let amount = |name: &str| self.number::<u64>(&format!("{directory}/{name}")).map(Bytes);
        Some(Cgroup {
            version,
            path: (*path).to_owned(),
            // Version 2 says `max`, version 1 a number beyond all memory.
            limit: amount(limit).filter(|limit| *limit < Bytes(1 << 62)),
            usage: amount(usage),
        })
    }
}

/// The values of `name: value` lines.
fn values<'a>(text: &'a str, name: &'a str) -> impl Iterator<Item = &'a str> {
    text.lines().filter_map(move |line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim())
    })
}

/// An amount as the kernel prints it: `16384 kB`, which are KiB.
fn kib(value: Option<&str>) -> Bytes {
    value
        .and_then(|text| text.split_ascii_whitespace().next()?.parse().ok())
        .map_or(Bytes::ZERO, Bytes::kib)
}

/// The bracketed word of `always [madvise] never`.
fn chosen(text: &str) -> String {
    text.split_ascii_whitespace()
        .find_map(|word| word.strip_prefix('[')?.strip_suffix(']'))
        .unwrap_or(text)
        .to_owned()
}

/// The oldest kernel with `UFFDIO_MOVE`.
const MOVE_SINCE: (u32, u32) = (6, 8);
/// The oldest kernel with `PAGEMAP_SCAN` and asynchronous write protection.
const WP_ASYNC_SINCE: (u32, u32) = (6, 7);
/// The oldest kernel with read-write protection: mm took it in August 2026, while 7.2 was
/// being tested.
const RWP_SINCE: (u32, u32) = (7, 3);

impl Facts {
    /// What would keep `terrace run` from managing memory, as far as files can
    /// tell; `None` if they speak of nothing. Where the machine itself can be
    /// asked, [`crate::doctor::probe`] knows better.
    pub fn obstacle(&self) -> Option<String> {
        let files = &self.userfaultfd;
        if files.unprivileged.is_none() && !files.device {
            return Some("this kernel has no userfaultfd (CONFIG_USERFAULTFD)".into());
        }
        if self.kernel.version < MOVE_SINCE {
            let (major, minor) = MOVE_SINCE;
            return Some(format!(
                "userfaultfd of Linux {} lacks UFFDIO_MOVE (Linux {major}.{minor} or newer is needed)",
                self.kernel.release
            ));
        }
        if !self.privileges.sys_ptrace {
            return Some(if files.device_accessible || files.unprivileged == Some(true) {
                format!(
                    "userfaultfd may not report forks here, and a child of the program would read \
                     zeros: {RIGHT}"
                )
            } else {
                format!("userfaultfd is refused to this user: {RIGHT}")
            });
        }
        None
    }

    /// The ways in which `terrace run` observes a program's accesses, best first, with what
    /// each lacks here. `obstacle` is what keeps memory from being managed at all; `features`
    /// is what the kernel's userfaultfd says of itself, if it could be asked.
    pub fn samplers(&self, obstacle: Option<String>, features: Option<u64>) -> Vec<SamplerSupport> {
        let tracking = |tracks: Tracks, since: (u32, u32)| match features {
            Some(features) => tracks.lack(features).map(str::to_owned),
            None => (self.kernel.version < since)
                .then(|| format!("Linux {}.{} or newer is needed", since.0, since.1)),
        };
        vec![
            SamplerSupport { name: "PEBS or IBS", missing: self.hardware_sampling_lacks() },
            SamplerSupport { name: "RWP", missing: tracking(Tracks::Accesses, RWP_SINCE) },
            SamplerSupport { name: "faults", missing: obstacle },
            SamplerSupport {
                name: "stores, beside faults",
                missing: tracking(Tracks::Stores, WP_ASYNC_SINCE),
            },
        ]
    }

    fn hardware_sampling_lacks(&self) -> Option<String> {
        // Above 2, perf events are for the privileged only.
        const OWN_PROCESSES: i32 = 2;
        let Some(paranoid) = self.perf.paranoid else {
            return Some("this kernel has no perf events (CONFIG_PERF_EVENTS)".into());
        };
        if !self.perf.pmu && !self.perf.ibs {
            let hint = if self.cpu.hypervisor { ": the virtual machine hides it" } else { "" };
            return Some(format!("no hardware counter unit{hint}"));
        }
        if !self.perf.pebs && !self.perf.ibs {
            return Some("the counter unit cannot sample loads precisely".into());
        }
        if paranoid > OWN_PROCESSES && !self.privileges.perfmon {
            return Some(format!(
                "kernel.perf_event_paranoid is {paranoid} ({OWN_PROCESSES} or CAP_PERFMON is needed)"
            ));
        }
        None
    }
}

/// A way to observe accesses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SamplerSupport {
    /// What people call it.
    pub name: &'static str,
    /// What is missing for it here; `None` if nothing is.
    pub missing: Option<String>,
}
