//! What DAMON saw, as `damo` records and prints it: how often each region of an
//! address space was found accessed in an interval.
//!
//! Three forms: `perf script` of `damon:damon_aggregated` events (also
//! `damon:damos_before_apply`), the text of `damo report raw`, and `damo`'s JSON,
//! which `damo record` writes compressed by zlib.
//!
//! A record is no trace: it says of a region that one of its pages, drawn anew
//! each time, was found accessed in so many of an interval's checks. It becomes
//! one of the accesses that it stands for: in each check that found the region
//! accessed each of its base pages is loaded once, and the checks of a region
//! are spread evenly over those of its interval. Loads and stores are not told
//! apart by DAMON; all are loads. Targets are threads.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use flate2::bufread::ZlibDecoder;
use serde::Deserialize;

use super::lines::{self, Lines};
use super::{BATCH, Importer, bad};
use crate::error::SimError;
use crate::exact::access::ADDRESSES;
use crate::exact::{Access, Batch};
use crate::trace::summary::{Fate, Notes};

/// Checks in an interval at most: an interval of hours checked every millisecond.
const MOST_CHECKS: u32 = 1 << 24;
/// Loads that one interval's regions stand for at most: all of 4 TiB in one check, or of 200 GiB in
/// each of 20. A damaged address may name 256 TiB, and would be written out page by page.
const MOST_LOADS: u64 = 1 << 30;
/// The longest JSON text: a thousand times what a day of recording gives.
const LARGEST: u64 = 1 << 32;
const PAGE: u64 = 4096;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Region {
    start: u64,
    end: u64,
    /// Checks that found it accessed.
    checks: u32,
}

/// One interval's regions of one target.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Snapshot {
    target: u64,
    regions: Vec<Region>,
    /// Checks that found the most accessed region accessed.
    checks: u32,
    /// Loads that the regions stand for.
    loads: u64,
}

impl Snapshot {
    /// Adds a region, unless writing out the snapshot would then take out of all proportion to
    /// the text.
    fn add(&mut self, region: Region) -> Result<(), &'static str> {
        let pages = region.end.div_ceil(PAGE) - region.start / PAGE;
        let checks = self.checks.max(region.checks);
        let loads = self.loads.saturating_add(pages.saturating_mul(u64::from(region.checks)));
        if loads > MOST_LOADS {
            return Err("up to here the snapshot's regions stand for more than 2^30 loads");
        }
        // Each check goes through all regions.
        if u64::from(checks).saturating_mul(self.regions.len() as u64 + 1) > MOST_LOADS {
            return Err("a snapshot of so many regions has not so many accesses of one");
        }
        self.regions.push(region);
        (self.checks, self.loads) = (checks, loads);
        Ok(())
    }
}

/// Where the reading of a snapshot has got.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    snapshot: usize,
    check: u32,
    region: usize,
    page: u64,
}

/// Reads a record of `damo`'s.
pub(super) struct Damo<R> {
    from: Option<R>,
    file: PathBuf,
    snapshots: Vec<Snapshot>,
    /// Targets in the order in which they came.
    targets: Vec<u64>,
    place: Place,
    counts: Counts,
}

#[derive(Debug, Default)]
struct Counts {
    /// Regions that damo made up to fill a record.
    made_up: u64,
    /// Lines that are not about regions.
    foreign: u64,
    /// Snapshots of which not every region came.
    incomplete: u64,
}

impl<R: Read> Damo<R> {
    /// Begins to read; `file` is for errors.
    pub(super) fn new(from: R, file: &Path) -> Self {
        Self {
            from: Some(from),
            file: file.to_owned(),
            snapshots: Vec::new(),
            targets: Vec::new(),
            place: Place::default(),
            counts: Counts::default(),
        }
    }

    fn bad(&self, line: u64, message: &str) -> SimError {
        let mut bad = bad(&self.file, self.snapshots.len() as u64, message.to_owned());
        if line > 0 {
            bad.file.as_mut_os_string().push(format!(":{line}"));
        }
        bad.into()
    }

