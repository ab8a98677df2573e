// SPDX-License-Identifier: MIT OR Apache-2.0

//! Admission of a reader: from its Hello to its link.
//!
//! Three steps, since making fences takes driver calls that must not delay a publication: reserve
//! credit with the state locked, make pages and fences with it unlocked, add the link with it
//! locked.

use super::unit_files::{Finished, Prepared};
use crate::{
    exporter::{
        delivery::download_target,
        error::SetupError,
        resources::{Connection, LinkFence, Liveness, ReaderAccount, in_flight},
        state::{Promise, Route, Shared, Shares},
    },
    memory::{Purpose, host::HostFile},
    service::before_blocking,
    sys::{Mapping, Peer, SealedAgainst, Socket, Wake, WakeGroup, file_limit, files_left, memfd},
};
use frameshare_core::exporter::{
    ending::Ending,
    link::{Delivery, Files, Link, Start},
    state::Left,
};
use frameshare_protocol::{
    FenceKind, MemoryKind,
    message::{Hello, Reason},
    page::{claims_size, queue_size},
};
use frameshare_queue::Producer;
use std::sync::{Arc, atomic::Ordering};

/// Maximum number of attempts to hand over kept units that are up to date.
const MAX_ATTEMPTS: u32 = 4;

/// Admits a reader, or refuses it and reports the reason to the reader and the owner.
pub fn admit(shared: &Shared, socket: Arc<Socket>, peer: Peer, hello: &Hello) {
    // Files and memory are allocated, events of a GPU made, kept units copied.
    before_blocking();
    // Checked here because it takes a call for each connection: a publication must not wait for it.
    if !in_flight::may_join(peer.uid) {
        let refusal = Ending::new(Reason::LimitExceeded, in_flight::too_many(peer.uid));
        return shared.with(|state| state.refuse(&socket, &peer, &refusal));
    }
    let (mut socket, mut peer) = (socket, peer);
    // Try again if the exporter began to use a GPU or to require dma-bufs meanwhile, or published
    // too much.
    let mut attempts = 1..;
    while let Some(again) = try_to_admit(shared, socket, peer, hello, attempts.next() < Some(MAX_ATTEMPTS)) {
        (socket, peer) = again;
    }
}

