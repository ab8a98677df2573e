// SPDX-License-Identifier: MIT OR Apache-2.0

//! The end of a generation of memory that is freed after its imports, with a kept frame and with
//! the backlog of a lossless reader. A reader may join late, leave, die at any step, or acknowledge
//! without a request.

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
        system::Simulated,
    },
    task::{choose, now, pause},
};
use frameshare_core::exporter::{state::State, system::Slot as _};
use frameshare_protocol::{MemoryKind, Policy};

/// The credit of a late reader, two frames that wait, and three in reserve.
const SLOTS: u32 = 1 + 2 + 3;

outcomes! {
    enum Goal {
        FreedWhileReading = "retirement: memory is freed while all readers continue",
        LateKnowsNew = "retirement: a late reader knows the new generation only",
        LateGetsKept = "retirement: a late reader gets the kept frame of the old generation",
        Draining = "retirement: memory waits for a reader that has left",
    }
}

const GOALS: &[&str] = &[
    Goal::NAMES[0],
    Goal::NAMES[1],
    Goal::NAMES[2],
    Goal::NAMES[3],
    Outcome::NAMES[Outcome::RetiredLater as usize],
    Outcome::NAMES[Outcome::Lied as usize],
    Outcome::NAMES[Outcome::Died as usize],
];

pub const SCRIPT: Script = Script { name: "retirement", goals: GOALS, exporter, begin };

fn exporter(readers: u32) -> Settings {
    Settings { inspect, ..settings(MemoryKind::Legacy, readers + SLOTS, true) }
}

/// The name of the reader that joins late.
const LATE: &str = "reader 4";

/// Events of the readers; 0 is none.
const LEAVES: u32 = 1;
const GIVES_UP: u32 = 2;
const DIES: u32 = 3;
const JOINS: u32 = 4;
const JOINS_FOR_KEPT: u32 = 5;
const OTHER_DIES: u32 = 6;

fn begin(stage: &Stage, readers: u32) {
    let (lossless, latest, late) = (EXPORTER + 1, EXPORTER + 2, EXPORTER + 3);
    let ending = choose(OTHER_DIES + readers - 1);
    stage.publish_with(move |stage| {
        stage.join(readers);
        match ending {
            DIES => stage.kill(lossless, now()),
            OTHER_DIES => stage.kill(latest, now()),
            _ => {}
        }
        stage.branch();
        stage.publish(PAGE);
        if ending == JOINS {
            stage.read(late, reader(Policy::Latest));
        }
        stage.publish(PAGE);
        // A larger frame: the first generation is retired.
        let slot = stage.acquire(2 * PAGE);
        if ending == JOINS_FOR_KEPT {
            stage.read(late, reader(Policy::Latest));
            pause("a reader joins");
        }
        stage.publish_in(&slot);
        drop(slot);
        stage.expect("the old generation is freed", |state| {
            !state.slots().generations().iter().any(|one| one.retired)
        });
    });
    let leaves_after = u32::from(ending == LEAVES);
    let gives_up = (ending == GIVES_UP).then_some((1, GivesUp::Generation));
    let is_blameless = gives_up.is_none();
    stage.read(lossless, Behaviour { leaves_after, gives_up, is_blameless, ..reader(Policy::Lossless) });
    if readers > 1 {
        stage.read(latest, reader(Policy::Latest));
    }
}

fn inspect(state: &State<Simulated>) {
    let (generations, readers) = (state.slots().generations(), state.readers());
    let is_retired = |id: u32| generations.iter().any(|one| one.id == id && one.retired);
    let has = |id: u32| generations.iter().any(|one| one.id == id);
    if has(2) && !has(1) && readers.present().len() as u64 == readers.total() {
        Goal::FreedWhileReading.reach();
    }
    if readers.draining().iter().any(|link| link.imports.generations().any(is_retired)) {
        Goal::Draining.reach();
    }
    let Some(late) = readers.present().iter().find(|link| link.info.name == LATE) else { return };
    if late.imports.generations().eq([2]) {
        Goal::LateKnowsNew.reach();
    }
    let mut frames = late.leases.areas().filter_map(|area| state.publications().get(area));
    if frames.any(|frame| is_retired(frame.slot.id().generation)) {
        Goal::LateGetsKept.reach();
    }
}
