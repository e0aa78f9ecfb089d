//! Sizes of slab objects, as the kernel lists them.

use std::collections::BTreeMap;
use std::fs;

/// Bytes of an object by cache; empty where `/proc/slabinfo` cannot be read.
pub(super) fn sizes() -> BTreeMap<String, u32> {
    parse(&fs::read_to_string("/proc/slabinfo").unwrap_or_default())
}

/// `name active_objs num_objs objsize …` after two lines of heading.
fn parse(text: &str) -> BTreeMap<String, u32> {
    text.lines()
        .filter(|line| !line.starts_with('#') && !line.starts_with("slabinfo"))
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            Some((words.next()?.to_owned(), words.nth(2)?.parse().ok()?))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headings_are_no_caches() {
        let text = "slabinfo - version: 2.1\n# name  <active_objs> <num_objs> <objsize>\n\
                    extent_status  300  408  40  102  1 : tunables 0 0 0\nbroken 1\n";
        let sizes = parse(text);
        assert_eq!(sizes.len(), 1);
        assert_eq!(sizes["extent_status"], 40);
    }
}
