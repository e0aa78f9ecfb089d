//! A volume, used by the library.

use std::io;

use terrace_volume::{Lane, Pm, Volume};

use crate::target::{Client, Target};

/// A mounted volume. With `durable`, each write is durable on return; else after a flush.
#[derive(Debug)]
pub struct Ours<'v, P: Pm> {
    volume: &'v Volume<P>,
    durable: bool,
}

impl<'v, P: Pm> Ours<'v, P> {
    /// Measures this volume.
    pub fn new(volume: &'v Volume<P>, durable: bool) -> Self {
        Self { volume, durable }
    }
}

impl<P: Pm> Target for Ours<'_, P> {
    fn name(&self) -> String {
        if self.durable { "volume, durable on return" } else { "volume, durable at flush" }.into()
    }
    fn capacity(&self) -> u64 {
        self.volume.capacity().0
    }
    fn client(&self) -> io::Result<Box<dyn Client + '_>> {
        let lane = self.volume.lane().map_err(io::Error::other)?;
        // A division would take a tenth of a small read, and its peers have none.
        let shift = self.volume.sector_size().bytes().trailing_zeros();
        Ok(Box::new(Use { lane, shift, durable: self.durable }))
    }
}

struct Use<'v, P: Pm> {
    lane: Lane<'v, P>,
    /// Bits of a position inside of a sector.
    shift: u32,
    durable: bool,
}

impl<P: Pm> Client for Use<'_, P> {
    fn read(&mut self, at: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.lane.volume().read(at >> self.shift, bytes).map_err(io::Error::other)
    }
    fn write(&mut self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.lane.write(at >> self.shift, bytes, self.durable).map_err(io::Error::other)
    }
    fn flush(&mut self) -> io::Result<()> {
        self.lane.flush().map_err(io::Error::other)
    }
}
