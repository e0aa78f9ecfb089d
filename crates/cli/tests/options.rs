//! Every option of every verb changes something, or is refused by its name.
//!
//! The options come from the command line's own definitions, as the completion script of fish
//! lists them: one that is new fails this test until it has its line in [`VERBS`]. Each is tried
//! in each way of using its verb, as a pair of command lines, with it and without.

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use common::{HOLDER, binary, binary_text, compile, is_supported, preload, recorder, terrace};

/// What an option does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Does {
    /// Stdout differs, which is the same each time without it.
    Differs,
    /// A field of the JSON document differs.
    Field(&'static str),
    /// A file comes into being.
    File(&'static str),
    /// The answer has this text, which it has not without.
    Says(&'static str),
    /// The answer lacks this text, which it has without.
    Hides(&'static str),
    /// The exit code is this, and another one without.
    Exits(i32),
    /// It is refused with this exit code, and named.
    Refused(i32),
    /// The way has it. Without, the command is refused, and names it.
    Needed,
    /// The way has it. Without, the answer is another.
    Mode,
    /// The way has it. Another value gives another answer on stdout.
    Changes,
    /// It is refused with exit code 2, for another option has to be there, which is named.
    Lacks(&'static str),
    /// It asks for what the way does anyway.
    Anyway,
    /// Another way of the verb shows it, where it means the same.
    Another,
    /// It takes more than a pair of commands: this test is about it.
    Elsewhere(&'static str),
}
use Does::{
    Another, Anyway, Changes, Differs, Elsewhere, Exits, Field, File, Hides, Lacks, Mode, Needed,
    Refused, Says,
};

/// Options of a way, with what they do.
type Effects = &'static [(&'static [&'static str], Does)];

/// One way of using a verb.
struct Way {
    /// What comes behind the verb. `@PID` is a program under `terrace run`, and `@ADDRESS` an address
    /// of its managed memory.
    base: &'static [&'static str],
    /// What options do. One that is named neither here nor below is refused with exit code 2.
    does: Effects,
    /// The same of those about what is written, which many ways have in common.
    writes: Effects,
}

impl Way {
    fn effects(&self) -> impl Iterator<Item = &(&'static [&'static str], Does)> {
        self.does.iter().chain(self.writes)
    }
}

/// A verb, with a value for each of its options: the words that give it, and what it takes beside.
struct Verb {
    path: &'static str,
    values: &'static [(&'static str, &'static [&'static str])],
    ways: &'static [Way],
}

const fn way(base: &'static [&'static str], does: Effects) -> Way {
    Way { base, does, writes: &[] }
}

/// A way that writes whatever is asked for ([`OUTPUTS`]).
const fn writing(base: &'static [&'static str], does: Effects) -> Way {
    Way { base, does, writes: OUTPUTS }
}

/// What `run` and `attach` write, whichever engine they have.
const OUTPUTS: Effects = &[
    (&["--report"], File("report")),
    (&["--record"], File("record")),
    (&["--metrics"], Says("serving metrics at")),
    (&["--report-html"], File("page")),
];

/// Tests of the kernel's engine in a guest whose kernel has all that it can use.
const GUEST: &str = "../../../tests/guest/tests/kernel_engine.sh";
/// Tests of it in a world where nothing takes time but what it does.
const ENGINE: &str = "../../kernel/src/engine/tests.rs";

/// The only option of some verbs.
const JSON: (&str, &[&str]) = ("--json", &["--json"]);

