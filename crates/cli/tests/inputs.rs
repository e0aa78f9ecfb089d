//! Traces of other tools that were read wrongly: each stands for a kind of fault.
//! What is right comes out, what is none is refused with exit code 2, and what was
//! skipped, dropped or folded is said on stderr.

mod common;

use std::fs;
use std::path::{Path, PathBuf};

use common::{json, refused, terrace};
use serde_json::Value;
use tempfile::TempDir;

/// An input in a directory of its own.
struct Input {
    dir: TempDir,
    file: PathBuf,
}

fn input(name: &str, content: impl AsRef<[u8]>) -> Input {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join(name);
    fs::write(&file, content).unwrap();
    Input { dir, file }
}

impl Input {
    /// `terrace convert`, in JSON, with what it says on stderr.
    fn converted(&self) -> (Value, String) {
        let out = self.dir.path().join("out.trace");
        let output =
            terrace().args(["--json", "convert"]).arg(&self.file).arg(&out).output().unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{errors}");
        let document: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert!(out.is_file());
        (document["input"].clone(), errors)
    }

    /// Why `terrace convert` refuses it; nothing is written.
    fn refused(&self) -> String {
        let out = self.dir.path().join("out.trace");
        refused(terrace().arg("convert").arg(&self.file).arg(&out))
    }

    /// The report of a simulation.
    fn simulated(&self) -> Value {
        let command = ["--json", "sim", "--machine", "cxl", "--policy", "all-dram", "--trace"];
        json(terrace().args(command).arg(&self.file), 0)["report"].clone()
    }
}

fn number(value: &Value, name: &str) -> u64 {
    value[name].as_u64().unwrap_or_else(|| panic!("no {name} in {value}"))
}

/// A software thread ends in the middle of a core's file.
#[test]
fn a_thread_s_end_is_not_the_file_s() {
    let entry = |kind: u16, size: u16, value: u64| {
        [&kind.to_le_bytes()[..], &size.to_le_bytes(), &value.to_le_bytes()].concat()
    };
    let accesses = |base: u64, count: u64| {
        (0..count).flat_map(move |i| {
            [entry(10, 4, 0x40_1000), entry((i & 1) as u16, 8, base + 4096 * i)].concat()
        })
    };
    let mut bytes = Vec::new();
    for (thread, base, count) in [(901, 0x1000_0000, 20), (902, 0x2000_0000, 30)] {
        bytes.extend([entry(25, 0, 7), entry(22, 4, thread), entry(24, 4, 900)].concat());
        bytes.extend(accesses(base, count));
    }
    bytes.extend([entry(26, 0, 0), entry(22, 4, 901)].concat());
    bytes.extend(accesses(0x1010_0000, 25));
    bytes.extend(entry(26, 0, 0));

    let (read, errors) = input("core.drmemtrace", bytes).converted();

    assert_eq!(read["threads"], serde_json::json!({"0": 45, "1": 30}));
    assert_eq!(number(&read, "instructions"), 75);
    assert_eq!(errors, "", "nothing of it was left out");
}

#[test]
fn a_field_is_what_stands_in_its_column() {
    let ibs = " restored 4711/4712 [001] 12.000001: 4096 ibs_op//: 7f12a0c01040 68100142 |OP LOAD|LVL L3 hit|BLK N/A 61 401a2c find+0x1c (/opt/kv)\n \
               restored 4711/4712 [001] 12.000002: 4096 ibs_op//: 7f12a0c02080 68100144 |OP STORE|LVL L1 hit|BLK N/A 0 401a30 put+0x20 (/opt/kv)\n \
               restored 4711/4712 [001] 12.000003: 4096 ibs_op//:         3e20 68100142 |OP LOAD|LVL L2 hit|BLK N/A 14 401a34 find+0x24 (/opt/kv)\n \
               restored 4711/4712 [001] 12.000004: 4096 ibs_op//:            0 68100121 |OP N/A|LVL N/A|BLK N/A 0 401a38 find+0x28 (/opt/kv)\n";
    let (read, errors) = input("ibs.perf", ibs).converted();
    assert_eq!((number(&read, "loads"), number(&read, "stores")), (2, 1));
    assert!(errors.contains("skipped 1 samples without an address"), "{errors}");

    let chains = "app 100/100 1.000001: 1000 cpu/mem-loads/P: 55d0c0ffee40 5080021 |OP LOAD\n\
                  \t    55d0a0001234 inner+0x14 (/bin/app)\n\t    55d0a0005678 main+0x58 (/bin/app)\n\n\
                  app 100/100 1.000002: 1000 cpu/mem-loads/P: 55d0c0ffef80 5080021 |OP LOAD\n\
                  \t    55d0a0001234 inner+0x14 (/bin/app)\n\n";
    let (read, errors) = input("chains.perf", chains).converted();
    assert_eq!((number(&read, "loads"), number(&read, "stores")), (2, 0));
    assert!(errors.contains("skipped 3 frames"), "{errors}");

    let code = "app 200 3.000001: page-faults:      401136 main+0x16 (/bin/app)\n\
                app 200 3.000002: page-faults:      401140 main+0x20 (/bin/app)\n";
    let message = input("code.perf", code).refused();
    assert!(message.contains("perf record -d") && message.contains("-F +addr"), "{message}");

    // The symbol is called as a number may be.
    let code = "app  100 1.000001: cycles:u:           401136 add\n\
                app  100 1.000002: cycles:u:           401140 add\n";
    let message = input("symbol.perf", code).refused();
    assert!(message.contains("perf record -d") && message.contains("-F +addr"), "{message}");
}

