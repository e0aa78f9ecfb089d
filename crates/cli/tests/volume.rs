//! `terrace volume`: what is made is found again, damage is told and repaired, nothing is
//! overwritten.

mod common;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use common::{binary, example, json, shell, shown_works, terrace};
use tempfile::TempDir;

/// A directory that is not in memory, so that group commit can be had.
fn directory() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

fn made(directory: &TempDir) -> PathBuf {
    let image = directory.path().join("disk.vol");
    let made =
        json(terrace().args(["volume", "create", "--size", "1MiB", "--json"]).arg(&image), 0);
    assert_eq!(made["durability"], "group-commit");
    assert_eq!(made["sector"], 4096);
    image
}

fn refused(words: &[&str], image: &PathBuf, code: i32) -> String {
    let output = terrace().arg("volume").args(words).arg(image).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(code), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    said
}

#[test]
fn what_is_made_is_found_again_and_is_zeros_at_first() {
    let directory = directory();
    let image = made(&directory);

    let info = json(terrace().args(["volume", "info", "--json"]).arg(&image), 0);
    assert_eq!(info["unwritten"], info["sectors"]);
    assert_eq!(info["durability"], "group-commit");
    let out = directory.path().join("disk.img");
    let dumped = json(terrace().args(["volume", "dump", "--json"]).arg(&image).arg(&out), 0);
    let content = fs::read(&out).unwrap();
    assert_eq!(dumped["bytes"], info["capacity"]);
    assert_eq!(content.len() as u64, info["capacity"].as_u64().unwrap());
    assert!(content.iter().all(|byte| *byte == 0));
}

