//! Decisions in words.

use core::fmt;

use terrace_core::{Action, Bytes, Cycles, Heat, Nanos, PageRange, PerSecond, Reason, TierId};

use crate::alternative::Instead;
use crate::decision::Decision;
use crate::interval::{AMOUNT_MAX, Interval};
use crate::ledger::{Term, TermKind};
use crate::mode::Verdict;
use crate::model;

/// A decision as text for people; see [`Decision::explain`].
#[derive(Clone, Copy, Debug)]
pub struct Explanation<'a, S> {
    decision: &'a Decision,
    tiers: &'a [S],
}

impl Decision {
    /// The decision as text: a headline, the evidence, and the ledger's items,
    /// one a line, without a line feed at the end. `tiers` are the tiers'
    /// names, fastest first; a tier without one is called by its number.
    pub fn explain<'a, S: AsRef<str>>(&'a self, tiers: &'a [S]) -> Explanation<'a, S> {
        Explanation { decision: self, tiers }
    }
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.explain::<&str>(&[]).fmt(f)
    }
}

impl<S: AsRef<str>> fmt::Display for Explanation<'_, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let d = self.decision;
        self.subject(f)?;
        write!(f, " ({:?}): {}", d.reason, d.verdict.name())?;
        if !d.is_priced() {
            return Ok(());
        }
        let pays = d.pays();
        write!(
            f,
            "  benefit {}, cost {}; {}",
            WithRange(d.benefit),
            WithRange(d.cost),
            Turn { decision: d, pays },
        )?;
        // As `model::pays` has it.
        let (benefit, relation) = match (model::counts_expected(&d.action), pays) {
            (true, true) => ("expected", ">="),
            (true, false) => ("expected", "<"),
            (false, true) => ("least", ">"),
            (false, false) => ("least", "<="),
        };
        write!(
            f,
            "\n    rule:     {benefit} benefit {} {relation} {} x expected cost {} = {}",
            amount(d.counted()),
            d.hurdle,
            amount(d.cost.expected),
            amount(d.hurdle * d.cost.expected),
        )?;
        match d.action {
            Action::Collapse { .. } => write!(f, "\n    evidence: {}", Walks(d))?,
            Action::FirstTouch { touched, unsure, averted, within, left, .. } => write!(
                f,
                "\n    evidence: a profile: {averted} of page walks averted in {within}{}, \
                 {touched}{} base {} touched",
                Counted { decision: d, averted, within, left },
                Unsure(unsure),
                if (touched, unsure) == (1, 0) { "page" } else { "pages" }
            )?,
            Action::Populate { range, touched, unsure } => write!(
                f,
                "\n    evidence: {touched}{} of {} will be touched",
                Unsure(unsure),
                Count(range.count.into(), "page")
            )?,
            Action::Compact { blocks, wanted, brings, within, left, pages } => write!(
                f,
                "\n    evidence: {}, {} of them wanted, for {}{}",
                Count(blocks.get(), "free block"),
                wanted.get(),
                Count(pages.get(), "moved page"),
                Averts(Counted { decision: d, averted: brings, within, left }),
            )?,
            Action::Prefetch { window, used, known, .. } => write!(
                f,
                "\n    evidence: {used} of {} asked for that {} left out; {window} come at once",
                Count(known.into(), "page"),
                if known == 1 { "was" } else { "were" }
            )?,
            Action::Prezero { walked, used, known } => write!(
                f,
                "\n    evidence: {} walked, {used} of {} used that came ahead",
                Count(walked.get(), "page"),
                Count(known.into(), "huge page"),
            )?,
            Action::ZeroAhead { blocks, wanted, .. } => write!(
                f,
                "\n    evidence: {} wanted, of {} with this one",
                wanted.get(),
                Count(blocks.get(), "zeroed block"),
            )?,
            Action::Reclaim { .. } => write!(f, "\n    evidence: {}", Returns(&d.heat))?,
            Action::Recompress { each, least, saves, most, .. } => write!(
                f,
                "\n    evidence: {saves} [{least}, {most}] set free of {each} a page; {}",
                Returns(&d.heat)
            )?,
            Action::Place { mapped, .. } if d.heat == Heat::default() => write!(
                f,
                "\n    evidence: none of its own: as the average page of {mapped} that are mapped"
            )?,
            // Nothing is known of what is to be looked at.
            action if model::turns_on_worth(&action) => {}
            _ => write!(f, "\n    evidence: {}", Evidence(&d.heat))?,
        }
        if matches!(d.action, Action::Exchange { .. }) {
            write!(f, "\n    victim:   {}", Evidence(&d.victim_heat))?;
        }
        for term in d.terms.iter().flatten() {
            write!(f, "\n    {}", Item(*term))?;
        }
        self.alternatives(f)
    }
}

