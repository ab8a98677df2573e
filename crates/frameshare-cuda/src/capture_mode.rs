// SPDX-License-Identifier: MIT OR Apache-2.0

//! Capture mode of the calling thread, and exclusion of captures from context-wide calls: what
//! every call of this crate needs so that captures stay intact (see [`crate::capture`]).
//!
//! # Safety
//! This file calls the driver with out-parameters on its own stack, and the NULL stream.
#![allow(unsafe_code)]

use frameshare_process::PerProcess;
use std::ffi::c_int;
use std::marker::PhantomData;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::abi::{CUcontext, CUstream, code, flag};
use crate::driver::{Driver, Handle};
use crate::error::log_drop;
use crate::{Error, Result};

/// Pause after a context-wide call that has invalidated a capture: the first one, and the longest.
/// Longer pauses would leave too few attempts in the 5 s before an exporter evicts a lossless
/// reader that releases no frame: captures can be under way most of the time.
const PAUSES: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(32));
/// A pause is forgotten so long after its end.
const QUIET: Duration = Duration::from_secs(1);

/// Known and expected captures of this process.
pub(crate) struct Captures {
    /// Number of announced ones.
    pub(crate) announced: usize,
    pauses: Vec<Pause>,
}

/// Pause of retries in a context, in which a context-wide call has invalidated a capture that the
/// driver had not reported. The next one is twice as long, also if calls have succeeded meanwhile:
/// between two captures they do.
struct Pause {
    context: Handle<cudarc::driver::sys::CUctx_st>,
    until: Instant,
    length: Duration,
}

/// Locked around context-wide calls, so that none is under way when
/// [`announce`](crate::capture::announce) returns.
static CAPTURES: PerProcess<Mutex<Captures>> =
    PerProcess::new(|| Mutex::new(Captures { announced: 0, pauses: Vec::new() }));

pub(crate) fn captures() -> MutexGuard<'static, Captures> {
    CAPTURES.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Captures {
    fn is_paused(&self, context: CUcontext, now: Instant) -> bool {
        self.pauses.iter().any(|one| one.context.0 == context && now < one.until)
    }

    /// Notes that a context-wide call has invalidated a capture.
    fn note_broken(&mut self, context: CUcontext, now: Instant) {
        self.pauses.retain(|one| now < one.until + QUIET);
        let known = self.pauses.iter().position(|one| one.context.0 == context);
        let before = known.map_or(Duration::ZERO, |index| self.pauses.swap_remove(index).length);
        let length = (before * 2).clamp(PAUSES.0, PAUSES.1);
        self.pauses.push(Pause { context: Handle(context), until: now + length, length });
    }
}

/// Permission for one context-wide call: no capture can be announced meanwhile.
pub(crate) struct NoCapture {
    captures: MutexGuard<'static, Captures>,
    context: CUcontext,
}

/// Returns the permission for a context-wide call in a context, which is current.
///
/// # Errors
/// [`Error::Capturing`] if a capture is announced, or the driver reports one.
pub(crate) fn exclude(driver: &Driver, context: CUcontext) -> Result<NoCapture> {
    let captures = captures();
    // The driver answers for the NULL stream with an error while a blocking stream captures.
    if captures.announced > 0 || is_capturing(driver, std::ptr::null_mut())? {
        return Err(Error::Capturing);
    }
    Ok(NoCapture { captures, context })
}

/// Returns an error while retries of context-wide calls are to wait.
///
/// # Errors
/// [`Error::Capturing`] for a while after a call has invalidated a capture in this context: code
/// that captures one stream goes on to capture others.
pub(crate) fn check_pause(context: CUcontext) -> Result<()> {
    if captures().is_paused(context, Instant::now()) { Err(Error::Capturing) } else { Ok(()) }
}

impl NoCapture {
    /// Learns from the result of the call, and returns it.
    pub(crate) fn note(mut self, result: Result<()>) -> Result<()> {
        if result.as_ref().is_err_and(Error::is_of_capture) {
            self.captures.note_broken(self.context, Instant::now());
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

#[cfg(test)]
mod tests {
    use super::*;

    fn captures() -> Captures {
        Captures { announced: 0, pauses: Vec::new() }
    }

    fn context(number: usize) -> CUcontext {
        std::ptr::without_provenance_mut(number)
    }

    #[test]
    fn pause_is_of_one_context() {
        let (mut captures, now) = (captures(), Instant::now());
        captures.note_broken(context(1), now);
        assert!(captures.is_paused(context(1), now) && !captures.is_paused(context(2), now));
        assert!(!captures.is_paused(context(1), now + PAUSES.0));
    }

    #[test]
    fn pause_doubles_up_to_limit_and_is_forgotten() {
        let (mut captures, now) = (captures(), Instant::now());
        let pause = |captures: &mut Captures, now: Instant| {
            captures.note_broken(context(1), now);
            (1..1000).find(|ms| !captures.is_paused(context(1), now + Duration::from_millis(*ms)))
        };
        let lengths: Vec<_> = (0..7).filter_map(|_| pause(&mut captures, now)).collect();
        assert_eq!(lengths, [2, 4, 8, 16, 32, 32, 32]);
        assert_eq!(pause(&mut captures, now + 2 * QUIET), Some(2));
    }
}
