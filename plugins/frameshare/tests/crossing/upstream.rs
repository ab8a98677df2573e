// SPDX-License-Identifier: MIT OR Apache-2.0

//! Events from downstream of a source to upstream of its sink.

use super::*;
use gst_video::{NavigationEvent, UpstreamForceKeyUnitEvent};

/// Returns the events that leave the sink upstream.
fn leaving(exporter: &Exporter) -> mpsc::Receiver<gst::Event> {
    let pad = exporter.harness.element().unwrap().static_pad("sink").unwrap();
    let (sender, events) = mpsc::channel();
    let sender = Mutex::new(sender);
    pad.add_probe(gst::PadProbeType::EVENT_UPSTREAM, move |_, info| {
        let _ = sender.lock().unwrap().send(info.event().unwrap().clone());
        gst::PadProbeReturn::Ok
    });
    events
}

fn of_kind(events: &mpsc::Receiver<gst::Event>, kind: gst::EventType) -> gst::Event {
    loop {
        let event = events.recv_timeout(PATIENCE).expect("an event");
        if event.type_() == kind {
            return event;
        }
    }
}

fn reader(path: &Path, properties: &str) -> Reader {
    Reader::watch(launch(&format!(
        "framesharesrc name=source socket-path={} policy=lossless {properties} ! \
         fakesink name=end sync=false qos=false enable-last-sample=false",
        path.display()
    )))
}

/// Sends an event up from the sink of a reader.
fn send(reader: &Reader, event: impl Into<gst::Event>) {
    reader.pipeline.by_name("end").unwrap().static_pad("sink").unwrap().push_event(event.into());
}

fn sent(reader: &Reader) -> u64 {
    let stats = reader.pipeline.by_name("source").unwrap().property::<gst::Structure>("stats");
    stats.get("upstream-events").unwrap()
}

/// Waits until events that are on their way have arrived.
fn settle() {
    std::thread::sleep(Duration::from_millis(300));
}

#[test]
fn navigation_reaches_upstream_of_the_sink() {
    let mut exporter = Exporter::with(GRAY, "upstream-events=navigation");
    let events = leaving(&exporter);
    let reader = reader(&exporter.path, "upstream-events=all");
    exporter.push_value(1);
    reader.buffer();
    let (press, motion) =
        (NavigationEvent::new_key_press("Left").build(), NavigationEvent::new_mouse_move(3.0, 4.5).build());
    for event in [press, motion] {
        send(&reader, event.clone());
        let arrived = of_kind(&events, gst::EventType::Navigation);
        assert_eq!(NavigationEvent::parse(&arrived).unwrap(), NavigationEvent::parse(&event).unwrap());
    }
    // Reports are not accepted.
    send(&reader, gst::event::Qos::new(gst::QOSType::Underflow, 2.0, 1_000_000, gst::ClockTime::ZERO));
    settle();
    assert!(events.try_iter().all(|event| event.type_() != gst::EventType::Qos));
    assert_eq!(sent(&reader), 2);
    let stats = exporter.harness.element().unwrap().property::<gst::Structure>("stats");
    let readers = stats.get::<gst::Array>("readers").unwrap();
    let of_reader = readers[0].get::<gst::Structure>().unwrap();
    assert_eq!(of_reader.get::<u64>("upstream-events"), Ok(2));
}

/// Both properties are needed, and neither is set by default. A request for a key unit is no such
/// event.
#[test]
fn no_event_leaves_the_sink_by_default() {
    for (accepts, sends) in [("", ""), ("upstream-events=all", ""), ("", "upstream-events=all")] {
        let mut exporter = Exporter::with(GRAY, accepts);
        let events = leaving(&exporter);
        let reader = reader(&exporter.path, sends);
        exporter.push_value(1);
        reader.buffer();
        send(&reader, NavigationEvent::new_key_press("Left").build());
        send(&reader, gst::event::Qos::new(gst::QOSType::Underflow, 2.0, 1_000_000, gst::ClockTime::SECOND));
        send(&reader, UpstreamForceKeyUnitEvent::builder().build());
        settle();
        let kinds = events.try_iter().map(|event| event.type_()).collect::<Vec<_>>();
        let is_one = |kind: &gst::EventType| matches!(kind, gst::EventType::Navigation | gst::EventType::Qos);
        assert!(!kinds.iter().any(is_one), "{accepts:?} {sends:?}: {kinds:?}");
        assert_eq!(sent(&reader), 0);
        // The same connection sends them once both properties agree.
        if accepts.is_empty() {
            continue;
        }
        reader.pipeline.by_name("source").unwrap().set_property_from_str("upstream-events", "navigation");
        send(&reader, NavigationEvent::new_key_press("Left").build());
        of_kind(&events, gst::EventType::Navigation);
    }
}

