//! An independent judge of commands.
//!
//! It shares nothing with the scheduler but the memory file: it keeps the last
//! commands and compares each new one with all of them, pair by pair, as the
//! standard states its rules. That is slow and easy to check by reading.

use core::fmt;
use std::collections::VecDeque;

use crate::command::{Command, CommandKind, Observer};
use crate::file::MemoryFile;
use crate::timing::{DramCycles, NvmCycles};

/// A rule that was broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The rule's name.
    pub rule: &'static str,
    /// The earlier command, where the rule speaks of two.
    pub first: Option<Command>,
    /// The command that came too early, or must not have come.
    pub second: Command,
    /// Cycles that the rule asks for between both.
    pub required: u64,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rule, first, second, required } = self;
        match first {
            Some(first) => write!(
                f,
                "{rule}: {:?} at {} is {} cycles after {:?} at {}, {required} are required",
                second.kind,
                second.at,
                second.at.saturating_sub(first.at),
                first.kind,
                first.at
            ),
            None => write!(f, "{rule}: {:?} at {}", second.kind, second.at),
        }
    }
}

/// Refreshes may be postponed by at most eight intervals (JESD79-4, 4.26).
const POSTPONED: u64 = 8;

/// Judges the commands of one channel.
#[derive(Debug)]
pub struct Checker {
    dram: Option<DramCycles>,
    nvm: Option<NvmCycles>,
    dram_ranks: u32,
    banks_of_rank: u32,
    activate_cycles: u64,
    column_cycles: u64,
    split_bus: bool,
    horizon: u64,
    recent: VecDeque<Command>,
    open: Vec<Option<u64>>,
    activated: Vec<u64>,
    refreshed: Vec<u64>,
    data: VecDeque<(u64, u64, u32, bool)>,
    seen: u64,
    violations: Vec<Violation>,
}

impl Checker {
    /// A judge for one channel of a memory.
    pub fn new(file: &MemoryFile) -> Self {
        let dram = file.dram.as_ref().map(|d| DramCycles::new(d, &file.channel));
        let nvm = file.nvm.as_ref().map(|n| NvmCycles::new(n, &file.channel));
        let ranks = file.dram.as_ref().map_or(0, |d| d.ranks.value);
        let banks = file.dram.as_ref().map_or(0, |d| d.bank_groups.value * d.banks_per_group.value);
        let longest = dram.as_ref().map_or(0, |t| {
            t.rfc.max(t.faw).max(t.ras + t.rp).max(t.cwl + t.burst + t.wr + t.rp).max(t.cl + t.rtw)
        });
        Self {
            horizon: longest.max(nvm.as_ref().map_or(0, |t| t.send + t.burst + t.wtr)) + 64,
            dram,
            nvm,
            dram_ranks: ranks,
            banks_of_rank: banks,
            activate_cycles: u64::from(file.channel.activate_cycles.value),
            column_cycles: u64::from(file.channel.column_cycles.value),
            split_bus: file.channel.split_command_bus.value == 1,
            recent: VecDeque::new(),
            open: vec![None; (ranks * banks) as usize],
            activated: vec![0; (ranks * banks) as usize],
            refreshed: vec![0; ranks as usize],
            data: VecDeque::new(),
            seen: 0,
            violations: Vec::new(),
        }
    }

    /// The rules that were broken, in order.
    pub fn violations(&self) -> &[Violation] {
        &self.violations
    }

    /// Commands that were judged.
    pub fn seen(&self) -> u64 {
        self.seen
    }

    fn broken(&mut self, rule: &'static str, second: Command) {
        self.violations.push(Violation { rule, first: None, second, required: 0 });
    }

    /// Cycles that a command keeps its bus for, and which bus that is.
    fn bus(&self, kind: CommandKind) -> (u64, usize) {
        use CommandKind::*;
        match kind {
            Activate => (self.activate_cycles, 0),
            Precharge | PrechargeAll | Refresh => (1, 0),
            NvmSend => (1, usize::from(self.split_bus)),
            _ => (self.column_cycles, usize::from(self.split_bus)),
        }
    }

