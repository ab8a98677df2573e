// SPDX-License-Identifier: MIT OR Apache-2.0

//! State of a running source.

use super::{
    copy_pool::CopyPool,
    cuda::Cuda,
    frames::{Downstream, Shape},
    opening_state::Opening,
    repeat::Last,
    settings::Settings,
    skips::Skips,
    unpushed::Unpushed,
    way::Way,
};
use crate::{
    meta::budget::Budget,
    sync::Cached,
    times::{FileTime, KnownClock, LiveTime, Timestamps},
};
use frameshare::{Endpoint, Interrupt, reader::Reader};

/// Negotiated format and the downstream element's allocation answer. Written by the streaming
/// thread and by GStreamer's queries, read by any thread.
#[derive(Clone, Default)]
pub(super) struct Negotiated {
    pub(super) caps: Option<gst::Caps>,
    /// Duration of one frame, if the caps name a rate.
    pub(super) frame_duration: Option<gst::ClockTime>,
    pub(super) downstream: Downstream,
    /// The CUDA stream that downstream proposes.
    pub(super) cuda_stream: Option<gst_cuda::Stream>,
}

/// Copies that warnings or reports were sent for, each once.
#[derive(Default)]
pub(super) struct Reported {
    /// Copies of frames of the present format, for their layout, to the exporter.
    pub(super) layout: bool,
    /// Copies of elements downstream.
    pub(super) writer: bool,
    /// The ways of copying.
    pub(super) ways: Vec<Way>,
}

/// State from `start` to `stop`, owned by the streaming thread: `create` takes it once, and all of
/// the way of a frame gets it by reference. State that other threads read is not in here: see
/// `imp.rs`.
pub(super) struct Running {
    /// Interrupts the waits of this state.
    pub(super) interrupt: Interrupt,
    pub(super) endpoint: Endpoint,
    pub(super) settings: Settings,
    /// Dropped before the reader: its frame is released before the connection is closed.
    pub(super) unpushed: Unpushed,
    pub(super) reader: Option<Reader>,
    pub(super) shape: Option<Shape>,
    pub(super) negotiated: Cached<Negotiated>,
    pub(super) copy_pool: CopyPool,
    /// CUDA context and stream for frames in GPU memory.
    pub(super) cuda: Option<Cuda>,
    /// The next buffer starts a discontinuity.
    pub(super) is_discont: bool,
    /// Frames lost on the streams before the last switch.
    pub(super) lost_earlier: u64,
    pub(super) has_ended: bool,
    /// A kept frame of the present connection is shown now, not when it was due.
    pub(super) shows_kept: bool,
    pub(super) skips: Skips,
    pub(super) reported: Reported,
    pub(super) opening: Opening,
    /// Sequence number of the stream-start and segment that were pushed last; none before the
    /// first.
    pub(super) opened: Option<gst::Seqnum>,
    /// The exporter's timestamps, for a source that is not live.
    pub(super) file_time: FileTime,
    /// The place of a live source's frames in the running time.
    pub(super) live_time: LiveTime,
    pub(super) known_clock: KnownClock,
    /// The conversion to running time for the present item, once there was one.
    pub(super) clock: Option<Timestamps>,
    /// The last frame, to be pushed again.
    pub(super) last: Option<Last>,
    /// Limit for the memory of the exporter's metadata.
    pub(super) budget: Budget,
}

impl Running {
    /// The state of a source that starts to read this stream.
    pub(super) fn new(interrupt: Interrupt, endpoint: Endpoint, settings: Settings) -> Self {
        let budget = Budget::new(settings.config.max_metadata_bytes);
        Self {
            interrupt,
            endpoint,
            settings,
            unpushed: Unpushed::default(),
            reader: None,
            shape: None,
            negotiated: Cached::default(),
            copy_pool: CopyPool::default(),
            cuda: None,
            is_discont: false,
            lost_earlier: 0,
            has_ended: false,
            shows_kept: false,
            skips: Skips::default(),
            reported: Reported::default(),
            opening: Opening::default(),
            opened: None,
            file_time: FileTime::default(),
            live_time: LiveTime::default(),
            known_clock: KnownClock::default(),
            clock: None,
            last: None,
            budget,
        }
    }

    /// Forgets the times of the connection before: the next frame is the first of another one.
    pub(super) fn begin_connection(&mut self) {
        self.file_time.begin();
        self.live_time.begin();
        self.skips.begin_connection();
        self.is_discont = true;
    }
}