const VERBS: &[Verb] = &[
    Verb {
        path: "run",
        values: &[
            JSON,
            ("--fast", &["--fast=16MiB"]),
            ("--total", &["--total=20MiB"]),
            ("--tiers", &["--tiers=ladder"]),
            ("--join", &["--join=@PID"]),
            ("--slow", &["--slow=numa:99"]),
            ("--engine", &["--engine=kernel"]),
            ("--files", &["--files"]),
            ("--policy", &["--policy=first-touch"]),
            ("--economist", &["--economist=off"]),
            ("--spill", &["--spill=spill"]),
            ("--spill-size", &["--spill=spill", "--spill-size=1MiB"]),
            ("--store-limit", &["--spill=spill", "--store-limit=1MiB"]),
            ("--min-region", &["--min-region=1GiB"]),
            ("--huge-pages", &["--huge-pages=never"]),
            ("--profile", &["--profile=recorded.profile"]),
            ("--quiet-windows", &["--quiet-windows=never"]),
            ("--report", &["--report=report"]),
            ("--record", &["--record=record"]),
            ("--watch", &["--watch=100ms"]),
            ("--watch-to", &["--watch", "--watch-to=lines"]),
            ("--metrics", &["--metrics=unix:socket"]),
            ("--report-html", &["--report-html=page"]),
            ("--best-effort", &["--best-effort"]),
            ("--quiet", &["--quiet"]),
            ("--limit", &["--limit=1GiB/s"]),
            ("--sampler", &["--sampler=damon"]),
            ("--sampling-cap", &["--sampling-cap=5%"]),
        ],
        ways: &[
            writing(
                &["--fast=16MiB", "--", "./worker"],
                &[
                    (&["--fast"], Needed),
                    (&["--engine"], Elsewhere("engines.rs")),
                    (&["--files"], Elsewhere("files_in_budget.rs")),
                    (&["--json"], Says("\"kind\": \"terrace.run\"")),
                    (&["--policy"], Says("first-touch, ")),
                    (&["--economist"], Says("economist       off")),
                    (&["--min-region"], Says("nothing was managed")),
                    (&["--quiet"], Hides("ended well after")),
                    (&["--sampling-cap"], Another),
                    (&["--slow"], Elsewhere("in_place.rs")),
                    (&["--watch"], Says("\"kind\":\"terrace.watch\"")),
                    (&["--watch-to"], File("lines")),
                    (&["--huge-pages", "--profile"], Elsewhere("huge.rs")),
                    (&["--quiet-windows"], Elsewhere("run.rs")),
                    (&["--best-effort"], Elsewhere("options.rs")),
                    (&["--spill", "--spill-size", "--store-limit"], Elsewhere("spill.rs")),
                ],
            ),
            writing(
                &["--json", "--total=16MiB", "--", "./worker"],
                &[
                    (&["--engine"], Elsewhere("engines.rs")),
                    (&["--files"], Elsewhere("files_in_budget.rs")),
                    (&["--json"], Another),
                    (&["--total"], Mode),
                    (&["--slow"], Refused(2)),
                    (&["--policy"], Field("/policy")),
                    (&["--economist"], Field("/economist")),
                    (&["--min-region"], Field("/nothing_managed")),
                    (&["--sampling-cap"], Field("/sampling_cap")),
                    (&["--watch"], Says("\"kind\":\"terrace.watch\"")),
                    (&["--watch-to"], File("lines")),
                    (&["--huge-pages", "--profile"], Elsewhere("huge.rs")),
                    (&["--quiet-windows"], Elsewhere("run.rs")),
                    (&["--best-effort"], Elsewhere("options.rs")),
                    (&["--spill", "--spill-size", "--store-limit"], Elsewhere("spill.rs")),
                ],
            ),
            writing(
                &["--join=@PID", "--", "./worker"],
                &[
                    (&["--join"], Mode),
                    (&["--engine"], Says("asked of the kernel")),
                    (&["--files"], Elsewhere("files_in_budget.rs")),
                    (&["--json"], Says("\"kind\": \"terrace.run\"")),
                    (&["--policy"], Says("first-touch, ")),
                    (&["--economist"], Says("economist       off")),
                    (&["--min-region"], Says("nothing was managed")),
                    (&["--quiet"], Hides("ended well after")),
                    (&["--sampling-cap"], Another),
                    (&["--slow"], Refused(2)),
                    (&["--watch"], Says("\"kind\":\"terrace.watch\"")),
                    (&["--watch-to"], File("lines")),
                    (&["--huge-pages", "--profile"], Elsewhere("huge.rs")),
                    (&["--quiet-windows"], Elsewhere("run.rs")),
                    (&["--best-effort"], Elsewhere("options.rs")),
                    (&["--spill", "--spill-size", "--store-limit"], Elsewhere("spill.rs")),
                ],
            ),
            writing(
                &["--tiers=ladder", "--", "./worker"],
                &[
                    (&["--tiers"], Mode),
                    (&["--json"], Says("\"kind\": \"terrace.run\"")),
                    (&["--policy"], Says("first-touch, ")),
                    (&["--economist"], Says("economist       off")),
                    (&["--min-region"], Says("nothing was managed")),
                    (&["--quiet"], Hides("ended well after")),
                    (&["--sampling-cap"], Another),
                    (&["--slow"], Refused(2)),
                    (&["--watch"], Says("\"kind\":\"terrace.watch\"")),
                    (&["--watch-to"], File("lines")),
                    (&["--huge-pages", "--profile"], Elsewhere("huge.rs")),
                    (&["--quiet-windows"], Elsewhere("run.rs")),
                    (&["--best-effort"], Elsewhere("options.rs")),
                ],
            ),
            writing(
                &["--fast=16MiB", "--slow=swap", "--", "./worker", "lasting"],
                &[
                    (&["--fast"], Needed),
                    (&["--slow"], Elsewhere("in_place.rs")),
                    (&["--json"], Says("\"kind\": \"terrace.attach\"")),
                    (&["--policy"], Says("first-touch, ")),
                    (&["--economist"], Says("economist       off")),
                    (&["--min-region"], Hides("in tiers")),
                    (&["--limit"], Elsewhere("in_place.rs")),
                    (&["--sampler", "--sampling-cap"], Elsewhere("in_place.rs")),
                    (&["--watch"], Says("\"kind\":\"terrace.attach-watch\"")),
                    (&["--watch-to"], File("lines")),
                    (&["--quiet"], Hides("attached to")),
                ],
            ),
            // The kernel's own lists choose what leaves.
            writing(
                &["--engine=kernel", "--fast=16MiB", "--", "./worker", "lasting"],
                &[
                    (&["--engine"], Elsewhere("engines.rs")),
                    (&["--fast"], Needed),
                    (&["--files"], Elsewhere("files_in_budget.rs")),
                    (&["--json"], Says("\"kind\": \"terrace.kernel\"")),
                    (&["--policy"], Says("first-touch chooses what leaves")),
                    (&["--economist"], Elsewhere(ENGINE)),
                    (&["--spill", "--spill-size", "--store-limit"], Elsewhere(GUEST)),
                    (&["--watch"], Says("\"kind\":\"terrace.attach-watch\"")),
                    (&["--watch-to"], File("lines")),
                    (&["--quiet"], Hides("ended well after")),
                ],
            ),
            // Within the budget of a run that has a pager: its part is kept as its own would be.
            writing(
                &["--engine=kernel", "--join=@PID", "--", "./worker", "lasting"],
                &[
                    (&["--engine"], Another),
                    (&["--join"], Mode),
                    (&["--files"], Elsewhere("files_in_budget.rs")),
                    (&["--json"], Says("\"kind\": \"terrace.kernel\"")),
                    (&["--policy"], Says("first-touch chooses what leaves")),
                    (&["--economist"], Elsewhere(ENGINE)),
                    (&["--spill", "--spill-size", "--store-limit"], Elsewhere(GUEST)),
                    (&["--watch"], Says("\"kind\":\"terrace.attach-watch\"")),
                    (&["--watch-to"], File("lines")),
                    (&["--quiet"], Hides("ended well after")),
                ],
            ),
            // A policy does.
            writing(
                &[
                    "--engine=kernel",
                    "--fast=16MiB",
                    "--policy=refault",
                    "--watch=100ms",
                    "--",
                    "./worker",
                    "lasting",
                ],
                &[
                    (&["--engine", "--policy"], Elsewhere("engines.rs")),
                    (&["--fast"], Needed),
                    (&["--json"], Says("\"kind\": \"terrace.kernel\"")),
                    (&["--economist"], Says("\"economist\":\"off\"")),
                    (&["--min-region"], Elsewhere(ENGINE)),
                    (&["--sampler"], Elsewhere(GUEST)),
                    (&["--sampling-cap"], Says("\"sampling_cap\":0.05")),
                    (&["--spill", "--spill-size", "--store-limit"], Elsewhere(GUEST)),
                    (&["--watch", "--watch-to"], Elsewhere("engines.rs")),
                    (&["--quiet"], Hides("ended well after")),
                ],
            ),
        ],
    },
    Verb {
        path: "attach",
        values: &[
            JSON,
            ("--pid", &["--pid=@PARENT"]),
            ("--engine", &["--engine=kernel"]),
            ("--cgroup", &["--cgroup=none"]),
            ("--tiers", &["--tiers=swap-ladder"]),
            ("--fast", &["--fast=numa:0"]),
            ("--slow", &["--slow=swap"]),
            ("--limit", &["--limit=1MiB/s"]),
            ("--sampler", &["--sampler=damon"]),
            ("--sampling-cap", &["--sampling-cap=5%"]),
            ("--policy", &["--policy=first-touch"]),
            ("--economist", &["--economist=off"]),
            ("--min-region", &["--min-region=1GiB"]),
            ("--for", &["--for=200ms"]),
            ("--report", &["--report=report"]),
            ("--record", &["--record=record"]),
            ("--watch", &["--watch=100ms"]),
            ("--watch-to", &["--watch", "--watch-to=lines"]),
            ("--metrics", &["--metrics=unix:socket"]),
            ("--report-html", &["--report-html=page"]),
            ("--tree", &["--tree"]),
            ("--dry-run", &["--dry-run"]),
            ("--quiet", &["--quiet"]),
        ],
        ways: &[
            writing(
                &["--pid=@PARENT", "--fast=numa:0", "--slow=swap", "--for=100ms", "--json"],
                &[
                    (&["--pid", "--fast", "--slow"], Needed),
                    (&["--for", "--cgroup", "--quiet"], Elsewhere("attach.rs")),
                    (&["--engine"], Elsewhere("engines.rs")),
                    (&["--tree"], Field("/processes/1")),
                    (&["--json"], Mode),
                    (&["--limit"], Field("/limit")),
                    (&["--policy"], Field("/policy")),
                    (&["--economist"], Field("/economist")),
                    (&["--min-region"], Field("/regions/0")),
                    (&["--dry-run"], Field("/dry_run")),
                    (&["--sampler", "--sampling-cap"], Elsewhere("in_place.rs")),
                    (&["--watch"], Says("\"kind\":\"terrace.attach-watch\"")),
                    (&["--watch-to"], File("lines")),
                ],
            ),
            // The kernel serves the faults.
            writing(
                &[
                    "--engine=kernel",
                    "--pid=@PARENT",
                    "--fast=8MiB",
                    "--for=200ms",
                    "--json",
                    "--watch=50ms",
                ],
                &[
                    (&["--engine", "--pid", "--fast"], Needed),
                    (&["--json"], Mode),
                    (&["--tree"], Says("\"command\":\"holder\"")),
                    (&["--policy"], Field("/chooser")),
                    (&["--economist"], Says("\"economist\":\"off\"")),
                    (&["--sampling-cap"], Says("\"sampling_cap\":0.05")),
                    (&["--sampler"], Elsewhere(GUEST)),
                    (&["--min-region"], Elsewhere(ENGINE)),
                    (&["--for", "--watch", "--watch-to"], Elsewhere("engines.rs")),
                    (&["--quiet"], Hides("warning: no control group")),
                ],
            ),
            // A group has all of its processes: `--tree` would add none.
            way(
                &["--cgroup=none", "--tiers=swap-ladder"],
                &[
                    (&["--cgroup", "--tiers"], Needed),
                    (&["--json", "--limit", "--sampler", "--sampling-cap"], Another),
                    (&["--policy", "--economist", "--min-region", "--for"], Another),
                    (&["--report", "--record", "--metrics", "--report-html"], Another),
                    (&["--watch", "--watch-to", "--dry-run", "--quiet"], Another),
                ],
            ),
        ],
    },
    Verb {
        path: "set",
        values: &[JSON, ("--fast", &["--fast=9MiB"])],
        ways: &[way(
            &["--fast=8MiB", "@PID"],
            &[(&["--fast"], Needed), (&["--json"], Says("\"kind\": \"terrace.set\""))],
        )],
    },
    Verb {
        path: "broker",
        values: &[JSON, ("--fast", &["--fast=9MiB"]), ("--cgroup", &["--cgroup=none"])],
        // It runs until it is stopped.
        ways: &[way(&[], &[(&["--fast", "--cgroup", "--json"], Elsewhere("share.rs"))])],
    },
    Verb {
        path: "top",
        values: &[
            JSON,
            ("--interval", &["--interval=100ms"]),
            ("--count", &["--count=1"]),
            ("--watch", &["--watch"]),
        ],
        ways: &[
            way(
                &["@PID"],
                &[
                    (&["--json"], Says("\"kind\": \"terrace.top\"")),
                    (&["--watch"], Elsewhere("observe.rs")),
                ],
            ),
            way(
                &["--json", "--interval=50ms", "@PID"],
                &[
                    (&["--json"], Mode),
                    (&["--interval"], Elsewhere("observe.rs")),
                    (&["--watch"], Elsewhere("observe.rs")),
                ],
            ),
            way(
                &["--watch", "--count=1", "--interval=50ms", "@PID"],
                &[
                    (&["--json"], Anyway),
                    (&["--watch", "--count", "--interval"], Elsewhere("observe.rs")),
                ],
            ),
        ],
    },
    Verb {
        path: "metrics",
        values: &[JSON, ("--listen", &["--listen=0"]), ("--once", &["--once"])],
        ways: &[way(
            &["--once", "@PID"],
            &[
                (&["--json"], Says("\"kind\": \"terrace.metrics\"")),
                (&["--once"], Elsewhere("observe.rs")),
            ],
        )],
    },
    Verb {
        path: "report",
        values: &[JSON, ("--output", &["--output=page"]), ("--partial", &["--partial"])],
        ways: &[
            way(
                &["live.record"],
                &[
                    (&["--json"], Says("\"kind\": \"terrace.report\"")),
                    (&["--output"], File("page")),
                    (&["--partial"], Elsewhere("observe.rs")),
                ],
            ),
            way(
                &["cut.record"],
                &[
                    (&["--json"], Elsewhere("observe.rs")),
                    (&["--output"], Elsewhere("outputs.rs")),
                    (&["--partial"], Exits(0)),
                ],
            ),
        ],
    },
    Verb {
        path: "replay",
        values: &[
            JSON,
            ("--policy", &["--policy=first-touch"]),
            ("--fast", &["--fast=12MiB"]),
            ("--economist", &["--economist=off"]),
            ("--process", &["--process=1"]),
            ("--partial", &["--partial"]),
        ],
        ways: &[
            way(
                &["live.record"],
                &[
                    (&["--json"], Says("\"kind\": \"terrace.replay\"")),
                    (&["--policy", "--fast"], Differs),
                    (&["--process"], Exits(2)),
                    (&["--economist"], Says("economist off")),
                    (&["--partial"], Another),
                ],
            ),
            way(
                &["cut.record"],
                &[
                    (&["--json", "--policy", "--fast"], Another),
                    (&["--economist", "--process"], Another),
                    (&["--partial"], Exits(0)),
                ],
            ),
        ],
    },
    Verb {
        path: "record",
        values: &[
            JSON,
            ("--output", &["--output=out.trace"]),
            ("--via", &["--via=lackey"]),
            ("--limit", &["--limit=100"]),
            ("--calls", &["--calls"]),
        ],
        ways: &[way(
            &["--output=out.trace", "--via=lackey", "--", "true"],
            &[
                (&["--output"], Needed),
                (&["--json"], Says("\"kind\": \"terrace.record\"")),
                (&["--via"], Elsewhere("traces.rs")),
                (&["--limit"], Says("accesses  100\n")),
                // It has a recorder of its own.
                (&["--calls"], Refused(2)),
            ],
        )],
    },
    Verb {
        path: "convert",
        values: &[
            JSON,
            ("--from", &["--from=lackey"]),
            ("--to", &["--to=champsim"]),
            ("--partial", &["--partial"]),
        ],
        ways: &[
            way(
                &["text", "out"],
                &[
                    (&["--json"], Elsewhere("traces.rs")),
                    (&["--from"], Exits(0)),
                    (&["--to"], Elsewhere("traces.rs")),
                    (&["--partial"], Another),
                ],
            ),
            way(
                &["t.lackey", "out"],
                &[
                    (&["--json"], Says("\"kind\": \"terrace.convert\"")),
                    (&["--from", "--partial"], Another),
                    (&["--to"], Elsewhere("traces.rs")),
                ],
            ),
            way(
                &["long.trace", "out"],
                &[(&["--json", "--from", "--to"], Another), (&["--partial"], Exits(0))],
            ),
        ],
    },
    Verb {
        path: "sim",
        values: &[
            JSON,
            ("--policy", &["--policy=nimble"]),
            ("--machine", &["--machine=cxl"]),
            ("--workload", &["--workload=gups-overlapping"]),
            ("--hot", &["--hot=1GiB"]),
            ("--working-set", &["--working-set=300GiB"]),
            ("--hot-percent", &["--hot-percent=50"]),
            ("--threads", &["--threads=8"]),
            ("--page-size", &["--page-size=4KiB"]),
            ("--shift-at", &["--shift-at=5ms"]),
            ("--warm-up", &["--warm-up=10ms"]),
            ("--duration", &["--duration=20ms"]),
            ("--runs", &["--runs=2"]),
            ("--scale", &["--scale=16384"]),
            ("--seed", &["--seed=7"]),
            ("--economist", &["--economist=off"]),
            ("--trace", &["--trace=t.trace"]),
            ("--partial", &["--partial"]),
            ("--format", &["--format=lackey"]),
            ("--algorithm", &["--algorithm=gups-sparse"]),
            ("--size", &["--size=4MiB"]),
            ("--accesses", &["--accesses=20000"]),
            ("--set", &["--set=hot=1MiB"]),
            ("--cores", &["--cores=2"]),
            ("--skip", &["--skip=300"]),
            ("--sample-period", &["--sample-period=3"]),
            ("--via", &["--via=lackey"]),
            ("--fast", &["--fast=1MiB"]),
            ("--html", &["--html=page"]),
            ("--persist", &["--persist=ssp"]),
            ("--memory", &["--memory=cxl-battery"]),
            ("--interval", &["--interval=1ms"]),
            ("--background", &["--background=10us"]),
            ("--ssp-flush", &["--ssp-flush=everything"]),
            ("--fold", &["--fold"]),
            ("--record", &["--record=record"]),
            ("--kernel", &["--kernel=naive"]),
            ("--shape", &["--shape=redis"]),
            ("--costs", &["--costs=costs.toml"]),
        ],
        ways: &[
            way(
                &["--json", "--warm-up=1s", "--duration=100ms", "--scale=32768"],
                &[
                    (&["--json"], Mode),
                    (&["--warm-up", "--duration", "--scale"], Changes),
                    (&["--policy", "--workload", "--hot", "--hot-percent"], Differs),
                    (&["--working-set", "--shift-at", "--economist"], Differs),
                    // They make it another way.
                    (&["--trace", "--algorithm"], Another),
                    (&["--shape", "--costs"], Lacks("--kernel")),
                    (&["--partial"], Lacks("--trace")),
                    (&["--threads", "--page-size", "--runs", "--seed"], Differs),
                    (&["--machine"], Elsewhere("sim.rs")),
                    (&["--record"], File("record")),
                ],
            ),
            way(
                &["--json", "--trace=t.trace"],
                &[
                    (&["--json", "--trace"], Mode),
                    (&["--policy", "--machine", "--page-size", "--seed"], Differs),
                    (&["--skip", "--sample-period", "--fast", "--persist"], Differs),
                    // It takes a longer one until pages move.
                    (&["--economist"], Another),
                    (&["--cores"], Another),
                    (&["--format"], Exits(2)),
                    (&["--partial", "--kernel"], Another),
                    (&["--costs"], Lacks("--kernel")),
                    (&["--html"], File("page")),
                    (&["--record"], File("record")),
                ],
            ),
            way(
                &["--json", "--algorithm=gups", "--size=2MiB", "--accesses=10000"],
                &[
                    (&["--json", "--algorithm"], Mode),
                    (&["--size", "--accesses"], Changes),
                    (&["--policy", "--machine", "--page-size", "--seed", "--set"], Differs),
                    (&["--cores", "--skip", "--sample-period", "--fast", "--persist"], Differs),
                    (&["--economist"], Another),
                    (&["--partial"], Refused(2)),
                    (&["--costs"], Lacks("--kernel")),
                    (&["--html"], File("page")),
                    (&["--record"], File("record")),
                ],
            ),
            way(
                &["--json", "--kernel=klocs", "--trace=t.trace"],
                &[
                    (&["--json", "--trace", "--kernel"], Mode),
                    (&["--machine"], Field("/machine")),
                    // It takes a longer one until pages move.
                    (&["--economist"], Elsewhere("traces.rs")),
                    (&["--fast"], Differs),
                    // It has no calls.
                    (&["--costs"], Another),
                    (&["--partial"], Elsewhere("traces.rs")),
                    (&["--format"], Exits(2)),
                    (&["--record"], File("record")),
                ],
            ),
            way(
                &["--json", "--kernel=klocs", "--shape=filebench", "--machine=kloc-two-tier"],
                &[
                    (&["--json", "--shape", "--kernel"], Mode),
                    (&["--machine"], Mode),
                    (&["--partial"], Refused(2)),
                    (&["--fast", "--costs"], Differs),
                    (&["--economist"], Elsewhere("traces.rs")),
                    (&["--record"], File("record")),
                ],
            ),
            // It takes QEMU or Valgrind, and goes on as with an algorithm.
            way(
                &["--", "true"],
                &[
                    (&["--kernel"], Elsewhere("traces.rs")),
                    (&["--costs"], Lacks("--kernel")),
                    (&["--json", "--policy", "--machine", "--page-size"], Another),
                    (&["--seed", "--economist", "--cores", "--skip"], Another),
                    (&["--sample-period", "--fast", "--html", "--record", "--persist"], Another),
                    (&["--via"], Elsewhere("traces.rs")),
                ],
            ),
            // Nothing takes random numbers.
            way(
                &["--json", "--trace=long.trace", "--policy=first-touch"],
                &[
                    (&["--seed"], Refused(2)),
                    (&["--kernel"], Elsewhere("traces.rs")),
                    (&["--costs"], Lacks("--kernel")),
                    (&["--json", "--trace", "--policy", "--machine"], Another),
                    (&["--page-size", "--partial", "--skip", "--cores"], Another),
                    (&["--sample-period", "--fast", "--persist"], Another),
                    (&["--economist", "--html", "--record", "--format"], Another),
                ],
            ),
            way(
                &["--json", "--trace=long.trace"],
                &[
                    (&["--partial"], Exits(0)),
                    (&["--kernel"], Elsewhere("traces.rs")),
                    (&["--costs"], Lacks("--kernel")),
                    (&["--json", "--trace", "--policy", "--machine"], Another),
                    (&["--page-size", "--seed", "--skip", "--cores"], Another),
                    (&["--sample-period", "--fast", "--persist"], Another),
                    (&["--economist", "--html", "--record", "--format"], Another),
                ],
            ),
            way(
                &[
                    "--json",
                    "--persist=ssp",
                    "--algorithm=gups",
                    "--size=2MiB",
                    "--accesses=10000",
                    "--interval=20us",
                    "--background=20us",
                ],
                &[
                    (&["--json", "--persist"], Mode),
                    (&["--size", "--accesses", "--algorithm"], Changes),
                    (&["--seed", "--set", "--skip", "--memory", "--fold"], Differs),
                    (&["--interval", "--background"], Mode),
                    (&["--ssp-flush"], Differs),
                    (&["--costs"], Lacks("--kernel")),
                ],
            ),
            way(
                &[
                    "--json",
                    "--persist=persistent",
                    "--algorithm=gups",
                    "--size=2MiB",
                    "--accesses=10000",
                    "--interval=20us",
                ],
                &[
                    (&["--json", "--persist"], Mode),
                    (&["--size", "--accesses", "--algorithm"], Changes),
                    (&["--seed", "--set", "--skip", "--memory", "--fold"], Differs),
                    (&["--interval"], Mode),
                    (&["--costs"], Lacks("--kernel")),
                ],
            ),
        ],
    },
    Verb {
        path: "compare",
        values: &[
            JSON,
            ("--policies", &["--policies=tpp"]),
            ("--machine", &["--machine=laptop"]),
            ("--workload", &["--workload=gups-overlapping"]),
            ("--hot", &["--hot=1GiB"]),
            ("--working-set", &["--working-set=300GiB"]),
            ("--hot-percent", &["--hot-percent=50"]),
            ("--threads", &["--threads=8"]),
            ("--page-size", &["--page-size=4KiB"]),
            ("--shift-at", &["--shift-at=5ms"]),
            ("--warm-up", &["--warm-up=10ms"]),
            ("--duration", &["--duration=20ms"]),
            ("--runs", &["--runs=2"]),
            ("--scale", &["--scale=16384"]),
            ("--seed", &["--seed=7"]),
            ("--economist", &["--economist=off"]),
        ],
        ways: &[way(
            &["--json", "--warm-up=1s", "--duration=100ms", "--scale=32768", "--policies=hemem"],
            &[
                (&["--json"], Mode),
                (&["--policies", "--warm-up", "--duration", "--scale"], Changes),
                (&["--seed", "--workload", "--hot", "--hot-percent", "--runs"], Differs),
                (&["--working-set", "--shift-at", "--economist"], Differs),
                (&["--threads", "--page-size"], Differs),
                (&["--machine"], Exits(2)),
            ],
        )],
    },
    Verb {
        path: "sweep",
        values: &[
            JSON,
            ("--output", &["--output=results"]),
            ("--jobs", &["--jobs=1"]),
            ("--fresh", &["--fresh"]),
        ],
        ways: &[way(
            &[
                "--output=results",
                "workload=gups",
                "size=1MiB",
                "accesses=2000",
                "policy=hemem,tpp",
            ],
            &[
                (&["--output"], Needed),
                (&["--json"], Says("\"kind\": \"terrace.sweep\"")),
                (&["--jobs"], Elsewhere("sweep.rs")),
                (&["--fresh"], Elsewhere("outputs.rs")),
            ],
        )],
    },
    Verb {
        path: "plan",
        values: &[
            JSON,
            ("--machine", &["--machine=optane-cascade-lake"]),
            ("--tier", &["--tier=nvme"]),
            ("--slowdown", &["--slowdown=50"]),
            ("--policies", &["--policies=tpp"]),
            ("--points", &["--points=3"]),
            ("--price", &["--price=dram=3,cxl=1"]),
            ("--budget", &["--price=dram=3,cxl=1", "--budget=1"]),
            ("--page-size", &["--page-size=2MiB"]),
            ("--seed", &["--seed=7"]),
            ("--html", &["--html=page"]),
            ("--trace", &["--trace=t.trace"]),
            ("--partial", &["--partial"]),
            ("--format", &["--format=lackey"]),
            ("--algorithm", &["--algorithm=gups-sparse"]),
            ("--size", &["--size=4MiB"]),
            ("--accesses", &["--accesses=20000"]),
            ("--set", &["--set=hot=1MiB"]),
            ("--cores", &["--cores=2"]),
            ("--skip", &["--skip=300"]),
            ("--sample-period", &["--sample-period=3"]),
            ("--via", &["--via=lackey"]),
        ],
        ways: &[
            way(
                &[
                    "--json",
                    "--policies=hemem",
                    "--points=2",
                    "--algorithm=gups",
                    "--size=2MiB",
                    "--accesses=10000",
                ],
                &[
                    (&["--json"], Mode),
                    (&["--policies", "--points", "--size", "--accesses", "--algorithm"], Changes),
                    (&["--machine", "--slowdown", "--price", "--budget", "--page-size"], Differs),
                    (&["--seed", "--set", "--cores", "--skip", "--sample-period"], Differs),
                    (&["--tier"], Exits(2)),
                    (&["--html"], File("page")),
                ],
            ),
            way(
                &["--json", "--policies=hemem", "--points=2", "--trace=t.trace"],
                &[
                    (&["--json"], Mode),
                    (&["--policies", "--points"], Changes),
                    (&["--trace"], Mode),
                    (&["--machine", "--price", "--page-size", "--skip"], Differs),
                    (&["--slowdown", "--budget", "--cores"], Another),
                    (&["--sample-period", "--seed"], Another),
                    (&["--format"], Exits(2)),
                    (&["--tier"], Exits(2)),
                    (&["--partial"], Another),
                    (&["--html"], File("page")),
                ],
            ),
            way(
                &["--json", "--policies=hemem", "--points=2", "--trace=long.trace"],
                &[
                    (&["--partial"], Exits(0)),
                    (&["--json", "--policies", "--points", "--trace", "--machine"], Another),
                    (&["--price", "--page-size", "--skip", "--slowdown", "--budget"], Another),
                    (&["--cores", "--sample-period", "--seed", "--format", "--tier"], Another),
                    (&["--html"], Another),
                ],
            ),
            // Without policies nothing is random.
            way(
                &["--json", "--policies=", "--trace=t.trace"],
                &[
                    (&["--json"], Mode),
                    (&["--trace", "--policies"], Another),
                    (&["--machine", "--price", "--page-size", "--skip"], Differs),
                    (&["--slowdown", "--budget", "--cores"], Another),
                    (&["--format"], Exits(2)),
                    (&["--tier"], Exits(2)),
                    (&["--partial"], Another),
                    (&["--html"], File("page")),
                ],
            ),
            // Where pages are brought in, no policy is simulated.
            way(
                &[
                    "--json",
                    "--machine=laptop",
                    "--algorithm=gups",
                    "--size=1MiB",
                    "--accesses=5000",
                ],
                &[
                    (&["--json"], Mode),
                    (&["--size", "--accesses", "--algorithm"], Changes),
                    (&["--machine"], Another),
                    (&["--tier", "--slowdown", "--page-size", "--seed"], Differs),
                    (&["--set", "--skip"], Differs),
                    (&["--cores"], Another),
                    (&["--html"], File("page")),
                ],
            ),
            // It takes QEMU or Valgrind, and goes on as with an algorithm.
            way(
                &["--", "true"],
                &[
                    (&["--json", "--machine", "--tier", "--slowdown"], Another),
                    (&["--policies", "--points", "--price", "--budget"], Another),
                    (&["--page-size", "--seed", "--html", "--cores"], Another),
                    (&["--skip", "--sample-period"], Another),
                    (&["--via"], Elsewhere("traces.rs")),
                ],
            ),
        ],
    },
    Verb {
        path: "profile record",
        values: &[
            JSON,
            ("--output", &["--output=new.profile"]),
            ("--machine", &["--machine=optane-cascade-lake"]),
            ("--again", &["--again"]),
        ],
        // It takes QEMU.
        ways: &[way(
            &[],
            &[(&["--json", "--output", "--machine", "--again"], Elsewhere("profile.rs"))],
        )],
    },
    Verb {
        path: "profile refine",
        values: &[
            JSON,
            ("--output", &["--output=new.profile"]),
            ("--perf-stat", &["--perf-stat=perf-stat.csv"]),
            ("--processor", &["--processor=A Processor"]),
        ],
        ways: &[
            way(
                &["plain.profile"],
                &[(&["--json", "--output", "--perf-stat", "--processor"], Elsewhere("profile.rs"))],
            ),
            way(
                &["--output=new.profile", "plain.profile", "--", "true"],
                &[(&["--output"], Needed), (&["--json"], Another)],
            ),
        ],
    },
    Verb {
        path: "profile show",
        values: &[JSON],
        ways: &[way(
            &["recorded.profile"],
            &[(&["--json"], Says("\"kind\": \"terrace.profile.show\""))],
        )],
    },
    Verb {
        path: "profile diff",
        values: &[JSON],
        ways: &[way(
            &["recorded.profile", "plain.profile"],
            &[(&["--json"], Says("\"kind\": \"terrace.profile.diff\""))],
        )],
    },
    Verb {
        path: "profile merge",
        values: &[JSON, ("--output", &["--output=new.profile"])],
        ways: &[way(
            &["--output=merged.profile", "plain.profile", "other.profile"],
            &[
                (&["--json"], Says("\"kind\": \"terrace.profile.merge\"")),
                (&["--output"], Elsewhere("profile.rs")),
            ],
        )],
    },
    Verb {
        path: "profile import",
        values: &[
            JSON,
            ("--output", &["--output=new.profile"]),
            ("--horizon", &["--horizon=1h"]),
            ("--clock", &["--clock=3GHz"]),
        ],
        ways: &[way(
            &["--output=-", "--horizon=10s", "cbmm.csv"],
            &[
                (&["--json"], Says("\"kind\": \"terrace.profile.import\"")),
                (&["--output"], Elsewhere("profile.rs")),
                (&["--horizon"], Changes),
                (&["--clock"], Differs),
            ],
        )],
    },
    Verb {
        path: "profile export",
        values: &[JSON, ("--output", &["--output=new.csv"])],
        ways: &[way(
            &["--output=-", "recorded.profile"],
            &[
                (&["--json"], Says("\"kind\": \"terrace.profile.export\"")),
                (&["--output"], Elsewhere("profile.rs")),
            ],
        )],
    },
    Verb {
        path: "provision plan",
        values: &[JSON, ("--policy", &["--policy=paper"]), ("--root", &["--root=@SLOW"])],
        ways: &[way(
            &["--json", "--root=@SLOW"],
            &[(&["--json", "--root"], Mode), (&["--policy"], Field("/policy"))],
        )],
    },
    Verb {
        path: "provision hide",
        values: &[
            JSON,
            ("--node", &["--node=2"]),
            ("--memmap-on-memory", &["--memmap-on-memory"]),
            ("--write", &["--write=arguments"]),
            ("--root", &["--root=@SLOW"]),
        ],
        ways: &[way(
            &["--root=@SLOW"],
            &[
                (&["--json"], Says("\"kind\": \"terrace.provision.hide\"")),
                // This machine may be told the same.
                (&["--root"], Elsewhere("provision.rs")),
                (&["--node"], Says("memmap=1G!5G")),
                (&["--memmap-on-memory"], Says("memory_hotplug.memmap_on_memory=1")),
                (&["--write"], File("arguments")),
            ],
        )],
    },
    Verb {
        path: "provision reload",
        values: &[JSON, ("--destroy", &["--destroy"]), ("--root", &["--root=@SLOW"])],
        ways: &[way(
            &["--root=@SLOW", "namespace0.0"],
            &[(&["--json", "--destroy", "--root"], Elsewhere("provision.rs"))],
        )],
    },
    Verb {
        path: "provision run",
        values: &[
            JSON,
            ("--config", &["--config=provision.toml"]),
            ("--dry-run", &["--dry-run"]),
            ("--for", &["--for=50ms"]),
            ("--metrics", &["--metrics=unix:socket"]),
            ("--state", &["--state=state"]),
            ("--root", &["--root=@SLOW"]),
        ],
        ways: &[way(
            &["--root=@SLOW", "--dry-run", "--for=50ms", "--state=state"],
            &[
                // Without them it would write, or not end, and nothing is said on stdout.
                (&["--dry-run", "--for", "--state"], Elsewhere("provision.rs")),
                (&["--root"], Elsewhere("provision.rs")),
                (&["--json", "--config", "--metrics"], Elsewhere("provision.rs")),
            ],
        )],
    },
    Verb {
        path: "provision status",
        values: &[JSON, ("--state", &["--state=state"])],
        ways: &[way(&[], &[(&["--json", "--state"], Elsewhere("provision.rs"))])],
    },
    Verb {
        path: "provision why",
        values: &[
            JSON,
            ("--node", &["--node=0"]),
            ("--failed", &["--failed"]),
            ("--last", &["--last=1"]),
            ("--state", &["--state=state"]),
        ],
        ways: &[way(
            &[],
            &[
                (&["--json", "--node", "--failed"], Elsewhere("provision.rs")),
                (&["--last", "--state"], Elsewhere("provision.rs")),
            ],
        )],
    },
    Verb {
        path: "provision record",
        values: &[
            JSON,
            ("--output", &["--output=zones"]),
            ("--for", &["--for=20ms"]),
            ("--every", &["--every=10ms"]),
        ],
        ways: &[way(
            &[],
            &[
                (&["--json", "--for", "--every"], Elsewhere("provision.rs")),
                (&["--output"], Elsewhere("outputs.rs")),
            ],
        )],
    },
    Verb {
        path: "provision replay",
        values: &[
            JSON,
            ("--dram", &["--dram=1GiB"]),
            ("--slow", &["--slow=1GiB"]),
            ("--policy", &["--policy=paper"]),
            ("--machine", &["--machine=four-node"]),
            ("--accesses", &["--accesses=1,2"]),
            ("--decisions", &["--decisions"]),
            ("--partial", &["--partial"]),
        ],
        ways: &[way(
            &[],
            &[
                (&["--json", "--dram", "--slow", "--policy"], Elsewhere("provision.rs")),
                (&["--machine", "--accesses"], Elsewhere("provision.rs")),
                (&["--decisions", "--partial"], Elsewhere("provision.rs")),
            ],
        )],
    },
    Verb {
        path: "crash",
        values: &[
            JSON,
            ("--scheme", &["--scheme=persistent"]),
            ("--fault", &["--fault=stale-mapping"]),
            ("--programs", &["--programs=2"]),
            ("--steps", &["--steps=8"]),
            ("--states", &["--states=4"]),
            ("--seed", &["--seed=9"]),
        ],
        ways: &[
            way(
                &["--json", "--scheme=rebuild-list", "--programs=1", "--steps=6"],
                &[
                    (&["--json"], Elsewhere("crash.rs")),
                    (&["--programs", "--steps", "--scheme"], Changes),
                    (&["--states", "--seed"], Differs),
                    // Which scheme it breaks, another test knows.
                    (&["--fault"], Elsewhere("crash.rs")),
                ],
            ),
            way(
                &["--json", "steps.txt"],
                &[
                    (&["--json"], Mode),
                    (&["--scheme", "--states"], Differs),
                    (&["--fault"], Exits(1)),
                    (&["--seed"], Another),
                ],
            ),
        ],
    },
    // Simulations that take long.
    Verb {
        path: "reproduce hemem",
        values: &[
            JSON,
            ("--hot", &["--hot=1GiB"]),
            ("--economist", &["--economist=off"]),
            ("--scale", &["--scale=32768"]),
            ("--seed", &["--seed=7"]),
        ],
        ways: &[way(
            &["--json", "--hot=1GiB", "--scale=32768"],
            &[
                (&["--json", "--hot", "--scale", "--seed"], Elsewhere("sim.rs")),
                (&["--economist"], Field("/table/economist")),
            ],
        )],
    },
    Verb {
        path: "reproduce kindle",
        values: &[
            JSON,
            ("--interval", &["--interval=5ms"]),
            ("--only", &["--only=hscc"]),
            ("--accesses", &["--accesses=1000"]),
            ("--size", &["--size=1MiB"]),
            ("--memory", &["--memory=cxl-battery"]),
            ("--largest", &["--largest=64MiB"]),
            ("--seed", &["--seed=7"]),
            ("--trace", &["--trace=pagerank=t.trace"]),
            ("--html", &["--html=page"]),
        ],
        ways: &[
            way(
                &["--only=ssp"],
                &[
                    (&["--json", "--only", "--html"], Elsewhere("crash.rs")),
                    (&["--accesses", "--size"], Elsewhere("crash.rs")),
                    (&["--seed"], Elsewhere("sim.rs")),
                    (&["--memory"], Elsewhere("crash.rs")),
                    (&["--trace"], Elsewhere("traces.rs")),
                ],
            ),
            way(
                &["--only=persistence"],
                &[
                    (&["--json", "--only", "--html"], Elsewhere("crash.rs")),
                    (&["--interval", "--memory", "--largest"], Elsewhere("crash.rs")),
                ],
            ),
        ],
    },
    Verb {
        path: "validate",
        values: &[JSON, ("--only", &["--only=4"])],
        ways: &[way(
            &["--only=4"],
            &[
                (&["--json"], Says("\"kind\": \"terrace.validate\"")),
                (&["--only"], Elsewhere("validate.rs")),
            ],
        )],
    },
    Verb {
        path: "volume create",
        values: &[
            JSON,
            ("--size", &["--size=1MiB"]),
            ("--sector", &["--sector=512"]),
            ("--spare", &["--spare=64"]),
            ("--durability", &["--durability=process-crash-only"]),
            ("--replace", &["--replace"]),
        ],
        ways: &[way(
            &["--json", "--size=1MiB", "--replace", "disk.vol"],
            &[
                (&["--json", "--size"], Elsewhere("volume.rs")),
                (&["--sector"], Field("/sector")),
                (&["--spare"], Field("/spare_blocks")),
                (&["--durability"], Field("/durability")),
                (&["--replace"], Mode),
            ],
        )],
    },
    Verb {
        path: "volume info",
        values: &[JSON, ("--durability", &["--durability=process-crash-only"])],
        ways: &[way(
            &["disk.vol"],
            &[
                (&["--json"], Says("\"kind\": \"terrace.volume.info\"")),
                (&["--durability"], Says("process-crash-only: ")),
            ],
        )],
    },
    Verb {
        path: "volume check",
        values: &[JSON, ("--repair", &["--repair"]), ("--mark-lost", &["--repair", "--mark-lost"])],
        ways: &[way(
            &["disk.vol"],
            &[
                (&["--json"], Says("\"kind\": \"terrace.volume.check\"")),
                (&["--repair", "--mark-lost"], Elsewhere("volume.rs")),
            ],
        )],
    },
    Verb {
        path: "volume dump",
        values: &[JSON, ("--partial", &["--partial"])],
        ways: &[way(
            &["disk.vol", "disk.img"],
            &[
                (&["--json"], Says("\"kind\": \"terrace.volume.dump\"")),
                (&["--partial"], Elsewhere("volume.rs")),
            ],
        )],
    },
    Verb {
        path: "volume grow",
        values: &[JSON, ("--size", &["--size=2MiB"]), ("--spare", &["--spare=64"])],
        ways: &[way(&[], &[(&["--json", "--size", "--spare"], Elsewhere("volume.rs"))])],
    },
    Verb {
        path: "volume serve",
        values: &[
            JSON,
            ("--socket", &["--socket=socket"]),
            ("--tcp", &["--tcp=127.0.0.1:0"]),
            ("--durability", &["--durability=process-crash-only"]),
            ("--read-only", &["--read-only"]),
            ("--fuse", &["--fuse=file"]),
            ("--ublk", &["--ublk"]),
        ],
        // It runs until it is stopped.
        ways: &[way(
            &[],
            &[
                (&["--json", "--socket", "--tcp", "--durability"], Elsewhere("volume.rs")),
                (&["--fuse", "--ublk"], Elsewhere("volume.rs")),
                (&["--read-only"], Elsewhere("options.rs")),
            ],
        )],
    },
    Verb {
        path: "volume bench",
        values: &[
            JSON,
            ("--depth", &["--depth=4"]),
            ("--durability", &["--durability=process-crash-only"]),
            ("--like-dax", &["--like-dax"]),
            ("--peers", &["--peers"]),
            ("--rounds", &["--rounds=2"]),
            ("--sector", &["--sector=512"]),
            ("--served", &["--served"]),
            ("--size", &["--size=4MiB"]),
            ("--threads", &["--threads=2"]),
            ("--turn", &["--turn=2ms"]),
        ],
        // It measures: each answer is another.
        ways: &[way(
            &["--json", "--size=2MiB", "--rounds=1", "--turn=1ms", "."],
            &[
                (&["--json"], Mode),
                (&["--size", "--rounds", "--turn"], Changes),
                (&["--durability", "--like-dax", "--sector", "--threads"], Elsewhere("volume.rs")),
                (&["--depth"], Lacks("--served")),
                (&["--served"], Elsewhere("volume.rs")),
                (&["--peers"], Elsewhere("options.rs")),
            ],
        )],
    },
    Verb {
        path: "govern",
        values: &[
            JSON,
            ("--cgroup", &["--cgroup=none"]),
            ("--each", &["--each=*"]),
            ("--target", &["--target=5%"]),
            ("--mode", &["--mode=enforce"]),
            ("--for", &["--for=1s"]),
            ("--report", &["--report=report"]),
            ("--metrics", &["--metrics=unix:socket"]),
            ("--quiet", &["--quiet"]),
        ],
        // It takes the right to make control groups.
        ways: &[
            way(
                &["--", "true"],
                &[
                    (&["--json", "--target", "--mode", "--report"], Elsewhere("govern.rs")),
                    (&["--metrics", "--quiet"], Elsewhere("govern.rs")),
                ],
            ),
            way(
                &["--cgroup=none"],
                &[
                    (&["--cgroup"], Needed),
                    (&["--each", "--for"], Elsewhere("govern.rs")),
                    (&["--json", "--target", "--mode", "--report"], Another),
                    (&["--metrics", "--quiet"], Another),
                ],
            ),
        ],
    },
    Verb {
        path: "freeze",
        values: &[JSON, ("--cgroup", &["--cgroup=none"])],
        // It takes a group that can be frozen.
        ways: &[way(&[], &[(&["--json", "--cgroup"], Elsewhere("freeze.rs"))])],
    },
    Verb {
        path: "thaw",
        values: &[JSON, ("--cgroup", &["--cgroup=none"])],
        ways: &[way(&[], &[(&["--json", "--cgroup"], Elsewhere("freeze.rs"))])],
    },
    Verb {
        path: "clean",
        values: &[JSON],
        ways: &[way(&[], &[(&["--json"], Says("\"kind\": \"terrace.clean\""))])],
    },
    Verb {
        path: "reproduce dapper",
        values: &[
            JSON,
            ("--only", &["--only=volume"]),
            ("--quick", &["--quick"]),
            ("--seed", &["--seed=7"]),
            ("--trace", &["--trace=bzip2=x"]),
            ("--directory", &["--directory=."]),
            ("--size", &["--size=4MiB"]),
            ("--rounds", &["--rounds=2"]),
            ("--turn", &["--turn=2ms"]),
            ("--tree", &["--tree=."]),
        ],
        // It measures: each answer is another.
        ways: &[way(
            &["--json", "--only=volume", "--size=4MiB", "--rounds=1", "--turn=1ms"],
            &[
                (&["--json"], Mode),
                (&["--only", "--size", "--rounds", "--turn"], Elsewhere("options.rs")),
                (&["--directory"], Elsewhere("reproduce_dapper.rs")),
                (&["--quick", "--seed", "--trace", "--tree"], Refused(2)),
            ],
        )],
    },
    Verb {
        path: "reproduce klocs",
        values: &[
            JSON,
            ("--quick", &["--quick"]),
            ("--seed", &["--seed=7"]),
            ("--trace", &["--trace=rocksdb=x"]),
            ("--costs", &["--costs=costs"]),
            ("--html", &["--html=page"]),
        ],
        // It takes minutes.
        ways: &[way(
            &[],
            &[
                (&["--json", "--quick", "--seed", "--html"], Elsewhere("options.rs")),
                (&["--costs"], Elsewhere("calibrate.rs")),
                (&["--trace"], Elsewhere("reproduce_klocs.rs")),
            ],
        )],
    },
    Verb {
        path: "reproduce cbmm",
        values: &[
            JSON,
            ("--quick", &["--quick"]),
            ("--only", &["--only=mcf"]),
            ("--policies", &["--policies=defer+madvise,cbmm"]),
            ("--trace", &["--trace=a=b"]),
            ("--costs", &["--costs=mm.toml"]),
            ("--seed", &["--seed=7"]),
            ("--html", &["--html=@OUT/cbmm.html"]),
            ("--record", &["--record=@OUT/cbmm.terrace"]),
        ],
        // It takes minutes.
        ways: &[way(
            &[],
            &[(
                &[
                    "--json",
                    "--quick",
                    "--only",
                    "--policies",
                    "--trace",
                    "--costs",
                    "--seed",
                    "--html",
                    "--record",
                ],
                Elsewhere("reproduce_cbmm.rs"),
            )],
        )],
    },
    Verb {
        path: "calibrate",
        values: &[JSON, ("--busy", &["--busy"])],
        // It measures for some seconds.
        ways: &[way(&[], &[(&["--json", "--busy"], Elsewhere("calibrate.rs"))])],
    },
    Verb {
        path: "calibrate kernel",
        values: &[JSON, ("--output", &["--output=costs"]), ("--directory", &["--directory=."])],
        // It measures, as root.
        ways: &[way(
            &["--output=costs"],
            &[(&["--output"], Needed), (&["--json", "--directory"], Elsewhere("calibrate.rs"))],
        )],
    },
    Verb {
        path: "calibrate mm",
        values: &[
            JSON,
            ("--output", &["--output=costs"]),
            ("--compaction", &["--compaction"]),
            ("--busy", &["--busy"]),
        ],
        // It measures for some seconds.
        ways: &[way(
            &["--output=costs"],
            &[
                (&["--output"], Needed),
                (&["--json", "--busy", "--compaction"], Elsewhere("calibrate.rs")),
            ],
        )],
    },
    Verb {
        path: "doctor",
        values: &[JSON, ("--root", &["--root=@SLOW"])],
        ways: &[way(
            &[],
            &[
                (&["--json"], Says("\"kind\": \"terrace.doctor\"")),
                (&["--root"], Elsewhere("doctor.rs")),
            ],
        )],
    },
    Verb {
        path: "why",
        values: &[
            JSON,
            ("--division", &["--division"]),
            ("--of", &["--of=@PID"]),
            ("--for", &["--for=50ms"]),
            ("--page", &["--page=0:3"]),
            ("--op", &["--op=3"]),
            ("--class", &["--class=demote"]),
            ("--process", &["--process=1"]),
            ("--context", &["--context=1"]),
            ("--last", &["--last=1"]),
            ("--partial", &["--partial"]),
        ],
        ways: &[
            way(
                &["live.record"],
                &[
                    (&["--json"], Says("\"kind\": \"terrace.why\"")),
                    (&["--page", "--op", "--last"], Differs),
                    // There is none with this number.
                    (&["--process", "--context"], Refused(2)),
                    (&["--class"], Elsewhere("in_place.rs")),
                    (&["--partial"], Elsewhere("observe.rs")),
                ],
            ),
            way(
                &["cut.record"],
                &[
                    (&["--json", "--page", "--op", "--last", "--class"], Another),
                    (&["--process"], Elsewhere("options.rs")),
                    (&["--context"], Elsewhere("traces.rs")),
                    (&["--partial"], Exits(0)),
                ],
            ),
            way(
                &["--of=@PID", "--for=50ms", "@ADDRESS"],
                &[
                    (&["--of", "--for", "--json"], Elsewhere("observe.rs")),
                    (&["--op", "--class", "--process", "--last"], Another),
                ],
            ),
        ],
    },
    Verb {
        path: "kloc run",
        values: &[
            JSON,
            ("--cgroup", &["--cgroup=nosuch"]),
            ("--path", &["--path=nosuch"]),
            ("--device", &["--device=nosuch"]),
            ("--mode", &["--mode=enforce"]),
            ("--objects", &["--objects"]),
            ("--hooks", &["--hooks=fanotify"]),
            ("--high", &["--high=80%"]),
            ("--low", &["--low=70%"]),
            ("--contexts", &["--contexts=0"]),
            ("--for", &["--for=50ms"]),
            ("--metrics", &["--metrics=unix:socket"]),
            ("--state", &["--state=state"]),
        ],
        ways: &[way(
            &["--for=50ms", "--state=state"],
            &[
                // What they do takes eBPF and files.
                (&["--json", "--for", "--state"], Elsewhere("kloc.rs")),
                (&["--cgroup", "--path", "--device"], Elsewhere("kloc.rs")),
                (&["--mode", "--objects", "--metrics"], Elsewhere("kloc.rs")),
                (&["--hooks"], Elsewhere("kloc.rs")),
                (&["--high", "--low", "--contexts"], Elsewhere("kloc.rs")),
            ],
        )],
    },
    Verb {
        path: "kloc top",
        values: &[
            JSON,
            ("--every", &["--every=200ms"]),
            ("--times", &["--times=1"]),
            ("--count", &["--count=1"]),
            ("--state", &["--state=state"]),
        ],
        ways: &[way(
            &["--state=state"],
            &[
                (&["--json", "--every", "--times"], Elsewhere("kloc.rs")),
                (&["--count", "--state"], Elsewhere("kloc.rs")),
            ],
        )],
    },
    Verb {
        path: "kloc list",
        values: &[
            JSON,
            ("--count", &["--count=1"]),
            ("--sockets", &["--sockets"]),
            ("--state", &["--state=state"]),
        ],
        ways: &[way(
            &["--state=state"],
            &[(&["--json", "--count", "--sockets", "--state"], Elsewhere("kloc.rs"))],
        )],
    },
    Verb {
        path: "kloc why",
        values: &[JSON, ("--state", &["--state=state"])],
        ways: &[way(&["ladder"], &[(&["--json", "--state"], Elsewhere("kloc.rs"))])],
    },
    Verb {
        path: "kloc report",
        values: &[JSON, ("--state", &["--state=state"])],
        ways: &[way(
            &[],
            &[
                (&["--json"], Says("\"kind\": \"terrace.kloc.report\"")),
                (&["--state"], Elsewhere("kloc.rs")),
            ],
        )],
    },
    Verb {
        path: "core",
        values: &[JSON, ("--output", &["--output=full"])],
        ways: &[way(&[], &[(&["--json", "--output"], Elsewhere("core_dump.rs"))])],
    },
    Verb {
        path: "check",
        values: &[JSON],
        ways: &[way(&["ladder"], &[(&["--json"], Says("\"kind\": \"terrace.check\""))])],
    },
    Verb {
        path: "completions",
        values: &[JSON],
        ways: &[way(&["bash"], &[(&["--json"], Says("\"kind\": \"terrace.completions\""))])],
    },
    Verb {
        path: "man",
        values: &[JSON],
        ways: &[way(&[], &[(&["--json"], Says("\"kind\": \"terrace.man\""))])],
    },
];

