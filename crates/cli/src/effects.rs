//! Options that would do nothing are refused, by name.
//!
//! Some verbs do one thing or another, by what they are given: `sim` simulates
//! updates at full scale, or single accesses of a trace, an algorithm or a program,
//! the latter also under a persistence scheme. Each such verb says here which
//! of its options have an effect when. A test holds this against the command
//! line's own definitions, so that a new option has to be entered. The test `options` tries every
//! option of every verb.

use std::collections::HashSet;
use std::io::{self, IsTerminal};
use std::path::PathBuf;

use clap::parser::ValueSource;
use clap::{ArgAction, ArgMatches, Command};
use terrace_core::LadderFile;
use terrace_kloc::policy::Strategy;
use terrace_policy::PolicyName;
use terrace_sim::SimPolicy;

use crate::failure::Failure;
use crate::kernel::joined::Joined;

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
    applies: |m| !single(m) && !given(m, "survival") && !given(m, "shape"),
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
    applies: |m| single(m) && !given(m, "survival") && !given(m, "kernel"),
};
const PLAYED: Mode = Mode { what: "with --kernel", applies: |m| given(m, "kernel") };
const SHAPED: Mode = Mode { what: "with --shape", applies: |m| given(m, "shape") };
const UNPRICED: Mode = Mode { what: "without --price", applies: |m| !given(m, "price") };
const UNSAMPLED: Mode = Mode {
    what: "with a policy that needs no samples (--policy)",
    applies: |m| policy(m).is_some_and(|policy| !policy.takes_samples()),
};
const UNDECIDED: Mode = Mode {
    what: "where no policy decides anything (--policy)",
    applies: |m| policy(m).is_some_and(SimPolicy::decides_nothing),
};
const UNDECIDED_IN_KERNEL: Mode = Mode {
    what: "with a strategy that only places pages (--kernel)",
    applies: |m| strategy(m).is_some_and(Strategy::decides_nothing),
};
/// This policy moves nothing; where it puts new memory, the economist is asked.
const UNASKED: Mode = Mode {
    what: "with --policy first-touch and --economist off: nothing is decided that could be recorded",
    applies: |m| {
        let off = Some(&terrace_economics::Mode::Off);
        policy(m) == Some(SimPolicy::Policy(PolicyName::FirstTouch))
            && m.try_get_one::<terrace_economics::Mode>("economist").ok().flatten() == off
    },
};
const ONE_MEMORY: Mode = Mode {
    what: "where everything lies in one memory (--policy)",
    applies: |m| policy(m).is_some_and(SimPolicy::is_one_memory),
};
const PROGRAM_FILE: Mode = Mode { what: "with a file", applies: |m| given(m, "file") };
const ONE_LOOK: Mode = Mode {
    what: "where one look is printed: without --watch, and not on a terminal",
    applies: |m| !watches(m),
};
const ONE_REPORT: Mode = Mode {
    what: "where one report is printed: without --watch and --json, and not on a terminal",
    applies: |m| !watches(m) && !m.get_flag("json"),
};
const ONLY_SSP: Mode = Mode { what: "with --only ssp", applies: |m| is_only(m, "ssp") };
const ONLY_HSCC: Mode = Mode { what: "with --only hscc", applies: |m| is_only(m, "hscc") };
const ONLY_BEYOND: Mode = Mode { what: "with --only beyond", applies: |m| is_only(m, "beyond") };
const ONLY_PERSISTENCE: Mode =
    Mode { what: "with --only persistence", applies: |m| is_only(m, "persistence") };
const FILE: Mode =
    Mode { what: "with a file", applies: |m| !is_address(m) && !given(m, "division") };
const NO_ADDRESS: Mode = Mode { what: "without an address", applies: |m| !is_address(m) };
const KERNEL: Mode = Mode { what: "with --engine kernel", applies: by_kernel };
const LISTS: Mode = Mode {
    what: "with --engine kernel and no --policy",
    applies: |m| by_kernel(m) && !given(m, "policy"),
};
const JOINED: Mode = Mode {
    what: "with --engine kernel and --join of another run of it: the run that is joined decides",
    applies: |m| by_kernel(m) && joins_kernels_run(m),
};
const ADDRESS: Mode = Mode { what: "with an address", applies: is_address };
const GROUP: Mode = Mode { what: "with --cgroup", applies: |m| given(m, "cgroup") };

