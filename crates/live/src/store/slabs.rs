//! The compressed tier's memory: blobs of 2 to 4098 bytes in slabs.
//!
//! A slab is 64 KiB, aligned to its size, and holds blobs of one size class
//! (16 bytes, then every 64 up to 4160), so a blob's slab is found by masking
//! its address and freeing needs no size. Waste inside a blob averages 32
//! bytes. Slabs that become empty are given back to the kernel.
//!
//! Where the kernel gives no memory for another segment the store is full: for a while nothing is
//! asked of the kernel, and nobody tries to put a page away in vain ([`Store::is_full`]).
//!
//! One lock guards the whole store: it is held for some ten instructions, and
//! compressing a page, done outside of it, takes a hundred times as long.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::sys;
use crate::sys::spin::SpinLock;

const SLAB: usize = 64 << 10;
/// Memory is taken from the kernel in pieces of this size.
const SEGMENT: usize = 4 << 20;
const CLASSES: usize = 66;
const STEP: usize = 64;
/// Length of the blob, in front of its bytes.
const HEADER: usize = 2;
/// Empty slabs that are kept for reuse before they are given back.
const KEEP: usize = 8;
/// How long (ns) the kernel is not asked again after it has refused memory: at least, and at
/// most, as it doubles with every time that it is asked in vain.
const REST: (u64, u64) = (100_000_000, 10_000_000_000);

/// A blob's address; never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blob(pub usize);

#[repr(C)]
struct SlabHeader {
    class: u16,
    used: u16,
    /// Offset of the first freed blob, linked through their first two bytes; 0 for none.
    free: u16,
    /// Blobs that were ever handed out; those past it are untouched.
    fresh: u16,
    next: usize,
    prev: usize,
}

/// Where the blobs of a slab begin.
const FIRST: usize = 64;

struct Slabs {
    /// Slabs with room, by class.
    partial: [usize; CLASSES],
    /// Empty slabs, linked by `next`; the first `with_memory` still have their memory.
    empty: usize,
    with_memory: usize,
    /// The rest of the segment taken last.
    segment: usize,
    segment_end: usize,
    /// First addresses of all segments, as the kernel gave them.
    segments: Vec<usize>,
}

/// The store.
pub struct Store {
    slabs: SpinLock<Slabs>,
    /// Bytes of slabs in use or kept.
    occupied: AtomicU64,
    /// Bytes of its segments.
    mapped: AtomicU64,
    /// Slabs that hold nothing, those of the last segment that were never used included.
    empty: AtomicU64,
    /// Until when (ns) the kernel is not asked for memory; 0 if it gave what it was asked for.
    refused_until: AtomicU64,
    /// How long that was.
    rest: AtomicU64,
}

const fn class_of(len: usize) -> usize {
    let n = len + HEADER;
    if n <= 16 { 0 } else { n.div_ceil(STEP) }
}

const fn size_of_class(class: usize) -> usize {
    if class == 0 { 16 } else { class * STEP }
}

impl Store {
    /// An empty store.
    pub const fn new() -> Self {
        Self {
            slabs: SpinLock::new(Slabs {
                partial: [0; CLASSES],
                empty: 0,
                with_memory: 0,
                segment: 0,
                segment_end: 0,
                segments: Vec::new(),
            }),
            occupied: AtomicU64::new(0),
            mapped: AtomicU64::new(0),
            empty: AtomicU64::new(0),
            refused_until: AtomicU64::new(0),
            rest: AtomicU64::new(0),
        }
    }

    /// For a forked child: the parent's threads are not here.
    ///
    /// # Safety
    /// Only the calling thread may exist, and none changed anything when it was forked.
    pub unsafe fn after_fork(&self) {
        // SAFETY: the caller's.
        unsafe { self.slabs.force_unlock() };
    }

    /// Bytes of memory that the store occupies.
    pub fn occupied(&self) -> u64 {
        self.occupied.load(Relaxed)
    }

