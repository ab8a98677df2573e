// SPDX-License-Identifier: MIT OR Apache-2.0

//! Deterministic simulation: tasks of several simulated processes on one thread, under virtual
//! time, with all variety taken from recorded choices.
//!
//! The crate knows nothing of frameshare's streams. A `World` spawns tasks, whose code calls
//! `task::step` before each access to memory that tasks share, and `task::block` to wait. A run is
//! repeated exactly from its choices. The modules, from below:
//!
//! | module | is responsible for |
//! | --- | --- |
//! | `random`, `time` | numbers from a seed, virtual time |
//! | `choices` | the choices of a run: from a seed, a list or an enumeration |
//! | `failure`, `coroutine`, `trace` | panics that end a run, stacks, readable lines |
//! | `settings`, `end`, `state`, `scheduler` | which task runs, when time passes, how a run ends |
//! | `task` | the interface of code in a task |
//! | `run` | the interface of a world: settings and choices before, a report afterwards |
//! | `enumeration`, `shrink`, `outcomes`, `runner` | which runs are tried, and what they reached |
//! | `recording`, `command` | files of choices, the command line |
//! | `stream` | the world of a stream |
//! | `small` | worlds of a stream that are small enough for enumerations |
//! | `toy` | a small world that tests the harness |

pub mod choices;
pub mod command;
mod coroutine;
pub mod end;
pub mod enumeration;
pub mod failure;
pub mod outcomes;
mod random;
pub mod recording;
pub mod run;
pub mod runner;
mod scheduler;
mod seen;
pub mod settings;
pub mod shrink;
pub mod small;
mod state;
pub mod stream;
pub mod task;
pub mod time;
pub mod toy;
pub mod trace;

pub use random::mix;
pub use state::Process;
