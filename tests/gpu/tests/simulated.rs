// SPDX-License-Identifier: MIT OR Apache-2.0

//! Runs the suites on the simulated driver, with several seeds.

use frameshare_gpu_harness::testing::{self, simulated::driver};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Number of seeds for the suites with delays.
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
    must_pass(
        &suites(driver.path(), 1, &["limits", "isolation", "devices", "faults"]),
        "suites without delays",
    );
    // The cases mostly sleep, so the seeds run in parallel.
    std::thread::scope(|scope| {
        for seed in 1..=SEEDS {
            let driver = driver.path();
            scope.spawn(move || {
                let output = suites(driver, seed, &["memory", "fences", "crashes"]);
                must_pass(&output, &format!("seed {seed}"));
            });
        }
    });
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
            .arg("memory/vmm")
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
