//! GStreamer's enums from the numbers that stand for them.
//!
//! # Safety
//!
//! glib calls every conversion from a number unsafe. Those of the enums here take any number: one that they do
//! not know becomes their `__Unknown`.
#![allow(unsafe_code)]

use glib::translate::from_glib;

/// An enum of GStreamer that any number can stand for.
pub(super) trait FromRaw {
    fn from_raw(number: i32) -> Self;
}

macro_rules! from_raw {
    ($($type:ident),+) => {$(
        impl FromRaw for gst_video::$type {
            fn from_raw(number: i32) -> Self {
                // SAFETY: the enum has an `__Unknown` for the numbers that it does not know.
                unsafe { from_glib(number) }
            }
        }
    )+};
}
from_raw!(VideoFormat, VideoCaptionType, VideoAFDSpec, VideoAFDValue);
