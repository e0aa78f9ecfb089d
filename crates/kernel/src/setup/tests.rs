//! A machine that is a directory.

use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::clean::clean;
use super::*;
use crate::files::fuse;
use crate::support::Support;

/// Keeps `/proc/swaps` of a directory as the kernel keeps its own, and what becomes of a device.
struct Fake(Root);

impl Fake {
    fn change(&self, change: impl FnOnce(&mut Vec<String>)) {
        let path = self.0.path("/proc/swaps");
        let text = fs::read_to_string(&path).unwrap();
        let mut lines = text.lines().map(str::to_owned).collect();
        change(&mut lines);
        fs::write(path, lines.join("\n") + "\n").unwrap();
    }

    fn name(&self, area: &Path) -> String {
        format!("/{}", area.strip_prefix(self.0.path("/")).unwrap().display())
    }
}

impl Swapping for Fake {
    fn on(&self, area: &Path, priority: i32) -> io::Result<()> {
        let line = format!("{} partition 1048572 0 {priority}", self.name(area));
        self.change(|lines| lines.push(line));
        Ok(())
    }
    fn off(&self, area: &Path) -> io::Result<()> {
        let name = self.name(area);
        self.change(|lines| lines.retain(|line| !line.starts_with(&format!("{name} "))));
        Ok(())
    }
    fn as_device(&self, file: &File) -> io::Result<(PathBuf, File)> {
        Ok(("/dev/loop7".into(), file.try_clone()?))
    }
}

/// A machine whose next zram device is the first, and groups of version 1 or 2.
struct Machine {
    directory: tempfile::TempDir,
    site: Site,
}

const SWAPS: &str = "Filename Type Size Used Priority\n";

impl Machine {
    fn new(version: u32) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let root = Root::at(directory.path());
        let machine = Self {
            site: Site {
                records: directory.path().join("run"),
                swapping: Box::new(Fake(root.clone())),
                root,
            },
            directory,
        };
        machine.put("/proc/swaps", SWAPS);
        machine.put("/proc/sys/kernel/random/boot_id", "one\n");
        machine.process(std::process::id(), 77);
        for (file, text) in
            [("disksize", "0"), ("comp_algorithm", "[lzo-rle] lzo lz4"), ("reset", "")]
        {
            machine.put(&format!("/sys/block/zram0/{file}"), text);
        }
        machine.put("/sys/block/zram0/mem_limit", "");
        machine.put("/sys/class/zram-control/hot_add", "0\n");
        machine.put("/sys/class/zram-control/hot_remove", "");
        fs::create_dir(directory_of(&machine, "/dev")).unwrap();
        fs::write(machine.path("/dev/zram0"), vec![0; 4096]).unwrap();
        if version == 1 {
            machine.put(
                "/proc/self/mounts",
                "cgroup /g/memory cgroup rw,memory 0 0\ncgroup /g/cpu cgroup rw,cpu 0 0\n",
            );
            machine.put("/proc/self/cgroup", "4:memory:/us\n2:cpu:/\n");
            machine.put("/g/memory/us/cgroup.procs", "");
            machine.put("/g/cpu/cgroup.procs", "");
        } else {
            machine.put("/proc/self/mounts", "cgroup2 /g cgroup2 rw 0 0\n");
            machine.put("/proc/self/cgroup", "0::/slice/us\n");
            machine.put("/g/slice/us/cgroup.procs", "1\n");
            machine.put("/g/slice/us/cgroup.subtree_control", "\n");
            machine.put("/g/slice/cgroup.subtree_control", "cpu memory\n");
            machine.put("/g/slice/cgroup.procs", "");
        }
        machine
    }

    fn path(&self, path: &str) -> PathBuf {
        self.site.root.path(path)
    }

    fn put(&self, path: &str, text: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn text(&self, path: &str) -> String {
        fs::read_to_string(self.path(path)).unwrap()
    }

    fn process(&self, process: u32, started: u64) {
        let zeros = "0 ".repeat(17);
        self.put(
            &format!("/proc/{process}/stat"),
            &format!("{process} (a) b) S 1 {zeros}{started} 0"),
        );
    }

    fn ends(&self, process: u32) {
        fs::remove_dir_all(self.path(&format!("/proc/{process}"))).unwrap();
    }

    fn set_up(&self) -> Result<SetUp, SetUpError> {
        self.set_up_for(false)
    }

    fn set_up_for(&self, without_change: bool) -> Result<SetUp, SetUpError> {
        let program = "prog".to_owned();
        let (device_size, need) = (Bytes::mib(64), Bytes::mib(16));
        let (group, backing) = (WishedGroup::Own, self.backing());
        let wish = Wish { program, device_size, need, group, backing, without_change };
        SetUp::new(&self.site, &wish)
    }

    /// A file for idle pages, where there is a directory for it.
    fn backing(&self) -> Option<Backing> {
        let directory = self.path("/spill");
        directory.exists().then(|| Backing { directory, size: Bytes::mib(8) })
    }

    /// What is written down.
    fn records(&self) -> Vec<String> {
        let list = fs::read_dir(&self.site.records).into_iter().flatten();
        let mut names: Vec<_> =
            list.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.retain(|name| name != "lock");
        names.sort();
        names
    }

    /// The kernel does what was asked for by these files.
    fn kernel(&self) {
        if self.text("/sys/block/zram0/reset").starts_with('1') {
            self.put("/sys/block/zram0/disksize", "0");
            self.put("/sys/block/zram0/reset", "");
            fs::write(self.path("/dev/zram0"), vec![0; 4096]).unwrap();
        }
    }

    fn group(&self) -> PathBuf {
        let name = format!("terrace-{}", std::process::id());
        let memory = self.path("/g/memory/us").join(&name);
        if memory.parent().unwrap().exists() { memory } else { self.path("/g/slice").join(name) }
    }
}

