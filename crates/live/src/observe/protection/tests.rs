use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use terrace_core::{PageNo, RegionId};

use super::*;

const PAGES: usize = 64;
const START: usize = 0x7000_0000;

fn address(page: usize) -> usize {
    START + page * PAGE
}

/// A page table as the kernel keeps it: pages that are present, and whether they are
/// protected. Read-write protection behaves here as the kernel's documentation of it says;
/// no kernel that has it was at hand.
struct Emulated {
    tracks: Tracks,
    present: BTreeMap<usize, bool>,
    asked: Vec<Range<usize>>,
}

impl Emulated {
    fn new(tracks: Tracks) -> Self {
        let present = (0..PAGES).map(|page| (page, false)).collect();
        Self { tracks, present, asked: Vec::new() }
    }
    fn within<'a>(&'a mut self, range: &Range<usize>) -> impl Iterator<Item = &'a mut bool> {
        let pages = (range.start - START) / PAGE..(range.end - START) / PAGE;
        self.present.range_mut(pages).map(|(_, protected)| protected)
    }
}

impl Protection for Emulated {
    fn protect(&mut self, range: &Range<usize>) -> Result<(), i32> {
        self.within(range).for_each(|protected| *protected = true);
        Ok(())
    }
    fn touched(&mut self, range: &Range<usize>, each: &mut dyn FnMut(Run)) -> Result<(), i32> {
        self.asked.push(range.clone());
        // Neighbours come as one run.
        let mut run = Run::default();
        for (&page, &protected) in &self.present {
            let at = address(page);
            if protected || !range.contains(&at) {
                continue;
            }
            if run.end != at as u64 {
                if run.end != 0 {
                    each(run);
                }
                run = Run { start: at as u64, end: 0, flags: self.tracks.touched() };
            }
            run.end = (at + PAGE) as u64;
        }
        if run.end != 0 {
            each(run);
        }
        Ok(())
    }
    fn release(&mut self, range: &Range<usize>) -> Result<(), i32> {
        self.within(range).for_each(|protected| *protected = false);
        Ok(())
    }
}

/// Memory of which ranges are drawn in turn.
struct Drawn<'a> {
    draws: std::vec::IntoIter<(usize, usize)>,
    resident: &'a RefCell<BTreeSet<usize>>,
    departed: &'a Departed,
}

impl Memory for Drawn<'_> {
    fn draw(&mut self) -> Option<Range<usize>> {
        self.draws.next().map(|(first, end)| address(first)..address(end))
    }
    fn page_at(&self, address: usize) -> Option<PageRef> {
        let page = (address - START) / PAGE;
        let counts = self.resident.borrow().contains(&page) && !self.departed.contains(address);
        counts.then_some(PageRef { region: RegionId(1), page: PageNo(page as u32) })
    }
    fn remember(&mut self) {
        self.departed.forget();
    }
}

/// What happens to a page while it is protected.
#[derive(Clone, Copy, Debug)]
enum Event {
    /// The program loads from it.
    Load(usize),
    /// It stores to it.
    Store(usize),
    /// It leaves DRAM.
    Leaves(usize),
    /// Its content is copied in; nobody has touched it.
    Copied(usize),
    /// Its frame is moved in.
    Moved(usize),
}

fn event() -> impl Strategy<Value = Event> {
    (0..5, 0..PAGES).prop_map(|(kind, page)| match kind {
        0 => Event::Load(page),
        1 => Event::Store(page),
        2 => Event::Leaves(page),
        3 => Event::Copied(page),
        _ => Event::Moved(page),
    })
}

