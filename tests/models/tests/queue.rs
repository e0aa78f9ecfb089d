//! The queue of notes: none is lost, invented, or out of its writer's order.

use std::sync::Arc;

use shuttle::sync::atomic::{AtomicBool, Ordering::SeqCst};
use shuttle::thread;
use terrace_core::{PageNo, PageRange, RegionId};
use terrace_models::decide::notes::{Note, Queue};

const WRITERS: u32 = 2;
const NOTES: u32 = 3;

fn note(writer: u32, n: u32) -> Note {
    Note::Discard(PageRange { region: RegionId(writer), start: PageNo(n), count: 1 })
}

#[test]
fn every_note_arrives_once_and_in_its_writers_order() {
    let model = || {
        let queue = Arc::new(Queue::new());
        let written = Arc::new(AtomicBool::new(false));
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let queue = queue.clone();
                thread::spawn(move || (0..NOTES).for_each(|n| assert!(queue.push(note(writer, n)))))
            })
            .collect();
        let reader = {
            let (queue, written) = (queue.clone(), written.clone());
            thread::spawn(move || {
                let mut next = [0; WRITERS as usize];
                loop {
                    let last = written.load(SeqCst);
                    while let Some(note) = queue.pop() {
                        let Note::Discard(range) = note else {
                            panic!("{note:?} was never written")
                        };
                        let next = &mut next[range.region.0 as usize];
                        assert_eq!(range.start, PageNo(*next));
                        *next += 1;
                    }
                    if last {
                        return next;
                    }
                    thread::yield_now();
                }
            })
        };
        for writer in writers {
            writer.join().unwrap();
        }
        written.store(true, SeqCst);
        assert_eq!(reader.join().unwrap(), [NOTES; WRITERS as usize]);
    };
    shuttle::check_random(model, 1000);
    shuttle::check_pct(model, 1000, 3);
}
