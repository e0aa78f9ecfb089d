//! `terrace volume serve`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use serde::Serialize;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use terrace_core::Bytes;
use terrace_signals::may_stop;
use terrace_volume::nbd::{Listener, Stop, serve};
use terrace_volume::{Durability, Mount, Volume};

use crate::failure::Failure;
use crate::output;

use super::{durability, failure, open};

/// Serve a volume as a network block device (NBD), until interrupted.
///
/// `nbd-client`, qemu and libnbd connect to the address that is printed. What was
/// written and not flushed is made durable at the end.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: terrace volume serve --socket /run/disk.sock disk.vol &
         qemu-img info 'nbd+unix:///?socket=/run/disk.sock'")]
pub(crate) struct Args {
    /// The image. Nobody else may use it meanwhile.
    image: PathBuf,

    /// Make this UNIX socket, which only its owner may use.
    #[arg(long, value_name = "PATH", required_unless_present = "tcp")]
    socket: Option<PathBuf>,

    /// Listen on this address of this machine, for instance 127.0.0.1:10809. Whoever has
    /// an account here may connect, and nothing is encrypted.
    #[arg(long, value_name = "ADDRESS")]
    tcp: Option<SocketAddr>,

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
        let image = open(&self.image, !self.read_only, self.durability)?;
        let durability = image.durability.name();
        let how = Mount { read_only: self.read_only, lanes: None };
        let volume = Volume::mount(image.medium, how).map_err(|e| failure(&self.image, &e))?;
        // Before there is anything to leave behind.
        let mut signals =
            Signals::new([SIGINT, SIGTERM, SIGHUP].into_iter().filter(|&s| may_stop(s)))
                .map_err(|e| Failure::failed(format!("signals: {e}")))?;
        let mut listeners = Vec::new();
        if let Some(path) = &self.socket {
            let wrong = |e| Failure::failed(format!("--socket: {}: {e}", path.display()));
            listeners.push(Listener::unix(path).map_err(wrong)?);
        }
        if let Some(address) = self.tcp {
            let wrong = |e| Failure::failed(format!("--tcp: {address}: {e}"));
            listeners.push(Listener::tcp(address).map_err(wrong)?);
            output::warn("what goes over TCP is not encrypted");
        }
        let served = Served {
            image: self.image,
            uris: listeners.iter().map(Listener::uri).collect(),
            capacity: volume.capacity(),
            sector: volume.sector_size().bytes(),
            read_only: volume.is_read_only(),
            connections: (!volume.is_read_only()).then(|| volume.lanes()),
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
        }
        let stop = Stop::default();
        let handle = signals.handle();
        let ended = std::thread::scope(|scope| {
            let server = scope.spawn(|| {
                let tell = |line: String| output::say(line);
                let ended = serve(&volume, &listeners, &stop, &tell);
                // Nobody waits for a signal any more.
                handle.close();
                ended
            });
            signals.forever().next();
            stop.stop();
            server.join()
        });
        match ended {
            Ok(Ok(())) => Ok(ExitCode::SUCCESS),
            Ok(Err(e)) => Err(Failure::failed(format!("{}: {e}", served.image.display()))),
            Err(_) => Err(Failure::failed("the server panicked")),
        }
    }
}