impl<S: AsRef<str>> Explanation<'_, S> {
    /// What else could have been done, and by how much that would have paid more or less. To do
    /// nothing costs nothing and brings nothing.
    fn alternatives(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let d = self.decision;
        if d.verdict == Verdict::Forced {
            return Ok(());
        }
        let margin = d.margin();
        f.write_str("\n    instead:  ")?;
        match d.action {
            Action::Place { instead, .. } => write!(f, "in {}", self.tier(instead))?,
            _ => f.write_str("nothing")?,
        }
        write!(f, ", {}", Beside(-margin))?;
        for one in d.alternatives.iter().flatten() {
            f.write_str("\n    instead:  ")?;
            self.alternative(one.instead, f)?;
            write!(
                f,
                ": benefit {}, cost {}, {}",
                WithRange(one.benefit()),
                WithRange(one.cost()),
                Beside(one.margin(&d.action, d.hurdle) - margin),
            )?;
        }
        Ok(())
    }

    /// What it is that could have been done.
    fn alternative(&self, instead: Instead, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (instead, instead.of(&self.decision.action)) {
            (Instead::To(to), Some(Action::Promote { .. })) => {
                write!(f, "promote to {}", self.tier(to))
            }
            (Instead::To(to), Some(Action::Place { .. })) => write!(f, "in {}", self.tier(to)),
            (Instead::To(to), _) => write!(f, "demote to {}", self.tier(to)),
            (Instead::Exchange, _) => f.write_str("exchange with a page of which nothing is known"),
            (Instead::Promote, _) => f.write_str("promote alone"),
            (Instead::Populate, _) => f.write_str("base pages filled ahead"),
            (Instead::Arm, _) => f.write_str("arm"),
            (Instead::Scan, _) => f.write_str("scan"),
            (_, Some(Action::SetPeriod { period, .. })) => write!(f, "one in {period} accesses"),
            (_, Some(Action::Throttle { limit })) => write!(f, "limit {limit}"),
            (Instead::Half, _) => f.write_str("half"),
            (Instead::Double, _) => f.write_str("twice"),
        }
    }

    fn tier(&self, id: TierId) -> Tier<'_> {
        Tier { name: self.tiers.get(id.index()).map(AsRef::as_ref), id }
    }

    /// Which action on which page.
    fn subject(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.decision.action {
            Action::Promote { page, from, to } => {
                write!(f, "promote {page} {}<-{}", self.tier(to), self.tier(from))
            }
            Action::Demote { page, from, to } => {
                write!(f, "demote {page} {}->{}", self.tier(from), self.tier(to))
            }
            Action::Exchange { promote, demote, fast, slow } => write!(
                f,
                "exchange {promote} {}<-{} with {demote}",
                self.tier(fast),
                self.tier(slow)
            ),
            Action::DemoteContext { context, pages, of, from, to } => write!(
                f,
                "demote context {}: {pages} of {of} pages {}->{}",
                context.0,
                self.tier(from),
                self.tier(to)
            ),
            Action::Split { page } => write!(f, "split {page}"),
            Action::Collapse { range } => {
                write!(f, "collapse {}", Pages(range))
            }
            Action::Arm { range } => {
                write!(f, "arm {}", Pages(range))
            }
            Action::Scan { range } => {
                write!(f, "scan {}", Pages(range))
            }
            Action::Prezero { .. } => {
                write!(f, "prezero {}", self.decision.page_size.bytes())
            }
            Action::ZeroAhead { .. } => {
                write!(f, "zero a free block of {}", self.decision.page_size.bytes())
            }
            Action::FirstTouch { range, .. } => {
                write!(f, "huge page first at {}:{}", range.region.0, range.start.0)
            }
            Action::Populate { range, .. } => {
                write!(f, "populate {}", Pages(range))
            }
            Action::Place { page, to, instead, .. } => {
                write!(f, "place {page} in {} instead of {}", self.tier(to), self.tier(instead))
            }
            Action::Compact { blocks, pages, .. } => {
                let pages = Count(pages.get(), "page");
                write!(f, "compact {pages} for {}", Count(blocks.get(), "block"))
            }
            Action::SetPeriod { source, period } => {
                write!(f, "sample one in {period} accesses by {source:?}")
            }
            Action::Throttle { limit } => write!(f, "limit migration to {limit}"),
            Action::Prefetch { from, pages, .. } => {
                write!(f, "prefetch {} ", Count(pages.into(), "page"))?;
                match from {
                    Some(tier) => write!(f, "from {}", self.tier(tier)),
                    None => f.write_str("of zeros"),
                }
            }
            Action::Reclaim { from, to, pages, bytes } => write!(
                f,
                "reclaim {}, {bytes} packed, {}->{}",
                Count(pages.into(), "page"),
                self.tier(from),
                self.tier(to)
            ),
            Action::Recompress { tier, pages, .. } => {
                write!(f, "recompress {} in {}", Count(pages.into(), "page"), self.tier(tier))
            }
        }
    }
}

