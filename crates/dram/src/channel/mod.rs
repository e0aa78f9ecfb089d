//! One channel: queues, scheduler and devices.
//!
//! The scheduler knows for each bank that is waited for the next command it
//! needs and from when on that may go; it sends the one that may go first,
//! column commands before others, older requests before younger. Then it jumps
//! to the next such time. Nothing happens in between, so nothing is computed.
//!
//! | file | concept |
//! |---|---|
//! | [`queue`] | who waits for which bank |
//! | [`banks`] | DRAM: open rows and earliest times |
//! | [`nvm`] | non-volatile module: media, buffers |

mod banks;
mod nvm;
mod queue;

use serde::Serialize;
use terrace_core::Access;

use crate::address::{Mapper, Place};
use crate::command::{Command, CommandKind, Observer};
use crate::duration::Clock;
use crate::file::{MAX_BANKS, MemoryFile, PagePolicy, RequestOrder};
use crate::timing::{DramCycles, NvmCycles, READ, WRITE};

use self::banks::{ACTIVATE, Banks, CLOSED, PRECHARGE};
pub use self::nvm::MediaCounts;
use self::nvm::{Nvm, NvmRequest, NvmStep};
use self::queue::{Entry, NIL, Queues};

const BANKS: usize = MAX_BANKS as usize;

/// What became of a request that was offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accept {
    /// It waits; a [`Completion`] will come.
    Queued,
    /// A read of what a queued write holds; the data are there at this time.
    /// No completion will come.
    Forwarded(Clock),
    /// A write to what a queued write holds: both became one. No completion
    /// will come.
    Coalesced,
    /// The queue is full; it was not taken.
    Full,
}

/// A request is done: data are on the bus's far end (reads) or in the device (writes).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The caller's name for the request.
    pub id: u64,
    /// When.
    pub at: Clock,
    /// When it had arrived.
    pub arrived: Clock,
    /// Load or store.
    pub access: Access,
}

/// What a channel did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ChannelStats {
    /// Reads sent to devices.
    pub reads: u64,
    /// Writes sent to devices.
    pub writes: u64,
    /// Reads served from queued writes.
    pub forwarded: u64,
    /// Writes that joined a queued write.
    pub coalesced: u64,
    /// Rows opened.
    pub activates: u64,
    /// Rows closed by a command of its own.
    pub precharges: u64,
    /// Refreshes of a rank.
    pub refreshes: u64,
    /// Turns from reads to writes and back.
    pub turnarounds: u64,
    /// Cycles in which the data bus moved data.
    pub data_cycles: u64,
    /// Sum of the reads' times from arrival to data, in cycles.
    pub read_latency: u64,
}

/// The next command that some bank or module needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// A bank, and whether the command is a column command.
    Bank(usize, bool),
    Close(usize),
    Refresh(usize),
    Nvm(NvmStep),
}

/// The command that a bank's queue needs next, for one direction.
#[derive(Clone, Copy, Debug)]
struct Need {
    /// Index of a command's kind; see [`banks`].
    kind: usize,
    /// From when on, as far as the bank goes.
    ready: u64,
    /// Whose request it serves, and how old that is.
    entry: u16,
    order: u64,
    /// A younger request for the open row, which may go while the row that the
    /// oldest wants closed cannot be closed yet.
    meanwhile: u16,
}

/// One channel.
///
/// More than twenty fields: banks, queues and the state of the bus, all of which the choice of the next
/// command looks at in each step; it is the hot path, and its bits lie side by side.
#[derive(Clone, Debug)]
pub struct Channel<O: Observer = ()> {
    now: u64,
    mapper: Mapper,
    banks: Option<Box<Banks>>,
    nvm: Option<Box<Nvm>>,
    queues: Queues,
    needs: [[Need; BANKS]; 2],
    /// A bit for each bank that is waited for, by direction.
    waiting: [u64; 2],
    /// A bit for each bank whose rank is about to be refreshed.
    blocked: u64,
    refreshing: [bool; 8],
    refresh_due: [u64; 8],
    refresh_enabled: bool,
    next_refresh: u64,
    /// Row hits that passed an older request of the bank.
    passed: [u32; BANKS],
    row_accesses: [u32; BANKS],
    /// When row and column command buses are free.
    bus_free: [u64; 2],
    column_bus: usize,
    /// Cycles of a command beyond its first, by kind.
    extra: [u64; 4],
    direction: usize,
    written_in_turn: usize,
    order: u64,
    length: [usize; 2],
    capacity: [usize; 2],
    high: usize,
    low: usize,
    min_writes: usize,
    hit_cap: u32,
    hits_first: bool,
    policy: PagePolicy,
    most_row_accesses: u32,
    done: Vec<Completion>,
    stats: ChannelStats,
    observer: O,
}

