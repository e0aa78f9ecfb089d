//! Words in the program's memory that the kernel changes by itself: robust and
//! priority-inheriting mutexes, the word that is cleared at a thread's end, and
//! the futex operations that change a word.
//!
//! The kernel does not wait for absent memory there: it gives up, silently or
//! with `EFAULT`. What it does at a thread's end needs the page in place
//! (see [`terrace_live::evict::pinned_pages`]); an operation that fails can be repeated.
//!
//! [`syscall`], by which a program may make such calls, is here for all calls that concern us.

use core::arch::naked_asm;
use core::ffi::{c_long, c_void};
use core::sync::atomic::{AtomicPtr, Ordering::*};

use libc::c_int;
use terrace_live::evict::pinned_pages::PINNED;
use terrace_live::failsafe::sharers;
use terrace_live::space::regions::in_window;
use terrace_live::sys::{self, PAGE};

use crate::{
    attributes, credentials, filters, malloc, mapping, own_faults, places, process_madvise, remap,
    room, sanitizers, seals, shmat, state, wipes,
};

/// `struct pthread` with some room: what the C library and the kernel use of a
/// thread's stack stands at its top.
const DESCRIPTOR: usize = 8 << 10;
/// Of a thread, where nothing else is asked for: what the C library takes by the default limit.
const DEFAULT_STACK: usize = 8 << 20;
/// How often an operation is repeated; each time the page was there a moment
/// before.
const TRIES: usize = 100;

/// Whether what lies there can leave DRAM.
pub(crate) fn is_managed(at: usize) -> bool {
    in_window(at) || malloc::in_heap(at) || places::contains(at, at + 1) || state::is_in_region(at)
}

/// Keeps `len` bytes in DRAM from now on, if they can leave it.
pub(crate) fn keep(start: usize, len: usize) {
    if !is_managed(start) || state::config().is_none() || PINNED.contains(start & !(PAGE - 1)) {
        return;
    }
    if !PINNED.add(start, len) {
        static TOLD: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
        if TOLD.swap(core::ptr::dangling_mut(), Relaxed).is_null() {
            sys::complain(&[
                // The kernel gives a thread's list up at the first word that is absent.
                "too many robust mutexes, or threads on stacks of the program's own; \
                            all that a thread holds may be lost when it ends",
            ]);
        }
        return;
    }
    let Some(pager) = state::pager_even_if_broken() else { return };
    // Pages leave only with this lock held: what has not left by now stays. None leave
    // any more if something of ours has broken, but it may not be back yet.
    if !pager.is_stopped() {
        state::signals_blocked(|| drop(pager.reading.lock()));
    }
    let first = start & !(PAGE - 1);
    populate(first, (start + len).next_multiple_of(PAGE) - first);
}

/// Brings memory in; false if there is none.
fn populate(at: usize, len: usize) -> bool {
    // SAFETY: changes no content.
    unsafe {
        sys::madvise(at, len, libc::MADV_POPULATE_WRITE).is_ok()
            || sys::madvise(at, len, libc::MADV_POPULATE_READ).is_ok()
    }
}

/// The next function of a name. It is looked up when this library is loaded: later another thread
/// may have the loader's lock, and wait in the allocator for a lock that a caller of ours holds.
macro_rules! real {
    ($name:literal, $type:ty) => {{
        use core::sync::atomic::{AtomicPtr, Ordering};
        static REAL: AtomicPtr<core::ffi::c_void> = AtomicPtr::new(core::ptr::null_mut());
        extern "C" fn look() {
            REAL.store(terrace_live::sys::symbols::next($name), Ordering::Relaxed);
        }
        #[used]
        #[unsafe(link_section = ".init_array")]
        static LOOK: extern "C" fn() = look;
        if REAL.load(Ordering::Relaxed).is_null() {
            // A constructor of another library's comes first.
            look();
        }
        let at = REAL.load(Ordering::Relaxed);
        // SAFETY: the C library's function of that name and type, or null,
        // which is `None`.
        unsafe { core::mem::transmute::<*mut core::ffi::c_void, Option<$type>>(at) }
    }};
}
pub(crate) use real;

