//! A volume as a network block device: what a client may do, and what happens to one that breaks
//! the protocol. Other people's clients are asked, too, where they are installed.

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;

use proptest::prelude::*;
use terrace_core::Bytes;
use terrace_volume::nbd::{Ended, Listener, Stop, serve, session};
use terrace_volume::pm::simulated::Simulated;
use terrace_volume::{Mount, SectorSize, Superblock, Volume, create};

fn volume(bytes: u64, sector: SectorSize, read_only: bool) -> Volume<Simulated> {
    let medium = Simulated::new(bytes);
    let uuid = uuid::Uuid::from_bytes([9; 16]);
    create(&medium, &Superblock::plan(Bytes(bytes), sector, 256, uuid).unwrap(), false).unwrap();
    Volume::mount(medium, Mount { read_only, lanes: None }).unwrap()
}

/// Serves a volume on a socket for the time of a function; returns what the server had to tell.
fn served(volume: &Volume<Simulated>, client: impl FnOnce(&Path)) -> Vec<String> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    let listeners = [Listener::unix(&path).unwrap()];
    let (stop, told) = (Stop::default(), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        let tell = |line| told.lock().unwrap().push(line);
        let (listeners, stop) = (&listeners, &stop);
        let server = scope.spawn(move || serve(volume, listeners, stop, &tell, &|| false));
        // A client that fails must not leave the server waiting.
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| client(&path)));
        stop.stop();
        server.join().unwrap().unwrap();
        if let Err(panic) = result {
            std::panic::resume_unwind(panic);
        }
    });
    drop(listeners);
    assert!(!path.exists(), "the socket was left behind");
    told.into_inner().unwrap()
}

/// A client of a few lines, that says exactly what a test wants.
struct Client(UnixStream);

impl Client {
    /// Negotiates without structured replies; the size and the flags that are offered.
    fn connect(path: &Path) -> (Self, u64, u16) {
        let mut client = Self(UnixStream::connect(path).unwrap());
        assert_eq!(client.read(18)[..16], *b"NBDMAGICIHAVEOPT");
        client.send(&[&3u32.to_be_bytes(), b"IHAVEOPT", &1u32.to_be_bytes(), &[0; 4]]);
        let export = client.read(10);
        let size = u64::from_be_bytes(*export.first_chunk().unwrap());
        (client, size, u16::from_be_bytes([export[8], export[9]]))
    }

    fn send(&mut self, parts: &[&[u8]]) {
        self.0.write_all(&parts.concat()).unwrap();
    }

    fn read(&mut self, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.0.read_exact(&mut bytes).unwrap();
        bytes
    }

    fn ask(&mut self, flags: u16, command: u16, offset: u64, length: u32, data: &[u8]) -> u32 {
        self.send(&[
            &0x2560_9513u32.to_be_bytes(),
            &flags.to_be_bytes(),
            &command.to_be_bytes(),
            b"a cookie",
            &offset.to_be_bytes(),
            &length.to_be_bytes(),
            data,
        ]);
        let reply = self.read(16);
        assert_eq!(reply[..4], 0x6744_6698u32.to_be_bytes());
        assert_eq!(reply[8..], *b"a cookie");
        u32::from_be_bytes(*reply[4..].first_chunk().unwrap())
    }

    fn read_at(&mut self, offset: u64, length: u32) -> Vec<u8> {
        assert_eq!(self.ask(0, 0, offset, length, &[]), 0);
        self.read(length as usize)
    }

    /// Whether the server has ended the connection.
    fn is_ended(&mut self) -> bool {
        matches!(self.0.read(&mut [0; 64]), Ok(0) | Err(_))
    }
}

#[test]
fn what_one_connection_writes_another_reads_and_what_is_trimmed_is_zeros() {
    let volume = volume(1 << 20, SectorSize::B512, false);
    let told = served(&volume, |path| {
        let (mut writer, size, flags) = Client::connect(path);
        let (mut reader, ..) = Client::connect(path);
        assert_eq!(size, volume.capacity().0);
        // Flush, FUA, trim, write-zeroes, several connections; not read-only.
        assert_eq!(flags & (2 | 4 | 8 | 32 | 64 | 256), 4 | 8 | 32 | 64 | 256);
        let data: Vec<u8> = (0..4096).map(|i| (i / 5) as u8).collect();
        assert_eq!(writer.ask(1, 1, 1024, 4096, &data), 0);
        assert_eq!(writer.ask(0, 3, 0, 0, &[]), 0);
        assert_eq!(reader.read_at(1024, 4096), data);
        // Parts of sectors can be read.
        assert_eq!(reader.read_at(1024 + 700, 1001), data[700..1701]);
        for (command, flags, at) in [(4, 0, 1024), (6, 1, 2048), (6, 3, 3072)] {
            assert_eq!(writer.ask(flags, command, at, 512, &[]), 0);
            assert_eq!(reader.read_at(at, 512), [0; 512]);
        }
        assert_eq!(reader.read_at(1536, 512), data[512..1024]);
        // In good order.
        for mut client in [writer, reader] {
            client.send(&[&0x2560_9513u32.to_be_bytes(), &[0, 0, 0, 2], &[0; 20]]);
            assert!(client.is_ended());
        }
    });
    assert_eq!(told, Vec::<String>::new());
}

