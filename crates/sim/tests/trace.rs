//! Traces: what is written is read, what is damaged is said, and what others
//! wrote means what they meant.

use std::io::{Cursor, Read as _};
use std::path::Path;

use terrace_sim::exact::{
    Access, Batch, ExactConfig, Source, SpaceEvent, Stream, StreamKind, setup,
};
use terrace_sim::trace::import::{self, export_champsim, export_dramsim3};
use terrace_sim::trace::{Format, Summary, TraceHeader, TraceReader, TraceWriter};

const FILE: &str = "t.trace";

fn header() -> TraceHeader {
    TraceHeader { program: vec!["prog".into(), "arg".into()], ..TraceHeader::default() }
}

/// A trace of a stream with a second thread and an unmapping in between.
fn written(accesses: u64) -> (Vec<u8>, Vec<Access>) {
    let mut writer = TraceWriter::new(Vec::new(), &header()).expect("memory");
    let mut all = Vec::new();
    let mut stream = Stream::new(StreamKind::Mix, accesses, 64 << 20);
    let mut batch = Batch::default();
    while stream.next(&mut batch).expect("a stream does not fail") {
        batch.thread = (all.len() / 4096 % 2) as u32;
        all.extend(&batch.accesses);
        writer.write(&batch).expect("memory");
    }
    let events = vec![SpaceEvent::Unmap { start: 0x1000, len: 0x2000 }];
    writer.write(&Batch { events, ..Batch::default() }).expect("memory");
    (writer.finish().expect("memory"), all)
}

fn read(bytes: &[u8]) -> Result<(Vec<Access>, Vec<SpaceEvent>), String> {
    let mut reader =
        TraceReader::new(Cursor::new(bytes), Path::new(FILE)).map_err(|e| e.to_string())?;
    assert_eq!(reader.header(), &header());
    let (mut accesses, mut events) = (Vec::new(), Vec::new());
    while let Some(batch) = reader.next_batch().map_err(|e| e.to_string())? {
        accesses.extend(batch.accesses);
        events.extend(batch.events);
    }
    Ok((accesses, events))
}

fn imported(text: &[u8], format: Format) -> Result<Vec<Access>, String> {
    summed(text, format).map(|(accesses, _)| accesses)
}

/// The accesses, and what is told of what was read.
fn summed(text: &[u8], format: Format) -> Result<(Vec<Access>, Summary), String> {
    let mut source = import::read(text, Path::new("in"), format);
    let (mut all, mut batch) = (Vec::new(), Batch::default());
    while source.next(&mut batch).map_err(|e| e.to_string())? {
        all.extend(&batch.accesses);
    }
    Ok((all, source.summary().expect("it is an importer")))
}

#[test]
fn what_is_written_is_read() {
    let (bytes, accesses) = written(2_500_000);

    let (back, events) = read(&bytes).expect("a whole trace");

    assert!(back == accesses, "accesses differ");
    assert_eq!(events.len(), 2, "mapped at the begin, unmapped at the end");
    let each = bytes.len() as f64 / accesses.len() as f64;
    // 2 % anywhere in 64 MiB cannot be predicted, nor 98 % in random order
    // within 1 MiB: about two bytes of address each.
    assert!(each < 3.5, "{each} bytes an access");
}

#[test]
fn a_reader_can_begin_in_the_middle() {
    let (bytes, accesses) = written(2_500_000);
    let mut reader = TraceReader::new(Cursor::new(&bytes), Path::new(FILE)).expect("whole");

    let first = reader.seek(1_500_000).expect("it has an index");

    assert!(first > 0 && first <= 1_500_000, "{first}");
    let batch = reader.next_batch().expect("whole").expect("there is more");
    assert_eq!(batch.accesses[..], accesses[first as usize..][..batch.accesses.len()]);
    assert_eq!(reader.index().expect("it has one").accesses, accesses.len() as u64);
}

