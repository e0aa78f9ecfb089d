//! A volume as a block device of its own (ublk): no loop device, no copy of requests through a file
//! system.
//!
//! The kernel hands requests over rings (`io_uring`, by the crate of that name). The interface itself
//! is small, and is written down in [`abi`]; the crate `libublk` has more of it, but brings a
//! dependency under the Mozilla Public License, and needs libclang to be built.
//!
//! | file | concept |
//! |---|---|
//! | [`abi`] | the kernel's numbers and structures |
//! | [`queue`] | a thread that answers requests |

mod abi;
mod queue;

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use io_uring::{IoUring, cqueue, opcode, squeue, types};

use self::abi::{
    ADD_DEVICE, DELETE_DEVICE, DELETE_DEVICE_LATER, DeviceInfo, FLAG_IOCTL_ENCODED, HAS_FORCED,
    Parameters, READ_ONLY, SET_PARAMETERS, START_DEVICE, STOP_DEVICE, VOLATILE_CACHE, control,
};
use self::queue::Queue;
use crate::error::VolumeError;
use crate::pm::Pm;
use crate::volume::Volume;

/// The file by which the kernel is asked for devices, where its module `ublk_drv` is loaded.
pub const CONTROL: &str = "/dev/ublk-control";
/// Bytes of the largest request.
const MOST: u32 = 512 << 10;
/// Requests that a queue holds.
const DEPTH: u16 = 32;
/// Queues, where there are as many processors and lanes.
const QUEUES: usize = 4;
/// The largest range that is discarded by one request, in sectors of 512 bytes: one of these is done
/// entry by entry.
const MOST_DISCARDED: u32 = 1 << 21;
/// How long the device's file may take to appear: where `udev` makes it, that is not at once.
const APPEARS: Duration = Duration::from_secs(5);

/// The ring over which devices are made and removed.
struct Control {
    file: File,
    ring: IoUring<squeue::Entry128, cqueue::Entry>,
}

impl Control {
    fn open() -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).open(CONTROL)?;
        let ring = IoUring::builder().dontfork().build(4)?;
        Ok(Self { file, ring })
    }

    /// # Safety
    ///
    /// `buffer` is what the command wants: its address and length, or zeros.
    unsafe fn ask(
        &mut self,
        command: u32,
        device: u32,
        buffer: (u64, u16),
        data: u64,
    ) -> io::Result<()> {
        let entry = opcode::UringCmd80::new(types::Fd(self.file.as_raw_fd()), command)
            .cmd(control(device, buffer, data))
            .build();
        // SAFETY: the caller lends the buffer until the command is done, which is waited for.
        unsafe { self.ring.submission().push(&entry) }.map_err(io::Error::other)?;
        loop {
            match self.ring.submit_and_wait(1) {
                Err(e) if e.kind() != io::ErrorKind::Interrupted => return Err(e),
                _ => {}
            }
            if let Some(done) = self.ring.completion().next() {
                return match done.result() {
                    0.. => Ok(()),
                    error => Err(io::Error::from_raw_os_error(-error)),
                };
            }
        }
    }

    fn add(&mut self, queues: u16) -> io::Result<u32> {
        let mut info = DeviceInfo {
            queues,
            depth: DEPTH,
            most: MOST,
            device: u32::MAX,
            flags: FLAG_IOCTL_ENCODED,
            ..DeviceInfo::default()
        };
        let at = (&raw mut info).expose_provenance() as u64;
        let length = size_of::<DeviceInfo>() as u16;
        // SAFETY: the kernel reads and writes it while it is borrowed here.
        unsafe { self.ask(ADD_DEVICE, u32::MAX, (at, length), 0) }?;
        Ok(info.device)
    }

    fn describe<P: Pm>(&mut self, device: u32, volume: &Volume<P>) -> io::Result<()> {
        let sector = volume.sector_size().bytes();
        let shift = sector.trailing_zeros() as u8;
        let read_only = if volume.is_read_only() { READ_ONLY } else { 0 };
        let parameters = Parameters {
            length: size_of::<Parameters>() as u32,
            given: 3,
            attributes: VOLATILE_CACHE | HAS_FORCED | read_only,
            shifts: [shift; 4],
            most: MOST / 512,
            capacity: volume.capacity().0 / 512,
            discard_granularity: sector,
            most_discarded: MOST_DISCARDED,
            most_zeroed: MOST_DISCARDED,
            discard_segments: 1,
            ..Parameters::default()
        };
        let at = (&raw const parameters).expose_provenance() as u64;
        let length = size_of::<Parameters>() as u16;
        // SAFETY: the kernel reads it while it is borrowed here.
        unsafe { self.ask(SET_PARAMETERS, device, (at, length), 0) }
    }

    /// Has the device appear. It waits for all queues to have asked for requests.
    fn start(&mut self, device: u32) -> io::Result<()> {
        // SAFETY: it takes no buffer.
        unsafe { self.ask(START_DEVICE, device, (0, 0), u64::from(std::process::id())) }
    }

    /// Has it disappear; its queues are told.
    fn stop(&mut self, device: u32) -> io::Result<()> {
        // SAFETY: it takes no buffer.
        unsafe { self.ask(STOP_DEVICE, device, (0, 0), 0) }
    }

    /// Gives its number back, at once or when its last user has gone.
    fn delete(&mut self, device: u32, is_used: bool) -> io::Result<()> {
        // SAFETY: it takes no buffer.
        match unsafe { self.ask(DELETE_DEVICE_LATER, device, (0, 0), 0) } {
            // An older kernel would wait for the user; so the number stays.
            Err(_) if is_used => Ok(()),
            // SAFETY: the same.
            Err(_) => unsafe { self.ask(DELETE_DEVICE, device, (0, 0), 0) },
            Ok(()) => Ok(()),
        }
    }
}

