// SPDX-License-Identifier: MIT OR Apache-2.0

//! Event fences: CUDA's interprocess events, one ready and one release event for each entry of a
//! reader's queue.
//!
//! The exporter creates them all: an imported event is undefined after its creator has destroyed
//! it. They are recorded on a signal stream for this reader only. When the reader dies, stream and
//! events are dropped and never recorded again: a dead process's pending record never completes,
//! and blocks every later record.

use super::{ExporterFence, FenceError, FenceState, ReaderFence, Signals, Unblocking, failed};
use crate::{gpu::BlockableStream, sys::PerProcess};
use frameshare_cuda::{
    context::Context,
    event::Event,
    fence::ipc_event::{self, PER_PROCESS},
    stream::Stream,
};
use frameshare_protocol::{EntryIndex, FenceKind, Sequence, message::EVENT_HANDLE};
use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

/// The exporter's side.
#[derive(Debug)]
pub struct ExporterEvents {
    stream: BlockableStream,
    events: Arc<Events>,
    /// Key under which a reader of this process finds them.
    token: Option<u64>,
}

/// The reader's side.
#[derive(Debug)]
pub struct ReaderEvents {
    events: Arc<Events>,
    relay: Mutex<Relay>,
}

/// Relays an opened event to streams of other contexts: driver 580 crashes in cuStreamWaitEvent if
/// a stream of another context than the one that opened it waits for it (measured on an H200).
#[derive(Debug)]
struct Relay {
    stream: Stream,
    passed: Event,
}

/// One ready and one release event for each entry.
#[derive(Debug)]
struct Events {
    ready: Vec<Event>,
    released: Vec<Event>,
}

/// Events for readers of this process, which CUDA cannot open there: they use the exporter's own.
static LOCAL: PerProcess<Mutex<HashMap<u64, Arc<Events>>>> = PerProcess::new(Mutex::default);

fn local() -> MutexGuard<'static, HashMap<u64, Arc<Events>>> {
    LOCAL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The process has no events left for another reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "this process shares {alive} of the {PER_PROCESS} CUDA events that one can, and {needed} more are needed: use timeline fences, or fewer readers"
)]
pub struct NoEventsLeft {
    alive: usize,
    needed: usize,
}

impl ExporterEvents {
    /// Makes the events for `entries` entries.
    ///
    /// # Errors
    /// [`NoEventsLeft`], or any error that the driver returns.
    pub fn new(gpu: &Arc<Context>, entries: usize) -> Result<Self, Box<dyn std::error::Error + Send + Sync>> {
        let (alive, needed) = (ipc_event::alive(), 2 * entries);
        if alive + needed > PER_PROCESS {
            return Err(NoEventsLeft { alive, needed }.into());
        }
        Self::with(gpu, entries, Event::new_shared, None)
    }

    /// Makes events for a reader of this process.
    pub(crate) fn new_local(
        gpu: &Arc<Context>,
        entries: usize,
    ) -> Result<Self, Box<dyn std::error::Error + Send + Sync>> {
        static TOKEN: AtomicU64 = AtomicU64::new(1);
        let token = TOKEN.fetch_add(1, Ordering::Relaxed);
        let events = Self::with(gpu, entries, Event::new, Some(token))?;
        local().insert(token, events.events.clone());
        Ok(events)
    }

    fn with(
        gpu: &Arc<Context>,
        entries: usize,
        make: fn(&Arc<Context>) -> frameshare_cuda::Result<Event>,
        token: Option<u64>,
    ) -> Result<Self, Box<dyn std::error::Error + Send + Sync>> {
        let _current = gpu.push()?;
        let events = || (0..entries).map(|_| make(gpu)).collect::<frameshare_cuda::Result<Vec<_>>>();
        let events = Arc::new(Events { ready: events()?, released: events()? });
        Ok(Self { stream: BlockableStream::new(Stream::new(gpu)?), events, token })
    }

    /// The handles by which the reader opens the events.
    ///
    /// # Errors
    /// Any error that the driver returns.
    pub fn handles(&self) -> frameshare_cuda::Result<Vec<u8>> {
        let events = self.events.ready.iter().chain(&self.events.released);
        let Some(token) = self.token else {
            return Ok(events.map(Event::export).collect::<frameshare_cuda::Result<Vec<_>>>()?.concat());
        };
        let mut handles = vec![0; events.count() * EVENT_HANDLE];
        handles[..size_of::<u64>()].copy_from_slice(&token.to_le_bytes());
        Ok(handles)
    }
}

