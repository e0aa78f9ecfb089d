//! What calls take with all that they touch in the caches.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;

use super::{MeasureError, Measured};

/// Rounds of which the best counts: other programs disturb the others.
const ROUNDS: usize = 15;
/// Calls a round.
const CALLS: usize = 400;

/// Nanoseconds of one call. `call` is told its number in the round.
fn time(
    measured: &mut Measured,
    name: &'static str,
    mut call: impl FnMut(usize) -> io::Result<()>,
) -> Result<(), MeasureError> {
    let mut best = f64::INFINITY;
    for _ in 0..ROUNDS {
        let began = Instant::now();
        for number in 0..CALLS {
            call(number).map_err(|error| MeasureError::Call(name, error))?;
        }
        best = best.min(began.elapsed().as_nanos() as f64 / CALLS as f64);
    }
    measured.times.insert(name, best);
    Ok(())
}

pub(super) fn measure(directory: &Path, measured: &mut Measured) -> Result<(), MeasureError> {
    files(directory, measured)?;
    sockets(measured)
}

fn files(directory: &Path, measured: &mut Measured) -> Result<(), MeasureError> {
    let wrong = |name| move |error| MeasureError::Call(name, error);
    let path = directory.join("file");
    let mut page = [7u8; 4096];
    fs::write(&path, page).map_err(wrong("create"))?;
    let open = || OpenOptions::new().read(true).write(true).open(&path);
    let file = open().map_err(wrong("open"))?;
    time(measured, "open-and-close", |_| open().map(drop))?;
    time(measured, "read-4096", |_| file.read_exact_at(&mut page, 0))?;
    time(measured, "write-4096", |_| file.write_all_at(&page, 0))?;
    time(measured, "stat", |_| fs::metadata(&path).map(drop))?;
    let names = [directory.join("file"), directory.join("renamed")];
    time(measured, "rename", |n| fs::rename(&names[n % 2], &names[1 - n % 2]))?;
    let new = |n: usize| directory.join(format!("new{n}"));
    time(measured, "create-close-and-unlink", |n| {
        drop(File::create(new(n))?);
        fs::remove_file(new(n))
    })?;
    let big = directory.join("big");
    let written = File::create(&big).map_err(wrong("create"))?;
    // The offset only grows over all rounds: each page is new.
    let mut offset = 0;
    time(measured, "append-4096", |_| {
        offset += 4096;
        written.write_all_at(&page, offset)
    })?;
    fs::remove_file(&big).map_err(wrong("unlink"))?;
    let listed = directory.join("listed");
    fs::create_dir(&listed).map_err(wrong("mkdir"))?;
    for n in 0..64 {
        File::create(listed.join(n.to_string())).map_err(wrong("create"))?;
    }
    time(measured, "readdir-64", |_| fs::read_dir(&listed)?.try_for_each(|entry| entry.map(drop)))
}

fn sockets(measured: &mut Measured) -> Result<(), MeasureError> {
    let wrong = |error| MeasureError::Call("connect", error);
    let listener = TcpListener::bind("127.0.0.1:0").map_err(wrong)?;
    let address = listener.local_addr().map_err(wrong)?;
    time(measured, "connect-accept-and-close", |_| {
        let near = TcpStream::connect(address)?;
        let (far, _) = listener.accept()?;
        drop((near, far));
        Ok(())
    })?;
    let mut near = TcpStream::connect(address).map_err(wrong)?;
    let (mut far, _) = listener.accept().map_err(wrong)?;
    near.set_nodelay(true).map_err(wrong)?;
    let mut data = [1u8; 64];
    time(measured, "send-and-recv-64", |_| {
        near.write_all(&data)?;
        far.read_exact(&mut data)
    })
}
