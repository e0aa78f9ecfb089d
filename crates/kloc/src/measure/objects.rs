//! What calls allocate and free, by tracepoints of this thread in a trace buffer of its own.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::{CALLS, MeasureError, Measured};
use crate::tracing::{Counter, Tracefs};

/// Bytes of a read, a write, a message.
const BLOCK: usize = 4096;

/// Events that are counted.
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

type Counts = BTreeMap<String, f64>;

/// Counts events of a part of the work.
struct Objects<'a> {
    counter: Counter,
    measured: &'a mut Measured,
}

impl Objects<'_> {
    fn count(
        &self,
        name: &'static str,
        work: impl FnOnce() -> io::Result<()>,
    ) -> Result<Counts, MeasureError> {
        let (worked, text) = self.counter.during(work)?;
        worked.map_err(|error| MeasureError::Call(name, error))?;
        counts(&text).ok_or(MeasureError::Lost(name))
    }

    /// Counts a call that is made [`CALLS`] times. What an empty run counts is taken off.
    fn call(
        &mut self,
        name: &'static str,
        mut work: impl FnMut(usize) -> io::Result<()>,
    ) -> Result<(), MeasureError> {
        let empty = self.count(name, || Ok(()))?;
        let mut counts = self.count(name, || (0..CALLS).try_for_each(&mut work))?;
        for (what, count) in &mut counts {
            let most = *count - empty.get(what).copied().unwrap_or(0.0);
            *count = most / CALLS as f64;
        }
        counts.retain(|_, count| *count >= 0.005);
        self.measured.objects.insert(name, counts);
        Ok(())
    }
}

/// Events of a trace's text; nothing if some were lost.
fn counts(text: &str) -> Option<Counts> {
    let mut counts = Counts::new();
    for line in text.lines() {
        if line.contains("LOST") {
            return None;
        }
        if line.starts_with('#') {
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
    Some(counts)
}

pub(super) fn measure(
    tracefs: &Tracefs,
    directory: &Path,
    measured: &mut Measured,
) -> Result<(), MeasureError> {
    let (counter, missing) = tracefs.counter(&EVENTS)?;
    measured.missing = missing;
    let mut objects = Objects { counter, measured };
    files(&mut objects, directory)?;
    sockets(&mut objects)
}

fn files(objects: &mut Objects<'_>, directory: &Path) -> Result<(), MeasureError> {
    let path = |number: usize| directory.join(format!("file-{number}"));
    let other = |number: usize| directory.join(format!("other-{number}"));
    let block = vec![7u8; BLOCK];
    let mut buffer = vec![0u8; BLOCK];
    // Room for all of them, so that no run allocates memory of its own.
    let mut open: Vec<Option<File>> = Vec::with_capacity(CALLS);
    open.resize_with(CALLS, || None);
    let mut options = OpenOptions::new();
    options.read(true).write(true).create_new(true);

    objects.call("create", |n| options.open(path(n)).map(|file| open[n] = Some(file)))?;
    let first: io::Result<Vec<File>> = open.iter().flatten().map(File::try_clone).collect();
    let first = first.map_err(|error| MeasureError::Call("create", error))?;
    let offset = |n: usize| (n * BLOCK) as u64;
    objects.call("write-first-page", |n| first[n].write_all_at(&block, 0))?;
    let long_path = directory.join("long");
    let wrong = |error| MeasureError::Call("write-next-page", error);
    let long = options.open(&long_path).map_err(wrong)?;
    objects.call("write-next-page", |n| long.write_all_at(&block, offset(n)))?;
    objects.call("write-in-place", |n| long.write_all_at(&block, offset(n)))?;
    objects.call("read-in-cache", |n| long.read_exact_at(&mut buffer, offset(n)))?;
    fs::remove_file(&long_path).map_err(wrong)?;
    drop(long);
    objects.call("fsync-one-page", |n| first[n].sync_all())?;
    objects.call("stat", |n| fs::metadata(path(n)).map(drop))?;
    objects.call("rename", |n| fs::rename(path(n), other(n)))?;
    objects.call("readdir", |_| fs::read_dir(directory)?.try_for_each(|entry| entry.map(drop)))?;
    drop(first);
    objects.call("close", |n| {
        open[n] = None;
        Ok(())
    })?;
    objects.call("open", |n| File::open(other(n)).map(|file| open[n] = Some(file)))?;
    open.clear();
    objects.call("unlink-one-page", |n| fs::remove_file(other(n)))
}

fn sockets(objects: &mut Objects<'_>) -> Result<(), MeasureError> {
    let wrong = |error| MeasureError::Call("connect", error);
    let listener = TcpListener::bind("127.0.0.1:0").map_err(wrong)?;
    let address = listener.local_addr().map_err(wrong)?;
    let message = vec![7u8; BLOCK];
    let mut buffer = vec![0u8; BLOCK];
    let (mut clients, mut servers) = (Vec::with_capacity(CALLS), Vec::with_capacity(CALLS));
    objects.call("connect", |_| TcpStream::connect(address).map(|s| clients.push(s)))?;
    objects.call("accept", |_| listener.accept().map(|(s, _)| servers.push(s)))?;
    objects.call("send", |n| clients[n].write_all(&message))?;
    objects.call("recv", |n| servers[n].read_exact(&mut buffer))?;
    objects.call("close-socket", |_| {
        clients.pop();
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_of_slabs_are_counted_by_cache_and_lost_ones_are_told() {
        let text = "# tracer: nop\n\
            x-1 [000] .....  1.0: kmem_cache_alloc: call_site=a ptr=1 name=dentry bytes_req=192\n\
            x-1 [000] .....  1.0: kmem_cache_alloc: call_site=a ptr=2 name=dentry bytes_req=192\n\
            x-1 [000] .....  1.0: block_bio_queue: 254,0 R 1 + 8 [x]\n";
        let known = counts(text).expect("none is lost");
        assert_eq!(known["kmem_cache_alloc.dentry"].to_bits(), 2f64.to_bits());
        assert_eq!(known["block_bio_queue"].to_bits(), 1f64.to_bits());
        assert_eq!(counts("CPU:0 [LOST 12 EVENTS]\n"), None);
    }
}
