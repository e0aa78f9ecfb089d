//! Passes over the page tables: finds pages that came and went, and pages that
//! somebody else has moved.
//!
//! A pass is made in slices, so that a large program does not hold up the
//! policy; only the first one runs through, because before it nothing is known.
//! While passes find nothing new they become rarer, and at once as frequent as
//! before when one does: a look at every page of a program that has all its
//! memory is much of what attaching to it costs.

use std::collections::BTreeMap;
use std::io;

use terrace_core::{
    Access, FaultKind, Home, Nanos, PageNo, PageRange, PageRef, PageSize, RegionId, TierId,
};
use terrace_sampler::pagemap::is;

use super::host::{Host, is_gone};
use super::space::WINDOW;
use super::{Attach, Degraded};
use crate::numa::moves::Place;
use crate::sys;

/// The longest time between passes while nothing has been found: a program that was just started
/// maps its memory within moments, and a look at mappings that are too small costs next to nothing.
const BEFORE_ANYTHING: Nanos = Nanos::millis(20);
/// Time that a slice may take before the policy has its turn.
const SLICE: Nanos = Nanos::millis(2);
/// How many times as rare passes become, at most, when they find nothing new.
const RAREST: u32 = 8;
/// Pages whose place is asked for in one system call.
const QUESTIONS: usize = 1024;

/// Where a pass is.
#[derive(Debug, Default)]
pub(super) struct Pass {
    /// Windows that it has yet to look at, the next one last.
    left: Vec<(u32, u64)>,
    /// Eligible mappings, by process.
    mappings: BTreeMap<u32, Vec<(u64, u64)>>,
    next: Nanos,
    /// Whether this pass has found something new.
    news: bool,
    /// Passes since one did.
    quiet: u32,
    /// Processor time of all passes after the first.
    cost: Nanos,
    /// What a window's pages are now.
    found: Vec<Found>,
    questions: Vec<u64>,
    asked: Vec<u32>,
    places: Vec<Place>,
}

impl Pass {
    /// What passes have cost so far; the first is not counted, as it is made once.
    pub(super) fn cost(&self) -> Nanos {
        self.cost
    }
}

/// What a pass finds of a page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Found {
    #[default]
    Nothing,
    Swapped,
    /// In memory; at this address, which is not the page's if the page is huge
    /// and its first part is not there.
    At(u64),
    In(TierId),
}

impl<H: Host> Attach<H> {
    /// Goes on with the pass at hand, or begins the next one when it is due.
    pub(super) fn scan(&mut self, now: Nanos, targets: &[u32], may: bool) -> io::Result<()> {
        let first = self.stats.passes == 0;
        if !may && !first {
            return Ok(());
        }
        let cpu = sys::thread_cpu();
        if self.pass.left.is_empty() {
            if now < self.pass.next {
                return Ok(());
            }
            self.begin(targets)?;
            // That a page came back from swap is known by passes alone.
            let most = if self.swap_tier().is_some() { 1 } else { RAREST };
            let rarity = (self.pass.quiet + 1).min(most);
            let interval = if self.pass.left.is_empty() {
                self.options.pass_interval.min(BEFORE_ANYTHING)
            } else {
                self.options.pass_interval * u64::from(rarity)
            };
            self.pass.next = now + interval;
        }
        while let Some((process, base)) = self.pass.left.pop() {
            if let Err(error) = self.look(now, process, base) {
                self.refuse(process, &error)?;
            }
            if !first && self.host.now() >= now + SLICE {
                break;
            }
        }
        if self.pass.left.is_empty() {
            self.stats.passes += 1;
            let news = std::mem::take(&mut self.pass.news);
            self.pass.quiet = if news { 0 } else { self.pass.quiet.saturating_add(1) };
        }
        if !first {
            self.pass.cost += sys::thread_cpu().saturating_sub(cpu);
        }
        Ok(())
    }

