//! Several channels behind one address space, in absolute time.

use core::ops::{Add, Sub};

use serde::Serialize;
use terrace_core::{Access, Bytes, Nanos};

use crate::channel::{Accept, Channel, ChannelStats};
use crate::command::Observer;
use crate::duration::Clock;
use crate::file::{DramFile, MemoryFile};

/// A point in time or a duration, in picoseconds: clocks of memories are not
/// whole nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct Picos(pub u64);

impl Picos {
    /// The start of time, or no time at all.
    pub const ZERO: Self = Self(0);

    /// In nanoseconds, rounded to the nearest.
    pub const fn nanos(self) -> Nanos {
        Nanos((self.0 + 500) / 1000)
    }
    /// In nanoseconds.
    pub const fn as_nanos(self) -> f64 {
        self.0 as f64 / 1000.0
    }
}

impl From<Nanos> for Picos {
    fn from(nanos: Nanos) -> Self {
        Self(nanos.get().saturating_mul(1000))
    }
}
impl Add for Picos {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}
impl Sub for Picos {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

/// Which request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(pub u64);

/// A request that was submitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Submitted {
    /// Which it is.
    pub ticket: Ticket,
    /// When it was in the channel's queue. On a platform with ADR a write is
    /// in the persistence domain from then on.
    pub accepted: Picos,
    /// When whoever submitted it could go on: at once, unless the queue was full.
    pub released: Picos,
}

/// What a memory did, over all channels.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MemoryStats {
    /// By channel.
    pub channels: Vec<ChannelStats>,
}

/// A memory: channels behind one address space.
#[derive(Clone, Debug)]
pub struct Memory<O: Observer = ()> {
    channels: Vec<Channel<O>>,
    /// Channels that consecutive stripes go around.
    width: u64,
    /// First address of non-volatile memory that has channels of its own: they
    /// follow the DRAM's.
    apart: Option<u64>,
    stripe: u64,
    period_ps: f64,
    frontend: u64,
    backend: u64,
    capacity: Bytes,
    tickets: u64,
    /// Completions that were seen, but not yet asked for.
    done: Vec<(Ticket, Picos)>,
}

impl Memory<()> {
    /// A memory, idle at time 0.
    pub fn new(file: &MemoryFile) -> Self {
        Self::with_observers(file, |_| ())
    }
}

impl<O: Observer + Clone> Memory<O> {
    /// Submits a read, and says when its data are there if nothing else is submitted
    /// meanwhile: the channel's future is played on a copy of it. Completions are
    /// forgotten.
    pub fn foresee_read(&mut self, address: u64, at: Picos) -> Picos {
        let Submitted { ticket, .. } = self.submit(Access::Read, address, at);
        let forwarded = self.done.iter().find(|(done, _)| *done == ticket).map(|(_, when)| *when);
        self.forget_completions();
        if let Some(when) = forwarded {
            return when;
        }
        let mut future = self.channels[self.route(address).0].clone();
        loop {
            if let Some(done) = future.completions().find(|done| done.id == ticket.0) {
                return self.picos(done.at + Clock(self.backend));
            }
            future.advance_until_room(Clock::NEVER);
        }
    }
}

impl<O: Observer> Memory<O> {
    /// A memory whose channels' commands are watched.
    pub fn with_observers(file: &MemoryFile, observer: impl Fn(u32) -> O) -> Self {
        let period = file.channel.clock.value.nanos;
        let width = file.channel.channels.value;
        let dram = file.dram.as_ref().map_or(Bytes::ZERO, DramFile::capacity) * u64::from(width);
        let apart = file.is_nvm_apart().then_some(dram.get());
        let channels = if apart.is_some() { 2 * width } else { width };
        Self {
            channels: (0..channels).map(|i| Channel::with_observer(file, observer(i))).collect(),
            width: u64::from(width),
            apart,
            stripe: file.channel.stripe.value.get(),
            period_ps: period * 1000.0,
            frontend: file.controller.frontend.value.cycles_of(period),
            backend: file.controller.backend.value.cycles_of(period),
            capacity: file.channel_capacity() * u64::from(width),
            tickets: 0,
            done: Vec::new(),
        }
    }

    /// What it holds.
    pub fn capacity(&self) -> Bytes {
        self.capacity
    }

