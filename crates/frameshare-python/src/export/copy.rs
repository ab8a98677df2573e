// SPDX-License-Identifier: MIT OR Apache-2.0

//! Private copies of frames, in host or GPU memory.
//!
//! # Safety
//!
//! Copies by the GPU go between memory that is held until they are done: the lease is released
//! behind the stream of the copy, and copies to host memory are waited for. Sizes are those that
//! the engine has checked.
#![allow(unsafe_code)]

use super::consumer::{Consumer, device, per_thread};
use crate::{
    error::{OrRaise, UnsupportedError},
    fork::OfProcess,
    gpu::Gpu,
    layout::ArrayLayout,
    lease::Lease,
    memory::{GpuCopy, HostCopy, Memory},
};
use frameshare::{cuda::Stream, reader};
use frameshare_cuda::copy::{Plane, Side};
use pyo3::prelude::*;
use std::{
    ptr,
    sync::{Arc, atomic::Ordering},
};

/// Rows of bytes in a frame.
#[derive(Clone, Copy, Debug)]
pub struct Rows {
    /// Bytes from the start of the frame to the first row.
    pub offset: usize,
    /// Bytes from one row to the next; negative for bottom-up images.
    pub stride: isize,
    /// Bytes of a row.
    pub width: usize,
    /// Number of rows.
    pub height: usize,
}

impl Rows {
    /// The rows of an array.
    pub fn of(array: &ArrayLayout) -> Self {
        Self {
            offset: array.offset,
            stride: array.strides[0] as isize,
            width: array.row_bytes() as usize,
            height: array.shape[0] as usize,
        }
    }

    /// All bytes.
    pub fn all(size: usize) -> Self {
        Self { offset: 0, stride: size as isize, width: size, height: 1 }
    }

    fn start(self, row: usize) -> usize {
        self.offset.wrapping_add_signed(self.stride * row as isize)
    }
}

/// Copies rows into host memory, without gaps. Waits for the GPU without the GIL.
///
/// # Errors
/// `MemoryError`, and errors of the driver.
pub fn to_host(py: Python<'_>, lease: &Lease, rows: Rows) -> PyResult<HostCopy> {
    let copy = HostCopy::new(rows.width * rows.height)?;
    py.detach(|| match lease.gpu() {
        None => {
            copy_on_host(lease.memory(), rows, &copy);
            Ok(())
        }
        Some(gpu) => {
            let stream = gpu.stream().or_raise()?;
            let from = address_on(lease.memory(), &stream)?;
            copy_rows(&stream, rows, from, |row| Side::Host(at(&copy, row)))?;
            stream.synchronize().or_raise()
        }
    })?;
    Ok(copy)
}

/// Copies rows into GPU memory, without gaps, in the order of the consumer's stream. Without one it
/// waits for the copy. The driver may block, so the GIL is released.
///
/// # Errors
/// Errors of the driver; `UnsupportedError` for a frame in host memory.
pub fn to_gpu(py: Python<'_>, lease: &Lease, rows: Rows, consumer: &Consumer) -> PyResult<GpuCopy> {
    py.detach(|| queue_to_gpu(lease, rows, consumer))
}

fn queue_to_gpu(lease: &Lease, rows: Rows, consumer: &Consumer) -> PyResult<GpuCopy> {
    let gpu = lease.gpu().ok_or_else(|| {
        UnsupportedError::new_err("the frame is in host memory: copy it to the GPU by your array library")
    })?;
    let copy = GpuCopy::new(gpu, rows.width * rows.height).or_raise()?;
    let target = |row: usize| Side::Device(copy.start() + (row * rows.width) as u64);
    match consumer {
        Consumer::Stream(stream) => {
            let from = address_on(lease.memory(), stream)?;
            copy_rows(stream, rows, from, target)?;
        }
        Consumer::PerThread => {
            let from = match lease.memory() {
                Memory::Leased(frame) => consumer.address(frame, gpu)?,
                other => start_of(other),
            };
            copy_rows(&per_thread(gpu), rows, from, target)?;
        }
        Consumer::Unordered => {
            let stream = gpu.stream().or_raise()?;
            let from = address_on(lease.memory(), &stream)?;
            copy_rows(&stream, rows, from, target)?;
            stream.synchronize().or_raise()?;
        }
    }
    Ok(copy)
}

