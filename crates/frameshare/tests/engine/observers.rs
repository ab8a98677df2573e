// SPDX-License-Identifier: MIT OR Apache-2.0

//! Observers: the content of snapshots, their rate, and requests to disconnect readers.

use crate::stream::{SIZE, Stream, format, until};
use frameshare::{
    FenceKind, MemoryKind, Policy, Reason, Wait,
    exporter::{self, Exporter, History, LosslessReaders, Notice, SlowReaders},
    monotonic_ns,
    observer::{
        AGE_BOUNDS, CopyCount, Expectation, LosslessAllowed, MIN_INTERVAL_MS, ObserveError, Observer,
        SlowTreatment, expectation,
    },
    reader::{self, ReadError, ReaderCopy},
};
use std::{
    sync::mpsc::{RecvTimeoutError, channel},
    thread,
    time::{Duration, Instant},
};

const PATIENCE: Duration = Duration::from_secs(20);

fn observe(stream: &Stream) -> Observer {
    Observer::connect(&stream.endpoint, PATIENCE).unwrap()
}

#[test]
fn snapshot_of_new_stream_names_process_and_limits() {
    let stream = Stream::new();
    let before = monotonic_ns();
    let config = exporter::Config::default()
        .max_slots(20)
        .max_held_limit(5)
        .lossless_readers(LosslessReaders::All)
        .slow_readers(SlowReaders::QueueThenDisconnect)
        .reader_timeout(Duration::MAX)
        .max_queued_bytes(1000)
        .max_queued_time(Duration::from_millis(7))
        .history(History::Frames(1));
    let _exporter = stream.exporter_with(config);
    let observer = observe(&stream);
    let snapshot = observer.latest();
    let exporter = &snapshot.exporter;
    assert_eq!((exporter.pid, exporter.engine.as_str()), (std::process::id(), env!("CARGO_PKG_VERSION")));
    assert_eq!(exporter.protocol, frameshare_protocol::VERSION);
    assert!(!exporter.program.is_empty() && exporter.session >= before);
    assert!((before..=snapshot.time).contains(&exporter.started));
    assert_eq!((&snapshot.format, snapshot.memory, snapshot.gpu), (&None, MemoryKind::Host, None));
    assert_eq!(snapshot.memory_why, "no GPU is used");
    let limits = &snapshot.limits;
    assert_eq!((limits.max_slots, limits.max_held_limit), (20, 5));
    assert_eq!(limits.lossless_readers, LosslessAllowed::All);
    assert_eq!(limits.slow_readers, SlowTreatment::QueueThenDisconnect);
    assert_eq!((limits.reader_timeout, limits.max_queued_bytes), (u64::MAX, 1000));
    assert_eq!((limits.max_queued_time, limits.history), (7_000_000, 1));
    let counters = &snapshot.counters;
    assert_eq!((counters.published, counters.last_published, counters.observers), (0, 0, 1));
    assert!(snapshot.readers.is_empty() && snapshot.generations.is_empty() && snapshot.incidents.is_empty());
}

#[test]
fn snapshot_counts_frames_of_each_reader() {
    let stream = Stream::new();
    let exporter = stream.exporter();
    exporter.set_format(format("video/x-test"));
    let mut lossless = stream.reader(Policy::Lossless);
    let config = reader::Config::default().name("viewer").max_held(2).max_queued(1);
    let _latest = stream.try_reader(config).unwrap();
    (1..=3).for_each(|seed| _ = stream.publish(&exporter, seed).unwrap());
    let held = stream.next_frame(&mut lossless);
    let mut observer = observe(&stream);
    let snapshot = observer.latest();
    assert_eq!(snapshot.format, Some(format("video/x-test")));
    let [one, other] = &snapshot.readers[..] else { panic!("{:?}", snapshot.readers) };
    assert_eq!((one.id, one.pid, one.policy), (1, std::process::id(), Policy::Lossless));
    assert_eq!((one.held, one.queued, one.waiting, one.sent, one.lost, one.lag), (1, 2, 0, 3, 0, 2));
    assert_eq!((one.fence, one.memory), (FenceKind::None, MemoryKind::Host));
    assert!(one.fence_why.contains("complete"), "{}", one.fence_why);
    assert_eq!((other.id, other.name.as_str(), other.policy), (2, "viewer", Policy::Latest));
    assert_eq!((other.credit, other.max_queued), (2, 1));
    assert_eq!((other.held, other.queued, other.sent, other.lost, other.lag), (0, 1, 3, 2, 1));
    let counters = &snapshot.counters;
    assert_eq!((counters.published, counters.readers_total, counters.ended), (3, 2, false));
    assert!(counters.last_published > 0 && counters.last_published <= snapshot.time);
    let [generation] = &snapshot.generations[..] else { panic!("{:?}", snapshot.generations) };
    assert_eq!((generation.memory, generation.slot_size), (MemoryKind::Host, SIZE.next_multiple_of(4096)));
    assert_eq!(generation.bytes, u64::from(generation.slots) * generation.slot_size);
    assert_eq!(
        (generation.slots, generation.free_slots, generation.slot_size),
        (counters.slots, counters.free_slots, counters.slot_size)
    );
    assert_eq!(generation.slots - generation.free_slots, 3);
    // Released frames are counted although no thread calls the exporter.
    drop((held, stream.next_frame(&mut lossless), stream.next_frame(&mut lossless)));
    exporter.end_of_stream();
    let snapshot = observer.snapshot().unwrap();
    assert_eq!((snapshot.readers[0].held, snapshot.readers[0].queued), (0, 0));
    assert!(snapshot.counters.ended);
    assert_eq!(snapshot.counters.slots - snapshot.counters.free_slots, 1);
}

