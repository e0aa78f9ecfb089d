//! Making, growing and repairing volumes: what is done while nobody has it mounted.

use terrace_core::Bytes;

use crate::check::{Damage, Superblocks, entries, scan};
use crate::entry::{Content, Entry};
use crate::error::{PART, Result, VolumeError};
use crate::pm::{Cpu, Pm};
use crate::superblock::Superblock;

const CPU: Cpu = Cpu(0);
/// Bytes of the map that are written at a time.
const CHUNK: u64 = 1 << 16;

/// Makes a volume. What the medium held is lost; that is refused if it was a volume, unless
/// `replace` says otherwise.
pub fn create(pm: &impl Pm, plan: &Superblock, replace: bool) -> Result {
    plan.check().map_err(VolumeError::BadGeometry)?;
    if plan.total > pm.size() {
        return Err(VolumeError::Truncated { expected: plan.total, found: pm.size() });
    }
    if !replace && let Ok(there) = Superblocks::read(pm) {
        return Err(VolumeError::Exists(there.current.uuid));
    }
    // Until the new one is whole there is none: an old superblock with a new map would be worse.
    let nothing = [0; PART.0 as usize];
    pm.write(CPU, 0, &nothing)?;
    pm.write(CPU, plan.last(), &nothing)?;
    pm.fence(CPU)?;
    write_zeros(pm, plan.map, plan.map_end())?;
    pm.fence(CPU)?;
    write_superblock(pm, plan.last(), plan)?;
    write_superblock(pm, 0, plan)
}

fn write_superblock(pm: &impl Pm, at: u64, superblock: &Superblock) -> Result {
    pm.write(CPU, at, &superblock.encode())?;
    pm.fence(CPU)
}

fn write_zeros(pm: &impl Pm, from: u64, to: u64) -> Result {
    let zeros = vec![0; CHUNK as usize];
    let mut at = from;
    while at < to {
        let count = (to - at).min(CHUNK);
        pm.write(CPU, at, &zeros[..count as usize])?;
        at += count;
    }
    Ok(())
}

/// Writes the superblock anew that is not what it should be. One at a time is wrong, so the other
/// stays valid meanwhile.
pub(crate) fn heal(pm: &impl Pm, superblocks: &Superblocks) -> Result {
    let current = &superblocks.current;
    if superblocks.last.is_some() {
        write_superblock(pm, current.last(), current)?;
    }
    if superblocks.first.is_some() {
        write_superblock(pm, 0, current)?;
    }
    Ok(())
}

/// What [`repair`] has done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Repaired {
    /// Superblocks that were written anew.
    pub superblocks: u32,
    /// Sectors that were declared lost.
    pub lost: Vec<u64>,
    /// What is still wrong.
    pub left: Vec<Damage>,
}

/// Repairs what can be repaired without losing anything: superblocks. With `mark_lost`, sectors
/// whose content is unknown are declared so: they fail to read until they are written, and all
/// others can be written again.
pub fn repair(pm: &impl Pm, mark_lost: bool) -> Result<Repaired> {
    let superblocks = Superblocks::read(pm)?;
    let current = superblocks.current;
    heal(pm, &superblocks)?;
    let mut done = Repaired {
        superblocks: u32::from(superblocks.first.is_some()) + u32::from(superblocks.last.is_some()),
        ..Repaired::default()
    };
    let scan = scan(pm, &current, |_| ())?;
    if !mark_lost {
        done.left = scan.damage;
        return Ok(done);
    }
    done.lost = scan.damage.iter().flat_map(Damage::sectors).collect();
    done.lost.sort_unstable();
    done.lost.dedup();
    // Two entries that share a block are found by each other. If one were given up and the power
    // failed, the other would look sound. So each says first that its block is disputed, which it
    // does also alone; when all of them durably do, they are given up.
    let shared: Vec<u64> = scan
        .damage
        .iter()
        .filter(|damage| matches!(damage, Damage::Duplicate { .. }))
        .flat_map(Damage::sectors)
        .collect();
    for lba in shared {
        let mut bytes = [0; 8];
        pm.read(current.entry_at(lba), &mut bytes)?;
        let entry = Entry::of(bytes);
        if entry.block().is_some() {
            pm.write(CPU, current.entry_at(lba), &entry.dispute().0.to_le_bytes())?;
        }
    }
    pm.fence(CPU)?;
    for &lba in &done.lost {
        let entry = Entry::UNWRITTEN.next(Content::Lost);
        pm.write(CPU, current.entry_at(lba), &entry.0.to_le_bytes())?;
    }
    pm.fence(CPU)?;
    Ok(done)
}

