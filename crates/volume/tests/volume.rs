//! What a volume does on media of this machine, beside a plain list of sectors.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use proptest::prelude::*;
use terrace_core::Bytes;
use terrace_volume::pm::simulated::{Event, Simulated};
use terrace_volume::superblock::default_spare;
use terrace_volume::{
    Cpu, Damage, Durability, Entry, Image, Mount, Pm, Report, SectorSize, Superblock, Volume,
    VolumeError, create, grow, repair,
};

const SECTORS: u64 = 40;

fn plan(total: u64, sector: SectorSize) -> Superblock {
    Superblock::plan(Bytes(total), sector, 32, uuid::Uuid::from_bytes([3; 16])).unwrap()
}

fn made(total: u64, sector: SectorSize) -> Simulated {
    let medium = Simulated::new(total);
    create(&medium, &plan(total, sector), false).unwrap();
    medium
}

#[derive(Clone, Debug)]
enum Op {
    Write { lba: u64, count: u64, byte: u8, fua: bool },
    Zero { lba: u64, count: u64 },
    Flush,
    Remount,
}

fn op() -> impl Strategy<Value = Op> {
    let range = (0..SECTORS).prop_flat_map(|lba| (Just(lba), 1..=SECTORS - lba));
    prop_oneof![
        6 => (range.clone(), any::<u8>(), any::<bool>())
            .prop_map(|((lba, count), byte, fua)| Op::Write { lba, count, byte, fua }),
        2 => range.prop_map(|(lba, count)| Op::Zero { lba, count }),
        1 => Just(Op::Flush),
        1 => Just(Op::Remount),
    ]
}

