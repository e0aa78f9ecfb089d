//! What a volume does on media of this machine, beside a plain list of sectors.

use proptest::prelude::*;
use terrace_core::Bytes;
use terrace_volume::pm::simulated::Simulated;
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
        let new = grow(&hooked).unwrap();
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
