//! Records a perf event's ring as the kernel wrote it: page faults of this
//! program, so that any machine can do it. The file is what the fuzz target
//! `perf_ring` reads: positions, fields, words, all little-endian.
//!
//!     cargo run -p terrace-sampler --example record_ring -- page-faults.ring

use std::io::{Error, ErrorKind};

use terrace_core::SampleSource;
use terrace_sampler::perf::event::EventSpec;
use terrace_sampler::perf::ring::{Scope, Source};

/// Pages touched before and after the reader has freed the ring's first part.
const BEFORE: usize = 70;
const AFTER: usize = 40;

fn main() -> Result<(), Error> {
    let path = std::env::args()
        .nth(1)
        .ok_or_else(|| Error::new(ErrorKind::InvalidInput, "usage: record_ring FILE"))?;
    let events = [EventSpec::page_faults(SampleSource::HintFault)];
    // One page of ring, so that the records wrap around its end.
    let source = Source::open(&events, Scope::Thread(std::process::id()), 1)?;
    let mut memory = vec![0u8; (BEFORE + AFTER + 2) << 12];
    source.enable()?;
    let mut touch = |pages: std::ops::Range<usize>| {
        for page in pages {
            memory[(page + 1) << 12] = 1;
        }
    };
    touch(0..BEFORE);
    source.drain(|_| {});
    touch(BEFORE..BEFORE + AFTER);
    let (tail, head, fields, words) = source.image();
    let bytes: Vec<u8> =
        [tail, head, fields].into_iter().chain(words).flat_map(u64::to_le_bytes).collect();
    std::fs::write(&path, bytes)?;
    println!("{path}: {} bytes unread, from {tail} to {head}", head - tail);
    Ok(())
}