fn single(matches: &ArgMatches) -> bool {
    ["trace", "algorithm", "program"].iter().any(|id| given(matches, id))
}

/// The scheme as it was written.
fn persisted(matches: &ArgMatches) -> Option<String> {
    let mut raw = matches.try_get_raw("survival").ok().flatten()?;
    raw.next().map(|text| text.to_string_lossy().into_owned())
}

/// Whether the kernel is to serve a run's faults.
fn by_kernel(matches: &ArgMatches) -> bool {
    let engine = matches.try_get_raw("engine").ok().flatten().and_then(|mut raw| raw.next());
    engine.is_some_and(|engine| engine == "kernel") || by_kernels_ladder(matches)
}

/// Whether a ladder file says so. What is wrong with it is said later.
fn by_kernels_ladder(matches: &ArgMatches) -> bool {
    let tiers = matches.try_get_one::<PathBuf>("tiers").ok().flatten();
    tiers.is_some_and(|tiers| {
        let read = crate::attach::read_ladder(tiers).ok();
        let ladder = read.and_then(|(name, text)| LadderFile::parse(&name, &text).ok());
        matches!(ladder, Some(LadderFile::ByKernel(_)))
    })
}

/// Whether a run of the kernel's engine is joined, whose control group and choices are shared. One that joins
/// a broker, or a run that has a pager, keeps its own share. That there is no such run is said later.
fn joins_kernels_run(matches: &ArgMatches) -> bool {
    let join = matches.try_get_one::<String>("join").ok().flatten();
    join.is_some_and(|join| matches!(Joined::find(join), Ok(Some(_))))
}

/// What decides where pages lie in a simulation.
fn policy(matches: &ArgMatches) -> Option<SimPolicy> {
    matches.try_get_one::<SimPolicy>("policy").ok().flatten().copied()
}

/// What decides where pages lie in a simulated kernel.
fn strategy(matches: &ArgMatches) -> Option<Strategy> {
    matches.try_get_one::<Strategy>("kernel").ok().flatten().copied()
}

/// Whether `top` looks again and again.
fn watches(matches: &ArgMatches) -> bool {
    let is_terminal = || io::stdout().is_terminal() && io::stdin().is_terminal();
    matches.get_flag("watch") || (is_terminal() && !matches.get_flag("json"))
}

/// Whether `reproduce kindle` is asked for a part alone.
fn is_only(matches: &ArgMatches, part: &str) -> bool {
    let mut only = matches.get_raw("only").into_iter().flatten();
    only.next().is_some_and(|text| text == part)
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
    (&["trace", "program"], &[&SCALED]),
    (&["algorithm", "skip"], &[&SCALED, &PLAYED]),
    (&["format", "partial"], &[&SCALED, &SHAPED, &ALGORITHM, &PROGRAM]),
    (&["size", "accesses", "set"], &[&SCALED, &PLAYED, &TRACE, &PROGRAM]),
    (&["via"], &[&SCALED, &SHAPED, &TRACE, &ALGORITHM]),
    (&["cores"], &[&SCALED, &PERSIST, &PLAYED]),
    (&["sample_period"], &[&SCALED, &PERSIST, &PLAYED, &UNSAMPLED]),
];

/// Named first: what they go with is said of them, and not of the others.
const IN_KERNEL: &[Row] =
    &[(&["kernel"], &[&SCALED, &PERSIST, &ALGORITHM]), (&["shape", "costs"], &[])];

