// SPDX-License-Identifier: MIT OR Apache-2.0

//! The protocol without the engine, for peers that violate it on purpose.

mod exporter;
mod files;
pub mod foreign;
mod socket;

pub use exporter::{Offer, RawExporter};
pub use files::{Page, Seals, memfd};
pub use socket::{Channel, Listener};

use frameshare_protocol::{
    FenceKind, MemoryKind, Policy,
    message::{Hello, Payload, Rights, Snapshot, ToExporter, ToReader, Welcome},
    page::{claims_size, queue_size},
};
use std::{io, os::fd::OwnedFd, path::Path, time::Duration};

/// Timeout of operations that can only exceed it by a hang.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Returns the first message of an honest reader of host memory.
pub fn hello(policy: Policy, credit: u32) -> Hello {
    Hello {
        nonce: [0x5a; 16],
        name: "raw".into(),
        policy,
        credit,
        max_queued: credit,
        memory: vec![MemoryKind::Host],
        fences: vec![FenceKind::None],
        gpus: Vec::new(),
        context: 0,
        host_fallback: false,
        max_gop_bytes: 1 << 20,
    }
}

/// Reader side of the protocol without the engine: a socket and shared pages, all accessible to the
/// test.
#[derive(Debug)]
pub struct RawReader {
    /// Control socket.
    pub channel: Channel,
    /// The welcome that the exporter sent.
    pub welcome: Welcome,
    /// Queue page, mapped read-only, as its seals require.
    pub queue: Page,
    /// Claims page.
    pub claims: Page,
    /// Queue page, claims page, metadata areas and wake socket, as received, then the
    /// timeline page and the wake-up page, if there are any.
    pub fds: Vec<OwnedFd>,
}

impl RawReader {
    /// Joins the stream whose socket is at `path`.
    ///
    /// # Errors
    ///
    /// Those of the system calls, and any answer but a welcome.
    pub fn join(path: &Path, hello: Hello) -> io::Result<Self> {
        let channel = Channel::connect(path)?;
        channel.send(&encoded(ToExporter::Hello(hello).encode()), &[])?;
        let (packet, fds) = channel.receive(PATIENCE)?.ok_or_else(|| {
            io::Error::new(io::ErrorKind::ConnectionReset, "the exporter closed the connection")
        })?;
        let welcome = match ToReader::decode(&packet) {
            Ok(ToReader::Welcome(welcome)) => welcome,
            other => return Err(io::Error::other(format!("{other:?} in place of a welcome"))),
        };
        let entries = welcome.credit as usize;
        let queue = Page::read_only(&fds[0], queue_size(entries))?;
        let claims = Page::writable(&fds[1], claims_size(entries))?;
        Ok(Self { channel, welcome, queue, claims, fds })
    }
}

/// Accepts an observer and sends it a snapshot, which is short. The channel keeps it connected.
///
/// # Errors
///
/// Those of the system calls, and `TimedOut` if no observer connects.
pub fn show_snapshot(listener: &Listener, snapshot: &Snapshot, rights: Rights) -> io::Result<Channel> {
    let channel = listener.accept(PATIENCE)?;
    channel.receive(PATIENCE)?;
    let payload = Payload::Inline(snapshot.encode());
    channel.send(&encoded(ToReader::Snapshot { request: 0, rights, payload }.encode()), &[])?;
    Ok(channel)
}

/// Unwraps an encoded packet that is known to fit.
pub fn encoded<E: std::fmt::Debug>(packet: Result<Vec<u8>, E>) -> Vec<u8> {
    packet.expect("the message is short")
}
