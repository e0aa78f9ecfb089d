//! Files that options name. Nothing of the user's is lost by one: what a command reads is not
//! what it writes, what was there stays until the new one is complete, and no two commands write
//! the same file.
//!
//! An output whose place is free is written there. Where a file is already, the new one is
//! written beside it, as `FILE.terrace-partial`, and takes its place when it is complete. So is
//! what is of no use before it is complete ([`Kind::Whole`]). Both are locked meanwhile. What has
//! that name already stays as it is, and the new file gets a number: it may be all that is left of
//! a command that was killed.
//!
//! What a program reads is known only in part. A file that an argument of the program names, or
//! seems to name, is not replaced.

use std::ffi::{OsStr, OsString};
use std::fs::{self, DirEntry, File, Metadata, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, FileType, Gid, OFlags, Uid};
use rustix::io::Errno;

use super::argument::Argument;
use super::place::{Identity, Place, directory};
use super::{drafts, warn};
use crate::failure::Failure;

/// What the name of a file ends with that is not complete. From the second on a number follows:
/// what is there already under the names before is not touched.
const ENDING: &str = ".terrace-partial";
/// How many such names are tried. Whoever has so many should look at them.
const NAMES: u32 = 9;
/// The longest name of a file.
const NAME: usize = 255;
/// How often files change under our hands before we give up.
const ATTEMPTS: u32 = 16;

/// When an output is of use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// When it is complete: a page, a converted trace.
    Whole,
    /// As far as it goes: what is left of one by an error or a kill, `--partial` reads.
    Recording,
    /// While it is written, too: somebody follows it by its name (`tail -f`).
    Log,
}

/// The files that a command reads and writes.
#[derive(Debug, Default)]
pub(crate) struct Files {
    inputs: Vec<(String, Identity)>,
    /// Arguments of a program that is run, and what each is called.
    arguments: Vec<(String, Argument)>,
    outputs: Vec<(&'static str, Option<Identity>, Entry)>,
}

/// A place for a file: the directory, and the name in it.
type Entry = (Identity, OsString);

impl Files {
    /// Nothing but what the command was started with: files that it and its programs read and
    /// write as standard streams, and as other descriptors.
    pub(crate) fn new() -> Self {
        fn regular(stream: impl AsFd) -> Option<Identity> {
            let there = rustix::fs::fstat(stream).ok()?;
            let is_file = FileType::from_raw_mode(there.st_mode) == FileType::RegularFile;
            is_file.then(|| Identity::new(there.st_dev, there.st_ino))
        }
        let streams = [
            ("standard input", regular(io::stdin())),
            ("standard output", regular(io::stdout())),
            ("standard error", regular(io::stderr())),
        ];
        let streams = streams.into_iter().filter_map(|(name, id)| Some((name.to_owned(), id?)));
        let others = fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
        let inputs = streams.chain(others.filter_map(|entry| inherited(&entry))).collect();
        Self { inputs, ..Self::default() }
    }

    /// Notes what is read, and what names it: an option, an argument. What is not there, or is no
    /// file, nobody can overwrite.
    pub(crate) fn reads(&mut self, what: impl Into<String>, path: impl AsRef<Path>) {
        if let Ok(there) = fs::metadata(path)
            && there.is_file()
        {
            self.inputs.push((what.into(), Identity::from(&there)));
        }
    }

    /// Notes that an option makes a socket, which nothing may take the place of. Whether that can
    /// be made is for who makes it to say.
    pub(crate) fn binds(&mut self, option: &'static str, path: &Path) {
        if let Ok(directory) = fs::metadata(directory(path)) {
            let entry = (Identity::from(&directory), path.file_name().unwrap_or_default().into());
            self.outputs.push((option, None, entry));
        }
    }

    /// Notes that a program is run with arguments, of which it may read each as a file.
    pub(crate) fn runs(&mut self, path: &Path, arguments: &[OsString]) {
        self.reads("the program", path);
        for (i, argument) in arguments.iter().enumerate() {
            let what = format!("argument {} of the program", i + 1);
            let argument = Argument::new(argument.as_bytes());
            for name in argument.paths() {
                self.reads(what.as_str(), OsStr::from_bytes(name));
            }
            self.arguments.push((what, argument));
        }
    }