const SIM: &[Row] = &[
    (&["survival"], &[&PLAYED]),
    (&["policy", "page_size"], &[&PERSIST, &PLAYED]),
    (&["machine"], &[&PERSIST]),
    (&["economist"], &[&PERSIST, &UNDECIDED, &UNDECIDED_IN_KERNEL]),
    (
        &["workload", "hot", "working_set", "hot_percent", "threads", "shift_at"],
        &[&FULL, &PERSIST, &PLAYED],
    ),
    (&["warm_up", "duration", "runs", "scale"], &[&FULL, &PERSIST, &PLAYED]),
    (&["seed"], &[&PLAYED]),
    (&["fast"], &[&SCALED, &PERSIST, &ONE_MEMORY]),
    (&["html"], &[&SCALED, &PERSIST, &PLAYED]),
    (&["record"], &[&PERSIST, &UNDECIDED, &UNDECIDED_IN_KERNEL, &UNASKED]),
    (&["memory", "fold"], &[&SCALED, &FULL, &PLAYED]),
    (&["interval"], &[&SCALED, &FULL, &PLAYED, &UNSAVED]),
    // Others have nothing to do there.
    (&["background", "ssp_flush"], &[&SCALED, &FULL, &PLAYED, &NOT_SSP]),
];

const PLAN: &[Row] = &[
    (&["machine", "tier", "slowdown", "policies", "points", "price"], &[]),
    (&["page_size", "seed", "html"], &[]),
    (&["budget"], &[&UNPRICED]),
];

const WHY: &[Row] = &[
    (&["target", "op", "class", "last", "process"], &[]),
    (&["context"], &[&ADDRESS]),
    (&["of"], &[&FILE]),
    (&["patience"], &[&NO_ADDRESS]),
    (&["division"], &[]),
    (&["page", "partial"], &[&ADDRESS]),
];

const RUN: &[Row] = &[
    (&["program", "engine", "fast", "total", "join", "report", "quiet"], &[]),
    (&["policy", "record"], &[&JOINED]),
    (&["with_files"], &[]),
    (&["economist"], &[&JOINED]),
    (&["min_region", "sampling_cap"], &[&LISTS, &JOINED]),
    (&["watch", "watch_to", "metrics", "report_html"], &[&JOINED]),
    (&["slow"], &[&KERNEL]),
    (&["tiers"], &[]),
    (&["spill", "spill_size", "store_limit"], &[&JOINED]),
    (&["huge_pages", "profile", "quiet_windows", "best_effort"], &[&KERNEL]),
    (&["limit"], &[&KERNEL]),
    (&["sampler"], &[&LISTS, &JOINED]),
];

const ATTACH: &[Row] = &[
    // That another option has to be there is not looked at where a third one excludes that.
    (&["tree"], &[&GROUP]),
    (&["pid", "cgroup", "engine", "fast", "policy", "sampling_cap", "duration"], &[]),
    (&["report", "record", "watch", "watch_to", "metrics", "report_html", "quiet"], &[]),
    (&["economist", "min_region"], &[]),
    (&["tiers"], &[]),
    (&["slow", "limit", "dry_run"], &[&KERNEL]),
    (&["sampler"], &[]),
];

const GOVERN: &[Row] = &[
    // As with `attach --tree`.
    (&["each"], &[&PROGRAM]),
    (&["cgroup", "program", "target", "mode", "duration", "report", "metrics", "quiet"], &[]),
];

const REFINE: &[Row] =
    &[(&["processor"], &[&PROGRAM]), (&["output", "perf_stat", "profile", "program"], &[])];

const CRASH: &[Row] = &[
    (&["file", "scheme", "fault", "states", "seed"], &[]),
    (&["programs", "steps"], &[&PROGRAM_FILE]),
];

const KINDLE: &[Row] = &[
    (&["only", "html"], &[]),
    (&["interval", "largest"], &[&ONLY_SSP, &ONLY_HSCC]),
    (&["accesses", "size", "seed", "trace"], &[&ONLY_PERSISTENCE]),
    (&["memory"], &[&ONLY_BEYOND]),
];

const TOP: &[Row] =
    &[(&["run", "watch"], &[]), (&["count"], &[&ONE_LOOK]), (&["interval"], &[&ONE_REPORT])];