/// By how many cycles an alternative pays more than what was decided on, or less.
struct Beside(f64);

impl fmt::Display for Beside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0.0 {
            return f.write_str("as good");
        }
        let which = if self.0 > 0.0 { "better" } else { "worse" };
        write!(f, "{which} by {}", amount(self.0.abs()))
    }
}

/// `1 page`, `7 pages`.
struct Count(u64, &'static str);

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}{}", self.0, self.1, if self.0 == 1 { "" } else { "s" })
    }
}

/// `7 pages at 1:16`.
struct Pages(PageRange);

impl fmt::Display for Pages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PageRange { region, start, count } = self.0;
        write!(f, "{} at {}:{}", Count(count.into(), "page"), region.0, start.0)
    }
}

/// A tier by its name, or by its number.
struct Tier<'a> {
    name: Option<&'a str>,
    id: TierId,
}

impl fmt::Display for Tier<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name {
            Some(name) => f.write_str(name),
            None => write!(f, "tier{}", self.id.0),
        }
    }
}

/// At which rate the decision would be another.
struct Turn<'a> {
    decision: &'a Decision,
    pays: bool,
}

impl fmt::Display for Turn<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let now = if self.pays { "pays" } else { "does not pay" };
        if self.decision.verdict == Verdict::Forced {
            return write!(f, "{now}, and has to be done");
        }
        let Some(flip) = self.decision.flip else {
            let any = match self.decision.action {
                Action::Prefetch { .. } | Action::Prezero { .. } => "whatever came of others",
                Action::Populate { .. } => "however many pages are touched",
                Action::FirstTouch { .. } => "whatever page walks it averts",
                Action::Compact { .. } if self.pays => "however few are wanted",
                Action::Compact { .. } => "whatever is wanted",
                Action::ZeroAhead { .. } => "however many are wanted",
                action if model::turns_on_worth(&action) => "whatever memory is worth",
                Action::Recompress { .. } => "whatever it is expected to set free",
                _ => "at any access rate",
            };
            return write!(f, "{now} {any}");
        };
        let side = |above| if above { "above" } else { "below" };
        let above_now = self.present() > flip;
        if self.pays {
            write!(f, "would not pay {} {}", side(!above_now), self.rate(flip))
        } else {
            write!(f, "would pay {} {}", side(!above_now), self.rate(flip))
        }
    }
}

/// What a policy knew of a page.
struct Evidence<'a>(&'a Heat);

impl fmt::Display for Evidence<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let heat = self.0;
        let plural = if heat.samples == 1 { "" } else { "s" };
        write!(
            f,
            "{} sample{plural} in {}: {} loads, {} stores",
            heat.samples,
            Nanos::from_f64(heat.window.as_f64()),
            heat.loads,
            heat.stores,
        )
    }
}

/// How often a page comes back from where it is.
struct Returns<'a>(&'a Heat);

impl fmt::Display for Returns<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let heat = self.0;
        let window = Nanos::from_f64(heat.window.as_f64());
        let pages = Count(heat.samples.into(), "page");
        write!(f, "{pages} came back in {window}: {} each", heat.loads)
    }
}

/// By how much a number may be wrong, where it may.
struct Unsure(u16);

impl fmt::Display for Unsure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 > 0 { write!(f, " ± {}", self.0) } else { Ok(()) }
    }
}

/// What blocks avert beside faults, where they do, and in which time.
struct Averts<'a>(Counted<'a>);

impl fmt::Display for Averts<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Counted { averted, within, .. } = self.0;
        if averted.is_zero() {
            return Ok(());
        }
        write!(f, ", to avert {averted} of page walks in {within}{}", self.0)
    }
}

/// For how long averted page walks were counted, beside the part of their time that is left.
///
/// The two differ: what comes about within a horizon counts as well where the horizon is longer
/// than what is left. The line says so, or else a full credit would stand beside a short rest.
struct Counted<'a> {
    decision: &'a Decision,
    averted: Cycles,
    within: Nanos,
    left: Nanos,
}

impl Counted<'_> {
    /// As the price has it: amounts in ledgers have seven digits.
    fn time(&self) -> Nanos {
        let terms = self.decision.terms.iter().flatten();
        let walks = terms.filter(|term| term.kind == TermKind::SavedWalks);
        let counted: f64 = walks.map(|term| term.cycles().expected).sum();
        Nanos::from_f64(self.within.as_f64() * counted / self.averted.as_f64().max(1.0))
    }
}

