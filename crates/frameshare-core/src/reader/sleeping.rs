// SPDX-License-Identifier: MIT OR Apache-2.0

//! Sleep between frames: on a futex that the exporter shares with all readers of one user, or on
//! the wake-up socket with poll(2).
//!
//! A sleep on the futex is bounded by [`MAX_FUTEX_SLEEP`]: it reports neither the end of the
//! exporter nor a wake-up that another process of this user has diverted. After a sleep that
//! reached the bound, the next one is on the socket, which reports both and has no bound.

use crate::Drained;
use frameshare_queue::Sleeper;
use std::time::Duration;

/// Maximum duration of a sleep on the futex: the end of the exporter is noticed within 0.1 s.
pub const MAX_FUTEX_SLEEP: Duration = Duration::from_millis(90);

/// Number of wake-ups that arrive until one that did not is forgiven: a thread that the machine
/// delays at the bound of its sleep cannot tell.
const FORGIVEN_AFTER: u32 = 10_000;

/// After so many missed wake-ups that are not forgiven the reader uses its socket only.
const MAX_MISSED: u32 = 3;

/// The end of a sleep on the futex.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FutexSlept {
    /// By a wake-up, a change of the word, an interrupt, or for no reason.
    Woken,
    /// By the caller's timeout.
    TimedOut,
    /// By the bound of the sleep.
    AtBound {
        /// Whether the sleeping flag is still set: the exporter has sent no wake-up.
        is_flag_set: bool,
    },
    /// The system has no sleep on several futexes, or forbids it to this process.
    Unsupported,
}

/// The next step of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SleepStep<'a, W> {
    /// To sleep on the futex for at most [`MAX_FUTEX_SLEEP`], if its word still has this value, and
    /// to call [`Sleeping::slept`].
    Futex(&'a W, u32),
    /// To poll the sockets and the exporter's process, and to call [`Sleeping::polled`].
    Poll {
        /// Whether the poll may sleep until the caller's timeout.
        may_sleep: bool,
    },
    /// The wait is over.
    Done {
        /// Whether messages may have arrived.
        has_messages: bool,
    },
}

/// Owns the decisions about the sleeps of one connection: on which object the next one is, the
/// state of the wake-up socket, and the missed wake-ups of the futex. It neither sleeps nor sets
/// the sleeping flag. `W` is the word of the futex.
///
/// The order: [`Sleeping::drained`] if [`Sleeping::is_signaled`], then [`Sleeping::announce`],
/// which loads the word's value, then the caller sets the sleeping flag and checks once more. If
/// that finds nothing, [`Sleeping::wait`] begins the wait; [`Sleeping::slept`] and
/// [`Sleeping::polled`] go on with it, until [`SleepStep::Done`].
#[derive(Debug)]
pub struct Sleeping<W> {
    wake: WakeState,
    /// The futex, unless the reader uses its socket only.
    word: Option<W>,
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

impl<W> Sleeping<W> {
    /// A reader that has not slept yet, with its word if the exporter offers one.
    pub fn new(word: Option<W>) -> Self {
        let wake = WakeState::Drained;
        let (missed, suspicion, futex_sleeps) = (0, 0, 0);
        Self { wake, word, value: None, is_idle: false, missed, suspicion, futex_sleeps }
    }

    /// Returns whether the exporter has closed its end of the wake-up socket.
    pub fn is_closed(&self) -> bool {
        self.wake == WakeState::Closed
    }

    /// Returns whether the exporter sent a descriptor over the wake-up socket. Such a socket may
    /// not report further wake-ups.
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

    /// Returns whether a wake-up is to be drained before the next sleep is announced.
    pub fn is_signaled(&self) -> bool {
        self.wake == WakeState::Signaled
    }

    /// Returns whether the wake-up socket can be drained.
    pub fn can_drain(&self) -> bool {
        matches!(self.wake, WakeState::Drained | WakeState::Signaled)
    }

    /// Notes that the wake-up socket was drained.
    pub fn drained(&mut self, found: Drained) {
        self.wake = match found {
            Drained::Open => WakeState::Drained,
            Drained::Closed => WakeState::Closed,
            Drained::Descriptor => WakeState::Violated,
        };
    }

