// SPDX-License-Identifier: MIT OR Apache-2.0

//! Exporter side of the protocol without the engine: a socket and shared pages.

use super::{Channel, Listener, Page, Seals, encoded, memfd};
use frameshare::{Descriptor, EntryIndex, FenceKind, MemoryKind, Plane, Policy, Sequence, SlotId};
use frameshare_protocol::{
    message::{Format, ToReader, Welcome},
    page::{claim_at, claims_size, metadata_size, queue_size},
};
use frameshare_queue::Producer;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::atomic::AtomicU64,
    time::Duration,
};

/// Shared state for one reader before it is sent: queue page, claims page, metadata areas, wake
/// socket.
#[derive(Debug)]
pub struct Offer {
    /// The welcome message.
    pub welcome: Welcome,
    /// Descriptors that go with the welcome.
    pub fds: Vec<OwnedFd>,
    queue: Page,
    claims: Page,
    metadata: Page,
    producer: Producer<Page>,
    wake: OwnedFd,
}

/// Exporter with one reader.
#[derive(Debug)]
pub struct RawExporter {
    /// Control socket.
    pub channel: Channel,
    /// Publishes as an honest exporter does.
    pub producer: Producer<Page>,
    /// Queue page, writable for tests.
    pub queue: Page,
    /// Claims page.
    pub claims: Page,
    /// Metadata areas.
    pub metadata: Page,
    /// The exporter's end of the wake socket.
    pub wake: OwnedFd,
    /// Sequence number of the next frame.
    pub next: Sequence,
    /// Number of ordered messages sent.
    pub messages: u64,
    credit: usize,
}

impl Offer {
    /// Creates the shared state as an honest exporter does.
    ///
    /// # Errors
    ///
    /// Those of the system calls.
    pub fn new(credit: usize, areas: u32, next: u64) -> io::Result<Self> {
        let offer = Self::unsealed(credit, areas, next)?;
        offer.seal()?;
        Ok(offer)
    }

    /// Adds the seals that a reader requires: the queue and the metadata cannot be mapped writable
    /// again.
    ///
    /// # Errors
    ///
    /// Those of the system calls.
    pub fn seal(&self) -> io::Result<()> {
        let seals = [Seals::SizeAndWrites, Seals::Size, Seals::SizeAndWrites];
        self.fds.iter().zip(seals).try_for_each(|(fd, seals)| seals.put_on(fd))
    }

    /// Creates the shared state without seals.
    ///
    /// # Errors
    ///
    /// Those of the system calls.
    pub fn unsealed(credit: usize, areas: u32, next: u64) -> io::Result<Self> {
        let sizes = [queue_size(credit), claims_size(credit), metadata_size(areas)];
        let mut fds = Vec::new();
        for size in sizes {
            fds.push(memfd(size as u64)?);
        }
        let map = |at: usize| Page::writable(&fds[at], sizes[at]);
        let (queue, claims, metadata) = (map(0)?, map(1)?, map(2)?);
        let producer = Producer::new(map(0)?, map(1)?, credit, Sequence(next));
        let (wake, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        fds.push(theirs);
        let welcome = Welcome {
            nonce: [0xa5; 16],
            session: 1,
            policy: Policy::Latest,
            credit: credit as u32,
            fence: FenceKind::None,
            events: Vec::new(),
            gpu: None,
            areas,
            next: Sequence(next),
            live: Sequence(next),
            wake_word: None,
        };
        Ok(Self { welcome, fds, queue, claims, metadata, producer, wake })
    }

    /// Waits for a reader, and sends it the welcome and the descriptors.
    ///
    /// # Errors
    ///
    /// Those of the system calls, and `TimedOut` if no reader connects.
    pub fn send(self, listener: &Listener, patience: Duration) -> io::Result<RawExporter> {
        let packet = encoded(ToReader::Welcome(self.welcome.clone()).encode());
        self.send_as(&packet, listener, patience)
    }

    /// Like [`send`](Self::send), with another packet in place of the welcome.
    ///
    /// # Errors
    ///
    /// As for [`send`](Self::send).
    pub fn send_as(self, packet: &[u8], listener: &Listener, patience: Duration) -> io::Result<RawExporter> {
        let channel = listener.accept(patience)?;
        channel.receive(patience)?;
        let fds: Vec<_> = self.fds.iter().map(AsFd::as_fd).collect();
        channel.send(packet, &fds)?;
        Ok(self.on(channel))
    }

    /// Uses a connection without sending anything.
    pub fn on(self, channel: Channel) -> RawExporter {
        let Self { welcome, queue, claims, metadata, producer, wake, .. } = self;
        let (credit, next) = (welcome.credit as usize, welcome.next);
        RawExporter { channel, producer, queue, claims, metadata, wake, next, messages: 0, credit }
    }
}

impl RawExporter {
    /// The claims of its entries, without the reader's counters behind them.
    pub fn entries(&self) -> &[AtomicU64] {
        &self.claims[claim_at(EntryIndex(0))..claim_at(EntryIndex(self.credit))]
    }