/// A recording that was interrupted is worth what it holds, and says how much.
#[test]
fn a_truncated_trace_says_what_was_readable() {
    let (bytes, _) = written(2_500_000);

    let error = read(&bytes[..bytes.len() / 2]).expect_err("it is cut");

    assert!(error.starts_with("t.trace: truncated within a chunk, after "), "{error}");
    let readable: u64 =
        error.split(' ').find_map(|word| word.parse().ok()).expect("it says how many");
    assert!(readable >= 1_000_000, "{error}");
}

#[test]
fn a_flipped_bit_is_found() {
    let (mut bytes, _) = written(100_000);
    let middle = bytes.len() / 2;
    bytes[middle] ^= 4;

    let error = read(&bytes).expect_err("its checksum is wrong");

    assert!(error.contains("damaged after 0 readable accesses"), "{error}");
}

#[test]
fn a_file_that_is_no_trace_is_refused_by_name() {
    let error = read(b"#!/bin/sh\necho not a trace\n").expect_err("it is a script");
    assert!(error.starts_with("t.trace: not a trace of Terrace"), "{error}");
    let error = read(b"\x1f\x8b\x08\0 and more").expect_err("it is compressed");
    assert_eq!(error, "t.trace: is compressed by gzip: decompress it first (gzip -d)");
}

#[test]
fn lackey_lines_become_accesses() {
    let text = b"==1== Lackey\nI  04016b80,3\nI  04016b83,5\n L 1ffefff7f8,8\nI  04016b88,4\n M 0425103c,16\nprog says hello\n";

    let data = imported(text, Format::Lackey).expect("all lines are good");

    assert_eq!(data.len(), 3, "a modification is a load and a store");
    assert_eq!((data[0].address(), data[0].size()), (0x1f_feff_f7f8, 8));
    assert_eq!(data[0].instructions(), 1, "one instruction before the one that loads");
    assert!(!data[1].is_store() && data[2].is_store());
    assert!(data[1].crosses(), "0x3c + 16 ends in the next line");
    let instructions: u64 = data.iter().map(|access| access.counted()).sum();
    assert_eq!(instructions, 3, "a modification is one");
}

#[test]
fn requests_of_memory_simulators_become_accesses() {
    let dramsim = imported(b"0x1FF96FC0 WRITE 160\n0x10 READ 161\n", Format::DramSim3);
    let ramulator = imported(b"LD 0x12340\nST 4096\n", Format::Ramulator);

    let dramsim = dramsim.expect("good");
    assert!(dramsim[0].is_store() && dramsim[0].address() == 0x1ff9_6fc0);
    assert_eq!(dramsim[1].address(), 0, "requests are of whole lines");
    let ramulator = ramulator.expect("good");
    assert_eq!((ramulator[0].address(), ramulator[1].address()), (0x12340, 4096));
    assert!(ramulator[1].is_store());
}

#[test]
fn a_line_that_is_wrong_is_named() {
    for (format, text, line) in [
        (Format::Lackey, &b" L 10,8\n X 10,8\n S 10,0\n"[..], 3),
        (Format::Lackey, b" L fedcba9876543210,8\n", 1),
        (Format::DramSim3, b"0x10 READ 1\n0x10 READ\n", 2),
        (Format::DramSim3, b"0x10 READ 1\n0xFEDCBA9876543210 WRITE 6\n", 2),
        (Format::DramSim3, b"0x10 READ 281474976710656\n", 1),
        (Format::DramSim3, b"0x10 READ 1 2\n", 1),
        (Format::Ramulator, b"LD 1\n\nLD zero\n", 3),
        (Format::Ramulator, b"LD 281474976710656\n", 1),
        (Format::Ramulator, b"LD 1 ST 2\n", 1),
        (Format::Ramulator, b"LD +1\n", 1),
        (Format::PerfScript, b"nothing here\n", 1),
    ] {
        let error = imported(text, format).expect_err("a line is wrong");
        assert!(error.starts_with(&format!("in:{line}: ")), "{format:?}: {error}");
    }
}

