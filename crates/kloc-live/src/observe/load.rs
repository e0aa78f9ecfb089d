//! Programs in the kernel, and what they tell.

use std::collections::HashMap;

use aya::maps::{Array, HashMap as Table, Map, MapData, RingBuf};
use aya::programs::{BtfTracePoint, FEntry, FExit, Iter, ProgramError, RawTracePoint};
use aya::{Btf, Ebpf};
use terrace_core::{Bytes, Nanos};

use super::btf::Types;
use super::event::{FileEvent, Record, device_number};
use super::hooks::{Attach, Hook, HookSet, Hooks, Wanted, hooks};
use super::object_file::object_file;
use super::polls::{OpenFiles, Polls};
use super::programs::{Count, maps};

/// What was transferred for a file between two looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Transfers {
    /// How many.
    pub count: u64,
    /// How much.
    pub bytes: Bytes,
}

/// What files asked of the journal between two looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Journaled {
    /// Handles that were started for a file.
    pub handles: u64,
    /// Blocks that they asked for: no fewer than they changed.
    pub blocks: u64,
}

/// Names of a file in the kernel's cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Names {
    /// How many there are.
    pub count: u32,
    /// When they were counted.
    pub at: Nanos,
}

/// What entries of a table had at the last look.
///
/// Programs add to an entry at any time, so one that is read and removed loses what comes in between.
/// An entry that is in use therefore stays, and what is new of it is the difference.
#[derive(Debug, Default)]
struct Seen(HashMap<[u64; 2], [u64; 2]>);

impl Seen {
    /// What an entry had at the last look, if it has something else by now. Nothing if it has the same:
    /// then it can be removed, and begins anew when it comes again.
    fn before(&mut self, key: [u64; 2], now: [u64; 2]) -> Option<[u64; 2]> {
        let before = self.0.insert(key, now).unwrap_or_default();
        if now == before {
            self.0.remove(&key);
            return None;
        }
        Some(before)
    }
}

/// A device and an inode.
type FileNumber = (u64, u64);

/// A table of two numbers by device and inode, which programs write to.
struct FileTable {
    entries: Table<MapData, [u64; 2], [u64; 2]>,
    seen: Seen,
}

impl FileTable {
    /// What has changed since the last look: each file with what its entry has, and had.
    fn changed(&mut self) -> Vec<(FileNumber, [u64; 2], [u64; 2])> {
        let keys: Vec<[u64; 2]> = self.entries.keys().filter_map(Result::ok).collect();
        let mut changed = Vec::with_capacity(keys.len());
        for key in keys {
            let Ok(now) = self.entries.get(&key, 0) else { continue };
            if let Some(before) = self.seen.before(key, now) {
                changed.push(((device_number(key[0] as u32), key[1]), now, before));
            } else {
                // Nobody else removes one.
                let _ = self.entries.remove(&key);
            }
        }
        changed
    }

    /// The same of a table of sums: what came to them.
    fn added(&mut self) -> impl Iterator<Item = (FileNumber, [u64; 2])> {
        let added = |now: [u64; 2], before: [u64; 2]| {
            [now[0].wrapping_sub(before[0]), now[1].wrapping_sub(before[1])]
        };
        self.changed().into_iter().map(move |(file, now, before)| (file, added(now, before)))
    }
}

/// Programs that are attached. They go with this.
pub struct Loaded {
    /// Owns programs and attachments.
    programs: Ebpf,
    events: RingBuf<MapData>,
    /// Where looks tell which files are open.
    polls: Option<Polls>,
    counts: Array<MapData, u64>,
    transfers: FileTable,
    journal: FileTable,
    names: FileTable,
    set: HookSet,
    has_names: bool,
    has_extents: bool,
    attached: Vec<&'static str>,
    /// What a hook that was refused would have told.
    refused: Vec<&'static str>,
    lacks: Vec<String>,
}

impl std::fmt::Debug for Loaded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Loaded")
            .field("set", &self.set)
            .field("lacks", &self.lacks)
            .finish_non_exhaustive()
    }
}

