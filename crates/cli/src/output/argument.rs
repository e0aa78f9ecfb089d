//! What an argument of a program may name as a file.
//!
//! Only the program knows that. So both looks find rather too much: the files that parts of the
//! argument name, also as a shell reads it; and the name of a file that is to be replaced, wherever
//! it stands in the argument.

use std::collections::BTreeSet;

/// The longest path (`PATH_MAX`, with its end).
const PATH: usize = 4095;
/// As many bytes as braces of one argument are expanded to.
const EXPANDED: usize = 1 << 16;

/// An argument of a program.
#[derive(Debug)]
pub(super) struct Argument {
    /// The argument as it stands, without its quotes, and each of its words as a shell reads it.
    forms: BTreeSet<Vec<u8>>,
}

impl Argument {
    pub(super) fn new(text: &[u8]) -> Self {
        let unquoted = text.iter().copied().filter(|byte| !b"'\"\\".contains(byte)).collect();
        let mut forms = BTreeSet::from([text.to_vec(), unquoted]);
        let mut room = EXPANDED;
        for word in words(text) {
            if word.len() <= PATH && word.contains(&b'{') {
                expand(&word, &mut room, &mut forms);
            }
            forms.insert(word);
        }
        Self { forms }
    }

    /// What of it may be the path of a file.
    pub(super) fn paths(&self) -> BTreeSet<&[u8]> {
        self.forms.iter().flat_map(|form| names_in(form)).collect()
    }

    /// Whether the name of a file stands anywhere in it, alone or behind directories.
    pub(super) fn mentions(&self, name: &[u8]) -> bool {
        let stands_in = |form: &Vec<u8>| {
            let mut places = form.windows(name.len()).enumerate().filter(|(_, part)| *part == name);
            places.any(|(at, _)| {
                let goes_on = form.get(at + name.len()).is_some_and(|byte| is_part(*byte));
                begins_behind(&form[..at], name) && !goes_on
            })
        };
        !name.is_empty() && self.forms.iter().any(stands_in)
    }
}

/// Whether a name goes on with this byte.
fn is_part(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || !byte.is_ascii() || b"_-.+~".contains(&byte)
}

/// Whether a name can begin behind this.
fn begins_behind(before: &[u8], name: &[u8]) -> bool {
    match before {
        // As in the string `\tFILE`.
        [] | [.., b'\\', _] => true,
        [.., last] if !is_part(*last) => true,
        // As in `-iFILE`. Letters of options stand together as well (`-lx`): one letter is no name.
        [b'-', _] => name.len() > 1,
        [.., other, b'-', _] => name.len() > 1 && !is_part(*other),
        _ => false,
    }
}

/// What of a text may name a file: all of it, and what is left of it behind what programs put
/// before one (`if=FILE`, `--input=FILE`, `@FILE`, `-iFILE`). There may be others beside it
/// (`a.txt,b.txt`, and the commands of a shell).
fn names_in(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    let separates = |byte: &u8| byte.is_ascii_whitespace() || b"=,:;@'\"<>()|&`{}[]".contains(byte);
    let starts = text.iter().enumerate().filter(move |(_, byte)| separates(byte));
    let starts = std::iter::once(0).chain(starts.map(|(at, _)| at + 1));
    let parts = starts.flat_map(move |start| {
        let rest = &text[start..];
        let end = rest.iter().position(separates).unwrap_or(rest.len());
        let part = &rest[..end];
        // A letter of an option, with its value behind it.
        let values =
            [rest, part].map(|name| name.strip_prefix(b"-").and_then(|option| option.get(1..)));
        [Some(rest), Some(part), values[0], values[1]]
    });
    parts.flatten().filter(|name| !name.is_empty() && name.len() <= PATH)
}

/// The words of a text as a shell reads it: without quotes and backslashes, and what these protect
/// separates nothing.
fn words(text: &[u8]) -> Vec<Vec<u8>> {
    let separates = |byte: u8| byte.is_ascii_whitespace() || b";|&<>()`".contains(&byte);
    let (mut words, mut word, mut quote) = (Vec::new(), Vec::new(), None);
    let mut bytes = text.iter().copied();
    while let Some(byte) = bytes.next() {
        match (byte, quote) {
            (b'\\', None | Some(b'"')) => word.extend(bytes.next()),
            (b'\'' | b'"', None) => quote = Some(byte),
            (_, Some(open)) if byte == open => quote = None,
            (_, None) if separates(byte) => words.push(std::mem::take(&mut word)),
            _ => word.push(byte),
        }
    }
    words.push(word);
    words
}

/// Adds what the braces of a word stand for, as far as there is room for that.
fn expand(word: &[u8], room: &mut usize, into: &mut BTreeSet<Vec<u8>>) {
    let Some((before, alternatives, behind)) = braces(word) else {
        into.insert(word.to_vec());
        return;
    };
    for alternative in alternatives {
        let one = [before, &alternative, behind].concat();
        let Some(left) = room.checked_sub(one.len()) else { return };
        *room = left;
        expand(&one, room, into);
    }
}

/// Braces of a word: what stands before them, what they stand for, and what stands behind them.
type Braces<'a> = (&'a [u8], Vec<Vec<u8>>, &'a [u8]);

