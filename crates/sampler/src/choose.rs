//! What there is here, what is best, and why.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::attribution::Stores;
use crate::damon::Damon;
use crate::damon::control::Control;
use crate::damon::trace::Format;
use crate::perf::event::EventSpec;
use crate::perf::{PerfSampler, WatchScope};
use crate::sampler::{Sampler, SamplerError};
use crate::soft_dirty::SoftDirty;

/// A kind of sampler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Intel PEBS or AMD IBS.
    Hardware,
    /// The kernel's access monitor.
    Damon,
    /// Soft-dirty bits: writes only.
    SoftDirty,
    /// Faults that the kernel's NUMA balancing provokes.
    KernelHints,
}

impl Kind {
    /// Every kind that can watch a program from outside, best first.
    pub const ALL: [Self; 4] = [Self::Hardware, Self::Damon, Self::SoftDirty, Self::KernelHints];

    /// What people call it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Hardware => "pmu",
            Self::Damon => "damon",
            Self::SoftDirty => "soft-dirty",
            Self::KernelHints => "kernel-hints",
        }
    }

    /// Opens it. Those of one program have their `stores` in common.
    pub fn open(self, stores: &Stores) -> Result<Box<dyn Sampler>, SamplerError> {
        Ok(match self {
            Self::Hardware => Box::new(open_hardware()?),
            Self::Damon => Box::new(Damon::new(Path::new("/"), stores.clone())),
            Self::SoftDirty => Box::new(SoftDirty::new(stores.clone())),
            Self::KernelHints => Box::new(crate::perf::page_faults()?),
        })
    }

    /// Whether it counts accesses to whichever page: a sample stands for so many of them. All others
    /// tell at most that a page was in use since they looked before, or was stored to, or has faulted
    /// where the kernel had it fault. Of a page in use that is a small part, and not the same one in
    /// each memory.
    pub const fn counts(self) -> bool {
        matches!(self, Self::Hardware)
    }

    /// What it is good for, in a few words.
    pub const fn merit(self) -> &'static str {
        match self {
            Self::Hardware => "samples real accesses, page by page, at next to no cost",
            Self::Damon => "sees loads and stores, region by region, at a bounded cost",
            Self::SoftDirty => "sees stores, page by page",
            Self::KernelHints => "sees what the kernel makes fault, while it moves pages itself",
        }
    }
}

/// Samples on every processor if we may: threads are seen from their first
/// instruction on, and there is one buffer a processor instead of one a thread.
fn open_hardware() -> Result<PerfSampler, SamplerError> {
    const NAME: &str = "hardware events";
    let events =
        EventSpec::for_machine(Path::new("/")).map_err(|lack| SamplerError::new(NAME, lack))?;
    PerfSampler::open(NAME, events.clone(), WatchScope::Machine)
        .or_else(|_| PerfSampler::open(NAME, events, WatchScope::Processes))
}

/// What a machine has, asked by trying.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Capabilities {
    /// What hardware sampling lacks; `None` if nothing.
    pub hardware: Option<String>,
    /// What DAMON lacks.
    pub damon: Option<String>,
    /// What keeps DAMON's pictures from being told when they are complete, so that they have to
    /// be waited for; `None` if nothing does.
    pub damon_pictures: Option<String>,
    /// What soft-dirty bits lack.
    pub soft_dirty: Option<String>,
    /// What hint faults of the kernel lack.
    pub kernel_hints: Option<String>,
}

impl Capabilities {
    /// Asks this machine.
    pub fn probe() -> Self {
        let root = Path::new("/");
        Self {
            hardware: hardware_lacks(root),
            damon: Control::obstacle(root),
            damon_pictures: Format::read(root).err(),
            soft_dirty: (!SoftDirty::supported())
                .then(|| "this kernel keeps no soft-dirty bits (CONFIG_MEM_SOFT_DIRTY)".into()),
            kernel_hints: kernel_hints_lack(root),
        }
    }

    /// What a kind lacks here; `None` if nothing.
    pub fn lack(&self, kind: Kind) -> Option<&str> {
        match kind {
            Kind::Hardware => self.hardware.as_deref(),
            Kind::Damon => self.damon.as_deref(),
            Kind::SoftDirty => self.soft_dirty.as_deref(),
            Kind::KernelHints => self.kernel_hints.as_deref(),
        }
    }
}

/// What hardware sampling lacks on this machine, whose sysfs is below `root`; `None` if nothing.
pub fn hardware_lacks(root: &Path) -> Option<String> {
    use crate::perf::ring::{Scope, Source};
    let events = match EventSpec::for_machine(root) {
        Ok(events) => events,
        Err(lack) => return Some(lack),
    };
    // The only way to know what paranoia, privileges and hypervisors allow.
    Source::open(&events, Scope::CALLER, 1)
        .err()
        .map(|e| format!("perf_event_open: {e} (CAP_PERFMON, kernel.perf_event_paranoid)"))
}