/// Walks through 24 MiB twice.
const WORKER: &str = r#"
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>
int main(int argc, char **argv) {
    size_t words = 24 << 17;
    size_t *m = mmap(0, words * 8, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (int round = 0; round < 2; round++)
        for (size_t i = 0; i < words; i += 8) m[i] = i * 77 + round;
    puts("right");
    // Long enough for others to look at its memory.
    if (argc > 1) usleep(300000);
    return 0;
}
"#;

const RECORDED: &str = include_str!("../../profile/tests/golden/recorded.profile");

/// What calls cost in the simulated kernel.
const COSTS: &str = include_str!("../../sim/data/kernel-calls.toml");

/// A machine with a slow node, below a directory.
const SLOW: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/provision/01-slow-node");

/// A directory with what the commands read, and programs that run meanwhile.
struct Bench {
    directory: tempfile::TempDir,
    managed: Option<Child>,
    address: String,
    plain: Option<Child>,
    swap: Option<common::Swap>,
    /// What commands answered, and what then lay in the directory.
    known: BTreeMap<Vec<String>, (Answer, BTreeSet<OsString>)>,
    /// Commands that answered the same when they were asked again.
    steady: BTreeSet<Vec<String>>,
}

/// What a command answered.
#[derive(Clone, Debug)]
struct Answer {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

impl Answer {
    fn of(output: &Output) -> Self {
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
        // How fast the simulator was is another each time.
        let same = |line: &&str| !line.contains("\"host_speed\"");
        let stdout = stdout.lines().filter(same).collect::<Vec<_>>().join("\n");
        Self { code: output.status.code(), stdout, stderr }
    }

    fn all(&self) -> String {
        format!("{}\n{}", self.stdout, self.stderr)
    }

    /// A field of the document, wherever it was printed.
    fn field(&self, pointer: &str) -> Option<serde_json::Value> {
        [&self.stdout, &self.stderr].into_iter().find_map(|text| {
            let document: serde_json::Value =
                serde_json::from_str(&text[text.find("{\n")?..]).ok()?;
            Some(document.pointer(pointer).cloned().unwrap_or_default())
        })
    }
}

impl Bench {
    fn new() -> Self {
        // Not in memory, so that all of a volume's guarantees can be had.
        let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let (known, steady) = (BTreeMap::new(), BTreeSet::new());
        let (managed, address, plain, swap) = (None, String::new(), None, None);
        let bench = Self { directory, managed, address, plain, swap, known, steady };
        let mut lackey = String::new();
        for i in 1..400 {
            let _ = writeln!(lackey, " L {:x},8\n S {:x},8", 0x10000 + i * 12288, i * 64);
        }
        bench.write("t.lackey", &lackey);
        bench.write("text", &lackey);
        bench.write("steps.txt", "map 0 2\nstore 0 5\ncheckpoint\nstore 1 6\n");
        let tier = |memory: &str, more: &str| format!("[[tier]]\nmemory = \"{memory}\"\n{more}");
        let ladder = tier("dram", "capacity = \"16MiB\"\n") + &tier("compressed", "");
        bench.write("ladder", &format!("ladder = 1\n{ladder}"));
        bench.write(
            "swap-ladder",
            &format!("ladder = 1\n{}{}", tier("numa:0", ""), tier("swap", "")),
        );
        bench.write(
            "costs.toml",
            &COSTS.replace("\"478ns\"", "\"978ns\"").replace("1500ns", "2500ns"),
        );
        bench.write("recorded.profile", RECORDED);
        let plain = common::without_rules(RECORDED);
        bench.write("plain.profile", &plain);
        bench.write("other.profile", &plain.replace("runs 2\n", "runs 3\n"));
        bench.write("cbmm.profile", include_str!("../../profile/tests/golden/cbmm.profile"));
        bench.write("cbmm.csv", include_str!("../../profile/tests/golden/cbmm.csv"));
        bench.made(&["convert", "t.lackey", "t.trace"]);
        let mut long = fs::read(bench.path("t.trace")).unwrap();
        long.extend_from_slice(b"garbage");
        fs::write(bench.path("long.trace"), long).unwrap();
        bench.made(&["volume", "create", "--size=1MiB", "disk.vol"]);
        bench
    }

    /// With programs under way, and recordings of one. Memory has to be managed for that.
    fn live() -> Self {
        let mut bench = Self::new();
        bench.record();
        compile(HOLDER, &bench.path("holder"), &["-O1"]);
        let whole = fs::read(bench.path("live.record")).unwrap();
        fs::write(bench.path("cut.record"), &whole[..whole.len() - 9]).unwrap();
        let run = ["run", "--quiet", "--fast=8MiB", "--", "./holder"].map(str::to_owned);
        bench.managed = Some(started(&mut bench.command(&run)));
        bench.address = bench.find_address();
        // With a child.
        let mut parent = Command::new("sh");
        parent.args(["-c", "./holder; exit 0"]).current_dir(bench.directory.path());
        bench.plain = Some(started(&mut parent));
        bench.swap = common::Swap::on();
        bench
    }

    /// Where the program under way has managed memory, as soon as its figures say so.
    fn find_address(&self) -> String {
        let top = words("top", &[&["--json", "--interval=100ms", "@PID"]]);
        let mut start = None;
        common::await_that(Duration::from_mins(1), "a managed region", || {
            let document = serde_json::from_str(&self.ask(&top).stdout);
            let document: serde_json::Value = document.unwrap_or_default();
            start = document["runs"][0]["processes"][0]["regions"][0]["start"].as_u64();
            start.is_some()
        });
        format!("{:#x}", start.unwrap())
    }

    /// Records a run.
    fn record(&self) {
        compile(WORKER, &self.path("worker"), &["-O1"]);
        self.made(&["run", "--fast=16MiB", "--quiet", "--record=live.record", "--", "./worker"]);
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.directory.path().join(name)
    }

    fn write(&self, name: &str, content: &str) {
        fs::write(self.path(name), content).unwrap();
    }

    fn command(&self, words: &[String]) -> Command {
        let mut command = Command::new(binary());
        command.args(words).current_dir(self.directory.path()).stdin(Stdio::null());
        command.env("TERRACE_PRELOAD", preload()).env("TERRACE_RECORDER", recorder());
        command.env("XDG_RUNTIME_DIR", self.directory.path()).env_remove("TERRACE_ROOT");
        command
    }

    fn made(&self, words: &[&str]) {
        let words: Vec<_> = words.iter().map(|&word| word.to_owned()).collect();
        let output = self.command(&words).output().unwrap();
        assert!(output.status.success(), "{words:?}: {output:?}");
    }

    /// A word with what it stands for.
    fn real(&self, word: &str) -> String {
        let number =
            |child: &Option<Child>| child.as_ref().map_or(String::new(), |c| c.id().to_string());
        word.replace("@PID", &number(&self.managed))
            .replace("@ADDRESS", &self.address)
            .replace("@PARENT", &number(&self.plain))
            .replace("@SLOW", &self.path("slow").display().to_string())
    }

    /// Makes the machine with a slow node anew: commands may write to its files.
    fn make_slow(&self) {
        let _ = fs::remove_dir_all(self.path("slow"));
        let copied = Command::new("cp").args(["-a", SLOW]).arg(self.path("slow")).status();
        assert!(copied.unwrap().success());
    }

    /// What a command answers.
    fn ask(&self, words: &[String]) -> Answer {
        if words.iter().any(|word| word.contains("@SLOW")) {
            self.make_slow();
        }
        let words: Vec<_> = words.iter().map(|word| self.real(word)).collect();
        Answer::of(&self.command(&words).output().unwrap())
    }

    /// The same, asked once.
    fn know(&mut self, words: &[String]) -> Answer {
        self.know_all(words).0
    }

    /// What a command answers and what lies in the directory then, asked once.
    fn know_all(&mut self, words: &[String]) -> (Answer, BTreeSet<OsString>) {
        if let Some(known) = self.known.get(words) {
            return known.clone();
        }
        let answer = self.ask(words);
        let there = fs::read_dir(self.directory.path()).unwrap().flatten();
        let known = (answer, there.map(|entry| entry.file_name()).collect());
        self.known.insert(words.to_vec(), known.clone());
        known
    }

    /// Whether a command whose answer is known gives it again.
    fn is_steady(&mut self, words: &[String]) -> bool {
        if !self.steady.contains(words) {
            let known = self.know(words);
            if self.ask(words).stdout != known.stdout {
                return false;
            }
            self.steady.insert(words.to_vec());
        }
        true
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        for child in [&mut self.managed, &mut self.plain].into_iter().flatten() {
            // It ends with its input.
            drop(child.stdin.take());
            let _ = child.wait();
        }
    }
}

/// Starts a holder, and waits until it holds its memory.
fn started(command: &mut Command) -> Child {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    let mut out = BufReader::new(child.stdout.as_mut().unwrap());
    out.read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    child
}

/// Whether a word gives an option.
fn gives(word: &str, option: &str) -> bool {
    word.strip_prefix(option).is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
}

fn words(path: &str, parts: &[&[&str]]) -> Vec<String> {
    let path = path.split(' ');
    path.chain(parts.iter().copied().flatten().copied()).map(str::to_owned).collect()
}

/// The tests below, each as its text: what the table itself says of an option is no test of it.
fn own_tests() -> Vec<&'static str> {
    let (_, behind_table) =
        include_str!("options.rs").split_once("\n];\n").expect("the table has an end");
    behind_table.split("\n#[test]\n").skip(1).collect()
}

/// Whether a test gives a verb an option. The verb may be one word or several.
fn is_about(test: &str, path: &str, option: &str) -> bool {
    let has = |word: &str| test.contains(&format!("\"{word}\""));
    let verb = has(path) || path.split(' ').all(has);
    verb && (has(option) || test.contains(&format!("\"{option}=")))
}

/// Tries an option in one way; what is wrong.
fn try_option(
    bench: &mut Bench,
    path: &str,
    base: &'static [&'static str],
    (option, value): (&str, &'static [&'static str]),
    does: Does,
) -> Result<(), String> {
    let beside: Vec<&str> = value.iter().copied().filter(|word| !gives(word, option)).collect();
    let with = words(path, &[value, base]);
    let without = words(path, &[&beside, base]);
    let lacking: Vec<&str> = base.iter().copied().filter(|word| !gives(word, option)).collect();
    let lacking = words(path, &[&lacking]);
    let is = |holds: bool, what: &str, answers: &[&Answer]| {
        if holds { Ok(()) } else { Err(format!("{path} {base:?}: {option}: {what}: {answers:#?}")) }
    };
    match does {
        Differs => {
            let before = bench.know(&without);
            is(bench.is_steady(&without), "is another each time", &[])?;
            let after = bench.ask(&with);
            is(after.code == before.code, "another exit code", &[&before, &after])?;
            is(after.stdout != before.stdout, "changes nothing", &[&before])
        }
        Field(pointer) => {
            let (before, after) = (bench.know(&without), bench.ask(&with));
            let (old, new) = (before.field(pointer), after.field(pointer));
            is(old != new && (old.is_some() || new.is_some()), pointer, &[&before, &after])
        }
        File(name) => {
            // It is removed after each, so that one that is there then is of the command without it.
            let at = bench.path(name);
            let (before, there) = bench.know_all(&without);
            let is_there = there.contains(OsStr::new(name));
            is(!is_there, "the file is there without it", &[&before])?;
            let after = bench.ask(&with);
            let holds = at.exists() && after.code == before.code;
            let _ = fs::remove_file(&at);
            is(holds, "no file", &[&after])
        }
        Says(text) | Hides(text) => {
            let (before, after) = (bench.know(&without), bench.ask(&with));
            let expected = matches!(does, Says(_));
            let has = (before.all().contains(text), after.all().contains(text));
            let holds = has == (!expected, expected) && after.code == before.code;
            is(holds, text, &[&before, &after])
        }
        Exits(code) => {
            let (before, after) = (bench.know(&without), bench.ask(&with));
            let holds = after.code == Some(code) && before.code != Some(code);
            is(holds, "exit code", &[&before, &after])
        }
        Refused(code) => {
            let after = bench.ask(&with);
            let mut given = value.iter().filter_map(|word| word.split('=').next());
            let named = given.any(|option| after.stderr.contains(option));
            let holds = after.code == Some(code) && named && after.stdout.is_empty();
            is(holds, "is not refused by its name", &[&after])
        }
        Needed => {
            let answer = bench.ask(&lacking);
            let holds = answer.code == Some(2) && answer.stderr.contains(option);
            is(holds, "is not needed", &[&answer])
        }
        Mode => {
            let (before, after) = (bench.know(&lacking), bench.know(&words(path, &[base])));
            let differs = (before.code, &before.stdout) != (after.code, &after.stdout);
            is(differs, "changes nothing", &[&before, &after])
        }
        Changes => {
            let other = |word: &&'static str| if gives(word, option) { value[0] } else { *word };
            let other: Vec<_> = base.iter().map(other).collect();
            let (before, after) =
                (bench.know(&words(path, &[base])), bench.ask(&words(path, &[&other])));
            is(after.code == before.code, "another exit code", &[&before, &after])?;
            is(after.stdout != before.stdout, "changes nothing", &[&before])
        }
        Lacks(other) => {
            let after = bench.ask(&with);
            let holds = after.code == Some(2) && after.stderr.contains(other);
            is(holds, "is not refused", &[&after])
        }
        Anyway => {
            let (before, after) = (bench.know(&without), bench.ask(&with));
            is(before.code == after.code, "another exit code", &[&before, &after])
        }
        // Another test looks for that way.
        Another => Ok(()),
        Elsewhere("options.rs") => {
            let about = own_tests().into_iter().any(|test| is_about(test, path, option));
            is(about, "no test here is about it", &[])
        }
        Elsewhere(file) => {
            let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
            let text = fs::read_to_string(directory.join(file)).unwrap_or_default();
            is(text.contains(option), &format!("tests/{file} is not about it"), &[])
        }
    }
}

