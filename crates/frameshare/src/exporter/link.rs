// SPDX-License-Identifier: MIT OR Apache-2.0

//! One admitted reader, from the exporter's side: its leases, messages, imports and fences.

use super::{
    admission::{Fence, Way},
    departure::Ending,
    life::Life,
    notice::ReaderInfo,
    outbox::{Attachment, Outbox, Packet, Unsent},
    slot::Slot,
    stats::ReaderStats,
};
use crate::{
    fence::{ExporterFence, FenceError, FenceFault, FenceState, Signals},
    memory::{Allocator, select::Selected},
    queue::{Producer, Revocation},
    sys::{Peer, Socket, Wake, Words},
};
use frameshare_protocol::{
    Descriptor, FenceKind, MemoryKind, Policy,
    message::{GpuUuid, Hello, Reason, ToReader},
    page::ClaimState,
};
use std::{
    cell::LazyCell,
    collections::{BTreeMap, BTreeSet},
    io, mem,
    os::fd::OwnedFd,
    sync::Arc,
    time::{Duration, Instant},
};

/// Maximum time that a connection stays open for waiting messages after its link has ended.
const DRAINING: Duration = Duration::from_secs(5);

/// A lease, as the exporter's state records it.
#[derive(Clone, Copy, Debug)]
struct Lease {
    sequence: u64,
    area: usize,
    /// The frame is in GPU memory: its lease ends after the reader's release fence.
    is_fenced: bool,
    /// Time when it was first seen released with its fence pending.
    released: Option<Instant>,
}

/// Whether a reader's GPU work on frames has so far ended in the order of the frames.
///
/// Polling an event takes a driver call. While frames are released in order, frames behind a
/// pending one need no call. Timeline values are read individually, in any order.
#[derive(Debug)]
struct InOrder {
    so_far: bool,
    /// Time of the last poll of frames behind a pending one.
    looked: Instant,
}

impl InOrder {
    /// Interval at which frames behind a pending one are polled nevertheless: an application with
    /// several streams may release frames in any order. Until an out-of-order release is observed,
    /// a finished frame counts as pending for up to this time.
    const DOUBT: Duration = Duration::from_millis(1);

    fn new(fence: FenceKind) -> Self {
        Self { so_far: fence == FenceKind::Event, looked: Instant::now() }
    }

    /// Returns whether to poll frames behind a pending one this time.
    fn is_doubted(&mut self) -> bool {
        if !self.so_far {
            return true;
        }
        let now = Instant::now();
        let doubted = now.duration_since(self.looked) >= Self::DOUBT;
        if doubted {
            self.looked = now;
        }
        doubted
    }
}

/// A generation that was introduced to a reader.
#[derive(Debug, Default)]
struct Known {
    slots: BTreeSet<u32>,
    /// The reader was asked to drop its imports.
    retired: bool,
}

/// Destination of the next publication of a link.
pub(super) enum Vacancy {
    /// This entry.
    Entry(usize),
    /// None: the reader has used all its credit.
    Full,
}