fn directory_of(machine: &Machine, path: &str) -> PathBuf {
    machine.directory.path().join(path.trim_start_matches('/'))
}

/// The files of the kernel's that a new group has are made by nobody here.
fn with_files(machine: &Machine) {
    for file in ["memory.swappiness", "memory.limit_in_bytes", "memory.high", "cgroup.procs"] {
        fs::write(machine.group().join(file), "").unwrap();
    }
}

#[test]
fn a_device_is_set_up_used_before_other_swap_and_taken_away() {
    let machine = Machine::new(2);
    machine.put("/proc/swaps", &format!("{SWAPS}/dev/sda2 partition 1024 0 200\n"));

    let set_up = machine.set_up().unwrap();

    assert_eq!((set_up.swap.kind, &*set_up.swap.devices), (SwapKind::Zram, &[0][..]));
    // A file of the kernel's is written to and not made anew.
    assert!(machine.text("/sys/block/zram0/comp_algorithm").starts_with("lz4"));
    assert_eq!(machine.text("/sys/block/zram0/disksize"), (64u64 << 20).to_string());
    assert_eq!(machine.text("/sys/block/zram0/mem_limit"), (32u64 << 20).to_string());
    let areas = swap::areas(&machine.site.root);
    assert_eq!((areas[1].zram(), areas[1].priority), (Some(0), 201), "hot pages first");
    assert!(set_up.group().unwrap().directory().exists());

    let cleaned = set_up.finish(&machine.site).unwrap();

    assert_eq!(cleaned.removed.len(), 2, "{cleaned:?}");
    assert_eq!(swap::areas(&machine.site.root).len(), 1);
    assert_eq!(machine.text("/sys/block/zram0/reset"), "1");
    assert_eq!(machine.text("/sys/class/zram-control/hot_remove"), "0");
    assert!(!machine.group().exists() && machine.records().is_empty());
}

/// Whatever a kill leaves behind is undone, and there is nothing that a second time would do.
#[test]
fn killed_at_any_moment_everything_is_undone_by_clean() {
    for version in [1, 2] {
        let mut steps = 0;
        loop {
            let machine = Machine::new(version);
            fuse::set(Some(steps));
            let hook = std::panic::take_hook();
            std::panic::set_hook(Box::new(|_| ()));
            let done = catch_unwind(AssertUnwindSafe(|| machine.set_up().map(|_| ())));
            std::panic::set_hook(hook);
            fuse::set(None);
            machine.ends(std::process::id());

            let cleaned = clean(&machine.site).unwrap();
            machine.kernel();

            assert!(cleaned.kept.is_empty(), "step {steps}: {cleaned:?}");
            assert!(machine.records().is_empty(), "step {steps}: {:?}", machine.records());
            assert!(swap::areas(&machine.site.root).is_empty(), "step {steps}");
            assert_eq!(machine.text("/sys/block/zram0/disksize"), "0", "step {steps}");
            assert!(!machine.group().exists(), "step {steps}");
            assert_eq!(clean(&machine.site).unwrap(), Cleaned::default(), "step {steps}");
            if done.is_ok() {
                break;
            }
            steps += 1;
        }
        assert!(steps > 8, "only {steps} moments");
    }
}

/// The same while it is being undone.
#[test]
fn clean_that_is_killed_itself_is_finished_by_the_next() {
    for steps in 0.. {
        let machine = Machine::new(1);
        machine.set_up().unwrap();
        machine.ends(std::process::id());
        fuse::set(Some(steps));
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(|_| ()));
        let done = catch_unwind(AssertUnwindSafe(|| clean(&machine.site).unwrap()));
        std::panic::set_hook(hook);
        fuse::set(None);
        machine.kernel();

        let cleaned = clean(&machine.site).unwrap();
        machine.kernel();

        assert!(cleaned.kept.is_empty() && machine.records().is_empty(), "{steps}: {cleaned:?}");
        assert_eq!(machine.text("/sys/block/zram0/disksize"), "0", "{steps}");
        assert!(!machine.group().exists(), "{steps}");
        if done.is_ok() {
            assert!(steps > 4, "only {steps} moments");
            break;
        }
    }
}

#[test]
fn what_belongs_to_a_living_run_stays() {
    let machine = Machine::new(2);
    let set_up = machine.set_up().unwrap();

    let cleaned = clean(&machine.site).unwrap();

    assert!(cleaned.removed.is_empty(), "{cleaned:?}");
    assert!(cleaned.kept.iter().all(|kept| kept.in_use) && cleaned.kept.len() == 2, "{cleaned:?}");
    assert_eq!(swap::areas(&machine.site.root).len(), 1);
    drop(set_up);
}

/// A program that outlives its command, or a killed one, has its memory in the swap.
#[test]
fn a_program_that_lives_on_keeps_its_swap_and_loses_its_brake() {
    let machine = Machine::new(2);
    machine.set_up().unwrap();
    with_files(&machine);
    fs::write(machine.group().join("cgroup.procs"), "4711\n").unwrap();
    machine.ends(std::process::id());

    let cleaned = clean(&machine.site).unwrap();

    assert!(cleaned.removed.is_empty(), "{cleaned:?}");
    assert!(cleaned.kept[0].why.contains("4711"), "{cleaned:?}");
    assert_eq!(fs::read_to_string(machine.group().join("memory.high")).unwrap(), "max");
    assert_eq!(swap::areas(&machine.site.root).len(), 1);
    assert_eq!(machine.records().len(), 2);
}