    /// Returns the object of the next sleep: the futex if the caller prefers it, and the reader has
    /// one and was not idle. `load` then loads the value of its word. The caller sets the sleeping
    /// flag, and checks once more, after this call: a later wake-up changes the value.
    pub fn announce(&mut self, preferred: Sleeper, load: impl FnOnce(&W) -> u32) -> Sleeper {
        let is_on_futex = preferred == Sleeper::Futex && !self.is_idle && self.wake == WakeState::Drained;
        self.value = self.word.as_ref().filter(|_| is_on_futex).map(load);
        if self.value.is_some() { Sleeper::Futex } else { Sleeper::Socket }
    }

    /// Begins the announced wait. Without time left it does not sleep, and polls only.
    pub fn wait(&mut self, has_time_left: bool) -> SleepStep<'_, W> {
        if self.is_violated() {
            return SleepStep::Done { has_messages: true };
        }
        match (&self.word, self.value.take()) {
            (Some(word), Some(value)) if has_time_left => SleepStep::Futex(word, value),
            _ => SleepStep::Poll { may_sleep: true },
        }
    }

    /// Goes on after a sleep on the futex. The sockets are polled if no wake-up has come.
    pub fn slept(&mut self, slept: FutexSlept) -> SleepStep<'_, W> {
        self.futex_sleeps += u64::from(slept != FutexSlept::Unsupported);
        match slept {
            FutexSlept::Woken => {
                self.suspicion = self.suspicion.saturating_sub(1);
                SleepStep::Done { has_messages: false }
            }
            FutexSlept::TimedOut => SleepStep::Poll { may_sleep: false },
            FutexSlept::AtBound { is_flag_set } => {
                self.is_idle = true;
                // The exporter has taken the flag, and adds to the word after that.
                if !is_flag_set {
                    self.note_miss();
                }
                SleepStep::Poll { may_sleep: false }
            }
            // The sleeping flag still names the futex.
            FutexSlept::Unsupported => {
                self.use_socket();
                SleepStep::Done { has_messages: false }
            }
        }
    }

    /// Goes on after a poll: it found a wake-up, or messages or the end of the exporter's process.
    pub fn polled(&mut self, has_wake_up: bool, has_messages: bool) -> SleepStep<'_, W> {
        if has_wake_up && self.wake == WakeState::Drained {
            self.wake = WakeState::Signaled;
        }
        self.is_idle &= !(has_wake_up || has_messages);
        SleepStep::Done { has_messages: has_messages || self.is_closed() }
    }

    /// Returns whether the exporter has sent packets that are not received yet, by its number of
    /// `sent` packets, if this reader learns of messages by their number.
    pub fn has_unreceived(&self, sent: impl FnOnce() -> u64, received: u64) -> bool {
        // A packet can be received before the exporter has counted it.
        self.uses_futex() && sent() > received
    }

    /// Notes a reception of packets that the exporter says it has sent. If there were none, its
    /// number is wrong, and would end every sleep: the socket is used only from now on.
    pub fn received_announced(&mut self, has_packets: bool) {
        if !has_packets {
            self.use_socket();
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

    /// Uses the socket only from now on.
    fn use_socket(&mut self) {
        self.word = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT_BOUND: FutexSlept = FutexSlept::AtBound { is_flag_set: true };
    const MISSED: FutexSlept = FutexSlept::AtBound { is_flag_set: false };
    const POLL_NOW: SleepStep<'static, u32> = SleepStep::Poll { may_sleep: false };
    const NOTHING: SleepStep<'static, u32> = SleepStep::Done { has_messages: false };

    /// A reader with a futex. Its word is a value.
    fn sleeping() -> Sleeping<u32> {
        Sleeping::new(Some(7))
    }

    /// Announces a sleep that may be on the futex, and begins it.
    fn sleep(sleeping: &mut Sleeping<u32>) -> (Sleeper, SleepStep<'_, u32>) {
        (sleeping.announce(Sleeper::Futex, |word| *word), sleeping.wait(true))
    }

    #[test]
    fn sleep_after_one_that_reached_its_bound_is_on_the_socket() {
        let mut sleeping = sleeping();
        let on_futex = (Sleeper::Futex, SleepStep::Futex(&7, 7));
        let on_socket = (Sleeper::Socket, SleepStep::Poll { may_sleep: true });
        assert_eq!(sleep(&mut sleeping), on_futex);
        // The sockets are polled without a further sleep.
        assert_eq!(sleeping.slept(AT_BOUND), POLL_NOW);
        assert_eq!(sleeping.polled(false, false), NOTHING);
        // It stays so until something arrives.
        for (has_wake_up, has_messages) in [(false, false), (false, true)] {
            assert_eq!(sleep(&mut sleeping), on_socket);
            assert_eq!(sleeping.polled(has_wake_up, has_messages), SleepStep::Done { has_messages });
        }
        assert_eq!(sleep(&mut sleeping), on_futex);
        // A sleep that the caller's timeout ended is followed by one on the futex.
        assert_eq!(sleeping.slept(FutexSlept::TimedOut), POLL_NOW);
        assert_eq!(sleeping.polled(false, false), NOTHING);
        assert_eq!(sleep(&mut sleeping), on_futex);
        assert_eq!((sleeping.futex_sleeps(), sleeping.missed()), (2, 0));
    }

    #[test]
    fn wake_up_is_drained_before_the_next_sleep_on_the_futex() {
        let mut sleeping = sleeping();
        sleeping.announce(Sleeper::Socket, |word| *word);
        assert!(!sleeping.is_signaled());
        assert_eq!(sleeping.polled(true, false), NOTHING);
        assert!(sleeping.is_signaled() && sleeping.can_drain());
        assert_eq!(sleep(&mut sleeping).0, Sleeper::Socket);
        sleeping.drained(Drained::Open);
        assert!(!sleeping.is_signaled());
        assert_eq!(sleep(&mut sleeping).0, Sleeper::Futex);
    }

    #[test]
    fn end_of_the_wake_up_socket_is_a_reason_to_receive() {
        let mut closed = sleeping();
        closed.drained(Drained::Closed);
        assert!(closed.is_closed() && !closed.can_drain());
        assert_eq!(sleep(&mut closed), (Sleeper::Socket, SleepStep::Poll { may_sleep: true }));
        assert_eq!(closed.polled(true, false), SleepStep::Done { has_messages: true });
        // A poll of the other one may not return.
        let mut violated = sleeping();
        violated.drained(Drained::Descriptor);
        assert!(violated.is_violated() && !violated.can_drain());
        assert_eq!(sleep(&mut violated), (Sleeper::Socket, SleepStep::Done { has_messages: true }));
    }

    #[test]
    fn announced_value_is_of_one_wait() {
        let mut sleeping = sleeping();
        sleeping.announce(Sleeper::Futex, |word| *word);
        // Without time left the sockets are polled.
        assert_eq!(sleeping.wait(false), SleepStep::Poll { may_sleep: true });
        assert_eq!(sleeping.wait(true), SleepStep::Poll { may_sleep: true });
    }

    #[test]
    fn third_missed_wake_up_ends_sleeps_on_the_futex() {
        let mut sleeping = sleeping();
        assert!(sleeping.uses_futex());
        sleeping.slept(MISSED);
        sleeping.slept(MISSED);
        assert!(sleeping.uses_futex());
        // A few that arrive do not make up for it.
        for _ in 0..100 {
            sleeping.slept(FutexSlept::Woken);
        }
        sleeping.slept(MISSED);
        assert!(!sleeping.uses_futex());
    }

    #[test]
    fn rare_missed_wake_ups_are_forgiven() {
        let mut sleeping = sleeping();
        for _ in 0..10 {
            sleeping.slept(MISSED);
            for _ in 0..FORGIVEN_AFTER {
                sleeping.slept(FutexSlept::Woken);
            }
        }
        assert!(sleeping.uses_futex() && sleeping.missed() == 10);
    }

    /// An unmapped user has no futex, and neither has a reader whose exporter offers none.
    #[test]
    fn sleep_without_futex_is_on_the_socket() {
        let mut without = Sleeping::new(None);
        assert_eq!(sleep(&mut without), (Sleeper::Socket, SleepStep::Poll { may_sleep: true }));
        // The system turns out to have none.
        let mut unsupported = sleeping();
        assert_eq!(sleep(&mut unsupported).0, Sleeper::Futex);
        assert_eq!(unsupported.slept(FutexSlept::Unsupported), NOTHING);
        assert_eq!(sleep(&mut unsupported).0, Sleeper::Socket);
        assert_eq!(unsupported.futex_sleeps(), 0);
    }

    #[test]
    fn wrong_number_of_packets_ends_sleeps_on_the_futex() {
        let mut sleeping = sleeping();
        assert!(!sleeping.has_unreceived(|| 3, 3) && !sleeping.has_unreceived(|| 3, 4));
        assert!(sleeping.has_unreceived(|| 4, 3));
        sleeping.received_announced(true);
        assert!(sleeping.has_unreceived(|| 4, 3));
        sleeping.received_announced(false);
        assert!(!sleeping.uses_futex());
        // A reader on its socket does not read the number.
        assert!(!sleeping.has_unreceived(|| panic!("it was read"), 3));
    }
}
