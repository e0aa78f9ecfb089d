//! Runs a program under a recorder, and hands on what it accesses.
//!
//! QEMU's user mode with our plugin, else Valgrind's lackey, which is one or
//! two hundred times slower.

use std::env;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufReader, PipeReader, Read};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use clap::ValueEnum;
use object::Object;
use rustix::fs::Access;
use terrace_report::End;
use terrace_signals::Environment;
use terrace_sim::exact::Source;
use terrace_sim::trace::import;

use crate::failure::Failure;
use crate::output::{self, Files};
use crate::run::child::{Running, Watch};

/// The plugin's file name.
const PLUGIN: &str = "libterrace_recorder.so";
/// Names it explicitly, for packagers and tests.
const OVERRIDE: &str = "TERRACE_RECORDER";
/// QEMU's user mode for this processor, as Debian calls it.
const QEMU: &str = "qemu-x86_64";
const VALGRIND: &str = "valgrind";

/// What records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Via {
    /// QEMU's user mode with our plugin.
    Qemu,
    /// Valgrind's lackey: slow, and needs no plugin.
    Lackey,
}

/// A program that runs under a recorder.
pub(crate) struct Recording {
    /// What it accesses.
    pub(crate) source: Box<dyn Source>,
    waiting: JoinHandle<io::Result<End>>,
}

impl Recording {
    /// The program's end; everything was read before.
    pub(crate) fn end(self) -> Result<End, Failure> {
        drop(self.source);
        match self.waiting.join() {
            Ok(end) => {
                end.map_err(|e| Failure::failed(format!("cannot wait for the program: {e}")))
            }
            Err(_) => Err(Failure::failed("cannot wait for the program")),
        }
    }
}

/// Nothing is done while the program runs but to read what it accesses.
struct Unwatched;

impl Watch for Unwatched {
    fn poll(&mut self) -> Duration {
        Duration::from_hours(1)
    }
    fn report(&mut self) {}
}

/// Why nothing was recorded of a program that has ended.
pub(crate) fn nothing_recorded(name: &OsString, end: End) -> Failure {
    if !executable(name).is_ok_and(|file| is_x86_64(&file)) {
        return Failure::failed("nothing was recorded: is it an x86-64 program?");
    }
    let end = match end {
        End::Exited(code) => format!("ended with exit code {code}"),
        End::Killed(signal) => format!("was ended by signal {signal}"),
    };
    Failure::failed(format!("nothing was recorded: the program accessed no memory, and {end}"))
}

/// Whether a file is a program of this processor.
fn is_x86_64(path: &Path) -> bool {
    let Ok(file) = File::open(path) else { return false };
    let cache = object::ReadCache::new(file);
    let file = object::File::parse(&cache);
    file.is_ok_and(|file| file.architecture() == object::Architecture::X86_64)
}

/// The file that a program's name stands for.
pub(crate) fn executable(name: &OsString) -> Result<PathBuf, Failure> {
    if name.is_empty() {
        return Err(Failure::bad_input("the program's name is empty"));
    }
    let name = PathBuf::from(name);
    let file = if name.components().count() > 1 {
        name
    } else {
        on_path(&name).ok_or_else(|| {
            Failure::bad_input(format!("{}: no such program on PATH", name.display()))
        })?
    };
    if file.is_dir() {
        return Err(Failure::bad_input(format!("{}: is a directory", file.display())));
    }
    if !file.is_file() {
        return Err(Failure::bad_input(format!("{}: no such program", file.display())));
    }
    if starts_with(&file, b"#!") {
        return Err(Failure::bad_input(format!(
            "{}: is a script; record its interpreter: -- INTERPRETER {}",
            file.display(),
            file.display()
        )));
    }
    if rustix::fs::access(&file, Access::EXEC_OK).is_err() {
        return Err(Failure::bad_input(format!("{}: is not executable", file.display())));
    }
    Ok(file)
}

/// Notes what is read when a program is recorded: that, the files that its arguments name, and the
/// plugin.
pub(crate) fn names(files: &mut Files, program: &[OsString]) -> Result<(), Failure> {
    if let [name, arguments @ ..] = program {
        files.runs(&executable(name)?, arguments);
    }
    if let Ok(plugin) = plugin() {
        files.reads("Terrace's recorder", plugin);
    }
    Ok(())
}

/// The best recorder that is there; says so where it is not the good one.
fn best() -> Via {
    let lack = if on_path(QEMU).is_none() {
        format!("{QEMU} is not installed (package qemu-user)")
    } else if let Err(lack) = plugin() {
        lack.message()
    } else {
        return Via::Qemu;
    };
    if on_path(VALGRIND).is_some() {
        output::warn(format_args!(
            "{lack}: valgrind records instead, which takes ten times as long or more"
        ));
    }
    Via::Lackey
}