/// An admitted reader.
#[derive(Debug)]
pub(super) struct Link {
    pub info: ReaderInfo,
    pub socket: Arc<Socket>,
    pub wake: Arc<Wake>,
    pub gone: Option<Arc<OwnedFd>>,
    /// Set if `gone` is not.
    life: Option<Life>,
    producer: Producer<Words>,
    /// The first frame that is neither published to the reader nor lost.
    next: u64,
    fence: Box<dyn ExporterFence>,
    /// The reader's process, and its Hello.
    pub peer: Peer,
    pub hello: Hello,
    /// The reader gets frames in host memory although the stream's frames are on a GPU.
    pub downloads: bool,
    /// The reason why the reader cannot read adopted memory, if it cannot.
    pub cannot_adopt: Option<String>,
    fence_choice: Selected<FenceKind>,
    entries: Vec<Option<Lease>>,
    in_order: InOrder,
    /// Buffer for sequence numbers and entries of released frames.
    released: Vec<(u64, usize)>,
    /// Number of ordered messages sent so far, waiting ones included.
    messages: u64,
    outbox: Outbox,
    /// End of the time that the connection stays open for waiting messages after the link has
    /// ended.
    drains_until: Option<Instant>,
    /// Generations whose imports the reader has not dropped.
    known: BTreeMap<u32, Known>,
    /// Entry of the frame that is being published.
    offered: Option<usize>,
    sent: u64,
    lost: u64,
    /// Start of the exporter's wait for this reader, and whether a notice was sent.
    pub blocked: Option<(Instant, bool)>,
    /// The reader has sent its close message.
    pub said_goodbye: bool,
    /// The connection has ended; only the process is still watched.
    pub hung_up: bool,
    /// The process has ended, and all its imports with it.
    pub process_is_gone: bool,
}

/// The resources and choices by which a reader gets its frames.
#[derive(Debug)]
pub(super) struct Delivery {
    pub producer: Producer<Words>,
    /// The first frame that the reader may get.
    pub next: u64,
    pub wake: Wake,
    /// Set if no pidfd watches the process.
    pub life: Option<Life>,
    pub fence: Box<dyn ExporterFence>,
    pub way: Way,
    pub hello: Hello,
}

impl Link {
    pub fn new(info: ReaderInfo, socket: Socket, peer: Peer, delivery: Delivery) -> Self {
        let Delivery { producer, next, wake, life, fence, way, hello } = delivery;
        let Way { fence: fence_choice, downloads, cannot_adopt, .. } = way;
        let mut peer = peer;
        let socket = Arc::new(socket);
        Self {
            entries: vec![None; info.credit as usize],
            released: Vec::with_capacity(info.credit as usize),
            info,
            outbox: Outbox::new(socket.clone(), peer.uid),
            socket,
            wake: Arc::new(wake),
            gone: peer.gone.take().map(Arc::new),
            peer,
            hello,
            life,
            producer,
            next,
            in_order: InOrder::new(fence.kind()),
            fence,
            downloads,
            cannot_adopt,
            fence_choice,
            messages: 0,
            drains_until: None,
            known: BTreeMap::new(),
            offered: None,
            sent: 0,
            lost: 0,
            blocked: None,
            said_goodbye: false,
            hung_up: false,
            process_is_gone: false,
        }
    }

    pub fn is_lossless(&self) -> bool {
        self.info.policy == Policy::Lossless
    }

    /// Sends a message, or queues it until the reader receives earlier ones.
    pub fn send(&mut self, message: &ToReader) -> Result<(), Ending> {
        self.send_packet(&Packet::new(message).map_err(cannot_send)?)
    }

    /// Sends a message that other readers get too.
    pub fn send_packet(&mut self, packet: &Packet) -> Result<(), Ending> {
        self.enqueue(packet.clone())?;
        if self.producer.reader_sleeps() {
            self.wake.ring();
        }
        Ok(())
    }

    fn enqueue(&mut self, packet: Packet) -> Result<(), Ending> {
        self.messages += u64::from(packet.is_ordered());
        self.outbox.send(packet).map_err(unsent)
    }

    /// Sends waiting messages after the reader has received others, and wakes the reader if it
    /// sleeps.
    pub fn catch_up(&mut self) -> Result<(), Ending> {
        let before = self.outbox.len();
        self.outbox.flush().map_err(unsent)?;
        if self.outbox.len() < before && self.producer.reader_sleeps() {
            self.wake.ring();
        }
        Ok(())
    }

    /// Returns whether messages wait for the reader to receive earlier ones.
    pub fn has_backlog(&self) -> bool {
        !self.outbox.is_empty()
    }

    /// The waiting messages, and memory that sent messages referred to.
    pub fn outbox(&mut self) -> &mut Outbox {
        &mut self.outbox
    }

