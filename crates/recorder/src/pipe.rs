//! Where blocks go.

use core::ffi::c_int;
use std::ffi::CString;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

/// The descriptor; negative before there is one, and after a failure.
static DESCRIPTOR: Mutex<c_int> = Mutex::new(-1);
/// The process that is recorded: children that it forks share everything here.
static RECORDED: AtomicI32 = AtomicI32::new(0);

/// Blocks go to this pipe from now on; false if it cannot be opened.
pub(crate) fn open(path: &str) -> bool {
    let Ok(path) = CString::new(path) else { return false };
    // SAFETY: a string that ends with zero.
    let descriptor = unsafe { libc::open(path.as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC) };
    // SAFETY: it only asks for a number.
    RECORDED.store(unsafe { libc::getpid() }, Ordering::Relaxed);
    let Ok(mut current) = DESCRIPTOR.lock() else { return false };
    *current = descriptor;
    descriptor >= 0
}

/// Sends a block: a head and its words.
pub(crate) fn send(kind: u32, thread: u32, words: &[u64]) {
    // SAFETY: it only asks for a number.
    if unsafe { libc::getpid() } != RECORDED.load(Ordering::Relaxed) {
        return;
    }
    let Ok(mut descriptor) = DESCRIPTOR.lock() else { return };
    let mut head = [0u8; 16];
    head[..4].copy_from_slice(&kind.to_le_bytes());
    head[4..8].copy_from_slice(&thread.to_le_bytes());
    head[8..].copy_from_slice(&(words.len() as u64).to_le_bytes());
    // SAFETY: any eight bytes are a word, and the slice ends where the words end.
    let body =
        unsafe { core::slice::from_raw_parts(words.as_ptr().cast::<u8>(), size_of_val(words)) };
    for bytes in [&head[..], body] {
        if !write_all(*descriptor, bytes) {
            // Nobody reads any more: the program goes on unrecorded.
            *descriptor = -1;
        }
    }
}

fn write_all(descriptor: c_int, mut bytes: &[u8]) -> bool {
    while !bytes.is_empty() && descriptor >= 0 {
        // SAFETY: the slice is as long as it says.
        let n = unsafe { libc::write(descriptor, bytes.as_ptr().cast(), bytes.len()) };
        match usize::try_from(n) {
            Ok(n) => bytes = &bytes[n..],
            Err(_) if std::io::Error::last_os_error().raw_os_error() == Some(libc::EINTR) => {}
            Err(_) => return false,
        }
    }
    true
}

/// The program ended.
pub(crate) fn end() {
    send(4, 0, &[]);
}

/// Whether the mappings were told of that were there before the program's first instruction.
pub(crate) static TOLD_MAPS: AtomicBool = AtomicBool::new(false);

/// Tells of them: QEMU maps the program's file where the program is to find it.
pub(crate) fn tell_maps() {
    if !TOLD_MAPS.swap(true, Ordering::Relaxed) {
        // Without them the program's own data has no name, no more.
        send_maps(6);
    }
}

/// Tells of what is mapped before the program is: all of it is QEMU's own, in the same address
/// space. False if that cannot be read: then the program could not be told from QEMU.
pub(crate) fn tell_of_qemu() -> bool {
    send_maps(9)
}

fn send_maps(kind: u32) -> bool {
    let Ok(maps) = std::fs::read("/proc/self/maps") else { return false };
    let words = maps.chunks(8).map(|bytes| {
        let mut eight = [0; 8];
        eight[..bytes.len()].copy_from_slice(bytes);
        u64::from_le_bytes(eight)
    });
    let words: Vec<_> = core::iter::once(maps.len() as u64).chain(words).collect();
    send(kind, 0, &words);
    true
}

/// The program asks for another one in its place, or did so in vain. No call comes back from one
/// that succeeds, and nothing is sent any more.
pub(crate) fn replaces_itself(begins: bool) {
    send(8, 0, &[u64::from(begins)]);
}
