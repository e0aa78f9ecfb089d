//! Where a program's memory is, seen from outside: by the kernel's page tables
//! (`/proc/PID/pagemap`), so that looking costs the program nothing.
//!
//! A page that waits in a staging slot for its demotion is not at its address,
//! so it counts as absent here while the pager still counts it as resident.

use std::fs::File;
use std::os::unix::fs::FileExt;

use terrace_core::PageSize;
use terrace_live::stats::process_page::PARTS;
use terrace_report::run::{ProcessReport, RegionReport};

/// How much of each part of a region is present, in percent.
pub(crate) type Parts = [u8; PARTS];

/// Pages of a part that are looked at, at most: 4096 pages are 32 KiB of page
/// map, and give a share to within 2 %.
const LOOK_AT: u64 = 4096;
/// Pages that are looked at in one go.
const RUN: u64 = 256;
/// Bit 63 of a page map entry: the page is present (`pagemap.rst`).
const PRESENT: u64 = 1 << 63;

/// Each region's residency, in the order of the process's regions; none if we
/// may not look or the process is gone.
pub(crate) fn of(process: &ProcessReport) -> Vec<(u64, Parts)> {
    let Ok(map) = File::open(format!("/proc/{}/pagemap", process.pid)) else { return Vec::new() };
    process.regions.iter().filter_map(|region| Some((region.start, parts(&map, region)?))).collect()
}

fn parts(map: &File, region: &RegionReport) -> Option<Parts> {
    let shift = PageSize::Base.shift();
    let (first, pages) = (region.start >> shift, region.length.get() >> shift);
    let mut parts = [0; PARTS];
    for (i, part) in parts.iter_mut().enumerate() {
        let bound = |i: usize| pages * i as u64 / PARTS as u64;
        let (from, to) = (bound(i), bound(i + 1));
        let (mut seen, mut present) = (0, 0);
        // Evenly spread runs where the part is longer than what is looked at.
        let runs = (to - from).div_ceil(RUN);
        let step = (to - from).div_ceil(LOOK_AT).max(1);
        for run in (0..runs).step_by(step as usize) {
            let at = from + run * RUN;
            let count = RUN.min(to - at);
            let mut bytes = [0; RUN as usize * 8];
            let bytes = &mut bytes[..count as usize * 8];
            map.read_exact_at(bytes, (first + at) * 8).ok()?;
            seen += count;
            present += bytes
                .as_chunks::<8>()
                .0
                .iter()
                .filter(|entry| u64::from_ne_bytes(**entry) & PRESENT != 0)
                .count() as u64;
        }
        *part = (present * 100).checked_div(seen).unwrap_or(0) as u8;
    }
    Some(parts)
}

#[cfg(test)]
mod tests {
    use terrace_core::Bytes;

    use super::*;

    #[test]
    fn what_was_touched_is_present_and_the_rest_is_not() {
        // Larger than a huge page, in which the kernel may bring in more than
        // was touched, and longer parts than what is looked at of each.
        const SIZE: usize = 1 << 30;
        const TOUCHED: usize = SIZE / PARTS;
        let mut memory = vec![0u8; SIZE];
        let region = RegionReport {
            start: (memory.as_ptr().addr() as u64).next_multiple_of(4096),
            length: Bytes(SIZE as u64),
            resident: Bytes::ZERO,
            faults: 0,
            parts: [0; PARTS],
        };
        for page in memory[..TOUCHED].chunks_exact_mut(4096) {
            page[0] = 1;
        }

        let parts = parts(&File::open("/proc/self/pagemap").unwrap(), &region).unwrap();

        assert!(parts[0] >= 99, "{parts:?}");
        // All but the last, which ends beyond the memory.
        assert!(parts[2..PARTS - 1].iter().all(|&part| part == 0), "{parts:?}");
        drop(memory);
    }
}
