//! What the paper published: medians of its Figure 5, shares of its Figure 6, maxima read off
//! its Figure 4. From the files of its artifact (`figures/fig5.csv`, `fig6.csv`, `fig4*.png`).

use crate::mm::MmPolicyName;
use crate::mm::stand_ins::StandIn;

/// A system of the paper on a program.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Published {
    /// Run time over Linux's in the same state, unfragmented.
    pub time: Option<f64>,
    /// The same, fragmented.
    pub time_fragmented: f64,
    /// The share of memory in huge pages, unfragmented.
    pub share: Option<f64>,
    /// The same, fragmented.
    pub share_fragmented: f64,
}

/// Linux's medians in seconds, unfragmented and fragmented.
pub const fn linux_seconds(program: StandIn) -> [f64; 2] {
    match program {
        StandIn::Canneal => [11_099.4, 24_179.3],
        StandIn::Mcf => [792.4, 818.7],
        StandIn::Memcached => [588.3, 3_068.1],
        StandIn::Mix => [1_166.0, 1_830.2],
        StandIn::Mongodb => [8_376.2, 8_134.6],
        StandIn::Xz => [10_528.0, 10_594.4],
    }
}

/// Linux's shares of huge pages, unfragmented and fragmented.
pub const fn linux_shares(program: StandIn) -> [f64; 2] {
    match program {
        StandIn::Canneal => [1.0, 0.933],
        StandIn::Mcf => [1.0, 1.0],
        StandIn::Memcached => [1.0, 0.941],
        StandIn::Mix => [0.994, 0.956],
        StandIn::Mongodb => [0.065, 0.041],
        StandIn::Xz => [1.0, 0.791],
    }
}

/// The longest soft fault on fragmented memory, in milliseconds, of Linux and of CBMM.
pub const fn longest_ms(program: StandIn) -> [f64; 2] {
    match program {
        StandIn::Canneal => [6_000.0, 20.0],
        StandIn::Mcf => [90.0, 0.6],
        StandIn::Memcached => [2_000.0, 7.0],
        StandIn::Mix => [1_300.0, 50.0],
        StandIn::Mongodb => [5_000.0, 5_000.0],
        StandIn::Xz => [1_000.0, 1.0],
    }
}

/// What is published of a policy; `None` for those that the paper has not.
pub fn published(program: StandIn, policy: MmPolicyName) -> Option<Published> {
    let of = |time, time_fragmented, share, share_fragmented| Published {
        time,
        time_fragmented,
        share,
        share_fragmented,
    };
    let row = match (policy, program) {
        (MmPolicyName::Cbmm, StandIn::Canneal) => of(Some(1.153), 0.662, Some(0.279), 0.0),
        (MmPolicyName::Cbmm, StandIn::Mcf) => of(Some(1.011), 1.363, Some(0.985), 0.030),
        (MmPolicyName::Cbmm, StandIn::Memcached) => of(Some(1.060), 0.197, Some(0.610), 0.0),
        (MmPolicyName::Cbmm, StandIn::Mix) => of(Some(1.063), 0.661, Some(0.818), 0.009),
        (MmPolicyName::Cbmm, StandIn::Mongodb) => of(Some(0.864), 0.910, Some(0.447), 0.014),
        (MmPolicyName::Cbmm, StandIn::Xz) => of(Some(1.018), 1.034, Some(0.163), 0.001),
        (MmPolicyName::HawkEye, StandIn::Canneal) => of(None, 0.736, None, 0.002),
        (MmPolicyName::HawkEye, StandIn::Mcf) => of(Some(1.122), 1.121, Some(0.999), 0.098),
        (MmPolicyName::HawkEye, StandIn::Memcached) => of(Some(1.560), 0.303, Some(0.598), 0.0),
        (MmPolicyName::HawkEye, StandIn::Mix) => of(Some(0.938), 0.637, Some(0.512), 0.017),
        (MmPolicyName::HawkEye, StandIn::Mongodb) => of(Some(0.932), 0.978, Some(0.002), 0.002),
        (MmPolicyName::HawkEye, StandIn::Xz) => of(Some(1.131), 1.128, Some(0.529), 0.004),
        _ => return None,
    };
    Some(row)
}
