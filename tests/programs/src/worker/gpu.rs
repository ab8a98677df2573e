// SPDX-License-Identifier: MIT OR Apache-2.0

//! GPU work of a worker: streams, writes, reads.
//!
//! # Safety
//! This file passes addresses to streams, and handles to the driver. The engine keeps the memory of
//! slots and frames until the fences of the work on it are signaled, which the programs test;
//! memory of the worker's own lives as long as the process, or is freed as its library does.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_int, c_uint, c_void};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use frameshare_cuda::context::Context;
use frameshare_cuda::event::Event;
use frameshare_cuda::stream::Stream;
use frameshare_cuda::{DevicePtr, host_buffer::HostBuffer};

/// Returns the byte that fills the frame of a number. It is neither 0 nor 0xfd, with which the
/// driver fills fresh memory, nor 0xee, with which a library soils freed memory.
pub fn byte_of(number: u64) -> u8 {
    1 + (number % 229) as u8
}

/// The handle of the per-thread default stream.
const PER_THREAD: usize = 2;

/// Locked for writing when the process ends: a thread of the engine may drop a stream after that.
static ENDS: RwLock<()> = RwLock::new(());

/// Keeps streams from being destroyed while the process exits, which CUDA forbids.
pub fn end() {
    std::mem::forget(ENDS.write().unwrap_or_else(PoisonError::into_inner));
}

struct Destroy(Arc<Context>, usize);

impl Drop for Destroy {
    fn drop(&mut self) {
        let Ok(_goes_on) = ENDS.try_read() else { return };
        let Ok(_current) = self.0.push() else { return };
        type Call = unsafe extern "C" fn(*mut c_void) -> c_int;
        if let Some(call) = symbol(c"cuStreamDestroy_v2") {
            // SAFETY: the type matches cuda.h; the owner of the handle drops this once.
            let code = unsafe {
                std::mem::transmute::<*mut c_void, Call>(call)(std::ptr::without_provenance_mut(self.1))
            };
            if code != 0 {
                super::report(&format!("cuStreamDestroy returned {code}"));
            }
        }
    }
}

fn symbol(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: libcuda is loaded under this name already, and stays.
    let found = unsafe { libc::dlsym(libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW), name.as_ptr()) };
    (!found.is_null()).then_some(found)
}

/// Creates a stream of a kind.
pub fn stream(context: &Arc<Context>, kind: &str) -> Result<Arc<Stream>> {
    let flags: c_uint = match kind {
        "legacy" => 0,
        "perthread" => {
            let raw = std::ptr::without_provenance_mut(PER_THREAD);
            // SAFETY: the handle is valid on each thread; it stays on this one.
            return Ok(Arc::new(unsafe { Stream::handed_in(context, raw, ()) }));
        }
        "blocking" => 0,
        _ => 1,
    };
    if kind == "legacy" {
        // SAFETY: null is the NULL stream of the context.
        return Ok(Arc::new(unsafe { Stream::handed_in(context, std::ptr::null_mut(), ()) }));
    }
    type Call = unsafe extern "C" fn(*mut *mut c_void, c_uint) -> c_int;
    let call = symbol(c"cuStreamCreate").ok_or_else(|| anyhow::anyhow!("no cuStreamCreate"))?;
    let _current = context.push()?;
    let mut raw = std::ptr::null_mut();
    // SAFETY: the type matches cuda.h; `raw` is an out-parameter for one handle.
    let code = unsafe { std::mem::transmute::<*mut c_void, Call>(call)(&mut raw, flags) };
    ensure!(code == 0, "cuStreamCreate returned {code}");
    let owner = Destroy(context.clone(), raw.addr());
    // SAFETY: the stream is of this context, and destroyed with its owner.
    Ok(Arc::new(unsafe { Stream::handed_in(context, raw, owner) }))
}

/// Fills memory in two halves, so that an unordered read can find a torn frame.
pub fn fill(stream: &Stream, start: DevicePtr, size: u64, byte: u8) -> Result<()> {
    let half = size / 2;
    for (start, size) in [(start, half), (start + half, size - half)] {
        // SAFETY: see the header of the file.
        unsafe { stream.fill(start, byte, size as usize) }?;
    }
    Ok(())
}

/// Copies memory on a stream.
pub fn copy(stream: &Stream, to: DevicePtr, from: DevicePtr, size: u64) -> Result<()> {
    // SAFETY: see the header of the file.
    Ok(unsafe { stream.copy(to, from, size as usize) }?)
}

/// Reads that are queued and not verified yet, and the memory that they copy to.
#[derive(Default)]
pub struct Reads {
    queued: Vec<Read>,
    buffers: Vec<HostBuffer>,
    used: usize,
}

struct Read {
    what: String,
    event: Event,
    buffer: usize,
    from: usize,
    size: usize,
    byte: u8,
}

/// Bytes of a buffer for reads.
const BUFFER: usize = 1 << 20;

impl Reads {
    /// Copies a frame to host memory on a stream. The copy is verified later.
    pub fn read(
        &mut self,
        stream: &Stream,
        from: DevicePtr,
        size: usize,
        number: u64,
        what: String,
    ) -> Result<()> {
        if self.buffers.is_empty() || self.used + size > BUFFER {
            self.buffers.push(HostBuffer::new(stream.context(), BUFFER)?);
            self.used = 0;
        }
        let buffer = self.buffers.len() - 1;
        let to = self.buffers[buffer].as_ptr().cast_mut().wrapping_add(self.used);
        // SAFETY: the range is a part of the buffer, which lives until the copy is verified; it is
        // not accessed before. For the frame see the header of the file.
        unsafe { stream.download(to, from, size) }?;
        let event = Event::behind(stream, stream.context())?;
        self.queued.push(Read { what, event, buffer, from: self.used, size, byte: byte_of(number) });
        self.used += size;
        Ok(())
    }

    /// Waits until all reads are done, and verifies them.
    pub fn verify(&mut self) -> Result<()> {
        let until = Instant::now() + Duration::from_secs(5);
        for read in self.queued.drain(..) {
            while !read.event.query()?.is_ready() {
                ensure!(Instant::now() < until, "{} does not end", read.what);
                std::thread::sleep(Duration::from_micros(200));
            }
            let bytes = &self.buffers[read.buffer][read.from..read.from + read.size];
            check(bytes, read.byte, &read.what);
        }
        Ok(())
    }
}

impl Drop for Reads {
    fn drop(&mut self) {
        // Dropping a buffer waits for work on it, which may be of another thread.
        KEPT.lock().unwrap_or_else(PoisonError::into_inner).append(&mut self.buffers);
    }
}

static KEPT: Mutex<Vec<HostBuffer>> = Mutex::new(Vec::new());

/// Reports bytes that differ.
pub fn check(bytes: &[u8], byte: u8, what: &str) {
    if let Some(at) = bytes.iter().position(|found| *found != byte) {
        let wrong = bytes.iter().filter(|found| **found != byte).count();
        super::report(&format!(
            "{what}: {wrong} of {} bytes are wrong, the first at {at}: {:#04x} instead of {byte:#04x}",
            bytes.len(),
            bytes[at]
        ));
    }
}

/// Kills this process.
pub fn die() -> ! {
    // SAFETY: the signal ends the process.
    unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    std::process::abort()
}
