// SPDX-License-Identifier: MIT OR Apache-2.0

//! Fuzz target: a hostile reader against an exporter that publishes to an honest reader.
//!
//! Some inputs are a hostile observer's instead.
//!
//! The hostile reader sends arbitrary packets and descriptors, writes arbitrary words into the
//! shared page, and takes and releases frames in between. The exporter must deliver every frame to
//! the honest reader and must have disconnected the hostile one in the end.

use super::Choices;
use crate::raw::{Channel, RawReader, encoded, hello};
use frameshare::{
    Endpoint, EntryIndex, Interrupt, Policy, Sequence, Wait,
    exporter::{self, Exporter, Frame, Purpose},
    fence::Written,
    reader::{self, Item, Reader},
};
use frameshare_protocol::{
    SlotId,
    limits::MAX_MESSAGE,
    message::{Observe, Reason, ToExporter},
    page::{Claim, ClaimState, claim_at},
};
use frameshare_queue::Consumer;
use rustix::{
    fs::{FallocateFlags, fallocate},
    net::SendFlags,
};
use std::{
    os::fd::AsFd,
    path::PathBuf,
    sync::{Mutex, PoisonError, atomic::Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

const SIZE: u64 = 64;

/// State kept between inputs, since its setup takes longer than an input.
struct Fixture {
    path: PathBuf,
    exporter: Exporter,
    honest: Reader,
    interrupt: Interrupt,
    _folder: tempfile::TempDir,
}

/// Runs one input; see the module's documentation.
pub fn exporter(input: &[u8]) {
    static FIXTURE: Mutex<Option<Fixture>> = Mutex::new(None);
    let mut fixture = FIXTURE.lock().unwrap_or_else(PoisonError::into_inner);
    let fixture = fixture.get_or_insert_with(Fixture::new);
    let mut choices = Choices(input);
    match choices.byte() {
        250.. => fixture.run_hostile_observer(&mut choices),
        first if first.is_multiple_of(4) => fixture.send_arbitrary_hello(&mut choices),
        _ => fixture.run_hostile_reader(&mut choices),
    }
    fixture.check_undisturbed();
}

impl Fixture {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("s.sock");
        let endpoint = Endpoint::at(&path).expect("the path is short");
        let interrupt = Interrupt::new().expect("a descriptor");
        let config = exporter::Config::default().reader_timeout(Duration::from_millis(2));
        let exporter = Exporter::bind(&endpoint, config, |_| ()).expect("the name is free");
        let config = reader::Config::default().name("honest");
        let honest = Reader::connect(&endpoint, config, &interrupt).expect("there is credit");
        Self { path, exporter, honest, interrupt, _folder: folder }
    }

    /// Connects and sends an arbitrary first packet.
    fn send_arbitrary_hello(&self, choices: &mut Choices<'_>) {
        let Ok(channel) = Channel::connect(&self.path) else { return };
        let packet = choices.some_bytes(4096);
        let fd = channel.as_fd();
        let fds = vec![fd; choices.below(4)];
        let _ = channel.try_send(packet, &fds);
        channel.hangs_up(Duration::from_millis(1));
    }

    /// Observes the stream, with arbitrary requests and packets.
    fn run_hostile_observer(&mut self, choices: &mut Choices<'_>) {
        let Ok(channel) = Channel::connect(&self.path) else { return };
        let observe = Observe { name: "hostile".into(), interval_ms: choices.number() as u32 };
        let _ = channel.try_send(&encoded(ToExporter::Observe(observe).encode()), &[]);
        for _ in 0..64 {
            if choices.is_over() {
                break;
            }
            let message = match choices.byte() % 6 {
                0 => {
                    self.publish();
                    continue;
                }
                1 => {
                    let _ = channel.receive(Duration::ZERO);
                    continue;
                }
                2 => ToExporter::RequestSnapshot { request: choices.number() as u32 },
                // An observer of this user may disconnect the honest reader.
                3 => ToExporter::Disconnect { reader: choices.number() | 1 << 63 },
                4 => ToExporter::Observe(Observe { name: String::new(), interval_ms: 0 }),
                _ => {
                    let packet = choices.some_bytes(64);
                    if !matches!(ToExporter::decode(packet), Ok(ToExporter::Disconnect { .. })) {
                        let _ = channel.try_send(packet, &vec![channel.as_fd(); choices.below(4)]);
                    }
                    continue;
                }
            };
            let _ = channel.try_send(&encoded(message.encode()), &[]);
        }
    }

    /// Joins as a valid reader, then performs arbitrary actions.
    fn run_hostile_reader(&mut self, choices: &mut Choices<'_>) {
        let policy = if choices.byte() == 7 { Policy::Lossless } else { Policy::Latest };
        let credit = choices.below(6) as u32 + 1;
        let Ok(hostile) = RawReader::join(&self.path, hello(policy, credit)) else { return };
        let credit = hostile.welcome.credit as usize;
        let page = frameshare_protocol::page::claims_size(credit);
        let consumer = Consumer::new(&hostile.queue, &hostile.claims, credit).expect("the page is ready");
        for _ in 0..64 {
            if choices.is_over() {
                break;
            }
            match choices.byte() % 10 {
                0 | 1 => self.publish(),
                2 => hostile.claims[choices.below(page / 8)].store(choices.number(), Relaxed),
                3 => {
                    // An almost valid claim word.
                    let word = &hostile.claims[claim_at(EntryIndex(choices.below(credit)))];
                    let now = Claim::decode(word.load(Relaxed));
                    let sequence = now.sequence.0.wrapping_add(choices.number()) & ((1 << 62) - 1);
                    let state = match choices.byte() % 4 {
                        0 => ClaimState::Revoked,
                        1 => ClaimState::Published,
                        2 => ClaimState::Taken,
                        _ => ClaimState::Released,
                    };
                    word.store(Claim { sequence: Sequence(sequence), state }.encode(), Relaxed);
                }
                4 => {
                    if let Some(Ok(found)) = consumer.oldest() {
                        let _ = consumer.claim(found.entry, found.descriptor.sequence);
                    }
                }
                5 => {
                    let entry = choices.below(credit);
                    let now = Claim::decode(hostile.claims[claim_at(EntryIndex(entry))].load(Relaxed));
                    consumer.release(EntryIndex(entry), now.sequence);
                }
                6 => {
                    let packet = match choices.byte() % 5 {
                        0 => choices.some_bytes(64).to_vec(),
                        1 => {
                            let number = choices.number();
                            let slot = SlotId { generation: number as u32, index: (number >> 33) as u32 };
                            encoded(match number >> 32 & 1 {
                                0 => ToExporter::Retired { generation: number as u32 }.encode(),
                                _ => ToExporter::RetiredSlot { slot }.encode(),
                            })
                        }
                        2 => encoded(
                            ToExporter::Goodbye { reason: Reason::Stopped, text: "a text".into() }.encode(),
                        ),
                        3 => encoded(ToExporter::RequestKeyUnit.encode()),
                        _ => vec![choices.byte(); MAX_MESSAGE + choices.below(2)],
                    };
                    let fds = vec![hostile.fds[0].as_fd(); choices.below(8)];
                    let _ = hostile.channel.try_send(&packet, &fds);
                }
                7 => {
                    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
                    let _ = rustix::net::send(&hostile.fds[3], &[1; 4096], flags);
                }
                8 => {
                    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                    for fd in &hostile.fds[..3] {
                        let _ = fallocate(fd, hole, 0, 4096);
                    }
                }
                _ => {
                    self.exporter.stats();
                }
            }
        }
    }

    /// Publishes a frame that the honest reader must receive unchanged.
    #[expect(unsafe_code, reason = "writing a slot that was just acquired")]
    fn publish(&mut self) {
        let slot = self.exporter.acquire(SIZE, Purpose::Copy, Wait::No).expect("a copy always finds a slot");
        let start = slot.as_ptr().expect("host memory has an address");
        let mark = self.exporter.stats().published as u8;
        // SAFETY: the slot has the requested size, and the producer has exclusive access until it
        // publishes.
        unsafe { start.as_ptr().write_bytes(mark, SIZE as usize) };
        let frame = Frame { metadata: &[mark; 3], ..Frame::new(&slot, SIZE, Written::Cpu) };
        let sequence = self.exporter.publish(frame, Wait::Forever).expect("publishing never waits for long");
        let frame = loop {
            match self.honest.next(Some(crate::raw::PATIENCE), &self.interrupt) {
                Ok(Some(Item::Frame(frame))) => break frame,
                Ok(Some(_)) => {}
                other => panic!("{other:?} instead of frame {sequence}"),
            }
        };
        assert_eq!((frame.descriptor().sequence, frame.lost_before()), (sequence, 0));
        assert_eq!(frame.metadata(), [mark; 3]);
        assert!(frame.bytes().iter().all(|byte| byte.load(Relaxed) == mark), "frame {sequence} was written");
    }

    /// Waits until the hostile reader is disconnected and its leases are reclaimed.
    fn check_undisturbed(&mut self) {
        let end = Instant::now() + crate::raw::PATIENCE;
        while self.exporter.reader_count() != 1 {
            assert!(Instant::now() < end, "the hostile reader is still connected");
            thread::sleep(Duration::from_micros(50));
        }
        self.publish();
        let stats = self.exporter.stats();
        assert_eq!((stats.readers.len(), stats.readers[0].lost), (1, 0));
        assert!(stats.slots <= 16, "{} slots for the credit of two readers", stats.slots);
    }
}
