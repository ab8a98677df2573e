// SPDX-License-Identifier: MIT OR Apache-2.0

//! Runs the suites on any driver: `make test` runs them with GStreamer 1.26 and the simulated
//! driver.

use frameshare_gpu_harness::testing::{must_pass, skip, tell_skipped, times};
use std::process::Command;

fn suites_pass(seed: u64) {
    let output = Command::new(env!("CARGO_BIN_EXE_gpu-gstreamer"))
        .args(["--seed", &seed.to_string()])
        .env("SIMCUDA_SEED", seed.to_string())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    must_pass(&output, &format!("seed {seed}"));
    // Skips are reported once.
    if seed > 1 {
        return;
    }
    let prefixes = ["SKIP gpu-gstreamer: ", "no GPU: "];
    match text.lines().find_map(|line| prefixes.iter().find_map(|prefix| line.strip_prefix(prefix))) {
        Some(why) => skip("gpu-gstreamer", why),
        None => tell_skipped("gpu-gstreamer", &output),
    }
}

#[test]
fn suites_pass_with_each_seed() {
    for seed in 1..=times(1) as u64 {
        suites_pass(seed);
    }
}
