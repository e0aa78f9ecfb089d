//! An importer as a source: counted, without fetches, and refused where it holds
//! nothing.

use std::path::{Path, PathBuf};

use super::{Format, Importer, bad};
use crate::error::SimError;
use crate::exact::{Batch, Source};
use crate::trace::summary::{Fate, Notes, Summary};

/// What an importer reads, counted on the way.
pub(super) struct Imported<I> {
    importer: I,
    file: PathBuf,
    summary: Summary,
    /// Fetches that were left out here.
    fetches: u64,
    keeps_fetches: bool,
    may_be_empty: bool,
    /// Why there is no more, where something came before it.
    failed: Option<SimError>,
}

impl<I: Importer> Imported<I> {
    pub(super) fn new(importer: I, file: &Path, format: Format) -> Self {
        Self {
            importer,
            file: file.to_owned(),
            summary: Summary::new(format),
            fetches: 0,
            keeps_fetches: false,
            may_be_empty: false,
            failed: None,
        }
    }

    pub(super) fn boxed<'a>(importer: I, file: &Path, format: Format) -> Box<dyn Source + 'a>
    where
        I: 'a,
    {
        Box::new(Self::new(importer, file, format))
    }

    /// Fetches are handed on.
    pub(super) fn with_fetches(mut self) -> Self {
        self.keeps_fetches = true;
        self
    }

    /// An end without an access is no error.
    pub(super) fn may_be_empty(mut self) -> Self {
        self.may_be_empty = true;
        self
    }
}

impl<I: Importer> Source for Imported<I> {
    fn describe(&self) -> String {
        self.importer.describe()
    }

    fn next(&mut self, batch: &mut Batch) -> Result<bool, SimError> {
        loop {
            if let Some(error) = self.failed.take() {
                return Err(error);
            }
            // What is left of the batch before was handed on.
            batch.clear();
            let more = match self.importer.next(batch) {
                // What was read before it comes first.
                Err(error) if !batch.accesses.is_empty() || !batch.io.is_empty() => {
                    self.failed = Some(error);
                    true
                }
                other => other?,
            };
            if !more {
                if self.summary.accesses() == 0 && !self.may_be_empty {
                    return Err(bad(&self.file, 0, self.importer.nothing()).into());
                }
                return Ok(false);
            }
            if !self.keeps_fetches {
                let before = batch.accesses.len();
                batch.accesses.retain(|access| !access.is_fetch());
                self.fetches += (before - batch.accesses.len()) as u64;
            }
            if !batch.accesses.is_empty() || !batch.events.is_empty() || !batch.io.is_empty() {
                self.summary.count(batch);
                return Ok(true);
            }
        }
    }

    fn has_long_turns(&self) -> bool {
        true
    }

    fn summary(&self) -> Option<Summary> {
        let mut notes = Notes::default();
        self.importer.tell(&mut notes);
        let what = "instruction fetches; their instructions are counted with the accesses";
        notes.counted(Fate::Dropped, self.fetches, what);
        Some(Summary { notes: notes.into_vec(), ..self.summary.clone() })
    }
}
