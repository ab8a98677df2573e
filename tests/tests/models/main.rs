// SPDX-License-Identifier: MIT OR Apache-2.0

//! Models of the protocol's state machines, explored exhaustively within bounds
//! (docs/verification.md).
//!
//! Code that depends on the memory model (the claim word, the waiting flags) is explored by loom
//! itself (crates/frameshare-queue/src/tests.rs), and the exporter's decisions about backlogs and
//! retirement by enumeration (tests/simulation/src/small). The models here cover other rules, with
//! processes that die at any step. Each model has faults as negative controls: with a fault, it
//! must find the violated property.

mod leases;
mod takeover;

use stateright::{Checker, Expectation, HasDiscoveries, Model};

/// Explores a model completely: its invariants hold in all states, and its reachable goals occur.
fn holds<M>(name: &str, model: M)
where
    M: Model + Send + Sync + 'static,
    M::State: Send + Sync + Clone + std::fmt::Debug + std::hash::Hash + PartialEq,
    M::Action: Send + Sync + Clone + std::fmt::Debug + PartialEq,
{
    let checker = model.checker().threads(2).spawn_bfs().join();
    println!(
        "{name}: {} states, {} of them different, {} steps deep",
        checker.state_count(),
        checker.unique_state_count(),
        checker.max_depth()
    );
    assert!(checker.is_done());
    checker.assert_properties();
}

/// Explores a model with a fault until `property` is violated.
fn fails<M>(model: M, property: &'static str)
where
    M: Model + Send + Sync + 'static,
    M::State: Send + Sync + Clone + std::fmt::Debug + std::hash::Hash + PartialEq,
    M::Action: Send + Sync + Clone + std::fmt::Debug + PartialEq,
{
    let found = HasDiscoveries::AllOf([property].into());
    let checker = model.checker().threads(2).finish_when(found).spawn_bfs().join();
    let is_claim =
        |of: &stateright::Property<M>| of.name == property && of.expectation == Expectation::Always;
    assert!(checker.model().properties().iter().any(is_claim), "the model claims no such thing");
    assert!(checker.discovery(property).is_some(), "nothing comes of it");
}
