//! Programs run on a memory that loses power in front of every fence, in every state that it can
//! be left in.

use std::sync::{Arc, Condvar, Mutex};

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};
use terrace_core::outcomes;
use terrace_volume::pm::simulated::{Event, Simulated};
use terrace_volume::{
    Cpu, Fault, Lane, Mount, Pm, SectorSize, Superblock, Volume, VolumeError, create,
};

use crate::history::History;

pub(crate) const SECTORS: u64 = 3;
const SIZE: usize = 512;

/// A step of a program.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Op {
    Write {
        lba: u64,
        count: u64,
        fua: bool,
    },
    Zero {
        lba: u64,
        count: u64,
        fua: bool,
    },
    Flush,
    Read {
        lba: u64,
    },
    /// So many events later the process is killed; then it mounts again. For one thread alone.
    Kill {
        events: u64,
    },
}

/// How a program is tried.
#[derive(Clone, Debug)]
pub(crate) struct Trial {
    /// The steps of each thread.
    pub(crate) threads: Vec<Vec<Op>>,
    pub(crate) fault: Option<Fault>,
    pub(crate) grouped: bool,
    /// Spare blocks for each lane. It writes half as many sectors between two fences.
    pub(crate) spare: u64,
    /// Whether blocks hold zeros at first. Then few words of a write differ from what is there,
    /// and all states can be tried.
    pub(crate) clean: bool,
    /// States at each point.
    pub(crate) budget: usize,
    pub(crate) seed: u64,
}

/// What was tried.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tried {
    pub(crate) images: u64,
    /// Points of which all states were tried.
    pub(crate) exhausted: u64,
    pub(crate) sampled: u64,
}

fn layout(spare: u64) -> Superblock {
    let blocks = SECTORS + spare;
    Superblock {
        uuid: uuid_of(1),
        sector: SectorSize::B512,
        sectors: SECTORS,
        blocks,
        map: 4096,
        data: 8192,
        total: 8192 + (blocks * 512).next_multiple_of(4096) + 4096,
        generation: 1,
    }
}

pub(crate) fn uuid_of(number: u8) -> uuid::Uuid {
    uuid::Uuid::from_bytes([number; 16])
}

/// A sector with a value: its first words, one in the middle, and its last.
fn sector(value: u64) -> [u8; SIZE] {
    let mut bytes = [0; SIZE];
    for word in [0, 1, 31, 63] {
        bytes[word * 8..][..8].copy_from_slice(&value.to_le_bytes());
    }
    bytes
}

fn value_of(bytes: &[u8]) -> Result<u64, String> {
    let value = u64::from_le_bytes(*bytes.first_chunk().unwrap());
    if bytes == sector(value) { Ok(value) } else { Err(format!("torn: {}", words(bytes))) }
}

fn words(bytes: &[u8]) -> String {
    let word = |word: usize| u64::from_le_bytes(*bytes[word * 8..].first_chunk().unwrap());
    format!("words 0, 1, 31, 63 are {:x} {:x} {:x} {:x}", word(0), word(1), word(31), word(63))
}

struct Shared {
    random: Xoshiro256PlusPlus,
    history: History,
    tried: Tried,
    wrong: Option<String>,
    budget: usize,
    /// Whose turn it is, and who has not ended.
    turn: usize,
    alive: Vec<bool>,
    /// Events until the process is killed.
    kill_in: Option<u64>,
    values: u64,
}

struct World {
    shared: Mutex<Shared>,
    turns: Condvar,
}

thread_local! {
    static ME: std::cell::Cell<Option<usize>> = const { std::cell::Cell::new(None) };
}

impl World {
    /// Lets a random thread go on, and returns when it is this one's turn.
    fn yield_now(&self, me: usize) {
        let mut shared = self.shared.lock().unwrap();
        if shared.alive.len() == 1 {
            return;
        }
        pass_on(&mut shared);
        self.turns.notify_all();
        drop(self.turns.wait_while(shared, |shared| shared.turn != me).unwrap());
    }

    fn ends(&self, me: usize) {
        let mut shared = self.shared.lock().unwrap();
        shared.alive[me] = false;
        pass_on(&mut shared);
        self.turns.notify_all();
    }

    fn event(&self, medium: &Simulated, event: Event) -> terrace_volume::Result {
        let Some(me) = ME.get() else { return Ok(()) };
        self.yield_now(me);
        let mut shared = self.shared.lock().unwrap();
        if event == Event::Fence {
            shared.explore(medium);
        }
        if let Some(left) = shared.kill_in {
            shared.kill_in = Some(left.saturating_sub(1));
            if left == 0 {
                return Err(VolumeError::PowerFailure);
            }
        }
        Ok(())
    }
}

