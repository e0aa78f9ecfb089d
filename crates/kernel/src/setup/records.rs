//! What was made, written down before it is made, so that it can be undone whenever and however
//! Terrace ends.
//!
//! | file | content |
//! |---|---|
//! | `lock` | held while anything here is changed |
//! | `run-PID-START.json` | [`RunRecord`]: a run, its control groups, the devices that it swaps to |
//! | `zram-N.json` | [`DeviceRecord`]: a device that Terrace set up, for all runs that swap to it |
//! | `zswap.json` | [`ZswapRecord`]: how zswap was set before Terrace switched it on |
//!
//! A file is written under another name and renamed, so that nobody reads half of one.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use terrace_core::Bytes;
use terrace_sampler::ProcStat;

use super::group::Group;
use super::header::Mark;
use super::zswap::ZswapRecord;
use crate::files::{Root, named, step};

/// Version of the files; grows when a field changes its meaning.
pub(super) const SCHEMA: u32 = 1;
const PAGE: u64 = 4096;

/// A process that cannot be confused with a later one of the same number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// Its number.
    pub process: u32,
    /// When it started, in clock ticks after the machine did.
    started: u64,
    /// Which start of the machine that was.
    boot: String,
}

impl Owner {
    /// A process that runs.
    ///
    /// # Errors
    /// If there is no such process.
    pub fn of(root: &Root, process: u32) -> io::Result<Self> {
        let gone = || io::Error::new(io::ErrorKind::NotFound, format!("no process {process}"));
        let started = started(root, process).ok_or_else(gone)?;
        Ok(Self { process, started, boot: boot(root) })
    }

    /// Whether it runs still.
    pub(super) fn is_alive(&self, root: &Root) -> bool {
        self.is_of_this_boot(root) && started(root, self.process) == Some(self.started)
    }

    /// Whether the machine was not started again since: then nothing is left of what it made.
    pub(super) fn is_of_this_boot(&self, root: &Root) -> bool {
        self.boot == boot(root)
    }
}

/// Which start of the machine this is.
pub(super) fn boot(root: &Root) -> String {
    root.read("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

/// When a process started; `None` if there is none, or it has ended and was not waited for.
fn started(root: &Root, process: u32) -> Option<u64> {
    let stat = root.read(format!("/proc/{process}/stat")).ok()?;
    let stat = ProcStat::parse(&stat)?;
    if stat.has_ended() { None } else { stat.started() }
}

/// A run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RunRecord {
    pub(super) schema: u32,
    /// The process of the command.
    pub(super) owner: Owner,
    /// The program, for messages.
    pub(super) program: String,
    /// The control group that was made for it.
    pub(super) group: Option<Group>,
    /// The zram devices of Terrace's that its memory may lie in.
    pub(super) devices: Vec<u32>,
    /// Whether it needs zswap, which Terrace has switched on.
    #[serde(default)]
    pub(super) zswap: bool,
}

/// A zram device that Terrace set up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct DeviceRecord {
    pub(super) schema: u32,
    pub(super) boot: String,
    /// `/dev/zramN`.
    pub(super) device: u32,
    /// The size that it is given.
    pub(super) size: Bytes,
    /// By which it is known again.
    pub(super) mark: Mark,
}

/// The name of a device's record.
pub(super) fn device_record(device: u32) -> String {
    format!("zram-{device}.json")
}

impl RunRecord {
    pub(super) fn new(owner: Owner, program: &str) -> Self {
        let program = program.to_owned();
        Self { schema: SCHEMA, owner, program, group: None, devices: Vec::new(), zswap: false }
    }

    pub(super) fn name(&self) -> String {
        format!("run-{}-{}.json", self.owner.process, self.owner.started)
    }
}

impl DeviceRecord {
    pub(super) fn new(root: &Root, device: u32, size: Bytes) -> io::Result<Self> {
        // As the kernel rounds it.
        let size = Bytes(size.get().next_multiple_of(PAGE));
        Ok(Self { schema: SCHEMA, boot: boot(root), device, size, mark: Mark::new()? })
    }

    pub(super) fn name(&self) -> String {
        device_record(self.device)
    }
}

/// Whether nobody but its owner may do anything with it.
fn is_private(mode: u32) -> bool {
    const OTHERS: u32 = 0o077;
    mode & OTHERS == 0
}

/// What lies in a directory that others can change is not to be believed: it says what is taken
/// away.
fn check(directory: &Path) -> io::Result<()> {
    let refusal = || {
        let what = "it belongs to somebody else, or others may write to it";
        io::Error::new(io::ErrorKind::PermissionDenied, what)
    };
    let opened = File::options()
        .read(true)
        .custom_flags(libc::O_DIRECTORY | libc::O_NOFOLLOW)
        .open(directory);
    let itself = match opened {
        // A link of somebody's.
        Err(e) if matches!(e.raw_os_error(), Some(libc::ELOOP | libc::ENOTDIR)) => {
            return Err(refusal());
        }
        opened => opened?.metadata()?,
    };
    // SAFETY: takes nothing, and cannot fail.
    let user = unsafe { libc::geteuid() };
    if itself.uid() == user && is_private(itself.mode()) { Ok(()) } else { Err(refusal()) }
}

