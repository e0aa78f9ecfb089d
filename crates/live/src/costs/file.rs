//! The file of measured prices: its format, its place, and of which machine it is.
//!
//! ```toml
//! costs = 1                 # the version of this format
//!
//! [machine]                 # where it was measured
//! processor = "AMD EPYC 9B45"
//! processors = 2
//! kernel = "6.12.94"
//! memory = "24GiB"
//! huge-pages = "madvise"    # /sys/kernel/mm/transparent_hugepage/enabled
//!
//! [measured]
//! user-fault = "7000ns"
//! …
//! ```

use core::fmt;
use core::str::FromStr;
use std::env;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use terrace_core::machine::{parse_document, refuse_cut};
use terrace_core::{Bytes, BytesPerSecond, MachineError, Nanos};

use super::Measured;
use crate::doctor::facts::Facts;

/// The longest time that is believed of an operation on one page. The slowest takes some ten
/// microseconds; on a machine that is emulated, some hundred times that.
const LONGEST: Nanos = Nanos::SECOND;
/// The most bytes a second that are believed of copying: a hundred times what a processor's caches do.
const MOST_COPIED: f64 = 1e14;

/// The version of the format.
const VERSION: u32 = 1;

/// A file of measured prices.
#[derive(Clone, Debug, PartialEq)]
pub struct CostsFile {
    /// Where they were measured.
    pub machine: Fingerprint,
    /// The prices.
    pub measured: Measured,
}

/// What prices depend on, and what therefore has to be the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fingerprint {
    /// The processor's model.
    pub processor: String,
    /// Processors that are online.
    pub processors: u32,
    /// The kernel's release.
    pub kernel: String,
    /// Memory, in whole GiB: how much of it the kernel keeps for itself differs from start
    /// to start.
    pub memory: Text<Bytes>,
    /// Which memory the kernel backs by transparent huge pages: what a first touch takes, and how
    /// often walks of the page table are waited for, depends on it. In files from before it was
    /// written down it is unknown, and so another one.
    #[serde(default = "unknown", rename(deserialize = "huge-pages"))]
    pub huge_pages: String,
}

/// The setting where a file does not say it.
fn unknown() -> String {
    "unknown".to_owned()
}

impl Fingerprint {
    /// Of the machine that these facts are of.
    pub fn of(facts: &Facts) -> Self {
        let gib = facts.memory.total.as_f64() / Bytes::gib(1).as_f64();
        Self {
            processor: facts.cpu.model.clone(),
            processors: facts.cpu.online,
            kernel: facts.kernel.release.clone(),
            memory: Text(Bytes::gib(gib.round() as u64)),
            huge_pages: facts
                .huge_pages
                .as_ref()
                .map_or_else(|| "none".to_owned(), |huge| huge.enabled.clone()),
        }
    }

    /// Of this machine.
    pub fn of_this_machine() -> Self {
        Self::of(&Facts::read(Path::new("/")))
    }

    /// In what another machine differs from this one; `None` if in nothing.
    pub fn difference(&self, here: &Self) -> Option<String> {
        let mut found = Vec::new();
        let mut compare = |what: &str, there: &dyn fmt::Display, here: &dyn fmt::Display| {
            let (there, here) = (there.to_string(), here.to_string());
            if there != here {
                found.push(format!("{what} `{there}`, here `{here}`"));
            }
        };
        compare("processor", &self.processor, &here.processor);
        compare("processors", &self.processors, &here.processors);
        compare("kernel", &self.kernel, &here.kernel);
        compare("memory", &self.memory.0, &here.memory.0);
        compare("huge pages", &self.huge_pages, &here.huge_pages);
        (!found.is_empty()).then(|| found.join("; "))
    }
}

/// What is known of the prices here.
#[derive(Clone, Debug, PartialEq)]
pub enum Known {
    /// They were measured on this machine as it is.
    Measured(Measured),
    /// They were measured, but on another machine or kernel; in what that differs.
    Stale(String),
    /// They were never measured.
    Nothing,
}

/// Why a file of prices cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CostsError {
    /// It is there, and cannot be read.
    Unreadable(PathBuf, String),
    /// It can be read, and is no text.
    NoText(PathBuf, String),
    /// Its content is wrong: file, line and field.
    Bad(MachineError),
}

impl fmt::Display for CostsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable(path, why) | Self::NoText(path, why) => {
                write!(f, "{}: {why}", path.display())
            }
            Self::Bad(error) => write!(f, "{error}"),
        }
    }
}

impl core::error::Error for CostsError {}

/// A quantity that is written as text with its unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Text<T>(pub T);

impl<'de, T: FromStr<Err: fmt::Display>> Deserialize<'de> for Text<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map(Self).map_err(de::Error::custom)
    }
}

