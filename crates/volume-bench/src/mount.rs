//! How long a mount takes: the map is read once, and the free blocks are derived from it.

use std::time::{Duration, Instant};

use terrace_clocks::thread_time;
use terrace_volume::{Mount, Pm, Result, Volume};

use crate::measure::Spread;

/// How long it is mounted before anything is timed: a processor that has waited for other threads
/// is slow at first, for some milliseconds.
const WARM: Duration = Duration::from_millis(50);

/// Mounts a medium several times; nanoseconds of the processor's time for each sector of
/// the volume.
pub fn mounts<P: Pm>(mut medium: P, rounds: usize) -> Result<(Option<Spread>, P)> {
    let mut times = Vec::new();
    let begun = Instant::now();
    let mut left = rounds;
    while left > 0 {
        let is_warm = begun.elapsed() >= WARM;
        let start = thread_time();
        let volume = Volume::mount(medium, Mount::default())?;
        let took = thread_time().saturating_sub(start);
        if is_warm {
            times.push(took.as_nanos() as f64 / volume.sectors() as f64);
            left -= 1;
        }
        medium = volume.into_medium();
    }
    Ok((Spread::of(times), medium))
}
