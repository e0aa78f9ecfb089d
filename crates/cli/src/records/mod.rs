//! Recorded decisions: what `--record` writes and `terrace why` reads.
//!
//! The first line is the [`Header`], as JSON. What follows are [`Record`]s, in
//! one of two forms: JSON lines, so that other tools need no library (what
//! `terrace sim` writes), or [`packed`], for the live world, which tells far more.

mod packed;

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Take, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};
use terrace_core::{
    Bytes, ContextEvent, ContextId, Frequency, Nanos, PageNo, PageRef, PageSize, RegionId,
};
use terrace_economics::{Calibration, Decision, Mode};
use terrace_report::{AttachReport, Moment, RunReport};

use self::packed::{PackedReader, PackedWriter};

use crate::failure::Failure;

/// Version of the form in lines.
pub(crate) const SCHEMA: u32 = 1;
/// Version of the packed form.
pub(crate) const PACKED_SCHEMA: u32 = 5;
/// Those before: one in which decisions are JSON, one in which no regions come with them, and one in
/// which decisions on compaction lack the time of what it brings. In the last two, those decisions
/// cannot be read any more.
const OLD_PACKED_SCHEMAS: [u32; 3] = [2, 3, 4];

/// What is said of decisions that a recording lacks, with what helps: the ring holds some 35 000 of
/// each process, and they come too fast only if `terrace run` gets no processor meanwhile.
pub(crate) const NOT_RECORDED: &str =
    "not recorded: no processor was free in time; `-- nice PROGRAM` helps";

/// The longest line: a report of many processes with many regions.
const LINE: u64 = 64 << 20;

/// What the first line's `kind` is.
const KIND: &str = "terrace.records";

/// Where the decisions were taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum World {
    /// On a real program.
    Live,
    /// On a simulated machine.
    Sim,
}

/// The first line: what was run, where, and under which rules.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Header {
    /// Version of the format.
    pub(crate) schema: u32,
    /// Always [`KIND`]; tells the file from any other JSON.
    pub(crate) kind: String,
    /// Where the decisions were taken.
    pub(crate) world: World,
    /// The program with its arguments, or the simulated workload.
    pub(crate) program: Vec<String>,
    /// The policy's name.
    pub(crate) policy: String,
    /// What the economist did with its opinion.
    pub(crate) economist: Mode,
    /// The machine.
    pub(crate) machine: MachineFacts,
    /// What is known of a live run beyond that, if what it touches is recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) live: Option<LiveFacts>,
    /// Whether the kernel served the faults.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) kernel_engine: bool,
}

/// What a live run's recording begins with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct LiveFacts {
    /// DRAM that each process may use.
    pub(crate) budget: Bytes,
    /// What the first touch of a page takes there without Terrace.
    pub(crate) plain_fault: Nanos,
    /// What the mechanisms cost there.
    pub(crate) calibration: Calibration,
}

/// What a reader needs to know of the machine to understand the numbers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct MachineFacts {
    /// What it is called: a machine file's name, or the processor's.
    pub(crate) name: String,
    /// The clock whose cycles are the currency; `None` where it is not known.
    pub(crate) clock: Option<Frequency>,
    /// The tiers' names, fastest first: what the numbers of tiers mean.
    pub(crate) tiers: Vec<String>,
}

impl Header {
    /// A header of this version.
    pub(crate) fn new(
        world: World,
        program: Vec<String>,
        policy: String,
        economist: Mode,
        machine: MachineFacts,
    ) -> Self {
        Self {
            schema: SCHEMA,
            kind: KIND.to_owned(),
            world,
            program,
            policy,
            economist,
            machine,
            live: None,
            kernel_engine: false,
        }
    }

    /// The header of a live run's recording.
    pub(crate) fn of_live_run(self, live: LiveFacts) -> Self {
        Self { live: Some(live), ..self.packed() }
    }

