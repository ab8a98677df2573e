// SPDX-License-Identifier: MIT OR Apache-2.0

//! One admitted reader, from the exporter's side: its presence, messages, imports and leases.

mod backlog;
mod cannot_adopt;
mod files;
mod imports;
mod leases;
mod outbox;
mod packet;
mod presence;
mod stall;
mod start;

pub use backlog::{Backlog, WaitingFrame, Weight};
pub use cannot_adopt::CannotAdopt;
pub use files::Files;
pub use imports::Imports;
pub use leases::Leases;
pub use outbox::Outbox;
pub use packet::{INLINE, Packet};
pub use presence::Presence;
pub use start::{MAX_WAIT, Start};

use super::{
    ending::Ending,
    notice::ReaderInfo,
    now::Now,
    peer::Peer,
    shortage::Unsendable,
    statistics::ReaderStats,
    system::{Allocator, Connection, Slot, System},
    unit::Unit,
};
use crate::selected::Selected;
use backlog::Waiting;
use frameshare_protocol::{
    AreaIndex, Descriptor, EntryIndex, FenceKind, MemoryKind, Policy, Sequence, SlotId,
    message::{GpuUuid, Hello, Reason, ToReader},
};
use frameshare_queue::Producer;
use outbox::Unsent;
use stall::Stall;
use std::{
    mem,
    time::{Duration, Instant},
};

/// A frame that leaves the backlog, and the entry that it goes to.
type Leaving<A> = (EntryIndex, WaitingFrame<A>);

/// Maximum time that a connection stays open for waiting messages after its link has ended.
const DRAINING: Duration = Duration::from_secs(5);

/// Owns what belongs to one admitted reader, and lets it work together: which messages and frames
/// the reader gets next and in which order, what it knows of slots, and how far it has left. Which
/// frames are offered to it, and what its ended leases were on, is decided by others.
#[derive(Debug)]
pub struct Link<S: System> {
    /// Its identity.
    pub info: ReaderInfo,
    /// Its leases.
    pub leases: Leases<S>,
    /// Its messages, and the connection.
    pub outbox: Outbox<S::Connection>,
    /// The reader is to be woken when the state is unlocked.
    is_to_wake: bool,
    /// Messages waited when the state was last unlocked.
    was_blocked: bool,
    backlog: Backlog<S::Attachment>,
    /// The slots that it knows.
    pub imports: Imports,
    files: Files<S::Account>,
    /// The reader's process, and its Hello.
    peer: Peer,
    hello: Hello,
    presence: Presence,
    /// The reader gets frames in host memory although the stream's frames are on a GPU.
    downloads: bool,
    cannot_adopt: CannotAdopt,
    /// The reader copies frames of the present format into its default layout.
    copies_for_layout: bool,
    /// Number of ordered messages sent so far, waiting ones included.
    messages: u64,
    /// End of the time that the connection stays open for waiting messages after the link has
    /// ended.
    drains_until: Option<Instant>,
    stall: Stall,
}

/// The resources and choices by which a reader gets its frames.
#[derive(Debug)]
pub struct Delivery<S: System> {
    /// The exporter's half of the queue.
    pub producer: Producer<S::Page>,
    /// The first frame that the reader may get.
    pub next: Sequence,
    /// The fence.
    pub fence: S::Fence,
    /// The memory that it was given.
    pub files: Files<S::Account>,
    /// The first unit that it gets.
    pub start: Start,
    /// The kind of fence, and the reason for it.
    pub choice: Selected<FenceKind>,
    /// Frames are downloaded to host memory.
    pub downloads: bool,
    /// The reasons why it cannot read adopted memory.
    pub cannot_adopt: CannotAdopt,
    /// Its Hello.
    pub hello: Hello,
}

impl<S: System> Link<S> {
    /// A reader that has just been admitted.
    pub fn new(info: ReaderInfo, peer: Peer, connection: S::Connection, delivery: Delivery<S>) -> Self {
        let Delivery { producer, next, fence, files, start, choice, downloads, cannot_adopt, hello } =
            delivery;
        Self {
            leases: Leases::new(&info, producer, fence, choice, next, start),
            outbox: Outbox::new(connection, S::now),
            is_to_wake: false,
            was_blocked: false,
            backlog: Backlog::default(),
            imports: Imports::default(),
            files,
            info,
            presence: Presence::Connected,
            peer,
            hello,
            downloads,
            cannot_adopt,
            copies_for_layout: false,
            messages: 0,
            drains_until: None,
            stall: Stall::default(),
        }
    }

