// SPDX-License-Identifier: MIT OR Apache-2.0

//! Frame content: bytes that derive from a seed, and checksums.

use crate::random::Random;

/// Returns a generator whose numbers are distinct for every seed.
fn words(seed: u64) -> Random {
    Random::new(seed.wrapping_mul(0xd134_2543_de82_ef95))
}

/// Fills `bytes` with the content of `seed`.
pub fn fill(bytes: &mut [u8], seed: u64) {
    let mut words = words(seed);
    for chunk in bytes.chunks_mut(8) {
        chunk.copy_from_slice(&words.word().to_le_bytes()[..chunk.len()]);
    }
}

/// Returns `size` bytes with the content of `seed`.
pub fn bytes(seed: u64, size: usize) -> Vec<u8> {
    let mut bytes = vec![0; size];
    fill(&mut bytes, seed);
    bytes
}

/// Returns whether `bytes` have the content of `seed`.
pub fn is_filled(bytes: &[u8], seed: u64) -> bool {
    let mut words = words(seed);
    bytes.chunks(8).all(|chunk| *chunk == words.word().to_le_bytes()[..chunk.len()])
}

/// Computes the FNV-1a checksum over words of eight bytes, fast enough for frames in an unoptimized
/// build.
pub fn checksum(bytes: &[u8]) -> String {
    let sum = bytes.chunks(8).fold(0xcbf2_9ce4_8422_2325_u64, |sum, chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        (sum ^ u64::from_le_bytes(word)).wrapping_mul(0x100_0000_01b3)
    });
    format!("{sum:016x}")
}

/// Computes the checksum of every frame of `size` bytes in a file.
pub fn checksums(file: &[u8], size: usize) -> Vec<String> {
    assert_eq!(file.len() % size, 0, "{} bytes are no whole frames of {size}", file.len());
    file.chunks(size).map(checksum).collect()
}
