// SPDX-License-Identifier: MIT OR Apache-2.0

//! Admission of a reader: from its Hello to its link.
//!
//! Three steps, since making fences takes driver calls that must not delay a publication: reserve
//! credit with the state locked, make pages and fences with it unlocked, add the link with it
//! locked.

use super::{
    departure::Ending,
    download::Downloads,
    in_flight,
    life::Life,
    link::{Delivery, Link},
    notice::{Notice, ReaderInfo},
    outbox::{Attachment, Packet},
    shared::{SetupError, Shared},
    state::State,
};
use crate::{
    fence::{
        self, ExporterFence,
        event::ExporterEvents,
        none::NoFence,
        timeline::{Timeline, TimelinePage},
    },
    memory::{context_number, select::Selected},
    queue::Producer,
    sys::{
        Mapping, Peer, SealedAgainst, Socket, UntrustedFd, Wake, Words, file_limit, files_left, memfd,
        process_nonce,
    },
};
use frameshare_cuda::context::Context;
use frameshare_protocol::{
    FenceKind, MemoryKind, Policy,
    message::{Hello, Reason, ToReader, Welcome},
    page::{claims_size, queue_size},
};
use std::{io, os::fd::OwnedFd, sync::Arc, time::Instant};

/// Files that are open while a reader is admitted, with some reserve: two pages, both ends of a
/// wake-up socket, a timeline page.
const FILES_OF_A_READER: u64 = 8;

/// Resources left to this process.
#[derive(Clone, Copy)]
struct Left {
    /// Number of files that it may open; `None` if the system does not say.
    files: Option<u64>,
    /// Bytes of the GPU's memory; `None` without a GPU.
    memory: Option<u64>,
}

/// The reservation for a reader.
struct Promise {
    credit: u32,
    way: Way,
    gpu: Option<Arc<Context>>,
}

/// The way in which a reader gets its frames.
#[derive(Debug)]
pub(super) struct Way {
    pub fence: Selected<FenceKind>,
    /// Frames are downloaded to host memory.
    pub downloads: bool,
    /// The reason why the reader cannot read adopted memory, if it cannot.
    pub cannot_adopt: Option<String>,
    /// The reader is in this very process.
    pub local: bool,
}

/// Resources shared with the reader.
struct Shares {
    queue: Words,
    claims: Words,
    wake: Wake,
    fence: Box<dyn ExporterFence>,
    /// The handles of events.
    events: Vec<u8>,
    /// Descriptors to send: queue, claims, wake-up socket, and the timeline page if there is one.
    queue_fd: OwnedFd,
    claims_fd: OwnedFd,
    wake_fd: UntrustedFd,
    timeline_fd: Option<OwnedFd>,
}

/// Admits a reader, or refuses it and reports the reason to the reader and the owner.
pub(super) fn admit(shared: &Shared, socket: Socket, peer: Peer, hello: &Hello) {
    // Checked here because it takes a call for each connection: a publication must not wait for it.
    if !in_flight::may_join(peer.uid) {
        let refusal = Ending::new(Reason::LimitExceeded, in_flight::too_many(peer.uid));
        return shared.with(|state| state.refuse(&socket, &peer, &refusal));
    }
    let (mut socket, mut peer) = (socket, peer);
    // Try again if the exporter began to use a GPU meanwhile.
    while let Some(again) = try_to_admit(shared, socket, peer, hello) {
        (socket, peer) = again;
    }
}

