//! The completed dump.
//!
//! It is the dump as it was, with the absent pages filled in. What cannot be brought back is no
//! longer in it: the segment is split around it, so that a debugger says that it cannot read the
//! address. For that, another table of segments is put at the file's end.

use std::io;

use object::elf;
use object::pod;
use object::read::elf::ProgramHeader as _;

use crate::content::Contents;
use crate::image::{Header, LE, Program, Section, is_zero};
use crate::source::Source;
use crate::survey::{Missing, Survey};
use crate::{Error, PAGE};

/// Bytes that are read or written at once.
const CHUNK: u64 = 1 << 20;
/// With more segments than this, what is missing stays zeros: no debugger would cope.
const MOST_SEGMENTS: usize = 1 << 20;

/// Where a dump is written to, from its beginning to its end.
pub trait Sink {
    /// Writes bytes.
    fn write(&mut self, bytes: &[u8]) -> io::Result<()>;
    /// Goes on behind so many zeros, which a file need not have room for.
    fn skip(&mut self, bytes: u64) -> io::Result<()>;
}

/// Why a dump was not written.
#[derive(Debug)]
pub enum WriteError {
    /// It cannot be read any more, or has changed.
    Read(Error),
    /// The new one cannot be written.
    Write(io::Error),
}

impl From<Error> for WriteError {
    fn from(error: Error) -> Self {
        Self::Read(error)
    }
}

/// Writes a dump with everything in its place that was found; says whether what is missing is
/// marked as that.
pub fn write<S: Source + ?Sized>(
    contents: &Contents<'_, S>,
    survey: &Survey,
    sink: &mut impl Sink,
) -> Result<bool, WriteError> {
    let image = contents.image;
    let (programs, is_split) = split(image.programs(), &survey.missing);
    let few = programs.len() <= MOST_SEGMENTS;
    let marks = is_split && few;
    let mut out = Out { sink, buffer: Vec::new(), zeros: 0 };
    let mut at = 0;
    let table = image.size().next_multiple_of(8);
    if marks {
        let mut header = *image.header();
        point_to(&mut header, table, programs.len());
        out.put(pod::bytes_of(&header))?;
        at = size_of::<Header>() as u64;
    }
    let mut page = [0; PAGE as usize];
    for &(offset, from) in &survey.absent {
        if offset < at {
            return Err(Error::damaged("a page lies in the headers").into());
        }
        copy(image.source(), at, offset, &mut out)?;
        contents.read(from, &mut page)?.map_err(|_| changed())?;
        out.put(&page)?;
        at = offset + PAGE;
    }
    copy(image.source(), at, image.size(), &mut out)?;
    if marks {
        out.put(&[0; 8][..(table - image.size()) as usize])?;
        out.put(pod::bytes_of_slice(&programs))?;
        out.put(pod::bytes_of(&section_zero(programs.len())?))?;
    }
    out.finish()?;
    Ok(marks || !is_split)
}

fn changed() -> Error {
    Error::Io(io::Error::other("it has changed while it was read"))
}

/// Has a header name another table of segments, which is followed by one section.
fn point_to(header: &mut Header, table: u64, count: usize) {
    header.e_phoff.set(LE, table);
    let many = count >= usize::from(elf::PN_XNUM);
    header.e_phnum.set(LE, if many { elf::PN_XNUM } else { count as u16 });
    // A section says how many there are, if there are so many. Debuggers look for no other.
    header.e_shoff.set(LE, table + (count * size_of::<Program>()) as u64);
    header.e_shentsize.set(LE, size_of::<Section>() as u16);
    header.e_shnum.set(LE, 1);
    header.e_shstrndx.set(LE, elf::SHN_UNDEF);
}

/// A section that says nothing but how many segments there are.
fn section_zero(count: usize) -> Result<Section, Error> {
    let bytes = [0; size_of::<Section>()];
    let (section, _) = pod::from_bytes::<Section>(&bytes).map_err(|()| changed())?;
    let mut section = *section;
    section.sh_info.set(LE, count as u32);
    Ok(section)
}

