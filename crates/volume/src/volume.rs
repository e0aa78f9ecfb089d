//! A mounted volume: what every lane shares, and reading.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use terrace_core::Bytes;

use crate::check::{Damage, Superblocks, Usage, scan};
use crate::entry::{Block, Content, Entry, copy_block};
use crate::error::{Result, VolumeError};
use crate::free::Free;
use crate::group::Group;
use crate::lane::Lane;
use crate::maintain::heal;
use crate::pm::view::View;
use crate::pm::{Cpu, Fault, Pm};
use crate::superblock::{HELD, SectorSize, Superblock};

/// How a volume is mounted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mount {
    /// Whether nothing is to be written. A damaged map can be mounted only so.
    pub read_only: bool,
    /// How many lanes there are to be at most; without it, as many as there are spare blocks for.
    pub lanes: Option<usize>,
}

/// Bytes of a sector that are fetched while one before it is copied. The processor itself fetches
/// the rest of a larger one when it sees that they are read in order.
const FETCHED: u64 = 512;

/// What a lane tells the others. On a cache line of its own: it is written with each write.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(crate) struct Slot {
    taken: AtomicBool,
    /// Whether it has changed the map since its last fence.
    pub(crate) unfenced: AtomicBool,
}

/// A mounted volume. Any thread reads; a thread that writes takes a [`Lane`].
#[derive(Debug)]
pub struct Volume<P: Pm> {
    pub(crate) pm: P,
    pub(crate) superblock: Superblock,
    read_only: bool,
    usage: Usage,
    damage: Vec<Damage>,
    /// Sectors that are not readable, if the map is damaged.
    unreadable: BTreeMap<u64, Damage>,
    pub(crate) slots: Box<[Slot]>,
    /// How many of them, from the last on, are kept for requests that come on any thread.
    kept_lanes: AtomicUsize,
    /// Sectors that a lane writes between two fences.
    pub(crate) batch: usize,
    free: Mutex<Free>,
    pub(crate) group: Option<Group>,
    /// The shorter way to sectors that a block holds, if all of them can be read so.
    view: Option<View>,
}

impl<P: Pm> Volume<P> {
    /// Mounts the volume that a medium holds.
    ///
    /// A superblock that is damaged or from before an interrupted resize is written anew, unless
    /// the mount is read-only. A damaged map is refused, unless the mount is read-only.
    pub fn mount(pm: P, how: Mount) -> Result<Self> {
        let superblocks = Superblocks::read(&pm)?;
        let superblock = superblocks.current;
        let mut kept = pm.is_grouped().then(|| Vec::with_capacity(superblock.sectors as usize));
        let scan = scan(&pm, &superblock, |line| {
            if let Some(kept) = &mut kept {
                kept.extend(line.iter().map(|stored| Entry::of(*stored)));
            }
        })?;
        if !how.read_only {
            if !scan.damage.is_empty() {
                return Err(VolumeError::Damaged(scan.damage));
            }
            // The process before may have ended between an entry's store and its write-back. Such
            // an entry is visible, so the block that it replaced is taken for free; before that
            // one is written, the entry must be durable.
            if !pm.has_fault(Fault::MountWithoutWriteBack) {
                pm.write_back(Cpu(0), superblock.map, superblock.sectors * 8)?;
                pm.fence(Cpu(0))?;
            }
            heal(&pm, &superblocks)?;
        }
        let most = (superblock.spare() / 2).clamp(1, 1024);
        let lanes = how.lanes.map_or(superblock.lanes(), |lanes| lanes as u64);
        if lanes == 0 || lanes > most {
            return Err(VolumeError::BadGeometry(format!(
                "{lanes} lanes, and {} spare blocks allow for 1 to {most}",
                superblock.spare()
            )));
        }
        let batch = (superblock.spare() / lanes).min(HELD) / 2;
        let damage = scan.damage.iter();
        let unreadable: BTreeMap<_, _> =
            damage.flat_map(|one| one.sectors().map(move |lba| (lba, *one))).collect();
        let is_direct = kept.is_none() && unreadable.is_empty();
        Ok(Self {
            view: is_direct.then(|| pm.view(&superblock)).flatten(),
            superblock,
            read_only: how.read_only,
            usage: scan.usage,
            damage: scan.damage,
            unreadable,
            slots: (0..lanes.min(1024)).map(|_| Slot::default()).collect(),
            kept_lanes: AtomicUsize::new(0),
            batch: batch as usize,
            free: Mutex::new(scan.free),
            group: kept.map(Group::new),
            pm,
        })
    }

    /// What the superblock says.
    pub fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// Sectors that a user sees.
    pub fn sectors(&self) -> u64 {
        self.superblock.sectors
    }

    /// Bytes of a sector.
    pub fn sector_size(&self) -> SectorSize {
        self.superblock.sector
    }

