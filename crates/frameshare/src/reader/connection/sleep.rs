// SPDX-License-Identifier: MIT OR Apache-2.0

//! Sleep between frames: the sleeping flag, the wake-up socket, and poll(2).

use crate::{
    Interrupt,
    reader::lease::Channel,
    sys::{Drained, Timeout, is_ready, wait},
};
use rustix::event::{PollFd, PollFlags};
use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
};

/// The reader's side of wake-ups.
#[derive(Debug)]
pub(super) struct Sleep {
    channel: Arc<Channel>,
    wake: WakeState,
}

/// State of the wake-up socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WakeState {
    /// Wake-ups can arrive.
    Drained,
    /// A wake-up has arrived and is not drained yet.
    Signaled,
    /// The exporter has closed its end.
    Closed,
    /// The exporter sent a descriptor, which breaks the protocol.
    Violated,
}

impl Sleep {
    pub fn new(channel: Arc<Channel>) -> Self {
        Self { channel, wake: WakeState::Drained }
    }

    /// Returns whether the exporter has closed its end of the wake-up socket.
    pub fn is_closed(&self) -> bool {
        self.wake == WakeState::Closed
    }

    /// Returns whether the exporter sent a descriptor over the wake-up socket.
    pub fn is_violated(&self) -> bool {
        self.wake == WakeState::Violated
    }

    /// Sets the sleeping flag. The wake-up of the last sleep is drained now, after its frame has
    /// been handed on.
    pub fn announce(&mut self) {
        if self.wake == WakeState::Signaled {
            self.drain();
        }
        self.channel.consumer().announce_sleep();
    }

    /// Clears the sleeping flag.
    pub fn end(&self) {
        self.channel.consumer().end_sleep();
    }

    /// Drains the wake-up socket.
    pub fn drain(&mut self) {
        if matches!(self.wake, WakeState::Drained | WakeState::Signaled) {
            self.wake = match self.channel.wake().drain() {
                Drained::Open => WakeState::Drained,
                Drained::Closed => WakeState::Closed,
                Drained::Descriptor => WakeState::Violated,
            };
        }
    }

    /// Sleeps until a wake-up, a message, the end of the exporter's process (`gone`), or the
    /// timeout. Returns whether messages may have arrived.
    ///
    /// # Errors
    /// The error of poll(2).
    pub fn wait(
        &mut self,
        interrupt: Option<&Interrupt>,
        gone: Option<&OwnedFd>,
        timeout: Timeout,
    ) -> io::Result<bool> {
        // Such a socket may not report further wake-ups.
        if self.is_violated() {
            return Ok(true);
        }
        let poll = |fd| PollFd::from_borrowed_fd(fd, PollFlags::IN);
        let (wake, control) = (self.channel.wake().as_fd(), self.channel.socket().as_fd());
        let gone = gone.map_or(control, |gone| gone.as_fd());
        let interrupt = interrupt.map_or(control, |interrupt| interrupt.as_fd());
        let mut fds = [poll(wake), poll(control), poll(gone), poll(interrupt)];
        wait(&mut fds, timeout)?;
        let has_messages = is_ready(&fds[1]) || is_ready(&fds[2]);
        if is_ready(&fds[0]) && self.wake == WakeState::Drained {
            self.wake = WakeState::Signaled;
        }
        Ok(has_messages || self.is_closed())
    }
}
