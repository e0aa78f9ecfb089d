//! `terrace reproduce dapper`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use serde::Serialize;
use terrace_core::{Bytes, Nanos};
use terrace_sim::reproduce::{DapperConfig, DapperTable, dapper};
use terrace_sim::workload::suite::{STAND_INS, StandIn};
use terrace_volume::SectorSize;
use terrace_volume_bench::files::{self, Took, Work, Workloads};
use terrace_volume_bench::{Load, Order, Plan, Row, Section, Served, Suite, Way, served};

use super::recording;
use crate::args::{one_of, whole};
use crate::failure::Failure;
use crate::output;
use crate::progress::Progress;
use crate::volume::{Place, scaling, spread};

/// Dapper: memory by demand in simulation (Figures 1-4, 10-14), its volume on this machine.
///
/// `memory` simulates the paper's machine: where many programs come to lie while a policy
/// provides slow memory near them, and how fast they are there, beside far memory; with Tables
/// 3, 4 and 6. Each claim of the paper is printed with its criterion and what came of it.
///
/// The other parts are Figures 15 and 16. The paper measures a module in the kernel on
/// emulated persistent memory, beside PMBD, which nobody can build any more. Here a volume is
/// measured by its library and through its servers, beside memory copies, libpmemblk, nbdkit,
/// qemu-nbd and a loop device; and file systems on it beside one on plain memory. The exit code
/// is 0 whatever is measured.
#[derive(Debug, clap::Args)]
pub(super) struct DapperArgs {
    /// One part alone.
    #[arg(long, value_name = "PART", value_parser = one_of(&Part::ALL, Part::name))]
    only: Option<Part>,

    /// Programs of a sixteenth of the size and fewer accesses in the part `memory`: a look in
    /// about a minute.
    #[arg(long)]
    quick: bool,

    /// Where the randomness of the part `memory` comes from; 1 if not given.
    #[arg(long, value_name = "NUMBER")]
    seed: Option<u64>,

    /// A recording (`terrace record`) of a real program in place of the algorithm that stands for a
    /// program of the suite in Figures 2, 3 and 10 to 12; PROGRAM is that one's name, such as bzip2
    /// or povray. May be given several times.
    #[arg(long, value_name = "PROGRAM=FILE")]
    trace: Vec<String>,

    /// Where the files are made: in memory (/dev/shm), unless a disk is to be measured. For the
    /// parts `volume`, `served` and `files`.
    #[arg(long, value_name = "DIRECTORY")]
    directory: Option<PathBuf>,

    /// Bytes of each file; 512MiB if not given. For the parts `volume`, `served` and `files`.
    #[arg(long, value_name = "SIZE")]
    size: Option<Bytes>,

    /// Turns of each measurement; 5 if not given. For the parts `volume`, `served` and `files`.
    #[arg(long, value_name = "COUNT", value_parser = whole(1..=1000))]
    rounds: Option<u64>,

    /// How long a turn is; 50ms if not given. For the parts `volume` and `served`.
    #[arg(long, value_name = "TIME")]
    turn: Option<Nanos>,

    /// The files that are unpacked and packed in the part `files`; /usr/include if not given.
    #[arg(long, value_name = "DIRECTORY")]
    tree: Option<PathBuf>,
}

/// The least size of the files: with less there is no volume that could be measured.
const LEAST: Bytes = Bytes::mib(1);

/// Requests that servers have at a time: one, several of one client, one of each of several.
const LOADS: [Load; 4] = [
    Load { clients: 1, depth: 1 },
    Load { clients: 1, depth: 4 },
    Load { clients: 1, depth: 16 },
    Load { clients: 4, depth: 1 },
];

/// Where the kernel's own driver for the task is measured: this machine's may not have it.
const BTT: &str =
    "BTT, the kernel's block translation table: in an emulated guest, by `make bench-btt`\n";

/// A part of the evaluation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// Tables 3, 4 and 6, Figures 1 to 4 and 10 to 14, in simulation.
    Memory,
    /// Figure 15: sizes, orders and threads.
    Volume,
    /// Figure 15 through servers: clients, and requests under way of each.
    Served,
    /// Figure 16: file systems.
    Files,
}

