//! Finds the program to run, and says beforehand why it could not be managed.
//!
//! The preloaded library works by the dynamic linker's grace. A program that
//! has none (static), whose linker ignores `LD_PRELOAD` (setuid, setgid, file
//! capabilities) or cannot load our library (another architecture, another C
//! library) would run unmanaged without a word; it is refused instead.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use object::Endianness;
use object::elf;
use object::read::elf::{FileHeader, ProgramHeader};
use rustix::fs::Access;
use thiserror::Error;

use crate::output::Files;
use crate::procs::is_alive;

/// Why a program cannot be run under management.
#[derive(Debug, Error, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// There is no name.
    #[error("the program's name is empty")]
    Nameless,
    /// No such program on the search path.
    #[error("program `{0}` not found in PATH")]
    NotInPath(String),
    /// The path names nothing.
    #[error("program `{0}` not found")]
    NotFound(String),
    /// The file has no permission to be executed, or is no file.
    #[error("program `{0}` is not executable")]
    NotExecutable(String),
    /// It is a directory.
    #[error("program `{0}` is a directory")]
    Directory(String),
    /// The file cannot be read, so that it cannot be examined.
    #[error("program `{path}` cannot be examined: {why}")]
    Unreadable {
        /// The file.
        path: String,
        /// The system's words.
        why: String,
    },
    /// Neither ELF nor a script with an interpreter line.
    #[error("program `{0}` is neither an ELF binary nor a script that begins with `#!`")]
    UnknownFormat(String),
    /// The ELF headers make no sense.
    #[error("program `{0}` is a damaged ELF binary")]
    Damaged(String),
    /// Not for this kind of machine.
    #[error("program `{path}` is a {what} binary; terrace manages {HOST_NAME} programs")]
    Architecture {
        /// The file.
        path: String,
        /// What it is.
        what: String,
    },
    /// No dynamic linker is asked for.
    #[error(
        "program `{0}` is statically linked: there is no dynamic linker to load terrace's library"
    )]
    Static(String),
    /// The dynamic linker that is asked for does not exist.
    #[error("program `{path}` needs the dynamic linker `{linker}`, which does not exist")]
    LinkerMissing {
        /// The file.
        path: String,
        /// Its linker.
        linker: String,
    },
    /// A dynamic linker of another C library.
    #[error(
        "program `{path}` uses the dynamic linker `{linker}`; terrace's library needs the GNU C library"
    )]
    OtherLibc {
        /// The file.
        path: String,
        /// Its linker.
        linker: String,
    },
    /// The linker ignores `LD_PRELOAD` for it.
    #[error("program `{path}` is {what}: the dynamic linker ignores preloaded libraries for it")]
    Privileged {
        /// The file.
        path: String,
        /// `setuid`, `setgid`, or that it has file capabilities.
        what: &'static str,
    },
    /// Scripts that are interpreted by scripts that are …
    #[error("program `{0}` is a script whose interpreters are nested too deeply")]
    NestedTooDeeply(String),
}

impl Refusal {
    /// Whether it is only that Terrace's library cannot be loaded into the program.
    pub(crate) fn is_of_the_library(&self) -> bool {
        matches!(
            self,
            Self::Architecture { .. }
                | Self::Static(_)
                | Self::OtherLibc { .. }
                | Self::Privileged { .. }
        )
    }
}

/// A program that can be run under management.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Program {
    /// The file to execute.
    pub(crate) path: PathBuf,
}

/// The architecture that this executable, and so its library, was built for.
pub(super) const HOST: elf::Machine = host();

const fn host() -> elf::Machine {
    if cfg!(target_arch = "aarch64") { elf::EM_AARCH64 } else { elf::EM_X86_64 }
}

const HOST_NAME: &str = if cfg!(target_arch = "aarch64") { "64-bit ARM" } else { "x86-64" };

/// As deep as Linux follows interpreter lines.
const MAX_INTERPRETERS: u32 = 4;

/// The kernel looks for a script's interpreter in this much of its beginning.
const INTERPRETER_LINE: usize = 256;

