// SPDX-License-Identifier: MIT OR Apache-2.0

//! Backlogs of lossless readers with a credit of one, and the slots that they need. One of the
//! readers may leave with a frame, or die at any step.

use super::{
    Script,
    stage::{PAGE, Stage, reader, settings},
};
use crate::{
    outcomes,
    stream::{Outcome, exporter::Settings, process::EXPORTER, reader::Behaviour, system::Simulated},
    task::{block, choose, now},
};
use frameshare_core::exporter::{link::Link, state::State};
use frameshare_protocol::{MemoryKind, Policy, Sequence};
use std::time::Duration;

/// Frames that wait at most.
const WAITING: u32 = 2;
/// The frame that is written, and the next one.
const RESERVE: u32 = 2;
/// One more than a reader holds and its backlog takes.
const FRAMES: u32 = 1 + WAITING + 1;

outcomes! {
    enum Goal {
        Full = "backlog: as many frames wait for each reader as the slots allow",
        Delivered = "backlog: a frame has left it",
        CaughtUp = "backlog: all readers have read all",
    }
}

const GOALS: &[&str] = &[
    Goal::NAMES[0],
    Goal::NAMES[1],
    Goal::NAMES[2],
    Outcome::NAMES[Outcome::WaitedForRoom as usize],
    Outcome::NAMES[Outcome::Died as usize],
];

pub const SCRIPT: Script = Script { name: "backlog", goals: GOALS, exporter, begin };

fn exporter(readers: u32) -> Settings {
    Settings { inspect, ..settings(MemoryKind::Host, readers + WAITING + RESERVE, false) }
}

fn begin(stage: &Stage, readers: u32) {
    let ending = choose(3);
    stage.publish_with(move |stage| {
        stage.join(readers);
        if ending == 2 {
            stage.kill(EXPORTER + 1, now());
        }
        stage.branch();
        for _ in 0..FRAMES {
            stage.publish(PAGE);
        }
        // Backlogs are delivered although no thread calls the exporter, and without a timer.
        block("does nothing", Some(now() + Duration::from_nanos(1)), || false);
        stage.exporter.with(|state| {
            assert!(!state.has_backlogs(), "frames were not delivered");
        });
        stage.expect("all slots are free", |state| state.publications().leased().next().is_none());
    });
    let behaviour = Behaviour { on_gpu: false, ..reader(Policy::Lossless) };
    let leaves = ending == 1;
    let (leaves_after, holds) = (u32::from(leaves), usize::from(leaves));
    stage.read(EXPORTER + 1, Behaviour { leaves_after, holds, ..behaviour.clone() });
    for other in 1..readers {
        stage.read(EXPORTER + 1 + other, behaviour.clone());
    }
}

/// The frames of a backlog are the newest ones of the stream, and the slots suffice.
fn inspect(state: &State<Simulated>) {
    let readers = state.readers().present();
    let credit: u32 = readers.iter().map(|link| link.info.credit).sum();
    let longest = readers.iter().map(|link| link.backlog().frames()).max().unwrap_or(0) as u32;
    let max = state.limits().max_slots;
    assert!(credit + longest + RESERVE <= max, "a backlog of {longest} frames leaves too few slots");
    for link in readers {
        let Some(first) = link.backlog().first() else { continue };
        let newest = state.next_sequence().since(first.descriptor.sequence);
        assert_eq!(link.backlog().frames() as u64, newest, "a backlog has a gap");
        if first.descriptor.sequence > Sequence(1) {
            Goal::Delivered.reach();
        }
    }
    let is_full = |link: &Link<Simulated>| link.backlog().frames() == WAITING as usize;
    if !readers.is_empty() && readers.iter().all(is_full) {
        Goal::Full.reach();
    }
    let is_over = state.next_sequence() >= Sequence(u64::from(FRAMES));
    if is_over && readers.len() as u64 == state.readers().total() && readers.iter().all(Link::is_idle) {
        Goal::CaughtUp.reach();
    }
}
