// SPDX-License-Identifier: MIT OR Apache-2.0

//! Metadata: bytes of any length, times, planes and flags of each frame.

use crate::stream::{SIZE, Stream, byte, frame_in};
use frameshare::{
    Plane, Policy, Sequence, Wait,
    exporter::{Frame, PublishError, Purpose},
    fence::Written,
    reader::{self, Item, ReadError},
};
use std::{thread, time::Duration};

#[test]
fn metadata_of_any_length_stays_with_its_frame() {
    let stream = Stream::new();
    let exporter = stream.exporter();
    let mut reader = stream.reader(Policy::Latest);
    for length in [0, 1, 7, 4096, 4097, 65_536, 65_537, 70_000, 1_000_000] {
        let metadata: Vec<u8> = (0..length).map(|index| byte(length, index)).collect();
        let slot = exporter.acquire(SIZE, Purpose::Copy, Wait::No).unwrap();
        exporter.publish(Frame { metadata: &metadata, ..frame_in(&slot) }, Wait::Forever).unwrap();
        assert!(stream.next_frame(&mut reader).metadata() == metadata, "{length} bytes");
    }
    // The metadata of a lost frame does not pass to another.
    for seed in 1..=6 {
        let metadata = vec![seed; 5000];
        let slot = exporter.acquire(SIZE, Purpose::Copy, Wait::No).unwrap();
        exporter.publish(Frame { metadata: &metadata, ..frame_in(&slot) }, Wait::Forever).unwrap();
    }
    for seed in 3..=6 {
        assert_eq!(stream.next_frame(&mut reader).metadata(), vec![seed; 5000]);
    }
}

#[test]
fn times_planes_and_flags_arrive_unchanged() {
    let stream = Stream::new();
    let exporter = stream.exporter();
    let mut reader = stream.reader(Policy::Latest);
    let slot = exporter.acquire(SIZE, Purpose::Copy, Wait::No).unwrap();
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
    exporter.publish(frame, Wait::Forever).unwrap();
    let frame = stream.next_frame(&mut reader);
    let found = frame.descriptor();
    assert_eq!((found.pts, found.dts, found.duration), (Some(1), None, Some(3)));
    assert_eq!((found.media_offset, found.media_offset_end, found.flags), (None, Some(5), 6));
    assert_eq!((frame.len(), found.used_planes()), (9000, &planes[..]));
    let outside = Frame { offset: slot.size() - 10, size: 11, ..frame_in(&slot) };
    assert!(matches!(exporter.publish(outside, Wait::Forever), Err(PublishError::Invalid(_))));
}

/// Metadata over 64 KiB goes by message, and waits if the socket has no room.
#[test]
fn paused_reader_gets_metadata_of_any_size() {
    for policy in [Policy::Lossless, Policy::Latest] {
        for size in [60_000, 70_000] {
            paused_reader_gets_metadata(policy, size);
        }
    }
}

fn paused_reader_gets_metadata(policy: Policy, size: usize) {
    const FRAMES: u64 = 40;
    let metadata = |sequence: u64| vec![sequence as u8; size];
    let stream = Stream::new();
    let exporter = stream.exporter();
    let mut reader = stream.try_reader(reader::Config::default().policy(policy).max_held(16)).unwrap();
    let mut next = 1;
    thread::scope(|scope| {
        scope.spawn(|| {
            for sequence in 1..=FRAMES {
                let slot = exporter.acquire(SIZE, Purpose::Copy, Wait::No).unwrap();
                let frame = Frame { metadata: &metadata(sequence), ..frame_in(&slot) };
                assert_eq!(exporter.publish(frame, Wait::Forever), Ok(Sequence(sequence)));
            }
            exporter.end_of_stream();
        });
        thread::sleep(Duration::from_millis(200));
        loop {
            match stream.next(&mut reader).unwrap() {
                Item::Frame(frame) => {
                    let sequence = frame.descriptor().sequence.0;
                    assert_eq!(sequence, next + frame.lost_before());
                    assert!(frame.metadata() == metadata(sequence), "frame {sequence} has other metadata");
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

/// A reader that joins after the first oversized frame gets the large areas, too.
#[test]
fn readers_of_any_age_share_large_areas() {
    let stream = Stream::new();
    let exporter = stream.exporter();
    let publish = |seed: u8| {
        let metadata = vec![seed; 60_000];
        let slot = exporter.acquire(SIZE, Purpose::Copy, Wait::No).unwrap();
        exporter.publish(Frame { metadata: &metadata, ..frame_in(&slot) }, Wait::Forever).unwrap();
    };
    let mut early = stream.reader(Policy::Lossless);
    publish(1);
    let mut late = stream.reader(Policy::Latest);
    publish(2);
    assert_eq!(stream.next_frame(&mut early).metadata(), vec![1; 60_000]);
    for reader in [&mut early, &mut late] {
        assert_eq!(stream.next_frame(reader).metadata(), vec![2; 60_000]);
    }
}

/// The sum of the lengths counts against no reader, but each length does.
#[test]
fn metadata_in_large_area_obeys_readers_limit() {
    let stream = Stream::new();
    let exporter = stream.exporter();
    let mut reader =
        stream.try_reader(reader::Config::default().max_queued(2).max_metadata_bytes(10_000)).unwrap();
    for length in [10_000, 10_001] {
        let metadata = vec![7; length];
        let slot = exporter.acquire(SIZE, Purpose::Copy, Wait::No).unwrap();
        exporter.publish(Frame { metadata: &metadata, ..frame_in(&slot) }, Wait::Forever).unwrap();
    }
    assert_eq!(stream.next_frame(&mut reader).metadata(), vec![7; 10_000]);
    let error = stream.next(&mut reader).unwrap_err();
    assert!(matches!(error, ReadError::TooMuchMetadata { size: 10_001, limit: 10_000 }), "{error}");
}

/// Publications beyond the large areas send messages.
#[test]
fn metadata_beyond_large_areas_arrives_as_message() {
    let stream = Stream::new();
    let exporter = stream.exporter();
    let publish = |seed: u32| {
        let metadata = vec![seed as u8; 5000];
        let slot = exporter.acquire(64, Purpose::Copy, Wait::No).unwrap();
        let frame = Frame { metadata: &metadata, ..Frame::new(&slot, 64, Written::Cpu) };
        exporter.publish(frame, Wait::Forever).unwrap();
    };
    let config = reader::Config::default().policy(Policy::Lossless).max_held(16);
    let mut readers: Vec<_> = (0..5).map(|_| stream.try_reader(config.clone()).unwrap()).collect();
    // Each reader holds other frames than the others, so that all of them need more areas than
    // there are large ones.
    let mut held = Vec::new();
    for seed in 0..5 * 15 {
        publish(seed);
        for (at, reader) in readers.iter_mut().enumerate() {
            let frame = stream.next_frame(reader);
            assert_eq!(frame.metadata(), vec![seed as u8; 5000]);
            if seed as usize % 5 == at {
                held.push(frame);
            }
        }
    }
    let areas = held.iter().map(|frame| frame.descriptor().area.0).max().unwrap();
    assert!(areas >= 64, "the highest area is {areas}");
}
