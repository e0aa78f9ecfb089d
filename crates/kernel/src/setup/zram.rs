//! A zram device: made, used as swap, and taken away.

use std::fs::File;
use std::io;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use terrace_core::Bytes;

use super::header::{self, Found};
use super::records::DeviceRecord;
use super::swap::{self, HIGHEST, Swapping};
use crate::files::{Root, named, number, step, write};

/// The directory of zram's control files; it is there if the kernel has zram.
const CONTROL: &str = "/sys/class/zram-control";
/// What compresses, the first that the kernel has: lz4 takes the least time to unpack, which is
/// what a program waits for.
const CODECS: [&str; 2] = ["lz4", "lzo-rle"];

/// The directory of a device's control files.
pub(crate) fn control(root: &Root, device: u32) -> PathBuf {
    root.path(format!("/sys/block/zram{device}"))
}

/// The device itself.
pub(super) fn node(device: u32) -> PathBuf {
    format!("/dev/zram{device}").into()
}

/// What keeps a device from being made here; `None` if nothing does.
pub fn lack(root: &Root) -> Option<String> {
    let control = root.path(CONTROL);
    if !control.join("hot_add").exists() {
        return Some(
            "this kernel has no zram, or its module is not loaded (`modprobe zram`)".into(),
        );
    }
    let write = std::fs::OpenOptions::new().write(true).open(control.join("hot_remove"));
    write.err().map(|e| format!("{}: {e} (root is needed)", control.display()))
}

/// Adds a device, and says which. One that is there already is never taken: it may be somebody's
/// who is about to use it. One that is added right before a crash is left over, and costs nothing.
pub(super) fn add(root: &Root) -> io::Result<u32> {
    step();
    // Reading the file adds a device.
    let path = root.path(CONTROL).join("hot_add");
    let device = number(&path).ok_or_else(|| {
        io::Error::other(format!("{}: the kernel added no device", path.display()))
    })?;
    Ok(device as u32)
}

/// Size of a page.
const PAGE: u64 = 4096;

/// What packs idle pages more tightly, and takes longer to unpack them.
const TIGHTER: &str = "zstd";

/// What a kernel's zram can do beside compressing, as far as a device that is there shows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extras {
    /// Pages can be compressed again by another codec (`CONFIG_ZRAM_MULTI_COMP`), which it has.
    pub recompresses: bool,
    /// Pages can be written to a block device (`CONFIG_ZRAM_WRITEBACK`).
    pub writes_back: bool,
}

/// What a device can do.
pub(super) fn extras(root: &Root, device: u32) -> Extras {
    let files = control(root, device);
    // Lines such as `#1: lzo lzo-rle [zstd]`.
    let codecs = crate::files::read(&files.join("recomp_algorithm")).unwrap_or_default();
    let recompresses =
        codecs.split_ascii_whitespace().any(|codec| codec.trim_matches(['[', ']']) == TIGHTER);
    Extras { recompresses, writes_back: files.join("backing_dev").exists() }
}

/// What the devices that are there can do; `None` where there is none to look at.
pub fn known_extras(root: &Root) -> Option<Extras> {
    let devices = std::fs::read_dir(root.path("/sys/block")).ok()?.flatten();
    let numbers = devices
        .filter_map(|entry| entry.file_name().to_str()?.strip_prefix("zram")?.parse::<u32>().ok());
    numbers.min().map(|device| extras(root, device))
}

