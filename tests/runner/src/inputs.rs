//! Everything of ours that reads what people or other programs wrote, as
//! functions of bytes: the fuzz targets in `fuzz/` and the smoke test call the
//! same ones. Each panics where a promise is broken.

use std::io::{self, Cursor};
use std::path::Path;

use terrace_core::{
    Access, Bytes, BytesPerSecond, Cycles, Event, Frequency, LadderFile, Machine, Nanos, PerSecond,
};
use terrace_dram::{Channel, MemoryFile};
use terrace_dump::content::Contents;
use terrace_dump::tables::Tables;
use terrace_dump::write::WriteError;
use terrace_dump::{Image, Sink, survey, write};
use terrace_economics::{Economist, Mode};
use terrace_live::config::RunConfig;
use terrace_policy::packed::Unpacker;
use terrace_policy::whatif::{Recorded, WhatIf};
use terrace_policy::{Brain, EventReader, PolicyName};
use terrace_profile::{Difference, Profile, cbmm, perf_stat, picture};
use terrace_provision::{Config, Hardware, PolicyKind, Recording, ZoneInfo, journal as decisions};
use terrace_sampler::perf::record::{Record, field, parse};
use terrace_sim::exact::Batch;
use terrace_sim::kernel::recorded;
use terrace_sim::mm::MeasuredCosts;
use terrace_sim::sweep::{Grid, journal};
use terrace_sim::trace::{
    Format, IoCheck, IoRecord, TraceError, TraceHeader, TraceReader, TraceWriter, import,
};
use terrace_volume::pm::simulated::Simulated;
use terrace_volume::{Cpu, Mount, Pm, Report, SectorSize, Superblock, Volume, create, repair};

/// A reader under test.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name, that of the fuzz target.
    pub name: &'static str,
    /// Feeds it.
    pub run: fn(&[u8]),
}

/// Every reader.
pub const TARGETS: [Target; 19] = [
    Target { name: "units", run: units },
    Target { name: "machine", run: machine },
    Target { name: "memory", run: memory },
    Target { name: "program", run: program },
    Target { name: "events", run: events },
    Target { name: "run_config", run: run_config },
    Target { name: "ladder", run: ladder },
    Target { name: "perf_ring", run: perf_ring },
    Target { name: "trace", run: trace },
    Target { name: "calls", run: calls },
    Target { name: "io_records", run: io_records },
    Target { name: "foreign_trace", run: foreign_trace },
    Target { name: "packed_events", run: packed_events },
    Target { name: "sweep", run: sweep },
    Target { name: "core_dump", run: core_dump },
    Target { name: "volume", run: volume },
    Target { name: "nbd", run: nbd },
    Target { name: "profile", run: profile },
    Target { name: "provision", run: provision },
];

/// What `terrace provision` reads: recorded demand, journals, configurations, `/proc/zoneinfo`. An
/// error names its place; a demand that is accepted can be played to every policy or is refused by its
/// line, and the rest can be said, used, asked.
pub fn provision(input: &[u8]) {
    let refused = |error: &dyn std::fmt::Display, place: &str| {
        let shown = error.to_string();
        assert!(shown.starts_with(place), "{shown}");
    };
    for partial in [false, true] {
        let recording = match Recording::read(input, partial) {
            Ok(recording) => recording,
            Err(error) => {
                refused(&error, "line ");
                continue;
            }
        };
        for kind in PolicyKind::ALL {
            let hardware = Hardware::default();
            let mut policy = kind.build();
            let played = terrace_provision::replay(&recording, hardware, policy.as_mut(), None);
            let played = match played {
                Ok(played) => played,
                Err(error) => {
                    refused(&error, "line ");
                    continue;
                }
            };
            assert_eq!(played.events, played.journal.len() as u64);
            assert!(played.events == 0 || !played.moved.is_zero());
        }
    }
    match decisions::read(input) {
        Ok(entries) => entries.iter().for_each(|entry| {
            assert!(!entry.what.to_string().is_empty());
            let line = serde_json::to_string(entry).expect("it is data");
            let text = decisions::header() + &line + "\n";
            let again = decisions::read(text.as_bytes()).expect("our own");
            assert_eq!(again.len(), 1, "{line}");
        }),
        Err(error) => refused(&error, "line "),
    }
    let Ok(text) = std::str::from_utf8(input) else { return };
    match Config::parse("some.toml", text) {
        Ok(config) => {
            config.build();
            assert!(config.first_threshold() >= 0.0);
        }
        Err(error) => refused(&error, "some.toml"),
    }
    match ZoneInfo::parse(text) {
        Ok(zones) => {
            for node in zones.nodes() {
                zones.memory(node, Bytes::kib(4));
            }
        }
        Err(error) => refused(&error, "line "),
    }
}

