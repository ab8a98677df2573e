// SPDX-License-Identifier: MIT OR Apache-2.0

//! Device memory of one process, which is never exported.
//!
//! # Safety
//! This file calls the driver with out-parameters on its own stack and with addresses returned by
//! the driver.
#![allow(unsafe_code)]

use std::sync::Arc;

use crate::context::Context;
use crate::error::log_drop;
use crate::{DevicePtr, Result};

/// An allocation of this process.
#[derive(Debug)]
pub struct Allocation {
    start: DevicePtr,
    context: Arc<Context>,
}

impl Allocation {
    /// Allocates `size` bytes, at least one, on the context's device. Their content is undefined.
    ///
    /// # Errors
    /// CUDA_ERROR_OUT_OF_MEMORY.
    ///
    /// # References
    /// CUDA driver API, cuMemAlloc.
    pub fn new(context: &Arc<Context>, size: usize) -> Result<Allocation> {
        let _current = context.push()?;
        let mut start = 0;
        // SAFETY: `start` is an out-parameter for one pointer.
        unsafe { context.driver().cuMemAlloc_v2(&mut start, size.max(1)) }?;
        Ok(Allocation { start, context: context.clone() })
    }

    /// Returns the start of the memory.
    #[must_use]
    pub fn ptr(&self) -> DevicePtr {
        self.start
    }
}

impl Drop for Allocation {
    /// May block until GPU work is complete.
    fn drop(&mut self) {
        log_drop(self.context.push().and_then(|_current| {
            // SAFETY: `self` owns the allocation, which is not used after this.
            unsafe { self.context.driver().cuMemFree_v2(self.start) }
        }));
    }
}