/// Events are called `restore_regs` and `uploads`, which neither store nor load.
#[test]
fn a_kind_is_a_whole_word_of_an_event_s_name() {
    let line = |event: &str| {
        format!("app 100/100 1.000001: 1 {event}:     7f00aa000000           401136 f+0x1 (/x)\n")
    };
    for event in ["restore_regs", "uploads"] {
        let (read, errors) = input("other.perf", line(event)).converted();
        assert_eq!((number(&read, "loads"), number(&read, "stores")), (1, 0), "{event}");
        assert!(errors.contains("folded 1 samples that do not say what kind"), "{errors}");
    }
    let all = line("mem_inst_retired.all_stores") + &line("cpu/mem-loads,ldlat=30/P");
    let (read, errors) = input("all.perf", all).converted();
    assert_eq!((number(&read, "loads"), number(&read, "stores")), (1, 1));
    assert!(!errors.contains("do not say"), "{errors}");
}

/// Some editors write a byte-order mark, and a program may be called by any bytes.
#[test]
fn texts_of_other_tools_may_have_a_byte_order_mark_and_names_of_any_bytes() {
    let damo = "target_id: 0\nnr_regions: 1\n1000-3000 (8.000 KiB) 2 -1\n";
    let json = r#"[{"target_id":0,"snapshots":[{"regions":[
        {"start":4096,"end":12288,"nr_accesses":{"samples":2}}]}]}]"#;
    let perf = "app 100/100 1.000001: 1 mem-loads: 7f00aa000000\n";
    for (name, text, loads) in [
        ("raw.damo", damo, 4),
        ("json.damo", json, 4),
        ("some.perf", perf, 1),
        ("some.lackey", "I  04016b80,3\n L 1ffe000010,8\n", 1),
        ("some.dramsim3", "0x1FF96FC0 READ 160\n", 1),
        ("some.ls", "LD 0x12340\n", 1),
    ] {
        let (read, _) = input(name, format!("\u{feff}{text}")).converted();
        assert_eq!(number(&read, "loads"), loads, "{name}");
    }
    let event = b"a\xff\xfeb 1/1 [0] 1.0: damon:damon_aggregated: target_id=0 nr_regions=1 4096-8192: 3 1\n";
    let (read, _) = input("name.damo", event).converted();
    assert_eq!(number(&read, "loads"), 3);
    let sample = b"a\xff\xfeb 4/4 [000] 1.000001: 1 mem-stores: 7f00aa000040\n";
    let (read, _) = input("name.perf", sample).converted();
    assert_eq!(number(&read, "stores"), 1);
}

/// 50 accesses in 50 000 instructions, and what is no such trace.
#[test]
fn instructions_carry_over_and_other_files_are_refused() {
    let record = |ip: u64, load: u64| {
        let mut record = [0; 64];
        record[..8].copy_from_slice(&ip.to_le_bytes());
        record[32..40].copy_from_slice(&load.to_le_bytes());
        record
    };
    let sparse: Vec<u8> = (0..50_000)
        .flat_map(|i: u64| {
            record(
                0x40_0000 + 4 * i,
                if i.is_multiple_of(1000) { 0x700_0000 + 64 * (i / 1000) } else { 0 },
            )
        })
        .collect();
    let file = input("sparse.champsim", &sparse);
    let (read, _) = file.converted();
    assert_eq!((number(&read, "loads"), number(&read, "instructions")), (50, 50_000));
    for name in ["sparse.champsim", "out.trace"] {
        let report = Input { file: file.dir.path().join(name), dir: tempfile::tempdir().unwrap() }
            .simulated();
        assert_eq!((number(&report, "accesses"), number(&report, "instructions")), (50, 50_000));
    }

    let mut zip = [&b"PK\x03\x04"[..], &sparse[..640]].concat();
    zip.resize(zip.len().next_multiple_of(64), 0);
    assert!(input("zip.champsim", zip).refused().contains("zip archive"));
    let mut tar = vec![0; 512];
    tar[..12].copy_from_slice(b"app.champsim");
    tar[257..262].copy_from_slice(b"ustar");
    tar.extend(&sparse[..640]);
    assert!(input("archive.champsim", tar).refused().contains("tar archive"));
}

