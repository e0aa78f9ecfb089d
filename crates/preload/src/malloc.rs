//! The allocator's large requests, and the growth of its heap.
//!
//! A request of a megabyte or more gets a mapping of its own in the window,
//! with a header of 16 bytes in front of the pointer. Everything smaller goes
//! straight to the program's allocator; afterwards one comparison notices
//! that the heap behind it has grown, so that it can be managed, too. So it is where
//! the program moves the heap's end itself.
//!
//! The program reaches most functions here by the names in [`allocator`].

use core::ffi::{CStr, c_void};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering::*};

use libc::{c_int, c_long, size_t};
use terrace_live::config::RunConfig;
use terrace_live::space::regions::{CHUNK, WINDOW_LEN, window};
use terrace_live::space::sealed::SEALED;
use terrace_live::sys::spin::SpinLock;
use terrace_live::sys::{self, PAGE, symbols};
use terrace_live::workers::command::Command;
use terrace_live::workers::{bump_arena, idle_priority};

use crate::{allocator, arenas, attributes, mapping, room, seals, state, thresholds, wiped, words};

const LARGE: usize = RunConfig::LARGE_REQUEST.get() as usize;
const HEADER: usize = 16;
/// Blocks live in the upper half of the window, mappings in the lower: so an
/// address tells whether `free` is ours or the program's allocator's.
pub(crate) fn blocks() -> usize {
    window() + BLOCKS
}
/// Where in the window they begin.
pub(crate) const BLOCKS: usize = WINDOW_LEN / 2;

macro_rules! next {
    ($($name:ident: fn($($arg:ty),*) $(-> $ret:ty)?;)*) => {
        /// The next allocator's functions: the program's own, or the C library's.
        #[allow(non_camel_case_types)]
        struct Next { $($name: AtomicPtr<c_void>,)* }
        static NEXT: Next = Next { $($name: AtomicPtr::new(core::ptr::null_mut()),)* };
        $(
            fn $name() -> Option<unsafe extern "C" fn($($arg),*) $(-> $ret)?> {
                let mut at = NEXT.$name.load(Acquire);
                if at.is_null() {
                    resolve();
                    at = NEXT.$name.load(Acquire);
                }
                // SAFETY: the function of that name and type, or null, which is `None`.
                unsafe { core::mem::transmute(at) }
            }
        )*
        fn resolve_all() {
            $(
                let name = concat!(stringify!($name), "\0");
                let name = name.strip_prefix("next_").unwrap_or(name);
                let name = CStr::from_bytes_with_nul(name.as_bytes());
                NEXT.$name.store(name.map_or(core::ptr::null_mut(), symbols::next), Release);
            )*
        }
    };
}

next! {
    next_malloc: fn(size_t) -> *mut c_void;
    next_calloc: fn(size_t, size_t) -> *mut c_void;
    next_realloc: fn(*mut c_void, size_t) -> *mut c_void;
    next_free: fn(*mut c_void);
    next_memalign: fn(size_t, size_t) -> *mut c_void;
    next_malloc_usable_size: fn(*mut c_void) -> size_t;
}

/// Whether the next allocator is being looked up: what that allocates comes
/// from the scratch memory.
static RESOLVING: AtomicBool = AtomicBool::new(false);
/// The C library's note of where the heap ends.
static CURRENT_BREAK: AtomicPtr<AtomicUsize> = AtomicPtr::new(core::ptr::null_mut());
/// Where it was when we last looked.
static KNOWN_BREAK: AtomicUsize = AtomicUsize::new(0);
static HEAP_START: AtomicUsize = AtomicUsize::new(0);
/// Held by who tells the pager that the heap has grown.
static HEAP_BUSY: SpinLock<()> = SpinLock::new(());

fn resolve() {
    if !RESOLVING.swap(true, AcqRel) {
        resolve_all();
        allocator::look_for_sanitizers();
        RESOLVING.store(false, Release);
    }
}

pub(crate) fn init() {
    resolve();
    // A pointer-sized integer.
    let at = symbols::find(c"__curbrk", None);
    // SAFETY: asks for the heap's end.
    unsafe {
        HEAP_START.store(libc::sbrk(0) as usize, Relaxed);
        CURRENT_BREAK.store(at.unwrap_or(0) as *mut AtomicUsize, Release);
    }
    thresholds::set();
    arenas::init(next_is_the_c_librarys());
}

