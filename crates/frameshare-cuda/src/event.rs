//! Markers in queues of GPU work: recorded on a stream or on a whole context, waited for by streams, looked at by CPUs.
//!
//! Events within this process are made here; those between processes in [`crate::fence::ipc_event`]. All are without
//! timing.
//!
//! # Safety
//! This file calls the driver with event handles, which live as long as the [`Event`].
#![allow(unsafe_code)]

use std::fmt;
use std::sync::Arc;

use crate::abi::{CUevent, flag};
use crate::context::Context;
use crate::driver::Handle;
use crate::error::log_drop;
use crate::fence::ipc_event;
use crate::stream::Stream;
use crate::{Error, Result, Status};

/// A CUDA event. One that was never recorded counts as done.
pub struct Event {
    raw: Handle<cudarc::driver::sys::CUevent_st>,
    /// Counts against the limit of events that this process can share.
    _shared: Option<ipc_event::Slot>,
    context: Arc<Context>,
}

impl Event {
    /// An event for this process alone.
    ///
    /// # Errors
    /// What the driver says.
    ///
    /// # References
    /// CUDA driver API, cuEventCreate with CU_EVENT_DISABLE_TIMING.
    pub fn new(context: &Arc<Context>) -> Result<Event> {
        Event::with_flags(context, flag::EVENT_DISABLE_TIMING, None)
    }

    pub(crate) fn with_flags(
        context: &Arc<Context>,
        flags: u32,
        shared: Option<ipc_event::Slot>,
    ) -> Result<Event> {
        let _current = context.push()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: `raw` takes one handle.
        unsafe { context.driver().cuEventCreate(&mut raw, flags) }?;
        Ok(Event { raw: Handle(raw), _shared: shared, context: context.clone() })
    }

    /// Takes ownership of an event that the driver just made in `context`.
    pub(crate) fn from_raw(context: &Arc<Context>, raw: CUevent) -> Event {
        Event { raw: Handle(raw), _shared: None, context: context.clone() }
    }

    pub(crate) fn raw(&self) -> CUevent {
        self.raw.0
    }

    /// The context of the event.
    #[must_use]
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Makes the event stand for the work put on `stream` so far. Does not block.
    ///
    /// Never record an event again whose last record another process made and died with: the recording stream then
    /// stops for ever, too.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_HANDLE when the stream is of another context.
    ///
    /// # References
    /// CUDA driver API, cuEventRecord.
    pub fn record(&self, stream: &Stream) -> Result<()> {
        let _current = self.context.push()?;
        // SAFETY: both handles are alive.
        unsafe { self.context.driver().cuEventRecord(self.raw.0, stream.raw()) }
    }

    /// Makes the event stand for all work of its context so far, on every stream. Does not block and adds no barrier.
    ///
    /// # Errors
    /// [`Error::Missing`] before driver 555; deferrable errors (see [`Error::is_deferrable`]) during a stream capture,
    /// which this call then invalidates, and inside host functions. In each of these cases a worker thread calls
    /// [`Event::record_context_blocking`].
    ///
    /// # References
    /// CUDA driver API, cuCtxRecordEvent.
    pub fn record_context(&self) -> Result<()> {
        let _current = self.context.push()?;
        // SAFETY: both handles are alive.
        unsafe { self.context.driver().cuCtxRecordEvent(self.context.raw(), self.raw.0) }
    }

    /// As [`Event::record_context`], by waiting where that call is missing: blocks until all work of the context is
    /// done, then records on `stream`. (The legacy stream would not do: it passes by non-blocking streams.)
    ///
    /// # Errors
    /// Deferrable errors while a stream capture goes on: call again.
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

    /// Whether the work that the event stands for is done. Does not block. For a process that died before its work was
    /// done the answer is pending for ever.
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

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Event({:p} in {:?})", self.raw.0, self.context)
    }
}

impl Drop for Event {
    /// Does not wait: the driver frees an event once the work that uses it is done.
    fn drop(&mut self) {
        log_drop(self.context.push().and_then(|_current| {
            // SAFETY: the handle is ours and not used after this.
            unsafe { self.context.driver().cuEventDestroy_v2(self.raw.0) }
        }));
    }
}
