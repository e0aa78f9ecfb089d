//! Thread-local storage of Terrace's own threads, without the C library's help.
//!
//! The C library allocates that of its threads with `calloc`, which may be the program's. So a
//! block is laid out here, in memory of our own, as glibc expects one on `x86_64` (variant II of the
//! ABI for thread-local storage):
//!
//! ```text
//! … | block of libc.so | block of the program | struct pthread | vector of blocks |
//!                                             ^ the thread pointer (fs:0)
//! ```
//!
//! Where each block lies, and what it contains at first, is asked once. What is loaded later has none:
//! our threads call nothing of it.

use core::ffi::{CStr, c_int, c_void};
use core::sync::atomic::{AtomicPtr, Ordering::*};

use crate::sys::symbols;

/// Blocks that are known. A program with more libraries than that which have thread-local
/// storage cannot be managed.
const MOST_BLOCKS: usize = 256;
/// Entries of the vector of blocks.
const VECTOR: usize = MOST_BLOCKS + 2;
/// What is beyond that distance from the thread pointer was allocated later.
const FARTHEST: usize = 64 << 20;
/// Of `struct pthread`, where glibc does not say. It has 2,304 bytes in glibc 2.36.
const USUAL_DESCRIPTOR: usize = 4096;
/// Between the parts, so that no vector instruction reads beyond one.
const ROOM: usize = 64;
/// In the vector: no block (`TLS_DTV_UNALLOCATED`).
const UNALLOCATED: usize = usize::MAX;
/// In `struct rseq`: the kernel was not told of it (`RSEQ_CPU_ID_UNINITIALIZED`).
const UNREGISTERED: i32 = -1;

/// Fields of `tcbhead_t`, in words.
const SELF: [usize; 2] = [0, 2];
const DTV: usize = 1;
const MULTIPLE_THREADS: usize = 3;
const GUARDS: [usize; 2] = [5, 6];

/// A library's block.
#[derive(Clone, Copy)]
struct Block {
    /// How far below the thread pointer it begins.
    below: usize,
    /// What it contains at first; zeros follow.
    image: *const u8,
    len: usize,
    /// The library's number.
    module: usize,
}

/// What every block is laid out by.
pub(crate) struct Layout {
    blocks: [Block; MOST_BLOCKS],
    count: usize,
    /// Bytes below the thread pointer, and above it.
    below: usize,
    above: usize,
    align: usize,
    /// Bytes of `struct pthread`.
    descriptor: usize,
    /// The first word of the vector: how many times libraries have come and gone.
    generation: usize,
    /// Where the descriptor has the thread's number, from the thread pointer.
    tid: Option<usize>,
    /// Where `struct rseq` is, from the thread pointer.
    rseq: Option<isize>,
    /// Where the calling thread has its pointers to the tables of character classes.
    classes: [Option<Place>; CLASSES],
    /// Why no thread can be made.
    refused: bool,
}

/// Where the calling thread has one of them.
type Place = unsafe extern "C" fn() -> *mut usize;
/// Classes, and the tables of large and small letters.
const CLASSES: usize = 3;

/// What they point to.
pub(crate) type Classes = [usize; CLASSES];

// SAFETY: the images are constant data of libraries that stay.
unsafe impl Sync for Layout {}

/// Found once.
static LAYOUT: AtomicPtr<Layout> = AtomicPtr::new(core::ptr::null_mut());

/// The calling thread's pointer.
pub fn thread_pointer() -> usize {
    let at: usize;
    // SAFETY: on x86_64 the first word there is the pointer itself.
    unsafe {
        core::arch::asm!("mov {}, fs:[0]", out(reg) at, options(nostack, readonly, preserves_flags));
    }
    at
}

/// The address of something of glibc's; null if this is another C library.
fn private(name: &CStr, version: &CStr) -> *const c_void {
    symbols::find(name, Some(version)).map_or(core::ptr::null(), |at| at as *const c_void)
}

const PRIVATE: &CStr = c"GLIBC_PRIVATE";