/// Modules whose types are used where they are no part of the kernel itself.
const MODULES: [&str; 1] = ["ext4"];

impl Loaded {
    /// Loads and attaches the hooks of a set.
    ///
    /// # Errors
    /// Why a hook that is needed cannot be had.
    pub fn new(set: HookSet, wanted: &Wanted) -> Result<Self, String> {
        let types = Types::of_kernel(&MODULES).map_err(|e| e.to_string())?;
        let Hooks { there: hooks, missing, has_names, has_extents } =
            hooks(set, &types, wanted).map_err(|e| e.to_string())?;
        drop(types);
        let programs: Vec<_> = hooks.iter().map(|hook| hook.program.clone()).collect();
        let file = object_file(&maps(wanted.objects, set == HookSet::Polled), &programs)?;
        let mut ebpf = Ebpf::load(&file).map_err(|e| full(&e))?;
        let btf = Btf::from_sys_fs().map_err(|e| full(&e))?;
        let (mut lacks, mut attached, mut refused) = (missing, Vec::new(), Vec::new());
        for hook in &hooks {
            match attach(&mut ebpf, hook, &btf) {
                Ok(()) => attached.push(hook.gives),
                Err(why) if hook.needed => {
                    return Err(format!("{} at {}: {why}", hook.gives, hook.target));
                }
                Err(why) => {
                    refused.push(hook.gives);
                    lacks.push(format!("{} at {}: {why}", hook.gives, hook.target));
                }
            }
        }
        let mut map = |name: &str| ebpf.take_map(name).ok_or_else(|| format!("no map {name}"));
        let table = |map: Map| -> Result<FileTable, String> {
            let entries = Table::try_from(map).map_err(|e| full(&e))?;
            Ok(FileTable { entries, seen: Seen::default() })
        };
        let polls = if set == HookSet::Polled {
            Some(Polls::new(Table::try_from(map("used")?).map_err(|e| full(&e))?))
        } else {
            None
        };
        Ok(Self {
            polls,
            events: RingBuf::try_from(map("events")?).map_err(|e| full(&e))?,
            counts: Array::try_from(map("counts")?).map_err(|e| full(&e))?,
            transfers: table(map("transfers")?)?,
            journal: table(map("journal")?)?,
            names: table(map("names")?)?,
            has_names,
            has_extents,
            programs: ebpf,
            set,
            attached,
            refused,
            lacks,
        })
    }

    /// Which hooks they are at.
    pub fn set(&self) -> HookSet {
        self.set
    }

    /// What is known by them.
    pub fn attached(&self) -> &[&'static str] {
        &self.attached
    }

    /// Whether all hooks are there that tell this.
    pub fn knows(&self, what: &str) -> bool {
        self.attached.contains(&what) && !self.refused.contains(&what)
    }

    /// Whether events tell how many names a file has in the kernel's cache.
    pub fn has_names(&self) -> bool {
        self.has_names
    }

    /// Whether events tell how many extents ext4 keeps of a file.
    pub fn has_extents(&self) -> bool {
        self.has_extents
    }

    /// What is not known, and why: hooks that could not be had, and what those that are there miss.
    pub fn lacks(&self) -> Vec<String> {
        let of_polls = self.polls.iter().flat_map(Polls::lacks);
        self.lacks.iter().cloned().chain(of_polls).collect()
    }

    /// Events for which this holds are no use of a file. Whoever takes events leaves them out by
    /// himself; where looks tell, a file that is also used must not hide behind them.
    #[must_use]
    pub fn leaving_out(mut self, is_work: fn(&FileEvent) -> bool) -> Self {
        if let Some(polls) = &mut self.polls {
            polls.leave_out(is_work);
        }
        self
    }

    /// Where looks tell which files are open: looks, if that is due. `is_near` says whether a memory is
    /// nearly short.
    pub fn poll(&mut self, is_near: bool) {
        if let Some(polls) = &mut self.polls {
            polls.poll(&mut self.programs, &mut self.events, is_near);
        }
    }