    /// Banks, by number over all ranks, that a command concerns.
    fn banks(&self, command: &Command) -> std::ops::Range<usize> {
        use CommandKind::*;
        let first = (command.rank * self.banks_of_rank) as usize;
        match command.kind {
            PrechargeAll | Refresh => first..first + self.banks_of_rank as usize,
            _ => {
                let bank = first + command.bank as usize;
                bank..bank + 1
            }
        }
    }

    /// Rows must be open for column commands, closed for others.
    fn check_state(&mut self, command: Command) {
        use CommandKind::*;
        let banks = self.banks(&command);
        match command.kind {
            Activate => {
                if self.open[banks.start].is_some() {
                    self.broken("activate needs a closed bank", command);
                }
                self.open[banks.start] = Some(command.row);
                self.activated[banks.start] = command.at;
            }
            Precharge | PrechargeAll => self.open[banks].fill(None),
            Read | Write | ReadAuto | WriteAuto => {
                if self.open[banks.start] != Some(command.row) {
                    self.broken("column command needs its row open", command);
                }
                if matches!(command.kind, ReadAuto | WriteAuto) {
                    self.open[banks.start] = None;
                }
            }
            Refresh => {
                if self.open[banks].iter().any(Option::is_some) {
                    self.broken("refresh needs closed banks", command);
                }
                let limit = self.dram.as_ref().map_or(u64::MAX, |t| (POSTPONED + 1) * t.refi);
                let last = &mut self.refreshed[command.rank as usize];
                let late = command.at - *last > limit;
                *last = command.at;
                if late {
                    self.broken("refresh too late", command);
                }
            }
            NvmRead | NvmSend | NvmWrite => {}
        }
    }

    /// Data of two commands must not meet on the bus.
    fn check_data(&mut self, command: Command) {
        use CommandKind::*;
        let (latency, burst, write) = match (command.kind, &self.dram, &self.nvm) {
            (Read | ReadAuto, Some(t), _) => (t.cl, t.burst, false),
            (Write | WriteAuto, Some(t), _) => (t.cwl, t.burst, true),
            (NvmSend, _, Some(t)) => (t.send, t.burst, false),
            (NvmWrite, _, Some(t)) => (t.send, t.burst, true),
            _ => return,
        };
        let start = command.at + latency;
        for &(other_start, other_end, rank, other_write) in &self.data {
            let switch = match (&self.dram, &self.nvm) {
                (_, Some(nvm)) if [rank, command.rank].contains(&self.dram_ranks) => nvm.cs,
                (Some(dram), _) => dram.cs,
                _ => 0,
            };
            let turn = match (&self.dram, &self.nvm) {
                (_, Some(nvm)) if rank == self.dram_ranks => nvm.rtw,
                (Some(dram), _) => dram.rtw,
                _ => 0,
            };
            let gap = if rank != command.rank {
                switch
            } else if write && !other_write {
                turn
            } else {
                0
            };
            if start < other_end + gap && other_start < start + burst {
                self.violations.push(Violation {
                    rule: "data bus",
                    first: None,
                    second: command,
                    required: other_end + gap - latency,
                });
            }
        }
        self.data.push_back((start, start + burst, command.rank, write));
        while self.data.front().is_some_and(|(_, end, ..)| end + self.horizon < command.at) {
            self.data.pop_front();
        }
    }