impl Part {
    const ALL: [Self; 4] = [Self::Memory, Self::Volume, Self::Served, Self::Files];

    const fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Volume => "volume",
            Self::Served => "served",
            Self::Files => "files",
        }
    }
}

#[derive(Serialize)]
struct Document {
    paper: &'static str,
    size: Bytes,
    rounds: u64,
    turn_ns: u64,
    memory: Option<DapperTable>,
    volume: Vec<Section>,
    served: Option<served::Report>,
    files: Vec<Took>,
    /// What of the part `files` was left out, and why.
    files_missing: Vec<String>,
}

impl DapperArgs {
    pub(super) fn execute(self, json: bool) -> Result<ExitCode, Failure> {
        self.refuse_useless()?;
        let takes = |part| self.only.is_none_or(|only| only == part);
        let directory = self.directory.clone().unwrap_or_else(|| PathBuf::from("/dev/shm"));
        let tree = self.tree.clone().unwrap_or_else(|| PathBuf::from("/usr/include"));
        let measures = self.only != Some(Part::Memory);
        for (option, path, is_used) in
            [("--directory", &directory, measures), ("--tree", &tree, takes(Part::Files))]
        {
            if is_used && !path.is_dir() {
                let name = path.display();
                return Err(Failure::bad_input(format!("{option}: {name} is no directory")));
            }
        }
        let size = self.size.unwrap_or(Bytes::mib(512));
        if size < LEAST {
            return Err(Failure::bad_input(format!("--size: the least is {LEAST}")));
        }
        let turn = self.turn.unwrap_or(Nanos::millis(50));
        if turn.0 == 0 {
            return Err(Failure::bad_input("--turn: must be longer than 0"));
        }
        let rounds = self.rounds.unwrap_or(5);
        let recorded = self.recorded()?;
        terrace_volume_bench::pmemblk::force_persistent().map_err(Failure::failed)?;
        let terrace = std::env::current_exe().map_err(Failure::failed)?;
        let plan = Plan {
            rounds: rounds as usize,
            turn: Duration::from_nanos(turn.0),
            processor_time: true,
        };
        let progress = Progress::new();
        let bar = progress.bar("reproduce dapper");
        let share = |what: &'static str| {
            let bar = bar.clone();
            move |done: usize, all: usize| bar.set(done as f64 / all as f64, what)
        };
        let wrong = |e| Failure::failed(format!("{}: {e}", directory.display()));
        let place = measures
            .then(|| Place::make(&directory, "terrace-dapper-"))
            .transpose()
            .map_err(wrong)?;
        let inside = place.as_ref().map_or(directory.as_path(), Place::path).to_owned();
        let mut document = Document {
            paper: "Dapper, 2019",
            size,
            rounds,
            turn_ns: turn.0,
            memory: None,
            volume: Vec::new(),
            served: None,
            files: Vec::new(),
            files_missing: Vec::new(),
        };
        if takes(Part::Memory) {
            let config = if self.quick { DapperConfig::quick() } else { DapperConfig::whole() };
            let seed = self.seed.unwrap_or(config.seed);
            let config = DapperConfig { seed, recorded, ..config };
            let table = dapper(&config, &mut |done, all, what| {
                bar.set(done as f64 / all as f64, what);
            });
            document.memory = Some(table.map_err(Failure::bad_input)?);
        }
        if takes(Part::Volume) {
            let suite = Suite {
                directory: inside.clone(),
                size,
                sectors: vec![SectorSize::B4096, SectorSize::B512],
                bytes: vec![512, 4096, 65_536],
                orders: vec![Order::Random, Order::Sequential],
                threads: vec![1, 2],
                plan,
                durability: None,
                like_dax: true,
                peers: true,
            };
            document.volume = suite.run(&share("volume")).map_err(wrong)?;
        }
        if takes(Part::Served) {
            let served = Served {
                directory: inside.clone(),
                size,
                bytes: vec![4096, 65_536],
                orders: vec![Order::Random, Order::Sequential],
                loads: LOADS.to_vec(),
                plan: Plan { processor_time: false, ..plan },
                terrace: terrace.clone(),
                peers: true,
            };
            document.served = Some(served.run(&share("servers")).map_err(wrong)?);
        }
        if takes(Part::Files) {
            let files = Workloads {
                directory: inside.clone(),
                size,
                tree: tree.clone(),
                rounds: plan.rounds,
                terrace,
            };
            let files::Report { rows, missing } =
                files.run(&share("file systems")).map_err(wrong)?;
            (document.files, document.files_missing) = (rows, missing);
        }
        bar.finish();
        let text =
            if json { output::json("terrace.reproduce", &document)? } else { render(&document) };
        output::print(&text)?;
        Ok(ExitCode::SUCCESS)
    }

    /// Refuses options of parts that are left out.
    fn refuse_useless(&self) -> Result<(), Failure> {
        use Part::{Files, Memory, Served, Volume};
        let Some(only) = self.only else { return Ok(()) };
        let options: [(&str, bool, &[Part]); 8] = [
            ("--quick", self.quick, &[Memory]),
            ("--seed", self.seed.is_some(), &[Memory]),
            ("--trace", !self.trace.is_empty(), &[Memory]),
            ("--directory", self.directory.is_some(), &[Volume, Served, Files]),
            ("--size", self.size.is_some(), &[Volume, Served, Files]),
            ("--rounds", self.rounds.is_some(), &[Volume, Served, Files]),
            ("--turn", self.turn.is_some(), &[Volume, Served]),
            ("--tree", self.tree.is_some(), &[Files]),
        ];
        for (option, given, parts) in options {
            if given && !parts.contains(&only) {
                let names: Vec<_> = parts.iter().map(|part| format!("`{}`", part.name())).collect();
                let (s, names) = match &names[..] {
                    [one] => ("", one.clone()),
                    [all @ .., last] => ("s", format!("{} and {last}", all.join(", "))),
                    [] => ("s", String::new()),
                };
                let message = format!("{option}: for the part{s} {names} only");
                return Err(Failure::bad_input(message));
            }
        }
        Ok(())
    }

    /// The recordings, each in place of a program of the suite.
    fn recorded(&self) -> Result<Vec<(&'static str, PathBuf)>, Failure> {
        let mut recorded: Vec<(&'static str, PathBuf)> = Vec::new();
        for text in &self.trace {
            let (name, path) = recording(text)?;
            let bad = |why: String| Failure::bad_input(format!("--trace: {why}"));
            let one = StandIn::named(&name).ok_or_else(|| {
                let names = STAND_INS.map(|one| one.program).join(", ");
                bad(format!("`{name}` is none of {names}"))
            })?;
            if recorded.iter().any(|(other, _)| *other == one.program) {
                return Err(bad(format!("`{name}` is given twice")));
            }
            recorded.push((one.program, path));
        }
        Ok(recorded)
    }
}

