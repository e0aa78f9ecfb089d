//! A virtual machine, whose host gives it memory and takes it back (virtio-mem).
//!
//! The guest tells by its balloon device how much it has free. Its memory is one
//! node: which of it is the device's, and whether a page can leave, is known to
//! the guest alone, which gives back what it can.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::event::{Timespec, poll};
use rustix::io::Errno;
use serde_json::{Value, json};
use terrace_core::{Bytes, Nanos};

use super::actuator::{ActionError, Actuator};
use super::qmp::{Qmp, QmpError};
use super::world::{LookError, World};
use crate::action::{Action, Target};
use crate::config;
use crate::decision::Change;
use crate::view::{NodeId, NodeView, Watermarks};

/// What is given or taken at a time, at least: devices have blocks of 2 MiB, and the guest's kernel
/// brings memory online by its own blocks of 128 MiB.
const STEP: Bytes = Bytes::mib(128);
/// How often is looked whether the guest has followed.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

/// What the guest had at the last look.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    total: Bytes,
    free: Bytes,
    /// What the device has given the guest.
    size: Bytes,
    /// What it can give in all.
    most: Bytes,
    block: Bytes,
}

/// A virtual machine by QEMU's socket.
#[derive(Debug)]
pub struct VirtualMachine {
    qmp: Arc<Mutex<Qmp>>,
    device: String,
    balloon: String,
    seen: Seen,
}

fn locked(qmp: &Mutex<Qmp>) -> MutexGuard<'_, Qmp> {
    qmp.lock().unwrap_or_else(PoisonError::into_inner)
}

fn number(value: &Value, key: &str) -> Option<u64> {
    value.get(key).and_then(Value::as_u64)
}

impl VirtualMachine {
    /// Connects, and has the guest tell how much it has free.
    pub fn connect(config: &config::Vm) -> Result<Self, QmpError> {
        let mut qmp = Qmp::connect(Path::new(&config.qmp))?;
        qmp.set(&config.balloon, "guest-stats-polling-interval", 1)?;
        let (device, balloon) = (config.device.clone(), config.balloon.clone());
        size(&mut qmp, &device)?;
        Ok(Self { qmp: Arc::new(Mutex::new(qmp)), device, balloon, seen: Seen::default() })
    }

    /// What carries its steps out.
    pub fn actuator(&self) -> Box<dyn Actuator> {
        Box::new(Resizer(Arc::clone(&self.qmp)))
    }

    fn block(&self) -> Bytes {
        STEP.max(self.seen.block)
    }
}

/// The device's size, the most that it can have, and its granularity.
fn size(qmp: &mut Qmp, device: &str) -> Result<(Bytes, Bytes, Bytes), QmpError> {
    let devices = qmp.ask("query-memory-devices", &json!({}))?;
    let devices = devices.as_array().map(Vec::as_slice).unwrap_or_default();
    let data = devices
        .iter()
        .filter(|device| device.get("type").and_then(Value::as_str) == Some("virtio-mem"))
        .filter_map(|device| device.get("data"))
        .find(|data| data.get("id").and_then(Value::as_str) == Some(device))
        .ok_or_else(|| QmpError::Refused {
            command: "query-memory-devices".to_owned(),
            what: format!("there is no virtio-mem device `{device}`"),
        })?;
    let of = |key| {
        number(data, key)
            .map(Bytes)
            .ok_or_else(|| QmpError::Answer(format!("{data} without {key}")))
    };
    Ok((of("size")?, of("max-size")?, of("block-size")?))
}

impl World for VirtualMachine {
    fn look(&mut self, _thorough: bool) -> Result<(), LookError> {
        let wrong = |error: QmpError| LookError::Qemu(error.to_string());
        let mut qmp = locked(&self.qmp);
        let (size, most, block) = size(&mut qmp, &self.device).map_err(wrong)?;
        let stats = qmp.get(&self.balloon, "guest-stats").map_err(wrong)?;
        let stats = stats.get("stats").unwrap_or(&Value::Null);
        // A guest that has not told anything yet says -1, which is no unsigned number here, or its
        // largest.
        let told = |key| number(stats, key).filter(|&n| n < u64::MAX).map(Bytes);
        let (Some(total), Some(free)) = (told("stat-total-memory"), told("stat-free-memory"))
        else {
            return Err(LookError::Qemu(format!(
                "the guest has not told yet how much it has free (its balloon `{}`)",
                self.balloon
            )));
        };
        drop(qmp);
        self.seen = Seen { total, free, size, most, block };
        Ok(())
    }

