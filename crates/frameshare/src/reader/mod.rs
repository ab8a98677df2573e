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
use connection::{Connection, Look};
use frameshare_cuda::context::Context;
use frameshare_protocol::{FenceKind, Policy, message::Format};
use std::{
    os::fd::{AsFd, BorrowedFd},
    sync::Arc,
    time::{Duration, Instant},
};

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
    /// How long to wait for an exporter; `None` is for ever.
    pub connection_timeout: Option<Duration>,
    /// Whether to wait for the next exporter of the same name when this one is gone.
    pub reconnect: bool,
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
    /// How long the exporter's GPU work on a published frame may take before the exporter counts as gone.
    pub fence_timeout: Duration,
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
            gpu: None,
            host_fallback: false,
            fence: None,
            gpu_wait: None,
            fence_timeout: Duration::from_secs(2),
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
    connection: Connection,
    /// `Reconnected` has still to be delivered.
    reconnected: bool,
    /// Of earlier sessions.
    past: Stats,
    /// For how long there was nothing to take, the last time that it had to sleep.
    last_wait: Duration,
}

/// How often a reader that spins listens for messages.
const LISTEN: Duration = Duration::from_millis(1);

/// A wait shorter than this was hardly worth sleeping for.
const SHORT_WAIT: Duration = Duration::from_micros(100);

/// How long a frame may have been late before somebody who sleeps finds out.
const LATE_FOR: Duration = Duration::from_millis(250);

impl Reader {
    /// Connects to a stream, waiting for its exporter if there is none yet.
    pub fn connect(endpoint: &Endpoint, config: Config, interrupt: &Interrupt) -> Result<Self, ConnectError> {
        let connection = connect::connect(endpoint, &config, interrupt)?;
        Ok(Self {
            endpoint: endpoint.clone(),
            config,
            connection,
            reconnected: false,
            past: Stats::default(),
            last_wait: Duration::MAX,
        })
    }

    /// The next thing in order; `None` if none came within the timeout (`None` is for ever).
    pub fn next(
        &mut self,
        timeout: Option<Duration>,
        interrupt: &Interrupt,
    ) -> Result<Option<Item>, ReadError> {
        let timeout = Timeout::after(timeout);
        loop {
            match self.wait_next(timeout, interrupt) {
                Err(error) if self.config.reconnect && error.is_exporter_gone() => {
                    self.reconnect(interrupt)?
                }
                result => return result,
            }
        }
    }

    /// The next thing in order, if it is there. After `None`, [`Reader::wake_fd`] turns readable when more comes.
    ///
    /// Does not reconnect: that takes time. What a GPU does the descriptor does not tell: [`Reader::ask_again`] does.
    pub fn try_next(&mut self) -> Result<Option<Item>, ReadError> {
        if std::mem::take(&mut self.reconnected) {
            return Ok(Some(Item::Reconnected));
        }
        if let Some(item) = self.connection.next()? {
            return Ok(Some(item));
        }
        // An application that slept on the descriptor does not say whether it rang.
        self.connection.drain_wake();
        self.connection.announce_sleep();
        // Announce, then look once more: what was published in between wakes nobody.
        self.connection.receive()?;
        self.connection.next()
    }

