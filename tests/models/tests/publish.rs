//! A page's word while its content gets into the spill file, and the page comes and goes.

use std::cell::UnsafeCell;
use std::sync::Arc;

use shuttle::sync::Mutex;
use shuttle::sync::atomic::{AtomicU64, Ordering::*};
use shuttle::thread;
use terrace_models::space::page_state::{BUSY, PageState};
use terrace_models::spill::location::{Location, UNIT};
use terrace_models::spill::publish::{Books, copy, publish};

/// Orders that are tried.
const ORDERS: usize = 4000;
/// How often the page leaves, and comes back.
const ROUNDS: u8 = 3;
/// Where blobs lie: so few places that each is used again at once.
const PLACES: usize = 2;

/// One page, its blobs, and the records of the file.
struct World {
    word: AtomicU64,
    /// Contents by place, and whether it is in use.
    blobs: [UnsafeCell<[u8; 1]>; PLACES],
    in_use: Mutex<[bool; PLACES]>,
    /// Contents by record, and whether the record is in use.
    records: Mutex<Vec<(u8, bool)>>,
}

// SAFETY: whoever has the page, or a place that is in use and named by no word, is alone.
unsafe impl Sync for World {}

fn place(state: PageState) -> usize {
    let PageState::Compressed(at) = state else { panic!("{state:?} is no blob") };
    at - 1
}

fn record(location: Location) -> usize {
    location.at() as usize / UNIT
}

impl Books for World {
    unsafe fn bytes(&self, blob: PageState) -> &[u8] {
        assert!(self.in_use.lock().unwrap()[place(blob)], "a blob that was given up is read");
        // SAFETY: the caller's.
        unsafe { &*self.blobs[place(blob)].get() }
    }
    fn gained(&self, location: Location) {
        let record = &mut self.records.lock().unwrap()[record(location)];
        assert!(!std::mem::replace(&mut record.1, true), "gained twice");
    }
    fn lost(&self, state: PageState) {
        let was = match state {
            PageState::Spilled(location) => {
                std::mem::replace(&mut self.records.lock().unwrap()[record(location)].1, false)
            }
            blob => std::mem::replace(&mut self.in_use.lock().unwrap()[place(blob)], false),
        };
        assert!(was, "given up twice");
    }
}

impl World {
    fn new() -> Self {
        Self {
            word: AtomicU64::new(PageState::Resident.word()),
            blobs: [const { UnsafeCell::new([0]) }; PLACES],
            in_use: Mutex::new([false; PLACES]),
            records: Mutex::new(Vec::new()),
        }
    }

    /// Takes the page; its word.
    fn lock(&self) -> u64 {
        loop {
            let word = self.word.load(Acquire);
            if word & BUSY == 0
                && self.word.compare_exchange(word, word | BUSY, AcqRel, Relaxed).is_ok()
            {
                return word;
            }
            thread::yield_now();
        }
    }

    /// The page leaves DRAM with this content.
    fn leave(&self, content: u8) {
        let word = self.lock();
        assert_eq!(PageState::of(word), PageState::Resident);
        let place = {
            let mut in_use = self.in_use.lock().unwrap();
            let free = in_use.iter().position(|&used| !used).expect("a free place");
            in_use[free] = true;
            free
        };
        // SAFETY: ours since a moment ago, and no word names it.
        unsafe { *self.blobs[place].get() = [content] };
        self.word.store(PageState::Compressed(place + 1).word(), Release);
    }

    /// The program touches the page; its content.
    fn touch(&self) -> u8 {
        let state = PageState::of(self.lock());
        let content = match state {
            PageState::Spilled(location) => {
                let (content, in_use) = self.records.lock().unwrap()[record(location)];
                assert!(in_use, "a record that was given up is read");
                content
            }
            // SAFETY: the page is ours.
            blob => unsafe { self.bytes(blob)[0] },
        };
        self.lost(state);
        self.word.store(PageState::Resident.word(), Release);
        content
    }

    /// What the writer does with a page that it finds in RAM: a record each time.
    fn write(&self) {
        let word = self.word.load(Relaxed);
        if word & BUSY != 0 {
            return;
        }
        let mut copied = None;
        copy(&self.word, word, self, |bytes| copied = Some(bytes[0]));
        let Some(content) = copied else { return };
        let location = {
            let mut records = self.records.lock().unwrap();
            records.push((content, false));
            Location::new(((records.len() - 1) * UNIT) as u64, 1, false)
        };
        thread::yield_now();
        publish(&self.word, word, location, &[content], self, || ());
    }

    /// What it does with a record that is to be moved.
    fn rewrite(&self) {
        let word = self.word.load(Relaxed);
        let PageState::Spilled(from) = PageState::of(word) else { return };
        if word & BUSY != 0 {
            return;
        }
        let to = {
            let mut records = self.records.lock().unwrap();
            let content = records[record(from)].0;
            records.push((content, false));
            Location::new(((records.len() - 1) * UNIT) as u64, 1, false)
        };
        thread::yield_now();
        publish(&self.word, word, to, &[], self, || ());
    }
}

/// Whatever the writer is at: what comes back is what left, nothing is given up twice
/// or read afterwards, and in the end nothing is left over.
#[test]
fn what_comes_back_is_what_left_whatever_the_writer_is_at() {
    let model = || {
        let world = Arc::new(World::new());
        let program = {
            let world = world.clone();
            thread::spawn(move || {
                for round in 0..ROUNDS {
                    // Twice the same, once another.
                    world.leave(round / 2);
                    thread::yield_now();
                    assert_eq!(world.touch(), round / 2);
                }
            })
        };
        let writer = {
            let world = world.clone();
            thread::spawn(move || {
                for _ in 0..ROUNDS {
                    world.write();
                    world.rewrite();
                }
            })
        };
        program.join().unwrap();
        writer.join().unwrap();
        assert_eq!(PageState::of(world.word.load(Relaxed)), PageState::Resident);
        assert_eq!(*world.in_use.lock().unwrap(), [false; PLACES]);
        assert!(world.records.lock().unwrap().iter().all(|record| !record.1));
    };
    shuttle::check_random(model, ORDERS);
    shuttle::check_pct(model, ORDERS, 3);
}
