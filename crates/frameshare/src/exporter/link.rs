//! One admitted reader, as the exporter keeps it.

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
    memory::{Allocator, choice::Choice},
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

/// For how long a connection stays open for messages that wait, after its link has ended.
const DRAINING: Duration = Duration::from_secs(5);

/// A lease, in the ledger.
#[derive(Clone, Copy, Debug)]
struct Lease {
    sequence: u64,
    area: usize,
    /// The frame is in GPU memory: its lease ends behind the reader's release fence.
    is_fenced: bool,
    /// When it was first seen released with its fence pending.
    released: Option<Instant>,
}

/// Whether a reader's GPU ends its work on frames in the order of the frames, as far as anybody has seen.
///
/// To look at an event takes a call of the driver. Where frames come back in order, those behind a pending one need none.
/// Words are just read, in whatever order.
#[derive(Debug)]
struct InOrder {
    so_far: bool,
    /// When frames behind a pending one were looked at last.
    looked: Instant,
}

impl InOrder {
    /// How often frames behind a pending one are looked at all the same: an app with several streams may give them back
    /// in any order. Until that was seen once, what is done there counts as pending for so long.
    const DOUBT: Duration = Duration::from_millis(1);

    fn new(fence: FenceKind) -> Self {
        Self { so_far: fence == FenceKind::Event, looked: Instant::now() }
    }

    /// Whether to look at frames behind a pending one this time.
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

/// What a reader knows of a generation.
#[derive(Debug, Default)]
struct Known {
    slots: BTreeSet<u32>,
    /// It was told to give its imports up.
    retired: bool,
}

/// Where the next publication of a link goes.
pub(super) enum Vacancy {
    /// Into this entry.
    Entry(usize),
    /// Nowhere: the reader holds all that it may.
    Full,
}

/// An admitted reader.
#[derive(Debug)]
pub(super) struct Link {
    pub info: ReaderInfo,
    pub socket: Arc<Socket>,
    pub wake: Arc<Wake>,
    pub gone: Option<Arc<OwnedFd>>,
    /// Where there is no `gone`.
    life: Option<Life>,
    producer: Producer<Words>,
    /// The first frame of which it is not decided yet whether the reader gets it.
    next: u64,
    fence: Box<dyn ExporterFence>,
    /// Who it is and what it asked for.
    pub peer: Peer,
    pub hello: Hello,
    /// It gets frames in host memory, though the stream's are on a GPU.
    pub downloads: bool,
    /// Why it cannot read adopted memory, if it cannot.
    pub cannot_adopt: Option<String>,
    fence_choice: Choice<FenceKind>,
    entries: Vec<Option<Lease>>,
    in_order: InOrder,
    /// Room for the sequence numbers and entries of what was released.
    released: Vec<(u64, usize)>,
    /// Ordered messages sent so far, waiting ones included.
    messages: u64,
    outbox: Outbox,
    /// Until when the connection is kept open for messages that wait, though the link has ended.
    drains_until: Option<Instant>,
    /// The generations whose imports the reader has not given up.
    known: BTreeMap<u32, Known>,
    /// Where the frame goes that is being handed out.
    offered: Option<usize>,
    sent: u64,
    lost: u64,
    /// Since when the exporter has waited for it, and whether the owner was told.
    pub blocked: Option<(Instant, bool)>,
    /// It wants no more frames.
    pub said_goodbye: bool,
    /// Its connection is over; only its process is still watched.
    pub hung_up: bool,
    /// Its process is gone, and with it all that it had imported.
    pub process_is_gone: bool,
}

/// How a reader gets its frames.
#[derive(Debug)]
pub(super) struct Delivery {
    pub producer: Producer<Words>,
    /// The first frame that it may get.
    pub next: u64,
    pub wake: Wake,
    /// Where no pidfd watches its process.
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

    /// Sends a message, now or as soon as the reader takes its messages.
    pub fn send(&mut self, message: &ToReader) -> Result<(), Ending> {
        self.send_packet(&Packet::new(message).map_err(cannot_send)?)
    }

    /// The same for a message that other readers get too.
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

    /// Sends what waits, now that the reader has taken others, and wakes it if it sleeps until there is more.
    pub fn catch_up(&mut self) -> Result<(), Ending> {
        let before = self.outbox.len();
        self.outbox.flush().map_err(unsent)?;
        if self.outbox.len() < before && self.producer.reader_sleeps() {
            self.wake.ring();
        }
        Ok(())
    }

