// SPDX-License-Identifier: MIT OR Apache-2.0

//! Fuzz target: a hostile exporter against a reader.
//!
//! The exporter sends arbitrary packets and descriptors, writes arbitrary words into the shared
//! pages, shrinks memory where the kernel allows it, and publishes frames in between. The reader
//! may end the stream with an error, but each of its calls must return, and each delivered frame
//! must be readable from the first byte to the last.

use super::Choices;
use crate::raw::{Listener, Offer, Page, RawExporter, Seals, encoded, memfd};
use frameshare::{
    AreaIndex, Descriptor, Endpoint, EntryIndex, Format, Interrupt, MemoryKind, Plane, Sequence, SlotId,
    reader::{self, Frame, Item, Reader},
};
use frameshare_protocol::{
    kept::KeptUnit,
    limits::MAX_SLOT_SIZE,
    message::{Payload, Reason, ToReader},
};
use rustix::fs::{FallocateFlags, fallocate, ftruncate};
use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    sync::{Mutex, PoisonError, atomic::Ordering::Relaxed, mpsc},
    thread,
    time::Duration,
};

/// Largest credit and largest slot size that the exporter grants; more finds nothing new.
const MAX_CREDIT: usize = 6;
const SLOT: u64 = 8192;

/// State kept between inputs.
struct Fixture {
    endpoint: Endpoint,
    interrupt: Interrupt,
    /// Sends answers to the thread that accepts connections.
    answers: mpsc::Sender<(Vec<u8>, Offer)>,
    /// Receives exporters from that thread.
    exporters: mpsc::Receiver<io::Result<RawExporter>>,
    _folder: tempfile::TempDir,
}

/// The hostile exporter and the descriptors that it has shared.
struct Shared {
    exporter: RawExporter,
    /// Set when the exporter has shut its sending direction down.
    hung_up: bool,
    metadata: OwnedFd,
    /// Memory that was sent as slots.
    slots: Vec<OwnedFd>,
    credit: usize,
}

/// Runs one input; see the module's documentation.
pub fn reader(input: &[u8]) {
    static FIXTURE: Mutex<Option<Fixture>> = Mutex::new(None);
    let mut fixture = FIXTURE.lock().unwrap_or_else(PoisonError::into_inner);
    let fixture = fixture.get_or_insert_with(Fixture::new);
    let mut choices = Choices(input);
    let Some((mut reader, mut shared)) = fixture.accept(&mut choices) else { return };
    let mut held = Vec::new();
    for _ in 0..64 {
        if choices.is_over() {
            break;
        }
        shared.act(&mut choices);
        if choices.byte().is_multiple_of(4) {
            held.clear();
        }
        if !take(&mut reader, &fixture.interrupt, &mut held) {
            break;
        }
    }
    drop(held);
    take(&mut reader, &fixture.interrupt, &mut Vec::new());
}

/// Takes the available frames and reads all of their bytes. Returns false if the reader ended the
/// stream.
fn take(reader: &mut Reader, interrupt: &Interrupt, held: &mut Vec<Frame>) -> bool {
    for _ in 0..4 {
        match reader.next(Some(Duration::ZERO), interrupt) {
            Ok(Some(Item::Frame(frame))) => {
                let bytes = frame.bytes();
                assert_eq!(bytes.len() as u64, frame.descriptor().size);
                let sum = bytes.iter().fold(0_u8, |sum, byte| sum.wrapping_add(byte.load(Relaxed)));
                std::hint::black_box(sum);
                assert!(
                    frame.descriptor().used_planes().iter().all(|plane| plane.offset <= bytes.len() as u64)
                );
                for plane in (0..5).filter_map(|index| frame.plane(index).ok()) {
                    let rows = (0..plane.height as usize).take(100).map(|row| plane.row(row).len());
                    std::hint::black_box((plane.bytes().len(), rows.sum::<usize>()));
                }
                held.push(frame);
                held.truncate(3);
            }
            Ok(Some(Item::Event(event))) => drop(std::hint::black_box(event.content())),
            Ok(Some(_)) => {}
            Ok(None) => return true,
            Err(_) => return false,
        }
    }
    true
}

