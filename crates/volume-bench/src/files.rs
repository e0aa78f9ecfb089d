//! Work on a file system that lies on a volume, and on a plain file in the same memory: both as
//! loop devices, in turns.
//!
//! The database's transactions stand in for TPC-C, which no package of Debian has: an order with
//! its lines is inserted, the stock of each line is lowered and a customer is billed, each in a
//! durable transaction of `SQLite`.

use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde::Serialize;
use terrace_core::Bytes;

use crate::measure::Spread;
use crate::served::{Loop, is_socket};
use crate::server::{Fused, Running};

/// Orders of a run of the database.
const ORDERS: u32 = 500;

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Work {
    /// A tree of files is unpacked, and synchronised.
    Untar,
    /// It is packed again, after its pages were dropped from the cache.
    Tar,
    /// Orders are entered into a database.
    Orders,
}

/// What is measured, and where.
#[derive(Clone, Debug)]
pub struct Workloads {
    /// Where images are made; they are removed at the end.
    pub directory: PathBuf,
    /// Bytes of each image.
    pub size: Bytes,
    /// The tree of files.
    pub tree: PathBuf,
    /// How often each is done.
    pub rounds: usize,
    /// The command `terrace`, which serves the volume.
    pub terrace: PathBuf,
}

/// How long a work took on one kind of device.
#[derive(Clone, Debug, Serialize)]
pub struct Took {
    /// The work.
    pub work: Work,
    /// The device.
    pub device: String,
    /// Seconds.
    pub seconds: Spread,
}

/// What came of it.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// The works, on each device.
    pub rows: Vec<Took>,
    /// What was left out, and why.
    pub missing: Vec<String>,
}

/// The devices.
const DEVICES: [&str; 3] = ["volume as FUSE file", "FUSE file of raw memory", "loop on tmpfs"];
/// The one of them for which there have to be other programs.
const RAW: usize = 1;