    /// Whether the kernel gave no memory when it was last asked, and no slab has become empty
    /// since: a page may still find room beside others of its length, and most do not.
    pub fn is_full(&self) -> bool {
        let until = self.refused_until.load(Relaxed);
        until != 0 && self.empty.load(Relaxed) == 0 && sys::now() < until
    }

    /// Bytes that it may occupy as far as is known: where the kernel gave no more, what it has.
    pub fn most(&self) -> u64 {
        if self.refused_until.load(Relaxed) == 0 { u64::MAX } else { self.mapped.load(Relaxed) }
    }

    /// A new segment; `None` if the kernel gives none, or was asked for one a moment ago.
    fn new_segment(&self, segments: &mut Vec<usize>) -> Option<usize> {
        let until = self.refused_until.load(Relaxed);
        if until != 0 && sys::now() < until {
            return None;
        }
        let noted = segments.try_reserve(1).map_err(|_| libc::ENOMEM);
        let Ok(at) = noted.and_then(|()| sys::map_private(SEGMENT + SLAB)) else {
            let rest = (self.rest.load(Relaxed) * 2).clamp(REST.0, REST.1);
            self.rest.store(rest, Relaxed);
            self.refused_until.store(sys::now() + rest, Relaxed);
            return None;
        };
        segments.push(at);
        self.rest.store(0, Relaxed);
        self.refused_until.store(0, Relaxed);
        self.mapped.fetch_add(SEGMENT as u64, Relaxed);
        self.empty.fetch_add((SEGMENT / SLAB) as u64, Relaxed);
        Some(at.next_multiple_of(SLAB))
    }

    /// Keeps a copy of up to a page of bytes; `None` if there is no memory.
    pub fn put(&self, bytes: &[u8]) -> Option<Blob> {
        debug_assert!(bytes.len() <= sys::PAGE);
        let class = class_of(bytes.len());
        let at = {
            let mut slabs = self.slabs.lock();
            let slab = match slabs.partial[class] {
                0 => self.new_slab(&mut slabs, class)?,
                slab => slab,
            };
            // SAFETY: slabs on a partial list are mapped, initialised, and
            // have room; the lock makes us the only one to change them.
            unsafe { slabs.take(slab) }
        };
        // SAFETY: `at` is a blob of this class, ours alone from now on.
        unsafe {
            (at as *mut u16).write_unaligned(bytes.len() as u16);
            core::ptr::copy_nonoverlapping(bytes.as_ptr(), (at + HEADER) as *mut u8, bytes.len());
        }
        Some(Blob(at))
    }

    /// A blob's bytes.
    ///
    /// # Safety
    /// The blob must be in the store, and stay in it while the slice is used.
    #[expect(clippy::unused_self, reason = "a blob is asked for of the store that it is in")]
    pub unsafe fn get<'a>(&self, blob: Blob) -> &'a [u8] {
        // SAFETY: `put` wrote the length and the bytes; the caller keeps them.
        unsafe {
            let len = (blob.0 as *const u16).read_unaligned() as usize;
            core::slice::from_raw_parts((blob.0 + HEADER) as *const u8, len)
        }
    }

    /// Gives a blob's room back.
    ///
    /// # Safety
    /// The blob must be in the store; it is gone afterwards.
    pub unsafe fn free(&self, blob: Blob) {
        let mut slabs = self.slabs.lock();
        // SAFETY: the caller's blob lies in a slab of ours.
        let emptied = unsafe { slabs.give_back(blob.0) };
        if let Some(slab) = emptied {
            self.empty.fetch_add(1, Relaxed);
            if slabs.with_memory < KEEP {
                slabs.with_memory += 1;
                // SAFETY: the slab is on no list and holds nothing.
                unsafe { (*(slab as *mut SlabHeader)).next = slabs.empty };
                slabs.empty = slab;
            } else {
                // Its first page stays, for the link.
                // SAFETY: the slab holds nothing.
                unsafe {
                    let _ = sys::madvise(slab + sys::PAGE, SLAB - sys::PAGE, libc::MADV_DONTNEED);
                    // Behind the kept ones, so that those are reused first.
                    let mut at = slabs.empty;
                    for _ in 1..slabs.with_memory {
                        at = (*(at as *mut SlabHeader)).next;
                    }
                    (*(slab as *mut SlabHeader)).next = (*(at as *mut SlabHeader)).next;
                    (*(at as *mut SlabHeader)).next = slab;
                }
                self.occupied.fetch_sub(SLAB as u64, Relaxed);
            }
        }
    }