    /// Its process and user.
    pub fn peer(&self) -> &Peer {
        &self.peer
    }

    /// Its Hello.
    pub fn hello(&self) -> &Hello {
        &self.hello
    }

    /// Sets the maximum number of untaken frames, if the reader leaves it to the exporter.
    pub fn adapt_queue(&mut self, max_queued: u32) {
        if self.info.policy == Policy::Latest && self.hello.max_queued == 0 {
            self.info.max_queued = max_queued.min(self.info.credit);
            self.leases.set_max_queued(self.info.max_queued);
        }
    }

    /// The connection.
    pub fn connection(&self) -> &S::Connection {
        self.outbox.connection()
    }

    /// Has the reader woken when the state is unlocked.
    pub fn wake_up(&mut self) {
        self.is_to_wake = true;
    }

    /// Returns whether the reader is to be woken when the state is unlocked.
    pub fn is_to_wake(&self) -> bool {
        self.is_to_wake
    }

    /// Adds the reader to those that are woken now, if it is to be.
    pub fn take_wake(&mut self, sleepers: &mut S::Sleepers) {
        if mem::take(&mut self.is_to_wake) {
            let sleeper = self.leases.take_sleeper();
            self.connection().add_to(sleepers, sleeper);
        }
    }

    /// The steps that it has taken to leave.
    pub fn presence(&self) -> Presence {
        self.presence
    }

    /// Returns whether it must get every frame.
    pub fn is_lossless(&self) -> bool {
        self.info.policy == Policy::Lossless
    }

    /// Sends a message, or queues it until the reader receives earlier ones.
    pub fn send(&mut self, message: &ToReader) -> Result<(), Ending> {
        self.send_packet(&Packet::new(message).map_err(cannot_send)?)
    }

    /// Sends a message that other readers get too. One with a place among the frames waits for the
    /// frames in the backlog.
    pub fn send_packet(&mut self, packet: &Packet<S::Attachment>) -> Result<(), Ending> {
        if packet.is_ordered() && !self.backlog.is_empty() {
            return self.backlog.push_message(packet.clone()).map_err(unsent);
        }
        self.send_now(packet)
    }

    /// Sends a message ahead of the backlog.
    pub fn send_now(&mut self, packet: &Packet<S::Attachment>) -> Result<(), Ending> {
        self.enqueue(packet.clone())?;
        if self.leases.reader_sleeps() {
            self.wake_up();
        }
        Ok(())
    }

    fn enqueue(&mut self, packet: Packet<S::Attachment>) -> Result<(), Ending> {
        if let Some(file) = packet.payload_file() {
            self.files.give_payload(file, self.leases.next()).map_err(full)?;
        }
        self.messages += u64::from(packet.is_ordered());
        let sent = self.outbox.send(packet);
        self.leases.note_sent(self.outbox.sent());
        // No frame is delivered before the reader has received some: one that sleeps would not.
        if self.has_waiting_messages() && self.leases.reader_sleeps() {
            self.wake_up();
        }
        sent.map_err(unsent)
    }

    /// Returns whether the reader's user is charged for memory.
    pub fn is_charged(&self) -> bool {
        self.files.is_charged()
    }

    /// Drops payload files that the reader has read.
    pub fn drop_read_payloads(&mut self) {
        self.files.note_released(self.leases.released_up_to());
    }

    /// Sends waiting messages after the reader has received others, and wakes the reader if it
    /// sleeps.
    pub fn catch_up(&mut self) -> Result<(), Ending> {
        let before = self.outbox.len();
        let flushed = self.outbox.flush();
        self.leases.note_sent(self.outbox.sent());
        flushed.map_err(unsent)?;
        if self.outbox.len() < before && self.leases.reader_sleeps() {
            self.wake_up();
        }
        Ok(())
    }

    /// Returns whether messages wait for the reader to receive earlier ones.
    pub fn has_waiting_messages(&self) -> bool {
        !self.outbox.is_empty()
    }

    /// Returns whether messages have begun to wait since the last call, or wait no longer.
    #[inline]
    pub fn take_blocked(&mut self) -> bool {
        let is_blocked = self.has_waiting_messages();
        mem::replace(&mut self.was_blocked, is_blocked) != is_blocked
    }

