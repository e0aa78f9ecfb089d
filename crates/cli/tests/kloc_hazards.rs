//! What may happen to a file while `terrace kloc` has its pages leave: each hazard on a file system
//! of its own, with content compared before and after. As root.

mod common;

use std::fs::{self, File};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::kloc::{Daemon, Disk, Group, cached};
use common::{await_that, is_root};
use io_uring::{IoUring, opcode, types};
use terrace_kloc_live::act::residency::residency;

/// A file's size.
const FILE: u64 = 4 << 20;
/// The group's size. Files leave when more than a tenth is in use: shell and Python take less.
const GROUP: u64 = 160 << 20;

/// A daemon that acts on files of a group. Its parts end in this order.
struct Scene {
    daemon: Daemon,
    group: Group,
    disk: Disk,
    fillers: u32,
}

impl Scene {
    /// Nothing where this machine has no such file system, hooks or groups.
    fn new(name: &str, kind: &str, more: &[&str]) -> Option<Self> {
        if !is_root() {
            return None;
        }
        Self::on(Disk::new(kind)?, name, more)
    }

    /// The same, on a file system that there is.
    fn on(disk: Disk, name: &str, more: &[&str]) -> Option<Self> {
        let group = Group::new(name, GROUP)?;
        let state = disk.path().parent()?.join("state");
        let daemon = Daemon::new(&state, &[&arguments(&group)[..], more].concat())?;
        Some(Self { daemon, group, disk, fillers: 0 })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.disk.path().join(name)
    }

    /// Writes a file within the group, and closes it; gives its content.
    fn write(&self, path: &Path) -> Vec<u8> {
        let script = format!("head -c {FILE} /dev/urandom >{}", path.display());
        self.group.run(&script, self.disk.path());
        fs::read(path).unwrap()
    }

    /// Has the group be short of memory.
    fn press(&mut self) {
        self.fillers += 1;
        let name = format!("filler{}", self.fillers);
        self.group.run(&format!("head -c $((32 << 20)) /dev/zero >{name}"), self.disk.path());
    }

    /// The same, unless it is already: with more the kernel takes pages before the daemon does.
    fn press_a_little(&mut self) {
        if self.group.used() < GROUP / 4 {
            self.press();
        }
    }

    fn outcomes(&self, path: &Path) -> Vec<String> {
        let why = self.daemon.ask(&["why", path.to_str().unwrap()]);
        let decisions = why["decisions"].as_array().unwrap();
        let outcome = |d: &serde_json::Value| d["outcome"]["outcome"].as_str().unwrap().to_owned();
        decisions.iter().map(outcome).collect()
    }

    /// What is said of a file that the daemon does not know for what its file system is.
    fn refused_why(&self, path: &Path) -> String {
        let state = self.daemon.state.to_str().unwrap();
        let why = ["kloc", "why", path.to_str().unwrap(), "--state", state];
        let said = common::terrace().args(why).output().unwrap();
        let text = String::from_utf8_lossy(&said.stderr).into_owned();
        assert_eq!(said.status.code(), Some(3), "{text}");
        text
    }

    /// Until nothing of a file is cached, with the group short of memory.
    fn until_it_has_left(&mut self, path: &Path) {
        let until = Instant::now() + Duration::from_mins(2);
        while cached(&self.daemon, path) > 0 {
            let why = self.daemon.ask(&["why", path.to_str().unwrap()]);
            assert!(Instant::now() < until, "it stays: {why}");
            self.press_a_little();
            std::thread::sleep(Duration::from_millis(100));
        }
        let outcomes = self.outcomes(path);
        assert!(outcomes.iter().any(|outcome| outcome == "dropped"), "{outcomes:?}");
    }

    /// That a file stays whole, with the group short of memory, while other files leave.
    fn stays(&mut self, path: &Path) {
        let before = self.left();
        self.press();
        await_that(Duration::from_mins(2), "other files that leave", || self.left() > before);
        // Its turn has come, too: it was closed before them.
        std::thread::sleep(Duration::from_millis(200));
        assert_eq!(cached(&self.daemon, path), FILE, "{:?}", self.outcomes(path));
        assert!(!self.outcomes(path).contains(&"dropped".to_owned()));
    }

