//! The simulated kernel: threads, their calls, and what the kernel does by itself.

use core::cmp::{Ordering, Reverse};
use std::collections::binary_heap::PeekMut;
use std::collections::{BinaryHeap, VecDeque};

use terrace_core::context::{ContextChange, ContextEvent, Cpu, ObjectId};
use terrace_core::{Bytes, ContextId, Machine, Nanos, ObjectKind, Plan};
use terrace_economics::{Calibration, Decision, Economist, Mode};
use terrace_policy::{Brain, Policy};

use super::call::{Call, CallError, Calls, MOST};
use super::costs::Costs;
use super::counts::Counts;
use super::disk::Disk;
use super::file::File;
use super::index::Nodes;
use super::lists::{FileReplacement, Lists};
use super::memory::{FIXED, Lines, ObjectMemory, PAGE, PageId, Role};
use super::mover::Mover;
use super::slab::{Cache, Object, Slabs};
use super::socket::{Ack, Socket};
use super::sockets::{Sockets, SocketsConfig};
use crate::analytic::device::Device;
use crate::error::SimError;
use crate::exact::hierarchy::Hierarchy;
use crate::exact::machine::hierarchy_geometry;

/// How accesses to memory are simulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    /// Where pages lie, and how long their memories are busy; a page that was touched a short
    /// while ago is cached.
    Placement,
    /// Line by line through the caches; the machine needs its part `detail`.
    Caches,
}

/// What to simulate.
#[derive(Clone, Debug)]
pub struct KernelConfig {
    /// The machine.
    pub machine: Machine,
    /// What calls cost.
    pub costs: Costs,
    /// How accesses are simulated.
    pub detail: Detail,
    /// What the economist does with its opinion.
    pub economist: Mode,
    /// Whether the kernel's allocator gives slab objects addresses that it can change, as the
    /// KLOCs paper's does. A stock kernel moves no slab.
    pub relocatable: bool,
    /// By how much data and memories are smaller than what they stand for. What does not grow
    /// with a program's data keeps the size that it has: the buffers of its threads, packets,
    /// bios, requests. It shares the last-level cache with an n-th of the data, and so an n-th of
    /// the cache is what data have for themselves. Placement alone: with line by line the caches
    /// are what the machine file says.
    pub scale: u64,
    /// What goes on at the sockets of a machine with DRAM caches; such a machine needs it, others
    /// must not have it. Placement alone.
    pub sockets: Option<SocketsConfig>,
    /// Whether contexts are told which of their members a sequential reader comes to
    /// ([`ContextChange::Ahead`]).
    pub tells_ahead: bool,
    /// Which pages of files leave when memory is short.
    pub replacement: FileReplacement,
}

impl KernelConfig {
    /// The built-in costs, placement alone, an economist that only looks on, a kernel that can
    /// move slabs.
    pub fn new(machine: Machine) -> Self {
        Self {
            machine,
            costs: Costs::builtin(),
            detail: Detail::Placement,
            economist: Mode::Off,
            relocatable: true,
            scale: 1,
            sockets: None,
            tells_ahead: false,
            replacement: FileReplacement::TwoLists,
        }
    }

    /// Nanoseconds an instruction when nothing misses. A machine file without a part `detail` does
    /// not say how many are issued in a cycle: one then.
    pub fn instruction_time(&self) -> f64 {
        let width = self.machine.detail.as_ref().map_or(1.0, |detail| detail.issue_width.value);
        1e9 / self.machine.cpu.clock.value.get() / width
    }