/// A mounted file system, which is unmounted when this is dropped.
struct Mounted(PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        // If it stays, `mount` lists it.
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

fn run(command: &mut Command) -> io::Result<()> {
    let output = command.stdin(Stdio::null()).output()?;
    if output.status.success() {
        return Ok(());
    }
    let program = command.get_program().to_string_lossy().into_owned();
    let said = String::from_utf8_lossy(&output.stderr);
    Err(io::Error::other(format!("{program}: {}", briefly(&said))))
}

/// The first line of what a program says, and how much more there is: `tar` has a line for each file.
fn briefly(said: &str) -> String {
    let mut lines = said.lines().filter(|line| !line.trim().is_empty());
    let first = lines.next().unwrap_or("it said nothing").trim();
    match lines.count() {
        0 => first.to_owned(),
        more => format!("{first} (and {more} more lines)"),
    }
}

/// Whether a program is there.
fn is_installed(program: &str) -> bool {
    let tried = Command::new(program).arg("--version").stdin(Stdio::null()).output();
    !tried.is_err_and(|e| e.kind() == io::ErrorKind::NotFound)
}

/// The first of these programs that is not there.
fn lacking(programs: &[(&str, &str)]) -> Option<String> {
    let lacks = programs.iter().find(|(program, _)| !is_installed(program));
    lacks.map(|(program, package)| format!("{program} is not installed ({package})"))
}

fn timed(work: impl FnOnce() -> io::Result<()>) -> io::Result<Duration> {
    let start = Instant::now();
    work()?;
    Ok(start.elapsed())
}

impl Workloads {
    /// Does everything on each device, round after round. Needs root, and programs: what lacks one
    /// is left out, and named.
    pub fn run(&self, progress: &dyn Fn(usize, usize)) -> io::Result<Report> {
        let all = [
            ("losetup", "util-linux"),
            ("mkfs.ext4", "e2fsprogs"),
            ("tar", "tar"),
            ("sqlite3", "sqlite3"),
        ];
        if let Some(why) = lacking(&all) {
            let missing = vec![format!("file systems: {why}")];
            return Ok(Report { missing, ..Report::default() });
        }
        let without_raw = lacking(&[("nbdkit", "nbdkit"), ("nbdfuse", "libnbd-bin")]);
        let directory =
            tempfile::Builder::new().prefix("terrace-files-").tempdir_in(&self.directory)?;
        let at = |name: &str| directory.path().join(name);
        let archive = at("tree.tar");
        run(Command::new("tar").arg("-cf").arg(&archive).arg("-C").arg(&self.tree).arg("."))?;
        let mut seconds = vec![Vec::new(); DEVICES.len() * 3];
        for round in 0..self.rounds {
            for (number, device) in DEVICES.iter().enumerate() {
                if number == RAW && without_raw.is_some() {
                    continue;
                }
                progress(round * DEVICES.len() + number, self.rounds * DEVICES.len());
                let took = self
                    .once(&at(&format!("run-{round}-{number}")), number, &archive)
                    .map_err(|e| io::Error::new(e.kind(), format!("{device}: {e}")))?;
                for (i, took) in took.into_iter().enumerate() {
                    seconds[number * 3 + i].push(took.as_secs_f64());
                }
            }
        }
        let mut rows = Vec::new();
        for (i, work) in [Work::Untar, Work::Tar, Work::Orders].into_iter().enumerate() {
            for (number, device) in DEVICES.iter().enumerate() {
                let taken = std::mem::take(&mut seconds[number * 3 + i]);
                if let Some(seconds) = Spread::of(taken) {
                    rows.push(Took { work, device: (*device).into(), seconds });
                }
            }
        }
        let missing = without_raw.map(|why| format!("{}: {why}", DEVICES[RAW]));
        Ok(Report { rows, missing: missing.into_iter().collect() })
    }

    /// All works, on a device that is made and removed.
    fn once(&self, place: &Path, device: usize, archive: &Path) -> io::Result<[Duration; 3]> {
        std::fs::create_dir(place)?;
        let (image, file, mount) = (place.join("image"), place.join("file"), place.join("mnt"));
        std::fs::create_dir(&mount)?;
        let mut running = None;
        let mut fused = None;
        let backing = match device {
            0 => {
                let size = format!("{}B", self.size.0);
                let mut create = Command::new(&self.terrace);
                run(create.args(["volume", "create", "--size", &size]).arg(&image))?;
                std::fs::write(&file, "")?;
                let mut serve = Command::new(&self.terrace);
                serve.args(["volume", "serve", "--fuse"]).arg(&file).arg(&image);
                let is_mounted = || std::fs::metadata(&file).is_ok_and(|there| there.len() > 0);
                fused = Some(Fused(file.clone()));
                running = Running::start(&mut serve, is_mounted)?;
                &file
            }
            RAW => {
                // The same transport without a volume: what the volume itself costs is between.
                let socket = place.join("socket");
                let mut kit = crate::server::nbdkit(&socket, self.size.0);
                let served = Running::start(&mut kit, || is_socket(&socket))?;
                let Some(served) = served else {
                    return Err(io::Error::other("nbdkit is not installed"));
                };
                std::fs::write(&file, "")?;
                let mut fuse = Command::new("nbdfuse");
                fuse.arg(&file).arg(format!("nbd+unix:///?socket={}", socket.display()));
                let is_mounted = || std::fs::metadata(&file).is_ok_and(|there| there.len() > 0);
                let mount_of_it = Fused(file.clone());
                let server = Running::start(&mut fuse, is_mounted)?;
                if server.is_none() {
                    return Err(io::Error::other("nbdfuse is not installed (libnbd-bin)"));
                }
                let took = Self::works(&file, &mount, archive, place)?;
                drop(mount_of_it);
                drop(server);
                drop(served);
                std::fs::remove_dir_all(place)?;
                return Ok(took);
            }
            _ => {
                let made = std::fs::OpenOptions::new().write(true).create_new(true).open(&image)?;
                let none = rustix::fs::FallocateFlags::empty();
                rustix::fs::fallocate(&made, none, 0, self.size.0)?;
                &image
            }
        };
        let took = Self::works(backing, &mount, archive, place)?;
        if let Some(server) = running {
            server.end()?;
        }
        drop(fused);
        std::fs::remove_dir_all(place)?;
        Ok(took)
    }

    fn works(
        backing: &Path,
        mount: &Path,
        archive: &Path,
        place: &Path,
    ) -> io::Result<[Duration; 3]> {
        let attached = Loop::attach(backing)?;
        let quiet = Command::new("mkfs.ext4").args(["-q", "-F"]).arg(attached.path()).output()?;
        if !quiet.status.success() {
            let said = String::from_utf8_lossy(&quiet.stderr);
            return Err(io::Error::other(format!("mkfs.ext4: {}", briefly(&said))));
        }
        run(Command::new("mount").arg(attached.path()).arg(mount))?;
        let mounted = Mounted(mount.to_owned());
        let sync = || run(Command::new("sync").arg("-f").arg(mount));
        let untar = timed(|| {
            run(Command::new("tar").arg("-xf").arg(archive).arg("-C").arg(mount))?;
            sync()
        })?;
        // Only this file system's pages go.
        run(Command::new("mount").args(["-o", "remount,ro"]).arg(mount))?;
        drop(mounted);
        run(Command::new("mount").arg(attached.path()).arg(mount))?;
        let mounted = Mounted(mount.to_owned());
        let tar = timed(|| {
            let out = place.join("back.tar");
            run(Command::new("tar").arg("-cf").arg(&out).arg("-C").arg(mount).arg("."))
        })?;
        let script = place.join("orders.sql");
        std::fs::write(&script, orders())?;
        let database = mount.join("orders.db");
        let entered = timed(|| {
            let mut sqlite = Command::new("sqlite3");
            run(sqlite.arg(&database).arg(format!(".read {}", script.display())))
        })?;
        drop(mounted);
        Ok([untar, tar, entered])
    }
}

/// Transactions of the database, as the shell of `SQLite` takes them.
fn orders() -> String {
    let mut sql = String::from(
        "pragma journal_mode=wal; pragma synchronous=full;
        create table stock(item integer primary key, left integer);
        create table customer(id integer primary key, balance integer, name text);
        create table orders(id integer primary key, customer integer);
        create table line(orders integer, item integer, amount integer);
        create index lines on line(orders);
        with recursive n(i) as (select 1 union all select i + 1 from n where i < 2000)
            insert into stock select i, 1000 from n;
        with recursive n(i) as (select 1 union all select i + 1 from n where i < 500)
            insert into customer select i, 0, hex(randomblob(100)) from n;\n",
    );
    for order in 1..=ORDERS {
        let customer = order * 7 % 500 + 1;
        // Writing to a string does not fail.
        let _ = writeln!(sql, "begin; insert into orders values({order}, {customer});");
        for line in 0..8 {
            let item = (order * 31 + line * 97) % 2000 + 1;
            let _ = writeln!(
                sql,
                "update stock set left = left - 1 where item = {item}; \
                 insert into line values({order}, {item}, 1);"
            );
        }
        let _ = writeln!(
            sql,
            "update customer set balance = balance + 8 where id = {customer}; commit;"
        );
    }
    sql
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_what_a_program_says_the_first_line_is_an_error() {
        let of = |lines: usize| briefly(&"tar: ./a: Cannot write: No space left\n".repeat(lines));
        assert_eq!(of(1), "tar: ./a: Cannot write: No space left");
        assert_eq!(of(9000), "tar: ./a: Cannot write: No space left (and 8999 more lines)");
        assert_eq!(briefly("\n\n"), "it said nothing");
    }

    #[test]
    fn a_program_that_is_not_there_is_named_with_its_package() {
        let why = lacking(&[("sh", "dash"), ("no-such-program-at-all", "a-package")]);
        assert_eq!(why.unwrap(), "no-such-program-at-all is not installed (a-package)");
        assert_eq!(lacking(&[("sh", "dash")]), None);
    }
}
