// SPDX-License-Identifier: MIT OR Apache-2.0

//! The two elements in this process, with the test at their other ends.

use crate::stage::{PATIENCE, Stage, wait_until, while_none_is_started};
use gst::prelude::*;
use gstframeshare::FrameshareMeta;
use std::sync::Once;

const WIDTH: usize = 64;
pub const CAPS: &str =
    "video/x-raw, format=(string)GRAY8, width=(int)64, height=(int)48, framerate=(fraction)25/1";
pub const SIZE: usize = WIDTH * 48;

/// The bytes of a frame: two frames of any streams agree in a few places at most.
pub fn picture(stream: usize, number: u64, size: usize) -> Vec<u8> {
    let mut state = (stream as u64 + 1) << 32 | number;
    let words = std::iter::repeat_with(move || {
        state = state.wrapping_mul(0xd134_2543_de82_ef95).wrapping_add(0x9e37_79b9_7f4a_7c15);
        (state ^ state >> 29).to_le_bytes()
    });
    words.flatten().take(size).collect()
}

/// GStreamer, with the elements that were built with this test.
pub fn init() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        gst::init().expect("GStreamer starts");
        gstframeshare::plugin_register_static().expect("the plugin registers");
    });
}

/// A pipeline that is stopped when it is dropped.
pub struct Pipeline(gst::Pipeline);

impl Pipeline {
    pub fn new(description: &str) -> Self {
        init();
        let pipeline =
            gst::parse::launch(description).unwrap_or_else(|error| panic!("{description}: {error}"));
        Self(pipeline.downcast().expect("several elements make a pipeline"))
    }

    pub fn play(&self) {
        self.set(gst::State::Playing);
    }

    pub fn stop(&self) {
        self.set(gst::State::Null);
    }

    fn set(&self, state: gst::State) {
        if self.0.set_state(state).is_err() {
            panic!("{state:?} refused: {:?}", self.error());
        }
    }

    /// Waits until all its sinks have seen the end of the stream.
    pub fn wait_for_end(&self) {
        let bus = self.0.bus().expect("a pipeline has a bus");
        let kinds = [gst::MessageType::Eos, gst::MessageType::Error];
        let message = bus.timed_pop_filtered(gst::ClockTime::try_from(PATIENCE).ok(), &kinds);
        let message = message.expect("the end comes");
        assert_eq!(message.type_(), gst::MessageType::Eos, "{message:?}");
    }

    pub fn element(&self, name: &str) -> gst::Element {
        self.0.by_name(name).unwrap_or_else(|| panic!("there is an element {name}"))
    }

    /// The pipeline's error, if there is one.
    pub fn error(&self) -> Option<String> {
        let message = self.0.bus()?.pop_filtered(&[gst::MessageType::Error])?;
        let gst::MessageView::Error(error) = message.view() else { return None };
        Some(format!("{}\n{:?}", error.error(), error.debug()))
    }
}

impl Drop for Pipeline {
    fn drop(&mut self) {
        let _ = self.0.set_state(gst::State::Null);
    }
}

/// `appsrc ! framesharesink`.
pub struct Exporter {
    pipeline: Pipeline,
    input: gst_app::AppSrc,
    sink: gst::Element,
}

impl Exporter {
    /// Starts it; it waits for caps and frames.
    pub fn start(stage: &Stage, stream: &str) -> Self {
        let pipeline = Pipeline::new(&format!(
            "appsrc name=input format=time ! framesharesink name=sink sync=false socket-path={}",
            socket(stage, stream)
        ));
        let input = pipeline.element("input").downcast().expect("it is an appsrc");
        let sink = pipeline.element("sink");
        let alone = while_none_is_started();
        pipeline.play();
        drop(alone);
        Self { pipeline, input, sink }
    }

    pub fn set_caps(&self, caps: &str) {
        self.input.set_caps(Some(&caps.parse().expect("caps")));
    }

    pub fn push(&self, bytes: Vec<u8>) {
        self.input.push_buffer(gst::Buffer::from_mut_slice(bytes)).expect("the sink takes it");
    }

    /// Pushes these frames of this stream, in the usual caps.
    pub fn push_pictures(&self, stream: usize, numbers: impl Iterator<Item = u64>) {
        self.set_caps(CAPS);
        numbers.for_each(|number| self.push(picture(stream, number, SIZE)));
    }

    /// Ends the stream, and waits until lossless readers have all of it.
    pub fn end(&self) {
        self.input.end_of_stream().expect("the sink takes it");
        self.pipeline.wait_for_end();
    }

