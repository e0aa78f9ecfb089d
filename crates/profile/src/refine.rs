//! A profile whose walks were simulated is brought to what a processor counted.
//!
//! Counters tell how many cycles of page walks a whole run has; they do not tell of which places. A
//! simulation tells of which places, and its processor is another one. So the places keep their
//! shares, and their sum becomes what was counted: each place's benefit is multiplied by walks
//! counted over walks simulated, both of a run in base pages.

use terrace_core::{Cycles, Frequency, Nanos};
use thiserror::Error;

use crate::profile::{Profile, WalkTime};
use crate::text::is_clock;

/// What a processor counted in a run in base pages.
#[derive(Clone, Debug, PartialEq)]
pub struct Counted {
    /// Cycles of page walks, of the program's own accesses.
    pub walking: Cycles,
    /// Whether these are cycles in which a walk was under way, or walks times what one takes.
    pub walk_time: WalkTime,
    /// The clock whose cycles these are.
    pub clock: Frequency,
    /// How long the run took.
    pub elapsed: Nanos,
    /// The processor's model.
    pub processor: String,
}

/// Why a profile cannot be refined.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum NotRefined {
    /// It does not say how many walks were simulated.
    #[error("says nothing of the walks of the whole run (`walks`): record it anew")]
    NoWalks,
    /// It consists of imported rules.
    #[error("has imported rules: those are of counters already")]
    Rules,
    /// Nothing was counted.
    #[error("cannot be refined by a run in which no page walk was counted")]
    Nothing,
    /// More was counted than can be.
    #[error(
        "cannot be refined: the walks that were counted take more time than all processors have"
    )]
    TooMuch,
}

/// Refines a profile by what was counted.
///
/// # Errors
///
/// Where one of both does not say enough.
pub fn refine(profile: &Profile, counted: &Counted) -> Result<Profile, NotRefined> {
    if !profile.rules.is_empty() {
        return Err(NotRefined::Rules);
    }
    let simulated = profile.walks.filter(|walks| !walks.is_zero()).ok_or(NotRefined::NoWalks)?;
    if counted.walking.is_zero() || counted.elapsed.is_zero() || !is_clock(counted.clock) {
        return Err(NotRefined::Nothing);
    }
    if counted.walking > Profile::most_walks(counted.clock, counted.elapsed) {
        return Err(NotRefined::TooMuch);
    }
    let factor = counted.walking / simulated;
    // Rounded down, as all of them together are no more than the walks.
    let scaled = |cycles: Cycles| Cycles::from_f64((cycles.as_f64() * factor).floor());
    let mut refined = profile.clone();
    for range in refined.regions.iter_mut().flat_map(|region| &mut region.ranges) {
        range.averted = scaled(range.averted);
        range.deviation = scaled(range.deviation);
    }
    refined.walks = Some(counted.walking);
    // The places have shares of what was counted, so of the same kind.
    refined.walk_time = counted.walk_time;
    refined.clock = Frequency(counted.clock.get().round());
    refined.horizon = counted.elapsed;
    refined.machine.clone_from(&counted.processor);
    Ok(refined)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::example;

    fn counted() -> Counted {
        Counted {
            walking: Cycles(3_000_000),
            walk_time: WalkTime::Elapsed,
            clock: Frequency::ghz(2.0),
            elapsed: Nanos::seconds(4),
            processor: "A Processor".into(),
        }
    }

    #[test]
    fn places_keep_their_shares_and_come_to_what_was_counted() {
        let mut profile = example();
        profile.rules.clear();
        profile.walks = Some(Cycles(6_000_000));
        let refined = refine(&profile, &counted()).expect("it can be");
        let total = |profile: &Profile| profile.total().as_f64();
        assert!((total(&refined) / total(&profile) - 0.5).abs() < 1e-3);
        assert_eq!(refined.regions[0].ranges[0].averted, Cycles(500_000));
        assert_eq!(refined.regions[0].ranges[0].deviation, Cycles(50_000));
        assert_eq!(refined.regions[0].ranges[0].touched, 512, "what is touched is not counted");
        assert_eq!((refined.horizon, refined.clock), (Nanos::seconds(4), Frequency::ghz(2.0)));
        assert_eq!((&*refined.machine, refined.walks), ("A Processor", Some(Cycles(3_000_000))));
        let read = Profile::parse("p", &refined.to_text()).expect("a good profile");
        assert_eq!(read, refined);
        assert_eq!(refined.walk_time, WalkTime::Elapsed);
        let by_number = Counted { walk_time: WalkTime::Summed, ..counted() };
        let number = refine(&profile, &by_number).expect("it can be");
        assert_eq!(number.walk_time, WalkTime::Summed, "so many walks at what one takes alone");
        // Counted again, it is what it is.
        assert_eq!(refine(&refined, &counted()), Ok(refined));
    }

    #[test]
    fn what_says_too_little_is_not_refined() {
        let mut profile = example();
        assert_eq!(refine(&profile, &counted()), Err(NotRefined::Rules));
        profile.rules.clear();
        assert_eq!(refine(&profile, &counted()), Err(NotRefined::NoWalks));
        profile.walks = Some(Cycles(1));
        let nothing = Counted { walking: Cycles::ZERO, ..counted() };
        assert_eq!(refine(&profile, &nothing), Err(NotRefined::Nothing));
        let much = Counted { elapsed: Nanos(1), ..counted() };
        assert_eq!(refine(&profile, &much), Err(NotRefined::TooMuch));
    }
}
