//! Cases and result lines in the form of the standard test harness, for tests
//! that are programs rather than functions.

use std::env;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use terrace_shown::must_show_everything;

/// How a case ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It passed.
    Passed,
    /// It failed, for this reason (any number of lines).
    Failed(String),
    /// It cannot be shown on this machine, for this reason.
    Skipped(String),
    /// It met a limit that is documented, and named where the case is: this one.
    Limited(String),
}

/// What may be skipped even where everything must be shown, and why; any case whose name,
/// without its environment, is here. Every other case that is skipped there has failed: it
/// might be what broke that says it cannot be shown.
pub const MAY_BE_SKIPPED: &[(&str, &str)] = &[
    (
        "hazards::collapses",
        "memory may be in too small pieces for huge pages at the moment, and kernels are built \
         without them",
    ),
    ("hazards::collapse_asked", "the same"),
    ("programs::python3-numpy", "numpy is none of the packages that scripts/setup.sh installs"),
];

fn may_be_skipped(name: &str) -> bool {
    let bare = name.split(" [").next().unwrap_or(name);
    MAY_BE_SKIPPED.iter().any(|&(permitted, _)| permitted == bare)
}

/// Something that passes or does not.
pub struct Case {
    /// Its name, `group::name [environment]`.
    pub name: String,
    /// Runs it.
    pub run: Box<dyn Fn() -> Verdict + Send + Sync>,
}

/// What the command line asks for: names to run, as the standard harness takes
/// them. Options that only make sense there are ignored.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    names: Vec<String>,
    skip: Vec<String>,
    exact: bool,
    list: bool,
}

impl Filter {
    /// Reads the process's arguments.
    pub fn from_arguments() -> Self {
        let mut filter = Self::default();
        let mut arguments = env::args().skip(1);
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                "--exact" => filter.exact = true,
                "--list" => filter.list = true,
                "--skip" => filter.skip.extend(arguments.next()),
                "--test-threads" | "--format" | "--color" | "--logfile" => {
                    arguments.next();
                }
                option if option.starts_with('-') => {}
                name => filter.names.push(name.to_owned()),
            }
        }
        filter
    }

    fn wants(&self, name: &str) -> bool {
        let matches = |wanted: &String| {
            if self.exact { name == wanted } else { name.contains(wanted.as_str()) }
        };
        (self.names.is_empty() || self.names.iter().any(matches)) && !self.skip.iter().any(matches)
    }
}

/// Runs the cases that the filter wants, `jobs` at a time, prints a line for
/// each and a summary, and says whether all of them passed.
pub fn run(cases: Vec<Case>, filter: &Filter, jobs: usize) -> ExitCode {
    run_all(cases, filter, jobs, must_show_everything())
}

fn run_all(cases: Vec<Case>, filter: &Filter, jobs: usize, must_show: bool) -> ExitCode {
    let total = cases.len();
    let cases: Vec<Case> = cases.into_iter().filter(|case| filter.wants(&case.name)).collect();
    if filter.list {
        for case in &cases {
            println!("{}: test", case.name);
        }
        return ExitCode::SUCCESS;
    }
    println!("\nrunning {} tests", cases.len());
    let started = Instant::now();
    let next = AtomicUsize::new(0);
    let tally = Mutex::new(Tally { must_show, ..Tally::default() });
    std::thread::scope(|scope| {
        for _ in 0..jobs.max(1) {
            scope.spawn(|| {
                while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let began = Instant::now();
                    let verdict = (case.run)();
                    let mut tally = tally.lock().expect("a line was printed without a panic");
                    tally.add(&case.name, verdict, began.elapsed());
                }
            });
        }
    });
    let tally = tally.into_inner().expect("every worker has ended");
    tally.summary(total - cases.len(), started.elapsed())
}

#[derive(Default)]
struct Tally {
    must_show: bool,
    passed: usize,
    skipped: usize,
    failures: Vec<(String, String)>,
}