    /// The two sockets, if the machine has them, and the frames that are streamed through.
    fn sockets(&self) -> Result<(Option<Sockets>, u32), SimError> {
        let machine = &self.machine;
        let refuse = |message: String| Err(SimError::parameter("machine", message));
        let (cache, config) = match (&machine.dram_cache, self.sockets) {
            (None, None) => return Ok((None, 0)),
            (Some(cache), Some(config)) => (cache, config),
            (None, Some(_)) => {
                return refuse(format!("`{}` has no part `dram-cache`", machine.name));
            }
            (Some(_), None) => {
                return refuse(format!(
                    "`{}` has two sockets: what goes on at them has to be said",
                    machine.name
                ));
            }
        };
        if self.detail == Detail::Caches {
            return refuse("DRAM caches are simulated with placement alone".to_owned());
        }
        let frames = [0, 1].map(|tier: usize| {
            (machine.tiers[tier].capacity.value.get() / PAGE).min(u64::from(u32::MAX)) as u32
        });
        let streamed = Sockets::streamed_frames(cache, config);
        let sockets = Sockets::new(machine, cache, config, frames);
        if !sockets.tells_apart(frames) {
            return refuse(format!(
                "a socket's memory must be at most {} times its DRAM cache",
                Sockets::MOST_CACHES
            ));
        }
        if streamed >= frames[1] {
            return refuse("no memory of socket 1 is left beside what is streamed through".into());
        }
        Ok((Some(sockets), streamed))
    }
}

/// Pages that calls may take beyond what they name: nodes, slabs, what is read ahead.
const RESERVE: u32 = 96;
/// Requests that the disk takes at once (`BLKDEV_DEFAULT_RQ`).
const REQUESTS: u32 = 128;
/// Pages of each thread that its calls read into and write from.
pub(super) const BUFFER: u32 = 32;
/// The file system's own file: its journal.
pub(super) const JOURNAL: u32 = MOST + 1;

/// A thread that makes a call, and its clock.
#[derive(Clone, Copy, Debug)]
pub(super) struct Caller {
    pub(super) thread: usize,
    pub(super) now: f64,
}

/// Is told what the economist decided about each plan.
pub type DecisionListener = Box<dyn FnMut(&[Decision]) + Send>;

/// A thread's account.
#[derive(Clone, Copy, Debug, Default)]
struct Thread {
    now: f64,
    done: bool,
}

/// A thread's clock, in order.
#[derive(Clone, Copy, Debug)]
struct Clock(f64);