/// Runs operations on a volume and on a list of sectors, and compares after each.
fn compare<P: Pm + Clone>(medium: &P, ops: &[Op], lanes: usize) {
    let how = Mount { read_only: false, lanes: Some(lanes) };
    let mut naive = Vec::new();
    let mut ops = ops.iter().enumerate();
    let mut goes_on = true;
    while goes_on {
        goes_on = false;
        let volume = Volume::mount(medium.clone(), how).unwrap();
        let size = volume.sector_size().bytes() as usize;
        naive.resize(volume.sectors() as usize * size, 0u8);
        let mut writers: Vec<_> = (0..lanes).map(|_| volume.lane().unwrap()).collect();
        for (i, op) in ops.by_ref() {
            let lane = &mut writers[i % lanes];
            match *op {
                Op::Write { lba, count, byte, fua } => {
                    let bytes: Vec<u8> =
                        (0..count as usize * size).map(|i| byte ^ i as u8).collect();
                    lane.write(lba, &bytes, fua).unwrap();
                    naive[lba as usize * size..][..bytes.len()].copy_from_slice(&bytes);
                }
                Op::Zero { lba, count } => {
                    lane.zero(lba, count, false).unwrap();
                    naive[lba as usize * size..][..count as usize * size].fill(0);
                }
                Op::Flush => lane.flush().unwrap(),
                Op::Remount => {
                    lane.flush().unwrap();
                    goes_on = true;
                    break;
                }
            }
            let mut all = vec![1; naive.len()];
            volume.read(0, &mut all).unwrap();
            assert!(all == naive, "differs after operation {i}: {op:?}");
        }
        for lane in &mut writers {
            lane.flush().unwrap();
        }
        drop(writers);
        let report = Report::of(medium).unwrap();
        assert!(report.is_clean(), "{report:?}");
        assert_eq!(report.free, volume.free_blocks(), "a block is neither free nor used");
        assert_eq!(report.free, volume.superblock().blocks - report.usage.written);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn a_volume_holds_what_a_list_of_sectors_holds(
        ops in prop::collection::vec(op(), 1..40), lanes in 1..5usize, grouped: bool, large: bool,
    ) {
        let (total, sector) =
            if large { (400_000, SectorSize::B4096) } else { (50_000, SectorSize::B512) };
        let medium = if grouped { Simulated::new(total).grouped() } else { Simulated::new(total) };
        create(&medium, &plan(total, sector), false).unwrap();
        compare(&medium, &ops, lanes);
    }

    #[test]
    fn whatever_bytes_a_medium_holds_it_is_refused_or_read(
        at in 0..50_000u64 / 8, word: u64, more in prop::collection::vec(any::<u64>(), 0..8),
    ) {
        let medium = made(50_000 / 8 * 8, SectorSize::B512);
        for (i, word) in std::iter::once(word).chain(more).enumerate() {
            let at = (at + i as u64) * 8;
            if at < medium.size() {
                medium.write(Cpu(0), at, &word.to_le_bytes()).unwrap();
            }
        }
        if let Ok(volume) = Volume::mount(medium, Mount { read_only: true, lanes: None }) {
            let mut bytes = [0; 512];
            for lba in 0..volume.sectors() {
                let _ = volume.read(lba, &mut bytes);
            }
        }
    }
}

fn files() -> tempfile::TempDir {
    // Not in memory, so that group commit can be had.
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// Each durability of this machine, with several threads: whole sectors, wherever they are read.
#[test]
fn threads_that_write_the_same_sectors_never_show_a_torn_one() {
    let directory = files();
    for wish in [Durability::GroupCommit, Durability::ProcessCrashOnly] {
        let path = directory.path().join(wish.name());
        let image = Image::create(&path, Some(Bytes::mib(1)), false, Some(wish)).unwrap();
        assert_eq!(image.durability, wish);
        create(&image.medium, &plan(1 << 20, SectorSize::B4096), false).unwrap();
        let volume =
            Volume::mount(image.medium, Mount { lanes: Some(3), ..Mount::default() }).unwrap();
        let is_whole = |bytes: &[u8]| bytes.iter().all(|byte| *byte == bytes[0]);
        std::thread::scope(|scope| {
            for thread in 0..3u8 {
                let volume = &volume;
                scope.spawn(move || {
                    let mut lane = volume.lane().unwrap();
                    let mut bytes = vec![0; 4096];
                    for round in 0..if wish == Durability::GroupCommit { 300 } else { 3000 } {
                        let own = 10 + u64::from(thread);
                        let lba = if round % 3 == 0 { own } else { round % 5 };
                        lane.write(lba, &[thread * 80 + round as u8 % 80; 4096], false).unwrap();
                        volume.read(round % 7, &mut bytes).unwrap();
                        assert!(is_whole(&bytes), "sector {} is torn", round % 7);
                        if round % 3 == 0 {
                            volume.read(own, &mut bytes).unwrap();
                            assert_eq!(bytes[0], thread * 80 + round as u8 % 80, "a write is lost");
                        }
                        if round % 50 == 0 {
                            lane.flush().unwrap();
                        }
                    }
                    lane.flush().unwrap();
                });
            }
        });
        drop(volume);
        let image = Image::open(&path, false, Some(wish)).unwrap();
        assert!(Report::of(&image.medium).unwrap().is_clean());
    }
}

#[test]
fn what_was_written_to_a_file_is_there_after_it_is_opened_again() {
    let directory = files();
    for (sector, wish) in [
        (SectorSize::B512, None),
        (SectorSize::B4096, None),
        (SectorSize::B512, Some(Durability::ProcessCrashOnly)),
    ] {
        let path = directory.path().join(format!("{}-{wish:?}", sector.bytes()));
        let image = Image::create(&path, Some(Bytes::mib(2)), false, wish).unwrap();
        let spare = default_spare(Bytes::mib(2), sector);
        let plan = Superblock::plan(Bytes::mib(2), sector, spare, uuid::Uuid::new_v4()).unwrap();
        create(&image.medium, &plan, false).unwrap();
        let volume = Volume::mount(image.medium, Mount::default()).unwrap();
        let data: Vec<u8> = (0..volume.capacity().0).map(|i| (i / 7) as u8).collect();
        let mut lane = volume.lane().unwrap();
        for _ in 0..3 {
            lane.write(0, &data, true).unwrap();
        }
        drop(lane);
        drop(volume);

        let image = Image::open(&path, true, wish).unwrap();
        let volume = Volume::mount(image.medium, Mount::default()).unwrap();
        let mut read = vec![0; data.len()];
        volume.read(0, &mut read).unwrap();
        assert!(read == data);
        assert_eq!(volume.usage_at_mount().written, volume.sectors());
    }
}

/// One sector of mapped memory is read by a shorter way than several, and a damaged map by neither.
#[test]
fn sectors_of_mapped_memory_are_the_same_read_one_by_one_and_in_a_row() {
    let directory = files();
    let wish = Some(Durability::ProcessCrashOnly);
    for sector in [SectorSize::B512, SectorSize::B4096] {
        let size = sector.bytes() as usize;
        let path = directory.path().join(size.to_string());
        let image = Image::create(&path, Some(Bytes::mib(1)), false, wish).unwrap();
        create(&image.medium, &plan(1 << 20, sector), false).unwrap();
        let volume = Volume::mount(image.medium, Mount::default()).unwrap();
        let mut lane = volume.lane().unwrap();
        for lba in (0..30).filter(|lba| lba % 4 != 3) {
            lane.write(lba, &vec![lba as u8 + 1; size], false).unwrap();
        }
        lane.flush().unwrap();
        drop(lane);
        let mut row = vec![0xee; 30 * size];
        volume.read(0, &mut row).unwrap();
        for (lba, expected) in (0..30).zip(row.chunks(size)) {
            let mut one = vec![0xee; size];
            volume.read(lba, &mut one).unwrap();
            assert!(one == expected, "sector {lba}");
            let byte = if lba % 4 == 3 { 0 } else { lba as u8 + 1 };
            assert!(one.iter().all(|found| *found == byte), "sector {lba}");
        }
        let end = volume.sectors();
        assert!(matches!(
            volume.read(end, &mut vec![0; size]),
            Err(VolumeError::OutOfRange { .. })
        ));

        let (first, other) = (volume.superblock().entry_at(0), volume.superblock().entry_at(5));
        let medium = volume.into_medium();
        medium.write(Cpu(0), other, &medium.load(first).to_le_bytes()).unwrap();
        medium.fence(Cpu(0)).unwrap();
        let volume = Volume::mount(medium, Mount { read_only: true, lanes: None }).unwrap();
        for lba in [0, 5] {
            assert!(volume.read(lba, &mut vec![0; size]).is_err(), "sector {lba} shares its block");
        }
        assert!(volume.read(1, &mut vec![0; size]).is_ok());
    }
}

#[test]
fn a_second_user_of_an_image_is_refused() {
    let directory = files();
    let path = directory.path().join("image");
    let image = Image::create(&path, Some(Bytes::mib(1)), false, None).unwrap();
    create(&image.medium, &plan(1 << 20, SectorSize::B512), false).unwrap();
    for writable in [true, false] {
        assert!(matches!(Image::open(&path, writable, None), Err(VolumeError::Locked)));
    }
    drop(image);
    let _reader = Image::open(&path, false, None).unwrap();
    assert!(Image::open(&path, false, None).is_ok());
    assert!(matches!(Image::open(&path, true, None), Err(VolumeError::Locked)));
}

#[test]
fn a_volume_is_not_made_over_another_one() {
    let medium = made(50_000, SectorSize::B512);
    let again = create(&medium, &plan(49_152, SectorSize::B512), false);
    assert!(matches!(again, Err(VolumeError::Exists(_))), "{again:?}");
    create(&medium, &plan(49_152, SectorSize::B512), true).unwrap();
}

#[test]
fn one_superblock_is_enough_and_mounting_writes_the_other_anew() {
    for end in [false, true] {
        let medium = made(49_152, SectorSize::B512);
        let at = if end { 49_152 - 4096 } else { 0 };
        medium.write(Cpu(0), at + 64, &[0xff; 64]).unwrap();
        let report = Report::of(&medium).unwrap();
        assert_eq!(
            (report.superblocks.first.is_some(), report.superblocks.last.is_some()),
            (!end, end)
        );
        Volume::mount(medium.clone(), Mount::default()).unwrap();
        assert!(Report::of(&medium).unwrap().is_clean());
    }
}

#[test]
fn images_that_are_no_volume_are_refused_with_the_reason() {
    let nothing = Report::of(&Simulated::new(50_000)).unwrap_err();
    assert!(matches!(nothing, VolumeError::NoSuperblock { .. }), "{nothing}");

    let medium = made(49_152, SectorSize::B512);
    let mut first = vec![0; 4096];
    medium.read(0, &mut first).unwrap();
    let short = Simulated::new(40_960);
    short.write(Cpu(0), 0, &first).unwrap();
    assert!(matches!(Report::of(&short), Err(VolumeError::Truncated { .. })));

    let foreign = Superblock { uuid: uuid::Uuid::nil(), ..plan(49_152, SectorSize::B512) };
    medium.write(Cpu(0), 0, &foreign.encode()).unwrap();
    assert!(matches!(Report::of(&medium), Err(VolumeError::ForeignUuid { .. })));
}

/// Reading one of two sectors that share a block would show one the content of the other.
#[test]
fn a_damaged_map_can_be_read_around_and_repaired_by_giving_sectors_up() {
    let medium = made(49_152, SectorSize::B512);
    let volume = Volume::mount(medium.clone(), Mount::default()).unwrap();
    let mut lane = volume.lane().unwrap();
    for lba in 0..8 {
        lane.write(lba, &[lba as u8 + 1; 512], true).unwrap();
    }
    drop(lane);
    let at = |lba| volume.superblock().entry_at(lba);
    let first = medium.load(at(0));
    medium.write(Cpu(0), at(5), &first.to_le_bytes()).unwrap();
    medium.write(Cpu(0), at(6), &(1u64 << 63 | 0xffff).to_le_bytes()).unwrap();
    medium.write(Cpu(0), at(7), &5u64.to_le_bytes()).unwrap();
    let block = Entry(first).block().unwrap();

    let refused = Volume::mount(medium.clone(), Mount::default()).unwrap_err();
    let VolumeError::Damaged(damage) = &refused else { panic!("{refused}") };
    assert_eq!(damage.len(), 3);
    assert!(damage.contains(&Damage::Duplicate { lba: 5, other: 0, block }), "{damage:?}");

    let readable = |volume: &Volume<Simulated>| -> Vec<u64> {
        (0..8).filter(|lba| volume.read(*lba, &mut [0; 512]).is_ok()).collect()
    };
    let read_only = Volume::mount(medium.clone(), Mount { read_only: true, lanes: None }).unwrap();
    assert_eq!(readable(&read_only), [1, 2, 3, 4]);
    assert!(matches!(read_only.lane(), Err(VolumeError::ReadOnly)));

    assert_eq!(repair(&medium, false).unwrap().left.len(), 3);
    assert_eq!(repair(&medium, true).unwrap().lost, [0, 5, 6, 7]);
    let repaired = Volume::mount(medium, Mount::default()).unwrap();
    assert_eq!(readable(&repaired), [1, 2, 3, 4]);
    repaired.lane().unwrap().write(5, &[9; 512], true).unwrap();
    assert_eq!(readable(&repaired), [1, 2, 3, 4, 5]);
}

/// Two entries with one block are found by each other. Wherever a repair ends, neither may have become
/// sound because the other was given up.
#[test]
fn a_repair_that_is_stopped_gives_no_sector_the_content_of_another() {
    for grouped in [false, true] {
        let medium = Simulated::new(49_152);
        let medium = if grouped { medium.grouped() } else { medium };
        create(&medium, &plan(49_152, SectorSize::B512), false).unwrap();
        let volume = Volume::mount(medium.clone(), Mount::default()).unwrap();
        let mut lane = volume.lane().unwrap();
        for lba in 0..8 {
            lane.write(lba, &[lba as u8 + 1; 512], true).unwrap();
        }
        drop(lane);
        let at = |lba| volume.superblock().entry_at(lba);
        for (from, to) in [(0, 5), (0, 7), (3, 6)] {
            medium.write(Cpu(0), at(to), &medium.load(at(from)).to_le_bytes()).unwrap();
        }
        medium.fence(Cpu(0)).unwrap();
        let images = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
        let taken = std::sync::Arc::clone(&images);
        let hooked = medium.with_hook(std::sync::Arc::new(move |medium, _, event| {
            if matches!(event, Event::Write | Event::Fence) {
                let mut seed = 3u64;
                let random = || {
                    seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    seed >> 33
                };
                for state in terrace_core::outcomes(&medium.choices(), 80, random) {
                    taken.lock().unwrap().push(medium.after_failure(&state));
                }
            }
            Ok(())
        }));
        assert_eq!(repair(&hooked, true).unwrap().lost, [0, 3, 5, 6, 7]);
        let images = std::mem::take(&mut *images.lock().unwrap());
        assert!(images.len() > 60, "{} images", images.len());
        for image in images {
            let how = Mount { read_only: true, lanes: None };
            let readable = |medium: &Simulated, how| -> Vec<u64> {
                let volume = Volume::mount(medium.clone(), how).unwrap();
                (0..8).filter(|lba| volume.read(*lba, &mut [0; 512]).is_ok()).collect()
            };
            assert_eq!(readable(&image, how), [1, 2, 4]);
            repair(&image, true).unwrap();
            assert!(Report::of(&image).unwrap().is_clean());
            assert_eq!(readable(&image, Mount::default()), [1, 2, 4]);
        }
    }
}

/// The space would be gone, and the second superblock would lie in the middle of the file.
#[test]
fn a_file_that_could_not_grow_is_as_long_as_before() {
    let directory = files();
    let path = directory.path().join("image");
    let image = Image::create(&path, Some(Bytes::mib(1)), false, None).unwrap();
    create(&image.medium, &plan(1 << 20, SectorSize::B512), false).unwrap();
    drop(image);
    let length = || std::fs::metadata(&path).unwrap().len();
    let refused = Image::grow(
        &path,
        |_| Ok(Some(Bytes::mib(2))),
        |medium| {
            assert_eq!((medium.size(), length()), (2 << 20, 2 << 20));
            Err::<(), _>(VolumeError::Failed)
        },
    );
    assert!(matches!(refused, Err(VolumeError::Failed)));
    assert_eq!(length(), 1 << 20);
    let too_large = Image::grow(&path, |_| Ok(Some(Bytes(1 << 62))), |_| Ok(()));
    assert!(matches!(too_large, Err(VolumeError::Io { .. })), "{too_large:?}");
    assert_eq!(length(), 1 << 20);

    // Where the larger volume counts already, its space is needed.
    let (_, new) =
        Image::grow(&path, |_| Ok(Some(Bytes::mib(2))), |medium| grow(medium, None)).unwrap();
    let failed = Image::grow(
        &path,
        |_| Ok(Some(Bytes::mib(4))),
        |medium| grow(medium, Some(200)).and(Err::<(), _>(VolumeError::Failed)),
    );
    assert!(matches!(failed, Err(VolumeError::Failed)));
    let now = Report::of(&Image::open(&path, false, None).unwrap().medium).unwrap();
    assert!(now.is_clean() && now.superblocks.current.total == 4 << 20);
    assert!(now.superblocks.current.spare() >= 200 && new.spare() < 200);
}

/// A medium that became larger: what was written stays, and there is more of it. Wherever the
/// power fails, the volume is the old or the new one.
#[test]
fn a_volume_grows_also_twice_and_a_power_failure_in_between_loses_nothing() {
    let (small, middle, large) = (49_152u64, 81_920u64, 131_072u64);
    let old = made(small, SectorSize::B512);
    let fill = |medium: &Simulated, from: u64| {
        let volume = Volume::mount(medium.clone(), Mount::default()).unwrap();
        let mut lane = volume.lane().unwrap();
        for lba in from..volume.sectors() {
            lane.write(lba, &[lba as u8 | 1; 512], true).unwrap();
        }
        volume.sectors()
    };
    let holds = |medium: &Simulated, written: u64| {
        let volume = Volume::mount(medium.clone(), Mount::default()).unwrap();
        let mut bytes = [0; 512];
        for lba in 0..volume.sectors() {
            volume.read(lba, &mut bytes).unwrap();
            let expected = if lba < written { lba as u8 | 1 } else { 0 };
            assert_eq!(bytes, [expected; 512], "sector {lba}");
        }
        assert!(Report::of(medium).unwrap().is_clean(), "a mount has made the superblocks agree");
        volume.sectors()
    };
    let extended = |medium: &Simulated, size: u64| {
        let mut bytes = vec![0; medium.size() as usize];
        medium.read(0, &mut bytes).unwrap();
        let larger = Simulated::new(size);
        larger.write(Cpu(0), 0, &bytes).unwrap();
        larger.fence(Cpu(0)).unwrap();
        larger
    };
    let written = fill(&old, 0);
    let mut medium = old;
    let mut written = written;
    for size in [middle, large] {
        medium = extended(&medium, size);
        assert_eq!(holds(&medium, written), written, "the old volume on the larger medium");
        let crashed = medium.clone();
        let images = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
        let taken = std::sync::Arc::clone(&images);
        let hooked = crashed.with_hook(std::sync::Arc::new(move |medium, _, event| {
            if event == terrace_volume::pm::simulated::Event::Fence {
                let choices = medium.choices();
                let mut seed = 7u64;
                let random = || {
                    seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    seed >> 33
                };
                for state in terrace_core::outcomes(&choices, 40, random) {
                    taken.lock().unwrap().push(medium.after_failure(&state));
                }
            }
            Ok(())
        }));
        let new = grow(&hooked, None).unwrap();
        let images = std::mem::take(&mut *images.lock().unwrap());
        assert!(images.len() > 40);
        for image in images {
            let sectors = holds(&image, written);
            assert!(sectors == written || sectors == new.sectors);
        }
        assert_eq!(holds(&medium, written), new.sectors);
        written = fill(&medium, written);
        assert_eq!(holds(&medium, written), written);
    }
}

/// A file under group commit on a disk that is full for a while.
#[derive(Debug)]
struct Full {
    inner: Simulated,
    is_full: std::sync::Arc<AtomicBool>,
}

impl Pm for Full {
    fn size(&self) -> u64 {
        self.inner.size()
    }
    fn is_grouped(&self) -> bool {
        true
    }
    fn write(&self, cpu: Cpu, at: u64, bytes: &[u8]) -> terrace_volume::Result {
        if self.is_full.load(Ordering::Relaxed) {
            let source = std::io::ErrorKind::StorageFull.into();
            return Err(VolumeError::Io { what: "cannot write to the image", source });
        }
        self.inner.write(cpu, at, bytes)
    }
    fn read(&self, at: u64, bytes: &mut [u8]) -> terrace_volume::Result {
        self.inner.read(at, bytes)
    }
    fn load(&self, at: u64) -> u64 {
        self.inner.load(at)
    }
    fn exchange(&self, cpu: Cpu, at: u64, current: u64, new: u64) -> Result<(), u64> {
        self.inner.exchange(cpu, at, current, new)
    }
    fn write_back(&self, cpu: Cpu, at: u64, length: u64) -> terrace_volume::Result {
        self.inner.write_back(cpu, at, length)
    }
    fn fence(&self, cpu: Cpu) -> terrace_volume::Result {
        self.inner.fence(cpu)
    }
    fn fence_all(&self, cpu: Cpu) -> terrace_volume::Result {
        self.inner.fence_all(cpu)
    }
}

#[test]
fn a_full_disk_fails_writes_and_loses_nothing() {
    let medium = Simulated::new(49_152).grouped();
    create(&medium, &plan(49_152, SectorSize::B512), false).unwrap();
    let is_full = std::sync::Arc::new(AtomicBool::new(false));
    let full = || Full { inner: medium.clone(), is_full: std::sync::Arc::clone(&is_full) };
    let volume = Volume::mount(full(), Mount::default()).unwrap();
    let mut lane = volume.lane().unwrap();
    lane.write(0, &[1; 512], true).unwrap();
    let free = volume.free_blocks();

    // Where the data find no room: nothing has changed, and it goes on when there is room again.
    is_full.store(true, Ordering::Relaxed);
    for _ in 0..200 {
        let refused = lane.write(0, &[2; 1024], true).unwrap_err();
        assert!(matches!(refused, VolumeError::Io { .. }), "{refused}");
    }
    assert_eq!(volume.free_blocks(), free, "blocks were lost");
    let mut bytes = [0; 512];
    volume.read(0, &mut bytes).unwrap();
    assert_eq!(bytes, [1; 512]);
    is_full.store(false, Ordering::Relaxed);
    lane.write(0, &[3; 512], true).unwrap();

    // Where the map finds none: what was flushed is there, nothing more is taken, and that is told.
    let told = std::sync::Arc::new(AtomicUsize::new(0));
    let count = std::sync::Arc::clone(&told);
    volume.tell_failure(move |e| {
        assert!(e.to_string().contains("cannot write to the image"), "{e}");
        count.fetch_add(1, Ordering::Relaxed);
    });
    lane.write(0, &[4; 512], false).unwrap();
    is_full.store(true, Ordering::Relaxed);
    assert!(lane.flush().is_err());
    is_full.store(false, Ordering::Relaxed);
    assert!(matches!(lane.write(1, &[5; 512], false), Err(VolumeError::Failed)));
    assert!(matches!(lane.flush(), Err(VolumeError::Failed)));
    assert_eq!(told.load(Ordering::Relaxed), 1);
    drop(lane);
    drop(volume);
    let volume = Volume::mount(full(), Mount::default()).unwrap();
    volume.read(0, &mut bytes).unwrap();
    assert_eq!(bytes, [3; 512]);
    assert!(Report::of(&medium).unwrap().is_clean());
}

/// A writer that goes away without a flush leaves stores that only its own processor can fence;
/// whoever flushes later must find them durable.
#[test]
fn a_flush_covers_what_a_lane_wrote_that_is_gone() {
    let medium = made(49_152, SectorSize::B512);
    let volume = Volume::mount(medium.clone(), Mount { read_only: false, lanes: Some(2) }).unwrap();
    let mut flusher = volume.lane().unwrap();
    for lba in 0..4 {
        // The sector was never written, so the lane has no block to free.
        volume.lane().unwrap().write(lba, &[7; 512], false).unwrap();
    }
    flusher.flush().unwrap();
    let nothing_more = vec![0; medium.choices().len()];
    let after = medium.after_failure(&nothing_more);
    let volume = Volume::mount(after, Mount::default()).unwrap();
    let mut bytes = [0; 4 * 512];
    volume.read(0, &mut bytes).unwrap();
    assert_eq!(bytes, [7; 4 * 512]);
}

/// An exchange waits until the write-backs before it are done, which takes as long as the data do.
#[test]
fn a_write_of_several_sectors_fences_once_and_writes_their_entries_back_at_once() {
    let events = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let into = std::sync::Arc::clone(&events);
    let hooked =
        made(49_152, SectorSize::B512).with_hook(std::sync::Arc::new(move |_, _, event| {
            into.lock().unwrap().push(event);
            Ok(())
        }));
    let volume = Volume::mount(hooked, Mount::default()).unwrap();
    let mut lane = volume.lane().unwrap();
    let mut written = |lba, count: usize| {
        events.lock().unwrap().clear();
        lane.write(lba, &vec![7; count * 512], false).unwrap();
        std::mem::take(&mut *events.lock().unwrap())
    };
    for round in 0..2 {
        for count in [1, 2, 9] {
            let data = std::iter::repeat_n(Event::Write, count).chain([Event::Fence]);
            let entries = std::iter::repeat_n(Event::Exchange, count).chain([Event::WriteBack]);
            let expected: Vec<_> = data.chain(entries).collect();
            assert_eq!(written(5, count), expected, "{count} sectors, round {round}");
        }
    }
}

/// A server that ends flushes while its clients still hold all lanes.
#[test]
fn a_flush_without_a_lane_covers_all_lanes() {
    for grouped in [false, true] {
        let medium = Simulated::new(49_152);
        let medium = if grouped { medium.grouped() } else { medium };
        create(&medium, &plan(49_152, SectorSize::B512), false).unwrap();
        let how = Mount { read_only: false, lanes: Some(2) };
        let volume = Volume::mount(medium.clone(), how).unwrap();
        let mut lanes = [volume.lane().unwrap(), volume.lane().unwrap()];
        assert!(matches!(volume.lane(), Err(VolumeError::NoLane(2))));
        for (lba, lane) in lanes.iter_mut().enumerate() {
            lane.write(lba as u64, &[7; 512], false).unwrap();
        }
        volume.flush().unwrap();
        let nothing_more = vec![0; medium.choices().len()];
        let after = medium.after_failure(&nothing_more);
        let found = Volume::mount(after, Mount::default()).unwrap();
        let mut bytes = [0; 2 * 512];
        found.read(0, &mut bytes).unwrap();
        assert_eq!(bytes, [7; 2 * 512], "grouped: {grouped}");
    }
}

/// A first power failure leaves a map with stores in flight and a damaged superblock; a second one
/// strikes at each fence of the mount that recovers from it.
#[test]
fn a_power_failure_during_recovery_loses_nothing() {
    for damaged in [0, 49_152 - 4096] {
        let medium = made(49_152, SectorSize::B512);
        let volume = Volume::mount(medium.clone(), Mount::default()).unwrap();
        let sectors = volume.sectors();
        let mut lane = volume.lane().unwrap();
        for lba in 0..sectors {
            lane.write(lba, &[lba as u8 | 1; 512], true).unwrap();
        }
        // Unflushed: it is there or it is not.
        lane.write(3, &[0xf0; 512], false).unwrap();
        medium.write(Cpu(0), damaged + 64, &[0xff; 64]).unwrap();
        let mut images = Vec::new();
        let mut seed = 5u64;
        let mut random = || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            seed >> 33
        };
        for state in terrace_core::outcomes(&medium.choices(), 60, &mut random) {
            let crashed = medium.after_failure(&state);
            let taken = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
            let into = std::sync::Arc::clone(&taken);
            let hooked = crashed.with_hook(std::sync::Arc::new(move |medium, _, event| {
                if event == Event::Fence {
                    let choices = medium.choices();
                    let all: Vec<_> = choices.iter().map(|count| count - 1).collect();
                    let half: Vec<_> = choices.iter().map(|count| count / 2).collect();
                    let mut into = into.lock().unwrap();
                    for state in [vec![0; choices.len()], half, all] {
                        into.push(medium.after_failure(&state));
                    }
                }
                Ok(())
            }));
            drop(Volume::mount(hooked, Mount::default()).unwrap());
            images.append(&mut taken.lock().unwrap());
        }
        assert!(images.len() > 200, "{} images", images.len());
        for image in images {
            let volume = Volume::mount(image.clone(), Mount::default()).unwrap();
            let mut bytes = [0; 512];
            for lba in 0..sectors {
                volume.read(lba, &mut bytes).unwrap();
                let is_new = lba == 3 && bytes == [0xf0; 512];
                assert!(is_new || bytes == [lba as u8 | 1; 512], "sector {lba}: {bytes:?}");
            }
            assert!(Report::of(&image).unwrap().is_clean());
        }
    }
}

#[test]
fn requests_beyond_the_end_and_parts_of_sectors_are_refused() {
    let volume = Volume::mount(made(49_152, SectorSize::B512), Mount::default()).unwrap();
    let mut lane = volume.lane().unwrap();
    let end = volume.sectors();
    assert!(matches!(lane.write(end, &[0; 512], false), Err(VolumeError::OutOfRange { .. })));
    assert!(matches!(lane.zero(u64::MAX, 2, false), Err(VolumeError::OutOfRange { .. })));
    assert!(matches!(volume.read(end - 1, &mut [0; 1024]), Err(VolumeError::OutOfRange { .. })));
    assert!(matches!(lane.write(0, &[0; 100], false), Err(VolumeError::Unaligned { .. })));
    assert!(matches!(volume.read(0, &mut [0; 513]), Err(VolumeError::Unaligned { .. })));
}