/// The layout: looked up at the first call, which takes the loader's lock.
pub(crate) fn layout() -> &'static Layout {
    let known = LAYOUT.load(Acquire);
    // SAFETY: set once, from a leaked box.
    if let Some(known) = unsafe { known.as_ref() } {
        return known;
    }
    look_up()
}

/// Apart: it takes 16 KiB of stack, which the callers of [`layout`] may not have.
#[cold]
#[inline(never)]
fn look_up() -> &'static Layout {
    let found = Box::into_raw(Box::new(Layout::find()));
    let first = LAYOUT.compare_exchange(core::ptr::null_mut(), found, AcqRel, Acquire);
    // SAFETY: as above; one that came second is leaked, too.
    unsafe { &*first.err().unwrap_or(found) }
}

/// How far below the thread pointer a library's block begins, in every thread; `None` if it has
/// none, or was loaded later.
pub fn below(module: usize) -> Option<usize> {
    let layout = layout();
    let mut blocks = layout.blocks[..layout.count].iter();
    blocks.find(|block| block.module == module).map(|block| block.below)
}

extern "C" fn note(info: *mut libc::dl_phdr_info, _: usize, layout: *mut c_void) -> c_int {
    // SAFETY: the loader's description of a library, and the layout that `find` has given it.
    let (info, layout) = unsafe { (&*info, &mut *layout.cast::<Layout>()) };
    let below = thread_pointer().wrapping_sub(info.dlpi_tls_data as usize);
    if info.dlpi_tls_modid == 0 || info.dlpi_tls_data.is_null() || below > FARTHEST {
        return 0;
    }
    // SAFETY: as many headers as it says.
    let headers = unsafe { core::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
    let Some(header) = headers.iter().find(|header| header.p_type == libc::PT_TLS) else {
        return 0;
    };
    let Some(block) = layout.blocks.get_mut(layout.count) else {
        layout.refused = true;
        return 1;
    };
    *block = Block {
        below,
        image: (info.dlpi_addr as usize + header.p_vaddr as usize) as *const u8,
        len: header.p_filesz as usize,
        module: info.dlpi_tls_modid,
    };
    layout.count += 1;
    layout.below = layout.below.max(below);
    layout.align = layout.align.max(header.p_align as usize);
    0
}

impl Layout {
    fn find() -> Self {
        let none = Block { below: 0, image: core::ptr::null(), len: 0, module: 0 };
        let mut layout = Self {
            blocks: [none; MOST_BLOCKS],
            count: 0,
            below: 0,
            above: 0,
            align: ROOM,
            descriptor: USUAL_DESCRIPTOR,
            generation: 0,
            tid: None,
            rseq: None,
            classes: [None; CLASSES],
            refused: false,
        };
        // SAFETY: the callback gets the layout, which nobody else has, and keeps nothing.
        unsafe { libc::dl_iterate_phdr(Some(note), (&raw mut layout).cast()) };
        // SAFETY: what glibc tells debuggers and sanitizers of itself, each of the type that it has
        // there; the thread's own vector.
        unsafe {
            let size = private(c"_thread_db_sizeof_pthread", PRIVATE).cast::<u32>();
            if let Some(&size) = size.as_ref() {
                layout.descriptor = size as usize;
            }
            // Bits, elements, and where.
            let tid = private(c"_thread_db_pthread_tid", PRIVATE).cast::<[u32; 3]>();
            if let Some(&[32, 1, at]) = tid.as_ref() {
                layout.tid = Some(at as usize);
            }
            let rseq = private(c"__rseq_offset", c"GLIBC_2.35").cast::<isize>();
            layout.rseq = rseq.as_ref().copied();
            let names = [c"__ctype_b_loc", c"__ctype_toupper_loc", c"__ctype_tolower_loc"];
            layout.classes = names.map(|name| {
                // Their versions on x86-64 and on AArch64.
                let versions = [c"GLIBC_2.3", c"GLIBC_2.17"];
                let mut found = versions.map(|version| private(name, version)).into_iter();
                let found = found.find(|place| !place.is_null())?;
                core::mem::transmute::<*const c_void, Option<Place>>(found)
            });
            let vector = (thread_pointer() as *const *const usize).add(DTV).read();
            layout.generation = vector.as_ref().copied().unwrap_or(0);
        }
        if let Some(rseq) = layout.rseq {
            // glibc 2.41 has it below all blocks.
            layout.below = layout.below.max((-rseq).max(0) as usize);
            layout.descriptor = layout.descriptor.max(rseq.max(0) as usize + ROOM);
        }
        layout.below += ROOM;
        layout.descriptor = (layout.descriptor + ROOM).next_multiple_of(ROOM);
        layout.above = layout.descriptor + VECTOR * size_of::<[usize; 2]>();
        layout
    }

    /// Bytes that a thread's block takes; `None` if none can be made.
    pub(crate) fn size(&self) -> Option<usize> {
        let size = self.below + self.above + self.align;
        (!self.refused).then_some(size)
    }

    /// Lays out a block that ends before an address; its thread pointer.
    ///
    /// # Safety
    /// [`Layout::size`] bytes before the address are mapped, zeroed, and nobody else's.
    pub(crate) unsafe fn lay_out(&self, end: usize) -> Thread {
        let at = (end - self.above) & !(self.align - 1);
        let words = at as *mut usize;
        let from = thread_pointer() as *const usize;
        let vector = (at + self.descriptor) as *mut [usize; 2];
        // SAFETY: all of it lies in the block; images are read for as long as they are.
        unsafe {
            for block in &self.blocks[..self.count] {
                let to = (at - block.below) as *mut u8;
                to.copy_from_nonoverlapping(block.image, block.len);
            }
            for word in SELF {
                words.add(word).write(at);
            }
            // Its length stands in front of what the thread has for it.
            vector.write([VECTOR - 2, 0]);
            vector.add(1).write([self.generation, 0]);
            for module in 1..=VECTOR - 2 {
                vector.add(1 + module).write([UNALLOCATED, 0]);
            }
            for block in self.blocks[..self.count].iter().filter(|b| b.module <= VECTOR - 2) {
                vector.add(1 + block.module).write([at - block.below, 0]);
            }
            words.add(DTV).write(vector.add(1) as usize);
            words.add(MULTIPLE_THREADS).cast::<i32>().write(1);
            for word in GUARDS {
                words.add(word).write(from.add(word).read());
            }
            if let Some(rseq) = self.rseq {
                // Its second word: who asks for the processor asks the kernel.
                let cpu = at.wrapping_add_signed(rseq) as *mut i32;
                cpu.add(1).write(UNREGISTERED);
            }
        }
        let tid = self.tid.filter(|&tid| tid + size_of::<i32>() <= self.descriptor);
        Thread { pointer: at, tid: tid.map_or(core::ptr::null_mut(), |tid| (at + tid) as *mut i32) }
    }

    /// The calling thread's pointers to tables of character classes, for a new thread.
    ///
    /// The C library finds them by the locale, which lies in the program's heap. A forked child's threads
    /// begin before its heap is managed again: what they read of it then would be zeros for the child,
    /// too, if its parent had put that page out.
    pub(crate) fn classes(&self) -> Classes {
        // SAFETY: each is where the calling thread has a pointer of its own.
        self.classes.map(|place| place.map_or(0, |place| unsafe { place().read() }))
    }

    /// In a new thread, before anything else: what the C library does there for its own.
    pub(crate) fn begin(&self, classes: Classes) {
        for (place, at) in self.classes.iter().zip(classes) {
            if let Some(place) = place {
                // SAFETY: sets the calling thread's own variable.
                unsafe { place().write(at) };
            }
        }
    }
}

/// A block.
pub(crate) struct Thread {
    /// The thread pointer.
    pub pointer: usize,
    /// Where the C library looks for the thread's number; null if that is not known.
    pub tid: *mut i32,
}
