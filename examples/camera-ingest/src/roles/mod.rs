// SPDX-License-Identifier: MIT OR Apache-2.0

//! Jobs of processes, each for one or several cameras.

mod attempts;
pub mod backoff;
pub mod capture;
mod changes;
mod contexts;
pub mod decode;
mod input;
pub mod model;
pub mod motion;
pub mod pipeline;
pub mod record;
mod status;
#[cfg(test)]
mod testing;

use crate::{
    config::{Camera, Config, Decode, Passwords},
    report::Reporter,
};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
};
use serde::{Deserialize, Serialize};
use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};
use tokio::sync::watch;

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
    pub fn command(self) -> String {
        format!("{self:?}").to_lowercase()
    }

    /// Returns whether the role reads passwords of cameras: only the one that connects to them.
    pub fn passwords(self) -> Passwords {
        if self == Self::Capture { Passwords::Read } else { Passwords::Skip }
    }

    /// Returns whether the role has work for a camera.
    pub fn takes(self, camera: &Camera) -> bool {
        match self {
            Self::Capture | Self::Wall => true,
            Self::Decode => camera.decode != Decode::Never && !camera.main.is_raw(),
            Self::Record => camera.record,
            Self::Motion => camera.motion,
            Self::Model => camera.model,
        }
    }

    /// Returns whether the role goes on with a camera whose configuration changes: all keys that
    /// the role uses are equal, except zones, which apply at once.
    pub fn goes_on(self, old: &Camera, new: &Camera) -> bool {
        let uses = |camera: &Camera| {
            let Camera { main, sub, decode, record, motion, model, policies, .. } = camera;
            match self {
                Self::Capture | Self::Model => String::new(),
                Self::Decode => format!("{decode:?}"),
                Self::Record => format!("{:?} {motion} {model}", policies.record),
                Self::Motion => format!("{:?}", policies.motion),
                Self::Wall => {
                    let sub = sub.as_ref().map(ToString::to_string);
                    format!("{main} {sub:?} {decode:?} {record} {motion} {model}")
                }
            }
        };
        let is_same_source = || (&old.main, &old.sub) == (&new.main, &new.sub);
        old.name == new.name && uses(old) == uses(new) && (self != Self::Capture || is_same_source())
    }
}

/// A configuration, and its cameras that this process serves.
pub type Loaded = Arc<(Config, Vec<Camera>)>;
/// The newest one, and its changes.
pub type Newest = watch::Receiver<Loaded>;

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
