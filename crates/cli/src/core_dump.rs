//! `terrace core`: completes core dumps of programs that ran under `terrace run`.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use rustix::fs::SeekFrom;
use serde::Serialize;
use terrace_core::Bytes;
use terrace_dump::content::Contents;
use terrace_dump::survey::Pages;
use terrace_dump::tables::{SpillFile, Tables};
use terrace_dump::write::WriteError;
use terrace_dump::{Error, Image, Lost, Missing, PAGE, Sink, Source, Survey, survey, write};

use crate::failure::Failure;
use crate::output::{self, Files, Kind, Output, count};

/// Ranges of what is missing that text for people shows.
const SHOWN: usize = 8;

/// Complete a core dump of a program that ran under `terrace run`.
///
/// Pages that were not in DRAM read as zeros in a dump, though most of them are in it: in the
/// memory of Terrace's store. They are put where they belong. What cannot be brought back (it was
/// in a spill file, or a debugger left it out) is listed, and cannot be read in the completed
/// dump, where it would have been zeros. Exit code 1 if there is such.
///
/// Without `--output` it only says what is absent, and what can be brought back.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: terrace core core --output core.full && gdb ./app core.full")]
pub(crate) struct Args {
    /// The core dump, of the kernel or of gcore.
    file: PathBuf,

    /// Where the completed one goes.
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
}

#[derive(Serialize)]
struct Document {
    file: PathBuf,
    /// The process, as it knew itself.
    process: u64,
    /// Whether a debugger has made the dump.
    by_debugger: bool,
    /// Whether Terrace had put the program on plain memory before.
    plain: bool,
    /// Whether a fork was under way.
    forking: bool,
    pages: Pages,
    restored: Bytes,
    missing: Vec<Missing>,
    output: Option<PathBuf>,
    /// Whether what is missing cannot be read in the output; else it reads as zeros.
    #[serde(skip_serializing_if = "Option::is_none")]
    marked: Option<bool>,
}

impl Args {
    pub(crate) fn execute(self, json: bool) -> Result<ExitCode, Failure> {
        let failure = |error: Error| explain(&self.file, &error);
        let source = Dump::open(&self.file)?;
        let image = Image::open(&source).map_err(failure)?;
        let tables = Tables::find(&image).map_err(failure)?;
        let spill = tables.spill.and_then(|spill| open_spill(&spill));
        let contents = Contents {
            image: &image,
            tables: &tables,
            spill: spill.as_ref().map(|file| file as &dyn Source),
        };
        let found = survey(&contents).map_err(failure)?;
        let marked = match &self.output {
            Some(path) => Some(self.write(path, &contents, &found)?),
            None => None,
        };
        let document = Document {
            file: self.file,
            process: tables.process,
            by_debugger: image.is_by_debugger(),
            plain: tables.over,
            forking: tables.forking,
            pages: found.pages,
            restored: Bytes(found.pages.restored() * PAGE),
            missing: found.missing,
            output: self.output,
            marked,
        };
        let text = if json { output::json("terrace.core", &document)? } else { document.to_text() };
        // The dump itself may be what goes to stdout.
        if document.output.as_deref().is_some_and(|path| !is_file(path)) {
            output::show(&text);
        } else {
            output::print(&text)?;
        }
        Ok(ExitCode::from(u8::from(document.pages.missing > 0)))
    }

    fn write(
        &self,
        path: &Path,
        contents: &Contents<'_, Dump>,
        found: &Survey,
    ) -> Result<bool, Failure> {
        let mut files = Files::new();
        files.reads("FILE", &self.file);
        let mut out = ToOutput(files.writes("--output", path, Kind::Whole)?);
        output::remove_when_interrupted();
        let marked = match write(contents, found, &mut out) {
            Ok(marked) => marked,
            Err(WriteError::Read(error)) => return Err(explain(&self.file, &error)),
            Err(WriteError::Write(error)) => return Err(out.0.failure(&error)),
        };
        out.0.flush().map_err(|error| out.0.failure(&error))?;
        out.0.complete()?;
        Ok(marked)
    }
}

fn is_file(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|facts| facts.is_file())
}

/// An error of a dump's, with its name: what cannot be read has failed, the rest is bad input.
fn explain(file: &Path, error: &Error) -> Failure {
    let said = format!("{}: {error}", file.display());
    if matches!(error, Error::Io(_)) { Failure::Failed(said) } else { Failure::BadInput(said) }
}

