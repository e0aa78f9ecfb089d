//! As much of a trace as can be read: recording was interrupted, or the file is damaged.

use std::sync::{Arc, OnceLock};

use super::summary::Summary;
use crate::error::SimError;
use crate::exact::{Batch, Source};

/// Why a trace was not read to its end, once that is known.
pub type Cut = Arc<OnceLock<String>>;

/// A source that ends where another fails.
pub struct Partial {
    source: Box<dyn Source>,
    cut: Cut,
    /// Whether anything was read.
    any: bool,
    ended: bool,
}

impl Partial {
    /// Reads a source as far as it goes.
    pub fn new(source: Box<dyn Source>, cut: Cut) -> Self {
        Self { source, cut, any: false, ended: false }
    }
}

impl Source for Partial {
    fn describe(&self) -> String {
        self.source.describe()
    }

    fn has_long_turns(&self) -> bool {
        self.source.has_long_turns()
    }

    fn summary(&self) -> Option<Summary> {
        self.source.summary()
    }

    fn next(&mut self, batch: &mut Batch) -> Result<bool, SimError> {
        if self.ended {
            return Ok(false);
        }
        match self.source.next(batch) {
            Err(error) if self.any => {
                // Another reader of the same trace may have said the same.
                let _ = self.cut.set(error.to_string());
                batch.clear();
                self.ended = true;
                Ok(false)
            }
            Ok(true) => {
                self.any |= !batch.accesses.is_empty() || !batch.io.is_empty();
                Ok(true)
            }
            other => other,
        }
    }
}
