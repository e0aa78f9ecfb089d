//! Memory files: TOML that describes one kind of memory module with its
//! controller, with the source of every number.
//!
//! ```toml
//! schema = 1
//! kind = "memory"
//! name = "ddr4-2400"
//! description = "one channel of DDR4-2400, 8 Gb x8"
//!
//! [channel]
//! channels = { value = 1, source = "…" }
//! clock = { value = "0.833ns", source = "…" }
//! # …
//! ```

use serde::{Deserialize, Serialize};
use terrace_core::Bytes;
use terrace_core::machine::{MachineError, Sourced, parse_document};

use crate::duration::ClockTime;

/// A memory, as described by its file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct MemoryFile {
    /// Version of the file format; 1.
    pub schema: u32,
    /// What the file describes: `memory`.
    pub kind: String,
    /// What the memory is called.
    pub name: String,
    /// What it is, in a sentence.
    pub description: String,
    /// The channels' number, clock and buses.
    pub channel: ChannelFile,
    /// How requests are queued and ordered.
    pub controller: ControllerFile,
    /// DRAM on each channel; takes the low addresses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dram: Option<DramFile>,
    /// Non-volatile memory on each channel; follows the DRAM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nvm: Option<NvmFile>,
}

/// Channels and their buses.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct ChannelFile {
    /// Channels; consecutive stripes of addresses go to different ones.
    pub channels: Sourced<u32>,
    /// Bytes that stay on one channel before the next takes its turn.
    pub stripe: Sourced<Bytes>,
    /// The clock's period. Two transfers are made in a cycle.
    pub clock: Sourced<ClockTime>,
    /// Bytes of one column command.
    pub burst_bytes: Sourced<Bytes>,
    /// Cycles that an activate command occupies the command bus.
    pub activate_cycles: Sourced<u32>,
    /// Cycles that a column command occupies the command bus.
    pub column_cycles: Sourced<u32>,
    /// 1 if rows and columns are commanded over buses of their own (HBM), else 0.
    pub split_command_bus: Sourced<u32>,
    /// 1 if non-volatile memory has as many channels of its own, with a
    /// controller each; 0, or left out, if it shares the DRAM's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nvm_apart: Option<Sourced<u32>>,
}

/// Queues and order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct ControllerFile {
    /// Reads that a channel holds.
    pub read_queue: Sourced<u32>,
    /// Writes that a channel holds.
    pub write_queue: Sourced<u32>,
    /// Share of the write queue, 0 to 1, at which writes are drained.
    pub write_high: Sourced<f64>,
    /// Share of the write queue, 0 to 1, at which draining ends if reads wait.
    pub write_low: Sourced<f64>,
    /// Writes that are drained at least before reads get their turn.
    pub min_writes: Sourced<u32>,
    /// Which of two requests to one bank goes first.
    pub order: RequestOrder,
    /// Row hits that may pass an older request for another row of the bank.
    pub hit_cap: Sourced<u32>,
    /// What becomes of a row nobody waits for.
    pub page_policy: PagePolicy,
    /// Column commands after which the adaptive policy closes a row.
    pub row_accesses: Sourced<u32>,
    /// What a request takes until it is in the queue.
    pub frontend: Sourced<ClockTime>,
    /// What data take from the pins to whoever asked.
    pub backend: Sourced<ClockTime>,
}

/// Which of two requests to one bank goes first. Requests to different banks
/// go as they are ready: column commands first, then the older.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RequestOrder {
    /// Row hits, as far as `hit-cap` allows, then the oldest (FR-FCFS).
    HitsFirst,
    /// The oldest; row hits only while the open row cannot be closed yet.
    ReadyFirst,
}

/// What becomes of a row nobody waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PagePolicy {
    /// It stays open until another row of the bank is wanted.
    Open,
    /// It stays open unless another row is wanted already, or it was accessed
    /// `row-accesses` times.
    OpenAdaptive,
    /// It is closed with the last access that is queued.
    Closed,
}

/// DRAM on a channel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct DramFile {
    /// Ranks.
    pub ranks: Sourced<u32>,
    /// Bank groups of a rank.
    pub bank_groups: Sourced<u32>,
    /// Banks of a group.
    pub banks_per_group: Sourced<u32>,
    /// Rows of a bank.
    pub rows: Sourced<u32>,
    /// Bytes of a row, over the whole width of the channel.
    pub row_bytes: Sourced<Bytes>,
    /// In which order address bits select row, rank, bank, column; from the
    /// highest to the lowest.
    pub mapping: Mapping,
    /// Energy and endurance of its cells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cells: Option<CellsFile>,
    /// Times.
    pub timing: DramTimes,
}

