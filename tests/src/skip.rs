// SPDX-License-Identifier: MIT OR Apache-2.0

//! Skipped tests, which tests/all.sh counts.

use frameshare::machine::{self, SocketFeatures};
use std::io::Write;

/// Reports a skipped test past the harness's output capture.
pub fn skip(test: &str, reason: &str) {
    let line = format!("SKIP {test}: {reason}\n");
    std::io::stdout().write_all(line.as_bytes()).expect("stdout is open");
}

/// Returns whether readers sleep on a futex (Linux 5.16); reports a test of that as skipped if not.
pub fn has_futex_waitv(test: &str) -> bool {
    let has = machine::has_futex_waitv();
    if !has {
        skip(test, "without futex_waitv readers sleep on sockets");
    }
    has
}

/// Returns whether the kernel refuses descriptors at their sender (Linux 6.16); reports a test as
/// skipped if not.
pub fn has_passrights(test: &str) -> bool {
    let has = SocketFeatures::probe().is_ok_and(|features| features.pass_rights);
    if !has {
        skip(test, "this kernel has no SO_PASSRIGHTS: the same without it runs");
    }
    has
}

/// Returns whether a test that changes its user can run; reports it as skipped if not.
pub fn is_root(test: &str) -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        skip(test, "root is needed");
    }
    is_root
}
