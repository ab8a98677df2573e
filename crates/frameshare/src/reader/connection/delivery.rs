// SPDX-License-Identifier: MIT OR Apache-2.0

//! Delivery: the frames and messages of one connection, in order.

use super::{
    areas::Areas,
    control::{self, Received},
    exporter::RemoteExporter,
    gpu::Gpu,
    kept::Kept,
    order::{MAX_WAITING, MessageQueue, Ordered},
    setup::Shared,
    sleep::Sleep,
    unwritten::{Unwritten, Written},
};
use crate::{
    Endpoint, Interrupt,
    event::Event,
    foreign::report,
    memory::frees_imports_first,
    queue::Sleeper,
    reader::{
        config::Config,
        error::{ConnectError, ProtocolViolation, ReadError},
        gpu_wait::Recheck,
        item::Item,
        lease::{Channel, Frame, Imported, KeyUnitRequests, Lease, SlotImporter},
        origin::Origin,
        parts::{Announcement, End, Ending, Progress},
        stats::Stats,
    },
    sys::{Peer, PollSet, Socket, Timeout, UntrustedFd, monotonic_ns},
};
use frameshare_cuda::device::Uuid;
use frameshare_protocol::{
    Descriptor, MemoryKind, Sequence,
    limits::MAX_BACKLOG,
    message::{Reason, ToExporter, ToReader, Welcome},
};
use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
    sync::Arc,
    time::Duration,
};

/// Maximum number of consecutive frames that the exporter revokes at the moment of their claim.
const MAX_REVOKED: u32 = 1000;

/// One connection to an exporter.
#[derive(Debug)]
pub(in crate::reader) struct Connection {
    channel: Arc<Channel>,
    exporter: RemoteExporter,
    ending: Ending,
    /// The first frame that was not published before the reader joined.
    live: Sequence,
    credit: u32,
    areas: Areas,
    gpu: Gpu,
    /// The next frame, taken, if a device still writes it.
    unwritten: Option<Unwritten>,
    /// The kind of memory that the exporter announced with the last delivered format.
    memory: MemoryKind,
    slots: SlotImporter,
    /// The format of the next frames, and the exporter's user.
    origin: Arc<Origin>,
    /// Number of ordered messages received so far.
    messages: u64,
    waiting: MessageQueue,
    /// Limit of each message, and of the waiting ones together.
    max_metadata_bytes: u64,
    /// Oversized metadata of the next frame, which arrived as a message, and its sequence number.
    oversized: Option<(Sequence, Vec<u8>)>,
    kept: Kept,
    progress: Progress,
    /// Number of packets received so far, the `Welcome` included.
    received: u64,
    sleep: Sleep,
    /// Readable when a wake-up has arrived, or the exporter's process has ended.
    ready: PollSet,
}

impl Connection {
    /// Maps the pages of the `Welcome`, and opens its fence.
    ///
    /// # Errors
    /// [`ConnectError::Violation`] for an invalid `Welcome`; otherwise the error of the GPU.
    pub fn new(
        socket: Socket,
        peer: Peer,
        welcome: Welcome,
        fds: Vec<UntrustedFd>,
        endpoint: &Endpoint,
        config: &Config,
    ) -> Result<Self, ConnectError> {
        if welcome.credit < config.max_held {
            report!(
                warn,
                "{endpoint}: this reader may hold {} frames instead of {}: raise the exporter's max_held_limit, \
                 or max_slots if other readers hold the rest",
                welcome.credit,
                config.max_held
            );
        }
        let is_local = peer.is_this_process(&welcome.nonce);
        let Shared { consumer, life, metadata, wake, word, timeline } = Shared::open(&welcome, fds)?;
        let channel = Arc::new(Channel::new(welcome.session, consumer, wake, socket, Some(life)));
        let mut gpu = Gpu::new(channel.clone(), config, &welcome, is_local);
        gpu.join(&welcome, timeline, peer.gone.as_ref())?;
        let ready = || -> io::Result<PollSet> {
            let ready = PollSet::new()?;
            ready.add(channel.wake())?;
            // A forked child of the exporter can keep its sockets open.
            peer.gone.as_ref().map_or(Ok(()), |gone| ready.add(gone))?;
            Ok(ready)
        };
        let ready = ready().map_err(|source| ConnectError::Io { endpoint: endpoint.clone(), source })?;
        Ok(Self {
            origin: Arc::new(Origin::without_format(peer.is_own())),
            slots: SlotImporter::new(channel.clone(), is_local, config, config.accepts_dma_bufs(peer.uid)),
            exporter: RemoteExporter::new(peer),
            ending: Ending::default(),
            live: welcome.live,
            credit: welcome.credit,
            areas: Areas::new(metadata, welcome.areas, config.max_metadata_bytes),
            gpu,
            unwritten: None,
            memory: MemoryKind::Host,
            messages: 0,
            waiting: MessageQueue::new(config.max_metadata_bytes),
            max_metadata_bytes: config.max_metadata_bytes,
            oversized: None,
            kept: Kept::new(config.max_gop_bytes, welcome.session),
            progress: Progress::new(welcome.next),
            received: 1,
            sleep: Sleep::new(channel.clone(), word),
            ready,
            channel,
        })
    }

