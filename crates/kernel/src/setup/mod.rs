//! What a run needs of the machine, made by itself and undone at the end.
//!
//! | file | concept |
//! |---|---|
//! | [`swap`] | the swap that there is |
//! | [`zram`] | a device that compresses what is swapped to it |
//! | [`zswap`] | compressed memory in front of swap that is there |
//! | [`present`] | compressed swap that the machine has by itself |
//! | `backing` | a file that idle compressed pages are written to |
//! | `header` | by which a device of Terrace's is known |
//! | [`group`] | the control group of a run |
//! | [`records`] | what was made, for whoever has to undo it |
//! | [`clean`](mod@clean) | undoes what belongs to no living process |
//! | [`watchdog`] | has it undone, if Terrace is killed |
//! | here | what a run is set up with |

mod backing;
pub mod clean;
pub mod group;
mod header;
pub mod present;
pub mod records;
pub mod swap;
pub mod watchdog;
pub mod zram;
pub mod zswap;

use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::{Deserialize, Serialize};
use terrace_core::Bytes;
use thiserror::Error;

use self::clean::{Cleaned, undo};
use self::group::Group;
use self::records::{DeviceRecord, Owner, Records, RunRecord, SCHEMA};
use self::swap::Swapping;
use self::zswap::ZswapRecord;
use crate::files::Root;

/// Why a run could not be set up.
#[derive(Debug, Error)]
pub enum SetUpError {
    /// The machine lacks something.
    #[error("{0}")]
    Missing(String),
    /// Something went wrong.
    #[error(transparent)]
    Failed(#[from] io::Error),
}

/// The machine, and where is written down what is made on it.
pub struct Site {
    /// Its files.
    pub root: Root,
    /// The directory of the records.
    pub records: PathBuf,
    /// Its system calls.
    pub swapping: Box<dyn Swapping>,
}

impl Site {
    /// This machine.
    pub fn machine(records: PathBuf) -> Self {
        Self { root: Root::machine(), records, swapping: Box::new(swap::Linux) }
    }
}

/// What pages are swapped to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SwapUse {
    /// What kind it is.
    pub kind: SwapKind,
    /// In words: which, and since when.
    pub what: String,
    /// The zram devices of it.
    pub devices: Vec<u32>,
    /// Whether it was made for this run.
    #[serde(default)]
    pub own: bool,
    /// Whether idle pages in it are compressed again, more tightly.
    #[serde(default)]
    pub recompresses: bool,
    /// Whether idle pages in it are written to a file, where they take more than they may.
    #[serde(default)]
    pub writes_back: bool,
    /// That it may be too little, if that is so; what comes of that is for whoever uses it to say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scarce: Option<String>,
}

impl SwapUse {
    /// Swap that was there.
    fn there(kind: SwapKind, what: String) -> Self {
        Self {
            kind,
            what,
            devices: Vec::new(),
            own: false,
            recompresses: false,
            writes_back: false,
            scarce: None,
        }
    }
}

/// Kinds of swap, by what a page takes to come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SwapKind {
    /// Compressed memory.
    Zram,
    /// Compressed memory in front of a disk.
    Zswap,
    /// A disk or a file.
    Disk,
}

/// What kind of swap a run would have, and what is missing if none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SwapChoice {
    /// This, which is there.
    There(SwapUse),
    /// A zram device that is to be made.
    Make,
    /// zswap, which is to be switched on in front of swap that is there.
    SwitchOn(SwapUse),
}

impl SwapChoice {
    /// Whether it is compressed swap that is on, and that is enough for any program.
    fn is_without_change(&self) -> bool {
        matches!(self, Self::There(swap) if swap.kind != SwapKind::Disk && swap.scarce.is_none())
    }
}

/// From so much free swap on the swap that is there is enough for any program. How much a program will
/// have beyond its budget is not known before. A device of its own would have `device_size`, which is that
/// of memory; half of it leaves room for others' pages.
pub fn enough(device_size: Bytes) -> Bytes {
    device_size / 2
}