/// Tries every option of some verbs, in each of their ways.
fn try_all(bench: &mut Bench, paths: &[&str]) {
    let mut wrong = Vec::new();
    for verb in VERBS.iter().filter(|verb| paths.contains(&verb.path)) {
        for way in verb.ways {
            let base = way.base;
            let lacks_swap = base.contains(&"--slow=swap") && bench.swap.is_none();
            // It says itself what is missing.
            if base.contains(&"--engine=kernel") && !common::has_kernel_engine() {
                continue;
            }
            let lackey = Path::new("/usr/bin/valgrind");
            if lacks_swap || (base.contains(&"--via=lackey") && !lackey.exists()) {
                eprintln!("SKIPPED: {} {base:?}: there is no swap, or no Valgrind", verb.path);
                continue;
            }
            for &(option, value) in verb.values {
                let named = way.effects().find(|(options, _)| options.contains(&option));
                let does = named.map_or(Refused(2), |(_, does)| *does);
                wrong.extend(try_option(bench, verb.path, base, (option, value), does).err());
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

/// Verbs that run programs, and look at them.
const LIVE: &[&str] = &["run", "attach", "set", "top", "metrics", "report", "replay", "why"];

#[test]
fn options_of_verbs_about_running_programs_do_something_or_are_refused() {
    if is_supported() {
        try_all(&mut Bench::live(), LIVE);
    }
}

/// Verbs that simulate access by access, under many options.
const SIMULATING: &[&str] = &["sim", "plan", "compare", "sweep"];

#[test]
fn options_of_simulations_do_something_or_are_refused() {
    try_all(&mut Bench::new(), SIMULATING);
}

#[test]
fn options_of_all_other_verbs_do_something_or_are_refused() {
    let other: Vec<_> = VERBS.iter().map(|verb| verb.path).collect();
    let other: Vec<_> = other
        .into_iter()
        .filter(|path| !LIVE.contains(path) && !SIMULATING.contains(path))
        .collect();
    try_all(&mut Bench::new(), &other);
}

/// A line of fish's completion script: the verb and one of its options.
fn option_of(line: &str) -> Option<(String, String)> {
    let rest = line.strip_prefix("complete -c terrace -n \"__fish_terrace_using_subcommand ")?;
    let (whose, what) = rest.split_once('"')?;
    let (verb, inner) = match whose.split_once("; and ") {
        None => (whose, None),
        // Options of a verb that has verbs of its own are not tried without one, unless it does
        // something by itself.
        Some((verb, inner)) if inner.starts_with("not ") && verb == "calibrate" => (verb, None),
        Some((_, inner)) if inner.starts_with("not ") => return None,
        Some((verb, inner)) => (verb, inner.strip_prefix("__fish_seen_subcommand_from ")),
    };
    let mut words = what.split(' ').skip_while(|word| *word != "-l").skip(1);
    let path = inner.map_or_else(|| verb.to_owned(), |inner| format!("{verb} {inner}"));
    Some((path, format!("--{}", words.next()?)))
}

/// A new option has to say what it does.
#[test]
fn every_option_that_there_is_is_tried() {
    let script = terrace().args(["completions", "fish"]).output().unwrap().stdout;
    let script = String::from_utf8(script).unwrap();
    let there: BTreeSet<_> = script
        .lines()
        .filter_map(option_of)
        .filter(|(path, option)| {
            !path.starts_with("help") && !["--help", "--version"].contains(&option.as_str())
        })
        .collect();
    let tried: BTreeSet<_> = VERBS
        .iter()
        .flat_map(|verb| {
            verb.values.iter().map(|(option, _)| (verb.path.to_owned(), (*option).to_owned()))
        })
        .collect();
    assert!(there.len() > 200, "only {} options are found", there.len());
    assert_eq!(there, tried);
}

/// Every way says of every option what it does, and of none that the verb lacks.
#[test]
fn what_is_said_of_options_is_said_of_options_that_there_are() {
    for verb in VERBS {
        let all: BTreeSet<_> = verb.values.iter().map(|(option, _)| *option).collect();
        for way in verb.ways {
            let base = way.base;
            let said: Vec<_> = way.effects().flat_map(|(options, _)| *options).copied().collect();
            let once: BTreeSet<_> = said.iter().copied().collect();
            assert_eq!(said.len(), once.len(), "{} {base:?}: one is said twice", verb.path);
            let unknown: Vec<_> = once.difference(&all).collect();
            assert!(unknown.is_empty(), "{} {base:?}: {unknown:?}", verb.path);
        }
    }
}

/// Where the table says that another way shows an option, one does.
#[test]
fn ways_that_are_referred_to_show_the_option() {
    for verb in VERBS {
        for (number, way) in verb.ways.iter().enumerate() {
            let referred = way.effects().filter(|(_, does)| *does == Another);
            for option in referred.flat_map(|(options, _)| *options) {
                let mut others = verb.ways.iter().enumerate().filter(|(other, _)| *other != number);
                let shown = others.any(|(_, other)| {
                    let of_it = other.effects().find(|(options, _)| options.contains(option));
                    of_it.is_some_and(|(_, does)| !matches!(does, Another | Refused(_) | Lacks(_)))
                });
                assert!(shown, "{} {:?}: no other way shows {option}", verb.path, way.base);
            }
        }
    }
}

/// A test is about an option if it gives it to the verb, in quotes. The table is no part of any test.
#[test]
fn a_line_of_the_table_is_no_test() {
    let table = ["const VERBS", ": "].concat();
    assert!(own_tests().len() > 5 && own_tests().iter().all(|test| !test.contains(&table)));
    assert!(is_about("ask(&words(\"a b\", &[&[\"--c=1\"]]))", "a b", "--c"));
    assert!(is_about("args([\"a\", \"b\", \"--c\"])", "a b", "--c"));
    assert!(!is_about("args([\"a\", \"--c\"])", "a b", "--c"));
    assert!(!is_about("args([\"a\", \"b\", \"--cd\"]) // --c", "a b", "--c"));
}

/// What would have nothing to tell is refused where nothing can be managed; the rest of
/// `--best-effort` is to run all the same.
#[test]
fn options_without_effect_on_an_unmanaged_program_are_refused() {
    if !common::is_root() || !common::has_program("/usr/bin/setpriv") {
        eprintln!("SKIPPED: only root can give rights up with setpriv");
        return;
    }
    let bench = Bench::new();
    let run = |option: &[&str]| {
        let mut command = Command::new("/usr/bin/setpriv");
        command.args(["--bounding-set=-sys_ptrace", binary_text(), "run", "--best-effort"]);
        command.args(["--fast=16MiB"]).args(option).args(["--", "sh", "-c", "exit 7"]);
        command.current_dir(bench.directory.path()).stdin(Stdio::null());
        Answer::of(&command.output().unwrap())
    };
    let told = run(&[]);
    assert_eq!(told.code, Some(7), "{told:?}");
    assert!(told.stderr.contains("warning: running unmanaged: "), "{told:?}");
    let quiet = run(&["--quiet"]);
    assert_eq!((quiet.code, quiet.stderr.as_str()), (Some(7), ""));
    for (option, file) in [("--record=f", "f"), ("--report-html=f", "f"), ("--metrics=unix:f", "f")]
    {
        let refused = run(&[option]);
        assert_eq!(refused.code, Some(3), "{refused:?}");
        let name = option.split('=').next().unwrap();
        let expected = format!("terrace: {name}: has no effect on a program that is not managed");
        assert!(refused.stderr.starts_with(&expected), "{refused:?}");
        assert!(!bench.path(file).exists());
    }
    for (option, file) in [("--report=f", "f"), ("--json", "")] {
        let told = run(&[option]);
        assert_eq!(told.code, Some(7), "{told:?}");
        assert!(file.is_empty() || bench.path(file).exists());
    }
}

/// It serves until it is stopped, so that a pair of commands does not do.
#[test]
fn a_volume_that_is_served_for_reading_alone_says_so() {
    let bench = Bench::new();
    let served = |options: &[&str]| {
        let mut words = words("volume serve", &[&["--json", "--socket=socket"], options]);
        words.push("disk.vol".to_owned());
        let mut server = bench.command(&words).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(server.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        server.kill().unwrap();
        server.wait().unwrap();
        let _ = fs::remove_file(bench.path("socket"));
        let document: serde_json::Value = serde_json::from_str(&line).unwrap();
        document["read_only"].clone()
    };
    assert_eq!((served(&[]), served(&["--read-only"])), (false.into(), true.into()));
}

/// A process is chosen by its number, which no pair of commands knows before.
#[test]
fn decisions_of_a_recording_are_chosen_by_process() {
    if !is_supported() {
        return;
    }
    let bench = Bench::new();
    bench.record();
    let decisions = |options: &[&str]| {
        let answer = bench.ask(&words("why", &[&["--json", "--last=1", "live.record"], options]));
        let decisions = answer.field("/decisions");
        decisions.unwrap_or_else(|| panic!("{answer:?}"))
    };
    let last = decisions(&[]);
    let process = last[0]["process"].as_u64().unwrap_or_else(|| panic!("{last}"));
    let option = format!("--process={process}");
    let found = decisions(&[option.as_str()]);
    assert_eq!(found[0]["process"].as_u64(), Some(process), "{found}");
    let other = bench.ask(&words("why", &[&["--process=1", "live.record"]]));
    assert_eq!(other.code, Some(2), "{other:?}");
}

/// What is measured is another each time, but what is measured is not.
#[test]
fn what_is_measured_of_volumes_is_what_was_asked_for() {
    let bench = Bench::new();
    let measured = |path: &str, options: &[&str]| {
        let answer = bench.ask(&words(path, &[&["--json"], options]));
        let document = answer.field("");
        document.unwrap_or_else(|| panic!("{path} {options:?}: {answer:?}"))
    };

    let part = ["--only=volume", "--size=4MiB", "--rounds=2", "--turn=2ms", "--directory=."];
    let dapper = measured("reproduce dapper", &part);
    assert_eq!(dapper["size"], 4 << 20, "{dapper}");
    assert_eq!((&dapper["rounds"], &dapper["turn_ns"]), (&2.into(), &2_000_000.into()));
    assert!(!dapper["volume"].as_array().unwrap().is_empty());
    assert!(
        dapper["memory"].is_null() && dapper["served"].is_null(),
        "the other parts are left out"
    );

    let targets = |options: &[&str]| -> BTreeSet<String> {
        let short = ["--size=2MiB", "--rounds=1", "--turn=1ms", "--threads=1", "--sector=4096"];
        let document = measured("volume bench", &[&short[..], options, &["."][..]].concat());
        let rows = document["library"][0]["rows"].as_array().unwrap().clone();
        rows.iter().map(|row| row["target"].as_str().unwrap().to_owned()).collect()
    };
    let (alone, beside) = (targets(&[]), targets(&["--peers"]));
    assert!(beside.is_superset(&alone) && beside.len() > alone.len(), "{alone:?} {beside:?}");
}

/// What is wrong with its options is told before it begins.
#[test]
fn a_reproduction_of_klocs_with_wrong_files_does_not_begin() {
    let bench = Bench::new();
    for option in ["--html=nowhere/page", "--costs=nowhere", "--costs=text", "--seed=x"] {
        let answer = bench.ask(&words("reproduce klocs", &[&["--quick", option]]));
        assert_eq!(answer.code, Some(2), "{answer:?}");
        let named = option.split('=').any(|part| answer.stderr.contains(part));
        assert!(named && answer.stdout.is_empty(), "{answer:?}");
    }
}

/// The whole of it, at its smallest.
#[test]
#[ignore = "simulates for minutes; `make test-long` runs it"]
fn options_of_a_reproduction_of_klocs_change_it() {
    let bench = Bench::new();
    let table = |options: &[&str]| {
        let answer = bench.ask(&words("reproduce klocs", &[&["--quick", "--json"], options]));
        answer.field("/table").unwrap_or_else(|| panic!("{options:?}: {answer:?}"))
    };
    let plain = table(&[]);
    assert_eq!(plain["scale"], 512, "the quick one");
    let seeded = table(&["--seed=7", "--html=klocs.html"]);
    assert_ne!(plain["runs"], seeded["runs"]);
    let page = fs::read_to_string(bench.path("klocs.html")).unwrap();
    assert!(page.contains("Figure 2 by kind") && page.contains("Figure 6"), "{page}");
    let costly = table(&["--costs=costs.toml"]);
    assert_ne!(plain["runs"], costly["runs"]);
}
