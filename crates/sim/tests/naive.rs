//! A second model of the machine, written for nothing but to be read: vectors of
//! what is held and when it was used, no shortcuts, one access at a time. The
//! engine has to count the same, and take the same time, on random programs.
//!
//! It has caches (of instructions, too), TLBs, page-walk caches, page tables, frames, first
//! touches, cores' time and memories. It has no migration: that has tests of its own.

use std::collections::HashMap;

use proptest::prelude::*;
use terrace_core::detail::{CacheFile, TlbFile};
use terrace_core::{Access as Kind, Bytes, Inclusion, Machine, Nanos, PageSize};
use terrace_sim::exact::hierarchy::{
    CacheGeometry, Hierarchy, HierarchyGeometry, Request, WriteBacks,
};
use terrace_sim::exact::{Access, Batch, ExactConfig, ExactReport, Source, SpaceEvent, setup};
use terrace_sim::{SimError, SimPolicy, machines};

const LOAD: usize = 0;
const STORE: usize = 1;
const WALK: usize = 2;
const FETCH: usize = 3;

/// What was used last is last.
struct Sets {
    sets: Vec<Vec<(u64, bool)>>,
    ways: usize,
}

impl Sets {
    fn new(sets: u64, ways: u32) -> Self {
        Self { sets: vec![Vec::new(); sets as usize], ways: ways as usize }
    }
    /// The low bits choose a set; where their number is no power of two, a hash does
    /// for the odd factor.
    fn set(&mut self, number: u64) -> &mut Vec<(u64, bool)> {
        let sets = self.sets.len() as u64;
        let low_bits = sets.trailing_zeros();
        let (low, tag) = (number & ((1 << low_bits) - 1), (number >> low_bits) as u32);
        let slices = sets >> low_bits;
        let hash = (tag.wrapping_mul(0x9e37_79b1) ^ (low as u32).wrapping_mul(0x85eb_ca6b))
            .wrapping_mul(0xc2b2_ae35);
        let slice = (u64::from(hash) * slices) >> 32;
        &mut self.sets[(slice << low_bits | low) as usize]
    }
    fn has(&mut self, number: u64) -> bool {
        self.set(number).iter().any(|entry| entry.0 == number)
    }
    /// Uses an entry; false if it is not there.
    fn uses(&mut self, number: u64, dirty: bool) -> bool {
        let Some(was) = self.takes(number) else { return false };
        self.set(number).push((number, was || dirty));
        true
    }
    /// Enters what is not there; what had to go.
    fn enters(&mut self, number: u64, dirty: bool) -> Option<(u64, bool)> {
        let ways = self.ways;
        let set = self.set(number);
        let gone = (set.len() == ways).then(|| set.remove(0));
        set.push((number, dirty));
        gone
    }
    /// Takes an entry out; whether it was dirty.
    fn takes(&mut self, number: u64) -> Option<bool> {
        let set = self.set(number);
        let at = set.iter().position(|entry| entry.0 == number)?;
        Some(set.remove(at).1)
    }
    /// Marks an entry without using it; false if it is not there.
    fn marks(&mut self, number: u64) -> bool {
        let found = self.set(number).iter_mut().find(|entry| entry.0 == number);
        found.map(|entry| entry.1 = true).is_some()
    }
}

fn cache(file: &CacheFile) -> Sets {
    let ways = file.ways.value;
    Sets::new(file.size.value.get() / 64 / u64::from(ways), ways)
}

fn tlb(file: &TlbFile) -> Sets {
    Sets::new(u64::from(file.entries.value / file.ways.value), file.ways.value)
}

/// A core.
struct Core {
    l1: Sets,
    /// For instructions, where they are fetched from memory at all.
    l1i: Option<Sets>,
    l2: Option<Sets>,
    /// For 4 KiB and for 2 MiB.
    dtlb: [Sets; 2],
    stlb: Sets,
    walk: [Sets; 3],
    instructions: u64,
    /// When it issues the instruction `origin`.
    base: f64,
    origin: u64,
    /// Misses in flight: instruction, and when they are done.
    flight: Vec<(u64, f64)>,
    last_load: f64,
    trace: Vec<Access>,
    at: usize,
}

/// A memory.
struct Memory {
    idle: f64,
    /// Time of a line's reading and writing: of reads, of writes, of both.
    costs: [[f64; 3]; 2],
    knee: f64,
    backlog: [f64; 3],
    window: [f64; 3],
    window_begin: f64,
    at: f64,
    load: f64,
    slowdown: f64,
    /// Loads and stores that missed, walks, lines written.
    reads: u64,
    walks: u64,
    writes: u64,
    /// The frames that are taken.
    frames: Vec<bool>,
    first: u64,
}

