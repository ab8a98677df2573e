//! Peers that mean harm (tests/src/bin/hostile), one after the other: exporters and readers survive each, drop it with a
//! line, and nobody else notices. What is promised is in `docs/reliability.md`.

mod exporters;
mod memory;
mod readers;
#[allow(dead_code, reason = "the tests of the elements use the rest of it")]
#[path = "../elements/stage.rs"]
mod stage;

use stage::{Process, Stage};

/// The names of all attacks of a side.
fn attacks(stage: &Stage, side: &str) -> Vec<String> {
    let names = hostile(stage, side).finish_well().lines;
    assert!(names.len() > 10, "{names:?}");
    names
}

/// Starts the peer that means harm.
fn hostile(stage: &Stage, arguments: &str) -> Process {
    stage.command(&format!("{} {arguments}", env!("CARGO_BIN_EXE_hostile")))
}
