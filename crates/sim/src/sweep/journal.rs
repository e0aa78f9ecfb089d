//! What a sweep has done already, in a file that survives a kill.
//!
//! One JSON value a line: first who wrote it, then a line for each point. Lines
//! are written whole and flushed to the disk; a line that a kill left without
//! its end is forgotten when the journal is opened again.

use std::collections::HashMap;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::point::{METRICS, Metric, Point, PointResult};

/// Version of the format.
const SCHEMA: u32 = 1;

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

/// Reads a journal's text: what is done, and how many of its bytes are whole
/// lines. `path` is for errors.
pub fn read(path: &Path, text: &[u8]) -> Result<(HashMap<Point, Vec<Metric>>, u64), JournalError> {
    let whole = text.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
    let mut done = HashMap::new();
    let bad = |line: usize, message: String| JournalError::Line {
        path: path.to_owned(),
        line: line + 1,
        message,
    };
    for (number, line) in text[..whole].split(|&byte| byte == b'\n').enumerate() {
        if line.is_empty() {
            continue;
        }
        if number == 0 {
            let found: Header = serde_json::from_slice(line)
                .map_err(|e| bad(number, format!("is no journal of a sweep: {e}")))?;
            let ours = header();
            if (found.schema, &found.version, &found.metrics)
                != (ours.schema, &ours.version, &ours.metrics)
            {
                return Err(JournalError::Version {
                    path: path.to_owned(),
                    found: format!("schema {}, {}", found.schema, found.version),
                    ours: format!("schema {}, {}", ours.schema, ours.version),
                });
            }
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

impl Journal {
    /// Opens a journal, or begins one; if it is to be `fresh`, what it says is forgotten. Nobody
    /// else can open it as long as this is there.
    pub fn open(path: &Path, fresh: bool) -> Result<Self, JournalError> {
        let io = |source| JournalError::Io { path: path.to_owned(), source };
        let mut file =
            OpenOptions::new().read(true).append(true).create(true).open(path).map_err(io)?;
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => {
                return Err(JournalError::Busy { path: path.to_owned() });
            }
            // There are file systems without locks.
            Ok(()) | Err(TryLockError::Error(_)) => {}
        }
        if fresh {
            file.set_len(0).map_err(io)?;
        }
        let mut text = Vec::new();
        file.read_to_end(&mut text).map_err(io)?;
        let (done, whole) = read(path, &text)?;
        file.set_len(whole).map_err(io)?;
        let mut journal = Self { path: path.to_owned(), file, done };
        if whole == 0 {
            journal.line(&header())?;
        }
        Ok(journal)
    }

    fn line(&mut self, value: &impl Serialize) -> Result<(), JournalError> {
        let io = |source| JournalError::Io { path: self.path.clone(), source };
        let mut text = serde_json::to_vec(value).map_err(|e| io(e.into()))?;
        text.push(b'\n');
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
        assert_eq!(reopened(&path, true).done.len(), 0);
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
