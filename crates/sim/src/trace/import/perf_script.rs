//! `perf script`: a sample a line, with the frames of its call chain below it.
//!
//! ```text
//! comm  pid/tid [cpu] time: period event: addr data_src weight ip sym (dso)
//!         ip sym (dso)
//! ```
//!
//! Any of the fields may be missing (`-F`), but they always stand in this order.
//! An address is what stands behind the event's name, or, without one, behind the
//! time; a lone one there, followed by a symbol, is the instruction's, unless the
//! instruction stands in the frames below. A line that is one address alone comes
//! from `-F addr`. What kind of access it is says `data_src`, else a word of the
//! event's name.

use std::collections::HashMap;
use std::io::Read;
use std::path::{Path, PathBuf};

use terrace_core::Access as Kind;

use super::lines::{Line, Lines};
use super::making::Checks;
use super::{BATCH, Importer, bad, bad_line};
use crate::error::SimError;
use crate::exact::{Access, Batch};
use crate::trace::summary::{Fate, Notes};

/// Reads what `perf script` printed.
pub(super) struct PerfScript<R> {
    lines: Lines<R>,
    file: PathBuf,
    checks: Checks,
    /// Threads by the order in which they came.
    threads: HashMap<u64, u32>,
    /// A sample that waits for the line below it: its line, and itself.
    waiting: Option<(u64, Sample)>,
    /// An access of another thread, with which the next batch begins.
    next: Option<(u32, Access)>,
    counts: Counts,
    ended: bool,
}

#[derive(Debug, Default)]
struct Counts {
    samples: u64,
    accesses: u64,
    /// Samples with no address but the instruction's, and others without one.
    instructions: u64,
    nowhere: u64,
    /// Samples that are neither loads nor stores (`OP N/A`, prefetches).
    others: u64,
    /// Samples whose kind nothing tells.
    untold: u64,
    frames: u64,
    timed: u64,
}

/// What kind of access it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    Access(Kind),
    /// Neither a load nor a store.
    Neither,
    /// Nothing tells.
    Untold,
}

/// Where an address may stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// The address of the data.
    Data(u64),
    /// The only address, and a symbol behind it: the instruction's, unless that is
    /// in the frames below.
    Alone(u64),
    /// There is none.
    Nowhere,
}

/// A sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sample {
    thread: Option<u64>,
    place: Place,
    told: Told,
    timed: bool,
}

/// What a line is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Sample(Sample),
    /// An instruction of a call chain.
    Frame,
    /// Of `-F addr`, or a frame without its symbol.
    Lone(u64),
}

/// Digits of a hexadecimal number as perf prints it.
fn hex(word: &str) -> Option<u64> {
    let lower = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    let is_hex = !word.is_empty() && word.len() <= 16 && word.bytes().all(lower);
    is_hex.then(|| u64::from_str_radix(word, 16).ok()).flatten()
}

fn is_decimal(word: &str) -> bool {
    !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit())
}

/// Whether a word is an address like the one before it, and no symbol. A function may be called
/// `add` or `f1`, but no symbol begins with a digit, and perf sets addresses right in 16 columns.
fn is_second_address(before: &str, word: &str) -> bool {
    let columns = (word.as_ptr().addr() + word.len()) - (before.as_ptr().addr() + before.len());
    let is_set_right = columns > 16;
    hex(word).is_some() && (is_set_right || word.starts_with(|c: char| c.is_ascii_digit()))
}

/// `12.000001:`.
fn is_time(word: &str) -> bool {
    let parts = word.strip_suffix(':').and_then(|word| word.split_once('.'));
    parts.is_some_and(|(whole, part)| is_decimal(whole) && is_decimal(part))
}

/// The thread of `4711/4712` or `4712`.
fn thread(word: &str) -> Option<u64> {
    let tid = word.split_once('/').map_or(word, |(_, tid)| tid);
    let pid = word.split_once('/').map_or(word, |(pid, _)| pid);
    (is_decimal(pid) && is_decimal(tid)).then(|| tid.parse().ok()).flatten()
}

/// What `data_src` says: `|OP LOAD|LVL L3 hit|…`.
fn operation(text: &str) -> Option<Told> {
    let (_, text) = text.split_once("|OP ")?;
    let told = match text.split('|').next().unwrap_or(text).trim() {
        "LOAD" => Told::Access(Kind::Read),
        "STORE" => Told::Access(Kind::Write),
        _ => Told::Neither,
    };
    Some(told)
}