    /// The same of a run whose faults the kernel serves.
    pub(crate) fn of_kernel_engine(self) -> Self {
        Self { kernel_engine: true, ..self.packed() }
    }

    /// The same of a recording in the packed form.
    pub(crate) fn packed(self) -> Self {
        Self { schema: PACKED_SCHEMA, ..self }
    }
}

/// Anything after the header.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "record", rename_all = "kebab-case")]
pub(crate) enum Record {
    /// A region as it was from then on; needed to find a page by its address.
    Region(RegionRecord),
    /// A decision.
    Decision {
        /// The process it is about.
        process: u32,
        /// The decision itself.
        decision: Box<Decision>,
    },
    /// Something happened to a file or a socket; what became of its members is not recorded.
    Context {
        /// What, to which, and when.
        event: ContextEvent,
    },
    /// A page that decisions are about is of a context from then on.
    PageOf {
        /// The page.
        page: PageRef,
        /// The file or the socket.
        context: ContextId,
    },
    /// Decisions that were taken faster than they could be written down.
    Lost {
        /// The process they were about.
        process: u32,
        /// How many.
        count: u64,
    },
    /// The figures at one moment.
    Moment {
        /// The figures.
        moment: Box<Moment>,
        /// What of each region's parts was in DRAM then.
        residency: Vec<Residency>,
    },
    /// The run is over: without this, the recording was not finished.
    End {
        /// What `terrace run` reports.
        report: Box<RunReport>,
    },
    /// The figures of programs whose pages stay mapped, at one moment.
    Attached {
        /// The figures.
        report: Box<AttachReport>,
        /// Whether it is over: without such a record, the recording was not finished.
        last: bool,
    },
    /// What a policy was told, packed ([`terrace_policy::packed`]); only in the
    /// packed form.
    Events {
        /// The process whose policy it was.
        process: u32,
        /// The next part of its events.
        bytes: Vec<u8>,
    },
    /// Decisions as they come out of a process ([`terrace_live::decide::event_ring`]), and where the
    /// regions lie that they are about. Written in the packed form alone; read back as one
    /// [`Record::Decision`] or [`Record::Region`] after the other.
    Decisions {
        /// The process they are about.
        process: u32,
        /// The next of them.
        bytes: Vec<u8>,
    },
    /// Events that happened faster than they could be written down.
    EventsLost {
        /// The process whose policy saw them.
        process: u32,
        /// How many.
        count: u64,
    },
}

/// A region's residency at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Residency {
    /// The process.
    pub(crate) process: u32,
    /// The region's first address.
    pub(crate) start: u64,
    /// What of its parts was in DRAM, percent, first address first.
    pub(crate) parts: Vec<u8>,
}

/// Where a region lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct RegionRecord {
    /// The process it is in.
    pub(crate) process: u32,
    /// Its number.
    pub(crate) region: RegionId,
    /// The address of its first byte.
    pub(crate) start: u64,
    /// How many pages it has.
    pub(crate) pages: u32,
    /// Their size.
    pub(crate) page_size: PageSize,
}

impl RegionRecord {
    /// The page that an address lies in.
    pub(crate) fn page_at(&self, address: u64) -> Option<PageRef> {
        let page = address.checked_sub(self.start)? >> self.page_size.shift();
        (page < u64::from(self.pages))
            .then_some(PageRef { region: self.region, page: PageNo(page as u32) })
    }

    /// The address of a page's first byte.
    pub(crate) fn address_of(&self, page: PageNo) -> u64 {
        self.start + (u64::from(page.0) << self.page_size.shift())
    }
}

/// Writes a file of recorded decisions.
pub(crate) struct Writer<W: Write> {
    form: WriterForm<W>,
}

enum WriterForm<W: Write> {
    Lines(W),
    Packed(PackedWriter<W>),
}

impl<W: Write> Writer<W> {
    /// Begins a file.
    pub(crate) fn new(out: W, header: &Header) -> io::Result<Self> {
        let (writer, begun) = Self::begin(out, header);
        begun.map(|()| writer)
    }

