//! The runs that are under way on this machine: how `terrace run` and `terrace
//! attach` make themselves known, and how other commands find them.
//!
//! Each run has a directory, `terrace-…` in `$XDG_RUNTIME_DIR` or in `/tmp`,
//! closed to all but its user:
//!
//! | file | content |
//! |---|---|
//! | `run.json` | [`Manifest`] |
//! | `lock` | locked by the command for as long as it lives |
//! | `PID.stats` | a process's statistics page |
//! | `PID-N.stats` | the same of one that has ended |
//! | `ended` | the figures of further ones that have ended, in such a page |
//! | `figures.json` | where pages stay mapped: the report as it was lately |
//! | `beside.json` | [`Beside`], if there is anything to be told |
//! | `budget`, `broker.sock` | how its processes share the budget, see `terrace_live::broker` |
//!
//! It comes into being under another name and is renamed when it is complete,
//! so nobody ever sees half of one. A directory whose lock is free and whose
//! processes are all gone is what a killed `terrace run` has left; whoever of
//! its user's commands comes by removes it.

use std::env;
use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use terrace_core::{Bytes, Nanos};
use terrace_kernel::setup::SwapUse;
use terrace_kernel::setup::group::Group;
use terrace_live::broker::{self, page::Summary};
use terrace_live::stats::opened::Opened;
use terrace_live::stats::process_page::ProcessPage;
use terrace_live::sys::limits;
use terrace_report::outside::OutsideReport;
use terrace_report::plain::PlainReport;
use terrace_report::{AttachReport, Head, RunReport, SharedReport, Usage};

use crate::failure::Failure;
use crate::output::warn;
use crate::procs::{self, Stat};

/// What a complete directory's name begins with.
const PREFIX: &str = "terrace-";
const MANIFEST: &str = "run.json";
const LOCK: &str = "lock";
const FIGURES: &str = "figures.json";
const BESIDE: &str = "beside.json";
/// What a statistics page's name ends with.
pub(crate) const STATISTICS: &str = "stats";
/// The page of processes that have ended, and have none of their own any more.
pub(crate) const TOTALS: &str = "ended";
/// Rights of everybody but a directory's owner.
const OTHERS: u32 = 0o077;
/// Version of [`Manifest`]; grows when a field changes its meaning.
const SCHEMA: u32 = 1;

/// What a run says of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Manifest {
    schema: u32,
    /// The process of the command.
    pub(crate) pid: u32,
    /// The program with its arguments; a control group's path.
    pub(crate) program: Vec<String>,
    /// The policy's name.
    pub(crate) policy: String,
    /// What the economist does with its opinion.
    pub(crate) economist: String,
    /// DRAM that all its processes together may use.
    pub(crate) budget: Bytes,
    /// Whether that is for what is compressed, too.
    #[serde(default)]
    pub(crate) holds_store: bool,
    /// When it began, by the monotonic clock.
    pub(crate) started: Nanos,
    /// What the first touch of a page takes there without Terrace.
    pub(crate) plain_fault: Nanos,
    /// The names of the tiers, fastest first.
    pub(crate) tiers: Vec<String>,
    /// Where decisions are being recorded, if they are.
    #[serde(with = "path_bytes")]
    pub(crate) record: Option<PathBuf>,
    /// The directory of the run, or of the broker, whose budget it shares by `--join`.
    #[serde(default)]
    pub(crate) joined: Option<PathBuf>,
    /// The control group whose programs join by `--join cgroup`: its directory.
    #[serde(default)]
    pub(crate) cgroup: Option<PathBuf>,
    /// Whether pages stay mapped: nothing is loaded into the programs, and the command
    /// itself publishes the figures.
    #[serde(default)]
    pub(crate) in_place: bool,
    /// What others need who share the budget of a run whose faults the kernel serves.
    #[serde(default)]
    pub(crate) kernel: Option<KernelRun>,
}

/// What a run of the kernel engine has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct KernelRun {
    /// Its control group, if it has one of its own.
    pub(crate) group: Option<Group>,
    /// What its pages are swapped to.
    pub(crate) swap: SwapUse,
    /// Whether its budget is for files' pages, too, which whoever keeps it next has to know.
    #[serde(default)]
    pub(crate) with_files: bool,
}

