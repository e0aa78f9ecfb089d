//! Everything a policy is told, as data: so that what a policy saw can be
//! recorded in one world and replayed in another.
//!
//! [`Event`] owns its data and is what a recording is read into. [`EventRef`]
//! borrows: a world that records can do so where it must not allocate.
//! Serialised, both look the same.

use serde::{Deserialize, Serialize};

use crate::action::Done;
use crate::context::ContextEvent;
use crate::page::{PageRange, PageRef};
use crate::region::Region;
use crate::sample::{FaultKind, Sample, Upcoming};
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
    /// What the program will do, told by a simulated world.
    Foresight {
        /// Pages that it will access.
        upcoming: Vec<Upcoming>,
    },
    /// A huge page was split into the base pages of a region of its own.
    Split {
        /// The page; its region has it no more.
        page: PageRef,
        /// The region with its base pages, which lie where it lay.
        into: Region,
    },
    /// Accesses were observed, down to the base page.
    BaseSamples {
        /// In the order in which they were observed.
        samples: Vec<Sample>,
        /// The base page within the page of each.
        bases: Vec<u16>,
    },
    /// Something happened to a file or a socket.
    Context {
        /// What, to which, when and on which processor.
        event: ContextEvent,
    },
}

/// One thing that happened in a world, borrowed from the call that told it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum EventRef<'a> {
    /// [`Event::Alloc`]
    Alloc {
        /// What was mapped.
        region: &'a Region,
    },
    /// [`Event::Fault`]
    Fault {
        /// The page.
        page: PageRef,
        /// Why it faulted.
        kind: FaultKind,
        /// The world's state at that moment.
        telemetry: &'a Telemetry,
    },
    /// [`Event::Samples`]
    Samples {
        /// In the order in which they were observed.
        samples: &'a [Sample],
    },
    /// [`Event::Discard`]
    Discard {
        /// Which.
        range: PageRange,
    },
    /// [`Event::Free`]
    Free {
        /// All pages of the region.
        range: PageRange,
    },
    /// [`Event::Tick`]
    Tick {
        /// The world's state.
        telemetry: &'a Telemetry,
    },
    /// [`Event::Pressure`]
    Pressure {
        /// Which.
        tier: TierId,
        /// How much has to be freed.
        bytes: Bytes,
        /// The world's state.
        telemetry: &'a Telemetry,
    },
    /// [`Event::Done`]
    Done {
        /// The action and what became of it.
        done: &'a Done,
        /// The world's state.
        telemetry: &'a Telemetry,
    },
    /// [`Event::Foresight`]
    Foresight {
        /// Pages that it will access.
        upcoming: &'a [Upcoming],
    },
    /// [`Event::Split`]
    Split {
        /// The page.
        page: PageRef,
        /// The region with its base pages.
        into: &'a Region,
    },
    /// [`Event::BaseSamples`]
    BaseSamples {
        /// In the order in which they were observed.
        samples: &'a [Sample],
        /// The base page within the page of each.
        bases: &'a [u16],
    },
    /// [`Event::Context`]
    Context {
        /// What, to which, when and on which processor.
        event: &'a ContextEvent,
    },
}

impl EventRef<'_> {
    /// The event with its own copy of the data.
    pub fn to_event(self) -> Event {
        match self {
            Self::Alloc { region } => Event::Alloc { region: *region },
            Self::Fault { page, kind, telemetry } => {
                Event::Fault { page, kind, telemetry: Box::new(*telemetry) }
            }
            Self::Samples { samples } => Event::Samples { samples: samples.to_vec() },
            Self::Discard { range } => Event::Discard { range },
            Self::Free { range } => Event::Free { range },
            Self::Tick { telemetry } => Event::Tick { telemetry: Box::new(*telemetry) },
            Self::Pressure { tier, bytes, telemetry } => {
                Event::Pressure { tier, bytes, telemetry: Box::new(*telemetry) }
            }
            Self::Done { done, telemetry } => {
                Event::Done { done: *done, telemetry: Box::new(*telemetry) }
            }
            Self::Foresight { upcoming } => Event::Foresight { upcoming: upcoming.to_vec() },
            Self::Split { page, into } => Event::Split { page, into: *into },
            Self::BaseSamples { samples, bases } => {
                Event::BaseSamples { samples: samples.to_vec(), bases: bases.to_vec() }
            }
            Self::Context { event } => Event::Context { event: *event },
        }
    }
}
