//! Where a program runs: unmanaged, or under `terrace run`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use terrace_core::Bytes;

use crate::report::Report;

/// Unmanaged, or under Terrace.
#[derive(Clone, Debug)]
pub struct Environment {
    terrace: Option<Managed>,
    /// When a program counts as hanging.
    pub limit: Duration,
}

#[derive(Clone, Debug)]
struct Managed {
    executable: PathBuf,
    budget: Bytes,
    arguments: Vec<String>,
}

impl Environment {
    /// Without Terrace.
    pub fn plain(limit: Duration) -> Self {
        Self { terrace: None, limit }
    }

    /// Under `terrace run` with a budget, and further arguments of it.
    pub fn managed(
        executable: &Path,
        budget: Bytes,
        arguments: &[String],
        limit: Duration,
    ) -> Self {
        let executable = executable.to_owned();
        let terrace = Managed { executable, budget, arguments: arguments.to_vec() };
        Self { terrace: Some(terrace), limit }
    }

    /// A command that runs the program here; add its arguments.
    pub fn command(&self, program: &str, directory: &Path) -> Command {
        let mut command = match &self.terrace {
            None => Command::new(program),
            Some(managed) => {
                let mut command = Command::new(&managed.executable);
                command
                    .args(["--json", "run", "--fast", &format!("{}B", managed.budget.get())])
                    .arg("--report")
                    .arg(report_in(directory))
                    .args(&managed.arguments)
                    .args(["--", program]);
                command
            }
        };
        // The order of text and of hash tables must not depend on who runs this.
        command
            .current_dir(directory)
            .env("LC_ALL", "C")
            .env("PYTHONHASHSEED", "0")
            .env("PERL_HASH_SEED", "0");
        command
    }

    /// What Terrace reported about the command, when it has ended.
    pub fn report(&self, directory: &Path) -> Result<Option<Report>, String> {
        self.terrace.as_ref().map(|_| Report::read(&report_in(directory))).transpose()
    }
}

fn report_in(directory: &Path) -> PathBuf {
    directory.join("report.json")
}
