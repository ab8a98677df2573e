// SPDX-License-Identifier: MIT OR Apache-2.0

//! Stream captures: CUDA graphs that other code of the process captures stay intact.
//!
//! Two kinds of call invalidate a capture of another thread (measured on an H200, driver 580):
//!
//! - Potentially unsafe calls, such as cuEventQuery and cuMemAlloc, invalidate a capture in global
//!   mode, unless the calling thread is in relaxed mode. Every call of this crate runs in relaxed
//!   mode (`Relaxed`).
//! - cuCtxRecordEvent and cuCtxSynchronize invalidate every capture in their context. Before them,
//!   the driver is asked for captures by blocking streams; it reports no others, and none that
//!   begins right after the answer. [`announce`] covers all.
//!
//! # Safety
//! This file calls the driver with out-parameters on its own stack, and the NULL stream.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::marker::PhantomData;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::abi::{code, flag};
use crate::context::Context;
use crate::driver::Driver;
use crate::error::log_drop;
use crate::stream::Stream;
use crate::{Error, Result};

/// Number of announced captures. Locked around context-wide calls, so that none is under way when
/// [`announce`] returns.
static ANNOUNCED: Mutex<usize> = Mutex::new(0);

fn announced() -> MutexGuard<'static, usize> {
    ANNOUNCED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Announcement of a stream capture; see [`announce`].
#[derive(Debug)]
#[must_use = "dropping it ends the announcement"]
pub struct Announced(());

/// Announces a stream capture by any thread of this process. Until the returned guard is dropped,
/// [`Event::record_context`](crate::event::Event::record_context) and
/// [`Context::synchronize`] return [`Error::Capturing`] instead of invalidating the capture.
/// Announcements nest, and may be made and dropped by different threads. Streams created with
/// CU_STREAM_NON_BLOCKING need one, PyTorch's for example. For others it closes the gap between the
/// driver's answer and the record.
///
/// A call of [`Context::synchronize`] that is under way still invalidates the capture. This crate
/// makes one only with drivers before 555, which lack cuCtxRecordEvent.
pub fn announce() -> Announced {
    *announced() += 1;
    Announced(())
}

impl Drop for Announced {
    fn drop(&mut self) {
        *announced() -= 1;
    }
}

/// Permission for one context-wide call: no capture can be announced meanwhile.
pub(crate) struct NoCapture(#[expect(dead_code, reason = "held, not read")] MutexGuard<'static, usize>);

/// Returns the permission for a context-wide call in `context`, which must be current.
///
/// # Errors
/// [`Error::Capturing`] if a capture is announced, or the driver reports one.
pub(crate) fn exclude(context: &Context) -> Result<NoCapture> {
    let announced = announced();
    // The driver answers for the NULL stream with an error while a blocking stream captures.
    if *announced > 0 || is_capturing(context.driver(), std::ptr::null_mut())? {
        return Err(Error::Capturing);
    }
    Ok(NoCapture(announced))
}

/// Returns whether a stream is being captured: the NULL stream if any blocking stream of the
/// current context is. A driver without the call captures nothing.
fn is_capturing(driver: &Driver, stream: crate::abi::CUstream) -> Result<bool> {
    let mut status = flag::CAPTURE_NONE;
    // SAFETY: the caller guarantees the stream; `status` is an out-parameter for one enumerator.
    match unsafe { driver.cuStreamIsCapturing(stream, &mut status) } {
        Ok(()) => Ok(status != flag::CAPTURE_NONE),
        Err(error) if error.code() == Some(code::STREAM_CAPTURE_IMPLICIT) => Ok(true),
        Err(Error::Missing { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

impl Stream {
    /// Returns an error if the stream is being captured: a record on it, or a wait of it, would
    /// become a part of the graph, to be repeated at each launch.
    ///
    /// # Errors
    /// [`Error::Capturing`], or any error that the driver returns.
    ///
    /// # References
    /// CUDA driver API, cuStreamIsCapturing.
    pub fn check_uncaptured(&self) -> Result<()> {
        let _current = self.context().push()?;
        if is_capturing(self.context().driver(), self.raw())? { Err(Error::Capturing) } else { Ok(()) }
    }
}

/// Relaxed capture mode of the calling thread, until it is dropped.
pub(crate) struct Relaxed {
    driver: &'static Driver,
    /// The mode before; `None` if the driver has no modes.
    before: Option<c_int>,
    /// Modes are per thread.
    _thread: PhantomData<*mut ()>,
}

impl Relaxed {
    /// Exchanges the mode of the calling thread.
    ///
    /// # References
    /// CUDA driver API, cuThreadExchangeStreamCaptureMode.
    pub(crate) fn enter(driver: &'static Driver) -> Relaxed {
        let mut mode = flag::CAPTURE_MODE_RELAXED;
        // SAFETY: `mode` is read and written: one enumerator.
        let exchanged = unsafe { driver.cuThreadExchangeStreamCaptureMode(&mut mode) };
        Relaxed { driver, before: exchanged.is_ok().then_some(mode), _thread: PhantomData }
    }
}

impl Drop for Relaxed {
    fn drop(&mut self) {
        if let Some(mut mode) = self.before {
            // SAFETY: as in `enter`.
            log_drop(unsafe { self.driver.cuThreadExchangeStreamCaptureMode(&mut mode) });
        }
    }
}
