//! Requests a second of host time, on one thread: random reads and writes over
//! the whole capacity, and streams of row hits, with the queues kept full.
//!
//! `cargo run --release -p terrace-dram --example dram_speed [MEMORY]`

use std::time::Instant;

use terrace_dram::traffic::saturate;
use terrace_dram::{Channel, presets};

/// Name, share of writes in percent, and the address of the n-th request.
type Pattern<'a> = (&'a str, u64, &'a dyn Fn(u64) -> u64);

fn main() {
    let names: Vec<String> = std::env::args().skip(1).collect();
    println!("{:12} {:22} {:>10} {:>10} {:>8}", "memory", "pattern", "M req/s", "GB/s", "ns");
    for (name, _) in presets::BUILTIN {
        if !names.is_empty() && !names.iter().any(|n| n == name) {
            continue;
        }
        let Some(file) = presets::builtin(name) else { continue };
        let capacity = file.channel_capacity().get();
        let burst = file.channel.burst_bytes.value.get();
        // A multiplicative generator: cheap, so that the simulator is what is timed.
        let random = move |i: u64| {
            let x = (i + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            ((x ^ (x >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 8) % capacity
        };
        let patterns: [Pattern; 4] = [
            ("random, 25 % writes", 25, &random),
            ("random reads", 0, &random),
            ("row hits, reads", 0, &|i| i * burst),
            ("row hits, 25 % writes", 25, &|i| i * burst),
        ];
        for (pattern, writes, address) in patterns {
            let mut channel = Channel::new(&file);
            let requests = 4_000_000;
            let start = Instant::now();
            let measured = saturate(&file, &mut channel, requests, writes, address);
            let rate = requests as f64 / start.elapsed().as_secs_f64() / 1e6;
            println!(
                "{name:12} {pattern:22} {rate:>10.1} {:>10.2} {:>8.0}",
                measured.bandwidth.get() / 1e9,
                measured.latency_ns
            );
        }
    }
}
