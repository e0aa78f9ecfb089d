//! What a forked child does with each static of this library: see `terrace_live::fork::reset`,
//! whose tests look at the lists here, too.

use terrace_live::fork;

use crate::{arenas, malloc, mapping, room, state, wipes};

/// Statics, by file and name, that a child resets, and how. (Only the test reads this.)
const _: &[(&str, &str, &str)] = &[
    ("arenas.rs", "ADDING", "lock; what it guards is added in one step"),
    ("forking.rs", "TURN", "held by the thread that forks, which gives it back"),
    ("lib.rs", "OWN", "lock, held by the thread that forks"),
    ("malloc.rs", "HEAP_BUSY", "lock; it guards nothing but a question to the pager"),
    ("malloc.rs", "FREED", "lock; what is half changed is a block less"),
    (
        "malloc.rs",
        "KNOWN_BREAK",
        "looked at anew: who noted it may not have come to tell the pager",
    ),
    (
        "malloc.rs",
        "REFUSED",
        "who is at it is not here: the child forgets addresses that nobody uses",
    ),
    ("malloc.rs", "RESOLVING", "who looks functions up is not here"),
    ("mapping.rs", "LARGE_BLOCKS", "lock; what is half changed are addresses that are not reused"),
    ("mapping.rs", "MAPPINGS", "the same"),
    ("places.rs", "LEFT_OUT", "lock, held by the thread that forks"),
    ("places.rs", "NOTED", "lock, held by the thread that forks"),
    ("room.rs", "GIVEN_BACK", "who is at it is not here: nobody waits"),
    ("state.rs", "FORKS", "the fork is over"),
    ("state.rs", "LOOKING", "who looks is not here"),
    ("state.rs", "OWNER", "emptied by the kernel, and claimed by who has forked: `claim`"),
    ("state.rs", "STATS", "it is the parent's: made anew when it is needed"),
    ("wipes.rs", "TURNS", "who forks, or changes something, is not here"),
];

/// Statics that a child keeps as they are, and why that is right.
const _: &[(&str, &str, &str)] = &[
    ("allocator.rs", "CHECKING", "looked up once"),
    ("arenas.rs", "COUNT", "an entry is there before it counts"),
    ("arenas.rs", "ENABLED", "set once"),
    ("arenas.rs", "KNOWN", "an entry is there before it counts"),
    ("attributes.rs", "CHANGED", "the child's blocks are the same"),
    ("ending.rs", "END", "does not change"),
    ("forking.rs", "KIND", "the child reads what its parent noted, under the same lock"),
    ("forking.rs", "MASK", "the same"),
    ("forking.rs", "REGISTERED", "handlers are inherited"),
    ("halves.rs", "SEVERAL", "the kernel is the same"),
    ("imports.rs", "STORAGE", "set once"),
    ("lib.rs", "INIT", "does not change"),
    ("lib.rs", "TERRACE_PRELOADED", "does not change"),
    ("malloc.rs", "CURRENT_BREAK", "set once"),
    ("malloc.rs", "HEAP_START", "set once"),
    ("malloc.rs", "NEXT", "looked up once"),
    ("malloc.rs", "STEP", "the child's heap is the same"),
    ("mapping.rs", "TOLD", "told once is enough"),
    ("mapped.rs", "MAPPED", "the child has the same mapped; each number changes in one step"),
    ("populate.rs", "LOCKS", "without locks of its own the kernel is asked once more"),
    ("sanitizers.rs", "HERE", "set once"),
    ("state.rs", "CONFIG", "set once"),
    ("state.rs", "PAGER", "set once; no fork is made while it is"),
    ("state.rs", "PHASE", "no fork is made while management begins"),
    ("state.rs", "QUIET", "set once"),
    ("state.rs", "SKIPPED", "the child has as much mapped, and begins itself"),
    ("words.rs", "LOOK", "does not change"),
    ("words.rs", "REAL", "looked up once"),
    ("words.rs", "TOLD", "told once is enough"),
];

/// In a forked child, which has one thread, before anything else of ours.
pub(crate) fn reset() {
    // SAFETY: nobody else exists, in a child.
    unsafe { fork::reset::statics() };
    malloc::reset();
    arenas::reset();
    mapping::reset();
    room::reset();
    state::reset();
    wipes::reset();
}
