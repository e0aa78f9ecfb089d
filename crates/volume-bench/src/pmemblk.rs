//! libpmemblk, the retired library for the same task, where the machine has it.
//!
//! It is loaded at run time, so nobody who does not compare needs it. Debian 12 is the last with
//! it (`libpmemblk1`, version 1.12).

use std::ffi::{CString, c_char, c_int, c_longlong, c_void};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use libloading::Library;

use crate::target::{Client, Target};

/// What the package's library is called.
const LIBRARY: &str = "libpmemblk.so.1";
/// Makes libpmem take any mapping for persistent memory: it writes lines back and fences, and does
/// not call `msync`. libpmem reads it when it is loaded.
const FORCE: &str = "PMEM_IS_PMEM_FORCE";

/// Why it cannot be compared with.
#[derive(Debug, thiserror::Error)]
pub enum Missing {
    /// The machine does not have it.
    #[error("{LIBRARY} is not installed (Debian 12: libpmemblk1): {0}")]
    Library(#[from] libloading::Error),
    /// It refused.
    #[error("libpmemblk: {0}")]
    Refused(String),
}

type Create = unsafe extern "C" fn(*const c_char, usize, usize, u32) -> *mut c_void;
type Close = unsafe extern "C" fn(*mut c_void);
type Blocks = unsafe extern "C" fn(*mut c_void) -> usize;
type Read = unsafe extern "C" fn(*mut c_void, *mut c_void, c_longlong) -> c_int;
type Write = unsafe extern "C" fn(*mut c_void, *const c_void, c_longlong) -> c_int;
type Message = unsafe extern "C" fn() -> *const c_char;

/// A pool of blocks.
#[derive(Debug)]
pub struct Pool {
    handle: *mut c_void,
    block: usize,
    blocks: usize,
    read: Read,
    write: Write,
    close: Close,
    /// What the functions are in.
    _library: Library,
}

// SAFETY: its manual says that any thread may use a pool.
unsafe impl Send for Pool {}
// SAFETY: the same.
unsafe impl Sync for Pool {}

/// Has the library treat every file as persistent memory. To be called before the first pool is
/// made, while the process has one thread; refused if it has more.
pub fn force_persistent() -> io::Result<()> {
    if std::fs::read_dir("/proc/self/task")?.count() != 1 {
        return Err(io::Error::other("the environment cannot be changed: there are other threads"));
    }
    // SAFETY: no other thread reads the environment meanwhile: there is none.
    unsafe { std::env::set_var(FORCE, "1") };
    Ok(())
}

impl Pool {
    /// Makes a pool in a new file of so many bytes.
    pub fn create(path: &Path, bytes: usize, block: usize) -> Result<Self, Missing> {
        // SAFETY: its initialisers read the environment and the processor's features; the types
        // are those of `libpmemblk.h` in version 1.12.
        unsafe {
            let library = Library::new(LIBRARY)?;
            let create: Create = *library.get(b"pmemblk_create\0")?;
            let close: Close = *library.get(b"pmemblk_close\0")?;
            let blocks: Blocks = *library.get(b"pmemblk_nblock\0")?;
            let read: Read = *library.get(b"pmemblk_read\0")?;
            let write: Write = *library.get(b"pmemblk_write\0")?;
            let message: Message = *library.get(b"pmemblk_errormsg\0")?;
            let name = CString::new(path.as_os_str().as_bytes())
                .map_err(|_| Missing::Refused("a path with a zero byte".into()))?;
            let pool = create(name.as_ptr(), block, bytes, 0o600);
            if pool.is_null() {
                let text = std::ffi::CStr::from_ptr(message());
                return Err(Missing::Refused(text.to_string_lossy().into_owned()));
            }
            let blocks = blocks(pool);
            Ok(Self { handle: pool, block, blocks, read, write, close, _library: library })
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // SAFETY: it is open, and nobody uses it any more.
        unsafe { (self.close)(self.handle) };
    }
}

impl Target for Pool {
    fn name(&self) -> String {
        "libpmemblk".into()
    }
    fn capacity(&self) -> u64 {
        (self.block * self.blocks) as u64
    }
    fn client(&self) -> io::Result<Box<dyn Client + '_>> {
        Ok(Box::new(self))
    }
}

impl Client for &Pool {
    fn read(&mut self, at: u64, bytes: &mut [u8]) -> io::Result<()> {
        let first = at / self.block as u64;
        for (number, part) in (first..).zip(bytes.chunks_exact_mut(self.block)) {
            // SAFETY: the buffer has a whole block, and the library checks the number.
            if unsafe { (self.read)(self.handle, part.as_mut_ptr().cast(), number as c_longlong) }
                != 0
            {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(())
    }
    fn write(&mut self, at: u64, bytes: &[u8]) -> io::Result<()> {
        let first = at / self.block as u64;
        for (number, part) in (first..).zip(bytes.chunks_exact(self.block)) {
            // SAFETY: the buffer has a whole block, and the library checks the number.
            if unsafe { (self.write)(self.handle, part.as_ptr().cast(), number as c_longlong) } != 0
            {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(())
    }
    fn flush(&mut self) -> io::Result<()> {
        // Each write was durable on return.
        Ok(())
    }
}
