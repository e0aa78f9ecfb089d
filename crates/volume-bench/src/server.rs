//! Servers that are started for the measurement, and ended after it.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long a server may take to make its socket.
const PATIENCE: Duration = Duration::from_secs(10);

/// Processes of the servers that run, for [`kill_all`].
static RUNNING: Mutex<Vec<u32>> = Mutex::new(Vec::new());

fn with<T>(work: impl FnOnce(&mut Vec<u32>) -> T) -> T {
    work(&mut RUNNING.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Kills every server that runs, before this process ends by a signal. They hold gigabytes.
pub fn kill_all() {
    with(|running| {
        for &process in running.iter() {
            if let Some(pid) = rustix::process::Pid::from_raw(process as i32) {
                // It may have ended by itself: nobody else has waited for it, so that the number is
                // still its own.
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
        }
    });
}

/// A running server; it is killed when this is dropped.
#[derive(Debug)]
pub struct Running(Child);

impl Running {
    /// Starts a server, and waits until its socket (or whatever `is_ready` looks at) is there.
    /// `Ok(None)` if there is no such program.
    pub fn start(command: &mut Command, is_ready: impl Fn() -> bool) -> io::Result<Option<Self>> {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        // Under the lock: there is none that `kill_all` does not know.
        let child = with(|all| command.spawn().inspect(|child| all.push(child.id())));
        let mut running = match child {
            Ok(child) => Self(child),
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(e),
        };
        let start = Instant::now();
        while !is_ready() {
            // Under the lock: who has been waited for is nobody's process any more.
            let ended = with(|all| {
                let ended = running.0.try_wait();
                if matches!(ended, Ok(Some(_))) {
                    all.retain(|&process| process != running.0.id());
                }
                ended
            });
            if let Some(status) = ended? {
                return Err(io::Error::other(format!("it ended ({status}) before it was ready")));
            }
            if start.elapsed() > PATIENCE {
                return Err(io::ErrorKind::TimedOut.into());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(Some(running))
    }

    /// Ends it in good order.
    pub fn end(mut self) -> io::Result<()> {
        let pid = rustix::process::Pid::from_child(&self.0);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM)?;
        self.wait()
    }

    /// Waits for its end. It may still be killed by [`kill_all`] meanwhile.
    fn wait(&mut self) -> io::Result<()> {
        loop {
            let ended = with(|all| {
                let ended = self.0.try_wait()?;
                if ended.is_some() {
                    all.retain(|&process| process != self.0.id());
                }
                io::Result::Ok(ended.is_some())
            })?;
            if ended {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.wait();
    }
}

/// A file that a server mounts over: it is taken away when this is dropped, whatever has become of the
/// server. Drops before the server.
pub(crate) struct Fused(pub(crate) PathBuf);

impl Drop for Fused {
    fn drop(&mut self) {
        // If it stays, `mount` lists it. Nothing is said where it is none.
        let _ = Command::new("umount").args(["-q", "-l"]).arg(&self.0).output();
    }
}

/// `nbdkit`'s memory disk.
pub fn nbdkit(socket: &Path, bytes: u64) -> Command {
    let mut command = Command::new("nbdkit");
    command.arg("-f").arg("-U").arg(socket).arg("memory").arg(bytes.to_string());
    command
}

/// `qemu-nbd` on a raw file.
pub fn qemu_nbd(socket: &Path, file: &Path) -> Command {
    let mut command = Command::new("qemu-nbd");
    // By itself it takes one client at a time, and others wait.
    command.args(["-f", "raw", "-t", "-e", "64", "-x", "", "-k"]).arg(socket).arg(file);
    command
}
