// SPDX-License-Identifier: MIT OR Apache-2.0

//! Deterministic pseudo-random numbers.

/// Generator (xorshift64*).
pub struct Random(u64);

impl Random {
    /// Creates a generator for `seed`.
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    /// Returns a number below `limit`, which must not be zero.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) % limit
    }
}

/// Returns the bytes of a buffer of `size` filled with pattern `seed`: every byte depends on its
/// position.
pub fn pattern(seed: u64, size: usize) -> Vec<u8> {
    (0..size as u64)
        .map(|place| (place.wrapping_add(seed).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8)
        .collect()
}
