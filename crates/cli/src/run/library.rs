//! Finds the library that is loaded into the program.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use object::Endianness;
use object::elf;
use object::read::elf::{FileHeader, SectionHeader, Sym};
use object::read::{ReadCache, ReadRef};
use terrace_live::interface;

use super::program::HOST;
use crate::failure::Failure;

/// The library's file name.
const NAME: &str = "libterrace_preload.so";

/// What it alone exports, with the zero at its end: [`interface::MARK`] is there.
const SYMBOL: &[u8] = b"TERRACE_PRELOADED\0";

/// Names the library explicitly, for packagers and tests.
const OVERRIDE: &str = "TERRACE_PRELOAD";

/// The library: where `TERRACE_PRELOAD` says, else beside this executable (a
/// build directory), else in `../lib/terrace` (an installation).
pub(crate) fn find() -> Result<PathBuf, Failure> {
    let library = if let Some(path) = env::var_os(OVERRIDE) {
        let path = PathBuf::from(path);
        let bad = |what| Failure::bad_input(format!("{OVERRIDE}: {}: {what}", path.display()));
        if !path.is_file() {
            return Err(bad("no such file".to_owned()));
        }
        let mark = mark_of(&path).map_err(|e| {
            Failure::failed(format!("{OVERRIDE}: {}: error while reading it: {e}", path.display()))
        })?;
        check(mark.as_deref()).map_err(bad)?;
        path
    } else {
        let executable = env::current_exe()
            .map_err(|e| Failure::failed(format!("cannot tell where terrace is installed: {e}")))?;
        let directory = executable.parent().unwrap_or(Path::new("/"));
        let path = beside(directory).into_iter().find(|path| path.is_file()).ok_or_else(|| {
            Failure::failed(format!(
                "{NAME} not found in {} or {}; {OVERRIDE} can name it",
                directory.display(),
                directory.join("../lib/terrace").display()
            ))
        })?;
        let bad = |what| Failure::failed(format!("{}: {what}", path.display()));
        let mark = mark_of(&path).map_err(|e| bad(format!("error while reading it: {e}")))?;
        check(mark.as_deref()).map_err(bad)?;
        path
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

/// Whether a file with this mark is the library that belongs to this command; if not, what it is. The
/// dynamic linker would load any, or leave out what is none, and the program would run without
/// management.
fn check(mark: Option<&[u8]>) -> Result<(), String> {
    let Some(mark) = mark else { return Err("is not terrace's library".to_owned()) };
    if mark == interface::MARK {
        return Ok(());
    }
    let own = interface::RELEASE;
    let which = match interface::release_of(mark) {
        Some(release) if release == own => format!("another build of terrace {own} than this one"),
        Some(release) => format!("terrace {release}, and this is terrace {own}"),
        None => format!("an older terrace than this one, {own}"),
    };
    // What it manages would be in no report.
    Err(format!("is the library of {which}: both have to be of one build"))
}

/// What a file has in the library's symbol; `None` of a file that is no library for programs of this
/// architecture, or does not have it. Only so much is read as is looked at.
fn mark_of(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let file = ReadCache::new(File::open(path)?);
    let mark = || -> object::Result<Option<Vec<u8>>> {
        let data = &file;
        let header = elf::FileHeader64::<Endianness>::parse(data)?;
        let endian = header.endian()?;
        if header.e_type(endian) != elf::ET_DYN || header.e_machine(endian) != HOST {
            return Ok(None);
        }
        let sections = header.sections(endian, data)?;
        let symbols = sections.symbols(endian, data, elf::SHT_DYNSYM)?;
        let names = sections.section(symbols.string_section())?.data(endian, data)?;
        for (index, symbol) in symbols.enumerate() {
            let name = names.get(symbol.st_name(endian) as usize..).unwrap_or_default();
            let section = symbols.symbol_section(endian, symbol, index)?;
            if let Some(section) = section.filter(|_| name.starts_with(SYMBOL)) {
                let section = sections.section(section)?;
                let within = symbol.st_value(endian).wrapping_sub(section.sh_addr(endian));
                let at = section.sh_offset(endian).wrapping_add(within);
                let mark = data.read_bytes_at(at, symbol.st_size(endian));
                return Ok(mark.ok().map(<[u8]>::to_vec));
            }
        }
        Ok(None)
    };
    Ok(mark().unwrap_or(None))
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
    fn a_library_of_another_build_is_refused_and_says_of_which() {
        let own = interface::RELEASE;
        let of = |number: u8, release: &str| {
            let mut mark = interface::MARK;
            mark[0] ^= number;
            mark[8..].fill(0);
            mark[8..8 + release.len()].copy_from_slice(release.as_bytes());
            check(Some(&mark))
        };
        assert_eq!(of(0, own), Ok(()));
        let refused = |checked: Result<(), String>, what: &str| {
            let why = checked.unwrap_err();
            assert!(why.contains(what), "{why}");
        };
        refused(of(1, own), "another build of terrace");
        refused(of(1, "9.8.7"), "of terrace 9.8.7, and this is terrace ");
        refused(check(Some(&[1])), "an older terrace");
        refused(check(None), "is not terrace's library");
    }

    #[test]
    fn what_has_no_mark_is_no_library_of_ours() {
        assert_eq!(mark_of(Path::new("/proc/self/exe")).unwrap(), None);
        assert!(mark_of(Path::new("/no/such/file")).is_err());
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
