// SPDX-License-Identifier: MIT OR Apache-2.0

//! Memory of a burst: the exporter and reading processes free it some seconds later, and a reader
//! that never acknowledges keeps a bounded part of it.

use frameshare::{
    Endpoint, Format, Policy, Wait,
    exporter::{Config, Exporter, Frame, Notice, Slot},
    fence::Written,
};
use frameshare_protocol::message::{Reason, ToReader};
use frameshare_tests::{
    content,
    process::{PATIENCE, Process, TestRun, wait_until},
    raw::{RawReader, hello},
};
use std::{
    fs,
    sync::mpsc::{Receiver, channel},
    thread,
    time::Duration,
};

const SIZE: u64 = 256 << 10;
const BURST: usize = 24;
/// Slots that stay: the reserve with a kept frame, and two more.
const LEAST: u32 = 5;
/// Bytes of retired memory that a reader may keep: of so many slots.
const KEPT: u64 = 8;

struct Stream {
    run: TestRun,
    exporter: Exporter,
    notices: Receiver<Notice>,
    published: u64,
}

impl Stream {
    fn new(name: &str, config: Config) -> Self {
        let run = TestRun::new();
        let endpoint = Endpoint::at(run.socket(name)).unwrap();
        let (sender, notices) = channel();
        let exporter = Exporter::bind(&endpoint, config, move |notice| drop(sender.send(notice))).unwrap();
        let stream = Self { run, exporter, notices, published: 0 };
        stream.format(0);
        stream
    }

    fn format(&self, part: u32) {
        self.exporter.set_format(Format { caps: format!("application/x-test, part={part}"), video: None });
    }

    fn filled(&self, number: u64, size: u64) -> Slot {
        let fill = |bytes: &mut [u8]| content::fill(&mut bytes[..size as usize], number);
        self.exporter.filled(size, Wait::Forever, fill).unwrap()
    }

    fn publish(&mut self, slot: &Slot, size: u64) {
        self.exporter.publish(Frame::new(slot, size, Written::Cpu), Wait::Forever).unwrap();
        self.published += 1;
    }

    /// Publishes frames that all exist at once.
    fn burst(&mut self) {
        let first = self.published + 1;
        let slots = Vec::from_iter((0..BURST as u64).map(|number| self.filled(first + number, SIZE)));
        slots.iter().for_each(|slot| self.publish(slot, SIZE));
        assert!(self.exporter.stats().slots >= BURST as u32);
    }

    /// Publishes as a camera does, until this holds.
    fn go_on_until(&mut self, what: &str, mut condition: impl FnMut(&Self) -> bool) {
        wait_until(what, || {
            let slot = self.filled(self.published + 1, SIZE);
            self.publish(&slot, SIZE);
            thread::sleep(Duration::from_millis(20));
            condition(self)
        });
    }

    fn reader(&self, name: &str) -> Process {
        let socket = self.run.socket(name);
        self.run.peer(&format!("read --socket {socket} --policy lossless --verify yes --quiet yes"))
    }

    /// Ends the stream, of which this reader has read everything.
    fn end(self, reader: Process) {
        self.exporter.end_of_stream();
        let summary = reader.expect_success().summary();
        assert_eq!((&summary["frames"], &summary["bad"]), (&self.published.into(), &0.into()), "{summary}");
    }
}

/// Number of slots of a stream that a process has mapped.
fn mapped(pid: u32, name: &str) -> usize {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).expect("the process exists");
    maps.lines().filter(|line| line.contains(&format!("frameshare-slot:{name} "))).count()
}

#[test]
fn memory_of_a_burst_is_freed_at_exporter_and_reader() {
    let mut stream = Stream::new("burst", Config::default());
    let reader = stream.reader("burst");
    wait_until("a reader", || stream.exporter.reader_count() == 1);
    let (here, there) = (std::process::id(), reader.pid());
    stream.burst();
    assert!(mapped(here, "burst") >= BURST);
    wait_until("the burst at the reader", || mapped(there, "burst") >= BURST);
    stream.go_on_until("few slots", |stream| {
        stream.exporter.stats().slots <= LEAST && mapped(there, "burst") <= LEAST as usize
    });
    wait_until("few slots here", || mapped(here, "burst") <= LEAST as usize);
    let stats = stream.exporter.stats();
    assert_eq!((stats.retired_bytes, stats.trimmed_slots + u64::from(stats.slots)), (0, BURST as u64));
    stream.end(reader);
}

/// The service thread alone trims: no thread calls the exporter.
#[test]
fn memory_of_a_burst_is_freed_without_further_frames() {
    let mut stream = Stream::new("idle", Config::default());
    let reader = stream.reader("idle");
    wait_until("a reader", || stream.exporter.reader_count() == 1);
    stream.burst();
    let (here, there) = (std::process::id(), reader.pid());
    for pid in [here, there] {
        wait_until("few slots", || mapped(pid, "idle") <= LEAST as usize);
    }
    stream.end(reader);
}

/// Receives everything and acknowledges nothing. Returns the number of slots that it was asked for,
/// and the end of its connection.
fn keep_all(reader: RawReader) -> (usize, Reason, String) {
    let mut asked = 0;
    loop {
        let received = reader.channel.receive(PATIENCE).expect("a message");
        let (packet, _) = received.expect("a message in time");
        match ToReader::decode(&packet).expect("a valid message") {
            ToReader::RetireSlot { .. } => asked += 1,
            ToReader::Goodbye { reason, text } => return (asked, reason, text),
            _ => {}
        }
    }
}

#[test]
fn reader_without_acknowledgements_keeps_bounded_memory() {
    let mut stream = Stream::new("kept", Config::default().max_retired_bytes(KEPT * SIZE));
    let reader = stream.reader("kept");
    let raw = RawReader::join(&stream.run.path("frameshare/kept.sock"), hello(Policy::Latest, 4)).unwrap();
    wait_until("two readers", || stream.exporter.reader_count() == 2);
    let keeper = thread::spawn(move || keep_all(raw));
    // Slots that the reader does not know are not of interest: it receives while they are made.
    for _ in 0..BURST {
        stream.go_on_until("another frame", |_| true);
    }
    stream.burst();
    stream.go_on_until("trimmed slots", |stream| stream.exporter.stats().trimmed_slots > 0);
    let publish_larger = |stream: &mut Stream, part: u32| {
        let size = SIZE * u64::from(part + 1);
        stream.format(part);
        let slot = stream.filled(stream.published + 1, size);
        stream.publish(&slot, size);
    };
    // With the former generations it keeps more than it may.
    let mut part = 0;
    wait_until("its eviction", || {
        part += 1;
        publish_larger(&mut stream, part);
        thread::sleep(Duration::from_millis(20));
        stream.exporter.reader_count() == 1
    });
    let (asked, reason, text) = keeper.join().unwrap();
    assert!((1..=KEPT as usize).contains(&asked), "it was asked for {asked} slots");
    assert!(reason == Reason::LimitExceeded && text.contains("retired"), "{text}");
    let is_removal = |notice: &Notice| matches!(notice, Notice::ReaderRemoved { .. });
    assert_eq!(stream.notices.try_iter().filter(is_removal).count(), 1);
    stream.end(reader);
}