/// Sets a device up and swaps to it, before all other swap. Its record has been written down. Idle
/// pages can be written to `backing`, and compressed again where the device can.
pub(super) fn begin(
    root: &Root,
    swapping: &dyn Swapping,
    record: &DeviceRecord,
    backing: Option<&File>,
) -> io::Result<()> {
    let size = record.size;
    let (files, device) = (control(root, record.device), root.path(node(record.device)));
    let codecs = crate::files::read(&files.join("comp_algorithm"))?;
    let has = |codec: &&&str| {
        codecs.split_ascii_whitespace().any(|c| c.trim_matches(['[', ']']) == **codec)
    };
    if let Some(codec) = CODECS.iter().find(has) {
        write(&files.join("comp_algorithm"), codec)?;
    }
    if extras(root, record.device).recompresses {
        write(&files.join("recomp_algorithm"), &format!("algo={TIGHTER} priority=1"))?;
    }
    // The loop device goes with the zram device, which has it open from here on.
    let _kept = match backing {
        Some(file) => {
            let (path, kept) = swapping.as_device(file)?;
            write(&files.join("backing_dev"), &path.display().to_string())?;
            Some(kept)
        }
        None => None,
    };
    write(&files.join("disksize"), &size.get().to_string())?;
    // What does not compress must not take all memory.
    write(&files.join("mem_limit"), &(size / 2).get().to_string())?;
    header::write(&device, size, &record.mark)?;
    let highest = swap::areas(root).iter().map(|area| area.priority).max();
    let priority = highest.map_or(100, |priority| priority.saturating_add(1)).clamp(100, HIGHEST);
    step();
    swapping
        .on(&device, priority)
        .map_err(|e| named(&device, &io::Error::new(e.kind(), format!("swapon: {e}"))))
}

/// Takes a device away again, however far it was set up; of one that is somebody else's by now
/// nothing is touched, and false is returned.
pub(super) fn end(root: &Root, swapping: &dyn Swapping, record: &DeviceRecord) -> io::Result<bool> {
    let (files, device) = (control(root, record.device), root.path(node(record.device)));
    if !files.exists() {
        return Ok(true);
    }
    if let Some(size) = number(&files.join("disksize")).filter(|&size| size > 0) {
        let in_use = swap::areas(root).iter().any(|area| area.zram() == Some(record.device));
        match header::find(&device, &record.mark)? {
            Found::Ours => {}
            // Between being given its size and its header.
            Found::Nothing if !in_use && Bytes(size) == record.size => {}
            Found::Nothing | Found::Other => return Ok(false),
        }
        if in_use {
            step();
            swapping
                .off(&device)
                .map_err(|e| named(&device, &io::Error::new(e.kind(), format!("swapoff: {e}"))))?;
        }
        // Refused while anybody has it open.
        write(&files.join("reset"), "1")?;
    }
    remove(root, record.device)?;
    Ok(true)
}

/// Removes a device that was added and could not be written down; who hears of that error hears
/// of no other.
pub(super) fn give_up(root: &Root, device: u32) {
    let _ = remove(root, device);
}

fn remove(root: &Root, device: u32) -> io::Result<()> {
    write(&root.path(CONTROL).join("hot_remove"), &device.to_string())
}

/// What a device holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    /// As the programs have it.
    pub original: Bytes,
    /// Memory that it takes, what the allocator wastes included.
    pub memory: Bytes,
    /// The most that it ever took.
    pub peak: Bytes,
}

impl Held {
    /// The memory that pages take which were so much before they were compressed, by the mean ratio of all.
    pub fn part(self, original: Bytes) -> Bytes {
        if self.original.is_zero() {
            return Bytes::ZERO;
        }
        Bytes::from_f64(self.memory.as_f64() * (original / self.original).min(1.0))
    }

    /// About what of it is a run's that has so much of swap; `None` if all of it is. Of devices that were made
    /// for the run a little more is no other's: the header, and pages that are on their way.
    pub fn share(self, swapped: Bytes, is_own: bool) -> Option<Self> {
        let others = self.original - swapped;
        if is_own && others <= ON_THEIR_WAY.0.max(self.original / ON_THEIR_WAY.1) {
            return None;
        }
        let memory = self.part(swapped);
        Some(Self { original: swapped.min(self.original), memory, peak: memory })
    }
}

/// What is counted in a run's own device and not in its group is told as others' from so much, and such a part of
/// all, on.
const ON_THEIR_WAY: (Bytes, u64) = (Bytes::mib(1), 8);

/// What the kernel keeps of each page that a device can hold, from before it holds any: 16 bytes of zram's
/// (`struct zram_table_entry`), and of swap's a count, a bit for zeros, and who is charged. Measured on Linux 6.18:
/// 112 MiB for 23.5 GiB.
const TABLES_A_PAGE: u64 = 19;

/// About what the kernel's tables for a device take, whatever is in it; `None` if there is no such device.
pub fn tables(root: &Root, device: u32) -> Option<Bytes> {
    let size = Bytes(number(&control(root, device).join("disksize"))?);
    Some(Bytes(size.get() / PAGE * TABLES_A_PAGE))
}

