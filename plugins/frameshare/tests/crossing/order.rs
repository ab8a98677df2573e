// SPDX-License-Identifier: MIT OR Apache-2.0

//! Order of serialized events, and GStreamer elements that depend on it.

use super::*;
use gst::EventType::{Caps, Segment, StreamStart, Tag};

/// Checks the event order of a sink pad like gst-validate, and more: stream-start, caps and
/// segment, each once per stream.
#[derive(Debug, Default)]
pub(super) struct Order {
    /// The serialized sticky events of the current stream, up to its segment.
    seen: Vec<gst::EventType>,
    caps: Option<gst::Caps>,
    segment: Option<gst::Segment>,
    pub(super) violations: Vec<String>,
}

impl Order {
    pub(super) fn note(&mut self, arrival: &Arrival) {
        match arrival {
            Arrival::Buffer(..) if !self.seen.contains(&Segment) => {
                self.violations.push("a buffer without a segment".into());
            }
            Arrival::Buffer(..) => {}
            Arrival::Event(event) => self.note_event(event),
        }
    }

    fn note_event(&mut self, event: &gst::Event) {
        let mut refuse =
            |what: &str| self.violations.push(format!("{what}: {event:?} after {:?}", self.seen));
        match event.view() {
            gst::EventView::StreamStart(_) => {
                if self.seen == [StreamStart] {
                    refuse("a stream without caps");
                }
                *self = Self { violations: std::mem::take(&mut self.violations), ..Self::default() };
            }
            gst::EventView::Caps(caps) => {
                if self.caps.replace(caps.caps_owned()) == Some(caps.caps_owned()) {
                    refuse("duplicate caps");
                }
                if !self.seen.contains(&StreamStart) {
                    refuse("caps without a stream-start");
                }
            }
            gst::EventView::Segment(segment) => {
                if self.segment.replace(segment.segment().clone()).as_ref() == Some(segment.segment()) {
                    refuse("duplicate segment");
                }
                if !self.seen.contains(&StreamStart) {
                    refuse("segment without a stream-start");
                }
            }
            gst::EventView::Eos(_) if self.seen.contains(&StreamStart) => {}
            _ if !event.type_().is_serialized() || self.seen.contains(&Segment) => {}
            _ => refuse("an event before the segment"),
        }
        self.seen.push(event.type_());
    }
}

fn kinds(events: &[gst::Event]) -> Vec<gst::EventType> {
    events.iter().map(|event| event.type_()).filter(|kind| kind.is_serialized()).collect()
}

fn start(id: &str) -> gst::Event {
    gst::event::StreamStart::builder(id).group_id(gst::GroupId::next()).build()
}

fn tag(text: &str) -> gst::Event {
    let mut list = gst::TagList::new();
    list.make_mut().add::<gst::tags::Title>(&text, gst::TagMergeMode::Append);
    gst::event::Tag::new(list)
}

fn stream_id(events: &[gst::Event]) -> String {
    let id = |event: &gst::Event| match event.view() {
        gst::EventView::StreamStart(start) => Some(start.stream_id().to_owned()),
        _ => None,
    };
    events.iter().find_map(id).expect("a stream-start")
}

#[test]
fn stream_opens_in_order_for_early_and_late_reader() {
    let mut exporter = Exporter::new(GRAY);
    exporter.event(tag("a"));
    let early = Reader::new(&exporter.path);
    exporter.push_value(1);
    let (_, caps, events) = early.next_buffer();
    assert_eq!(kinds(&events), [StreamStart, Caps, Segment, Tag]);
    assert_eq!(caps, Some(GRAY.parse().unwrap()));
    let late = Reader::new(&exporter.path);
    exporter.wait_for_readers(2);
    exporter.push_value(2);
    let (_, _, events) = late.next_buffer();
    assert_eq!(kinds(&events), [StreamStart, Caps, Segment, Tag]);
    // Both readers read one stream, each with a stream-start of the exporter's name.
    assert_eq!(kinds(&early.next_buffer().2), []);
}

