// SPDX-License-Identifier: MIT OR Apache-2.0

//! Sleep between frames: on a futex that the exporter shares with all readers of one user, or on
//! the wake-up socket with poll(2).
//!
//! A sleep on the futex is bounded by [`MAX_FUTEX_SLEEP`]: it reports neither the end of the
//! exporter nor a wake-up that another process of this user has diverted. After a sleep that
//! reached the bound, the next one is on the socket, which reports both and has no bound.

use crate::{
    Interrupt,
    reader::lease::Channel,
    sys::{Drained, Slept, Timeout, WakeWord, is_ready, wait},
};
use frameshare_queue::Sleeper;
use rustix::event::{PollFd, PollFlags};
use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
    time::Duration,
};

/// Maximum duration of a sleep on the futex: the end of the exporter is noticed within 0.1 s.
const MAX_FUTEX_SLEEP: Duration = Duration::from_millis(90);

/// Number of wake-ups that arrive until one that did not is forgiven: a thread that the machine
/// delays at the bound of its sleep cannot tell.
const FORGIVEN_AFTER: u32 = 10_000;

/// After so many missed wake-ups that are not forgiven the reader uses its socket only.
const MAX_MISSED: u32 = 3;

/// The reader's side of wake-ups.
#[derive(Debug)]
pub(super) struct Sleep {
    channel: Arc<Channel>,
    wake: WakeState,
    /// The futex, unless the reader uses its socket only.
    word: Option<WakeWord>,
    /// The value of the futex that the announced sleep begins with, unless it is on the socket.
    value: Option<u32>,
    /// The last sleep on the futex reached its bound, and nothing has arrived since.
    is_idle: bool,
    /// Number of wake-ups that the exporter sent to the futex, and that did not arrive.
    missed: u64,
    /// Number of wake-ups that must arrive until all missed ones are forgiven.
    suspicion: u32,
    futex_sleeps: u64,
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
    pub fn new(channel: Arc<Channel>, word: Option<WakeWord>) -> Self {
        let wake = WakeState::Drained;
        let (missed, suspicion, futex_sleeps) = (0, 0, 0);
        Self { channel, wake, word, value: None, is_idle: false, missed, suspicion, futex_sleeps }
    }

    /// Returns whether the exporter has closed its end of the wake-up socket.
    pub fn is_closed(&self) -> bool {
        self.wake == WakeState::Closed
    }

    /// Returns whether the exporter sent a descriptor over the wake-up socket.
    pub fn is_violated(&self) -> bool {
        self.wake == WakeState::Violated
    }

    /// Returns whether sleeps may be on the futex.
    pub fn uses_futex(&self) -> bool {
        self.word.is_some()
    }

    /// Number of sleeps on the futex.
    pub fn futex_sleeps(&self) -> u64 {
        self.futex_sleeps
    }

    /// Number of wake-ups of the futex that did not arrive.
    pub fn missed(&self) -> u64 {
        self.missed
    }

    /// Uses the socket only from now on.
    pub fn use_socket(&mut self) {
        self.word = None;
    }

    /// Sets the sleeping flag. The wake-up of the last sleep is drained now, after its frame has
    /// been handed on. The sleep is on the futex if it is to be, and the reader has one.
    pub fn announce(&mut self, sleeper: Sleeper) {
        if self.wake == WakeState::Signaled {
            self.drain();
        }
        let is_on_futex = sleeper == Sleeper::Futex && !self.is_idle && self.wake == WakeState::Drained;
        // Before the check that follows: a later wake-up changes the value.
        self.value = self.word.as_ref().filter(|_| is_on_futex).map(WakeWord::value);
        let sleeper = if self.value.is_some() { Sleeper::Futex } else { Sleeper::Socket };
        self.channel.consumer().announce_sleep(sleeper);
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
        // Such a socket may not report further wake-ups.
        if self.is_violated() {
            return Ok(true);
        }
        let mut timeout = timeout;
        if let Some(value) = self.value.take().filter(|_| !timeout.is_over()) {
            if !self.wait_on_futex(value, interrupt, timeout) {
                return Ok(false);
            }
            timeout = Timeout::after(Some(Duration::ZERO));
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
        self.is_idle &= !(is_ready(&fds[0]) || has_messages);
        Ok(has_messages || self.is_closed())
    }

    /// Sleeps on the futex. Returns whether the sockets are to be polled: no wake-up has come.
    fn wait_on_futex(&mut self, value: u32, interrupt: Option<&Interrupt>, timeout: Timeout) -> bool {
        let Some(word) = &self.word else { return true };
        let bound = Timeout::after(Some(MAX_FUTEX_SLEEP));
        let slept = word.sleep(value, interrupt, timeout.min(bound));
        self.futex_sleeps += u64::from(slept != Slept::Unsupported);
        match slept {
            Slept::Woken => {
                self.suspicion = self.suspicion.saturating_sub(1);
                false
            }
            Slept::TimedOut => {
                self.is_idle = bound.is_over();
                // The exporter has taken the flag, and adds to the word after that.
                if self.is_idle && !self.channel.consumer().is_asleep() {
                    self.note_miss();
                }
                true
            }
            // The sleeping flag still names the futex.
            Slept::Unsupported => {
                self.use_socket();
                false
            }
        }
    }

    /// Records that a wake-up of the futex did not arrive.
    fn note_miss(&mut self) {
        self.missed += 1;
        self.suspicion += FORGIVEN_AFTER;
        if self.suspicion > FORGIVEN_AFTER * (MAX_MISSED - 1) {
            self.use_socket();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Endpoint, exporter, exporter::Exporter, reader};

    /// Returns the sleep of a connection.
    fn with_sleep(test: impl FnOnce(&mut Sleep)) {
        let folder = tempfile::tempdir().unwrap();
        let endpoint = Endpoint::at(folder.path().join("s")).unwrap();
        let _exporter = Exporter::bind(&endpoint, exporter::Config::default(), drop).unwrap();
        let (config, interrupt) = (reader::Config::default(), Interrupt::new().unwrap());
        let mut connection = super::super::connect(&endpoint, &config, &interrupt).unwrap();
        test(connection.sleep_state());
    }

    #[test]
    fn third_missed_wake_up_ends_sleeps_on_the_futex() {
        with_sleep(|sleep| {
            assert!(sleep.uses_futex());
            sleep.note_miss();
            sleep.note_miss();
            assert!(sleep.uses_futex());
            // A few that arrive do not make up for it.
            sleep.suspicion -= 100;
            sleep.note_miss();
            assert!(!sleep.uses_futex());
        });
    }

    #[test]
    fn rare_missed_wake_ups_are_forgiven() {
        with_sleep(|sleep| {
            for _ in 0..10 {
                sleep.note_miss();
                sleep.suspicion = sleep.suspicion.saturating_sub(FORGIVEN_AFTER);
            }
            assert!(sleep.uses_futex() && sleep.missed() == 10);
        });
    }

    /// An unmapped user has no futex, and neither has a reader whose exporter offers none.
    #[test]
    fn sleep_without_futex_is_on_the_socket() {
        with_sleep(|sleep| {
            sleep.use_socket();
            sleep.announce(Sleeper::Futex);
            assert_eq!(sleep.value, None);
        });
    }
}
