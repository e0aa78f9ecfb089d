//! Prices every memory-management action in cycles.
//!
//! A policy proposes; the economist says what the proposal costs the program
//! and what it brings, item by item and with bounds, lets it pass or not, and
//! compares afterwards. `docs/economist.md` derives the models.
//!
//! | file | concept |
//! |---|---|
//! | [`mode`] | off, shadow, advise, enforce; and what became of a proposal |
//! | [`interval`] | quantities that are not known exactly |
//! | [`ledger`] | the items of a price |
//! | [`calibration`] | what the mechanisms cost on a machine, and how cautious to be |
//! | [`conditions`] | everything that a model looks at besides the proposal |
//! | [`heat`] | from a policy's evidence to access rates with bounds |
//! | `access` | what the program's accesses gain or lose |
//! | `movement` | what moving the bytes costs |
//! | `promote`, `demote`, `exchange`, `prezero`, `collapse`, `context`, `split`, `first_touch`, `populate`, `place`, `compact`, `prefetch`, `reclaim`, `recompress`, `zero_ahead` | the models, one action each |
//! | [`division`] | the model of dividing one budget between a program's memory and its files' |
//! | [`managing`] | the model of managing memory that fits, for a profile's sake |
//! | [`packing`] | how tightly a page that leaves is packed |
//! | [`walks`] | what a world counts of going ahead of walks, and what it asks |
//! | `observe` | the models of looking, and of rates |
//! | `guard` | what exploring may cost, hold-outs, and the kill switch |
//! | [`model`] | from an action to its model; where a decision turns |
//! | [`alternative`] | what else could be done, and at which price |
//! | `quote`, `correction`, `lifetime` | what is learnt: prices of memory, real costs, horizons |
//! | `watch`, `touches`, `held_block`, [`account`] | predicted and realised |
//! | [`decision`], [`explain`] | the result, and the result in words |
//! | [`economist`] | the one object that worlds drive |

mod access;
pub mod account;
pub mod alternative;
pub mod calibration;
mod collapse;
mod compact;
pub mod conditions;
mod context;
mod correction;
pub mod decision;
mod demote;
pub mod division;
pub mod economist;
mod exchange;
pub mod explain;
mod first_touch;
mod guard;
pub mod heat;
mod held_block;
pub mod interval;
pub mod ledger;
mod lifetime;
pub mod managing;
pub mod mode;
pub mod model;
mod movement;
mod observe;
pub mod packing;
mod place;
mod populate;
mod prefetch;
mod prezero;
mod promote;
mod quote;
mod reclaim;
mod recompress;
mod split;
mod touches;
pub mod walks;
mod watch;
mod zero_ahead;

pub use account::{Account, Balance};
pub use alternative::{Alternative, Instead, MAX_ALTERNATIVES};
pub use calibration::{Calibration, CalibrationError, FAULT_PAGES, Parameters, TierCalibration};
pub use conditions::{Conditions, Market};
pub use decision::Decision;
pub use economist::{CLASSES, Economist};
pub use explain::Explanation;
pub use heat::Rates;
pub use interval::{AMOUNT_MAX, Interval};
pub use ledger::{Ledger, MAX_TERMS, Term, TermKind};
pub use mode::{Mode, Verdict};
pub use packing::{Packing, Room, tighter_pays};
pub use touches::LookedAt;