/// The columns behind the event's name; nothing where no address begins them.
fn columns(text: &str) -> Option<(Place, Option<Told>)> {
    let mut words = text.split_whitespace();
    let Some(first) = words.next() else { return Some((Place::Nowhere, None)) };
    let address = hex(first)?;
    let (second, third) = (words.next(), words.next());
    let told = operation(text);
    let place = match (second, third) {
        (None, _) => Place::Data(address),
        // `data_src` alone.
        (Some(second), _) if second.starts_with('|') => Place::Nowhere,
        _ if has_second_location(text) => Place::Data(address),
        // What a file's name follows is a symbol.
        (_, Some(third)) if third.starts_with('(') => Place::Alone(address),
        // `data_src` as a number and in words.
        (Some(second), Some(third)) if hex(second).is_some() && third.starts_with('|') => {
            Place::Data(address)
        }
        (Some(second), _) if is_second_address(first, second) => Place::Data(address),
        _ => Place::Alone(address),
    };
    Some((place, told))
}

/// Whether a location, `7f00 sym (dso)`, is followed by another one.
fn has_second_location(text: &str) -> bool {
    text.match_indices(") ").any(|(at, _)| {
        let mut words = text[at + 1..].split_whitespace();
        words.next().is_some_and(|word| hex(word).is_some()) && words.next().is_some()
    })
}

/// What an event's name says: `mem-stores`, `mem_inst_retired.all_stores`, `cpu/mem-loads,ldlat=30/P`.
/// Whole words alone say it: `upload` loads nothing, and `restore` stores nothing.
fn told_by(event: &str) -> Told {
    let has = |kind: [&str; 2]| {
        let mut words = event.split(|c: char| !c.is_ascii_alphanumeric());
        words.any(|word| kind.iter().any(|known| word.eq_ignore_ascii_case(known)))
    };
    match (has(["load", "loads"]), has(["store", "stores"])) {
        (true, false) => Told::Access(Kind::Read),
        (false, true) => Told::Access(Kind::Write),
        _ => Told::Untold,
    }
}

fn parse(line: &str) -> Option<What> {
    // Words, with where each ends.
    let begin = line.as_ptr().addr();
    let words: Vec<(&str, usize)> = line
        .split_whitespace()
        .map(|word| (word, word.as_ptr().addr() - begin + word.len()))
        .collect();
    let time = words.iter().rposition(|(word, _)| is_time(word));
    let before = |at: usize| {
        let mut words = words[..at].iter().rev().map(|(word, _)| *word);
        let is_cpu = |word: &str| word.starts_with('[') && word.ends_with(']');
        words.find(|word| !is_cpu(word)).and_then(thread)
    };
    let from = time.map_or(0, |time| time + 1);
    let event = words[from..].iter().find_map(|&(word, end)| {
        let event = word.strip_suffix(':').filter(|event| !event.is_empty())?;
        columns(&line[end..]).map(|columns| (event, columns))
    });
    if let Some((event, (place, told))) = event {
        return Some(What::Sample(Sample {
            thread: time.and_then(before),
            place,
            told: told.unwrap_or_else(|| told_by(event)),
            timed: time.is_some(),
        }));
    }
    if let Some(time) = time {
        // Without an event's name, or with fields of a tracepoint behind it.
        let rest = &line[words[time].1..];
        let named = words[from..].iter().any(|(word, _)| word.ends_with(':'));
        let (place, told) = columns(rest).filter(|_| !named).unwrap_or((Place::Nowhere, None));
        return Some(What::Sample(Sample {
            thread: before(time),
            place,
            told: told.unwrap_or(Told::Untold),
            timed: true,
        }));
    }
    let address = hex(words.first()?.0);
    match (address, words.len()) {
        (Some(address), 1) => Some(What::Lone(address)),
        (Some(_), _) => Some(What::Frame),
        // Some other event: `sched:sched_switch: prev_comm=…`.
        (None, _) if words.iter().any(|(word, _)| word.ends_with(':')) => {
            let place = Place::Nowhere;
            Some(What::Sample(Sample { thread: None, place, told: Told::Untold, timed: false }))
        }
        _ => None,
    }
}

