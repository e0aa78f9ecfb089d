//! Everything that the daemon decided and did, and why, as lines of JSON.
//!
//! The first line is a header. A line is complete or cut off at the end of the
//! file (the machine lost power), which readers may allow.

use core::fmt;
use std::io::{self, BufRead, Read};

use serde::{Deserialize, Serialize};
use terrace_core::{Bytes, Nanos};
use thiserror::Error;

use crate::action::Action;
use crate::decision::Decision;
use crate::economist::Quote;
use crate::policy::PolicyKind;
use crate::recording::told;
use crate::view::NodeId;

/// What the first line names the format.
const FORMAT: &str = "terrace.provision.journal";
/// The version of the format.
const VERSION: u32 = 1;
/// The longest line: a decision has a step for each block, and a terabyte has some ten thousand.
const LONGEST: u64 = 64 << 20;
/// The longest header, of any version.
const HEADER: u64 = 4096;
/// The longest journal: the daemon begins it anew at 8 MiB, and one line may be longer.
const WHOLE: u64 = 2 * LONGEST;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Header {
    format: String,
    version: u32,
}

/// One line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// When, since 1970 (UTC).
    pub at: Nanos,
    /// What happened.
    #[serde(flatten)]
    pub what: Event,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum Event {
    /// The daemon began.
    Started {
        /// Its process.
        pid: u32,
        /// Who decides.
        policy: PolicyKind,
        /// Whether it only says what it would do.
        dry_run: bool,
    },
    /// Something that the operator should know.
    Told {
        /// What is so.
        what: String,
    },
    /// A change was decided.
    Decided {
        /// The decision, with what it was based on.
        decision: Decision,
        /// The steps that it takes.
        steps: Vec<Action>,
    },
    /// A change was wanted and nothing can be done about it.
    Nothing {
        /// The decision.
        decision: Decision,
        /// Why there is no step.
        why: String,
    },
    /// The economist's prices of a change.
    Priced {
        /// The node.
        node: NodeId,
        /// The prices.
        quote: Quote,
        /// Whether the change was given up for them.
        vetoed: bool,
    },
    /// A step was done.
    Done {
        /// The step.
        action: Action,
        /// How long it took.
        took: Nanos,
    },
    /// A step was not done.
    Failed {
        /// The step.
        action: Action,
        /// How long was tried.
        took: Nanos,
        /// Why it was not done.
        why: String,
        /// For how long it is not tried again.
        pause: Nanos,
    },
    /// A step was not begun.
    Refused {
        /// The step.
        action: Action,
        /// Why.
        why: String,
    },
    /// Steps that were still to be done are given up.
    Dropped {
        /// The node.
        node: NodeId,
        /// How many.
        steps: usize,
        /// Why.
        why: String,
    },
    /// The daemon ended.
    Stopped {
        /// Why.
        why: String,
    },
}

impl Entry {
    /// The node that it is about, if it is about one.
    pub fn node(&self) -> Option<NodeId> {
        match &self.what {
            Event::Decided { decision, .. } | Event::Nothing { decision, .. } => {
                Some(decision.node)
            }
            Event::Priced { node, .. } | Event::Dropped { node, .. } => Some(*node),
            Event::Done { action, .. }
            | Event::Failed { action, .. }
            | Event::Refused { action, .. } => match action {
                Action::Online { node, .. } | Action::Offline { node, .. } => Some(*node),
                _ => None,
            },
            Event::Started { .. } | Event::Told { .. } | Event::Stopped { .. } => None,
        }
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Started { pid, policy, dry_run } => {
                let what = if *dry_run { ", a dry run" } else { "" };
                write!(f, "started as process {pid}, policy {policy}{what}")
            }
            Self::Told { what } => f.write_str(what),
            Self::Decided { decision, steps } => {
                let s = if steps.len() == 1 { "" } else { "s" };
                write!(f, "{decision}; {} step{s}", steps.len())
            }
            Self::Nothing { decision, why } => write!(f, "{decision}; nothing is done: {why}"),
            Self::Priced { node, quote, vetoed } => {
                let what = if *vetoed { "; given up" } else { "" };
                write!(f, "{node}: {quote}{what}")
            }
            Self::Done { action, took } => write!(f, "done in {took}: {action}"),
            Self::Failed { action, took, why, pause } => {
                write!(f, "failed after {took}: {action}: {why}; left alone for {pause}")
            }
            Self::Refused { action, why } => write!(f, "not begun: {action}: {why}"),
            Self::Dropped { node, steps, why } => {
                write!(f, "{node}: {steps} further steps are given up: {why}")
            }
            Self::Stopped { why } => write!(f, "stopped: {why}"),
        }
    }
}

/// Why a journal cannot be read.
#[derive(Debug, Error)]
#[error("line {line}: {what}")]
pub struct JournalError {
    /// The line, from 1.
    pub line: usize,
    /// What is wrong with it.
    pub what: String,
}

/// The header of a journal, with the end of its line.
pub fn header() -> String {
    let header = Header { format: FORMAT.to_owned(), version: VERSION };
    let mut line = serde_json::to_string(&header).unwrap_or_default();
    line.push('\n');
    line
}

