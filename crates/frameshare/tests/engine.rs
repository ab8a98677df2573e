// SPDX-License-Identifier: MIT OR Apache-2.0

//! The engine as an application uses it: one exporter and some readers, as threads of one process.
//! Tests with several processes are in the workspace's `tests`.

use frameshare::{
    Endpoint, Event, Format, Interrupt, MemoryKind, Plane, Policy, Reason,
    exporter::{
        self, AcquireError, BindError, Exporter, Frame, LosslessReaders, Notice, PublishError, Purpose,
    },
    fence::Written,
    memory::MemoryError,
    reader::{self, ConnectError, Item, ReadError, Reader},
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

const SIZE: u64 = 10_000;

/// A stream in a folder of its own.
struct Stream {
    _folder: tempfile::TempDir,
    endpoint: Endpoint,
    interrupt: Interrupt,
}

impl Stream {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let endpoint = Endpoint::at(folder.path().join("s.sock")).unwrap();
        Self { _folder: folder, endpoint, interrupt: Interrupt::new().unwrap() }
    }

    fn exporter(&self) -> Exporter {
        self.exporter_with(exporter::Config::default())
    }

    fn exporter_with(&self, config: exporter::Config) -> Exporter {
        Exporter::bind(&self.endpoint, config, |_| ()).unwrap()
    }

    fn reader(&self, policy: Policy) -> Reader {
        self.try_reader(reader::Config { policy, ..Default::default() }).unwrap()
    }

    fn try_reader(&self, config: reader::Config) -> Result<Reader, ConnectError> {
        Reader::connect(&self.endpoint, config, &self.interrupt)
    }

    /// Publishes a frame whose every byte derives from `seed`.
    fn publish(&self, exporter: &Exporter, seed: u64) -> Result<u64, PublishError> {
        self.publish_sized(exporter, seed, SIZE)
    }

    fn publish_sized(&self, exporter: &Exporter, seed: u64, size: u64) -> Result<u64, PublishError> {
        let slot = exporter.acquire(size, Purpose::Copy).unwrap();
        fill(slot.as_ptr().unwrap().as_ptr(), size, seed);
        exporter.publish(Frame { size, ..frame_in(&slot) }, &self.interrupt)
    }

    /// Returns the next item, which has to arrive.
    fn next(&self, reader: &mut Reader) -> Result<Item, ReadError> {
        let item = reader.next(Some(Duration::from_secs(20)), &self.interrupt)?;
        Ok(item.expect("nothing came within 20 seconds"))
    }

    fn next_frame(&self, reader: &mut Reader) -> reader::Frame {
        loop {
            match self.next(reader).unwrap() {
                Item::Frame(frame) => return frame,
                Item::EndOfStream => panic!("the stream ended"),
                _ => {}
            }
        }
    }
}

fn frame_in(slot: &exporter::Slot) -> Frame<'_> {
    Frame::new(slot, slot.size(), Written::Cpu)
}

fn format(caps: &str) -> Format {
    Format { caps: caps.into(), video: None }
}

fn byte(seed: u64, index: u64) -> u8 {
    (seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left((index % 61) as u32) >> 7) as u8 ^ index as u8
}

#[expect(unsafe_code, reason = "writing a slot that was just acquired")]
fn fill(start: *mut u8, size: u64, seed: u64) {
    for index in 0..size {
        // SAFETY: the slot has at least `size` bytes, and no other reference to it exists.
        unsafe { start.add(index as usize).write(byte(seed, index)) };
    }
}

fn holds(frame: &reader::Frame, seed: u64) -> bool {
    let bytes = frame.bytes();
    bytes.iter().zip(0..).all(|(found, index)| found.load(Ordering::Relaxed) == byte(seed, index))
}

/// Waits for a condition that another thread establishes.
fn until(mut condition: impl FnMut() -> bool) {
    for _ in 0..20_000 {
        if condition() {
            return;
        }
        thread::sleep(Duration::from_millis(1));
    }
    panic!("it did not come about within 20 seconds");
}

#[test]
fn a_lossless_reader_gets_every_frame_whole_and_in_order() {
    let stream = Stream::new();
    let exporter = stream.exporter();
    let mut reader = stream.reader(Policy::Lossless);
    thread::scope(|scope| {
        scope.spawn(|| {
            for seed in 1..=5000 {
                assert_eq!(stream.publish(&exporter, seed), Ok(seed));
            }
            exporter.end_of_stream();
        });
        for seed in 1..=5000 {
            let frame = stream.next_frame(&mut reader);
            assert_eq!((frame.descriptor().sequence, frame.lost_before()), (seed, 0));
            assert!(holds(&frame, seed), "frame {seed} is damaged");
        }
        assert!(matches!(stream.next(&mut reader), Ok(Item::EndOfStream)));
    });
    let stats = exporter.stats();
    assert_eq!((stats.published, stats.readers[0].sent, stats.readers[0].lost), (5000, 5000, 0));
    // Four leases, and one slot that is being written: slots are reused, not allocated without end.
    assert!(stats.slots <= 6, "{} slots for a reader that holds 4", stats.slots);
}

#[test]
fn a_latest_reader_loses_its_oldest_frames_and_counts_them() {
    let stream = Stream::new();
    let exporter = stream.exporter();
    let mut reader = stream.reader(Policy::Latest);
    for seed in 1..=10 {
        stream.publish(&exporter, seed).unwrap();
    }
    for (sequence, lost) in [(7, 6), (8, 0), (9, 0), (10, 0)] {
        let frame = stream.next_frame(&mut reader);
        assert_eq!((frame.descriptor().sequence, frame.lost_before()), (sequence, lost));
        assert!(holds(&frame, sequence));
    }
    let lost = &exporter.stats().readers[0];
    assert_eq!((lost.lost, lost.queued, lost.lag, reader.stats().lost), (6, 0, 0, 6));
}

