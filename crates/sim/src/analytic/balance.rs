//! The balance of latency and throughput.
//!
//! Threads that wait for memory load it, and the load makes them wait longer.
//! For given threads there is exactly one balance: each device's slowdown is
//! the one that its load causes, and the load is what threads at these
//! slowdowns cause (Little's law for a closed system). It is found by
//! bisection in each device, repeated over the devices until nothing changes.

use terrace_core::MAX_TIERS;

use crate::analytic::device::{Device, Traffic};

/// What a thread's mean access demands.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Demand {
    /// Processor time, and waiting that does not depend on any device's load.
    pub fixed: f64,
    /// Accesses that proceed at the same time.
    pub in_flight: f64,
    /// The least time between two accesses, however many proceed at once.
    pub issue: f64,
    /// How often each device is waited for.
    pub visits: [f64; MAX_TIERS],
    /// Bytes that each device reads and writes (per access, not per time).
    pub bytes: [Traffic; MAX_TIERS],
}

impl Demand {
    /// Time from one access to the next at given latencies.
    pub fn interval(&self, latency: &[f64; MAX_TIERS]) -> f64 {
        let waiting: f64 = self.visits.iter().zip(latency).map(|(v, l)| v * l).sum();
        ((self.fixed + waiting) / self.in_flight).max(self.issue)
    }

    /// Moves towards a new observation, by `weight` between 0 and 1.
    pub fn approach(&mut self, new: &Self, weight: f64) {
        let mix = |old: &mut f64, new: f64| *old += (new - *old) * weight;
        mix(&mut self.fixed, new.fixed);
        mix(&mut self.in_flight, new.in_flight);
        mix(&mut self.issue, new.issue);
        for tier in 0..MAX_TIERS {
            mix(&mut self.visits[tier], new.visits[tier]);
            mix(&mut self.bytes[tier].read, new.bytes[tier].read);
            mix(&mut self.bytes[tier].write, new.bytes[tier].write);
        }
    }
}

/// Pages being copied from one device to another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Copying {
    /// Device that is read.
    pub from: usize,
    /// Device that is written.
    pub to: usize,
    /// Bytes a nanosecond while copying, on idle devices.
    pub rate: f64,
    /// Share of the time in which copies are made.
    pub time_share: f64,
}

impl Copying {
    /// Bytes a nanosecond while copying. A copying core keeps a fixed number of
    /// lines in flight, so it slows down as the slower of the two devices does.
    pub fn rate_at(&self, slowdown: &[f64; MAX_TIERS]) -> f64 {
        self.rate / slowdown[self.from].max(slowdown[self.to])
    }
}

/// Slowdowns and loads that fit each other.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Balance {
    /// By how much latencies are stretched.
    pub slowdown: [f64; MAX_TIERS],
    /// Share of each device's time in use.
    pub load: [f64; MAX_TIERS],
}

impl Default for Balance {
    fn default() -> Self {
        Self { slowdown: [1.0; MAX_TIERS], load: [0.0; MAX_TIERS] }
    }
}

/// Rounds over all devices; each round fixes one device at a time.
const ROUNDS: u32 = 40;
/// Halvings of the interval in which a device's load lies.
const HALVINGS: u32 = 22;
/// A relative change of a slowdown that no longer matters.
const SETTLED: f64 = 1e-4;

impl Balance {
    /// Latencies of loads at this balance.
    pub fn latencies(&self, devices: &[Device]) -> [f64; MAX_TIERS] {
        let mut latencies = [0.0; MAX_TIERS];
        for (tier, device) in devices.iter().enumerate() {
            latencies[tier] = device.read_latency() * self.slowdown[tier];
        }
        latencies
    }

    /// Finds the balance, starting from this one.
    pub fn settle(&mut self, devices: &[Device], threads: &[Demand], copies: &[Copying]) {
        for _ in 0..ROUNDS {
            let mut change = 0.0f64;
            for tier in 0..devices.len() {
                let before = self.slowdown[tier];
                self.settle_one(tier, devices, threads, copies);
                change = change.max((self.slowdown[tier] / before - 1.0).abs());
            }
            if change < SETTLED {
                break;
            }
        }
    }

