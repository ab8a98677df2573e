// SPDX-License-Identifier: MIT OR Apache-2.0

//! The memory of a frame's plane, also if its rows are from the bottom up: the bindings assume that
//! a plane begins at its first row.
//!
//! # Safety
//! GStreamer keeps the memory of a frame mapped as long as the frame lives, which the borrow of the
//! frame does not outlive.
#![allow(unsafe_code)]

use gst_video::{VideoFrameRef, ffi::GstVideoFrame, video_frame::IsVideoFrame};
use std::slice;

/// Returns the mapped memory that a plane is in, and the offset of its first row there; none if
/// there is no such plane.
fn mapping(frame: &GstVideoFrame, plane: usize) -> Option<(*mut u8, usize, usize)> {
    let first = frame.data.get(plane)?.cast::<u8>();
    frame.map.iter().find_map(|map| {
        let offset = first.addr().checked_sub(map.data.addr())?;
        (!map.data.is_null() && offset < map.size).then_some((map.data, map.size, offset))
    })
}

/// Returns the memory that a plane is in, and the offset of its first row.
pub(crate) fn of<'a>(frame: &'a VideoFrameRef<&gst::BufferRef>, plane: usize) -> Option<(&'a [u8], usize)> {
    let (data, size, offset) = mapping(frame.as_raw(), plane)?;
    // SAFETY: the mapping, which lasts as long as the frame.
    Some((unsafe { slice::from_raw_parts(data, size) }, offset))
}

/// As [`of`], to be written.
pub(crate) fn of_mut<'a>(
    frame: &'a mut VideoFrameRef<&mut gst::BufferRef>,
    plane: usize,
) -> Option<(&'a mut [u8], usize)> {
    let (data, size, offset) = mapping(frame.as_raw(), plane)?;
    // SAFETY: as above, and mapped for writing; the frame is borrowed mutably.
    Some((unsafe { slice::from_raw_parts_mut(data, size) }, offset))
}
