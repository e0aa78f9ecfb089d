//! `terrace replay`: what another policy would have done with a recorded run.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::ExitCode;

use serde::Serialize;
use terrace_core::{Bytes, Nanos};
use terrace_economics::{Economist, Mode};
use terrace_live::config::RunConfig;
use terrace_policy::pace::Pace;
use terrace_policy::packed::Unpacker;
use terrace_policy::whatif::{Counts, Recorded, WhatIf};
use terrace_policy::{Brain, PolicyName};
use terrace_report::run::{FaultClass, Figures};

use crate::args::{economist, one_of};
use crate::failure::Failure;
use crate::output::{self, count, percent, table};
use crate::records::{LiveFacts, Reader, Record, World};

/// Say what another policy would have done with a recorded run.
///
/// Feeds the touches that `terrace run --record` saw to other policies, or to
/// the same one with another budget, and counts hits, misses, promotions and
/// demotions beside what was recorded. The recorded policy is always replayed,
/// too: what differs between the recording and that line is the model's doing,
/// what differs between that line and another is the policy's.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: terrace replay run.terrace --policy first-touch --fast 64MiB")]
pub(crate) struct Args {
    /// What `terrace run --record` wrote.
    file: PathBuf,

    /// Policies to try; all of them without this.
    #[arg(long, value_name = "NAME", value_delimiter = ',',
          value_parser = one_of(&PolicyName::LIVE, PolicyName::name))]
    policy: Vec<PolicyName>,

    /// DRAM of each process; as recorded without this.
    #[arg(long, value_name = "SIZE")]
    fast: Option<Bytes>,

    /// What the economist does; as recorded without this.
    #[arg(long, value_name = "MODE", value_parser = economist())]
    economist: Option<Mode>,

    /// Only one process.
    #[arg(long, value_name = "PID")]
    process: Option<u32>,

    /// Use what can be read of a recording that is cut off or damaged.
    #[arg(long)]
    partial: bool,
}

/// One line of the answer.
#[derive(Clone, Debug, Serialize)]
struct Line {
    /// What is replayed: `recorded`, or a policy.
    what: String,
    /// DRAM of each process.
    budget: Bytes,
    /// Whether this is the recorded policy with the recorded budget.
    control: bool,
    /// All processes together.
    #[serde(flatten)]
    counts: Told,
    /// What the misses and first touches would make threads wait, at what each
    /// took on average in the recorded run; `None` if the recording has no figures.
    stall: Option<Nanos>,
}

/// Counts, of which a recording does not have all.
#[derive(Clone, Copy, Debug, Serialize)]
struct Told {
    first_touches: u64,
    /// `None` where the kernel served the faults: it tells of no touch of a resident page.
    hits: Option<u64>,
    /// As `hits`, of which they are a part.
    hint_faults: Option<u64>,
    misses: u64,
    unseen: u64,
    demotions: u64,
    cancelled: u64,
    /// `None` where the recording has no figures: events do not tell them.
    ping_pongs: Option<u64>,
    over_budget: u64,
    unknown: u64,
}

impl Told {
    /// What a model counted.
    const fn all(counts: &Counts) -> Self {
        Self {
            first_touches: counts.first_touches,
            hits: Some(counts.hits),
            hint_faults: Some(counts.hint_faults),
            misses: counts.misses,
            unseen: counts.unseen,
            demotions: counts.demotions,
            cancelled: counts.cancelled,
            ping_pongs: Some(counts.ping_pongs),
            over_budget: counts.over_budget,
            unknown: counts.unknown,
        }
    }

    /// What was recorded, of a run whose hits were seen or not, with figures or without.
    fn recorded(counts: &Counts, has_hits: bool, has_figures: bool) -> Self {
        let all = Self::all(counts);
        Self {
            hits: all.hits.filter(|_| has_hits),
            hint_faults: all.hint_faults.filter(|_| has_hits),
            ping_pongs: all.ping_pongs.filter(|_| has_figures),
            ..all
        }
    }

    const fn is_whole(&self) -> bool {
        self.hits.is_some() && self.ping_pongs.is_some()
    }
}

