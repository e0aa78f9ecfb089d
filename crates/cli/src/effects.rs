//! Options that would do nothing are refused, by name.
//!
//! Some verbs do one thing or another, by what they are given: `sim` simulates
//! updates at full scale, or single accesses of a trace, an algorithm or a program,
//! the latter also under a persistence scheme. Each such verb says here which
//! of its options have an effect when. A test holds this against the command
//! line's own definitions, so that a new option has to be entered.

use clap::ArgMatches;
use clap::parser::ValueSource;

use crate::failure::Failure;

/// Whether an option was given, rather than taken from its default.
fn given(matches: &ArgMatches, id: &str) -> bool {
    // Not every verb has every option that a mode asks for.
    matches.try_contains_id(id).unwrap_or(false)
        && matches.value_source(id) == Some(ValueSource::CommandLine)
}

/// When something is done: its name in messages, and how it is recognised.
struct Mode {
    what: &'static str,
    applies: fn(&ArgMatches) -> bool,
}

/// Single accesses come from a trace, an algorithm or a program.
const SCALED: Mode = Mode {
    what: "without a trace, an algorithm or a program",
    applies: |m| !single(m) && !given(m, "survival"),
};
const TRACE: Mode = Mode { what: "with --trace", applies: |m| given(m, "trace") };
const ALGORITHM: Mode = Mode { what: "with --algorithm", applies: |m| given(m, "algorithm") };
const PROGRAM: Mode = Mode { what: "with a program", applies: |m| given(m, "program") };
const PERSIST: Mode = Mode { what: "with --persist", applies: |m| given(m, "survival") };
const UNSAVED: Mode = Mode {
    what: "with --persist none",
    applies: |m| persisted(m).is_some_and(|scheme| scheme == "none"),
};
const NOT_SSP: Mode = Mode {
    what: "with another scheme than ssp",
    applies: |m| persisted(m).is_none_or(|scheme| scheme != "ssp"),
};
const FULL: Mode = Mode {
    what: "with a trace, an algorithm or a program (--set gives an algorithm its parameters)",
    applies: |m| single(m) && !given(m, "survival"),
};
const UNPRICED: Mode = Mode { what: "without --price", applies: |m| !given(m, "price") };
const FILE: Mode = Mode { what: "with a file", applies: |m| !is_address(m) };
const ADDRESS: Mode = Mode { what: "with an address", applies: is_address };

fn single(matches: &ArgMatches) -> bool {
    ["trace", "algorithm", "program"].iter().any(|id| given(matches, id))
}

/// The scheme as it was written.
fn persisted(matches: &ArgMatches) -> Option<String> {
    let mut raw = matches.try_get_raw("survival").ok().flatten()?;
    raw.next().map(|text| text.to_string_lossy().into_owned())
}

/// Whether `why` is asked about an address.
fn is_address(matches: &ArgMatches) -> bool {
    let target = matches.get_raw("target").and_then(|mut raw| raw.next());
    target.is_some_and(|text| text.to_string_lossy().starts_with("0x"))
}

/// Options, and the modes in which they do nothing.
type Row = (&'static [&'static str], &'static [&'static Mode]);

/// Options of `sim` and `plan` about what is simulated.
const INPUT: &[Row] = &[
    (&["trace", "algorithm", "program", "skip"], &[&SCALED]),
    (&["format", "partial"], &[&SCALED, &ALGORITHM, &PROGRAM]),
    (&["size", "accesses", "set"], &[&SCALED, &TRACE, &PROGRAM]),
    (&["via"], &[&SCALED, &TRACE, &ALGORITHM]),
    (&["cores"], &[&SCALED, &PERSIST]),
    (&["sample_period"], &[&SCALED, &PERSIST]),
];

const SIM: &[Row] = &[
    (&["survival"], &[]),
    (&["policy", "machine", "economist", "page_size"], &[&PERSIST]),
    (&["workload", "hot", "working_set", "hot_percent", "threads", "shift_at"], &[&FULL, &PERSIST]),
    (&["warm_up", "duration", "runs", "scale"], &[&FULL, &PERSIST]),
    (&["seed"], &[]),
    (&["fast", "html"], &[&SCALED, &PERSIST]),
    (&["record"], &[&FULL, &PERSIST]),
    (&["memory", "fold"], &[&SCALED, &FULL]),
    (&["interval", "background"], &[&SCALED, &FULL, &UNSAVED]),
    (&["ssp_flush"], &[&SCALED, &FULL, &NOT_SSP]),
];

const PLAN: &[Row] = &[
    (&["machine", "tier", "slowdown", "policies", "points", "price"], &[]),
    (&["page_size", "seed", "html"], &[]),
    (&["budget"], &[&UNPRICED]),
];

const WHY: &[Row] = &[
    (&["target", "op", "class", "last", "process"], &[]),
    (&["of", "patience"], &[&FILE]),
    (&["page", "partial"], &[&ADDRESS]),
];

