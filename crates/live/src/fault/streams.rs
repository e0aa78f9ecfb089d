//! Streams: which pages a program will ask for next.
//!
//! A thread that walks through memory faults on one page after the other. Each
//! costs a switch of threads; bringing pages in together costs a fraction of that
//! (measured: `bench/mechanisms`). So faults are watched for *streams*: two
//! that lie a small distance apart make one, and each fault where a stream was
//! expected to go on doubles how far it is served ahead. A stream that jumps
//! is a new one and begins small, so random faults bring in nothing else. Among pages that
//! are random but few, many lie near each other or near a stream: so what a stream skips
//! has to be resident, and one with a stride to be seen three times.
//!
//! Kept without locks: a race between two handlers loses a step of a stream,
//! which costs one fault, and no more than that can happen.

use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::*};

/// Streams that are followed at once, and single faults remembered to find new
/// ones by. A merge of sixteen runs is the most that sorting programs do.
const STREAMS: usize = 24;
const RECENT: usize = 64;
/// The largest distance in pages between two touches of one stream.
const STRIDE: i64 = 8;
/// A stream may skip so many pages that are resident and go on.
const SKIP: i64 = 64;
/// Pages brought in ahead, at least and at most.
const WINDOW: (u32, u32) = (4, 32);
/// The most pages that are brought in ahead of one fault.
pub(crate) const MOST: usize = WINDOW.1 as usize;

/// What to bring in with a page: this many, so far apart, beginning with the next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ahead {
    /// From one page to the next; may be negative.
    pub stride: i32,
    /// How many.
    pub count: u32,
}

/// One stream, as it is packed into a word: region 14 bits, next page 32, stride
/// 8, window 6; 0 is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stream {
    region: u32,
    next: u32,
    stride: i8,
    window: u32,
}

impl Stream {
    fn pack(self) -> u64 {
        1 << 63
            | u64::from(self.region & 0x3fff) << 46
            | u64::from(self.next) << 14
            | u64::from(self.stride as u8) << 6
            | u64::from(self.window & 0x3f)
    }

    fn unpack(word: u64) -> Option<Self> {
        (word >> 63 != 0).then_some(Self {
            region: (word >> 46) as u32 & 0x3fff,
            next: (word >> 14) as u32,
            stride: (word >> 6) as u8 as i8,
            window: word as u32 & 0x3f,
        })
    }

    /// Whether a fault is one that the stream expects: the next page, or one behind it with
    /// nothing but resident pages in between.
    fn expects(self, region: u32, page: u32, is_resident: impl Fn(u32) -> bool) -> bool {
        let stride = i64::from(self.stride);
        let off = (i64::from(page) - i64::from(self.next)) * stride.signum();
        region & 0x3fff == self.region
            && (0..SKIP).contains(&off)
            && off % stride.abs() == 0
            && (0..off / stride.abs())
                .all(|n| u32::try_from(i64::from(self.next) + n * stride).is_ok_and(&is_resident))
    }
}

/// The streams of a program.
pub(crate) struct Streams {
    known: [AtomicU64; STREAMS],
    /// When each was used last, in faults.
    used: [AtomicU32; STREAMS],
    /// The latest faults that belong to none: region and page.
    recent: [AtomicU64; RECENT],
    faults: AtomicUsize,
    singles: AtomicUsize,
}

impl Default for Streams {
    fn default() -> Self {
        Self {
            known: [const { AtomicU64::new(0) }; STREAMS],
            used: [const { AtomicU32::new(0) }; STREAMS],
            recent: [const { AtomicU64::new(0) }; RECENT],
            faults: AtomicUsize::new(0),
            singles: AtomicUsize::new(0),
        }
    }
}