impl Ord for Clock {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.total_cmp(&other.0)
    }
}
impl PartialOrd for Clock {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl PartialEq for Clock {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}
impl Eq for Clock {}

/// What came of a run.
#[derive(Clone, Debug, serde::Serialize)]
pub struct KernelReport {
    /// The program.
    pub program: &'static str,
    /// The policy.
    pub policy: &'static str,
    /// Steps of all threads, those of the preparation too.
    pub calls: u64,
    /// Of them, calls of the kernel.
    pub kernel_calls: u64,
    /// Operations in the time that was measured.
    pub operations: u64,
    /// That time, in nanoseconds: until the last operation was done.
    pub nanos: f64,
    /// What was counted in that time; lifetimes of the living are those at the end.
    pub counts: Counts,
    /// The same with the preparation.
    pub all: Counts,
    /// Bytes of the policy's state.
    pub policy_bytes: Bytes,
    /// Bytes of the simulator's state for each page that it was about.
    pub bytes_per_page: f64,
}

impl KernelReport {
    /// Operations a second.
    pub fn throughput(&self) -> f64 {
        if self.nanos > 0.0 { self.operations as f64 / self.nanos * 1e9 } else { 0.0 }
    }
}

/// A call that the kernel refused.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("call {number} of thread {thread}: {error}")]
pub struct Refused {
    /// Which, counted over all threads from 1.
    pub number: u64,
    /// Of which thread.
    pub thread: usize,
    /// Why.
    pub error: CallError,
}

/// The kernel.
///
/// More than 20 fields: each call may need any of them, as a kernel's globals are one state that
/// all subsystems share. What belongs to one of these alone has its own structure (memory, slabs,
/// nodes, lists, disk); what is left here is the files' shared books (dirty pages, the journal's
/// transaction), the threads' clocks, and what was counted.
pub struct Kernel {
    pub(super) memory: ObjectMemory,
    pub(super) costs: Costs,
    pub(super) slabs: Slabs,
    pub(super) nodes: Nodes,
    pub(super) lists: Lists,
    pub(super) files: Vec<Option<Box<File>>>,
    pub(super) journal_file: Box<File>,
    pub(super) sockets: Vec<Option<Box<Socket>>>,
    pub(super) disk: Disk,
    pub(super) acks: VecDeque<Ack>,
    /// Files whose last close is the oldest first, for the shrinker.
    pub(super) closed: VecDeque<(u32, u64)>,
    /// Files with dirty pages, and since when.
    pub(super) dirty_files: VecDeque<(u32, f64)>,
    pub(super) dirty: u32,
    /// Pages that the disk is writing.
    pub(super) writing: u32,
    /// Where the journal goes on.
    pub(super) journal_at: u32,
    /// Files with journal buffers in the transaction that runs.
    pub(super) transaction: Vec<u32>,
    pub(super) transaction_blocks: u32,
    pub(super) journal_owed: f64,
    pub(super) closes: u64,
    request_pages: Vec<u32>,
    pub(super) next_request: u32,
    next_object: u64,
    next_context: u32,
    /// The time of the latest event: events never go back.
    told: f64,
    pub(super) cpus: usize,
    threads: Vec<Thread>,
    calls: u64,
    asked: u64,
    operations: u64,
    /// When the last operation was done: what goes on in the background after that is not
    /// the program's time.
    last_done: f64,
    measured: Option<(f64, u64, Counts)>,
    tick: Option<f64>,
    next_tick: f64,
    pub(super) next_commit: f64,
    pub(super) next_write_back: f64,
    program_pages: u32,
    pub(super) tells_ahead: bool,
    /// Nanoseconds an instruction of the program when nothing misses.
    instruction: f64,
    listener: Option<DecisionListener>,
}

impl Kernel {
    /// A kernel that has just started, for a program of so many threads and pages.
    pub fn new(
        config: &KernelConfig,
        policy: Box<dyn Policy>,
        threads: usize,
        pages: u32,
    ) -> Result<Self, SimError> {
        let machine = &config.machine;
        if let Some(tier) = machine.tiers.iter().find(|tier| !Device::serves(tier)) {
            let message = format!(
                "tier `{}` of `{}` is not byte-addressable; the simulator has such tiers only",
                tier.name, machine.name
            );
            return Err(SimError::parameter("machine", message));
        }
        crate::machines::refuse_too_large(machine, None)?;
        if threads == 0 || threads > 1 << 16 {
            return Err(SimError::parameter("threads", "must be 1 to 65536"));
        }
        let needs = policy.needs();
        if needs.samples || needs.foresight.is_some() {
            let message =
                format!("`{}` decides by samples, which this kernel does not have", policy.name());
            return Err(SimError::parameter("policy", message));
        }
        let cpus = (machine.cpu.cores.value as usize).min(threads);
        let hierarchy = match config.detail {
            Detail::Placement => None,
            Detail::Caches => Some((Hierarchy::new(&hierarchy_geometry(machine, cpus)?), cpus)),
        };
        let calibration = Calibration::from_machine(machine);
        let brain = Brain::new(policy, Economist::new(config.economist, calibration));
        let scan = config.costs.time.scan_page.value;
        let mover = Mover::new(&machine.costs, scan, config.relocatable);
        let fixed = BUFFER * threads as u32;
        let program_pages = pages + fixed;
        let costs = config.costs.clone();
        let (commit, write_back) =
            (costs.pace.commit_interval.value, costs.pace.write_back_interval.value);
        let tick = needs.tick.map(|tick| tick.as_f64().max(1.0));
        let mut kernel = Self {
            memory: ObjectMemory::new(
                machine,
                (program_pages, fixed),
                config.scale,
                hierarchy,
                config.sockets()?,
                brain,
                mover,
            ),
            slabs: Slabs::default(),
            nodes: Nodes::default(),
            lists: Lists::new(config.replacement),
            files: Vec::new(),
            journal_file: Box::new(File::new()),
            sockets: Vec::new(),
            disk: Disk::new(&costs.device),
            acks: VecDeque::new(),
            closed: VecDeque::new(),
            dirty_files: VecDeque::new(),
            dirty: 0,
            writing: 0,
            journal_at: 0,
            transaction: Vec::new(),
            transaction_blocks: 0,
            journal_owed: 0.0,
            closes: 0,
            request_pages: Vec::new(),
            next_request: 0,
            next_object: 1,
            next_context: 1,
            told: 0.0,
            cpus,
            threads: vec![Thread::default(); threads],
            calls: 0,
            asked: 0,
            operations: 0,
            last_done: 0.0,
            measured: None,
            tick,
            next_tick: tick.unwrap_or(f64::INFINITY),
            next_commit: commit.as_f64(),
            next_write_back: write_back.as_f64(),
            program_pages,
            tells_ahead: config.tells_ahead,
            instruction: config.instruction_time(),
            listener: None,
            costs,
        };
        kernel.start().map_err(|e| SimError::parameter("machine", e.to_string()))?;
        Ok(kernel)
    }