impl Drop for ExporterEvents {
    fn drop(&mut self) {
        if let Some(token) = self.token {
            local().remove(&token);
        }
    }
}

impl ReaderEvents {
    /// Opens the exporter's events. The caller checks that `handles` has the length that the
    /// entries need.
    ///
    /// # Errors
    /// Any error that the driver returns.
    pub fn open(gpu: &Arc<Context>, handles: &[u8]) -> frameshare_cuda::Result<Self> {
        let _current = gpu.push()?;
        let (handles, _) = handles.as_chunks::<EVENT_HANDLE>();
        let mut ready =
            handles.iter().map(|handle| Event::open(gpu, handle)).collect::<Result<Vec<_>, _>>()?;
        let released = ready.split_off(handles.len() / 2);
        Self::with(gpu, Arc::new(Events { ready, released }))
    }

    fn with(gpu: &Arc<Context>, events: Arc<Events>) -> frameshare_cuda::Result<Self> {
        let relay = Relay { stream: Stream::new(gpu)?, passed: Event::new(gpu)? };
        Ok(Self { events, relay: Mutex::new(relay) })
    }

    /// Finds the events of an exporter of this process; `None` if they were dropped, or are of
    /// another context, in which they could not be recorded.
    pub(crate) fn find(gpu: &Arc<Context>, handles: &[u8]) -> Option<Self> {
        let token = handles.first_chunk().map(|token| u64::from_le_bytes(*token))?;
        let events = local().get(&token)?.clone();
        let same = events.ready.first().is_some_and(|event| event.context().as_raw() == gpu.as_raw());
        same.then(|| Self::with(gpu, events).ok()).flatten()
    }
}

/// Returns the event of an entry, which is below the agreed credit.
fn of(events: &[Event], entry: EntryIndex) -> Result<&Event, FenceError> {
    let none = frameshare_cuda::Error::Refused("an entry that there is no event for");
    events.get(entry.0).ok_or_else(|| failed(FenceKind::Event)(none))
}

fn poll(event: &Event) -> Result<FenceState, FenceError> {
    let ready = event.query().map_err(failed(FenceKind::Event))?.is_ready();
    Ok(if ready { FenceState::Ready } else { FenceState::Pending })
}

impl ExporterFence for ExporterEvents {
    fn kind(&self) -> FenceKind {
        FenceKind::Event
    }

    fn signal_ready(
        &mut self,
        entry: EntryIndex,
        _sequence: Sequence,
        signals: &mut Signals,
    ) -> Result<(), FenceError> {
        let ready = of(&self.events.ready, entry)?;
        let written = signals.written(FenceKind::Event)?;
        let signal = |stream: &Stream| {
            stream.wait(written)?;
            ready.record(stream)
        };
        self.stream.queue(signal).map_err(failed(FenceKind::Event))
    }

    fn poll_released(&mut self, entry: EntryIndex, _sequence: Sequence) -> Result<FenceState, FenceError> {
        poll(of(&self.events.released, entry)?)
    }
}

impl ReaderFence for ReaderEvents {
    fn kind(&self) -> FenceKind {
        FenceKind::Event
    }

    fn poll_ready(&self, entry: EntryIndex, _sequence: Sequence) -> Result<FenceState, FenceError> {
        poll(of(&self.events.ready, entry)?)
    }

    fn is_held_back(&self, entry: EntryIndex, sequence: Sequence) -> bool {
        matches!(self.poll_ready(entry, sequence), Ok(FenceState::Pending))
    }

    fn wait_ready(&self, entry: EntryIndex, _sequence: Sequence, stream: &Stream) -> Result<(), FenceError> {
        let ready = of(&self.events.ready, entry)?;
        let wait = || {
            if stream.context().as_raw() == ready.context().as_raw() {
                return stream.wait(ready);
            }
            let relay = self.relay.lock().unwrap_or_else(PoisonError::into_inner);
            relay.stream.wait(ready)?;
            relay.passed.record(&relay.stream)?;
            stream.wait(&relay.passed)
        };
        wait().map_err(failed(FenceKind::Event))
    }

    fn signal_released(
        &self,
        entry: EntryIndex,
        _sequence: Sequence,
        stream: &Stream,
    ) -> Result<(), FenceError> {
        of(&self.events.released, entry)?.record(stream).map_err(failed(FenceKind::Event))
    }

    fn check(&self) -> Result<(), FenceError> {
        Ok(())
    }

    fn unblock(&self) -> Unblocking {
        // Nothing unblocks a stream that waits for a dead process's event: the price of this kind.
        Unblocking::NONE
    }
}