#[test]
fn latest_reader_at_credit_limit_drops_newest() {
    let stream = Stream::new();
    let exporter = stream.exporter();
    let mut reader = stream.reader(Policy::Latest);
    for seed in 1..=4 {
        stream.publish(&exporter, seed).unwrap();
    }
    let held: Vec<_> = (0..4).map(|_| stream.next_frame(&mut reader)).collect();
    for seed in 5..=8 {
        stream.publish(&exporter, seed).unwrap();
    }
    // Negative control of "a lease ends by its release": nothing was released, so nothing arrives.
    assert!(reader.try_next().unwrap().is_none());
    assert_eq!(exporter.stats().readers[0].held, 4);
    assert!(held.iter().zip(1..).all(|(frame, seed)| holds(frame, seed)), "a held frame was overwritten");
    drop(held);
    stream.publish(&exporter, 9).unwrap();
    let frame = stream.next_frame(&mut reader);
    assert_eq!((frame.descriptor().sequence, frame.lost_before()), (9, 4));
}

#[test]
fn timely_releases_make_room_for_every_reader() {
    let stream = Stream::new();
    let exporter = stream.exporter();
    let reader =
        |policy| stream.try_reader(reader::Config { policy, max_held: 1, ..Default::default() }).unwrap();
    let mut readers = [reader(Policy::Latest), reader(Policy::Lossless), reader(Policy::Latest)];
    let mut held = Vec::new();
    for seed in 1..=100 {
        let slot = exporter.acquire(SIZE, Purpose::Copy).unwrap();
        fill(slot.as_ptr().unwrap().as_ptr(), SIZE, seed);
        // The exporter has not polled since: the publication has to poll all three.
        held.clear();
        exporter.publish(Frame { size: SIZE, ..frame_in(&slot) }, &stream.interrupt).unwrap();
        held.extend(readers.iter_mut().map(|reader| stream.next_frame(reader)));
        for frame in &held {
            assert_eq!((frame.descriptor().sequence, frame.lost_before()), (seed, 0));
        }
    }
}

#[test]
fn everything_between_the_frames_keeps_its_place() {
    let stream = Stream::new();
    let exporter = stream.exporter();
    let event = |kind, sticky, byte| Event { kind, sticky, payload: vec![byte; 3] };
    exporter.set_format(format("a"));
    exporter.send_event(event(1, true, 1)).unwrap();
    exporter.send_event(event(2, false, 2)).unwrap();
    exporter.send_event(event(1, true, 3)).unwrap();
    // A joining reader gets the format and the newest sticky event of each kind.
    let mut reader = stream.try_reader(reader::Config { max_held: 8, ..Default::default() }).unwrap();
    stream.publish(&exporter, 1).unwrap();
    exporter.set_format(format("a"));
    stream.publish(&exporter, 2).unwrap();
    exporter.set_format(format("b"));
    exporter.send_event(event(2, false, 4)).unwrap();
    stream.publish(&exporter, 3).unwrap();
    exporter.end_of_stream();
    exporter.end_of_stream();
    stream.publish(&exporter, 4).unwrap();
    drop(exporter);

    let mut seen = Vec::new();
    let error = loop {
        seen.push(match stream.next(&mut reader) {
            Ok(Item::Format(format)) => format!("format {}", format.caps),
            Ok(Item::Event(event)) => format!("event {} {:?}", event.kind, event.payload),
            Ok(Item::Frame(frame)) => format!("frame {}", frame.descriptor().sequence),
            Ok(Item::EndOfStream) => "end".into(),
            Ok(Item::Reconnected) => unreachable!("not asked for"),
            Err(error) => break error,
        });
    };
    let expected = [
        "format a",
        "event 1 [3, 3, 3]",
        "frame 1",
        "frame 2",
        "format b",
        "event 2 [4, 4, 4]",
        "frame 3",
        "end",
        "frame 4",
    ];
    assert_eq!(seen, expected);
    assert!(matches!(error, ReadError::Stopped(_)), "{error}");
}

#[test]
fn joining_reader_gets_stream_start_before_format() {
    let stream = Stream::new();
    let exporter = stream.exporter();
    let event = |kind| Event { kind, sticky: true, payload: vec![1] };
    exporter.send_event(event(7)).unwrap();
    exporter.set_format(format("a"));
    exporter.send_event(event(Event::STREAM_START)).unwrap();
    let mut reader = stream.reader(Policy::Latest);
    let is = |item: Item, kind| matches!(item, Item::Event(event) if event.kind == kind);
    assert!(is(stream.next(&mut reader).unwrap(), Event::STREAM_START));
    assert!(matches!(stream.next(&mut reader), Ok(Item::Format(_))));
    assert!(is(stream.next(&mut reader).unwrap(), 7));
}

#[test]
fn a_newcomer_after_the_end_is_told_of_it() {
    let stream = Stream::new();
    let exporter = stream.exporter();
    stream.publish(&exporter, 1).unwrap();
    exporter.end_of_stream();
    let mut reader = stream.reader(Policy::Latest);
    assert!(matches!(stream.next(&mut reader), Ok(Item::EndOfStream)));
}

#[test]
fn reader_of_continued_stream_gets_no_end() {
    type Announce = fn(&Exporter);
    let announcements: [(&str, Announce); 4] = [
        ("its format", |exporter| exporter.set_format(format("a"))),
        ("another format", |exporter| exporter.set_format(format("b"))),
        ("a sticky event", |exporter| {
            exporter.send_event(Event { kind: 1, sticky: true, payload: vec![1] }).unwrap()
        }),
        ("that it goes on", Exporter::go_on),
    ];
    for (what, announce) in announcements {
        let stream = Stream::new();
        let exporter = stream.exporter();
        exporter.set_format(format("a"));
        stream.publish(&exporter, 1).unwrap();
        exporter.end_of_stream();
        // An event that joining readers do not get does not end the end of the stream.
        exporter.send_event(Event { kind: 2, sticky: false, payload: vec![2] }).unwrap();
        let mut early = stream.reader(Policy::Latest);
        announce(&exporter);
        let mut late = stream.reader(Policy::Latest);
        stream.publish(&exporter, 2).unwrap();

        let mut ends = [false; 2];
        for (reader, ended) in [&mut early, &mut late].into_iter().zip(&mut ends) {
            loop {
                match stream.next(reader).unwrap() {
                    Item::EndOfStream => *ended = true,
                    Item::Frame(frame) => break assert_eq!(frame.descriptor().sequence, 2),
                    _ => {}
                }
            }
        }
        assert_eq!(ends, [true, false], "readers from before and after the exporter announced {what}");
    }
}