    /// Bytes that a user sees.
    pub fn capacity(&self) -> Bytes {
        self.superblock.capacity()
    }

    /// Whether nothing can be written.
    pub fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// What the sectors held when the volume was mounted.
    pub fn usage_at_mount(&self) -> Usage {
        self.usage
    }

    /// What is wrong with the map; nothing, unless the mount is read-only.
    pub fn damage(&self) -> &[Damage] {
        &self.damage
    }

    /// The medium.
    pub fn medium(&self) -> &P {
        &self.pm
    }

    /// Ends the mount. Lanes are gone by then, and have fenced what they wrote.
    pub fn into_medium(self) -> P {
        self.pm
    }

    /// Threads that can write at a time.
    pub fn lanes(&self) -> usize {
        self.slots.len()
    }

    /// A lane for this thread: the right to write.
    pub fn lane(&self) -> Result<Lane<'_, P>> {
        self.lane_among(0..self.lanes_to_take())
    }

    /// Lanes that [`Volume::lane`] has: all but those that a served file keeps for itself.
    pub fn lanes_to_take(&self) -> usize {
        self.lanes() - self.kept_lanes.load(Ordering::Relaxed)
    }

    /// Keeps lanes for requests that must not find all of them taken: so many, if there are twice as
    /// many, and one at least. How many it keeps.
    pub(crate) fn keep_lanes(&self, wanted: usize) -> usize {
        let kept = wanted.min(self.lanes() / 2).max(1);
        self.kept_lanes.store(kept, Ordering::Relaxed);
        kept
    }

    /// One of the lanes that are kept.
    pub(crate) fn kept_lane(&self) -> Result<Lane<'_, P>> {
        self.lane_among(self.lanes_to_take()..self.lanes())
    }

    fn lane_among(&self, numbers: Range<usize>) -> Result<Lane<'_, P>> {
        if self.read_only {
            return Err(VolumeError::ReadOnly);
        }
        let is_free = |number: &usize| !self.slots[*number].taken.swap(true, Ordering::Acquire);
        let count = numbers.len();
        let mut numbers = numbers;
        numbers
            .find(is_free)
            .map(|number| Lane::new(self, Cpu(number)))
            .ok_or(VolumeError::NoLane(count))
    }

    /// Makes everything durable that was written and acknowledged before, without a lane.
    pub fn flush(&self) -> Result {
        if self.read_only {
            return Ok(());
        }
        let cpu = Cpu(0);
        match &self.group {
            Some(group) => group.commit(self, cpu),
            // Without it, each write has fenced itself.
            None if self.pm.has_fence_all() => self.pm.fence_all(cpu),
            None => Ok(()),
        }
    }

    /// Whom to tell, once and at that moment, that a commit has failed, after which nothing more is
    /// written. Whoever asked for the commit has the error besides; a server's client may keep it to
    /// itself.
    pub fn tell_failure(&self, told: impl Fn(&VolumeError) + Send + Sync + 'static) {
        // Writes that are not committed in groups fail each by itself.
        if let Some(group) = &self.group {
            group.tell_failure(told);
        }
    }

    pub(crate) fn release(&self, lane: Cpu) {
        self.slots[lane.0].taken.store(false, Ordering::Release);
    }

    pub(crate) fn free(&self) -> MutexGuard<'_, Free> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Blocks that hold no sector, and that no lane has set aside.
    pub fn free_blocks(&self) -> u64 {
        self.free().count()
    }

    #[inline]
    pub(crate) fn check_range(&self, lba: u64, count: u64) -> Result {
        let sectors = self.sectors();
        if lba.checked_add(count).is_none_or(|end| end > sectors) {
            return Err(VolumeError::OutOfRange { lba, count, sectors });
        }
        Ok(())
    }

    /// Sectors of a buffer.
    #[inline]
    pub(crate) fn sectors_of(&self, length: usize) -> Result<u64> {
        let sector = self.superblock.sector.bytes();
        if length & (sector as usize - 1) != 0 {
            return Err(VolumeError::Unaligned { length, sector });
        }
        Ok(length as u64 >> sector.trailing_zeros())
    }

    /// A sector's entry as it is now.
    #[inline]
    pub(crate) fn entry(&self, lba: u64) -> Entry {
        match &self.group {
            Some(group) => group.entry(lba),
            None => Entry(self.pm.load(self.superblock.entry_at(lba))),
        }
    }

    #[inline]
    pub(crate) fn exchange(
        &self,
        cpu: Cpu,
        lba: u64,
        current: Entry,
        new: Entry,
    ) -> std::result::Result<(), Entry> {
        match &self.group {
            Some(group) => group.exchange(lba, current, new),
            None => self
                .pm
                .exchange(cpu, self.superblock.entry_at(lba), current.0, new.0)
                .map_err(Entry),
        }
    }

    /// Reads whole sectors. Each is as one write left it; a range is not read at one moment.
    ///
    /// Of small sectors in any order, a processor can begin to fetch the next while it waits for
    /// this one only if few instructions are between, some two hundred. So a [`View`] has what a
    /// sector in a block takes and no more.
    #[inline]
    pub fn read(&self, lba: u64, bytes: &mut [u8]) -> Result {
        if let Some(view) = &self.view
            && view.read(lba, bytes)
        {
            return Ok(());
        }
        self.read_any(lba, bytes)
    }

    /// Reads whatever is asked for, wherever it is.
    #[inline(never)]
    fn read_any(&self, lba: u64, bytes: &mut [u8]) -> Result {
        match self.superblock.sector {
            SectorSize::B512 => self.read_sectors::<512>(lba, bytes),
            SectorSize::B4096 => self.read_sectors::<4096>(lba, bytes),
        }
    }

    #[inline]
    fn read_sectors<const SIZE: usize>(&self, lba: u64, bytes: &mut [u8]) -> Result {
        let length = bytes.len();
        let (sectors, []) = bytes.as_chunks_mut::<SIZE>() else {
            return Err(VolumeError::Unaligned { length, sector: SIZE as u32 });
        };
        let count = sectors.len() as u64;
        self.check_range(lba, count)?;
        if !self.unreadable.is_empty()
            && let Some((&lba, &damage)) = self.unreadable.range(lba..lba + count).next()
        {
            return Err(VolumeError::Unreadable { lba, damage });
        }
        if let [sector] = sectors {
            return self.read_sector(lba, sector);
        }
        self.read_run(lba, sectors)
    }

    /// Reads some sectors in a row; the first bytes of one come near while another is copied.
    #[inline(never)]
    fn read_run<const SIZE: usize>(&self, lba: u64, sectors: &mut [[u8; SIZE]]) -> Result {
        // Copying a small one takes less time than to wait for the next.
        let ahead = if SIZE < 4096 { 2 } else { 1 };
        let end = lba + sectors.len() as u64;
        for next in lba + 1..end.min(lba + ahead) {
            self.expect_read(next);
        }
        for (lba, sector) in (lba..).zip(sectors) {
            if end - lba > ahead {
                self.expect_read(lba + ahead);
            }
            self.read_sector(lba, sector)?;
        }
        Ok(())
    }

    /// A sector will be read soon.
    #[inline]
    fn expect_read(&self, lba: u64) {
        if let Some(Block(block)) = self.entry(lba).block()
            && block < self.superblock.blocks
        {
            self.pm.expect_read(self.superblock.block_at(block), FETCHED);
        }
    }

    #[inline]
    fn read_sector<const SIZE: usize>(&self, lba: u64, bytes: &mut [u8; SIZE]) -> Result {
        let Superblock { blocks, data, .. } = self.superblock;
        let copy = |block: u64| self.pm.read(data + block * SIZE as u64, bytes);
        match copy_block(blocks, || self.entry(lba), copy)? {
            None => Ok(()),
            Some(entry) => Self::read_nothing(lba, entry, bytes),
        }
    }

    /// Reads a sector that is in no block: zeros, unless something was lost.
    #[inline(never)]
    fn read_nothing(lba: u64, entry: Entry, bytes: &mut [u8]) -> Result {
        match entry.content() {
            Some(Content::Unwritten | Content::Zero) => {
                bytes.fill(0);
                Ok(())
            }
            None | Some(Content::Lost | Content::In(_)) => Err(VolumeError::Lost(lba)),
        }
    }

    /// Whether a range reads as zeros because nothing is stored for it, and how many sectors from
    /// the first on are of the same kind.
    pub fn extent(&self, lba: u64, most: u64) -> Result<(bool, u64)> {
        self.check_range(lba, most)?;
        let is_hole =
            |lba| matches!(self.entry(lba).content(), Some(Content::Unwritten | Content::Zero));
        let hole = is_hole(lba);
        let same = (lba..lba + most).take_while(|lba| is_hole(*lba) == hole).count();
        Ok((hole, same as u64))
    }

    /// Makes everything durable that was written and acknowledged before.
    pub(crate) fn flush_from(&self, cpu: Cpu) -> Result {
        if let Some(group) = &self.group {
            return group.commit(self, cpu);
        }
        let is_unfenced = |slot: &Slot| slot.unfenced.load(Ordering::Acquire);
        let others = self.slots.iter().enumerate().any(|(i, slot)| i != cpu.0 && is_unfenced(slot));
        if others && self.pm.has_fence_all() && !self.pm.has_fault(Fault::OwnLaneFlush) {
            self.pm.fence_all(cpu)
        } else {
            self.pm.fence(cpu)
        }
    }
}
