//! The system calls of the live world, each wrapped once.
//!
//! | file | concept |
//! |---|---|
//! | [`uffd`] | requests to userfaultfd |
//! | [`mapped`] | files of atomics that processes share |
//! | [`spin`] | locks between Terrace's own threads |
//! | [`robust_futex`] | a word by which a process sees that a thread of another one has died |
//! | [`addresses`] | where managed memory lies, and Terrace's own |
//! | [`limits`] | limits of the process, and what they leave to Terrace |
//! | [`symbols`] | what the libraries of the process define |
//! | here | all other calls |
//!
//! Nothing here allocates or uses thread-local storage beyond `errno`: these
//! run in threads on which the program depends.

pub mod addresses;
pub mod limits;
pub mod mapped;
pub(crate) mod robust_futex;
pub mod spin;
pub mod symbols;
pub mod uffd;

use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::*};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use libc::{c_int, c_long, c_void};

/// Base page size. x86-64 has no other.
pub const PAGE: usize = 4096;

/// `madvise(2)`: guards instead of content, whoever touches them gets a signal (Linux 6.13;
/// `linux/mman.h`).
pub const MADV_GUARD_INSTALL: c_int = 102;

/// The last error number.
pub fn errno() -> i32 {
    // SAFETY: returns this thread's own variable.
    unsafe { *libc::__errno_location() }
}

/// A system call; a negated error number if it fails. Leaves `errno` alone.
///
/// # Safety
/// As of the call.
#[cfg(target_arch = "x86_64")]
pub unsafe fn raw(number: c_long, arguments: [usize; 6]) -> c_long {
    let result;
    // SAFETY: the caller's; the kernel changes no registers but these.
    unsafe {
        core::arch::asm!(
            "syscall",
            inlateout("rax") number => result,
            in("rdi") arguments[0],
            in("rsi") arguments[1],
            in("rdx") arguments[2],
            in("r10") arguments[3],
            in("r8") arguments[4],
            in("r9") arguments[5],
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    result
}

/// The result of a call by [`raw`], or its error number.
fn outcome(result: c_long) -> Result<usize, i32> {
    if (-4095..0).contains(&result) { Err(-result as i32) } else { Ok(result as usize) }
}

/// Blocks all signals in the calling thread but [`crate::workers::credentials::SIGNAL`], which nobody
/// blocks; returns those that were blocked before.
pub fn block_signals() -> u64 {
    set_signals(!(1 << (crate::workers::credentials::SIGNAL - 1)))
}

/// Blocks [`crate::workers::credentials::SIGNAL`], too, in a thread of ours and for a moment; returns
/// those that were blocked before.
pub(crate) fn block_all_signals() -> u64 {
    set_signals(u64::MAX)
}

/// Blocks these signals, and no others.
pub fn restore_signals(mask: u64) {
    set_signals(mask);
}

fn set_signals(mask: u64) -> u64 {
    let mut before = 0u64;
    let (to, from) = (core::ptr::from_ref(&mask) as usize, (&raw mut before) as usize);
    // SAFETY: the kernel's signal set is 8 bytes.
    unsafe { raw(libc::SYS_rt_sigprocmask, [libc::SIG_SETMASK as usize, to, from, 8, 0, 0]) };
    before
}

/// Monotonic clock, ns.
pub fn now() -> u64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes into `t`.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut t) };
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// Has a thread of ours, or the calling one (0), run only where no other wants
/// to (`SCHED_IDLE`), or as any other again. A thread that wakes up takes its
/// processor at once, and the scheduler counts that processor as idle.
/// Whether it is so now: to end it takes a right, also for another thread.
pub fn schedule(tid: i32, idle: bool) -> bool {
    let none = libc::sched_param { sched_priority: 0 };
    let policy = if idle { libc::SCHED_IDLE } else { libc::SCHED_OTHER };
    // SAFETY: reads a plain structure.
    unsafe { libc::syscall(libc::SYS_sched_setscheduler, tid, policy, &raw const none) == 0 }
}

/// Whether this process has such a thread. Where a filter of system calls keeps it from being asked
/// for, it is there.
pub fn is_thread(tid: i32) -> bool {
    // SAFETY: signal 0 is none.
    unsafe { libc::syscall(libc::SYS_tgkill, pid(), tid, 0) == 0 || errno() != libc::ESRCH }
}

