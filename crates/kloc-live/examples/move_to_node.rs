//! Moves what is cached of a file to a node, by the function by which `terrace kloc` moves it. The daemon
//! asks for a lease first, and leaves a file alone that somebody has open or mapped; this does not ask.
//! With it `tests/guest/tests/kloc_mapped.sh` looks what becomes of pages that other processes map.
//!
//!     move_to_node FILE NODE
//!
//! Says how many pages were cached, and how many of them are on the node now.

use std::fs::File;

use terrace_kloc_live::act::pages::{Left, move_to_node};

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [file, node] = &words[..] else {
        eprintln!("move_to_node FILE NODE");
        std::process::exit(2);
    };
    let node: u32 = node.parse().expect("the number of a node");
    let file = File::open(file).expect("a file");
    let Left { before, left } = move_to_node(&file, node).expect("pages move");
    println!("{before} pages are cached, {left} of them on node {node}");
}
