//! A volume as a file. Only root may mount one without help, and only where there is /dev/fuse;
//! elsewhere these tests say that they have tested nothing.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{FallocateFlags, SeekFrom, fallocate};
use terrace_core::Bytes;
use terrace_volume::pm::simulated::Simulated;
use terrace_volume::{Mount, SectorSize, Superblock, Volume, create, fuse};

fn volume(sector: SectorSize, read_only: bool) -> Arc<Volume<Simulated>> {
    sized(1 << 20, sector, read_only)
}

fn sized(bytes: u64, sector: SectorSize, read_only: bool) -> Arc<Volume<Simulated>> {
    let medium = Simulated::new(bytes);
    let uuid = uuid::Uuid::from_bytes([8; 16]);
    create(&medium, &Superblock::plan(Bytes(bytes), sector, 64, uuid).unwrap(), false).unwrap();
    Arc::new(Volume::mount(medium, Mount { read_only, lanes: None }).unwrap())
}

/// Mounts a volume for the time of a function; false if that cannot be had here.
fn mounted(volume: &Arc<Volume<Simulated>>, use_it: impl FnOnce(&Path)) -> bool {
    let is_able = Path::new("/dev/fuse").exists() && rustix::process::getuid().is_root();
    if !is_able {
        assert!(
            std::env::var_os("CI").is_none()
                || std::env::var_os("TERRACE_UNSUPPORTED_OK").is_some(),
            "/dev/fuse and root are needed"
        );
        eprintln!("NOT TESTED: there is no /dev/fuse, or this is not root");
        return false;
    }
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("disk");
    fs::write(&file, "").unwrap();
    let mounted = fuse::mount(Arc::clone(volume), &file).unwrap();
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| use_it(&file)));
    assert!(mounted.end().unwrap() || result.is_err(), "it was still used");
    if let Err(panic) = result {
        std::panic::resume_unwind(panic);
    }
    assert_eq!(fs::metadata(&file).unwrap().len(), 0, "it is still mounted");
    true
}

fn opened(file: &Path) -> File {
    OpenOptions::new().read(true).write(true).open(file).unwrap()
}

fn number(result: io::Result<()>) -> Option<i32> {
    result.err().and_then(|e| e.raw_os_error())
}

#[test]
fn what_is_written_to_the_file_is_in_the_volume_and_reads_are_of_any_bytes() {
    for sector in [SectorSize::B512, SectorSize::B4096] {
        let volume = volume(sector, false);
        let size = sector.bytes() as usize;
        let written: Vec<u8> = (0..8 * size).map(|i| (i / 7) as u8).collect();
        let done = mounted(&volume, |file| {
            let there = fs::metadata(file).unwrap();
            assert_eq!(there.len(), volume.capacity().0);
            assert_eq!(there.permissions().mode() & 0o777, 0o600);
            assert_eq!(there.uid(), 0);
            let file = opened(file);
            file.write_all_at(&written, 2 * size as u64).unwrap();
            file.sync_all().unwrap();
            let mut part = vec![0; 3 * size];
            file.read_exact_at(&mut part, 2 * size as u64 + 5).unwrap();
            assert!(part == written[5..5 + 3 * size]);
            let mut all = Vec::new();
            io::Read::read_to_end(&mut &file, &mut all).unwrap();
            assert_eq!(all.len() as u64, volume.capacity().0);
        });
        if done {
            let mut bytes = vec![0; written.len()];
            volume.read(2, &mut bytes).unwrap();
            assert!(bytes == written);
        }
    }
}

#[test]
fn parts_of_sectors_other_sizes_and_writes_beyond_the_end_are_refused() {
    let volume = volume(SectorSize::B4096, false);
    mounted(&volume, |file| {
        let path = file;
        let file = opened(file);
        assert_eq!(number(file.write_all_at(&[1; 512], 0)), Some(libc::EINVAL));
        assert_eq!(number(file.write_all_at(&[1; 4096], 512)), Some(libc::EINVAL));
        let end = volume.capacity().0;
        assert_eq!(number(file.write_all_at(&[1; 8192], end - 4096)), Some(libc::ENOSPC));
        assert_eq!(number(file.set_len(4096)), Some(libc::EPERM));
        assert_eq!(file.read_at(&mut [0; 8192], end - 4096).unwrap(), 4096);
        assert_eq!(file.read_at(&mut [0; 8192], end).unwrap(), 0);
        let others = fs::set_permissions(path, fs::Permissions::from_mode(0o644));
        assert_eq!(number(others), Some(libc::EPERM));
    });
}

