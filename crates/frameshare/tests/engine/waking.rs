// SPDX-License-Identifier: MIT OR Apache-2.0

//! Readers that sleep, spin when a frame is expected, or always spin.

use crate::stream::{Stream, holds, until};
use frameshare::{
    Event, Interrupt, MAX_CREDIT, Policy,
    reader::{self, Item, ReadError, Reader, ReaderSet},
};
use std::{
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::Duration,
};

const SHARES: [u32; 3] = [0, 10, 100];
const PERIOD: Duration = Duration::from_millis(8);
/// A rhythm needs eight frames.
const FRAMES: u64 = 40;

fn config(spin: u32) -> reader::Config {
    reader::Config::default().policy(Policy::Lossless).max_queued(MAX_CREDIT).spin(spin)
}

/// Publishes at a steady rate, with an event before each fourth frame.
fn publish(stream: &Stream, exporter: &frameshare::exporter::Exporter) {
    for seed in 1..=FRAMES {
        thread::sleep(PERIOD);
        if seed % 4 == 0 {
            exporter.send_event(Event { kind: seed as u32, sticky: false, payload: vec![0; 9] }).unwrap();
        }
        stream.publish(exporter, seed).unwrap();
    }
}

/// Reads to the end of the connection; returns the number of events and whether the stream ended.
fn read(stream: &Stream, reader: &mut Reader) -> (u64, bool) {
    let (mut frames, mut events, mut has_ended) = (0, 0, false);
    loop {
        match stream.next(reader) {
            Ok(Item::Frame(frame)) => {
                frames += 1;
                assert!(holds(&frame, frames));
            }
            Ok(Item::Event(event)) => {
                events += 1;
                assert_eq!(u64::from(event.kind), frames + 1, "an event has its place among the frames");
            }
            Ok(Item::EndOfStream) => has_ended = true,
            Ok(_) => {}
            Err(error) => {
                assert!(matches!(error, ReadError::Stopped(_)) && frames == FRAMES, "{error}");
                return (events, has_ended);
            }
        }
    }
}

#[test]
fn reader_with_each_share_gets_frames_events_and_the_end() {
    let stream = Stream::new();
    let exporter = stream.exporter();
    let mut readers = SHARES.map(|spin| stream.try_reader(config(spin)).unwrap());
    thread::scope(|scope| {
        for reader in &mut readers {
            scope.spawn(|| assert_eq!(read(&stream, reader), (FRAMES / 4, true)));
        }
        publish(&stream, &exporter);
        exporter.end_of_stream();
        drop(exporter);
    });
    let [_, _, spinning] = readers.map(|reader| reader.stats());
    assert!(spinning.spin_frames > 0 && !spinning.spin_time.is_zero(), "{spinning:?}");
    assert_eq!(spinning.futex_sleeps, 0, "{spinning:?}");
}

#[test]
fn interrupt_ends_wait_with_each_share() {
    for spin in SHARES {
        let stream = Stream::new();
        let exporter = stream.exporter();
        let mut reader = stream.try_reader(config(spin)).unwrap();
        let (interrupt, frames) = (Interrupt::new().unwrap(), AtomicU64::new(0));
        thread::scope(|scope| {
            scope.spawn(|| {
                loop {
                    match reader.next(None, &interrupt) {
                        Ok(Some(Item::Frame(frame))) => {
                            assert!(holds(&frame, frames.fetch_add(1, Ordering::Relaxed) + 1));
                        }
                        Ok(_) => {}
                        Err(error) => return assert!(matches!(error, ReadError::Interrupted), "{error}"),
                    }
                }
            });
            publish(&stream, &exporter);
            until(|| frames.load(Ordering::Relaxed) == FRAMES);
            // About when the reader expects the next frame.
            thread::sleep(PERIOD - Duration::from_micros(100));
            interrupt.set();
        });
        // The reader goes on.
        interrupt.clear();
        stream.publish(&exporter, 99).unwrap();
        assert!(holds(&stream.next_frame(&mut reader), 99), "spin={spin}");
    }
}

#[test]
fn timeout_ends_wait_with_each_share() {
    for spin in SHARES {
        let stream = Stream::new();
        let exporter = stream.exporter();
        let mut reader = stream.try_reader(config(spin)).unwrap();
        thread::scope(|scope| {
            scope.spawn(|| publish(&stream, &exporter));
            let (mut seed, mut timeouts) = (0, 0);
            while seed < FRAMES || timeouts < 3 {
                match reader.next(Some(PERIOD / 3), &stream.interrupt).unwrap() {
                    Some(Item::Frame(frame)) => {
                        seed += 1;
                        assert!(holds(&frame, seed), "spin={spin}");
                    }
                    Some(_) => {}
                    None => timeouts += 1,
                }
            }
        });
    }
}

/// A set waits for many readers at once.
#[test]
fn readers_of_a_set_sleep_with_each_share() {
    let stream = Stream::new();
    let exporter = stream.exporter();
    let mut set = ReaderSet::default();
    let keys = SHARES.map(|spin| set.add(stream.try_reader(config(spin)).unwrap()));
    thread::scope(|scope| {
        scope.spawn(|| publish(&stream, &exporter));
        let mut frames = 0;
        while frames < FRAMES * keys.len() as u64 {
            let (_, item) = set.next(Some(Duration::from_secs(20)), &stream.interrupt).unwrap().unwrap();
            frames += u64::from(matches!(item.unwrap(), Item::Frame(_)));
        }
    });
    for key in keys {
        let stats = set.get(key).unwrap().stats();
        assert!(stats.spin_time.is_zero() && stats.spin_frames == 0, "{stats:?}");
    }
}
