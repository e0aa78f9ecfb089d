//! Figure 4a at its smallest and largest size, to see what a change of costs does.
//!
//! `cargo run --release -p terrace-persist --example kindle_case`

use terrace_core::Bytes;
use terrace_persist::SchemeKind;
use terrace_persist::kindle::{Case, KindleConfig, run};

fn main() {
    for size in [Bytes::mib(64), Bytes::mib(512)] {
        for kind in SchemeKind::ALL {
            let took = run(Case::Sequential(size), kind, &KindleConfig::default());
            println!(
                "{size} {}: {} in all, recovered in {}",
                kind.name(),
                took.time,
                took.recovery
            );
        }
    }
}