/// A report names a time of the reader's pipeline: it leaves the sink with the exporter's.
#[test]
fn report_leaves_the_sink_with_its_own_running_time() {
    let mut exporter = Exporter::with(GRAY, "upstream-events=qos");
    let events = leaving(&exporter);
    let reader = reader(&exporter.path, "upstream-events=qos");
    let mut buffer = gst::Buffer::from_slice([1; GRAY_SIZE]);
    let pts = gst::ClockTime::from_seconds(5);
    buffer.get_mut().unwrap().set_pts(pts);
    exporter.push(buffer);
    let at_reader = reader.buffer().pts().unwrap();
    assert_ne!(at_reader, pts, "both pipelines have the same running time: it is no test");
    send(&reader, gst::event::Qos::new(gst::QOSType::Underflow, 2.5, 70_000_000, at_reader));
    let event = of_kind(&events, gst::EventType::Qos);
    let gst::EventView::Qos(qos) = event.view() else { unreachable!() };
    let (kind, proportion, jitter, time) = qos.get();
    assert_eq!((kind, proportion, jitter), (gst::QOSType::Underflow, 2.5, 70_000_000));
    let time = time.unwrap();
    assert!(time.absdiff(pts) < gst::ClockTime::from_mseconds(2), "{time} for {pts}");
}

/// Frames are skipped for all readers: only if none of them would miss one.
#[test]
fn one_late_reader_does_not_change_the_stream_for_others() {
    let mut exporter = Exporter::with(GRAY, "upstream-events=qos");
    let events = leaving(&exporter);
    let late = reader(&exporter.path, "upstream-events=qos");
    let other = reader(&exporter.path, "upstream-events=qos");
    exporter.wait_for_readers(2);
    exporter.push_value(1);
    let time = late.buffer().pts().unwrap();
    other.buffer();
    let report = |ms: i64| gst::event::Qos::new(gst::QOSType::Underflow, 2.0, ms * 1_000_000, time);
    let jitters = |events: &mpsc::Receiver<gst::Event>| {
        let jitter = |event: gst::Event| match event.view() {
            gst::EventView::Qos(qos) => Some(qos.get().2 / 1_000_000),
            _ => None,
        };
        events.try_iter().filter_map(jitter).collect::<Vec<_>>()
    };
    send(&late, report(90));
    settle();
    assert_eq!(jitters(&events), [0; 0], "the other reader has reported nothing");
    // Negative control: both are late. The report of the one that is least late counts.
    let until = |reports: [(&Reader, i64); 2], wanted: i64| {
        let begin = Instant::now();
        loop {
            reports.iter().for_each(|(reader, ms)| send(reader, report(*ms)));
            // No further report is sent or passed on before.
            std::thread::sleep(Duration::from_millis(120));
            let jitters = jitters(&events);
            assert!(!jitters.contains(&90), "the report of the later reader: {jitters:?}");
            if jitters.contains(&wanted) {
                return;
            }
            assert!(begin.elapsed() < PATIENCE, "no report of {wanted} ms");
        }
    };
    until([(&late, 90), (&other, 40)], 40);
    until([(&late, 90), (&other, 0)], 0);
}

/// GStreamer refuses to make an event whose time and lateness are before 0 together.
#[test]
fn early_report_at_the_start_of_a_stream_is_cut_off_at_0() {
    use frameshare::{Interrupt, reader, upstream};
    let mut exporter = Exporter::with(GRAY, "upstream-events=qos");
    let events = leaving(&exporter);
    let endpoint = frameshare::Endpoint::at(&exporter.path).unwrap();
    let config = reader::Config::default();
    let reader = reader::Reader::connect(&endpoint, config, &Interrupt::new().unwrap()).unwrap();
    exporter.push_value(1);
    // The harness uses the system clock, which reads CLOCK_MONOTONIC.
    let base = exporter.harness.element().unwrap().base_time().unwrap();
    let time = base.nseconds() + 1_000_000;
    let early = upstream::Qos { proportion: 0.1, jitter: -60_000_000_000, time };
    reader.upstream().send(&upstream::UpstreamEvent::Qos(early)).unwrap();
    let event = of_kind(&events, gst::EventType::Qos);
    let gst::EventView::Qos(qos) = event.view() else { unreachable!() };
    let (kind, _, jitter, time) = qos.get();
    assert_eq!(kind, gst::QOSType::Overflow);
    assert_eq!(jitter, -(time.unwrap().nseconds() as i64));
}

/// Times of a file-like source are unrelated to the exporter's.
#[test]
fn source_that_is_not_live_sends_no_reports() {
    let mut exporter = Exporter::with(GRAY, "upstream-events=qos");
    let events = leaving(&exporter);
    let reader = reader(&exporter.path, "is-live=false upstream-events=qos");
    exporter.push_value(1);
    reader.buffer();
    send(&reader, gst::event::Qos::new(gst::QOSType::Underflow, 2.0, 1_000_000, gst::ClockTime::SECOND));
    settle();
    assert!(events.try_iter().all(|event| event.type_() != gst::EventType::Qos));
    assert_eq!(sent(&reader), 0);
}
