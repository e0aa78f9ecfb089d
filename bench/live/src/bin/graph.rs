//! Graph kernels on real memory, on the Kronecker graphs that the simulator has:
//! `PageRank` as in the GAP benchmark suite, breadth-first search as in Graph500.
//!
//! A graph is made once and read from a file, as GAP does it, so that what is timed
//! is not the making of random numbers.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use terrace_sim::workload::kronecker::Graph;

#[derive(Parser)]
struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Writes a Kronecker graph to a file.
    Make {
        file: PathBuf,
        /// 2 to the power of this: the number of vertices.
        #[arg(long)]
        scale: u32,
    },
    /// Ranks the vertices.
    Pagerank {
        file: PathBuf,
        #[arg(long, default_value_t = 10)]
        iterations: u32,
    },
    /// Searches from several vertices.
    Bfs {
        file: PathBuf,
        #[arg(long, default_value_t = 6)]
        roots: u32,
    },
}

fn main() -> ExitCode {
    let done = match Args::parse().what {
        What::Make { file, scale } => write(&file, &Graph::kronecker(scale, 1)),
        What::Pagerank { file, iterations } => read(&file).map(|g| pagerank(&g, iterations)),
        What::Bfs { file, roots } => read(&file).map(|g| bfs(&g, roots)),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("graph: {e}");
            ExitCode::FAILURE
        }
    }
}

fn write(path: &Path, graph: &Graph) -> io::Result<()> {
    let mut out = BufWriter::with_capacity(1 << 20, File::create(path)?);
    for count in [graph.offsets.len() as u64, graph.targets.len() as u64] {
        out.write_all(&count.to_le_bytes())?;
    }
    for offset in &graph.offsets {
        out.write_all(&offset.to_le_bytes())?;
    }
    for target in &graph.targets {
        out.write_all(&target.to_le_bytes())?;
    }
    out.flush()
}

fn read(path: &Path) -> io::Result<Graph> {
    let mut input = BufReader::with_capacity(1 << 20, File::open(path)?);
    let mut word = [0; 8];
    let mut next = |input: &mut BufReader<File>| -> io::Result<u64> {
        input.read_exact(&mut word)?;
        Ok(u64::from_le_bytes(word))
    };
    let (offsets, targets) = (next(&mut input)?, next(&mut input)?);
    let offsets = (0..offsets).map(|_| next(&mut input)).collect::<io::Result<_>>()?;
    let mut half = [0; 4];
    let targets = (0..targets)
        .map(|_| input.read_exact(&mut half).map(|()| u32::from_le_bytes(half)))
        .collect::<io::Result<_>>()?;
    Ok(Graph { offsets, targets })
}

fn row(graph: &Graph, v: usize) -> &[u32] {
    &graph.targets[graph.offsets[v] as usize..graph.offsets[v + 1] as usize]
}

/// By pulling: each vertex sums what its neighbours pass on.
fn pagerank(graph: &Graph, iterations: u32) {
    const DAMPING: f32 = 0.85;
    let vertices = graph.offsets.len() - 1;
    let mut scores = vec![1.0 / vertices as f32; vertices];
    let mut passed = vec![0.0; vertices];
    for _ in 0..iterations {
        for v in 0..vertices {
            passed[v] = scores[v] / row(graph, v).len().max(1) as f32;
        }
        for (v, score) in scores.iter_mut().enumerate() {
            let sum: f32 = row(graph, v).iter().map(|&w| passed[w as usize]).sum();
            *score = (1.0 - DAMPING) / vertices as f32 + DAMPING * sum;
        }
    }
    let total: f32 = scores.iter().sum();
    let best = (0..vertices).max_by(|&a, &b| scores[a].total_cmp(&scores[b]));
    println!("total {total:e}, best {best:?}");
}

/// Top down, with an array of parents and a queue.
fn bfs(graph: &Graph, roots: u32) {
    const NOBODY: u32 = u32::MAX;
    let vertices = graph.offsets.len() - 1;
    let mut parents = vec![NOBODY; vertices];
    let mut queue = VecDeque::new();
    let mut root = 1usize;
    for _ in 0..roots {
        // Some vertex with neighbours.
        root = (root * 7919 + 1) % vertices;
        while row(graph, root).is_empty() {
            root = (root + 1) % vertices;
        }
        parents.fill(NOBODY);
        parents[root] = root as u32;
        queue.push_back(root as u32);
        let (mut reached, mut sum) = (1u64, 0u64);
        while let Some(v) = queue.pop_front() {
            for &w in row(graph, v as usize) {
                if parents[w as usize] == NOBODY {
                    parents[w as usize] = v;
                    queue.push_back(w);
                    reached += 1;
                    sum = sum.wrapping_mul(31).wrapping_add(u64::from(w));
                }
            }
        }
        println!("from {root}: {reached} reached, {sum:x}");
    }
}
