// SPDX-License-Identifier: MIT OR Apache-2.0

//! Reports uses of CUDA that the real driver leaves undefined, and often seems to allow.

use crate::config::{self, Strict};
use std::fs::OpenOptions;
use std::io::Write;

/// Reports a violation as `SIMCUDA_STRICT` asks: one line to stderr and to the file `SIMCUDA_ERRORS`, then an abort if
/// it is `abort`.
pub fn violation(what: &str) {
    let config = config::get();
    if config.strict == Strict::Off {
        return;
    }
    let line = format!("simcuda[{}]: VIOLATION: {what}\n", std::process::id());
    eprint!("{line}");
    if let Some(path) = &config.errors {
        // One write of one line: processes that share the file do not mix theirs.
        let file = OpenOptions::new().create(true).append(true).open(path);
        if let Err(error) = file.and_then(|mut file| file.write_all(line.as_bytes())) {
            eprintln!("simcuda: cannot write {}: {error}", path.display());
        }
    }
    if config.strict == Strict::Abort {
        std::process::abort();
    }
}