    pub fn readers(&self) -> u32 {
        self.sink.property("num-clients")
    }

    pub fn wait_for_readers(&self, count: u32) {
        wait_until(&format!("{count} readers"), || self.readers() == count);
    }

    /// Waits until every reader has taken all frames, and has credit.
    pub fn wait_for_room(&self) {
        let has_room = |reader: &gst::StructureRef| {
            let number = |name| reader.get::<u32>(name).expect("the statistics of a reader have it");
            number("queued") == 0 && number("held") < number("max-held")
        };
        wait_until("room for a frame", || {
            let stats = self.sink.property::<gst::Structure>("stats");
            let readers = stats.get::<gst::Array>("readers").expect("the statistics list the readers");
            readers.iter().all(|reader| has_room(&reader.get::<gst::Structure>().expect("a structure each")))
        });
    }

    fn published(&self) -> u64 {
        let stats = self.sink.property::<gst::Structure>("stats");
        stats.get("published").expect("the statistics count frames")
    }

    /// Waits until this number of frames is published.
    pub fn wait_until_published(&self, count: u64) {
        wait_until(&format!("{count} frames"), || self.published() == count);
    }
}

/// `framesharesrc ! appsink`.
pub struct Reader {
    pipeline: Pipeline,
    output: gst_app::AppSink,
}

/// A frame as it arrived.
#[derive(Clone, Debug)]
pub struct Arrival {
    pub caps: gst::Caps,
    pub is_discont: bool,
    pub session: u64,
    pub sequence: u64,
    pub lost_before: u64,
    pub bytes: Vec<u8>,
}

impl Reader {
    pub fn start(stage: &Stage, stream: &str, properties: &str) -> Self {
        let pipeline = Pipeline::new(&format!(
            "framesharesrc socket-path={} connection-timeout=60000000000 {properties} ! \
             appsink name=output sync=false",
            socket(stage, stream)
        ));
        let output = pipeline.element("output").downcast().expect("it is an appsink");
        pipeline.play();
        Self { pipeline, output }
    }

    /// The next buffer with its caps; none at the end of the stream.
    pub fn sample(&self) -> Option<gst::Sample> {
        let sample = self.output.try_pull_sample(gst::ClockTime::try_from(PATIENCE).ok());
        if sample.is_none() {
            assert!(self.output.is_eos(), "no frame came: {:?}", self.pipeline.error());
        }
        sample
    }

    /// The next frame; none at the end of the stream.
    pub fn next(&self) -> Option<Arrival> {
        let sample = self.sample()?;
        let buffer = sample.buffer().expect("a sample has a buffer");
        let meta = buffer.meta::<FrameshareMeta>().expect("a frame says which one it is");
        Some(Arrival {
            caps: sample.caps().expect("a frame has caps").to_owned(),
            is_discont: buffer.flags().contains(gst::BufferFlags::DISCONT),
            session: meta.session(),
            sequence: meta.sequence(),
            lost_before: meta.lost_before(),
            bytes: buffer.map_readable().expect("a frame can be read").to_vec(),
        })
    }

    /// Every frame up to the end of the stream.
    pub fn rest(&self) -> Vec<Arrival> {
        std::iter::from_fn(|| self.next()).collect()
    }
}

/// The path at which elements of this process and others find a stream of this name.
pub fn socket(stage: &Stage, stream: &str) -> String {
    // As with `stream=`, with the stage's folder for XDG_RUNTIME_DIR.
    let folder = stage.path("frameshare");
    if let Err(error) = std::fs::create_dir(&folder) {
        assert_eq!(error.kind(), std::io::ErrorKind::AlreadyExists, "{}", folder.display());
    }
    folder.join(format!("{stream}.sock")).display().to_string()
}

/// Checks that these are frames of this stream, whole, in order, and every gap counted; returns
/// their numbers.
pub fn check(stream: usize, arrivals: &[Arrival]) -> Vec<u64> {
    let mut expected = None;
    for arrival in arrivals {
        assert!(
            arrival.bytes == picture(stream, arrival.sequence, SIZE),
            "frame {} of stream {stream} holds something else",
            arrival.sequence
        );
        if let Some(expected) = expected {
            assert_eq!(arrival.sequence, expected + arrival.lost_before, "a gap in stream {stream}");
        }
        expected = Some(arrival.sequence + 1);
    }
    arrivals.iter().map(|arrival| arrival.sequence).collect()
}
