//! The programs under test: the `terrace` executable with its library.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The repository's root.
pub fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).expect("this crate lies two levels below the root").to_owned()
}

/// The executable: the one that `TERRACE_BIN` names, else a release build,
/// brought up to date first. Release, because races and deadlines of a debug
/// build are not those that users meet.
pub fn executable() -> Result<PathBuf, String> {
    if let Some(named) = env::var_os("TERRACE_BIN") {
        let path = PathBuf::from(named);
        return if path.is_file() {
            std::path::absolute(&path).map_err(|e| format!("{}: {e}", path.display()))
        } else {
            Err(format!("TERRACE_BIN: {}: no such file", path.display()))
        };
    }
    let status = Command::new(env!("CARGO"))
        .args(["build", "--release", "-p", "terrace-cli", "-p", "terrace-preload"])
        .current_dir(root())
        .status()
        .map_err(|e| format!("cargo could not be started: {e}"))?;
    if !status.success() {
        return Err(format!("building terrace failed ({status})"));
    }
    Ok(target().join("release/terrace"))
}

/// Where builds go. Tests are compiled into `<target>/<profile>/deps`.
pub fn target() -> PathBuf {
    let own = env::current_exe().unwrap_or_default();
    own.ancestors().nth(3).map_or_else(|| root().join("target"), Path::to_owned)
}
