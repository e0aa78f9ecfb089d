//! A small dump made by hand, with a page of each kind: for tests, and for fuzzing to begin with.

use terrace_live::evict::staging::{NOBODY, owner};
use terrace_live::failsafe::core_tables::{Anchor, MAGIC, VERSION};
use terrace_live::space::page_state::{BUSY, PageState};
use terrace_live::spill::location::{HEADER, Location, checksum};
use terrace_live::store::codec::{Codec, Effort, Packed, PageBytes};

use crate::PAGE;

/// Where the managed memory is.
pub const MANAGED: u64 = 0x1000_0000_0000;
const ANCHOR: u64 = 0x0e00_0000_0000;
const TABLES: u64 = ANCHOR + 0x10_000;
const STORE: u64 = ANCHOR + 0x20_000;
const SLOTS: u64 = ANCHOR + 0x40_000;
const SPILL: u64 = ANCHOR + 0x50_000;
/// Bytes of a region in the table, and where in it things are.
const REGION: (u64, u64, u64, u64) = (40, 8, 16, 24);

/// What the dump has of a page, and what it is to have.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// The page's name.
    pub what: &'static str,
    /// Its content in the dump.
    pub there: PageBytes,
    /// Its content when the dump is complete; `None` of one that is missing.
    pub wanted: Option<PageBytes>,
}

/// The dump, and its managed pages from [`MANAGED`] on.
#[derive(Clone, Debug)]
pub struct Sample {
    /// The file.
    pub file: Vec<u8>,
    /// The pages.
    pub pages: Vec<Wanted>,
}

/// Makes a page of numbers that compress.
fn numbers(seed: u64) -> PageBytes {
    let mut page = [0; PAGE as usize];
    for (i, word) in page.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        *word = (seed * 1000 + i as u64).to_le_bytes();
    }
    page
}

fn noise(seed: u64) -> PageBytes {
    let mut x = seed;
    core::array::from_fn(|_| {
        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (x >> 56) as u8
    })
}

/// Puts blobs into the store.
struct Store(Vec<u8>);

impl Store {
    fn put(&mut self, bytes: &[u8]) -> usize {
        let at = STORE as usize + self.0.len();
        self.0.extend((bytes.len() as u16).to_le_bytes());
        self.0.extend(bytes);
        self.0.resize(self.0.len().next_multiple_of(16), 0);
        at
    }
    fn pack(&mut self, page: &PageBytes, effort: Effort) -> usize {
        let mut codec = Codec::new();
        let Packed::Compressed(n) = codec.pack(page, effort) else { return 0 };
        self.put(codec.output(n))
    }
}

