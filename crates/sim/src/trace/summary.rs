//! What was read from a trace, and what of it was not handed on as it was.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use super::import::Format;
use super::io::IoRecord;
use crate::exact::Batch;

/// What became of something that is not an access of the trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fate {
    /// It is not the format's, and was passed over.
    Skipped,
    /// It is the format's, and has no place in a trace of accesses.
    Dropped,
    /// It was made into something else.
    Folded,
}

impl Fate {
    fn name(self) -> &'static str {
        match self {
            Self::Skipped => "skipped",
            Self::Dropped => "dropped",
            Self::Folded => "folded",
        }
    }
}

/// Something that was not handed on as it was.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Note {
    /// What became of it.
    pub fate: Fate,
    /// What it was, and where it is not plain what became of it.
    pub what: &'static str,
    /// How many there were; nothing for a column as a whole.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    /// Whether it is of calls for I/O, and nothing to whoever looks at accesses alone.
    #[serde(skip)]
    pub of_calls: bool,
}

/// What was read from a trace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Summary {
    /// The trace's format.
    pub format: &'static str,
    /// Loads.
    pub loads: u64,
    /// Stores.
    pub stores: u64,
    /// Instructions, those that make the accesses included.
    pub instructions: u64,
    /// Calls for I/O.
    #[serde(skip_serializing_if = "is_zero")]
    pub calls: u64,
    /// Accesses of each thread.
    pub threads: BTreeMap<u32, u64>,
    /// What was skipped, dropped or folded.
    pub notes: Vec<Note>,
}

impl Summary {
    pub(super) fn new(format: Format) -> Self {
        Self {
            format: format.name(),
            loads: 0,
            stores: 0,
            instructions: 0,
            calls: 0,
            threads: BTreeMap::new(),
            notes: Vec::new(),
        }
    }

    /// Accesses.
    pub fn accesses(&self) -> u64 {
        self.loads + self.stores
    }

    pub(super) fn count(&mut self, batch: &Batch) {
        let (mut data, mut stores) = (0, 0);
        for access in &batch.accesses {
            data += u64::from(access.is_data());
            stores += u64::from(access.is_store());
            self.instructions += access.counted();
        }
        let is_call = |record: &&IoRecord| matches!(record, IoRecord::Call { .. });
        self.calls += batch.io.iter().filter(is_call).count() as u64;
        self.loads += data - stores;
        self.stores += stores;
        if data > 0 {
            *self.threads.entry(batch.thread).or_default() += data;
        }
    }

    /// The notes in one line; nothing where everything was handed on as it was.
    pub fn line(&self) -> Option<String> {
        joined(self.notes.iter())
    }

    /// The same without what is of calls for I/O.
    pub fn line_of_accesses(&self) -> Option<String> {
        joined(self.notes.iter().filter(|note| !note.of_calls))
    }
}

fn joined<'a>(notes: impl Iterator<Item = &'a Note>) -> Option<String> {
    let notes: Vec<String> = notes.map(ToString::to_string).collect();
    (!notes.is_empty()).then(|| notes.join("; "))
}

// The form that serde asks for.
#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_zero(count: &u64) -> bool {
    *count == 0
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.fate.name())?;
        if let Some(count) = self.count {
            write!(f, " {count}")?;
        }
        write!(f, " {}", self.what)
    }
}

/// Notes as an importer makes them.
#[derive(Debug, Default)]
pub(super) struct Notes(Vec<Note>);

impl Notes {
    /// Something of which there were so many; nothing if there was none.
    pub(super) fn counted(&mut self, fate: Fate, count: u64, what: &'static str) {
        if count > 0 {
            self.0.push(Note { fate, what, count: Some(count), of_calls: false });
        }
    }

    /// Calls for I/O that were dropped, as so many.
    pub(super) fn calls(&mut self, count: u64, what: &'static str) {
        if count > 0 {
            let fate = Fate::Dropped;
            self.0.push(Note { fate, what, count: Some(count), of_calls: true });
        }
    }

    /// Something as a whole, if it was there.
    pub(super) fn whole(&mut self, fate: Fate, there: bool, what: &'static str) {
        if there {
            self.0.push(Note { fate, what, count: None, of_calls: false });
        }
    }

    pub(super) fn into_vec(self) -> Vec<Note> {
        self.0
    }
}
