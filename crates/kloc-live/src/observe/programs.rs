//! The programs that run in the kernel at hooks.
//!
//! All but the counters tell user space of one file through the ring `events`: who it is, how many
//! pages and extents it has, who did it. None of them follows a path, takes a lock or changes
//! anything. What they read of structures that may just be freed may be of another file: that
//! costs at most a decision which the lease then refuses.

use terrace_core::ContextIdentity;

use super::assembler::{Assembler, Code, Condition, Helper, Label, Operation, Register, Width};
use super::event::{Kind, Record, kernel_device};
use super::layout::{
    BioLayout, DescriptorLayout, FileLayout, GroupLayout, JournalLayout, TaskLayout,
};
use super::object_file::{Map, MapKind};

use Register::{R0, R1, R2, R3, R4, R6, R7, R8, R9, R10};

/// Bytes of the ring: some 20 000 events.
pub const RING: u32 = 2 << 20;
/// Files that each table has at the same time: those of two looks.
const FILES: u32 = 32 << 10;
/// Files whose use was told, and that are taken for open since: 5 MB of the kernel's memory.
const USED: u32 = 64 << 10;
/// More names than that of one file are not counted: a program has no loop, so each takes three
/// instructions.
pub const MOST_NAMES: u32 = 64;

/// What is counted in `counts`, by its place there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Count {
    /// Events that the ring had no room for.
    Lost,
    /// Files that one of the tables had no room for.
    Full,
    /// Requests to block devices that were issued.
    Requests,
    /// Handles of journals that were started.
    Journal,
    /// Packets whose headers were freed.
    Packets,
    /// Pages that page pools have given to drivers.
    ReceiveHeld,
    /// Pages that they got back.
    ReceiveReleased,
    /// Connections that changed their state.
    SocketStates,
}

impl Count {
    /// How many there are.
    pub const ALL: usize = 8;
}

/// All maps. Tables by device and inode have room only where other objects are counted, and that of
/// uses only where open files are looked for (`polled`): the kernel sets the memory of all their
/// entries aside.
pub fn maps(objects: bool, polled: bool) -> [Map; 6] {
    let files = |name| {
        let entries = if objects { FILES } else { 1 };
        Map { name, kind: MapKind::Hash, key: 16, value: 16, entries }
    };
    [
        Map { name: "events", kind: MapKind::Ring, key: 0, value: 0, entries: RING },
        Map { name: "counts", kind: MapKind::Array, key: 4, value: 8, entries: Count::ALL as u32 },
        // How many there were, and what they moved.
        files("transfers"),
        // How many handles there were, and the blocks that they asked for.
        files("journal"),
        // How many there are, and when they were counted.
        files("names"),
        // By the key of `used_key`.
        Map {
            name: "used",
            kind: MapKind::Hash,
            key: 16,
            value: 8,
            entries: if polled { USED } else { 1 },
        },
    ]
}

/// The key of a file in the table `used`, as programs make it: device and generation, inode.
pub fn used_key(file: &ContextIdentity) -> Option<[u64; 2]> {
    let &ContextIdentity::File { device, inode, generation } = file else { return None };
    Some([u64::from(generation) << 32 | u64::from(kernel_device(device)), inode])
}

/// How an address becomes a file to the kernel's verifier: `bpf_rdonly_cast`, Linux 6.2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cast {
    /// The function's number.
    pub function: u32,
    /// The number of `struct file`.
    pub file: u32,
}

/// What programs know of the kernel and of what is asked for.
#[derive(Clone, Debug)]
pub struct Build {
    /// Files and inodes.
    pub file: FileLayout,
    /// Control groups; without them, the group of an event is 0.
    pub group: Option<GroupLayout>,
    /// Without it, what is not known to be a file is copied field by field.
    pub cast: Option<Cast>,
    /// Events of this process are left out: those of the daemon itself.
    pub own: Own,
    /// Devices (as the kernel writes them) that are looked at; all if there are none.
    pub devices: Vec<u32>,
}

/// The process that hooks tell nothing of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Own {
    /// Its number.
    pub process: u32,
    /// The process namespace in which it has that number, by its device (as the kernel writes it)
    /// and inode; `None` if it is the machine's first one, whose numbers hooks see.
    pub namespace: Option<(u32, u32)>,
}

/// Regular files (`S_IFMT`, `S_IFREG`).
const FORMAT: i32 = 0o170_000;
const REGULAR: i32 = 0o100_000;
/// `BPF_RB_NO_WAKEUP`: user space looks by itself.
const NO_WAKEUP: i32 = 1;
/// `EXT4_SUPER_MAGIC`
const EXT4: i32 = 0xef53;

