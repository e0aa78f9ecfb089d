//! Memory Mode: DRAM as a hardware cache in front of the slow memory.
//!
//! The cache is direct-mapped with 64 B lines, filled on every miss, written
//! back when a dirty line is displaced. Which lines compete is decided by
//! physical addresses, so each page gets a physical frame, and the frames that
//! are a multiple of the DRAM's size apart share one place in it.
//!
//! At full scale there are 3 billion lines of cache. We keep exact state for a
//! sample of them: with a scale of `k`, one of `k` accesses is simulated, and
//! all of these go to the one of `k` sets that is kept. In a direct-mapped
//! cache sets do not influence each other, and each kept set sees as many
//! accesses in a second as it would in full; so hit ratios, and how fast they
//! change, are those of the whole cache up to the error of sampling. (A model
//! by pages with line probabilities would need the accesses to be uniform
//! within a page; this one does not.)

use rand_xoshiro::rand_core::Rng;
use serde::{Deserialize, Serialize};
use terrace_core::{Bytes, PageSize};

use crate::analytic::cache::LINE;
use crate::error::SimError;
use crate::workload::SimRng;

/// How the operating system's free physical memory lies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Frames {
    /// Frames come in random order: memory that has been in use for a while,
    /// or a kernel that shuffles its free lists for the sake of such caches
    /// (Linux since 5.2: `mm/shuffle.c`).
    #[default]
    Random,
    /// Frames come in the order of their addresses: memory of a fresh machine.
    Contiguous,
}

/// What happened to an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lookup {
    Hit,
    /// The displaced line was clean.
    Miss,
    /// The displaced line has to be written back.
    MissDirty,
}

const DIRTY: u8 = 0x80;

/// The DRAM cache.
#[derive(Debug)]
pub(crate) struct MemoryMode {
    /// For each page, the first kept line of its place in the cache, and which
    /// of the frames of that place it is.
    places: Vec<(u32, u8)>,
    /// For each kept line, whose it is, and whether it is dirty.
    lines: Vec<u8>,
    /// log2 of kept lines a page, less the log2 of a page's bytes.
    line_shift: u32,
}

impl MemoryMode {
    /// A cache that `pages` pages share, as populating them in order left it.
    pub(crate) fn new(
        pages: u32,
        size: PageSize,
        dram: Bytes,
        slow: Bytes,
        scale: u32,
        frames: Frames,
        rng: &mut SimRng,
    ) -> Result<Self, SimError> {
        let lines_per_page = (size.bytes().get() / LINE) as u32;
        if !scale.is_power_of_two() || scale > lines_per_page {
            let message = format!(
                "must be a power of two up to {lines_per_page} in Memory Mode (is {scale})"
            );
            return Err(SimError::parameter("scale", message));
        }
        let kept = lines_per_page / scale;
        let in_dram = (dram.get() / size.bytes().get()) as u32;
        let total = (slow.get() / size.bytes().get()) as u32;
        if in_dram == 0 || total / in_dram >= u32::from(DIRTY) {
            let message = format!("cannot cache {slow} in {dram}");
            return Err(SimError::parameter("Memory Mode", message));
        }
        let mut order: Vec<u32> = (0..total).collect();
        if frames == Frames::Random {
            // Fisher and Yates, as far as frames are needed.
            for i in 0..pages.min(total) as usize {
                let rest = (order.len() - i) as u64;
                let j = i + ((u128::from(rng.next_u64()) * u128::from(rest)) >> 64) as usize;
                order.swap(i, j);
            }
        }
        let places: Vec<(u32, u8)> = order[..pages as usize]
            .iter()
            .map(|frame| (frame % in_dram * kept, (frame / in_dram) as u8))
            .collect();
        let mut lines = vec![0; (in_dram * kept) as usize];
        for &(first, owner) in &places {
            lines[first as usize..(first + kept) as usize].fill(owner | DIRTY);
        }
        let line_shift = size.shift() - kept.ilog2();
        Ok(Self { places, lines, line_shift })
    }

