//! Processes that are killed while they write, beside a raw file that is written in the same way
//! and does tear. SIGKILL loses no store that a processor has executed, so this is about sectors
//! that are half written; what a power failure loses is in `tests/crash`.
//!
//! `VOLUME_KILLS=300 cargo test --release -p terrace-volume --test killed -- --nocapture` is the
//! long form.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use terrace_core::Bytes;
use terrace_volume::pm::mapped::Mapped;
use terrace_volume::{
    Cpu, Durability, Image, Mount, Pm, Report, SectorSize, Superblock, Volume, create,
};

/// Few, so that each is written all the time.
const SECTORS: u64 = 16;
const SECTOR: usize = 4096;
/// Threads that write.
const WRITERS: u64 = 2;
/// Tells a process of this test that it is the one that is killed, and where it writes.
const PLACE: &str = "TERRACE_VOLUME_KILLED";

fn image(place: &Path) -> PathBuf {
    place.join("volume")
}

fn raw(place: &Path) -> PathBuf {
    place.join("raw")
}

fn open(place: &Path) -> Volume<terrace_volume::Medium> {
    let wish = Some(Durability::ProcessCrashOnly);
    let image = Image::open(&image(place), true, wish).unwrap();
    Volume::mount(image.medium, Mount::default()).unwrap()
}

/// A sector whose words all hold the same number.
fn sector(number: u64) -> Vec<u8> {
    number.to_le_bytes().repeat(SECTOR / 8)
}

/// Whether it is as one write left it.
fn is_whole(bytes: &[u8]) -> bool {
    bytes.chunks_exact(8).all(|word| *word == bytes[..8])
}

/// What the killed process does: nothing, unless it is one.
#[test]
fn writes_until_it_is_killed() {
    let Some(place) = std::env::var_os(PLACE).map(PathBuf::from) else { return };
    // A kill may strike the mount as well.
    println!("started");
    let volume = open(&place);
    let file = OpenOptions::new().read(true).write(true).open(raw(&place)).unwrap();
    let raw = Mapped::pages(&file, SECTORS * SECTOR as u64, true).unwrap();
    let (volume, raw) = (&volume, &raw);
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            scope.spawn(move || {
                let mut lane = volume.lane().unwrap();
                for number in 1.. {
                    let number = number * WRITERS + writer;
                    // Both writers write each sector of the volume; of the raw file each has its
                    // own half, so that it tears by kills alone.
                    lane.write(number * 7 % SECTORS, &sector(number), number.is_multiple_of(16))
                        .unwrap();
                    let mine = number * 5 % (SECTORS / WRITERS) * WRITERS + writer;
                    raw.write(Cpu(0), mine * SECTOR as u64, &sector(number)).unwrap();
                }
            });
        }
    });
}

/// Starts a writer, and kills it after so long.
fn kill(place: &Path, after: Duration) {
    let mut writer = Command::new(std::env::current_exe().unwrap())
        .args(["writes_until_it_is_killed", "--exact", "--nocapture"])
        .env(PLACE, place)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // Not counting the time that a process takes to start.
    let mut output = std::io::BufReader::new(writer.stdout.take().unwrap());
    let mut line = String::new();
    while !line.contains("started") {
        line.clear();
        let count = std::io::BufRead::read_line(&mut output, &mut line).unwrap();
        assert!(count > 0, "the writer has ended");
    }
    std::thread::sleep(after);
    writer.kill().unwrap();
    let status = writer.wait().unwrap();
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(9), "{status}");
}

#[test]
fn killed_writers_leave_no_torn_sector() {
    if std::env::var_os(PLACE).is_some() {
        return;
    }
    let kills: u64 = std::env::var("VOLUME_KILLS").map_or(20, |text| text.parse().unwrap());
    let place = tempfile::tempdir().unwrap();
    let plan =
        Superblock::plan(Bytes(1 << 20), SectorSize::B4096, 128, uuid::Uuid::from_bytes([5; 16]));
    let wish = Some(Durability::ProcessCrashOnly);
    let made = Image::create(&image(place.path()), Some(Bytes(1 << 20)), false, wish).unwrap();
    create(&made.medium, &plan.unwrap(), false).unwrap();
    drop(made);
    File::create(raw(place.path())).unwrap().set_len(SECTORS * SECTOR as u64).unwrap();
    let (mut torn, mut written) = (0, 0);
    for number in 0..kills {
        // From amid the mount to some thousand writes later.
        kill(place.path(), Duration::from_micros(number * number % 97 * 50));
        let found = Image::open(&image(place.path()), false, wish).unwrap();
        let report = Report::of(&found.medium).unwrap();
        assert!(report.is_clean(), "after kill {number}: {report:?}");
        drop(found);
        let volume = open(place.path());
        let mut bytes = vec![0; SECTOR];
        for lba in 0..SECTORS {
            volume.read(lba, &mut bytes).unwrap();
            assert!(is_whole(&bytes), "sector {lba} is torn after kill {number}");
            written += u64::from(bytes[..8] != [0; 8]);
        }
        let file = File::open(raw(place.path())).unwrap();
        for lba in 0..SECTORS {
            file.read_exact_at(&mut bytes, lba * SECTOR as u64).unwrap();
            torn += u64::from(!is_whole(&bytes));
        }
    }
    println!("{kills} kills: no torn sector of the volume, {torn} of the raw file");
    assert!(written > 0, "nothing was written");
    if kills >= 300 {
        assert!(torn > 0, "a test in which a raw file does not tear shows nothing");
    }
}