#[test]
fn snapshot_has_ages_of_taken_frames() {
    let stream = Stream::new();
    let mut config = exporter::Config::default().history(History::Frames(1));
    config.history_pause = Duration::ZERO;
    let exporter = stream.exporter_with(config);
    stream.publish(&exporter, 1).unwrap();
    let mut reader = stream.reader(Policy::Lossless);
    // The last frame, kept for this reader, was published before it joined.
    assert!(stream.next_frame(&mut reader).is_kept());
    let ages = observe(&stream).latest().readers[0].ages;
    assert_eq!((ages.count(), ages.sum), (0, 0));
    let mut waited = 0;
    for (seed, pause) in [(2, 0), (3, 30)] {
        let before = monotonic_ns();
        stream.publish(&exporter, seed).unwrap();
        thread::sleep(Duration::from_millis(pause));
        drop(stream.next_frame(&mut reader));
        waited += monotonic_ns() - before;
    }
    let ages = observe(&stream).latest().readers[0].ages;
    assert_eq!(ages.count(), 2);
    assert!((30_000_000..=waited).contains(&ages.sum), "{ages:?}, {waited}");
    let slow: u64 =
        AGE_BOUNDS.iter().zip(&ages.counts).filter(|(b, _)| **b >= 30_000_000).map(|(_, n)| n).sum();
    assert!(slow + ages.counts[AGE_BOUNDS.len()] >= 1, "{ages:?}");
    assert_eq!(exporter.stats().readers[0].ages, ages);
}

#[test]
fn snapshot_has_copies_by_reason() {
    let stream = Stream::new();
    let exporter = stream.exporter();
    let mut reader = stream.reader(Policy::Lossless);
    assert!(observe(&stream).latest().counters.copies.is_empty());
    assert!(observe(&stream).latest().readers[0].copies.is_empty());
    assert_eq!([(); 2].map(|()| exporter.count_copy("no-free-slot")), [1, 2]);
    assert_eq!(exporter.count_copy("not a\nname"), 1);
    stream.publish(&exporter, 1).unwrap();
    let frame = stream.next_frame(&mut reader);
    frame.count_copy(ReaderCopy::Layout);
    // Any thread, also after the reader is closed.
    thread::scope(|scope| {
        (0..2).for_each(|_| drop(scope.spawn(|| frame.count_copy(ReaderCopy::Downstream))));
    });
    let copies =
        |all: &[CopyCount]| Vec::from_iter(all.iter().map(|copies| (copies.reason.clone(), copies.count)));
    let snapshot = observe(&stream).latest().clone();
    let expected = [("no-free-slot".to_owned(), 2), ("other".to_owned(), 1)];
    assert_eq!(copies(&snapshot.counters.copies), expected);
    let expected = [("layout".to_owned(), 1), ("downstream".to_owned(), 2)];
    assert_eq!(copies(&snapshot.readers[0].copies), expected);
}

#[test]
fn snapshot_counts_backlog() {
    let stream = Stream::new();
    let config = exporter::Config::default().slow_readers(SlowReaders::QueueThenWait);
    let exporter = stream.exporter_with(config);
    let config = reader::Config::default().policy(Policy::Lossless).max_held(1);
    let _slow = stream.try_reader(config).unwrap();
    (1..=4).for_each(|seed| _ = stream.publish(&exporter, seed).unwrap());
    let observer = observe(&stream);
    let reader = &observer.latest().readers[0];
    assert_eq!((reader.queued, reader.waiting, reader.lag), (1, 3, 4));
    assert!(observer.latest().counters.waiting_bytes >= 3 * SIZE);
}

