//! The groups that are there and are governed: one, or each of those below one that are called so.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::{Duration, Instant};

use serde::Serialize;
use terrace_report::govern::GovernReport;

use super::Args;
use super::served::Served;
use super::session::{EVERY, Session};
use crate::failure::Failure;
use crate::output;

/// How often groups are looked for.
const LOOK: Duration = Duration::from_secs(5);
/// How deep: a container runtime's groups are four or five deep.
const DEPTH: u32 = 8;

/// A name in which `*` stands for anything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NamePattern(String);

impl FromStr for NamePattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.is_empty() || text.contains('/') {
            return Err(format!("`{text}` is no name of a group, such as `*pod*.slice`"));
        }
        Ok(Self(text.to_owned()))
    }
}

impl NamePattern {
    fn matches(&self, name: &str) -> bool {
        let mut parts = self.0.split('*');
        let first = parts.next().unwrap_or_default();
        let Some(mut rest) = name.strip_prefix(first) else { return false };
        let mut parts: Vec<_> = parts.collect();
        // Without a star it is the whole name.
        let Some(last) = parts.pop() else { return rest.is_empty() };
        for part in parts {
            let Some(at) = rest.find(part) else { return false };
            rest = &rest[at + part.len()..];
        }
        rest.len() >= last.len() && rest.ends_with(last)
    }
}

/// Groups that are governed.
pub(super) struct Watched {
    groups: BTreeMap<PathBuf, Session>,
    /// Where others are looked for, and when the next time.
    each: Option<(PathBuf, NamePattern, Instant)>,
    /// Groups that cannot be governed, which was said.
    refused: BTreeSet<PathBuf>,
    served: Option<Served>,
}

/// The figures of several groups, as a document.
#[derive(Serialize)]
struct Groups {
    groups: Vec<GovernReport>,
}

impl Watched {
    /// One group.
    pub(super) fn one(directory: PathBuf, session: Session, args: &Args) -> Result<Self, Failure> {
        let groups = BTreeMap::from([(directory, session)]);
        let served = Served::open(args)?;
        Ok(Self { groups, each: None, refused: BTreeSet::new(), served })
    }

    /// Those below a directory that are called so, as they come and go.
    pub(super) fn each(below: PathBuf, name: NamePattern, args: &Args) -> Result<Self, Failure> {
        let each = Some((below, name, Instant::now()));
        let served = Served::open(args)?;
        Ok(Self { groups: BTreeMap::new(), each, refused: BTreeSet::new(), served })
    }

    /// Looks for groups that have come.
    fn look(&mut self, args: &Args) {
        let Some((below, name, due)) = &mut self.each else { return };
        if Instant::now() < *due {
            return;
        }
        *due = Instant::now() + LOOK;
        let mut found = Vec::new();
        find(below, name, DEPTH, &mut found);
        for directory in found {
            if self.groups.contains_key(&directory) || self.refused.contains(&directory) {
                continue;
            }
            match args.group(&directory) {
                Ok(group) => {
                    let lacks = args.lacks(&group);
                    let called = directory.display().to_string();
                    let session = Session::new(called, group, args, lacks);
                    self.groups.insert(directory, session);
                }
                Err(failure) => {
                    if !args.quiet {
                        output::warn(failure.message());
                    }
                    self.refused.insert(directory);
                }
            }
        }
        self.refused.retain(|directory| directory.exists());
    }

    /// Looks and puts out what may go, where it is time to; for how long there is nothing to do
    /// then, or `None` if the only group is gone.
    pub(super) fn step(&mut self, args: &Args) -> Result<Option<Duration>, Failure> {
        self.look(args);
        let is_one = self.each.is_none();
        let mut wait = Duration::from_nanos(EVERY.get());
        let mut gone = Vec::new();
        for (directory, session) in &mut self.groups {
            match session.step() {
                Ok(Some(time)) => wait = wait.min(time),
                Ok(None) if is_one => return Ok(None),
                Ok(None) => gone.push(directory.clone()),
                Err(failure) if is_one => return Err(failure),
                Err(failure) => {
                    failure.report();
                    self.refused.insert(directory.clone());
                    gone.push(directory.clone());
                }
            }
        }
        let is_new = !gone.is_empty() || self.groups.values().any(Session::has_looked);
        for directory in gone {
            self.groups.remove(&directory);
        }
        if let Some(served) = self.served.as_ref().filter(|_| is_new) {
            served.tell(&mut self.groups.values_mut().collect::<Vec<_>>())?;
        }
        Ok(Some(wait))
    }

    /// The reports as they are now.
    pub(super) fn text(&self, json: bool) -> Result<String, Failure> {
        if let (None, Some(session)) = (&self.each, self.groups.values().next()) {
            return session.text(None, json);
        }
        if json {
            let groups = self.groups.values().map(|session| session.report(None)).collect();
            return output::json("terrace.govern-each", &Groups { groups });
        }
        if self.groups.is_empty() {
            return Ok("terrace: there is no such group\n".to_owned());
        }
        let texts: Result<Vec<_>, _> =
            self.groups.values().map(|session| session.text(None, false)).collect();
        texts.map(|texts| texts.join("\n"))
    }
}

/// Adds the groups of a name; what lies below one belongs to it.
fn find(below: &Path, name: &NamePattern, depth: u32, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(below).into_iter().flatten().flatten() {
        if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            continue;
        }
        if name.matches(&entry.file_name().to_string_lossy()) {
            found.push(entry.path());
        } else if depth > 0 {
            find(&entry.path(), name, depth - 1, found);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_anything() {
        let matches =
            |pattern: &str, name: &str| pattern.parse::<NamePattern>().unwrap().matches(name);
        for (pattern, name) in [
            ("*", "anything"),
            ("*pod*.slice", "kubepods-burstable-pod1234.slice"),
            ("a*b*c", "aXbYc"),
            ("a*b*c", "abbc"),
            ("web.slice", "web.slice"),
            ("*a", "aa"),
        ] {
            assert!(matches(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in [
            ("*pod*.slice", "kubepods-burstable.slice2"),
            ("web.slice", "web.slice.d"),
            ("a*b", "b"),
            ("ab*ba", "aba"),
            ("*x*", "yyy"),
        ] {
            assert!(!matches(pattern, name), "{pattern} {name}");
        }
        assert!("a/b".parse::<NamePattern>().is_err() && "".parse::<NamePattern>().is_err());
    }

    #[test]
    fn groups_are_found_at_any_depth_and_not_below_each_other() {
        let root = tempfile::tempdir().unwrap();
        for path in ["a/pod1/pod2", "b/c/pod3", "other"] {
            fs::create_dir_all(root.path().join(path)).unwrap();
        }
        let mut found = Vec::new();
        find(root.path(), &"pod*".parse().unwrap(), DEPTH, &mut found);
        found.sort();
        assert_eq!(found, ["a/pod1", "b/c/pod3"].map(|path| root.path().join(path)));
    }
}
