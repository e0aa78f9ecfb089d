//! Two sockets in Memory Mode: each has its memory behind a direct-mapped cache of DRAM, and
//! threads that stream through one of them.
//!
//! Tier 0 is the memory of socket 0, tier 1 that of socket 1. The program runs on one of the two;
//! what lies at the other one's comes over the link.

use terrace_core::machine::Sourced;
use terrace_core::{BytesPerSecond, DramCache, Machine};

use super::memory::PAGE;

/// Bytes of a line.
const LINE: u64 = 64;
/// Lines of a page.
const LINES: u64 = PAGE / LINE;
/// Of a line in a cache: it was written since it came there. The other bits are its tag.
const DIRTY: u8 = 0x80;
/// No line.
const EMPTY: u8 = 0x7f;

/// What a simulated kernel with two sockets is asked to do. The machine needs its part
/// `dram-cache`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketsConfig {
    /// Threads that stream through memory of socket 1 from [`super::Call::Measure`] on.
    pub streams: u32,
    /// Whether the program runs on socket 1 at first, with its memory bound there, and is moved to
    /// socket 0 at [`super::Call::Measure`]. Otherwise it runs on socket 0 from the start.
    pub moves: bool,
}

/// One socket's memory.
#[derive(Debug)]
struct Memory {
    /// For each line of the cache, whose it is, and whether it is dirty.
    cache: Vec<u8>,
    /// Nanoseconds a byte: of the cache's DRAM; reads and writes of what is behind.
    cache_time: f64,
    read_time: f64,
    write_time: f64,
    cache_latency: f64,
    latency: f64,
    granularity: u64,
    /// When the DRAM, and the memory behind it, have done what they were asked for.
    cache_idle_at: f64,
    idle_at: f64,
}

/// What was found of some lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Found {
    hits: u32,
    misses: u32,
    /// Lines that were displaced and have to be written.
    written: u32,
}

impl Memory {
    /// Looks lines up, and enters those that are missing.
    fn look_up(&mut self, first: u64, count: u32, store: bool) -> Found {
        let mut found = Found::default();
        let size = self.cache.len() as u64;
        let dirty = if store { DIRTY } else { 0 };
        for line in first..first + u64::from(count) {
            let tag = (line / size) as u8;
            let entry = &mut self.cache[(line % size) as usize];
            if *entry & !DIRTY == tag {
                *entry |= dirty;
                found.hits += 1;
            } else {
                found.written += u32::from(*entry & DIRTY != 0);
                *entry = tag | dirty;
                found.misses += 1;
            }
        }
        found
    }
}

/// An access to some lines of a page.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    /// Whose memory.
    pub(super) home: usize,
    /// The first line, counted from the beginning of that memory.
    pub(super) first: u64,
    pub(super) count: u32,
    pub(super) store: bool,
    /// Lines that are fetched at once.
    pub(super) at_once: f64,
}

impl Request {
    /// Lines of a frame, counted from the beginning of its memory.
    pub(super) fn of(home: usize, frame: u32, first: u32, count: u32, store: bool) -> Self {
        let first = u64::from(frame) * LINES + u64::from(first).min(LINES - u64::from(count));
        Self { home, first, count, store, at_once: 1.0 }
    }
}

/// A thread that streams.
#[derive(Clone, Copy, Debug)]
struct Stream {
    /// When it asks for the next lines.
    next: f64,
    /// Where, in lines from the beginning of what is streamed through.
    at: u64,
}

/// The two sockets.
#[derive(Debug)]
pub(super) struct Sockets {
    memory: [Memory; 2],
    /// Nanoseconds a byte over the link, and when each direction is idle: to socket 0, to 1.
    link_time: f64,
    link_latency: f64,
    link_idle_at: [f64; 2],
    /// Where the program runs.
    pub(super) at: usize,
    streams: Vec<Stream>,
    /// The lines of socket 1's memory that are streamed through: the first, and how many.
    streamed: (u64, u64),
    /// Lines that one thread fetches at once.
    slots: u32,
}

