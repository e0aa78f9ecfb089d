//! What a sweep has done already, in a file that survives a kill.
//!
//! One JSON value a line: first who wrote it, then a line for each point. Lines
//! are written whole and flushed to the disk; a line that a kill left without
//! its end is forgotten when the journal is opened again.
//!
//! A file that is no journal is never written to. A journal that is there is changed only when the
//! sweep begins, and one that is to be forgotten is replaced by a new one that is complete.

use std::collections::HashMap;
use std::fs::{self, File, Metadata, OpenOptions, TryLockError};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::point::{METRICS, Metric, Point, PointResult};

/// Version of the format.
const SCHEMA: u32 = 1;
/// What the name of a new journal ends with until it takes the place of one that is forgotten.
const ENDING: &str = ".terrace-partial";
/// How often a journal is replaced under our hands before we take what we have.
const ATTEMPTS: u32 = 16;

/// Why a journal cannot be used.
#[derive(Debug, Error)]
pub enum JournalError {
    /// The file cannot be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A line is wrong.
    #[error("{}:{line}: {message}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// Which line.
        line: usize,
        /// What is wrong with it.
        message: String,
    },
    /// It is a file of somebody's.
    #[error(
        "{}:1: is no journal of a sweep, and stays as it is ({message}); choose another directory, or move the file away",
        path.display()
    )]
    Foreign {
        /// The file.
        path: PathBuf,
        /// What says so.
        message: String,
    },
    /// Another process is writing it.
    #[error("{}: another sweep is writing it", path.display())]
    Busy {
        /// The file.
        path: PathBuf,
    },
    /// Another version wrote it; its figures cannot stand beside ours.
    #[error(
        "{}: written by another version ({found}, this is {ours}); choose another directory, or --fresh",
        path.display()
    )]
    Version {
        /// The file.
        path: PathBuf,
        /// Which.
        found: String,
        /// Ours.
        ours: String,
    },
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Header {
    schema: u32,
    version: String,
    metrics: Vec<String>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    point: Point,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    figures: Option<Vec<Metric>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// What is done, and the file that it is noted in.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    file: File,
    state: State,
    /// Figures of every point that was simulated. Points that failed are not
    /// here: they are tried again.
    pub done: HashMap<Point, Vec<Metric>>,
}

fn header() -> Header {
    Header {
        schema: SCHEMA,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        metrics: METRICS.iter().map(|(name, _)| (*name).to_owned()).collect(),
    }
}

/// How far a journal is.
#[derive(Clone, Copy, Debug)]
enum State {
    /// Nothing in the file was changed.
    Opened {
        /// Bytes of it that are whole lines, and stay.
        whole: u64,
        /// Whether what it says is to be forgotten.
        forget: bool,
        /// Whether it was not there before.
        made: bool,
    },
    /// It has a header, and whole lines.
    Begun,
}

/// A value as a line.
fn line_of(value: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut text = serde_json::to_vec(value)?;
    text.push(b'\n');
    Ok(text)
}

/// Reads the first line of a journal's text; `None` if a kill came before it was whole.
fn head(path: &Path, text: &[u8]) -> Result<Option<Header>, JournalError> {
    let foreign = |message| JournalError::Foreign { path: path.to_owned(), message };
    if let Some(end) = text.iter().position(|&byte| byte == b'\n') {
        let found = serde_json::from_slice(&text[..end]);
        return found.map(Some).map_err(|e| foreign(e.to_string()));
    }
    let ours =
        line_of(&header()).map_err(|source| JournalError::Io { path: path.to_owned(), source })?;
    if ours.starts_with(text) { Ok(None) } else { Err(foreign("it has no line".to_owned())) }
}

