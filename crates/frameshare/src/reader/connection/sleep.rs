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
    /// A wake-up has arrived and is not drained yet.
    is_signaled: bool,
    /// State of the wake-up socket when it was last drained.
    socket: Drained,
}

impl Sleep {
    pub fn new(channel: Arc<Channel>) -> Self {
        Self { channel, is_signaled: false, socket: Drained::Open }
    }

    /// State of the wake-up socket when it was last drained.
    pub fn socket(&self) -> Drained {
        self.socket
    }

    /// Sets the sleeping flag. The wake-up of the last sleep is drained now, after its frame has
    /// been handed on.
    pub fn announce(&mut self) {
        if self.is_signaled {
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
        self.is_signaled = false;
        if self.socket == Drained::Open {
            self.socket = self.channel.wake().drain();
        }
    }

    /// Sleeps until a wake-up, a message, the end of the exporter's process (`gone`), or the
    /// timeout. Returns whether messages may have arrived.
    ///
    /// # Errors
    /// The error of poll(2).
    pub fn wait(
        &mut self,
        interrupt: &Interrupt,
        gone: Option<&OwnedFd>,
        timeout: Timeout,
    ) -> io::Result<bool> {
        // Such a socket may not report further wake-ups.
        if self.socket == Drained::Descriptor {
            return Ok(true);
        }
        let poll = |fd| PollFd::from_borrowed_fd(fd, PollFlags::IN);
        let (wake, control) = (self.channel.wake().as_fd(), self.channel.socket().as_fd());
        let gone = gone.map_or(control, |gone| gone.as_fd());
        let mut fds = [poll(interrupt.as_fd()), poll(wake), poll(control), poll(gone)];
        wait(&mut fds, timeout)?;
        let has_messages = is_ready(&fds[2]) || is_ready(&fds[3]);
        self.is_signaled |= is_ready(&fds[1]);
        Ok(has_messages || self.socket == Drained::Closed)
    }
}
