// SPDX-License-Identifier: MIT OR Apache-2.0

//! The plugin's entry point.

// The macro makes undocumented items for GStreamer.
#![allow(missing_docs)]

use crate::{device, log, meta, sink, src};

fn plugin_init(plugin: &gst::Plugin) -> Result<(), glib::BoolError> {
    log::install();
    meta::register();
    sink::register(plugin)?;
    src::register(plugin)?;
    device::register(plugin)
}

gst::plugin_define!(
    frameshare,
    env!("CARGO_PKG_DESCRIPTION"),
    plugin_init,
    concat!(env!("CARGO_PKG_VERSION"), "-", env!("COMMIT_ID")),
    "MIT/X11",
    env!("CARGO_PKG_NAME"),
    "frameshare",
    env!("CARGO_PKG_NAME"),
    env!("BUILD_REL_DATE")
);