/// The answer.
#[derive(Serialize)]
struct Answer {
    program: Vec<String>,
    policy: String,
    /// What the economist did in the replay.
    economist: Mode,
    budget: Bytes,
    /// Processes with events.
    processes: usize,
    /// Events that were fed.
    events: u64,
    /// Events that were not recorded.
    events_lost: u64,
    /// What threads waited in processes without recorded events, as forked children are: in no
    /// line.
    elsewhere: Nanos,
    /// From the first event to the last.
    span: Nanos,
    /// Whether the recording has its end; if not, what was recorded is as of its last moment.
    ended: bool,
    /// Why not all of the recording was read.
    cut: Option<String>,
    lines: Vec<Line>,
}

/// A policy and a budget.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Setting {
    policy: PolicyName,
    budget: Bytes,
    control: bool,
}

/// A process's events, and the worlds that they drive.
struct Process {
    stream: Unpacker,
    recorded: Recorded,
    pace: Pace,
    worlds: Vec<WhatIf>,
}

impl Args {
    pub(crate) fn execute(self, json: bool) -> Result<ExitCode, Failure> {
        let answer = self.replay()?;
        let text = if json { output::json("terrace.replay", &answer)? } else { render(&answer) };
        output::print(&text)?;
        Ok(ExitCode::SUCCESS)
    }

    fn replay(&self) -> Result<Answer, Failure> {
        if self.fast.is_some_and(|fast| fast < RunConfig::MIN_FAST) {
            let what = format!("--fast: the budget must be at least {}", RunConfig::MIN_FAST);
            return Err(Failure::bad_input(what));
        }
        let name = self.file.display().to_string();
        let reader = Reader::open(&self.file)?;
        let header = reader.header.clone();
        let Some(live) = header.live.clone() else {
            let what = match header.world {
                World::Sim => "a recording of a simulation; `terrace sim` tries other policies",
                World::Live => {
                    "a recording of memory that stays mapped: of what was touched it has samples \
                     alone, too few to say what another policy would have done"
                }
            };
            return Err(Failure::bad_input(format!("{name}: {what}")));
        };
        let settings = self
            .settings(&header.policy, &live)
            .map_err(|e| Failure::bad_input(format!("{name}: field `policy`: {e}")))?;
        let mode = self.economist.unwrap_or(header.economist);
        let mut processes = BTreeMap::<u32, Process>::new();
        // Of a run that was killed, what its last moment tells.
        let (mut told, mut ended, mut lost, mut cut) = (None, false, 0, None);
        let mut others = BTreeSet::new();
        for record in reader {
            let outcome = record.and_then(|record| {
                match record {
                    Record::Events { process, bytes } if self.is_wanted(process) => {
                        let process = processes
                            .entry(process)
                            .or_insert_with_key(|&id| Process::new(&settings, mode, &live, id));
                        return process.read(&bytes).map_err(|e| {
                            Failure::bad_input(format!(
                                "{name}: the recording is damaged: {e} (--partial replays what \
                                 comes before)"
                            ))
                        });
                    }
                    Record::EventsLost { process, count } if self.is_wanted(process) => {
                        lost += count;
                    }
                    Record::Events { process, .. } => {
                        others.insert(process);
                    }
                    Record::Moment { moment, .. } => {
                        told = Some((moment.processes, moment.total.waited));
                    }
                    Record::Attached { last, .. } => ended = last,
                    Record::End { report } => {
                        ended = true;
                        told = Some((report.processes, report.total.waited));
                    }
                    _ => {}
                }
                Ok(())
            });
            match outcome {
                Ok(()) => {}
                Err(failure) if self.partial => {
                    cut = Some(failure.message());
                    break;
                }
                Err(failure) => return Err(failure),
            }
        }
        if processes.is_empty() {
            return Err(Failure::bad_input(self.nothing(&name, &others, cut.as_deref())));
        }
        let recorded: Vec<_> = processes.values().map(|process| process.recorded).collect();
        // What was not recorded, as of forked children, is not in the figures either.
        let figures: Vec<_> = told
            .iter()
            .flat_map(|(processes, _)| processes)
            .filter(|process| processes.contains_key(&process.pid))
            .map(|process| &process.figures)
            .collect();
        let counts = recorded_counts(&recorded, &figures);
        let costs = (!figures.is_empty()).then(|| Costs::of(&figures, &counts));
        let waited: Nanos = figures.iter().map(|figures| figures.waited).sum();
        let elsewhere = told.as_ref().map_or(Nanos::ZERO, |&(_, all)| all - waited);
        let mut lines = vec![Line {
            what: "recorded".to_owned(),
            budget: live.budget,
            control: false,
            counts: Told::recorded(&counts, !header.kernel_engine, !figures.is_empty()),
            stall: costs.map(|costs| costs.stall(&counts)),
        }];
        for (i, setting) in settings.iter().enumerate() {
            let counts = sum(processes.values().map(|process| process.worlds[i].counts()));
            lines.push(Line {
                what: setting.policy.name().to_owned(),
                budget: setting.budget,
                control: setting.control,
                counts: Told::all(&counts),
                stall: costs.map(|costs| costs.stall(&counts)),
            });
        }
        let spans = recorded.iter().filter_map(|recorded| recorded.span);
        let first = spans.clone().map(|(first, _)| first).min().unwrap_or(Nanos::ZERO);
        let last = spans.map(|(_, last)| last).max().unwrap_or(Nanos::ZERO);
        Ok(Answer {
            program: header.program,
            policy: header.policy,
            economist: mode,
            budget: live.budget,
            processes: processes.len(),
            events: processes.values().map(|process| process.stream.events()).sum(),
            events_lost: lost,
            elsewhere,
            span: last - first,
            ended,
            cut,
            lines,
        })
    }

