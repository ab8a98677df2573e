// SPDX-License-Identifier: MIT OR Apache-2.0

//! Capture mode of the calling thread, and exclusion of captures from context-wide calls: what
//! every call of this crate needs so that captures stay intact (see [`crate::capture`]).
//!
//! # Safety
//! This file calls the driver with out-parameters on its own stack, and the NULL stream.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::marker::PhantomData;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::abi::{CUstream, code, flag};
use crate::driver::Driver;
use crate::error::log_drop;
use crate::{Error, Result};

/// Number of announced captures. Locked around context-wide calls, so that none is under way when
/// [`announce`](crate::capture::announce) returns.
static ANNOUNCED: Mutex<usize> = Mutex::new(0);

pub(crate) fn announced() -> MutexGuard<'static, usize> {
    ANNOUNCED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Permission for one context-wide call: no capture can be announced meanwhile.
pub(crate) struct NoCapture(#[expect(dead_code, reason = "held, not read")] MutexGuard<'static, usize>);

/// Returns the permission for a context-wide call in the current context.
///
/// # Errors
/// [`Error::Capturing`] if a capture is announced, or the driver reports one.
pub(crate) fn exclude(driver: &Driver) -> Result<NoCapture> {
    let announced = announced();
    // The driver answers for the NULL stream with an error while a blocking stream captures.
    if *announced > 0 || is_capturing(driver, std::ptr::null_mut())? {
        return Err(Error::Capturing);
    }
    Ok(NoCapture(announced))
}

/// Returns whether a stream is being captured: the NULL stream if any blocking stream of the
/// current context is. A driver without the call captures nothing.
pub(crate) fn is_capturing(driver: &Driver, stream: CUstream) -> Result<bool> {
    let mut status = flag::CAPTURE_NONE;
    // SAFETY: the caller guarantees the stream; `status` is an out-parameter for one enumerator.
    match unsafe { driver.cuStreamIsCapturing(stream, &mut status) } {
        Ok(()) => Ok(status != flag::CAPTURE_NONE),
        Err(error) if error.code() == Some(code::STREAM_CAPTURE_IMPLICIT) => Ok(true),
        Err(Error::Missing { .. }) => Ok(false),
        Err(error) => Err(error),
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
