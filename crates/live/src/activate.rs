//! From a configuration to a running pager.

use terrace_core::{Bytes, BytesPerSecond, Frequency, Nanos};
use terrace_economics::{Calibration, Economist, Parameters};
use terrace_policy::Brain;

use crate::broker::number;
use crate::config::RunConfig;
use crate::costs::Measured;
use crate::decide::decider::Decider;
use crate::decide::event_ring;
use crate::failsafe::reserve_memory;
use crate::pager::Pager;
use crate::stats::process_page::{ProcessPage, Text};
use crate::store::codec::{Codec, Effort, PageBytes};
use crate::sys::{self, PAGE};
use crate::sys::{limits, mapped};
use crate::workers::threads;

/// The statistics page of this process; in private memory if the run's
/// directory is out of reach, so that the pager works all the same.
pub fn statistics(config: &RunConfig) -> Option<&'static ProcessPage> {
    let path = config.dir.join(format!("{}.stats", number::name()));
    let page = ProcessPage::create(&path).or_else(|error| {
        let why = if error.raw_os_error() == Some(libc::EFBIG) {
            Some("it may write no file as large as its figures (ulimit -f)")
        } else {
            mapped::is_full(&error).then_some(mapped::NO_ROOM)
        };
        if let Some(why) = why.filter(|_| !config.quiet) {
            sys::complain(&["what a process does is not reported: ", why]);
        }
        ProcessPage::anonymous()
    });
    let page = page.ok()?;
    if config.record {
        event_ring::prepare_decisions(config);
    }
    page.counters.started_ns.store(sys::now(), core::sync::atomic::Ordering::Relaxed);
    page.set_text(Text::Command, &command_name());
    page.set_text(Text::Sampler, "none, as long as everything fits");
    Some(page)
}

/// The process's name. Each thread may have another, and whichever maps most is the calling one.
fn command_name() -> String {
    if let Ok(name) = std::fs::read_to_string("/proc/self/comm") {
        return name.trim_end_matches('\n').to_owned();
    }
    let mut name = [0u8; 16];
    // SAFETY: the call writes at most 16 bytes.
    unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
    let end = name.iter().position(|&b| b == 0).unwrap_or(name.len());
    String::from_utf8_lossy(&name[..end]).into_owned()
}

/// Whether a limit on the program's address space (`RLIMIT_AS`, `ulimit -v`) leaves what
/// managing takes: with less, memory for our own books would be refused in the middle of work.
///
/// Measured by what programs map with budgets of 4 MiB to 1 GiB beside what they map unmanaged
/// (30 to 175 MiB), with a margin; and all that leaves DRAM stays in the address space, as long as
/// it was if it does not compress.
pub fn has_address_space(budget: Bytes, mapped: Bytes) -> bool {
    let own = Bytes::mib(40 + (reserve_memory::RESERVE >> 20) as u64)
        + budget.min(Bytes::mib(32))
        + budget / 8;
    limits::address_space_left().is_none_or(|left| Bytes(left) >= own + mapped)
}

/// Starts managing this program's window and heap. To be called with all
/// signals blocked.
pub fn activate(config: RunConfig, stats: &'static ProcessPage) -> Result<&'static Pager, i32> {
    let economist = Economist::new(config.economist, calibration(&config));
    let mut brain = Brain::new(config.policy.build(), economist);
    brain.set_process(number::shown());
    if config.record {
        event_ring::record(&mut brain, &config);
    }
    activate_with(config, stats, brain, true)
}

/// Starts managing under a given policy and economist.
pub fn activate_with(
    config: RunConfig,
    stats: &'static ProcessPage,
    brain: Brain,
    heap: bool,
) -> Result<&'static Pager, i32> {
    let clock = brain.economist().calibration().clock;
    reserve_memory::keep()?;
    let pager = Pager::new(config, stats, Decider::new(brain), clock)?;
    let pager: &'static Pager = Box::leak(Box::new(pager));
    pager.fork.keep_one();
    threads::start(pager, heap)?;
    Ok(pager)
}

/// One of so many actions that pay is left out to compare with, as nobody can run a program twice:
/// 1.6 %.
const HOLD_OUT: u32 = 64;

/// How cautious an economist is in a live world, whichever it is: what it leaves out to compare with,
/// what it may try out (as much as by default), and that what loses stands still. The last only where
/// what actions bring can be seen.
pub fn parameters(sees_benefit: bool) -> Parameters {
    Parameters { hold_out: HOLD_OUT, kill_switch: sees_benefit, ..Parameters::default() }
}

/// What the mechanisms cost here, for a run: what `terrace calibrate` measured, and
/// constants for the rest.
pub fn calibration(config: &RunConfig) -> Calibration {
    let constants = Calibration { parameters: parameters(true), ..calibrate() };
    config.measured.map_or(constants, |measured| measured.apply(constants))
}