#[test]
fn observer_takes_no_part_in_stream() {
    let stream = Stream::new();
    let (sender, notices) = channel();
    let config = exporter::Config::default().max_slots(4);
    let exporter = Exporter::bind(&stream.endpoint, config, move |notice| drop(sender.send(notice))).unwrap();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| exporter.wait_for_reader(Wait::Forever));
        let observers: Vec<_> = (0..16).map(|_| observe(&stream)).collect();
        assert_eq!(exporter.reader_count(), 0);
        let stats = exporter.stats();
        assert_eq!((stats.readers.len(), stats.readers_total, stats.slots), (0, 0, 0));
        assert!(!waiting.is_finished(), "an observer ends the wait for a reader");
        // All the credit is left for a reader.
        let reader = stream.reader(Policy::Lossless);
        assert_eq!(reader.credit(), 2);
        waiting.join().unwrap().unwrap();
        drop(observers);
    });
    drop(exporter);
    // The end waits for notices, but not for long. The sender goes with the last one.
    let next = || match notices.recv_timeout(Duration::from_secs(60)) {
        Ok(notice) => Some(notice),
        Err(RecvTimeoutError::Disconnected) => None,
        Err(RecvTimeoutError::Timeout) => panic!("the handler lives on"),
    };
    let notices: Vec<_> = std::iter::from_fn(next).collect();
    assert!(matches!(notices[..], [Notice::ReaderAdded(_), ..]), "{notices:?}");
    assert!(!notices.iter().any(|notice| matches!(notice, Notice::ReaderRefused { .. })), "{notices:?}");
}

#[test]
fn evictions_and_refusals_are_in_snapshot() {
    let stream = Stream::new();
    let config = exporter::Config::default().lossless_readers(LosslessReaders::None);
    let exporter = stream.exporter_with(config);
    let refused = stream.try_reader(reader::Config::default().policy(Policy::Lossless));
    assert!(refused.is_err());
    let _reader = stream.try_reader(reader::Config::default().name("evicted")).unwrap();
    drop(stream.try_reader(reader::Config::default().name("leaves")).unwrap());
    until(|| exporter.reader_count() == 1);
    exporter.disconnect(1, "for a test");
    let observer = observe(&stream);
    let [refusal, eviction] = &observer.latest().incidents[..] else {
        panic!("{:?}", observer.latest().incidents)
    };
    assert_eq!((refusal.reader, refusal.reason), (None, Reason::LosslessNotGranted));
    assert_eq!((refusal.pid, refusal.name.as_str()), (std::process::id(), ""));
    assert!(refusal.text.contains("lossless"), "{}", refusal.text);
    assert_eq!((eviction.reader, eviction.reason), (Some(1), Reason::Disconnected));
    assert_eq!((eviction.name.as_str(), eviction.text.as_str()), ("evicted", "for a test"));
    assert!(refusal.time <= eviction.time && eviction.time <= observer.latest().time);
}

#[test]
fn subscription_is_no_faster_than_limit() {
    let stream = Stream::new();
    let exporter = stream.exporter();
    let mut observer = Observer::subscribe(&stream.endpoint, Duration::ZERO, PATIENCE).unwrap();
    let mut times = vec![observer.latest().time];
    for seed in 1..=4 {
        stream.publish(&exporter, seed).unwrap();
        let snapshot = observer.next(PATIENCE).unwrap().expect("a snapshot comes in time");
        assert_eq!(snapshot.counters.published, seed);
        times.push(snapshot.time);
    }
    let least = Duration::from_millis(MIN_INTERVAL_MS.into()).as_nanos() as u64;
    // The time of a snapshot is taken after the time from which the next one is counted, on a busy
    // machine long after it: one interval is allowed for that.
    let taken = times[4] - times[0];
    assert!(taken > 3 * least, "{times:?}");
}

#[test]
fn unsubscribed_observer_gets_snapshots_on_request_only() {
    let stream = Stream::new();
    let exporter = stream.exporter();
    let mut observer = observe(&stream);
    assert!(observer.next(Duration::from_millis(300)).unwrap().is_none());
    let start = Instant::now();
    for seed in 1..=5 {
        stream.publish(&exporter, seed).unwrap();
        assert_eq!(observer.snapshot().unwrap().counters.published, seed);
        assert_eq!(observer.latest().counters.published, seed);
    }
    let least = Duration::from_millis(4 * u64::from(MIN_INTERVAL_MS));
    assert!(start.elapsed() >= least, "requests are answered faster than the limit");
}

