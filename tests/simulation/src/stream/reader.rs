// SPDX-License-Identifier: MIT OR Apache-2.0

//! A simulated reader: its connection and its sleeps. Core decides for it.

use super::{
    channel::{Channel, File, Received, Shares, WakeWord},
    exporter::{Exporter, OVERSIZED, Request},
    files::Bytes,
    gpu::take_time,
    memory::Memory,
    outcome::Outcome,
    record::Record,
    words::SharedPage,
};
use crate::{
    Process,
    task::{block, chance, choose, is_dying, now, spawn, step},
    time::Time,
    trace,
};
use frameshare_core::{
    Drained,
    exporter::{link::MAX_WAIT, peer::Peer},
    reader::{
        Arrival, AtOnce, End, Ending, FutexSlept, Generations, Kept, KeptUnits, MAX_FUTEX_SLEEP, MAX_WAITING,
        Order, Ordered, Progress, SleepStep, Sleeping, Step, Unread,
    },
};
use frameshare_protocol::{
    Descriptor, EntryIndex, FenceKind, MemoryKind, Policy, Sequence, SlotId,
    kept::RECORD,
    message::{Hello, Payload, Reason, ToExporter, ToReader},
    page::queue,
};
use frameshare_queue::{Consumer, Sleeper};
use std::{cell::Cell, collections::VecDeque, rc::Rc, time::Duration};

/// The behaviour of a reader.
#[derive(Clone, Debug)]
pub struct Behaviour {
    /// Its policy.
    pub policy: Policy,
    /// The credit that it asks for.
    pub credit: u32,
    /// The maximum number of untaken frames that it asks for.
    pub max_queued: u32,
    /// Its process and user.
    pub peer: Peer,
    /// It reads frames on a GPU.
    pub on_gpu: bool,
    /// It takes kept units of so many bytes.
    pub max_gop_bytes: u64,
    /// It holds each frame for up to so many microseconds.
    pub holds_us: u32,
    /// It holds so many frames at once.
    pub holds: usize,
    /// It releases all of them together.
    pub in_batches: bool,
    /// Its GPU work takes up to so many microseconds; one piece in so many never ends, if not 0.
    pub gpu_us: u32,
    /// One piece of GPU work in so many never ends; none if 0.
    pub endless: u32,
    /// It leaves after so many frames; never if 0.
    pub leaves_after: u32,
    /// It lies once in so many frames; never if 0.
    pub lies: u32,
    /// It fails to import once in so many slots; never if 0.
    pub fails_to_import: u32,
    /// It does nothing for up to so many milliseconds, once in some frames.
    pub pauses_ms: u32,
    /// It sleeps on its socket only.
    pub on_socket: bool,
    /// Number of messages that its socket takes.
    pub room: usize,
    /// It acknowledges the end of these imports with the frame of this number, counted from 1, and
    /// keeps them.
    pub gives_up: Option<(u64, GivesUp)>,
    /// The exporter has no reason to disconnect it.
    pub is_blameless: bool,
}

/// Imports whose end a reader acknowledges without a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GivesUp {
    /// The end of the imports of a frame's generation.
    Generation,
    /// The end of the import of a frame's slot.
    Slot,
}

/// A frame that a reader holds.
struct Held {
    entry: EntryIndex,
    sequence: Sequence,
    tag: u64,
    import: Rc<Import>,
    is_fenced: bool,
}

/// The import of a slot.
struct Import {
    memory: Memory,
    process: Process,
    generation: Rc<Imports>,
    index: u32,
    is_retired_alone: Cell<bool>,
    channel: Channel,
}

/// The imports of a generation. The end of the last one is acknowledged.
struct Imports {
    generation: u32,
    channel: Channel,
}

impl Drop for Import {
    fn drop(&mut self) {
        if is_dying() {
            return;
        }
        self.memory.drop_import(self.process);
        if self.is_retired_alone.get() {
            let slot = SlotId { generation: self.generation.generation, index: self.index };
            self.channel.send_to_exporter(ToExporter::RetiredSlot { slot });
        }
    }
}

impl Drop for Imports {
    fn drop(&mut self) {
        if !is_dying() {
            self.channel.send_to_exporter(ToExporter::Retired { generation: self.generation });
        }
    }
}

/// An item for the application.
enum Item {
    Frame(Held),
    Unit(u64),
    Other,
}

