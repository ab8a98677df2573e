//! The suites on the simulated driver, with several seeds.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Output};

/// How many seeds the suites run with that depend on which stream is slow.
const SEEDS: u64 = 3;

/// Those suites.
const SEEDED: [&str; 5] =
    ["engine-fences", "engine-order", "engine-foreign", "engine-policies", "engine-two-gpus"];

/// Runs suites; every use of CUDA that is undefined ends the process that made it.
fn suites(driver: &Path, seed: u64, names: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_gpu-engine"))
        .args(["--frames", "60", "--seed", &seed.to_string()])
        .args(names)
        .env("LD_LIBRARY_PATH", driver)
        .env("REQUIRE_GPU", "1")
        .env("SIMCUDA_SEED", seed.to_string())
        .env("SIMCUDA_DEVICES", "2")
        .env("SIMCUDA_STRICT", "abort")
        .output()
        .unwrap()
}

/// All pass; what was skipped is said past the test harness's capture, where it is counted.
fn must_pass(output: &Output, what: &str) {
    let text = String::from_utf8_lossy(&output.stdout);
    let failed: Vec<_> = text.lines().filter(|line| line.contains(r#""result":"fail""#)).collect();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && failed.is_empty(), "{what}: {failed:#?}\n{errors}");
    for line in text.lines().filter(|line| line.contains(r#""result":"skip""#)) {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        let word = |key: &str| line[key].as_str().unwrap_or_default().to_owned();
        let skip = format!("SKIP gpu-engine/{}/{}: {}\n", word("suite"), word("case"), word("reason"));
        std::io::stdout().write_all(skip.as_bytes()).unwrap();
    }
}

/// The driver, without the symbols that an older one lacks.
fn driver(without: &[&str]) -> tempfile::TempDir {
    let driver = tempfile::tempdir().unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../simcuda/install.sh");
    let status = Command::new(script).arg(driver.path()).args(without).status().unwrap();
    assert!(status.success(), "the simulated driver was not built");
    driver
}

/// Where a release has to wait for a worker, it still stands for the work in other contexts that was named.
#[test]
fn late_releases_cover_what_was_named() {
    let driver = driver(&["cuCtxRecordEvent"]);
    let names = ["engine-fences/another-context-named", "engine-fences/another-context-unnamed"];
    must_pass(&suites(driver.path(), 1, &names), "without the context-wide record");
}

#[test]
fn suites_pass_on_the_simulated_driver() {
    let driver = driver(&[]);
    for seed in 1..=SEEDS {
        must_pass(&suites(driver.path(), seed, &SEEDED), &format!("seed {seed}"));
    }
    let others = suites(
        driver.path(),
        1,
        &["engine-crashes", "engine-endurance", "engine-steady", "engine-isolated", "engine-bench"],
    );
    must_pass(&others, "suites that one seed is enough for");
    // What is measured here means nothing, but the lines are what tables are made of.
    let measured = String::from_utf8_lossy(&others.stdout).matches(r#""frames_per_s""#).count();
    assert!(measured >= 24, "{measured} lines of measures");
}
