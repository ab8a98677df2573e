// SPDX-License-Identifier: MIT OR Apache-2.0

//! Device of a stream.

use gst::{prelude::*, subclass::prelude::*};
use std::sync::LazyLock;

static CAT: LazyLock<gst::DebugCategory> = LazyLock::new(|| {
    gst::DebugCategory::new(
        "framesharedevice",
        gst::DebugColorFlags::empty(),
        Some("Streams that are listed as devices"),
    )
});

#[derive(Default)]
pub struct FrameshareDevice;

impl FrameshareDevice {
    fn stream(&self) -> Option<String> {
        self.obj().properties()?.get("stream").ok()
    }
}

#[glib::object_subclass]
impl ObjectSubclass for FrameshareDevice {
    const NAME: &'static str = "GstFrameshareDevice";
    type Type = super::FrameshareDevice;
    type ParentType = gst::Device;
}

impl ObjectImpl for FrameshareDevice {}

impl GstObjectImpl for FrameshareDevice {}

impl DeviceImpl for FrameshareDevice {
    fn create_element(&self, name: Option<&str>) -> Result<gst::Element, gst::LoggableError> {
        gst::ElementFactory::make("framesharesrc")
            .name_if_some(name)
            .property("stream", self.stream())
            .build()
            .map_err(|error| gst::loggable_error!(CAT, "{error}"))
    }

    fn reconfigure_element(&self, element: &gst::Element) -> Result<(), gst::LoggableError> {
        if !element.is::<crate::src::FrameshareSrc>() {
            return Err(gst::loggable_error!(CAT, "{} is not a framesharesrc", element.name()));
        }
        if element.current_state().max(element.pending_state()) > gst::State::Ready {
            return Err(gst::loggable_error!(CAT, "{} is not in NULL or READY", element.name()));
        }
        element.set_property("socket-path", None::<&str>);
        element.set_property("stream", self.stream());
        Ok(())
    }
}
