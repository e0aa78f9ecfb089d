//! The part of QEMU's plugin interface that we use, declared by hand: no
//! package ships its header. Version 1 (QEMU 4.2 to 8.x) and later ones have
//! these functions with these meanings (`docs/devel/tcg-plugins.rst`,
//! `include/qemu/qemu-plugin.h` of QEMU).

use core::ffi::{c_char, c_int, c_uint, c_void};

/// Which plugin; handed to registrations.
pub(crate) type PluginId = u64;
/// What an access is, packed.
pub(crate) type MemInfo = u32;

/// `QEMU_PLUGIN_CB_NO_REGS`: the callback reads no registers.
pub(crate) const NO_REGISTERS: c_int = 0;
/// `QEMU_PLUGIN_MEM_RW`: loads and stores.
pub(crate) const READS_AND_WRITES: c_int = 3;

/// A block of translated instructions.
#[repr(C)]
pub(crate) struct Block {
    _opaque: [u8; 0],
}
/// One of its instructions.
#[repr(C)]
pub(crate) struct Instruction {
    _opaque: [u8; 0],
}

pub(crate) type MemCallback = extern "C" fn(c_uint, MemInfo, u64, *mut c_void);
pub(crate) type ExecCallback = extern "C" fn(c_uint, *mut c_void);
pub(crate) type SyscallCallback =
    extern "C" fn(PluginId, c_uint, i64, u64, u64, u64, u64, u64, u64, u64, u64);
pub(crate) type SyscallReturnCallback = extern "C" fn(PluginId, c_uint, i64, i64);

unsafe extern "C" {
    pub(crate) fn qemu_plugin_register_vcpu_tb_trans_cb(
        id: PluginId,
        callback: extern "C" fn(PluginId, *mut Block),
    );
    pub(crate) fn qemu_plugin_tb_n_insns(block: *const Block) -> usize;
    pub(crate) fn qemu_plugin_tb_get_insn(block: *const Block, index: usize) -> *mut Instruction;
    pub(crate) fn qemu_plugin_register_vcpu_tb_exec_cb(
        block: *mut Block,
        callback: ExecCallback,
        flags: c_int,
        data: *mut c_void,
    );
    pub(crate) fn qemu_plugin_register_vcpu_mem_cb(
        instruction: *mut Instruction,
        callback: MemCallback,
        flags: c_int,
        rw: c_int,
        data: *mut c_void,
    );
    pub(crate) fn qemu_plugin_mem_size_shift(info: MemInfo) -> c_uint;
    pub(crate) fn qemu_plugin_mem_is_store(info: MemInfo) -> bool;
    pub(crate) fn qemu_plugin_register_vcpu_syscall_cb(id: PluginId, callback: SyscallCallback);
    pub(crate) fn qemu_plugin_register_vcpu_syscall_ret_cb(
        id: PluginId,
        callback: SyscallReturnCallback,
    );
    pub(crate) fn qemu_plugin_register_vcpu_exit_cb(
        id: PluginId,
        callback: extern "C" fn(PluginId, c_uint),
    );
    pub(crate) fn qemu_plugin_register_atexit_cb(
        id: PluginId,
        callback: extern "C" fn(PluginId, *mut c_void),
        data: *mut c_void,
    );
    pub(crate) fn qemu_plugin_outs(text: *const c_char);
}
