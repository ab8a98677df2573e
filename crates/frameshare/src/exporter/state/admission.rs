// SPDX-License-Identifier: MIT OR Apache-2.0

//! Admission decisions: permission, credit, route, limits.

use super::{Route, State};
use crate::{
    exporter::{
        error::SetupError,
        resources::{Attachment, Resources},
    },
    fence::{self, ExporterFence},
    memory::{Account, context_number, host::HostFile, select::why_not_in_place},
    sys::{Peer, Socket, UntrustedFd, Wake, WakeGroup, Words, monotonic_ns, process_nonce},
};
use frameshare_core::exporter::{
    ending::Ending,
    link::{CannotAdopt, Link, Packet},
    state::Left,
};
use frameshare_cuda::context::Context;
use frameshare_protocol::{
    FenceKind, MemoryKind, Policy, Sequence,
    message::{Hello, Reason, ToReader, Welcome},
    page::{claims_size, queue_size},
};
use std::{os::fd::OwnedFd, sync::Arc};

/// The reservation for a reader.
pub struct Promise {
    pub credit: u32,
    pub route: Route,
    pub gpu: Option<Arc<Context>>,
    /// The account of the reader's user.
    pub account: Account,
}

/// Resources shared with the reader.
pub struct Shares {
    pub queue: Arc<HostFile>,
    pub claims: Words,
    pub wake: Wake,
    /// The futex of the readers of this user, if they have one.
    pub group: Option<Arc<WakeGroup>>,
    pub fence: Box<dyn ExporterFence>,
    /// The handles of events.
    pub events: Vec<u8>,
    /// Descriptors to send, besides those of the queue and of the group: claims, wake-up socket,
    /// and the timeline page if there is one.
    pub claims_fd: OwnedFd,
    pub wake_fd: UntrustedFd,
    pub timeline_fd: Option<OwnedFd>,
}

/// The message that hands over what exporter and reader share, and the exporter's own parts of it.
type Welcomed = (Packet<Attachment>, Wake, Box<dyn ExporterFence>);

impl State {
    /// Refuses a reader or an observer, with the reason.
    pub fn refuse(&mut self, socket: &Socket, peer: &Peer, refusal: &Ending) {
        let message = ToReader::Refused { reason: refusal.reason, text: refusal.text.clone() };
        if let Ok(packet) = message.encode() {
            // If the reader does not receive it, it notices the hang-up.
            let _ = socket.send(&packet, &[]);
        }
        self.note_refusal(peer, refusal);
    }

    /// Reports a refused reader or observer.
    pub fn note_refusal(&mut self, peer: &Peer, refusal: &Ending) {
        let peer = self.peer(peer);
        self.reports_mut().note_refusal(&peer, refusal, monotonic_ns());
    }

    /// Decides what a reader gets, and reserves its credit.
    pub fn promise(&mut self, peer: &Peer, hello: &Hello, left: Left) -> Result<Promise, Ending> {
        if let Some(text) = self.refusal_of_others.as_ref().filter(|_| !peer.is_own_or_root()) {
            return Err(Ending::new(Reason::PermissionDenied, text.clone()));
        }
        if hello.policy == Policy::Lossless && !self.config().may_be_lossless(peer) {
            let text = "the exporter does not let this reader be lossless";
            return Err(Ending::new(Reason::LosslessNotGranted, text));
        }
        let route = self.route_of(peer, hello)?;
        let credit = self.decisions.promise(&self.peer(peer), hello.credit, left)?;
        let account = self.account_of(peer);
        let pages = queue_size(credit as usize) + claims_size(credit as usize);
        if let Err(full) = account.check(pages as u64) {
            self.end_promise();
            return Err(Ending::new(Reason::LimitExceeded, full.to_string()));
        }
        let gpu = self.gpu().cloned();
        Ok(Promise { credit, route, gpu, account })
    }

    /// The account of a reader's user.
    pub fn account_of(&self, peer: &Peer) -> Account {
        self.system().accounts().of(peer.uid, !self.config().trusts_with_memory(peer))
    }

    /// Decides how a reader gets its frames.
    pub fn route_of(&mut self, peer: &Peer, hello: &Hello) -> Result<Route, Ending> {
        let kind = self.slots().memory().kind;
        let trusted = kind == MemoryKind::Host || self.config().may_have_gpu_memory(peer);
        let gpu = self.gpu().filter(|_| kind != MemoryKind::Host);
        let reaches = gpu.is_none_or(|gpu| hello.gpus.contains(&gpu.device().uuid().0));
        let why_not = why_not_in_place(kind, &hello.memory, trusted, reaches, hello.host_fallback)
            .or_else(|| self.why_no_import_beside_copy(peer, hello));
        if why_not.is_some() && !hello.memory.contains(&MemoryKind::Host) {
            let (reason, why) = if trusted {
                (Reason::NothingInCommon, "which this reader cannot read".into())
            } else {
                let why = format!("which user {} is not trusted with", peer.uid);
                (Reason::PermissionDenied, format!("permission denied, {why}"))
            };
            return Err(Ending::new(reason, format!("the stream's frames are in {kind} memory, {why}")));
        }
        let in_place = match why_not {
            Some(why) => Err(why.into()),
            None => {
                let ours = fence::select::kinds(self.gpu());
                fence::select::select(self.config().fence, kind, &ours, &hello.fences)
                    .map_err(|lack| lack.to_string())
            }
        };
        let (downloads, fence) = match in_place {
            Ok(fence) => (false, fence),
            Err(why) if why_not.is_some() || hello.host_fallback => (true, self.begin_downloads(&why)?),
            Err(lack) => return Err(Ending::new(Reason::NothingInCommon, lack)),
        };
        let local = peer.is_this_process(&hello.nonce);
        let cuda = if downloads { None } else { self.why_not_adopted(peer, hello, local) };
        let cannot_adopt = CannotAdopt { cuda, dma_buf: self.why_no_dma_buf(peer, hello) };
        let trusts = self.config().may_have_gpu_memory(peer);
        if let Some(refusal) = self.refusal_without_dma_bufs(trusts, cannot_adopt.of(MemoryKind::DmaBuf)) {
            return Err(refusal);
        }
        Ok(Route { fence, downloads, cannot_adopt, local })
    }

