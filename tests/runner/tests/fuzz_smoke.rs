//! The fuzz targets on stable and in seconds: mutated samples of good inputs go
//! through the same functions that `fuzz/` runs for hours. The mutations come
//! from a seed, so a failure is found again; `FUZZ_ITERATIONS` asks for more.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Command, Stdio};

use terrace_core::{Bytes, EventRef, Nanos, Region, Telemetry};
use terrace_policy::EventWriter;
use terrace_policy::packed::Packer;
use terrace_sim::exact::{Batch, Source, Stream, StreamKind};
use terrace_sim::kernel::recorded::RecordedFile;
use terrace_sim::kernel::{Advice, Call};
use terrace_sim::sweep::{Grid, Journal, METRICS, Metric};
use terrace_sim::trace::import::export_champsim;
use terrace_sim::trace::{IoRecord, TraceHeader, TraceWriter};
use terrace_tests::harness::number;
use terrace_tests::inputs::{TARGETS, Target};
use terrace_tests::programs::data::Numbers;
use terrace_tests::terrace;
use terrace_volume::superblock::new_uuid;
use terrace_volume::{SectorSize, Superblock};

/// Pieces that the grammars are made of.
const TOKENS: [&str; 28] = [
    "[",
    "]",
    "{",
    "}",
    "=",
    "\"",
    "\n",
    ",",
    ":",
    ";",
    "%",
    "%3B",
    "value",
    "source",
    "schema",
    "null",
    "-1",
    "0",
    "18446744073709551616",
    "1e999",
    "NaN",
    "0.1",
    "GiB",
    "ns",
    "µ",
    "\u{0}",
    "[[tier]]",
    "tick",
];

/// Changes an input at a few random places.
fn mutate(numbers: &mut Numbers, seed: &[u8]) -> Vec<u8> {
    let mut input = seed.to_vec();
    for _ in 0..=numbers.below(4) {
        let at = numbers.below(input.len() as u64 + 1) as usize;
        match numbers.below(7) {
            0 => input.truncate(at),
            1 if at < input.len() => input[at] = numbers.below(256) as u8,
            2 if at < input.len() => input[at] ^= 1 << numbers.below(8),
            3 => {
                let token = TOKENS[numbers.below(TOKENS.len() as u64) as usize];
                input.splice(at..at, token.bytes());
            }
            4 => {
                let end = (at + numbers.below(20) as usize).min(input.len());
                input.drain(at..end);
            }
            5 => {
                let end = (at + numbers.below(60) as usize).min(input.len());
                let piece = input[at..end].to_vec();
                let to = numbers.below(input.len() as u64 + 1) as usize;
                input.splice(to..to, piece);
            }
            _ => {
                let token = TOKENS[numbers.below(TOKENS.len() as u64) as usize];
                let end = (at + token.len()).min(input.len());
                input.splice(at..end, token.bytes());
            }
        }
    }
    input
}

