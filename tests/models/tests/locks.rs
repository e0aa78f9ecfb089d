//! The locks: whoever holds one alone is alone.

use std::sync::Arc;

use shuttle::sync::atomic::{AtomicU64, Ordering::Relaxed};
use shuttle::thread;
use terrace_models::sys::spin::{SharedLock, SpinLock};

/// Orders that are tried.
const ORDERS: usize = 3000;

#[test]
fn no_increment_under_the_lock_is_lost() {
    let model = || {
        let lock = Arc::new(SpinLock::new(0));
        let threads: Vec<_> = (0..3)
            .map(|n| {
                let lock = lock.clone();
                thread::spawn(move || {
                    // One that only tries may fail, but never lets another in.
                    if n == 0 {
                        if let Some(mut value) = lock.try_lock() {
                            *value += 1;
                            return 1;
                        }
                        return 0;
                    }
                    let before = *lock.lock();
                    let mut value = lock.lock();
                    assert!(*value >= before);
                    *value += 1;
                    1
                })
            })
            .collect();
        let expected: i32 = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
        assert_eq!(*lock.lock(), expected);
    };
    shuttle::check_random(model, ORDERS);
    shuttle::check_pct(model, ORDERS, 3);
}

/// Two words that are equal whenever nobody holds the lock alone.
#[test]
fn who_shares_the_lock_never_sees_a_change_under_way() {
    let model = || {
        let shared = Arc::new((SharedLock::default(), AtomicU64::new(0), AtomicU64::new(0)));
        let change = {
            let shared = shared.clone();
            move || {
                for _ in 0..2 {
                    let alone = shared.0.lock();
                    shared.1.fetch_add(1, Relaxed);
                    shared.2.fetch_add(1, Relaxed);
                    drop(alone);
                }
            }
        };
        let look = {
            let shared = shared.clone();
            move || {
                for _ in 0..3 {
                    if let Some(_guard) = shared.0.try_share() {
                        assert_eq!(shared.1.load(Relaxed), shared.2.load(Relaxed));
                    }
                }
            }
        };
        let threads = [
            thread::spawn(change.clone()),
            thread::spawn(change),
            thread::spawn(look.clone()),
            thread::spawn(look),
        ];
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(shared.1.load(Relaxed), 4);
        assert!(shared.0.try_lock().is_some(), "everybody has given it back");
    };
    shuttle::check_random(model, ORDERS);
    shuttle::check_pct(model, ORDERS, 3);
}