proptest! {
    /// A page that is told although nobody touched it is taken for hot, and one that is not
    /// told for cold; and to the kernel whatever is not protected has been touched.
    #[test]
    fn told_are_the_protected_pages_that_were_touched_and_have_not_left(
        stores in any::<bool>(),
        draws in prop::collection::vec((0..PAGES - RUN, 1..=RUN), 1..12),
        events in prop::collection::vec(event(), 0..200),
    ) {
        let tracks = if stores { Tracks::Stores } else { Tracks::Accesses };
        let draws: Vec<_> = draws.into_iter().map(|(first, n)| (first, first + n)).collect();
        let resident = RefCell::new((0..PAGES).collect::<BTreeSet<_>>());
        let departed = Departed::new();
        let mut memory =
            Drawn { draws: draws.into_iter(), resident: &resident, departed: &departed };
        let (mut kernel, mut tracker) = (Emulated::new(tracks), Tracker::new(tracks));
        let mut samples = Vec::new();
        tracker.look(Nanos::ZERO, true, &mut kernel, &mut memory, &mut samples);
        prop_assert!(samples.is_empty(), "nothing was protected before");
        let protected: BTreeSet<usize> =
            kernel.present.iter().filter(|(_, on)| **on).map(|(page, _)| *page).collect();

        let (mut touched, mut left) = (BTreeSet::new(), BTreeSet::new());
        for event in events {
            match event {
                Event::Load(page) | Event::Store(page) if kernel.present.contains_key(&page) => {
                    let store = matches!(event, Event::Store(_));
                    if store || tracks == Tracks::Accesses {
                        kernel.present.insert(page, false);
                        touched.insert(page);
                    }
                }
                Event::Leaves(page) => {
                    departed.note(address(page));
                    kernel.present.remove(&page);
                    resident.borrow_mut().remove(&page);
                    left.insert(page);
                }
                Event::Copied(page) | Event::Moved(page)
                    if !kernel.present.contains_key(&page) =>
                {
                    // A frame that is moved into such a range arrives protected.
                    let moved = matches!(event, Event::Moved(_));
                    kernel.present.insert(page, moved && tracks == Tracks::Accesses);
                    resident.borrow_mut().insert(page);
                }
                _ => {}
            }
        }
        let faults = tracker.look(INTERVAL, false, &mut kernel, &mut memory, &mut samples);

        let told: BTreeSet<usize> =
            samples.iter().map(|sample| sample.page.page.0 as usize).collect();
        let expected: BTreeSet<usize> = touched
            .intersection(&protected)
            .copied()
            .filter(|page| !left.contains(page))
            .collect();
        prop_assert_eq!(&told, &expected);
        prop_assert_eq!(samples.len(), expected.len(), "each once");
        prop_assert_eq!(faults, expected.len() as u64);
        // Whatever was not touched is free again: it would keep huge pages from being made.
        let stayed = protected.iter().filter(|page| !left.contains(page));
        for page in stayed {
            prop_assert_eq!(kernel.present.get(page), Some(&false), "page {}", page);
        }
    }
}

fn look(tracker: &mut Tracker, now: Nanos, kernel: &mut Emulated) {
    let resident = RefCell::new(BTreeSet::new());
    let departed = Departed::new();
    let all: Vec<_> = (0..PAGES).map(|page| (page, page + 1)).collect();
    let mut memory = Drawn { draws: all.into_iter(), resident: &resident, departed: &departed };
    tracker.look(now, true, kernel, &mut memory, &mut Vec::new());
}

/// What the governor asks for has to make sampling cheaper, to the last step.
#[test]
fn rarer_samples_are_fewer_ranges_and_then_longer_intervals() {
    let mut kernel = Emulated::new(Tracks::Accesses);
    let mut tracker = Tracker::new(Tracks::Accesses);
    look(&mut tracker, Nanos::ZERO, &mut kernel);
    assert_eq!(tracker.protected.len(), RANGES as usize);

    tracker.set_rarity(16);
    look(&mut tracker, INTERVAL, &mut kernel);
    assert_eq!((tracker.protected.len(), tracker.due), (4, INTERVAL * 2));

    tracker.set_rarity(8 * RANGES);
    look(&mut tracker, INTERVAL * 2, &mut kernel);
    assert_eq!((tracker.protected.len(), tracker.due), (1, INTERVAL * 10));

    kernel.asked.clear();
    look(&mut tracker, INTERVAL * 9, &mut kernel);
    assert!(kernel.asked.is_empty(), "it is not time yet");
    assert_eq!(tracker.protected.len(), 1);
}

/// A range that the kernel does not protect would read as touched, all of it.
#[test]
fn what_cannot_be_protected_is_not_asked_about() {
    struct Refusing(Emulated);
    impl Protection for Refusing {
        fn protect(&mut self, range: &Range<usize>) -> Result<(), i32> {
            // Registered for missing pages alone.
            if range.start < address(8) { Err(libc::ENOENT) } else { self.0.protect(range) }
        }
        fn touched(&mut self, range: &Range<usize>, each: &mut dyn FnMut(Run)) -> Result<(), i32> {
            self.0.touched(range, each)
        }
        fn release(&mut self, range: &Range<usize>) -> Result<(), i32> {
            self.0.release(range)
        }
    }
    let resident = RefCell::new((0..PAGES).collect());
    let departed = Departed::new();
    let draws = vec![(0, 4), (4, 8), (8, 12)];
    let mut memory = Drawn { draws: draws.into_iter(), resident: &resident, departed: &departed };
    let mut kernel = Refusing(Emulated::new(Tracks::Accesses));
    let mut tracker = Tracker::new(Tracks::Accesses);
    let mut samples = Vec::new();

    tracker.look(Nanos::ZERO, true, &mut kernel, &mut memory, &mut samples);
    tracker.look(INTERVAL, false, &mut kernel, &mut memory, &mut samples);

    assert_eq!(kernel.0.asked, std::slice::from_ref(&(address(8)..address(12))));
    assert!(samples.is_empty());
}