    /// Gives all of its memory back to the kernel.
    ///
    /// # Safety
    /// No blob of it is used any more.
    pub unsafe fn give_back(&self) {
        let mut slabs = self.slabs.lock();
        for at in core::mem::take(&mut slabs.segments) {
            // SAFETY: a segment of ours, in which nothing is that anybody uses.
            let _ = unsafe { sys::munmap(at, SEGMENT + SLAB) };
        }
        (slabs.partial, slabs.empty, slabs.with_memory) = ([0; CLASSES], 0, 0);
        (slabs.segment, slabs.segment_end) = (0, 0);
        drop(slabs);
        for count in [&self.occupied, &self.mapped, &self.empty] {
            count.store(0, Relaxed);
        }
    }

    /// Takes an empty slab for a class and puts it on its list.
    fn new_slab(&self, slabs: &mut Slabs, class: usize) -> Option<usize> {
        let slab = if slabs.empty != 0 {
            let slab = slabs.empty;
            // SAFETY: an empty slab's header is mapped and ours.
            slabs.empty = unsafe { (*(slab as *const SlabHeader)).next };
            if slabs.with_memory > 0 {
                slabs.with_memory -= 1;
            } else {
                self.occupied.fetch_add(SLAB as u64, Relaxed);
            }
            slab
        } else {
            if slabs.segment == slabs.segment_end {
                slabs.segment = self.new_segment(&mut slabs.segments)?;
                slabs.segment_end = slabs.segment + SEGMENT;
            }
            let slab = slabs.segment;
            slabs.segment += SLAB;
            self.occupied.fetch_add(SLAB as u64, Relaxed);
            slab
        };
        self.empty.fetch_sub(1, Relaxed);
        // SAFETY: the slab is mapped, aligned, and on no list.
        unsafe {
            (slab as *mut SlabHeader).write(SlabHeader {
                class: class as u16,
                used: 0,
                free: 0,
                fresh: 0,
                next: 0,
                prev: 0,
            });
            slabs.push(class, slab);
        }
        Some(slab)
    }
}

impl Default for Store {
    fn default() -> Self {
        Self::new()
    }
}

const fn capacity(class: usize) -> usize {
    (SLAB - FIRST) / size_of_class(class)
}

impl Slabs {
    /// # Safety
    /// The slab is mapped, initialised and on no list.
    unsafe fn push(&mut self, class: usize, slab: usize) {
        let head = self.partial[class];
        // SAFETY: the caller's slab, and the head of our own list.
        unsafe {
            (*(slab as *mut SlabHeader)).next = head;
            (*(slab as *mut SlabHeader)).prev = 0;
            if head != 0 {
                (*(head as *mut SlabHeader)).prev = slab;
            }
        }
        self.partial[class] = slab;
    }

    /// # Safety
    /// The slab is on its class's list.
    unsafe fn unlink(&mut self, slab: usize) {
        // SAFETY: the caller's slab and its neighbours on the same list.
        unsafe {
            let SlabHeader { class, next, prev, .. } = (slab as *const SlabHeader).read();
            if prev == 0 {
                self.partial[class as usize] = next;
            } else {
                (*(prev as *mut SlabHeader)).next = next;
            }
            if next != 0 {
                (*(next as *mut SlabHeader)).prev = prev;
            }
        }
    }

    /// Takes a blob out of a slab with room.
    ///
    /// # Safety
    /// The slab is on its class's list.
    unsafe fn take(&mut self, slab: usize) -> usize {
        // SAFETY: the caller's slab; freed blobs hold the next one's offset.
        unsafe {
            let header = &mut *(slab as *mut SlabHeader);
            let class = header.class as usize;
            let offset = if header.free != 0 {
                let offset = header.free as usize;
                header.free = ((slab + offset) as *const u16).read_unaligned();
                offset
            } else {
                let offset = FIRST + header.fresh as usize * size_of_class(class);
                header.fresh += 1;
                offset
            };
            header.used += 1;
            if header.used as usize == capacity(class) {
                self.unlink(slab);
            }
            slab + offset
        }
    }

