// SPDX-License-Identifier: MIT OR Apache-2.0

//! Test harness shared by the GPU suites: programs that run cases, and the processes that execute a
//! case's work.
//!
//! Each program is one executable with several roles, selected by its first argument. The *runner*
//! is started by the user. A *case* is a controlling process that never initializes CUDA. *Peers*
//! execute the commands of a case and report. A hanging peer is killed with its case, and a case
//! with its runner.
//!
//! A program defines its suites and the behavior of its peers; see [`Program`].

use std::time::Duration;

mod case;
mod common;
pub mod graph;
pub mod isolate;
pub mod kernel;
mod link;
pub mod mps;
mod order;
mod peer;
mod place;
pub mod platform;
mod program;
mod runner;
pub mod testing;

pub use case::{Case, Needs, Skip};
pub use common::NOBODY;
pub use frameshare_tests::{content, random};
pub use link::Link;
pub use peer::{Answer, Failed, Process, Start, die_with_parent, obey};
pub use place::Place;
pub use program::{Asked, Program};

/// Default timeout of exporters and readers for each other: on a busy machine, a slow peer must not
/// time out.
pub const GIVEN_UP: Duration = Duration::from_secs(60);
