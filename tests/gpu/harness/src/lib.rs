//! What the suites on GPUs share: a program that runs cases, and the processes that do a case's work.
//!
//! Each program is one executable that plays several parts, told by its first argument. The *runner* is what people
//! start; a *case* is a process that conducts and never touches CUDA; what it conducts are *peers*, which do what they
//! are asked and report. Whatever hangs in a peer is killed with its case, and a case with its runner.
//!
//! A program names its suites and what its peers do; see [`Program`].

use std::time::Duration;

pub mod isolate;
pub mod kernel;
mod link;
mod peer;
mod place;
pub mod platform;
mod program;
pub mod random;
mod runner;
pub mod testing;

pub use link::Link;
pub use peer::{Answer, Failed, Process, Start, die_with_parent, obey};
pub use place::Place;
pub use program::{Asked, Case, Needs, Program, Skip};

/// How long exporters and readers wait for each other unless a case is about that: on a busy machine, too, nobody is given
/// up who is only slow.
pub const GIVEN_UP: Duration = Duration::from_secs(60);