impl fmt::Display for Counted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        /// One part in so many is rounding.
        const ROUNDING: f64 = 1e-3;
        let (left, time) = (self.left, self.time());
        let slack = self.within.as_f64() * ROUNDING;
        if self.averted.is_zero() {
            return Ok(());
        }
        if time.as_f64() > left.as_f64() + slack {
            write!(f, ", counted for {time} by the horizon, though only {left} of it are left")
        } else if time.as_f64() + slack >= left.min(self.within).as_f64() {
            write!(f, ", counted for the {time} of it that are left")
        } else {
            write!(f, ", counted for {time} as profiles have come true; {left} of it are left")
        }
    }
}

/// What is known of the page walks that a collapse saves.
struct Walks<'a>(&'a Decision);

impl fmt::Display for Walks<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let heat = self.0.heat;
        let how = match self.0.reason {
            Reason::PageWalksCounted => "page walks, as the processor counts them",
            Reason::PageWalksEstimated => "page walks, estimated: nothing counts them here",
            _ => return f.write_str("none: it was asked for"),
        };
        let plural = if heat.samples == 1 { "" } else { "s" };
        let window = Nanos::from_f64(heat.window.as_f64());
        write!(f, "{} visit{plural} in {window}: {} {how}", heat.samples, heat.loads)
    }
}

/// An amount with its bounds.
struct WithRange(Interval);

impl fmt::Display for WithRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", amount(self.0.expected), Range(self.0))
    }
}

/// An item of a ledger in words.
pub(crate) struct Item(pub(crate) Term);

impl fmt::Display for Item {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(term) = self;
        let sign = if term.kind.is_benefit() { '+' } else { '-' };
        let cycles = term.cycles();
        let expected = amount(cycles.expected).to_string();
        write!(f, "{sign} {:<17} {expected:>13}  {}", term.kind.name(), Range(cycles))
    }
}

/// The bounds of an amount.
pub(crate) struct Range(pub(crate) Interval);

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.high >= AMOUNT_MAX {
            write!(f, "[{}, unknown]", amount(self.0.low))
        } else {
            write!(f, "[{}, {}]", amount(self.0.low), amount(self.0.high))
        }
    }
}

pub(crate) fn amount(cycles: f64) -> Cycles {
    Cycles::from_f64(cycles)
}

impl Turn<'_> {
    /// What there is of what the decision turns on.
    fn present(&self) -> PerSecond {
        match self.decision.action {
            Action::FirstTouch { averted, within, .. } => {
                PerSecond::from_count(averted.as_f64(), within)
            }
            Action::Populate { touched, .. } => PerSecond(f64::from(touched)),
            Action::Compact { wanted, .. } | Action::ZeroAhead { wanted, .. } => {
                PerSecond(wanted.as_f64())
            }
            Action::Recompress { saves, .. } => PerSecond(saves.as_f64()),
            // More of them never make it pay less, nor does room that is worth more; a bound on moves
            // is the other way round.
            Action::Throttle { .. } => PerSecond(if self.pays { 0.0 } else { f64::INFINITY }),
            Action::Prefetch { .. }
            | Action::Prezero { .. }
            | Action::Arm { .. }
            | Action::Scan { .. }
            | Action::SetPeriod { .. } => PerSecond(if self.pays { f64::INFINITY } else { 0.0 }),
            _ => self.decision.heat.accesses(),
        }
    }

    /// `47 of 64 asked for`: the least number with which it pays, or the most with which it does not.
    fn of_outcomes(&self, turn: PerSecond, known: u32, what: &str) -> String {
        let count = if self.pays { turn.get().ceil() } else { turn.get().floor() };
        format!("{} of {} {what}", count as u64, known.max(model::OUTCOMES))
    }

    /// `812 accesses/s`, `1.20 K page walks/s`.
    fn rate(&self, rate: PerSecond) -> String {
        let of = match self.decision.action {
            Action::Collapse { .. } => "page walks",
            Action::FirstTouch { .. } => "averted cycles",
            Action::Populate { .. } => {
                return Count(rate.get().round() as u64, "touched page").to_string();
            }
            Action::Compact { .. } | Action::ZeroAhead { .. } => {
                let count = if self.pays { rate.get().ceil() } else { rate.get().floor() };
                return Count(count as u64, "wanted block").to_string();
            }
            Action::Prefetch { known, .. } => return self.of_outcomes(rate, known, "asked for"),
            Action::Prezero { known, .. } => return self.of_outcomes(rate, known, "used"),
            Action::Reclaim { .. } => "returns of a page",
            Action::Recompress { .. } => {
                return format!("{} set free", Bytes::from_f64(rate.get()));
            }
            action if model::turns_on_worth(&action) => {
                let earned = amount(rate.get() * Bytes::mib(1).as_f64());
                return format!("{earned}/s that a MiB of fast memory earns");
            }
            _ => "accesses",
        };
        let text = rate.to_string();
        text.strip_suffix("/s")
            .map_or_else(|| text.clone(), |number| format!("{} {of}/s", number.trim_end()))
    }
}
