// SPDX-License-Identifier: MIT OR Apache-2.0

//! Checksums of the visible pixels: the rows of all planes, without padding.
//!
//! Exporter and readers run the same program, so any hash that changes with every bit suffices.

use anyhow::{Context, Result};
use frameshare::{Plane, reader::Frame, video::VideoFormat};
use std::{
    collections::hash_map::DefaultHasher,
    hash::{Hash, Hasher},
};

/// Returns the checksum of a frame of the engine.
pub fn of_frame(frame: &Frame) -> Result<u64> {
    let format = frame.format()?;
    let mut hasher = hasher(format);
    for index in 0..format.pixels.plane_count() {
        let plane = frame.plane(index)?;
        let mut rows = vec![0; plane.row_bytes * plane.height as usize];
        plane.copy_to(&mut rows, plane.row_bytes)?;
        rows.chunks(plane.row_bytes).for_each(|row| hasher.write(row));
    }
    Ok(hasher.finish())
}

/// Returns the checksum of a buffer of GStreamer.
pub fn of_buffer(buffer: &gst::BufferRef, caps: &gst::CapsRef) -> Result<u64> {
    let format = VideoFormat::of_caps(&caps.to_string())?;
    let planes = match buffer.meta::<gst_video::VideoMeta>() {
        None => format.default_planes()?,
        Some(meta) => {
            let places = meta.offset().iter().zip(meta.stride());
            places.map(|(offset, stride)| Plane { offset: *offset as u64, stride: *stride }).collect()
        }
    };
    let bytes = buffer.map_readable()?;
    let mut hasher = hasher(&format);
    for index in 0..format.pixels.plane_count() {
        let plane = format.plane(index, &planes, bytes.len() as u64)?;
        for row in 0..plane.height as usize {
            let row = plane.range_of(row).and_then(|row| bytes[plane.range.clone()].get(row));
            hasher.write(row.context("a plane ends before its last row")?);
        }
    }
    Ok(hasher.finish())
}

fn hasher(format: &VideoFormat) -> DefaultHasher {
    let mut hasher = DefaultHasher::new();
    (format.pixels.name(), format.width, format.height).hash(&mut hasher);
    hasher
}

#[cfg(test)]
mod tests {
    use super::*;
    use gst_video::{VideoFormat, VideoInfo};

    /// Returns the checksum of an image whose visible bytes depend on their position, with `pad`
    /// bytes of padding per row.
    fn sum_of(format: VideoFormat, pad: usize, byte: impl Fn(usize, usize) -> u8) -> u64 {
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
        of_buffer(&buffer, &info.to_caps().unwrap()).unwrap()
    }

    #[test]
    fn checksum_covers_visible_bytes_only() {
        use VideoFormat::{I420, I42010le, Nv12, Rgb, Uyvy};
        for format in [I420, Nv12, I42010le, Rgb, Uyvy] {
            let grid = |row: usize, column: usize| (row * 16 + column) as u8;
            assert_eq!(sum_of(format, 10, grid), sum_of(format, 7, grid), "{format}");
            for place in [(0, 0), (1, 2), (3, 5)] {
                let dot = sum_of(format, 3, |row, column| u8::from((row, column) == place));
                assert_ne!(dot, sum_of(format, 3, |_, _| 0), "{format} {place:?}");
            }
        }
    }
}
