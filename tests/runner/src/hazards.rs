//! The hazard suite: compiles the C programs in `tests/hazards`, runs each on
//! plain Linux, which is the oracle, and then under `terrace run` with a budget
//! far below the memory that it uses.

use std::env;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use terrace_policy::PolicyName;

use crate::harness::{Case, Verdict, number};
use crate::process::{self, Finished};
use crate::report::Report;
use crate::{sweep, terrace};

/// The exit status by which a program says that this machine cannot show its hazard.
pub(crate) const SKIPPED: i32 = 77;

/// The exit status by which a program says that it met a known limit of managing
/// memory in user space (an error where plain memory would work, never wrong
/// content). The documentation lists these limits.
const LIMIT: i32 = 78;

/// Programs that may meet one, and so end. From any other it is a failure.
const LIMITED: &[&str] = &["mremap_several_raw", "sys_proc_mem", "sys_ptrace"];

/// The budget of a managed run: a third of what one churn sweeps over.
const BUDGET: &str = "1MiB";

/// Programs that need more to show anything: huge pages come in where there is room
/// for some, and relatives keep in common what is not much of it. They are repeated a tenth as often. With the arguments they are run with.
const LARGER: &[(&str, &str, &[&str])] = &[
    ("collapse_asked", "16MiB", &[]),
    ("collapses", "32MiB", &["--huge-pages", "always"]),
    ("fork_family", "6MiB", &[]),
    ("walks_fresh", "64MiB", &[]),
];

/// Programs of which a run takes several tenths of a second: repeated a fifth as often, or
/// they alone would take as long as all the others.
const LONG: &[&str] = &[
    "blocks_changed",
    "blocks_refused",
    "clone_vm_outlives",
    "credentials",
    "debugger_attached",
    "discard_while_read",
    "dlopen_constructor",
    "exit_variants",
    "faults_beside_discards",
    "fork_before_memory",
    "fork_beside_raw",
    "fork_depth",
    "fork_discards_shared",
    "fork_during_changes",
    "fork_during_events",
    "fork_during_mremap",
    "fork_during_wipes",
    "fork_small_pieces",
    "fork_small_stack",
    "fork_while_guards",
    "fork_while_threads_fault",
    "huge_pages",
    "kill_children_anywhere",
    "kill_parent_anywhere",
    "limit_address_space",
    "limit_threads",
    "mappings_large",
    "mappings_used_up",
    "mmap_pieces",
    "mremap_grows_alone",
    "mremap_onto_forks",
    "mremap_several",
    "mremap_several_raw",
    "munmap_reused",
    "namespaces_left",
    "oom_cgroup",
    "privileges_dropped",
    "regions_thousand",
    "reserve_commit",
    "reserve_holes",
    "reserve_often",
    "sandbox_ends",
    "sealed",
    "search_in_vain",
    "shm_remap",
    "sys_process_vm",
    "thread_small_stack",
    "user_changes_first",
];

/// Programs of which a run takes one and a half to nine seconds: repeated a tenth as often.
const LONGEST: &[&str] = &[
    "fork_during_calls",
    "limit_given_back",
    "mremap_onto",
    "own_allocator",
    "own_allocator_early",
    "own_functions",
    "own_jemalloc",
    "own_mimalloc",
    "own_tcmalloc",
    "regions_used_up",
    "reserve_large",
    "threads_fault_during_changes",
];

/// Programs that are linked with more: options, and libraries, without which they say so.
const LINKED: &[(&str, &[&str])] = &[
    ("own_functions", &["-rdynamic"]),
    ("own_jemalloc", &["libjemalloc.a", "libstdc++.so"]),
    ("own_mimalloc", &["libmimalloc.so"]),
    ("own_tcmalloc", &["libtcmalloc_minimal.a", "libstdc++.so"]),
];

/// Programs that are not run with a spill file. Who writes by `io_uring` has threads of the kernel's
/// own, which count where a namespace is left.
const UNSPILLED: [&str; 1] = ["namespaces_left"];

/// Programs of which Terrace rightly says something, and what.
const SAYS: [(&str, &str); 9] = [
    ("fork_beside_raw", "a forked child goes on without Terrace"),
    ("fork_during_calls", "a forked child goes on without Terrace"),
    ("fork_during_wipes", "a forked child goes on without Terrace"),
    ("fork_raw", "a forked child goes on without Terrace"),
    ("fork_raw_changes", "a forked child goes on without Terrace"),
    ("fork_unknown", "a forked child goes on without Terrace"),
    ("fork_while_guards", "a forked child goes on without Terrace"),
    ("madvise_fork", "a forked child goes on without Terrace"),
    // Nobody may make a file in root's folder, nor find it from another root.
    ("user_changes_first", "the spill file is not used: "),
];

