//! redis-server with a client in this process, in redis's protocol.

use std::fs::File;
use std::hash::{DefaultHasher, Hasher};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rand_xoshiro::rand_core::{Rng, SeedableRng};
use terrace_sim::workload::SimRng;
use terrace_sim::workload::ycsb::{Zipfian, fnv};

use super::{Outcome, Place, Scale};
use crate::histogram::{Histogram, Latencies};
use crate::interrupt::{Finished, Running};
use crate::system::Ready;

/// How keys are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keys {
    /// By YCSB's Zipfian distribution, scrambled.
    Zipf,
    /// All alike.
    Uniform,
}

/// What else it does while it is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beside {
    /// Nothing.
    Nothing,
    /// It saves itself: a forked child writes all records to a file. The time is until both are
    /// done.
    Snapshot,
}

/// A value's bytes: YCSB's records have 1000.
const VALUE: usize = 1000;
/// Requests on their way at once.
pub(super) const DEPTH: usize = 16;
/// Of the requests, in percent; the others read. YCSB's workload B.
const WRITES: u64 = 5;

/// Random numbers from a seed.
pub(super) fn random(seed: u64) -> SimRng {
    SimRng::seed_from_u64(seed)
}

/// A number below `n` (multiply and shift).
pub(super) fn below(random: &mut SimRng, n: u64) -> u64 {
    ((u128::from(random.next_u64()) * u128::from(n)) >> 64) as u64
}

/// Fills a server (redis, or valkey, which is the same to a client) with records and times requests,
/// some before to warm up.
pub(super) fn run(
    place: &Place,
    system: &Ready,
    program: &Path,
    keys: Keys,
    beside: Beside,
) -> io::Result<Outcome> {
    let records = records(place.scale);
    let (warm, timed) = match place.scale {
        Scale::Full => (100_000, 300_000),
        Scale::Smoke => (5_000, 20_000),
    };
    let (server, mut client) = start(place, system, program, &[])?;

    for first in (0..records).step_by(DEPTH) {
        let batch = first..(first + DEPTH as u64).min(records);
        for key in batch.clone() {
            client.set(key, value(&place.corpus, key, 0));
        }
        client.finish(batch.count())?;
    }
    let mut random = random(7);
    let zipf = (keys == Keys::Zipf).then(|| Zipfian::new(records));
    let mut requests = |client: &mut Client, count: usize| -> io::Result<()> {
        for _ in 0..count / DEPTH {
            for _ in 0..DEPTH {
                let key = match &zipf {
                    Some(zipf) => fnv(zipf.rank(&mut random)) % records,
                    None => below(&mut random, records),
                };
                if below(&mut random, 100) < WRITES {
                    client.set(key, value(&place.corpus, key, random.next_u64()));
                } else {
                    client.get(key);
                }
            }
            client.finish(DEPTH)?;
        }
        Ok(())
    };
    requests(&mut client, warm)?;
    let began = Instant::now();
    if beside == Beside::Snapshot {
        client.ask(&[b"BGSAVE"])?;
    }
    requests(&mut client, timed)?;
    if beside == Beside::Snapshot {
        client.await_snapshot()?;
    }
    let time = began.elapsed();
    let (finished, checksum) = stop(server, client, program)?;
    Ok(Outcome { time, resident: finished.peak, usage: finished.usage, checksum })
}

/// How many records a server has.
pub(super) const fn records(scale: Scale) -> u64 {
    match scale {
        Scale::Full => 200_000,
        Scale::Smoke => 15_000,
    }
}

/// Fills an empty server with new records and does nothing else, so many requests on their way at
/// once; and how long requests took. Ends early where it has to.
pub(super) fn fill(
    place: &Place,
    system: &Ready,
    program: &Path,
    depth: usize,
    until: Option<Instant>,
) -> io::Result<(Outcome, Latencies)> {
    // What is measured is the kernel's setting, and not what it does about that.
    let version = Command::new(program).arg("--version").stdin(Stdio::null()).output()?;
    let turns_off = turns_huge_pages_off(&String::from_utf8_lossy(&version.stdout));
    let options: &[&str] = if turns_off { &["--disable-thp", "no"] } else { &[] };
    let (server, mut client) = start(place, system, program, options)?;
    let (latencies, mut greatest) = (Histogram::new(), 0);
    let records = records(place.scale);
    let began = Instant::now();
    for first in (0..records).step_by(depth) {
        if until.is_some_and(|until| Instant::now() >= until) {
            break;
        }
        let batch = first..(first + depth as u64).min(records);
        for key in batch.clone() {
            client.set(key, value(&place.corpus, key, 0));
        }
        let count = batch.count();
        let sent = Instant::now();
        client.finish(count)?;
        let took = sent.elapsed().as_nanos() as u64;
        greatest = greatest.max(took);
        for _ in 0..count {
            latencies.record(took);
        }
    }
    let time = began.elapsed();
    let (finished, checksum) = stop(server, client, program)?;
    let outcome = Outcome { time, resident: finished.peak, usage: finished.usage, checksum };
    Ok((outcome, latencies.latencies(greatest)))
}

/// Whether a server turns huge pages off for itself where they are always, by what it says of its
/// version: redis since 6.2, and valkey.
fn turns_huge_pages_off(said: &str) -> bool {
    let version = said.split_whitespace().find_map(|word| word.strip_prefix("v="));
    let mut parts =
        version.unwrap_or_default().split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    let (major, minor) = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
    (major, minor) >= (6, 2)
}

