// SPDX-License-Identifier: MIT OR Apache-2.0

//! Exporter and reader without GStreamer, for tests across processes.
//!
//! `peer export` publishes frames whose every byte derives from the sequence number; `peer read`
//! prints one JSON line per frame and a summary; `peer observe` prints a line about a snapshot, and
//! `peer list` one about the streams; `peer share` and `peer gather` export and read many streams.
//! Without arguments it prints the options. The exit status is 0 for success, 1 for an error (named
//! on stderr) and 2 for a frame with wrong content.

mod child;
mod export;
mod many;
mod observe;
mod options;
mod read;

use options::{Options, USAGE};
use serde_json::Value;
use std::{
    env,
    error::Error,
    io::{self, Write},
    process::ExitCode,
};

/// Kind of the numbered events of `peer export`.
const NUMBERED: u32 = 77;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn print(line: &Value) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()
}

fn main() -> ExitCode {
    let mut arguments = env::args().skip(1);
    let role = arguments.next().unwrap_or_default();
    let done = Options::parse(arguments).and_then(|options| match role.as_str() {
        "read" => read::read(&options),
        "export" => export::export(&options),
        "observe" => observe::observe(&options),
        "list" => observe::list(),
        "share" => many::share(&options),
        "fork" => many::fork(&options),
        "gather" => many::gather(&options),
        _ => Err(USAGE.into()),
    });
    done.unwrap_or_else(|error| {
        eprintln!("peer: {error}");
        ExitCode::FAILURE
    })
}