/// Whether that is all there is on stderr.
pub(crate) fn says_what_is_right(program: &Path, stderr: &str) -> bool {
    let says = SAYS.iter().find(|(says, _)| *says == name(program));
    says.is_some_and(|(_, expected)| stderr.lines().all(|line| line.contains(expected)))
}

/// What `terrace run` warns of while it lasts.
const WARNS: [&str; 2] = ["warning: the program thrashes: ", " are resident in a budget of "];

/// Of so many managed runs one has another policy than the default, by turns: fewer where
/// there are enough of them for every policy's turn.
const OTHERS: (usize, usize) = (2, 4);

/// The policy of a program's managed run, counted from 1; `None` for the default. So that
/// the programs that are run only a few times do not all leave out the same policies, each
/// begins with another.
fn policy(program: &str, repeat: usize, round: usize) -> Option<PolicyName> {
    let live = &PolicyName::LIVE;
    let one_of = if repeat >= OTHERS.1 * live.len() { OTHERS.1 } else { OTHERS.0 };
    let first: usize = program.bytes().map(usize::from).sum();
    round.is_multiple_of(one_of).then(|| live[(first + round / one_of) % live.len()])
}

/// Programs of which a process cannot be managed to its end, and what the report says of it.
/// Managed until then, they end as they do on plain Linux.
const UNMANAGED: &[(&str, &str)] = &[
    ("blocks_refused", "vm.max_map_count"),
    ("clone_vm_outlives", "another process goes on with its memory"),
    ("fork_no_descriptors", "it forks and may open no file any more"),
    ("limit_given_back", "fits its limits only without Terrace"),
    ("limit_threads", "could not have threads of ours"),
    ("mappings_used_up", "vm.max_map_count"),
    ("namespaces_left", "it changed its namespace"),
    ("own_userfaultfd_managed", "it uses userfaultfd itself"),
    ("sandbox_ends", "another process goes on with its memory"),
    ("sandbox_tsync", "a filter on the system calls of all its threads"),
    ("sandbox_unforeseen", "absent memory cannot be brought in"),
];

/// What a process says that goes on without Terrace.
const WITHOUT: &str = "the program goes on without Terrace";

/// The budget of a program's managed run, and arguments of its own.
fn settings(program: &Path) -> (&'static str, &'static [&'static str]) {
    let name = name(program);
    let larger = LARGER.iter().find(|(larger, ..)| *larger == name);
    larger.map_or((BUDGET, &[]), |&(_, budget, arguments)| (budget, arguments))
}

/// How often a program is run under Terrace.
fn repeats(program: &Path, repeat: usize) -> usize {
    let name = name(program);
    if settings(program).0 != BUDGET || LONGEST.contains(&name.as_str()) {
        repeat.div_ceil(10)
    } else if LONG.contains(&name.as_str()) {
        repeat.div_ceil(5)
    } else {
        repeat
    }
}

/// How the suite is run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Runs of each program under Terrace (`HAZARD_REPEAT`, 1).
    pub repeat: usize,
    /// Programs at a time (`HAZARD_JOBS`, the number of processors).
    pub jobs: usize,
    /// When a program counts as hanging (`HAZARD_TIMEOUT`, 120 s). Most take less than one;
    /// `fork_while_threads_fault`, whose threads never rest, once took 27, as one of three at a
    /// time on two processors.
    pub limit: Duration,
    /// Further arguments of `terrace run`, for trying policies and tiers
    /// (`HAZARD_RUN_ARGS`; none, and then policies take turns).
    pub arguments: Vec<String>,
    /// For how many seconds something breaks at random, instead of everything else
    /// (`HAZARD_SWEEP`, 0); with which seed (`HAZARD_SEED`, the time).
    pub sweep: (usize, usize),
}