    /// Returns the next item in order, if it has arrived. An error comes after all items before it.
    ///
    /// # Errors
    /// The end of the connection, or a violation of the protocol.
    pub fn next(&mut self) -> Result<Option<Item>, ReadError> {
        if let Some(error) = self.channel.failure() {
            return Err(ReadError::Fence(error.clone()));
        }
        if self.ending.is_reported() {
            return self.end();
        }
        if let Some(unwritten) = self.unwritten.take() {
            let written = unwritten.poll().map_err(ReadError::Io)?;
            return self.when_written(written);
        }
        let mut revoked = 0;
        loop {
            if let Some(unit) = self.kept.next(&mut self.progress)? {
                return Ok(Some(Item::Frame(unit.with_origin(&self.origin))));
            }
            if revoked > MAX_REVOKED {
                return Err(ProtocolViolation::Revocations { count: revoked }.into());
            }
            // Loaded before the claims: a message up to here then comes after all frames that
            // precede it.
            let head = self.channel.consumer().head();
            let oldest = self.channel.consumer().oldest();
            let Some(taken) = oldest.transpose().map_err(ProtocolViolation::Descriptor)? else {
                // No untaken frame is below the head: a message in its place is due.
                match self.apply_due(head) {
                    Some(Some(item)) => return Ok(Some(item)),
                    Some(None) => continue,
                    None => {
                        self.gpu.check_deadline(None, &mut self.ending)?;
                        return self.end();
                    }
                }
            };
            let sequence = taken.descriptor.sequence;
            let expected = self.progress.expected();
            if sequence < expected {
                return Err(ProtocolViolation::FrameOrder { sequence, after: expected.previous() }.into());
            }
            // Messages come in order: received ones precede those still under way.
            match self.apply_due(sequence) {
                Some(Some(item)) => return Ok(Some(item)),
                Some(None) => continue,
                None => {}
            }
            if self.messages < taken.descriptor.messages {
                let before = self.messages;
                self.receive()?;
                let missing = taken.descriptor.messages.saturating_sub(self.messages);
                if self.messages > before {
                    continue;
                }
                if missing > MAX_BACKLOG as u64 {
                    return Err(ProtocolViolation::MissingMessages { sequence, missing }.into());
                }
                // The exporter had no room for the missing messages, and sends them now.
                self.gpu.check_deadline(None, &mut self.ending)?;
                return self.end();
            }
            let place = self.slots.place(taken.descriptor.slot);
            // Memory that was not imported before the exporter's end cannot be imported.
            let is_in_reach = self.ending.is_connected() || place.is_imported();
            let may_be_taken = place.is_unreadable()
                || is_in_reach
                    && (!place.is_fenced()
                        || self.gpu.may_deliver(taken.entry, sequence, &mut self.ending)?);
            if !may_be_taken {
                return self.end();
            }
            if !self.channel.consumer().claim(taken.entry, sequence) {
                revoked += 1;
                continue;
            }
            // From here on the frame is released in every case.
            let lease = Lease::new(self.channel.clone(), taken.entry, sequence, place.is_fenced());
            if place.is_unreadable() {
                // It is released at once, and counted as lost: the next frames are elsewhere.
                drop(lease);
                continue;
            }
            let lost_before = self.progress.deliver(sequence);
            let (import, is_in_dma_buf) = (place.import(&taken.descriptor)?.clone(), place.is_in_dma_buf());
            let frame = self.frame(taken.descriptor, lost_before, import, lease)?;
            if is_in_dma_buf {
                return self.when_written(Written::of(frame).map_err(ReadError::Io)?);
            }
            return Ok(Some(Item::Frame(frame)));
        }
    }