    /// Refuses what is read to be a file that an option adds to in a way of its own.
    pub(crate) fn refuse_input(&self, option: &str, path: &Path) -> Result<(), Failure> {
        let there = fs::metadata(path).ok().map(|there| Identity::from(&there));
        self.input(there).map_or(Ok(()), |input| Err(same(option, input, path)))
    }

    /// What reads a file.
    fn input(&self, there: Option<Identity>) -> Option<&str> {
        let input = self.inputs.iter().find(|(_, input)| Some(*input) == there);
        input.map(|(what, _)| what.as_str())
    }

    /// Which argument of a program mentions a file's name. It may be another file of that name.
    fn mentioned(&self, path: &Path) -> Option<&str> {
        let name = path.file_name()?.as_bytes();
        let argument = self.arguments.iter().find(|(_, argument)| argument.mentions(name));
        argument.map(|(what, _)| what.as_str())
    }

    /// Opens what an option names, to be written. What is there is not touched yet.
    pub(crate) fn writes(
        &mut self,
        option: &'static str,
        path: &Path,
        kind: Kind,
    ) -> Result<Output, Failure> {
        let shown = path.to_owned();
        let output = |file, way| {
            let shown = shown.clone();
            Output { option, shown, kind, file, written: 0, keep: false, error: None, way }
        };
        let bad = |e: io::Error| Failure::bad_input(format!("{option}: {}: {e}", path.display()));
        for _ in 0..ATTEMPTS {
            match Place::of(path).map_err(bad)? {
                Place::Descriptor(fd) => return Ok(output(File::from(fd), Way::Stream)),
                Place::Stream(path) => {
                    let file = OpenOptions::new().write(true).open(path).map_err(bad)?;
                    return Ok(output(file, Way::Stream));
                }
                Place::File { path: target, there } => {
                    let entry = self.refuse_same(option, path, &target, there.as_ref())?;
                    match self.open(target, there.as_ref(), kind) {
                        Ok(Some((file, way))) => {
                            self.outputs.push((option, there.as_ref().map(Identity::from), entry));
                            return Ok(output(file, way));
                        }
                        // Somebody has made or replaced it in this moment.
                        Ok(None) => {}
                        Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                        Err(e) => return Err(bad(e)),
                    }
                }
            }
        }
        let path = path.display();
        Err(Failure::bad_input(format!("{option}: {path}: another command is writing this file")))
    }

    /// Refuses what is read, or written by another option.
    fn refuse_same(
        &self,
        option: &str,
        path: &Path,
        target: &Path,
        there: Option<&Metadata>,
    ) -> Result<Entry, Failure> {
        let bad = |e: io::Error| Failure::bad_input(format!("{option}: {}: {e}", path.display()));
        let entry: Entry = (
            Identity::from(&fs::metadata(directory(target)).map_err(bad)?),
            target.file_name().unwrap_or_default().to_owned(),
        );
        let identity = there.map(Identity::from);
        let written = self
            .outputs
            .iter()
            .find(|(_, other, place)| *place == entry || (other.is_some() && *other == identity));
        if let Some(other) = self.input(identity).or(written.map(|(other, ..)| *other)) {
            return Err(same(option, other, path));
        }
        if there.is_some_and(|there| there.len() > 0)
            && let Some(what) = self.mentioned(path).or_else(|| self.mentioned(target))
        {
            return Err(Failure::bad_input(format!(
                "{option}: {}: would be replaced, and {what} seems to name it: choose another \
                 name, or move the file away",
                path.display()
            )));
        }
        Ok(entry)
    }