#[test]
fn metadata_of_every_length_belongs_to_its_frame() {
    let stream = Stream::new();
    let exporter = stream.exporter();
    let mut reader = stream.reader(Policy::Latest);
    for length in [0, 1, 7, 4096, 4097, 70_000, 1_000_000] {
        let metadata: Vec<u8> = (0..length).map(|index| byte(length, index)).collect();
        let slot = exporter.acquire(SIZE, Purpose::Copy).unwrap();
        exporter.publish(Frame { metadata: &metadata, ..frame_in(&slot) }, &stream.interrupt).unwrap();
        assert!(stream.next_frame(&mut reader).metadata() == metadata, "{length} bytes");
    }
    // The metadata of a lost frame does not pass to another.
    for seed in 1..=6 {
        let metadata = vec![seed; 5000];
        let slot = exporter.acquire(SIZE, Purpose::Copy).unwrap();
        exporter.publish(Frame { metadata: &metadata, ..frame_in(&slot) }, &stream.interrupt).unwrap();
    }
    for seed in 3..=6 {
        assert_eq!(stream.next_frame(&mut reader).metadata(), vec![seed; 5000]);
    }
}

#[test]
fn times_planes_and_flags_arrive_as_they_left() {
    let stream = Stream::new();
    let exporter = stream.exporter();
    let mut reader = stream.reader(Policy::Latest);
    let slot = exporter.acquire(SIZE, Purpose::Copy).unwrap();
    let planes = [Plane { offset: 0, stride: 100 }, Plane { offset: 5000, stride: -50 }];
    let frame = Frame {
        offset: 64,
        size: 9000,
        pts: Some(1),
        duration: Some(3),
        media_offset_end: Some(5),
        flags: 6,
        planes: &planes,
        ..frame_in(&slot)
    };
    exporter.publish(frame, &stream.interrupt).unwrap();
    let frame = stream.next_frame(&mut reader);
    let found = frame.descriptor();
    assert_eq!((found.pts, found.dts, found.duration), (Some(1), None, Some(3)));
    assert_eq!((found.media_offset, found.media_offset_end, found.flags), (None, Some(5), 6));
    assert_eq!((frame.len(), found.used_planes()), (9000, &planes[..]));
    let outside = Frame { offset: slot.size() - 10, size: 11, ..frame_in(&slot) };
    assert!(matches!(exporter.publish(outside, &stream.interrupt), Err(PublishError::Invalid(_))));
}

#[test]
fn a_slot_published_twice_is_free_only_after_both() {
    let stream = Stream::new();
    let exporter = stream.exporter();
    let mut reader = stream.reader(Policy::Latest);
    let slot = exporter.acquire(SIZE, Purpose::Copy).unwrap();
    exporter.publish(frame_in(&slot), &stream.interrupt).unwrap();
    exporter.publish(frame_in(&slot), &stream.interrupt).unwrap();
    drop(slot);
    let first = stream.next_frame(&mut reader);
    let second = stream.next_frame(&mut reader);
    assert_eq!((exporter.stats().slots, exporter.stats().free_slots), (1, 0));
    drop(first);
    assert_eq!(exporter.stats().free_slots, 0);
    drop(second);
    assert_eq!(exporter.stats().free_slots, 1);
}

