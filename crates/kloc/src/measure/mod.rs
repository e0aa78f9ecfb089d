//! What calls for I/O take on the running kernel: objects by slab cache, and time.
//!
//! | file | concept |
//! |---|---|
//! | `objects` | what calls allocate and free, by tracepoints |
//! | `times` | what calls take with everything in the caches |
//! | `slabs` | sizes of objects, as the kernel lists them |
//!
//! Both make the same calls, on files in a directory of their own and on the loopback device. What
//! the kernel does later or in other threads (write-back, commits of the journal, frees after a
//! grace period) is not among it. How many cache lines a call touches is not measured: no tracepoint
//! tells it. Lines of objects that are touched as a whole follow from their sizes.

mod objects;
mod slabs;
mod times;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::tracing::{Tracefs, TracingError};

/// Calls of a kind that are made in a row to count their objects.
pub const CALLS: usize = 64;

/// What was measured.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Measured {
    /// The kernel's release.
    pub kernel: String,
    /// Events a call, by call and by event; those of slab caches with the cache's name:
    /// `kmem_cache_alloc.dentry`.
    pub objects: BTreeMap<&'static str, BTreeMap<String, f64>>,
    /// Nanoseconds of a call: the least mean of several rounds.
    pub times: BTreeMap<&'static str, f64>,
    /// Bytes of an object, by slab cache; empty where the kernel does not tell.
    pub sizes: BTreeMap<String, u32>,
    /// Tracepoints that the kernel does not have.
    pub missing: Vec<&'static str>,
}

impl Measured {
    /// Objects of a slab cache that a call allocates; nothing if the call was not measured.
    pub fn allocated(&self, call: &str, cache: &str) -> Option<f64> {
        let of_call = self.objects.get(call)?;
        Some(of_call.get(&format!("kmem_cache_alloc.{cache}")).copied().unwrap_or(0.0))
    }
}

/// Why nothing was measured.
#[derive(Debug, thiserror::Error)]
pub enum MeasureError {
    /// The kernel's tracepoints cannot be read.
    #[error(transparent)]
    Tracing(#[from] TracingError),
    /// A call failed that should not.
    #[error("{0}: {1}")]
    Call(&'static str, io::Error),
    /// A file or a directory.
    #[error("{}: {source}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The trace buffer was too small.
    #[error("the kernel lost events of `{0}`: the machine is too busy")]
    Lost(&'static str),
}

/// A directory of ours, removed at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(directory: &Path) -> Result<Self, MeasureError> {
        // A name that nobody has: nothing of the user's is overwritten.
        let path = directory.join(format!("terrace-calibrate-{}", std::process::id()));
        match fs::create_dir(&path) {
            Ok(()) => Ok(Self(path)),
            Err(source) => Err(MeasureError::File { path, source }),
        }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // A directory that is left behind is no reason to fail.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Measures on the file system that a directory lies on. `progress` is told what comes next.
///
/// # Errors
///
/// Without root or tracefs, on a file system that cannot be written, and where events are lost.
pub fn measure(
    directory: &Path,
    progress: &mut dyn FnMut(&'static str),
) -> Result<Measured, MeasureError> {
    let tracefs = Tracefs::find()?;
    let scratch = Scratch::new(directory)?;
    let release = Path::new("/proc/sys/kernel/osrelease");
    let kernel = fs::read_to_string(release)
        .map_err(|source| MeasureError::File { path: release.to_owned(), source })?;
    let mut measured =
        Measured { kernel: kernel.trim().to_owned(), sizes: slabs::sizes(), ..Measured::default() };
    progress("objects");
    objects::measure(&tracefs, &scratch.0, &mut measured)?;
    progress("times");
    times::measure(&scratch.0, &mut measured)?;
    Ok(measured)
}