    /// What it did.
    pub fn stats(&self) -> MemoryStats {
        MemoryStats { channels: self.channels.iter().map(|c| *c.stats()).collect() }
    }

    /// The channels.
    pub fn channels(&self) -> &[Channel<O>] {
        &self.channels
    }

    fn clock(&self, time: Picos) -> Clock {
        Clock((time.0 as f64 / self.period_ps).ceil() as u64)
    }

    fn picos(&self, clock: Clock) -> Picos {
        Picos((clock.0 as f64 * self.period_ps) as u64)
    }

    /// The channel of an address, and the address within it.
    fn route(&self, address: u64) -> (usize, u64) {
        let among = |address: u64| {
            let (stripe, offset) = (address / self.stripe, address % self.stripe);
            (stripe % self.width, stripe / self.width * self.stripe + offset)
        };
        match self.apart.filter(|&begin| address >= begin) {
            None => {
                let (channel, local) = among(address);
                (channel as usize, local)
            }
            // Every channel knows both kinds; behind the DRAM's part lies the other.
            Some(begin) => {
                let (channel, local) = among(address - begin);
                ((self.width + channel) as usize, begin / self.width + local)
            }
        }
    }

    /// Submits one burst. If the queue is full the request waits in front of
    /// it, and so does whoever submits.
    ///
    /// Times must not run backwards on a channel by more than the front end's
    /// latency; earlier ones are taken as "now".
    pub fn submit(&mut self, access: Access, address: u64, at: Picos) -> Submitted {
        self.tickets += 1;
        let ticket = Ticket(self.tickets);
        let (index, local) = self.route(address);
        let arrival = self.clock(at) + Clock(self.frontend);
        let channel = &mut self.channels[index];
        let mut now = arrival.max(channel.now());
        let done = loop {
            match channel.offer(ticket.0, access, local, now) {
                Accept::Queued => break None,
                Accept::Forwarded(when) => break Some(when),
                Accept::Coalesced => break Some(now),
                Accept::Full => {
                    channel.advance_until_room(Clock::NEVER);
                    now = channel.now();
                }
            }
        };
        if let Some(when) = done {
            let when = self.picos(when + Clock(self.backend));
            self.done.push((ticket, when));
        }
        let accepted = self.picos(now);
        let released = at.max(self.picos(now - Clock(self.frontend)));
        Submitted { ticket, accepted, released }
    }

    /// Does everything that happens before a time; returns what was completed
    /// since the last call, in no particular order.
    pub fn advance(&mut self, to: Picos) -> Vec<(Ticket, Picos)> {
        let clock = self.clock(to);
        for channel in &mut self.channels {
            channel.advance(clock);
        }
        self.collect();
        std::mem::take(&mut self.done)
    }

    /// Completes everything that was submitted.
    pub fn drain(&mut self) -> Vec<(Ticket, Picos)> {
        for channel in &mut self.channels {
            channel.drain();
        }
        self.collect();
        std::mem::take(&mut self.done)
    }

    /// One access of a processor that waits for it: when its data are there.
    /// A write returns when it was taken: the processor does not wait longer.
    pub fn access(&mut self, access: Access, address: u64, at: Picos) -> Picos {
        let Submitted { ticket, released, .. } = self.submit(access, address, at);
        if access == Access::Write {
            return released;
        }
        let (index, _) = self.route(address);
        loop {
            self.collect();
            if let Some(place) = self.done.iter().position(|(t, _)| *t == ticket) {
                let (_, when) = self.done[place];
                // Nobody asks for others' completions in this mode.
                self.done.clear();
                return when;
            }
            self.channels[index].advance_until_room(Clock::NEVER);
        }
    }

    /// Forgets what was completed: for callers that do not ask.
    pub fn forget_completions(&mut self) {
        for channel in &mut self.channels {
            channel.completions();
        }
        self.done.clear();
    }

    fn collect(&mut self) {
        let (backend, period) = (self.backend, self.period_ps);
        for channel in &mut self.channels {
            self.done.extend(channel.completions().map(|c| {
                let at = c.at.0 + if c.access == Access::Read { backend } else { 0 };
                (Ticket(c.id), Picos((at as f64 * period) as u64))
            }));
        }
    }
}