/// The same where the kernel moves pages: in `terrace attach`, a run across memories, and under the
/// kernel engine.
pub fn calibration_in_place(measured: Option<&Measured>, sees_benefit: bool) -> Calibration {
    let constants = Calibration { parameters: parameters(sees_benefit), ..calibrate() };
    measured.map_or(constants, |measured| measured.apply_in_place(constants))
}

/// What the mechanisms cost here as far as that is known without measuring: copying and compressing are timed (some
/// 300 µs), the rest is what this project measured on its own machines and is
/// refined from the actions' real costs.
pub fn calibrate() -> Calibration {
    const ROUNDS: u64 = 16;
    let clock = clock();
    let mut page: Box<PageBytes> = Box::new([0; PAGE]);
    // Half counting integers, half text-like bytes: neither best nor worst case.
    for (i, byte) in page.iter_mut().enumerate() {
        *byte = if i % 8 < 4 { (i / 64) as u8 } else { (i * 7 % 26) as u8 + b'a' };
    }
    let mut codec = Codec::new();
    let mut out: Box<PageBytes> = Box::new([0; PAGE]);
    let packed = codec.pack(&page, Effort::Quick);
    let compress = time(ROUNDS, || {
        core::hint::black_box(codec.pack(core::hint::black_box(&page), Effort::Quick));
    });
    let decompress = time(ROUNDS, || match packed {
        crate::store::codec::Packed::Compressed(n) => {
            core::hint::black_box(crate::store::codec::unpack(codec.output(n), &mut out));
        }
        _ => out.copy_from_slice(&page[..]),
    });
    let copy = time(ROUNDS, || {
        out.copy_from_slice(core::hint::black_box(&page[..]));
        core::hint::black_box(&out);
    });
    // `bench/mechanisms/fault_path.c`, median with a handler on every CPU.
    let user_fault = Nanos::micros(10);
    Calibration {
        clock,
        cpus: std::thread::available_parallelism().map_or(1, |n| n.get() as u32),
        mlp: terrace_economics::Interval::new(1.0, 3.0, 10.0),
        copy_bandwidth: BytesPerSecond::from_amount(Bytes(PAGE as u64), copy.max(Nanos(1))),
        promote_fixed: Nanos::micros(2),
        demote_fixed: Nanos::micros(2),
        exchange_fixed: Nanos::micros(4),
        write_protect: Nanos::micros(1),
        shootdown: Nanos::micros(1),
        shootdown_per_cpu: Nanos::micros(3),
        shootdown_batch: 1,
        // Timed when it is first needed, see `walk_cost`.
        page_walk: Nanos::ZERO,
        user_fault,
        fault_pages: terrace_economics::FAULT_PAGES,
        fill_fixed: Nanos::ZERO,
        compress,
        decompress,
        cost_spread: 2.0,
        tiers: Default::default(),
        parameters: terrace_economics::Parameters::default(),
    }
}

/// What a page walk takes here, measured; `None` where there is no room for it.
pub fn page_walk() -> Option<Nanos> {
    crate::huge::page_walk_cost::measure()
}

fn time(rounds: u64, mut work: impl FnMut()) -> Nanos {
    let start = sys::now();
    for _ in 0..rounds {
        work();
    }
    Nanos((sys::now() - start) / rounds)
}

/// The time-stamp counter's frequency: the currency of costs.
fn clock() -> Frequency {
    #[cfg(target_arch = "x86_64")]
    {
        let start = sys::now();
        // SAFETY: reads a counter.
        let t0 = unsafe { core::arch::x86_64::_rdtsc() };
        while sys::now() - start < 200_000 {
            core::hint::spin_loop();
        }
        // SAFETY: as above.
        let cycles = unsafe { core::arch::x86_64::_rdtsc() } - t0;
        Frequency(cycles as f64 / (sys::now() - start) as f64 * 1e9)
    }
    #[cfg(not(target_arch = "x86_64"))]
    Frequency::ghz(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A live world that forgot one of them would check nothing of what it decides.
    #[test]
    fn every_live_world_holds_out_explores_and_stops_what_loses_where_that_can_be_seen() {
        let config = RunConfig::new(Bytes::mib(8), "/nonexistent".into());
        let measured = crate::costs::tests::example();
        let worlds = [
            calibration(&config),
            calibration(&RunConfig { measured: Some(measured), ..config }),
            calibration_in_place(None, true),
            calibration_in_place(Some(&measured), true),
        ];
        for world in worlds {
            world.check().expect("prices that can be");
            let Parameters { hold_out, explore, explore_budget, kill_switch, .. } =
                world.parameters;
            assert!((20..=100).contains(&hold_out), "1 to 5 %: one of {hold_out}");
            assert!(explore > 0 && (0.001..0.05).contains(&explore_budget));
            assert!(kill_switch);
        }
        assert!(!calibration_in_place(None, false).parameters.kill_switch);
        let [.., constants, in_place] = worlds;
        assert_eq!(in_place.copy_bandwidth, measured.copy_bandwidth, "what is measured counts");
        assert_eq!(
            in_place.user_fault, constants.user_fault,
            "a pager's fault is none of the kernel's"
        );
    }
}