/// Reads a journal's text: what is done, and how many of its bytes are whole
/// lines. `path` is for errors.
pub fn read(path: &Path, text: &[u8]) -> Result<(HashMap<Point, Vec<Metric>>, u64), JournalError> {
    let mut done = HashMap::new();
    let Some(found) = head(path, text)? else { return Ok((done, 0)) };
    let ours = header();
    if (found.schema, &found.version, &found.metrics) != (ours.schema, &ours.version, &ours.metrics)
    {
        return Err(JournalError::Version {
            path: path.to_owned(),
            found: format!("schema {}, {}", found.schema, found.version),
            ours: format!("schema {}, {}", ours.schema, ours.version),
        });
    }
    let whole = text.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
    let bad = |line: usize, message: String| JournalError::Line {
        path: path.to_owned(),
        line: line + 1,
        message,
    };
    for (number, line) in text[..whole].split(|&byte| byte == b'\n').enumerate().skip(1) {
        if line.is_empty() {
            continue;
        }
        let line: Line = serde_json::from_slice(line).map_err(|e| bad(number, e.to_string()))?;
        if let Some(figures) = line.figures {
            if figures.len() != METRICS.len() {
                let count = figures.len();
                return Err(bad(number, format!("{count} figures instead of {}", METRICS.len())));
            }
            done.insert(line.point, figures);
        }
    }
    Ok((done, whole as u64))
}

/// Opens a file, or makes it; and whether it did that.
fn open_or_make(path: &Path) -> io::Result<(File, bool)> {
    let mut options = OpenOptions::new();
    options.read(true).append(true);
    match options.open(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            options.create(true).open(path).map(|file| (file, true))
        }
        opened => opened.map(|file| (file, false)),
    }
}

/// Whether what was found at a path is a file that is open.
fn is_same(found: io::Result<Metadata>, file: &File) -> bool {
    let identity = |there: Metadata| (there.dev(), there.ino());
    let found = found.map(identity).ok();
    found.is_some() && found == file.metadata().map(identity).ok()
}

/// Puts a new file with this content, locked, in the place of another.
fn replaced(path: &Path, old: &File, content: &[u8]) -> io::Result<File> {
    // A link stays a link.
    let path = fs::canonicalize(path)?;
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(ENDING);
    let draft = path.with_file_name(name);
    match fs::read(&draft) {
        // A kill left it.
        Ok(left) if content.starts_with(&left) => fs::remove_file(&draft)?,
        Ok(_) => return Err(io::Error::other(format!("{} is in the way", draft.display()))),
        Err(e) if e.kind() == io::ErrorKind::NotFound => {}
        Err(e) => return Err(e),
    }
    let mut file = OpenOptions::new().read(true).append(true).create_new(true).open(&draft)?;
    let written = file.write_all(content).and_then(|()| file.sync_data());
    let written = written.and_then(|()| file.set_permissions(old.metadata()?.permissions()));
    // There are file systems without locks.
    let _ = file.try_lock();
    match written.and_then(|()| fs::rename(&draft, &path)) {
        Ok(()) => Ok(file),
        Err(e) => {
            // Nothing can be done about one that cannot be removed.
            let _ = fs::remove_file(&draft);
            Err(e)
        }
    }
}

impl Journal {
    /// Opens a journal, or makes one; if it is to be `fresh`, what it says is forgotten when it
    /// begins. Nobody else can open it as long as this is there. The file is not changed before it
    /// [begins](Self::begin).
    pub fn open(path: &Path, fresh: bool) -> Result<Self, JournalError> {
        let io = |source| JournalError::Io { path: path.to_owned(), source };
        let mut attempts = 0..ATTEMPTS;
        let (mut file, made) = loop {
            let (file, made) = open_or_make(path).map_err(io)?;
            // There are file systems without locks.
            if let Err(TryLockError::WouldBlock) = file.try_lock() {
                return Err(JournalError::Busy { path: path.to_owned() });
            }
            // Another sweep may have put a fresh one in its place meanwhile.
            if is_same(fs::metadata(path), &file) || attempts.next().is_none() {
                break (file, made);
            }
        };
        if !file.metadata().map_err(io)?.is_file() {
            let message = "it is no regular file".to_owned();
            return Err(JournalError::Foreign { path: path.to_owned(), message });
        }
        let mut text = Vec::new();
        file.read_to_end(&mut text).map_err(io)?;
        let (done, whole) = if fresh {
            head(path, &text)?;
            (HashMap::new(), 0)
        } else {
            read(path, &text)?
        };
        let forget = fresh && !text.is_empty();
        let state = State::Opened { whole, forget, made };
        Ok(Self { path: path.to_owned(), file, state, done })
    }

