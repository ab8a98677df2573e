//! Checksums of pictures: of what belongs to them, and not of what lies between their rows.

use anyhow::{Context as _, Result, ensure};
use gst_video::VideoInfo;

/// The checksum of a picture in memory whose planes lie as they are said to.
pub fn checksum(bytes: &[u8], info: &VideoInfo, planes: &[(usize, usize)]) -> Result<u64> {
    ensure!(planes.len() == info.n_planes() as usize, "{} planes", planes.len());
    let mut sum = START;
    for (plane, (offset, stride)) in planes.iter().enumerate() {
        let (rows, width) = extent(info, plane);
        for row in 0..rows {
            let start = offset + row * stride;
            let row = bytes.get(start..start + width).context("a row outside of its memory")?;
            sum = add(sum, row);
        }
    }
    Ok(sum)
}

/// How many rows a plane has, and how many bytes of each belong to the picture.
pub fn extent(info: &VideoInfo, plane: usize) -> (usize, usize) {
    let components = (0..info.n_components() as u8).filter(|c| info.comp_plane(*c) as usize == plane);
    let size =
        |c: u8| (info.comp_height(c) as usize, info.comp_width(c) as usize * info.comp_pstride(c) as usize);
    components.map(size).max().unwrap_or((0, 0))
}

/// What a decoder's imitation writes everywhere in a frame: never zero, as fresh memory is.
pub fn byte_of(frame: u64) -> u8 {
    1 + (frame % 251) as u8
}

/// The checksum of such a frame, whose rows have so many bytes each.
pub fn plain(rows: usize, width: usize, frame: u64) -> u64 {
    let row = vec![byte_of(frame); width];
    (0..rows).fold(START, |sum, _| add(sum, &row))
}

/// FNV-1a, with words for bytes.
const START: u64 = 0xcbf2_9ce4_8422_2325;

fn add(sum: u64, row: &[u8]) -> u64 {
    let step = |sum: u64, word: u64| (sum ^ word).wrapping_mul(0x0100_0000_01b3).rotate_left(29);
    let (words, rest) = row.as_chunks::<8>();
    let sum = words.iter().fold(sum, |sum, word| step(sum, u64::from_le_bytes(*word)));
    rest.iter().fold(sum, |sum, byte| step(sum, u64::from(*byte)))
}