impl Memory {
    fn new(tier: &terrace_core::machine::TierFile, bytes: Bytes, first: u64) -> Self {
        let unit = tier.granularity.value.as_f64();
        let line = (64.0 / unit).ceil() * unit;
        let read = line / (tier.read_bandwidth.value.get() / 1e9);
        let write = line / (tier.write_bandwidth.value.get() / 1e9);
        let costs = match &tier.combined_bandwidth {
            None => [[0.0, 0.0, read], [0.0, 0.0, write]],
            Some(both) => {
                let both = line / (both.value.get() / 1e9);
                [[read, 0.0, both], [0.0, write, both]]
            }
        };
        Self {
            idle: tier.read_latency.value.as_f64(),
            costs,
            knee: tier.load_knee.value,
            backlog: [0.0; 3],
            window: [0.0; 3],
            window_begin: 0.0,
            at: 0.0,
            load: 0.0,
            slowdown: 1.0,
            reads: 0,
            walks: 0,
            writes: 0,
            frames: vec![false; bytes.get() as usize >> 12],
            first,
        }
    }

    fn asks(&mut self, now: f64, write: bool) -> f64 {
        if now > self.at {
            let passed = now - self.at;
            self.at = now;
            self.backlog = self.backlog.map(|work| (work - passed).max(0.0));
            let time = now - self.window_begin;
            if time >= 4000.0 {
                let busiest = self.window.iter().copied().fold(0.0, f64::max);
                let load = (busiest / time).min(1.0);
                self.load += (load - self.load) * (1.0 - 0.75f64.powf(time / 4000.0));
                let above = (self.load.min(0.95) - self.knee) / (1.0 - self.knee);
                let above = above.clamp(0.0, 1.0 - 1e-6);
                self.slowdown = 1.0 + 0.5 * above / (1.0 - above);
                (self.window, self.window_begin) = ([0.0; 3], now);
            }
        }
        let wait = self.backlog[0].max(self.backlog[2]);
        for (i, cost) in self.costs[usize::from(write)].into_iter().enumerate() {
            self.backlog[i] += cost;
            self.window[i] += cost;
        }
        wait + self.idle * self.slowdown
    }

    /// The first aligned block of so many free frames.
    fn takes(&mut self, frames: usize) -> Option<u64> {
        let free = |block: &[bool]| block.iter().all(|taken| !taken);
        let at = self.frames.chunks_exact(frames).position(free)? * frames;
        self.frames[at..at + frames].fill(true);
        Some(self.first + at as u64)
    }
    fn blocks(&self, frames: usize) -> usize {
        self.frames.chunks_exact(frames).filter(|block| block.iter().all(|taken| !taken)).count()
    }
}

/// The machine.
struct Naive {
    cores: Vec<Core>,
    llc: Sets,
    inclusion: Inclusion,
    memories: Vec<Memory>,
    /// First frame of each page, by its first address, with the page's size; and
    /// frames of page tables, by level and by the address they begin at.
    pages: HashMap<u64, (u64, u32)>,
    tables: HashMap<(u32, u64), u64>,
    /// Where huge pages may be.
    huge: core::ops::Range<u64>,
    page_order: u32,
    first_touch: bool,
    counts: HashMap<String, u64>,
    config: ExactConfig,
}

impl Naive {
    fn new(config: &ExactConfig, capacities: &[Bytes], huge: core::ops::Range<u64>) -> Self {
        let machine = &config.machine;
        let detail = machine.detail.as_ref().expect("it has caches");
        let core = || Core {
            l1: cache(&detail.l1),
            l1i: None,
            l2: detail.l2.as_ref().map(cache),
            dtlb: [tlb(&detail.dtlb_4k), tlb(&detail.dtlb_2m)],
            stlb: tlb(&detail.stlb),
            walk: [tlb(&detail.walk_pml4e), tlb(&detail.walk_pdpte), tlb(&detail.walk_pde)],
            instructions: 0,
            base: 0.0,
            origin: 0,
            flight: Vec::new(),
            last_load: 0.0,
            trace: Vec::new(),
            at: 0,
        };
        let (mut first, mut memories) = (0u64, Vec::new());
        for (tier, &bytes) in machine.tiers.iter().zip(capacities) {
            memories.push(Memory::new(tier, bytes, first));
            first = (first + (bytes.get() >> 12)).next_multiple_of(1 << 18);
        }
        let llc = machine.cpu.llc.value.get() / 64 / u64::from(detail.llc.ways.value);
        let root = memories[0].takes(1).expect("memory");
        Self {
            cores: (0..config.cores).map(|_| core()).collect(),
            llc: Sets::new(llc, detail.llc.ways.value),
            inclusion: detail.llc.inclusion,
            memories,
            pages: HashMap::new(),
            tables: HashMap::from([((39, 0), root)]),
            huge,
            page_order: config.page_size.shift() - 12,
            first_touch: config.policy.to_string() == "first-touch",
            counts: HashMap::new(),
            config: config.clone(),
        }
    }

