// SPDX-License-Identifier: MIT OR Apache-2.0

//! Timestamps, end of stream, and waiting.

use super::*;

#[test]
fn timestamps_are_on_the_monotonic_clock() {
    let info = video_info(gst_video::VideoFormat::Gray8, 8, 8);
    let mut sink = Sink::new(&info.to_caps().unwrap().to_string(), &[]);
    sink.harness.use_systemclock();
    let mut reader = sink.reader(Policy::Lossless, 4);
    let mut buffer = gst::Buffer::from_slice(noise(1, info.size()));
    {
        let buffer = buffer.get_mut().unwrap();
        buffer.set_pts(gst::ClockTime::from_mseconds(1500));
        buffer.set_dts(gst::ClockTime::from_mseconds(1400));
        buffer.set_duration(gst::ClockTime::from_mseconds(40));
        buffer.set_offset(12);
        buffer.set_flags(gst::BufferFlags::DELTA_UNIT | gst::BufferFlags::MARKER);
    }
    sink.push(buffer);
    let frame = next_frame(&mut reader);
    let descriptor = frame.descriptor();
    let element = sink.element();
    let (clock, base) = (element.clock().unwrap(), element.base_time().unwrap());
    // GStreamer's system clock is the monotonic clock, so only the sampling error separates them.
    assert!(clock.is::<gst::SystemClock>());
    let due = base.nseconds() + 1_500_000_000;
    let pts = descriptor.pts.unwrap();
    assert!(pts.abs_diff(due) < 30_000_000, "{pts} {due}");
    assert_eq!(pts - descriptor.dts.unwrap(), 100_000_000);
    assert_eq!(descriptor.duration, Some(40_000_000));
    assert_eq!((descriptor.media_offset, descriptor.media_offset_end), (Some(12), None));
    assert_ne!(descriptor.flags, 0);
}

#[test]
fn eos_is_delivered_and_posted_after_readers_drain() {
    let info = video_info(gst_video::VideoFormat::Gray8, 8, 8);
    let mut sink = Sink::new(&info.to_caps().unwrap().to_string(), &[("drain-timeout", "20000000000")]);
    let bus = gst::Bus::new();
    sink.element().set_bus(Some(&bus));
    let mut reader = sink.reader(Policy::Lossless, 4);
    sink.push(gst::Buffer::from_slice(noise(1, info.size())));
    let seen = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(300));
        let frame = next_frame(&mut reader);
        assert!(matches!(next(&mut reader), Item::EndOfStream));
        std::thread::sleep(Duration::from_millis(300));
        let released = Instant::now();
        drop(frame);
        (reader, released)
    });
    sink.harness.push_event(gst::event::Eos::new());
    let answered = Instant::now();
    assert!(bus.timed_pop_filtered(gst::ClockTime::from_seconds(10), &[gst::MessageType::Eos]).is_some());
    let (_reader, released) = seen.join().unwrap();
    assert!(answered >= released, "answered {:?} too early", released - answered);
}

#[test]
fn drain_timeout_limits_eos_for_inactive_reader() {
    let info = video_info(gst_video::VideoFormat::Gray8, 8, 8);
    let mut sink = Sink::new(&info.to_caps().unwrap().to_string(), &[("drain-timeout", "200000000")]);
    let _reader = sink.reader(Policy::Lossless, 4);
    sink.push(gst::Buffer::from_slice(noise(1, info.size())));
    let begin = Instant::now();
    sink.harness.push_event(gst::event::Eos::new());
    assert!((Duration::from_millis(190)..PATIENCE).contains(&begin.elapsed()));
}

#[test]
fn reader_joining_after_flush_of_eos_gets_new_frames() {
    let info = video_info(gst_video::VideoFormat::Gray8, 8, 8);
    // On a slow machine readers would get the last frame first.
    let mut sink = Sink::new(&info.to_caps().unwrap().to_string(), &[("history", "0")]);
    sink.push(gst::Buffer::from_slice(noise(1, info.size())));
    sink.harness.push_event(gst::event::Eos::new());
    let joined = |sink: &Sink| {
        let mut reader = sink.reader(Policy::Lossless, 4);
        assert!(matches!(next(&mut reader), Item::Event(_)), "the stream-start");
        assert!(matches!(next(&mut reader), Item::Format(_)));
        assert!(matches!(next(&mut reader), Item::Event(_)), "the segment");
        reader
    };
    assert!(matches!(next(&mut joined(&sink)), Item::EndOfStream));

    sink.harness.push_event(gst::event::FlushStart::new());
    sink.harness.push_event(gst::event::FlushStop::new(true));
    let mut reader = joined(&sink);
    sink.harness.push_event(gst::event::Segment::new(&gst::FormattedSegment::<gst::ClockTime>::new()));
    sink.push(gst::Buffer::from_slice(noise(2, info.size())));
    assert_eq!(next_frame(&mut reader).descriptor().sequence.0, 2);
}

