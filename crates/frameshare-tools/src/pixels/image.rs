// SPDX-License-Identifier: MIT OR Apache-2.0

//! A frame as RGB of 8 bits.

use super::{
    color::Color,
    formats::{Component, Samples, samples},
    samples::{Encoding, locate},
};
use frameshare::{
    Plane,
    reader::Frame,
    video::{CROPPED, ColorModel, Interlacing, PlaneLayout, VideoError, VideoFormat},
};
use std::sync::atomic::Ordering;

/// The reason why a frame has no image.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    #[error(
        "{0}; decode or convert the stream first, for example with gst-launch-1.0 framesharesrc ! decodebin ! videoconvert ! framesharesink"
    )]
    Video(#[from] VideoError),
    #[error("the pixels of {0} are not known here; convert the stream first, for example with videoconvert")]
    Unsupported(&'static str),
}

/// An image in RGB, three bytes a pixel, rows from the top.
#[derive(Debug, PartialEq, Eq)]
pub struct Image {
    pub width: usize,
    pub height: usize,
    pub rgb: Vec<u8>,
}

/// A plane of a frame: its layout, and its bytes.
struct View<'a> {
    layout: PlaneLayout,
    bytes: &'a [u8],
}

impl Image {
    /// Converts a frame in host memory.
    pub fn of_frame(frame: &Frame) -> Result<Self, ImageError> {
        let format = frame.format()?;
        if frame.descriptor().flags & CROPPED != 0 {
            return Err(VideoError::Cropped.into());
        }
        let copy: Vec<u8>;
        let bytes = match frame.slice() {
            Some(bytes) => bytes,
            None => {
                copy = frame.bytes().iter().map(|byte| byte.load(Ordering::Relaxed)).collect();
                &copy
            }
        };
        Self::of_bytes(format, frame.descriptor().used_planes(), bytes)
    }

    /// Converts the bytes of a frame with the planes of its descriptor.
    pub fn of_bytes(format: &VideoFormat, planes: &[Plane], bytes: &[u8]) -> Result<Self, ImageError> {
        let name = format.pixels.name();
        let samples = samples(name).ok_or(ImageError::Unsupported(name))?;
        let views = (0..format.pixels.plane_count()).map(|index| {
            let layout = format.plane(index, planes, bytes.len() as u64)?;
            let bytes = bytes.get(layout.range.clone()).unwrap_or_default();
            Ok(View { layout, bytes })
        });
        let views = views.collect::<Result<Vec<_>, VideoError>>()?;
        let (width, height) = (format.width as usize, views[0].layout.height as usize);
        let color = Color::new(format.pixels.color_model(), format.colorimetry);
        let is_interleaved = format.interlacing == Interlacing::Interleaved;
        let is_gray = format.pixels.color_model() == ColorModel::Gray;
        let depths = samples.encoding.depths();
        let mut rgb = Vec::with_capacity(3 * width * height);
        for y in 0..height {
            for x in 0..width {
                let value = |index| {
                    load(&views, &samples, index, (x, row(&samples.components[index], y, is_interleaved)))
                };
                if samples.encoding == Encoding::Palette {
                    rgb.extend(chosen(&views, value(0) as usize));
                    continue;
                }
                let first = value(0);
                let values = if is_gray { [first; 3] } else { [first, value(1), value(2)] };
                rgb.extend(color.to_rgb(values, depths));
            }
        }
        Ok(Self { width, height, rgb })
    }

    /// Returns the color of a pixel.
    pub fn pixel(&self, x: usize, y: usize) -> [u8; 3] {
        let start = 3 * (y * self.width + x);
        [self.rgb[start], self.rgb[start + 1], self.rgb[start + 2]]
    }

    /// Returns the image in another size: each pixel is the mean of those that it covers.
    pub fn resized(&self, width: usize, height: usize) -> Self {
        let (width, height) = (width.max(1), height.max(1));
        let span = |at: usize, of: usize, all: usize| {
            let first = at * all / of;
            first..((at + 1) * all / of).max(first + 1)
        };
        let mut rgb = Vec::with_capacity(3 * width * height);
        for y in 0..height {
            for x in 0..width {
                let (rows, columns) = (span(y, height, self.height), span(x, width, self.width));
                let count = rows.len() * columns.len();
                let mut sum = [0; 3];
                for pixel in rows.flat_map(|y| columns.clone().map(move |x| self.pixel(x, y))) {
                    sum.iter_mut().zip(pixel).for_each(|(sum, value)| *sum += usize::from(value));
                }
                rgb.extend(sum.map(|sum| ((sum + count / 2) / count) as u8));
            }
        }
        Self { width, height, rgb }
    }
}

/// Returns the row of a component for a row of the image. Fields that alternate by rows have
/// chroma of their own.
pub fn row(component: &Component, y: usize, is_interleaved: bool) -> usize {
    match component.sub.1 {
        0 => y,
        sub if is_interleaved => (y >> (sub + 1) << 1) + (y & 1),
        sub => y >> sub,
    }
}

/// Returns the value of a component.
fn load(views: &[View<'_>], samples: &Samples, index: usize, (x, row): (usize, usize)) -> u32 {
    let component = &samples.components[index];
    let sample = component.first + component.step * (x >> component.sub.0);
    let place = samples.encoding.place(index, sample);
    let Some(view) = views.get(component.plane) else { return 0 };
    let start = locate(&view.layout, row, place.byte).unwrap_or(usize::MAX);
    // A row may end within a group of samples.
    let byte = |at: usize| start.checked_add(at).and_then(|at| view.bytes.get(at)).copied().unwrap_or(0);
    let word = (0..place.bytes).fold(0_u32, |word, at| {
        let byte = byte(if place.big { at } else { place.bytes - 1 - at });
        word << 8 | u32::from(byte)
    });
    word >> place.shift & ((1 << samples.encoding.depths()[index]) - 1)
}

/// Returns a color of the palette, a little-endian word of alpha, red, green and blue.
fn chosen(views: &[View<'_>], index: usize) -> [u8; 3] {
    let bytes = views.get(1).and_then(|view| view.bytes.get(4 * index..4 * index + 3));
    bytes.map_or([0; 3], |bytes| [bytes[2], bytes[1], bytes[0]])
}