#[test]
fn keep_is_dropped_after_last_lease() {
    struct Counter(Arc<AtomicUsize>);
    impl Drop for Counter {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    let stream = Stream::new();
    let exporter = stream.exporter();
    let dropped = Arc::new(AtomicUsize::new(0));
    let publish = || {
        let slot = exporter.acquire(SIZE, Purpose::Copy).unwrap();
        let keep: Box<dyn std::any::Any + Send> = Box::new(Counter(dropped.clone()));
        exporter.publish(Frame { keep: Some(keep), ..frame_in(&slot) }, &stream.interrupt).unwrap();
    };
    publish();
    assert_eq!(dropped.load(Ordering::SeqCst), 1, "no reader: it is dropped at once");
    let (mut one, mut two) = (stream.reader(Policy::Latest), stream.reader(Policy::Latest));
    publish();
    let (first, second) = (stream.next_frame(&mut one), stream.next_frame(&mut two));
    drop(first);
    exporter.reclaim();
    assert_eq!(dropped.load(Ordering::SeqCst), 1);
    drop(second);
    exporter.reclaim();
    assert_eq!(dropped.load(Ordering::SeqCst), 2);
}

#[test]
fn a_new_format_makes_a_new_generation_and_the_old_one_goes() {
    let stream = Stream::new();
    let exporter = stream.exporter();
    let mut reader = stream.reader(Policy::Latest);
    for (round, size) in (0..).zip([1000, 100_000, 1000, 5_000_000, 20]) {
        exporter.set_format(format(&format!("size {size}")));
        let mut held = Vec::new();
        for seed in 1..=3 {
            stream.publish_sized(&exporter, seed, size).unwrap();
            held.push(stream.next_frame(&mut reader));
        }
        assert!(held.iter().zip(1..).all(|(frame, seed)| frame.len() as u64 == size && holds(frame, seed)));
        assert_eq!(exporter.stats().slot_size, size.next_multiple_of(4096));
        assert_eq!(held[0].descriptor().generation, round + 1);
        if round == 3 {
            // Held across the change: still present, and unchanged.
            exporter.set_format(format("held over"));
            stream.publish_sized(&exporter, 9, 64).unwrap();
            drop(stream.next_frame(&mut reader));
            assert!(held.iter().zip(1..).all(|(frame, seed)| holds(frame, seed)));
        }
    }
    // No slot of an old generation is mapped any more: one slot of the newest, mapped by both
    // sides.
    drop(stream.publish_sized(&exporter, 1, 20));
    drop(stream.next_frame(&mut reader));
    assert!(reader.try_next().unwrap().is_none());
}

#[test]
fn slot_user_data_is_dropped_before_memory() {
    struct Kept(AtomicUsize, Arc<AtomicUsize>);
    impl Drop for Kept {
        fn drop(&mut self) {
            self.1.fetch_add(1, Ordering::SeqCst);
        }
    }
    let stream = Stream::new();
    let exporter = stream.exporter();
    let mut reader = stream.reader(Policy::Latest);
    let dropped = Arc::new(AtomicUsize::new(0));
    let keep = |frame: &reader::Frame| {
        let kept = frame.keep_with_slot(|| Kept(AtomicUsize::new(0), dropped.clone())).unwrap();
        kept.0.fetch_add(1, Ordering::SeqCst)
    };
    for seed in 1..=4 {
        stream.publish(&exporter, seed).unwrap();
        let frame = stream.next_frame(&mut reader);
        assert_eq!(keep(&frame), seed as usize - 1, "one slot is used again and again");
        assert!(frame.keep_with_slot(|| 1_u32).is_none(), "something else is kept there");
    }
    stream.publish(&exporter, 5).unwrap();
    let held = stream.next_frame(&mut reader);
    exporter.set_format(format("another"));
    stream.publish_sized(&exporter, 6, SIZE * 100).unwrap();
    drop(stream.next_frame(&mut reader));
    assert_eq!((keep(&held), dropped.load(Ordering::SeqCst)), (4, 0), "a frame of the old size is out");
    drop(held);
    assert_eq!(dropped.load(Ordering::SeqCst), 1);
}

#[test]
fn bytes_that_grow_move_to_a_bigger_generation() {
    let stream = Stream::new();
    let exporter = stream.exporter();
    let mut reader = stream.reader(Policy::Latest);
    for size in [100, 4000, 5000, 4000, 70_000, 10, 100_000] {
        stream.publish_sized(&exporter, size, size).unwrap();
        let frame = stream.next_frame(&mut reader);
        assert!(frame.len() as u64 == size && holds(&frame, size), "{size}");
    }
    assert_eq!(exporter.stats().slot_size, 131_072);
}

#[test]
fn credit_is_reserved_and_who_comes_too_late_is_told() {
    let stream = Stream::new();
    let exporter =
        stream.exporter_with(exporter::Config { max_slots: 12, max_held_limit: 6, ..Default::default() });
    let ask = |max_held| stream.try_reader(reader::Config { max_held, ..Default::default() });
    let (first, second) = (ask(8).unwrap(), ask(8).unwrap());
    assert_eq!((first.credit(), second.credit()), (6, 4), "the limit, then the rest of 12 - 2");
    let Err(ConnectError::Refused { reason, text }) = ask(1) else { panic!("there was credit left") };
    assert!(reason == Reason::NoCreditLeft && text.contains("all 12 slots are promised"), "{text}");
    drop(first);
    until(|| exporter.reader_count() == 1);
    assert_eq!(ask(8).unwrap().credit(), 6);
}

#[test]
fn upstream_cannot_take_what_readers_were_promised() {
    let stream = Stream::new();
    let exporter = stream.exporter_with(exporter::Config { max_slots: 12, ..Default::default() });
    let mut reader = stream.try_reader(reader::Config { max_held: 4, ..Default::default() }).unwrap();
    let mut pool = Vec::new();
    let error = loop {
        match exporter.acquire(SIZE, Purpose::Pool) {
            Ok(slot) => pool.push(slot),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, AcquireError::Exhausted { max_slots: 12 }), "{error}");
    assert_eq!(pool.len(), 6, "12 slots less the reader's 4 and two more");
    // The readers' share is enough for copies, even when the reader holds all its credit.
    let held: Vec<_> = (1..=4)
        .map(|seed| {
            stream.publish(&exporter, seed).unwrap();
            stream.next_frame(&mut reader)
        })
        .collect();
    for seed in 5..=20 {
        stream.publish(&exporter, seed).unwrap();
    }
    assert!(held.iter().zip(1..).all(|(frame, seed)| holds(frame, seed)));
    // A joining reader gets nothing while upstream holds the rest.
    let newcomer = stream.try_reader(reader::Config::default());
    assert!(matches!(newcomer, Err(ConnectError::Refused { reason: Reason::NoCreditLeft, .. })));
}

#[test]
fn where_memory_has_run_out_only_slots_that_are_big_enough_do() {
    let stream = Stream::new();
    let exporter = stream.exporter();
    let interrupt = Interrupt::new().unwrap();
    let wait = |size| {
        let cause = "it has run out".into();
        let error = MemoryError { doing: "allocate", size: Some(size), kind: MemoryKind::Host, cause };
        exporter.wait_for_slot(size, error.into(), &interrupt)
    };
    assert!(matches!(wait(SIZE), Err(AcquireError::Memory(_))), "there is none at all");
    let slot = exporter.acquire(SIZE, Purpose::Copy).unwrap();
    let held = slot.size();
    drop(slot);
    assert_eq!(wait(SIZE).unwrap().size(), held);
    assert!(matches!(wait(held + 1), Err(AcquireError::Memory(_))), "it is too small");
}

#[test]
fn slot_waiter_gets_first_released_slot() {
    let stream = Stream::new();
    let exporter = stream.exporter();
    let interrupt = Interrupt::new().unwrap();
    let wait = || {
        let cause = "it has run out".into();
        let error = MemoryError { doing: "allocate", size: Some(SIZE), kind: MemoryKind::Host, cause };
        let begin = Instant::now();
        exporter.wait_for_slot(SIZE, error.into(), &interrupt).unwrap();
        begin.elapsed()
    };
    let later = |what: Box<dyn Send>| {
        thread::spawn(move || {
            thread::sleep(Duration::from_millis(50));
            drop(what);
        })
    };
    let limit = exporter::Config::default().reader_timeout;
    // Neither sends a wake-up: an upstream holder of a slot, and a `latest` reader.
    let upstream = later(Box::new(exporter.acquire(SIZE, Purpose::Pool).unwrap()));
    assert!(wait() < limit);
    upstream.join().unwrap();
    let mut reader = stream.reader(Policy::Latest);
    stream.publish(&exporter, 1).unwrap();
    let reading = later(Box::new(stream.next_frame(&mut reader)));
    assert!(wait() < limit);
    reading.join().unwrap();
}

#[test]
fn to_be_lossless_must_be_granted() {
    let stream = Stream::new();
    let config = exporter::Config { lossless_readers: LosslessReaders::None, ..Default::default() };
    let _exporter = stream.exporter_with(config);
    let config = reader::Config { policy: Policy::Lossless, ..Default::default() };
    let Err(ConnectError::Refused { reason, .. }) = stream.try_reader(config) else {
        panic!("it was granted")
    };
    assert_eq!(reason, Reason::LosslessNotGranted);
}

#[test]
fn a_stream_is_opened_to_others_only_on_purpose_and_where_they_can_reach_it() {
    let stream = Stream::new();
    let refused =
        |endpoint: &Endpoint, config: exporter::Config| match Exporter::bind(endpoint, config, |_| ()) {
            Err(BindError::Config(text)) => text,
            other => panic!("{other:?}"),
        };
    let named = Endpoint::of_stream(&"frameshare-test".parse().unwrap()).unwrap();
    let uids = |socket_mode| exporter::Config { allowed_uids: vec![1], socket_mode, ..Default::default() };
    let gids = exporter::Config { allowed_gids: vec![1], ..Default::default() };
    let mode = |socket_mode| exporter::Config { socket_mode, ..Default::default() };
    for config in [uids(0o666), gids.clone(), mode(0o666)] {
        assert!(refused(&named, config).contains("socket-path"));
    }
    for config in [uids(0o600), uids(0o644), gids] {
        assert!(refused(&stream.endpoint, config).contains("0666"));
    }
    assert!(refused(&stream.endpoint, mode(0o1666)).contains("01666"));

    let mode_of_socket = || {
        use std::os::unix::fs::PermissionsExt;
        std::fs::metadata(stream.endpoint.path()).unwrap().permissions().mode() & 0o777
    };
    let exporter = stream.exporter();
    assert_eq!(mode_of_socket(), 0o600);
    drop(exporter);
    let _exporter = stream.exporter_with(uids(0o662));
    assert_eq!(mode_of_socket(), 0o662);
    stream.reader(Policy::Lossless);
}

#[test]
fn a_reader_may_hold_the_stream_back_for_ever_where_the_owner_says_so() {
    let stream = Stream::new();
    let (sender, notices) = mpsc::channel();
    let sender = Mutex::new(sender);
    let config = exporter::Config { reader_timeout: Duration::MAX, ..Default::default() };
    let observer = move |notice| drop(sender.lock().unwrap().send(notice));
    let exporter = Exporter::bind(&stream.endpoint, config, observer).unwrap();
    let slow = stream.reader(Policy::Lossless);
    let seeds = 1..=u64::from(slow.credit());
    seeds.for_each(|seed| _ = stream.publish(&exporter, seed).unwrap());
    thread::scope(|scope| {
        let publishes = scope.spawn(|| stream.publish(&exporter, 99));
        let is_named = |notice| matches!(notice, Notice::ReaderBlocking { .. });
        while !is_named(notices.recv_timeout(Duration::from_secs(20)).unwrap()) {}
        stream.interrupt.set();
        assert_eq!(publishes.join().unwrap(), Err(PublishError::Interrupted));
    });
    assert_eq!(exporter.reader_count(), 1);
}

#[test]
fn blocking_reader_is_reported_then_evicted() {
    let stream = Stream::new();
    let (sender, notices) = mpsc::channel();
    let sender = Mutex::new(sender);
    // Long enough for the well-behaved reader, on a busy machine too.
    let config = exporter::Config { reader_timeout: Duration::from_secs(3), ..Default::default() };
    let observer = move |notice| drop(sender.lock().unwrap().send(notice));
    let exporter = Exporter::bind(&stream.endpoint, config, observer).unwrap();
    let mut slow = stream.reader(Policy::Lossless);
    let mut good = stream.reader(Policy::Lossless);
    stream.publish(&exporter, 1).unwrap();
    let held = stream.next_frame(&mut slow);
    thread::scope(|scope| {
        scope.spawn(|| {
            for seed in 2..=50 {
                stream.publish(&exporter, seed).unwrap();
            }
        });
        for seed in 1..=50 {
            assert!(holds(&stream.next_frame(&mut good), seed), "the other one loses nothing");
        }
    });
    // Notices are delivered by another thread: the last one may come after the frames.
    let mut told: Vec<_> = (0..4).map_while(|_| notices.recv_timeout(Duration::from_secs(20)).ok()).collect();
    told.extend(notices.try_iter());
    let [Notice::ReaderAdded(_), Notice::ReaderAdded(_), blocking, removed] = &told[..] else {
        panic!("{told:?}")
    };
    assert!(matches!(blocking, Notice::ReaderBlocking { reader, .. } if reader.id == 1), "{told:?}");
    assert!(
        matches!(removed, Notice::ReaderRemoved { reader, reason: Reason::TooSlow, .. } if reader.id == 1),
        "{told:?}"
    );
    // It keeps the frames that it holds, and gets the reason.
    assert!(holds(&held, 1));
    let error = stream.next(&mut slow).unwrap_err();
    assert!(matches!(error, ReadError::CutOff { reason: Reason::TooSlow, .. }), "{error}");
}

#[test]
fn reader_that_released_is_not_evicted_beside_stuck_one() {
    for _ in 0..20 {
        let stream = Stream::new();
        // The exporter waits for no reader at all.
        let config = exporter::Config { reader_timeout: Duration::ZERO, ..Default::default() };
        let exporter = stream.exporter_with(config);
        let config = || reader::Config { policy: Policy::Lossless, max_held: 1, ..Default::default() };
        let [mut slow, mut good] = [(); 2].map(|()| stream.try_reader(config()).unwrap());
        stream.publish(&exporter, 1).unwrap();
        let held = (stream.next_frame(&mut slow), stream.next_frame(&mut good));
        let slot = exporter.acquire(SIZE, Purpose::Copy).unwrap();
        // The exporter has not polled since.
        drop(held.1);
        exporter.publish(Frame { size: SIZE, ..frame_in(&slot) }, &stream.interrupt).unwrap();
        assert_eq!(exporter.stats().readers.iter().map(|reader| reader.info.id).collect::<Vec<_>>(), [2]);
    }
}

#[test]
fn ended_leases_are_reclaimed_after_blocked_publish() {
    let stream = Stream::new();
    let exporter = stream.exporter();
    let reader = |policy, max_held| {
        stream.try_reader(reader::Config { policy, max_held, ..Default::default() }).unwrap()
    };
    let (mut full, mut other) = (reader(Policy::Lossless, 1), reader(Policy::Latest, 4));
    let surface = Arc::new(());
    let slot = exporter.acquire(SIZE, Purpose::Copy).unwrap();
    for _ in 0..20 {
        // As for a decoder's surface: nothing is acquired for it.
        let keep: Option<Box<dyn std::any::Any + Send>> = Some(Box::new(surface.clone()));
        exporter.publish(Frame { keep, ..frame_in(&slot) }, &stream.interrupt).unwrap();
        assert_eq!(Arc::strong_count(&surface), 2, "all are back but the one that was just published");
        drop((stream.next_frame(&mut full), stream.next_frame(&mut other)));
    }
}

#[test]
fn reader_with_unread_messages_reads_eviction_reason() {
    let stream = Stream::new();
    let exporter = stream.exporter();
    let mut reader = stream.reader(Policy::Latest);
    stream.publish(&exporter, 1).unwrap();
    // A reader for which user data, and the connection, are kept.
    let held = stream.next_frame(&mut reader);
    until(|| {
        exporter.send_event(Event { kind: 7, sticky: false, payload: Vec::new() }).unwrap();
        exporter.reader_count() == 0
    });
    let error = loop {
        match stream.next(&mut reader) {
            Ok(item) => assert!(matches!(item, Item::Event(_)), "{item:?}"),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, ReadError::CutOff { reason: Reason::LimitExceeded, .. }), "{error}");
    assert!(holds(&held, 1));
}

#[test]
fn frames_outlive_their_reader() {
    let stream = Stream::new();
    let exporter = stream.exporter_with(exporter::Config { max_slots: 8, ..Default::default() });
    let mut reader = stream.reader(Policy::Latest);
    for seed in 1..=4 {
        stream.publish(&exporter, seed).unwrap();
    }
    let held = stream.next_frame(&mut reader);
    drop(reader);
    until(|| exporter.reader_count() == 0);
    // Untaken slots are free again; held ones are not written, and their credit stays reserved.
    assert_eq!(exporter.stats().slots - exporter.stats().free_slots, 1);
    for seed in 5..=50 {
        stream.publish(&exporter, seed).unwrap();
    }
    assert!(holds(&held, 1), "a frame was written while it was held");
    assert_eq!(stream.try_reader(reader::Config { max_held: 8, ..Default::default() }).unwrap().credit(), 2);
    drop(held);
    until(|| exporter.stats().free_slots == exporter.stats().slots);
}

#[test]
fn every_wait_can_be_interrupted() {
    let stream = Stream::new();
    let interrupt = Interrupt::new().unwrap();
    let config = reader::Config { connection_timeout: None, ..Default::default() };
    let interrupted = |wait: &dyn Fn()| {
        thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(Duration::from_millis(30));
                interrupt.set();
            });
            wait();
        });
        interrupt.clear();
    };
    interrupted(&|| {
        let error = Reader::connect(&stream.endpoint, config.clone(), &interrupt).unwrap_err();
        assert!(matches!(error, ConnectError::Interrupted), "{error}");
    });
    let exporter = stream.exporter();
    interrupted(&|| assert!(exporter.wait_for_reader(&interrupt).is_err()));
    let mut reader = stream.reader(Policy::Lossless);
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(Duration::from_millis(30));
            interrupt.set();
        });
        assert!(matches!(reader.next(None, &interrupt), Err(ReadError::Interrupted)));
    });
    interrupt.clear();
    for seed in 1..=4 {
        stream.publish(&exporter, seed).unwrap();
    }
    let slot = exporter.acquire(SIZE, Purpose::Copy).unwrap();
    interrupted(&|| {
        assert_eq!(exporter.publish(frame_in(&slot), &interrupt), Err(PublishError::Interrupted));
    });
    interrupted(&|| assert!(exporter.drain(Duration::from_secs(60), &interrupt).is_err()));
    // An interrupted frame is not published: the sequence continues without a gap.
    for seed in 1..=4 {
        assert!(holds(&stream.next_frame(&mut reader), seed));
    }
    assert_eq!(exporter.drain(Duration::from_secs(60), &interrupt), Ok(true));
    assert_eq!(exporter.publish(frame_in(&slot), &interrupt), Ok(5));
    assert_eq!(exporter.drain(Duration::ZERO, &interrupt), Ok(false));
}

