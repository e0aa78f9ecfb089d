//! The daemon of `terrace kloc`, control groups, and file systems of a test's own.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::{await_that, binary, is_root, json, terrace};

/// A memory control group with a limit; it goes with this.
pub(crate) struct Group(pub(crate) PathBuf);

impl Group {
    /// Bytes that it is charged for.
    pub(crate) fn used(&self) -> u64 {
        let files = ["memory.usage_in_bytes", "memory.current"];
        let text = files.into_iter().find_map(|file| fs::read_to_string(self.0.join(file)).ok());
        text.unwrap().trim().parse().unwrap()
    }

    pub(crate) fn new(name: &str, limit: u64) -> Option<Self> {
        let name = format!("terrace-kloc-{name}-{}", std::process::id());
        let one = Path::new("/sys/fs/cgroup/memory");
        let (root, file) = if one.join("memory.limit_in_bytes").exists() {
            (one, "memory.limit_in_bytes")
        } else {
            (Path::new("/sys/fs/cgroup"), "memory.max")
        };
        let group = Self(root.join(name));
        fs::create_dir(&group.0).ok()?;
        fs::write(group.0.join(file), limit.to_string()).ok()?;
        Some(group)
    }

    /// Runs a script in it.
    pub(crate) fn run(&self, script: &str, directory: &Path) -> String {
        let join = format!("echo $$ >{}/cgroup.procs; {script}", self.0.display());
        let output =
            Command::new("bash").args(["-ec", &join]).current_dir(directory).output().unwrap();
        assert!(output.status.success(), "{script}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Pages that it was charged for become its parent's.
        for _ in 0..50 {
            if fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// A daemon; it ends with this.
pub(crate) struct Daemon {
    pub(crate) child: Child,
    pub(crate) state: PathBuf,
}

impl Daemon {
    /// Nothing where this machine has no such hooks, or this user may not have them.
    pub(crate) fn new(state: &Path, arguments: &[&str]) -> Option<Self> {
        if !is_root() {
            return None;
        }
        let mut child = Command::new(binary())
            .args(["kloc", "run", "--json", "--state"])
            .arg(state)
            .args(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let socket = state.join("socket");
        let mut ended = None;
        // The socket is there before the programs are.
        await_that(Duration::from_mins(1), "the daemon", || {
            ended = child.try_wait().unwrap();
            ended.is_some() || (socket.exists() && status(state).is_some())
        });
        if let Some(status) = ended {
            let mut text = String::new();
            child.stderr.take().unwrap().read_to_string(&mut text).unwrap();
            assert_eq!(status.code(), Some(3), "{text}");
            assert!(
                std::env::var_os("TERRACE_UNSUPPORTED_OK").is_some(),
                "root has no eBPF here: {text}"
            );
            return None;
        }
        Some(Self { child, state: state.to_owned() })
    }

    pub(crate) fn ask(&self, what: &[&str]) -> serde_json::Value {
        let command = terrace().args(["kloc", what[0], "--json", "--state"]).arg(&self.state);
        json(command.args(&what[1..]), 0)
    }

    /// Ends it as a service manager would; its report.
    pub(crate) fn end(mut self) -> serde_json::Value {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        let mut text = String::new();
        self.child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(self.child.wait().unwrap().code(), Some(0));
        serde_json::from_str(&text).unwrap()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn status(state: &Path) -> Option<serde_json::Value> {
    let output = Command::new(binary())
        .args(["kloc", "top", "--json", "--times", "1", "--state"])
        .arg(state)
        .output()
        .unwrap();
    output.status.success().then(|| serde_json::from_slice(&output.stdout).unwrap())
}

/// On a file system whose files the daemon can open.
pub(crate) fn place() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

pub(crate) fn cached(daemon: &Daemon, path: &Path) -> u64 {
    let why = daemon.ask(&["why", path.to_str().unwrap()]);
    why["cached"].as_u64().unwrap_or_else(|| panic!("{why}"))
}

/// A file system of a test's own: on a loop device over memory, or in memory. It goes with this.
pub(crate) struct Disk {
    directory: tempfile::TempDir,
    mounts: Vec<PathBuf>,
}

impl Disk {
    /// Nothing where this machine cannot make or mount such a file system.
    pub(crate) fn new(kind: &str) -> Option<Self> {
        let directory = place();
        let memory = Path::new("/dev/shm");
        let backing = if memory.is_dir() { memory } else { directory.path() };
        let image = tempfile::NamedTempFile::new_in(backing).unwrap();
        // XFS wants 300 MiB. Nothing of it is taken before it is written.
        image.as_file().set_len(512 << 20).unwrap();
        let mut disk = Self { directory, mounts: Vec::new() };
        let at = disk.directory.path().join("mount");
        fs::create_dir(&at).unwrap();
        let mut mount = Command::new("mount");
        if kind == "tmpfs" {
            mount.args(["-t", "tmpfs", "none"]).arg(&at);
        } else {
            let mut make = Command::new(format!("mkfs.{kind}"));
            let paths = std::env::var("PATH").unwrap_or_default();
            make.env("PATH", format!("{paths}:/usr/sbin:/sbin")).arg("-q").arg(image.path());
            if !tried(&mut make) {
                return None;
            }
            mount.args(["-o", "loop", "-t", kind]).arg(image.path()).arg(&at);
        }
        if !tried(&mut mount) {
            return None;
        }
        // The loop device holds the image, which is gone with it.
        disk.mounts.push(at);
        Some(disk)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.mounts[0]
    }

    /// Mounts something more, at a directory of this name beside it; nothing where that cannot be.
    pub(crate) fn mount(&mut self, name: &str, arguments: &[&str]) -> Option<PathBuf> {
        let at = self.directory.path().join(name);
        fs::create_dir(&at).unwrap();
        tried(Command::new("mount").args(arguments).arg(&at)).then(|| {
            self.mounts.push(at.clone());
            at
        })
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        for at in self.mounts.iter().rev() {
            // What the daemon or the kernel has open for a moment keeps it busy.
            for _ in 0..100 {
                if Command::new("umount").arg(at).output().is_ok_and(|done| done.status.success()) {
                    break;
                }
                std::thread::sleep(Duration::from_millis(50));
            }
        }
    }
}

/// Runs what may be missing here; where it must not be, that is a failure.
fn tried(command: &mut Command) -> bool {
    let output = command.output();
    let works = output.as_ref().is_ok_and(|output| output.status.success());
    let optional = std::env::var_os("TERRACE_UNSUPPORTED_OK").is_some();
    assert!(works || optional, "{command:?}: {output:?}");
    if !works {
        eprintln!("not tried here: {command:?}: {output:?}");
    }
    works
}
