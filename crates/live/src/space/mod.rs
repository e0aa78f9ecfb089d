//! The address space: what is managed, and in which state each page of it is.
//!
//! | file | concept |
//! |---|---|
//! | [`advised`] | what of a range the kernel has done as it was advised, where something failed |
//! | [`deferred`] | changes that cannot be carried out yet |
//! | [`dormant`] | how much a program has mapped while nothing is managed |
//! | [`events`] | unmapped, moved, discarded |
//! | [`manage`] | beginning to manage a range |
//! | [`ordered_ranges`] | a set of any number of ranges, in order |
//! | [`page_state`] | one word a page |
//! | [`proc_maps`] | what is really mapped, and present |
//! | [`ranges`] | sets of ranges, without memory beyond their own |
//! | [`regions`] | which address belongs to which page word |
//! | [`reservations`] | what is too large to be managed as a whole |
//! | [`sealed`] | what stays mapped where it is, for good |
//! | [`unmanaged`] | what is not managed, and why |

pub mod advised;
pub(crate) mod deferred;
pub mod dormant;
pub(crate) mod events;
pub(crate) mod manage;
pub mod ordered_ranges;
pub mod page_state;
pub mod proc_maps;
pub mod ranges;
pub mod regions;
pub mod reservations;
pub mod sealed;
pub mod unmanaged;