    fn load(&mut self, from: R) -> Result<(), SimError> {
        let mut from = BufReader::with_capacity(1 << 16, from);
        let begin = from.fill_buf().map_err(|e| self.bad(0, &e.to_string()))?;
        if begin.starts_with(lines::BYTE_ORDER_MARK) {
            from.consume(lines::BYTE_ORDER_MARK.len());
        }
        let begin = from.fill_buf().map_err(|e| self.bad(0, &e.to_string()))?;
        let first = begin.iter().find(|byte| !byte.is_ascii_whitespace()).copied();
        match first {
            None => Err(self.bad(0, "is empty")),
            Some(b'[') => self.json(from),
            // The first byte of every zlib stream with a window of 32 KiB.
            Some(0x78) if begin.first() == Some(&0x78) => {
                self.json(ZlibDecoder::new(&mut from))?;
                match from.fill_buf() {
                    Ok([]) => Ok(()),
                    Ok(_) => Err(self.bad(0, "goes on after the end of what zlib packed")),
                    Err(e) => Err(self.bad(0, &e.to_string())),
                }
            }
            Some(_) => self.lines(from),
        }
    }

    fn json(&mut self, from: impl Read) -> Result<(), SimError> {
        // Serde's errors name line and column.
        let records: Vec<Record> = serde_json::from_reader(BufReader::new(from.take(LARGEST)))
            .map_err(|e| self.bad(0, &format!("is no JSON of damo: {e}")))?;
        let mut made_up = 0;
        for (number, record) in records.into_iter().enumerate() {
            let target = record.target_id.map_or(Ok(number as u64), |id| id.get());
            for (at, taken) in record.snapshots.into_iter().enumerate() {
                let field =
                    |what: String| self.bad(0, &format!("record {number}, snapshot {at}: {what}"));
                let target = target.clone().map_err(|e| field(format!("target_id: {e}")))?;
                let mut snapshot = Snapshot { target, ..Snapshot::default() };
                for told in taken.regions {
                    let region = told.region().map_err(&field)?;
                    let Some(region) = region else {
                        made_up += 1;
                        continue;
                    };
                    snapshot.add(region).map_err(|what| field(what.to_owned()))?;
                }
                self.snapshots.push(snapshot);
            }
        }
        self.counts.made_up = made_up;
        Ok(())
    }

    fn lines(&mut self, from: impl Read) -> Result<(), SimError> {
        // Names of programs stand in them, which may be of any bytes.
        let mut lines = Lines::new(from);
        let mut known = false;
        // Regions of the snapshot under way, and its target.
        let (mut snapshot, mut left) = (Snapshot::default(), 0u64);
        loop {
            let parsed = match lines.next() {
                Ok(Some(lines::Line::Whole(text))) => parse_line(text.trim()),
                Ok(Some(lines::Line::Long)) => Err("the line is too long for this format"),
                Ok(None) => break,
                Err(e) => return Err(self.bad(0, &e.to_string())),
            };
            let line = lines.number();
            let (target, expected, region) = match parsed {
                Ok(Line::Field) => continue,
                Ok(Line::Other) => {
                    self.counts.foreign += 1;
                    continue;
                }
                Ok(Line::Target(target)) => {
                    self.finish(&mut snapshot, left);
                    (snapshot.target, left, known) = (target, 0, true);
                    continue;
                }
                Ok(Line::Regions(regions)) => {
                    left = regions;
                    continue;
                }
                Ok(Line::Region(region)) if known => {
                    left = left.saturating_sub(1);
                    self.counts.made_up += u64::from(region.is_none());
                    (snapshot.target, 0, region)
                }
                Ok(Line::Region(_)) => {
                    return Err(self.bad(line, "a region before any `target_id: …`"));
                }
                Ok(Line::Event { target, regions, region }) => (target, regions, region),
                Err(what) => return Err(self.bad(line, what)),
            };
            // An event says how many make up its snapshot.
            if expected > 0 {
                if left == 0 || target != snapshot.target {
                    self.finish(&mut snapshot, left);
                    (snapshot.target, left) = (target, expected);
                }
                left -= 1;
            }
            if let Some(region) = region {
                snapshot.add(region).map_err(|what| self.bad(line, what))?;
            }
        }
        self.finish(&mut snapshot, left);
        if self.snapshots.is_empty() {
            let message = "has no region (perf script of damon:damon_aggregated, damo report raw, \
                           or damo's JSON)";
            return Err(self.bad(0, message));
        }
        Ok(())
    }

