//! Everything a policy is told, as data: so that what a policy saw can be
//! recorded in one world and replayed in another.

use serde::{Deserialize, Serialize};

use crate::action::Done;
use crate::page::{PageRange, PageRef};
use crate::region::Region;
use crate::sample::{FaultKind, Sample};
use crate::telemetry::Telemetry;
use crate::tier::TierId;
use crate::units::Bytes;

/// One thing that happened in a world.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Event {
    /// The program mapped memory; no page of it is placed yet.
    Alloc {
        /// What was mapped.
        region: Region,
    },
    /// A page fault asked for a placement.
    Fault {
        /// The page.
        page: PageRef,
        /// Why it faulted.
        kind: FaultKind,
        /// The world's state at that moment.
        telemetry: Box<Telemetry>,
    },
    /// Accesses were observed.
    Samples {
        /// In the order in which they were observed.
        samples: Vec<Sample>,
    },
    /// Pages were given back: they hold nothing and lie nowhere.
    Discard {
        /// Which.
        range: PageRange,
    },
    /// The program unmapped a whole region; its number may be used again.
    Free {
        /// All pages of the region.
        range: PageRange,
    },
    /// The policy's clock ticked.
    Tick {
        /// The world's state.
        telemetry: Box<Telemetry>,
    },
    /// A tier is short of memory.
    Pressure {
        /// Which.
        tier: TierId,
        /// How much has to be freed.
        bytes: Bytes,
        /// The world's state.
        telemetry: Box<Telemetry>,
    },
    /// An action came to its end.
    Done {
        /// The action and what became of it.
        done: Done,
        /// The world's state: the economist settles its accounts by it.
        telemetry: Box<Telemetry>,
    },
}