/// Energy and endurance of a memory's cells; nothing of the timing depends on
/// them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct CellsFile {
    /// Picojoules a bit that is read.
    pub read_energy: Sourced<f64>,
    /// Picojoules a bit that is written.
    pub write_energy: Sourced<f64>,
    /// Writes until a cell is worn out.
    pub endurance: Sourced<f64>,
}

impl CellsFile {
    fn validate(&self, table: &str) -> Result<(), (String, String)> {
        for (field, value) in [
            ("read-energy", self.read_energy.value),
            ("write-energy", self.write_energy.value),
            ("endurance", self.endurance.value),
        ] {
            if value.is_nan() || value <= 0.0 {
                return Err((format!("{table}.cells.{field}"), "must be above zero".to_owned()));
            }
        }
        Ok(())
    }
}

/// Order of the address bits, from the highest to the lowest. Channels are
/// selected below, by stripes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Mapping {
    /// Row, rank, bank, column: consecutive lines lie in one row.
    #[serde(rename = "RoRaBaCo")]
    RowRankBankColumn,
    /// Row, column, rank, bank with the group's bits lowest: consecutive lines
    /// go around all banks.
    #[serde(rename = "RoCoRaBaBg")]
    RowColumnRankBankGroup,
    /// Row, rank, bank, column, group: consecutive lines alternate between
    /// groups and stay in their rows.
    #[serde(rename = "RoRaBaCoBg")]
    RowRankBankColumnGroup,
}

/// Times of DRAM, by JEDEC's names: a field for each time that the standard names.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(non_snake_case)]
pub struct DramTimes {
    /// Read command to data.
    pub CL: Sourced<ClockTime>,
    /// Write command to data.
    pub CWL: Sourced<ClockTime>,
    /// Length of a burst on the data bus.
    pub tBURST: Sourced<ClockTime>,
    /// Activate to read.
    pub tRCD: Sourced<ClockTime>,
    /// Activate to write, where it differs (HBM).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tRCDWR: Option<Sourced<ClockTime>>,
    /// Precharge to activate.
    pub tRP: Sourced<ClockTime>,
    /// Activate to precharge.
    pub tRAS: Sourced<ClockTime>,
    /// Activate to activate, other bank group.
    pub tRRD_S: Sourced<ClockTime>,
    /// Activate to activate, same bank group.
    pub tRRD_L: Sourced<ClockTime>,
    /// Window that holds at most four activates of a rank.
    pub tFAW: Sourced<ClockTime>,
    /// Last written data to read, other bank group.
    pub tWTR_S: Sourced<ClockTime>,
    /// Last written data to read, same bank group.
    pub tWTR_L: Sourced<ClockTime>,
    /// Read to precharge.
    pub tRTP: Sourced<ClockTime>,
    /// Last written data to precharge.
    pub tWR: Sourced<ClockTime>,
    /// Column command to column command, other bank group.
    pub tCCD_S: Sourced<ClockTime>,
    /// Column command to column command, same bank group.
    pub tCCD_L: Sourced<ClockTime>,
    /// Write to write, same bank group, where it differs (DDR5).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tCCD_L_WR: Option<Sourced<ClockTime>>,
    /// Precharge to precharge, where it matters (DDR5).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tPPD: Option<Sourced<ClockTime>>,
    /// Gap on the data bus from read data to written data.
    pub tRTW: Sourced<ClockTime>,
    /// Gap on the data bus between ranks.
    pub tCS: Sourced<ClockTime>,
    /// Refresh to the next command of the rank.
    pub tRFC: Sourced<ClockTime>,
    /// Time between refreshes of a rank.
    pub tREFI: Sourced<ClockTime>,
}

/// Non-volatile memory on a channel: a buffered module whose media is slow.
///
/// Reads are split: a command starts the media, a second one fetches the data
/// when they are ready. Writes are complete for the host when the module has
/// buffered them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct NvmFile {
    /// What the module holds.
    pub capacity: Sourced<Bytes>,
    /// Parts of the media that work at the same time.
    pub partitions: Sourced<u32>,
    /// What the media reads and writes at once.
    pub granularity: Sourced<Bytes>,
    /// Reads that the module works on at the same time.
    pub pending_reads: Sourced<u32>,
    /// Writes (without combining) or combining lines that the module buffers.
    pub pending_writes: Sourced<u32>,
    /// 1 if the buffer gathers writes to one granule before the media is
    /// written, 0 if each write goes to the media on its own.
    pub write_combining: Sourced<u32>,
    /// Granules that were read and are kept; 0: each partition keeps its last.
    pub read_buffer: Sourced<u32>,
    /// Energy and endurance of its cells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cells: Option<CellsFile>,
    /// Times.
    pub timing: NvmTimes,
}

