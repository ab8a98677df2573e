// SPDX-License-Identifier: MIT OR Apache-2.0

//! Checksums of frames, without the padding between rows.

use anyhow::{Context as _, Result, ensure};
use gst_video::VideoInfo;

/// Returns the checksum of a frame, given the offset and stride of each plane.
pub fn checksum(bytes: &[u8], info: &VideoInfo, planes: &[(usize, usize)]) -> Result<u64> {
    ensure!(planes.len() == info.n_planes() as usize, "{} planes", planes.len());
    let mut sum = START;
    for (plane, (offset, stride)) in planes.iter().enumerate() {
        let (rows, width) = extent(info, plane);
        for row in 0..rows {
            let start = offset + row * stride;
            let row = bytes.get(start..start + width).context("a row exceeds the frame's memory")?;
            sum = add(sum, row);
        }
    }
    Ok(sum)
}

/// Returns the number of rows of a plane, and the number of bytes of each row without padding.
pub fn extent(info: &VideoInfo, plane: usize) -> (usize, usize) {
    let components = (0..info.n_components() as u8).filter(|c| info.comp_plane(*c) as usize == plane);
    let size =
        |c: u8| (info.comp_height(c) as usize, info.comp_width(c) as usize * info.comp_pstride(c) as usize);
    components.map(size).max().unwrap_or((0, 0))
}

/// Returns the byte that the decoder imitation fills a frame with: never zero, the value of fresh
/// memory.
pub fn byte_of(frame: u64) -> u8 {
    1 + (frame % 251) as u8
}

/// Returns the checksum of such a frame with rows of `width` bytes.
pub fn plain(rows: usize, width: usize, frame: u64) -> u64 {
    let row = vec![byte_of(frame); width];
    (0..rows).fold(START, |sum, _| add(sum, &row))
}

/// FNV-1a, over words instead of bytes.
const START: u64 = 0xcbf2_9ce4_8422_2325;

fn add(sum: u64, row: &[u8]) -> u64 {
    let step = |sum: u64, word: u64| (sum ^ word).wrapping_mul(0x0100_0000_01b3).rotate_left(29);
    let (words, rest) = row.as_chunks::<8>();
    let sum = words.iter().fold(sum, |sum, word| step(sum, u64::from_le_bytes(*word)));
    rest.iter().fold(sum, |sum, byte| step(sum, u64::from(*byte)))
}
