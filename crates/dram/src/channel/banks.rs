//! DRAM banks: which rows are open, and from which cycle on each kind of
//! command may go to each bank.
//!
//! Every constraint is applied when the earlier command is sent: it moves the
//! earliest time of later ones forward. The time at which a command may go is
//! then the later of two numbers, the bank's own and its group's, which
//! carries everything that the group, the rank and the other ranks ask for.

use crate::file::{DramFile, MAX_BANKS};
use crate::timing::{DramCycles, READ, WRITE};

const BANKS: usize = MAX_BANKS as usize;

/// No row is open.
pub(super) const CLOSED: u32 = u32::MAX;

/// Kinds of command, as indices. [`READ`] and [`WRITE`] are column commands.
pub(super) const ACTIVATE: usize = 2;
/// See [`ACTIVATE`].
pub(super) const PRECHARGE: usize = 3;

/// The state of all banks of a channel.
#[derive(Clone, Debug)]
pub(super) struct Banks {
    pub(super) times: DramCycles,
    pub(super) ranks: usize,
    /// Groups of a rank.
    pub(super) groups: usize,
    /// Banks of a rank.
    pub(super) per_rank: usize,
    pub(super) open: [u32; BANKS],
    /// Earliest time of each kind of command, as far as the bank itself goes.
    pub(super) bank_ready: [[u64; BANKS]; 4],
    /// The same, as far as group, rank and buses go; by group, over all ranks.
    pub(super) group_ready: [[u64; BANKS]; 4],
    /// The group of each bank, counted over all ranks.
    pub(super) group_of: [u8; BANKS],
    activated: [u64; BANKS],
    /// The last four activates of each rank, and which of them is the oldest.
    windows: [([u64; 4], usize); 8],
}

impl Banks {
    pub(super) fn new(file: &DramFile, times: DramCycles) -> Self {
        let groups = file.bank_groups.value as usize;
        let in_group = file.banks_per_group.value as usize;
        let ranks = file.ranks.value as usize;
        let mut group_of = [0; BANKS];
        for (bank, group) in group_of.iter_mut().enumerate().take(ranks * groups * in_group) {
            *group = (bank / in_group) as u8;
        }
        Self {
            times,
            ranks,
            groups,
            per_rank: groups * in_group,
            open: [CLOSED; BANKS],
            bank_ready: [[0; BANKS]; 4],
            group_ready: [[0; BANKS]; 4],
            group_of,
            activated: [0; BANKS],
            windows: [([0; 4], 0); 8],
        }
    }

    pub(super) fn rank_of(&self, bank: usize) -> usize {
        bank / self.per_rank
    }

    /// The earliest time of a command.
    pub(super) fn ready(&self, kind: usize, bank: usize) -> u64 {
        self.bank_ready[kind][bank].max(self.group_ready[kind][usize::from(self.group_of[bank])])
    }

    pub(super) fn activate(&mut self, bank: usize, row: u32, at: u64) {
        let t = &self.times;
        self.open[bank] = row;
        self.activated[bank] = at;
        later(&mut self.bank_ready[READ][bank], at + t.rcd[READ]);
        later(&mut self.bank_ready[WRITE][bank], at + t.rcd[WRITE]);
        later(&mut self.bank_ready[PRECHARGE][bank], at + t.ras);
        later(&mut self.bank_ready[ACTIVATE][bank], at + t.ras + t.rp);
        let rank = self.rank_of(bank);
        let (window, oldest) = &mut self.windows[rank];
        window[*oldest] = at + t.faw;
        *oldest = (*oldest + 1) % 4;
        let limit = window[*oldest].max(at + t.rrd_s);
        let (first, own) = (rank * self.groups, usize::from(self.group_of[bank]));
        for group in &mut self.group_ready[ACTIVATE][first..first + self.groups] {
            later(group, limit);
        }
        later(&mut self.group_ready[ACTIVATE][own], at + t.rrd_l);
    }

    pub(super) fn precharge(&mut self, bank: usize, at: u64) {
        self.open[bank] = CLOSED;
        later(&mut self.bank_ready[ACTIVATE][bank], at + self.times.rp);
        self.after_precharge(self.rank_of(bank), at);
    }

    pub(super) fn precharge_all(&mut self, rank: usize, at: u64) {
        for bank in rank * self.per_rank..(rank + 1) * self.per_rank {
            self.open[bank] = CLOSED;
            later(&mut self.bank_ready[ACTIVATE][bank], at + self.times.rp);
        }
        self.after_precharge(rank, at);
    }

    fn after_precharge(&mut self, rank: usize, at: u64) {
        let (first, limit) = (rank * self.groups, at + self.times.ppd);
        for group in &mut self.group_ready[PRECHARGE][first..first + self.groups] {
            later(group, limit);
        }
    }

    /// A read or write; `auto` closes the row after it.
    pub(super) fn column(&mut self, bank: usize, direction: usize, at: u64, auto: bool) {
        let t = &self.times;
        let to_precharge = if direction == READ { t.rtp } else { t.cwl + t.burst + t.wr };
        if auto {
            let precharged = (at + to_precharge).max(self.activated[bank] + t.ras);
            self.open[bank] = CLOSED;
            later(&mut self.bank_ready[ACTIVATE][bank], precharged + t.rp);
            later(&mut self.bank_ready[PRECHARGE][bank], precharged);
        } else {
            later(&mut self.bank_ready[PRECHARGE][bank], at + to_precharge);
        }
        let (rank, own) = (self.rank_of(bank), usize::from(self.group_of[bank]));
        for next in [READ, WRITE] {
            // Data of two ranks must not meet on the bus.
            let other_rank =
                (t.latency(direction) + t.burst + t.cs).saturating_sub(t.latency(next)).max(1);
            for other in 0..self.ranks {
                let gap = if other == rank { t.column_gap(direction, next) } else { other_rank };
                let first = other * self.groups;
                for group in &mut self.group_ready[next][first..first + self.groups] {
                    later(group, at + gap);
                }
            }
            later(&mut self.group_ready[next][own], at + t.column_gap_in_group(direction, next));
        }
    }

    /// The data bus is in use by another module until a cycle.
    pub(super) fn data_bus_taken(&mut self, until: u64) {
        for direction in [READ, WRITE] {
            let limit = until.saturating_sub(self.times.latency(direction));
            for group in &mut self.group_ready[direction][..self.ranks * self.groups] {
                later(group, limit);
            }
        }
    }

    /// When a rank's rows can be closed all at once; `None` if none is open.
    pub(super) fn close_ready(&self, rank: usize) -> Option<u64> {
        let banks = rank * self.per_rank..(rank + 1) * self.per_rank;
        let any_open = banks.clone().any(|bank| self.open[bank] != CLOSED);
        // Banks that close by themselves have to be ready for it, too.
        any_open.then(|| banks.map(|bank| self.ready(PRECHARGE, bank)).max()).flatten()
    }

    /// When a rank whose rows are closed can be refreshed.
    pub(super) fn refresh_ready(&self, rank: usize) -> u64 {
        let banks = rank * self.per_rank..(rank + 1) * self.per_rank;
        banks.map(|bank| self.bank_ready[ACTIVATE][bank]).max().unwrap_or(0)
    }

    pub(super) fn refresh(&mut self, rank: usize, at: u64) {
        for bank in rank * self.per_rank..(rank + 1) * self.per_rank {
            later(&mut self.bank_ready[ACTIVATE][bank], at + self.times.rfc);
        }
    }
}

#[inline]
fn later(time: &mut u64, at_least: u64) {
    *time = (*time).max(at_least);
}
