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
//! 2. Sequence numbers only rise within a session, and every missing number is counted as lost.
//! 3. Everything that the exporter writes is checked before it is used: descriptors, sizes, seals.
//!
//! # Failure
//!
//! When the exporter dies, everything that it published and sent before is still delivered; then
//! comes an error that describes the end, never an end of stream.

mod connect;
mod connection;
mod error;
mod frame;
mod imports;
mod rescue;
mod session;
mod trust;
mod waits;

pub use error::{ConnectError, ReadError};
pub use frame::Frame;

use crate::{
    Interrupt,
    endpoint::Endpoint,
    event::Event,
    sys::backoff::{Backoff, Spin},
    sys::{Timeout, monotonic_ns},
};
use connect::Search;
use connection::{Connection, Look};
use frameshare_cuda::context::Context;
use frameshare_protocol::{FenceKind, Policy, message::Format};
use std::{
    os::fd::{AsFd, BorrowedFd},
    sync::Arc,
    time::{Duration, Instant},
};

/// Default of [`Config::max_metadata_bytes`].
pub const MAX_METADATA_BYTES: u64 = 128 << 20;

/// Configuration of a reader.
#[derive(Clone, Debug)]
pub struct Config {
    /// Name of the reader in the exporter's statistics; cut to 128 bytes.
    pub name: String,
    /// Treatment of frames beyond the credit.
    pub policy: Policy,
    /// Requested number of frames to hold at once, 1 to 64; the exporter may grant fewer.
    pub max_held: u32,
    /// Maximum time to spin for the next frame before sleeping.
    pub busy_poll: Duration,
    /// Maximum time to search for an exporter that admits this reader; `None` is without limit. It
    /// starts anew with each loss of a connection. The reader waits as long for an exporter that
    /// accepts the connection and does not answer, because it is stopped for example.
    pub connection_timeout: Option<Duration>,
    /// Whether to search for the next exporter of the same name after the end of this one.
    ///
    /// Conditions that end the reader, and conditions that it survives:
    ///
    /// | condition | without `reconnect` | with it |
    /// | --- | --- | --- |
    /// | no socket, a stale one, a full backlog, no answer | waits | waits |
    /// | permission denied by a socket that was made or changed within the last second | waits | waits |
    /// | permission denied by an older socket, or by a folder | error | error |
    /// | the exporter runs as another user than [`exporter_uid`](Self::exporter_uid) | error | waits |
    /// | the connection is lost, or closed with `Reason::Stopped`, or a frame's fence is late | error | searches |
    /// | the connection is closed with `Reason::Failed`, for example by a failure of the exporter's GPU | error | searches |
    /// | closed with any other reason: the reader was evicted | error | error |
    /// | refused with `Reason::Stopped`, or with `Reason::LimitExceeded` (too many silent connections or unreceived descriptors) | waits | waits |
    /// | refused with `Reason::NoCreditLeft` or `Reason::Failed` (out of files or memory) | error | waits |
    /// | refused with any other reason | error | error |
    /// | another version of the protocol, or a violation of it; a GPU that cannot be used | error | error |
    ///
    /// "Waits" lasts until [`connection_timeout`](Self::connection_timeout); then the last obstacle
    /// is the error.
    pub reconnect: bool,
    /// The user that the exporter must run as. `None` accepts any user if only root, this process's
    /// user and users that either of them put in charge can write to the folders on the way to the
    /// socket; in a folder that others can write to, such as /tmp, it accepts this process's user
    /// and root.
    ///
    /// The kernel reports the user of the listening process (`SO_PEERCRED`, unix(7)), as seen in
    /// this user namespace: one without a mapping is 65534.
    pub exporter_uid: Option<u32>,
    /// The CUDA context that frames are read in; `None` for host memory only.
    pub gpu: Option<Arc<Context>>,
    /// Whether frames that cannot be read in GPU memory, because the context does not reach the GPU
    /// or the driver refuses an import, come in host memory instead. Otherwise that is an error.
    pub host_fallback: bool,
    /// The only kind of fence to use; `None` accepts every kind.
    pub fence: Option<FenceKind>,
    /// Whether frames are delivered speculatively, before their ready fence is signaled, for GPU
    /// streams to wait on ([`Frame::wait_on`]). `None` is yes with timeline fences and no with
    /// event fences, whose waits never end after a crash of the exporter.
    pub gpu_wait: Option<bool>,
    /// Maximum time for the exporter's GPU work on a published frame before the exporter counts as
    /// dead. Zero is refused, since no work would complete in time.
    pub fence_timeout: Duration,
    /// Maximum bytes of events and metadata that wait in this process for the frames that they
    /// precede. No more is received until some were delivered; a single larger one ends the reader
    /// with [`ReadError::TooMuchMetadata`].
    pub max_metadata_bytes: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            name: crate::sys::process_name(),
            policy: Policy::default(),
            max_held: 4,
            busy_poll: Duration::ZERO,
            connection_timeout: Some(Duration::from_secs(5)),
            reconnect: false,
            exporter_uid: None,
            gpu: None,
            host_fallback: false,
            fence: None,
            gpu_wait: None,
            fence_timeout: Duration::from_secs(2),
            max_metadata_bytes: MAX_METADATA_BYTES,
        }
    }
}