    /// Whether messages wait for the reader to take others.
    pub fn has_backlog(&self) -> bool {
        !self.outbox.is_empty()
    }

    /// Messages that wait, and memory that sent ones referred to.
    pub fn outbox(&mut self) -> &mut Outbox {
        &mut self.outbox
    }

    /// Whether the socket turns writable when the next message can be sent.
    pub fn awaits_room(&self) -> bool {
        self.outbox.awaits_room()
    }

    /// When to look after this link, whatever its descriptors tell.
    pub fn look_at(&self) -> Option<Instant> {
        let life = self.life.as_ref().filter(|_| !self.process_is_gone).map(Life::next);
        let drained = self.drains_until.filter(|_| self.is_draining());
        self.outbox.retry_at().into_iter().chain(drained).chain(life).min()
    }

    /// Whether the reader's process is gone though its connection is not, as far as its record lock tells.
    pub fn has_died(&mut self) -> bool {
        !self.process_is_gone && self.life.as_mut().is_some_and(Life::is_over)
    }

    /// Tells the reader why its link ends. What waits before that is still sent, for [`DRAINING`].
    pub fn say_goodbye(&mut self, ending: &Ending) {
        let message = ToReader::Goodbye { reason: ending.reason, text: ending.text.clone() };
        if let Ok(packet) = Packet::new(&message) {
            let sent = self.outbox.send(packet);
            let waits = !matches!(sent, Err(Unsent::HungUp(_))) && self.has_backlog();
            self.drains_until = waits.then(|| Instant::now() + DRAINING);
        }
        self.wake.ring();
    }

    /// Whether the connection is still needed for messages that wait, after the link has ended.
    pub fn is_draining(&self) -> bool {
        let in_time = self.drains_until.is_some_and(|until| Instant::now() < until);
        in_time && self.has_backlog() && !self.hung_up && !self.said_goodbye
    }

    /// Tells the reader of a generation that is used no more, if it knows it.
    pub fn retire(&mut self, before: u64, generation: u32) -> Result<(), Ending> {
        let known = self.known.get_mut(&generation);
        if known.is_none_or(|known| std::mem::replace(&mut known.retired, true)) {
            return Ok(());
        }
        self.send(&ToReader::Retire { before, generation })
    }

    /// The connection is over. Where the kernel cannot say whether the process is gone, that has to do.
    pub fn hung_up(&mut self, process_is_gone: bool) {
        self.hung_up = true;
        self.process_is_gone |= process_is_gone || self.gone.is_none();
    }

    /// Gives the reader a fence: the exporter uses this GPU from now on.
    pub fn use_gpu(&mut self, gpu: GpuUuid, choice: Choice<FenceKind>, made: Fence) -> Result<(), Ending> {
        let Fence { fence, events, timeline_fd } = made;
        let message = ToReader::Gpu { gpu, fence: choice.kind, events };
        self.in_order = InOrder::new(choice.kind);
        (self.fence, self.fence_choice) = (fence, choice);
        self.send_with(&message, timeline_fd.map(|fd| Attachment::File(Arc::new(fd))))
    }

    /// Whether it imports the GPU memory of the stream.
    pub fn is_direct(&self) -> bool {
        self.fence.kind() != FenceKind::None && !self.downloads
    }

    /// The kind of memory in which this reader gets frames of a stream that places them in memory of `kind`.
    pub fn memory_of_frames(&self, kind: MemoryKind) -> MemoryKind {
        if self.downloads { MemoryKind::Host } else { kind }
    }

    /// Whether the reader's GPU may still be at work on a frame that it has released, or will have.
    pub fn is_fenced(&self) -> bool {
        self.entries.iter().flatten().any(|lease| lease.is_fenced)
    }

    /// Whether the reader has opened events of ours.
    pub fn has_events(&self) -> bool {
        self.fence.kind() == FenceKind::Event
    }

    /// The generations whose imports the reader has not given up.
    pub fn knows(&self) -> impl Iterator<Item = u32> {
        self.known.keys().copied()
    }

    /// The reader has given its imports of a generation up; false if it had none, or has not been asked to. Who has said
    /// goodbye gives up everything.
    pub fn forget_generation(&mut self, generation: u32) -> bool {
        let asked = self.said_goodbye;
        let known = self.known.get(&generation);
        known.is_some_and(|known| asked || known.retired) && self.known.remove(&generation).is_some()
    }