/// The end of a reader.
enum Over {
    /// The connection has ended, for this reason.
    End(End),
    /// A rule was broken, which an honest exporter does not.
    Violation(String),
}

/// A reader.
pub struct Reader {
    process: Process,
    behaviour: Behaviour,
    record: Rc<Record>,
    channel: Channel,
    consumer: Rc<Consumer<SharedPage>>,
    shares: Shares,
    order: Order<Bytes>,
    progress: Progress,
    ending: Ending,
    kept: Kept<Bytes>,
    last_unit: u64,
    /// The last frame or unit that was taken, and the time of its publication in ns, or of the
    /// begin.
    last_taken: (Option<Sequence>, u64),
    /// The number of the last event; 0 at first.
    last_event: u64,
    generations: Generations<Rc<Imports>, Rc<Import>>,
    sleeping: Sleeping<WakeWord>,
    first: Sequence,
    live: Sequence,
    taken: u64,
    /// Work of its GPU that is under way.
    under_way: Rc<Cell<u32>>,
    /// The time since which the last item could have been taken.
    item_since: Time,
    /// It could not import memory of a GPU.
    cannot_import: bool,
    /// The greatest place among the frames of the messages so far: frames from this one on follow.
    message_place: Sequence,
}

/// The first message of a reader.
pub fn hello(process: Process, behaviour: &Behaviour) -> Hello {
    let memory = match behaviour.on_gpu {
        true => vec![MemoryKind::Host, MemoryKind::Vmm, MemoryKind::Legacy, MemoryKind::Pool],
        false => vec![MemoryKind::Host],
    };
    Hello {
        nonce: [process as u8; 16],
        name: format!("reader {process}"),
        policy: behaviour.policy,
        credit: behaviour.credit,
        max_queued: behaviour.max_queued,
        memory,
        fences: vec![FenceKind::None, FenceKind::Event, FenceKind::Timeline],
        gpus: Vec::new(),
        context: 1,
        host_fallback: true,
        max_gop_bytes: behaviour.max_gop_bytes,
    }
}

/// Connects to an exporter and reads frames until one of both ends.
pub fn run(process: Process, exporter: &Exporter, record: &Rc<Record>, behaviour: Behaviour) {
    let channel = Channel::new(behaviour.room);
    record.channels.borrow_mut().insert(process, channel.clone());
    let hello = hello(process, &behaviour);
    let begun = now().as_nanos();
    exporter.connect(Request { channel: channel.clone(), peer: behaviour.peer, hello });
    let is_answered =
        block("wait for the answer", Some(now() + Duration::from_secs(20)), || channel.peek_from_exporter());
    let answer = if is_answered { channel.receive_from_exporter() } else { Received::Nothing };
    let Received::Message((message, files)) = answer else {
        channel.close_reader();
        return;
    };
    let answer = ToReader::decode(&message).expect("an answer that readers accept");
    let ToReader::Welcome(welcome) = answer else {
        channel.close_reader();
        return;
    };
    let Some(File::Welcome(shares)) = files.into_iter().next() else {
        panic!("a Welcome without its descriptors");
    };
    let consumer = Consumer::new(shares.queue.clone(), shares.claims.clone(), welcome.credit as usize);
    let consumer = Rc::new(consumer.expect("the page is of this version"));
    let word = shares.word.clone().filter(|_| !behaviour.on_socket);
    let mut reader = Reader {
        process,
        record: record.clone(),
        channel,
        consumer,
        order: Order::new(1 << 30),
        progress: Progress::new(welcome.next),
        ending: Ending::default(),
        kept: Kept::new(behaviour.max_gop_bytes),
        last_unit: 0,
        last_taken: (None, begun),
        last_event: 0,
        generations: Generations::default(),
        sleeping: Sleeping::new(word),
        shares: *shares,
        first: welcome.next,
        live: welcome.live,
        taken: 0,
        under_way: Rc::default(),
        behaviour,
        item_since: Time::ZERO,
        cannot_import: false,
        message_place: Sequence(0),
    };
    reader.read();
}

