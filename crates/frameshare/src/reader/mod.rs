// SPDX-License-Identifier: MIT OR Apache-2.0

//! A reader of a stream: connects, takes frames in order, releases them.
//!
//! A [`Reader`] is used from one thread at a time; the [`Frame`]s that it yields may go to any
//! thread, and dropping one ends its lease. The reader has no thread of its own: [`Reader::next`]
//! sleeps on descriptors, and [`AsFd`] with [`Reader::try_next`] fits any event loop.
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
mod handle;
mod item;
mod lease;
mod origin;
mod planes;
mod readiness;
mod set;
mod slice;
mod stats;
mod wait;

pub use config::{Config, MAX_GOP_BYTES, MAX_METADATA_BYTES};
pub use connection::TrustedUsers;
pub(crate) use connection::open_folder;
pub use error::{ConfigError, ConnectError, ProtocolViolation, ReadError};
pub use frames::{Frames, OpenError, open};
pub use frameshare_core::reader::Violation;
pub use frameshare_protocol::ReaderCopy;
pub use handle::ReaderHandle;
pub use item::Item;
pub use lease::{Frame, KeyUnitRequests};
pub use planes::FramePlane;
pub use set::{ReaderKey, ReaderSet};
pub use stats::Stats;
pub use wait::Spun;

use crate::{Interrupt, endpoint::Endpoint, sys::Timeout};
use connection::{Connection, Search};
use frameshare_core::reader::{Patience, Reconnection};
use frameshare_queue::Sleeper;
use readiness::Readiness;
use std::{
    os::fd::{AsFd, BorrowedFd},
    time::{Duration, Instant},
};
use wait::Waits;

/// Time after which a wait without limit ends with [`ReadError::Held`].
const HELD_PATIENCE: Duration = Duration::from_millis(if cfg!(test) { 50 } else { 5000 });

/// A reader of one stream.
#[derive(Debug)]
pub struct Reader {
    endpoint: Endpoint,
    config: Config,
    state: State,
    reconnection: Reconnection,
    waits: Waits,
    patience: Patience,
    readiness: Readiness,
    /// Updated after each call, if there is one.
    handle: Option<ReaderHandle>,
}

#[derive(Debug)]
enum State {
    Connected(Box<Connection>),
    /// The exporter is lost, and the reader searches for the next one.
    Searching(Box<Search>),
}

impl State {
    /// Readable when the state may have advanced.
    fn ready_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Connected(connection) => connection.ready_fd(),
            Self::Searching(search) => search.ready_fd(),
        }
    }
}

impl Reader {
    /// Connects to a stream, waiting for its exporter if there is none yet.
    ///
    /// # Errors
    /// [`ConnectError`]: see [`Config::reconnect`] for the conditions that are waited for.
    pub fn connect(endpoint: &Endpoint, config: Config, interrupt: &Interrupt) -> Result<Self, ConnectError> {
        let connection = connection::connect(endpoint, &config, interrupt)?;
        Self::with(endpoint, config, State::Connected(Box::new(connection)))
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
        Self::with(endpoint, config, State::Searching(Box::new(search)))
    }

