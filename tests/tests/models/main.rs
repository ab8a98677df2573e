//! The protocol's state machines, every state of them within bounds (docs/verification.md has them).
//!
//! What depends on the memory model - the claim word, the announcements of sleep - is explored by loom on the engine's own code
//! (crates/frameshare/src/queue/tests.rs). Here are the rules above it, in which processes die at any step. Each model can
//! be made wrong in one place, and must then find what that leads to: the negative controls.

mod leases;
mod retirement;
mod takeover;

use stateright::{Checker, Expectation, Model};

/// Explores a model to its end: what is claimed always holds, and what is possible happens.
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

/// Explores a model that was made wrong until a property fails.
fn fails<M>(model: M, property: &'static str)
where
    M: Model + Send + Sync + 'static,
    M::State: Send + Sync + Clone + std::fmt::Debug + std::hash::Hash + PartialEq,
    M::Action: Send + Sync + Clone + std::fmt::Debug + PartialEq,
{
    let checker = model.checker().threads(2).spawn_bfs().join();
    let is_claim =
        |of: &stateright::Property<M>| of.name == property && of.expectation == Expectation::Always;
    assert!(checker.model().properties().iter().any(is_claim), "the model claims no such thing");
    assert!(checker.discovery(property).is_some(), "nothing comes of it");
}
