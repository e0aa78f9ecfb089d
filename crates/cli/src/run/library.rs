//! Finds the library that is loaded into the program.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use object::Endianness;
use object::elf;
use object::read::elf::FileHeader;

use super::program::HOST;
use crate::failure::Failure;

/// The library's file name.
const NAME: &str = "libterrace_preload.so";

/// What it alone exports.
const MARK: &[u8] = b"TERRACE_PRELOADED";

/// Names the library explicitly, for packagers and tests.
const OVERRIDE: &str = "TERRACE_PRELOAD";

/// The library: where `TERRACE_PRELOAD` says, else beside this executable (a
/// build directory), else in `../lib/terrace` (an installation).
pub(crate) fn find() -> Result<PathBuf, Failure> {
    let library = if let Some(path) = env::var_os(OVERRIDE) {
        let path = PathBuf::from(path);
        let bad = |what| Failure::bad_input(format!("{OVERRIDE}: {}: {what}", path.display()));
        if !path.is_file() {
            return Err(bad("no such file"));
        }
        // The dynamic linker would load another, or leave out what is none, and the program
        // would run without management.
        let ours = is_ours(&path).map_err(|e| {
            Failure::failed(format!("{OVERRIDE}: {}: error while reading it: {e}", path.display()))
        })?;
        if !ours {
            return Err(bad("is not terrace's library"));
        }
        path
    } else {
        let executable = env::current_exe()
            .map_err(|e| Failure::failed(format!("cannot tell where terrace is installed: {e}")))?;
        let directory = executable.parent().unwrap_or(Path::new("/"));
        beside(directory).into_iter().find(|path| path.is_file()).ok_or_else(|| {
            Failure::failed(format!(
                "{NAME} not found in {} or {}; {OVERRIDE} can name it",
                directory.display(),
                directory.join("../lib/terrace").display()
            ))
        })?
    };
    let library = std::path::absolute(&library).unwrap_or(library);
    // The dynamic linker separates its list by either.
    if library.as_os_str().as_bytes().iter().any(|b| matches!(b, b' ' | b':')) {
        return Err(Failure::failed(format!(
            "{}: the path contains a space or a colon, which the dynamic linker takes for \
             a separator",
            library.display()
        )));
    }
    Ok(library)
}

/// Where the library is, if that is known without a look at what it is.
pub(super) fn place() -> Option<PathBuf> {
    if let Some(path) = env::var_os(OVERRIDE) {
        return Some(path.into());
    }
    let executable = env::current_exe().ok()?;
    beside(executable.parent()?).into_iter().find(|path| path.is_file())
}

/// Whether a file is the library, for programs of this architecture.
fn is_ours(path: &Path) -> io::Result<bool> {
    let data = fs::read(path)?;
    let exports = || -> object::Result<bool> {
        let data = data.as_slice();
        let header = elf::FileHeader64::<Endianness>::parse(data)?;
        let endian = header.endian()?;
        if header.e_type(endian) != elf::ET_DYN || header.e_machine(endian) != HOST {
            return Ok(false);
        }
        let symbols = header.sections(endian, data)?.symbols(endian, data, elf::SHT_DYNSYM)?;
        let names = symbols.iter().map(|symbol| symbols.symbol_name(endian, symbol));
        Ok(names.flatten().any(|name| name == MARK))
    };
    Ok(exports().unwrap_or(false))
}

fn beside(directory: &Path) -> [PathBuf; 2] {
    [directory.join(NAME), directory.join("../lib/terrace").join(NAME)]
}

/// Where the dynamic linker finds which libraries it loads first.
pub(crate) const PRELOAD: &str = "LD_PRELOAD";

/// Where `AddressSanitizer` takes its options from.
pub(crate) const SANITIZER: &str = "ASAN_OPTIONS";

/// Its value: what was wanted before, but that its runtime does not insist on being the first
/// library in the program. It ends every program in which it is not, whoever starts it.
pub(crate) fn sanitizer_options(before: Option<OsString>) -> OsString {
    const ANY_ORDER: &str = "verify_asan_link_order=0";
    let Some(mut options) = before.filter(|before| !before.is_empty()) else {
        return ANY_ORDER.into();
    };
    options.push(":");
    options.push(ANY_ORDER);
    options
}

/// The value of `LD_PRELOAD`: ours first, whatever was wanted before after it.
pub(crate) fn preload_list(library: &Path, before: Option<OsString>) -> OsString {
    let mut list = library.as_os_str().to_owned();
    if let Some(before) = before.filter(|before| !before.is_empty()) {
        list.push(OsStr::new(":"));
        list.push(before);
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_preloaded_before_still_is() {
        let library = Path::new("/usr/lib/terrace/lib.so");

        assert_eq!(preload_list(library, None), "/usr/lib/terrace/lib.so");
        assert_eq!(preload_list(library, Some("".into())), "/usr/lib/terrace/lib.so");
        assert_eq!(
            preload_list(library, Some("/a.so /b.so".into())),
            "/usr/lib/terrace/lib.so:/a.so /b.so"
        );
    }

    #[test]
    fn a_sanitizer_has_the_options_that_it_had_before() {
        assert_eq!(sanitizer_options(None), "verify_asan_link_order=0");
        assert_eq!(sanitizer_options(Some("".into())), "verify_asan_link_order=0");
        assert_eq!(
            sanitizer_options(Some("detect_leaks=0:abort_on_error=1".into())),
            "detect_leaks=0:abort_on_error=1:verify_asan_link_order=0"
        );
    }
}
