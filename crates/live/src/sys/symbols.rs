//! What the libraries of the process define, by their own tables.
//!
//! `dlsym` keeps an error for a name that there is not. That takes memory of the program's allocator, and
//! the thread's next call of its kind gives it back: a library of the user's whose `free` looks for the
//! next `free` by `dlsym` would be called once more in the middle of that, without end. So the loader is
//! asked for nothing that is not there.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::ptr;
use core::sync::atomic::{AtomicUsize, Ordering::*};

/// `elf.h`: tags of the dynamic section.
mod tag {
    pub(super) const STRINGS: i64 = 5;
    pub(super) const SYMBOLS: i64 = 6;
    pub(super) const HASH: i64 = 0x6fff_fef5;
    pub(super) const VERSIONS: i64 = 0x6fff_fff0;
    pub(super) const DEFINED_VERSIONS: i64 = 0x6fff_fffc;
}

/// Of a symbol's version: only who asks for this version gets it.
const HIDDEN: u16 = 1 << 15;
/// `STT_TLS`: not an address.
const THREAD_LOCAL: u8 = 6;
/// `STT_GNU_IFUNC`: the address is of a function that tells it.
const INDIRECT: u8 = 10;

/// `link.h`: a library, as the loader lists it.
#[repr(C)]
struct LinkMap {
    base: usize,
    _name: *const c_char,
    dynamic: *const [i64; 2],
    next: *const LinkMap,
}

/// `link.h`: where a debugger finds the list.
#[repr(C)]
struct Debug {
    _version: c_int,
    first: *const LinkMap,
}

unsafe extern "C" {
    #[link_name = "_r_debug"]
    static LOADED: Debug;
}

/// What only the C library defines.
const C_LIBRARYS_OWN: &CStr = c"gnu_get_libc_version";

/// The C library's tables, for it defines most of what is looked up; the first word is 0 until they are
/// known.
static C_LIBRARY: [AtomicUsize; TABLES] = [const { AtomicUsize::new(0) }; TABLES];

/// A version that a library defines (`Elf64_Verdef`).
#[repr(C)]
struct DefinedVersion {
    _format: u16,
    _flags: u16,
    number: u16,
    _count: u16,
    _hash: u32,
    /// From here to its name's place among the strings.
    name: u32,
    /// From here to the next; 0 in the last.
    next: u32,
}

/// The tables of a library, by their addresses.
#[derive(Clone, Copy)]
struct Library {
    hash: usize,
    strings: usize,
    symbols: usize,
    /// 0 where its symbols have none.
    versions: usize,
    /// 0 where it defines none.
    defined: usize,
    /// From which its symbols' addresses count.
    base: usize,
}

/// Words of [`Library`].
const TABLES: usize = size_of::<Library>() / size_of::<usize>();