    /// Makes it ready to be added to: from now on it has a header, and what was to be forgotten is.
    /// The first [note](Self::note) does that, too.
    pub fn begin(&mut self) -> Result<(), JournalError> {
        let State::Opened { whole, forget, .. } = self.state else { return Ok(()) };
        let io = |source| JournalError::Io { path: self.path.clone(), source };
        let first = line_of(&header()).map_err(io)?;
        if forget {
            self.file = replaced(&self.path, &self.file, &first).map_err(io)?;
        } else {
            // What a kill left of a line.
            self.file.set_len(whole).map_err(io)?;
            if whole == 0 {
                self.file.write_all(&first).and_then(|()| self.file.sync_data()).map_err(io)?;
            }
        }
        self.state = State::Begun;
        Ok(())
    }

    fn line(&mut self, value: &impl Serialize) -> Result<(), JournalError> {
        self.begin()?;
        let io = |source| JournalError::Io { path: self.path.clone(), source };
        let text = line_of(value).map_err(io)?;
        // One call: a kill leaves a whole line, or the beginning of one.
        self.file.write_all(&text).and_then(|()| self.file.sync_data()).map_err(io)
    }

    /// Notes what came of a point.
    pub fn note(&mut self, point: &Point, result: &PointResult) -> Result<(), JournalError> {
        let line = Line {
            point: point.clone(),
            figures: result.as_ref().ok().cloned(),
            error: result.as_ref().err().cloned(),
        };
        self.line(&line)?;
        if let Ok(figures) = result {
            self.done.insert(point.clone(), figures.clone());
        }
        Ok(())
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        // One that was made and never begun is of no use.
        if let State::Opened { made: true, .. } = self.state
            && is_same(fs::symlink_metadata(&self.path), &self.file)
        {
            // Nothing can be done about one that cannot be removed.
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn point(seed: u64) -> Point {
        Point { parameters: BTreeMap::from([("seed".to_owned(), seed.to_string())]) }
    }

    fn figures(n: u64) -> Vec<Metric> {
        (0..METRICS.len() as u64).map(|i| Metric::Count(n * 100 + i)).collect()
    }

    fn journal_of(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("terrace-{name}-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        path
    }

    /// Another test's child may hold the lock until it executes its program.
    fn reopened(path: &Path, fresh: bool) -> Journal {
        loop {
            match Journal::open(path, fresh) {
                Err(JournalError::Busy { .. }) => std::thread::yield_now(),
                other => return other.expect("a journal"),
            }
        }
    }

    #[test]
    fn a_journal_that_was_cut_anywhere_keeps_its_whole_lines_and_goes_on() {
        let path = journal_of("journal-cut");
        let mut journal = Journal::open(&path, false).expect("begun");
        for n in 0..3 {
            journal.note(&point(n), &Ok(figures(n))).expect("noted");
        }
        journal.note(&point(9), &Err("no room".into())).expect("noted");
        drop(journal);
        let whole = std::fs::read(&path).expect("written");
        let begin = whole.iter().position(|&b| b == b'\n').expect("a header") + 1;

        for cut in 0..=whole.len() {
            std::fs::write(&path, &whole[..cut]).expect("cut");
            let mut journal = reopened(&path, false);
            let lines = whole[..cut]
                .split_inclusive(|&b| b == b'\n')
                .filter(|l| l.ends_with(b"\n"))
                .count();
            // The header, three points, and one that failed.
            let kept = lines.saturating_sub(1).min(3);
            assert_eq!(journal.done.len(), kept, "cut at {cut}");
            journal.note(&point(7), &Ok(figures(7))).expect("noted");
            drop(journal);
            let again = reopened(&path, false);
            assert_eq!(again.done.len(), kept + 1, "cut at {cut}");
            if cut >= begin {
                assert_eq!(again.done.get(&point(7)), Some(&figures(7)));
            }
        }
        std::fs::remove_file(&path).expect("ours");
    }

    #[test]
    fn a_journal_has_one_writer_and_a_fresh_one_forgets() {
        let path = journal_of("journal-busy");
        let mut journal = Journal::open(&path, false).expect("begun");
        journal.note(&point(1), &Ok(figures(1))).expect("noted");
        for fresh in [false, true] {
            let refused = Journal::open(&path, fresh).expect_err("it is being written");
            assert!(matches!(refused, JournalError::Busy { .. }), "{refused}");
        }
        drop(journal);
        assert_eq!(reopened(&path, false).done.len(), 1);
        // It forgets when it begins, and no sooner.
        assert_eq!(reopened(&path, true).done.len(), 0);
        assert_eq!(reopened(&path, false).done.len(), 1);
        let mut journal = reopened(&path, true);
        journal.begin().expect("begun");
        let refused = Journal::open(&path, false).expect_err("the new one is being written");
        assert!(matches!(refused, JournalError::Busy { .. }), "{refused}");
        drop(journal);
        assert_eq!(reopened(&path, false).done.len(), 0);
        std::fs::remove_file(&path).expect("ours");
    }

    #[test]
    fn what_cannot_be_made_anew_is_kept() {
        let path = journal_of("journal-kept");
        let mut journal = Journal::open(&path, false).expect("begun");
        journal.note(&point(1), &Ok(figures(1))).expect("noted");
        drop(journal);
        let mut draft = path.clone().into_os_string();
        draft.push(ENDING);
        let draft = PathBuf::from(draft);
        std::fs::write(&draft, "somebody's").expect("written");

        let mut fresh = reopened(&path, true);
        let refused = fresh.begin().expect_err("a new one cannot be made").to_string();
        assert!(refused.contains("terrace-partial is in the way"), "{refused}");
        drop(fresh);
        assert_eq!(std::fs::read(&draft).expect("there"), b"somebody's");
        assert_eq!(reopened(&path, false).done.len(), 1);

        // What a kill left of a new one is no hindrance.
        std::fs::write(&draft, &line_of(&header()).expect("a line")[..9]).expect("written");
        let mut fresh = reopened(&path, true);
        fresh.note(&point(2), &Ok(figures(2))).expect("noted");
        drop(fresh);
        assert!(!draft.exists());
        let again = reopened(&path, false);
        assert_eq!((again.done.len(), again.done.get(&point(2))), (1, Some(&figures(2))));
        std::fs::remove_file(&path).expect("ours");
    }

    #[test]
    fn a_file_of_somebody_s_and_a_journal_that_is_not_begun_are_left_as_they_are() {
        let path = journal_of("journal-foreign");
        let other = "{\"schema\":1,\"kind\":\"terrace.run\"}\n";
        for text in ["notes of mine", "notes\nof mine\n", "\n\n", other] {
            for fresh in [false, true] {
                std::fs::write(&path, text).expect("written");
                let refused = Journal::open(&path, fresh).expect_err("refused");
                assert!(matches!(refused, JournalError::Foreign { .. }), "{text}: {refused}");
                assert!(refused.to_string().contains("move the file away"), "{refused}");
                assert_eq!(std::fs::read_to_string(&path).expect("there"), text);
            }
        }
        std::fs::remove_file(&path).expect("ours");
        drop(Journal::open(&path, false).expect("a new one"));
        assert!(!path.exists(), "nothing was begun");

        // A line that a kill left without its end, and a header.
        let first = line_of(&header()).expect("a line");
        let cut = [&first[..], b"{\"point\""].concat();
        for (text, fresh) in [(&cut[..], false), (&cut[..], true), (&first[..20], false)] {
            std::fs::write(&path, text).expect("written");
            drop(reopened(&path, fresh));
            assert_eq!(std::fs::read(&path).expect("there"), text);
            reopened(&path, fresh).begin().expect("begun");
            assert_eq!(std::fs::read(&path).expect("there"), first);
        }
        std::fs::remove_file(&path).expect("ours");
    }

    #[test]
    fn a_foreign_file_and_another_version_are_refused() {
        let refused =
            |text: &str| read(Path::new("j"), text.as_bytes()).expect_err("refused").to_string();
        assert!(refused("hello\n").contains("j:1: is no journal"));
        let other = serde_json::to_string(&Header { version: "0.0.0".into(), ..header() });
        assert!(refused(&(other.expect("JSON") + "\n")).contains("another version"));
        let ours = serde_json::to_string(&header()).expect("JSON");
        let short = refused(&format!("{ours}\n{{\"point\":{{}},\"figures\":[1]}}\n"));
        assert!(short.contains("j:2: 1 figures"), "{short}");
    }
}
