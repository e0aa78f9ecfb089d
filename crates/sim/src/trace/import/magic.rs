//! Files of a known kind, told by their first bytes.

use std::io::{self, Cursor, Read};

/// Bytes that are looked at: the mark of a tar archive comes after 257.
const BYTES: usize = 512;

/// A kind of file: where its mark is, what it is, and what helps.
struct Known {
    offset: usize,
    mark: &'static [u8],
    what: &'static str,
}

const fn known(offset: usize, mark: &'static [u8], what: &'static str) -> Known {
    Known { offset, mark, what }
}

/// Kinds of files in which there may be a trace, or anything else.
const PACKED: [Known; 13] = [
    known(257, b"ustar", "a tar archive: unpack it first (tar -x)"),
    known(0, b"PK\x03\x04", "a zip archive: unpack it first (unzip)"),
    known(0, b"PK\x05\x06", "an empty zip archive"),
    known(0, b"7z\xbc\xaf\x27\x1c", "a 7z archive: unpack it first (7z x)"),
    known(0, b"Rar!\x1a\x07", "a RAR archive: unpack it first"),
    known(0, b"!<arch>\n", "an ar archive"),
    known(0, b"\x1f\x8b", "compressed by gzip: decompress it first (gzip -d)"),
    known(0, b"\x28\xb5\x2f\xfd", "compressed by zstd: decompress it first (zstd -d)"),
    known(0, b"\xfd7zXZ\0", "compressed by xz: decompress it first (xz -d)"),
    known(0, b"BZh", "compressed by bzip2: decompress it first (bzip2 -d)"),
    known(0, b"\x04\x22\x4d\x18", "compressed by lz4: decompress it first (lz4 -d)"),
    known(0, b"LZIP", "compressed by lzip: decompress it first (lzip -d)"),
    known(0, b"\x1f\x9d", "compressed by compress: decompress it first (uncompress)"),
];

/// Other kinds of files that no trace of another tool is.
const OTHER: [Known; 6] = [
    known(0, b"\x7fELF", "a program or library, and no trace"),
    known(0, b"PERFILE2", "perf's own file: print it first (perf script -F +addr)"),
    known(0, b"TERRTRC\0", "a trace of Terrace: its format is called terrace"),
    known(0, b"SQLite format 3\0", "a database, and no trace"),
    known(0, b"PAR1", "a Parquet file, and no trace"),
    known(0, b"\x89PNG", "a picture, and no trace"),
];

fn find(begin: &[u8], among: &[Known]) -> Option<&'static str> {
    let fits =
        |known: &&Known| begin.get(known.offset..).is_some_and(|b| b.starts_with(known.mark));
    among.iter().find(fits).map(|known| known.what)
}

/// What a file that begins with these bytes is, if it is an archive or compressed, and how it is
/// unpacked: `compressed by gzip: decompress it first (gzip -d)`.
pub fn packed(begin: &[u8]) -> Option<&'static str> {
    find(begin, &PACKED)
}

/// What a file that begins with these bytes is.
fn kind(begin: &[u8]) -> Option<&'static str> {
    packed(begin).or_else(|| find(begin, &OTHER))
}

/// What was looked at, and the rest.
pub(super) type Whole<R> = io::Chain<Cursor<Vec<u8>>, R>;

/// Looks at the first bytes of what is read; returns the whole again, or what
/// it is where it is no trace.
pub(super) fn checked<R: Read>(mut from: R) -> io::Result<Result<Whole<R>, &'static str>> {
    let mut begin = Vec::with_capacity(BYTES);
    from.by_ref().take(BYTES as u64).read_to_end(&mut begin)?;
    Ok(match kind(&begin) {
        Some(what) => Err(what),
        None => Ok(Cursor::new(begin).chain(from)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn archives_and_compressors_are_named_and_everything_else_is_read_whole() {
        let what = |bytes: &[u8]| checked(bytes).expect("memory").err().unwrap_or_default();
        let mut tar = vec![b'x'; 512];
        tar[257..262].copy_from_slice(b"ustar");
        assert!(what(&tar).contains("tar archive"));
        assert!(what(b"PK\x03\x04rest").contains("zip archive"));
        assert!(what(b"BZh91AY").contains("bzip2"));
        for text in [&b""[..], b"I  0,4\n", &[7; 2000]] {
            let mut back = Vec::new();
            let mut whole = checked(text).expect("memory").expect("of no known kind");
            whole.read_to_end(&mut back).expect("memory");
            assert_eq!(back, text);
        }
    }
}
