// SPDX-License-Identifier: MIT OR Apache-2.0

//! SIGINT and SIGTERM.

use crate::error::Error;
use frameshare::Interrupt;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use signal_hook::{
    consts::{SIGINT, SIGTERM},
    iterator::Signals,
    low_level::emulate_default_handler,
};
use std::{thread, time::Duration};

/// Waits for an interrupt, and returns whether it came in time.
pub fn wait(interrupt: &Interrupt, limit: Duration) -> bool {
    let limit = Timespec::try_from(limit).ok();
    // A signal without handler or a failure ends the wait early.
    let _ = poll(&mut [PollFd::new(interrupt, PollFlags::IN)], limit.as_ref());
    interrupt.is_set()
}

/// Returns an interrupt that the first signal sets. A second signal ends the process.
pub fn interrupt() -> Result<Interrupt, Error> {
    let interrupt = Interrupt::new().map_err(Error::Signals)?;
    let mut signals = Signals::new([SIGINT, SIGTERM]).map_err(Error::Signals)?;
    let on_signal = interrupt.clone();
    thread::spawn(move || {
        for signal in signals.forever() {
            if on_signal.is_set() {
                let _ = emulate_default_handler(signal);
            }
            on_signal.set();
        }
    });
    Ok(interrupt)
}
