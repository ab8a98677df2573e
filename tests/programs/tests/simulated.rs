// SPDX-License-Identifier: MIT OR Apache-2.0

//! Runs programs on the simulated driver: those of fixed seeds, those that found a fault before,
//! and wrong ones.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use frameshare_gpu_harness::testing::simulated::driver;
use frameshare_tests::skip::skip;
use tempfile::TempDir;

fn run(arguments: &[&str]) -> Output {
    static DRIVER: OnceLock<TempDir> = OnceLock::new();
    let driver = DRIVER.get_or_init(|| driver(&[]));
    let program = Command::new(env!("CARGO_BIN_EXE_gpu-programs"))
        .args(arguments)
        .env("LD_LIBRARY_PATH", driver.path())
        .output()
        .unwrap();
    for line in String::from_utf8_lossy(&program.stdout).lines() {
        if let Some((name, why)) = line.strip_prefix("SKIP ").and_then(|line| line.split_once(": ")) {
            skip(name, why);
        }
    }
    program
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stderr), String::from_utf8_lossy(&output.stdout))
}

fn programs_in(folder: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let mut files: Vec<_> = folder.read_dir().unwrap().map(|file| file.unwrap().path()).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "txt"));
    files
}

#[test]
fn programs_of_fixed_seeds_pass() {
    // Half a minute on two idle cores.
    let output = run(&["seeds", "1", "100"]);
    assert!(output.status.success(), "{}", text(&output));
}

#[test]
fn programs_that_found_faults_pass() {
    for file in programs_in("found") {
        let output = run(&["run", file.to_str().unwrap(), "5"]);
        assert!(output.status.success(), "{}: {}", file.display(), text(&output));
    }
}

/// Negative control: each of these programs breaks one rule.
#[test]
fn wrong_programs_fail() {
    let files = programs_in("wrong");
    assert!(!files.is_empty());
    for file in files {
        let output = run(&["run", file.to_str().unwrap(), "10"]);
        assert!(!output.status.success(), "{}: {}", file.display(), text(&output));
    }
}