    fn nodes(&self) -> Vec<NodeId> {
        vec![NodeId(0)]
    }

    fn view(&self, node: NodeId, now: Nanos) -> Option<NodeView> {
        let Seen { total, free, size, most, .. } = self.seen;
        (node == NodeId(0)).then(|| NodeView {
            node,
            now,
            dram: total - size,
            // Which of it lies in the device is the guest's to know.
            dram_free: free,
            integrated: size,
            integrated_free: Bytes::ZERO,
            hidden: most - size,
            block: self.block(),
            watermarks: Watermarks::default(),
        })
    }

    fn elsewhere(&self, _: NodeId) -> Bytes {
        Bytes::ZERO
    }

    fn steps(&self, _: NodeId, change: Change, may: &dyn Fn(&Target) -> bool) -> Vec<Action> {
        let (size, most) = (self.seen.size, self.seen.most);
        let resize = |from, to| Action::Resize { device: self.device.clone(), from, to };
        match change {
            Change::Nothing => Vec::new(),
            // What could not be given back does not stand in the way of more.
            Change::Integrate(amount) => {
                let to = (size + amount).min(most);
                if to > size { vec![resize(size, to)] } else { Vec::new() }
            }
            Change::Remove(_) if !may(&Target::Device(self.device.clone())) => Vec::new(),
            Change::Remove(amount) => {
                let (mut from, least) = (size, size - amount);
                let mut steps = Vec::new();
                while from > least {
                    let to = least.max(from - self.block());
                    steps.push(resize(from, to));
                    from = to;
                }
                steps
            }
        }
    }

    fn room(&self, action: &Action, headroom: Bytes, begun: bool) -> Result<(), String> {
        let Action::Resize { from, to, .. } = action else { return Ok(()) };
        if to >= from {
            return Ok(());
        }
        let free = self.seen.free;
        let needed = if begun { headroom / 2 } else { (*from - *to) + headroom };
        if free < needed {
            return Err(format!("{free} are free in the guest, and {needed} have to be"));
        }
        Ok(())
    }

    fn idle(&self) -> Vec<Action> {
        Vec::new()
    }
}

struct Resizer(Arc<Mutex<Qmp>>);

