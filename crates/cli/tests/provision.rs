//! `terrace provision` on machines that were written down, and on this one.
//!
//! Each directory of `tests/provision` holds the procfs and sysfs files of a machine, and what the
//! plan says about it. `SNAPSHOTS=overwrite` writes that down anew.

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use common::{await_that, binary, json, page, shell, shown_works, terrace};

fn machine(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/provision").join(name)
}

#[test]
fn a_node_that_is_short_is_given_the_nearest_blocks_and_traps_are_told() {
    let machine = machine("01-slow-node");

    let assert = terrace().args(["provision", "plan", "--root"]).arg(&machine).assert().success();

    assert.stdout_eq(snapbox::Data::read_from(&machine.join("expected.txt"), None));
}

#[test]
fn json_has_the_blocks_and_the_reason() {
    let plan = json(
        terrace().args(["provision", "plan", "--json", "--root"]).arg(machine("01-slow-node")),
        0,
    );

    assert_eq!(plan["kind"], "terrace.provision.plan");
    assert_eq!(plan["steps"][0]["change"]["integrate"], 128 << 20);
    assert_eq!(plan["steps"][0]["blocks"], serde_json::json!([41]));
    assert_eq!(plan["advice"].as_array().unwrap().len(), 5);
}

#[test]
fn a_machine_without_memory_hotplug_is_not_supported() {
    let nothing = tempfile::tempdir().unwrap();

    let assert = terrace().args(["provision", "plan", "--root"]).arg(nothing.path()).assert();

    assert.code(3).stderr_eq("terrace: memory that comes and goes: [..]block_size_bytes: [..]\n");
}

/// Two nodes for 100 s; the demand of the first rises from 1 to 5 GiB and falls again.
fn recorded(path: &Path) {
    let mut text =
        String::from("{\"format\":\"terrace.zoneinfo\",\"version\":1,\"block\":134217728}\n");
    let gib = 1_u64 << 30;
    for second in 1..=100_u64 {
        let used = if (20..60).contains(&second) { 5 * gib } else { gib };
        let node = |node: u64, used: u64| {
            format!(
                "{{\"node\":{node},\"memory\":{{\"managed\":{},\"free\":{},\"watermarks\":\
                 {{\"min\":12582912,\"low\":20971520,\"high\":29360128}}}}}}",
                8 * gib,
                8 * gib - used
            )
        };
        text += &format!(
            "{{\"at\":{}000000000,\"nodes\":[{},{}]}}\n",
            second,
            node(0, used),
            node(1, gib)
        );
    }
    fs::write(path, text).unwrap();
}

#[test]
fn a_recorded_demand_is_met_from_the_near_node_and_given_back() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("day.zones");
    recorded(&file);
    let replay = ["provision", "replay", "--json", "--decisions", "--dram", "4GiB"];

    let document = json(terrace().args(replay).arg(&file), 0);

    let resolved = &document["policies"][0];
    assert_eq!(resolved["policy"], "resolved");
    assert_eq!(resolved["unmet"], 0);
    let decisions = resolved["decisions"].as_array().unwrap();
    assert!(decisions.iter().any(|decision| decision["change"]["integrate"].is_u64()));
    // What the first node asks for all at once falls to the other node, for a second.
    let mut of_first = decisions.iter().filter(|decision| decision["node"] == 0);
    let removed = of_first.find(|decision| decision["change"]["remove"].is_u64()).unwrap();
    assert!(removed["at"].as_u64().unwrap() >= 50_000_000_000, "30 s later: {removed}");

    let check = terrace().arg("check").arg(&file).assert().success();
    check.stdout_eq("[..]day.zones: 100 looks at the nodes' memory in 99.0 s\n");
}