impl Reader {
    /// Reads until the end.
    fn read(&mut self) {
        let mut held: VecDeque<Held> = VecDeque::new();
        let over = loop {
            match self.next_item() {
                Ok(Item::Frame(frame)) => {
                    self.taken += 1;
                    if self.behaviour.lies > 0 && chance(self.behaviour.lies) {
                        self.lie(&frame);
                    }
                    if let Some((number, what)) = self.behaviour.gives_up
                        && number == self.taken
                    {
                        self.give_up(&frame, what);
                    }
                    held.push_back(frame);
                    self.record.holding.borrow_mut().insert(self.process);
                    let is_over = held.len() > self.behaviour.holds;
                    let least = if is_over && self.behaviour.in_batches { 0 } else { self.behaviour.holds };
                    while held.len() > least {
                        let oldest = held.pop_front().expect("it is not empty");
                        self.use_frame(oldest);
                    }
                    if held.is_empty() {
                        self.record.holding.borrow_mut().remove(&self.process);
                    }
                    let leaves = self.behaviour.leaves_after;
                    if leaves > 0 && self.taken >= u64::from(leaves) {
                        break None;
                    }
                }
                Ok(Item::Unit(number)) => {
                    assert!(number > self.last_unit, "a kept unit came twice, or late");
                    self.last_unit = number;
                    self.last_taken.0 = Some(Sequence(number));
                    Outcome::KeptUnits.reach();
                }
                Ok(Item::Other) => {}
                Err(over) => break Some(over),
            }
            if self.behaviour.pauses_ms > 0 && chance(12) {
                take_time("reader pauses", self.behaviour.pauses_ms * 1000);
            }
        };
        if let Some(Over::Violation(what)) = &over {
            assert!(self.behaviour.lies > 0, "the exporter broke a rule: {what}");
        }
        trace!("ends: received {}, lost {}", self.progress.received(), self.progress.lost());
        if let Some(Over::End(end)) = &over {
            match end {
                End::Closed(Reason::Stopped, _) => {
                    Outcome::EndStopped.reach();
                    let (last, sent) = (self.last_event.max(self.events_before()), self.record.events.get());
                    let is_drained =
                        self.behaviour.policy == Policy::Lossless && self.record.is_drained.get();
                    let may_lack_some = !is_drained || is_dying();
                    assert!(may_lack_some || last == sent, "the last event was {last}, and not {sent}");
                }
                End::Closed(..) => {
                    assert!(!self.behaviour.is_blameless, "a reader was cut off: {end:?}");
                    Outcome::EndCutOff.reach();
                }
                _ => Outcome::EndHungUp.reach(),
            }
            self.check_losses(end);
        }
        if self.progress.lost() > 0 {
            Outcome::Lost.reach();
        }
        // It closes, releases what it holds, and drops its imports when its work is done.
        let text = "the reader has stopped".into();
        self.channel.send_to_exporter(ToExporter::Goodbye { reason: Reason::Stopped, text });
        while let Some(frame) = held.pop_front() {
            self.use_frame(frame);
        }
        let under_way = self.under_way.clone();
        block("wait for the own GPU", None, || under_way.get() == 0);
        self.generations = Generations::default();
        self.channel.close_reader();
        self.record.note_act();
    }

    /// A lossless reader loses nothing, unless it was evicted with a reason. Of a stream that is
    /// closed while frames wait for it, it loses the last ones; and those in memory that it cannot
    /// import.
    fn check_losses(&self, end: &End) {
        let is_evicted = matches!(end, End::Closed(reason, _) if *reason != Reason::Stopped);
        let is_cut_short = matches!(end, End::HungUp);
        let imports_all = self.behaviour.fails_to_import == 0;
        if self.behaviour.policy == Policy::Lossless
            && imports_all
            && !is_evicted
            && !is_cut_short
            && !is_dying()
        {
            let last = if self.record.is_drained.get() { 0 } else { self.progress.undelivered() };
            assert_eq!(self.progress.lost() - last, 0, "a lossless reader lost frames");
        }
    }

    /// Does what no correct reader does.
    fn lie(&self, frame: &Held) {
        use frameshare_queue::{Page as _, Word as _};
        Outcome::Lied.reach();
        self.record.careless.add(self.process);
        let words = self.shares.claims.words();
        match choose(5) {
            0 => {
                let at = choose(words.len() as u32) as usize;
                words[at].store(u64::from(choose(u32::MAX)), std::sync::atomic::Ordering::Relaxed);
            }
            1 => self.shares.fences.falsify(frame.entry, u64::MAX),
            2 => {
                let generation = choose(8);
                self.channel.send_to_exporter(ToExporter::Retired { generation });
            }
            3 => {
                let slot = SlotId { generation: choose(4), index: choose(4) };
                self.channel.send_to_exporter(ToExporter::RetiredSlot { slot });
            }
            _ => {
                let (generation, text) = (choose(8), "a lie".into());
                self.channel.send_to_exporter(ToExporter::CannotImport { generation, text });
            }
        }
    }

