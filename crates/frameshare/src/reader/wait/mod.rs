// SPDX-License-Identifier: MIT OR Apache-2.0

//! Waits of a reader for its next item: asleep, spinning, or asleep until shortly before the frame
//! that is expected next.
//!
//! A spin polls the words of the queue, and the number of messages that the exporter has sent. It
//! sets no sleeping flag, so the exporter sends no wake-up.

mod arrivals;
mod prediction;
#[cfg(test)]
mod tests;

use super::{
    config::{Config, Wake},
    connection::Connection,
    error::ReadError,
    gpu_wait::Recheck,
    item::Item,
};
use crate::{
    Interrupt,
    queue::Sleeper,
    sys::{
        FineTimer, Timeout,
        backoff::{Backoff, Spin},
        monotonic_ns,
    },
};
use prediction::{Plan, Prediction, Window};
use std::time::{Duration, Instant};

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
    prediction: Prediction,
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
        Self { last_wait: Duration::MAX, prediction: Prediction::default(), spun: Spun::default() }
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
        if let (Some(Item::Frame(frame)), Wake::Predict) = (&item, config.wake)
            && !frame.is_kept()
        {
            self.prediction.add_frame(frame.descriptor().published, monotonic_ns());
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

    /// Spins at the begin of a wait, if the configuration says so.
    fn spin_first(&mut self, connection: &mut Connection, config: &Config, limits: Limits<'_>) -> Next {
        let is_short = self.last_wait < SHORT_WAIT;
        let busy_poll = if config.wake == Wake::Spin { Duration::MAX } else { config.busy_poll };
        if !is_short && busy_poll.is_zero() {
            return Ok(None);
        }
        let start = Instant::now();
        // While frames follow each other faster than a sleep takes, a short spin saves both sides
        // work.
        let mut spin = Spin::default();
        self.spin(connection, limits, || start.elapsed() < busy_poll || (is_short && spin.again()))
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

    /// Sleeps until there is an item, and spins when one is expected.
    fn sleep(&mut self, connection: &mut Connection, config: &Config, limits: Limits<'_>) -> Next {
        let mut plan = if config.wake == Wake::Predict { self.prediction.plan(monotonic_ns()) } else { None };
        // Set when a frame with a pending fence arrives, however long the frame took to arrive.
        let mut fence: Option<Backoff> = None;
        loop {
            if limits.interrupt.is_set() {
                return Err(ReadError::Interrupted);
            }
            let window = plan.filter(|_| fence.is_none()).and_then(|plan| plan.next(monotonic_ns()));
            if let Some(window) = window
                && window.until_begin(monotonic_ns()).is_none()
            {
                let item = self.spin_within(window, connection, limits);
                if !matches!(item, Ok(None)) {
                    return item;
                }
                plan = None;
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
            let slept = match plan.filter(|_| fence.is_none()) {
                Some(plan) => self.sleep_by(plan, connection, limits.interrupt, timeout),
                None => connection.sleep(limits.interrupt, timeout).and_then(|()| connection.next()),
            };
            if !matches!(slept, Ok(None)) || limits.timeout.is_over() {
                return slept;
            }
        }
    }

    /// Sleeps until the next frame is expected, or until the timeout.
    fn sleep_by(
        &mut self,
        plan: Plan,
        connection: &mut Connection,
        interrupt: &Interrupt,
        timeout: Timeout,
    ) -> Next {
        let now = monotonic_ns();
        let window = plan.next(now);
        let planned = window.map(|window| Timeout::after(Some(window.until_begin(now).unwrap_or_default())));
        let fine = planned.and_then(|_| FineTimer::new());
        let slept = connection.sleep(interrupt, planned.map_or(timeout, |planned| planned.min(timeout)));
        let now = monotonic_ns();
        drop(fine);
        let item = slept.and_then(|()| connection.next())?;
        if let Some(window) = window {
            let frame = item.as_ref().and_then(|item| match item {
                Item::Frame(frame) => Some(frame.descriptor().published),
                _ => None,
            });
            self.prediction.add_sleep(&plan, window, frame, now);
        }
        Ok(item)
    }

    /// Spins while a frame is expected. A spin without one may have kept the exporter from its
    /// core.
    fn spin_within(&mut self, window: Window, connection: &mut Connection, limits: Limits<'_>) -> Next {
        connection.end_sleep();
        let mut spin = Spin::of(window.until_end(monotonic_ns()));
        let item = self.spin(connection, limits, || spin.again());
        let found = matches!(item, Ok(Some(_)));
        let was_alone = found && spin.finish();
        self.prediction.add_spin(was_alone, monotonic_ns());
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