#[test]
fn what_a_policy_costs_and_saves_is_priced_by_a_machine_file() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("day.zones");
    recorded(&file);
    let priced = |more: &[&str]| {
        let replay = ["provision", "replay", "--json", "--decisions", "--dram", "4GiB"];
        json(terrace().args(replay).args(more).arg(&file), 0)
    };
    let of = |document: &serde_json::Value, policy: usize, field: &str| {
        document["policies"][policy]["prices"][field].clone()
    };

    let without = priced(&[]);
    assert_eq!(of(&without, 0, "memory"), serde_json::Value::Null);
    let document = priced(&["--machine", "four-node"]);
    for policy in 0..3 {
        for item in ["memory", "metadata", "work"] {
            assert!(of(&document, policy, item).as_f64().unwrap() > 0.0, "{policy} {item}");
        }
        let verdicts = of(&document, policy, "verdicts");
        let all: u64 = verdicts.as_object().unwrap().values().map(|n| n.as_u64().unwrap()).sum();
        let decisions = document["policies"][policy]["decisions"].as_array().unwrap();
        let came = decisions.iter().filter(|step| step["price"].is_object()).count() as u64;
        assert!(all > 0 && all == came, "{verdicts}");
        // Each with a price of its own, and only those that bring memory in.
        assert!(
            decisions
                .iter()
                .all(|step| { step["price"].is_object() == step["change"]["integrate"].is_u64() })
        );
    }
    // Who knows that memory is hardly accessed is told that it does not pay.
    let idle = priced(&["--machine", "four-node", "--accesses", "0,1"]);
    let verdicts = of(&idle, 0, "verdicts");
    assert_eq!((&verdicts["pays"], &verdicts["may_pay"]), (&0.into(), &0.into()), "{verdicts}");
    let shown = ["--machine", "four-node", "--policy", "resolved", "--decisions"];
    let text = terrace().args(["provision", "replay"]).args(shown).arg(&file).output().unwrap();
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(text.contains("joules an hour") && text.contains("J of waiting"), "{text}");

    for (more, message) in [
        (&["--machine", "cxl"][..], "--machine: `cxl` has no `[numa]`"),
        (&["--machine", "nowhere"], "--machine: "),
        (&["--machine", "four-node", "--accesses", "2,1"], "--accesses: must be two numbers"),
        (&["--machine", "four-node", "--accesses", "2"], "--accesses: must be two numbers"),
        (&["--accesses", "1,2"], "--machine"),
    ] {
        let output = terrace().args(["provision", "replay"]).args(more).arg(&file).output();
        let output = output.unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{more:?}: {stderr}");
        assert!(stderr.contains(message), "{more:?}: {stderr}");
    }
}

#[test]
fn a_recording_that_is_wrong_is_named_with_line_and_field() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("day.zones");
    recorded(&file);
    let text = fs::read_to_string(&file).unwrap();
    for (from, to, message) in [
        ("\"version\":1", "\"version\":7", "line 1: field `version`: 7 is not 1"),
        (
            "\"at\":5000000000",
            "\"at\":4000000000",
            "line 6: field `at`: 4.00 s is not after 4.00 s",
        ),
    ] {
        fs::write(&file, text.replacen(from, to, 1)).unwrap();
        for verb in [&["provision", "replay"][..], &["check"]] {
            let output = terrace().args(verb).arg(&file).output().unwrap();
            let stderr = String::from_utf8(output.stderr).unwrap();
            assert_eq!(output.status.code(), Some(2), "{stderr}");
            assert!(stderr.contains(message), "{stderr}");
        }
    }
    fs::write(&file, &text[..text.len() - 9]).unwrap();
    let replay = |partial: &[&str]| {
        let command = terrace().args(["provision", "replay"]).args(partial).arg(&file);
        command.output().unwrap().status.code()
    };
    assert_eq!((replay(&[]), replay(&["--partial"])), (Some(2), Some(0)));
}

#[test]
fn values_that_cannot_work_are_refused_by_name() {
    for (line, message) in [
        (&["record", "-o", "x", "--every", "0"][..], "--every: the least is 1 ms"),
        (&["record", "-o", "x", "--for", "1s", "--every", "2s"], "--for: is shorter than --every"),
        (&["hide", "--node", "77"], "--node: node 77 is not there"),
        (&["why", "nowhere"], "nowhere: no daemon has run there"),
        (&["why", "--state", "nowhere"], "nowhere/journal: no daemon has run there"),
        (&["run", "--config", "nowhere"], "nowhere: No such file"),
        (&["replay", "--slow", "0", "x"], "--slow: a node has more than none"),
        (&["replay", "nowhere"], "nowhere: No such file"),
        (&["plan", "--policy", "best"], "invalid value 'best' for '--policy <POLICY>'"),
    ] {
        let output = terrace().arg("provision").args(line).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{line:?}: {stderr}");
        assert!(stderr.contains(message), "{line:?}: {stderr}");
        assert!(!Path::new("x").exists(), "{line:?}");
    }
}

