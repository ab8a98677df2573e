//! Asynchronous copies and fills, each in the order of one stream.
//!
//! # Safety
//! This file hands addresses to the driver, which it follows later. Callers vouch for them until the stream got there.
#![allow(unsafe_code)]

use crate::abi::{self, Side};
use crate::stream::Stream;
use crate::{DevicePtr, Result};

/// Where a two-dimensional copy reads or writes.
#[derive(Debug, Clone, Copy)]
pub enum Place {
    /// Host memory. Copies overlap with the CPU only when it is registered (see [`crate::host`]).
    Host(*mut u8),
    /// GPU memory.
    Device(DevicePtr),
}

/// Rows of bytes.
#[derive(Debug, Clone, Copy)]
pub struct Plane {
    /// The first byte of the first row.
    pub at: Place,
    /// Bytes from one row to the next.
    pub pitch: usize,
}

impl Plane {
    fn side(self) -> (Side, usize) {
        match self.at {
            Place::Host(at) => (Side::Host(at), self.pitch),
            Place::Device(at) => (Side::Device(at), self.pitch),
        }
    }
}

impl Stream {
    /// Copies `size` bytes within GPU memory, or between GPUs.
    ///
    /// # Errors
    /// What the driver says.
    ///
    /// # Safety
    /// Both ranges must be mapped for the stream's device until the stream has done the copy.
    ///
    /// # References
    /// CUDA driver API, cuMemcpyDtoDAsync.
    pub unsafe fn copy(&self, to: DevicePtr, from: DevicePtr, size: usize) -> Result<()> {
        let _current = self.context().push()?;
        // SAFETY: the caller vouches for the ranges.
        unsafe { self.context().driver().cuMemcpyDtoDAsync_v2(to, from, size, self.raw()) }
    }

    /// Copies `size` bytes from host to GPU memory.
    ///
    /// # Errors
    /// What the driver says.
    ///
    /// # Safety
    /// Both ranges must be valid, and the host's not written, until the stream has done the copy.
    ///
    /// # References
    /// CUDA driver API, cuMemcpyHtoDAsync.
    pub unsafe fn upload(&self, to: DevicePtr, from: *const u8, size: usize) -> Result<()> {
        let _current = self.context().push()?;
        // SAFETY: the caller vouches for the ranges.
        unsafe { self.context().driver().cuMemcpyHtoDAsync_v2(to, from.cast(), size, self.raw()) }
    }

    /// Copies `size` bytes from GPU to host memory.
    ///
    /// # Errors
    /// What the driver says.
    ///
    /// # Safety
    /// Both ranges must be valid, and the host's not read or written, until the stream has done the copy.
    ///
    /// # References
    /// CUDA driver API, cuMemcpyDtoHAsync.
    pub unsafe fn download(&self, to: *mut u8, from: DevicePtr, size: usize) -> Result<()> {
        let _current = self.context().push()?;
        // SAFETY: the caller vouches for the ranges.
        unsafe { self.context().driver().cuMemcpyDtoHAsync_v2(to.cast(), from, size, self.raw()) }
    }

    /// Copies `height` rows of `width` bytes between GPU memory and GPU or host memory.
    ///
    /// # Errors
    /// What the driver says, e.g. CUDA_ERROR_INVALID_VALUE for a pitch below the width.
    ///
    /// # Safety
    /// As for the one-dimensional copies, for every row.
    ///
    /// # References
    /// CUDA driver API, cuMemcpy2DAsync.
    pub unsafe fn copy_2d(&self, to: Plane, from: Plane, width: usize, height: usize) -> Result<()> {
        let _current = self.context().push()?;
        let copy = abi::copy_2d(to.side(), from.side(), width, height);
        // SAFETY: the caller vouches for the rows; the parameters are read before the call returns.
        unsafe { self.context().driver().cuMemcpy2DAsync_v2(&copy, self.raw()) }
    }

    /// Sets `size` bytes of GPU memory to `value`.
    ///
    /// # Errors
    /// What the driver says.
    ///
    /// # Safety
    /// The range must be mapped for the stream's device until the stream has done the fill.
    ///
    /// # References
    /// CUDA driver API, cuMemsetD8Async.
    pub unsafe fn fill(&self, to: DevicePtr, value: u8, size: usize) -> Result<()> {
        let _current = self.context().push()?;
        // SAFETY: the caller vouches for the range.
        unsafe { self.context().driver().cuMemsetD8Async(to, value, size, self.raw()) }
    }
}
