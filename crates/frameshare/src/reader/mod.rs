//! A reader of a stream: connects, takes frames in order, gives them back.
//!
//! A [`Reader`] is used from one thread at a time; the [`Frame`]s that it yields go anywhere, and each one's lease
//! ends when it is dropped. There is no thread of its own: [`Reader::next`] sleeps on the descriptors, and
//! [`Reader::wake_fd`] with [`Reader::try_next`] fits any event loop.
//!
//! # Invariants
//!
//! 1. All messages up to *n* are applied before frame *n* is taken.
//! 2. Sequence numbers only rise within a session, and every number that is missing is counted as lost.
//! 3. What the exporter writes is checked before it is used: descriptors, sizes, seals.
//!
//! # Failure
//!
//! When the exporter is gone, what it had published and said before is still delivered; then comes an error that
//! says how it went, never an end of stream.

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
    spin::{Backoff, Spin},
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

/// What a reader asks for.
#[derive(Clone, Debug)]
pub struct Config {
    /// What it calls itself in the exporter's statistics; cut to 128 bytes.
    pub name: String,
    /// What is to happen to frames that it has no credit for.
    pub policy: Policy,
    /// How many frames it would like to hold at once, 1 to 64; the exporter may grant fewer.
    pub max_held: u32,
    /// How long to spin for the next frame before sleeping.
    pub busy_poll: Duration,
    /// How long to search for an exporter that admits this reader; `None` is for ever. It counts anew from each loss of a
    /// connection. An exporter that accepts the connection and does not answer, because it is stopped say, is waited for
    /// just as long.
    pub connection_timeout: Option<Duration>,
    /// Whether to search for the next exporter of the same name when this one is gone.
    ///
    /// What ends the reader, and what it survives:
    ///
    /// | what happens | without `reconnect` | with it |
    /// | --- | --- | --- |
    /// | no socket, a stale one, a full backlog, no answer | waits | waits |
    /// | permission denied by a socket that was made or changed within the last second | waits | waits |
    /// | permission denied by an older socket, or by a folder | error | error |
    /// | the exporter runs as another user than [`exporter_uid`](Self::exporter_uid) | error | waits |
    /// | the connection is lost, or closed with `Reason::Stopped`, or a frame's fence is late | error | searches |
    /// | the connection is closed with `Reason::Failed`: the exporter's GPU, say | error | searches |
    /// | closed with any other reason: the reader was evicted | error | error |
    /// | refused with `Reason::Stopped`, or with `Reason::LimitExceeded` (too many silent connections or unreceived descriptors) | waits | waits |
    /// | refused with `Reason::NoCreditLeft` or `Reason::Failed` (out of files or memory) | error | waits |
    /// | refused with any other reason | error | error |
    /// | another version of the protocol, or a breach of it; a GPU that cannot be used | error | error |
    ///
    /// "Waits" is until [`connection_timeout`](Self::connection_timeout) is over; then the last obstacle is the error.
    pub reconnect: bool,
    /// The user that the exporter must run as. `None` is any user where only root, this process's user and users that
    /// either of them put in charge can write to the folders on the way to the socket; in a folder that others can write
    /// to, as /tmp, it is this process's user or root.
    ///
    /// The kernel tells the user of the process that listens (`SO_PEERCRED`, unix(7)), as seen in this user namespace: one
    /// without a mapping is 65534.
    pub exporter_uid: Option<u32>,
    /// The CUDA context that frames are read in; `None` for host memory alone.
    pub gpu: Option<Arc<Context>>,
    /// Whether frames that cannot be read in the GPU's memory, since the context does not reach it or the driver refuses an
    /// import, are to come in host memory instead. Without it that is an error.
    pub host_fallback: bool,
    /// The one kind of fence to take part in; `None` is whichever suits.
    pub fence: Option<FenceKind>,
    /// Whether frames are delivered ahead of their fences, for streams to wait on ([`Frame::wait_on`]). `None` is yes
    /// with timeline fences and no with event fences, whose waits a crash of the exporter leaves stuck for ever.
    pub gpu_wait: Option<bool>,
    /// How long the exporter's GPU work on a published frame may take before the exporter counts as gone. Zero is refused,
    /// since no work would be done in time.
    pub fence_timeout: Duration,
    /// Bytes of events and metadata that may wait in this process for the frames that they precede. No more is received
    /// until some were delivered; a single one that is larger ends the reader with
    /// [`ReadError::TooMuchMetadata`].
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

/// What comes out of a stream, in order.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "nearly every item is a frame, and an allocation a frame costs more"
)]
pub enum Item {
    /// The format of the frames to come.
    Format(Arc<Format>),
    /// Something among the frames.
    Event(Event),
    /// A frame.
    Frame(Frame),
    /// The stream has ended here; it may go on later.
    EndOfStream,
    /// The exporter was gone and there is a new one: sequence numbers start again, and the format comes again.
    Reconnected,
}