/// The page's commands, as they stand there.
#[test]
fn the_example_of_the_page_works() {
    let directory = directory();

    let said = shown_works(&mut shell(&example("volume.md", "volume"), directory.path()));

    assert!(said.contains("group-commit"), "{said}");
    let dumped = fs::metadata(directory.path().join("disk.img")).unwrap().len();
    assert!(dumped > 16 << 20, "it has grown: {dumped}");
    let mut left: Vec<_> = fs::read_dir(directory.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    left.sort_unstable();
    assert_eq!(left, ["disk.img", "disk.vol"]);
}

#[test]
fn a_file_that_is_there_is_not_overwritten_and_wrong_sizes_make_no_file() {
    let directory = directory();
    let image = made(&directory);
    let before = fs::read(&image).unwrap();
    let said = refused(&["create", "--size", "1MiB"], &image, 2);
    assert!(said.contains("--replace"), "{said}");
    assert!(fs::read(&image).unwrap() == before);

    let other = directory.path().join("other");
    let said = refused(&["create", "--size", "16KiB"], &other, 2);
    assert!(said.contains("too few"), "{said}");
    refused(&["create"], &other, 2);
    refused(&["create", "--size", "1MiB", "--durability", "dax"], &other, 3);
    assert!(!other.exists());
}

#[test]
fn damage_is_told_and_a_superblock_is_repaired_from_the_other() {
    let directory = directory();
    let image = made(&directory);
    let file = fs::File::options().write(true).open(&image).unwrap();
    file.write_all_at(&[0xff; 16], 40).unwrap();
    // The first entries of the map: two in one block, one out of range.
    for (lba, entry) in [(0, 1u64 << 63), (1, 1 << 63), (2, (1 << 63) | 0xf_ffff)] {
        file.write_all_at(&entry.to_le_bytes(), 4096 + lba * 8).unwrap();
    }
    drop(file);

    let found = json(terrace().args(["volume", "check", "--json"]).arg(&image), 1);
    assert!(found["first_superblock"].as_str().unwrap().contains("checksum"), "{found}");
    assert_eq!(found["damage"].as_array().unwrap().len(), 2, "{found}");
    let out = directory.path().join("out");
    let dump = terrace().args(["volume", "dump"]).arg(&image).arg(&out).output().unwrap();
    assert_eq!(dump.status.code(), Some(1));
    assert!(!out.exists());
    let dumped =
        json(terrace().args(["volume", "dump", "--partial", "--json"]).arg(&image).arg(&out), 0);
    assert_eq!(dumped["unreadable"], 3);

    let repaired = json(terrace().args(["volume", "check", "--repair", "--json"]).arg(&image), 1);
    assert_eq!(repaired["repaired_superblocks"], 1);
    let words = ["volume", "check", "--repair", "--mark-lost", "--json"];
    let given_up = json(terrace().args(words).arg(&image), 0);
    assert_eq!(given_up["newly_lost"].as_array().unwrap().len(), 3);
    let clean = json(terrace().args(["volume", "check", "--json"]).arg(&image), 0);
    assert_eq!(clean["lost_sectors"], 3);
}

#[test]
fn a_volume_grows_with_its_file() {
    let directory = directory();
    let image = made(&directory);
    let grown = json(terrace().args(["volume", "grow", "--size", "2MiB", "--json"]).arg(&image), 0);
    assert!(grown["capacity"].as_u64() > grown["capacity_before"].as_u64());
    json(terrace().args(["volume", "check", "--json"]).arg(&image), 0);
    let said = refused(&["grow", "--size", "2MiB"], &image, 2);
    assert!(said.contains("cannot grow"), "{said}");

    let words = ["volume", "grow", "--size", "4MiB", "--spare", "200", "--json"];
    let grown = json(terrace().args(words).arg(&image), 0);
    assert!(grown["spare_blocks"].as_u64() >= Some(200), "{grown}");
    // A volume that cannot grow keeps its length, and its last superblock at the end.
    let file = fs::File::options().write(true).open(&image).unwrap();
    let map = fs::metadata(&image).unwrap().len() - 4096 - 8192;
    file.write_all_at(&7u64.to_le_bytes(), map).unwrap();
    let said = refused(&["grow", "--size", "16MiB"], &image, 2);
    assert!(said.contains("damaged"), "{said}");
    assert_eq!(fs::metadata(&image).unwrap().len(), 4 << 20);
}

/// To write the content over what it is read from would be the end of the volume.
#[test]
fn a_volume_is_not_dumped_over_itself() {
    let directory = directory();
    let image = made(&directory);
    let before = fs::read(&image).unwrap();
    let out = fs::File::options().write(true).open(&image).unwrap();
    let dump = std::process::Command::new(binary())
        .args(["volume", "dump"])
        .args([&image, &PathBuf::from("-")])
        .stdout(out)
        .output()
        .unwrap();
    let said = String::from_utf8(dump.stderr).unwrap();
    assert_eq!(dump.status.code(), Some(2), "{said}");
    assert!(said.contains("are the same"), "{said}");
    assert!(fs::read(&image).unwrap() == before);
}

/// Nobody may ever write to it.
#[test]
fn a_pipe_is_refused_and_not_waited_for() {
    let directory = directory();
    let pipe = directory.path().join("pipe");
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    for words in [&["info"][..], &["check"], &["create", "--replace"], &["grow"]] {
        let said = refused(words, &pipe, 2);
        assert!(said.contains("a file or a device"), "{said}");
    }
    let out = directory.path().join("out");
    let dump = terrace().args(["volume", "dump"]).args([&pipe, &out]).output().unwrap();
    assert_eq!(dump.status.code(), Some(2));
}

/// A file as a block device, until it is dropped.
struct Loop(PathBuf);

impl Loop {
    /// `None` where this machine makes none.
    fn of(file: &std::path::Path, more: &[&str]) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            return None;
        }
        let losetup = std::process::Command::new("losetup")
            .args(["--find", "--show"])
            .args(more)
            .arg(file)
            .output()
            .ok()?;
        let name = String::from_utf8(losetup.stdout).ok()?;
        losetup.status.success().then(|| Self(PathBuf::from(name.trim())))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = std::process::Command::new("losetup").arg("--detach").arg(&self.0).status();
    }
}