    /// Acknowledges the end of imports without a request, and keeps them.
    fn give_up(&self, frame: &Held, what: GivesUp) {
        Outcome::Lied.reach();
        self.record.careless.add(self.process);
        let generation = frame.import.generation.generation;
        self.channel.send_to_exporter(match what {
            GivesUp::Generation => ToExporter::Retired { generation },
            GivesUp::Slot => {
                ToExporter::RetiredSlot { slot: SlotId { generation, index: frame.import.index } }
            }
        });
    }

    /// Reads a frame, and releases it.
    fn use_frame(&self, frame: Held) {
        Outcome::Took.reach();
        let Held { entry, sequence, tag, import, is_fenced } = frame;
        let (process, gpu_us) = (self.process, self.behaviour.gpu_us);
        if !is_fenced {
            import.memory.begin_read(process, tag);
            take_time("reads a frame", self.behaviour.holds_us);
            import.memory.end_read(process, tag);
            // The frame that waits for this may leave before the call returns.
            self.record.note_release(process);
            self.release(entry, sequence);
            return;
        }
        Outcome::TookOnGpu.reach();
        take_time("holds a frame", self.behaviour.holds_us);
        let (ready, fences) = (self.shares.fences.ready(entry), self.shares.fences.clone());
        let is_endless = self.behaviour.endless > 0 && chance(self.behaviour.endless);
        let under_way = self.under_way.clone();
        under_way.set(under_way.get() + 1);
        let record = self.record.clone();
        spawn(process, "gpu reads", move || {
            block("gpu waits for the frame", None, || ready.peek() || record.has_exporter_died.get());
            if is_endless || !ready.peek() {
                record.careless.add(process);
                under_way.set(under_way.get() - 1);
                return;
            }
            import.memory.begin_read(process, tag);
            take_time("gpu reads", gpu_us);
            import.memory.end_read(process, tag);
            record.note_room(process);
            fences.release(entry, sequence);
            record.note_act();
            under_way.set(under_way.get() - 1);
        });
        self.release(entry, sequence);
    }

    fn release(&self, entry: EntryIndex, sequence: Sequence) {
        if self.consumer.release(entry, sequence) {
            self.channel.wake_exporter();
        }
        self.record.note_act();
    }

    /// Returns the next item.
    fn next_item(&mut self) -> Result<Item, Over> {
        if let Some(item) = self.next()? {
            return Ok(item);
        }
        let item = self.sleep();
        self.consumer.end_sleep();
        item
    }

    /// Sleeps until there is an item.
    fn sleep(&mut self) -> Result<Item, Over> {
        let mut slept_out = false;
        // The last sleep ended by itself, and nothing had arrived.
        let mut was_idle = false;
        loop {
            if self.sleeping.is_signaled() {
                self.drain();
            }
            let sleeper = self.sleeping.announce(Sleeper::Futex, WakeWord::value);
            self.consumer.announce_sleep(sleeper);
            if let Some(item) = self.next()? {
                if slept_out {
                    let who = format!("reader {}", self.process);
                    self.record.check_wake_up(&who, self.item_since);
                }
                return Ok(item);
            }
            if self.has_unreceived() {
                self.receive_announced()?;
            } else {
                let before = self.order.packets();
                slept_out = self.wait()?;
                let has_arrived = self.order.packets() != before || self.sleeping.is_signaled();
                let is_idle = slept_out && !has_arrived;
                assert!(!(is_idle && was_idle), "an idle reader woke up twice for nothing");
                was_idle = is_idle;
            }
            if let Some(item) = self.next()? {
                if slept_out {
                    let who = format!("reader {}", self.process);
                    self.record.check_wake_up(&who, self.item_since);
                }
                return Ok(item);
            }
        }
    }

