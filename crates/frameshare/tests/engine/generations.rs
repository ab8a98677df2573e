// SPDX-License-Identifier: MIT OR Apache-2.0

//! Generations: new formats and growing frames retire the slots of the old layout.

use crate::stream::{Stream, format, holds};
use frameshare::Policy;

#[test]
fn new_format_replaces_generation() {
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
        assert_eq!(held[0].descriptor().slot.generation, round + 1);
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
fn growing_frames_get_larger_generation() {
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