/// This process's number.
pub fn pid() -> i32 {
    // SAFETY: has no memory effects.
    unsafe { libc::getpid() }
}

/// Processor time of the calling thread.
pub fn thread_cpu() -> terrace_core::Nanos {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes into `t`.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut t) };
    terrace_core::Nanos(t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64)
}

/// Most memory in RAM at once, by the kernel's count, bytes: of this process, and of the one with
/// the most of all that it has waited for, with those that these have waited for.
pub fn most_resident() -> (u64, u64) {
    let of = |who| {
        // SAFETY: zeros are a value of it.
        let mut usage: libc::rusage = unsafe { core::mem::zeroed() };
        // SAFETY: writes into `usage`.
        unsafe { libc::getrusage(who, &raw mut usage) };
        usage.ru_maxrss as u64 * 1024
    };
    (of(libc::RUSAGE_SELF), of(libc::RUSAGE_CHILDREN))
}

/// Processor time of this process, ns.
pub fn cpu_of_process() -> u64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes into `t`.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut t) };
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// Processor time of a thread of this process, ns; 0 if there is no such thread.
pub fn cpu_of_thread(tid: i32) -> u64 {
    // How the kernel numbers a thread's clock (`posix-timers.h`: the inverted
    // number, CPUCLOCK_PERTHREAD | CPUCLOCK_SCHED).
    let clock = (!tid << 3) | 6;
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes into `t`.
    if unsafe { libc::clock_gettime(clock, &raw mut t) } != 0 {
        return 0;
    }
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// Memory where there is no kernel: Miri interprets the pager's data structures.
/// Nothing there is ever mapped at a fixed place, or of a file.
#[cfg(miri)]
mod interpreted {
    use std::alloc::{Layout, alloc_zeroed, dealloc};

    fn layout(len: usize) -> Layout {
        Layout::from_size_align(len.max(1), super::PAGE).expect("a length that can be had")
    }
    /// As `mmap` of anonymous memory.
    pub fn map(len: usize) -> Result<usize, i32> {
        // SAFETY: not empty.
        let at = unsafe { alloc_zeroed(layout(len)) };
        if at.is_null() { Err(libc::ENOMEM) } else { Ok(at.expose_provenance()) }
    }
    /// As `munmap` of a whole mapping.
    pub unsafe fn unmap(at: usize, len: usize) {
        // SAFETY: the caller's: `map` returned it for this length.
        unsafe { dealloc(core::ptr::with_exposed_provenance_mut(at), layout(len)) };
    }
}

/// `mmap` straight to the kernel: the C library's is interposed by ourselves, and so is its `syscall`.
///
/// # Safety
/// As of `mmap(2)`: with `MAP_FIXED` it replaces what is there.
pub unsafe fn mmap(
    at: usize,
    len: usize,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> Result<usize, i32> {
    #[cfg(miri)]
    if flags & libc::MAP_ANONYMOUS != 0 {
        return interpreted::map(len);
    }
    let arguments = [at, len, prot as usize, flags as usize, fd as usize, offset as usize];
    // SAFETY: the caller's.
    outcome(unsafe { raw(libc::SYS_mmap, arguments) })
}

/// `munmap` straight to the kernel. Not by the C library's `syscall`, which is interposed by ourselves,
/// too, and calls our hooks.
///
/// # Safety
/// As of `munmap(2)`: nothing may use the range afterwards.
pub unsafe fn munmap(at: usize, len: usize) -> Result<(), i32> {
    #[cfg(miri)]
    // SAFETY: the caller's.
    return Ok(unsafe { interpreted::unmap(at, len) });
    // SAFETY: the caller's.
    #[cfg(not(miri))]
    let result = unsafe { raw(libc::SYS_munmap, [at, len, 0, 0, 0, 0]) };
    #[cfg(not(miri))]
    outcome(result)?;
    #[cfg(not(miri))]
    FREED.put(at, len);
    #[cfg(not(miri))]
    Ok(())
}

/// `munmap` of memory of our own that was managed, as a program's is: the pager may not know yet
/// that it is gone, so nothing else may come to lie there.
///
/// # Safety
/// As of [`munmap`].
pub(crate) unsafe fn munmap_managed(at: usize, len: usize) {
    // SAFETY: the caller's.
    unsafe { raw(libc::SYS_munmap, [at, len, 0, 0, 0, 0]) };
}

/// `mremap` straight to the kernel.
///
/// # Safety
/// As of `mremap(2)`: nothing may use the old range afterwards, nor, with `MREMAP_FIXED`, what was at the
/// new one.
pub unsafe fn mremap(
    at: usize,
    len: usize,
    new_len: usize,
    flags: c_int,
    to: usize,
) -> Result<usize, i32> {
    // SAFETY: the caller's.
    outcome(unsafe { raw(libc::SYS_mremap, [at, len, new_len, flags as usize, to, 0]) })
}

/// So much of the addresses for memory of our own ([`addresses::own`]) was handed out. The program never
/// had any there. Were it in a hole that the program has just left, with the message still under way, a
/// forked child could take it for memory of the program's.
static OWN_NEXT: AtomicUsize = AtomicUsize::new(0);
/// What was unmapped below.
static FREED: Freed = Freed([const { AtomicU64::new(0) }; 64]);

/// Ranges of ours to be used again, for mappings of the same length: what is mapped and unmapped
/// time and again, by each of many children of children say, uses no more addresses up than once.
/// Of more than fit the addresses are lost, of which there are enough.
///
/// An entry changes in one step, so that a child that is forked at any moment has a whole list. That
/// a range is listed which is mapped does no harm: nothing is ever mapped over anything.
struct Freed([AtomicU64; 64]);

impl Freed {
    /// The first page's number among ours, and how many there are; `None` of what is not ours.
    fn entry(at: usize, len: usize) -> Option<u64> {
        let offset = at.checked_sub(addresses::own().start)?;
        // Beyond what was handed out the program may have memory at addresses of its own choice.
        let offset = Some(offset).filter(|&offset| offset < OWN_NEXT.load(Relaxed))?;
        let page = u32::try_from(offset / PAGE).ok()?;
        let pages = u32::try_from(len.div_ceil(PAGE)).ok().filter(|&pages| pages > 0)?;
        Some(u64::from(page) << 32 | u64::from(pages))
    }
    fn put(&self, at: usize, len: usize) {
        let Some(new) = Self::entry(at, len) else { return };
        let _ = self.0.iter().any(|entry| entry.compare_exchange(0, new, AcqRel, Relaxed).is_ok());
    }
    fn take(&self, len: usize) -> Option<usize> {
        let start = addresses::own().start;
        let pages = Self::entry(start, len)?;
        self.0.iter().find_map(|entry| {
            let found = entry.load(Acquire);
            let fits = found & u64::from(u32::MAX) == pages;
            (fits && entry.compare_exchange(found, 0, AcqRel, Relaxed).is_ok())
                .then(|| start + (found >> 32) as usize * PAGE)
        })
    }
}

/// Whether an address is in the range that Terrace's own memory lies in, in whichever process.
pub fn is_own(at: usize) -> bool {
    addresses::may_be_own(at)
}

/// Whether memory of this process's own may be in a range: it must not be mapped over.
pub fn is_own_in(start: usize, len: usize) -> bool {
    let own = addresses::own().start;
    start < own + OWN_NEXT.load(Relaxed) && own < start.saturating_add(len)
}

/// So many addresses of our own that nobody has had; `None` if there are no more.
fn hand_out(room: usize) -> Option<usize> {
    let next = |at: usize| at.checked_add(room).filter(|&end| end <= addresses::OWN_LEN);
    let at = OWN_NEXT.fetch_update(Relaxed, Relaxed, next).ok()?;
    Some(addresses::own().start + at)
}

/// New memory of our own, at a place of its own as long as there are any.
fn map_own(len: usize, flags: c_int) -> Result<usize, i32> {
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    let flags = flags | libc::MAP_ANONYMOUS;
    // With a page between, so that mappings stay apart.
    let room = len.checked_next_multiple_of(PAGE).and_then(|len| len.checked_add(PAGE));
    let room = room.ok_or(libc::ENOMEM)?;
    if let Some(at) = FREED.take(len).or_else(|| hand_out(room)) {
        // SAFETY: replaces nothing.
        let mapped = unsafe { mmap(at, len, prot, flags | libc::MAP_FIXED_NOREPLACE, -1, 0) };
        if mapped == Ok(at) {
            return mapped;
        }
        if let Ok(elsewhere) = mapped {
            // SAFETY: a kernel that does not know the flag (before Linux 4.17).
            let _ = unsafe { munmap(elsewhere, len) };
        }
    }
    // SAFETY: a new mapping at an address of the kernel's choice harms nothing.
    unsafe { mmap(0, len, prot, flags, -1, 0) }
}

/// New private anonymous memory of our own, never managed; zeroed, not reserved.
pub fn map_private(len: usize) -> Result<usize, i32> {
    map_own(len, libc::MAP_PRIVATE | libc::MAP_NORESERVE)
}

/// The same at a place of its own: where it was the last time, as the caller keeps in decider.
pub(crate) fn map_private_at(place: &AtomicUsize, len: usize) -> Result<usize, i32> {
    let at = place.load(Relaxed);
    if at == 0 {
        return map_private(len).inspect(|&at| place.store(at, Relaxed));
    }
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_NORESERVE | libc::MAP_ANONYMOUS;
    // SAFETY: replaces nothing.
    let mapped = unsafe { mmap(at, len, prot, flags | libc::MAP_FIXED_NOREPLACE, -1, 0)? };
    if mapped == at {
        return Ok(at);
    }
    // SAFETY: a kernel that does not know the flag (before Linux 4.17).
    let _ = unsafe { munmap(mapped, len) };
    Err(libc::EEXIST)
}

/// Changes the length of a mapping made by [`map_private`], which moves.
///
/// # Safety
/// As of `mremap(2)`: nothing may use the old range afterwards.
pub unsafe fn grow_private(at: usize, len: usize, new_len: usize) -> Result<usize, i32> {
    let to = map_private(new_len)?;
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    // SAFETY: the caller's; what is replaced is a new mapping of ours.
    let moved = unsafe { mremap(at, len, new_len, flags, to) };
    if moved.is_ok() {
        FREED.put(at, len);
    } else {
        // SAFETY: nobody else knows of it.
        let _ = unsafe { munmap(to, new_len) };
    }
    moved
}

/// New memory of our own that is shared with children.
pub fn map_shared(len: usize) -> Result<usize, i32> {
    map_own(len, libc::MAP_SHARED)
}

/// Addresses of our own for so many bytes, where nothing is mapped. Aligned to 2 MiB, as
/// pages of that size have to be.
pub fn keep_addresses(len: usize) -> Result<usize, i32> {
    const HUGE: usize = 2 << 20;
    let room = len.checked_add(2 * HUGE).ok_or(libc::ENOMEM)?;
    hand_out(room).map(|at| at.next_multiple_of(HUGE)).ok_or(libc::ENOMEM)
}

/// Maps a part of a file shared, at addresses that were kept ([`keep_addresses`]).
pub fn map_file_at(at: usize, len: usize, fd: c_int, offset: i64) -> Result<(), i32> {
    let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
    // SAFETY: replaces nothing.
    let mapped = unsafe { mmap(at, len, prot, flags | libc::MAP_FIXED_NOREPLACE, fd, offset)? };
    if mapped == at {
        return Ok(());
    }
    // SAFETY: a kernel that does not know the flag (before Linux 4.17).
    let _ = unsafe { munmap(mapped, len) };
    Err(libc::EEXIST)
}

/// `munlock` straight to the kernel, up to where nothing is mapped.
pub fn munlock(at: usize, len: usize) {
    if cfg!(miri) {
        // Nothing is locked there.
        return;
    }
    // SAFETY: changes no content.
    unsafe { libc::syscall(libc::SYS_munlock, at, len) };
}

/// Maps a file's first `len` bytes shared.
fn map_shared_file(file: &File, len: usize) -> io::Result<*mut c_void> {
    // SAFETY: as above.
    let at = unsafe {
        mmap(0, len, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED, file.as_raw_fd(), 0)
    };
    at.map(|a| a as *mut c_void).map_err(io::Error::from_raw_os_error)
}

/// Has a file's file system keep room for its first `len` bytes, and the file be no shorter. What is in
/// it stays.
///
/// # Errors
/// There is no room (`StorageFull`, `QuotaExceeded`), or the kernel's.
pub(crate) fn take_room(file: &File, len: u64) -> io::Result<()> {
    loop {
        // SAFETY: a descriptor that is open.
        if unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, len as i64) } == 0 {
            return Ok(());
        }
        match errno() {
            // A signal of the program's came.
            libc::EINTR => {}
            // Its file system cannot, or a filter of system calls refuses it.
            libc::EOPNOTSUPP | libc::ENOSYS | libc::EPERM | libc::EINVAL => return fill(file, len),
            error => return Err(io::Error::from_raw_os_error(error)),
        }
    }
}

