//! The kernel as a peer: a memory cgroup with swap behind it.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Duration;

use terrace_core::Bytes;

/// How often a group's statistics are read, see [`Cgroup`].
const FLUSH: Duration = Duration::from_millis(20);

/// A memory cgroup with a limit, removed when dropped.
///
/// Its statistics are read all the time. Reclaim without MGLRU asks them how long the list
/// of inactive pages is, and they are brought up to date every two seconds, or when
/// somebody reads them. Until then the list may have become empty; then reclaim takes
/// it for long enough, finds nothing in it, and the program is killed for want of memory,
/// with its active pages untouched and swap all but empty (Linux 6.18 and groups of some
/// 70 MiB: `shrink_lruvec` and `inactive_is_low` in `mm/vmscan.c`).
#[derive(Debug)]
pub struct Cgroup {
    dir: PathBuf,
    flushing: Option<Repeated>,
    most: Arc<AtomicU64>,
}

impl Cgroup {
    /// A group that may hold so much. Works with either version of cgroups.
    pub fn new(limit: Bytes) -> io::Result<Self> {
        Self::make(Some(limit))
    }

    /// A group without a limit, that only counts.
    pub fn counting() -> io::Result<Self> {
        Self::make(None)
    }

    /// The most that its processes had resident at once of what is swapped: memory of their own, and
    /// shared. Looked at fifty times a second.
    pub fn resident_peak(&self) -> Bytes {
        Bytes(self.most.load(Relaxed))
    }

    fn make(limit: Option<Bytes>) -> io::Result<Self> {
        let name = format!("terrace-bench-{}", std::process::id());
        for (root, file, extra) in [
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", Some(("memory.swappiness", "100"))),
            ("/sys/fs/cgroup", "memory.max", None),
        ] {
            let none = if extra.is_some() { "-1" } else { "max" };
            let dir = Path::new(root).join(&name);
            if fs::create_dir(&dir).is_err() && !dir.is_dir() {
                continue;
            }
            // A group that an earlier run could not remove has that one's limit.
            let limit = limit.map_or(none.to_owned(), |limit| limit.get().to_string());
            if fs::write(dir.join(file), limit).is_ok() {
                if let Some((file, value)) = extra {
                    // As plain anonymous memory: nothing else is in the group.
                    let _ = fs::write(dir.join(file), value);
                }
                let stat = dir.join("memory.stat");
                let most = Arc::new(AtomicU64::new(0));
                let seen = Arc::clone(&most);
                let flush = move || {
                    let text = fs::read_to_string(&stat).unwrap_or_default();
                    seen.fetch_max(resident(&text).get(), Relaxed);
                };
                return Ok(Self { dir, flushing: Some(Repeated::every(FLUSH, flush)), most });
            }
            let _ = fs::remove_dir(&dir);
        }
        Err(io::Error::new(io::ErrorKind::Unsupported, "no memory cgroup can be made here"))
    }

    /// Processes of the group that the kernel has killed because it found no memory.
    pub fn killed(&self) -> u64 {
        ["memory.oom_control", "memory.events"]
            .into_iter()
            .filter_map(|file| fs::read_to_string(self.dir.join(file)).ok())
            .filter_map(|text| {
                let count = text.lines().find_map(|line| line.strip_prefix("oom_kill "))?;
                count.trim().parse::<u64>().ok()
            })
            .sum()
    }

    /// Words before a command line, to run it inside of the group.
    pub fn wrap(&self) -> Vec<String> {
        let procs = self.dir.join("cgroup.procs");
        ["sh", "-c", &format!("echo $$ > {} && exec \"$@\"", procs.display()), "sh"]
            .map(String::from)
            .into()
    }
}

/// What a group has resident of what is swapped, by its `memory.stat`, of either version.
fn resident(stat: &str) -> Bytes {
    let field = |name: &str| {
        let line = stat.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.and_then(|value| value.trim().parse().ok()).map(Bytes)
    };
    match field("total_rss") {
        Some(rss) => rss + field("total_shmem").unwrap_or_default(),
        None => field("anon").unwrap_or_default() + field("shmem").unwrap_or_default(),
    }
}

