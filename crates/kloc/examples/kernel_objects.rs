//! Counts the kernel objects that system calls allocate and free on the running kernel.
//!
//! `cargo run -p terrace-kloc --example kernel_objects -- TRACEFS DIRECTORY`, as root. TRACEFS is
//! where tracefs is mounted, DIRECTORY lies on the file system to be measured. Writes TOML to the
//! standard output. Tracepoints of this process alone are counted, in a trace buffer of its own:
//! what the kernel does later or elsewhere (writeback, journal commits by their thread, objects
//! freed after a grace period) is not among it. Each call is made in runs of [`RUN`]; what an
//! empty run counts is taken off.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Calls in a run.
const RUN: usize = 64;
/// Bytes of a read, a write, a message.
const BLOCK: usize = 4096;

const EVENTS: [&str; 15] = [
    "kmem/kmem_cache_alloc",
    "kmem/kmem_cache_free",
    "kmem/kmalloc",
    "kmem/kfree",
    "kmem/mm_page_alloc",
    "kmem/mm_page_free",
    "filemap/mm_filemap_add_to_page_cache",
    "filemap/mm_filemap_delete_from_page_cache",
    "block/block_bio_queue",
    "block/block_rq_issue",
    "jbd2/jbd2_handle_start",
    "net/net_dev_queue",
    "net/netif_receive_skb",
    "skb/consume_skb",
    "skb/kfree_skb",
];

/// What a run counted: events, those of slabs with the slab's name.
type Counts = BTreeMap<String, f64>;

/// A trace buffer of this process alone; removed at the end.
struct Tracer {
    directory: PathBuf,
}

impl Tracer {
    fn new(tracefs: &Path) -> io::Result<Self> {
        let id = std::process::id();
        let directory = tracefs.join(format!("instances/terrace-{id}"));
        fs::create_dir(&directory).map_err(|error| naming(&directory, &error))?;
        let tracer = Self { directory };
        tracer.set("tracing_on", "0")?;
        tracer.set("buffer_size_kb", "8192")?;
        tracer.set("set_event_pid", &id.to_string())?;
        for event in EVENTS {
            tracer.set(&format!("events/{event}/enable"), "1")?;
        }
        Ok(tracer)
    }

    fn set(&self, file: &str, value: &str) -> io::Result<()> {
        let path = self.directory.join(file);
        fs::write(&path, value).map_err(|error| naming(&path, &error))
    }

    /// Counts what happens during `work`.
    fn count(&self, work: impl FnOnce() -> io::Result<()>) -> io::Result<Counts> {
        self.set("trace", "")?;
        // Opened before, so that the opening is not counted.
        let mut switch = OpenOptions::new().write(true).open(self.directory.join("tracing_on"))?;
        switch.write_all(b"1")?;
        let worked = work();
        switch.write_all(b"0")?;
        worked?;
        let mut counts = Counts::new();
        for line in fs::read_to_string(self.directory.join("trace"))?.lines() {
            if line.starts_with('#') {
                if let Some((_, lost)) = line.split_once("LOST") {
                    return Err(io::Error::other(format!("events were lost: {lost}")));
                }
                continue;
            }
            let Some(event) = line.split(": ").nth(1) else { continue };
            let field = |name: &str| {
                line.split_whitespace().find_map(|word| word.strip_prefix(name)).map(str::to_owned)
            };
            let what = match event {
                "kmem_cache_alloc" | "kmem_cache_free" => field("name="),
                "kmalloc" => field("bytes_alloc="),
                _ => None,
            };
            let what = what.map_or(event.to_owned(), |what| format!("{event}.{what}"));
            *counts.entry(what).or_default() += 1.0;
        }
        Ok(counts)
    }
}

impl Drop for Tracer {
    fn drop(&mut self) {
        // A buffer that is left behind goes on costing every allocation of the kernel.
        for event in EVENTS {
            if let Err(error) = self.set(&format!("events/{event}/enable"), "0") {
                eprintln!("{error}");
            }
        }
        if let Err(error) = fs::remove_dir(&self.directory) {
            eprintln!("{}: not removed: {error}", self.directory.display());
        }
    }
}

