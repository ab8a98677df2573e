// SPDX-License-Identifier: MIT OR Apache-2.0

//! Exporter and reader of `frameshare-bench` by iceoryx2's publish-subscribe.
//!
//! `frameshare-bench --iceoryx2 PROGRAM` starts this program in place of its own roles, with the
//! same plans and lines. Pace, stamps and measurements are the bench's own code.

#[path = "../../../bench/src/cuda_calls.rs"]
mod cuda_calls;
mod export;
#[path = "../../../bench/src/pace.rs"]
mod pace;
mod read;
mod service;
#[path = "../../../bench/src/stamp.rs"]
mod stamp;
#[path = "../../../bench/src/usage.rs"]
mod usage;
#[path = "../../../bench/src/watch.rs"]
mod watch;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use std::{
    env,
    io::{self, Write},
    time::Duration,
};

/// Plan of a run, with the fields of the bench that matter here.
#[derive(Clone, Debug, Deserialize)]
struct Run {
    case: Case,
    socket: String,
    warm: Duration,
    measure: Duration,
    pool: usize,
}

/// A case of the bench.
#[derive(Clone, Debug, Deserialize)]
struct Case {
    size: Size,
    readers: usize,
    rate: u32,
}

/// Size of a frame.
#[derive(Clone, Debug, Deserialize)]
struct Size {
    width: usize,
    height: usize,
}

impl Run {
    /// Bytes of a frame of NV12.
    fn bytes(&self) -> usize {
        self.case.size.width * self.case.size.height * 3 / 2
    }
}

fn main() -> Result<()> {
    // If the parent is killed, no process of a role stays.
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [role, run] = arguments.as_slice() else {
        bail!("only frameshare-bench starts this program: make bench");
    };
    let run = serde_json::from_str(run).context("no plan of a run")?;
    match role.as_str() {
        "export" => export::export(&run),
        "read" => read::read(&run),
        _ => bail!("{role} is no role of frameshare-bench"),
    }
}

/// Sends one line to the bench.
fn say(what: &impl Serialize) -> Result<()> {
    let line = serde_json::to_string(what)?;
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}