#[test]
fn this_machine_is_recorded() {
    if !Path::new("/sys/devices/system/memory/block_size_bytes").exists() {
        terrace_shown::is_missing("memory blocks in sysfs");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("now.zones");
    let record = ["provision", "record", "--json", "--every", "20ms", "--for", "1s", "-o"];

    let document = json(terrace().args(record).arg(&file), 0);

    assert!(document["samples"].as_u64().unwrap() >= 2, "{document}");
    terrace().arg("check").arg(&file).assert().success();
}

/// A dry run of the daemon on a machine that was written down, for a moment.
fn dry(state: &Path, more: &[&str]) -> snapbox::cmd::OutputAssert {
    dry_on(&machine("01-slow-node"), state, more)
}

fn dry_on(root: &Path, state: &Path, more: &[&str]) -> snapbox::cmd::OutputAssert {
    let command = terrace().args(["provision", "run", "--dry-run", "--for", "100ms", "--root"]);
    command.arg(root).arg("--state").arg(state).args(more).assert()
}

#[test]
fn a_dry_run_says_what_it_would_do_and_its_journal_why() {
    let directory = tempfile::tempdir().unwrap();
    let state = directory.path().join("state");

    let ran = dry(&state, &[]).success();

    let said = String::from_utf8(ran.get_output().stderr.clone()).unwrap();
    assert!(said.contains("would write 500 to /proc/sys/vm/watermark_scale_factor (it is 10)"));
    assert!(said.contains("node 0: bring 128 MiB online"), "{said}");
    let why = |more: &[&str]| {
        let command = terrace().args(["provision", "why", "--state"]).arg(&state).args(more);
        String::from_utf8(command.assert().success().get_output().stdout.clone()).unwrap()
    };
    assert!(why(&[]).lines().next().unwrap().contains("started as process"));
    let about = why(&["--node", "0"]);
    assert!(about.lines().count() == 1 && about.contains("are wanted online; 1 step"), "{about}");
    assert!(why(&["--last", "1"]).ends_with("stopped: its time is over\n"));
    assert_eq!(why(&["--failed"]), "");
    let entries =
        json(terrace().args(["provision", "why", "--json"]).arg(state.join("journal")), 0);
    assert_eq!(entries["entries"][0]["event"], "started");
    let check = terrace().arg("check").arg(state.join("journal")).assert().success();
    check.stdout_eq("[..]journal: [..] entries of a journal of `terrace provision run`\n");

    // The daemon has ended; what it saw is there.
    let status = terrace().args(["provision", "status", "--state"]).arg(&state).assert().code(1);
    let status = String::from_utf8(status.get_output().stdout.clone()).unwrap();
    assert!(status.contains("this is its last look") && status.contains("1.88 GiB"), "{status}");
    let status = terrace().args(["provision", "status", "--json", "--state"]).arg(&state);
    assert_eq!(json(status, 1)["runs"], false);
}

#[test]
fn a_configuration_is_followed_and_one_that_is_wrong_is_named_with_line_and_field() {
    let directory = tempfile::tempdir().unwrap();
    let (file, state) = (directory.path().join("p.toml"), directory.path().join("state"));
    let config = file.to_str().unwrap();
    fs::write(&file, "provision = 1\npolicy = \"paper-literal-installed\"\n").unwrap();

    let ran = dry(&state, &["--json", "--config", config]).success();

    let said = String::from_utf8(ran.get_output().stdout.clone()).unwrap();
    assert!(said.contains("\"policy\":\"paper-literal-installed\""), "{said}");
    let check = terrace().arg("check").arg(&file).assert().success();
    check.stdout_eq(
        "[..]p.toml: configuration of `terrace provision run`, policy paper-literal-installed\n",
    );
    for (text, message) in [
        (
            "provision = 1\n[offline]\ndeadline = \"1s\"\nspeed = 3\n",
            "p.toml:4: field `offline.speed`",
        ),
        ("provision = 1\n[pools]\nnodes = [7]\n", "field `pools.nodes`: node 7 has no memory"),
    ] {
        fs::write(&file, text).unwrap();
        let failed = dry(&state, &["--config", config]).code(2);
        let said = String::from_utf8(failed.get_output().stderr.clone()).unwrap();
        assert!(said.contains(message), "{said}");
    }
    let nothing = tempfile::tempdir().unwrap();
    let run = terrace().args(["provision", "run", "--root"]).arg(nothing.path());
    run.assert().code(3);
}

/// A copy of the machine that was written down, without its memory blocks that could come or go.
fn without_blocks(directory: &Path) -> PathBuf {
    let root = directory.join("machine");
    let copied =
        std::process::Command::new("cp").arg("-r").arg(machine("01-slow-node")).arg(&root).status();
    assert!(copied.unwrap().success());
    for block in 40..=47 {
        fs::remove_dir_all(root.join(format!("sys/devices/system/memory/memory{block}"))).unwrap();
    }
    root
}

/// Its namespace is a block device until `reload` makes a DAX device of it.
#[test]
fn a_machine_whose_only_slow_memory_is_a_namespace_is_told_what_makes_it_memory() {
    let directory = tempfile::tempdir().unwrap();
    let root = without_blocks(directory.path());
    let devices = root.join("sys/bus/dax/devices");
    fs::remove_dir_all(&devices).unwrap();
    let namespace = root.join("sys/bus/nd/devices/namespace0.0");
    fs::create_dir_all(&namespace).unwrap();
    fs::write(namespace.join("size"), "536870912\n").unwrap();
    fs::write(namespace.join("target_node"), "2\n").unwrap();
    let remedy = "of namespace0.0, `terrace provision reload` makes a DAX device";

    let plan = terrace().args(["provision", "plan", "--root"]).arg(&root).assert().code(3);
    let output = plan.get_output();
    let shown = String::from_utf8(output.stdout.clone()).unwrap();
    assert!(shown.contains("namespace0.0 (node 2), a block device"), "{shown}");
    assert!(shown.contains("namespace0.0 (512 MiB) is a block device, not memory"), "{shown}");
    assert!(!shown.contains("would decide"), "{shown}");
    let said = String::from_utf8(output.stderr.clone()).unwrap();
    assert!(said.contains(remedy), "{said}");

    let (file, state) = (directory.path().join("p.toml"), directory.path().join("state"));
    let run = |config: &str, code: i32| {
        fs::write(&file, format!("provision = 1\n{config}")).unwrap();
        let ran = dry_on(&root, &state, &["--config", file.to_str().unwrap()]).code(code);
        String::from_utf8(ran.get_output().stderr.clone()).unwrap()
    };
    let said = run("", 3);
    assert!(said.contains(remedy), "{said}");
    let said = run("[pools]\nnodes = [2]\n", 2);
    assert!(
        said.contains("`pools.nodes`: node 2 has no memory that could come or go: of"),
        "{said}"
    );

    // With a DAX device beside it there is something to do, unless that is left alone.
    let dax = machine("01-slow-node").join("sys/bus/dax/devices");
    let copied = std::process::Command::new("cp").arg("-r").arg(dax).arg(&devices).status();
    assert!(copied.unwrap().success());
    run("[pools]\nnodes = [2]\n", 0);
    let said = run("[pools]\ndevices = false\n", 2);
    assert!(said.contains("p.toml: field `pools.devices`: the only slow memory"), "{said}");
    let said = run("[pools]\nnodes = [2]\ndevices = false\n", 2);
    assert!(said.contains("could come or go: `pools.devices` is false"), "{said}");
}

/// `[offline]` has hardly an effect then.
#[test]
fn what_is_brought_in_for_the_kernel_never_leaves_and_that_is_told() {
    let directory = tempfile::tempdir().unwrap();
    let (file, state) = (directory.path().join("p.toml"), directory.path().join("state"));
    let said = |config: &str| {
        fs::write(&file, format!("provision = 1\n{config}")).unwrap();
        let ran = dry(&state, &["--config", file.to_str().unwrap()]).success();
        String::from_utf8(ran.get_output().stderr.clone()).unwrap()
    };
    let told = "table `offline`: memory that comes in for the kernel (`online.use`) never leaves; it \
                concerns only the 128 MiB that are online as movable now";
    let both = said("[online]\nuse = \"kernel\"\n[offline]\ndeadline = \"9s\"\n");
    assert!(both.contains(told), "{both}");
    for config in ["[online]\nuse = \"kernel\"\n", "[offline]\ndeadline = \"9s\"\n"] {
        let one = said(config);
        assert!(!one.contains("never leaves"), "{one}");
    }
}

/// The machine that was written down, and another node of it with processors and room.
fn with_room_elsewhere(directory: &Path) -> PathBuf {
    let root = directory.join("machine");
    let copied =
        std::process::Command::new("cp").arg("-r").arg(machine("01-slow-node")).arg(&root).status();
    assert!(copied.unwrap().success());
    let zone = "Node 1, zone   Normal\n  pages free     90000\n        min      1000\n        low      \
                1250\n        high     1500\n        managed  98304\n";
    let zones = fs::read_to_string(root.join("proc/zoneinfo")).unwrap();
    fs::write(root.join("proc/zoneinfo"), zones.replace("Node 2,", &format!("{zone}Node 2,")))
        .unwrap();
    for (node, distance) in [(0, "10 21 17"), (1, "21 10 28"), (2, "17 28 10")] {
        let node = root.join(format!("sys/devices/system/node/node{node}"));
        fs::create_dir_all(&node).unwrap();
        fs::write(node.join("distance"), distance).unwrap();
    }
    fs::write(root.join("sys/devices/system/node/node1/cpulist"), "2-3\n").unwrap();
    root
}

/// The same, for daemons that act. Neither too little nor too much is free there: what they would
/// write to files that only look like the kernel's would not be what the kernel shows then.
fn with_nothing_to_do(directory: &Path) -> PathBuf {
    let root = with_room_elsewhere(directory);
    let zones = fs::read_to_string(root.join("proc/zoneinfo")).unwrap();
    let enough = zones.replacen("pages free     24576", "pages free     61440", 1);
    assert_ne!(enough, zones);
    fs::write(root.join("proc/zoneinfo"), enough).unwrap();
    root
}

/// What nobody accesses is not worth its power while another node has room.
#[test]
fn memory_that_does_not_pay_is_not_brought_in_where_prices_are_enforced() {
    let directory = tempfile::tempdir().unwrap();
    let (file, state) = (directory.path().join("p.toml"), directory.path().join("state"));
    let root = with_room_elsewhere(directory.path());
    let config = file.to_str().unwrap();
    let priced = |rest: &str| {
        let text = format!("provision = 1\n[economist]\n{rest}\naccesses = [1.0, 2.0]\n");
        fs::write(&file, text).unwrap();
        let _ = fs::remove_dir_all(&state);
        let ran = dry_on(&root, &state, &["--config", config]);
        let code = ran.get_output().status.code().unwrap();
        (code, String::from_utf8(ran.get_output().stderr.clone()).unwrap())
    };

    let (code, enforced) = priced("mode = \"enforce\"\nmachine = \"four-node\"");
    assert_eq!(code, 0, "{enforced}");
    assert!(enforced.contains(": does not pay; given up"), "{enforced}");
    assert!(!enforced.contains("node 0: bring"), "{enforced}");
    let why = terrace().args(["provision", "why", "--failed", "--state"]).arg(&state).assert();
    let why = String::from_utf8(why.get_output().stdout.clone()).unwrap();
    assert!(why.contains("pays above") && why.contains("accesses a second"), "{why}");

    let (_, shadow) = priced("machine = \"four-node\"");
    assert!(shadow.contains(": does not pay\n"), "{shadow}");
    assert!(shadow.contains("node 0: bring 128 MiB online"), "{shadow}");

    for (machine, lacks) in [("cxl", "`cxl` has no `[numa]`"), ("nowhere", "nowhere")] {
        let (code, said) = priced(&format!("machine = \"{machine}\""));
        assert_eq!(code, 2, "{said}");
        assert!(said.contains("p.toml: field `economist.machine`: "), "{said}");
        assert!(said.contains(lacks), "{said}");
    }
}

#[test]
fn what_is_installed_for_systemd_works() {
    let packaging = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging");
    let directory = tempfile::tempdir().unwrap();
    let config = packaging.join("provision.toml");
    let by_default = json(terrace().arg("check").arg("--json").arg(&config), 0);
    assert_eq!(by_default["content"], "provision");

    let unit = fs::read_to_string(packaging.join("terrace-provision.service")).unwrap();
    let line = unit.lines().find_map(|line| line.strip_prefix("ExecStart=/usr/local/bin/terrace "));
    let words = line.unwrap().split(' ').map(|word| match word {
        "/etc/terrace/provision.toml" => config.to_str().unwrap().to_owned(),
        other => other.replace("/run/terrace-provision", directory.path().to_str().unwrap()),
    });
    let state = directory.path().join("state");
    let run = terrace().args(words).args(["--dry-run", "--for", "50ms", "--state"]).arg(state);
    run.arg("--root").arg(machine("01-slow-node")).assert().success();
}

#[test]
fn one_daemon_runs_at_a_time_and_its_figures_are_its_owner_s() {
    use std::io::{Read, Write};
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixStream;

    let directory = tempfile::tempdir().unwrap();
    let (state, socket) = (directory.path().join("state"), directory.path().join("metrics"));
    let mut first = std::process::Command::new(binary())
        .args(["provision", "run", "--dry-run", "--for", "60s", "--root"])
        .arg(machine("01-slow-node"))
        .arg("--state")
        .arg(&state)
        .arg(format!("--metrics=unix:{}", socket.display()))
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let runs = || terrace().args(["provision", "status", "--state"]).arg(&state).output().unwrap();
    let begun = std::time::Instant::now();
    while !(runs().status.success() && state.join("status.json").exists()) {
        assert!(begun.elapsed().as_secs() < 20);
        std::thread::sleep(std::time::Duration::from_millis(20));
    }

    let second = dry(&state, &[]).code(1);
    let said = String::from_utf8(second.get_output().stderr.clone()).unwrap();
    assert!(said.contains(&format!("process {} runs already", first.id())), "{said}");

    for (path, wanted) in [(&state, 0o700), (&state.join("journal"), 0o600), (&socket, 0o700)] {
        let mode = fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode & !wanted, 0, "{}: {mode:o}", path.display());
    }
    let mut ask = UnixStream::connect(&socket).unwrap();
    ask.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
    let mut figures = String::new();
    ask.read_to_string(&mut figures).unwrap();
    for line in
        ["terrace_provision_hidden_bytes{node=\"0\"} ", "terrace_provision_decisions_total 1"]
    {
        assert!(figures.contains(line), "{line}: {figures}");
    }

    rustix::process::kill_process(
        rustix::process::Pid::from_child(&first),
        rustix::process::Signal::TERM,
    )
    .unwrap();
    assert!(first.wait().unwrap().success());
    assert!(!socket.exists());
}

