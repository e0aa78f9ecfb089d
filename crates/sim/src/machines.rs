//! Machines by name, and machine files by path.

use std::path::{Path, PathBuf};

use terrace_core::machine::{self, TierFile};
use terrace_core::{Bytes, Machine, MachineError, Shelf};
use terrace_dram::{MemoryFile, presets};

use crate::error::SimError;
use crate::exact::timed_memory;

/// The machine files that come with Terrace, by the machine's name.
pub const BUILTIN: [(&str, &str); 7] = [
    ("optane-cascade-lake", include_str!("../../../machines/optane-cascade-lake.toml")),
    ("cxl", include_str!("../../../machines/cxl.toml")),
    ("kindle", include_str!("../../../machines/kindle.toml")),
    ("laptop", include_str!("../../../machines/laptop.toml")),
    ("kloc-two-tier", include_str!("../../../machines/kloc-two-tier.toml")),
    ("kloc-memory-mode", include_str!("../../../machines/kloc-memory-mode.toml")),
    ("four-node", include_str!("../../../machines/four-node.toml")),
];

/// A machine that comes with Terrace; `None` for a name that is not of these.
pub fn builtin(name: &str) -> Option<Machine> {
    let (_, text) = BUILTIN.iter().find(|(n, _)| *n == name)?;
    Some(Machine::parse(&format!("{name}.toml"), text).expect("tests parse every built-in machine"))
}

/// The machine of HeMem's paper.
pub fn optane_cascade_lake() -> Machine {
    builtin("optane-cascade-lake").expect("it is built in")
}

/// Refuses a machine whose memory lies behind DRAM caches, for an engine that does not model them.
pub(crate) fn refuse_dram_cache(machine: &Machine) -> Result<(), SimError> {
    if machine.dram_cache.is_none() {
        return Ok(());
    }
    let message = format!(
        "`{}` has DRAM caches in front of its memory; only the simulated kernel models them \
         (`terrace reproduce klocs`)",
        machine.name
    );
    Err(SimError::parameter("machine", message))
}

/// All memories of a simulated machine hold less than this, and so does a simulated program: frames
/// have numbers of 32 bits.
pub const MOST_MEMORY: Bytes = Bytes::gib(16 << 10);

/// Refuses memories that are larger than can be simulated page by page. `fast` is what the fastest
/// of them holds, if not what the machine file says.
pub fn refuse_too_large(machine: &Machine, fast: Option<Bytes>) -> Result<(), SimError> {
    let mut capacities = machine.tiers.iter().map(|tier| tier.capacity.value);
    let fastest = capacities.next().unwrap_or_default();
    let all = fast.unwrap_or(fastest) + capacities.sum::<Bytes>();
    if all < MOST_MEMORY {
        return Ok(());
    }
    let message = format!(
        "all memories of `{}` together would hold {all}; they must hold less than {MOST_MEMORY} \
         to be simulated",
        machine.name
    );
    Err(SimError::parameter(if fast.is_some() { "fast" } else { "machine" }, message))
}

/// A built-in machine by its name, else the machine file at that path or [of that
/// name](Shelf::find).
pub fn load(name_or_path: &str) -> Result<Machine, SimError> {
    if let Some(machine) = builtin(name_or_path) {
        return Ok(machine);
    }
    let (path, text) = read(name_or_path)?;
    parse(&path.display().to_string(), &text)
}

/// Reads a machine file's text, and looks at the memories that its tiers name. `file` is
/// for errors; a memory is looked for beside it first.
///
/// # Errors
///
/// File, line and field, and what is wrong there.
pub fn parse(file: &str, text: &str) -> Result<Machine, SimError> {
    let mut machine = Machine::parse(file, text)?;
    let beside = Path::new(file).parent();
    for (i, tier) in machine.tiers.iter_mut().enumerate() {
        let Some(name) = &tier.memory_file else { continue };
        let is_own = presets::BUILTIN.iter().any(|(own, _)| own == name);
        if let Some(near) = beside.map(|beside| beside.join(name)).filter(|near| near.is_file())
            && !is_own
        {
            tier.memory_file = Some(near.display().to_string());
        }
        let name = tier.memory_file.clone().unwrap_or_default();
        let fits = |memory: MemoryFile| {
            let (holds, wanted) = (timed_memory::capacity(&memory), tier.capacity.value);
            if holds < wanted {
                return Err(format!("`{}` holds {holds}, the tier {wanted}", memory.name));
            }
            Ok(())
        };
        if let Err(message) = memory_of(tier, &name).and_then(fits) {
            let field = format!("tier[{i}].memory-file");
            let line = machine::line_of(text, &field).unwrap_or(1);
            let file = file.to_owned();
            return Err(MachineError { file, line, field: Some(field), message }.into());
        }
    }
    Ok(machine)
}

/// The memory that a tier names, if it can be the tier's; else what is wrong. Its size is not
/// looked at: runs give a tier more or less than its file does.
pub(crate) fn memory_of(tier: &TierFile, name: &str) -> Result<MemoryFile, String> {
    let file = presets::load(name)?;
    timed_memory::unfit(tier, &file).map(|()| file)
}

