//! Steps, carried out.
//!
//! | trait or type | concept |
//! |---|---|
//! | [`Actuator`] | carries out one step at a time |
//! | [`Sysfs`] | memory blocks, DAX devices and settings of this machine |
//!
//! Each step says whether it was done by looking at the result: the kernel
//! reports success for some writes that had no effect (a driver is unbound and
//! its blocks stay online). What a step cannot finish it undoes.

use std::io;
use std::sync::Arc;

use thiserror::Error;

use super::kernel::Kernel;
use crate::action::{Action, Use};
use crate::discover::KMEM;

/// Why a step was not done. The machine is as it was before, unless it says otherwise.
#[derive(Debug, Error)]
pub enum ActionError {
    /// A signal of ours ended it: its time was over, or it had to make room.
    #[error("interrupted")]
    Interrupted,
    /// What it was about is no longer there.
    #[error("{0} is no longer there")]
    Gone(String),
    /// The kernel refused.
    #[error("{path}: {error}")]
    Refused {
        /// The file that was written to.
        path: String,
        /// What the kernel said.
        error: io::Error,
    },
    /// The kernel reported success, and nothing has changed.
    #[error("{path}: the kernel reported success, and it still says `{says}`")]
    NoEffect {
        /// The file that tells.
        path: String,
        /// What it says.
        says: String,
    },
    /// A device still has blocks in use: unbinding it would leave them online for ever.
    #[error("memory block {0} is still online")]
    StillOnline(u64),
    /// The step is for another kind of machine.
    #[error("cannot be done here")]
    NotHere,
    /// QEMU refused, or its socket broke.
    #[error("QEMU: {0}")]
    Qemu(String),
}

/// Carries out steps, one at a time, for as long as they take.
pub trait Actuator: Send {
    /// Carries out one step.
    fn act(&mut self, action: &Action) -> Result<(), ActionError>;
}

/// The state of a memory block.
fn state_path(block: u64) -> String {
    format!("sys/devices/system/memory/memory{block}/state")
}

const DRIVERS: &str = "sys/bus/dax/drivers";
const DEVICE_DAX: &str = "device_dax";

/// Memory blocks, DAX devices and settings of a machine, by its sysfs and procfs.
pub struct Sysfs {
    kernel: Arc<dyn Kernel>,
}

impl Sysfs {
    /// By these files.
    pub fn new(kernel: Arc<dyn Kernel>) -> Self {
        Self { kernel }
    }

    fn write(&self, path: &str, text: &str) -> Result<(), ActionError> {
        self.kernel.write(path, text).map_err(|error| match error.kind() {
            io::ErrorKind::Interrupted => ActionError::Interrupted,
            io::ErrorKind::NotFound => ActionError::Gone(format!("/{path}")),
            _ if error.raw_os_error() == Some(libc::ENODEV) => {
                ActionError::Gone(format!("/{path}"))
            }
            _ => ActionError::Refused { path: format!("/{path}"), error },
        })
    }

    fn expect(&self, path: &str, wanted: &str) -> Result<(), ActionError> {
        match self.kernel.read(path) {
            Ok(says) if says == wanted => Ok(()),
            Ok(says) => Err(ActionError::NoEffect { path: format!("/{path}"), says }),
            Err(_) => Err(ActionError::Gone(format!("/{path}"))),
        }
    }

    fn set_block(&self, block: u64, word: &str, wanted: &str) -> Result<(), ActionError> {
        let path = state_path(block);
        match self.write(&path, word) {
            // Somebody else was faster: the kernel refuses to do it again.
            Err(ActionError::Refused { .. }) if self.expect(&path, wanted).is_ok() => Ok(()),
            Err(error) => Err(error),
            Ok(()) => self.expect(&path, wanted),
        }
    }

