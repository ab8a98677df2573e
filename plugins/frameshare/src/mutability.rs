// SPDX-License-Identifier: MIT OR Apache-2.0

//! Properties that can only be set while an element is in NULL or READY.

use gst::prelude::*;

/// Returns whether a property may be set now, by the flags of its specification and the element's
/// state. A refusal is logged as a warning; the caller keeps the old value.
pub(crate) fn may_set(element: &gst::Element, category: gst::DebugCategory, spec: &glib::ParamSpec) -> bool {
    let state = element.current_state().max(element.pending_state());
    let flags = match state {
        gst::State::Playing => gst::PARAM_FLAG_MUTABLE_PLAYING,
        gst::State::Paused => gst::PARAM_FLAG_MUTABLE_PLAYING | gst::PARAM_FLAG_MUTABLE_PAUSED,
        _ => return true,
    };
    let may = spec.flags().intersects(flags);
    if !may {
        gst::warning!(
            category,
            obj = element,
            "{} can only be set in NULL or READY: it keeps its value",
            spec.name()
        );
    }
    may
}