impl Sockets {
    /// Sockets with so many frames in each memory. What is streamed through lies at the end of
    /// socket 1's: [`Sockets::streamed_frames`].
    pub(super) fn new(
        machine: &Machine,
        cache: &DramCache,
        config: SocketsConfig,
        frames: [u32; 2],
    ) -> Self {
        let time = |rate: &Sourced<BytesPerSecond>| 1e9 / rate.value.get();
        let size = cache.capacity.value.get() / LINE;
        let memory = [0, 1].map(|socket: usize| {
            // Latencies are those of the near memory: what the link adds is added apart.
            let (near, own) = (&machine.tiers[0], &machine.tiers[socket]);
            Memory {
                cache: vec![EMPTY; size as usize],
                cache_time: time(&cache.bandwidth),
                read_time: time(&own.read_bandwidth),
                write_time: time(&own.write_bandwidth),
                cache_latency: cache.latency.value.as_f64(),
                latency: near.read_latency.value.as_f64(),
                granularity: own.granularity.value.get(),
                cache_idle_at: 0.0,
                idle_at: 0.0,
            }
        });
        let link = machine.tiers[1].read_latency.value.as_f64() - memory[0].latency;
        let streamed = u64::from(Self::streamed_frames(cache, config)) * LINES;
        let end = u64::from(frames[1]) * LINES;
        let streams = u64::from(config.streams);
        Self {
            memory,
            link_time: time(&cache.link_bandwidth),
            link_latency: link,
            link_idle_at: [0.0; 2],
            at: usize::from(config.moves),
            streams: (0..streams)
                .map(|n| Stream { next: f64::INFINITY, at: streamed * n / streams })
                .collect(),
            streamed: (end - streamed, streamed),
            slots: machine.cpu.miss_slots.value as u32,
        }
    }

    /// Frames at the end of socket 1's memory that the streams have: twice as much as its cache
    /// holds, so that no line is there when they come back to it.
    pub(super) fn streamed_frames(cache: &DramCache, config: SocketsConfig) -> u32 {
        let frames = 2 * cache.capacity.value.get() / PAGE;
        if config.streams > 0 { frames as u32 } else { 0 }
    }

    /// The largest memory that tags can tell apart, in caches.
    pub(super) const MOST_CACHES: u64 = EMPTY as u64;

    /// Whether tags can tell the lines of memories of so many frames apart.
    pub(super) fn tells_apart(&self, frames: [u32; 2]) -> bool {
        let most = Self::MOST_CACHES * self.memory[0].cache.len() as u64;
        frames.iter().all(|&frames| u64::from(frames) * LINES <= most)
    }

    /// The streams begin, and the program runs on socket 0.
    pub(super) fn begin(&mut self, at: f64) {
        self.at = 0;
        for stream in &mut self.streams {
            stream.next = at;
        }
    }

    /// Time that the program's access takes. As for a tier, devices begin where they are idle,
    /// and not before `behind`.
    pub(super) fn fetch(&mut self, request: Request, behind: f64, at: f64) -> f64 {
        let remote = request.home != self.at;
        let found = self.occupy(&request, behind);
        let memory = &self.memory[request.home];
        let slowest = if found.misses > 0 { memory.latency } else { memory.cache_latency };
        let all =
            f64::from(found.hits) * memory.cache_latency + f64::from(found.misses) * memory.latency;
        let mut done = at + (all / request.at_once).max(slowest);
        done = done.max(memory.cache_idle_at);
        if found.misses > 0 {
            done = done.max(memory.idle_at);
        }
        if remote {
            let bytes = f64::from(request.count) * LINE as f64;
            // Lines come to the program, and go back when they are written.
            for (direction, goes) in [(self.at, true), (request.home, request.store)] {
                if goes {
                    let idle = &mut self.link_idle_at[direction];
                    *idle = idle.max(behind) + bytes * self.link_time;
                }
            }
            done = (done + self.link_latency).max(self.link_idle_at[self.at]);
        }
        done - at
    }