    /// What a kernel has from its start: the disk's requests, the journal's inode.
    fn start(&mut self) -> Result<(), CallError> {
        let in_page = (PAGE / ObjectKind::BlkMqRequest.size().get()) as u32;
        for _ in 0..REQUESTS.div_ceil(in_page) {
            let page = self.memory.reserve(Role::Requests, 0, 0);
            self.memory.place(PageId::Kernel(page), 0.0)?;
            self.request_pages.push(page);
        }
        let mut caller = Caller { thread: 0, now: 0.0 };
        let context = self.new_context();
        let identity = File::identity(JOURNAL, 0);
        self.tell(&caller, context, ContextChange::Created { identity });
        self.tell(&caller, context, ContextChange::Opened);
        self.journal_file.context = context;
        let inode = self.allocate(&mut caller, context, Cache::Of(ObjectKind::Inode))?;
        self.journal_file.inode = Some(inode);
        self.journal_file.opens = 1;
        Ok(())
    }

    // --- what all calls use ---------------------------------------------------

    pub(super) fn new_context(&mut self) -> ContextId {
        let context = ContextId(self.next_context);
        // The last number is of memory that contexts share.
        self.next_context = self.next_context % (u32::MAX - 1) + 1;
        context
    }

    pub(super) fn new_object(&mut self) -> u64 {
        let object = self.next_object;
        self.next_object += 1;
        object
    }

    /// Tells the policy what happened to a context.
    pub(super) fn tell(&mut self, caller: &Caller, context: ContextId, change: ContextChange) {
        self.told = self.told.max(caller.now);
        let cpu = Cpu((caller.thread % self.cpus) as u16);
        let at = Nanos::from_f64(self.told);
        self.memory.brain.context(&ContextEvent { at, cpu, context, change });
    }

    /// An object becomes a member of a context.
    pub(super) fn added(
        &mut self,
        caller: &Caller,
        context: ContextId,
        object: u64,
        kind: ObjectKind,
        page: u32,
    ) {
        self.memory.counts.objects[kind.index()] += 1;
        let page = PageId::Kernel(page).name();
        self.tell(caller, context, ContextChange::Added { object: ObjectId(object), kind, page });
    }

    /// A member was freed.
    pub(super) fn removed(
        &mut self,
        caller: &Caller,
        context: ContextId,
        object: u64,
        kind: ObjectKind,
    ) {
        self.tell(caller, context, ContextChange::Removed { object: ObjectId(object), kind });
    }

