// SPDX-License-Identifier: MIT OR Apache-2.0

//! Types and constants of cuda.h that this crate uses.
//!
//! All types passed to the driver are defined here, so that the layout test can check them against
//! cuda.h. cudarc's enums become plain integers here: a driver may return or accept values that
//! cudarc's version of the header does not know.

mod attribute;

use std::ffi::{c_int, c_uint};

pub use attribute::Attribute;
use cudarc::driver::sys;
pub(crate) use cudarc::driver::sys::{
    CUDA_MEMCPY2D, CUcontext, CUdevice, CUevent, CUhostFn, CUipcEventHandle, CUipcMemHandle, CUmemAccessDesc,
    CUmemAllocationProp, CUmemGenericAllocationHandle, CUmemPoolProps, CUmemPoolPtrExportData, CUmemoryPool,
    CUstream, CUstreamBatchMemOpParams, CUuuid,
};

/// An address in GPU memory, valid in this process only (CUdeviceptr).
pub type DevicePtr = u64;

/// Error codes that this crate handles specially. Other codes are passed through as integers.
pub(crate) mod code {
    use super::sys::CUresult;

    pub(crate) const SUCCESS: i32 = CUresult::CUDA_SUCCESS as i32;
    pub(crate) const OUT_OF_MEMORY: i32 = CUresult::CUDA_ERROR_OUT_OF_MEMORY as i32;
    pub(crate) const NOT_INITIALIZED: i32 = CUresult::CUDA_ERROR_NOT_INITIALIZED as i32;
    pub(crate) const DEINITIALIZED: i32 = CUresult::CUDA_ERROR_DEINITIALIZED as i32;
    pub(crate) const INVALID_CONTEXT: i32 = CUresult::CUDA_ERROR_INVALID_CONTEXT as i32;
    pub(crate) const MAP_FAILED: i32 = CUresult::CUDA_ERROR_MAP_FAILED as i32;
    pub(crate) const ECC_UNCORRECTABLE: i32 = CUresult::CUDA_ERROR_ECC_UNCORRECTABLE as i32;
    pub(crate) const NVLINK_UNCORRECTABLE: i32 = CUresult::CUDA_ERROR_NVLINK_UNCORRECTABLE as i32;
    /// CUDA_ERROR_CONTAINED, newer than cudarc's header.
    pub(crate) const CONTAINED: i32 = 226;
    pub(crate) const INVALID_HANDLE: i32 = CUresult::CUDA_ERROR_INVALID_HANDLE as i32;
    pub(crate) const NOT_READY: i32 = CUresult::CUDA_ERROR_NOT_READY as i32;
    pub(crate) const ILLEGAL_ADDRESS: i32 = CUresult::CUDA_ERROR_ILLEGAL_ADDRESS as i32;
    pub(crate) const LAUNCH_TIMEOUT: i32 = CUresult::CUDA_ERROR_LAUNCH_TIMEOUT as i32;
    pub(crate) const CONTEXT_IS_DESTROYED: i32 = CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED as i32;
    pub(crate) const ASSERT: i32 = CUresult::CUDA_ERROR_ASSERT as i32;
    pub(crate) const HARDWARE_STACK_ERROR: i32 = CUresult::CUDA_ERROR_HARDWARE_STACK_ERROR as i32;
    pub(crate) const LAUNCH_FAILED: i32 = CUresult::CUDA_ERROR_LAUNCH_FAILED as i32;
    /// CUDA_ERROR_TENSOR_MEMORY_LEAK, newer than cudarc's header.
    pub(crate) const TENSOR_MEMORY_LEAK: i32 = 721;
    pub(crate) const NOT_PERMITTED: i32 = CUresult::CUDA_ERROR_NOT_PERMITTED as i32;
    pub(crate) const MPS_CLIENT_TERMINATED: i32 = CUresult::CUDA_ERROR_MPS_CLIENT_TERMINATED as i32;
    pub(crate) const STREAM_CAPTURE_UNSUPPORTED: i32 = CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED as i32;
    pub(crate) const STREAM_CAPTURE_IMPLICIT: i32 = CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT as i32;
    pub(crate) const STREAM_CAPTURE_WRONG_THREAD: i32 =
        CUresult::CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD as i32;
}

/// Flags and enumerators that are passed as integers.
pub(crate) mod flag {
    use super::{c_int, c_uint, sys};

