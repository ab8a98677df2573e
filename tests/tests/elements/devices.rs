// SPDX-License-Identifier: MIT OR Apache-2.0

//! Streams as devices.

use super::uris::{is_installed, live};
use frameshare_tests::process::{TestRun, wait_until};

#[test]
fn gst_device_monitor_lists_streams() {
    if !is_installed("gst_device_monitor", "gst-device-monitor-1.0") {
        return;
    }
    let run = TestRun::new();
    let mut exporter = live(&run);
    let listed = || {
        let outcome = run.command("gst-device-monitor-1.0 Video/Source").finish();
        outcome.lines.join("\n").contains("framesharesrc stream=s !")
    };
    wait_until("the stream is listed", listed);
    exporter.kill();
    wait_until("the stream is not listed", || !listed());
    assert!(run.path("frameshare/s.sock").exists());
}
