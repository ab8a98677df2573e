// SPDX-License-Identifier: MIT OR Apache-2.0

//! Flags of a buffer, with those of media libraries.
//!
//! # Safety
//!
//! One plain field of a buffer is read, which is borrowed.
#![allow(unsafe_code)]

/// Returns all flags of a buffer; the binding's own function omits those of media libraries.
pub(crate) fn all_flags(buffer: &gst::BufferRef) -> gst::BufferFlags {
    // SAFETY: the pointer is that of a reference.
    gst::BufferFlags::from_bits_retain(unsafe { (*buffer.as_ptr()).mini_object.flags })
}
