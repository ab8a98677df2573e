// SPDX-License-Identifier: MIT OR Apache-2.0

//! The sockets that connect the exporter with one reader.

use super::{Liveness, WakesDue};
use crate::sys::{Sleepers, Socket, Wake, WakeGroup};
use frameshare_queue::Sleeper;
use std::{mem, os::fd::OwnedFd, sync::Arc, time::Instant};

/// Owns the sockets of one reader, what it sleeps on, and what shows the end of its process. The
/// [`Link`](super::Link) decides what is sent, and when the reader is woken.
#[derive(Debug)]
pub struct Sockets {
    socket: Arc<Socket>,
    wake: Arc<Wake>,
    /// The futex of the readers of this user, if this reader may sleep on it.
    group: Option<Arc<WakeGroup>>,
    /// The reader is to be woken when the state is unlocked.
    is_to_wake: bool,
    wakes_due: WakesDue,
    /// A pidfd: readable when the process has ended.
    gone: Option<Arc<OwnedFd>>,
    /// Set if `gone` is not.
    liveness: Option<Liveness>,
}

impl Sockets {
    /// Those of a connection to a reader that sleeps on `wake`, or on the futex of `group`.
    /// A pidfd, or else its record lock, shows the end of its process.
    pub fn new(
        socket: Arc<Socket>,
        wake: Wake,
        group: Option<Arc<WakeGroup>>,
        wakes_due: WakesDue,
        gone: Option<OwnedFd>,
        liveness: Option<Liveness>,
    ) -> Self {
        let (wake, gone) = (Arc::new(wake), gone.map(Arc::new));
        Self { socket, wake, group, is_to_wake: false, wakes_due, gone, liveness }
    }

    pub fn socket(&self) -> &Arc<Socket> {
        &self.socket
    }

    /// The wake-up socket.
    pub fn wake(&self) -> &Arc<Wake> {
        &self.wake
    }

    /// A pidfd, readable when the process has ended, if the kernel offers one.
    pub fn pidfd(&self) -> Option<&Arc<OwnedFd>> {
        self.gone.as_ref()
    }

    /// Has the reader woken when the state is unlocked.
    pub fn wake_up(&mut self) {
        self.is_to_wake = true;
        self.wakes_due.set();
    }

    /// Returns whether the reader is to be woken now. [`Sockets::add_to`] follows.
    pub fn takes_wake(&mut self) -> bool {
        mem::take(&mut self.is_to_wake)
    }

    /// Adds the reader, which sleeps on this, to those that are woken. One that does not sleep may
    /// be polling its wake-up socket.
    pub fn add_to(&self, sleepers: &mut Sleepers, sleeper: Option<Sleeper>) {
        match &self.group {
            Some(group) if sleeper == Some(Sleeper::Futex) => sleepers.add_group(group),
            _ => sleepers.add(&self.wake),
        }
    }

    /// Time of the next poll of the process, if no descriptor reports its end.
    pub fn check_at(&self) -> Option<Instant> {
        self.liveness.as_ref().map(Liveness::next)
    }

    /// Returns whether the process has ended although the connection is open, by its record lock.
    pub fn has_died(&mut self) -> bool {
        self.liveness.as_mut().is_some_and(Liveness::is_over)
    }
}
