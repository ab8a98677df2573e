// SPDX-License-Identifier: MIT OR Apache-2.0

//! CUDA streams of consumers, as DLPack and array libraries name them.
//!
//! # Safety
//!
//! The default stream of a thread is used on that thread.
#![allow(unsafe_code)]

use crate::{
    cuda_stream::{Handle, NamedStream},
    error::OrRaise,
    lease::Lease,
};
use frameshare::{
    cuda::{Context, Stream},
    memory::Address,
    reader,
};
use pyo3::{exceptions::PyValueError, prelude::*};
use std::sync::Arc;

/// The stream of a consumer.
#[derive(Debug)]
pub enum Consumer {
    /// A stream whose work is ordered.
    Stream(Arc<Stream>),
    /// The default stream of the calling thread. No other thread can name it, so that a release
    /// waits for all work of the context.
    PerThread,
    /// No stream is named: nothing waits for the frame, and a release waits for all work of the
    /// context.
    Unordered,
}

impl Consumer {
    /// The stream of a call of `__dlpack__`.
    ///
    /// # Errors
    /// `ValueError` for 0 and numbers that are no streams, `TypeError` for other objects.
    pub fn of_dlpack(stream: Option<&Bound<'_, PyAny>>, lease: &Lease, gpu: &Arc<Context>) -> PyResult<Self> {
        let Some(stream) = stream else { return Self::of_named(Handle::DEFAULT.into(), lease, gpu) };
        match stream.extract::<i64>() {
            Ok(0) => Err(PyValueError::new_err(
                "stream is 0, which is ambiguous: pass 1 for the legacy default stream, 2 for that of each \
                 thread, or a cudaStream_t",
            )),
            Ok(-1) => Ok(Self::Unordered),
            _ => Self::of_object(stream, lease, gpu),
        }
    }

    /// The stream that a caller names: a number, where 0 is the legacy default stream, or an object
    /// of an array library.
    ///
    /// # Errors
    /// As [`Consumer::of_dlpack`].
    pub fn of_object(stream: &Bound<'_, PyAny>, lease: &Lease, gpu: &Arc<Context>) -> PyResult<Self> {
        Self::of_named(NamedStream::of(stream)?, lease, gpu)
    }

    fn of_named(stream: NamedStream, lease: &Lease, gpu: &Arc<Context>) -> PyResult<Self> {
        match stream.handle {
            Handle::PER_THREAD => Ok(Self::PerThread),
            _ => lease.stream(stream, gpu).map(Self::Stream),
        }
    }

    /// Returns the device pointer of a leased frame. Work that the consumer queues from now on
    /// starts after the frame is written; the frame's release follows that work.
    ///
    /// # Errors
    /// The error of the fence.
    pub fn address(&self, frame: &reader::Frame, gpu: &Arc<Context>) -> PyResult<u64> {
        let address = match self {
            Self::Stream(stream) => frame.address_on(stream).or_raise()?,
            Self::PerThread => {
                frame.wait_on(&per_thread(gpu)).or_raise()?;
                frame.address()
            }
            Self::Unordered => frame.address(),
        };
        Ok(device(address))
    }

    /// Makes the frame's release follow the work that is queued until then.
    pub fn delay_release(&self, frame: &reader::Frame) {
        match self {
            Self::Stream(stream) => frame.used_on_stream(Arc::clone(stream)),
            Self::PerThread | Self::Unordered => {
                frame.address();
            }
        }
    }
}

/// The default stream of the calling thread, for calls on this thread.
pub fn per_thread(gpu: &Arc<Context>) -> Stream {
    // SAFETY: the handle is valid on each thread, for as long as the context.
    unsafe { Stream::handed_in(gpu, Handle::PER_THREAD.raw(), ()) }
}

/// The pointer of an address in GPU memory.
pub fn device(address: Address) -> u64 {
    match address {
        Address::Device(start) => start,
        Address::Host(start) => start.as_ptr().addr() as u64,
    }
}
