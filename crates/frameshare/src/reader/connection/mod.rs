// SPDX-License-Identifier: MIT OR Apache-2.0

//! One session with an exporter: ordering of messages and frames.

mod ahead;
mod messages;

pub(super) use self::ahead::Look;
use self::messages::Pending;
use super::{
    Config, ConnectError, Item, ReadError, Stats,
    frame::{Frame, Lease},
    imports::{Imported, Imports},
    rescue::watch,
    session::Session,
    waits::Waits,
};
use crate::{
    Interrupt,
    fence::{
        ReaderFence,
        event::ReaderEvents,
        none::NoFence,
        timeline::{ReaderTimeline, TimelinePage},
    },
    memory::Importer,
    queue::{Consumer, Taken},
    sys::{
        Drained, Mapping, Peer, ProcessLock, SealedAgainst, Socket, Timeout, UntrustedFd, Wake, Words,
        check_memfd, is_ready, load_bytes, wait,
    },
};
use frameshare_cuda::{
    context::Context,
    device::{Device, Uuid},
};
use frameshare_protocol::{
    Descriptor, FenceKind, MemoryKind,
    limits::{MAX_BACKLOG, METADATA_AREA},
    message::{EVENT_HANDLE, Reason, Welcome},
    page::{claims_size, metadata_size, queue_size},
};
use rustix::event::{PollFd, PollFlags};
use std::{
    collections::{BTreeMap, VecDeque},
    io,
    os::fd::AsFd,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

/// Maximum number of consecutive frames that the exporter revokes at the moment of their claim.
const MAX_REVOKED: u32 = 1000;

/// A generation whose frames may still arrive.
#[derive(Debug)]
struct Generation {
    kind: MemoryKind,
    /// `None` for memory of this process that CUDA cannot import: the exporter's own mapping is
    /// used.
    importer: Option<Arc<dyn Importer>>,
    slots: BTreeMap<u32, Arc<Imported>>,
    imports: Arc<Imports>,
    /// The exporter has other memory if an import fails.
    replaceable: bool,
    /// An import failed: no frame in it is taken.
    is_unreadable: bool,
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
    /// The GPU that the exporter has frames on, whether or not this reader gets them there.
    exporter_gpu: Option<Uuid>,
    /// The kind of memory that the exporter announced with the last format.
    memory: MemoryKind,
    /// The exporter is in this very process.
    local: bool,
    gpu_wait: bool,
    gpu_wait_wanted: Option<bool>,
    /// The context of the configuration.
    offered: Option<Arc<Context>>,
    host_fallback: bool,
    fence_timeout: Duration,
    look: Look,
    generations: BTreeMap<u32, Generation>,
    /// Number of ordered messages received so far.
    messages: u64,
    /// Waiting messages, with the sequence number of the first frame after each.
    pending: VecDeque<(u64, Pending)>,
    pending_bytes: usize,
    /// Limit of `pending_bytes`, and of each message.
    max_metadata_bytes: u64,
    /// Oversized metadata of the next frame, which arrived as a message.
    bulky: Option<(u64, Vec<u8>)>,
    /// The next sequence number if no frame is lost.
    expected: u64,
    received: u64,
    /// Frames lost before delivered ones.
    lost: u64,
    /// Frames lost after the last delivered one, when the stream ended or the exporter died.
    undelivered: u64,
    /// A wake-up has arrived and is not drained yet.
    rang: bool,
    /// State of the wake-up socket when it was last drained.
    wake_state: Drained,
    /// The end of the exporter, once it is known.
    over: Option<Over>,
    /// The end was reported.
    end_is_told: bool,
    /// Waiting streams are being unblocked.
    rescued: bool,
}

#[derive(Debug)]
enum Over {
    HungUp,
    /// A frame's ready fence missed its deadline.
    Stalled(u64),
    Goodbye(Reason, String),
}

impl Connection {
    /// Maps the pages of the `Welcome`. Each is checked first.
    pub fn new(
        socket: Socket,
        peer: Peer,
        welcome: Welcome,
        fds: Vec<UntrustedFd>,
        config: &Config,
    ) -> Result<Self, ConnectError> {
        let invalid = |text: &str| ConnectError::Violation(text.into());
        let unmapped = |error: io::Error| ConnectError::Violation(error.to_string());
        let local = peer.is_this_process(&welcome.nonce);
        let mut fds = fds.into_iter();
        let (Some(queue), Some(claims), Some(metadata), Some(wake)) =
            (fds.next(), fds.next(), fds.next(), fds.next())
        else {
            return Err(invalid("its welcome came without the descriptors that belong to it"));
        };
        let entries = welcome.credit as usize;
        let map = |fd: &UntrustedFd, size: usize, writable: bool| {
            let against = if writable { SealedAgainst::Resizing } else { SealedAgainst::ResizingAndWriting };
            check_memfd(fd, size as u64, against)?;
            let mapping = if writable { Mapping::writable(fd, size) } else { Mapping::read_only(fd, size) };
            mapping.map(Words::from)
        };
        let queue = map(&queue, queue_size(entries), false).map_err(unmapped)?;
        let claims_page = map(&claims, claims_size(entries), true).map_err(unmapped)?;
        // This process never closes another descriptor of the page: that would end the lock.
        let life = ProcessLock::new(claims);
        let metadata = map(&metadata, metadata_size(welcome.areas), false).map_err(unmapped)?;
        let consumer = Consumer::new(queue, claims_page, entries)
            .ok_or_else(|| invalid("its queue is of another version"))?;
        let gpu = config.gpu.clone().filter(|_| welcome.fence != FenceKind::None);
        let fence: Box<dyn ReaderFence> = match (&gpu, fds.next()) {
            (None, None) if welcome.fence == FenceKind::None => Box::new(NoFence),
            (Some(gpu), page) => {
                if let Some(theirs) = welcome.gpu {
                    check_reach(gpu, Uuid(theirs))?;
                }
                open_fence(welcome.fence, gpu, page, &welcome.events, entries, local)?
            }
            _ => return Err(invalid("it chose a fence that was not offered")),
        };
        let wake = Wake::from_peer(wake).map_err(unmapped)?;
        let waits = Waits::new(fence, gpu.clone());
        let session = Session::new(welcome.session, consumer, wake, socket, waits)?.with_life(life);
        let session = Arc::new(session);
        let mut connection = Self {
            local,
            gpu_wait: false,
            offered: config.gpu.clone(),
            gpu_wait_wanted: config.gpu_wait,
            host_fallback: config.host_fallback,
            fence_timeout: config.fence_timeout,
            look: Look::Not,
            session,
            peer,
            credit: welcome.credit,
            areas: welcome.areas,
            metadata,
            gpu,
            exporter_gpu: welcome.gpu.map(Uuid),
            memory: MemoryKind::Host,
            generations: BTreeMap::new(),
            messages: 0,
            pending: VecDeque::new(),
            pending_bytes: 0,
            max_metadata_bytes: config.max_metadata_bytes,
            bulky: None,
            expected: welcome.next,
            received: 0,
            lost: 0,
            undelivered: 0,
            rang: false,
            wake_state: Drained::Open,
            over: None,
            end_is_told: false,
            rescued: false,
        };
        connection.wait_as_configured();
        Ok(connection)
    }

    /// Decides on speculative delivery, once the kind of fence is known.
    fn wait_as_configured(&mut self) {
        let is_timeline = self.session.waits().fence.kind() == FenceKind::Timeline;
        self.gpu_wait = self.gpu_wait_wanted.unwrap_or(is_timeline);
        if self.gpu_wait && is_timeline && !self.local {
            watch(&self.session, self.peer.gone.as_ref(), self.fence_timeout);
        }
    }

    /// Handles an exporter that begins to use a GPU, with this kind of fence.
    fn use_gpu(
        &mut self,
        theirs: Uuid,
        fence: FenceKind,
        events: &[u8],
        page: Option<UntrustedFd>,
    ) -> Result<(), ReadError> {
        self.exporter_gpu = Some(theirs);
        let entries = self.credit as usize;
        let expected =
            if fence == FenceKind::Event && !self.local { 2 * entries * EVENT_HANDLE } else { events.len() };
        let Some(gpu) = self.offered.clone().filter(|_| self.gpu.is_none() && events.len() == expected)
        else {
            return Err(ReadError::Violation("it uses a GPU that was not offered".into()));
        };
        let open = || -> Result<(), ConnectError> {
            check_reach(&gpu, theirs)?;
            let fence = open_fence(fence, &gpu, page, events, entries, self.local)?;
            Ok(self.session.use_gpu(Waits::new(fence, Some(gpu.clone())))?)
        };
        open().map_err(|error| match error {
            ConnectError::Violation(text) => ReadError::Violation(text),
            error => ReadError::Gpu(error),
        })?;
        self.gpu = Some(gpu);
        self.wait_as_configured();
        Ok(())
    }

    /// Returns the next item in order, if it has arrived. An error comes after all items before it.
    pub fn next(&mut self) -> Result<Option<Item>, ReadError> {
        if let Some(text) = self.session.failure() {
            return Err(ReadError::Fence(text.into()));
        }
        if self.end_is_told {
            return self.over();
        }
        let mut revoked = 0;
        loop {
            if revoked > MAX_REVOKED {
                return Err(ReadError::Violation(
                    "every frame is taken back just when it is to be taken".into(),
                ));
            }
            // Loaded before the claims: a message up to here then comes after all frames that
            // precede it.
            let head = self.session.consumer.head();
            let oldest = self.session.consumer.oldest();
            let Some(taken) = oldest.transpose().map_err(|error| ReadError::Violation(error.to_string()))?
            else {
                // No untaken frame is below the head: a message in its place is due.
                match self.apply_due(head) {
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
                    return Err(ReadError::Violation(format!(
                        "{missing} messages before frame {sequence} did not come"
                    )));
                }
                // The exporter had no room for the missing messages, and sends them now.
                self.look_ahead(None)?;
                return self.over();
            }
            let generation = self.generations.get(&taken.descriptor.generation);
            if generation.is_some_and(|generation| generation.is_unreadable) {
                // Claimed, released at once, and counted as lost: the next frames are elsewhere.
                if self.session.consumer.claim(taken.entry, sequence) {
                    drop(Lease::new(self.session.clone(), taken.entry, sequence, true));
                } else {
                    revoked += 1;
                }
                continue;
            }
            // Memory that was not imported before the exporter's end cannot be imported.
            let is_out_of_reach = self.over.is_some() && !self.has_imported(&taken.descriptor);
            let is_fenced = self.is_fenced(&taken.descriptor);
            if is_out_of_reach || (is_fenced && !self.may_be_delivered(taken.entry, sequence)?) {
                return self.over();
            }
            if !self.session.consumer.claim(taken.entry, sequence) {
                revoked += 1;
                continue;
            }
            return self.frame(taken).map(|frame| Some(Item::Frame(frame)));
        }
    }

    fn has_imported(&self, descriptor: &Descriptor) -> bool {
        let generation = self.generations.get(&descriptor.generation);
        generation.is_some_and(|generation| generation.slots.contains_key(&descriptor.slot))
    }

    /// Returns whether a frame has fences. Host frames have none: they are complete when they are
    /// published.
    fn is_fenced(&self, descriptor: &Descriptor) -> bool {
        let generation = self.generations.get(&descriptor.generation);
        generation.is_none_or(|generation| generation.kind != MemoryKind::Host)
    }

    /// Applies the first waiting message if its place is at `sequence` or before: `None` if it is
    /// not, `Some(None)` if it yields no item.
    fn apply_due(&mut self, sequence: u64) -> Option<Option<Item>> {
        self.pending.front().filter(|(before, _)| *before <= sequence)?;
        let (before, pending) = self.pending.pop_front()?;
        self.pending_bytes -= pending.bytes();
        Some(match pending {
            Pending::Format(memory, format) => {
                self.memory = memory;
                Some(Item::Format(format))
            }
            Pending::Event(event) => Some(Item::Event(event)),
            Pending::EndOfStream => {
                self.undelivered = before.saturating_sub(self.expected);
                Some(Item::EndOfStream)
            }
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

    /// Makes a frame of a claimed publication: from here on it is released in every case.
    fn frame(&mut self, taken: Taken) -> Result<Frame, ReadError> {
        let Taken { entry, descriptor } = taken;
        let sequence = descriptor.sequence;
        let is_fenced = self.is_fenced(&descriptor);
        let lease = Lease::new(self.session.clone(), entry, sequence, is_fenced);
        let lost_before = sequence - self.expected;
        self.expected = sequence + 1;
        self.undelivered = 0;
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
        Ok(Frame::new(descriptor, lost_before, metadata, import.clone(), lease))
    }

    /// Returns the end of the exporter, if it has ended and nothing else is left to deliver.
    fn over(&mut self) -> Result<Option<Item>, ReadError> {
        let Some(over) = &self.over else { return Ok(None) };
        let torn = self.session.waits().count();
        // After the end is reported nothing is delivered: undelivered frames never will be.
        if !std::mem::replace(&mut self.end_is_told, true) {
            self.undelivered = self.session.consumer.head().saturating_sub(self.expected);
        }
        let (lost, limit) = (self.undelivered, self.fence_timeout);
        let said_goodbye = matches!(over, Over::Goodbye(..));
        if torn > 0 {
            self.rescue_streams(said_goodbye);
        }
        match &self.over {
            None => Ok(None),
            Some(Over::HungUp) => Err(ReadError::Gone { torn, lost }),
            Some(Over::Stalled(sequence)) => {
                Err(ReadError::Stalled { sequence: *sequence, limit, torn, lost })
            }
            Some(Over::Goodbye(Reason::Stopped, text)) => Err(ReadError::Stopped(text.clone())),
            Some(Over::Goodbye(reason, text)) => {
                Err(ReadError::CutOff { reason: *reason, text: text.clone() })
            }
        }
    }

    /// Sets the sleeping flag. The wake-up of the last sleep is drained now, after its frame has
    /// been handed on.
    pub fn announce_sleep(&mut self) {
        if self.rang {
            self.drain_wake();
        }
        self.session.consumer.announce_sleep();
    }

    pub fn end_sleep(&self) {
        self.session.consumer.end_sleep();
    }

    pub fn drain_wake(&mut self) {
        self.rang = false;
        if self.wake_state == Drained::Open {
            self.wake_state = self.session.wake.drain();
        }
    }

    pub fn wake(&self) -> &Wake {
        &self.session.wake
    }

    /// Sleeps until a wake-up or a message, and receives messages.
    pub fn sleep(&mut self, interrupt: &Interrupt, timeout: Timeout) -> Result<(), ReadError> {
        // Such a socket may not report further wake-ups.
        if self.wake_state == Drained::Descriptor {
            return self.receive();
        }
        let poll = |fd| PollFd::from_borrowed_fd(fd, PollFlags::IN);
        let (wake, socket) = (self.session.wake.as_fd(), self.session.socket.as_fd());
        let gone = self.peer.gone.as_ref().map_or(socket, |gone| gone.as_fd());
        let mut fds = [poll(interrupt.as_fd()), poll(wake), poll(socket), poll(gone)];
        wait(&mut fds, timeout).map_err(ReadError::Io)?;
        let spoke = is_ready(&fds[2]) || is_ready(&fds[3]);
        self.rang |= is_ready(&fds[1]);
        if spoke || self.wake_state == Drained::Closed { self.receive() } else { Ok(()) }
    }

    pub fn is_on_gpu(&self) -> bool {
        self.gpu.is_some() && self.memory != MemoryKind::Host
    }

    pub fn exporter_gpu(&self) -> Option<Uuid> {
        self.exporter_gpu
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
            lost: self.lost.saturating_add(self.undelivered),
            reconnects: 0,
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // Held frames keep the socket open, so the exporter needs the close message.
        self.session.say_goodbye(Reason::Stopped, "the reader has stopped");
    }
}

/// Opens the fence that the exporter selected, with the timeline page or the handles of its events.
fn open_fence(
    kind: FenceKind,
    gpu: &Arc<Context>,
    page: Option<UntrustedFd>,
    events: &[u8],
    entries: usize,
    local: bool,
) -> Result<Box<dyn ReaderFence>, ConnectError> {
    Ok(match (kind, page) {
        (FenceKind::Timeline, Some(page)) => {
            let page = TimelinePage::map(&page, entries);
            let page = page.map_err(|error| ConnectError::Violation(error.to_string()))?;
            Box::new(ReaderTimeline::new(gpu, page)?)
        }
        (FenceKind::Event, None) if local => Box::new(ReaderEvents::find(gpu, events).ok_or_else(|| {
            ConnectError::Gpu(
                "within one process event fences need the exporter's CUDA context: use timeline fences"
                    .into(),
            )
        })?),
        (FenceKind::Event, None) => {
            Box::new(ReaderEvents::open(gpu, events).map_err(ConnectError::of_events)?)
        }
        _ => return Err(ConnectError::Violation("it chose a fence that was not offered".into())),
    })
}

/// Checks that a context can read memory of the exporter's GPU.
fn check_reach(gpu: &Context, theirs: Uuid) -> Result<(), ConnectError> {
    if gpu.device().uuid() == theirs {
        return Ok(());
    }
    let out_of_reach = |text| ConnectError::GpuOutOfReach { gpu: theirs, text };
    let there = Device::with_uuid(theirs)?.ok_or_else(|| {
        out_of_reach(format!("the frames are on GPU {theirs}, which this process cannot see"))
    })?;
    if gpu.device().can_access(&there)? {
        Ok(())
    } else {
        Err(out_of_reach(format!("the frames are on {there}, which {} cannot read", gpu.device())))
    }
}
