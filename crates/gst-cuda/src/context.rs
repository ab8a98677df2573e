//! CUDA contexts, and how the elements of a pipeline come to share one.
//!
//! # Safety
//! Calls into the library with objects that are alive. The one place that both sides write, the pointer in
//! [`ElementContext`], is described there.
#![allow(unsafe_code)]

use crate::{
    ffi::{GstCudaContext, GstCudaContextClass},
    library, load,
};
use glib::{prelude::*, translate::*};
use std::{
    ffi::c_void,
    ptr,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicPtr, Ordering},
    },
};

glib::wrapper! {
    /// A GstCudaContext.
    pub struct Context(Object<GstCudaContext, GstCudaContextClass>) @extends gst::Object;

    match fn {
        type_ => || library::loaded().map_or(glib::gobject_ffi::G_TYPE_INVALID, |library| (library.gst_cuda_context_get_type)()),
    }
}

// SAFETY: GstObjects may be used from any thread, and the driver's contexts too.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    /// A new context on a device, by CUDA's number for it; none where there is no such device. The library must have
    /// been [loaded](crate::load).
    #[must_use]
    pub fn new(device: u32) -> Option<Self> {
        let library = library::loaded()?;
        // SAFETY: takes a number; the result is NULL or a new reference.
        unsafe { from_glib_full((library.gst_cuda_context_new)(device)) }
    }

    /// The CUcontext. It lives as long as this object.
    #[must_use]
    pub fn handle(&self) -> *mut c_void {
        // SAFETY: the context is alive.
        unsafe { (library::library().gst_cuda_context_get_handle)(self.to_glib_none().0) }
    }

    /// CUDA's number for the device, in this process.
    #[must_use]
    pub fn device(&self) -> u32 {
        self.property("cuda-device-id")
    }

    /// What the start and the pitch of a plane have to be multiples of to be read as a texture.
    #[must_use]
    pub fn texture_alignment(&self) -> u32 {
        // SAFETY: the context is alive.
        let alignment =
            unsafe { (library::library().gst_cuda_context_get_texture_alignment)(self.to_glib_none().0) };
        u32::try_from(alignment).unwrap_or(0)
    }
}

/// The place in an element for the context that it works in.
///
/// An element calls [`ElementContext::ensure`] when it starts and [`ElementContext::clear`] when it stops, and hands
/// `set_context` and context queries on to the functions of these names. Where [`crate::load`] fails all of them leave
/// everything to others.
#[derive(Debug, Default)]
pub struct ElementContext {
    context: Mutex<Option<Context>>,
    /// What others offer, until `ensure` takes it: a reference, or null.
    offer: AtomicPtr<GstCudaContext>,
}

impl ElementContext {
    fn context(&self) -> MutexGuard<'_, Option<Context>> {
        self.context.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The context, if the element has one.
    #[must_use]
    pub fn get(&self) -> Option<Context> {
        self.context().clone()
    }

    /// Gives the context up, so that the next start may find another.
    pub fn clear(&self) {
        drop(self.take_offer());
        let context = self.context().take();
        drop(context);
    }

    fn take_offer(&self) -> Option<Context> {
        // SAFETY: the place owns a reference where it is not null, and has given it up now.
        unsafe { from_glib_full(self.offer.swap(ptr::null_mut(), Ordering::AcqRel)) }
    }

    /// Finds the context that the neighbours or the application use, or makes one and offers it to them: on `device`,
    /// or on any. None where the driver refuses.
    ///
    /// Asks the pads' peers and posts messages: to be called without locks, and not by two threads at once.
    pub fn ensure(&self, element: &impl IsA<gst::Element>, device: Option<u32>) -> Option<Context> {
        let library = library::loaded()?;
        if let Some(context) = self.get() {
            return Some(context);
        }
        // SAFETY: element and place are alive. The library asks others for a context, who give it by `set_context`
        // below, and then looks at the place; it writes the place if it is still null. As in its own elements, that
        // look and that write are plain ones of an aligned pointer, which it does not follow.
        unsafe {
            let element = element.as_ref().to_glib_none().0;
            (library.gst_cuda_ensure_element_context)(element, wanted(device), self.offer.as_ptr());
        }
        let found = self.take_offer();
        self.context().clone_from(&found);
        found
    }

    /// Makes a context on a device and takes it in place of the one at hand, whatever neighbours use. None, and nothing
    /// changes, where the driver refuses.
    pub fn replace(&self, device: u32) -> Option<Context> {
        let made = Context::new(device)?;
        let before = self.context().replace(made.clone());
        drop(before);
        Some(made)
    }

    /// Takes note of a context that somebody offers, if it is CUDA's, on the right device, and the first.
    pub fn set_context(&self, element: &impl IsA<gst::Element>, offered: &gst::Context, device: Option<u32>) {
        // Applications may offer one before the element has any reason to look for the library.
        if offered.context_type() != "gst.cuda.context" || self.context().is_some() || load().is_err() {
            return;
        }
        let Some(library) = library::loaded() else { return };
        let mut found = ptr::null_mut();
        // SAFETY: element and offer are alive; `found` is null, and takes one new reference.
        unsafe {
            let element = element.as_ref().to_glib_none().0;
            let offered = offered.as_ptr().cast_mut();
            (library.gst_cuda_handle_set_context)(element, offered, wanted(device), &mut found);
        }
        let place = self.offer.compare_exchange(ptr::null_mut(), found, Ordering::AcqRel, Ordering::Acquire);
        if place.is_err() {
            // SAFETY: the place holds another one, and has not taken this reference.
            drop(unsafe { from_glib_full::<_, Option<Context>>(found) });
        }
    }

    /// Answers a neighbour's context query; false where it is not for us.
    pub fn query(&self, element: &impl IsA<gst::Element>, query: &mut gst::QueryRef) -> bool {
        let (Some(library), Some(context)) = (library::loaded(), self.get()) else { return false };
        // SAFETY: all three are alive, and the query is borrowed mutably.
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

/// A device as the library wants it: -1 is any.
fn wanted(device: Option<u32>) -> i32 {
    device.and_then(|device| i32::try_from(device).ok()).unwrap_or(-1)
}
