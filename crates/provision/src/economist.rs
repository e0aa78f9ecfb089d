//! Whether slow memory is worth what it costs.
//!
//! Slow memory that is in use draws power, and its page descriptors occupy
//! DRAM. What speaks for it is time: memory that finds no room near its
//! processors lies in another node's DRAM, and each access takes longer. Both
//! sides are put into joules: a processor that waits draws its power, too.
//!
//! How often memory will be accessed is known to nobody beforehand. It is an
//! interval, and a change is only vetoed where it would not pay at the upper
//! end. Where there is no room in other nodes either, nothing is weighed: the
//! alternative is that the kernel kills a program.

use core::fmt;

use serde::{Deserialize, Serialize};
use terrace_core::{Bytes, Machine, Nanos};

/// What a machine's memory costs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// Power of slow memory that is in use, in watts for each GiB.
    pub slow_watts: f64,
    /// Power of DRAM, in watts for each GiB.
    pub dram_watts: f64,
    /// Power of one processor that works or waits for memory, beyond an idle one, in watts.
    pub core_watts: f64,
    /// Latency of a load from the slow memory near the processor.
    pub near_latency: Nanos,
    /// Latency of a load from another node's DRAM.
    pub far_latency: Nanos,
    /// What the kernel keeps for each base page.
    pub descriptor: Bytes,
    /// What it takes to bring a block online and to take it offline again.
    pub block_time: Nanos,
    /// Accesses to a GiB in a second: at least and at most.
    pub accesses: [f64; 2],
}

/// One page each 100 s, and a core's misses at full speed (one each 100 ns) within one GiB. What
/// lies outside is not memory that a policy for slow memory has to do with.
pub const ACCESSES: [f64; 2] = [2621.0, 1e7];

/// What a change is worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// It pays even at the lower end.
    Pays,
    /// It may pay.
    MayPay,
    /// It does not pay even at the upper end.
    DoesNotPay,
    /// There is no room elsewhere: it is not weighed.
    Forced,
}

/// Slow memory over a time: how much there was, and how much of it was of use.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Held {
    /// What was online, in GiB times seconds.
    pub online: f64,
    /// What of it held data that would have lain far away otherwise, in GiB times seconds.
    pub used: f64,
    /// Blocks that were brought in and taken away; one that only came is half a block.
    pub blocks: f64,
}

/// What slow memory costs, and what it saves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Bill {
    /// Energy of the memory itself, in joules.
    pub memory: f64,
    /// Energy of the DRAM that its page descriptors occupy, in joules.
    pub metadata: f64,
    /// Energy of the processor that brings it in and takes it away, in joules.
    pub work: f64,
    /// Energy of waiting that is saved, at least and at most, in joules.
    pub saved: [f64; 2],
    /// Accesses to a GiB in a second above which it pays; `None` where it never does.
    pub pays_above: Option<f64>,
}

impl Bill {
    /// What it costs in all, in joules.
    pub fn cost(&self) -> f64 {
        self.memory + self.metadata + self.work
    }
}

/// The prices of bringing memory in, for a time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Quote {
    /// For how long it is assumed to stay.
    pub stays: Nanos,
    /// What it costs and saves in that time, if all of it is used.
    #[serde(flatten)]
    pub bill: Bill,
    /// The outcome.
    pub verdict: Verdict,
}

impl fmt::Display for Quote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bill = &self.bill;
        let [least, most] = bill.saved;
        write!(
            f,
            "costs {:.2} J within {} (memory {:.2}, descriptors {:.2}, work {:.2}), saves {least:.2} \
             to {most:.2} J of waiting",
            bill.cost(),
            self.stays,
            bill.memory,
            bill.metadata,
            bill.work
        )?;
        if let Some(rate) = bill.pays_above {
            write!(f, "; pays above {rate:.0} accesses a second to each GiB")?;
        }
        f.write_str(match self.verdict {
            Verdict::Pays => ": pays",
            Verdict::MayPay => ": may pay",
            Verdict::DoesNotPay => ": does not pay",
            Verdict::Forced => ": not weighed, for no other node has room",
        })
    }
}

