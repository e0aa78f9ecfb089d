//! What a brain was told, as a file: JSON lines.
//!
//! The first line is a header, each further line one [`Event`]. Lines,
//! so that a run that is cut short leaves everything readable that was
//! written, and so that other tools need no library of ours.
//!
//! ```text
//! {"schema":1,"kind":"terrace.events","policy":"hemem"}
//! {"alloc":{"region":{"id":0,"pages":512,"page_size":"2MiB","context":0}}}
//! {"tick":{"telemetry":{"now":10000000, …}}}
//! ```

use std::io::{BufRead, Lines, Write};

use serde::{Deserialize, Serialize};
use terrace_core::{Event, EventRef};
use thiserror::Error;

/// Version of the format.
const SCHEMA: u32 = 1;

/// Tells a recording from any other JSON.
const KIND: &str = "terrace.events";

/// The first line of a recording.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Header {
    schema: u32,
    kind: String,
    policy: String,
}

/// Writes a recording.
#[derive(Debug)]
pub struct EventWriter<W> {
    out: W,
}

impl<W: Write> EventWriter<W> {
    /// Begins a recording of what a policy is told. Writes line by line, so
    /// `out` should be buffered.
    pub fn new(mut out: W, policy: &str) -> std::io::Result<Self> {
        let header = Header { schema: SCHEMA, kind: KIND.to_owned(), policy: policy.to_owned() };
        write_line(&mut out, &header)?;
        Ok(Self { out })
    }

    /// Adds an event.
    pub fn write(&mut self, event: EventRef<'_>) -> std::io::Result<()> {
        write_line(&mut self.out, &event)
    }

    /// Ends the recording and gives the output back.
    pub fn finish(mut self) -> std::io::Result<W> {
        self.out.flush()?;
        Ok(self.out)
    }
}

fn write_line<W: Write>(out: &mut W, line: &impl Serialize) -> std::io::Result<()> {
    serde_json::to_writer(&mut *out, line)?;
    out.write_all(b"\n")
}

/// Why a recording could not be read. Names the file and the line.
#[derive(Debug, Error)]
#[error("{file}:{line}: {cause}")]
pub struct RecordingError {
    /// The file, as the user named it.
    pub file: String,
    /// The line, counted from 1.
    pub line: usize,
    /// What is wrong.
    pub cause: RecordingFault,
}

