// SPDX-License-Identifier: MIT OR Apache-2.0

//! In-band events: tags, stream-start, gaps and custom events; handling of flushes.

use super::*;

fn title(text: &str, scope: gst::TagScope) -> gst::Event {
    let mut list = gst::TagList::new();
    let content = list.make_mut();
    content.set_scope(scope);
    content.add::<gst::tags::Title>(&text, gst::TagMergeMode::Append);
    gst::event::Tag::new(list)
}

fn titles(events: &[gst::Event]) -> Vec<String> {
    let title = |event: &gst::Event| match event.view() {
        gst::EventView::Tag(event) => {
            event.tag().get::<gst::tags::Title>().map(|title| title.get().to_owned())
        }
        _ => None,
    };
    events.iter().filter_map(title).collect()
}

#[test]
fn tags_are_in_order_and_late_readers_get_newest_per_scope() {
    let mut exporter = Exporter::new(GRAY);
    exporter.event(title("of the first", gst::TagScope::Stream));
    let early = Reader::new(&exporter.path);
    exporter.push_value(1);
    exporter.event(title("global", gst::TagScope::Global));
    exporter.event(title("of the second", gst::TagScope::Stream));
    exporter.push_value(2);
    let (buffer, _, events) = early.next_buffer();
    assert_eq!((bytes(&buffer)[0], titles(&events)), (1, vec!["of the first".into()]));
    let (buffer, _, events) = early.next_buffer();
    assert_eq!((bytes(&buffer)[0], titles(&events)), (2, vec!["global".into(), "of the second".into()]));
    // A late reader gets them before its first frame.
    let late = Reader::new(&exporter.path);
    late.next_event(gst::EventType::StreamStart);
    let mut seen = titles(&[late.next_event(gst::EventType::Tag), late.next_event(gst::EventType::Tag)]);
    seen.sort();
    assert_eq!(seen, ["global", "of the second"]);
    exporter.push_value(3);
    assert_eq!(bytes(&late.buffer())[0], 3);
}

#[test]
fn one_megabyte_tags_reach_early_and_late_readers() {
    let mut exporter = Exporter::new(GRAY);
    let data = noise(5, 1 << 20);
    let sample = gst::Sample::builder()
        .buffer(&gst::Buffer::from_slice(data.clone()))
        .caps(&gst::Caps::new_empty_simple("image/png"))
        .build();
    let mut list = gst::TagList::new();
    list.make_mut().add::<gst::tags::Image>(&sample, gst::TagMergeMode::Append);
    let check = |reader: &Reader| {
        let event = reader.next_event(gst::EventType::Tag);
        let gst::EventView::Tag(event) = event.view() else { unreachable!() };
        let image = event.tag().get::<gst::tags::Image>().unwrap();
        assert!(bytes(image.get().buffer().unwrap()) == data);
        assert_eq!(image.get().caps().unwrap().to_string(), "image/png");
    };
    let early = Reader::new(&exporter.path);
    exporter.push_value(1);
    exporter.event(gst::event::Tag::new(list));
    check(&early);
    exporter.push_value(2);
    check(&Reader::new(&exporter.path));
}

#[test]
fn new_stream_start_sets_stream_id_and_drops_old_tags() {
    let mut exporter = Exporter::new(GRAY);
    let start = |id: &str| gst::event::StreamStart::builder(id).group_id(gst::GroupId::next()).build();
    let id = |event: &gst::Event| match event.view() {
        gst::EventView::StreamStart(start) => (start.stream_id().to_owned(), start.group_id().is_some()),
        _ => unreachable!(),
    };
    exporter.event(start("first"));
    exporter.event(title("of the first", gst::TagScope::Stream));
    let reader = Reader::new(&exporter.path);
    exporter.push_value(1);
    let (_, _, events) = reader.next_buffer();
    let mut starts = events.iter().rev().filter(|event| event.type_() == gst::EventType::StreamStart);
    // The element's name follows the exporter's: the ids of two elements differ.
    assert_eq!(starts.next().map(id), Some(("first/source".into(), true)));

    // Another stream: its stream-start comes with caps and segment, as GStreamer requires.
    exporter.event(start("second"));
    exporter.push_value(2);
    let (_, _, events) = reader.next_buffer();
    let kinds = events.iter().map(|event| event.type_()).collect::<Vec<_>>();
    assert_eq!(kinds, [gst::EventType::StreamStart, gst::EventType::Caps, gst::EventType::Segment]);
    assert_eq!(id(&events[0]), ("second/source".into(), true));
    // The same stream-start again changes nothing.
    let late = Reader::new(&exporter.path);
    exporter.wait_for_readers(2);
    exporter.push_value(3);
    let (_, _, events) = late.next_buffer();
    assert_eq!(titles(&events), Vec::<String>::new());
}

