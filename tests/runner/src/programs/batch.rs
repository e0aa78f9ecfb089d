//! Programs that read an input, compute in memory and end.

use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};

use super::Need::{Program, PythonModule};
use super::data;
use super::environment::Environment;
use super::{Outcome, Workload};
use crate::process;
use crate::terrace;

/// Every batch program.
pub fn workloads() -> Vec<Workload> {
    vec![
        Workload { name: "sort", needs: &[Program("sort")], run: sort },
        Workload { name: "sqlite3", needs: &[Program("sqlite3")], run: sqlite },
        Workload { name: "python3", needs: &[Program("python3")], run: python },
        Workload { name: "python3-fork", needs: &[Program("python3")], run: python_fork },
        Workload { name: "python3-numpy", needs: &[PythonModule("numpy")], run: numpy },
        Workload { name: "node", needs: &[Program("node")], run: node },
        Workload { name: "java", needs: &[Program("java"), Program("javac")], run: java },
        Workload { name: "perl", needs: &[Program("perl")], run: perl },
        Workload {
            name: "zstd",
            needs: &[Program("zstd"), Program("sh"), Program("cmp")],
            run: zstd,
        },
        Workload { name: "gcc", needs: &[Program("gcc")], run: gcc },
    ]
}

/// Runs the command; its standard output and the named files are the result.
fn finish(
    environment: &Environment,
    command: &mut Command,
    directory: &Path,
    files: &[&str],
) -> Result<Outcome, String> {
    let finished =
        process::run(command, directory, environment.limit).map_err(|e| e.to_string())?;
    if !finished.succeeded() {
        return Err(finished.complaint());
    }
    let mut results = vec![("standard output".to_owned(), finished.stdout)];
    for file in files {
        let content = fs::read(directory.join(file)).map_err(|e| format!("{file}: {e}"))?;
        results.push(((*file).to_owned(), content));
    }
    if results.iter().all(|(_, content)| content.is_empty()) {
        return Err("it printed nothing that could be compared".to_owned());
    }
    Ok(Outcome {
        results,
        elapsed: finished.elapsed,
        peak: finished.peak,
        report: environment.report(directory)?,
    })
}

fn write(directory: &Path, name: &str, content: &[u8]) -> Result<(), String> {
    fs::write(directory.join(name), content).map_err(|e| format!("{name}: {e}"))
}

/// A file from `tests/programs`.
fn script(name: &str) -> String {
    terrace::root().join("tests/programs").join(name).display().to_string()
}

fn open(path: &str) -> Result<Stdio, String> {
    File::open(path).map(Stdio::from).map_err(|e: io::Error| format!("{path}: {e}"))
}

/// GNU sort with two threads and all of its input in memory.
fn sort(environment: &Environment, directory: &Path) -> Result<Outcome, String> {
    write(directory, "input", &data::text(40 << 20, 1))?;
    let mut command = environment.command("sort", directory);
    command.args(["--parallel=2", "-S", "400M", "-k3,3", "-k1,1n", "-o", "sorted", "input"]);
    finish(environment, &mut command, directory, &["sorted"])
}

/// A table with indexes in memory.
fn sqlite(environment: &Environment, directory: &Path) -> Result<Outcome, String> {
    let mut command = environment.command("sqlite3", directory);
    command.args(["-batch", ":memory:"]).stdin(open(&script("table.sql"))?);
    finish(environment, &mut command, directory, &[])
}

fn python(environment: &Environment, directory: &Path) -> Result<Outcome, String> {
    let mut command = environment.command("python3", directory);
    command.arg(script("objects.py"));
    finish(environment, &mut command, directory, &[])
}

fn python_fork(environment: &Environment, directory: &Path) -> Result<Outcome, String> {
    let mut command = environment.command("python3", directory);
    command.arg(script("forks.py"));
    finish(environment, &mut command, directory, &[])
}

/// Arrays, if the library for them is there.
fn numpy(environment: &Environment, directory: &Path) -> Result<Outcome, String> {
    let mut command = environment.command("python3", directory);
    command.arg(script("arrays.py"));
    finish(environment, &mut command, directory, &[])
}

/// V8 reserves addresses where it likes, and opens them by `mprotect`.
fn node(environment: &Environment, directory: &Path) -> Result<Outcome, String> {
    let mut command = environment.command("node", directory);
    command.arg(script("objects.js"));
    finish(environment, &mut command, directory, &[])
}

/// Java reserves its heap and maps it in parts over the reservation. It compiles the program
/// first, in the same process.
fn java(environment: &Environment, directory: &Path) -> Result<Outcome, String> {
    let mut command = environment.command("java", directory);
    command.args(["-Xmx400m", "-Xshare:auto", &script("Objects.java")]);
    finish(environment, &mut command, directory, &[])
}

fn perl(environment: &Environment, directory: &Path) -> Result<Outcome, String> {
    let mut command = environment.command("perl", directory);
    command.arg(script("hashes.pl"));
    finish(environment, &mut command, directory, &[])
}

/// Two threads compress, then the result is unpacked and compared, all managed.
fn zstd(environment: &Environment, directory: &Path) -> Result<Outcome, String> {
    write(directory, "input", &data::text(48 << 20, 2))?;
    let mut command = environment.command("sh", directory);
    command.args(["-c", "zstd -q -T2 -9 -k input -o packed && zstd -q -d -c packed | cmp - input"]);
    finish(environment, &mut command, directory, &["packed"])
}

/// The compiler's driver starts the compiler proper and the assembler.
fn gcc(environment: &Environment, directory: &Path) -> Result<Outcome, String> {
    write(directory, "input.c", data::c_source(240, 4).as_bytes())?;
    let mut command = environment.command("gcc", directory);
    command.args(["-O1", "-c", "input.c", "-o", "output.o"]);
    finish(environment, &mut command, directory, &["output.o"])
}
