// SPDX-License-Identifier: MIT OR Apache-2.0

//! CUDA streams: created by this crate, or created elsewhere and passed in.
//!
//! # Safety
//! This file calls the driver with stream handles. A handle created here lives as long as its
//! [`Stream`]; for an external handle the caller of [`Stream::handed_in`] or [`Stream::found`]
//! guarantees the lifetime. Closures passed to the driver are called at most once, on a driver
//! thread.
#![allow(unsafe_code)]

use std::any::Any;
use std::ffi::c_void;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crate::abi::{CUstream, flag};
use crate::context::Context;
use crate::driver::Handle;
use crate::error::log_drop;
use crate::{Error, Result, Status};

/// A CUDA stream: its work runs in order, concurrently with the work of other streams.
pub struct Stream {
    raw: Handle<cudarc::driver::sys::CUstream_st>,
    /// Keeps an external stream alive; `None` for a stream that this crate created.
    owner: Option<Box<dyn Any + Send + Sync>>,
    context: Arc<Context>,
}

impl Stream {
    /// Creates a stream that does not synchronize with the context's NULL stream.
    ///
    /// # Errors
    /// Any error that the driver returns.
    ///
    /// # References
    /// CUDA driver API, cuStreamCreate with CU_STREAM_NON_BLOCKING.
    pub fn new(context: &Arc<Context>) -> Result<Stream> {
        let _current = context.push()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: `raw` is an out-parameter for one handle.
        unsafe { context.driver().cuStreamCreate(&mut raw, flag::STREAM_NON_BLOCKING) }?;
        Ok(Stream { raw: Handle(raw), owner: None, context: context.clone() })
    }

    /// Wraps a stream of `context` that was created elsewhere; null is the context's NULL stream.
    /// `owner` is dropped together with this object. The handle of the per-thread default stream
    /// is in each call the stream of the thread that makes the call: a frame that one thread
    /// writes there must be published by the same thread.
    ///
    /// # Safety
    /// `raw` must be null or a CUstream of `context` that is not destroyed before `owner` is
    /// dropped.
    #[must_use]
    pub unsafe fn handed_in(
        context: &Arc<Context>,
        raw: *mut c_void,
        owner: impl Any + Send + Sync,
    ) -> Stream {
        Stream { raw: Handle(raw.cast()), owner: Some(Box::new(owner)), context: context.clone() }
    }

    /// Wraps a stream that was created elsewhere, and finds its context. For the NULL stream, also
    /// as CU_STREAM_LEGACY, that is the context current on the calling thread. The driver may
    /// require a current context to look up the context of another stream; `any` is made current
    /// for that.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_HANDLE if `raw` is not a stream; [`Error::Refused`] for the handle of the
    /// per-thread default stream, since it means a different stream on each thread.
    ///
    /// # Safety
    /// `raw` must be null or a CUstream. Neither the stream nor its context may be destroyed before
    /// this object is dropped.
    ///
    /// # References
    /// CUDA driver API, cuStreamGetCtx.
    pub unsafe fn found(raw: *mut c_void, any: &Arc<Context>) -> Result<Stream> {
        if raw.addr() == flag::STREAM_PER_THREAD {
            return Err(Error::Refused(
                "the per-thread default stream cannot be used from another thread: pass an explicit stream",
            ));
        }
        let mut context = std::ptr::null_mut();
        {
            let is_default = raw.is_null() || raw.addr() == flag::STREAM_LEGACY;
            let _current = (!is_default).then(|| any.push()).transpose()?;
            // SAFETY: the caller guarantees a valid stream; `context` is an out-parameter for one
            // handle.
            unsafe { any.driver().cuStreamGetCtx(raw.cast(), &mut context) }?;
        }
        // SAFETY: the driver returned the context; the caller guarantees that it outlives the
        // stream.
        unsafe { Ok(Stream::handed_in(&Context::handed_in(context.cast(), ())?, raw, ())) }
    }

    /// Returns the context of the stream.
    #[must_use]
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    pub(crate) fn raw(&self) -> CUstream {
        self.raw.0
    }