    /// Which files somebody has open, where looks tell.
    pub fn open_files(&self) -> Option<&OpenFiles> {
        self.polls.as_ref().map(Polls::files)
    }

    /// The next event that waits.
    pub fn next_event(&mut self) -> Option<FileEvent> {
        if let Some(event) = self.polls.as_mut().and_then(Polls::next_event) {
            return Some(event);
        }
        while let Some(item) = self.events.next() {
            let Some(event) = Record::read(&item) else { continue };
            let news = match &mut self.polls {
                Some(polls) => polls.told(event),
                None => Some(event),
            };
            if news.is_some() {
                return news;
            }
        }
        None
    }

    /// How often something happened since the beginning.
    pub fn count(&self, what: Count) -> u64 {
        self.counts.get(&(what as u32), 0).unwrap_or(0)
    }

    /// Takes what was transferred since the last time, by device and inode. A transfer is not counted
    /// only if it is the first one of its file for a whole look, and comes within the microsecond in
    /// which the file's entry goes.
    pub fn take_transfers(&mut self) -> HashMap<(u64, u64), Transfers> {
        let transfers = |[count, bytes]: [u64; 2]| Transfers { count, bytes: Bytes(bytes) };
        self.transfers.added().map(|(file, added)| (file, transfers(added))).collect()
    }

    /// Takes what files asked of the journal since the last time, by device and inode.
    pub fn take_journal(&mut self) -> HashMap<(u64, u64), Journaled> {
        let journaled = |[handles, blocks]: [u64; 2]| Journaled { handles, blocks };
        self.journal.added().map(|(file, added)| (file, journaled(added))).collect()
    }

    /// Takes how many names files have of which one came or went since the last time, by device and
    /// inode.
    pub fn take_names(&mut self) -> HashMap<(u64, u64), Names> {
        let names = |[count, at]: [u64; 2]| Names { count: count as u32, at: Nanos(at) };
        self.names.changed().into_iter().map(|(file, now, _)| (file, names(now))).collect()
    }
}

fn attach(ebpf: &mut Ebpf, hook: &Hook, btf: &Btf) -> Result<(), String> {
    let program = ebpf.program_mut(hook.program.name).ok_or("it is not in the object file")?;
    let mut tried = || -> Result<(), ProgramError> {
        match hook.attach {
            Attach::Tracepoint => {
                let program: &mut BtfTracePoint = program.try_into()?;
                program.load(hook.target, btf)?;
                program.attach()?;
            }
            Attach::RawTracepoint => {
                let program: &mut RawTracePoint = program.try_into()?;
                program.load()?;
                program.attach(hook.target)?;
            }
            Attach::Entry => {
                let program: &mut FEntry = program.try_into()?;
                program.load(hook.target, btf)?;
                program.attach()?;
            }
            Attach::Exit => {
                let program: &mut FExit = program.try_into()?;
                program.load(hook.target, btf)?;
                program.attach()?;
            }
            // It is attached for each look.
            Attach::Iterator => {
                let program: &mut Iter = program.try_into()?;
                program.load(hook.target, btf)?;
            }
        }
        Ok(())
    };
    tried().map_err(|e| full(&e))
}

/// An error with what it comes from, in one line.
pub(super) fn full(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    // The verifier's whole log may be in it.
    let text = text.replace("Verifier output:", "");
    text.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(2000).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a program adds while an entry is read and removed would be lost.
    #[test]
    fn an_entry_goes_only_when_nothing_was_added_for_a_whole_look() {
        let mut seen = Seen::default();
        let (busy, other) = ([1, 7], [1, 8]);
        assert_eq!(seen.before(busy, [1, 4096]), Some([0, 0]));
        assert_eq!(seen.before(other, [2, 8192]), Some([0, 0]));
        assert_eq!(seen.before(busy, [4, 20_480]), Some([1, 4096]), "the rest is taken");
        assert_eq!(seen.before(other, [2, 8192]), None);
        assert_eq!(seen.before(busy, [4, 20_480]), None);
        assert_eq!(seen.before(busy, [4, 20_480]), Some([0, 0]), "another entry by now");
    }
}
