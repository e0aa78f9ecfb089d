//! A directory that looks like a machine's procfs and sysfs, and a kernel that acts on it, for
//! tests.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use terrace_core::Bytes;

use crate::discover::{DiscoverError, Machine};
use crate::live::{Files, Kernel};

/// Node 0 has processors and 4 GiB; node 2 is slow memory near it: block 40 is online, 41 and 42
/// are not.
pub(crate) struct Fixture(tempfile::TempDir);

/// How many files were written, for names that are nobody else's.
static WRITTEN: AtomicU64 = AtomicU64::new(0);

/// Pages of a block of 128 MiB.
const BLOCK: u64 = 32_768;

fn zones(dram_free: u64, slow: u64, slow_free: u64) -> String {
    format!(
        "\
Node 0, zone   Normal
  pages free     {dram_free}
        min      1000
        low      1250
        high     1500
        managed  1048576
Node 2, zone  Movable
  pages free     {slow_free}
        min      10
        low      12
        high     14
        managed  {slow}
"
    )
}

impl Fixture {
    pub(crate) fn new() -> Self {
        let fixture = Self(tempfile::tempdir().unwrap());
        for (path, text) in [
            ("sys/devices/system/memory/block_size_bytes", "8000000\n"),
            ("sys/devices/system/memory/auto_online_blocks", "offline\n"),
            ("proc/zoneinfo", &zones(262_144, BLOCK, 16_384)),
            ("sys/devices/system/node/node0/distance", "10 17\n"),
            ("sys/devices/system/node/node0/cpulist", "0-1\n"),
            ("sys/devices/system/node/node2/distance", "17 10\n"),
            ("sys/devices/system/node/node2/cpulist", "\n"),
            ("sys/kernel/mm/numa/demotion_enabled", "true\n"),
            ("proc/sys/vm/watermark_scale_factor", "10\n"),
            ("proc/sys/vm/overcommit_memory", "1\n"),
            ("sys/module/memory_hotplug/parameters/memmap_on_memory", "Y\n"),
            ("proc/pressure/memory", "some avg10=0.00\n"),
        ] {
            fixture.write(path, text);
        }
        for number in 0..32 {
            fixture.block(number, 0, "online", "Normal");
        }
        fixture.block(40, 2, "online", "Movable");
        fixture.block(41, 2, "offline", "Normal Movable");
        fixture.block(42, 2, "offline", "Normal Movable");
        fixture
    }

    pub(crate) fn root(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn write(&self, path: &str, text: &str) {
        let path = self.root().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        // Whoever reads meanwhile sees the old or the new text, whoever else writes another file.
        let new = path.with_extension(format!("new{}", WRITTEN.fetch_add(1, Ordering::Relaxed)));
        fs::write(&new, text).unwrap();
        fs::rename(new, path).unwrap();
    }

    pub(crate) fn read(&self, path: &str) -> String {
        fs::read_to_string(self.root().join(path)).unwrap().trim().to_owned()
    }

    pub(crate) fn block(&self, number: u64, node: u64, state: &str, zones: &str) {
        let here = format!("sys/devices/system/memory/memory{number}");
        self.write(&format!("{here}/state"), state);
        self.write(&format!("{here}/valid_zones"), zones);
        self.write(&format!("{here}/node{node}/cpulist"), "");
    }

    pub(crate) fn state(&self, number: u64) -> String {
        self.read(&format!("sys/devices/system/memory/memory{number}/state"))
    }

    /// A DAX device with two blocks, 48 and 49, of node 2, for programs that map it.
    pub(crate) fn device(&self) {
        let here = "sys/bus/dax/devices/dax1.0";
        for (file, text) in [
            ("size", "270532608\n"),
            ("target_node", "2\n"),
            ("numa_node", "0\n"),
            ("mapping0/start", "0x17fe00000\n"),
            ("mapping0/end", "0x18fffffff\n"),
            ("memmap_on_memory", "0\n"),
        ] {
            self.write(&format!("{here}/{file}"), text);
        }
        for driver in ["device_dax", "kmem"] {
            for file in ["bind", "unbind", "new_id", "remove_id"] {
                self.write(&format!("sys/bus/dax/drivers/{driver}/{file}"), "");
            }
        }
        self.driver(Some("device_dax"));
    }

    fn driver(&self, name: Option<&str>) {
        let link = self.root().join("sys/bus/dax/devices/dax1.0/driver");
        let _ = fs::remove_file(&link);
        if let Some(name) = name {
            symlink(format!("../../../../bus/dax/drivers/{name}"), link).unwrap();
        }
    }

    pub(crate) fn machine(&self) -> Result<Machine, DiscoverError> {
        Machine::discover(self.root(), Bytes::kib(4))
    }
}

/// What a write is to come to, instead of what it asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The kernel answers with this error.
    Error(libc::c_int),
    /// Success, and nothing has changed.
    NoEffect,
    /// The write does not return until a signal comes.
    Hangs,
    /// What it is about goes away just before.
    Vanishes,
}

