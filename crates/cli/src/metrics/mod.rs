//! `terrace metrics` and `run --metrics`: figures for Prometheus.

mod http;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;

use serde::Serialize;
use terrace_report::openmetrics::{self, Attached};

use crate::failure::Failure;
use crate::output;
use crate::runs::{self, LiveRun};

use self::http::Server;
pub(crate) use self::http::SocketFile;

/// Serve the figures of running programs as OpenMetrics.
///
/// Answers `GET /metrics`, for Prometheus and what understands its format,
/// with one set of series for each process of each run that it finds at that
/// moment, and one for each `terrace attach`. Stop it with an interrupt.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: terrace metrics --listen 9464 &\n         \
                        curl http://127.0.0.1:9464/metrics")]
pub(crate) struct Args {
    /// Only this run: a process's number or a program's name.
    #[arg(value_name = "PID|NAME")]
    run: Option<String>,

    /// Where to listen: PORT (on the loopback address), ADDRESS:PORT, or
    /// unix:PATH.
    #[arg(long, value_name = "WHERE", default_value = "9464")]
    listen: Listen,

    /// Print the figures once instead of serving them.
    #[arg(long, conflicts_with = "listen")]
    once: bool,
}

/// Where to listen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Listen {
    /// A TCP port.
    Tcp(SocketAddr),
    /// A UNIX socket, for the user's own programs only.
    Unix(PathBuf),
}

impl FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            return if path.is_empty() {
                Err("`unix:` needs a path".to_owned())
            } else {
                Ok(Self::Unix(PathBuf::from(path)))
            };
        }
        // Figures are nobody else's business unless somebody says so.
        let local = IpAddr::V4(Ipv4Addr::LOCALHOST);
        if let Ok(port) = text.strip_prefix(':').unwrap_or(text).parse() {
            return Ok(Self::Tcp(SocketAddr::new(local, port)));
        }
        text.parse()
            .map(Self::Tcp)
            .map_err(|_| format!("`{text}` is neither a port, nor ADDRESS:PORT, nor unix:PATH"))
    }
}

/// The answer with `--json`.
#[derive(Serialize)]
struct Once {
    metrics: String,
}

/// What is printed with `--json` before anything is served.
#[derive(Serialize)]
struct Serving {
    address: String,
}

impl Args {
    pub(crate) fn execute(self, json: bool) -> Result<ExitCode, Failure> {
        // A run that is asked for by name must be there when we begin; later
        // it may end and another of the name begin.
        runs::choose(self.run.as_deref())?;
        let choice = self.run;
        let collect = move || runs::choose(choice.as_deref()).unwrap_or_default();
        if self.once {
            let metrics = text(&collect())?;
            output::print(&if json {
                output::json("terrace.metrics", &Once { metrics })?
            } else {
                metrics
            })?;
            return Ok(ExitCode::SUCCESS);
        }
        let server = Server::bind("--listen", &self.listen)?;
        if json {
            let address = server.address().to_string();
            output::print(&output::json_line("terrace.metrics.serve", &Serving { address })?)?;
        }
        output::say(format_args!("serving metrics at {}", server.address()));
        server.serve(move || text(&collect()).ok())
    }
}

/// The figures of runs as OpenMetrics text.
fn text(runs: &[LiveRun]) -> Result<String, Failure> {
    let (mut reports, mut attached) = (Vec::new(), Vec::new());
    for run in runs {
        if !run.manifest.in_place {
            reports.push((run.manifest.pid, run.report()));
        } else if let Some(report) = run.attached() {
            let program = run.manifest.program.first().cloned().unwrap_or_default();
            attached.push(Attached { run: run.manifest.pid, program, report });
        }
    }
    openmetrics::encode(reports, attached).map_err(Failure::failed)
}

/// Serves the figures of our own run, from its directories, for as long as we live, from a thread of its own,
/// like any other reader of the run; the socket's file goes with what is returned.
pub(crate) fn serve(
    listen: &Listen,
    directories: &[&Path],
    quiet: bool,
) -> Result<Option<SocketFile>, Failure> {
    let runs: Vec<_> = directories.iter().filter_map(|path| LiveRun::open(path)).collect();
    serve_text(listen, quiet, move || text(&runs).ok())
}

/// Serves what `figures` gives for as long as we live.
pub(crate) fn serve_text(
    listen: &Listen,
    quiet: bool,
    figures: impl Fn() -> Option<String> + Send + 'static,
) -> Result<Option<SocketFile>, Failure> {
    let server = Server::bind("--metrics", listen)?;
    if !quiet {
        output::say(format_args!("serving metrics at {}", server.address()));
    }
    // Not waited for: it ends with us.
    std::thread::spawn(move || server.serve(figures));
    Ok(SocketFile::of(listen))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bare_port_is_on_the_loopback_address() {
        let tcp = |text: &str| Listen::Tcp(text.parse().unwrap());

        assert_eq!("9464".parse(), Ok(tcp("127.0.0.1:9464")));
        assert_eq!(":0".parse(), Ok(tcp("127.0.0.1:0")));
        assert_eq!("0.0.0.0:80".parse(), Ok(tcp("0.0.0.0:80")));
        assert_eq!("[::1]:80".parse(), Ok(tcp("[::1]:80")));
        assert_eq!("unix:/run/x".parse(), Ok(Listen::Unix("/run/x".into())));
        for nonsense in ["", "unix:", "70000", "localhost", "-1", "1.2.3.4"] {
            assert!(nonsense.parse::<Listen>().is_err(), "{nonsense}");
        }
    }
}
