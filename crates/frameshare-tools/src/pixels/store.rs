// SPDX-License-Identifier: MIT OR Apache-2.0

//! Pixels written into the memory of a frame, for test patterns.

use super::{
    color::Color,
    formats::samples,
    image::row,
    samples::{Encoding, locate},
};
use frameshare::video::{Interlacing, PixelFormat, PlaneLayout, VideoFormat};
use std::ops::Range;

/// Returns whether pixels of a format can be written.
pub fn can_store(pixels: PixelFormat) -> bool {
    samples(pixels.name()).is_some_and(|samples| samples.encoding != Encoding::Palette)
}

/// Writes an area of an image, given as a function of column and row, into the bytes of a frame.
pub fn store(
    format: &VideoFormat,
    planes: &[PlaneLayout],
    bytes: &mut [u8],
    (columns, rows): (Range<usize>, Range<usize>),
    image: impl Fn(usize, usize) -> [u8; 3],
) {
    let Some(samples) = samples(format.pixels.name()) else { return };
    let color = Color::new(format.pixels.color_model(), format.colorimetry);
    let is_interleaved = format.interlacing == Interlacing::Interleaved;
    let depths = samples.encoding.depths();
    for y in rows {
        for x in columns.clone() {
            let values = color.of_rgb(image(x, y), depths);
            for (index, component) in samples.components.iter().enumerate() {
                let sample = component.first + component.step * (x >> component.sub.0);
                let place = samples.encoding.place(index, sample);
                let Some(plane) = planes.get(component.plane) else { continue };
                let Some(start) = locate(plane, row(component, y, is_interleaved), place.byte) else {
                    continue;
                };
                let start = plane.range.start + start;
                let mask = ((1_u32 << depths[index]) - 1) << place.shift;
                let value = values[index] << place.shift;
                for at in 0..place.bytes {
                    let shift = 8 * if place.big { place.bytes - 1 - at } else { at };
                    let Some(byte) = bytes.get_mut(start + at) else { continue };
                    *byte = *byte & !((mask >> shift) as u8) | (value >> shift) as u8;
                }
            }
        }
    }
}
