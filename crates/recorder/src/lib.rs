//! A plugin for QEMU's user mode: sends what an unmodified program accesses
//! through a pipe, as it runs, and what it asks the kernel for in between.
//!
//! `qemu-x86_64 -plugin libterrace_recorder.so,path=PIPE prog args…`; the blocks
//! that go through the pipe are those of `terrace_sim::trace::raw`. Each guest
//! thread has a buffer of its own; a full one is written whole, under a lock, so
//! that memory is bounded whatever the program does. A child that the program
//! forks goes on unrecorded.
//!
//! | file | concept |
//! |---|---|
//! | [`qemu`] | the plugin interface |
//! | [`thread`] | one guest thread's buffer |
//! | [`call`] | system calls for I/O |
//! | [`pipe`] | where blocks go |

mod call;
mod pipe;
mod qemu;
mod thread;

use core::ffi::{CStr, c_char, c_int, c_uint, c_void};

use std::sync::atomic::Ordering;

use call::Call;
use qemu::{Block, MemInfo, PluginId};

/// The version of the interface that this plugin is built for: 1 is QEMU 7.2's.
/// QEMU refuses plugins of versions that it no longer knows.
// SAFETY: QEMU looks for this very name; nothing else of ours is called so.
#[unsafe(no_mangle)]
pub static qemu_plugin_version: c_int = 1;

/// System calls of x86-64 that change the address space.
mod number {
    pub(crate) const MMAP: i64 = 9;
    pub(crate) const MUNMAP: i64 = 11;
    pub(crate) const BRK: i64 = 12;
    pub(crate) const MREMAP: i64 = 25;
}

/// System calls of x86-64 that put another program in this one's place.
mod replacing {
    const EXECVE: i64 = 59;
    const EXECVEAT: i64 = 322;

    pub(crate) const fn is(number: i64) -> bool {
        matches!(number, EXECVE | EXECVEAT)
    }
}

/// Where mapped memory comes from, as `terrace_sim::trace::raw` reads it.
mod origin {
    pub(crate) const ANONYMOUS: u64 = 0;
    const RESERVED: u64 = 1;
    const FILE: u64 = 2;
    pub(crate) const HEAP: u64 = 3;
    /// `MAP_ANONYMOUS`.
    const MAP_ANONYMOUS: u64 = 0x20;

    /// By protection and flags of `mmap`.
    pub(crate) fn of_mmap(prot: u64, flags: u64) -> u64 {
        match (flags & MAP_ANONYMOUS != 0, prot) {
            (false, _) => FILE,
            (true, 0) => RESERVED,
            (true, _) => ANONYMOUS,
        }
    }
}

/// QEMU loads the plugin.
///
/// # Safety
///
/// QEMU calls it once, before the program starts, with `argc` strings at `argv`.
// SAFETY: as for the version.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qemu_plugin_install(
    id: PluginId,
    _info: *const c_void,
    argc: c_int,
    argv: *const *const c_char,
) -> c_int {
    let mut opened = false;
    for i in 0..usize::try_from(argc).unwrap_or(0) {
        // SAFETY: there are `argc` strings.
        let text = unsafe { CStr::from_ptr(*argv.add(i)) }.to_string_lossy();
        if let Some(path) = text.strip_prefix("path=") {
            opened = pipe::open(path);
        }
    }
    if !opened {
        // SAFETY: a string that ends with zero.
        unsafe { qemu::qemu_plugin_outs(c"terrace-recorder: cannot open path=…\n".as_ptr()) };
        return 1;
    }
    if !pipe::tell_of_qemu() {
        // SAFETY: a string that ends with zero.
        unsafe {
            qemu::qemu_plugin_outs(c"terrace-recorder: cannot read /proc/self/maps\n".as_ptr());
        };
        return 1;
    }
    // SAFETY: `id` is this plugin's, and the callbacks have the types that the
    // interface names.
    unsafe {
        qemu::qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
        qemu::qemu_plugin_register_vcpu_syscall_cb(id, syscall);
        qemu::qemu_plugin_register_vcpu_syscall_ret_cb(id, syscall_returned);
        qemu::qemu_plugin_register_vcpu_exit_cb(id, thread_ended);
        qemu::qemu_plugin_register_atexit_cb(id, ended, core::ptr::null_mut());
    }
    0
}

