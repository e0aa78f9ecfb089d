//! One queue of a device: a thread that takes requests from the kernel and answers them.

use std::fs::File;
use std::io;
use std::mem::size_of;
use std::os::fd::AsRawFd;
use std::ptr::{self, NonNull};

use io_uring::{IoUring, opcode, squeue, types};
use rustix::mm::{MapFlags, ProtFlags};

use super::abi::{
    COMMIT_AND_FETCH, DISCARD, Descriptor, FETCH, FLUSH, FORCED, READ, WRITE, WRITE_ZEROES,
    descriptors_at, request,
};
use super::{DEPTH, MOST};
use crate::error::{Result, VolumeError};
use crate::lane::Lane;
use crate::pm::Pm;
use crate::volume::Volume;

/// Memory of the queue's own.
struct Mapping<T> {
    base: NonNull<T>,
    length: usize,
}

impl Mapping<Descriptor> {
    /// Maps the requests of a queue, which the kernel writes.
    fn descriptors(device: &File, queue: u16) -> io::Result<Self> {
        let length = (usize::from(DEPTH) * size_of::<Descriptor>()).next_multiple_of(4096);
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        let at = descriptors_at(queue);
        // SAFETY: the kernel chooses where, so nothing of ours is replaced.
        let base = unsafe {
            rustix::mm::mmap(ptr::null_mut(), length, ProtFlags::READ, flags, device, at)?
        };
        Self::of(base.cast(), length)
    }
}

impl Mapping<u8> {
    /// Maps the data of all requests.
    fn buffers() -> io::Result<Self> {
        let length = usize::from(DEPTH) * MOST as usize;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the same.
        let base = unsafe {
            rustix::mm::mmap_anonymous(ptr::null_mut(), length, protection, MapFlags::PRIVATE)?
        };
        Self::of(base.cast(), length)
    }
}

impl<T> Mapping<T> {
    fn of(base: *mut T, length: usize) -> io::Result<Self> {
        let base = NonNull::new(base).ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))?;
        Ok(Self { base, length })
    }
}

impl<T> Drop for Mapping<T> {
    fn drop(&mut self) {
        // SAFETY: it is ours, and nobody borrows it any more. Failure leaves it mapped.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.length) };
    }
}

/// A queue whose first requests are asked for.
pub(super) struct Queue<'d> {
    number: u16,
    device: &'d File,
    // In this order: the kernel lets go of the buffers when the ring is gone.
    ring: IoUring,
    descriptors: Mapping<Descriptor>,
    buffers: Mapping<u8>,
}

impl<'d> Queue<'d> {
    /// Asks for the first requests. To be called on the thread that serves them.
    pub(super) fn begin(device: &'d File, number: u16) -> io::Result<Self> {
        let ring = IoUring::builder().dontfork().build(u32::from(DEPTH))?;
        let descriptors = Mapping::descriptors(device, number)?;
        let buffers = Mapping::buffers()?;
        let mut queue = Self { number, device, ring, descriptors, buffers };
        for tag in 0..DEPTH {
            queue.push(FETCH, tag, 0)?;
        }
        queue.ring.submit()?;
        // What the kernel refuses is answered at once.
        let refused = queue.ring.completion().next();
        match refused {
            Some(refused) => Err(io::Error::from_raw_os_error(-refused.result())),
            None => Ok(queue),
        }
    }

    fn buffer(&self, tag: u16) -> *mut u8 {
        self.buffers.base.as_ptr().wrapping_add(usize::from(tag) * MOST as usize)
    }

    fn push(&mut self, command: u32, tag: u16, result: i32) -> io::Result<()> {
        let bytes = request(self.number, tag, result, self.buffer(tag).expose_provenance() as u64);
        let entry: squeue::Entry =
            opcode::UringCmd16::new(types::Fd(self.device.as_raw_fd()), command)
                .cmd(bytes)
                .build()
                .user_data(u64::from(tag));
        // SAFETY: the buffer that it names is the tag's own, and stays mapped until the ring is
        // gone.
        unsafe { self.ring.submission().push(&entry) }.map_err(io::Error::other)
    }

    /// Serves requests until the device is stopped.
    pub(super) fn serve<P: Pm>(&mut self, volume: &Volume<P>) -> io::Result<()> {
        let mut lane = match volume.lane() {
            Ok(lane) => Some(lane),
            Err(VolumeError::ReadOnly) => None,
            Err(e) => return Err(io::Error::other(e)),
        };
        let mut open = DEPTH;
        let mut done = Vec::with_capacity(usize::from(DEPTH));
        while open > 0 {
            match self.ring.submit_and_wait(1) {
                Ok(_) => {}
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(e),
            }
            done.extend(self.ring.completion().map(|one| (one.user_data() as u16, one.result())));
            for (tag, result) in done.drain(..) {
                if result < 0 {
                    // The device is stopped, and has no more requests.
                    open -= 1;
                    continue;
                }
                // SAFETY: the kernel has written it, and leaves it alone until it is answered.
                let descriptor =
                    unsafe { self.descriptors.base.as_ptr().add(usize::from(tag)).read_volatile() };
                // SAFETY: until the request is answered the buffer is this thread's alone.
                let data =
                    unsafe { std::slice::from_raw_parts_mut(self.buffer(tag), MOST as usize) };
                let answer = match answer(volume, lane.as_mut(), descriptor, data) {
                    Ok(bytes) => bytes as i32,
                    Err(e) => -e.errno(),
                };
                self.push(COMMIT_AND_FETCH, tag, answer)?;
            }
        }
        Ok(())
    }
}

/// Does what was asked for; the bytes that were read or written.
fn answer<P: Pm>(
    volume: &Volume<P>,
    lane: Option<&mut Lane<'_, P>>,
    asked: Descriptor,
    data: &mut [u8],
) -> Result<u32> {
    let lane = || lane.ok_or(VolumeError::ReadOnly);
    if asked.operation & 0xff == FLUSH {
        // It has no place: what the descriptor says is no range. Nothing is written to a volume that
        // is mounted for reading.
        return lane().map_or(Ok(0), |lane| lane.flush().map(|()| 0));
    }
    let size = u64::from(volume.sector_size().bytes());
    let unaligned = |bytes: u64| {
        let (length, sector) = (bytes as usize, size as u32);
        VolumeError::Unaligned { length, sector }
    };
    let (bytes, offset) = (u64::from(asked.sectors) * 512, asked.start.saturating_mul(512));
    if !bytes.is_multiple_of(size) || !offset.is_multiple_of(size) {
        return Err(unaligned(bytes));
    }
    let (lba, count) = (offset / size, bytes / size);
    let forced = asked.operation & FORCED != 0;
    match asked.operation & 0xff {
        READ => {
            let data = data.get_mut(..bytes as usize).ok_or_else(|| unaligned(bytes))?;
            volume.read(lba, data)?;
            Ok(bytes as u32)
        }
        WRITE => {
            let data = data.get(..bytes as usize).ok_or_else(|| unaligned(bytes))?;
            lane()?.write(lba, data, forced)?;
            Ok(bytes as u32)
        }
        DISCARD | WRITE_ZEROES => lane()?.zero(lba, count, forced).map(|()| 0),
        _ => Err(VolumeError::Io {
            what: "a request of a kind that is not known",
            source: io::Error::from_raw_os_error(libc::EOPNOTSUPP),
        }),
    }
}