impl Streams {
    /// Takes in a fault, and says what to bring in with it: no more pages than
    /// `most`. Which other pages of the region are resident is asked for.
    pub(crate) fn fault(
        &self,
        region: u32,
        page: u32,
        most: u32,
        is_resident: impl Fn(u32) -> bool,
    ) -> Ahead {
        if most == 0 {
            return Ahead::default();
        }
        let (least, most) = (WINDOW.0.min(most), WINDOW.1.min(most));
        let time = self.faults.fetch_add(1, Relaxed) as u32;
        for (word, used) in self.known.iter().zip(&self.used) {
            if let Some(stream) = Stream::unpack(word.load(Relaxed))
                && stream.expects(region, page, &is_resident)
            {
                let window = (stream.window * 2).clamp(least, most);
                used.store(time, Relaxed);
                return follow(word, Stream { window, ..stream }, page);
            }
        }
        let single = u64::from(region) << 32 | u64::from(page) | 1 << 63;
        let begun = self.recent.iter().find_map(|word| {
            let other = word.load(Relaxed);
            let apart = i64::from(page) - i64::from(other as u32);
            let near = apart != 0 && apart.abs() <= STRIDE;
            (near && other >> 32 == single >> 32).then(|| {
                word.store(0, Relaxed);
                apart as i8
            })
        });
        let Some(stride) = begun else {
            let at = self.singles.fetch_add(1, Relaxed) % RECENT;
            self.recent[at].store(single, Relaxed);
            return Ahead::default();
        };
        // The one that has not been used for longest gives way.
        let age = |i: &usize| time.wrapping_sub(self.used[*i].load(Relaxed));
        let free = |i: &usize| self.known[*i].load(Relaxed) == 0;
        let at = (0..STREAMS).find(free).or_else(|| (0..STREAMS).max_by_key(age)).unwrap_or(0);
        self.used[at].store(time, Relaxed);
        let window = if stride.abs() == 1 { least } else { 0 };
        follow(&self.known[at], Stream { region, next: 0, stride, window }, page)
    }
}

impl Streams {
    /// What was to come with a page does not: its stream goes on right behind it.
    pub(crate) fn hold(&self, region: u32, page: u32, ahead: Ahead) {
        let (page, stride) = (i64::from(page), i64::from(ahead.stride));
        let behind = page + stride * (i64::from(ahead.count) + 1);
        for word in &self.known {
            if let Some(stream) = Stream::unpack(word.load(Relaxed))
                && stream.region == region & 0x3fff
                && i64::from(stream.stride) == stride
                && i64::from(stream.next) == behind
            {
                let next = u32::try_from(page + stride);
                word.store(next.map_or(0, |next| Stream { next, ..stream }.pack()), Relaxed);
                return;
            }
        }
    }

    /// What a stream is about to come to is there already: it goes on behind that.
    pub(crate) fn jump(&self, region: u32, from: u32, to: u32) {
        for word in &self.known {
            if let Some(stream) = Stream::unpack(word.load(Relaxed))
                && stream.region == region & 0x3fff
                && stream.stride > 0
                && (from..to).contains(&stream.next)
            {
                word.store(Stream { next: to, ..stream }.pack(), Relaxed);
                return;
            }
        }
    }
}

