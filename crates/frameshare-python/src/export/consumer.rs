// SPDX-License-Identifier: MIT OR Apache-2.0

//! CUDA streams of consumers, as DLPack and array libraries name them.
//!
//! # Safety
//!
//! Handles come from Python. The caller names a stream of this process that lives as long as the
//! frames that it is named for; an object that is given for it is kept as long.
#![allow(unsafe_code)]

use crate::{cuda_stream::Handle, error::OrRaise, lease::Lease};
use frameshare::{
    cuda::{Context, Stream},
    memory::Address,
    reader,
};
use pyo3::{exceptions::PyValueError, prelude::*, types::PyInt};
use std::{ffi::c_void, ptr, sync::Arc};

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
        let Some(stream) = stream else { return Self::legacy(lease, gpu) };
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
        let handle = Handle::of(stream)?;
        let found = match handle {
            Handle::DEFAULT => Self::legacy(lease, gpu),
            Handle::PER_THREAD => Ok(Self::PerThread),
            handle => {
                let raw = ptr::without_provenance_mut::<c_void>(handle.number());
                // SAFETY: the contract in the header.
                lease.stream(raw, || unsafe { Stream::found(raw, gpu) }).map(Self::Stream).or_raise()
            }
        }?;
        if !stream.is_instance_of::<PyInt>() {
            lease.keep(stream.clone().unbind());
        }
        Ok(found)
    }

    /// The legacy default stream of the frame's context.
    fn legacy(lease: &Lease, gpu: &Arc<Context>) -> PyResult<Self> {
        // SAFETY: the NULL stream lives as long as its context, which the stream holds.
        let found =
            lease.stream(ptr::null_mut(), || Ok(unsafe { Stream::handed_in(gpu, ptr::null_mut(), ()) }));
        found.map(Self::Stream).or_raise()
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
    let raw = ptr::without_provenance_mut::<c_void>(Handle::PER_THREAD.number());
    // SAFETY: the handle is valid on each thread, for as long as the context.
    unsafe { Stream::handed_in(gpu, raw, ()) }
}

/// The pointer of an address in GPU memory.
pub fn device(address: Address) -> u64 {
    match address {
        Address::Device(start) => start,
        Address::Host(start) => start.as_ptr().addr() as u64,
    }
}
