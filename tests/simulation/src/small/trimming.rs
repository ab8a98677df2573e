// SPDX-License-Identifier: MIT OR Apache-2.0

//! The end of a slot that is not needed any more, in memory that is freed after its imports, while
//! its generation goes on. A reader may join late, leave, die at any step, or acknowledge without a
//! request.

use super::{
    Script,
    stage::{PAGE, Stage, reader, settings},
};
use crate::{
    outcomes,
    stream::{
        Outcome,
        exporter::Settings,
        process::EXPORTER,
        reader::{Behaviour, GivesUp},
        system::{Simulated, Slot, time_of},
    },
    task::{block, choose, now},
};
use frameshare_core::exporter::{state::State, system::Slot as _};
use frameshare_protocol::{MemoryKind, Policy};
use std::time::Duration;

/// The credit of a late reader, two frames that wait, two in reserve, and those of upstream.
const SLOTS: u32 = 1 + 2 + 2 + UPSTREAM;
/// Slots that upstream may hold: then each frame goes to the other one or to a new one.
const UPSTREAM: u32 = 4;
/// Number of the first frame after those that are in all slots at first, counted from 1.
const FIRST: u32 = UPSTREAM + 2;
/// Time after which a slot that was not used is trimmed.
const KEPT: Duration = Duration::from_secs(5);

outcomes! {
    enum Goal {
        FreedWhileReading = "trimming: a slot is freed while all readers continue",
        Overtakes = "trimming: a request overtakes a backlog",
        Draining = "trimming: a slot waits for a reader that has left",
        Taken = "trimming: the slot is taken before it is trimmed",
    }
}

const GOALS: &[&str] = &[
    Goal::NAMES[0],
    Goal::NAMES[1],
    Goal::NAMES[2],
    Goal::NAMES[3],
    Outcome::NAMES[Outcome::Lied as usize],
    Outcome::NAMES[Outcome::Died as usize],
];

pub const SCRIPT: Script = Script { name: "trimming", goals: GOALS, exporter, begin };

fn exporter(readers: u32) -> Settings {
    Settings { inspect, ..settings(MemoryKind::Legacy, readers + SLOTS, false) }
}

/// Events of the readers; 0 is none.
const LEAVES: u32 = 1;
const GIVES_UP: u32 = 2;
const DIES: u32 = 3;
const JOINS: u32 = 4;
const OTHER_DIES: u32 = 5;

fn begin(stage: &Stage, readers: u32) {
    let (lossless, latest, late) = (EXPORTER + 1, EXPORTER + 2, EXPORTER + 3);
    let (ending, upstream) = (choose(OTHER_DIES + readers - 1), choose(3));
    stage.publish_with(move |stage| {
        stage.join(readers);
        let mut held: Vec<_> = (0..=UPSTREAM).map(|_| stage.acquire(PAGE)).collect();
        held.iter().for_each(|slot| stage.publish_in(slot));
        match upstream {
            0 => held.clear(),
            1 => held.truncate(UPSTREAM as usize),
            // The last slots stay in use, and the first one is trimmed.
            _ => drop(held.remove(0)),
        }
        let unused = now() + KEPT;
        // To the instant before the check that trims.
        let check = loop {
            let next = stage.exporter.with(|state| state.slots().trims_at()).map(time_of);
            let next = next.expect("there are slots to be trimmed");
            if next > unused {
                break next;
            }
            block("wait for a check", Some(next), || false);
            block("wait for its end", Some(next + Duration::from_nanos(1)), || false);
        };
        block("wait for the last check", Some(check - Duration::from_nanos(1)), || false);
        match ending {
            DIES => stage.kill(lossless, check),
            OTHER_DIES => stage.kill(latest, check),
            _ => {}
        }
        stage.branch();
        if ending == JOINS {
            stage.read(late, reader(Policy::Latest));
        }
        block("the check is due", Some(check), || false);
        stage.publish(PAGE);
        stage.publish(PAGE);
        match held.pop() {
            Some(slot) => stage.publish_in(&slot),
            None => stage.publish(PAGE),
        }
        drop(held);
        stage.expect("trimmed slots are freed", |state| {
            state.slots().generations().iter().all(|one| one.retired_slot_bytes() == 0)
        });
    });
    let leaves_after = if ending == LEAVES { FIRST } else { 0 };
    let gives_up = (ending == GIVES_UP).then_some((FIRST.into(), GivesUp::Slot));
    let is_blameless = gives_up.is_none();
    stage.read(lossless, Behaviour { leaves_after, gives_up, is_blameless, ..reader(Policy::Lossless) });
    if readers > 1 {
        stage.read(latest, reader(Policy::Latest));
    }
}

fn inspect(state: &State<Simulated>) {
    let (slots, readers) = (state.slots(), state.readers());
    let retired: u64 = slots.generations().iter().map(|one| one.retired_slot_bytes()).sum();
    if slots.trimmed() > 0 && retired == 0 && readers.present().len() as u64 == readers.total() {
        Goal::FreedWhileReading.reach();
    }
    if readers.draining().iter().any(|link| link.imports.retired_slots() > 0) {
        Goal::Draining.reach();
    }
    if readers.present().iter().any(|link| link.imports.retired_slots() > 0 && !link.backlog().is_empty()) {
        Goal::Overtakes.reach();
    }
    let is_last = |slot: &Slot| slot.id().index == UPSTREAM;
    if slots.trims_at().is_some() && state.publications().holding().any(|frame| is_last(&frame.slot)) {
        Goal::Taken.reach();
    }
}