/// A volume that is a block device, until this is dropped.
pub struct Attached {
    control: Control,
    device: u32,
    threads: Vec<JoinHandle<io::Result<()>>>,
}

impl std::fmt::Debug for Attached {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Attached").field("path", &self.path()).finish_non_exhaustive()
    }
}

/// Makes a block device of a volume. Needs the right to administer the system, and Linux 6.4.
pub fn attach<P: Pm + 'static>(volume: &Arc<Volume<P>>) -> io::Result<Attached> {
    let mut control = Control::open()?;
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let lanes = if volume.is_read_only() { QUEUES } else { volume.lanes_to_take() };
    if lanes == 0 {
        return Err(io::Error::other(VolumeError::NoLane(0)));
    }
    let queues = QUEUES.min(processors).min(lanes) as u16;
    let device = control.add(queues)?;
    let mut attached = Attached { control, device, threads: Vec::new() };
    match attached.begin(volume, queues) {
        Ok(()) => Ok(attached),
        Err(e) => {
            // The reason for the failure is what is told.
            let _ = attached.remove(false);
            Err(e)
        }
    }
}

impl Attached {
    fn begin<P: Pm + 'static>(&mut self, volume: &Arc<Volume<P>>, queues: u16) -> io::Result<()> {
        self.control.describe(self.device, volume)?;
        let file = Arc::new(open(&PathBuf::from(format!("/dev/ublkc{}", self.device)))?);
        let (ready, begun) = mpsc::channel();
        for number in 0..queues {
            let (volume, file, ready) = (Arc::clone(volume), Arc::clone(&file), ready.clone());
            let run = move || match Queue::begin(&file, number) {
                Ok(mut queue) => {
                    // Who waits for it is there, or has given up.
                    let _ = ready.send(Ok(()));
                    queue.serve(&volume)
                }
                Err(e) => {
                    let _ = ready.send(Err(e));
                    Ok(())
                }
            };
            let named = std::thread::Builder::new().name(format!("ublk-{number}"));
            self.threads.push(named.spawn(run)?);
        }
        drop(ready);
        for _ in 0..queues {
            begun.recv().map_err(io::Error::other)??;
        }
        self.control.start(self.device)
    }

    /// The device's file.
    pub fn path(&self) -> PathBuf {
        format!("/dev/ublkb{}", self.device).into()
    }

    /// Whether somebody has stopped the device.
    pub fn is_over(&self) -> bool {
        self.threads.iter().any(JoinHandle::is_finished)
    }

    /// Removes the device. If it is still used, by a mounted file system for instance, its users get
    /// errors from then on, and the result is `false`.
    pub fn end(mut self) -> io::Result<bool> {
        let alone = OpenOptions::new().read(true).custom_flags(libc::O_EXCL).open(self.path());
        let is_used = alone.is_err_and(|e| e.kind() == io::ErrorKind::ResourceBusy);
        self.remove(is_used).map(|()| !is_used)
    }

    fn remove(&mut self, is_used: bool) -> io::Result<()> {
        let stopped = self.control.stop(self.device);
        let mut served = Ok(());
        for thread in self.threads.drain(..) {
            let result =
                thread.join().unwrap_or_else(|_| Err(io::Error::other("a queue panicked")));
            served = served.and(result);
        }
        stopped.and(self.control.delete(self.device, is_used)).and(served)
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        if !self.threads.is_empty() {
            // Only where something else failed, which is told.
            let _ = self.remove(true);
        }
    }
}

/// Opens a device's file, which may not be there yet.
fn open(path: &Path) -> io::Result<File> {
    let pause = Duration::from_millis(10);
    let mut waited = Duration::ZERO;
    loop {
        match OpenOptions::new().read(true).write(true).open(path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound && waited < APPEARS => {
                std::thread::sleep(pause);
                waited += pause;
            }
            opened => return opened,
        }
    }
}
