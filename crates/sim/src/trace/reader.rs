//! Reading traces.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use super::codec::{Decoder, read_varint};
use super::format::{
    CHUNK, END, INDEX, MAGIC, MOST_BYTES, MOST_ENTRIES, OLDEST, SHARED, TraceError, TraceHeader,
    VERSION, WITH_CALLS,
};
use super::import::{self, Importer};
use super::io::{FIRST, IoCheck, IoRecord};
use super::summary::Notes;
use crate::error::SimError;
use crate::exact::{Access, Batch, SpaceEvent};
use crate::kernel::recorded;

/// Reads a trace from begin to end.
pub struct TraceReader<R> {
    from: R,
    file: PathBuf,
    header: TraceHeader,
    version: u32,
    batches: std::vec::IntoIter<Batch>,
    read: u64,
    /// Bytes read so far.
    position: u64,
    ended: bool,
    /// Chunks are counted and not unpacked.
    surveying: bool,
    /// What must hold of calls.
    io: IoCheck,
    /// Where the chunk of these batches begins.
    chunk: u64,
    /// Why there is no more, where something came before it.
    failed: Option<TraceError>,
    /// Whether calls were passed over, so that those that follow cannot be checked.
    sought: bool,
}

/// What a trace's index says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceIndex {
    /// Offset in the file and number of the first access of each chunk.
    pub chunks: Vec<(u64, u64)>,
    /// Accesses of the whole trace.
    pub accesses: u64,
}

impl TraceReader<BufReader<File>> {
    /// Opens a trace file.
    pub fn open(path: &Path) -> Result<Self, TraceError> {
        let file = File::open(path).map_err(|source| TraceError {
            file: path.to_owned(),
            readable: 0,
            message: source.to_string(),
            source: Some(source),
        })?;
        Self::new(BufReader::with_capacity(1 << 16, file), path)
    }
}

impl<R: Read> TraceReader<R> {
    /// Begins to read; `file` is for errors.
    pub fn new(from: R, file: &Path) -> Result<Self, TraceError> {
        let mut reader = Self {
            from,
            file: file.to_owned(),
            header: TraceHeader::default(),
            version: VERSION,
            batches: Vec::new().into_iter(),
            read: 0,
            position: 0,
            ended: false,
            surveying: false,
            io: IoCheck::default(),
            chunk: 0,
            failed: None,
            sought: false,
        };
        let mut magic = [0; 8];
        reader.fill(&mut magic, "the header")?;
        if magic[0] == b'{' {
            return Err(reader.bad("not a trace of memory accesses (recorded decisions are read by `terrace report`, `why` and `replay`)"));
        }
        if let Some(what) = import::packed(&magic) {
            let calls = if recorded::is_meant(&magic) {
                ", or recorded calls, which `terrace reproduce klocs --trace` reads"
            } else {
                ""
            };
            return Err(reader.bad(format!("is {what}{calls}")));
        }
        if magic != MAGIC {
            return Err(reader.bad("not a trace of Terrace (others are read with --format, or converted by `terrace convert`)"));
        }
        let version = reader.number("the header")?;
        if !(OLDEST..=VERSION).contains(&version) {
            return Err(reader.bad(format!(
                "format version {version}; this version of Terrace reads versions {OLDEST} to {VERSION}"
            )));
        }
        reader.version = version;
        let len = reader.number("the header")?;
        if len > 1 << 20 {
            return Err(reader.bad("the header is longer than a header can be"));
        }
        let mut json = vec![0; len as usize];
        reader.fill(&mut json, "the header")?;
        reader.header = serde_json::from_slice(&json)
            .map_err(|e| reader.bad(format!("the header is damaged: {e}")))?;
        Ok(reader)
    }

    /// What was recorded.
    pub fn header(&self) -> &TraceHeader {
        &self.header
    }

    /// Accesses that were read.
    pub fn accesses(&self) -> u64 {
        self.read
    }

    /// Calls that were read.
    pub fn calls(&self) -> u64 {
        self.io.calls()
    }

    fn bad(&self, message: impl Into<String>) -> TraceError {
        TraceError {
            file: self.file.clone(),
            readable: self.read,
            message: message.into(),
            source: None,
        }
    }

    /// How much was readable, in words. An entry of a chunk that is not unpacked may be none.
    fn readable(&self) -> String {
        let most = if self.surveying { "at most " } else { "" };
        let calls = match self.io.calls() {
            0 => String::new(),
            calls => format!(" and {calls} calls"),
        };
        format!("{most}{} readable accesses{calls}", self.read)
    }

