//! What the kernel's engine has on this machine, and what it lacks.

use std::path::Path;

use serde::Serialize;
use terrace_core::Bytes;
use terrace_sampler::Capabilities;
use terrace_sampler::perf::major::MajorFaults;

use crate::files::Root;
use crate::observe::choose_for_swap;
use crate::setup::group::{self, Version};
use crate::setup::zram::{self, Extras};
use crate::setup::{SwapChoice, SwapKind, choose_swap, enough, present, zswap};

/// `CAP_SYS_NICE` of `linux/capability.h`: it lets a process advise about another's memory.
const SYS_NICE: u32 = 23;
/// The least swap that is worth being there.
const LEAST: Bytes = Bytes::mib(64);

/// One thing that the engine uses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Part {
    /// What it is for.
    pub name: &'static str,
    /// What is used; `None` if there is nothing.
    pub has: Option<String>,
    /// What is missing.
    pub lacks: Option<String>,
    /// Whether the engine cannot do without it.
    pub needed: bool,
}

/// All of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Support {
    /// Whether the engine can be had.
    pub works: bool,
    /// What it uses.
    pub parts: Vec<Part>,
}

impl Support {
    /// Of this machine and user, as tried. Nothing is made.
    pub fn of_this_machine() -> Self {
        let root = &Root::machine();
        let faults = MajorFaults::open().map(|faults| {
            if faults.is_by_thread() {
                "of threads that are looked for again and again".to_owned()
            } else {
                "every thread's, from its first instruction on".to_owned()
            }
        });
        let mut support = Self::judge(
            swap(root),
            group(root),
            faults.map_err(|e| format!("perf_event_open: {e}")),
            has_capability(root, SYS_NICE),
        );
        let again = "idle pages are compressed again, by zstd";
        let file = "idle pages are written to a file (--spill)";
        support.parts.extend([
            part("brake", holds(root), false),
            part("observing", observing(), false),
            part("zswap", zswap(root), false),
            part(
                "recompression",
                extra(root, again, "CONFIG_ZRAM_MULTI_COMP", |e| e.recompresses),
                false,
            ),
            part("writeback", extra(root, file, "CONFIG_ZRAM_WRITEBACK", |e| e.writes_back), false),
        ]);
        support
    }

    /// Whether the engine can be had, with compressed memory to swap to.
    pub fn is_fast(&self) -> bool {
        let is_fast = |choice: &SwapChoice| match choice {
            SwapChoice::Make => true,
            SwapChoice::There(swap) | SwapChoice::SwitchOn(swap) => swap.kind != SwapKind::Disk,
        };
        self.works && choice(&Root::machine()).as_ref().is_ok_and(is_fast)
    }

    /// Whether a program with such a budget can have the engine without a change to the machine that
    /// others would notice. If so, gives the swap in words.
    ///
    /// Compressed swap has to be on that is no other run's and is large enough, so that nothing is added
    /// to it. And what bounds this process has to bound the program in a control group of its own.
    /// `records` is the directory in which root's runs write down what they make.
    ///
    /// # Errors
    /// What is missing, in words.
    pub fn without_change(root: &Root, records: &Path, budget: Bytes) -> Result<String, String> {
        let swap = present::compressed(root, records, enough(memory(root)).max(budget))?;
        if let Some(lack) = group::lack(root) {
            return Err(format!("{swap}, but no control group can be made: {lack}"));
        }
        if let Some(bound) = group::bounded(root) {
            return Err(format!("{swap}, but {bound}"));
        }
        Ok(swap)
    }

    fn judge(
        swap: Result<String, String>,
        group: Result<String, String>,
        faults: Result<String, String>,
        advises: bool,
    ) -> Self {
        let advice = if advises {
            Ok("process_madvise, for policies and walks".to_owned())
        } else {
            Err("CAP_SYS_NICE: no policy can choose what leaves, walks are not gone ahead of"
                .into())
        };
        // One of the two puts memory out.
        let acts = group.is_ok() || advises;
        let works = swap.is_ok() && acts;
        Self {
            works,
            parts: vec![
                part("swap", swap, true),
                part("control group", group, !advises),
                part("advice", advice, !acts),
                part("faults", faults, false),
            ],
        }
    }
}

fn part(name: &'static str, state: Result<String, String>, needed: bool) -> Part {
    let (has, lacks) = match state {
        Ok(has) => (Some(has), None),
        Err(lacks) => (None, Some(lacks)),
    };
    Part { name, has, lacks, needed }
}

/// Which swap a run would have: a device of its own would be as large as memory.
fn choice(root: &Root) -> Result<SwapChoice, String> {
    choose_swap(root, LEAST, enough(memory(root)))
}