/// Which swap a run would have that needs so much of it, and may need any amount: compressed memory that
/// is there and is `enough`, else that can be made, else whatever is there.
///
/// # Errors
/// What is missing where there is none and none can be made.
pub fn choose_swap(root: &Root, need: Bytes, enough: Bytes) -> Result<SwapChoice, String> {
    let areas = swap::areas(root);
    let zrams: Vec<_> = areas.iter().filter_map(|area| Some((area.zram()?, area))).collect();
    let compressed: Bytes = zrams.iter().fold(Bytes::ZERO, |sum, (_, area)| sum + area.free());
    let zram_there = |scarce| {
        let devices: Vec<u32> = zrams.iter().map(|(device, _)| *device).collect();
        let names: Vec<_> = devices.iter().map(|device| format!("zram{device}")).collect();
        let what = format!("{}, which was there ({compressed} free)", names.join(", "));
        let there = SwapUse::there(SwapKind::Zram, what);
        Ok(SwapChoice::There(SwapUse { devices, scarce, ..there }))
    };
    if !zrams.is_empty() && (need.is_zero() || compressed >= need.max(enough)) {
        return zram_there(None);
    }
    let free: Bytes = areas.iter().fold(Bytes::ZERO, |sum, area| sum + area.free());
    if need.is_zero() {
        return Ok(SwapChoice::There(SwapUse::there(SwapKind::Disk, "none is needed".into())));
    }
    if zswap::is_on(root) && free >= need {
        let what = format!("zswap in front of swap that was there ({free} free)");
        let scarce = scarce(free, enough, "zswap is in front of it");
        return Ok(SwapChoice::There(SwapUse { scarce, ..SwapUse::there(SwapKind::Zswap, what) }));
    }
    let Some(lack) = zram::lack(root) else { return Ok(SwapChoice::Make) };
    let lack = format!("no zram device can be made: {lack}");
    if !zrams.is_empty() && compressed >= need {
        return zram_there(scarce(compressed, enough, &lack));
    }
    if free < need || areas.is_empty() {
        return Err(format!("{free} of swap are free where {need} are needed, and {lack}"));
    }
    let area = areas[0].path.display();
    let scarce = scarce(free, enough, &lack);
    if zswap::lack(root).is_none() {
        let what = format!("zswap, switched on in front of {area} ({free} free)");
        let there = SwapUse::there(SwapKind::Zswap, what);
        return Ok(SwapChoice::SwitchOn(SwapUse { scarce, ..there }));
    }
    let there = SwapUse::there(SwapKind::Disk, format!("{area}, which was there ({free} free)"));
    Ok(SwapChoice::There(SwapUse { scarce, ..there }))
}

/// That what is free may be too little, if it is not enough for any program, and why there is no more.
fn scarce(free: Bytes, enough: Bytes, why: &str) -> Option<String> {
    (free < enough).then(|| format!("only {free} of swap are free ({why}; `swapon` adds swap)"))
}

/// What a run asks for.
#[derive(Clone, Debug)]
pub struct Wish {
    /// The program, for messages.
    pub program: String,
    /// How large a zram device is made: what it can hold, not what it takes.
    pub device_size: Bytes,
    /// Swap that has to be free at least where no device can be made.
    pub need: Bytes,
    /// In which control group the run is.
    pub group: WishedGroup,
    /// A file that idle compressed pages are written to: a device is made for it.
    pub backing: Option<Backing>,
    /// Whether only compressed swap will do that is on, and enough for any program: no device is made,
    /// and nothing is switched on. Nobody has asked for that who has not named this engine.
    pub without_change: bool,
}

/// A file that a zram device writes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backing {
    /// The directory in which it is made; it has no name.
    pub directory: PathBuf,
    /// How large it is.
    pub size: Bytes,
}

/// The control group that a run is to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WishedGroup {
    /// One of its own.
    Own,
    /// None is made: its processes are where they are.
    None,
}

/// The group that a run of this command's process is going to have; nothing is made yet.
///
/// # Errors
/// What keeps it from having one.
pub fn planned_group(root: &Root, process: u32) -> Result<Group, String> {
    Group::plan(root, &format!("terrace-{process}"))
}

/// What a run was set up with.
#[derive(Debug)]
pub struct SetUp {
    record: RunRecord,
    /// What its pages are swapped to.
    pub swap: SwapUse,
    /// Why there is no control group, if there is none.
    pub no_group: Option<String>,
}

impl SetUp {
    /// Makes what a run needs. What was made before something fails is undone again.
    ///
    /// # Errors
    /// What is missing here, or has failed.
    pub fn new(site: &Site, wish: &Wish) -> Result<Self, SetUpError> {
        let records = Records::open(&site.records)?;
        let owner = Owner::of(&site.root, std::process::id())?;
        let record = RunRecord::new(owner, &wish.program);
        let name = record.name();
        let begun = Self::begin(site, wish, &records, record);
        if begun.is_err() {
            // Whoever hears of the error has to hear of that one, and `clean` undoes the rest.
            let _ = undo(site, &records, Some(&name));
        }
        begun
    }

    /// Has a share in what another run was set up with: it is in its group, and swaps to the same.
    ///
    /// # Errors
    /// If that cannot be written down.
    pub fn share(site: &Site, program: &str, group: &Group, swap: &SwapUse) -> io::Result<Self> {
        let records = Records::open(&site.records)?;
        let mut record = RunRecord::new(Owner::of(&site.root, std::process::id())?, program);
        let known = records.devices()?;
        record.group = Some(group.clone());
        record.devices = of_ours(&swap.devices, &known);
        record.zswap = swap.kind == SwapKind::Zswap && records.zswap()?.is_some();
        records.write(&record.name(), &record)?;
        Ok(Self { record, swap: swap.clone(), no_group: None })
    }

