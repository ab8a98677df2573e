// SPDX-License-Identifier: MIT OR Apache-2.0

//! GStreamer's enums from their numbers.
//!
//! # Safety
//!
//! glib calls every conversion from a number unsafe. Those of the enums here accept any number: an
//! unknown one becomes their `__Unknown`.
#![allow(unsafe_code)]

use glib::translate::from_glib;

/// An enum of GStreamer with a value for every number.
pub(crate) trait FromRaw {
    fn from_raw(number: i32) -> Self;
}

macro_rules! from_raw {
    ($($type:ident),+) => {$(
        impl FromRaw for gst_video::$type {
            fn from_raw(number: i32) -> Self {
                // SAFETY: the enum has an `__Unknown` for unknown numbers.
                unsafe { from_glib(number) }
            }
        }
    )+};
}
from_raw!(VideoFormat, VideoCaptionType, VideoAFDSpec, VideoAFDValue);
