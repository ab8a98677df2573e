// SPDX-License-Identifier: MIT OR Apache-2.0

//! Conversion between slots and `GstMemory`.
//!
//! The memory owns its slot: every share of the memory (a copied buffer, a sub-buffer, a tee) keeps
//! the slot from being reused, and it returns to the exporter with the last of them, before or
//! after the end of its pool.
//!
//! # Safety
//!
//! Raw pointers into GStreamer's C structures: a wrapped region that must outlive its memory, and a
//! mark on the memory that points to data that the memory owns. Both hold by ownership inside this
//! file; callers need to guarantee nothing.
#![allow(unsafe_code)]

use frameshare::exporter::Slot;
use glib::translate::*;
use std::{ptr, sync::LazyLock};

/// Location of the bytes of a memory from the pool.
#[derive(Debug)]
pub(crate) enum Origin {
    /// A slot of an exporter.
    Slot(Slot),
    /// The heap, because no slot was free.
    Private,
}

/// Not owned by any memory, so that marking one as private allocates nothing.
static PRIVATE: Origin = Origin::Private;

/// The key under which a memory carries a pointer to its [`Origin`], which lives as long as the
/// memory.
static MARK: LazyLock<glib::Quark> = LazyLock::new(|| glib::Quark::from_str("frameshare-origin"));

/// Wraps `size` bytes from `offset` of a slot as memory that may grow up to `maxsize`. None if it
/// would not fit.
pub(crate) fn wrap(slot: Slot, maxsize: usize, offset: usize, size: usize) -> Option<gst::Memory> {
    let end = offset.checked_add(size)?;
    if end > maxsize || maxsize as u64 > slot.size() {
        return None;
    }
    let data = slot.as_ptr()?.as_ptr();
    let origin = Box::into_raw(Box::new(Origin::Slot(slot)));
    // SAFETY: `data` is valid for `maxsize` bytes while the slot lives (checked against its size
    // above). The slot is in `origin`, which the memory frees with `release` when it is freed
    // itself, and nothing else does.
    unsafe {
        let memory = gst::ffi::gst_memory_new_wrapped(
            0,
            data.cast(),
            maxsize,
            offset,
            size,
            origin.cast(),
            Some(release),
        );
        gst::ffi::gst_mini_object_set_qdata(memory.cast(), MARK.into_glib(), origin.cast(), None);
        Some(from_glib_full(memory))
    }
}

/// Frees the data that [`wrap`] gave to a memory.
unsafe extern "C" fn release(origin: glib::ffi::gpointer) {
    // A panic in the exporter's destructors must not unwind into C.
    let _ = std::panic::catch_unwind(|| {
        // SAFETY: `wrap` made the pointer from a box and gave it to one memory, which calls this
        // once.
        drop(unsafe { Box::from_raw(origin.cast::<Origin>()) });
    });
}

/// Heap memory, marked as handed out because no slot was free.
pub(crate) fn private(size: usize, params: &gst::AllocationParams) -> Option<gst::Memory> {
    // SAFETY: the default allocator and valid parameters; it returns NULL if memory is short. The
    // mark points to a static, so it outlives the memory.
    unsafe {
        let memory = gst::ffi::gst_allocator_alloc(ptr::null_mut(), size, params.as_ptr().cast_mut());
        if memory.is_null() {
            return None;
        }
        let memory: gst::Memory = from_glib_full(memory);
        mark_private(&memory);
        Some(memory)
    }
}

/// Marks memory of another allocator as handed out because no slot was free.
pub(crate) fn mark_private(memory: &gst::MemoryRef) {
    // SAFETY: the memory is borrowed, and setting qdata takes a lock. The mark points to a static,
    // so it outlives it.
    unsafe {
        let mark = ptr::from_ref(&PRIVATE).cast_mut();
        gst::ffi::gst_mini_object_set_qdata(memory.as_mut_ptr().cast(), MARK.into_glib(), mark.cast(), None);
    }
}

/// Returns the origin of a memory, or of the one that it is a part of; none if it is not from this
/// plugin.
pub(crate) fn origin(memory: &gst::MemoryRef) -> Option<&Origin> {
    let mut root = memory;
    while let Some(parent) = root.parent() {
        root = parent;
    }
    // SAFETY: only this file sets the mark, always to an `Origin` that lives as long as the root
    // memory, and that is kept alive by `memory`, from which the result borrows.
    unsafe {
        let mark = gst::ffi::gst_mini_object_get_qdata(root.as_mut_ptr().cast(), MARK.into_glib());
        mark.cast::<Origin>().as_ref()
    }
}