/// `EEXIST`: another processor was first.
const IS_THERE: i32 = -17;

/// Where things lie on the stack.
const POINTER: i16 = -8;
const KEY: i16 = -32;
const VALUE: i16 = -48;
const HEAD: i16 = -208;
/// What is written of an open file; nothing is read into `HEAD` there.
const RECORD: i16 = HEAD;

/// Where arguments of `iter/task_file` lie: what the iterator is about, a task, a file of it.
const META: i16 = 0;
const TASK: i16 = 8;
const FILE: i16 = 24;

impl Build {
    /// `counts[WHAT] += 1`. Destroys `R0` to `R5`.
    fn count(asm: &mut Assembler, what: Count) {
        let none = asm.label();
        asm.store_value(Width::Word, R10, POINTER, what as i32);
        asm.map(R1, "counts");
        asm.copy(R2, R10);
        asm.with(Operation::Add, R2, i32::from(POINTER));
        asm.call(Helper::MapLookup);
        asm.jump_if(Condition::Equal, R0, 0, none);
        asm.set(R1, 1);
        asm.add_atomically(R0, 0, R1);
        asm.place(none);
    }

    /// Goes on only for a process that is not this one.
    fn not_own(&self, asm: &mut Assembler, out: Label) {
        let Own { process, namespace } = self.own;
        let Some((device, inode)) = namespace else {
            asm.call(Helper::Process);
            asm.with(Operation::ShiftRight, R0, 32);
            asm.jump_if(Condition::Equal, R0, process as i32, out);
            return;
        };
        let other = asm.label();
        // `struct bpf_pidns_info`: the thread's number, and the process's.
        asm.store_value(Width::Double, R10, KEY, 0);
        asm.set(R1, device as i32);
        // Inode numbers there have the highest bit set; a constant would be taken as negative.
        asm.set(R2, inode as i32);
        asm.with(Operation::ShiftLeft, R2, 32);
        asm.with(Operation::ShiftRight, R2, 32);
        asm.copy(R3, R10);
        asm.with(Operation::Add, R3, i32::from(KEY));
        asm.set(R4, 8);
        asm.call(Helper::ProcessOfNamespace);
        // It is in no such namespace.
        asm.jump_if(Condition::NotEqual, R0, 0, other);
        asm.load(Width::Word, R0, R10, KEY + 4);
        asm.jump_if(Condition::Equal, R0, process as i32, out);
        asm.place(other);
    }

    /// With a file in `R6`: tells of its inode. `typed` says whether the kernel's verifier knows
    /// that it is a file.
    fn tell_file(&self, asm: &mut Assembler, kind: Kind, typed: bool, out: Label) {
        let is_typed = match (typed, self.cast) {
            (true, _) => true,
            (false, Some(cast)) => {
                asm.copy(R1, R6);
                asm.set(R2, cast.file as i32);
                asm.call_function(cast.function);
                asm.copy(R6, R0);
                true
            }
            (false, None) => false,
        };
        if is_typed {
            asm.load(Width::Double, R7, R6, self.file.file_inode as i16);
        } else {
            asm.read(POINTER, 8, R6, self.file.file_inode);
            asm.load(Width::Double, R7, R10, POINTER);
        }
        self.tell_inode(asm, kind as u32, is_typed, out);
    }

    /// Leaves at `out` what is no regular file of a device that is wanted; with the inode in `R7`.
    /// Afterwards `R8` has its superblock, and `POINTER` its device.
    fn filter(&self, asm: &mut Assembler, typed: bool, out: Label) {
        let file = &self.file;
        asm.jump_if(Condition::Equal, R7, 0, out);
        if typed {
            asm.load(Width::Half, R1, R7, file.mode as i16);
        } else {
            let (begin, length) = file.head();
            asm.read(HEAD, length as i32, R7, begin);
            asm.load(Width::Half, R1, R10, HEAD + (file.mode - begin) as i16);
        }
        asm.with(Operation::And, R1, FORMAT);
        asm.jump_if(Condition::NotEqual, R1, REGULAR, out);
        asm.store_value(Width::Double, R10, POINTER, 0);
        if typed {
            asm.load(Width::Double, R8, R7, file.superblock as i16);
            asm.jump_if(Condition::Equal, R8, 0, out);
            asm.load(Width::Word, R1, R8, file.device as i16);
            asm.store(Width::Word, R10, POINTER, R1);
        } else {
            let (begin, _) = file.head();
            asm.load(Width::Double, R8, R10, HEAD + (file.superblock - begin) as i16);
            asm.jump_if(Condition::Equal, R8, 0, out);
            asm.read(POINTER, 4, R8, file.device);
        }
        if !self.devices.is_empty() {
            let wanted = asm.label();
            asm.load(Width::Word, R1, R10, POINTER);
            for &device in &self.devices {
                asm.jump_if(Condition::Equal, R1, device as i32, wanted);
            }
            asm.jump(out);
            asm.place(wanted);
        }
    }