impl Options {
    /// Reads the environment.
    pub fn from_environment() -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let arguments = env::var("HAZARD_RUN_ARGS").unwrap_or_default();
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let now = now.map_or(1, |since| since.as_secs() as usize);
        Self {
            repeat: number("HAZARD_REPEAT", 1),
            jobs: number("HAZARD_JOBS", processors),
            limit: Duration::from_secs(number("HAZARD_TIMEOUT", 120) as u64),
            arguments: arguments.split_whitespace().map(str::to_owned).collect(),
            sweep: (number("HAZARD_SWEEP", 0), number("HAZARD_SEED", now)),
        }
    }
}

/// Every hazard in every environment, plain before managed.
pub fn cases(options: &Options) -> Result<Vec<Case>, String> {
    let mut sources = files("c")?;
    sources.sort();
    let programs = compile(&sources, options.jobs)?;
    // `HAZARD_PLAIN=only` is for writing programs before there is anything to test.
    let managed = env::var("HAZARD_PLAIN").as_deref() != Ok("only");
    let terrace = if managed { Some(terrace::executable()?) } else { None };
    if let ((seconds @ 1.., seed), Some(terrace)) = (options.sweep, &terrace) {
        let length = Duration::from_secs(seconds as u64);
        return Ok(sweep::cases(&programs, terrace, options, length, seed as u64));
    }

    let plain = programs.iter().map(|program| {
        let (program, limit) = (program.clone(), options.limit);
        Case {
            name: format!("hazards::{} [plain]", name(&program)),
            run: Box::new(move || verdict(&program, 1, || plain_run(&program, limit))),
        }
    });
    let managed = terrace.iter().flat_map(|terrace| {
        programs.iter().map(|program| {
            let (program, terrace) = (program.clone(), terrace.clone());
            let options = options.clone();
            let repeat = repeats(&program, options.repeat);
            Case {
                name: format!("hazards::{} [managed x{repeat}]", name(&program)),
                run: Box::new(move || by_turns(&program, repeat, &terrace, &options)),
            }
        })
    });
    let spilled = terrace.iter().filter(|_| !options.arguments.iter().any(|a| a == SPILL[0]));
    let spilled = spilled.flat_map(|terrace| {
        programs.iter().filter(|program| !UNSPILLED.contains(&name(program).as_str())).map(
            |program| {
                let (program, terrace) = (program.clone(), terrace.clone());
                let mut options = options.clone();
                options.arguments.extend(SPILL.iter().map(ToString::to_string));
                let repeat = options.repeat.div_ceil(20);
                Case {
                    name: format!("hazards::{} [spilled x{repeat}]", name(&program)),
                    run: Box::new(move || {
                        verdict(&program, repeat, || managed_run(&program, &terrace, &options))
                    }),
                }
            },
        )
    });
    let injected = terrace.iter().flat_map(|terrace| {
        INJECTED.iter().flat_map(|&(fault, names)| {
            let (options, terrace) = (options.clone(), terrace.clone());
            programs.iter().filter(|program| names.contains(&name(program).as_str())).map(
                move |program| {
                    let (program, terrace) = (program.clone(), terrace.clone());
                    let options = options.clone();
                    Case {
                        name: format!("hazards::{} [{fault}]", name(&program)),
                        run: Box::new(move || {
                            let repeat = options.repeat.div_ceil(20);
                            verdict(&program, repeat, || {
                                injected_run(&program, &terrace, &options, fault)
                            })
                        }),
                    }
                },
            )
        })
    });
    let compacted = terrace.iter().flat_map(|terrace| {
        programs.iter().filter(|program| COMPACTED.contains(&name(program).as_str())).map(
            |program| {
                let (program, terrace) = (program.clone(), terrace.clone());
                let options = options.clone();
                let repeat = options.repeat.div_ceil(10);
                Case {
                    name: format!("hazards::{} [compaction x{repeat}]", name(&program)),
                    run: Box::new(move || compacted_run(&program, &terrace, &options, repeat)),
                }
            },
        )
    });
    Ok(plain.chain(managed).chain(spilled).chain(injected).chain(compacted).collect())
}

/// Has nearly everything that has left DRAM lie in a file.
const SPILL: &[&str] = &["--spill", "spilled", "--store-limit", "64KiB"];

/// What runs while the kernel moves pages about for its own reasons: programs whose
/// pages come and go all the time.
const COMPACTED: &[&str] = &["malloc_storm"];

/// Writing to it has the kernel compact memory: it migrates pages wherever it can.
const COMPACT: &str = "/proc/sys/vm/compact_memory";
/// Copies at once: with one alone the kernel and the pager seldom meet.
const COPIES: usize = 3;