    fn top(&self) -> serde_json::Value {
        self.daemon.ask(&["top", "--times", "1"])["status"].clone()
    }

    fn left(&self) -> u64 {
        self.top()["totals"]["left"].as_u64().unwrap()
    }
}

fn arguments(group: &Group) -> Vec<&str> {
    let group = group.0.to_str().unwrap();
    vec!["--mode", "enforce", "--cgroup", group, "--high", "10%", "--low", "2%"]
}

/// A path that leads to an open file, whether or not it has a name.
fn by_descriptor(file: &impl AsRawFd) -> PathBuf {
    PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd()))
}

/// Hard links, bind mounts, and a file that was renamed, and another put in its place, while it
/// waited to leave: a file is what the file system says, whatever it is called.
#[test]
fn a_file_is_the_same_by_any_name() {
    let Some(mut scene) = Scene::new("names", "ext4", &[]) else { return };
    let (first, second) = (scene.path("first"), scene.path("second"));
    let content = scene.write(&first);
    fs::hard_link(&first, &second).unwrap();
    let (queued, renamed) = (scene.path("queued"), scene.path("renamed"));
    let old = scene.write(&queued);
    fs::rename(&queued, &renamed).unwrap();
    fs::write(&queued, "another file").unwrap();
    let within = scene.path("within");
    fs::create_dir(&within).unwrap();
    let bound = scene.disk.mount("bound", &["--bind", within.to_str().unwrap()]);
    scene.until_it_has_left(&first);
    assert_eq!(scene.outcomes(&first), scene.outcomes(&second));
    scene.until_it_has_left(&renamed);
    assert_eq!(fs::read_to_string(&queued).unwrap(), "another file");
    assert!(fs::read(&renamed).unwrap() == old, "content of a file that was renamed");
    assert!(fs::read(&second).unwrap() == content, "content by the other name");
    if let Some(bound) = bound {
        let content = scene.write(&bound.join("file"));
        scene.until_it_has_left(&within.join("file"));
        assert!(fs::read(bound.join("file")).unwrap() == content, "content of a bound file");
    }
}

/// `--path` is a directory, by whichever mount it was named.
#[test]
fn files_below_a_directory_are_found_behind_a_bind_mount() {
    if !is_root() {
        return;
    }
    let Some(mut disk) = Disk::new("ext4") else { return };
    let within = disk.path().join("within");
    fs::create_dir(&within).unwrap();
    let Some(bound) = disk.mount("bound", &["--bind", within.to_str().unwrap()]) else { return };
    let below = bound.to_str().unwrap();
    let Some(mut scene) = Scene::on(disk, "below", &["--path", below]) else { return };
    let (inside, outside) = (bound.join("file"), scene.path("outside"));
    scene.write(&outside);
    scene.write(&inside);
    // Fillers lie outside, so they stay.
    scene.until_it_has_left(&inside);
    assert_eq!(cached(&scene.daemon, &outside), FILE);
    assert_eq!(scene.outcomes(&outside)[0], "left-alone");
}