    /// With an inode in `R7`: tells of it, as this `kind` in its record. Goes on behind this only if
    /// the ring has no room.
    fn tell_inode(&self, asm: &mut Assembler, kind: u32, typed: bool, out: Label) {
        self.filter(asm, typed, out);
        let lost = asm.label();
        asm.map(R1, "events");
        asm.set(R2, Record::SIZE as i32);
        asm.set(R3, 0);
        asm.call(Helper::Reserve);
        asm.jump_if(Condition::Equal, R0, 0, lost);
        asm.copy(R9, R0);
        self.record_inode(asm, kind, typed);
        if let Some(group) = &self.group {
            asm.call(Helper::Task);
            Self::record_group(asm, group, R0);
        }
        asm.call(Helper::Process);
        asm.with(Operation::ShiftRight, R0, 32);
        asm.store(Width::Word, R9, Record::PROCESS, R0);
        asm.copy(R1, R9);
        asm.with(Operation::Add, R1, i32::from(Record::COMMAND));
        asm.set(R2, 16);
        asm.call(Helper::Command);
        asm.call(Helper::Now);
        asm.store(Width::Double, R9, Record::AT, R0);
        asm.copy(R1, R9);
        asm.set(R2, NO_WAKEUP);
        asm.call(Helper::Submit);
        asm.jump(out);
        asm.place(lost);
        Self::count(asm, Count::Lost);
    }

    /// After [`Self::filter`], with a record in `R9`: writes what is known of the inode into it. `R8` is
    /// something else afterwards.
    ///
    /// Where the verifier knows the types, fields are loaded directly, which takes a nanosecond
    /// each; otherwise the kernel copies them, which takes ten or more.
    fn record_inode(&self, asm: &mut Assembler, kind: u32, typed: bool) {
        let file = &self.file;
        asm.load(Width::Word, R1, R10, POINTER);
        asm.store(Width::Word, R9, Record::DEVICE, R1);
        asm.store_value(Width::Word, R9, Record::KIND, kind as i32);
        asm.store_value(Width::Word, R9, Record::EXTENTS, -1);
        asm.store_value(Width::Word, R9, Record::NAMES, -1);
        asm.store_value(Width::Double, R9, Record::GROUP, 0);
        if typed {
            for (width, to, from) in [
                (Width::Double, Record::INODE, file.number),
                (Width::Double, Record::LENGTH, file.size),
                (Width::Word, Record::LINKS, file.links),
                (Width::Word, Record::GENERATION, file.generation),
            ] {
                asm.load(width, R1, R7, from as i16);
                asm.store(width, R9, to, R1);
            }
            asm.load(Width::Double, R1, R8, file.magic as i16);
            asm.store(Width::Double, R9, Record::MAGIC, R1);
            asm.load(Width::Double, R1, R7, file.mapping as i16);
            asm.load(Width::Double, R1, R1, file.pages as i16);
            asm.store(Width::Double, R9, Record::PAGES, R1);
            if let Some(names) = file.names {
                Self::count_names(asm, R2, names, 0);
                asm.store(Width::Word, R9, Record::NAMES, R2);
            }
        } else {
            let (begin, _) = file.head();
            let in_head = |offset: u32| HEAD + (offset - begin) as i16;
            for (to, from) in [(Record::INODE, file.number), (Record::LENGTH, file.size)] {
                asm.load(Width::Double, R1, R10, in_head(from));
                asm.store(Width::Double, R9, to, R1);
            }
            asm.load(Width::Word, R1, R10, in_head(file.links));
            asm.store(Width::Word, R9, Record::LINKS, R1);
            asm.store_value(Width::Double, R9, Record::PAGES, 0);
            asm.store_value(Width::Double, R9, Record::MAGIC, 0);
            asm.read_to(R9, Record::MAGIC, 8, R8, file.magic);
            // The superblock is not needed any more.
            asm.load(Width::Double, R8, R10, in_head(file.mapping));
            asm.read_to(R9, Record::PAGES, 8, R8, file.pages);
            asm.read_to(R9, Record::GENERATION, 4, R7, file.generation);
        }
        if let Some(extents) = file.extents {
            let other = asm.label();
            asm.load(Width::Double, R1, R9, Record::MAGIC);
            asm.jump_if(Condition::NotEqual, R1, EXT4, other);
            asm.copy(R8, R7);
            asm.with(Operation::Add, R8, extents);
            asm.read_to(R9, Record::EXTENTS, 4, R8, 0);
            asm.place(other);
        }
    }