    /// Opens the file, or one beside it; `None` if it changed meanwhile.
    fn open(
        &self,
        target: PathBuf,
        there: Option<&Metadata>,
        kind: Kind,
    ) -> io::Result<Option<(File, Way)>> {
        let Some(there) = there else {
            return if kind == Kind::Whole {
                let draft = self.draft(&target, None, kind)?;
                Ok(draft.map(|(file, draft)| {
                    (
                        file,
                        Way::Beside(Beside {
                            target,
                            draft: Some(draft),
                            old: None,
                            copy: false,
                            damaged: false,
                        }),
                    )
                }))
            } else {
                Self::fresh(target)
            };
        };
        // What may not be written must not be replaced, either.
        let old = OpenOptions::new().write(true).open(&target)?;
        lock(&old)?;
        if !is_still(&target, &old)? {
            return Ok(None);
        }
        let (file, draft) = match self.draft(&target, Some(there), kind) {
            Ok(None) => return Ok(None),
            Ok(Some((file, draft))) => (file, Some(draft)),
            // The directory may be another's though the file is not.
            Err(e) if is_about_directory(&e) => (tempfile::tempfile()?, None),
            Err(e) => return Err(e),
        };
        let copy = draft.is_none() || there.nlink() > 1 || !take_after(&file, there);
        let beside = Beside { target, draft, old: Some(old), copy, damaged: false };
        Ok(Some((file, Way::Beside(beside))))
    }

    /// Makes a file where none is.
    fn fresh(target: PathBuf) -> io::Result<Option<(File, Way)>> {
        let file = match OpenOptions::new().write(true).create_new(true).open(&target) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => return Ok(None),
            made => made?,
        };
        lock(&file)?;
        // Another command may be about to put one here.
        if drafts_of(&target).any(|draft| is_being_written(&draft)) {
            let _ = fs::remove_file(&target);
            return Err(io::ErrorKind::WouldBlock.into());
        }
        Ok(Some((file, Way::Named(target))))
    }

    /// Opens and locks a file beside another.
    fn draft(
        &self,
        target: &Path,
        there: Option<&Metadata>,
        kind: Kind,
    ) -> io::Result<Option<(File, PathBuf)>> {
        let mut left = Vec::new();
        for path in drafts_of(target) {
            let mut options = OpenOptions::new();
            options.read(true).write(true).custom_flags(WITHOUT_WAIT);
            let file = match fs::symlink_metadata(&path) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => {
                    match options.create_new(true).open(&path) {
                        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => return Ok(None),
                        made => made?,
                    }
                }
                Err(e) => return Err(e),
                Ok(facts) => {
                    let owners =
                        [Some(rustix::process::geteuid().as_raw()), there.map(Metadata::uid)];
                    let is_read = self.input(Some(Identity::from(&facts))).is_some();
                    // Another command may have made an empty one in this moment: who locks it
                    // first has it. Nothing is lost with it.
                    let is_free = facts.is_file()
                        && facts.len() == 0
                        && owners.contains(&Some(facts.uid()))
                        && !is_read;
                    if !is_free {
                        if facts.is_file() && is_being_written(&path) {
                            return Err(io::ErrorKind::WouldBlock.into());
                        }
                        // Who names it to the command knows that it is there.
                        if !is_read && self.mentioned(&path).is_none() {
                            left.push(path.display().to_string());
                        }
                        continue;
                    }
                    match options.open(&path) {
                        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
                        opened => opened?,
                    }
                }
            };
            lock(&file)?;
            if !is_still(&path, &file)? || file.metadata()?.len() > 0 {
                return Ok(None);
            }
            if !left.is_empty() {
                warn(format_args!(
                    "already there, and left: {} (of a command that was killed, or yours)",
                    left.join(", ")
                ));
            }
            if kind != Kind::Recording {
                drafts::begin(&path);
            }
            return Ok(Some((file, path)));
        }
        Err(io::Error::other(format!(
            "{} and {} more of that name are in the way: keep what you need of them under other \
             names, and remove the rest",
            beside(target, ENDING).display(),
            NAMES - 1
        )))
    }
}

/// A link that somebody else has put there is not followed, and for the reader of a FIFO is not
/// waited.
const WITHOUT_WAIT: i32 = OFlags::NOFOLLOW.union(OFlags::NONBLOCK).bits() as i32;

/// The names for what is written beside a file, in the order in which they are tried.
fn drafts_of(target: &Path) -> impl Iterator<Item = PathBuf> {
    (1..=NAMES).map(move |number| match number {
        1 => beside(target, ENDING),
        _ => beside(target, &format!("{ENDING}-{number}")),
    })
}

/// Whether another command has it locked.
fn is_being_written(draft: &Path) -> bool {
    let file = OpenOptions::new().read(true).custom_flags(WITHOUT_WAIT).open(draft);
    file.is_ok_and(|file| matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)))
}