    /// Sends a message, with a descriptor if there is one.
    ///
    /// # Errors
    ///
    /// Those of the system calls.
    pub fn send_message(&mut self, message: &ToReader, fd: Option<BorrowedFd<'_>>) -> io::Result<()> {
        self.messages += u64::from(message.is_ordered());
        let fds: Vec<_> = fd.into_iter().collect();
        self.channel.send(&encoded(message.encode()), &fds)
    }

    /// Sends the format of the frames.
    ///
    /// # Errors
    ///
    /// Those of the system calls.
    pub fn format(&mut self, caps: &str) -> io::Result<()> {
        let format = Format { caps: caps.into(), video: None };
        self.send_message(&ToReader::Format { before: self.next, memory: MemoryKind::Host, format }, None)
    }

    /// Sends one slot in a generation of its own, and returns its memory.
    ///
    /// # Errors
    ///
    /// Those of the system calls.
    pub fn slot(&mut self, generation: u32, size: u64) -> io::Result<OwnedFd> {
        let fd = memfd(size)?;
        Seals::SizeAndWrites.put_on(&fd)?;
        self.slot_in(generation, size, fd.as_fd())?;
        Ok(fd)
    }

    /// Sends any file as the one slot of a generation.
    ///
    /// # Errors
    ///
    /// Those of the system calls.
    pub fn slot_in(&mut self, generation: u32, size: u64, file: BorrowedFd<'_>) -> io::Result<()> {
        let memory = MemoryKind::Host;
        let message = ToReader::Generation { generation, memory, slot_size: size, adopted: false };
        self.send_message(&message, None)?;
        self.send_message(
            &ToReader::Slot { slot: SlotId { generation, index: 0 }, handle: Vec::new() },
            Some(file),
        )
    }

    /// Publishes a whole slot and wakes the reader.
    pub fn publish(&mut self, generation: u32, size: u64) {
        let descriptor = Descriptor { slot: SlotId { generation, index: 0 }, size, ..Default::default() };
        self.publish_as(descriptor);
    }

    /// Publishes a frame of 128 KiB whose rows overlap, and which so claims an image of 2.7 GB.
    ///
    /// # Errors
    ///
    /// Those of the system calls.
    pub fn publish_overlapping_rows(&mut self) -> io::Result<()> {
        const SIZE: u64 = 128 << 10;
        self.format("video/x-raw,format=RGB,width=30000,height=30000,framerate=30/1")?;
        self.slot(1, SIZE)?;
        let mut planes = [Plane::default(); 4];
        planes[0].stride = 1;
        let slot = SlotId { generation: 1, index: 0 };
        self.publish_as(Descriptor { slot, size: SIZE, plane_count: 1, planes, ..Default::default() });
        Ok(())
    }

    /// Publishes a descriptor, with the next sequence number and message count filled in.
    pub fn publish_as(&mut self, descriptor: Descriptor) {
        let descriptor = Descriptor { sequence: self.next, messages: self.messages, ..descriptor };
        self.producer.publish(EntryIndex(self.next.0 as usize % self.credit), &descriptor);
        self.next = self.next.next();
        self.wake_reader();
    }

    /// Wakes the reader.
    pub fn wake_reader(&self) {
        let flags = rustix::net::SendFlags::DONTWAIT | rustix::net::SendFlags::NOSIGNAL;
        let _ = rustix::net::send(&self.wake, &[1], flags);
    }
}