    fn count(&mut self, what: &str) {
        *self.counts.entry(what.to_owned()).or_default() += 1;
    }

    fn counts_cache(&mut self, name: &str, who: usize, hit: bool) {
        let who = ["loads", "stores", "walk reads", "fetches"][who];
        self.count(&format!("{name} {who}"));
        if !hit {
            self.count(&format!("{name} {who} missed"));
        }
    }

    fn memory_of(&mut self, frame: u64) -> &mut Memory {
        self.memories.iter_mut().rfind(|memory| frame >= memory.first).expect("a frame")
    }

    // --- time ------------------------------------------------------------------

    fn cycles(&self, cycles: u64) -> f64 {
        cycles as f64 * 1e9 / self.config.machine.cpu.clock.value.get()
    }
    fn time(&self, core: usize, instruction: u64) -> f64 {
        let cpu = &self.config.machine.cpu;
        let detail = self.config.machine.detail.as_ref().expect("it has caches");
        let each = 1e9 / cpu.clock.value.get() / detail.issue_width.value;
        let me = &self.cores[core];
        me.base + (instruction - me.origin) as f64 * each
    }
    fn holds(&mut self, core: usize, instruction: u64, until: f64) {
        if until > self.time(core, instruction) {
            (self.cores[core].base, self.cores[core].origin) = (until, instruction);
        }
    }
    /// When an access may begin, and how many misses have to be over for that.
    fn may_begin(&self, core: usize, instruction: u64, dependent: bool) -> (f64, usize) {
        let detail = self.config.machine.detail.as_ref().expect("it has caches");
        let slots = self.config.machine.cpu.miss_slots.value as usize;
        let window = u64::from(detail.reorder_buffer.value);
        let me = &self.cores[core];
        let over = (0..me.flight.len())
            .find(|&i| instruction - me.flight[i].0 < window && me.flight.len() - i < slots)
            .unwrap_or(me.flight.len());
        let done = me.flight[..over].iter().map(|miss| miss.1).fold(f64::MIN, f64::max);
        let now = self.time(core, instruction).max(done);
        (if dependent { now.max(me.last_load) } else { now }, over)
    }
    fn begins(&mut self, core: usize, instruction: u64, dependent: bool) -> f64 {
        let (begin, over) = self.may_begin(core, instruction, dependent);
        let done: Vec<_> = self.cores[core].flight.drain(..over).collect();
        let until = done.iter().map(|miss| miss.1).fold(f64::MIN, f64::max);
        self.holds(core, instruction, until);
        begin
    }

    // --- caches ------------------------------------------------------------------

    fn writes(&mut self, line: u64, now: f64) {
        let memory = self.memory_of(line >> 6);
        memory.writes += 1;
        memory.asks(now, true);
    }

    /// Instructions have a first level of their own, where a core has one.
    fn first_level(&mut self, core: usize, who: usize) -> &mut Sets {
        let me = &mut self.cores[core];
        match &mut me.l1i {
            Some(l1i) if who == FETCH => l1i,
            _ => &mut me.l1,
        }
    }