impl Fixture {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("s.sock");
        let listener = Listener::bind(&path).expect("the path is free");
        let (answers, to_be_sent) = mpsc::channel::<(Vec<u8>, Offer)>();
        let (sender, exporters) = mpsc::channel();
        thread::spawn(move || {
            for (packet, offer) in to_be_sent {
                if sender.send(offer.send_as(&packet, &listener, crate::raw::PATIENCE)).is_err() {
                    break;
                }
            }
        });
        let endpoint = Endpoint::at(path).expect("the path is short");
        let interrupt = Interrupt::new().expect("a descriptor");
        Self { endpoint, interrupt, answers, exporters, _folder: folder }
    }

    /// Accepts a reader with a valid or a damaged welcome.
    fn accept(&self, choices: &mut Choices<'_>) -> Option<(Reader, Shared)> {
        let credit = choices.below(MAX_CREDIT) + 1;
        let (areas, next) = (choices.below(3) as u32 + 1, choices.number());
        let strange = choices.byte();
        let mut offer = Offer::new(credit, areas, next).expect("memory");
        let metadata = offer.fds[2].try_clone().expect("a descriptor");
        let mut packet = encoded(ToReader::Welcome(offer.welcome.clone()).encode());
        let fds = &mut offer.fds;
        match strange {
            200..208 => packet = choices.some_bytes(512).to_vec(),
            208..216 => {
                let at = choices.below(packet.len());
                packet[at] = choices.byte();
            }
            216..232 => {
                let at = choices.below(fds.len());
                fds[at] = some_fd(choices);
            }
            232..236 => {
                fds.remove(choices.below(fds.len()));
            }
            236..240 => fds.push(some_fd(choices)),
            _ => {}
        }
        self.answers.send((packet, offer)).expect("the thread is there");
        let config = reader::Config::default()
            // Longer than the thread can take on a busy machine.
            .connection_timeout(Some(Duration::from_secs(10)))
            .max_held(MAX_CREDIT as u32);
        let reader = Reader::connect(&self.endpoint, config, &self.interrupt);
        let exporter = self.exporters.recv().expect("the thread is there").expect("the reader connects");
        let shared = Shared { exporter, hung_up: false, metadata, slots: Vec::new(), credit };
        Some((reader.ok()?, shared))
    }
}

impl Shared {
    /// Performs one action of the exporter.
    fn act(&mut self, choices: &mut Choices<'_>) {
        match choices.byte() % 12 {
            0 | 1 => self.publish(choices),
            2 => {
                self.exporter.queue[choices.below(self.exporter.queue.len())].store(choices.number(), Relaxed)
            }
            3 => self.exporter.claims[choices.below(self.exporter.claims.len())]
                .store(choices.number(), Relaxed),
            4 => self.hand_over(choices),
            5 | 6 => self.send_message(choices),
            7 => {
                let packet = choices.some_bytes(256);
                self.send_raw(packet, choices.byte().is_multiple_of(4));
            }
            8 => {
                let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                for fd in self.slots.iter().chain([&self.metadata]) {
                    let _ = fallocate(fd, hole, 0, SLOT);
                    let _ = ftruncate(fd, 0);
                }
            }
            9 => {
                let flags = rustix::net::SendFlags::DONTWAIT | rustix::net::SendFlags::NOSIGNAL;
                let _ = rustix::net::send(&self.exporter.wake, &[1; 1024], flags);
            }
            10 if choices.byte() > 200 => {
                self.hung_up = true;
                let _ = rustix::net::shutdown(&self.exporter.channel, rustix::net::Shutdown::Both);
            }
            10 if choices.byte() > 200 => {
                let _ = rustix::net::shutdown(&self.exporter.wake, rustix::net::Shutdown::Write);
            }
            _ => self.publish(choices),
        }
    }