/// The text of a built-in machine's file, else of the file at that path or [of that
/// name](Shelf::find).
pub fn text(name_or_path: &str) -> Result<String, SimError> {
    match BUILTIN.iter().find(|(name, _)| *name == name_or_path) {
        Some((_, text)) => Ok((*text).to_owned()),
        None => read(name_or_path).map(|(_, text)| text),
    }
}

/// The file that a machine is read from; `None` for one that is built in, or not there.
pub fn file(name_or_path: &str) -> Option<PathBuf> {
    if BUILTIN.iter().any(|(name, _)| *name == name_or_path) {
        return None;
    }
    Shelf::Machines.find(name_or_path).ok()
}

/// The files that a machine is read from: its own first, then those of the memories that its tiers
/// name. What is built in has none.
pub fn files(name_or_path: &str) -> Vec<PathBuf> {
    let Some(own) = file(name_or_path) else { return Vec::new() };
    let tiers = load(name_or_path).map(|machine| machine.tiers).unwrap_or_default();
    let memories = tiers.iter().filter_map(|tier| presets::file(tier.memory_file.as_deref()?));
    std::iter::once(own).chain(memories).collect()
}

/// The file of a machine that is not built in, and its text.
fn read(name_or_path: &str) -> Result<(PathBuf, String), SimError> {
    let path = Shelf::Machines.find(name_or_path).map_err(|missing| {
        let builtin = BUILTIN.map(|(name, _)| format!("`{name}`")).join(", ");
        SimError::UnknownMachine { name: name_or_path.to_owned(), builtin, missing }
    })?;
    match terrace_core::read_text(&path) {
        Ok(text) => Ok((path, text)),
        Err(source) => Err(SimError::Read { path, source }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_builtin_machine_parses_and_bears_its_name() {
        for (name, _) in BUILTIN {
            assert_eq!(builtin(name).expect("built in").name, name);
        }
    }

    #[test]
    fn a_name_that_is_neither_lists_the_names_there_are() {
        let error = load("optain").expect_err("no such machine").to_string();
        assert!(error.contains("`optain`") && error.contains("`cxl`"), "{error}");
    }

    #[test]
    fn memories_that_cannot_be_simulated_page_by_page_are_refused_by_what_was_given() {
        let machine = builtin("cxl").expect("built in");
        assert!(refuse_too_large(&machine, None).is_ok());
        assert!(refuse_too_large(&machine, Some(Bytes::gib(15 << 10))).is_ok());
        for fast in [MOST_MEMORY, Bytes::gib(999 << 10), Bytes::MAX] {
            let error = refuse_too_large(&machine, Some(fast)).expect_err("refused").to_string();
            assert!(error.starts_with("fast: all memories of `cxl` together"), "{error}");
        }
        let mut large = machine;
        large.tiers[1].capacity.value = MOST_MEMORY;
        let error = refuse_too_large(&large, None).expect_err("refused").to_string();
        assert!(error.starts_with("machine: "), "{error}");
    }

    /// `kindle` with a memory for its DRAM, which stands in a line of its own.
    fn timed(memory: &str, capacity: &str) -> (String, Result<Machine, SimError>) {
        let (_, text) = BUILTIN.iter().find(|(name, _)| *name == "kindle").expect("built in");
        let text = text.replacen(
            "kind = \"byte",
            &format!("memory-file = \"{memory}\"\nkind = \"byte"),
            1,
        );
        let text = text.replacen("3GiB", capacity, 1);
        let line =
            text.lines().position(|line| line.starts_with("memory-file")).expect("a line") + 1;
        (format!("some/m.toml:{line}: field `tier[0].memory-file`: "), parse("some/m.toml", &text))
    }

    #[test]
    fn a_machine_is_read_from_its_file_and_those_of_its_memories() {
        assert_eq!(files("kindle"), [] as [PathBuf; 0]);
        assert_eq!(files("no/such/machine"), [] as [PathBuf; 0]);
        let directory = tempfile::tempdir().expect("a directory");
        let [machine, memory] = ["m.toml", "mem.toml"].map(|name| directory.path().join(name));
        let name = machine.to_str().expect("a name");
        let (_, text) = BUILTIN.iter().find(|(name, _)| *name == "kindle").expect("built in");
        std::fs::write(&machine, text).expect("written");
        assert_eq!(files(name), std::slice::from_ref(&machine));
        let timed = "memory-file = \"mem.toml\"\nkind = \"byte";
        std::fs::write(&machine, text.replacen("kind = \"byte", timed, 1)).expect("written");
        let dram = include_str!("../../../machines/memory/kindle-dram.toml");
        std::fs::write(&memory, dram).expect("written");
        assert_eq!(files(name), [machine.clone(), memory]);
    }

    #[test]
    fn a_memory_that_is_none_or_does_not_fit_is_refused_with_file_line_and_field() {
        assert!(timed("kindle-dram", "3GiB").1.is_ok());
        for (memory, capacity, why) in [
            ("kindel", "3GiB", "kindel: "),
            ("kindle", "3GiB", "two kinds of memory"),
            ("ddr4-2400", "300GiB", "holds 8.00 GiB, the tier 300 GiB"),
            ("optane", "3GiB", "more than read-latency"),
        ] {
            let (place, found) = timed(memory, capacity);
            let error = found.expect_err(memory).to_string();
            assert!(error.starts_with(&place) && error.contains(why), "{error}");
        }
    }
}