fn render(document: &Document) -> String {
    let mut text = String::new();
    if let Some(memory) = &document.memory {
        text += &format!("{memory}\n");
    }
    for section in &document.volume {
        text += &format!(
            "Figure 15, sectors of {} B: GB for each second of a processor, and ratios\n",
            section.sector
        );
        text += &figure_15(&section.rows);
        let scaled = by_clock(&section.rows);
        if !scaled.is_empty() {
            text += "the same by the clock, GB/s of all threads, and how many times one thread's\n";
            text += &output::table(CLOCKED, &scaled);
        }
        for missing in &section.missing {
            text += &format!("left out: {missing}\n");
        }
        text += "\n";
    }
    if !document.volume.is_empty() {
        text += "paper: 16.3 GB/s read and 11.4 GB/s written on its server, \
                 slightly more than PMBD\n\n";
    }
    if let Some(served) = &document.served {
        text += "Figure 15 through servers: the median of a request in µs; depth: requests of each \
                 client that are under way at a time\n";
        text += &servers(&served.rows);
        for missing in &served.missing {
            text += &format!("left out: {missing}\n");
        }
        text += "\n";
    }
    if !document.files.is_empty() {
        text += "Figure 16: ext4 on a loop device, seconds\n";
        text += &figure_16(&document.files);
        text += "paper: how much less time Dapper takes than PMBD, on F2FS\n";
    }
    if !document.volume.is_empty() || !document.files.is_empty() {
        text += BTT;
    }
    for missing in &document.files_missing {
        text += &format!("left out: {missing}\n");
    }
    text
}

