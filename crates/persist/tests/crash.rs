//! Crashes everywhere: all schemes survive, and each seeded fault is found.

use terrace_persist::crash::random_program;
use terrace_persist::{Effort, Fault, Op, SchemeKind, explore, minimise};

/// Every kind of step, with pages that are unmapped, mapped anew and moved.
fn thorough() -> Vec<Op> {
    vec![
        Op::Map(0, 3),
        Op::Store(0, 10),
        Op::Store(1, 11),
        Op::Register(0, 3, 99),
        Op::Checkpoint,
        Op::Store(0, 20),
        Op::Unmap(0, 1),
        Op::Map(0, 1),
        Op::Store(0, 30),
        Op::Protect(1, 1, false),
        Op::Checkpoint,
        Op::Move(1, 1, 64),
        Op::File(2, 7),
        Op::Unmap(0, 1),
        Op::Checkpoint,
        // In DRAM, and unmapped, mapped anew for good, and moved.
        Op::MapDram(32, 3),
        Op::Store(32, 35),
        Op::Store(33, 36),
        Op::Map(32, 1),
        Op::Store(32, 37),
        Op::Move(33, 1, 80),
        Op::Map(16, 2),
        Op::Store(16, 40),
        Op::StoreLine(17, 1, 41),
        Op::StoreLine(17, 2, 42),
        Op::Checkpoint,
        Op::StoreLine(17, 1, 43),
        Op::Store(16, 44),
        Op::Checkpoint,
        Op::Store(2, 50),
        Op::StoreLine(2, 3, 51),
        Op::Store(16, 52),
        Op::Background,
        Op::StoreLine(17, 1, 53),
        Op::Store(2, 54),
        Op::Store(16, 55),
        Op::Background,
        Op::Register(1, 0, 5),
        Op::Checkpoint,
    ]
}

/// No crash of the program that has everything, nor one in the middle of the
/// recovery from one, leads anywhere but to a checkpoint.
fn survives(kind: SchemeKind) {
    let effort = Effort::EXHAUSTIVE;
    let (tried, finding) = explore(&thorough(), &|| kind.make_small(), None, effort);

    assert_eq!(finding.map(|f| f.to_string()), None, "{}", kind.name());
    assert!(tried.points > 15, "{}: only {} points", kind.name(), tried.points);
    assert!(tried.states > tried.points, "a point has several states");
    assert!(tried.second > 0, "recovery was never cut short");
}

#[test]
fn persistent_tables_survive_every_crash() {
    survives(SchemeKind::Persistent);
}

#[test]
fn the_published_list_survives_every_crash() {
    survives(SchemeKind::RebuildList);
}

#[test]
fn the_indexed_rebuild_survives_every_crash() {
    survives(SchemeKind::RebuildIndexed);
}

#[test]
fn ssp_survives_every_crash() {
    survives(SchemeKind::Ssp);
}

#[test]
fn softwrap_survives_every_crash() {
    survives(SchemeKind::SoftWrap);
}

#[test]
fn random_programs_survive_too() {
    let number = |name: &str| std::env::var(name).ok().and_then(|n| n.parse::<u64>().ok());
    let programs = number("CRASH_PROGRAMS").unwrap_or(6);
    let least = number("CRASH_POINTS").unwrap_or(programs * 30);
    let mut points = 0;
    for seed in 0..programs {
        for kind in SchemeKind::ALL {
            let program = random_program(25, seed);
            let effort = Effort { seed, ..Effort::SHORT };
            let (tried, finding) = explore(&program, &|| kind.make_small(), None, effort);
            points += tried.points;
            if let Some(finding) = finding {
                let least = minimise(finding, &|| kind.make_small(), None, effort);
                panic!("{}, seed {seed}:\n{least}", kind.name());
            }
        }
    }
    println!("{points} crash points of {programs} random programs under each scheme");
    assert!(points >= least, "too few points: {points}");
}

/// The schemes in which a fault can be made at all.
fn affected(fault: Fault) -> &'static [SchemeKind] {
    match fault {
        // Without tables in NVM there is no parent and no child.
        Fault::ParentBeforeChild => &[
            SchemeKind::Persistent,
            SchemeKind::RebuildIndexed,
            SchemeKind::Ssp,
            SchemeKind::SoftWrap,
        ],
        Fault::NoJournal => &[SchemeKind::Ssp],
        Fault::EarlyTruncation | Fault::UncommittedOverwrite => {
            &[SchemeKind::Ssp, SchemeKind::SoftWrap]
        }
        _ => &SchemeKind::ALL,
    }
}

/// A fault is found under every scheme in which it can be made, and what is
/// printed of it is short enough to be read.
fn is_found(fault: Fault) {
    for (i, kind) in affected(fault).iter().enumerate() {
        let (_, finding) =
            explore(&thorough(), &|| kind.make_small(), Some(fault), Effort::EXHAUSTIVE);

        let finding = finding.unwrap_or_else(|| panic!("{fault} under {} survived", kind.name()));
        if i > 0 {
            continue;
        }
        let least = minimise(finding, &|| kind.make_small(), Some(fault), Effort::SHORT);
        println!("{fault} under {}:\n{least}\n", kind.name());
        assert!(least.program.len() <= 12, "{fault} under {}: long schedule\n{least}", kind.name());
    }
}

#[test]
fn an_entry_that_is_durable_before_its_child_is_zeroed_is_found() {
    is_found(Fault::ParentBeforeChild);
}

#[test]
fn a_stale_mapping_after_unmapping_and_mapping_anew_is_found() {
    is_found(Fault::StaleMapping);
}

#[test]
fn a_flush_of_the_wrong_address_is_found() {
    is_found(Fault::WrongFlush);
    is_found(Fault::WrongDataFlush);
}

#[test]
fn a_bitmap_that_is_never_written_back_is_found() {
    is_found(Fault::BitmapNotPersisted);
}

#[test]
fn bitmaps_of_data_that_are_committed_one_by_one_are_found() {
    is_found(Fault::NoJournal);
}

#[test]
fn a_log_that_is_declared_done_too_early_is_found() {
    is_found(Fault::EarlyTruncation);
}

/// The longest of these tests. Its name has it begin before the others, and so not end alone.
#[test]
fn an_overwrite_of_committed_data_by_uncommitted_ones_is_found() {
    is_found(Fault::UncommittedOverwrite);
}

#[test]
fn programs_print_as_they_are_read() {
    for op in thorough().into_iter().chain(random_program(200, 5)) {
        assert_eq!(Op::parse(&op.to_string()), Some(op));
    }
    for text in [
        "",
        "map",
        "map 1",
        "map 1 0",
        "map 1 1 dram dram 2",
        "map 1 99999999",
        "store x 1",
        "checkpoint now 1",
        "file 16 1",
    ] {
        assert_eq!(Op::parse(text), None, "`{text}` was accepted");
    }
}