    fn with(endpoint: &Endpoint, config: Config, state: State) -> Result<Self, ConnectError> {
        let failed = |source| ConnectError::Io { endpoint: endpoint.clone(), source };
        let mut readiness = Readiness::new(state.ready_fd()).map_err(failed)?;
        // A started search makes its first attempt at the first call.
        readiness.wake_after(matches!(state, State::Searching(_)).then_some(Duration::ZERO));
        Ok(Self {
            endpoint: endpoint.clone(),
            config,
            state,
            reconnection: Reconnection::new(Instant::now()),
            waits: Waits::new(),
            patience: Patience::new(HELD_PATIENCE),
            readiness,
            handle: None,
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
    /// reader as it is, and so does [`ReadError::Held`]: the reader holds all frames that it may,
    /// and a wait without limit has lasted for 5 s.
    pub fn next(
        &mut self,
        timeout: Option<Duration>,
        interrupt: &Interrupt,
    ) -> Result<Option<Item>, ReadError> {
        let next = self.wait(Timeout::after(timeout), timeout.is_none(), interrupt);
        self.update_handle();
        next
    }

    fn wait(
        &mut self,
        timeout: Timeout,
        is_endless: bool,
        interrupt: &Interrupt,
    ) -> Result<Option<Item>, ReadError> {
        loop {
            // Only this call takes frames: a reader that holds all of them at the end of a wait has
            // held them since its begin.
            let begin = (is_endless && self.holds_all()).then(Instant::now);
            let timeout = match begin {
                Some(_) => Timeout::after(Some(self.patience.left())),
                None => timeout,
            };
            let result = match &mut self.state {
                State::Connected(connection) => self.waits.next(connection, &self.config, timeout, interrupt),
                State::Searching(_) => self.wait_for_exporter(timeout, interrupt),
            };
            let held = begin.filter(|_| self.holds_all()).map(|begin| begin.elapsed());
            self.patience.note(held);
            match result {
                Err(error) if self.config.reconnect && error.is_exporter_gone() => self.search()?,
                Ok(None) if held.is_some() => {
                    self.patience.note(None);
                    return Err(ReadError::Held { held: self.held() });
                }
                Ok(None) if begin.is_some() => {}
                result => return result,
            }
        }
    }

    fn update_handle(&self) {
        if let Some(handle) = &self.handle {
            handle.update(self);
        }
    }

    /// Returns a handle for other threads: statistics, and requests for key units.
    pub fn handle(&mut self) -> ReaderHandle {
        let handle = self.handle.take().unwrap_or_else(|| ReaderHandle::new(self));
        self.handle.insert(handle).clone()
    }

    /// Returns the next item in order, if it has arrived. After `None`, the descriptor of [`AsFd`]
    /// becomes readable when there may be one.
    ///
    /// Never sleeps. With [`Config::reconnect`] each call advances the search for the next
    /// exporter.
    ///
    /// # Errors
    /// As [`Reader::next`].
    pub fn try_next(&mut self) -> Result<Option<Item>, ReadError> {
        let item = self.advance();
        if let Ok(None) = item {
            self.readiness.wake_after(self.ask_again());
        }
        self.update_handle();
        item
    }

    fn advance(&mut self) -> Result<Option<Item>, ReadError> {
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
        let begin = self.reconnection.next_attempt(Instant::now());
        let search = Search::new(&self.endpoint, &self.config, begin).map_err(ReadError::NotBack)?;
        self.readiness.replace(self.state.ready_fd(), search.ready_fd()).map_err(ReadError::Io)?;
        if let Some(connection) = self.connection().map(Connection::stats) {
            self.reconnection.lose(connection);
        }
        // The connection is dropped now: the search may take long, and the next exporter may need
        // the memory.
        self.state = State::Searching(Box::new(search));
        // A search may last.
        self.update_handle();
        Ok(())
    }

    /// Advances the search without waiting; returns [`Item::Reconnected`] at its end.
    fn advance_search(&mut self) -> Result<Option<Item>, ReadError> {
        let State::Searching(search) = &mut self.state else { return Ok(None) };
        let found = search.advance(&self.endpoint, &self.config).map_err(ReadError::NotBack)?;
        let Some(connection) = found else { return Ok(None) };
        self.readiness.replace(self.state.ready_fd(), connection.ready_fd()).map_err(ReadError::Io)?;
        self.reconnection.connect(Instant::now());
        self.state = State::Connected(Box::new(connection));
        Ok(Some(Item::Reconnected))
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

    /// Sets the maximum time of the following searches for an exporter
    /// ([`Config::connection_timeout`]).
    pub fn set_connection_timeout(&mut self, timeout: Option<Duration>) {
        self.config.connection_timeout = timeout;
    }

    /// Returns the time until [`Reader::try_next`] is to be called again after it returned `None`,
    /// even if nothing arrives: soon if the next frame is published and is to be delivered when it
    /// is written, or if the reader searches for the next exporter; later if a speculatively
    /// delivered frame may turn out to be late. `None` if there is no such time. The descriptor of
    /// [`AsFd`] becomes readable at that time.
    pub fn ask_again(&self) -> Option<Duration> {
        match &self.state {
            State::Connected(connection) => wait::ask_again(connection, &self.config),
            State::Searching(search) => Some(search.due().saturating_duration_since(Instant::now())),
        }
    }

    /// The descriptor of [`AsFd`]. It becomes readable when an item may have arrived, after
    /// [`Reader::try_next`] returned `None`, and when that is to be called again in any case: the
    /// exporter has died, a frame may be written, or the search for the next exporter has advanced.
    ///
    /// It is the same for the whole life of the reader, through all reconnections, and for polling
    /// only, level-triggered or edge-triggered.
    pub fn wake_fd(&self) -> BorrowedFd<'_> {
        self.readiness.as_fd()
    }

    /// Asks the exporter for a key unit of an encoded stream. The exporter passes the request on to
    /// the encoder at most once a second, for readers of its own user and root's; it may ignore it.
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

    /// Returns a handle for requests for key units from other threads. It serves the present
    /// connection only.
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

    /// Returns whether the exporter runs as this process's own user or as root: one that could
    /// have this process run any code anyway. False while it searches for the next exporter.
    pub fn exporter_is_own_or_root(&self) -> bool {
        self.connection().is_some_and(Connection::exporter_is_own_or_root)
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

    /// Returns whether it holds all frames that it may: none comes until one is dropped.
    pub fn holds_all(&self) -> bool {
        let credit = self.credit();
        credit > 0 && self.held() >= credit
    }

    /// The cost of spins so far ([`Config::spin`]), through all connections.
    pub fn spun(&self) -> Spun {
        self.waits.spun()
    }

    /// Statistics so far. During a search for the next exporter, session and process are the last
    /// ones.
    pub fn stats(&self) -> Stats {
        Stats::new(self.reconnection.total(self.connection().map(Connection::stats)), self.waits.spun())
    }
}

fn try_next(connection: &mut Connection) -> Result<Option<Item>, ReadError> {
    if let Some(item) = connection.next()? {
        return Ok(Some(item));
    }
    // An application that slept on the descriptor does not say whether it was readable.
    connection.drain_wake();
    connection.announce_sleep(Sleeper::Socket);
    // Set the sleeping flag, then check once more: a publication in between sends no wake-up.
    connection.receive_arrived()?;
    connection.next()
}
