//! `terrace govern`: what it says, refuses and leaves behind.

mod common;

use std::fs;
use std::io::{Read as _, Write as _};
use std::process::{Command, Output};

use common::binary;

fn govern(arguments: &[&str]) -> Output {
    Command::new(binary()).arg("govern").args(arguments).output().unwrap()
}

/// The answer, unless this machine or user lacks something, which is named.
fn governed(arguments: &[&str]) -> Option<Output> {
    let output = govern(arguments);
    if output.status.code() == Some(3) {
        terrace_shown::is_missing(String::from_utf8_lossy(&output.stderr).trim());
        return None;
    }
    Some(output)
}

/// 48 MiB, of which a twelfth is touched over and over for some seconds.
const PROGRAM: &str = "\
import time
memory = bytearray(48 << 20)
for page in range(0, len(memory), 4096):
    memory[page] = 1
end = time.time() + 6.5
while time.time() < end:
    for page in range(0, 4 << 20, 4096):
        memory[page] += 1 if memory[page] < 200 else -199
    time.sleep(0.01)
raise SystemExit(7)
";

#[test]
fn a_program_is_looked_at_and_its_status_passes_through() {
    let directory = tempfile::tempdir().unwrap();
    let report = directory.path().join("report");
    let to = format!("--report={}", report.display());
    let arguments = ["--json", "--target", "3%", &to, "--quiet", "--", "python3", "-c", PROGRAM];
    let Some(output) = governed(&arguments) else { return };
    assert_eq!(output.status.code(), Some(7), "{output:?}");
    assert!(output.stderr.is_empty(), "{output:?}");
    let text = fs::read_to_string(&report).unwrap();
    let report: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(report["kind"], "terrace.govern");
    assert_eq!(report["enforced"], false);
    assert_eq!(report["asked"], 0, "{text}");
    let shares: Vec<f64> = report["forecasts"]
        .as_array()
        .unwrap()
        .iter()
        .map(|forecast| forecast["slowdown"].as_f64().unwrap())
        .collect();
    assert_eq!(shares, [0.01, 0.02, 0.03, 0.05], "{text}");
    let target = report["target"].as_f64().unwrap();
    let at_target = shares.iter().position(|share| (share - target).abs() < 1e-9).unwrap();
    assert_eq!(report["recommended"], report["forecasts"][at_target]["left"], "{text}");
    // What is walked through all the time is found to be, and what is not is not.
    let idle = report["idle"][0]["memory"].as_u64().unwrap();
    assert!(idle > 24 << 20, "{text}");
    let out = report["forecasts"][3]["middle"].as_u64().unwrap();
    assert!(out > 24 << 20 && out < 50 << 20, "{text}");
}

#[test]
fn the_report_is_one_for_people_too_and_figures_are_served() {
    let program = "import time; memory = b'x' * (16 << 20); time.sleep(2.5)";
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("socket");
    let metrics = format!("--metrics=unix:{}", socket.display());
    let asks = socket.clone();
    let asked = std::thread::spawn(move || {
        let question = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n";
        // It begins with the program, and has something to say a moment later.
        (0..1200).find_map(|_| {
            std::thread::sleep(std::time::Duration::from_millis(50));
            let mut stream = std::os::unix::net::UnixStream::connect(&asks).ok()?;
            stream.write_all(question).ok()?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer).ok()?;
            answer.contains("terrace_govern_resident_bytes").then_some(answer)
        })
    });
    let arguments = ["--mode", "observe", &metrics, "--", "python3", "-c", program];
    let Some(output) = governed(&arguments) else { return };
    let answer = asked.join().unwrap().expect("figures");
    assert!(answer.contains("terrace_govern_target_ratios{group="), "{answer}");
    assert!(!socket.exists());
    assert!(output.status.success(), "{output:?}");
    let text =
        String::from_utf8(output.stderr).unwrap() + &String::from_utf8(output.stdout).unwrap();
    // It ended before there was a curve, which is said.
    for word in ["ended well after", "resident", "slowdown", "terrace", "nothing is forecast: it"] {
        assert!(text.contains(word), "{word}: {text}");
    }
}

