//! A recording's file: lines of JSON in a zstd frame.
//!
//! ```text
//! line 1   {"terrace":"calls","schema":2,"calls":N,…}: program, kernel, threads, files, sockets
//! line 2…  {"thread":0,"cpu":1,"at":…,"took":…,"call":{"read":{"file":3,"offset":0,"bytes":4096}}}
//! ```
//!
//! Times are in nanoseconds. The frame has a checksum. `zstd -dc FILE` shows it. Recordings of schema 1
//! have no advice (`posix_fadvise`); they are read as before.

use std::io::{self, BufRead, BufReader, Read, Write};

use serde::{Deserialize, Serialize};

use super::recording::{Check, Made, Recording};
use crate::kernel::MOST;

/// Version of the format that is written.
const SCHEMA: u32 = 2;
/// The oldest version that is read.
const OLDEST: u32 = 1;
/// Compression level: zstd's own default.
const LEVEL: i32 = 3;
/// Threads of the simulated kernel at most.
const MOST_THREADS: u32 = 1 << 16;
/// Longer lines are none of ours; a header has some 60 bytes a file.
const LONGEST: u64 = 1 << 28;

#[derive(Serialize, Deserialize)]
struct Header<R> {
    terrace: String,
    schema: u32,
    calls: u64,
    #[serde(flatten)]
    recording: R,
}

/// Why a recording cannot be read on.
#[derive(Debug, thiserror::Error)]
#[error("{file}:{line}: {message}")]
pub struct CallsError {
    /// The file.
    pub file: String,
    /// The line, counted from 1, of what is in the zstd frame.
    pub line: usize,
    /// What is wrong.
    pub message: String,
    /// What was readable before that.
    pub readable: Box<Recording>,
}

/// Whether bytes may begin a recording: a zstd frame.
pub fn is_meant(begin: &[u8]) -> bool {
    begin.starts_with(&[0x28, 0xb5, 0x2f, 0xfd])
}

/// Writes a recording.
pub fn write(out: impl Write, recording: &Recording) -> io::Result<()> {
    let mut frame = zstd::Encoder::new(out, LEVEL)?;
    frame.include_checksum(true)?;
    let terrace = "calls".to_owned();
    let header = Header { terrace, schema: SCHEMA, calls: recording.calls.len() as u64, recording };
    serde_json::to_writer(&mut frame, &header)?;
    for made in &recording.calls {
        frame.write_all(b"\n")?;
        serde_json::to_writer(&mut frame, made)?;
    }
    frame.write_all(b"\n")?;
    frame.finish()?.flush()
}

/// Reads a recording; `file` is only used in errors.
pub fn read(file: &str, from: impl Read) -> Result<Recording, CallsError> {
    match zstd::Decoder::new(from) {
        Ok(frame) => read_text(file, BufReader::new(frame)),
        Err(error) => Err(CallsError {
            file: file.to_owned(),
            line: 1,
            message: error.to_string(),
            readable: Box::default(),
        }),
    }
}

/// Reads what is in the frame.
pub fn read_text(file: &str, mut from: impl BufRead) -> Result<Recording, CallsError> {
    let mut line = Vec::new();
    let mut number = 0;
    let bad = |line: usize, message: String, readable: Recording| CallsError {
        file: file.to_owned(),
        line,
        message,
        readable: Box::new(readable),
    };
    let mut next = |line: &mut Vec<u8>| -> Result<bool, String> {
        line.clear();
        (&mut from).take(LONGEST).read_until(b'\n', line).map_err(|e| e.to_string())?;
        match line.last() {
            None => Ok(false),
            Some(b'\n') => Ok(true),
            // A last line without its end is cut off.
            Some(_) => Err("the line is cut off".to_owned()),
        }
    };
    number += 1;
    match next(&mut line) {
        Ok(true) => {}
        Ok(false) => return Err(bad(number, "it is empty".to_owned(), Recording::default())),
        Err(message) => return Err(bad(number, message, Recording::default())),
    }
    let header: Header<Recording> = match serde_json::from_slice(&line) {
        Ok(header) => header,
        Err(error) => {
            let message = format!("no recording of calls: {error}");
            return Err(bad(number, message, Recording::default()));
        }
    };
    if header.terrace != "calls" || !(OLDEST..=SCHEMA).contains(&header.schema) {
        let message = format!(
            "`{}` of schema {}: this version reads calls of schema {OLDEST} to {SCHEMA}",
            header.terrace, header.schema
        );
        return Err(bad(number, message, Recording::default()));
    }
    let mut recording = header.recording;
    // What a header claims is believed up to what a kernel has.
    let too_many = if recording.threads > MOST_THREADS {
        Some(("threads", u64::from(recording.threads), u64::from(MOST_THREADS)))
    } else if recording.sockets > MOST {
        Some(("sockets", u64::from(recording.sockets), u64::from(MOST)))
    } else if recording.files.len() > MOST as usize {
        Some(("files", recording.files.len() as u64, u64::from(MOST)))
    } else {
        None
    };
    if let Some((what, count, most)) = too_many {
        let message = format!("{count} {what}; a recording has at most {most}");
        return Err(bad(number, message, Recording::default()));
    }
    let mut calls: Vec<Made> = Vec::new();
    let mut wrong = None;
    {
        let mut check = Check::new(&recording);
        while (calls.len() as u64) < header.calls {
            number += 1;
            let entered = match next(&mut line) {
                Err(message) => Err(message),
                Ok(false) => Err(format!("ends after {} of {} calls", calls.len(), header.calls)),
                Ok(true) => serde_json::from_slice::<Made>(&line)
                    .map_err(|error| error.to_string())
                    .and_then(|made| {
                        check.enter(&made).map_err(|unfit| unfit.to_string())?;
                        calls.push(made);
                        Ok(())
                    }),
            };
            if let Err(message) = entered {
                wrong = Some(message);
                break;
            }
        }
    }
    recording.calls = calls;
    if wrong.is_none() {
        number += 1;
        wrong = match next(&mut line) {
            Ok(false) => None,
            Ok(true) => Some("there are more lines than calls".to_owned()),
            Err(message) => Some(message),
        };
    }
    match wrong {
        Some(message) => Err(bad(number, message, recording)),
        None => Ok(recording),
    }
}

