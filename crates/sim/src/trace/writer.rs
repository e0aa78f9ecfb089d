//! Writing traces.

use std::io::{self, Write};

use super::codec::{Encoder, varint};
use super::format::{CHUNK, CHUNK_BATCHES, CHUNK_ENTRIES, END, INDEX, MAGIC, TraceHeader, VERSION};
use super::io::IoRecord;
use crate::exact::{Batch, SpaceEvent};

/// Compression level: 3 is zstd's own default, and keeps up with recording.
const LEVEL: i32 = 3;

/// Writes a trace as it comes, a chunk at a time.
pub struct TraceWriter<W: Write> {
    out: W,
    written: u64,
    encoder: Encoder,
    batches: Vec<u8>,
    batch_count: u32,
    chunk_entries: usize,
    /// Accesses before the chunk under way, and in it.
    before: u64,
    accesses: u64,
    calls: u64,
    index: Vec<(u64, u64)>,
}

impl<W: Write> TraceWriter<W> {
    /// Begins a trace.
    pub fn new(mut out: W, header: &TraceHeader) -> io::Result<Self> {
        let json = serde_json::to_vec(header).map_err(io::Error::other)?;
        out.write_all(&MAGIC)?;
        out.write_all(&VERSION.to_le_bytes())?;
        out.write_all(&(json.len() as u32).to_le_bytes())?;
        out.write_all(&json)?;
        Ok(Self {
            out,
            written: 16 + json.len() as u64,
            encoder: Encoder::new(),
            batches: Vec::new(),
            batch_count: 0,
            chunk_entries: 0,
            before: 0,
            accesses: 0,
            calls: 0,
            index: Vec::new(),
        })
    }

    /// Accesses so far.
    pub fn accesses(&self) -> u64 {
        self.before + self.accesses
    }

    /// Calls so far.
    pub fn calls(&self) -> u64 {
        self.calls
    }

    /// What it is written to.
    pub fn get_mut(&mut self) -> &mut W {
        &mut self.out
    }

    /// Bytes written so far; what is buffered is not among them.
    pub fn written(&self) -> u64 {
        self.written
    }

    /// Adds a batch.
    pub fn write(&mut self, batch: &Batch) -> io::Result<()> {
        if batch.barrier > 0 {
            return Err(io::Error::other("a trace cannot say that threads wait for each other"));
        }
        let (mut events, mut calls) = (&batch.events[..], &batch.io[..]);
        let mut accesses = &batch.accesses[..];
        // A batch that is larger than a chunk goes into several.
        while !accesses.is_empty() || !events.is_empty() || !calls.is_empty() {
            let (some, rest) = accesses.split_at(accesses.len().min(CHUNK_ENTRIES));
            varint(&mut self.batches, u64::from(batch.thread));
            varint(&mut self.batches, some.len() as u64);
            varint(&mut self.batches, (events.len() + calls.len()) as u64);
            for event in events {
                let (kind, start, len) = match *event {
                    SpaceEvent::Map { start, len } => (0, start, len),
                    SpaceEvent::Unmap { start, len } => (1, start, len),
                };
                self.batches.push(kind);
                varint(&mut self.batches, start);
                varint(&mut self.batches, len);
            }
            for record in calls {
                if !record.encode(&mut self.batches) {
                    return Err(io::Error::other("a trace cannot say what the program did itself"));
                }
                self.calls += u64::from(matches!(record, IoRecord::Call { .. }));
            }
            for &access in some {
                self.encoder.push(access);
                self.accesses += u64::from(access.is_data());
            }
            self.batch_count += 1;
            self.chunk_entries += some.len();
            (events, calls, accesses) = (&[], &[], rest);
            if self.chunk_entries >= CHUNK_ENTRIES || self.batches.len() >= CHUNK_BATCHES {
                self.flush_chunk()?;
            }
        }
        Ok(())
    }

    fn flush_chunk(&mut self) -> io::Result<()> {
        if self.batch_count == 0 {
            return Ok(());
        }
        let encoder = std::mem::replace(&mut self.encoder, Encoder::new());
        let streams = encoder.streams;
        let parts = [&self.batches, &streams.codes, &streams.distances, &streams.metas];
        let plain: Vec<u8> = parts.iter().flat_map(|part| part.iter().copied()).collect();
        let mut compressor = zstd::bulk::Compressor::new(LEVEL)?;
        compressor.include_checksum(true)?;
        let packed = compressor.compress(&plain)?;
        self.index.push((self.written, self.before));
        self.out.write_all(&CHUNK)?;
        let lengths = parts.map(|part| part.len() as u32);
        for number in [self.chunk_entries as u32, self.batch_count, packed.len() as u32]
            .iter()
            .chain(&lengths)
        {
            self.out.write_all(&number.to_le_bytes())?;
        }
        self.out.write_all(&packed)?;
        self.written += 4 + 7 * 4 + packed.len() as u64;
        self.before += std::mem::take(&mut self.accesses);
        self.batches.clear();
        self.batch_count = 0;
        self.chunk_entries = 0;
        Ok(())
    }

    /// Closes a chunk: what was written so far is readable if nothing more comes.
    pub fn flush(&mut self) -> io::Result<()> {
        self.flush_chunk()?;
        self.out.flush()
    }

    /// Ends the trace.
    pub fn finish(mut self) -> io::Result<W> {
        self.flush_chunk()?;
        self.out.write_all(&INDEX)?;
        self.out.write_all(&(self.index.len() as u32).to_le_bytes())?;
        for (offset, first) in &self.index {
            self.out.write_all(&offset.to_le_bytes())?;
            self.out.write_all(&first.to_le_bytes())?;
        }
        self.out.write_all(&self.before.to_le_bytes())?;
        self.out.write_all(&self.written.to_le_bytes())?;
        self.out.write_all(&END)?;
        self.out.flush()?;
        Ok(self.out)
    }
}