#[test]
fn boot_arguments_are_said_and_written_and_no_other_file_is_overwritten() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("terrace.cfg");
    let hide = |more: &[&str]| {
        let hide = terrace().args(["provision", "hide", "--root"]).arg(machine("01-slow-node"));
        hide.args(more).assert()
    };
    let arguments = "memmap=1G!5G memhp_default_state=offline";

    hide(&["--node", "2"]).success().stdout_eq(format!(
        "{arguments}\nthe kernel was not booted with all of them; --write writes them for GRUB\n"
    ));
    // Once more is no harm: the file is ours.
    for _ in 0..2 {
        hide(&["--node", "2", "--write", file.to_str().unwrap()]).success();
        assert!(fs::read_to_string(&file).unwrap().contains(arguments));
    }
    fs::write(&file, "GRUB_CMDLINE_LINUX=mine\n").unwrap();
    hide(&["--write", file.to_str().unwrap()]).code(2);
    assert_eq!(fs::read_to_string(&file).unwrap(), "GRUB_CMDLINE_LINUX=mine\n");
    let refused = hide(&["--node", "0"]).code(2);
    refused.stderr_eq("terrace: --node: node 0 has processors: its memory is no slow memory\n");
}

#[test]
fn what_is_no_file_is_not_written_and_a_dash_is_standard_output() {
    let directory = tempfile::tempdir().unwrap();
    let fifo = directory.path().join("fifo");
    let made = std::process::Command::new("mkfifo").arg(&fifo).status().unwrap();
    assert!(made.success());
    let hide = |more: &[&str]| {
        let hide = terrace().args(["provision", "hide", "--root"]).arg(machine("01-slow-node"));
        hide.current_dir(directory.path()).args(more).assert()
    };
    // None of them ends: each is refused before it is read.
    for path in ["/dev/full", "/dev/zero", "fifo", "."] {
        let refused = hide(&["--node=2", "--write", path]).code(2);
        refused.stderr_eq(format!("terrace: --write: {path} is there, and is no file\n"));
    }
    let nowhere = hide(&["--node=2", "--write=no/such/file"]).code(2);
    nowhere.stderr_eq("terrace: --write: no/such/file: No such file or directory (os error 2)\n");
    let printed = hide(&["--node=2", "--write=-"]).success();
    let printed = String::from_utf8(printed.get_output().stdout.clone()).unwrap();
    assert!(printed.starts_with("# Written by `terrace provision hide`."), "{printed}");
    assert!(printed.ends_with("memhp_default_state=offline'\n"), "{printed}");
    assert!(!directory.path().join("-").exists());
    hide(&["--json", "--write=-"]).code(2);

    let why = terrace().args(["provision", "why", "/dev/zero"]).assert().code(2);
    why.stderr_eq("terrace: /dev/zero: is a device, not a file\n");
    let record = ["provision", "record", "--json", "-o", "-"];
    let message = "terrace: --output: `-` is standard output, where the document of --json goes\n";
    terrace().args(record).assert().code(2).stderr_eq(message);
}