/// What a file must not be that an option names, and another names as well.
fn same(option: &str, other: &str, path: &Path) -> Failure {
    Failure::bad_input(format!("{option} and {other} are the same file: {}", path.display()))
}

/// The file that a descriptor of this process stands for, behind the standard streams, if it was
/// started with it. It closes its own where it starts a program.
fn inherited(entry: &DirEntry) -> Option<(String, Identity)> {
    let number: u32 = entry.file_name().to_str()?.parse().ok()?;
    let there = fs::metadata(entry.path()).ok()?;
    if number <= 2 || !there.is_file() {
        return None;
    }
    let facts = fs::read_to_string(format!("/proc/self/fdinfo/{number}")).ok()?;
    let flags = facts.lines().find_map(|line| line.strip_prefix("flags:"))?;
    let flags = u32::from_str_radix(flags.trim(), 8).ok()?;
    let is_own = flags & OFlags::CLOEXEC.bits() != 0;
    (!is_own).then(|| (format!("descriptor {number}"), Identity::from(&there)))
}

/// Locks a file for as long as it is open. There are file systems without locks: then two
/// commands are not told apart, which is no reason to refuse the first.
fn lock(file: &File) -> io::Result<()> {
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => Err(io::ErrorKind::WouldBlock.into()),
        Ok(()) | Err(TryLockError::Error(_)) => Ok(()),
    }
}

/// Whether a path still names the file that was opened by it.
fn is_still(path: &Path, file: &File) -> io::Result<bool> {
    let Ok(now) = fs::symlink_metadata(path) else { return Ok(false) };
    Ok(Identity::from(&now) == Identity::from(&file.metadata()?))
}

/// Whether a file could not be made because of the directory's rights.
fn is_about_directory(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem)
}

/// Gives a file the owner and the rights of the one that it is to replace; false if that cannot be
/// done.
fn take_after(file: &File, there: &Metadata) -> bool {
    let Ok(facts) = file.metadata() else { return false };
    let same = (facts.uid(), facts.gid()) == (there.uid(), there.gid());
    let owner = (Some(Uid::from_raw(there.uid())), Some(Gid::from_raw(there.gid())));
    (same || rustix::fs::fchown(file, owner.0, owner.1).is_ok())
        && file.set_permissions(there.permissions()).is_ok()
}

/// The path of a file beside another.
fn beside(target: &Path, ending: &str) -> PathBuf {
    let name = target.file_name().unwrap_or_default().as_bytes();
    let room = NAME - ending.len();
    let mut beside = name[..name.len().min(room)].to_vec();
    beside.extend_from_slice(ending.as_bytes());
    target.with_file_name(OsString::from_vec(beside))
}

/// A file that an option names, and that is being written.
#[derive(Debug)]
pub(crate) struct Output {
    option: &'static str,
    shown: PathBuf,
    kind: Kind,
    file: File,
    written: u64,
    /// Whether what is written is kept, however the command ends.
    keep: bool,
    /// The first error of writing: who writes through others may not hear of it as such.
    error: Option<(io::ErrorKind, String)>,
    way: Way,
}

/// How it comes to its place.
#[derive(Debug)]
enum Way {
    /// It has none: a device, or a descriptor.
    Stream,
    /// It is there: no file was.
    Named(PathBuf),
    /// It is written beside it.
    Beside(Beside),
    /// It is complete.
    Done(PathBuf),
}

#[derive(Debug)]
struct Beside {
    target: PathBuf,
    /// `None` where the directory takes no file: it has no name.
    draft: Option<PathBuf>,
    /// What is there, locked.
    old: Option<File>,
    /// Whether its content is replaced instead of itself: it has other names, or another owner.
    copy: bool,
    /// Whether that has failed half-way: what was there is lost, and the draft is all there is.
    damaged: bool,
}

impl Output {
    /// Where it is now, or is going to be; `None` of what is no file.
    pub(crate) fn path(&self) -> Option<&Path> {
        match &self.way {
            Way::Stream => None,
            Way::Named(path) | Way::Done(path) => Some(path),
            Way::Beside(beside) => Some(beside.draft.as_deref().unwrap_or(&beside.target)),
        }
    }

    /// Bytes written so far.
    pub(crate) fn written(&self) -> u64 {
        self.written
    }

