//! The library beside the medium itself and libpmemblk: sectors of both sizes, reads and writes.

use std::fs::OpenOptions;
use std::io;
use std::path::{Path, PathBuf};

use serde::Serialize;
use terrace_core::Bytes;
use terrace_volume::pm::mapped::Mapped;
use terrace_volume::superblock::{default_spare, new_uuid};
use terrace_volume::{
    Durability, Image, Medium, Mount, Pm, SectorSize, Superblock, Volume, create,
};

use crate::measure::{Job, Order, Plan, Row, Spread, Way, fill, measure};
use crate::memory::{NonTemporal, Plain};
use crate::mount::mounts;
use crate::ours::Ours;
use crate::pmemblk::Pool;
use crate::target::Target;

/// How often a volume is mounted to time it.
const MOUNTS: usize = 9;

/// What is measured, and where.
#[derive(Clone, Debug)]
pub struct Suite {
    /// Where files are made; they are removed at the end.
    pub directory: PathBuf,
    /// Bytes of each file.
    pub size: Bytes,
    /// Sizes of sectors.
    pub sectors: Vec<SectorSize>,
    /// Bytes of an operation; of one sector each if there are none.
    pub bytes: Vec<usize>,
    /// Orders of positions.
    pub orders: Vec<Order>,
    /// Numbers of threads.
    pub threads: Vec<usize>,
    /// Turns.
    pub plan: Plan,
    /// Which durability the volume has.
    pub durability: Option<Durability>,
    /// Whether files that are no DAX are handled as if they were, for what that costs.
    pub like_dax: bool,
    /// Whether memory copies and libpmemblk are measured as well.
    pub peers: bool,
}

/// What was measured of one size of sectors.
#[derive(Clone, Debug, Serialize)]
pub struct Section {
    /// Bytes of a sector.
    pub sector: u32,
    /// What survives what.
    pub durability: String,
    /// Each target and job.
    pub rows: Vec<Row>,
    /// Nanoseconds of a mount for each sector.
    pub mount_ns_per_sector: Option<Spread>,
    /// What could not be compared with, and why.
    pub missing: Vec<String>,
}

impl Suite {
    /// Measures each size of sectors.
    pub fn run(&self, progress: &dyn Fn(usize, usize)) -> io::Result<Vec<Section>> {
        let jobs = self.sectors.iter().map(|sector| self.jobs(*sector).len()).sum::<usize>();
        let mut done = 0;
        self.sectors
            .iter()
            .map(|&sector| {
                let step = |now: usize, all: usize, job: usize| {
                    progress((done + job) * 1000 + now * 1000 / all.max(1), jobs * 1000);
                };
                let section = self.section(sector, &step);
                done += self.jobs(sector).len();
                section
            })
            .collect()
    }

    fn jobs(&self, sector: SectorSize) -> Vec<Job> {
        let one = [sector.bytes() as usize];
        let sizes = if self.bytes.is_empty() { &one[..] } else { &self.bytes };
        let mut jobs = Vec::new();
        for &threads in &self.threads {
            for &order in &self.orders {
                for &bytes in sizes.iter().filter(|bytes| bytes.is_multiple_of(one[0])) {
                    for way in [Way::Write, Way::Read] {
                        jobs.push(Job { way, order, bytes, threads, depth: 1 });
                    }
                }
            }
        }
        jobs
    }

    fn section(
        &self,
        sector: SectorSize,
        progress: &dyn Fn(usize, usize, usize),
    ) -> io::Result<Section> {
        let directory =
            tempfile::Builder::new().prefix("terrace-volume-").tempdir_in(&self.directory)?;
        let (medium, durability) = self.volume(&directory.path().join("volume"), sector)?;
        // A small volume has by itself fewer lanes than there are threads.
        let most = self.threads.iter().copied().max().unwrap_or(1);
        let spare = default_spare(Bytes(medium.size()), sector);
        let lanes = (spare < 32 * most as u64).then_some(most);
        let how = Mount { lanes, ..Mount::default() };
        let volume = Volume::mount(medium, how).map_err(io::Error::other)?;
        let mut missing = Vec::new();
        let copies = self.peers.then(|| self.copies(directory.path())).transpose()?;
        let pool = self.pool(directory.path(), sector, &mut missing);
        let durable = Ours::new(&volume, true);
        let flushed = Ours::new(&volume, false);
        let mut targets: Vec<&dyn Target> = Vec::new();
        if let Some((plain, past_caches)) = &copies {
            targets.extend([plain as &dyn Target, past_caches]);
        }
        targets.extend(pool.iter().map(|pool| pool as &dyn Target));
        targets.extend([&durable as &dyn Target, &flushed]);
        for target in &targets {
            // Writing all through one that is durable each time takes long, and changes nothing.
            if target.name() != durable.name() {
                fill(*target, (64 << 10).min(target.capacity() as usize))?;
            }
        }
        let mut rows = Vec::new();
        for (number, job) in self.jobs(sector).into_iter().enumerate() {
            // Reads do not differ by what a write makes durable.
            let same = |name: &str| job.way == Way::Read && name == durable.name();
            let taken: Vec<_> =
                targets.iter().filter(|target| !same(&target.name())).copied().collect();
            rows.extend(measure(&taken, job, self.plan, &|now, all| progress(now, all, number))?);
        }
        drop(targets);
        let (mount_ns_per_sector, _) =
            mounts(volume.into_medium(), MOUNTS).map_err(io::Error::other)?;
        Ok(Section { sector: sector.bytes(), durability, rows, mount_ns_per_sector, missing })
    }

    fn volume(&self, path: &Path, sector: SectorSize) -> io::Result<(Medium, String)> {
        let image = Image::create(path, Some(self.size), false, self.durability)
            .map_err(io::Error::other)?;
        let total = Bytes(image.medium.size());
        let plan = Superblock::plan(total, sector, default_spare(total, sector), new_uuid())
            .map_err(io::Error::other)?;
        create(&image.medium, &plan, false).map_err(io::Error::other)?;
        if !self.like_dax {
            return Ok((image.medium, image.durability.name().into()));
        }
        drop(image);
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        let medium = Mapped::like_dax(&file, total.0).map_err(io::Error::other)?;
        Ok((Medium::Mapped(medium), "none (handled like DAX, for measuring)".into()))
    }

    fn copies(&self, directory: &Path) -> io::Result<(Plain, NonTemporal)> {
        let path = directory.join("copies");
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(path)?;
        rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, self.size.0)?;
        Ok((Plain::new(&file)?, NonTemporal::new(&file)?))
    }

    fn pool(
        &self,
        directory: &Path,
        sector: SectorSize,
        missing: &mut Vec<String>,
    ) -> Option<Pool> {
        if !self.peers {
            return None;
        }
        let made =
            Pool::create(&directory.join("pool"), self.size.0 as usize, sector.bytes() as usize);
        made.map_err(|e| missing.push(e.to_string())).ok()
    }
}