/// The same by writing: what is there once more, and zeros behind it.
fn fill(file: &File, len: u64) -> io::Result<()> {
    for at in (0..len).step_by(PAGE) {
        let mut block = [0; PAGE];
        let part = &mut block[..(len - at).min(PAGE as u64) as usize];
        let _there = file.read_at(part, at)?;
        file.write_all_at(part, at)?;
    }
    Ok(())
}

/// Whether a range of a mapped file, of whole pages, can be written to. Where its file system has no
/// room for that, who writes is killed (`SIGBUS`); the room is taken here.
pub(crate) fn can_be_written(at: usize, len: usize) -> bool {
    // SAFETY: changes no content.
    let asked = unsafe { madvise(at, len, libc::MADV_POPULATE_WRITE) };
    // A kernel that cannot be asked (before Linux 5.14) is not asked.
    !matches!(asked, Err(libc::EFAULT | libc::ENOMEM))
}

/// `madvise` straight to the kernel.
///
/// # Safety
/// As of `madvise(2)`: some advice discards content.
pub unsafe fn madvise(at: usize, len: usize, advice: c_int) -> Result<(), i32> {
    if cfg!(miri) {
        // Advice that nobody takes.
        return Ok(());
    }
    // SAFETY: the caller's.
    outcome(unsafe { raw(libc::SYS_madvise, [at, len, advice as usize, 0, 0, 0]) }).map(|_| ())
}