impl<R: Read> PerfScript<R> {
    /// Begins to read; `file` is for errors.
    pub(super) fn new(from: R, file: &Path) -> Self {
        Self {
            lines: Lines::new(from),
            file: file.to_owned(),
            checks: Checks::default(),
            threads: HashMap::new(),
            waiting: None,
            next: None,
            counts: Counts::default(),
            ended: false,
        }
    }

    /// Reads a line and what it makes of the samples before; false at the end.
    fn advance(&mut self, batch: &mut Batch) -> Result<bool, SimError> {
        let what = match self.lines.next() {
            Ok(Some(Line::Whole(line))) => {
                let line = line.trim_end();
                // An empty line ends a call chain.
                if line.is_empty() || line.starts_with('#') { None } else { Some(parse(line)) }
            }
            Ok(Some(Line::Long)) => Some(None),
            Ok(None) => {
                self.ended = true;
                None
            }
            Err(e) => return Err(bad(&self.file, self.counts.accesses, e.to_string()).into()),
        };
        let what = match what {
            None => None,
            Some(Some(what)) => Some(what),
            Some(None) => {
                let what = "is no line of `perf script`".to_owned();
                return Err(self.bad(self.lines.number(), what));
            }
        };
        let is_frame = match what {
            Some(What::Frame) => true,
            Some(What::Lone(_)) => self.counts.samples > 0,
            _ => false,
        };
        if let Some((line, mut sample)) = self.waiting.take() {
            match sample.place {
                Place::Alone(address) if is_frame => {
                    sample.place = Place::Data(address);
                    self.sample(line, sample, batch)?;
                }
                _ => self.counts.instructions += 1,
            }
        }
        match what {
            _ if is_frame => self.counts.frames += 1,
            Some(What::Sample(sample)) => {
                self.counts.samples += 1;
                self.counts.timed += u64::from(sample.timed);
                if matches!(sample.place, Place::Alone(_)) {
                    self.waiting = Some((self.lines.number(), sample));
                } else {
                    self.sample(self.lines.number(), sample, batch)?;
                }
            }
            Some(What::Lone(address)) => {
                let place = Place::Data(address);
                let sample = Sample { thread: None, place, told: Told::Untold, timed: false };
                self.sample(self.lines.number(), sample, batch)?;
            }
            _ => {}
        }
        Ok(!self.ended)
    }

    fn sample(&mut self, line: u64, sample: Sample, batch: &mut Batch) -> Result<(), SimError> {
        let address = match sample.place {
            Place::Data(address) if address != 0 => address,
            _ => {
                self.counts.nowhere += 1;
                return Ok(());
            }
        };
        let kind = match sample.told {
            Told::Access(kind) => kind,
            Told::Untold => {
                self.counts.untold += 1;
                Kind::Read
            }
            Told::Neither => {
                self.counts.others += 1;
                return Ok(());
            }
        };
        let address = self.checks.address(address).map_err(|what| self.bad(line, what))?;
        // Samples do not say how large an access is.
        let access = Access::new(address, 8, kind);
        let count = self.threads.len() as u32;
        let thread = sample.thread.map_or(0, |thread| *self.threads.entry(thread).or_insert(count));
        self.counts.accesses += 1;
        if batch.accesses.is_empty() {
            batch.thread = thread;
        }
        if batch.thread == thread {
            batch.accesses.push(access);
        } else {
            // A batch is of one thread.
            self.next = Some((thread, access));
        }
        Ok(())
    }

    fn bad(&self, line: u64, what: String) -> SimError {
        bad_line(&self.file, line, self.counts.accesses, what)
    }
}

impl<R: Read> Importer for PerfScript<R> {
    fn describe(&self) -> String {
        self.file.display().to_string()
    }

    fn next(&mut self, batch: &mut Batch) -> Result<bool, SimError> {
        batch.clear();
        if let Some((thread, access)) = self.next.take() {
            batch.thread = thread;
            batch.accesses.push(access);
        }
        while batch.accesses.len() < BATCH && self.next.is_none() && !self.ended {
            self.advance(batch)?;
        }
        Ok(!batch.accesses.is_empty())
    }