#[test]
fn gap_is_in_order_with_times_and_not_sent_to_late_reader() {
    let mut exporter = Exporter::new(GRAY);
    let reader = Reader::new(&exporter.path);
    let frame = |pts: u64| {
        let mut buffer = gst::Buffer::from_slice([pts as u8; GRAY_SIZE]);
        buffer.get_mut().unwrap().set_pts(gst::ClockTime::from_seconds(pts));
        buffer
    };
    // Far in the future, so that the start of no reader falls in between.
    exporter.push(frame(100));
    let gap = gst::event::Gap::builder(gst::ClockTime::from_seconds(101))
        .duration(gst::ClockTime::from_mseconds(40))
        .gap_flags(gst::GapFlags::DATA)
        .build();
    exporter.event(gap);
    let first = reader.buffer();
    // The gap arrives before any other frame.
    let event = reader.next_event(gst::EventType::Gap);
    let gst::EventView::Gap(gap) = event.view() else { unreachable!() };
    let since = gap.timestamp() - first.pts().unwrap();
    assert!(since.absdiff(gst::ClockTime::SECOND) < gst::ClockTime::from_mseconds(20), "{since}");
    assert_eq!(gap.duration(), Some(gst::ClockTime::from_mseconds(40)));
    assert_eq!(gap.gap_flags(), gst::GapFlags::DATA);
    exporter.push(frame(102));
    let late = Reader::new(&exporter.path);
    exporter.wait_for_readers(2);
    exporter.push(frame(103));
    let (_, _, events) = late.next_buffer();
    assert!(events.iter().all(|event| event.type_() != gst::EventType::Gap));
}

#[test]
fn custom_events_are_in_order_and_sticky_ones_persist() {
    let mut exporter = Exporter::new(GRAY);
    let fields = |name: &str, n: i32| gst::Structure::builder(name).field("n", n).build();
    let reader = Reader::new(&exporter.path);
    exporter.push_value(1);
    exporter.event(gst::event::CustomDownstream::new(fields("passing", 1)));
    exporter.event(gst::event::CustomDownstreamSticky::new(fields("one", 1)));
    exporter.event(gst::event::CustomDownstreamSticky::new(fields("one", 2)));
    exporter.event(gst::event::CustomDownstreamSticky::new(fields("two", 3)));
    exporter.push_value(2);
    let names = |events: &[gst::Event]| {
        let named = |event: &gst::Event| {
            let fields = event.structure()?;
            Some((fields.name().to_string(), fields.get::<i32>("n").ok()?))
        };
        let mut names = events.iter().filter_map(named).collect::<Vec<_>>();
        names.sort();
        names
    };
    let of = |name: &str, n| (name.to_owned(), n);
    reader.buffer();
    let (_, _, events) = reader.next_buffer();
    assert_eq!(names(&events), [of("one", 1), of("one", 2), of("passing", 1), of("two", 3)]);
    let late = Reader::new(&exporter.path);
    exporter.wait_for_readers(2);
    exporter.push_value(3);
    let (_, _, events) = late.next_buffer();
    assert_eq!(names(&events), [of("one", 2), of("two", 3)]);
}

#[test]
fn event_before_caps_is_held_until_caps() {
    let mut exporter = Exporter::new(GRAY);
    let reader = Reader::new(&exporter.path);
    exporter.event(title("first", gst::TagScope::Stream));
    exporter.push_value(1);
    let (_, _, events) = reader.next_buffer();
    let kinds = events.iter().map(|event| event.type_()).collect::<Vec<_>>();
    let place = |kind| kinds.iter().position(|of| *of == kind).unwrap();
    assert!(place(gst::EventType::Caps) < place(gst::EventType::Segment), "{kinds:?}");
    assert!(place(gst::EventType::Segment) < place(gst::EventType::Tag), "{kinds:?}");
}

#[test]
fn eos_follows_all_earlier_events() {
    let mut exporter = Exporter::new(GRAY);
    let reader = Reader::new(&exporter.path);
    exporter.push_value(1);
    exporter.event(title("last tag", gst::TagScope::Stream));
    exporter.event(gst::event::Eos::new());
    reader.buffer();
    reader.next_event(gst::EventType::Tag);
    reader.next_event(gst::EventType::Eos);
}