/// ChampSim has registers: a load that uses what the load before it loaded
/// depends on it.
#[test]
fn champsim_keeps_dependences_and_distances() {
    let mut chase = Stream::new(StreamKind::Chase, 1000, 4 << 20);
    let mut bytes = Vec::new();
    let instructions = export_champsim(&mut chase, &mut bytes).expect("memory");
    assert_eq!((instructions, bytes.len()), (1000, 64_000));

    let accesses = imported(&bytes, Format::ChampSim).expect("whole records");

    assert_eq!(accesses.len(), 1000);
    assert!(accesses[1..].iter().all(|access| access.is_dependent()));

    let mut mix = Stream::new(StreamKind::Mix, 1000, 4 << 20);
    let mut bytes = Vec::new();
    export_champsim(&mut mix, &mut bytes).expect("memory");
    let accesses = imported(&bytes, Format::ChampSim).expect("whole records");
    assert_eq!((accesses[0].instructions(), accesses[1].instructions()), (3, 2));
    assert!(!accesses[0].is_store() && accesses[1].is_store());
    let error = imported(&bytes[..100], Format::ChampSim).expect_err("cut");
    assert!(error.contains("record 2 has 36 of 64 bytes"), "{error}");
}

#[test]
fn dramsim3_requests_survive_export_and_import() {
    let mut mix = Stream::new(StreamKind::Mix, 100, 4 << 20);
    let mut text = Vec::new();
    assert_eq!(export_dramsim3(&mut mix, &mut text).expect("memory"), 100);
    let back = imported(&text, Format::DramSim3).expect("our own lines");
    assert_eq!(back.len(), 100);
}