    /// A snapshot is over; so many regions of it have not come.
    fn finish(&mut self, snapshot: &mut Snapshot, missing: u64) {
        self.counts.incomplete += u64::from(missing > 0);
        if !snapshot.regions.is_empty() {
            self.snapshots.push(core::mem::take(snapshot));
        }
    }

    /// Enters accesses of the snapshot under way; goes on to the next when it is
    /// over.
    fn take(&mut self, out: &mut Vec<Access>) {
        let Some(snapshot) = self.snapshots.get(self.place.snapshot) else { return };
        let checks = snapshot.checks;
        let place = &mut self.place;
        while place.check < checks {
            while let Some(region) = snapshot.regions.get(place.region) {
                let begun =
                    |check: u32| u64::from(check) * u64::from(region.checks) / u64::from(checks);
                let accessed = begun(place.check + 1) > begun(place.check);
                let mut page = place.page.max(region.start & !(PAGE - 1));
                while accessed && page < region.end {
                    if out.len() == BATCH {
                        place.page = page;
                        return;
                    }
                    out.push(Access::load(page));
                    let Some(next) = page.checked_add(PAGE) else { break };
                    page = next;
                }
                (place.region, place.page) = (place.region + 1, 0);
            }
            (place.check, place.region) = (place.check + 1, 0);
        }
        *place = Place { snapshot: place.snapshot + 1, ..Place::default() };
    }
}

impl<R: Read> Importer for Damo<R> {
    fn describe(&self) -> String {
        self.file.display().to_string()
    }

    fn next(&mut self, batch: &mut Batch) -> Result<bool, SimError> {
        batch.clear();
        if let Some(from) = self.from.take() {
            self.load(from)?;
        }
        while let Some(snapshot) = self.snapshots.get(self.place.snapshot) {
            let target = snapshot.target;
            let known = self.targets.iter().position(|known| *known == target);
            let thread = known.unwrap_or(self.targets.len());
            if known.is_none() {
                self.targets.push(target);
            }
            batch.thread = thread as u32;
            self.take(&mut batch.accesses);
            if !batch.accesses.is_empty() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn tell(&self, notes: &mut Notes) {
        let Counts { made_up, foreign, incomplete } = self.counts;
        let checks = "checks that found a region accessed into a load of each of its pages";
        notes.whole(Fate::Folded, !self.snapshots.is_empty(), checks);
        notes.whole(Fate::Dropped, !self.snapshots.is_empty(), "times and ages of regions");
        notes.counted(Fate::Dropped, made_up, "regions that damo made up to fill a record");
        notes.counted(Fate::Skipped, foreign, "lines that are not about regions");
        let cut = "what is missing of snapshots that are not complete";
        notes.whole(Fate::Dropped, incomplete > 0, cut);
    }

    fn nothing(&self) -> String {
        format!("in none of its {} snapshots was a region accessed", self.snapshots.len())
    }
}

/// A region as it was told: nothing of one that damo made up to fill a record.
fn region(start: u64, end: u64, checks: i64) -> Result<Option<Region>, &'static str> {
    if checks == -1 {
        return Ok(None);
    }
    let checks = u32::try_from(checks).ok().filter(|checks| *checks <= MOST_CHECKS);
    let checks = checks.ok_or("no interval has so many accesses")?;
    if start >= end {
        return Err("the region ends where it starts, or before");
    }
    if end > ADDRESSES {
        return Err("the region ends beyond 48 bits");
    }
    Ok(Some(Region { start, end, checks }))
}

// --- lines -------------------------------------------------------------------

enum Line {
    /// Neither a region nor about one.
    Other,
    /// Empty, a comment, or something about a snapshot that is not needed.
    Field,
    /// `nr_regions: 17`: so many regions follow.
    Regions(u64),
    /// `target_id: 7`, which begins a snapshot of `damo report raw`.
    Target(u64),
    /// `55b8fe400000-55b8fe7bb000 (   3.730 MiB)           0    -1`.
    Region(Option<Region>),
    /// `… damon:damon_aggregated: target_id=7 nr_regions=17 4096-8192: 0 3`.
    Event { target: u64, regions: u64, region: Option<Region> },
}

/// How lines of `damo report raw` begin that say something of a snapshot.
const FIELDS: [&str; 7] = [
    "#",
    "base_time_absolute:",
    "data source:",
    "monitoring_start:",
    "monitoring_end:",
    "monitoring_duration:",
    "intervals:",
];

fn parse_line(line: &str) -> Result<Line, &'static str> {
    const EVENT: &str = "is no event of damon (`target_id=7 nr_regions=17 4096-8192: 0 3`)";
    const RAW: &str = "is no region of damo (`55b8fe400000-55b8fe7bb000 (3.730 MiB) 0 3`)";
    if let Some(id) = line.strip_prefix("target_id:") {
        return Ok(Line::Target(id.trim().parse().map_err(|_| "target_id is no number")?));
    }
    for name in ["damon:damon_aggregated:", "damon:damos_before_apply:"] {
        let Some((_, fields)) = line.split_once(name) else { continue };
        let event = event(fields).ok_or(EVENT)?;
        return event.map(|(target, regions, region)| Line::Event { target, regions, region });
    }
    if let Some(count) = line.strip_prefix("nr_regions:") {
        let count = count.trim().parse().map_err(|_| "nr_regions is no number")?;
        return Ok(Line::Regions(count));
    }
    let is_field = |name: &&str| line.starts_with(name);
    if line.is_empty() || FIELDS.iter().any(is_field) {
        return Ok(Line::Field);
    }
    let range = line.split_whitespace().next().and_then(|word| word.split_once('-'));
    let Some((start, end)) = range else { return Ok(Line::Other) };
    let hex = |text: &str| {
        let is_hex = text.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_hex.then(|| u64::from_str_radix(text, 16).ok()).flatten()
    };
    let (Some(start), Some(end)) = (hex(start), hex(end)) else { return Ok(Line::Other) };
    let checks = line.split_once(')').and_then(|(_, rest)| rest.split_whitespace().next());
    let checks = checks.and_then(|checks| checks.parse().ok()).ok_or(RAW)?;
    Ok(Line::Region(region(start, end, checks)?))
}

