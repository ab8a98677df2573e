// SPDX-License-Identifier: MIT OR Apache-2.0

//! Start of a role in this process: GStreamer, signals, panics.

use crate::{
    config::{Camera, Config},
    report::Reporter,
    roles::{self, Context, Role},
    wall,
};
use anyhow::{Context as _, Result};
use rustix::{fs::Mode, process::umask};
use signal_hook::{
    consts::{SIGINT, SIGTERM},
    iterator::Signals,
};
use std::thread;

/// Runs a role until it is stopped.
pub fn run_role(role: Role, config: &Config, cameras: &[Camera]) -> Result<()> {
    let stop = stop_of_signals()?;
    end_with_panics();
    gst::init().context("GStreamer does not start")?;
    gstframeshare::plugin_register_static().context("the plugin frameshare does not start")?;
    let context = Context { config, cameras, reporter: Reporter::of_environment(), stop };
    match role {
        Role::Capture => roles::capture::run(&context),
        Role::Decode => roles::decode::run(&context),
        Role::Wall => wall::run(&context),
        Role::Record => {
            // Recordings are for their user and group: 0640, in folders with 0750.
            umask(Mode::from_raw_mode(0o027));
            roles::record::run(&context)
        }
        Role::Motion => roles::motion::run(&context),
        Role::Model => roles::model::run(&context),
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
