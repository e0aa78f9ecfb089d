//! What a wrong machine file is told. A person who mistypes a parameter must
//! learn the file, the line and the field; a parameter that was silently
//! replaced by a default would give results that look right.

use proptest::prelude::*;
use terrace_core::units::{Bytes, BytesPerSecond};
use terrace_core::{Machine, MachineError};

const GOOD: &str = include_str!("../../../machines/optane-cascade-lake.toml");

const FOUR_NODES: &str = include_str!("../../../machines/four-node.toml");

fn line_of(text: &str, needle: &str) -> usize {
    text.lines().position(|l| l.contains(needle)).expect("the needle is in the file") + 1
}

/// Parses the good file with one change, which must be refused.
fn refused(from: &str, to: &str) -> MachineError {
    assert!(GOOD.contains(from), "the file no longer has `{from}`");
    Machine::parse("m.toml", &GOOD.replacen(from, to, 1)).expect_err("the change is an error")
}

#[test]
fn every_machine_file_of_the_repository_is_accepted() {
    let texts = [
        GOOD,
        include_str!("../../../machines/cxl.toml"),
        include_str!("../../../machines/laptop.toml"),
        FOUR_NODES,
    ];
    for text in texts {
        let machine = Machine::parse("m.toml", text).expect("accepted");
        assert!(text.contains(&format!("name = \"{}\"", machine.name)));
        assert!(machine.tiers.iter().all(|t| !t.capacity.source.is_empty()));
    }
}

#[test]
fn values_are_read_in_their_units() {
    let machine = Machine::parse("m.toml", GOOD).expect("accepted");
    assert_eq!(machine.cpu.cores.value, 24);
    assert_eq!(machine.tiers[0].capacity.value, Bytes::gib(192));
    assert_eq!(machine.tiers[1].capacity.value, Bytes(768_000_000_000));
    assert_eq!(machine.tiers[1].write_bandwidth.value, BytesPerSecond(13.9e9));
    assert_eq!(machine.tiers[1].combined_bandwidth, None);
}

#[test]
fn an_unknown_key_is_named_with_its_line() {
    let error = refused("load-knee = { value = 0.75", "load-kne = { value = 0.75");
    assert_eq!(error.line, line_of(GOOD, "load-knee = { value = 0.75"));
    assert_eq!(error.field.as_deref(), Some("tier[0].load-kne"));
    assert!(error.to_string().starts_with(&format!("m.toml:{}: ", error.line)), "{error}");
    assert!(error.message.contains("load-kne"), "{error}");
}

#[test]
fn an_unknown_key_beside_value_and_source_is_refused() {
    let error = refused("{ value = 24, source", "{ value = 24, sauce = \"x\", source");
    assert_eq!(error.field.as_deref(), Some("cpu.cores"));
    assert!(error.message.contains("sauce"), "{error}");
}

#[test]
fn a_wrong_unit_is_refused_and_an_example_given() {
    let error = refused("value = \"305ns\"", "value = \"305GB\"");
    assert_eq!(error.line, line_of(GOOD, "305ns"));
    assert_eq!(error.field.as_deref(), Some("tier[1].read-latency"));
    assert!(error.message.contains("GB") && error.message.contains("10ms"), "{error}");
}

#[test]
fn a_bare_number_where_a_unit_belongs_is_refused() {
    let error = refused("value = \"192GiB\"", "value = 192");
    assert_eq!(error.field.as_deref(), Some("tier[0].capacity"));
    assert!(error.message.contains("192GiB"), "{error}");
}

#[test]
fn a_number_without_a_source_is_refused() {
    let error = refused(", source = \"HeMem, section 3\" }", " }");
    assert_eq!(error.line, line_of(GOOD, "clock = "));
    assert_eq!(error.field.as_deref(), Some("cpu.clock"));
    assert!(error.message.contains("source"), "{error}");
    let error = refused("source = \"HeMem, section 3\"", "source = \" \"");
    assert!(error.message.contains("where the number comes from"), "{error}");
}

#[test]
fn values_that_make_no_machine_are_refused_at_their_line() {
    let cases = [
        ("value = \"768GB\"", "value = \"0\"", "tier[1].capacity"),
        ("value = \"39.4GB/s\"", "value = \"0\"", "tier[1].read-bandwidth"),
        ("value = 0.5, source", "value = 1.0, source", "tier[1].load-knee"),
        ("value = 24, source", "value = 0, source", "cpu.cores"),
        ("value = 24, source", "value = 100000, source", "cpu.cores"),
        ("value = \"305ns\"", "value = \"0ns\"", "tier[1].read-latency"),
        ("value = 12, source", "value = 0.5, source", "cpu.miss-slots"),
        ("name = \"optane\"", "name = \"dram\"", "tier[1].name"),
        ("schema = 1", "schema = 2", "schema"),
        ("value = \"5GB/s\"", "value = \"0\"", "costs.copy-bandwidth"),
    ];
    for (from, to, field) in cases {
        let error = refused(from, to);
        assert_eq!(error.field.as_deref(), Some(field), "{error}");
        assert_eq!(error.line, line_of(GOOD, from), "{error}");
    }
}

/// A link whose directions together are slower than one of them alone is none, and neither is one
/// that is faster than both.
#[test]
fn a_combined_bandwidth_lies_between_one_direction_and_both() {
    const LINK: &str = include_str!("../../../machines/cxl.toml");
    let from = "combined-bandwidth = { value = \"27.2GB/s\"";
    assert!(LINK.contains(from));
    for (value, what) in [("17.7GB/s", "less than"), ("40GB/s", "more than"), ("0", "less than")] {
        let to = format!("combined-bandwidth = {{ value = \"{value}\"");
        let error = Machine::parse("m.toml", &LINK.replacen(from, &to, 1)).expect_err("refused");
        assert_eq!(error.field.as_deref(), Some("tier[1].combined-bandwidth"), "{error}");
        assert_eq!(error.line, line_of(LINK, from), "{error}");
        assert!(error.message.contains(what), "{error}");
    }
    for value in ["17.8GB/s", "35.6GB/s"] {
        let to = format!("combined-bandwidth = {{ value = \"{value}\"");
        Machine::parse("m.toml", &LINK.replacen(from, &to, 1)).expect("accepted");
    }
}

