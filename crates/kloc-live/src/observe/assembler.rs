//! An assembler of eBPF: instructions with labels, for the kernel that runs.
//!
//! Programs are short and differ by kernel in offsets alone, so they are assembled when they are
//! loaded: a compiler for eBPF is on few machines, and a binary in the repository could not be
//! reviewed.

use std::collections::HashMap;

/// A register. `R0` has results, `R1` to `R5` arguments, which a call destroys; `R6` to `R9`
/// stay; `R10` is the end of the stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[expect(missing_docs, reason = "they are numbers")]
pub enum Register {
    R0,
    R1,
    R2,
    R3,
    R4,
    R5,
    R6,
    R7,
    R8,
    R9,
    R10,
}

/// How much is loaded or stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Width {
    /// One byte.
    Byte = 0x10,
    /// Two.
    Half = 0x08,
    /// Four.
    Word = 0x00,
    /// Eight.
    Double = 0x18,
}

/// Arithmetic on 64 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[expect(missing_docs, reason = "their names say it")]
pub enum Operation {
    Add = 0x00,
    Or = 0x40,
    And = 0x50,
    ShiftLeft = 0x60,
    ShiftRight = 0x70,
    Move = 0xb0,
}

/// When is jumped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[expect(missing_docs, reason = "their names say it")]
pub enum Condition {
    Equal = 0x10,
    NotEqual = 0x50,
    Greater = 0x20,
    SignedLess = 0xc0,
}

/// A place in a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Label(u32);

/// Functions of the kernel that programs may call (`linux/bpf.h`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Helper {
    /// `bpf_map_lookup_elem`
    MapLookup = 1,
    /// `bpf_map_update_elem`
    MapUpdate = 2,
    /// `bpf_map_delete_elem`
    MapDelete = 3,
    /// `bpf_ktime_get_ns`: the monotonic clock
    Now = 5,
    /// `bpf_get_current_pid_tgid`
    Process = 14,
    /// `bpf_get_current_comm`
    Command = 16,
    /// `bpf_probe_read_kernel`
    Read = 113,
    /// `bpf_get_ns_current_pid_tgid`
    ProcessOfNamespace = 120,
    /// `bpf_seq_write`
    Write = 127,
    /// `bpf_ringbuf_reserve`
    Reserve = 131,
    /// `bpf_ringbuf_submit`
    Submit = 132,
    /// `bpf_get_current_task_btf`
    Task = 158,
}

#[derive(Clone, Copy, Debug, Default)]
struct Instruction {
    code: u8,
    registers: u8,
    offset: i16,
    immediate: i32,
}

/// A program that is ready to be put into an object file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Code {
    /// The instructions, eight bytes each.
    pub bytes: Vec<u8>,
    /// Where maps are referred to: byte offset and the map's name.
    pub maps: Vec<(u64, &'static str)>,
}

/// A program as it grows.
#[derive(Debug, Default)]
pub struct Assembler {
    code: Vec<Instruction>,
    maps: Vec<(usize, &'static str)>,
    jumps: Vec<(usize, Label)>,
    places: HashMap<Label, usize>,
    labels: u32,
}

/// `BPF_SUB`-less arithmetic: the class of 64-bit operations, with and without a register.
const ALU64: u8 = 0x07;
const JUMP: u8 = 0x05;
const LOAD: u8 = 0x61;
const STORE: u8 = 0x63;
const STORE_IMMEDIATE: u8 = 0x62;
const BY_REGISTER: u8 = 0x08;
const LOAD_LONG: u8 = 0x18;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;
/// `lock *(u64 *)(dst + off) += src`
const ATOMIC_ADD: u8 = 0xdb;
/// `BPF_PSEUDO_MAP_FD`
const OF_MAP: u8 = 1;
/// `BPF_PSEUDO_KFUNC_CALL`
const OF_KERNEL: u8 = 2;

impl Assembler {
    /// A program without instructions.
    pub fn new() -> Self {
        Self::default()
    }