    /// Why there is nothing to replay.
    fn nothing(&self, name: &str, others: &BTreeSet<u32>, cut: Option<&str>) -> String {
        if let Some(process) = self.process.filter(|_| !others.is_empty()) {
            let others: Vec<_> = others.iter().map(ToString::to_string).collect();
            let others = others.join(", ");
            return format!("--process: {name} has no events of {process}; it has of {others}");
        }
        match (cut, self.process) {
            (Some(cut), _) => format!("{cut}; there are no events in what was read"),
            (None, Some(process)) => format!("--process: {name} has no events of {process}"),
            (None, None) => {
                format!("{name}: the recording holds no events: everything fitted into the budget")
            }
        }
    }

    fn is_wanted(&self, process: u32) -> bool {
        self.process.is_none_or(|pid| pid == process)
    }

    /// The recorded policy first, then those that are asked for.
    fn settings(
        &self,
        recorded: &str,
        live: &LiveFacts,
    ) -> Result<Vec<Setting>, terrace_policy::UnknownPolicy> {
        let control = Setting { policy: recorded.parse()?, budget: live.budget, control: true };
        let mut settings = vec![control];
        let all = if self.policy.is_empty() { &PolicyName::LIVE[..] } else { &self.policy };
        for &policy in all {
            let budget = self.fast.unwrap_or(live.budget);
            if (policy, budget) != (control.policy, control.budget) {
                settings.push(Setting { policy, budget, control: false });
            }
        }
        Ok(settings)
    }
}

impl Process {
    fn new(settings: &[Setting], mode: Mode, live: &LiveFacts, process: u32) -> Self {
        // Only decides what the economist learns; compressing is what it is for.
        let cost = live.calibration.clock.cycles(live.calibration.compress);
        let worlds = settings.iter().map(|setting| {
            let mut economist = Economist::new(mode, live.calibration);
            // It draws what it drew then.
            economist.set_process(process);
            WhatIf::new(Brain::new(setting.policy.build(), economist), setting.budget, cost)
                .in_place_of(live.budget)
        });
        Self {
            stream: Unpacker::new(),
            recorded: Recorded::default(),
            pace: Pace::new(live.budget),
            worlds: worlds.collect(),
        }
    }

    fn read(&mut self, bytes: &[u8]) -> Result<(), terrace_policy::packed::UnpackError> {
        let Self { stream, recorded, pace, worlds } = self;
        stream.read(bytes, |event| {
            recorded.feed(event);
            pace.feed(event);
            for world in &mut *worlds {
                world.feed(event);
                world.follow(pace);
            }
        })
    }
}

/// What threads waited on average, in nanoseconds, for each of what is counted.
#[derive(Clone, Copy, Debug)]
struct Costs {
    /// Pages that come for the first time: few of them fault, for others come along.
    first_touch: f64,
    miss: f64,
    hint: f64,
}

