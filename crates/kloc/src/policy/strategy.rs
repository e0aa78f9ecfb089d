//! Strategies by name: those of the paper's Table 5, and ours.

use core::fmt;

use terrace_core::{Bytes, Nanos, ObjectKind};
use terrace_policy::{
    AutoNuma, AutoNumaConfig, FirstTouch, HintConfig, Nimble, NimbleConfig, Policy,
};

use super::{Fixed, Halves, KernelObjects, Leaving, ObjectsConfig};
use crate::GuardConfig;

/// How application and kernel pages are placed and moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Strategy {
    /// Everything in the fast memory, which has to be large enough.
    AllFast,
    /// Everything in the slow memory.
    AllSlow,
    /// First come, first served, and nothing moves.
    Naive,
    /// Nimble for the program's pages; the kernel's lie in the slow memory.
    Nimble,
    /// Nimble for all pages, without contexts.
    NimblePlusPlus,
    /// Nimble for the program's pages; the kernel's are placed by context, and stay.
    KlocsNoMigration,
    /// The same, and the pages of a context leave when it is closed.
    Klocs,
    /// The same, but they leave when memory is short, unless the context was opened again.
    KlocsGuarded,
    /// KLOCs whose pages come back as read-ahead comes to them, and not when the file is opened.
    KlocsPrefetch,
    /// Between sockets: NUMA balancing for the program's pages; the kernel's lie where they were
    /// first placed.
    AutoNuma,
    /// Between sockets: Nimble for the program's pages; the kernel's lie where they were first
    /// placed.
    NimbleSockets,
    /// Between sockets: NUMA balancing for the program's pages; the kernel's follow by context.
    AutoNumaKlocs,
}

/// What strategies are made for.
#[derive(Clone, Copy, Debug)]
pub struct StrategyConfig {
    /// Processors.
    pub cpus: usize,
    /// By how much less memory there is than on the machine that times were chosen for: what
    /// is done from time to time is done so many times as often.
    pub scale: u64,
    /// Kinds of objects that contexts know ([`crate::KmapConfig::kinds`]).
    pub kinds: u16,
}

impl StrategyConfig {
    /// So many processors, all kinds.
    pub const fn new(cpus: usize, scale: u64) -> Self {
        Self { cpus, scale, kinds: (1 << ObjectKind::COUNT) - 1 }
    }
}

impl Strategy {
    /// Every strategy, in the order of the paper's figures, ours last.
    pub const ALL: [Self; 8] = [
        Self::AllSlow,
        Self::Naive,
        Self::Nimble,
        Self::NimblePlusPlus,
        Self::KlocsNoMigration,
        Self::Klocs,
        Self::KlocsGuarded,
        Self::AllFast,
    ];

    /// Strategies for two sockets, in the order of the paper's Figure 5a: all memory at the other
    /// socket, then the paper's three, then all at the own socket.
    pub const SOCKETS: [Self; 5] =
        [Self::AllSlow, Self::AutoNuma, Self::NimbleSockets, Self::AutoNumaKlocs, Self::AllFast];

    /// What people call it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::KlocsPrefetch => "klocs-prefetch",
            Self::AutoNuma => "autonuma",
            Self::NimbleSockets => "nimble-sockets",
            Self::AutoNumaKlocs => "autonuma+klocs",
            Self::AllFast => "all-fast",
            Self::AllSlow => "all-slow",
            Self::Naive => "naive",
            Self::Nimble => "nimble",
            Self::NimblePlusPlus => "nimble++",
            Self::KlocsNoMigration => "klocs-nomigration",
            Self::Klocs => "klocs",
            Self::KlocsGuarded => "klocs-guarded",
        }
    }

    /// Whether it places pages and proposes nothing, so that there is nothing to price or to record.
    pub const fn decides_nothing(self) -> bool {
        matches!(self, Self::AllFast | Self::AllSlow | Self::Naive)
    }

    /// A new policy.
    pub fn build(self, config: &StrategyConfig) -> Box<dyn Policy> {
        let scaled = |time: Nanos| Nanos((time.get() / config.scale.max(1)).max(1));
        let tick = Nanos::millis(1);
        let nimble = || {
            let period = scaled(NimbleConfig::default().period).max(tick * 2);
            Box::new(Nimble::new(NimbleConfig { period, tick }))
        };
        let klocs_with = |leaving, prefetches| {
            let objects = ObjectsConfig::new(config.cpus, leaving);
            let pass = scaled(objects.pass);
            let mut objects = ObjectsConfig { tick, pass, prefetches, ..objects };
            objects.kmap.kinds = config.kinds;
            let kernel = Box::new(KernelObjects::new(objects));
            Box::new(Halves::new(self.name(), nimble(), kernel).program_first())
        };
        let klocs = |leaving| klocs_with(leaving, false);
        let balancing = || {
            let usual = HintConfig::default();
            // A part of memory that is as much smaller is armed as many times as often.
            let hints = HintConfig {
                scan_period: scaled(usual.scan_period).max(tick),
                scan_size: Bytes((usual.scan_size.get() / config.scale.max(1)).max(4096)),
            };
            let of = AutoNumaConfig { hints, tick, ..AutoNumaConfig::balancing() };
            Box::new(AutoNuma::new(of))
        };
        match self {
            Self::AutoNuma => {
                let kernel = Box::new(FirstTouch::new());
                Box::new(Halves::new(self.name(), balancing(), kernel))
            }
            Self::NimbleSockets => {
                Box::new(Halves::new(self.name(), nimble(), Box::new(FirstTouch::new())))
            }
            Self::AutoNumaKlocs => {
                let objects = ObjectsConfig::new(config.cpus, Leaving::Never);
                // Both memories are as fast: there is nothing to yield.
                let mut objects = ObjectsConfig { tick, follows: true, yields: false, ..objects };
                objects.pass = scaled(objects.pass);
                objects.kmap.kinds = config.kinds;
                let kernel = Box::new(KernelObjects::new(objects));
                Box::new(Halves::new(self.name(), balancing(), kernel))
            }
            Self::AllFast => Box::new(Fixed::fast()),
            Self::AllSlow => Box::new(Fixed::slow()),
            Self::Naive => Box::new(FirstTouch::new()),
            Self::Nimble => Box::new(Halves::new(self.name(), nimble(), Box::new(Fixed::slow()))),
            Self::NimblePlusPlus => nimble(),
            Self::KlocsNoMigration => klocs(Leaving::Never),
            Self::Klocs => klocs(Leaving::AtClose),
            Self::KlocsPrefetch => klocs_with(Leaving::AtClose, true),
            Self::KlocsGuarded => klocs(Leaving::UnderPressure(GuardConfig::default())),
        }
    }
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