impl Actuator for Resizer {
    fn act(&mut self, action: &Action) -> Result<(), ActionError> {
        let Action::Resize { device, to, .. } = action else { return Err(ActionError::NotHere) };
        let wrong = |error: QmpError| ActionError::Qemu(error.to_string());
        locked(&self.0).set(device, "requested-size", to.get()).map_err(wrong)?;
        loop {
            let (now, _, _) = size(&mut locked(&self.0), device).map_err(wrong)?;
            if now == *to {
                return Ok(());
            }
            // Not `thread::sleep`, which goes on after a signal.
            if poll(&mut [], Some(&LOOK)) == Err(Errno::INTR) {
                // The guest keeps what it has.
                locked(&self.0).set(device, "requested-size", now.get()).map_err(wrong)?;
                return Err(ActionError::Interrupted);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::os::unix::net::UnixListener;
    use std::thread;

    use super::*;
    use crate::live::worker::{Bell, Worker};

    /// A QEMU whose guest gives back no more than down to `least`.
    fn qemu(socket: &Path, least: u64) {
        let listener = UnixListener::bind(socket).unwrap();
        thread::spawn(move || {
            let (mut to, _) = listener.accept().unwrap();
            writeln!(to, "{}", json!({ "QMP": { "version": {} } })).unwrap();
            let mut size = 512_u64 << 20;
            let from = BufReader::new(to.try_clone().unwrap());
            for line in from.lines() {
                let Ok(line) = line else { return };
                let question: Value = serde_json::from_str(&line).unwrap();
                let arguments = &question["arguments"];
                writeln!(to, "{}", json!({ "event": "MEMORY_DEVICE_SIZE_CHANGE" })).unwrap();
                let answer = match question["execute"].as_str().unwrap() {
                    "query-memory-devices" => json!([{ "type": "virtio-mem", "data": {
                        "id": "more0", "size": size, "max-size": 1_u64 << 30,
                        "block-size": 2 << 20,
                    } }]),
                    "qom-get" => json!({ "stats": {
                        "stat-total-memory": (384_u64 << 20) + size,
                        "stat-free-memory": 700_u64 << 20,
                    }, "last-update": 1 }),
                    "qom-set" if arguments["property"] == "requested-size" => {
                        size = arguments["value"].as_u64().unwrap().max(least);
                        json!({})
                    }
                    _ => json!({}),
                };
                writeln!(to, "{}", json!({ "return": answer })).unwrap();
            }
        });
    }

    fn connect(directory: &Path, least: u64) -> VirtualMachine {
        let socket = directory.join("qmp");
        qemu(&socket, least);
        let qmp = socket.to_str().unwrap().to_owned();
        let vm = config::Vm { qmp, device: "more0".into(), balloon: "balloon0".into() };
        let mut machine = VirtualMachine::connect(&vm).unwrap();
        machine.look(true).unwrap();
        machine
    }

    #[test]
    fn a_guest_s_memory_is_seen_and_changed() {
        let directory = tempfile::tempdir().unwrap();
        let mut machine = connect(directory.path(), 0);
        let view = machine.view(NodeId(0), Nanos::ZERO).unwrap();
        assert_eq!((view.dram, view.integrated), (Bytes::mib(384), Bytes::mib(512)));
        assert_eq!((view.local_free(), view.hidden), (Bytes::mib(700), Bytes::mib(512)));
        let grow = machine.steps(NodeId(0), Change::Integrate(Bytes::gib(4)), &|_| true);
        assert_eq!(grow.len(), 1);
        machine.actuator().act(&grow[0]).unwrap();
        machine.look(false).unwrap();
        assert_eq!(machine.view(NodeId(0), Nanos::ZERO).unwrap().hidden, Bytes::ZERO);
        let shrink = machine.steps(NodeId(0), Change::Remove(Bytes::mib(300)), &|_| true);
        let sizes: Vec<_> = shrink.iter().map(ToString::to_string).collect();
        assert_eq!(sizes[2], "change more0 from 768 MiB to 724 MiB");
        assert!(machine.room(&shrink[0], Bytes::mib(64), false).is_ok());
        let why = machine.room(&shrink[0], Bytes::mib(600), false).unwrap_err();
        assert_eq!(why, "700 MiB are free in the guest, and 728 MiB have to be");
    }

    #[test]
    fn a_guest_that_keeps_its_memory_is_not_waited_for_for_ever() {
        let directory = tempfile::tempdir().unwrap();
        let machine = connect(directory.path(), 500 << 20);
        let bell = Bell::new().unwrap();
        let worker = Worker::start(machine.actuator(), bell).unwrap();
        let steps = machine.steps(NodeId(0), Change::Remove(Bytes::mib(128)), &|_| true);
        worker.begin(steps[0].clone());
        let done = loop {
            thread::sleep(std::time::Duration::from_millis(20));
            worker.interrupt();
            if let Some(done) = worker.next() {
                break done;
            }
        };
        assert!(matches!(done.outcome, Err(ActionError::Interrupted)), "{:?}", done.outcome);
        worker.end();
    }

    #[test]
    fn what_qemu_refuses_is_told() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("qmp");
        qemu(&socket, 0);
        let qmp = socket.to_str().unwrap().to_owned();
        let vm = config::Vm { qmp, device: "other".into(), balloon: "balloon0".into() };
        let error = VirtualMachine::connect(&vm).unwrap_err().to_string();
        assert_eq!(error, "query-memory-devices: there is no virtio-mem device `other`");
    }
}