/// ChampSim's traces come as xz.
#[test]
fn a_trace_compressed_by_xz_is_read_as_it_was_and_a_cut_one_names_its_file() {
    use std::io::Write as _;

    let mut plain = Vec::new();
    let mut stream = Stream::new(StreamKind::Mix, 2000, 4 << 20);
    import::export_champsim(&mut stream, &mut plain).expect("exported");
    let options = lzma_rust2::XzOptions::with_preset(1);
    let mut writer = lzma_rust2::XzWriter::new(Vec::new(), options).expect("a writer");
    writer.write_all(&plain).expect("written");
    let packed = writer.finish().expect("finished");
    let dir = std::env::temp_dir().join(format!("terrace-xz-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a directory");
    let file = dir.join("mix.champsimtrace.xz");
    assert_eq!(Format::of(&file), Format::ChampSim);
    let read = |bytes: &[u8]| {
        std::fs::write(&file, bytes).expect("written");
        let mut source = import::open(&file, Format::ChampSim)?;
        let (mut batch, mut accesses) = (Batch::default(), Vec::new());
        while source.next(&mut batch)? {
            accesses.extend_from_slice(&batch.accesses);
        }
        Ok::<_, terrace_sim::SimError>(accesses)
    };
    let expected = read(&plain).expect("read without compression");
    assert_eq!(expected.len(), 2000);
    assert_eq!(read(&packed).expect("read through xz"), expected);
    // What is packed is looked at, too.
    let mut tar = vec![b'x'; 1024];
    tar[257..262].copy_from_slice(b"ustar");
    let options = lzma_rust2::XzOptions::with_preset(1);
    let mut writer = lzma_rust2::XzWriter::new(Vec::new(), options).expect("a writer");
    writer.write_all(&tar).expect("written");
    let archive = writer.finish().expect("finished");
    let error = read(&archive).expect_err("an archive").to_string();
    assert!(error.contains("tar archive"), "{error}");
    let error = read(&packed[..packed.len() / 2]).expect_err("cut").to_string();
    assert!(error.contains("mix.champsimtrace.xz"), "{error}");
    std::fs::remove_dir_all(&dir).expect("ours");
}

/// A trace whose last bytes are another's, or of which the end was lost, is not the
/// one that was written.
#[test]
fn a_trace_ends_where_its_file_ends() {
    let (bytes, _) = written(10_000);
    let error = |bytes: &[u8]| read(bytes).expect_err("refused");

    let longer = [&bytes, &b"garbage"[..]].concat();
    let expected = format!("t.trace: the trace ends at byte {}, but the file goes on", bytes.len());
    assert_eq!(error(&longer), expected);
    assert!(error(&bytes[..bytes.len() - 1]).contains("truncated within the index"));
    let mut other = bytes.clone();
    let at = bytes.len() - 24;
    other[at] ^= 1;
    assert!(error(&other).contains("its index is of another trace"), "{}", error(&other));
}

/// Instructions without an access are neither lost nor accesses, in our format
/// as in those that we write.
#[test]
fn any_number_of_instructions_passes_between_accesses() {
    let mut accesses = Vec::new();
    for between in [0, 255, 256, 999, 1_000_000] {
        Access::load(0x1000 + between).push_after(&mut accesses, between);
    }
    accesses.push(Access::pass(77));
    let instructions: u64 = accesses.iter().map(|access| access.counted()).sum();
    assert_eq!(instructions, 255 + 256 + 999 + 1_000_000 + 5 + 77);
    let mut writer = TraceWriter::new(Vec::new(), &header()).expect("memory");
    writer.write(&Batch { accesses: accesses.clone(), ..Batch::default() }).expect("memory");
    assert_eq!(writer.accesses(), 5);
    let bytes = writer.finish().expect("memory");

    assert_eq!(read(&bytes).expect("whole").0, accesses);
    let mut reader = TraceReader::new(Cursor::new(&bytes), Path::new(FILE)).expect("whole");
    assert_eq!(reader.index().expect("it has one").accesses, 5);
    let ours = || import::read(bytes.as_slice(), Path::new("in"), Format::Terrace);
    let mut champsim = Vec::new();
    let written = export_champsim(ours().as_mut(), &mut champsim).expect("memory");
    assert_eq!((written, champsim.len() as u64), (instructions, instructions * 64));
    let (_, summary) = summed(&champsim, Format::ChampSim).expect("our own records");
    assert_eq!((summary.accesses(), summary.instructions), (5, instructions));
    let mut dramsim = Vec::new();
    export_dramsim3(ours().as_mut(), &mut dramsim).expect("memory");
    let (_, summary) = summed(&dramsim, Format::DramSim3).expect("our own lines");
    assert_eq!((summary.accesses(), summary.instructions), (5, instructions - 77));
}

/// A modification, a load with a store, a copy of a large piece: each is one instruction, however
/// it comes to us, and on the way out again.
#[test]
fn an_instruction_that_makes_several_accesses_is_one() {
    let modifies = "I  04016b80,3\n M 0425103c,8\n".repeat(1000);
    let copies = "I  04016b80,3\n L 0425103c,8\n S 0425203c,8\n".repeat(1000);
    let large = "I  04016b80,3\n L 04251000,256\n".repeat(1000);
    let mut record = [0; 64];
    record[..8].copy_from_slice(&0x40_0000u64.to_le_bytes());
    record[16..24].copy_from_slice(&0x1000u64.to_le_bytes());
    record[32..40].copy_from_slice(&0x2000u64.to_le_bytes());
    let records = record.repeat(1000);
    for (bytes, format, accesses) in [
        (modifies.as_bytes(), Format::Lackey, 2000),
        (copies.as_bytes(), Format::Lackey, 2000),
        (large.as_bytes(), Format::Lackey, 4000),
        (&records, Format::ChampSim, 2000),
    ] {
        let (_, summary) = summed(bytes, format).expect("good");
        assert_eq!((summary.accesses(), summary.instructions), (accesses, 1000), "{format:?}");
        let mut source = import::read(bytes, Path::new("in"), format);
        let mut out = Vec::new();
        assert_eq!(export_champsim(source.as_mut(), &mut out).expect("memory"), 1000);
        let (_, summary) = summed(&out, Format::ChampSim).expect("our own records");
        assert_eq!((summary.accesses(), summary.instructions), (accesses, 1000), "{format:?}");
    }
    // What a record cannot say becomes more instructions, and no access is lost.
    let odd = b"I  04016b80,3\n S 10,8\n L 20,8\n S 30,8\n S 40,8\n S 50,8\n";
    let mut source = import::read(odd.as_slice(), Path::new("in"), Format::Lackey);
    let mut out = Vec::new();
    assert_eq!(export_champsim(source.as_mut(), &mut out).expect("memory"), 3);
    let (_, summary) = summed(&out, Format::ChampSim).expect("our own records");
    assert_eq!((summary.loads, summary.stores), (1, 4));
}

/// Other programs' lines may be among lackey's, but not for ever before the first.
#[test]
fn what_never_becomes_lackey_s_is_refused_before_its_end() {
    let endless = std::io::repeat(b'\n').chain(std::io::empty());
    let lines = "no line of lackey's\n".repeat(1 << 16);
    let mut many: Box<dyn std::io::Read> = Box::new(endless.take(10));
    for _ in 0..17 {
        many = Box::new(many.chain(lines.as_bytes()));
    }
    let mut source = import::read(many.chain(&b" L 10,8\n"[..]), Path::new("in"), Format::Lackey);
    let error = source.next(&mut Batch::default()).expect_err("refused").to_string();
    // Ten are empty, and the one after 2^20 others is the first that is too many.
    assert!(error.contains("not one of its first 1048587 lines is lackey's"), "{error}");
}

/// Chunks are not unpacked for that, and an entry may be instructions alone.
#[test]
fn a_look_from_chunk_to_chunk_does_not_count_instructions_as_accesses() {
    let mut writer = TraceWriter::new(Vec::new(), &header()).expect("memory");
    let pair = [Access::pass(1000), Access::load(0x1000)];
    writer.write(&Batch { accesses: pair.repeat(50), ..Batch::default() }).expect("memory");
    let bytes = writer.finish().expect("memory");
    let reader = |bytes| TraceReader::new(Cursor::new(bytes), Path::new(FILE)).expect("a header");
    assert_eq!(reader(&bytes[..]).survey().expect("whole"), 50);
    let cut = &bytes[..bytes.len() - 1];

    let seen = reader(cut).survey().expect_err("cut").to_string();
    let read = read(cut).expect_err("cut");

    assert!(seen.contains("truncated within the index, after at most 100 readable"), "{seen}");
    assert!(read.contains("truncated within the index, after 50 readable accesses"), "{read}");
}

/// In traces of earlier versions each access stands for an instruction, with 255 others before it
/// at most.
#[test]
fn an_earlier_version_means_what_it_meant() {
    let mut writer = TraceWriter::new(Vec::new(), &header()).expect("memory");
    let accesses = vec![Access::load(0x1000), Access::store(0x2000).of_same_instruction()];
    writer.write(&Batch { accesses: accesses.clone(), ..Batch::default() }).expect("memory");
    let mut bytes = writer.finish().expect("memory");
    assert_eq!(read(&bytes).expect("whole").0, accesses);

    bytes[8..12].copy_from_slice(&2u32.to_le_bytes());
    let (before, _) = read(&bytes).expect("whole");

    assert_eq!(before, [Access::load(0x1000), Access::pass(255), Access::store(0x2000)]);
}

/// The simulated time of a gap is that of its instructions, wherever it stands.
#[test]
fn instructions_that_pass_take_their_time_and_are_no_accesses() {
    let run = |gap: u64| {
        let mut text = String::new();
        for i in 0..1000 {
            text.push_str(&format!("0x{:x} READ {}\n", 0x10_0000 + 64 * i, gap * i));
        }
        let mut source = import::read(text.as_bytes(), Path::new("in"), Format::DramSim3);
        let machine = terrace_sim::machines::builtin("cxl").expect("built in");
        let config = ExactConfig::new(machine, terrace_sim::SimPolicy::AllDram);
        setup::simulate(&config, source.as_mut(), &mut |_, _| ()).expect("it fits")
    };
    let (near, far) = (run(1), run(100_000));
    assert_eq!((near.accesses, far.accesses), (1000, 1000));
    assert_eq!((near.l1.loads, far.l1.loads), (1000, 1000));
    assert_eq!((near.instructions, far.instructions), (1000, 1 + 999 * 100_000));
    assert!(far.time.get() > near.time.get() * 10, "{} and {}", far.time, near.time);
    let notes = far.input.expect("it is told").line().expect("cycles are taken otherwise");
    assert!(notes.contains("cycles into instructions"), "{notes}");
}

/// Records of fixed size have no mark: what can be checked is.
#[test]
fn what_is_no_champsim_trace_is_refused_with_its_record() {
    let mut mix = Stream::new(StreamKind::Mix, 100, 4 << 20);
    let mut good = Vec::new();
    export_champsim(&mut mix, &mut good).expect("memory");
    let error = |bytes: &[u8]| imported(bytes, Format::ChampSim).expect_err("refused");
    let changed = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        error(&bytes)
    };
    assert!(changed(64 + 8, 2).contains("record 2 is no instruction: `is_branch` is 2"));
    assert!(changed(2 * 64 + 9, 0xff).contains("record 3 is no instruction"));
    assert!(changed(3 * 64 + 39, 0x12).contains("beyond 48 bits"));
    assert!(error(&[0; 128]).contains("record 1 is no instruction: all of it is zero"));
    assert!(error(b"").contains("not one of its 0 instructions"));
}

