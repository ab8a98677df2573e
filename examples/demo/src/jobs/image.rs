// SPDX-License-Identifier: MIT OR Apache-2.0

//! Image metrics: a checksum of the visible pixels, the difference of two images, and a small copy.

use crate::report;
use anyhow::{Context, Result, ensure};
use gst_video::{VideoConverter, VideoFormat, VideoFrame, VideoFrameRef, VideoInfo, prelude::*};
use std::{
    collections::hash_map::DefaultHasher,
    hash::{Hash, Hasher},
};

type Image<'a> = VideoFrameRef<&'a gst::BufferRef>;

/// Maps a buffer's image for reading, in place.
pub fn open<'a>(buffer: &'a gst::BufferRef, caps: &gst::CapsRef) -> Result<Image<'a>> {
    let info = VideoInfo::from_caps(caps).context("the frames are not raw video")?;
    VideoFrameRef::from_buffer_ref_readable(buffer, &info).context("cannot map a frame")
}

/// Returns a checksum of the visible pixels: the rows of all planes, without padding.
///
/// Both sides run the same program, so any hash that changes with every bit suffices.
pub fn checksum(image: &Image<'_>) -> Result<u64> {
    let mut hasher = DefaultHasher::new();
    (image.format().to_str(), image.width(), image.height()).hash(&mut hasher);
    for plane in 0..image.n_planes() {
        let component = (0..image.n_components()).find(|component| image.comp_plane(*component) == plane);
        let component = component.context("a plane without components")?;
        for row in rows(image, component)? {
            hasher.write(row);
        }
    }
    Ok(hasher.finish())
}

/// Returns the difference of the first component, mostly luma, between two images: 0 for equal
/// images, 1 for black to white everywhere.
pub fn motion(before: &Image<'_>, now: &Image<'_>) -> Result<f64> {
    ensure!(before.format() == now.format(), "images of different formats cannot be compared");
    let (stride, depth) = (now.comp_pstride(0) as usize, now.comp_depth(0));
    let (offset, shift) = (now.comp_poffset(0) as usize, now.format_info().shift()[0]);
    let sample = |pixel: &[u8]| match (depth, &pixel[offset..]) {
        (9.., [low, high, ..]) => i32::from(u16::from_le_bytes([*low, *high]) >> shift),
        (_, pixel) => i32::from(pixel[0]),
    };
    let (mut sum, mut count) = (0_u64, 0_u64);
    for (before, now) in rows(before, 0)?.zip(rows(now, 0)?) {
        for (before, now) in before.chunks_exact(stride).zip(now.chunks_exact(stride)) {
            sum += u64::from(sample(before).abs_diff(sample(now)));
            count += 1;
        }
    }
    let white = (1_u64 << depth) - 1;
    Ok(sum as f64 / (count.max(1) * white) as f64)
}

/// Largest width and height of a small copy, in pixels.
const SMALL: (u32, u32) = (48, 28);

/// Makes small copies of frames of one format.
pub struct Shrinker {
    from: VideoInfo,
    to: VideoInfo,
    converter: VideoConverter,
}

impl Shrinker {
    /// Returns the shrinker of a frame's format: `present` if it is that.
    pub fn of(present: Option<Self>, image: &Image<'_>) -> Result<Self> {
        let from = image.info();
        if let Some(present) = present.filter(|present| present.from == *from) {
            return Ok(present);
        }
        let par = from.par();
        let wide = f64::from(from.width()) * f64::from(par.numer()) / f64::from(par.denom().max(1));
        let scale = (f64::from(SMALL.0) / wide).min(f64::from(SMALL.1) / f64::from(from.height()));
        // Two rows of pixels are one line of text.
        let (width, height) = (wide * scale, f64::from(from.height()) * scale / 2.0);
        let (width, height) = (width.max(1.0) as u32, 2 * height.round().max(1.0) as u32);
        let to = VideoInfo::builder(VideoFormat::Xrgb, width, height).fps(from.fps()).build()?;
        let converter = VideoConverter::new(from, &to, None)?;
        Ok(Self { from: from.clone(), to, converter })
    }

    /// Copies a frame.
    pub fn copy(&self, image: &Image<'_>) -> Result<report::Preview> {
        let buffer = gst::Buffer::with_size(self.to.size())?;
        let small = VideoFrame::from_buffer_writable(buffer, &self.to);
        let mut small = small.ok().context("cannot map a small copy")?;
        self.converter.frame_ref(image, &mut small.as_mut_video_frame_ref());
        let (width, stride) = (self.to.width() as usize, self.to.stride()[0] as usize);
        let rows = small.plane_data(0)?.chunks_exact(stride);
        let pixels = rows.flat_map(|row| row[..4 * width].as_chunks::<4>().0);
        Ok(report::Preview {
            width,
            pixels: pixels.map(|pixel| u32::from_be_bytes(*pixel) & 0xff_ffff).collect(),
        })
    }
}