/// In a forked child, which has one thread.
pub(crate) fn reset() {
    // SAFETY: nobody else exists. Half changed, the list of kept blocks has one less.
    unsafe {
        HEAP_BUSY.force_unlock();
        FREED.force_unlock();
    }
    RESOLVING.store(false, Release);
    // Another thread may have been at the list. A child that has a block's addresses for nothing loses
    // little.
    REFUSED.store(0, Relaxed);
    // Another thread may have noted how far the heap goes now, and not have told the pager yet.
    KNOWN_BREAK.store(0, Relaxed);
}

/// Whether what `malloc` returns is laid out as glibc does.
fn next_is_the_c_librarys() -> bool {
    let libc_malloc = symbols::next(c"__libc_malloc");
    !libc_malloc.is_null() && core::ptr::eq(NEXT.next_malloc.load(Acquire), libc_malloc)
}

/// Whether an address lies in the heap, or in a per-thread heap.
pub(crate) fn in_heap(address: usize) -> bool {
    (HEAP_START.load(Relaxed)..current_break()).contains(&address) || arenas::contains(address)
}

/// Bytes of the heap.
pub(crate) fn heap_size() -> usize {
    current_break().saturating_sub(HEAP_START.load(Relaxed)) + arenas::size()
}

fn current_break() -> usize {
    // SAFETY: the C library's variable, or null.
    unsafe { CURRENT_BREAK.load(Acquire).as_ref() }.map_or(0, |b| b.load(Relaxed))
}

/// Looks whether the heap has grown. The fast path is two loads.
#[inline]
fn watch_heap(p: *mut c_void) -> *mut c_void {
    look_at_heap();
    arenas::watch(p);
    p
}

#[inline]
fn look_at_heap() {
    if current_break() != KNOWN_BREAK.load(Relaxed) {
        heap_moved();
    }
}

#[cold]
fn heap_moved() {
    if state::config().is_none() {
        return;
    }
    state::signals_blocked(|| {
        let Some(_busy) = HEAP_BUSY.try_lock() else { return };
        let end = current_break();
        let before = KNOWN_BREAK.swap(end, Relaxed);
        if end < before {
            wiped::heap_shrank(end, before);
        }
        take_larger_steps(end.saturating_sub(HEAP_START.load(Relaxed)));
        let Some(pager) = state::pager() else { return };
        let end = end.next_multiple_of(PAGE);
        let mut start = pager.regions.heap_end.load(Acquire);
        if start == 0 {
            start = HEAP_START.load(Relaxed).next_multiple_of(PAGE);
        }
        if start < end && pager.commands.ask(pager, Command::Manage, start, end) != 0 {
            pager.regions.heap_end.store(end, Release);
        }
    });
    state::wake_up_if_needed();
}

/// By how much the C library's heap grows at least, as we have asked it; 0 if we have not.
static STEP: AtomicUsize = AtomicUsize::new(0);
/// Smaller steps are not worth asking for.
const LEAST_STEP: usize = 1 << 20;

/// Has a large heap grow by a 16th of itself: each step is a mapping and a region of its own, for
/// the kernel merges no memory that was touched before it was registered with what was not.
/// By the C library's own steps of 132 KiB, a heap of 8 GiB took as many mappings as there may be.
fn take_larger_steps(heap: usize) {
    let step = (heap / 16).min(64 * LEAST_STEP);
    if step >= LEAST_STEP.max(2 * STEP.load(Relaxed)) {
        STEP.store(step, Relaxed);
        // SAFETY: what the library adds to the top of its heap, untouched.
        unsafe { libc::mallopt(libc::M_TOP_PAD, step as c_int) };
    }
}

/// Freed blocks that are kept mapped: a program that frees a large block
/// mostly wants one like it again. As long as blocks are as they were made ([`attributes`]).
static FREED: SpinLock<FreedBlocks> =
    SpinLock::new(FreedBlocks { blocks: [(0, 0); 16], count: 0, bytes: 0 });
const KEEP_BYTES: usize = 64 << 20;

/// Gives kept blocks back, and has the heap grow by no more than it must: of a program that gets
/// no memory. False if there was nothing to give.
pub(crate) fn give_freed_back() -> bool {
    let were_kept = unmap_kept();
    // Once: from then on it is the C library's own.
    let stepped = STEP.load(Relaxed) != 0 && STEP.swap(usize::MAX / 4, Relaxed) < usize::MAX / 4;
    if stepped {
        // SAFETY: what the library adds to the top of its heap.
        unsafe { libc::mallopt(libc::M_TOP_PAD, 128 << 10) };
    }
    were_kept || stepped
}