/// What a device's pages take compressed, without what the allocator wastes; `None` of one that is gone.
pub(crate) fn packed(root: &Root, device: u32) -> Option<Bytes> {
    let text = crate::files::read(&control(root, device).join("mm_stat")).ok()?;
    text.split_ascii_whitespace().nth(1)?.parse().ok().map(Bytes)
}

/// A device takes no page that needs new memory once less than one of its allocator's blocks is left (8
/// pages, `CONFIG_ZSMALLOC_CHAIN_SIZE`).
const BLOCK: Bytes = Bytes(8 * PAGE);

/// What zram devices take and may take (`mem_limit`), where each of them has come to that limit; `None`
/// otherwise.
pub fn at_limit(root: &Root, devices: &[u32]) -> Option<(Bytes, Bytes)> {
    let one = |device: &u32| {
        let text = crate::files::read(&control(root, *device).join("mm_stat")).ok()?;
        let mut fields = text.split_ascii_whitespace().skip(2).map(|n| n.parse().map(Bytes));
        let (memory, limit): (Bytes, Bytes) = (fields.next()?.ok()?, fields.next()?.ok()?);
        // 0 is none.
        (!limit.is_zero() && memory + BLOCK > limit).then_some((memory, limit))
    };
    let all: Option<Vec<_>> = devices.iter().map(one).collect();
    all?.into_iter().reduce(|a, b| (a.0 + b.0, a.1 + b.1))
}

/// What zram devices hold together; `None` without any.
pub fn held(root: &Root, devices: &[u32]) -> Option<Held> {
    let one = |device: &u32| {
        let text = crate::files::read(&control(root, *device).join("mm_stat")).ok()?;
        let mut fields = text.split_ascii_whitespace().map(|field| field.parse().map(Bytes));
        let mut next = || fields.next()?.ok();
        // orig_data_size, compr_data_size, mem_used_total, mem_limit, mem_used_max
        let (original, _) = (next()?, next()?);
        let (memory, _) = (next()?, next()?);
        Some(Held { original, memory, peak: next()? })
    };
    devices.iter().filter_map(one).reduce(|a, b| Held {
        original: a.original + b.original,
        memory: a.memory + b.memory,
        peak: a.peak + b.peak,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_device_that_others_swap_to_each_has_its_part() {
        let (original, memory) = (Bytes::mib(300), Bytes::mib(100));
        let held = Held { original, memory, peak: memory };
        assert_eq!(held.part(Bytes::ZERO), Bytes::ZERO);
        assert_eq!(held.part(Bytes::mib(30)), Bytes::mib(10));
        // What lies in swap was read before what the device holds.
        assert_eq!(held.part(Bytes::mib(310)), memory);
        assert_eq!(Held::default().part(Bytes::mib(1)), Bytes::ZERO);
    }

    /// Another program may swap to a device that was made for a run.
    #[test]
    fn what_others_have_in_a_run_s_own_device_is_not_the_run_s() {
        let mib = Bytes::mib;
        let held = Held { original: mib(300), memory: mib(100), peak: mib(120) };
        let share = Held { original: mib(30), memory: mib(10), peak: mib(10) };
        assert_eq!(held.share(mib(30), true), Some(share));
        assert_eq!(held.share(mib(290), true), None);
        assert_eq!(held.share(mib(310), true), None);
        assert_eq!(held.share(mib(310), false).map(|share| share.memory), Some(mib(100)));
        let header = Held { original: Bytes(4096), memory: Bytes(20480), peak: Bytes(20480) };
        assert_eq!(header.share(Bytes::ZERO, true), None);
    }

    #[test]
    fn a_device_has_tables_for_all_that_it_can_hold() {
        let directory = tempfile::tempdir().unwrap();
        let root = Root::at(directory.path());
        assert_eq!(tables(&root, 3), None);
        std::fs::create_dir_all(control(&root, 3)).unwrap();
        std::fs::write(control(&root, 3).join("disksize"), "1073741824\n").unwrap();
        assert_eq!(tables(&root, 3), Some(Bytes(19 << 18)));
    }
}