    /// Returns the time of the next check of this link, whatever its descriptors report.
    pub fn check_at(&self, now: &Now<S>) -> Option<Instant> {
        let liveness = self.connection().check_at().filter(|_| self.presence < Presence::Exited);
        let drained = self.drains_until.filter(|_| self.is_flushing(now));
        self.outbox.retry_at().into_iter().chain(drained).chain(liveness).min()
    }

    /// Returns whether the process has ended although the connection is open, by its record lock.
    pub fn has_died(&mut self) -> bool {
        self.presence < Presence::Exited && self.outbox.connection_mut().has_died()
    }

    /// Sends the close message (`Goodbye`). Messages that wait before it are still sent, for
    /// `DRAINING`.
    pub fn send_close(&mut self, ending: &Ending, now: Instant) {
        // Fails if the reader has left too much unread, which only its count of losses shows.
        let _ = self.report_skipped();
        let message = ToReader::Goodbye { reason: ending.reason, text: ending.text.clone() };
        if let Ok(packet) = Packet::new(&message) {
            let sent = self.outbox.send(packet);
            self.leases.note_sent(self.outbox.sent());
            let waits = !matches!(sent, Err(Unsent::HungUp(_))) && self.has_waiting_messages();
            self.drains_until = waits.then(|| now + DRAINING);
        }
        self.wake_up();
    }

    /// Returns whether the connection is still needed for waiting messages after the link has
    /// ended.
    pub fn is_flushing(&self, now: &Now<S>) -> bool {
        let in_time = self.drains_until.is_some_and(|until| now.get() < until);
        in_time && self.has_waiting_messages() && self.presence == Presence::Connected
    }

    /// Returns whether the reader has started, or starts with this unit.
    #[inline]
    pub fn may_start(&mut self, unit: Unit, sequence: Sequence, now: &Now<S>) -> Result<bool, Ending> {
        if self.leases.start().awaits_key() { self.starts_now(unit, sequence, now) } else { Ok(true) }
    }

    /// Returns whether the reader, which waits for a key unit, starts with this unit.
    fn starts_now(&mut self, unit: Unit, sequence: Sequence, now: &Now<S>) -> Result<bool, Ending> {
        let start = self.leases.start();
        if start.begins_with(unit, now.get()) {
            self.report_skipped()?;
            *self.leases.start() = Start::AtOnce;
            return Ok(true);
        }
        self.miss(unit, sequence, now);
        Ok(false)
    }

    /// Records a unit that the reader does not get. Before the reader's first unit it is not lost.
    pub fn miss(&mut self, unit: Unit, sequence: Sequence, now: &Now<S>) {
        let Start::Joining { passed, .. } = self.leases.start() else {
            return self.leases.note_loss(unit, now);
        };
        *passed = true;
        if self.leases.pass_over(sequence) {
            self.wake_up();
        }
    }

    /// Tells a reader that waits for its first key unit which frames were not for it.
    pub fn report_skipped(&mut self) -> Result<(), Ending> {
        let before = self.leases.next();
        if let Start::Joining { passed, .. } = self.leases.start()
            && mem::take(passed)
        {
            self.send(&ToReader::Skipped { before })?;
        }
        Ok(())
    }

    /// The same, if this unit starts the reader: the report may not fit into the socket, so it is
    /// sent before it is decided whether there is room for the unit.
    pub fn report_skipped_before(&mut self, unit: Unit, now: &Now<S>) -> Result<(), Ending> {
        let starts = self.leases.start().begins_with(unit, now.get());
        if starts { self.report_skipped() } else { Ok(()) }
    }

    /// Asks the reader to drop its imports of a generation, if it has any.
    pub fn retire(&mut self, before: Sequence, generation: u32) -> Result<(), Ending> {
        if !self.backlog.is_empty() {
            self.backlog.push_retire(before, generation);
            return Ok(());
        }
        if self.imports.retire(generation) {
            self.send(&ToReader::Retire { before, generation })
        } else {
            Ok(())
        }
    }

