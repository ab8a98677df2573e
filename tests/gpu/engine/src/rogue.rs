// SPDX-License-Identifier: MIT OR Apache-2.0

//! Reader that implements the protocol by hand and violates its rules.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use frameshare::{FenceKind, MemoryKind, Policy};
use frameshare_cuda::event::Event;
use frameshare_cuda::memory::{legacy, pool};
use frameshare_protocol::message::{EVENT_HANDLE, Hello, ToExporter, ToReader, Welcome};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendFlags,
    SocketAddrUnix, SocketFlags, SocketType, sockopt,
};

use crate::gpu::{self, Gpu};
use crate::job::Connect;

/// A rogue reader and its resources.
pub struct Rogue {
    socket: OwnedFd,
    gpu: Gpu,
    welcome: Welcome,
    // Queue, claims, metadata, wake socket: unused.
    _pages: Vec<OwnedFd>,
    events: Vec<Event>,
    pools: Vec<Arc<pool::ImportedPool>>,
    imports: Vec<Kept>,
}

/// An import that is never released.
#[expect(dead_code, reason = "held, not used")]
enum Kept {
    Legacy(legacy::Import),
    Pool(pool::Import),
}

impl Rogue {
    /// Connects as a regular reader does.
    pub fn connect(connect: &Connect) -> Result<Rogue> {
        let gpu = Gpu::open(connect.device)?;
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        rustix::net::connect(&socket, &SocketAddrUnix::new(&*connect.path)?)?;
        let hello = ToExporter::Hello(Hello {
            nonce: [7; 16],
            name: "rogue".into(),
            policy: Policy::Latest,
            credit: connect.max_held.unwrap_or(4),
            memory: vec![MemoryKind::Vmm, MemoryKind::Pool, MemoryKind::Legacy],
            fences: connect.fence.map_or(vec![FenceKind::Timeline, FenceKind::Event], |fence| vec![fence]),
            gpus: vec![gpu.context.device().uuid().0],
            context: 1,
            host_fallback: false,
        });
        send(&socket, &hello)?;
        let (ToReader::Welcome(welcome), pages) = receive(&socket, Duration::from_secs(5))? else {
            bail!("the exporter does not admit the rogue reader")
        };
        let rogue = Rogue {
            socket,
            gpu,
            welcome,
            _pages: pages,
            events: Vec::new(),
            pools: Vec::new(),
            imports: Vec::new(),
        };
        Ok(rogue)
    }

    /// Records again all events received from the exporter, ready events included, on a stalled
    /// stream.
    pub fn record_over(&mut self, us: u64) -> Result<()> {
        ensure!(!self.welcome.events.is_empty(), "the exporter shared no events");
        gpu::stall(&self.gpu.stream, us)?;
        let (handles, _) = self.welcome.events.as_chunks::<EVENT_HANDLE>();
        for handle in handles {
            let event = Event::open(&self.gpu.context, handle)?;
            event.record(&self.gpu.stream)?;
            self.events.push(event);
        }
        Ok(())
    }

    /// Imports the received memory, and acknowledges the first retirement without releasing the
    /// imports.
    pub fn acknowledge_and_keep(&mut self, patience: Duration) -> Result<()> {
        let until = Instant::now() + patience;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let (message, fds) = receive(&self.socket, left)?;
            match message {
                ToReader::Generation { memory: MemoryKind::Pool, .. } => {
                    let fd = fds.first().context("a pool message without a descriptor")?;
                    self.pools.push(pool::ImportedPool::new(&self.gpu.context, fd.as_fd())?);
                }
                ToReader::Slot { handle, .. } => {
                    let token: [u8; 64] = handle.try_into().ok().context("a handle of unexpected length")?;
                    self.imports.push(match self.pools.last() {
                        Some(pool) => Kept::Pool(pool.import(&token)?),
                        None => Kept::Legacy(legacy::Import::new(&self.gpu.context, &token)?),
                    });
                }
                ToReader::Retire { generation, .. } => {
                    ensure!(!self.imports.is_empty(), "retirement before any import");
                    return send(&self.socket, &ToExporter::Retired { generation });
                }
                _ => {}
            }
        }
    }
}

fn send(socket: &OwnedFd, message: &ToExporter) -> Result<()> {
    let packet = message.encode()?;
    let mut none = SendAncillaryBuffer::default();
    rustix::net::sendmsg(socket, &[IoSlice::new(&packet)], &mut none, SendFlags::NOSIGNAL)?;
    Ok(())
}

fn receive(socket: &OwnedFd, patience: Duration) -> Result<(ToReader, Vec<OwnedFd>)> {
    let patience = patience.max(Duration::from_millis(1));
    sockopt::set_socket_timeout(socket, sockopt::Timeout::Recv, Some(patience))?;
    let mut bytes = vec![0; 128 << 10];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let into = &mut [IoSliceMut::new(&mut bytes)];
    let received = rustix::net::recvmsg(socket, into, &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    Ok((ToReader::decode(&bytes[..received.bytes])?, fds))
}