    fn publish(&mut self, choices: &mut Choices<'_>) {
        let mut descriptor = Descriptor {
            sequence: self.exporter.next,
            messages: self.exporter.messages,
            slot: SlotId { generation: choices.byte() as u32 % 3, index: choices.byte() as u32 % 4 },
            offset: choices.number() & 0xffff,
            size: choices.number() & 0x3fff,
            ..Default::default()
        };
        match choices.byte() {
            0 => descriptor.size = choices.number(),
            1 => descriptor.offset = choices.number(),
            2 => descriptor.messages = choices.number(),
            3 => descriptor.sequence = Sequence(choices.number()),
            4 => descriptor.area = AreaIndex(choices.number() as u32),
            5 => descriptor.metadata = choices.number() as u32,
            6 => descriptor.plane_count = choices.number() as u32,
            7 => {
                descriptor.plane_count = 1 + choices.byte() as u32 % 4;
                let mut plane = || Plane { offset: choices.number(), stride: choices.number() as i32 };
                descriptor.planes = std::array::from_fn(|_| plane());
            }
            8 => descriptor.pts = Some(choices.number()),
            9 => descriptor.metadata = choices.below(4200) as u32,
            _ => {}
        }
        self.exporter.next = descriptor.sequence.next();
        // Sequence numbers have 62 bits; the producer relies on it.
        descriptor.sequence.0 &= (1 << 62) - 1;
        self.exporter.producer.publish(EntryIndex(choices.below(self.credit)), &descriptor);
    }

    /// Sends a generation and slots of it.
    fn hand_over(&mut self, choices: &mut Choices<'_>) {
        let generation = choices.byte() as u32 % 3;
        let slot_size = if choices.byte() < 200 { SLOT } else { choices.number() % MAX_SLOT_SIZE };
        let memory = if choices.byte() < 240 { MemoryKind::Host } else { MemoryKind::Vmm };
        self.send(&ToReader::Generation { generation, memory, slot_size, adopted: false }, None);
        for index in 0..choices.byte() as u32 % 4 {
            let fd = if choices.byte() < 200 {
                let fd = memfd(SLOT).expect("memory");
                Seals::SizeAndWrites.put_on(&fd).expect("a fresh file can be sealed");
                fd
            } else {
                some_fd(choices)
            };
            self.send(&ToReader::Slot { slot: SlotId { generation, index }, handle: Vec::new() }, Some(&fd));
            self.slots.push(fd);
        }
    }

