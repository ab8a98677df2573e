// SPDX-License-Identifier: MIT OR Apache-2.0

//! The change of a device, which the Rust binding of `GstDeviceProvider` lacks.
//!
//! # Safety
//!
//! One call with objects that are alive.
#![allow(unsafe_code)]

use glib::prelude::*;

/// Replaces a device of a provider, and posts the change.
pub(crate) fn change(
    provider: &impl IsA<gst::DeviceProvider>,
    new: &impl IsA<gst::Device>,
    old: &impl IsA<gst::Device>,
) {
    // SAFETY: the objects are borrowed; the provider takes references of its own.
    unsafe {
        gst::ffi::gst_device_provider_device_changed(
            provider.as_ref().as_ptr(),
            new.as_ref().as_ptr(),
            old.as_ref().as_ptr(),
        );
    }
}