    /// With a record in `R9`: writes the group of a task into it. Destroys `R1`.
    fn record_group(asm: &mut Assembler, group: &GroupLayout, task: Register) {
        asm.load(Width::Double, R1, task, group.groups as i16);
        asm.load(Width::Double, R1, R1, group.memory as i16);
        asm.load(Width::Double, R1, R1, group.group as i16);
        asm.load(Width::Double, R1, R1, group.node as i16);
        asm.load(Width::Double, R1, R1, group.number as i16);
        asm.store(Width::Double, R9, Record::GROUP, R1);
    }

    /// With an inode in `R7`: counts its names in the kernel's cache, beginning with `from`, and no
    /// more than [`MOST_NAMES`]. Destroys `R1`.
    ///
    /// No lock is held. A name that goes at this moment may lead elsewhere, and the count is then wrong
    /// until the next one; the verifier lets nothing but a failed read come of it.
    fn count_names(asm: &mut Assembler, count: Register, names: u32, from: i32) {
        let last = asm.label();
        asm.set(count, from);
        asm.load(Width::Double, R1, R7, names as i16);
        for _ in from..MOST_NAMES as i32 {
            asm.jump_if(Condition::Equal, R1, 0, last);
            asm.with(Operation::Add, count, 1);
            asm.load(Width::Double, R1, R1, 0);
        }
        asm.place(last);
    }

    /// With a file's device and inode at `KEY`: one more in a table, of this amount.
    fn add_of_file(asm: &mut Assembler, table: &'static str, amount: Register, out: Label) {
        let known = asm.label();
        asm.map(R1, table);
        asm.copy(R2, R10);
        asm.with(Operation::Add, R2, i32::from(KEY));
        asm.call(Helper::MapLookup);
        asm.jump_if(Condition::NotEqual, R0, 0, known);
        asm.store_value(Width::Double, R10, VALUE, 1);
        asm.store(Width::Double, R10, VALUE + 8, amount);
        asm.map(R1, table);
        asm.copy(R2, R10);
        asm.with(Operation::Add, R2, i32::from(KEY));
        asm.copy(R3, R10);
        asm.with(Operation::Add, R3, i32::from(VALUE));
        // Only if there is none yet (`BPF_NOEXIST`): another processor may have come here, too.
        asm.set(R4, 1);
        asm.call(Helper::MapUpdate);
        asm.jump_if(Condition::Equal, R0, 0, out);
        asm.map(R1, table);
        asm.copy(R2, R10);
        asm.with(Operation::Add, R2, i32::from(KEY));
        asm.call(Helper::MapLookup);
        asm.jump_if(Condition::NotEqual, R0, 0, known);
        Self::count(asm, Count::Full);
        asm.jump(out);
        asm.place(known);
        asm.set(R1, 1);
        asm.add_atomically(R0, 0, R1);
        asm.add_atomically(R0, 8, amount);
    }

    fn end(mut asm: Assembler, out: Label) -> Code {
        asm.place(out);
        asm.set(R0, 0);
        asm.exit();
        asm.finish()
    }

    /// A hook whose argument of this number is a file that is opened or closed; with the number of
    /// the argument that holds the result, only if that is 0.
    pub fn file_argument(&self, kind: Kind, argument: i16, result: Option<i16>) -> Code {
        let mut asm = Assembler::new();
        let out = asm.label();
        if let Some(result) = result {
            asm.load(Width::Word, R2, R1, 8 * result);
            asm.jump_if(Condition::NotEqual, R2, 0, out);
        }
        asm.load(Width::Double, R6, R1, 8 * argument);
        self.not_own(&mut asm, out);
        self.tell_file(&mut asm, kind, true, out);
        Self::end(asm, out)
    }

    /// A hook whose first argument is an inode that goes.
    pub fn evict(&self) -> Code {
        let mut asm = Assembler::new();
        let out = asm.label();
        asm.load(Width::Double, R7, R1, 0);
        self.tell_inode(&mut asm, Kind::Evicted as u32, true, out);
        Self::end(asm, out)
    }

