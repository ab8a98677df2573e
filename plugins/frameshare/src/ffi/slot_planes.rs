// SPDX-License-Identifier: MIT OR Apache-2.0

//! The video meta of the pool's buffers, and its mapping of planes.
//!
//! A decoder keeps its reference frames mapped for writing while it sends them downstream, and
//! `GstVideoDecoder` then makes the buffer writable to set its times. A memory that is locked for
//! writing cannot be shared for that, so GStreamer copies it, byte by byte. A `GstVideoMeta` may
//! have map functions of its own; those here return the slot's bytes without locking the memory, so
//! that the buffer is copied and the frame is not. Write access still requires exclusive ownership
//! of buffer and memory; every other case uses GStreamer's own functions.
//!
//! # Safety
//!
//! C functions in a public structure, called by libgstvideo with a meta that is on a living buffer
//! and with a map that belongs to the caller from `map` to `unmap`.
#![allow(unsafe_code)]

use super::slot_memory::{self, Origin};
use glib::translate::*;
use gst::ffi::{self, GstMapFlags, GstMapInfo};
use gst_video::ffi::GstVideoMeta;
use std::{ffi::c_int, ptr, sync::OnceLock};

type Map = unsafe extern "C" fn(
    *mut GstVideoMeta,
    u32,
    *mut GstMapInfo,
    *mut glib::ffi::gpointer,
    *mut c_int,
    GstMapFlags,
) -> glib::ffi::gboolean;
type Unmap = unsafe extern "C" fn(*mut GstVideoMeta, u32, *mut GstMapInfo) -> glib::ffi::gboolean;

/// libgstvideo's own map functions: the same for every meta.
static USUAL: OnceLock<(Map, Unmap)> = OnceLock::new();

/// Makes a buffer's video meta the pool's own: it stays on the buffer when that returns to the
/// pool, and maps without locks.
pub(crate) fn adopt(mut meta: gst::MetaRefMut<'_, gst_video::VideoMeta, gst::meta::Standalone>) {
    // SAFETY: the meta is borrowed mutably; flags and functions are plain fields that GstBufferPool
    // and hardware plugins set in the same way.
    unsafe {
        let meta = &mut *meta.as_mut_ptr();
        meta.meta.flags |= ffi::GST_META_FLAG_POOLED | ffi::GST_META_FLAG_LOCKED;
        if let (Some(usual_map), Some(usual_unmap)) = (meta.map, meta.unmap) {
            USUAL.get_or_init(|| (usual_map, usual_unmap));
            meta.map = Some(map);
            meta.unmap = Some(unmap);
        }
    }
}

/// Returns the memory that a plane starts in, and its first byte there; none if these functions
/// must not map it.
unsafe fn plane_in_slot(
    meta: &GstVideoMeta,
    plane: u32,
    writing: bool,
) -> Option<(*mut ffi::GstMemory, *mut u8, usize)> {
    let offset = *meta.offset.get(plane as usize)?;
    let (mut index, mut length, mut skip) = (0, 0, 0);
    // SAFETY: the meta's buffer lives and keeps its memories during the call; the memory is only
    // borrowed.
    unsafe {
        let found = ffi::gst_buffer_find_memory(meta.buffer, offset, 1, &mut index, &mut length, &mut skip);
        if found == glib::ffi::GFALSE {
            return None;
        }
        let memory = ffi::gst_buffer_peek_memory(meta.buffer, index);
        let whole = !memory.is_null() && (*memory).parent.is_null();
        if !whole || (writing && ffi::gst_mini_object_is_writable(memory.cast()) == glib::ffi::GFALSE) {
            return None;
        }
        let Some(Origin::Slot(slot)) = slot_memory::origin(gst::MemoryRef::from_ptr(memory)) else {
            return None;
        };
        // The memory is `size` bytes from `offset` of a region that starts where the slot does.
        let data = slot.as_ptr()?.as_ptr().add((*memory).offset + skip);
        Some((memory, data, (*memory).size - skip))
    }
}

unsafe extern "C" fn map(
    meta: *mut GstVideoMeta,
    plane: u32,
    info: *mut GstMapInfo,
    data: *mut glib::ffi::gpointer,
    stride: *mut c_int,
    flags: GstMapFlags,
) -> glib::ffi::gboolean {
    // SAFETY: libgstvideo passes a meta on a living buffer and places to write to. The memory is
    // kept by a reference of its own until `unmap`.
    unsafe {
        let writing = flags & ffi::GST_MAP_WRITE != 0;
        let Some((memory, start, size)) = plane_in_slot(&*meta, plane, writing) else {
            let Some((usual, _)) = USUAL.get() else { return glib::ffi::GFALSE };
            return usual(meta, plane, info, data, stride, flags);
        };
        ptr::write_bytes(info, 0, 1);
        (*info).flags = flags;
        (*info).data = start;
        (*info).size = size;
        (*info).maxsize = size;
        // GStreamer's own function stores a memory in that field; the null tells the two apart.
        (*info).user_data[0] = ffi::gst_mini_object_ref(memory.cast()).cast();
        *data = start.cast();
        *stride = (&(*meta).stride)[plane as usize];
        true.into_glib()
    }
}

unsafe extern "C" fn unmap(
    meta: *mut GstVideoMeta,
    plane: u32,
    info: *mut GstMapInfo,
) -> glib::ffi::gboolean {
    // SAFETY: `info` was filled in by `map`, or by GStreamer's own function, which names a memory.
    unsafe {
        if !(*info).memory.is_null() {
            let Some((_, usual)) = USUAL.get() else { return glib::ffi::GFALSE };
            return usual(meta, plane, info);
        }
        let memory = std::mem::replace(&mut (*info).user_data[0], ptr::null_mut());
        if !memory.is_null() {
            ffi::gst_mini_object_unref(memory.cast());
        }
        true.into_glib()
    }
}