/// One machine has one daemon, whatever directories they are given; dry runs do not act.
#[test]
fn a_second_daemon_with_a_directory_of_its_own_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let root = with_nothing_to_do(directory.path());
    let state = |name: &str| directory.path().join(name);
    let run = |name: &str| {
        let mut run = std::process::Command::new(binary());
        run.args(["provision", "run", "--root"]).arg(&root).arg("--state").arg(state(name));
        run
    };
    let quiet = std::process::Stdio::null();
    let mut first = run("one").args(["--for", "60s"]).stderr(quiet).spawn().unwrap();
    let begun = std::time::Instant::now();
    while !state("one").join("status.json").exists() {
        assert!(begun.elapsed().as_secs() < 20);
        std::thread::sleep(std::time::Duration::from_millis(20));
    }

    let second = run("two").args(["--for", "100ms"]).output().unwrap();
    let said = String::from_utf8(second.stderr).unwrap();
    assert_eq!(second.status.code(), Some(1), "{said}");
    let message = format!("process {} acts on this machine already, with another", first.id());
    assert!(said.contains(&message), "{said}");
    let dry = run("three").args(["--for", "100ms", "--dry-run"]).output().unwrap();
    assert!(dry.status.success(), "{}", String::from_utf8_lossy(&dry.stderr));

    rustix::process::kill_process(
        rustix::process::Pid::from_child(&first),
        rustix::process::Signal::TERM,
    )
    .unwrap();
    assert!(first.wait().unwrap().success());
    let third = run("two").args(["--for", "100ms"]).output().unwrap();
    assert!(third.status.success(), "{}", String::from_utf8_lossy(&third.stderr));
}