    fn fill(&mut self, bytes: &mut [u8], within: &str) -> Result<(), TraceError> {
        self.from.read_exact(bytes).map_err(|source| self.cut_off(within, source))?;
        self.position += bytes.len() as u64;
        Ok(())
    }

    fn cut_off(&self, within: &str, source: io::Error) -> TraceError {
        let message = if source.kind() == io::ErrorKind::UnexpectedEof {
            format!(
                "truncated within {within}, after {} (was recording interrupted?)",
                self.readable()
            )
        } else {
            source.to_string()
        };
        TraceError { file: self.file.clone(), readable: self.read, message, source: Some(source) }
    }

    fn number(&mut self, within: &str) -> Result<u32, TraceError> {
        let mut bytes = [0; 4];
        self.fill(&mut bytes, within)?;
        Ok(u32::from_le_bytes(bytes))
    }

    fn next_chunk(&mut self) -> Result<bool, TraceError> {
        let mut magic = [0; 4];
        self.fill(&mut magic, "a chunk")?;
        if magic == INDEX {
            self.ended = true;
            if self.finish()? != self.read {
                return Err(self.of_another());
            }
            return Ok(false);
        }
        self.chunk = self.position - CHUNK.len() as u64;
        let [entries, batches, packed, lengths @ ..] = self.lengths(magic)?;
        let total: u64 = lengths.iter().map(|&n| u64::from(n)).sum();
        let mut bytes = vec![0; packed as usize];
        self.fill(&mut bytes, "a chunk")?;
        let plain = zstd::bulk::decompress(&bytes, total as usize)
            .map_err(|e| self.bad(format!("damaged after {}: {e}", self.readable())))?;
        let decoded = (plain.len() as u64 == total)
            .then(|| {
                let has_calls = self.version >= WITH_CALLS;
                decode(&plain, lengths.map(|n| n as usize), batches, entries, has_calls)
            })
            .flatten();
        let Some(decoded) = decoded else {
            let message =
                format!("damaged after {}: a chunk's streams do not fit together", self.readable());
            return Err(self.bad(message));
        };
        self.batches = decoded.into_iter();
        Ok(true)
    }

    /// What a chunk's head says, after its mark: accesses, batches, compressed length, and the
    /// length of each stream.
    fn lengths(&mut self, mark: [u8; 4]) -> Result<[u32; 7], TraceError> {
        if mark != CHUNK {
            let message = format!("damaged after {}", self.readable());
            return Err(self.bad(message));
        }
        let mut numbers = [0; 7];
        for number in &mut numbers {
            *number = self.number("a chunk")?;
        }
        let [entries, batches, packed, lengths @ ..] = numbers;
        let total: u64 = lengths.iter().map(|&n| u64::from(n)).sum();
        let impossible = entries > MOST_ENTRIES
            || batches > MOST_BYTES
            || packed > MOST_BYTES
            || total > u64::from(MOST_BYTES)
            || entries != lengths[1];
        if impossible {
            let message =
                format!("damaged after {}: a chunk's lengths are impossible", self.readable());
            return Err(self.bad(message));
        }
        Ok(numbers)
    }

    fn of_another(&self) -> TraceError {
        self.bad(format!("damaged after {}: its index is of another trace", self.readable()))
    }