#[test]
fn wrong_requests_get_an_error_and_the_connection_goes_on() {
    let volume = volume(1 << 20, SectorSize::B512, false);
    served(&volume, |path| {
        let (mut client, size, _) = Client::connect(path);
        let (invalid, no_space) = (22, 28);
        assert_eq!(client.ask(0, 0, size, 512, &[]), invalid);
        assert_eq!(client.ask(0, 0, u64::MAX, 512, &[]), invalid);
        assert_eq!(client.ask(0, 0, 0, 0, &[]), invalid);
        assert_eq!(client.ask(0, 1, size - 512, 1024, &[7; 1024]), no_space);
        assert_eq!(client.ask(0, 1, 100, 512, &[7; 512]), invalid, "part of a sector");
        assert_eq!(client.ask(0, 4, 0, u32::MAX, &[]), invalid);
        assert_eq!(client.ask(0, 99, 0, 512, &[]), invalid, "an unknown command");
        assert_eq!(client.ask(1 << 9, 0, 0, 512, &[]), invalid, "an unknown flag");
        assert_eq!(client.ask(0, 7, 0, 512, &[]), invalid, "a status that was not agreed on");
        assert_eq!(client.read_at(0, 512), [0; 512]);
    });
}

/// A read that is too large gets an error. A write would have to be taken in to find what follows.
#[test]
fn requests_of_more_than_32_mib_are_refused() {
    let volume = volume(40 << 20, SectorSize::B4096, false);
    let told = served(&volume, |path| {
        let (mut client, ..) = Client::connect(path);
        let overflow = 75;
        assert_eq!(client.ask(0, 0, 0, (32 << 20) + 4096, &[]), overflow);
        assert_eq!(client.read_at(4096, 4096), [0; 4096]);
        assert_eq!(client.ask(0, 1, 0, 32 << 20, &vec![5; 32 << 20]), 0);
        assert_eq!(client.read_at((32 << 20) - 4096, 8192), [[5; 4096], [0; 4096]].concat());
        let request = 0x2560_9513u32.to_be_bytes();
        let length = ((32u32 << 20) + 4096).to_be_bytes();
        client.send(&[&request, &[0, 0, 0, 1], &[0; 16], &length]);
        assert!(client.is_ended());
    });
    assert!(told.len() == 1 && told[0].contains("a write of 33558528 bytes"), "{told:?}");
}

#[test]
fn a_breach_of_the_protocol_ends_the_connection_and_no_other() {
    let volume = volume(1 << 20, SectorSize::B512, false);
    let told = served(&volume, |path| {
        let (mut good, ..) = Client::connect(path);
        let (mut bad, ..) = Client::connect(path);
        bad.send(&[&[0xff; 28]]);
        assert!(bad.is_ended());
        let (mut large, ..) = Client::connect(path);
        large.send(&[&0x2560_9513u32.to_be_bytes(), &[0, 0, 0, 1], &[0; 16], &[0xff; 4]]);
        assert!(large.is_ended());
        assert_eq!(good.read_at(0, 512), [0; 512]);
    });
    assert_eq!(
        told.iter().filter(|line| line.contains("the connection is ended")).count(),
        2,
        "{told:?}"
    );
}

/// One lane is all that a small volume has.
#[test]
fn a_client_that_only_connects_keeps_no_lane_from_others() {
    let medium = Simulated::new(1 << 20);
    let uuid = uuid::Uuid::from_bytes([9; 16]);
    let plan = Superblock::plan(Bytes(1 << 20), SectorSize::B512, 16, uuid).unwrap();
    create(&medium, &plan, false).unwrap();
    let how = Mount { read_only: false, lanes: Some(1) };
    let volume = Volume::mount(medium, how).unwrap();
    served(&volume, |path| {
        let mut idle = Client(UnixStream::connect(path).unwrap());
        assert_eq!(idle.read(18)[..8], *b"NBDMAGIC");
        let (mut client, ..) = Client::connect(path);
        assert_eq!(client.ask(0, 1, 0, 512, &[1; 512]), 0);
    });
}

