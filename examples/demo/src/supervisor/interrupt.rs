// SPDX-License-Identifier: MIT OR Apache-2.0

//! Interrupt handling (Ctrl-C).

use super::process::Event;
use anyhow::Result;
use signal_hook::{
    consts::{SIGINT, SIGTERM},
    iterator::Signals,
};
use std::{sync::mpsc::Sender, thread};

/// Turns SIGINT and SIGTERM into events.
pub fn watch(events: Sender<Event>) -> Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    thread::spawn(move || {
        for _ in signals.forever() {
            let _ = events.send(Event::Interrupted);
        }
    });
    Ok(())
}
