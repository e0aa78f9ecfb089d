//! `terrace completions`: completion scripts, generated from the definitions
//! of the command line.

use std::process::ExitCode;

use clap::CommandFactory;
use clap_complete::Shell;
use serde::Serialize;

use crate::args::Cli;
use crate::failure::Failure;
use crate::output;

/// Print the completion script of a shell.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: terrace completions bash > /etc/bash_completion.d/terrace")]
pub(crate) struct Args {
    /// The shell.
    shell: Shell,
}

#[derive(Serialize)]
struct Script {
    shell: String,
    script: String,
}

impl Args {
    pub(crate) fn execute(self, json: bool) -> Result<ExitCode, Failure> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut Cli::command(), "terrace", &mut script);
        let script = String::from_utf8_lossy(&script).into_owned();
        if json {
            let body = Script { shell: self.shell.to_string(), script };
            output::print(&output::json("terrace.completions", &body)?)?;
        } else {
            output::print(&script)?;
        }
        Ok(ExitCode::SUCCESS)
    }
}
