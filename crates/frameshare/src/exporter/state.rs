// SPDX-License-Identifier: MIT OR Apache-2.0

//! Private state of an exporter: all decisions are made from it.

use super::{
    config::Config,
    departure::Ending,
    download::Downloads,
    generation::Generation,
    link::{Link, Vacancy},
    notice::Notice,
    others,
    outbox::{Attachment, Packet, is_exhausted},
    pinned::Pinned,
    refusals::Refusals,
    shared::SetupError,
    slot::Slot,
    wait::Waiters,
};
use crate::{
    event::Event,
    fence::Signals,
    memory::{self, select::Selected},
    sys::{self, Mapping, SealedAgainst, Wake, Words, memfd, monotonic_ns},
};
use frameshare_cuda::stream::Stream;
use frameshare_protocol::{
    MemoryKind,
    message::{Format, Payload, Reason, ToReader},
    page::metadata_size,
};
use std::{any::Any, collections::BTreeMap, io, mem, os::fd::OwnedFd, sync::Arc};

/// A publication with at least one lease.
pub(super) struct Publication {
    pub slot: Slot,
    pub leases: u32,
    pub keep: Option<Box<dyn Any + Send>>,
}

/// Polling urgency of the service thread, in ascending order: some completions send no
/// notification.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Watch {
    #[default]
    None,
    /// Slots or memory are to be reclaimed, and no thread is likely to wait for them.
    Unhurried,
    /// A thread waits.
    Close,
}

/// Private state of an exporter.
pub(super) struct State {
    pub config: Config,
    pub memory: Selected<MemoryKind>,
    /// Frames currently go to host memory, whatever kind was selected.
    pub in_host: bool,
    pub signals: Signals,
    /// Tells this run of the stream from other runs of the same name.
    pub session: u64,
    /// Oldest first. Slots are taken from the last one that is not adopted.
    pub generations: Vec<Generation>,
    pub next_generation: u32,
    /// Bytes of retired generations that a reader may keep from being freed, by generation.
    pub retired: BTreeMap<u32, u64>,
    /// The next slot starts a generation if its size differs from the present one's.
    pub renew: bool,
    /// The same for host slots beside GPU slots.
    pub renew_host: bool,
    pub links: Vec<Link>,
    /// Readers that get no further frame but still hold frames, or memory that waits for them.
    /// Their credit stays reserved.
    pub leaving: Vec<Link>,
    /// Credit that is reserved for a reader that is being admitted.
    pub promised: u32,
    /// Publications by metadata area.
    pub publications: Vec<Option<Publication>>,
    /// The sequence number of the next publication.
    pub next: u64,
    pub format: Option<Format>,
    /// The kind of memory that was announced with the format.
    pub announced: MemoryKind,
    /// Sticky events by kind: the payload of the last one, and its file if it has one.
    pub sticky: BTreeMap<u32, (Payload, Vec<Attachment>)>,
    pub ended: bool,
    pub closed: bool,
    pub metadata: Words,
    pub metadata_fd: Arc<OwnedFd>,
    pub readers_total: u64,
    pub notices: Vec<Notice>,
    pub refusals: Refusals,
    /// The reason to refuse every reader of another user, if there is one.
    pub refusal_of_others: Option<String>,
    /// Readers joined or left, or the set of readers with waiting messages changed.
    pub links_changed: bool,
    /// Urgency that work since the service thread's last turn requires.
    pub watch_wanted: Watch,
    /// Urgency of the service thread's present or next turn.
    pub watch: Watch,
    /// A release fence was pending at the last poll of all of them, or at a poll since.
    pub fences_pending: bool,
    /// Downloads for readers that get host memory although the stream's frames are on a GPU.
    pub downloads: Option<Downloads>,
    /// Resources that GPU work still uses.
    pub holds: Pinned,
    /// Threads of this process that wait for readers.
    pub waiters: Waiters,
    /// Readers that need a wake-up.
    pub sleepers: Vec<Arc<Wake>>,
    /// User data of ended publications, to be dropped with the state unlocked.
    pub dropped: Vec<Box<dyn Any + Send>>,
    /// Resources whose drop may wait for a GPU, to be dropped by the service thread.
    pub trash: Vec<Box<dyn Any + Send>>,
}

impl State {
    pub fn new(config: Config) -> Result<Self, SetupError> {
        let size = metadata_size(config.max_slots);
        let metadata_fd = memfd("frameshare-metadata", size as u64)?;
        let metadata = Mapping::writable(&metadata_fd, size)?;
        SealedAgainst::ResizingAndWriting.seal(&metadata_fd)?;
        let others = others::decide(&config, sys::udmabuf);
        Ok(Self {
            refusal_of_others: others.refusal,
            memory: memory::select::select(config.memory, config.gpu.as_ref())?,
            signals: Signals::new(config.gpu.as_ref())?,
            publications: (0..config.max_slots).map(|_| None).collect(),
            config,
            in_host: false,
            session: monotonic_ns(),
            generations: Vec::new(),
            next_generation: 1,
            retired: BTreeMap::new(),
            renew: true,
            renew_host: true,
            links: Vec::new(),
            leaving: Vec::new(),
            promised: 0,
            next: 1,
            format: None,
            announced: MemoryKind::Host,
            sticky: BTreeMap::new(),
            ended: false,
            closed: false,
            metadata: metadata.into(),
            metadata_fd: Arc::new(metadata_fd),
            readers_total: 0,
            notices: others.notice.into_iter().collect(),
            refusals: Refusals::default(),
            links_changed: false,
            watch_wanted: Watch::None,
            watch: Watch::None,
            fences_pending: false,
            downloads: None,
            holds: Pinned::default(),
            sleepers: Vec::new(),
            waiters: Waiters::new()?,
            dropped: Vec::new(),
            trash: Vec::new(),
        })
    }

