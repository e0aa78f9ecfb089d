//! Numbers and structures of the kernel's interface, `linux/ublk_cmd.h`: commands in the encoding of
//! `ioctl`, which Linux has understood since 6.4.

use std::mem::size_of;

const fn command(direction: u32, number: u32, bytes: usize) -> u32 {
    // `_IOC` of `asm-generic/ioctl.h`.
    (direction << 30) | ((bytes as u32) << 16) | ((b'u' as u32) << 8) | number
}

/// A command whose answer is read (`_IOR`).
const fn read(number: u32, bytes: usize) -> u32 {
    command(2, number, bytes)
}

/// A command that is written, too (`_IOWR`).
const fn both(number: u32, bytes: usize) -> u32 {
    command(3, number, bytes)
}

pub(super) const ADD_DEVICE: u32 = both(0x04, 32);
pub(super) const DELETE_DEVICE: u32 = both(0x05, 32);
/// Without waiting for its last user. Linux 6.7 and newer have it.
pub(super) const DELETE_DEVICE_LATER: u32 = read(0x14, 32);
pub(super) const START_DEVICE: u32 = both(0x06, 32);
pub(super) const STOP_DEVICE: u32 = both(0x07, 32);
pub(super) const SET_PARAMETERS: u32 = both(0x08, 32);

pub(super) const FETCH: u32 = both(0x20, 16);
pub(super) const COMMIT_AND_FETCH: u32 = both(0x21, 16);

/// Commands are encoded as above, and not as in Linux 6.0.
pub(super) const FLAG_IOCTL_ENCODED: u64 = 1 << 6;

/// Requests of a queue that there can be; it says where a queue's requests are mapped.
const MOST_DEPTH: usize = 4096;

pub(super) const READ: u32 = 0;
pub(super) const WRITE: u32 = 1;
pub(super) const FLUSH: u32 = 2;
pub(super) const DISCARD: u32 = 3;
pub(super) const WRITE_ZEROES: u32 = 5;
/// In [`Descriptor::operation`].
pub(super) const FORCED: u32 = 1 << 13;

pub(super) const READ_ONLY: u32 = 1 << 0;
pub(super) const VOLATILE_CACHE: u32 = 1 << 2;
pub(super) const HAS_FORCED: u32 = 1 << 3;

/// What a device is to be, and what it became (`ublksrv_ctrl_dev_info`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct DeviceInfo {
    pub(super) queues: u16,
    pub(super) depth: u16,
    pub(super) state: u16,
    pub(super) pad: u16,
    /// Bytes of the largest request.
    pub(super) most: u32,
    /// All ones for any.
    pub(super) device: u32,
    pub(super) pid: i32,
    pub(super) pad2: u32,
    pub(super) flags: u64,
    pub(super) ours: u64,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) reserved: [u64; 2],
}

/// `ublk_params`, as far as it is given.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Parameters {
    pub(super) length: u32,
    /// Bit 0: the basic ones are given; bit 1: those of discarding.
    pub(super) given: u32,
    pub(super) attributes: u32,
    /// Logarithms of bytes: the smallest unit, the unit that is not torn, the best, the least.
    pub(super) shifts: [u8; 4],
    /// In sectors of 512 bytes, as all that follows.
    pub(super) most: u32,
    pub(super) chunk: u32,
    pub(super) capacity: u64,
    pub(super) boundary_mask: u64,
    /// In bytes.
    pub(super) discard_alignment: u32,
    /// In bytes.
    pub(super) discard_granularity: u32,
    pub(super) most_discarded: u32,
    pub(super) most_zeroed: u32,
    pub(super) discard_segments: u16,
    pub(super) reserved: u16,
    pub(super) end: u32,
}

/// A request, as the kernel describes it in mapped memory (`ublksrv_io_desc`).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct Descriptor {
    pub(super) operation: u32,
    /// In sectors of 512 bytes.
    pub(super) sectors: u32,
    /// In sectors of 512 bytes.
    pub(super) start: u64,
    pub(super) buffer: u64,
}

/// Where the descriptors of a queue are in the device's file.
pub(super) fn descriptors_at(queue: u16) -> u64 {
    u64::from(queue) * (MOST_DEPTH * size_of::<Descriptor>()).next_multiple_of(4096) as u64
}

/// `ublksrv_ctrl_cmd`, in the 80 bytes that a long entry of the ring has for it.
pub(super) fn control(device: u32, buffer: (u64, u16), data: u64) -> [u8; 80] {
    let mut bytes = [0; 80];
    bytes[0..4].copy_from_slice(&device.to_ne_bytes());
    // It is for no queue.
    bytes[4..6].copy_from_slice(&u16::MAX.to_ne_bytes());
    bytes[6..8].copy_from_slice(&buffer.1.to_ne_bytes());
    bytes[8..16].copy_from_slice(&buffer.0.to_ne_bytes());
    bytes[16..24].copy_from_slice(&data.to_ne_bytes());
    bytes
}

/// `ublksrv_io_cmd`.
pub(super) fn request(queue: u16, tag: u16, result: i32, buffer: u64) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[0..2].copy_from_slice(&queue.to_ne_bytes());
    bytes[2..4].copy_from_slice(&tag.to_ne_bytes());
    bytes[4..8].copy_from_slice(&result.to_ne_bytes());
    bytes[8..16].copy_from_slice(&buffer.to_ne_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As a C compiler has them of the kernel's header.
    #[test]
    fn sizes_and_numbers_are_the_kernel_s() {
        assert_eq!(size_of::<DeviceInfo>(), 64);
        assert_eq!(size_of::<Parameters>(), 64);
        assert_eq!(size_of::<Descriptor>(), 24);
        assert_eq!(std::mem::offset_of!(Parameters, capacity), 24);
        assert_eq!(std::mem::offset_of!(Parameters, discard_alignment), 40);
        assert_eq!((ADD_DEVICE, FETCH), (0xc020_7504, 0xc010_7520));
        assert_eq!((SET_PARAMETERS, COMMIT_AND_FETCH), (0xc020_7508, 0xc010_7521));
        assert_eq!(DELETE_DEVICE_LATER, 0x8020_7514);
        assert_eq!(descriptors_at(1), 98_304);
    }
}
