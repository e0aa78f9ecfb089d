//! The model of dividing one budget between a program's memory and its files' pages.
//!
//! Pages of both kinds leave when the budget is full, and come back when they are needed: those of
//! the program from swap, those of files from a disk. One more byte of a kind is worth what
//! comes back of that kind in a second, times what that takes, over what of it is out. This takes all
//! that is out to be used alike. Moving some bytes from one side to the other averts the one's faults, brings the
//! other's, and puts so much out. It is taken if it surely pays, as any other action.
//!
//! Pure: counts and times come from a world.

use core::fmt;

use serde::{Deserialize, Serialize};
use terrace_core::{Bytes, Nanos, PageSize, PerSecond};

use crate::calibration::Parameters;
use crate::explain::{Item, Range, amount};
use crate::interval::{Interval, finite};
use crate::ledger::{Ledger, MAX_TERMS, Term, TermKind};

/// A side of a divided budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Side {
    /// Pages of files that are cached.
    Files,
    /// The program's own memory: what is swapped.
    Program,
}

impl Side {
    /// The other one.
    #[must_use]
    pub const fn other(self) -> Self {
        match self {
            Self::Files => Self::Program,
            Self::Program => Self::Files,
        }
    }

    /// What people call it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Files => "files",
            Self::Program => "the program",
        }
    }
}

/// What was seen of a side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Evidence {
    /// What it has in memory.
    pub held: Bytes,
    /// What has left of it lately and is still out: what more room would hold.
    pub absent: Bytes,
    /// Base pages that came back.
    pub came_back: u64,
    /// For how long that was counted.
    pub window: Nanos,
    /// What the program waits for one of them, in cycles.
    pub each: Interval,
}

/// Standard errors between a rate and its bounds, as for the heat of a page
/// ([`Parameters::z`]).
const Z: f64 = 1.0;
/// Pages that may have come back where none was seen, at most: `-ln 0.05`, the rule of three.
const UNSEEN: f64 = 3.0;
const PAGE: f64 = PageSize::Base.bytes().as_f64();

impl Evidence {
    /// Pages that come back a second: between the bounds of so many arrivals at random.
    fn rate(&self) -> Interval {
        let count = self.came_back as f64;
        let seconds = self.window.as_secs().max(1e-9);
        let of = if self.came_back == 0 {
            Interval::new(0.0, 0.5, UNSEEN)
        } else {
            let (middle, spread) = (count + Z * Z / 2.0, Z * (count + Z * Z / 4.0).sqrt());
            Interval::new(middle - spread, count, middle + spread)
        };
        of.scale(1.0 / seconds)
    }

    /// What is out; if nothing is by now, what was before it came back.
    fn out(&self) -> f64 {
        if self.absent.is_zero() { self.came_back as f64 * PAGE } else { self.absent.as_f64() }
    }

    /// Cycles a second that so much more room averts: no more than there are.
    pub fn averts(&self, bytes: Bytes) -> Interval {
        let out = self.out();
        let share = if out > 0.0 { (bytes.as_f64() / out).min(1.0) } else { 1.0 };
        self.rate().times(self.each).scale(share)
    }

    /// Cycles a second that so much less room brings. Where nothing comes back nobody knows: as much
    /// as would be seen half of the time.
    pub fn brings(&self, bytes: Bytes) -> Interval {
        if self.came_back == 0 {
            return self.averts(bytes);
        }
        let out = self.out();
        let share = if out > 0.0 { bytes.as_f64() / out } else { 1.0 };
        self.rate().times(self.each).scale(share)
    }
}

/// What a division is decided by, besides what was seen.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Prices {
    /// How long a division is taken to stay as useful as it is.
    pub horizon: Nanos,
    /// What the least benefit must be, over the expected cost.
    pub hurdle: f64,
    /// What it takes to put a page of a file out, and one of the program, in cycles.
    pub put_out: (Interval, Interval),
}

impl Prices {
    /// With the horizon and the caution of all other decisions.
    pub fn of(parameters: &Parameters, put_out: (Interval, Interval)) -> Self {
        Self { horizon: parameters.idle, hurdle: 1.0 + parameters.hysteresis, put_out }
    }
}

/// So many bytes of a budget go over to one side, or do not: what was decided, and why.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Division {
    /// Its number.
    pub number: u64,
    /// When.
    pub at: Nanos,
    /// Which side would have more.
    pub to: Side,
    /// How much more.
    pub bytes: Bytes,
    /// The budget, and what of it is for files before.
    pub budget: Bytes,
    /// The same of files alone.
    pub share: Bytes,
    /// What was seen of the files.
    pub files: Evidence,
    /// What was seen of the program.
    pub program: Evidence,
    /// The items; `None` past the last.
    pub terms: [Option<Term>; MAX_TERMS],
    /// All benefits together, in cycles.
    pub benefit: Interval,
    /// All costs together, in cycles.
    pub cost: Interval,
    /// What the least benefit must be, over the expected cost.
    pub hurdle: f64,
    /// Whether it is done.
    pub passes: bool,
}