#[test]
fn events_that_cannot_be_printed_are_a_failure_and_the_journal_has_them() {
    let directory = tempfile::tempdir().unwrap();
    let state = directory.path().join("state");
    let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let ran = std::process::Command::new(binary())
        .args(["provision", "run", "--json", "--dry-run", "--for", "100ms", "--root"])
        .arg(machine("01-slow-node"))
        .arg("--state")
        .arg(&state)
        .stdout(full)
        .output()
        .unwrap();
    let said = String::from_utf8(ran.stderr).unwrap();
    assert_eq!((ran.status.code(), &*said), (Some(1), FULL));
    let why = terrace().args(["provision", "why", "--last=1", "--state"]).arg(&state).assert();
    assert!(String::from_utf8_lossy(&why.get_output().stdout).contains("its time is over"));
}

const FULL: &str = "terrace: stdout: No space left on device (os error 28)\n";

#[test]
fn a_virtual_machine_that_does_not_answer_is_named_with_its_field() {
    let directory = tempfile::tempdir().unwrap();
    let (file, state) = (directory.path().join("p.toml"), directory.path().join("state"));
    let text = "provision = 1\n[vm]\nqmp = \"nowhere\"\ndevice = \"d\"\nballoon = \"b\"\n";
    fs::write(&file, text).unwrap();
    let refused = dry(&state, &["--config", file.to_str().unwrap()]).code(2);
    refused.stderr_eq(
        "terrace: [..]p.toml: field `vm.qmp`: nowhere: No such file or directory (os error 2)\n",
    );
}

