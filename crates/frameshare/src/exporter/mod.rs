//! The exporter of a stream: admits readers, publishes frames to them, takes slots back.
//!
//! An [`Exporter`] is used from any thread, but frames are published from one at a time. A thread of its own
//! (`service`) admits readers and notices that they leave; it never holds the publishing thread up.
//!
//! # Invariants
//!
//! 1. Everything is decided from the private `State`; what readers write is compared with it and never
//!    believed (see [`queue`](crate::queue)).
//! 2. A slot is free if nobody but the state refers to it: not upstream, not a publication with a lease left.
//! 3. The credits of all readers + 2 ≤ `max_slots`, besides what upstream holds, so a copy always finds a slot.
//! 4. Nobody waits with the state locked, and no user code (observer, `keep`) runs with it locked.
//!
//! # Failure
//!
//! A reader that is gone or breaks the rules loses its connection and all its leases at once. One that holds a lossless
//! stream back for too long, or more than it may, loses its connection and what it has not taken yet; what it has taken is
//! its own until it gives it back. The others notice nothing. Readers go on reading what they hold when the exporter
//! ends.

mod admission;
mod config;
mod departure;
mod download;
mod generation;
mod generations;
mod holds;
mod in_flight;
mod late_gpu;
mod life;
mod link;
mod notice;
mod observer;
mod others;
mod outbox;
mod pending;
mod publish;
mod refusals;

mod service;
mod shared;
mod slot;
mod state;
mod stats;
mod wait;

pub use config::{Config, LosslessReaders};
pub use notice::{Notice, ReaderInfo};
pub use publish::{Frame, PublishError};
pub use slot::{AcquireError, Purpose, Slot};
pub use stats::{ReaderStats, Stats};

use crate::{
    Interrupt,
    endpoint::Endpoint,
    event::Event,
    memory::choice::Lacking,
    sys::{BindFailure, Listener},
};
use frameshare_cuda::{context::Context, stream::Stream};
use frameshare_protocol::message::{Format, Reason};
use generation::Place;
use outbox::is_exhausted;
use service::Service;
use shared::Shared;
use state::State;
use std::{
    any::Any,
    io,
    sync::{Arc, MutexGuard},
    time::Duration,
};

/// How long the end of an exporter waits for its observer.
const FLUSH: Duration = Duration::from_millis(200);

/// The exporter of one stream. Clones are one and the same; the last one to go ends the stream in good order.
#[derive(Clone, Debug)]
pub struct Exporter(Arc<Running>);

#[derive(Debug)]
struct Running {
    shared: Arc<Shared>,
    service: Service,
}

/// Why a stream could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// The name is in use.
    #[error("the stream {endpoint} is in use, held by {holder}: choose another name, or stop that process")]
    InUse {
        /// The stream's place.
        endpoint: Endpoint,
        /// Who uses it, in words.
        holder: String,
    },
    /// The socket could not be made.
    #[error("cannot open {endpoint}: {source}{}", hint(.source))]
    Io {
        /// The stream's place.
        endpoint: Endpoint,
        /// What the system said.
        source: io::Error,
    },
    /// The thread that serves readers could not be started.
    #[error(
        "cannot serve readers of {endpoint}: {source} (raise the limit of tasks: ulimit -u, or the cgroup's)"
    )]
    NoThread {
        /// The stream's place.
        endpoint: Endpoint,
        /// What the system said.
        source: io::Error,
    },
    /// What the stream lives on could not be had: shared pages, descriptors, streams of the GPU.
    #[error("cannot set up {endpoint}: {source}")]
    Setup {
        /// The stream's place.
        endpoint: Endpoint,
        /// What the system or the CUDA driver said.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The configuration makes no sense, or asks for what this machine lacks.
    #[error("{0}")]
    Config(String),
}

/// What to do about an error of the system, where it tells.
fn hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::NotFound => " (create the folder, or set XDG_RUNTIME_DIR to one that exists)",
        io::ErrorKind::ReadOnlyFilesystem => " (choose a folder that can be written)",
        // Where the text is not the kernel's own it says what to do.
        io::ErrorKind::PermissionDenied if error.raw_os_error().is_some() => {
            " (choose a folder that this user can write, or set XDG_RUNTIME_DIR to one)"
        }
        _ if matches!(error.raw_os_error(), Some(libc::EMFILE)) => {
            " (raise the limit of open files: ulimit -n)"
        }
        _ => "",
    }
}

