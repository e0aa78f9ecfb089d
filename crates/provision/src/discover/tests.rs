use super::*;
use crate::blocks::BlockState;
use crate::discover::advice::advice;
use crate::fixture::Fixture;

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
        // It is a DAX device already, which is counted.
        ("sys/bus/nd/devices/namespace1.0/size", "1075838976\n"),
        ("sys/bus/nd/devices/namespace1.0/holder", "dax1.0\n"),
        ("sys/bus/nd/devices/region0/size", "536870912\n"),
    ] {
        fixture.write(path, text);
    }
    let driver = fixture.root().join("sys/bus/dax/devices/dax0.0/driver");
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
        (
            "sys/devices/system/node/node0/cpulist",
            "x",
            "node0/cpulist: `x` is no list of processors",
        ),
        ("sys/devices/system/node/node2/cpulist", "3-1\n", "node2/cpulist: `3-1` is no list"),
        ("sys/devices/system/node/node2/cpulist", "0-1,\n", "node2/cpulist: `0-1,` is no list"),
        ("sys/kernel/mm/numa/demotion_enabled", "maybe", "demotion_enabled: `maybe` is neither on"),
        ("proc/zoneinfo", "", "zoneinfo: line 1: the text has no zone"),
        ("sys/bus/dax/devices/dax1.0/size", "big", "dax1.0/size: `big` is no size"),
    ] {
        let fixture = Fixture::new();
        fixture.write(path, text);
        let error = fixture.machine().unwrap_err().to_string();
        assert!(error.contains(message), "{error}");
    }
}

#[test]
fn a_device_s_place_is_known_before_its_node_exists() {
    let fixture = Fixture::new();
    fixture.device();
    for (target, near, is_near) in [("2", "0", true), ("7", "0", true), ("7", "5", false)] {
        fixture.write("sys/bus/dax/devices/dax1.0/target_node", target);
        fixture.write("sys/bus/dax/devices/dax1.0/numa_node", near);
        let machine = fixture.machine().unwrap();
        let names: Vec<_> = machine.devices_of(NodeId(0)).map(|d| d.name.as_str()).collect();
        assert_eq!(!names.is_empty(), is_near, "node {target}, near {near}");
    }
}

#[test]
fn a_device_is_whole_blocks_only() {
    let fixture = Fixture::new();
    fixture.device();
    let machine = fixture.machine().unwrap();
    assert_eq!(machine.devices[0].blocks, [48, 49], "2 MiB before them are none");
    assert_eq!(machine.devices[0].memory(machine.block), Bytes::mib(256));
}

#[test]
fn processors_are_listed_in_ranges_and_settings_in_the_kernels_words() {
    let fixture = Fixture::new();
    for (list, has_cpu) in [("0\n", true), ("0-1,8,10-11\n", true), ("\n", false)] {
        fixture.write("sys/devices/system/node/node2/cpulist", list);
        assert_eq!(fixture.machine().unwrap().nodes[1].has_cpu, has_cpu, "{list}");
    }
    for (text, is_on) in [("force\n", true), ("Y\n", true), ("N\n", false), ("0\n", false)] {
        fixture.write("sys/module/memory_hotplug/parameters/memmap_on_memory", text);
        assert_eq!(fixture.machine().unwrap().settings.memmap_on_memory, Some(is_on), "{text}");
    }
}

/// A namespace has to be made a DAX device first, which destroys what is on it.
#[test]
fn a_namespace_alone_is_no_memory_that_could_come() {
    let fixture = Fixture::new();
    std::fs::remove_dir_all(fixture.root().join("sys/devices/system/memory/memory40")).unwrap();
    std::fs::remove_dir_all(fixture.root().join("sys/devices/system/memory/memory41")).unwrap();
    std::fs::remove_dir_all(fixture.root().join("sys/devices/system/memory/memory42")).unwrap();
    assert!(!fixture.machine().unwrap().has_any());
    fixture.write("sys/bus/nd/devices/namespace0.0/size", "536870912\n");
    fixture.write("sys/bus/nd/devices/namespace0.0/target_node", "2\n");
    let machine = fixture.machine().unwrap();
    assert_eq!(machine.devices.len(), 1);
    assert!(!machine.has_any());
    assert_eq!(machine.view(&machine.nodes[0], Nanos::ZERO).hidden, Bytes::ZERO);
    fixture.device();
    assert!(fixture.machine().unwrap().has_any());
}
