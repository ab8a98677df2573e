// SPDX-License-Identifier: MIT OR Apache-2.0

//! Pseudo-random numbers: xoshiro256++, seeded by SplitMix64. The same seed gives the same numbers
//! on each machine and in each version. Not for secrets.

/// Source of pseudo-random numbers.
#[derive(Clone, Debug)]
pub struct Random([u64; 4]);

impl Random {
    /// Returns the source that belongs to a seed. Close seeds give unrelated numbers.
    pub fn new(seed: u64) -> Self {
        let mut state = seed;
        Self([(); 4].map(|()| {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            mix(state)
        }))
    }

    /// Returns 64 random bits.
    pub fn bits(&mut self) -> u64 {
        let Self([a, b, c, d]) = self;
        let bits = a.wrapping_add(*d).rotate_left(23).wrapping_add(*a);
        let shifted = *b << 17;
        *c ^= *a;
        *d ^= *b;
        *b ^= *c;
        *a ^= *d;
        *c ^= shifted;
        *d = d.rotate_left(45);
        bits
    }

    /// Returns a number below `n`, each with the same probability. `n` must not be 0.
    pub fn below(&mut self, n: u64) -> u64 {
        // The error of the probabilities is below 2^-32 for the ranges that a choice has.
        ((u128::from(self.bits()) * u128::from(n)) >> 64) as u64
    }
}

/// Spreads each bit of `value` over all bits: the finalizer of SplitMix64.
pub fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::Random;

    #[test]
    fn each_number_below_the_limit_is_drawn() {
        let mut random = Random::new(7);
        let mut counts = [0; 6];
        (0..6_000).for_each(|_| counts[random.below(6) as usize] += 1);
        assert!(counts.iter().all(|count| (850..1150).contains(count)), "{counts:?}");
    }

    #[test]
    fn close_seeds_give_unrelated_numbers() {
        let differing = (Random::new(1).bits() ^ Random::new(2).bits()).count_ones();
        assert!((16..48).contains(&differing), "{differing} bits differ");
    }
}
