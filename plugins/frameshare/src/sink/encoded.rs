// SPDX-License-Identifier: MIT OR Apache-2.0

//! Media that the sink shares only if a property asks for it: encoded media, and any other type.
//!
//! Autopluggers find out whether a decoder is needed: playbin by a CAPS query to a sink in READY
//! that is not linked yet, others by CAPS or ACCEPT_CAPS queries to a linked one. Without `encoded`
//! the sink refuses encoded media in all of these, so that they decode. It offers encoded media in
//! CAPS queries that check a link, in NULL or later for a pad that appears while the pipeline runs:
//! the link succeeds, and the error of a pipeline without a decoder names the property.

use super::{caps, imp::FrameshareSink, log::CAT};
use gst::{prelude::*, subclass::prelude::*};
use std::sync::atomic::Ordering::Relaxed;

impl FrameshareSink {
    /// Returns whether the properties let the sink share encoded media.
    fn takes_encoded(&self) -> bool {
        let settings = self.settings.read();
        settings.encoded || settings.any_caps
    }

    /// Removes encoded media from the caps that the sink offers, unless it is shared or the query
    /// may check a link.
    pub(super) fn without_encoded(&self, caps: &mut gst::Caps) {
        let sink = self.obj();
        let may_check_link = match sink.current_state().max(sink.pending_state()) {
            gst::State::Null => true,
            gst::State::Ready => false,
            _ => sink.static_pad("sink").is_some_and(|pad| !pad.is_linked()),
        };
        if !may_check_link && !self.takes_encoded() {
            *caps = caps::raw_of(caps);
        }
    }

    /// Returns whether an ACCEPT_CAPS query is about encoded media that the sink does not share.
    /// The first refusal of a session posts a warning.
    pub(super) fn refuses_encoded(&self, caps: &gst::CapsRef) -> bool {
        let Some(media) = caps::encoded_media(caps) else { return false };
        if self.takes_encoded() {
            return false;
        }
        gst::debug!(CAT, imp = self, "refused {caps}: encoded=false");
        if !self.has_refused_encoded.load(Relaxed) {
            let text = format!(
                "Encoded media ({media}) is refused, so that upstream decodes it; set encoded=true to share it as it is"
            );
            let warning = gst::message::Warning::builder(gst::CoreError::Negotiation, &text);
            // Without a bus, as while playbin checks its sink, the next refusal posts it.
            let posted = self.obj().post_message(warning.src(&*self.obj()).build()).is_ok();
            self.has_refused_encoded.store(posted, Relaxed);
        }
        true
    }

    /// Fails for media that the properties exclude; the error names the property.
    pub(super) fn check_media(&self, caps: &gst::CapsRef) -> Result<(), gst::ErrorMessage> {
        if self.settings.read().any_caps {
            return Ok(());
        }
        if let Some(media) = caps::encoded_media(caps) {
            return if self.takes_encoded() { Ok(()) } else { Err(encoded(media)) };
        }
        match caps.structure(0) {
            Some(structure) if !caps::is_raw(structure.name()) => Err(unlisted(structure.name())),
            _ => Ok(()),
        }
    }
}

fn encoded(media: &str) -> gst::ErrorMessage {
    gst::error_msg!(
        gst::CoreError::Negotiation,
        (
            "Encoded media ({}) is not shared by default: put a decoder such as decodebin before framesharesink, \
             or set encoded=true to share it as it is",
            media
        )
    )
}

fn unlisted(media: &str) -> gst::ErrorMessage {
    gst::error_msg!(
        gst::CoreError::Negotiation,
        ("Media of the type {} is not shared by default: set any-caps=true on framesharesink", media)
    )
}