    /// Returns the CUstream, for use with other libraries. This object keeps ownership.
    #[must_use]
    pub fn as_raw(&self) -> *mut c_void {
        self.raw.0.cast()
    }

    /// Returns whether all work queued on the stream so far is complete.
    ///
    /// # Errors
    /// Failures of that work.
    ///
    /// # References
    /// CUDA driver API, cuStreamQuery.
    pub fn query(&self) -> Result<Status> {
        let _current = self.context.push()?;
        // SAFETY: the handle is alive.
        Status::of(unsafe { self.context.driver().cuStreamQuery(self.raw.0) })
    }

    /// Blocks until all work queued on the stream so far is complete. For teardown and tests.
    ///
    /// # Errors
    /// Failures of that work.
    ///
    /// # References
    /// CUDA driver API, cuStreamSynchronize.
    pub fn synchronize(&self) -> Result<()> {
        let _current = self.context.push()?;
        // SAFETY: the handle is alive.
        unsafe { self.context.driver().cuStreamSynchronize(self.raw.0) }
    }

    /// Calls `function` on a driver thread once all earlier work of the stream is complete. Later
    /// work of the stream waits until `function` returns. `function` must not call CUDA. If the
    /// context fails first, `function` is never called, and its captures are leaked.
    ///
    /// # Errors
    /// Any error that the driver returns; `function` is then dropped without being called.
    ///
    /// # References
    /// CUDA driver API, cuLaunchHostFunc.
    pub fn call(&self, function: impl FnOnce() + Send + 'static) -> Result<()> {
        let _current = self.context.push()?;
        let boxed: Box<HostFunction> = Box::new(Box::new(function));
        let data = Box::into_raw(boxed);
        // SAFETY: `call_host` reclaims exactly this allocation, and the driver calls it at most
        // once.
        let queued =
            unsafe { self.context.driver().cuLaunchHostFunc(self.raw.0, Some(call_host), data.cast()) };
        if queued.is_err() {
            // SAFETY: the driver rejected the call, so `call_host` does not run and the allocation
            // is still owned here.
            drop(unsafe { Box::from_raw(data) });
        }
        queued
    }
}

type HostFunction = Box<dyn FnOnce() + Send>;

/// Calls the closure that [`Stream::call`] passed to the driver.
///
/// # Safety
/// `data` must come from `Box::into_raw` of a `Box<HostFunction>`, and must not be used elsewhere.
unsafe extern "C" fn call_host(data: *mut c_void) {
    // SAFETY: the caller passes ownership of the allocation made in `Stream::call`.
    let function = unsafe { Box::from_raw(data.cast::<HostFunction>()) };
    // Unwinding into the driver would abort the process.
    if catch_unwind(AssertUnwindSafe(function)).is_err() {
        log::error!("host function panicked on a CUDA stream");
    }
}

impl Status {
    /// Converts the result of a query. CUDA_ERROR_NOT_READY is not a failure. While another thread
    /// captures a stream, the driver may reject queries from every thread (CUDA driver API,
    /// cuStreamBeginCapture); the work then counts as pending.
    pub(crate) fn of(answer: Result<()>) -> Result<Status> {
        match answer {
            Ok(()) => Ok(Status::Ready),
            Err(error) if error.is_not_ready() || error.is_deferrable() => Ok(Status::Pending),
            Err(error) => Err(error),
        }
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stream({:p} in {:?})", self.raw.0, self.context)
    }
}

impl Drop for Stream {
    /// Does not block: the driver frees a stream created here once its work is complete.
    fn drop(&mut self) {
        if self.owner.is_none() {
            log_drop(self.context.push().and_then(|_current| {
                // SAFETY: `self` owns the handle, which is not used after this.
                unsafe { self.context.driver().cuStreamDestroy_v2(self.raw.0) }
            }));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejected_query_is_pending() {
        let status = |code| Status::of(Error::check("cuEventQuery", code));
        assert_eq!(status(0), Ok(Status::Ready));
        // Not ready; called inside a host function; stream capture on another thread.
        assert!([600, 800, 900].into_iter().all(|code| status(code) == Ok(Status::Pending)));
        assert!(status(700).is_err());
    }
}