/// Times of non-volatile memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(non_snake_case)]
pub struct NvmTimes {
    /// Until a granule that was read from the media is in the buffer.
    pub tREAD: Sourced<ClockTime>,
    /// How long a read occupies its partition, where it differs from `tREAD`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tREAD_CYCLE: Option<Sourced<ClockTime>>,
    /// How long a write occupies its partition.
    pub tWRITE: Sourced<ClockTime>,
    /// Command to data.
    pub tSEND: Sourced<ClockTime>,
    /// Length of a burst on the data bus.
    pub tBURST: Sourced<ClockTime>,
    /// Last written data to the next read of data.
    pub tWTR: Sourced<ClockTime>,
    /// Gap on the data bus from read data to written data.
    pub tRTW: Sourced<ClockTime>,
    /// Gap on the data bus to and from another module.
    pub tCS: Sourced<ClockTime>,
}

/// Banks that a channel's scheduler can tell apart.
pub const MAX_BANKS: u32 = 64;

impl MemoryFile {
    /// Reads a memory file's text. `file` is only used in errors.
    pub fn parse(file: &str, text: &str) -> Result<Self, MachineError> {
        parse_document(file, text, Self::validate)
    }

    /// Whether non-volatile memory has channels of its own.
    pub fn is_nvm_apart(&self) -> bool {
        self.channel.nvm_apart.as_ref().is_some_and(|apart| apart.value == 1)
    }

    /// The first address of non-volatile memory on one channel, or where it has
    /// channels of its own.
    pub fn nvm_begins(&self) -> Bytes {
        let dram = self.dram.as_ref().map_or(Bytes::ZERO, DramFile::capacity);
        if self.is_nvm_apart() { dram * u64::from(self.channel.channels.value) } else { dram }
    }

    /// Bytes of one channel, or of a pair of them if non-volatile memory has its
    /// own.
    pub fn channel_capacity(&self) -> Bytes {
        self.dram.as_ref().map_or(Bytes::ZERO, DramFile::capacity)
            + self.nvm.as_ref().map_or(Bytes::ZERO, |nvm| nvm.capacity.value)
    }

    /// Checks what the types cannot: returns the field and what is wrong with it.
    fn validate(&self) -> Result<(), (String, String)> {
        let bad = |field: &str, message: &str| Err((field.to_owned(), message.to_owned()));
        if self.schema != 1 {
            return bad("schema", "this version reads schema 1 only");
        }
        if self.kind != "memory" {
            return bad("kind", "expected \"memory\"");
        }
        let channel = &self.channel;
        if !(1..=64).contains(&channel.channels.value) {
            return bad("channel.channels", "must be 1 to 64");
        }
        let burst = channel.burst_bytes.value.get();
        if !burst.is_power_of_two() || !(8..=4096).contains(&burst) {
            return bad("channel.burst-bytes", "must be a power of two from 8 to 4096 bytes");
        }
        let stripe = channel.stripe.value.get();
        if !stripe.is_power_of_two() || stripe < burst || stripe > 1 << 40 {
            return bad("channel.stripe", "must be a power of two and at least a burst");
        }
        if !(0.01..=1000.0).contains(&channel.clock.value.nanos) {
            return bad("channel.clock", "must be 0.01 to 1000 ns");
        }
        if !(1..=8).contains(&channel.activate_cycles.value) {
            return bad("channel.activate-cycles", "must be 1 to 8");
        }
        if !(1..=8).contains(&channel.column_cycles.value) {
            return bad("channel.column-cycles", "must be 1 to 8");
        }
        if channel.split_command_bus.value > 1 {
            return bad("channel.split-command-bus", "must be 0 or 1");
        }
        match channel.nvm_apart.as_ref().map_or(0, |apart| apart.value) {
            0 => {}
            1 if self.dram.is_some() && self.nvm.is_some() => {}
            1 => return bad("channel.nvm-apart", "needs a [dram] and an [nvm] table"),
            _ => return bad("channel.nvm-apart", "must be 0 or 1"),
        }
        let controller = &self.controller;
        for (field, queue) in [
            ("controller.read-queue", controller.read_queue.value),
            ("controller.write-queue", controller.write_queue.value),
        ] {
            if !(1..=4096).contains(&queue) {
                return bad(field, "must be 1 to 4096");
            }
        }
        if !(controller.write_low.value >= 0.0
            && controller.write_low.value <= controller.write_high.value
            && controller.write_high.value <= 1.0)
        {
            return bad("controller.write-high", "must be at least `write-low` and at most 1");
        }
        if self.dram.is_none() && self.nvm.is_none() {
            return bad("name", "a memory has a [dram] or an [nvm] table, or both");
        }
        if let Some(dram) = &self.dram {
            dram.validate(channel)?;
        }
        if let Some(nvm) = &self.nvm {
            nvm.validate(burst)?;
        }
        Ok(())
    }
}

