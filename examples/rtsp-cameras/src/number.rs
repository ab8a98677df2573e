// SPDX-License-Identifier: MIT OR Apache-2.0

//! Numbers of frames, drawn so that they survive encoding and scaling: a row of 32 black and white
//! cells at the top of the picture, the highest bit at the left.

use gst_video::prelude::*;

const CELLS: usize = 32;
/// Height of the row in parts of the picture's.
const PARTS: usize = 12;

/// Draws the lower 32 bits of a number on a frame; does nothing if its format has no luma plane.
pub fn draw(buffer: &mut gst::BufferRef, caps: &gst::Caps, number: u64) {
    let Ok(info) = gst_video::VideoInfo::from_caps(caps) else { return };
    let Ok(mut frame) = gst_video::VideoFrameRef::from_buffer_ref_writable(buffer, &info) else { return };
    let (width, rows) = (info.width() as usize, info.height() as usize / PARTS);
    let Ok(stride) = usize::try_from(frame.comp_stride(0)) else { return };
    let Ok(luma) = frame.plane_data_mut(0) else { return };
    for row in luma.chunks_mut(stride.max(1)).take(rows) {
        for (x, pixel) in row.iter_mut().take(width).enumerate() {
            let bit = CELLS - 1 - (x * CELLS / width).min(CELLS - 1);
            *pixel = if number >> bit & 1 == 1 { 235 } else { 16 };
        }
    }
}