/// What a device holds is lost by a volume that is made on it; and its bytes have more than one name.
#[test]
fn a_device_that_holds_something_or_is_in_use_is_left_alone() {
    let directory = directory();
    let file = directory.path().join("file");
    fs::write(&file, vec![0; 8 << 20]).unwrap();
    let Some(device) = Loop::of(&file, &[]) else {
        terrace_shown::is_missing("a loop device, as root");
        return;
    };
    let raw = fs::File::options().write(true).open(&device.0).unwrap();
    for at in [1080u64, 70_000, (8 << 20) - 100] {
        raw.write_all_at(&[0x53], at).unwrap();
        let said = refused(&["create"], &device.0, 2);
        assert!(said.contains(&format!("byte {at} ")) && said.contains("--replace"), "{said}");
        raw.write_all_at(&[0], at).unwrap();
    }
    json(terrace().args(["volume", "create", "--json"]).arg(&device.0), 0);
    raw.sync_all().unwrap();
    drop(raw);

    let name = device.0.to_str().unwrap();
    for (image, output) in [(name, file.to_str().unwrap()), (file.to_str().unwrap(), name)] {
        let output = terrace().args(["volume", "dump", image, output]).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains("are the same"), "{said}");
    }
    let exclusive = std::os::unix::fs::OpenOptionsExt::custom_flags(
        fs::File::options().read(true),
        rustix::fs::OFlags::EXCL.bits() as i32,
    )
    .open(&device.0)
    .unwrap();
    for words in [&["create", "--replace"][..], &["grow"], &["check", "--repair"]] {
        let said = refused(words, &device.0, 2);
        assert!(said.contains("in use"), "{said}");
    }
    drop(exclusive);

    // By the device and by the file behind it, one has it.
    let held = fs::File::open(&file).unwrap();
    rustix::fs::flock(&held, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let said = refused(&["check", "--repair"], &device.0, 2);
    assert!(said.contains("another process"), "{said}");
    drop(held);

    let read_only = Loop::of(&file, &["--read-only"]).unwrap();
    let said = refused(&["serve", "--socket", "s"], &read_only.0, 2);
    assert!(said.contains("read-only"), "{said}");
}

#[test]
fn what_is_no_volume_is_refused_with_the_reason() {
    let directory = directory();
    let image = directory.path().join("plain");
    fs::write(&image, vec![7; 100_000]).unwrap();
    let said = refused(&["info"], &image, 2);
    assert!(said.contains("no valid superblock"), "{said}");
    refused(&["check"], &directory.path().join("missing"), 2);

    let image = made(&directory);
    fs::File::options().write(true).open(&image).unwrap().set_len(500_000).unwrap();
    let said = refused(&["info"], &image, 2);
    assert!(said.contains("truncated"), "{said}");

    // The end of one volume behind the beginning of another.
    let [one, other] = ["one", "other"].map(|name| directory.path().join(name));
    for image in [&one, &other] {
        json(terrace().args(["volume", "create", "--size", "1MiB", "--json"]).arg(image), 0);
    }
    let mut end = [0; 4096];
    let at = (1 << 20) - 4096;
    fs::File::open(&other).unwrap().read_exact_at(&mut end, at).unwrap();
    fs::File::options().write(true).open(&one).unwrap().write_all_at(&end, at).unwrap();
    for words in [&["info"][..], &["serve", "--socket", "s"]] {
        let said = refused(words, &one, 2);
        assert!(said.contains("different volumes"), "{said}");
    }
    // A check says that it is damaged, in its own words.
    for (image, what) in [(&one, "different volumes"), (&image, "truncated")] {
        for words in [&["check", "--json"][..], &["check", "--repair", "--json"]] {
            let found = json(terrace().arg("volume").args(words).arg(image), 1);
            assert_eq!(found["clean"], false);
            assert!(found["damage"][0].as_str().unwrap().contains(what), "{found}");
        }
    }
    refused(&["check"], &directory.path().join("plain"), 2);
}

/// What the device does is tested in a guest (`tests/guest/tests/volume_ublk.sh`).
#[test]
fn where_the_kernel_makes_no_block_devices_that_is_said() {
    if std::path::Path::new("/dev/ublk-control").exists() {
        terrace_shown::is_missing("a system without /dev/ublk-control");
        return;
    }
    let directory = directory();
    let image = made(&directory);
    let said = refused(&["serve", "--ublk"], &image, 3);
    assert!(said.contains("/dev/ublk-control") && said.contains("ublk_drv"), "{said}");
}

