//! Inputs, made from a seed: the same in every run and on every machine.

/// A sequence of numbers that look random (`SplitMix64`).
#[derive(Clone, Debug)]
pub struct Numbers(pub u64);

impl Iterator for Numbers {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        Some(x ^ (x >> 31))
    }
}

impl Numbers {
    /// The next number below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.next().unwrap_or_default() % end
    }
}

/// At least `bytes` of text in lines: a number, words that repeat as words do,
/// and some that do not.
pub fn text(bytes: usize, seed: u64) -> Vec<u8> {
    const WORDS: [&str; 16] = [
        "memory",
        "page",
        "tier",
        "latency",
        "promote",
        "demote",
        "hot",
        "cold",
        "sample",
        "region",
        "fault",
        "cycle",
        "bandwidth",
        "policy",
        "the",
        "of",
    ];
    let mut numbers = Numbers(seed);
    let mut text = Vec::with_capacity(bytes + 200);
    while text.len() < bytes {
        text.extend_from_slice(format!("{:09}", numbers.below(1_000_000_000)).as_bytes());
        for _ in 0..4 + numbers.below(8) {
            text.push(b' ');
            text.extend_from_slice(WORDS[numbers.below(16) as usize].as_bytes());
        }
        text.extend_from_slice(format!(" {:x}\n", numbers.below(u64::MAX)).as_bytes());
    }
    text
}

/// A C program of many functions, for a compiler to work on.
pub fn c_source(functions: u64, seed: u64) -> String {
    use std::fmt::Write as _;

    let mut numbers = Numbers(seed);
    let mut source = String::from("static unsigned table[64];\n");
    for f in 0..functions {
        let _ = write!(source, "unsigned f{f}(unsigned a, unsigned b)\n{{\n  unsigned x = {f};\n");
        for _ in 0..12 {
            let (p, q, r) = (numbers.below(64), numbers.below(31) + 1, numbers.below(1 << 20));
            let _ = match numbers.below(4) {
                0 => writeln!(
                    source,
                    "  for (unsigned i = 0; i < a % {q}u; i++) x += table[(i + {p}) % 64] ^ b;"
                ),
                1 => writeln!(
                    source,
                    "  if (x % {q}u > b % 7u) x = x * {r}u + table[{p}]; else table[{p}] += x;"
                ),
                2 => writeln!(
                    source,
                    "  switch (x % 5u) {{ case 0: x += a; break; case 1: x ^= b >> {q}; break; case 3: x -= {r}u; break; default: table[{p}] ^= x; }}"
                ),
                _ => writeln!(
                    source,
                    "  x += {};",
                    if f > 0 {
                        format!("f{}(b, x >> {q})", numbers.below(f))
                    } else {
                        "1".to_owned()
                    }
                ),
            };
        }
        source.push_str("  return x;\n}\n");
    }
    source
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_depend_on_the_seed_alone() {
        assert_eq!(text(10_000, 1), text(10_000, 1));
        assert_ne!(text(10_000, 1), text(10_000, 2));
        assert_eq!(c_source(50, 1), c_source(50, 1));
    }
}