#[test]
fn foreign_lines_among_lackey_s_are_counted_and_alone_refused() {
    let text = "==7== Lackey\nInitialising tables\nI  04016b80,3\n L 1ffe000010,8\n\
                program: done\n S 1ffe000020,8\n==7== end\n";
    let (read, errors) = input("mixed.lackey", text).converted();
    assert_eq!((number(&read, "loads"), number(&read, "stores")), (1, 1));
    assert!(errors.contains("folded 1 instruction fetches into counts"), "{errors}");
    assert!(errors.contains("skipped 2 lines that are not lackey's"), "{errors}");
    assert!(errors.contains("skipped 2 messages of Valgrind's"), "{errors}");

    let message = input("none.lackey", "nothing\nto see\n").refused();
    assert!(message.contains("not one of its 2 lines is lackey's"), "{message}");
}

/// Of a damaged line it is not known what it told; and a file that has hardly a line of lackey's is
/// none of its traces, however well that one can be read.
#[test]
fn damaged_lines_of_lackey_s_are_told_and_a_file_that_is_not_its_is_refused() {
    let text = "I  04016b80,3\n L 1ffe000010,8\n S 1ffe0000 done\n S 1ffe000020,8\n L 10,x\n";
    let (read, errors) = input("damaged.lackey", text).converted();
    assert_eq!((number(&read, "loads"), number(&read, "stores")), (1, 1));
    assert!(errors.contains("skipped 2 damaged lines, which begin as lackey's"), "{errors}");
    assert!(!errors.contains("lines that are not lackey's"), "{errors}");
    let note = &read["notes"][1];
    assert_eq!((number(note, "count"), note["fate"].as_str()), (2, Some("skipped")), "{read}");

    let message = input("one.lackey", "a\nb\n L 10,8\nc\n S 20\n").refused();
    assert!(message.contains("4 of its first 5 lines are not lackey's"), "{message}");
    assert!(message.contains("1 begin as its lines do and are damaged, line 5 first"), "{message}");
}

/// On both ways into the simulator: read as it is, and converted before.
#[test]
fn a_fetch_is_an_instruction_and_no_load() {
    let mut text = String::new();
    for i in 0..5000u64 {
        text += &format!("I  {:08x},4\n", 0x40_1000 + 4 * (i % 16));
        if i.is_multiple_of(5) {
            text += &format!(" L {:x},8\n", 0x1f_fe00_0000 + 64 * i);
        }
    }
    let file = input("fetches.lackey", text);
    let direct = file.simulated();
    file.converted();
    let out = file.dir.path().join("out.trace");
    let converted = Input { file: out, dir: tempfile::tempdir().unwrap() }.simulated();
    for report in [&direct, &converted] {
        assert_eq!(number(report, "instructions"), 5000);
        assert_eq!((number(report, "accesses"), number(&report["l1"], "loads")), (1000, 1000));
    }
    assert_eq!(direct["time"], converted["time"]);
    assert_eq!(direct["input"]["notes"][0]["count"], 5000, "told in JSON, too");
    assert_eq!(converted["input"]["notes"], serde_json::json!([]));
}

#[test]
fn cycles_are_used_and_addresses_beyond_48_bits_refused() {
    let requests = |step: u64| {
        let line = |i: u64| format!("0x{:x} READ {}\n", 0x10_0000 + 64 * i, step * i);
        let text: String = (0..1000).map(line).collect();
        number(&input("requests.dramsim3", text).simulated(), "time")
    };
    assert!(requests(100_000) > 10 * requests(1));

    let message = input("wide.dramsim3", "0xFEDCBA9876543210 WRITE 6\n").refused();
    assert!(message.contains("wide.dramsim3:1: the address 0xfedcba98"), "{message}");
}

/// In every file of ours that people write.
#[test]
fn a_byte_order_mark_is_no_part_of_a_file() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let marked = |text: &str| input("bom.toml", format!("\u{feff}{text}"));
    let ladder = "ladder = 1\n[[tier]]\nmemory = \"dram\"\ncapacity = \"64MiB\"\n\
                  [[tier]]\nmemory = \"compressed\"\n";
    let machine = fs::read_to_string(root.join("machines/cxl.toml")).unwrap();
    let memory = fs::read_to_string(root.join("machines/memory/kindle.toml")).unwrap();
    for text in [ladder, &machine, &memory] {
        let file = marked(text);
        terrace().arg("check").arg(&file.file).assert().success();
    }
    let grid =
        marked("schema = 1\n[grid]\npolicy = \"all-dram\"\nsize = \"1MiB\"\naccesses = 1000\n");
    let out = grid.dir.path().join("results");
    terrace().arg("sweep").arg(&grid.file).arg("-o").arg(&out).assert().success();
    let command =
        ["sim", "--algorithm", "gups", "--size", "1MiB", "--accesses", "1000", "--machine"];
    terrace().args(command).arg(&marked(&machine).file).assert().success();
}