    /// What the standard asks for between two commands to DRAM.
    fn required(&self, first: &Command, second: &Command) -> Option<(u64, &'static str)> {
        use CommandKind::*;
        let t = self.dram.as_ref()?;
        if first.rank != second.rank || first.rank >= self.dram_ranks {
            return None;
        }
        let (banks, others) = (self.banks(first), self.banks(second));
        let same_bank = banks.start < others.end && others.start < banks.end;
        let same_group = first.group == second.group;
        let write_to = |wait: u64| t.cwl + t.burst + wait;
        // An automatic precharge begins when the row may be closed.
        let auto = |kind: CommandKind| {
            let wait = if kind == ReadAuto { t.rtp } else { write_to(t.wr) };
            let opened = self.activated[banks.start].saturating_add(t.ras).saturating_sub(first.at);
            wait.max(opened) + t.rp
        };
        let column = |kind| matches!(kind, Read | Write | ReadAuto | WriteAuto);
        let reads = |kind| matches!(kind, Read | ReadAuto);
        Some(match (first.kind, second.kind) {
            (Activate, Activate) if same_bank => (t.ras + t.rp, "tRC"),
            (Activate, Activate) if same_group => (t.rrd_l, "tRRD_L"),
            (Activate, Activate) => (t.rrd_s, "tRRD_S"),
            (Activate, Read | ReadAuto) if same_bank => (t.rcd[0], "tRCD"),
            (Activate, Write | WriteAuto) if same_bank => (t.rcd[1], "tRCD"),
            (Activate, Precharge | PrechargeAll) if same_bank => (t.ras, "tRAS"),
            (Activate, Refresh) => (t.ras + t.rp, "tRC"),
            (Precharge | PrechargeAll, Activate) if same_bank => (t.rp, "tRP"),
            (Precharge | PrechargeAll, Refresh) => (t.rp, "tRP"),
            (Precharge | PrechargeAll, Precharge | PrechargeAll) => (t.ppd, "tPPD"),
            (Read, Precharge | PrechargeAll) if same_bank => (t.rtp, "tRTP"),
            (Write, Precharge | PrechargeAll) if same_bank => (write_to(t.wr), "tWR"),
            (ReadAuto | WriteAuto, Activate) if same_bank => (auto(first.kind), "tRP after auto"),
            (ReadAuto | WriteAuto, Refresh) => (auto(first.kind), "tRP after auto"),
            (Refresh, Activate | Refresh) => (t.rfc, "tRFC"),
            (x, y) if column(x) && column(y) => match (reads(x), reads(y), same_group) {
                (true, true, true) => (t.ccd_l, "tCCD_L"),
                (false, false, true) => (t.ccd_l_wr, "tCCD_L_WR"),
                (true, true, false) | (false, false, false) => (t.ccd_s, "tCCD_S"),
                (false, true, true) => (write_to(t.wtr_l), "tWTR_L"),
                (false, true, false) => (write_to(t.wtr_s), "tWTR_S"),
                // Read to write is a matter of the data bus.
                (true, false, _) => return None,
            },
            _ => return None,
        })
    }

    fn check_pairs(&mut self, command: Command) {
        let (cycles, bus) = self.bus(command.kind);
        let mut found = Vec::new();
        let mut activates = 0;
        for first in self.recent.iter().rev() {
            let (_, other_bus) = self.bus(first.kind);
            if bus == other_bus && command.at < first.at + cycles {
                found.push((*first, cycles, "command bus"));
            }
            if let Some((required, rule)) = self.required(first, &command)
                && command.at < first.at + required
            {
                found.push((*first, required, rule));
            }
            if first.kind == CommandKind::Activate && first.rank == command.rank {
                activates += 1;
                let faw = self.dram.as_ref().map_or(0, |t| t.faw);
                if command.kind == CommandKind::Activate
                    && activates == 4
                    && command.at < first.at + faw
                {
                    found.push((*first, faw, "tFAW"));
                }
            }
        }
        self.violations.extend(found.into_iter().map(|(first, required, rule)| Violation {
            rule,
            first: Some(first),
            second: command,
            required,
        }));
    }
}

impl Observer for Checker {
    fn command(&mut self, command: Command) {
        self.seen += 1;
        if self.recent.back().is_some_and(|last| last.at > command.at) && !self.split_bus {
            self.broken("time runs forward", command);
        }
        let old = |c: &Command| c.at + self.horizon < command.at;
        while self.recent.front().is_some_and(old) {
            self.recent.pop_front();
        }
        self.check_pairs(command);
        if command.rank < self.dram_ranks {
            self.check_state(command);
        }
        self.check_data(command);
        self.recent.push_back(command);
    }
}