    /// Returns whether the socket becomes writable when the next message can be sent.
    pub fn awaits_room(&self) -> bool {
        self.outbox.awaits_room()
    }

    /// Returns the time of the next check of this link, whatever its descriptors report.
    pub fn look_at(&self) -> Option<Instant> {
        let life = self.life.as_ref().filter(|_| !self.process_is_gone).map(Life::next);
        let drained = self.drains_until.filter(|_| self.is_draining());
        self.outbox.retry_at().into_iter().chain(drained).chain(life).min()
    }

    /// Returns whether the process has ended although the connection is open, by its record lock.
    pub fn has_died(&mut self) -> bool {
        !self.process_is_gone && self.life.as_mut().is_some_and(Life::is_over)
    }

    /// Sends the close message (`Goodbye`). Messages that wait before it are still sent, for
    /// [`DRAINING`].
    pub fn say_goodbye(&mut self, ending: &Ending) {
        let message = ToReader::Goodbye { reason: ending.reason, text: ending.text.clone() };
        if let Ok(packet) = Packet::new(&message) {
            let sent = self.outbox.send(packet);
            let waits = !matches!(sent, Err(Unsent::HungUp(_))) && self.has_backlog();
            self.drains_until = waits.then(|| Instant::now() + DRAINING);
        }
        self.wake.ring();
    }

    /// Returns whether the connection is still needed for waiting messages after the link has
    /// ended.
    pub fn is_draining(&self) -> bool {
        let in_time = self.drains_until.is_some_and(|until| Instant::now() < until);
        in_time && self.has_backlog() && !self.hung_up && !self.said_goodbye
    }

    /// Asks the reader to drop its imports of a generation, if it has any.
    pub fn retire(&mut self, before: u64, generation: u32) -> Result<(), Ending> {
        let known = self.known.get_mut(&generation);
        if known.is_none_or(|known| std::mem::replace(&mut known.retired, true)) {
            return Ok(());
        }
        self.send(&ToReader::Retire { before, generation })
    }

    /// Records the end of the connection. If the kernel cannot report the process's end, this
    /// stands for it.
    pub fn hung_up(&mut self, process_is_gone: bool) {
        self.hung_up = true;
        self.process_is_gone |= process_is_gone || self.gone.is_none();
    }

    /// Gives the reader a fence: the exporter uses this GPU from now on.
    pub fn use_gpu(&mut self, gpu: GpuUuid, choice: Selected<FenceKind>, made: Fence) -> Result<(), Ending> {
        let Fence { fence, events, timeline_fd } = made;
        let message = ToReader::Gpu { gpu, fence: choice.kind, events };
        self.in_order = InOrder::new(choice.kind);
        (self.fence, self.fence_choice) = (fence, choice);
        self.send_with(&message, timeline_fd.map(|fd| Attachment::File(Arc::new(fd))))
    }

    /// Returns whether the reader imports the GPU memory of the stream.
    pub fn is_direct(&self) -> bool {
        self.fence.kind() != FenceKind::None && !self.downloads
    }

    /// Returns the kind of memory in which this reader gets frames of a stream whose frames are in
    /// memory of `kind`.
    pub fn memory_of_frames(&self, kind: MemoryKind) -> MemoryKind {
        if self.downloads { MemoryKind::Host } else { kind }
    }

    /// Returns whether the reader's GPU may still work on a frame that is released or held.
    pub fn is_fenced(&self) -> bool {
        self.entries.iter().flatten().any(|lease| lease.is_fenced)
    }

    /// Returns whether the reader has opened events of this exporter.
    pub fn has_events(&self) -> bool {
        self.fence.kind() == FenceKind::Event
    }

    /// Generations whose imports the reader has not dropped.
    pub fn knows(&self) -> impl Iterator<Item = u32> {
        self.known.keys().copied()
    }