impl Manifest {
    /// What this process says of the run that it begins now.
    pub(crate) fn new(
        program: Vec<String>,
        policy: &str,
        economist: &str,
        budget: Bytes,
        plain_fault: Nanos,
        tiers: Vec<String>,
        record: Option<PathBuf>,
    ) -> Self {
        Self {
            schema: SCHEMA,
            pid: std::process::id(),
            program,
            policy: policy.to_owned(),
            economist: economist.to_owned(),
            budget,
            holds_store: false,
            started: now(),
            plain_fault,
            tiers,
            record,
            joined: None,
            cgroup: None,
            in_place: false,
            kernel: None,
        }
    }

    /// The program's name without directories.
    pub(crate) fn name(&self) -> &str {
        self.program.first().map_or("", |path| path.rsplit('/').next().unwrap_or(path))
    }
}

/// What `terrace run` has seen of its processes from outside.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Beside {
    /// Processes that nothing was loaded into.
    pub(crate) plain: Option<PlainReport>,
    /// Memory that no budget bounds.
    pub(crate) outside: Option<OutsideReport>,
    /// See [`RunReport::process_peak`] and [`RunReport::unseen_peak`].
    #[serde(default)]
    pub(crate) process_peak: Bytes,
    /// See there.
    #[serde(default)]
    pub(crate) unseen_peak: Bytes,
}

impl Beside {
    /// The report with it.
    pub(crate) fn put_into(self, report: RunReport) -> RunReport {
        let process_peak = report.process_peak.max(self.process_peak);
        RunReport { process_peak, unseen_peak: self.unseen_peak, ..report }
            .beside(self.plain.map(Box::new), self.outside.map(Box::new))
    }
}

/// Publishes it in a run's directory.
pub(crate) fn publish_beside(directory: &Path, beside: &Beside) -> io::Result<()> {
    publish_in(directory, BESIDE, serde_json::to_vec(beside)?)
}

/// Puts a file into a run's directory. Readers see all of the last one, or all of this.
fn publish_in(directory: &Path, name: &str, content: Vec<u8>) -> io::Result<()> {
    let draft = directory.join(format!(".{name}"));
    fs::write(&draft, content)?;
    fs::rename(draft, directory.join(name))
}

/// A path as JSON, whatever its bytes are: as text where it is text.
mod path_bytes {
    use std::ffi::OsString;
    use std::os::unix::ffi::{OsStrExt, OsStringExt};
    use std::path::PathBuf;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Serialize, Deserialize)]
    #[serde(untagged)]
    enum Written {
        Text(String),
        Bytes(Vec<u8>),
    }

    // Serde hands over a reference to the field.
    #[allow(clippy::ref_option)]
    pub(super) fn serialize<S: Serializer>(
        path: &Option<PathBuf>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let written = |path: &PathBuf| match path.to_str() {
            Some(text) => Written::Text(text.to_owned()),
            None => Written::Bytes(path.as_os_str().as_bytes().to_vec()),
        };
        path.as_ref().map(written).serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<PathBuf>, D::Error> {
        let written = Option::<Written>::deserialize(deserializer)?;
        Ok(written.map(|written| match written {
            Written::Text(text) => PathBuf::from(text),
            Written::Bytes(bytes) => PathBuf::from(OsString::from_vec(bytes)),
        }))
    }
}

