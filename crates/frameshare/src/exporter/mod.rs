// SPDX-License-Identifier: MIT OR Apache-2.0

//! The exporter of a stream: admits readers, publishes frames to them, reclaims slots.
//!
//! The decisions are in the crate `frameshare-core`. The system calls and driver calls that they
//! need are here.
//!
//! An [`Exporter`] is used from any thread. The service thread of the process (`service`) admits
//! readers and notices their ends; it never delays the publishing thread.
//!
//! # Invariants
//!
//! 1. Every decision is made from the private `State`; values that readers write are checked
//!    against it.
//! 2. A slot is free if the state is its only holder: neither upstream nor a leased publication
//!    holds it.
//! 3. The credits of all readers + the frames of the longest backlog + 2 (3 with a kept
//!    frame, [`History`]) + the slots that upstream holds, or the downloads under way if they are
//!    more, ≤ `max_slots`, so a copy always finds a slot and a metadata area. A frame that would
//!    break this waits.
//! 4. No thread waits with the state locked, and no user code (notice handler, `keep`) runs with it
//!    locked.
//!
//! # Failure
//!
//! A reader that dies or breaks the rules loses its connection and all its leases at once. A reader
//! that holds a lossless stream back for too long, or exceeds a limit, loses its connection and its
//! untaken frames; it keeps its taken frames until it releases them. Other readers are not
//! affected. Readers keep the frames that they hold when the exporter ends.

mod config;
mod delivery;
mod error;
mod frame;
mod observe;
mod resources;
mod service;
mod slot;
mod state;
mod video;

pub use config::{Config, History, LosslessReaders, MAX_GOP_BYTES};
pub use error::{BindError, ConfigError, EventTooLong, Interrupted, UseGpuError};
pub use frame::{CannotAdopt, Frame, InvalidFrame, PublishError};
pub use frameshare_core::exporter::{
    limits::SlowReaders,
    notice::{Notice, ReaderInfo},
    statistics::{DmaBufStats, ReaderStats, Stats},
    unit::Unit,
};
pub use slot::{AcquireError, Draft, Purpose, Slot};
pub use video::{NewFrame, VideoExporter, VideoExporterError};

use crate::{
    Interrupt, Wait,
    endpoint::Endpoint,
    event::Event,
    foreign::{guarded, resuming},
    memory::{
        dma_buf::{self, DmaBuf},
        select::Lacking,
    },
    sys::{BindFailure, Listener, Timeout},
};
use delivery::backpressure;
use frameshare_core::exporter::{
    slot::{NoSlot, Purpose as Place, Vacancy},
    state::State as Decisions,
};
use frameshare_cuda::{context::Context, stream::Stream};
use frameshare_protocol::{
    MemoryKind, Sequence,
    message::{Format, Reason},
};
use resources::{Resources, is_exhausted};
use service::Service;
use state::{Shared, State};
use std::{any::Any, os::fd::BorrowedFd, sync::Arc, time::Duration};

/// Maximum time that the end of an exporter waits for its notice handler.
const FLUSH: Duration = Duration::from_millis(200);

/// Maximum time that a writer far ahead of its GPU waits for a written slot before another one is
/// allocated.
const GPU_WAIT: Duration = Duration::from_millis(100);

/// The exporter of one stream. Clones share it; dropping the last one closes the stream.
#[derive(Clone, Debug)]
pub struct Exporter(Arc<Running>);

#[derive(Debug)]
struct Running {
    shared: Arc<Shared>,
    interrupt: Interrupt,
    service: Service,
}

