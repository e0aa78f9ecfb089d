//! What the kernel writes into a ring buffer, parsed.
//!
//! Pure: words in, records out. A ring's size is a power of two of pages and
//! every record is a whole number of 8-byte words, so a word never straddles
//! the ring's end although records do; reading word by word is all it takes to
//! be safe from wraps. (HeMem's published code reads records as structures and
//! takes those at the end for garbage.)

use terrace_core::Access;

/// Fields of a sample that we ask for: bits of `enum perf_event_sample_format`.
pub mod field {
    /// The instruction.
    pub const IP: u64 = 1 << 0;
    /// Process and thread.
    pub const TID: u64 = 1 << 1;
    /// When.
    pub const TIME: u64 = 1 << 2;
    /// The address that was accessed.
    pub const ADDR: u64 = 1 << 3;
    /// The processor.
    pub const CPU: u64 = 1 << 7;
    /// Accesses since the last sample.
    pub const PERIOD: u64 = 1 << 8;
    /// What a tracepoint has to say. Of any length; what comes before it is parsed, what comes
    /// after it (`WEIGHT`, `DATA_SRC`) cannot be asked for together with it.
    pub const RAW: u64 = 1 << 10;
    /// Latency, in cycles.
    pub const WEIGHT: u64 = 1 << 14;
    /// Load or store, and what served it.
    pub const DATA_SRC: u64 = 1 << 15;
    /// Which event, first of all fields.
    pub const IDENTIFIER: u64 = 1 << 16;

    /// Each of them is one word; in this order in a record, before what is `RAW`.
    pub const ORDER: [u64; 9] = [IDENTIFIER, IP, TID, TIME, ADDR, CPU, PERIOD, WEIGHT, DATA_SRC];
    /// All that can be parsed.
    pub const KNOWN: u64 =
        IDENTIFIER | IP | TID | TIME | ADDR | CPU | PERIOD | RAW | WEIGHT | DATA_SRC;
}

/// One sampled access, as the kernel tells it. Fields that were not asked for
/// are zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SampleRecord {
    /// Which event.
    pub id: u64,
    /// The process.
    pub process: u32,
    /// The thread.
    pub thread: u32,
    /// The address that was accessed; zero if the operation accessed none.
    pub address: u64,
    /// Latency in cycles, where the processor tells it.
    pub latency: u64,
    /// `union perf_mem_data_src`.
    pub data_source: u64,
}

/// Operations of `perf_mem_data_src.mem_op`.
const OP_LOAD: u64 = 0x02;
const OP_STORE: u64 = 0x04;

impl SampleRecord {
    /// Load or store, if the processor tells.
    pub fn access(&self) -> Option<Access> {
        match self.data_source & 0x1f {
            op if op & OP_STORE != 0 => Some(Access::Write),
            op if op & OP_LOAD != 0 => Some(Access::Read),
            _ => None,
        }
    }
}

/// What a tracepoint says: the bytes that its `format` file describes, as words of 4 bytes. What
/// is longer than that is cut.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Raw {
    process: u32,
    words: [u32; Self::WORDS],
    size: usize,
}

impl Raw {
    /// Words of 4 bytes that are kept.
    const WORDS: usize = 16;

    /// The process that went through the tracepoint.
    pub fn process(&self) -> u32 {
        self.process
    }

    /// The field of 4 bytes at an offset, which is a multiple of that; `None` if there is none.
    pub fn u32(&self, offset: usize) -> Option<u32> {
        let end = offset.checked_add(4)?;
        if !offset.is_multiple_of(4) || end > self.size {
            return None;
        }
        self.words.get(offset / 4).copied()
    }

    /// The same of 8 bytes.
    pub fn u64(&self, offset: usize) -> Option<u64> {
        let high = self.u32(offset.checked_add(4)?)?;
        Some(u64::from(self.u32(offset)?) | u64::from(high) << 32)
    }
}

/// A record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record {
    /// `PERF_RECORD_SAMPLE`
    Sample(SampleRecord),
    /// The same of a tracepoint.
    Tracepoint(Raw),
    /// `PERF_RECORD_LOST`, `PERF_RECORD_LOST_SAMPLES`: so many are missing.
    Lost(u64),
    /// `PERF_RECORD_THROTTLE`: the kernel found that sampling takes too long.
    Throttled,
    /// Anything else.
    Other,
}

const LOST: u32 = 2;
const THROTTLE: u32 = 5;
const SAMPLE: u32 = 9;
const LOST_SAMPLES: u32 = 13;

/// A ring whose content makes no sense. Nothing after it can be found again,
/// so a reader goes on at the kernel's position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Corrupt;

