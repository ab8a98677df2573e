// SPDX-License-Identifier: MIT OR Apache-2.0

//! CUDA contexts, and sharing of one context between the elements of a pipeline.
//!
//! # Safety
//! This file calls the library with live objects. The only location written by both sides, the
//! `offer` pointer in [`ElementContext`], is described at its uses.
#![allow(unsafe_code)]

use crate::{
    ffi::{GstCudaContext, GstCudaContextClass},
    library, load,
};
use glib::{prelude::*, translate::*};
use gst::prelude::*;
use std::{
    ffi::c_void,
    ptr,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicPtr, Ordering},
    },
};

/// Type of the GStreamer contexts that hold a CUDA context, and the name of their field for it.
const TYPE: &str = "gst.cuda.context";

glib::wrapper! {
    /// A reference to a GstCudaContext.
    pub struct Context(Object<GstCudaContext, GstCudaContextClass>) @extends gst::Object;

    match fn {
        type_ => || {
            library::loaded().map_or(glib::gobject_ffi::G_TYPE_INVALID, |library| {
                (library.gst_cuda_context_get_type)()
            })
        },
    }
}

// SAFETY: GstObjects and driver contexts may be used from any thread.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    /// Creates a context on the device with this CUDA ordinal; `None` if there is no such device.
    /// The library must be [loaded](crate::load).
    #[must_use]
    pub fn new(device: u32) -> Option<Self> {
        let library = library::loaded()?;
        // SAFETY: takes only a number; the result is NULL or a new reference.
        unsafe { from_glib_full((library.gst_cuda_context_new)(device)) }
    }

    /// Returns the context of a pad's peer, which elements tell that work in one.
    #[must_use]
    pub fn of_peer(pad: &impl IsA<gst::Pad>) -> Option<Self> {
        library::loaded()?;
        let mut query = gst::query::Context::new(TYPE);
        if !pad.as_ref().peer_query(&mut query) {
            return None;
        }
        query.context()?.structure().get(TYPE).ok()
    }

    /// Returns the CUcontext, valid as long as this object.
    #[must_use]
    pub fn handle(&self) -> *mut c_void {
        // SAFETY: the context is alive.
        unsafe { (library::library().gst_cuda_context_get_handle)(self.to_glib_none().0) }
    }

    /// Returns the CUDA ordinal of the device in this process.
    #[must_use]
    pub fn device(&self) -> u32 {
        self.property("cuda-device-id")
    }

    /// Returns the alignment of a plane's start and pitch that texture reads require.
    #[must_use]
    pub fn texture_alignment(&self) -> u32 {
        // SAFETY: the context is alive.
        let alignment =
            unsafe { (library::library().gst_cuda_context_get_texture_alignment)(self.to_glib_none().0) };
        u32::try_from(alignment).unwrap_or(0)
    }
}

/// The CUDA context of an element.
///
/// An element calls [`ElementContext::ensure`] when it starts and [`ElementContext::clear`] when it
/// stops, and forwards `set_context` and context queries to [`ElementContext::set_context`] and
/// [`ElementContext::query`]. If [`crate::load`] fails, none of these functions has an effect.
#[derive(Debug, Default)]
pub struct ElementContext {
    context: Mutex<Option<Context>>,
    /// A context offered by another element or the application, until `ensure` takes it: an owned
    /// reference, or null.
    offer: AtomicPtr<GstCudaContext>,
}

impl ElementContext {
    fn context(&self) -> MutexGuard<'_, Option<Context>> {
        self.context.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the context, if the element has one.
    #[must_use]
    pub fn get(&self) -> Option<Context> {
        self.context().clone()
    }

    /// Drops the context, so that the next start may find another.
    pub fn clear(&self) {
        drop(self.take_offer());
        let context = self.context().take();
        drop(context);
    }

    fn take_offer(&self) -> Option<Context> {
        // SAFETY: a non-null `offer` owns a reference, which the swap transfers to the caller.
        unsafe { from_glib_full(self.offer.swap(ptr::null_mut(), Ordering::AcqRel)) }
    }

    /// Finds the context used by neighbors or the application, on `device` or on any. If there is
    /// none, creates one and offers it to them. `None` if the driver fails to create it.
    ///
    /// Queries the pads' peers and posts messages: call without locks held, and never from two
    /// threads at once.
    pub fn ensure(&self, element: &impl IsA<gst::Element>, device: Option<u32>) -> Option<Context> {
        let library = library::loaded()?;
        if let Some(context) = self.get() {
            return Some(context);
        }
        // SAFETY: `element` and `self.offer` are alive. The library queries for a context, which
        // `set_context` below stores in `offer`. It then reads `offer`, and writes it if it is
        // still null. As in GStreamer's own elements, these are plain accesses of an aligned
        // pointer, which the library does not dereference.
        unsafe {
            let element = element.as_ref().to_glib_none().0;
            (library.gst_cuda_ensure_element_context)(element, wanted(device), self.offer.as_ptr());
        }
        let found = self.take_offer();
        self.context().clone_from(&found);
        found
    }

    /// Creates a context on a device and replaces the current one, even if neighbors use another.
    /// If the driver fails to create it, returns `None` and changes nothing.
    pub fn replace(&self, device: u32) -> Option<Context> {
        let made = Context::new(device)?;
        let before = self.context().replace(made.clone());
        drop(before);
        Some(made)
    }

    /// Stores an offered context if it is a CUDA context on the right device, and no other is
    /// stored.
    pub fn set_context(&self, element: &impl IsA<gst::Element>, offered: &gst::Context, device: Option<u32>) {
        // Applications may offer a context before the element has loaded the library.
        if offered.context_type() != TYPE || self.context().is_some() || load().is_err() {
            return;
        }
        let Some(library) = library::loaded() else { return };
        let mut found = ptr::null_mut();
        // SAFETY: `element` and `offered` are alive; `found` is a null out-parameter for one new
        // reference.
        unsafe {
            let element = element.as_ref().to_glib_none().0;
            let offered = offered.as_ptr().cast_mut();
            (library.gst_cuda_handle_set_context)(element, offered, wanted(device), &mut found);
        }
        let place = self.offer.compare_exchange(ptr::null_mut(), found, Ordering::AcqRel, Ordering::Acquire);
        if place.is_err() {
            // SAFETY: `offer` holds another context and did not take over this reference.
            drop(unsafe { from_glib_full::<_, Option<Context>>(found) });
        }
    }

    /// Answers a neighbor's context query; returns false if the query is for another type of
    /// context or the element has no context.
    pub fn query(&self, element: &impl IsA<gst::Element>, query: &mut gst::QueryRef) -> bool {
        let (Some(library), Some(context)) = (library::loaded(), self.get()) else { return false };
        // SAFETY: element, query and context are alive, and the query is borrowed mutably.
        let answered = unsafe {
            let element = element.as_ref().to_glib_none().0;
            (library.gst_cuda_handle_context_query)(element, query.as_mut_ptr(), context.to_glib_none().0)
        };
        answered != glib::ffi::GFALSE
    }
}

impl Drop for ElementContext {
    fn drop(&mut self) {
        self.clear();
    }
}

/// Converts a device to the library's argument: -1 means any.
fn wanted(device: Option<u32>) -> i32 {
    device.and_then(|device| i32::try_from(device).ok()).unwrap_or(-1)
}
