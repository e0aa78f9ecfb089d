//! Programs that touch much memory for the first time, and what is seen of that from outside.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::{Outcome, Place, Program, Scale, in_path, redis};
use crate::histogram::Latencies;
use crate::interrupt;
use crate::system::Ready;

/// A program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Touching {
    /// redis-server: an empty one is filled with new keys, one request at a time.
    Redis,
    /// GNU sort with two threads.
    Sort,
    /// python3: passes over an array of numbers, by the standard library.
    Python,
    /// The same by numpy, which makes arrays on its way.
    Numpy,
    /// xz as hard as it can, with one thread: its tables are far larger than what it compresses.
    Xz,
    /// sqlite3: a table with an index in memory, filled, looked up, joined.
    Sqlite,
    /// `PageRank` on a Kronecker graph that is read from a file.
    Pagerank,
    /// Breadth-first searches through the same graph.
    Bfs,
}

/// The server of [`Touching::Redis`].
const REDIS: &str = "redis-server";

impl Touching {
    /// What a table calls it.
    pub const fn name(self) -> &'static str {
        match self.of_set() {
            Some(program) => program.name(),
            None if matches!(self, Self::Xz) => "xz",
            None => "redis",
        }
    }

    /// What it is among the programs that run in a part of their memory.
    const fn of_set(self) -> Option<Program> {
        match self {
            Self::Redis | Self::Xz => None,
            Self::Sort => Some(Program::Sort),
            Self::Python => Some(Program::Python),
            Self::Numpy => Some(Program::Numpy),
            Self::Sqlite => Some(Program::Sqlite),
            Self::Pagerank => Some(Program::Pagerank),
            Self::Bfs => Some(Program::Bfs),
        }
    }

    /// What has to be installed and is not.
    pub fn lacks(self) -> Option<&'static str> {
        let lacks = |program: &'static str| (!in_path(program)).then_some(program);
        match self.of_set() {
            Some(program) => program.lacks(Path::new("")),
            None if self == Self::Xz => lacks("xz"),
            None => lacks(REDIS),
        }
    }

    /// Makes the inputs that are missing.
    pub fn prepare(self, place: &Place) -> io::Result<()> {
        match self.of_set() {
            Some(program) => program.prepare(place),
            None if self == Self::Xz => place.piece(),
            None => Ok(()),
        }
    }

    /// Runs it under a system; and how long its requests took, if it is a server.
    pub fn run(self, place: &Place, system: &Ready) -> io::Result<(Outcome, Option<Latencies>)> {
        if self == Self::Redis {
            let (outcome, latencies) = redis::fill(place, system, Path::new(REDIS), 1, None)?;
            return Ok((outcome, Some(latencies)));
        }
        let outcome = place.outcome(&mut self.command(place, system)?, self.name())?;
        Ok((outcome, None))
    }

    /// Runs it under a recorder, and tells it to end after some time. How long that took, and whether
    /// it had to be told.
    pub fn record(
        self,
        place: &Place,
        recorder: &Ready,
        after: Duration,
    ) -> io::Result<(Duration, bool)> {
        let began = Instant::now();
        if self == Self::Redis {
            let server = Path::new(REDIS);
            let (_, latencies) =
                redis::fill(place, recorder, server, redis::DEPTH, Some(began + after))?;
            return Ok((began.elapsed(), latencies.count < redis::records(place.scale)));
        }
        let mut command = self.command(place, recorder)?;
        let (time, finished) = place.finish(&mut command, |running| {
            running.bound(place.limit);
            running.cut(after);
        })?;
        // What ends because it was told to does not end well.
        let is_cut = time >= after;
        if !finished.status.success() && !is_cut {
            return Err(io::Error::other(format!("{}: {}", finished.status, place.last_words())));
        }
        Ok((time, is_cut))
    }

    fn command(self, place: &Place, system: &Ready) -> io::Result<Command> {
        if let Some(program) = self.of_set() {
            return program.command(place, system);
        }
        let mut command = system.command(Path::new("xz"));
        command.args(["-9", "-T1", "-k", "-c"]).arg(place.directory.join(PIECE));
        command.current_dir(place.fresh()?);
        Ok(command)
    }
}

/// What xz compresses.
const PIECE: &str = "piece";

impl Place {
    /// The first lines of what is sorted.
    fn piece(&self) -> io::Result<()> {
        interrupt::check()?;
        let path = self.directory.join(PIECE);
        if path.exists() {
            return Ok(());
        }
        Program::Sort.prepare(self)?;
        let bytes = if self.scale == Scale::Full { 4 << 20 } else { 400 << 10 };
        let mut text = File::open(self.directory.join("text"))?.take(bytes);
        io::copy(&mut text, &mut File::create(path)?)?;
        Ok(())
    }
}
