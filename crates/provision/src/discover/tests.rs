use std::fs;

use super::*;
use crate::discover::advice::advice;

/// A directory that looks like a machine's procfs and sysfs.
struct Fixture(tempfile::TempDir);

const ZONES: &str = "\
Node 0, zone   Normal
  pages free     262144
        min      1000
        low      1250
        high     1500
        managed  1048576
Node 2, zone  Movable
  pages free     16384
        min      10
        low      12
        high     14
        managed  32768
";

impl Fixture {
    /// Node 0 has processors and 4 GiB; node 2 is slow memory near it, one block of three online.
    fn new() -> Self {
        let fixture = Self(tempfile::tempdir().unwrap());
        for (path, text) in [
            ("sys/devices/system/memory/block_size_bytes", "8000000\n"),
            ("sys/devices/system/memory/auto_online_blocks", "offline\n"),
            ("proc/zoneinfo", ZONES),
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

    fn write(&self, path: &str, text: &str) {
        let path = self.0.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn block(&self, number: u64, node: u64, state: &str, zones: &str) {
        let here = format!("sys/devices/system/memory/memory{number}");
        self.write(&format!("{here}/state"), state);
        self.write(&format!("{here}/valid_zones"), zones);
        self.write(&format!("{here}/node{node}/cpulist"), "");
    }

    fn machine(&self) -> Result<Machine, DiscoverError> {
        Machine::discover(self.0.path(), Bytes::kib(4))
    }
}

#[test]
fn slow_memory_is_found_by_its_node_and_dram_is_nobody_s_pool() {
    let machine = Fixture::new().machine().unwrap();
    assert_eq!(machine.block, Bytes::mib(128));
    let [pool] = &machine.pools[..] else { panic!("{:?}", machine.pools) };
    assert_eq!((pool.target_node, pool.distance_from(NodeId(0))), (NodeId(2), Some(17)));
    let numbers: Vec<_> = pool.blocks.iter().map(|block| (block.number, block.state)).collect();
    let hidden = BlockState::Hidden;
    assert_eq!(numbers, [(40, BlockState::Movable), (41, hidden), (42, hidden)]);

    let view = machine.view(&machine.nodes[0], Nanos::ZERO);
    assert_eq!((view.dram, view.dram_free), (Bytes::gib(4), Bytes::gib(1)));
    assert_eq!((view.integrated, view.hidden), (Bytes::mib(128), Bytes::mib(256)));
    assert_eq!(view.integrated_free, Bytes::mib(64));
    assert!(advice(&machine).is_empty(), "{:?}", advice(&machine));
}

#[test]
fn a_device_counts_as_hidden_until_it_is_memory() {
    let fixture = Fixture::new();
    for (path, text) in [
        ("sys/bus/dax/devices/dax1.0/size", "1073741824\n"),
        ("sys/bus/dax/devices/dax1.0/target_node", "2\n"),
        ("sys/bus/dax/devices/dax0.0/size", "2147483648\n"),
        ("sys/bus/dax/devices/dax0.0/target_node", "2\n"),
        ("sys/bus/nd/devices/namespace0.0/size", "536870912\n"),
        ("sys/bus/nd/devices/namespace0.1/size", "0\n"),
        ("sys/bus/nd/devices/region0/size", "536870912\n"),
    ] {
        fixture.write(path, text);
    }
    let driver = fixture.0.path().join("sys/bus/dax/devices/dax0.0/driver");
    std::os::unix::fs::symlink("../../../../bus/dax/drivers/kmem", driver).unwrap();
    let machine = fixture.machine().unwrap();
    let names: Vec<_> = machine.devices.iter().map(|device| device.name.as_str()).collect();
    assert_eq!(names, ["dax1.0", "namespace0.0"]);
    let view = machine.view(&machine.nodes[0], Nanos::ZERO);
    assert_eq!(view.hidden, Bytes::mib(256 + 1024), "what names no node is near none");
    let [told] = &advice(&machine)[..] else { panic!() };
    assert!(told.what.starts_with("namespace0.0 (512 MiB) is a block device"), "{}", told.what);
}

#[test]
fn each_trap_of_the_kernel_is_told_with_its_remedy() {
    let fixture = Fixture::new();
    fixture.write("sys/kernel/mm/numa/demotion_enabled", "false\n");
    fixture.write("proc/sys/vm/overcommit_memory", "0\n");
    fixture.write("sys/devices/system/memory/auto_online_blocks", "online\n");
    fixture.write("sys/module/memory_hotplug/parameters/memmap_on_memory", "N\n");
    fixture.block(50, 0, "offline", "Movable");
    let told = advice(&fixture.machine().unwrap());
    let whats: String = told.iter().map(|advice| advice.what.as_str()).collect();
    for part in ["kills a program", "before DRAM", "by itself", "6.00 MiB for all", "is refused"] {
        assert!(whats.contains(part), "{part}: {whats}");
    }
    fixture.write("proc/sys/vm/watermark_scale_factor", "500\n");
    let after = advice(&fixture.machine().unwrap());
    assert_eq!(after.len(), told.len() - 1, "a floor by watermarks will do");
}

#[test]
fn a_file_that_is_not_what_the_kernel_writes_is_named() {
    for (path, text, message) in [
        ("sys/devices/system/memory/block_size_bytes", "many", "block_size_bytes: `many` is no"),
        ("sys/devices/system/memory/memory41/state", "asleep", "memory41/state: unknown state"),
        ("sys/devices/system/node/node0/distance", "10 x", "node0/distance: `x` is no distance"),
        ("proc/zoneinfo", "", "zoneinfo: line 1: the text has no zone"),
        ("sys/bus/dax/devices/dax1.0/size", "big", "dax1.0/size: `big` is no size"),
    ] {
        let fixture = Fixture::new();
        fixture.write(path, text);
        let error = fixture.machine().unwrap_err().to_string();
        assert!(error.contains(message), "{error}");
    }
}
