// SPDX-License-Identifier: MIT OR Apache-2.0

//! Readers that pause, join late, or are behind: `slow-readers`, `history`, `max-lateness`.

use super::*;
use frameshare::{Interrupt, Policy, reader};
use gstframeshare::FrameshareMeta;

/// No reader is disconnected because a busy machine pauses it.
const PATIENT: &str = "max-queued-time=60000000000 reader-timeout=60000000000";

const SMALL: &str = "video/x-raw,format=GRAY8,width=16,height=8,framerate=100/1";

/// 100 frames a second into `framesharesink` with these properties.
struct Source {
    pipeline: gst::Pipeline,
    path: PathBuf,
    _folder: tempfile::TempDir,
}

impl Source {
    fn new(source: &str, properties: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let pipeline = launch(&format!(
            "videotestsrc {source} ! {SMALL} ! framesharesink name=sink socket-path={} {properties}",
            path.display()
        ));
        pipeline.set_state(gst::State::Playing).unwrap();
        let source = Self { pipeline, path, _folder: folder };
        wait_until("the first frame", || source.published() > 0);
        source
    }

    fn stats(&self) -> gst::Structure {
        self.pipeline.by_name("sink").unwrap().property("stats")
    }

    fn published(&self) -> u64 {
        self.stats().get("published").unwrap()
    }

    fn of_reader(&self, name: &str) -> Option<u64> {
        let readers = self.stats().get::<gst::Array>("readers").unwrap();
        let reader = readers.first()?.get::<gst::Structure>().unwrap();
        Some(reader.get::<u64>(name).or_else(|_| reader.get::<u32>(name).map(u64::from)).unwrap())
    }

    /// A lossless reader that takes nothing by itself.
    fn paused(&self) -> reader::Reader {
        let endpoint = frameshare::Endpoint::at(&self.path).unwrap();
        let config = reader::Config::default().policy(Policy::Lossless).max_held(2);
        reader::Reader::connect(&endpoint, config, &Interrupt::new().unwrap()).unwrap()
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        self.pipeline.set_state(gst::State::Null).unwrap();
    }
}

/// Reads this number of frames, without a gap.
fn read(reader: &mut reader::Reader, count: usize) {
    let interrupt = Interrupt::new().unwrap();
    let mut frames = 0;
    while frames < count {
        if let reader::Item::Frame(frame) = reader.next(Some(PATIENCE), &interrupt).unwrap().expect("an item")
        {
            assert_eq!(frame.lost_before(), 0);
            frames += 1;
        }
    }
}

/// The treatment follows from upstream: live, paced by the clock, or neither.
#[test]
fn paused_reader_holds_back_only_a_stream_that_can_wait() {
    for (source, properties, waits) in [
        ("is-live=true", "", false),
        ("is-live=true", "sync=false", false),
        ("is-live=false", "", false),
        ("is-live=false", "sync=false", true),
        ("is-live=true", "max-queued-bytes=0", true),
    ] {
        let source = Source::new(source, &format!("{properties} {PATIENT}"));
        let mut paused = source.paused();
        let begin = source.published();
        if waits {
            std::thread::sleep(Duration::from_millis(700));
            let (published, waiting) = (source.published() - begin, source.of_reader("waiting").unwrap());
            assert!(published <= 10 && waiting == 0, "{properties}: {published} published, {waiting} wait");
        } else {
            wait_until("the stream goes on", || source.published() - begin > 40);
            wait_until("frames wait", || source.of_reader("waiting").unwrap() > 30);
            read(&mut paused, 60);
            assert_eq!(source.of_reader("lost"), Some(0));
        }
    }
}