/// The machine's memory.
fn memory(root: &Root) -> Bytes {
    let text = root.read("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let memory = line.and_then(|rest| rest.split_ascii_whitespace().next()?.parse().ok());
    memory.map_or(Bytes::ZERO, Bytes::kib)
}

fn swap(root: &Root) -> Result<String, String> {
    choice(root).map(|choice| match choice {
        SwapChoice::Make => "a zram device is made".to_owned(),
        SwapChoice::There(swap) if swap.kind == SwapKind::Disk => {
            format!("{}: slow, a page takes 100 µs and more to come back", swap.what)
        }
        SwapChoice::There(swap) | SwapChoice::SwitchOn(swap) => swap.what,
    })
}

/// What is done for idle compressed pages: as a device shows that is there.
fn extra(
    root: &Root,
    what: &str,
    option: &str,
    has: impl Fn(Extras) -> bool,
) -> Result<String, String> {
    match zram::known_extras(root) {
        None if zram::lack(root).is_some() => Err("no zram device can be made".into()),
        None => Err(format!("not known before there is a zram device ({option})")),
        Some(extras) if has(extras) => Ok(what.to_owned()),
        Some(_) => Err(format!("this kernel's zram has none ({option})")),
    }
}

fn zswap(root: &Root) -> Result<String, String> {
    if zswap::is_on(root) {
        return Ok("on".into());
    }
    zswap::lack(root)
        .map_or_else(|| Ok("switched on where there is a disk to swap to and no zram".into()), Err)
}

/// What holds a budget at once, as the engine's clock cannot.
fn holds(root: &Root) -> Result<String, String> {
    match group::version(root) {
        Some(Version::Two) => Ok("memory.high, 3 % above the budget".into()),
        Some(Version::One) => group::tells_of_crossings(root)
            .map_or_else(|| Ok("a thread that the kernel wakes near the budget".into()), Err),
        None => Err("no control groups".into()),
    }
}

/// What a policy can learn by beside what comes back.
fn observing() -> Result<String, String> {
    let capabilities = Capabilities::probe();
    choose_for_swap(&capabilities).map(|choice| {
        let names: Vec<_> = choice.kinds.iter().map(|kind| kind.name()).collect();
        format!("{}: {}", names.join(" and "), choice.reason)
    })
}

fn group(root: &Root) -> Result<String, String> {
    match (group::lack(root), group::version(root)) {
        (Some(lack), _) => Err(lack),
        (None, Some(Version::Two)) => {
            Ok("version 2: memory.reclaim makes room, memory.high brakes".to_owned())
        }
        (None, _) => Ok("version 1: a limit that is lowered and lifted makes room, processor \
                         time brakes"
            .to_owned()),
    }
}

/// Whether this process has a capability, in its effective set.
pub fn may_advise() -> bool {
    has_capability(&Root::machine(), SYS_NICE)
}

fn has_capability(root: &Root, number: u32) -> bool {
    let text = root.read("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("CapEff:"));
    line.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok())
        .is_some_and(|bits| bits & 1 << number != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A state that is there, or not.
    fn state(is_there: bool) -> Result<String, String> {
        if is_there { Ok("there".to_owned()) } else { Err("not there".to_owned()) }
    }

    #[test]
    fn swap_and_one_way_to_put_memory_out_are_needed() {
        let judge = |swap, group, faults, advises| {
            Support::judge(state(swap), state(group), state(faults), advises).works
        };
        assert!(judge(true, true, true, false));
        assert!(judge(true, false, true, true));
        assert!(!judge(true, false, true, false));
        assert!(!judge(false, true, true, true));
        assert!(judge(true, true, false, true), "blind, but at work");
    }

    #[test]
    fn what_a_kernel_s_zram_can_is_seen_by_a_device_that_is_there() {
        let dir = tempfile::tempdir().unwrap();
        let root = Root::at(dir.path());
        let of = |root: &Root| extra(root, "yes", "CONFIG", |extras| extras.recompresses);
        assert!(of(&root).unwrap_err().contains("no zram device can be made"));
        let device = dir.path().join("sys/block/zram2");
        std::fs::create_dir_all(&device).unwrap();
        assert!(of(&root).unwrap_err().contains("none (CONFIG)"));
        std::fs::write(device.join("recomp_algorithm"), "#1: lzo [zstd]\n").unwrap();
        assert_eq!(of(&root), Ok("yes".into()));
    }

    #[test]
    fn zswap_is_on_or_can_be_switched_on_or_is_not_there() {
        let dir = tempfile::tempdir().unwrap();
        let root = Root::at(dir.path());
        assert!(zswap(&root).unwrap_err().contains("CONFIG_ZSWAP"));
        let parameters = dir.path().join("sys/module/zswap/parameters");
        std::fs::create_dir_all(&parameters).unwrap();
        std::fs::write(parameters.join("enabled"), "N\n").unwrap();
        assert!(zswap(&root).unwrap().contains("switched on"));
        std::fs::write(parameters.join("enabled"), "Y\n").unwrap();
        assert_eq!(zswap(&root).unwrap(), "on");
    }

    #[test]
    fn capabilities_are_bits_of_the_effective_set() {
        let dir = tempfile::tempdir().unwrap();
        let status = dir.path().join("proc/self");
        std::fs::create_dir_all(&status).unwrap();
        std::fs::write(
            status.join("status"),
            "CapPrm:\tffffffffffffffff\nCapEff:\t0000000000800000\n",
        )
        .unwrap();
        let root = Root::at(dir.path());
        assert!(has_capability(&root, SYS_NICE));
        assert!(!has_capability(&root, SYS_NICE - 1));
    }
}
