//! What the program accesses.
//!
//! | file | concept |
//! |---|---|
//! | [`hint_faults`] | pages that are made to fault, within what observing may cost |
//! | [`protection`] | accesses that a page's protection tells of |
//! | [`samples`] | the sources of samples together |

pub(crate) mod hint_faults;
pub mod protection;
pub(crate) mod samples;