#[test]
fn what_cannot_be_governed_is_refused_by_name() {
    let refused = |arguments: &[&str], words: &[&str]| {
        let output = govern(arguments);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {text}");
        assert!(words.iter().all(|word| text.contains(word)), "{arguments:?}: {text}");
    };
    refused(&["--cgroup", "no/such/group"], &["--cgroup", "no/such/group"]);
    refused(&["--cgroup", "/etc"], &["--cgroup", "/etc"]);
    refused(&["--target", "0%", "--", "true"], &["--target"]);
    refused(&["--target", "2", "--", "true"], &["--target", "3%"]);
    refused(&["--for", "10ms", "--cgroup", "/"], &["--for"]);
    refused(&["--for", "1s", "--", "true"], &["--for"]);
    refused(&["--cgroup", "/", "--", "true"], &["--cgroup"]);
    refused(&["--each", "x", "--", "true"], &["--each", "no effect"]);
    refused(&[], &["--cgroup"]);
}

#[test]
fn a_program_that_is_not_there_leaves_nothing_behind() {
    let Some(output) = governed(&["--", "/no/such/program"]) else { return };
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.contains("/no/such/program"), "{text}");
}

/// Groups below one, by their names: as on the node of a container runtime.
#[test]
fn each_group_of_a_name_is_governed_by_itself() {
    let id = std::process::id();
    let roots = ["/sys/fs/cgroup/memory", "/sys/fs/cgroup"];
    let made = roots.into_iter().map(std::path::Path::new).find_map(|root| {
        let counts = ["memory.usage_in_bytes", "cgroup.controllers"];
        counts.iter().any(|file| root.join(file).exists()).then(|| root.join(format!("bench-{id}")))
    });
    let Some(node) = made.filter(|node| fs::create_dir(node).is_ok()) else {
        return terrace_shown::is_missing("the right to make control groups");
    };
    let _ = fs::write(node.join("cgroup.subtree_control"), "+memory");
    let mut programs = Vec::new();
    for name in ["a-pod1.slice", "b-pod2.slice", "other.slice"] {
        let group = node.join(name);
        fs::create_dir(&group).unwrap();
        let idle = "import time; memory = b'x' * (24 << 20); time.sleep(60)";
        let program = Command::new("python3").args(["-c", idle]).spawn().unwrap();
        fs::write(group.join("cgroup.procs"), program.id().to_string()).unwrap();
        programs.push((group, program));
    }
    let path = node.display().to_string();
    let ask = |name: &str| {
        let each = format!("--each={name}");
        govern(&["--json", "--quiet", "--for=2s", "--cgroup", &path, &each])
    };
    let output = ask("*pod*.slice");
    let none = ask("nobody*");
    for (group, mut program) in programs {
        program.kill().unwrap();
        program.wait().unwrap();
        while fs::remove_dir(&group).is_err() {
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }
    fs::remove_dir(&node).unwrap();

    if !node.starts_with("/sys/fs/cgroup/memory") && !output.status.success() {
        return terrace_shown::is_missing("a memory controller that is handed down");
    }
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(document["kind"], "terrace.govern-each", "{document}");
    let groups = document["groups"].as_array().unwrap();
    let names: Vec<_> = groups.iter().map(|group| group["group"].as_str().unwrap()).collect();
    assert_eq!(names.len(), 2, "{names:?}");
    assert!(names[0].ends_with("a-pod1.slice") && names[1].ends_with("b-pod2.slice"), "{names:?}");
    let document: serde_json::Value = serde_json::from_slice(&none.stdout).unwrap();
    assert!(document["groups"].as_array().unwrap().is_empty(), "{document}");
}