    pub(crate) const STREAM_NON_BLOCKING: c_uint = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as c_uint;
    /// Handles of the legacy default stream and of the per-thread one (CU_STREAM_LEGACY and
    /// CU_STREAM_PER_THREAD, pointer casts that bindings omit).
    pub(crate) const STREAM_LEGACY: usize = 1;
    pub(crate) const STREAM_PER_THREAD: usize = 2;
    pub(crate) const CAPTURE_NONE: c_int = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE as c_int;
    pub(crate) const CAPTURE_MODE_RELAXED: c_int =
        sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED as c_int;
    pub(crate) const EVENT_DISABLE_TIMING: c_uint = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as c_uint;
    pub(crate) const EVENT_INTERPROCESS: c_uint = sys::CUevent_flags::CU_EVENT_INTERPROCESS as c_uint;
    pub(crate) const IPC_LAZY_PEER_ACCESS: c_uint =
        sys::CUipcMem_flags::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS as c_uint;
    pub(crate) const HANDLE_POSIX_FD: c_uint =
        sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR.0;
    pub(crate) const GRANULARITY_MINIMUM: c_uint =
        sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM as c_uint;
    pub(crate) const HOST_REGISTER_PORTABLE: c_uint = sys::CU_MEMHOSTREGISTER_PORTABLE;
    pub(crate) const HOST_REGISTER_DEVICE_MAP: c_uint = sys::CU_MEMHOSTREGISTER_DEVICEMAP;
    pub(crate) const HOST_REGISTER_READ_ONLY: c_uint = sys::CU_MEMHOSTREGISTER_READ_ONLY;
    pub(crate) const WAIT_VALUE_GEQ: c_uint =
        sys::CUstreamWaitValue_flags::CU_STREAM_WAIT_VALUE_GEQ as c_uint;
    pub(crate) const WRITE_VALUE_DEFAULT: c_uint =
        sys::CUstreamWriteValue_flags::CU_STREAM_WRITE_VALUE_DEFAULT as c_uint;

    pub(crate) const POINTER_BUFFER_ID: c_uint =
        sys::CUpointer_attribute::CU_POINTER_ATTRIBUTE_BUFFER_ID as c_uint;
    pub(crate) const POINTER_LEGACY_IPC_CAPABLE: c_uint =
        sys::CUpointer_attribute::CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE as c_uint;
}

/// Returns the location of device memory, for allocations and access rights.
fn on_device(device: CUdevice) -> sys::CUmemLocation {
    sys::CUmemLocation { type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: device }
}

/// Returns the properties of pinned memory on `device` that can be exported as a file descriptor.
pub(crate) fn exportable_memory(device: CUdevice) -> CUmemAllocationProp {
    CUmemAllocationProp {
        type_: sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        location: on_device(device),
        win32HandleMetaData: std::ptr::null_mut(),
        allocFlags: sys::CUmemAllocationProp_st__bindgen_ty_1 {
            compressionType: 0,
            gpuDirectRDMACapable: 0,
            usage: 0,
            reserved: [0; 4],
        },
    }
}

/// Returns the properties of a memory pool on `device` that can be exported as a file descriptor.
pub(crate) fn exportable_pool(device: CUdevice) -> CUmemPoolProps {
    CUmemPoolProps {
        allocType: sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        handleTypes: sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        location: on_device(device),
        win32SecurityAttributes: std::ptr::null_mut(),
        // Newer headers define further members (maxSize and others) in these bytes; zero is their
        // default.
        reserved: [0; 64],
    }
}

/// Returns an access descriptor that lets `device` read, or read and write.
pub(crate) fn access(device: CUdevice, write: bool) -> CUmemAccessDesc {
    let flags = if write {
        sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    } else {
        sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READ
    };
    CUmemAccessDesc { location: on_device(device), flags }
}

/// Returns one write of a 64-bit value, for a batch.
pub(crate) fn write_word(address: u64, value: u64) -> CUstreamBatchMemOpParams {
    let mut operation = CUstreamBatchMemOpParams { pad: [0; 6] };
    operation.writeValue = sys::CUstreamBatchMemOpParams_union_CUstreamMemOpWriteValueParams_st {
        operation: sys::CUstreamBatchMemOpType::CU_STREAM_MEM_OP_WRITE_VALUE_64,
        address,
        __bindgen_anon_1:
            sys::CUstreamBatchMemOpParams_union_CUstreamMemOpWriteValueParams_st__bindgen_ty_1 {
                value64: value,
            },
        flags: flag::WRITE_VALUE_DEFAULT,
        alias: 0,
    };
    operation
}

/// One side of a two-dimensional copy: the address of its first byte.
#[derive(Debug, Clone, Copy)]
pub enum Side {
    /// Host memory. Copies run concurrently with the CPU only if it is registered (see
    /// [`crate::host`]).
    Host(*mut u8),
    /// GPU memory.
    Device(DevicePtr),
}

/// Returns the parameters of a two-dimensional copy; `width` in bytes, `height` in rows.
pub(crate) fn copy_2d(
    (to, to_pitch): (Side, usize),
    (from, from_pitch): (Side, usize),
    width: usize,
    height: usize,
) -> CUDA_MEMCPY2D {
    let split = |side| match side {
        Side::Host(at) => (sys::CUmemorytype::CU_MEMORYTYPE_HOST, at, 0),
        Side::Device(at) => (sys::CUmemorytype::CU_MEMORYTYPE_DEVICE, std::ptr::null_mut(), at),
    };
    let (src_type, src_host, src_device) = split(from);
    let (dst_type, dst_host, dst_device) = split(to);
    CUDA_MEMCPY2D {
        srcXInBytes: 0,
        srcY: 0,
        srcMemoryType: src_type,
        srcHost: src_host.cast_const().cast(),
        srcDevice: src_device,
        srcArray: std::ptr::null_mut(),
        srcPitch: from_pitch,
        dstXInBytes: 0,
        dstY: 0,
        dstMemoryType: dst_type,
        dstHost: dst_host.cast(),
        dstDevice: dst_device,
        dstArray: std::ptr::null_mut(),
        dstPitch: to_pitch,
        WidthInBytes: width,
        Height: height,
    }
}

#[cfg(test)]
mod tests;