/// Unmaps kept blocks; false if there were none. With signals blocked.
pub(crate) fn unmap_kept() -> bool {
    let mut blocks = [(0, 0); 16];
    let mut count = 0;
    if let Some(mut kept) = FREED.try_lock() {
        count = core::mem::take(&mut kept.count);
        blocks = kept.blocks;
        kept.bytes = 0;
    }
    for &(base, len) in &blocks[..count] {
        unmap_block(base, len);
    }
    count > 0
}

struct FreedBlocks {
    blocks: [(usize, usize); 16],
    count: usize,
    bytes: usize,
}

/// A mapping's length, and where it begins, in front of a block's pointer.
#[repr(C)]
struct Header {
    base: usize,
    len: usize,
}

fn header(p: *mut c_void) -> *mut Header {
    (p as usize - HEADER) as *mut Header
}

fn is_block(p: *const c_void) -> bool {
    (p as usize).wrapping_sub(blocks()) < WINDOW_LEN / 2
}

/// Whether a request is ours to serve.
fn is_large(size: usize) -> bool {
    (LARGE..WINDOW_LEN / 4).contains(&size) && state::config().is_some() && !bump_arena::applies()
}

/// A new block; null if it cannot be had (the next allocator is asked then).
fn large(size: usize, align: usize, zeroed: bool) -> *mut c_void {
    let offset = align.max(HEADER);
    if offset > CHUNK {
        return core::ptr::null_mut();
    }
    let len = (size + offset).next_multiple_of(PAGE);
    let kept = if zeroed { None } else { reuse(len) };
    let (base, len) = match kept {
        Some(block) => block,
        None => match mapping::place_block(len) {
            Some(base) => {
                state::mapped(base, len);
                (base, len)
            }
            None => return core::ptr::null_mut(),
        },
    };
    let p = (base + offset) as *mut c_void;
    // SAFETY: in front of the pointer, within the mapping.
    unsafe { header(p).write(Header { base, len }) };
    p
}

fn reuse(len: usize) -> Option<(usize, usize)> {
    state::signals_blocked(|| {
        let mut kept = FREED.try_lock()?;
        let count = kept.count;
        let i = kept.blocks[..count].iter().position(|&(_, l)| l >= len && l <= len + len / 4)?;
        let block = kept.blocks[i];
        kept.count -= 1;
        kept.bytes -= block.1;
        kept.blocks[i] = kept.blocks[count - 1];
        Some(block)
    })
}

fn free_block(p: *mut c_void) {
    // SAFETY: a block's header.
    let Header { base, len } = unsafe { header(p).read() };
    let is_kept = state::signals_blocked(|| {
        // Nobody reuses it in a program that is on plain memory.
        if state::config().is_none() || attributes::are_changed() {
            return false;
        }
        let Some(mut kept) = FREED.try_lock() else { return false };
        if kept.count == kept.blocks.len() || kept.bytes + len > KEEP_BYTES {
            return false;
        }
        let count = kept.count;
        kept.blocks[count] = (base, len);
        kept.count += 1;
        kept.bytes += len;
        true
    });
    if !is_kept {
        unmap_block(base, len);
    }
}

/// The first of the blocks that the program has given up and the kernel has refused to unmap; 0 if there
/// are none. To unmap what lies between other blocks makes two mappings of one, and a process that has
/// been put on plain memory may have as many as it may (`vm.max_map_count`), without any of ours.
static REFUSED: AtomicUsize = AtomicUsize::new(0);

/// What such a block begins with.
#[repr(C)]
struct Refused {
    next: usize,
    len: usize,
}

/// Unmaps a block that the program has given up. One that the kernel does not unmap keeps one page, and is
/// unmapped as soon as there is room for more mappings ([`unmap_refused`]).
fn unmap_block(base: usize, len: usize) {
    match unmap(base, len) {
        // The program has sealed it (`mseal`): it stays as it is for good, and may not be written to.
        Ok(()) | Err(libc::EPERM) => {}
        Err(_) => {
            // SAFETY: the block's, which is still mapped, and which nobody else knows of.
            unsafe { (base as *mut Refused).write(Refused { next: 0, len }) };
            list_refused(base);
        }
    }
}