impl Tally {
    fn add(&mut self, name: &str, verdict: Verdict, took: Duration) {
        let seconds = took.as_secs_f64();
        match verdict {
            Verdict::Passed => {
                self.passed += 1;
                println!("test {name} ... ok <{seconds:.2}s>");
            }
            Verdict::Skipped(why) if self.must_show && !may_be_skipped(name) => {
                let why = format!(
                    "skipped, and not among what may be: {why}\n\
                     (TERRACE_UNSUPPORTED_OK=1 allows it)"
                );
                self.fail(name, seconds, why);
            }
            Verdict::Skipped(why) => {
                self.skipped += 1;
                println!("test {name} ... ignored, {why}");
            }
            Verdict::Limited(what) => {
                self.skipped += 1;
                println!("test {name} ... ignored, known limit: {what}");
            }
            Verdict::Failed(why) => self.fail(name, seconds, why),
        }
    }

    /// Says why at once, and again at the end: other cases may take an hour.
    fn fail(&mut self, name: &str, seconds: f64, why: String) {
        println!("test {name} ... FAILED <{seconds:.2}s>\n{why}");
        self.failures.push((name.to_owned(), why));
    }

    fn summary(mut self, filtered: usize, took: Duration) -> ExitCode {
        self.failures.sort();
        if !self.failures.is_empty() {
            println!("\nfailures:");
            for (name, why) in &self.failures {
                println!("\n---- {name} ----\n{why}");
            }
            println!("\nfailures:");
            for (name, _) in &self.failures {
                println!("    {name}");
            }
        }
        let verdict = if self.failures.is_empty() { "ok" } else { "FAILED" };
        println!(
            "\ntest result: {verdict}. {} passed; {} failed; {} ignored; 0 measured; \
             {filtered} filtered out; finished in {:.2}s\n",
            self.passed,
            self.failures.len(),
            self.skipped,
            took.as_secs_f64(),
        );
        if self.failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

/// A number from the environment, or its default. A value that is not a number
/// ends the run: a test that silently ignores what it was asked is worth nothing.
pub fn number(variable: &str, default: usize) -> usize {
    match env::var(variable) {
        Err(_) => default,
        Ok(text) => text.parse().unwrap_or_else(|_| {
            eprintln!("{variable}: `{text}` is not a number");
            std::process::exit(2);
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filter(names: &[&str], skip: &[&str], exact: bool) -> Filter {
        let own = |list: &[&str]| list.iter().map(|&name| name.to_owned()).collect();
        Filter { names: own(names), skip: own(skip), exact, list: false }
    }

    #[test]
    fn a_filter_selects_by_part_of_the_name_unless_told_exactly() {
        assert!(filter(&[], &[], false).wants("hazards::fork_raw"));
        assert!(filter(&["fork"], &[], false).wants("hazards::fork_raw"));
        assert!(!filter(&["fork"], &[], true).wants("hazards::fork_raw"));
        assert!(!filter(&[], &["fork"], false).wants("hazards::fork_raw"));
    }

    fn case(name: &str, verdict: Verdict) -> Case {
        Case { name: name.to_owned(), run: Box::new(move || verdict.clone()) }
    }

    /// A case that is skipped by what broke must not look like one that passed.
    #[test]
    fn where_everything_must_be_shown_only_what_may_be_skipped_is() {
        let skipped = |name| case(name, Verdict::Skipped("cannot be shown here".into()));
        let limited = || case("hazards::sys_ptrace [managed x1]", Verdict::Limited("EIO".into()));
        let run = |case, must_show| run_all(vec![case], &Filter::default(), 1, must_show);
        let (may, may_not) = ("hazards::collapses [managed x8]", "hazards::sys_io_uring [plain]");

        assert_eq!(run(skipped(may), true), ExitCode::SUCCESS);
        assert_eq!(run(skipped(may_not), true), ExitCode::FAILURE);
        assert_eq!(run(skipped(may_not), false), ExitCode::SUCCESS);
        assert_eq!(run(limited(), true), ExitCode::SUCCESS);
        // The whole name counts.
        assert!(!may_be_skipped("hazards::collapses_too") && !may_be_skipped("collapses"));
    }

    #[test]
    fn one_failure_fails_the_whole_run() {
        let good = || case("good", Verdict::Passed);
        let skipped = || case("skipped", Verdict::Skipped("no device".into()));
        let bad = case("bad", Verdict::Failed("it broke".into()));

        let all = Filter::default();
        assert_eq!(run_all(vec![good(), skipped()], &all, 2, false), ExitCode::SUCCESS);
        assert_eq!(run_all(vec![good(), bad, skipped()], &all, 2, false), ExitCode::FAILURE);
    }
}
