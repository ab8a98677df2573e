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
pub(crate) fn elements(element: &gst::Object) -> impl Iterator<Item = gst::Element> + use<> {
    let bin = top(element).downcast::<gst::Bin>().ok();
    // An iterator that notices a change of the bin ends early.
    bin.into_iter().flat_map(|bin| bin.iterate_recurse().into_iter().map_while(Result::ok))
}
