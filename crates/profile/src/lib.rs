//! Profiles: how many cycles of page walks huge pages avert, by place in a program's memory.
//!
//! A profile is made from one run of a program (`terrace profile record`), or from several
//! that are merged. Its keys survive address randomisation, so that it fits the next run. The
//! idea and the exchange format are those of CBMM (USENIX ATC 2022); `docs/profile.md` says
//! what is different.
//!
//! | file | concept |
//! |---|---|
//! | [`key`] | what a place is called in every run |
//! | [`profile`] | the profile: regions, ranges, benefits with their horizon |
//! | [`text`] | the file format, and why a file is refused |
//! | [`cbmm`] | CBMM's CSV, read and written |
//! | [`live`] | what rules can look at in a run, and which of them come to anything there |
//! | [`mod@merge`] | several runs become one profile, with confidence |
//! | [`diff`] | how much of one profile's benefit another has as well |
//! | [`mod@refine`] | walks that were counted take the place of simulated ones |
//! | [`perf_stat`] | what `perf stat` counted |
//! | [`picture`] | the address space drawn with its benefit |

pub mod cbmm;
pub mod diff;
pub mod key;
pub mod live;
pub mod merge;
pub mod perf_stat;
pub mod picture;
pub mod profile;
pub mod refine;
pub mod text;

pub use cbmm::{Compare, Condition, Facts, Policy, Quantity, Rule};
pub use diff::Difference;
pub use key::{Key, Section};
pub use merge::merge;
pub use profile::{Advice, Estimate, Place, Profile, Range, Region, SLOT, Share, WalkTime};
pub use refine::refine;
pub use text::ProfileError;
