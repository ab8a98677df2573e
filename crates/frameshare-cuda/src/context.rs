// SPDX-License-Identifier: MIT OR Apache-2.0

//! CUDA contexts: created by this crate, or created elsewhere and passed in.
//!
//! Contexts are made current by push and pop, never by replacing the current context: the calling
//! thread often belongs to another library.
//!
//! # Safety
//! This file calls the driver with context handles. A handle created here lives as long as its
//! [`Context`]; for an external handle the caller of [`Context::handed_in`] guarantees the
//! lifetime.
#![allow(unsafe_code)]

use std::any::Any;
use std::cell::Cell;
use std::ffi::c_void;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use crate::Result;
use crate::abi::CUcontext;
use crate::capture_mode::{self, Relaxed};
use crate::device::Device;
use crate::driver::{self, Driver, Handle};
use crate::error::log_drop;

thread_local! {
    /// The context that the innermost [`Current`] of this thread made current.
    static CURRENT: Cell<CUcontext> = const { Cell::new(std::ptr::null_mut()) };
}

/// A CUDA context.
pub struct Context {
    driver: &'static Driver,
    raw: Handle<cudarc::driver::sys::CUctx_st>,
    device: Device,
    origin: Origin,
}

enum Origin {
    Primary,
    Created,
    /// An external context, with the object that keeps it alive.
    HandedIn {
        _owner: Box<dyn Any + Send + Sync>,
    },
}

impl Context {
    /// Returns the device's primary context, which all users of the CUDA runtime in the process
    /// share.
    ///
    /// # Errors
    /// Any error that the driver returns, e.g. CUDA_ERROR_DEVICE_UNAVAILABLE if another process
    /// uses the device exclusively.
    ///
    /// # References
    /// CUDA driver API, cuDevicePrimaryCtxRetain.
    pub fn primary(device: &Device) -> Result<Arc<Context>> {
        let driver = driver::get()?;
        let mut raw = std::ptr::null_mut();
        let _relaxed = Relaxed::enter(driver);
        // SAFETY: `raw` is an out-parameter for one handle; the device came from the driver.
        unsafe { driver.cuDevicePrimaryCtxRetain(&mut raw, device.raw()) }?;
        Ok(Arc::new(Context { driver, raw: Handle(raw), device: device.clone(), origin: Origin::Primary }))
    }

    /// Creates a new context. Its mappings are not visible to other contexts of the process.
    ///
    /// # Errors
    /// As [`Context::primary`].
    ///
    /// # References
    /// CUDA driver API, cuCtxCreate.
    pub fn create(device: &Device) -> Result<Arc<Context>> {
        let driver = driver::get()?;
        let mut raw = std::ptr::null_mut();
        let _relaxed = Relaxed::enter(driver);
        // SAFETY: `raw` is an out-parameter for one handle; the device came from the driver.
        unsafe { driver.cuCtxCreate_v2(&mut raw, 0, device.raw()) }?;
        let context = Context { driver, raw: Handle(raw), device: device.clone(), origin: Origin::Created };
        // Creating a context pushes it; restore the caller's current context.
        // SAFETY: the pop has an out-parameter for one handle, and undoes the push of the call
        // above.
        unsafe { driver.cuCtxPopCurrent_v2(&mut raw) }?;
        Ok(Arc::new(context))
    }

    /// Wraps a context created elsewhere, such as GStreamer's. `owner` is dropped together with
    /// this object.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_CONTEXT and any other error that the driver returns.
    ///
    /// # Safety
    /// `raw` must be a CUcontext of this process that is not destroyed before `owner` is dropped.
    ///
    /// # References
    /// CUDA driver API, cuCtxGetDevice.
    pub unsafe fn handed_in(raw: *mut c_void, owner: impl Any + Send + Sync) -> Result<Arc<Context>> {
        let driver = driver::get()?;
        let raw: CUcontext = raw.cast();
        let mut device = 0;
        // SAFETY: the caller guarantees the context; the pop undoes the push, whatever the query
        // returns.
        let found = unsafe {
            driver.cuCtxPushCurrent_v2(raw)?;
            let found = driver.cuCtxGetDevice(&mut device);
            driver.cuCtxPopCurrent_v2(&mut std::ptr::null_mut())?;
            found
        };
        found?;
        let device = Device::with_raw(device)?;
        let origin = Origin::HandedIn { _owner: Box::new(owner) };
        Ok(Arc::new(Context { driver, raw: Handle(raw), device, origin }))
    }