    /// Returns a taken frame when no device writes it any more: the kernel signals the fences also
    /// after the exporter's end. A device that takes too long ends the connection.
    fn when_written(&mut self, written: Written) -> Result<Option<Item>, ReadError> {
        let unwritten = match written {
            Written::Yes(frame) => return Ok(Some(Item::Frame(frame))),
            Written::No(unwritten) => unwritten,
        };
        let (sequence, limit) = (unwritten.sequence(), self.gpu.fence_timeout());
        if unwritten.waited() > limit {
            self.ending.end(End::Stalled { sequence, limit });
            return self.end();
        }
        self.unwritten = Some(unwritten);
        Ok(None)
    }

    /// Applies the first waiting message if its place is at `sequence` or before: `None` if it is
    /// not, `Some(None)` if it yields no item.
    fn apply_due(&mut self, sequence: Sequence) -> Option<Option<Item>> {
        let (before, message) = self.waiting.pop_before(sequence)?;
        Some(match message {
            Ordered::Format(memory, format) => {
                self.memory = memory;
                self.origin = Arc::new(Origin::of(&format, self.origin.is_own_user));
                Some(Item::Format(format))
            }
            Ordered::Event(event) => Some(Item::Event(event)),
            Ordered::EndOfStream => {
                self.progress.end(before);
                Some(Item::EndOfStream)
            }
            Ordered::Retire(generation) => {
                self.slots.retire(generation);
                None
            }
            Ordered::Metadata(bytes) => {
                self.oversized = Some((before, bytes));
                None
            }
            Ordered::Kept(units) => {
                self.kept.begin(units);
                None
            }
            Ordered::Skipped => {
                self.progress.skip(before);
                None
            }
        })
    }

    /// Makes a frame of a publication that is taken.
    fn frame(
        &mut self,
        descriptor: Descriptor,
        lost_before: u64,
        import: Arc<Imported>,
        lease: Lease,
    ) -> Result<Frame, ReadError> {
        let sequence = descriptor.sequence;
        let in_area = self.areas.load(&descriptor)?;
        let metadata = match self.oversized.take() {
            Some((of, bytes)) if of == sequence => bytes,
            _ => in_area,
        };
        let is_kept = sequence < self.live;
        if !is_kept {
            // Both times are of CLOCK_MONOTONIC; the exporter's is any number.
            self.channel.consumer().count_age(monotonic_ns().saturating_sub(descriptor.published));
        }
        let frame = Frame::new(descriptor, lost_before, is_kept, metadata, import, lease);
        Ok(frame.with_origin(&self.origin))
    }

    /// Returns the end of the connection, if it has ended and nothing else is left to deliver.
    fn end(&mut self) -> Result<Option<Item>, ReadError> {
        let Some(end) = self.ending.ended().cloned() else { return Ok(None) };
        let torn = self.gpu.wait().map_or(0, |wait| wait.torn());
        // After the end is reported nothing is delivered: undelivered frames never will be.
        if self.ending.report() {
            self.progress.end(self.channel.consumer().head());
        }
        if let Some(wait) = self.gpu.wait().filter(|wait| torn > 0 && wait.needs_unblocking()) {
            wait.unblock(self.exporter.take_gone(), end.is_closed());
        }
        Err(end.to_error(torn, self.progress.undelivered()))
    }

