//! How long a mount takes: the map is read once, and the free blocks are derived from it.

use terrace_volume::{Mount, Pm, Result, Volume};

use crate::measure::{Spread, processor_time};

/// Mounts a medium several times; nanoseconds of the processor's time for each sector of
/// the volume.
pub fn mounts<P: Pm>(mut medium: P, rounds: usize) -> Result<(Option<Spread>, P)> {
    let mut times = Vec::new();
    for _ in 0..rounds {
        let start = processor_time();
        let volume = Volume::mount(medium, Mount::default())?;
        times.push(
            processor_time().saturating_sub(start).as_nanos() as f64 / volume.sectors() as f64,
        );
        medium = volume.into_medium();
    }
    Ok((Spread::of(times), medium))
}
