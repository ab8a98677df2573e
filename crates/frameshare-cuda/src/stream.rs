//! Queues of GPU work: our own, and those of others that were handed in.
//!
//! # Safety
//! This file calls the driver with stream handles, which live as long as the [`Stream`] or, handed in, as long as the
//! caller of [`Stream::handed_in`] vouches; and it gives closures to the driver to be called once from its threads.
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
use crate::event::Event;
use crate::{Error, Result, Status};

/// A CUDA stream: work put on it is done in order, beside the work of other streams.
pub struct Stream {
    raw: Handle<cudarc::driver::sys::CUstream_st>,
    /// What keeps a stream alive that someone else made; `None` for our own.
    owner: Option<Box<dyn Any + Send + Sync>>,
    context: Arc<Context>,
}

impl Stream {
    /// A stream of our own, which does not order itself with the context's NULL stream.
    ///
    /// # Errors
    /// What the driver says.
    ///
    /// # References
    /// CUDA driver API, cuStreamCreate with CU_STREAM_NON_BLOCKING.
    pub fn new(context: &Arc<Context>) -> Result<Stream> {
        let _current = context.push()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: `raw` takes one handle.
        unsafe { context.driver().cuStreamCreate(&mut raw, flag::STREAM_NON_BLOCKING) }?;
        Ok(Stream { raw: Handle(raw), owner: None, context: context.clone() })
    }

    /// A stream that someone else made in `context`; null is the context's NULL stream. `owner` is held as long as the
    /// stream is used here.
    ///
    /// # Safety
    /// `raw` must be a CUstream of `context`, or null, that is not destroyed before `owner` is dropped.
    #[must_use]
    pub unsafe fn handed_in(
        context: &Arc<Context>,
        raw: *mut c_void,
        owner: impl Any + Send + Sync,
    ) -> Stream {
        Stream { raw: Handle(raw.cast()), owner: Some(Box::new(owner)), context: context.clone() }
    }

    /// A stream that someone else made, in whatever context: the NULL stream is that of the context that is current on
    /// this thread. The stream and its context have to outlive this object. To find the context of others the driver
    /// may want to have any context current, which `any` is then.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_HANDLE for what is no stream; [`Error::Refused`] for the handle of the threads' own default
    /// streams, which means another stream on another thread.
    ///
    /// # Safety
    /// `raw` must be a CUstream, or null, that is not destroyed before this object is dropped, nor is its context.
    ///
    /// # References
    /// CUDA driver API, cuStreamGetCtx.
    pub unsafe fn found(raw: *mut c_void, any: &Arc<Context>) -> Result<Stream> {
        if raw.addr() == flag::STREAM_PER_THREAD {
            return Err(Error::Refused(
                "the default stream of a thread cannot be used by another one: name a stream",
            ));
        }
        let mut context = std::ptr::null_mut();
        {
            let _current = (!raw.is_null()).then(|| any.push()).transpose()?;
            // SAFETY: the caller vouches for the stream; `context` takes one handle.
            unsafe { any.driver().cuStreamGetCtx(raw.cast(), &mut context) }?;
        }
        // SAFETY: the driver named the context, and the caller vouches that it lives as long as the stream.
        unsafe { Ok(Stream::handed_in(&Context::handed_in(context.cast(), ())?, raw, ())) }
    }

    /// The context of the stream.
    #[must_use]
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    pub(crate) fn raw(&self) -> CUstream {
        self.raw.0
    }

    /// The CUstream, for libraries that want one. It stays this object's.
    #[must_use]
    pub fn as_raw(&self) -> *mut c_void {
        self.raw.0.cast()
    }

    /// Work put on the stream from now on starts after the work that `event` stands for at this moment. The event may
    /// be of any context and device. Does not block; an event that is never signalled stops the stream for ever.
    ///
    /// # Errors
    /// What the driver says.
    ///
    /// # References
    /// CUDA driver API, cuStreamWaitEvent.
    pub fn wait(&self, event: &Event) -> Result<()> {
        let _current = self.context.push()?;
        // SAFETY: both handles are alive; 0 is the default for the flags.
        unsafe { self.context.driver().cuStreamWaitEvent(self.raw.0, event.raw(), 0) }
    }

    /// Whether all work put on the stream so far is done.
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

    /// Blocks until all work put on the stream so far is done. For teardown and tests.
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

    /// Calls `function` on a thread of the driver once the work before it is done; the work after it waits for its
    /// return. It must not call CUDA. When the context fails before, it is never called and what it holds is leaked.
    ///
    /// # Errors
    /// What the driver says; `function` is then dropped without being called.
    ///
    /// # References
    /// CUDA driver API, cuLaunchHostFunc.
    pub fn call(&self, function: impl FnOnce() + Send + 'static) -> Result<()> {
        let _current = self.context.push()?;
        let boxed: Box<HostFunction> = Box::new(Box::new(function));
        let data = Box::into_raw(boxed);
        // SAFETY: `call_host` takes back exactly this allocation, and the driver calls it at most once.
        let queued =
            unsafe { self.context.driver().cuLaunchHostFunc(self.raw.0, Some(call_host), data.cast()) };
        if queued.is_err() {
            // SAFETY: the driver refused, so it will not call, and the allocation is still ours.
            drop(unsafe { Box::from_raw(data) });
        }
        queued
    }
}

type HostFunction = Box<dyn FnOnce() + Send>;

/// Calls one closure that [`Stream::call`] gave away.
///
/// # Safety
/// `data` must come from `Box::into_raw` of a `Box<HostFunction>` and be used here only.
unsafe extern "C" fn call_host(data: *mut c_void) {
    // SAFETY: the caller hands over the allocation of `Stream::call`.
    let function = unsafe { Box::from_raw(data.cast::<HostFunction>()) };
    // Unwinding into the driver would end the process.
    if catch_unwind(AssertUnwindSafe(function)).is_err() {
        log::error!("a host function panicked on a CUDA stream");
    }
}

impl Status {
    /// Reads the answer of a query: not ready is no failure, and while another thread captures a stream the driver may
    /// answer nobody (CUDA driver API, cuStreamBeginCapture): then nothing is known to be done.
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
    /// Does not wait: the driver frees a stream of ours once the work on it is done.
    fn drop(&mut self) {
        if self.owner.is_none() {
            log_drop(self.context.push().and_then(|_current| {
                // SAFETY: the handle is ours and not used after this.
                unsafe { self.context.driver().cuStreamDestroy_v2(self.raw.0) }
            }));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_driver_will_not_say_is_pending() {
        let status = |code| Status::of(Error::check("cuEventQuery", code));
        assert_eq!(status(0), Ok(Status::Ready));
        // Not ready; within a host function; while another thread captures.
        assert!([600, 800, 900].into_iter().all(|code| status(code) == Ok(Status::Pending)));
        assert!(status(700).is_err());
    }
}