impl Channel<()> {
    /// A channel of a memory, idle at time 0.
    pub fn new(file: &MemoryFile) -> Self {
        Self::with_observer(file, ())
    }
}

impl<O: Observer> Channel<O> {
    /// A channel whose commands are watched.
    pub fn with_observer(file: &MemoryFile, observer: O) -> Self {
        let controller = &file.controller;
        let capacity =
            [controller.read_queue.value as usize, controller.write_queue.value as usize];
        // Draining begins above one share of the queue and ends below another.
        let above = |share: f64| (share * capacity[WRITE] as f64) as usize + 1;
        let below = |share: f64| ((share * capacity[WRITE] as f64).ceil() as usize).max(1) - 1;
        let banks = file
            .dram
            .as_ref()
            .map(|dram| Box::new(Banks::new(dram, DramCycles::new(dram, &file.channel))));
        let mut refresh_due = [u64::MAX; 8];
        if let Some(banks) = &banks {
            // Ranks take turns, so that not all of them are away at once.
            for (rank, due) in refresh_due.iter_mut().enumerate().take(banks.ranks) {
                *due = banks.times.refi * (rank as u64 + 1) / banks.ranks as u64;
            }
        }
        let (activate, column) = (
            u64::from(file.channel.activate_cycles.value) - 1,
            u64::from(file.channel.column_cycles.value) - 1,
        );
        let nvm = file.nvm.as_ref().map(|nvm| {
            let times = NvmCycles::new(nvm, &file.channel);
            Box::new(Nvm::new(nvm, times, file.channel.burst_bytes.value.get()))
        });
        Self {
            now: 0,
            mapper: Mapper::new(file),
            banks,
            nvm,
            queues: Queues::new(capacity[READ] + capacity[WRITE]),
            needs: [[Need { kind: ACTIVATE, ready: 0, entry: NIL, order: 0, meanwhile: NIL };
                BANKS]; 2],
            waiting: [0; 2],
            blocked: 0,
            refreshing: [false; 8],
            refresh_due,
            refresh_enabled: true,
            next_refresh: refresh_due.iter().copied().min().unwrap_or(u64::MAX),
            passed: [0; BANKS],
            row_accesses: [0; BANKS],
            bus_free: [0; 2],
            column_bus: file.channel.split_command_bus.value as usize,
            extra: [column, column, activate, 0],
            direction: READ,
            written_in_turn: 0,
            order: 0,
            length: [0; 2],
            capacity,
            high: above(controller.write_high.value).min(capacity[WRITE]),
            low: below(controller.write_low.value),
            min_writes: controller.min_writes.value as usize,
            hit_cap: controller.hit_cap.value,
            hits_first: controller.order == RequestOrder::HitsFirst,
            policy: controller.page_policy,
            most_row_accesses: controller.row_accesses.value,
            done: Vec::new(),
            stats: ChannelStats::default(),
            observer,
        }
    }

    /// The same channel without refresh, for results that a formula can give.
    #[must_use]
    pub fn without_refresh(mut self) -> Self {
        self.refresh_enabled = false;
        self.next_refresh = u64::MAX;
        self
    }

    /// The time up to which everything has happened.
    pub fn now(&self) -> Clock {
        Clock(self.now)
    }

    /// What it did so far.
    pub fn stats(&self) -> &ChannelStats {
        &self.stats
    }

    /// What the non-volatile media did so far; zeros without such a module.
    pub fn media(&self) -> MediaCounts {
        self.nvm.as_ref().map_or_else(MediaCounts::default, |nvm| nvm.media)
    }

    /// Who watches.
    pub fn observer(&self) -> &O {
        &self.observer
    }

    /// Which addresses are which places.
    pub fn mapper(&self) -> &Mapper {
        &self.mapper
    }

    /// Whether nothing waits. Completions may still lie in the future.
    pub fn is_idle(&self) -> bool {
        self.length == [0; 2] && self.nvm.as_ref().is_none_or(|nvm| nvm.is_idle())
    }

