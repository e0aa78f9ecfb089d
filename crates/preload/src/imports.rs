//! What this library calls of others is theirs, and never the program's.
//!
//! The loader binds a name to the first definition in the order in which it has loaded libraries.
//! The program's own definition comes first: `malloc` of a program that brings an allocator, `open`
//! of one that redirects files, `log` of one that exports a function by that name. Called from the
//! middle of the program's allocator, any of them may wait for the lock that its caller holds.
//!
//! So this library binds every name once more when it is loaded. A name goes to the library that it
//! was linked with, in the version that it was linked with. Names of its own go to itself. The few
//! functions of the C library that may call the allocator go to what stands for them here.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::sync::atomic::{AtomicUsize, Ordering::*};

use terrace_live::sys::{self, PAGE};
use terrace_live::workers::tls;

/// `elf.h`: tags of the dynamic section.
mod tag {
    pub(super) const PLT_BYTES: i64 = 2;
    pub(super) const STRINGS: i64 = 5;
    pub(super) const SYMBOLS: i64 = 6;
    pub(super) const RELOCATIONS: i64 = 7;
    pub(super) const BYTES: i64 = 8;
    pub(super) const PLT: i64 = 23;
    pub(super) const VERSIONS: i64 = 0x6fff_fff0;
    pub(super) const NEEDED_VERSIONS: i64 = 0x6fff_fffe;
}

/// `R_X86_64_64`, `R_X86_64_GLOB_DAT`, `R_X86_64_JUMP_SLOT`: the address of a symbol, and nothing
/// added where the second and third are used.
const BY_ADDRESS: [u32; 3] = [1, 6, 7];
/// `STT_TLS`: not an address.
const THREAD_LOCAL: u8 = 6;

/// How far below the thread pointer this library's thread-local storage is; 0 if that is unknown.
static STORAGE: AtomicUsize = AtomicUsize::new(0);

/// What stands for a function of the C library's that may call the allocator.
fn instead(name: &CStr) -> Option<usize> {
    match name.to_bytes() {
        b"__tls_get_addr" if STORAGE.load(Relaxed) != 0 => Some(tls_get_addr as *const () as usize),
        b"__cxa_thread_atexit_impl" => Some(at_threads_end as *const () as usize),
        b"__xpg_strerror_r" => Some(describe as *const () as usize),
        _ => None,
    }
}

/// `__tls_get_addr`: of a variable of this library's, whose storage every thread has from the
/// beginning. The C library's may have to bring the thread's vector up to date first, and allocates
/// for that.
extern "C" fn tls_get_addr([_, offset]: &[usize; 2]) -> usize {
    tls::thread_pointer() - STORAGE.load(Relaxed) + offset
}

/// `__cxa_thread_atexit_impl`: nothing of ours is run at a thread's end. To note it would take
/// memory.
extern "C" fn at_threads_end(_: *const c_void, _: *mut c_void, _: *mut c_void) -> c_int {
    0
}

/// `strerror_r`: not in the program's language, for which catalogues are read.
unsafe extern "C" fn describe(error: c_int, to: *mut c_char, len: usize) -> c_int {
    unsafe extern "C" {
        fn strerrordesc_np(error: c_int) -> *const c_char;
    }
    if len == 0 {
        return libc::ERANGE;
    }
    // SAFETY: constant text of the C library's, or null; the caller's buffer.
    unsafe {
        let text = strerrordesc_np(error);
        let text = if text.is_null() { c"unknown error" } else { CStr::from_ptr(text) };
        let count = text.count_bytes().min(len - 1);
        to.copy_from_nonoverlapping(text.as_ptr(), count);
        to.add(count).write(0);
    }
    0
}

/// What the loader notes of a library.
struct Library {
    /// Its number among those with thread-local storage.
    module: usize,
    base: usize,
    dynamic: *const [i64; 2],
    /// Where it writes no more after it has bound names (`PT_GNU_RELRO`).
    sealed: (usize, usize),
}

/// An entry of a table of relocations.
#[repr(C)]
struct Relocation {
    offset: u64,
    info: u64,
    addend: i64,
}

#[repr(C)]
struct Need {
    version: u16,
    count: u16,
    file: u32,
    first: u32,
    next: u32,
}

#[repr(C)]
struct NeededVersion {
    hash: u32,
    flags: u16,
    number: u16,
    name: u32,
    next: u32,
}