/// Good inputs of a target, to start from.
fn seeds(target: &str) -> Vec<Vec<u8>> {
    match target {
        "units" => ["256MiB", "1.5 GiB", "10ms", "17.8GB/s", "2.2GHz", "8K/s", "0", "µs", "1_000B"]
            .map(|text| text.as_bytes().to_vec())
            .to_vec(),
        "machine" => machine_files(),
        "memory" => files_of("machines/memory"),
        "program" => vec![
            b"# a comment\nmap 0 2\nstore 0 1\nprotect 0 1 r\nprotect 0 1 rw\nmove 0 1 64\n"
                .to_vec(),
            b"register 0 3 99\nfile 2 7\ncheckpoint\nunmap 0 2\n".to_vec(),
        ],
        "events" => vec![recording()],
        "packed_events" => vec![packed()],
        "run_config" => vec![
            b"fast=268435456;policy=hemem;economist=enforce;dir=/run/x;min-region=65536;record=0"
                .to_vec(),
            b"fast=1048576;policy=first-touch;economist=off;dir=/a%3Bb%25;spill=/s;store-limit=1"
                .to_vec(),
        ],
        "ladder" => ["dram-cxl-swap", "dram-compressed-file", "numa-compressed", "kernel"]
            .map(|name| fs::read(terrace::root().join(format!("ladders/{name}.toml"))).unwrap())
            .to_vec(),
        "perf_ring" => {
            let recorded = "crates/sampler/tests/data/page-faults.ring";
            vec![fs::read(terrace::root().join(recorded)).unwrap()]
        }
        "trace" => vec![recorded_accesses()],
        "calls" => vec![recorded_calls()],
        "io_records" => vec![io_records()],
        "foreign_trace" => foreign_traces(),
        "core_dump" => vec![terrace_dump::sample::sample().file],
        "volume" => volumes(),
        "nbd" => vec![nbd_client()],
        "profile" => {
            let of = |name| {
                let path = terrace::root().join("crates/profile/tests/golden").join(name);
                fs::read(path).unwrap()
            };
            let mut seeds = [
                "cbmm.csv",
                "cbmm.profile",
                "recorded.profile",
                "recorded-1.profile",
                "perf-stat.csv",
            ]
            .map(of)
            .to_vec();
            let costs = "mm-costs = 1\nclock = \"2GHz\"\n[machine]\nkernel = \"6.18\"\n[cycles]\n\
                         fault = 2400\nmove_page = 9000\n";
            seeds.push(costs.as_bytes().to_vec());
            seeds
        }
        "provision" => provisions(),
        "sweep" => vec![
            b"schema = 1\n[grid]\npolicy = [\"hemem\", \"2q\"]\nsize = \"8MiB\"\nseed = [1, 2]\n\
              \"cxl.read-latency\" = \"200ns\"\nfast = \"25%\"\n"
                .to_vec(),
            journal(),
        ],
        other => panic!("no seeds for {other}"),
    }
}

/// A demand, a journal, a configuration, the kernel's list of zones.
fn provisions() -> Vec<Vec<u8>> {
    let gib = |amount: u64| amount << 30;
    let mut demand =
        String::from("{\"format\":\"terrace.zoneinfo\",\"version\":1,\"block\":134217728}\n");
    for (second, used) in [(1, 1), (2, 6), (3, 7), (40, 1)] {
        demand += &format!(
            "{{\"at\":{second}000000000,\"nodes\":[{{\"node\":0,\"memory\":{{\"managed\":{},\"free\":{},\
             \"watermarks\":{{\"min\":1,\"low\":2,\"high\":3}}}}}}]}}\n",
            gib(8),
            gib(8 - used)
        );
    }
    let decisions = br#"{"format":"terrace.provision.journal","version":1}
{"at":9,"event":"started","pid":3,"policy":"resolved","dry_run":false}
{"at":9,"event":"decided","decision":{"at":3,"node":0,"free":100,"integrated":0,"change":{"integrate":128},"reason":{"short":{"threshold":188,"target":128}}},"steps":[]}
{"at":9,"event":"priced","node":0,"quote":{"stays":30,"memory":0.5,"metadata":0.1,"work":1.0,"saved":[0.0,9.5],"pays_above":3.5,"verdict":"may-pay"},"vetoed":false}
{"at":9,"event":"stopped","why":"it was told to"}
"#;
    let file = |name: &str| fs::read(terrace::root().join(name)).unwrap();
    vec![
        demand.into_bytes(),
        decisions.to_vec(),
        file("packaging/provision.toml"),
        file("crates/cli/tests/provision/01-slow-node/proc/zoneinfo"),
    ]
}