/// A program may make groups below its own and leave them.
#[test]
fn empty_groups_below_a_run_s_go_with_it() {
    for version in [1, 2] {
        let machine = Machine::new(version);
        let set_up = machine.set_up().unwrap();
        fs::create_dir_all(machine.group().join("sub/deeper")).unwrap();

        let cleaned = set_up.finish(&machine.site).unwrap();

        let [deeper, sub] = ["sub/deeper", "sub"].map(|name| machine.group().join(name));
        assert_eq!(cleaned.emptied, [deeper, sub.clone()]);
        let told = format!("control group {}, which was empty", sub.display());
        assert!(cleaned.removed.contains(&told), "{cleaned:?}");
        assert!(cleaned.kept.is_empty() && !machine.group().exists(), "{cleaned:?}");
        assert!(machine.records().is_empty() && swap::areas(&machine.site.root).is_empty());
    }
}

#[test]
fn processes_below_a_run_s_group_keep_it_and_are_named() {
    let machine = Machine::new(1);
    machine.set_up().unwrap();
    machine.ends(std::process::id());
    let (sub, cpu) = (machine.group().join("sub"), machine.path("/g/cpu"));
    let cpu = cpu.join(machine.group().file_name().unwrap());
    fs::create_dir(&sub).unwrap();
    fs::write(sub.join("cgroup.procs"), "4711\n4712\n").unwrap();
    fs::write(cpu.join("cgroup.procs"), "4711\n4713\n").unwrap();

    let cleaned = clean(&machine.site).unwrap();

    let [group, device] = &cleaned.kept[..] else { panic!("{cleaned:?}") };
    let why = format!("processes run in {}: 4711, 4712; in {}: 4713", sub.display(), cpu.display());
    assert_eq!((&group.why, group.in_use), (&why, true));
    assert_eq!((&*device.what, device.in_use), ("zram0", true));
    assert!(device.why.contains("processes"), "{device:?}");
    assert!(sub.exists() && swap::areas(&machine.site.root).len() == 1);
}

/// A later run is not told of it, and does not wait for it.
#[test]
fn a_group_that_cannot_be_removed_keeps_no_device_and_no_later_run() {
    let machine = Machine::new(2);
    let later = machine.set_up().unwrap();
    let before = 1_000_000_000;
    machine.process(before, 78);
    let mut record = later.record.clone();
    record.owner = Owner::of(&machine.site.root, before).unwrap();
    let group = planned_group(&machine.site.root, before).unwrap();
    // No kernel has such a file.
    fs::create_dir(group.directory()).unwrap();
    fs::write(group.directory().join("kept"), "").unwrap();
    record.group = Some(group.clone());
    Records::open(&machine.site.records).unwrap().write(&record.name(), &record).unwrap();
    machine.ends(before);

    let cleaned = later.finish(&machine.site).unwrap();

    let [kept] = &cleaned.kept[..] else { panic!("{cleaned:?}") };
    assert!(!kept.in_use && !kept.ours, "{kept:?}");
    let path = group.directory().display().to_string();
    assert!(kept.what.contains(&path) && !kept.why.contains(&path), "told once: {kept:?}");
    assert!(swap::areas(&machine.site.root).is_empty());
}

/// What one damaged record was about is not known. All else is undone.
#[test]
fn a_record_that_cannot_be_read_keeps_nothing_else_from_being_undone() {
    for (damaged, why) in [
        ("run-1-1.json", "is damaged ("),
        ("zram-7.json", "is of another version of Terrace (9)"),
        (ZswapRecord::NAME, "is of another version of Terrace (9)"),
    ] {
        let machine = Machine::new(2);
        machine.set_up().unwrap();
        machine.ends(std::process::id());
        let text =
            if damaged.starts_with("run") { "{\"schema\":1,\"own" } else { "{\"schema\":9}" };
        machine.put(&format!("/run/{damaged}"), text);

        let cleaned = clean(&machine.site).unwrap();

        assert_eq!(cleaned.removed.len(), 2, "{cleaned:?}");
        assert!(swap::areas(&machine.site.root).is_empty() && !machine.group().exists());
        let [kept] = &cleaned.kept[..] else { panic!("{cleaned:?}") };
        assert!(!kept.in_use && kept.why.contains(why), "{kept:?}");
        let path = machine.path(&format!("/run/{damaged}")).display().to_string();
        assert!(kept.why.contains(&path) && kept.why.contains("remove the file"), "{kept:?}");
        assert_eq!(machine.records(), [damaged], "it stays for whoever looks");
    }
}

/// Which devices a run swaps to whose record is damaged is not known.
#[test]
fn a_living_run_with_a_damaged_record_keeps_all_devices() {
    let machine = Machine::new(2);
    machine.set_up().unwrap();
    machine.ends(std::process::id());
    machine.process(4711, 12);
    machine.put("/run/run-4711-12.json", "{");

    let cleaned = clean(&machine.site).unwrap();

    assert_eq!(cleaned.removed.len(), 1, "the group: {cleaned:?}");
    assert_eq!(swap::areas(&machine.site.root).len(), 1);
}