impl Drop for Cgroup {
    /// What was killed may take a moment to leave, and what has outlived its parent is killed here:
    /// nothing else is in the group.
    fn drop(&mut self) {
        self.flushing = None;
        for turn in 0..3000 {
            if fs::remove_dir(&self.dir).is_ok() || !self.dir.exists() {
                return;
            }
            if turn > 100 {
                let left = fs::read_to_string(self.dir.join("cgroup.procs")).unwrap_or_default();
                for process in left.lines().filter_map(|line| line.parse().ok()) {
                    // SAFETY: has no memory effects.
                    unsafe { libc::kill(process, libc::SIGKILL) };
                }
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        eprintln!("{} could not be removed", self.dir.display());
    }
}

/// What swap lies on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Backing {
    /// Compressed RAM: `/dev/zram0` with LZ4.
    Zram,
    /// A file, with zswap before it: LZ4 where the kernel has it for zswap.
    Zswap,
    /// A file.
    File,
}

impl Backing {
    /// What a table calls it.
    pub fn describe(self) -> String {
        match self {
            Self::Zram => "swap on zram (lz4)".to_owned(),
            Self::Zswap => format!("zswap ({}) before a file", compressor().trim()),
            Self::File => "swap in a file".to_owned(),
        }
    }
}

const ZRAM: &str = "/sys/block/zram0";
const ZSWAP: &str = "/sys/module/zswap/parameters";

/// What zswap compresses with, or would.
fn compressor() -> String {
    fs::read_to_string(Path::new(ZSWAP).join("compressor")).unwrap_or_else(|_| "absent".to_owned())
}

/// A setting of the kernel's that is put back when dropped.
#[derive(Debug)]
struct Setting {
    path: PathBuf,
    before: String,
}

impl Setting {
    fn set(path: PathBuf, value: &str) -> io::Result<Self> {
        let read = fs::read_to_string(&path)?;
        // Choices are listed with the chosen one in brackets.
        let before = read.split(['[', ']']).nth(1).unwrap_or(read.trim()).to_owned();
        let setting = Self { path, before };
        fs::write(&setting.path, value)?;
        Ok(setting)
    }
}

impl Drop for Setting {
    fn drop(&mut self) {
        if let Err(e) = fs::write(&self.path, &self.before) {
            eprintln!("{} could not be set back to {}: {e}", self.path.display(), self.before);
        }
    }
}

/// Swap that is on; off again, and the machine as it was, when dropped.
#[derive(Debug)]
pub struct Swap {
    device: PathBuf,
    backing: Backing,
    on: bool,
    watch: Option<Watch>,
    settings: Vec<Setting>,
}

impl Swap {
    /// Turns swap on. Needs root, and `/dev/zram0` unused.
    pub fn on(backing: Backing, size: Bytes) -> io::Result<Self> {
        let device = match backing {
            Backing::Zram => PathBuf::from("/dev/zram0"),
            Backing::Zswap | Backing::File => {
                PathBuf::from(format!("/var/tmp/terrace-swap-{}", std::process::id()))
            }
        };
        if backing == Backing::Zram {
            let used = fs::read_to_string(Path::new(ZRAM).join("disksize"))?;
            if used.trim() != "0" {
                return Err(io::Error::other("/dev/zram0 is in use"));
            }
        }
        // Complete before anything is changed, so that whatever fails is undone.
        let mut swap = Self { device, backing, on: false, watch: None, settings: Vec::new() };
        swap.prepare(size)?;
        let zswap = Path::new(ZSWAP);
        if backing == Backing::Zswap {
            swap.settings.push(Setting::set(zswap.join("enabled"), "Y")?);
            // Not every kernel has LZ4 for it; a table says what was used.
            swap.settings.extend(Setting::set(zswap.join("compressor"), "lz4").ok());
            swap.watch = Some(Watch::start());
        } else if zswap.exists() {
            swap.settings.push(Setting::set(zswap.join("enabled"), "N")?);
        }
        let made = Command::new("mkswap").arg("-q").arg(&swap.device).output()?;
        if !made.status.success() {
            let why = String::from_utf8_lossy(&made.stderr);
            return Err(io::Error::other(format!("mkswap {}: {why}", swap.device.display())));
        }
        let path = swap.path();
        // SAFETY: a string with a final zero.
        if unsafe { libc::swapon(path.as_ptr(), 0) } != 0 {
            let e = io::Error::last_os_error();
            return Err(io::Error::new(e.kind(), format!("swapon {}: {e}", swap.device.display())));
        }
        swap.on = true;
        Ok(swap)
    }

