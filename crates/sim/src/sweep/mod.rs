//! Parameter grids: every combination of policies, machines, programs and
//! parameters, simulated access by access on all cores, resumable after a kill.
//!
//! | file | concept |
//! |---|---|
//! | [`grid`] | the grid, from a file or the command line |
//! | [`point`] | one combination: what is simulated, what is measured |
//! | [`journal`] | what is done already |

pub mod grid;
pub mod journal;
pub mod point;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

pub use grid::{Grid, GridError};
pub use journal::{Journal, JournalError};
pub use point::{METRICS, Metric, Point, PointResult};

use crate::trace::Summary;

/// What a point came to, and what was read where it runs a trace.
pub type Simulated = (PointResult, Option<Summary>);

/// Simulates points on `workers` host threads, and hands each result on as it
/// comes; they come in no particular order. Stops at the first error of `done`.
pub fn run<E: Send>(
    points: &[Point],
    workers: usize,
    done: &mut (dyn FnMut(usize, Simulated) -> Result<(), E> + Send),
) -> Result<(), E> {
    let next = AtomicUsize::new(0);
    let state = Mutex::new((done, None));
    let lock = || state.lock().unwrap_or_else(PoisonError::into_inner);
    thread::scope(|scope| {
        for _ in 0..workers.clamp(1, points.len().max(1)) {
            scope.spawn(|| {
                while let Some(i) =
                    Some(next.fetch_add(1, Ordering::Relaxed)).filter(|i| *i < points.len())
                {
                    let result = points[i].simulate_input();
                    let mut state = lock();
                    if state.1.is_some() {
                        return;
                    }
                    if let Err(error) = (state.0)(i, result) {
                        state.1 = Some(error);
                    }
                }
            });
        }
    });
    let error = lock().1.take();
    error.map_or(Ok(()), Err)
}
