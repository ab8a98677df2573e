// SPDX-License-Identifier: MIT OR Apache-2.0

//! Notices of the exporter, as signals and messages.

use super::{
    imp::FrameshareSink, input::Input, kinds::Layout, limit::Kind, log::CAT, messages, settings::Settings,
    stats,
};
use crate::sync::lock;
use frameshare::{
    Endpoint,
    exporter::{Notice, ReaderInfo},
};
use gst::{prelude::*, subclass::prelude::*};
use std::time::Instant;

impl FrameshareSink {
    /// Handles a notice of the exporter; called on its threads.
    pub(super) fn notice(&self, notice: Notice) {
        let sink = self.obj();
        match notice {
            Notice::ReaderAdded(reader) => {
                gst::info!(CAT, imp = self, "reader added: {reader:?}");
                sink.emit_by_name::<()>("reader-added", &[&stats::reader(&reader)]);
                sink.notify("num-clients");
            }
            Notice::ReaderRemoved { reader, reason, why } => {
                gst::info!(CAT, imp = self, "reader removed: {why}: {reader:?}");
                if let Some(message) = messages::cut_off(&reader, reason, &why) {
                    gst::warning!(CAT, imp = self, "reader cut off: {why}: {reader:?}");
                    self.post(message);
                    let text =
                        format!("Disconnected {}: {}", messages::name(&reader), messages::printable(&why));
                    self.warn_of_reader(Kind::Evicted, reader.uid, reader.pid, text);
                }
                sink.emit_by_name::<()>("reader-removed", &[&stats::reader(&reader), &why]);
                sink.notify("num-clients");
            }
            Notice::ReaderRefused { pid, uid, why } => {
                gst::warning!(CAT, imp = self, "reader refused: process {pid} of user {uid}: {why}");
                let text = format!(
                    "Refused {} of user {uid}: {}",
                    messages::process(pid),
                    messages::printable(&why)
                );
                self.warn_of_reader(Kind::Refused, uid, pid, text);
            }
            Notice::ReaderBlocking { reader, blocked_for } => {
                gst::warning!(CAT, imp = self, "waiting for {blocked_for:?} for reader {reader:?}");
                self.post(messages::blocking(&reader, blocked_for));
                let text = format!(
                    "Waiting for {}, which takes no frames; at most for the reader-timeout",
                    messages::name(&reader)
                );
                self.warn_of_reader(Kind::Blocking, reader.uid, reader.pid, text);
            }
            Notice::SocketLost { why } => {
                gst::element_imp_warning!(
                    self,
                    gst::ResourceError::Close,
                    (
                        "Readers can no longer connect: the socket was removed or replaced ({}); restart this element, or remove what took its place",
                        why
                    )
                );
            }
            Notice::OthersCouldWrite { refused: true, why } => {
                gst::element_imp_warning!(
                    self,
                    gst::ResourceError::Settings,
                    (
                        "Readers of other users are refused: {}; update the kernel, or set allow-udmabuf to let them read and write",
                        why
                    )
                );
            }
            Notice::OthersCouldWrite { refused: false, why } => {
                gst::element_imp_warning!(
                    self,
                    gst::ResourceError::Settings,
                    (
                        "Readers of other users are admitted untested: {}; let this user open the device, or set allow-udmabuf to accept the risk",
                        why
                    )
                );
            }
            Notice::KeyUnitWanted => {
                gst::debug!(CAT, imp = self, "asking upstream for a key unit");
                let event = gst_video::UpstreamForceKeyUnitEvent::builder().all_headers(true).build();
                if let Some(pad) = sink.static_pad("sink") {
                    pad.push_event(event);
                }
            }
            Notice::LayoutCopied { readers } => self.note_layout_copies(readers),
            Notice::Failed { why } => {
                self.note_failure();
                gst::element_imp_error!(self, gst::LibraryError::Failed, ("The stream was closed: {}", why));
            }
            Notice::SocketBound => {
                gst::warning!(CAT, imp = self, "the socket was removed, and is bound again");
            }
            other => gst::info!(CAT, imp = self, "{other:?}"),
        }
    }

    /// Changes to the default layout if that saves copies: upstream makes one instead of one in
    /// each reader.
    fn note_layout_copies(&self, readers: usize) {
        let is_auto = self.settings.read().layout == Layout::Auto;
        let Some(stream) = self.stream() else { return };
        if !is_auto || readers < 2 || !stream.set_compact(true) {
            return;
        }
        gst::info!(CAT, imp = self, "{readers} readers copy padded rows: frames get the default layout");
        // Upstream asks for memory again.
        if let Some(pad) = self.obj().static_pad("sink") {
            pad.push_event(gst::event::Reconfigure::new());
        }
    }

    /// Posts where the stream is shared, and how to read it.
    pub(super) fn post_sharing(&self, settings: &Settings, endpoint: &Endpoint) {
        let text = format!("Sharing at {endpoint}; to read: framesharesrc {}", settings.of_reader(endpoint));
        // Of an INFO message, gst-launch-1.0 prints the details only.
        gst::element_imp_info!(self, gst::ResourceError::OpenWrite, ("{}", text), ["{}", text]);
    }

    /// Warns of a reader that had left, and lost the frames that it still held.
    pub(super) fn warn_of_lost_frames(&self, reader: &ReaderInfo, why: &str) {
        gst::warning!(CAT, imp = self, "frames taken back: {why}: {reader:?}");
        let text = format!("Took back the frames of {}, which had left: {why}", messages::name(reader));
        self.warn_of_reader(Kind::Evicted, reader.uid, reader.pid, text);
    }

    /// Posts a warning about a reader, at most one of a kind a second for each process.
    fn warn_of_reader(&self, kind: Kind, uid: u32, pid: u32, mut text: String) {
        let Some(left_out) = lock(&self.limit).admit(kind, uid, pid, Instant::now()) else { return };
        if left_out > 0 {
            text = format!("{text} (and {left_out} times more since the last warning)");
        }
        gst::element_imp_warning!(self, gst::ResourceError::Close, ("{}", text));
    }

    /// Posts a warning about the first copy of raw video for each reason.
    pub(super) fn warn_of_copies(&self, input: &Input) {
        for why in input.stream.copy_stats.take_warnings() {
            // Units of encoded streams are small, and written elsewhere by all encoders.
            if input.media.info().is_some() {
                gst::element_imp_warning!(
                    self,
                    gst::ResourceError::Settings,
                    ("Frames are copied: {}; the property stats counts them", why)
                );
            }
        }
    }

    /// Posts an element message.
    fn post(&self, structure: gst::Structure) {
        let sink = self.obj();
        let message = gst::message::Element::builder(structure).src(&*sink).build();
        // It fails without a bus.
        let _ = sink.post_message(message);
    }
}
