//! `terrace reproduce`: published results, ours beside theirs.

use core::fmt;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Subcommand;
use serde::Serialize;
use terrace_core::Bytes;
use terrace_economics::Mode;
use terrace_sim::reproduce::{HememConfig, HememTable, hemem};
use terrace_sim::trace::{Format, import};

use crate::args::economist;
use crate::failure::Failure;
use crate::output;
use crate::progress::Progress;

mod cbmm;
mod dapper;
mod kindle;
mod klocs;

use self::cbmm::CbmmArgs;
use self::dapper::DapperArgs;
use self::kindle::KindleArgs;
use self::klocs::KlocsArgs;

/// Reproduce a published result: in simulation, or on this machine.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    result: Published,
}

/// What can be reproduced.
#[derive(Debug, Subcommand)]
enum Published {
    Hemem(HememArgs),
    Kindle(KindleArgs),
    Dapper(DapperArgs),
    Klocs(KlocsArgs),
    Cbmm(CbmmArgs),
}

/// HeMem's first figure: GUPS against the size of the hot set, at full scale.
///
/// Each claim of the paper is printed with its criterion and what was
/// measured. The exit code is 0 also where a claim does not hold: that is a
/// result, not a failure.
#[derive(Debug, clap::Args)]
struct HememArgs {
    /// Sizes of the hot set instead of the paper's.
    #[arg(long, value_name = "SIZES", value_delimiter = ',')]
    hot: Vec<Bytes>,

    /// What the economist does; the paper has none, so by default it only looks on.
    #[arg(long, value_name = "MODE", default_value = "shadow", value_parser = economist())]
    economist: Mode,

    /// Real accesses that each simulated access stands for, a power of two;
    /// chosen for accuracy and speed if it is not given.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    scale: Option<u32>,

    /// Where all randomness comes from.
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,
}

#[derive(Serialize)]
struct Document {
    paper: &'static str,
    table: HememTable,
}

impl Args {
    pub(crate) fn execute(self, json: bool) -> Result<ExitCode, Failure> {
        match self.result {
            Published::Hemem(args) => args.execute(json),
            Published::Kindle(args) => args.execute(json),
            Published::Dapper(args) => args.execute(json),
            Published::Klocs(args) => args.execute(json),
            Published::Cbmm(args) => args.execute(json),
        }
    }
}

impl HememArgs {
    fn execute(self, json: bool) -> Result<ExitCode, Failure> {
        let mut config =
            HememConfig { economist: self.economist, seed: self.seed, ..HememConfig::default() };
        if let Some(scale) = self.scale {
            (config.scale, config.scale_unsampled) = (scale, scale);
        }
        if !self.hot.is_empty() {
            // Claims speak of the smallest and the largest: in order.
            config.hot_sets = self.hot;
            config.hot_sets.sort();
            config.hot_sets.dedup();
        }
        let progress = Progress::new();
        let bar = progress.bar("reproduce hemem");
        let table = hemem(&config, &|progress| {
            let done = progress.done as f64 / progress.total as f64;
            bar.set(done, format!("{}/{}", progress.done, progress.total));
        })
        .map_err(Failure::bad_input)?;
        bar.finish();
        let text = if json {
            let paper = "HeMem, SOSP 2021";
            output::json("terrace.reproduce", &Document { paper, table })?
        } else {
            table.to_string()
        };
        output::print(&text)?;
        Ok(ExitCode::SUCCESS)
    }
}

/// `--trace NAME=FILE`, taken apart.
fn named(text: &str) -> Result<(String, PathBuf), Failure> {
    let (name, path) = text
        .split_once('=')
        .filter(|(name, _)| !name.is_empty())
        .ok_or_else(|| bad_trace(format_args!("`{text}` is not of the form NAME=FILE")))?;
    Ok((name.to_owned(), PathBuf::from(path)))
}

/// `--trace NAME=FILE`: a recording of accesses, which can be read.
fn recording(text: &str) -> Result<(String, PathBuf), Failure> {
    let (name, path) = named(text)?;
    import::open(&path, Format::of(&path)).map_err(bad_trace)?;
    Ok((name, path))
}

/// What is wrong with `--trace`.
fn bad_trace(why: impl fmt::Display) -> Failure {
    Failure::bad_input(format!("--trace: {why}"))
}