/// Options of the verbs that do one thing or another.
const VERBS: &[(&str, &[&[Row]])] = &[
    ("run", &[RUN]),
    ("attach", &[ATTACH]),
    ("govern", &[GOVERN]),
    ("profile refine", &[REFINE]),
    ("sim", &[IN_KERNEL, INPUT, SIM]),
    ("plan", &[INPUT, PLAN]),
    ("why", &[WHY]),
    ("crash", &[CRASH]),
    ("reproduce kindle", &[KINDLE]),
    ("top", &[TOP]),
];

/// Refuses an option that would do nothing, and a value that is given twice.
pub(crate) fn check(command: &Command, matches: &ArgMatches) -> Result<(), Failure> {
    let (mut command, mut matches, mut path) = (command, matches, String::new());
    while let Some((verb, inner)) = matches.subcommand() {
        let Some(inner_command) = command.find_subcommand(verb) else { break };
        (command, matches) = (inner_command, inner);
        path = if path.is_empty() { verb.to_owned() } else { format!("{path} {verb}") };
    }
    twice(command, matches)?;
    let Some((_, tables)) = VERBS.iter().find(|(name, _)| *name == path) else { return Ok(()) };
    for (ids, modes) in tables.iter().copied().flatten() {
        let Some(id) = ids.iter().find(|id| given(matches, id)) else { continue };
        if let Some(mode) = modes.iter().find(|mode| (mode.applies)(matches)) {
            let option = option(command, id);
            return Err(Failure::bad_input(format!("{option}: has no effect {}", mode.what)));
        }
    }
    Ok(())
}

/// Refuses a value of a list that is given twice, or a second one for the same name: one of both
/// would do nothing.
fn twice(command: &Command, matches: &ArgMatches) -> Result<(), Failure> {
    let is_list = |arg: &&clap::Arg| {
        arg.get_long().is_some() && matches!(arg.get_action(), ArgAction::Append)
    };
    for arg in command.get_arguments().filter(is_list) {
        let id = arg.get_id().as_str();
        // A memory that two tiers name has a message of its own.
        if id == "slow" || !given(matches, id) {
            continue;
        }
        let mut names = HashSet::new();
        for text in matches.get_raw(id).into_iter().flatten() {
            let text = text.to_string_lossy();
            let name = text.split_once('=').map_or(text.as_ref(), |(name, _)| name);
            if !name.is_empty() && !names.insert(name.to_owned()) {
                let what = format!("{}: `{name}` is given twice", option(command, id));
                return Err(Failure::bad_input(what));
            }
        }
    }
    Ok(())
}

