//! `terrace kloc` on the kernel that runs: as root, with eBPF, and with control groups.

mod common;

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use common::kloc::{Daemon, Disk, Group, cached, place};
use common::{await_that, binary, binary_text, is_root, json, refused, terrace};

/// Files that are written, read once and forgotten, as a backup leaves them: each 4 MiB.
const STREAM: &str = "for i in $(seq 24); do head -c 4194304 /dev/urandom >stream$i; \
                      cat stream$i >/dev/null; done";
/// A file that is read again and again, by opening it each time.
const WARM: &str = "head -c 4194304 /dev/urandom >hot; \
                    for i in 1 2 3 4 5; do cat hot >/dev/null; done";

/// What the daemon is for: a stream leaves when memory is short, a file that is used again and
/// again stays, and no content changes.
#[test]
fn a_stream_leaves_under_pressure_and_what_is_used_again_stays() {
    let directory = place();
    let state = directory.path().join("state");
    let Some(group) = Group::new("enforce", 48 << 20) else { return };
    let path = group.0.to_str().unwrap().to_owned();
    let Some(daemon) = Daemon::new(&state, &["--mode", "enforce", "--cgroup", &path]) else {
        return;
    };
    group.run(WARM, directory.path());
    // Slow enough for the daemon on a machine that has other things to do.
    let slowly = STREAM.replace("; done", "; sleep 0.03; done");
    group.run(&format!("{slowly}; sha256sum stream* hot >sums"), directory.path());
    let hot = directory.path().join("hot");
    let mut last = serde_json::Value::Null;
    // Where the daemon is late, the kernel takes some of the stream itself: it goes on until enough
    // has left.
    let more = "n=$(ls stream* | wc -l); n=$((n + 1)); head -c 4194304 /dev/urandom >stream$n; \
                cat stream$n hot >/dev/null";
    await_that(Duration::from_mins(2), "pages that leave", || {
        last = daemon.ask(&["top", "--times", "1"]);
        let enough = last["status"]["totals"]["left_bytes"].as_u64().unwrap() >= 24 << 20;
        if !enough {
            group.run(more, directory.path());
        }
        enough
    });
    assert_eq!(cached(&daemon, &hot), 4 << 20, "{last}");
    let why = daemon.ask(&["why", hot.to_str().unwrap()]);
    let because = why["because"][0].as_str().unwrap();
    assert!(because.contains("while its pages were in place"), "{because}");
    assert_eq!(why["decisions"].as_array().unwrap().len(), 0, "{why}");
    let is_dropped = |number: usize| {
        let path = directory.path().join(format!("stream{number}"));
        let why = daemon.ask(&["why", path.to_str().unwrap()]);
        let decisions = why["decisions"].as_array().unwrap();
        decisions.iter().any(|decision| decision["outcome"]["outcome"] == "dropped")
    };
    assert!((1..=24).any(is_dropped), "{}", daemon.ask(&["list"]));
    // What is dropped was written first.
    group.run("sha256sum --quiet -c sums", directory.path());
    let list = daemon.ask(&["list", "--count", "3"]);
    assert_eq!(list["files"].as_array().unwrap().len(), 3);
    let report = daemon.end();
    assert_eq!(report["kind"], "terrace.kloc.run");
    assert_eq!((&report["enforce"], &report["lost"]), (&true.into(), &0.into()));
    assert!(!state.join("socket").exists());
}

