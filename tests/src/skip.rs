// SPDX-License-Identifier: MIT OR Apache-2.0

//! Skipped tests, which tests/all.sh counts.

use std::io::Write;

/// Reports a skipped test past the harness's output capture.
pub fn skip(test: &str, reason: &str) {
    let line = format!("SKIP {test}: {reason}\n");
    std::io::stdout().write_all(line.as_bytes()).expect("stdout is open");
}

/// Returns whether a test that changes its user can run; reports it as skipped if not.
pub fn is_root(test: &str) -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        skip(test, "root is needed");
    }
    is_root
}
