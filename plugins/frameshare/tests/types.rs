//! What the plugin makes known to GStreamer by itself. Alone in its process: whatever else uses video makes it known too.

#[test]
fn a_type_in_the_caps_of_decoders_is_known_where_there_is_no_decoder() {
    gst::init().unwrap();
    gstframeshare::plugin_register_static().unwrap();
    assert!(glib::Type::from_name("GstVideoMultiviewFlagsSet").is_some());
}
