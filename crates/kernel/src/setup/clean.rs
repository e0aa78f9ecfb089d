//! Undoes what runs have made, as far as nobody needs it any more.
//!
//! What a run has made is needed as long as its command lives, and afterwards as long as a process
//! of its group does: its memory lies in the swap. Brakes and limits are taken off at once, so
//! that such a process goes on as if there had never been any. Everything can be interrupted
//! anywhere and done again.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::io;
use std::path::PathBuf;

use serde::Serialize;

use super::group::{Group, Removal};
use super::records::{Found, Records, RunRecord, boot};
use super::zswap::{self, ZswapRecord};
use super::{Site, zram};

/// What was undone, and what was not.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Cleaned {
    /// What is gone now.
    pub removed: Vec<String>,
    /// What stays, and why.
    pub kept: Vec<Remaining>,
    /// Of what is gone: groups below a run's, which its program had made and left empty.
    #[serde(skip)]
    pub emptied: Vec<PathBuf>,
}

/// Something that stays.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Remaining {
    /// What.
    pub what: String,
    /// Why.
    pub why: String,
    /// Whether that is as it should be: it belongs to somebody who lives.
    pub in_use: bool,
    /// Whether it was made for the run that is over by now, and not for another one before.
    #[serde(skip)]
    pub ours: bool,
}

impl Cleaned {
    fn keep(&mut self, what: String, why: &dyn Display, in_use: bool, ours: bool) {
        self.kept.push(Remaining { what, why: why.to_string(), in_use, ours });
    }

    /// The records that could be read. What the others were about is not known, and stays.
    fn readable<T>(&mut self, found: Vec<Found<T>>) -> Vec<T> {
        let mut readable = Vec::new();
        for Found { name, record } in found {
            match record {
                Ok(record) => readable.push(record),
                Err(e) => self.keep(format!("what {name} says"), &e, false, false),
            }
        }
        readable
    }
}

/// Why a device stays.
const RUN: &str = "a run swaps to it";
const PROCESSES: &str = "memory of processes that a run has left may lie in it";

/// Which processes keep a group.
fn inhabitants(group: &Group, lived: &[(PathBuf, Vec<u32>)]) -> String {
    let mut told = BTreeSet::new();
    let mut parts = Vec::new();
    for (directory, members) in lived {
        // Under version 1 each is in a group of each hierarchy.
        let new: Vec<_> =
            members.iter().filter(|&&process| told.insert(process)).map(u32::to_string).collect();
        if !new.is_empty() {
            let is_it = directory == group.directory();
            let place = if is_it { "it".to_owned() } else { directory.display().to_string() };
            parts.push(format!("in {place}: {}", new.join(", ")));
        }
    }
    format!("processes run {}", parts.join("; "))
}

/// Undoes what belongs to no living process.
///
/// # Errors
/// If there is no getting at the records. What cannot be undone is no error, but
/// [`Cleaned::kept`]; so is a record that cannot be read.
pub fn clean(site: &Site) -> io::Result<Cleaned> {
    let records = Records::open(&site.records)?;
    undo(site, &records, None)
}

/// The same; the run of the record that is named is over, although its command lives.
pub(super) fn undo(site: &Site, records: &Records, over: Option<&str>) -> io::Result<Cleaned> {
    let root = &site.root;
    let mut cleaned = Cleaned::default();
    // Devices, and by whom.
    let mut in_use = BTreeMap::<u32, &str>::new();
    let mut zswap_in_use = false;
    let found = records.runs()?;
    // Which devices such a run swaps to is not known: it may be any.
    let all_in_use =
        found.iter().any(|found| found.record.is_err() && found.is_of_living_run(root));
    zswap_in_use |= all_in_use;
    let runs = cleaned.readable(found);
    let lives = |run: &RunRecord| {
        over != Some(&run.name()) && run.owner.is_of_this_boot(root) && run.owner.is_alive(root)
    };
    // A run that shares the budget of another is in its group, and may outlive it.
    let needed: Vec<Group> =
        runs.iter().filter(|run| lives(run)).filter_map(|run| run.group.clone()).collect();
    let ended = runs.iter().find(|run| over == Some(&run.name()));
    let (our_devices, our_zswap) =
        ended.map_or((Vec::new(), false), |run| (run.devices.clone(), run.zswap));
    for run in runs {
        let name = run.name();
        if !run.owner.is_of_this_boot(root) {
            records.remove(&name)?;
            continue;
        }
        let process = run.owner.process;
        if lives(&run) {
            if over.is_none() {
                let what = format!("run {process} ({})", run.program);
                cleaned.keep(what, &"it is under way", true, false);
            }
            in_use.extend(run.devices.iter().map(|&device| (device, RUN)));
            zswap_in_use |= run.zswap;
            continue;
        }
        if let Some(group) = run.group.as_ref().filter(|group| !needed.contains(group)) {
            let path = group.directory().display().to_string();
            let (what, ours) = (format!("control group {path}"), over == Some(&name));
            let removed = group.release().and_then(|()| group.remove());
            // What has no process has no memory in the swap either.
            let (why, is_in_use) = match removed {
                Ok(Removal::Gone { below }) => {
                    for below in below {
                        let empty = format!("control group {}, which was empty", below.display());
                        cleaned.removed.push(empty);
                        cleaned.emptied.push(below);
                    }
                    cleaned.removed.push(what);
                    records.remove(&name)?;
                    continue;
                }
                Ok(Removal::Inhabited(lived)) => (inhabitants(group, &lived), true),
                Err(e) => {
                    let why = e.to_string();
                    let why = why.strip_prefix(&format!("{path}: ")).unwrap_or(&why).to_owned();
                    (why, !group.placed_below().is_empty())
                }
            };
            cleaned.keep(what, &why, is_in_use, ours);
            if is_in_use {
                for &device in &run.devices {
                    in_use.entry(device).or_insert(PROCESSES);
                }
                zswap_in_use |= run.zswap;
            }
            continue;
        }
        records.remove(&name)?;
    }
    let zswap = records.zswap().unwrap_or_else(|e| {
        cleaned.keep(format!("what {} says", ZswapRecord::NAME), &e, false, false);
        None
    });
    if let Some(zswap) = zswap.filter(|_| !zswap_in_use) {
        if zswap.boot == boot(root) {
            match zswap::end(root, &zswap) {
                Ok(()) => {
                    cleaned.removed.push("zswap, as Terrace had switched it on".to_owned());
                    records.remove(ZswapRecord::NAME)?;
                }
                Err(e) => cleaned.keep("zswap".to_owned(), &e, false, our_zswap),
            }
        } else {
            records.remove(ZswapRecord::NAME)?;
        }
    }
    for device in cleaned.readable(records.found_devices()?) {
        let name = device.name();
        if device.boot != boot(root) {
            records.remove(&name)?;
            continue;
        }
        let what = format!("zram{}", device.device);
        let ours = our_devices.contains(&device.device);
        let by = in_use.get(&device.device).copied().or(all_in_use.then_some(RUN));
        if let Some(by) = by {
            if over.is_none() {
                cleaned.keep(what, &by, true, ours);
            }
            continue;
        }
        match zram::end(root, &*site.swapping, &device) {
            Ok(true) => {
                cleaned.removed.push(what);
                records.remove(&name)?;
            }
            // Nothing of ours is left.
            Ok(false) => records.remove(&name)?,
            Err(e) => cleaned.keep(what, &e, false, ours),
        }
    }
    Ok(cleaned)
}