#[test]
fn a_name_has_one_exporter_and_a_stale_socket_is_taken_over() {
    let stream = Stream::new();
    let exporter = stream.exporter();
    let error = Exporter::bind(&stream.endpoint, exporter::Config::default(), |_| ()).unwrap_err();
    assert!(matches!(error, BindError::InUse { .. }), "{error}");
    assert!(error.to_string().contains(&format!("pid {}", std::process::id())), "{error}");
    drop(exporter);
    assert!(!stream.endpoint.path().exists());
    // The socket of a killed exporter, without a listener.
    drop(std::os::unix::net::UnixListener::bind(stream.endpoint.path()).unwrap());
    drop(stream.exporter());
    std::fs::write(stream.endpoint.path(), "precious").unwrap();
    let error = Exporter::bind(&stream.endpoint, exporter::Config::default(), |_| ()).unwrap_err();
    assert!(matches!(error, BindError::Io { .. }), "{error}");
    assert_eq!(std::fs::read_to_string(stream.endpoint.path()).unwrap(), "precious");
}

#[test]
fn a_reader_finds_the_next_exporter_if_it_wants_to() {
    let stream = Stream::new();
    let exporter = stream.exporter();
    let mut steady = stream.try_reader(reader::Config { reconnect: true, ..Default::default() }).unwrap();
    let mut fickle = stream.reader(Policy::Latest);
    stream.publish(&exporter, 1).unwrap();
    assert!(holds(&stream.next_frame(&mut steady), 1) && holds(&stream.next_frame(&mut fickle), 1));
    let session = steady.stats().session;
    drop(exporter);
    let exporter = thread::scope(|scope| {
        let next = scope.spawn(|| {
            thread::sleep(Duration::from_millis(100));
            let exporter = stream.exporter();
            exporter.wait_for_reader(&stream.interrupt).unwrap();
            stream.publish(&exporter, 2).unwrap();
            exporter
        });
        assert!(matches!(stream.next(&mut steady), Ok(Item::Reconnected)));
        next.join().unwrap()
    });
    let frame = stream.next_frame(&mut steady);
    assert!(holds(&frame, 2) && frame.descriptor().sequence == 1 && frame.session() != session);
    assert!(matches!(stream.next(&mut fickle), Err(ReadError::Stopped(_))));
    let stats = steady.stats();
    assert_eq!((stats.received, stats.reconnects), (2, 1));
    drop(exporter);
}