    /// Asks the reader to drop its imports of those of these free slots that it has. A free slot
    /// has no frame in the backlog, which the messages therefore overtake.
    pub fn retire_slots(&mut self, slots: &[S::Slot]) -> Result<(), Ending> {
        let known = slots.iter().filter(|slot| self.imports.retire_slot(slot.id(), slot.size()));
        let known: Vec<_> = known.map(|slot| slot.id()).collect();
        for slot in &known {
            self.enqueue(Packet::new(&ToReader::RetireSlot { slot: *slot }).map_err(cannot_send)?)?;
        }
        if !known.is_empty() && self.leases.reader_sleeps() {
            self.wake_up();
        }
        Ok(())
    }

    /// Records the end of the connection. If the kernel cannot report the process's end, this
    /// stands for it.
    pub fn hang_up(&mut self, process_has_ended: bool) {
        self.presence.hang_up(process_has_ended || !self.connection().reports_exit());
        self.files.note_end();
    }

    /// Ends the connection of a reader whose messages are not read any more, while its process may
    /// keep memory: it finds the end behind the messages that it was sent.
    pub fn shut_down(&mut self) {
        self.connection().shut_down();
        self.wake_up();
    }

    /// Returns whether the reader may have memory imported. One of this very process, which is
    /// alive, has dropped its imports when it hangs up.
    pub fn may_import(&self) -> bool {
        let gone = if self.peer.is_in_this_process { Presence::HungUp } else { Presence::Exited };
        self.presence < gone
    }

    /// Records the reader's close message. Returns true if it had sent one already.
    pub fn note_close(&mut self) -> bool {
        self.files.note_end();
        self.presence.close()
    }

    /// Gives the reader a fence: the exporter uses this GPU from now on.
    pub fn use_gpu(
        &mut self,
        gpu: GpuUuid,
        choice: Selected<FenceKind>,
        fence: S::Fence,
        events: Vec<u8>,
        timeline: Option<S::Attachment>,
    ) -> Result<(), Ending> {
        let message = ToReader::Gpu { gpu, fence: choice.kind, events };
        self.leases.set_fence(fence, choice);
        self.send_with(&message, timeline)
    }

    /// Returns whether the reader imports the GPU memory of the stream.
    pub fn is_direct(&self) -> bool {
        self.leases.has_fence() && !self.downloads
    }

    /// Returns the kind of memory in which this reader gets frames of a stream whose frames are in
    /// memory of `kind`.
    pub fn memory_of_frames(&self, kind: MemoryKind) -> MemoryKind {
        if self.downloads { MemoryKind::Host } else { kind }
    }

    /// Introduces a slot to the reader unless the reader knows it. `pool` is the descriptor of the
    /// whole generation, if it has one.
    // One comparison for each frame in a slot that the reader knows.
    #[inline(always)]
    pub fn introduce(
        &mut self,
        slot: &S::Slot,
        kind: MemoryKind,
        adopted: bool,
        pool: Option<&S::Allocator>,
    ) -> Result<(), Ending> {
        if self.imports.has(slot.id()) { Ok(()) } else { self.introduce_new(slot, kind, adopted, pool) }
    }

    fn introduce_new(
        &mut self,
        slot: &S::Slot,
        kind: MemoryKind,
        adopted: bool,
        pool: Option<&S::Allocator>,
    ) -> Result<(), Ending> {
        let id @ SlotId { generation, .. } = slot.id();
        if !self.imports.has_any(generation) {
            let slot_size = slot.size();
            let pool = pool.and_then(Allocator::shared);
            self.send_with(&ToReader::Generation { generation, memory: kind, slot_size, adopted }, pool)?;
        }
        self.files.give_slot(slot).map_err(full)?;
        let (handle, memory) = slot.handle();
        let message = ToReader::Slot { slot: id, handle };
        self.send_with(&message, memory)?;
        self.imports.add(id);
        Ok(())
    }

    /// Sends a message that hands over memory, with the descriptor that belongs to it.
    fn send_with(&mut self, message: &ToReader, attachment: Option<S::Attachment>) -> Result<(), Ending> {
        let packet = Packet::with(message, attachment.into_iter().collect()).map_err(cannot_send)?;
        self.enqueue(packet.kept())
    }

    /// Leases a frame in memory of this kind to the reader, in a vacant entry, and signals the
    /// ready fence if the frame needs one. [`Link::publish`] follows.
    pub fn offer(
        &mut self,
        entry: EntryIndex,
        area: AreaIndex,
        sequence: Sequence,
        unit: Unit,
        kind: MemoryKind,
        signals: &mut S::Signals,
    ) -> Result<(), Ending> {
        self.leases.offer(entry, area, sequence, unit, kind, signals)
    }

