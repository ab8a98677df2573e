// SPDX-License-Identifier: MIT OR Apache-2.0

//! The virtual function of `GstBaseSink` that its Rust binding lacks: `wait_event`.
//!
//! It is called for a gap or an end of stream in PLAYING, at its time, before it is answered.
//!
//! # Safety
//!
//! A function pointer in a class of this plugin, called by `GstBaseSink` with valid arguments, and
//! the parent's one of the same name, called with the same.
#![allow(unsafe_code)]

use glib::{prelude::*, translate::*};
use gst::subclass::prelude::*;
use gst_base::subclass::prelude::*;

/// A sink that handles gaps and the end of the stream when they are due.
pub(crate) trait WaitEventImpl: BaseSinkImpl + ObjectSubclass<Type: IsA<gst::Element>> {
    /// Handles an event that is due, after `GstBaseSink` has waited for its time.
    fn wait_event(&self, event: &gst::Event) -> Result<(), gst::FlowError>;
}

/// Routes `wait_event` to [`WaitEventImpl::wait_event`], and splits buffer lists into buffers, each
/// of which waits for its own time.
pub(crate) fn override_vfuncs<T: WaitEventImpl>(class: &mut glib::Class<gst_base::BaseSink>) {
    let class = class.as_mut();
    class.wait_event = Some(wait_event::<T>);
    class.render_list = None;
}

unsafe extern "C" fn wait_event<T: WaitEventImpl>(
    sink: *mut gst_base::ffi::GstBaseSink,
    event: *mut gst::ffi::GstEvent,
) -> gst::ffi::GstFlowReturn {
    // SAFETY: this function is only in the class of `T`, so `sink` is an instance of it, alive
    // during the call, as `event` is.
    let (imp, event) =
        unsafe { ((*sink.cast::<T::Instance>()).imp(), from_glib_borrow::<_, gst::Event>(event)) };
    gst::panic_to_error!(imp, gst::FlowError::Error.into_glib(), {
        let waited = parent_wait_event(imp, &event);
        let answered = waited.and_then(|done| imp.wait_event(&event).map(|()| done));
        gst::FlowReturn::from(answered).into_glib()
    })
}

fn parent_wait_event<T: WaitEventImpl>(
    imp: &T,
    event: &gst::Event,
) -> Result<gst::FlowSuccess, gst::FlowError> {
    // SAFETY: the type's data exists once an instance does. The parent class of this type is
    // GstBaseSink's, which lives as long as the type; its function gets an instance and an event
    // that outlive the call.
    unsafe {
        let parent = T::type_data().as_ref().parent_class();
        let class = &*parent.cast::<gst_base::ffi::GstBaseSinkClass>();
        let Some(wait_event) = class.wait_event else { return Ok(gst::FlowSuccess::Ok) };
        let sink = imp.obj().as_ptr().cast::<gst_base::ffi::GstBaseSink>();
        gst::FlowSuccess::try_from_glib(wait_event(sink, event.as_ptr().cast_mut()))
    }
}