/// The program headers without what is missing, and whether that changes them. A segment without
/// content would not do: gdb shows zeros.
fn split(programs: &[Program], missing: &[Missing]) -> (Vec<Program>, bool) {
    let mut changed = false;
    let mut all = Vec::with_capacity(programs.len());
    for program in programs {
        if program.p_type(LE) != elf::PT_LOAD {
            all.push(*program);
            continue;
        }
        let (start, (offset, stored)) = (program.p_vaddr(LE), program.file_range(LE));
        let (end, memory_end) = (start + stored, start + program.p_memsz(LE).max(stored));
        let mut put = |from: u64, to: u64, stored: u64| {
            let mut piece = *program;
            piece.p_vaddr.set(LE, from);
            piece.p_memsz.set(LE, to - from);
            piece.p_filesz.set(LE, stored);
            piece.p_offset.set(LE, offset + (from - start));
            all.push(piece);
        };
        let first = missing.partition_point(|range| range.end <= start);
        let inside = missing[first..].iter().take_while(|range| range.start < end);
        let mut at = start;
        let mut pieces = 0;
        for range in inside {
            let (from, to) = (range.start.max(at), range.end.min(end));
            if from > at {
                put(at, from, from - at);
            }
            at = to;
            pieces += 1;
        }
        if pieces == 0 {
            all.push(*program);
        } else if at < memory_end {
            put(at, memory_end, end - at);
        }
        changed |= pieces > 0;
    }
    (all, changed)
}

/// Gathers what is written.
struct Out<'s, K: Sink> {
    sink: &'s mut K,
    buffer: Vec<u8>,
    /// Zeros that come before the buffer.
    zeros: u64,
}

impl<K: Sink> Out<'_, K> {
    fn put(&mut self, bytes: &[u8]) -> Result<(), WriteError> {
        if self.buffer.len() + bytes.len() > CHUNK as usize {
            self.flush()?;
        }
        self.buffer.extend_from_slice(bytes);
        Ok(())
    }

    fn put_zeros(&mut self, count: u64) -> Result<(), WriteError> {
        if !self.buffer.is_empty() {
            self.flush()?;
        }
        self.zeros += count;
        Ok(())
    }

    fn flush(&mut self) -> Result<(), WriteError> {
        if self.zeros > 0 {
            self.sink.skip(self.zeros).map_err(WriteError::Write)?;
        }
        if !self.buffer.is_empty() {
            self.sink.write(&self.buffer).map_err(WriteError::Write)?;
        }
        self.zeros = 0;
        self.buffer.clear();
        Ok(())
    }

    fn finish(mut self) -> Result<(), WriteError> {
        self.flush()
    }
}

/// Copies a part of a file; blocks of zeros become holes.
fn copy<S: Source + ?Sized>(
    source: &S,
    mut at: u64,
    end: u64,
    out: &mut Out<'_, impl Sink>,
) -> Result<(), WriteError> {
    let mut chunk = vec![0; CHUNK.min(end - at) as usize];
    while at < end {
        let data = source.next_data(at).map_err(Error::from)?.clamp(at, end);
        if data > at {
            out.put_zeros(data - at)?;
            at = data;
            continue;
        }
        // Up to where blocks begin, then whole ones.
        let len = (CHUNK - at % CHUNK).min(end - at) as usize;
        let chunk = &mut chunk[..len];
        source.read_at(at, chunk).map_err(Error::from)?;
        let until_block = (at.next_multiple_of(PAGE) - at).min(len as u64) as usize;
        let (head, blocks) = chunk.split_at(until_block);
        out.put(head)?;
        for block in blocks.chunks(PAGE as usize) {
            if block.len() as u64 == PAGE && is_zero(block) {
                out.put_zeros(PAGE)?;
            } else {
                out.put(block)?;
            }
        }
        at += len as u64;
    }
    Ok(())
}
