//! Small programs whose every crash is tried, and what they must find after it.

use core::fmt;
use std::collections::BTreeMap;

use rand_xoshiro::rand_core::Rng;

use crate::pmem::{LINE, Persist};
use crate::system::{Area, Context, Home, System};

/// One step of a program. Pages are small numbers; see [`Op::page`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Maps an area over whatever is there.
    Map(u64, u64),
    /// The same in DRAM.
    MapDram(u64, u64),
    /// Unmaps a range.
    Unmap(u64, u64),
    /// Makes a range read-only, or writable again.
    Protect(u64, u64, bool),
    /// Moves a range.
    Move(u64, u64, u64),
    /// Stores a value to a page's first line.
    Store(u64, u64),
    /// Stores a value to another of a page's lines.
    StoreLine(u64, u64, u64),
    /// Sets a register of a thread, which is created if need be.
    Register(usize, usize, u64),
    /// Moves a file's position.
    File(usize, u64),
    /// The scheme's thread in the background works.
    Background,
    /// A checkpoint.
    Checkpoint,
}

/// Lines of a page that programs store to.
const LINES: u64 = 64;

/// Where a line's value is kept in the model.
fn cell(page: u64, line: u64) -> u64 {
    page * LINES + line
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Map(page, pages) => write!(f, "map {page} {pages}"),
            Self::MapDram(page, pages) => write!(f, "map {page} {pages} dram"),
            Self::Unmap(page, pages) => write!(f, "unmap {page} {pages}"),
            Self::Protect(page, pages, true) => write!(f, "protect {page} {pages} rw"),
            Self::Protect(page, pages, false) => write!(f, "protect {page} {pages} r"),
            Self::Move(page, pages, to) => write!(f, "move {page} {pages} {to}"),
            Self::Store(page, value) => write!(f, "store {page} {value}"),
            Self::StoreLine(page, line, value) => write!(f, "store {page} {value} {line}"),
            Self::Register(thread, register, value) => {
                write!(f, "register {thread} {register} {value}")
            }
            Self::File(file, position) => write!(f, "file {file} {position}"),
            Self::Background => f.write_str("background"),
            Self::Checkpoint => f.write_str("checkpoint"),
        }
    }
}

impl Op {
    /// Where a page of a program lies: small numbers share a table of the last
    /// level, every sixteenth begins a table of its own, and every 64th is far
    /// away, so that tables of all levels are made and shared.
    pub fn page(page: u64) -> u64 {
        (page % 16) | (page / 16 % 4) << 9 | (page / 64) << 27
    }

    /// A random step, whose places collide often.
    pub fn random(random: &mut impl Rng, serial: u64) -> Self {
        let mut below = |n: u64| random.next_u64() % n;
        let page = [0, 4, 8, 14, 16, 64][below(6) as usize];
        match below(20) {
            0..=2 if below(4) == 0 => Self::MapDram(page, 1 + below(4)),
            0..=2 => Self::Map(page, 1 + below(4)),
            3 => Self::Unmap(page, 1 + below(4)),
            4 => Self::Protect(page, 1 + below(4), below(2) == 0),
            5 => Self::Move(page, 1 + below(3), [0, 4, 8, 16, 64][below(5) as usize]),
            6..=10 => Self::Store(page + below(4), 1000 + serial),
            11 => Self::Register(below(2) as usize, below(20) as usize, 2000 + serial),
            12 => Self::File(below(16) as usize, 3000 + serial),
            13..=14 => Self::StoreLine(page + below(4), 1 + below(3), 4000 + serial),
            15..=16 => Self::Background,
            _ => Self::Checkpoint,
        }
    }

    /// Parses one step as [`fmt::Display`] writes it.
    pub fn parse(text: &str) -> Option<Self> {
        let mut words = text.split_whitespace();
        let verb = words.next()?;
        let rights = text.ends_with(" rw");
        let dram = verb == "map" && text.ends_with(" dram");
        let flags: &[&str] = if dram { &["dram"] } else { &["r", "rw"] };
        let numbers: Vec<u64> = words
            .filter(|word| !flags.contains(word))
            .map(|word| word.parse::<u64>().ok().filter(|n| *n < 1 << 32))
            .collect::<Option<_>>()?;
        // A program is for enumerating; ranges beyond these would take forever.
        let range = |pages: u64| (1..=4096).contains(&pages);
        Some(match (verb, numbers.as_slice()) {
            ("map", &[page, pages]) if range(pages) && dram => Self::MapDram(page, pages),
            ("map", &[page, pages]) if range(pages) => Self::Map(page, pages),
            ("unmap", &[page, pages]) if range(pages) => Self::Unmap(page, pages),
            ("protect", &[page, pages]) if range(pages) => Self::Protect(page, pages, rights),
            ("move", &[page, pages, to]) if range(pages) => Self::Move(page, pages, to),
            ("store", &[page, value]) => Self::Store(page, value),
            ("register", &[thread, register, value]) if thread < 64 && register < 20 => {
                Self::Register(thread as usize, register as usize, value)
            }
            ("file", &[file, position]) if file < 16 => Self::File(file as usize, position),
            ("store", &[page, value, line]) if line < LINES => Self::StoreLine(page, line, value),
            ("background", []) => Self::Background,
            ("checkpoint", []) => Self::Checkpoint,
            _ => return None,
        })
    }
}