/// Who cannot go on for such a record is told which it is, and what helps.
#[test]
fn a_device_s_record_of_another_version_is_named_with_its_remedy() {
    let machine = Machine::new(2);
    fs::create_dir(&machine.site.records).unwrap();
    fs::set_permissions(&machine.site.records, fs::Permissions::from_mode(0o700)).unwrap();
    machine.put("/run/zram-0.json", "{\"schema\":9}");

    let error = machine.set_up().unwrap_err().to_string();

    assert!(error.contains("zram-0.json: is of another version of Terrace (9)"), "{error}");
    assert!(error.contains("remove the file"), "{error}");
}

/// A run that comes second swaps to the device of the first, which goes with the last of them.
#[test]
fn a_device_goes_with_the_last_run_that_swaps_to_it() {
    let machine = Machine::new(2);
    let first = machine.set_up().unwrap();
    fs::remove_dir(machine.group()).unwrap();
    // As if the second were another process.
    let (own, other) = (std::process::id(), 1_000_000_000);
    let mut record = first.record.clone();
    machine.process(other, 78);
    record.owner = Owner::of(&machine.site.root, other).unwrap();
    record.group = None;
    Records::open(&machine.site.records).unwrap().write(&record.name(), &record).unwrap();

    let cleaned = first.finish(&machine.site).unwrap();
    assert_eq!(cleaned.kept, [], "who ends is not told of others");
    assert_eq!(swap::areas(&machine.site.root).len(), 1, "{own} has ended, {other} swaps on");

    machine.ends(other);
    assert_eq!(clean(&machine.site).unwrap().removed, ["zram0"]);
    assert!(swap::areas(&machine.site.root).is_empty());
}

#[test]
fn a_device_that_is_somebody_elses_by_now_is_not_touched() {
    let machine = Machine::new(2);
    machine.set_up().unwrap();
    machine.ends(std::process::id());
    fs::write(machine.path("/dev/zram0"), vec![7; 4096]).unwrap();

    let cleaned = clean(&machine.site).unwrap();

    assert!(!cleaned.removed.contains(&"zram0".to_owned()), "{cleaned:?}");
    assert_eq!(swap::areas(&machine.site.root).len(), 1);
    assert_eq!(machine.text("/sys/block/zram0/reset"), "");
    assert!(machine.records().is_empty(), "it is none of ours any more");
}

/// Nothing survives that, and numbers mean something else.
#[test]
fn after_the_machine_was_started_again_records_are_only_forgotten() {
    let machine = Machine::new(2);
    machine.set_up().unwrap();
    machine.put("/proc/sys/kernel/random/boot_id", "two\n");

    assert_eq!(clean(&machine.site).unwrap(), Cleaned::default());
    assert!(machine.records().is_empty());
    assert_eq!(swap::areas(&machine.site.root).len(), 1);
}

#[test]
fn swap_that_is_there_is_used_and_stays() {
    let machine = Machine::new(2);
    let zram = "/dev/zram7 partition 1048572 0 100\n";
    machine.put("/proc/swaps", &format!("{SWAPS}{zram}"));

    let set_up = machine.set_up().unwrap();
    assert_eq!(set_up.swap.devices, [7]);
    set_up.finish(&machine.site).unwrap();

    assert_eq!(machine.text("/proc/swaps"), format!("{SWAPS}{zram}"));
    assert_eq!(machine.text("/sys/block/zram0/disksize"), "0");
}

/// The program may have any amount beyond its budget, and would lose that as soon as it is full.
#[test]
fn beside_swap_that_is_too_small_for_some_programs_a_device_is_made() {
    let machine = Machine::new(2);
    // Enough for the budget, and less than half of what a device of the run's own would hold.
    let small = "/dev/zram7 partition 20480 0 100\n";
    machine.put("/proc/swaps", &format!("{SWAPS}{small}"));

    let set_up = machine.set_up().unwrap();
    assert_eq!((&*set_up.swap.devices, set_up.swap.own), (&[0][..], true));
    assert_eq!(set_up.swap.scarce, None);
    assert_eq!(swap::areas(&machine.site.root)[1].priority, 101, "it is filled first");
    set_up.finish(&machine.site).unwrap();
    assert_eq!(machine.text("/proc/swaps"), format!("{SWAPS}{small}"));
}

/// It has the pager then. What swap was on when the engine was chosen may be gone a moment later.
#[test]
fn a_run_that_has_not_asked_for_this_engine_has_no_swap_made_or_switched_on() {
    let zswap = "/sys/module/zswap/parameters/enabled";
    for swap in ["", "/dev/zram7 partition 20480 0 100\n", "/dev/sda2 partition 1048572 0 -2\n"] {
        let machine = Machine::new(2);
        machine.put(zswap, "N\n");
        if swap.contains("sda2") {
            // Else that would be a device, too, and nothing to switch on.
            fs::remove_dir_all(machine.path("/sys/class")).unwrap();
        }
        let swaps = format!("{SWAPS}{swap}");
        machine.put("/proc/swaps", &swaps);

        let refused = match machine.set_up_for(true) {
            Err(SetUpError::Missing(lack)) => lack,
            other => panic!("{swap}: {other:?}"),
        };

        assert!(refused.contains("that was on is off"), "{swap}: {refused}");
        assert!(machine.records().is_empty() && !machine.group().exists(), "{swap}");
        assert_eq!(machine.text("/proc/swaps"), swaps);
        assert_eq!(machine.text("/sys/block/zram0/disksize"), "0", "{swap}");
        assert_eq!(machine.text(zswap), "N\n", "{swap}");
    }
    let machine = Machine::new(2);
    machine.put("/proc/swaps", &format!("{SWAPS}/dev/zram7 partition 1048572 0 100\n"));
    assert_eq!(machine.set_up_for(true).unwrap().swap.devices, [7]);
}