    /// Receives messages up to the limits.
    ///
    /// # Errors
    /// [`ReadError::Violation`], [`ReadError::TooMuchMetadata`], the error of an import, or of the
    /// system call.
    pub fn receive(&mut self) -> Result<(), ReadError> {
        // Due messages have been applied before.
        if self.waiting.is_full() {
            return Err(ProtocolViolation::EarlyMessages.into());
        }
        if self.sleep.is_violated() {
            return Err(ProtocolViolation::DescriptorOverWake.into());
        }
        // Checked before the last messages are received.
        let is_gone = self.sleep.is_closed() || self.exporter.has_exited();
        // Bounds one call, against an exporter that never stops sending.
        for _ in 0..MAX_WAITING {
            if !self.ending.is_connected() || self.waiting.is_full() {
                break;
            }
            match control::receive(self.channel.socket())? {
                Received::Nothing if is_gone => self.ending.end(End::HungUp),
                Received::Nothing => break,
                Received::HungUp => self.ending.end(End::HungUp),
                Received::Message(message, fd) => match self.handle(message, fd) {
                    // Handles of some kinds are invalid without the exporter.
                    Err(ReadError::Memory(error))
                        if frees_imports_first(error.kind)
                            && self.exporter.is_exiting(self.channel.socket()) =>
                    {
                        self.ending.end(End::HungUp);
                    }
                    handled => handled?,
                },
            }
        }
        Ok(())
    }

    /// Handles a message on its arrival: at once, or in its place among the frames.
    fn handle(&mut self, message: ToReader, fd: Option<UntrustedFd>) -> Result<(), ReadError> {
        self.received += 1;
        self.messages += u64::from(message.is_ordered());
        match message {
            ToReader::Gpu { gpu, fence, events } => {
                self.gpu.begin(Uuid(gpu), fence, &events, fd, self.exporter.gone())?;
            }
            ToReader::Generation { generation, memory, slot_size, adopted } => {
                let new = Announcement { generation, memory, slot_size, adopted };
                self.slots.add(new, fd.as_ref())?;
            }
            ToReader::Slot { slot, handle } => {
                self.slots.import(slot, &handle, fd.as_ref())?;
            }
            // Many generations are retired while a reader is paused: a retirement waits only for
            // untaken frames. Held frames keep their imports.
            ToReader::Retire { before, generation } => {
                if self.channel.consumer().has_published(before) {
                    self.waiting.push(before, Ordered::Retire(generation));
                } else {
                    self.slots.retire(generation);
                }
            }
            ToReader::RetireSlot { slot } => self.slots.retire_slot(slot)?,
            ToReader::Format { before, memory, format } => {
                self.waiting.push(before, Ordered::Format(memory, Arc::new(format)));
            }
            ToReader::Event { before, kind, sticky, payload } => {
                let payload = control::read_payload(payload, fd, self.max_metadata_bytes)?;
                self.waiting.push(before, Ordered::Event(Event { kind, sticky, payload }));
            }
            ToReader::Metadata { sequence, payload } => {
                let payload = control::read_payload(payload, fd, self.max_metadata_bytes)?;
                self.waiting.push(sequence, Ordered::Metadata(payload));
            }
            ToReader::LargeAreas { count } => self.areas.add_large(fd.as_ref(), count)?,
            ToReader::KeptUnits { before, count, size } => {
                let units = self.kept.open(fd, before, count, size)?;
                self.waiting.push(before, Ordered::Kept(units));
            }
            ToReader::Skipped { before } => self.waiting.push(before, Ordered::Skipped),
            ToReader::EndOfStream { before } => self.waiting.push(before, Ordered::EndOfStream),
            ToReader::Goodbye { reason, text } => self.ending.end(End::Closed(reason, text)),
            ToReader::Welcome(_) | ToReader::Refused { .. } => {
                return Err(ProtocolViolation::RepeatedAnswer.into());
            }
            ToReader::Snapshot { .. } | ToReader::Disconnected { .. } => {
                return Err(ProtocolViolation::UnexpectedMessage.into());
            }
        }
        Ok(())
    }

    /// Tells the exporter that frames of the present format are copied for their layout.
    pub fn report_layout_copies(&self) {
        self.channel.send(&ToExporter::CopiesForLayout);
    }

    /// Returns a handle for requests for key units.
    pub fn key_unit_requests(&self) -> KeyUnitRequests {
        KeyUnitRequests::new(&self.channel)
    }

