//! Memory that is written, read from end to end twice, and read at random: what a tier
//! below compressed RAM costs, for pages that compress by half.
//!
//! The program knows nothing of Terrace; the caller decides under what it runs. All that
//! is read is checked. Prints a line for each part.

use std::hint::black_box;
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use terrace_core::Bytes;

const WORDS: usize = 512;

/// Writes memory, walks through it twice, and reads it at random.
#[derive(Parser)]
struct Args {
    /// How much memory.
    size: Bytes,
    /// Reads at random, each of another page.
    reads: u64,
}

/// A word of a page: every other one is random (Stafford's mix), the others are equal.
fn word(page: usize, i: usize) -> u64 {
    if i.is_multiple_of(2) {
        return page as u64;
    }
    let x = ((page * WORDS + i) as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let x = (x ^ x >> 29).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x ^ x >> 32
}

fn part(name: &str, pages: u64, work: impl FnOnce() -> bool) -> bool {
    let start = Instant::now();
    let right = work();
    let took = start.elapsed().as_secs_f64();
    println!("{name:<10} {took:7.2} s {:>9.0} pages/s", pages as f64 / took);
    right
}

fn main() -> ExitCode {
    let args = Args::parse();
    let pages = (args.size.get() / 4096).max(1) as usize;
    let mut memory = vec![0u64; pages * WORDS];
    let walked = pages as u64;

    part("write", walked, || {
        for (page, words) in memory.chunks_exact_mut(WORDS).enumerate() {
            words.iter_mut().enumerate().for_each(|(i, to)| *to = word(page, i));
        }
        true
    });
    let memory = black_box(memory);
    let is_right = |page: usize, i: usize| memory[page * WORDS + i] == word(page, i);
    let walk = || (0..pages).all(|page| (1..WORDS).step_by(8).all(|i| is_right(page, i)));
    let random = || {
        let mut x = 1u64;
        (0..args.reads).all(|_| {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            is_right((x >> 33) as usize % pages, 9)
        })
    };
    let right = part("walk", walked, walk)
        && part("walk", walked, walk)
        && part("random", args.reads, random);
    if right {
        ExitCode::SUCCESS
    } else {
        eprintln!("what was read is not what was written");
        ExitCode::FAILURE
    }
}