    /// Goes on behind so many zeros, which take no room where there is a file.
    pub(crate) fn skip(&mut self, bytes: u64) -> io::Result<()> {
        let is_file = self.file.metadata()?.is_file();
        if !is_file || self.path().is_none() {
            return io::copy(&mut io::repeat(0).take(bytes), self).map(drop);
        }
        let end = self.file.stream_position()? + bytes;
        let skipped = self.file.set_len(end).and_then(|()| self.file.seek(SeekFrom::Start(end)));
        match skipped {
            Ok(_) => self.written += bytes,
            Err(e) => {
                self.error.get_or_insert_with(|| (e.kind(), e.to_string()));
                return Err(e);
            }
        }
        Ok(())
    }

    /// From now on what is written is kept, however the command ends: a recording has begun.
    pub(crate) fn keep(&mut self) {
        self.keep = true;
    }

    /// What an error means for it, and where what was written is.
    pub(crate) fn failure(&self, error: &io::Error) -> Failure {
        let (option, shown) = (self.option, self.shown.display());
        let (mut left, mut stays) = (String::new(), "");
        if let Way::Beside(Beside { draft, old, damaged, .. }) = &self.way {
            if let Some(draft) = draft.as_ref().filter(|_| self.keep || *damaged) {
                left = format!("; what was written is in {}", draft.display());
            }
            stays = match old {
                Some(_) if *damaged => "; the file that was there is damaged",
                Some(_) => "; the file that was there is as it was",
                None => "",
            };
        }
        Failure::failed(format!("{option}: {shown}: {error}{left}{stays}"))
    }

    /// What the first error of writing means for it, if there was one.
    pub(crate) fn broken(&self) -> Option<Failure> {
        let (kind, text) = self.error.clone()?;
        Some(self.failure(&io::Error::new(kind, text)))
    }

    /// Writes all of it, and completes it.
    pub(crate) fn write_whole(mut self, content: &[u8]) -> Result<(), Failure> {
        let written = self.write_all(content).and_then(|()| self.flush());
        written.map_err(|e| self.failure(&e))?;
        self.complete()
    }

    /// It is complete: it takes its place.
    pub(crate) fn complete(&mut self) -> Result<(), Failure> {
        self.publish().map_err(|e| self.failure(&e))
    }

    fn publish(&mut self) -> io::Result<()> {
        match &mut self.way {
            Way::Stream | Way::Done(_) => return Ok(()),
            Way::Named(_) => {}
            Way::Beside(beside) => beside.publish(&mut self.file)?,
        }
        if let Way::Named(path) | Way::Beside(Beside { target: path, .. }) = &self.way {
            self.way = Way::Done(path.clone());
        }
        Ok(())
    }
}

impl Beside {
    fn publish(&mut self, file: &mut File) -> io::Result<()> {
        if let (Some(draft), false) = (&self.draft, self.copy) {
            if self.old.is_some() {
                // A file that is replaced must not be lost with the power, either.
                file.sync_data()?;
            }
            match fs::rename(draft, &self.target) {
                Ok(()) => {
                    drafts::end(draft);
                    return Ok(());
                }
                // A file may be mounted by itself.
                Err(e) if self.old.is_some() && e.kind() == io::ErrorKind::ResourceBusy => {}
                Err(e) => return Err(e),
            }
        }
        let Some(old) = &mut self.old else { return Ok(()) };
        secure_room(old, file.metadata()?.len())?;
        let draft = self.draft.as_deref();
        if draft.is_some() {
            // With the power what is there may be lost half-way, but not this.
            file.sync_data()?;
        }
        let written = drafts::undisturbed(draft, || write_over(old, file));
        self.damaged = written.is_err();
        written?;
        if let Some(draft) = draft {
            // A name that nobody needs any more.
            let _ = fs::remove_file(draft);
        }
        // What is written from now on goes to the file that has the name.
        if let Some(old) = self.old.take() {
            *file = old;
        }
        Ok(())
    }
}

