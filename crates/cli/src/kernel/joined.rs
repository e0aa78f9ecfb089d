//! A program that shares the budget of another run: it is started in that run's control group,
//! where whoever keeps the group within its budget finds it. If that one ends first, one of those
//! that have joined goes on in its place.

use std::time::{Duration, Instant};

use terrace_core::{Bytes, Nanos};
use terrace_economics::Mode;
use terrace_kernel::division;
use terrace_kernel::engine::linux::Whose;
use terrace_kernel::setup::SwapUse;
use terrace_kernel::setup::group::Group;
use terrace_live::activate;
use terrace_report::End;

use super::chooser::Seeing;
use super::made::Made;
use super::session::{How, Session, Shown};
use crate::broker;
use crate::failure::Failure;
use crate::observing::Observing;
use crate::output::{self, Files, facts};
use crate::run::child::Watch;
use crate::runs;

/// How often is looked whether anybody keeps the group within its budget.
const LOOK: Duration = Duration::from_millis(100);

/// The run whose budget is shared.
pub(crate) struct Joined {
    /// The process of its command.
    run: u32,
    group: Group,
    swap: SwapUse,
    budget: Bytes,
    holds_store: bool,
    with_files: bool,
}

impl Joined {
    /// Finds it by a process's number or a program's name; `None` of one whose budget a broker
    /// divides.
    pub(crate) fn find(choice: &str) -> Result<Option<Self>, Failure> {
        if choice == broker::CGROUP {
            return Ok(None);
        }
        let run = runs::the_one(choice, "--join")?;
        let Some(kernel) = run.manifest.kernel.clone() else { return Ok(None) };
        let Some(group) = kernel.group else {
            return Err(Failure::bad_input(format!(
                "--join: `{choice}` has no control group of its own that another program could \
                 be in"
            )));
        };
        Ok(Some(Self {
            run: run.manifest.pid,
            group,
            swap: kernel.swap,
            budget: run.budget(),
            holds_store: run.manifest.holds_store,
            with_files: kernel.with_files,
        }))
    }

    /// A share in what was made for it.
    pub(crate) fn share(&self, program: &str, quiet: bool) -> Result<Made, Failure> {
        Made::share(program, &self.group, &self.swap, quiet)
    }
}

/// A program, and who keeps it within its budget.
pub(crate) struct Run {
    state: State,
}

enum State {
    /// This process.
    Keeper(Box<Session>),
    /// Another one.
    Member(Box<Member>),
    /// Nobody any more.
    Lost,
}

struct Member {
    joined: Joined,
    program: Vec<String>,
    made: Made,
    json: bool,
    quiet: bool,
    started: Instant,
}

impl Run {
    /// A program whose budget this process keeps.
    pub(crate) fn of(session: Session) -> Self {
        Self { state: State::Keeper(Box::new(session)) }
    }

    /// A program that has joined another run.
    pub(crate) fn new(
        joined: Joined,
        program: Vec<String>,
        made: Made,
        (json, quiet): (bool, bool),
    ) -> Self {
        let started = Instant::now();
        Self {
            state: State::Member(Box::new(Member { joined, program, made, json, quiet, started })),
        }
    }

    /// Takes over if the one that kept the budget has ended.
    fn look(&mut self) -> Duration {
        let State::Member(member) = &mut self.state else { return LOOK };
        // The last that it was told.
        if let Some(budget) = runs::budget_of(member.joined.run) {
            member.joined.budget = budget;
        }
        match member.made.keep() {
            Ok(false) => LOOK,
            Ok(true) => match std::mem::replace(&mut self.state, State::Lost) {
                State::Member(member) => {
                    match member.take_over() {
                        Ok(session) => self.state = State::Keeper(Box::new(session)),
                        Err(failure) => {
                            failure.report();
                        }
                    }
                    Duration::ZERO
                }
                other => {
                    self.state = other;
                    LOOK
                }
            },
            Err(failure) => {
                failure.report();
                self.state = State::Lost;
                LOOK
            }
        }
    }

    /// The program has ended.
    pub(crate) fn conclude(self, end: End, tell: impl FnOnce(&str) -> Result<(), Failure>) {
        match self.state {
            State::Keeper(session) => {
                session.conclude(Some(end), tell);
            }
            State::Member(member) => {
                if let Err(failure) = member.text(Some(end)).and_then(|text| tell(&text)) {
                    failure.report();
                }
            }
            State::Lost => {}
        }
    }
}

impl Member {
    fn take_over(self) -> Result<Session, Failure> {
        let Self { joined, program, made, json, quiet, .. } = self;
        if !quiet {
            output::say(format_args!(
                "run {} has ended; its budget of {} is kept for the rest of its programs",
                joined.run, joined.budget
            ));
        }
        let mut lacks = Vec::new();
        let division = joined.with_files.then(|| {
            let (group, budget) = (joined.group.clone(), joined.budget);
            division::Keeper::new(group, budget, &activate::calibrate(), made.swap())
                .inspect_err(|lack| {
                    lacks.push(format!("files' pages are in the budget no more (--files): {lack}"));
                })
                .ok()
        });
        let how = How {
            verb: "run",
            program,
            fast: joined.budget,
            holds_store: joined.holds_store,
            division: division.flatten(),
            whose: Whose::Run(joined.group),
            chooser: None,
            seeing: Seeing::nothing("the kernel's lists know what is accessed"),
            economist: Mode::default(),
            min_region: Bytes::kib(64),
            observing_cap: terrace_sampler::Governor::DEFAULT_CAP,
            store_limit: None,
            member: None,
            lacks,
            json,
            quiet,
        };
        let (observing, files) = (Observing::default(), Files::new());
        Session::new(how, Shown { record: None, observing, files }, made)
    }

    /// What there is to say of a program whose figures are another run's.
    fn text(&self, end: Option<End>) -> Result<String, Failure> {
        let elapsed = Nanos(self.started.elapsed().as_nanos() as u64);
        if self.json {
            return output::json(
                "terrace.kernel-joined",
                &Told {
                    program: &self.program,
                    end,
                    elapsed,
                    run: self.joined.run,
                    budget: self.joined.budget,
                },
            );
        }
        let name = self.program.first().map_or("", String::as_str);
        let name = name.rsplit('/').next().unwrap_or(name);
        let rows = [(
            "budget",
            format!(
                "{}, that of run {}, whose report has the figures",
                self.joined.budget, self.joined.run
            ),
        )];
        Ok(format!(
            "terrace: {name} {}\n{}",
            super::render::ended(end, elapsed),
            facts("  ", &rows)
        ))
    }
}

/// The report as a document.
#[derive(serde::Serialize)]
struct Told<'a> {
    program: &'a [String],
    end: Option<End>,
    elapsed: Nanos,
    /// The run whose budget it is.
    run: u32,
    budget: Bytes,
}

impl Watch for Run {
    fn poll(&mut self) -> Duration {
        match &mut self.state {
            State::Keeper(session) => session.poll(),
            _ => self.look(),
        }
    }

    fn report(&mut self) {
        match &mut self.state {
            State::Keeper(session) => session.report(),
            State::Member(member) => match member.text(None) {
                Ok(text) => output::show(&text),
                Err(failure) => {
                    failure.report();
                }
            },
            State::Lost => {}
        }
    }
}
