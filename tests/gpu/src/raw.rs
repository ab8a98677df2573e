// SPDX-License-Identifier: MIT OR Apache-2.0

//! Driver calls that other code of a process makes, and the driver crate does not.
//!
//! # Safety
//! This file calls the driver with the signatures of cuda.h and out-parameters on its own stack.
//! Streams that it creates live until the process ends.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_int, c_uint, c_void};
use std::sync::Arc;

use frameshare_cuda::context::Context;
use frameshare_cuda::stream::Stream;
use frameshare_gpu_harness::kernel::{check, symbol};
use serde::{Deserialize, Serialize};

type Result<T> = std::result::Result<T, String>;

/// Streams besides those that the driver crate creates.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub enum Kind {
    /// With the highest priority.
    Priority,
    /// The legacy default stream.
    Legacy,
    /// The default stream of the calling thread.
    PerThread,
    /// Of a green context of the same device.
    Green,
}

/// Calls a function of the driver; fails if the driver lacks it.
macro_rules! call {
    ($name:ident($($value:expr => $kind:ty),*)) => {{
        let name = concat!(stringify!($name), "\0");
        let address = symbol(CStr::from_bytes_with_nul(name.as_bytes()).map_err(|error| error.to_string())?)?;
        let function =
            std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($kind),*) -> c_int>(address);
        check(stringify!($name), function($($value),*))
    }};
}

/// A CUdevResource, with room for larger ones of later versions.
#[repr(C, align(16))]
struct Resource([u8; 512]);

const NON_BLOCKING: c_uint = 1;
const HIGHEST: c_int = -5;
/// CU_DEV_RESOURCE_TYPE_SM.
const MULTIPROCESSORS: c_int = 1;
const LEAST_MULTIPROCESSORS: c_uint = 16;
/// CU_GREEN_CTX_DEFAULT_STREAM.
const GREEN_FLAGS: c_uint = 1;
/// CU_STREAM_CAPTURE_MODE_RELAXED.
const RELAXED: c_int = 2;

/// Returns a stream of this kind.
pub fn stream(context: &Arc<Context>, kind: Kind) -> Result<Stream> {
    let current = context.push().map_err(|error| error.to_string())?;
    let mut made = std::ptr::null_mut();
    let raw = match kind {
        Kind::Legacy => std::ptr::without_provenance_mut(1),
        Kind::PerThread => std::ptr::without_provenance_mut(2),
        Kind::Priority => {
            let out = &raw mut made;
            // SAFETY: see the header of the file.
            unsafe {
                call!(cuStreamCreateWithPriority(
                    out => *mut *mut c_void, NON_BLOCKING => c_uint, HIGHEST => c_int
                ))
            }?;
            made
        }
        Kind::Green => green()?,
    };
    drop(current);
    // SAFETY: the stream is never destroyed; handles 1 and 2 are the default streams.
    Ok(unsafe { Stream::handed_in(context, raw, ()) })
}

/// Creates a green context with a part of the current context's device, and a stream in it.
fn green() -> Result<*mut c_void> {
    let (mut device, mut all, mut part) = (0, Resource([0; 512]), Resource([0; 512]));
    let (device_out, all, part) = (&raw mut device, &raw mut all, &raw mut part);
    let mut groups: c_uint = 1;
    let [mut description, mut green, mut stream] = [std::ptr::null_mut::<c_void>(); 3];
    let (groups, rest) = (&raw mut groups, std::ptr::null_mut::<Resource>());
    let (description_out, green_out, stream_out) = (&raw mut description, &raw mut green, &raw mut stream);
    // SAFETY: see the header of the file; the resources have room for what the driver writes.
    unsafe {
        call!(cuCtxGetDevice(device_out => *mut c_int))?;
        call!(cuDeviceGetDevResource(device => c_int, all => *mut Resource, MULTIPROCESSORS => c_int))?;
        call!(cuDevSmResourceSplitByCount(
            part => *mut Resource, groups => *mut c_uint, all => *const Resource, rest => *mut Resource,
            0 => c_uint, LEAST_MULTIPROCESSORS => c_uint
        ))?;
        call!(cuDevResourceGenerateDesc(
            description_out => *mut *mut c_void, part => *mut Resource, 1 => c_uint
        ))?;
        call!(cuGreenCtxCreate(
            green_out => *mut *mut c_void, description => *mut c_void, device => c_int, GREEN_FLAGS => c_uint
        ))?;
        call!(cuGreenCtxStreamCreate(
            stream_out => *mut *mut c_void, green => *mut c_void, NON_BLOCKING => c_uint, 0 => c_int
        ))?;
    }
    Ok(stream)
}

/// Asks whether a stream is captured, by its handle, which may be stale: the process may crash.
pub fn is_capturing(context: &Context, handle: u64) -> Result<u64> {
    let _current = context.push().map_err(|error| error.to_string())?;
    let mut status: c_int = 0;
    let out = &raw mut status;
    // SAFETY: not sound for the handle of a destroyed stream. The case that passes one observes the
    // crash of this process.
    unsafe { call!(cuStreamIsCapturing(handle as usize => usize, out => *mut c_int)) }?;
    Ok(status.unsigned_abs().into())
}

/// Allocates host memory; returns its address.
pub fn allocate_host(context: &Context, size: usize) -> Result<u64> {
    let _current = context.push().map_err(|error| error.to_string())?;
    let mut start = std::ptr::null_mut();
    let out = &raw mut start;
    // SAFETY: see the header of the file.
    unsafe { call!(cuMemHostAlloc(out => *mut *mut c_void, size => usize, 0 => c_uint)) }?;
    Ok(start.addr() as u64)
}

/// Frees host memory of [`allocate_host`].
pub fn free_host(context: &Context, start: u64) -> Result<()> {
    let _current = context.push().map_err(|error| error.to_string())?;
    // SAFETY: see the header of the file; the case frees an address once.
    unsafe { call!(cuMemFreeHost(start as usize => usize)) }
}

/// Launches a graph on `stream` whose only node is a host function.
pub fn launch_graph(stream: &Stream, function: impl FnOnce() + Send + 'static) -> Result<()> {
    let context = stream.context();
    let _current = context.push().map_err(|error| error.to_string())?;
    let source = Stream::new(context).map_err(|error| error.to_string())?;
    let (captured, launched) = (source.as_raw(), stream.as_raw());
    let [mut graph, mut executable] = [std::ptr::null_mut::<c_void>(); 2];
    let (graph_out, executable_out) = (&raw mut graph, &raw mut executable);
    // SAFETY: see the header of the file; the graph is launched once, so the function is called
    // once.
    unsafe {
        symbol(c"cuGraphLaunch")?;
        call!(cuStreamBeginCapture_v2(captured => *mut c_void, RELAXED => c_int))?;
        source.call(function).map_err(|error| error.to_string())?;
        call!(cuStreamEndCapture(captured => *mut c_void, graph_out => *mut *mut c_void))?;
        call!(cuGraphInstantiateWithFlags(
            executable_out => *mut *mut c_void, graph => *mut c_void, 0 => u64
        ))?;
        call!(cuGraphLaunch(executable => *mut c_void, launched => *mut c_void))
    }
}
