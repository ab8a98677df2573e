// SPDX-License-Identifier: MIT OR Apache-2.0

//! Metas in GStreamer's own form, which has functions for them since 1.24.
//!
//! # Safety
//!
//! The functions are looked up by name, with the types of GStreamer's headers. The library that has
//! them is loaded for as long as the process lives, since the plugin is linked with it.
#![allow(unsafe_code)]

use glib::translate::from_glib;
use std::{
    ffi::{CStr, c_char, c_void},
    ptr::NonNull,
    sync::LazyLock,
};

type Serialize =
    unsafe extern "C" fn(*const gst::ffi::GstMeta, *mut glib::ffi::GByteArray) -> glib::ffi::gboolean;
type Deserialize =
    unsafe extern "C" fn(*mut gst::ffi::GstBuffer, *const u8, usize, *mut u32) -> *mut gst::ffi::GstMeta;

/// The functions; none before GStreamer 1.24.
static FUNCTIONS: LazyLock<Option<(Serialize, Deserialize)>> = LazyLock::new(|| {
    let serialize = find(c"gst_meta_serialize_simple")?;
    let deserialize = find(c"gst_meta_deserialize")?;
    // SAFETY: the types are those of gstmeta.h.
    Some(unsafe {
        (
            std::mem::transmute::<NonNull<c_void>, Serialize>(serialize),
            std::mem::transmute::<NonNull<c_void>, Deserialize>(deserialize),
        )
    })
});

unsafe extern "C" {
    fn dlsym(handle: *mut c_void, symbol: *const c_char) -> *mut c_void;
}

/// Returns the function of a name, among the libraries of the process.
fn find(name: &CStr) -> Option<NonNull<c_void>> {
    // SAFETY: a null handle, RTLD_DEFAULT, stands for all libraries; the name is a C string.
    NonNull::new(unsafe { dlsym(std::ptr::null_mut(), name.as_ptr()) })
}

/// Returns the bytes of a meta; none if its type has no form.
pub(crate) fn serialize(meta: &gst::MetaRef<'_, gst::Meta>) -> Option<Vec<u8>> {
    let (serialize, _) = (*FUNCTIONS)?;
    // SAFETY: the meta is borrowed, and the array is freed here.
    unsafe {
        let array = glib::ffi::g_byte_array_new();
        let is_written: bool = from_glib(serialize(meta.as_ptr().cast(), array));
        let bytes = match is_written && !(*array).data.is_null() {
            true => Some(std::slice::from_raw_parts((*array).data, (*array).len as usize).to_vec()),
            false => None,
        };
        glib::ffi::g_byte_array_unref(array);
        bytes
    }
}

/// Adds the meta of these bytes to a buffer; returns whether it did. Code of its type reads them:
/// they must come from somebody who is trusted.
pub(crate) fn add(buffer: &mut gst::BufferRef, bytes: &[u8]) -> bool {
    let Some((_, deserialize)) = *FUNCTIONS else { return false };
    let mut consumed = 0;
    // SAFETY: the buffer is writable, and the bytes are borrowed for the call.
    unsafe { !deserialize(buffer.as_mut_ptr(), bytes.as_ptr(), bytes.len(), &mut consumed).is_null() }
}
