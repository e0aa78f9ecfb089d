//! redis-server: filled with a known data set, put under load by
//! redis-benchmark, changed while a forked child writes a snapshot.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::Need::Program;
use super::data::Numbers;
use super::environment::Environment;
use super::{Outcome, Workload};
use crate::process::reap;

/// Keys of the known data set.
const KEYS: u64 = 40_000;

/// The server as a workload.
pub fn workload() -> Workload {
    Workload {
        name: "redis",
        needs: &[Program("redis-server"), Program("redis-cli"), Program("redis-benchmark")],
        run,
    }
}

fn run(environment: &Environment, directory: &Path) -> Result<Outcome, String> {
    let started = Instant::now();
    let mut server = Server::start(environment, directory)?;
    fs::write(directory.join("fill"), fill()).map_err(|e| e.to_string())?;
    server.pipe("fill")?;
    let mut results = vec![("digest after filling".to_owned(), server.cli(&["debug", "digest"])?)];

    // Load in another database: its keys are random, so it is emptied again.
    server.client(
        "redis-benchmark",
        &[
            "--dbnum",
            "1",
            "-q",
            "-n",
            "30000",
            "-r",
            "15000",
            "-d",
            "700",
            "-P",
            "8",
            "-t",
            "set,get,lpush,incr,hset",
        ],
    )?;
    server.cli(&["-n", "1", "flushdb"])?;
    results.push(("digest after the load".to_owned(), server.cli(&["debug", "digest"])?));

    // The child that writes the snapshot sees what was, the server what is.
    server.cli(&["bgsave"])?;
    fs::write(directory.join("change"), change()).map_err(|e| e.to_string())?;
    server.pipe("change")?;
    server.wait_for_snapshot()?;
    results.push(("digest after the change".to_owned(), server.cli(&["debug", "digest"])?));
    fs::write(directory.join("read"), read()).map_err(|e| e.to_string())?;
    results.push(("every value".to_owned(), server.commands("read")?));
    let (peak, elapsed) = (server.stop()?, started.elapsed());

    // An unmanaged server reads the snapshot back.
    let mut second = Server::start(&Environment::plain(environment.limit), directory)?;
    results.push(("digest of the snapshot".to_owned(), second.cli(&["debug", "digest"])?));
    second.stop()?;
    if results[0].1 != results[1].1 || results[0].1 != results[4].1 {
        return Err("the data set changed under a load that does not touch it".to_owned());
    }
    Ok(Outcome { results, elapsed, peak, report: environment.report(directory)? })
}

/// One command in the server's protocol.
fn command(into: &mut Vec<u8>, parts: &[&[u8]]) {
    into.extend_from_slice(format!("*{}\r\n", parts.len()).as_bytes());
    for part in parts {
        into.extend_from_slice(format!("${}\r\n", part.len()).as_bytes());
        into.extend_from_slice(part);
        into.extend_from_slice(b"\r\n");
    }
}

/// A value: text that compresses, or bytes that do not.
fn value(numbers: &mut Numbers) -> Vec<u8> {
    let length = 100 + numbers.below(2000) as usize;
    if numbers.below(3) == 0 {
        numbers.flat_map(u64::to_le_bytes).take(length).collect()
    } else {
        let word = format!("{:x} ", numbers.below(1 << 40));
        word.bytes().cycle().take(length).collect()
    }
}

/// Strings, and some lists, hashes and sorted sets.
fn fill() -> Vec<u8> {
    let mut commands = Vec::new();
    let mut numbers = Numbers(1);
    for i in 0..KEYS {
        let value = value(&mut numbers);
        command(&mut commands, &[b"SET", format!("key:{i}").as_bytes(), &value]);
        if i % 8 == 0 {
            let (group, member) = (format!("{}", i % 97), format!("member:{i}"));
            let short = &value[..60];
            command(&mut commands, &[b"RPUSH", format!("list:{group}").as_bytes(), short]);
            command(
                &mut commands,
                &[b"HSET", format!("hash:{group}").as_bytes(), member.as_bytes(), short],
            );
            let score = numbers.below(1_000_000).to_string();
            command(
                &mut commands,
                &[b"ZADD", format!("set:{group}").as_bytes(), score.as_bytes(), member.as_bytes()],
            );
        }
    }
    commands
}

/// Overwrites, deletes and appends.
fn change() -> Vec<u8> {
    let mut commands = Vec::new();
    let mut numbers = Numbers(2);
    for i in (0..KEYS).step_by(3) {
        let key = format!("key:{i}");
        match i % 9 {
            0 => command(&mut commands, &[b"SET", key.as_bytes(), &value(&mut numbers)]),
            3 => command(&mut commands, &[b"DEL", key.as_bytes()]),
            _ => command(&mut commands, &[b"APPEND", key.as_bytes(), &value(&mut numbers)]),
        }
    }
    commands
}

fn read() -> String {
    let mut commands = String::new();
    for i in 0..KEYS {
        let _ = writeln!(commands, "GET key:{i}");
    }
    for group in 0..97 {
        let _ = writeln!(commands, "LRANGE list:{group} 0 -1");
        let _ = writeln!(commands, "ZRANGE set:{group} 0 -1 WITHSCORES");
    }
    commands
}