impl Figures {
    /// The figures of a machine file. A memory module draws what it draws idle, which is what bringing
    /// it in adds; a processor that waits, what it draws busy beyond idle. `accesses` is for who knows
    /// how often a GiB is accessed in a second, at least and at most.
    ///
    /// # Errors
    /// What the file lacks: it has to say what several sockets and their power are.
    pub fn of(machine: &Machine, accesses: Option<[f64; 2]>) -> Result<Self, &'static str> {
        let numa = machine.numa.as_ref().ok_or("has no `[numa]`")?;
        let power = machine.power.as_ref().ok_or("has no `[power]`")?;
        // The order of such a machine's tiers: DRAM and slow memory, near and far.
        let [_, near, far, _] = &machine.tiers[..] else { return Err("has no four tiers") };
        let watts = power.module_idle.value / (power.module.value / Bytes::gib(1));
        let socket = power.socket_busy.value - power.socket_idle.value;
        Ok(Self {
            slow_watts: watts,
            dram_watts: watts,
            core_watts: socket / f64::from(machine.cpu.cores.value),
            near_latency: near.read_latency.value,
            far_latency: far.read_latency.value,
            descriptor: numa.page_descriptor.value,
            block_time: numa.online.value + numa.offline.value,
            accesses: accesses.unwrap_or(ACCESSES),
        })
    }

    /// Energy that is saved where a GiB of data lies in near slow memory for a second instead of
    /// far away, for each access to it: the waiting of a processor, in joules.
    fn saved_by_access(&self) -> f64 {
        (self.far_latency.as_f64() - self.near_latency.as_f64()) * 1e-9 * self.core_watts
    }

    /// Energy of waiting for so many GiB times seconds of data far away beyond what waiting for
    /// near slow memory takes, at least and at most, in joules.
    pub fn waiting(&self, far: f64) -> [f64; 2] {
        self.accesses.map(|rate| rate * self.saved_by_access() * far)
    }

    /// Prices slow memory with base pages of `page`.
    pub fn bill(&self, held: Held, page: Bytes) -> Bill {
        let memory = self.slow_watts * held.online;
        let metadata = self.dram_watts * held.online * (self.descriptor / page);
        let work = self.core_watts * self.block_time.as_secs() * held.blocks;
        // Joules for each access to a GiB in a second.
        let per_rate = self.saved_by_access() * held.used;
        Bill {
            memory,
            metadata,
            work,
            saved: self.waiting(held.used),
            pays_above: (per_rate > 0.0).then(|| (memory + metadata + work) / per_rate),
        }
    }

    /// Prices `amount` of slow memory in blocks of `block` with base pages of `page`, for as long as
    /// it `stays`. `elsewhere` is what is free in other nodes' DRAM.
    pub fn quote(
        &self,
        amount: Bytes,
        block: Bytes,
        page: Bytes,
        stays: Nanos,
        elsewhere: Bytes,
    ) -> Quote {
        let online = amount.as_f64() / Bytes::gib(1).as_f64() * stays.as_secs();
        let held = Held { online, used: online, blocks: (amount / block).ceil() };
        let bill = self.bill(held, page);
        let verdict = if elsewhere < amount {
            Verdict::Forced
        } else if bill.saved[0] >= bill.cost() {
            Verdict::Pays
        } else if bill.saved[1] >= bill.cost() {
            Verdict::MayPay
        } else {
            Verdict::DoesNotPay
        };
        Quote { stays, bill, verdict }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// DRAM-like slow memory, as the paper's emulation has it.
    fn figures() -> Figures {
        Figures {
            slow_watts: 0.2,
            dram_watts: 0.2,
            core_watts: 8.0,
            near_latency: Nanos(90),
            far_latency: Nanos(140),
            descriptor: Bytes(64),
            block_time: Nanos::millis(110),
            accesses: ACCESSES,
        }
    }

    fn quote(figures: Figures, elsewhere: Bytes) -> Quote {
        let (block, page) = (Bytes::mib(128), Bytes::kib(4));
        figures.quote(Bytes::gib(1), block, page, Nanos::seconds(30), elsewhere)
    }

    /// 3.5 W for a module of 16 GiB; 105 - 42 W for eight processors.
    #[test]
    fn a_machine_file_has_the_figures_or_it_is_said_what_it_lacks() {
        let read = |name: &str| {
            let path = format!("{}/../../machines/{name}.toml", env!("CARGO_MANIFEST_DIR"));
            Machine::parse(name, &std::fs::read_to_string(path).unwrap()).unwrap()
        };
        let four = read("four-node");
        let figures = Figures::of(&four, None).unwrap();
        let near = |a: f64, b: f64| (a - b).abs() < 1e-12;
        assert!(near(figures.slow_watts, 3.5 / 16.0) && near(figures.core_watts, 63.0 / 8.0));
        assert_eq!((figures.near_latency, figures.far_latency), (Nanos(136), Nanos(194)));
        assert_eq!(figures.block_time, Nanos::millis(110));
        assert!(near(figures.accesses[1], ACCESSES[1]));
        let known = Figures::of(&four, Some([1.0, 2.0])).unwrap();
        assert!(near(known.accesses[0], 1.0) && near(known.accesses[1], 2.0));
        assert_eq!(Figures::of(&read("cxl"), None), Err("has no `[numa]`"));
        let unpowered = Machine { power: None, ..four };
        assert_eq!(Figures::of(&unpowered, None), Err("has no `[power]`"));
    }

    #[test]
    fn each_item_by_hand() {
        let quote = quote(figures(), Bytes::gib(8));
        // 1 GiB · 0.2 W · 30 s; a 64th of that; 8 blocks · 0.11 s · 8 W.
        let bill = quote.bill;
        assert!((bill.memory - 6.0).abs() < 1e-9);
        assert!((bill.metadata - 6.0 / 64.0).abs() < 1e-9);
        assert!((bill.work - 7.04).abs() < 1e-9);
        // 10 million accesses a second · 50 ns · 8 W · 30 s.
        assert!((bill.saved[1] - 120.0).abs() < 1e-6);
        let flip = bill.pays_above.unwrap();
        assert!((flip - bill.cost() / (50e-9 * 8.0 * 30.0)).abs() < 1.0);
        // Half of it held data: half of the waiting is saved, and all of it is paid for.
        let half = figures().bill(Held { online: 30.0, used: 15.0, blocks: 8.0 }, Bytes::kib(4));
        assert!((half.saved[1] - 60.0).abs() < 1e-6 && (half.cost() - bill.cost()).abs() < 1e-9);
        assert_eq!(quote.verdict, Verdict::MayPay);
    }

    #[test]
    fn memory_slower_than_another_node_s_dram_never_pays_while_that_has_room() {
        let optane = Figures { near_latency: Nanos(305), ..figures() };
        let weighed = quote(optane, Bytes::gib(8));
        assert_eq!((weighed.verdict, weighed.bill.pays_above), (Verdict::DoesNotPay, None));
        assert_eq!(quote(optane, Bytes::mib(512)).verdict, Verdict::Forced);
    }

    #[test]
    fn who_knows_the_accesses_gets_an_answer() {
        let busy = Figures { accesses: [5e6, 1e7], ..figures() };
        assert_eq!(quote(busy, Bytes::gib(8)).verdict, Verdict::Pays);
        let idle = Figures { accesses: [1.0, 1000.0], ..figures() };
        assert_eq!(quote(idle, Bytes::gib(8)).verdict, Verdict::DoesNotPay);
    }
}