impl Program {
    /// Finds a program as a shell would, and examines it.
    pub(crate) fn resolve(name: &OsStr) -> Result<Self, Refusal> {
        let path = find(name, env::var_os("PATH").as_deref())?;
        examine(&path, MAX_INTERPRETERS)?;
        Ok(Self { path })
    }
}

/// Why a process that runs is on plain memory: it has not loaded the library, or is another user's
/// and so out of reach of the run. `None` if it has it, or has ended.
pub(super) fn why_plain(process: u32, library: &str) -> Option<String> {
    let directory = PathBuf::from(format!("/proc/{process}"));
    let status = terrace_sampler::proc_text(directory.join("status")).ok()?;
    let maps = fs::read_to_string(directory.join("maps")).unwrap_or_default();
    if maps.contains(library) {
        let user = user(&status)?;
        let foreign = user != rustix::process::geteuid().as_raw();
        return foreign.then(|| format!("changed its user to {user}"));
    }
    let why = match examine(&directory.join("exe"), MAX_INTERPRETERS) {
        Err(Refusal::Static(_)) => "statically linked".to_owned(),
        Err(Refusal::Privileged { what, .. }) => what.to_owned(),
        Err(Refusal::OtherLibc { .. }) => "another C library".to_owned(),
        Err(Refusal::Architecture { what, .. }) => format!("{what} binary"),
        _ => "without the library".to_owned(),
    };
    // Of another's process the map cannot be read; that it runs is all that is known.
    is_alive(process).then_some(why)
}

/// The effective user (`proc_pid_status(5)`).
fn user(status: &str) -> Option<u32> {
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    line.split_ascii_whitespace().nth(1)?.parse().ok()
}

impl Program {
    /// Finds a program as a shell would. For those that nothing is loaded into: any program
    /// will do that can be executed. A script whose interpreter is missing cannot; the system says then that
    /// the script is.
    pub(crate) fn locate(name: &OsStr) -> Result<Self, Refusal> {
        let path = find(name, env::var_os("PATH").as_deref())?;
        follow(&path, MAX_INTERPRETERS)?;
        Ok(Self { path })
    }
}

/// Notes what a command line reads, whatever program it runs: that, and the files that its
/// arguments name. That there is no such program is told when it is to be started.
pub(crate) fn names(files: &mut Files, command: &[OsString]) {
    if let [name, arguments @ ..] = command {
        let program = Program::locate(name).map_or_else(|_| PathBuf::from(name), |it| it.path);
        files.runs(&program, arguments);
    }
}

/// The file that a name stands for: itself if it has a slash, otherwise the
/// first executable of that name on the search path.
fn find(name: &OsStr, search: Option<&OsStr>) -> Result<PathBuf, Refusal> {
    if name.is_empty() {
        return Err(Refusal::Nameless);
    }
    let shown = name.to_string_lossy().into_owned();
    // Each directory of the search path has these two, and none of them is meant.
    let is_directory = name == "." || name == "..";
    if is_directory || name.as_bytes().contains(&b'/') {
        let path = PathBuf::from(name);
        return match fs::metadata(&path) {
            Ok(file) if is_executable(&path, &file) => Ok(path),
            Ok(file) => Err(unfit(shown, &file)),
            Err(e) => Err(not_readable(&shown, &e)),
        };
    }
    let mut seen = None;
    // What the C library searches where PATH is not set.
    let search = search.unwrap_or(OsStr::new("/bin:/usr/bin"));
    for directory in env::split_paths(search) {
        // An empty element means the current directory.
        let directory = if directory.as_os_str().is_empty() { ".".into() } else { directory };
        let path = directory.join(name);
        match fs::metadata(&path) {
            Ok(file) if is_executable(&path, &file) => return Ok(path),
            Ok(file) => seen = seen.or_else(|| Some(unfit(path.display().to_string(), &file))),
            Err(_) => {}
        }
    }
    // As in a shell, a file that is there but may not be executed is said to be so.
    Err(seen.unwrap_or(Refusal::NotInPath(shown)))
}