/// A kernel for a [`Fixture`]: blocks come online and go offline, and the nodes' memory with them.
pub(crate) struct FakeKernel {
    pub(crate) fixture: Fixture,
    files: Files,
    /// Part of a path, the fault, how often it strikes.
    faults: Mutex<Vec<(String, Fault, u32)>>,
    /// What was written, in its order.
    written: Mutex<Vec<String>>,
    /// Used pages: of DRAM, and of slow memory beyond.
    used: Mutex<u64>,
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl FakeKernel {
    pub(crate) fn new(fixture: Fixture) -> Self {
        let files = Files::below(fixture.root());
        Self {
            fixture,
            files,
            faults: Mutex::default(),
            written: Mutex::default(),
            used: Mutex::new(786_432),
        }
    }

    /// Writes to paths with this part come to `fault`, so many times.
    pub(crate) fn fault(&self, path: &str, fault: Fault, times: u32) {
        lock(&self.faults).push((path.to_owned(), fault, times));
    }

    pub(crate) fn written(&self) -> Vec<String> {
        lock(&self.written).clone()
    }

    /// Programs use so much, in DRAM first.
    pub(crate) fn demand(&self, used: Bytes) {
        *lock(&self.used) = used.get() / 4096;
        self.count();
    }

    /// Writes `/proc/zoneinfo` anew.
    fn count(&self) {
        let used = *lock(&self.used);
        let blocks = (40..60).filter(|number| {
            let path = format!("sys/devices/system/memory/memory{number}/state");
            self.files.read(&path).is_ok_and(|state| state == "online")
        });
        let slow = blocks.count() as u64 * BLOCK;
        let dram = used.min(1_048_576 - 8192);
        self.fixture.write(
            "proc/zoneinfo",
            &zones(1_048_576 - dram, slow, slow.saturating_sub(used - dram)),
        );
    }

    fn strike(&self, path: &str) -> Option<Fault> {
        let mut faults = lock(&self.faults);
        let (_, fault, times) = faults
            .iter_mut()
            .find(|(part, _, times)| path.contains(part.as_str()) && *times > 0)?;
        *times -= 1;
        Some(*fault)
    }
}

impl Kernel for FakeKernel {
    fn write(&self, path: &str, text: &str) -> io::Result<()> {
        lock(&self.written).push(format!("{path} {text}"));
        match self.strike(path) {
            Some(Fault::Error(number)) => return Err(io::Error::from_raw_os_error(number)),
            Some(Fault::NoEffect) => return Ok(()),
            Some(Fault::Hangs) => {
                let limit = rustix::event::Timespec { tv_sec: 20, tv_nsec: 0 };
                rustix::event::poll(&mut [], Some(&limit))?;
                panic!("nobody interrupted it for 20 s");
            }
            Some(Fault::Vanishes) => {
                let gone = self.fixture.root().join(path);
                fs::remove_dir_all(gone.parent().unwrap()).unwrap();
                return Err(io::Error::from_raw_os_error(libc::ENOENT));
            }
            None => {}
        }
        if let Some(block) = path.strip_suffix("/state") {
            let word = if text == "offline" { "offline" } else { "online" };
            if self.files.read(path)? == word {
                return Err(io::Error::from_raw_os_error(libc::EINVAL));
            }
            let zones = match text {
                "offline" => "Normal Movable",
                "online_kernel" => "Normal",
                _ => "Movable",
            };
            self.fixture.write(&format!("{block}/valid_zones"), zones);
            self.fixture.write(path, word);
            self.count();
            return Ok(());
        }
        self.files.read(path)?;
        let kmem = "sys/bus/dax/drivers/kmem";
        match path.strip_prefix("sys/bus/dax/drivers/") {
            Some("device_dax/unbind") => self.fixture.driver(None),
            Some("device_dax/bind") => self.fixture.driver(Some("device_dax")),
            Some("kmem/new_id") => {
                for block in [48, 49] {
                    self.fixture.block(block, 2, "offline", "Normal Movable");
                }
                self.fixture.driver(Some("kmem"));
            }
            Some("kmem/unbind") => {
                for block in [48, 49] {
                    let here = format!("sys/devices/system/memory/memory{block}");
                    fs::remove_dir_all(self.fixture.root().join(here))?;
                }
                self.fixture.driver(None);
            }
            Some(_) => assert_eq!(path, format!("{kmem}/remove_id")),
            None => self.fixture.write(path, text),
        }
        Ok(())
    }

    fn read(&self, path: &str) -> io::Result<String> {
        self.files.read(path)
    }

    fn link(&self, path: &str) -> Option<String> {
        self.files.link(path)
    }
}