    pub(crate) fn driver(&self) -> &'static Driver {
        self.driver
    }

    pub(crate) fn raw(&self) -> CUcontext {
        self.raw.0
    }

    /// Returns the CUcontext, for use with other libraries. This object keeps ownership.
    #[must_use]
    pub fn as_raw(&self) -> *mut c_void {
        self.raw.0.cast()
    }

    /// Returns the device of the context.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Makes the context current on the calling thread until the guard is dropped. Guards must be
    /// dropped in reverse order of creation.
    ///
    /// Every call of this crate pushes its context by itself; holding a guard around several calls
    /// avoids repeated pushes. The thread is in relaxed capture mode meanwhile, so that its calls
    /// leave stream captures of other threads intact (see [`crate::capture`]).
    ///
    /// # Errors
    /// Any error that the driver returns, e.g. CUDA_ERROR_INVALID_CONTEXT.
    ///
    /// # References
    /// CUDA driver API, cuCtxPushCurrent.
    pub fn push(&self) -> Result<Current<'_>> {
        let outer = CURRENT.get();
        if outer != self.raw.0 {
            // SAFETY: the context lives as long as `self`.
            unsafe { self.driver.cuCtxPushCurrent_v2(self.raw.0) }?;
            CURRENT.set(self.raw.0);
        }
        let relaxed = outer.is_null().then(|| Relaxed::enter(self.driver));
        Ok(Current { context: self, outer, _relaxed: relaxed, _thread: PhantomData })
    }

    /// Blocks until all work of the context is complete. For teardown, and for worker threads that
    /// call [`crate::event::Event::record_context_blocking`]. It invalidates captures that begin
    /// meanwhile, announced ones too.
    ///
    /// # Errors
    /// Failures of earlier work; see [`crate::Error::is_sticky`]. [`crate::Error::Capturing`] in a
    /// known stream capture.
    ///
    /// # References
    /// CUDA driver API, cuCtxSynchronize.
    pub fn synchronize(&self) -> Result<()> {
        let _current = self.push()?;
        // Not held during the call, which can block for long.
        drop(capture_mode::exclude(self.driver, self.raw.0)?);
        // SAFETY: the call uses only the current context.
        unsafe { self.driver.cuCtxSynchronize() }
    }

    /// For callers that try a context-wide call again until it succeeds, before each attempt:
    /// returns an error for a while, up to 32 ms, after such a call has invalidated a stream
    /// capture in this context. So they do not invalidate one capture after the other.
    ///
    /// # Errors
    /// [`crate::Error::Capturing`].
    pub fn check_capture_pause(&self) -> Result<()> {
        capture_mode::check_pause(self.raw.0)
    }

    /// Returns the free and the total device memory, in bytes.
    ///
    /// # Errors
    /// Failures of earlier work; see [`crate::Error::is_sticky`].
    ///
    /// # References
    /// CUDA driver API, cuMemGetInfo.
    pub fn memory_left(&self) -> Result<(u64, u64)> {
        let _current = self.push()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: both arguments are out-parameters for one number.
        unsafe { self.driver.cuMemGetInfo_v2(&mut free, &mut total) }?;
        Ok((free as u64, total as u64))
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Context({:p} on {})", self.raw.0, self.device)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        let _relaxed = Relaxed::enter(self.driver);
        // Every object created in the context keeps it alive, so it is no longer in use.
        log_drop(match self.origin {
            // SAFETY: releases the reference that `primary` retained.
            Origin::Primary => unsafe { self.driver.cuDevicePrimaryCtxRelease_v2(self.device.raw()) },
            // SAFETY: `self` owns the context, which is not used after this.
            Origin::Created => unsafe { self.driver.cuCtxDestroy_v2(self.raw.0) },
            Origin::HandedIn { .. } => Ok(()),
        });
    }
}

/// Guard that keeps a context current on this thread.
#[must_use = "the context is current only as long as the guard lives"]
pub struct Current<'a> {
    context: &'a Context,
    outer: CUcontext,
    /// `None` inside of another guard, which has it.
    _relaxed: Option<Relaxed>,
    /// The guard must stay on its thread, since the current context is per thread.
    _thread: PhantomData<*mut ()>,
}

impl Drop for Current<'_> {
    fn drop(&mut self) {
        if self.outer == self.context.raw.0 {
            return;
        }
        CURRENT.set(self.outer);
        let mut popped = std::ptr::null_mut();
        // SAFETY: `popped` is an out-parameter for one handle; creating the guard did the matching
        // push.
        log_drop(unsafe { self.context.driver.cuCtxPopCurrent_v2(&mut popped) });
        if popped != self.context.raw.0 {
            log::error!("unbalanced CUDA context stack on this thread: popped another context, {popped:p}");
        }
    }
}