type Event = Result<(u64, u64, Option<Region>), &'static str>;

/// The fields of an event: `None` if they are not as they should be.
fn event(fields: &str) -> Option<Event> {
    let (mut target, mut regions) = (None, None);
    let mut words = fields.split_whitespace();
    let range = words.find(|word| {
        let Some((name, value)) = word.split_once('=') else { return true };
        match name {
            "target_id" | "target_idx" => target = value.parse().ok(),
            "nr_regions" => regions = value.parse().ok(),
            _ => {}
        }
        false
    })?;
    let (start, end) = range.strip_suffix(':')?.split_once('-')?;
    let checks = words.next()?.parse().ok()?;
    let (start, end) = (start.parse().ok()?, end.parse().ok()?);
    let regions = regions.filter(|regions| *regions > 0)?;
    let target = target?;
    Some(region(start, end, checks).map(|region| (target, regions, region)))
}

// --- JSON ----------------------------------------------------------------------

/// A number as damo writes it: itself, or text, perhaps with commas.
#[derive(Clone, Deserialize)]
#[serde(untagged)]
enum Number {
    Plain(i64),
    Large(u64),
    Text(String),
}

impl Number {
    fn get(&self) -> Result<u64, String> {
        match self {
            Self::Plain(number) => {
                u64::try_from(*number).map_err(|_| format!("{number} is negative"))
            }
            Self::Large(number) => Ok(*number),
            Self::Text(text) => {
                text.replace(',', "").trim().parse().map_err(|_| format!("`{text}` is no number"))
            }
        }
    }

    fn signed(&self) -> Result<i64, String> {
        match self {
            Self::Plain(number) => Ok(*number),
            Self::Text(text) if text.trim() == "-1" => Ok(-1),
            other => other.get().map(|number| i64::try_from(number).unwrap_or(i64::MAX)),
        }
    }
}

