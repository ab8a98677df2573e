// SPDX-License-Identifier: MIT OR Apache-2.0

//! Delivery: whole frames in order, loss under the `latest` policy, joining and leaving readers.

use crate::stream::{SIZE, Stream, fill, format, frame_in, holds, until};
use frameshare::{
    Event, Policy, Sequence, Wait,
    exporter::{self, Frame, Purpose},
    reader::{self, Item},
};
use std::{sync::atomic::Ordering, thread};

#[test]
fn lossless_reader_gets_every_frame_in_order() {
    let stream = Stream::new();
    let exporter = stream.exporter();
    let mut reader = stream.reader(Policy::Lossless);
    thread::scope(|scope| {
        scope.spawn(|| {
            for seed in 1..=5000 {
                assert_eq!(stream.publish(&exporter, seed), Ok(Sequence(seed)));
            }
            exporter.end_of_stream();
        });
        for seed in 1..=5000 {
            let frame = stream.next_frame(&mut reader);
            assert_eq!((frame.descriptor().sequence.0, frame.lost_before()), (seed, 0));
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
fn latest_reader_counts_lost_oldest_frames() {
    let stream = Stream::new();
    let exporter = stream.exporter();
    let mut reader = stream.reader(Policy::Latest);
    for seed in 1..=10 {
        stream.publish(&exporter, seed).unwrap();
    }
    for (sequence, lost) in [(7, 6), (8, 0), (9, 0), (10, 0)] {
        let frame = stream.next_frame(&mut reader);
        assert_eq!((frame.descriptor().sequence.0, frame.lost_before()), (sequence, lost));
        assert!(holds(&frame, sequence));
    }
    let lost = &exporter.stats().readers[0];
    assert_eq!((lost.lost, lost.queued, lost.lag, reader.stats().lost), (6, 0, 0, 6));
}

/// The newest frames are kept, whatever the credit.
#[test]
fn latest_reader_gets_newest_frames_within_its_queue() {
    let cases = [(1, 1, 1), (1, 4, 1), (2, 4, 2), (2, 16, 2), (16, 16, 10), (64, 4, 4)];
    for (max_queued, max_held, kept) in cases {
        let stream = Stream::new();
        let exporter = stream.exporter();
        let config = reader::Config::default().policy(Policy::Latest);
        let mut reader = stream.try_reader(config.max_held(max_held).max_queued(max_queued)).unwrap();
        for seed in 1..=10 {
            stream.publish(&exporter, seed).unwrap();
        }
        let case = format!("max_queued {max_queued}, max_held {max_held}");
        let stats = &exporter.stats().readers[0];
        assert_eq!((u64::from(stats.queued), stats.lost), (kept, 10 - kept), "{case}");
        for sequence in 11 - kept..=10 {
            let frame = stream.next_frame(&mut reader);
            let lost = if sequence == 11 - kept { 10 - kept } else { 0 };
            assert_eq!((frame.descriptor().sequence.0, frame.lost_before()), (sequence, lost), "{case}");
            assert!(holds(&frame, sequence), "{case}");
        }
        assert!(reader.try_next().unwrap().is_none(), "{case}");
    }
}

/// A burst of frames that are not due yet costs a reader with the default queue none of them; the
/// negative control has frames of the present time.
#[test]
fn burst_ahead_of_its_time_fits_into_default_queue() {
    const PERIOD: u64 = 1_000_000_000 / 30;
    for (is_ahead, kept) in [(true, 6), (false, 2)] {
        let stream = Stream::new();
        let exporter = stream.exporter();
        exporter.set_format(format("video/x-raw, framerate=(fraction)30/1"));
        let config = reader::Config::default().policy(Policy::Latest).max_held(0).max_queued(0);
        let mut reader = stream.try_reader(config).unwrap();
        let now = frameshare::monotonic_ns();
        for number in 1..=6 {
            let slot = exporter.acquire(SIZE, Purpose::Copy, Wait::No).unwrap();
            let pts = Some(if is_ahead { now + number * PERIOD } else { now });
            exporter.publish(Frame { pts, ..frame_in(&slot) }, Wait::Forever).unwrap();
        }
        let stats = &exporter.stats().readers[0];
        assert_eq!((stats.queued, stats.lost), (kept, 6 - u64::from(kept)), "ahead: {is_ahead}");
        for sequence in 7 - u64::from(kept)..=6 {
            assert_eq!(stream.next_frame(&mut reader).descriptor().sequence.0, sequence);
        }
    }
}

/// A short queue drops frames, never formats, events or the end of the stream.
#[test]
fn short_queue_keeps_formats_events_and_the_end() {
    let stream = Stream::new();
    let exporter = stream.exporter();
    let config = reader::Config::default().policy(Policy::Latest).max_held(4).max_queued(1);
    let mut reader = stream.try_reader(config).unwrap();
    for (number, caps) in ["a", "b", "c"].into_iter().enumerate() {
        exporter.set_format(format(caps));
        exporter.send_event(Event { kind: 5, sticky: false, payload: vec![number as u8] }).unwrap();
        for seed in 1..=4 {
            stream.publish(&exporter, 4 * number as u64 + seed).unwrap();
        }
    }
    exporter.end_of_stream();
    let mut seen = Vec::new();
    loop {
        seen.push(match stream.next(&mut reader).unwrap() {
            Item::Format(format) => format.caps.clone(),
            Item::Event(event) => format!("event {}", event.payload[0]),
            Item::Frame(frame) => {
                assert!(holds(&frame, 12));
                format!("frame {} after {} lost", frame.descriptor().sequence.0, frame.lost_before())
            }
            Item::EndOfStream => break,
            Item::Reconnected => "reconnected".into(),
        });
    }
    assert_eq!(seen.join(", "), "a, event 0, b, event 1, c, event 2, frame 12 after 11 lost");
}

/// Taken frames do not count: a reader that holds frames still gets the newest ones.
#[test]
fn held_frames_do_not_count_as_queued() {
    let stream = Stream::new();
    let exporter = stream.exporter();
    let config = reader::Config::default().policy(Policy::Latest).max_held(4).max_queued(1);
    let mut reader = stream.try_reader(config).unwrap();
    let mut held = Vec::new();
    for round in 0..3 {
        for seed in 1..=5 {
            stream.publish(&exporter, 5 * round + seed).unwrap();
        }
        held.push(stream.next_frame(&mut reader));
        assert_eq!(held.last().unwrap().descriptor().sequence.0, 5 * round + 5);
    }
    assert!(held.iter().zip([5, 10, 15]).all(|(frame, seed)| holds(frame, seed)));
    assert_eq!(exporter.stats().readers[0].lost, 12);
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
    assert_eq!((frame.descriptor().sequence.0, frame.lost_before()), (9, 4));
}

#[test]
fn timely_releases_make_room_for_every_reader() {
    let stream = Stream::new();
    let exporter = stream.exporter();
    let reader = |policy| stream.try_reader(reader::Config::default().policy(policy).max_held(1)).unwrap();
    let mut readers = [reader(Policy::Latest), reader(Policy::Lossless), reader(Policy::Latest)];
    let mut held = Vec::new();
    for seed in 1..=100 {
        let slot = exporter.acquire(SIZE, Purpose::Copy, Wait::No).unwrap();
        fill(slot.as_ptr().unwrap().as_ptr(), SIZE, seed);
        // The exporter has not polled since: the publication has to poll all three.
        held.clear();
        exporter.publish(Frame { size: SIZE, ..frame_in(&slot) }, Wait::Forever).unwrap();
        held.extend(readers.iter_mut().map(|reader| stream.next_frame(reader)));
        for frame in &held {
            assert_eq!((frame.descriptor().sequence.0, frame.lost_before()), (seed, 0));
        }
    }
}

/// Frames lost at the end count before anything follows them.
#[test]
fn frames_lost_before_end_are_counted() {
    let stream = Stream::new();
    let exporter = stream.exporter();
    let mut reader = stream.try_reader(reader::Config::default().max_held(1)).unwrap();
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

#[test]
fn readers_join_and_leave_during_publication() {
    let stream = Stream::new();
    let exporter = stream.exporter();
    let publishing = std::sync::atomic::AtomicBool::new(true);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut seed = 0;
            while publishing.load(Ordering::Relaxed) {
                seed += 1;
                assert_eq!(stream.publish(&exporter, seed), Ok(Sequence(seed)));
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
                            assert!(holds(&frame, frame.descriptor().sequence.0), "a damaged frame");
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
fn frames_outlive_their_reader() {
    let stream = Stream::new();
    let exporter = stream.exporter_with(exporter::Config::default().max_slots(8));
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
    assert_eq!(stream.try_reader(reader::Config::default().max_held(8)).unwrap().credit(), 2);
    drop(held);
    until(|| exporter.stats().free_slots == exporter.stats().slots);
}