    /// Brings a line to the first level; what it takes, in nanoseconds, from `now`
    /// on if it comes from memory, and the lines that go to memory.
    fn fetches(&mut self, core: usize, line: u64, who: usize) -> (usize, Vec<u64>) {
        let mut out = Vec::new();
        let hit = self.first_level(core, who).uses(line, who == STORE);
        self.counts_cache("L1", who, hit);
        if hit {
            return (1, out);
        }
        let mut level = 4;
        let mut dirty = false;
        let in_l2 = self.cores[core].l2.as_mut().map(|l2| l2.uses(line, false));
        if let Some(hit) = in_l2 {
            self.counts_cache("L2", who, hit);
        }
        if in_l2 == Some(true) {
            level = 2;
        } else {
            let hit = if self.inclusion == Inclusion::Victim {
                let taken = self.llc.takes(line);
                dirty = taken == Some(true);
                taken.is_some()
            } else {
                self.llc.uses(line, false)
            };
            self.counts_cache("LLC", who, hit);
            if hit {
                level = 3;
            } else if self.inclusion != Inclusion::Victim {
                self.fills_llc(line, false, &mut out);
            }
            if in_l2.is_some() {
                let l2 = self.cores[core].l2.as_mut().expect("it has one");
                if let Some((gone, was_dirty)) = l2.enters(line, dirty) {
                    if was_dirty {
                        self.count("L2 write-backs");
                    }
                    if self.inclusion == Inclusion::Victim {
                        self.fills_llc(gone, was_dirty, &mut out);
                    } else if was_dirty && !self.llc.marks(gone) {
                        out.push(gone);
                    }
                }
                dirty = false;
            }
        }
        if let Some((gone, true)) = self.first_level(core, who).enters(line, dirty || who == STORE)
        {
            self.count("L1 write-backs");
            let in_l2 = self.cores[core].l2.as_mut().is_some_and(|l2| l2.marks(gone));
            if !in_l2 && !self.llc.marks(gone) {
                out.push(gone);
            }
        }
        (level, out)
    }

    fn fills_llc(&mut self, line: u64, dirty: bool, out: &mut Vec<u64>) {
        // Another core may have given the same line up.
        if self.inclusion == Inclusion::Victim && self.llc.uses(line, dirty) {
            return;
        }
        let Some((gone, mut dirty)) = self.llc.enters(line, dirty) else { return };
        if self.inclusion == Inclusion::Inclusive {
            for core in &mut self.cores {
                dirty |= core.l1.takes(gone) == Some(true);
                dirty |= core.l1i.as_mut().is_some_and(|l1i| l1i.takes(gone) == Some(true));
                dirty |= core.l2.as_mut().is_some_and(|l2| l2.takes(gone) == Some(true));
            }
        }
        if dirty {
            self.count("LLC write-backs");
            out.push(gone);
        }
    }

    fn latency(&mut self, level: usize, line: u64, walk: bool, now: f64) -> f64 {
        let detail = self.config.machine.detail.clone().expect("it has caches");
        match level {
            1 => self.cycles(detail.l1.latency.value.get()),
            2 => self.cycles(detail.l2.expect("it has one").latency.value.get()),
            3 => self.config.machine.cpu.llc_latency.value.as_f64(),
            _ => {
                let memory = self.memory_of(line >> 6);
                *(if walk { &mut memory.walks } else { &mut memory.reads }) += 1;
                memory.asks(now, false)
            }
        }
    }

    // --- pages ----------------------------------------------------------------------

    /// log2 of the size of the page that an address would lie in.
    fn shift(&self, address: u64) -> u32 {
        if self.huge.contains(&address) { 21 } else { 12 }
    }
    fn page(&self, address: u64) -> Option<(u64, u32)> {
        let shift = self.shift(address);
        self.pages.get(&(address >> shift << shift)).copied()
    }

    /// A first touch takes the core this long.
    fn faults(&mut self, address: u64) -> f64 {
        let shift = self.shift(address);
        let frames = 1usize << (shift - 12);
        // Of the fastest memory that has room, in pieces of the usual size.
        let room =
            |memory: &Memory| memory.blocks(1 << self.page_order) << self.page_order >= frames;
        let fast = self.first_touch && room(&self.memories[0]);
        let frame = self.memories[usize::from(!fast)].takes(frames).expect("room");
        self.pages.insert(address >> shift << shift, (frame, shift));
        let mut made = 0;
        // Directory pointers, directories, tables: which entry is of which size.
        for level in [30, 21, 12] {
            if level >= shift && !self.tables.contains_key(&(level, address >> (level + 9))) {
                let table = self.memories.iter_mut().find_map(|memory| memory.takes(1));
                self.tables.insert((level, address >> (level + 9)), table.expect("room"));
                made += 1;
            }
        }
        self.count("first touches");
        let costs = &self.config.machine.costs;
        let clear = |pages: u64| costs.copy_bandwidth.value.time_for(Bytes(4096 * pages));
        (costs.kernel_fault.value + clear(frames as u64) + clear(made)).as_f64()
    }

    // --- accesses --------------------------------------------------------------------