/// A snapshot that fits into no message comes as a memory file.
#[test]
fn large_snapshot_arrives_whole() {
    let stream = Stream::new();
    let exporter = stream.exporter();
    let caps = "x".repeat(65_000);
    exporter.set_format(format(&caps));
    let mut observer = observe(&stream);
    for _ in 0..3 {
        assert_eq!(observer.snapshot().unwrap().format.as_ref().unwrap().caps, caps);
    }
}

#[test]
fn observer_disconnects_reader_with_its_process_in_reason() {
    let stream = Stream::new();
    let (sender, notices) = channel();
    let exporter = Exporter::bind(&stream.endpoint, exporter::Config::default(), move |notice| {
        drop(sender.send(notice))
    })
    .unwrap();
    let (mut first, _second) = (stream.reader(Policy::Latest), stream.reader(Policy::Latest));
    let mut observer = observe(&stream);
    let missing = observer.disconnect_reader(7).unwrap_err();
    assert!(matches!(missing, ObserveError::NoSuchReader { reader: 7 }), "{missing}");
    observer.disconnect_reader(1).unwrap();
    assert_eq!(exporter.reader_count(), 1);
    let by = format!("disconnected by process {} (", std::process::id());
    let error = stream.next(&mut first).unwrap_err();
    let ReadError::CutOff { reason: Reason::Disconnected, text } = &error else { panic!("{error}") };
    assert!(text.starts_with(&by), "{text}");
    let removal = notices.iter().find(|notice| matches!(notice, Notice::ReaderRemoved { .. })).unwrap();
    let Notice::ReaderRemoved { reader, reason, why } = removal else { unreachable!() };
    assert_eq!((reader.id, reason), (1, Reason::Disconnected));
    assert!(why.starts_with(&by), "{why}");
    let snapshot = observer.snapshot().unwrap();
    assert_eq!((snapshot.readers.len(), snapshot.readers[0].id), (1, 2));
}

#[test]
fn least_active_observer_beyond_limit_is_closed() {
    let stream = Stream::new();
    let _exporter = stream.exporter();
    // A process may have 16.
    let mut observers: Vec<_> = (0..16).map(|_| observe(&stream)).collect();
    observers[0].snapshot().unwrap();
    let mut newest = observe(&stream);
    let error = observers[1].snapshot().unwrap_err();
    let is_limit = matches!(error, ObserveError::Closed { reason: Reason::LimitExceeded, .. });
    assert!(is_limit && error.to_string().contains("too many observers"), "{error}");
    observers.remove(1);
    assert_eq!(newest.snapshot().unwrap().counters.observers, 16);
    observers.iter_mut().for_each(|observer| _ = observer.snapshot().unwrap());
}

#[test]
fn observer_reads_end_of_exporter() {
    let stream = Stream::new();
    let missing = Observer::connect(&stream.endpoint, PATIENCE).unwrap_err();
    assert!(matches!(missing, ObserveError::NotThere { .. }), "{missing}");
    let exporter = stream.exporter();
    let mut observer = observe(&stream);
    drop(exporter);
    let error = observer.snapshot().unwrap_err();
    assert!(matches!(error, ObserveError::Closed { reason: Reason::Stopped, .. }), "{error}");
    let error = observer.next(PATIENCE).unwrap_err();
    assert!(matches!(error, ObserveError::Gone), "{error}");
}

#[test]
fn rights_of_observer_follow_limits_and_credit() {
    let stream = Stream::new();
    let config = exporter::Config::default()
        .max_slots(8)
        .max_held_limit(4)
        .history(History::Frames(0))
        .lossless_readers(LosslessReaders::None);
    let exporter = stream.exporter_with(config);
    stream.publish(&exporter, 1).unwrap();
    let mut observer = observe(&stream);
    let rights = observer.rights();
    assert_eq!((rights.uid, rights.credit), (observer.latest().exporter.uid, 4));
    assert!(!rights.may_be_lossless && rights.may_have_gpu_memory);
    // Eight slots less two for the exporter and four for the reader.
    let _reader = stream.try_reader(reader::Config::default().max_held(4)).unwrap();
    observer.snapshot().unwrap();
    assert_eq!(observer.rights().credit, 2);
    let _other = stream.try_reader(reader::Config::default().max_held(4)).unwrap();
    observer.snapshot().unwrap();
    assert_eq!(observer.rights().credit, 0);
    assert!(stream.try_reader(reader::Config::default().max_held(4)).is_err());
    let expected = expectation(observer.latest(), observer.rights(), None);
    assert!(matches!(expected, Expectation::InPlace(fence) if fence.kind == FenceKind::None));
}
