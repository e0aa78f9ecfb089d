//! QEMU's machine protocol: questions and answers as lines of JSON.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use thiserror::Error;

/// How long an answer may take. QEMU answers between instructions of its guest.
const PATIENCE: Duration = Duration::from_secs(5);
/// The longest line that is an answer.
const LONGEST: u64 = 4 << 20;

/// Why QEMU did not do as it was told.
#[derive(Debug, Error)]
pub enum QmpError {
    /// The socket.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// It refused.
    #[error("{command}: {what}")]
    Refused {
        /// What it was told.
        command: String,
        /// What it said.
        what: String,
    },
    /// Its answer is none.
    #[error("`{0}` is no answer")]
    Answer(String),
}

/// A connection. QEMU has one at a time for each socket.
#[derive(Debug)]
pub struct Qmp {
    to: UnixStream,
    from: BufReader<UnixStream>,
}

impl Qmp {
    /// Connects, and begins to talk.
    pub fn connect(path: &Path) -> Result<Self, QmpError> {
        let to = terrace_sockets::connect(path)?;
        to.set_read_timeout(Some(PATIENCE))?;
        to.set_write_timeout(Some(PATIENCE))?;
        let from = BufReader::new(to.try_clone()?);
        let mut qmp = Self { to, from };
        let greeting = qmp.line()?;
        if greeting.get("QMP").is_none() {
            return Err(QmpError::Answer(greeting.to_string()));
        }
        qmp.ask("qmp_capabilities", &json!({}))?;
        Ok(qmp)
    }

    fn line(&mut self) -> Result<Value, QmpError> {
        let mut line = String::new();
        let mut limited = io::Read::take(&mut self.from, LONGEST);
        if limited.read_line(&mut line)? == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "QEMU has ended").into());
        }
        serde_json::from_str(&line).map_err(|_| QmpError::Answer(line.trim().to_owned()))
    }

    /// Has a command carried out; its result.
    pub fn ask(&mut self, command: &str, arguments: &Value) -> Result<Value, QmpError> {
        let mut question = json!({ "execute": command, "arguments": arguments }).to_string();
        question.push('\n');
        self.to.write_all(question.as_bytes())?;
        loop {
            let mut answer = self.line()?;
            if let Some(result) = answer.get_mut("return") {
                return Ok(result.take());
            }
            if let Some(error) = answer.get("error") {
                let what = error.get("desc").and_then(Value::as_str).unwrap_or_default();
                return Err(QmpError::Refused {
                    command: command.to_owned(),
                    what: what.to_owned(),
                });
            }
            // What happens meanwhile is told in between.
            if answer.get("event").is_none() {
                return Err(QmpError::Answer(answer.to_string()));
            }
        }
    }

    /// A property of a device.
    pub fn get(&mut self, device: &str, property: &str) -> Result<Value, QmpError> {
        let path = format!("/machine/peripheral/{device}");
        self.ask("qom-get", &json!({ "path": path, "property": property }))
    }

    /// Changes a property of a device.
    pub fn set(&mut self, device: &str, property: &str, value: u64) -> Result<(), QmpError> {
        let path = format!("/machine/peripheral/{device}");
        let arguments = json!({ "path": path, "property": property, "value": value });
        self.ask("qom-set", &arguments).map(|_| ())
    }
}