    /// Whether a core finds all of an access in its own first levels.
    fn is_private(&mut self, core: usize, access: Access) -> bool {
        // Instructions, fetched or told of, use nothing that cores share.
        if !access.is_data() {
            return true;
        }
        // An inclusive last level may take away what a core has.
        if access.is_dependent() || self.inclusion == Inclusion::Inclusive {
            return false;
        }
        parts(access).into_iter().all(|address| {
            let Some((frame, shift)) = self.page(address) else { return false };
            let me = &mut self.cores[core];
            let line = (frame << 6) + (address % (1 << shift)) / 64;
            me.dtlb[usize::from(shift == 21)].has(address >> shift) && me.l1.has(line)
        })
    }

    fn makes(&mut self, core: usize, access: Access) {
        // Accesses and passes say how many instructions there were; a fetch says it once
        // more.
        if access.is_fetch() {
            return;
        }
        if access.is_pass() {
            self.cores[core].instructions += access.address();
            return;
        }
        self.cores[core].instructions += steps(access);
        self.count("accesses");
        self.count(if access.is_store() { "stores" } else { "loads" });
        for address in parts(access) {
            self.touches(core, access, address);
        }
    }

    fn touches(&mut self, core: usize, access: Access, address: u64) {
        let detail = self.config.machine.detail.clone().expect("it has caches");
        let instruction = self.cores[core].instructions;
        let (dependent, store) = (access.is_dependent(), access.is_store());
        let shift = self.shift(address);
        let page = address >> shift;
        let huge = usize::from(shift == 21);
        let (mut latency, mut walk_begin) = (0.0, None);
        let mut walked = false;
        if !self.cores[core].dtlb[huge].uses(page, false) {
            self.count("first TLB misses");
            let second = page | (huge as u64) << 36;
            if self.cores[core].stlb.uses(second, false) {
                latency = self.cycles(detail.stlb_latency.value.get());
            } else {
                walked = true;
                let begin = self.begins(core, instruction, dependent);
                walk_begin = Some(begin);
                latency = self.walks(core, address, shift, begin);
                self.cores[core].stlb.enters(second, false);
            }
            self.cores[core].dtlb[huge].enters(page, false);
        }
        let (frame, _) = self.page(address).expect("it is mapped");
        let line = (frame << 6) + (address % (1 << shift)) / 64;
        let (level, out) = self.fetches(core, line, if store { STORE } else { LOAD });
        if level == 1 && latency <= 0.0 {
            if dependent && !store {
                let l1 = self.latency(1, line, false, 0.0);
                let done = self.time(core, instruction).max(self.cores[core].last_load) + l1;
                self.cores[core].last_load = done;
                let each =
                    1e9 / self.config.machine.cpu.clock.value.get() / detail.issue_width.value;
                let ahead = f64::from(detail.reorder_buffer.value) * each;
                self.holds(core, instruction, done - ahead);
            }
            return;
        }
        let begin = match walk_begin {
            Some(begin) if walked => begin,
            _ => self.begins(core, instruction, dependent),
        };
        let took = self.latency(level, line, false, begin + latency);
        let done = begin + (latency + took);
        self.cores[core].flight.push((instruction, done));
        if !store {
            self.cores[core].last_load = done;
        }
        for line in out {
            self.writes(line, begin);
        }
    }

    /// The reads of a walk, one after the other.
    fn walks(&mut self, core: usize, address: u64, shift: u32, begin: f64) -> f64 {
        self.count("walks");
        // Entries that point to tables may be known; the lowest that is spares those above.
        let pointing: Vec<u32> = [39, 30, 21].into_iter().filter(|&level| level > shift).collect();
        let mut known = 0;
        for level in (0..pointing.len()).rev() {
            if self.cores[core].walk[level].uses(address >> pointing[level], false) {
                known = level + 1;
                break;
            }
        }
        for (level, entry) in pointing.iter().enumerate().skip(known) {
            self.cores[core].walk[level].enters(address >> entry, false);
        }
        let mut latency = 0.0;
        for level in [39, 30, 21, 12].into_iter().filter(|&l| l >= shift).skip(known) {
            self.count("walk reads");
            let table = self.tables[&(level, if level == 39 { 0 } else { address >> (level + 9) })];
            let line = ((table << 12) + (address >> level) % 512 * 8) / 64;
            let (at, out) = self.fetches(core, line, WALK);
            latency += self.latency(at, line, true, begin + latency);
            for line in out {
                self.writes(line, begin);
            }
        }
        latency
    }