    /// Sleeps once, and receives what has arrived. Returns whether the sleep ended by itself.
    fn wait(&mut self) -> Result<bool, Over> {
        let mut slept_out = false;
        let (channel, consumer) = (self.channel.clone(), self.consumer.clone());
        let sleeping = &mut self.sleeping;
        let mut step = sleeping.wait(true);
        let has_messages = loop {
            step = match step {
                SleepStep::Futex(word, value) => {
                    Outcome::SleptOnFutex.reach();
                    let until = now() + MAX_FUTEX_SLEEP;
                    let word = word.clone();
                    let slept = match block("sleep on futex", Some(until), || word.peek() != value) {
                        true => FutexSlept::Woken,
                        false => {
                            Outcome::SleptToBound.reach();
                            slept_out = true;
                            FutexSlept::AtBound { is_flag_set: consumer.is_asleep() }
                        }
                    };
                    sleeping.slept(slept)
                }
                SleepStep::Poll { may_sleep } => {
                    if may_sleep {
                        Outcome::SleptOnSocket.reach();
                        block("sleep on socket", None, || {
                            channel.peek_wake_for_reader() || channel.peek_from_exporter()
                        });
                    } else {
                        crate::task::step("poll");
                    }
                    sleeping.polled(channel.peek_wake_for_reader(), channel.peek_from_exporter())
                }
                SleepStep::Done { has_messages } => break has_messages,
            };
        };
        if has_messages {
            self.receive()?;
        } else if self.has_unreceived() {
            self.receive_announced()?;
        }
        Ok(slept_out)
    }

    fn drain(&mut self) {
        if self.sleeping.can_drain() {
            let is_open = self.channel.drain_for_reader();
            self.sleeping.drained(if is_open { Drained::Open } else { Drained::Closed });
        }
    }

    fn has_unreceived(&self) -> bool {
        self.sleeping.has_unreceived(|| self.consumer.packets_sent(), self.order.packets())
    }

    fn receive_announced(&mut self) -> Result<(), Over> {
        let before = self.order.packets();
        self.receive()?;
        self.sleeping.received_announced(self.order.packets() > before);
        Ok(())
    }

    /// Returns the next item in order, if it has arrived.
    fn next(&mut self) -> Result<Option<Item>, Over> {
        loop {
            if self.kept.is_due()
                && let Some((units, at)) = self.kept.next_record().map_err(violated)?
            {
                let number = units.number(at / RECORD);
                self.kept.pass(Sequence(number), at + RECORD).map_err(violated)?;
                self.progress.deliver_kept();
                return Ok(Some(Item::Unit(number)));
            }
            // The head is loaded before the claims.
            let head = self.consumer.head();
            let oldest = self.consumer.oldest().transpose().map_err(violated)?;
            let oldest = oldest.as_ref().map(|taken| (taken.entry, &taken.descriptor));
            let (entry, descriptor) =
                match self.order.next(head, oldest, self.progress.expected()).map_err(violated)? {
                    Step::Apply(before, message) => match self.apply(before, message) {
                        Some(item) => return Ok(Some(item)),
                        None => continue,
                    },
                    Step::Receive(frame) => {
                        let (frame, before) = (frame.clone(), self.order.messages());
                        self.receive()?;
                        Outcome::ReceivedFirst.reach();
                        match self.order.has_advanced(before, &frame).map_err(violated)? {
                            true => continue,
                            false => break,
                        }
                    }
                    Step::Wait => break,
                    Step::Take(entry, descriptor) => (entry, descriptor.clone()),
                };
            let sequence = descriptor.sequence;
            let place = self.generations.place(descriptor.slot);
            let is_in_reach = self.ending.is_connected() || place.is_imported();
            if !place.is_unreadable() && !is_in_reach {
                return self.end();
            }
            if !self.consumer.claim(entry, sequence) {
                Outcome::RevokedAtClaim.reach();
                continue;
            }
            let (is_fenced, is_unreadable) = (place.is_fenced(), place.is_unreadable());
            if is_unreadable {
                // The frame that waits for this may leave before the call returns.
                self.record.note_room(self.process);
                if is_fenced {
                    self.shares.fences.release(entry, sequence);
                }
                self.release(entry, sequence);
                continue;
            }
            if self.cannot_import && !is_fenced {
                Outcome::FellBack.reach();
            }
            let import = place.import(&descriptor).map_err(violated)?.clone();
            return Ok(Some(Item::Frame(self.frame(entry, &descriptor, import, is_fenced))));
        }
        self.end()
    }

