// SPDX-License-Identifier: MIT OR Apache-2.0

//! Smoke tests of the benchmark: short rounds of frameshare alone with two readers, of a video that
//! two readers share or decode, and of processes that take one frame. They do not depend on speed.

use frameshare_tests::process::TestRun;
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

#[test]
fn shared_video_is_decoded_once() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (clip, raw) = (folder.join("sharing.h264"), folder.join("sharing.jsonl"));
    let text = format!(
        "videotestsrc num-buffers=60 ! video/x-raw,width=320,height=240 ! x264enc ! h264parse config-interval=-1 \
         ! video/x-h264,stream-format=byte-stream,alignment=au ! filesink location={}",
        clip.display()
    );
    let made = Command::new("gst-launch-1.0").arg("-q").args(text.split_whitespace()).status();
    assert!(made.expect("gst-launch-1.0 starts").success());
    let bench = Command::new(env!("CARGO_BIN_EXE_frameshare-bench"))
        .arg("--sharing")
        .arg(&clip)
        .args(["--readers", "2", "--rounds", "1", "--seconds", "0.3", "--raw"])
        .arg(&raw)
        .output()
        .expect("the bench starts");
    assert!(bench.status.success(), "{}", String::from_utf8_lossy(&bench.stderr));
    let table = String::from_utf8_lossy(&bench.stdout);
    assert!(table.contains("| decoders | 2 | 1 | 2 | |"), "{table}");

    let lines = fs::read_to_string(raw).expect("the raw figures are there");
    let runs: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let processes = |run: &Value| run["processes"].as_array().map_or(0, Vec::len);
    assert_eq!(runs.iter().map(processes).collect::<Vec<_>>(), [3, 2], "{lines}");
    for process in runs.iter().flat_map(|run| run["processes"].as_array()).flatten() {
        let measured = ["cpu", "pss"].iter().all(|figure| process[*figure].as_u64() > Some(0));
        assert!(measured, "{process}");
    }
}

#[test]
fn first_frame_is_timed_for_each_row() {
    let run = TestRun::new();
    let bench = run.command(&format!(
        "python3 {}/first-frame.py --program {} --rounds 1 --readers 2 --rows engine,elements,gstreamer",
        env!("CARGO_MANIFEST_DIR"),
        env!("CARGO_BIN_EXE_frameshare-first-frame"),
    ));
    let lines = bench.expect_success().lines;
    let rows: Vec<Value> = lines.iter().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let names: Vec<_> = rows.iter().map(|row| &row["case"]).collect();
    assert_eq!(names, ["gstreamer", "engine-host", "elements-host"]);
    assert!(rows.iter().all(|row| row["ms"].as_f64() > Some(0.0)), "{rows:?}");
    let steps = ["main_ms", "connected_ms", "frame_ms", "closed_ms", "ms"].map(|step| rows[1][step].as_f64());
    assert!(steps.is_sorted(), "{steps:?}");
}
