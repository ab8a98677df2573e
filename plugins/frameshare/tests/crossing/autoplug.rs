// SPDX-License-Identifier: MIT OR Apache-2.0

//! Both elements beside autopluggers: playbin and decoders before the sink, decoders and parsers
//! after the source.

use super::{
    media::{collect, collected, difference, has},
    *,
};

const RAW_VIDEO: &str =
    "videotestsrc num-buffers=20 ! video/x-raw,format=I420,width=64,height=48,framerate=30/1";
const END: &str = "fakesink name=end sync=false enable-last-sample=false";

/// A clip of 30 frames in H.264, and its decoded frames.
struct Clip {
    path: PathBuf,
    frames: Vec<Vec<u8>>,
    folder: tempfile::TempDir,
}

impl Clip {
    /// Records the clip; none if elements are missing.
    fn record() -> Option<Self> {
        if !has(&["x264enc", "h264parse", "avdec_h264", "mp4mux", "qtdemux", "playbin"]) {
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("video.mp4");
        let recorder = launch(&format!(
            "videotestsrc num-buffers=30 pattern=ball ! video/x-raw,format=I420,width=96,height=64,framerate=30/1 ! \
             x264enc threads=1 ! h264parse ! mp4mux ! filesink location={}",
            path.display()
        ));
        recorder.set_state(gst::State::Playing).unwrap();
        wait_for_end(&recorder);
        recorder.set_state(gst::State::Null).unwrap();
        let frames = collected(&format!(
            "filesrc location={} ! qtdemux ! h264parse ! avdec_h264 ! {END}",
            path.display()
        ));
        assert_eq!(frames.len(), 30);
        Some(Self { path, frames, folder })
    }

    fn uri(&self) -> String {
        format!("file://{}", self.path.display())
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("s")
    }

    /// Runs an exporter, and checks that its reader gets the decoded frames.
    fn expect_decoded(&self, exporter: &gst::Pipeline, case: &str) {
        start(exporter, case);
        let reader = Reader::new(&self.socket());
        let (first, caps, _) = reader.next_buffer();
        let caps = caps.unwrap();
        assert_eq!(caps.structure(0).unwrap().name(), "video/x-raw", "{case}");
        let mut frames = vec![bytes(&first)];
        frames.extend(collect(&reader));
        reader.order.lock().unwrap().violations.clear();
        exporter.set_state(gst::State::Null).unwrap();
        assert!(frames == self.frames, "{case}: {}", difference(&self.frames, &frames));
    }
}

/// Starts an exporter whose sink waits for a reader.
///
/// In GStreamer 1.26, `uridecodebin3` and `playbin3` start their source before `decodebin3` is in
/// PAUSED. A buffer that arrives too early ends the stream without a message (2 of 2,400 times
/// before a `fakesink`). The exporter is then started again.
fn start(exporter: &gst::Pipeline, case: &str) {
    let is_fed = || {
        let sinks = exporter.iterate_recurse().into_iter().flatten();
        let mut pads = sinks.filter(is_sink).filter_map(|sink| sink.static_pad("sink"));
        pads.any(|pad| pad.sticky_event::<gst::event::StreamStart>(0).is_some())
    };
    for _ in 0..5 {
        exporter.set_state(gst::State::Playing).unwrap();
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_secs(5) {
            if is_fed() {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        exporter.set_state(gst::State::Null).unwrap();
    }
    panic!("{case}: the sink is not fed");
}

fn is_sink(element: &gst::Element) -> bool {
    element.factory().is_some_and(|factory| factory.name() == "framesharesink")
}

fn wait_for_end(pipeline: &gst::Pipeline) {
    let kinds = [gst::MessageType::Eos, gst::MessageType::Error];
    let patience = gst::ClockTime::from_seconds(PATIENCE.as_secs());
    let message = pipeline.bus().unwrap().timed_pop_filtered(patience, &kinds);
    assert_eq!(message.map(|message| message.type_()), Some(gst::MessageType::Eos));
}

/// The defaults of the sink, apart from its pace.
fn sink_at(path: &Path) -> gst::Element {
    gst::ElementFactory::make("framesharesink")
        .property("socket-path", path.to_str().unwrap())
        .property("sync", false)
        .property("wait-for-connection", true)
        .build()
        .unwrap()
}

#[test]
fn playbin_shares_decoded_frames() {
    let Some(clip) = Clip::record() else { return };
    for name in ["playbin", "playbin3"] {
        let player = gst::ElementFactory::make(name)
            .property("uri", clip.uri())
            .property("video-sink", sink_at(&clip.socket()))
            .build()
            .unwrap();
        clip.expect_decoded(player.downcast_ref().unwrap(), name);
    }
}

#[test]
fn decoders_share_decoded_frames() {
    let Some(clip) = Clip::record() else { return };
    for decoder in [
        format!("uridecodebin uri={}", clip.uri()),
        format!("uridecodebin3 uri={}", clip.uri()),
        format!("filesrc location={} ! decodebin", clip.path.display()),
        format!("filesrc location={} ! decodebin3", clip.path.display()),
    ] {
        let exporter = launch(&format!(
            "{decoder} ! framesharesink sync=false wait-for-connection=true socket-path={}",
            clip.socket().display()
        ));
        clip.expect_decoded(&exporter, &decoder);
    }
}

/// Negative control: the frames are raw because of the default.
#[test]
fn playbin_shares_encoded_media_on_request() {
    let Some(clip) = Clip::record() else { return };
    let sink = sink_at(&clip.socket());
    sink.set_property("encoded", true);
    let player = gst::ElementFactory::make("playbin").property("uri", clip.uri()).build().unwrap();
    player.set_property("video-sink", &sink);
    let reader = Reader::new(&clip.socket());
    player.set_state(gst::State::Playing).unwrap();
    let caps = reader.next_buffer().1.unwrap();
    assert_eq!(caps.structure(0).unwrap().name(), "video/x-h264");
    reader.order.lock().unwrap().violations.clear();
    player.set_state(gst::State::Null).unwrap();
}

#[test]
fn encoded_stream_without_decoder_names_one() {
    for (caps, decoder) in [
        ("video/x-h264,stream-format=byte-stream,alignment=au", "h264parse ! avdec_h264"),
        ("audio/x-vorbis", "decodebin"),
    ] {
        let mut exporter = Exporter::with(caps, "encoded=true wait-for-connection=false");
        let reader = launch(&format!(
            "framesharesrc socket-path={} connection-timeout=20000000000 ! videoconvert ! {END}",
            exporter.path.display()
        ));
        reader.set_state(gst::State::Playing).unwrap();
        exporter.wait_for_readers(1);
        exporter.push(gst::Buffer::from_slice([1, 2, 3]));
        let patience = gst::ClockTime::from_seconds(PATIENCE.as_secs());
        let message = reader.bus().unwrap().timed_pop_filtered(patience, &[gst::MessageType::Error]);
        let message = message.expect("an error");
        let gst::MessageView::Error(error) = message.view() else { unreachable!() };
        let text = error.error().to_string();
        assert!(text.contains(decoder) && !text.contains("videoconvert"), "{text}");
        reader.set_state(gst::State::Null).unwrap();
    }
}

const AUDIO: &str = "audiotestsrc num-buffers=20 ! audio/x-raw,format=S16LE,rate=48000,channels=2";

/// H.264, and what is needed to make and decode it.
fn h264() -> Option<String> {
    let encode = "x264enc threads=1 tune=zerolatency ! video/x-h264,profile=baseline ! h264parse";
    has(&["x264enc", "h264parse", "avdec_h264"]).then(|| format!("{RAW_VIDEO} ! {encode}"))
}

/// Returns the buffers that the sink of a pipeline gets.
fn output(reader: &Reader) -> Vec<Vec<u8>> {
    let buffers = collect(reader);
    // Autopluggers send events of their own: decodebin3 of GStreamer 1.26 pushes a second
    // stream-start, which contains the GstStream.
    reader.order.lock().unwrap().violations.clear();
    buffers
}

/// Checks that `reader` outputs the same for a stream as for the media itself.
fn expect_same(upstream: &str, case: &str, reader: impl Fn(&str) -> Reader) {
    let expected = output(&reader(upstream));
    assert_eq!(expected.len(), 20, "{case}, without the elements");
    let folder = tempfile::tempdir().unwrap();
    let exporter = launch(&format!(
        "{upstream} ! framesharesink encoded=true sync=false wait-for-connection=true socket-path={}/s",
        folder.path().display()
    ));
    let reader = reader(&format!(
        "framesharesrc socket-path={}/s policy=lossless connection-timeout=20000000000",
        folder.path().display()
    ));
    exporter.set_state(gst::State::Playing).unwrap();
    let got = output(&reader);
    exporter.set_state(gst::State::Null).unwrap();
    assert!(got == expected, "{case}: {}", difference(&expected, &got));
}

#[test]
fn autopluggers_take_raw_and_encoded_streams() {
    let media = [RAW_VIDEO, AUDIO].map(String::from).into_iter().chain(h264());
    for upstream in media {
        for plugger in ["decodebin", "decodebin3", "parsebin"] {
            if has(&[plugger]) {
                let case = format!("{upstream} to {plugger}");
                expect_same(&upstream, &case, |source| {
                    Reader::watch(launch(&format!("{source} ! {plugger} ! {END}")))
                });
            }
        }
    }
}

#[test]
fn playsink_takes_raw_streams() {
    for (upstream, pad, property) in
        [(RAW_VIDEO, "video_sink", "video-sink"), (AUDIO, "audio_sink", "audio-sink")]
    {
        if !has(&["playsink"]) {
            return;
        }
        expect_same(upstream, pad, |source| {
            let pipeline = launch(&format!("{source} ! sinks.{pad} playsink name=sinks"));
            let end = gst::ElementFactory::make("fakesink").property("sync", false).build().unwrap();
            pipeline.by_name("sinks").unwrap().set_property(property, &end);
            Reader::at(pipeline, &end, &[])
        });
    }
}
