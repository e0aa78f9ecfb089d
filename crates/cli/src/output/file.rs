//! Files that options name. Nothing of the user's is lost by one: what a command reads is not
//! what it writes, what was there stays until the new one is complete, and no two commands write
//! the same file.
//!
//! An output whose place is free is written there. Where a file is already, the new one is
//! written beside it, as `FILE.terrace-partial`, and takes its place when it is complete. So is
//! what is of no use before it is complete ([`Kind::Whole`]). Both are locked meanwhile.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Metadata, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Gid, OFlags, Uid};

use super::place::{Identity, Place, directory};
use super::{drafts, warn};
use crate::failure::Failure;

/// What the name of a file ends with that is not complete. The second is for when what the first
/// names is being read.
const ENDINGS: [&str; 2] = [".terrace-partial", ".terrace-partial-2"];
/// The longest name of a file.
const NAME: usize = 255;
/// The longest path (`PATH_MAX`, with its end).
const PATH: usize = 4095;
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
    outputs: Vec<(&'static str, Option<Identity>, Entry)>,
}

/// A place for a file: the directory, and the name in it.
type Entry = (Identity, OsString);

impl Files {
    /// Nothing but what the command was started with: files that it reads and writes as standard
    /// streams.
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
        let inputs = streams.into_iter().filter_map(|(name, id)| Some((name.to_owned(), id?)));
        Self { inputs: inputs.collect(), outputs: Vec::new() }
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
            for name in names_in(argument.as_bytes()) {
                self.reads(what.as_str(), OsStr::from_bytes(name));
            }
        }
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
        let read = self.inputs.iter().find(|(_, input)| Some(*input) == identity);
        let read = read.map(|(what, _)| what.as_str());
        let written = self
            .outputs
            .iter()
            .find(|(_, other, place)| *place == entry || (other.is_some() && *other == identity));
        match read.or(written.map(|(other, ..)| *other)) {
            None => Ok(entry),
            Some(other) => Err(Failure::bad_input(format!(
                "{option} and {other} are the same file: {}",
                path.display()
            ))),
        }
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
                        Way::Beside(Beside { target, draft: Some(draft), old: None, copy: false }),
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
        let beside = Beside { target, draft, old: Some(old), copy };
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
        let busy = File::open(beside(&target, ENDINGS[0]))
            .is_ok_and(|draft| matches!(draft.try_lock_shared(), Err(TryLockError::WouldBlock)));
        if busy {
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
        for ending in ENDINGS {
            let path = beside(target, ending);
            // A link that somebody else has put here is not followed, and for the reader of a
            // FIFO is not waited.
            let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(true).truncate(false);
            let file = options.custom_flags(flags.bits() as i32).open(&path)?;
            let facts = file.metadata()?;
            if self.inputs.iter().any(|(_, input)| *input == Identity::from(&facts)) {
                continue;
            }
            let owners = [Some(rustix::process::geteuid().as_raw()), there.map(Metadata::uid)];
            if !facts.is_file() || !owners.contains(&Some(facts.uid())) {
                return Err(io::Error::other(format!("{} is in the way", path.display())));
            }
            lock(&file)?;
            if !is_still(&path, &file)? {
                return Ok(None);
            }
            if facts.len() > 0 {
                warn(format_args!(
                    "{} is replaced: what an earlier command left that was killed",
                    path.display()
                ));
            }
            file.set_len(0)?;
            if kind != Kind::Recording {
                drafts::begin(&path);
            }
            return Ok(Some((file, path)));
        }
        Err(io::Error::other("what would be written beside it is being read"))
    }
}

/// What of an argument may name a file: all of it, and what is left of it behind what programs put
/// before one (`if=FILE`, `--input=FILE`, `@FILE`, `-iFILE`), also among others (`a.txt,b.txt`, and
/// the commands of a shell).
fn names_in(argument: &[u8]) -> impl Iterator<Item = &[u8]> {
    let separates = |byte: &u8| byte.is_ascii_whitespace() || b"=,:;@'\"<>()|&`".contains(byte);
    let starts = argument.iter().enumerate().filter(move |(_, byte)| separates(byte));
    let starts = std::iter::once(0).chain(starts.map(|(at, _)| at + 1));
    let parts = starts.flat_map(move |start| {
        let rest = &argument[start..];
        let end = rest.iter().position(separates).unwrap_or(rest.len());
        let part = &rest[..end];
        // A letter of an option, with its value behind it.
        let value = part.strip_prefix(b"-").and_then(|option| option.get(1..));
        [Some(rest), Some(part), value]
    });
    parts.flatten().filter(|name| !name.is_empty() && name.len() <= PATH)
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

    /// Whether a file is replaced.
    fn replaces(&self) -> bool {
        matches!(&self.way, Way::Beside(beside) if beside.old.is_some())
    }

    /// What an error means for it, and where what was written is.
    pub(crate) fn failure(&self, error: &io::Error) -> Failure {
        let (option, shown) = (self.option, self.shown.display());
        let left = match &self.way {
            Way::Beside(Beside { draft: Some(draft), .. }) if self.keep => {
                format!("; what was written is in {}", draft.display())
            }
            _ => String::new(),
        };
        let stays = if self.replaces() { "; the file that was there is as it was" } else { "" };
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
        let Some(mut old) = self.old.take() else { return Ok(()) };
        file.seek(SeekFrom::Start(0))?;
        let length = io::copy(file, &mut old)?;
        old.set_len(length)?;
        if let Some(draft) = &self.draft {
            // A name that nobody needs any more.
            let _ = fs::remove_file(draft);
            drafts::end(draft);
        }
        // What is written from now on goes to the file that has the name.
        *file = old;
        Ok(())
    }
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
                beside.draft.as_ref()
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
    fn the_files_that_an_argument_names_are_found_wherever_they_stand_in_it() {
        for argument in [
            "in.txt",
            "if=in.txt",
            "--input=in.txt",
            "-iin.txt",
            "@in.txt",
            "file=@in.txt;type=text",
            "other,in.txt",
            "cat in.txt | sort",
            "cat <in.txt",
            "exec 'in.txt'",
        ] {
            let found = names_in(argument.as_bytes()).any(|name| name == b"in.txt");
            assert!(found, "{argument}");
        }
        // A name may have any of them in it.
        for argument in ["of=a=b,c.txt", "a=b,c.txt", "--to=a=b,c.txt"] {
            assert!(names_in(argument.as_bytes()).any(|name| name == b"a=b,c.txt"), "{argument}");
        }
        assert!(!names_in(b"begin.txt").any(|name| name == b"in.txt"));
        assert_eq!(names_in(b"").count(), 0);
    }
}