fn pass_on(shared: &mut Shared) {
    let alive: Vec<usize> = (0..shared.alive.len()).filter(|i| shared.alive[*i]).collect();
    if !alive.is_empty() {
        shared.turn = alive[(shared.random.next_u64() % alive.len() as u64) as usize];
    }
}

impl Shared {
    /// The power fails now, in every way.
    fn explore(&mut self, medium: &Simulated) {
        if self.wrong.is_some() {
            return;
        }
        let choices = medium.choices();
        let all = choices.iter().try_fold(1usize, |n, c| n.checked_mul(*c));
        if all.is_some_and(|all| all <= self.budget) {
            self.tried.exhausted += 1;
        } else {
            self.tried.sampled += 1;
        }
        let states = outcomes(&choices, self.budget, || self.random.next_u64());
        for (i, state) in states.iter().enumerate() {
            self.tried.images += 1;
            // Every tenth goes on, and loses power once more.
            let goes_on = i % 10 == 0;
            let image = medium.after_failure(state);
            if let Err(wrong) = check(&image, &self.history, goes_on, &mut self.tried) {
                self.wrong = Some(format!("{wrong}; durable stores by group: {state:?}"));
                return;
            }
        }
    }
}

fn mount(medium: Simulated, lanes: usize) -> Result<Volume<Simulated>, String> {
    let how = Mount { read_only: false, lanes: Some(lanes) };
    Volume::mount(medium, how).map_err(|e| format!("the mount fails: {e}"))
}

fn read(volume: &Volume<Simulated>, lba: u64) -> Result<u64, String> {
    let mut bytes = [0; SIZE];
    volume.read(lba, &mut bytes).map_err(|e| format!("sector {lba}: {e}"))?;
    value_of(&bytes).map_err(|e| format!("sector {lba} is {e}"))
}

/// Mounts what is left, and looks whether each sector holds what it may.
fn check(
    image: &Simulated,
    history: &History,
    goes_on: bool,
    tried: &mut Tried,
) -> Result<(), String> {
    let volume = mount(image.clone(), 1)?;
    let mut found = Vec::new();
    for lba in 0..history.sectors() {
        let value = read(&volume, lba)?;
        let may = history.may_hold(lba);
        if !may.contains(&value) {
            return Err(format!("sector {lba} holds {value:x}, and may hold {may:x?}"));
        }
        found.push(value);
    }
    if !goes_on {
        return Ok(());
    }
    let mut lane = volume.lane().map_err(|e| e.to_string())?;
    for (lba, value) in found.iter_mut().enumerate() {
        let new = 0xabc0 + lba as u64;
        lane.write(lba as u64, &sector(new), false).map_err(|e| format!("a write after: {e}"))?;
        for state in outcomes(&image.choices(), 6, || 0x5851_f42d) {
            tried.images += 1;
            let again = mount(image.after_failure(&state), 1)?;
            let now = read(&again, lba as u64)?;
            if now != *value && now != new {
                return Err(format!("after a second failure sector {lba} holds {now:x}"));
            }
        }
        *value = new;
    }
    lane.flush().map_err(|e| e.to_string())?;
    let nothing = vec![0; image.choices().len()];
    let again = mount(image.after_failure(&nothing), 1)?;
    for (lba, value) in found.iter().enumerate() {
        if read(&again, lba as u64)? != *value {
            return Err(format!("after a second failure flushed sector {lba} is lost"));
        }
    }
    Ok(())
}

/// Makes a volume that is to be crashed.
fn prepared(trial: &Trial, lanes: u64) -> Simulated {
    let layout = layout(lanes * trial.spare);
    let medium = Simulated::new(layout.total).with_faults(trial.fault);
    let medium = if trial.grouped { medium.grouped() } else { medium };
    create(&medium, &layout, false).unwrap();
    if trial.clean {
        medium.write(Cpu(0), layout.data, &vec![0; layout.blocks as usize * SIZE]).unwrap();
        medium.fence(Cpu(0)).unwrap();
    }
    medium
}