/// Initialises a mutex: `pthread_mutex_init(3)`.
///
/// # Safety
/// As of the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_mutex_init(
    mutex: *mut libc::pthread_mutex_t,
    attributes: *const libc::pthread_mutexattr_t,
) -> c_int {
    type Init =
        unsafe extern "C" fn(*mut libc::pthread_mutex_t, *const libc::pthread_mutexattr_t) -> c_int;
    let Some(real) = real!(c"pthread_mutex_init", Init) else { return libc::ENOSYS };
    if !attributes.is_null() {
        let (mut robust, mut protocol) = (0, 0);
        // SAFETY: the caller's attributes; they are only read.
        unsafe {
            libc::pthread_mutexattr_getrobust(attributes, &raw mut robust);
            libc::pthread_mutexattr_getprotocol(attributes, &raw mut protocol);
        }
        if robust == libc::PTHREAD_MUTEX_ROBUST || protocol == libc::PTHREAD_PRIO_INHERIT {
            keep(mutex as usize, size_of::<libc::pthread_mutex_t>());
        }
    }
    // SAFETY: the caller's.
    unsafe { real(mutex, attributes) }
}

/// Creates a thread: `pthread_create(3)`. On a stack that the program has
/// allocated, the thread's descriptor must stay.
///
/// # Safety
/// As of the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_create(
    thread: *mut libc::pthread_t,
    attributes: *const libc::pthread_attr_t,
    main: extern "C" fn(*mut c_void) -> *mut c_void,
    argument: *mut c_void,
) -> c_int {
    type Create = unsafe extern "C" fn(
        *mut libc::pthread_t,
        *const libc::pthread_attr_t,
        extern "C" fn(*mut c_void) -> *mut c_void,
        *mut c_void,
    ) -> c_int;
    let Some(real) = real!(c"pthread_create", Create) else { return libc::EAGAIN };
    let mut len = DEFAULT_STACK;
    if !attributes.is_null() {
        let (mut stack, mut size) = (core::ptr::null_mut(), 0);
        // SAFETY: the caller's attributes; they are only read.
        let known =
            unsafe { libc::pthread_attr_getstack(attributes, &raw mut stack, &raw mut size) } == 0;
        let top = (stack as usize).wrapping_add(size);
        if size != 0 {
            len = size;
        }
        // Without a stack of the program's, the address is nonsense.
        if known && top > stack as usize && size > DESCRIPTOR {
            keep(top - DESCRIPTOR, DESCRIPTOR);
        }
    }
    // SAFETY: the caller's.
    let create = || unsafe { real(thread, attributes, main, argument) };
    room::ask(len.saturating_add(PAGE), create, |&error| error == libc::EAGAIN)
}

/// Creates a process or thread: `clone(2)`, by the C library's function.
///
/// # Safety
/// As of the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clone(
    main: extern "C" fn(*mut c_void) -> c_int,
    stack: *mut c_void,
    flags: c_int,
    argument: *mut c_void,
    parent: usize,
    tls: usize,
    child: usize,
) -> c_int {
    // Fixed arguments stand where variable ones do.
    type Clone = unsafe extern "C" fn(
        extern "C" fn(*mut c_void) -> c_int,
        *mut c_void,
        c_int,
        *mut c_void,
        usize,
        usize,
        usize,
    ) -> c_int;
    let Some(real) = real!(c"clone", Clone) else { return -1 };
    if flags & libc::CLONE_CHILD_CLEARTID != 0 {
        keep(child, size_of::<c_int>());
    }
    // SAFETY: the caller's.
    sharers::make(flags, || unsafe { real(main, stack, flags, argument, parent, tls, child) })
}