    /// `tp_btf/kmem_cache_free`: the tail of the last close of an open file frees its `filp`.
    /// Caches are told apart by their size, then by their name: `filp`, or `bfilp` of a file that
    /// overlayfs has opened.
    ///
    /// `cache` has the offsets of `kmem_cache.object_size` and `.name`; `sizes` those of the two
    /// caches.
    pub fn close_by_slab(&self, cache: (u32, u32), sizes: &[u32]) -> Code {
        let mut asm = Assembler::new();
        let (out, size_fits, is_file) = (asm.label(), asm.label(), asm.label());
        // (call site, object, cache)
        asm.load(Width::Double, R6, R1, 8);
        asm.load(Width::Double, R7, R1, 16);
        asm.load(Width::Word, R2, R7, cache.0 as i16);
        for &size in sizes {
            asm.jump_if(Condition::Equal, R2, size as i32, size_fits);
        }
        asm.jump(out);
        asm.place(size_fits);
        asm.load(Width::Double, R8, R7, cache.1 as i16);
        asm.store_value(Width::Double, R10, POINTER, 0);
        asm.read(POINTER, 6, R8, 0);
        asm.load(Width::Word, R1, R10, POINTER);
        asm.load(Width::Half, R2, R10, POINTER + 4);
        let word = |text: &[u8; 4]| i32::from_le_bytes(*text);
        let (backing, plain) = (asm.label(), asm.label());
        asm.jump_if(Condition::Equal, R1, word(b"filp"), plain);
        asm.jump_if(Condition::Equal, R1, word(b"bfil"), backing);
        asm.jump(out);
        asm.place(plain);
        asm.with(Operation::And, R2, 0xff);
        asm.jump_if(Condition::Equal, R2, 0, is_file);
        asm.jump(out);
        asm.place(backing);
        asm.jump_if(Condition::Equal, R2, i32::from(b'p'), is_file);
        asm.jump(out);
        asm.place(is_file);
        self.not_own(&mut asm, out);
        self.tell_file(&mut asm, Kind::Closed, false, out);
        Self::end(asm, out)
    }

    /// `tp_btf/sys_exit`: calls that open, by their result.
    pub fn open_by_call(&self, way: &DescriptorLayout, calls: &[i32]) -> Code {
        let mut asm = Assembler::new();
        let (out, is_open) = (asm.label(), asm.label());
        // (registers, result)
        asm.load(Width::Double, R2, R1, 0);
        asm.load(Width::Double, R3, R2, way.call as i16);
        for &call in calls {
            asm.jump_if(Condition::Equal, R3, call, is_open);
        }
        asm.jump(out);
        asm.place(is_open);
        asm.load(Width::Double, R8, R1, 8);
        asm.jump_if(Condition::SignedLess, R8, 0, out);
        self.not_own(&mut asm, out);
        asm.call(Helper::Task);
        asm.load(Width::Double, R1, R0, way.files as i16);
        asm.jump_if(Condition::Equal, R1, 0, out);
        asm.load(Width::Double, R1, R1, way.table as i16);
        asm.jump_if(Condition::Equal, R1, 0, out);
        asm.load(Width::Double, R7, R1, way.array as i16);
        asm.with(Operation::ShiftLeft, R8, 3);
        asm.with_register(Operation::Add, R8, R7);
        asm.store_value(Width::Double, R10, POINTER, 0);
        asm.read(POINTER, 8, R8, 0);
        asm.load(Width::Double, R6, R10, POINTER);
        asm.jump_if(Condition::Equal, R6, 0, out);
        self.tell_file(&mut asm, Kind::Opened, false, out);
        Self::end(asm, out)
    }

    /// After [`Self::filter`], with an inode in `R7`: makes its key in the table `used`, and gives the
    /// address of that in `R2`. Destroys `R1`.
    fn make_used_key(&self, asm: &mut Assembler) {
        asm.load(Width::Word, R1, R10, POINTER);
        asm.store(Width::Word, R10, KEY, R1);
        asm.load(Width::Word, R1, R7, self.file.generation as i16);
        asm.store(Width::Word, R10, KEY + 4, R1);
        asm.load(Width::Double, R1, R7, self.file.number as i16);
        asm.store(Width::Double, R10, KEY + 8, R1);
        asm.copy(R2, R10);
        asm.with(Operation::Add, R2, i32::from(KEY));
    }

