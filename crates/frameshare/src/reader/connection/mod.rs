// SPDX-License-Identifier: MIT OR Apache-2.0

//! Connection to an exporter: handshake, trust, and the delivery of messages and frames in order.

mod areas;
mod arrival;
mod control;
mod delivery;
mod exporter;
mod gpu;
mod handshake;
mod kept;
mod setup;
mod sleep;
mod trust;
mod unwritten;

pub(super) use handshake::{Search, connect};
pub use trust::TrustedUsers;
pub(crate) use trust::open_folder;

use super::{
    config::Config,
    error::ConnectError,
    gpu_wait::Recheck,
    lease::{Channel, KeyUnitRequests, SlotImporter},
    origin::Origin,
};
use crate::{
    Endpoint,
    foreign::report,
    sys::{Peer, PollSet, Socket, UntrustedFd},
};
use areas::Areas;
use exporter::RemoteExporter;
use frameshare_core::reader::{ConnectionStats, Ending, Kept, Order, Progress};
use frameshare_cuda::device::Uuid;
use frameshare_protocol::{
    MemoryKind, Sequence,
    message::{Reason, ToExporter, Welcome},
};
use frameshare_queue::Sleeper;
use gpu::Gpu;
use kept::KeptFile;
use setup::Shared;
use sleep::Sleep;
use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
    sync::Arc,
};
use unwritten::Unwritten;

/// One connection to an exporter. It lets the parts of a reader and the objects that do its I/O
/// work together: `arrival.rs` receives messages, and `delivery.rs` is the way of a frame out of
/// the queue to the application.
#[derive(Debug)]
pub(super) struct Connection {
    channel: Arc<Channel>,
    exporter: RemoteExporter,
    ending: Ending,

    // The way of a frame: what comes next, and where the frame and what belongs to it are.
    order: Order<KeptFile>,
    progress: Progress,
    kept: Kept<KeptFile>,
    slots: SlotImporter,
    areas: Areas,
    gpu: Gpu,
    /// The next frame, taken, if a device still writes it.
    unwritten: Option<Unwritten>,

    // Properties of frames.
    /// The format of the next frames, and the exporter's user.
    origin: Arc<Origin>,
    /// The kind of memory that the exporter announced with the last delivered format.
    memory: MemoryKind,
    /// The first frame that was not published before the reader joined.
    live: Sequence,

    // What was agreed.
    credit: u32,
    /// Limit of each message, and of the waiting ones together.
    max_metadata_bytes: u64,

    // Waits.
    sleep: Sleep,
    /// Readable when a wake-up has arrived, or the exporter's process has ended.
    ready: PollSet,
}

impl Connection {
    /// Maps the pages of the `Welcome`, and opens its fence.
    ///
    /// # Errors
    /// [`ConnectError::Violation`] for an invalid `Welcome`; otherwise the error of the GPU.
    pub fn new(
        socket: Socket,
        peer: Peer,
        welcome: Welcome,
        fds: Vec<UntrustedFd>,
        endpoint: &Endpoint,
        config: &Config,
    ) -> Result<Self, ConnectError> {
        if welcome.credit < config.max_held {
            report!(
                warn,
                "{endpoint}: this reader may hold {} frames instead of {}: raise the exporter's max_held_limit, \
                 or max_slots if other readers hold the rest",
                welcome.credit,
                config.max_held
            );
        }
        let is_local = peer.is_this_process(&welcome.nonce);
        let Shared { consumer, life, metadata, wake, word, timeline } = Shared::open(&welcome, fds)?;
        let channel = Arc::new(Channel::new(welcome.session, consumer, wake, socket, Some(life)));
        let mut gpu = Gpu::new(channel.clone(), config, &welcome, is_local);
        gpu.join(&welcome, timeline, peer.gone.as_ref())?;
        let ready = || -> io::Result<PollSet> {
            let ready = PollSet::new()?;
            ready.add(channel.wake())?;
            // A forked child of the exporter can keep its sockets open.
            peer.gone.as_ref().map_or(Ok(()), |gone| ready.add(gone))?;
            Ok(ready)
        };
        let ready = ready().map_err(|source| ConnectError::Io { endpoint: endpoint.clone(), source })?;
        let takes_dma_bufs = config.accepts_dma_bufs(peer.uid);
        Ok(Self {
            origin: Arc::new(Origin::without_format(peer.is_own())),
            exporter: RemoteExporter::new(peer),
            ending: Ending::default(),
            order: Order::new(config.max_metadata_bytes),
            progress: Progress::new(welcome.next),
            kept: Kept::new(config.max_gop_bytes),
            slots: SlotImporter::new(channel.clone(), is_local, config, takes_dma_bufs),
            areas: Areas::new(metadata, welcome.areas, config.max_metadata_bytes),
            gpu,
            unwritten: None,
            memory: MemoryKind::Host,
            live: welcome.live,
            credit: welcome.credit,
            max_metadata_bytes: config.max_metadata_bytes,
            sleep: Sleep::new(channel.clone(), word),
            ready,
            channel,
        })
    }

    /// Tells the exporter that frames of the present format are copied for their layout.
    pub fn report_layout_copies(&self) {
        self.channel.send(&ToExporter::CopiesForLayout);
    }

    /// Returns a handle for requests for key units.
    pub fn key_unit_requests(&self) -> KeyUnitRequests {
        KeyUnitRequests::new(&self.channel)
    }

    /// The condition to poll while the reader sleeps.
    pub fn recheck(&self) -> Recheck {
        if self.unwritten.is_some() { Recheck::ReadyFence } else { self.gpu.recheck() }
    }

    /// Sets the sleeping flag for a sleep on the object that `sleeper` names, or on the socket.
    pub fn announce_sleep(&mut self, sleeper: Sleeper) {
        self.sleep.announce(sleeper);
    }

    /// Clears the sleeping flag.
    pub fn end_sleep(&self) {
        self.sleep.end();
    }

    /// Drains the wake-up socket.
    pub fn drain_wake(&mut self) {
        self.sleep.drain();
    }

    /// Readable when a wake-up has arrived, or the exporter's process has ended.
    pub fn ready_fd(&self) -> BorrowedFd<'_> {
        self.ready.as_fd()
    }

    /// Returns whether frames of the last delivered format come in GPU memory.
    pub fn is_on_gpu(&self) -> bool {
        self.gpu.is_used() && self.memory != MemoryKind::Host
    }

    /// The GPU that the exporter has frames on.
    pub fn exporter_gpu(&self) -> Option<Uuid> {
        self.gpu.exporter_gpu()
    }

    /// Maximum number of frames that the reader may hold.
    pub fn credit(&self) -> u32 {
        self.credit
    }

    /// Number of frames that the reader holds.
    pub fn held(&self) -> u32 {
        self.channel.held()
    }

    /// As [`RemoteExporter::is_own_or_root`].
    pub fn exporter_is_own_or_root(&self) -> bool {
        self.exporter.is_own_or_root()
    }

    /// Statistics of this connection.
    pub fn stats(&self) -> ConnectionStats {
        ConnectionStats {
            session: self.channel.session(),
            exporter_pid: self.exporter.pid(),
            credit: self.credit,
            held: self.held(),
            received: self.progress.received(),
            lost: self.progress.lost(),
            futex_sleeps: self.sleep.state().futex_sleeps(),
            missed_wakes: self.sleep.state().missed(),
            gpu_wait_limited: self.gpu.limited_frames(),
            reconnects: 0,
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // Held frames keep the socket open, so the exporter needs the close message.
        self.channel.close(Reason::Stopped, "the reader has stopped");
    }
}