/// A wait that an [`Interrupt`] ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("interrupted")]
pub struct Interrupted;

/// An event whose payload is longer than the protocol allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an event of {0} bytes is longer than the {max} that one may have", max = frameshare_protocol::limits::MAX_PAYLOAD)]
pub struct EventTooLong(pub usize);

impl Exporter {
    /// Opens the stream: from now on readers can connect. The observer gets notices in their order, one at a time, in a
    /// thread of its own. One that blocks misses later notices, and holds up nothing else. It is called until the exporter
    /// has gone, and may be a moment longer for what happened before.
    pub fn bind(
        endpoint: &Endpoint,
        config: Config,
        observer: impl Fn(Notice) + Send + Sync + 'static,
    ) -> Result<Self, BindError> {
        config.check(endpoint).map_err(BindError::Config)?;
        let failed = |source| BindError::Io { endpoint: endpoint.clone(), source };
        endpoint.prepare_folder().map_err(failed)?;
        let listener = Listener::bind(endpoint.path(), config.socket_mode).map_err(|error| match error {
            BindFailure::Io(source) => failed(source),
            BindFailure::InUse(holder) => BindError::InUse { endpoint: endpoint.clone(), holder },
        })?;
        let shared =
            Shared::new(config, Box::new(observer)).map_err(|error| match error.downcast::<Lacking>() {
                Ok(lacking) => BindError::Config(lacking.to_string()),
                Err(source) => BindError::Setup { endpoint: endpoint.clone(), source },
            })?;
        let shared = Arc::new(shared);
        let service = Service::start(shared.clone(), endpoint.clone(), listener)
            .map_err(|source| BindError::NoThread { endpoint: endpoint.clone(), source })?;
        Ok(Self(Arc::new(Running { shared, service })))
    }

    /// Sets the format of the frames to come. Readers that join later get it too.
    pub fn set_format(&self, format: Format) {
        self.locked(|state| state.set_format(format));
    }

    /// Sends something that has its place before the next frame.
    pub fn send_event(&self, event: Event) -> Result<(), EventTooLong> {
        if event.payload.len() as u64 > frameshare_protocol::limits::MAX_PAYLOAD {
            return Err(EventTooLong(event.payload.len()));
        }
        self.locked(|state| state.send_event(event));
        Ok(())
    }

    /// Says that the stream has ended here. Readers that join later are told so at once, until it goes on: with the next
    /// format, sticky event or frame, if one comes.
    pub fn end_of_stream(&self) {
        self.locked(State::end_of_stream);
    }

    /// Closes the stream for all readers, with an error of [`Reason::Failed`] and this text. Nothing can be published
    /// afterwards; frames that readers hold stay theirs.
    pub fn fail(&self, text: &str) {
        self.locked(|state| state.close(Reason::Failed, text));
    }

    /// Says that a stream that had ended goes on, though nothing of what comes is there yet: readers that join wait for it.
    pub fn go_on(&self) {
        self.locked(State::go_on);
    }

    /// A free slot of at least `size` bytes, which the caller alone may write until it is published.
    pub fn acquire(&self, size: u64, purpose: Purpose) -> Result<Slot, AcquireError> {
        loop {
            let unallocated = match self.locked(|state| state.place(size, purpose))? {
                Place::Free(slot) => return Ok(slot),
                Place::Unallocated(slot) => slot,
            };
            let memory = match unallocated.allocate() {
                Ok(memory) => memory,
                // A reader that leaves its messages unread pays for the files and memory that they take.
                Err(error) if is_exhausted(&*error.cause) && self.locked(State::evict_heaviest) => continue,
                Err(error) => return Err(error.into()),
            };
            let id = self.0.shared.id;
            // Meanwhile another thread may have made the last slot, or begun a generation: then the memory is freed, which
            // may take long, when nothing is locked any more.
            if let Some(slot) = self.locked(|state| state.add(&unallocated, memory.clone(), id)) {
                return Ok(slot);
            }
        }
    }

    /// Makes do with the slots there are, after an attempt to acquire one of `size` bytes for a copy found no memory for one
    /// more, or all in use: readers of the latest frames lose those that they have not taken, and lossless ones are waited
    /// for as when a frame is published. Nothing is allocated. `why` is the error only where there is no slot to wait for,
    /// or none came back.
    pub fn wait_for_slot(
        &self,
        size: u64,
        why: AcquireError,
        interrupt: &Interrupt,
    ) -> Result<Slot, AcquireError> {
        wait::wait_for_slot(&self.0.shared, size, why, interrupt)
    }