#[test]
fn reader_beyond_the_queue_is_disconnected_or_waited_for() {
    for (source, slow_reader, disconnects) in [
        ("is-live=true", "auto", true),
        ("is-live=true", "wait", false),
        ("is-live=false", "auto", false),
        ("is-live=false", "disconnect", true),
    ] {
        let properties =
            format!("slow-readers={slow_reader} max-queued-time=300000000 reader-timeout=60000000000");
        let source = Source::new(source, &properties);
        let mut paused = source.paused();
        if !disconnects {
            // Some frames wait; then the stream does.
            wait_until("the stream stands still", || {
                let before = source.published();
                std::thread::sleep(Duration::from_millis(300));
                source.published() == before
            });
            assert!(source.of_reader("waiting") > Some(0));
            read(&mut paused, 60);
            continue;
        }
        wait_until("the disconnection", || source.of_reader("waiting").is_none());
        let interrupt = Interrupt::new().unwrap();
        let error = loop {
            match paused.next(Some(PATIENCE), &interrupt) {
                Ok(_) => {}
                Err(error) => break error.to_string(),
            }
        };
        assert!(error.contains("frames wait for it"), "{error}");
    }
}

#[test]
fn disconnected_source_names_property_and_queue() {
    let source = Source::new("is-live=true", "max-queued-time=300000000");
    let reader = launch(&format!(
        "framesharesrc socket-path={} policy=lossless ! fakesink name=end sync=false",
        source.path.display()
    ));
    // It blocks the reader's streaming thread.
    let pad = reader.by_name("end").unwrap().static_pad("sink").unwrap();
    let block = pad.add_probe(gst::PadProbeType::BLOCK_DOWNSTREAM, |_, _| gst::PadProbeReturn::Ok).unwrap();
    let (removed, is_removed) = std::sync::mpsc::channel();
    source.pipeline.by_name("sink").unwrap().connect("reader-removed", false, move |_| {
        removed.send(()).unwrap();
        None
    });
    reader.set_state(gst::State::Playing).unwrap();
    is_removed.recv_timeout(PATIENCE).expect("the disconnection");
    pad.remove_probe(block);
    let message = reader
        .bus()
        .unwrap()
        .timed_pop_filtered(gst::ClockTime::try_from(PATIENCE).ok(), &[gst::MessageType::Error]);
    reader.set_state(gst::State::Null).unwrap();
    let message = message.expect("an error");
    let gst::MessageView::Error(error) = message.view() else { unreachable!() };
    let text = error.error().to_string();
    assert!(text.contains("frames wait for it") && text.contains("max-queued-time"), "{text}");
}

/// A joining reader of a slow stream gets the last frame at its own running time.
#[test]
fn joining_reader_of_a_slow_stream_gets_the_last_frame() {
    let still = |exporter: &mut Exporter| {
        exporter.push_value(7);
        std::thread::sleep(Duration::from_millis(500));
    };
    let mut exporter = Exporter::with(GRAY, "wait-for-connection=false");
    still(&mut exporter);
    let reader = Reader::new(&exporter.path);
    let (buffer, caps, _) = reader.next_buffer();
    assert_eq!((bytes(&buffer)[0], caps.is_some()), (7, true));
    assert!(buffer.flags().contains(gst::BufferFlags::DISCONT));
    // It is due now, and its metadata contains its age.
    let now = reader.pipeline.current_running_time().unwrap();
    let pts = buffer.pts().unwrap();
    assert!(pts <= now && now - pts < gst::ClockTime::from_seconds(5), "{pts} at {now}");
    let age = frameshare::monotonic_ns() - buffer.meta::<FrameshareMeta>().unwrap().published();
    assert!(age >= 500_000_000, "{age}");
    exporter.push_value(8);
    let next = reader.buffer();
    assert!(bytes(&next)[0] == 8 && !next.flags().contains(gst::BufferFlags::DISCONT));

    for properties in ["history=0 wait-for-connection=false", "wait-for-connection=true"] {
        let mut exporter = Exporter::with(GRAY, properties);
        let first = Reader::new(&exporter.path);
        exporter.wait_for_readers(1);
        still(&mut exporter);
        let reader = Reader::new(&exporter.path);
        exporter.wait_for_readers(2);
        exporter.push_value(9);
        assert_eq!(bytes(&reader.buffer())[0], 9, "{properties}");
        drop(first);
    }
}