impl Exporter {
    /// Opens the stream: from now on readers can connect. The handler gets notices in order, one
    /// at a time, on a thread of its own. A handler that blocks misses later notices, and delays
    /// nothing else. It is called until the exporter is dropped, and possibly for a moment longer
    /// for earlier events.
    ///
    /// # Errors
    /// [`BindError`] for an invalid configuration, for a stream that another exporter shares, and
    /// for a failure of the system or the GPU.
    pub fn bind(
        endpoint: &Endpoint,
        config: Config,
        on_notice: impl Fn(Notice) + Send + Sync + 'static,
    ) -> Result<Self, BindError> {
        config.check(endpoint)?;
        let failed = |source| BindError::Io { endpoint: endpoint.clone(), source };
        let interrupt = config.interrupt.clone().map_or_else(Interrupt::new, Ok).map_err(failed)?;
        endpoint.prepare_folder().map_err(failed)?;
        let listener = Listener::bind(endpoint.path(), config.socket_mode).map_err(|error| match error {
            BindFailure::Io(source) => failed(source),
            BindFailure::InUse(holder) => BindError::InUse { endpoint: endpoint.clone(), holder },
        })?;
        let shared =
            Shared::new(config, endpoint.label(), Box::new(on_notice)).map_err(|error| {
                match error.downcast::<Lacking>() {
                    Ok(lacking) => BindError::Config(ConfigError::Lacking(*lacking)),
                    Err(source) => BindError::Setup { endpoint: endpoint.clone(), source },
                }
            })?;
        let shared = Arc::new(shared);
        let service = Service::start(&shared, endpoint.clone(), listener)
            .map_err(|source| BindError::NoThread { endpoint: endpoint.clone(), source })?;
        Ok(Self(Arc::new(Running { shared, interrupt, service })))
    }

    /// Sets the format of the following frames. Readers that join later get it too.
    pub fn set_format(&self, format: Format) {
        self.call(|state| state.set_format(format));
    }

    /// Sends an in-band event, delivered before the next frame.
    ///
    /// # Errors
    /// [`EventTooLong`] above 64 MiB; nothing is sent.
    pub fn send_event(&self, event: Event) -> Result<(), EventTooLong> {
        if event.payload.len() as u64 > frameshare_protocol::limits::MAX_PAYLOAD {
            return Err(EventTooLong(event.payload.len()));
        }
        self.call(|state| state.send_event(event.kind, event.sticky, event.payload));
        Ok(())
    }

    /// Marks the end of the stream. Readers that join later get it at once, until the stream
    /// continues with a format, sticky event or frame.
    pub fn end_of_stream(&self) {
        self.call(|state| state.end_of_stream());
    }

    /// Closes the stream for all readers, with an error of [`Reason::Failed`] and this text.
    /// Nothing can be published afterwards; readers keep the frames that they hold.
    pub fn fail(&self, text: &str) {
        self.call(|state| state.close(Reason::Failed, text));
    }

    /// Clears the end of the stream before new data is available: joining readers wait for it.
    pub fn go_on(&self) {
        self.call(|state| state.go_on());
    }

    /// Returns a free slot of at least `size` bytes, which only the caller may write until it is
    /// published. Work that writes it need not wait for anything: all former accesses have ended.
    ///
    /// If all slots are in use, or there is no memory for a further one, it waits for one of the
    /// present slots, unless `wait` is [`Wait::No`]. For a copy, `latest` readers lose untaken
    /// frames, lossless ones are waited for as in a publication, and the wait ends after twice
    /// [`Config::reader_timeout`] in any case: a slot that is not free then never will be.
    ///
    /// Dropping the slot unpublished frees it at once. If GPU work on it is under way, pass it to
    /// [`Exporter::drop_after`] instead.
    ///
    /// # Errors
    /// [`AcquireError`]. [`AcquireError::Exhausted`] and [`AcquireError::Memory`] may pass when
    /// readers release frames, or the GPU has written some.
    pub fn acquire(&self, size: u64, purpose: Purpose, wait: Wait) -> Result<Slot, AcquireError> {
        self.slot(|| self.acquire_slot(size, purpose, wait))
    }