    /// Tracepoints of the page cache whose first argument is a mapping of which pages are used; or a
    /// page that came, with where it refers to its mapping.
    ///
    /// These run at each read. So the first use of a file is told, and entered into the table `used`;
    /// all others end there, until user space removes that entry.
    pub fn used(&self, came: Option<u32>) -> Code {
        let mut asm = Assembler::new();
        let (out, is_new) = (asm.label(), asm.label());
        asm.load(Width::Double, R6, R1, 0);
        if let Some(mapping) = came {
            asm.load(Width::Double, R6, R6, mapping as i16);
        }
        asm.load(Width::Double, R7, R6, self.file.host as i16);
        self.filter(&mut asm, true, out);
        self.make_used_key(&mut asm);
        asm.map(R1, "used");
        asm.call(Helper::MapLookup);
        asm.jump_if(Condition::NotEqual, R0, 0, out);
        // May write to `KEY`.
        self.not_own(&mut asm, out);
        self.make_used_key(&mut asm);
        asm.store_value(Width::Double, R10, VALUE, 1);
        asm.map(R1, "used");
        asm.copy(R3, R10);
        asm.with(Operation::Add, R3, i32::from(VALUE));
        // Only if there is none yet (`BPF_NOEXIST`): another processor may have come here, too.
        asm.set(R4, 1);
        asm.call(Helper::MapUpdate);
        asm.jump_if(Condition::Equal, R0, 0, is_new);
        asm.jump_if(Condition::Equal, R0, IS_THERE, out);
        Self::count(&mut asm, Count::Full);
        asm.jump(out);
        asm.place(is_new);
        let kind = if came.is_some() { Record::MISSED } else { Kind::Opened as u32 };
        self.tell_inode(&mut asm, kind, true, out);
        // It could not be told: the next use is.
        asm.map(R1, "used");
        asm.copy(R2, R10);
        asm.with(Operation::Add, R2, i32::from(KEY));
        asm.call(Helper::MapDelete);
        Self::end(asm, out)
    }

    /// `iter/task_file`: writes a record of each regular file that a process has open, but for files of
    /// the process that reads them. It has no time.
    pub fn open_files(&self, who: &TaskLayout) -> Code {
        let mut asm = Assembler::new();
        let out = asm.label();
        asm.copy(R6, R1);
        // Behind the last one there is none.
        asm.load(Width::Double, R1, R6, TASK);
        asm.jump_if(Condition::Equal, R1, 0, out);
        asm.load(Width::Double, R2, R6, FILE);
        asm.jump_if(Condition::Equal, R2, 0, out);
        asm.load(Width::Double, R7, R2, self.file.file_inode as i16);
        self.filter(&mut asm, true, out);
        asm.call(Helper::Process);
        asm.with(Operation::ShiftRight, R0, 32);
        // Both are numbers of the machine's first process namespace.
        asm.load(Width::Double, R1, R6, TASK);
        asm.jump_if(Condition::Equal, R1, 0, out);
        asm.load(Width::Word, R1, R1, who.process as i16);
        asm.jump_if_register(Condition::Equal, R1, R0, out);
        asm.copy(R9, R10);
        asm.with(Operation::Add, R9, i32::from(RECORD));
        asm.store(Width::Word, R9, Record::PROCESS, R1);
        asm.store_value(Width::Double, R9, Record::AT, 0);
        self.record_inode(&mut asm, Kind::Opened as u32, true);
        asm.load(Width::Double, R8, R6, TASK);
        asm.jump_if(Condition::Equal, R8, 0, out);
        if let Some(group) = &self.group {
            Self::record_group(&mut asm, group, R8);
        }
        asm.read_to(R9, Record::COMMAND, 16, R8, who.command);
        asm.load(Width::Double, R1, R6, META);
        asm.load(Width::Double, R1, R1, 0);
        asm.copy(R2, R10);
        asm.with(Operation::Add, R2, i32::from(RECORD));
        asm.set(R3, Record::SIZE as i32);
        asm.call(Helper::Write);
        Self::end(asm, out)
    }

    /// `tp_btf/block_bio_queue`: what is transferred for which file, in the table `transfers`.
    pub fn transfer(&self, bio: &BioLayout) -> Code {
        let file = &self.file;
        let mut asm = Assembler::new();
        let (out, is_head) = (asm.label(), asm.label());
        asm.load(Width::Double, R6, R1, 0);
        asm.store_value(Width::Double, R10, POINTER, 0);
        asm.read(POINTER, 8, R6, bio.vector);
        asm.load(Width::Double, R7, R10, POINTER);
        asm.jump_if(Condition::Equal, R7, 0, out);
        asm.read(POINTER, 8, R7, bio.page);
        asm.load(Width::Double, R7, R10, POINTER);
        asm.jump_if(Condition::Equal, R7, 0, out);
        // A part of a large page refers to its head, with the lowest bit set.
        asm.read(POINTER, 8, R7, bio.head);
        asm.load(Width::Double, R1, R10, POINTER);
        asm.copy(R2, R1);
        asm.with(Operation::And, R2, 1);
        asm.jump_if(Condition::Equal, R2, 0, is_head);
        asm.copy(R7, R1);
        asm.with(Operation::Add, R7, -1);
        asm.place(is_head);
        asm.read(POINTER, 8, R7, bio.mapping);
        asm.load(Width::Double, R7, R10, POINTER);
        asm.jump_if(Condition::Equal, R7, 0, out);
        // Anonymous memory has the lowest bits set.
        asm.copy(R1, R7);
        asm.with(Operation::And, R1, 3);
        asm.jump_if(Condition::NotEqual, R1, 0, out);
        asm.read(POINTER, 8, R7, file.host);
        asm.load(Width::Double, R7, R10, POINTER);
        asm.jump_if(Condition::Equal, R7, 0, out);
        asm.store_value(Width::Double, R10, KEY, 0);
        asm.read(KEY + 8, 8, R7, file.number);
        asm.read(POINTER, 8, R7, file.superblock);
        asm.load(Width::Double, R7, R10, POINTER);
        asm.read(KEY, 4, R7, file.device);
        asm.store_value(Width::Double, R10, POINTER, 0);
        asm.read(POINTER, 4, R6, bio.size);
        asm.load(Width::Word, R8, R10, POINTER);
        Self::add_of_file(&mut asm, "transfers", R8, out);
        Self::end(asm, out)
    }

