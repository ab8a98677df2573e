// SPDX-License-Identifier: MIT OR Apache-2.0

//! All runs of the small worlds with one deviation from the default order of tasks. `make
//! enumerate` tries those with two.

use frameshare_simulation::{
    choices::Choices,
    enumeration::{Enumeration, enumerate},
    run::{Run, World},
    small::{Size, Small},
};
use std::time::{Duration, Instant};

const SIZE: Size = Size { readers: 2, deviations: 1 };

/// No run fails, and each goal is reached.
fn holds(world: &Small) {
    let begun = Instant::now();
    let found = enumerate(world, Enumeration::new(), Duration::from_secs(600));
    println!("{}: {} runs, {} steps, {:?}", world.name(), found.runs, found.steps, begun.elapsed());
    print!("{}", found.outcomes);
    if let Some((failure, list)) = found.failure {
        let traced = world.run(Run::traced(Choices::listed(list.clone())));
        traced.trace.iter().for_each(|line| println!("{line}"));
        panic!("{failure}\nchoices {list:?}");
    }
    assert!(found.is_complete, "the time is over");
    assert_eq!(found.outcomes.check_all_reached(), Ok(()));
}

#[test]
fn backlogs_keep_order_and_slots() {
    holds(&Small::backlog(SIZE));
}

#[test]
fn generation_is_freed_after_its_last_import() {
    holds(&Small::retirement(SIZE));
}

#[test]
fn slot_is_freed_after_its_last_import() {
    holds(&Small::trimming(SIZE));
}