impl<T: fmt::Display> Serialize for Text<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    costs: u32,
    machine: Fingerprint,
    measured: WrittenCosts,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct WrittenCosts {
    user_fault: Text<Nanos>,
    bring_in: Text<Nanos>,
    take_out: Text<Nanos>,
    compress: Text<Nanos>,
    decompress: Text<Nanos>,
    copy_bandwidth: Text<BytesPerSecond>,
    parallelism: f64,
    interference: f64,
}

impl Written {
    fn check(&self) -> Result<(), (String, String)> {
        let bad = |field: &str, message: &str| Err((field.to_owned(), message.to_owned()));
        let costs = &self.measured;
        if self.costs != VERSION {
            return bad("costs", "this version reads version 1 only");
        }
        if self.machine.processors == 0 {
            return bad("machine.processors", "must be at least 1");
        }
        for (field, time) in [
            ("measured.user-fault", costs.user_fault.0),
            ("measured.compress", costs.compress.0),
            ("measured.decompress", costs.decompress.0),
        ] {
            if time.is_zero() {
                return bad(field, "must be above zero");
            }
        }
        for (field, time) in [
            ("measured.user-fault", costs.user_fault.0),
            ("measured.bring-in", costs.bring_in.0),
            ("measured.take-out", costs.take_out.0),
            ("measured.compress", costs.compress.0),
            ("measured.decompress", costs.decompress.0),
        ] {
            if time > LONGEST {
                return bad(field, "must be at most 1s: it is of one page");
            }
        }
        let copied = costs.copy_bandwidth.0.get();
        if !(copied > 0.0 && copied <= MOST_COPIED) {
            return bad("measured.copy-bandwidth", "must be above zero, and at most 100TB/s");
        }
        if !(1.0..=1000.0).contains(&costs.parallelism) {
            return bad("measured.parallelism", "must be 1 to 1000 loads in flight");
        }
        if !(0.0..=10.0).contains(&costs.interference) {
            return bad("measured.interference", "must be a share, 0 to 10");
        }
        Ok(())
    }
}

impl CostsFile {
    /// Where it is for this user: `terrace/costs.toml` in `$XDG_STATE_HOME`, else in
    /// `~/.local/state`; `None` where there is neither.
    pub fn place() -> Option<PathBuf> {
        let absolute =
            |name: &str| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let state = absolute("XDG_STATE_HOME")
            .or_else(|| absolute("HOME").map(|home| home.join(".local/state")))?;
        Some(state.join("terrace/costs.toml"))
    }

    /// Whether a text is meant to be such a file: it says so before its first table.
    pub fn is_meant(text: &str) -> bool {
        text.lines()
            .map(str::trim)
            .take_while(|line| !line.starts_with('['))
            .any(|line| line.split_once('=').is_some_and(|(key, _)| key.trim() == "costs"))
    }

    /// Reads a file's text; `path` is for errors.
    pub fn parse(path: &str, text: &str) -> Result<Self, MachineError> {
        refuse_cut(path, text)?;
        let written: Written = parse_document(path, text, Written::check)?;
        let costs = written.measured;
        Ok(Self {
            machine: written.machine,
            measured: Measured {
                user_fault: costs.user_fault.0,
                bring_in: costs.bring_in.0,
                take_out: costs.take_out.0,
                compress: costs.compress.0,
                decompress: costs.decompress.0,
                copy_bandwidth: costs.copy_bandwidth.0,
                parallelism: costs.parallelism,
                interference: costs.interference,
            },
        })
    }

    /// Reads a file; `None` if there is none.
    pub fn read(path: &Path) -> Result<Option<Self>, CostsError> {
        let text = match terrace_core::read_text(path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            // The kernel let us read it: what is wrong is the content.
            Err(error) if error.kind() == io::ErrorKind::Other => {
                return Err(CostsError::NoText(path.to_owned(), error.to_string()));
            }
            Err(error) => return Err(CostsError::Unreadable(path.to_owned(), error.to_string())),
        };
        Self::parse(&path.display().to_string(), &text).map(Some).map_err(CostsError::Bad)
    }

    /// What this user's file says of a machine.
    pub fn known(here: &Fingerprint) -> Result<Known, CostsError> {
        let Some(path) = Self::place() else { return Ok(Known::Nothing) };
        Ok(Self::read(&path)?.map_or(Known::Nothing, |file| match file.machine.difference(here) {
            None => Known::Measured(file.measured),
            Some(difference) => Known::Stale(difference),
        }))
    }

