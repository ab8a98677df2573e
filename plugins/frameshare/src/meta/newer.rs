//! Metas that GStreamer itself can write down, which it can from 1.24 on.
//!
//! The two functions are looked up at run time, so that one plugin binary runs with older versions too. Their form is
//! each meta's own and may change with the version; a [`Version`] travels along, and what another version wrote is
//! left alone.
//!
//! # Safety
//!
//! Functions found by name, called as gstmeta.h declares them (both are stable API since 1.24), with a meta or a buffer
//! that is borrowed for the call.
#![allow(unsafe_code)]

use std::{
    ffi::{CStr, c_char, c_void},
    mem, ptr,
    sync::LazyLock,
};

/// Of GStreamer: major, minor, micro, nano.
pub(super) type Version = (u32, u32, u32, u32);

/// Longest name of a meta, in what GStreamer writes.
const MAX_NAME: usize = 256;
/// Two sizes come before a meta's name.
const BEFORE_NAME: usize = 8;

type Serialize =
    unsafe extern "C" fn(*const gst::ffi::GstMeta, *mut glib::ffi::GByteArray) -> glib::ffi::gboolean;
type Deserialize =
    unsafe extern "C" fn(*mut gst::ffi::GstBuffer, *const u8, usize, *mut u32) -> *mut gst::ffi::GstMeta;

struct Functions {
    serialize: Serialize,
    deserialize: Deserialize,
}

static FUNCTIONS: LazyLock<Option<Functions>> = LazyLock::new(|| {
    // SAFETY: the types are those of gstmeta.h for these names.
    unsafe {
        Some(Functions {
            serialize: mem::transmute::<*mut c_void, Serialize>(find(c"gst_meta_serialize_simple")?),
            deserialize: mem::transmute::<*mut c_void, Deserialize>(find(c"gst_meta_deserialize")?),
        })
    }
});

unsafe extern "C" {
    // In the C library on every Linux.
    fn dlsym(handle: *mut c_void, symbol: *const c_char) -> *mut c_void;
}

/// A function of a library that this process has loaded.
fn find(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: no handle stands for all loaded libraries, among them libgstreamer; the name is a C string.
    let found = unsafe { dlsym(ptr::null_mut(), name.as_ptr()) };
    (!found.is_null()).then_some(found)
}

/// What this process runs.
pub(super) fn version() -> Version {
    gst::version()
}

/// A meta in GStreamer's own words; nothing where it has none for it.
pub(super) fn write(meta: &gst::MetaRef<'_, gst::Meta>) -> Option<Vec<u8>> {
    let functions = FUNCTIONS.as_ref()?;
    // SAFETY: the meta is on a buffer that is borrowed, and the array is freed here once its bytes are copied.
    unsafe {
        let array = glib::ffi::g_byte_array_new();
        let done = (functions.serialize)(meta.as_ptr().cast(), array);
        let bytes = (done != glib::ffi::GFALSE && !(*array).data.is_null())
            .then(|| std::slice::from_raw_parts((*array).data, (*array).len as usize).to_vec());
        glib::ffi::g_byte_array_unref(array);
        bytes
    }
}

/// Whether bytes begin as GStreamer's do, with a name that nothing is read beyond: total size, length of the name, the
/// name with a zero at its end, the version of what follows.
pub(super) fn is_sound(bytes: &[u8]) -> bool {
    let number = |at: usize| {
        bytes.get(at..at + 4).and_then(|four| Some(u32::from_le_bytes(four.try_into().ok()?) as usize))
    };
    let (Some(total), Some(name)) = (number(0), number(4)) else { return false };
    total == bytes.len()
        && total > BEFORE_NAME.saturating_add(name).saturating_add(1)
        && (1..=MAX_NAME).contains(&name)
        && bytes.get(BEFORE_NAME..=BEFORE_NAME + name).is_some_and(|text| {
            text.iter().position(|byte| *byte == 0) == Some(name)
                && text[..name].iter().all(u8::is_ascii_graphic)
        })
}

/// Puts a meta on a buffer that this version of GStreamer wrote; false where it does not know it, or takes exception.
pub(super) fn add(bytes: &[u8], buffer: &mut gst::BufferRef) -> bool {
    let Some(functions) = FUNCTIONS.as_ref().filter(|_| is_sound(bytes)) else { return false };
    let mut used = 0;
    // SAFETY: the buffer is borrowed mutably, and the bytes are as long as is said.
    let meta =
        unsafe { (functions.deserialize)(buffer.as_mut_ptr(), bytes.as_ptr(), bytes.len(), &raw mut used) };
    !meta.is_null()
}