/// The first braces of a word that a shell expands (`{a,b}`, `{1..3}`).
fn braces(word: &[u8]) -> Option<Braces<'_>> {
    let opens = word.iter().enumerate().filter(|(_, byte)| **byte == b'{');
    for (open, _) in opens {
        let (mut depth, mut begin, mut parts) = (0_usize, open + 1, Vec::new());
        for (at, byte) in word.iter().enumerate().skip(open + 1) {
            match byte {
                b'{' => depth += 1,
                b'}' if depth > 0 => depth -= 1,
                b',' if depth == 0 => {
                    parts.push(word[begin..at].to_vec());
                    begin = at + 1;
                }
                b'}' if parts.is_empty() => {
                    let Some(all) = sequence(&word[begin..at]) else { break };
                    return Some((&word[..open], all, &word[at + 1..]));
                }
                b'}' => {
                    parts.push(word[begin..at].to_vec());
                    return Some((&word[..open], parts, &word[at + 1..]));
                }
                _ => {}
            }
        }
    }
    None
}

/// What stands between braces as a range of numbers or of letters.
fn sequence(inside: &[u8]) -> Option<Vec<Vec<u8>>> {
    let (from, to) = std::str::from_utf8(inside).ok()?.split_once("..")?;
    // A step leaves some out. Those are looked for, too.
    let to = to.split_once("..").map_or(to, |(to, _)| to);
    if let (Ok(first), Ok(last)) = (from.parse::<i64>(), to.parse::<i64>()) {
        let is_padded =
            |text: &str| text.len() > 1 && text.trim_start_matches('-').starts_with('0');
        let padded = is_padded(from) || is_padded(to);
        let width = if padded { from.len().max(to.len()) } else { 0 };
        let numbers = (first.min(last)..=first.max(last)).take(EXPANDED);
        return Some(numbers.map(|number| format!("{number:0width$}").into_bytes()).collect());
    }
    match (from.as_bytes(), to.as_bytes()) {
        ([first], [last]) if first.is_ascii_alphabetic() && last.is_ascii_alphabetic() => {
            Some((*first.min(last)..=*first.max(last)).map(|letter| vec![letter]).collect())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(argument: &str, name: &str) -> bool {
        Argument::new(argument.as_bytes()).paths().contains(name.as_bytes())
    }

    fn mentions(argument: &str, name: &str) -> bool {
        Argument::new(argument.as_bytes()).mentions(name.as_bytes())
    }

    #[test]
    fn the_files_that_an_argument_names_are_found_wherever_they_stand_in_it() {
        for argument in [
            "in.txt",
            "if=in.txt",
            "--input=in.txt",
            "-iin.txt",
            "@in.txt",
            "file=@in.txt;type=text",
            "other,in.txt",
            "cat in.txt | sort",
            "cat <in.txt",
            "exec 'in.txt'",
            "cat \"in\".t'xt'",
        ] {
            assert!(names(argument, "in.txt"), "{argument}");
        }
        // A name may have any of them in it.
        for argument in ["of=a=b,c.txt", "a=b,c.txt", "--to=a=b,c.txt"] {
            assert!(names(argument, "a=b,c.txt"), "{argument}");
        }
        assert!(!names("begin.txt", "in.txt"));
        assert_eq!(Argument::new(b"").paths().len(), 0);
    }

    #[test]
    fn a_name_with_spaces_is_found_as_a_shell_reads_it() {
        for argument in [
            "sort \"my file.txt\"",
            "sort my\\ file.txt",
            "sort 'my file.txt' | head",
            "print(open(\"my file.txt\").read())",
            "my file.txt",
            "--input=my file.txt",
            "-fmy file.txt",
        ] {
            assert!(names(argument, "my file.txt"), "{argument}");
            assert!(mentions(argument, "my file.txt"), "{argument}");
        }
    }

    #[test]
    fn braces_are_expanded() {
        for (argument, all) in [
            ("cat {in.txt,tiers.toml}", &["in.txt", "tiers.toml"][..]),
            ("cat in.{txt,toml}", &["in.txt", "in.toml"]),
            ("cat {a,b}{1,2}", &["a1", "a2", "b1", "b2"]),
            ("cat {a,b{1,2}}.txt", &["a.txt", "b1.txt", "b2.txt"]),
            ("cat part{8..10} | sort", &["part8", "part9", "part10"]),
            ("cat part{01..03}", &["part01", "part02", "part03"]),
            ("cat {c..a}.txt", &["a.txt", "b.txt", "c.txt"]),
            ("cat ${X}{a,b}", &["${X}a", "${X}b"]),
        ] {
            for name in all {
                assert!(names(argument, name), "{name}: {argument}");
            }
        }
        assert!(mentions("cat in.{txt,toml}", "in.txt"));
        // As a shell leaves them.
        assert!(names("a{b}c", "a{b}c"));
    }

    #[test]
    fn what_braces_stand_for_takes_bounded_room() {
        for argument in ["{a,b}".repeat(400), "{1..99999999}".to_owned(), "{,".repeat(2000)] {
            let all = Argument::new(argument.as_bytes());
            let bytes: usize = all.forms.iter().map(Vec::len).sum();
            assert!(bytes <= EXPANDED + 3 * argument.len(), "{bytes}");
        }
    }

    #[test]
    fn a_name_stands_anywhere_but_within_another() {
        for argument in [
            "in.txt",
            "dir/in.txt",
            "cat /tmp/dir/in.txt",
            "open('in.txt')",
            "x=\"in.txt\"",
            "cat ${D}in.txt;",
            "printf '\\nin.txt'",
            "[\"-f\",\"in.txt\"]",
            "-fin.txt",
            "grep -fin.txt",
        ] {
            assert!(mentions(argument, "in.txt"), "{argument}");
        }
        for argument in ["begin.txt", "in.txt.gz", "in.txt~", "not-in.txt", "in-txt", "main.txt"] {
            assert!(!mentions(argument, "in.txt"), "{argument}");
        }
        for (argument, name) in [("./prog", "r"), ("-lx", "x"), ("out.log", "out"), ("x", "")] {
            assert!(!mentions(argument, name), "{argument}: {name}");
        }
    }
}
