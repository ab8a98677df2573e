//! `framesharesrc`: the frames of a stream of another process, read in place.

mod copies;
mod cuda;
mod errors;
mod events;
mod frames;
#[cfg(any(test, fuzzing))]
pub(crate) mod hostile;
mod imp;
mod layout;
mod lease;
mod opening;
mod pause;
mod picture;
mod settings;
mod stats;
#[cfg(test)]
mod tests;
mod timing;

use gst::prelude::*;

pub use settings::{FrameshareSrcGpuWait, FrameshareSrcPolicy};

glib::wrapper! {
    /// `framesharesrc`: reads the frames that a `framesharesink` of the same machine shares.
    ///
    /// # Examples
    ///
    /// ```text
    /// gst-launch-1.0 framesharesrc stream=cam0 ! videoconvert ! autovideosink
    /// gst-launch-1.0 framesharesrc stream=cam0 policy=lossless ! x264enc ! mp4mux ! filesink location=cam0.mp4
    /// gst-launch-1.0 framesharesrc stream=cam0 ! cudaconvertscale ! cudadownload ! autovideosink
    /// ```
    ///
    /// # What it does
    ///
    /// - Connects once it plays, and waits for the exporter for `connection-timeout`; an exporter that is not there
    ///   by then, or does not let it in, is an error that says what to do.
    /// - Hands on buffers that lie in the exporter's memory, read-only. A frame goes back to the exporter when the
    ///   last reference to its memory is dropped, wherever that is.
    /// - Never lets downstream hold all the frames that it may hold: the one that would be the last is copied and
    ///   goes back at once, so that an element that keeps many buffers does not stop the stream. Copies are counted
    ///   in `stats`.
    /// - Copies as well where downstream does not know GstVideoMeta and the frame is not in its format's default
    ///   layout.
    /// - Puts a `FrameshareMeta` on each buffer. After frames were lost the next buffer is marked DISCONT and a QoS
    ///   message says how many.
    /// - Is live, with the exporter's timestamps carried over to this pipeline's clock. The longest latency that it
    ///   reports is the time that the frames it may hold last; a sink that synchronises on a stream of many frames a
    ///   second needs a `queue` in front or a higher `max-held`.
    /// - Pushes the exporter's tags, stream-start, gaps and custom events in their place among the frames; of tags and
    ///   sticky events a late reader gets the newest. A seek of the exporter is a buffer marked DISCONT, never a flush.
    /// - Ends the stream where the exporter does. An exporter that vanishes without ending it is an error, or with
    ///   `reconnect=true` is waited for; the first buffer of its successor is marked DISCONT.
    ///
    /// # With CUDA memory
    ///
    /// - What downstream names `memory:CUDAMemory` in its caps gets frames that lie in GPU memory as CUDA memory, in
    ///   the context that the pipeline shares; needs GStreamer 1.24. Everyone else gets system memory: the exporter
    ///   downloads for them.
    /// - A buffer may be pushed before the GPU has written it, see `gpu-wait`. The memory's stream, downstream's own where
    ///   it proposes one, waits for that; the memory says so in the way of GStreamer, and gst_cuda_memory_sync() waits.
    /// - A frame goes back when the GPU work of the whole context that was queued before its last reference was dropped is
    ///   done, on whatever stream. An application that reads it in another CUDA context names its stream by the
    ///   `FrameshareMeta`, for each buffer.
    /// - What would be the last frame that may be held is copied on the GPU, as is a layout that GStreamer's CUDA memory
    ///   does not have.
    ///
    /// # With `policy=latest`
    ///
    /// What is not taken in time is lost, oldest first, and the exporter never waits.
    ///
    /// # With `policy=lossless`
    ///
    /// Nothing is lost: the exporter waits, as long as its `reader-timeout` allows. It may refuse to.
    pub struct FrameshareSrc(ObjectSubclass<imp::FrameshareSrc>)
        @extends gst_base::PushSrc, gst_base::BaseSrc, gst::Element, gst::Object;
}

/// Makes the element known to the plugin.
pub(crate) fn register(plugin: &gst::Plugin) -> Result<(), glib::BoolError> {
    for property in [
        FrameshareSrcPolicy::static_type(),
        FrameshareSrcGpuWait::static_type(),
        crate::FrameshareFence::static_type(),
    ] {
        property.mark_as_plugin_api(gst::PluginAPIFlags::empty());
    }
    gst::Element::register(Some(plugin), "framesharesrc", gst::Rank::NONE, FrameshareSrc::static_type())
}