    fn frame(
        &mut self,
        entry: EntryIndex,
        descriptor: &Descriptor,
        import: Rc<Import>,
        is_fenced: bool,
    ) -> Held {
        let sequence = descriptor.sequence;
        let lost = self.progress.deliver(sequence);
        assert!(sequence >= self.first, "a frame from before the reader joined");
        let place = self.message_place;
        assert!(sequence >= place, "frame {sequence} came after a message of place {place}");
        let tag = descriptor.media_offset.unwrap_or_default();
        let published = self.record.published.borrow().get(&sequence).copied();
        assert_eq!(published, Some(tag), "frame {sequence} is another one than was published");
        self.check_unit(sequence, tag, descriptor.published);
        if let Some(metadata) = self.order.take_metadata(sequence) {
            Outcome::Oversized.reach();
            assert_eq!(metadata, vec![tag as u8; OVERSIZED], "metadata of another frame");
        }
        if sequence < self.live {
            Outcome::Kept.reach();
        }
        self.item_since = Time::from_nanos(descriptor.published);
        trace!("takes frame {sequence} with tag {tag}, {lost} lost before");
        Held { entry, sequence, tag, import, is_fenced }
    }

    fn apply(&mut self, before: Sequence, message: Ordered<Bytes>) -> Option<Item> {
        // A message is due once it is sent, and the head has passed the frames before it.
        let head = &frameshare_queue::Page::words(&self.shares.queue)[queue::HEAD];
        self.item_since = self.channel.sent().max(head.stored());
        self.message_place = self.message_place.max(before);
        match message {
            Ordered::Format(..) => Outcome::GotFormat.reach(),
            Ordered::Event { sticky, payload, .. } => {
                Outcome::GotEvent.reach();
                self.check_event(sticky, &payload);
            }
            Ordered::EndOfStream => {
                Outcome::GotEnd.reach();
                self.progress.end(before);
            }
            Ordered::Retire(generation) => {
                Outcome::RetiredLater.reach();
                self.retire(generation);
                return None;
            }
            Ordered::Kept(units) => {
                self.kept.begin(units);
                return None;
            }
            Ordered::Skipped => {
                Outcome::Skipped.reach();
                self.progress.skip(before);
                return None;
            }
        }
        Some(Item::Other)
    }

    /// A reader of an encoded stream gets no unit without the one that it depends on, unless it has
    /// waited for a key unit for so long that there may be none.
    fn check_unit(&mut self, sequence: Sequence, tag: u64, published: u64) {
        let (last, since) = std::mem::replace(&mut self.last_taken, (Some(sequence), published));
        let is_delta = self.record.deltas.borrow().contains(&tag);
        let depends_on_lost = is_delta && last.is_none_or(|last| last.next() != sequence);
        let has_waited = Duration::from_nanos(published.saturating_sub(since)) >= MAX_WAIT;
        let is_checked = self.behaviour.lies == 0 && self.record.is_regular.get();
        let is_fine = !depends_on_lost || has_waited || !is_checked;
        assert!(is_fine, "unit {sequence} came without the one before it, after {last:?}");
    }

    /// No event is lost, comes twice or out of order. Sticky ones from before the reader joined
    /// come first.
    fn check_event(&mut self, sticky: bool, payload: &[u8]) {
        let number = u64::from_le_bytes(payload[..8].try_into().expect("it has eight bytes"));
        assert!(payload.chunks(8).all(|part| part == number.to_le_bytes()), "an event is torn");
        let (before, last) = (self.events_before(), self.last_event);
        let is_next = if number > before { number == last.max(before) + 1 } else { sticky && number > last };
        assert!(is_next, "event {number} came after event {last} and {before} before it joined");
        self.last_event = number;
        self.record.last_event.set(number);
    }

    fn events_before(&self) -> u64 {
        self.record.events_before.borrow()[&self.process]
    }

    fn retire(&mut self, generation: u32) {
        Outcome::Retired.reach();
        self.generations.retire(generation);
    }

    fn end(&mut self) -> Result<Option<Item>, Over> {
        let Some(end) = self.ending.ended().cloned() else { return Ok(None) };
        if self.ending.report() {
            self.progress.end(self.consumer.head());
        }
        Err(Over::End(end))
    }

