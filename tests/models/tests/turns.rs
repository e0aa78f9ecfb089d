//! Copies and changes: no copy has half of a change.

use std::sync::Arc;

use shuttle::sync::atomic::{AtomicU64, Ordering::Relaxed};
use shuttle::thread;
use terrace_models::fork::turns::Turns;

/// Orders that are tried.
const ORDERS: usize = 3000;

/// What the kernel has, and what our books have, which are equal between changes.
#[derive(Default)]
struct Both {
    turns: Turns,
    kernel: AtomicU64,
    books: AtomicU64,
}

#[test]
fn what_is_copied_is_as_before_a_change_or_as_after_it() {
    let model = || {
        let both = Arc::new(Both::default());
        let change = {
            let both = both.clone();
            move || {
                for _ in 0..2 {
                    both.turns.change(|| {
                        both.kernel.fetch_add(1, Relaxed);
                        both.books.fetch_add(1, Relaxed);
                    });
                }
            }
        };
        let copy = {
            let both = both.clone();
            move || {
                both.turns.begin_copy();
                assert_eq!(both.kernel.load(Relaxed), both.books.load(Relaxed));
                both.turns.end_copy();
            }
        };
        let threads = [
            thread::spawn(change.clone()),
            thread::spawn(change),
            thread::spawn(copy.clone()),
            thread::spawn(copy),
        ];
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(both.books.load(Relaxed), 4, "everybody had a turn");
    };
    shuttle::check_random(model, ORDERS);
    shuttle::check_pct(model, ORDERS, 3);
}