    fn send_message(&mut self, choices: &mut Choices<'_>) {
        let before = self.exporter.next.0.wrapping_add(choices.number()).wrapping_sub(choices.number());
        let payload = |choices: &mut Choices<'_>| {
            if choices.byte() < 128 {
                (Payload::Inline(choices.some_bytes(128).to_vec()), None)
            } else {
                (Payload::Sealed(choices.number() % (1 << 16)), Some(some_fd(choices)))
            }
        };
        let (message, fd) = match choices.byte() % 8 {
            0 => match choices.byte() as u32 {
                byte @ 0..192 => (ToReader::Retire { before: Sequence(before), generation: byte % 4 }, None),
                byte => (
                    ToReader::RetireSlot { slot: SlotId { generation: byte % 4, index: byte / 4 % 4 } },
                    None,
                ),
            },
            1 => {
                let caps = String::from_utf8_lossy(choices.some_bytes(64)).into_owned();
                (
                    ToReader::Format {
                        before: Sequence(before),
                        memory: MemoryKind::Host,
                        format: Format { caps, video: None },
                    },
                    None,
                )
            }
            2 | 3 => {
                let (payload, fd) = payload(choices);
                let number = choices.number();
                let (kind, sticky) = (number as u32, number >> 63 > 0);
                (ToReader::Event { before: Sequence(before), kind, sticky, payload }, fd)
            }
            4 | 5 => {
                let (payload, fd) = payload(choices);
                (ToReader::Metadata { sequence: Sequence(before), payload }, fd)
            }
            6 => (ToReader::EndOfStream { before: Sequence(before) }, None),
            _ if choices.0.first().is_some_and(|byte| *byte < 80) => {
                choices.byte();
                let (message, fd) = kept_units(choices, Sequence(before));
                (message, Some(fd))
            }
            _ if choices.byte() < 200 => (ToReader::EndOfStream { before: self.exporter.next }, None),
            _ if choices.byte() < 128 => {
                let size = (1 + choices.below(2)) << 16;
                let areas = memfd(size as u64).expect("memory");
                Seals::SizeAndWrites.put_on(&areas).expect("a fresh file can be sealed");
                (ToReader::LargeAreas { count: choices.byte() as u32 % 4 }, Some(areas))
            }
            _ => {
                let text = String::from_utf8_lossy(choices.some_bytes(64)).into_owned();
                (ToReader::Goodbye { reason: Reason::Violation, text }, None)
            }
        };
        self.send(&message, fd.as_ref());
    }

    fn send(&mut self, message: &ToReader, fd: Option<&OwnedFd>) {
        self.exporter.messages += u64::from(message.is_ordered());
        if let (Ok(packet), false) = (message.encode(), self.hung_up) {
            let fds: Vec<_> = fd.iter().map(|fd| fd.as_fd()).collect();
            let _ = self.exporter.channel.try_send(&packet, &fds);
        }
    }

    fn send_raw(&mut self, packet: &[u8], with_fd: bool) {
        if !self.hung_up {
            let fds = vec![self.metadata.as_fd(); usize::from(with_fd)];
            let _ = self.exporter.channel.try_send(packet, &fds);
        }
    }
}

/// Returns kept units in a file that may be damaged.
fn kept_units(choices: &mut Choices<'_>, before: Sequence) -> (ToReader, OwnedFd) {
    const BYTES: usize = SLOT as usize;
    let fd = memfd(SLOT).expect("memory");
    let page = Page::writable(&fd, BYTES).expect("a mapping");
    let (mut at, mut count) = (0, 0);
    for _ in 0..choices.byte() % 4 {
        let sequence = Sequence(choices.number());
        let descriptor = Descriptor { sequence, size: choices.below(2000) as u64, ..Default::default() };
        let Some(unit) = KeptUnit::new(descriptor, choices.below(300), at) else { break };
        if 8 * unit.next > BYTES {
            break;
        }
        page[at..].iter().zip(unit.encode()).for_each(|(word, value)| word.store(value, Relaxed));
        (at, count) = (unit.next, count + 1);
    }
    if choices.byte() < 128 {
        page[choices.below(page.len())].store(choices.number(), Relaxed);
    }
    let size = if choices.byte() < 200 { 8 * at as u64 } else { choices.number() };
    if choices.byte() < 240 {
        Seals::SizeAndWrites.put_on(&fd).expect("a fresh file can be sealed");
    }
    let count = if choices.byte() < 240 { count } else { choices.number() as u32 };
    (ToReader::KeptUnits { before, count, size }, fd)
}

/// Returns a useless or an almost valid descriptor.
fn some_fd(choices: &mut Choices<'_>) -> OwnedFd {
    let file = |size, seals: Seals| {
        let fd = memfd(size).expect("memory");
        seals.put_on(&fd).expect("a fresh file can be sealed");
        fd
    };
    match choices.byte() % 8 {
        0 => rustix::pipe::pipe().expect("a pipe").0,
        1 => std::fs::File::open("/").expect("a folder").into(),
        2 => file(SLOT, Seals::None),
        3 => file(0, Seals::Size),
        4 => file(1, Seals::SizeAndWrites),
        5 => file(1 << 16, Seals::SizeAndWrites),
        6 => file(SLOT, Seals::Size),
        _ => rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).expect("an eventfd"),
    }
}
