//! Sockets of TCP: what memory each has, and how old it is. They are observed only.

use std::collections::HashMap;
use std::io::Read;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use aya::maps::{HashMap as Table, MapData};
use aya::programs::{BtfTracePoint, Iter};
use aya::{Btf, Ebpf};
use serde::{Deserialize, Serialize};
use terrace_core::{Bytes, Nanos};

use super::assembler::{Assembler, Code, Condition, Helper, Operation, Register, Width};
use super::btf::{BtfError, Types};
use super::load::full;
use super::object_file::{Map, MapKind, Program, object_file};

use Register::{R0, R1, R2, R3, R4, R6, R7, R10};

/// A socket.
///
/// One field for each column of `kloc list --sockets`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Socket {
    /// Its own address.
    pub local: SocketAddr,
    /// The other side's.
    pub remote: SocketAddr,
    /// Its state, as `ss` names it.
    pub state: String,
    /// What has been received and not been read, with what it takes around it.
    pub receiving: Bytes,
    /// What was sent and has not been acknowledged.
    pub sending: Bytes,
    /// Memory that it has set aside.
    pub reserved: Bytes,
    /// How old it is; `None` if it is older than the daemon, or there were too many when it was made.
    pub age: Option<Nanos>,
}

impl Socket {
    /// What its queues take.
    pub fn memory(&self) -> Bytes {
        self.receiving + self.sending
    }
}

/// How many births are remembered: sockets that live at the same time, and were made since the
/// daemon began. Of more than that the age is not known.
const BIRTHS: u32 = 16 << 10;

const MAPS: [Map; 1] =
    [Map { name: "births", kind: MapKind::Hash, key: 8, value: 8, entries: BIRTHS }];

/// `TCP_ESTABLISHED` and so on, in the kernel's order, from 1 on.
const STATES: [&str; 12] = [
    "established",
    "syn-sent",
    "syn-recv",
    "fin-wait-1",
    "fin-wait-2",
    "time-wait",
    "closed",
    "close-wait",
    "last-ack",
    "listening",
    "closing",
    "syn-recv",
];
const TIME_WAIT: i32 = 6;
const CLOSED: i32 = 7;
const REQUEST: i32 = 12;
/// `AF_INET6`
const IPV6: u16 = 10;

/// Where things are in a record; its length.
mod at {
    pub(super) const FAMILY: usize = 8;
    pub(super) const STATE: usize = 10;
    pub(super) const PORT: usize = 12;
    pub(super) const REMOTE_PORT: usize = 14;
    pub(super) const REMOTE: usize = 16;
    pub(super) const LOCAL: usize = 20;
    pub(super) const RECEIVING: usize = 24;
    pub(super) const SENDING: usize = 28;
    pub(super) const RESERVED: usize = 32;
    pub(super) const REMOTE_6: usize = 40;
    pub(super) const LOCAL_6: usize = 56;
    pub(super) const SIZE: usize = 72;
}

/// Sockets as the kernel's iterator gives them.
pub struct Sockets {
    programs: Ebpf,
    births: Table<MapData, u64, u64>,
}

impl std::fmt::Debug for Sockets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sockets").finish_non_exhaustive()
    }
}

impl Sockets {
    /// Loads the programs.
    ///
    /// # Errors
    /// Why they cannot be had.
    pub fn new() -> Result<Self, String> {
        let types = Types::of_kernel(&[]).map_err(|e| e.to_string())?;
        let list = listing(&types).map_err(|e| e.to_string())?;
        drop(types);
        let programs = [
            Program { name: "kloc_tcp", hook: "iter", code: list },
            Program { name: "kloc_birth", hook: "tp_btf", code: births() },
        ];
        let mut programs = Ebpf::load(&object_file(&MAPS, &programs)?).map_err(|e| full(&e))?;
        let btf = Btf::from_sys_fs().map_err(|e| full(&e))?;
        let absent = || "a program is not in the object file".to_owned();
        let list: &mut Iter = programs
            .program_mut("kloc_tcp")
            .ok_or_else(absent)?
            .try_into()
            .map_err(|e: aya::programs::ProgramError| full(&e))?;
        list.load("tcp", &btf).map_err(|e| full(&e))?;
        let birth: &mut BtfTracePoint = programs
            .program_mut("kloc_birth")
            .ok_or_else(absent)?
            .try_into()
            .map_err(|e: aya::programs::ProgramError| full(&e))?;
        birth.load("inet_sock_set_state", &btf).map_err(|e| full(&e))?;
        birth.attach().map_err(|e| full(&e))?;
        let births = programs.take_map("births").ok_or_else(absent)?;
        let births = Table::try_from(births).map_err(|e| full(&e))?;
        Ok(Self { programs, births })
    }

