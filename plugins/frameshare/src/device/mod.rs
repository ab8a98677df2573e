// SPDX-License-Identifier: MIT OR Apache-2.0

//! `framesharedeviceprovider`: streams as devices.
//!
//! Applications that let their user choose a camera list the streams that have a name, and get a
//! `framesharesrc` for the chosen one. Streams appear and vanish with their exporters.

mod details;
mod provider;
mod stream;

use details::Details;
use frameshare::StreamInfo;
use gst::prelude::*;

glib::wrapper! {
    /// `framesharedeviceprovider`: lists the streams that are shared.
    pub struct FrameshareDeviceProvider(ObjectSubclass<provider::FrameshareDeviceProvider>)
        @extends gst::DeviceProvider, gst::Object;
}

glib::wrapper! {
    /// A stream. Its properties are `stream`, `socket-path` and, if they are known, `exporter-pid`,
    /// `exporter-program` and `readers`, their number. Its caps are those of the frames, or ANY
    /// before they are known.
    pub struct FrameshareDevice(ObjectSubclass<stream::FrameshareDevice>)
        @extends gst::Device, gst::Object;
}

impl FrameshareDevice {
    fn new(stream: &StreamInfo, details: &Details) -> Self {
        let properties = gst::Structure::builder("frameshare-stream")
            .field("stream", stream.name.as_str())
            .field("socket-path", stream.endpoint.path().to_string_lossy().as_ref())
            .field_if_some("exporter-pid", stream.exporter_pid)
            .field_if_some("exporter-program", stream.exporter_program.as_deref())
            .field_if_some("readers", details.readers);
        glib::Object::builder()
            .property("display-name", stream.name.as_str())
            .property("device-class", "Video/Source")
            .property("caps", details.caps.clone().unwrap_or_else(gst::Caps::new_any))
            .property("properties", properties.build())
            .build()
    }
}

/// Registers the provider with the plugin.
pub(crate) fn register(plugin: &gst::Plugin) -> Result<(), glib::BoolError> {
    let provider = FrameshareDeviceProvider::static_type();
    gst::DeviceProvider::register(Some(plugin), "framesharedeviceprovider", gst::Rank::PRIMARY, provider)
}
