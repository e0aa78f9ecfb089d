//! What a wrong memory file is told: file, line and field.

use proptest::prelude::*;
use terrace_core::MachineError;
use terrace_dram::{Channel, MemoryFile};

const GOOD: &str = include_str!("../../../machines/memory/kindle.toml");

fn refused(from: &str, to: &str) -> MachineError {
    assert!(GOOD.contains(from), "the file no longer has `{from}`");
    MemoryFile::parse("m.toml", &GOOD.replacen(from, to, 1)).expect_err("the change is an error")
}

#[test]
fn errors_name_the_line_and_the_field() {
    let line = |needle: &str| GOOD.lines().position(|l| l.contains(needle)).expect("in it") + 1;

    let unknown = refused("tRAS = ", "tRASS = ");
    let unit = refused("value = \"32ns\"", "value = \"32\"");
    let banks = refused("ranks = { value = 2", "ranks = { value = 8");

    assert_eq!(unknown.field.as_deref(), Some("dram.timing.tRASS"));
    assert_eq!(unknown.line, line("tRAS = "));
    assert_eq!(unit.field.as_deref(), Some("dram.timing.tRAS"));
    assert!(unit.message.contains("16nCK"), "shows what is expected: {unit}");
    let refresh = refused("tRCD = { value = \"14.16ns\"", "tRCD = { value = \"9us\"");

    assert_eq!(refresh.field.as_deref(), Some("dram.timing.tREFI"), "no row could be used");
    assert_eq!(banks.field.as_deref(), Some("dram.ranks"));
    assert!(banks.message.contains("64 banks"), "{banks}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases.div_ceil(2), ..ProptestConfig::default() })]

    #[test]
    fn no_number_makes_a_channel_hang_or_panic(line in 0usize..80, value in "[0-9]{1,6}(nCK|ns)?") {
        // Whatever number stands there: refused, or a memory that works.
        let text: Vec<String> = GOOD.lines().enumerate().map(|(i, l)| {
            match l.split_once("value = ") {
                Some((head, tail)) if i == line => {
                    let (_, rest) = tail.split_once(',').expect("a source follows");
                    let quoted = if tail.starts_with('"') { format!("\"{value}\"") } else { value.clone() };
                    format!("{head}value = {quoted},{rest}")
                }
                _ => l.to_owned(),
            }
        }).collect();
        if let Ok(file) = MemoryFile::parse("m.toml", &text.join("\n")) {
            let mut channel = Channel::new(&file);
            for id in 0..40u64 {
                let access = if id % 3 == 0 { terrace_core::Access::Write } else { terrace_core::Access::Read };
                let now = channel.now();
                channel.offer(id, access, id * 7919 * 64, now);
            }
            channel.drain();
            prop_assert!(channel.is_idle());
        }
    }
}
