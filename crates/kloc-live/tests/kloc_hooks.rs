//! What the hooks tell of files, on the kernel that runs: as root, or not at all.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use terrace_core::{Bytes, ContextIdentity};
use terrace_kloc_live::act::handle;
use terrace_kloc_live::observe::event::{FileEvent, Kind};
use terrace_kloc_live::observe::hooks::{HookSet, NAMES, USED_IN_PLACE, Wanted};
use terrace_kloc_live::observe::load::Loaded;

/// A set of hooks, or nothing where this machine may lack it.
fn loaded(set: HookSet, objects: bool) -> Option<Loaded> {
    match Loaded::new(set, &Wanted { objects, ..Wanted::default() }) {
        Ok(loaded) => Some(loaded),
        Err(why) => {
            eprintln!("{set:?}: {why}");
            assert!(
                set == HookSet::Trampolines || std::env::var_os("TERRACE_UNSUPPORTED_OK").is_some(),
                "tracepoints can be had by root on every kernel from 6.1 on: {why}"
            );
            None
        }
    }
}

fn directory() -> tempfile::TempDir {
    tempfile::tempdir_in(".").unwrap()
}

/// The events of a file. The test's own are left out, so a child makes them.
fn events_of(loaded: &mut Loaded, inode: u64) -> Vec<FileEvent> {
    let mut found = Vec::new();
    while let Some(event) = loaded.next_event() {
        if matches!(event.file, ContextIdentity::File { inode: its, .. } if its == inode) {
            found.push(event);
        }
    }
    found
}

fn shell(script: &str, path: &PathBuf) {
    let status = Command::new("/bin/sh").args(["-c", script, "sh"]).arg(path).status().unwrap();
    assert!(status.success(), "{script}");
}

/// One file, written, read and deleted: each open and close is told once, with the number of
/// pages that are cached, the generation by which it can be opened, and its end.
#[test]
fn each_open_and_close_is_told_with_what_is_cached() {
    for set in [HookSet::Trampolines, HookSet::Tracepoints] {
        let Some(mut loaded) = loaded(set, false) else { continue };
        let directory = directory();
        let path = directory.path().join("file");
        shell("head -c 1048576 /dev/zero >\"$1\"", &path);
        let inode = fs::metadata(&path).unwrap().ino();
        let mut written = events_of(&mut loaded, inode);
        // Its number was another file's a moment ago, perhaps, whose events are none of this one's.
        let last = written.last().map(|event| event.file);
        written.retain(|event| Some(event.file) == last);
        let kinds: Vec<_> = written.iter().map(|event| event.kind).collect();
        assert_eq!(kinds, [Kind::Opened, Kind::Closed], "{set:?}: {written:?}");
        let closed = &written[1];
        assert_eq!((closed.pages, closed.length), (256, Bytes::mib(1)), "{set:?}");
        assert!(closed.links == 1 && closed.at >= written[0].at);
        let ContextIdentity::File { device, .. } = closed.file else { unreachable!() };
        assert_eq!(device, fs::metadata(&path).unwrap().dev());
        // The test's own opens are none of its business.
        let mut own = File::open(&path).unwrap();
        own.read_exact(&mut [0; 4096]).unwrap();
        drop(own);
        shell("cat \"$1\" >/dev/null", &path);
        let read = events_of(&mut loaded, inode);
        let kinds: Vec<_> = read.iter().map(|event| event.kind).collect();
        assert_eq!(kinds, [Kind::Opened, Kind::Closed], "{set:?}: {read:?}");
        assert_eq!(read[0].pages, 256);
        assert_eq!(read[1].file, closed.file, "the same generation");
        fs::remove_file(&path).unwrap();
        let gone = events_of(&mut loaded, inode);
        // On other file systems than ext4, tracepoints do not tell of it.
        let ext4 = closed.magic == 0xef53;
        if set == HookSet::Trampolines || ext4 {
            assert_eq!(gone.iter().map(|e| e.kind).collect::<Vec<_>>(), [Kind::Evicted]);
            assert_eq!(gone[0].links, 0, "it was deleted");
        }
    }
}

/// How many names of a file the kernel's cache has is told with each open; by trampolines also when
/// one comes or goes.
#[test]
fn names_are_told_with_each_open_and_as_they_come_and_go() {
    for set in [HookSet::Trampolines, HookSet::Tracepoints] {
        let Some(mut loaded) = loaded(set, true) else { continue };
        assert!(loaded.has_names(), "{:?}", loaded.lacks());
        let directory = directory();
        let path = directory.path().join("file");
        let opened = |events: &[FileEvent]| {
            let last = events.iter().rev().find(|event| event.kind == Kind::Opened);
            last.map(|event| event.names)
        };
        // What is open keeps its name in the cache.
        shell(": >\"$1\"; ln \"$1\" \"$1.link\"; exec 3<\"$1\" 4<\"$1.link\"", &path);
        let metadata = fs::metadata(&path).unwrap();
        let file = (metadata.dev(), metadata.ino());
        let events = events_of(&mut loaded, metadata.ino());
        assert_eq!(opened(&events), Some(Some(2)), "{set:?}: {events:?}");
        let told = loaded.take_names().get(&file).map(|names| names.count);
        assert_eq!(told, loaded.knows(NAMES).then_some(2), "{set:?}: {:?}", loaded.lacks());
        shell("rm \"$1.link\"; exec 3<\"$1\"", &path);
        let events = events_of(&mut loaded, metadata.ino());
        assert_eq!(opened(&events), Some(Some(1)), "{set:?}: {events:?}");
        let told = loaded.take_names().get(&file).map(|names| names.count);
        assert_eq!(told, loaded.knows(NAMES).then_some(1), "{set:?}: {:?}", loaded.lacks());
    }
}

