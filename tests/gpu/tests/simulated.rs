// SPDX-License-Identifier: MIT OR Apache-2.0

//! Runs the suites on the simulated driver, with several seeds.

use frameshare_gpu_harness::testing::{self, simulated::driver};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Number of seeds for the suites with delays. The last one runs with the adversary.
const SEEDS: u64 = 4;

fn suites(driver: &Path, seed: u64, names: &[&str]) -> Output {
    testing::simulated::run(env!("CARGO_BIN_EXE_gpu-suites"), driver, seed, names)
}

fn must_pass(output: &Output, what: &str) {
    testing::must_pass(output, what);
    testing::tell_skipped("gpu-suites", output);
}

#[test]
fn suites_pass_on_the_simulated_driver() {
    let driver = driver(&[]);
    // The cases mostly sleep, so the seeds run in parallel.
    std::thread::scope(|scope| {
        let run = |seed, names: &'static [&'static str]| {
            let driver = driver.path();
            scope.spawn(move || must_pass(&suites(driver, seed, names), &format!("{names:?}, seed {seed}")));
        };
        run(1, &["conformance-controls"]);
        run(1, &["limits", "isolation", "devices", "faults"]);
        for seed in 1..SEEDS {
            run(seed, &["conformance", "memory", "fences", "crashes"]);
            run(seed, &["driver"]);
        }
    });
}

#[test]
fn suites_pass_with_adversary() {
    let driver = driver(&[]);
    let names = ["conformance", "memory", "fences", "crashes"];
    let program = env!("CARGO_BIN_EXE_gpu-suites");
    let mut command = testing::simulated::command(program, driver.path(), SEEDS, &names);
    must_pass(&command.env("SIMCUDA_ADVERSARY", "1").output().unwrap(), "with the adversary");
}

/// Drivers before 555 have no context-wide record: the fallback waits instead.
#[test]
fn release_waits_without_context_wide_record() {
    let driver = driver(&["cuCtxRecordEvent"]);
    let output = suites(driver.path(), 1, &["fences/context-record"]);
    must_pass(&output, "context-record");
    assert!(String::from_utf8_lossy(&output.stdout).contains("by waiting"));
}

#[test]
fn missing_driver_skips_or_fails_all_cases() {
    let run = |require: &str| {
        Command::new(env!("CARGO_BIN_EXE_gpu-suites"))
            .arg("memory/rectangles")
            .env("LD_LIBRARY_PATH", PathBuf::from("/nonexistent"))
            .env("REQUIRE_GPU", require)
            .output()
            .unwrap()
    };
    let skipped = run("0");
    let text = String::from_utf8_lossy(&skipped.stdout);
    if !text.contains("no usable CUDA driver") {
        // This machine has a real driver, found without an explicit path.
        return;
    }
    assert!(skipped.status.success() && text.contains("0 passed, 0 failed, 1 skipped"), "{text}");
    let failed = run("1");
    assert!(!failed.status.success());
    assert!(String::from_utf8_lossy(&failed.stdout).contains("0 passed, 1 failed, 0 skipped"));
}

/// Host memory and host frames need no driver; the GPU kinds are then skipped, with the reason.
#[test]
fn host_rules_hold_without_driver() {
    let output = Command::new(env!("CARGO_BIN_EXE_gpu-suites"))
        .args(["conformance", "conformance-controls"])
        .env("LD_LIBRARY_PATH", PathBuf::from("/nonexistent"))
        .output()
        .unwrap();
    testing::must_pass(&output, "conformance without a driver");
    let text = String::from_utf8_lossy(&output.stdout);
    if !text.contains("no GPU: no usable CUDA driver") {
        // This machine has a real driver, found without an explicit path.
        return;
    }
    for line in text.lines().filter(|line| line.starts_with(r#"{"suite""#)) {
        let is_host = line.contains(r#""case":"host-"#) || line.contains(r#""case":"none-"#);
        let expected = if is_host { r#""result":"pass""# } else { r#""result":"skip""# };
        assert!(line.contains(expected), "{line}");
    }
    assert!(text.contains(r#""case":"host-none-no-frame-is-torn","result":"pass""#), "{text}");
}

/// A kind that the driver lacks is skipped, with the reason, and never passes.
#[test]
fn rules_of_missing_kinds_are_skipped() {
    let driver = driver(&["cuMemPoolExportToShareableHandle", "cuIpcGetEventHandle"]);
    let output = suites(driver.path(), 1, &["conformance"]);
    testing::must_pass(&output, "conformance without pools and events");
    let text = String::from_utf8_lossy(&output.stdout);
    let cases: Vec<_> = text.lines().filter(|line| line.starts_with(r#"{"suite""#)).collect();
    for line in &cases {
        let needs = |kind: &str| {
            line.contains(&format!(r#""case":"{kind}-"#)) || line.contains(&format!("-{kind}-no-frame"))
        };
        let says = |kind: &str| line.contains(&format!(r#""reason":"{kind} is not supported on"#));
        let is_skipped = line.contains(r#""result":"skip""#) && (says("pool") || says("event"));
        let is_passed = line.contains(r#""result":"pass""#);
        assert!(if needs("pool") || needs("event") { is_skipped } else { is_passed }, "{line}");
    }
    assert!(cases.len() > 60, "{} cases", cases.len());
}
