//! The preloaded library: takes a program's large anonymous memory over for
//! the live world. Hooks only; everything that it does is in `terrace-live`.
//!
//! | file | concept |
//! |---|---|
//! | [`state`] | dormant, active, off; and the way from one to the next |
//! | [`mapping`] | `mmap`, `munmap`: large mappings go into the window |
//! | [`collapse`] | huge pages that the program asks for |
//! | [`populate`] | memory that the kernel brings in before a call returns |
//! | [`remap`] | `mremap` |
//! | [`halves`] | `mremap` of several mappings under a filter |
//! | [`seals`] | `mseal`: what the kernel would refuse to unmap |
//! | [`shmat`] | shared memory in the place of what was mapped |
//! | [`process_madvise`] | advice by a descriptor of the process |
//! | [`mapped`] | how much is mapped that is to be managed, as long as nothing is |
//! | [`room`] | what is given back before the program hears that there is no memory |
//! | [`allocator`] | the allocator's functions by their names: ours, or a sanitizer's |
//! | [`malloc`] | the allocator's large requests, and the growth of the heap |
//! | [`thresholds`] | which requests the C library's allocator serves from its heap |
//! | [`attributes`] | what a program changes of its memory that stays with the mapping |
//! | [`arenas`] | the C library's per-thread heaps |
//! | [`places`] | memory that the program wants at an address of its own choice |
//! | [`own_faults`] | programs that use userfaultfd themselves |
//! | [`forking`] | `fork` |
//! | [`fork_reset`] | what a forked child does with each thing of ours |
//! | [`ending`] | `_exit`, and the return from `main` |
//! | [`wipes`] | what the kernel does not tell of memory that a child is to find empty, in turns with forks |
//! | [`wiped`] | marks of that memory go where its mappings go |
//! | [`words`] | words that the kernel changes by itself: mutexes, threads' ends, futexes |
//! | [`filters`] | filters on system calls, and what has to be done before |
//! | [`credentials`] | changes of user and groups, which every thread takes part in |
//! | [`sanitizers`] | programs that a sanitizer checks, or Valgrind runs |
//! | [`imports`] | what this library calls, which is never the program's |
//! | [`own_heap`] | the allocator that this library itself uses |
//!
//! What is hooked is what places memory. Everything that takes memory away or
//! moves it (`munmap`, `mremap`, `madvise`, `brk`, by whatever route) is told
//! to us by the kernel; but not of shared memory in its place (`shmat`), and it
//! tells of memory that stays since it is sealed.

// The exported symbols are reached by the dynamic linker.
#![allow(unreachable_pub)]

mod allocator;
mod arenas;
mod attributes;
mod collapse;
mod credentials;
mod ending;
mod filters;
mod fork_reset;
mod forking;
mod halves;
mod imports;
mod malloc;
mod mapped;
mod mapping;
mod own_faults;
mod own_heap;
mod places;
mod populate;
mod process_madvise;
mod remap;
mod room;
mod sanitizers;
mod seals;
mod shmat;
mod state;
mod thresholds;
mod wiped;
mod wipes;
mod words;

use terrace_live::interface::{MARK, MARK_LENGTH};

#[global_allocator]
static OWN: own_heap::OwnHeap = own_heap::OwnHeap::new();

/// Tells this library from others, and from those of other versions: `terrace` looks for the name, and
/// at what it is.
#[unsafe(no_mangle)]
pub static TERRACE_PRELOADED: [u8; MARK_LENGTH] = MARK;

/// Runs when the library is loaded.
#[used]
#[unsafe(link_section = ".init_array")]
static INIT: extern "C" fn() = {
    extern "C" fn init() {
        state::init();
    }
    init
};