impl Costs {
    /// Of these processes, whose recorded events came to these counts.
    fn of(figures: &[&Figures], recorded: &Counts) -> Self {
        let all = |kind| {
            let faults = figures.iter().flat_map(|figures| &figures.faults);
            let faults = faults.filter(move |fault| fault.kind == kind);
            faults.fold((0, 0.0), |(count, total), fault| {
                (count + fault.count, total + fault.total.as_f64())
            })
        };
        let [first, absent, hint] =
            [FaultClass::FirstTouch, FaultClass::Absent, FaultClass::Hint].map(all);
        // What was not service, or was counted as service and was none, is spread by service time.
        let waited: f64 = figures.iter().map(|figures| figures.waited.as_f64()).sum();
        let served = first.1 + absent.1 + hint.1;
        let scale = if served > 0.0 { waited / served } else { 0.0 };
        let mean = |(count, total): (u64, f64), seen| scale * total / count.max(seen).max(1) as f64;
        Self {
            first_touch: mean(first, recorded.first_touches),
            miss: mean(absent, recorded.misses),
            hint: mean(hint, recorded.hint_faults),
        }
    }

    fn stall(self, counts: &Counts) -> Nanos {
        let of = |cost: f64, count: u64| cost * count as f64;
        let all = of(self.first_touch, counts.first_touches)
            + of(self.miss, counts.misses)
            + of(self.hint, counts.hint_faults);
        Nanos(all.round() as u64)
    }
}

fn sum(counts: impl IntoIterator<Item = Counts>) -> Counts {
    counts.into_iter().fold(Counts::default(), |a, b| Counts {
        first_touches: a.first_touches + b.first_touches,
        hits: a.hits + b.hits,
        hint_faults: a.hint_faults + b.hint_faults,
        misses: a.misses + b.misses,
        unseen: a.unseen + b.unseen,
        demotions: a.demotions + b.demotions,
        cancelled: a.cancelled + b.cancelled,
        ping_pongs: a.ping_pongs + b.ping_pongs,
        over_budget: a.over_budget + b.over_budget,
        unknown: a.unknown + b.unknown,
    })
}

/// What really happened; ping-pongs are only in the report.
fn recorded_counts(recorded: &[Recorded], figures: &[&Figures]) -> Counts {
    let counts = sum(recorded.iter().map(|recorded| recorded.counts));
    Counts { ping_pongs: figures.iter().map(|figures| figures.ping_pongs).sum(), ..counts }
}

fn render(answer: &Answer) -> String {
    let mut text = format!(
        "{} events in {} of `{}` (policy {}, {} in DRAM, {} processes), economist {}\n",
        count(answer.events),
        answer.span,
        answer.program.join(" "),
        answer.policy,
        answer.budget,
        answer.processes,
        answer.economist.name(),
    );
    if answer.events_lost > 0 {
        text += &format!("{} more were not recorded\n", count(answer.events_lost));
    }
    if !answer.elsewhere.is_zero() {
        let time = answer.elsewhere;
        text += &format!("{time} of stall are left out, of processes without recorded events\n");
    }
    if !answer.ended && answer.cut.is_none() {
        text += "the recording has no end (`terrace run` was killed): what was recorded is as of its \
                 last moment\n";
    }
    if let Some(cut) = &answer.cut {
        text += &format!("only a part was read: {cut}\n");
    }
    text.push('\n');
    let rows: Vec<_> = answer
        .lines
        .iter()
        .map(|line| {
            let counts = &line.counts;
            let touches = counts.hits.map(|hits| hits + counts.misses);
            let rate = touches.map(|all| counts.misses as f64 / all.max(1) as f64);
            let known = |number: Option<u64>| number.map_or("–".to_owned(), count);
            [
                if line.control { format!("{} (control)", line.what) } else { line.what.clone() },
                line.budget.to_string(),
                count(counts.first_touches),
                known(counts.hits),
                count(counts.misses),
                rate.map_or("–".to_owned(), percent),
                count(counts.demotions),
                count(counts.cancelled),
                known(counts.ping_pongs),
                line.stall.map_or("–".to_owned(), |stall| stall.to_string()),
            ]
        })
        .collect();
    text += &table(
        [
            "policy",
            "DRAM",
            "first",
            "hits",
            "misses",
            "missed",
            "demotions",
            "cancelled",
            "ping-pong",
            "stall",
        ],
        &rows,
    );
    if answer.lines.iter().any(|line| !line.counts.is_whole()) {
        text += "\nA dash is what the recording does not have.\n";
    }
    text + "\nHits are touches that were seen: a live run sees those of resident pages only where a\n\
            page was made to fault. Misses are promotions. The control is the recorded policy in\n\
            the model: compare other lines with it. Stall is first touches, misses and touches of\n\
            pages that fault on purpose, at what each took on average in the recorded run.\n"
}

