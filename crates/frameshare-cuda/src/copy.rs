// SPDX-License-Identifier: MIT OR Apache-2.0

//! Asynchronous copies and fills, each in the order of one stream.
//!
//! # Safety
//! This file passes addresses that the driver dereferences later. Callers guarantee that they stay
//! valid until the stream has executed the operation.
#![allow(unsafe_code)]

use crate::abi;
pub use crate::abi::Side;
use crate::stream::Stream;
use crate::{DevicePtr, Result};

/// Rows of bytes with a pitch.
#[derive(Debug, Clone, Copy)]
pub struct Plane {
    /// The first byte of the first row.
    pub at: Side,
    /// Distance between the starts of two rows, in bytes.
    pub pitch: usize,
}

impl Stream {
    /// Copies `size` bytes within GPU memory, or between GPUs.
    ///
    /// # Errors
    /// Any error that the driver returns.
    ///
    /// # Safety
    /// Both ranges must be mapped for the stream's device until the stream has executed the copy.
    ///
    /// # References
    /// CUDA driver API, cuMemcpyDtoDAsync.
    pub unsafe fn copy(&self, to: DevicePtr, from: DevicePtr, size: usize) -> Result<()> {
        let _current = self.context().push()?;
        // SAFETY: the caller guarantees both ranges.
        unsafe { self.context().driver().cuMemcpyDtoDAsync_v2(to, from, size, self.raw()) }
    }

    /// Copies `size` bytes from host to GPU memory.
    ///
    /// # Errors
    /// Any error that the driver returns.
    ///
    /// # Safety
    /// Both ranges must be valid until the stream has executed the copy, and the host range must
    /// not be written until then.
    ///
    /// # References
    /// CUDA driver API, cuMemcpyHtoDAsync.
    pub unsafe fn upload(&self, to: DevicePtr, from: *const u8, size: usize) -> Result<()> {
        let _current = self.context().push()?;
        // SAFETY: the caller guarantees both ranges.
        unsafe { self.context().driver().cuMemcpyHtoDAsync_v2(to, from.cast(), size, self.raw()) }
    }

    /// Copies `size` bytes from GPU to host memory.
    ///
    /// # Errors
    /// Any error that the driver returns.
    ///
    /// # Safety
    /// Both ranges must be valid until the stream has executed the copy, and the host range must
    /// not be read or written until then.
    ///
    /// # References
    /// CUDA driver API, cuMemcpyDtoHAsync.
    pub unsafe fn download(&self, to: *mut u8, from: DevicePtr, size: usize) -> Result<()> {
        let _current = self.context().push()?;
        // SAFETY: the caller guarantees both ranges.
        unsafe { self.context().driver().cuMemcpyDtoHAsync_v2(to.cast(), from, size, self.raw()) }
    }

    /// Copies `height` rows of `width` bytes between GPU memory and GPU or host memory.
    ///
    /// # Errors
    /// Any error that the driver returns, e.g. CUDA_ERROR_INVALID_VALUE for a pitch below the
    /// width.
    ///
    /// # Safety
    /// As for the one-dimensional copies, for every row.
    ///
    /// # References
    /// CUDA driver API, cuMemcpy2DAsync.
    pub unsafe fn copy_2d(&self, to: Plane, from: Plane, width: usize, height: usize) -> Result<()> {
        let _current = self.context().push()?;
        let copy = abi::copy_2d((to.at, to.pitch), (from.at, from.pitch), width, height);
        // SAFETY: the caller guarantees the rows; the parameters are read before the call returns.
        unsafe { self.context().driver().cuMemcpy2DAsync_v2(&copy, self.raw()) }
    }

    /// Sets `size` bytes of GPU memory to `value`.
    ///
    /// # Errors
    /// Any error that the driver returns.
    ///
    /// # Safety
    /// The range must be mapped for the stream's device until the stream has executed the fill.
    ///
    /// # References
    /// CUDA driver API, cuMemsetD8Async.
    pub unsafe fn fill(&self, to: DevicePtr, value: u8, size: usize) -> Result<()> {
        let _current = self.context().push()?;
        // SAFETY: the caller guarantees the range.
        unsafe { self.context().driver().cuMemsetD8Async(to, value, size, self.raw()) }
    }
}