/// Why what is there cannot be executed.
fn unfit(path: String, file: &Metadata) -> Refusal {
    if file.is_dir() { Refusal::Directory(path) } else { Refusal::NotExecutable(path) }
}

fn not_readable(path: &str, error: &io::Error) -> Refusal {
    match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Refusal::NotFound(path.into()),
        _ => Refusal::Unreadable { path: path.into(), why: error.to_string() },
    }
}

fn is_executable(path: &Path, file: &Metadata) -> bool {
    file.is_file() && rustix::fs::access(path, Access::EXEC_OK).is_ok()
}

/// The beginning of a file, as far as the kernel looks for an interpreter.
fn beginning(file: &mut File) -> io::Result<Vec<u8>> {
    let mut start = Vec::with_capacity(INTERPRETER_LINE);
    file.take(INTERPRETER_LINE as u64).read_to_end(&mut start)?;
    Ok(start)
}

/// Follows interpreter lines as far as they can be read: the kernel executes what nobody may read.
fn follow(path: &Path, interpreters: u32) -> Result<(), Refusal> {
    let Ok(start) = File::open(path).and_then(|mut file| beginning(&mut file)) else {
        return Ok(());
    };
    match next(path, &start, interpreters)? {
        Some(interpreter) => follow(&interpreter, interpreters - 1),
        None => Ok(()),
    }
}

/// The interpreter of a file that begins so, if it is a script. It can be executed.
fn next(path: &Path, start: &[u8], interpreters: u32) -> Result<Option<PathBuf>, Refusal> {
    let Some(interpreter) = interpreter(start) else { return Ok(None) };
    // A set-id bit on a script itself has no effect on Linux.
    if interpreters == 0 {
        return Err(Refusal::NestedTooDeeply(path.display().to_string()));
    }
    match fs::metadata(&interpreter) {
        Ok(file) if is_executable(&interpreter, &file) => Ok(Some(interpreter)),
        Ok(file) => Err(unfit(interpreter.display().to_string(), &file)),
        Err(e) => Err(not_readable(&interpreter.display().to_string(), &e)),
    }
}

/// Follows interpreter lines to the ELF binary that the kernel will execute,
/// and examines that.
fn examine(path: &Path, interpreters: u32) -> Result<(), Refusal> {
    let shown = path.display().to_string();
    let unreadable = |e: io::Error| not_readable(&shown, &e);
    let mut file = File::open(path).map_err(unreadable)?;
    let start = beginning(&mut file).map_err(unreadable)?;
    if let Some(interpreter) = next(path, &start, interpreters)? {
        return examine(&interpreter, interpreters - 1);
    }
    if !start.starts_with(&elf::ELFMAG) {
        return Err(Refusal::UnknownFormat(shown));
    }
    let metadata = file.metadata().map_err(unreadable)?;
    // Architecture first: of a foreign binary nothing else can be said.
    let linker = linker(&file, &start, &shown)?;
    privileges(path, &metadata, &shown)?;
    let linker_path = PathBuf::from(&linker);
    let linker = linker.to_string_lossy().into_owned();
    if linker_path.file_name().is_some_and(|name| name.as_bytes().starts_with(b"ld-musl")) {
        return Err(Refusal::OtherLibc { path: shown, linker });
    }
    if !linker_path.exists() {
        return Err(Refusal::LinkerMissing { path: shown, linker });
    }
    Ok(())
}

/// The interpreter of a script, from its first line.
fn interpreter(start: &[u8]) -> Option<PathBuf> {
    let line = start.strip_prefix(b"#!")?;
    let line = line.split(|&b| b == b'\n').next()?;
    let interpreter =
        line.split(|&b| b == b' ' || b == b'\t' || b == b'\r').find(|word| !word.is_empty())?;
    Some(PathBuf::from(OsString::from_vec(interpreter.to_vec())))
}