    /// Records that the reader has dropped its imports of a generation. Returns false if it had
    /// none, or was not asked to drop them; after its close message a reader may drop all.
    pub fn forget_generation(&mut self, generation: u32) -> bool {
        let asked = self.said_goodbye;
        let known = self.known.get(&generation);
        known.is_some_and(|known| asked || known.retired) && self.known.remove(&generation).is_some()
    }

    /// Introduces a slot to the reader unless the reader knows it. `pool` is the descriptor of the
    /// whole generation, if it has one.
    pub fn introduce(
        &mut self,
        slot: &Slot,
        kind: MemoryKind,
        adopted: bool,
        pool: Option<&Arc<dyn Allocator>>,
    ) -> Result<(), Ending> {
        let (generation, index) = (slot.0.generation, slot.0.index);
        if self.known.get(&generation).is_some_and(|known| known.slots.contains(&index)) {
            return Ok(());
        }
        if !self.known.contains_key(&generation) {
            let slot_size = slot.size();
            let pool = pool.filter(|pool| pool.fd().is_some()).cloned().map(Attachment::Pool);
            self.send_with(&ToReader::Generation { generation, memory: kind, slot_size, adopted }, pool)?;
        }
        let handle = slot.0.memory.handle();
        let message = ToReader::Slot { generation, slot: index, handle: handle.bytes.to_vec() };
        let memory = handle.fd.map(|_| Attachment::Slot(slot.0.memory.clone()));
        self.send_with(&message, memory)?;
        self.known.entry(generation).or_default().slots.insert(index);
        Ok(())
    }

    /// Sends a message that hands over memory, with the descriptor that belongs to it.
    fn send_with(&mut self, message: &ToReader, attachment: Option<Attachment>) -> Result<(), Ending> {
        let packet = Packet::with(message, attachment.into_iter().collect()).map_err(cannot_send)?;
        self.enqueue(packet.kept())
    }

    /// Leases a frame in memory of this kind to the reader, in a vacant entry, and signals the
    /// ready fence if the frame needs one. [`Link::publish`] follows.
    pub fn offer(
        &mut self,
        entry: usize,
        area: usize,
        sequence: u64,
        kind: MemoryKind,
        signals: &mut Signals,
    ) -> Result<(), Ending> {
        // Host frames are complete when they are published, and unused when they are released.
        let is_fenced = kind != MemoryKind::Host;
        if is_fenced {
            self.fence.signal_ready(entry, sequence, signals).map_err(fence_failed)?;
        }
        self.entries[entry] = Some(Lease { sequence, area, is_fenced, released: None });
        self.offered = Some(entry);
        // The reader had room: a later wait for it starts anew.
        self.blocked = None;
        Ok(())
    }

    /// Publishes the offered frame, if there is one. Returns true if the reader needs a wake-up.
    pub fn publish(&mut self, descriptor: &Descriptor) -> bool {
        let Some(entry) = self.offered.take() else { return false };
        self.sent += 1;
        self.lost += descriptor.sequence - self.next;
        self.next = descriptor.sequence + 1;
        self.producer.publish(entry, &Descriptor { messages: self.messages, ..descriptor.clone() })
    }

    /// Returns whether the reader may still get a frame: it joined before the frame, and has not
    /// lost it.
    pub fn may_get(&self, sequence: u64) -> bool {
        sequence >= self.next
    }

    /// Counts the frames before `next` that the reader has not got as lost. Returns true if the
    /// reader needs a wake-up: messages behind these frames, such as the end of the stream, may now
    /// be delivered.
    pub fn lose_before(&mut self, next: u64) -> bool {
        if next <= self.next {
            return false;
        }
        self.lost += next - self.next;
        self.next = next;
        self.producer.skip(next - 1);
        self.producer.reader_sleeps()
    }