/// Profiles, ours and CBMM's: an error names the file and a line that exists; what is accepted
/// is the same when it is written and read again, and can be merged, compared, drawn and
/// exported.
pub fn profile(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let lines = text.lines().count().max(1);
    let refused = |error: &terrace_profile::ProfileError| {
        assert_eq!(error.file, "some.profile");
        assert!((1..=lines).contains(&error.line), "line {} of {lines}", error.line);
        let shown = error.to_string();
        assert!(!error.message.is_empty() && !shown.contains('\n'), "{shown}");
    };
    // What perf counted, and what memory management was measured to cost: the same of them.
    match perf_stat::parse("some.profile", text, "a processor") {
        Ok(counted) => assert!(counted.clock.get() >= 1.0 && !counted.elapsed.is_zero()),
        Err(error) => refused(&error),
    }
    if let Ok(costs) = MeasuredCosts::parse("some.profile", text) {
        let again = MeasuredCosts::parse("some.profile", &costs.to_text()).expect("our own");
        assert_eq!(again.costs, costs.costs);
    }
    let (horizon, clock) = (Nanos::seconds(1), Frequency::ghz(2.0));
    for read in
        [Profile::parse("some.profile", text), cbmm::import("some.profile", text, horizon, clock)]
    {
        let profile = match read {
            Ok(profile) => profile,
            Err(error) => {
                refused(&error);
                continue;
            }
        };
        let again = Profile::parse("some.profile", &profile.to_text());
        assert_eq!(again.as_ref(), Ok(&profile));
        let difference = Difference::new(&profile, &profile);
        assert_eq!(difference.before, difference.after);
        assert!(difference.matched <= difference.before);
        for region in &profile.regions {
            assert!(picture::line(region, 60).chars().count() <= 60);
        }
        let (exported, _) = cbmm::export(&profile);
        if !exported.is_empty() {
            let (horizon, clock) = (profile.horizon, profile.clock);
            cbmm::import("some.profile", &exported, horizon, clock).expect("our own");
        }
        if profile.rules.is_empty()
            && let Ok(merged) = terrace_profile::merge(&[profile.clone(), profile.clone()])
        {
            let read = Profile::parse("some.profile", &merged.to_text());
            assert_eq!(read, Ok(merged));
        }
    }
}

/// Core dumps: what is refused says why in one line; what is completed is a dump of the same memory,
/// and pages that were there are as they were.
pub fn core_dump(input: &[u8]) {
    struct Gathered(Vec<u8>);
    impl Sink for Gathered {
        fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
            self.0.extend(bytes);
            Ok(())
        }
        fn skip(&mut self, bytes: u64) -> io::Result<()> {
            self.0.resize(self.0.len() + bytes as usize, 0);
            Ok(())
        }
    }
    let complete = || {
        let image = Image::open(input)?;
        let tables = Tables::find(&image)?;
        let contents = Contents { image: &image, tables: &tables, spill: None };
        let found = survey(&contents)?;
        let mut gathered = Gathered(Vec::new());
        match write(&contents, &found, &mut gathered) {
            Ok(_) => Ok((gathered.0, found.pages.restored())),
            Err(WriteError::Read(error)) => Err(error),
            Err(WriteError::Write(error)) => panic!("memory is never full: {error}"),
        }
    };
    match complete() {
        Err(error) => {
            let shown = error.to_string();
            assert!(!shown.is_empty() && !shown.contains('\n'), "{shown}");
        }
        Ok((completed, restored)) => {
            assert!(completed.len() >= input.len(), "{} of {}", completed.len(), input.len());
            assert!(restored <= input.len() as u64 / 4096, "{restored} pages");
            Image::open(&completed[..]).expect("a dump, still");
        }
    }
}