/// What anybody still has stays, by whatever means he has it; when he lets go of it, it leaves.
#[test]
fn what_is_held_in_any_way_stays_until_it_is_let_go() {
    let Some(mut scene) = Scene::new("held", "ext4", &[]) else { return };
    // Open.
    let path = scene.path("open");
    let content = scene.write(&path);
    let held = File::open(&path).unwrap();
    scene.stays(&path);
    drop(held);
    scene.until_it_has_left(&path);
    assert!(fs::read(&path).unwrap() == content);

    // By a mapping alone, and not by any descriptor.
    let path = scene.path("mapped");
    let content = scene.write(&path);
    let mapped = Mapped::new(&path);
    scene.stays(&path);
    drop(mapped);
    scene.until_it_has_left(&path);
    assert!(fs::read(&path).unwrap() == content);

    // By a descriptor alone, and not by any name.
    let path = scene.path("unlinked");
    let content = scene.write(&path);
    let mut held = File::open(&path).unwrap();
    fs::remove_file(&path).unwrap();
    scene.stays(&by_descriptor(&held));
    let mut read = Vec::new();
    std::io::Read::read_to_end(&mut held, &mut read).unwrap();
    assert!(read == content);
    drop(held);

    // Opened by `io_uring`, which no hook at system calls sees.
    let path = scene.path("ring");
    let content = scene.write(&path);
    let Some(held) = opened_by_ring(&path) else { return };
    scene.stays(&path);
    drop(held);
    scene.until_it_has_left(&path);
    assert!(fs::read(&path).unwrap() == content);
}

/// No hook has told of an open that was there before the daemon: after somebody else's close the file
/// seems to be closed.
#[test]
fn what_was_open_before_the_daemon_began_stays_until_it_is_closed() {
    if !is_root() {
        return;
    }
    let Some(disk) = Disk::new("ext4") else { return };
    let path = disk.path().join("before");
    let content: Vec<u8> = (0..FILE).map(|at| (at / 5) as u8).collect();
    fs::write(&path, &content).unwrap();
    let held = File::open(&path).unwrap();
    let Some(mut scene) = Scene::on(disk, "before", &[]) else { return };
    scene.group.run("cat before >/dev/null", scene.disk.path());
    scene.stays(&path);
    drop(held);
    scene.until_it_has_left(&path);
    assert!(fs::read(&path).unwrap() == content);
}

/// A file that is mapped, and not open.
struct Mapped(*mut std::ffi::c_void);

impl Mapped {
    fn new(path: &Path) -> Self {
        use rustix::mm::{MapFlags, ProtFlags, mmap};
        let file = File::open(path).unwrap();
        let (length, flags) = (FILE as usize, MapFlags::SHARED | MapFlags::POPULATE);
        // SAFETY: a new mapping, at an address that the kernel chooses, of a file as long as that.
        let at = unsafe {
            mmap(std::ptr::null_mut(), length, ProtFlags::READ, flags, &file, 0).unwrap()
        };
        Self(at)
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the mapping is this one's, and nobody has a reference into it.
        unsafe { rustix::mm::munmap(self.0, FILE as usize).unwrap() };
    }
}