    /// Looks at the mappings: makes windows that are new, drops those that went.
    fn begin(&mut self, targets: &[u32]) -> io::Result<()> {
        self.pass.mappings.clear();
        self.host.keep(targets);
        for &process in targets {
            match self.host.mappings(process) {
                Ok(mut mappings) => {
                    let least = self.options.min_region.get();
                    mappings.retain(|(start, end)| end - start >= least);
                    self.pass.mappings.insert(process, mappings);
                }
                Err(error) => self.refuse(process, &error)?,
            }
        }
        let mut wanted: Vec<(u32, u64)> = Vec::new();
        for (&process, mappings) in &self.pass.mappings {
            for &(start, end) in mappings {
                let first = start & !(WINDOW - 1);
                let after = wanted.last().copied().filter(|last| last.0 == process);
                for base in (first..end).step_by(WINDOW as usize) {
                    if after.is_none_or(|(_, last)| base > last) {
                        wanted.push((process, base));
                    }
                }
            }
        }
        let gone: Vec<RegionId> = self
            .space
            .windows()
            .filter(|(_, window)| wanted.binary_search(&(window.process, window.base)).is_err())
            .map(|(id, _)| id)
            .collect();
        for id in gone {
            if let Some(range) = self.space.remove(id) {
                self.brain.free(range, true);
            }
        }
        wanted.reverse();
        self.pass.left = wanted;
        Ok(())
    }

    /// An error with a process: it is gone, it may not be touched, or the
    /// system is at fault.
    fn refuse(&mut self, process: u32, error: &io::Error) -> io::Result<()> {
        self.pass.left.retain(|(other, _)| *other != process);
        if is_gone(error) {
            return Ok(());
        }
        if error.kind() == io::ErrorKind::PermissionDenied {
            if !self.refused.iter().any(|(other, _)| *other == process) {
                let what = format!("{error} (the same user, or CAP_SYS_PTRACE, is needed)");
                self.refused.push((process, what));
            }
            return Ok(());
        }
        Err(io::Error::new(error.kind(), format!("process {process}: {error}")))
    }

    /// Brings one window's books up to date.
    fn look(&mut self, now: Nanos, process: u32, base: u64) -> io::Result<()> {
        let (mut small, mut huge) = (0u64, 0u64);
        let mut runs = Vec::new();
        let mappings = self.pass.mappings.get(&process).map_or(&[][..], Vec::as_slice);
        for &(start, end) in mappings {
            let (start, end) = (start.max(base), end.min(base + WINDOW));
            if start < end {
                self.host.content(process, start, end, &mut |run| {
                    // The page of zeros is everybody's, and so are files' pages.
                    if run.flags & (is::FILE | is::ZERO) == 0 {
                        let bytes = run.end - run.start;
                        *(if run.flags & is::HUGE != 0 { &mut huge } else { &mut small }) += bytes;
                        runs.push(run);
                    }
                })?;
            }
        }
        let id = match self.space.find(process, base) {
            Some(id) => id,
            // A window in which there is nothing yet needs no books.
            None if runs.is_empty() => return Ok(()),
            None => {
                // Pages are placed in the size in which most of them are mapped.
                let size = if huge > small { PageSize::Huge } else { PageSize::Base };
                let region = self.space.insert(process, base, size);
                self.brain.alloc(&region);
                region.id
            }
        };
        let Some(window) = self.space.window(id) else { return Ok(()) };
        let (shift, pages) = (window.page_size.shift(), window.pages());
        let mut found = std::mem::take(&mut self.pass.found);
        found.clear();
        found.resize(pages as usize, Found::Nothing);
        for run in runs {
            let mut at = run.start;
            while at < run.end {
                let place = &mut found[((at - base) >> shift) as usize];
                if run.flags & is::PRESENT != 0 {
                    if !matches!(place, Found::At(_)) {
                        *place = Found::At(at);
                    }
                } else if *place == Found::Nothing {
                    *place = Found::Swapped;
                }
                at = (at + 1).next_multiple_of(1 << shift);
            }
        }
        let located = self.locate(process, &mut found);
        if located.is_ok() {
            self.reconcile(now, id, &found);
        }
        self.pass.found = found;
        located
    }

