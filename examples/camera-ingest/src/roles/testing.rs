// SPDX-License-Identifier: MIT OR Apache-2.0

//! GStreamer for the unit tests of roles.

use std::sync::Once;

/// Starts GStreamer, and registers the plugin once: a second registration frees the factories of
/// the first one, which elements of other tests still name.
pub fn init() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        gst::init().expect("GStreamer starts");
        gstframeshare::plugin_register_static().expect("the plugin starts");
    });
}
