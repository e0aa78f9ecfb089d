//! `terrace volume bench`.

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use serde::Serialize;
use terrace_core::{Bytes, Nanos};
use terrace_volume::{Durability, SectorSize, VolumeError};
use terrace_volume_bench::{
    Job, Load, Order, Plan, Row, Section, Served, Spread, Suite, Way, served,
};

use crate::failure::Failure;
use crate::output;
use crate::progress::Progress;

use super::create::{SECTORS, sector_name};
use super::{Place, durability, failure};

/// Measure volumes, beside memory copies and other block devices if asked to.
///
/// Files are made in a directory and removed at the end. Whatever is compared has its
/// turns in the same process, one after the other, round after round: each figure is the
/// median of the rounds, with the least and the largest.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: terrace volume bench --peers --served /dev/shm")]
pub(crate) struct Args {
    /// Where the files are made: on the medium that is measured.
    directory: PathBuf,

    /// Bytes of each file.
    #[arg(long, value_name = "SIZE", default_value = "512MiB")]
    size: Bytes,

    /// Bytes of a sector; without it, both sizes.
    #[arg(long, value_name = "BYTES", value_parser = crate::args::one_of(&SECTORS, sector_name))]
    sector: Option<SectorSize>,

    /// Threads at the same time.
    #[arg(long, value_name = "COUNTS", value_delimiter = ',', default_value = "1,2",
          value_parser = clap::value_parser!(u32).range(1..=64))]
    threads: Vec<u32>,

    /// Turns of each.
    #[arg(long, value_name = "COUNT", default_value_t = 7,
          value_parser = crate::args::whole(1..=1000))]
    rounds: u64,

    /// How long a turn is.
    #[arg(long, value_name = "TIME", default_value = "100ms")]
    turn: Nanos,

    /// What has to survive what; without it, the best that the medium gives.
    #[arg(long, value_name = "WHAT", value_parser = durability())]
    durability: Option<Durability>,

    /// Write lines back and fence as on DAX, on files that are none: for what that costs.
    #[arg(long, conflicts_with = "durability")]
    like_dax: bool,

    /// Beside them, memory copies and libpmemblk; with --served, nbdkit, qemu-nbd and a
    /// loop device. What is not installed is named and left out.
    #[arg(long)]
    peers: bool,

    /// Also one request at a time through servers: NBD, and the file (FUSE, root).
    #[arg(long)]
    served: bool,

    /// Requests of the one client that are under way at a time, with --served; 1 if not given. With
    /// more than one only servers of network block devices are measured.
    #[arg(long, value_name = "COUNTS", value_delimiter = ',', requires = "served",
          value_parser = clap::value_parser!(u32).range(1..=64))]
    depth: Vec<u32>,
}

/// What was measured, as a document.
#[derive(Serialize)]
struct Measured {
    directory: PathBuf,
    size: Bytes,
    rounds: u64,
    turn_ns: u64,
    library: Vec<Section>,
    served: Option<served::Report>,
}

impl Args {
    pub(crate) fn execute(self, json: bool) -> Result<ExitCode, Failure> {
        if !self.directory.is_dir() {
            let name = self.directory.display();
            return Err(Failure::bad_input(format!("{name} is no directory")));
        }
        if self.turn.0 == 0 {
            return Err(Failure::bad_input("--turn: must be longer than 0"));
        }
        if self.peers {
            terrace_volume_bench::pmemblk::force_persistent()
                .map_err(|e| Failure::failed(format!("--peers: {e}")))?;
        }
        let made = Place::make(&self.directory, "terrace-volume-");
        let made =
            made.map_err(|e| Failure::bad_input(format!("{}: {e}", self.directory.display())))?;
        let turn = Duration::from_nanos(self.turn.0);
        let plan = Plan { rounds: self.rounds as usize, turn, processor_time: true };
        let suite = Suite {
            directory: made.path().to_owned(),
            size: self.size,
            sectors: self.sector.map_or(SECTORS.to_vec(), |one| vec![one]),
            bytes: Vec::new(),
            orders: vec![Order::Random],
            threads: self.threads.iter().map(|count| *count as usize).collect(),
            plan,
            durability: self.durability,
            like_dax: self.like_dax,
            peers: self.peers,
        };
        let progress = Progress::new();
        let bar = progress.bar("volume bench");
        let step = |done: usize, all: usize| {
            bar.set(done as f64 / all as f64, "library");
        };
        let wrong = |e: io::Error| {
            let inner = e.get_ref().and_then(|inner| inner.downcast_ref::<VolumeError>());
            match inner {
                Some(VolumeError::BadGeometry(_)) => Failure::bad_input(format!("--size: {e}")),
                Some(inner) => failure(&self.directory, inner),
                None => Failure::failed(format!("{}: {e}", self.directory.display())),
            }
        };
        let library = suite.run(&step).map_err(wrong)?;
        let served = if self.served {
            let terrace = std::env::current_exe().map_err(|e| Failure::failed(e.to_string()))?;
            let served = Served {
                directory: made.path().to_owned(),
                size: self.size,
                bytes: vec![4096],
                orders: vec![Order::Random],
                loads: self.loads(),
                plan: Plan { processor_time: false, ..plan },
                terrace,
                peers: self.peers,
            };
            let step = |done: usize, all: usize| bar.set(done as f64 / all as f64, "servers");
            Some(served.run(&step).map_err(wrong)?)
        } else {
            None
        };
        bar.finish();
        let measured = Measured {
            directory: self.directory,
            size: self.size,
            rounds: self.rounds,
            turn_ns: self.turn.0,
            library,
            served,
        };
        let text =
            if json { output::json("terrace.volume.bench", &measured)? } else { render(&measured) };
        output::print(&text)?;
        Ok(ExitCode::SUCCESS)
    }