/// Sees to it that a file can take so much content where no room is left. If it cannot, the file
/// stays as it is.
fn secure_room(file: &File, length: u64) -> io::Result<()> {
    if length == 0 {
        return Ok(());
    }
    let before = file.metadata()?.len();
    let keep = FallocateFlags::KEEP_SIZE;
    let secured = rustix::io::retry_on_intr(|| rustix::fs::fallocate(file, keep, 0, length));
    let secured = match secured {
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => fill(file, before, length),
        other => other.map_err(io::Error::from),
    };
    if secured.is_err() {
        // Room that was had beyond its end.
        let _ = file.set_len(before);
    }
    secured
}

/// Writes zeros from the end of a file on: where room cannot be asked for, that is how it is had.
fn fill(mut file: &File, end: u64, length: u64) -> io::Result<()> {
    if length <= end {
        return Ok(());
    }
    file.seek(SeekFrom::Start(end))?;
    io::copy(&mut io::repeat(0).take(length - end), &mut file)?;
    // Some file systems tell only now that there was none.
    file.sync_data()
}

/// Replaces the content of a file by that of another.
fn write_over(old: &mut File, new: &mut File) -> io::Result<()> {
    new.seek(SeekFrom::Start(0))?;
    old.seek(SeekFrom::Start(0))?;
    let length = io::copy(new, old)?;
    old.set_len(length)?;
    old.sync_data()
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.kind == Kind::Log {
            self.publish()?;
        }
        let written = self.file.write(bytes);
        match &written {
            Ok(written) => self.written += *written as u64,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => {
                self.error.get_or_insert_with(|| (e.kind(), e.to_string()));
            }
        }
        written
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        let path = match &self.way {
            Way::Stream | Way::Done(_) => return,
            Way::Named(path) => Some(path),
            Way::Beside(beside) => {
                beside.draft.as_ref().inspect(|draft| drafts::end(draft));
                beside.draft.as_ref().filter(|_| !beside.damaged)
            }
        };
        if let Some(path) = path
            && !(self.keep && self.written > 0)
            && is_still(path, &self.file).unwrap_or(false)
        {
            // Nothing can be done about one that cannot be removed.
            let _ = fs::remove_file(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_secured_without_a_change_of_what_is_there() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("old");
        fs::write(&path, "old").unwrap();
        let file = File::options().read(true).write(true).open(&path).unwrap();

        for length in [0, 2, 3, 100_000] {
            secure_room(&file, length).unwrap();
            assert_eq!(fs::read(&path).unwrap(), b"old", "{length}");
        }
        // No file is so long.
        assert!(secure_room(&file, u64::MAX).is_err());
        assert_eq!(fs::read(&path).unwrap(), b"old");
    }

    #[test]
    fn where_room_cannot_be_asked_for_it_is_written_to() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("old");
        fs::write(&path, "old").unwrap();
        let mut file = File::options().read(true).write(true).open(&path).unwrap();
        let mut new = tempfile::tempfile().unwrap();
        new.write_all(b"what is new").unwrap();

        fill(&file, 3, 2).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"old");
        fill(&file, 3, 11).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"old\0\0\0\0\0\0\0\0");
        write_over(&mut file, &mut new).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"what is new");
    }

    #[test]
    fn a_file_is_not_replaced_while_an_argument_may_name_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        let mut files = Files::default();
        let script =
            OsString::from("cd elsewhere; sort my\\ file.txt, empty, draft.terrace-partial");
        files.runs(Path::new("/bin/sh"), &["-c".into(), script]);
        for (name, content) in [("my file.txt", "one"), ("empty", ""), ("other", "one")] {
            fs::write(path(name), content).unwrap();
        }
        fs::write(path("draft.terrace-partial"), "one").unwrap();

        let refused = files.writes("--report", &path("my file.txt"), Kind::Whole).unwrap_err();
        let message = refused.message();
        assert!(
            message.starts_with("--report: ") && message.contains("seems to name"),
            "{message}"
        );
        assert!(message.contains("argument 2 of the program"), "{message}");
        for name in ["empty", "other", "new"] {
            files.writes("--report", &path(name), Kind::Whole).unwrap();
        }
        // What another command has left is not replaced, either.
        let draft = files.writes("--record", &path("draft"), Kind::Whole).unwrap();
        assert_eq!(draft.path(), Some(path("draft.terrace-partial-2").as_path()));
        assert_eq!(fs::read(path("my file.txt")).unwrap(), b"one");
        assert_eq!(fs::read(path("draft.terrace-partial")).unwrap(), b"one");
    }
}
