//! How much of a zone stays free, by the kernel's formulas.
//!
//! Source: `mm/page_alloc.c` (`init_per_zone_wmark_min`, `__setup_per_zone_wmarks`) and
//! `mm/khugepaged.c` (`set_recommended_min_free_kbytes`) of Linux 6.12; the differences of
//! older kernels are settings.

use terrace_core::Pages;

use super::setup::ZoneKind;

/// The watermarks of a zone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Marks {
    /// No allocation of a program or of the kernel goes below this.
    pub min: Pages,
    /// At or below this, allocations go to the next zone first, and reclaim is woken.
    pub low: Pages,
    /// Reclaim ends above this.
    pub high: Pages,
}

/// What the formulas depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MarkSettings {
    /// Ten-thousandths of a zone between two watermarks, at least
    /// (`watermark_scale_factor`); `None` for kernels before 4.6, which have none.
    pub scale_factor: Option<u64>,
    /// Whether transparent huge pages are on, which asks for some free blocks of 2 MiB.
    pub huge_pages: bool,
}

impl Default for MarkSettings {
    /// Today's defaults: 10, and huge pages on.
    fn default() -> Self {
        Self { scale_factor: Some(10), huge_pages: true }
    }
}

impl MarkSettings {
    /// Linux 4.5, the paper's kernel, with huge pages on as in its distribution.
    pub const LINUX_4_5: Self = Self { scale_factor: None, huge_pages: true };
}

/// Base pages of a block of 2 MiB.
const PAGE_BLOCK: u64 = 512;
/// Lists by mobility that each processor keeps (`MIGRATE_PCPTYPES`).
const PER_PROCESSOR_TYPES: u64 = 3;
/// KiB of a base page.
const PAGE_KIB: u64 = 4;

/// `min_free_kbytes` in pages, for memory that is not movable, in so many zones.
fn min_free(lowmem: u64, zones: u64, settings: MarkSettings) -> u64 {
    let kib = (lowmem * PAGE_KIB * 16).isqrt().clamp(128, 262_144);
    let mut pages = kib / PAGE_KIB;
    if settings.huge_pages {
        let types = PER_PROCESSOR_TYPES * PER_PROCESSOR_TYPES;
        pages = pages.max((PAGE_BLOCK * zones * (2 + types)).min(lowmem / 20));
    }
    pages
}

/// The watermarks of all zones of a machine, each with the pages that it manages.
pub fn marks(zones: &[(ZoneKind, Pages)], settings: MarkSettings) -> Vec<Marks> {
    let normal = zones.iter().filter(|(kind, pages)| *kind == ZoneKind::Normal && pages.0 > 0);
    let lowmem: u64 = normal.clone().map(|(_, pages)| pages.0).sum();
    let all = min_free(lowmem, normal.count() as u64, settings);
    let of = |&(kind, pages): &(ZoneKind, Pages)| {
        let share = if lowmem == 0 {
            0
        } else {
            (u128::from(all) * u128::from(pages.0) / u128::from(lowmem)) as u64
        };
        let min = match kind {
            ZoneKind::Normal => share,
            ZoneKind::Movable => (pages.0 / 1024).clamp(32, 128).min(pages.0),
        };
        let scaled = settings.scale_factor.map_or(0, |factor| pages.0 * factor / 10_000);
        let step = (share / 4).max(scaled);
        Marks { min: Pages(min), low: Pages(min + step), high: Pages(min + 2 * step) }
    };
    zones.iter().map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A host with 24 GiB was looked at: 16 894 pages in three zones (the kernel rounds for
    /// each).
    #[test]
    fn huge_pages_raise_the_watermarks_to_eleven_blocks_a_zone() {
        assert_eq!(min_free(24 << 18, 3, MarkSettings::default()), 16_896);
        let without = MarkSettings { huge_pages: false, ..MarkSettings::default() };
        // 4 · √(24 GiB in KiB) KiB.
        assert_eq!(min_free(24 << 18, 3, without), f64::sqrt(24.0 * 1_048_576.0) as u64);
    }

    #[test]
    fn zones_have_their_share_and_steps_by_the_larger_rule() {
        let zones = [
            (ZoneKind::Normal, Pages(3 << 20)),
            (ZoneKind::Normal, Pages(1 << 20)),
            (ZoneKind::Movable, Pages(4 << 20)),
        ];
        let settings = MarkSettings { scale_factor: None, huge_pages: false };
        let old = marks(&zones, settings);
        assert_eq!(old[0].min.0, 3 * old[1].min.0);
        assert_eq!(old[1].low - old[1].min, old[1].min / 4);
        assert_eq!(old[2].min, Pages(128), "of a movable zone at most 128 pages");
        assert_eq!((old[2].low - old[2].min).0, old[0].min.0 / 3, "and its step by its size");
        let new = marks(&zones, MarkSettings { scale_factor: Some(10), ..settings });
        assert_eq!((new[0].low - new[0].min).0, (3 << 20) / 1000);
        assert_eq!(new[0].min, old[0].min);
    }

    #[test]
    fn without_memory_there_is_nothing_to_keep_free() {
        assert_eq!(marks(&[(ZoneKind::Movable, Pages(0))], MarkSettings::default())[0].min.0, 0);
    }
}
