//! A volume behind a server, beside other servers and devices: one request at a time, one of each
//! of several clients, or several of one client.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Serialize;
use terrace_core::Bytes;

use crate::device::Device;
use crate::measure::{Job, Order, Plan, Row, Way, fill, measure};
use crate::nbd::Server;
use crate::server::{Fused, Running, nbdkit, qemu_nbd};
use crate::target::Target;

/// What is measured, and where.
#[derive(Clone, Debug)]
pub struct Served {
    /// Where files and sockets are made; they are removed at the end.
    pub directory: PathBuf,
    /// Bytes of each device.
    pub size: Bytes,
    /// Bytes of an operation.
    pub bytes: Vec<usize>,
    /// Orders of positions.
    pub orders: Vec<Order>,
    /// What is asked of each server at a time.
    pub loads: Vec<Load>,
    /// Turns.
    pub plan: Plan,
    /// The command `terrace`, which serves the volume.
    pub terrace: PathBuf,
    /// Whether other servers are measured as well.
    pub peers: bool,
}

/// What is asked of a server at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// Clients.
    pub clients: usize,
    /// Requests that each has under way. With more than one only servers of network block devices
    /// are measured: files and devices take one at a time from a thread.
    pub depth: usize,
}

/// What was measured.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Each target and job.
    pub rows: Vec<Row>,
    /// What could not be measured, and why.
    pub missing: Vec<String>,
}

/// A loop device, which is detached when this is dropped.
#[derive(Debug)]
pub(crate) struct Loop(PathBuf);

impl Loop {
    /// Attaches a file, past the kernel's cache.
    pub(crate) fn attach(file: &Path) -> io::Result<Self> {
        let _attaching = crate::abandon::attaching();
        let output = Command::new("losetup")
            .args(["--find", "--show", "--direct-io=on", "--sector-size=4096"])
            .arg(file)
            .output()?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            return Err(io::Error::other(format!("losetup: {}", said.trim())));
        }
        Ok(Self(String::from_utf8_lossy(&output.stdout).trim().into()))
    }
}

impl Loop {
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        // If it stays, `losetup` lists it; nothing is lost.
        let _ = Command::new("losetup").arg("--detach").arg(&self.0).status();
    }
}

pub(crate) fn is_socket(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|there| there.file_type().is_socket())
}

impl Served {
    /// Starts what there is, and measures it by turns.
    pub fn run(&self, progress: &dyn Fn(usize, usize)) -> io::Result<Report> {
        let directory =
            tempfile::Builder::new().prefix("terrace-volume-").tempdir_in(&self.directory)?;
        let at = |name: &str| directory.path().join(name);
        let mut missing = Vec::new();
        // Servers end in good order: a killed one leaves what a next one has to deal with.
        let mut running = Vec::new();
        let mut targets: Vec<Box<dyn Target>> = Vec::new();

        let mut volumes = Vec::new();
        for name in ["over-nbd", "over-fuse"] {
            self.create(&at(name))?;
            volumes.push(at(name));
        }
        let socket = at("terrace.sock");
        let mut serve = Command::new(&self.terrace);
        serve.args(["volume", "serve", "--socket"]).arg(&socket).arg(&volumes[0]);
        running.extend(Running::start(&mut serve, || is_socket(&socket))?);
        targets.push(Box::new(Server::new("volume over NBD", socket)?));

        let file = at("mounted");
        std::fs::write(&file, "")?;
        let mut serve = Command::new(&self.terrace);
        serve.args(["volume", "serve", "--fuse"]).arg(&file).arg(&volumes[1]);
        let is_mounted = || std::fs::metadata(&file).is_ok_and(|there| there.len() > 0);
        let _fused = Fused(file.clone());
        let mut loops = Vec::new();
        match Running::start(&mut serve, is_mounted) {
            Ok(server) => {
                running.extend(server);
                targets.push(Box::new(Device::open("volume as FUSE file", &file, true)?));
                match Loop::attach(&file) {
                    Ok(attached) => {
                        let name = "volume as FUSE file, loop";
                        targets.push(Box::new(Device::open(name, &attached.0, true)?));
                        loops.push(attached);
                    }
                    Err(e) => missing.push(e.to_string()),
                }
            }
            Err(e) => missing.push(format!("FUSE: {e}")),
        }
        if self.peers {
            self.peers(&at, &mut targets, &mut running, &mut loops, &mut missing)?;
        }
        let borrowed: Vec<&dyn Target> = targets.iter().map(|target| &**target).collect();
        for target in &borrowed {
            fill(*target, 64 << 10)?;
        }
        let mut jobs = Vec::new();
        for &Load { clients: threads, depth } in &self.loads {
            for &order in &self.orders {
                for &bytes in &self.bytes {
                    for way in [Way::Write, Way::Read] {
                        jobs.push(Job { way, order, bytes, threads, depth });
                    }
                }
            }
        }
        let mut rows = Vec::new();
        for (number, job) in jobs.iter().enumerate() {
            let step = |now: usize, all: usize| {
                progress(number * 1000 + now * 1000 / all.max(1), jobs.len() * 1000);
            };
            let mut taken = borrowed.clone();
            taken.retain(|target| job.depth == 1 || target.has_queues());
            rows.extend(measure(&taken, *job, self.plan, &step)?);
        }
        drop(targets);
        drop(loops);
        for server in running {
            server.end()?;
        }
        Ok(Report { rows, missing })
    }

    fn create(&self, image: &Path) -> io::Result<()> {
        let size = self.size.0.to_string() + "B";
        let mut create = Command::new(&self.terrace);
        let output = create.args(["volume", "create", "--size", &size]).arg(image).output()?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            return Err(io::Error::other(said.trim().to_owned()));
        }
        Ok(())
    }

    fn peers(
        &self,
        at: &dyn Fn(&str) -> PathBuf,
        targets: &mut Vec<Box<dyn Target>>,
        running: &mut Vec<Running>,
        loops: &mut Vec<Loop>,
        missing: &mut Vec<String>,
    ) -> io::Result<()> {
        let raw = |name: &str| -> io::Result<PathBuf> {
            let path = at(name);
            let file = OpenOptions::new().write(true).create_new(true).open(&path)?;
            rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, self.size.0)?;
            Ok(path)
        };
        let (kit, qemu) = (at("nbdkit.sock"), at("qemu.sock"));
        let servers = [
            ("nbdkit memory", nbdkit(&kit, self.size.0), kit),
            ("qemu-nbd on tmpfs", qemu_nbd(&qemu, &raw("qemu.raw")?), qemu),
        ];
        for (name, mut command, socket) in servers {
            match Running::start(&mut command, || is_socket(&socket))? {
                Some(server) => {
                    running.push(server);
                    targets.push(Box::new(Server::new(name, socket)?));
                }
                None => missing.push(format!("{name}: the program is not installed")),
            }
        }
        match Loop::attach(&raw("loop.raw")?) {
            Ok(attached) => {
                targets.push(Box::new(Device::open("loop on tmpfs", &attached.0, true)?));
                loops.push(attached);
            }
            Err(e) => missing.push(e.to_string()),
        }
        Ok(())
    }
}