/// A filter that matches nothing would look like a daemon with nothing to do.
#[test]
fn a_filter_of_which_nothing_is_seen_is_told() {
    let directory = place();
    let state = directory.path().join("state");
    let [used, empty] = ["used", "empty"].map(|name| directory.path().join(name));
    fs::create_dir(&used).unwrap();
    fs::create_dir(&empty).unwrap();
    let (Some(group), Some(idle)) = (Group::new("seen", 64 << 20), Group::new("idle", 64 << 20))
    else {
        return;
    };
    // A group is the same by a link to it.
    let link = directory.path().join("link");
    std::os::unix::fs::symlink(&group.0, &link).unwrap();
    let paths = [&link, &idle.0, &used, &empty].map(|path| path.to_str().unwrap());
    let [group_path, idle_path, used_path, empty_path] = paths;
    let arguments =
        ["--cgroup", group_path, "--cgroup", idle_path, "--path", used_path, "--path", empty_path];
    let Some(mut daemon) = Daemon::new(&state, &[&["--mode", "enforce"][..], &arguments].concat())
    else {
        return;
    };
    let begun = daemon.ask(&["list"]);
    assert_eq!(begun["unseen"].as_array().unwrap().len(), 4, "{begun}");
    group.run("for i in 1 2 3; do echo $i >used/$i; done; echo x >beside", directory.path());
    let mut top = serde_json::Value::Null;
    await_that(Duration::from_mins(1), "files below one of the directories", || {
        top = daemon.ask(&["top", "--times", "1"]);
        let unseen = top["status"]["unseen"].as_array().unwrap();
        unseen.len() == 2 && unseen[1].as_str().unwrap().contains("looked at lie elsewhere")
    });
    let unseen = &top["status"]["unseen"];
    assert!(unseen[0].as_str().unwrap().starts_with(&format!("--cgroup {idle_path}: ")), "{top}");
    assert!(unseen[1].as_str().unwrap().starts_with(&format!("--path {empty_path}: ")), "{top}");
    for what in ["list", "report"] {
        assert_eq!(daemon.ask(&[what])["unseen"].as_array().unwrap().len(), 2, "{what}");
    }
    let mut stderr = daemon.child.stderr.take().unwrap();
    let report = daemon.end();
    assert_eq!(report["unseen"].as_array().unwrap().len(), 2, "{report}");
    let mut text = String::new();
    stderr.read_to_string(&mut text).unwrap();
    assert_eq!(text.matches("nothing seen in ").count(), 2, "{text}");
}

/// Where there is no eBPF for them, that is said by name.
#[test]
fn hooks_that_are_named_are_those_that_are_used() {
    if !is_root() {
        return;
    }
    for set in ["trampolines", "tracepoints", "fanotify", "polled"] {
        let directory = place();
        let state = directory.path().join("state");
        let output = Command::new(binary())
            .args(["kloc", "run", "--json", "--for", "100ms", "--hooks", set, "--state"])
            .arg(&state)
            .output()
            .unwrap();
        if output.status.code() == Some(3) {
            let said = String::from_utf8(output.stderr).unwrap();
            assert!(said.contains(set), "{said}");
            continue;
        }
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(report["hooks"], set, "{report}");
    }
}

/// Whoever asks the doctor before wants to know what the daemon will be by, and why not by better.
#[test]
fn the_doctor_names_the_hooks_that_the_daemon_uses() {
    let directory = place();
    let Some(daemon) = Daemon::new(&directory.path().join("state"), &[]) else { return };
    let status = daemon.ask(&["top", "--times", "1"])["status"].clone();
    // Whatever else works here.
    let output = terrace().args(["doctor", "--json"]).output().unwrap();
    let doctor: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let kloc = &doctor["kloc"];
    assert_eq!(kloc["hooks"], status["hooks"], "{kloc} {status}");
    // Those that are tried before it, each with a reason.
    let refused = |of: &serde_json::Value| -> Vec<String> {
        let all = of["refused"].as_array().unwrap().iter();
        let set = |line: &serde_json::Value| {
            let (set, why) = line.as_str().unwrap().split_once(": ").unwrap();
            assert!(!why.is_empty(), "{set}");
            set.to_owned()
        };
        all.map(set).collect()
    };
    assert_eq!(refused(kloc), refused(&status));
}