/// Managed runs while the kernel compacts memory over and over. Linux from 6.18 on
/// loses count of what `UFFDIO_MOVE` has moved when it meets a page that is being
/// migrated (decision 0002); a pager that believes it loses the page.
fn compacted_run(program: &Path, terrace: &Path, options: &Options, repeat: usize) -> Verdict {
    if let Err(error) = fs::write(COMPACT, "1") {
        return Verdict::Skipped(format!("{COMPACT} cannot be written ({error}): NOT shown"));
    }
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                let _ = fs::write(COMPACT, "1");
            }
        });
        let copy = || verdict(program, repeat, || managed_run(program, terrace, options));
        let copies: Vec<_> = (0..COPIES).map(|_| scope.spawn(copy)).collect();
        let verdicts: Vec<_> =
            copies.into_iter().map(|copy| copy.join().expect("no panic")).collect();
        over.store(true, Ordering::Relaxed);
        let bad = verdicts.into_iter().find(|verdict| !matches!(verdict, Verdict::Passed));
        bad.unwrap_or(Verdict::Passed)
    })
}

/// What is broken in the middle of which programs (`TERRACE_INJECT`, see
/// `crates/live/src/failsafe/inject.rs`): a thread of Terrace's dies, or hangs for a
/// while, where most is half done. The program must not notice.
const INJECTED: [(&str, &[&str]); 41] = [
    ("fault:1:panic", EVERYTHING),
    ("fault:6:panic", &["mremap_dontunmap"]),
    ("fault:70:panic", &["madvise_guard"]),
    ("fault:300:panic", &["patterns", "threads_same_page"]),
    ("promote:1:panic", EVERYTHING),
    ("promote:200:panic", &["patterns", "threads_same_page"]),
    ("promoted:1:panic", EVERYTHING),
    ("promoted:200:panic", &["patterns"]),
    ("stage:1:panic", EVERYTHING),
    ("stage:30:panic", &["patterns"]),
    ("settle:1:panic", EVERYTHING),
    ("settle:400:panic", &["patterns", "threads_same_page"]),
    ("event:1:panic", &["madvise_dontneed", "munmap_parts", "mremap_fixed", "fork_parent_ends"]),
    ("event:2:panic", &["mremap_fixed", "mremap_grow_shrink"]),
    ("event:3:panic", &["mremap_fixed"]),
    ("event:5:panic", &["mremap_fixed"]),
    ("tick:1:panic", EVERYTHING),
    // What managing takes can be given back whichever thread broke.
    ("tick:1:panic", &["limit_given_back"]),
    ("write:1:panic", &["limit_given_back"]),
    ("promote:100:stall", &["threads_same_page", "fork_while_threads_fault"]),
    ("stage:10:stall", &["madvise_dontneed", "fork_while_threads_fault"]),
    ("event:1:stall", &["madvise_dontneed", "mmap_after_unmap"]),
    ("spilled/promoted:200:panic", &["patterns", "threads_same_page", "threads_lost_update"]),
    ("spilled/tick:1:panic", &["patterns", "threads_same_page", "threads_lost_update"]),
    ("write:1:panic", &["patterns", "threads_same_page"]),
    ("write:3:panic", FORKING),
    ("write:200:panic", &["patterns", "fork_parent_ends", "fork_chain"]),
    ("fork:1:panic", FORKING),
    ("fork:1:panic", &["madvise_fork"]),
    ("fork:3:panic", &["fork_chain"]),
    ("settle:40:panic", FORKING),
    ("stage:10:panic", FORKING),
    ("fork:1:stall", &["fork_both_write", "fork_while_threads_fault"]),
    ("register:1:refuse", &["fork_both_write"]),
    ("register:3:refuse", &["fork_chain", "fork_both_write"]),
    ("collapse:3:panic", &["collapses"]),
    ("collapse:9:stall", &["collapses"]),
    ("listed:1:stall", &["mremap_at_start"]),
    ("unshare:1:stall", &["fork_discards_shared"]),
    ("unshare:2:stall", &["fork_discards_shared"]),
    ("unshare:1:panic", &["fork_discards_shared"]),
];

/// In front of what breaks while there is a spill file, and so one more thread to stop.
pub(crate) const SPILLED: &str = "spilled/";

