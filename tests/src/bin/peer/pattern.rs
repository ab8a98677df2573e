// SPDX-License-Identifier: MIT OR Apache-2.0

//! Content of the frames of `peer export`: every byte derives from the sequence number.

/// Words of frame `sequence` (splitmix64).
fn words(sequence: u64) -> impl Iterator<Item = u64> {
    let mut state = sequence.wrapping_mul(0xd134_2543_de82_ef95);
    std::iter::repeat_with(move || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = state;
        word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ word >> 31
    })
}

pub fn paint(bytes: &mut [u8], sequence: u64) {
    for (chunk, word) in bytes.chunks_mut(8).zip(words(sequence)) {
        chunk.copy_from_slice(&word.to_le_bytes()[..chunk.len()]);
    }
}

pub fn is_painted(bytes: &[u8], sequence: u64) -> bool {
    bytes.chunks(8).zip(words(sequence)).all(|(chunk, word)| *chunk == word.to_le_bytes()[..chunk.len()])
}

/// FNV-1a over words of eight bytes, fast enough for frames in an unoptimized build.
pub fn sum(bytes: &[u8]) -> u64 {
    bytes.chunks(8).fold(0xcbf2_9ce4_8422_2325, |sum, chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        (sum ^ u64::from_le_bytes(word)).wrapping_mul(0x100_0000_01b3)
    })
}