fn order(row: &Row) -> String {
    let order = match row.job.order {
        Order::Random => "random",
        Order::Sequential => "sequential",
    };
    let way = match row.job.way {
        Way::Read => "read",
        Way::Write => "write",
    };
    format!("{} B, {order} {way}, {}", row.job.bytes, row.job.threads)
}

fn figure_15(rows: &[Row]) -> String {
    let mut lines = Vec::new();
    for jobs in rows.chunk_by(|a, b| a.job == b.job) {
        let rate = |name: &str| {
            let row = jobs.iter().find(|row| row.target.starts_with(name))?;
            Some(row.per_second.median * row.job.bytes as f64 / 1e9)
        };
        let digits = |value: Option<f64>| value.map_or("-".into(), |value| format!("{value:.2}"));
        let flush = rate("volume, durable at flush");
        // In a very short turn the peer may have done nothing.
        let over = |peer: Option<f64>| {
            let peer = peer.filter(|&peer| peer > 0.0);
            flush.zip(peer).map(|(ours, peer)| ours / peer)
        };
        lines.push([
            order(&jobs[0]),
            digits(rate("memcpy")),
            digits(rate("libpmemblk")),
            digits(rate("volume, durable on return")),
            digits(flush),
            digits(over(rate("memcpy"))),
            digits(over(rate("libpmemblk"))),
        ]);
    }
    let head = [
        "size, order, threads",
        "memcpy",
        "libpmemblk",
        "volume, each durable",
        "volume",
        "of memcpy",
        "of libpmemblk",
    ];
    output::table(head, &lines)
}

fn servers(rows: &[Row]) -> String {
    let mut lines = Vec::new();
    for row in rows {
        let kit = rows.iter().find(|peer| peer.job == row.job && peer.target.contains("nbdkit"));
        let ratio = row.p50_us.zip(kit.and_then(|kit| kit.p50_us));
        let faster = kit.map(|kit| row.per_second.median / kit.per_second.median);
        lines.push([
            format!("{}, {}", order(row), row.job.depth),
            row.target.clone(),
            row.p50_us.map_or("-".into(), |time| spread(time, 1.0, 1)),
            ratio.map_or("-".into(), |(one, kit)| format!("{:.2}", one.median / kit.median)),
            spread(row.per_second, 1e-3, 1),
            faster.map_or("-".into(), |ratio| format!("{ratio:.2}")),
        ]);
    }
    let head = [
        "size, order, clients, depth",
        "server",
        "p50",
        "of nbdkit",
        "thousands/s",
        "rate of nbdkit",
    ];
    output::table(head, &lines)
}

/// The head of the table of [`by_clock`].
const CLOCKED: [&str; 5] =
    ["size, order, threads", "memcpy", "libpmemblk", "volume, each durable", "volume"];

/// Rates of several threads by the clock, beside those of one.
fn by_clock(rows: &[Row]) -> Vec<[String; 5]> {
    let mut lines = Vec::new();
    for jobs in rows.chunk_by(|a, b| a.job == b.job).filter(|jobs| jobs[0].job.threads > 1) {
        let cell = |name: &str| {
            let row = jobs.iter().find(|row| row.target.starts_with(name));
            let told = row.and_then(|row| {
                let rate = row.per_second_by_clock.median * row.job.bytes as f64 / 1e9;
                Some(format!("{rate:.2} ({:.2})", scaling(row, rows)?))
            });
            told.unwrap_or("-".into())
        };
        lines.push([
            order(&jobs[0]),
            cell("memcpy"),
            cell("libpmemblk"),
            cell("volume, durable on return"),
            cell("volume, durable at flush"),
        ]);
    }
    lines
}