/// The kernel cuts large writes, in the middle of a sector if nothing is done about it.
#[test]
fn large_writes_from_a_buffer_that_begins_inside_of_a_page_arrive_whole() {
    let volume = sized(4 << 20, SectorSize::B4096, false);
    let written: Vec<u8> = (0..(5 << 19) + 8192).map(|i| (i / 4099) as u8).collect();
    let from = written.as_ptr().align_offset(4096) + 7;
    let data = &written[from..from + (5 << 19)];
    let done = mounted(&volume, |file| {
        let file = opened(file);
        assert_eq!(file.write_at(data, 4096).unwrap(), data.len());
        file.sync_all().unwrap();
        let mut back = vec![0; data.len()];
        assert_eq!(file.read_at(&mut back[..], 4096).unwrap(), data.len());
        assert!(back == data);
    });
    if done {
        let mut bytes = vec![0; data.len()];
        volume.read(1, &mut bytes).unwrap();
        assert!(bytes == data);
    }
}

/// A file system on the file would be damaged if its writes found all lanes taken.
#[test]
fn others_leave_the_file_a_lane() {
    let volume = volume(SectorSize::B4096, false);
    mounted(&volume, |file| {
        let taken: Vec<_> = std::iter::from_fn(|| volume.lane().ok()).collect();
        assert!(taken.len() < volume.lanes());
        let file = opened(file);
        file.write_all_at(&[7; 4096], 0).unwrap();
        file.sync_all().unwrap();
    });
}

#[test]
fn holes_are_punched_and_found() {
    let volume = volume(SectorSize::B4096, false);
    mounted(&volume, |file| {
        let file = opened(file);
        let seek = |from, at| rustix::fs::seek(&file, at).map_err(|_| from);
        file.write_all_at(&vec![9; 5 * 4096], 4096).unwrap();
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(&file, punch, 2 * 4096, 4096).unwrap();
        let mut bytes = [1; 4096];
        file.read_exact_at(&mut bytes, 2 * 4096).unwrap();
        assert_eq!(bytes, [0; 4096]);
        assert_eq!(seek(0, SeekFrom::Data(0)), Ok(4096));
        assert_eq!(seek(0, SeekFrom::Hole(4096)), Ok(2 * 4096));
        assert_eq!(seek(0, SeekFrom::Data(2 * 4096 + 1)), Ok(3 * 4096));
        assert!(seek(0, SeekFrom::Data(7 * 4096)).is_err());
        let unaligned = fallocate(&file, punch, 100, 4096);
        assert_eq!(unaligned, Err(rustix::io::Errno::INVAL));
        let collapsed = fallocate(&file, FallocateFlags::COLLAPSE_RANGE, 0, 4096);
        assert_eq!(collapsed, Err(rustix::io::Errno::OPNOTSUPP));
    });
}

#[test]
fn a_volume_that_is_mounted_for_reading_takes_no_writes() {
    let volume = volume(SectorSize::B512, true);
    mounted(&volume, |file| {
        let refused = OpenOptions::new().write(true).custom_flags(libc::O_SYNC).open(file);
        assert_eq!(refused.unwrap_err().raw_os_error(), Some(libc::EROFS));
        assert_eq!(fs::read(file).unwrap().len() as u64, volume.capacity().0);
    });
}

/// Users of the file get errors then; the server does not wait for them.
#[test]
fn a_file_that_is_still_used_goes_out_of_sight() {
    let volume = volume(SectorSize::B512, false);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("disk");
    let mut kept = None;
    let able = mounted(&volume, |_| ());
    if !able {
        return;
    }
    fs::write(&path, "").unwrap();
    let mounted = fuse::mount(Arc::clone(&volume), &path).unwrap();
    kept.replace(opened(&path));
    assert!(!mounted.end().unwrap(), "nobody seemed to use it");
    assert_eq!(fs::metadata(&path).unwrap().len(), 0);
    drop(kept);
}