/// Quantities: what is refused says why; what is accepted is finite.
pub fn units(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    if let Err(error) = text.parse::<Bytes>() {
        assert!(!error.to_string().is_empty());
    }
    if let Err(error) = text.parse::<Nanos>() {
        assert!(!error.to_string().is_empty());
    }
    for value in [
        text.parse::<PerSecond>().map(|value| value.0),
        text.parse::<BytesPerSecond>().map(|value| value.0),
        text.parse::<Frequency>().map(|value| value.0),
    ] {
        match value {
            Ok(value) => assert!(value.is_finite() && value >= 0.0, "{text:?} is {value}"),
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
}

/// Machine files: an error names the file and a line that exists; a machine that
/// is accepted can be used.
pub fn machine(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    match Machine::parse("some.toml", text) {
        Err(error) => {
            assert_eq!(error.file, "some.toml");
            let lines = text.bytes().filter(|&byte| byte == b'\n').count() + 1;
            assert!((1..=lines).contains(&error.line), "line {} of {lines}", error.line);
            assert!(!error.message.is_empty());
            let shown = error.to_string();
            assert!(!shown.contains('\n'), "an error of several lines: {shown}");
        }
        Ok(machine) => {
            assert!(!machine.tiers.is_empty());
            assert!(machine.tiers.iter().all(|tier| !tier.spec().capacity.is_zero()));
        }
    }
}

/// Memory files: as machine files; a memory that is accepted serves requests.
pub fn memory(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    match MemoryFile::parse("some.toml", text) {
        Err(error) => {
            assert_eq!(error.file, "some.toml");
            let lines = text.bytes().filter(|&byte| byte == b'\n').count() + 1;
            assert!((1..=lines).contains(&error.line), "line {} of {lines}", error.line);
            assert!(!error.message.is_empty());
        }
        Ok(file) => {
            let mut channel = Channel::new(&file);
            for id in 0..8 {
                let access = if id % 2 == 0 { Access::Read } else { Access::Write };
                let now = channel.now();
                channel.offer(id, access, id * 4096, now);
            }
            channel.drain();
            assert!(channel.is_idle());
        }
    }
}

/// Programs to crash: what is refused names a line that exists; what is accepted
/// prints as it is read.
pub fn program(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    match terrace_persist::program::parse("some.txt", text) {
        Err(error) => assert!((1..=text.lines().count()).contains(&error.line), "{error}"),
        Ok(steps) => {
            for step in steps {
                assert_eq!(terrace_persist::Op::parse(&step.to_string()), Some(step));
            }
        }
    }
}

/// Packed events: reading ends, an error names its place, and a world that is
/// fed what was read keeps to its budget and to its books.
pub fn packed_events(input: &[u8]) {
    const BUDGET: u64 = 64;
    let economist = Economist::new(Mode::Off, terrace_live::activate::calibrate());
    let brain = Brain::new(PolicyName::FirstTouch.build(), economist);
    let mut world = WhatIf::new(brain, Bytes(BUDGET << 12), Cycles(1));
    let mut recorded = Recorded::default();
    let mut stream = Unpacker::new();
    let mut pages = 0u64;
    let outcome = stream.read(input, |event| {
        // The policy's own state grows with the memory that it is told of.
        if let Event::Alloc { region } = event {
            pages += u64::from(region.pages);
        }
        if pages <= 1 << 20 {
            recorded.feed(event);
            world.feed(event);
        }
    });
    if let Err(error) = outcome {
        assert!(error.to_string().starts_with("event "), "{error}");
    }
    let counts = world.counts();
    assert!(world.resident() <= BUDGET + counts.over_budget, "{counts:?}");
    assert!(counts.demotions <= counts.first_touches + counts.misses, "{counts:?}");
}

/// Recorded events: reading ends, and every error names its line.
pub fn events(input: &[u8]) {
    match EventReader::new("some.jsonl", input) {
        Err(error) => assert!(error.to_string().starts_with("some.jsonl:1: "), "{error}"),
        Ok(reader) => {
            let lines = input.split(|&byte| byte == b'\n').count();
            let mut read = 0;
            for event in reader {
                read += 1;
                if let Err(error) = event {
                    assert_eq!(error.line, read + 1);
                    assert!(error.to_string().starts_with("some.jsonl:"), "{error}");
                }
            }
            assert!(read < lines, "{read} events from {lines} lines");
        }
    }
}

/// What `terrace run` hands to the library: what is accepted means the same when
/// it is written again.
pub fn run_config(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    match RunConfig::decode(text) {
        Err(error) => assert!(error.to_string().starts_with("TERRACE: "), "{error}"),
        Ok(config) => assert_eq!(RunConfig::decode(&config.encode()), Ok(config)),
    }
}

/// Ladder files: an error names the file and a line that exists; a ladder that
/// is accepted has a fastest tier and a limit that permits something.
pub fn ladder(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    match LadderFile::parse("some.toml", text) {
        Err(error) => {
            let lines = text.bytes().filter(|&byte| byte == b'\n').count() + 1;
            assert!((1..=lines).contains(&error.line), "line {} of {lines}", error.line);
            assert!(!error.to_string().contains('\n'), "an error of several lines: {error}");
        }
        Ok(LadderFile::ByKernel(ladder)) => assert!(!ladder.resident.is_zero()),
        Ok(LadderFile::InPlace(ladder)) => {
            assert!((2..=terrace_core::MAX_TIERS).contains(&ladder.tiers.len()));
            assert!(ladder.migration.limit.get() > 0.0 && ladder.migration.batch > 0);
        }
        Ok(LadderFile::Compressing(ladder)) => {
            let most = if ladder.nodes.is_some() { terrace_core::MAX_TIERS } else { 3 };
            assert!(!ladder.resident.is_zero() && (2..=most).contains(&ladder.names().len()));
            if let Some(nodes) = &ladder.nodes {
                let capacities = nodes.tiers.iter().map(|tier| tier.capacity.unwrap_or_default());
                assert_eq!(capacities.sum::<terrace_core::Bytes>(), ladder.resident);
                assert!(nodes.migration.limit.get() > 0.0 && nodes.migration.batch > 0);
            }
            assert!(ladder.store.is_none() || ladder.spill.is_some());
        }
    }
}

/// A perf event's ring: the first three words are the positions and the fields
/// that were asked for, the rest is the ring, cut to a power of two. Reading
/// ends, stays inside, and tells no more records than there is room for.
pub fn perf_ring(input: &[u8]) {
    let words: Vec<u64> =
        input.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
    let [tail, head, fields, ring @ ..] = words.as_slice() else { return };
    let Some(size) = ring.len().checked_ilog2().map(|log| 1usize << log) else { return };
    let mut records = 0u64;
    let mut samples = 0u64;
    let word = |i: usize| ring[..size][i];
    let read = parse(word, size, *tail, *head, fields & field::KNOWN, |record| {
        records += 1;
        samples += u64::from(matches!(record, Record::Sample(_)));
    });
    assert!(records <= size as u64, "{records} records in {size} words");
    let asked = (fields & field::KNOWN).count_ones();
    assert!(samples * (u64::from(asked) + 1) <= size as u64, "{samples} samples");
    if read.is_ok() {
        assert!(head.wrapping_sub(*tail) <= size as u64 * 8);
    }
}

/// Our traces: reading ends, with an error that names the file or with exactly
/// what another reading of the same bytes gives.
pub fn trace(input: &[u8]) {
    let read = || {
        let mut reader = TraceReader::new(Cursor::new(input), Path::new("some.trace"))?;
        let mut accesses = Vec::new();
        while let Some(batch) = reader.next_batch()? {
            accesses.extend(batch.accesses);
        }
        Ok::<_, TraceError>(accesses)
    };
    match read() {
        Err(error) => assert!(error.to_string().starts_with("some.trace: "), "{error}"),
        Ok(accesses) => assert_eq!(read().ok(), Some(accesses)),
    }
}

/// Calls within traces, as they are behind the compression: a trace of what fits comes back the
/// same; one of all records ends with an error that names the file and the place, and what stands
/// before the first record that does not fit is readable. Each record's first byte says by which of
/// three threads.
pub fn io_records(input: &[u8]) {
    let mut records = Vec::new();
    let mut rest = input;
    while let Some((&thread, after)) = rest.split_first() {
        rest = after;
        let Some(record) = IoRecord::decode(&mut rest) else { break };
        records.push((u32::from(thread % 3), record));
    }
    let mut check = IoCheck::default();
    let fits = records.iter().take_while(|(thread, record)| check.enter(*thread, record).is_ok());
    let fits = fits.count();
    let written = |records: &[(u32, IoRecord)]| {
        let mut writer =
            TraceWriter::new(Vec::new(), &TraceHeader::default()).expect("memory is never full");
        for (thread, record) in records {
            let batch = Batch { thread: *thread, io: vec![*record], ..Batch::default() };
            writer.write(&batch).expect("it was decoded, so it can be encoded");
        }
        writer.finish().expect("memory is never full")
    };
    let read = |bytes: &[u8]| {
        let mut reader = TraceReader::new(Cursor::new(bytes), Path::new("some.trace"))
            .expect("the header is ours");
        let mut read = Vec::new();
        loop {
            match reader.next_batch() {
                Ok(Some(batch)) => read.extend(batch.io.iter().map(|io| (batch.thread, *io))),
                Ok(None) => return (read, None),
                Err(error) => return (read, Some(error.to_string())),
            }
        }
    };
    assert_eq!(read(&written(&records[..fits])), (records[..fits].to_vec(), None));
    if fits < records.len() {
        let (kept, error) = read(&written(&records));
        assert_eq!(kept, records[..fits]);
        let error = error.expect("one does not fit");
        assert!(
            error.starts_with("some.trace: damaged after ") && !error.contains('\n'),
            "{error}"
        );
    }
}

/// Recorded calls: what is refused names file and line, and what came before it can have been
/// made; what is accepted comes back the same.
pub fn calls(input: &[u8]) {
    match recorded::read_text("some.calls", input) {
        Err(error) => {
            let shown = error.to_string();
            assert!(shown.starts_with("some.calls:") && !shown.contains('\n'), "{shown}");
            assert_eq!(error.readable.check(), Ok(()));
        }
        Ok(recording) => {
            assert_eq!(recording.check(), Ok(()));
            let mut written = Vec::new();
            recorded::write(&mut written, &recording).expect("memory is never full");
            let again = recorded::read("some.calls", &written[..]).expect("it was accepted");
            assert_eq!(again, recording);
        }
    }
}

/// Traces of other tools: every reader ends, and its errors name the file.
pub fn foreign_trace(input: &[u8]) {
    for format in Format::ALL {
        let mut source = import::read(input, Path::new("some.trace"), format);
        let mut batch = Batch::default();
        // A record of damo's may stand for any number of accesses.
        for _ in 0..64 {
            match source.next(&mut batch) {
                Ok(true) => assert!(
                    !batch.accesses.is_empty() || !batch.events.is_empty() || !batch.io.is_empty()
                ),
                Ok(false) => break,
                Err(error) => {
                    assert!(error.to_string().starts_with("some.trace:"), "{error}");
                    break;
                }
            }
        }
    }
}

/// Grids and journals of sweeps: errors name the file; a journal that is cut at
/// any of its lines is still one.
pub fn sweep(input: &[u8]) {
    if let Ok(text) = std::str::from_utf8(input) {
        match Grid::parse("some.toml", text) {
            Err(error) => assert!(!error.to_string().is_empty()),
            Ok(grid) if grid.combinations().is_some_and(|count| count <= 64) => {
                if let Ok(points) = grid.points() {
                    assert_eq!(Some(points.len()), grid.combinations());
                }
            }
            Ok(_) => {}
        }
    }
    let path = Path::new("some.jsonl");
    match journal::read(path, input) {
        Err(error) => assert!(error.to_string().starts_with("some.jsonl:"), "{error}"),
        Ok((done, whole)) => {
            let whole = usize::try_from(whole).expect("within the input");
            let again = journal::read(path, &input[..whole]).expect("whole lines");
            assert_eq!(again.0.len(), done.len());
        }
    }
}

/// Superblocks and maps of volumes: what is accepted can be read, also where its map is damaged;
/// after a repair it can be written, too. The input is a superblock, whose
/// checksum need not be right, and the map that goes with it.
pub fn volume(input: &[u8]) {
    if let Err(error) = input.get(..4096).map_or(Err("short".into()), Superblock::decode) {
        assert!(!error.is_empty());
    }
    let long = |at: usize| {
        input.get(at..at + 8).and_then(<[u8]>::first_chunk).map_or(0, |b| u64::from_le_bytes(*b))
    };
    let uuid = *input.get(16..).and_then(<[u8]>::first_chunk).unwrap_or(&[0; 16]);
    let superblock = Superblock {
        uuid: terrace_volume::superblock::uuid_of(uuid),
        sector: if input.get(13) == Some(&2) { SectorSize::B512 } else { SectorSize::B4096 },
        sectors: long(32),
        blocks: long(40),
        map: long(48),
        data: long(56),
        total: long(64),
        generation: long(72),
    };
    if superblock.check().is_err() || superblock.total > 1 << 18 {
        return;
    }
    assert_eq!(Superblock::decode(&superblock.encode()), Ok(superblock));
    let medium = Simulated::new(superblock.total);
    create(&medium, &superblock, true).expect("a checked plan");
    let rest = input.get(4096..).unwrap_or_default();
    let room = (superblock.map_end() - superblock.map) as usize;
    let map = &rest[..rest.len().min(room) / 8 * 8];
    medium.write(Cpu(0), superblock.map, map).expect("inside");
    let report = Report::of(&medium).expect("both superblocks are valid");
    let mounted = Volume::mount(medium.clone(), Mount { read_only: true, lanes: None });
    let mounted = mounted.expect("reading is always possible");
    let mut sector = vec![0; superblock.sector.bytes() as usize];
    for lba in 0..superblock.sectors {
        let readable = mounted.read(lba, &mut sector).is_ok();
        let damaged = report.damage.iter().any(|damage| damage.sectors().any(|bad| bad == lba));
        assert!(!(readable && damaged), "sector {lba} was read though {:?}", report.damage);
    }
    repair(&medium, true).expect("a repair gives up what is damaged");
    assert!(Report::of(&medium).expect("still valid").is_clean());
    let mounted = Volume::mount(medium, Mount::default()).expect("repaired");
    let mut lane = mounted.lane().expect("nobody else has one");
    let mut read = sector.clone();
    for round in 1..4 {
        sector.fill(round);
        for lba in [0, superblock.sectors - 1] {
            lane.write(lba, &sector, round == 2).expect("there are spare blocks");
            mounted.read(lba, &mut read).expect("just written");
            assert!(read == sector, "sector {lba} is not what was written");
        }
    }
}

/// Clients of the network block device: an answer, or the end of the connection.
pub fn nbd(input: &[u8]) {
    let medium = Simulated::new(1 << 16);
    let uuid = terrace_volume::superblock::new_uuid();
    let plan = Superblock::plan(Bytes(1 << 16), SectorSize::B512, 16, uuid).expect("large enough");
    create(&medium, &plan, true).expect("a plan of ours");
    let volume = Volume::mount(medium.clone(), Mount::default()).expect("just made");
    let mut output = Vec::new();
    match terrace_volume::nbd::session(&volume, input, &mut output) {
        Ok(_) => {}
        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::InvalidData, "{error}"),
    }
    assert!(output.starts_with(b"NBDMAGICIHAVEOPT"));
    assert!(Report::of(&medium).expect("still a volume").is_clean());
}
