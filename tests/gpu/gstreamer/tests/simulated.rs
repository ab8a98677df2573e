//! The suites on whatever driver there is: `make test` runs this on GStreamer 1.26 and the simulated one.

use std::io::Write as _;
use std::process::Command;

/// How many seeds the suites run with.
const SEEDS: u64 = 2;

/// Past the test harness's capture, where it is counted.
fn skip(what: &str, why: &str) {
    std::io::stdout().write_all(format!("SKIP gpu-gstreamer{what}: {why}\n").as_bytes()).unwrap();
}

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
        let failed: Vec<_> = text.lines().filter(|line| line.contains(r#""result":"fail""#)).collect();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && failed.is_empty(), "seed {seed}: {failed:#?}\n{errors}");
        if let Some(why) = text.lines().find_map(|line| line.strip_prefix("SKIP gpu-gstreamer: ")) {
            return skip("", why);
        }
        if let Some(why) = text.lines().find_map(|line| line.strip_prefix("no GPU: ")) {
            return skip("", why);
        }
        for line in text.lines().filter(|line| seed == 1 && line.contains(r#""result":"skip""#)) {
            let line: serde_json::Value = serde_json::from_str(line).unwrap();
            let word = |key: &str| line[key].as_str().unwrap_or_default().to_owned();
            skip(&format!("/{}/{}", word("suite"), word("case")), &word("reason"));
        }
    }
}