/// Returns whether a reader's descriptor becomes readable within this number of seconds.
fn poll_for(reader: &Reader, seconds: i64) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let timeout = Timespec { tv_sec: seconds, tv_nsec: 0 };
    poll(&mut [PollFd::new(&reader.wake_fd(), PollFlags::IN)], Some(&timeout)).unwrap() == 1
}

#[test]
fn woken_reader_sleeps_again() {
    let stream = Stream::new();
    let exporter = stream.exporter();
    let mut reader = stream.reader(Policy::Latest);
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(Duration::from_millis(100));
            stream.publish(&exporter, 1).unwrap();
        });
        assert!(holds(&stream.next_frame(&mut reader), 1));
    });
    let nothing = reader.next(Some(Duration::from_millis(1)), &stream.interrupt);
    assert!(matches!(nothing, Ok(None)), "{nothing:?}");
    assert!(!poll_for(&reader, 0), "it would be woken by what has woken it before");
}

#[test]
fn an_event_loop_can_sleep_on_one_descriptor() {
    let stream = Stream::new();
    let exporter = stream.exporter();
    let mut reader = stream.reader(Policy::Latest);
    assert!(reader.try_next().unwrap().is_none());
    assert!(!poll_for(&reader, 0));
    for seed in 1..=100 {
        stream.publish(&exporter, seed).unwrap();
        assert!(poll_for(&reader, 20), "asleep, and not woken by frame {seed}");
        assert!(matches!(reader.try_next(), Ok(Some(Item::Frame(_)))));
        assert!(reader.try_next().unwrap().is_none());
    }
    exporter.end_of_stream();
    assert!(poll_for(&reader, 20));
    assert!(matches!(reader.try_next(), Ok(Some(Item::EndOfStream))));
    assert!(reader.try_next().unwrap().is_none());
    drop(exporter);
    assert!(poll_for(&reader, 20));
    assert!(matches!(reader.try_next(), Err(ReadError::Stopped(_))));
}