#[test]
fn reader_before_caps_gets_them_in_order() {
    let mut exporter = Exporter::without_caps("");
    let reader = Reader::new(&exporter.path);
    exporter.wait_for_readers(1);
    exporter.event(start("first"));
    exporter.event(tag("a"));
    exporter.harness.set_src_caps(GRAY.parse().unwrap());
    exporter.event(tag("b"));
    exporter.push_value(1);
    assert_eq!(kinds(&reader.next_buffer().2)[..4], [StreamStart, Caps, Segment, Tag]);
}

#[test]
fn caps_change_sends_caps_alone() {
    let mut exporter = Exporter::new(GRAY);
    let reader = Reader::new(&exporter.path);
    exporter.push_value(1);
    reader.buffer();
    let wide = GRAY.replace("16", "32");
    for caps in [wide.as_str(), GRAY] {
        let caps: gst::Caps = caps.parse().unwrap();
        exporter.event(gst::event::Caps::new(&caps));
        let size = gst_video::VideoInfo::from_caps(&caps).unwrap().size();
        exporter.push(gst::Buffer::from_slice(vec![0; size]));
        let (_, got, events) = reader.next_buffer();
        assert_eq!((kinds(&events), got), (vec![Caps], Some(caps)));
    }
}

const AUDIO: &str =
    "audio/x-raw, format=(string)S16LE, layout=(string)interleaved, rate=(int)48000, channels=(int)1";

/// Pushes a stream's first events as upstream elements do, with `tags` before and after the caps.
fn begin(exporter: &mut Exporter, id: &str, caps: &str, tags: [bool; 2]) {
    exporter.event(start(id));
    if tags[0] {
        exporter.event(tag(id));
    }
    exporter.event(gst::event::Caps::new(&caps.parse().unwrap()));
    exporter.event(gst::event::Segment::new(&gst::FormattedSegment::<gst::ClockTime>::new()));
    if tags[1] {
        exporter.event(tag(id));
    }
}

#[test]
fn stream_change_sends_no_stale_caps() {
    for tags in [[false, false], [true, false], [false, true]] {
        let mut exporter = Exporter::new(AUDIO);
        let reader = Reader::new(&exporter.path);
        exporter.push(gst::Buffer::from_slice([0; 96]));
        reader.buffer();
        let mut expected = vec![StreamStart, Caps, Segment];
        if tags != [false, false] {
            expected.push(Tag);
        }
        begin(&mut exporter, "video", GRAY, tags);
        exporter.push_value(1);
        let (_, got, events) = reader.next_buffer();
        assert_eq!((kinds(&events), got), (expected.clone(), Some(GRAY.parse().unwrap())));
        // Also for equal caps: a new stream has its own caps and segment.
        begin(&mut exporter, "other video", GRAY, tags);
        exporter.push_value(2);
        let (_, got, events) = reader.next_buffer();
        assert_eq!((kinds(&events), got), (expected, Some(GRAY.parse().unwrap())));
    }
}

#[test]
fn gap_of_new_stream_follows_its_segment() {
    let mut exporter = Exporter::new(GRAY);
    let reader = Reader::new(&exporter.path);
    exporter.push_value(1);
    reader.buffer();
    begin(&mut exporter, "second", GRAY, [true, false]);
    let far = gst::ClockTime::from_seconds(1000);
    exporter.event(gst::event::Gap::builder(far).duration(gst::ClockTime::SECOND).build());
    reader.next_event(gst::EventType::Gap);
}

#[test]
fn reconnected_reader_gets_the_new_stream_in_order() {
    init();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let reader = Reader::watch(launch(&format!(
        "framesharesrc socket-path={} policy=lossless on-disconnect=wait connection-timeout=20000000000 ! \
         fakesink name=end sync=false enable-last-sample=false",
        path.display()
    )));
    // Successors: with the same caps, with other caps, and with the same stream.
    for (run, (id, caps, size)) in [
        ("a", GRAY, GRAY_SIZE),
        ("b", GRAY, GRAY_SIZE),
        ("c", AUDIO, 96),
        ("c", AUDIO, 96),
        ("c", GRAY, GRAY_SIZE),
    ]
    .into_iter()
    .enumerate()
    {
        let mut exporter = Exporter::at(&path, "");
        begin(&mut exporter, id, caps, [false, true]);
        exporter.push(gst::Buffer::from_slice(vec![1; size]));
        let (_, got, events) = reader.next_buffer();
        let expected: &[_] = match run {
            3 => &[Tag],
            4 => &[Caps, Tag],
            _ => &[StreamStart, Caps, Segment, Tag],
        };
        assert_eq!((kinds(&events).as_slice(), got), (expected, Some(caps.parse().unwrap())), "run {run}");
    }
}