#[test]
fn without_the_right_to_make_a_device_small_swap_is_used_which_is_said() {
    for (area, kind, what) in [
        ("/dev/zram7 partition 20480 0 100", SwapKind::Zram, "zram7"),
        ("/dev/sda2 partition 20480 0 -2", SwapKind::Disk, "/dev/sda2"),
    ] {
        let machine = Machine::new(2);
        fs::remove_dir_all(machine.path("/sys/class")).unwrap();
        machine.put("/proc/swaps", &format!("{SWAPS}{area}\n"));

        let set_up = machine.set_up().unwrap();

        assert_eq!((set_up.swap.kind, set_up.swap.own), (kind, false));
        assert!(set_up.swap.what.starts_with(what), "{:?}", set_up.swap);
        let scarce = set_up.swap.scarce.clone().unwrap();
        assert!(scarce.contains("only 20.0 MiB") && scarce.contains("modprobe zram"), "{scarce}");
        assert!(scarce.contains("`swapon`"), "{scarce}");
        set_up.finish(&machine.site).unwrap();
    }
    // What is not even as large as the budget is none.
    let machine = Machine::new(2);
    fs::remove_dir_all(machine.path("/sys/class")).unwrap();
    machine.put("/proc/swaps", &format!("{SWAPS}/dev/zram7 partition 8192 0 100\n"));
    let error = machine.set_up().unwrap_err().to_string();
    assert!(error.contains("8.00 MiB of swap are free where 16.0 MiB are needed"), "{error}");
}

/// What is only looked at needs none.
#[test]
fn who_needs_no_swap_has_no_device_made() {
    let machine = Machine::new(2);
    let choose = || choose_swap(&machine.site.root, Bytes::ZERO, Bytes::gib(1)).unwrap();
    let SwapChoice::There(none) = choose() else { panic!("{:?}", choose()) };
    assert_eq!((none.kind, none.scarce), (SwapKind::Disk, None));
    machine.put("/proc/swaps", &format!("{SWAPS}/dev/zram7 partition 8192 0 100\n"));
    let SwapChoice::There(zram) = choose() else { panic!("{:?}", choose()) };
    assert_eq!((zram.kind, zram.scarce), (SwapKind::Zram, None));
}

#[test]
fn a_machine_without_swap_and_zram_says_what_is_missing() {
    let machine = Machine::new(2);
    fs::remove_dir_all(machine.path("/sys/class")).unwrap();

    let lack = match machine.set_up() {
        Err(SetUpError::Missing(lack)) => lack,
        other => panic!("{other:?}"),
    };

    assert!(lack.contains("16.0 MiB are needed") && lack.contains("modprobe zram"), "{lack}");
    assert!(machine.records().is_empty());
    // A disk is slow, but there.
    machine.put("/proc/swaps", &format!("{SWAPS}/dev/sda2 partition 1048572 0 -2\n"));
    assert_eq!(machine.set_up().unwrap().swap.kind, SwapKind::Disk);
}