/// Admits or refuses a reader, or returns its connection if the reservation no longer holds.
fn try_to_admit(shared: &Shared, socket: Socket, peer: Peer, hello: &Hello) -> Option<(Socket, Peer)> {
    let gpu = shared.with(|state| state.config.gpu.clone());
    // A failure of the GPU is handled elsewhere.
    let memory_left = gpu.and_then(|gpu| gpu.memory_left().ok()).map(|(left, _)| left);
    // Counted with the state unlocked: it takes long with many open files.
    let left = Left { files: files_left(), memory: memory_left };
    let promise = match shared.with(|state| state.promise(&peer, hello, left)) {
        Ok(promise) => promise,
        Err(refusal) => {
            shared.with(|state| state.refuse(&socket, &peer, &refusal));
            return None;
        }
    };
    let shares = Shares::new(&promise, peer.uid);
    let credit = promise.credit;
    shared.with(|state| {
        state.promised = 0;
        if state.closed {
            return None;
        }
        if state.config.gpu.is_some() != promise.gpu.is_some() {
            return Some((socket, peer));
        }
        let admitted = shares.and_then(|shares| {
            // The queue is initialized before the reader can map it.
            let (queue, claims) = (shares.queue.clone(), shares.claims.clone());
            let producer = Producer::new(queue, claims, promise.credit as usize, state.next);
            // Without a pidfd the page's record lock shows whether the reader lives.
            let claims_fd = peer.gone.is_none().then(|| shares.claims_fd.try_clone()).transpose()?;
            let life = claims_fd.map(Life::new);
            let (welcome, wake, fence) = state.welcome(hello, &promise, shares)?;
            let next = state.next;
            let delivery =
                Delivery { producer, next, wake, life, fence, way: promise.way, hello: hello.clone() };
            Ok((welcome, delivery))
        });
        match admitted {
            Ok((welcome, delivery)) => {
                let info = state.new_reader(&peer, hello, credit);
                state.link(Link::new(info, socket, peer, delivery), &welcome);
            }
            Err(error) => {
                let text = format!("the exporter cannot serve another reader: {error}");
                state.refuse(&socket, &peer, &Ending::new(Reason::Failed, text));
            }
        }
        None
    })
}

/// A fence, and the resources that its reader needs.
pub(super) struct Fence {
    pub fence: Box<dyn ExporterFence>,
    /// The handles of events.
    pub events: Vec<u8>,
    pub timeline_fd: Option<OwnedFd>,
}

impl Fence {
    /// Makes a fence for a reader with this number of queue entries. Takes driver calls.
    pub fn new(
        choice: &Selected<FenceKind>,
        gpu: Option<&Arc<Context>>,
        entries: usize,
        local: bool,
    ) -> Result<Self, SetupError> {
        let (mut events, mut timeline_fd) = (Vec::new(), None);
        let fence: Box<dyn ExporterFence> = match (choice.kind, gpu) {
            (FenceKind::Timeline, Some(gpu)) => {
                let (page, fd) = TimelinePage::create(entries)?;
                timeline_fd = Some(fd);
                Box::new(Timeline::new(gpu, page)?)
            }
            (FenceKind::Event, Some(gpu)) => {
                let new = if local { ExporterEvents::new_local } else { ExporterEvents::new };
                let fence = new(gpu, entries)?;
                events = fence.handles()?;
                Box::new(fence)
            }
            _ => Box::new(NoFence),
        };
        Ok(Self { fence, events, timeline_fd })
    }
}

impl Shares {
    fn new(promise: &Promise, uid: u32) -> Result<Self, SetupError> {
        let entries = promise.credit as usize;
        let (queue, queue_fd) =
            page("frameshare-queue", queue_size(entries), SealedAgainst::ResizingAndWriting)?;
        let (claims, claims_fd) = page("frameshare-claims", claims_size(entries), SealedAgainst::Resizing)?;
        let (wake, wake_fd) = Wake::pair(uid)?;
        let made = Fence::new(&promise.way.fence, promise.gpu.as_ref(), entries, promise.way.local)?;
        let Fence { fence, events, timeline_fd } = made;
        Ok(Self { queue, claims, wake, fence, events, queue_fd, claims_fd, wake_fd, timeline_fd })
    }
}

impl State {
    /// Refuses a reader, with the reason.
    pub fn refuse(&mut self, socket: &Socket, peer: &Peer, refusal: &Ending) {
        let message = ToReader::Refused { reason: refusal.reason, text: refusal.text.clone() };
        if let Ok(packet) = message.encode() {
            // If the reader does not receive it, it notices the hang-up.
            let _ = socket.send(&packet, &[]);
        }
        self.note_refusal(peer, refusal.text.clone());
    }

    /// Reports a refused reader to the owner.
    pub fn note_refusal(&mut self, peer: &Peer, why: String) {
        let notice = self.refusals.note(peer, why, Instant::now());
        self.notices.extend(notice);
    }

