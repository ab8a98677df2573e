// SPDX-License-Identifier: MIT OR Apache-2.0

//! `framesharesink`.

mod allocation;
mod announced;
mod arrival;
mod caps;
mod connection;
mod conversion;
mod copy_stats;
mod cuda;
mod dma_buf;
mod encoded;
mod events;
mod failure;
mod imp;
mod input;
mod kinds;
mod lateness;
mod limit;
mod log;
mod media;
mod messages;
mod negotiation;
mod notices;
mod pace;
mod pacing;
mod placed;
mod placement;
mod refusal;
mod render;
mod same_pipeline;
mod session;
mod settings;
mod signals;
mod stats;
mod stream;
mod timing;
mod treatment;
mod units;
mod waiting;

use gst::prelude::*;

pub(crate) const ELEMENT: &str = "framesharesink";

glib::wrapper! {
    /// `framesharesink`: shares the frames that arrive with any number of other processes, which
    /// read them in place.
    ///
    /// # Examples
    ///
    /// ```text
    /// gst-launch-1.0 filesrc location=video.mp4 ! qtdemux ! h264parse ! avdec_h264 ! framesharesink stream=cam0
    /// gst-launch-1.0 v4l2src ! framesharesink stream=cam1 wait-for-connection=true
    /// gst-launch-1.0 rtspsrc location=rtsp://camera ! rtph264depay ! h264parse ! framesharesink stream=cam2 encoded=true
    /// ```
    ///
    /// With nvh264dec in place of avdec_h264 frames stay on the GPU.
    ///
    /// # Behavior
    ///
    /// - The stream has a name (`stream`), by which `framesharesrc` and other readers find it, or a
    ///   path of its own (`socket-path`). It exists from READY to PAUSED on; frames are published
    ///   in PLAYING.
    /// - Upstream is offered memory that readers can map, and usually writes its frames there: then
    ///   nothing is copied. A frame in other memory is copied once. `stats` counts the copies, with
    ///   their reasons.
    /// - A reader that cannot keep up loses frames and delays nothing, unless it is lossless and
    ///   `lossless-readers` allows that: the sink then waits for it, no longer than
    ///   `reader-timeout` at a time. Meanwhile the element message `framesharesink-reader-blocking`
    ///   names the reader: the fields of the structure that `reader-added` carries, and
    ///   `blocked-for` (ns).
    /// - A reader that is evicted (too slow, over a limit, a failed GPU, a protocol violation) is
    ///   named by the element message `framesharesink-reader-cut-off`: the same fields, `reason`
    ///   and, for people, `why`. The reader gets the reason, too.
    /// - For people, an INFO message says where the stream is shared, and a WARNING names each
    ///   evicted, refused or blocking reader, and each reason for copies once. gst-launch-1.0
    ///   prints them. Repeated warnings about one process are posted once a second.
    /// - The action signal `disconnect-reader` disconnects the reader with the `id` of
    ///   `reader-added`; it takes the reason for people, or NULL, and returns whether there is such
    ///   a reader.
    /// - A `framesharesrc` in the same pipeline may read the stream: the sink then does not preroll
    ///   (`async` is off until READY), since its first frame is published in PLAYING.
    /// - Only the user who runs the sink, and root, may read. Others are allowed by `allowed-uids`
    ///   or `allowed-gids` together with `socket-path`, in a folder that they may enter, and
    ///   `socket-mode`. A refused reader is named by process and user in a WARNING message, and
    ///   gets the reason.
    /// - Raw video and audio are shared. Encoded media is refused unless `encoded` is set, so that
    ///   playbin and other autopluggers decode it; `any-caps` admits media of any type.
    /// - Frames of a live upstream are published when they arrive, others when they are due; `sync`
    ///   sets either. Published times are those of the capture, without the pipeline's latency,
    ///   which readers learn apart.
    /// - Caps, times, offsets, flags and metas cross with the frames, and the events stream-start,
    ///   tag, gap, custom events and end of stream. A flush does not: after a seek the next frame
    ///   is marked DISCONT.
    ///
    /// # dma-bufs
    ///
    /// - Frames of raw video in dma-bufs, as of `v4l2src io-mode=dmabuf`, are shared in place while
    ///   every reader is of the same user or trusted and can open them; otherwise they are copied
    ///   once. Readers wait for the device that writes them, and the buffer returns to upstream
    ///   when no reader's device uses it. `export` and `memory=host` turn that off.
    ///
    /// # CUDA memory
    ///
    /// - Frames in CUDA memory are shared on the GPU, in the kind of memory that `memory` names;
    ///   `fence` orders readers' work. Decoders and CUDA elements write into the sink's slots; a
    ///   decoder's own surfaces are shared in place (`export`) while every reader is of the same
    ///   user and can open them, at most seven at a time, so that the decoder never waits; every
    ///   other frame is copied once, by the GPU. Without a GPU, or GStreamer 1.24, only host memory
    ///   is available. `stats` counts the frames of each path, with the reasons.
    pub struct FrameshareSink(ObjectSubclass<imp::FrameshareSink>)
        @extends gst_base::BaseSink, gst::Element, gst::Object,
        @implements gst::URIHandler;
}

/// Registers the element with the plugin.
pub(crate) fn register(plugin: &gst::Plugin) -> Result<(), glib::BoolError> {
    #[cfg(feature = "doc")]
    for property in [
        settings::LosslessReaders::static_type(),
        kinds::SlowReaders::static_type(),
        kinds::Layout::static_type(),
        kinds::Memory::static_type(),
        kinds::Export::static_type(),
        crate::FrameshareFence::static_type(),
    ] {
        property.mark_as_plugin_api(gst::PluginAPIFlags::empty());
    }
    gst::Element::register(Some(plugin), ELEMENT, gst::Rank::NONE, FrameshareSink::static_type())
}
