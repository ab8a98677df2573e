//! Event fences: CUDA's interprocess events, one ready and one release event for each entry of a reader's queue.
//!
//! The exporter creates them all: what an imported event does after its creator destroyed it is undefined. They are
//! recorded on a signal stream that serves this reader alone. When the reader dies, stream and events are dropped and
//! never recorded again: a dead process's pending record stays pending for ever, and sticks who records over it.

use super::{ExporterFence, FenceError, FenceState, ReaderFence, Signals, failed};
use frameshare_cuda::{
    context::Context,
    event::Event,
    fence::ipc_event::{self, PER_PROCESS},
    stream::Stream,
};
use frameshare_protocol::{FenceKind, message::EVENT_HANDLE};
use std::sync::Arc;

/// What the exporter holds.
#[derive(Debug)]
pub struct ExporterEvents {
    // Before the events: work on the stream refers to them.
    stream: Stream,
    ready: Vec<Event>,
    released: Vec<Event>,
}

/// What the reader holds.
#[derive(Debug)]
pub struct ReaderEvents {
    ready: Vec<Event>,
    released: Vec<Event>,
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
    pub(crate) fn new(gpu: &Arc<Context>, entries: usize) -> Result<Self, Box<dyn std::error::Error + Send + Sync>> {
        let (alive, needed) = (ipc_event::alive(), 2 * entries);
        if alive + needed > PER_PROCESS {
            return Err(NoEventsLeft { alive, needed }.into());
        }
        let _current = gpu.push()?;
        let events = || (0..entries).map(|_| Event::new_shared(gpu)).collect::<frameshare_cuda::Result<Vec<_>>>();
        Ok(Self { stream: Stream::new(gpu)?, ready: events()?, released: events()? })
    }

    /// What the reader opens them by.
    pub(crate) fn handles(&self) -> frameshare_cuda::Result<Vec<u8>> {
        let events = self.ready.iter().chain(&self.released);
        Ok(events.map(Event::export).collect::<frameshare_cuda::Result<Vec<_>>>()?.concat())
    }
}

impl ReaderEvents {
    /// Opens the exporter's events; `handles` has been checked to be of the right length.
    pub(crate) fn open(gpu: &Arc<Context>, handles: &[u8]) -> frameshare_cuda::Result<Self> {
        let _current = gpu.push()?;
        let (handles, _) = handles.as_chunks::<EVENT_HANDLE>();
        let mut ready = handles.iter().map(|handle| Event::open(gpu, handle)).collect::<Result<Vec<_>, _>>()?;
        let released = ready.split_off(handles.len() / 2);
        Ok(Self { ready, released })
    }
}

/// The event of an entry, which is below the credit that both agreed on.
fn of(events: &[Event], entry: usize) -> Result<&Event, FenceError> {
    let none = frameshare_cuda::Error::Refused("an entry that there is no event for");
    events.get(entry).ok_or_else(|| failed(FenceKind::Event)(none))
}

fn poll(event: &Event) -> Result<FenceState, FenceError> {
    let ready = event.query().map_err(failed(FenceKind::Event))?.is_ready();
    Ok(if ready { FenceState::Ready } else { FenceState::Pending })
}

impl ExporterFence for ExporterEvents {
    fn kind(&self) -> FenceKind {
        FenceKind::Event
    }

    fn signal_ready(&mut self, entry: usize, _sequence: u64, signals: &mut Signals) -> Result<(), FenceError> {
        let ready = of(&self.ready, entry)?;
        self.stream.wait(signals.written(FenceKind::Event)?).map_err(failed(FenceKind::Event))?;
        ready.record(&self.stream).map_err(failed(FenceKind::Event))
    }

    fn poll_released(&mut self, entry: usize, _sequence: u64) -> Result<FenceState, FenceError> {
        poll(of(&self.released, entry)?)
    }
}

impl ReaderFence for ReaderEvents {
    fn kind(&self) -> FenceKind {
        FenceKind::Event
    }

    fn poll_ready(&self, entry: usize, _sequence: u64) -> Result<FenceState, FenceError> {
        poll(of(&self.ready, entry)?)
    }

    fn wait_ready(&self, entry: usize, _sequence: u64, stream: &Stream) -> Result<(), FenceError> {
        stream.wait(of(&self.ready, entry)?).map_err(failed(FenceKind::Event))
    }

    fn signal_released(&self, entry: usize, _sequence: u64, stream: &Stream) -> Result<(), FenceError> {
        of(&self.released, entry)?.record(stream).map_err(failed(FenceKind::Event))
    }

    fn rescue(&self, _sequence: u64) {
        // Nothing frees a stream that waits for a dead process's event: that is the price of this kind.
    }
}