    fn bind(&self, device: &str, memmap_on_memory: bool) -> Result<(), ActionError> {
        let here = format!("sys/bus/dax/devices/{device}");
        if self.kernel.read(&format!("{here}/size")).is_err() {
            return Err(ActionError::Gone(device.to_owned()));
        }
        let flag = format!("{here}/memmap_on_memory");
        // A kernel before 6.8 has no such file; it is told by the one who asks for it.
        if self.kernel.read(&flag).is_ok() {
            self.write(&flag, if memmap_on_memory { "1" } else { "0" })?;
        }
        let before = self.kernel.link(&format!("{here}/driver"));
        if let Some(driver) = before.as_deref().filter(|driver| *driver != KMEM) {
            self.write(&format!("{DRIVERS}/{driver}/unbind"), device)?;
        }
        let bound = self.write(&format!("{DRIVERS}/{KMEM}/new_id"), device);
        if self.kernel.link(&format!("{here}/driver")).as_deref() == Some(KMEM) {
            return Ok(());
        }
        // As it was before. That fails only where the device has gone.
        let _ = self.kernel.write(&format!("{DRIVERS}/{KMEM}/remove_id"), device);
        if let Some(driver) = before {
            let _ = self.kernel.write(&format!("{DRIVERS}/{driver}/bind"), device);
        }
        bound.and_then(|()| {
            let path = format!("/{here}/driver");
            Err(ActionError::NoEffect { path, says: "no driver".to_owned() })
        })
    }

    fn unbind(&self, device: &str, blocks: &[u64]) -> Result<(), ActionError> {
        for &block in blocks {
            match self.kernel.read(&state_path(block)) {
                Ok(state) if state != "offline" => return Err(ActionError::StillOnline(block)),
                // A block that has gone is not online.
                Ok(_) | Err(_) => {}
            }
        }
        self.write(&format!("{DRIVERS}/{KMEM}/unbind"), device)?;
        // Without it the device would be memory again as soon as anybody looks for drivers.
        self.write(&format!("{DRIVERS}/{KMEM}/remove_id"), device)?;
        for &block in blocks {
            let path = state_path(block);
            if let Ok(says) = self.kernel.read(&path) {
                return Err(ActionError::NoEffect { path: format!("/{path}"), says });
            }
        }
        self.write(&format!("{DRIVERS}/{DEVICE_DAX}/bind"), device)
    }
}

impl Actuator for Sysfs {
    fn act(&mut self, action: &Action) -> Result<(), ActionError> {
        match action {
            Action::Online { block, r#use, .. } => {
                let word = match r#use {
                    Use::Movable => "online_movable",
                    Use::Kernel => "online_kernel",
                };
                self.set_block(*block, word, "online")
            }
            Action::Offline { block, .. } => self.set_block(*block, "offline", "offline"),
            Action::Bind { device, memmap_on_memory, .. } => self.bind(device, *memmap_on_memory),
            Action::Unbind { device, blocks, .. } => self.unbind(device, blocks),
            Action::Set { setting, to } => self.write(setting.path(), to),
            Action::Resize { .. } => Err(ActionError::NotHere),
        }
    }
}

#[cfg(test)]
mod tests {
    use terrace_core::Bytes;

    use super::*;
    use crate::fixture::{FakeKernel, Fault, Fixture};
    use crate::view::NodeId;

    const SIZE: Bytes = Bytes::mib(128);

    fn kernel() -> Arc<FakeKernel> {
        let fixture = Fixture::new();
        fixture.device();
        Arc::new(FakeKernel::new(fixture))
    }

    fn act(kernel: &Arc<FakeKernel>, action: &Action) -> Result<(), ActionError> {
        Sysfs::new(Arc::clone(kernel) as Arc<dyn Kernel>).act(action)
    }