/// The monotonic clock, which all processes share.
pub(crate) fn now() -> Nanos {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Nanos(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

/// What of a run is kept in a file in memory cannot be kept.
pub(crate) fn not_made(error: &io::Error, what: &str) -> Failure {
    if error.kind() == io::ErrorKind::FileTooLarge {
        return Failure::unsupported(
            "a run keeps its figures in files in memory, which are longer than the longest file \
             allowed here (ulimit -f)",
        );
    }
    Failure::failed(format!("{what}: {error}"))
}

/// The directory of this process's own run; gone when this is dropped.
pub(crate) struct RunDirectory {
    path: PathBuf,
    _lock: File,
}

impl RunDirectory {
    /// Makes the directory, in memory where the system offers such a place:
    /// statistics pages are written all the time.
    pub(crate) fn create(manifest: &Manifest) -> Result<Self, Failure> {
        let draft_in = |parent: &Path| {
            clean_up(parent);
            tempfile::Builder::new()
                .prefix(".terrace-")
                .permissions(Permissions::from_mode(0o700))
                .tempdir_in(parent)
        };
        let mut parent = PathBuf::from("/tmp");
        let mut draft = None;
        if let Some(runtime) = runtime_directory() {
            match draft_in(&runtime) {
                Ok(there) => (parent, draft) = (runtime, Some(there)),
                Err(e) => {
                    // The error names a file that nobody knows.
                    let (path, why) = (runtime.display(), e.kind());
                    warn(format_args!("XDG_RUNTIME_DIR: {path}: {why}; /tmp is used instead"));
                }
            }
        }
        let failed = |e: io::Error| not_made(&e, &parent.display().to_string());
        let draft = draft.map_or_else(|| draft_in(&parent), Ok).map_err(failed)?;
        let lock = File::create_new(draft.path().join(LOCK)).map_err(failed)?;
        lock.lock().map_err(failed)?;
        let text = serde_json::to_string(manifest).map_err(|e| Failure::failed(e.to_string()))?;
        let manifest = draft.path().join(MANIFEST);
        limits::with_files_of(text.len() as u64, || fs::write(&manifest, &text)).map_err(failed)?;
        let name = draft.path().file_name().unwrap_or_default().to_string_lossy().into_owned();
        let path = parent.join(name.trim_start_matches('.'));
        fs::rename(draft.path(), &path).map_err(failed)?;
        // Its old name is free again, and not ours to remove.
        let _ = draft.keep();
        Ok(Self { path, _lock: lock })
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Publishes the figures of a run whose pages stay mapped.
    pub(crate) fn publish(&self, report: &AttachReport) -> io::Result<()> {
        publish_in(&self.path, FIGURES, serde_json::to_vec(report)?)
    }
}

impl Drop for RunDirectory {
    fn drop(&mut self) {
        // Nothing can be done about a directory that cannot be removed.
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// A run that was found.
#[derive(Clone, Debug)]
pub(crate) struct LiveRun {
    directory: PathBuf,
    /// What it says of itself.
    pub(crate) manifest: Manifest,
}

impl LiveRun {
    /// A run in a directory; `None` if the directory is not one of a run.
    pub(crate) fn open(directory: &Path) -> Option<Self> {
        let text = fs::read_to_string(directory.join(MANIFEST)).ok()?;
        let manifest: Manifest = serde_json::from_str(&text).ok()?;
        (manifest.schema == SCHEMA).then(|| Self { directory: directory.to_owned(), manifest })
    }

    /// Copies of the statistics pages of all processes that there have been.
    pub(crate) fn pages(&self) -> Vec<Box<ProcessPage>> {
        let totals = self.directory.join(TOTALS);
        // While it is locked, no figures go from the others to that one, and none is renamed.
        let lock = File::open(&totals).ok();
        let _locked = lock.as_ref().map(File::lock_shared);
        let files: Vec<_> = page_files(&self.directory).chain([totals]).collect();
        files.iter().filter_map(|path| ProcessPage::snapshot(path).ok()).collect()
    }

    /// The statistics pages of the processes that live, as they change. Mapped
    /// for as long as this command runs.
    pub(crate) fn live_pages(&self) -> Vec<Opened<ProcessPage>> {
        page_files(&self.directory)
            .filter_map(|path| ProcessPage::open(&path).ok())
            .filter(|page| procs::is_alive(page.pid()))
            .collect()
    }

    /// The figures of a run whose pages stay mapped, as they were lately; `None` of
    /// another, or before the first were published.
    pub(crate) fn attached(&self) -> Option<AttachReport> {
        serde_json::from_slice(&fs::read(self.directory.join(FIGURES)).ok()?).ok()
    }

    /// The budget of a run whose pages stay mapped, or whose faults the kernel serves: as it was
    /// lately.
    pub(crate) fn budget(&self) -> Bytes {
        let kernel = self.attached().and_then(|report| report.kernel);
        kernel.map_or(self.manifest.budget, |kernel| kernel.budget)
    }

    /// The run's figures now.
    pub(crate) fn report(&self) -> RunReport {
        let pages = self.pages();
        let cpu = pages.iter().filter_map(|page| Stat::of(page.pid())).map(|stat| stat.cpu).sum();
        // A command that was killed has left a number that may be another's by now.
        let command = is_kept(&self.directory).then(|| Stat::of(self.manifest.pid)).flatten();
        let usage = Usage {
            cpu,
            plain_fault: self.manifest.plain_fault,
            command_cpu: command.map_or(Nanos::ZERO, |stat| stat.cpu),
        };
        let joined = self.manifest.joined.as_deref();
        let broker = joined.unwrap_or(&self.directory).join(broker::page::FILE);
        let shared = Summary::read(&broker).ok();
        let head = Head {
            program: self.manifest.program.clone(),
            end: None,
            elapsed: now() - self.manifest.started,
            policy: self.manifest.policy.clone(),
            economist: self.manifest.economist.clone(),
            sampling_cap: None,
            budget: shared.map_or(self.manifest.budget, |shared| shared.budget),
            shared: shared.map(SharedReport::from),
            budget_of: joined.and_then(Self::open).map(|run| run.manifest.pid),
            holds_store: self.manifest.holds_store,
            unmanaged: None,
        };
        // Of a command that was killed, what it last saw is over.
        let beside = is_kept(&self.directory).then(|| self.beside()).flatten().unwrap_or_default();
        let pages = pages.iter().map(|page| &**page);
        beside.put_into(RunReport::collect(head, pages, &usage, None))
    }

    /// What its command has seen of its processes from outside; `None` as long as that is nothing.
    fn beside(&self) -> Option<Beside> {
        serde_json::from_slice(&fs::read(self.directory.join(BESIDE)).ok()?).ok()
    }

    /// Where it is.
    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Whether a process of this number belongs to it.
    fn has(&self, pid: u32) -> bool {
        let attached = self.attached().map_or(Vec::new(), |report| report.processes);
        self.manifest.pid == pid
            || process_numbers(&self.directory).any(|other| other == pid)
            || attached.iter().any(|line| line.process == pid)
    }
}

/// The statistics pages in a directory.
fn page_files(directory: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(|path| is_page(path))
}

/// Whether a file is called as statistics pages are.
pub(crate) fn is_page(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == STATISTICS)
}

fn process_numbers(directory: &Path) -> impl Iterator<Item = u32> {
    page_files(directory).filter_map(|path| path.file_stem()?.to_str()?.parse().ok())
}

/// Every run under way that the user may look at, oldest first.
pub(crate) fn all() -> Vec<LiveRun> {
    let mut runs: Vec<_> = parents()
        .iter()
        .inspect(|parent| clean_up(parent))
        .flat_map(|parent| directories(parent))
        .filter(|directory| is_alive(directory))
        .filter_map(|directory| LiveRun::open(&directory))
        .collect();
    runs.sort_by_key(|run| (run.manifest.started, run.manifest.pid));
    runs
}

/// The runs that a choice is about: a process's number (of the command or of
/// the program) or a program's name; all of them without one.
pub(crate) fn choose(choice: Option<&str>) -> Result<Vec<LiveRun>, Failure> {
    let runs = all();
    let Some(choice) = choice else { return Ok(runs) };
    let pid = choice.parse().ok();
    let chosen: Vec<_> = runs
        .into_iter()
        .filter(|run| pid.is_some_and(|pid| run.has(pid)) || run.manifest.name() == choice)
        .collect();
    if chosen.is_empty() {
        let what = if pid.is_some() { "process" } else { "program" };
        let what = format!("no {what} `{choice}` runs under `terrace run` or is attached to");
        return Err(Failure::bad_input(what));
    }
    Ok(chosen)
}

/// The budget of the run of a command that lives; `None` if it has none, or has ended.
pub(crate) fn budget_of(command: u32) -> Option<Bytes> {
    all().into_iter().find(|run| run.manifest.pid == command).map(|run| run.budget())
}

/// The only run that a choice is about. `option` is where the choice was made.
pub(crate) fn the_one(choice: &str, option: &str) -> Result<LiveRun, Failure> {
    let wrong = |what: String| Failure::bad_input(format!("{option}: {what}"));
    if choice.is_empty() {
        return Err(wrong("the name is empty".to_owned()));
    }
    if choice.parse::<u32>() == Ok(std::process::id()) {
        return Err(wrong(format!("{choice} is this command itself")));
    }
    let mut runs = choose(Some(choice))
        .map_err(|none| wrong(format!("{} (`terrace top` shows what there is)", none.message())))?;
    if runs.len() > 1 {
        // Of a run across memories and compression, the one with a budget.
        runs.retain(|run| !run.manifest.in_place);
    }
    match (runs.pop(), runs.len()) {
        (Some(run), 0) => Ok(run),
        (_, more) => Err(wrong(format!(
            "{} runs are called `{choice}`; name one by the number of a process",
            more + 1
        ))),
    }
}

/// Where runs may have their directories.
fn parents() -> Vec<PathBuf> {
    let mut parents: Vec<_> = runtime_directory().into_iter().collect();
    parents.push(PathBuf::from("/tmp"));
    if rustix::process::geteuid().is_root() {
        let users = fs::read_dir("/run/user").into_iter().flatten().flatten();
        parents.extend(users.map(|entry| entry.path()));
    }
    parents.sort();
    parents.dedup();
    parents
}

fn runtime_directory() -> Option<PathBuf> {
    let path = PathBuf::from(env::var_os("XDG_RUNTIME_DIR")?);
    fs::metadata(&path).is_ok_and(|file| file.is_dir()).then_some(path)
}

/// Directories of runs that the user may trust: their own, closed to others;
/// root sees everybody's.
fn directories(parent: &Path) -> Vec<PathBuf> {
    let us = rustix::process::geteuid();
    let entries = fs::read_dir(parent).into_iter().flatten().flatten();
    entries
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(PREFIX))
        .map(|entry| entry.path())
        // Not following links: somebody else could have put one there.
        .filter(|path| {
            fs::symlink_metadata(path).is_ok_and(|file| {
                file.is_dir()
                    && file.mode() & OTHERS == 0
                    && (us.is_root() || file.uid() == us.as_raw())
            })
        })
        .collect()
}

/// Whether a run's command lives, or any process of its program.
fn is_alive(directory: &Path) -> bool {
    // A directory without a lock file is no run's.
    directory.join(LOCK).exists()
        && (is_kept(directory) || process_numbers(directory).any(procs::is_alive))
}

/// Whether a run's command lives.
fn is_kept(directory: &Path) -> bool {
    // Shared, so that two who look at the same time do not take each other for
    // the run.
    File::open(directory.join(LOCK)).is_ok_and(|lock| lock.try_lock_shared().is_err())
}

/// Removes what killed runs of this user have left.
fn clean_up(parent: &Path) {
    let us = rustix::process::geteuid();
    for directory in directories(parent) {
        let ours = fs::symlink_metadata(&directory).is_ok_and(|file| file.uid() == us.as_raw());
        // A directory without a lock file is no run's, or of an older version.
        if ours && directory.join(LOCK).exists() && !is_alive(&directory) {
            let _ = fs::remove_dir_all(&directory);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest() -> Manifest {
        let program = vec!["/usr/bin/sort".to_owned()];
        Manifest::new(program, "hemem", "enforce", Bytes::mib(1), Nanos(500), vec![], None)
    }

    #[test]
    fn a_recording_may_have_a_name_that_is_no_text() {
        use std::os::unix::ffi::OsStringExt;

        let odd = std::ffi::OsString::from_vec(vec![b'a', 0xff]);
        for record in [None, Some(PathBuf::from("a")), Some(PathBuf::from(odd))] {
            let manifest = Manifest { record, ..manifest() };
            let text = serde_json::to_string(&manifest).unwrap();
            assert_eq!(serde_json::from_str::<Manifest>(&text).unwrap(), manifest, "{text}");
        }
    }

    fn leave(parent: &Path, name: &str) -> PathBuf {
        let directory = parent.join(name);
        fs::create_dir(&directory).unwrap();
        fs::set_permissions(&directory, Permissions::from_mode(0o700)).unwrap();
        fs::write(directory.join(LOCK), "").unwrap();
        fs::write(directory.join(MANIFEST), serde_json::to_string(&manifest()).unwrap()).unwrap();
        directory
    }

    #[test]
    fn what_a_killed_run_left_is_removed_and_what_lives_is_not() {
        let parent = tempfile::tempdir().unwrap();
        let dead = leave(parent.path(), "terrace-dead");
        let orphaned = leave(parent.path(), "terrace-orphaned");
        fs::write(orphaned.join(format!("{}.stats", std::process::id())), "").unwrap();
        let locked = leave(parent.path(), "terrace-locked");
        let lock = File::open(locked.join(LOCK)).unwrap();
        lock.lock().unwrap();
        let strange = parent.path().join("terrace-of-somebody-else");
        fs::create_dir(&strange).unwrap();

        clean_up(parent.path());

        assert!(!dead.exists());
        assert!(orphaned.exists() && locked.exists() && strange.exists());
    }

    #[test]
    fn a_directory_that_others_may_enter_or_a_link_is_not_trusted() {
        let parent = tempfile::tempdir().unwrap();
        let good = leave(parent.path(), "terrace-good");
        let open = leave(parent.path(), "terrace-open");
        fs::set_permissions(&open, Permissions::from_mode(0o755)).unwrap();
        std::os::unix::fs::symlink(&good, parent.path().join("terrace-link")).unwrap();

        assert_eq!(directories(parent.path()), [good]);
    }

    #[test]
    fn a_run_is_known_by_its_program_s_name() {
        assert_eq!(manifest().name(), "sort");
    }
}
