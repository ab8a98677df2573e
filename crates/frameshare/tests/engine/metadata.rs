// SPDX-License-Identifier: MIT OR Apache-2.0

//! Metadata: bytes of any length, times, planes and flags of each frame.

use crate::stream::{SIZE, Stream, byte, frame_in};
use frameshare::{
    Plane, Policy, Sequence,
    exporter::{Frame, PublishError, Purpose},
    reader::{self, Item},
};
use std::{thread, time::Duration};

#[test]
fn metadata_of_any_length_stays_with_its_frame() {
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
fn times_planes_and_flags_arrive_unchanged() {
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

/// Oversized metadata goes by message, and waits if the socket has no room.
#[test]
fn paused_reader_gets_metadata_of_any_size() {
    const FRAMES: u64 = 40;
    let metadata = |sequence: u64| vec![sequence as u8; 60_000];
    for policy in [Policy::Lossless, Policy::Latest] {
        let stream = Stream::new();
        let exporter = stream.exporter();
        let mut reader = stream.try_reader(reader::Config::default().policy(policy).max_held(16)).unwrap();
        let mut next = 1;
        thread::scope(|scope| {
            scope.spawn(|| {
                for sequence in 1..=FRAMES {
                    let slot = exporter.acquire(SIZE, Purpose::Copy).unwrap();
                    let frame = Frame { metadata: &metadata(sequence), ..frame_in(&slot) };
                    assert_eq!(exporter.publish(frame, &stream.interrupt), Ok(Sequence(sequence)));
                }
                exporter.end_of_stream();
            });
            thread::sleep(Duration::from_millis(200));
            loop {
                match stream.next(&mut reader).unwrap() {
                    Item::Frame(frame) => {
                        let sequence = frame.descriptor().sequence.0;
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
