//! The memory that a core dump holds.

use object::LittleEndian;
use object::elf::{self, FileHeader64, ProgramHeader64, SectionHeader64};
use object::pod;
use object::read::elf::{FileHeader as _, ProgramHeader as _};

use crate::source::Source;
use crate::{Error, PAGE};

/// The header of a 64-bit ELF file.
pub(crate) type Header = FileHeader64<LittleEndian>;
/// One of its program headers.
pub(crate) type Program = ProgramHeader64<LittleEndian>;
/// One of its section headers.
pub(crate) type Section = SectionHeader64<LittleEndian>;

pub(crate) const LE: LittleEndian = LittleEndian;

/// Notes longer than this are not looked at: those of 100,000 threads take some 300 MiB.
const MOST_NOTES: u64 = 1 << 30;
/// What a file compressed by zstd begins with: systemd keeps dumps so.
const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// Written by gdb into the dumps that it makes (`NT_GDB_TDESC`).
const GDB: &[u8] = b"GDB";

/// A part of the dumped process's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// First address.
    pub start: u64,
    /// Bytes of memory.
    pub memory: u64,
    /// Bytes of them that are in the file; at most as many.
    pub stored: u64,
    /// Where in the file.
    pub offset: u64,
}

impl Segment {
    /// One past the last address.
    pub fn end(&self) -> u64 {
        self.start + self.memory
    }
    /// One past the last address whose content is in the file.
    pub fn stored_end(&self) -> u64 {
        self.start + self.stored
    }
}

/// Where an address is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In the file, at this offset.
    Stored(u64),
    /// It was mapped, and the dump leaves its content out.
    LeftOut,
    /// It was not mapped.
    Unmapped,
}

/// A core dump.
pub struct Image<'s, S: Source + ?Sized> {
    source: &'s S,
    size: u64,
    header: Header,
    programs: Vec<Program>,
    /// In the order of addresses; they do not overlap.
    segments: Vec<Segment>,
    by_debugger: bool,
}

impl<'s, S: Source + ?Sized> Image<'s, S> {
    /// Reads a dump's headers, or says why it is none.
    pub fn open(source: &'s S) -> Result<Self, Error> {
        let size = source.size()?;
        let mut start = [0; size_of::<Header>()];
        let there = (size as usize).min(start.len());
        source.read_at(0, &mut start[..there])?;
        if start.starts_with(&ZSTD) {
            let hint = "`coredumpctl dump`, or `zstd -d`, makes it one";
            return Err(Error::format(format!("a compressed file, not a core dump: {hint}")));
        }
        if !start.starts_with(&elf::ELFMAG) {
            return Err(Error::format("not a core dump: it is no ELF file"));
        }
        if there < start.len() {
            return Err(Error::Truncated { needed: start.len() as u64, there: size });
        }
        let header = *Header::parse(&start[..]).map_err(|_| not_ours(&start))?;
        if !header.is_little_endian() || header.e_machine(LE) != elf::EM_X86_64 {
            return Err(not_ours(&start));
        }
        if header.e_type(LE) != elf::ET_CORE {
            return Err(Error::format("an ELF file, but not a core dump"));
        }
        let programs = read_programs(source, size, &header)?;
        let table = header.e_phoff(LE);
        let table = table..table + (programs.len() * size_of::<Program>()) as u64;
        let mut segments = Vec::new();
        let mut needed = 0;
        for program in &programs {
            let (offset, stored) = program.file_range(LE);
            let end = offset.checked_add(stored).ok_or_else(beyond)?;
            needed = needed.max(end);
            if program.p_type(LE) != elf::PT_LOAD {
                continue;
            }
            let segment = Segment {
                start: program.p_vaddr(LE),
                memory: program.p_memsz(LE).max(stored),
                stored,
                offset,
            };
            segment.start.checked_add(segment.memory).ok_or_else(beyond)?;
            let in_table = offset < table.end && table.start < end;
            if stored > 0 && (in_table || offset < size_of::<Header>() as u64) {
                return Err(Error::format("a damaged core dump: its memory lies in its headers"));
            }
            segments.push(segment);
        }
        if needed > size {
            return Err(Error::Truncated { needed, there: size });
        }
        segments.retain(|segment| segment.memory > 0);
        segments.sort_by_key(|segment| segment.start);
        if segments.windows(2).any(|pair| pair[0].end() > pair[1].start) {
            return Err(Error::format("a damaged core dump: its segments overlap"));
        }
        let by_debugger = is_by_debugger(source, &programs)?;
        Ok(Self { source, size, header, programs, segments, by_debugger })
    }