    fn push(&mut self, code: u8, to: Register, from: u8, offset: i16, immediate: i32) {
        let registers = from << 4 | to as u8;
        self.code.push(Instruction { code, registers, offset, immediate });
    }

    /// A place that is not known yet.
    pub fn label(&mut self) -> Label {
        self.labels += 1;
        Label(self.labels)
    }

    /// The label is here.
    pub fn place(&mut self, label: Label) {
        let before = self.places.insert(label, self.code.len());
        assert!(before.is_none(), "a label has one place");
    }

    /// `to = from`
    pub fn copy(&mut self, to: Register, from: Register) {
        self.push(ALU64 | Operation::Move as u8 | BY_REGISTER, to, from as u8, 0, 0);
    }

    /// `to = to OPERATION value`; `Move` sets it.
    pub fn with(&mut self, operation: Operation, to: Register, value: i32) {
        self.push(ALU64 | operation as u8, to, 0, 0, value);
    }

    /// `to = to OPERATION from`
    pub fn with_register(&mut self, operation: Operation, to: Register, from: Register) {
        self.push(ALU64 | operation as u8 | BY_REGISTER, to, from as u8, 0, 0);
    }

    /// `to = value`
    pub fn set(&mut self, to: Register, value: i32) {
        self.with(Operation::Move, to, value);
    }

    /// `to = *(WIDTH *)(from + offset)`
    pub fn load(&mut self, width: Width, to: Register, from: Register, offset: i16) {
        self.push(LOAD | width as u8, to, from as u8, offset, 0);
    }

    /// `*(WIDTH *)(to + offset) = from`
    pub fn store(&mut self, width: Width, to: Register, offset: i16, from: Register) {
        self.push(STORE | width as u8, to, from as u8, offset, 0);
    }

    /// `*(WIDTH *)(to + offset) = value`
    pub fn store_value(&mut self, width: Width, to: Register, offset: i16, value: i32) {
        self.push(STORE_IMMEDIATE | width as u8, to, 0, offset, value);
    }

    /// `*(u64 *)(to + offset) += from`, atomically.
    pub fn add_atomically(&mut self, to: Register, offset: i16, from: Register) {
        self.push(ATOMIC_ADD, to, from as u8, offset, 0);
    }

    /// `to = &map`
    pub fn map(&mut self, to: Register, name: &'static str) {
        self.maps.push((self.code.len(), name));
        self.push(LOAD_LONG, to, OF_MAP, 0, 0);
        self.push(0, Register::R0, 0, 0, 0);
    }

    /// Jumps if `what CONDITION value`.
    pub fn jump_if(&mut self, condition: Condition, what: Register, value: i32, to: Label) {
        self.jumps.push((self.code.len(), to));
        self.push(JUMP | condition as u8, what, 0, 0, value);
    }

    /// Jumps if `what CONDITION with`, two registers.
    pub fn jump_if_register(
        &mut self,
        condition: Condition,
        what: Register,
        with: Register,
        to: Label,
    ) {
        self.jumps.push((self.code.len(), to));
        self.push(JUMP | condition as u8 | BY_REGISTER, what, with as u8, 0, 0);
    }

    /// Jumps.
    pub fn jump(&mut self, to: Label) {
        self.jumps.push((self.code.len(), to));
        self.push(JUMP, Register::R0, 0, 0, 0);
    }

    /// Calls a function of the kernel.
    pub fn call(&mut self, helper: Helper) {
        self.push(CALL, Register::R0, 0, 0, helper as i32);
    }

    /// Calls a function of the kernel by its number among the kernel's types (a *kfunc*).
    pub fn call_function(&mut self, number: u32) {
        self.push(CALL, Register::R0, OF_KERNEL, 0, number as i32);
    }

    /// Ends with `R0`.
    pub fn exit(&mut self) {
        self.push(EXIT, Register::R0, 0, 0, 0);
    }