    /// All sockets of TCP of this network name space.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn list(&mut self, now: Nanos) -> Result<Vec<Socket>, String> {
        let program: &mut Iter = self
            .programs
            .program_mut("kloc_tcp")
            .ok_or("no program")?
            .try_into()
            .map_err(|e: aya::programs::ProgramError| full(&e))?;
        let link = program.attach().map_err(|e| full(&e))?;
        let link = program.take_link(link).map_err(|e| full(&e))?;
        let mut file = link.into_file().map_err(|e| full(&e))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(|e| e.to_string())?;
        let births: HashMap<u64, u64> = self.births.iter().filter_map(Result::ok).collect();
        Ok(bytes.as_chunks().0.iter().map(|record| read(record, &births, now)).collect())
    }
}

fn read(record: &[u8; at::SIZE], births: &HashMap<u64, u64>, now: Nanos) -> Socket {
    let half = |at: usize| u16::from_le_bytes([record[at], record[at + 1]]);
    let word = |at: usize| u32::from_le_bytes(record[at..at + 4].try_into().expect("four"));
    let address = |v4: usize, v6: usize| {
        if half(at::FAMILY) == IPV6 {
            let bytes: [u8; 16] = record[v6..v6 + 16].try_into().expect("sixteen");
            IpAddr::from(Ipv6Addr::from(bytes))
        } else {
            let bytes: [u8; 4] = record[v4..v4 + 4].try_into().expect("four");
            IpAddr::from(Ipv4Addr::from(bytes))
        }
    };
    // The kernel may have given out more than was set aside, for a moment.
    let set_aside = u64::try_from(word(at::RESERVED).cast_signed()).unwrap_or(0);
    let key = u64::from_le_bytes(record[..8].try_into().expect("eight"));
    let state = usize::from(record[at::STATE]).wrapping_sub(1);
    Socket {
        local: SocketAddr::new(address(at::LOCAL, at::LOCAL_6), half(at::PORT)),
        remote: SocketAddr::new(
            address(at::REMOTE, at::REMOTE_6),
            half(at::REMOTE_PORT).swap_bytes(),
        ),
        state: STATES.get(state).copied().unwrap_or("unknown").to_owned(),
        receiving: Bytes(word(at::RECEIVING).into()),
        sending: Bytes(word(at::SENDING).into()),
        reserved: Bytes(set_aside),
        age: births.get(&key).map(|&birth| now.saturating_sub(Nanos(birth))),
    }
}