/// Starts a program under a recorder. From then on signals that this process is sent are handed on
/// to it.
pub(crate) fn start(program: &[OsString], via: Option<Via>) -> Result<Recording, Failure> {
    start_with(program, via, &[])
}

/// The same, with these variables in the program's environment unless it has them already.
pub(crate) fn start_with(
    program: &[OsString],
    via: Option<Via>,
    environment: &[(&str, &str)],
) -> Result<Recording, Failure> {
    let name = program.iter().map(|arg| arg.to_string_lossy()).collect::<Vec<_>>().join(" ");
    let executable = executable(program.first().unwrap_or(&OsString::new()))?;
    let via = via.unwrap_or_else(best);
    let (reader, writer) =
        io::pipe().map_err(|e| Failure::failed(format!("cannot make a pipe: {e}")))?;
    // The child opens our end by this name; descriptors are not inherited.
    let path = format!("/proc/{}/fd/{}", std::process::id(), writer.as_raw_fd());
    let mut command = match via {
        Via::Qemu => qemu(&path)?,
        Via::Lackey => lackey(&path)?,
    };
    command.arg(&executable).args(&program[1..]);
    let mut all = Environment::inherited();
    for (name, value) in environment.iter().filter(|(name, _)| env::var_os(name).is_none()) {
        let set = all.set(name, value.as_ref());
        set.map_err(|e| Failure::failed(format!("{name}: {e}")))?;
    }
    let running = Running::start_in(&mut command, &all).map_err(|e| {
        Failure::failed(format!("cannot start {}: {e}", command.get_program().display()))
    })?;
    let waiting = thread::spawn(move || {
        let end = running.wait(&mut Unwatched);
        // Our end was open so that the child could open it; now whoever reads
        // comes to the end.
        drop(writer);
        end.map(|outcome| outcome.end)
    });
    let source = source(via, reader, &name);
    Ok(Recording { source, waiting })
}

fn source(via: Via, reader: PipeReader, name: &str) -> Box<dyn Source> {
    match via {
        Via::Qemu => import::recorded(BufReader::with_capacity(1 << 18, reader), name),
        Via::Lackey => import::recorded_by_lackey(reader, name),
    }
}

fn qemu(path: &str) -> Result<Command, Failure> {
    let plugin = plugin()?;
    if on_path(QEMU).is_none() {
        let what =
            format!("{QEMU} is not installed (package qemu-user); --via lackey does without");
        return Err(Failure::unsupported(what));
    }
    let mut command = Command::new(QEMU);
    command.arg("-plugin").arg(format!("{},path={path}", plugin.display()));
    Ok(command)
}

fn lackey(path: &str) -> Result<Command, Failure> {
    if on_path(VALGRIND).is_none() {
        let what = format!(
            "neither {QEMU} with {PLUGIN} nor valgrind is there: install qemu-user or valgrind"
        );
        return Err(Failure::unsupported(what));
    }
    let mut command = Command::new(VALGRIND);
    command.args(["-q", "--tool=lackey", "--trace-mem=yes", "--basic-counts=no"]);
    command.arg(format!("--log-file={path}"));
    Ok(command)
}

/// The plugin: where `TERRACE_RECORDER` says, else beside this executable (a
/// build directory), else in `../lib/terrace` (an installation).
fn plugin() -> Result<PathBuf, Failure> {
    let candidates = if let Some(path) = env::var_os(OVERRIDE) {
        vec![PathBuf::from(path)]
    } else {
        let executable = env::current_exe()
            .map_err(|e| Failure::failed(format!("cannot tell where terrace is installed: {e}")))?;
        let directory = executable.parent().unwrap_or(Path::new("/"));
        vec![directory.join(PLUGIN), directory.join("../lib/terrace").join(PLUGIN)]
    };
    candidates.iter().find(|path| path.is_file()).cloned().ok_or_else(|| {
        let places: Vec<String> = candidates.iter().map(|p| p.display().to_string()).collect();
        Failure::unsupported(format!("{PLUGIN} not found: {}", places.join(", ")))
    })
}

fn starts_with(file: &Path, bytes: &[u8]) -> bool {
    let mut begin = vec![0; bytes.len()];
    File::open(file).and_then(|mut file| file.read_exact(&mut begin)).is_ok() && begin == bytes
}

fn on_path(name: impl AsRef<Path>) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path).map(|dir| dir.join(&name)).find(|file| file.is_file())
}