/// The default drops nothing, and says what would have left and what of it came back.
#[test]
fn observing_drops_nothing_and_tells_the_regret() {
    let directory = place();
    let state = directory.path().join("state");
    let Some(group) = Group::new("observe", 128 << 20) else { return };
    let path = group.0.to_str().unwrap().to_owned();
    let metrics = format!("unix:{}", directory.path().join("metrics").display());
    let limits = ["--high", "50%", "--low", "40%"];
    let arguments =
        [&["--cgroup", &path, "--metrics", &metrics, "--objects"], &limits[..]].concat();
    let Some(daemon) = Daemon::new(&state, &arguments) else { return };
    group.run("for i in $(seq 18); do head -c 4194304 /dev/zero >f$i; done", directory.path());
    let mut top = serde_json::Value::Null;
    await_that(Duration::from_mins(1), "files that would leave", || {
        top = daemon.ask(&["top", "--times", "1"]);
        top["status"]["totals"]["left"].as_u64().unwrap() > 0
    });
    assert_eq!(cached(&daemon, &directory.path().join("f1")), 4 << 20, "nothing is dropped");
    let before = top["status"]["totals"]["regretted"].as_u64().unwrap();
    group.run("cat f1 >/dev/null", directory.path());
    await_that(Duration::from_mins(1), "the regret", || {
        top = daemon.ask(&["top", "--times", "1"]);
        top["status"]["totals"]["regretted"].as_u64().unwrap() > before
    });
    let report = daemon.ask(&["report"]);
    assert_eq!(report["table"].as_array().unwrap().len(), 11);
    let pages = report["table"].as_array().unwrap().iter().find(|r| r["paper"] == "page_cache");
    assert_eq!(pages.unwrap()["knowledge"], "exact");
    assert!(report["lifetimes"]["open"]["count"].as_u64().unwrap() >= 15, "{report}");
    // Its owner's alone.
    let socket = directory.path().join("metrics");
    assert_eq!(fs::metadata(&socket).unwrap().permissions().mode() & 0o077, 0);
    let mut stream = UnixStream::connect(&socket).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    assert!(text.contains("terrace_kloc_contexts "), "{text}");
    let sockets = daemon.ask(&["list", "--sockets"]);
    assert_eq!(sockets["kind"], "terrace.kloc.sockets");
}

/// Names in the kernel's cache and what is asked of the journal are told of each file where hooks can
/// tell, and of the machine elsewhere; the table says which.
#[test]
fn names_and_the_journal_are_of_a_file_where_hooks_tell() {
    if !is_root() {
        return;
    }
    let directory = place();
    let Some(disk) = Disk::new("ext4") else { return };
    let Some(daemon) = Daemon::new(&directory.path().join("state"), &["--objects"]) else { return };
    let row = |paper: &str| {
        let report = daemon.ask(&["report"]);
        let mut rows = report["table"].as_array().unwrap().iter();
        let found = rows.find(|row| row["paper"] == paper).cloned();
        found.unwrap_or_else(|| panic!("{report}"))
    };
    let (first, second) = (disk.path().join("first"), disk.path().join("second"));
    let mut file = File::create(&first).unwrap();
    file.write_all(&vec![7; 100_000]).unwrap();
    file.sync_all().unwrap();
    fs::hard_link(&first, &second).unwrap();
    // What is open keeps its name in the cache.
    let link = File::open(&second).unwrap();
    let why = || daemon.ask(&["why", first.to_str().unwrap()]);
    let mut last = serde_json::Value::Null;
    let dentry = row("dentry");
    if daemon.ask(&["report"])["hooks"] == "fanotify" {
        assert_eq!(dentry["knowledge"], "aggregate", "{dentry}");
        assert!(why()["file"]["names"].is_null());
    } else {
        assert_eq!(dentry["knowledge"], "exact", "{dentry}");
        await_that(Duration::from_mins(1), "both names", || {
            last = why();
            last["file"]["names"] == 2
        });
        drop(link);
        fs::remove_file(&second).unwrap();
        // Where no hook tells of a name that goes, the next open does.
        drop(File::open(&first).unwrap());
        await_that(Duration::from_mins(1), "one name", || {
            last = why();
            last["file"]["names"] == 1
        });
    }
    let types = ["/sys/kernel/btf/vmlinux", "/sys/kernel/btf/ext4"];
    let grep = ["-q", "-s", "btf_trace_ext4_journal_start_inode"];
    let has_hook = Command::new("grep").args(grep).args(types).status().unwrap().success();
    let journal = row("journal");
    if has_hook && last["file"]["names"].is_u64() {
        assert_eq!(journal["knowledge"], "exact", "{journal}: {}", daemon.ask(&["report"]));
        await_that(Duration::from_mins(1), "blocks that the file asked for", || {
            last = why();
            last["file"]["journal_blocks"].as_u64().unwrap() > 0
        });
        assert!(last["file"]["journal_handles"].as_u64().unwrap() > 0, "{last}");
        assert!(row("journal")["count"].as_u64().unwrap() > 0);
    } else {
        assert_ne!(journal["knowledge"], "exact", "{journal}");
    }
}

