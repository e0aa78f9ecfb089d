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
    /// Whose report it is.
    engine: Engine,
}

/// Who serves the faults of a managed program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Engine {
    /// A library of Terrace's in it.
    #[default]
    Pager,
    /// The kernel.
    Kernel,
}

impl Engine {
    /// What `terrace run --engine` calls it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pager => "pager",
            Self::Kernel => "kernel",
        }
    }

    /// What a case's name has behind it.
    pub const fn mark(self) -> &'static str {
        match self {
            Self::Pager => "",
            Self::Kernel => " [kernel engine]",
        }
    }

    /// Those that `PROGRAM_ENGINES` names, separated by commas; the pager without it.
    ///
    /// # Errors
    /// A name that is none.
    pub fn asked_for() -> Result<Vec<Self>, String> {
        Self::asked_for_by("PROGRAM_ENGINES")
    }

    /// The same of another variable.
    ///
    /// # Errors
    /// A name that is none.
    pub fn asked_for_by(variable: &str) -> Result<Vec<Self>, String> {
        let names = std::env::var(variable).unwrap_or_else(|_| "pager".to_owned());
        let one = |name: &str| match name.trim() {
            "pager" => Ok(Self::Pager),
            "kernel" => Ok(Self::Kernel),
            other => Err(format!("{variable}: `{other}` is no engine (pager, kernel)")),
        };
        names.split(',').map(one).collect()
    }
}

impl Environment {
    /// Without Terrace.
    pub fn plain(limit: Duration) -> Self {
        Self { terrace: None, limit }
    }

    /// Under `terrace run` with a budget, and further arguments of it.
    pub fn managed(
        executable: &Path,
        engine: Engine,
        budget: Bytes,
        arguments: &[String],
        limit: Duration,
    ) -> Self {
        let executable = executable.to_owned();
        let terrace = Managed { executable, budget, arguments: arguments.to_vec(), engine };
        Self { terrace: Some(terrace), limit }
    }

    /// Who serves the faults here; `None` without Terrace.
    pub fn engine(&self) -> Option<Engine> {
        self.terrace.as_ref().map(|managed| managed.engine)
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
                    .args(["--engine", managed.engine.name()])
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