    fn online(block: u64, r#use: Use) -> Action {
        Action::Online { block, node: NodeId(2), size: SIZE, r#use }
    }

    fn offline(block: u64) -> Action {
        Action::Offline { block, node: NodeId(2), size: SIZE }
    }

    fn bind() -> Action {
        let driver = Some("device_dax".to_owned());
        Action::Bind { device: "dax1.0".into(), driver, size: SIZE * 2, memmap_on_memory: true }
    }

    fn unbind() -> Action {
        Action::Unbind { device: "dax1.0".into(), blocks: vec![48, 49], size: SIZE * 2 }
    }

    #[test]
    fn blocks_come_and_go() {
        let kernel = kernel();
        act(&kernel, &online(41, Use::Movable)).unwrap();
        act(&kernel, &online(42, Use::Kernel)).unwrap();
        act(&kernel, &offline(40)).unwrap();
        let states = [40, 41, 42].map(|block| kernel.fixture.state(block));
        assert_eq!(states, ["offline", "online", "online"]);
        assert!(kernel.written()[0].ends_with("memory41/state online_movable"));
        assert!(kernel.written()[1].ends_with("memory42/state online_kernel"));
        // Somebody else was faster: that is no failure.
        act(&kernel, &offline(40)).unwrap();
    }

    #[test]
    fn what_the_kernel_refuses_is_told_with_the_file_and_what_has_gone_by_its_name() {
        let kernel = kernel();
        for (number, text) in [(libc::ENOMEM, "Cannot allocate memory"), (libc::EBUSY, "busy")] {
            kernel.fault("memory41", Fault::Error(number), 1);
            let error = act(&kernel, &online(41, Use::Movable)).unwrap_err().to_string();
            assert!(error.starts_with("/sys/devices/system/memory/memory41/state: "), "{error}");
            assert!(error.contains(text), "{error}");
        }
        kernel.fault("memory40", Fault::NoEffect, 1);
        let error = act(&kernel, &offline(40)).unwrap_err();
        assert!(
            matches!(&error, ActionError::NoEffect { says, .. } if says == "online"),
            "{error}"
        );
        kernel.fault("memory40", Fault::Vanishes, 1);
        let error = act(&kernel, &offline(40)).unwrap_err();
        assert!(matches!(error, ActionError::Gone(_)), "{error}");
    }

    #[test]
    fn a_device_becomes_memory_and_a_device_again() {
        let kernel = kernel();
        act(&kernel, &bind()).unwrap();
        assert_eq!(kernel.fixture.read("sys/bus/dax/devices/dax1.0/memmap_on_memory"), "1");
        act(&kernel, &online(48, Use::Movable)).unwrap();

        // The kernel would unbind it and leave the block online for ever.
        let error = act(&kernel, &unbind()).unwrap_err();
        assert!(matches!(error, ActionError::StillOnline(48)), "{error}");
        assert!(!kernel.written().iter().any(|line| line.contains("kmem/unbind")));

        act(&kernel, &offline(48)).unwrap();
        act(&kernel, &unbind()).unwrap();
        assert_eq!(kernel.link("sys/bus/dax/devices/dax1.0/driver").unwrap(), "device_dax");
        assert!(kernel.read("sys/devices/system/memory/memory48/state").is_err());
    }

    #[test]
    fn a_device_that_cannot_become_memory_is_what_it_was() {
        let kernel = kernel();
        kernel.fault("kmem/new_id", Fault::Error(libc::ENOMEM), 1);
        let error = act(&kernel, &bind()).unwrap_err().to_string();
        assert!(error.contains("kmem/new_id: Cannot allocate memory"), "{error}");
        assert_eq!(kernel.link("sys/bus/dax/devices/dax1.0/driver").unwrap(), "device_dax");
        // The kernel reports success where the driver's own start has failed.
        kernel.fault("kmem/new_id", Fault::NoEffect, 1);
        let error = act(&kernel, &bind()).unwrap_err();
        assert!(matches!(error, ActionError::NoEffect { .. }), "{error}");
        assert_eq!(kernel.link("sys/bus/dax/devices/dax1.0/driver").unwrap(), "device_dax");
    }
}