    /// Allocates a slab object and writes it.
    pub(super) fn allocate(
        &mut self,
        caller: &mut Caller,
        context: ContextId,
        cache: Cache,
    ) -> Result<Object, CallError> {
        let id = self.new_object();
        let ((slab, slot), fresh) = if let Some(place) = self.slabs.take(cache) {
            (place, None)
        } else {
            let page = self.memory.reserve(Role::Slab, self.slabs.next_slab(), 0);
            if cache.is_fixed() {
                self.memory.page_mut(page).flags |= FIXED;
            }
            self.slabs.add(cache, page);
            (self.slabs.take(cache).expect("it is new"), Some(page))
        };
        let object = Object { slab, slot, id };
        if let Cache::Of(kind) = cache {
            let page = self.slabs.place(slab, slot).0;
            self.added(caller, context, id, kind, page);
        }
        if let Some(page) = fresh {
            self.memory.place(PageId::Kernel(page), caller.now)?;
        }
        self.use_object(caller, object, cache, true);
        Ok(object)
    }

    /// Frees a slab object.
    pub(super) fn deallocate(
        &mut self,
        caller: &Caller,
        context: ContextId,
        cache: Cache,
        object: Object,
    ) {
        if let Cache::Of(kind) = cache {
            self.removed(caller, context, object.id, kind);
        }
        if let Some(page) = self.slabs.free(cache, object.slab, object.slot) {
            self.memory.release(page, caller.now);
        }
    }

    /// Touches a slab object as a call does that uses it.
    pub(super) fn use_object(
        &mut self,
        caller: &mut Caller,
        object: Object,
        cache: Cache,
        store: bool,
    ) {
        let (page, first) = self.slabs.place(object.slab, object.slot);
        let lines = &self.costs.lines;
        let count = match cache {
            Cache::Of(kind) => match kind {
                ObjectKind::Inode => &lines.inode,
                ObjectKind::Dentry => &lines.dentry,
                ObjectKind::Extent => &lines.extent,
                ObjectKind::JournalBuffer => &lines.journal_buffer,
                ObjectKind::Bio => &lines.bio,
                ObjectKind::BlkMqRequest => &lines.blk_mq_request,
                ObjectKind::Sock => &lines.sock,
                ObjectKind::Skbuff => &lines.skbuff,
                ObjectKind::SkbuffData => &lines.skbuff_data,
                ObjectKind::PageCachePage | ObjectKind::ReceiveBuffer => return,
            },
            Cache::IndexNode => &lines.index_node,
            Cache::File => &lines.file,
            Cache::BufferHead => &lines.buffer_head,
        }
        .value;
        self.touch(caller, page, Lines::fields(first, count, store));
    }

    /// Touches lines of a kernel page; the caller waits.
    pub(super) fn touch(&mut self, caller: &mut Caller, page: u32, lines: Lines) {
        let core = caller.thread % self.cpus;
        caller.now += self.memory.touch(PageId::Kernel(page), lines, core, caller.now);
    }

    /// Touches lines of the caller's own buffer, which the program reads or writes too.
    pub(super) fn touch_buffer(
        &mut self,
        caller: &mut Caller,
        page: u32,
        lines: Lines,
    ) -> Result<(), CallError> {
        let page = caller.thread as u32 * BUFFER + page % BUFFER;
        self.touch_program(caller, page, lines)
    }

    fn touch_program(
        &mut self,
        caller: &mut Caller,
        page: u32,
        lines: Lines,
    ) -> Result<(), CallError> {
        let core = caller.thread % self.cpus;
        let (time, faulted) = self.memory.touch_program(page, lines, core, caller.now)?;
        caller.now += time;
        if faulted {
            caller.now += self.costs.time.fault.value.as_f64();
        }
        Ok(())
    }

    /// The page of the next request.
    pub(super) fn request_page(&mut self) -> u32 {
        self.next_request = (self.next_request + 1) % self.request_pages.len() as u32;
        self.request_pages[self.next_request as usize]
    }

    // --- what happens by itself -------------------------------------------------

