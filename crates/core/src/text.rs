//! Files that people write: machines, ladders, grids. They are short, whatever a path names.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// More than anybody writes by hand. A device has no end.
const LONGEST: u64 = 16 << 20;

/// Reads a text file as a whole.
pub fn read_text(path: impl AsRef<Path>) -> io::Result<String> {
    read_text_from(File::open(path)?)
}

/// Reads what is there of one as a whole.
pub fn read_text_from(file: impl Read) -> io::Result<String> {
    let mut bytes = Vec::new();
    file.take(LONGEST + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > LONGEST {
        return Err(io::Error::other("is longer than 16 MiB, which no file of this kind is"));
    }
    // What some editors put before a text.
    if bytes.starts_with(b"\xef\xbb\xbf") {
        bytes.drain(..3);
    }
    String::from_utf8(bytes).map_err(|error| {
        let good = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = good.split(|&byte| byte == b'\n').count();
        io::Error::other(format!("line {line}: is not text (UTF-8)"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_text_is_refused_with_its_line() {
        let refused = |bytes: &[u8]| read_text_from(bytes).expect_err("no text").to_string();
        assert_eq!(refused(b"\xff"), "line 1: is not text (UTF-8)");
        assert_eq!(refused(b"\xef\xbb\xbfa\nb\n\xc3(\n\xff"), "line 3: is not text (UTF-8)");
        assert_eq!(read_text_from(&b"a\n"[..]).expect("text"), "a\n");
    }

    #[test]
    fn a_device_without_end_and_what_is_no_text_are_refused() {
        let refused = |path: &str| read_text(path).expect_err("no text").to_string();
        assert!(refused("/dev/zero").contains("longer than"));
        let file = std::env::current_exe().expect("this test");
        assert!(read_text(file).is_err());
        assert!(read_text(file!().rsplit_once("core/").map_or("", |(_, path)| path)).is_ok());
    }
}