    pub fn set_format(&mut self, format: Format) {
        self.go_on();
        if self.format.as_ref() == Some(&format) && self.announced == self.kind() {
            return;
        }
        self.renew |= self.format.as_ref() != Some(&format);
        self.format = Some(format);
        self.announced = self.kind();
        let (before, announced) = (self.next, self.announced);
        let Some(format) = self.format.clone() else { return };
        self.each_link(|link| {
            let memory = link.memory_of_frames(announced);
            link.send(&ToReader::Format { before, memory, format: format.clone() })
        });
    }

    pub fn send_event(&mut self, event: Event) {
        if event.sticky {
            self.go_on();
        }
        if self.links.is_empty() && !event.sticky {
            return;
        }
        let payload = Payload::Inline(event.payload);
        let message = ToReader::Event { before: self.next, kind: event.kind, payload };
        let packet = self.packet_of(&message);
        if let Some(packet) = &packet {
            self.each_link(|link| link.send_packet(packet));
        }
        if let (true, ToReader::Event { payload, .. }) = (event.sticky, message) {
            let sealed = packet.and_then(|packet| packet.sealed());
            self.sticky.insert(event.kind, sealed.unwrap_or((payload, Vec::new())));
        }
    }

    pub fn end_of_stream(&mut self) {
        if !mem::replace(&mut self.ended, true) {
            self.send_all(&ToReader::EndOfStream { before: self.next });
        }
    }

    /// Continues a stream that had ended.
    pub fn go_on(&mut self) {
        self.ended = false;
    }

    /// Returns the messages for a joining reader, except those about slots: stream-start, format,
    /// sticky events, end. `memory` is the kind in which it gets frames.
    pub fn introduction(&self, memory: MemoryKind) -> io::Result<Vec<Packet>> {
        let before = self.next;
        let format = self.format.clone().map(|format| ToReader::Format { before, memory, format });
        let event = |(kind, (payload, files)): (&u32, &(Payload, Vec<Attachment>))| {
            let message = ToReader::Event { before, kind: *kind, payload: payload.clone() };
            if files.is_empty() { Packet::new(&message) } else { Packet::with(&message, files.clone()) }
        };
        // A stream-start after the format would start another stream than the one that the format
        // describes.
        let start = self.sticky.get_key_value(&Event::STREAM_START).map(event);
        let others = self.sticky.iter().filter(|(kind, _)| **kind != Event::STREAM_START).map(event);
        let end = self.ended.then_some(ToReader::EndOfStream { before });
        let packet = |message: ToReader| Packet::new(&message);
        let packets = start.into_iter().chain(format.map(packet)).chain(others).chain(end.map(packet));
        packets.map(|packet| packet.map(Packet::kept)).collect()
    }

    /// Sends one message to every reader.
    pub fn send_all(&mut self, message: &ToReader) {
        if let Some(packet) = self.packet_of(message) {
            self.each_link(|link| link.send_packet(&packet));
        }
    }

    /// Encodes a message for several readers. If files or memory for its payload have run out,
    /// readers with unreceived messages are evicted until it fits; if that does not help, all links
    /// end.
    pub fn packet_of(&mut self, message: &ToReader) -> Option<Packet> {
        loop {
            match Packet::new(message) {
                Ok(packet) => return Some(packet),
                Err(error) if is_exhausted(&error) && self.evict_heaviest() => {}
                Err(error) => {
                    let text = format!("cannot send: {error}");
                    self.each_link(|_| Err(Ending::new(Reason::Failed, text.clone())));
                    return None;
                }
            }
        }
    }

    /// Evicts the reader whose unreceived messages take the most files, or else the most bytes.
    /// Returns false if no reader has any.
    pub fn evict_heaviest(&mut self) -> bool {
        // Readers that are evicted already lose the rest of their messages first.
        let mut draining = self.leaving.iter_mut().map(Link::outbox);
        if let Some(outbox) = draining.find(|outbox| outbox.weight() > (0, 0)) {
            outbox.clear();
            return true;
        }
        let weights = self.links.iter_mut().map(|link| link.outbox().weight()).enumerate();
        let Some((index, (files, bytes))) = weights.max_by_key(|(_, weight)| *weight) else { return false };
        if (files, bytes) == (0, 0) {
            return false;
        }
        let text =
            format!("it has left {bytes} bytes and {files} files unread, and the exporter ran out of them");
        self.drop_link(index, &Ending::new(Reason::LimitExceeded, text));
        true
    }
    /// Applies `f` to every link, and ends links for which it fails.
    pub fn each_link(&mut self, mut f: impl FnMut(&mut Link) -> Result<(), Ending>) {
        let mut index = 0;
        while index < self.links.len() {
            let waited = self.links[index].has_backlog();
            match f(&mut self.links[index]) {
                Ok(()) => {
                    self.links_changed |= self.links[index].has_backlog() != waited;
                    index += 1;
                }
                Err(ending) => self.drop_link(index, &ending),
            }
        }
    }

