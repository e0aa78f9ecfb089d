//! `terrace reproduce klocs`: recordings in place of calls that are made up. What becomes of them
//! is tested where it is simulated (`terrace-sim`, `reproduce::klocs`).

use std::fs::{self, File};

mod common;

use common::terrace;
use terrace_core::Nanos;
use terrace_sim::kernel::Call;
use terrace_sim::kernel::recorded::{self, Made, RecordedFile, Recording};

#[test]
fn a_recording_stands_for_one_program_or_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let calls = |count: usize| Recording {
        threads: 1,
        files: vec![RecordedFile::default()],
        calls: [Call::Create { file: 0 }, Call::Write { file: 0, offset: 0, bytes: 5 << 20 }]
            .map(|call| Made { thread: 0, cpu: 0, at: Nanos(0), took: Nanos(1), call })[..count]
            .to_vec(),
        ..Recording::default()
    };
    for (name, count) in [("none", 0), ("small", 1), ("good", 2)] {
        recorded::write(File::create(path(name)).unwrap(), &calls(count)).unwrap();
    }
    let whole = fs::read(path("good")).unwrap();
    fs::write(path("cut"), &whole[..whole.len() - 1]).unwrap();
    fs::write(path("text"), "I  0400d7d4,8\n L 10000000,8\n").unwrap();
    let given = |program: &str, name: &str| format!("--trace={program}={}", path(name).display());
    let rocksdb = |name| vec![given("rocksdb", name)];
    for (options, message) in [
        (vec![given("mcf", "good")], "--trace: `mcf` is none of rocksdb, redis, filebench, "),
        (vec![given("redis", "good"), given("redis", "good")], "--trace: `redis` is given twice"),
        (vec!["--trace=spark".to_owned()], "--trace: `spark` is not of the form NAME=FILE"),
        (rocksdb("nowhere"), "nowhere: No such file"),
        (rocksdb("none"), "none: it has no calls"),
        (rocksdb("small"), "small: it uses 0 B of files at once; with less than 4.66 MiB "),
        (rocksdb("cut"), "cut:"),
        (rocksdb("text"), "text: not a recording of calls (`terrace record --calls`)"),
        // Nothing is overwritten that is read.
        (
            vec![given("rocksdb", "good"), format!("--html={}", path("good").display())],
            "--html and --trace are the same file",
        ),
    ] {
        let output = terrace().args(["reproduce", "klocs"]).args(&options).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{options:?}: {stderr}");
        assert!(stderr.contains(message), "{options:?}: {stderr}");
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
        assert!(output.stdout.is_empty(), "{options:?}");
    }
    assert_eq!(fs::read(path("good")).unwrap(), whole);
}
