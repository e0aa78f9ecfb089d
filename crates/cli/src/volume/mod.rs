//! `terrace volume`: persistent memory as a block device that never tears a sector.
//!
//! | file | concept |
//! |---|---|
//! | [`create`], [`grow`] | making volumes, and making them larger |
//! | [`info`], [`mod@check`] | what an image is, and what is wrong with it |
//! | [`dump`] | a volume's content as a plain file |
//! | [`serve`] | a volume as a network block device, a file, or a block device |
//! | [`mod@bench`] | what volumes cost |
//! | [`place`] | where what is measured keeps its files |

mod bench;
mod check;
mod create;
mod dump;
mod grow;
mod info;
mod place;
mod serve;

pub(crate) use self::bench::{scaling, spread};
pub(crate) use self::place::Place;

use std::io;
use std::path::Path;
use std::process::ExitCode;

use clap::builder::TypedValueParser;
use terrace_core::Bytes;
use terrace_volume::{Durability, Image, VolumeError};

use crate::args::one_of;
use crate::failure::Failure;
use crate::verbs::verbs;

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

verbs! {
    Create(create),
    Info(info),
    Check(check),
    Dump(dump),
    Grow(grow),
    Serve(serve),
    Bench(bench),
}

impl Args {
    pub(crate) fn execute(self, json: bool) -> Result<ExitCode, Failure> {
        self.what.execute(json)
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
        | VolumeError::Busy
        | VolumeError::Empty
        | VolumeError::Locked
        | VolumeError::ReadOnlyDevice => Failure::bad_input(what),
        VolumeError::Exists(_) | VolumeError::NotBlank(_) => {
            Failure::bad_input(format!("{what}; --replace overwrites it"))
        }
        VolumeError::Io { source, .. } => match source.kind() {
            io::ErrorKind::NotFound
            | io::ErrorKind::PermissionDenied
            | io::ErrorKind::AlreadyExists
            | io::ErrorKind::ReadOnlyFilesystem
            | io::ErrorKind::NotADirectory
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

/// Why `--size` is refused for what is no file.
fn no_size(image: &Path) -> Failure {
    use std::os::unix::fs::FileTypeExt as _;
    let name = image.display();
    match std::fs::metadata(image).map(|there| there.file_type()) {
        Ok(kind) if kind.is_block_device() || kind.is_char_device() => {
            Failure::bad_input(format!("--size: {name} is a device, which has its own size"))
        }
        _ => Failure::bad_input(format!("{name}: an image is a file or a device")),
    }
}
