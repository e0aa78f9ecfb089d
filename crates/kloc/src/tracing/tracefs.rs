//! A trace buffer of our own, for one program.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

/// KiB of the buffer of each processor: what a reader may fall behind before events are lost.
const BUFFER_KIB: u32 = 32 << 10;

/// Every event that [`super::Event`] knows. Those that a kernel does not have are left out, and
/// said.
const EVENTS: [&str; 13] = [
    "raw_syscalls/sys_enter",
    "raw_syscalls/sys_exit",
    "task/task_newtask",
    "filemap/mm_filemap_add_to_page_cache",
    "filemap/mm_filemap_delete_from_page_cache",
    "filemap/mm_filemap_get_pages",
    "filemap/mm_filemap_fault",
    "ext4/ext4_da_write_begin",
    "ext4/ext4_write_begin",
    "ext4/ext4_allocate_inode",
    "ext4/ext4_unlink_enter",
    "kmem/kmem_cache_alloc",
    "block/block_bio_queue",
];
/// Of them, those without which nothing can be recorded.
const NEEDED: usize = 3;

/// Why a program cannot be traced.
#[derive(Debug, thiserror::Error)]
pub enum TracingError {
    /// No tracefs.
    #[error(
        "tracefs is not mounted (as root: mount -t tracefs nodev /sys/kernel/tracing), so the \
         kernel's tracepoints cannot be read"
    )]
    NotMounted,
    /// A file of tracefs.
    #[error("{}: {source}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The program cannot be started.
    #[error("{program}: {source}")]
    Program {
        /// Which.
        program: String,
        /// Why.
        source: io::Error,
    },
}

/// Where tracefs is mounted.
#[derive(Clone, Debug)]
pub struct Tracefs {
    place: PathBuf,
}

/// What came of a program that was traced.
#[derive(Clone, Debug)]
pub struct Traced {
    /// How it ended.
    pub status: ExitStatus,
    /// Events that the kernel does not have.
    pub missing: Vec<&'static str>,
}

impl Tracefs {
    /// Finds it among the mounts.
    pub fn find() -> Result<Self, TracingError> {
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let place = mounts.lines().find_map(|line| {
            let mut words = line.split(' ').skip(1);
            let (place, kind) = (words.next()?, words.next()?);
            // A space in a path is written as an escape: such a mount is passed over.
            (kind == "tracefs" && !place.contains('\\')).then(|| PathBuf::from(place))
        });
        place.map(|place| Self { place }).ok_or(TracingError::NotMounted)
    }

    /// Runs a program to its end, and gives every line that the kernel writes about it and its
    /// children to `each`.
    pub fn trace(
        &self,
        command: &mut Command,
        mut each: impl FnMut(&str),
    ) -> Result<Traced, TracingError> {
        self.remove_stale();
        let buffer = Buffer::new(&self.place)?;
        let missing = buffer.enable()?;
        let pipe_path = buffer.directory.join("trace_pipe");
        let pipe = File::open(&pipe_path).map_err(|source| file(&pipe_path, source))?;
        let done = std::thread::scope(|scope| {
            // A thread of its own starts the program: the kernel traces it and what it starts,
            // and not the thread that reads.
            let runner = scope.spawn(|| buffer.run(command));
            let mut reader = BufReader::with_capacity(1 << 20, pipe);
            let mut line = Vec::new();
            let mut read = Ok(());
            loop {
                line.clear();
                match reader.read_until(b'\n', &mut line) {
                    // The end: tracing was switched off, and all was read.
                    Ok(0) => break,
                    Ok(_) => each(String::from_utf8_lossy(&line).trim_end()),
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => {
                        read = Err(file(&pipe_path, error));
                        break;
                    }
                }
            }
            let status = runner.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            read.and(status)
        })?;
        Ok(Traced { status: done, missing })
    }

