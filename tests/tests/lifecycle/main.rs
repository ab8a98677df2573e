//! Exporters and readers that come and go: whenever they like, many of them, again and again, in one process and in
//! several.
//!
//! Streams are fed buffer by buffer from the test itself, so that what a reader must see follows from what was done
//! and not from how fast the machine is.

mod census;
mod cycles;
mod joining;
mod many;
mod pipelines;
mod restarts;
#[allow(dead_code, reason = "the tests of the elements use the rest of it")]
#[path = "../elements/stage.rs"]
mod stage;