/// A reader's numbers, over all its sessions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// The run of the stream that it reads.
    pub session: u64,
    /// The exporter's process.
    pub exporter_pid: u32,
    /// How many frames it may hold.
    pub credit: u32,
    /// How many frames it holds.
    pub held: u32,
    /// Frames that it took.
    pub received: u64,
    /// Frames that it lost.
    pub lost: u64,
    /// How many times it found a new exporter.
    pub reconnects: u64,
}

/// A reader of one stream.
#[derive(Debug)]
pub struct Reader {
    endpoint: Endpoint,
    config: Config,
    state: State,
    /// Of earlier sessions.
    past: Stats,
    /// When the last connection was made.
    connected: Instant,
    /// For how long there was nothing to take, the last time that it had to sleep.
    last_wait: Duration,
}

#[derive(Debug)]
enum State {
    Connected(Box<Connection>),
    /// The exporter is gone, and the next one is searched for.
    Searching(Box<Search>),
}

/// How often a reader that spins listens for messages.
const LISTEN: Duration = Duration::from_millis(1);

/// A wait shorter than this was hardly worth sleeping for.
const SHORT_WAIT: Duration = Duration::from_micros(100);

/// How long a frame may have been late before somebody who sleeps finds out.
const LATE_FOR: Duration = Duration::from_millis(250);

