//! DAX devices as sysfs shows them: which node each is, and what is missing where one is none.
//!
//! A device is memory of the kernel's while its driver is `kmem`. It is never made so by us:
//! what it holds may be somebody's data.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Serialize;
use terrace_core::{Bytes, DaxDevice};

/// The driver that hands a device to the kernel as memory.
const KMEM: &str = "kmem";

/// Where programs that administer a machine lie.
const PROGRAMS: [&str; 6] =
    ["usr/sbin", "usr/bin", "sbin", "bin", "usr/local/sbin", "usr/local/bin"];

/// The DAX devices of the machine whose sysfs lies below a root.
#[derive(Clone, Debug)]
pub struct DaxDevices {
    root: PathBuf,
}

/// A DAX device, as it is now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DaxState {
    /// Its name.
    pub device: DaxDevice,
    /// Its driver: `device_dax` for programs that map it, `kmem` for the kernel's memory.
    pub driver: Option<String>,
    /// Its size.
    pub size: Bytes,
    /// The node that it is, or would be; `None` if the firmware does not say.
    pub node: Option<u32>,
    /// What of it programs can have: zero while it is not the kernel's.
    pub online: Bytes,
    /// Whether its node has other memory, too.
    pub shares_node: bool,
    /// Why it is no tier as it is, and what makes it one; `None` if it is.
    pub lacks: Option<String>,
}

impl DaxState {
    /// The node that it is as a tier, or why it is none.
    pub fn tier(&self) -> Result<u32, String> {
        match (&self.lacks, self.node) {
            (None, Some(node)) => Ok(node),
            (lacks, _) => Err(lacks.clone().unwrap_or_default()),
        }
    }
}

/// The blocks in which a node's memory goes online.
struct Blocks {
    /// Of the device: how many are online.
    online: u64,
    /// Of the rest of its node.
    others: u64,
    size: Bytes,
}

impl DaxDevices {
    /// The devices below a root (`/` for this machine).
    pub fn new(root: &Path) -> Self {
        Self { root: root.to_owned() }
    }

    /// All of them, in order.
    pub fn list(&self) -> Vec<DaxState> {
        let mut names: Vec<DaxDevice> = entries(&self.root.join("sys/bus/dax/devices"))
            .into_iter()
            .filter_map(|name| name.parse().ok())
            .collect();
        names.sort_unstable();
        names.into_iter().filter_map(|device| self.state(device)).collect()
    }

    /// One of them; `None` if there is none of this name.
    pub fn state(&self, device: DaxDevice) -> Option<DaxState> {
        let path = self.root.join(format!("sys/bus/dax/devices/{device}"));
        if !path.is_dir() {
            return None;
        }
        let driver = fs::read_link(path.join("driver")).ok();
        let mut state = DaxState {
            device,
            driver: driver.and_then(|link| Some(link.file_name()?.to_str()?.to_owned())),
            size: Bytes(number(&path.join("size")).unwrap_or(0)),
            // -1 where there is none.
            node: text(&path.join("target_node")).and_then(|node| node.parse().ok()),
            online: Bytes::ZERO,
            shares_node: false,
            lacks: None,
        };
        let blocks = state.node.map(|node| self.blocks(node, &path, state.size));
        if let Some(blocks) = &blocks
            && state.driver.as_deref() == Some(KMEM)
        {
            state.online = blocks.size * blocks.online;
            state.shares_node = blocks.others > 0;
        }
        state.lacks = self.lacks(&state, blocks.map_or(Bytes::ZERO, |blocks| blocks.size));
        Some(state)
    }

    /// The blocks of a node's memory, and which of them are the device's.
    fn blocks(&self, node: u32, device: &Path, device_size: Bytes) -> Blocks {
        let memory = self.root.join("sys/devices/system/memory");
        // Without `0x`.
        let size = text(&memory.join("block_size_bytes"))
            .and_then(|size| u64::from_str_radix(&size, 16).ok())
            .unwrap_or(0);
        let node = self.root.join(format!("sys/devices/system/node/node{node}"));
        let online: Vec<u64> = entries(&node)
            .into_iter()
            .filter(|name| text(&node.join(name).join("state")).as_deref() == Some("online"))
            .filter_map(|name| name.strip_prefix("memory")?.parse().ok())
            .collect();
        let all = online.len() as u64;
        let ranges = ranges(device);
        let ours = if ranges.is_empty() {
            // Only root may read where it lies: what its size allows for is taken for its own.
            all.min(device_size.get().checked_div(size).unwrap_or(0))
        } else {
            let within = |block: u64| {
                let (first, last) = (block * size, (block + 1) * size - 1);
                ranges.iter().any(|&(start, end)| start <= first && last <= end)
            };
            online.into_iter().filter(|&block| within(block)).count() as u64
        };
        Blocks { online: ours, others: all - ours, size: Bytes(size) }
    }