/// Looks until a look has told this of a file; gives all that was told of it until then.
fn looked(loaded: &mut Loaded, inode: u64, last: Kind) -> Vec<FileEvent> {
    let (mut all, begun) = (Vec::new(), Instant::now());
    while !all.iter().any(|event: &FileEvent| event.kind == last) {
        assert!(begun.elapsed() < Duration::from_mins(1), "no {last:?}: {all:?}");
        std::thread::sleep(Duration::from_millis(1));
        loaded.poll(true);
        all.extend(events_of(loaded, inode));
    }
    all
}

/// Without a hook on opens: what is used between two looks, and what a look finds open.
#[test]
fn looks_and_uses_of_pages_tell_what_is_opened_and_closed() {
    let Some(mut loaded) = loaded(HookSet::Polled, false) else { return };
    assert!(loaded.lacks().iter().any(|lack| lack.contains("lower bounds")), "{loaded:?}");
    let directory = directory();
    let magic = handle::file_system(directory.path()).unwrap();
    if !handle::is_supported(magic) {
        return eprintln!("what is closed on {} is not counted", handle::file_system_name(magic));
    }
    let path = directory.path().join("file");
    // What is open now was so before.
    loaded.poll(true);
    while loaded.next_event().is_some() {}
    let kinds = |events: &[FileEvent]| events.iter().map(|event| event.kind).collect::<Vec<_>>();
    // No look sees it open: pages tell.
    shell("head -c 1048576 /dev/zero >\"$1\"", &path);
    let metadata = fs::metadata(&path).unwrap();
    let inode = metadata.ino();
    let mut written = looked(&mut loaded, inode, Kind::Closed);
    // Its number was another file's a moment ago, perhaps, whose events are none of this one's.
    let file = written.last().map(|event| event.file).expect("its close");
    written.retain(|event| event.file == file);
    assert_eq!(kinds(&written), [Kind::Opened, Kind::Closed], "{written:?}");
    assert!(written[0].pages == 0 && written[1].at >= written[0].at, "{written:?}");
    let ContextIdentity::File { device, .. } = file else { unreachable!() };
    assert_eq!((device, written[1].links), (metadata.dev(), 1));
    assert_eq!((written[1].pages, written[1].length), (256, Bytes::mib(1)));
    // The test's own use is none.
    let mut own = File::open(&path).unwrap();
    own.read_exact(&mut [0; 4096]).unwrap();
    // A look finds it open, though nothing of it is used.
    let mut holder = Command::new("/bin/sh")
        .args(["-c", "exec 3<\"$1\"; echo open; read line", "sh"])
        .arg(&path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(holder.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let opened = looked(&mut loaded, inode, Kind::Opened);
    assert_eq!(kinds(&opened), [Kind::Opened], "{opened:?}");
    assert_eq!((opened[0].file, opened[0].pages), (file, 256));
    assert_eq!(opened[0].command_name(), "sh");
    let pages = |loaded: &Loaded| loaded.open_files().and_then(|files| files.pages(&file));
    assert_eq!(pages(&loaded), Some(256));
    drop(holder.stdin.take());
    holder.wait().unwrap();
    let closed = looked(&mut loaded, inode, Kind::Closed);
    assert_eq!(kinds(&closed), [Kind::Closed], "{closed:?}");
    assert_eq!(pages(&loaded), None);
    drop(own);
    // It is used again, and all of it is in place.
    if loaded.knows(USED_IN_PLACE) {
        shell("cat \"$1\" >/dev/null", &path);
        let read = looked(&mut loaded, inode, Kind::Closed);
        assert_eq!(kinds(&read), [Kind::Opened, Kind::Closed], "{read:?}");
        assert_eq!((read[0].file, read[0].pages), (file, 256));
    }
    fs::remove_file(&path).unwrap();
    let gone = events_of(&mut loaded, inode);
    // On other file systems than ext4, no tracepoint tells of it.
    if magic == handle::EXT4 {
        assert_eq!(kinds(&gone), [Kind::Evicted]);
    }
}

/// Block transfers are counted for the file that they are for.
#[test]
fn transfers_are_those_of_the_file() {
    let Some(mut loaded) = loaded(HookSet::Tracepoints, true) else { return };
    let directory = directory();
    let path = directory.path().join("transferred");
    let mut file = File::create(&path).unwrap();
    file.write_all(&vec![7; 1 << 20]).unwrap();
    file.sync_all().unwrap();
    let metadata = file.metadata().unwrap();
    let taken = loaded.take_transfers();
    if let Some(transfers) = taken.get(&(metadata.dev(), metadata.ino())) {
        assert!(transfers.bytes >= Bytes::mib(1), "{transfers:?}");
        assert!(transfers.count >= 1);
    } else {
        // A file system without a block device under it has none.
        assert!(loaded.lacks().iter().any(|lack| lack.contains("block")) || taken.is_empty());
    }
    assert!(!loaded.take_transfers().contains_key(&(metadata.dev(), metadata.ino())), "taken once");
}

/// In a container a process has another number than the kernel's hooks see. The same test, there:
/// were the daemon's own opens told, each drop would look like a use.
#[test]
fn its_own_events_are_left_out_in_a_process_namespace_too() {
    let named = "each_open_and_close_is_told_with_what_is_cached";
    let output = Command::new("unshare")
        .args(["--pid", "--fork", "--mount-proc"])
        .arg(std::env::current_exe().unwrap())
        .args([named, "--exact", "--nocapture"])
        .output();
    let Ok(output) = output else { return eprintln!("there is no unshare here") };
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    if said.contains("unshare failed") {
        return eprintln!("this user may not have a namespace: {said}");
    }
    assert!(output.status.success() && text.contains("1 passed"), "{text}{said}");
}
