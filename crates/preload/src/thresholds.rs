//! Which requests the C library's allocator serves from its heap, and how much of the heap's end it keeps.

use libc::c_int;
use terrace_live::config::RunConfig;

const LARGE: c_int = RunConfig::LARGE_REQUEST.get() as c_int;
/// What glibc itself sets where a block of [`LARGE`] bytes that had a mapping of its own was freed.
const TRIM: c_int = 2 * LARGE;

/// Has everything below our own large requests come from the heap.
pub(crate) fn set() {
    // SAFETY: sets numbers of the C library's.
    unsafe {
        // By default it maps requests just below ours one by one, and nobody tells us of those mappings.
        libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE);
        // From then on glibc adapts neither threshold by itself, and with its 128 KiB for this one a request
        // above that may fail. Where the program has moved the heap's end itself (`sbrk`), glibc takes new
        // memory behind it, and frees what was left of the old before it serves the request
        // (`sysmalloc`). To free that much is to give back what the new memory has above the threshold, and
        // the request does not fit any more. The new memory for one request, with 128 KiB to spare, is below
        // this threshold. Where more is taken in advance (`malloc::take_larger_steps`), as much is left.
        if !is_chosen() {
            libc::mallopt(libc::M_TRIM_THRESHOLD, TRIM);
        }
    }
}

/// Whether the user has set how much of the heap's end is kept.
fn is_chosen() -> bool {
    const TUNABLE: &[u8] = b"glibc.malloc.trim_threshold=";
    let has_it = |text: &[u8]| text.windows(TUNABLE.len()).any(|part| part == TUNABLE);
    std::env::var_os("MALLOC_TRIM_THRESHOLD_").is_some()
        || std::env::var_os("GLIBC_TUNABLES").is_some_and(|text| has_it(text.as_encoded_bytes()))
}
