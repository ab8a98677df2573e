// SPDX-License-Identifier: MIT OR Apache-2.0

//! Notices of the exporter, as signals and messages.

use super::{imp::FrameshareSink, kinds::Layout, log::CAT, messages, stats};
use crate::sync::lock;
use frameshare::exporter::Notice;
use gst::{prelude::*, subclass::prelude::*};

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
                }
                sink.emit_by_name::<()>("reader-removed", &[&stats::reader(&reader), &why]);
                sink.notify("num-clients");
            }
            Notice::ReaderRefused { pid, uid, why } => {
                gst::warning!(CAT, imp = self, "reader refused: process {pid} of user {uid}: {why}");
            }
            Notice::ReaderBlocking { reader, blocked_for } => {
                gst::warning!(CAT, imp = self, "waiting for {blocked_for:?} for reader {reader:?}");
                self.post(messages::blocking(&reader, blocked_for));
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
            Notice::SocketBound => {
                gst::warning!(CAT, imp = self, "the socket was removed, and is bound again");
            }
            other => gst::info!(CAT, imp = self, "{other:?}"),
        }
    }

    /// Changes to the default layout if that saves copies: upstream makes one instead of one in
    /// each reader.
    fn note_layout_copies(&self, readers: usize) {
        let is_auto = lock(&self.settings).layout == Layout::Auto;
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

    /// Posts an element message.
    fn post(&self, structure: gst::Structure) {
        let sink = self.obj();
        let message = gst::message::Element::builder(structure).src(&*sink).build();
        // It fails without a bus.
        let _ = sink.post_message(message);
    }
}