/// Reads this process's memory; false if it is not mapped.
pub fn read_memory(at: usize, to: &mut [u8]) -> bool {
    let local = libc::iovec { iov_base: to.as_mut_ptr().cast(), iov_len: to.len() };
    let remote = libc::iovec { iov_base: at as *mut c_void, iov_len: to.len() };
    // SAFETY: writes into `to`; the kernel checks the other range.
    let n = unsafe {
        libc::process_vm_readv(libc::getpid(), &raw const local, 1, &raw const remote, 1, 0)
    };
    n == to.len() as isize
}

/// Writes this process's memory, whatever its protection. True if that is done,
/// or nothing is mapped there.
pub fn write_memory(at: usize, from: &[u8]) -> bool {
    // SAFETY: a NUL-terminated path; our own descriptor; reads from `from`.
    unsafe {
        let fd = libc::open(c"/proc/self/mem".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC);
        if fd < 0 {
            // Another root: what may be written can be, all the same.
            let local = libc::iovec { iov_base: from.as_ptr() as *mut c_void, iov_len: from.len() };
            let remote = libc::iovec { iov_base: at as *mut c_void, iov_len: from.len() };
            let (local, remote) = (&raw const local, &raw const remote);
            let n = libc::process_vm_writev(libc::getpid(), local, 1, remote, 1, 0);
            return n == from.len() as isize;
        }
        let mut tries = 0;
        let written = loop {
            let n = libc::pwrite(fd, from.as_ptr().cast(), from.len(), at as i64);
            // While a dying process still holds a handle for this memory, the
            // kernel has us wait for it, or refuses.
            if n == from.len() as isize || tries == 1000 {
                break n == from.len() as isize;
            }
            let mut probe = 0u8;
            if libc::mincore((at & !(PAGE - 1)) as *mut c_void, PAGE, &raw mut probe) != 0 {
                break true;
            }
            tries += 1;
            libc::usleep(5000);
        };
        libc::close(fd);
        written
    }
}