    /// Everything, in the order of time: what a core does not find in its first levels
    /// waits until it is the first that may begin.
    fn runs(&mut self) {
        loop {
            let mut first: Option<(f64, usize)> = None;
            for core in 0..self.cores.len() {
                while let Some(&access) = self.cores[core].trace.get(self.cores[core].at) {
                    let time = if self.is_private(core, access) {
                        None
                    } else {
                        let instruction = self.cores[core].instructions + steps(access);
                        Some(self.may_begin(core, instruction, access.is_dependent()).0)
                    };
                    if let Some(time) = time {
                        if first.is_none_or(|(least, _)| time < least) {
                            first = Some((time, core));
                        }
                        break;
                    }
                    self.cores[core].at += 1;
                    self.makes(core, access);
                }
            }
            let Some((_, core)) = first else { return };
            let access = self.cores[core].trace[self.cores[core].at];
            // A fault takes its time; the access itself comes after it, when others may come first.
            if access.is_data()
                && let Some(absent) = parts(access).into_iter().find(|&at| self.page(at).is_none())
            {
                let instruction = self.cores[core].instructions + steps(access);
                self.begins(core, instruction, access.is_dependent());
                let time = self.faults(absent);
                self.cores[core].base += time;
                continue;
            }
            self.cores[core].at += 1;
            self.makes(core, access);
        }
    }

    /// Nanoseconds until everything is done.
    fn ends(&mut self) -> Nanos {
        let mut end = 0.0f64;
        for core in 0..self.cores.len() {
            let instruction = self.cores[core].instructions;
            for (_, done) in std::mem::take(&mut self.cores[core].flight) {
                self.holds(core, instruction, done);
            }
            self.holds(core, instruction, self.cores[core].last_load);
            end = end.max(self.time(core, instruction));
        }
        Nanos::from_f64(end)
    }
}

/// Instructions up to and with an access, since the one before it.
fn steps(access: Access) -> u64 {
    if access.is_of_same_instruction() { 0 } else { access.instructions() + 1 }
}

/// The addresses of an access: two where it touches two lines.
fn parts(access: Access) -> Vec<u64> {
    let address = access.address();
    if access.crosses() { vec![address, (address | 63) + 1] } else { vec![address] }
}

/// Threads that take turns.
struct Threads {
    traces: Vec<Vec<Access>>,
    map: SpaceEvent,
    turn: usize,
}