    /// Whether gdb has made it, and not the kernel. It gives a mapping up at the first page that it
    /// cannot read.
    pub fn is_by_debugger(&self) -> bool {
        self.by_debugger
    }
    /// Bytes of the file.
    pub fn size(&self) -> u64 {
        self.size
    }
    /// The memory that was mapped, in the order of addresses.
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }
    pub(crate) fn source(&self) -> &S {
        self.source
    }
    pub(crate) fn header(&self) -> &Header {
        &self.header
    }
    pub(crate) fn programs(&self) -> &[Program] {
        &self.programs
    }

    /// The segment of an address.
    pub fn segment(&self, address: u64) -> Option<&Segment> {
        let after = self.segments.partition_point(|segment| segment.start <= address);
        self.segments[..after].last().filter(|segment| address < segment.end())
    }

    /// Where an address is.
    pub fn place(&self, address: u64) -> Place {
        match self.segment(address) {
            None => Place::Unmapped,
            Some(segment) if address >= segment.stored_end() => Place::LeftOut,
            Some(segment) => Place::Stored(segment.offset + (address - segment.start)),
        }
    }

    /// Reads memory up to a buffer's length; how much of it the dump has without a gap.
    pub fn read_up_to(&self, address: u64, to: &mut [u8]) -> Result<usize, Error> {
        let mut done = 0;
        while done < to.len() {
            let Some(at) = address.checked_add(done as u64) else { break };
            let Some(segment) = self.segment(at).filter(|segment| at < segment.stored_end()) else {
                break;
            };
            let room = ((to.len() - done) as u64).min(segment.stored_end() - at) as usize;
            self.source
                .read_at(segment.offset + (at - segment.start), &mut to[done..done + room])?;
            done += room;
        }
        Ok(done)
    }

    /// Reads memory; false if the dump does not have all of it.
    pub fn read(&self, address: u64, to: &mut [u8]) -> Result<bool, Error> {
        Ok(self.read_up_to(address, to)? == to.len())
    }

    /// A word of 32 bits, if the dump has it.
    pub fn word32(&self, address: u64) -> Result<Option<u32>, Error> {
        let mut bytes = [0; 4];
        Ok(self.read(address, &mut bytes)?.then(|| u32::from_le_bytes(bytes)))
    }

    /// A word of 64 bits, if the dump has it.
    pub fn word64(&self, address: u64) -> Result<Option<u64>, Error> {
        let mut bytes = [0; 8];
        Ok(self.read(address, &mut bytes)?.then(|| u64::from_le_bytes(bytes)))
    }

    /// Whether all of a page reads as zeros; false of one that the dump does not have.
    pub fn is_zero_page(&self, address: u64) -> Result<bool, Error> {
        let mut page = [0; PAGE as usize];
        Ok(self.read(address, &mut page)? && is_zero(&page))
    }
}

/// Whether bytes are all zero.
pub(crate) fn is_zero(bytes: &[u8]) -> bool {
    let (words, rest) = bytes.as_chunks::<8>();
    words.iter().all(|word| *word == [0; 8]) && rest.iter().all(|byte| *byte == 0)
}

fn beyond() -> Error {
    Error::format("a damaged core dump: a segment is longer than anything can be")
}

/// A file of another kind of machine, in words.
fn not_ours(start: &[u8]) -> Error {
    let class = match start[4] {
        1 => "32-bit ",
        _ => "",
    };
    Error::format(format!(
        "an {class}ELF file of another kind of machine, not a core dump of x86-64"
    ))
}

/// The program headers, of which there may be more than the header can say.
fn read_programs<S: Source + ?Sized>(
    source: &S,
    size: u64,
    header: &Header,
) -> Result<Vec<Program>, Error> {
    let mut count = u64::from(header.e_phnum(LE));
    if header.e_phnum(LE) == elf::PN_XNUM {
        let mut section = [0; size_of::<Section>()];
        source.read_at(header.e_shoff(LE), &mut section).map_err(|_| no_headers())?;
        let (section, _) = pod::from_bytes::<Section>(&section).map_err(|()| no_headers())?;
        count = u64::from(section.sh_info.get(LE));
    }
    if count == 0 || usize::from(header.e_phentsize(LE)) != size_of::<Program>() {
        return Err(no_headers());
    }
    let len = count * size_of::<Program>() as u64;
    let end = header.e_phoff(LE).checked_add(len).ok_or_else(no_headers)?;
    if end > size {
        return Err(Error::Truncated { needed: end, there: size });
    }
    let mut bytes = vec![0; len as usize];
    source.read_at(header.e_phoff(LE), &mut bytes)?;
    pod::slice_from_all_bytes::<Program>(&bytes).map(<[Program]>::to_vec).map_err(|()| no_headers())
}

fn no_headers() -> Error {
    Error::format("a damaged core dump: it has no segments")
}

/// Whether a debugger's note is in it.
fn is_by_debugger<S: Source + ?Sized>(source: &S, programs: &[Program]) -> Result<bool, Error> {
    for program in programs.iter().filter(|program| program.p_type(LE) == elf::PT_NOTE) {
        let (offset, len) = program.file_range(LE);
        if len > MOST_NOTES {
            continue;
        }
        let mut bytes = vec![0; len as usize];
        source.read_at(offset, &mut bytes)?;
        // As if the notes were all there is.
        let mut alone = *program;
        alone.p_offset.set(LE, 0);
        let Ok(Some(mut notes)) = alone.notes(LE, &bytes[..]) else { continue };
        while let Ok(Some(note)) = notes.next() {
            if note.name() == GDB {
                return Ok(true);
            }
        }
    }
    Ok(false)
}
