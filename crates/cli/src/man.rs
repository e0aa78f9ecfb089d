//! `terrace man`: manual pages, generated from the definitions of the command
//! line.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Command, CommandFactory};
use serde::Serialize;

use crate::args::Cli;
use crate::failure::Failure;
use crate::output::{self, Files, Kind};

/// Write the manual pages into a directory, or the main one to stdout.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: terrace man /usr/local/share/man/man1")]
pub(crate) struct Args {
    /// The directory; it is created where it is missing. Without it the main
    /// page is printed, as for `terrace man | man -l -`.
    dir: Option<PathBuf>,
}

#[derive(Serialize)]
struct Written {
    files: Vec<PathBuf>,
}

#[derive(Serialize)]
struct Page {
    page: String,
}

impl Args {
    pub(crate) fn execute(self, json: bool) -> Result<ExitCode, Failure> {
        let mut command = Cli::command().disable_help_subcommand(true);
        command.build();
        match self.dir {
            None => {
                let page = render(command)?;
                if json {
                    output::print(&output::json("terrace.man", &Page { page })?)?;
                } else {
                    output::print(&page)?;
                }
            }
            Some(dir) => {
                let files = write_all(&command, &dir)?;
                if json {
                    output::print(&output::json("terrace.man", &Written { files })?)?;
                } else {
                    for file in files {
                        output::print(&format!("{}\n", file.display()))?;
                    }
                }
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// One page for the command itself, one for each verb, and so on below it.
fn write_all(command: &Command, dir: &Path) -> Result<Vec<PathBuf>, Failure> {
    fs::create_dir_all(dir)
        .map_err(|e| Failure::bad_input(format!("DIR: {}: {e}", dir.display())))?;
    let mut files = Vec::new();
    write_tree(command, "terrace", dir, &mut files)?;
    Ok(files)
}

fn write_tree(
    command: &Command,
    name: &str,
    dir: &Path,
    files: &mut Vec<PathBuf>,
) -> Result<(), Failure> {
    for verb in command.get_subcommands().filter(|verb| verb.get_name() != "help") {
        write_tree(verb, &format!("{name}-{}", verb.get_name()), dir, files)?;
    }
    let path = dir.join(format!("{name}.1"));
    // The name heads the page; a verb alone would be taken for a command.
    let page = render(command.clone().display_name(name))?;
    Files::new().writes("DIR", &path, Kind::Whole)?.write_whole(page.as_bytes())?;
    files.push(path);
    Ok(())
}

fn render(command: Command) -> Result<String, Failure> {
    let mut page = Vec::new();
    clap_mangen::Man::new(command)
        .render(&mut page)
        .map_err(|e| Failure::failed(format!("cannot write a manual page: {e}")))?;
    Ok(String::from_utf8_lossy(&page).into_owned())
}
