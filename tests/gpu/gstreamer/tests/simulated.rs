// SPDX-License-Identifier: MIT OR Apache-2.0

//! Runs the suites on any driver: `make test` runs them with GStreamer 1.26 and the simulated
//! driver.

use frameshare_gpu_harness::testing::{must_pass, skip, tell_skipped};
use std::process::Command;

/// Number of seeds.
const SEEDS: u64 = 2;

#[test]
fn suites_pass() {
    for seed in 1..=SEEDS {
        let output = Command::new(env!("CARGO_BIN_EXE_gpu-gstreamer"))
            .args(["--seed", &seed.to_string()])
            .env("SIMCUDA_SEED", seed.to_string())
            .env("SIMCUDA_STRICT", "abort")
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        must_pass(&output, &format!("seed {seed}"));
        if let Some(why) = text.lines().find_map(|line| line.strip_prefix("SKIP gpu-gstreamer: ")) {
            return skip("gpu-gstreamer", why);
        }
        if let Some(why) = text.lines().find_map(|line| line.strip_prefix("no GPU: ")) {
            return skip("gpu-gstreamer", why);
        }
        if seed == 1 {
            tell_skipped("gpu-gstreamer", &output);
        }
    }
}
