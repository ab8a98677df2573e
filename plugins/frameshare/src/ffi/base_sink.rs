// SPDX-License-Identifier: MIT OR Apache-2.0

//! The virtual functions of `GstBaseSink` that its Rust binding lacks: `get_times`, `wait_event`.
//!
//! `wait_event` is called for a gap or an end of stream, before it is answered. Both wait for the
//! clock in `GstBaseSink`; a sink that is not paced takes its buffers and events when they arrive.
//!
//! # Safety
//!
//! A function pointer in a class of this plugin, called by `GstBaseSink` with valid arguments, and
//! the parent's one of the same name, called with the same.
#![allow(unsafe_code)]

use glib::{prelude::*, translate::*};
use gst::subclass::prelude::*;
use gst_base::subclass::prelude::*;

/// A sink that decides at run time whether buffers and events wait for their time.
pub(crate) trait PacedSinkImpl: BaseSinkImpl + ObjectSubclass<Type: IsA<gst::Element>> {
    /// Returns whether buffers, gaps and the end of the stream wait for their time.
    fn is_paced(&self) -> bool;

    /// Handles a gap or the end of the stream: when it is due if the sink is paced, else when it
    /// arrives in PLAYING.
    fn wait_event(&self, event: &gst::Event) -> Result<(), gst::FlowError>;
}

/// Routes the functions to [`PacedSinkImpl`], and splits buffer lists into buffers, each of which
/// has its own time.
pub(crate) fn override_vfuncs<T: PacedSinkImpl>(class: &mut glib::Class<gst_base::BaseSink>) {
    let class = class.as_mut();
    class.get_times = Some(get_times::<T>);
    class.wait_event = Some(wait_event::<T>);
    class.render_list = None;
}

/// Returns the times that `GstBaseSink` waits for: those of the buffer, or none.
unsafe extern "C" fn get_times<T: PacedSinkImpl>(
    sink: *mut gst_base::ffi::GstBaseSink,
    buffer: *mut gst::ffi::GstBuffer,
    start: *mut gst::ffi::GstClockTime,
    end: *mut gst::ffi::GstClockTime,
) {
    // SAFETY: this function is only in the class of `T`, so `sink` is an instance of it, alive
    // during the call.
    let imp = unsafe { (*sink.cast::<T::Instance>()).imp() };
    if !imp.is_paced() {
        return; // both times are none already
    }
    if let Some(get_times) = parent_class::<T>().get_times {
        // SAFETY: the parent's function gets what this one got.
        unsafe { get_times(sink, buffer, start, end) };
    }
}

unsafe extern "C" fn wait_event<T: PacedSinkImpl>(
    sink: *mut gst_base::ffi::GstBaseSink,
    event: *mut gst::ffi::GstEvent,
) -> gst::ffi::GstFlowReturn {
    // SAFETY: this function is only in the class of `T`, so `sink` is an instance of it, alive
    // during the call, as `event` is.
    let (imp, event) =
        unsafe { ((*sink.cast::<T::Instance>()).imp(), from_glib_borrow::<_, gst::Event>(event)) };
    gst::panic_to_error!(imp, gst::FlowError::Error.into_glib(), {
        let waited = match imp.is_paced() {
            true => parent_wait_event(imp, &event),
            false => preroll(imp, event.upcast_ref()).map(|()| gst::FlowSuccess::Ok),
        };
        let answered = waited.and_then(|done| imp.wait_event(&event).map(|()| done));
        gst::FlowReturn::from(answered).into_glib()
    })
}

fn parent_wait_event<T: PacedSinkImpl>(
    imp: &T,
    event: &gst::Event,
) -> Result<gst::FlowSuccess, gst::FlowError> {
    // SAFETY: the parent's function gets an instance and an event that outlive the call.
    unsafe {
        let Some(wait_event) = parent_class::<T>().wait_event else { return Ok(gst::FlowSuccess::Ok) };
        let sink = imp.obj().as_ptr().cast::<gst_base::ffi::GstBaseSink>();
        gst::FlowSuccess::try_from_glib(wait_event(sink, event.as_ptr().cast_mut()))
    }
}

/// Waits until the element plays, with a buffer or an event, as `GstBaseSink` does before it waits
/// for the clock; returns at once if it plays. To be called in `render` and `wait_event` only,
/// before and after each wait.
///
/// # Errors
/// [`gst::FlowError::Flushing`] also during a flush that began before this call, for which
/// `gst_base_sink_do_preroll` alone would wait (GStreamer 1.22).
pub(crate) fn preroll<T: PacedSinkImpl>(imp: &T, object: &gst::MiniObjectRef) -> Result<(), gst::FlowError> {
    let sink = imp.obj().as_ptr().cast::<gst_base::ffi::GstBaseSink>();
    // SAFETY: `GstBaseSink` calls `render` and `wait_event` with the preroll lock held, which
    // guards the flag, and which this function wants; instance and object outlive the call.
    let flow = unsafe {
        if (*sink).flushing != glib::ffi::GFALSE {
            return Err(gst::FlowError::Flushing);
        }
        gst_base::ffi::gst_base_sink_do_preroll(sink, object.as_ptr().cast_mut())
    };
    // SAFETY: any number is a flow return.
    unsafe { gst::FlowSuccess::try_from_glib(flow) }.map(drop)
}

/// Runs a wait of `render` or `wait_event` without the preroll lock, as `GstBaseSink` runs its wait
/// for the clock: a change of state, and a flush, need the lock. [`preroll`] follows.
pub(crate) fn without_preroll_lock<T: PacedSinkImpl, R>(imp: &T, wait: impl FnOnce() -> R) -> R {
    /// Locks when it is dropped, also after a panic.
    struct Unlocked(*mut glib::ffi::GMutex);

    impl Drop for Unlocked {
        fn drop(&mut self) {
            // SAFETY: the lock of an element that outlives this, and that this thread has unlocked.
            unsafe { glib::ffi::g_mutex_lock(self.0) }
        }
    }

    let sink = imp.obj().as_ptr().cast::<gst_base::ffi::GstBaseSink>();
    // SAFETY: the element is alive, and `GstBaseSink` calls `render` and `wait_event` with the lock
    // held by this thread.
    let unlocked = unsafe {
        let lock = &raw mut (*sink).preroll_lock;
        glib::ffi::g_mutex_unlock(lock);
        Unlocked(lock)
    };
    let result = wait();
    drop(unlocked);
    result
}

/// Returns the class of `GstBaseSink`, the parent of this type.
fn parent_class<T: PacedSinkImpl>() -> &'static gst_base::ffi::GstBaseSinkClass {
    // SAFETY: the type's data exists once an instance does, and callers have one. The parent class
    // of this type is GstBaseSink's, which lives as long as the type.
    unsafe { &*T::type_data().as_ref().parent_class().cast::<gst_base::ffi::GstBaseSinkClass>() }
}