    /// Returns the reason why another copy of the engine in its process keeps a reader from
    /// importing memory or events, if so. Copies do not know each other's imports. A process can
    /// import memory of a pool once, and no legacy handle or event of its own (CUDA driver API,
    /// cuMemPoolImportPointer, cuIpcOpenMemHandle, cuIpcOpenEventHandle).
    fn why_no_import_beside_copy(&self, peer: &Peer, hello: &Hello) -> Option<&'static str> {
        let kind = self.slots().memory().kind;
        if peer.is_other_copy(&hello.nonce) {
            let is_foreign = matches!(kind, MemoryKind::Pool | MemoryKind::Legacy)
                || kind != MemoryKind::Host && self.config().fence == Some(FenceKind::Event);
            return is_foreign.then_some("another copy of frameshare in its process exports the stream");
        }
        // Processes that this one does not see have the number 0.
        let reads = |link: &Link<Resources>| {
            link.is_direct()
                && link.info.pid == peer.pid
                && peer.pid != 0
                && link.hello().nonce != hello.nonce
        };
        let is_read = kind == MemoryKind::Pool && self.readers().all().any(reads);
        is_read.then_some("another copy of frameshare in its process reads the stream")
    }

    /// Returns the reason why a reader cannot read adopted memory, if it cannot. CUDA lets one
    /// context of a process open legacy handles of an exporter (CUDA driver API,
    /// cuIpcOpenMemHandle); within one process the pointers of the exporter's context are used. An
    /// exporter without a GPU adopts none.
    pub fn why_not_adopted(&self, peer: &Peer, hello: &Hello, local: bool) -> Option<String> {
        let gpu = self.gpu()?;
        let lent = |link: &&Link<Resources>| {
            let other = link.hello();
            other.nonce == hello.nonce && link.is_direct() && other.context != hello.context
        };
        let why = if local {
            (context_number(gpu) != hello.context)
                .then_some("it is in the exporter's process, in another CUDA context")
        } else if peer.is_other_copy(&hello.nonce) {
            Some("it is in the exporter's process, in another copy of frameshare")
        } else if !peer.is_own() {
            Some("it is not of the exporter's user")
        } else if !hello.memory.contains(&MemoryKind::Legacy) {
            Some("it cannot open legacy handles")
        } else {
            let other = self.readers().all().find(lent);
            other.map(|_| "another CUDA context of its process reads this stream")
        };
        why.map(Into::into)
    }

    /// Returns the reason why a reader gets no dma-bufs, if there is one. It could write them, also
    /// through a descriptor that is open for reading only: devices that import a dma-buf do not
    /// check its mode.
    fn why_no_dma_buf(&self, peer: &Peer, hello: &Hello) -> Option<String> {
        if !self.config().may_have_gpu_memory(peer) {
            return Some("it is not of the exporter's user, nor of a trusted one".into());
        }
        (!hello.memory.contains(&MemoryKind::DmaBuf)).then(|| "it takes no dma-bufs".into())
    }

    /// Makes the message that hands over what the two share; returns the exporter's own parts.
    /// `next` is the first frame that the reader gets.
    pub fn welcome(
        &mut self,
        hello: &Hello,
        promise: &Promise,
        shares: Shares,
        next: Sequence,
    ) -> Result<Welcomed, SetupError> {
        let on_gpu = promise.gpu.as_ref().filter(|_| self.slots().memory().kind != MemoryKind::Host);
        let welcome = ToReader::Welcome(Welcome {
            nonce: process_nonce(),
            session: self.system().session(),
            policy: hello.policy,
            credit: promise.credit,
            fence: promise.route.fence.kind,
            events: shares.events,
            gpu: on_gpu.map(|gpu| gpu.device().uuid().0),
            areas: self.config().max_slots,
            next,
            live: self.next_sequence(),
            wake_word: shares.group.as_ref().map(|group| group.word()),
        });
        let own = |fd: OwnedFd| Attachment::File(Arc::new(fd));
        let mut attachments = vec![Attachment::Queue(shares.queue), own(shares.claims_fd)];
        attachments.extend([
            Attachment::File(self.system().metadata().file().clone()),
            Attachment::Lent(Arc::new(shares.wake_fd)),
        ]);
        attachments.extend(shares.timeline_fd.map(own));
        attachments.extend(shares.group.map(|group| Attachment::File(group.fd().clone())));
        let packet = Packet::with(&welcome, attachments).map_err(|error| error.why)?;
        Ok((packet.kept(), shares.wake, shares.fence))
    }
}