    /// All that happens until `now` besides calls.
    fn advance(&mut self, now: f64) -> Result<(), CallError> {
        self.complete(now);
        self.acknowledge(now);
        while self.next_tick <= now {
            let at = self.next_tick;
            let tick = self.tick.unwrap_or(f64::INFINITY);
            self.memory.move_pages(at);
            self.memory.telemetry.now = Nanos::from_f64(at);
            let budget = self.memory.mover.budget(Nanos::from_f64(tick));
            self.memory.telemetry.migration_budget = budget;
            let mut plan = core::mem::replace(&mut self.memory.plan, Plan::new());
            self.memory.brain.tick(&self.memory.telemetry, &mut plan);
            if let Some(listener) = &mut self.listener {
                listener(self.memory.brain.decisions());
            }
            self.memory.plan = plan;
            self.memory.hand_over_plan(at);
            self.next_tick += tick;
        }
        self.memory.move_pages(now);
        if let Some(sockets) = &mut self.memory.sockets {
            sockets.stream(now);
        }
        if now >= self.next_write_back {
            let interval = self.costs.pace.write_back_interval.value.as_f64();
            let at = self.next_write_back;
            self.next_write_back = (at + interval).max(now);
            self.write_back(at)?;
        }
        if now >= self.next_commit {
            let interval = self.costs.pace.commit_interval.value.as_f64();
            let mut caller = Caller { thread: 0, now: self.next_commit };
            self.next_commit = (self.next_commit + interval).max(now);
            self.commit(&mut caller)?;
        }
        Ok(())
    }

    // --- calls ----------------------------------------------------------------

    /// One call of a thread. After an error nothing more can be asked for.
    pub fn call(&mut self, thread: usize, call: Call) -> Result<(), Refused> {
        self.calls += 1;
        self.asked += u64::from(call.is_kernel());
        let refused = |error| Refused { number: self.calls, thread, error };
        let Some(now) = self.threads.get(thread).map(|thread| thread.now) else {
            return Err(refused(CallError::NoThread(thread)));
        };
        self.memory.behind = self.memory.behind.max(now);
        let mut caller = Caller { thread, now };
        let done = self.advance(now).and_then(|()| self.carry_out(&mut caller, call));
        done.map_err(|error| Refused { number: self.calls, thread, error })?;
        self.threads[thread].now = caller.now;
        Ok(())
    }

