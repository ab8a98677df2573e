// SPDX-License-Identifier: MIT OR Apache-2.0

//! Captures of streams into CUDA graphs, as other code of a process makes them.
//!
//! # Safety
//! This file calls the driver with the signatures of cuda.h and live handles.
#![allow(unsafe_code)]

use crate::kernel::{check, symbol};
use frameshare_cuda::context::Context;
use frameshare_cuda::stream::Stream;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;

type Create = unsafe extern "C" fn(*mut *mut c_void, c_uint) -> c_int;
type Begin = unsafe extern "C" fn(*mut c_void, c_int) -> c_int;
type End = unsafe extern "C" fn(*mut c_void, *mut *mut c_void) -> c_int;
type Destroy = unsafe extern "C" fn(*mut c_void) -> c_int;

/// Capture modes (CUstreamCaptureMode): which calls of other threads invalidate the capture.
pub const MODES: [(&str, c_int); 3] = [("global", 0), ("thread-local", 1), ("relaxed", 2)];

/// Creates a stream that synchronizes with the NULL stream. It lives until the process ends.
///
/// # Errors
/// The error of the driver.
pub fn blocking_stream(context: &Arc<Context>) -> Result<Stream, String> {
    let _current = context.push().map_err(|error| error.to_string())?;
    let mut stream = std::ptr::null_mut();
    // SAFETY: the type matches cuda.h; `stream` is an out-parameter for one handle, which is never
    // destroyed.
    unsafe {
        let create = std::mem::transmute::<*mut c_void, Create>(symbol(c"cuStreamCreate")?);
        check("cuStreamCreate", create(&mut stream, 0))?;
        Ok(Stream::handed_in(context, stream, ()))
    }
}

/// Begins to capture a stream.
///
/// # Errors
/// The error of the driver.
pub fn begin(stream: &Stream, mode: c_int) -> Result<(), String> {
    let _current = stream.context().push().map_err(|error| error.to_string())?;
    // SAFETY: the type matches cuda.h, and the stream is alive.
    unsafe {
        let begin = std::mem::transmute::<*mut c_void, Begin>(symbol(c"cuStreamBeginCapture_v2")?);
        check("cuStreamBeginCapture_v2", begin(stream.as_raw(), mode))
    }
}

/// Ends the capture of a stream and destroys the graph.
///
/// # Errors
/// The error of the driver; it contains 901 if a call of other code invalidated the capture.
pub fn end(stream: &Stream) -> Result<(), String> {
    let _current = stream.context().push().map_err(|error| error.to_string())?;
    let mut graph = std::ptr::null_mut();
    // SAFETY: the types match cuda.h; `graph` is an out-parameter for one handle, destroyed once.
    unsafe {
        let end = std::mem::transmute::<*mut c_void, End>(symbol(c"cuStreamEndCapture")?);
        let destroy = std::mem::transmute::<*mut c_void, Destroy>(symbol(c"cuGraphDestroy")?);
        check("cuStreamEndCapture", end(stream.as_raw(), &mut graph))?;
        check("cuGraphDestroy", destroy(graph))
    }
}