/// A namespace of persistent memory as the kernel shows it.
fn namespace(root: &Path) {
    for (path, text) in [
        ("sys/bus/nd/devices/namespace0.0/size", "536870912\n"),
        ("sys/bus/nd/devices/namespace0.0/block/pmem0/size", "1048576\n"),
        ("sys/bus/nd/devices/region0/dax_seed", "dax0.0\n"),
        ("sys/bus/nd/devices/region0/dax0.0/uuid", ""),
        ("sys/bus/nd/devices/region0/dax0.0/mode", ""),
        ("sys/bus/nd/devices/region0/dax0.0/align", ""),
        ("sys/bus/nd/devices/region0/dax0.0/namespace", ""),
        ("sys/bus/nd/drivers/nd_pmem/unbind", ""),
        ("sys/bus/nd/drivers/dax_pmem/bind", ""),
        ("proc/sys/kernel/random/uuid", "c9e8a1b0-1111-4222-8333-444455556666\n"),
        ("proc/mounts", "tmpfs /tmp tmpfs rw 0 0\n"),
    ] {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    let driver = root.join("sys/bus/nd/devices/namespace0.0/driver");
    std::os::unix::fs::symlink("../../drivers/nd_pmem", driver).unwrap();
}

#[test]
fn a_namespace_becomes_a_device_only_where_that_is_asked_for_and_nobody_uses_it() {
    let root = tempfile::tempdir().unwrap();
    namespace(root.path());
    let reload = |more: &[&str]| {
        let reload = terrace().args(["provision", "reload", "--root"]).arg(root.path());
        reload.args(more).assert()
    };
    let read = |path: &str| fs::read_to_string(root.path().join(path)).unwrap();

    let said = reload(&["namespace0.0"]).success();
    let said = String::from_utf8(said.get_output().stdout.clone()).unwrap();
    assert!(said.starts_with("echo namespace0.0 >/sys/bus/nd/drivers/nd_pmem/unbind\n"), "{said}");
    assert!(said.ends_with("nothing was done: --destroy does it, and what is on it is lost\n"));
    assert_eq!(read("sys/bus/nd/drivers/dax_pmem/bind"), "");

    let root_mounts = root.path().join("proc/mounts");
    fs::write(&root_mounts, "/dev/pmem0p1 /data ext4 rw 0 0\n").unwrap();
    let refused = reload(&["namespace0.0", "--destroy"]).code(2);
    refused.stderr_eq("terrace: namespace0.0 (/dev/pmem0) is mounted: it is in use\n");
    fs::write(&root_mounts, "").unwrap();

    let reload_json =
        terrace().args(["provision", "reload", "namespace0.0", "--destroy", "--json", "--root"]);
    assert_eq!(json(reload_json.arg(root.path()), 0)["done"], true);
    assert_eq!(read("sys/bus/nd/drivers/dax_pmem/bind"), "dax0.0");
    assert_eq!(read("sys/bus/nd/devices/region0/dax0.0/mode"), "ram");
    reload(&["namespace7.0"]).code(2).stderr_eq("terrace: there is no namespace7.0\n");
    reload(&["pmem0"]).code(2);
}

/// Commands of a document, in its order: those that have a line, and those that a sentence gives
/// with their arguments.
fn commands(page: &str) -> Vec<&str> {
    let is_command = |own: &&str| own.starts_with("terrace ") || own.starts_with("awk ");
    let has_arguments = |text: &&str| {
        text.starts_with("terrace check ")
            || text.starts_with("terrace provision ") && text.split(' ').count() > 3
    };
    let mut found = Vec::new();
    for line in page.lines() {
        if let Some(own) = line.strip_prefix("    ").filter(is_command) {
            found.push(own);
        } else {
            found.extend(line.split('`').skip(1).step_by(2).filter(has_arguments));
        }
    }
    found
}

#[test]
fn commands_are_found_in_lines_and_in_sentences() {
    let page = "`terrace provision plan` is a name, `terrace check FILE` is not.\n\n    terrace provision \
                plan\n    node 0: x\n`terrace provision hide --node 2` hides.\n";
    let wanted =
        ["terrace check FILE", "terrace provision plan", "terrace provision hide --node 2"];
    assert_eq!(commands(page), wanted);
}

/// As a reader would, from top to bottom: on files that look like a machine's, with what takes a day
/// taking a second. The daemon runs from its command to the end of the page.
#[test]
fn every_command_of_the_page_works() {
    let (directory, page) = (tempfile::tempdir().unwrap(), page("provision.md"));
    let here = directory.path();
    let (root, namespaces) = (with_nothing_to_do(here), here.join("namespaces"));
    namespace(&namespaces);
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let config = repository.join("packaging/provision.toml");
    let state = here.join("state");
    let places = [
        ("/etc/default/grub.d/", format!("{}/", here.display())),
        ("/etc/terrace/provision.toml", config.display().to_string()),
        ("FILE", config.display().to_string()),
        ("--for 24h", "--every 20ms --for 1s".to_owned()),
        ("bench/", format!("{}/bench/", repository.display())),
    ];
    let mut daemon = None;
    let (mut verbs, mut said) = (BTreeSet::new(), String::new());
    for shown in commands(&page) {
        let mut command = shown.to_owned();
        for (there, instead) in &places {
            command = command.replace(there, instead);
        }
        let verb = shown.strip_prefix("terrace provision ").and_then(|rest| rest.split(' ').next());
        match verb {
            Some("run") if !shown.contains("--dry-run") => {
                let words = command.split(' ').skip(1);
                let mut run = std::process::Command::new(binary());
                run.args(words).args(["--for", "120s", "--state"]).arg(&state);
                run.env("TERRACE_ROOT", &root).stderr(std::process::Stdio::null());
                daemon = Some(run.spawn().unwrap());
                await_that(Duration::from_mins(1), "the daemon runs", || {
                    let status = terrace().args(["provision", "status", "--state"]).arg(&state);
                    status.output().unwrap().status.success()
                });
                verbs.insert("run");
                continue;
            }
            Some("run") => command.push_str(&format!(" --for 100ms --state {}", state.display())),
            Some("status" | "why") => command.push_str(&format!(" --state {}", state.display())),
            Some("record")
                if !Path::new("/sys/devices/system/memory/block_size_bytes").exists() =>
            {
                terrace_shown::is_missing("memory blocks in sysfs");
                recorded(&here.join("day.zones"));
                verbs.insert("record");
                continue;
            }
            _ => {}
        }
        let below = if verb == Some("reload") { &namespaces } else { &root };
        said = shown_works(shell(&command, here).env("TERRACE_ROOT", below));
        verbs.extend(verb);
    }
    let daemon = daemon.as_mut().expect("the page has a command that runs the daemon");
    let pid = rustix::process::Pid::from_child(daemon);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert!(daemon.wait().unwrap().success());

    let all = ["hide", "plan", "record", "reload", "replay", "run", "status", "why"];
    assert_eq!(verbs, all.into());
    // The last is the replay whose figures the page has.
    let row = page.lines().find_map(|line| line.strip_prefix("| `resolved` | ")).unwrap();
    let mut cells = row.split(" | ");
    let (changes, moved) = (cells.next().unwrap(), cells.next().unwrap());
    let line = said.lines().find(|line| line.starts_with("resolved")).unwrap();
    assert!(line.contains(&format!(" {changes}.0 ")) && line.contains(moved), "{row}\n{said}");
}
