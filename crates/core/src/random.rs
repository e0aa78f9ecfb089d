//! Numbers without a pattern, the same in every run, for places where nothing depends on how good
//! they are: which page is looked at next, which entry a hash names.
//!
//! Simulations that draw from distributions use `rand_xoshiro`.

/// A generator of eight bytes: xorshift64 (Marsaglia, 2003). No lock, no allocation, a few
/// instructions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Xorshift(u64);

impl Xorshift {
    /// From any seed.
    pub const fn new(seed: u64) -> Self {
        // Zero would stay zero.
        Self(if seed == 0 { 1 } else { seed })
    }

    /// The next number; never zero.
    #[inline]
    pub const fn draw(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// A number below `end`, from the better half of the bits; `None` if there is none.
    #[inline]
    pub fn below(&mut self, end: u64) -> Option<u64> {
        let drawn = ((u128::from(self.draw()) * u128::from(end)) >> 64) as u64;
        (end > 0).then_some(drawn)
    }
}

/// Scatters numbers: two that differ in a bit come out unrelated (the finaliser of `SplitMix64`;
/// Steele et al., OOPSLA 2014).
#[inline]
pub const fn splitmix64(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_below_comes_about_as_often_whatever_the_seed() {
        for seed in [0, 1, u64::MAX, 0x1234_5678] {
            let (mut random, mut seen) = (Xorshift::new(seed), [0u32; 10]);
            for _ in 0..10_000 {
                seen[random.below(10).unwrap() as usize] += 1;
            }
            // Nine standard deviations (30) of a binomial distribution.
            assert!(seen.iter().all(|times| (730..1270).contains(times)), "{seed}: {seen:?}");
        }
        assert_eq!(Xorshift::new(7).below(0), None);
    }

    /// The first outputs of `SplitMix64` from seed 0 are those of the reference (Vigna's
    /// `splitmix64.c`): the state is the finaliser's argument.
    #[test]
    fn the_finaliser_is_the_reference_s() {
        const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
        let drawn = [0, STEP, STEP.wrapping_mul(2)].map(splitmix64);
        assert_eq!(drawn, [0xe220_a839_7b1d_cdaf, 0x6e78_9e6a_a1b9_65f4, 0x06c4_5d18_8009_454f]);
    }
}
