//! Which bank, row and column an address is.

use crate::file::{Mapping, MemoryFile};

/// Where a burst lies on a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// In DRAM.
    Dram {
        /// The bank, counted over all ranks: rank, then group, then bank of the group.
        bank: u32,
        /// The row.
        row: u32,
        /// The burst within the row.
        column: u32,
    },
    /// In non-volatile memory.
    Nvm {
        /// The granule, counted over the module.
        granule: u64,
        /// The burst within the granule.
        column: u32,
    },
}

/// Maps addresses of one channel to places.
#[derive(Clone, Debug)]
pub struct Mapper {
    burst_shift: u32,
    mapping: Mapping,
    column_bits: u32,
    row_bits: u32,
    rank_bits: u32,
    group_bits: u32,
    bank_bits: u32,
    dram_bytes: u64,
    granule_columns: u64,
    nvm_granules: u64,
}

impl Mapper {
    /// A mapper for one channel of a memory.
    pub fn new(file: &MemoryFile) -> Self {
        let burst = file.channel.burst_bytes.value.get();
        let dram = file.dram.as_ref();
        let bits = |value: u32| value.trailing_zeros();
        let nvm = file.nvm.as_ref();
        let granularity = nvm.map_or(burst, |n| n.granularity.value.get());
        Self {
            burst_shift: burst.trailing_zeros(),
            mapping: dram.map_or(Mapping::RowRankBankColumn, |d| d.mapping),
            column_bits: dram.map_or(0, |d| (d.row_bytes.value.get() / burst).trailing_zeros()),
            row_bits: dram.map_or(0, |d| bits(d.rows.value)),
            rank_bits: dram.map_or(0, |d| bits(d.ranks.value)),
            group_bits: dram.map_or(0, |d| bits(d.bank_groups.value)),
            bank_bits: dram.map_or(0, |d| bits(d.banks_per_group.value)),
            dram_bytes: dram.map_or(0, |d| d.capacity().get()),
            granule_columns: granularity / burst,
            nvm_granules: nvm.map_or(0, |n| n.capacity.value.get() / granularity),
        }
    }

    /// Bytes of DRAM on the channel; non-volatile memory begins there.
    pub fn dram_bytes(&self) -> u64 {
        self.dram_bytes
    }

    /// Where an address of the channel lies. Addresses beyond the capacity wrap.
    pub fn place(&self, address: u64) -> Place {
        if (address < self.dram_bytes) || self.nvm_granules == 0 {
            self.dram_place((address % self.dram_bytes.max(1)) >> self.burst_shift)
        } else {
            let burst = (address - self.dram_bytes) >> self.burst_shift;
            Place::Nvm {
                granule: (burst / self.granule_columns) % self.nvm_granules,
                column: (burst % self.granule_columns) as u32,
            }
        }
    }

    fn dram_place(&self, burst: u64) -> Place {
        let mut rest = burst;
        let mut take = |bits: u32| {
            let part = (rest & ((1 << bits) - 1)) as u32;
            rest >>= bits;
            part
        };
        let (column, group, bank, rank);
        match self.mapping {
            Mapping::RowRankBankColumn => {
                column = take(self.column_bits);
                group = take(self.group_bits);
                bank = take(self.bank_bits);
                rank = take(self.rank_bits);
            }
            Mapping::RowColumnRankBankGroup => {
                group = take(self.group_bits);
                bank = take(self.bank_bits);
                rank = take(self.rank_bits);
                column = take(self.column_bits);
            }
            Mapping::RowRankBankColumnGroup => {
                group = take(self.group_bits);
                column = take(self.column_bits);
                bank = take(self.bank_bits);
                rank = take(self.rank_bits);
            }
        }
        let row = take(self.row_bits);
        let bank = (((rank << self.group_bits) | group) << self.bank_bits) | bank;
        Place::Dram { bank, row, column }
    }

    /// The address of a place in DRAM: the inverse of [`Mapper::place`].
    pub fn dram_address(&self, bank: u32, row: u32, column: u32) -> u64 {
        let in_group = u64::from(bank) & ((1 << self.bank_bits) - 1);
        let group = (u64::from(bank) >> self.bank_bits) & ((1 << self.group_bits) - 1);
        let rank = u64::from(bank) >> (self.bank_bits + self.group_bits);
        let (row, column) = (u64::from(row), u64::from(column));
        let parts: [(u64, u32); 5] = match self.mapping {
            Mapping::RowRankBankColumn => [
                (column, self.column_bits),
                (group, self.group_bits),
                (in_group, self.bank_bits),
                (rank, self.rank_bits),
                (row, self.row_bits),
            ],
            Mapping::RowColumnRankBankGroup => [
                (group, self.group_bits),
                (in_group, self.bank_bits),
                (rank, self.rank_bits),
                (column, self.column_bits),
                (row, self.row_bits),
            ],
            Mapping::RowRankBankColumnGroup => [
                (group, self.group_bits),
                (column, self.column_bits),
                (in_group, self.bank_bits),
                (rank, self.rank_bits),
                (row, self.row_bits),
            ],
        };
        let (mut burst, mut shift) = (0, 0);
        for (part, bits) in parts {
            burst |= part << shift;
            shift += bits;
        }
        burst << self.burst_shift
    }
}