#[test]
fn readers_come_and_go_while_frames_flow() {
    let stream = Stream::new();
    let exporter = stream.exporter();
    let publishing = std::sync::atomic::AtomicBool::new(true);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut seed = 0;
            while publishing.load(Ordering::Relaxed) {
                seed += 1;
                assert_eq!(stream.publish(&exporter, seed), Ok(seed));
            }
        });
        let visits: Vec<_> = (0..3)
            .map(|visitor| {
                let stream = &stream;
                scope.spawn(move || {
                    for _ in 0..50 {
                        let policy = if visitor == 0 { Policy::Lossless } else { Policy::Latest };
                        let mut reader = stream.reader(policy);
                        for index in 0..20 {
                            let frame = stream.next_frame(&mut reader);
                            assert!(holds(&frame, frame.descriptor().sequence), "a damaged frame");
                            assert!(index == 0 || visitor > 0 || frame.lost_before() == 0, "a lost frame");
                        }
                    }
                })
            })
            .collect();
        for visit in visits {
            visit.join().unwrap();
        }
        publishing.store(false, Ordering::Relaxed);
    });
    until(|| exporter.reader_count() == 0);
    assert_eq!(exporter.stats().readers_total, 150);
}

#[test]
fn polling_reader_gets_events_and_end() {
    let stream = Stream::new();
    let exporter = stream.exporter();
    let polling = reader::Config { busy_poll: Duration::from_secs(3600), ..Default::default() };
    let mut reader = stream.try_reader(polling).unwrap();
    let read = thread::spawn({
        let interrupt = stream.interrupt.clone();
        move || {
            let mut seen = Vec::new();
            loop {
                match reader.next(Some(Duration::from_secs(20)), &interrupt) {
                    Ok(Some(Item::Frame(_))) => seen.push("frame"),
                    Ok(Some(Item::EndOfStream)) => seen.push("end"),
                    Ok(Some(_)) => {}
                    Ok(None) => return (seen, None),
                    Err(error) => return (seen, Some(error)),
                }
            }
        }
    });
    stream.publish(&exporter, 1).unwrap();
    exporter.end_of_stream();
    thread::sleep(Duration::from_millis(50));
    drop(exporter);
    let (seen, error) = read.join().unwrap();
    assert_eq!(seen, ["frame", "end"]);
    assert!(matches!(error, Some(ReadError::Stopped(_))), "{error:?}");
}

