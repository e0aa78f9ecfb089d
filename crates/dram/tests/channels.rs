//! DRAM and non-volatile memory on one channel, and on two.

use terrace_core::Access;
use terrace_dram::{Memory, MemoryFile, Picos, presets};

fn kindle(name: &str) -> MemoryFile {
    presets::builtin(name).expect("built in")
}

/// Time to serve reads of both kinds in turn, all submitted as fast as they are
/// taken; or of one kind alone.
fn time(file: &MemoryFile, kinds: &[u64]) -> Picos {
    const LINES: u64 = 4096;
    let mut memory = Memory::new(file);
    let (mut now, mut last) = (Picos::ZERO, Picos::ZERO);
    for line in 0..LINES {
        for begin in kinds {
            now = memory.submit(Access::Read, begin + line * 64, now).released;
        }
    }
    for (_, done) in memory.drain() {
        last = last.max(done);
    }
    last
}

/// Two channels that were one in disguise would take the sum of both times; and
/// a channel of its own that changed what a memory alone does would be another
/// memory.
#[test]
fn kinds_with_channels_of_their_own_do_not_wait_for_each_other() {
    let (shared, apart) = (kindle("kindle"), kindle("kindle-two-channels"));
    let nvm = shared.dram.as_ref().expect("DRAM").capacity().get();
    for kind in [0, nvm] {
        assert_eq!(time(&shared, &[kind]), time(&apart, &[kind]), "alone, from {kind:#x}");
    }

    let both = [time(&shared, &[0, nvm]), time(&apart, &[0, nvm])];

    let [one, other] = [time(&shared, &[0]), time(&shared, &[nvm])];
    assert!(both[1] < one.max(other) + Picos(one.min(other).0 / 4), "{both:?} {one:?} {other:?}");
    assert!(both[0] >= both[1] + Picos(one.min(other).0 / 2), "{both:?} {one:?} {other:?}");
}

#[test]
fn every_address_of_memory_apart_has_a_place_of_its_own() {
    let mut file = kindle("kindle-two-channels");
    file.channel.channels.value = 2;
    let memory = Memory::new(&file);
    let half = memory.capacity().get() / 2;
    assert_eq!(memory.channels().len(), 4);
    assert_eq!(half * 2, file.channel_capacity().get() * 2);

    // The first and the last line of each kind on each channel, all served.
    let nvm = file.dram.as_ref().expect("DRAM").capacity().get() * 2;
    let mut memory = Memory::new(&file);
    for address in [0, 64, nvm - 128, nvm - 64, nvm, nvm + 64, 2 * half - 128, 2 * half - 64] {
        memory.submit(Access::Read, address, Picos::ZERO);
    }
    assert_eq!(memory.drain().len(), 8);
    for (i, channel) in memory.stats().channels.iter().enumerate() {
        assert_eq!(channel.reads, 2, "channel {i}");
    }
}

#[test]
fn channels_apart_need_two_kinds_of_memory() {
    let text = include_str!("../../../machines/memory/kindle-two-channels.toml");
    let (begin, _) = text.split_once("[nvm]").expect("it has one");
    let error = MemoryFile::parse("m.toml", begin).expect_err("nothing is apart");
    assert_eq!(error.field.as_deref(), Some("channel.nvm-apart"), "{error}");
    let two = text.replace("nvm-apart = { value = 1", "nvm-apart = { value = 2");
    let error = MemoryFile::parse("m.toml", &two).expect_err("a number of what?");
    assert!(error.message.contains("0 or 1"), "{error}");
}
