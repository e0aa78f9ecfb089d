//! The judge must catch what a scheduler could do wrong: each legal stream of
//! commands, with one change, is illegal. If the judge missed one of these, the
//! property test in `live.rs` would prove less than it says.

use terrace_core::Access;
use terrace_dram::{
    Accept, Channel, Checker, Clock, Command, CommandKind, MemoryFile, Observer, presets,
};

fn memory(name: &str) -> MemoryFile {
    presets::builtin(name).expect("built in")
}

/// A legal stream of commands with conflicts, hits, both directions and refreshes.
fn legal(file: &MemoryFile) -> Vec<Command> {
    let mut channel = Channel::with_observer(file, Vec::new());
    for id in 0..4000u64 {
        let x = (id + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let address = if id % 3 == 0 { id * 64 } else { (x >> 20) % (1 << 31) / 64 * 64 };
        let access = if x % 4 == 0 { Access::Write } else { Access::Read };
        loop {
            let now = channel.now();
            if channel.offer(id, access, address, now) != Accept::Full {
                break;
            }
            channel.advance_until_room(Clock::NEVER);
        }
    }
    channel.drain();
    channel.observer().clone()
}

fn judge(file: &MemoryFile, commands: &[Command]) -> Vec<&'static str> {
    let mut checker = Checker::new(file);
    for command in commands {
        checker.command(*command);
    }
    checker.violations().iter().map(|v| v.rule).collect()
}

#[test]
fn what_the_scheduler_sends_is_legal_and_contains_every_kind() {
    for (name, _) in presets::BUILTIN {
        let file = memory(name);

        let commands = legal(&file);

        assert_eq!(judge(&file, &commands), Vec::<&str>::new(), "{name}");
    }
    let kinds: Vec<_> = legal(&memory("ddr4-2400")).iter().map(|c| c.kind).collect();
    for kind in [
        CommandKind::Activate,
        CommandKind::Precharge,
        CommandKind::PrechargeAll,
        CommandKind::Read,
        CommandKind::Write,
        CommandKind::Refresh,
    ] {
        assert!(kinds.contains(&kind), "no {kind:?} in the stream: it would prove nothing");
    }
}

/// Moves everything before a command later by some cycles, so that exactly the
/// distances to that command shrink; returns the rules it then breaks. What is
/// wrong with rows that were opened before the excerpt is of no interest here.
fn pulled(file: &MemoryFile, commands: &[Command], index: usize, by: u64) -> Vec<&'static str> {
    let mut stream = commands[index - 40..=index].to_vec();
    for command in &mut stream[..40] {
        command.at += by;
    }
    judge(file, &stream)
}

#[test]
fn every_timing_rule_is_enforced_to_the_cycle() {
    let mut found = std::collections::BTreeSet::new();
    for name in ["ddr4-2400", "ddr5-4800", "kindle-dram", "hbm2"] {
        let file = memory(name);
        let commands = legal(&file);
        for index in 40..commands.len() {
            found.extend(pulled(&file, &commands, index, 1));
        }
    }

    // A saturated channel sends as early as the rules allow, so that one cycle
    // less breaks each of them somewhere.
    for rule in [
        "tRCD",
        "tRP",
        "tRAS",
        "tRRD_S",
        "tRRD_L",
        "tFAW",
        "tWTR_S",
        "tWTR_L",
        "tRTP",
        "tWR",
        "tCCD_S",
        "tCCD_L",
        "tRFC",
        "data bus",
        "command bus",
    ] {
        assert!(
            found.contains(rule),
            "{rule} was never at its limit, or is not checked: {found:?}"
        );
    }
}

#[test]
fn commands_to_banks_in_the_wrong_state_are_caught() {
    let commands = legal(&memory("ddr4-2400"));
    let position = |kind| commands.iter().position(|c| c.kind == kind).expect("in the stream");
    let without = |index: usize| {
        let mut stream = commands.clone();
        stream.remove(index);
        judge(&memory("ddr4-2400"), &stream)
    };

    let no_activate = without(position(CommandKind::Activate));
    let no_precharge = without(position(CommandKind::Precharge));
    let no_close = without(position(CommandKind::PrechargeAll));

    assert!(no_activate.contains(&"column command needs its row open"), "{no_activate:?}");
    assert!(no_precharge.contains(&"activate needs a closed bank"), "{no_precharge:?}");
    assert!(no_close.contains(&"refresh needs closed banks"), "{no_close:?}");
}

#[test]
fn refreshes_that_stop_coming_are_noticed() {
    let file = presets::builtin("ddr4-2400").expect("built in");
    let mut channel = Channel::with_observer(&file, Checker::new(&file)).without_refresh();
    // The judge looks when the next refresh comes; without one, nothing is late yet.
    channel.offer(0, Access::Read, 0, Clock(0));
    channel.drain();
    let mut checker = Checker::new(&file);
    let refresh = |at| Command {
        at,
        kind: CommandKind::Refresh,
        rank: 0,
        group: 0,
        bank: 0,
        row: 0,
        request: u64::MAX,
    };

    checker.command(refresh(9364));
    checker.command(refresh(9364 * 11));

    assert_eq!(
        checker.violations().iter().map(|v| v.rule).collect::<Vec<_>>(),
        ["refresh too late"]
    );
}