    /// Publishes the offered frame, if there is one, or adds it to the backlog. Writes the number
    /// of the reader's messages into the descriptor, which all readers share: no other code reads
    /// it.
    pub fn publish(&mut self, descriptor: &mut Descriptor) {
        if !self.backlog.publish(descriptor) {
            descriptor.messages = self.messages;
            self.leases.publish(descriptor);
        }
    }

    /// Returns whether the reader may still get a frame: it joined before the frame, has not lost
    /// it, and it does not wait already.
    pub fn may_get(&self, sequence: Sequence) -> bool {
        self.leases.may_get(sequence) && self.backlog.is_before(sequence)
    }

    /// Returns whether one more frame would have to wait, for credit or behind others.
    pub fn is_full(&self) -> bool {
        self.has_waiting_messages() || !self.backlog.is_empty() || self.leases.is_full()
    }

    /// Returns whether no lease is left, and no frame or message waits.
    pub fn is_idle(&self) -> bool {
        !self.has_waiting_messages() && self.backlog.is_empty() && self.leases.is_empty()
    }

    /// The frames and messages that wait for credit.
    pub fn backlog(&self) -> &Backlog<S::Attachment> {
        &self.backlog
    }

    /// Adds the frame that is being published to the backlog. [`Link::publish`] follows.
    pub fn join_backlog(&mut self, area: AreaIndex, bytes: u64, oversized: Option<Packet<S::Attachment>>) {
        self.backlog.join(WaitingFrame { area, descriptor: Descriptor::default(), oversized, bytes });
    }

    /// Returns whether the frame that is being published joins the backlog.
    pub fn joins_backlog(&self) -> bool {
        self.backlog.is_joined()
    }

    /// Adds a frame that was published before to the backlog.
    pub fn push_backlog(&mut self, frame: WaitingFrame<S::Attachment>) {
        self.backlog.push_frame(frame);
    }

    /// Sends the messages of the backlog without its frames. Returns the areas of these.
    pub fn skip_backlog(&mut self) -> Result<Vec<AreaIndex>, Ending> {
        let mut areas = Vec::new();
        while let Some(waiting) = self.backlog.pop() {
            match waiting {
                Waiting::Frame(frame) => areas.push(frame.area),
                other => self.send_waiting(other)?,
            }
        }
        Ok(areas)
    }

    /// Sends a message of the backlog.
    fn send_waiting(&mut self, waiting: Waiting<S::Attachment>) -> Result<(), Ending> {
        match waiting {
            Waiting::Message(packet) => self.send_now(&packet),
            Waiting::Retire { before, generation } if self.imports.retire(generation) => {
                let retire = ToReader::Retire { before, generation };
                self.send_now(&Packet::new(&retire).map_err(cannot_send)?)
            }
            Waiting::Retire { .. } | Waiting::Frame(_) => Ok(()),
        }
    }

    /// Returns whether something can leave the backlog.
    pub fn can_deliver(&self) -> bool {
        match self.backlog.front() {
            Some(Waiting::Frame(_)) => !self.has_waiting_messages() && self.leases.vacant().is_some(),
            Some(_) => true,
            None => false,
        }
    }

    /// Takes the next frame out of the backlog if there is room for it. Messages in front of it are
    /// sent.
    pub fn next_waiting(&mut self) -> Result<Option<Leaving<S::Attachment>>, Ending> {
        loop {
            let vacant = if self.has_waiting_messages() { None } else { self.leases.vacant() };
            match (self.backlog.front(), vacant) {
                (Some(Waiting::Frame(_)), None) | (None, _) => return Ok(None),
                (Some(_), _) => {}
            }
            match (self.backlog.pop(), vacant) {
                (Some(Waiting::Frame(frame)), Some(entry)) => return Ok(Some((entry, frame))),
                (Some(waiting), _) => self.send_waiting(waiting)?,
                (None, _) => return Ok(None),
            }
        }
    }

    /// Drops the backlog, and the frame that is offered and not published: the reader gets none of
    /// them, and nothing else before `next`. Returns the areas of the frames, which count as lost.
    pub fn lose_backlog(&mut self, next: Sequence) -> Vec<AreaIndex> {
        let mut areas = self.backlog.clear();
        areas.extend(self.leases.withdraw());
        // The close message wakes the reader.
        self.leases.lose_before(next);
        areas
    }