/// The dynamic linker that an ELF binary asks for.
fn linker(file: &File, start: &[u8], shown: &str) -> Result<OsString, Refusal> {
    let foreign = |what: String| Refusal::Architecture { path: shown.to_owned(), what };
    let damaged = || Refusal::Damaged(shown.to_owned());
    if start.get(4) != Some(&elf::ELFCLASS64.0) {
        return Err(foreign("32-bit".into()));
    }
    // ELF tables may stand anywhere in the file; a cache reads only those.
    let data = object::ReadCache::new(file);
    let header = elf::FileHeader64::<Endianness>::parse(&data).map_err(|_| damaged())?;
    let endian = header.endian().map_err(|_| damaged())?;
    let machine = header.e_machine(endian);
    if machine != HOST {
        return Err(foreign(machine_name(machine)));
    }
    for segment in header.program_headers(endian, &data).map_err(|_| damaged())? {
        if let Some(name) = segment.interpreter(endian, &data).map_err(|_| damaged())? {
            return Ok(OsString::from_vec(name.to_vec()));
        }
    }
    Err(Refusal::Static(shown.to_owned()))
}

fn machine_name(machine: elf::Machine) -> String {
    match machine {
        elf::EM_X86_64 => "x86-64".into(),
        elf::EM_AARCH64 => "64-bit ARM".into(),
        elf::EM_RISCV => "RISC-V".into(),
        elf::EM_PPC64 => "64-bit PowerPC".into(),
        elf::EM_S390 => "s390".into(),
        other => format!("foreign (ELF machine {})", other.0),
    }
}

/// Refuses what makes the dynamic linker run in secure mode. Whoever owns the
/// file could run it preloaded all the same; one rule for all is easier to trust.
fn privileges(path: &Path, metadata: &Metadata, shown: &str) -> Result<(), Refusal> {
    const SETUID: u32 = 0o4000;
    const SETGID: u32 = 0o2000;
    // Without the group's execute bit the setgid bit means mandatory locking.
    const GROUP_EXECUTE: u32 = 0o0010;
    let mode = metadata.mode();
    let what = if mode & SETUID != 0 {
        "setuid"
    } else if mode & SETGID != 0 && mode & GROUP_EXECUTE != 0 {
        "setgid"
    } else if has_capabilities(path) {
        "given file capabilities"
    } else {
        return Ok(());
    };
    Err(Refusal::Privileged { path: shown.to_owned(), what })
}

