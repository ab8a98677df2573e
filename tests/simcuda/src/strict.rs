// SPDX-License-Identifier: MIT OR Apache-2.0

//! Reports of CUDA uses that are undefined with the real driver, although they often seem to work.

use crate::config::{self, Strict};
use std::fs::OpenOptions;
use std::io::Write;

/// Reports a violation as `SIMCUDA_STRICT` requests: one line to stderr and to the file
/// `SIMCUDA_ERRORS`, then for `abort` an abort.
pub fn violation(what: &str) {
    let config = config::get();
    if config.strict == Strict::Off {
        return;
    }
    let line = format!("simcuda[{}]: VIOLATION: {what}\n", std::process::id());
    eprint!("{line}");
    if let Some(path) = &config.errors {
        // One write per line: processes that share the file do not mix their lines.
        let file = OpenOptions::new().create(true).append(true).open(path);
        if let Err(error) = file.and_then(|mut file| file.write_all(line.as_bytes())) {
            eprintln!("simcuda: cannot write {}: {error}", path.display());
        }
    }
    if config.strict == Strict::Abort {
        std::process::abort();
    }
}
