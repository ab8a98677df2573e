// SPDX-License-Identifier: MIT OR Apache-2.0

//! CUDA contexts and streams of the caller.
//!
//! # Safety
//!
//! Handles come from C, whose side of the contract is in the header: a context outlives all objects
//! that were opened with it, a stream outlives the frames that it was named for.
#![allow(unsafe_code)]

use crate::{
    border::{guard, quietly, store, take, text, timeout},
    failure::{Failure, Status},
    video::{MEMORY_CUDA, MEMORY_CUDA_OR_HOST, MEMORY_HOST, RawMemory},
};
use frameshare::cuda::{Context, Device, Stream, capture};
use std::{
    ffi::{c_char, c_int, c_void},
    ptr,
    sync::Arc,
    time::Duration,
};

/// Returns the context to use for this memory; none for host memory.
///
/// # Safety
/// `context` is NULL or a CUcontext that outlives the reader or exporter and its frames; `uuid` is
/// NULL or a text.
pub unsafe fn context(
    memory: RawMemory,
    device: c_int,
    uuid: *const c_char,
    context: *mut c_void,
) -> Result<Option<Arc<Context>>, Failure> {
    match memory {
        MEMORY_HOST => return Ok(None),
        MEMORY_CUDA | MEMORY_CUDA_OR_HOST => {}
        other => return Err(Failure::argument(format!("memory is {other}: use an enumerator"))),
    }
    if !context.is_null() {
        // SAFETY: the caller's guarantee.
        let found = unsafe { Context::handed_in(context, ()) };
        return found.map(Some).map_err(|error| named("cuda_context", error.into()));
    }
    if !uuid.is_null() {
        // SAFETY: the caller's guarantee.
        let uuid = unsafe { text(uuid, "cuda_uuid") }?;
        let device = Device::find(uuid).map_err(|error| named("cuda_uuid", error.into()))?;
        return Ok(Some(Context::primary(&device)?));
    }
    let ordinal = usize::try_from(device)
        .map_err(|_| Failure::argument(format!("cuda_device_id is {device}, but must be 0 or more")))?;
    let device = Device::get(ordinal).map_err(|error| named("cuda_device_id", error.into()))?;
    Ok(Some(Context::primary(&device)?))
}

/// Returns a stream of C's.
///
/// # Safety
/// `raw` is NULL or a CUstream that outlives the frames that it is named for.
pub unsafe fn stream(raw: *mut c_void, any: &Arc<Context>) -> Result<Arc<Stream>, Failure> {
    // SAFETY: the caller's guarantee.
    let found = unsafe { Stream::found(raw, any) };
    found.map(Arc::new).map_err(|error| named("stream", error.into()))
}

/// Adds the argument to the text of its failure.
fn named(name: &str, failure: Failure) -> Failure {
    Failure { text: format!("{name}: {}", failure.text), ..failure }
}

/// See frameshare.h.
#[unsafe(no_mangle)]
pub extern "C" fn frameshare_wait_for_gpu(timeout_ns: i64) -> Status {
    guard(|| {
        // A wait without limit is one of a century.
        let patience = timeout(timeout_ns).unwrap_or(Duration::from_secs(100 * 365 * 86_400));
        Ok(if frameshare::wait_for_deferred_drops(patience) { Status::Ok } else { Status::Timeout })
    })
}

/// An announcement of a stream capture.
#[derive(Debug)]
pub struct Capture {
    _announced: capture::Announced,
    /// With an address of its own, tools find one that is not ended.
    _place: u8,
}

/// See frameshare.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn frameshare_capture_announce(capture: *mut *mut Capture) -> Status {
    guard(|| {
        // SAFETY: the header's contract.
        unsafe { store(capture, ptr::null_mut(), "capture") }?;
        let announced = Box::into_raw(Box::new(Capture { _announced: capture::announce(), _place: 0 }));
        // SAFETY: the header's contract.
        unsafe { store(capture, announced, "capture") }?;
        Ok(Status::Ok)
    })
}

/// See frameshare.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn frameshare_capture_end(capture: *mut Capture) {
    // SAFETY: the header's contract.
    quietly((), || drop(unsafe { take(capture, "capture") }));
}
