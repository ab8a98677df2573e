// SPDX-License-Identifier: MIT OR Apache-2.0

//! Image metrics: a checksum of the visible pixels, and the difference of two images.

use anyhow::{Context, Result, ensure};
use gst_video::{VideoFrameRef, VideoInfo, prelude::*};
use std::{
    collections::hash_map::DefaultHasher,
    hash::{Hash, Hasher},
};

type Picture<'a> = VideoFrameRef<&'a gst::BufferRef>;

/// Maps a buffer's image for reading, in place.
pub fn open<'a>(buffer: &'a gst::BufferRef, caps: &gst::CapsRef) -> Result<Picture<'a>> {
    let info = VideoInfo::from_caps(caps).context("the frames are not raw video")?;
    VideoFrameRef::from_buffer_ref_readable(buffer, &info).context("cannot map a frame")
}

/// Returns a checksum of the visible pixels: the rows of all planes, without padding.
///
/// Both sides run the same program, so any hash that changes with every bit suffices.
pub fn checksum(picture: &Picture<'_>) -> Result<u64> {
    let mut hasher = DefaultHasher::new();
    (picture.format().to_str(), picture.width(), picture.height()).hash(&mut hasher);
    for plane in 0..picture.n_planes() {
        let component = (0..picture.n_components()).find(|component| picture.comp_plane(*component) == plane);
        let component = component.context("a plane without components")?;
        for row in rows(picture, component)? {
            hasher.write(row);
        }
    }
    Ok(hasher.finish())
}

/// Returns the difference of the first component, mostly luma, between two images: 0 for equal
/// images, 1 for black to white everywhere.
pub fn motion(before: &Picture<'_>, now: &Picture<'_>) -> Result<f64> {
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

/// Returns the rows of a component's plane, each as long as the pixels of the component.
fn rows<'a>(picture: &'a Picture<'_>, component: u32) -> Result<impl Iterator<Item = &'a [u8]>> {
    let plane = picture.comp_plane(component);
    let format = picture.format();
    let stride = usize::try_from(picture.plane_stride()[plane as usize]).unwrap_or(0);
    let length = picture.comp_width(component) as usize * picture.comp_pstride(component).max(0) as usize;
    ensure!(0 < length && length <= stride, "images in {format} cannot be compared row by row");
    let data = picture.plane_data(plane).context("cannot read a plane")?;
    let height = picture.comp_height(component) as usize;
    ensure!(data.len() >= stride * (height - 1) + length, "a plane ends before its last row");
    Ok(data.chunks(stride).take(height).map(move |row| &row[..length]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use gst_video::VideoFormat;

    /// Returns an image whose visible bytes depend on their position, with `pad` bytes of padding
    /// per row.
    fn picture(
        format: VideoFormat,
        pad: usize,
        byte: impl Fn(usize, usize) -> u8,
    ) -> (gst::Buffer, gst::Caps) {
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
            assert_eq!(sum_of(&picture(format, 10, grid)), sum_of(&picture(format, 7, grid)), "{format}");
        }
    }

    #[test]
    fn every_visible_byte_changes_checksum() {
        for format in FORMATS {
            let black = sum_of(&picture(format, 3, |_, _| 0));
            for place in [(0, 0), (1, 2), (3, 5)] {
                let dot = picture(format, 3, |row, column| u8::from((row, column) == place));
                assert_ne!(sum_of(&dot), black, "{format} {place:?}");
            }
        }
    }

    #[test]
    fn motion_ranges_from_zero_to_one() {
        for (format, white) in [(VideoFormat::I420, [255, 255]), (VideoFormat::I42010le, [0xff, 0x03])] {
            let (black, caps) = picture(format, 2, |_, _| 0);
            let (white, _) = picture(format, 0, |_, column| white[column % 2]);
            let (black, white) = (open(&black, &caps).unwrap(), open(&white, &caps).unwrap());
            assert_eq!(motion(&black, &black).unwrap(), 0.0);
            assert_eq!(motion(&black, &white).unwrap(), 1.0);
        }
    }
}