    /// Why a device is no tier, and what makes it one.
    fn lacks(&self, state: &DaxState, block: Bytes) -> Option<String> {
        let device = state.device;
        let Some(node) = state.node else {
            return Some(
                "the firmware names no node for it, and the kernel takes no memory without".into(),
            );
        };
        let offline = state.online.is_zero();
        match state.driver.as_deref() {
            Some(KMEM) if !offline => None,
            Some(KMEM) => {
                let command = if self.has_daxctl() {
                    format!("daxctl online-memory {device}")
                } else {
                    format!(
                        "for block in /sys/devices/system/node/node{node}/memory[0-9]*; do \
                         echo online_movable >$block/state; done"
                    )
                };
                Some(format!(
                    "its driver is kmem, but its memory is offline; `{command}` brings it online"
                ))
            }
            _ if state.size < block => Some(format!(
                "it has {}, and the kernel takes memory in blocks of {block}",
                state.size
            )),
            driver => {
                let command = if self.has_daxctl() {
                    format!("daxctl reconfigure-device --mode=system-ram {device}")
                } else {
                    self.binding(device, driver)
                };
                let driver = driver.map_or("it has no driver".to_owned(), |driver| {
                    format!("its driver is {driver}, for programs that map it")
                });
                Some(format!(
                    "{driver}; `{command}` makes it the kernel's memory, and what it holds is lost"
                ))
            }
        }
    }

    /// The writes that `daxctl` would do.
    fn binding(&self, device: DaxDevice, driver: Option<&str>) -> String {
        let drivers = "/sys/bus/dax/drivers";
        let loaded = self.root.join("sys/bus/dax/drivers").join(KMEM).is_dir();
        let load = (!loaded).then(|| format!("modprobe {KMEM}"));
        let unbind = driver.map(|driver| format!("echo {device} >{drivers}/{driver}/unbind"));
        let bind = format!("echo {device} >{drivers}/{KMEM}/new_id");
        let all: Vec<_> = load.into_iter().chain(unbind).chain([bind]).collect();
        all.join(" && ")
    }

    fn has_daxctl(&self) -> bool {
        PROGRAMS.iter().any(|directory| self.root.join(directory).join("daxctl").is_file())
    }
}

/// The physical addresses that a device consists of, first and last; none if they may not be
/// read.
fn ranges(device: &Path) -> Vec<(u64, u64)> {
    let address = |path: PathBuf| {
        let text = text(&path)?;
        u64::from_str_radix(text.strip_prefix("0x")?, 16).ok()
    };
    entries(device)
        .into_iter()
        .filter(|name| name.starts_with("mapping"))
        .filter_map(|name| {
            let mapping = device.join(name);
            Some((address(mapping.join("start"))?, address(mapping.join("end"))?))
        })
        .collect()
}

/// The names in a directory; none if there is none.
fn entries(directory: &Path) -> Vec<String> {
    fs::read_dir(directory)
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .collect()
}

fn text(path: &Path) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

