//! Data to fill memory with: pages of real programs.

use std::path::Path;

/// Loads a corpus as whole pages; stops the program if there is not one page.
pub fn load(path: &Path) -> Vec<u8> {
    let mut bytes = match std::fs::read(path) {
        Ok(bytes) => bytes,
        Err(e) => {
            eprintln!("{}: {e}", path.display());
            std::process::exit(2);
        }
    };
    bytes.truncate(bytes.len() / 4096 * 4096);
    if bytes.is_empty() {
        eprintln!("{}: less than a page", path.display());
        std::process::exit(2);
    }
    bytes
}
