// SPDX-License-Identifier: MIT OR Apache-2.0

//! Reader in the process of a test: `framesharesrc ! appsink`.

use crate::Pipeline;
use frameshare_tests::process::{PATIENCE, TestRun};
use gstframeshare::FrameshareMeta;

/// `framesharesrc ! appsink`.
#[derive(Debug)]
pub struct Reader {
    pipeline: Pipeline,
    output: gst_app::AppSink,
}

/// A frame as it arrived.
#[derive(Clone, Debug)]
pub struct Arrival {
    /// Caps in effect.
    pub caps: gst::Caps,
    /// Whether the buffer is marked DISCONT.
    pub is_discont: bool,
    /// Session of the exporter.
    pub session: u64,
    /// Sequence number.
    pub sequence: u64,
    /// Number of frames lost before this one.
    pub lost_before: u64,
    /// Content.
    pub bytes: Vec<u8>,
}

impl Reader {
    /// Starts a reader with these properties.
    pub fn start(run: &TestRun, stream: &str, properties: &str) -> Self {
        let pipeline = Pipeline::new(&format!(
            "framesharesrc socket-path={} connection-timeout=60000000000 {properties} ! \
             appsink name=output sync=false",
            run.socket(stream)
        ));
        let output = pipeline.appsink("output");
        pipeline.play();
        Self { pipeline, output }
    }

    /// Returns the next buffer with its caps; none at the end of the stream.
    pub fn sample(&self) -> Option<gst::Sample> {
        let sample = self.output.try_pull_sample(gst::ClockTime::try_from(PATIENCE).ok());
        if sample.is_none() {
            assert!(self.output.is_eos(), "no frame arrived: {:?}", self.pipeline.error());
        }
        sample
    }

    /// Returns the next frame; none at the end of the stream.
    pub fn next(&self) -> Option<Arrival> {
        let sample = self.sample()?;
        let buffer = sample.buffer().expect("a sample has a buffer");
        let meta = buffer.meta::<FrameshareMeta>().expect("a frame has its meta");
        Some(Arrival {
            caps: sample.caps().expect("a frame has caps").to_owned(),
            is_discont: buffer.flags().contains(gst::BufferFlags::DISCONT),
            session: meta.session(),
            sequence: meta.sequence(),
            lost_before: meta.lost_before(),
            bytes: buffer.map_readable().expect("a frame can be read").to_vec(),
        })
    }

    /// Returns every frame up to the end of the stream.
    pub fn rest(&self) -> Vec<Arrival> {
        std::iter::from_fn(|| self.next()).collect()
    }
}