    /// Number of payload files and bytes of messages that wait for this reader, ordered by weight.
    pub fn weight(&self) -> (usize, u64) {
        let ((files, bytes), (more_files, more_bytes)) =
            (self.outbox.weight(), self.backlog.message_weight());
        (files + more_files, bytes + more_bytes)
    }

    /// Finds an entry for the next publication. A `latest` reader without a vacant one loses its
    /// oldest untaken frame. `None` if the reader is full, or messages wait.
    pub fn vacate(
        &mut self,
        unit: Unit,
        ended: &mut Vec<AreaIndex>,
        now: &Now<S>,
    ) -> Result<Option<EntryIndex>, Ending> {
        if self.has_waiting_messages() { Ok(None) } else { self.leases.vacate(unit, ended, now) }
    }

    /// Sets the waiting flag: the reader sends a wake-up when it ends its next lease.
    pub fn announce_wait(&self) {
        self.leases.announce_wait();
    }

    /// Ends the exporter's wait for this reader, which need not send wake-ups any more, unless
    /// frames wait for its credit.
    pub fn end_wait(&mut self) {
        if self.backlog.is_empty() {
            self.leases.end_wait();
        }
    }

    /// Records that the stream has stood still for this time. Returns the time that it has in all
    /// since the reader last took or released a frame, while it had something to do.
    pub fn note_standstill(&mut self, time: Duration) -> Duration {
        let (progress, is_busy) = self.leases.progress();
        self.stall.note(time, progress, is_busy)
    }

    /// The time that the stream has stood still because of the reader, and its report.
    pub fn stall(&mut self) -> &mut Stall {
        &mut self.stall
    }

    /// Returns the reader's statistics. `next` is the sequence number of the next publication.
    pub fn stats(&self, next: Sequence) -> ReaderStats {
        let stats = self.leases.stats(self.info.clone(), next);
        let first = self.backlog.first().map(|frame| frame.descriptor.sequence);
        let lag = stats.lag.max(first.map_or(0, |first| next.since(first)));
        ReaderStats {
            waiting: self.backlog.frames() as u32,
            lag,
            copies_for_layout: self.copies_for_layout,
            ..stats
        }
    }

    /// Returns whether the reader gets frames in host memory although the stream's frames are on a
    /// GPU.
    pub fn downloads(&self) -> bool {
        self.downloads
    }

    /// Downloads frames for this reader from now on. Returns true if they were downloaded already.
    pub fn begin_downloads(&mut self, choice: Selected<FenceKind>) -> bool {
        self.leases.note_choice(choice);
        mem::replace(&mut self.downloads, true)
    }

    /// The reason why the reader cannot read adopted memory of this kind, if it cannot.
    pub fn cannot_adopt(&self, kind: MemoryKind) -> Option<&str> {
        self.cannot_adopt.of(kind)
    }

    /// Records that the reader cannot read adopted memory of this kind.
    pub fn forbid_adopted(&mut self, kind: MemoryKind, why: String) {
        let forbidden = match kind {
            MemoryKind::DmaBuf => &mut self.cannot_adopt.dma_buf,
            _ => &mut self.cannot_adopt.cuda,
        };
        *forbidden = Some(why);
    }

    /// Returns whether the reader copies frames of the present format into its default layout.
    pub fn copies_for_layout(&self) -> bool {
        self.copies_for_layout
    }

    /// Records whether the reader does; returns whether that is news.
    pub fn set_copies_for_layout(&mut self, copies: bool) -> bool {
        std::mem::replace(&mut self.copies_for_layout, copies) != copies
    }

    /// Uses another route from now on.
    pub fn set_route(&mut self, downloads: bool, cannot_adopt: CannotAdopt) {
        (self.downloads, self.cannot_adopt) = (downloads, cannot_adopt);
    }
}

fn full(why: String) -> Ending {
    Ending::new(Reason::LimitExceeded, why)
}

fn cannot_send(error: Unsendable) -> Ending {
    Ending::new(Reason::Failed, format!("cannot send: {error}"))
}

fn unsent(unsent: Unsent) -> Ending {
    match unsent {
        Unsent::TooMuch(what) => Ending::new(Reason::LimitExceeded, format!("it has left {what} unread")),
        Unsent::HungUp(error) => Ending::new(Reason::Stopped, format!("it hung up ({error})")),
    }
}