/// Reads the records between two positions of a ring.
///
/// `word` returns the ring's word at an index below `words`, which is a power
/// of two. Positions are the kernel's: in bytes, ever growing. `fields` is what
/// was asked for, bits of [`field`].
pub fn parse(
    word: impl Fn(usize) -> u64,
    words: usize,
    tail: u64,
    head: u64,
    fields: u64,
    mut each: impl FnMut(Record),
) -> Result<(), Corrupt> {
    let at = |position: u64| word((position / 8) as usize & (words - 1));
    let pending = head.wrapping_sub(tail);
    if !words.is_power_of_two()
        || !(head | tail).is_multiple_of(8)
        || pending > words as u64 * 8
        || fields & !field::KNOWN != 0
        || fields & field::RAW != 0 && fields & (field::WEIGHT | field::DATA_SRC) != 0
    {
        return Err(Corrupt);
    }
    let mut done = 0;
    while done < pending {
        let header = at(tail.wrapping_add(done));
        let (kind, size) = (header as u32, header >> 48);
        if size < 8 || !size.is_multiple_of(8) || size > pending - done {
            return Err(Corrupt);
        }
        let body = tail.wrapping_add(done + 8);
        let length = (size - 8) / 8;
        // Words of the body; those that a record is too short for are no words.
        let get = |i: u64| (i < length).then(|| at(body.wrapping_add(i * 8)));
        each(match kind {
            SAMPLE if fields & field::RAW != 0 => {
                Record::Tracepoint(raw(get, fields).ok_or(Corrupt)?)
            }
            SAMPLE => Record::Sample(sample(get, fields).ok_or(Corrupt)?),
            LOST => Record::Lost(get(1).ok_or(Corrupt)?),
            LOST_SAMPLES => Record::Lost(get(0).ok_or(Corrupt)?),
            THROTTLE => Record::Throttled,
            _ => Record::Other,
        });
        done += size;
    }
    Ok(())
}

/// What comes last: its size, 4 bytes, and as many bytes.
fn raw(get: impl Fn(u64) -> Option<u64>, fields: u64) -> Option<Raw> {
    let before = (fields & !field::RAW).count_ones().into();
    let size = get(before)? as u32 as usize;
    let process = sample(&get, fields & !field::RAW)?.process;
    let mut raw = Raw { process, words: [0; Raw::WORDS], size };
    for (i, word) in (1..=size.div_ceil(4) as u64).zip(&mut raw.words) {
        *word = (get(before + i / 2)? >> (32 * (i % 2))) as u32;
    }
    Some(raw)
}