/// A server that is told to stop keeps what was written, also what no client has flushed.
#[test]
fn a_served_volume_is_locked_and_keeps_what_was_written() {
    let directory = directory();
    let image = made(&directory);
    let socket = directory.path().join("s");
    let mut server = std::process::Command::new(binary())
        .args(["volume", "serve", "--json", "--socket"])
        .arg(&socket)
        .arg(&image)
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(server.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    let served: serde_json::Value = serde_json::from_str(&line).unwrap();
    assert_eq!(served["durability"], "group-commit");

    for words in [&["info"][..], &["serve", "--socket", "another"], &["check", "--repair"]] {
        let said = refused(words, &image, 2);
        assert!(said.contains("another process"), "{said}");
    }
    assert!(!PathBuf::from("another").exists());
    let mut client = UnixStream::connect(&socket).unwrap();
    // Negotiation by the export's (empty) name, a write of one sector, and the end.
    let hello = [&3u32.to_be_bytes()[..], b"IHAVEOPT", &1u32.to_be_bytes(), &[0; 4]].concat();
    client.write_all(&hello).unwrap();
    client.read_exact(&mut [0; 28]).unwrap();
    let write =
        [&0x2560_9513_u32.to_be_bytes()[..], &[0, 0, 0, 1], &[0; 16], &4096u32.to_be_bytes()];
    client.write_all(&[&write.concat()[..], &[7; 4096]].concat()).unwrap();
    let mut reply = [0; 16];
    client.read_exact(&mut reply).unwrap();
    assert_eq!(reply[4..8], [0; 4]);

    let pid = rustix::process::Pid::from_child(&server);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert!(server.wait().unwrap().success());
    assert!(!socket.exists());
    let out = directory.path().join("out");
    json(terrace().args(["volume", "dump", "--json"]).arg(&image).arg(&out), 0);
    assert!(fs::read(&out).unwrap()[..4097] == [&[7; 4096][..], &[0]].concat());
}

/// A server that starts and takes no client would be found out too late.
#[test]
fn what_cannot_be_served_is_said_before_anything_is_begun() {
    let directory = directory();
    let image = directory.path().join("small.vol");
    let words = ["volume", "create", "--size", "2MiB", "--spare", "16", "--json"];
    json(terrace().args(words).arg(&image), 0);
    let info = json(terrace().args(["volume", "info", "--json"]).arg(&image), 0);
    assert_eq!(info["lanes"], 1);
    let [file, socket] = ["file", "socket"].map(|name| directory.path().join(name));
    fs::write(&file, "").unwrap();
    let [file, socket] = [file.to_str().unwrap(), socket.to_str().unwrap()];
    let said = refused(&["serve", "--fuse", file, "--socket", socket], &image, 2);
    assert!(said.contains("one lane") && said.contains("--spare"), "{said}");
    let said = refused(&["serve", "--socket", file], &image, 2);
    assert!(said.contains("no socket"), "{said}");
    let missing = directory.path().join("missing/socket");
    refused(&["serve", "--socket", missing.to_str().unwrap()], &image, 2);

    for (option, value, code) in [("--size", "1KiB", 2), ("--durability", "dax", 3)] {
        let bench = terrace().args(["volume", "bench", option, value]).arg(directory.path());
        let bench = bench.output().unwrap();
        let said = String::from_utf8(bench.stderr).unwrap();
        assert_eq!(bench.status.code(), Some(code), "{said}");
        assert!(said.contains(option) || said.contains(value), "{said}");
    }
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 2, "nothing is left");
    let empty = directory.path().join("empty");
    fs::write(&empty, "").unwrap();
    let said = refused(&["info"], &empty, 2);
    assert!(said.contains("empty"), "{said}");
}

#[test]
fn a_port_that_other_machines_reach_is_refused() {
    let directory = directory();
    let image = made(&directory);
    let said = refused(&["serve", "--tcp", "0.0.0.0:10809"], &image, 2);
    assert!(said.contains("not") && said.contains("encrypted"), "{said}");
}

