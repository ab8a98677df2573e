//! `framesharesink`.

mod allocation;
mod caps;
mod copies;
mod events;
mod gpu;
mod imp;
mod kinds;
mod messages;
mod placed;
mod refusal;
mod settings;
mod stats;
mod stream;
mod vfuncs;
mod waiting;

use gst::prelude::*;

pub(crate) const ELEMENT: &str = "framesharesink";

glib::wrapper! {
    /// `framesharesink`: makes the frames that arrive readable by any number of other processes, which read them in place.
    ///
    /// # Examples
    ///
    /// ```text
    /// gst-launch-1.0 filesrc location=film.mp4 ! qtdemux ! h264parse ! avdec_h264 ! framesharesink stream=cam0
    /// gst-launch-1.0 v4l2src ! framesharesink stream=cam1 wait-for-connection=true
    /// ```
    ///
    /// With nvh264dec in place of avdec_h264 frames stay on the GPU.
    ///
    /// # What it does
    ///
    /// - The stream has a name (`stream`), under which `framesharesrc` and the other readers find it, or a path of its own
    ///   (`socket-path`). It exists from READY to PAUSED on; frames go out in PLAYING.
    /// - Upstream is offered memory that readers can map, and usually writes its frames there: then nothing is copied. What
    ///   comes in other memory is copied once. `stats` counts the copies, with their reasons.
    /// - A reader that cannot keep up loses frames and hurts nobody, unless it asked for every frame and `lossless-readers`
    ///   lets it: the sink then waits for it, no longer than `reader-timeout` at a time.
    ///   While it waits, the element message `framesharesink-reader-blocking` names the reader: the fields of the structure that
    ///   `reader-added` carries, and `blocked-for` (ns).
    /// - A reader that is cut off (for taking too long, holding too much, a failed GPU, a broken protocol) is named by the element
    ///   message `framesharesink-reader-cut-off`: the same fields, `reason` and, in words, `why`. The reader is told, too.
    /// - Only the user who runs the sink may read, and root. Others are let in by `allowed-uids` or `allowed-gids` together with
    ///   `socket-path`, in a folder that they may enter, and `socket-mode`. Whoever is refused is named in the log, by process and
    ///   user, and told so.
    /// - Frames are published when they are due (`sync=true`), with the time at which they are to be shown.
    /// - With the frames go their caps, times, offsets, flags and metas, and the events stream-start, tag, gap and custom ones;
    ///   an end of stream too. A flush does not: after a seek the next frame is marked DISCONT.
    ///
    /// # With CUDA memory
    ///
    /// - Frames in CUDA memory are shared on the GPU, in the kind of memory that `memory` names; readers' work is ordered by
    ///   `fence`. Decoders and the cuda elements write into the sink's slots; a decoder's own surfaces are shared where they
    ///   lie (`export`) as long as every reader is of the same user and can open them, and no more than seven at a time, so
    ///   that the decoder never waits; everything else is copied once, by the GPU. Without a GPU, or GStreamer 1.24, host
    ///   memory is all there is. `stats` says which way how many frames went, and why.
    pub struct FrameshareSink(ObjectSubclass<imp::FrameshareSink>)
        @extends gst_base::BaseSink, gst::Element, gst::Object;
}

/// Makes the element known to the plugin.
pub(crate) fn register(plugin: &gst::Plugin) -> Result<(), glib::BoolError> {
    settings::LosslessReaders::static_type().mark_as_plugin_api(gst::PluginAPIFlags::empty());
    kinds::Memory::static_type().mark_as_plugin_api(gst::PluginAPIFlags::empty());
    kinds::Export::static_type().mark_as_plugin_api(gst::PluginAPIFlags::empty());
    crate::FrameshareFence::static_type().mark_as_plugin_api(gst::PluginAPIFlags::empty());
    gst::Element::register(Some(plugin), ELEMENT, gst::Rank::NONE, FrameshareSink::static_type())
}
