//! `terrace volume`: persistent memory as a block device that never tears a sector.
//!
//! | file | concept |
//! |---|---|
//! | [`create`], [`grow`] | making volumes, and making them larger |
//! | [`info`], [`mod@check`] | what an image is, and what is wrong with it |
//! | [`dump`] | a volume's content as a plain file |
//! | [`serve`] | a volume as a network block device |

mod check;
mod create;
mod dump;
mod grow;
mod info;
mod serve;

use std::io;
use std::path::Path;
use std::process::ExitCode;

use clap::Subcommand;
use clap::builder::TypedValueParser;
use terrace_core::Bytes;
use terrace_volume::{Durability, Image, VolumeError};

use crate::args::one_of;
use crate::failure::Failure;

/// Keep a block device on persistent memory, whose sectors are never torn.
///
/// An image is a DAX device, a file, or a block device. What survives what depends on
/// it and is told: `dax` and `group-commit` survive a power failure, `process-crash-only`
/// does not.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

/// What is done with a volume.
#[derive(Debug, Subcommand)]
enum What {
    Create(create::Args),
    Info(info::Args),
    Check(check::Args),
    Dump(dump::Args),
    Grow(grow::Args),
    Serve(serve::Args),
}

impl Args {
    pub(crate) fn execute(self, json: bool) -> Result<ExitCode, Failure> {
        match self.what {
            What::Create(args) => args.execute(json),
            What::Info(args) => args.execute(json),
            What::Check(args) => args.execute(json),
            What::Dump(args) => args.execute(json),
            What::Grow(args) => args.execute(json),
            What::Serve(args) => args.execute(json),
        }
    }
}

/// A parser for a durability.
fn durability() -> impl TypedValueParser<Value = Durability> {
    one_of(&Durability::ALL, Durability::name)
}

/// Opens an image that is there.
fn open(path: &Path, writable: bool, wish: Option<Durability>) -> Result<Image, Failure> {
    Image::open(path, writable, wish).map_err(|e| failure(path, &e))
}

/// What an error of a volume means for a command: what was given is wrong, or is damaged; or the
/// machine lacks something; or the work failed.
fn failure(path: &Path, error: &VolumeError) -> Failure {
    let what = format!("{}: {error}", path.display());
    match error {
        VolumeError::NoDurability(_) => Failure::unsupported(what),
        VolumeError::NoSuperblock { .. }
        | VolumeError::ForeignUuid { .. }
        | VolumeError::Truncated { .. }
        | VolumeError::Damaged(_)
        | VolumeError::BadGeometry(_)
        | VolumeError::Exists(_) => Failure::bad_input(what),
        VolumeError::Io { source, .. } => match source.kind() {
            io::ErrorKind::NotFound
            | io::ErrorKind::PermissionDenied
            | io::ErrorKind::AlreadyExists
            | io::ErrorKind::IsADirectory => Failure::bad_input(what),
            _ => Failure::failed(what),
        },
        _ => Failure::failed(what),
    }
}

/// A size that is exact, and readable: `1.00 GiB (1073741824 B)`.
fn exactly(bytes: Bytes) -> String {
    format!("{bytes} ({} B)", bytes.0)
}
