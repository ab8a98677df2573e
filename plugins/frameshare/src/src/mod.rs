// SPDX-License-Identifier: MIT OR Apache-2.0

//! `framesharesrc`: zero-copy source for the frames of another process.

mod connecting;
mod consumer;
mod copy_pool;
mod cuda;
mod delivery;
mod errors;
mod events;
mod frames;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
mod imp;
mod joining;
mod latency;
mod layout;
mod leased_memory;
mod log;
mod negotiation;
mod opening;
mod opening_state;
mod pause;
mod picture;
mod repeat;
mod reports;
mod running;
mod settings;
mod signals;
mod skips;
mod stats;
mod switch;
#[cfg(test)]
mod tests;
mod timing;
mod unpushed;
mod way;

use gst::{prelude::*, subclass::prelude::*};

glib::wrapper! {
    /// `framesharesrc`: reads the frames that a `framesharesink` on the same machine shares.
    ///
    /// # Examples
    ///
    /// ```text
    /// gst-launch-1.0 framesharesrc stream=cam0 ! videoconvert ! autovideosink
    /// gst-launch-1.0 framesharesrc stream=cam0 policy=lossless ! x264enc ! mp4mux ! filesink location=cam0.mp4
    /// gst-launch-1.0 framesharesrc stream=cam0 ! cudaconvertscale ! cudadownload ! autovideosink
    /// ```
    ///
    /// # Behavior
    ///
    /// - Connects in the PLAYING state, and waits up to `connection-timeout` for the exporter; an
    ///   exporter that is missing after that time, or rejects the reader, is an error whose message
    ///   names the remedy.
    /// - Pushes read-only buffers in the exporter's memory. A frame is released to the exporter
    ///   when the last reference to its memory is dropped, on any thread.
    /// - Never lets downstream hold its full credit of frames: the frame that would use the last
    ///   credit is copied and released at once, so that an element that keeps many buffers does not
    ///   stop the stream. `stats` counts the copies.
    /// - Also copies a frame that is not in its format's default layout if downstream does not
    ///   support GstVideoMeta, unless `video-meta=always`. The first copy for each reason posts a
    ///   warning that names the property.
    /// - Attaches a `FrameshareMeta` to each buffer; the action signal `frame-info` reads it for
    ///   languages that see no C structures. After lost frames, the next buffer is marked
    ///   DISCONT, and a QoS message carries the number of lost frames.
    /// - With `resend-last`, pushes the last frame again when none has come for that time, also
    ///   while it waits for the next exporter. The `FrameshareMeta` counts the repetitions.
    /// - Is live; converts the exporter's timestamps to this pipeline's clock. Its maximum latency
    ///   is the duration of the frames that may wait for downstream. By default these suit the
    ///   frame rate; with a higher `latency`, or a small `max-held`, a sink that synchronizes needs
    ///   a `queue` in front.
    /// - Moves the frames of a connection together if the first ones lie before the start of the
    ///   pipeline, or begins its segment behind them if a sink waits for the clock. No time is
    ///   clamped.
    /// - With `is-live=false` it reads like a file: it prerolls, has no latency, and pushes the
    ///   exporter's timestamps in the exporter's segment, shifted so that the first frame has
    ///   running time 0.
    /// - Pushes the exporter's tags, stream-start, gaps and custom events in order with the frames;
    ///   a late reader gets the newest tags and sticky events. A seek of the exporter is a buffer
    ///   marked DISCONT, never a flush.
    /// - Switches to another stream when `stream` or `socket-path` is set in PAUSED or PLAYING: one
    ///   stream-start, caps and segment, and the first buffer is marked DISCONT.
    /// - Pushes EOS at the exporter's end of stream. An exporter that exits without ending the
    ///   stream is an error; with `on-disconnect=eos`, a warning and EOS; with
    ///   `on-disconnect=wait`, the source waits for its successor, whose first buffer is marked
    ///   DISCONT.
    ///
    /// # With dma-bufs
    ///
    /// - Frames that the exporter shares in dma-bufs are pushed as GstDmaBufMemory under plain
    ///   caps: elements of devices import it, others map it. `dma-bufs=false` has the exporter copy
    ///   them.
    ///
    /// # With CUDA memory
    ///
    /// - If downstream's caps name `memory:CUDAMemory`, frames in GPU memory are pushed as CUDA
    ///   memory, in the pipeline's shared context; this needs GStreamer 1.24. Other elements get
    ///   system memory, to which the exporter downloads the frames.
    /// - A buffer may be pushed before the GPU has written it, see `fence`. The memory's stream
    ///   (downstream's own if it proposes one) waits for the write; the memory has GStreamer's flag
    ///   for pending work, and gst_cuda_memory_sync() waits for it.
    /// - A frame is released when all GPU work that was queued in its context before the last
    ///   reference was dropped is done, on any stream. An application that reads it in another CUDA
    ///   context names its stream through the `FrameshareMeta` of each buffer.
    /// - A frame that would use the last credit is copied on the GPU, and so is a layout that
    ///   GStreamer's CUDA memory does not support.
    ///
    /// # With `policy=latest`
    ///
    /// Frames not taken in time are lost, oldest first, and the exporter never waits. The newest
    /// `max-queued` frames wait for this element.
    ///
    /// # With `policy=lossless`
    ///
    /// No frame is lost: the exporter waits, at most for its `reader-timeout`. It may reject a
    /// lossless reader.
    pub struct FrameshareSrc(ObjectSubclass<imp::FrameshareSrc>)
        @extends gst_base::PushSrc, gst_base::BaseSrc, gst::Element, gst::Object,
        @implements gst::URIHandler;
}

impl FrameshareSrc {
    /// Returns the stream that the properties name.
    pub(crate) fn endpoint(&self) -> Option<frameshare::Endpoint> {
        self.imp().endpoint()
    }
}

/// Registers the element with the plugin.
pub(crate) fn register(plugin: &gst::Plugin) -> Result<(), glib::BoolError> {
    #[cfg(feature = "doc")]
    for property in [
        settings::FrameshareSrcPolicy::static_type(),
        settings::FrameshareSrcOnDisconnect::static_type(),
        settings::FrameshareSrcVideoMeta::static_type(),
        crate::FrameshareFence::static_type(),
    ] {
        property.mark_as_plugin_api(gst::PluginAPIFlags::empty());
    }
    gst::Element::register(Some(plugin), "framesharesrc", gst::Rank::NONE, FrameshareSrc::static_type())
}