/// Sleeps while the word has this value; at most `timeout_ns`, if given.
/// `shared` for a word in memory that is shared between processes.
pub fn futex_wait(word: &AtomicU32, value: u32, timeout_ns: Option<u64>, shared: bool) {
    let t = timeout_ns.map(|ns| libc::timespec {
        tv_sec: (ns / 1_000_000_000) as i64,
        tv_nsec: (ns % 1_000_000_000) as c_long,
    });
    let timeout = t.as_ref().map_or(core::ptr::null(), core::ptr::from_ref);
    let op = libc::FUTEX_WAIT | if shared { 0 } else { libc::FUTEX_PRIVATE_FLAG };
    // SAFETY: the word and the timeout outlive the call.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), op, value, timeout, 0, 0) };
}

/// Wakes all who sleep on the word.
pub fn futex_wake(word: &AtomicU32, shared: bool) {
    let op = libc::FUTEX_WAKE | if shared { 0 } else { libc::FUTEX_PRIVATE_FLAG };
    // SAFETY: the word outlives the call.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), op, i32::MAX, 0, 0, 0) };
}

/// How often the kernel has served a fault of this process's without waiting for anything: a
/// first touch, or a write to a frame that others have, too.
pub(crate) fn minor_faults() -> u64 {
    // SAFETY: plain data, filled by the call.
    let mut usage: libc::rusage = unsafe { core::mem::zeroed() };
    // SAFETY: writes into `usage`.
    unsafe { libc::getrusage(libc::RUSAGE_SELF, &raw mut usage) };
    usage.ru_minflt as u64
}