/// Shortest time between two connections: an exporter that ends each at once is not asked all the time.
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

    /// Returns the next item in order; `None` if none came within the timeout (`None` is for ever). A timeout of zero
    /// delivers what has arrived: frames, events, the end, the loss of the exporter.
    ///
    /// With [`Config::reconnect`] it searches for the next exporter when this one is gone, within the same timeout: a call
    /// that returns `None` meanwhile leaves the search to the next call. [`Item::Reconnected`] ends it, or
    /// [`ReadError::NotBack`]; a call after that error makes one more attempt.
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

    /// The next thing in order, if it is there. After `None`, [`Reader::wake_fd`] turns readable when more comes.
    ///
    /// Never sleeps. With [`Config::reconnect`] each call advances the search for the next exporter. What a GPU does the
    /// descriptor does not tell: [`Reader::ask_again`] does.
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

    /// Gives the lost connection up and begins the search for the next exporter.
    fn search(&mut self) -> Result<(), ReadError> {
        let begin = (self.connected + BETWEEN_CONNECTIONS).max(Instant::now());
        let search = Search::new(&self.endpoint, &self.config, begin).map_err(ReadError::NotBack)?;
        self.past = Stats { credit: 0, held: 0, ..self.stats() };
        // The connection goes now: the search may take long, and the next exporter need the memory.
        self.state = State::Searching(Box::new(search));
        Ok(())
    }

    /// Does what can be done of the search without waiting; [`Item::Reconnected`] if that ends it.
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

    /// How soon to ask [`Reader::try_next`] again after it found nothing, though [`Reader::wake_fd`] is not readable by
    /// then: soon where the next frame is published and shall be delivered when it is written, or the next exporter is
    /// searched for; later where a frame that was delivered ahead of its fence may turn out to be late. `None` where the
    /// descriptor tells everything.
    pub fn ask_again(&self) -> Option<Duration> {
        match &self.state {
            State::Connected(connection) => ask_again(connection, &self.config),
            State::Searching(search) => Some(search.due().saturating_duration_since(Instant::now())),
        }
    }

    /// Turns readable when there is something to be taken, after [`Reader::try_next`] found nothing. During the search for
    /// the next exporter it turns readable when that has answered, or when the next attempt is due.
    ///
    /// Each loss of a connection, each attempt and each reconnection bring another descriptor and close the last one: an
    /// event loop asks for it after each call of [`Reader::try_next`].
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

    /// Whether frames of the format that was delivered last come in GPU memory, in the context of the configuration. It
    /// changes with formats and reconnections; a frame's own [`Frame::address`] is what counts.
    pub fn is_on_gpu(&self) -> bool {
        self.connection().is_some_and(Connection::is_on_gpu)
    }

    /// The GPU that the exporter has frames on, as far as it has said so, whether or not this reader gets them there.
    pub fn exporter_gpu(&self) -> Option<frameshare_cuda::device::Uuid> {
        self.connection().and_then(Connection::exporter_gpu)
    }

    /// How many frames it may hold at once; 0 while it searches for the next exporter.
    pub fn credit(&self) -> u32 {
        self.connection().map_or(0, Connection::credit)
    }

    /// How many frames of this session it holds.
    pub fn held(&self) -> u32 {
        self.connection().map_or(0, Connection::held)
    }

    /// Returns the numbers so far. During a search for the next exporter, session and process are the last ones.
    pub fn stats(&self) -> Stats {
        let Some(now) = self.connection().map(Connection::stats) else { return self.past.clone() };
        Stats {
            received: self.past.received + now.received,
            // What an exporter says was lost may be any number.
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
    // An application that slept on the descriptor does not say whether it rang.
    connection.drain_wake();
    connection.announce_sleep();
    // Announce, then look once more: what was published in between wakes nobody.
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
    // While frames follow each other faster than a sleep takes, a moment's spinning saves both sides work.
    let mut spin = Spin::default();
    let mut heard = start;
    while !timeout.is_over()
        && (start.elapsed() < config.busy_poll || (*last_wait < SHORT_WAIT && spin.again()))
    {
        if interrupt.is_set() {
            return Err(ReadError::Interrupted);
        }
        // What is not among the frames, the end say, shows in no word that is looked at here.
        if heard.elapsed() > LISTEN {
            connection.receive()?;
            heard = Instant::now();
        }
        if let Some(item) = connection.next()? {
            return Ok(Some(item));
        }
    }
    // From when a frame is there whose fence is waited for, however long the frame took to come.
    let mut fence: Option<Backoff> = None;
    let item = loop {
        if interrupt.is_set() {
            return Err(ReadError::Interrupted);
        }
        // Announce, then look once more: what was published in between wakes nobody.
        connection.announce_sleep();
        let item = connection.next();
        if !matches!(item, Ok(None)) {
            break item;
        }
        // Nobody rings when a GPU is done.
        let look = match connection.look() {
            Look::Written => fence.get_or_insert_with(Backoff::of_a_waiter).next(),
            Look::Late | Look::Not => {
                fence = None;
                Timeout::after(ask_again(connection, config))
            }
        };
        // Also where no time is left: messages and the exporter's death show in no word, only here.
        let slept = connection.sleep(interrupt, timeout.min(look));
        let item = slept.and_then(|()| connection.next());
        if !matches!(item, Ok(None)) || timeout.is_over() {
            break item;
        }
    };
    connection.end_sleep();
    // For how long there was nothing to take, not for how long it slept: to wake takes long itself.
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
