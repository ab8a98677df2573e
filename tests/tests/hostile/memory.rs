// SPDX-License-Identifier: MIT OR Apache-2.0

//! Peak memory of a source whose exporter sends more metadata than `max-metadata-bytes` allows.

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
