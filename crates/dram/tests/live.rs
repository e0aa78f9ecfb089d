//! Every accepted request completes, whatever the memory and the pattern. A
//! peer livelocks where a read meets a full write buffer (DRAMsim3, issues 2,
//! 27 and 43); a scheduler that always prefers row hits starves others.

use std::collections::HashMap;

use proptest::prelude::*;
use terrace_core::Access;
use terrace_dram::{Accept, Channel, Checker, Clock, presets};

/// A request: how long after the one before, load or store, and where.
type Step = (u16, bool, u32);

fn steps() -> impl Strategy<Value = Vec<Step>> {
    // Few distinct places, so that banks, rows and lines collide.
    let place = prop_oneof![0u32..64, (0u32..8).prop_map(|r| r << 18), any::<u32>()];
    prop::collection::vec(
        (prop_oneof![Just(0u16), 0u16..40, 0u16..9000], any::<bool>(), place),
        1..600,
    )
}

fn check(name: &str, steps: &[Step]) -> Result<(), TestCaseError> {
    let file = presets::builtin(name).expect("built in");
    let mut channel = Channel::with_observer(&file, Checker::new(&file));
    let mut open = HashMap::new();
    let mut done = Vec::new();
    for (id, (gap, write, place)) in steps.iter().enumerate() {
        let access = if *write { Access::Write } else { Access::Read };
        // Half of the places lie in the second half, where the NVM is.
        let address = u64::from(*place) * 64 % file.channel_capacity().get();
        let address =
            if place % 2 == 1 { file.channel_capacity().get() - 64 - address } else { address };
        let mut at = channel.now() + Clock(u64::from(*gap));
        loop {
            match channel.offer(id as u64, access, address, at) {
                Accept::Queued => {
                    open.insert(id as u64, at);
                    break;
                }
                Accept::Full => {
                    prop_assert!(channel.advance_until_room(Clock::NEVER), "full, and stays so");
                    at = channel.now();
                }
                Accept::Forwarded(_) | Accept::Coalesced => break,
            }
        }
        done.extend(channel.completions());
    }
    channel.drain();
    done.extend(channel.completions());
    for completion in &done {
        let arrived = open.remove(&completion.id);
        prop_assert_eq!(arrived, Some(completion.arrived), "completed once, and only if accepted");
        prop_assert!(completion.at > completion.arrived);
    }
    prop_assert!(open.is_empty(), "never completed: {:?}", open);
    let broken = channel.observer().violations();
    prop_assert!(broken.is_empty(), "{name}: {} rules broken, first: {}", broken.len(), broken[0]);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases.div_ceil(6), ..ProptestConfig::default() })]

    #[test]
    fn every_accepted_request_completes_and_every_command_is_legal(steps in steps()) {
        for (name, _) in presets::BUILTIN {
            check(name, &steps)?;
        }
    }
}

#[test]
fn a_row_hit_stream_does_not_starve_another_row_of_its_bank() {
    let file = presets::builtin("ddr4-2400").expect("built in");
    let mut channel = Channel::new(&file);
    let row = |row, column| channel_address(&file, row, column);
    for column in 0..8 {
        channel.offer(u64::from(column), Access::Read, row(0, column), Clock(0));
    }
    channel.offer(999, Access::Read, row(1, 0), Clock(0));
    let (mut waited, mut next) = (None, 8u32);
    while waited.is_none() && next < 10_000 {
        if channel.has_room(Access::Read) {
            let now = channel.now();
            channel.offer(u64::from(next), Access::Read, row(0, next % 128), now);
            next += 1;
        } else {
            channel.advance_until_room(Clock::NEVER);
        }
        waited = channel.completions().find(|c| c.id == 999).map(|c| c.at);
    }

    let waited = waited.expect("starved").0;

    // Eight that came before and sixteen that may pass, each tCCD_L = 6, then tRTP and a
    // conflict of 52 cycles. Without the bound it would wait for ten thousand.
    assert!(waited <= 24 * 6 + 16 + 9 + 52, "waited {waited} cycles");
}

fn channel_address(file: &terrace_dram::MemoryFile, row: u32, column: u32) -> u64 {
    terrace_dram::address::Mapper::new(file).dram_address(0, row, column)
}