    /// Receives messages up to the limits.
    fn receive(&mut self) -> Result<(), Over> {
        self.order.check_room().map_err(violated)?;
        let is_gone = self.sleeping.is_closed();
        for _ in 0..MAX_WAITING {
            if !self.ending.is_connected() || self.order.is_full() {
                break;
            }
            match self.channel.receive_from_exporter() {
                Received::Nothing if is_gone => self.ending.end(End::HungUp),
                Received::Nothing => break,
                Received::HungUp => self.ending.end(End::HungUp),
                Received::Message((message, files)) => {
                    self.record.note_room(self.process);
                    self.handle(&message, files)?;
                }
            }
        }
        Ok(())
    }

    fn handle(&mut self, message: &[u8], files: Vec<File>) -> Result<(), Over> {
        let message = ToReader::decode(message).map_err(violated)?;
        self.order.count_packet(message.is_ordered());
        let consumer = self.consumer.clone();
        let arrival = Arrival::of(message, |before| consumer.has_published(before)).map_err(violated)?;
        let file = files.into_iter().next();
        match arrival {
            Arrival::AtOnce(message) => self.handle_at_once(message, file),
            Arrival::Ordered(before, message) => {
                self.order.push(before, message);
                Ok(())
            }
            Arrival::Unread(before, Unread::Event { kind, sticky, payload }) => {
                let payload = content(payload, file.as_ref());
                self.order.push(before, Ordered::Event { kind, sticky, payload });
                Ok(())
            }
            Arrival::Unread(before, Unread::Metadata(payload)) => {
                self.order.push_metadata(before, content(payload, file.as_ref()));
                Ok(())
            }
            Arrival::Unread(before, Unread::KeptUnits { count, size }) => {
                let Some(File::Bytes(units)) = file else { panic!("kept units without their file") };
                assert!(self.taken == 0, "kept units behind a frame");
                self.kept.count(size).map_err(violated)?;
                let units = KeptUnits::new(units, count as usize * RECORD, count, before);
                self.order.push(before, Ordered::Kept(units));
                Ok(())
            }
        }
    }

    fn handle_at_once(&mut self, message: AtOnce, file: Option<File>) -> Result<(), Over> {
        match message {
            AtOnce::UseGpu { .. } | AtOnce::AddLargeAreas(_) => {}
            AtOnce::Add(new) => {
                self.generations.check_room().map_err(violated)?;
                let (generation, channel) = (new.generation, self.channel.clone());
                let imports = Rc::new(Imports { generation, channel });
                self.generations.add(new, imports).map_err(violated)?;
            }
            AtOnce::Import { slot, .. } => {
                let Some((kind, _, imports)) = self.generations.begin_import(slot).map_err(violated)? else {
                    return Ok(());
                };
                let imports = imports.clone();
                let Some(File::Slot(memory)) = file else { panic!("a slot without its memory") };
                step("import");
                if kind.is_gpu()
                    && self.behaviour.fails_to_import > 0
                    && chance(self.behaviour.fails_to_import)
                {
                    Outcome::CannotImport.reach();
                    self.cannot_import = true;
                    self.generations.mark_unreadable(slot.generation);
                    let (generation, text) = (slot.generation, "no memory".into());
                    self.channel.send_to_exporter(ToExporter::CannotImport { generation, text });
                    return Ok(());
                }
                memory.import(self.process);
                let import = Rc::new(Import {
                    memory,
                    process: self.process,
                    generation: imports,
                    index: slot.index,
                    is_retired_alone: Cell::new(false),
                    channel: self.channel.clone(),
                });
                self.generations.insert(slot, import).map_err(violated)?;
            }
            AtOnce::Retire(generation) => self.retire(generation),
            AtOnce::RetireSlot(slot) => {
                Outcome::RetiredSlot.reach();
                match self.generations.retire_slot(slot).map_err(violated)? {
                    Some(import) => import.is_retired_alone.set(true),
                    None => self.channel.send_to_exporter(ToExporter::RetiredSlot { slot }),
                }
            }
            AtOnce::End(end) => self.ending.end(end),
        }
        Ok(())
    }
}

fn content(payload: Payload, file: Option<&File>) -> Vec<u8> {
    match (payload, file) {
        (Payload::Inline(bytes), _) => bytes,
        (Payload::Sealed(length), Some(File::Bytes(bytes))) => bytes.load(length as usize),
        (Payload::Sealed(_), _) => panic!("a payload without its file"),
    }
}

fn violated(error: impl std::fmt::Display) -> Over {
    Over::Violation(error.to_string())
}