    /// Finds leases that the reader has ended, and appends their areas to `ended`. Returns true if
    /// a release fence is still pending; one that is pending for longer than `timeout` is an error.
    /// Frames behind a pending event are not polled in every call.
    pub fn collect_released(&mut self, ended: &mut Vec<usize>, timeout: Duration) -> Result<bool, Ending> {
        let mut released = mem::take(&mut self.released);
        released.clear();
        for (index, lease) in self.entries.iter().enumerate() {
            let Some(Lease { sequence, .. }) = *lease else { continue };
            if self.producer.state(index, sequence).map_err(violation)? == ClaimState::Released {
                released.push((sequence, index));
            }
        }
        if self.in_order.so_far {
            released.sort_unstable();
        }
        let pending = self.end_released(&released, ended, timeout);
        self.released = released;
        pending
    }

    /// Ends the released leases whose fences are ready. Returns true if some are not.
    fn end_released(
        &mut self,
        released: &[(u64, usize)],
        ended: &mut Vec<usize>,
        timeout: Duration,
    ) -> Result<bool, Ending> {
        let now: LazyCell<Instant> = LazyCell::new(Instant::now);
        let mut oldest = None;
        for &lease in released {
            let Some(area) = self.end_if_ready(lease, &now, timeout)? else {
                if oldest.is_none() && !self.in_order.is_doubted() {
                    return Ok(true);
                }
                oldest.get_or_insert(lease);
                continue;
            };
            ended.push(area);
            // The oldest fence may have completed after its poll and before this one.
            if let Some((sequence, index)) = oldest.filter(|_| self.in_order.so_far) {
                let state = self.fence.poll_released(index, sequence).map_err(fence_failed)?;
                self.in_order.so_far = state == FenceState::Ready;
            }
        }
        Ok(oldest.is_some())
    }

    /// Ends the lease of a released frame and returns its area, unless the fence is still pending,
    /// for at most `timeout`.
    fn end_if_ready(
        &mut self,
        (sequence, index): (u64, usize),
        now: &LazyCell<Instant>,
        timeout: Duration,
    ) -> Result<Option<usize>, Ending> {
        let state = match self.entries[index] {
            Some(Lease { is_fenced: false, .. }) => FenceState::Ready,
            _ => self.fence.poll_released(index, sequence).map_err(fence_failed)?,
        };
        let entry = &mut self.entries[index];
        if state == FenceState::Ready {
            return Ok(entry.take().map(|lease| lease.area));
        }
        let since = entry.as_mut().map_or(**now, |lease| *lease.released.get_or_insert(**now));
        if now.duration_since(since) > timeout {
            let text =
                format!("its GPU work on frame {sequence} did not end within fence-timeout ({timeout:?})");
            return Err(Ending::new(Reason::Failed, text));
        }
        Ok(None)
    }

    /// Returns whether a publication would have to wait.
    pub fn is_full(&self) -> bool {
        self.has_backlog() || self.entries.iter().all(Option::is_some)
    }

    /// Returns whether no lease is left and no message waits.
    pub fn is_idle(&self) -> bool {
        !self.has_backlog() && self.holds_nothing()
    }

    /// Finds an entry for the next publication. A `latest` reader without a vacant one loses its
    /// oldest untaken frame.
    pub fn vacate(&mut self, ended: &mut Vec<usize>) -> Result<Vacancy, Ending> {
        if self.has_backlog() {
            return Ok(Vacancy::Full);
        }
        if let Some(entry) = self.entries.iter().position(Option::is_none) {
            return Ok(Vacancy::Entry(entry));
        }
        Ok(self.revoke_oldest(ended, |_| true)?.map_or(Vacancy::Full, Vacancy::Entry))
    }

