// SPDX-License-Identifier: MIT OR Apache-2.0

//! CUDA events: recorded on a stream or a whole context, waited for by streams, polled by the CPU.
//!
//! This file creates events for use within the process; [`crate::fence::ipc_event`] creates
//! interprocess events. All events are created without timing.
//!
//! # Safety
//! This file calls the driver with event handles, which live as long as the [`Event`].
#![allow(unsafe_code)]

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use crate::abi::{CUevent, flag};
use crate::capture_mode;
use crate::context::Context;
use crate::driver::Handle;
use crate::error::log_drop;
use crate::stream::Stream;
use crate::{Error, Result, Status};

/// A CUDA event. An event that was never recorded counts as complete.
pub struct Event {
    raw: Handle<cudarc::driver::sys::CUevent_st>,
    /// Dropped after the event: what the creator associates with its lifetime.
    _owner: Option<Box<dyn Any + Send + Sync>>,
    context: Arc<Context>,
}

impl Event {
    /// Creates an event for use within this process only.
    ///
    /// # Errors
    /// Any error that the driver returns.
    ///
    /// # References
    /// CUDA driver API, cuEventCreate with CU_EVENT_DISABLE_TIMING.
    pub fn new(context: &Arc<Context>) -> Result<Event> {
        Event::with_flags(context, flag::EVENT_DISABLE_TIMING, None)
    }

    /// Creates an event of `context` for use within this process only, and records the work queued
    /// on `stream` so far, as [`Event::record_uncaptured`] does. Does not block.
    ///
    /// # Errors
    /// As [`Event::record_uncaptured`].
    ///
    /// # References
    /// CUDA driver API, cuEventCreate, cuEventRecord.
    pub fn behind(stream: &Stream, context: &Arc<Context>) -> Result<Event> {
        let event = Event::new(context)?;
        event.record_uncaptured(stream)?;
        Ok(event)
    }

    /// Creates an event; `owner` is dropped together with it.
    pub(crate) fn with_flags(
        context: &Arc<Context>,
        flags: u32,
        owner: Option<Box<dyn Any + Send + Sync>>,
    ) -> Result<Event> {
        let _current = context.push()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: `raw` is an out-parameter for one handle.
        unsafe { context.driver().cuEventCreate(&mut raw, flags) }?;
        Ok(Event { raw: Handle(raw), _owner: owner, context: context.clone() })
    }

    /// Takes ownership of an event that the driver created in `context`.
    pub(crate) fn from_raw(context: &Arc<Context>, raw: CUevent) -> Event {
        Event { raw: Handle(raw), _owner: None, context: context.clone() }
    }

    pub(crate) fn raw(&self) -> CUevent {
        self.raw.0
    }

    /// Returns the context of the event.
    #[must_use]
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Records the work queued on `stream` so far. Does not block.
    ///
    /// If another process made the last record and died, never record the event again: the
    /// recording stream would block forever, too.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_HANDLE if the stream belongs to another context.
    ///
    /// # References
    /// CUDA driver API, cuEventRecord.
    pub fn record(&self, stream: &Stream) -> Result<()> {
        let _current = self.context.push()?;
        // SAFETY: both handles are alive.
        unsafe { self.context.driver().cuEventRecord(self.raw.0, stream.raw()) }
    }

    /// Like [`Event::record`], for a stream that other code owns. If the driver reports that the
    /// stream was destroyed, records all work of the context, which includes the unfinished work of
    /// the stream (measured on an H200, driver 580). A destroyed stream breaks the contract of
    /// [`Stream::handed_in`]: the driver may also crash, or find another stream with the same
    /// handle.
    ///
    /// The stream may belong to another context, which may be destroyed once its work is complete:
    /// nothing of that context is used after this call.
    ///
    /// # Errors
    /// [`Error::Capturing`] if the stream is being captured: the record would become a part of the
    /// graph. As [`Event::record_context`] if the stream was destroyed.
    pub fn record_uncaptured(&self, stream: &Stream) -> Result<()> {
        if stream.context().raw() != self.context.raw() {
            let relay = Stream::new(&self.context)?;
            relay.wait_for(stream)?;
            return self.record(&relay);
        }
        match stream.check_uncaptured().and_then(|()| self.record(stream)) {
            Err(error) if error.is_invalid_stream() => self.record_context(),
            recorded => recorded,
        }
    }

