// SPDX-License-Identifier: MIT OR Apache-2.0

//! Peak memory of a source whose exporter sends more metadata than `max-metadata-bytes` allows.

use super::{hostile, stage::Stage};
use std::{fs, thread, time::Duration};

/// The default of `max-metadata-bytes`.
const LIMIT: u64 = 128 << 20;

/// Peak memory of a process in bytes; none once it has exited.
fn peak(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix(" kB")?.parse::<u64>().ok().map(|kilobytes| kilobytes << 10)
}

#[test]
fn source_stays_within_four_times_max_metadata_bytes() {
    let attacks =
        ["bulk-sticky-events", "bulk-early-tags", "bulk-empty-tags", "bulk-crop-metas", "bulk-caps-names"];
    for name in attacks {
        let stage = Stage::new();
        let path = stage.path("s.sock");
        let mut attacker = hostile(&stage, &format!("exporter {} {name}", path.display()));
        attacker.wait_for("open");
        let source =
            stage.gst(&format!("framesharesrc socket-path={} ! fakesink sync=false", path.display()));
        let mut most = 0;
        while let Some(peak) = peak(source.pid()) {
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