    fn tell(&self, notes: &mut Notes) {
        let counts = &self.counts;
        notes.counted(
            Fate::Skipped,
            counts.instructions,
            "samples with an instruction's address only",
        );
        notes.counted(Fate::Skipped, counts.nowhere, "samples without an address");
        notes.counted(Fate::Skipped, counts.others, "samples of neither loads nor stores");
        notes.counted(Fate::Skipped, counts.frames, "frames of call chains");
        let untold = "samples that do not say what kind of access they are into loads";
        notes.counted(Fate::Folded, counts.untold, untold);
        notes.whole(Fate::Dropped, counts.timed > 0, "times between samples");
        self.checks.tell(notes);
    }

    fn nothing(&self) -> String {
        let Counts { samples, instructions, nowhere, others, frames, .. } = self.counts;
        if samples == 0 && frames > 0 {
            return "has neither an event's name nor a time before its addresses: print with \
                    `perf script -F +addr`"
                .to_owned();
        }
        if instructions + nowhere > 0 {
            return format!(
                "not one of its {samples} samples has an address of data, {instructions} of them \
                 only an instruction's: record with `perf record -d` (or `perf mem record`), and \
                 print with `perf script -F +addr`"
            );
        }
        format!("holds no sample of a load or store ({others} of other kinds)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Thread, address, and whether it is a store.
    type Found = (u32, u64, bool);

    fn read(text: &str) -> Result<(Vec<Found>, String), String> {
        let mut source = PerfScript::new(text.as_bytes(), Path::new("some.perf"));
        let (mut batch, mut all) = (Batch::default(), Vec::new());
        while source.next(&mut batch).map_err(|e| e.to_string())? {
            let thread = batch.thread;
            all.extend(batch.accesses.iter().map(|a| (thread, a.address(), a.is_store())));
        }
        let mut notes = Notes::default();
        source.tell(&mut notes);
        let notes: Vec<String> = notes.into_vec().iter().map(ToString::to_string).collect();
        Ok((all, notes.join("; ")))
    }

    fn accesses(text: &str) -> Vec<Found> {
        read(text).expect("lines of perf script").0
    }

    #[test]
    fn the_address_is_what_stands_in_its_column() {
        for (line, address) in [
            ("7ffd12345678", 0x7ffd_1234_5678),
            ("                3e20", 0x3e20),
            ("cpu/mem-loads/P:     7ffd12345678", 0x7ffd_1234_5678),
            (
                "tmux: server  cpu/mem-loads/P:     7ffd12345678     55d0 f+0x1 (/bin/a)",
                0x7ffd_1234_5678,
            ),
            ("app 1 1.5: 7ffd12345678", 0x7ffd_1234_5678),
            // Of `-F addr,ip`: the second is set right, or begins as no symbol can.
            ("app 1 1.5: mem-loads:  7ffd12345678           401136", 0x7ffd_1234_5678),
            ("app 1 1.5: mem-loads:  7ffd12345678           a01136", 0x7ffd_1234_5678),
            ("app 1 1.5: mem-loads:  7ffd12345678 ffffffff81a01136", 0x7ffd_1234_5678),
            ("app 1 1.5: mem-loads: 3e20 401136", 0x3e20),
            ("app 1 1.5: mem-loads: 3e20 e8100142 |OP LOAD|LVL L1 hit|", 0x3e20),
            ("app 1 1.5: 4096 cycles:u: 3e20 401136 main+0x16 (/bin/app)", 0x3e20),
            ("beef 1/2 [3] 1.5: e: 3e20 dead (/a) 401136 add (/bin/app)", 0x3e20),
            (
                "app 1 1.5: page-faults: 3e20 [unknown] (//anon) 401136 f(int, int)+0x1 (/a b)",
                0x3e20,
            ),
        ] {
            let found = accesses(line);
            assert_eq!(found.iter().map(|a| a.1).collect::<Vec<_>>(), [address], "{line}");
        }
    }

    #[test]
    fn an_instruction_is_no_access() {
        for line in [
            "app 1 1.5: page-faults:      401136 main+0x16 (/bin/app)",
            "app 1 1.5: page-faults:      401136 add (/bin/app)",
            // Of `-F ip,sym`: a symbol of hexadecimal digits is no second address.
            "app 1 1.5: cycles:u:           401136 add",
            "app 1 1.5: cycles:u:           401136 f1",
            "app 1 1.5:           401136 add",
            "app 1 1.5: page-faults:      401136 std::f<int (*)(long)>(int const&)+0x2 (/bin/app)",
            "app 1 1.5: cpu/mem-loads/P:  68100142 |OP LOAD|LVL L1 hit|",
            "app 1 1.5: sched:sched_switch: prev_comm=a prev_pid=1",
            "app 1 1.5: cpu/mem-loads/P:  0     401136 main+0x16 (/bin/app)",
        ] {
            assert_eq!(accesses(line), [], "{line}");
        }
        // The frames below have it, so that the first address is the data's.
        let text =
            "app 1 1.5: page-faults:  7ffd00001000 [unknown] (//anon)\n\t  401136 main (/a)\n\n";
        assert_eq!(accesses(text), [(0, 0x7ffd_0000_1000, false)]);
    }

    #[test]
    fn the_kind_is_the_column_s_and_not_a_word_s() {
        let line = |event: &str, source: &str, symbol: &str| {
            format!("restored 1 1.5: {event}: 7f0010 {source} 401136 {symbol}+0x1 (/opt/store)\n")
        };
        let store = |event, source, symbol| accesses(&line(event, source, symbol))[0].2;
        assert!(!store("cpu/mem-loads/P", "", "store"));
        assert!(store("cpu/mem-stores/P", "", "load"));
        assert!(!store("ibs_op//", "68 |OP LOAD|LVL L1 hit|", "store"));
        assert!(store("mem-loads", "68 |OP STORE|LVL L1 hit|", "f"), "data_src comes first");
        assert!(accesses(&line("ibs_op//", "68 |OP N/A|LVL N/A|", "f")).is_empty());
    }

    #[test]
    fn the_kind_is_a_whole_word_of_the_event_s_name() {
        let load = Told::Access(Kind::Read);
        let store = Told::Access(Kind::Write);
        for (event, told) in [
            ("mem-loads", load),
            ("mem-stores:u", store),
            ("cpu/mem-loads,ldlat=30/P", load),
            ("cpu_core/mem-stores/ppp", store),
            ("dTLB-load-misses", load),
            ("L1-dcache-stores", store),
            ("mem_load_retired.l3_miss", load),
            ("mem_inst_retired.all_stores", store),
            ("MEM_UOPS_RETIRED:ALL_LOADS", load),
            ("restore_regs", Told::Untold),
            ("restores", Told::Untold),
            ("uploads", Told::Untold),
            ("download.done", Told::Untold),
            ("storefront", Told::Untold),
            ("cycles", Told::Untold),
            ("arm_spe/load_filter=1,store_filter=1/", Told::Untold),
        ] {
            assert_eq!(told_by(event), told, "{event}");
        }
    }

    #[test]
    fn a_file_with_instructions_alone_is_refused_with_what_helps() {
        let line = |n: u32| format!("app  100 1.00000{n}: cycles:u:           40113{n} add\n");
        let text: String = (0..5).map(line).collect();
        let mut source = PerfScript::new(text.as_bytes(), Path::new("some.perf"));
        assert!(!source.next(&mut Batch::default()).expect("lines of perf script"));
        let nothing = source.nothing();
        assert!(nothing.contains("5 of them only an instruction's"), "{nothing}");
        assert!(nothing.contains("perf script -F +addr"), "{nothing}");
    }

    #[test]
    fn threads_are_kept_and_everything_else_is_told() {
        let text = "# header\n\
            a 10/11 [000] 1.0: mem-loads: ffff888000001000 5 |OP LOAD|\n\
            \t 401136 main (/a)\n\n\
            b 12 [000] 1.1: mem-stores: 2000\n\
            a 10/11 [001] 1.2: cycles: 3000\n";
        let (found, notes) = read(text).expect("good");
        let expected = [(0, 0x8880_0000_1000, false), (1, 0x2000, true), (0, 0x3000, false)];
        assert_eq!(found, expected);
        for note in ["skipped 1 frames", "folded 1 samples that do not say", "kernel", "times"] {
            assert!(notes.contains(note), "{note}: {notes}");
        }
        let error = read("a 1 1.0: mem-loads: 10\nfrom another tool\n").expect_err("refused");
        assert!(error.starts_with("some.perf:2: is no line"), "{error}");
        let error = read("e: 12345678abcd0000\n").expect_err("refused");
        assert!(error.starts_with("some.perf:1: ") && error.contains("48 bits"), "{error}");
    }
}