/// Whatever the format says it is, an archive is one.
#[test]
fn archives_are_refused_in_every_format() {
    for format in Format::ALL.into_iter().filter(|format| *format != Format::Terrace) {
        let error = imported(b"PK\x03\x04 and more", format).expect_err("refused");
        assert_eq!(error, "in: is a zip archive: unpack it first (unzip)", "{format:?}");
        let error = imported(b"", format).expect_err("refused");
        assert!(error.starts_with("in: "), "{format:?}: {error}");
    }
}

/// Bits of version 1: fetches were kept beside the accesses that counted them.
#[test]
fn fetches_of_an_older_conversion_are_passed_over() {
    let mut accesses = Vec::new();
    for i in 0..5 {
        accesses.push(Access::fetch(0x40_0000 + i * 4, 4));
    }
    accesses.push(Access::load(0x1000).after(4));
    let old = TraceHeader { fetches: true, ..header() };
    let mut writer = TraceWriter::new(Vec::new(), &old).expect("memory");
    writer.write(&Batch { accesses, ..Batch::default() }).expect("memory");
    let mut bytes = writer.finish().expect("memory");
    bytes[8] = 1;
    // The index of that version counts them.
    let at = bytes.len() - 24;
    bytes[at] = 6;

    let (accesses, summary) = summed(&bytes, Format::Terrace).expect("whole");

    assert_eq!(accesses, [Access::load(0x1000).after(4)]);
    assert_eq!((summary.accesses(), summary.instructions), (1, 5));
    assert!(summary.line().expect("told").starts_with("dropped 5 instruction fetches"));
}

/// Whole batches only were kept: of less than one, nothing.
#[test]
fn what_can_be_read_of_a_damaged_trace_is_all_that_comes_before_the_damage() {
    for good in [100, 5000] {
        let name = format!("terrace-cut-{}-{good}.dramsim3", std::process::id());
        let file = std::env::temp_dir().join(name);
        let mut text = String::new();
        for i in 0..good {
            text += &format!("0x{:X} READ {}\n", 0x1000 + i * 64, i + 1);
        }
        text += "0x1000 READ -5\n";
        std::fs::write(&file, text).unwrap();

        let cut = terrace_sim::trace::partial::Cut::default();
        let mut source = import::open_partial(&file, Format::DramSim3, cut.clone()).unwrap();
        let (mut batch, mut read) = (Batch::default(), 0);
        while source.next(&mut batch).unwrap() {
            read += batch.accesses.len();
        }

        std::fs::remove_file(&file).unwrap();
        assert_eq!(read, good);
        let why = cut.get().unwrap();
        assert!(
            why.contains(&format!("line {}", good + 1)) || why.contains(&format!(":{}", good + 1)),
            "{why}"
        );
        assert!(why.contains("cycle: `-5` is no decimal number"), "{why}");
    }
}
