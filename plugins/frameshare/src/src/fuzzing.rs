// SPDX-License-Identifier: MIT OR Apache-2.0

//! Fuzz entry points: untrusted frame descriptors, metas and caps.

use super::{
    layout::{Layout, in_engine},
    picture::Picture,
};
use crate::meta::{
    budget::Budget,
    wire::{self, Metas},
};
use frameshare::{Descriptor, Plane};
use gst_video::{VideoFormat, VideoFrameRef, VideoInfo};

/// Parses format, size, planes and metas from bytes, and reads every row as an element would.
pub fn layouts(bytes: &[u8]) {
    gst::init().expect("GStreamer starts");
    let mut bytes = bytes.iter().copied();
    let mut byte = || bytes.next().unwrap_or_default();
    let formats: Vec<_> = VideoFormat::iter_raw().collect();
    let format = formats[usize::from(byte()) % formats.len()];
    let (width, height) = (1 + u32::from(byte()), 1 + u32::from(byte()));
    let Ok(info) = VideoInfo::builder(format, width, height).build() else { return };
    let size = info.size() + usize::from(byte()) * 16 - usize::from(byte()).min(info.size());
    let count = usize::from(byte()) % 6;
    let mut plane = |index: usize| {
        let near = |at: usize| info.offset().get(at).copied().unwrap_or_default() as u64;
        let offset = match byte() {
            0..=199 => near(index).wrapping_add_signed(i64::from(byte() as i8) * 8),
            200..=230 => u64::from(byte()) << (byte() % 64),
            _ => u64::from_le_bytes(std::array::from_fn(|_| byte())),
        };
        let default = info.stride().get(index).copied().unwrap_or_default();
        let stride = match byte() {
            0..=149 => default,
            150..=219 => default.wrapping_add(i32::from(byte() as i8) * 4),
            220..=239 => default.wrapping_neg(),
            _ => i32::from_le_bytes(std::array::from_fn(|_| byte())),
        };
        Plane { offset, stride }
    };
    let planes: [Plane; 4] =
        std::array::from_fn(|index| if index < count { plane(index) } else { Plane::default() });
    let (x, y, cropped) = (u32::from(byte()), u32::from(byte()), byte() % 2 == 1);
    let rest: Vec<u8> = std::iter::repeat_with(byte).take(64).collect();
    let metas = wire::parse(&rest, &Budget::new(u64::MAX)).unwrap_or_default();
    let descriptor =
        Descriptor { size: size as u64, plane_count: count as u32, planes, ..Descriptor::default() };
    if descriptor.check_frame(size as u64).is_ok() {
        look_at(&descriptor, &metas, &info, size, cropped.then_some((x, y)));
    }
}

/// Computes durations, sizes and conversions from caps, as the source and downstream elements do.
pub fn shape(caps: &gst::Caps) {
    let _ = super::frames::Shape::of(caps).frame_duration();
    // An encoded format has no size to convert.
    if let Some(info) = VideoInfo::from_caps(caps).ok().filter(|info| info.size() > 0) {
        let frame = gst::format::Default::from_u64(7);
        let _ = info.convert::<Option<gst::ClockTime>>(frame);
        let _ = info.convert::<Option<gst::format::Bytes>>(gst::ClockTime::from_seconds(7));
    }
}

fn look_at(descriptor: &Descriptor, metas: &Metas, info: &VideoInfo, size: usize, crop: Option<(u32, u32)>) {
    let Ok(mut picture) = Picture::of(descriptor, metas, info, size) else { return };
    // The engine has the same rules, for its formats.
    if let Some(format) = in_engine(&picture.info) {
        for plane in 0..picture.layout.offsets().len() {
            let found = format.plane(plane, descriptor.used_planes(), size as u64);
            assert!(found.is_ok(), "{format:?}, {descriptor:?}: {found:?}");
        }
    }
    if let Some((x, y)) = crop {
        picture.crop(x, y, info);
    }
    let mut buffer = gst::Buffer::from_mut_slice(vec![1_u8; size]);
    if picture.add_meta(buffer.get_mut().expect("the buffer is unshared")).is_err() {
        return;
    }
    let Ok(frame) = VideoFrameRef::from_buffer_ref_readable(&buffer, info) else { return };
    let mut copy = gst::Buffer::with_size(info.size()).expect("memory");
    let default = Layout::default_of(info);
    let content = copy.get_mut().expect("the buffer is unshared");
    gst_video::VideoMeta::add_full(
        content,
        gst_video::VideoFrameFlags::empty(),
        info.format(),
        info.width(),
        info.height(),
        default.offsets(),
        default.strides(),
    )
    .expect("the default layout fits");
    let mut copy = VideoFrameRef::from_buffer_ref_writable(content, info)
        .expect("the buffer has the size of the format");
    let _ = frame.copy(&mut copy);
}