#[test]
fn a_compressed_tier_has_no_memory_file() {
    let capacity = "capacity = { value = \"768GB\"";
    let from = format!("kind = \"byte-addressable\"\n{capacity}");
    let to = format!("kind = \"compressed\"\nmemory-file = \"optane\"\n{capacity}");
    let error = refused(&from, &to);
    assert_eq!(error.field.as_deref(), Some("tier[1].memory-file"), "{error}");
    assert_eq!(error.line, line_of(GOOD, capacity), "{error}");
}

#[test]
fn a_fractional_number_of_cores_is_refused() {
    let error = refused("value = 24, source", "value = 24.5, source");
    assert_eq!(error.field.as_deref(), Some("cpu.cores"));
    assert!(error.message.contains("whole number"), "{error}");
}

#[test]
fn a_missing_field_is_named() {
    let line = GOOD.lines().find(|l| l.starts_with("copy-bandwidth")).expect("it is there");
    let error = refused(line, "");
    assert!(error.message.contains("copy-bandwidth"), "{error}");
    assert!(error.line >= line_of(GOOD, "[costs]"), "{error}");
}

#[test]
fn one_tier_is_not_a_machine_of_ours() {
    let start = GOOD.rfind("[[tier]]").expect("a second tier");
    let end = GOOD.find("[costs]").expect("costs");
    let text = format!("{}{}", &GOOD[..start], &GOOD[end..]);
    let error = Machine::parse("m.toml", &text).expect_err("refused");
    assert_eq!(error.field.as_deref(), Some("tier"));
    assert!(error.message.contains("two to eight"), "{error}");
}

/// Whether only the last table of the file is missing, and all of it.
fn is_whole_without_detail(text: &str) -> bool {
    let whole = GOOD.find("[detail]").expect("its last table");
    text.trim_end() == GOOD[..whole].trim_end()
}

#[test]
fn a_file_that_ends_before_its_detail_is_a_machine_without() {
    let end = GOOD.find("[detail]").expect("its last table");
    let whole = GOOD[..end].trim_end();
    for text in [whole, &GOOD[..=whole.len()], &GOOD[..end]] {
        assert!(is_whole_without_detail(text));
        assert_eq!(Machine::parse("m.toml", text).expect("a machine").detail, None);
    }
}

proptest! {
    /// A half-written file must be an error that points into the file, never a
    /// machine with defaults and never a panic. Cut off right before its last
    /// table, the optional `[detail]`, it is a whole file of a machine without.
    #[test]
    fn a_truncated_file_is_an_error_within_the_file(cut in 0..GOOD.len() - 3) {
        prop_assume!(GOOD.is_char_boundary(cut));
        prop_assume!(!is_whole_without_detail(&GOOD[..cut]));
        let text = &GOOD[..cut];
        let error = Machine::parse("m.toml", text).expect_err("refused");
        prop_assert!(error.line >= 1 && error.line <= text.lines().count() + 1);
        prop_assert!(!error.message.is_empty());
    }

    /// Whatever bytes a file holds, parsing ends in a value or an error.
    #[test]
    fn arbitrary_text_never_panics(text in "\\PC{0,200}") {
        let _ = Machine::parse("m.toml", &text);
    }

    /// One damaged character is either harmless (in a comment, a source, a
    /// digit) or refused; it never panics.
    #[test]
    fn a_damaged_character_never_panics(at in 0..GOOD.len(), with in "[a-z0-9=\\[\\]{}\"#. ]") {
        prop_assume!(GOOD.is_char_boundary(at) && GOOD.is_char_boundary(at + 1));
        let text = format!("{}{}{}", &GOOD[..at], with, &GOOD[at + 1..]);
        let _ = Machine::parse("m.toml", &text);
    }
}

#[test]
fn nodes_and_power_that_cannot_be_are_refused_by_field_and_line() {
    for (from, to, field) in [
        ("value = \"128MiB\"", "value = \"100MiB\"", "numa.block"),
        ("far-distance = { value = 21", "far-distance = { value = 10", "numa.far-distance"),
        ("nodes = { value = 4", "nodes = { value = 1", "numa.nodes"),
        (
            "page-descriptor = { value = \"64B\"",
            "page-descriptor = { value = \"0B\"",
            "numa.page-descriptor",
        ),
        ("module-idle = { value = 3.5", "module-idle = { value = 35", "power.module-idle"),
        ("rest = { value = 200", "rest = { value = -1", "power.rest"),
    ] {
        assert!(FOUR_NODES.contains(from), "the file no longer has `{from}`");
        let text = FOUR_NODES.replacen(from, to, 1);
        let error = Machine::parse("m.toml", &text).expect_err(field);
        assert_eq!(error.field.as_deref(), Some(field), "{error}");
        assert_eq!(error.line, line_of(&text, to), "{error}");
    }
    let two_tiers = GOOD.to_owned() + FOUR_NODES.split_once("[numa]").expect("it is there").1;
    let error = Machine::parse(
        "m.toml",
        &two_tiers.replacen("nodes = { value = 4", "[numa]\nnodes = { value = 4", 1),
    );
    assert!(error.expect_err("two tiers").message.contains("four tiers"));
}
