// SPDX-License-Identifier: MIT OR Apache-2.0

//! Hostile peers (tests/src/bin/hostile): exporters and readers survive each attack,
//! disconnect it with a line, and no other process is affected. After each attack they stop and
//! exit in time, with the attacker still present (`Process::finish`). The guarantees are in
//! `docs/threat-model.md`.
//!
//! Attacks with descriptors run twice, see [`WITHOUT_PASSRIGHTS`]. `without SO_PASSRIGHTS --
//! BINARY` runs all of the suite as before Linux 6.16.

mod exporters;
mod fuse;
mod hoard;
mod memory;
mod readers;
mod sinks;
mod wakes;

use frameshare_tests::process::{TestRun, wait_until};
use frameshare_tests::raw::Channel;
use std::{path::Path, sync::Mutex, thread};

/// Commands that become the victim: with the present kernel, and as before Linux 6.16, which cannot
/// refuse descriptors at their sender.
const WITH_PASSRIGHTS: &str = "env";
const WITHOUT_PASSRIGHTS: &str = concat!(env!("CARGO_BIN_EXE_without"), " SO_PASSRIGHTS --");

/// The names of all attacks of a side.
fn attacks(run: &TestRun, side: &str) -> Vec<String> {
    let outcome = run.hostile(side).expect_success();
    assert!(outcome.lines.len() > 10, "{:?}", outcome.lines);
    outcome.lines
}

/// Number of attacks at the same time: most of the time their processes wait. A slow machine sets
/// FRAMESHARE_ATTACKS.
fn at_once() -> usize {
    let asked = std::env::var("FRAMESHARE_ATTACKS").ok();
    asked.map_or(3, |number| number.parse().expect("FRAMESHARE_ATTACKS is a number"))
}

/// Calls `attack` with the name of every attack of a side, several at the same time. Each attack
/// has a run of its own.
fn for_each_attack(side: &str, attack: impl Fn(&str) + Sync) {
    let names = Mutex::new(attacks(&TestRun::new(), side).into_iter());
    let next = || names.lock().expect("no thread panics with the lock").next();
    thread::scope(|scope| {
        for _ in 0..at_once() {
            scope.spawn(|| {
                while let Some(name) = next() {
                    attack(&name);
                }
            });
        }
    });
}

/// Returns whether an attack uses descriptors whose close blocks.
fn is_foreign(name: &str) -> bool {
    ["linger", "nested"].iter().any(|word| name.contains(word))
}

/// Waits until an exporter accepts connections: its socket's file exists a moment before.
fn wait_until_listening(path: &Path) {
    wait_until("the exporter listens", || Channel::connect(path).is_ok());
}
