//! `terrace volume`: what is made is found again, damage is told and repaired, nothing is
//! overwritten.

mod common;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use common::{json, terrace};
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

#[test]
fn a_file_that_is_there_is_not_overwritten_and_wrong_sizes_make_no_file() {
    let directory = directory();
    let image = made(&directory);
    let before = fs::read(&image).unwrap();
    refused(&["create", "--size", "1MiB"], &image, 2);
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
}

/// A server that is told to stop keeps what was written, also what no client has flushed.
#[test]
fn a_served_volume_is_locked_and_keeps_what_was_written() {
    let directory = directory();
    let image = made(&directory);
    let socket = directory.path().join("s");
    let mut server = std::process::Command::new(snapbox::cmd::cargo_bin!("terrace"))
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

    let said = refused(&["info"], &image, 1);
    assert!(said.contains("another process"), "{said}");
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

#[test]
fn a_port_that_other_machines_reach_is_refused() {
    let directory = directory();
    let image = made(&directory);
    let said = refused(&["serve", "--tcp", "0.0.0.0:10809"], &image, 2);
    assert!(said.contains("not") && said.contains("encrypted"), "{said}");
}
