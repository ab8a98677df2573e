// SPDX-License-Identifier: MIT OR Apache-2.0

//! State of a running source.

use super::{
    copy_pool::CopyPool,
    cuda::Cuda,
    frames::{Downstream, Shape},
    opening_state::Opening,
    repeat::Last,
    settings::Settings,
    way::Way,
};
use crate::{
    meta::budget::Budget,
    times::{FileTime, KnownClock, LiveTime, Timestamps},
};
use frameshare::{Endpoint, reader::Reader};
use std::time::Instant;

/// Negotiated format and the downstream element's allocation answer.
#[derive(Default)]
pub(super) struct Negotiated {
    pub(super) caps: Option<gst::Caps>,
    /// Duration of one frame, if the caps name a rate.
    pub(super) frame_duration: Option<gst::ClockTime>,
    pub(super) downstream: Downstream,
    /// The CUDA stream that downstream proposes.
    pub(super) cuda_stream: Option<gst_cuda::Stream>,
}

/// State from `start` to `stop`, owned by the streaming thread.
pub(super) struct Running {
    pub(super) endpoint: Endpoint,
    pub(super) settings: Settings,
    pub(super) reader: Option<Reader>,
    pub(super) shape: Option<Shape>,
    pub(super) copy_pool: CopyPool,
    /// CUDA context and stream for frames in GPU memory.
    pub(super) cuda: Option<Cuda>,
    /// The next buffer starts a discontinuity.
    pub(super) is_discont: bool,
    /// Frames lost on the streams before the last switch.
    pub(super) lost_earlier: u64,
    pub(super) has_ended: bool,
    /// Copies of frames of the present format, for their layout, were reported to the exporter.
    pub(super) has_reported_layout: bool,
    /// A kept frame of the present connection is shown now, not when it was due.
    pub(super) shows_kept: bool,
    /// Begin of the present run of skipped units.
    pub(super) skips_since: Option<Instant>,
    /// A warning about skipped units was posted.
    pub(super) has_reported_skips: bool,
    /// A warning about copies of elements downstream was posted.
    pub(super) has_reported_writer: bool,
    /// The ways of copying that a warning was posted for.
    pub(super) reported: Vec<Way>,
    pub(super) opening: Opening,
    /// The exporter's timestamps, for a source that is not live.
    pub(super) file_time: FileTime,
    /// The place of a live source's frames in the running time.
    pub(super) live_time: LiveTime,
    pub(super) known_clock: KnownClock,
    /// The conversion to running time for the present item, once there was one.
    pub(super) clock: Option<Timestamps>,
    /// End of the last pause, in ns of `CLOCK_MONOTONIC`: frames that were published before are
    /// no news. 0 if there are none.
    pub(super) resumed: u64,
    /// The frames that are skipped now count as lost: the reader had the ones before.
    pub(super) counts_skips: bool,
    /// Number of those before the next frame.
    pub(super) skipped: u64,
    /// The last frame, to be pushed again.
    pub(super) last: Option<Last>,
    /// Limit for the memory of the exporter's metadata.
    pub(super) budget: Budget,
}

impl Running {
    /// Forgets the times of the connection before: the next frame is the first of another one.
    pub(super) fn begin_connection(&mut self) {
        self.file_time.begin();
        self.live_time.begin();
        self.counts_skips = false;
        self.is_discont = true;
    }
}