/// A block was translated: asks to be told when it runs and of its accesses.
extern "C" fn translated(_id: PluginId, block: *mut Block) {
    // SAFETY: `block` lives during this call, and has `count` instructions.
    unsafe {
        let count = qemu::qemu_plugin_tb_n_insns(block);
        // Numbers travel as pointers that are never followed.
        let number = core::ptr::without_provenance_mut::<c_void>(count);
        qemu::qemu_plugin_register_vcpu_tb_exec_cb(block, block_runs, qemu::NO_REGISTERS, number);
        for index in 0..count {
            qemu::qemu_plugin_register_vcpu_mem_cb(
                qemu::qemu_plugin_tb_get_insn(block, index),
                accessed,
                qemu::NO_REGISTERS,
                qemu::READS_AND_WRITES,
                core::ptr::without_provenance_mut::<c_void>(index),
            );
        }
    }
}

extern "C" fn block_runs(vcpu: c_uint, count: *mut c_void) {
    if !pipe::TOLD_MAPS.load(Ordering::Relaxed) {
        pipe::tell_maps();
    }
    thread::with(vcpu, |thread| thread.begin_block(count.addr() as u64));
}

extern "C" fn accessed(vcpu: c_uint, info: MemInfo, address: u64, index: *mut c_void) {
    // SAFETY: these only take `info` apart.
    let (shift, store) =
        unsafe { (qemu::qemu_plugin_mem_size_shift(info), qemu::qemu_plugin_mem_is_store(info)) };
    thread::with(vcpu, |thread| thread.access(address, shift, store, index.addr() as u64));
}

#[allow(clippy::too_many_arguments)] // the interface's
extern "C" fn syscall(
    _id: PluginId,
    vcpu: c_uint,
    number: i64,
    a1: u64,
    a2: u64,
    a3: u64,
    a4: u64,
    a5: u64,
    a6: u64,
    _a7: u64,
    _a8: u64,
) {
    thread::with(vcpu, |thread| thread.call = Call::begin(number, [a1, a2, a3, a4, a5, a6]));
    if replacing::is(number) {
        // What other threads have left is theirs alone to send, as they still run.
        thread::with(vcpu, thread::Thread::flush);
        pipe::replaces_itself(true);
    }
}

extern "C" fn syscall_returned(_id: PluginId, vcpu: c_uint, number: i64, result: i64) {
    // Errors are small negative numbers.
    let failed = (-4095..0).contains(&result);
    let address = result as u64;
    if replacing::is(number) {
        pipe::replaces_itself(false);
    }
    thread::with(vcpu, |thread| {
        let [first, second, third, fourth, ..] = thread.call.arguments;
        match number {
            number::MMAP if !failed => {
                thread.mapped(address, second, origin::of_mmap(third, fourth));
            }
            number::MUNMAP if !failed => thread.unmapped(first, second),
            number::MREMAP if !failed => {
                thread.unmapped(first, second);
                // What only private memory is moved as.
                thread.mapped(address, third, origin::ANONYMOUS);
            }
            number::BRK => thread.broke(address),
            _ => {}
        }
        if let Some(words) = thread.call.end(number, result) {
            thread.called(&words);
        }
    });
}

extern "C" fn thread_ended(_id: PluginId, vcpu: c_uint) {
    thread::with(vcpu, thread::Thread::end);
}

extern "C" fn ended(_id: PluginId, _data: *mut c_void) {
    thread::flush_all();
    pipe::end();
}
