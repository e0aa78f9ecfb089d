//! A text, line by line, whatever bytes are in it.

use std::borrow::Cow;
use std::io::{self, BufRead, BufReader, Read};

/// The longest line that is kept whole: no format has longer ones.
const LONGEST: usize = 1 << 16;
/// A longer line makes that it is no text: programs print much, but not that without a line feed.
/// What has no end, `/dev/zero`, would be read for ever.
const ENDLESS: usize = 64 << 20;

/// What some editors put before a text.
pub(super) const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// A line.
pub(super) enum Line<'a> {
    /// Without its end. What is not UTF-8 is replaced by marks.
    Whole(Cow<'a, str>),
    /// Longer than any line of any format.
    Long,
}

/// Reads lines.
pub(super) struct Lines<R> {
    from: BufReader<R>,
    bytes: Vec<u8>,
    number: u64,
}

impl<R: Read> Lines<R> {
    pub(super) fn new(from: R) -> Self {
        Self { from: BufReader::with_capacity(1 << 16, from), bytes: Vec::new(), number: 0 }
    }

    /// The number of the line that was read last, from 1.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// The next line; nothing at the end.
    ///
    /// # Errors
    /// Of reading, or that it has no lines.
    pub(super) fn next(&mut self) -> io::Result<Option<Line<'_>>> {
        self.bytes.clear();
        let (mut long, mut length) = (false, 0);
        loop {
            let part = match self.from.fill_buf() {
                Ok(part) => part,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(e),
            };
            if part.is_empty() {
                if self.bytes.is_empty() && !long {
                    return Ok(None);
                }
                break;
            }
            let end = part.iter().position(|&byte| byte == b'\n');
            let taken = end.unwrap_or(part.len());
            length += taken;
            if length > ENDLESS {
                let what = format!(
                    "line {} has no end within {} MiB: this is no text",
                    self.number + 1,
                    ENDLESS >> 20
                );
                return Err(io::Error::new(io::ErrorKind::InvalidData, what));
            }
            long |= length > LONGEST;
            if !long {
                self.bytes.extend_from_slice(&part[..taken]);
            }
            self.from.consume(end.map_or(taken, |end| end + 1));
            if end.is_some() {
                break;
            }
        }
        self.number += 1;
        if long {
            return Ok(Some(Line::Long));
        }
        let text = self.bytes.strip_suffix(b"\r").unwrap_or(&self.bytes);
        let mark: &[u8] = if self.number == 1 { BYTE_ORDER_MARK } else { b"" };
        let text = text.strip_prefix(mark).unwrap_or(text);
        Ok(Some(Line::Whole(String::from_utf8_lossy(text))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_whole_with_their_numbers_whatever_is_in_them() {
        let mut text = b"\xef\xbb\xbfone\r\n\n\xff\xfe\n".to_vec();
        text.extend(vec![b'x'; LONGEST + 1]);
        text.extend(b"\nlast");
        let mut lines = Lines::new(text.as_slice());
        let mut found = Vec::new();
        while let Some(line) = lines.next().expect("memory") {
            let text = match line {
                Line::Whole(text) => text.into_owned(),
                Line::Long => "long".to_owned(),
            };
            found.push((lines.number(), text));
        }
        let expected = [(1, "one"), (2, ""), (3, "\u{fffd}\u{fffd}"), (4, "long"), (5, "last")];
        let expected = expected.map(|(number, text)| (number, text.to_owned()));
        assert_eq!(found, expected);
    }

    #[test]
    fn what_has_no_lines_is_refused_before_long() {
        let mut lines = Lines::new(b"one\n".chain(io::repeat(0)));
        assert!(matches!(lines.next(), Ok(Some(Line::Whole(_)))));
        let error = lines.next().err().expect("it has no end").to_string();
        assert_eq!(error, "line 2 has no end within 64 MiB: this is no text");
    }
}