    /// Turns addresses into tiers.
    fn locate(&mut self, process: u32, found: &mut [Found]) -> io::Result<()> {
        let mut next = 0;
        while next < found.len() {
            self.pass.questions.clear();
            self.pass.asked.clear();
            self.pass.places.clear();
            while next < found.len() && self.pass.questions.len() < QUESTIONS {
                if let Found::At(address) = found[next] {
                    self.pass.questions.push(address);
                    self.pass.asked.push(next as u32);
                }
                next += 1;
            }
            if self.pass.questions.is_empty() {
                break;
            }
            self.host.locate(process, &self.pass.questions, &mut self.pass.places)?;
            for (&page, place) in self.pass.asked.iter().zip(&self.pass.places) {
                let tier = match *place {
                    Place::Node(node) => {
                        self.rooms.iter().position(|room| room.home == Home::Node(node))
                    }
                    _ => None,
                };
                // What lies in a memory outside the ladder is not ours.
                found[page as usize] =
                    tier.map_or(Found::Nothing, |tier| Found::In(TierId(tier as u8)));
            }
        }
        Ok(())
    }

    /// Tells the policy what has changed in a window.
    fn reconcile(&mut self, now: Nanos, id: RegionId, found: &[Found]) {
        let swap = self.swap_tier();
        // Pages in a row that are gone are told in one piece.
        let mut gone = PageRange { region: id, start: PageNo(0), count: 0 };
        for (i, found) in found.iter().enumerate() {
            let page = PageRef { region: id, page: PageNo(i as u32) };
            let known = self.space.word(page).tier();
            let stays = match (known, *found) {
                (None, Found::Nothing | Found::Swapped) => true,
                (Some(tier), Found::In(now)) => tier == now,
                (Some(tier), Found::Swapped) => Some(tier) == swap,
                _ => false,
            };
            if stays {
                continue;
            }
            self.pass.news = true;
            if let Found::In(tier) = *found {
                let kind = match known {
                    Some(old) if Some(old) == swap => FaultKind::Absent(Access::Read),
                    Some(_) => {
                        self.stats.moved_by_others += 1;
                        self.forget(page);
                        FaultKind::FirstTouch(Access::Write)
                    }
                    None => FaultKind::FirstTouch(Access::Write),
                };
                self.placed(now, page, kind, tier);
                if matches!(kind, FaultKind::Absent(_)) {
                    self.refaulted(page);
                }
                continue;
            }
            if gone.start.0 + gone.count != page.page.0 {
                if gone.count > 0 {
                    self.brain.free(gone, false);
                }
                gone = PageRange { region: id, start: page.page, count: 0 };
            }
            gone.count += 1;
            self.space.place(page, None);
        }
        if gone.count > 0 {
            self.brain.free(gone, false);
        }
    }

    /// The kernel has placed a page: tells the policy so.
    pub(super) fn placed(&mut self, now: Nanos, page: PageRef, kind: FaultKind, tier: TierId) {
        let telemetry = self.only(now, tier);
        if self.brain.fault(page, kind, &telemetry) == tier {
            self.space.place(page, Some(tier));
        } else {
            // It wants the page elsewhere although nothing else has room: it
            // is not told of the page, and the next pass asks again.
            self.forget(page);
        }
    }

    /// Makes the policy forget a page.
    pub(super) fn forget(&mut self, page: PageRef) {
        self.brain.free(PageRange { region: page.region, start: page.page, count: 1 }, false);
        self.space.place(page, None);
    }

    /// The tier that is swap.
    pub(super) fn swap_tier(&self) -> Option<TierId> {
        self.rooms.iter().position(|room| room.home == Home::Swap).map(|i| TierId(i as u8))
    }
}

impl core::fmt::Display for Degraded {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "sampler given up: {}", self.0)
    }
}