/// Records of calls, as a trace has them behind its compression; before each, its thread.
fn io_records() -> Vec<u8> {
    let file = RecordedFile { inode: Some(((8, 1), 77)), existed: true, bytes: Bytes(8192) };
    let calls = [
        Call::Open { file: 0 },
        Call::Read { file: 0, offset: 4096, bytes: 4096 },
        Call::Advise { file: 0, offset: 0, bytes: 4096, advice: Advice::DontNeed },
        Call::Map { file: 0 },
        Call::Close { file: 0 },
        Call::Unmap { file: 0 },
        Call::Socket { socket: 0 },
        Call::Send { socket: 0, bytes: 100 },
        Call::CloseSocket { socket: 0 },
        Call::Unlink { file: 0 },
    ];
    let calls = calls.iter().enumerate().map(|(at, &call)| {
        let (at, took) = (Nanos(at as u64 * 100), Nanos(50));
        IoRecord::Call { cpu: 1, at, took, call }
    });
    let mapped = IoRecord::Mapped { file: 0, start: 1 << 40, len: 8192, offset: 0, shared: true };
    let mut records: Vec<IoRecord> =
        [IoRecord::File(file), IoRecord::Socket { cookie: 9 }].into_iter().chain(calls).collect();
    records.insert(6, mapped);
    let mut bytes = Vec::new();
    for record in records {
        bytes.push(0);
        assert!(record.encode(&mut bytes));
    }
    bytes
}

/// Superblocks, each with the beginning of a map.
fn volumes() -> Vec<Vec<u8>> {
    [SectorSize::B512, SectorSize::B4096]
        .map(|sector| {
            let plan = Superblock::plan(Bytes(1 << 17), sector, 4, new_uuid()).unwrap();
            let entries = [1u64 << 63, (1 << 63) | 1, 1 << 62, 0, (1 << 63) | 2];
            let map = entries.iter().flat_map(|entry| entry.to_le_bytes());
            plan.encode().into_iter().chain(map).collect()
        })
        .to_vec()
}

/// What a client sends that negotiates, writes, reads, trims, asks for block status, and ends.
fn nbd_client() -> Vec<u8> {
    let mut sent = 3u32.to_be_bytes().to_vec();
    let context = b"\0\0\0\0\0\0\0\x01\0\0\0\x0fbase:allocation";
    for (option, data) in [(8u32, &[][..]), (10, &context[..]), (7, &[0; 6])] {
        sent.extend(b"IHAVEOPT");
        sent.extend(option.to_be_bytes());
        sent.extend((data.len() as u32).to_be_bytes());
        sent.extend(data);
    }
    for (flags, command) in [(1u16, 1u16), (0, 0), (0, 4), (2, 6), (0, 7), (0, 3), (0, 2)] {
        let length = if matches!(command, 2 | 3) { 0 } else { 1024u32 };
        sent.extend(0x2560_9513_u32.to_be_bytes());
        sent.extend(flags.to_be_bytes());
        sent.extend(command.to_be_bytes());
        sent.extend([7; 8]);
        sent.extend(0u64.to_be_bytes());
        sent.extend(length.to_be_bytes());
        sent.extend(vec![9; if command == 1 { 1024 } else { 0 }]);
    }
    sent
}

/// A trace of two chunks' worth of structure, small.
fn recorded_accesses() -> Vec<u8> {
    let header = TraceHeader { program: vec!["x".into()], ..TraceHeader::default() };
    let mut writer = TraceWriter::new(Vec::new(), &header).unwrap();
    let mut stream = Stream::new(StreamKind::Mix, 3_000, 4 << 20);
    let mut batch = Batch::default();
    while stream.next(&mut batch).unwrap() {
        writer.write(&batch).unwrap();
    }
    writer.finish().unwrap()
}

/// A sweep's journal of two points.
fn journal() -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal.jsonl");
    let mut grid = Grid::default();
    grid.set("seed", vec!["1".into(), "2".into()]).unwrap();
    let points = grid.points().unwrap();
    let mut journal = Journal::open(&path, false).unwrap();
    let figures = METRICS.iter().map(|_| Metric::Count(1)).collect();
    journal.note(&points[0], &Ok(figures)).unwrap();
    journal.note(&points[1], &Err("no room".into())).unwrap();
    fs::read(&path).unwrap()
}