/// That nothing has been counted yet is not that it cannot be known on this kernel.
#[test]
fn a_report_without_a_daemon_says_what_one_would_know() {
    if !is_root() {
        return;
    }
    let directory = place();
    let state = directory.path().join("state");
    let report = terrace().args(["kloc", "report", "--json", "--state"]).arg(&state);
    let without = json(report, 0);
    let disk = Disk::new("ext4");
    let Some(daemon) = Daemon::new(&state, &[]) else { return };
    if let Some(disk) = &disk {
        fs::write(disk.path().join("file"), "x").unwrap();
    }
    let known = |report: &serde_json::Value, paper: &str| {
        let rows = report["table"].as_array().unwrap();
        rows.iter().find(|row| row["paper"] == paper).unwrap()["knowledge"].clone()
    };
    for paper in ["page_cache", "dentry", "sock", "skbuff->data"] {
        let with = daemon.ask(&["report"]);
        assert_eq!(known(&without, paper), known(&with, paper), "{paper}: {without} {with}");
    }
    // Of extents the daemon knows by files on ext4.
    if disk.is_some() && known(&without, "extent") == "exact" {
        await_that(Duration::from_mins(1), "extents", || {
            known(&daemon.ask(&["report"]), "extent") == "exact"
        });
    }
    assert!(without["observed"].as_u64() == Some(0), "{without}");
}

/// A socket's age is known if it was made since the daemon began.
#[test]
fn sockets_are_listed_with_memory_and_age() {
    let directory = place();
    let Some(daemon) = Daemon::new(&directory.path().join("state"), &[]) else { return };
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (server, _) = listener.accept().unwrap();
    client.write_all(&[7; 10_000]).unwrap();
    let local = server.local_addr().unwrap().to_string();
    let remote = server.peer_addr().unwrap().to_string();
    let list = daemon.ask(&["list", "--sockets", "--count", "100000"]);
    let all = list["sockets"].as_array().unwrap();
    let is_it =
        |s: &&serde_json::Value| s["local"] == local.as_str() && s["remote"] == remote.as_str();
    let found = all.iter().find(is_it).unwrap_or_else(|| panic!("{list}"));
    assert_eq!(found["state"], "established");
    assert!(found["receiving"].as_u64().unwrap() >= 10_000, "{found}");
    assert!(found["age"].as_u64().is_some(), "{found}");
}

/// A killed daemon leaves nothing that keeps the next one from beginning; two at once are one too
/// many for one directory.
#[test]
fn two_daemons_want_two_directories_and_a_killed_one_is_followed() {
    let directory = place();
    let state = directory.path().join("state");
    let Some(mut daemon) = Daemon::new(&state, &[]) else { return };
    let second = terrace().args(["kloc", "run", "--state"]).arg(&state).output().unwrap();
    assert_eq!(second.status.code(), Some(1));
    let text = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(text.contains(&format!("(process {})", daemon.child.id())), "{text}");
    let other = Daemon::new(&directory.path().join("other"), &["--mode", "enforce"]);
    assert!(other.is_some(), "another directory is another daemon");
    drop(other);
    daemon.child.kill().unwrap();
    daemon.child.wait().unwrap();
    let next = Daemon::new(&state, &["--for", "60s"]).expect("the first one could");
    assert_eq!(next.ask(&["top", "--times", "1"])["status"]["enforce"], false);
}

