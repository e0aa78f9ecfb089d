//! A machine, a world's state and proposals to price.
#![allow(dead_code, missing_docs, unreachable_pub)]

use std::sync::LazyLock;

use terrace_core::{
    Action, Bytes, BytesPerSecond, Heat, Machine, Nanos, OpId, PageNo, PageRef, PageSize,
    PerSecond, Proposal, Reason, RegionId, Telemetry, TierId, TierTelemetry, Urgency,
};
use terrace_economics::{Calibration, Conditions, Interval, Market};

pub const DRAM: TierId = TierId(0);
pub const SLOW: TierId = TierId(1);

/// The machine of the HeMem paper. Properties ask for it thousands of times: it is read once.
pub fn optane() -> Calibration {
    static OPTANE: LazyLock<Calibration> = LazyLock::new(|| {
        calibration("optane", include_str!("../../../../machines/optane-cascade-lake.toml"))
    });
    *OPTANE
}

/// DRAM, compressed memory and a file.
pub fn laptop() -> Calibration {
    static LAPTOP: LazyLock<Calibration> =
        LazyLock::new(|| calibration("laptop", include_str!("../../../../machines/laptop.toml")));
    *LAPTOP
}

fn calibration(name: &str, text: &str) -> Calibration {
    Calibration::from_machine(&Machine::parse(name, text).expect("the machine file is valid"))
}

/// HeMem's machine, DRAM full, everybody busy.
pub fn optane_telemetry() -> Telemetry {
    let mut telemetry = Telemetry {
        now: Nanos::seconds(100),
        tier_count: 2,
        cpu_load: 1.0,
        sample_period: 5000,
        migration_budget: Bytes::gib(1),
        ..Telemetry::default()
    };
    telemetry.tiers[0] = TierTelemetry {
        capacity: Bytes::gib(192),
        free: Bytes::ZERO,
        addressable: true,
        read_latency: Nanos(81),
        write_latency: Nanos(81),
        read_bandwidth: BytesPerSecond(20e9),
        write_bandwidth: BytesPerSecond(10e9),
        accesses: PerSecond(400e6),
    };
    telemetry.tiers[1] = TierTelemetry {
        capacity: Bytes::gib(715),
        free: Bytes::gib(400),
        addressable: true,
        read_latency: Nanos(305),
        write_latency: Nanos(94),
        read_bandwidth: BytesPerSecond(2e9),
        write_bandwidth: BytesPerSecond(1e9),
        accesses: PerSecond(20e6),
    };
    telemetry
}

/// A laptop whose DRAM is full, over compressed memory.
pub fn laptop_telemetry() -> Telemetry {
    let mut telemetry = optane_telemetry();
    telemetry.sample_period = 1;
    telemetry.tiers[0].capacity = Bytes::gib(16);
    telemetry.tiers[0].accesses = PerSecond(50e6);
    telemetry.tiers[1] = TierTelemetry {
        capacity: Bytes::gib(16),
        free: Bytes::gib(12),
        addressable: false,
        read_latency: Nanos::micros(2),
        write_latency: Nanos::micros(8),
        read_bandwidth: BytesPerSecond(1e8),
        write_bandwidth: BytesPerSecond(1e8),
        accesses: PerSecond(1000.0),
    };
    telemetry
}

/// A market in which memory is worth something, and what was learnt is narrow.
pub fn market() -> Market {
    Market {
        horizon: 10.0,
        bid: Interval::new(2.0, 3.0, 4.0),
        ask: Interval::new(0.01, 0.02, 0.03),
        correction: Interval::exact(1.0),
        touched: 1.0,
    }
}

pub fn conditions<'a>(telemetry: &'a Telemetry, calibration: &'a Calibration) -> Conditions<'a> {
    Conditions::new(telemetry, calibration, market())
}

pub fn page(number: u32) -> PageRef {
    PageRef { region: RegionId(0), page: PageNo(number) }
}

pub fn heat(loads: f64, stores: f64, samples: u32) -> Heat {
    Heat { loads: PerSecond(loads), stores: PerSecond(stores), samples, window: Nanos::seconds(1) }
}

pub fn proposal(action: Action, heat: Heat) -> Proposal {
    Proposal {
        op: OpId(0),
        action,
        page_size: PageSize::Huge,
        heat,
        victim_heat: Heat::default(),
        urgency: Urgency::Voluntary,
        reason: Reason::HotByLoads,
    }
}

pub fn promote(heat: Heat) -> Proposal {
    proposal(Action::Promote { page: page(17), from: SLOW, to: DRAM }, heat)
}

pub fn demote(heat: Heat) -> Proposal {
    Proposal {
        reason: Reason::MakesRoom,
        ..proposal(Action::Demote { page: page(4), from: DRAM, to: SLOW }, heat)
    }
}

pub fn exchange(heat: Heat, victim_heat: Heat) -> Proposal {
    let action = Action::Exchange { promote: page(17), demote: page(4), fast: DRAM, slow: SLOW };
    Proposal { victim_heat, ..proposal(action, heat) }
}