/// `iter/tcp`: writes a record of each socket.
fn listing(types: &Types) -> Result<Code, BtfError> {
    let mut asm = Assembler::new();
    let (out, is_small) = (asm.label(), asm.label());
    let place = |at: usize| at as i16 - at::SIZE as i16;
    asm.copy(R6, R1);
    asm.load(Width::Double, R7, R6, 8);
    asm.jump_if(Condition::Equal, R7, 0, out);
    for at in (0..at::SIZE).step_by(8) {
        asm.store_value(Width::Double, R10, place(at), 0);
    }
    // The address tells sockets apart while they live.
    asm.store(Width::Double, R10, place(0), R7);
    let common = |field: &str| types.offset("sock_common", field);
    for (at, length, field) in [
        (at::FAMILY, 2, "skc_family"),
        (at::STATE, 1, "skc_state"),
        (at::PORT, 2, "skc_num"),
        (at::REMOTE_PORT, 2, "skc_dport"),
        (at::REMOTE, 4, "skc_daddr"),
        (at::LOCAL, 4, "skc_rcv_saddr"),
    ] {
        asm.read(place(at), length, R7, common(field)?);
    }
    // A kernel without IPv6 has no such fields.
    for (at, field) in [(at::REMOTE_6, "skc_v6_daddr"), (at::LOCAL_6, "skc_v6_rcv_saddr")] {
        if let Ok(offset) = common(field) {
            asm.read(place(at), 16, R7, offset);
        }
    }
    // What is left of a connection, or not one yet, is smaller than a socket.
    asm.load(Width::Byte, R1, R10, place(at::STATE));
    asm.jump_if(Condition::Equal, R1, TIME_WAIT, is_small);
    asm.jump_if(Condition::Equal, R1, REQUEST, is_small);
    for (at, field) in [
        (at::RECEIVING, "sk_backlog.rmem_alloc"),
        (at::SENDING, "sk_wmem_queued"),
        (at::RESERVED, "sk_forward_alloc"),
    ] {
        asm.read(place(at), 4, R7, types.offset("sock", field)?);
    }
    asm.place(is_small);
    asm.load(Width::Double, R1, R6, 0);
    asm.load(Width::Double, R1, R1, 0);
    asm.copy(R2, R10);
    asm.with(Operation::Add, R2, -(at::SIZE as i32));
    asm.set(R3, at::SIZE as i32);
    asm.call(Helper::Write);
    asm.place(out);
    asm.set(R0, 0);
    asm.exit();
    Ok(asm.finish())
}

/// `tp_btf/inet_sock_set_state`: when a socket came to be, and that it has gone.
fn births() -> Code {
    let mut asm = Assembler::new();
    let (gone, out) = (asm.label(), asm.label());
    // (socket, old state, new state)
    asm.load(Width::Double, R6, R1, 0);
    asm.load(Width::Word, R7, R1, 16);
    asm.store(Width::Double, R10, -8, R6);
    asm.jump_if(Condition::Equal, R7, CLOSED, gone);
    asm.call(Helper::Now);
    asm.store(Width::Double, R10, -16, R0);
    asm.map(R1, "births");
    asm.copy(R2, R10);
    asm.with(Operation::Add, R2, -8);
    asm.copy(R3, R10);
    asm.with(Operation::Add, R3, -16);
    // Only if it is not known yet (`BPF_NOEXIST`).
    asm.set(R4, 1);
    asm.call(Helper::MapUpdate);
    asm.jump(out);
    asm.place(gone);
    asm.map(R1, "births");
    asm.copy(R2, R10);
    asm.with(Operation::Add, R2, -8);
    asm.call(Helper::MapDelete);
    asm.place(out);
    asm.set(R0, 0);
    asm.exit();
    asm.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_read_as_the_program_writes_them() {
        let mut record = [0u8; at::SIZE];
        record[0] = 9;
        record[at::FAMILY] = 2;
        record[at::STATE] = 10;
        record[at::PORT..at::PORT + 2].copy_from_slice(&80u16.to_le_bytes());
        record[at::REMOTE_PORT..at::REMOTE_PORT + 2].copy_from_slice(&443u16.to_be_bytes());
        record[at::LOCAL..at::LOCAL + 4].copy_from_slice(&[127, 0, 0, 1]);
        record[at::RECEIVING] = 5;
        let births = HashMap::from([(9, 100)]);
        let socket = read(&record, &births, Nanos(150));
        assert_eq!(socket.local.to_string(), "127.0.0.1:80");
        assert_eq!(socket.remote.to_string(), "0.0.0.0:443");
        assert_eq!((socket.state.as_str(), socket.memory()), ("listening", Bytes(5)));
        assert_eq!(socket.age, Some(Nanos(50)));
        record[at::RESERVED..at::RESERVED + 4].copy_from_slice(&(-4096i32).to_le_bytes());
        assert_eq!(read(&record, &births, Nanos(150)).reserved, Bytes::ZERO, "no 4 GiB");
        record[at::RESERVED..at::RESERVED + 4].copy_from_slice(&4096i32.to_le_bytes());
        assert_eq!(read(&record, &births, Nanos(150)).reserved, Bytes(4096));
        record[0] = 8;
        assert_eq!(read(&record, &births, Nanos(150)).age, None, "older than the daemon");
    }
}