/// The directory of the records, locked: nobody else changes anything meanwhile.
#[derive(Debug)]
pub(crate) struct Records {
    directory: PathBuf,
    _lock: File,
}

impl Records {
    /// Opens a directory, which is made if there is none, and waits for the lock.
    pub(crate) fn open(directory: &Path) -> io::Result<Self> {
        let opened = || {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
            check(directory)?;
            let file = File::options()
                .create(true)
                .truncate(false)
                .write(true)
                .mode(0o600)
                .custom_flags(libc::O_NOFOLLOW)
                .open(directory.join("lock"))?;
            file.lock()?;
            Ok(file)
        };
        let lock = opened().map_err(|e: io::Error| named(directory, &e))?;
        Ok(Self { directory: directory.to_owned(), _lock: lock })
    }

    /// Writes a record.
    pub(crate) fn write(&self, name: &str, record: &impl Serialize) -> io::Result<()> {
        let (draft, path) = (self.directory.join(format!("{name}.new")), self.directory.join(name));
        let text = serde_json::to_string(record)?;
        step();
        let written = || {
            // Of a writer that was killed.
            match fs::remove_file(&draft) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
                _ => {}
            }
            let mut file = File::options()
                .write(true)
                .create_new(true)
                .mode(0o600)
                .custom_flags(libc::O_NOFOLLOW)
                .open(&draft)?;
            file.write_all(text.as_bytes())
        };
        written().map_err(|e: io::Error| named(&draft, &e))?;
        step();
        fs::rename(&draft, &path).map_err(|e| named(&path, &e))
    }

    /// Removes a record; it may be gone.
    pub(crate) fn remove(&self, name: &str) -> io::Result<()> {
        let path = self.directory.join(name);
        step();
        match fs::remove_file(&path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(named(&path, &e)),
            _ => Ok(()),
        }
    }

    /// The records of runs.
    pub(super) fn runs(&self) -> io::Result<Vec<Found<RunRecord>>> {
        self.read_all("run-")
    }

    /// The records of devices, whether they can be read or not.
    pub(super) fn found_devices(&self) -> io::Result<Vec<Found<DeviceRecord>>> {
        self.read_all("zram-")
    }

    /// The records of devices.
    pub(super) fn devices(&self) -> io::Result<Vec<DeviceRecord>> {
        self.found_devices()?.into_iter().map(|found| found.record).collect()
    }

    /// How zswap was set before.
    pub(super) fn zswap(&self) -> io::Result<Option<ZswapRecord>> {
        self.read_all(ZswapRecord::NAME)?.pop().map(|found| found.record).transpose()
    }

    fn read_all<T: DeserializeOwned>(&self, prefix: &str) -> io::Result<Vec<Found<T>>> {
        let mut all = Vec::new();
        let list = fs::read_dir(&self.directory).map_err(|e| named(&self.directory, &e))?;
        for entry in list {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if path.extension().is_some_and(|extension| extension == "new") {
                // Half written when its writer was killed: nothing of it was begun.
                let _ = fs::remove_file(&path);
            } else if name.starts_with(prefix) {
                all.push(Found { record: read_record(&path), name });
            }
        }
        Ok(all)
    }
}

/// A record that is there.
pub(super) struct Found<T> {
    /// The name of its file.
    pub(super) name: String,
    /// What it says, or why that is not known and what the user can do.
    pub(super) record: io::Result<T>,
}

impl<T> Found<T> {
    /// Whether the run that it is named for lives; read or not.
    pub(super) fn is_of_living_run(&self, root: &Root) -> bool {
        let numbers = self.name.strip_prefix("run-").and_then(|name| name.strip_suffix(".json"));
        let Some((process, start)) = numbers.and_then(|numbers| numbers.split_once('-')) else {
            return false;
        };
        let (Ok(process), Ok(start)) = (process.parse(), start.parse()) else { return false };
        started(root, process) == Some(start)
    }
}

fn read_record<T: DeserializeOwned>(path: &Path) -> io::Result<T> {
    let remedy = "look with `swapon --show` and in the control groups for what it was about, undo \
                  that, and remove the file";
    let text =
        crate::files::read(path).map_err(|e| io::Error::new(e.kind(), format!("{e}; {remedy}")))?;
    let damaged = |e: serde_json::Error| {
        named(path, &io::Error::other(format!("is damaged ({e}); {remedy}")))
    };
    let value: serde_json::Value = serde_json::from_str(&text).map_err(damaged)?;
    if value["schema"] != SCHEMA {
        let what = format!(
            "is of another version of Terrace ({}); run `terrace clean` of that version, or {remedy}",
            value["schema"]
        );
        return Err(named(path, &io::Error::other(what)));
    }
    serde_json::from_value(value).map_err(damaged)
}