    /// Revokes the oldest untaken frame among those in certain areas, and returns its entry.
    pub fn revoke_oldest(
        &mut self,
        ended: &mut Vec<usize>,
        may: impl Fn(usize) -> bool,
    ) -> Result<Option<usize>, Ending> {
        let leases = self.entries.iter().enumerate().filter_map(|(index, lease)| Some((index, (*lease)?)));
        let mut leases: Vec<(usize, Lease)> = leases.filter(|(_, lease)| may(lease.area)).collect();
        leases.sort_unstable_by_key(|(_, lease)| lease.sequence);
        for (index, lease) in leases {
            if self.producer.revoke(index, lease.sequence).map_err(violation)? == Revocation::Revoked {
                self.lost += 1;
                ended.push(lease.area);
                self.entries[index] = None;
                return Ok(Some(index));
            }
        }
        Ok(None)
    }

    /// The areas of all leases.
    pub fn areas(&self) -> impl Iterator<Item = usize> {
        self.entries.iter().flatten().map(|lease| lease.area)
    }

    /// Revokes all untaken frames, and collects released ones that it meets.
    pub fn revoke_untaken(&mut self, ended: &mut Vec<usize>) -> Result<(), Ending> {
        for (index, entry) in self.entries.iter_mut().enumerate() {
            let Some(Lease { sequence, area, .. }) = *entry else { continue };
            if self.producer.revoke(index, sequence).map_err(violation)? == Revocation::Revoked {
                self.lost += 1;
                ended.push(area);
                *entry = None;
            }
        }
        self.collect_released(ended, Duration::MAX).map(|_| ())
    }

    /// Returns whether no lease is left.
    pub fn holds_nothing(&self) -> bool {
        self.entries.iter().all(Option::is_none)
    }

    /// Takes all leases away and returns their areas.
    pub fn take_leases(&mut self) -> Vec<usize> {
        self.entries.iter_mut().filter_map(Option::take).map(|lease| lease.area).collect()
    }

    /// Sets the waiting flag: the reader sends a wake-up to the returned socket when it ends its
    /// next lease.
    pub fn announce_wait(&self) -> Arc<Wake> {
        self.producer.announce_wait();
        self.wake.clone()
    }

    pub fn end_wait(&self) {
        self.producer.end_wait();
    }

    /// Returns the time that the exporter has waited for this reader.
    pub fn blocked_for(&mut self, now: Instant) -> Duration {
        now.duration_since(self.blocked.get_or_insert((now, false)).0)
    }

    pub fn stats(&self, next: u64) -> ReaderStats {
        let leases = self.entries.iter().enumerate().filter_map(|(index, lease)| Some((index, (*lease)?)));
        let (mut held, mut queued, mut oldest) = (0, 0, next);
        for (index, lease) in leases {
            match self.producer.state(index, lease.sequence) {
                Ok(ClaimState::Published) => {
                    queued += 1;
                    oldest = oldest.min(lease.sequence);
                }
                Ok(ClaimState::Taken) => held += 1,
                _ => {}
            }
        }
        ReaderStats {
            info: self.info.clone(),
            held,
            queued,
            sent: self.sent,
            lost: self.lost,
            fence: self.fence_choice.clone(),
            lag: next - oldest,
        }
    }
}

fn fence_failed(error: FenceError) -> Ending {
    let reason = match error.cause {
        FenceFault::Violation { .. } => Reason::Violation,
        FenceFault::Driver(_) | FenceFault::WentBack { .. } | FenceFault::NoGpu => Reason::Failed,
    };
    Ending::new(reason, error.to_string())
}

fn cannot_send(error: io::Error) -> Ending {
    Ending::new(Reason::Failed, format!("cannot send: {error}"))
}

fn unsent(unsent: Unsent) -> Ending {
    match unsent {
        Unsent::TooMuch(what) => Ending::new(Reason::LimitExceeded, format!("it has left {what} unread")),
        Unsent::HungUp(error) => Ending::new(Reason::Stopped, format!("it hung up ({error})")),
    }
}

fn violation(violation: crate::queue::Violation) -> Ending {
    Ending::new(Reason::Violation, violation.to_string())
}