fn figure_16(rows: &[Took]) -> String {
    let mut lines = Vec::new();
    for works in rows.chunk_by(|a, b| a.work == b.work) {
        let (name, paper) = match works[0].work {
            Work::Untar => ("untar", "11.9 % less"),
            Work::Tar => ("tar", "5.8 % less"),
            Work::Orders => ("orders (for tpcc)", "8.3 % less"),
        };
        let ours = works[0].seconds.median;
        for took in works {
            lines.push([
                name.to_owned(),
                took.device.clone(),
                spread(took.seconds, 1.0, 3),
                format!("{:.2}", ours / took.seconds.median),
                less(ours, took.seconds.median),
                paper.to_owned(),
            ]);
        }
    }
    let head = ["work", "device", "seconds", "volume's time of it", "volume takes", "paper"];
    output::table(head, &lines)
}

/// By how much a time differs from another one, as the paper says it.
fn less(time: f64, other: f64) -> String {
    let share = (1.0 - time / other) * 100.0;
    format!("{:.1} % {}", share.abs(), if share < 0.0 { "more" } else { "less" })
}

#[cfg(test)]
mod tests {
    use terrace_volume_bench::{Job, Spread};

    use super::*;

    fn exactly(value: f64) -> Spread {
        Spread { median: value, low: value, high: value }
    }

    fn row(target: &str, threads: usize, depth: usize, by_clock: f64) -> Row {
        let (way, order) = (Way::Read, Order::Random);
        let job = Job { way, order, bytes: 1000, threads, depth };
        let (per_second, per_second_by_clock) = (exactly(5e6), exactly(by_clock));
        let p50_us = Some(exactly(2.0));
        Row { target: target.into(), job, per_second, per_second_by_clock, p50_us }
    }

    /// Times of processors that are added up do not show whether threads disturb each other.
    #[test]
    fn several_threads_are_told_by_the_clock_beside_one() {
        let flush = "volume, durable at flush";
        let rows = [row("memcpy", 1, 1, 8e6), row(flush, 1, 1, 2e6), row(flush, 2, 1, 3e6)];
        let lines = by_clock(&rows);
        assert_eq!(lines.len(), 1, "one thread is beside itself");
        assert_eq!(lines[0].join("; "), "1000 B, random read, 2; -; -; -; 3.00 (1.50)");
    }

    /// One request at a time says nothing of a server that answers several at once.
    #[test]
    fn servers_are_told_by_their_clients_and_the_depth_of_each() {
        let text = servers(&[row("nbdkit memory", 4, 1, 1e6), row("nbdkit memory", 1, 16, 1e6)]);
        assert!(text.contains("1000 B, random read, 4, 1 "), "{text}");
        assert!(text.contains("1000 B, random read, 1, 16 "), "{text}");
        let mut depths = LOADS.map(|load| (load.clients, load.depth));
        depths.sort_unstable();
        assert_eq!(depths, [(1, 1), (1, 4), (1, 16), (4, 1)]);
    }

    #[test]
    fn times_of_figure_16_stand_beside_the_papers_as_it_says_them() {
        let took = |device: &str, seconds| Took {
            work: Work::Tar,
            device: device.into(),
            seconds: exactly(seconds),
        };
        let rows = [took("volume as FUSE file", 3.0), took("raw", 4.0), took("loop", 2.0)];
        let text = figure_16(&rows);
        let ends = |end: &str| text.lines().any(|line| line.ends_with(end));
        assert!(ends("25.0 % less  5.8 % less"), "{text}");
        assert!(ends("50.0 % more  5.8 % less"), "{text}");
    }

    #[test]
    fn where_btt_is_measured_is_said() {
        let took = Took { work: Work::Tar, device: "raw".into(), seconds: exactly(1.0) };
        let document = Document {
            paper: "",
            size: Bytes(1),
            rounds: 1,
            turn_ns: 1,
            memory: None,
            volume: Vec::new(),
            served: None,
            files: vec![took],
            files_missing: Vec::new(),
        };
        assert!(render(&document).contains("`make bench-btt`"));
    }
}
