//! Files in memory (memfds, System V's segments, files of a tmpfs) that processes have mapped: what
//! is in RAM of each counts once, however often it is mapped, and by however many of them.

/// Which file: the device that it lies on, and its number there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct FileId {
    pub(super) device: u64,
    pub(super) inode: u64,
}

/// A part of a file that is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Part {
    pub(super) file: FileId,
    /// Its first byte in the file, and one past its last.
    pub(super) start: u64,
    pub(super) end: u64,
    /// What is mapped of it and in RAM, bytes.
    pub(super) resident: u64,
    /// The same, each page divided by how often it is mapped, by whomever.
    pub(super) share: u64,
}

/// Bytes in RAM of all files of which these parts are mapped; so much was mapped or unmapped of
/// them while they were looked at.
///
/// Of two mappings of one part nobody knows which pages both have. Two figures are each no more
/// than what is there: the sum of shares without what has changed, which is all of it unless others
/// have it mapped, too; and the most that mappings have which do not overlap.
pub(super) fn resident_once(parts: &[Part], changed: u64) -> u64 {
    let mut parts = parts.to_vec();
    parts.sort_unstable_by_key(|part| (part.file, part.end));
    let (mut surely, mut by_shares) = (0, 0);
    for of_file in parts.chunk_by(|a, b| a.file == b.file) {
        let apart = without_overlap(of_file);
        surely += apart;
        by_shares += apart.max(of_file.iter().map(|part| part.share).sum());
    }
    surely.max(by_shares.saturating_sub(changed))
}

/// The most that mappings have which do not overlap, of parts of one file by their ends.
fn without_overlap(parts: &[Part]) -> u64 {
    // Of the first so many.
    let mut most = vec![0];
    for (i, part) in parts.iter().enumerate() {
        let before = parts[..i].partition_point(|earlier| earlier.end <= part.start);
        most.push(most[i].max(most[before] + part.resident));
    }
    most.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A page that can be shared by up to sixteen without a remainder.
    const UNIT: u64 = 720_720;

    fn part(inode: u64, range: [u64; 2], resident: u64, share: u64) -> Part {
        let [start, end] = range;
        Part { file: FileId { device: 1, inode }, start, end, resident, share }
    }

    #[test]
    fn a_file_counts_once_however_often_it_is_mapped() {
        let thrice = [part(5, [0, 60], 60, 20); 3];
        assert_eq!(resident_once(&thrice, 0), 60);
        assert_eq!(resident_once(&[part(5, [0, 60], 60, 10)], 0), 60, "others have it, too");
        assert_eq!(resident_once(&[part(5, [0, 60], 60, 60), part(6, [0, 60], 9, 9)], 0), 69);
        assert_eq!(resident_once(&[], 0), 0);
        // The second has mapped it all after the first was looked at.
        let late = [part(5, [0, 60], 60, 60), part(5, [0, 60], 60, 30)];
        assert_eq!(resident_once(&late, 60), 60);
    }

    #[test]
    fn parts_that_do_not_overlap_add_up() {
        // Somebody else has all of it mapped as well.
        let parts =
            [part(5, [0, 40], 30, 15), part(5, [40, 80], 20, 10), part(5, [20, 60], 25, 12)];
        assert_eq!(resident_once(&parts, 0), 50);
        // Every second page by one, the rest by the other: shares show it.
        assert_eq!(resident_once(&[part(5, [0, 40], 20, 20), part(5, [0, 40], 20, 20)], 0), 40);
    }

    proptest! {
        /// Whatever is mapped how often, it is never more than what is there; and all of it
        /// where nobody else has it.
        #[test]
        fn it_is_what_is_there(
            pages in prop::collection::vec(any::<bool>(), 1..40),
            mappings in prop::collection::vec((0usize..40, 1usize..40), 1..12),
            of_others in 0usize..4,
        ) {
            let clipped = |&(start, len): &(usize, usize)| {
                let start = start % pages.len();
                start..(start + len).min(pages.len())
            };
            let ranges: Vec<_> = mappings.iter().map(clipped).collect();
            let count = |page: usize| ranges.iter().filter(|range| range.contains(&page)).count();
            let parts: Vec<_> = ranges.iter().map(|range| {
                let there = || range.clone().filter(|&page| pages[page]);
                let share = there().map(|page| UNIT / (count(page) + of_others) as u64).sum();
                let [start, end] = [range.start, range.end].map(|page| page as u64 * UNIT);
                part(1, [start, end], there().count() as u64 * UNIT, share)
            }).collect();
            let there = (0..pages.len()).filter(|&page| pages[page] && count(page) > 0).count();
            let there = there as u64 * UNIT;

            let found = resident_once(&parts, 0);

            prop_assert!(found <= there);
            if of_others == 0 {
                prop_assert_eq!(found, there);
            }
        }
    }
}
