// SPDX-License-Identifier: MIT OR Apache-2.0

//! A reader of a stream: connects, takes frames in order, releases them.
//!
//! A [`Reader`] is used from one thread at a time; the [`Frame`]s that it yields may go to any
//! thread, and dropping one ends its lease. The reader has no thread of its own: [`Reader::next`]
//! sleeps on descriptors, and [`Reader::wake_fd`] with [`Reader::try_next`] fits any event loop.
//!
//! # Invariants
//!
//! 1. All messages up to *n* are applied before frame *n* is taken.
//! 2. Sequence numbers only rise within a connection, and every missing number is counted as lost.
//! 3. Everything that the exporter writes is checked before it is used: descriptors, sizes, seals.
//!
//! # Failure
//!
//! When the exporter dies, everything that it published and sent before is still delivered; then
//! comes an error that describes the end, never an end of stream.

mod config;
mod connection;
mod error;
mod frames;
mod gpu_wait;
mod item;
mod lease;
mod origin;
mod planes;
mod set;
mod slice;
mod stats;

pub use config::{Config, MAX_GOP_BYTES, MAX_METADATA_BYTES};
pub use connection::TrustedUsers;
pub(crate) use connection::open_folder;
pub use error::{ConfigError, ConnectError, ProtocolViolation, ReadError};
pub use frames::{Frames, OpenError, open};
pub use item::Item;
pub use lease::{Frame, KeyUnitRequests};
pub use planes::FramePlane;
pub use set::{ReaderKey, ReaderSet};
pub use stats::Stats;

use crate::{
    Interrupt,
    endpoint::Endpoint,
    sys::backoff::{Backoff, Spin},
    sys::{Timeout, monotonic_ns},
};
use connection::{Connection, Search};
use gpu_wait::Recheck;
use std::{
    os::fd::BorrowedFd,
    time::{Duration, Instant},
};

/// A reader of one stream.
#[derive(Debug)]
pub struct Reader {
    endpoint: Endpoint,
    config: Config,
    state: State,
    /// Statistics of earlier connections.
    past: Stats,
    /// Time of the last connection.
    connected: Instant,
    /// Time without a frame before the last sleep ended.
    last_wait: Duration,
}

#[derive(Debug)]
enum State {
    Connected(Box<Connection>),
    /// The exporter is lost, and the reader searches for the next one.
    Searching(Box<Search>),
}

/// Interval at which a spinning reader checks for messages.
const RECEIVE_INTERVAL: Duration = Duration::from_millis(1);

/// A wait shorter than this is not worth a sleep.
const SHORT_WAIT: Duration = Duration::from_micros(100);

/// Maximum delay until a sleeping reader notices a late frame.
const LATE_CHECK: Duration = Duration::from_millis(250);

/// Minimum time between two connections, against an exporter that ends each at once.
const BETWEEN_CONNECTIONS: Duration = Duration::from_millis(20);

impl Reader {
    /// Connects to a stream, waiting for its exporter if there is none yet.
    ///
    /// # Errors
    /// [`ConnectError`]: see [`Config::reconnect`] for the conditions that are waited for.
    pub fn connect(endpoint: &Endpoint, config: Config, interrupt: &Interrupt) -> Result<Self, ConnectError> {
        let connection = connection::connect(endpoint, &config, interrupt)?;
        Ok(Self {
            endpoint: endpoint.clone(),
            config,
            state: State::Connected(Box::new(connection)),
            past: Stats::default(),
            connected: Instant::now(),
            last_wait: Duration::MAX,
        })
    }

    /// Starts the search for a stream's exporter and returns at once: the first items come when it
    /// is found, after [`Item::Reconnected`].
    ///
    /// # Errors
    /// [`ConnectError`] for an invalid configuration. Errors of the search are
    /// [`ReadError::NotBack`].
    pub fn start(endpoint: &Endpoint, config: Config) -> Result<Self, ConnectError> {
        config.check(endpoint)?;
        let search = Search::new(endpoint, &config, Instant::now())?;
        Ok(Self {
            endpoint: endpoint.clone(),
            config,
            state: State::Searching(Box::new(search)),
            past: Stats::default(),
            connected: Instant::now(),
            last_wait: Duration::MAX,
        })
    }

