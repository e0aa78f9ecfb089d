//! Something that takes reads and writes, and one thread's use of it.

use std::io;

use crate::measure::Way;

/// What is measured.
pub trait Target: Sync {
    /// What it is called in tables.
    fn name(&self) -> String;

    /// Bytes that can be read and written.
    fn capacity(&self) -> u64;

    /// Whether a thread can have several requests under way.
    fn has_queues(&self) -> bool {
        false
    }

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

    /// Its queue, if it can have several requests under way.
    fn queue(&mut self) -> Option<&mut dyn Queue> {
        None
    }
}

/// One thread's requests that are under way at the same time.
pub trait Queue {
    /// Sends a request; its reply has the same number. What is to be read is as long as `bytes`.
    fn send(&mut self, number: u64, way: Way, at: u64, bytes: &[u8]) -> io::Result<()>;

    /// Waits for a reply, whichever comes first; its number. All requests that are under way are of
    /// this kind and as long as `bytes`.
    fn receive(&mut self, way: Way, bytes: &mut [u8]) -> io::Result<u64>;
}
