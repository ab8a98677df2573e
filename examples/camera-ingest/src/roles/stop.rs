// SPDX-License-Identifier: MIT OR Apache-2.0

//! Waits that the end of the role interrupts.

use frameshare::Interrupt;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
};
use std::time::{Duration, Instant};

/// Waits for the end of the role, no longer than this; returns whether it has come.
pub fn wait(stop: &Interrupt, limit: Option<Duration>) -> bool {
    let deadline = limit.map(|limit| Instant::now() + limit);
    while !stop.is_set() {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        if left.is_some_and(|left| left.is_zero()) {
            return false;
        }
        let left =
            left.map(|left| Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() });
        match poll(&mut [PollFd::new(stop, PollFlags::IN)], left.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            // poll(2) fails for lack of memory only.
            Err(_) => std::thread::sleep(Duration::from_millis(100)),
        }
    }
    true
}