    /// `raw_tp/ext4_journal_start_inode`: handles of the journal that are started for a file, and the
    /// blocks that they ask for, in the table `journal`.
    ///
    /// As a raw tracepoint it can be had of a module, too: its types are those of the module then, which
    /// the loader does not read, so the arguments are numbers.
    pub fn journaled(&self, way: &JournalLayout) -> Code {
        let (begin, _) = self.file.head();
        let mut asm = Assembler::new();
        let out = asm.label();
        // (inode, blocks, …)
        asm.load(Width::Double, R7, R1, 0);
        asm.load(Width::Word, R6, R1, 8);
        self.filter(&mut asm, false, out);
        asm.load(Width::Double, R1, R10, POINTER);
        asm.store(Width::Double, R10, KEY, R1);
        asm.load(Width::Double, R1, R10, HEAD + (self.file.number - begin) as i16);
        asm.store(Width::Double, R10, KEY + 8, R1);
        // Without a journal the same is asked for, and nothing comes of it.
        asm.read(POINTER, 8, R8, way.information);
        asm.load(Width::Double, R8, R10, POINTER);
        asm.jump_if(Condition::Equal, R8, 0, out);
        asm.read(POINTER, 8, R8, way.journal);
        asm.load(Width::Double, R1, R10, POINTER);
        asm.jump_if(Condition::Equal, R1, 0, out);
        Self::add_of_file(&mut asm, "journal", R6, out);
        Self::end(asm, out)
    }

    /// Where a function ends whose argument of this number is an inode that has got a name in the
    /// kernel's cache, the names it has now; with the number of the argument that holds the result, only
    /// if that is 0. `names` is where an inode refers to them.
    pub fn name_came(&self, names: u32, argument: i16, result: Option<i16>) -> Code {
        let mut asm = Assembler::new();
        let out = asm.label();
        if let Some(result) = result {
            asm.load(Width::Double, R2, R1, 8 * result);
            asm.jump_if(Condition::NotEqual, R2, 0, out);
        }
        asm.load(Width::Double, R7, R1, 8 * argument);
        self.filter(&mut asm, true, out);
        Self::count_names(&mut asm, R9, names, 0);
        self.enter_names(&mut asm, out);
        Self::end(asm, out)
    }

    /// Where a function begins whose first argument is a name that goes: the names that its inode has
    /// without it. The kernel holds the inode's lock there, so nothing comes in between. `inode` is
    /// where a name refers to its inode.
    pub fn name_goes(&self, names: u32, inode: u32) -> Code {
        let mut asm = Assembler::new();
        let out = asm.label();
        asm.load(Width::Double, R6, R1, 0);
        asm.load(Width::Double, R7, R6, inode as i16);
        self.filter(&mut asm, true, out);
        Self::count_names(&mut asm, R9, names, -1);
        asm.jump_if(Condition::SignedLess, R9, 0, out);
        self.enter_names(&mut asm, out);
        Self::end(asm, out)
    }

    /// After [`Self::filter`], with a count in `R9`: puts it into the table `names`, with the time.
    fn enter_names(&self, asm: &mut Assembler, out: Label) {
        asm.load(Width::Double, R1, R10, POINTER);
        asm.store(Width::Double, R10, KEY, R1);
        asm.load(Width::Double, R1, R7, self.file.number as i16);
        asm.store(Width::Double, R10, KEY + 8, R1);
        asm.store(Width::Double, R10, VALUE, R9);
        asm.call(Helper::Now);
        asm.store(Width::Double, R10, VALUE + 8, R0);
        asm.map(R1, "names");
        asm.copy(R2, R10);
        asm.with(Operation::Add, R2, i32::from(KEY));
        asm.copy(R3, R10);
        asm.with(Operation::Add, R3, i32::from(VALUE));
        asm.set(R4, 0);
        asm.call(Helper::MapUpdate);
        asm.jump_if(Condition::Equal, R0, 0, out);
        Self::count(asm, Count::Full);
    }