    fn wait_next(&mut self, timeout: Timeout, interrupt: &Interrupt) -> Result<Option<Item>, ReadError> {
        if std::mem::take(&mut self.reconnected) {
            return Ok(Some(Item::Reconnected));
        }
        if let Some(item) = self.connection.next()? {
            return Ok(Some(item));
        }
        let (start, began) = (Instant::now(), monotonic_ns());
        // While frames follow each other faster than a sleep takes, a moment's spinning saves both sides work.
        let mut spin = Spin::default();
        let mut heard = start;
        while start.elapsed() < self.config.busy_poll || (self.last_wait < SHORT_WAIT && spin.again()) {
            if interrupt.is_set() {
                return Err(ReadError::Interrupted);
            }
            // What is not among the frames, the end say, shows in no word that is looked at here.
            if heard.elapsed() > LISTEN {
                self.connection.receive()?;
                heard = Instant::now();
            }
            if let Some(item) = self.connection.next()? {
                return Ok(Some(item));
            }
            if timeout.is_over() {
                return Ok(None);
            }
        }
        // From when a frame is there whose fence is waited for, however long the frame took to come.
        let mut fence: Option<Backoff> = None;
        loop {
            if interrupt.is_set() {
                return Err(ReadError::Interrupted);
            }
            // Announce, then look once more: what was published in between wakes nobody.
            self.connection.announce_sleep();
            let item = self.connection.next();
            if !matches!(item, Ok(None)) || timeout.is_over() {
                return self.woken(began, item);
            }
            // Nobody rings when a GPU is done.
            let look = match self.connection.look() {
                Look::Written => fence.get_or_insert_with(Backoff::of_a_waiter).next(),
                Look::Late | Look::Not => {
                    fence = None;
                    Timeout::after(self.ask_again())
                }
            };
            let slept = self.connection.sleep(interrupt, timeout.min(look));
            let item = slept.and_then(|()| self.connection.next());
            if !matches!(item, Ok(None)) {
                return self.woken(began, item);
            }
        }
    }

    /// Takes the announcement of sleep back, and notes how long there was nothing to take. That is not how long the wait
    /// took: to wake takes long itself.
    fn woken(
        &mut self,
        began: u64,
        item: Result<Option<Item>, ReadError>,
    ) -> Result<Option<Item>, ReadError> {
        self.connection.end_sleep();
        if let Ok(Some(Item::Frame(frame))) = &item {
            self.last_wait = Duration::from_nanos(frame.descriptor().published.saturating_sub(began));
        }
        item
    }

    fn reconnect(&mut self, interrupt: &Interrupt) -> Result<(), ReadError> {
        // It may take long, and the next exporter need the memory.
        self.connection.give_up_imports();
        let connection =
            connect::connect(&self.endpoint, &self.config, interrupt).map_err(|error| match error {
                ConnectError::Interrupted => ReadError::Interrupted,
                error => ReadError::NotBack(error),
            })?;
        self.past = Stats { reconnects: self.past.reconnects + 1, ..self.stats() };
        self.connection = connection;
        self.reconnected = true;
        Ok(())
    }

    /// How soon to ask [`Reader::try_next`] again after it found nothing, though [`Reader::wake_fd`] is not readable by
    /// then: soon where the next frame is published and shall be delivered when it is written, later where one that was
    /// delivered ahead of its fence may turn out to be late. `None` where the descriptor tells everything.
    pub fn ask_again(&self) -> Option<Duration> {
        match self.connection.look() {
            Look::Not => None,
            Look::Late => Some((self.config.fence_timeout / 8).min(LATE_FOR)),
            Look::Written => Some(Backoff::SLOWEST),
        }
    }

    /// Turns readable when there is something to be taken, after [`Reader::try_next`] found nothing. It changes
    /// with a reconnection.
    pub fn wake_fd(&self) -> BorrowedFd<'_> {
        self.connection.wake().as_fd()
    }

    /// Whether frames of the format that was delivered last come in GPU memory, in the context of the configuration. It
    /// changes with formats and reconnections; a frame's own [`Frame::address`] is what counts.
    pub fn is_on_gpu(&self) -> bool {
        self.connection.is_on_gpu()
    }

    /// How many frames it may hold at once.
    pub fn credit(&self) -> u32 {
        self.connection.credit()
    }

    /// How many frames of this session it holds.
    pub fn held(&self) -> u32 {
        self.connection.held()
    }

    /// What has happened so far.
    pub fn stats(&self) -> Stats {
        let now = self.connection.stats();
        Stats {
            received: self.past.received + now.received,
            // What an exporter says was lost may be any number.
            lost: self.past.lost.saturating_add(now.lost),
            reconnects: self.past.reconnects,
            ..now
        }
    }
}