    /// Reads what follows the mark of the index, which must be the file's end; how many
    /// accesses it says there are.
    fn finish(&mut self) -> Result<u64, TraceError> {
        let index = self.position - INDEX.len() as u64;
        let eight = |reader: &mut Self| {
            let mut bytes = [0; 8];
            reader.fill(&mut bytes, "the index").map(|()| u64::from_le_bytes(bytes))
        };
        for _ in 0..self.number("the index")? {
            eight(self)?;
            eight(self)?;
        }
        let (accesses, offset) = (eight(self)?, eight(self)?);
        let mut mark = [0; 8];
        self.fill(&mut mark, "the index")?;
        if (offset, mark) != (index, END) {
            return Err(self.of_another());
        }
        let mut more = [0];
        loop {
            match self.from.read(&mut more) {
                Ok(0) => return Ok(accesses),
                Ok(_) => {
                    return Err(self.bad(format!(
                        "the trace ends at byte {}, but the file goes on",
                        self.position
                    )));
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(self.bad(e.to_string())),
            }
        }
    }

    /// The next batch; `None` at the end.
    pub fn next_batch(&mut self) -> Result<Option<Batch>, TraceError> {
        loop {
            if let Some(error) = self.failed.take() {
                // Nothing behind it can be told from what is wrong with it.
                self.batches = Vec::new().into_iter();
                self.ended = true;
                return Err(error);
            }
            if let Some(mut batch) = self.batches.next() {
                if self.version < SHARED {
                    told_apart(&mut batch);
                }
                if let Err(error) = self.check(&mut batch) {
                    self.failed = Some(error);
                    if batch.events.is_empty() && batch.io.is_empty() {
                        continue;
                    }
                }
                self.read += self.counted(&batch);
                return Ok(Some(batch));
            }
            if self.ended || !self.next_chunk()? {
                return Ok(None);
            }
        }
    }
}

impl<R: Read> TraceReader<R> {
    /// Accesses of a batch, as the index counts them: of version 1 with fetches.
    fn counted(&self, batch: &Batch) -> u64 {
        if self.header.fetches {
            return batch.accesses.len() as u64;
        }
        batch.accesses.iter().filter(|access| access.is_data()).count() as u64
    }
}

impl<R: Read + Seek> TraceReader<R> {
    /// Looks whether the trace is whole, from chunk to chunk and without unpacking any; returns
    /// how many accesses it has. The place in the trace stays.
    pub fn survey(&mut self) -> Result<u64, TraceError> {
        let before = (self.position, self.read);
        let seek = |reader: &mut Self, to| {
            reader.from.seek(to).map_err(|e| reader.bad(format!("cannot seek: {e}")))
        };
        let length = seek(self, SeekFrom::End(0))?;
        seek(self, SeekFrom::Start(self.position))?;
        self.surveying = true;
        let walked = loop {
            match self.skip_chunk(length) {
                Ok(None) => {}
                Ok(Some(accesses)) => break Ok(accesses),
                Err(error) => break Err(error),
            }
        };
        self.surveying = false;
        (self.position, self.read) = before;
        seek(self, SeekFrom::Start(self.position))?;
        walked
    }

    /// Goes behind the next chunk; at the end, how many accesses the trace has. Chunks are not
    /// unpacked, so that errors can only say how many were readable at most.
    fn skip_chunk(&mut self, length: u64) -> Result<Option<u64>, TraceError> {
        let mut magic = [0; 4];
        self.fill(&mut magic, "a chunk")?;
        if magic == INDEX {
            return self.finish().map(Some);
        }
        let [entries, _, packed, ..] = self.lengths(magic)?;
        let end = self.position + u64::from(packed);
        if end > length {
            let cut = io::Error::from(io::ErrorKind::UnexpectedEof);
            return Err(self.cut_off("a chunk", cut));
        }
        self.from.seek(SeekFrom::Start(end)).map_err(|e| self.bad(format!("cannot seek: {e}")))?;
        self.position = end;
        self.read += u64::from(entries);
        Ok(None)
    }

    /// Reads the index. The place in the trace stays.
    pub fn index(&mut self) -> Result<TraceIndex, TraceError> {
        let io = |e: io::Error| TraceError {
            file: self.file.clone(),
            readable: self.read,
            message: format!("has no index, so it is not complete ({e})"),
            source: Some(e),
        };
        let at = self.from.stream_position().map_err(io)?;
        let mut end = [0; 16];
        self.from.seek(SeekFrom::End(-16)).map_err(io)?;
        self.from.read_exact(&mut end).map_err(io)?;
        let (offset, magic) = end.split_at(8);
        if magic != END {
            return Err(self.bad("has no index, so it is not complete"));
        }
        let mut eight = [0; 8];
        eight.copy_from_slice(offset);
        self.from.seek(SeekFrom::Start(u64::from_le_bytes(eight))).map_err(io)?;
        let mut rest = Vec::new();
        self.from.by_ref().take(u64::from(MOST_BYTES)).read_to_end(&mut rest).map_err(io)?;
        let index = parse_index(&rest).ok_or_else(|| self.bad("its index is damaged"))?;
        self.from.seek(SeekFrom::Start(at)).map_err(io)?;
        Ok(index)
    }