impl Library {
    /// `None` of one without a table by hashes of names, which all linkers of today make.
    ///
    /// # Safety
    /// What the loader says of a library that is there.
    unsafe fn read(info: &libc::dl_phdr_info) -> Option<Self> {
        if info.dlpi_phdr.is_null() {
            return None;
        }
        let base = info.dlpi_addr as usize;
        // SAFETY: as many headers as it says.
        let headers =
            unsafe { core::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
        let dynamic = headers.iter().find(|header| header.p_type == libc::PT_DYNAMIC)?;
        let dynamic = base.wrapping_add(dynamic.p_vaddr as usize) as *const [i64; 2];
        // SAFETY: where the headers say that it is.
        unsafe { Self::of(base, dynamic, |at| lies_in(headers, base, at)) }
    }

    /// By its dynamic section. `is_in`: whether an address may be in the library.
    ///
    /// # Safety
    /// That of a library that is there.
    unsafe fn of(
        base: usize,
        dynamic: *const [i64; 2],
        is_in: impl Fn(usize) -> bool,
    ) -> Option<Self> {
        let value = |tag: i64| {
            let mut entry = dynamic;
            // SAFETY: the section ends with a zero.
            unsafe {
                while (*entry)[0] != 0 {
                    if (*entry)[0] == tag {
                        return Some((*entry)[1] as usize);
                    }
                    entry = entry.add(1);
                }
            }
            None
        };
        // The loader has made addresses of them, unless it leaves the section as it was.
        let address = |tag| {
            let at = value(tag)?;
            let at = if at < base { base + at } else { at };
            is_in(at).then_some(at)
        };
        Some(Self {
            hash: address(tag::HASH)?,
            strings: address(tag::STRINGS)?,
            symbols: address(tag::SYMBOLS)?,
            versions: address(tag::VERSIONS).unwrap_or(0),
            defined: address(tag::DEFINED_VERSIONS).unwrap_or(0),
            base,
        })
    }

    fn string(&self, offset: u32) -> &CStr {
        // SAFETY: the table's strings end with a NUL.
        unsafe { CStr::from_ptr((self.strings + offset as usize) as *const c_char) }
    }

    /// What it defines by a name: in a version, or what who asks for none gets.
    fn symbol(&self, name: &CStr, version: Option<&CStr>) -> Option<&libc::Elf64_Sym> {
        let wanted = hash(name.to_bytes());
        // SAFETY: a table as linkers make it: four words, a filter of so many words of 64 bits, the
        // first symbol of each bucket, and a hash for each symbol, which is odd for the last in a
        // bucket.
        unsafe {
            let [buckets, first, filter, _] = *(self.hash as *const [u32; 4]);
            let firsts = (self.hash as *const u32).add(4 + 2 * filter as usize);
            let hashes = firsts.add(buckets as usize);
            let mut number = *firsts.add(wanted.checked_rem(buckets)? as usize);
            // 0 in an empty bucket.
            while number >= first.max(1) {
                let hash = *hashes.add((number - first) as usize);
                if hash | 1 == wanted | 1 {
                    let symbol = &*(self.symbols as *const libc::Elf64_Sym).add(number as usize);
                    let is_defined = symbol.st_shndx != 0 && symbol.st_info & 0xf != THREAD_LOCAL;
                    if is_defined
                        && self.string(symbol.st_name) == name
                        && self.is_of(number, version)
                    {
                        return Some(symbol);
                    }
                }
                if hash & 1 != 0 {
                    break;
                }
                number += 1;
            }
        }
        None
    }

    /// Whether a symbol is of a version, or, for `None`, what who asks for none gets.
    fn is_of(&self, symbol: u32, version: Option<&CStr>) -> bool {
        let number = if self.versions == 0 {
            0
        } else {
            // SAFETY: there is one for each symbol.
            unsafe { *(self.versions as *const u16).add(symbol as usize) }
        };
        let Some(version) = version else { return number & HIDDEN == 0 };
        let mut at = self.defined;
        while at != 0 {
            // SAFETY: a list as linkers make it: each tells where the next is, and its name.
            let (defined, name) = unsafe {
                let defined = &*(at as *const DefinedVersion);
                (defined, *((at + defined.name as usize) as *const u32))
            };
            if defined.number == number & !HIDDEN {
                return self.string(name) == version;
            }
            at = if defined.next == 0 { 0 } else { at + defined.next as usize };
        }
        false
    }
}

/// As the tables have it (`DT_GNU_HASH`).
fn hash(name: &[u8]) -> u32 {
    name.iter().fold(5381, |hash: u32, &byte| hash.wrapping_mul(33).wrapping_add(byte.into()))
}

/// Whether an address lies in what is loaded of a library.
fn lies_in(headers: &[libc::Elf64_Phdr], base: usize, at: usize) -> bool {
    headers.iter().any(|header| {
        header.p_type == libc::PT_LOAD
            && at.wrapping_sub(base.wrapping_add(header.p_vaddr as usize)) < header.p_memsz as usize
    })
}

/// Calls something for each library, in the order in which names are looked up, until it returns true.
fn any(mut look: impl FnMut(&libc::dl_phdr_info) -> bool) -> bool {
    extern "C" fn one<F: FnMut(&libc::dl_phdr_info) -> bool>(
        info: *mut libc::dl_phdr_info,
        _: usize,
        look: *mut c_void,
    ) -> c_int {
        // SAFETY: the loader's description of a library, and what `any` passes.
        let (info, look) = unsafe { (&*info, &mut *look.cast::<F>()) };
        look(info).into()
    }
    fn of<F: FnMut(&libc::dl_phdr_info) -> bool>(look: &mut F) -> bool {
        // SAFETY: the callback gets what it expects, and keeps nothing.
        unsafe { iterate()(Some(one::<F>), ptr::from_mut(look).cast()) != 0 }
    }
    of(&mut look)
}

/// `dl_iterate_phdr` of the C library. A sanitizer has one of its own, which cannot be called before the
/// sanitizer has begun; the program's first allocation may come before that.
fn iterate() -> Iterate {
    let own = c_library().and_then(|library| {
        let symbol = library.symbol(c"dl_iterate_phdr", None)?;
        let at = library.base + symbol.st_value as usize;
        // SAFETY: the function of this name.
        Some(unsafe { core::mem::transmute::<*const (), Iterate>(at as *const ()) })
    });
    own.unwrap_or(libc::dl_iterate_phdr)
}

type Iterate = unsafe extern "C" fn(
    Option<unsafe extern "C" fn(*mut libc::dl_phdr_info, libc::size_t, *mut c_void) -> c_int>,
    *mut c_void,
) -> c_int;

/// Whether a library is the one that this is in.
fn is_ours(info: &libc::dl_phdr_info) -> bool {
    if info.dlpi_phdr.is_null() {
        return false;
    }
    // SAFETY: as many headers as it says.
    let headers = unsafe { core::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
    lies_in(headers, info.dlpi_addr as usize, is_ours as *const () as usize)
}

/// The address of what the first library that defines a name has by it: in a version, or in the one
/// that who asks for none gets. Not what has its address from a function.
pub fn find(name: &CStr, version: Option<&CStr>) -> Option<usize> {
    let mut found = None;
    any(|info| {
        // SAFETY: the loader's.
        let Some(library) = (unsafe { Library::read(info) }) else { return false };
        let symbol = library.symbol(name, version);
        let symbol = symbol.filter(|symbol| symbol.st_info & 0xf != INDIRECT);
        found = symbol.map(|symbol| library.base + symbol.st_value as usize);
        found.is_some()
    });
    found
}

/// The function of a name of the next library after the one that this is in: what `dlsym` finds by
/// `RTLD_NEXT`. Null if there is none, and no error is kept.
pub fn next(name: &CStr) -> *mut c_void {
    // It comes after all that call it.
    let is_there = c_library().is_some_and(|library| library.symbol(name, None).is_some())
        || is_defined_after_us(name);
    if !is_there {
        return ptr::null_mut();
    }
    // SAFETY: a NUL-terminated name.
    unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) }
}

