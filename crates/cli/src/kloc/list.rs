//! `terrace kloc list`: files and sockets that the daemon knows.

use std::path::PathBuf;
use std::process::ExitCode;

use terrace_core::ContextIdentity;
use terrace_kloc_live::observe::programs::MOST_NAMES;
use terrace_kloc_live::service::documents::{File, List, Sockets};
use terrace_kloc_live::service::state::{self, Question};

use super::{amount, ask, time};
use crate::failure::Failure;
use crate::output::{self, count, table};

/// List files with most pages, or sockets with most memory.
///
/// Sockets are observed only: nothing is done to them. Exit code 1 where no daemon runs.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: terrace kloc list --count 5")]
pub(crate) struct Args {
    /// How many at most. No more than 10,000 are told at once.
    #[arg(long, value_name = "COUNT", default_value = "20")]
    count: usize,

    /// Sockets of TCP instead of files.
    #[arg(long)]
    sockets: bool,

    /// Where the daemon keeps its socket.
    #[arg(long, value_name = "DIRECTORY", default_value = state::DIRECTORY)]
    state: PathBuf,
}

impl Args {
    pub(crate) fn execute(self, json: bool) -> Result<ExitCode, Failure> {
        let text = if self.sockets {
            let question = Question::Sockets { count: self.count };
            let answer: Result<Sockets, String> = ask(&self.state, &question)?;
            let sockets =
                answer.map_err(|why| Failure::unsupported(format!("--sockets: {why}")))?;
            if json {
                output::json("terrace.kloc.sockets", &sockets)?
            } else {
                render_sockets(&sockets)
            }
        } else {
            let list: List = ask(&self.state, &Question::List { count: self.count })?;
            if json { output::json("terrace.kloc.list", &list)? } else { render(&list) }
        };
        output::print(&text)?;
        Ok(ExitCode::SUCCESS)
    }
}

/// The end of a list that has less than was asked for.
const CUT: &str = "; cut: no more are told at once\n";

/// What a file is called, or which one it is.
pub(super) fn name(file: &File) -> String {
    file.name.clone().unwrap_or_else(|| match file.file {
        ContextIdentity::File { device, inode, generation } => {
            format!("(no name: device {device}, inode {inode}, generation {generation})")
        }
        ContextIdentity::Socket { cookie } => format!("socket {cookie}"),
    })
}

/// How many names are in the kernel's cache; more than so many are not counted.
pub(super) fn names(names: u32) -> String {
    if names < MOST_NAMES { count(names.into()) } else { format!("{MOST_NAMES} or more") }
}

fn render(list: &List) -> String {
    let mut text = render_files(list);
    for filter in &list.unseen {
        text.push_str(&format!("nothing seen: {filter}\n"));
    }
    text
}

/// The files alone.
pub(super) fn render_files(list: &List) -> String {
    let rows: Vec<_> = list
        .files
        .iter()
        .map(|file| {
            let state = match (file.active, file.gone) {
                (true, _) => format!("open {}", file.opens),
                (false, true) => "left".to_owned(),
                (false, false) => {
                    file.closed_for.map_or_else(|| "closed".to_owned(), |t| time(t) + " closed")
                }
            };
            [
                name(file),
                amount(file.cached),
                amount(file.length),
                state,
                count(file.opened),
                count(file.hits.into()),
                file.extents.map_or_else(String::new, |extents| count(extents.into())),
                file.names.map_or_else(String::new, names),
                file.memory.clone(),
                file.command.clone(),
            ]
        })
        .collect();
    let header =
        ["file", "cached", "length", "state", "opened", "hits", "extents", "names", "memory", "by"];
    let mut text = table(header, &rows);
    text.push_str(&format!("{} of {} files", list.files.len(), count(list.known)));
    text.push_str(if list.cut { CUT } else { "\n" });
    if let Some(bounds) = &list.bounds {
        text.push_str(&format!("{bounds}\n"));
    }
    text
}

fn render_sockets(sockets: &Sockets) -> String {
    let rows: Vec<_> = sockets
        .sockets
        .iter()
        .map(|socket| {
            [
                socket.local.to_string(),
                socket.remote.to_string(),
                socket.state.clone(),
                amount(socket.receiving),
                amount(socket.sending),
                amount(socket.reserved),
                // It is older than the daemon, or one of too many.
                socket.age.map_or_else(|| "unknown".to_owned(), time),
            ]
        })
        .collect();
    let header = ["local", "remote", "state", "receiving", "sending", "reserved", "age"];
    let mut text = table(header, &rows);
    text.push_str(&format!(
        "{} of {} sockets; {} in their queues; observed only",
        sockets.sockets.len(),
        count(sockets.known),
        amount(sockets.memory)
    ));
    text.push_str(if sockets.cut { CUT } else { "\n" });
    text
}

#[cfg(test)]
mod tests {
    use terrace_kloc_live::observe::hooks::HookSet;

    use super::*;

    /// Who reads "opened 3" takes it for three otherwise.
    #[test]
    fn a_list_says_where_numbers_of_opens_are_lower_bounds() {
        let list = |set: HookSet| {
            let (bounds, files, unseen) = (set.bounds().map(str::to_owned), Vec::new(), Vec::new());
            render_files(&List { known: 0, files, cut: false, bounds, unseen })
        };
        assert!(list(HookSet::Polled).contains("opens and hits are lower bounds"));
        assert!(!list(HookSet::Tracepoints).contains("bounds"));
    }
}