    /// Decides what a reader gets, and reserves its credit.
    fn promise(&mut self, peer: &Peer, hello: &Hello, left: Left) -> Result<Promise, Ending> {
        if let Some(text) = self.refusal_of_others.as_ref().filter(|_| !peer.is_own_or_root()) {
            return Err(Ending::new(Reason::PermissionDenied, text.clone()));
        }
        if hello.policy == Policy::Lossless && !self.config.may_be_lossless(peer) {
            let text = "the exporter does not let this reader be lossless";
            return Err(Ending::new(Reason::LosslessNotGranted, text));
        }
        let way = self.way_of(peer, hello)?;
        self.reclaim();
        let credit_left = self.credit_left(peer.uid);
        if credit_left == 0 {
            let but = if peer.is_own_or_root() { "" } else { ", but those kept for its own user's," };
            let text =
                format!("all {} slots are promised to other readers{but} or in use", self.config.max_slots);
            return Err(Ending::new(Reason::NoCreditLeft, text));
        }
        let credit = hello.credit.min(self.config.max_held_limit).min(credit_left);
        self.check_files(credit, left.files)?;
        self.check_memory(credit, left.memory)?;
        self.promised = credit;
        let gpu = self.config.gpu.clone();
        Ok(Promise { credit, way, gpu })
    }

    /// Decides how a reader gets its frames.
    pub fn way_of(&mut self, peer: &Peer, hello: &Hello) -> Result<Way, Ending> {
        let kind = self.memory.kind;
        let trusted = kind == MemoryKind::Host || self.config.may_have_gpu_memory(peer);
        let gpu = self.config.gpu.as_ref().filter(|_| kind != MemoryKind::Host);
        let reaches = gpu.is_none_or(|gpu| hello.gpus.contains(&gpu.device().uuid().0));
        let direct = trusted && hello.memory.contains(&kind) && (reaches || !hello.host_fallback);
        if !direct && !hello.memory.contains(&MemoryKind::Host) {
            let (reason, why) = if trusted {
                (Reason::NothingInCommon, "which this reader cannot read".into())
            } else {
                let why = format!("which user {} is not trusted with", peer.uid);
                (Reason::PermissionDenied, format!("permission denied, {why}"))
            };
            return Err(Ending::new(reason, format!("the stream's frames are in {kind} memory, {why}")));
        }
        let fence = if direct {
            let ours = fence::select::kinds(self.config.gpu.as_ref());
            fence::select::select(self.config.fence, kind, &ours, &hello.fences)
                .map_err(|lack| Ending::new(Reason::NothingInCommon, lack.to_string()))?
        } else {
            let why = match (trusted, reaches) {
                (false, _) => "it is not trusted with GPU memory",
                (true, false) => "it cannot read the exporter's GPU",
                (true, true) => "it cannot read GPU memory",
            };
            Selected { kind: FenceKind::None, why: format!("{why}, and gets its frames downloaded") }
        };
        if !direct {
            self.begin_downloads()?;
        }
        let local = peer.is_this_process(&hello.nonce);
        let cannot_adopt = if direct { self.why_not_adopted(peer, hello, local) } else { None };
        Ok(Way { fence, downloads: !direct, cannot_adopt, local })
    }

    /// Creates the resources for downloads, if there is a GPU.
    pub fn begin_downloads(&mut self) -> Result<(), Ending> {
        if let (None, Some(gpu)) = (&self.downloads, &self.config.gpu) {
            let failed = |error: frameshare_cuda::Error| Ending::new(Reason::Failed, error.to_string());
            self.downloads = Some(Downloads::new(gpu).map_err(failed)?);
        }
        Ok(())
    }

    /// Returns the reason why a reader cannot read adopted memory, if it cannot. CUDA lets one
    /// context of a process open legacy handles of an exporter (CUDA driver API,
    /// cuIpcOpenMemHandle); within one process the pointers of the exporter's context are used.
    fn why_not_adopted(&self, peer: &Peer, hello: &Hello, local: bool) -> Option<String> {
        let lent = |link: &&Link| {
            let other = &link.hello;
            other.nonce == hello.nonce && link.is_direct() && other.context != hello.context
        };
        let why = if local {
            let ours = self.config.gpu.as_ref().map(context_number);
            (ours != Some(hello.context))
                .then_some("it is in the exporter's process, in another CUDA context")
        } else if !peer.is_own() {
            Some("it is not of the exporter's user")
        } else if !hello.memory.contains(&MemoryKind::Legacy) {
            Some("it cannot open legacy handles")
        } else {
            let other = self.links.iter().chain(&self.leaving).find(lent);
            other.map(|_| "another CUDA context of its process reads this stream")
        };
        why.map(Into::into)
    }