    /// The condition to poll while the reader sleeps.
    pub fn recheck(&self) -> Recheck {
        if self.unwritten.is_some() { Recheck::ReadyFence } else { self.gpu.recheck() }
    }

    /// Sets the sleeping flag for a sleep on the object that `sleeper` names, or on the socket.
    pub fn announce_sleep(&mut self, sleeper: Sleeper) {
        self.sleep.announce(sleeper);
    }

    /// Clears the sleeping flag.
    pub fn end_sleep(&self) {
        self.sleep.end();
    }

    /// Drains the wake-up socket.
    pub fn drain_wake(&mut self) {
        self.sleep.drain();
    }

    /// Receives messages if some have arrived, or the exporter has ended: one system call if not.
    ///
    /// # Errors
    /// As [`Connection::receive`].
    pub fn receive_arrived(&mut self) -> Result<(), ReadError> {
        let now = Timeout::after(Some(Duration::ZERO));
        let has_messages = self.sleep.wait(None, self.exporter.gone(), now);
        if has_messages.map_err(ReadError::Io)? { self.receive() } else { Ok(()) }
    }

    /// Sleeps until a wake-up or a message, and receives messages.
    ///
    /// # Errors
    /// As [`Connection::receive`].
    pub fn sleep(&mut self, interrupt: &Interrupt, timeout: Timeout) -> Result<(), ReadError> {
        if self.has_unreceived() {
            return self.receive_announced();
        }
        let has_messages = self.sleep.wait(Some(interrupt), self.exporter.gone(), timeout);
        if has_messages.map_err(ReadError::Io)? { self.receive() } else { self.receive_counted() }
    }

    /// Receives messages that the exporter has counted: no system call if there are none.
    ///
    /// # Errors
    /// As [`Connection::receive`].
    pub fn receive_counted(&mut self) -> Result<(), ReadError> {
        if self.has_unreceived() { self.receive_announced() } else { Ok(()) }
    }

    #[cfg(test)]
    pub(super) fn sleep_state(&mut self) -> &mut Sleep {
        &mut self.sleep
    }

    /// Returns whether the exporter has sent messages that are not received yet, if this reader
    /// learns of messages by their number.
    fn has_unreceived(&self) -> bool {
        // A packet can be received before the exporter has counted it.
        self.sleep.uses_futex() && self.channel.consumer().packets_sent() > self.received
    }

    /// Receives messages that the exporter says it has sent. If there are none, its number is
    /// wrong, and would end every sleep.
    fn receive_announced(&mut self) -> Result<(), ReadError> {
        let before = self.received;
        self.receive()?;
        if self.received == before {
            self.sleep.use_socket();
        }
        Ok(())
    }

    /// Readable when a wake-up has arrived, or the exporter's process has ended.
    pub fn ready_fd(&self) -> BorrowedFd<'_> {
        self.ready.as_fd()
    }

    /// Returns whether frames of the last delivered format come in GPU memory.
    pub fn is_on_gpu(&self) -> bool {
        self.gpu.is_used() && self.memory != MemoryKind::Host
    }

    /// The GPU that the exporter has frames on.
    pub fn exporter_gpu(&self) -> Option<Uuid> {
        self.gpu.exporter_gpu()
    }

    /// Maximum number of frames that the reader may hold.
    pub fn credit(&self) -> u32 {
        self.credit
    }

    /// Number of frames that the reader holds.
    pub fn held(&self) -> u32 {
        self.channel.held()
    }

    /// As [`RemoteExporter::is_own_or_root`].
    pub fn exporter_is_own_or_root(&self) -> bool {
        self.exporter.is_own_or_root()
    }

    /// Statistics of this connection.
    pub fn stats(&self) -> Stats {
        Stats {
            session: self.channel.session(),
            exporter_pid: self.exporter.pid(),
            credit: self.credit,
            held: self.held(),
            received: self.progress.received(),
            lost: self.progress.lost(),
            futex_sleeps: self.sleep.futex_sleeps(),
            missed_wakes: self.sleep.missed(),
            gpu_wait_limited: self.gpu.limited_frames(),
            ..Stats::default()
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // Held frames keep the socket open, so the exporter needs the close message.
        self.channel.close(Reason::Stopped, "the reader has stopped");
    }
}