/// Prices so much more for one side, and less for the other.
fn price(
    (to, bytes): (Side, Bytes),
    (files, program): (&Evidence, &Evidence),
    prices: &Prices,
) -> Ledger {
    let (gains, loses, put_out) = match to {
        Side::Files => (files, program, prices.put_out.1),
        Side::Program => (program, files, prices.put_out.0),
    };
    let seconds = prices.horizon.as_secs();
    let mut ledger = Ledger::default();
    ledger.enter(TermKind::AvoidedFault, gains.averts(bytes).scale(seconds));
    ledger.enter(TermKind::Refault, loses.brings(bytes).scale(seconds));
    ledger.enter(TermKind::Store, put_out.scale(bytes.as_f64() / PAGE));
    ledger
}

impl Division {
    /// Decides about so many bytes for a side, of a budget of which files have a share.
    pub fn decide(
        (number, at): (u64, Nanos),
        (to, bytes): (Side, Bytes),
        (budget, share): (Bytes, Bytes),
        (files, program): (Evidence, Evidence),
        prices: &Prices,
    ) -> Self {
        let ledger = price((to, bytes), (&files, &program), prices);
        Self {
            number,
            at,
            to,
            bytes,
            budget,
            share,
            files,
            program,
            terms: *ledger.terms(),
            benefit: ledger.benefit,
            cost: ledger.cost,
            hurdle: prices.hurdle,
            passes: !bytes.is_zero() && ledger.margin(prices.hurdle) > 0.0,
        }
    }

    /// Pages of the side that gains that would have to come back each second for the decision to be
    /// another; `None` where none comes back.
    pub fn flip(&self) -> Option<PerSecond> {
        let gains = match self.to {
            Side::Files => &self.files,
            Side::Program => &self.program,
        };
        let rate =
            finite(gains.rate().expected * self.hurdle * self.cost.expected / self.benefit.low);
        (self.benefit.low > 0.0).then_some(PerSecond(rate))
    }
}

/// A side's evidence in words.
struct Seen<'a>(&'a Evidence);

impl fmt::Display for Seen<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Evidence { held, absent, came_back, window, each } = self.0;
        write!(
            f,
            "{held} in memory, {absent} left lately and are out; {came_back} pages came back in \
             {window}, {} each",
            amount(each.expected)
        )
    }
}