/// Unmaps memory that the program has given up, or says why the kernel refuses that. Then the memory is
/// empty: that takes no more mappings.
fn unmap(start: usize, len: usize) -> Result<(), i32> {
    // SAFETY: the program has given it up.
    if unsafe { mapping::give_up(start as *mut c_void, len) } == 0 {
        return Ok(());
    }
    let error = sys::errno();
    // A program under a filter might be killed for another call than the one that it has made.
    if !idle_priority::is_left_alone() {
        // SAFETY: as above. What is locked stays until it is unmapped.
        let _ = unsafe { sys::madvise(start, len, libc::MADV_DONTNEED) };
    }
    Err(error)
}

/// Lists blocks that could not be unmapped: a first one, and those that it is linked to.
fn list_refused(mut first: usize) {
    // Without a lock: to write to a block may be to wait for the pager.
    while REFUSED.compare_exchange(0, first, AcqRel, Relaxed).is_err() {
        // What others have listed meanwhile is little, and goes in front.
        let others = REFUSED.swap(0, AcqRel);
        let mut at = others;
        while at != 0 {
            // SAFETY: taken out of the list, so this thread's alone.
            let block = unsafe { &mut *(at as *mut Refused) };
            at = block.next;
            if at == 0 {
                (block.next, first) = (first, others);
            }
        }
    }
}

/// Memory was unmapped: unmaps what was refused before, as far as there is room for it now.
pub(crate) fn unmap_refused() {
    if REFUSED.load(Relaxed) != 0 {
        unmap_refused_now();
    }
}

#[cold]
fn unmap_refused_now() {
    // In a child that was not made by a fork that we know of, a block may not be there.
    if !state::has_owner() {
        return;
    }
    // A handler that leaves by a jump would leave them listed nowhere.
    state::signals_blocked(|| {
        let mut first = REFUSED.swap(0, AcqRel);
        while first != 0 {
            // SAFETY: taken out of the list, so this thread's alone.
            let Refused { next, len } = unsafe { (first as *const Refused).read() };
            if !mapping::unmap_again(first, len) {
                return list_refused(first);
            }
            first = next;
        }
    });
}

/// Bytes that a block's pointer may use.
fn block_size(p: *mut c_void) -> usize {
    // SAFETY: a block's header.
    let Header { base, len } = unsafe { header(p).read() };
    base + len - p as usize
}

fn out_of_memory() -> *mut c_void {
    // SAFETY: this thread's own variable.
    unsafe { *libc::__errno_location() = libc::ENOMEM };
    core::ptr::null_mut()
}

/// Moves the heap's end: `sbrk(3)`. The C library's own allocator does not come here.
///
/// # Safety
/// As of the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sbrk(by: libc::intptr_t) -> *mut c_void {
    type Sbrk = unsafe extern "C" fn(libc::intptr_t) -> *mut c_void;
    let Some(next) = words::real!(c"sbrk", Sbrk) else {
        out_of_memory();
        return usize::MAX as *mut c_void;
    };
    let now = current_break();
    if by < 0 && keeps_heap(now.wrapping_add_signed(by), now) {
        // What the C library says, too: it does not look how far the kernel went.
        return now as *mut c_void;
    }
    // SAFETY: the caller's.
    let before = unsafe { next(by) };
    look_at_heap();
    before
}

/// Moves the heap's end to an address: `brk(2)`.
///
/// # Safety
/// As of the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brk(end: *mut c_void) -> c_int {
    let Some(next) = words::real!(c"brk", unsafe extern "C" fn(*mut c_void) -> c_int) else {
        out_of_memory();
        return -1;
    };
    if keeps_heap(end as usize, current_break()) {
        // As above.
        return 0;
    }
    // SAFETY: the caller's.
    let moved = unsafe { next(end) };
    look_at_heap();
    moved
}

/// The same for whoever asks by `syscall(2)`: moves the heap's end as the kernel does, and says where it is.
///
/// # Safety
/// As of the system call.
pub(crate) unsafe fn move_break(end: usize) -> c_long {
    // SAFETY: the caller's.
    let ask = |end: usize| unsafe { sys::raw(libc::SYS_brk, [end, 0, 0, 0, 0, 0]) };
    // Nobody else knows: the C library has not seen such a call.
    let matters = SEALED.is_any() || terrace_live::fork::wiped::is_any();
    let now = if matters { ask(0) } else { 0 };
    if keeps_heap(end, now as usize) {
        return now;
    }
    let moved = ask(end);
    if moved < now {
        wiped::heap_shrank(moved as usize, now as usize);
    }
    moved
}

