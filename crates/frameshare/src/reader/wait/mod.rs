// SPDX-License-Identifier: MIT OR Apache-2.0

//! Waits of a reader for its next item: asleep, spinning, or asleep until shortly before the next
//! frame is expected.
//!
//! A spin polls the words of the queue, and the number of messages that the exporter has sent. It
//! sets no sleeping flag, so the exporter sends no wake-up.

mod arrivals;
#[cfg(test)]
mod tests;
mod windows;

use super::{config::Config, connection::Connection, error::ReadError, gpu_wait::Recheck, item::Item};
use crate::{
    Interrupt,
    sys::{
        FineTimer, Timeout,
        backoff::{Backoff, Spin},
        monotonic_ns,
    },
};
use frameshare_queue::Sleeper;
use std::time::{Duration, Instant};
use windows::{Window, Windows};

/// Interval at which a spinning reader checks for messages that are not counted, and for the end of
/// the exporter.
const RECEIVE_INTERVAL: Duration = Duration::from_millis(1);

/// A wait shorter than this is not worth a sleep.
const SHORT_WAIT: Duration = Duration::from_micros(100);

/// Maximum delay until a sleeping reader notices a late frame.
const LATE_CHECK: Duration = Duration::from_millis(250);

/// The waits of one reader, through all its connections.
#[derive(Debug)]
pub(super) struct Waits {
    /// Time without a frame before the last sleep ended.
    last_wait: Duration,
    windows: Windows,
    /// Time spent in windows.
    windowed: Duration,
    spun: Spun,
}

/// The cost of a reader's spins, and their result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Spun {
    /// Time spent spinning for items.
    pub time: Duration,
    /// Frames that arrived during a spin. For these the exporter sent no wake-up.
    pub frames: u64,
}

/// The conditions that end one wait without an item.
#[derive(Clone, Copy)]
struct Limits<'a> {
    timeout: Timeout,
    interrupt: &'a Interrupt,
}

type Next = Result<Option<Item>, ReadError>;

impl Waits {
    pub fn new() -> Self {
        Self {
            last_wait: Duration::MAX,
            windows: Windows::default(),
            windowed: Duration::ZERO,
            spun: Spun::default(),
        }
    }

    pub fn spun(&self) -> Spun {
        self.spun
    }

    /// Returns the next item in order; `None` if none came within the timeout.
    ///
    /// # Errors
    /// [`ReadError`], after all items from before the error.
    pub fn next(
        &mut self,
        connection: &mut Connection,
        config: &Config,
        timeout: Timeout,
        interrupt: &Interrupt,
    ) -> Next {
        let item = match connection.next()? {
            Some(item) => Some(item),
            None => self.wait(connection, config, Limits { timeout, interrupt })?,
        };
        if let (Some(Item::Frame(frame)), 1..100) = (&item, config.spin)
            && !frame.is_kept()
        {
            self.windows.add_frame(frame.descriptor().published, monotonic_ns());
        }
        Ok(item)
    }

    fn wait(&mut self, connection: &mut Connection, config: &Config, limits: Limits<'_>) -> Next {
        let began = monotonic_ns();
        let found = self.spin_first(connection, config, limits);
        if !matches!(found, Ok(None)) {
            return found;
        }
        let item = self.sleep(connection, config, limits);
        connection.end_sleep();
        // The time without a frame, not the time of the sleep: the wake-up itself takes long.
        if let Ok(Some(Item::Frame(frame))) = &item {
            self.last_wait = Duration::from_nanos(frame.descriptor().published.saturating_sub(began));
        }
        item
    }

    /// Spins at the begin of a wait: until there is an item if the configuration says so.
    fn spin_first(&mut self, connection: &mut Connection, config: &Config, limits: Limits<'_>) -> Next {
        let is_short = self.last_wait < SHORT_WAIT;
        let always = config.spin >= 100;
        if !is_short && !always {
            return Ok(None);
        }
        // While frames follow each other faster than a sleep takes, a short spin saves both sides
        // work.
        let mut spin = Spin::default();
        self.spin(connection, limits, || always || spin.again())
    }