    /// An access that missed the processor's caches.
    #[inline]
    pub(crate) fn access(&mut self, page: u32, offset: u32, store: bool) -> Lookup {
        let (first, owner) = self.places[page as usize];
        let line = &mut self.lines[(first + (offset >> self.line_shift)) as usize];
        let before = *line;
        let dirty = if store { DIRTY } else { 0 };
        if before & !DIRTY == owner {
            *line = before | dirty;
            Lookup::Hit
        } else {
            *line = owner | dirty;
            if before & DIRTY == 0 { Lookup::Miss } else { Lookup::MissDirty }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand_xoshiro::rand_core::SeedableRng;

    const DRAM: Bytes = Bytes::mib(192);

    fn hit_ratio(pages: u32, scale: u32, frames: Frames) -> f64 {
        let mut rng = SimRng::seed_from_u64(11);
        let slow = Bytes::mib(768);
        let mut cache = MemoryMode::new(pages, PageSize::Huge, DRAM, slow, scale, frames, &mut rng)
            .expect("valid");
        let mut hits = 0u64;
        let (warm, count) = (500_000, 2_000_000u32);
        for i in 0..warm + count {
            let page = (rng.next_u64() % u64::from(pages)) as u32;
            let offset = (rng.next_u64() & 0x1f_ffff) as u32;
            let hit = cache.access(page, offset, true) == Lookup::Hit;
            hits += u64::from(hit && i >= warm);
        }
        hits as f64 / f64::from(count)
    }

    /// Uniform accesses to pages that share places `m` to one hit by 1/m: the
    /// line that is there is the one of `m` that was touched last.
    #[test]
    fn uniform_accesses_to_contiguous_frames_hit_by_the_closed_form() {
        // 192 frames on 96 places: two each.
        let ratio = hit_ratio(192, 64, Frames::Contiguous);
        assert!((ratio - 0.5).abs() < 0.005, "{ratio}");
        // 256 frames: 64 places hold three, 32 hold two.
        let expected = (64.0 + 32.0) / 256.0;
        let ratio = hit_ratio(256, 64, Frames::Contiguous);
        assert!((ratio - expected).abs() < 0.005, "{ratio}");
    }

    /// With random frames the number of competitors varies; the expected hit
    /// ratio is the expected number of places in use, over the pages.
    #[test]
    fn uniform_accesses_to_random_frames_hit_by_the_closed_form() {
        // Of 4 frames for each of 96 places, 256 of 384 are drawn: a place is
        // unused with probability C(380, 256) / C(384, 256), about (1/3)^4.
        let unused: f64 = (0..4).map(|i| f64::from(128 - i) / f64::from(384 - i)).product();
        let expected = 96.0 * (1.0 - unused) / 256.0;
        let ratio = hit_ratio(256, 64, Frames::Random);
        assert!((ratio - expected).abs() < 0.01, "{ratio} for {expected}");
    }

    #[test]
    fn pages_that_fit_without_conflict_always_hit() {
        assert!(hit_ratio(96, 64, Frames::Contiguous) > 0.999_999);
    }

    #[test]
    fn the_hit_ratio_does_not_depend_on_how_many_sets_are_kept() {
        let ratios = [64, 1024, 8192].map(|scale| hit_ratio(256, scale, Frames::Random));
        for ratio in ratios {
            assert!((ratio - ratios[0]).abs() < 0.01, "{ratios:?}");
        }
    }

    #[test]
    fn only_stores_make_write_backs() {
        let mut rng = SimRng::seed_from_u64(1);
        let mut cache = MemoryMode::new(
            192,
            PageSize::Huge,
            DRAM,
            Bytes::mib(768),
            1024,
            Frames::Contiguous,
            &mut rng,
        )
        .expect("valid");
        // Pages 0 and 96 share a place; populating left page 96 there, dirty.
        assert_eq!(cache.access(96, 0, false), Lookup::Hit);
        assert_eq!(cache.access(0, 0, false), Lookup::MissDirty);
        assert_eq!(cache.access(96, 0, true), Lookup::Miss);
        assert_eq!(cache.access(0, 0, true), Lookup::MissDirty);
    }

    #[test]
    fn a_scale_that_keeps_no_whole_line_is_refused() {
        let mut rng = SimRng::seed_from_u64(1);
        for scale in [3, 65536] {
            let refused = MemoryMode::new(
                8,
                PageSize::Huge,
                DRAM,
                Bytes::mib(768),
                scale,
                Frames::Random,
                &mut rng,
            );
            assert!(refused.expect_err("refused").to_string().starts_with("scale: "));
        }
    }
}