/// What the kernel answers is cut to what was asked about, and other properties than the
/// one that was asked for say nothing.
#[test]
fn an_answer_is_read_by_its_flags_and_only_within_the_range() {
    struct Fixed(Vec<Run>);
    impl Protection for Fixed {
        fn protect(&mut self, _: &Range<usize>) -> Result<(), i32> {
            Ok(())
        }
        fn touched(&mut self, _: &Range<usize>, each: &mut dyn FnMut(Run)) -> Result<(), i32> {
            self.0.iter().for_each(|run| each(*run));
            Ok(())
        }
        fn release(&mut self, _: &Range<usize>) -> Result<(), i32> {
            Ok(())
        }
    }
    let run = |first: usize, end: usize, flags| Run {
        start: address(first) as u64,
        end: address(end) as u64,
        flags,
    };
    let answers = vec![
        run(0, 3, is::ACCESSED | is::PRESENT),
        run(3, 4, is::PRESENT | is::WRITTEN),
        run(5, 9, is::ACCESSED),
    ];
    let resident = RefCell::new((0..PAGES).collect());
    let departed = Departed::new();
    let memory = Drawn { draws: Vec::new().into_iter(), resident: &resident, departed: &departed };
    let mut samples = Vec::new();

    let range = address(2)..address(6);
    let n = collect(Tracks::Accesses, &range, &mut Fixed(answers), &memory, &mut samples);

    let pages: Vec<_> = samples.iter().map(|sample| sample.page.page.0).collect();
    assert_eq!((n, pages), (2, vec![2, 5]));
}

/// A feature that the kernel does not have must never be asked for, or the handshake fails
/// and nothing is managed at all.
#[test]
fn only_what_the_kernel_has_is_tracked_and_only_for_a_policy_that_asks() {
    let all = Needs { samples: true, reads_and_writes: true, ..Needs::default() };
    let samples = Needs { samples: true, ..Needs::default() };
    let scans = Needs { scans: true, ..Needs::default() };
    let (old, linux_6_18) = (feature::MOVE, feature::MOVE | feature::WP_ASYNC);
    let half = linux_6_18 | feature::RWP;
    let new = half | feature::RWP_ASYNC;
    let (auto, stores, accesses) = (Observer::Auto, Some(Tracks::Stores), Some(Tracks::Accesses));
    for (observer, needs, features, hardware, expected) in [
        (auto, all, old, false, None),
        (auto, all, linux_6_18, false, stores),
        (auto, all, linux_6_18, true, None),
        (auto, samples, linux_6_18, false, None),
        (auto, all, half, false, stores),
        (auto, all, new, false, accesses),
        (auto, samples, new, false, accesses),
        (auto, scans, new, true, accesses),
        (auto, scans, linux_6_18, false, None),
        (auto, Needs::default(), new, false, None),
        (Observer::Rwp, Needs::default(), new, true, accesses),
        (Observer::Rwp, all, linux_6_18, false, None),
        (Observer::Hardware, all, new, true, None),
        (Observer::PageFaults, all, new, false, None),
    ] {
        let chosen = choose(observer, &needs, features, hardware);
        assert_eq!(chosen, expected, "{observer:?} {needs:?} {features:#x} {hardware}");
        let asked = chosen.map_or(0, Tracks::features);
        assert_eq!(asked & !features, 0, "asked for what the kernel does not have");
    }
}

/// The kernel refuses to register a range for both: they share a bit.
#[test]
fn no_range_is_registered_for_both_kinds_of_protection() {
    assert_eq!((Tracks::Stores.mode(), Tracks::Accesses.mode()), (2, 8));
    assert_eq!(Tracks::Accesses.features(), 3 << 17);
    assert_eq!((Tracks::Stores.touched(), Tracks::Accesses.touched()), (2, 512));
}