/// Waits until one of them has what it is asked for, so long at most (ns).
///
/// `poll(2)` refuses to look at more descriptors than a process may open, which may be none. Then
/// each counts as readable after a moment: reading from one of ours waits for nothing.
pub(crate) fn poll(polls: &mut [libc::pollfd], wait: Option<u64>) {
    let limit = wait.map(|wait| libc::timespec {
        tv_sec: (wait / 1_000_000_000) as libc::time_t,
        tv_nsec: (wait % 1_000_000_000) as c_long,
    });
    let limit = limit.as_ref().map_or(core::ptr::null(), core::ptr::from_ref);
    // SAFETY: descriptors to look at, negative ones are ignored; the time outlives the call.
    let found = unsafe {
        let (polls, count) = (polls.as_mut_ptr(), polls.len() as libc::nfds_t);
        libc::ppoll(polls, count, limit, core::ptr::null())
    };
    if found < 0 && errno() == libc::EINVAL {
        const MOMENT: u64 = 100_000;
        let moment = wait.unwrap_or(MOMENT).min(MOMENT);
        if moment > 0 {
            sleep(moment);
        }
        for poll in polls.iter_mut().filter(|poll| poll.fd >= 0) {
            poll.revents = libc::POLLIN;
        }
    }
}

/// Opens a file to be read. Not by the C library, here and in what follows: the program's threads
/// come here, and one that is to be cancelled (`pthread_cancel`) would end in there, and be unwound
/// through our frames.
pub(crate) fn open(path: &core::ffi::CStr) -> Option<c_int> {
    let here = libc::AT_FDCWD as isize as usize;
    let how = (libc::O_RDONLY | libc::O_CLOEXEC) as usize;
    // SAFETY: a NUL-terminated path.
    let fd = unsafe { raw(libc::SYS_openat, [here, path.as_ptr() as usize, how, 0, 0, 0]) };
    c_int::try_from(fd).ok().filter(|&fd| fd >= 0)
}

/// Reads what comes next; how much it was.
pub(crate) fn read(fd: c_int, into: &mut [u8]) -> Option<usize> {
    let (at, len) = (into.as_mut_ptr() as usize, into.len());
    // SAFETY: reads into the slice.
    usize::try_from(unsafe { raw(libc::SYS_read, [fd as usize, at, len, 0, 0, 0]) }).ok()
}

/// Closes a descriptor that is ours.
pub(crate) fn close(fd: c_int) {
    // SAFETY: the caller's.
    unsafe { raw(libc::SYS_close, [fd as usize, 0, 0, 0, 0, 0]) };
}

/// The beginning of a file, without allocating; how much was read.
pub(crate) fn read_file(path: &core::ffi::CStr, into: &mut [u8]) -> Option<usize> {
    let fd = open(path)?;
    let read = read(fd, into);
    close(fd);
    read
}

/// Calls `each` for every line of a file, in order, without allocating; false if it cannot be
/// read. Of a line of more than 1,024 bytes only some parts come, or none.
pub(crate) fn for_each_line(path: &core::ffi::CStr, mut each: impl FnMut(&[u8])) -> bool {
    let Some(fd) = open(path) else { return false };
    // The program's threads come here, too, and may have small stacks.
    let mut buffer = [0u8; 1024];
    let mut held = 0;
    let all = loop {
        let n = match read(fd, &mut buffer[held..]) {
            Some(0) => break true,
            Some(n) => n,
            None => break false,
        };
        held += n;
        let mut done = 0;
        while let Some(len) = buffer[done..held].iter().position(|&b| b == b'\n') {
            each(&buffer[done..done + len]);
            done += len + 1;
        }
        buffer.copy_within(done..held, 0);
        held -= done;
        if held == buffer.len() {
            // A line longer than the buffer: of no interest. Drop it.
            held = 0;
        }
    };
    close(fd);
    all
}

