//! DAMON's pictures as they come, by its tracepoint `damon:damon_aggregated`.
//!
//! By the files of sysfs a picture has to be waited for, DAMON takes no other order meanwhile,
//! and each region is a directory: several system calls to make, read and remove. The tracepoint
//! tells every region at the end of every aggregation, and nobody waits.

use std::io;
use std::path::Path;

use super::control::DamonRegion;
use crate::perf::record::{Raw, Record};
use crate::perf::ring::{Scope, Source};
use crate::perf::tracepoint::Tracepoint;

/// Pages of the ring: 256 KiB. A region is a record of 80 bytes, so three pictures of the most
/// regions that DAMON may have.
const RING_PAGES: usize = 64;

/// The tracepoint's number, and where its fields are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Format {
    number: u64,
    regions: usize,
    start: usize,
    end: usize,
    accesses: usize,
}

impl Format {
    /// Reads it from tracefs; what is missing is said.
    pub fn read(root: &Path) -> Result<Self, String> {
        let point = Tracepoint::read(root, "damon", "damon_aggregated")?;
        Self::of(&point).ok_or_else(|| "damon:damon_aggregated: fields are missing".to_owned())
    }

    fn of(point: &Tracepoint) -> Option<Self> {
        Some(Self {
            number: point.number,
            regions: point.field("nr_regions", 4)?,
            start: point.field("start", 8)?,
            end: point.field("end", 8)?,
            accesses: point.field("nr_accesses", 4)?,
        })
    }

    /// How many regions a picture has, and one of them.
    fn region(&self, raw: &Raw) -> Option<(u32, DamonRegion)> {
        let region = DamonRegion {
            start: raw.u64(self.start)?,
            end: raw.u64(self.end)?,
            accesses: raw.u32(self.accesses)?,
        };
        Some((raw.u32(self.regions)?, region))
    }
}

/// What one DAMON tells.
#[derive(Debug)]
pub struct Trace {
    format: Format,
    source: Source,
    album: Album,
}

impl Trace {
    /// Listens to the kernel thread of a DAMON.
    pub fn open(format: Format, thread: u32) -> io::Result<Self> {
        let source = Source::open_tracepoint(format.number, Scope::Thread(thread), RING_PAGES)?;
        source.enable()?;
        Ok(Self { format, source, album: Album::default() })
    }

    /// The latest whole picture since the last call. How many earlier ones and incomplete ones
    /// were dropped is told besides.
    pub fn picture(&mut self) -> (Option<Vec<DamonRegion>>, u64) {
        let Self { format, source, album } = self;
        let (mut latest, mut dropped) = (None, 0);
        let corrupt = source.drain(|record| match record {
            Record::Tracepoint(raw) => {
                let Some((count, region)) = format.region(&raw) else { return };
                if let Some(picture) = album.add(count, region) {
                    dropped += u64::from(latest.replace(picture).is_some());
                }
            }
            Record::Lost(_) => dropped += u64::from(album.discard()),
            Record::Sample(_) | Record::Throttled | Record::Other => {}
        });
        if corrupt {
            dropped += u64::from(album.discard());
        }
        (latest, dropped)
    }
}

/// Regions on their way to a whole picture.
#[derive(Debug, Default)]
struct Album {
    regions: Vec<DamonRegion>,
    /// How many it will be.
    count: u32,
}

impl Album {
    /// Enters a region of a picture of so many; the picture, if that makes it whole.
    fn add(&mut self, count: u32, region: DamonRegion) -> Option<Vec<DamonRegion>> {
        // Regions come in the order of their addresses. What does not follow begins another
        // picture: the rest of the last one was lost.
        let follows = self.regions.last().is_some_and(|last| last.end <= region.start);
        if !follows || self.count != count {
            self.regions.clear();
            self.count = count;
        }
        self.regions.push(region);
        let whole = self.regions.len() as u64 == u64::from(count);
        whole.then(|| std::mem::take(&mut self.regions))
    }

    /// Drops what there is of a picture; whether there was something.
    fn discard(&mut self) -> bool {
        let was = !self.regions.is_empty();
        self.regions.clear();
        was
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As Linux 6.18 has it.
    const FORMAT: &str = "name: damon_aggregated\nID: 767\nformat:\n\
        \tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\
        \tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n\
        \tfield:unsigned long target_id;\toffset:8;\tsize:8;\tsigned:0;\n\
        \tfield:unsigned int nr_regions;\toffset:16;\tsize:4;\tsigned:0;\n\
        \tfield:unsigned long start;\toffset:24;\tsize:8;\tsigned:0;\n\
        \tfield:unsigned long end;\toffset:32;\tsize:8;\tsigned:0;\n\
        \tfield:unsigned int nr_accesses;\toffset:40;\tsize:4;\tsigned:0;\n\
        \tfield:unsigned int age;\toffset:44;\tsize:4;\tsigned:0;\n";

    fn region(start: u64, accesses: u32) -> DamonRegion {
        DamonRegion { start, end: start + 4096, accesses }
    }

    #[test]
    fn fields_are_where_the_kernel_says_they_are() {
        let format = Format { number: 767, regions: 16, start: 24, end: 32, accesses: 40 };
        let parse = |text: String| Format::of(&Tracepoint::parse(text)?);
        assert_eq!(parse(FORMAT.to_owned()), Some(format));
        assert_eq!(parse(FORMAT.replace(" start;", " begin;")), None);
        assert_eq!(parse(FORMAT.replace("size:8", "size:4")), None, "another width");
        assert!(Format::read(Path::new("/nowhere")).is_err_and(|what| what.contains("tracefs")));
    }

    /// A picture of which half was lost would say that the other half is idle.
    #[test]
    fn only_whole_pictures_are_told() {
        let mut album = Album::default();
        assert_eq!(album.add(2, region(4096, 1)), None);
        assert_eq!(album.add(2, region(8192, 0)), Some(vec![region(4096, 1), region(8192, 0)]));
        // The second of two was lost, and the next picture has three.
        assert_eq!(album.add(2, region(4096, 5)), None);
        assert_eq!(album.add(3, region(4096, 2)), None);
        assert_eq!(album.add(3, region(8192, 2)), None);
        assert!(album.add(3, region(12288, 2)).is_some_and(|picture| picture.len() == 3));
        // As many as before, from the beginning.
        assert_eq!(album.add(2, region(4096, 7)), None);
        assert_eq!(album.add(2, region(4096, 8)), None);
        assert_eq!(album.add(2, region(8192, 8)), Some(vec![region(4096, 8), region(8192, 8)]));
        assert!(!album.discard());
    }
}