    fn acquire_slot(&self, size: u64, purpose: Purpose, wait: Wait) -> Result<Slot, AcquireError> {
        let timeout = Timeout::from(wait);
        if purpose == Purpose::Reuse {
            let max_slots = self.0.shared.lock().config().max_slots;
            return self.wait_for_slot(size, AcquireError::Exhausted { max_slots }, timeout);
        }
        let place = if purpose == Purpose::Pool { Place::Pool } else { Place::Copy };
        loop {
            let why = match self.obtain(|state| state.place(size, place)) {
                Err(why @ (AcquireError::Exhausted { .. } | AcquireError::Memory(_))) => why,
                result => return result,
            };
            match purpose {
                _ if wait == Wait::No => return Err(why),
                Purpose::Pool => {
                    let (shared, interrupt) = (&self.0.shared, &self.0.interrupt);
                    if !backpressure::wait_for_pool_slot(shared, interrupt, timeout, size, &why)? {
                        return Err(why);
                    }
                }
                _ => return self.wait_for_slot(size, why, timeout),
            }
        }
    }

    /// Returns the slot that `place` finds, or allocates one.
    fn obtain(
        &self,
        place: impl Fn(&mut Decisions<Resources>) -> Result<Vacancy<Resources>, NoSlot<Resources>>,
    ) -> Result<Slot, AcquireError> {
        loop {
            let unallocated = match self.locked(|state| place(state))? {
                Vacancy::Free(slot) => return Ok(slot),
                Vacancy::Unallocated(slot) => slot,
            };
            let memory = match unallocated.allocator.allocate(unallocated.slot_size) {
                Ok(memory) => memory,
                // A reader that leaves messages unreceived pays for their files and memory.
                Err(error)
                    if error.system().is_some_and(is_exhausted)
                        && self.locked(|state| state.evict_heaviest()) =>
                {
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            let event = unallocated.allocator.event();
            // Meanwhile another thread may have made the last slot, or begun a generation. The
            // memory is then freed, which may take long, with nothing locked.
            let slot = self.locked(|state| {
                let slot = state.add(&unallocated, memory.clone())?;
                event.into_iter().for_each(|event| state.keep_event(event));
                Some(slot)
            });
            if let Some(slot) = slot {
                return Ok(slot);
            }
        }
    }

    /// Reuses an existing slot, after an attempt to acquire one for a copy failed. Nothing is
    /// allocated, unless the attempt failed because the writer is far ahead of its GPU: if the GPU
    /// writes no slot within 0.1 s, another one is allocated within the limit.
    fn wait_for_slot(
        &self,
        size: u64,
        mut why: AcquireError,
        timeout: Timeout,
    ) -> Result<Slot, AcquireError> {
        let (shared, interrupt) = (&self.0.shared, &self.0.interrupt);
        let wait = |timeout| backpressure::wait_for_slot(shared, interrupt, timeout, size);
        if self.locked(|state| state.is_far_ahead()) {
            if let Some(slot) = wait(timeout.min(Timeout::after(Some(GPU_WAIT))))? {
                return Ok(slot);
            }
            // The GPU may wait for this thread, or for another process.
            match self.obtain(|state| state.place_within_limit(size, Place::Copy)) {
                Err(error @ (AcquireError::Exhausted { .. } | AcquireError::Memory(_))) => why = error,
                result => return result,
            }
        }
        wait(timeout)?.ok_or(why)
    }

    /// Returns a slot for GPU memory that another component allocated and owns, to be published in
    /// place: the allocation's existing slot or a new one, and the offset of `pointer` from the
    /// slot's start in bytes.
    ///
    /// `owner` is dropped when no reader imports the allocation any more, after
    /// [`Exporter::retire_adopted`] or the end of the stream; at once if the allocation has a slot
    /// already. The caller ensures that the memory is not freed before, and not written while a
    /// publication of it is leased (see [`Frame::keep`]).
    ///
    /// All readers must be able to open legacy handles: the exporter's own process cannot.
    ///
    /// # Errors
    /// [`AcquireError`] if the exporter has no GPU, the memory cannot be shared, or all slots are
    /// used. `owner` is dropped then.
    pub fn adopt(&self, pointer: u64, owner: Box<dyn Any + Send>) -> Result<(Slot, u64), AcquireError> {
        self.slot(|| self.locked(|state| state.adopt_cuda(pointer, guarded(owner))))
    }

    /// Returns whether every present reader can read adopted memory; the error names one that
    /// cannot, and the reason. A reader that joins later may be unable to: then publishing fails
    /// with [`PublishError::NotForAll`].
    ///
    /// # Errors
    /// [`CannotAdopt`] with the first reader that cannot.
    pub fn can_adopt(&self) -> Result<(), CannotAdopt> {
        can_adopt(&self.0.shared.lock(), MemoryKind::Legacy)
    }

    /// Returns a slot for a dma-buf that another component allocated and owns, to be published in
    /// place: its existing slot, found by its inode, or a new one. The exporter keeps a descriptor
    /// of its own, which readers get a duplicate of. With the 65th dma-buf of one size those before
    /// are retired, as by [`Exporter::retire_adopted`]: adopt a dma-buf for each frame instead of
    /// keeping its slot.
    ///
    /// A publication waits for no device: readers wait for the fences that drivers attach to what
    /// they write, no longer than their `fence_timeout`. The user data of the publication
    /// ([`Frame::keep`]) is dropped when its last lease has ended and devices have finished the
    /// readers' work on the dma-buf, or after [`Config::fence_timeout`]. Until then the owner must
    /// not write it.
    ///
    /// Readers of the exporter's user and of [`Config::trusted_uids`] get dma-bufs, since every
    /// reader can write them. If another reader is present, publishing fails with
    /// [`PublishError::NotForAll`]; a copy in a slot of host memory is for all.
    ///
    /// # Errors
    /// [`AcquireError::Memory`] if the descriptor is not a dma-buf, or cannot be mapped;
    /// [`AcquireError::Closed`].
    pub fn adopt_dma_buf(&self, dma_buf: BorrowedFd<'_>) -> Result<Slot, AcquireError> {
        let id = dma_buf::identity(dma_buf)?;
        self.slot(|| {
            if let Some(slot) = self.locked(|state| state.known_dma_buf(id))? {
                return Ok(slot);
            }
            // Drivers may take long to map it: with the state unlocked.
            let memory = Arc::new(DmaBuf::share(dma_buf)?);
            self.locked(|state| state.adopt_dma_buf(id, memory))
        })
    }

    /// Returns whether every present reader can read dma-bufs; the error names one that cannot, and
    /// the reason. A reader that joins later may be unable to: then publishing fails with
    /// [`PublishError::NotForAll`].
    ///
    /// # Errors
    /// [`CannotAdopt`] with the first reader that cannot.
    pub fn can_adopt_dma_bufs(&self) -> Result<(), CannotAdopt> {
        let mut state = self.0.shared.lock();
        state.note_dma_bufs();
        can_adopt(&state, MemoryKind::DmaBuf)
    }

    /// Admits only readers that get dma-bufs from now on, since the CPU cannot copy the frames; or
    /// all readers again, as at first. Present readers that get none are disconnected; they keep
    /// the frames that they hold. The others can read all dma-bufs: publishing them does not fail
    /// with [`PublishError::NotForAll`].
    ///
    /// Refused are readers of users that are neither the exporter's nor in
    /// [`Config::trusted_uids`], with [`Reason::PermissionDenied`], and those that do not take
    /// dma-bufs or cannot map one, with [`Reason::NothingInCommon`].
    pub fn require_dma_bufs(&self, yes: bool) {
        self.call(|state| state.require_dma_bufs(yes));
    }

    /// Retires adopted memory: readers are asked to drop their imports, and each owner is dropped
    /// when the last reader has done so or is dead. Slots that the caller still holds cannot be
    /// published any more ([`InvalidFrame::Retired`]).
    pub fn retire_adopted(&self) {
        self.call(|state| state.retire_adopted());
    }

    /// Places the following frames in host memory although the exporter has a GPU, or on the GPU
    /// again. It takes effect with the next slot that is acquired.
    pub fn use_host_memory(&self, yes: bool) {
        self.call(|state| state.use_host_memory(yes));
    }

    /// Changes the treatment of lossless readers without credit
    /// ([`Config::slow_readers`](Config)). Frames in backlogs stay there.
    pub fn set_slow_readers(&self, slow_readers: SlowReaders) {
        self.call(|state| state.set_slow_readers(slow_readers));
    }

    /// Changes what is kept for readers that join later ([`Config::history`](Config)).
    ///
    /// # Errors
    /// [`ConfigError::History`].
    pub fn set_history(&self, history: History) -> Result<(), ConfigError> {
        history.check()?;
        self.call(|state| state.set_history(history));
        Ok(())
    }

    /// Uses a GPU from now on for frames in slots that are acquired after this, and informs
    /// readers. To be called by the publishing thread, once, on an exporter that was opened without
    /// a GPU.
    ///
    /// # Errors
    /// [`UseGpuError`]; the exporter goes on without the GPU.
    pub fn use_gpu(&self, gpu: &Arc<Context>) -> Result<(), UseGpuError> {
        resuming(|| service::use_gpu(&self.0.shared, gpu))
    }

    /// Drops `what`, such as the source of an asynchronous copy, when the work queued on `stream`
    /// so far is done, in whatever context that is: in the next publication of a frame, or on the
    /// service thread. It polls within some 0.1 s, and every 2 ms if the exporter has no GPU, or if
    /// publications have followed such polls, as those of a producer that waits for them do.
    ///
    /// # Errors
    /// Any error that the driver returns, also if the stream is being captured into a CUDA graph.
    /// `what` is dropped then.
    pub fn drop_after(&self, stream: &Stream, what: Box<dyn Any + Send>) -> frameshare_cuda::Result<()> {
        self.call(|state| state.drop_after(stream, guarded(what)))
    }

    /// Publishes a frame to every reader, and returns its sequence number.
    ///
    /// Waits for lossless readers without credit, each no longer than
    /// [`Config::reader_timeout`]. All or nothing: after an error no reader has the frame, and it
    /// can be published again.
    ///
    /// # Errors
    /// [`PublishError`]; the frame's slot and [`Frame::keep`] are kept until the work that writes
    /// it is done. [`PublishError::Gpu`] also if `written` is a stream that is being captured, or
    /// unknown while a capture is under way.
    pub fn publish(&self, frame: Frame<'_>, wait: Wait) -> Result<Sequence, PublishError> {
        let mut frame = frame;
        if let Some(keep) = frame.keep.take() {
            frame.keep = Some(guarded(keep));
        }
        match resuming(|| delivery::publish(&self.0.shared, &mut frame, wait.into(), &self.0.interrupt)) {
            Ok(sequence) => Ok(sequence),
            Err(why) => Err(self.publish_error(*why)),
        }
    }

    /// Adds the reason why the stream is closed to the error of a publication.
    #[cold]
    fn publish_error(&self, error: PublishError) -> PublishError {
        match (error, self.0.shared.lock().failure()) {
            (PublishError::Closed, Some(why)) => PublishError::Failed(why.into()),
            (error, _) => error,
        }
    }

    /// Waits until lossless readers have taken and released all frames; false if they have not in
    /// time.
    ///
    /// # Errors
    /// [`Interrupted`].
    pub fn drain(&self, wait: Wait) -> Result<bool, Interrupted> {
        resuming(|| backpressure::drain(&self.0.shared, &self.0.interrupt, wait.into()))
    }

    /// Waits for the first reader; false if there is none in time.
    ///
    /// # Errors
    /// [`Interrupted`].
    pub fn wait_for_reader(&self, wait: Wait) -> Result<bool, Interrupted> {
        resuming(|| backpressure::wait_for_reader(&self.0.shared, &self.0.interrupt, wait.into()))
    }

    /// A handle that ends all waits of this exporter's calls: [`Config::interrupt`], or one of its
    /// own.
    pub fn interrupt(&self) -> Interrupt {
        self.0.interrupt.clone()
    }

    /// Counts a copy of a frame that the caller made because the frame was not in a slot, or could
    /// not be shared there; returns the number of those for this reason. [`Exporter::stats`] and
    /// observers read the numbers. A reason is a name of at most 32 of `a` to `z`, `0` to `9` and
    /// `-`, such as `foreign-memory`; copies for others, and for more than 31, are counted as
    /// `other`.
    pub fn count_copy(&self, reason: &'static str) -> u64 {
        self.call(|state| state.count_copy(reason))
    }

    /// Reclaims released frames now, and drops their `keep`.
    pub fn reclaim(&self) {
        self.call(|state| {
            state.reclaim();
        });
    }

    /// Disconnects the reader of this number ([`ReaderInfo::id`]), which gets no further frame and
    /// reads [`Reason::Disconnected`] and the text. It keeps the frames that it has taken until it
    /// releases them. Returns false if no present reader has this number.
    pub fn disconnect(&self, id: u64, why: &str) -> bool {
        self.call(|state| state.disconnect(id, why))
    }

    /// Disconnects the reader of this number, which reads [`Reason::TooSlow`] and the text, and
    /// takes back the frames that it holds: for frames whose owner needs their memory. Their
    /// content may change while the reader reads them. One that has left, or was disconnected, and
    /// still holds frames ([`Stats::draining`]) loses these. Returns false if no reader of this
    /// number is present or holds frames.
    pub fn revoke(&self, id: u64, why: &str) -> bool {
        self.call(|state| state.revoke(id, why))
    }

    /// Number of present readers.
    pub fn reader_count(&self) -> usize {
        self.0.shared.lock().readers().present().len()
    }

    /// Statistics so far.
    pub fn stats(&self) -> Stats {
        self.call(|state| {
            state.reclaim();
            state.stats()
        })
    }

    /// Runs a call of the application on the locked state.
    fn call<T>(&self, f: impl FnOnce(&mut State) -> T) -> T {
        resuming(|| self.locked(f))
    }

    /// Runs a call of the application that returns a slot.
    fn slot<T>(&self, get: impl FnOnce() -> Result<T, AcquireError>) -> Result<T, AcquireError> {
        resuming(get).map_err(|error| match (error, self.0.shared.lock().failure()) {
            (AcquireError::Closed, Some(why)) => AcquireError::Failed(why.into()),
            (error, _) => error,
        })
    }

    /// Runs `f` on the locked state, then the deferred notices and drops with it unlocked.
    fn locked<T>(&self, f: impl FnOnce(&mut State) -> T) -> T {
        self.0.shared.with(f)
    }
}

/// Returns whether every present reader can read adopted memory of this kind.
fn can_adopt(state: &State, kind: MemoryKind) -> Result<(), CannotAdopt> {
    state.cannot_adopt(kind).map_or(Ok(()), |(reader, why)| Err(CannotAdopt { reader, why }))
}

impl Drop for Running {
    fn drop(&mut self) {
        self.shared.with(|state| state.close(Reason::Stopped, "the exporter has stopped"));
        self.service.stop(&self.shared);
        self.shared.handler.flush(FLUSH);
    }
}

impl Slot {
    /// Returns whether the slot belongs to this exporter.
    pub fn belongs_to(&self, exporter: &Exporter) -> bool {
        self.0.exporter == exporter.0.shared.id
    }
}