extern "C" fn find_own(info: *mut libc::dl_phdr_info, _: usize, to: *mut c_void) -> c_int {
    // SAFETY: the loader's description of a library, and where `bind` wants this one's.
    let (info, to) = unsafe { (&*info, &mut *to.cast::<Option<Library>>()) };
    // SAFETY: as many headers as it says.
    let headers = unsafe { core::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
    let base = info.dlpi_addr as usize;
    let here = find_own as *const () as usize;
    let lies_in = |h: &&libc::Elf64_Phdr| {
        h.p_type == libc::PT_LOAD
            && here.wrapping_sub(base + h.p_vaddr as usize) < h.p_memsz as usize
    };
    if !headers.iter().any(|header| lies_in(&header)) {
        return 0;
    }
    let at = |kind| headers.iter().find(|header| header.p_type == kind);
    let range = |h: &libc::Elf64_Phdr| {
        let start = base + h.p_vaddr as usize;
        (start & !(PAGE - 1), (start + h.p_memsz as usize) & !(PAGE - 1))
    };
    *to = at(libc::PT_DYNAMIC).map(|dynamic| Library {
        module: info.dlpi_tls_modid,
        base,
        dynamic: (base + dynamic.p_vaddr as usize) as *const _,
        sealed: at(libc::PT_GNU_RELRO).map_or((0, 0), range),
    });
    1
}

/// The tables of this library.
struct Tables {
    base: usize,
    strings: usize,
    symbols: *const libc::Elf64_Sym,
    versions: *const u16,
    needs: *const Need,
    relocations: [(*const Relocation, usize); 2],
}

impl Tables {
    /// # Safety
    /// The library is loaded, and stays.
    unsafe fn read(library: &Library) -> Option<Self> {
        let value = |tag: i64| {
            let mut entry = library.dynamic;
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
            Some(if at < library.base { library.base + at } else { at })
        };
        let table = |at, bytes| {
            let entries = value(bytes).unwrap_or(0) / size_of::<Relocation>();
            address(at).map_or((core::ptr::null(), 0), |at| (at as *const Relocation, entries))
        };
        Some(Self {
            base: library.base,
            strings: address(tag::STRINGS)?,
            symbols: address(tag::SYMBOLS)? as *const _,
            versions: address(tag::VERSIONS)? as *const _,
            needs: address(tag::NEEDED_VERSIONS)? as *const _,
            relocations: [table(tag::RELOCATIONS, tag::BYTES), table(tag::PLT, tag::PLT_BYTES)],
        })
    }

    fn string(&self, offset: u32) -> &'static CStr {
        // SAFETY: the table's strings end with a NUL, and stay.
        unsafe { CStr::from_ptr((self.strings + offset as usize) as *const c_char) }
    }

    /// The library and the version that a number of a version stands for.
    fn needed(&self, number: u16) -> Option<(&'static CStr, &'static CStr)> {
        let mut need = self.needs;
        loop {
            // SAFETY: a list as the linker has made it: each tells where the next is.
            unsafe {
                let mut version = need.wrapping_byte_add((*need).first as usize);
                for _ in 0..(*need).count {
                    let this = &*version.cast::<NeededVersion>();
                    if this.number == number {
                        return Some((self.string((*need).file), self.string(this.name)));
                    }
                    version = version.wrapping_byte_add(this.next as usize);
                }
                if (*need).next == 0 {
                    return None;
                }
                need = need.wrapping_byte_add((*need).next as usize);
            }
        }
    }

    /// What a symbol is to be bound to; `None` to leave it as it is.
    fn target(&self, index: usize) -> Option<usize> {
        // SAFETY: an index of a relocation's is one of the table's.
        let (symbol, version) = unsafe { (&*self.symbols.add(index), *self.versions.add(index)) };
        let name = self.string(symbol.st_name);
        // The loader's list of libraries is no function that somebody may have replaced.
        if symbol.st_info & 0xf == THREAD_LOCAL || name == c"_r_debug" {
            return None;
        }
        if symbol.st_shndx != 0 {
            return Some(self.base + symbol.st_value as usize);
        }
        if let Some(own) = instead(name) {
            return Some(own);
        }
        // Without a version it belongs to no library: it may be there, or not.
        let (file, version) = self.needed(version & 0x7fff)?;
        let at = in_library(file, name, version);
        (!at.is_null()).then_some(at as usize)
    }
}

/// The address of a library's own symbol; null if it is not loaded, or has none.
fn in_library(file: &CStr, name: &CStr, version: &CStr) -> *mut c_void {
    unsafe extern "C" {
        fn dlvsym(
            handle: *mut c_void,
            symbol: *const c_char,
            version: *const c_char,
        ) -> *mut c_void;
    }
    // SAFETY: NUL-terminated names; the library is one that this one needs, and so loaded: what
    // was opened is kept.
    unsafe {
        let handle = libc::dlopen(file.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
        if handle.is_null() {
            return handle;
        }
        dlvsym(handle, name.as_ptr(), version.as_ptr())
    }
}

/// Binds every name.
pub(crate) fn bind() {
    let mut own: Option<Library> = None;
    // SAFETY: the callback gets the variable, and keeps nothing.
    unsafe { libc::dl_iterate_phdr(Some(find_own), (&raw mut own).cast()) };
    let Some(library) = own else { return };
    STORAGE.store(tls::below(library.module).unwrap_or(0), Relaxed);
    // SAFETY: this library.
    let Some(tables) = (unsafe { Tables::read(&library) }) else { return };
    let (start, end) = library.sealed;
    let protect = |how: c_int| {
        let arguments = [start, end - start, how as usize, 0, 0, 0];
        // SAFETY: what the loader has bound names in; nobody else writes to it.
        unsafe { sys::raw(libc::SYS_mprotect, arguments) == 0 }
    };
    if start == end || !protect(libc::PROT_READ | libc::PROT_WRITE) {
        return sys::complain(&["functions of the program may be called in the middle of others"]);
    }
    for (table, entries) in tables.relocations {
        for i in 0..entries {
            // SAFETY: as many entries as the section says.
            let relocation = unsafe { &*table.add(i) };
            let (kind, index) = (relocation.info as u32, (relocation.info >> 32) as usize);
            if index == 0 || !BY_ADDRESS.contains(&kind) {
                continue;
            }
            if let Some(target) = tables.target(index) {
                let addend = if kind == BY_ADDRESS[0] { relocation.addend as usize } else { 0 };
                let slot = library.base + relocation.offset as usize;
                // SAFETY: a word of this library that holds the address of such a symbol.
                unsafe { (*(slot as *const AtomicUsize)).store(target + addend, Relaxed) };
            }
        }
    }
    protect(libc::PROT_READ);
}