    fn begin(
        site: &Site,
        wish: &Wish,
        records: &Records,
        mut record: RunRecord,
    ) -> Result<Self, SetUpError> {
        let root = &site.root;
        let known = records.devices()?;
        let choice = match &wish.backing {
            None => choose_swap(root, wish.need, enough(wish.device_size))
                .map_err(SetUpError::Missing)?,
            // What is there is somebody else's, and has no file.
            Some(_) => match zram::lack(root) {
                None => SwapChoice::Make,
                Some(lack) => return Err(SetUpError::Missing(lack)),
            },
        };
        // It was there when the engine was chosen. Others may have taken it off, or filled it, since.
        if wish.without_change && !choice.is_without_change() {
            let lack = "compressed swap that was on is off, or too little of it is free by now";
            return Err(SetUpError::Missing(lack.into()));
        }
        let swap = match choice {
            SwapChoice::SwitchOn(swap) => {
                record.zswap = true;
                records.write(&record.name(), &record)?;
                // How it was before the first of those that need it.
                if records.zswap()?.is_none() {
                    records.write(ZswapRecord::NAME, &ZswapRecord::new(root, SCHEMA)?)?;
                }
                zswap::begin(root)?;
                swap
            }
            SwapChoice::There(swap) => {
                record.zswap = swap.kind == SwapKind::Zswap && records.zswap()?.is_some();
                record.devices = of_ours(&swap.devices, &known);
                records.write(&record.name(), &record)?;
                swap
            }
            SwapChoice::Make => {
                let device = zram::add(root)?;
                record.devices = vec![device];
                let written = DeviceRecord::new(root, device, wish.device_size).and_then(|made| {
                    records.write(&record.name(), &record)?;
                    records.write(&made.name(), &made)?;
                    Ok(made)
                });
                let made = written.inspect_err(|_| zram::give_up(root, device))?;
                let extras = zram::extras(root, device);
                let backing = match &wish.backing {
                    Some(_) if !extras.writes_back => {
                        return Err(SetUpError::Missing(
                            "zram of this kernel writes nothing to files (CONFIG_ZRAM_WRITEBACK)"
                                .into(),
                        ));
                    }
                    Some(wish) => Some(backing::file_in(&wish.directory, wish.size)?),
                    None => None,
                };
                zram::begin(root, &*site.swapping, &made, backing.as_ref())?;
                SwapUse {
                    kind: SwapKind::Zram,
                    what: format!("zram{device}, made for this run"),
                    devices: vec![device],
                    own: true,
                    recompresses: extras.recompresses,
                    writes_back: backing.is_some(),
                    scarce: None,
                }
            }
        };
        let group = match &wish.group {
            WishedGroup::Own => planned_group(root, record.owner.process).map(Some),
            WishedGroup::None => Ok(None),
        };
        let no_group = match group {
            Ok(None) => None,
            Ok(Some(group)) => {
                record.group = Some(group.clone());
                records.write(&record.name(), &record)?;
                match group.make() {
                    Ok(()) => None,
                    Err(e) if is_denied(&e) => {
                        record.group = None;
                        records.write(&record.name(), &record)?;
                        Some(e.to_string())
                    }
                    Err(e) => {
                        if e.kind() == io::ErrorKind::AlreadyExists {
                            // It is another's, and not undone with this run.
                            record.group = None;
                            records.write(&record.name(), &record)?;
                        }
                        return Err(e.into());
                    }
                }
            }
            Err(lack) => Some(lack),
        };
        Ok(Self { record, swap, no_group })
    }

    /// The control group of the run.
    pub fn group(&self) -> Option<&Group> {
        self.record.group.as_ref()
    }

    /// Has a command's program begin in the run's group.
    ///
    /// # Errors
    /// The system's, if the group cannot be joined.
    pub fn place(&self, command: &mut Command) -> io::Result<()> {
        let Some(group) = self.group() else { return Ok(()) };
        let doors = group.doors()?;
        let join = move || {
            for door in &doors {
                // SAFETY: one byte that lives on, to a descriptor that is open. It is one of the
                // calls that are allowed between fork and exec.
                if unsafe { libc::write(door.as_raw_fd(), c"0".as_ptr().cast(), 1) } != 1 {
                    return Err(io::Error::last_os_error());
                }
            }
            Ok(())
        };
        // SAFETY: the closure makes system calls only, and allocates nothing.
        unsafe { command.pre_exec(join) };
        Ok(())
    }

    /// Undoes what was made for this run, as far as nobody needs it.
    ///
    /// # Errors
    /// The system's; `clean` can be tried again.
    pub fn finish(self, site: &Site) -> io::Result<Cleaned> {
        let records = Records::open(&site.records)?;
        undo(site, &records, Some(&self.record.name()))
    }
}

/// The devices that Terrace set up.
fn of_ours(devices: &[u32], known: &[DeviceRecord]) -> Vec<u32> {
    let is_ours = |device: &&u32| known.iter().any(|record| record.device == **device);
    devices.iter().filter(is_ours).copied().collect()
}

/// Whether this user may not make a group here, or nobody may.
fn is_denied(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem)
}

/// Where records lie: of root's runs in `/run`, of others' in their own runtime directory.
pub fn directory_of_records(user: u32, runtime: Option<&Path>) -> PathBuf {
    match (user, runtime) {
        (0, _) => "/run/terrace.kernel".into(),
        (_, Some(runtime)) => runtime.join("terrace.kernel"),
        (user, None) => format!("/tmp/terrace.kernel-{user}").into(),
    }
}

#[cfg(test)]
mod tests;
