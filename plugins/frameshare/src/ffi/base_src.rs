// SPDX-License-Identifier: MIT OR Apache-2.0

//! The live lock of `GstBaseSrc`.
//!
//! # Safety
//!
//! GstBaseSrc's live lock, its condition and the flag that they guard are public fields of the
//! element, which is alive.
#![allow(unsafe_code)]

use glib::{object::IsA, prelude::*};

/// Blocks until the source plays, or `goes_on` returns false; it is called with the live lock held,
/// after each signal.
pub(crate) fn wait_until_live(source: &impl IsA<gst_base::BaseSrc>, goes_on: impl Fn() -> bool) {
    let source: *mut gst_base::ffi::GstBaseSrc = source.as_ref().as_ptr();
    // SAFETY: the element is alive, and so are its lock and condition; the flag is read with the
    // lock held.
    unsafe {
        glib::ffi::g_mutex_lock(&raw mut (*source).live_lock);
        while (*source).live_running == glib::ffi::GFALSE && goes_on() {
            glib::ffi::g_cond_wait(&raw mut (*source).live_cond, &raw mut (*source).live_lock);
        }
        glib::ffi::g_mutex_unlock(&raw mut (*source).live_lock);
    }
}