    /// Requests that wait, by direction.
    pub fn waiting(&self, access: Access) -> usize {
        self.length[direction_of(access)]
    }

    /// Whether a request of this direction would be taken now.
    pub fn has_room(&self, access: Access) -> bool {
        let direction = direction_of(access);
        self.length[direction] < self.capacity[direction]
    }

    /// Requests that were done since the last call, in no particular order;
    /// their times may lie after [`Channel::now`].
    pub fn completions(&mut self) -> std::vec::Drain<'_, Completion> {
        self.done.drain(..)
    }

    /// Offers a request at a time, which must not lie before [`Channel::now`].
    ///
    /// What happens until then is done first.
    pub fn offer(&mut self, id: u64, access: Access, address: u64, at: Clock) -> Accept {
        self.advance(at);
        let direction = direction_of(access);
        let place = self.mapper.place(address);
        if self.holds_write(place) {
            if direction == READ {
                self.stats.forwarded += 1;
                return Accept::Forwarded(Clock(self.now + 1));
            }
            self.stats.coalesced += 1;
            return Accept::Coalesced;
        }
        if self.length[direction] >= self.capacity[direction] {
            return Accept::Full;
        }
        self.order += 1;
        self.length[direction] += 1;
        match place {
            Place::Dram { bank, row, column } => {
                let entry = Entry::new(id, self.now, self.order, row, column);
                let bank = bank as usize;
                self.queues.push(direction, bank, entry);
                if self.waiting[direction] & (1 << bank) == 0 {
                    self.waiting[direction] |= 1 << bank;
                    self.assess(direction, bank);
                } else if self.needs[direction][bank].kind == PRECHARGE {
                    // Only a bank that is about to close its row has use for a younger request.
                    self.assess(direction, bank);
                }
            }
            Place::Nvm { granule, column } => {
                let request =
                    NvmRequest { id, arrived: self.now, order: self.order, granule, column };
                let nvm = self.nvm.as_mut().expect("the mapper knows the devices");
                if direction == READ { &mut nvm.waiting } else { &mut nvm.writes }
                    .push_back(request);
            }
        }
        self.turn();
        Accept::Queued
    }

    fn holds_write(&self, place: Place) -> bool {
        if self.length[WRITE] == 0 {
            return false;
        }
        match place {
            Place::Dram { bank, row, column } => {
                self.queues.holds(WRITE, bank as usize, row, column)
            }
            Place::Nvm { granule, column } => {
                self.nvm.as_ref().is_some_and(|nvm| nvm.holds_write(granule, column))
            }
        }
    }

    /// Does everything that happens before a time.
    pub fn advance(&mut self, to: Clock) {
        if to.0 <= self.now {
            return;
        }
        while self.step(to.0).is_some() {}
        self.now = to.0;
    }

    /// Sends commands until one has taken a request out of a queue, so that
    /// there is room; at most up to a time. Returns whether there was one.
    pub fn advance_until_room(&mut self, limit: Clock) -> bool {
        while let Some(column) = self.step(limit.0) {
            if column {
                return true;
            }
        }
        self.now = self.now.max(limit.0);
        false
    }

    /// Sends everything that waits.
    pub fn drain(&mut self) {
        while !self.is_idle() {
            self.advance_until_room(Clock::NEVER);
        }
    }

    /// Sends the next command if it goes before `limit`; says whether it was
    /// one that ends a request. `None`: nothing happens before `limit`.
    #[inline]
    fn step(&mut self, limit: u64) -> Option<bool> {
        loop {
            let (at, step) = self.next_command();
            if self.next_refresh <= at && self.next_refresh < limit {
                self.block_for_refresh();
                continue;
            }
            if at >= limit {
                return None;
            }
            return Some(self.send(at, step));
        }
    }

    /// Of all commands that are needed the one that may go first: its first
    /// cycle. Ties: column commands, then the older request.
    #[inline]
    fn next_command(&self) -> (u64, Step) {
        let mut best = u64::MAX;
        let mut step = Step::Bank(BANKS, false);
        let floor = [self.now.max(self.bus_free[0]), self.now.max(self.bus_free[self.column_bus])];
        let direction = self.direction;
        if let Some(banks) = &self.banks {
            let mut mask = self.waiting[direction] & !self.blocked;
            let needs = &self.needs[direction];
            let mut first = u64::MAX;
            while mask != 0 {
                let bank = mask.trailing_zeros() as usize;
                mask &= mask - 1;
                let need = &needs[bank];
                let (start, column) = self.start_of(banks, need, bank, floor);
                first = first.min(urgency(start - self.now, column, need.order, bank));
            }
            if first != u64::MAX {
                let bank = (first & (BANKS as u64 - 1)) as usize;
                let column;
                (best, column) = self.start_of(banks, &needs[bank], bank, floor);
                step = Step::Bank(bank, column);
            }
            if self.blocked != 0 {
                for rank in 0..banks.ranks {
                    if !self.refreshing[rank] {
                        continue;
                    }
                    let (ready, candidate) = match banks.close_ready(rank) {
                        Some(ready) => (ready, Step::Close(rank)),
                        None => (banks.refresh_ready(rank), Step::Refresh(rank)),
                    };
                    let start = ready.max(floor[0]);
                    if start <= best {
                        (best, step) = (start, candidate);
                    }
                }
            }
        }
        if let Some(nvm) = &self.nvm
            && let Some((ready, candidate)) = nvm.next(direction)
        {
            // Commands of DRAM go first at the same time: they hold rows open.
            let start = ready.max(floor[1]);
            if start < best {
                (best, step) = (start, Step::Nvm(candidate));
            }
        }
        (best, step)
    }

    /// The first cycle in which a bank's next command may be sent, and whether
    /// it is a column command.
    #[inline]
    fn start_of(&self, banks: &Banks, need: &Need, bank: usize, floor: [u64; 2]) -> (u64, bool) {
        let group = usize::from(banks.group_of[bank]) & (BANKS - 1);
        let start = |kind: usize, ready: u64| {
            let ready = ready.max(banks.group_ready[kind][group]);
            ready.saturating_sub(self.extra[kind]).max(floor[usize::from(kind <= WRITE)])
        };
        let first = start(need.kind & 3, need.ready);
        if need.meanwhile != NIL {
            let kind = self.direction;
            let hit = start(kind, banks.bank_ready[kind][bank]);
            if hit < first {
                return (hit, true);
            }
        }
        (first, need.kind <= WRITE)
    }

    /// Sends a command whose first cycle is `start`; says whether a request left its queue.
    #[inline]
    fn send(&mut self, start: u64, step: Step) -> bool {
        self.now = start;
        match step {
            Step::Bank(bank, column) => self.send_to_bank(start, bank, column),
            Step::Close(rank) => {
                self.bus_free[0] = start + 1;
                self.stats.precharges += 1;
                let banks = self.banks.as_mut().expect("only DRAM is refreshed");
                banks.precharge_all(rank, start);
                self.watch_rank(start, CommandKind::PrechargeAll, rank);
                self.assess_rank(rank);
                false
            }
            Step::Refresh(rank) => {
                self.bus_free[0] = start + 1;
                self.stats.refreshes += 1;
                let banks = self.banks.as_mut().expect("only DRAM is refreshed");
                banks.refresh(rank, start);
                let bits = (u64::MAX >> (64 - banks.per_rank)) << (rank * banks.per_rank);
                self.blocked &= !bits;
                self.refreshing[rank] = false;
                self.refresh_due[rank] += banks.times.refi;
                self.update_next_refresh();
                self.watch_rank(start, CommandKind::Refresh, rank);
                self.assess_rank(rank);
                false
            }
            Step::Nvm(step) => self.send_to_nvm(start, step),
        }
    }

    fn send_to_bank(&mut self, start: u64, bank: usize, column: bool) -> bool {
        let mut need = self.needs[self.direction][bank];
        if column && need.kind > WRITE {
            (need.kind, need.entry) = (self.direction, need.meanwhile);
        }
        let at = start + self.extra[need.kind];
        let banks = self.banks.as_mut().expect("a bank waits");
        match need.kind {
            ACTIVATE => {
                self.bus_free[0] = at + 1;
                self.stats.activates += 1;
                let entry = *self.queues.entry(need.entry);
                banks.activate(bank, entry.row, at);
                (self.passed[bank], self.row_accesses[bank]) = (0, 0);
                self.watch(at, CommandKind::Activate, bank, u64::from(entry.row), entry.id);
                self.assess_both(bank);
                false
            }
            PRECHARGE => {
                self.bus_free[0] = at + 1;
                self.stats.precharges += 1;
                let row = u64::from(banks.open[bank]);
                banks.precharge(bank, at);
                self.watch(at, CommandKind::Precharge, bank, row, u64::MAX);
                self.assess_both(bank);
                false
            }
            _ => {
                self.bus_free[self.column_bus] = at + 1;
                self.send_column(at, bank, need);
                true
            }
        }
    }

    fn send_column(&mut self, at: u64, bank: usize, need: Need) {
        let direction = self.direction;
        if need.entry != self.queues.head(direction, bank) {
            self.passed[bank] += 1;
        }
        self.row_accesses[bank] += 1;
        let entry = self.queues.remove(direction, bank, need.entry);
        if self.queues.head(direction, bank) == NIL {
            self.waiting[direction] &= !(1 << bank);
        }
        let auto = self.closes_after(bank, entry.row);
        let banks = self.banks.as_mut().expect("a bank waits");
        banks.column(bank, direction, at, auto);
        let data = at + banks.times.latency(direction) + banks.times.burst;
        self.stats.data_cycles += banks.times.burst;
        if let Some(nvm) = &mut self.nvm {
            nvm.data_bus_taken(data + nvm.times.cs);
        }
        let kind = match (direction, auto) {
            (READ, false) => CommandKind::Read,
            (READ, true) => CommandKind::ReadAuto,
            (_, false) => CommandKind::Write,
            (_, true) => CommandKind::WriteAuto,
        };
        self.watch(at, kind, bank, u64::from(entry.row), entry.id);
        self.assess_both(bank);
        self.finish(direction, entry.id, entry.arrived, data);
    }

    /// Whether the page policy closes a row after the access that is being sent.
    fn closes_after(&self, bank: usize, row: u32) -> bool {
        if self.policy == PagePolicy::Open {
            return false;
        }
        let wanted = [READ, WRITE].iter().any(|&d| self.queues.first_in_row(d, bank, row) != NIL);
        if self.policy == PagePolicy::Closed {
            return !wanted;
        }
        let conflict = [READ, WRITE].iter().any(|&d| self.queues.head(d, bank) != NIL);
        self.row_accesses[bank] >= self.most_row_accesses || (!wanted && conflict)
    }

    fn send_to_nvm(&mut self, start: u64, step: NvmStep) -> bool {
        let extra = self.extra[READ];
        let nvm = self.nvm.as_mut().expect("it asked");
        let rank = self.banks.as_ref().map_or(0, |banks| banks.ranks) as u32;
        // Starting a read and writing take an address; fetching does not.
        let at = if matches!(step, NvmStep::Fetch(_)) { start } else { start + extra };
        self.bus_free[self.column_bus] = at + 1;
        let data = at + nvm.times.send + nvm.times.burst;
        let (kind, request, direction) = match step {
            NvmStep::Start => (CommandKind::NvmRead, nvm.start(at), None),
            NvmStep::Fetch(index) => (CommandKind::NvmSend, nvm.fetch(index), Some(READ)),
            NvmStep::Write => (CommandKind::NvmWrite, nvm.write(at, data), Some(WRITE)),
        };
        if let Some(direction) = direction {
            nvm.column(direction, at);
            self.stats.data_cycles += nvm.times.burst;
            if let Some(banks) = &mut self.banks {
                banks.data_bus_taken(data + nvm.times.cs);
            }
        }
        self.observer.command(Command {
            at,
            kind,
            rank,
            group: 0,
            bank: 0,
            row: request.granule,
            request: request.id,
        });
        if let Some(direction) = direction {
            self.finish(direction, request.id, request.arrived, data);
        }
        direction.is_some()
    }

    /// A request's data have their time.
    fn finish(&mut self, direction: usize, id: u64, arrived: u64, data: u64) {
        self.length[direction] -= 1;
        let access = if direction == READ {
            self.stats.reads += 1;
            self.stats.read_latency += data - arrived;
            Access::Read
        } else {
            self.stats.writes += 1;
            self.written_in_turn += 1;
            Access::Write
        };
        self.done.push(Completion { id, at: Clock(data), arrived: Clock(arrived), access });
        self.turn();
    }

    /// Decides whether reads or writes are served.
    fn turn(&mut self) {
        let [reads, writes] = self.length;
        let to = if self.direction == READ {
            if writes >= self.high || (reads == 0 && writes > 0) { WRITE } else { READ }
        } else {
            // A turn is bounded, so that reads do not starve while writes keep coming.
            let enough = writes <= self.low && self.written_in_turn >= self.min_writes;
            let too_many = self.written_in_turn >= 2 * self.capacity[WRITE];
            if reads > 0 && (writes == 0 || enough || too_many) { READ } else { WRITE }
        };
        if to != self.direction {
            self.direction = to;
            self.written_in_turn = 0;
            self.stats.turnarounds += 1;
        }
    }

    /// Works out what a bank's queue needs next.
    fn assess(&mut self, direction: usize, bank: usize) {
        let head = self.queues.head(direction, bank);
        if head == NIL {
            return;
        }
        let banks = self.banks.as_ref().expect("a bank waits");
        let open = banks.open[bank];
        let mut meanwhile = NIL;
        let (kind, entry) = if open == CLOSED {
            (ACTIVATE, head)
        } else {
            let hit = self.queues.first_in_row(direction, bank, open);
            let may_pass = self.passed[bank] < self.hit_cap;
            if hit != NIL && (hit == head || (self.hits_first && may_pass)) {
                (direction, hit)
            } else {
                if hit != NIL && may_pass {
                    meanwhile = hit;
                }
                (PRECHARGE, head)
            }
        };
        let order = self.queues.entry(entry).order;
        let ready = banks.bank_ready[kind][bank];
        self.needs[direction][bank] = Need { kind, ready, entry, order, meanwhile };
    }

    fn assess_both(&mut self, bank: usize) {
        self.assess(READ, bank);
        self.assess(WRITE, bank);
    }

    fn assess_rank(&mut self, rank: usize) {
        let per_rank = self.banks.as_ref().map_or(0, |banks| banks.per_rank);
        for bank in rank * per_rank..(rank + 1) * per_rank {
            self.assess_both(bank);
        }
    }

    /// A rank's refresh is due: no more commands but those that lead to it.
    fn block_for_refresh(&mut self) {
        let due = self.next_refresh;
        self.now = self.now.max(due);
        let banks = self.banks.as_ref().expect("only DRAM is refreshed");
        for rank in 0..banks.ranks {
            if !self.refreshing[rank] && self.refresh_due[rank] <= due {
                self.refreshing[rank] = true;
                self.blocked |= (u64::MAX >> (64 - banks.per_rank)) << (rank * banks.per_rank);
            }
        }
        self.update_next_refresh();
    }

    fn update_next_refresh(&mut self) {
        let due = (0..8).filter(|&rank| !self.refreshing[rank]).map(|rank| self.refresh_due[rank]);
        self.next_refresh =
            if self.refresh_enabled { due.min().unwrap_or(u64::MAX) } else { u64::MAX };
    }

    #[inline]
    fn watch(&mut self, at: u64, kind: CommandKind, bank: usize, row: u64, request: u64) {
        let Some(banks) = &self.banks else { return };
        self.observer.command(Command {
            at,
            kind,
            rank: banks.rank_of(bank) as u32,
            group: u32::from(banks.group_of[bank]) % banks.groups as u32,
            bank: (bank % banks.per_rank) as u32,
            row,
            request,
        });
    }

    fn watch_rank(&mut self, at: u64, kind: CommandKind, rank: usize) {
        let rank = rank as u32;
        self.observer.command(Command {
            at,
            kind,
            rank,
            group: 0,
            bank: 0,
            row: 0,
            request: u64::MAX,
        });
    }
}

/// Time, kind, age and bank of a command as one number that is smaller the
/// sooner it is to be sent. Waits of 2^24 cycles (milliseconds) and more count as
/// equal; the longest that a device asks for are some thousands.
#[inline]
fn urgency(wait: u64, column: bool, order: u64, bank: usize) -> u64 {
    const WAIT_BITS: u32 = 24;
    const ORDER_BITS: u32 = 64 - WAIT_BITS - 1 - 6;
    let wait = wait.min((1 << WAIT_BITS) - 1);
    let kind = (wait << 1) | u64::from(!column);
    (((kind << ORDER_BITS) | (order & ((1 << ORDER_BITS) - 1))) << 6) | bank as u64
}

/// The index of a direction.
fn direction_of(access: Access) -> usize {
    match access {
        Access::Read => READ,
        Access::Write => WRITE,
    }
}