const EVERYTHING: &[&str] = &[
    "patterns",
    "threads_same_page",
    "threads_lost_update",
    "madvise_dontneed",
    "munmap_parts",
    "brk_heap",
    "sys_read_write",
];

/// Those whose memory somebody may leave behind half brought in.
const FORKING: &[&str] =
    &["fork_both_write", "fork_chain", "fork_parent_ends", "fork_while_threads_fault"];

fn directory() -> PathBuf {
    terrace::root().join("tests/hazards")
}

/// The suite's files with this extension.
fn files(wanted: &str) -> Result<Vec<PathBuf>, String> {
    let all = fs::read_dir(directory()).map_err(|e| format!("{}: {e}", directory().display()))?;
    let paths = all.filter_map(|entry| entry.ok().map(|entry| entry.path()));
    let has_it = |path: &PathBuf| path.extension().is_some_and(|extension| extension == wanted);
    Ok(paths.filter(has_it).collect())
}

pub(crate) fn name(program: &Path) -> String {
    program.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Compiles what is older than its source. Warnings are errors: a program that
/// is not right proves nothing about Terrace.
fn compile(sources: &[PathBuf], jobs: usize) -> Result<Vec<PathBuf>, String> {
    let target = terrace::target().join("hazards");
    fs::create_dir_all(&target).map_err(|e| format!("{}: {e}", target.display()))?;
    let header = files("h")?.iter().filter_map(|header| modified(header)).max();
    let compiler = env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let next = AtomicUsize::new(0);
    let one = |source: &PathBuf| -> Result<PathBuf, String> {
        let program = target.join(source.file_stem().unwrap_or_default());
        let made = modified(&program);
        if made.is_some() && made > modified(source) && made > header {
            return Ok(program);
        }
        let output = Command::new(&compiler)
            .args(["-std=gnu11", "-O2", "-g", "-Wall", "-Wextra", "-Werror", "-pthread", "-o"])
            .arg(&program)
            .arg(source)
            .args(linked(&compiler, &program))
            .args(["-ldl", "-lm"])
            .output()
            .map_err(|e| format!("the C compiler `{compiler}` could not be started: {e}"))?;
        if output.status.success() {
            Ok(program)
        } else {
            Err(String::from_utf8_lossy(&output.stderr).into_owned())
        }
    };
    let results = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..jobs.max(1))
            .map(|_| {
                scope.spawn(|| {
                    let mut done = Vec::new();
                    while let Some(source) = sources.get(next.fetch_add(1, Ordering::Relaxed)) {
                        done.push(one(source));
                    }
                    done
                })
            })
            .collect();
        workers.into_iter().flat_map(|worker| worker.join().expect("no panic")).collect::<Vec<_>>()
    });
    let mut programs = results.into_iter().collect::<Result<Vec<_>, _>>()?;
    programs.sort();
    Ok(programs)
}

/// What a program is linked with, of what there is.
fn linked(compiler: &str, program: &Path) -> Vec<String> {
    let more = LINKED.iter().find(|(linked, _)| *linked == name(program));
    let place = |wanted: &&str| {
        if wanted.starts_with('-') {
            return Some((*wanted).to_owned());
        }
        let asked = Command::new(compiler).arg(format!("-print-file-name={wanted}")).output();
        let answer = String::from_utf8(asked.ok()?.stdout).ok()?.trim().to_owned();
        // Just the name, where there is none.
        Path::new(&answer).is_absolute().then_some(answer)
    };
    more.map_or(Vec::new(), |(_, more)| more.iter().filter_map(place).collect())
}

fn modified(path: &Path) -> Option<SystemTime> {
    fs::metadata(path).and_then(|file| file.modified()).ok()
}

/// Managed runs under policies by turns, unless the user has chosen how.
fn by_turns(program: &Path, repeat: usize, terrace: &Path, options: &Options) -> Verdict {
    let under =
        |round| policy(&name(program), repeat, round).filter(|_| options.arguments.is_empty());
    let run = |round| {
        let mut options = options.clone();
        if let Some(policy) = under(round) {
            options.arguments = vec!["--policy".to_owned(), policy.to_string()];
        }
        managed_run(program, terrace, &options)
    };
    let named = |round| {
        let setting = under(round).map(|p| format!("HAZARD_RUN_ARGS=\"--policy {p}\" "));
        setting.unwrap_or_default()
    };
    verdict_of(program, repeat, run, named)
}

