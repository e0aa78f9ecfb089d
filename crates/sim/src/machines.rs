//! Machines by name, and machine files by path.

use std::path::{Path, PathBuf};

use terrace_core::Machine;

use crate::error::SimError;

/// The machine files that come with Terrace, by the machine's name.
pub const BUILTIN: [(&str, &str); 4] = [
    ("optane-cascade-lake", include_str!("../../../machines/optane-cascade-lake.toml")),
    ("cxl", include_str!("../../../machines/cxl.toml")),
    ("kindle", include_str!("../../../machines/kindle.toml")),
    ("laptop", include_str!("../../../machines/laptop.toml")),
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

/// A built-in machine by its name, else the machine file at that path.
pub fn load(name_or_path: &str) -> Result<Machine, SimError> {
    if let Some(machine) = builtin(name_or_path) {
        return Ok(machine);
    }
    Ok(Machine::parse(name_or_path, &text(name_or_path)?)?)
}

/// The text of a built-in machine's file, else of the file at that path.
pub fn text(name_or_path: &str) -> Result<String, SimError> {
    if let Some((_, text)) = BUILTIN.iter().find(|(name, _)| *name == name_or_path) {
        return Ok((*text).to_owned());
    }
    let path = Path::new(name_or_path);
    if !path.exists() {
        let builtin = BUILTIN.map(|(name, _)| format!("`{name}`")).join(", ");
        return Err(SimError::UnknownMachine { name: name_or_path.to_owned(), builtin });
    }
    terrace_core::read_text(path)
        .map_err(|source| SimError::Read { path: PathBuf::from(path), source })
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
}
