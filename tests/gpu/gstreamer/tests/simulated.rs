//! The suites on whatever driver there is: `make test` runs this on GStreamer 1.26 and the simulated one.

use frameshare_gpu_harness::testing::{must_pass, skip, tell_skipped};
use std::process::Command;

/// How many seeds the suites run with.
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