#[test]
fn records_that_others_could_have_written_are_not_believed() {
    let machine = Machine::new(2);
    let refused = || {
        let error = clean(&machine.site).unwrap_err().to_string();
        assert!(error.contains("others may write to it"), "{error}");
        assert!(error.contains(&machine.path("/run").display().to_string()), "{error}");
    };
    let elsewhere = machine.path("/elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    fs::set_permissions(&elsewhere, fs::Permissions::from_mode(0o700)).unwrap();
    symlink(&elsewhere, machine.path("/run")).unwrap();
    refused();
    fs::remove_file(machine.path("/run")).unwrap();
    fs::create_dir(machine.path("/run")).unwrap();
    fs::set_permissions(machine.path("/run"), fs::Permissions::from_mode(0o720)).unwrap();
    refused();
    fs::set_permissions(machine.path("/run"), fs::Permissions::from_mode(0o700)).unwrap();
    assert_eq!(clean(&machine.site).unwrap(), Cleaned::default());
}

/// Where a device was to be, another's of that number may be by now.
#[test]
fn a_device_without_a_header_is_ours_by_its_size_only() {
    for (size, goes) in [(64u64 << 20, true), (128 << 20, false)] {
        let machine = Machine::new(2);
        let records = Records::open(&machine.site.records).unwrap();
        let record = DeviceRecord::new(&machine.site.root, 0, Bytes::mib(64)).unwrap();
        records.write(&record.name(), &record).unwrap();
        drop(records);
        machine.put("/sys/block/zram0/disksize", &size.to_string());

        let cleaned = clean(&machine.site).unwrap();

        assert_eq!(cleaned.removed.contains(&"zram0".to_owned()), goes, "{cleaned:?}");
        assert_eq!(machine.text("/sys/block/zram0/reset"), if goes { "1" } else { "" });
        let removed = machine.text("/sys/class/zram-control/hot_remove");
        assert_eq!(removed, if goes { "0" } else { "" });
        assert!(machine.records().is_empty());
    }
}

#[test]
fn another_s_group_of_the_same_name_stays_and_nothing_else_does() {
    for version in [1, 2] {
        let machine = Machine::new(version);
        let mut group = machine.group();
        if version == 1 {
            // The second of two, after the first was made.
            group = machine.path("/g/cpu").join(group.file_name().unwrap());
        }
        fs::create_dir(&group).unwrap();

        match machine.set_up() {
            Err(SetUpError::Failed(e)) => assert_eq!(e.kind(), io::ErrorKind::AlreadyExists),
            other => panic!("{other:?}"),
        }

        assert!(group.exists());
        assert_eq!(machine.group().exists(), version == 2);
        assert!(machine.records().is_empty() && swap::areas(&machine.site.root).is_empty());
    }
}

#[test]
fn numbers_of_a_device_are_read_in_the_kernels_order() {
    let machine = Machine::new(2);
    machine.put("/sys/block/zram0/mm_stat", "  8192  300  4096  0  12288  1  0  0  0\n");
    let held = zram::held(&machine.site.root, &[0, 9]).unwrap();
    let expected = zram::Held { original: Bytes(8192), memory: Bytes(4096), peak: Bytes(12288) };
    assert_eq!(held, expected);
    assert_eq!(zram::held(&machine.site.root, &[9]), None);

    let at_limit = || zram::at_limit(&machine.site.root, &[0]);
    assert_eq!(at_limit(), None, "it has no limit");
    machine.put("/sys/block/zram0/mm_stat", "8192 300 1015808 1048576 1048576 1 0 0 0\n");
    assert_eq!(at_limit(), None, "a block fits");
    machine.put("/sys/block/zram0/mm_stat", "8192 300 1019904 1048576 1048576 1 0 0 0\n");
    assert_eq!(at_limit(), Some((Bytes(1_019_904), Bytes::mib(1))));
    assert_eq!(zram::at_limit(&machine.site.root, &[]), None);
}

/// Memory of version 1 and 2, without the files' pages but with shared memory.
#[test]
fn a_group_tells_what_it_has() {
    let machine = Machine::new(1);
    let set_up = machine.set_up().unwrap();
    let group = set_up.group().unwrap();
    fs::write(group.directory().join("memory.usage_in_bytes"), "5000\n").unwrap();
    fs::write(
        group.directory().join("memory.stat"),
        "cache 1\nrss 2\ntotal_cache 3000\ntotal_rss 1500\ntotal_shmem 1000\n",
    )
    .unwrap();

    assert_eq!((group.charged(), group.files()), (Some(Bytes(5000)), Some(Bytes(2000))));
    assert!(group.can_brake());
    let beside = |count: bool| group.beside(Bytes(1000), count).unwrap();
    assert_eq!((beside(false).all(), beside(true).all()), (Bytes(2000), Bytes::ZERO));
    // Stacks of threads: a quarter of the budget is for them.
    fs::write(group.directory().join("memory.kmem.usage_in_bytes"), "1900\n").unwrap();
    assert_eq!((beside(false).kernel, beside(true).all()), (Bytes(1650), Bytes(1650)));
    assert_eq!(group.beside(Bytes(8000), false).unwrap().all(), Bytes(2000));
    assert_eq!(group.reclaimed_by_itself(), None);
    let stat = "anon 7\npgsteal_direct 3\npgsteal_proactive 9\n";
    fs::write(group.directory().join("memory.stat"), stat).unwrap();
    assert_eq!(group.reclaimed_by_itself(), Some(Bytes(3 * 4096)));
}

/// The quota before the period would be refused where it is the longer one; both are taken off.
#[test]
fn a_group_of_version_1_is_slowed_down_and_tells_of_crossings() {
    use std::os::fd::AsRawFd;
    let machine = Machine::new(1);
    let set_up = machine.set_up().unwrap();
    let group = set_up.group().unwrap();
    let cpu = machine.path("/g/cpu").join(group.directory().file_name().unwrap());
    for file in ["cpu.cfs_period_us", "cpu.cfs_quota_us"] {
        fs::write(cpu.join(file), "").unwrap();
    }
    group.slow_down(group::Pace::Hundredth).unwrap();
    let read = |file: &str| fs::read_to_string(cpu.join(file)).unwrap();
    assert_eq!(
        (read("cpu.cfs_period_us"), read("cpu.cfs_quota_us")),
        ("100000".into(), "1000".into())
    );
    fs::write(cpu.join("cpu.cfs_quota_us"), "").unwrap();
    group.release_brake().unwrap();
    assert_eq!(read("cpu.cfs_quota_us"), "-1");

    let (usage, control) = ("memory.usage_in_bytes", "cgroup.event_control");
    fs::write(group.directory().join(usage), "5000\n").unwrap();
    fs::write(group.directory().join(control), "").unwrap();
    let event = group::event().unwrap();
    group.tell_of_crossings(&event, &[Bytes(77)]).unwrap();
    let said = fs::read_to_string(group.directory().join(control)).unwrap();
    let words: Vec<_> = said.split(' ').collect();
    assert_eq!((words[0], words[2]), (&*event.as_raw_fd().to_string(), "77"));
}

/// A machine without zram that has a disk to swap to.
fn with_zswap() -> Machine {
    let machine = Machine::new(2);
    fs::remove_dir_all(machine.path("/sys/class")).unwrap();
    machine.put("/proc/swaps", &format!("{SWAPS}/dev/sda2 partition 1048572 0 -2\n"));
    machine.put("/sys/module/zswap/parameters/enabled", "N");
    machine.put("/sys/module/zswap/parameters/compressor", "lzo");
    machine
}

fn zswap_of(machine: &Machine) -> (String, String) {
    let of = |name: &str| machine.text(&format!("/sys/module/zswap/parameters/{name}"));
    (of("enabled"), of("compressor"))
}

#[test]
fn without_zram_zswap_is_switched_on_in_front_of_a_disk_and_off_again() {
    let machine = with_zswap();

    let set_up = machine.set_up().unwrap();
    assert_eq!(set_up.swap.kind, SwapKind::Zswap);
    assert_eq!(zswap_of(&machine), ("Y".into(), "lz4".into()));

    set_up.finish(&machine.site).unwrap();
    assert_eq!(zswap_of(&machine), ("N".into(), "lzo".into()));
    assert!(machine.records().is_empty());
}

#[test]
fn zswap_that_was_switched_on_is_switched_off_by_clean_whenever_it_was_killed() {
    for steps in 0.. {
        let machine = with_zswap();
        fuse::set(Some(steps));
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(|_| ()));
        let done = catch_unwind(AssertUnwindSafe(|| machine.set_up().map(|_| ())));
        std::panic::set_hook(hook);
        fuse::set(None);
        machine.ends(std::process::id());

        let cleaned = clean(&machine.site).unwrap();

        assert!(cleaned.kept.is_empty(), "step {steps}: {cleaned:?}");
        assert_eq!(zswap_of(&machine), ("N".into(), "lzo".into()), "step {steps}");
        assert!(machine.records().is_empty(), "step {steps}: {:?}", machine.records());
        if done.is_ok() {
            assert!(steps > 5, "only {steps} moments");
            break;
        }
    }
}