/// Returns the rows of a component's plane, each as long as the pixels of the component.
fn rows<'a>(image: &'a Image<'_>, component: u32) -> Result<impl Iterator<Item = &'a [u8]>> {
    let plane = image.comp_plane(component);
    let format = image.format();
    let stride = usize::try_from(image.plane_stride()[plane as usize]).unwrap_or(0);
    let length = image.comp_width(component) as usize * image.comp_pstride(component).max(0) as usize;
    ensure!(0 < length && length <= stride, "images in {format} cannot be compared row by row");
    let data = image.plane_data(plane).context("cannot read a plane")?;
    let height = image.comp_height(component) as usize;
    ensure!(data.len() >= stride * (height - 1) + length, "a plane ends before its last row");
    Ok(data.chunks(stride).take(height).map(move |row| &row[..length]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use gst_video::VideoFormat;

    /// Returns an image whose visible bytes depend on their position, with `pad` bytes of padding
    /// per row.
    fn image(format: VideoFormat, pad: usize, byte: impl Fn(usize, usize) -> u8) -> (gst::Buffer, gst::Caps) {
        gst::init().unwrap();
        let info = VideoInfo::builder(format, 6, 4).build().unwrap();
        let (mut bytes, mut offsets, mut strides) = (Vec::new(), Vec::new(), Vec::new());
        for plane in 0..info.n_planes() {
            let component = (0..info.n_components() as u8).find(|c| info.comp_plane(*c) == plane).unwrap();
            let visible = info.comp_width(component) as usize * info.comp_pstride(component) as usize;
            offsets.push(bytes.len());
            strides.push((visible + pad) as i32);
            for row in 0..info.comp_height(component) as usize {
                bytes.extend((0..visible).map(|column| byte(row, column)));
                bytes.extend(std::iter::repeat_n(pad as u8, pad));
            }
        }
        let mut buffer = gst::Buffer::from_slice(bytes);
        let flags = gst_video::VideoFrameFlags::empty();
        gst_video::VideoMeta::add_full(buffer.make_mut(), flags, format, 6, 4, &offsets, &strides).unwrap();
        (buffer, info.to_caps().unwrap())
    }

    fn sum_of((buffer, caps): &(gst::Buffer, gst::Caps)) -> u64 {
        checksum(&open(buffer, caps).unwrap()).unwrap()
    }

    const FORMATS: [VideoFormat; 5] =
        [VideoFormat::I420, VideoFormat::Nv12, VideoFormat::I42010le, VideoFormat::Rgb, VideoFormat::Uyvy];

    #[test]
    fn padding_does_not_change_checksum() {
        let grid = |row: usize, column: usize| (row * 16 + column) as u8;
        for format in FORMATS {
            assert_eq!(sum_of(&image(format, 10, grid)), sum_of(&image(format, 7, grid)), "{format}");
        }
    }

    #[test]
    fn every_visible_byte_changes_checksum() {
        for format in FORMATS {
            let black = sum_of(&image(format, 3, |_, _| 0));
            for place in [(0, 0), (1, 2), (3, 5)] {
                let dot = image(format, 3, |row, column| u8::from((row, column) == place));
                assert_ne!(sum_of(&dot), black, "{format} {place:?}");
            }
        }
    }

    #[test]
    fn small_copy_shows_the_frame() {
        for format in FORMATS {
            // Bright to the right; chroma of UV formats is that of some color.
            let (buffer, caps) = image(format, 2, |_, column| if column < 3 { 0 } else { 255 });
            let frame = open(&buffer, &caps).unwrap();
            let shrinker = Shrinker::of(None, &frame).unwrap();
            let small = shrinker.copy(&frame).unwrap();
            assert_eq!((small.width, small.pixels.len()), (42, 42 * 28), "{format}");
            assert_ne!(small.pixels[0], small.pixels[41], "{format}");
            let again = Shrinker::of(Some(shrinker), &frame).unwrap();
            assert_eq!(again.copy(&frame).unwrap(), small);
        }
    }

    #[test]
    fn motion_ranges_from_zero_to_one() {
        for (format, white) in [(VideoFormat::I420, [255, 255]), (VideoFormat::I42010le, [0xff, 0x03])] {
            let (black, caps) = image(format, 2, |_, _| 0);
            let (white, _) = image(format, 0, |_, column| white[column % 2]);
            let (black, white) = (open(&black, &caps).unwrap(), open(&white, &caps).unwrap());
            assert_eq!(motion(&black, &black).unwrap(), 0.0);
            assert_eq!(motion(&black, &white).unwrap(), 1.0);
        }
    }
}
