// SPDX-License-Identifier: MIT OR Apache-2.0

//! Peak memory of a source whose exporter sends more metadata than `max-metadata-bytes` allows, or
//! a small frame that claims a large image.

use frameshare_tests::{census::memory, process::TestRun};
use std::{thread, time::Duration};

/// The default of `max-metadata-bytes`.
const LIMIT: u64 = 128 << 20;

#[test]
fn source_stays_within_four_times_max_metadata_bytes() {
    let attacks =
        ["bulk-sticky-events", "bulk-early-tags", "bulk-empty-tags", "bulk-crop-metas", "bulk-caps-names"];
    for name in attacks {
        let run = TestRun::new();
        let path = run.path("s.sock");
        let mut attacker = run.hostile(&format!("exporter {} {name}", path.display()));
        attacker.wait_for("open");
        let source = run.gst(&format!("framesharesrc socket-path={} ! fakesink sync=false", path.display()));
        let mut most = 0;
        while let Ok(Some(peak)) = memory(source.pid(), "VmHWM") {
            most = most.max(peak);
            thread::sleep(Duration::from_millis(1));
        }
        let outcome = source.finish();
        attacker.finish();
        println!("{name}: {} MiB", most >> 20);
        assert_eq!(outcome.signal, None, "{name}: {}", outcome.stderr);
        assert!(outcome.stderr.contains("max-metadata-bytes"), "{name}: {}", outcome.stderr);
        assert!((1 << 20..=4 * LIMIT).contains(&most), "{name}: {} MiB", most >> 20);
    }
}

/// Each row of the claimed image is inside the frame, and all of them together are 2.7 GB.
#[test]
fn source_refuses_frame_of_overlapping_rows() {
    let run = TestRun::new();
    let path = run.path("s.sock");
    let attack = format!("exporter {} frame-of-overlapping-rows stay", path.display());
    let mut attacker = run.hostile(&attack);
    attacker.wait_for("open");
    let copying = "videoconvert ! video/x-raw,format=BGR ! fakesink sync=false";
    let source = run.gst_by(
        // Far more than the pipeline needs, far less than the image.
        "prlimit --as=1500000000 --",
        &format!("framesharesrc socket-path={} ! {copying}", path.display()),
    );
    let outcome = source.finish();
    attacker.kill();
    assert!(!outcome.ok && outcome.signal.is_none(), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("plane 0 at 0 with stride 1"), "{}", outcome.stderr);
}