    /// The file's text.
    pub fn text(&self) -> String {
        let (machine, costs) = (&self.machine, &self.measured);
        format!(
            "# Written by `terrace calibrate`: what Terrace's mechanisms cost on this machine.\n\
             costs = {VERSION}\n\n\
             [machine]\n\
             processor = {}\n\
             processors = {}\n\
             kernel = {}\n\
             memory = \"{}GiB\"\n\
             huge-pages = {}\n\n\
             [measured]\n\
             user-fault = \"{}ns\"         # resolved by another thread, without content\n\
             bring-in = \"{}ns\"           # UFFDIO_COPY of a page, without the copy\n\
             take-out = \"{}ns\"           # UFFDIO_MOVE of a page\n\
             compress = \"{}ns\"           # a page\n\
             decompress = \"{}ns\"         # a page\n\
             copy-bandwidth = \"{:.0}B/s\"\n\
             parallelism = {:.2}           # loads in flight, one processor\n\
             interference = {:.3}          # what a thread loses beside a manager's\n",
            quoted(&machine.processor),
            machine.processors,
            quoted(&machine.kernel),
            machine.memory.0.get() >> 30,
            quoted(&machine.huge_pages),
            costs.user_fault.get(),
            costs.bring_in.get(),
            costs.take_out.get(),
            costs.compress.get(),
            costs.decompress.get(),
            costs.copy_bandwidth.get(),
            costs.parallelism,
            costs.interference
        )
    }
}

/// A TOML string.
fn quoted(text: &str) -> String {
    let kept: String = text.chars().filter(|c| !c.is_control()).collect();
    format!("\"{}\"", kept.replace('\\', "\\\\").replace('"', "\\\""))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::costs::tests::example;

    fn file() -> CostsFile {
        let machine = Fingerprint {
            processor: "A \"fast\" one".into(),
            processors: 4,
            kernel: "6.12.94".into(),
            memory: Text(Bytes::gib(24)),
            huge_pages: "madvise".into(),
        };
        CostsFile { machine, measured: example() }
    }

    #[test]
    fn what_is_written_is_what_is_read() {
        let file = file();
        assert_eq!(CostsFile::parse("costs.toml", &file.text()), Ok(file));
    }

    #[test]
    fn a_bad_file_is_told_with_its_line_and_field() {
        let text = file().text();
        for (from, to, line, field) in [
            ("costs = 1", "costs = 9", 2, "costs"),
            ("processors = 4", "processors = 0", 6, "machine.processors"),
            ("user-fault = \"7000ns\"", "user-fault = \"7000\"", 12, "measured.user-fault"),
            ("user-fault = \"7000ns\"", "user-fault = \"0ns\"", 12, "measured.user-fault"),
            ("user-fault = \"7000ns\"", "user-fault = \"99999999s\"", 12, "measured.user-fault"),
            ("compress = \"3000ns\"", "compress = \"2s\"", 15, "measured.compress"),
            ("copy-bandwidth = \"", "copy-bandwidth = \"99999", 17, "measured.copy-bandwidth"),
            ("parallelism = 7.00", "parallelism = 0.5", 18, "measured.parallelism"),
            ("interference = 0.250", "interference = nan", 19, "measured.interference"),
            ("compress = \"3000ns\"", "compres = \"3000ns\"", 15, "measured.compres"),
        ] {
            assert!(text.contains(from), "{from}");
            let error =
                CostsFile::parse("costs.toml", &text.replacen(from, to, 1)).expect_err("refused");
            assert_eq!((error.line, error.field.as_deref()), (line, Some(field)), "{error}");
        }
        let error = CostsFile::parse("costs.toml", "costs = 1").expect_err("it was cut");
        assert!(error.message.contains("its line has no end"), "{error}");
    }

    /// Prices of another machine are worse than none: they look measured.
    #[test]
    fn prices_of_another_machine_or_kernel_are_stale_and_say_why() {
        let there = file().machine;
        assert_eq!(there.difference(&there.clone()), None);
        let newer = Fingerprint { kernel: "6.18.1".into(), ..there.clone() };
        let why = there.difference(&newer).expect("stale");
        assert_eq!(why, "kernel `6.12.94`, here `6.18.1`");
        let other = Fingerprint { processors: 8, memory: Text(Bytes::gib(32)), ..there.clone() };
        let why = there.difference(&other).expect("stale");
        assert!(why.contains("processors `4`, here `8`") && why.contains("memory"), "{why}");
    }

    /// A first touch of a huge page takes some hundred times as long as one of a base page.
    #[test]
    fn prices_of_another_setting_of_huge_pages_are_stale_also_where_it_is_not_known() {
        let there = file().machine;
        let here = Fingerprint { huge_pages: "always".into(), ..there.clone() };
        let why = there.difference(&here).expect("stale");
        assert_eq!(why, "huge pages `madvise`, here `always`");
        let older = file().text().replace("huge-pages = \"madvise\"\n", "");
        let older = CostsFile::parse("costs.toml", &older).expect("it can be read").machine;
        let why = older.difference(&there).expect("stale");
        assert_eq!(why, "huge pages `unknown`, here `madvise`");
        let facts = Facts::read(Path::new("/"));
        let set = facts.huge_pages.as_ref().map_or("none", |huge| huge.enabled.as_str());
        assert_eq!(Fingerprint::of(&facts).huge_pages, set);
    }
}