    fn carry_out(&mut self, caller: &mut Caller, call: Call) -> Result<(), CallError> {
        let pages = match call {
            Call::Read { bytes, .. } | Call::Write { bytes, .. } | Call::Access { bytes, .. } => {
                (u64::from(bytes) / PAGE) as u32
            }
            // A receive buffer and an object of data for each packet.
            Call::Arrive { bytes, .. } | Call::Send { bytes, .. } => bytes / 500,
            _ => 0,
        };
        let ahead = match call {
            Call::Read { file, .. }
            | Call::Write { file, .. }
            | Call::Access { file, .. }
            | Call::Advise { file, .. } => self.most_ahead(file),
            _ => self.read_ahead_pages(),
        };
        self.make_room(caller, RESERVE + pages + ahead)?;
        match call {
            Call::Create { file } => self.create(caller, file),
            Call::Open { file } => self.open(caller, file),
            Call::Close { file } => self.close(caller, file),
            Call::Read { file, offset, bytes } => self.read(caller, file, offset, bytes),
            Call::Write { file, offset, bytes } => self.write(caller, file, offset, bytes),
            Call::Fsync { file } => self.fsync(caller, file),
            Call::Advise { file, offset, bytes, advice } => {
                self.advise(caller, file, (offset, bytes), advice)
            }
            Call::Unlink { file } => self.unlink(caller, file),
            Call::Rename { file } => self.rename(caller, file),
            Call::Stat { file } => self.stat(caller, file),
            Call::ReadDir { entries } => {
                caller.now +=
                    self.costs.time.directory_entry.value.as_f64() * f64::from(entries.max(1));
                Ok(())
            }
            Call::Map { file } => self.map(caller, file),
            Call::Unmap { file } => self.unmap(caller, file),
            Call::Access { file, offset, bytes, store } => {
                self.access(caller, file, offset, bytes, store)
            }
            Call::Socket { socket } => self.socket(caller, socket),
            Call::Connect { socket } => self.connect(caller, socket),
            Call::Accept { socket } => self.accept(caller, socket),
            Call::Arrive { socket, bytes } => self.arrive(caller, socket, bytes),
            Call::Epoll { socket } => self.epoll(caller, socket),
            Call::Recv { socket } => self.recv(caller, socket),
            Call::Send { socket, bytes } => self.send(caller, socket, bytes),
            Call::CloseSocket { socket } => self.close_socket(caller, socket),
            Call::Touch { page, lines, store } => {
                let lines = Lines::run(0, u32::from(lines).min(64), store);
                self.touch_program(caller, self.own_page(page)?, lines)
            }
            Call::Use { page, line, store, instructions } => {
                caller.now += f64::from(instructions) * self.instruction;
                let lines = Lines::run(u32::from(line) % 64, 1, store);
                self.touch_program(caller, self.own_page(page)?, lines)
            }
            Call::Release { page, count } => {
                let last = page.checked_add(count.max(1) - 1).ok_or(CallError::NoPage(u32::MAX))?;
                self.own_page(last)?;
                for page in page..=last {
                    self.memory.release_program(self.own_page(page)?, caller.now);
                }
                Ok(())
            }
            Call::Compute { time } => {
                caller.now += time.as_f64();
                Ok(())
            }
            Call::Done => {
                self.operations += 1;
                self.last_done = self.last_done.max(caller.now);
                Ok(())
            }
            Call::Measure => {
                self.memory.move_to_near_socket(caller.now);
                let counts = self.memory.counts.clone();
                self.measured = Some((caller.now, self.operations, counts));
                Ok(())
            }
        }
    }

    /// The number of a page of the program's own: after all threads' buffers.
    fn own_page(&self, page: u32) -> Result<u32, CallError> {
        let buffers = BUFFER * self.threads.len() as u32;
        match page.checked_add(buffers) {
            Some(number) if number < self.program_pages => Ok(number),
            _ => Err(CallError::NoPage(page)),
        }
    }

    /// Runs a program to its end: always the thread that is furthest behind.
    pub fn run(&mut self, program: &mut dyn Calls) -> Result<KernelReport, Refused> {
        // Of threads at the same time the one with the lowest number, as ever.
        let mut behind: BinaryHeap<Reverse<(Clock, usize)>> = self
            .threads
            .iter()
            .enumerate()
            .filter(|(_, thread)| !thread.done)
            .map(|(number, thread)| Reverse((Clock(thread.now), number)))
            .collect();
        while let Some(mut first) = behind.peek_mut() {
            let thread = first.0.1;
            if let Some(call) = program.next(thread) {
                self.call(thread, call)?;
                first.0.0 = Clock(self.threads[thread].now);
            } else {
                self.threads[thread].done = true;
                PeekMut::pop(first);
            }
        }
        Ok(self.report(program.name()))
    }

    /// What came of it so far.
    pub fn report(&mut self, program: &'static str) -> KernelReport {
        let end = self.threads.iter().map(|thread| thread.now).fold(0.0, f64::max);
        self.memory.count_living(end);
        let all = self.memory.counts.clone();
        let (begin, before, earlier) = self.measured.clone().unwrap_or_default();
        let state = self.heap_bytes();
        let pages = self.memory.frames() - self.memory.free_frames();
        KernelReport {
            program,
            policy: self.memory.brain.name(),
            calls: self.calls,
            kernel_calls: self.asked,
            operations: self.operations - before,
            nanos: (self.last_done - begin).max(0.0),
            counts: all.since(&earlier),
            all,
            policy_bytes: self.memory.brain.footprint().bytes,
            bytes_per_page: state as f64 / f64::from(pages.max(1)),
        }
    }