/// Returns the device pointer of a frame, for work on this stream.
fn address_on(memory: &Memory, stream: &Arc<Stream>) -> PyResult<u64> {
    match memory {
        Memory::Leased(frame) => frame.address_on(stream).map(device).or_raise(),
        other => Ok(start_of(other)),
    }
}

fn start_of(memory: &Memory) -> u64 {
    match memory {
        Memory::Gpu(copy) => copy.start(),
        Memory::Leased(frame) => device(frame.address()),
        Memory::Host(copy) => copy.start().as_ptr().addr() as u64,
    }
}

fn at(copy: &HostCopy, offset: usize) -> *mut u8 {
    copy.start().as_ptr().wrapping_add(offset)
}

/// Queues the copy of rows; `target` is the place of each.
fn copy_rows(stream: &Stream, rows: Rows, from: u64, target: impl Fn(usize) -> Side) -> PyResult<()> {
    let Rows { stride, width, height, .. } = rows;
    let place = |row| Side::Device(from + rows.start(row) as u64);
    // SAFETY: the contract in the header: rows are inside the frame, and the target holds all.
    let copy = |first: usize, pitch: usize, count: usize| unsafe {
        let (to, from) = (Plane { at: target(first), pitch: width }, Plane { at: place(first), pitch });
        stream.copy_2d(to, from, width, count)
    };
    match usize::try_from(stride) {
        Ok(stride) if height > 1 => copy(0, stride, height).or_raise(),
        _ => (0..height).try_for_each(|row| copy(row, width, 1)).or_raise(),
    }
}

/// Copies rows on the host. Bytes of an exporter that is not trusted are loaded one by one.
fn copy_on_host(memory: &Memory, rows: Rows, copy: &HostCopy) {
    let trusted = match memory {
        Memory::Leased(frame) => frame.slice().map(<[u8]>::as_ptr),
        _ => memory.host_start().map(|start| start.as_ptr().cast_const()),
    };
    for row in 0..rows.height {
        let (from, to) = (rows.start(row), at(copy, row * rows.width));
        match (trusted, memory.leased().map(reader::Frame::bytes)) {
            // SAFETY: the row is inside the frame, and `copy` holds all rows. The frame is not
            // written, since its exporter is trusted; nor is the copy, which is new.
            (Some(start), _) => unsafe { ptr::copy_nonoverlapping(start.add(from), to, rows.width) },
            (None, bytes) => {
                let row = bytes.and_then(|bytes| bytes.get(from..from + rows.width)).unwrap_or_default();
                for (index, byte) in row.iter().enumerate() {
                    // SAFETY: `copy` holds all rows, and is new.
                    unsafe { to.add(index).write(byte.load(Ordering::Relaxed)) };
                }
            }
        }
    }
}

/// Returns a copy of the whole frame in memory of its kind, complete when it returns.
///
/// # Errors
/// As [`to_host`] and [`to_gpu`].
pub fn whole(py: Python<'_>, lease: &Lease) -> PyResult<(Memory, Option<Arc<Gpu>>)> {
    let rows = Rows::all(lease.memory().len());
    match lease.gpu() {
        None => Ok((Memory::Host(to_host(py, lease, rows)?), None)),
        Some(gpu) => {
            let copy = to_gpu(py, lease, rows, &Consumer::Unordered)?;
            Ok((Memory::Gpu(OfProcess::new(copy)), Some(gpu.clone())))
        }
    }
}
