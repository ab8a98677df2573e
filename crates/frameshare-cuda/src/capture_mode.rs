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
use std::time::{Duration, Instant};

use crate::abi::{CUstream, code, flag};
use crate::driver::Driver;
use crate::error::log_drop;
use crate::{Error, Result};

/// Pause after a context-wide call that has invalidated a capture: the first one, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(128));

/// Known and expected captures of this process.
pub(crate) struct Captures {
    /// Number of announced ones.
    pub(crate) announced: usize,
    /// Time until which other ones are expected: a context-wide call has invalidated one, which the
    /// driver had not reported.
    expected_until: Option<Instant>,
    pause: Duration,
}

/// Locked around context-wide calls, so that none is under way when
/// [`announce`](crate::capture::announce) returns.
static CAPTURES: Mutex<Captures> =
    Mutex::new(Captures { announced: 0, expected_until: None, pause: Duration::ZERO });

pub(crate) fn captures() -> MutexGuard<'static, Captures> {
    CAPTURES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Permission for one context-wide call: no capture can be announced meanwhile.
pub(crate) struct NoCapture(MutexGuard<'static, Captures>);

/// Returns the permission for a context-wide call in the current context.
///
/// # Errors
/// [`Error::Capturing`] if a capture is announced, the driver reports one, or a call has just
/// invalidated one: code that captures one stream goes on to capture others. The pause doubles with
/// each of these calls, and halves with each that succeeds.
pub(crate) fn exclude(driver: &Driver) -> Result<NoCapture> {
    let captures = captures();
    let is_expected = captures.expected_until.is_some_and(|until| Instant::now() < until);
    // The driver answers for the NULL stream with an error while a blocking stream captures.
    if captures.announced > 0 || is_expected || is_capturing(driver, std::ptr::null_mut())? {
        return Err(Error::Capturing);
    }
    Ok(NoCapture(captures))
}

impl NoCapture {
    /// Learns from the result of the call, and returns it.
    pub(crate) fn note(mut self, result: Result<()>) -> Result<()> {
        let Captures { expected_until, pause, .. } = &mut *self.0;
        if result.as_ref().is_err_and(Error::is_of_capture) {
            *pause = (*pause * 2).clamp(PAUSES.0, PAUSES.1);
            *expected_until = Some(Instant::now() + *pause);
        } else if expected_until.take().is_some() {
            *pause /= 2;
        }
        result
    }
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
