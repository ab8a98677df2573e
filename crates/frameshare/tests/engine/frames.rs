// SPDX-License-Identifier: MIT OR Apache-2.0

//! The short way: frames as an iterator, an exporter of video.

use crate::stream::{Stream, until};
use frameshare::{
    Endpoint, EndpointError, Event, Policy, Wait,
    exporter::{PublishError, VideoExporter, VideoExporterError},
    reader::{Config, ConnectError, Frame, Frames, OpenError, ReadError},
    video::{PixelFormat, VideoFormat},
};
use std::{
    os::fd::AsFd,
    thread,
    time::{Duration, Instant},
};

const LIMIT: Duration = Duration::from_secs(20);

fn format(width: u32) -> VideoFormat {
    VideoFormat::new("NV12".parse().unwrap(), width, 4).rate(25, 1)
}

fn path(stream: &Stream) -> &str {
    stream.endpoint.path().to_str().unwrap()
}

/// Publishes a frame whose first luma byte is `mark`.
fn publish(video: &VideoExporter, mark: u8) {
    let mut frame = video.acquire(Wait::Forever).unwrap();
    frame.row_mut(0, 0)[0] = mark;
    video.publish(&frame, Wait::Forever).unwrap();
}

fn mark(frame: &Frame) -> u8 {
    frame.plane(0).unwrap().row_slice(0).unwrap()[0]
}

#[test]
fn iterator_passes_over_events_and_ends_with_stream() {
    let stream = Stream::new();
    let video = VideoExporter::new(path(&stream), format(6)).unwrap();
    let mut frames = Frames::open(path(&stream), Config::default().policy(Policy::Lossless)).unwrap();
    video.exporter().send_event(Event { kind: 9, sticky: false, payload: vec![1] }).unwrap();
    (1..4).for_each(|mark| publish(&video, mark));
    video.exporter().end_of_stream();
    let marks = frames.by_ref().map(|frame| mark(&frame.unwrap())).collect::<Vec<_>>();
    assert_eq!((marks.as_slice(), frames.has_ended()), ([1, 2, 3].as_slice(), true));
    // It goes on with the stream.
    publish(&video, 4);
    assert_eq!((mark(&frames.next().unwrap().unwrap()), frames.has_ended()), (4, false));
    assert!(frames.next_within(Duration::ZERO).unwrap().is_none());
    assert!(frames.try_next().unwrap().is_none() && frames.as_fd().try_clone_to_owned().is_ok());
}

#[test]
fn iterator_ends_after_error_and_not_after_interrupt() {
    let stream = Stream::new();
    let video = VideoExporter::new(path(&stream), format(6)).unwrap();
    let mut frames = Frames::open(path(&stream), Config::default()).unwrap();
    frames.interrupt().set();
    assert!((0..2).all(|_| matches!(frames.next(), Some(Err(ReadError::Interrupted)))));
    frames.interrupt().clear();
    publish(&video, 1);
    assert_eq!(mark(&frames.next().unwrap().unwrap()), 1);
    drop(video);
    assert!(matches!(frames.next(), Some(Err(ReadError::Stopped(_)))));
    assert!(frames.next().is_none());
}

#[test]
fn frame_of_former_format_is_refused() {
    let stream = Stream::new();
    let video = VideoExporter::new(path(&stream), format(6)).unwrap();
    let former = video.acquire(Wait::Forever).unwrap();
    // The same layout, other pixels.
    video.set_format(VideoFormat::new("NV21".parse().unwrap(), 6, 4)).unwrap();
    let refused = video.publish(&former, Wait::Forever);
    assert!(matches!(refused, Err(VideoExporterError::FormerFormat)), "{refused:?}");
    publish(&video, 1);
}

#[test]
fn started_stream_connects_later() {
    let stream = Stream::new();
    let mut frames = Frames::start(path(&stream), Config::default()).unwrap();
    assert!(frames.try_next().unwrap().is_none());
    let video = VideoExporter::new(path(&stream), format(6)).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            video.exporter().wait_for_reader(Wait::Forever).unwrap();
            publish(&video, 5);
        });
        assert_eq!(mark(&frames.next_within(LIMIT).unwrap().unwrap()), 5);
    });
}

#[test]
fn opened_stream_continues_with_next_exporter() {
    let stream = Stream::new();
    let video = VideoExporter::new(path(&stream), format(6)).unwrap();
    let mut frames = frameshare::open(path(&stream)).unwrap();
    publish(&video, 1);
    let first = frames.next().unwrap().unwrap();
    drop(video);
    assert!(frames.next_within(Duration::from_millis(50)).unwrap().is_none() && !frames.has_ended());
    let video = VideoExporter::new(path(&stream), format(8)).unwrap();
    let next = thread::scope(|scope| {
        scope.spawn(|| {
            video.exporter().wait_for_reader(Wait::Forever).unwrap();
            publish(&video, 2);
        });
        frames.next_within(LIMIT).unwrap().expect("no frame of the next exporter")
    });
    assert_eq!([&first, &next].map(|frame| (mark(frame), frame.plane(0).unwrap().width)), [(1, 6), (2, 8)]);
    assert_eq!(frames.reader().stats().reconnects, 1);
}

#[test]
fn latest_frame_replaces_untaken_ones() {
    let stream = Stream::new();
    let video = VideoExporter::new(path(&stream), format(6)).unwrap();
    let mut frames = frameshare::open(path(&stream)).unwrap();
    (1..=50).for_each(|mark| publish(&video, mark));
    let frame = frames.next().unwrap().unwrap();
    assert_eq!((mark(&frame), frame.lost_before()), (50, 49));
}

