//! Which processes: one with or without its descendants, or a control group.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use terrace_sampler::{ProcStat, proc_text};

/// Which processes are attached to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Targets {
    /// A process; with its descendants, if asked for.
    Process {
        /// Its number.
        process: u32,
        /// Also the processes that it started, and those that these started.
        tree: bool,
    },
    /// The processes of a control group and of those below it.
    Cgroup(PathBuf),
}

impl Targets {
    /// The processes at present, in the order of their numbers; none if the
    /// process has ended. An error if the group is gone.
    pub fn list(&self) -> io::Result<Vec<u32>> {
        let mut list = match self {
            Self::Process { process, tree } => {
                let mut list = Vec::new();
                if is_running(*process) {
                    list.push(*process);
                }
                if *tree {
                    descendants(*process, &parents(), &mut list);
                }
                list
            }
            Self::Cgroup(path) => {
                let mut list = Vec::new();
                members(path, &mut list)?;
                list
            }
        };
        // Ourselves we leave alone: a page of ours that is on its way somewhere
        // must not be what we wait for.
        list.retain(|process| *process != std::process::id());
        list.sort_unstable();
        list.dedup();
        Ok(list)
    }
}

/// Whether a process is there and not merely waited for.
fn is_running(process: u32) -> bool {
    proc_text(format!("/proc/{process}/stat"))
        .ok()
        .is_some_and(|stat| ProcStat::parse(&stat).is_some_and(|stat| !stat.has_ended()))
}

/// Every process's parent.
fn parents() -> BTreeMap<u32, u32> {
    fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .filter_map(|entry| {
            let process = entry.ok()?.file_name().to_str()?.parse().ok()?;
            let stat = proc_text(format!("/proc/{process}/stat")).ok()?;
            let stat = ProcStat::parse(&stat)?;
            (!stat.has_ended()).then_some((process, stat.parent()?))
        })
        .collect()
}

/// What a process has started, and what that has, in the order of their numbers. Where the kernel keeps lists of
/// children (`CONFIG_PROC_CHILDREN`) only these are read, which costs little however many others
/// there are; while processes end, one that goes on can be missing from them.
pub fn started(process: u32) -> Vec<u32> {
    let mut list = Vec::new();
    if !started_by(process, &mut list) {
        list.clear();
        descendants(process, &parents(), &mut list);
    }
    list.sort_unstable();
    list.dedup();
    list
}

/// Adds them; false where there are no such lists.
fn started_by(of: u32, list: &mut Vec<u32>) -> bool {
    let Ok(threads) = fs::read_dir(format!("/proc/{of}/task")) else { return true };
    for thread in threads.flatten() {
        let Ok(children) = fs::read_to_string(thread.path().join("children")) else {
            // The thread is gone, or there are none anywhere.
            if thread.path().exists() {
                return false;
            }
            continue;
        };
        for child in children.split_ascii_whitespace().filter_map(|child| child.parse().ok()) {
            if !list.contains(&child) && is_running(child) {
                list.push(child);
            }
            started_by(child, list);
        }
    }
    true
}

fn descendants(of: u32, parents: &BTreeMap<u32, u32>, list: &mut Vec<u32>) {
    for (&process, &parent) in parents {
        if parent == of && !list.contains(&process) {
            list.push(process);
            descendants(process, parents, list);
        }
    }
}

fn members(group: &Path, list: &mut Vec<u32>) -> io::Result<()> {
    let file = group.join("cgroup.procs");
    let text = fs::read_to_string(&file)
        .map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", file.display())))?;
    list.extend(text.lines().filter_map(|line| line.trim().parse::<u32>().ok()));
    for entry in fs::read_dir(group)?.flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            // A group that goes while we look is gone with its processes.
            let _ = members(&entry.path(), list);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn a_tree_has_the_children_and_ends_with_the_process() {
        let mut shell = Command::new("sh")
            .args(["-c", "sleep 30 & echo; wait"])
            .stdout(Stdio::piped())
            .spawn()
            .expect("sh");
        let mut ready = [0u8; 1];
        io::Read::read_exact(shell.stdout.as_mut().expect("a pipe"), &mut ready).expect("a byte");
        let process = shell.id();
        let alone = Targets::Process { process, tree: false };
        let tree = Targets::Process { process, tree: true };

        assert_eq!(alone.list().expect("a list"), [process]);
        let both = tree.list().expect("a list");
        assert_eq!(both.len(), 2, "{both:?}");
        let children: Vec<_> = both.iter().copied().filter(|&other| other != process).collect();
        assert_eq!(started(process), children);

        for process in both {
            // SAFETY: sends a signal to a child of ours and to its child.
            unsafe { libc::kill(process as i32, libc::SIGKILL) };
        }
        while !alone.list().expect("a list").is_empty() {
            std::thread::yield_now();
        }
        shell.wait().expect("a status");
    }

    #[test]
    fn a_group_has_the_members_of_those_below_it() {
        let root = tempfile::tempdir().expect("a directory");
        fs::create_dir(root.path().join("below")).expect("a directory");
        fs::write(root.path().join("cgroup.procs"), "12\n7\n").expect("a file");
        fs::write(root.path().join("below/cgroup.procs"), "99\n").expect("a file");
        let targets = Targets::Cgroup(root.path().to_owned());
        assert_eq!(targets.list().expect("a list"), [7, 12, 99]);
        assert!(Targets::Cgroup("/no/such/group".into()).list().is_err());
    }
}