    /// Begins a file, and says how that went: a program that is recorded is not to suffer for it.
    pub(crate) fn begin(mut out: W, header: &Header) -> (Self, io::Result<()>) {
        let is_packed = header.schema == PACKED_SCHEMA;
        let begun = serde_json::to_writer(&mut out, header)
            .map_err(io::Error::from)
            .and_then(|()| out.write_all(b"\n"))
            .and_then(|()| if is_packed { out.flush() } else { Ok(()) });
        let form = if is_packed {
            WriterForm::Packed(PackedWriter::new(out))
        } else {
            WriterForm::Lines(out)
        };
        (Self { form }, begun)
    }

    /// Appends a record. Packed ones become visible to readers every second.
    pub(crate) fn write(&mut self, record: &Record) -> io::Result<()> {
        match &mut self.form {
            WriterForm::Packed(packed) => packed.write(record),
            WriterForm::Lines(out) => {
                serde_json::to_writer(&mut *out, record)?;
                out.write_all(b"\n")
            }
        }
    }

    /// What it is written to.
    pub(crate) fn get_mut(&mut self) -> &mut W {
        match &mut self.form {
            WriterForm::Packed(packed) => packed.get_mut(),
            WriterForm::Lines(out) => out,
        }
    }

    /// Makes everything written so far visible to readers.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        match &mut self.form {
            WriterForm::Packed(packed) => packed.flush(),
            WriterForm::Lines(out) => out.flush(),
        }
    }
}

/// Reads a recording, record by record: files may be larger than memory.
pub(crate) struct Reader<R: BufRead> {
    form: ReaderForm<R>,
    /// The file's first line.
    pub(crate) header: Header,
}

enum ReaderForm<R: BufRead> {
    Lines(Lines<R>),
    Packed(PackedReader<R>),
}

impl Reader<BufReader<Take<File>>> {
    /// Opens a file, as far as it goes now: a run that is under way may write it faster than
    /// it is read.
    pub(crate) fn open(path: &Path) -> Result<Self, Failure> {
        let name = path.display().to_string();
        let opened = File::open(path).and_then(|file| Ok((file.metadata()?, file)));
        let (facts, file) = opened.map_err(|e| Failure::bad_input(format!("{name}: {e}")))?;
        let length = if facts.is_file() { facts.len() } else { u64::MAX };
        Self::new(&name, BufReader::new(file.take(length)))
    }
}

impl<R: BufRead> Reader<R> {
    /// Reads the header. `name` is the file's, for errors.
    pub(crate) fn new(name: &str, input: R) -> Result<Self, Failure> {
        let mut lines = Lines { name: name.to_owned(), input, number: 0, text: String::new() };
        let begin = lines.input.fill_buf().unwrap_or_default();
        if terrace_sim::trace::format::is_meant(begin) {
            return Err(Failure::bad_input(format!(
                "{name}: is a trace of memory accesses, not a recording of decisions: `terrace \
                 sim`, `plan`, `convert` and `check` read it"
            )));
        }
        if !lines.advance()? {
            return Err(lines.bad("the file is empty"));
        }
        if !is_header(&lines.text) {
            return Err(lines.bad(&no_header(&lines.text)));
        }
        // The version is looked at before the rest, which may have changed with it.
        let version = serde_json::from_str::<serde_json::Value>(&lines.text)
            .ok()
            .and_then(|header| header.get("schema")?.as_u64());
        let known = |version: &u64| {
            let mut known = [SCHEMA, PACKED_SCHEMA].into_iter().chain(OLD_PACKED_SCHEMAS);
            known.any(|schema| u64::from(schema) == *version)
        };
        if let Some(version) = version.filter(|version| !known(version)) {
            let what = format!(
                "field `schema`: is {version}; this version of Terrace reads schemas {SCHEMA} to \
                 {PACKED_SCHEMA} only"
            );
            return Err(lines.bad(&what));
        }
        let header: Header = serde_json::from_str(&lines.text).map_err(|e| lines.bad_json(&e))?;
        let form = if header.schema == SCHEMA {
            ReaderForm::Lines(lines)
        } else {
            ReaderForm::Packed(PackedReader::new(name, lines.input)?)
        };
        Ok(Self { form, header })
    }
}