/// What can be wrong with a recording.
#[derive(Debug, Error)]
pub enum RecordingFault {
    /// There is no line, so no header.
    #[error("the recording is empty")]
    Empty,
    /// The first line is not a recording's.
    #[error("not a recording of events: the first line must be its header")]
    NotARecording,
    /// Written by another version.
    #[error("field `schema`: is {0}, this version reads {SCHEMA} only")]
    Schema(u32),
    /// A line is no event: cut short, or changed.
    #[error("not an event: {0}")]
    NotAnEvent(#[from] serde_json::Error),
    /// The line could not be read.
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

/// Reads a recording, event by event.
#[derive(Debug)]
pub struct EventReader<R> {
    file: String,
    lines: Lines<R>,
    line: usize,
    policy: String,
}

impl<R: BufRead> EventReader<R> {
    /// Opens a recording and checks its header. `file` is only used in errors.
    pub fn new(file: &str, input: R) -> Result<Self, RecordingError> {
        let fail = |cause| RecordingError { file: file.to_owned(), line: 1, cause };
        let mut lines = input.lines();
        let first = lines.next().ok_or_else(|| fail(RecordingFault::Empty))?;
        let first = first.map_err(|e| fail(e.into()))?;
        let header: Header =
            serde_json::from_str(&first).map_err(|_| fail(RecordingFault::NotARecording))?;
        if header.kind != KIND {
            return Err(fail(RecordingFault::NotARecording));
        }
        if header.schema != SCHEMA {
            return Err(fail(RecordingFault::Schema(header.schema)));
        }
        Ok(Self { file: file.to_owned(), lines, line: 1, policy: header.policy })
    }

    /// The policy that was told these events.
    pub fn policy(&self) -> &str {
        &self.policy
    }
}

impl<R: BufRead> Iterator for EventReader<R> {
    type Item = Result<Event, RecordingError>;

    fn next(&mut self) -> Option<Self::Item> {
        let line = self.lines.next()?;
        self.line += 1;
        let event = line
            .map_err(RecordingFault::from)
            .and_then(|text| serde_json::from_str(&text).map_err(RecordingFault::from));
        Some(event.map_err(|cause| RecordingError {
            file: self.file.clone(),
            line: self.line,
            cause,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_core::{
        Abort, Access, Action, Bytes, ContextId, Cycles, Done, FaultKind, Heat, Nanos, OpId,
        Outcome, PageNo, PageRef, PageSize, PerSecond, Proposal, Reason, Region, RegionId, Sample,
        SampleSource, Telemetry, TierId, Urgency,
    };

    fn recording(policy: &str, events: &[EventRef<'_>]) -> Vec<u8> {
        let mut writer = EventWriter::new(Vec::new(), policy).unwrap();
        for event in events {
            writer.write(*event).unwrap();
        }
        writer.finish().unwrap()
    }

    /// A kind of event that came back changed would make a replay differ.
    #[test]
    fn every_kind_of_event_comes_back_as_it_was() {
        let region = Region {
            id: RegionId(3),
            pages: 7,
            page_size: PageSize::Huge,
            context: ContextId::ANONYMOUS,
        };
        let page = PageRef { region: region.id, page: PageNo(5) };
        let mut telemetry = Telemetry { now: Nanos(7), tier_count: 2, ..Telemetry::default() };
        // A value whose shortest decimal form is easily read back one bit off.
        telemetry.cpu_load = 0.1 + 0.2;
        telemetry.tiers[0].accesses = PerSecond(1.0 / 3.0);
        let samples =
            [Sample { page, access: Access::Write, source: SampleSource::Refault, weight: 9 }];
        let proposal = Proposal {
            op: OpId(u64::MAX),
            action: Action::Exchange {
                promote: page,
                demote: page,
                fast: TierId(0),
                slow: TierId(1),
            },
            page_size: PageSize::Huge,
            heat: Heat { loads: PerSecond(1e300), ..Heat::default() },
            victim_heat: Heat::default(),
            urgency: Urgency::Forced,
            reason: Reason::WriteHeavy,
        };
        let outcomes = [
            Outcome::Completed { cost: Cycles(5), moved: Bytes::mib(4) },
            Outcome::Aborted(Abort::Touched),
        ];
        let dones = outcomes.map(|outcome| Done { proposal, outcome });
        let events = [
            EventRef::Alloc { region: &region },
            EventRef::Fault {
                page,
                kind: FaultKind::FirstTouch(Access::Read),
                telemetry: &telemetry,
            },
            EventRef::Fault { page, kind: FaultKind::WriteProtected, telemetry: &telemetry },
            EventRef::Samples { samples: &samples },
            EventRef::Discard { range: region.range() },
            EventRef::Free { range: region.range() },
            EventRef::Tick { telemetry: &telemetry },
            EventRef::Pressure { tier: TierId(1), bytes: Bytes::MAX, telemetry: &telemetry },
            EventRef::Done { done: &dones[0], telemetry: &telemetry },
            EventRef::Done { done: &dones[1], telemetry: &telemetry },
        ];

        let bytes = recording("hemem", &events);
        let reader = EventReader::new("r.jsonl", &bytes[..]).unwrap();

        assert_eq!(reader.policy(), "hemem");
        let read: Vec<Event> = reader.map(Result::unwrap).collect();
        assert_eq!(read, events.map(EventRef::to_event));
    }

    /// Whoever has a broken recording must learn where it is broken.
    #[test]
    fn a_broken_recording_names_file_and_line() {
        let region = Region {
            id: RegionId(0),
            pages: 1,
            page_size: PageSize::Base,
            context: ContextId::ANONYMOUS,
        };
        let event = EventRef::Alloc { region: &region };
        let mut cut = recording("hemem", &[event, event]);
        cut.truncate(cut.len() - 10);

        let results: Vec<_> = EventReader::new("cut.jsonl", &cut[..]).unwrap().collect();

        assert!(results[0].is_ok(), "what was written whole stays readable");
        let message = results[1].as_ref().unwrap_err().to_string();
        assert!(message.starts_with("cut.jsonl:3: not an event: "), "{message}");
    }

    #[test]
    fn what_is_no_recording_is_refused_at_once() {
        let refusal = |text: &str| EventReader::new("f", text.as_bytes()).unwrap_err().to_string();
        assert_eq!(refusal(""), "f:1: the recording is empty");
        assert!(refusal("{\"a\":1}\n").contains("not a recording of events"));
        assert!(
            refusal("{\"schema\":1,\"kind\":\"terrace.records\",\"policy\":\"hemem\"}\n")
                .contains("not a recording of events")
        );
        assert_eq!(
            refusal("{\"schema\":2,\"kind\":\"terrace.events\",\"policy\":\"hemem\"}\n"),
            "f:1: field `schema`: is 2, this version reads 1 only"
        );
    }
}