/// Whether the kernel would refuse to make the heap shorter, to an address from another, for a seal.
fn keeps_heap(end: usize, now: usize) -> bool {
    let pages = |address: usize| address.checked_next_multiple_of(PAGE);
    // What is no address the kernel refuses.
    let (Some(end), Some(now)) = (pages(end), pages(now)) else { return false };
    end < now && seals::keep(end, now - end)
}

/// Allocates: `malloc(3)`.
///
/// # Safety
/// As of the C library's.
pub(crate) unsafe extern "C" fn malloc(size: size_t) -> *mut c_void {
    if RESOLVING.load(Relaxed) || bump_arena::applies() {
        return bump_arena::allocate(size, 16).cast();
    }
    if is_large(size) {
        let p = large(size, HEADER, false);
        if !p.is_null() {
            return p;
        }
    }
    let Some(next) = next_malloc() else { return out_of_memory() };
    // SAFETY: the next allocator's.
    watch_heap(room::for_block(size, || unsafe { next(size) }))
}

/// Allocates zeroed memory: `calloc(3)`.
///
/// # Safety
/// As of the C library's.
pub(crate) unsafe extern "C" fn calloc(count: size_t, size: size_t) -> *mut c_void {
    if RESOLVING.load(Relaxed) || bump_arena::applies() {
        return bump_arena::allocate(count.saturating_mul(size), 16).cast();
    }
    if let Some(bytes) = count.checked_mul(size)
        && is_large(bytes)
    {
        let p = large(bytes, HEADER, true);
        if !p.is_null() {
            return p;
        }
    }
    let Some(next) = next_calloc() else { return out_of_memory() };
    let bytes = count.saturating_mul(size);
    // SAFETY: the next allocator's.
    watch_heap(room::for_block(bytes, || unsafe { next(count, size) }))
}

/// Frees: `free(3)`.
///
/// # Safety
/// As of the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free(p: *mut c_void) {
    if is_block(p) {
        // `free` leaves the error number as it is.
        let error = sys::errno();
        free_block(p);
        // SAFETY: this thread's own variable.
        unsafe { *libc::__errno_location() = error };
    } else if !bump_arena::owns(p.cast())
        && let Some(next) = next_free()
    {
        // SAFETY: the next allocator's pointer.
        unsafe { next(p) }
        // It may have made the heap shorter. What lies there when it grows again is not marked.
        if terrace_live::fork::wiped::is_any() {
            look_at_heap();
        }
    }
}

/// Changes a size: `realloc(3)`.
///
/// # Safety
/// As of the C library's.
pub(crate) unsafe extern "C" fn realloc(p: *mut c_void, size: size_t) -> *mut c_void {
    if p.is_null() {
        // SAFETY: the caller's.
        return unsafe { malloc(size) };
    }
    let old = if is_block(p) {
        if size == 0 {
            // SAFETY: the caller's.
            unsafe { free(p) };
            return core::ptr::null_mut();
        }
        let old = block_size(p);
        // In place, unless much would be wasted.
        if size <= old && size >= LARGE && size >= old / 2 {
            return p;
        }
        if size >= LARGE && is_large(size) {
            // SAFETY: a block of ours.
            let moved = unsafe { remap_block(p, size) };
            if !moved.is_null() {
                return moved;
            }
        }
        old
    } else if bump_arena::owns(p.cast()) {
        // SAFETY: from the scratch memory.
        unsafe { bump_arena::size(p.cast()) }
    } else if is_large(size) {
        let Some(usable) = next_malloc_usable_size() else { return out_of_memory() };
        // SAFETY: the next allocator's pointer.
        unsafe { usable(p) }
    } else {
        let Some(next) = next_realloc() else { return out_of_memory() };
        if size == 0 {
            // SAFETY: the next allocator's pointer, which is freed.
            return watch_heap(unsafe { next(p, size) });
        }
        // SAFETY: the next allocator's pointer, which stays where it is refused.
        return watch_heap(room::for_block(size, || unsafe { next(p, size) }));
    };
    // SAFETY: a new block of `size`, and the old one of `old` bytes.
    unsafe {
        let new = malloc(size);
        if !new.is_null() {
            core::ptr::copy_nonoverlapping(p.cast::<u8>(), new.cast::<u8>(), old.min(size));
            free(p);
        }
        new
    }
}