    /// Any hook: it happened once more.
    pub fn counter(what: Count) -> Code {
        let mut asm = Assembler::new();
        let out = asm.label();
        Self::count(&mut asm, what);
        Self::end(asm, out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn build() -> Build {
        let file = FileLayout {
            file_inode: 32,
            mode: 0,
            superblock: 40,
            mapping: 48,
            number: 64,
            links: 72,
            size: 80,
            generation: 560,
            device: 16,
            magic: 96,
            pages: 88,
            host: 0,
            extents: Some(-64),
            names: Some(304),
        };
        let own = Own { process: 1, namespace: None };
        Build { file, group: None, cast: None, own, devices: vec![8 << 20] }
    }

    /// The kernel takes 512 bytes of stack, and jumps within the program only. Assembling fails where
    /// a label has no place.
    #[test]
    fn programs_are_whole_and_refer_to_maps_that_there_are() {
        let build = build();
        let journal = JournalLayout { information: 896, journal: 600 };
        let names: Vec<_> = maps(true, true).iter().map(|map| map.name).collect();
        for (code, table) in [
            (build.used(None), "used"),
            (build.used(Some(24)), "events"),
            (build.file_argument(Kind::Opened, 0, Some(3)), "events"),
            (build.evict(), "events"),
            (build.journaled(&journal), "journal"),
            (build.name_came(304, 0, Some(2)), "names"),
            (build.name_came(304, 1, None), "names"),
            (build.name_goes(304, 48), "names"),
        ] {
            assert!(code.maps.iter().any(|(_, map)| *map == table), "{table}: {:?}", code.maps);
            assert!(code.maps.iter().all(|(_, map)| names.contains(map)), "{:?}", code.maps);
            let exit = [0x95, 0, 0, 0, 0, 0, 0, 0];
            assert_eq!(code.bytes[code.bytes.len() - 8..], exit, "{table}");
        }
        let code = build.open_files(&TaskLayout { process: 2488, command: 3016 });
        assert!(code.maps.is_empty() && code.bytes.ends_with(&[0x95, 0, 0, 0, 0, 0, 0, 0]));
        let (_, length) = build.file.head();
        assert!(i32::from(HEAD) + length as i32 <= i32::from(VALUE), "what is read fits");
        let written = i32::from(RECORD) + Record::SIZE as i32;
        assert!(written <= i32::from(VALUE), "and so does what is written");
    }

    /// A name that goes is still in the list, and is not counted.
    #[test]
    fn names_are_counted_up_to_the_same_number_with_and_without_the_one_that_goes() {
        let steps = |from| {
            let mut asm = Assembler::new();
            Build::count_names(&mut asm, R9, 304, from);
            asm.finish().bytes.len() / 8
        };
        assert_eq!(steps(0), 2 + 3 * MOST_NAMES as usize);
        assert_eq!(steps(-1), steps(0) + 3);
    }

    /// Memory for entries that nobody makes would be set aside all the same.
    #[test]
    fn tables_have_room_only_where_they_are_used() {
        let entries = |objects: bool, polled: bool| {
            let maps = maps(objects, polled);
            maps.iter().filter(|m| m.kind == MapKind::Hash).map(|m| m.entries).max()
        };
        assert_eq!((entries(false, false), entries(true, false)), (Some(1), Some(FILES)));
        assert_eq!(entries(false, true), Some(USED));
    }

    /// User space removes entries that programs have made: device, then generation, then inode.
    #[test]
    fn the_key_of_a_use_lies_in_memory_as_programs_write_it() {
        let device = libc::makedev(8, 1);
        let file = ContextIdentity::File { device, inode: 77, generation: 11 };
        let key = used_key(&file).expect("a file");
        let bytes: Vec<u8> = key.iter().flat_map(|half| half.to_le_bytes()).collect();
        assert_eq!(bytes[..4], (8 << 20 | 1u32).to_le_bytes());
        assert_eq!(bytes[4..8], 11u32.to_le_bytes());
        assert_eq!(bytes[8..], 77u64.to_le_bytes());
        assert_eq!(used_key(&ContextIdentity::Socket { cookie: 1 }), None);
    }
}
