//! One session with an exporter.

use super::{
    Config, ConnectError, Item, ReadError, Stats,
    frame::{Frame, Lease},
    imports::{Imported, Imports},
    rescue::{rescue, watch},
    session::Session,
};
use crate::{
    Interrupt,
    event::Event,
    fence::{ReaderFence, event::ReaderEvents, none::NoFence, timeline::Timeline},
    memory::{Importer, frees_imports_first, importer, local},
    queue::{Consumer, Taken},
    sys::{
        Mapping, Peer, Received, SealedAgainst, Socket, Timeout, Wake, Words, check_memfd, is_ready,
        load_bytes, process_nonce, wait,
    },
};
use frameshare_cuda::{
    context::Context,
    device::{Device, Uuid},
};
use frameshare_protocol::{
    FenceKind, MemoryKind,
    limits::METADATA_AREA,
    message::{Format, Payload, Reason, ToExporter, ToReader, Welcome},
    page::{claims_size, metadata_size, queue_size, timeline_size},
};
use rustix::event::{PollFd, PollFlags};
use std::{
    collections::{BTreeMap, VecDeque},
    io,
    os::fd::{AsFd, OwnedFd},
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

/// Most messages that wait for the frame that they precede, and most bytes of payload in them. An exporter that keeps
/// the rules sends none far ahead of its frames.
const MAX_PENDING: usize = 4096;
const MAX_PENDING_BYTES: usize = 128 << 20;
/// Most generations, and most slots of all of them, that are imported at once: a process has no more than some 65,000
/// mappings for everything that it does.
const MAX_GENERATIONS: usize = 64;
const MAX_IMPORTS: usize = 8192;
/// An exporter takes a frame back now and then, but not so many times in a row just when it is to be taken.
const MAX_REVOKED: u32 = 1000;

/// A generation that frames may still come in.
#[derive(Debug)]
struct Generation {
    kind: MemoryKind,
    /// `None` for memory of this process that CUDA does not let it import: there the exporter's own is used.
    importer: Option<Arc<dyn Importer>>,
    // Slots go before the imports' acknowledgement.
    slots: BTreeMap<u32, Arc<Imported>>,
    imports: Arc<Imports>,
}

/// A message that waits for its place among the frames.
#[derive(Debug)]
enum Pending {
    Format(Arc<Format>),
    Event(Event),
    EndOfStream,
    Retire(u32),
    Metadata(Vec<u8>),
}

impl Pending {
    /// How many bytes wait in it, besides itself.
    fn bytes(&self) -> usize {
        match self {
            Self::Format(format) => format.caps.len(),
            Self::Event(event) => event.payload.len(),
            Self::Metadata(bytes) => bytes.len(),
            Self::EndOfStream | Self::Retire(_) => 0,
        }
    }
}

/// One session with an exporter.
#[derive(Debug)]
pub(super) struct Connection {
    session: Arc<Session>,
    peer: Peer,
    credit: u32,
    areas: u32,
    metadata: Words,
    gpu: Option<Arc<Context>>,
    /// The exporter is in this very process.
    local: bool,
    gpu_wait: bool,
    fence_timeout: Duration,
    /// The oldest frame's fence was pending when it was looked at last, and has been since this moment.
    unwritten: Option<(u64, Instant)>,
    /// Frames that were delivered ahead of their fences, with their entries.
    ahead: VecDeque<(usize, u64)>,
    generations: BTreeMap<u32, Generation>,
    /// Ordered messages received so far.
    messages: u64,
    /// With the sequence number of the first frame after each.
    pending: VecDeque<(u64, Pending)>,
    pending_bytes: usize,
    /// The metadata of the frame to come, if it came as a message.
    bulky: Option<(u64, Vec<u8>)>,
    /// The sequence number that the next frame would have if none were lost.
    expected: u64,
    received: u64,
    lost: u64,
    /// The exporter has closed its end of the wake socket.
    rings_no_more: bool,
    /// How the exporter went, once it has.
    over: Option<Over>,
    /// Streams that wait for it are being freed.
    rescued: bool,
}

#[derive(Debug)]
enum Over {
    HungUp,
    /// A frame's fence did not come in time.
    Stalled(u64),
    Goodbye(Reason, String),
}

impl Connection {
    /// Maps what came with the welcome. Nothing of it is trusted.
    pub fn new(
        socket: Socket,
        peer: Peer,
        welcome: Welcome,
        fds: Vec<OwnedFd>,
        config: &Config,
    ) -> Result<Self, ConnectError> {
        let invalid = |text: &str| ConnectError::Violation(text.into());
        let unmapped = |error: io::Error| ConnectError::Violation(error.to_string());
        let local = welcome.nonce == process_nonce();
        let mut fds = fds.into_iter();
        let (Some(queue), Some(claims), Some(metadata), Some(wake)) =
            (fds.next(), fds.next(), fds.next(), fds.next())
        else {
            return Err(invalid("its welcome came without the descriptors that belong to it"));
        };
        let entries = welcome.credit as usize;
        let map = |fd: OwnedFd, size: usize, writable: bool| {
            let against = if writable { SealedAgainst::Resizing } else { SealedAgainst::ResizingAndWriting };
            check_memfd(&fd, size as u64, against)?;
            let mapping = if writable { Mapping::writable(&fd, size) } else { Mapping::read_only(&fd, size) };
            mapping.map(Words::from)
        };
        let queue = map(queue, queue_size(entries), false).map_err(unmapped)?;
        let claims = map(claims, claims_size(entries), true).map_err(unmapped)?;
        let metadata = map(metadata, metadata_size(welcome.areas), false).map_err(unmapped)?;
        let consumer = Consumer::new(queue, claims, entries)
            .ok_or_else(|| invalid("its queue is of another version"))?;
        let gpu = config.gpu.clone().filter(|_| welcome.fence != FenceKind::None);
        if let (Some(gpu), Some(theirs)) = (&gpu, welcome.gpu) {
            check_reach(gpu, Uuid(theirs))?;
        }
        let fence: Box<dyn ReaderFence> = match (welcome.fence, &gpu, fds.next()) {
            (FenceKind::None, _, None) => Box::new(NoFence),
            (FenceKind::Timeline, Some(gpu), Some(page)) => {
                let words = map(page, timeline_size(entries), true).map_err(unmapped)?;
                Box::new(Timeline::new(gpu, words)?)
            }
            (FenceKind::Event, Some(gpu), None) if local => Box::new(
                ReaderEvents::find(gpu, &welcome.events).ok_or_else(|| {
                    ConnectError::Gpu("within one process event fences need the exporter's CUDA context: use timeline fences".into())
                })?,
            ),
            (FenceKind::Event, Some(gpu), None) => {
                Box::new(ReaderEvents::open(gpu, &welcome.events).map_err(ConnectError::of_events)?)
            }
            _ => return Err(invalid("it chose a fence that was not offered")),
        };
        let wake = Wake::from_peer(wake).map_err(unmapped)?;
        let session = Session::new(welcome.session, consumer, wake, socket, fence, gpu.as_ref())?;
        let session = Arc::new(session);
        let gpu_wait = config.gpu_wait.unwrap_or(welcome.fence == FenceKind::Timeline);
        if gpu_wait && welcome.fence == FenceKind::Timeline && !local {
            watch(&session, peer.gone.as_ref());
        }
        Ok(Self {
            local,
            gpu_wait,
            fence_timeout: config.fence_timeout,
            unwritten: None,
            ahead: VecDeque::new(),
            session,
            peer,
            credit: welcome.credit,
            areas: welcome.areas,
            metadata,
            gpu,
            generations: BTreeMap::new(),
            messages: 0,
            pending: VecDeque::new(),
            pending_bytes: 0,
            bulky: None,
            expected: welcome.next,
            received: 0,
            lost: 0,
            rings_no_more: false,
            over: None,
            rescued: false,
        })
    }

    /// The next thing in order that is there. An error only after all that was there before it.
    pub fn next(&mut self) -> Result<Option<Item>, ReadError> {
        if let Some(text) = self.session.failure() {
            return Err(ReadError::Fence(text.into()));
        }
        let mut revoked = 0;
        loop {
            if revoked > MAX_REVOKED {
                return Err(ReadError::Violation(
                    "every frame is taken back just when it is to be taken".into(),
                ));
            }
            let oldest = self.session.consumer.oldest();
            let Some(taken) = oldest.transpose().map_err(|error| ReadError::Violation(error.to_string()))?
            else {
                // Nothing is published below the head that was not taken: a message in its place is due.
                match self.apply_due(self.session.consumer.head()) {
                    Some(Some(item)) => return Ok(Some(item)),
                    Some(None) => continue,
                    None => {
                        self.look_ahead(None)?;
                        return self.over();
                    }
                }
            };
            let sequence = taken.descriptor.sequence;
            if sequence < self.expected {
                return Err(ReadError::Violation(format!(
                    "frame {sequence} came after frame {}",
                    self.expected - 1
                )));
            }
            // Messages come in order, so those that are here come before those that are still under way.
            match self.apply_due(sequence) {
                Some(Some(item)) => return Ok(Some(item)),
                Some(None) => continue,
                None => {}
            }
            if self.messages < taken.descriptor.messages {
                let before = self.messages;
                self.receive()?;
                if self.messages == before {
                    if !self.session.consumer.claim(taken.entry, sequence) {
                        revoked += 1;
                        continue;
                    }
                    return Err(ReadError::Violation(format!(
                        "a message before frame {sequence} did not come"
                    )));
                }
                continue;
            }
            if !self.may_be_delivered(taken.entry, sequence)? {
                return self.over();
            }
            if !self.session.consumer.claim(taken.entry, sequence) {
                revoked += 1;
                continue;
            }
            return self.frame(taken).map(|frame| Some(Item::Frame(frame)));
        }
    }

    /// Applies the message that waits first, if its place is at `sequence` or before: `None` if it is not,
    /// `Some(None)` if it yields nothing.
    fn apply_due(&mut self, sequence: u64) -> Option<Option<Item>> {
        self.pending.front().filter(|(before, _)| *before <= sequence)?;
        let (before, pending) = self.pending.pop_front()?;
        self.pending_bytes -= pending.bytes();
        Some(match pending {
            Pending::Format(format) => Some(Item::Format(format)),
            Pending::Event(event) => Some(Item::Event(event)),
            Pending::EndOfStream => Some(Item::EndOfStream),
            Pending::Retire(generation) => {
                self.generations.remove(&generation);
                None
            }
            Pending::Metadata(bytes) => {
                self.bulky = Some((before, bytes));
                None
            }
        })
    }

    /// Makes a frame of what was claimed: from here on it is released whatever happens.
    fn frame(&mut self, taken: Taken) -> Result<Frame, ReadError> {
        let Taken { entry, descriptor } = taken;
        let sequence = descriptor.sequence;
        let lease = Lease::new(self.session.clone(), entry, sequence);
        let lost_before = sequence - self.expected;
        self.expected = sequence + 1;
        self.lost += lost_before;
        self.received += 1;

        let violation = |text: &str| ReadError::Violation(format!("frame {sequence}: {text}"));
        let generation = self
            .generations
            .get(&descriptor.generation)
            .ok_or_else(|| violation("its generation is unknown"))?;
        let import =
            generation.slots.get(&descriptor.slot).ok_or_else(|| violation("its slot is unknown"))?;
        descriptor
            .check_frame(generation.imports.slot_size)
            .map_err(|error| ReadError::Violation(error.to_string()))?;
        if descriptor.area >= self.areas {
            return Err(violation("its metadata area does not exist"));
        }
        let metadata = match self.bulky.take() {
            Some((of, bytes)) if of == sequence => bytes,
            _ => {
                let at = descriptor.area as usize * METADATA_AREA / 8;
                load_bytes(&self.metadata, at, descriptor.metadata as usize)
            }
        };
        Ok(Frame::new(descriptor, lost_before, metadata, import.clone(), generation.imports.clone(), lease))
    }

    /// Whether a frame is written, or may be delivered ahead of its fence. One that is not written when the exporter
    /// is gone never will be.
    fn may_be_delivered(&mut self, entry: usize, sequence: u64) -> Result<bool, ReadError> {
        if self.session.fence.kind() == FenceKind::None {
            return Ok(true);
        }
        // An entry is used again only when its last frame has been written and read; its event speaks of this one now.
        self.ahead.retain(|(used, _)| *used != entry);
        let is_pending = self.is_pending(entry, sequence)?;
        self.look_ahead(is_pending.then_some(sequence))?;
        let may = !is_pending || (self.gpu_wait && self.over.is_none());
        if is_pending && may {
            self.ahead.push_back((entry, sequence));
        }
        Ok(may)
    }

    fn is_pending(&self, entry: usize, sequence: u64) -> Result<bool, ReadError> {
        let written = self.session.is_written(entry, sequence);
        written.map(|written| !written).map_err(|error| ReadError::Fence(error.to_string()))
    }

    /// Looks whether frames that were delivered ahead of their fences have been written, and for how long the oldest that
    /// has not been, or else frame `next`, has kept everyone waiting: frames are written in order.
    fn look_ahead(&mut self, next: Option<u64>) -> Result<(), ReadError> {
        while let Some(&(entry, sequence)) = self.ahead.front() {
            if self.is_pending(entry, sequence)? {
                break;
            }
            self.ahead.pop_front();
        }
        let Some(oldest) = self.ahead.front().map(|(_, sequence)| *sequence).or(next) else {
            self.unwritten = None;
            return Ok(());
        };
        match self.unwritten {
            Some((of, since)) if of == oldest => {
                if since.elapsed() > self.fence_timeout {
                    self.over.get_or_insert(Over::Stalled(oldest));
                }
            }
            _ => self.unwritten = Some((oldest, Instant::now())),
        }
        Ok(())
    }

    /// Whether the next frame is published, and waits for its fence.
    pub fn awaits_fence(&self) -> bool {
        self.unwritten.is_some()
    }

    /// How the exporter went, if it has, and nothing else is left to be delivered.
    fn over(&mut self) -> Result<Option<Item>, ReadError> {
        let Some(over) = &self.over else { return Ok(None) };
        let torn = self.count_torn();
        self.rescue_streams(matches!(over, Over::Goodbye(..)));
        match &self.over {
            None => Ok(None),
            Some(Over::HungUp) => Err(ReadError::Gone { torn }),
            Some(Over::Stalled(sequence)) => Err(ReadError::Stalled { sequence: *sequence, torn }),
            Some(Over::Goodbye(Reason::Stopped, text)) => Err(ReadError::Stopped(text.clone())),
            Some(Over::Goodbye(reason, text)) => {
                Err(ReadError::CutOff { reason: *reason, text: text.clone() })
            }
        }
    }

    /// How many frames were delivered ahead of a fence that never came.
    fn count_torn(&self) -> u64 {
        let unwritten = |(entry, sequence): &&(usize, u64)| {
            !matches!(self.session.is_written(*entry, *sequence), Ok(true))
        };
        self.ahead.iter().filter(unwritten).count() as u64
    }

    /// Frees the streams that wait for frames that will not be written.
    fn rescue_streams(&mut self, said_goodbye: bool) {
        // An exporter in this process ends its work whether or not it says goodbye.
        if self.session.fence.kind() == FenceKind::Timeline
            && self.peer.pid != std::process::id()
            && !self.rescued
        {
            self.rescued = true;
            rescue(self.session.clone(), self.peer.gone.take(), said_goodbye);
        }
    }

    /// Takes the messages that have come, as many as may wait.
    pub fn receive(&mut self) -> Result<(), ReadError> {
        // All that was due has been applied before.
        if self.is_overrun() {
            return Err(ReadError::Violation("its messages are for frames that do not come".into()));
        }
        // An exporter that never stops talking is heard in turns.
        for _ in 0..MAX_PENDING {
            if self.over.is_some() || self.is_overrun() {
                break;
            }
            let failed = |error: io::Error| match error.kind() {
                io::ErrorKind::InvalidData => ReadError::Violation(error.to_string()),
                _ => ReadError::Io(error),
            };
            match self.session.socket.receive().map_err(failed)? {
                Received::Nothing => break,
                Received::HungUp => self.over = Some(Over::HungUp),
                Received::Packet(packet, fds) => self.hear(&packet, fds)?,
            }
        }
        if self.over.is_none() && (self.rings_no_more || self.exporter_is_gone()) {
            self.over = Some(Over::HungUp);
        }
        Ok(())
    }

    /// Whether more waits than may.
    fn is_overrun(&self) -> bool {
        self.pending.len() >= MAX_PENDING || self.pending_bytes >= MAX_PENDING_BYTES
    }

    /// Whether the exporter's process is gone, though its socket may be kept open by a forked child.
    fn exporter_is_gone(&self) -> bool {
        let Some(gone) = &self.peer.gone else { return false };
        let mut fds = [PollFd::new(gone, PollFlags::IN)];
        wait(&mut fds, Timeout::after(Some(Duration::ZERO))).is_ok() && is_ready(&fds[0])
    }

    fn hear(&mut self, packet: &[u8], fds: Vec<OwnedFd>) -> Result<(), ReadError> {
        let violation = |text: String| ReadError::Violation(text);
        let message = ToReader::decode(packet).map_err(|error| violation(error.to_string()))?;
        if !message.fds().contains(&fds.len()) {
            return Err(violation("a message came without its descriptor, or with one too many".into()));
        }
        self.messages += u64::from(message.is_ordered());
        let fd = fds.into_iter().next();
        match message {
            ToReader::Generation { generation, memory, slot_size } => {
                if self.generations.len() >= MAX_GENERATIONS {
                    return Err(violation(format!("it has more than {MAX_GENERATIONS} generations")));
                }
                let session = self.session.clone();
                let gpu = self.gpu.as_ref();
                let own = self.local && frees_imports_first(memory);
                let importer = (!own).then(|| importer(memory, gpu, fd)).transpose()?;
                let imports = Arc::new(Imports { generation, slot_size, session });
                let new = Generation { kind: memory, importer, slots: BTreeMap::new(), imports };
                if self.generations.insert(generation, new).is_some() {
                    return Err(violation(format!("generation {generation} came twice")));
                }
            }
            ToReader::Slot { generation, slot, handle } => self.import(generation, slot, &handle, fd)?,
            ToReader::Retire { before, generation } => {
                self.push(before, Pending::Retire(generation));
            }
            ToReader::Format { before, format } => self.push(before, Pending::Format(Arc::new(format))),
            ToReader::Event { before, kind, payload } => {
                let payload = open(payload, fd).map_err(|error| violation(error.to_string()))?;
                self.push(before, Pending::Event(Event { kind, sticky: false, payload }));
            }
            ToReader::Metadata { sequence, payload } => {
                let payload = open(payload, fd).map_err(|error| violation(error.to_string()))?;
                self.push(sequence, Pending::Metadata(payload));
            }
            ToReader::EndOfStream { before } => self.push(before, Pending::EndOfStream),
            ToReader::Goodbye { reason, text } => self.over = Some(Over::Goodbye(reason, text)),
            ToReader::Welcome(_) | ToReader::Refused { .. } => {
                return Err(violation("it answered a greeting that nobody sent".into()));
            }
        }
        Ok(())
    }

    fn push(&mut self, before: u64, pending: Pending) {
        self.pending_bytes += pending.bytes();
        self.pending.push_back((before, pending));
    }

    fn import(
        &mut self,
        generation: u32,
        slot: u32,
        handle: &[u8],
        fd: Option<OwnedFd>,
    ) -> Result<(), ReadError> {
        let imports: usize = self.generations.values().map(|one| one.slots.len()).sum();
        if imports >= MAX_IMPORTS {
            return Err(ReadError::Violation(format!("it has more than {MAX_IMPORTS} slots")));
        }
        let found = self.generations.get_mut(&generation);
        let found =
            found.ok_or_else(|| ReadError::Violation(format!("slot {slot} is of an unknown generation")))?;
        let import = match &found.importer {
            Some(importer) => importer.import(found.imports.slot_size, handle, fd)?,
            None => local::find((self.session.id, generation, slot), found.kind, self.gpu.as_ref())?,
        };
        match found.slots.insert(slot, Arc::new(Imported::new(import))) {
            Some(_) => Err(ReadError::Violation(format!("slot {slot} came twice"))),
            None => Ok(()),
        }
    }

    pub fn announce_sleep(&self) {
        self.session.consumer.announce_sleep();
    }

    pub fn end_sleep(&self) {
        self.session.consumer.end_sleep();
    }

    pub fn drain_wake(&mut self) {
        self.rings_no_more |= !self.session.wake.drain();
    }

    pub fn wake(&self) -> &Wake {
        &self.session.wake
    }

    /// Sleeps until the exporter rings or says something, and hears what it said.
    pub fn sleep(&mut self, interrupt: &Interrupt, timeout: Timeout) -> Result<(), ReadError> {
        let poll = |fd| PollFd::from_borrowed_fd(fd, PollFlags::IN);
        let (wake, socket) = (self.session.wake.as_fd(), self.session.socket.as_fd());
        let gone = self.peer.gone.as_ref().map_or(socket, |gone| gone.as_fd());
        let mut fds = [poll(interrupt.as_fd()), poll(wake), poll(socket), poll(gone)];
        wait(&mut fds, timeout).map_err(ReadError::Io)?;
        let (rang, spoke) = (is_ready(&fds[1]), is_ready(&fds[2]) || is_ready(&fds[3]));
        if rang {
            self.drain_wake();
        }
        if spoke || self.rings_no_more { self.receive() } else { Ok(()) }
    }

    pub fn is_on_gpu(&self) -> bool {
        self.gpu.is_some()
    }

    pub fn credit(&self) -> u32 {
        self.credit
    }

    pub fn held(&self) -> u32 {
        self.session.held.load(Ordering::Relaxed)
    }

    pub fn stats(&self) -> Stats {
        Stats {
            session: self.session.id,
            exporter_pid: self.peer.pid,
            credit: self.credit,
            held: self.held(),
            received: self.received,
            lost: self.lost,
            reconnects: 0,
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let goodbye = ToExporter::Goodbye { reason: Reason::Stopped, text: "the reader has stopped".into() };
        if let Ok(packet) = goodbye.encode() {
            // Frames that are still out keep the socket open, so the exporter has to be told.
            let _ = self.session.socket.send(&packet, &[]);
        }
    }
}

/// Checks that a context can read what lies on the exporter's GPU.
fn check_reach(gpu: &Context, theirs: Uuid) -> Result<(), ConnectError> {
    if gpu.device().uuid() == theirs {
        return Ok(());
    }
    let there = Device::with_uuid(theirs)?.ok_or_else(|| {
        ConnectError::Gpu(format!("the frames are on GPU {theirs}, which this process cannot see"))
    })?;
    if gpu.device().can_access(&there)? {
        Ok(())
    } else {
        Err(ConnectError::Gpu(format!("the frames are on {there}, which {} cannot read", gpu.device())))
    }
}

/// The bytes of a payload, wherever they travelled.
fn open(payload: Payload, fd: Option<OwnedFd>) -> io::Result<Vec<u8>> {
    match (payload, fd) {
        (Payload::Inline(bytes), _) => Ok(bytes),
        (Payload::Sealed(size), Some(fd)) => {
            check_memfd(&fd, size, SealedAgainst::ResizingAndWriting)?;
            let len = usize::try_from(size).map_err(|_| io::ErrorKind::OutOfMemory)?;
            // Whole words are mapped; past the file's end the last page reads as zero.
            let words = Words::from(Mapping::read_only(&fd, len.next_multiple_of(8))?);
            Ok(load_bytes(&words, 0, len))
        }
        (Payload::Sealed(_), None) => Err(io::ErrorKind::InvalidData.into()),
    }
}
