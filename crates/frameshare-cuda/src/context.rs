//! CUDA contexts: our own, and those of others that were handed in.
//!
//! Contexts are made current by pushing and popping, never by replacing what a thread has: the thread is often someone
//! else's.
//!
//! # Safety
//! This file calls the driver with context handles. Handles that we made live as long as the [`Context`]; for handles
//! that were handed in the caller of [`Context::handed_in`] vouches.
#![allow(unsafe_code)]

use std::any::Any;
use std::cell::Cell;
use std::ffi::c_void;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use crate::Result;
use crate::abi::CUcontext;
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
    /// Someone else's, with what keeps it alive.
    HandedIn {
        _owner: Box<dyn Any + Send + Sync>,
    },
}

impl Context {
    /// The device's primary context, which is shared with everything in the process that uses the CUDA runtime.
    ///
    /// # Errors
    /// What the driver says, e.g. CUDA_ERROR_DEVICE_UNAVAILABLE when another process has the device for itself.
    ///
    /// # References
    /// CUDA driver API, cuDevicePrimaryCtxRetain.
    pub fn primary(device: &Device) -> Result<Arc<Context>> {
        let driver = driver::get()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: `raw` takes one handle; the device came from the driver.
        unsafe { driver.cuDevicePrimaryCtxRetain(&mut raw, device.raw()) }?;
        Ok(Arc::new(Context { driver, raw: Handle(raw), device: device.clone(), origin: Origin::Primary }))
    }

    /// A new context of our own. What it maps is invisible to the other contexts of the process.
    ///
    /// # Errors
    /// As [`Context::primary`].
    ///
    /// # References
    /// CUDA driver API, cuCtxCreate.
    pub fn create(device: &Device) -> Result<Arc<Context>> {
        let driver = driver::get()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: `raw` takes one handle; the device came from the driver.
        unsafe { driver.cuCtxCreate_v2(&mut raw, 0, device.raw()) }?;
        let context = Context { driver, raw: Handle(raw), device: device.clone(), origin: Origin::Created };
        // Creating pushes, and the caller's thread is to stay as it was.
        // SAFETY: the pop takes one handle, and undoes the push of the call above.
        unsafe { driver.cuCtxPopCurrent_v2(&mut raw) }?;
        Ok(Arc::new(context))
    }

    /// A context that someone else made, such as GStreamer's. `owner` is held as long as the context is used here.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_CONTEXT and what else the driver says.
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
        // SAFETY: the caller vouches for the context; the pop undoes the push, whatever is between them.
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

    /// The CUcontext, for libraries that want one. It stays this object's.
    #[must_use]
    pub fn as_raw(&self) -> *mut c_void {
        self.raw.0.cast()
    }

    /// The device that the context is on.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Makes the context current on the calling thread until the guard is dropped. Guards are dropped in the reverse
    /// of the order in which they were made.
    ///
    /// Every call of this crate does so by itself; holding a guard around several saves that work.
    ///
    /// # Errors
    /// What the driver says, e.g. CUDA_ERROR_INVALID_CONTEXT.
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
        Ok(Current { context: self, outer, _thread: PhantomData })
    }

    /// Blocks until all work of the context is done. For teardown, and for worker threads of the context-wide record
    /// (see [`crate::event::Event::record_context_blocking`]).
    ///
    /// # Errors
    /// Failures of earlier work; see [`crate::Error::is_sticky`].
    ///
    /// # References
    /// CUDA driver API, cuCtxSynchronize.
    pub fn synchronize(&self) -> Result<()> {
        let _current = self.push()?;
        // SAFETY: takes nothing but the current context.
        unsafe { self.driver.cuCtxSynchronize() }
    }

    /// How many bytes of the device's memory nobody has taken, and how many there are.
    ///
    /// # Errors
    /// Failures of earlier work; see [`crate::Error::is_sticky`].
    ///
    /// # References
    /// CUDA driver API, cuMemGetInfo.
    pub fn memory_left(&self) -> Result<(u64, u64)> {
        let _current = self.push()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: each takes one number.
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
        // Everything made in the context holds it alive, so nothing uses it any more.
        log_drop(match self.origin {
            // SAFETY: gives back the reference that `primary` took.
            Origin::Primary => unsafe { self.driver.cuDevicePrimaryCtxRelease_v2(self.device.raw()) },
            // SAFETY: the context is ours and not used after this.
            Origin::Created => unsafe { self.driver.cuCtxDestroy_v2(self.raw.0) },
            Origin::HandedIn { .. } => Ok(()),
        });
    }
}

/// A context that is current on this thread.
#[must_use = "the context is current only as long as the guard lives"]
pub struct Current<'a> {
    context: &'a Context,
    outer: CUcontext,
    /// The current context belongs to a thread, and so does the guard.
    _thread: PhantomData<*mut ()>,
}

impl Drop for Current<'_> {
    fn drop(&mut self) {
        if self.outer == self.context.raw.0 {
            return;
        }
        CURRENT.set(self.outer);
        let mut popped = std::ptr::null_mut();
        // SAFETY: `popped` takes one handle; the matching push was done when the guard was made.
        log_drop(unsafe { self.context.driver.cuCtxPopCurrent_v2(&mut popped) });
        if popped != self.context.raw.0 {
            log::error!("another context was left on the CUDA stack of this thread: {popped:p}");
        }
    }
}