#[test]
fn no_frame_is_published_before_playing() {
    init();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let pipeline = launch(&format!(
        "videotestsrc is-live=false ! framesharesink name=sink sync=false socket-path={}",
        path.display()
    ));
    pipeline.set_state(gst::State::Paused).unwrap();
    let (change, state, _) = pipeline.state(gst::ClockTime::from_seconds(10));
    assert_eq!((change.is_ok(), state), (true, gst::State::Paused));
    let mut reader = connect(&path, Policy::Lossless, 2);
    assert!(matches!(next(&mut reader), Item::Event(_)), "the stream-start");
    assert!(matches!(next(&mut reader), Item::Format(_)));
    let quiet = reader.next(Some(Duration::from_millis(200)), &Interrupt::new().unwrap());
    assert!(matches!(quiet, Ok(None)), "{quiet:?}");
    pipeline.set_state(gst::State::Playing).unwrap();
    assert_eq!(next_frame(&mut reader).descriptor().sequence.0, 1);
    pipeline.set_state(gst::State::Null).unwrap();
}

#[test]
fn state_changes_do_not_wait_for_readers() {
    init();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let pipeline = launch(&format!(
        "videotestsrc ! video/x-raw,width=16,height=16 ! framesharesink name=sink sync=false \
         reader-timeout=60000000000 socket-path={}",
        path.display()
    ));
    let sink = pipeline.by_name("sink").unwrap();
    pipeline.set_state(gst::State::Paused).unwrap();
    assert!(pipeline.state(gst::ClockTime::from_seconds(10)).0.is_ok());
    let mut reader = connect(&path, Policy::Lossless, 3);
    pipeline.set_state(gst::State::Playing).unwrap();
    let published = || stats(&sink).get::<u64>("published").unwrap();
    wait_until("three frames", || published() == 3);
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(published(), 3);

    // Pause and resume during the wait: it continues with the same frame.
    let begin = Instant::now();
    pipeline.set_state(gst::State::Paused).unwrap();
    assert!(pipeline.state(gst::ClockTime::from_seconds(10)).0.is_ok());
    pipeline.set_state(gst::State::Playing).unwrap();
    assert!(pipeline.state(gst::ClockTime::from_seconds(10)).0.is_ok());
    for sequence in 1..20 {
        let frame = next_frame(&mut reader);
        assert_eq!((frame.descriptor().sequence.0, frame.lost_before()), (sequence, 0));
    }
    // Stop during the wait.
    std::thread::sleep(Duration::from_millis(100));
    pipeline.set_state(gst::State::Null).unwrap();
    assert!(begin.elapsed() < PATIENCE);
}

#[test]
fn waiting_sink_gives_first_frame_to_first_reader() {
    init();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let pipeline = launch(&format!(
        "videotestsrc ! framesharesink name=sink sync=false wait-for-connection=true socket-path={}",
        path.display()
    ));
    let sink = pipeline.by_name("sink").unwrap();
    for _ in 0..2 {
        pipeline.set_state(gst::State::Playing).unwrap();
        std::thread::sleep(Duration::from_millis(200));
        assert_eq!(stats(&sink).get::<u64>("published").unwrap(), 0);
        pipeline.set_state(gst::State::Ready).unwrap();
    }
    pipeline.set_state(gst::State::Playing).unwrap();
    let mut reader = connect_patiently(&path);
    assert_eq!(next_frame(&mut reader).descriptor().sequence.0, 1);
    pipeline.set_state(gst::State::Null).unwrap();
}

fn connect_patiently(path: &Path) -> Reader {
    wait_until("the socket", || path.exists());
    connect(path, Policy::Lossless, 4)
}

#[test]
fn readers_appear_in_signals_count_and_stats() {
    let info = video_info(gst_video::VideoFormat::Gray8, 8, 8);
    let mut sink = Sink::new(&info.to_caps().unwrap().to_string(), &[]);
    let element = sink.element();
    let emitted = Arc::new(Mutex::new(Vec::new()));
    for signal in ["reader-added", "reader-removed"] {
        let emitted = emitted.clone();
        element.connect(signal, false, move |arguments| {
            let reader: gst::Structure = arguments[1].get().unwrap();
            emitted.lock().unwrap().push((signal, reader.get::<u32>("pid").unwrap()));
            None
        });
    }
    let counts = Arc::new(Mutex::new(Vec::new()));
    {
        let counts = counts.clone();
        element.connect_notify(Some("num-clients"), move |element, _| {
            counts.lock().unwrap().push(element.property::<u32>("num-clients"));
        });
    }
    let mut reader = sink.reader(Policy::Lossless, 3);
    sink.push(gst::Buffer::from_slice(noise(1, info.size())));
    let frame = next_frame(&mut reader);
    let stats = stats(&element);
    let readers: gst::Array = stats.get("readers").unwrap();
    let described: gst::Structure = readers[0].get().unwrap();
    assert_eq!(described.get::<u32>("pid").unwrap(), std::process::id());
    assert_eq!(described.get::<String>("policy").unwrap(), "lossless");
    assert_eq!(described.get::<u32>("held").unwrap(), 1);
    assert_eq!(described.get::<u64>("sent").unwrap(), 1);
    assert_eq!(described.get::<u64>("lost").unwrap(), 0);
    assert_eq!(element.property::<u32>("num-clients"), 1);
    // The application is notified on a separate thread, and reads the count at that moment.
    wait_until("the reader's connection", || *counts.lock().unwrap() == [1]);
    drop(frame);
    drop(reader);
    wait_until("the reader's disconnection", || emitted.lock().unwrap().len() == 2);
    let me = std::process::id();
    assert_eq!(*emitted.lock().unwrap(), [("reader-added", me), ("reader-removed", me)]);
    wait_until("the count", || *counts.lock().unwrap() == [1, 0]);
}