/// The next item of a stream, in order.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "nearly every item is a frame, and an allocation a frame costs more"
)]
pub enum Item {
    /// The format of the following frames.
    Format(Arc<Format>),
    /// An in-band event.
    Event(Event),
    /// A frame.
    Frame(Frame),
    /// The stream has ended; it may continue later.
    EndOfStream,
    /// The next exporter was found after the end of the last: sequence numbers start again, and the
    /// format follows again.
    Reconnected,
}

/// Statistics of a reader over all its sessions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// The run of the stream that it reads.
    pub session: u64,
    /// The exporter's process.
    pub exporter_pid: u32,
    /// Maximum number of frames that it may hold.
    pub credit: u32,
    /// Number of frames that it holds.
    pub held: u32,
    /// Frames taken.
    pub received: u64,
    /// Frames lost.
    pub lost: u64,
    /// Number of reconnections.
    pub reconnects: u64,
}

/// A reader of one stream.
#[derive(Debug)]
pub struct Reader {
    endpoint: Endpoint,
    config: Config,
    state: State,
    /// Statistics of earlier sessions.
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
const LISTEN: Duration = Duration::from_millis(1);

/// A wait shorter than this is not worth a sleep.
const SHORT_WAIT: Duration = Duration::from_micros(100);

/// Maximum delay until a sleeping reader notices a late frame.
const LATE_FOR: Duration = Duration::from_millis(250);

/// Minimum time between two connections, against an exporter that ends each at once.
const BETWEEN_CONNECTIONS: Duration = Duration::from_millis(20);

impl Reader {
    /// Connects to a stream, waiting for its exporter if there is none yet.
    pub fn connect(endpoint: &Endpoint, config: Config, interrupt: &Interrupt) -> Result<Self, ConnectError> {
        let connection = connect::connect(endpoint, &config, interrupt)?;
        Ok(Self {
            endpoint: endpoint.clone(),
            config,
            state: State::Connected(Box::new(connection)),
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
            self.past.reconnects += 1;
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
            State::Connected(connection) => connection.wake().as_fd(),
            State::Searching(search) => search.fd(),
        }
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

    /// Number of frames of this session that it holds.
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
    let mut heard = start;
    while !timeout.is_over()
        && (start.elapsed() < config.busy_poll || (*last_wait < SHORT_WAIT && spin.again()))
    {
        if interrupt.is_set() {
            return Err(ReadError::Interrupted);
        }
        // Other items than frames, such as the end, change none of the words that are polled here.
        if heard.elapsed() > LISTEN {
            connection.receive()?;
            heard = Instant::now();
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
        let look = match connection.look() {
            Look::Written => fence.get_or_insert_with(Backoff::of_a_waiter).next(),
            Look::Late | Look::Not => {
                fence = None;
                Timeout::after(ask_again(connection, config))
            }
        };
        // Called even without time left: messages and the exporter's death are seen only here.
        let slept = connection.sleep(interrupt, timeout.min(look));
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
    match connection.look() {
        Look::Not => None,
        Look::Late => Some((config.fence_timeout / 8).clamp(Backoff::SLOWEST, LATE_FOR)),
        Look::Written => Some(Backoff::SLOWEST),
    }
}