    /// Goes to the chunk that holds an access, and returns the number of the
    /// chunk's first. Calls are not checked from there on, unless it is the trace's beginning.
    pub fn seek(&mut self, access: u64) -> Result<u64, TraceError> {
        let index = self.index()?;
        let chunk = index.chunks.partition_point(|&(_, first)| first <= access).saturating_sub(1);
        let Some(&(offset, first)) = index.chunks.get(chunk) else { return Ok(0) };
        self.from
            .seek(SeekFrom::Start(offset))
            .map_err(|e| self.bad(format!("cannot seek: {e}")))?;
        self.batches = Vec::new().into_iter();
        (self.position, self.read) = (offset, first);
        (self.ended, self.failed, self.sought) = (false, None, first > 0);
        Ok(first)
    }
}

/// Makes entries of an earlier version into what they mean now: 255 instructions before an access
/// were that many.
fn told_apart(batch: &mut Batch) {
    let is_far = |access: &Access| access.is_data() && access.is_of_same_instruction();
    if batch.accesses.iter().any(is_far) {
        let before = std::mem::take(&mut batch.accesses);
        for access in before {
            if is_far(&access) {
                batch.accesses.push(Access::pass(255));
                batch.accesses.push(access.after(0));
            } else {
                batch.accesses.push(access);
            }
        }
    }
}

impl<R: Read> TraceReader<R> {
    /// Checks a batch's calls. Of one with a call that cannot have been made, what comes before
    /// that call is left.
    fn check(&mut self, batch: &mut Batch) -> Result<(), TraceError> {
        if self.sought {
            return Ok(());
        }
        for place in 0..batch.io.len() {
            let record = batch.io[place];
            let Err(unfit) = self.io.enter(batch.thread, &record) else { continue };
            batch.io.truncate(place);
            batch.accesses.clear();
            let what = match record {
                IoRecord::Call { .. } => format!("call {}", self.io.calls() + 1),
                _ => format!("a record behind call {}", self.io.calls()),
            };
            let message = format!(
                "damaged after {}: {what} (in the chunk at byte {}, of thread {}): {unfit}",
                self.readable(),
                self.chunk,
                batch.thread
            );
            return Err(self.bad(message));
        }
        Ok(())
    }
}

fn parse_index(bytes: &[u8]) -> Option<TraceIndex> {
    let rest = bytes.strip_prefix(&INDEX)?;
    let (count, mut rest) = rest.split_first_chunk::<4>()?;
    let mut number = || {
        let (bytes, after) = rest.split_first_chunk::<8>()?;
        rest = after;
        Some(u64::from_le_bytes(*bytes))
    };
    let mut chunks = Vec::new();
    for _ in 0..u32::from_le_bytes(*count) {
        chunks.push((number()?, number()?));
    }
    Some(TraceIndex { chunks, accesses: number()? })
}

/// Batches of a chunk; `None` where its streams do not fit together.
fn decode(
    plain: &[u8],
    lengths: [usize; 4],
    batches: u32,
    entries: u32,
    has_calls: bool,
) -> Option<Vec<Batch>> {
    let (mut head, rest) = plain.split_at_checked(lengths[0])?;
    let (codes, rest) = rest.split_at_checked(lengths[1])?;
    let (distances, metas) = rest.split_at_checked(lengths[2])?;
    let mut decoder = Decoder::new(codes, distances, metas);
    let mut left = u64::from(entries);
    // No chunk of ours has more records of calls, either.
    let mut io = MOST_ENTRIES;
    let mut decoded = Vec::new();
    for _ in 0..batches {
        let thread = u32::try_from(read_varint(&mut head)?).ok()?;
        let count = read_varint(&mut head)?;
        let events = read_varint(&mut head)?;
        left = left.checked_sub(count)?;
        let mut batch = Batch { thread, ..Batch::default() };
        for _ in 0..events {
            let (&kind, after) = head.split_first()?;
            if has_calls && kind >= FIRST {
                io = io.checked_sub(1)?;
                batch.io.push(IoRecord::decode(&mut head)?);
                continue;
            }
            head = after;
            let (start, len) = (read_varint(&mut head)?, read_varint(&mut head)?);
            batch.events.push(match kind {
                0 => SpaceEvent::Map { start, len },
                1 => SpaceEvent::Unmap { start, len },
                _ => return None,
            });
        }
        batch.accesses.reserve(count as usize);
        for _ in 0..count {
            batch.accesses.push(decoder.next()?);
        }
        decoded.push(batch);
    }
    (left == 0 && head.is_empty() && decoder.is_empty()).then_some(decoded)
}

impl<R: Read> Importer for TraceReader<R> {
    fn describe(&self) -> String {
        self.header.program.join(" ")
    }

    fn next(&mut self, batch: &mut Batch) -> Result<bool, SimError> {
        match self.next_batch()? {
            Some(next) => *batch = next,
            None => return Ok(false),
        }
        Ok(true)
    }

    fn tell(&self, _notes: &mut Notes) {}
}