    /// A slot for GPU memory that somebody else allocated and goes on to own, to be published where it lies: the one
    /// that the allocation has already, or a new one; and how far behind the slot's start `pointer` lies, in bytes.
    ///
    /// `owner` is dropped when no reader imports the allocation any more, after [`Exporter::retire_adopted`] or the
    /// end of the stream; at once if the allocation has a slot already. The caller sees to it that the memory is
    /// not freed before, and not written while a publication of it is leased (see [`Frame::keep`]).
    ///
    /// All readers must be able to open legacy handles: the exporter's own process cannot.
    pub fn adopt(&self, pointer: u64, owner: Box<dyn Any + Send>) -> Result<(Slot, u64), AcquireError> {
        self.locked(|state| state.adopt(pointer, owner, self.0.shared.id))
    }

    /// Whether every reader of now can read adopted memory; if not, who cannot and why. A reader that joins later may
    /// be unable to: then publishing fails with [`PublishError::NotForAll`].
    pub fn can_adopt(&self) -> Result<(), String> {
        self.0.shared.lock().cannot_adopt().map_or(Ok(()), Err)
    }

    /// Gives adopted memory back: readers are told to close their imports, and owners are told by dropping what they
    /// gave when the last has done so or is gone.
    pub fn retire_adopted(&self) {
        self.locked(State::retire_adopted);
    }

    /// Places the frames to come in host memory although the exporter has a GPU, or in the GPU's again. It takes effect
    /// with the next slot that is acquired.
    pub fn use_host_memory(&self, yes: bool) {
        self.locked(|state| state.use_host_memory(yes));
    }

    /// Uses a GPU from now on, which readers hear of, for frames that come in slots acquired after this. To be called by the
    /// thread that publishes, and once, on an exporter that was opened without one.
    pub fn use_gpu(&self, gpu: &Arc<Context>) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        late_gpu::use_gpu(&self.0.shared, gpu)
    }

    /// Drops `what` when the work put on `stream` so far is done, in whatever context and without anybody asking: the
    /// source of an asynchronous copy, say.
    pub fn drop_after(&self, stream: &Stream, what: Box<dyn Any + Send>) -> frameshare_cuda::Result<()> {
        self.locked(|state| state.drop_after(stream, what))
    }

    /// Publishes a frame to every reader, and returns its sequence number.
    ///
    /// Waits for lossless readers without credit, each no longer than `reader_timeout`. All or nothing: when it
    /// was interrupted, nobody has the frame, and it can be published again.
    pub fn publish(&self, frame: Frame<'_>, interrupt: &Interrupt) -> Result<u64, PublishError> {
        publish::publish(&self.0.shared, frame, interrupt)
    }

    /// Waits until lossless readers have taken and released everything; false if time was over before.
    pub fn drain(&self, timeout: Duration, interrupt: &Interrupt) -> Result<bool, Interrupted> {
        wait::drain(&self.0.shared, timeout, interrupt)
    }

    /// Waits until there is a reader.
    pub fn wait_for_reader(&self, interrupt: &Interrupt) -> Result<(), Interrupted> {
        wait::wait_for_reader(&self.0.shared, interrupt)
    }

    /// Takes back now what readers have released, and drops its `keep`.
    pub fn reclaim(&self) {
        self.locked(|state| {
            state.reclaim();
        });
    }

    /// How many readers there are.
    pub fn reader_count(&self) -> usize {
        self.0.shared.lock().links.len()
    }

    /// What has happened so far.
    pub fn stats(&self) -> Stats {
        self.locked(|state| {
            state.reclaim();
            state.stats()
        })
    }

    /// Runs `f` on the locked state; what it leaves to be told or dropped is told or dropped afterwards.
    fn locked<T>(&self, f: impl FnOnce(&mut State) -> T) -> T {
        self.0.shared.with(f)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.shared.with(|state| state.close(Reason::Stopped, "the exporter has stopped"));
        self.service.stop(&self.shared);
        self.shared.observer.flush(FLUSH);
    }
}

type Guard<'a> = MutexGuard<'a, State>;