#[test]
fn what_cannot_be_is_refused_by_name() {
    let directory = place();
    let file = directory.path().join("file");
    fs::write(&file, "x").unwrap();
    let file = file.to_str().unwrap();
    for (line, expected) in [
        (vec!["run", "--cgroup", "/no/such"], "--cgroup: `/no/such` is no control group"),
        (vec!["run", "--device", file], "no block device"),
        (vec!["run", "--device", "/no/such"], "--device: /no/such: "),
        (vec!["run", "--path", file], "no directory"),
        (vec!["run", "--mode", "enforce", "--path", "/no/such"], "--path: /no/such: "),
        (vec!["run", "--low", "95%"], "--low: must be less than --high"),
        (vec!["run", "--high", "120%"], "for '--high <PERCENT>'"),
        (vec!["run", "--contexts", "0"], "--contexts: "),
        (vec!["run", "--mode", "drop"], "drop"),
        (vec!["top", "--every", "1ms"], "--every: the least is 100 ms"),
        (vec!["top", "--times", "0"], "--times: the least is 1"),
        (vec!["why", "/no/such"], "/no/such: "),
        (vec!["why", "/"], "no regular file"),
    ] {
        let refusal = refused(terrace().arg("kloc").args(&line));
        assert!(refusal.contains(expected), "{line:?}: {refusal}");
    }
    let state = directory.path().join("none");
    for line in [&["top"][..], &["list"], &["why", file]] {
        let output = terrace().arg("kloc").args(line).arg("--state").arg(&state).output().unwrap();
        // A file on a file system whose files are left alone is told first.
        let code = output.status.code();
        assert!(code == Some(1) || (line[0] == "why" && code == Some(3)), "{line:?}: {output:?}");
    }
}

/// Somebody without rights is told which are missing.
#[test]
fn without_rights_the_missing_ones_are_named() {
    let setpriv = Path::new("/usr/bin/setpriv");
    if !is_root() || !setpriv.exists() {
        return;
    }
    let directory = place();
    let state = directory.path().join("state");
    let output = Command::new(setpriv)
        .args(["--bounding-set=-all", "--inh-caps=-all", binary_text(), "kloc", "run", "--state"])
        .arg(&state)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.contains("CAP_BPF") && text.contains("CAP_PERFMON"), "{text}");
    assert!(!state.exists(), "nothing was begun");
}

/// The unit asks for options that there are, and for the rights that the daemon names.
#[test]
fn the_unit_has_what_the_daemon_needs() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let unit = fs::read_to_string(root.join("packaging/terrace-kloc.service")).unwrap();
    let line = unit.lines().find_map(|line| line.strip_prefix("ExecStart=")).unwrap();
    let words: Vec<_> = line.split(' ').skip(1).collect();
    let help = terrace().args(["kloc", "run", "--help"]).output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    for option in words.iter().filter(|word| word.starts_with("--")) {
        assert!(help.contains(*option), "{option}");
    }
    // `privileges::NEEDS`, and the one that memory is locked by.
    for right in [
        "CAP_BPF",
        "CAP_PERFMON",
        "CAP_SYS_ADMIN",
        "CAP_DAC_READ_SEARCH",
        "CAP_LEASE",
        "CAP_FOWNER",
        "CAP_SYS_NICE",
        "CAP_IPC_LOCK",
    ] {
        for line in ["CapabilityBoundingSet=", "AmbientCapabilities="] {
            let given = unit.lines().find_map(|of| of.strip_prefix(line)).unwrap();
            assert!(given.split(' ').any(|one| one == right), "{line}: {right}");
        }
    }
}

