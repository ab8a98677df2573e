// SPDX-License-Identifier: MIT OR Apache-2.0

//! Metas of plugins, which cross in the form that their plugin gives them (GStreamer 1.24).
#![allow(unsafe_code)]

use super::*;
use glib::ffi::{GFALSE, GTRUE, gboolean, gpointer};
use glib::translate::IntoGlib;
use gst::ffi::{GstBuffer, GstByteArrayInterface, GstMeta, GstMetaInfo};
use std::{
    ffi::{CStr, c_char, c_void},
    ptr::NonNull,
    sync::OnceLock,
};

const API: &CStr = c"FrameshareTestMetaAPI";
const NAME: &CStr = c"FrameshareTestMeta";

/// A meta of a number.
#[repr(C)]
struct NumberMeta {
    meta: GstMeta,
    number: u64,
}

unsafe extern "C" fn init(meta: *mut GstMeta, _: gpointer, _: *mut GstBuffer) -> gboolean {
    // SAFETY: GStreamer has allocated the meta.
    unsafe { (*meta.cast::<NumberMeta>()).number = 0 };
    GTRUE
}

unsafe extern "C" fn serialize(
    meta: *const GstMeta,
    bytes: *mut GstByteArrayInterface,
    version: *mut u8,
) -> gboolean {
    // SAFETY: as GStreamer documents the arguments.
    unsafe {
        let (at, number) = ((*bytes).len, (*meta.cast::<NumberMeta>()).number.to_le_bytes());
        if (*bytes).resize.unwrap()(bytes, at + number.len()) == GFALSE {
            return GFALSE;
        }
        (*bytes).len = at + number.len();
        std::ptr::copy_nonoverlapping(number.as_ptr(), (*bytes).data.add(at), number.len());
        *version = 1;
    }
    GTRUE
}

unsafe extern "C" fn deserialize(
    info: *const GstMetaInfo,
    buffer: *mut GstBuffer,
    data: *const u8,
    size: usize,
    version: u8,
) -> *mut GstMeta {
    // SAFETY: as GStreamer documents the arguments.
    unsafe {
        let number: [u8; 8] = std::slice::from_raw_parts(data, size).try_into().unwrap();
        assert_eq!(version, 1);
        let meta = gst::ffi::gst_buffer_add_meta(buffer, info, std::ptr::null_mut());
        (*meta.cast::<NumberMeta>()).number = u64::from_le_bytes(number);
        meta
    }
}

type New = unsafe extern "C" fn(glib::ffi::GType, *const c_char, usize) -> *mut GstMetaInfo;
type Register = unsafe extern "C" fn(*mut GstMetaInfo) -> *const GstMetaInfo;

unsafe extern "C" {
    fn dlsym(handle: *mut c_void, symbol: *const c_char) -> *mut c_void;
}

/// Returns a function that older versions of GStreamer lack.
fn find(name: &CStr) -> Option<NonNull<c_void>> {
    // SAFETY: a null handle, RTLD_DEFAULT, stands for all libraries.
    NonNull::new(unsafe { dlsym(std::ptr::null_mut(), name.as_ptr()) })
}

/// Registers the meta as a plugin does; returns its info, or none before GStreamer 1.24.
fn info() -> Option<*const GstMetaInfo> {
    static INFO: OnceLock<Option<usize>> = OnceLock::new();
    super::init();
    let info = INFO.get_or_init(|| {
        // SAFETY: the types are those of gstmeta.h.
        unsafe {
            let new = find(c"gst_meta_info_new")?;
            let register = find(c"gst_meta_info_register")?;
            let new = std::mem::transmute::<NonNull<c_void>, New>(new);
            let register = std::mem::transmute::<NonNull<c_void>, Register>(register);
            let tags = [std::ptr::null::<c_char>()];
            let api = gst::ffi::gst_meta_api_type_register(API.as_ptr(), tags.as_ptr().cast_mut().cast());
            let info = new(api, NAME.as_ptr(), size_of::<NumberMeta>());
            (*info).init_func = Some(init);
            (*info).serialize_func = Some(serialize);
            (*info).deserialize_func = Some(deserialize);
            Some(register(info) as usize)
        }
    });
    info.map(|info| info as *const GstMetaInfo)
}

/// The number on a buffer.
fn number(buffer: &gst::BufferRef) -> Option<u64> {
    let api = glib::Type::from_name(API.to_str().unwrap())?;
    // SAFETY: a meta of this API is a `NumberMeta`.
    unsafe {
        let meta = gst::ffi::gst_buffer_get_meta(buffer.as_mut_ptr(), api.into_glib());
        (!meta.is_null()).then(|| (*meta.cast::<NumberMeta>()).number)
    }
}

#[test]
fn meta_of_a_plugin_crosses_in_its_own_form() {
    let Some(info) = info() else {
        frameshare_tests::skip::skip("meta-of-a-plugin", "GStreamer has forms of metas since 1.24");
        return;
    };
    let mut exporter = Exporter::new(GRAY);
    let reader = Reader::new(&exporter.path);
    for value in [7, 8] {
        let mut buffer = gst::Buffer::from_slice([value as u8; GRAY_SIZE]);
        // SAFETY: the buffer is writable.
        unsafe {
            let buffer = buffer.make_mut().as_mut_ptr();
            let meta = gst::ffi::gst_buffer_add_meta(buffer, info, std::ptr::null_mut());
            (*meta.cast::<NumberMeta>()).number = value;
        }
        exporter.push(buffer);
        assert_eq!(number(&reader.buffer()), Some(value));
    }
    let dropped = |element: &gst::Element| {
        element.property::<gst::Structure>("stats").get::<u64>("dropped-metas").unwrap()
    };
    assert_eq!(dropped(&exporter.harness.element().unwrap()), 0);
    assert_eq!(dropped(&reader.pipeline.by_name("source").unwrap()), 0);
}

/// Negative control: what has no form is counted.
#[test]
fn meta_without_a_form_is_counted() {
    let mut exporter = Exporter::new(GRAY);
    let reader = Reader::new(&exporter.path);
    let mut buffer = gst::Buffer::from_slice([1; GRAY_SIZE]);
    let parent = gst::Buffer::from_slice([2; 8]);
    gst::ParentBufferMeta::add(buffer.make_mut(), &parent);
    exporter.push(buffer);
    assert!(reader.buffer().meta::<gst::ParentBufferMeta>().is_none());
    let stats = exporter.harness.element().unwrap().property::<gst::Structure>("stats");
    assert_eq!(stats.get::<u64>("dropped-metas"), Ok(1));
}