    fn settle_one(
        &mut self,
        tier: usize,
        devices: &[Device],
        threads: &[Demand],
        copies: &[Copying],
    ) {
        let device = &devices[tier];
        let mut latency = self.latencies(devices);
        let mut slowdown = self.slowdown;
        let mut load_at = |stretch: f64| {
            slowdown[tier] = stretch;
            latency[tier] = device.read_latency() * stretch;
            let mut traffic = Traffic::default();
            for thread in threads {
                let rate = 1.0 / thread.interval(&latency);
                traffic.read += rate * thread.bytes[tier].read;
                traffic.write += rate * thread.bytes[tier].write;
            }
            for copy in copies {
                let rate = copy.rate_at(&slowdown) * copy.time_share;
                traffic.read += if copy.from == tier { rate } else { 0.0 };
                traffic.write += if copy.to == tier { rate } else { 0.0 };
            }
            device.load(traffic)
        };
        // Below the knee nothing is stretched, which is by far the commonest case.
        let unstretched = load_at(1.0);
        if unstretched <= device.knee() {
            self.slowdown[tier] = 1.0;
            self.load[tier] = unstretched;
            return;
        }
        // More load stretches more, and more stretch loads less: one crossing.
        let (mut low, mut high) = (device.knee(), 1.0);
        for _ in 0..HALVINGS {
            let middle = f64::midpoint(low, high);
            if load_at(device.slowdown(middle)) > middle {
                low = middle;
            } else {
                high = middle;
            }
        }
        self.slowdown[tier] = device.slowdown(high);
        self.load[tier] = high;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machines;

    fn devices() -> Vec<Device> {
        machines::optane_cascade_lake().tiers.iter().map(Device::new).collect()
    }

    /// Threads whose accesses read and write back one line of one tier.
    fn updaters(threads: usize, tier: usize, in_flight: f64, unit: f64) -> Vec<Demand> {
        let mut demand = Demand { fixed: 0.0, in_flight, issue: 0.1, ..Demand::default() };
        demand.visits[tier] = 1.0;
        demand.bytes[tier] = Traffic { read: unit, write: unit };
        vec![demand; threads]
    }

    fn throughput(threads: &[Demand], devices: &[Device]) -> f64 {
        let mut balance = Balance::default();
        balance.settle(devices, threads, &[]);
        let latency = balance.latencies(devices);
        threads.iter().map(|t| 1.0 / t.interval(&latency)).sum()
    }

    #[test]
    fn few_waiting_threads_run_at_idle_latency() {
        let devices = devices();
        let rate = throughput(&updaters(4, 0, 1.0, 64.0), &devices);
        assert!((rate * 81.0 / 4.0 - 1.0).abs() < 1e-6, "{rate}");
    }

    #[test]
    fn many_waiting_threads_reach_the_roof_and_not_more() {
        let devices = devices();
        // 64 B read and written: 113 GB/s are 0.883 updates a nanosecond.
        let roof = 113.0 / 128.0;
        let rate = throughput(&updaters(16, 0, 64.0, 64.0), &devices);
        assert!(rate < roof && rate > 0.97 * roof, "{rate} of {roof}");
        // Optane: 256 B for each line, reads at 39.4 and writes at 13.9 GB/s.
        let roof = 1.0 / (256.0 / 39.4 + 256.0 / 13.9);
        let rate = throughput(&updaters(16, 1, 64.0, 256.0), &devices);
        assert!(rate < roof && rate > 0.97 * roof, "{rate} of {roof}");
    }

    #[test]
    fn latency_and_throughput_obey_littles_law() {
        let devices = devices();
        let threads = updaters(16, 1, 1.0, 256.0);
        let mut balance = Balance::default();
        balance.settle(&devices, &threads, &[]);
        let latency = balance.latencies(&devices)[1];
        let rate = throughput(&threads, &devices);
        assert!((rate * latency / 16.0 - 1.0).abs() < 1e-3, "{} in flight", rate * latency);
        let load = rate * (256.0 / 39.4 + 256.0 / 13.9);
        assert!((balance.slowdown[1] / devices[1].slowdown(load) - 1.0).abs() < 0.01);
    }

    #[test]
    fn copies_and_threads_slow_each_other_down() {
        let devices = devices();
        let threads = updaters(16, 1, 1.0, 256.0);
        let copying = Copying { from: 1, to: 0, rate: 20.0, time_share: 1.0 };
        let (mut alone, mut both) = (Balance::default(), Balance::default());
        alone.settle(&devices, &threads, &[]);
        both.settle(&devices, &threads, &[copying]);
        assert!(both.slowdown[1] > alone.slowdown[1]);
        assert!(copying.rate_at(&both.slowdown) < copying.rate);
    }

    #[test]
    fn the_balance_does_not_depend_on_where_it_is_sought_from() {
        let devices = devices();
        let mut threads = updaters(8, 1, 4.0, 256.0);
        threads.extend(updaters(8, 0, 64.0, 64.0));
        let mut cold = Balance::default();
        cold.settle(&devices, &threads, &[]);
        let mut hot = Balance { slowdown: [40.0; MAX_TIERS], load: [1.0; MAX_TIERS] };
        hot.settle(&devices, &threads, &[]);
        for tier in 0..2 {
            assert!((cold.slowdown[tier] / hot.slowdown[tier] - 1.0).abs() < 1e-2);
        }
    }
}