/// The frame that waits for a lossless reader may be late afterwards, too.
#[test]
fn frame_that_waited_is_for_lossless_readers_only() {
    let source =
        Source::new("is-live=true", "max-queued-bytes=0 reader-timeout=60000000000 max-lateness=1000000000");
    let endpoint = frameshare::Endpoint::at(&source.path).unwrap();
    let config = reader::Config::default().max_held(16).max_queued(16);
    let interrupt = Interrupt::new().unwrap();
    let mut newest = reader::Reader::connect(&endpoint, config, &interrupt).unwrap();
    let mut lateness = Vec::new();
    let mut note = |item| {
        if let reader::Item::Frame(frame) = item {
            let descriptor = frame.descriptor();
            lateness.push(i128::from(descriptor.published) - i128::from(descriptor.pts.unwrap()));
        }
        !lateness.is_empty()
    };
    // A frame that waited for nothing.
    while !note(newest.next(Some(PATIENCE), &interrupt).unwrap().expect("an item")) {}
    let mut paused = source.paused();
    // The source stands still for some seconds.
    std::thread::sleep(Duration::from_secs(3));
    for _ in 0..50 {
        read(&mut paused, 1);
        while let Some(item) = newest.next(Some(Duration::ZERO), &interrupt).unwrap() {
            note(item);
        }
    }
    let (least, most) = (lateness.iter().min().unwrap(), lateness.iter().max().unwrap());
    assert!(most - least < 2_000_000_000, "{lateness:?}");
}

/// `max-queued` holds for a reader that the stream waits for, too.
#[test]
fn awaited_reader_gets_the_newest_frames() {
    let mut exporter = Exporter::with(GRAY, "wait-for-connection=true");
    let endpoint = frameshare::Endpoint::at(&exporter.path).unwrap();
    let interrupt = Interrupt::new().unwrap();
    let config = reader::Config::default().max_held(4).max_queued(2);
    let mut reader = std::thread::scope(|scope| {
        let connects = scope.spawn(|| reader::Reader::connect(&endpoint, config, &interrupt).unwrap());
        // The first frame waits for the reader.
        (1..=6).for_each(|value| exporter.push_value(value));
        connects.join().unwrap()
    });
    let mut got = Vec::new();
    while got.len() < 2 {
        if let reader::Item::Frame(frame) = reader.next(Some(PATIENCE), &interrupt).unwrap().expect("an item")
        {
            got.push((frame.descriptor().sequence.0, frame.lost_before()));
        }
    }
    assert_eq!(got, [(5, 4), (6, 0)]);
}

/// After a wait, frames that are too late go to lossless readers only. Without a limit, none is.
#[test]
fn late_frames_after_a_wait_are_for_lossless_readers_only() {
    assert_eq!(lost_after_a_wait("max-lateness=-1", 0), 0);
    let lost = lost_after_a_wait("max-lateness=100000000", 50);
    assert!(lost >= 50, "{lost} frames are left out");
}

/// Stops a stream for three seconds, and returns the number of frames that a `latest` reader loses
/// within four seconds after that. A loss that is `expected` may come later on a busy machine.
fn lost_after_a_wait(properties: &str, expected: u64) -> u64 {
    let properties = format!("max-queued-bytes=0 reader-timeout=60000000000 {properties}");
    let source = Source::new("is-live=true", &properties);
    let mut paused = source.paused();
    let endpoint = frameshare::Endpoint::at(&source.path).unwrap();
    let config = reader::Config::default().max_held(16).max_queued(16);
    let interrupt = Interrupt::new().unwrap();
    let mut newest = reader::Reader::connect(&endpoint, config, &interrupt).unwrap();
    std::thread::sleep(Duration::from_secs(3));
    // The source has blocked meanwhile; more than 200 frames are too late now.
    let mut lost = 0;
    let mut frames = 0;
    while frames < 400 || (lost < expected && frames < 4000) {
        frames += 1;
        read(&mut paused, 1);
        while let Some(item) = newest.next(Some(Duration::ZERO), &interrupt).unwrap() {
            if let reader::Item::Frame(frame) = item {
                lost += frame.lost_before();
            }
        }
    }
    lost
}