    /// Records all work of the event's context so far, on every stream. Does not block and adds no
    /// barrier.
    ///
    /// # Errors
    /// [`Error::Missing`] before driver 555. [`Error::Capturing`] during a stream capture that is
    /// announced, or that a blocking stream makes. Deferrable errors (see [`Error::is_deferrable`])
    /// inside host functions, and if the call has invalidated a capture that the driver does not
    /// report (see [`crate::capture`]). In each of these cases, call
    /// [`Event::record_context_blocking`] from a worker thread; callers that try again and again
    /// call [`Context::check_capture_pause`] before.
    ///
    /// # References
    /// CUDA driver API, cuCtxRecordEvent.
    pub fn record_context(&self) -> Result<()> {
        let _current = self.context.push()?;
        let no_capture = capture_mode::exclude(self.context.driver(), self.context.raw())?;
        // SAFETY: both handles are alive.
        no_capture.note(unsafe { self.context.driver().cuCtxRecordEvent(self.context.raw(), self.raw.0) })
    }

    /// Like [`Event::record_context`], with a blocking fallback for drivers that lack
    /// cuCtxRecordEvent: blocks until all work of the context is complete, then records on
    /// `stream`. (A record on the legacy stream would not suffice: it does not synchronize with
    /// non-blocking streams.)
    ///
    /// # Errors
    /// Deferrable errors during a stream capture: call again later.
    ///
    /// # References
    /// CUDA driver API, cuCtxRecordEvent, cuCtxSynchronize.
    pub fn record_context_blocking(&self, stream: &Stream) -> Result<()> {
        match self.record_context() {
            Err(Error::Missing { .. }) => {
                self.context.synchronize()?;
                self.record(stream)
            }
            result => result,
        }
    }

    /// Returns whether the recorded work is complete. Does not block. If the recording process died
    /// before its work was complete, the result stays [`Status::Pending`] forever.
    ///
    /// # Errors
    /// Failures of work in the context.
    ///
    /// # References
    /// CUDA driver API, cuEventQuery.
    pub fn query(&self) -> Result<Status> {
        let _current = self.context.push()?;
        // SAFETY: the handle is alive.
        Status::of(unsafe { self.context.driver().cuEventQuery(self.raw.0) })
    }
}

impl Stream {
    /// Makes later work of the stream wait for the work that the last record of `event` covers. The
    /// event may belong to any context and device. Does not block. An event that is never signaled
    /// blocks the stream forever.
    ///
    /// # Errors
    /// Any error that the driver returns.
    ///
    /// # References
    /// CUDA driver API, cuStreamWaitEvent.
    pub fn wait(&self, event: &Event) -> Result<()> {
        let _current = self.context().push()?;
        // SAFETY: both handles are alive; 0 is the default for the flags.
        unsafe { self.context().driver().cuStreamWaitEvent(self.raw(), event.raw(), 0) }
    }

    /// Makes later work of this stream wait for the work queued on `other` so far. `other` may
    /// belong to any context and device, as with [`Event::record_uncaptured`]. Does not block.
    ///
    /// # Errors
    /// As [`Event::record_uncaptured`].
    ///
    /// # References
    /// CUDA driver API, cuStreamWaitEvent; cuEventDestroy of an event that streams wait for.
    pub fn wait_for(&self, other: &Stream) -> Result<()> {
        // Of the other context: an event cannot be recorded on a stream of another context.
        self.wait(&Event::behind(other, other.context())?)
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Event({:p} in {:?})", self.raw.0, self.context)
    }
}

impl Drop for Event {
    /// Does not block: the driver frees an event once the work that uses it is complete.
    fn drop(&mut self) {
        log_drop(self.context.push().and_then(|_current| {
            // SAFETY: `self` owns the handle, which is not used after this.
            unsafe { self.context.driver().cuEventDestroy_v2(self.raw.0) }
        }));
    }
}
