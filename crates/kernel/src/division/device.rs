//! What a page takes that is read from a disk.
//!
//! The kernel counts for each disk what was read and for how long requests were under way
//! (`/proc/diskstats`, `Documentation/admin-guide/iostats.rst`). Whoever reads ahead waits for a part
//! of it only, so this is the most that a page takes.

use std::collections::BTreeMap;

use terrace_core::Nanos;
use terrace_economics::Interval;

use crate::files::Root;

/// What a page takes before anything was read: between a fast disk with read-ahead and a slow one.
const PRIOR: Interval = Interval { low: 20e3, expected: 100e3, high: 1e6 };
/// Pages of the run's own that have to come back before it is believed what they took.
const ENOUGH: f64 = 256.0;
/// What was measured is right within this factor: requests overlap, and others' are among them.
const SPREAD: f64 = 2.0;
/// Sectors (512 bytes) of a base page.
const SECTORS: f64 = 8.0;

/// What was read of a disk: sectors, and milliseconds.
type Read = (u64, u64);

/// Disks, and what reading took.
#[derive(Debug, Default)]
pub struct Disks {
    last: BTreeMap<u64, Read>,
    /// Pages that came back, and how long reading them took in nanoseconds. What was long ago counts less.
    pages: f64,
    time: f64,
}

/// Reads the text of `/proc/diskstats`, by device number.
fn parse(text: &str) -> BTreeMap<u64, Read> {
    let line = |line: &str| {
        let fields: Vec<u64> = line
            .split_ascii_whitespace()
            .enumerate()
            // The third is a name.
            .filter(|(at, _)| *at != 2)
            .map_while(|(_, field)| field.parse().ok())
            .collect();
        let &[major, minor, _, _, sectors, milliseconds, ..] = fields.as_slice() else {
            return None;
        };
        let device = libc::makedev(u32::try_from(major).ok()?, u32::try_from(minor).ok()?);
        Some((device, (sectors, milliseconds)))
    };
    text.lines().filter_map(line).collect()
}

impl Disks {
    /// Looks at what was read of these devices since the last look. Of what was read `came_back` pages came
    /// back to the run since then: where there was none, all that was read was for others, or for the first
    /// time, and says nothing of the run's pages.
    pub fn look(&mut self, root: &Root, devices: &[u64], came_back: u64) {
        let now = parse(&root.read("/proc/diskstats").unwrap_or_default());
        self.take(now, devices, came_back);
    }

    fn take(&mut self, now: BTreeMap<u64, Read>, devices: &[u64], came_back: u64) {
        let (mut pages, mut time) = (0.0, 0.0);
        for device in devices {
            let (Some(before), Some(after)) = (self.last.get(device), now.get(device)) else {
                continue;
            };
            pages += after.0.saturating_sub(before.0) as f64 / SECTORS;
            time += after.1.saturating_sub(before.1) as f64 * 1e6;
        }
        let own = pages.min(came_back as f64);
        if own > 0.0 {
            // As much as is enough by itself counts as much as all before.
            let keep = ENOUGH / (ENOUGH + own);
            self.pages = self.pages * keep + own;
            self.time = self.time * keep + time * own / pages;
        }
        self.last = now;
    }

    /// What a page takes, in nanoseconds.
    pub fn page(&self) -> Interval {
        if !self.is_measured() {
            return PRIOR;
        }
        let each = self.time / self.pages;
        Interval::new(each / SPREAD, each, each * SPREAD)
    }

    /// The same as a time, and whether it was measured.
    pub fn expected(&self) -> (Nanos, bool) {
        (Nanos::from_f64(self.page().expected), self.is_measured())
    }

    /// Whether enough was seen. A device that counts what is read and not for how long shows no time.
    fn is_measured(&self) -> bool {
        self.pages >= ENOUGH && self.time > 0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VDA: &str = " 254       0 vda 9096391 299638 681152718 9803089 2445958 2904679 830838400 \
                       4407010 0 974248 14433369\n   7       0 loop0 3974318 1824 156709476 522538 \
                       2524040 85201 158629461 881361\n 8 zz broken\n";

    #[test]
    fn a_line_is_a_disk() {
        let disks = parse(VDA);
        assert_eq!(disks.len(), 2);
        assert_eq!(disks[&libc::makedev(254, 0)], (681_152_718, 9_803_089));
        assert_eq!(disks[&libc::makedev(7, 0)], (156_709_476, 522_538));
    }

    #[test]
    fn a_page_takes_what_pages_took() {
        let (mut disks, device) = (Disks::default(), libc::makedev(254, 0));
        let read = |pages: u64, ms: u64| BTreeMap::from([(device, (pages * 8, ms))]);
        disks.take(read(0, 0), &[device], u64::MAX);
        disks.take(read(100, 50), &[device], u64::MAX);
        assert_eq!(disks.expected(), (Nanos::micros(100), false), "too few");
        disks.take(read(1000, 80), &[device], u64::MAX);
        let (page, measured) = disks.expected();
        assert!(measured && page > Nanos::micros(40) && page < Nanos::micros(50), "{page}");
        // Other devices say nothing.
        disks.take(BTreeMap::from([(device, (8000, 80)), (7, (1 << 40, 1))]), &[device], u64::MAX);
        assert_eq!(disks.expected(), (page, true));
        // A disk that has become slow is believed soon.
        disks.take(read(2000, 5080), &[device], u64::MAX);
        assert!(disks.expected().0 > Nanos::millis(3), "{:?}", disks.expected());
    }

    /// The report said `measured` of what other programs had read.
    #[test]
    fn what_was_read_for_others_measures_nothing() {
        let (mut disks, device) = (Disks::default(), libc::makedev(254, 0));
        let read = |pages: u64, ms: u64| BTreeMap::from([(device, (pages * 8, ms))]);
        disks.take(read(0, 0), &[device], 0);
        disks.take(read(9000, 700), &[device], 0);
        assert!(!disks.expected().1);
        // Some of them were the run's.
        disks.take(read(18_000, 1400), &[device], 100);
        assert!(!disks.expected().1, "too few");
        disks.take(read(19_000, 1500), &[device], 1000);
        let (page, measured) = disks.expected();
        assert!(measured && page > Nanos::micros(80) && page < Nanos::micros(110), "{page}");

        let mut timeless = Disks::default();
        timeless.take(read(0, 0), &[device], 0);
        timeless.take(read(9000, 0), &[device], 9000);
        assert_eq!(timeless.expected(), (Nanos::micros(100), false), "no page takes no time");
    }
}
