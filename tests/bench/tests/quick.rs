// SPDX-License-Identifier: MIT OR Apache-2.0

//! Smoke test of the benchmark: a short round of frameshare alone with two readers. It does not
//! depend on speed.

use serde_json::Value;
use std::{fs, path::Path, process::Command};

#[test]
fn quick_round_measures_both_sides_without_loss() {
    let raw = Path::new(env!("CARGO_TARGET_TMPDIR")).join("quick.jsonl");
    let bench = Command::new(env!("CARGO_BIN_EXE_frameshare-bench"))
        .args(["--quick", "--raw"])
        .arg(&raw)
        .output()
        .expect("the bench starts");
    let (table, errors) = (String::from_utf8_lossy(&bench.stdout), String::from_utf8_lossy(&bench.stderr));
    assert!(bench.status.success(), "{errors}");
    assert!(table.contains("| 320x240 | 2 |") && table.contains("Latency p99"), "{table}");

    let lines = fs::read_to_string(raw).expect("the raw figures are there");
    let runs: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(runs.len(), 4, "{lines}");
    for run in &runs {
        let figures = &run["result"]["Ok"];
        let sent = figures["exported"]["frames"].as_u64().expect("a count");
        assert!(sent > 0 && figures["exported"]["usage"]["cpu"].as_u64() > Some(0), "{run}");
        let readers = figures["received"].as_array().expect("readers");
        assert_eq!(readers.len(), 2, "{run}");
        for reader in readers {
            let frames = reader["frames"].as_u64().expect("a count");
            // `latest` readers may lose frames, and may receive few in the short time.
            let all = if run["transport"] == "lossless" { frames == sent } else { frames <= sent };
            assert!(all, "{run}");
            let paced = run["case"]["rate"] != 0;
            assert_eq!(paced && frames > 0, reader["p50"].as_f64() > Some(0.0), "{run}");
        }
    }
}