/// Sleeps so many nanoseconds.
pub fn sleep(ns: u64) {
    let t = libc::timespec {
        tv_sec: (ns / 1_000_000_000) as i64,
        tv_nsec: (ns % 1_000_000_000) as c_long,
    };
    // SAFETY: reads the duration.
    unsafe { libc::clock_nanosleep(libc::CLOCK_MONOTONIC, 0, &raw const t, core::ptr::null_mut()) };
}

/// Gives the processor to another thread.
pub fn yield_now() {
    // SAFETY: has no memory effects.
    unsafe { libc::syscall(libc::SYS_sched_yield) };
}

/// How long a message waits for a reader of standard error that is behind, ns.
const COMPLAINT_WAITS: c_long = 20_000_000;

/// Writes a message to standard error, in one system call and without allocating. What becomes of
/// the program does not depend on it: where standard error is full, or its reader has gone or does
/// not read, the message is lost.
pub fn complain(parts: &[&str]) {
    let mut line = [0u8; 512];
    let mut n = 0;
    for part in ["terrace: "].iter().chain(parts).chain(&["\n"]) {
        let take = part.len().min(line.len() - n);
        line[n..n + take].copy_from_slice(&part.as_bytes()[..take]);
        n += take;
    }
    let before = errno();
    // Our threads have descriptors of their own; the program's standard error
    // is the process's.
    let ours = crate::workers::threads::is_ours();
    let fd = if ours { standard_error() } else { 2 };
    write_without_consequences(fd, &line[..n]);
    if ours && fd >= 0 {
        // SAFETY: this descriptor is ours alone.
        unsafe { libc::syscall(libc::SYS_close, fd) };
    }
    // SAFETY: this thread's own variable; the program may be about to read it.
    unsafe { *libc::__errno_location() = before };
}

/// A descriptor of what the process's standard error is now, for a thread with descriptors of its
/// own; negative if there is none. It shares the position in the file with the program: a file that
/// is opened anew has a position of its own, so that the program's next line would overwrite ours.
fn standard_error() -> c_int {
    let flags = libc::O_WRONLY | libc::O_APPEND | libc::O_CLOEXEC | libc::O_NOCTTY;
    // SAFETY: system calls without memory effects, apart from a path that ends with a NUL.
    unsafe {
        let process = libc::syscall(libc::SYS_pidfd_open, libc::syscall(libc::SYS_getpid), 0);
        if process >= 0 {
            let fd = libc::syscall(libc::SYS_pidfd_getfd, process, 2, 0);
            libc::syscall(libc::SYS_close, process);
            if fd >= 0 {
                return fd as c_int;
            }
        }
        // A filter of system calls may refuse that. A line that may be overwritten is better than
        // none.
        let path = c"/proc/self/fd/2".as_ptr();
        libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path, flags) as c_int
    }
}