#[cfg(test)]
mod tests {
    use terrace_report::run::FaultReport;

    use super::*;

    #[test]
    fn stall_is_what_faults_took_times_how_many_there_are() {
        let costs = Costs { first_touch: 10.0, miss: 100.0, hint: 2.0 };
        let counts =
            Counts { first_touches: 3, misses: 5, hits: 1000, hint_faults: 7, ..Counts::default() };

        assert_eq!(costs.stall(&counts), Nanos(544));
    }

    /// The kernel sees no touch of a resident page, and nobody counted what came back soon. Told as
    /// none, that looked better than every policy beside it.
    #[test]
    fn what_a_recording_does_not_have_is_told_as_unknown() {
        let counts = Counts { misses: 3, demotions: 4, ..Counts::default() };
        let line = |what: &str, counts| Line {
            what: what.to_owned(),
            budget: Bytes::mib(40),
            control: false,
            counts,
            stall: None,
        };
        let answer = |recorded| Answer {
            program: vec!["sort".to_owned()],
            policy: "2q".to_owned(),
            economist: Mode::Enforce,
            budget: Bytes::mib(40),
            processes: 1,
            events: 7,
            events_lost: 0,
            elsewhere: Nanos::ZERO,
            span: Nanos::SECOND,
            ended: true,
            cut: None,
            lines: vec![line("recorded", recorded), line("2q", Told::all(&counts))],
        };
        let told = answer(Told::recorded(&counts, false, false));
        let json = serde_json::to_value(&told.lines).expect("JSON");
        for field in ["hits", "hint_faults", "ping_pongs"] {
            assert!(json[0][field].is_null() && json[1][field] == 0, "{field}: {json}");
        }
        assert_eq!((&json[0]["misses"], &json[0]["demotions"]), (&3.into(), &4.into()));
        let text = render(&told);
        let row =
            text.lines().find(|line| line.trim_start().starts_with("recorded")).expect("a line");
        assert_eq!(row.matches('–').count(), 4, "hits, missed, ping-pong, stall: {text}");
        assert!(text.contains("A dash is what the recording does not have"), "{text}");
        let whole = render(&answer(Told::recorded(&counts, true, true)));
        assert!(!whole.contains("A dash"), "{whole}");
    }

    /// Of ten pages that came for the first time one faulted; each was charged a fault's time,
    /// and the control had five times the stall of the recording.
    #[test]
    fn what_was_recorded_costs_what_it_took() {
        let fault = |kind, count, each| FaultReport {
            kind,
            count,
            p50: Nanos::ZERO,
            p99: Nanos::ZERO,
            p999: Nanos::ZERO,
            max: Nanos::ZERO,
            total: Nanos(each) * count,
            histogram: Vec::new(),
        };
        let faults = vec![
            fault(FaultClass::FirstTouch, 1_000, 50_000),
            fault(FaultClass::Absent, 5_000, 40_000),
            fault(FaultClass::Hint, 300, 20_000),
        ];
        // Less than what serving them took: it was counted beyond what threads can have waited.
        let figures = Figures { faults, waited: Nanos::millis(100), ..Figures::default() };
        let recorded = Counts {
            first_touches: 10_000,
            misses: 5_000,
            hits: 300,
            hint_faults: 300,
            ..Counts::default()
        };

        let stall = Costs::of(&[&figures], &recorded).stall(&recorded);

        assert!((stall / Nanos::millis(100) - 1.0).abs() < 1e-6, "{stall}");
    }
}
