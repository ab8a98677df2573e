//! The suites on whatever driver there is: `make test` runs this on GStreamer 1.26 and the simulated one.

use std::io::Write as _;
use std::process::Command;

#[test]
fn suites_pass() {
    for seed in 1..=2_u64 {
        let output = Command::new(env!("CARGO_BIN_EXE_gpu-gstreamer"))
            .args(["--seed", &seed.to_string()])
            .env("SIMCUDA_SEED", seed.to_string())
            .env("SIMCUDA_STRICT", "abort")
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        let failed: Vec<_> = text.lines().filter(|line| line.contains(r#""result":"fail""#)).collect();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && failed.is_empty(), "seed {seed}: {failed:#?}\n{errors}");
        // Past the harness's capture, where it is counted.
        let skip = text.lines().find(|line| line.starts_with("SKIP ") || line.starts_with("no GPU"));
        if let Some(why) = skip {
            let why = why.trim_start_matches("SKIP gpu-gstreamer: ");
            std::io::stdout().write_all(format!("SKIP gpu-gstreamer: {why}\n").as_bytes()).unwrap();
            return;
        }
    }
}