/// Somebody has set it since, for himself.
#[test]
fn zswap_is_left_as_somebody_else_has_set_it_since() {
    let machine = with_zswap();
    let set_up = machine.set_up().unwrap();
    machine.put("/sys/module/zswap/parameters/compressor", "zstd");
    set_up.finish(&machine.site).unwrap();
    assert_eq!(zswap_of(&machine), ("N".into(), "zstd".into()));
}

#[test]
fn idle_pages_are_compressed_again_where_the_kernel_can() {
    let machine = Machine::new(2);
    machine.put("/sys/block/zram0/recomp_algorithm", "#1: lzo lzo-rle lz4 zstd\n");
    let set_up = machine.set_up().unwrap();
    assert!(set_up.swap.recompresses && !set_up.swap.writes_back);
    let said = machine.text("/sys/block/zram0/recomp_algorithm");
    assert!(said.starts_with("algo=zstd priority=1"), "{said}");
    assert!(!zram::known_extras(&machine.site.root).unwrap().writes_back);

    // One that has no such codec.
    let machine = Machine::new(2);
    machine.put("/sys/block/zram0/recomp_algorithm", "#1: lzo lzo-rle\n");
    assert!(!machine.set_up().unwrap().swap.recompresses);
}

#[test]
fn a_file_for_idle_pages_is_the_device_s_before_it_has_a_size() {
    let machine = Machine::new(2);
    fs::create_dir(machine.path("/spill")).unwrap();
    match machine.set_up() {
        Err(SetUpError::Missing(lack)) => assert!(lack.contains("ZRAM_WRITEBACK"), "{lack}"),
        other => panic!("{other:?}"),
    }
    assert!(machine.records().is_empty(), "the device that was added is taken away again");

    let machine = Machine::new(2);
    machine.put("/sys/block/zram0/backing_dev", "none\n");
    fs::create_dir(machine.path("/spill")).unwrap();
    let set_up = machine.set_up().unwrap();
    assert!(set_up.swap.writes_back && set_up.swap.own);
    assert!(machine.text("/sys/block/zram0/backing_dev").starts_with("/dev/loop7"));
    assert_eq!(fs::read_dir(machine.path("/spill")).unwrap().count(), 0, "it has no name");
}

/// The first page of a swap area, as `mkswap` writes it, with this label.
fn first_page(label: &[u8]) -> Vec<u8> {
    let mut page = vec![0; 4096];
    page[4086..].copy_from_slice(b"SWAPSPACE2");
    page[1052..1052 + label.len()].copy_from_slice(label);
    page
}

/// A machine with 1 GiB of memory and these areas, of which zram7 has this label.
fn with_swap(areas: &str, label: &[u8]) -> Machine {
    with_swap_and_groups(2, areas, label)
}

/// The same with groups of version 1 or 2.
fn with_swap_and_groups(version: u32, areas: &str, label: &[u8]) -> Machine {
    let machine = Machine::new(version);
    machine.put("/proc/meminfo", "MemTotal: 1048576 kB\n");
    machine.put("/proc/swaps", &format!("{SWAPS}{areas}"));
    fs::write(machine.path("/dev/zram7"), first_page(label)).unwrap();
    machine
}

/// By which swap the engine can be had there for a budget of so many MiB, or why not.
fn without_change(machine: &Machine, budget: u64) -> Result<String, String> {
    Support::without_change(&machine.site.root, &machine.site.records, Bytes::mib(budget))
}

#[test]
fn zram_that_the_machine_swaps_to_is_enough_from_half_of_memory_and_the_budget_on() {
    let zram = "/dev/zram7 partition 655360 1024 100\n";
    for label in [&b""[..], b"swap", b"terrace-like"] {
        let machine = with_swap(zram, label);
        assert_eq!(without_change(&machine, 16), Ok("zram7 is on, 639 MiB free".into()));
        // Nothing is added to it, and it stays.
        let SwapChoice::There(there) =
            choose_swap(&machine.site.root, Bytes::mib(16), Bytes::mib(512)).unwrap()
        else {
            panic!("a device is made");
        };
        assert_eq!((&*there.devices, there.own, there.scarce), (&[7][..], false, None));
        let lack = without_change(&machine, 640).unwrap_err();
        assert!(lack.contains("a program may need 640 MiB"), "{lack}");
    }
    let used = "/dev/zram7 partition 655360 262144 100\n";
    let lack = without_change(&with_swap(used, b""), 16).unwrap_err();
    assert!(lack.contains("zram7 is on, but only 384 MiB of it are free"), "{lack}");
}