fn foreign_traces() -> Vec<Vec<u8>> {
    let mut champsim = Vec::new();
    let mut stream = Stream::new(StreamKind::Chase, 40, 4 << 20);
    export_champsim(&mut stream, &mut champsim).unwrap();
    vec![
        champsim,
        b"I  04016b80,3\n L 1ffefff7f8,8\n S 1ffefff7f0,8\n M 04222c28,4\n".to_vec(),
        b"0x1FF96FC0 WRITE 160\n0x1FF96F80 READ 164\n".to_vec(),
        b"LD 0x12340\nST 4096\n".to_vec(),
        // drmemtrace: a header, a thread, an instruction, a load.
        [[25u8, 0, 0, 0, 7], [22, 0, 0, 0, 9], [10, 0, 4, 0, 64], [0, 0, 8, 0, 32]]
            .iter()
            .flat_map(|entry| entry.iter().copied().chain([0; 7]))
            .collect(),
        b"  prog 12 [000] 5.1: cpu/mem-loads/: 7ffd1234 401136\n".to_vec(),
        b"k 4 [0] 8.1: damon:damon_aggregated: target_id=9 nr_regions=2 4096-8192: 4 3\n\
          k 4 [0] 8.1: damon:damon_aggregated: target_id=9 nr_regions=2 8192-16384: 0\n"
            .to_vec(),
        b"target_id: 9\nnr_regions: 1\n1000-3000 (   8.000 KiB)           4    -1\n".to_vec(),
        br#"[{"target_id": 9, "snapshots": [{"regions": [{"start": "4,096", "end": 8192,
            "nr_accesses": {"samples": "4"}}]}]}]"#
            .to_vec(),
    ]
}

fn machine_files() -> Vec<Vec<u8>> {
    files_of("machines")
}

/// The files of a directory of the repository: good inputs.
fn files_of(directory: &str) -> Vec<Vec<u8>> {
    let mut paths: Vec<_> = fs::read_dir(terrace::root().join(directory))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_file())
        .collect();
    // The order of a directory is not that of its names; seeds must not move.
    paths.sort();
    assert!(paths.len() >= 3, "the files of {directory} are the seeds");
    paths.iter().map(|path| fs::read(path).unwrap()).collect()
}

fn recording() -> Vec<u8> {
    let mut writer = EventWriter::new(Vec::new(), "hemem").unwrap();
    let region = Region {
        id: terrace_core::RegionId(1),
        pages: 100,
        page_size: terrace_core::PageSize::Base,
        context: terrace_core::ContextId::ANONYMOUS,
    };
    writer.write(EventRef::Alloc { region: &region }).unwrap();
    for tick in 1..20 {
        let telemetry = Telemetry { now: Nanos::millis(tick * 10), ..Telemetry::default() };
        writer.write(EventRef::Tick { telemetry: &telemetry }).unwrap();
    }
    writer.finish().unwrap()
}

/// A region that is walked over twice, packed.
fn packed() -> Vec<u8> {
    let mut packer = Packer::new();
    let mut stream = Vec::new();
    let mut pack = |event: EventRef<'_>| {
        packer.pack(event, |item, _| {
            stream.extend_from_slice(item);
            true
        });
    };
    let region = Region {
        id: terrace_core::RegionId(1),
        pages: 200,
        page_size: terrace_core::PageSize::Base,
        context: terrace_core::ContextId::ANONYMOUS,
    };
    pack(EventRef::Alloc { region: &region });
    for touch in 0..400 {
        let telemetry = Telemetry { now: Nanos::millis(touch / 50), ..Telemetry::default() };
        let page = terrace_core::PageNo(touch as u32 % 200);
        let page = terrace_core::PageRef { region: region.id, page };
        let kind = terrace_core::FaultKind::FirstTouch(terrace_core::Access::Write);
        pack(EventRef::Fault { page, kind, telemetry: &telemetry });
        if touch % 50 == 0 {
            pack(EventRef::Tick { telemetry: &telemetry });
        }
    }
    pack(EventRef::Free { range: region.range() });
    stream
}

fn smoke(target: &Target, iterations: usize) {
    let seeds = seeds(target.name);
    for seed in &seeds {
        (target.run)(seed);
    }
    let mut numbers = Numbers(0x7465_7272_6163);
    for iteration in 0..iterations {
        let input = mutate(&mut numbers, &seeds[iteration % seeds.len()]);
        let outcome = catch_unwind(AssertUnwindSafe(|| (target.run)(&input)));
        assert!(
            outcome.is_ok(),
            "{}: iteration {iteration} broke on {:?}",
            target.name,
            String::from_utf8_lossy(&input)
        );
    }
}