    /// Refuses a reader whose frames could later not be allocated for lack of files.
    fn check_files(&self, credit: u32, left: Option<u64>) -> Result<(), Ending> {
        let slots =
            self.generations.iter().rfind(|one| one.is_own(self.memory.kind)).map_or(0, |one| one.len());
        let needed = FILES_OF_A_READER + u64::from((self.credit() + credit + 2).saturating_sub(slots));
        match left {
            Some(left) if left < needed => {
                let text = format!(
                    "the exporter may open only {left} more of {} files, and its frames and this reader could need \
                     {needed}: raise its limit (ulimit -n)",
                    file_limit().unwrap_or(u64::MAX)
                );
                Err(Ending::new(Reason::Failed, text))
            }
            _ => Ok(()),
        }
    }

    /// Refuses a reader whose frames could later not be allocated for lack of GPU memory.
    fn check_memory(&self, credit: u32, left: Option<u64>) -> Result<(), Ending> {
        let kind = self.memory.kind;
        let current = self.generations.iter().rfind(|one| one.is_own(kind) && !one.is_empty());
        let (Some(left), Some(current)) = (left.filter(|_| kind != MemoryKind::Host), current) else {
            return Ok(());
        };
        let slots = u64::from(current.len());
        let more = u64::from(self.credit() + credit + 2).saturating_sub(slots);
        let needed = more * (current.bytes() / slots);
        if left < needed {
            let text = format!(
                "the GPU has only {left} bytes of memory left, and the exporter's frames and this reader could need \
                 {needed}: end what else uses the GPU, or hold fewer frames (max-held)"
            );
            return Err(Ending::new(Reason::Failed, text));
        }
        Ok(())
    }

    /// Makes the message that hands over what the two share; returns the exporter's own parts.
    fn welcome(
        &mut self,
        hello: &Hello,
        promise: &Promise,
        shares: Shares,
    ) -> Result<(Packet, Wake, Box<dyn ExporterFence>), SetupError> {
        let on_gpu = promise.gpu.as_ref().filter(|_| self.memory.kind != MemoryKind::Host);
        let welcome = ToReader::Welcome(Welcome {
            nonce: process_nonce(),
            session: self.session,
            policy: hello.policy,
            credit: promise.credit,
            fence: promise.way.fence.kind,
            events: shares.events,
            gpu: on_gpu.map(|gpu| gpu.device().uuid().0),
            areas: self.config.max_slots,
            next: self.next,
        });
        let own = |fd: OwnedFd| Attachment::File(Arc::new(fd));
        let mut attachments = vec![own(shares.queue_fd), own(shares.claims_fd)];
        attachments
            .extend([Attachment::File(self.metadata_fd.clone()), Attachment::Lent(Arc::new(shares.wake_fd))]);
        attachments.extend(shares.timeline_fd.map(own));
        Ok((Packet::with(&welcome, attachments)?.kept(), shares.wake, shares.fence))
    }

    fn new_reader(&mut self, peer: &Peer, hello: &Hello, credit: u32) -> ReaderInfo {
        self.readers_total += 1;
        ReaderInfo {
            id: self.readers_total,
            pid: peer.pid,
            uid: peer.uid,
            name: hello.name.clone(),
            policy: hello.policy,
            credit,
        }
    }

    /// Takes in a reader: what it is sent first may have to wait like everything else.
    fn link(&mut self, link: Link, welcome: &Packet) {
        self.notices.push(Notice::ReaderAdded(link.info.clone()));
        self.links.push(link);
        self.links_changed = true;
        let newcomer = self.links.len() - 1;
        let memory = self.links[newcomer].memory_of_frames(self.announced);
        let failed = |error: io::Error| Ending::new(Reason::Failed, format!("cannot send: {error}"));
        let link = &mut self.links[newcomer];
        let introduced = link.send_packet(welcome).and_then(|()| {
            let packets = self.introduction(memory).map_err(failed)?;
            packets.iter().try_for_each(|packet| self.links[newcomer].send_packet(packet))
        });
        if let Err(ending) = introduced {
            self.drop_link(newcomer, &ending);
        }
    }
}

/// A fresh page, mapped by us and then sealed.
fn page(name: &str, size: usize, against: SealedAgainst) -> io::Result<(Words, OwnedFd)> {
    let fd = memfd(name, size as u64)?;
    let mapping = Mapping::writable(&fd, size)?;
    against.seal(&fd)?;
    Ok((mapping.into(), fd))
}