/// Repeats a run until it fails, hangs or is skipped.
fn verdict(
    program: &Path,
    repeat: usize,
    run: impl Fn() -> io::Result<(Finished, Option<String>)>,
) -> Verdict {
    verdict_of(program, repeat, |_| run(), |_| String::new())
}

/// The same for runs that differ; `named` says what of the environment a run had.
fn verdict_of(
    program: &Path,
    repeat: usize,
    run: impl Fn(usize) -> io::Result<(Finished, Option<String>)>,
    named: impl Fn(usize) -> String,
) -> Verdict {
    for round in 1..=repeat {
        let failed = |why: String| {
            let setting = named(round);
            let again = format!(
                "again: {setting}HAZARD_REPEAT={repeat} make hazards ONLY={}",
                name(program)
            );
            Verdict::Failed(format!("run {round} of {repeat}: {why}\n{again}"))
        };
        match run(round) {
            Err(error) => return failed(error.to_string()),
            Ok((finished, _)) if finished.code() == Some(SKIPPED) => {
                let why = finished.stderr.trim();
                return Verdict::Skipped(why.strip_prefix("skip: ").unwrap_or(why).to_owned());
            }
            Ok((finished, _)) if finished.code() == Some(LIMIT) && has_limit(program) => {
                let what = finished.stderr.trim();
                return Verdict::Limited(what.strip_prefix("limit: ").unwrap_or(what).to_owned());
            }
            Ok((finished, _)) if !finished.succeeded() => return failed(finished.complaint()),
            Ok((finished, Some(complaint))) => {
                return failed(format!("{complaint}\n{}", finished.stderr.trim()));
            }
            Ok((finished, None)) if !finished.stderr.is_empty() => {
                return failed(format!("it passed, but said:\n{}", finished.stderr));
            }
            Ok(_) => {}
        }
    }
    Verdict::Passed
}

/// Whether a program may end by meeting a known limit.
fn has_limit(program: &Path) -> bool {
    LIMITED.contains(&name(program).as_str())
}

fn plain_run(program: &Path, limit: Duration) -> io::Result<(Finished, Option<String>)> {
    let scratch = tempfile::tempdir()?;
    let mut command = Command::new(program);
    command.current_dir(scratch.path());
    Ok((process::run(&mut command, scratch.path(), limit)?, None))
}

/// Runs in which nothing broke before one counts as a failure. A program may be over
/// before the point is reached, where others want the processors: once in some 1 000.
const IN_VAIN: usize = 3;

/// A managed run in which something of Terrace's breaks. It must end as well as
/// any; when a thread dies it says so, and the report does.
fn injected_run(
    program: &Path,
    terrace: &Path,
    options: &Options,
    fault: &str,
) -> io::Result<(Finished, Option<String>)> {
    for _ in 1..IN_VAIN {
        let (finished, complaint) = injected_once(program, terrace, options, fault)?;
        if complaint.as_deref() != Some(NOTHING_BROKE) {
            return Ok((finished, complaint));
        }
    }
    injected_once(program, terrace, options, fault)
}

const NOTHING_BROKE: &str = "nothing broke: this run shows nothing";

/// The same, once.
pub(crate) fn injected_once(
    program: &Path,
    terrace: &Path,
    options: &Options,
    fault: &str,
) -> io::Result<(Finished, Option<String>)> {
    let scratch = tempfile::tempdir()?;
    let report = scratch.path().join("report.json");
    let (budget, arguments) = settings(program);
    let mut command = Command::new(terrace);
    command
        .current_dir(scratch.path())
        .env("TERRACE_INJECT", fault.trim_start_matches(SPILLED))
        .args(["--json", "run", "--engine=pager", "--fast", budget, "--report"])
        .arg(&report)
        .args(arguments);
    if fault.starts_with("write:") || fault.starts_with(SPILLED) {
        command.args(SPILL);
    }
    command.arg("--").arg(program);
    let mut finished = process::run(&mut command, scratch.path(), options.limit)?;
    without_warnings(&mut finished);
    if !finished.succeeded() {
        return Ok((finished, None));
    }
    let broke = finished.stderr.contains(WITHOUT);
    let complaint = match Report::read(&report) {
        Err(error) => Some(error),
        Ok(_) if fault.ends_with(":stall") => None,
        Ok(_) if !broke => Some(NOTHING_BROKE.to_owned()),
        // A child that was forked before has a state of its own.
        Ok(report) if report.gave_up().is_none() => {
            Some("the report does not say that something broke".to_owned())
        }
        Ok(_) => None,
    };
    if broke {
        finished.stderr.clear();
    }
    Ok((finished, complaint))
}