/// It goes with that run, and pages have to come back then.
#[test]
fn a_device_that_a_run_has_made_is_not_the_machine_s() {
    let zram = "/dev/zram7 partition 655360 0 100\n";
    let lack = without_change(&with_swap(zram, b"terrace"), 16).unwrap_err();
    assert!(lack.contains("what another run has made"), "{lack}");
    // Beside it the machine's own counts by what is free in it alone.
    let machine = with_swap(&format!("{zram}/dev/zram8 partition 20480 0 99\n"), b"terrace");
    fs::write(machine.path("/dev/zram8"), first_page(b"")).unwrap();
    let lack = without_change(&machine, 16).unwrap_err();
    assert!(lack.contains("zram8 is on, but only 20.0 MiB of it are free"), "{lack}");
    // As the engine makes it, wherever that is written down.
    let machine = Machine::new(2);
    machine.put("/proc/meminfo", "MemTotal: 65536 kB\n");
    machine.set_up().unwrap();
    assert_eq!(swap::areas(&machine.site.root).len(), 1);
    let elsewhere = machine.path("/elsewhere");
    let found = present::compressed(&machine.site.root, &elsewhere, Bytes::mib(16));
    assert!(found.clone().unwrap_err().contains("another run"), "{found:?}");
    // One that is on its way out.
    let machine = with_swap(zram, b"");
    fs::remove_file(machine.path("/dev/zram7")).unwrap();
    assert!(without_change(&machine, 16).is_err());
}

#[test]
fn zswap_counts_with_the_swap_behind_it_unless_a_run_has_switched_it_on() {
    let disk = "/dev/sda2 partition 655360 0 -2\n";
    let machine = with_swap(disk, b"");
    let lack = without_change(&machine, 16).unwrap_err();
    assert_eq!(lack, "no swap on compressed memory is on");
    machine.put("/sys/module/zswap/parameters/enabled", "Y\n");
    assert_eq!(without_change(&machine, 16), Ok("zswap is on, 640 MiB of swap free".into()));
    let lack = without_change(&machine, 700).unwrap_err();
    assert!(lack.contains("only 640 MiB of it are free"), "{lack}");
    machine.put("/proc/swaps", SWAPS);
    assert_eq!(without_change(&machine, 16).unwrap_err(), "no swap on compressed memory is on");

    let machine = with_zswap();
    machine.put("/proc/meminfo", "MemTotal: 65536 kB\n");
    machine.set_up().unwrap();
    let lack = without_change(&machine, 16).unwrap_err();
    assert!(lack.contains("what another run has made"), "{lack}");
}

/// A group of the run's own lies beside that of this process, or further up.
#[test]
fn what_bounds_this_process_has_to_bound_the_program_as_well() {
    let zram = "/dev/zram7 partition 655360 0 100\n";
    for (file, text, bounds) in [
        ("/g/slice/us/memory.max", "max\n", false),
        ("/g/slice/us/cpu.max", "max 100000\n", false),
        ("/g/slice/us/memory.max", "1073741824\n", true),
        ("/g/slice/us/memory.high", "1073741824\n", true),
        ("/g/slice/us/cpu.max", "50000 100000\n", true),
        ("/g/slice/us/memory.swap.max", "0\n", true),
        ("/g/slice/us/memory.swap.high", "0\n", true),
        // A group of the run's own lies below this one.
        ("/g/slice/memory.max", "1073741824\n", false),
        ("/g/slice/memory.high", "1073741824\n", false),
        ("/g/slice/cpu.max", "50000 100000\n", false),
        ("/g/slice/memory.swap.max", "max\n", false),
        ("/g/slice/memory.swap.max", "0\n", true),
        ("/g/slice/memory.swap.high", "max\n", false),
        ("/g/slice/memory.swap.high", "1073741824\n", true),
        // Under version 1 it always does. The number for no limit goes by the size of pages.
        ("/g/memory/us/memory.limit_in_bytes", "1073741824\n", false),
        ("/g/memory/us/memory.memsw.limit_in_bytes", "9223372036854771712\n", false),
        ("/g/memory/us/memory.memsw.limit_in_bytes", "9223372036854710272\n", false),
        ("/g/memory/us/memory.memsw.limit_in_bytes", "1073741824\n", true),
        ("/g/memory/memory.memsw.limit_in_bytes", "1073741824\n", true),
    ] {
        let version = if file.starts_with("/g/memory/") { 1 } else { 2 };
        let machine = with_swap_and_groups(version, zram, b"");
        machine.put(file, text);
        let found = without_change(&machine, 16);
        assert_eq!(found.is_err(), bounds, "{file}: {found:?}");
        if let Err(lack) = found {
            assert!(lack.contains(file.trim_start_matches('/')), "{lack}");
        }
    }
    // Without a group nothing is had.
    let machine = with_swap(zram, b"");
    machine.put("/g/slice/cgroup.subtree_control", "cpu\n");
    let lack = without_change(&machine, 16).unwrap_err();
    assert!(lack.contains("no control group can be made"), "{lack}");
}