    /// Polls for an item while `again` returns true.
    fn spin(
        &mut self,
        connection: &mut Connection,
        limits: Limits<'_>,
        mut again: impl FnMut() -> bool,
    ) -> Next {
        let start = Instant::now();
        let mut received = start;
        let item = loop {
            if limits.timeout.is_over() || !again() {
                break Ok(None);
            }
            if limits.interrupt.is_set() {
                break Err(ReadError::Interrupted);
            }
            // Other items than frames, such as the end, change none of the words that are polled.
            let arrived = match received.elapsed() > RECEIVE_INTERVAL {
                true => {
                    received = Instant::now();
                    connection.receive()
                }
                false => connection.receive_counted(),
            };
            let item = arrived.and_then(|()| connection.next());
            if !matches!(item, Ok(None)) {
                break item;
            }
        };
        self.spun.time += start.elapsed();
        self.spun.frames += u64::from(matches!(item, Ok(Some(Item::Frame(_)))));
        item
    }

    /// Sleeps until there is an item, and spins once when one is expected.
    fn sleep(&mut self, connection: &mut Connection, config: &Config, limits: Limits<'_>) -> Next {
        let mut window = None;
        if config.spin > 0 && Spin::is_allowed() {
            window = self.windows.next(config.spin, self.windowed, monotonic_ns());
        }
        // Set when a frame with a pending fence arrives, however long the frame took to arrive.
        let mut fence: Option<Backoff> = None;
        loop {
            if limits.interrupt.is_set() {
                return Err(ReadError::Interrupted);
            }
            // A frame whose fence is pending has arrived already.
            window = window.filter(|_| fence.is_none() && Spin::is_allowed());
            if let Some(due) = window.take_if(|window| window.begin <= monotonic_ns()) {
                let item = self.spin_within(due, connection, limits);
                if !matches!(item, Ok(None)) {
                    return item;
                }
            }
            // Set the sleeping flag, then check once more: a publication in between sends no
            // wake-up. The short sleeps of a poller are cheaper on the socket, which also shows
            // messages.
            connection.announce_sleep(if fence.is_none() { Sleeper::Futex } else { Sleeper::Socket });
            let item = connection.next();
            if !matches!(item, Ok(None)) {
                return item;
            }
            // No notification follows the end of GPU work.
            let recheck = match connection.recheck() {
                Recheck::ReadyFence => fence.get_or_insert_with(Backoff::of_a_waiter).next(),
                Recheck::Deadline | Recheck::Nothing => {
                    fence = None;
                    Timeout::after(ask_again(connection, config))
                }
            };
            let timeout = limits.timeout.min(recheck);
            // Called even without time left: messages and the exporter's death are seen only here.
            let slept = match window.filter(|_| fence.is_none()) {
                Some(window) => self.sleep_until(window, connection, limits.interrupt, timeout),
                None => connection.sleep(limits.interrupt, timeout).and_then(|()| connection.next()),
            };
            if !matches!(slept, Ok(None)) || limits.timeout.is_over() {
                return slept;
            }
        }
    }

    /// Sleeps until the begin of the window, or until the timeout.
    fn sleep_until(
        &mut self,
        window: Window,
        connection: &mut Connection,
        interrupt: &Interrupt,
        timeout: Timeout,
    ) -> Next {
        let left = window.begin.saturating_sub(monotonic_ns());
        let planned = Timeout::after(Some(Duration::from_nanos(left)));
        let fine = FineTimer::new();
        let slept = connection.sleep(interrupt, planned.min(timeout));
        let now = monotonic_ns();
        drop(fine);
        let item = slept.and_then(|()| connection.next())?;
        let published = match &item {
            Some(Item::Frame(frame)) => Some(frame.descriptor().published),
            _ => None,
        };
        self.windows.add_sleep(window, published, now);
        Ok(item)
    }

    fn spin_within(&mut self, window: Window, connection: &mut Connection, limits: Limits<'_>) -> Next {
        connection.end_sleep();
        let mut spin = Spin::of(Duration::from_nanos(window.end.saturating_sub(monotonic_ns())));
        let before = self.spun.time;
        let item = self.spin(connection, limits, || spin.again());
        self.windowed += self.spun.time - before;
        let has_item = matches!(item, Ok(Some(_)));
        self.windows.add_spin(has_item, monotonic_ns());
        if has_item {
            spin.finish();
        }
        item
    }
}

/// See [`Reader::ask_again`](super::Reader::ask_again).
pub(super) fn ask_again(connection: &Connection, config: &Config) -> Option<Duration> {
    match connection.recheck() {
        Recheck::Nothing => None,
        Recheck::Deadline => Some((config.fence_timeout / 8).clamp(Backoff::SLOWEST, LATE_CHECK)),
        Recheck::ReadyFence => Some(Backoff::SLOWEST),
    }
}