/// Runs a program, crashing it everywhere; says what was wrong.
pub(crate) fn run(trial: &Trial) -> (Tried, Option<String>) {
    let threads = trial.threads.len();
    let world = Arc::new(World {
        shared: Mutex::new(Shared {
            random: Xoshiro256PlusPlus::seed_from_u64(trial.seed),
            history: History::new(SECTORS),
            tried: Tried::default(),
            wrong: None,
            budget: trial.budget,
            turn: 0,
            alive: vec![true; threads],
            kill_in: None,
            values: 0x100,
        }),
        turns: Condvar::new(),
    });
    let hooked = Arc::clone(&world);
    let medium = prepared(trial, threads as u64)
        .with_hook(Arc::new(move |medium, _, event| hooked.event(medium, event)));
    let mut volume = Some(mount(medium.clone(), threads).unwrap());
    let mut left: Vec<&[Op]> = trial.threads.iter().map(Vec::as_slice).collect();
    while let Some(mounted) = volume.take() {
        let killed = std::thread::scope(|scope| {
            let mut running = Vec::new();
            for (me, left) in left.iter_mut().enumerate() {
                let (world, mounted) = (&world, &mounted);
                running.push(scope.spawn(move || {
                    ME.set(Some(me));
                    let shared = world.shared.lock().unwrap();
                    drop(world.turns.wait_while(shared, |shared| shared.turn != me).unwrap());
                    let mut lane = mounted.lane().unwrap();
                    let mut killed = false;
                    while let [op, rest @ ..] = left {
                        *left = rest;
                        if let Err(wrong) = step(world, &mut lane, *op) {
                            killed = matches!(wrong, VolumeError::PowerFailure);
                            if !killed {
                                let message = format!("{op:?}: {wrong}");
                                world.shared.lock().unwrap().wrong.get_or_insert(message);
                            }
                            break;
                        }
                    }
                    // Nothing more happens, and no lane is given back in good order.
                    ME.set(None);
                    std::mem::forget(lane);
                    if !killed {
                        world.ends(me);
                    }
                    killed
                }));
            }
            running.into_iter().any(|thread| thread.join().unwrap())
        });
        if killed {
            std::mem::forget(mounted);
            // Threads that were switched away from have passed a barrier.
            medium.fence_all(Cpu(0)).unwrap();
            let mut shared = world.shared.lock().unwrap();
            shared.history.killed(trial.grouped);
            shared.kill_in = None;
            drop(shared);
            volume = Some(mount(medium.clone(), threads).unwrap());
        }
    }
    let mut shared = world.shared.lock().unwrap();
    shared.explore(&medium);
    (shared.tried, shared.wrong.clone())
}

fn step(world: &World, lane: &mut Lane<Simulated>, op: Op) -> terrace_volume::Result {
    let shared = || world.shared.lock().unwrap();
    match op {
        Op::Write { lba, count, fua } => {
            let (ticket, bytes) = {
                let mut shared = shared();
                let values: Vec<u64> = (1..=count).map(|i| shared.values + i).collect();
                shared.values += count;
                (
                    shared.history.begin(lba, &values),
                    values.into_iter().flat_map(sector).collect::<Vec<_>>(),
                )
            };
            lane.write(lba, &bytes, fua)?;
            shared().history.end(&ticket, fua);
        }
        Op::Zero { lba, count, fua } => {
            let ticket = shared().history.begin(lba, &vec![0; count as usize]);
            lane.zero(lba, count, fua)?;
            shared().history.end(&ticket, fua);
        }
        Op::Flush => {
            let began = shared().history.flush_begins();
            lane.flush()?;
            shared().history.flush_ends(began);
        }
        Op::Read { lba } => {
            let mut bytes = [0; SIZE];
            lane.volume().read(lba, &mut bytes)?;
            if let Err(torn) = value_of(&bytes) {
                shared().wrong.get_or_insert(format!("a read of sector {lba} is {torn}"));
            }
        }
        Op::Kill { events } => shared().kill_in = Some(events),
    }
    Ok(())
}

/// A random program of so many threads.
pub(crate) fn random_threads(threads: usize, steps: usize, seed: u64) -> Vec<Vec<Op>> {
    let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
    let mut below = |n: u64| random.next_u64() % n;
    let mut thread = || {
        let mut step = || {
            let lba = below(SECTORS);
            let count = 1 + below(SECTORS - lba).min(below(3));
            let fua = below(4) == 0;
            match below(10) {
                0..5 => Op::Write { lba, count, fua },
                5 => Op::Zero { lba, count, fua },
                6..8 => Op::Flush,
                8 if threads == 1 => Op::Kill { events: below(8) },
                _ => Op::Read { lba },
            }
        };
        (0..steps).map(|_| step()).collect()
    };
    (0..threads).map(|_| thread()).collect()
}
