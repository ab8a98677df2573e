//! The exporter's private ledger.

use super::{
    config::Config,
    departure::Ending,
    download::Downloads,
    generation::Generation,
    holds::Holds,
    link::{Link, Vacancy},
    notice::Notice,
    others,
    outbox::{Attachment, Packet, is_exhausted},
    refusals::Refusals,
    shared::SetupError,
    slot::Slot,
    wait::Waiters,
};
use crate::{
    event::Event,
    fence::Signals,
    memory::choice::{self, Choice},
    sys::{self, Mapping, SealedAgainst, Wake, Words, memfd, monotonic_ns},
};
use frameshare_cuda::stream::Stream;
use frameshare_protocol::{
    MemoryKind,
    message::{Format, Payload, Reason, ToReader},
    page::metadata_size,
};
use std::{any::Any, collections::BTreeMap, io, mem, os::fd::OwnedFd, sync::Arc};

/// A publication that some reader still has a lease on.
pub(super) struct Publication {
    pub slot: Slot,
    pub leases: u32,
    pub keep: Option<Box<dyn Any + Send>>,
}

/// How closely the service thread looks for what nobody announces; the more, the greater.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Watch {
    #[default]
    None,
    /// Something is to be given back, which nobody is likely to wait for just then.
    Unhurried,
    /// A reader waits.
    Close,
}

/// Everything that the exporter knows.
pub(super) struct State {
    pub config: Config,
    pub memory: Choice<MemoryKind>,
    /// Frames go to host memory for the time being, whatever was chosen.
    pub in_host: bool,
    pub signals: Signals,
    /// Tells this run of the stream from others of the same name.
    pub session: u64,
    /// Oldest first; the last of our own is the one that slots are taken from.
    pub generations: Vec<Generation>,
    pub next_generation: u32,
    /// Bytes of the generations that were retired, for as long as a reader may keep them from being freed.
    pub retired: BTreeMap<u32, u64>,
    /// The next slot starts a generation if its size differs from the present one's.
    pub renew: bool,
    /// The same for host slots beside the GPU's.
    pub renew_host: bool,
    pub links: Vec<Link>,
    /// Readers that are published to no more, but still hold frames, or memory that waits for them. What they hold
    /// stays reserved.
    pub leaving: Vec<Link>,
    /// Credit that was promised to a reader that is being admitted.
    pub promised: u32,
    /// By metadata area.
    pub publications: Vec<Option<Publication>>,
    /// The sequence number of the next publication.
    pub next: u64,
    pub format: Option<Format>,
    /// The kind of memory that was announced with the format.
    pub announced: MemoryKind,
    /// By kind: the payload of the last such event, and the file of one that has its own.
    pub sticky: BTreeMap<u32, (Payload, Vec<Attachment>)>,
    pub ended: bool,
    pub closed: bool,
    pub metadata: Words,
    pub metadata_fd: Arc<OwnedFd>,
    pub readers_total: u64,
    pub notices: Vec<Notice>,
    pub refusals: Refusals,
    /// The refusal of every reader of another user, where there is one.
    pub refusal_of_others: Option<String>,
    /// Readers came or went, or have messages that wait, or no longer have.
    pub links_changed: bool,
    /// What was begun, whose end the service thread has to look for, wants this.
    pub watch_wanted: Watch,
    /// What that thread does, or is about to.
    pub watch: Watch,
    /// Some release fence was pending at the last look at all of them, or at one since.
    pub fences_pending: bool,
    /// For readers that get host memory though the stream's is a GPU's.
    pub downloads: Option<Downloads>,
    /// What GPU work still uses.
    pub holds: Holds,
    /// Threads of ours that wait for readers.
    pub waiters: Waiters,
    /// Who must be woken.
    pub sleepers: Vec<Arc<Wake>>,
    /// What ended publications kept.
    pub dropped: Vec<Box<dyn Any + Send>>,
    /// What may wait for a GPU when it is dropped: for the service thread.
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
            memory: choice::memory(config.memory, config.gpu.as_ref())?,
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
            holds: Holds::default(),
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

    /// A stream that had ended goes on.
    pub fn go_on(&mut self) {
        self.ended = false;
    }

    /// The messages for a joining reader, besides those about slots: stream-start, format, sticky events, end.
    /// `memory` is the kind in which it gets frames.
    pub fn introduction(&self, memory: MemoryKind) -> io::Result<Vec<Packet>> {
        let before = self.next;
        let format = self.format.clone().map(|format| ToReader::Format { before, memory, format });
        let event = |(kind, (payload, files)): (&u32, &(Payload, Vec<Attachment>))| {
            let message = ToReader::Event { before, kind: *kind, payload: payload.clone() };
            if files.is_empty() { Packet::new(&message) } else { Packet::with(&message, files.clone()) }
        };
        // A stream-start behind the format would start another stream than the one that the format describes.
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

    /// Encodes a message that several readers get. Where files or memory for its payload have run out, readers that leave
    /// their messages unread are evicted until it fits; if that does not help, all links end.
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

    /// Evicts the reader whose unread messages take the most files, or else the most bytes. False if none has any.
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
    /// Does something with every link; where it fails, the link ends.
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

    /// Ends the leases that readers have released, and retires generations that are used no more.
    ///
    /// True if some lease ended.
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
            // To free memory may wait for a GPU.
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

    /// Wakes who must be woken.
    pub fn wake_sleepers(&mut self) {
        self.sleepers.drain(..).for_each(|wake| wake.ring());
    }

    pub fn end_leases(&mut self, areas: Vec<usize>) {
        for area in areas {
            self.end_lease(area);
        }
    }

    /// Ends one hold on a publication: a reader's lease, a download's, or the publisher's own.
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

    /// Notes a publication that nobody has a lease on yet, and returns its metadata area.
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

    /// Whether something outlives the stream: readers' imports, or what GPU work uses.
    pub fn has_more_to_do(&self) -> bool {
        !self.leaving.is_empty() || !self.holds.is_empty()
    }

    /// Whether a GPU is at work on what nobody would announce.
    pub fn gpu_is_busy(&self) -> bool {
        self.fences_pending || !self.holds.is_empty() || self.is_downloading()
    }

    /// Whether readers wait for a GPU to write frames into memory of the host.
    pub fn is_downloading(&self) -> bool {
        self.downloads.as_ref().is_some_and(|downloads| downloads.len() > 0)
    }

    /// Whether somebody upstream may wait for what a publication keeps.
    fn keeps_something(&self) -> bool {
        self.config.gpu.is_some()
            && self.publications.iter().flatten().any(|publication| publication.keep.is_some())
    }

    /// How closely somebody has to look. A decoder that sleeps for a surface never calls us, and a GPU rings nobody.
    pub fn watch_needed(&self) -> Watch {
        if self.is_downloading() {
            Watch::Close
        } else if self.gpu_is_busy() || self.keeps_something() {
            Watch::Unhurried
        } else {
            Watch::None
        }
    }

    /// Makes room for a lease in a link, whatever its policy demands; the areas of leases that ended for it are
    /// taken back.
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
