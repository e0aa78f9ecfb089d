//! `terrace volume serve`.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use serde::Serialize;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use terrace_core::Bytes;
use terrace_signals::may_stop;
use terrace_volume::fuse::{self, Mounted, flusher};
use terrace_volume::nbd::{Listener, Stop, serve};
use terrace_volume::ublk::{self, Attached};
use terrace_volume::{Durability, Medium, Mount, Volume};

use crate::failure::Failure;
use crate::output;

use super::{durability, failure, open};

/// Serve a volume over NBD, as a file (FUSE) or as a block device (ublk), until interrupted.
///
/// `nbd-client`, qemu and libnbd connect to the address that is printed; `losetup` makes a
/// block device of the file. What was written and not flushed is made durable at the end.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: terrace volume serve --socket /run/disk.sock disk.vol &
         qemu-img info 'nbd+unix:///?socket=/run/disk.sock'")]
pub(crate) struct Args {
    /// The image. Nobody else may use it meanwhile.
    image: PathBuf,

    /// Make this UNIX socket, which only its owner may use.
    #[arg(long, value_name = "PATH", required_unless_present_any = ["tcp", "fuse", "ublk"])]
    socket: Option<PathBuf>,

    /// Listen on this address of this machine, for instance 127.0.0.1:10809. Whoever has
    /// an account here may connect, and nothing is encrypted.
    #[arg(long, value_name = "ADDRESS")]
    tcp: Option<SocketAddr>,

    /// Mount the volume as a file over this one, which is there and empty. Only its owner
    /// may use it, and writes are whole sectors (losetup --sector-size 4096).
    #[arg(long, value_name = "FILE")]
    fuse: Option<PathBuf>,

    /// Make a block device (/dev/ublkb0 and so on) of the volume, by the kernel's module
    /// `ublk_drv`; root, Linux 6.4.
    #[arg(long)]
    ublk: bool,

    /// Take no writes. A volume with a damaged map can be served only so.
    #[arg(long)]
    read_only: bool,

    /// What has to survive what; without it, the best that the medium gives.
    #[arg(long, value_name = "WHAT", value_parser = durability())]
    durability: Option<Durability>,
}

/// What is served, as a document; printed when clients can connect.
#[derive(Serialize)]
struct Served {
    image: PathBuf,
    uris: Vec<String>,
    file: Option<PathBuf>,
    device: Option<PathBuf>,
    capacity: Bytes,
    sector: u32,
    read_only: bool,
    /// Clients that can be connected at a time.
    connections: Option<usize>,
    durability: &'static str,
}