/// Options of the verbs that do one thing or another.
const VERBS: &[(&str, &[&[Row]])] =
    &[("sim", &[INPUT, SIM]), ("plan", &[INPUT, PLAN]), ("why", &[WHY])];

/// Refuses an option that would do nothing.
pub(crate) fn check(matches: &ArgMatches) -> Result<(), Failure> {
    let Some((verb, matches)) = matches.subcommand() else { return Ok(()) };
    let Some((_, tables)) = VERBS.iter().find(|(name, _)| *name == verb) else { return Ok(()) };
    for (ids, modes) in tables.iter().copied().flatten() {
        let Some(id) = ids.iter().find(|id| given(matches, id)) else { continue };
        if let Some(mode) = modes.iter().find(|mode| (mode.applies)(matches)) {
            let option = option(id);
            return Err(Failure::bad_input(format!("{option}: has no effect {}", mode.what)));
        }
    }
    Ok(())
}

/// An option as it is written.
fn option(id: &str) -> String {
    match id {
        "survival" => "--persist".to_owned(),
        "program" => "PROGRAM".to_owned(),
        "patience" => "--for".to_owned(),
        id => format!("--{}", id.replace('_', "-")),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::args::Cli;

    /// A new option of these verbs has to be entered: when does it do something?
    #[test]
    fn every_option_of_these_verbs_is_entered_once() {
        let command = Cli::command();
        for (verb, tables) in VERBS {
            let verb = command.find_subcommand(verb).expect("it is a verb");
            let mut entered: Vec<&str> =
                tables.iter().copied().flatten().flat_map(|(ids, _)| *ids).copied().collect();
            entered.sort_unstable();
            let mut all: Vec<&str> = verb
                .get_arguments()
                .map(|argument| argument.get_id().as_str())
                .filter(|id| !["help", "version", "json"].contains(id))
                .collect();
            all.sort_unstable();
            assert_eq!(entered, all, "{}", verb.get_name());
        }
    }

    fn said(words: &str) -> String {
        let matches = Cli::command().try_get_matches_from(words.split(' ')).expect("understood");
        check(&matches).err().map(Failure::message).unwrap_or_default()
    }

    /// Each option in each mode in which it does nothing, and in one where it does.
    #[test]
    fn options_are_refused_where_they_do_nothing_and_only_there() {
        for (words, option) in [
            ("terrace sim --trace t --hot 1GiB", "--hot"),
            ("terrace sim --trace t --threads 2", "--threads"),
            ("terrace sim --trace t --working-set 1GiB", "--working-set"),
            ("terrace sim --trace t --duration 1s", "--duration"),
            ("terrace sim --trace t --scale 2", "--scale"),
            ("terrace sim --trace t --hot-percent 50", "--hot-percent"),
            ("terrace sim --trace t --size 1GiB", "--size"),
            ("terrace sim --trace t --via qemu", "--via"),
            ("terrace sim --algorithm gups --hot 1GiB", "--hot"),
            ("terrace sim --persist ssp --algorithm bfs --cores 8", "--cores"),
            ("terrace sim --algorithm bfs --format lackey", "--format"),
            ("terrace sim --skip 5", "--skip"),
            ("terrace sim --cores 5", "--cores"),
            ("terrace sim --interval 5ms", "--interval"),
            ("terrace sim --html f", "--html"),
            ("terrace sim --persist ssp --trace t --policy hemem", "--policy"),
            ("terrace sim --persist ssp --trace t --fast 1GiB", "--fast"),
            ("terrace sim --persist none --trace t --interval 1s", "--interval"),
            ("terrace sim --trace t --memory kindle", "--memory"),
            ("terrace plan --trace t --accesses 5", "--accesses"),
            ("terrace plan --trace t --budget 5", "--budget"),
            ("terrace why FILE --of nosuch", "--of"),
            ("terrace why FILE --for 1s", "--for"),
            ("terrace why 0x1000 --page 1:2", "--page"),
        ] {
            let said = said(words);
            assert!(said.starts_with(&format!("{option}: has no effect ")), "{words}: {said}");
        }
        for words in [
            "terrace sim --hot 1GiB --threads 2 --duration 1s --scale 2 --record f",
            "terrace sim --trace t --format lackey --cores 2 --skip 5 --fast 1GiB --html f --seed 2",
            "terrace sim --algorithm gups --size 1GiB --accesses 5 --set hot=1MiB --cores 8",
            "terrace sim --via lackey -- prog",
            "terrace sim --persist ssp --ssp-flush updated --interval 1s --fold --trace t",
            "terrace sim --persist none --trace t",
            "terrace plan --algorithm gups --price dram=1,cxl=1 --budget 5 --size 1MiB",
            "terrace why FILE --partial --page 1:2",
            "terrace why 0x1000 --of prog --for 1s --last 3",
        ] {
            assert_eq!(said(words), "", "{words}");
        }
    }
}