impl DramFile {
    /// Bytes on one channel.
    pub fn capacity(&self) -> Bytes {
        self.row_bytes.value
            * u64::from(self.rows.value)
            * u64::from(self.ranks.value)
            * u64::from(self.bank_groups.value)
            * u64::from(self.banks_per_group.value)
    }

    fn validate(&self, channel: &ChannelFile) -> Result<(), (String, String)> {
        let burst = channel.burst_bytes.value.get();
        let bad = |field: &str, message: &str| Err((format!("dram.{field}"), message.to_owned()));
        let powers = [
            ("ranks", self.ranks.value, 8),
            ("bank-groups", self.bank_groups.value, 16),
            ("banks-per-group", self.banks_per_group.value, 16),
            ("rows", self.rows.value, 1 << 24),
        ];
        for (field, value, most) in powers {
            if !value.is_power_of_two() || value > most {
                return bad(field, &format!("must be a power of two, at most {most}"));
            }
        }
        if self.ranks.value * self.bank_groups.value * self.banks_per_group.value > MAX_BANKS {
            return bad("ranks", &format!("a channel has at most {MAX_BANKS} banks"));
        }
        let row = self.row_bytes.value.get();
        if !row.is_power_of_two() || row < burst || row > 1 << 24 {
            return bad("row-bytes", "must be a power of two and at least a burst");
        }
        if let Some(cells) = &self.cells {
            cells.validate("dram")?;
        }
        let zero = |time: &Sourced<ClockTime>| time.value.cycles == 0 && time.value.nanos == 0.0;
        for (field, time) in [
            ("CL", &self.timing.CL),
            ("tBURST", &self.timing.tBURST),
            ("tRCD", &self.timing.tRCD),
            ("tRP", &self.timing.tRP),
            ("tRAS", &self.timing.tRAS),
            ("tREFI", &self.timing.tREFI),
        ] {
            if zero(time) {
                return bad(&format!("timing.{field}"), "must be above zero");
            }
        }
        // Between two refreshes a row must be opened, used and closed: else
        // nothing would ever be read.
        let times = crate::timing::DramCycles::new(self, channel);
        if times.refi <= 2 * times.sum_without_refi() {
            return bad("timing.tREFI", "must be more than twice the sum of all other times");
        }
        Ok(())
    }
}

impl NvmFile {
    fn validate(&self, burst: u64) -> Result<(), (String, String)> {
        let bad = |field: &str, message: &str| Err((format!("nvm.{field}"), message.to_owned()));
        let granularity = self.granularity.value.get();
        if !granularity.is_power_of_two() || granularity < burst || granularity > 64 * burst {
            return bad("granularity", "must be a power of two, 1 to 64 bursts");
        }
        if !self.capacity.value.get().is_power_of_two() || self.capacity.value.get() < granularity {
            return bad("capacity", "must be a power of two and at least the granularity");
        }
        if !self.partitions.value.is_power_of_two() || self.partitions.value > MAX_BANKS {
            return bad("partitions", "must be a power of two, at most 64");
        }
        for (field, value) in [
            ("pending-reads", self.pending_reads.value),
            ("pending-writes", self.pending_writes.value),
        ] {
            if !(1..=4096).contains(&value) {
                return bad(field, "must be 1 to 4096");
            }
        }
        if self.write_combining.value > 1 {
            return bad("write-combining", "must be 0 or 1");
        }
        if self.read_buffer.value > 4096 {
            return bad("read-buffer", "must be at most 4096");
        }
        self.cells.as_ref().map_or(Ok(()), |cells| cells.validate("nvm"))
    }
}
