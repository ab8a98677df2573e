// SPDX-License-Identifier: MIT OR Apache-2.0

//! Bytes of leased frames.
//!
//! # Safety
//!
//! GStreamer gets a plain slice of memory that another process owns. The exporter guarantees that
//! the memory does not change during the lease, and the lease lives as long as the frame.
#![allow(unsafe_code)]

use frameshare::reader::Frame;

/// The bytes of a frame in host memory.
pub(crate) fn of(frame: &Frame) -> &[u8] {
    // SAFETY: the exporter does not write a leased frame, and its lease lasts as long as `frame`.
    unsafe { frame.as_slice() }
}

/// Fills a slot, as an exporter does before it publishes it.
#[cfg(test)]
pub(crate) fn paint(slot: &frameshare::exporter::Slot, value: u8) {
    let start = slot.as_ptr().expect("host memory is mapped");
    // SAFETY: `size()` is the length of the slot, and the test that acquired it has not published
    // it.
    unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), slot.size() as usize) }.fill(value);
}
