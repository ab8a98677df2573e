// SPDX-License-Identifier: MIT OR Apache-2.0

//! Sleep between frames: the system calls and the sleeping flag. [`Sleeping`] decides on which
//! object a sleep is, and what its end means.

use crate::{
    Interrupt,
    reader::lease::Channel,
    sys::{Slept, Timeout, WakeWord, is_ready, wait},
};
use frameshare_core::reader::{FutexSlept, MAX_FUTEX_SLEEP, SleepStep, Sleeping};
use frameshare_queue::Sleeper;
use rustix::event::{PollFd, PollFlags};
use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
    time::Duration,
};

/// The reader's side of wake-ups.
#[derive(Debug)]
pub(super) struct Sleep {
    channel: Arc<Channel>,
    sleeping: Sleeping<WakeWord>,
}

impl Sleep {
    pub fn new(channel: Arc<Channel>, word: Option<WakeWord>) -> Self {
        Self { channel, sleeping: Sleeping::new(word) }
    }

    /// The state of the reader's sleeps.
    pub fn state(&self) -> &Sleeping<WakeWord> {
        &self.sleeping
    }

    /// Sets the sleeping flag. The wake-up of the last sleep is drained now, after its frame has
    /// been handed on. The sleep is on the futex if it is to be, and the reader has one.
    pub fn announce(&mut self, preferred: Sleeper) {
        if self.sleeping.is_signaled() {
            self.drain();
        }
        // The value is loaded before the flag is set, and so before the check that follows: a later
        // wake-up changes it.
        let sleeper = self.sleeping.announce(preferred, WakeWord::value);
        self.channel.consumer().announce_sleep(sleeper);
    }

    /// Clears the sleeping flag.
    pub fn end(&self) {
        self.channel.consumer().end_sleep();
    }

    /// Drains the wake-up socket.
    pub fn drain(&mut self) {
        if self.sleeping.can_drain() {
            self.sleeping.drained(self.channel.wake().drain());
        }
    }

    /// Returns whether the exporter says that it has sent more than these received packets. A
    /// reader that uses its socket only does not ask.
    pub fn has_unreceived(&self, packets: u64) -> bool {
        self.sleeping.has_unreceived(|| self.channel.consumer().packets_sent(), packets)
    }

    /// As [`Sleeping::received_announced`].
    pub fn received_announced(&mut self, has_packets: bool) {
        self.sleeping.received_announced(has_packets);
    }

    /// Sleeps until a wake-up, a message, the end of the exporter's process (`gone`), or the
    /// timeout; on the futex also for no reason. Returns whether messages may have arrived.
    ///
    /// # Errors
    /// The error of poll(2).
    pub fn wait(
        &mut self,
        interrupt: Option<&Interrupt>,
        gone: Option<&OwnedFd>,
        timeout: Timeout,
    ) -> io::Result<bool> {
        let Self { channel, sleeping } = self;
        let mut step = sleeping.wait(!timeout.is_over());
        loop {
            step = match step {
                SleepStep::Futex(word, value) => {
                    let slept = sleep_on_futex(channel, word, value, interrupt, timeout);
                    sleeping.slept(slept)
                }
                SleepStep::Poll { may_sleep } => {
                    let timeout = if may_sleep { timeout } else { Timeout::after(Some(Duration::ZERO)) };
                    let (has_wake_up, has_messages) = poll_sockets(channel, interrupt, gone, timeout)?;
                    sleeping.polled(has_wake_up, has_messages)
                }
                SleepStep::Done { has_messages } => return Ok(has_messages),
            };
        }
    }
}

/// Sleeps on the futex, until the bound of such a sleep at most.
fn sleep_on_futex(
    channel: &Channel,
    word: &WakeWord,
    value: u32,
    interrupt: Option<&Interrupt>,
    timeout: Timeout,
) -> FutexSlept {
    let bound = Timeout::after(Some(MAX_FUTEX_SLEEP));
    match word.sleep(value, interrupt, timeout.min(bound)) {
        Slept::Woken => FutexSlept::Woken,
        Slept::TimedOut if bound.is_over() => {
            FutexSlept::AtBound { is_flag_set: channel.consumer().is_asleep() }
        }
        Slept::TimedOut => FutexSlept::TimedOut,
        Slept::Unsupported => FutexSlept::Unsupported,
    }
}

/// Polls the wake-up socket, the control socket, and the exporter's process. Returns whether a
/// wake-up has arrived, and whether messages or the end of the process have.
fn poll_sockets(
    channel: &Channel,
    interrupt: Option<&Interrupt>,
    gone: Option<&OwnedFd>,
    timeout: Timeout,
) -> io::Result<(bool, bool)> {
    let poll = |fd| PollFd::from_borrowed_fd(fd, PollFlags::IN);
    let (wake, control) = (channel.wake().as_fd(), channel.socket().as_fd());
    let gone = gone.map_or(control, |gone| gone.as_fd());
    let interrupt = interrupt.map_or(control, |interrupt| interrupt.as_fd());
    let mut fds = [poll(wake), poll(control), poll(gone), poll(interrupt)];
    wait(&mut fds, timeout)?;
    Ok((is_ready(&fds[0]), is_ready(&fds[1]) || is_ready(&fds[2])))
}
