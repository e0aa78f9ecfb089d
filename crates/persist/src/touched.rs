//! Which lines were stored to: a word of 64 bits for each page of memory.

use crate::pmem::LINE;

/// A set of lines.
#[derive(Clone, Debug, Default)]
pub(crate) struct Touched {
    /// By page: a bit a line. Grows to the highest page that was stored to.
    lines: Vec<u64>,
    /// Pages of which any bit is set.
    pages: Vec<u64>,
}

impl Touched {
    /// Inserts the line of an address.
    #[inline]
    pub(crate) fn insert(&mut self, address: u64) {
        let page = (address >> 12) as usize;
        if page >= self.lines.len() {
            self.lines.resize(page + 1, 0);
        }
        let lines = &mut self.lines[page];
        if *lines == 0 {
            self.pages.push(page as u64);
        }
        *lines |= 1 << (address % 4096 / LINE);
    }

    /// Empties the set: addresses of its lines, in order.
    pub(crate) fn take(&mut self) -> Vec<u64> {
        let mut pages = std::mem::take(&mut self.pages);
        pages.sort_unstable();
        let mut addresses = Vec::new();
        for page in pages {
            let lines = std::mem::take(&mut self.lines[page as usize]);
            let set = (0..64).filter(|line| lines >> line & 1 != 0);
            addresses.extend(set.map(|line| page * 4096 + line * LINE));
        }
        addresses
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_comes_out_once_and_in_order() {
        let mut touched = Touched::default();
        for address in [4096 * 9 + 65, 8, 4096 * 9 + 64, 4095, 63] {
            touched.insert(address);
        }
        assert_eq!(touched.take(), [0, 4032, 4096 * 9 + 64]);
        assert!(touched.take().is_empty());
    }
}