/// Makes the dump.
pub fn sample() -> Sample {
    const ZERO: PageBytes = [0; PAGE as usize];
    let mut store = Store(vec![0; 64]);
    let record = numbers(9);
    let spilled = Location::new(32, PAGE as usize, true);
    let elsewhere = Location::new(1 << 30, PAGE as usize, true);
    let mut spill = vec![0; 32];
    spill.extend(checksum(spilled, &record).to_le_bytes());
    spill.extend(record);
    spill.resize(spill.len().next_multiple_of(PAGE as usize), 0);
    assert_eq!(HEADER, 4);
    let quick = PageState::Compressed(store.pack(&numbers(2), Effort::Quick));
    let tight = PageState::Compressed(store.pack(&numbers(3), Effort::Tight));
    let raw = PageState::Raw(store.put(&noise(4)));
    let same = PageState::Same(store.put(&[7, 6, 5, 4, 3, 2, 1, 0]));
    let damaged = PageState::Compressed(store.put(&[0, 1, 2, 3]));
    let mut repeated = ZERO;
    repeated.as_chunks_mut::<8>().0.fill([7, 6, 5, 4, 3, 2, 1, 0]);
    let mut rows = Vec::new();
    let mut row = |what, state: PageState, busy, there: PageBytes, wanted: Option<PageBytes>| {
        rows.push((what, state.word() | busy, there, wanted));
    };
    row("fresh", PageState::Fresh, 0, ZERO, Some(ZERO));
    row("resident", PageState::Resident, 0, numbers(1), Some(numbers(1)));
    row("quick", quick, 0, ZERO, Some(numbers(2)));
    row("tight", tight, BUSY, ZERO, Some(numbers(3)));
    row("raw", raw, 0, ZERO, Some(noise(4)));
    row("same", same, 0, ZERO, Some(repeated));
    row("zeros", PageState::Same(0), 0, ZERO, Some(ZERO));
    row("staged", PageState::Staged(1), 0, ZERO, Some(numbers(6)));
    row("leaving", PageState::Resident, BUSY, ZERO, Some(numbers(7)));
    row("arrived", quick, BUSY, numbers(8), Some(numbers(8)));
    row("spilled", PageState::Spilled(spilled), 0, ZERO, Some(numbers(9)));
    row("gone", PageState::Gone, 0, ZERO, Some(ZERO));
    row("damaged", damaged, 0, ZERO, None);
    row("elsewhere", PageState::Spilled(elsewhere), 0, ZERO, None);
    // Owners, what single words say, parts of the table, its first region, the pages' words.
    let mut owners = [NOBODY; 4];
    (owners[1], owners[2]) = (owner(1, 7), owner(1, 8));
    let word = |i: u64| TABLES + 64 + 8 * i;
    let (parts, table, words) = (TABLES + 256, TABLES + 512, TABLES + 1024);
    let mut tables = vec![0; PAGE as usize];
    let mut put = |at: u64, value: u64| {
        let at = (at - TABLES) as usize;
        tables[at..at + 8].copy_from_slice(&value.to_le_bytes());
    };
    (0..4).for_each(|i| put(TABLES + 8 * i, owners[i as usize]));
    put(word(2), 2);
    put(word(3), 1);
    put(word(4), SPILL);
    put(word(5), spill.len() as u64);
    put(parts, table);
    let region = table + REGION.0;
    put(region + REGION.1, MANAGED);
    put(region + REGION.2, rows.len() as u64);
    put(region + REGION.3, words);
    (0..).zip(&rows).for_each(|(i, row)| put(words + 8 * i, row.1));
    let anchor = Anchor {
        version: VERSION,
        page: PAGE,
        pid: 1,
        over: word(0),
        frozen: word(1),
        segments: parts,
        segment_count: 1,
        segment_len: 2,
        region_size: REGION.0,
        region_start: REGION.1,
        region_pages: REGION.2,
        region_words: REGION.3,
        used: word(2),
        slots: SLOTS,
        slot_count: 4,
        owners: TABLES,
        mapped: word(3),
        mapped_at: word(4),
        mapped_len: word(5),
        spill_fd: u64::MAX,
        ..Anchor::default()
    };
    let anchor = MAGIC.into_iter().chain(anchor.to_words()).flat_map(u64::to_le_bytes).collect();
    let slots = [ZERO, numbers(6), numbers(7), ZERO].concat();
    let managed = rows.iter().flat_map(|row| row.2).collect();
    let parts = [
        (ANCHOR, anchor),
        (TABLES, tables),
        (STORE, store.0),
        (SLOTS, slots),
        (SPILL, spill),
        (MANAGED, managed),
    ];
    let pages =
        rows.iter().map(|(what, _, there, wanted)| Wanted { what, there: *there, wanted: *wanted });
    Sample { file: elf(&parts), pages: pages.collect() }
}

/// A dump with these parts of memory.
fn elf(parts: &[(u64, Vec<u8>)]) -> Vec<u8> {
    let mut file = vec![0; 64 + 56 * parts.len()];
    file[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
    let put = |file: &mut Vec<u8>, at: usize, value: u64, len: usize| {
        file[at..at + len].copy_from_slice(&value.to_le_bytes()[..len]);
    };
    // Type, machine, version, where the segments are, and the sizes of headers.
    for (at, value, len) in
        [(16, 4, 2), (18, 62, 2), (20, 1, 4), (32, 64, 8), (52, 64, 2), (54, 56, 2)]
    {
        put(&mut file, at, value, len);
    }
    put(&mut file, 56, parts.len() as u64, 2);
    for (i, (start, content)) in parts.iter().enumerate() {
        file.resize(file.len().next_multiple_of(512), 0);
        let (at, len, offset) = (64 + 56 * i, content.len() as u64, file.len() as u64);
        put(&mut file, at, 1, 4);
        for (field, value) in [(8, offset), (16, *start), (32, len), (40, len)] {
            put(&mut file, at + field, value, 8);
        }
        file.extend(content);
    }
    file
}