/// An empty server, and a client of it.
fn start(
    place: &Place,
    system: &Ready,
    program: &Path,
    options: &[&str],
) -> io::Result<(Running, Client)> {
    // A new one for each run: what another has saved would be loaded.
    let directory = place.fresh()?;
    let socket = directory.join("redis.sock");
    let mut command = system.command(program);
    command.args(["--port", "0", "--save", "", "--appendonly", "no", "--daemonize", "no"]);
    command.arg("--unixsocket").arg(&socket).args(options);
    command.current_dir(&directory).stdin(Stdio::null()).stdout(Stdio::null());
    command.stderr(File::create(place.errors())?);
    let mut server = Running::start(&mut command)?;
    server.bound(place.limit);
    match Client::connect(&server, &socket) {
        Ok(client) => Ok((server, client)),
        // It has not come to be a server: that it cannot be reached says nothing.
        Err(_) if !server.is_alive() => {
            Err(io::Error::other(format!("{}: {}", server.wait()?.status, place.last_words())))
        }
        Err(e) => Err(e),
    }
}

/// Ends a server, which has to end well. The checksum is of all that it answered.
fn stop(server: Running, mut client: Client, program: &Path) -> io::Result<(Finished, u64)> {
    client.request(&[b"SHUTDOWN", b"NOSAVE"]);
    // It ends the connection instead of answering.
    let _ = client.finish(1);
    let finished = server.wait()?;
    if !finished.status.success() {
        return Err(io::Error::other(format!("{}: {}", program.display(), finished.status)));
    }
    Ok((finished, client.answers.finish()))
}

/// A piece of the corpus: which depends on the key and the version.
fn value(corpus: &[u8], key: u64, version: u64) -> &[u8] {
    let at = (fnv(key ^ version.rotate_left(32)) % (corpus.len() - VALUE) as u64) as usize;
    &corpus[at..at + VALUE]
}

struct Client {
    out: UnixStream,
    input: BufReader<UnixStream>,
    batch: Vec<u8>,
    answer: Vec<u8>,
    answers: DefaultHasher,
}

impl Client {
    fn connect(server: &Running, socket: &Path) -> io::Result<Self> {
        let until = Instant::now() + Duration::from_secs(30);
        let out = loop {
            match UnixStream::connect(socket) {
                Ok(stream) => break stream,
                Err(e) if !server.is_alive() || Instant::now() > until => return Err(e),
                Err(_) => std::thread::sleep(Duration::from_millis(10)),
            }
        };
        let input = BufReader::with_capacity(64 << 10, out.try_clone()?);
        let (batch, answer) = (Vec::new(), Vec::new());
        Ok(Self { out, input, batch, answer, answers: DefaultHasher::new() })
    }

    fn request(&mut self, words: &[&[u8]]) {
        self.batch.extend(format!("*{}\r\n", words.len()).bytes());
        for word in words {
            self.batch.extend(format!("${}\r\n", word.len()).bytes());
            self.batch.extend_from_slice(word);
            self.batch.extend_from_slice(b"\r\n");
        }
    }

    fn set(&mut self, key: u64, value: &[u8]) {
        self.request(&[b"SET", format!("user{key}").as_bytes(), value]);
    }

    fn get(&mut self, key: u64) {
        self.request(&[b"GET", format!("user{key}").as_bytes()]);
    }

    /// Sends what was requested, and reads so many answers.
    fn finish(&mut self, answers: usize) -> io::Result<()> {
        self.out.write_all(&self.batch)?;
        self.batch.clear();
        for _ in 0..answers {
            self.read_answer()?;
            self.answers.write(&self.answer);
        }
        Ok(())
    }

    /// One request of which the answer does not count.
    fn ask(&mut self, words: &[&[u8]]) -> io::Result<&[u8]> {
        self.request(words);
        self.out.write_all(&self.batch)?;
        self.batch.clear();
        self.read_answer()?;
        Ok(&self.answer)
    }

    fn read_answer(&mut self) -> io::Result<()> {
        self.answer.clear();
        self.input.read_until(b'\n', &mut self.answer)?;
        match self.answer.as_slice() {
            [b'+', ..] => Ok(()),
            [b'$', length @ .., b'\r', b'\n'] if length != b"-1" => {
                let length = std::str::from_utf8(length).ok().and_then(|l| l.parse().ok());
                let length: usize = length.ok_or_else(|| wrong(&self.answer))?;
                self.answer.resize(length + 2, 0);
                self.input.read_exact(&mut self.answer)
            }
            _ => Err(wrong(&self.answer)),
        }
    }

    /// Waits until the child that saves has ended well.
    fn await_snapshot(&mut self) -> io::Result<()> {
        loop {
            let info = String::from_utf8_lossy(self.ask(&[b"INFO", b"persistence"])?).into_owned();
            let field = |name: &str| info.lines().find_map(|line| line.strip_prefix(name));
            match (field("rdb_bgsave_in_progress:"), field("rdb_last_bgsave_status:")) {
                (Some("1"), _) => std::thread::sleep(Duration::from_millis(10)),
                (Some("0"), Some("ok")) => return Ok(()),
                _ => return Err(io::Error::other(format!("redis-server did not save: {info}"))),
            }
        }
    }
}

fn wrong(answer: &[u8]) -> io::Error {
    io::Error::other(format!("redis-server answered {:?}", String::from_utf8_lossy(answer)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Older ones do not start with an option that they do not know.
    #[test]
    fn a_server_is_asked_to_leave_huge_pages_alone_if_it_would_not() {
        let said = |version: &str| format!("Redis server v={version} sha=00000000:0 bits=64");
        assert!(turns_huge_pages_off(&said("7.0.15")));
        assert!(turns_huge_pages_off(&said("6.2.0")));
        assert!(!turns_huge_pages_off(&said("6.0.16")));
        assert!(!turns_huge_pages_off("something else"));
    }
}