    /// Returns the next item in order; `None` if none came within the timeout (`None`: no timeout).
    /// A timeout of zero delivers what has arrived: frames, events, the end, the loss of the
    /// exporter.
    ///
    /// With [`Config::reconnect`] it searches for the next exporter when this one is gone, within
    /// the same timeout: a call that returns `None` meanwhile leaves the search to the next call.
    /// [`Item::Reconnected`] ends it, or [`ReadError::NotBack`]; a call after that error makes one
    /// more attempt.
    ///
    /// # Errors
    /// [`ReadError`], after all items from before the error. [`ReadError::Interrupted`] leaves the
    /// reader as it is.
    pub fn next(
        &mut self,
        timeout: Option<Duration>,
        interrupt: &Interrupt,
    ) -> Result<Option<Item>, ReadError> {
        let timeout = Timeout::after(timeout);
        loop {
            let result = match &mut self.state {
                State::Connected(connection) => {
                    wait_next(connection, &self.config, &mut self.last_wait, timeout, interrupt)
                }
                State::Searching(_) => self.wait_for_exporter(timeout, interrupt),
            };
            match result {
                Err(error) if self.config.reconnect && error.is_exporter_gone() => self.search()?,
                result => return result,
            }
        }
    }

    /// Returns the next item in order, if it has arrived. After `None`, [`Reader::wake_fd`] becomes
    /// readable when more arrives.
    ///
    /// Never sleeps. With [`Config::reconnect`] each call advances the search for the next
    /// exporter. The descriptor does not show GPU progress; [`Reader::ask_again`] says when to
    /// poll.
    ///
    /// # Errors
    /// As [`Reader::next`].
    pub fn try_next(&mut self) -> Result<Option<Item>, ReadError> {
        loop {
            let result = match &mut self.state {
                State::Connected(connection) => try_next(connection),
                State::Searching(_) => self.advance_search(),
            };
            match result {
                Err(error) if self.config.reconnect && error.is_exporter_gone() => self.search()?,
                result => return result,
            }
        }
    }

    /// Drops the lost connection and begins the search for the next exporter.
    fn search(&mut self) -> Result<(), ReadError> {
        let begin = (self.connected + BETWEEN_CONNECTIONS).max(Instant::now());
        let search = Search::new(&self.endpoint, &self.config, begin).map_err(ReadError::NotBack)?;
        self.past = Stats { credit: 0, held: 0, ..self.stats() };
        // The connection is dropped now: the search may take long, and the next exporter may need
        // the memory.
        self.state = State::Searching(Box::new(search));
        Ok(())
    }

    /// Advances the search without waiting; returns [`Item::Reconnected`] at its end.
    fn advance_search(&mut self) -> Result<Option<Item>, ReadError> {
        let State::Searching(search) = &mut self.state else { return Ok(None) };
        let found = search.advance(&self.endpoint, &self.config).map_err(ReadError::NotBack)?;
        Ok(found.map(|connection| {
            // The first connection of a started reader is none.
            self.past.reconnects += u64::from(self.past.session != 0);
            self.connected = Instant::now();
            self.state = State::Connected(Box::new(connection));
            Item::Reconnected
        }))
    }

    fn wait_for_exporter(
        &mut self,
        timeout: Timeout,
        interrupt: &Interrupt,
    ) -> Result<Option<Item>, ReadError> {
        loop {
            if interrupt.is_set() {
                return Err(ReadError::Interrupted);
            }
            let found = self.advance_search()?;
            if found.is_some() || timeout.is_over() {
                return Ok(found);
            }
            if let State::Searching(search) = &self.state {
                search.wait(interrupt, timeout).map_err(ReadError::Io)?;
            }
        }
    }

    /// Returns when to call [`Reader::try_next`] again after it returned `None`, although
    /// [`Reader::wake_fd`] is not readable: soon if the next frame is published and is to be
    /// delivered when it is written, or if the reader searches for the next exporter; later if a
    /// speculatively delivered frame may turn out to be late. `None` if the descriptor shows
    /// everything.
    pub fn ask_again(&self) -> Option<Duration> {
        match &self.state {
            State::Connected(connection) => ask_again(connection, &self.config),
            State::Searching(search) => Some(search.due().saturating_duration_since(Instant::now())),
        }
    }

