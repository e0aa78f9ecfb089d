//! How much a program has mapped that is to be managed, as long as nothing is
//! ([`terrace_live::space::dormant`]).

use terrace_live::space::dormant::Estimate;
use terrace_live::sys;
use terrace_live::workers::idle_priority;

use crate::{malloc, places};

static MAPPED: Estimate = Estimate::new();

/// So many bytes have become accessible.
pub(crate) fn add(len: usize) {
    MAPPED.add(len);
}

/// So many bytes were unmapped. Whether the number is less now.
pub(crate) fn remove(len: usize) -> bool {
    MAPPED.remove(len)
}

/// The number, with the heap.
pub(crate) fn bytes() -> usize {
    MAPPED.bytes() + malloc::heap_size()
}

/// The same without the heap.
pub(crate) fn without_heap() -> usize {
    MAPPED.bytes()
}

/// The number, with the heap, from the kernel's list if it may be too much.
pub(crate) fn counted() -> usize {
    if MAPPED.has_changed() {
        look();
    }
    bytes()
}

/// The program has reserved memory, or mapped some over other.
pub(crate) fn count_roughly() {
    MAPPED.count_roughly();
}

/// Whether the number may be too much.
pub(crate) fn is_rough() -> bool {
    MAPPED.is_rough()
}

/// Reads the kernel's list. The number stays what it was if the kernel does not say (the program is
/// out of descriptors, say), or might kill the program for the question.
pub(crate) fn look() {
    if !idle_priority::is_left_alone() {
        MAPPED.look(places::accessible, sys::now);
    }
}

/// Whether it is time to read it although what is counted fits.
pub(crate) fn is_look_due() -> bool {
    MAPPED.is_look_due(sys::now)
}