/// Nothing where this kernel, or who runs the tests, has no `io_uring`.
fn opened_by_ring(path: &Path) -> Option<OwnedFd> {
    let mut ring = IoUring::new(2).ok()?;
    let name = std::ffi::CString::new(path.to_str()?).ok()?;
    let open = opcode::OpenAt::new(types::Fd(libc::AT_FDCWD), name.as_ptr())
        .flags(libc::O_RDONLY | libc::O_CLOEXEC)
        .build()
        // A kernel thread opens it.
        .flags(io_uring::squeue::Flags::ASYNC);
    // SAFETY: the name lives until the ring has answered.
    unsafe { ring.submission().push(&open).ok()? };
    ring.submit_and_wait(1).ok()?;
    let descriptor = ring.completion().next()?.result();
    // SAFETY: the ring has opened it for this process, and it is nobody else's.
    (descriptor >= 0).then(|| unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// Files of an overlay are those of the file system below it.
#[test]
fn files_of_an_overlay_leave_when_they_are_closed() {
    let Some(mut scene) = Scene::new("overlay", "ext4", &[]) else { return };
    for name in ["lower", "upper", "work"] {
        fs::create_dir(scene.path(name)).unwrap();
    }
    let at = |name: &str| scene.path(name).display().to_string();
    let options =
        format!("lowerdir={},upperdir={},workdir={}", at("lower"), at("upper"), at("work"));
    let arguments = ["-t", "overlay", "none", "-o", &options];
    let Some(merged) = scene.disk.mount("merged", &arguments) else { return };
    let (seen, real) = (merged.join("file"), scene.path("upper/file"));
    let content = scene.write(&seen);
    let held = File::open(&seen).unwrap();
    scene.stays(&real);
    drop(held);
    // The overlay lets go of its own file a moment later.
    scene.until_it_has_left(&real);
    assert!(fs::read(&seen).unwrap() == content);
    let left_alone = scene.top()["left_alone"].to_string();
    assert!(left_alone.contains("overlayfs"), "{left_alone}");
    let said = scene.refused_why(&seen);
    assert!(said.contains("files on overlayfs are left alone; ask for the file below"), "{said}");
}

/// XFS: as on ext4.
#[test]
fn files_on_xfs_leave_with_their_content_kept() {
    let Some(mut scene) = Scene::new("xfs", "xfs", &[]) else { return };
    let path = scene.path("file");
    let content = scene.write(&path);
    scene.until_it_has_left(&path);
    assert!(fs::read(&path).unwrap() == content);
}

/// Other file systems: left alone, and said so in one line each.
#[test]
fn files_on_other_file_systems_are_left_alone_and_that_is_told() {
    if !is_root() {
        return;
    }
    for kind in ["btrfs", "tmpfs"] {
        let Some(disk) = Disk::new(kind) else { continue };
        // The programs that write there are files, too. They lie elsewhere, and may leave.
        let below = disk.path().to_str().unwrap().to_owned();
        let Some(mut scene) = Scene::on(disk, kind, &["--path", &below]) else { continue };
        let path = scene.path("file");
        let content = scene.write(&path);
        scene.press();
        let mut top = serde_json::Value::Null;
        await_that(Duration::from_secs(20), "events that are left alone", || {
            top = scene.top();
            top["left_alone"].to_string().contains(kind)
                && top["totals"]["pressure"].as_u64().unwrap() > 0
        });
        // Whatever was to leave has had the time for it.
        std::thread::sleep(Duration::from_millis(200));
        top = scene.top();
        assert_eq!(top["totals"]["left"], 0, "{top}");
        let list = scene.daemon.ask(&["list", "--count", "1000"]);
        let known = list["files"].as_array().unwrap();
        assert!(!known.is_empty() && known.iter().all(|f| f["file_system"] != kind), "{list}");
        let pages = residency(&File::open(&path).unwrap()).unwrap().cached;
        assert_eq!(pages * rustix::param::page_size() as u64, FILE, "{top}");
        let said = scene.refused_why(&path);
        assert!(said.contains(&format!("files on {kind} are left alone")), "{said}");
        assert!(fs::read(&path).unwrap() == content);
    }
}

/// More files than the table has room for: what is forgotten is counted, and nothing else changes.
#[test]
fn a_full_table_forgets_and_counts() {
    let Some(mut scene) = Scene::new("full", "ext4", &["--contexts", "64"]) else { return };
    // A shell with its programs, libraries and locales is some twenty files, which all that runs on
    // the machine uses again and again. Enough such, and a file that waits is forgotten, and stays.
    // So memory is short already when the last file is closed, and nothing in the group opens
    // others then. What is open stays: this is what keeps memory short.
    let filler = File::create(scene.path("filler1")).unwrap();
    let script = "for i in $(seq 160); do head -c 65536 /dev/urandom >small$i; done; \
                  sha256sum small* >sums";
    scene.group.run(script, scene.disk.path());
    scene.press();
    let path = scene.path("last");
    let content = scene.write(&path);
    await_that(Duration::from_mins(2), "the last file to leave", || {
        cached(&scene.daemon, &path) == 0
    });
    assert!(scene.outcomes(&path).contains(&"dropped".to_owned()), "{:?}", scene.outcomes(&path));
    drop(filler);
    let top = scene.top();
    assert!(top["contexts"].as_u64().unwrap() <= 64, "{top}");
    assert!(top["doubts"]["forgotten"].as_u64().unwrap() >= 96, "{top}");
    scene.group.run("sha256sum --quiet -c sums", scene.disk.path());
    assert!(fs::read(&path).unwrap() == content);
}

/// Programs that change files, while the daemon is killed at one moment after the other: while it
/// loads programs into the kernel, takes its directory, drops pages. The next one begins, nobody
/// waits for a lease that is left, and each byte is as it was written.
#[test]
fn a_daemon_may_be_killed_at_any_moment() {
    let Some(scene) = Scene::new("killed", "ext4", &[]) else { return };
    let Scene { daemon, group, disk, .. } = scene;
    let state = daemon.state.clone();
    drop(daemon);
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/kloc_churn.py");
    let join = format!(
        "echo $$ >{}/cgroup.procs; exec python3 {script} {} 8 5",
        group.0.display(),
        disk.path().display()
    );
    let churn = Command::new("bash").args(["-c", &join]).stdout(Stdio::piped()).spawn().unwrap();
    let begun = Instant::now();
    let mut kills = 0;
    while begun.elapsed() < Duration::from_secs(7) {
        let mut child = Command::new(common::binary())
            .args(["kloc", "run", "--state"])
            .arg(&state)
            .args(arguments(&group))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // From before it begins until it has long been at work.
        std::thread::sleep(Duration::from_millis(37 * kills % 1600));
        child.kill().unwrap();
        child.wait().unwrap();
        kills += 1;
    }
    let output = churn.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "content has changed: {text}");
    assert!(kills >= 5, "{kills}");
    for entry in fs::read_dir(disk.path()).unwrap().flatten() {
        if entry.file_type().unwrap().is_file() {
            let mut at_once = fs::OpenOptions::new();
            let opened = at_once.write(true).custom_flags(libc::O_NONBLOCK).open(entry.path());
            assert!(opened.is_ok(), "a lease is left: {opened:?}");
        }
    }
    assert!(Daemon::new(&state, &arguments(&group)).is_some(), "the next one begins");
}

/// Two daemons that act on the same files: each is somebody else to the other. Neither keeps the
/// other busy for ever, and no content changes.
#[test]
fn two_daemons_on_the_same_files_do_no_harm() {
    let Some(mut scene) = Scene::new("two", "ext4", &[]) else { return };
    let other = scene.daemon.state.parent().unwrap().join("other");
    let second = Daemon::new(&other, &arguments(&scene.group)).expect("the first one could");
    let path = scene.path("first");
    let content = scene.write(&path);
    for number in 0..10 {
        scene.write(&scene.path(&format!("file{number}")));
    }
    let until = Instant::now() + Duration::from_mins(2);
    while cached(&scene.daemon, &path) > 0 {
        assert!(Instant::now() < until, "neither has it leave: {}", scene.top());
        scene.press_a_little();
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(fs::read(&path).unwrap() == content);
    let place = scene.disk.path().to_owned();
    // What one does the other sees, which is no reason to do it again. What other programs on the
    // machine open is none of that.
    let opened = || {
        [&scene.daemon, &second].map(|daemon| {
            let list = daemon.ask(&["list", "--count", "1000"]);
            let files = list["files"].as_array().unwrap();
            let ours = files.iter().filter(|file| {
                file["name"].as_str().is_some_and(|name| Path::new(name).starts_with(&place))
            });
            let opened: Vec<_> = ours.map(|file| file["opened"].as_u64().unwrap()).collect();
            assert!(!opened.is_empty(), "{list}");
            opened.into_iter().sum::<u64>()
        })
    };
    let (mut before, mut since) = (opened(), Instant::now());
    await_that(Duration::from_mins(2), "both daemons at rest", || {
        std::thread::sleep(Duration::from_secs(1));
        let now = opened();
        let grown = now[0].saturating_sub(before[0]) + now[1].saturating_sub(before[1]);
        let seconds = since.elapsed().as_secs_f64();
        (before, since) = (now, Instant::now());
        // Asking takes seconds where the machine is busy.
        (grown as f64) < 100.0 * seconds
    });
    assert_eq!(second.end()["enforce"], true);
}
