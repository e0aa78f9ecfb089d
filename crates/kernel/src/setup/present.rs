//! Compressed swap that the machine has by itself: it is on, and no run of Terrace's has made it.
//!
//! Whoever swaps to it as well changes nothing for others. A device that a run has made is no such
//! swap, although others swap to it as long as it is there: it goes with that run.

use std::io;
use std::path::Path;

use terrace_core::Bytes;

use super::records::device_record;
use super::zswap::{self, ZswapRecord};
use super::{header, swap, zram};
use crate::files::{Root, named};

/// Which compressed swap of the machine's own has so much free, in words. `records` is the directory
/// in which root's runs write down what they make.
///
/// # Errors
/// Why there is none.
pub fn compressed(root: &Root, records: &Path, wanted: Bytes) -> Result<String, String> {
    let areas = swap::areas(root);
    let is_zswap = zswap::is_on(root) && !areas.is_empty();
    if !is_zswap && areas.iter().all(|area| area.zram().is_none()) {
        return Err("no swap on compressed memory is on".to_owned());
    }
    let unknown = |e: io::Error| format!("it cannot be seen whether a run has made it ({e})");
    // What of a run's own device is free is free for as long as that run lasts.
    let mut own = Vec::new();
    for area in &areas {
        let of_a_run = area.zram().map(|device| is_of_a_run(root, records, device)).transpose();
        if of_a_run.map_err(unknown)? != Some(true) {
            own.push(area);
        }
    }
    let zrams: Vec<_> = own.iter().filter_map(|area| Some((area.zram()?, area.free()))).collect();
    let compressed = zrams.iter().fold(Bytes::ZERO, |sum, (_, free)| sum + *free);
    let names: Vec<_> = zrams.iter().map(|(device, _)| format!("zram{device}")).collect();
    let names = names.join(", ");
    if !zrams.is_empty() && compressed >= wanted {
        return Ok(format!("{names} is on, {compressed} free"));
    }
    let short = |what: &str, free: Bytes| {
        Err(format!(
            "{what} is on, but only {free} of it are free, and a program may need {wanted}"
        ))
    };
    if is_zswap && !is_written_down(records, ZswapRecord::NAME).map_err(unknown)? {
        let free = own.iter().fold(Bytes::ZERO, |sum, area| sum + area.free());
        if !free.is_zero() && free >= wanted {
            return Ok(format!("zswap is on, {free} of swap free"));
        }
        return short("swap behind zswap", free);
    }
    if zrams.is_empty() {
        return Err("the only swap on compressed memory is what another run has made".to_owned());
    }
    short(&names, compressed)
}

/// Whether a device that is swapped to was made for a run.
fn is_of_a_run(root: &Root, records: &Path, device: u32) -> io::Result<bool> {
    match header::is_of_a_run(&root.path(zram::node(device))) {
        // Root alone may look, and root's runs alone make devices.
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
            is_written_down(records, &device_record(device))
        }
        // It is on its way out: nobody's, as a run's own.
        Err(_) => Ok(true),
        is => is,
    }
}

fn is_written_down(records: &Path, name: &str) -> io::Result<bool> {
    let path = records.join(name);
    path.try_exists().map_err(|e| named(&path, &e))
}