impl Args {
    pub(crate) fn execute(self, json: bool) -> Result<ExitCode, Failure> {
        if let Some(address) = self.tcp
            && !address.ip().is_loopback()
        {
            return Err(Failure::bad_input(format!(
                "--tcp: {address} can be reached from other machines, and nothing is encrypted; \
                 only addresses of this machine are served, such as 127.0.0.1:10809"
            )));
        }
        if self.ublk && !Path::new(ublk::CONTROL).exists() {
            return Err(Failure::unsupported(format!(
                "--ublk: this system has no {} (the kernel's module ublk_drv makes it)",
                ublk::CONTROL
            )));
        }
        let image = open(&self.image, !self.read_only, self.durability)?;
        let durability = image.durability.name();
        let how = Mount { read_only: self.read_only, lanes: None };
        let volume = Volume::mount(image.medium, how).map_err(|e| failure(&self.image, &e))?;
        let name = self.image.display().to_string();
        volume.tell_failure(move |e| {
            output::say(format_args!(
                "{name}: {e}; nothing more is written, and what was flushed before is durable: end \
                 the server, mend the medium and serve it again"
            ));
        });
        let volume = Arc::new(volume);
        let has_clients = self.socket.is_some() || self.tcp.is_some();
        if self.fuse.is_some() && has_clients && !volume.is_read_only() && volume.lanes() < 2 {
            return Err(Failure::bad_input(format!(
                "--fuse: {}: the volume has one lane, which the file takes, and none is left for clients \
                 of --socket and --tcp: `terrace volume grow --spare 64` gives it two",
                self.image.display()
            )));
        }
        // Before there is anything to leave behind.
        let mut signals =
            Signals::new([SIGINT, SIGTERM, SIGHUP].into_iter().filter(|&s| may_stop(s)))
                .map_err(|e| Failure::failed(format!("signals: {e}")))?;
        let mut listeners = Vec::new();
        if let Some(path) = &self.socket {
            let wrong = |e| Failure::bad_input(format!("--socket: {}: {e}", path.display()));
            listeners.push(Listener::unix(path).map_err(wrong)?);
        }
        if let Some(address) = self.tcp {
            let wrong = |e| Failure::bad_input(format!("--tcp: {address}: {e}"));
            listeners.push(Listener::tcp(address).map_err(wrong)?);
            output::warn("what goes over TCP is not encrypted");
        }
        if (self.fuse.is_some() || self.ublk)
            && let Err(e) = flusher()
        {
            output::warn(format_args!(
                "the system may wait for this server where it runs out of memory, if a file system \
                 is mounted from it: {e} (PR_SET_IO_FLUSHER)"
            ));
        }
        let mounted = self.fuse.as_deref().map(|at| mount(&volume, at)).transpose()?;
        let attached = if self.ublk { Some(attach(&volume)?) } else { None };
        let served = Served {
            image: self.image,
            file: self.fuse,
            device: attached.as_ref().map(Attached::path),
            uris: listeners.iter().map(Listener::uri).collect(),
            capacity: volume.capacity(),
            sector: volume.sector_size().bytes(),
            read_only: volume.is_read_only(),
            connections: (!volume.is_read_only()).then(|| volume.lanes_to_take()),
            durability,
        };
        if json {
            output::print(&output::json_line("terrace.volume.serve", &served)?)?;
        } else {
            for uri in &served.uris {
                output::say(format_args!(
                    "serving {} at {uri} (durability: {durability})",
                    served.capacity
                ));
            }
            for file in served.file.iter().chain(&served.device) {
                output::say(format_args!(
                    "serving {} as {} (durability: {durability})",
                    served.capacity,
                    file.display()
                ));
            }
        }
        let stop = Stop::default();
        let handle = signals.handle();
        let ended = std::thread::scope(|scope| {
            let server = scope.spawn(|| {
                let tell = |line: String| output::say(line);
                let ended = serve(&volume, &listeners, &stop, &tell, &|| {
                    listeners.is_empty()
                        && mounted.as_ref().is_none_or(Mounted::is_over)
                        && attached.as_ref().is_none_or(Attached::is_over)
                });
                // Nobody waits for a signal any more.
                handle.close();
                ended
            });
            signals.forever().next();
            stop.stop();
            server.join()
        });
        let mut left = Vec::new();
        if let (Some(mounted), Some(file)) = (mounted, &served.file) {
            let wrong = |e| Failure::failed(format!("--fuse: {}: {e}", file.display()));
            if !mounted.end().map_err(wrong)? {
                left.push(format!("--fuse: {}", file.display()));
            }
        }
        if let (Some(attached), Some(device)) = (attached, &served.device) {
            let wrong = |e| Failure::failed(format!("--ublk: {}: {e}", device.display()));
            if !attached.end().map_err(wrong)? {
                left.push(format!("--ublk: {}", device.display()));
            }
        }
        let wrong =
            |e: &dyn std::fmt::Display| Failure::failed(format!("{}: {e}", served.image.display()));
        match ended {
            Ok(Ok(())) => {}
            Ok(Err(e)) => return Err(wrong(&e)),
            Err(_) => return Err(Failure::failed("the server panicked")),
        }
        // Also what came between the server's flush and the end of the file.
        volume.flush().map_err(|e| wrong(&e))?;
        if left.is_empty() {
            return Ok(ExitCode::SUCCESS);
        }
        Err(Failure::failed(format!(
            "{} was still used, and its users get errors from now on; what they had synchronised \
             is durable",
            left.join(", ")
        )))
    }
}

/// Mounts it over a file.
fn mount(volume: &Arc<Volume<Medium>>, at: &Path) -> Result<Mounted, Failure> {
    let name = at.display();
    match std::fs::metadata(at) {
        Ok(there) if there.is_file() && there.len() == 0 => {}
        Ok(_) => return Err(Failure::bad_input(format!("--fuse: {name} is no empty file"))),
        Err(e) if e.kind() == io::ErrorKind::NotConnected => {
            return Err(Failure::bad_input(format!(
                "--fuse: {name}: a server that was killed has left its mount here; `umount {name}` \
                 ends it"
            )));
        }
        Err(e) => return Err(Failure::bad_input(format!("--fuse: {name}: {e}"))),
    }
    if !Path::new("/dev/fuse").exists() {
        return Err(Failure::unsupported("--fuse: this system has no /dev/fuse"));
    }
    if !rustix::process::geteuid().is_root()
        && !["fusermount3", "fusermount"].iter().any(is_installed)
    {
        return Err(Failure::unsupported(
            "--fuse: only root mounts without the program fusermount3, which is not installed",
        ));
    }
    fuse::mount(Arc::clone(volume), at).map_err(|e| Failure::failed(format!("--fuse: {name}: {e}")))
}

fn is_installed(program: &&str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(program).is_file())
}

/// Makes a block device of it.
fn attach(volume: &Arc<Volume<Medium>>) -> Result<Attached, Failure> {
    ublk::attach(volume).map_err(|e| match e.kind() {
        io::ErrorKind::Unsupported | io::ErrorKind::InvalidInput => Failure::unsupported(format!(
            "--ublk: the kernel refuses what Linux 6.4 and newer have: {e}"
        )),
        _ => Failure::failed(format!("--ublk: {e}")),
    })
}
