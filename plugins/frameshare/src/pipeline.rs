// SPDX-License-Identifier: MIT OR Apache-2.0

//! The pipeline of an element.

use gst::prelude::*;

/// Returns the outermost parent of an element, or the element itself.
pub(crate) fn top(element: &gst::Object) -> gst::Object {
    let mut top = element.clone();
    while let Some(parent) = top.parent() {
        top = parent;
    }
    top
}

/// Returns the elements of an element's pipeline, those in bins included.
pub(crate) fn elements(element: &gst::Object) -> Vec<gst::Element> {
    let Ok(bin) = top(element).downcast::<gst::Bin>() else { return Vec::new() };
    loop {
        match bin.iterate_recurse().into_iter().collect() {
            Ok(elements) => return elements,
            // The bin has changed meanwhile.
            Err(gst::IteratorError::Resync) => {}
            Err(gst::IteratorError::Error) => return Vec::new(),
        }
    }
}