#[test]
fn interrupt_ends_wait_for_frame() {
    let stream = Stream::new();
    let _video = VideoExporter::new(path(&stream), format(6)).unwrap();
    let mut frames = frameshare::open(path(&stream)).unwrap();
    let interrupt = frames.interrupt();
    thread::scope(|scope| {
        scope.spawn(move || interrupt.set());
        assert!(matches!(frames.next(), Some(Err(ReadError::Interrupted))));
    });
}

#[test]
fn stream_that_cannot_be_opened_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("s.sock");
    let config = Config::default().connection_timeout(Some(Duration::ZERO));
    let error = Frames::open(missing.to_str().unwrap(), config).unwrap_err();
    assert!(matches!(error, OpenError::Connect(ConnectError::NotThere { .. })), "{error:?}");
    assert!(matches!(frameshare::open("a b"), Err(OpenError::Endpoint(EndpointError::Name { .. }))));
    assert!(Endpoint::of_text("@cam0").unwrap().is_abstract());
}

#[test]
fn new_frames_of_every_format_are_read_back() {
    let stream = Stream::new();
    let video = VideoExporter::new(path(&stream), format(6)).unwrap();
    let mut frames = Frames::open(path(&stream), Config::default().policy(Policy::Lossless)).unwrap();
    for (number, pixels) in PixelFormat::all().enumerate() {
        let format = VideoFormat::new(pixels, 35, 33).rate(30000, 1001);
        video.set_format(format.clone()).unwrap();
        let mut frame = video.acquire(Wait::Forever).unwrap();
        frame.bytes_mut().fill(0);
        for plane in 0..pixels.plane_count() {
            let last = (0..).take_while(|row| !frame.row_mut(plane, *row).is_empty()).last().unwrap();
            frame.row_mut(plane, last).fill(number as u8 + 1);
        }
        video.publish(&frame, Wait::Forever).unwrap();
        let frame = frames.next().unwrap().unwrap();
        assert_eq!(frame.format().unwrap(), &format);
        assert_eq!(frame.descriptor().duration, Some(33_366_666));
        for index in 0..pixels.plane_count() {
            let plane = frame.plane(index).unwrap();
            assert_eq!(
                plane.layout(),
                &format.plane(index, &[], format.size().unwrap()).unwrap(),
                "{pixels}"
            );
            let rows = (0..).map_while(|row| plane.row_slice(row)).collect::<Vec<_>>();
            assert!(rows.last().unwrap().iter().all(|byte| *byte == number as u8 + 1), "{pixels}");
            assert!(rows.len() == 1 || rows[0].iter().all(|byte| *byte == 0), "{pixels}");
        }
    }
}

#[test]
fn exporter_waits_for_slot_instead_of_failing() {
    let stream = Stream::new();
    let video = VideoExporter::new(path(&stream), format(6)).unwrap();
    // All slots are being written.
    let frames = (0..512).map(|_| video.acquire(Wait::Forever).unwrap()).collect::<Vec<_>>();
    let start = Instant::now();
    thread::scope(|scope| {
        let next = scope.spawn(|| video.acquire(Wait::Forever).map(|_| ()));
        thread::sleep(Duration::from_millis(100));
        drop(frames);
        next.join().unwrap().unwrap();
    });
    assert!(start.elapsed() >= Duration::from_millis(100));
    until(|| video.acquire(Wait::Forever).is_ok());
}

#[test]
fn threads_publish_at_once() {
    const THREADS: u8 = 4;
    const FRAMES: u64 = 200;
    let stream = Stream::new();
    let video = VideoExporter::new(path(&stream), format(64)).unwrap();
    let mut frames = Frames::open(path(&stream), Config::default().policy(Policy::Lossless)).unwrap();
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let video = video.clone();
            scope.spawn(move || {
                for _ in 0..FRAMES {
                    let mut frame = video.acquire(Wait::Forever).unwrap();
                    frame.bytes_mut().fill(thread);
                    video.publish(&frame, Wait::Forever).unwrap();
                }
            });
        }
        let mut counts = [0; THREADS as usize];
        for number in 1..=u64::from(THREADS) * FRAMES {
            let frame = frames.next().unwrap().unwrap();
            assert_eq!(frame.descriptor().sequence.0, number);
            let bytes = frame.slice().unwrap();
            assert!(bytes.iter().all(|byte| *byte == bytes[0]), "frame {number}");
            counts[bytes[0] as usize] += 1;
        }
        assert_eq!(counts, [FRAMES; THREADS as usize]);
    });
}

/// A publication that does not wait is not held up by one that does, and leaves its frame as it is.
#[test]
fn publication_without_wait_passes_one_that_waits() {
    let stream = Stream::new();
    let video = VideoExporter::new(path(&stream), format(6)).unwrap();
    let mut frames = Frames::open(path(&stream), Config::default().policy(Policy::Lossless)).unwrap();
    let frame = || video.acquire(Wait::Forever).unwrap();
    while video.publish(&frame(), Wait::No).is_ok() {}
    thread::scope(|scope| {
        let waiting = scope.spawn(|| video.publish(&frame(), Wait::Forever));
        let mut refused = frame();
        for _ in 0..20 {
            let published = video.publish(&refused, Wait::No);
            assert!(
                matches!(published, Err(VideoExporterError::Publish(PublishError::NoRoom))),
                "{published:?}"
            );
            assert!(!refused.bytes_mut().is_empty());
            thread::sleep(Duration::from_millis(2));
        }
        assert!(!waiting.is_finished());
        drop(frames.next());
        let sequence = waiting.join().unwrap().unwrap();
        drop(frames.next());
        assert_eq!(video.publish(&refused, Wait::For(LIMIT)).unwrap().0, sequence.0 + 1);
        assert!(refused.bytes_mut().is_empty());
    });
}