fn number(path: &Path) -> Option<u64> {
    text(path)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    const BLOCK: u64 = 128 << 20;
    const DEVICE: DaxDevice = DaxDevice { region: 1, instance: 0 };

    /// A machine with one device of two blocks, on node 2, as an emulated one showed it.
    struct Tree(tempfile::TempDir);

    impl Tree {
        fn new(driver: Option<&str>, target_node: &str) -> Self {
            let tree = Self(tempfile::tempdir().expect("a directory"));
            tree.write("sys/devices/system/memory/block_size_bytes", "8000000\n");
            tree.write("sys/bus/dax/devices/dax1.0/size", &format!("{}\n", 2 * BLOCK));
            tree.write("sys/bus/dax/devices/dax1.0/target_node", target_node);
            for name in ["device_dax", "kmem"] {
                tree.write(&format!("sys/bus/dax/drivers/{name}/uevent"), "");
            }
            if let Some(driver) = driver {
                let link = tree.path("sys/bus/dax/devices/dax1.0/driver");
                symlink(format!("../../drivers/{driver}"), link).expect("a link");
            }
            tree
        }

        fn path(&self, path: &str) -> PathBuf {
            self.0.path().join(path)
        }

        fn write(&self, path: &str, content: &str) {
            let path = self.path(path);
            fs::create_dir_all(path.parent().expect("a parent")).expect("directories");
            fs::write(path, content).expect("a file");
        }

        /// The node's memory: each block with its state.
        fn blocks(&self, blocks: &[(u64, &str)]) {
            for (block, state) in blocks {
                let path = format!("sys/devices/system/node/node2/memory{block}/state");
                self.write(&path, &format!("{state}\n"));
            }
        }

        /// Where the device lies, which root may read.
        fn lies_in(&self, start: u64, end: u64) {
            let mapping = "sys/bus/dax/devices/dax1.0/mapping0";
            self.write(&format!("{mapping}/start"), &format!("{start:#x}\n"));
            self.write(&format!("{mapping}/end"), &format!("{end:#x}\n"));
        }

        fn state(&self) -> DaxState {
            DaxDevices::new(self.0.path()).state(DEVICE).expect("the device")
        }

        fn lacks(&self) -> String {
            self.state().lacks.expect("something is missing")
        }
    }

    #[test]
    fn a_device_whose_memory_is_online_is_its_node() {
        let tree = Tree::new(Some("kmem"), "2\n");
        tree.blocks(&[(32, "online"), (33, "offline")]);
        tree.lies_in(32 * BLOCK, 34 * BLOCK - 1);

        let state = tree.state();

        assert_eq!((state.lacks, state.node, state.shares_node), (None, Some(2), false));
        assert_eq!((state.size, state.online), (Bytes(2 * BLOCK), Bytes(BLOCK)));
    }

    /// Pages that are moved to such a node may lie in the other memory.
    #[test]
    fn other_memory_of_its_node_is_told_from_its_own() {
        let tree = Tree::new(Some("kmem"), "2\n");
        tree.blocks(&[(31, "online"), (32, "online"), (33, "online")]);

        let by_size = tree.state();
        // It begins within a block, which is therefore not its own: the kernel takes whole ones.
        tree.lies_in(32 * BLOCK + (2 << 20), 34 * BLOCK + (2 << 20) - 1);
        let by_address = tree.state();

        assert_eq!((by_size.online, by_size.shares_node), (Bytes(2 * BLOCK), true));
        assert_eq!((by_address.online, by_address.shares_node), (Bytes(BLOCK), true));
    }

    #[test]
    fn a_device_for_programs_is_told_how_to_become_memory() {
        let tree = Tree::new(Some("device_dax"), "2\n");
        // Its node's memory is not the device's.
        tree.blocks(&[(0, "online")]);
        let by_hand = tree.lacks();
        tree.write("usr/bin/daxctl", "");
        let by_daxctl = tree.lacks();

        assert!(tree.state().online.is_zero());
        assert!(by_hand.starts_with("its driver is device_dax"), "{by_hand}");
        let writes = "`echo dax1.0 >/sys/bus/dax/drivers/device_dax/unbind && \
                      echo dax1.0 >/sys/bus/dax/drivers/kmem/new_id`";
        assert!(by_hand.contains(writes), "{by_hand}");
        let command = "`daxctl reconfigure-device --mode=system-ram dax1.0`";
        assert!(by_daxctl.contains(command), "{by_daxctl}");
    }

    #[test]
    fn without_a_driver_there_is_none_to_take_it_from() {
        let tree = Tree::new(None, "2\n");
        fs::remove_dir_all(tree.path("sys/bus/dax/drivers/kmem")).expect("it was there");

        let lacks = tree.lacks();

        assert!(lacks.starts_with("it has no driver; `modprobe kmem && echo dax1.0 >"), "{lacks}");
        assert!(!lacks.contains("unbind"), "{lacks}");
    }

    #[test]
    fn memory_that_is_offline_is_told_how_to_go_online() {
        let tree = Tree::new(Some("kmem"), "2\n");
        tree.blocks(&[(32, "offline"), (33, "offline")]);
        let by_hand = tree.lacks();
        tree.write("usr/sbin/daxctl", "");
        let by_daxctl = tree.lacks();

        assert!(by_hand.contains("node2/memory[0-9]*; do echo online_movable >"), "{by_hand}");
        assert!(by_daxctl.contains("`daxctl online-memory dax1.0`"), "{by_daxctl}");
    }

    /// A command that cannot help would be worse than none.
    #[test]
    fn what_the_kernel_would_refuse_is_not_proposed() {
        let nowhere = Tree::new(Some("device_dax"), "-1\n");
        let small = Tree::new(Some("device_dax"), "2\n");
        small.write("sys/bus/dax/devices/dax1.0/size", "2097152\n");

        assert_eq!(nowhere.state().node, None);
        for lacks in [nowhere.lacks(), small.lacks()] {
            assert!(!lacks.contains('`'), "{lacks}");
        }
    }

    #[test]
    fn all_are_listed_in_order_and_others_are_not_there() {
        let tree = Tree::new(None, "2\n");
        for name in ["dax10.0", "dax2.0"] {
            tree.write(&format!("sys/bus/dax/devices/{name}/size"), "0\n");
        }
        let devices = DaxDevices::new(tree.0.path());

        let names: Vec<_> = devices.list().iter().map(|state| state.device.to_string()).collect();

        assert_eq!(names, ["dax1.0", "dax2.0", "dax10.0"]);
        assert_eq!(devices.state(DaxDevice { region: 1, instance: 1 }), None);
        assert!(DaxDevices::new(Path::new("/nowhere")).list().is_empty());
    }
}