    /// Keeps DRAM and memory busy with an access.
    fn occupy(&mut self, request: &Request, behind: f64) -> Found {
        let memory = &mut self.memory[request.home];
        let found = memory.look_up(request.first, request.count, request.store);
        let granularity = memory.granularity;
        let block = |lines: u32| (u64::from(lines) * LINE).next_multiple_of(granularity) as f64;
        // Served; filled; read to be written back; and written when the processor's cache lets a
        // line go.
        let stored = if request.store { request.count } else { 0 };
        let lines = request.count + found.misses + found.written + stored;
        let dram = f64::from(lines) * LINE as f64 * memory.cache_time;
        memory.cache_idle_at = memory.cache_idle_at.max(behind) + dram;
        if found.misses > 0 {
            let busy =
                block(found.misses) * memory.read_time + block(found.written) * memory.write_time;
            memory.idle_at = memory.idle_at.max(behind) + busy;
        }
        found
    }

    /// The streams run until `now`.
    pub(super) fn stream(&mut self, now: f64) {
        loop {
            let first = (0..self.streams.len())
                .min_by(|&a, &b| self.streams[a].next.total_cmp(&self.streams[b].next));
            let Some(number) = first else { return };
            let Stream { next: at, at: place } = self.streams[number];
            if at >= now {
                return;
            }
            let (begin, size) = self.streamed;
            let count = u64::from(self.slots).min(size - place) as u32;
            let (first, at_once) = (begin + place, f64::from(count));
            let request = Request { home: 1, first, count, store: false, at_once };
            self.occupy(&request, at);
            let memory = &self.memory[1];
            let done = (at + memory.latency).max(memory.idle_at).max(memory.cache_idle_at);
            self.streams[number] = Stream { next: done, at: (place + u64::from(count)) % size };
        }
    }

    pub(super) fn heap_bytes(&self) -> usize {
        self.memory.iter().map(|memory| memory.cache.capacity()).sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use terrace_core::Bytes;

    use super::*;

    fn sockets(config: SocketsConfig) -> Sockets {
        let machine = crate::machines::load("kloc-memory-mode").expect("built in");
        let mut cache = machine.dram_cache.clone().expect("it has them");
        // 64 KiB of cache, 512 KiB of memory a socket.
        cache.capacity.value = Bytes::kib(64);
        Sockets::new(&machine, &cache, config, [128, 128])
    }

    const QUIET: SocketsConfig = SocketsConfig { streams: 0, moves: false };

    #[test]
    fn lines_that_lie_a_cache_apart_displace_each_other() {
        let mut sockets = sockets(QUIET);
        let memory = &mut sockets.memory[0];
        let clean = Found { misses: 4, ..Found::default() };
        assert_eq!(memory.look_up(0, 4, true), clean);
        assert_eq!(memory.look_up(0, 4, false), Found { hits: 4, ..Found::default() });
        assert_eq!(memory.look_up(1024, 2, false), Found { misses: 2, written: 2, hits: 0 });
        assert_eq!(memory.look_up(0, 4, false), Found { hits: 2, misses: 2, written: 0 });
    }

    /// Latencies of an idle machine are those of its file: cache, memory, and either over the
    /// link.
    #[test]
    fn an_idle_machine_has_the_latencies_of_its_file() {
        let mut sockets = sockets(QUIET);
        let mut time = |home, at| {
            let request = Request::of(home, 0, 0, 1, false);
            sockets.fetch(request, at, at)
        };
        assert!((time(0, 1e6) - 305.0).abs() < 1e-6);
        assert!((time(0, 2e6) - 81.0).abs() < 1e-6);
        assert!((time(1, 3e6) - 363.0).abs() < 1e-6);
        assert!((time(1, 4e6) - 139.0).abs() < 1e-6);
    }

    /// What streams takes the memory's whole bandwidth, and whoever wants a line of that memory
    /// waits; the other socket's serves as before.
    #[test]
    fn streams_saturate_their_socket_and_leave_the_other_one_alone() {
        let mut sockets = sockets(SocketsConfig { streams: 16, moves: true });
        sockets.begin(0.0);
        let end = 1e6;
        let before: u64 = sockets.streams.iter().map(|stream| stream.at).sum();
        sockets.stream(end);
        assert!(sockets.memory[1].idle_at > end);
        let loaded = sockets.fetch(Request::of(1, 0, 0, 1, false), end, end);
        let idle = sockets.fetch(Request::of(0, 0, 0, 1, false), end, end);
        assert!(loaded > 1000.0 && idle < 306.0, "{loaded} {idle}");
        assert_ne!(before, sockets.streams.iter().map(|stream| stream.at).sum::<u64>());
    }
}
