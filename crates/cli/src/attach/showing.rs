//! What shows an attachment while it is under way, and draws it afterwards: figures for
//! other commands, lines, metrics, and the page.

use std::path::Path;
use std::time::{Duration, Instant};

use serde::Serialize;
use terrace_economics::Decision;
use terrace_live::doctor::facts::Facts;
use terrace_report::html::{AttachStory, attach_page};
use terrace_report::{AttachRates, AttachReport};

use crate::failure::Failure;
use crate::metrics::{self, SocketFile};
use crate::observing::{Observing, Watcher, next_moment};
use crate::output::{self, Files, Output};
use crate::runs::{Manifest, RunDirectory};

/// How often figures are published for other commands.
const PUBLISH: Duration = Duration::from_millis(200);
/// The most of the time that publishing takes: one part in so many,
const PUBLISHING: u32 = 100;
/// unless figures would be older than this.
const STALE: Duration = Duration::from_secs(2);

/// Everything that shows an attachment.
pub(crate) struct Showing {
    quiet: bool,
    started: Instant,
    /// Removed first: it lies where the user said.
    _socket: Option<SocketFile>,
    published: Option<Published>,
    watch: Option<(Watcher, Option<AttachReport>)>,
    page: Option<Page>,
}

/// Where other commands find the figures.
struct Published {
    directory: RunDirectory,
    due: Instant,
}

/// The page that is drawn at the end.
struct Page {
    out: Output,
    story: AttachStory,
    /// When its next moment is, since the beginning.
    next: Duration,
}

/// A line of `--watch`.
#[derive(Serialize)]
struct Line<'a> {
    /// Since the line before.
    rates: Option<AttachRates>,
    #[serde(flatten)]
    report: &'a AttachReport,
}

impl Showing {
    /// Opens everything; what cannot be opened is known at once.
    pub(crate) fn new(
        verb: &'static str,
        manifest: &Manifest,
        observing: &Observing,
        files: &mut Files,
        quiet: bool,
    ) -> Result<Self, Failure> {
        let watch = observing.open_watch(files)?.map(|watch| (watch, None));
        let page = observing.open_page(files)?.map(|out| Page {
            out,
            story: AttachStory::new(verb, &manifest.program.join(" "), machine()),
            next: Duration::ZERO,
        });
        let published = match (RunDirectory::create(manifest), &observing.metrics) {
            (Ok(directory), _) => Some(Published { directory, due: Instant::now() }),
            // What is served is what is published.
            (Err(failure), Some(_)) => return Err(failure),
            (Err(failure), None) => {
                if !quiet {
                    let why = failure.message();
                    output::warn(format_args!("`terrace top` will not find this: {why}"));
                }
                None
            }
        };
        let socket = match (&observing.metrics, &published) {
            (Some(listen), Some(published)) => {
                metrics::serve(listen, &[published.directory.path()], quiet)?
            }
            _ => None,
        };
        let started = Instant::now();
        Ok(Self { quiet, started, _socket: socket, published, watch, page })
    }

    /// Where other commands find the figures.
    pub(crate) fn directory(&self) -> Option<&Path> {
        self.published.as_ref().map(|published| published.directory.path())
    }

    /// Whether [`Showing::decided`] has a use for decisions.
    pub(crate) fn wants_decisions(&self) -> bool {
        self.page.is_some()
    }

    /// Hears of decisions.
    pub(crate) fn decided(&mut self, decisions: &[(u32, Decision)]) {
        if let Some(page) = &mut self.page {
            for (_, decision) in decisions {
                page.story.decisions.decided(decision);
            }
        }
    }

    /// How long it is until something has to be shown.
    pub(crate) fn due_in(&self) -> Duration {
        let publish = self.published.as_ref().map(|published| published.due);
        let publish = publish.map(|due| due.saturating_duration_since(Instant::now()));
        let watch = self.watch.as_ref().map(|(watch, _)| watch.due_in());
        let page = self.page.as_ref();
        let page = page.map(|page| page.next.saturating_sub(self.started.elapsed()));
        [publish, watch, page].into_iter().flatten().min().unwrap_or(Duration::MAX)
    }

    /// Shows the figures wherever they are due. What does not work is told of once; the
    /// programs must not suffer for it.
    pub(crate) fn show(&mut self, report: &AttachReport) {
        if let Some(published) = self.published.as_mut().filter(|p| p.due <= Instant::now())
            && let Err(failure) = published.publish(report)
        {
            if !self.quiet {
                output::warn(format_args!("figures are shown no longer: {failure}"));
            }
            self.published = None;
        }
        if self.watch.as_ref().is_some_and(|(watch, _)| watch.is_due())
            && let Err(failure) = self.tell(report)
        {
            failure.report();
            self.watch = None;
        }
        let elapsed = self.started.elapsed();
        if let Some(page) = self.page.as_mut().filter(|page| page.next <= elapsed) {
            page.next = next_moment(elapsed);
            page.story.moment(report.clone());
        }
    }

    /// Writes a line.
    fn tell(&mut self, report: &AttachReport) -> Result<(), Failure> {
        let Some((watch, before)) = &mut self.watch else { return Ok(()) };
        let rates = AttachRates::between(before.as_ref(), report);
        watch.tell("terrace.attach-watch", &Line { rates, report })?;
        *before = Some(report.clone());
        Ok(())
    }

    /// Shows the last figures: a line, and the page.
    pub(crate) fn finish(&mut self, report: &AttachReport) -> Result<(), Failure> {
        self.tell(report)?;
        if let Some(mut page) = self.page.take() {
            page.story.moment(report.clone());
            page.out.write_whole(attach_page(&page.story, report).as_bytes())?;
        }
        Ok(())
    }
}

impl Published {
    fn publish(&mut self, report: &AttachReport) -> std::io::Result<()> {
        let begun = terrace_live::sys::thread_cpu();
        self.directory.publish(report)?;
        // The more there is to tell, the more rarely it is told; not so where others had the processor.
        let took = terrace_live::sys::thread_cpu().saturating_sub(begun);
        let rest = Duration::from_nanos(took.get()) * PUBLISHING;
        self.due = Instant::now() + rest.clamp(PUBLISH, STALE);
        Ok(())
    }
}

fn machine() -> String {
    Facts::read(Path::new("/")).cpu.model
}
