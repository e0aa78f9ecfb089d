//! A lane: one thread's way to write.
//!
//! A write on a direct medium takes a free block, stores the data there, fences, exchanges the
//! sector's entry, and begins to write that back. Data are durable before an entry names them; an
//! entry is one aligned store of 8 bytes; and the block that it replaced stays untouched until the
//! lane's next fence, which makes the entry durable. So after a power failure each sector is
//! wholly old or wholly new, with one fence for a write.

use std::marker::PhantomData;
use std::sync::atomic::Ordering;

use crate::entry::{Block, Content, Entry};
use crate::error::{Result, VolumeError};
use crate::group::Group;
use crate::pm::{Cpu, Fault, Pm};
use crate::volume::{Slot, Volume};

/// The right of one thread to write to a volume. Flushes and unflushed writes of several lanes
/// are ordered as those of several queues of a disk: a flush covers each write, of whatever lane,
/// that was complete before the flush began.
#[derive(Debug)]
pub struct Lane<'v, P: Pm> {
    volume: &'v Volume<P>,
    cpu: Cpu,
    /// What the others are told.
    slot: &'v Slot,
    /// Free blocks that are set aside for this lane; the last ones are taken first.
    spare: Vec<Block>,
    /// Replaced blocks: durable entries may still name them.
    replaced: Vec<Block>,
    /// Blocks of a write that is being published; kept for its capacity.
    written: Vec<Block>,
    /// Fences order the stores of one processor. The kernel orders them when it moves a thread to
    /// another; if another thread took the lane, nobody would.
    _stays_with_its_thread: PhantomData<*mut ()>,
}

impl<'v, P: Pm> Lane<'v, P> {
    pub(crate) fn new(volume: &'v Volume<P>, cpu: Cpu) -> Self {
        Self {
            volume,
            cpu,
            slot: &volume.slots[cpu.0],
            spare: Vec::new(),
            replaced: Vec::new(),
            written: Vec::new(),
            _stays_with_its_thread: PhantomData,
        }
    }

