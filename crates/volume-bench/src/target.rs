//! Something that takes reads and writes, and one thread's use of it.

use std::io;

/// What is measured.
pub trait Target: Sync {
    /// What it is called in tables.
    fn name(&self) -> String;

    /// Bytes that can be read and written.
    fn capacity(&self) -> u64;

    /// A thread's use of it.
    fn client(&self) -> io::Result<Box<dyn Client + '_>>;
}

/// One thread's use of a target. Positions and lengths are whole sectors.
pub trait Client {
    /// Reads bytes from a position.
    fn read(&mut self, at: u64, bytes: &mut [u8]) -> io::Result<()>;

    /// Writes bytes to a position; as durable on return as the target's name says.
    fn write(&mut self, at: u64, bytes: &[u8]) -> io::Result<()>;

    /// Makes everything durable. Called once at the end of each turn, and timed.
    fn flush(&mut self) -> io::Result<()>;
}