/// Calls the kernel: `syscall(2)`. A leaf that uses no stack, as the C library's
/// is, except for the few calls that concern us.
///
/// # Safety
/// As of the C library's.
#[unsafe(no_mangle)]
#[unsafe(naked)]
#[cfg(target_arch = "x86_64")]
pub unsafe extern "C" fn syscall(
    number: c_long,
    word: usize,
    a2: usize,
    a3: usize,
    a4: usize,
    second_word: usize,
    a6: usize,
) -> c_long {
    naked_asm!(
        "cmp rdi, {futex}",
        "je {ours}",
        "cmp rdi, {mremap}",
        "je {ours}",
        "cmp rdi, {munmap}",
        "je {ours}",
        "cmp rdi, {madvise}",
        "je {ours}",
        "cmp rdi, {shmat}",
        "je {ours}",
        "cmp rdi, {process_madvise}",
        "je {ours}",
        "cmp rdi, {mprotect}",
        "je {ours}",
        "cmp rdi, {pkey_mprotect}",
        "je {ours}",
        "cmp rdi, {mlock}",
        "je {ours}",
        "cmp rdi, {mlock2}",
        "je {ours}",
        "cmp rdi, {mlockall}",
        "je {ours}",
        "cmp rdi, {mbind}",
        "je {ours}",
        "cmp rdi, {mseal}",
        "je {ours}",
        "cmp rdi, {mmap}",
        "je {ours}",
        "cmp rdi, {brk}",
        "je {ours}",
        "cmp rdi, {ioctl}",
        "je {ours}",
        "cmp rdi, {tid}",
        "je {ours}",
        "cmp rdi, {seccomp}",
        "je {ours}",
        "cmp rdi, {prctl}",
        "je {ours}",
        "cmp rdi, {capset}",
        "je {ours}",
        "cmp rdi, {unshare}",
        "je {ours}",
        "cmp rdi, {setns}",
        "je {ours}",
        "cmp rdi, {end}",
        "je {ours}",
        "cmp rdi, {execute}",
        "je {ours}",
        "cmp rdi, {execute_at}",
        "je {ours}",
        "cmp rdi, {fork}",
        "je {ours}",
        "cmp rdi, {clone3}",
        "je 5f",
        "cmp rdi, {clone}",
        "jne 3f",
        "test esi, {shared}",
        "jnz 4f",
        // Where it has no stack of its own.
        "test rdx, rdx",
        "jz {ours}",
        "jmp 3f",
        "4:",
        "test esi, {none}",
        "jnz 3f",
        "mov byte ptr [rip + {others}], 1",
        "3:",
        "mov rax, rdi",
        "mov rdi, rsi",
        "mov rsi, rdx",
        "mov rdx, rcx",
        "mov r10, r8",
        "mov r8, r9",
        "mov r9, [rsp + 8]",
        "syscall",
        "cmp rax, -4095",
        "jae 2f",
        "ret",
        "2:",
        "mov rdi, rax",
        "jmp {failed}",
        // The flags are the first word of what the kernel has read.
        "5:",
        "mov rax, rdi",
        "mov rdi, rsi",
        "mov rsi, rdx",
        "syscall",
        "cmp rax, -4095",
        "jae 2b",
        "test rax, rax",
        "jz 6f",
        "test dword ptr [rdi], {memory}",
        "jz 6f",
        "test dword ptr [rdi], {none}",
        "jnz 6f",
        "mov byte ptr [rip + {others}], 1",
        "6:",
        "ret",
        futex = const libc::SYS_futex,
        mremap = const libc::SYS_mremap,
        munmap = const libc::SYS_munmap,
        madvise = const libc::SYS_madvise,
        shmat = const libc::SYS_shmat,
        process_madvise = const libc::SYS_process_madvise,
        mprotect = const libc::SYS_mprotect,
        pkey_mprotect = const libc::SYS_pkey_mprotect,
        mlock = const libc::SYS_mlock,
        mlock2 = const libc::SYS_mlock2,
        mlockall = const libc::SYS_mlockall,
        mbind = const libc::SYS_mbind,
        mseal = const libc::SYS_mseal,
        mmap = const libc::SYS_mmap,
        brk = const libc::SYS_brk,
        ioctl = const libc::SYS_ioctl,
        tid = const libc::SYS_set_tid_address,
        seccomp = const libc::SYS_seccomp,
        prctl = const libc::SYS_prctl,
        capset = const libc::SYS_capset,
        unshare = const libc::SYS_unshare,
        setns = const libc::SYS_setns,
        fork = const libc::SYS_fork,
        clone = const libc::SYS_clone,
        clone3 = const libc::SYS_clone3,
        memory = const libc::CLONE_VM,
        shared = const libc::CLONE_VM | libc::CLONE_VFORK,
        none = const sharers::NONE,
        others = sym sharers::OTHERS,
        end = const libc::SYS_exit_group,
        execute = const libc::SYS_execve,
        execute_at = const libc::SYS_execveat,
        ours = sym concerns_us,
        failed = sym failed,
    )
}

/// What the C library returns where the kernel has returned this; sets `errno` as it does.
pub(crate) fn returned(result: c_long) -> c_long {
    if (-4095..0).contains(&result) { failed(result) } else { result }
}

extern "C" fn failed(result: c_long) -> c_long {
    // SAFETY: this thread's own variable.
    unsafe { *libc::__errno_location() = -result as c_int };
    -1
}