    /// Reads `length` bytes of kernel memory at `from + offset` to `R10 + stack`.
    /// Destroys `R0` to `R5`. What cannot be read is zero.
    pub fn read(&mut self, stack: i16, length: i32, from: Register, offset: u32) {
        self.copy(Register::R3, from);
        if offset != 0 {
            self.with(Operation::Add, Register::R3, offset as i32);
        }
        self.set(Register::R2, length);
        self.copy(Register::R1, Register::R10);
        self.with(Operation::Add, Register::R1, i32::from(stack));
        self.call(Helper::Read);
    }

    /// The same to `base + at`, which is memory that may be written.
    pub fn read_to(&mut self, base: Register, at: i16, length: i32, from: Register, offset: u32) {
        self.copy(Register::R3, from);
        if offset != 0 {
            self.with(Operation::Add, Register::R3, offset as i32);
        }
        self.set(Register::R2, length);
        self.copy(Register::R1, base);
        self.with(Operation::Add, Register::R1, i32::from(at));
        self.call(Helper::Read);
    }

    /// The program with its jumps filled in.
    ///
    /// # Panics
    /// If a label has no place, or is too far: that is a mistake in the program's text.
    pub fn finish(mut self) -> Code {
        for (at, label) in self.jumps {
            let place = self.places[&label];
            let distance = place as i64 - at as i64 - 1;
            self.code[at].offset = i16::try_from(distance).expect("programs are short");
        }
        let bytes = self.code.iter().flat_map(|instruction| {
            let mut bytes = [0; 8];
            bytes[0] = instruction.code;
            bytes[1] = instruction.registers;
            bytes[2..4].copy_from_slice(&instruction.offset.to_le_bytes());
            bytes[4..8].copy_from_slice(&instruction.immediate.to_le_bytes());
            bytes
        });
        Code {
            bytes: bytes.collect(),
            maps: self.maps.into_iter().map(|(at, name)| (8 * at as u64, name)).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Register::*;
    use super::*;

    /// Against the encodings of the kernel's documentation (`instruction-set.rst`).
    #[test]
    fn instructions_are_encoded_as_the_kernel_reads_them() {
        let mut asm = Assembler::new();
        let end = asm.label();
        asm.set(R1, -1); // b7 01 00 00 ff ff ff ff
        asm.copy(R6, R1); // bf 16
        asm.load(Width::Double, R2, R6, 16); // 79 62 10 00
        asm.jump_if(Condition::Equal, R2, 0, end); // 15 02 02 00 (over two)
        asm.store(Width::Word, R10, -4, R2); // 63 2a fc ff
        asm.add_atomically(R0, 8, R2); // db 20 08 00
        asm.place(end);
        asm.map(R1, "events"); // 18 11
        asm.call(Helper::Read); // 85 00 00 00 71
        asm.jump_if_register(Condition::Equal, R1, R0, end); // 1d 01 fc ff (back over four)
        asm.exit();
        let code = asm.finish();
        let line = |index: usize| &code.bytes[8 * index..8 * index + 8];
        assert_eq!(line(0), [0xb7, 0x01, 0, 0, 0xff, 0xff, 0xff, 0xff]);
        assert_eq!(line(1), [0xbf, 0x16, 0, 0, 0, 0, 0, 0]);
        assert_eq!(line(2), [0x79, 0x62, 0x10, 0, 0, 0, 0, 0]);
        assert_eq!(line(3), [0x15, 0x02, 2, 0, 0, 0, 0, 0]);
        assert_eq!(line(4), [0x63, 0x2a, 0xfc, 0xff, 0, 0, 0, 0]);
        assert_eq!(line(5), [0xdb, 0x20, 8, 0, 0, 0, 0, 0]);
        assert_eq!(line(6)[..2], [0x18, 0x11]);
        assert_eq!(line(8), [0x85, 0, 0, 0, 113, 0, 0, 0]);
        assert_eq!(line(9), [0x1d, 0x01, 0xfc, 0xff, 0, 0, 0, 0]);
        assert_eq!(line(10)[0], 0x95);
        assert_eq!(code.maps, [(48, "events")]);
    }
}