/// Sets a stream to where it goes on after this page and its window.
fn follow(word: &AtomicU64, stream: Stream, page: u32) -> Ahead {
    let stride = i64::from(stream.stride);
    let next = i64::from(page) + stride * (i64::from(stream.window) + 1);
    // At the region's begin a falling stream ends.
    let packed = u32::try_from(next).map_or(0, |next| Stream { next, ..stream }.pack());
    word.store(packed, Relaxed);
    Ahead { stride: i32::from(stream.stride), count: stream.window }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(streams: &Streams, pages: impl IntoIterator<Item = u32>) -> Vec<u32> {
        pages.into_iter().map(|page| streams.fault(3, page, 99, |_| true).count).collect()
    }

    #[test]
    fn a_stream_is_served_further_and_further_ahead() {
        let streams = Streams::default();
        // Each fault comes right behind what was brought in.
        assert_eq!(counts(&streams, [10, 11, 16, 25, 42, 75]), [0, 4, 8, 16, 32, 32]);
    }

    #[test]
    fn a_stream_goes_on_behind_pages_that_were_resident() {
        let streams = Streams::default();
        assert_eq!(counts(&streams, [10, 11, 16 + 20]), [0, 4, 8]);
        assert_eq!(counts(&streams, [1000]), [0], "a jump is not a stream");
    }

    /// A fault near a stream is its next only if the program can have walked there.
    #[test]
    fn a_stream_does_not_go_on_behind_pages_that_are_absent() {
        let streams = Streams::default();
        assert_eq!(counts(&streams, [10, 11]), [0, 4]);
        assert_eq!(streams.fault(3, 16 + 3, 99, |page| page != 17).count, 0);
        assert_eq!(streams.fault(3, 16 + 2, 99, |page| (16..18).contains(&page)).count, 8);
    }

    /// If a stream went on behind more pages than are brought in, the next fault
    /// would lie before it, and the stream be lost.
    #[test]
    fn a_stream_is_followed_under_a_limit() {
        let streams = Streams::default();
        let follow = |most, pages: &[u32]| -> Vec<u32> {
            pages.iter().map(|&page| streams.fault(3, page, most, |_| true).count).collect()
        };
        assert_eq!(follow(2, &[10, 11, 14, 17, 20]), [0, 2, 2, 2, 2]);
        assert_eq!(follow(6, &[23, 28, 35]), [4, 6, 6], "a limit that is raised");
        assert_eq!(follow(0, &[42]), [0]);
    }

    /// Of a walk that nothing is brought in for, each page faults.
    #[test]
    fn a_stream_is_followed_page_by_page_where_nothing_comes_ahead() {
        let streams = Streams::default();
        for pages in [[10, 11, 12, 13, 14], [90, 89, 88, 87, 86]] {
            let found = pages.map(|page| {
                let ahead = streams.fault(3, page, 99, |_| false);
                streams.hold(3, page, ahead);
                ahead.count
            });
            assert_eq!(found, [0, 4, 8, 16, 32]);
        }
    }

    #[test]
    fn streams_fall_and_stride() {
        let streams = Streams::default();
        let fault = |region, page| streams.fault(region, page, 99, |_| true);
        assert_eq!(fault(1, 500).count, 0);
        assert_eq!(fault(1, 499), Ahead { stride: -1, count: 4 });
        assert_eq!(fault(1, 494), Ahead { stride: -1, count: 8 });
        assert_eq!(fault(2, 100).count, 0);
        assert_eq!(fault(2, 104).count, 0, "two may be near each other by chance");
        assert_eq!(fault(2, 108), Ahead { stride: 4, count: 4 });
        assert_eq!(fault(2, 108 + 4 * 5), Ahead { stride: 4, count: 8 });
    }

    #[test]
    fn a_falling_stream_ends_at_the_region_s_begin() {
        let streams = Streams::default();
        assert_eq!(counts(&streams, [3, 2]), [0, 4]);
        assert_eq!(counts(&streams, [7000]), [0]);
    }

    /// Pages that are brought in for nothing push out others that are used.
    #[test]
    fn random_faults_bring_in_little() {
        for (pages, most) in [(1_000_000, 200), (30_000, 800), (2_000, 6_000)] {
            let streams = Streams::default();
            let mut x = 1u64;
            let mut random = || {
                x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (x >> 40) as u32
            };
            // Every other page is resident.
            let brought: u32 = (0..20_000)
                .map(|_| {
                    let resident = |page: u32| page.wrapping_mul(0x9e37_79b1) >> 31 == 0;
                    streams.fault(3, random() % pages, 99, resident).count
                })
                .sum();
            assert!(brought < most, "{brought} of {pages} pages for 20 000 random faults");
        }
    }

    #[test]
    fn many_streams_are_told_apart_among_random_faults() {
        let streams = Streams::default();
        let mut at: Vec<u32> = (0..16).map(|run| run * 50_000).collect();
        let mut faults = 0;
        let mut x = 1u64;
        for _ in 0..40 {
            for page in &mut at {
                let ahead = streams.fault(5, *page, 99, |_| true);
                *page += 1 + ahead.count;
                faults += 1;
            }
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            streams.fault(6, (x >> 40) as u32, 99, |_| true);
        }
        let pages: u32 = at.iter().enumerate().map(|(run, end)| end - run as u32 * 50_000).sum();
        assert!(pages > 20 * faults, "{pages} pages in {faults} faults");
    }
}
