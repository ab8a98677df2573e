// SPDX-License-Identifier: MIT OR Apache-2.0

//! Background poller: one thread per process and kind of item polls pending items until they
//! complete.

use crate::foreign::{self, report};
use std::{
    mem,
    sync::{
        Mutex, PoisonError,
        mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    },
    thread,
    time::{Duration, Instant},
};

/// The shortest and the longest pause between two polls.
pub(crate) const SHORTEST: Duration = Duration::from_millis(1);
const LONGEST: Duration = Duration::from_millis(100);

/// An item that is polled until it completes.
pub(crate) trait Polled: Send + 'static {
    /// Polls the item; true if it needs another poll. Must not wait, since the same thread polls
    /// other items.
    fn is_pending(&mut self) -> bool;

    /// Time of the last change: the longer ago, the rarer the polls.
    fn quiet_since(&self) -> Instant;

    /// Consumes a completed item.
    fn done(self)
    where
        Self: Sized,
    {
    }
}

/// A thread that polls items of one kind. It starts with the first item and lives as long as the
/// process.
pub(crate) struct Poller<T> {
    name: &'static str,
    sender: Sender<T>,
    /// Locked by the thread for as long as it lives.
    receiver: Mutex<Receiver<T>>,
    runs: Mutex<bool>,
}

impl<T: Polled> Poller<T> {
    pub fn new(name: &'static str) -> Self {
        let (sender, receiver) = channel();
        Self { name, sender, receiver: Mutex::new(receiver), runs: Mutex::new(false) }
    }

    /// Hands an item over to the thread. If the system grants no thread, the item is kept until a
    /// later call is granted one: it must not be dropped before it completes.
    pub fn add(&'static self, item: T) {
        // Both ends live as long as the process.
        let _ = self.sender.send(item);
        let mut runs = self.runs.lock().unwrap_or_else(PoisonError::into_inner);
        if !*runs {
            *runs = thread::Builder::new().name(self.name.into()).spawn(|| self.run()).is_ok();
        }
    }

    fn run(&self) {
        let receiver = self.receiver.lock().unwrap_or_else(PoisonError::into_inner);
        let mut items: Vec<T> = Vec::new();
        loop {
            let next = match items.iter().map(|item| pause(item.quiet_since().elapsed())).min() {
                Some(pause) => receiver.recv_timeout(pause),
                None => receiver.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            match next {
                Ok(item) => items.push(item),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            for index in (0..items.len()).rev() {
                match is_pending(&mut items[index]) {
                    Some(true) => {}
                    Some(false) => drop(foreign::run(|| items.swap_remove(index).done())),
                    // Its state is unknown, and it may still be in use: it is neither polled nor
                    // dropped any more.
                    None => mem::forget(items.swap_remove(index)),
                }
            }
        }
    }
}

/// Polls an item; `None` if that panicked, which must not end the thread for the others.
fn is_pending(item: &mut impl Polled) -> Option<bool> {
    let polled = foreign::run(|| item.is_pending());
    if polled.is_none() {
        report!(error, "polling for the end of GPU work panicked; what the work uses is never freed");
    }
    polled
}

/// Returns the pause between two polls of an item that has been quiet for this long.
fn pause(quiet: Duration) -> Duration {
    (quiet / 64).clamp(SHORTEST, LONGEST)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::PerProcess;

    /// Completes at the n-th poll, and reports it.
    struct Countdown(u32, Sender<u32>, Instant);

    impl Polled for Countdown {
        fn is_pending(&mut self) -> bool {
            self.0 -= 1;
            self.0 > 0
        }

        fn quiet_since(&self) -> Instant {
            self.2
        }

        fn done(self) {
            let _ = self.1.send(self.0);
        }
    }

    #[test]
    fn item_ends_when_no_longer_pending() {
        static POLLER: PerProcess<Poller<Countdown>> = PerProcess::new(|| Poller::new("poller"));
        let (reports, done) = channel();
        let begin = Instant::now();
        let (never, early) = channel();
        POLLER.add(Countdown(u32::MAX, never, begin));
        for polls in [20, 1, 5] {
            POLLER.add(Countdown(polls, reports.clone(), begin));
        }
        for _ in 0..3 {
            assert_eq!(done.recv_timeout(Duration::from_secs(60)), Ok(0));
        }
        assert!(early.try_recv().is_err(), "a pending item was dropped");
    }

    #[test]
    fn panicking_item_leaves_poller_to_others() {
        struct Panics(Sender<()>);
        impl Drop for Panics {
            fn drop(&mut self) {
                let _ = self.0.send(());
            }
        }
        enum Item {
            Panics { _dropped: Panics },
            Counts(Countdown),
        }
        impl Polled for Item {
            fn is_pending(&mut self) -> bool {
                match self {
                    Self::Panics { .. } => panic!("on purpose"),
                    Self::Counts(countdown) => countdown.is_pending(),
                }
            }
            fn quiet_since(&self) -> Instant {
                Instant::now()
            }
            fn done(self) {
                if let Self::Counts(countdown) = self {
                    countdown.done();
                }
            }
        }
        static POLLER: PerProcess<Poller<Item>> = PerProcess::new(|| Poller::new("poller"));
        let (dropped, drops) = channel();
        let (reports, done) = channel();
        let counts = || Item::Counts(Countdown(3, reports.clone(), Instant::now()));
        POLLER.add(counts());
        POLLER.add(Item::Panics { _dropped: Panics(dropped) });
        POLLER.add(counts());
        for _ in 0..2 {
            assert_eq!(done.recv_timeout(Duration::from_secs(60)), Ok(0));
        }
        POLLER.add(counts());
        assert_eq!(done.recv_timeout(Duration::from_secs(60)), Ok(0), "the thread has ended");
        assert!(drops.try_recv().is_err(), "an item that may be in use was dropped");
    }

    #[test]
    fn polling_interval_grows() {
        assert_eq!(pause(Duration::ZERO), SHORTEST);
        assert!((SHORTEST..LONGEST).contains(&pause(Duration::from_secs(1))));
        assert_eq!(pause(Duration::from_secs(3600)), LONGEST);
    }
}
