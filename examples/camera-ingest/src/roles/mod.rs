// SPDX-License-Identifier: MIT OR Apache-2.0

//! Jobs of processes, each for one or several cameras.

pub mod backoff;
mod capture;
mod changes;
mod decode;
mod model;
mod motion;
mod pipeline;
mod record;
mod status;

use crate::{
    config::{Camera, Config},
    report::Reporter,
    wall,
};
use anyhow::{Context as _, Result};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
};
use serde::{Deserialize, Serialize};
use signal_hook::{
    consts::{SIGINT, SIGTERM},
    iterator::Signals,
};
use std::{
    thread,
    time::{Duration, Instant},
};

/// Job of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    Capture,
    Decode,
    Record,
    Motion,
    Model,
    Wall,
}

impl Role {
    /// Returns the command that runs the role.
    pub fn command(self) -> &'static str {
        match self {
            Self::Capture => "capture",
            Self::Decode => "decode",
            Self::Record => "record",
            Self::Motion => "motion",
            Self::Model => "model",
            Self::Wall => "wall",
        }
    }
}

/// Parameters of a role. It runs until SIGINT or SIGTERM, which end it cleanly.
pub struct Context<'a> {
    pub config: &'a Config,
    pub cameras: &'a [Camera],
    pub reporter: Reporter,
    /// Becomes readable at SIGINT and SIGTERM.
    pub stop: frameshare::Interrupt,
}

impl Context<'_> {
    /// Sleeps for a time, or until the stop if the time has no end; returns false, at once, when
    /// the role is stopped.
    pub fn pause(&self, time: Duration) -> bool {
        let deadline = Instant::now().checked_add(time);
        loop {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if self.stop.is_set() || left.is_some_and(|left| left.is_zero()) {
                return !self.stop.is_set();
            }
            let timeout = left.and_then(|left| Timespec::try_from(left).ok());
            match poll(&mut [PollFd::new(&self.stop, PollFlags::IN)], timeout.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                // The interrupt is checked in steps then.
                Err(_) => thread::sleep(Duration::from_millis(100)),
            }
        }
    }
}

/// Runs a role until it is stopped.
pub fn run(role: Role, config: &Config, cameras: &[Camera]) -> Result<()> {
    let stop = stop_of_signals()?;
    end_with_panics();
    gst::init().context("GStreamer does not start")?;
    gstframeshare::plugin_register_static().context("the plugin frameshare does not start")?;
    let context = Context { config, cameras, reporter: Reporter::of_environment(), stop };
    match role {
        Role::Capture => capture::run(&context),
        Role::Decode => decode::run(&context),
        Role::Wall => wall::run(&context),
        Role::Record => record::run(&context),
        Role::Motion => motion::run(&context),
        Role::Model => model::run(&context),
    }
}

/// Returns an interrupt that SIGINT and SIGTERM set. The second signal ends the process.
fn stop_of_signals() -> Result<frameshare::Interrupt> {
    let stop = frameshare::Interrupt::new()?;
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    let interrupt = stop.clone();
    thread::spawn(move || {
        for signal in signals.forever() {
            if interrupt.is_set() {
                std::process::exit(128 + signal);
            }
            interrupt.set();
        }
    });
    Ok(stop)
}

/// Ends the process when a thread panics: the supervisor starts it again, and no camera of its
/// group is without its thread.
fn end_with_panics() {
    let default = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        default(panic);
        std::process::exit(101);
    }));
}