/// In the tiny budgets of hazards, and beside others, programs may well thrash for long.
fn without_warnings(finished: &mut Finished) {
    let lines = finished.stderr.lines().filter(|line| !WARNS.iter().any(|w| line.contains(w)));
    finished.stderr = lines.collect::<Vec<_>>().join("\n");
}

fn managed_run(
    program: &Path,
    terrace: &Path,
    options: &Options,
) -> io::Result<(Finished, Option<String>)> {
    let scratch = tempfile::tempdir()?;
    let report = scratch.path().join("report.json");
    let (budget, arguments) = settings(program);
    let mut command = Command::new(terrace);
    command
        .current_dir(scratch.path())
        .env("HAZARD_MANAGED", "1")
        .args(["--json", "run", "--engine=pager", "--fast", budget, "--report"])
        .arg(&report)
        .args(arguments)
        .args(&options.arguments)
        .arg("--")
        .arg(program);
    if options.arguments.iter().any(|argument| argument == SPILL[0]) {
        command.env("HAZARD_SPILLED", "1");
    }
    let mut finished = process::run(&mut command, scratch.path(), options.limit)?;
    let unmanaged = UNMANAGED.iter().find(|(unmanaged, _)| *unmanaged == name(program));
    if unmanaged.is_some() {
        let others = finished.stderr.lines().filter(|line| !line.ends_with(WITHOUT));
        finished.stderr = others.collect::<Vec<_>>().join("\n");
    }
    without_warnings(&mut finished);
    if let Some((_, expected)) = SAYS.iter().find(|(says, _)| *says == name(program)) {
        let others = finished.stderr.lines().filter(|line| !line.contains(expected));
        finished.stderr = others.collect::<Vec<_>>().join("\n");
    }
    // A hazard that found all its memory in place has shown nothing.
    let complaint = finished.succeeded().then(|| match Report::read(&report) {
        Err(error) => Some(error),
        Ok(report) if report.gave_up().is_some() || unmanaged.is_some() => {
            let (why, expected) = (report.gave_up(), unmanaged.map(|&(_, expected)| expected));
            match (&why, expected) {
                (Some(why), Some(expected)) if why.contains(expected) => None,
                (_, Some(expected)) => Some(format!("{why:?}, not `{expected}`")),
                (_, None) => why,
            }
        }
        Ok(report) if report.demotions() == 0 => {
            Some("it passed, but no page ever left DRAM: this run shows nothing".to_owned())
        }
        Ok(_) => None,
    });
    Ok((finished, complaint.flatten()))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    use super::*;
    use crate::process::Ending;

    fn ended(program: &str, code: i32, said: &str) -> Verdict {
        verdict(Path::new(program), 2, || {
            let finished = Finished {
                ending: Ending::Exited(ExitStatus::from_raw(code << 8)),
                stdout: Vec::new(),
                stderr: said.to_owned(),
                elapsed: Duration::ZERO,
                peak: terrace_core::Bytes::ZERO,
            };
            Ok((finished, None))
        })
    }

    /// Otherwise any program could stop testing by calling what it has met a limit.
    #[test]
    fn a_known_limit_is_one_only_of_the_programs_that_have_it() {
        let said = "limit: reading gives EIO\n";

        assert_eq!(ended("sys_ptrace", LIMIT, said), Verdict::Limited("reading gives EIO".into()));
        let Verdict::Failed(why) = ended("sys_read_write", LIMIT, said) else {
            panic!("another program's limit is a failure")
        };
        assert!(why.contains("exit status: 78"), "{why}");
        let skipped = Verdict::Skipped("no device".into());
        assert_eq!(ended("sys_read_write", SKIPPED, "skip: no device\n"), skipped);
    }

    /// A name that is no program's permits nothing, and would be there for nothing.
    #[test]
    fn every_program_that_is_named_exists() {
        let permitted = crate::harness::MAY_BE_SKIPPED.iter();
        let permitted = permitted.filter_map(|(name, _)| name.strip_prefix("hazards::"));
        let larger = LARGER.iter().map(|(name, ..)| *name);
        let named = LIMITED.iter().chain(LONG).chain(LONGEST).chain(COMPACTED).copied();

        for name in named.chain(permitted).chain(larger) {
            assert!(directory().join(format!("{name}.c")).exists(), "{name}");
        }
    }

    /// What the preloaded library exports in place of the C library's functions, as its sources say.
    fn hooked() -> BTreeSet<String> {
        let is_of_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let mut names = BTreeSet::new();
        let sources = fs::read_dir(terrace::root().join("crates/preload/src")).expect("sources");
        for source in sources {
            let text = fs::read_to_string(source.expect("an entry").path()).expect("a source");
            for exported in text.split("#[unsafe(no_mangle)]").skip(1) {
                let declared = exported.split(['{', ';']).next().unwrap_or_default();
                let named = declared.split_once(" fn ").map_or("", |(_, name)| name);
                let name = named.split(|c: char| !is_of_name(c)).next().unwrap_or_default();
                names.insert(name.to_owned());
            }
            // Lists that a macro makes functions of: `name c"name"`, `name(arguments) c"name"`, or
            // `c"name" name(arguments)`.
            for (at, _) in text.match_indices("c\"") {
                let name = text[at + 2..].split('"').next().unwrap_or_default();
                let before = text[..at].trim_end();
                let before = match before.strip_suffix(')') {
                    Some(inside) => inside.rsplit_once('(').map_or("", |(before, _)| before),
                    None => before,
                };
                let after = text.get(at + 2 + name.len() + 1..).unwrap_or_default().trim_start();
                if before.strip_suffix(name).is_some_and(|rest| !rest.ends_with(is_of_name))
                    || after.strip_prefix(name).is_some_and(|rest| rest.starts_with('('))
                {
                    names.insert(name.to_owned());
                }
            }
        }
        names.remove("");
        names
    }

    /// A child is made at any moment of whatever other threads are at.
    #[test]
    fn every_call_that_is_hooked_is_made_by_another_thread_during_forks() {
        let beside = ["fork_during_calls", "fork_during_changes", "fork_during_events"];
        let text = beside.map(|name| {
            let source = directory().join(format!("{name}.c"));
            fs::read_to_string(source).expect("a program")
        });
        let is_called = |name: &str| {
            text.iter().any(|text| {
                text.match_indices(&format!("{name}(")).any(|(at, _)| {
                    !text[..at].ends_with(|c: char| c.is_ascii_alphanumeric() || c == '_')
                })
            })
        };
        let hooked = hooked();
        assert!(hooked.len() > 50 && hooked.contains("setresuid"), "{hooked:?}");
        // That is what `pthread_atfork` calls, which is a part of each program.
        let by_name = hooked.iter().map(String::as_str);
        let by_name =
            by_name.map(|name| if name == "__register_atfork" { "pthread_atfork" } else { name });
        let missing: Vec<_> = by_name.filter(|name| !is_called(name)).collect();
        assert!(missing.is_empty(), "{missing:?} is hooked, and in none of {beside:?}");
    }

    fn policies(program: &str, repeat: usize) -> Vec<PolicyName> {
        (1..=repeat).filter_map(|round| policy(program, repeat, round)).collect()
    }

    /// A policy that no hazard meets is not known to survive any. One program meets eight others in the
    /// 16 runs of `make test`, and all in more. The last number is that of `make test-long` for those
    /// that are run least.
    #[test]
    fn every_policy_gets_its_turn() {
        let of_make_test: BTreeSet<_> =
            policies("patterns", 16).into_iter().map(PolicyName::name).collect();
        assert_eq!(of_make_test.len(), 8, "{of_make_test:?}");
        for (repeat, one_of) in [(24, 2), (80, 4), (200, 4)] {
            let seen = policies("patterns", repeat);
            assert!(PolicyName::LIVE.iter().all(|policy| seen.contains(policy)), "{repeat}");
            assert!(seen.len() <= repeat / one_of, "{repeat}: the default has its part");
        }
    }

    #[test]
    fn programs_that_are_run_seldom_share_the_policies_among_them() {
        let seen: Vec<_> = LONG
            .iter()
            .chain(LONGEST)
            .flat_map(|program| policies(program, repeats(Path::new(program), 16)))
            .collect();
        assert!(PolicyName::LIVE.iter().all(|policy| seen.contains(policy)), "{seen:?}");
    }

    #[test]
    fn one_run_is_the_default_s() {
        assert!(policies("patterns", 1).is_empty());
    }
}
