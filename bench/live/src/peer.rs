//! The kernel as a peer: a memory cgroup with swap behind it.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use terrace_core::Bytes;

/// A memory cgroup with a limit, removed when dropped.
pub struct Cgroup {
    dir: PathBuf,
}

impl Cgroup {
    /// A group that may hold so much. Works with either version of cgroups.
    pub fn new(limit: Bytes) -> io::Result<Self> {
        let name = format!("terrace-bench-{}", std::process::id());
        for (root, file, extra) in [
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", Some(("memory.swappiness", "100"))),
            ("/sys/fs/cgroup", "memory.max", None),
        ] {
            let dir = Path::new(root).join(&name);
            if fs::create_dir(&dir).is_err() && !dir.is_dir() {
                continue;
            }
            if fs::write(dir.join(file), limit.get().to_string()).is_ok() {
                if let Some((file, value)) = extra {
                    // As plain anonymous memory: nothing else is in the group.
                    let _ = fs::write(dir.join(file), value);
                }
                return Ok(Self { dir });
            }
            let _ = fs::remove_dir(&dir);
        }
        Err(io::Error::new(io::ErrorKind::Unsupported, "no memory cgroup can be made here"))
    }

    /// A command line that runs what follows inside of the group.
    pub fn wrap(&self) -> Vec<String> {
        let procs = self.dir.join("cgroup.procs");
        ["sh", "-c", &format!("echo $$ > {} && exec \"$@\"", procs.display()), "sh"]
            .map(String::from)
            .into()
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.dir);
    }
}

/// What swap lies on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Backing {
    /// Compressed RAM: `/dev/zram0` with LZ4.
    Zram,
    /// A file, with zswap (as this kernel is built) before it.
    Zswap,
    /// A file.
    File,
}

/// Swap that is on; off again when dropped.
pub struct Swap {
    device: PathBuf,
    backing: Backing,
}

impl Swap {
    /// Turns swap on. Needs root, and `/dev/zram0` unused.
    pub fn on(backing: Backing, size: Bytes) -> io::Result<Self> {
        let device = match backing {
            Backing::Zram => {
                let zram = Path::new("/sys/block/zram0");
                fs::write(zram.join("reset"), "1")?;
                fs::write(zram.join("comp_algorithm"), "lz4")?;
                fs::write(zram.join("disksize"), size.get().to_string())?;
                PathBuf::from("/dev/zram0")
            }
            Backing::Zswap | Backing::File => {
                let file = PathBuf::from(format!("/var/tmp/terrace-swap-{}", std::process::id()));
                let status = Command::new("fallocate")
                    .args(["-l", &size.get().to_string()])
                    .arg(&file)
                    .status()?;
                check(status.success(), "fallocate")?;
                fs::set_permissions(&file, fs::Permissions::from_mode(0o600))?;
                file
            }
        };
        zswap(backing == Backing::Zswap)?;
        let made = Command::new("mkswap").arg("-q").arg(&device).output()?;
        check(made.status.success(), "mkswap")?;
        let on = Command::new("swapon").arg(&device).output()?;
        check(on.status.success(), "swapon")?;
        Ok(Self { device, backing })
    }

    /// What the compressed pages occupy, if this swap knows.
    pub fn occupied(&self) -> Option<Bytes> {
        if self.backing != Backing::Zram {
            return None;
        }
        let stat = fs::read_to_string("/sys/block/zram0/mm_stat").ok()?;
        stat.split_whitespace().nth(2)?.parse().ok().map(Bytes)
    }
}

impl Drop for Swap {
    fn drop(&mut self) {
        let _ = Command::new("swapoff").arg(&self.device).status();
        match self.backing {
            Backing::Zram => {
                let _ = fs::write("/sys/block/zram0/reset", "1");
            }
            Backing::Zswap | Backing::File => {
                let _ = fs::remove_file(&self.device);
            }
        }
        let _ = zswap(false);
    }
}

fn zswap(on: bool) -> io::Result<()> {
    match fs::write("/sys/module/zswap/parameters/enabled", if on { "Y" } else { "N" }) {
        Err(e) if on => Err(e),
        _ => Ok(()),
    }
}

fn check(ok: bool, what: &str) -> io::Result<()> {
    if ok { Ok(()) } else { Err(io::Error::other(format!("{what} failed"))) }
}
