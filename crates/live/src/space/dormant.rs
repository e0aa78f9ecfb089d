//! While nothing is managed: how much a program has mapped that is to be managed.
//!
//! It is counted as mappings come and go. Once the program reserves memory, or maps some over
//! other, the number is too large, and never too small: memory that is made accessible time and again
//! counts as often, and nobody knows how much of an unmapped range was accessible. From then on the
//! kernel's list of mappings is read where the number matters: before others are asked for room, and
//! before management begins. It is also read now and then, so that the broker does not take much for
//! in use that is not; but not each time that something is unmapped. The list of a program with many
//! mappings takes as long to read as a thousand of its calls.

use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::*};

/// So much may come and go before the list is read for the broker's sake, or a part of what is
/// mapped.
const LITTLE: usize = 8 << 20;
const PART: usize = 8;
/// It is read then if that took less than one part in so many of the time since.
const RARELY: u64 = 100;

/// How much is mapped, in one process.
pub struct Estimate {
    /// Bytes that are accessible in the window and in places that the program chose: so many at most.
    bytes: AtomicUsize,
    /// Whether that may be too much.
    roughly: AtomicBool,
    /// Bytes that have ever become accessible: counted first.
    added: AtomicUsize,
    /// Bytes that came and went since the list was read, while the number may be too much.
    changed: AtomicUsize,
    /// When (`CLOCK_MONOTONIC`, ns) the list may be read again for the broker's sake.
    next: AtomicU64,
}

impl Estimate {
    /// Nothing is mapped.
    pub const fn new() -> Self {
        Self {
            bytes: AtomicUsize::new(0),
            roughly: AtomicBool::new(false),
            added: AtomicUsize::new(0),
            changed: AtomicUsize::new(0),
            next: AtomicU64::new(0),
        }
    }

    /// So many bytes have become accessible.
    pub fn add(&self, len: usize) {
        self.added.fetch_add(len, AcqRel);
        self.bytes.fetch_add(len, AcqRel);
        if self.is_rough() {
            self.changed.fetch_add(len, Relaxed);
        }
    }

    /// So many bytes were unmapped. Whether the number is less now.
    pub fn remove(&self, len: usize) -> bool {
        if self.is_rough() {
            self.changed.fetch_add(len, Relaxed);
            return false;
        }
        let _ = self.bytes.fetch_update(AcqRel, Relaxed, |bytes| Some(bytes.saturating_sub(len)));
        if self.is_rough() {
            // Since just now: the list may have been read in between, without what was unmapped.
            self.bytes.fetch_add(len, AcqRel);
            self.changed.fetch_add(len, Relaxed);
            return false;
        }
        true
    }

    /// The number.
    pub fn bytes(&self) -> usize {
        self.bytes.load(Acquire)
    }

    /// The program has reserved memory, or mapped some over other.
    pub fn count_roughly(&self) {
        self.roughly.store(true, Release);
    }

    /// Whether the number may be too much.
    pub fn is_rough(&self) -> bool {
        self.roughly.load(Acquire)
    }

    /// Whether anything came or went since the list was read, while the number may be too much.
    pub fn has_changed(&self) -> bool {
        self.changed.load(Relaxed) != 0
    }

    /// Has `read` read the kernel's list. The number stays what it was if the kernel does not say
    /// (`None`).
    pub fn look(&self, read: impl FnOnce() -> Option<usize>, now: impl Fn() -> u64) {
        let began = now();
        let changed = self.changed.swap(0, Relaxed);
        let before = self.added.load(Acquire);
        if let Some(bytes) = read() {
            // What has been added meanwhile may not be in the list.
            let since = || self.added.load(Acquire).wrapping_sub(before);
            let with_it = |_| Some(bytes.saturating_add(since()));
            let _ = self.bytes.fetch_update(AcqRel, Acquire, with_it);
        } else {
            // The number may be too much as before.
            self.changed.fetch_add(changed, Relaxed);
        }
        let ended = now();
        self.next.store(ended + (ended - began) * RARELY, Relaxed);
    }

    /// Whether it is time to read it although what is counted fits.
    pub fn is_look_due(&self, now: impl FnOnce() -> u64) -> bool {
        let much = (self.bytes() / PART).max(LITTLE);
        self.changed.load(Relaxed) > much && now() >= self.next.load(Relaxed)
    }
}

impl Default for Estimate {
    fn default() -> Self {
        Self::new()
    }
}

/// Whether it is time to look at what kind of memory a mapping is that has grown: it is large enough
/// now and was not, or has doubled since. A program that grows it by a page at a time must not pay for
/// a look each time.
pub fn has_become_large(old: usize, new: usize, least: u64) -> bool {
    let is_large = |len: usize| len as u64 >= least;
    new > old && is_large(new) && (!is_large(old) || new.ilog2() > old.ilog2())
}

#[cfg(test)]
mod tests {
    use core::cell::Cell;

    use super::*;

    /// A clock that goes on by 10 ns at each look at it, from a time on.
    fn from(start: u64) -> impl Fn() -> u64 {
        let time = Cell::new(start);
        move || time.replace(time.get() + 10)
    }

    #[test]
    fn what_is_counted_roughly_is_never_too_little_and_read_anew_now_and_then() {
        let mapped = Estimate::new();
        mapped.add(1 << 20);
        assert!(mapped.remove(1 << 18));
        assert_eq!(mapped.bytes(), 3 << 18);
        assert!(!mapped.has_changed(), "exact");

        mapped.count_roughly();
        assert!(!mapped.remove(1 << 20), "it may have been only reserved");
        assert_eq!(mapped.bytes(), 3 << 18);
        assert!(mapped.has_changed() && !mapped.is_look_due(|| 0), "little has changed");
        mapped.remove(LITTLE);
        assert!(mapped.is_look_due(|| 0));

        mapped.look(|| Some(5), from(100));
        assert_eq!(mapped.bytes(), 5);
        assert!(!mapped.has_changed());
        mapped.add(2 * LITTLE);
        let next = 110 + 10 * RARELY;
        assert!(!mapped.is_look_due(|| next - 1), "it was read just now");
        assert!(mapped.is_look_due(|| next));
    }

    #[test]
    fn what_becomes_accessible_while_the_list_is_read_counts() {
        let mapped = Estimate::new();
        mapped.count_roughly();
        mapped.add(100);
        let read = || {
            mapped.add(7);
            Some(30)
        };
        mapped.look(read, from(0));
        assert_eq!(mapped.bytes(), 37);
        assert!(mapped.has_changed(), "what has come meanwhile");
    }

    #[test]
    fn what_the_kernel_does_not_say_leaves_the_number_as_it_was() {
        let mapped = Estimate::new();
        mapped.count_roughly();
        mapped.add(100);
        mapped.look(|| None, from(0));
        assert_eq!(mapped.bytes(), 100);
        assert!(mapped.has_changed());
    }

    #[test]
    fn what_grows_is_looked_at_when_it_becomes_large_and_each_time_it_doubles() {
        let looks = |sizes: &[usize]| {
            sizes.windows(2).filter(|two| has_become_large(two[0], two[1], 1 << 20)).count()
        };
        assert_eq!(looks(&[1 << 12, 1 << 16, 1 << 19]), 0, "small");
        assert_eq!(looks(&[1 << 19, 1 << 20]), 1);
        assert_eq!(looks(&[1 << 20, 1 << 16]), 0, "it shrinks");
        let by_pages: Vec<_> = (0..4096).map(|n| n << 12).collect();
        assert_eq!(looks(&by_pages), 4, "1, 2, 4 and 8 MiB");
    }
}