impl fmt::Display for Division {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let program = self.budget.saturating_sub(self.share);
        let range = |of: Interval| format!("{} {}", amount(of.expected), Range(of));
        write!(
            f,
            "division {}: {} more for {} (files {}, program {program}): {}  benefit {}, cost {}",
            self.number,
            self.bytes,
            self.to.name(),
            self.share,
            if self.passes { "PASSED" } else { "VETOED" },
            range(self.benefit),
            range(self.cost),
        )?;
        if let Some(flip) = self.flip() {
            let pages = flip.to_string();
            let pages = pages.strip_suffix("/s").unwrap_or(&pages).trim_end();
            let (would, side) =
                if self.passes { ("would not pay", "below") } else { ("would pay", "above") };
            write!(f, "; {would} {side} {pages} pages/s that come back")?;
        }
        let relation = if self.passes { ">" } else { "<=" };
        write!(
            f,
            "\n    rule:     least benefit {} {relation} {} x expected cost {} = {}",
            amount(self.benefit.low),
            self.hurdle,
            amount(self.cost.expected),
            amount(self.hurdle * self.cost.expected),
        )?;
        write!(f, "\n    files:    {}", Seen(&self.files))?;
        write!(f, "\n    program:  {}", Seen(&self.program))?;
        for term in self.terms.iter().flatten() {
            write!(f, "\n    {}", Item(*term))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const FILES: Evidence = Evidence {
        held: Bytes::mib(100),
        absent: Bytes::mib(64),
        came_back: 4000,
        window: Nanos::seconds(2),
        each: Interval { low: 100e3, expected: 200e3, high: 400e3 },
    };
    const PROGRAM: Evidence = Evidence {
        held: Bytes::mib(412),
        absent: Bytes::mib(128),
        came_back: 2000,
        window: Nanos::seconds(2),
        each: Interval { low: 10e3, expected: 16e3, high: 32e3 },
    };
    const PRICES: Prices = Prices {
        horizon: Nanos::seconds(10),
        hurdle: 1.5,
        put_out: (
            Interval { low: 1e3, expected: 2e3, high: 4e3 },
            Interval { low: 5e3, expected: 10e3, high: 20e3 },
        ),
    };

    fn decide(to: Side, files: Evidence, program: Evidence) -> Division {
        let budget = (Bytes::mib(512), Bytes::mib(100));
        Division::decide((7, Nanos::ZERO), (to, Bytes::mib(8)), budget, (files, program), &PRICES)
    }

    /// By hand: 8 of 64 MiB avert an eighth of 2000 pages a second at 200 Kcycles, for 10 s; the
    /// program loses 8 of 128 MiB, a sixteenth of 1000 at 16 Kcycles; and 2048 pages are put out.
    #[test]
    fn a_byte_is_worth_what_comes_back_over_what_is_out() {
        let division = decide(Side::Files, FILES, PROGRAM);
        let term =
            |kind| division.terms.iter().flatten().find(|term| term.kind == kind).unwrap().cycles();
        let near = |is: f64, by_hand: f64| (is / by_hand - 1.0).abs() < 1e-3;
        assert!(near(term(TermKind::AvoidedFault).expected, 2000.0 / 8.0 * 200e3 * 10.0));
        assert!(near(term(TermKind::Refault).expected, 1000.0 / 16.0 * 16e3 * 10.0));
        assert!(near(term(TermKind::Store).expected, 2048.0 * 10e3));
        assert!(division.passes, "{division}");
        let back = decide(Side::Program, FILES, PROGRAM);
        assert!(!back.passes, "{back}");
    }

    #[test]
    fn more_room_than_is_wanted_averts_what_there_is() {
        let all = FILES.averts(Bytes::mib(64)).expected;
        assert!((FILES.averts(Bytes::gib(4)).expected - all).abs() < 1e-6);
        // Taken away, each byte counts.
        assert!(FILES.brings(Bytes::gib(4)).expected > all * 60.0);
        // All that was out came back at once: so much was out.
        let back = Evidence { absent: Bytes::ZERO, came_back: 256, ..FILES };
        assert_eq!(back.averts(Bytes::kib(512)), back.averts(Bytes::mib(1)).scale(0.5));
    }

    /// Files of which nothing comes back get nothing, whatever is out of them.
    #[test]
    fn what_nobody_asks_for_is_worth_nothing_for_certain() {
        let stream = Evidence { came_back: 0, absent: Bytes::gib(10), ..FILES };
        let division = decide(Side::Files, stream, PROGRAM);
        assert!(!division.passes && division.benefit.low == 0.0, "{division}");
        assert_eq!(division.flip(), None);
    }

    #[test]
    fn an_explanation_says_what_was_seen_and_where_it_would_turn() {
        let division = decide(Side::Files, FILES, PROGRAM);
        let text = division.to_string();
        for part in [
            "division 7: 8.00 MiB more for files (files 100 MiB, program 412 MiB): PASSED",
            "would not pay below ",
            " pages/s that come back",
            "files:    100 MiB in memory, 64.0 MiB left lately and are out; 4000 pages came back in",
            "+ avoided fault",
            "- refault",
            "- store",
        ] {
            assert!(text.contains(part), "{part}:\n{text}");
        }
        // At the rate that it names it turns.
        let flip = division.flip().unwrap().get() * FILES.window.as_secs();
        for (factor, passes) in [(0.9, false), (1.1, true)] {
            let files = Evidence { came_back: (flip * factor) as u64, ..FILES };
            assert_eq!(decide(Side::Files, files, PROGRAM).passes, passes, "{factor}\n{text}");
        }
    }

    proptest! {
        /// Whatever was counted: amounts are in order, and bytes do not pay in both directions.
        #[test]
        fn bytes_never_pay_in_both_directions(
            (a, b) in (0u64..1 << 40, 0u64..1 << 40),
            (x, y) in (0u64..1 << 32, 0u64..1 << 32),
            window in 1u64..1 << 36,
            (p, q) in (0.0f64..1e9, 0.0f64..1e9),
            bytes in 4096u64..1 << 36,
        ) {
            let side = |absent, came_back, each| Evidence {
                held: Bytes::gib(1),
                absent: Bytes(absent),
                came_back,
                window: Nanos(window),
                each: Interval::new(each / 2.0, each, each * 2.0),
            };
            let (files, program) = (side(a, x, p), side(b, y, q));
            let of = |to| Division::decide(
                (1, Nanos::ZERO),
                (to, Bytes(bytes)),
                (Bytes::gib(2), Bytes::gib(1)),
                (files, program),
                &PRICES,
            );
            let both = [of(Side::Files), of(Side::Program)];
            prop_assert!(!(both[0].passes && both[1].passes), "{}\n{}", both[0], both[1]);
            for division in both {
                prop_assert!(division.benefit.low <= division.benefit.expected);
                prop_assert!(division.cost.expected.is_finite() && !division.to_string().is_empty());
            }
        }
    }
}
