//! `terrace profile merge`.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use super::{Summary, read, tell, write};
use crate::failure::Failure;
use crate::output::{self, Files, facts};

/// Make one profile of several, with means and deviations over all of their runs.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example: terrace profile merge -o all.profile monday.profile tuesday.profile"
)]
pub(crate) struct Args {
    /// Where the profile goes.
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,

    /// The profiles.
    #[arg(required = true, num_args = 2..)]
    files: Vec<PathBuf>,
}

/// Each with each that comes behind it.
fn pairs<T>(all: &[T]) -> impl Iterator<Item = (&T, &T)> {
    all.iter().enumerate().flat_map(|(i, a)| all[i + 1..].iter().map(move |b| (a, b)))
}

impl Args {
    pub(crate) fn execute(self, json: bool) -> Result<ExitCode, Failure> {
        let mut files = Files::new();
        for path in &self.files {
            files.reads("FILES", path);
        }
        let same = |a: &Path, b: &Path| {
            let file = |path| std::fs::metadata(path).map(|file| (file.dev(), file.ino()));
            file(a).is_ok_and(|a| file(b).is_ok_and(|b| a == b))
        };
        let of_one = pairs(&self.files).find(|(a, b)| same(a, b));
        if let Some((a, b)) = of_one {
            return Err(Failure::bad_input(format!(
                "{}: is the same file as {}: its runs would count twice",
                b.display(),
                a.display()
            )));
        }
        let profiles = self.files.iter().map(|path| read(path)).collect::<Result<Vec<_>, _>>()?;
        let name = |at: usize| self.files[at - 1].display().to_string();
        let merged = terrace_profile::merge(&profiles)
            .map_err(|unlike| Failure::bad_input(unlike.told(name)))?;
        if profiles.iter().any(|profile| profile.program != merged.program) {
            output::warn("the profiles are of different programs or arguments");
        }
        let read: Vec<_> = self.files.iter().zip(&profiles).collect();
        for ((a, _), (b, _)) in pairs(&read).filter(|(a, b)| a.1 == b.1) {
            output::warn(format_args!(
                "{} says the same as {}: if it is a copy, its runs count twice",
                b.display(),
                a.display()
            ));
        }
        if merged.build_id.is_none() && profiles.iter().any(|profile| profile.build_id.is_some()) {
            output::warn("the profiles are of different builds of the program");
        }
        let named = write(&mut files, &self.output, &merged.to_text())?;
        let summary = Summary::new(&merged);
        let text = if json {
            output::json("terrace.profile.merge", &summary)?
        } else {
            facts("", &summary.facts())
        };
        tell(named, &text)?;
        Ok(ExitCode::SUCCESS)
    }
}
