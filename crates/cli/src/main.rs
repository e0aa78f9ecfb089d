//! The `terrace` command: one file per verb, and what they share.
//!
//! | file | concept |
//! |---|---|
//! | [`advice`] | what goes wrong with a run, and the command that helps |
//! | [`args`] | the command line as data; help, man pages and completions come from it |
//! | [`effects`] | options that would do nothing are refused |
//! | [`failure`] | errors: one line on stderr, and the exit code |
//! | [`mode`] | whether `govern` and `kloc run` act, or only say what they would do |
//! | [`output`] | what the commands write: documents, tables, streams, files |
//! | [`procs`] | what `/proc` says of processes |
//! | [`cgroups`] | how options name control groups, and which ones this process is in |
//! | [`progress`] | what long work shows on a terminal |
//! | [`stack`] | room for what a command calls |
//! | [`records`] | the file of decisions that `--record` writes and `why` reads |
//! | [`observing`] | what shows a run: options that `run` and `attach` share |
//! | [`run`] | run a program in less memory |
//! | [`set`], [`broker`] | budgets that change, and that are shared |
//! | [`residency`] | where a program's memory is, seen from outside |
//! | [`runs`] | the runs that are under way |
//! | [`attach`] | tiers for programs that run already |
//! | [`freeze`] | sandboxes that idle |
//! | [`kernel`] | the kernel engine, of `run` and `attach` |
//! | [`govern`] | take memory from a group as far as its slowdown allows |
//! | [`kloc`] | kernel objects by file, on the kernel that runs |
//! | [`record`] | record a program's memory accesses |
//! | [`convert`] | traces from one format to another |
//! | [`sim`], [`compare`], [`reproduce`] | simulated machines |
//! | [`sweep`] | parameter grids |
//! | [`validate`] | ours beside references |
//! | [`mod@verbs`] | verbs that have verbs of their own |
//! | [`plan`] | how much fast memory a program needs |
//! | [`profile`] | what huge pages bring where |
//! | [`provision`] | slow memory that grows and shrinks with demand |
//! | [`top`] | running programs, again and again |
//! | [`report`] | a recorded run as one page |
//! | [`replay`] | what another policy would have done |
//! | [`metrics`] | figures of running programs for Prometheus |
//! | [`crash`] | the power fails everywhere |
//! | [`volume`] | block devices on persistent memory |
//! | [`calibrate`] | what the mechanisms cost on this machine |
//! | [`doctor`] | what this machine supports |
//! | [`clean`] | undo what runs that were killed have left |
//! | [`why`] | explain recorded decisions |
//! | [`core_dump`] | complete core dumps |
//! | [`check`] | validate a file of ours |
//! | [`completions`], [`man`] | generated from [`args`] |

#![forbid(unsafe_code)]
// They panic where a stream is full or its reader has gone; `output` has functions that do not.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod advice;
mod args;
mod attach;
mod broker;
mod calibrate;
mod cgroups;
mod check;
mod clean;
mod compare;
mod completions;
mod convert;
mod core_dump;
mod crash;
mod doctor;
mod effects;
mod failure;
mod freeze;
mod govern;
mod kernel;
mod kloc;
mod man;
mod metrics;
mod mode;
mod observing;
mod output;
mod plan;
mod procs;
mod profile;
mod progress;
mod provision;
mod record;
mod records;
mod replay;
mod report;
mod reproduce;
mod residency;
mod run;
mod runs;
mod set;
mod sim;
mod stack;
mod sweep;
mod top;
mod validate;
mod verbs;
mod volume;
mod why;

use std::process::ExitCode;

use crate::failure::Failure;

fn main() -> ExitCode {
    terrace_signals::await_children();
    terrace_live::sys::limits::share_one_heap_if_limited();
    output::outlive_limits();
    stack::with_enough(work).unwrap_or_else(Failure::report)
}

/// What the command line asks for. Apart from `main`, whose stack may be small.
#[inline(never)]
fn work() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().collect();
    let outcome = match args::parse(&arguments) {
        Ok(cli) => cli.and_then(args::Cli::execute),
        Err(error) => args::explain(&error, &arguments),
    };
    match outcome {
        Ok(code) => code,
        Err(failure) => failure.report(),
    }
}