/// Writes as much as can be written now. The signals with which the kernel punishes writing, for a
/// pipe without a reader and a file beyond its limit, would end the program.
fn write_without_consequences(fd: c_int, bytes: &[u8]) {
    const PUNISHMENT: u64 = 1 << (libc::SIGPIPE - 1) | 1 << (libc::SIGXFSZ - 1);
    const SIZE: usize = size_of::<u64>();
    let mut ready = libc::pollfd { fd, events: libc::POLLOUT, revents: 0 };
    let patience = libc::timespec { tv_sec: 0, tv_nsec: COMPLAINT_WAITS };
    let none = core::ptr::null::<u64>();
    // SAFETY: every pointer is to a local of the size that its call expects.
    unsafe {
        libc::syscall(libc::SYS_ppoll, &raw mut ready, 1, &raw const patience, none, SIZE);
        if ready.revents & (libc::POLLOUT | libc::POLLERR) != libc::POLLOUT {
            return;
        }
        let (mut before, mut pending) = (0_u64, 0_u64);
        let mask = core::ptr::from_ref(&PUNISHMENT);
        libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_BLOCK, mask, &raw mut before, SIZE);
        libc::syscall(libc::SYS_rt_sigpending, &raw mut pending, SIZE);
        let wrote = libc::syscall(libc::SYS_write, fd, bytes.as_ptr(), bytes.len());
        let taken = PUNISHMENT & !pending;
        if wrote < 0 && taken != 0 {
            let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
            let info = core::ptr::null::<libc::siginfo_t>();
            libc::syscall(libc::SYS_rt_sigtimedwait, &raw const taken, info, &raw const now, SIZE);
        }
        let (mask, none) = (&raw const before, core::ptr::null::<u64>());
        libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, mask, none, SIZE);
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::io::{Read, Write};
    use std::os::fd::AsRawFd;

    use super::*;

    /// On file systems that cannot keep room.
    #[test]
    fn room_is_also_taken_by_writing_and_what_is_there_stays() {
        let file = tempfile::tempfile().expect("a file");
        (&file).write_all(b"text").expect("room");
        fill(&file, 2 * PAGE as u64 + 1).expect("room");
        let mut content = Vec::new();
        (&file).read_to_end(&mut content).expect("a file");
        assert_eq!(content.len(), 2 * PAGE + 1 - 4, "the position is behind the text");
        let mut begin = [0; 5];
        file.read_exact_at(&mut begin, 0).expect("a file");
        assert_eq!(&begin, b"text\0");
    }

    /// Who maps and unmaps for ever uses no addresses up.
    #[test]
    fn addresses_of_ours_are_used_again_for_the_same_length() {
        // A length that no other test has.
        let len = 77 * PAGE;
        let first = map_private(len).expect("memory");
        let second = map_private(len).expect("memory");
        assert!(is_own(first) && first != second);
        // SAFETY: nobody else knows of them.
        unsafe { munmap(first, len).expect("mapped") };
        assert_ne!(map_private(76 * PAGE), Ok(first));
        for _ in 0..1000 {
            assert_eq!(map_private(len), Ok(first));
            // SAFETY: as above.
            unsafe { munmap(first, len).expect("mapped") };
        }
        // Whatever the list says, nothing that is mapped is replaced.
        FREED.put(second, len);
        let others = [(); 3].map(|()| map_private(len).expect("memory"));
        assert!(others.iter().all(|&other| other != second));
        assert_eq!(map_private(usize::MAX), Err(libc::ENOMEM));
    }

    /// The kernel sends a signal that would end this process.
    #[test]
    fn a_pipe_without_a_reader_and_a_full_one_end_nothing_and_hold_nobody_up() {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        write_without_consequences(writer.as_raw_fd(), b"read");
        let mut reader = reader;
        let mut read = [0; 4];
        reader.read_exact(&mut read).expect("what was written");
        assert_eq!(&read, b"read");

        let mut full = writer.try_clone().expect("another descriptor");
        full.write_all(&vec![0; 1 << 16]).expect("as much as a pipe holds");
        let begun = std::time::Instant::now();
        write_without_consequences(writer.as_raw_fd(), b"lost");
        assert!(begun.elapsed().as_secs() < 10, "it waits for a reader");

        drop(reader);
        // SAFETY: restores what the program's runtime has changed, in a test process whose other
        // threads write to no pipe without a reader.
        let before = unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
        write_without_consequences(writer.as_raw_fd(), b"nobody");
        // SAFETY: as before.
        unsafe { libc::signal(libc::SIGPIPE, before) };
        write_without_consequences(-1, b"nowhere");
    }

    #[test]
    fn what_is_said_has_the_position_of_standard_error() {
        let fd = standard_error();
        assert!(fd >= 0, "no standard error");
        // SAFETY: two descriptors of this process.
        let same = unsafe { libc::syscall(libc::SYS_kcmp, pid(), pid(), 0, 2, fd) };
        assert_eq!(same, 0, "opened anew");
        // SAFETY: it is ours.
        unsafe { libc::close(fd) };
    }

    fn pid() -> libc::c_long {
        libc::c_long::from(std::process::id() as i32)
    }

    #[test]
    fn a_file_takes_a_line() {
        let path = std::env::temp_dir().join(format!("terrace-line-{}", std::process::id()));
        let file = File::create(&path).expect("a file");
        write_without_consequences(file.as_raw_fd(), b"line");
        assert_eq!(fs::read(&path).expect("written"), b"line");
        fs::remove_file(&path).expect("ours");
    }
}