#[cfg(test)]
mod tests {
    use terrace_core::{Bytes, Nanos};

    use super::super::RecordedFile;
    use super::*;
    use crate::kernel::{Advice, Call};

    fn recording(calls: &[Call]) -> Recording {
        let made = |(at, &call): (usize, &Call)| Made {
            thread: 0,
            cpu: 0,
            at: Nanos(at as u64),
            took: Nanos(1),
            call,
        };
        Recording {
            program: vec!["cat".to_owned()],
            threads: 1,
            files: vec![RecordedFile { inode: None, existed: true, bytes: Bytes::kib(8) }],
            calls: calls.iter().enumerate().map(made).collect(),
            ..Recording::default()
        }
    }

    const GOOD: [Call; 3] = [
        Call::Open { file: 0 },
        Call::Read { file: 0, offset: 0, bytes: 4096 },
        Call::Close { file: 0 },
    ];

    fn written(recording: &Recording) -> Vec<u8> {
        let mut out = Vec::new();
        write(&mut out, recording).expect("memory");
        out
    }

    /// What was recorded before there was advice means what it meant.
    #[test]
    fn a_recording_of_the_first_schema_is_read() {
        let recording = recording(&GOOD);
        let mut text = String::new();
        let bytes = written(&recording);
        zstd::Decoder::new(&bytes[..]).expect("a frame").read_to_string(&mut text).expect("whole");
        let older = text.replacen("\"schema\":2", "\"schema\":1", 1);
        assert_ne!(older, text);
        assert_eq!(read_text("x", older.as_bytes()).expect("good"), recording);
        let newer = text.replacen("\"schema\":2", "\"schema\":3", 1);
        let error = read_text("x", newer.as_bytes()).expect_err("not known yet").to_string();
        assert!(error.contains("reads calls of schema 1 to 2"), "{error}");
    }

    #[test]
    fn what_is_written_is_read() {
        let [open, read_call, close] = GOOD;
        let advice = Advice::DontNeed;
        let advise = Call::Advise { file: 0, offset: 4096, bytes: 0, advice };
        let recording = recording(&[open, read_call, advise, close]);
        let bytes = written(&recording);
        assert!(is_meant(&bytes));
        assert_eq!(read("x", &bytes[..]).expect("good"), recording);
    }

    /// One error with file and line, and what was readable is kept.
    #[test]
    fn what_cannot_be_is_refused_with_its_line() {
        let refused = |calls: &[Call], line: usize, readable: usize, text: &str| {
            let error = read("x.calls", &written(&recording(calls))[..]).expect_err("bad");
            assert_eq!((error.line, error.readable.calls.len()), (line, readable), "{error}");
            assert!(error.to_string().starts_with("x.calls:"), "{error}");
            assert!(error.to_string().contains(text), "{error}");
        };
        let [open, read_call, close] = GOOD;
        refused(&[open, close, close], 4, 2, "file 0 is not open");
        refused(&[read_call], 2, 0, "file 0 is not open");
        refused(&[open, Call::Open { file: 7 }], 3, 1, "file 7 is unknown");
        refused(&[open, Call::Touch { page: 0, lines: 1, store: false }], 3, 1, "touch");
        let mut backwards = recording(&GOOD);
        backwards.calls[2].at = Nanos::ZERO;
        let error = read("x", &written(&backwards)[..]).expect_err("out of order");
        assert!(error.to_string().contains("begins before"), "{error}");
    }

    #[test]
    fn every_cut_is_told_and_keeps_what_came_before() {
        let mut text = Vec::new();
        let bytes = written(&recording(&GOOD));
        zstd::Decoder::new(&bytes[..]).expect("a frame").read_to_end(&mut text).expect("whole");
        for end in 0..text.len() {
            let error = read_text("x", &text[..end]).expect_err("it is cut");
            let lines = text[..end].split(|&byte| byte == b'\n').count() - 1;
            assert_eq!(error.readable.calls.len(), lines.saturating_sub(1), "{end}: {error}");
        }
        // The frame itself is cut.
        for end in 0..bytes.len() {
            read("x", &bytes[..end]).expect_err("it is cut");
        }
    }
}