fn sample(get: impl Fn(u64) -> Option<u64>, fields: u64) -> Option<SampleRecord> {
    let mut sample = SampleRecord::default();
    let asked = field::ORDER.into_iter().filter(|f| fields & f != 0);
    for (i, asked) in (0..).zip(asked) {
        let word = get(i)?;
        match asked {
            field::IDENTIFIER => sample.id = word,
            field::TID => {
                sample.process = word as u32;
                sample.thread = (word >> 32) as u32;
            }
            field::ADDR => sample.address = word,
            field::WEIGHT => sample.latency = word,
            field::DATA_SRC => sample.data_source = word,
            _ => {}
        }
    }
    Some(sample)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const FIELDS: u64 = field::IDENTIFIER | field::TID | field::ADDR | field::DATA_SRC;

    fn header(kind: u32, words: u64) -> u64 {
        u64::from(kind) | (words * 8) << 48
    }

    /// A record as the kernel writes it.
    fn written(record: &Record) -> Vec<u64> {
        match record {
            Record::Sample(s) => vec![
                header(SAMPLE, 5),
                s.id,
                u64::from(s.process) | u64::from(s.thread) << 32,
                s.address,
                s.data_source,
            ],
            Record::Lost(n) => vec![header(LOST, 3), 7, *n],
            Record::Throttled => vec![header(THROTTLE, 4), 1, 2, 3],
            Record::Other => vec![header(3, 6), 0, 0, 0, 0, 0],
            Record::Tracepoint(_) => unreachable!("not with these fields"),
        }
    }

    fn record() -> impl Strategy<Value = Record> {
        prop_oneof![
            4 => (any::<u64>(), any::<u32>(), any::<u32>(), any::<u64>(), any::<u64>()).prop_map(
                |(id, process, thread, address, data_source)| Record::Sample(SampleRecord {
                    id, process, thread, address, latency: 0, data_source,
                })
            ),
            1 => any::<u64>().prop_map(Record::Lost),
            1 => Just(Record::Throttled),
            1 => Just(Record::Other),
        ]
    }

    proptest! {
        /// Wherever in the ring reading begins, also at the very end of the
        /// position's range: what was written is what is read.
        #[test]
        fn records_survive_any_wrap(
            records in prop::collection::vec(record(), 0..40),
            offset in prop_oneof![0u64..600, (u64::MAX / 8 - 300)..=(u64::MAX / 8)],
        ) {
            let words: Vec<u64> = records.iter().flat_map(written).collect();
            let size = 256usize;
            let tail = offset * 8;
            let mut ring = vec![0xdead_beef_dead_beefu64; size];
            for (i, word) in words.iter().enumerate() {
                ring[(tail / 8).wrapping_add(i as u64) as usize & (size - 1)] = *word;
            }
            let head = tail.wrapping_add(words.len() as u64 * 8);
            let mut read = Vec::new();
            let result = parse(|i| ring[i], size, tail, head, FIELDS, |r| read.push(r));
            if words.len() <= size {
                prop_assert_eq!(result, Ok(()));
                prop_assert_eq!(read, records);
            } else {
                prop_assert_eq!(result, Err(Corrupt), "more than the ring holds");
            }
        }

        /// Whatever lies in the ring, reading ends, stays inside, and never
        /// makes a sample of words beyond the kernel's position.
        #[test]
        fn garbage_is_refused_and_never_read_past_its_end(
            ring in prop::collection::vec(any::<u64>(), 16),
            tail in any::<u64>(), length in 0u64..200, fields in any::<u64>(),
        ) {
            let touched = std::cell::Cell::new(0u64);
            let word = |i: usize| { touched.set(touched.get() + 1); ring[i] };
            let fields = fields & field::KNOWN;
            let _ = parse(word, 16, tail, tail.wrapping_add(length), fields, |_| {});
            prop_assert!(touched.get() <= 16 * 2, "{} words of 16 read", touched.get());
        }
    }

    /// What the kernel of 6.18 wrote for `damon:damon_aggregated`, fields as in its `format`:
    /// regions at 8, accesses at 40.
    #[test]
    fn fields_of_a_tracepoint_are_found_by_their_offsets() {
        let fields = field::IDENTIFIER | field::TID | field::RAW;
        let bytes: Vec<u32> = (0..12).map(|i| 0x100 + i).collect();
        let mut ring = [0u64; 16];
        ring[0] = header(SAMPLE, 10);
        ring[2] = 0x4e << 32 | 0x4d;
        ring[3] = u64::from(bytes[0]) << 32 | 0x34;
        for (i, pair) in bytes[1..].chunks(2).enumerate() {
            let high = pair.get(1).copied().unwrap_or(0);
            ring[4 + i] = u64::from(pair[0]) | u64::from(high) << 32;
        }
        let mut read = None;

        let parsed = parse(|i| ring[i], 16, 0, 80, fields, |record| read = Some(record));

        assert_eq!(parsed, Ok(()));
        let Some(Record::Tracepoint(raw)) = read else { panic!("{read:?}") };
        assert_eq!(raw.process(), 77);
        assert_eq!(raw.u64(8), Some(0x103_0000_0102));
        assert_eq!(raw.u32(40), Some(0x10a));
        assert_eq!(raw.u32(41), None, "no field begins there");
        assert_eq!((raw.u32(52), raw.u64(48)), (None, None), "beyond its end");
    }

    /// A size that the record does not hold must not be believed.
    #[test]
    fn a_tracepoint_that_is_cut_off_is_refused() {
        let fields = field::IDENTIFIER | field::RAW;
        let mut ring = [0u64; 16];
        ring[0] = header(SAMPLE, 4);
        ring[2] = 48;
        assert_eq!(parse(|i| ring[i], 16, 0, 32, fields, |_| {}), Err(Corrupt));
        assert_eq!(parse(|i| ring[i], 16, 0, 0, fields | field::WEIGHT, |_| {}), Err(Corrupt));
    }

    #[test]
    fn a_record_that_says_it_is_empty_does_not_hold_the_reader_for_ever() {
        let ring = [0u64; 16];
        assert_eq!(parse(|i| ring[i], 16, 0, 64, FIELDS, |_| {}), Err(Corrupt));
    }

    #[test]
    fn stores_are_told_from_loads_by_the_data_source() {
        let with = |data_source| SampleRecord { data_source, ..SampleRecord::default() }.access();
        assert_eq!(with(0x02), Some(Access::Read));
        assert_eq!(with(0x04), Some(Access::Write));
        // A locked operation is both; it needs the line for writing.
        assert_eq!(with(0x06), Some(Access::Write));
        assert_eq!(with(0x01), None, "not available");
    }
}