/// What an option says about its own length must be so.
#[test]
fn options_whose_data_are_not_what_they_say_are_invalid() {
    let volume = volume(1 << 20, SectorSize::B512, false);
    let invalid = |option: u32, data: &[u8]| {
        let length = (data.len() as u32).to_be_bytes();
        let option = [&b"IHAVEOPT"[..], &option.to_be_bytes()[..], &length, data].concat();
        let mut output = Vec::new();
        let ended = session(&volume, &[&3u32.to_be_bytes()[..], &option].concat()[..], &mut output);
        assert_eq!(ended.unwrap(), Ended::Gone);
        assert_eq!(output[18 + 12..18 + 16], 0x8000_0003u32.to_be_bytes(), "{output:?}");
    };
    // LIST and STRUCTURED_REPLY take none; INFO and GO a name, a count and as many requests.
    invalid(3, b"x");
    invalid(8, b"x");
    for option in [6, 7] {
        invalid(option, &[0, 0, 0, 0, 0, 50]);
        invalid(option, &[0, 0, 0, 0]);
        invalid(option, &[0, 0, 0, 0, 0, 0, 1]);
    }
}

#[test]
fn a_volume_that_is_mounted_for_reading_takes_no_writes() {
    let volume = volume(1 << 20, SectorSize::B512, true);
    served(&volume, |path| {
        let (mut client, _, flags) = Client::connect(path);
        assert_eq!(flags & 2, 2);
        for command in [4, 6] {
            assert_eq!(client.ask(0, command, 0, 512, &[]), 1);
        }
        assert_eq!(client.ask(0, 1, 0, 512, &[1; 512]), 1);
        assert_eq!(client.ask(0, 3, 0, 0, &[]), 0);
        assert_eq!(client.read_at(0, 512), [0; 512]);
    });
}

#[test]
fn a_socket_is_its_owner_s_and_nothing_else_is_replaced_by_one() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    let first = Listener::unix(&path).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(Listener::unix(&path).is_err(), "a socket that is listened on was replaced");
    // A server that was killed leaves its socket behind.
    std::mem::drop(std::os::unix::net::UnixListener::bind(directory.path().join("old")).unwrap());
    assert!(Listener::unix(&directory.path().join("old")).is_ok());
    let file = directory.path().join("file");
    std::fs::write(&file, "precious").unwrap();
    assert!(Listener::unix(&file).is_err());
    assert_eq!(std::fs::read(&file).unwrap(), b"precious");
    drop(first);
}

/// Whether a program can be asked. Where everything must be tested, one that is missing fails.
fn has(program: &str, probe: &[&str]) -> bool {
    let there = Command::new(program).args(probe).output().is_ok_and(|out| out.status.success());
    let must = std::env::var_os("CI").is_some_and(|ci| !ci.is_empty())
        && std::env::var_os("TERRACE_UNSUPPORTED_OK").is_none();
    assert!(there || !must, "{program} is missing (scripts/setup.sh test installs it)");
    if !there {
        eprintln!("SKIPPED: {program} is not installed");
    }
    there
}

