// SPDX-License-Identifier: MIT OR Apache-2.0

//! The socket and the name of a stream, while it is open.

use crate::{
    endpoint::Endpoint,
    service::before_blocking,
    sys::{FileState, Listener, Timeout, monotonic_ns},
};
use frameshare_core::exporter::notice::Notice;
use std::{
    mem,
    time::{Duration, Instant},
};

/// Interval of checks of the socket's file.
const CHECK: Duration = Duration::from_secs(2);
/// Pause after a connection could not be accepted.
const PAUSE: Duration = Duration::from_millis(10);

/// The resources that make the stream reachable. Dropping them may wait for the file system.
#[derive(Debug)]
pub struct Open {
    pub listener: Listener,
    endpoint: Endpoint,
    check: Instant,
    is_lost: bool,
    /// No connection is accepted before this time.
    pause: Option<Instant>,
}

impl Open {
    pub fn new(listener: Listener, endpoint: Endpoint) -> Self {
        Self { listener, endpoint, check: next_check(), is_lost: false, pause: None }
    }

    /// Accepts no connection for a moment: descriptors or memory are used up.
    pub fn pause(&mut self) {
        self.pause = Some(Instant::now() + PAUSE);
    }

    /// Returns whether to accept connections, and the time of the next change.
    pub fn accepts(&mut self) -> (bool, Timeout) {
        self.pause = self.pause.filter(|pause| Instant::now() < *pause);
        (self.pause.is_none(), self.pause.map_or(Timeout::At(self.check), Timeout::At))
    }

    /// Checks periodically that readers find the socket, and returns a notice for the owner.
    pub fn check(&mut self) -> Option<Notice> {
        if Instant::now() < self.check {
            return None;
        }
        self.check = next_check();
        if self.listener.check_may_block() {
            before_blocking();
        }
        let mut state = self.listener.check();
        if matches!(state, FileState::Lost(_)) {
            before_blocking();
            if self.endpoint.prepare_folder().is_ok() {
                state = self.listener.check();
            }
        }
        let was_lost = mem::replace(&mut self.is_lost, matches!(state, FileState::Lost(_)));
        match state {
            FileState::Lost(why) => (!was_lost).then_some(Notice::SocketLost { why }),
            FileState::Rebound => Some(Notice::SocketBound),
            FileState::Bound => None,
        }
    }
}

/// Time of the next check, one for all streams of this process: their thread wakes up once.
fn next_check() -> Instant {
    let since_last = Duration::from_nanos(monotonic_ns() % CHECK.as_nanos() as u64);
    Instant::now() + (CHECK - since_last)
}