/// Whether a first line is meant to be a journal's header.
pub fn is_header(line: &str) -> bool {
    line.starts_with('{') && line.contains(&format!("\"{FORMAT}\""))
}

/// Reads a journal. A last line without its end is left out: the machine stopped in its middle.
pub fn read(mut from: impl BufRead) -> Result<Vec<Entry>, JournalError> {
    let mut text = String::new();
    let mut entries = Vec::new();
    let (mut line, mut whole) = (0, 0);
    loop {
        line += 1;
        let bad = |what: String| JournalError { line, what };
        text.clear();
        let longest = if line == 1 { HEADER } else { LONGEST };
        let length = from.by_ref().take(longest + 1).read_line(&mut text);
        let length = length.map_err(|e: io::Error| bad(e.to_string()))?;
        if length as u64 > longest {
            let longest = Bytes(longest);
            return Err(bad(format!("longer than {longest}: no journal has such a line")));
        }
        whole += length as u64;
        if whole > WHOLE {
            return Err(bad(format!("no journal is longer than {}", Bytes(WHOLE))));
        }
        if line == 1 {
            let header: Header = serde_json::from_str(&text)
                .map_err(|e| bad(format!("no header of a journal: {}", told(&e))))?;
            if header.format != FORMAT {
                return Err(bad(format!("field `format`: `{}` is not `{FORMAT}`", header.format)));
            }
            if header.version != VERSION {
                return Err(bad(format!("field `version`: {} is not {VERSION}", header.version)));
            }
            continue;
        }
        if length == 0 || !text.ends_with('\n') {
            return Ok(entries);
        }
        entries.push(serde_json::from_str(&text).map_err(|e| bad(told(&e)))?);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decision::{Change, Reason};

    fn entries() -> Vec<Entry> {
        let node = NodeId(0);
        let decision = Decision {
            at: Nanos::seconds(3),
            node,
            free: Bytes::mib(100),
            integrated: Bytes::ZERO,
            change: Change::Integrate(Bytes::mib(128)),
            reason: Reason::Short { threshold: Bytes::mib(188), target: Bytes::mib(128) },
        };
        let action = Action::Offline { block: 7, node: NodeId(2), size: Bytes::mib(128) };
        [
            Event::Started { pid: 3, policy: PolicyKind::Resolved, dry_run: false },
            Event::Decided { decision, steps: vec![action.clone()] },
            Event::Failed {
                action,
                took: Nanos::seconds(5),
                why: "interrupted".to_owned(),
                pause: Nanos::seconds(60),
            },
            Event::Stopped { why: "SIGTERM".to_owned() },
        ]
        .into_iter()
        .map(|what| Entry { at: Nanos::seconds(9), what })
        .collect()
    }

    fn written() -> String {
        let line = |entry: &Entry| serde_json::to_string(entry).unwrap() + "\n";
        header() + &entries().iter().map(line).collect::<String>()
    }

    #[test]
    fn what_was_written_is_read_and_a_line_that_is_cut_off_is_left_out() {
        let text = written();
        assert!(is_header(text.lines().next().unwrap()));
        assert_eq!(read(text.as_bytes()).unwrap(), entries());
        let cut = &text[..text.len() - 5];
        assert_eq!(read(cut.as_bytes()).unwrap(), entries()[..3]);
    }

    #[test]
    fn an_error_names_its_line() {
        let broken = written().replacen("\"pid\":3", "\"pid\":\"x\"", 1);
        assert!(read(broken.as_bytes()).unwrap_err().to_string().starts_with("line 2: "));
        let newer = written().replacen("\"version\":1", "\"version\":2", 1);
        let error = read(newer.as_bytes()).unwrap_err().to_string();
        assert_eq!(error, "line 1: field `version`: 2 is not 1");
        assert!(read("".as_bytes()).is_err());
    }

    #[test]
    fn what_has_no_end_is_not_read_to_its_end() {
        let endless = |begin: &str| {
            let from = io::BufReader::new(begin.as_bytes().chain(io::repeat(0)));
            read(from).unwrap_err().to_string()
        };
        assert_eq!(endless(""), "line 1: longer than 4.00 KiB: no journal has such a line");
        let later = endless(&written());
        assert!(later.starts_with("line 6: longer than 64.0 MiB"), "{later}");
    }

    #[test]
    fn only_a_journal_s_first_line_is_a_header() {
        assert!(is_header(&header()));
        for other in ["", "{}", "notes", "{\"format\":\"terrace.zoneinfo\",\"version\":1}"] {
            assert!(!is_header(other), "{other}");
        }
    }

    #[test]
    fn an_entry_says_what_and_why() {
        let said: Vec<String> = entries().iter().map(|entry| entry.what.to_string()).collect();
        assert_eq!(
            said[1],
            "node 0: bring 128 MiB online (100 MiB free, 0 B online): free local memory is at \
             most 188 MiB: 128 MiB are wanted online; 1 step"
        );
        assert!(said[2].contains("block 7 of node 2 offline (128 MiB): interrupted; left alone"));
    }
}