/// A flush would make a recorder truncate its file. It arrives as a discontinuity, without flush
/// events.
#[test]
fn flush_arrives_as_discontinuity() {
    let mut exporter = Exporter::new(GRAY);
    let reader = Reader::new(&exporter.path);
    exporter.push_value(1);
    exporter.push_value(2);
    // Both with and without a flush, the same buffers follow the same segment.
    let segment = gst::event::Segment::new(&gst::FormattedSegment::<gst::ClockTime>::new());
    exporter.event(segment.clone());
    exporter.push_value(3);
    exporter.event(gst::event::FlushStart::new());
    exporter.event(gst::event::FlushStop::new(true));
    exporter.event(segment);
    exporter.push_value(4);
    exporter.push_value(5);
    for expected in 1..=5 {
        let (buffer, _, events) = reader.next_buffer();
        assert_eq!(bytes(&buffer)[0], expected);
        // The first buffer of GstBaseSrc is always marked DISCONT.
        let is_discont = buffer.flags().contains(gst::BufferFlags::DISCONT);
        assert_eq!(is_discont, [1, 4].contains(&expected), "frame {expected}");
        let flush = |event: &gst::Event| {
            matches!(event.type_(), gst::EventType::FlushStart | gst::EventType::FlushStop)
        };
        assert!(!events.iter().any(flush), "{events:?}");
    }
}

/// Negative control of the test above: effect of a flush on a file that is being written.
#[test]
fn forwarded_flush_would_truncate_the_file() {
    init();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    let file = gst::ElementFactory::make("filesink")
        .property("location", path.to_str().unwrap())
        .property_from_str("buffer-mode", "unbuffered")
        .build()
        .unwrap();
    let mut harness = gst_check::Harness::with_element(&file, Some("sink"), None);
    harness.set_src_caps(GRAY.parse().unwrap());
    harness.play();
    harness.push(gst::Buffer::from_slice([1; GRAY_SIZE])).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().len(), GRAY_SIZE as u64);
    harness.push_event(gst::event::FlushStart::new());
    harness.push_event(gst::event::FlushStop::new(true));
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 0);
}

/// Downstream blocks events as it blocks frames; that must not keep the source from pausing.
#[test]
fn pause_does_not_wait_for_events_blocked_downstream() {
    let mut exporter = Exporter::new(GRAY);
    let reader = gst::parse::launch(&format!(
        "framesharesrc name=source socket-path={} max-held=8 ! queue max-size-buffers=1 ! fakesink \
         sync=false",
        exporter.path.display()
    ));
    let reader = reader.unwrap().downcast::<gst::Pipeline>().unwrap();
    let received = || {
        reader.by_name("source").unwrap().property::<gst::Structure>("stats").get::<u64>("received").unwrap()
    };
    reader.set_state(gst::State::Playing).unwrap();
    for round in 0..20 {
        let before = received();
        while received() == before {
            exporter.push_value(round);
        }
        reader.set_state(gst::State::Paused).unwrap();
        for index in 0..10 {
            let fields = gst::Structure::builder("app").field("n", index).build();
            exporter.event(gst::event::CustomDownstream::new(fields));
            exporter.push_value(index);
        }
        reader.set_state(gst::State::Playing).unwrap();
        std::thread::sleep(Duration::from_millis(2));
    }
    reader.set_state(gst::State::Null).unwrap();
}

/// The stream continues after any event of an exporter.
#[test]
fn unknown_and_malformed_events_are_dropped() {
    use frameshare::{Endpoint, Event, Format, Wait, exporter};
    init();
    let folder = tempfile::tempdir().unwrap();
    let endpoint = Endpoint::at(folder.path().join("s")).unwrap();
    let exporter = exporter::Exporter::bind(&endpoint, exporter::Config::default(), |_| {}).unwrap();
    exporter.set_format(Format { caps: GRAY.into(), video: None });
    let reader = Reader::new(endpoint.path());
    exporter.wait_for_reader(Wait::Forever).unwrap();
    for kind in (0..10).chain([1000, 1 << 31, u32::MAX]) {
        for payload in
            [vec![], vec![0; 3], vec![0xff; 300], b"app, x=\0y".to_vec(), b"\x80\x80\x80\x80\x10".to_vec()]
        {
            exporter.send_event(Event { kind, sticky: kind % 2 == 0, payload }).unwrap();
        }
    }
    let slot = exporter.acquire(GRAY_SIZE as u64, exporter::Purpose::Copy, Wait::No).unwrap();
    let frame = exporter::Frame::new(&slot, GRAY_SIZE as u64, frameshare::fence::Written::Cpu);
    exporter.publish(frame, Wait::Forever).unwrap();
    let (buffer, _, events) = reader.next_buffer();
    assert_eq!(buffer.size(), GRAY_SIZE);
    let custom = |event: &&gst::Event| event.structure().is_some_and(|fields| fields.name() == "app");
    assert_eq!(events.iter().filter(custom).count(), 0);
}
