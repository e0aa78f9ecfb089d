//! Settings of the kernel that the daemon makes, and takes back.
//!
//! DRAM must not fill up with pages that cannot leave: the kernel's own objects
//! need it, and where they find none it kills a program, however much slow
//! memory is free. What the settings were before is written down first, so that
//! a daemon that is killed can put them back when it is started again.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Instant;

use terrace_core::Nanos;

use super::kernel::Kernel;
use crate::action::Setting;
use crate::config::{self, Floor};

/// The least `vm.watermark_scale_factor` that was seen to be enough: at 500, a hog of 900 MiB
/// survives with 408 MiB of DRAM; at the default of 10 it is killed.
pub const SCALE: u64 = 500;

/// The settings that were changed, with what they were before.
#[derive(Debug)]
pub struct Guard {
    file: PathBuf,
    before: BTreeMap<Setting, String>,
}

/// What a setting should be, as against what it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Which.
    pub setting: Setting,
    /// What it is.
    pub is: String,
    /// What it should be.
    pub to: String,
}

/// The settings that are not as the configuration wants them; what cannot be had is told.
pub fn wanted(kernel: &dyn Kernel, config: &config::Kernel) -> (Vec<Wanted>, Vec<String>) {
    let (mut wanted, mut told) = (Vec::new(), Vec::new());
    let mut want = |setting: Setting, to: &str, is_good: &dyn Fn(&str) -> bool| match kernel
        .read(setting.path())
    {
        Ok(is) if is_good(&is) => {}
        Ok(is) => wanted.push(Wanted { setting, is, to: to.to_owned() }),
        Err(error) => told.push(format!("/{}: {error}", setting.path())),
    };
    match config.floor {
        Floor::Watermarks => {
            let is_enough = |is: &str| is.parse::<u64>().is_ok_and(|scale| scale >= SCALE);
            want(Setting::WatermarkScaleFactor, &SCALE.to_string(), &is_enough);
        }
        Floor::Demotion => want(Setting::Demotion, "true", &|is| matches!(is, "1" | "true")),
        Floor::KernelBlock | Floor::None => {}
    }
    if config.own_blocks {
        want(Setting::AutoOnline, "offline", &|is| is == "offline");
    }
    if config.overcommit {
        want(Setting::Overcommit, "1", &|is| is == "1");
    }
    (wanted, told)
}

impl Guard {
    /// What an earlier daemon wrote down, or nothing.
    pub fn open(file: &Path) -> io::Result<Self> {
        let before = match fs::read_to_string(file) {
            Ok(text) => serde_json::from_str(&text).map_err(|e| {
                let what = format!("{}: {e}; it says what settings were before", file.display());
                io::Error::new(io::ErrorKind::InvalidData, what)
            })?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => BTreeMap::new(),
            Err(error) => return Err(error),
        };
        Ok(Self { file: file.to_owned(), before })
    }

    /// Makes a setting; what it was is written down before.
    pub fn set(&mut self, kernel: &dyn Kernel, wanted: &Wanted) -> io::Result<()> {
        self.before.entry(wanted.setting).or_insert_with(|| wanted.is.clone());
        self.save()?;
        kernel.write(wanted.setting.path(), &wanted.to)
    }

    /// Puts everything back as it was; what was put back, in what time, and what could not be.
    pub fn restore(&mut self, kernel: &dyn Kernel) -> Vec<(Setting, String, io::Result<Nanos>)> {
        let mut done = Vec::new();
        for (setting, before) in std::mem::take(&mut self.before) {
            let begun = Instant::now();
            let result = kernel.write(setting.path(), &before);
            let result = result.map(|()| Nanos(begun.elapsed().as_nanos() as u64));
            if result.is_err() {
                self.before.insert(setting, before.clone());
            }
            done.push((setting, before, result));
        }
        // What could not be written down anew is the old list, which is restored once more.
        let _ = self.save();
        done
    }

    /// Whether there is anything to put back.
    pub fn is_empty(&self) -> bool {
        self.before.is_empty()
    }

    fn save(&self) -> io::Result<()> {
        if self.before.is_empty() {
            return match fs::remove_file(&self.file) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                _ => Ok(()),
            };
        }
        super::state::replace(&self.file, serde_json::to_string(&self.before)?.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{FakeKernel, Fixture};

    fn scale(kernel: &FakeKernel) -> String {
        kernel.read(Setting::WatermarkScaleFactor.path()).unwrap()
    }

    #[test]
    fn what_was_before_is_put_back_by_a_later_daemon_as_well() {
        let kernel = FakeKernel::new(Fixture::new());
        kernel.fixture.write(Setting::AutoOnline.path(), "online");
        let file = kernel.fixture.root().join("settings.json");
        let (needed, told) = wanted(&kernel, &config::Kernel::default());
        assert!(told.is_empty(), "{told:?}");
        let mut first = Guard::open(&file).unwrap();
        for wanted in &needed {
            first.set(&kernel, wanted).unwrap();
        }
        assert_eq!(scale(&kernel), "500");
        assert!(wanted(&kernel, &config::Kernel::default()).0.is_empty(), "once is enough");

        // It was killed; somebody has changed the setting; the next one puts the oldest back.
        kernel.fixture.write(Setting::WatermarkScaleFactor.path(), "20");
        let mut second = Guard::open(&file).unwrap();
        for wanted in &wanted(&kernel, &config::Kernel::default()).0 {
            second.set(&kernel, wanted).unwrap();
        }
        assert!(second.restore(&kernel).iter().all(|(_, _, result)| result.is_ok()));
        assert_eq!(scale(&kernel), "10");
        assert_eq!(kernel.read(Setting::AutoOnline.path()).unwrap(), "online");
        assert!(!file.exists() && second.is_empty());
    }

    #[test]
    fn a_floor_that_is_high_enough_is_left_alone_and_one_that_cannot_be_had_is_told() {
        let kernel = FakeKernel::new(Fixture::new());
        kernel.fixture.write(Setting::WatermarkScaleFactor.path(), "600");
        assert!(wanted(&kernel, &config::Kernel::default()).0.is_empty());
        std::fs::remove_file(kernel.fixture.root().join(Setting::Demotion.path())).unwrap();
        let demotion = config::Kernel { floor: Floor::Demotion, ..Default::default() };
        let (none, told) = wanted(&kernel, &demotion);
        assert!(none.is_empty() && told[0].starts_with("/sys/kernel/mm/numa/demotion_enabled: "));
    }
}