/// A running server.
struct Server {
    child: Child,
    ended: bool,
    directory: PathBuf,
    socket: PathBuf,
    limit: Duration,
}

impl Server {
    fn start(environment: &Environment, directory: &Path) -> Result<Self, String> {
        let socket = directory.join("socket");
        let mut command = environment.command("redis-server", directory);
        command.args(["--port", "0", "--save", "", "--appendonly", "no", "--daemonize", "no"]);
        command.arg("--unixsocket").arg(&socket);
        if debug_must_be_enabled()? {
            command.args(["--enable-debug-command", "yes"]);
        }
        let log = File::create(directory.join("log")).map_err(|e| e.to_string())?;
        let errors = log.try_clone().map_err(|e| e.to_string())?;
        let child = command
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(errors)
            .spawn()
            .map_err(|e| format!("redis-server: {e}"))?;
        let limit = environment.limit;
        let directory = directory.to_owned();
        let mut server = Self { child, ended: false, directory, socket, limit };
        let deadline = Instant::now() + Duration::from_mins(1);
        while server.cli(&["ping"]).ok().as_deref() != Some(b"PONG\n".as_slice()) {
            if Instant::now() > deadline || server.child.try_wait().ok().flatten().is_some() {
                return Err(format!("the server does not answer:\n{}", server.log()));
            }
            sleep(Duration::from_millis(20));
        }
        Ok(server)
    }

    fn log(&self) -> String {
        fs::read_to_string(self.directory.join("log")).unwrap_or_default()
    }

    /// Runs a client against the server; its output.
    fn client_with(
        &self,
        program: &str,
        arguments: &[&str],
        input: Stdio,
    ) -> Result<Vec<u8>, String> {
        let output = Command::new("timeout")
            .arg(self.limit.as_secs().to_string())
            .arg(program)
            .arg("-s")
            .arg(&self.socket)
            .args(arguments)
            .stdin(input)
            .output()
            .map_err(|e| format!("{program}: {e}"))?;
        let errors = String::from_utf8_lossy(&output.stderr);
        if output.status.success() && !output.stdout.starts_with(b"ERR") {
            Ok(output.stdout)
        } else {
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            Err(format!("{program} {arguments:?}: {text}{errors}\nserver:\n{}", self.log()))
        }
    }

    fn client(&self, program: &str, arguments: &[&str]) -> Result<Vec<u8>, String> {
        self.client_with(program, arguments, Stdio::null())
    }

    fn cli(&self, arguments: &[&str]) -> Result<Vec<u8>, String> {
        self.client("redis-cli", arguments)
    }

    fn input(&self, file: &str) -> Result<Stdio, String> {
        File::open(self.directory.join(file)).map(Stdio::from).map_err(|e| format!("{file}: {e}"))
    }

    /// Sends a file in the server's protocol; every reply must be good.
    fn pipe(&self, file: &str) -> Result<(), String> {
        let said = self.client_with("redis-cli", &["--pipe"], self.input(file)?)?;
        let said = String::from_utf8_lossy(&said);
        if said.contains("errors: 0") { Ok(()) } else { Err(format!("{file}: {said}")) }
    }

    /// Sends a file of typed commands; all that is answered.
    fn commands(&self, file: &str) -> Result<Vec<u8>, String> {
        self.client_with("redis-cli", &[], self.input(file)?)
    }

    fn wait_for_snapshot(&self) -> Result<(), String> {
        let deadline = Instant::now() + self.limit;
        loop {
            let info = self.cli(&["info", "persistence"])?;
            let info = String::from_utf8_lossy(&info);
            if info.contains("rdb_bgsave_in_progress:0") {
                let good = info.contains("rdb_last_bgsave_status:ok")
                    && self.directory.join("dump.rdb").is_file();
                return if good {
                    Ok(())
                } else {
                    Err(format!("the snapshot failed:\n{info}{}", self.log()))
                };
            }
            if Instant::now() > deadline {
                return Err(format!("the snapshot does not end:\n{}", self.log()));
            }
            sleep(Duration::from_millis(20));
        }
    }

    /// Ends the server; the most memory it had.
    fn stop(&mut self) -> Result<terrace_core::Bytes, String> {
        // It ends the connection instead of answering.
        let _ = self.cli(&["shutdown", "nosave"]);
        let pid = Pid::from_child(&self.child);
        let (status, peak) = reap(pid).map_err(|e| e.to_string())?;
        self.ended = true;
        if status.success() { Ok(peak) } else { Err(format!("{status}\n{}", self.log())) }
    }
}

impl Drop for Server {
    /// No server is left behind when a step before failed.
    fn drop(&mut self) {
        if !self.ended && matches!(self.child.try_wait(), Ok(None)) {
            let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
            let _ = self.child.wait();
        }
    }
}

/// Version 7 and later want to be told that `DEBUG DIGEST` is allowed.
fn debug_must_be_enabled() -> Result<bool, String> {
    let output = Command::new("redis-server")
        .arg("--version")
        .output()
        .map_err(|e| format!("redis-server: {e}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let major = text.split("v=").nth(1).and_then(|rest| rest.split('.').next()?.parse().ok());
    let major: u32 = major.ok_or_else(|| format!("redis-server --version says: {text}"))?;
    Ok(major >= 7)
}
