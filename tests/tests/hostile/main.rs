//! Peers that mean harm (tests/src/bin/hostile), one after the other: exporters and readers survive
//! each, drop it with a line, and nobody else notices. After each they stop and exit in time, with
//! the attacker still there (`Process::finish`). What is promised is in `docs/threat-model.md`.

mod exporters;
mod fuse;
mod memory;
mod readers;
mod sinks;
#[allow(dead_code, reason = "the tests of the elements use the rest of it")]
#[path = "../elements/stage.rs"]
mod stage;

use frameshare_tests::raw::Channel;
use stage::{Process, Stage, wait_until};
use std::path::Path;

/// Commands that become the victim: as the kernel is, and as it was before Linux 6.16, which
/// refuses no descriptors at their sender.
const WITH_PASSRIGHTS: &str = "env";
const WITHOUT_PASSRIGHTS: &str = concat!(env!("CARGO_BIN_EXE_without"), " SO_PASSRIGHTS --");

/// The names of all attacks of a side.
fn attacks(stage: &Stage, side: &str) -> Vec<String> {
    let outcome = hostile(stage, side).finish_well();
    assert!(outcome.lines.len() > 10, "{:?}", outcome.lines);
    outcome.lines
}

/// Whether an attack is made with descriptors whose close blocks.
fn is_foreign(name: &str) -> bool {
    ["linger", "nested"].iter().any(|word| name.contains(word))
}

/// Waits until an exporter takes connections: its socket's file is there a moment before.
fn wait_until_listening(path: &Path) {
    wait_until("the exporter listens", || Channel::connect(path).is_ok());
}

/// Starts the peer that means harm.
fn hostile(stage: &Stage, arguments: &str) -> Process {
    stage.command(&format!("{} {arguments}", env!("CARGO_BIN_EXE_hostile")))
}
