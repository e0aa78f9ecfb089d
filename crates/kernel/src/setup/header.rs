//! The header of a swap area (`union swap_header` of `linux/swap.h`), with a number of our own by
//! which an area that Terrace made is known again.
//!
//! `mkswap` would write the same. It may be missing, and the number is what makes it safe to take
//! a device away later: another's is never touched.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use serde::{Deserialize, Serialize};
use terrace_core::Bytes;

use crate::files::named;

const PAGE: usize = 4096;
/// The last ten bytes of the first page.
const MAGIC: (usize, &[u8; 10]) = (PAGE - 10, b"SWAPSPACE2");
/// Behind the boot block: version, last page, number of bad pages.
const INFO: usize = 1024;
const UUID: usize = INFO + 12;
const LABEL: usize = UUID + 16;
/// What the label of every area says that Terrace made.
const NAME: &[u8; 8] = b"terrace\0";

/// Which area it is: 16 random bytes, as hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Mark(String);

impl Mark {
    /// A new one. The kernel gives it.
    pub(super) fn new() -> io::Result<Self> {
        let path = Path::new("/proc/sys/kernel/random/uuid");
        let digits = crate::files::read(path)?.trim().replace('-', "");
        Ok(Self(digits))
    }

    fn bytes(&self) -> [u8; 16] {
        let digit = |i: usize| self.0.as_bytes().get(i).and_then(|&d| (d as char).to_digit(16));
        std::array::from_fn(|i| {
            (digit(2 * i).unwrap_or(0) << 4 | digit(2 * i + 1).unwrap_or(0)) as u8
        })
    }
}

/// What is found at the beginning of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// Nothing was ever written.
    Nothing,
    /// The area of this mark.
    Ours,
    /// Something else.
    Other,
}

/// Makes a device or file of this size a swap area.
pub(super) fn write(device: &Path, size: Bytes, mark: &Mark) -> io::Result<()> {
    let pages = size.get() / PAGE as u64;
    // The kernel refuses an area of less than one page beside the header.
    let last = u32::try_from(pages.saturating_sub(1)).unwrap_or(u32::MAX);
    let mut page = [0u8; PAGE];
    page[MAGIC.0..].copy_from_slice(MAGIC.1);
    page[INFO..INFO + 4].copy_from_slice(&1u32.to_ne_bytes());
    page[INFO + 4..INFO + 8].copy_from_slice(&last.to_ne_bytes());
    page[UUID..UUID + 16].copy_from_slice(&mark.bytes());
    page[LABEL..LABEL + NAME.len()].copy_from_slice(NAME);
    crate::files::step();
    let written = || {
        let file = OpenOptions::new().write(true).open(device)?;
        file.write_all_at(&page, 0)?;
        file.sync_all()
    };
    written().map_err(|e| named(device, &e))
}

/// The first page of a device.
fn first_page(device: &Path) -> io::Result<[u8; PAGE]> {
    let mut page = [0u8; PAGE];
    File::open(device)
        .and_then(|file| file.read_exact_at(&mut page, 0))
        .map_err(|e| named(device, &e))?;
    Ok(page)
}

/// Whether a run of Terrace's has made a swap area, whichever run it was.
pub(super) fn is_of_a_run(device: &Path) -> io::Result<bool> {
    let page = first_page(device)?;
    Ok(page[MAGIC.0..] == *MAGIC.1 && page[LABEL..LABEL + NAME.len()] == *NAME)
}

/// What is at the beginning of a device.
pub(super) fn find(device: &Path, mark: &Mark) -> io::Result<Found> {
    Ok(match &first_page(device)? {
        page if page.iter().all(|&byte| byte == 0) => Found::Nothing,
        page if page[MAGIC.0..] == *MAGIC.1 && page[UUID..UUID + 16] == mark.bytes() => Found::Ours,
        _ => Found::Other,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_area_is_known_by_its_mark_alone() {
        let dir = tempfile::tempdir().unwrap();
        let device = dir.path().join("zram0");
        std::fs::write(&device, vec![0; 4 * PAGE]).unwrap();
        let (ours, others) = (Mark::new().unwrap(), Mark::new().unwrap());

        assert_eq!(find(&device, &ours).unwrap(), Found::Nothing);
        assert!(!is_of_a_run(&device).unwrap());
        write(&device, Bytes(4 * PAGE as u64), &ours).unwrap();

        assert_eq!(find(&device, &ours).unwrap(), Found::Ours);
        assert_eq!(find(&device, &others).unwrap(), Found::Other);
        assert!(is_of_a_run(&device).unwrap(), "whichever run it was");
        let bytes = std::fs::read(&device).unwrap();
        assert_eq!(&bytes[4086..4096], b"SWAPSPACE2");
        assert_eq!(bytes[1028..1032], 3u32.to_ne_bytes(), "the last page's number");
    }
}