    /// Makes sure that the reader knows a slot. `pool` is the descriptor that its whole generation has, if any.
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

    /// Sends a message of the handing over of memory, with the descriptor that belongs to it.
    fn send_with(&mut self, message: &ToReader, attachment: Option<Attachment>) -> Result<(), Ending> {
        let packet = Packet::with(message, attachment.into_iter().collect()).map_err(cannot_send)?;
        self.enqueue(packet.kept())
    }

    /// Leases a frame in memory of this kind to the reader in a vacant entry and signals the ready fence, if the frame
    /// needs one; [`Link::publish`] follows.
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
        // It had room: whoever waits for it next counts from then.
        self.blocked = None;
        Ok(())
    }

    /// Publishes what was offered, if anything was; true if the reader must be woken.
    pub fn publish(&mut self, descriptor: &Descriptor) -> bool {
        let Some(entry) = self.offered.take() else { return false };
        self.sent += 1;
        self.lost += descriptor.sequence - self.next;
        self.next = descriptor.sequence + 1;
        self.producer.publish(entry, &Descriptor { messages: self.messages, ..descriptor.clone() })
    }

    /// Whether the reader may still get a frame. It joined later otherwise, or has lost it.
    pub fn may_get(&self, sequence: u64) -> bool {
        sequence >= self.next
    }

    /// Counts the frames before `next` that the reader has not got: it does not get them. True if it must be woken,
    /// since what waits for them to be over, such as the end of the stream, may now be delivered.
    pub fn lose_before(&mut self, next: u64) -> bool {
        if next <= self.next {
            return false;
        }
        self.lost += next - self.next;
        self.next = next;
        self.producer.skip(next - 1);
        self.producer.reader_sleeps()
    }

    /// Finds leases that the reader has ended, and puts their areas into `ended`. True if some release fence is still
    /// pending; one that has been for longer than `timeout` is an error. Behind a pending event not every call looks.
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

    /// Ends those leases whose fences are ready, as far as it makes sense to ask. True if some are not.
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
            // The oldest may have been done before this one, after it was looked at.
            if let Some((sequence, index)) = oldest.filter(|_| self.in_order.so_far) {
                let state = self.fence.poll_released(index, sequence).map_err(fence_failed)?;
                self.in_order.so_far = state == FenceState::Ready;
            }
        }
        Ok(oldest.is_some())
    }

    /// Ends the lease of a frame that was released, and returns its area, unless the fence is still pending, which it may
    /// be for `timeout`.
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

    /// Whether a publication would have to wait.
    pub fn is_full(&self) -> bool {
        self.has_backlog() || self.entries.iter().all(Option::is_some)
    }

    /// Whether no lease is left, and no message waits.
    pub fn is_idle(&self) -> bool {
        !self.has_backlog() && self.holds_nothing()
    }

    /// Finds an entry for the next publication. A `latest` reader loses its oldest untaken frame for it.
    pub fn vacate(&mut self, ended: &mut Vec<usize>) -> Result<Vacancy, Ending> {
        if self.has_backlog() {
            return Ok(Vacancy::Full);
        }
        if let Some(entry) = self.entries.iter().position(Option::is_none) {
            return Ok(Vacancy::Entry(entry));
        }
        Ok(self.revoke_oldest(ended, |_| true)?.map_or(Vacancy::Full, Vacancy::Entry))
    }

    /// Takes back the oldest frame that the reader has not taken, among those in certain areas, and returns its entry.
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

    /// Takes back what the reader has not taken, and some of what it has released.
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

    /// Whether no lease is left.
    pub fn holds_nothing(&self) -> bool {
        self.entries.iter().all(Option::is_none)
    }

    /// Takes all leases away, and returns their areas.
    pub fn take_leases(&mut self) -> Vec<usize> {
        self.entries.iter_mut().filter_map(Option::take).map(|lease| lease.area).collect()
    }

    /// Has the reader ring what is returned when it ends a lease next.
    pub fn announce_wait(&self) -> Arc<Wake> {
        self.producer.announce_wait();
        self.wake.clone()
    }

    pub fn end_wait(&self) {
        self.producer.end_wait();
    }

    /// For how long the exporter has waited for this reader.
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