/// Gives a block another size by moving its pages; null if that fails.
///
/// # Safety
/// The pointer is a block's.
unsafe fn remap_block(p: *mut c_void, size: usize) -> *mut c_void {
    // SAFETY: the caller's.
    let Header { base, len } = unsafe { header(p).read() };
    let offset = p as usize - base;
    let new_len = (size + offset).next_multiple_of(PAGE);
    if new_len <= len {
        // A tail that stays mapped is still the block's, and goes with it.
        if unmap(base + new_len, len - new_len).is_ok() {
            // SAFETY: a block's header.
            unsafe { (*header(p)).len = new_len };
        }
        return p;
    }
    let Some(to) = mapping::move_block(base, len, new_len, mapping::Kind::Block) else {
        return core::ptr::null_mut();
    };
    let p = (to + offset) as *mut c_void;
    // SAFETY: in front of the pointer, within the mapping.
    unsafe { header(p).write(Header { base: to, len: new_len }) };
    p
}

/// Changes an array's size: `reallocarray(3)`.
///
/// # Safety
/// As of the C library's.
pub(crate) unsafe extern "C" fn reallocarray(
    p: *mut c_void,
    count: size_t,
    size: size_t,
) -> *mut c_void {
    match count.checked_mul(size) {
        // SAFETY: the caller's.
        Some(bytes) => unsafe { realloc(p, bytes) },
        None => out_of_memory(),
    }
}

/// Allocates aligned memory: `memalign(3)`.
///
/// # Safety
/// As of the C library's.
pub(crate) unsafe extern "C" fn memalign(align: size_t, size: size_t) -> *mut c_void {
    if RESOLVING.load(Relaxed) || bump_arena::applies() {
        return bump_arena::allocate(size, align).cast();
    }
    if is_large(size) && align.is_power_of_two() {
        let p = large(size, align, false);
        if !p.is_null() {
            return p;
        }
    }
    let Some(next) = next_memalign() else { return out_of_memory() };
    let bytes = size.saturating_add(align);
    // SAFETY: the next allocator's.
    watch_heap(room::for_block(bytes, || unsafe { next(align, size) }))
}

/// Allocates aligned memory: `aligned_alloc(3)`.
///
/// # Safety
/// As of the C library's.
pub(crate) unsafe extern "C" fn aligned_alloc(align: size_t, size: size_t) -> *mut c_void {
    // SAFETY: the caller's.
    unsafe { memalign(align, size) }
}

/// Allocates aligned memory: `posix_memalign(3)`.
///
/// # Safety
/// As of the C library's.
pub(crate) unsafe extern "C" fn posix_memalign(
    to: *mut *mut c_void,
    align: size_t,
    size: size_t,
) -> c_int {
    if !align.is_power_of_two() || !align.is_multiple_of(size_of::<usize>()) {
        return libc::EINVAL;
    }
    let error = sys::errno();
    // SAFETY: the caller's.
    unsafe {
        let p = memalign(align, size);
        // Reports by its result, and leaves the error number as it is.
        *libc::__errno_location() = error;
        if p.is_null() {
            return libc::ENOMEM;
        }
        *to = p;
    }
    0
}

/// Allocates whole pages: `valloc(3)`.
///
/// # Safety
/// As of the C library's.
pub(crate) unsafe extern "C" fn valloc(size: size_t) -> *mut c_void {
    // SAFETY: the caller's.
    unsafe { memalign(PAGE, size) }
}

/// Allocates whole pages: `pvalloc(3)`.
///
/// # Safety
/// As of the C library's.
pub(crate) unsafe extern "C" fn pvalloc(size: size_t) -> *mut c_void {
    match size.checked_next_multiple_of(PAGE) {
        // SAFETY: the caller's.
        Some(size) => unsafe { memalign(PAGE, size.max(PAGE)) },
        None => out_of_memory(),
    }
}

/// What a pointer may use: `malloc_usable_size(3)`.
///
/// # Safety
/// As of the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn malloc_usable_size(p: *mut c_void) -> size_t {
    if p.is_null() {
        return 0;
    }
    if is_block(p) {
        return block_size(p);
    }
    if bump_arena::owns(p.cast()) {
        // SAFETY: from the scratch memory.
        return unsafe { bump_arena::size(p.cast()) };
    }
    // SAFETY: the next allocator's pointer.
    next_malloc_usable_size().map_or(0, |next| unsafe { next(p) })
}