    fn prepare(&mut self, size: Bytes) -> io::Result<()> {
        if self.backing == Backing::Zram {
            let zram = Path::new(ZRAM);
            self.settings.push(Setting::set(zram.join("comp_algorithm"), "lz4")?);
            return fs::write(zram.join("disksize"), size.get().to_string());
        }
        let file = fs::File::create(&self.device)?;
        file.set_permissions(fs::Permissions::from_mode(0o600))?;
        // Not merely extended: swap refuses files with holes.
        // SAFETY: the descriptor is open.
        let error = unsafe {
            libc::posix_fallocate(std::os::fd::AsRawFd::as_raw_fd(&file), 0, size.get() as i64)
        };
        if error != 0 {
            let e = io::Error::from_raw_os_error(error);
            let what = format!("a swap file of {size}, {}: {e}", self.device.display());
            return Err(io::Error::new(e.kind(), what));
        }
        Ok(())
    }

    fn path(&self) -> CString {
        CString::new(self.device.as_os_str().as_bytes()).expect("no zero in it")
    }

    /// The most RAM that compressed pages occupied until now; zero for a file.
    pub fn occupied_peak(&self) -> Bytes {
        match self.backing {
            Backing::Zram => fs::read_to_string(Path::new(ZRAM).join("mm_stat"))
                .ok()
                .and_then(|stat| stat.split_whitespace().nth(4)?.parse().ok())
                .map_or(Bytes(0), Bytes),
            Backing::Zswap => self.watch.as_ref().map_or(Bytes(0), Watch::peak),
            Backing::File => Bytes(0),
        }
    }
}

impl Drop for Swap {
    fn drop(&mut self) {
        self.watch = None;
        // SAFETY: a string with a final zero.
        if self.on && unsafe { libc::swapoff(self.path().as_ptr()) } != 0 {
            eprintln!("swapoff {}: {}", self.device.display(), io::Error::last_os_error());
        }
        if self.backing == Backing::Zram {
            // Udev may look at a device for a moment after swap has gone.
            for _ in 0..100 {
                if fs::write(Path::new(ZRAM).join("reset"), "1").is_ok() {
                    break;
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        } else {
            let _ = fs::remove_file(&self.device);
        }
        // In the opposite order.
        while self.settings.pop().is_some() {}
    }
}

/// Looks at zswap's size ten times a second: the kernel keeps no maximum of it.
#[derive(Debug)]
struct Watch {
    most: Arc<AtomicU64>,
    _looking: Repeated,
}

impl Watch {
    fn start() -> Self {
        let (before, most) = (zswapped(), Arc::new(AtomicU64::new(0)));
        let seen = Arc::clone(&most);
        let look = move || {
            seen.fetch_max((zswapped() - before).get(), Relaxed);
        };
        Self { most, _looking: Repeated::every(Duration::from_millis(100), look) }
    }

    fn peak(&self) -> Bytes {
        Bytes(self.most.load(Relaxed))
    }
}

/// Something that is done again and again beside, until this is dropped.
#[derive(Debug)]
struct Repeated {
    end: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Repeated {
    fn every(interval: Duration, mut work: impl FnMut() + Send + 'static) -> Self {
        let end = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&end);
        let thread = std::thread::spawn(move || {
            while !ended.load(Relaxed) {
                work();
                std::thread::sleep(interval);
            }
        });
        Self { end, thread: Some(thread) }
    }
}

impl Drop for Repeated {
    fn drop(&mut self) {
        self.end.store(true, Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// RAM that zswap holds compressed pages in.
fn zswapped() -> Bytes {
    let info = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kib = info.lines().find_map(|line| line.strip_prefix("Zswap:"));
    let kib = kib.and_then(|kib| kib.split_whitespace().next()?.parse().ok());
    Bytes::kib(kib.unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_group_has_is_its_own_memory_and_what_is_shared() {
        let one = "cache 900\nrss 5\nshmem 9\ntotal_cache 900\ntotal_rss 4096\ntotal_shmem 8192\n";
        let two = "anon 4096\nfile 900\nshmem 8192\n";

        assert_eq!(resident(one), Bytes(12288));
        assert_eq!(resident(two), Bytes(12288));
        assert_eq!(resident(""), Bytes(0), "a group that is gone");
    }
}