impl Source for Threads {
    fn describe(&self) -> String {
        "random".into()
    }
    fn next(&mut self, batch: &mut Batch) -> Result<bool, SimError> {
        const LENGTH: usize = 300;
        batch.clear();
        if self.turn == 0 {
            batch.events.push(self.map);
        }
        for _ in 0..self.traces.len() {
            let (thread, round) = (self.turn % self.traces.len(), self.turn / self.traces.len());
            self.turn += 1;
            if let Some(rest) = self.traces[thread].get(round * LENGTH..) {
                batch.thread = thread as u32;
                batch.accesses.extend(rest.iter().take(LENGTH));
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// What both have to agree on.
fn engine(report: &ExactReport) -> Vec<(String, u64)> {
    let mut counts = vec![
        ("time".to_owned(), report.time.get()),
        ("instructions".to_owned(), report.instructions),
        ("accesses".to_owned(), report.accesses),
        ("loads".to_owned(), report.l1.loads),
        ("stores".to_owned(), report.l1.stores),
        ("first TLB misses".to_owned(), report.tlb.first_misses),
        ("walks".to_owned(), report.tlb.walks),
        ("walk reads".to_owned(), report.tlb.walk_reads),
        ("first touches".to_owned(), report.faults.first_touches),
        ("tables".to_owned(), report.page_tables),
    ];
    for (name, cache) in [("L1", &report.l1), ("L2", &report.l2), ("LLC", &report.llc)] {
        let mut add = |what: &str, count| counts.push((format!("{name} {what}"), count));
        if name != "L1" {
            add("loads", cache.loads);
            add("stores", cache.stores);
        }
        add("loads missed", cache.load_misses);
        add("stores missed", cache.store_misses);
        add("walk reads", cache.walk_reads);
        add("walk reads missed", cache.walk_misses);
        add("write-backs", cache.write_backs);
    }
    for tier in &report.tiers {
        counts.push((format!("{} reads", tier.name), tier.reads));
        counts.push((format!("{} walks", tier.name), tier.walk_reads));
        counts.push((format!("{} writes", tier.name), tier.writes));
        counts.push((format!("{} frames", tier.name), tier.used.get() >> 12));
    }
    counts
}

impl Naive {
    fn counted(&mut self, machine: &Machine) -> HashMap<String, u64> {
        let mut counts = self.counts.clone();
        counts.insert("time".into(), self.ends().get());
        counts.insert("instructions".into(), self.cores.iter().map(|core| core.instructions).sum());
        counts.insert("tables".into(), self.tables.len() as u64);
        for (tier, memory) in machine.tiers.iter().zip(&self.memories) {
            let frames = memory.frames.iter().filter(|taken| **taken).count() as u64;
            let all = [("reads", memory.reads), ("walks", memory.walks), ("writes", memory.writes)];
            for (what, count) in all.into_iter().chain([("frames", frames)]) {
                counts.insert(format!("{} {what}", tier.name), count);
            }
        }
        counts
    }
}

const START: u64 = 0x5555_0000_0000;
/// Huge pages, and base pages behind them.
const HUGE: u64 = 12 << 21;
const LENGTH: u64 = HUGE + (40 << 12);

/// A machine with small caches and TLBs, so that everything collides.
fn machine(ways: [u32; 6], slices: u64, inclusion: Inclusion, combined: bool) -> Machine {
    let mut machine = machines::builtin("cxl").expect("built in");
    if !combined {
        machine.tiers[1].combined_bandwidth = None;
    }
    let detail = machine.detail.as_mut().expect("it has caches");
    let [l1, l2, llc, first, second, walk] = ways;
    let cache = |file: &mut CacheFile, ways: u32| {
        file.ways.value = ways;
        file.size.value = Bytes(64 * 64 * u64::from(ways));
    };
    cache(&mut detail.l1, l1);
    cache(detail.l2.as_mut().expect("it has one"), l2);
    detail.llc.ways.value = llc;
    detail.llc.inclusion = inclusion;
    machine.cpu.llc.value = Bytes(64 * 64 * slices * u64::from(llc));
    let tlb = |file: &mut TlbFile, sets: u32, ways: u32| {
        file.entries.value = sets * ways;
        file.ways.value = ways;
    };
    tlb(&mut detail.dtlb_4k, 8, first);
    tlb(&mut detail.dtlb_2m, 1, first);
    tlb(&mut detail.stlb, 32, second);
    tlb(&mut detail.walk_pde, 2, walk);
    tlb(&mut detail.walk_pdpte, 1, walk);
    tlb(&mut detail.walk_pml4e, 1, walk);
    machine
}

/// Loads and stores of a thread: some pages and lines far more often, runs
/// of lines one after the other, accesses that touch two lines, chains.
fn trace() -> impl Strategy<Value = Vec<Access>> {
    let one = (0u64..LENGTH / 4096, 0u64..64, 0u64..64, 0u32..100, 0u64..30);
    prop::collection::vec(one, 1..700).prop_map(|draws| {
        let mut trace = Vec::new();
        for (page, line, byte, kind, gap) in draws {
            let page = if kind % 3 == 0 { page } else { page * 17 % 40 * 211 % (LENGTH / 4096) };
            let byte = if kind % 11 == 0 { byte } else { byte & !7 };
            let address = START + page * 4096 + line * 64 + byte;
            let store = if kind % 5 < 2 { Kind::Write } else { Kind::Read };
            // Nothing lies behind the last byte.
            if address + 8 > START + LENGTH {
                continue;
            }
            let access = Access::new(address, 8, store).after(gap);
            let access = if kind % 13 == 0 { access.of_same_instruction() } else { access };
            // What a tracer of instructions writes among them.
            match kind {
                88..94 => trace.push(Access::fetch(address, 4)),
                94..97 => trace.push(Access::pass(gap * 9)),
                97 => trace.push(Access::pass(gap * 40_000)),
                _ => {}
            }
            match kind {
                0..10 => trace.push(access.dependent()),
                10..25 => {
                    let lines = (0..gap).map(|i| address + i * 64);
                    let inside = lines.filter(|&at| at + 8 <= START + LENGTH);
                    trace.extend(inside.map(|at| Access::new(at, 8, store)));
                }
                _ => trace.push(access),
            }
        }
        trace
    })
}

fn ways() -> impl Strategy<Value = [u32; 6]> {
    prop::array::uniform6(1u32..5)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases.div_ceil(4), ..ProptestConfig::default() })]

    #[test]
    fn the_engine_counts_what_a_naive_model_counts(
        traces in prop::collection::vec(trace(), 1..5),
        ways in ways(),
        slices in prop::sample::select(vec![1u64, 2, 3]),
        inclusion in prop::sample::select(vec![
            Inclusion::Inclusive, Inclusion::NonInclusive, Inclusion::Victim]),
        combined in prop::bool::ANY,
        huge in prop::bool::ANY,
        first_touch in prop::bool::ANY,
    ) {
        let policy = if first_touch { "first-touch" } else { "all-slow" };
        let policy: SimPolicy = policy.parse().expect("a policy");
        let machine = machine(ways, slices, inclusion, combined);
        let mut config = ExactConfig::new(machine, policy);
        config.cores = traces.len();
        config.page_size = if huge { PageSize::Huge } else { PageSize::Base };
        config.fast = Some(Bytes::mib(8));
        config.machine.tiers[1].capacity.value = Bytes::mib(64);
        let range = if huge { START..START + HUGE } else { 0..0 };
        let mut naive = Naive::new(&config, &[Bytes::mib(8), Bytes::mib(64)], range);
        for (core, trace) in naive.cores.iter_mut().zip(&traces) {
            core.trace.clone_from(trace);
        }
        naive.runs();
        let map = SpaceEvent::Map { start: START, len: LENGTH };
        let mut source = Threads { traces, map, turn: 0 };
        let report = setup::simulate(&config, &mut source, &mut |_, _| ()).expect("it fits");
        let theirs = naive.counted(&config.machine);
        for (what, count) in engine(&report) {
            prop_assert_eq!(count, theirs.get(&what).copied().unwrap_or(0), "{}", what);
        }
    }
}

/// Requests of cores: cores, lines (few of them often), and who asks.
fn requests() -> impl Strategy<Value = Vec<(usize, u64, usize)>> {
    let line = prop_oneof![0u64..60, 0u64..2000, (0u64..16).prop_map(|line| line * 64)];
    prop::collection::vec((0usize..4, line, 0usize..4), 1..3000)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases.div_ceil(4), ..ProptestConfig::default() })]

    /// Fetches go through a first level of their own, and share all others with data:
    /// several cores, with and without such a level, whichever lines the last level holds.
    #[test]
    fn fetches_loads_stores_and_walks_of_cores_count_as_in_a_naive_model(
        requests in requests(),
        ways in ways(),
        instructions in prop::option::of((1u64..5, 1u32..5)),
        cores in 1usize..5,
        slices in prop::sample::select(vec![1u64, 2, 3]),
        inclusion in prop::sample::select(vec![
            Inclusion::Inclusive, Inclusion::NonInclusive, Inclusion::Victim]),
    ) {
        let machine = machine(ways, slices, inclusion, true);
        let detail = machine.detail.clone().expect("it has caches");
        let l2 = detail.l2.as_ref().expect("it has one");
        let mut engine = Hierarchy::new(&HierarchyGeometry {
            cores,
            l1: CacheGeometry::lru(detail.l1.size.value.get(), detail.l1.ways.value),
            l1i: instructions
                .map(|(log, ways)| CacheGeometry::lru((64 << log) * u64::from(ways), ways)),
            l2: Some(CacheGeometry::lru(l2.size.value.get(), l2.ways.value)),
            llc: CacheGeometry::lru(machine.cpu.llc.value.get(), detail.llc.ways.value),
            inclusion,
        });
        let mut config = ExactConfig::new(machine, SimPolicy::AllSlow);
        config.cores = cores;
        let mut naive = Naive::new(&config, &[Bytes::mib(8), Bytes::mib(64)], 0..0);
        for core in &mut naive.cores {
            core.l1i = instructions.map(|(log, ways)| Sets::new(1 << log, ways));
        }
        let kinds = [Request::Load, Request::Store, Request::Walk, Request::Fetch];
        for (core, line, who) in requests {
            let mut out = WriteBacks::default();
            let level = engine.access(core % cores, line, kinds[who], &mut out);
            let (theirs, mut gone) = naive.fetches(core % cores, line, who);
            prop_assert_eq!(level as usize + 1, theirs, "line {} for {:?}", line, kinds[who]);
            let mut ours = out.lines().to_vec();
            ours.sort_unstable();
            gone.sort_unstable();
            prop_assert_eq!(ours, gone);
        }
        let all = [engine.l1_counts(), engine.l2_counts(), engine.llc_counts()];
        for (name, counts) in ["L1", "L2", "LLC"].into_iter().zip(all) {
            let of = |what: &str| naive.counts.get(&format!("{name} {what}")).copied().unwrap_or(0);
            for (i, who) in ["loads", "stores", "walk reads", "fetches"].into_iter().enumerate() {
                prop_assert_eq!(counts.references[i], of(who), "{} {}", name, who);
                prop_assert_eq!(counts.misses[i], of(&format!("{who} missed")), "{} {}", name, who);
            }
            prop_assert_eq!(counts.write_backs, of("write-backs"), "{} write-backs", name);
        }
    }
}