fn is_defined_after_us(name: &CStr) -> bool {
    let mut is_after = false;
    any(|info| {
        if !is_after {
            is_after = is_ours(info);
            return false;
        }
        // SAFETY: the loader's.
        let library = unsafe { Library::read(info) };
        library.is_some_and(|library| library.symbol(name, None).is_some())
    })
}

/// The C library, looked up at the first call, without one of its functions: any may be somebody else's.
fn c_library() -> Option<Library> {
    let [first, rest @ ..] = &C_LIBRARY;
    let hash = first.load(Acquire);
    if hash != 0 {
        let [strings, symbols, versions, defined, base] =
            rest.each_ref().map(|word| word.load(Relaxed));
        return Some(Library { hash, strings, symbols, versions, defined, base });
    }
    // SAFETY: the loader's list. Only `dlclose` takes something off it, and the C library stands before
    // all that is loaded later.
    let mut next = unsafe { (&raw const LOADED.first).read() };
    let library = loop {
        // SAFETY: as above; each of them is there.
        let map = unsafe { next.as_ref() }?;
        // SAFETY: as above.
        let library = unsafe { Library::of(map.base, map.dynamic, |_| true) };
        match library.filter(|library| library.symbol(C_LIBRARYS_OWN, None).is_some()) {
            Some(library) => break library,
            None => next = map.next,
        }
    };
    let Library { hash, strings, symbols, versions, defined, base } = library;
    // Whoever does the same just now stores the same.
    for (word, value) in rest.iter().zip([strings, symbols, versions, defined, base]) {
        word.store(value, Relaxed);
    }
    first.store(hash, Release);
    Some(library)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "there is no loader")]
    fn what_libraries_define_is_found_in_the_version_that_is_asked_for() {
        unsafe extern "C" {
            fn __ctype_b_loc() -> *const c_void;
            static environ: *const c_void;
        }
        let function = __ctype_b_loc as *const () as usize;

        assert_eq!(find(c"__ctype_b_loc", None), Some(function));
        let own = if cfg!(target_arch = "x86_64") { c"GLIBC_2.3" } else { c"GLIBC_2.17" };
        assert_eq!(find(c"__ctype_b_loc", Some(own)), Some(function));
        assert_eq!(find(c"__ctype_b_loc", Some(c"GLIBC_1.0")), None);
        assert_eq!(find(c"environ", None), Some((&raw const environ) as usize));
        assert_eq!(find(c"nobody_defines_this", None), None);
    }

    /// By the loader, the first of two would be lost, and the second kept.
    #[test]
    #[cfg_attr(miri, ignore = "there is no loader")]
    fn who_asks_for_what_is_not_there_leaves_the_loader_s_error_as_it_was() {
        // SAFETY: a NUL-terminated name; the error is this thread's, and read before the next.
        unsafe {
            assert!(libc::dlerror().is_null());
            assert!(next(c"nobody_defines_this").is_null());
            assert_eq!(find(c"nobody_defines_this", None), None);
            assert!(libc::dlerror().is_null());

            assert!(libc::dlsym(libc::RTLD_DEFAULT, c"nor_this".as_ptr()).is_null());
            assert!(next(c"nobody_defines_this").is_null());
            let error = libc::dlerror();
            assert!(!error.is_null());
            let text = CStr::from_ptr(error).to_string_lossy();
            assert!(text.contains("nor_this"), "{text}");
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "there is no loader")]
    fn the_next_function_is_the_loader_s() {
        for name in [c"malloc", c"pthread_create", c"strlen", c"__libc_malloc"] {
            // SAFETY: a NUL-terminated name.
            let next_by_loader = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
            assert!(!next_by_loader.is_null(), "{name:?}");
            assert_eq!(next(name), next_by_loader, "{name:?}");
        }
    }

    #[test]
    fn names_have_the_hashes_that_linkers_give_them() {
        assert_eq!(hash(b""), 0x1505);
        assert_eq!(hash(b"printf"), 0x156b_2bb8);
        assert_eq!(hash(b"exit"), 0x7c96_7e3f);
        assert_eq!(hash(b"syscall"), 0xbac2_12a0);
    }
}