/// Admits or refuses a reader, or returns its connection if the reservation no longer holds, or,
/// with `retry`, if kept units are out of date.
fn try_to_admit(
    shared: &Shared,
    socket: Arc<Socket>,
    peer: Peer,
    hello: &Hello,
    retry: bool,
) -> Option<(Arc<Socket>, Peer)> {
    let gpu = shared.with(|state| state.gpu().cloned());
    // A failure of the GPU is handled elsewhere.
    let memory_left = gpu.and_then(|gpu| gpu.memory_left().ok()).map(|(left, _)| left);
    // Counted with the state unlocked: it takes long with many open files.
    let all_files = file_limit().unwrap_or(u64::MAX);
    let left = Left { files: files_left(), all_files, memory: memory_left };
    let mut promise = match shared.with(|state| state.promise(&peer, hello, left)) {
        Ok(promise) => promise,
        Err(refusal) => {
            shared.with(|state| state.refuse(&socket, &peer, &refusal));
            return None;
        }
    };
    #[cfg(test)]
    super::stall::reach(shared.id);
    // Destroying CUDA events, and freeing a slot, take long: what the reader does not get is
    // dropped with the state unlocked.
    let mut shares = Shares::new(&promise, peer.uid, shared);
    // Without its fence, a reader that takes host frames gets those.
    if let Err(error) = &shares
        && hello.host_fallback
        && promise.route.fence.kind != FenceKind::None
        && let Ok(choice) = shared.with(|state| state.begin_downloads(&error.to_string()))
    {
        promise.route.download(choice);
        shares = Shares::new(&promise, peer.uid, shared);
    }
    let mut shares = Some(shares);
    let prepared = Prepared::new(shared, &peer, hello);
    // Allocated with the state unlocked.
    let to_download = promise.route.downloads.then(|| shared.with(|state| state.last_to_download()));
    let mut target =
        to_download.flatten().and_then(|size| download_target::target(shared, size).ok().flatten());
    let credit = promise.credit;
    shared.with(|state| {
        state.end_promise();
        if state.is_closed() {
            return None;
        }
        let no_dma_bufs = promise.route.cannot_adopt.of(MemoryKind::DmaBuf);
        let trusts = state.config().may_have_gpu_memory(&peer);
        let is_refused = state.refusal_without_dma_bufs(trusts, no_dma_bufs).is_some();
        if state.gpu().is_some() != promise.gpu.is_some() || is_refused {
            return Some((socket, peer));
        }
        let kept_units = match prepared.finish(state, &peer, hello) {
            Finished::Units(packets) => packets,
            Finished::Again if retry => return Some((socket, peer)),
            Finished::Again => Vec::new(),
        };
        let start = match kept_units.is_empty() {
            true => state.start_without_kept_units(peer.is_own_or_root()),
            false => Start::AtOnce,
        };
        let shares = shares.take()?;
        let group = shares.as_ref().ok().and_then(|shares| shares.group.clone());
        let admitted = shares.and_then(|shares| {
            // The queue is initialized before the reader can map it.
            let (queue, claims) = (shares.queue.clone(), shares.claims.clone());
            let last = state.last_for(promise.route.downloads, target.as_ref()).cloned();
            let next = last.as_ref().map_or(state.next_sequence(), |last| last.descriptor.sequence);
            let producer =
                Producer::new(queue.words().clone(), claims.clone(), promise.credit as usize, next);
            // Without a pidfd the page's record lock shows whether the reader lives.
            let claims_fd = peer.gone.is_none().then(|| shares.claims_fd.try_clone()).transpose()?;
            let liveness = claims_fd.map(Liveness::new);
            let (welcome, wake, fence) = state.welcome(hello, &promise, shares, next)?;
            let identity = state.peer(&peer);
            let Route { fence: choice, downloads, cannot_adopt, .. } = promise.route;
            let delivery = Delivery {
                producer,
                next,
                fence,
                files: Files::new(ReaderAccount { account: promise.account, claims }, queue),
                start,
                choice,
                downloads,
                cannot_adopt,
                hello: hello.clone(),
            };
            Ok((welcome, identity, wake, liveness, delivery, last))
        });
        match admitted {
            Ok((welcome, identity, wake, liveness, delivery, last)) => {
                let info = state.new_reader(&identity, hello, credit);
                let id = info.id;
                let connection = Connection::new(socket, wake, group, peer, liveness);
                state.link(Link::new(info, identity, connection, delivery), &welcome, last, target.take());
                state.send_kept_units(id, &kept_units);
            }
            Err(error) => {
                let text = format!("the exporter cannot serve another reader: {error}");
                state.refuse(&socket, &peer, &Ending::new(Reason::Failed, text));
            }
        }
        None
    })
}

impl Shares {
    fn new(promise: &Promise, uid: u32, shared: &Shared) -> Result<Self, SetupError> {
        let label = &shared.label;
        let entries = promise.credit as usize;
        let queue = queue(promise, shared)?;
        let claims_fd = memfd(&label.file("claims"), claims_size(entries) as u64)?;
        let claims = Mapping::writable(&claims_fd, claims_size(entries))?.into();
        SealedAgainst::Resizing.seal(&claims_fd)?;
        let (wake, wake_fd) = Wake::pair(uid)?;
        let group = WakeGroup::of(shared.id, uid)?;
        let made =
            LinkFence::new(&promise.route.fence, promise.gpu.as_ref(), entries, promise.route.local, label)?;
        let LinkFence { fence, events, timeline_fd } = made;
        Ok(Self { queue, claims, wake, group, fence, events, claims_fd, wake_fd, timeline_fd })
    }
}

/// Returns a queue page, all zero. A charged user gets a kept file, and is charged for it.
fn queue(promise: &Promise, shared: &Shared) -> Result<Arc<HostFile>, SetupError> {
    let (name, size) = (shared.label.file("queue"), queue_size(promise.credit as usize) as u64);
    if !promise.account.is_charged() {
        return Ok(Arc::new(HostFile::new(&name, size)?));
    }
    let queue = shared.with(|state| state.system().accounts().clone()).file(&name, size)?;
    queue.words().iter().for_each(|word| word.store(0, Ordering::Relaxed));
    promise.account.give(&queue, Purpose::Other)?;
    Ok(queue)
}