    /// A buffer that counts events of the calling thread. Events that the kernel does not have are
    /// left out, and given.
    pub fn counter(
        &self,
        events: &[&'static str],
    ) -> Result<(Counter, Vec<&'static str>), TracingError> {
        self.remove_stale();
        let buffer = Buffer::new(&self.place)?;
        let mut missing = Vec::new();
        for event in events {
            let enable = format!("events/{event}/enable");
            if buffer.directory.join(&enable).exists() {
                buffer.set(&enable, "1")?;
            } else {
                missing.push(*event);
            }
        }
        let own = Path::new("/proc/thread-self");
        let thread = fs::read_link(own).map_err(|source| file(own, source))?;
        let thread = thread.file_name().unwrap_or_default().to_string_lossy().into_owned();
        buffer.set("set_event_pid", &thread)?;
        Ok((Counter { buffer }, missing))
    }

    /// Removes buffers of recorders that were killed: they go on costing every event.
    fn remove_stale(&self) {
        let Ok(entries) = fs::read_dir(self.place.join("instances")) else { return };
        for entry in entries.flatten() {
            let name = entry.file_name();
            let pid = name.to_str().and_then(|name| name.strip_prefix("terrace-calls-"));
            let dead = pid.is_some_and(|pid| {
                pid.parse::<u32>().is_ok() && !Path::new("/proc").join(pid).exists()
            });
            if dead {
                // One that cannot be removed is in use by somebody: not ours to complain about.
                let _ = fs::remove_dir(entry.path());
            }
        }
    }
}

fn file(path: &Path, source: io::Error) -> TracingError {
    TracingError::File { path: path.to_owned(), source }
}

/// Counts what happens in one thread during a part of its work.
pub struct Counter {
    buffer: Buffer,
}

impl Counter {
    /// Does the work, and gives what the kernel wrote about it.
    pub fn during<T>(&self, work: impl FnOnce() -> T) -> Result<(T, String), TracingError> {
        self.buffer.set("trace", "")?;
        let path = self.buffer.directory.join("tracing_on");
        let wrong = |source| file(&path, source);
        // Opened before, so that the opening is not counted.
        let mut switch = OpenOptions::new().write(true).open(&path).map_err(wrong)?;
        switch.write_all(b"1").map_err(wrong)?;
        let done = work();
        switch.write_all(b"0").map_err(wrong)?;
        let trace = self.buffer.directory.join("trace");
        let text = fs::read_to_string(&trace).map_err(|source| file(&trace, source))?;
        Ok((done, text))
    }
}

/// A trace buffer (an instance of tracefs); removed at the end.
struct Buffer {
    directory: PathBuf,
}

impl Buffer {
    fn new(place: &Path) -> Result<Self, TracingError> {
        let directory = place.join(format!("instances/terrace-calls-{}", std::process::id()));
        fs::create_dir(&directory).map_err(|source| file(&directory, source))?;
        let buffer = Self { directory };
        buffer.set("tracing_on", "0")?;
        buffer.set("buffer_size_kb", &BUFFER_KIB.to_string())?;
        // Children are traced, too.
        buffer.set("options/event-fork", "1")?;
        Ok(buffer)
    }

    fn set(&self, name: &str, value: &str) -> Result<(), TracingError> {
        let path = self.directory.join(name);
        fs::write(&path, value).map_err(|source| file(&path, source))
    }

    /// Switches all events on; gives those that are not there.
    fn enable(&self) -> Result<Vec<&'static str>, TracingError> {
        let mut missing = Vec::new();
        for (number, event) in EVENTS.into_iter().enumerate() {
            let enable = format!("events/{event}/enable");
            if number >= NEEDED && !self.directory.join(&enable).exists() {
                missing.push(event);
            } else {
                self.set(&enable, "1")?;
            }
        }
        Ok(missing)
    }

    /// Runs the program, traced; then there is nothing more to read.
    fn run(&self, command: &mut Command) -> Result<ExitStatus, TracingError> {
        let done = self.start(command);
        // A reader that has read nothing yet waits even when tracing is off: it gets a line.
        self.set("tracing_on", "1")?;
        self.set("trace_marker", "end")?;
        self.set("tracing_on", "0")?;
        done
    }

    fn start(&self, command: &mut Command) -> Result<ExitStatus, TracingError> {
        let own = Path::new("/proc/thread-self");
        let thread = fs::read_link(own).map_err(|source| file(own, source))?;
        let thread = thread.file_name().unwrap_or_default().to_string_lossy().into_owned();
        self.set("set_event_pid", &thread)?;
        self.set("tracing_on", "1")?;
        let program = command.get_program().to_string_lossy().into_owned();
        command.status().map_err(|source| TracingError::Program { program, source })
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // Events go with the buffer; it cannot be removed while somebody reads it.
        if let Err(error) = fs::remove_dir(&self.directory) {
            eprintln!("{}: not removed: {error}", self.directory.display());
        }
    }
}