/// What a volume becomes that grows to so many bytes.
///
/// It has so many spare blocks then; without a number, as many as before.
pub fn plan_growth(old: &Superblock, total: Bytes, spare: Option<u64>) -> Result<Superblock> {
    let spare = spare.unwrap_or_else(|| old.spare());
    if spare < 2 {
        return Err(VolumeError::BadGeometry(
            "a volume needs at least 2 spare blocks: a write goes to one".into(),
        ));
    }
    let total = total.0 / PART.0 * PART.0;
    let size = u64::from(old.sector.bytes());
    let room = total.saturating_sub(PART.0 + old.data);
    let map_bytes = |sectors: u64| (sectors * 8).div_ceil(PART.0) * PART.0;
    let mut sectors = (room / (size + 8)).saturating_sub(spare);
    while sectors > old.sectors && map_bytes(sectors) + (sectors + spare) * size > room {
        sectors -= 1;
    }
    let map = total.saturating_sub(PART.0 + map_bytes(sectors));
    // The new map must not lie where the old volume still is.
    if sectors <= old.sectors || map < old.total {
        let behind = old.total + map_bytes(old.sectors + 1) + PART.0;
        let blocks = (old.sectors + 1).saturating_add(spare).saturating_mul(size);
        let inside = blocks.saturating_add(PART.0 + old.data + map_bytes(old.sectors + 1));
        let least = behind.max(inside);
        return Err(VolumeError::BadGeometry(format!(
            "a volume of {} bytes cannot grow to {total}: the new map goes behind it, so it takes \
             {least} bytes or somewhat more",
            old.total
        )));
    }
    let blocks = (map - old.data) / size;
    let generation = old.generation + 1;
    let new = Superblock { sectors, blocks, map, total, generation, ..*old };
    new.check().map_err(VolumeError::BadGeometry)?;
    Ok(new)
}

/// Grows a volume to the size of its medium. A copy of the map goes to the new end; the last
/// superblock, behind it, decides. Before that is durable nothing of the old volume is changed.
/// `spare` is as for [`plan_growth`].
pub fn grow(pm: &impl Pm, spare: Option<u64>) -> Result<Superblock> {
    let superblocks = Superblocks::read(pm)?;
    let old = superblocks.current;
    let new = plan_growth(&old, Bytes(pm.size()), spare)?;
    let scan = scan(pm, &old, |_| ())?;
    if !scan.damage.is_empty() {
        return Err(VolumeError::Damaged(scan.damage));
    }
    heal(pm, &superblocks)?;
    let mut buffer = Vec::new();
    let mut at = new.map;
    let mut failed = Ok(());
    entries(pm, &old, |_, entry| {
        buffer.extend(entry.0.to_le_bytes());
        if buffer.len() as u64 == CHUNK && failed.is_ok() {
            failed = pm.write(CPU, at, &buffer);
            at += CHUNK;
            buffer.clear();
        }
    })?;
    failed?;
    pm.write(CPU, at, &buffer)?;
    write_zeros(pm, at + buffer.len() as u64, new.map_end())?;
    pm.fence(CPU)?;
    write_superblock(pm, new.last(), &new)?;
    write_superblock(pm, 0, &new)?;
    Ok(new)
}