    /// Ends the leases that readers have released, and retires unused generations. Returns true if
    /// a lease ended.
    pub fn reclaim(&mut self) -> bool {
        let mut ended = Vec::new();
        let mut pending = false;
        let timeout = self.config.fence_timeout;
        self.each_link(|link| {
            pending |= link.collect_released(&mut ended, timeout)?;
            Ok(())
        });
        for mut link in mem::take(&mut self.leaving) {
            match link.collect_released(&mut ended, timeout) {
                Ok(fences) if !link.holds_nothing() || self.awaits(&link) || link.is_draining() => {
                    pending |= fences;
                    self.leaving.push(link);
                }
                _ => self.forget(link),
            }
        }
        self.fences_pending = pending;
        for link in self.links.iter_mut().chain(&mut self.leaving) {
            // Freeing memory may wait for a GPU.
            for memory in link.outbox().take_spent() {
                self.trash.push(Box::new(memory));
            }
        }
        let progress = !ended.is_empty();
        self.end_leases(ended);
        self.holds.collect(&mut self.dropped);
        if self.downloads.is_some() {
            self.deliver_downloads();
        }
        if self.generations.len() > 1 || self.closed || self.generations.iter().any(|one| one.retired) {
            self.retire();
        }
        progress
    }

    /// Sends the pending wake-ups.
    pub fn wake_sleepers(&mut self) {
        self.sleepers.drain(..).for_each(|wake| wake.ring());
    }

    pub fn end_leases(&mut self, areas: Vec<usize>) {
        for area in areas {
            self.end_lease(area);
        }
    }

    /// Ends one lease on a publication: a reader's, a download's, or the publisher's own.
    pub fn end_lease(&mut self, area: usize) {
        let Some(publication) = &mut self.publications[area] else { return };
        publication.leases -= 1;
        if publication.leases == 0 {
            self.dropped.extend(publication.keep.take());
            self.publications[area] = None;
        }
    }

    pub fn drop_after(&mut self, stream: &Stream, what: Box<dyn Any + Send>) -> frameshare_cuda::Result<()> {
        self.watch_wanted = self.watch_wanted.max(Watch::Unhurried);
        self.holds.add(stream, what)
    }

    /// Records a publication without leases, and returns its metadata area.
    pub fn open_publication(&mut self, slot: Slot, keep: Option<Box<dyn Any + Send>>) -> Option<usize> {
        let Some(area) = self.publications.iter().position(Option::is_none) else {
            self.dropped.extend(keep);
            return None;
        };
        if keep.is_some() && self.config.gpu.is_some() {
            self.watch_wanted = self.watch_wanted.max(Watch::Unhurried);
        }
        self.publications[area] = Some(Publication { slot, leases: 1, keep });
        Some(area)
    }

    /// Counts one more lease on a publication.
    pub fn add_lease(&mut self, area: usize) {
        if let Some(publication) = &mut self.publications[area] {
            publication.leases += 1;
        }
    }

    /// Returns whether something outlives the stream: readers' imports, or resources of GPU work.
    pub fn has_more_to_do(&self) -> bool {
        !self.leaving.is_empty() || !self.holds.is_empty()
    }

    /// Returns whether GPU work is under way whose completion sends no notification.
    pub fn gpu_is_busy(&self) -> bool {
        self.fences_pending || !self.holds.is_empty() || self.is_downloading()
    }

    /// Returns whether downloads are under way.
    pub fn is_downloading(&self) -> bool {
        self.downloads.as_ref().is_some_and(|downloads| downloads.len() > 0)
    }

    /// Returns whether upstream may wait for the user data of a publication.
    fn keeps_something(&self) -> bool {
        self.config.gpu.is_some()
            && self.publications.iter().flatten().any(|publication| publication.keep.is_some())
    }

    /// Returns the polling urgency: a decoder that sleeps for a surface never calls the exporter,
    /// and a GPU sends no notification.
    pub fn watch_needed(&self) -> Watch {
        if self.is_downloading() {
            Watch::Close
        } else if self.gpu_is_busy() || self.keeps_something() {
            Watch::Unhurried
        } else {
            Watch::None
        }
    }

    /// Makes room for a lease in a link, by its policy, and reclaims the areas of leases that ended
    /// for it.
    pub fn make_room(&mut self, index: usize) -> Result<Option<usize>, Ending> {
        let mut ended = Vec::new();
        let vacancy = self.links[index].vacate(&mut ended);
        self.end_leases(ended);
        Ok(match vacancy? {
            Vacancy::Entry(entry) => Some(entry),
            Vacancy::Full => None,
        })
    }
}
