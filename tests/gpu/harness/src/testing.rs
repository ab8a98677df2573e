// SPDX-License-Identifier: MIT OR Apache-2.0

//! Helpers for the integration tests of a program.

use std::process::Output;

pub use frameshare_tests::{repeat::times, skip::skip};

/// Tests on the simulated driver.
pub mod simulated {
    use std::path::Path;
    use std::process::{Command, Output};

    /// Builds the driver in a temporary folder; `without` lists symbols to omit, as in an older
    /// driver.
    pub fn driver(without: &[&str]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().find_map(|above| {
            let script = above.join("simcuda/install.sh");
            script.exists().then_some(script)
        });
        let script = script.expect("the simulated driver must be in tests/simcuda");
        let status = Command::new(script).arg(folder.path()).args(without).status().unwrap();
        assert!(status.success(), "building the simulated driver failed");
        folder
    }

    /// Runs a program.
    pub fn run(program: &str, driver: &Path, seed: u64, arguments: &[&str]) -> Output {
        command(program, driver, seed, arguments).output().unwrap()
    }

    /// Returns the command of a program; undefined use of CUDA aborts the process that does it.
    pub fn command(program: &str, driver: &Path, seed: u64, arguments: &[&str]) -> Command {
        let mut command = Command::new(program);
        command
            .args(["--seed", &seed.to_string()])
            .args(arguments)
            .env("LD_LIBRARY_PATH", driver)
            .env("REQUIRE_GPU", "1")
            .env("SIMCUDA_SEED", seed.to_string())
            .env("SIMCUDA_DEVICES", "2")
            .env("SIMCUDA_STRICT", "abort");
        command
    }
}

/// Checks that the program and all its cases succeeded.
pub fn must_pass(output: &Output, what: &str) {
    let text = String::from_utf8_lossy(&output.stdout);
    let failed: Vec<_> = text.lines().filter(|line| line.contains(r#""result":"fail""#)).collect();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && failed.is_empty(), "{what}: {failed:#?}\n{errors}");
}

/// Reports skipped cases past the test harness's output capture, for the skip count.
pub fn tell_skipped(program: &str, output: &Output) {
    let text = String::from_utf8_lossy(&output.stdout);
    for line in text.lines().filter(|line| line.contains(r#""result":"skip""#)) {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        let word = |key: &str| line[key].as_str().unwrap_or_default().to_owned();
        skip(&format!("{program}/{}/{}", word("suite"), word("case")), &word("reason"));
    }
}
