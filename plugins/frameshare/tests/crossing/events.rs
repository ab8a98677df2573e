//! Tags, stream-start, gaps, custom events, and what becomes of a flush.

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
fn tags_arrive_in_their_place_and_late_readers_get_the_newest_of_each_scope() {
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
    // A late one gets them before its first frame.
    let late = Reader::new(&exporter.path);
    late.next_event(gst::EventType::StreamStart);
    let mut seen = titles(&[late.next_event(gst::EventType::Tag), late.next_event(gst::EventType::Tag)]);
    seen.sort();
    assert_eq!(seen, ["global", "of the second"]);
    exporter.push_value(3);
    assert_eq!(bytes(&late.buffer())[0], 3);
}

#[test]
fn tags_of_a_megabyte_arrive_also_late() {
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
fn the_stream_is_called_as_the_exporter_calls_it_and_what_was_said_of_the_last_one_is_forgotten() {
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
    // Behind the exporter's name stands the element's: ids of two elements differ.
    assert_eq!(starts.next().map(id), Some(("first/source".into(), true)));

    // Now another stream: its start comes with caps and segment, as GStreamer wants it.
    exporter.event(start("second"));
    exporter.push_value(2);
    let (_, _, events) = reader.next_buffer();
    let kinds = events.iter().map(|event| event.type_()).collect::<Vec<_>>();
    assert_eq!(kinds, [gst::EventType::StreamStart, gst::EventType::Caps, gst::EventType::Segment]);
    assert_eq!(id(&events[0]), ("second/source".into(), true));
    // The same again changes nothing.
    let late = Reader::new(&exporter.path);
    exporter.wait_for_readers(2);
    exporter.push_value(3);
    let (_, _, events) = late.next_buffer();
    assert_eq!(titles(&events), Vec::<String>::new());
}

#[test]
fn a_gap_arrives_between_its_frames_with_its_times_and_not_late() {
    let mut exporter = Exporter::new(GRAY);
    let reader = Reader::new(&exporter.path);
    let frame = |pts: u64| {
        let mut buffer = gst::Buffer::from_slice([pts as u8; GRAY_SIZE]);
        buffer.get_mut().unwrap().set_pts(gst::ClockTime::from_seconds(pts));
        buffer
    };
    // So far in the future that no reader's start comes in between.
    exporter.push(frame(100));
    let gap = gst::event::Gap::builder(gst::ClockTime::from_seconds(101))
        .duration(gst::ClockTime::from_mseconds(40))
        .gap_flags(gst::GapFlags::DATA)
        .build();
    exporter.event(gap);
    let first = reader.buffer();
    // Before any other frame comes.
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
fn custom_events_arrive_in_their_place_and_sticky_ones_late_too() {
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
fn an_event_before_caps_waits_for_them() {
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
fn the_end_of_the_stream_comes_after_all_that_was_said() {
    let mut exporter = Exporter::new(GRAY);
    let reader = Reader::new(&exporter.path);
    exporter.push_value(1);
    exporter.event(title("last words", gst::TagScope::Stream));
    exporter.event(gst::event::Eos::new());
    reader.buffer();
    reader.next_event(gst::EventType::Tag);
    reader.next_event(gst::EventType::Eos);
}

/// A flush would make a recorder throw its file away. What arrives is a discontinuity, and nothing of a flush.
#[test]
fn a_flush_arrives_as_a_discontinuity() {
    let mut exporter = Exporter::new(GRAY);
    let reader = Reader::new(&exporter.path);
    exporter.push_value(1);
    exporter.push_value(2);
    // With and without a flush the same buffers come after the same segment.
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
        // The first that GstBaseSrc ever sends is one too.
        let is_seam = buffer.flags().contains(gst::BufferFlags::DISCONT);
        assert_eq!(is_seam, [1, 4].contains(&expected), "frame {expected}");
        let flush = |event: &gst::Event| {
            matches!(event.type_(), gst::EventType::FlushStart | gst::EventType::FlushStop)
        };
        assert!(!events.iter().any(flush), "{events:?}");
    }
}

/// Negative control of the one above: what a flush does to a file that is being written.
#[test]
fn a_flush_that_did_arrive_would_empty_the_file() {
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

/// Events wait downstream where frames do; that must not keep the source from pausing.
#[test]
fn a_pause_does_not_wait_for_events_that_are_stuck_downstream() {
    let mut exporter = Exporter::new(GRAY);
    let reader = gst::parse::launch(&format!(
        "framesharesrc name=source socket-path={} max-held=8 ! queue max-size-buffers=1 ! fakesink sync=false",
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

/// Whatever an exporter sends, the stream goes on.
#[test]
fn events_that_nobody_understands_are_left_out() {
    use frameshare::{Endpoint, Event, Format, Interrupt, exporter};
    init();
    let folder = tempfile::tempdir().unwrap();
    let endpoint = Endpoint::at(folder.path().join("s")).unwrap();
    let exporter = exporter::Exporter::bind(&endpoint, exporter::Config::default(), |_| {}).unwrap();
    let interrupt = Interrupt::new().unwrap();
    exporter.set_format(Format { caps: GRAY.into(), video: None });
    let reader = Reader::new(endpoint.path());
    exporter.wait_for_reader(&interrupt).unwrap();
    for kind in (0..10).chain([1000, 1 << 31, u32::MAX]) {
        for payload in
            [vec![], vec![0; 3], vec![0xff; 300], b"app, x=\0y".to_vec(), b"\x80\x80\x80\x80\x10".to_vec()]
        {
            exporter.send_event(Event { kind, sticky: kind % 2 == 0, payload }).unwrap();
        }
    }
    let slot = exporter.acquire(GRAY_SIZE as u64, exporter::Purpose::Copy).unwrap();
    let frame = exporter::Frame::new(&slot, GRAY_SIZE as u64, frameshare::fence::Written::Cpu);
    exporter.publish(frame, &interrupt).unwrap();
    let (buffer, _, events) = reader.next_buffer();
    assert_eq!(buffer.size(), GRAY_SIZE);
    let custom = |event: &&gst::Event| event.structure().is_some_and(|fields| fields.name() == "app");
    assert_eq!(events.iter().filter(custom).count(), 0);
}
