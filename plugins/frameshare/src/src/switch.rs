// SPDX-License-Identifier: MIT OR Apache-2.0

//! Switch to another stream in PAUSED or PLAYING.
//!
//! Setting `stream` or `socket-path` requests a switch and interrupts the streaming thread, which
//! switches before its next wait. Requests before that are one switch, to the last stream set.

use super::{imp::FrameshareSrc, log::CAT, opening_state::Opening, running::Running};
use crate::{events::start_of_unnamed, sync::lock};
use gst::subclass::prelude::*;
use std::sync::atomic::Ordering::Relaxed;

impl FrameshareSrc {
    /// Requests a switch to the stream that the settings name; no-op unless the source runs.
    pub(super) fn request_switch(&self) {
        let interrupt = lock(&self.interrupt).clone();
        if let Some(interrupt) = interrupt {
            self.pause.request_switch(&interrupt);
        }
    }

    /// Disconnects from the present stream if the settings name another one. Frames held downstream
    /// stay valid.
    pub(super) fn switch(&self, running: &mut Running) -> Result<(), gst::FlowError> {
        let settings = lock(&self.settings).clone();
        let endpoint = settings.endpoint().map_err(|text| {
            gst::element_imp_error!(self, gst::ResourceError::Settings, ("Cannot switch the stream: {text}"));
            gst::FlowError::Error
        })?;
        if endpoint == running.endpoint {
            return Ok(());
        }
        gst::info!(CAT, imp = self, "Switching from {} to {endpoint}", running.endpoint);
        self.note_losses(running);
        running.lost_earlier += running.reader.take().map_or(0, |reader| reader.stats().lost);
        running.opening = Opening::of_switch(start_of_unnamed(endpoint.to_string()));
        running.endpoint = endpoint;
        running.settings = settings;
        running.shape = None;
        running.last = None;
        running.begin_connection();
        self.figures.latency.store(0, Relaxed);
        self.negotiated.change(|negotiated| negotiated.caps = None);
        Ok(())
    }
}