impl<R: BufRead> Iterator for Reader<R> {
    type Item = Result<Record, Failure>;

    fn next(&mut self) -> Option<Self::Item> {
        let lines = match &mut self.form {
            ReaderForm::Packed(packed) => return packed.next(),
            ReaderForm::Lines(lines) => lines,
        };
        loop {
            match lines.advance() {
                Ok(true) if lines.text.trim().is_empty() => {}
                Ok(true) => {
                    return Some(serde_json::from_str(&lines.text).map_err(|e| lines.bad_json(&e)));
                }
                Ok(false) => return None,
                Err(failure) => return Some(Err(failure)),
            }
        }
    }
}

/// A file's lines with their numbers, for errors that say where.
struct Lines<R: BufRead> {
    name: String,
    input: R,
    number: u64,
    text: String,
}

impl<R: BufRead> Lines<R> {
    /// Reads the next line into `text`; false at the end of the file.
    fn advance(&mut self) -> Result<bool, Failure> {
        self.text.clear();
        self.number += 1;
        let mut bytes = std::mem::take(&mut self.text).into_bytes();
        let read = (&mut self.input).take(LINE + 1).read_until(b'\n', &mut bytes);
        match read {
            Ok(length) if length as u64 > LINE => Err(self.bad("the line has no end")),
            Ok(length) => {
                self.text = String::from_utf8(bytes)
                    .map_err(|_| self.bad("not text, so not a recording of decisions"))?;
                Ok(length > 0)
            }
            Err(e) => Err(self.bad(&e.to_string())),
        }
    }

    fn bad(&self, what: &str) -> Failure {
        Failure::bad_input(format!("{}:{}: {what}", self.name, self.number))
    }

    fn bad_json(&self, error: &serde_json::Error) -> Failure {
        if error.is_eof() {
            return self.bad("the line is cut off");
        }
        // serde_json appends its own position within the one line that it saw.
        let text = error.to_string();
        self.bad(text.rsplit_once(" at line ").map_or(text.as_str(), |(what, _)| what))
    }
}

/// What a first line is that is none of recorded decisions.
fn no_header(line: &str) -> String {
    let document = serde_json::from_str::<serde_json::Value>(line).ok();
    let field = |name: &str| document.as_ref()?.get(name).cloned();
    match (field("kind").as_ref().and_then(|kind| kind.as_str()), field("schema")) {
        (Some(kind), Some(schema)) => format!(
            "is `{kind}` of schema {schema}, not a file of recorded decisions, which is `{KIND}` \
             of schema {SCHEMA} to {PACKED_SCHEMA}"
        ),
        _ => "not a file of recorded decisions (no header)".to_owned(),
    }
}