/// A file over which a volume is mounted reads as the volume, and takes what is written.
#[test]
fn a_volume_is_served_as_a_file() {
    let usable = fs::File::options().read(true).write(true).open("/dev/fuse").is_ok();
    if !usable || !rustix::process::geteuid().is_root() {
        terrace_shown::is_missing("/dev/fuse, as root");
        return;
    }
    let directory = directory();
    let image = made(&directory);
    let file = directory.path().join("file");
    fs::write(&file, "").unwrap();
    let mut server = std::process::Command::new(binary())
        .args(["volume", "serve", "--json", "--fuse"])
        .args([&file, &image])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(server.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    let served: serde_json::Value = serde_json::from_str(&line).unwrap();
    assert_eq!(served["durability"], "group-commit");

    let open = fs::File::options().read(true).write(true).open(&file).unwrap();
    open.write_all_at(&[9; 4096], 4096).unwrap();
    open.sync_all().unwrap();
    let mut read = [0; 4096];
    open.read_exact_at(&mut read, 4096).unwrap();
    assert_eq!(read, [9; 4096]);
    drop(open);

    let pid = rustix::process::Pid::from_child(&server);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert!(server.wait().unwrap().success());
    assert_eq!(fs::read(&file).unwrap(), b"", "it is what it was");
    let out = directory.path().join("out");
    json(terrace().args(["volume", "dump", "--json"]).arg(&image).arg(&out), 0);
    assert!(fs::read(&out).unwrap()[4096..8192] == [9; 4096]);
}

/// What is measured is said for each size of sector and number of threads that was asked for.
#[test]
fn a_bench_measures_what_it_was_asked_to() {
    let directory = directory();
    let short = ["--size", "4MiB", "--rounds", "1", "--turn", "1ms"];
    let bench = |more: &[&str]| {
        let command = terrace().args(["volume", "bench", "--json"]).args(short).args(more);
        json(command.arg(directory.path()), 0)["library"].as_array().unwrap().clone()
    };
    let rows = |section: &serde_json::Value| section["rows"].as_array().unwrap().clone();

    let both = bench(&["--durability", "process-crash-only", "--threads", "1,2"]);
    assert_eq!((&both[0]["sector"], &both[1]["sector"]), (&512.into(), &4096.into()));
    assert_eq!(both[0]["durability"], "process-crash-only");
    assert!(rows(&both[0]).iter().any(|row| row["job"]["threads"] == 2));
    let one = bench(&["--like-dax", "--sector", "4096", "--threads", "1"]);
    assert_eq!(one.len(), 1);
    assert!(one[0]["durability"].as_str().unwrap().starts_with("none"), "{one:?}");
    assert!(rows(&one[0]).iter().all(|row| row["job"]["threads"] == 1));
    assert!(rows(&one[0]).iter().all(|row| row["per_second"]["median"].as_f64() > Some(0.0)));
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0, "nothing is left");
}

/// Servers, the mount over a file and its loop device hold what is measured.
#[test]
fn a_bench_of_servers_that_is_told_to_end_leaves_neither_mount_nor_loop_device_nor_server() {
    use std::time::{Duration, Instant};

    let usable = fs::File::options().read(true).write(true).open("/dev/fuse").is_ok();
    if !usable || !rustix::process::geteuid().is_root() {
        terrace_shown::is_missing("/dev/fuse, as root");
        return;
    }
    let directory = directory();
    let ours = directory.path().to_str().unwrap();
    let mounted = || fs::read_to_string("/proc/self/mountinfo").unwrap().contains(ours);
    // Processes that were started with the directory as an argument.
    let servers = || {
        let all = fs::read_dir("/proc").unwrap().flatten();
        let lines = all.filter_map(|entry| fs::read_to_string(entry.path().join("cmdline")).ok());
        lines.filter(|line| line.contains("\0serve\0") && line.contains(ours)).count()
    };
    // Loop devices and the files that they are of, as far as these have a path.
    let loops = || {
        let all = fs::read_dir("/sys/block").unwrap().flatten().map(|entry| entry.path());
        let file = |device: &PathBuf| fs::read_to_string(device.join("loop/backing_file"));
        all.filter_map(|device| Some((file(&device).ok()?, device))).collect::<Vec<_>>()
    };
    let attached = || loops().into_iter().find(|(file, _)| file.contains(ours));
    for wait in [false, true] {
        let mut bench = std::process::Command::new(binary())
            .args(["volume", "bench", "--served", "--size", "4MiB", "--rounds", "300"])
            .args(["--turn", "1ms", "--threads", "1", "--sector", "4096", "--like-dax"])
            .arg(directory.path())
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let begun = Instant::now();
        while !mounted() {
            assert!(begun.elapsed() < Duration::from_mins(1), "it does not begin");
            assert!(bench.try_wait().unwrap().is_none(), "it is over");
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(servers(), 2);
        // Where the machine has loop devices, it attaches one then.
        while wait && attached().is_none() && begun.elapsed() < Duration::from_secs(20) {
            std::thread::sleep(Duration::from_millis(5));
        }
        let device = attached().map(|(_, device)| device);

        let pid = rustix::process::Pid::from_child(&bench);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        let status = bench.wait().unwrap();

        let ended_by = std::os::unix::process::ExitStatusExt::signal(&status);
        assert_eq!(ended_by, Some(15), "{status}");
        assert!(!mounted());
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0, "nothing is left");
        // A process that was killed is there until it is taken down, and a loop device that it has
        // open until that is closed.
        let is_attached = || loops().iter().any(|(_, other)| Some(other) == device.as_ref());
        let begun = Instant::now();
        while servers() > 0 || is_attached() {
            assert!(begun.elapsed() < Duration::from_secs(20), "a server or a loop device is left");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
