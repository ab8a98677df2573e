// SPDX-License-Identifier: MIT OR Apache-2.0

//! Names of memory files, by which people find the stream that a process's memory belongs to.

use frameshare_tests::process::{Process, TestRun};
use std::{collections::BTreeSet, fs};

/// Returns the names of a process's memory files: `frameshare-KIND:STREAM`.
fn memory_files(process: &Process) -> BTreeSet<String> {
    let entries = fs::read_dir(format!("/proc/{}/fd", process.pid())).unwrap().flatten();
    let targets = entries.filter_map(|entry| fs::read_link(entry.path()).ok());
    let names = targets.filter_map(|target| {
        let name = target.to_str()?.strip_prefix("/memfd:")?;
        Some(name.strip_suffix(" (deleted)").unwrap_or(name).to_owned())
    });
    names.collect()
}

#[test]
fn memory_files_carry_name_of_stream() {
    let run = TestRun::new();
    let long = "x".repeat(80);
    for (endpoint, label) in [
        ("--stream cam0", "cam0"),
        ("--socket front-door", "front-door"),
        ("--socket é.sock", "_"),
        (&format!("--socket {long}.sock"), &long[..64]),
    ] {
        let mut exporter =
            run.peer(&format!("export {endpoint} --frames 100000000 --fps 100 --readers 0 --size 5000"));
        exporter.wait_for("progress");
        let mut reader = run.peer(&format!("read {endpoint} --quiet yes"));
        reader.wait_for("first");
        let files = memory_files(&exporter);
        for kind in ["metadata", "slot"] {
            assert!(files.contains(&format!("frameshare-{kind}:{label}")), "{files:?}");
        }
        // The wake-up pages are those of a process, whatever its streams.
        let mut of_stream = files.iter().filter(|name| *name != "frameshare-wake");
        assert!(of_stream.all(|name| name.ends_with(&format!(":{label}"))), "{files:?}");
        let maps = fs::read_to_string(format!("/proc/{}/maps", reader.pid())).unwrap();
        for kind in ["metadata", "slot", "queue", "claims"] {
            assert!(maps.contains(&format!("/memfd:frameshare-{kind}:{label} (deleted)")), "{maps}");
        }
    }
}