/// A line of a program that is not understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramError {
    /// The file, as the user named it.
    pub file: String,
    /// The line, counted from 1.
    pub line: usize,
    /// What stands there.
    pub text: String,
}

impl fmt::Display for ProgramError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, line, text } = self;
        write!(
            f,
            "{file}:{line}: `{text}` is no step; steps are `map PAGE PAGES [dram]`, `unmap PAGE PAGES`, \
             `protect PAGE PAGES r|rw`, `move PAGE PAGES TO`, `store PAGE VALUE [LINE]`, `register THREAD \
             REGISTER VALUE`, `file FILE POSITION`, `background`, `checkpoint`"
        )
    }
}

impl std::error::Error for ProgramError {}

/// Reads a program: a step a line; empty lines and lines with `#` are comments.
pub fn parse(file: &str, text: &str) -> Result<Vec<Op>, ProgramError> {
    text.lines()
        .enumerate()
        .map(|(i, line)| (i + 1, line.trim()))
        .filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
        .map(|(line, text)| {
            Op::parse(text).ok_or_else(|| ProgramError {
                file: file.to_owned(),
                line,
                text: text.chars().take(60).collect(),
            })
        })
        .collect()
}

/// A process's state as it must be found: context and value of each line that
/// was stored to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Snapshot {
    context: Context,
    /// By [`cell`].
    values: BTreeMap<u64, u64>,
}

/// What the program did so far, and what a failure may lead back to.
#[derive(Clone, Debug, Default)]
pub struct Model {
    values: BTreeMap<u64, u64>,
    /// The last complete checkpoint.
    last: Snapshot,
    /// Values stored since to each of its lines: most schemes do not roll data
    /// back.
    later: BTreeMap<u64, Vec<u64>>,
    /// Which page of the checkpoint each page is, wherever it was moved; pages
    /// that are new are missing. Pages, not cells.
    origin: BTreeMap<u64, u64>,
    /// The checkpoint that is being made.
    next: Option<Snapshot>,
}

impl Model {
    /// Pages that are gone: their lines' values, and which pages of the
    /// checkpoint they were.
    fn forget(&mut self, start: u64, pages: u64) -> [Vec<(u64, u64)>; 2] {
        let cells = cell(start, 0)..cell(start + pages, 0);
        let gone: Vec<(u64, u64)> = self.values.range(cells).map(|(c, v)| (*c, *v)).collect();
        for (cell, _) in &gone {
            self.values.remove(cell);
        }
        let origins: Vec<(u64, u64)> =
            self.origin.range(start..start + pages).map(|(p, o)| (*p, *o)).collect();
        for (page, _) in &origins {
            self.origin.remove(page);
        }
        [gone, origins]
    }

    fn begin_epoch(&mut self, snapshot: Snapshot) {
        self.later.clear();
        self.origin = pages_of(&snapshot.values).into_iter().map(|page| (page, page)).collect();
        self.last = snapshot;
        self.next = None;
    }

    /// A model of a system that was recovered and found correct.
    pub fn resumed(system: &mut System) -> Self {
        let (entries, _) = system.scheme.mappings(&mut system.nvm);
        let mut values = BTreeMap::new();
        for (page, _) in entries {
            for line in 0..CHECKED {
                let value = system.load_at(page, line * LINE).unwrap_or(0);
                values.insert(cell(page, line), value);
            }
        }
        let mut model = Self { values: values.clone(), ..Self::default() };
        model.begin_epoch(Snapshot { context: system.context.clone(), values });
        model
    }

    /// Compares a recovered system with what it must be.
    pub fn check(&self, system: &mut System) -> Result<(), String> {
        system.audit()?;
        let result = self.matches(system, &self.last, !system.scheme.keeps_data());
        match &self.next {
            // In the middle of a checkpoint, either may be found.
            Some(next) => self.matches(system, next, false).or(result),
            None => result,
        }
    }