/// The system calls that are given words which the kernel changes, those that install filters, those by
/// which rights are given up, those that give memory attributes, and those that move memory, discard it,
/// map something else there, or mark it for children.
///
/// The last are served as the C library's functions are. Beside a checker they are left to the kernel, as
/// without us. So is `mmap`, but for what it maps over: a program that maps memory by `syscall` may want
/// none but the kernel's. What else changes memory changes none of ours. After `munlock` and `munlockall`
/// memory may leave that nothing holds any more. `shmdt` and `remap_file_pages` are for shared memory, which is
/// not managed. The child of `vfork` goes on in our memory, and its own calls come here.
extern "C" fn concerns_us(
    number: c_long,
    word: usize,
    a2: usize,
    a3: usize,
    a4: usize,
    second_word: usize,
    a6: usize,
) -> c_long {
    let are_hooked = !sanitizers::are_here();
    match number {
        // Flags that are none of the C library's are the kernel's to refuse.
        libc::SYS_mremap if are_hooked && c_int::try_from(a4).is_ok() => {
            let (old, to) = (word as *mut c_void, second_word as *mut c_void);
            // SAFETY: what the program asked for.
            return unsafe { remap::change(old, a2, a3, a4 as c_int, to) } as c_long;
        }
        libc::SYS_munmap if are_hooked => {
            attributes::changed(word, a2);
            // SAFETY: as above.
            return unsafe { mapping::give_up(word as *mut c_void, a2) }.into();
        }
        libc::SYS_madvise if are_hooked => {
            // SAFETY: as above.
            return unsafe { mapping::heed(word as *mut c_void, a2, a3 as c_int) }.into();
        }
        libc::SYS_process_madvise if are_hooked => {
            // SAFETY: as above.
            return unsafe { process_madvise::advise([word, a2, a3, a4, second_word, a6]) };
        }
        libc::SYS_shmat if are_hooked => {
            // SAFETY: as above.
            return unsafe { shmat::attach([word, a2, a3, a4, second_word, a6]) };
        }
        libc::SYS_mseal if are_hooked => {
            // SAFETY: as above.
            return unsafe { seals::seal([word, a2, a3, a4, second_word, a6]) };
        }
        libc::SYS_mprotect if are_hooked && c_int::try_from(a3).is_ok() => {
            // SAFETY: as above.
            return unsafe { mapping::protect(word, a2, a3 as c_int) };
        }
        libc::SYS_pkey_mprotect if are_hooked => {
            // SAFETY: as above.
            return unsafe { attributes::protect_by_key([word, a2, a3, a4, second_word, a6]) };
        }
        // SAFETY: as above.
        libc::SYS_mlockall if are_hooked => return unsafe { mapping::lock_all(word) },
        libc::SYS_mmap if are_hooked && a4 as c_int & libc::MAP_FIXED != 0 => {
            // SAFETY: as above.
            return unsafe { mapping::map_over([word, a2, a3, a4, second_word, a6]) };
        }
        // SAFETY: as above.
        libc::SYS_brk if are_hooked => return unsafe { malloc::move_break(word) },
        libc::SYS_ioctl if are_hooked => {
            // SAFETY: as above.
            return unsafe { own_faults::control([word, a2, a3, a4, second_word, a6]) };
        }
        libc::SYS_mlock => attributes::locked(word, a2, 0),
        libc::SYS_mlock2 => attributes::locked(word, a2, a3 as u32),
        libc::SYS_mbind => attributes::changed(word, a2),
        libc::SYS_set_tid_address => keep(word, size_of::<c_int>()),
        libc::SYS_seccomp => filters::seccomp(word, a2, a3),
        libc::SYS_prctl => filters::control(word, a2, a3),
        libc::SYS_capset => state::before_rights_change(),
        // SAFETY: as above.
        libc::SYS_unshare => return unsafe { credentials::unshare(word as c_int) }.into(),
        // SAFETY: as above.
        libc::SYS_setns => return unsafe { credentials::setns(word as c_int, a2 as c_int) }.into(),
        libc::SYS_exit_group | libc::SYS_execve | libc::SYS_execveat => state::leave_memory(),
        libc::SYS_fork | libc::SYS_clone => {
            // SAFETY: as above.
            let make = || unsafe { sys::raw(number, [word, a2, a3, a4, second_word, a6]) };
            return returned(wipes::fork_unannounced(make));
        }
        _ => {}
    }
    let mut tries = 0;
    loop {
        // SAFETY: what the program asked for.
        let result = unsafe { sys::raw(number, [word, a2, a3, a4, second_word, a6]) };
        if !(-4095..0).contains(&result) {
            return result;
        }
        let absent = result == -c_long::from(libc::EFAULT)
            && number == libc::SYS_futex
            && tries < TRIES
            && state::pager_even_if_broken().is_some();
        // Not every operation has a second word; then it is any address.
        let page = |word: usize| populate(word & !(PAGE - 1), PAGE);
        if !absent || !(page(word) | page(second_word)) {
            return failed(result);
        }
        tries += 1;
    }
}
