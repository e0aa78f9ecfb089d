//! A tier's device: how traffic becomes load, and load becomes latency.
//!
//! Times are nanoseconds and traffic is bytes, both as floats, so bandwidth is
//! bytes a nanosecond (which is GB/s).

use terrace_core::TierKind;
use terrace_core::machine::TierFile;

/// The least share of a device's time that is kept free: the queue of a
/// saturated device is long, not infinite.
const LEAST_IDLE: f64 = 1e-6;

/// A byte-addressable memory, analytically.
///
/// - A transfer occupies whole units of the device's granularity, so a 64 B
///   line on a 256 B device uses four times its size in bandwidth.
/// - Reads and writes take turns: the device's load is the sum of the shares
///   of time that they use. A device that names a combined bandwidth (a link
///   with a lane in each direction) is loaded by the busiest of reads, writes
///   and both together.
/// - Latency is the idle latency up to the knee, and above it the idle latency
///   plus the mean wait of an M/D/1 queue whose service time is the idle
///   latency and whose load is the part of the load above the knee.
#[derive(Clone, Debug)]
pub struct Device {
    read_latency: f64,
    write_latency: f64,
    read_bandwidth: f64,
    write_bandwidth: f64,
    combined_bandwidth: Option<f64>,
    granularity: f64,
    knee: f64,
}

impl Device {
    /// The device that a machine file describes.
    pub fn new(tier: &TierFile) -> Self {
        Self {
            read_latency: tier.read_latency.value.as_f64(),
            write_latency: tier.write_latency.value.as_f64(),
            read_bandwidth: tier.read_bandwidth.value.get() / 1e9,
            write_bandwidth: tier.write_bandwidth.value.get() / 1e9,
            combined_bandwidth: tier.combined_bandwidth.as_ref().map(|b| b.value.get() / 1e9),
            granularity: tier.granularity.value.as_f64(),
            knee: tier.load_knee.value,
        }
    }

    /// Whether the simulator can serve accesses to such a tier in place.
    pub fn serves(tier: &TierFile) -> bool {
        tier.kind == TierKind::ByteAddressable
    }

    /// Latency of a load on an idle device, in nanoseconds.
    pub fn read_latency(&self) -> f64 {
        self.read_latency
    }

    /// Latency of a store on an idle device, in nanoseconds.
    pub fn write_latency(&self) -> f64 {
        self.write_latency
    }

    /// What the device moves for a transfer of `bytes` at a random place.
    pub fn moved(&self, bytes: f64) -> f64 {
        (bytes / self.granularity).ceil() * self.granularity
    }

    /// The load of a traffic, as a share of what the device can do; above 1
    /// for a traffic that it cannot serve.
    pub fn load(&self, traffic: Traffic) -> f64 {
        let [reads, writes, both] = self.time(traffic);
        reads.max(writes).max(both)
    }

    /// What a traffic takes of the time of each direction (reads, writes) and of
    /// the whole device. Directions have times of their own only where the device
    /// names a combined bandwidth; else reads and writes take turns.
    pub fn time(&self, traffic: Traffic) -> [f64; 3] {
        let reads = traffic.read / self.read_bandwidth;
        let writes = traffic.write / self.write_bandwidth;
        match self.combined_bandwidth {
            None => [0.0, 0.0, reads + writes],
            Some(combined) => [reads, writes, (traffic.read + traffic.write) / combined],
        }
    }

    /// By how much a load stretches latencies; 1 on an idle device.
    pub fn slowdown(&self, load: f64) -> f64 {
        let above = ((load - self.knee) / (1.0 - self.knee)).clamp(0.0, 1.0 - LEAST_IDLE);
        1.0 + 0.5 * above / (1.0 - above)
    }

    /// The highest load that stretches nothing.
    pub(crate) fn knee(&self) -> f64 {
        self.knee
    }
}

/// Traffic of a device, in bytes a nanosecond.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Traffic {
    /// Bytes read.
    pub read: f64,
    /// Bytes written.
    pub write: f64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machines;
    use proptest::prelude::*;

    fn devices(machine: &str) -> Vec<Device> {
        machines::builtin(machine).expect("built in").tiers.iter().map(Device::new).collect()
    }

    proptest! {
        /// If latency fell with load, the balance of load and latency would
        /// have several solutions and results would depend on history.
        #[test]
        fn latency_never_falls_with_load(a in 0.0f64..2.0, b in 0.0f64..2.0) {
            let (low, high) = if a < b { (a, b) } else { (b, a) };
            for device in devices("optane-cascade-lake") {
                prop_assert!(device.slowdown(low) <= device.slowdown(high));
                prop_assert!(device.slowdown(low) >= 1.0 && device.slowdown(high).is_finite());
            }
        }
    }

    #[test]
    fn latency_is_idle_below_the_knee_and_long_at_saturation() {
        let dram = &devices("optane-cascade-lake")[0];
        assert!((dram.slowdown(dram.knee()) - 1.0).abs() < 1e-12);
        assert!(dram.slowdown(0.999) > 50.0);
    }

    #[test]
    fn a_line_costs_a_whole_unit_of_the_device() {
        let devices = devices("optane-cascade-lake");
        let moved = |tier: usize, bytes| devices[tier].moved(bytes) as u64;
        assert_eq!(moved(0, 64.0), 64);
        assert_eq!(moved(1, 64.0), 256);
        assert_eq!(moved(1, 8.0), 256);
        assert_eq!(moved(1, 2_097_152.0), 2_097_152);
    }

    #[test]
    fn optane_reads_and_writes_share_its_time() {
        let optane = &devices("optane-cascade-lake")[1];
        let half_each = Traffic { read: 39.4 / 2.0, write: 13.9 / 2.0 };
        assert!((optane.load(half_each) - 1.0).abs() < 1e-9);
    }

    #[test]
    fn a_cxl_link_carries_both_directions_at_once() {
        let cxl = &devices("cxl")[1];
        assert!((cxl.load(Traffic { read: 17.8, write: 0.0 }) - 1.0).abs() < 1e-9);
        assert!((cxl.load(Traffic { read: 13.6, write: 13.6 }) - 1.0).abs() < 1e-9);
    }
}