    /// The volume.
    pub fn volume(&self) -> &'v Volume<P> {
        self.volume
    }

    /// Writes whole sectors; each by itself is never torn. With `fua` they are durable on return,
    /// else after the next [`Lane::flush`] of any lane.
    pub fn write(&mut self, lba: u64, bytes: &[u8], fua: bool) -> Result {
        let count = self.volume.sectors_of(bytes.len())?;
        self.volume.check_range(lba, count)?;
        if self.volume.pm.has_fault(Fault::InPlace) && self.overwrite(lba, bytes, fua)? {
            return Ok(());
        }
        if count == 1 && self.volume.group.is_none() {
            self.write_one(lba, bytes)?;
        } else {
            self.write_batches(lba, bytes)?;
        }
        if fua { self.finish() } else { Ok(()) }
    }

    /// Writes sectors, as many at a time as there may be between two fences.
    #[inline(never)]
    fn write_batches(&mut self, lba: u64, bytes: &[u8]) -> Result {
        let size = self.volume.superblock.sector.bytes() as usize;
        let mut lba = lba;
        for part in bytes.chunks(self.volume.batch * size) {
            if self.volume.group.is_some() {
                self.write_grouped(lba, part)?;
            } else {
                self.write_direct(lba, part)?;
            }
            lba += (part.len() / size) as u64;
        }
        Ok(())
    }

    /// Makes a range read as zeros, and frees its blocks. Trim and write-zeroes are the same here.
    pub fn zero(&mut self, lba: u64, count: u64, fua: bool) -> Result {
        self.volume.check_range(lba, count)?;
        for lba in lba..lba + count {
            let _inside = self.volume.group.as_ref().map(Group::enter).transpose()?;
            let mut entry = self.volume.entry(lba);
            while !matches!(entry.content(), Some(Content::Unwritten | Content::Zero)) {
                let new = entry.next(Content::Zero);
                match self.volume.exchange(self.cpu, lba, entry, new) {
                    Ok(()) => {
                        self.replaced(lba, entry)?;
                        break;
                    }
                    Err(now) => entry = now,
                }
            }
            if self.replaced.len() >= self.volume.batch {
                self.fence()?;
            }
        }
        self.published()?;
        if fua { self.finish() } else { Ok(()) }
    }

    /// Makes durable all that was written and acknowledged before, on every lane.
    pub fn flush(&mut self) -> Result {
        self.volume.flush_from(self.cpu)?;
        self.after_fence();
        Ok(())
    }

    /// What this lane has written is durable.
    fn finish(&mut self) -> Result {
        match &self.volume.group {
            Some(group) => group.commit(self.volume, self.cpu),
            None => self.fence(),
        }
    }

    /// Writes one sector as [`Self::write_direct`] writes several, without lists. The next write
    /// waits for the exchange, so what is done after that counts most.
    #[inline]
    fn write_one(&mut self, lba: u64, bytes: &[u8]) -> Result {
        let volume = self.volume;
        let at = volume.superblock.entry_at(lba);
        // While the data are copied, the entry comes near.
        volume.pm.expect_exchange(at);
        self.set_aside(1)?;
        let Some(&block) = self.spare.last() else {
            return Err(VolumeError::NoLane(volume.lanes()));
        };
        volume.pm.write(self.cpu, volume.superblock.block_at(block.0), bytes)?;
        // Out of the way of the fence, which gives blocks back.
        self.spare.pop();
        if !volume.pm.has_fault(Fault::NoDataFence) {
            self.fence()?;
        }
        let old = self.publish(lba, block);
        if !volume.pm.has_fault(Fault::NoMapWriteBack) {
            volume.pm.write_back(self.cpu, at, 8)?;
        }
        self.replaced_here().extend(old.block());
        self.published()
    }

    fn write_direct(&mut self, lba: u64, bytes: &[u8]) -> Result {
        let volume = self.volume;
        let size = volume.superblock.sector.bytes() as usize;
        let count = bytes.len() / size;
        // While the data are copied, the entries come near, a line of eight at a time.
        let mut line = lba;
        while line < lba + count as u64 {
            volume.pm.expect_exchange(volume.superblock.entry_at(line));
            line = (line | 7) + 1;
        }
        self.set_aside(count)?;
        let first = self.spare.len() - count;
        // An iterator over both is stored in parts and loaded as a whole, which waits for all stores
        // before it: that took a tenth of a write of 512 bytes.
        for (i, block) in self.spare[first..].iter().enumerate() {
            let sector = &bytes[i * size..(i + 1) * size];
            volume.pm.write(self.cpu, volume.superblock.block_at(block.0), sector)?;
        }
        // Out of the way of the fence, which gives blocks back.
        let mut blocks = std::mem::take(&mut self.written);
        blocks.extend(self.spare.drain(first..));
        if !volume.pm.has_fault(Fault::NoDataFence) {
            self.fence()?;
        }
        // Each place in the list has the sector's new block until the exchange; then the list has
        // the old ones, as far as there were any.
        let mut replaced = 0;
        for i in 0..count {
            if let Some(old) = self.publish(lba + i as u64, blocks[i]).block() {
                blocks[replaced] = old;
                replaced += 1;
            }
        }
        // Once for all: an exchange waits until write-backs before it are done.
        if !volume.pm.has_fault(Fault::NoMapWriteBack) {
            let at = volume.superblock.entry_at(lba);
            volume.pm.write_back(self.cpu, at, count as u64 * 8)?;
        }
        self.replaced_here().extend_from_slice(&blocks[..replaced]);
        blocks.clear();
        self.written = blocks;
        self.published()
    }

    /// Where blocks go that entries named which are written back, and not durable yet.
    #[inline]
    fn replaced_here(&mut self) -> &mut Vec<Block> {
        let early = self.volume.pm.has_fault(Fault::EarlyReuse);
        if early { &mut self.spare } else { &mut self.replaced }
    }

    fn write_grouped(&mut self, lba: u64, bytes: &[u8]) -> Result {
        let volume = self.volume;
        let Some(group) = &volume.group else { return Ok(()) };
        let size = volume.superblock.sector.bytes() as usize;
        let count = bytes.len() / size;
        let (_inside, blocks) = loop {
            let inside = group.enter()?;
            {
                let mut free = volume.free();
                if free.count() >= count as u64 {
                    let blocks: Vec<_> =
                        std::iter::repeat_with(|| free.take()).take(count).collect();
                    break (inside, blocks.into_iter().flatten().collect::<Vec<_>>());
                }
            }
            drop(inside);
            // Replaced blocks are free after a commit.
            group.commit(volume, self.cpu)?;
        };
        // Blocks that lie beside each other take one call.
        let mut rest = bytes;
        for run in blocks.chunk_by(|a, b| a.0 + 1 == b.0) {
            let (part, behind) = rest.split_at(run.len() * size);
            rest = behind;
            if let Err(e) = volume.pm.write(self.cpu, volume.superblock.block_at(run[0].0), part) {
                let mut free = volume.free();
                for block in blocks {
                    free.give(block);
                }
                return Err(e);
            }
        }
        for (lba, block) in (lba..).zip(blocks) {
            let old = self.publish(lba, block);
            self.replaced(lba, old)?;
        }
        Ok(())
    }

    /// The sector is in this block from now on; what its entry was until then.
    #[inline]
    fn publish(&self, lba: u64, block: Block) -> Entry {
        let mut entry = self.volume.entry(lba);
        loop {
            let new = entry.next(Content::In(block));
            match self.volume.exchange(self.cpu, lba, entry, new) {
                Ok(()) => return entry,
                // Another lane was faster; then this write is the later one.
                Err(now) => entry = now,
            }
        }
    }

    /// An entry was exchanged for a new one.
    #[inline]
    fn replaced(&mut self, lba: u64, old: Entry) -> Result {
        let volume = self.volume;
        if let Some(group) = &volume.group {
            group.changed(lba, old.block());
            if volume.pm.has_fault(Fault::EarlyReuse)
                && let Some(block) = old.block()
            {
                volume.free().give(block);
            }
            return Ok(());
        }
        if !volume.pm.has_fault(Fault::NoMapWriteBack) {
            volume.pm.write_back(self.cpu, volume.superblock.entry_at(lba), 8)?;
        }
        self.replaced_here().extend(old.block());
        Ok(())
    }

    /// The map has changed and is not durable yet; other lanes' flushes must know.
    #[inline]
    fn published(&mut self) -> Result {
        if self.volume.group.is_some() {
            return Ok(());
        }
        if !self.volume.pm.has_fence_all() {
            // Nobody could make this lane's writes durable but itself.
            return self.fence();
        }
        self.slot.unfenced.store(true, Ordering::Release);
        Ok(())
    }

    #[inline]
    fn fence(&mut self) -> Result {
        self.volume.pm.fence(self.cpu)?;
        self.after_fence();
        Ok(())
    }

    /// Entries that this lane stored are durable, so what they replaced is free.
    #[inline]
    fn after_fence(&mut self) {
        self.slot.unfenced.store(false, Ordering::Release);
        // Mostly it is one; to append the list would be a call that copies memory.
        for &block in &self.replaced {
            self.spare.push(block);
        }
        self.replaced.clear();
        if self.spare.len() > self.volume.batch {
            self.give_back();
        }
    }

    /// Other lanes may need what is more than a batch.
    #[cold]
    fn give_back(&mut self) {
        let mut free = self.volume.free();
        for block in self.spare.drain(self.volume.batch..) {
            free.give(block);
        }
    }

    /// Has so many blocks at hand.
    ///
    /// No lane waits for another: each holds at most two batches, and there are spare blocks for
    /// two batches of every lane.
    #[inline]
    fn set_aside(&mut self, count: usize) -> Result {
        if self.spare.len() >= count { Ok(()) } else { self.take_free(count) }
    }

    #[cold]
    fn take_free(&mut self, count: usize) -> Result {
        let mut free = self.volume.free();
        while self.spare.len() < count {
            match free.take() {
                Some(block) => self.spare.push(block),
                None => return Err(VolumeError::NoLane(self.volume.lanes())),
            }
        }
        Ok(())
    }

    /// The mistake of writing where the sector is; false where it is nowhere yet.
    #[cold]
    fn overwrite(&mut self, lba: u64, bytes: &[u8], fua: bool) -> Result<bool> {
        let Some(block) = self.volume.entry(lba).block() else { return Ok(false) };
        self.volume.pm.write(self.cpu, self.volume.superblock.block_at(block.0), bytes)?;
        if fua {
            self.volume.pm.fence(self.cpu)?;
        }
        Ok(true)
    }
}

impl<P: Pm> Drop for Lane<'_, P> {
    fn drop(&mut self) {
        // What cannot be fenced stays out of use until the next mount.
        // Nor can another thread that takes the lane fence what this one has stored.
        let unfenced = self.slot.unfenced.load(Ordering::Acquire);
        let fenced = self.replaced.is_empty() && !unfenced;
        if fenced || self.volume.pm.fence(self.cpu).is_ok() {
            self.after_fence();
            let mut free = self.volume.free();
            for block in self.spare.drain(..) {
                free.give(block);
            }
        }
        self.volume.release(self.cpu);
    }
}
