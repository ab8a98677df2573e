// SPDX-License-Identifier: MIT OR Apache-2.0

//! Types that the plugin registers with GStreamer. In its own process: other users of video would
//! register them, too.

#[test]
fn multiview_flags_type_is_registered_without_decoder() {
    gst::init().unwrap();
    gstframeshare::plugin_register_static().unwrap();
    assert!(glib::Type::from_name("GstVideoMultiviewFlagsSet").is_some());
}