/// A dump's file, which may have holes.
struct Dump(File);

impl Dump {
    fn open(path: &Path) -> Result<Self, Failure> {
        let bad = |e: io::Error| Failure::bad_input(format!("{}: {e}", path.display()));
        // To open a pipe would wait for somebody who writes to it.
        if !fs::metadata(path).map_err(bad)?.is_file() {
            return Err(Failure::bad_input(format!("{}: not a regular file", path.display())));
        }
        File::open(path).map(Self).map_err(bad)
    }
}

impl Source for Dump {
    fn size(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }
    fn read_at(&self, at: u64, to: &mut [u8]) -> io::Result<()> {
        self.0.read_exact_at(to, at)
    }
    fn next_data(&self, at: u64) -> io::Result<u64> {
        match rustix::fs::seek(&self.0, SeekFrom::Data(at)) {
            Ok(data) => Ok(data),
            // Nothing but a hole from there on.
            Err(rustix::io::Errno::NXIO) => self.size(),
            // A file system without holes.
            Err(_) => Ok(at),
        }
    }
}

/// The spill file of a process that still runs, as that of a dump which a debugger has made may: it
/// has no name. `None` if it is gone, or the process is another by now.
fn open_spill(spill: &SpillFile) -> Option<File> {
    let SpillFile { process, thread, descriptor, identity } = spill;
    let file = File::open(format!("/proc/{process}/task/{thread}/fd/{descriptor}")).ok()?;
    let facts = file.metadata().ok()?;
    ((facts.dev(), facts.ino()) == *identity).then_some(file)
}

struct ToOutput(Output);

impl Sink for ToOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all(bytes)
    }
    fn skip(&mut self, bytes: u64) -> io::Result<()> {
        self.0.skip(bytes)
    }
}

/// Why something is missing, in words.
fn reason(why: Lost) -> &'static str {
    match why {
        Lost::Spilled => "it was in the spill file, which is gone",
        Lost::Damaged => "what holds it is not in the dump, or is damaged",
        Lost::Unmapped => {
            "its address is not in the dump (it was being moved, or this dump is a completed one)"
        }
        Lost::Debugger => "gdb leaves a mapping at its first absent page, and stopped before it",
    }
}

impl Document {
    fn to_text(&self) -> String {
        let pages = &self.pages;
        let mut text = match &self.output {
            Some(output) => format!("{}: {} completed", output.display(), self.file.display()),
            None => self.file.display().to_string(),
        };
        let _ = write!(text, ": {} pages were absent", count(pages.restored() + pages.missing));
        let can = if self.output.is_some() { "are in their place" } else { "can be brought back" };
        let _ = writeln!(text, ", {} of them ({}) {can}", count(pages.restored()), self.restored);
        let rows = [
            ("compressed", pages.compressed),
            ("incompressible", pages.raw),
            ("same-filled", pages.same),
            ("on their way out", pages.staged),
            ("spilled", pages.spilled),
            ("zeros", pages.zero),
            ("just arrived", pages.arrived),
            ("left out by the dump", pages.left_out),
            ("missing", pages.missing),
        ];
        let rows: Vec<_> =
            rows.iter().filter(|(_, n)| *n > 0).map(|(name, n)| (*name, count(*n))).collect();
        text += &output::facts("  ", &rows);
        for Missing { start, end, why } in self.missing.iter().take(SHOWN) {
            let size = Bytes(end - start);
            let _ = writeln!(text, "  missing {start:x}-{end:x}, {size}: {}", reason(*why));
        }
        if let Some(more) = self.missing.len().checked_sub(SHOWN).filter(|&more| more > 0) {
            let _ = writeln!(text, "  and {} more ranges (--json has all)", count(more as u64));
        }
        let notes = [
            (self.plain, "Terrace had put the program on plain memory before: nothing was absent"),
            (
                pages.arrived > 0 && pages.restored() + pages.missing == 0,
                "all that was absent is there: so it is in a dump that was completed before",
            ),
            (
                self.forking,
                "a fork was under way: a page that had just come in, and was all zeros, is as it \
                 was before",
            ),
            (
                self.marked == Some(false),
                "what is missing reads as zeros: there are too many ranges to mark them",
            ),
        ];
        for (_, note) in notes.iter().filter(|(holds, _)| *holds) {
            let _ = writeln!(text, "  {note}");
        }
        text
    }
}