fn succeeds(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn qemu_copies_an_image_there_and_back() {
    if !has("qemu-img", &["--version"]) {
        return;
    }
    let volume = volume(4 << 20, SectorSize::B4096, false);
    let directory = tempfile::tempdir().unwrap();
    let [there, back] = ["there", "back"].map(|name| directory.path().join(name));
    let mut content = vec![0; volume.capacity().0 as usize];
    for (i, byte) in content.iter_mut().enumerate().skip(1 << 20).take(1 << 20) {
        *byte = (i / 9) as u8;
    }
    std::fs::write(&there, &content).unwrap();
    served(&volume, |path| {
        let uri = format!("nbd+unix:///?socket={}", path.display());
        let convert = ["convert", "-n", "-f", "raw", "-O", "raw"];
        succeeds(Command::new("qemu-img").args(convert).arg(&there).arg(&uri));
        succeeds(
            Command::new("qemu-img").args(&convert[..1]).args(&convert[2..]).arg(&uri).arg(&back),
        );
        let map = succeeds(Command::new("qemu-img").args(["map", "--output=json", &uri]));
        assert!(map.contains("\"zero\": true") && map.contains("\"zero\": false"), "{map}");
    });
    assert!(std::fs::read(&back).unwrap() == content);
}

/// What libnbd's own checks of a server's answers leave to ask.
const SCRIPT: &str = r#"
import nbd, sys
a, b = nbd.NBD(), nbd.NBD()
for h in (a, b):
    h.add_meta_context("base:allocation")
    h.connect_uri(sys.argv[1])
    assert h.get_structured_replies_negotiated()
    assert h.can_multi_conn() and h.can_fua() and h.can_trim() and h.can_zero()
    assert h.get_block_size(nbd.SIZE_MINIMUM) == 4096
a.pwrite(b"x" * 8192, 4096, nbd.CMD_FLAG_FUA)
assert b.pread(8192, 4096) == b"x" * 8192
assert b.pread_structured(8192, 4096, lambda *_: 0, nbd.CMD_FLAG_DF) == b"x" * 8192
found = []
b.block_status(a.get_size(), 0, lambda name, at, entries, err: found.extend(entries))
assert found[:4] == [4096, 3, 8192, 0], found
a.zero(4096, 4096)
a.trim(4096, 8192)
a.flush()
assert b.pread(8192, 4096) == bytes(8192)
a.set_strict_mode(0)
for wrong in (lambda: a.pread(512, a.get_size()), lambda: a.pwrite(b"y" * 512, 0)):
    try:
        wrong()
    except nbd.Error as error:
        assert error.errno == "EINVAL", error
    else:
        raise AssertionError("not refused")
a.shutdown(); b.shutdown()
"#;

/// libnbd: structured replies, block status, FUA, several connections, and its own checks of what
/// a server may answer.
#[test]
fn libnbd_finds_what_it_expects() {
    if !has("/usr/bin/python3", &["-c", "import nbd"]) || !has("nbdinfo", &["--version"]) {
        return;
    }
    let volume = volume(4 << 20, SectorSize::B4096, false);
    let told = served(&volume, |path| {
        let uri = format!("nbd+unix:///?socket={}", path.display());
        succeeds(Command::new("/usr/bin/python3").args(["-c", SCRIPT, &uri]));
        let info = succeeds(Command::new("nbdinfo").args(["--json", &uri]));
        assert!(info.contains("\"block_size_minimum\": 4096"), "{info}");
        let list = succeeds(Command::new("nbdinfo").args(["--list", &uri]));
        assert!(list.contains("base:allocation"), "{list}");
    });
    assert!(told.iter().all(|line| line.ends_with("went away")), "{told:?}");
}

/// fio has sixteen requests under way, and compares checksums of what it reads back.
#[test]
fn fio_verifies_what_it_has_written() {
    if !has("fio", &["--version"]) {
        return;
    }
    for sector in [SectorSize::B512, SectorSize::B4096] {
        let volume = volume(6 << 20, sector, false);
        let directory = tempfile::tempdir().unwrap();
        let told = served(&volume, |path| {
            let uri = format!("--uri=nbd+unix:///?socket={}", path.display());
            let job =
                ["--name=volume", "--ioengine=nbd", "--size=4m", "--iodepth=16", "--rw=randwrite"];
            let bytes = format!("--bs={}", sector.bytes());
            let verify = ["--verify=crc32c", "--verify_fatal=1", "--verify_state_save=0"];
            let mut fio = Command::new("fio");
            fio.args(job).arg(bytes).args(verify).arg(uri).current_dir(directory.path());
            let output = succeeds(&mut fio);
            assert!(output.contains("err= 0"), "{output}");
        });
        assert!(told.iter().all(|line| line.ends_with("went away")), "{told:?}");
        let written = (0..volume.sectors()).filter(|&lba| !volume.extent(lba, 1).unwrap().0);
        assert_eq!(written.count() as u64, (4 << 20) / u64::from(sector.bytes()));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]
    /// Bytes from anybody: an answer, an error, the end of the connection; nothing else.
    #[test]
    fn whatever_a_client_sends_the_server_lives(
        options in prop::collection::vec((0..12u32, prop::collection::vec(any::<u8>(), 0..40)), 0..4),
        requests in prop::collection::vec((any::<u16>(), 0..9u16, any::<u64>(), 0..5000u32), 0..20),
        noise in prop::collection::vec(any::<u8>(), 0..200), goes: bool, small: bool,
    ) {
        let volume = volume(300_000, SectorSize::B512, false);
        let mut input = 3u32.to_be_bytes().to_vec();
        for (option, data) in options {
            input.extend(b"IHAVEOPT");
            input.extend(option.to_be_bytes());
            input.extend((data.len() as u32).to_be_bytes());
            input.extend(data);
        }
        if goes {
            input.extend(b"IHAVEOPT\0\0\0\x01\0\0\0\0");
        }
        for (flags, command, offset, length) in requests {
            let (offset, length) = if small { (offset % 9 * 512, length / 512 * 512) } else { (offset, length) };
            input.extend(0x2560_9513u32.to_be_bytes());
            input.extend((flags & 31).to_be_bytes());
            input.extend(command.to_be_bytes());
            input.extend([0; 8]);
            input.extend(offset.to_be_bytes());
            input.extend(length.to_be_bytes());
            if command == 1 {
                input.extend(vec![5; length as usize]);
            }
        }
        input.extend(noise);
        let mut output = Vec::new();
        match session(&volume, &input[..], &mut output) {
            Ok(Ended::InOrder | Ended::Gone) => {}
            Err(e) => prop_assert_eq!(e.kind(), std::io::ErrorKind::InvalidData),
        }
        prop_assert!(output.starts_with(b"NBDMAGIC"));
    }
}