/// Seconds that content is compared for: `make soak-kloc` takes 900.
fn soak_seconds() -> u64 {
    std::env::var("KLOC_SOAK_SECONDS").map_or(6, |text| text.parse().unwrap())
}

/// Whatever programs do to files while pages of theirs are dropped as soon as they are closed, and
/// while the daemon is killed in the middle of it and begun again: each byte is as it was written.
#[test]
fn no_content_changes_whatever_happens_to_a_file() {
    let directory = place();
    let files = directory.path().join("files");
    fs::create_dir(&files).unwrap();
    let state = directory.path().join("state");
    let Some(group) = Group::new("soak", 256 << 20) else { return };
    let path = group.0.to_str().unwrap().to_owned();
    let below = files.to_str().unwrap().to_owned();
    // Always short: what is closed leaves at once.
    let arguments = [
        "--mode",
        "enforce",
        "--cgroup",
        &path,
        "--path",
        &below,
        "--high",
        "3%",
        "--low",
        "1%",
        "--contexts",
        "500",
        "--objects",
    ];
    let Some(mut daemon) = Daemon::new(&state, &arguments) else { return };
    let seconds = soak_seconds();
    let mut churn: Vec<_> = (1..=3)
        .map(|seed| {
            let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/kloc_churn.py");
            let join = format!(
                "echo $$ >{path}/cgroup.procs; exec python3 {script} {below} {seconds} {seed}"
            );
            let command = Command::new("bash").args(["-c", &join]).stdout(Stdio::piped()).spawn();
            command.unwrap()
        })
        .collect();
    let half = Duration::from_millis(seconds * 500);
    std::thread::sleep(half);
    let before = daemon.ask(&["top", "--times", "1"]);
    let left = before["status"]["totals"]["left"].as_u64().unwrap();
    assert!(left > 0, "files left while they were used: {before}");
    daemon.child.kill().unwrap();
    daemon.child.wait().unwrap();
    daemon = Daemon::new(&state, &arguments).expect("the first one could");
    let mut checked = 0;
    for child in &mut churn {
        let mut text = String::new();
        child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
        assert!(child.wait().unwrap().success(), "content has changed: {text}");
        checked += text.trim().parse::<u64>().unwrap();
    }
    assert!(checked > 100, "only {checked} comparisons");
    let after = daemon.end();
    eprintln!(
        "{checked} comparisons; {left} files left before the kill, {} after it, {} in use",
        after["totals"]["left"], after["totals"]["in_use"]
    );
    assert!(after["contexts"].as_u64().unwrap() <= 500, "{after}");
}

/// The page's example, as it stands there, with a directory of its own.
#[test]
fn the_example_of_the_page_works() {
    let directory = place();
    let state = directory.path().join("state");
    let Some(daemon) = Daemon::new(&state, &[]) else { return };
    drop(daemon);
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/kloc.md");
    let page = fs::read_to_string(page).unwrap();
    let block = page.split("<!-- example: kloc -->\n```sh\n").nth(1).unwrap();
    let block = block.split("```").next().unwrap();
    let begun = "until terrace kloc top --times 1 >/dev/null 2>&1; do sleep 0.2; done\n";
    let mut script = "set -eu\n".to_owned();
    for line in block.lines() {
        script.push_str(&format!("{line}\n"));
        if line.contains("kloc run") {
            script.push_str(begun);
        }
    }
    let script = script.replace("terrace kloc", &format!("{} kloc", binary_text()));
    // The default directory may be a real daemon's: another one is named behind each question.
    let verbs = ["run", "top", "list", "why", "report"];
    let script = verbs.iter().fold(script, |script, verb| {
        let named = format!("kloc {verb} --state {}", state.display());
        script.replace(&format!("kloc {verb}"), &named)
    });
    let output = Command::new("timeout").args(["120", "bash", "-c", &script]).output().unwrap();
    assert!(output.status.success(), "{script}\n{output:?}");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    for expected in ["would have left", "page_cache", "of ", "files"] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
}