    /// Becomes readable when an item can be taken, after [`Reader::try_next`] returned `None`.
    /// During the search for the next exporter it becomes readable when that has answered, or when
    /// the next attempt is due.
    ///
    /// Each loss of a connection, each attempt and each reconnection bring another descriptor and
    /// close the last one: an event loop asks for it after each call of [`Reader::try_next`].
    pub fn wake_fd(&self) -> BorrowedFd<'_> {
        match &self.state {
            State::Connected(connection) => connection.wake_fd(),
            State::Searching(search) => search.fd(),
        }
    }

    /// Asks the exporter for a key unit of an encoded stream. The exporter passes the request on to
    /// the encoder at most once a second, for readers of its own user; it may ignore it.
    pub fn request_key_unit(&self) {
        self.key_unit_requests().send();
    }

    /// Tells the exporter that the application cannot read the present format's layout, and copies
    /// each frame. Once for each format is enough; the exporter may ignore it.
    pub fn report_layout_copies(&self) {
        if let Some(connection) = self.connection() {
            connection.report_layout_copies();
        }
    }

    /// Returns a handle for requests from other threads. It serves the present connection only.
    pub fn key_unit_requests(&self) -> KeyUnitRequests {
        self.connection().map(Connection::key_unit_requests).unwrap_or_default()
    }

    fn connection(&self) -> Option<&Connection> {
        match &self.state {
            State::Connected(connection) => Some(connection),
            State::Searching(_) => None,
        }
    }

    /// Returns whether frames of the last delivered format come in GPU memory, in the context of
    /// the configuration. It changes with formats and reconnections; a frame's own
    /// [`Frame::address`] is authoritative.
    pub fn is_on_gpu(&self) -> bool {
        self.connection().is_some_and(Connection::is_on_gpu)
    }

    /// The GPU that the exporter has announced for its frames, whether or not this reader gets them
    /// there.
    pub fn exporter_gpu(&self) -> Option<frameshare_cuda::device::Uuid> {
        self.connection().and_then(Connection::exporter_gpu)
    }

    /// Maximum number of frames that it may hold at once; 0 while it searches for the next
    /// exporter.
    pub fn credit(&self) -> u32 {
        self.connection().map_or(0, Connection::credit)
    }

    /// Number of frames of this connection that it holds.
    pub fn held(&self) -> u32 {
        self.connection().map_or(0, Connection::held)
    }

    /// Statistics so far. During a search for the next exporter, session and process are the last
    /// ones.
    pub fn stats(&self) -> Stats {
        let Some(now) = self.connection().map(Connection::stats) else { return self.past.clone() };
        Stats {
            received: self.past.received + now.received,
            // The exporter may report any number of lost frames.
            lost: self.past.lost.saturating_add(now.lost),
            reconnects: self.past.reconnects,
            ..now
        }
    }
}

fn try_next(connection: &mut Connection) -> Result<Option<Item>, ReadError> {
    if let Some(item) = connection.next()? {
        return Ok(Some(item));
    }
    // An application that slept on the descriptor does not say whether it was readable.
    connection.drain_wake();
    connection.announce_sleep();
    // Set the sleeping flag, then check once more: a publication in between sends no wake-up.
    connection.receive()?;
    connection.next()
}

fn wait_next(
    connection: &mut Connection,
    config: &Config,
    last_wait: &mut Duration,
    timeout: Timeout,
    interrupt: &Interrupt,
) -> Result<Option<Item>, ReadError> {
    if let Some(item) = connection.next()? {
        return Ok(Some(item));
    }
    let (start, began) = (Instant::now(), monotonic_ns());
    // While frames follow each other faster than a sleep takes, a short spin saves both sides work.
    let mut spin = Spin::default();
    let mut received = start;
    while !timeout.is_over()
        && (start.elapsed() < config.busy_poll || (*last_wait < SHORT_WAIT && spin.again()))
    {
        if interrupt.is_set() {
            return Err(ReadError::Interrupted);
        }
        // Other items than frames, such as the end, change none of the words that are polled here.
        if received.elapsed() > RECEIVE_INTERVAL {
            connection.receive()?;
            received = Instant::now();
        }
        if let Some(item) = connection.next()? {
            return Ok(Some(item));
        }
    }
    // Set when a frame with a pending fence arrives, however long the frame took to arrive.
    let mut fence: Option<Backoff> = None;
    let item = loop {
        if interrupt.is_set() {
            return Err(ReadError::Interrupted);
        }
        // Set the sleeping flag, then check once more: a publication in between sends no wake-up.
        connection.announce_sleep();
        let item = connection.next();
        if !matches!(item, Ok(None)) {
            break item;
        }
        // No notification follows the end of GPU work.
        let recheck = match connection.recheck() {
            Recheck::ReadyFence => fence.get_or_insert_with(Backoff::of_a_waiter).next(),
            Recheck::Deadline | Recheck::Nothing => {
                fence = None;
                Timeout::after(ask_again(connection, config))
            }
        };
        // Called even without time left: messages and the exporter's death are seen only here.
        let slept = connection.sleep(interrupt, timeout.min(recheck));
        let item = slept.and_then(|()| connection.next());
        if !matches!(item, Ok(None)) || timeout.is_over() {
            break item;
        }
    };
    connection.end_sleep();
    // The time without a frame, not the time of the sleep: the wake-up itself takes long.
    if let Ok(Some(Item::Frame(frame))) = &item {
        *last_wait = Duration::from_nanos(frame.descriptor().published.saturating_sub(began));
    }
    item
}

/// See [`Reader::ask_again`].
fn ask_again(connection: &Connection, config: &Config) -> Option<Duration> {
    match connection.recheck() {
        Recheck::Nothing => None,
        Recheck::Deadline => Some((config.fence_timeout / 8).clamp(Backoff::SLOWEST, LATE_CHECK)),
        Recheck::ReadyFence => Some(Backoff::SLOWEST),
    }
}