#[derive(Deserialize)]
struct Record {
    target_id: Option<Number>,
    snapshots: Vec<Taken>,
}

#[derive(Deserialize)]
struct Taken {
    regions: Vec<Told>,
}

#[derive(Deserialize)]
struct Told {
    start: Number,
    end: Number,
    nr_accesses: Checks,
}

#[derive(Deserialize)]
struct Checks {
    samples: Option<Number>,
}

impl Told {
    fn region(&self) -> Result<Option<Region>, String> {
        let start = self.start.get().map_err(|e| format!("start: {e}"))?;
        let end = self.end.get().map_err(|e| format!("end: {e}"))?;
        let samples = self.nr_accesses.samples.as_ref();
        let samples = samples.ok_or("nr_accesses has no `samples`")?;
        let checks = samples.signed().map_err(|e| format!("samples: {e}"))?;
        region(start, end, checks).map_err(|e| format!("{start}-{end}: {e}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &[u8]) -> Result<Vec<(u32, u64)>, String> {
        let mut source = Damo::new(text, Path::new("some.damo"));
        let (mut batch, mut all) = (Batch::default(), Vec::new());
        while source.next(&mut batch).map_err(|e| e.to_string())? {
            assert!(batch.accesses.iter().all(|access| !access.is_store()));
            all.extend(batch.accesses.iter().map(|access| (batch.thread, access.address())));
        }
        Ok(all)
    }

    /// Two checks of four found the second region, all four the first.
    const EXPECTED: [(u32, u64); 8] = [
        (0, 0x1000),
        (0, 0x1000),
        (0, 0x4000),
        (0, 0x5000),
        (0, 0x1000),
        (0, 0x1000),
        (0, 0x4000),
        (0, 0x5000),
    ];

    #[test]
    fn all_forms_mean_the_same() {
        let perf = b"kdamond.0  4452 [000] 82877.315633: damon:damon_aggregated: \
            target_id=9 nr_regions=3 4096-8192: 4 3\n\
            kdamond.0  4452 [000] 82877.315634: damon:damon_aggregated: \
            target_id=9 nr_regions=3 8192-16384: 0 3\n\
            prog 7 [000] 1.0: cycles: 55\n\
            kdamond.0  4452 [000] 82877.315635: damon:damon_aggregated: \
            target_id=9 nr_regions=3 16384-24576: 2\n";
        let raw = b"base_time_absolute: 8 m 59.809 s\n\nmonitoring_start: 0 ns\ntarget_id: 9\n\
            nr_regions: 3\n# start_addr     end_addr        length  nr_accesses   age\n\
            1000-2000 (   4.000 KiB)           4    -1\n2000-4000 (   8.000 KiB) 0 1\n\
            4000-6000 (   8.000 KiB) 2 1\n";
        let json = br#"[{"kdamond_idx": null, "intervals": null, "target_id": 9, "snapshots": [
            {"start_time": "0", "end_time": "100", "regions": [
            {"start": "4,096", "end": "8192", "nr_accesses": {"samples": "4", "percent": null},
             "age": {"usec": null, "aggr_intervals": "1"}},
            {"start": 8192, "end": 16384, "nr_accesses": {"samples": 0}},
            {"start": "16384", "end": "24576", "nr_accesses": {"samples": "2"}},
            {"start": "0", "end": "0", "nr_accesses": {"samples": "-1"}}]}]}]"#;
        let mut packed = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
        std::io::Write::write_all(&mut packed, json).expect("memory");
        let packed = packed.finish().expect("memory");
        for form in [perf.as_slice(), raw, json, &packed] {
            assert_eq!(read(form).as_deref(), Ok(EXPECTED.as_slice()));
        }
    }

    #[test]
    fn a_byte_order_mark_and_names_of_any_bytes_are_read_over() {
        let event = b"a\xff\xfeb 1/1 [0] 1.0: damon:damon_aggregated: target_id=0 nr_regions=1 \
            4096-8192: 1 1\n";
        assert_eq!(read(event).as_deref(), Ok([(0, 4096)].as_slice()));
        let raw = b"target_id: 9\nnr_regions: 1\n1000-2000 (4.000 KiB) 1 -1\n";
        let json = br#"[{"snapshots":[{"regions":[
            {"start":4096,"end":8192,"nr_accesses":{"samples":1}}]}]}]"#;
        for text in [raw.as_slice(), json, event] {
            let marked = [&b"\xef\xbb\xbf"[..], text].concat();
            assert_eq!(read(&marked).as_deref(), Ok([(0, 4096)].as_slice()));
        }
        let wrong =
            read(b"\xef\xbb\xbf\xff\n\nk: damon:damon_aggregated: 1\n").expect_err("no event");
        assert!(wrong.starts_with("some.damo:3: is no event"), "{wrong}");
        let long = read("y".repeat(1 << 17).as_bytes()).expect_err("no line of damo is so long");
        assert!(long.starts_with("some.damo:1: the line is too long"), "{long}");
    }

    /// Two targets whose events are mixed would else be taken for one.
    #[test]
    fn targets_are_threads_and_snapshots_follow_each_other() {
        let line = |target: u32, range: &str| {
            format!(
                "k 1 [0] 1.0: damon:damon_aggregated: target_id={target} nr_regions=1 {range}\n"
            )
        };
        let text = line(5, "0-4096: 1 0") + &line(6, "4096-8192: 1 0") + &line(5, "0-4096: 2 0");
        let expected = [(0, 0), (1, 4096), (0, 0), (0, 0)];
        assert_eq!(read(text.as_bytes()).as_deref(), Ok(expected.as_slice()));
    }

    /// An address that lost two digits made 93 TiB of one region, and the reading of it endless.
    #[test]
    fn what_no_interval_can_have_is_refused_and_not_written_out() {
        let raw = "target_id: 7\nnr_regions: 2\n1000-2000 (4.000 KiB) 1 -1\n\
            3ebaa00000-563ebaa02000 (8.000 KiB) 3 -1\n";
        let wrong = read(raw.as_bytes()).expect_err("93 TiB");
        assert!(wrong.starts_with("some.damo:4: ") && wrong.contains("2^30 loads"), "{wrong}");
        let json = r#"[{"snapshots":[{"regions":[
            {"start":0,"end":100000000000000,"nr_accesses":{"samples":1}}]}]}]"#;
        let wrong = read(json.as_bytes()).expect_err("91 TiB");
        assert!(wrong.contains("record 0, snapshot 0: ") && wrong.contains("2^30"), "{wrong}");
        // Nor does one region's count make every other be gone through as often.
        let line = "k 1 [0] 1.0: damon:damon_aggregated: target_id=1 nr_regions=80 0-4096: ";
        let text = format!("{line}16000000 0\n") + &format!("{line}0 0\n").repeat(79);
        let wrong = read(text.as_bytes()).expect_err("1.3 thousand million looks");
        assert!(wrong.contains("so many regions"), "{wrong}");
        // Memory that nobody touched may be of any length.
        let idle = "target_id: 7\n1000-2000 (4 KiB) 1 1\n2000-563ebaa02000 (86 TiB) 0 1\n";
        assert_eq!(read(idle.as_bytes()).as_deref(), Ok([(0, 0x1000)].as_slice()));
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line() {
        let error = |text: &str| read(text.as_bytes()).expect_err("refused");
        let event = "k 1 [0] 1.0: damon:damon_aggregated: target_id=1 nr_regions=1 ";
        let backwards = format!("{event}8192-4096: 1 0\n");
        assert!(error(&backwards).starts_with("some.damo:1: "), "{}", error(&backwards));
        assert!(error(&format!("\n{event}8192\n")).starts_with("some.damo:2: is no event"));
        assert!(error(&format!("{event}0-4096: 99999999999 0")).contains("so many accesses"));
        assert!(error("1000-2000 (4 KiB) 1 1\n").contains("target_id"));
        assert!(error("nothing of it\n").contains("has no region"));
        assert!(error("").contains("is empty"));
        assert!(error("[{]").contains("line 1 column 3"), "{}", error("[{]"));
        let region =
            r#"[{"snapshots":[{"regions":[{"start":1,"end":"x","nr_accesses":{"samples":1}}]}]}]"#;
        assert!(error(region).contains("record 0, snapshot 0: end: `x` is no number"));
    }
}
