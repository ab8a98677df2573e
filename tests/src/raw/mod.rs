//! The protocol without the engine: for peers that speak it wrongly on purpose.

mod exporter;
mod files;
mod socket;

pub use exporter::{Offer, RawExporter};
pub use files::{Page, Seals, memfd};
pub use socket::{Channel, Door};

use frameshare_protocol::{
    FenceKind, MemoryKind, Policy,
    message::{Hello, ToExporter, ToReader, Welcome},
    page::{claims_size, queue_size},
};
use std::{io, os::fd::OwnedFd, path::Path, time::Duration};

/// Nothing here takes so long unless it hangs.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// What an honest reader of host memory says first.
pub fn hello(policy: Policy, credit: u32) -> Hello {
    Hello {
        nonce: [0x5a; 16],
        name: "stranger".into(),
        policy,
        credit,
        memory: vec![MemoryKind::Host],
        fences: vec![FenceKind::None],
        gpus: Vec::new(),
        context: 0,
        host_fallback: false,
    }
}

/// A reader made of nothing but its socket and its pages, all of them open to be misused.
#[derive(Debug)]
pub struct RawReader {
    /// The control socket.
    pub channel: Channel,
    /// What the exporter granted.
    pub welcome: Welcome,
    /// The queue page, read-only: the seals allow nothing else.
    pub queue: Page,
    /// The claims page.
    pub claims: Page,
    /// Queue page, claims page, metadata areas and wake socket, as they came.
    pub fds: Vec<OwnedFd>,
}

impl RawReader {
    /// Joins the stream whose socket is at `path`.
    ///
    /// # Errors
    ///
    /// Where the exporter does not answer with a welcome.
    pub fn join(path: &Path, hello: Hello) -> io::Result<Self> {
        let channel = Channel::connect(path)?;
        channel.send(&encoded(ToExporter::Hello(hello).encode()), &[])?;
        let (packet, fds) = channel
            .receive(PATIENCE)?
            .ok_or_else(|| io::Error::new(io::ErrorKind::ConnectionReset, "it hung up"))?;
        let welcome = match ToReader::decode(&packet) {
            Ok(ToReader::Welcome(welcome)) => welcome,
            other => return Err(io::Error::other(format!("{other:?} instead of a welcome"))),
        };
        let entries = welcome.credit as usize;
        let queue = Page::read_only(&fds[0], queue_size(entries))?;
        let claims = Page::writable(&fds[1], claims_size(entries))?;
        Ok(Self { channel, welcome, queue, claims, fds })
    }
}

/// A packet that is known to be short enough.
pub fn encoded<E: std::fmt::Debug>(packet: Result<Vec<u8>, E>) -> Vec<u8> {
    packet.expect("the message is short")
}