fn kernel_hints_lack(root: &Path) -> Option<String> {
    let file = root.join("proc/sys/kernel/numa_balancing");
    match std::fs::read_to_string(file).as_deref().map(str::trim) {
        Ok("0") => Some("kernel.numa_balancing is off".into()),
        Ok(_) => None,
        Err(_) => Some("this kernel has no NUMA balancing (CONFIG_NUMA_BALANCING)".into()),
    }
}

/// Samplers that are used together, and why these.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Choice {
    /// The samplers; the first is what the sampling period is of.
    pub kinds: Vec<Kind>,
    /// Why these, in a sentence.
    pub reason: String,
}

impl Choice {
    /// Why these do not tell what the moves of pages have brought; `None` if they do.
    pub fn blind_to_benefit(&self) -> Option<String> {
        let blind = self.kinds.iter().filter(|kind| !kind.counts()).map(|kind| kind.name());
        let blind: Vec<_> = blind.collect();
        match blind.as_slice() {
            [] if self.kinds.is_empty() => Some("nothing observes accesses".to_owned()),
            [] => None,
            [one] => Some(format!("{one} tells that a page is in use, and not how much")),
            all => {
                Some(format!("{} tell that a page is in use, and not how much", all.join(" and ")))
            }
        }
    }
}

/// The best samplers for a program that is watched from outside; an error says
/// what each lacks.
///
/// Hardware sampling if there is: it alone sees how often a page is used.
/// Else DAMON, with soft-dirty bits beside it for the stores, which DAMON does
/// not tell from loads, and for which pages of a region are in use. Else
/// soft-dirty bits alone, else the kernel's hints.
pub fn choose(capabilities: &Capabilities) -> Result<Choice, String> {
    let has = |kind| capabilities.lack(kind).is_none();
    let Some(first) = Kind::ALL.into_iter().find(|kind| has(*kind)) else {
        let lacks: Vec<_> = Kind::ALL
            .into_iter()
            .filter_map(|kind| Some(format!("{}: {}", kind.name(), capabilities.lack(kind)?)))
            .collect();
        return Err(lacks.join("; "));
    };
    let mut kinds = vec![first];
    if first == Kind::Damon && has(Kind::SoftDirty) {
        kinds.push(Kind::SoftDirty);
    }
    let mut reason = first.merit().to_owned();
    for better in Kind::ALL.into_iter().take_while(|kind| *kind != first) {
        if let Some(lack) = capabilities.lack(better) {
            reason += &format!("; no {}: {lack}", better.name());
        }
    }
    Ok(Choice { kinds, reason })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn capabilities(lacking: &[Kind]) -> Capabilities {
        let lack = |kind: Kind| lacking.contains(&kind).then(|| format!("no {}", kind.name()));
        Capabilities {
            hardware: lack(Kind::Hardware),
            damon: lack(Kind::Damon),
            soft_dirty: lack(Kind::SoftDirty),
            damon_pictures: None,
            kernel_hints: lack(Kind::KernelHints),
        }
    }

    #[test]
    fn the_best_that_there_is_wins_and_the_reason_names_what_the_better_lack() {
        let choice = choose(&capabilities(&[])).expect("a choice");
        assert_eq!(choice.kinds, [Kind::Hardware]);

        let choice = choose(&capabilities(&[Kind::Hardware])).expect("a choice");
        assert_eq!(choice.kinds, [Kind::Damon, Kind::SoftDirty], "stores need the second");
        assert!(choice.reason.contains("no pmu"), "{}", choice.reason);

        let choice = choose(&capabilities(&[Kind::Hardware, Kind::Damon])).expect("a choice");
        assert_eq!(choice.kinds, [Kind::SoftDirty]);
        assert!(choice.reason.contains("no damon"), "{}", choice.reason);
    }

    /// What is compared with the cost of a move has to be an amount.
    #[test]
    fn only_who_counts_accesses_sees_what_moves_bring() {
        let blind = |kinds: &[Kind]| {
            let choice = Choice { kinds: kinds.to_vec(), reason: String::new() };
            choice.blind_to_benefit()
        };
        assert_eq!(blind(&[Kind::Hardware]), None);
        assert_eq!(blind(&[]).as_deref(), Some("nothing observes accesses"));
        let bits = blind(&[Kind::Damon, Kind::SoftDirty]);
        let why = "damon and soft-dirty tell that a page is in use, and not how much";
        assert_eq!(bits.as_deref(), Some(why));
        // Its period would be the first one's.
        let mixed = blind(&[Kind::Hardware, Kind::KernelHints]).expect("blind");
        assert!(mixed.starts_with("kernel-hints tells"), "{mixed}");
    }

    #[test]
    fn a_machine_with_nothing_says_what_every_kind_lacks() {
        let error = choose(&capabilities(&Kind::ALL)).expect_err("no choice");
        for kind in Kind::ALL {
            assert!(error.contains(kind.name()), "{error}");
        }
    }
}
