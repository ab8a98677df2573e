// SPDX-License-Identifier: MIT OR Apache-2.0

//! Behavior that GStreamer's own checks demand of comparable elements: `unixfd`, `shm`, `inter`
//! and the generic check `states`. Other modules have the rest of it: times and segments `time`,
//! metas of any size `metas`, upstream events `gop`.

use super::*;
use gst::State::{self, Null, Paused, Playing, Ready};

/// The generic check's ways through the states.
const WAYS: [&[State]; 3] = [
    &[Ready, Paused, Playing, Paused, Ready, Null, Paused, Ready, Playing, Paused, Null],
    &[Ready, Paused, Ready, Paused, Playing, Paused, Ready, Null],
    &[Ready, Paused, Playing, Paused, Playing, Paused, Ready, Paused, Playing, Paused, Ready, Null],
];

#[test]
fn elements_change_states_in_any_order() {
    init();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    for is_shared in [false, true] {
        let exporter = is_shared.then(|| Exporter::at(&path, "wait-for-connection=false"));
        for (name, own) in [("framesharesrc", "s"), ("framesharesink", "t")] {
            for way in WAYS {
                let element = gst::ElementFactory::make(name)
                    .property("socket-path", folder.path().join(own).to_str().unwrap())
                    .build()
                    .unwrap();
                if name == "framesharesrc" {
                    element.set_property("connection-timeout", -1_i64);
                }
                let bus = gst::Bus::new();
                element.set_bus(Some(&bus));
                for state in way {
                    assert!(element.set_state(*state).is_ok(), "{name}, {way:?}: {state:?}");
                }
                element.set_state(Null).unwrap();
                let error = bus.pop_filtered(&[gst::MessageType::Error, gst::MessageType::Warning]);
                assert!(error.is_none(), "{name}, {way:?}: {error:?}");
                element.set_bus(None);
            }
        }
        drop(exporter);
    }
}

/// A pipeline that shares unusual buffers: no raw video, of any size.
fn bytes_pipeline(path: &Path, source: &str, properties: &str) -> gst::Pipeline {
    launch(&format!(
        "{source} ! framesharesink name=sink sync=false any-caps=true socket-path={} {properties}",
        path.display()
    ))
}

fn next_message(pipeline: &gst::Pipeline, kinds: &[gst::MessageType]) -> Option<gst::Message> {
    pipeline.bus().unwrap().timed_pop_filtered(gst::ClockTime::try_from(PATIENCE).ok(), kinds)
}

#[test]
fn stream_that_ends_and_stops_posts_no_error() {
    let folder = tempfile::tempdir().unwrap();
    let pipeline =
        bytes_pipeline(&folder.path().join("s"), "fakesrc num-buffers=5 sizetype=2", "drain-timeout=0");
    pipeline.set_state(Playing).unwrap();
    let message = next_message(&pipeline, &[gst::MessageType::Eos, gst::MessageType::Error]).unwrap();
    assert_eq!(message.type_(), gst::MessageType::Eos, "{message:?}");
    pipeline.set_state(Null).unwrap();
    assert!(pipeline.bus().unwrap().pop_filtered(&[gst::MessageType::Error]).is_none());
}

/// The exporter stops under a reader that runs, and the reader under an exporter.
#[test]
fn either_side_stops_first() {
    for exporter_first in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let exporter =
            bytes_pipeline(&path, "fakesrc sizetype=2 sizemax=200 is-live=true", "wait-for-connection=true");
        exporter.set_state(Playing).unwrap();
        let reader = Reader::new(&path);
        (0..5).for_each(|_| assert_eq!(reader.buffer().size(), 200));
        match exporter_first {
            true => exporter.set_state(Null).unwrap(),
            false => reader.pipeline.set_state(Null).unwrap(),
        };
        drop(reader);
        let message = exporter.bus().unwrap().pop_filtered(&[gst::MessageType::Error]);
        assert!(message.is_none(), "{message:?}");
        exporter.set_state(Null).unwrap();
    }
}

/// A stream that is full waits for its reader, and goes on with it.
#[test]
fn full_stream_resumes_with_its_reader() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let exporter = bytes_pipeline(
        &path,
        "fakesrc sizetype=2 sizemax=200",
        "wait-for-connection=true max-slots=8 slow-readers=wait reader-timeout=60000000000",
    );
    exporter.set_state(Playing).unwrap();
    let reader = Reader::new(&path);
    let gate = Arc::new(Mutex::new(()));
    let closed = gate.clone();
    let end = reader.pipeline.by_name("end").unwrap().static_pad("sink").unwrap();
    end.add_probe(gst::PadProbeType::BUFFER, move |_, _| {
        drop(closed.lock().unwrap());
        gst::PadProbeReturn::Ok
    });
    let published = || {
        let stats = exporter.by_name("sink").unwrap().property::<gst::Structure>("stats");
        stats.get::<u64>("published").unwrap()
    };
    reader.buffer();
    for _ in 0..3 {
        let shut = gate.lock().unwrap();
        let mut before = u64::MAX;
        wait_until("the stream waits", || {
            std::thread::sleep(Duration::from_millis(50));
            std::mem::replace(&mut before, published()) == published()
        });
        drop(shut);
        wait_until("the stream goes on", || published() > before + 100);
    }
    exporter.set_state(Null).unwrap();
}

/// `inter`: one element after the other is given another stream.
#[test]
fn elements_change_streams_in_ready() {
    let folder = tempfile::tempdir().unwrap();
    let [first, second] = ["a", "b"].map(|name| folder.path().join(name));
    let exporter = launch(&format!(
        "videotestsrc is-live=true ! {GRAY} ! framesharesink name=sink socket-path={}",
        first.display()
    ));
    let reader = launch(&format!(
        "framesharesrc name=source socket-path={} connection-timeout=20000000000 ! fakesink name=end sync=false",
        first.display()
    ));
    let received = || {
        let source = reader.by_name("source").unwrap();
        source.property::<gst::Structure>("stats").get::<u64>("received").unwrap()
    };
    exporter.set_state(Playing).unwrap();
    reader.set_state(Playing).unwrap();
    wait_until("frames of the first stream", || received() > 2);
    for (pipeline, name) in [(&reader, "source"), (&exporter, "sink")] {
        pipeline.set_state(Ready).unwrap();
        let element = pipeline.by_name(name).unwrap();
        element.set_property("socket-path", second.to_str().unwrap());
        pipeline.set_state(Playing).unwrap();
    }
    wait_until("frames of the second stream", || received() > 2);
    assert!(!first.exists() && second.exists());
    for pipeline in [reader, exporter] {
        pipeline.set_state(Null).unwrap();
    }
}

/// `unixfd`: two readers come one after the other, and each starts at once.
#[test]
fn second_reader_starts_where_the_stream_is() {
    let mut exporter = Exporter::new(GRAY);
    let first = Reader::new(&exporter.path);
    exporter.wait_for_readers(1);
    (0..3).for_each(|value| exporter.push_value(value));
    let second = Reader::new(&exporter.path);
    exporter.wait_for_readers(2);
    (3..6).for_each(|value| exporter.push_value(value));
    let values =
        |reader: &Reader, count| -> Vec<u8> { (0..count).map(|_| bytes(&reader.buffer())[0]).collect() };
    assert_eq!(values(&first, 6), [0, 1, 2, 3, 4, 5]);
    assert_eq!(values(&second, 3), [3, 4, 5]);
}