/// Whether a text is, or was meant to be, the first line of such a file.
pub(crate) fn is_header(line: &str) -> bool {
    line.trim_start().starts_with('{') && line.contains(&format!("\"{KIND}\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        Header::new(
            World::Sim,
            vec!["gups".into()],
            "hemem".into(),
            Mode::Shadow,
            MachineFacts {
                name: "m".into(),
                clock: Some(Frequency::ghz(2.2)),
                tiers: vec!["dram".into(), "nvm".into()],
            },
        )
    }

    fn region() -> Record {
        Record::Region(RegionRecord {
            process: 7,
            region: RegionId(3),
            start: 0x7f00_0000_0000,
            pages: 4,
            page_size: PageSize::Base,
        })
    }

    fn error_of(text: &str) -> String {
        let failure = match Reader::new("f", text.as_bytes()) {
            Ok(mut reader) => reader.find_map(Result::err),
            Err(failure) => Some(failure),
        };
        match failure {
            Some(Failure::BadInput(message)) => message,
            other => panic!("expected bad input, got {other:?}"),
        }
    }

    #[test]
    fn what_is_written_is_read_back_unchanged() {
        let mut file = Vec::new();
        let mut writer = Writer::new(&mut file, &header()).unwrap();
        let lost = Record::Lost { process: 7, count: 2 };
        writer.write(&region()).unwrap();
        writer.write(&lost).unwrap();

        let reader = Reader::new("f", file.as_slice()).unwrap();

        assert_eq!(reader.header, header());
        let records: Vec<_> = reader.map(Result::unwrap).collect();
        assert_eq!(records, [region(), lost]);
    }

    #[test]
    fn where_a_region_lies_is_read_from_between_decisions() {
        let length = 16u16 | 1 << 15;
        let mut bytes = length.to_le_bytes().to_vec();
        bytes.extend_from_slice(&3u32.to_le_bytes());
        bytes.extend_from_slice(&0x7f00_0000_0000u64.to_le_bytes());
        bytes.extend_from_slice(&4u32.to_le_bytes());
        let mut file = Vec::new();
        let mut writer = Writer::new(&mut file, &header().packed()).unwrap();
        writer.write(&Record::Decisions { process: 7, bytes }).unwrap();
        writer.flush().unwrap();

        let read = |file: &[u8]| -> Vec<Record> {
            Reader::new("f", file).unwrap().map(Result::unwrap).collect()
        };
        assert_eq!(read(&file), [region()]);
        // Recordings of before are read as well.
        let at = file.windows(10).position(|part| part == b"\"schema\":5").unwrap();
        for old in [b'2', b'3', b'4'] {
            file[at + 9] = old;
            assert_eq!(read(&file), [region()]);
        }
    }

    #[test]
    fn errors_name_the_file_and_the_line() {
        let first = serde_json::to_string(&header()).unwrap();

        assert_eq!(error_of(""), "f:1: the file is empty");
        assert_eq!(error_of("{\"x\": 1}\n"), "f:1: not a file of recorded decisions (no header)");
        assert_eq!(
            error_of("{\"schema\": 3, \"kind\": \"terrace.run\"}\n"),
            "f:1: is `terrace.run` of schema 3, not a file of recorded decisions, which is \
             `terrace.records` of schema 1 to 5"
        );
        assert!(error_of("TERRTRC\0").starts_with("f: is a trace of memory accesses"));
        assert_eq!(error_of(&first[..first.len() - 5]), "f:1: the line is cut off");
        assert_eq!(error_of(&format!("{first}\n\n{{\"record\":\"de")), "f:3: the line is cut off");
        assert!(
            error_of(&format!("{first}\n{{\"record\":\"feast\"}}\n")).starts_with("f:2: unknown"),
        );
        assert_eq!(
            error_of(&first.replace("\"schema\":1", "\"schema\":6")),
            "f:1: field `schema`: is 6; this version of Terrace reads schemas 1 to 5 only"
        );
    }

    #[test]
    fn an_address_finds_its_page_only_inside_the_region() {
        let Record::Region(region) = region() else { unreachable!() };

        let last = region.page_at(region.start + 4 * 4096 - 1);
        assert_eq!(last, Some(PageRef { region: RegionId(3), page: PageNo(3) }));
        assert_eq!(region.page_at(region.start + 4 * 4096), None);
        assert_eq!(region.page_at(region.start - 1), None);
        assert_eq!(region.address_of(PageNo(3)), region.start + 3 * 4096);
    }

    #[test]
    fn a_header_of_another_version_is_still_told_from_other_json() {
        assert!(is_header("{\"schema\":9,\"kind\":\"terrace.records\"}"));
        assert!(!is_header("{\"schema\":1,\"kind\":\"terrace.doctor\"}"));
    }
}
