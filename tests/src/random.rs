// SPDX-License-Identifier: MIT OR Apache-2.0

//! Deterministic pseudo-random numbers: a seed repeats a run.

/// Generator (splitmix64).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Creates a generator.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns the next 64 bits.
    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ word >> 31
    }

    /// Returns a number below `limit`, which must not be zero.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.word() % limit
    }
}