fn has_capabilities(path: &Path) -> bool {
    // Version 3 of the attribute, the longest, has 24 bytes.
    let mut value = [0_u8; 64];
    rustix::fs::getxattr(path, "security.capability", &mut value).is_ok()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn executable(path: &Path, content: &[u8]) {
        fs::write(path, content).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    #[test]
    fn the_first_executable_on_the_path_wins_over_a_file_that_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let (first, second) = (dir.path().join("a"), dir.path().join("b"));
        fs::create_dir(&first).unwrap();
        fs::create_dir(&second).unwrap();
        fs::write(first.join("tool"), "text").unwrap();
        executable(&second.join("tool"), b"#!/bin/sh\n");
        let path = env::join_paths([&first, &second]).unwrap();

        assert_eq!(find(OsStr::new("tool"), Some(&path)), Ok(second.join("tool")));
        assert_eq!(
            find(OsStr::new("tool"), Some(first.as_os_str())),
            Err(Refusal::NotExecutable(first.join("tool").display().to_string()))
        );
        assert_eq!(find(OsStr::new("other"), Some(&path)), Err(Refusal::NotInPath("other".into())));

        fs::create_dir(second.join("directory")).unwrap();
        assert_eq!(
            find(OsStr::new("directory"), Some(&path)),
            Err(Refusal::Directory(second.join("directory").display().to_string()))
        );
        for name in [".", "..", "./", "/"] {
            let found = find(OsStr::new(name), Some(&path));
            assert_eq!(found, Err(Refusal::Directory(name.into())));
        }
    }

    #[test]
    fn the_user_is_the_effective_one() {
        assert_eq!(user("Name:\tcat\nUid:\t0\t33\t0\t33\nGid:\t1\t1\t1\t1\n"), Some(33));
        assert_eq!(user("Name:\tUid:\n"), None);
    }

    #[test]
    fn interpreter_lines_are_read_as_the_kernel_reads_them() {
        let of = |text: &str| interpreter(text.as_bytes()).map(|p| p.display().to_string());

        assert_eq!(of("#!/bin/sh\necho"), Some("/bin/sh".into()));
        assert_eq!(of("#! \t/usr/bin/env python3\n"), Some("/usr/bin/env".into()));
        assert_eq!(of("#!/bin/sh"), Some("/bin/sh".into()));
        assert_eq!(of("#!\n"), None);
        assert_eq!(of("# /bin/sh\n"), None);
    }

    #[test]
    fn a_script_is_judged_by_its_interpreter() {
        let dir = tempfile::tempdir().unwrap();
        let script = dir.path().join("script");

        executable(&script, b"#!/bin/sh\n");
        assert_eq!(examine(&script, MAX_INTERPRETERS), Ok(()));

        executable(&script, b"#!/nowhere/sh\n");
        assert_eq!(
            examine(&script, MAX_INTERPRETERS),
            Err(Refusal::NotFound("/nowhere/sh".into()))
        );
    }

    /// With the kernel's engine, too, for which any program will do.
    #[test]
    fn a_script_without_its_interpreter_is_no_program_for_anybody() {
        let dir = tempfile::tempdir().unwrap();
        let (script, other) = (dir.path().join("script"), dir.path().join("other"));
        let located = |path: &Path| Program::locate(path.as_os_str()).map(|program| program.path);

        executable(&script, b"#!/nowhere/sh\n");
        assert_eq!(located(&script), Err(Refusal::NotFound("/nowhere/sh".into())));
        executable(&other, format!("#!{}\n", script.display()).as_bytes());
        assert_eq!(located(&other), Err(Refusal::NotFound("/nowhere/sh".into())));
        executable(&other, format!("#!{}\n", other.display()).as_bytes());
        assert!(matches!(located(&other), Err(Refusal::NestedTooDeeply(_))));
        executable(&other, b"echo without a first line of that kind\n");
        assert_eq!(located(&other), Ok(other.clone()));
        executable(&script, b"#!/bin/sh\n");
        assert_eq!(located(&script), Ok(script.clone()));
    }

    #[test]
    fn a_script_that_interprets_itself_is_refused_instead_of_followed_for_ever() {
        let dir = tempfile::tempdir().unwrap();
        let script = dir.path().join("script");
        executable(&script, format!("#!{}\n", script.display()).as_bytes());

        let refusal = examine(&script, MAX_INTERPRETERS).unwrap_err();

        assert!(matches!(refusal, Refusal::NestedTooDeeply(_)), "{refusal:?}");
    }

    #[test]
    fn bits_that_make_the_linker_ignore_the_library_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("program");
        fs::copy("/bin/true", &program).unwrap();
        let judged = |mode| {
            fs::set_permissions(&program, fs::Permissions::from_mode(mode)).unwrap();
            examine(&program, MAX_INTERPRETERS)
        };

        assert_eq!(judged(0o755), Ok(()));
        let path = program.display().to_string();
        assert_eq!(judged(0o4755), Err(Refusal::Privileged { path: path.clone(), what: "setuid" }));
        assert_eq!(judged(0o2755), Err(Refusal::Privileged { path, what: "setgid" }));
        assert_eq!(judged(0o2745), Ok(()));
    }

    #[test]
    fn foreign_and_damaged_binaries_are_told_apart() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("program");
        let whole = fs::read("/bin/true").unwrap();
        let judged = |content: &[u8]| {
            executable(&path, content);
            examine(&path, MAX_INTERPRETERS).unwrap_err()
        };

        let mut narrow = whole.clone();
        narrow[4] = 1;
        let mut sparc = whole.clone();
        (sparc[18], sparc[19]) = (43, 0);
        assert!(judged(&narrow).to_string().contains("is a 32-bit binary"));
        assert!(judged(&sparc).to_string().contains("foreign (ELF machine 43)"));
        assert!(matches!(judged(&whole[..40]), Refusal::Damaged(_)));
        assert!(matches!(judged(b"MZ\x90"), Refusal::UnknownFormat(_)));
    }
}