/// Oversized metadata goes by message, and waits if the socket has no room.
#[test]
fn paused_reader_gets_metadata_of_any_size() {
    const FRAMES: u64 = 40;
    let metadata = |sequence: u64| vec![sequence as u8; 60_000];
    for policy in [Policy::Lossless, Policy::Latest] {
        let stream = Stream::new();
        let exporter = stream.exporter();
        let mut reader =
            stream.try_reader(reader::Config { policy, max_held: 16, ..Default::default() }).unwrap();
        let mut next = 1;
        thread::scope(|scope| {
            scope.spawn(|| {
                for sequence in 1..=FRAMES {
                    let slot = exporter.acquire(SIZE, Purpose::Copy).unwrap();
                    let frame = Frame { metadata: &metadata(sequence), ..frame_in(&slot) };
                    assert_eq!(exporter.publish(frame, &stream.interrupt), Ok(sequence));
                }
                exporter.end_of_stream();
            });
            thread::sleep(Duration::from_millis(200));
            loop {
                match stream.next(&mut reader).unwrap() {
                    Item::Frame(frame) => {
                        let sequence = frame.descriptor().sequence;
                        assert_eq!(sequence, next + frame.lost_before());
                        assert!(
                            frame.metadata() == metadata(sequence),
                            "frame {sequence} has other metadata"
                        );
                        next = sequence + 1;
                    }
                    Item::EndOfStream => break,
                    _ => {}
                }
            }
        });
        assert!(next > 4, "{policy}: nothing was read after frame {}", next - 1);
        assert!(policy == Policy::Latest || next == FRAMES + 1, "the last was frame {}", next - 1);
    }
}

/// A message that is sent only when there is room also wakes a reader that sleeps on the
/// descriptor.
#[test]
fn delayed_message_wakes_descriptor_sleeper() {
    for _ in 0..20 {
        let stream = Stream::new();
        let exporter = stream.exporter();
        let mut reader = stream.reader(Policy::Latest);
        for kind in 0..40 {
            exporter.send_event(Event { kind, sticky: false, payload: vec![0; 30_000] }).unwrap();
        }
        exporter.end_of_stream();
        let mut events = 0;
        loop {
            match reader.try_next().unwrap() {
                Some(Item::EndOfStream) => break,
                Some(Item::Event(_)) => events += 1,
                Some(_) => {}
                None => {
                    let wake = reader.wake_fd();
                    let limit = Timespec { tv_sec: 20, tv_nsec: 0 };
                    let rang = poll(&mut [PollFd::new(&wake, PollFlags::IN)], Some(&limit)).unwrap();
                    assert!(rang > 0, "no wake-up after {events} events");
                }
            }
        }
        assert_eq!(events, 40);
    }
}

/// One of them may reclaim the slot that the other waits for.
#[test]
fn threads_that_wait_at_once_do_not_hold_each_other_up() {
    const TIME: Duration = Duration::from_secs(4);
    // An exporter that has missed its wake-up sleeps until it has to report the reader, after a
    // second.
    const MISSED: Duration = Duration::from_millis(950);
    let stream = Stream::new();
    let exporter = stream.exporter();
    let config = reader::Config { policy: Policy::Lossless, max_held: 1, ..Default::default() };
    let mut reader = stream.try_reader(config).unwrap();
    let begin = Instant::now();
    let missed = thread::scope(|scope| {
        scope.spawn(|| {
            while begin.elapsed() < TIME {
                exporter.drain(Duration::from_millis(20), &stream.interrupt).unwrap();
            }
        });
        let publishing = scope.spawn(|| {
            let mut missed = 0;
            for seed in 1.. {
                let before = Instant::now();
                stream.publish(&exporter, seed).unwrap();
                missed += u32::from(before.elapsed() > MISSED);
                if begin.elapsed() > TIME {
                    break;
                }
            }
            exporter.end_of_stream();
            missed
        });
        while !matches!(stream.next(&mut reader), Ok(Item::EndOfStream)) {
            // Long enough for both to go to sleep.
            thread::sleep(Duration::from_micros(300));
        }
        publishing.join().unwrap()
    });
    assert!(missed < 2, "{missed} wake-ups were missed");
}

/// A reader gets the end of its exporter once.
#[test]
fn no_release_is_missed_by_an_exporter_that_falls_asleep() {
    const FRAMES: u64 = 4000;
    let stream = Stream::new();
    let exporter = stream.exporter();
    let busy_poll = Duration::from_millis(1);
    let config = reader::Config { policy: Policy::Lossless, max_held: 1, busy_poll, ..Default::default() };
    let mut reader = stream.try_reader(config).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            for sequence in 1..=FRAMES {
                let frame = stream.next_frame(&mut reader);
                let begin = Instant::now();
                // Before, after and while the exporter falls asleep, which it does after some 60
                // us.
                while begin.elapsed() < Duration::from_nanos(50_000 + sequence * 37 % 20_000) {
                    std::hint::spin_loop();
                }
                drop(frame);
            }
        });
        let slot = exporter.acquire(SIZE, Purpose::Copy).unwrap();
        let begin = Instant::now();
        for _ in 0..FRAMES {
            exporter.publish(frame_in(&slot), &stream.interrupt).unwrap();
            // A missed release costs a second, and many would be missed; all of this takes less
            // than one.
            assert!(begin.elapsed() < Duration::from_secs(20), "the exporter slept over a release");
        }
    });
}

#[test]
fn the_end_stays_the_end() {
    let stream = Stream::new();
    let exporter = stream.exporter();
    let mut reader = stream.reader(Policy::Latest);
    drop(exporter);
    for _ in 0..3 {
        assert!(matches!(stream.next(&mut reader), Err(ReadError::Stopped(_))));
    }
}

/// Frames lost at the end count before anything follows them.
#[test]
fn frames_lost_before_end_are_counted() {
    let stream = Stream::new();
    let exporter = stream.exporter();
    let mut reader = stream.try_reader(reader::Config { max_held: 1, ..Default::default() }).unwrap();
    stream.publish(&exporter, 1).unwrap();
    let held = stream.next_frame(&mut reader);
    for seed in 2..=6 {
        stream.publish(&exporter, seed).unwrap();
    }
    exporter.end_of_stream();
    assert!(matches!(stream.next(&mut reader), Ok(Item::EndOfStream)));
    assert_eq!(reader.stats().lost, 5);
    drop(held);
    // The stream continues: they are lost once.
    stream.publish(&exporter, 7).unwrap();
    assert_eq!(stream.next_frame(&mut reader).lost_before(), 5);
    assert_eq!(reader.stats().lost, 5);
}
