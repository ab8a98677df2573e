// SPDX-License-Identifier: MIT OR Apache-2.0

//! Data attached to a mini object: a buffer, an event.
//!
//! # Safety
//!
//! One call of GStreamer's C interface hands a box to a mini object, whose destructor drops it.
#![allow(unsafe_code)]

use glib::translate::IntoGlib;

/// Drops `value` when `object` is freed, on whichever thread that is. An object carries one value
/// for each key.
pub(crate) fn attach<T: Send + 'static>(object: &mut gst::MiniObjectRef, key: glib::Quark, value: T) {
    unsafe extern "C" fn release<T>(value: glib::ffi::gpointer) {
        // A panic in the destructor must not unwind into C.
        let _ = std::panic::catch_unwind(|| {
            // SAFETY: GStreamer calls this once, with the pointer that `attach` handed over.
            drop(unsafe { Box::from_raw(value.cast::<T>()) });
        });
    }
    let value = Box::into_raw(Box::new(value));
    // SAFETY: the object is borrowed, the quark is valid, and `release` frees the box exactly once,
    // on whichever thread the object's last reference is dropped (`T` is `Send`).
    unsafe {
        gst::ffi::gst_mini_object_set_qdata(
            object.as_mut_ptr(),
            key.into_glib(),
            value.cast(),
            Some(release::<T>),
        );
    }
}