    fn matches(&self, system: &mut System, expected: &Snapshot, later: bool) -> Result<(), String> {
        if system.context != expected.context {
            return Err(format!(
                "the context is that of no checkpoint that may be found: {:?}",
                system.context
            ));
        }
        let volatile = expected.context.areas.iter().filter(|area| area.home == Home::Dram);
        if let Some(page) = volatile
            .flat_map(|area| area.start..area.start + area.pages)
            .find(|page| system.load(*page).is_some())
        {
            return Err(format!("page {page:#x} lay in DRAM, and is there after a power failure"));
        }
        let (entries, _) = system.scheme.mappings(&mut system.nvm);
        let pages: Vec<u64> = entries.iter().map(|(page, _)| *page).collect();
        let wanted = pages_of(&expected.values);
        if pages != wanted {
            return Err(format!("pages {pages:x?} are mapped instead of {wanted:x?}"));
        }
        for page in wanted {
            for line in 0..CHECKED {
                let cell = cell(page, line);
                let value = expected.values.get(&cell).copied().unwrap_or(0);
                let found = system.load_at(page, line * LINE).unwrap_or(0);
                let stored = self.later.get(&cell).is_some_and(|values| values.contains(&found));
                if found != value && !(later && stored) {
                    return Err(format!(
                        "line {line} of page {page:#x} holds {found}, at the checkpoint it was {value}"
                    ));
                }
            }
        }
        Ok(())
    }

    fn store(&mut self, system: &mut System, page: u64, line: u64, value: u64) -> Persist {
        let page = Op::page(page);
        // Told to the model first: a failure in the middle may leave it behind.
        if let Some(origin) = self.origin.get(&page) {
            self.later.entry(cell(*origin, line)).or_default().push(value);
        }
        let stored = system.store_at(page, line * LINE, value)?;
        // What is in DRAM is not expected back.
        let lasts = system.context.areas.iter().any(|area| {
            area.home == Home::Nvm && (area.start..area.start + area.pages).contains(&page)
        });
        if stored && lasts {
            self.values.insert(cell(page, line), value);
        }
        Ok(())
    }
}

/// Lines of a page that are compared: random programs store to no others.
const CHECKED: u64 = 4;

/// The pages of some cells, in order.
fn pages_of(values: &BTreeMap<u64, u64>) -> Vec<u64> {
    let mut pages: Vec<u64> = values.keys().map(|cell| cell / LINES).collect();
    pages.dedup();
    pages
}

/// Takes one step, on the system and in the model.
pub fn step(system: &mut System, model: &mut Model, op: Op) -> Persist {
    match op {
        Op::Map(page, pages) => {
            let start = Op::page(page);
            model.forget(start, pages);
            system.map(Area::nvm(start, pages))
        }
        Op::MapDram(page, pages) => {
            let start = Op::page(page);
            model.forget(start, pages);
            system.map(Area::dram(start, pages))
        }
        Op::Unmap(page, pages) => {
            let start = Op::page(page);
            model.forget(start, pages);
            system.unmap(start, pages)
        }
        Op::Protect(page, pages, writable) => system.protect(Op::page(page), pages, writable),
        Op::Move(page, pages, to) => {
            let (start, to) = (Op::page(page), Op::page(to));
            if start < to + pages && to < start + pages {
                return Ok(());
            }
            model.forget(to, pages);
            let [values, origins] = model.forget(start, pages);
            for (from, value) in values {
                model.values.insert(from - cell(start, 0) + cell(to, 0), value);
            }
            for (page, origin) in origins {
                model.origin.insert(page - start + to, origin);
            }
            system.relocate(start, pages, to)
        }
        Op::Store(page, value) => model.store(system, page, 0, value),
        Op::StoreLine(page, line, value) => model.store(system, page, line, value),
        Op::Background => system.background(),
        Op::Register(thread, register, value) => {
            if system.context.threads.len() <= thread {
                system.context.threads.resize(thread + 1, [0; crate::system::REGISTERS]);
            }
            system.context.threads[thread][register] = value;
            Ok(())
        }
        Op::File(file, position) => {
            system.context.files[file] = position;
            Ok(())
        }
        Op::Checkpoint => {
            let snapshot =
                Snapshot { context: system.context.clone(), values: model.values.clone() };
            model.next = Some(snapshot.clone());
            system.checkpoint()?;
            model.begin_epoch(snapshot);
            Ok(())
        }
    }
}