/// An option as it is written.
fn option(command: &Command, id: &str) -> String {
    let arg = command.get_arguments().find(|arg| arg.get_id().as_str() == id);
    match arg.and_then(clap::Arg::get_long) {
        Some(long) => format!("--{long}"),
        // A place on the line has no name of its own.
        None => id.to_uppercase(),
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
            let verb = verb.split(' ').fold(&command, |command, word| {
                command.find_subcommand(word).expect("it is a verb")
            });
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
        let command = Cli::command();
        let words = words.split(' ');
        let matches = command.clone().try_get_matches_from(words).expect("understood");
        check(&command, &matches).err().map(Failure::message).unwrap_or_default()
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
            ("terrace sim --persist ssp --trace t --record f", "--record"),
            ("terrace sim --persist none --trace t --interval 1s", "--interval"),
            ("terrace sim --trace t --memory kindle", "--memory"),
            ("terrace sim --kernel klocs --trace t --policy tpp", "--policy"),
            ("terrace sim --kernel klocs --trace t --cores 2", "--cores"),
            ("terrace sim --kernel klocs --trace t --html f", "--html"),
            ("terrace sim --kernel klocs --algorithm bfs", "--kernel"),
            ("terrace sim --kernel klocs --persist ssp --trace t", "--kernel"),
            ("terrace sim --kernel klocs", "--kernel"),
            ("terrace plan --trace t --accesses 5", "--accesses"),
            ("terrace plan --trace t --budget 5", "--budget"),
            ("terrace run --engine kernel --fast 1GiB --best-effort -- prog", "--best-effort"),
            ("terrace run --engine kernel --fast 1GiB --sampling-cap 5% -- prog", "--sampling-cap"),
            ("terrace attach --cgroup g --tree --fast numa:0 --slow swap", "--tree"),
            ("terrace govern --each x -- prog", "--each"),
            ("terrace profile refine -o f --processor X PROFILE -- prog", "--processor"),
            ("terrace sim --persist softwrap --trace t --background 1ms", "--background"),
            ("terrace sim --trace t --policy tpp --sample-period 5", "--sample-period"),
            ("terrace sim --policy all-dram --economist off", "--economist"),
            ("terrace sim --policy memory-mode --record f", "--record"),
            ("terrace sim --policy all-slow --trace t --record f", "--record"),
            ("terrace sim --policy first-touch --economist off --record f", "--record"),
            ("terrace sim --policy all-dram --trace t --fast 1GiB", "--fast"),
            ("terrace sim --kernel naive --trace t --record f", "--record"),
            ("terrace sim --kernel all-slow --shape redis --economist off", "--economist"),
            ("terrace crash FILE --programs 5", "--programs"),
            ("terrace reproduce kindle --only ssp --largest 64MiB", "--largest"),
            ("terrace reproduce kindle --only persistence --seed 2", "--seed"),
            ("terrace top --json --count 3", "--count"),
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
            "terrace sim --trace t --policy memtis --record f",
            "terrace sim --policy first-touch --record f --economist enforce",
            "terrace sim --policy hemem --economist off --record f",
            "terrace sim --via lackey -- prog",
            "terrace sim --persist ssp --ssp-flush updated --interval 1s --fold --trace t",
            "terrace sim --persist none --trace t",
            "terrace sim --kernel klocs --trace t --partial --fast 1MiB --record f --machine cxl",
            "terrace sim --kernel klocs --shape redis --economist off --costs f --record f",
            "terrace plan --algorithm gups --price dram=1,cxl=1 --budget 5 --size 1MiB",
            "terrace run --fast 1GiB --record f --huge-pages auto --economist off -- prog",
            "terrace run --engine kernel --fast 1GiB --policy 2q --economist off --quiet -- prog",
            "terrace run --engine kernel --fast 1GiB --economist off -- prog",
            "terrace run --engine kernel --fast 1GiB --policy 2q --sampling-cap 5% -- prog",
            "terrace run --engine kernel --join no-such-run --economist off --record f -- prog",
            "terrace run --engine kernel --join no-such-run --spill f -- prog",
            "terrace attach --pid 1 --tree --fast numa:0 --slow swap",
            "terrace attach --cgroup g --engine kernel --fast 1GiB",
            "terrace govern --cgroup g --each x --for 1s",
            "terrace govern --target 5% -- prog",
            "terrace profile refine -o f --perf-stat g --processor X PROFILE",
            "terrace profile refine -o f PROFILE -- prog",
            "terrace crash FILE --seed 5",
            "terrace top --watch --count 3 --interval 1s",
            "terrace top --json --interval 1s",
            "terrace why FILE --partial --page 1:2",
            "terrace why 0x1000 --of prog --for 1s --last 3",
        ] {
            assert_eq!(said(words), "", "{words}");
        }
    }
    /// One of the two would do nothing.
    #[test]
    fn a_value_that_is_given_twice_is_refused() {
        for (words, option) in [
            ("terrace compare --policies hemem,tpp,hemem", "--policies: `hemem`"),
            ("terrace sim --algorithm gups --set hot=1MiB --set hot=2MiB", "--set: `hot`"),
            ("terrace run --fast 16MiB --sampler rwp --sampler rwp -- true", "--sampler: `rwp`"),
            ("terrace validate --only 4,2,4", "--only: `4`"),
        ] {
            assert_eq!(said(words), format!("{option} is given twice"), "{words}");
        }
        assert_eq!(said("terrace compare --policies hemem,tpp"), "");
        assert_eq!(said("terrace run --fast 16MiB -- echo a a"), "");
    }
}
