// SPDX-License-Identifier: MIT OR Apache-2.0

//! Exporter in the process of a test: `appsrc ! framesharesink`.

use crate::{
    Pipeline,
    frames::{CAPS, SIZE, frame},
};
use frameshare_tests::process::{TestRun, block_process_starts, wait_until};
use gst::prelude::*;

/// `appsrc ! framesharesink`.
#[derive(Debug)]
pub struct Exporter {
    pipeline: Pipeline,
    input: gst_app::AppSrc,
    sink: gst::Element,
}

impl Exporter {
    /// Starts the exporter; it waits for caps and frames. Readers that join late get later frames
    /// only.
    pub fn start(run: &TestRun, stream: &str) -> Self {
        let pipeline = Pipeline::new(&format!(
            "appsrc name=input format=time ! framesharesink name=sink sync=false history=0 socket-path={}",
            run.socket(stream)
        ));
        let input = pipeline.element("input").downcast().expect("an appsrc");
        let sink = pipeline.element("sink");
        let no_start = block_process_starts();
        pipeline.play();
        drop(no_start);
        Self { pipeline, input, sink }
    }

    /// Sets the caps of the next frames.
    pub fn set_caps(&self, caps: &str) {
        self.input.set_caps(Some(&caps.parse().expect("caps")));
    }

    /// Pushes one frame.
    pub fn push(&self, bytes: Vec<u8>) {
        self.input.push_buffer(gst::Buffer::from_mut_slice(bytes)).expect("the sink accepts the frame");
    }

    /// Pushes these frames of this stream, in the usual caps.
    pub fn push_frames(&self, stream: usize, numbers: impl Iterator<Item = u64>) {
        self.set_caps(CAPS);
        numbers.for_each(|number| self.push(frame(stream, number, SIZE)));
    }

    /// Ends the stream, and waits until lossless readers have all of it.
    pub fn end(&self) {
        self.input.end_of_stream().expect("the sink accepts the end");
        self.pipeline.wait_for_end();
    }

    /// Returns the number of readers.
    pub fn readers(&self) -> u32 {
        self.sink.property("num-clients")
    }

    /// Waits until the exporter has this number of readers.
    pub fn wait_for_readers(&self, count: u32) {
        wait_until(&format!("{count} readers"), || self.readers() == count);
    }

    /// Waits until every reader has taken all frames, and has credit.
    pub fn wait_for_credit(&self) {
        let has_credit = |reader: &gst::StructureRef| {
            let number = |name| reader.get::<u32>(name).expect("the statistics of a reader have the number");
            number("queued") == 0 && number("held") < number("max-held")
        };
        wait_until("credit for a frame", || {
            let stats = self.sink.property::<gst::Structure>("stats");
            let readers = stats.get::<gst::Array>("readers").expect("the statistics list the readers");
            readers
                .iter()
                .all(|reader| has_credit(&reader.get::<gst::Structure>().expect("a structure each")))
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