    /// Returns the slab if it is empty now; it is on no list then.
    ///
    /// # Safety
    /// The blob lies in a slab of ours and is in use.
    unsafe fn give_back(&mut self, blob: usize) -> Option<usize> {
        let slab = blob & !(SLAB - 1);
        // SAFETY: the caller's.
        unsafe {
            let header = &mut *(slab as *mut SlabHeader);
            let class = header.class as usize;
            (blob as *mut u16).write_unaligned(header.free);
            header.free = (blob - slab) as u16;
            let was_full = header.used as usize == capacity(class);
            header.used -= 1;
            if header.used == 0 {
                if !was_full {
                    self.unlink(slab);
                }
                return Some(slab);
            }
            if was_full {
                self.push(class, slab);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Two blobs that overlap are two pages corrupted.
        #[test]
        fn blobs_keep_their_bytes(ops in prop::collection::vec((any::<bool>(), 0usize..=4096, any::<u8>()), 1..400)) {
            let store = Store::new();
            let mut live: Vec<(Blob, Vec<u8>)> = Vec::new();
            for (put, n, byte) in ops {
                if put || live.is_empty() {
                    let bytes = vec![byte; n];
                    live.push((store.put(&bytes).expect("memory"), bytes));
                } else {
                    let (blob, bytes) = live.swap_remove(n % live.len());
                    // SAFETY: taken out of the list of blobs in the store.
                    unsafe {
                        prop_assert_eq!(store.get(blob), &bytes[..]);
                        store.free(blob);
                    }
                }
            }
            for (blob, bytes) in &live {
                // SAFETY: in the store.
                unsafe { prop_assert_eq!(store.get(*blob), &bytes[..]) };
            }
        }
    }

    #[test]
    fn an_emptied_store_gives_its_memory_back() {
        let store = Store::new();
        let blobs: Vec<_> =
            (0..4000).map(|i| store.put(&[1; 1000][..i % 1000]).expect("memory")).collect();
        let full = store.occupied();
        for blob in blobs {
            // SAFETY: in the store.
            unsafe { store.free(blob) };
        }
        assert!(full > 1_500_000, "{full}");
        assert!(store.occupied() <= (KEEP * SLAB) as u64);
        for _ in 0..4000 {
            store.put(&[2; 900]).expect("memory");
        }
    }

    /// As where the program's data may not grow: each page that was put away in vain was
    /// compressed, and moved twice.
    #[test]
    fn a_store_that_is_refused_memory_is_full_until_a_slab_is_empty() {
        let store = Store::new();
        let page = [3; sys::PAGE];
        let mut blobs = vec![store.put(&page).expect("memory")];
        while store.empty.load(Relaxed) > 0 {
            blobs.push(store.put(&page).expect("room in the segment"));
        }
        assert!(!store.is_full() && store.most() == u64::MAX);
        store.refused_until.store(sys::now() + 60_000_000_000, Relaxed);
        while let Some(blob) = store.put(&page) {
            blobs.push(blob);
        }

        assert!(store.is_full());
        assert_eq!(store.most(), SEGMENT as u64);

        let of_a_slab = capacity(class_of(sys::PAGE));
        for blob in blobs.split_off(blobs.len() - of_a_slab) {
            // SAFETY: in the store.
            unsafe { store.free(blob) };
        }
        assert!(!store.is_full());
        for _ in 0..of_a_slab {
            assert!(store.put(&page).is_some());
        }
        assert!(store.is_full());
        store.refused_until.store(1, Relaxed);
        assert!(!store.is_full(), "it is time to ask again");
        assert!(store.put(&page).is_some());
        assert_eq!(store.most(), u64::MAX);
    }
}