/// A reader that panics takes the whole command with it instead of naming the
/// line that is wrong.
#[test]
fn no_reader_breaks_on_mutated_input() {
    let iterations = number("FUZZ_ITERATIONS", 3000);
    for target in &TARGETS {
        smoke(target, iterations);
    }
}

/// The long form begins with the same inputs.
#[test]
#[ignore = "writes files; `make fuzz` runs it"]
fn seeds_for_the_long_form() {
    for target in &TARGETS {
        let directory = terrace::root().join("fuzz/corpus").join(target.name);
        fs::create_dir_all(&directory).unwrap();
        for (number, seed) in seeds(target.name).iter().enumerate() {
            fs::write(directory.join(format!("seed-{number}")), seed).unwrap();
        }
    }
}

/// Calls on a file and a socket.
fn recorded_calls() -> Vec<u8> {
    br#"{"terrace":"calls","schema":2,"calls":7,"program":["x"],"recorder":"r","kernel":"6.18","threads":2,"lost":0,"skipped":{},"counted":{"pages_added":1,"pages_removed":0,"bios":1,"allocated":{"dentry":1}},"files":[{"existed":false,"bytes":0},{"inode":[[254,0],7],"existed":true,"bytes":8192}],"sockets":1}
{"thread":0,"cpu":0,"at":0,"took":5,"call":{"create":{"file":0}}}
{"thread":1,"cpu":1,"at":3,"took":5,"call":{"open":{"file":1}}}
{"thread":0,"cpu":0,"at":9,"took":5,"call":{"write":{"file":0,"offset":0,"bytes":4096}}}
{"thread":1,"cpu":1,"at":9,"took":5,"call":{"accept":{"socket":0}}}
{"thread":0,"cpu":0,"at":15,"took":5,"call":{"advise":{"file":0,"offset":0,"bytes":0,"advice":"dont-need"}}}
{"thread":0,"cpu":0,"at":20,"took":5,"call":{"close":{"file":0}}}
{"thread":1,"cpu":1,"at":30,"took":5,"call":{"close-socket":{"socket":0}}}
"#
    .to_vec()
}

/// Every fuzz target of the smoke test has its long form, and the other way round.
#[test]
fn the_long_form_has_the_same_targets() {
    let mut files: Vec<_> = fs::read_dir(terrace::root().join("fuzz/fuzz_targets"))
        .unwrap()
        .map(|entry| entry.unwrap().path().file_stem().unwrap().to_string_lossy().into_owned())
        .collect();
    files.sort();
    let mut names: Vec<_> = TARGETS.iter().map(|target| target.name.to_owned()).collect();
    names.sort();
    assert_eq!(files, names);
}

/// The command line reads the same files; whatever is in them it ends with an
/// error of one line and exit code 2, or accepts them.
#[test]
fn check_never_dies_on_mutated_files() {
    let executable = terrace::executable().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("input");
    let mut seeds = machine_files();
    seeds.push(recording());
    seeds.push(
        br#"{"schema":1,"kind":"terrace.records","world":"live","program":["x"],"policy":"hemem","economist":"enforce","machine":{"name":"m","clock":2e9,"tiers":["dram","compressed"]}}
{"record":"lost","process":1,"count":5}
"#
        .to_vec(),
    );
    let mut numbers = Numbers(99);
    for iteration in 0..number("FUZZ_ITERATIONS", 3000) / 15 {
        let input = mutate(&mut numbers, &seeds[iteration % seeds.len()]);
        fs::write(&file, &input).unwrap();

        let output =
            Command::new(&executable).arg("check").arg(&file).stdin(Stdio::null()).output();

        let output = output.unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        let shown = String::from_utf8_lossy(&input);
        match output.status.code() {
            Some(0) => assert!(errors.is_empty(), "{errors}\n{shown}"),
            Some(2) => assert_eq!(errors.lines().count(), 1, "{errors}\n{shown}"),
            other => panic!("exit code {other:?}: {errors}\n{shown}"),
        }
    }
}