    /// Clients and their requests under way, for servers.
    fn loads(&self) -> Vec<Load> {
        let depths = if self.depth.is_empty() { &[1][..] } else { &self.depth };
        depths.iter().map(|depth| Load { clients: 1, depth: *depth as usize }).collect()
    }
}

fn render(measured: &Measured) -> String {
    let mut text = String::new();
    for section in &measured.library {
        text += &format!(
            "sectors of {} B, one each time, any order (durability: {})\n",
            section.sector, section.durability
        );
        text += &throughput(&section.rows);
        if let Some(mount) = section.mount_ns_per_sector {
            text += &format!("mount: {} ns a sector\n", spread(mount, 1.0, 1));
        }
        text += &missing(&section.missing);
        text += "\n";
    }
    if let Some(served) = &measured.served {
        text += "4096 B, any order, one client; depth: its requests under way at a time\n";
        text += &latency(&served.rows);
        text += &missing(&served.missing);
    }
    text
}

/// Operations for each second of processor time, and the ratio to libpmemblk; and by the clock,
/// with the ratio to one thread: times of a processor that are added up do not show whether threads
/// disturb each other.
fn throughput(rows: &[Row]) -> String {
    let line = |row: &Row| {
        let peer = rows.iter().find(|peer| peer.job == row.job && peer.target == "libpmemblk");
        [
            row.target.clone(),
            way(row.job.way).to_owned(),
            row.job.threads.to_string(),
            spread(row.per_second, 1e-3, 0),
            format!("{:.2}", row.per_second.median * row.job.bytes as f64 / 1e9),
            peer.map_or("-".into(), |peer| {
                format!("{:.2}", row.per_second.median / peer.per_second.median)
            }),
            spread(row.per_second_by_clock, 1e-3, 0),
            scaling(row, rows).map_or("-".into(), |ratio| format!("{ratio:.2}")),
        ]
    };
    let lines: Vec<_> = rows.iter().map(line).collect();
    let head = [
        "what",
        "way",
        "threads",
        "thousands/s",
        "GB/s",
        "of libpmemblk",
        "by the clock",
        "of one thread",
    ];
    output::table(head, &lines)
}

/// By the clock, how many times as much as one thread several do; `None` if there is no row of one.
pub(crate) fn scaling(row: &Row, rows: &[Row]) -> Option<f64> {
    let job = Job { threads: 1, ..row.job };
    let is_one = |other: &&Row| other.target == row.target && other.job == job;
    let one = rows.iter().find(is_one).filter(|_| row.job.threads > 1)?;
    Some(row.per_second_by_clock.median / one.per_second_by_clock.median)
}

fn latency(rows: &[Row]) -> String {
    let line = |row: &Row| {
        let peer = rows.iter().find(|peer| peer.job == row.job && peer.target.contains("nbdkit"));
        let ratio = row.p50_us.zip(peer.and_then(|peer| peer.p50_us));
        [
            row.target.clone(),
            way(row.job.way).to_owned(),
            row.job.depth.to_string(),
            row.p50_us.map_or("-".into(), |time| spread(time, 1.0, 1)),
            ratio.map_or("-".into(), |(ours, peer)| format!("{:.2}", ours.median / peer.median)),
            spread(row.per_second, 1e-3, 1),
            peer.map_or("-".into(), |peer| {
                format!("{:.2}", row.per_second.median / peer.per_second.median)
            }),
        ]
    };
    let lines: Vec<_> = rows.iter().map(line).collect();
    let head = ["what", "way", "depth", "p50 µs", "of nbdkit", "thousands/s", "times nbdkit's"];
    output::table(head, &lines)
}

fn missing(missing: &[String]) -> String {
    missing.iter().fold(String::new(), |text, what| text + "left out: " + what + "\n")
}

fn way(way: Way) -> &'static str {
    match way {
        Way::Read => "read",
        Way::Write => "write",
    }
}

/// `2649 (2626 to 2809)`.
pub(crate) fn spread(spread: Spread, times: f64, digits: usize) -> String {
    let [median, low, high] = [spread.median, spread.low, spread.high].map(|value| value * times);
    format!("{median:.digits$} ({low:.digits$} to {high:.digits$})")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(target: &str, threads: usize, by_clock: f64) -> Row {
        let spread = |value| Spread { median: value, low: value, high: value };
        let (way, order) = (Way::Read, Order::Random);
        let job = Job { way, order, bytes: 512, threads, depth: 1 };
        let (per_second, per_second_by_clock) = (spread(9e6), spread(by_clock));
        Row { target: target.into(), job, per_second, per_second_by_clock, p50_us: None }
    }

    /// Two threads on one processor do no more than one, whatever each does in its own time.
    #[test]
    fn threads_are_compared_by_the_clock_with_one_of_the_same_kind() {
        let rows = [row("a", 1, 2e6), row("b", 1, 1e6), row("a", 2, 3e6), row("c", 2, 3e6)];
        let scaled: Vec<_> = rows.iter().map(|row| scaling(row, &rows)).collect();
        assert_eq!(scaled, [None, None, Some(1.5), None]);
        let text = throughput(&rows);
        let is_told = |line: &str| line.contains("3000 (3000 to 3000)") && line.ends_with(" 1.50");
        assert!(text.lines().any(is_told), "{text}");
    }
}
