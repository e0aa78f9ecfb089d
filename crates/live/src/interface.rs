//! By what the command and the library see that they belong together.
//!
//! The library runs in the program, and shares files with the command. Of a library of another version
//! the command could not read what it writes, and would report that nothing was managed. So `terrace`
//! looks at the library's [`MARK`] before it starts a program, the library at the [`FINGERPRINT`] in
//! what it is told, and each file has that, too: a program may execute another one later, when either
//! has been replaced.

use crate::broker::page as broker;
use crate::decide::event_ring::{DecisionRing, EventRing};
use crate::evict::quiet_window::QuietPage;
use crate::stats::process_page::{self, COUNTER_NAMES, ProcessPage};

/// This version.
pub const RELEASE: &str = env!("CARGO_PKG_VERSION");

/// A number that is another one where the two could misunderstand each other: of another version, or
/// where anything that they share has another layout.
pub const FINGERPRINT: u64 = {
    let numbers = [
        process_page::VERSION as u64,
        size_of::<ProcessPage>() as u64,
        broker::VERSION as u64,
        size_of::<broker::BrokerPage>() as u64,
        size_of::<EventRing>() as u64,
        size_of::<DecisionRing>() as u64,
        size_of::<QuietPage>() as u64,
    ];
    // FNV-1a.
    let mut hash = add(0xcbf2_9ce4_8422_2325, RELEASE.as_bytes());
    let mut i = 0;
    while i < numbers.len() {
        hash = add(hash, &numbers[i].to_le_bytes());
        i += 1;
    }
    i = 0;
    while i < COUNTER_NAMES.len() {
        hash = add(hash, COUNTER_NAMES[i].as_bytes());
        i += 1;
    }
    hash
};

const fn add(mut hash: u64, bytes: &[u8]) -> u64 {
    let mut i = 0;
    while i < bytes.len() {
        hash = (hash ^ bytes[i] as u64).wrapping_mul(0x100_0000_01b3);
        i += 1;
    }
    hash
}

/// Bytes of a mark.
pub const MARK_LENGTH: usize = 32;
/// Where in it the version begins.
const TEXT: usize = 8;

/// What the library says of itself in the symbol `TERRACE_PRELOADED`: the fingerprint, and the version
/// with zeros behind it.
pub const MARK: [u8; MARK_LENGTH] = {
    let mut mark = [0; MARK_LENGTH];
    let (number, text) = (FINGERPRINT.to_le_bytes(), RELEASE.as_bytes());
    let mut i = 0;
    while i < TEXT {
        mark[i] = number[i];
        i += 1;
    }
    i = 0;
    while i < text.len() && TEXT + i < MARK_LENGTH {
        mark[TEXT + i] = text[i];
        i += 1;
    }
    mark
};

/// Which version a library is of, by its mark; `None` of one from before there were marks.
pub fn release_of(mark: &[u8]) -> Option<&str> {
    let text = mark.get(TEXT..MARK_LENGTH).filter(|_| mark.len() == MARK_LENGTH)?;
    let end = text.iter().position(|&byte| byte == 0).unwrap_or(text.len());
    let text = str::from_utf8(&text[..end]).ok()?;
    (!text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic())).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_says_of_which_version_it_is() {
        assert_eq!(release_of(&MARK), Some(RELEASE));
        assert_eq!(MARK[..TEXT], FINGERPRINT.to_le_bytes());
        let mut other = MARK;
        other[TEXT..TEXT + 6].copy_from_slice(b"9.8.7\0");
        assert_eq!(release_of(&other), Some("9.8.7"));
        other[TEXT] = b'\n';
        assert_eq!(release_of(&other), None, "it is shown");
        assert_eq!(release_of(&[1]), None);
        assert_ne!(add(FINGERPRINT, b"a"), add(FINGERPRINT, b"b"));
    }
}
