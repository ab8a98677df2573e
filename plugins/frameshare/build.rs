// SPDX-License-Identifier: MIT OR Apache-2.0

//! The commit and the date that the plugin reports.

fn main() {
    gst_plugin_version_helper::info();
}
