// SPDX-License-Identifier: MIT OR Apache-2.0

//! Public parts of the library's C structures, unchanged since 1.22.

use std::ffi::c_void;

/// The first GStreamer version with all functions used here.
pub(crate) const MINIMUM: &str = "1.24";

/// `GST_MAP_CUDA`: the map returns the GPU address.
pub(crate) const MAP_CUDA: gst::ffi::GstMapFlags = gst::ffi::GST_MAP_FLAG_LAST << 1;

// `GstCudaMemoryTransfer`: the step required before the CPU, the GPU or another stream may read the
// memory.
pub(crate) const NEED_DOWNLOAD: u32 = gst::ffi::GST_MEMORY_FLAG_LAST;
pub(crate) const NEED_UPLOAD: u32 = gst::ffi::GST_MEMORY_FLAG_LAST << 1;
pub(crate) const NEED_SYNC: u32 = gst::ffi::GST_MEMORY_FLAG_LAST << 2;

#[repr(C)]
pub struct GstCudaContext {
    object: gst::ffi::GstObject,
    private: *mut c_void,
}

#[repr(C)]
pub struct GstCudaContextClass {
    parent_class: gst::ffi::GstObjectClass,
}

#[repr(C)]
pub struct GstCudaStream {
    parent: gst::ffi::GstMiniObject,
    pub context: *mut GstCudaContext,
    private: *mut c_void,
}

#[repr(C)]
pub struct GstCudaMemory {
    pub memory: gst::ffi::GstMemory,
    pub context: *mut GstCudaContext,
    pub info: gst_video::ffi::GstVideoInfo,
    private: *mut c_void,
    reserved: [*mut c_void; 4],
}

#[repr(C)]
pub struct GstCudaBufferPool {
    parent: gst::ffi::GstBufferPool,
    pub context: *mut GstCudaContext,
    private: *mut c_void,
}

#[repr(C)]
pub struct GstCudaBufferPoolClass {
    parent_class: gst::ffi::GstBufferPoolClass,
}

#[cfg(test)]
mod tests;
