//! `terrace volume dump`.

use std::fs;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::ExitCode;

use serde::Serialize;
use terrace_core::Bytes;
use terrace_volume::device::overlap;
use terrace_volume::{Mount, Volume, VolumeError};

use crate::failure::Failure;
use crate::output::{self, Files, Kind};

use super::{failure, open};

/// Bytes that are read at a time.
const CHUNK: u64 = 1 << 20;

/// Write a volume's content to a plain file.
///
/// The image is only read, so a damaged one can be dumped, too.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: terrace volume dump disk.vol disk.img")]
pub(crate) struct Args {
    /// The image.
    image: PathBuf,

    /// Where the content goes; `-` is standard output.
    output: PathBuf,

    /// Write zeros for sectors that cannot be read, and say how many there were.
    #[arg(long)]
    partial: bool,
}

/// What was written, as a document.
#[derive(Serialize)]
struct Dumped {
    image: PathBuf,
    output: PathBuf,
    bytes: Bytes,
    unreadable: u64,
    durability: &'static str,
}

impl Args {
    pub(crate) fn execute(self, json: bool) -> Result<ExitCode, Failure> {
        let mut files = Files::new();
        files.reads("IMAGE", &self.image);
        let wrong = |e| failure(&self.image, &e);
        let image = open(&self.image, false, None)?;
        let durability = image.durability.name();
        let how = Mount { read_only: true, lanes: None };
        let volume = Volume::mount(image.medium, how).map_err(wrong)?;
        self.refuse_same()?;
        let mut out = files.writes("OUTPUT", &self.output, Kind::Whole)?;
        output::remove_when_interrupted();
        let size = u64::from(volume.sector_size().bytes());
        let mut buffer = vec![0; CHUNK as usize];
        let (mut lba, mut unreadable) = (0, 0);
        while lba < volume.sectors() {
            let count = (CHUNK / size).min(volume.sectors() - lba);
            let bytes = &mut buffer[..(count * size) as usize];
            if let Err(e) = volume.read(lba, bytes) {
                if !self.partial || !is_unreadable(&e) {
                    let more = if self.partial { "" } else { " (--partial writes zeros for it)" };
                    return Err(Failure::failed(format!("{}: {e}{more}", self.image.display())));
                }
                for (lba, sector) in (lba..).zip(bytes.chunks_exact_mut(size as usize)) {
                    match volume.read(lba, sector) {
                        Ok(()) => {}
                        Err(e) if is_unreadable(&e) => {
                            sector.fill(0);
                            unreadable += 1;
                        }
                        Err(e) => return Err(wrong(e)),
                    }
                }
            }
            out.write_all(bytes).map_err(|e| out.failure(&e))?;
            lba += count;
        }
        out.flush().map_err(|e| out.failure(&e))?;
        out.complete()?;
        if unreadable > 0 {
            let count = output::count(unreadable);
            output::warn(format_args!("{count} sectors could not be read; they are zeros"));
        }
        let is_stream = self.output.as_os_str() == "-";
        if json {
            let bytes = volume.capacity();
            let (image, output) = (self.image, self.output);
            let dumped = Dumped { image, output, bytes, unreadable, durability };
            let text = output::json("terrace.volume.dump", &dumped)?;
            // The content itself goes to stdout.
            if is_stream {
                output::show(&text);
            } else {
                output::print(&text)?;
            }
        } else if !is_stream {
            output::say(format_args!("{} written (durability: {durability})", volume.capacity()));
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Refuses an output that is the image by another name: standard output, the same device, or the
    /// file behind it.
    fn refuse_same(&self) -> Result<(), Failure> {
        let image = fs::metadata(&self.image)
            .map_err(|e| Failure::bad_input(format!("{}: {e}", self.image.display())))?;
        // What is not there is nothing that can be overwritten; a stream that is closed is an error
        // of who writes to it.
        let output = if self.output.as_os_str() == "-" {
            io::stdout().as_fd().try_clone_to_owned().and_then(|fd| fs::File::from(fd).metadata())
        } else {
            fs::metadata(&self.output)
        };
        let Ok(output) = output else { return Ok(()) };
        if overlap(&image, &output) {
            return Err(Failure::bad_input(format!(
                "OUTPUT and IMAGE are the same: {} would be overwritten",
                self.image.display()
            )));
        }
        Ok(())
    }
}

/// Whether it is a sector that cannot be read, and others can.
fn is_unreadable(error: &VolumeError) -> bool {
    matches!(error, VolumeError::Lost(_) | VolumeError::Unreadable { .. })
}
