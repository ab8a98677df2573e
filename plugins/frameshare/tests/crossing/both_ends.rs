// SPDX-License-Identifier: MIT OR Apache-2.0

//! Both ends of a stream in one pipeline.

use super::*;

fn both_ends(read: &str) -> (gst::Pipeline, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s").display().to_string();
    // The source is in a bin of its own.
    let pipeline = launch(&format!(
        "videotestsrc num-buffers=20 ! {SMALL} ! framesharesink name=sink socket-path={path} wait-for-connection=true \
         sync=false ( framesharesrc socket-path={} policy=lossless ! fakesink name=end sync=false )",
        read.replace("PATH", &path)
    ));
    (pipeline, folder)
}

const SMALL: &str = "video/x-raw,format=GRAY8,width=16,height=8,framerate=100/1";

/// Without the sink's own decision the pipeline waits forever: the sink behind the source prerolls
/// with the first frame, which is published in PLAYING.
#[test]
fn pipeline_with_both_ends_plays_to_the_end() {
    for _ in 0..5 {
        let (pipeline, _folder) = both_ends("PATH");
        let sink = pipeline.by_name("sink").unwrap();
        pipeline.set_state(gst::State::Playing).unwrap();
        let bus = pipeline.bus().unwrap();
        let kinds = [gst::MessageType::Eos, gst::MessageType::Error];
        let end = bus.timed_pop_filtered(gst::ClockTime::from_seconds(20), &kinds);
        assert_eq!(end.map(|message| message.type_()), Some(gst::MessageType::Eos));
        assert!(!sink.property::<bool>("async"));
        pipeline.set_state(gst::State::Null).unwrap();
        assert!(sink.property::<bool>("async"), "the property is not restored");
    }
}

#[test]
fn sink_whose_stream_is_read_elsewhere_prerolls() {
    let (pipeline, _folder) = both_ends("PATH.other");
    let sink = pipeline.by_name("sink").unwrap();
    pipeline.set_state(gst::State::Paused).unwrap();
    assert!(sink.property::<bool>("async"));
    pipeline.set_state(gst::State::Null).unwrap();
}