    /// A file that is on the disk from the start, with nothing of it in memory.
    pub fn put_on_disk(&mut self, file: u32, bytes: Bytes) -> Result<(), CallError> {
        if file > MOST {
            return Err(CallError::Number(file));
        }
        if bytes > Bytes::gib(16 << 10) {
            return Err(CallError::TooFar(file, bytes.get()));
        }
        if self.files.len() <= file as usize {
            self.files.resize_with(file as usize + 1, || None);
        }
        let place = &mut self.files[file as usize];
        if place.is_some() {
            return Err(CallError::FileExists(file));
        }
        let extents = bytes.get().div_ceil(PAGE);
        let extents = extents.div_ceil(u64::from(self.costs.objects.pages_of_extent.value));
        *place = Some(Box::new(File::on_disk(bytes.get(), extents as u32)));
        Ok(())
    }

    /// Tells somebody else what the policy is told, from now on.
    pub fn record(&mut self, recorder: Option<terrace_policy::Recorder>) {
        self.memory.brain.record(recorder);
    }

    /// Tells somebody else what the economist decides, from now on.
    pub fn record_decisions(&mut self, listener: Option<DecisionListener>) {
        self.listener = listener;
    }

    /// The program is over: what is still watched is judged by the time that it had, so that the
    /// accounts are complete.
    pub fn finish(&mut self) {
        let end = self.threads.iter().map(|thread| thread.now).fold(0.0, f64::max);
        self.memory.brain.finish(Nanos::from_f64(end));
    }

    /// The economist, for its accounts.
    pub fn economist(&self) -> &Economist {
        self.memory.brain.economist()
    }

    /// The context of the journal's own file, which is there before anybody can listen.
    pub fn journal_context(&self) -> ContextId {
        self.journal_file.context
    }

    /// A thread's clock, in nanoseconds.
    pub fn clock(&self, thread: usize) -> Option<f64> {
        self.threads.get(thread).map(|thread| thread.now)
    }

    /// What was counted so far.
    pub fn counts(&self) -> &Counts {
        &self.memory.counts
    }

    /// Pages of files that are cached.
    pub fn cached_pages(&self) -> u32 {
        self.lists.len()
    }

    /// Pages of memory that are not in use.
    pub fn free_pages(&self) -> u32 {
        self.memory.free_frames()
    }

    /// Bytes of the simulator's own memory, without caches and policy.
    pub fn heap_bytes(&self) -> usize {
        let files = self.files.iter().flatten();
        self.memory.heap_bytes()
            + self.slabs.heap_bytes()
            + self.nodes.heap_bytes()
            + self.files.capacity() * size_of::<Option<Box<File>>>()
            + files.map(|file| file.heap_bytes()).sum::<usize>()
            + self.sockets.capacity() * size_of::<Option<Box<Socket>>>()
    }

    /// Checks all books against each other. Visits everything.
    pub fn audit(&self) -> Result<(), String> {
        self.memory.audit()?;
        let mut cached = 0;
        let mut dirty = 0;
        for (number, file) in self.files.iter().enumerate() {
            let Some(file) = file else { continue };
            let pages = self.nodes.pages(&file.index);
            if pages.len() != file.index.cached as usize {
                return Err(format!("file {number} counts {} pages", file.index.cached));
            }
            for page in pages {
                let page = self.memory.page(page);
                if page.role != Role::Cache || page.owner as usize != number {
                    return Err(format!("file {number} has a page of another"));
                }
                cached += 1;
                dirty += u32::from(page.has(super::memory::DIRTY));
            }
        }
        if cached != self.lists.len() {
            return Err(format!("{cached} pages in files, {} in lists", self.lists.len()));
        }
        if dirty != self.dirty {
            return Err(format!("{dirty} pages are dirty, counted {}", self.dirty));
        }
        Ok(())
    }

    pub(super) fn read_ahead_pages(&self) -> u32 {
        (self.costs.pace.read_ahead.value.get() / PAGE) as u32
    }
}