fn naming(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

/// Counts a call, made [`RUN`] times, and prints a table with the means.
fn call(
    tracer: &Tracer,
    name: &str,
    mut work: impl FnMut(usize) -> io::Result<()>,
) -> io::Result<()> {
    let empty = tracer.count(|| Ok(()))?;
    let mut counts = tracer.count(|| (0..RUN).try_for_each(&mut work))?;
    for (what, count) in &mut counts {
        *count = (*count - empty.get(what).copied().unwrap_or(0.0)) / RUN as f64;
    }
    println!("\n[{name}]");
    for (what, count) in counts.iter().filter(|(_, count)| **count >= 0.005) {
        println!("\"{what}\" = {count:.2}");
    }
    Ok(())
}

fn files(tracer: &Tracer, directory: &Path) -> io::Result<()> {
    let path = |number: usize| directory.join(format!("file-{number}"));
    let other = |number: usize| directory.join(format!("other-{number}"));
    let block = vec![7u8; BLOCK];
    let mut buffer = vec![0u8; BLOCK];
    // Room for all of them, so that no run allocates memory of its own.
    let mut open: Vec<Option<File>> = Vec::with_capacity(RUN);
    open.resize_with(RUN, || None);

    call(tracer, "create", |n| {
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).create_new(true);
        options.open(path(n)).map(|file| open[n] = Some(file))
    })?;
    let at = |open: &[Option<File>], n: usize| -> io::Result<File> {
        open[n].as_ref().ok_or_else(|| io::Error::other("not open"))?.try_clone()
    };
    let first: Vec<File> = (0..RUN).map(|n| at(&open, n)).collect::<io::Result<_>>()?;
    let offset = |n: usize| (n * BLOCK) as u64;
    call(tracer, "write-first-page", |n| first[n].write_all_at(&block, 0))?;
    let long_path = directory.join("long");
    let long = OpenOptions::new().read(true).write(true).create_new(true).open(&long_path)?;
    call(tracer, "write-next-page", |n| long.write_all_at(&block, offset(n)))?;
    call(tracer, "write-in-place", |n| long.write_all_at(&block, offset(n)))?;
    call(tracer, "read-in-cache", |n| long.read_exact_at(&mut buffer, offset(n)))?;
    fs::remove_file(&long_path)?;
    drop(long);
    call(tracer, "fsync-one-page", |n| first[n].sync_all())?;
    call(tracer, "stat", |n| fs::metadata(path(n)).map(drop))?;
    call(tracer, "rename", |n| fs::rename(path(n), other(n)))?;
    call(tracer, "readdir", |_| fs::read_dir(directory)?.try_for_each(|entry| entry.map(drop)))?;
    drop(first);
    call(tracer, "close", |n| {
        open[n] = None;
        Ok(())
    })?;
    call(tracer, "open", |n| File::open(other(n)).map(|file| open[n] = Some(file)))?;
    for file in &mut open {
        *file = None;
    }
    call(tracer, "unlink-one-page", |n| fs::remove_file(other(n)))
}

fn sockets(tracer: &Tracer) -> io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let message = vec![7u8; BLOCK];
    let mut buffer = vec![0u8; BLOCK];
    let (mut clients, mut servers) = (Vec::with_capacity(RUN), Vec::with_capacity(RUN));
    call(tracer, "connect", |_| TcpStream::connect(address).map(|s| clients.push(s)))?;
    call(tracer, "accept", |_| listener.accept().map(|(s, _)| servers.push(s)))?;
    call(tracer, "send", |n| clients[n].write_all(&message))?;
    call(tracer, "recv", |n| servers[n].read_exact(&mut buffer))?;
    call(tracer, "close-socket", |_| {
        clients.pop();
        Ok(())
    })
}

fn measure(tracefs: &Path, directory: &Path) -> io::Result<()> {
    let tracer = Tracer::new(tracefs)?;
    // A name that nobody has: nothing of the user's is overwritten.
    let directory = directory.join(format!("terrace-kernel-objects-{}", std::process::id()));
    fs::create_dir(&directory).map_err(|error| naming(&directory, &error))?;
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease")?;
    println!("# Means of {RUN} calls of {BLOCK} bytes: events of the calling thread.");
    println!("kernel = \"{}\"", kernel.trim());
    let done = files(&tracer, &directory).and_then(|()| sockets(&tracer));
    fs::remove_dir_all(&directory)?;
    done
}

fn main() -> ExitCode {
    let mut words = std::env::args_os().skip(1);
    let (Some(tracefs), Some(directory), None) = (words.next(), words.next(), words.next()) else {
        eprintln!("usage: kernel_objects TRACEFS DIRECTORY");
        return ExitCode::from(2);
    };
    match measure(Path::new(&tracefs), Path::new(&directory)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("kernel_objects: {error}");
            ExitCode::from(3)
        }
    }
}