#[test]
fn restarted_source_opens_the_stream_again() {
    let mut exporter = Exporter::new(GRAY);
    let reader = Reader::new(&exporter.path);
    let mut ids = Vec::new();
    for value in 1..=3 {
        exporter.push_value(value);
        let (_, _, events) = reader.next_buffer();
        assert_eq!(kinds(&events), [StreamStart, Caps, Segment]);
        ids.push(stream_id(&events));
        reader.pipeline.set_state(gst::State::Ready).unwrap();
        while reader.arrivals.try_recv().is_ok() {}
        exporter.wait_for_readers(0);
        reader.pipeline.set_state(gst::State::Playing).unwrap();
    }
    assert!(ids.iter().all(|id| *id == ids[0]), "the stream id changed: {ids:?}");
}

#[test]
fn two_sources_of_one_stream_have_two_stream_ids() {
    let mut exporter = Exporter::new(GRAY);
    let source = format!("framesharesrc socket-path={} policy=lossless", exporter.path.display());
    let end = "fakesink sync=false enable-last-sample=false";
    let pipeline = launch(&format!(
        "{source} name=one ! {end} name=end {source} name=two ! {end} name=other \
         bin.( {source} name=inner ! {end} name=third )"
    ));
    let starts = Arc::new(Mutex::new(Vec::new()));
    for name in ["end", "other", "third"] {
        let starts = starts.clone();
        let pad = pipeline.by_name(name).unwrap().static_pad("sink").unwrap();
        pad.add_probe(gst::PadProbeType::EVENT_DOWNSTREAM, move |_, info| {
            if let Some(gst::EventView::StreamStart(start)) = info.event().map(|event| event.view()) {
                starts.lock().unwrap().push(start.stream_id().to_owned());
            }
            gst::PadProbeReturn::Ok
        });
    }
    let reader = Reader::watch(pipeline);
    exporter.wait_for_readers(3);
    exporter.push_value(1);
    reader.buffer();
    wait_until("three stream-starts", || starts.lock().unwrap().len() == 3);
    let mut ids = starts.lock().unwrap().clone();
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 3, "{ids:?}");
}

#[test]
fn relinked_peer_gets_the_stream_from_its_start() {
    let mut exporter = Exporter::new(GRAY);
    let reader = Reader::new(&exporter.path);
    exporter.push_value(1);
    reader.buffer();
    let source = reader.pipeline.by_name("source").unwrap().static_pad("src").unwrap();
    let sink = gst::ElementFactory::make("fakesink").property("sync", false).property("async", false).build();
    let sink = sink.unwrap();
    reader.pipeline.add(&sink).unwrap();
    sink.sync_state_with_parent().unwrap();
    let pad = sink.static_pad("sink").unwrap();
    let order = Arc::<Mutex<Order>>::default();
    let (sender, arrivals) = mpsc::channel();
    let (watched, sender) = (order.clone(), Mutex::new(sender));
    pad.add_probe(gst::PadProbeType::BUFFER | gst::PadProbeType::EVENT_DOWNSTREAM, move |_, info| {
        let arrival = match &info.data {
            Some(gst::PadProbeData::Buffer(buffer)) => Arrival::Buffer(buffer.clone(), None),
            Some(gst::PadProbeData::Event(event)) => Arrival::Event(event.clone()),
            _ => return gst::PadProbeReturn::Ok,
        };
        watched.lock().unwrap().note(&arrival);
        let _ = sender.lock().unwrap().send(arrival);
        gst::PadProbeReturn::Ok
    });
    source.unlink(&source.peer().unwrap()).unwrap();
    source.link(&pad).unwrap();
    exporter.push_value(2);
    let mut events = Vec::new();
    while let Arrival::Event(event) = arrivals.recv_timeout(PATIENCE).unwrap() {
        events.push(event);
    }
    assert_eq!(kinds(&events), [StreamStart, Caps, Segment]);
    assert_eq!(order.lock().unwrap().violations, Vec::<String>::new());
}
