//! `terrace freeze` and `terrace thaw`: a sandbox stands still without memory, and goes on with it.

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use common::{Swap, await_that, json, refused, terrace};

/// A group that can be frozen; gone when this is dropped.
struct Sandbox {
    group: PathBuf,
    program: Child,
}

/// 32 MiB, which are looked at and counted again and again.
const PROGRAM: &str = "
import sys, time
memory = bytearray(32 << 20)
for page in range(0, len(memory), 4096):
    memory[page:page + 8] = page.to_bytes(8, 'little')
rounds = 0
while True:
    for page in range(0, len(memory), 4096):
        assert int.from_bytes(memory[page:page + 8], 'little') == page
    rounds += 1
    open(sys.argv[1], 'w').write(str(rounds))
    time.sleep(0.02)
";

impl Sandbox {
    fn new(rounds: &Path) -> Option<Self> {
        let name = format!("terrace-frozen-{}", std::process::id());
        let roots = ["/sys/fs/cgroup/freezer", "/sys/fs/cgroup"].map(Path::new);
        let group = roots.into_iter().map(|root| root.join(&name)).find(|group| {
            fs::create_dir(group).is_ok()
                && ["freezer.state", "cgroup.freeze"].iter().any(|file| group.join(file).exists())
        })?;
        let program = Command::new("python3")
            .args(["-c", PROGRAM])
            .arg(rounds)
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        fs::write(group.join("cgroup.procs"), program.id().to_string()).unwrap();
        Some(Self { group, program })
    }

    fn resident(&self) -> u64 {
        let text = fs::read_to_string(format!("/proc/{}/statm", self.program.id())).unwrap();
        text.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 4096
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        // Who is frozen does not end.
        let _ = fs::write(self.group.join("freezer.state"), "THAWED");
        let _ = fs::write(self.group.join("cgroup.freeze"), "0");
        let _ = self.program.kill();
        let _ = self.program.wait();
        for _ in 0..100 {
            if fs::remove_dir(&self.group).is_ok() {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

#[test]
fn a_sandbox_stands_still_without_memory_and_goes_on_with_it() {
    let directory = tempfile::tempdir().unwrap();
    let rounds = directory.path().join("rounds");
    let (Some(_swap), Some(mut sandbox)) = (Swap::on(), Sandbox::new(&rounds)) else {
        return terrace_shown::is_missing("swap, and a control group that can be frozen");
    };
    let limit = Duration::from_mins(1);
    let done = || fs::read_to_string(&rounds).ok().and_then(|text| text.parse::<u64>().ok());
    await_that(limit, "it runs", || done().is_some_and(|rounds| rounds > 1));
    let before = sandbox.resident();
    assert!(before > 32 << 20, "{before}");
    let group = sandbox.group.clone();
    let run = |verb: &str| terrace().args([verb, "--json", "--cgroup"]).arg(&group);

    let frozen = json(run("freeze"), 0);

    assert_eq!((&frozen["kind"], &frozen["processes"]), (&"terrace.freeze".into(), &1.into()));
    assert!(frozen["memory"].as_u64().unwrap() > 32 << 20, "{frozen}");
    assert!(sandbox.resident() < before / 2, "{} of {before}", sandbox.resident());
    let stood = done();
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(done(), stood, "it stands still");
    assert!(refused(run("freeze")).contains("it is frozen already"));

    let thawed = json(run("thaw"), 0);

    assert_eq!((&thawed["kind"], &thawed["skipped"]), (&"terrace.thaw".into(), &0.into()));
    assert_eq!(thawed["memory"], frozen["memory"], "{thawed}");
    await_that(limit, "it goes on", || done() > stood);
    assert!(sandbox.program.try_wait().unwrap().is_none(), "and its memory is intact");
    // A second time there is nothing to bring back.
    assert_eq!(json(run("thaw"), 0)["memory"], 0);
}

#[test]
fn what_is_no_such_group_is_refused() {
    for verb in ["freeze", "thaw"] {
        let error = refused(terrace().args([verb, "--cgroup", "no-such-group"]));
        assert!(error.contains("is no control group"), "{error}");
    }
}
