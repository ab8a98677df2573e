// SPDX-License-Identifier: MIT OR Apache-2.0

//! Connection to the exporter, on the GPU that its frames are on.

use super::{
    cuda::{self, Takes},
    errors,
    imp::FrameshareSrc,
    log::CAT,
    running::Running,
    settings::FrameshareSrcOnDisconnect,
};
use crate::{pipeline, sync::lock};
use frameshare::reader::{ConnectError, Reader};
use gst::{prelude::*, subclass::prelude::*};
use gst_base::prelude::*;
use std::sync::atomic::Ordering::Relaxed;

/// Minimum number of frames to hold if downstream keeps some.
const MIN_HELD: u32 = 4;

impl FrameshareSrc {
    pub(super) fn connect(&self, running: &mut Running) -> Result<Reader, gst::FlowError> {
        let caps = self.obj().src_pad().peer_query_caps(None);
        let takes = Takes::of(&caps);
        let opened = cuda::open(&self.obj(), &self.cuda, takes, running.settings.device());
        running.cuda = opened.map_err(|error| {
            self.post_error_message(errors::of_cuda(&error, &running.endpoint));
            gst::FlowError::Error
        })?;
        let mut connected = self.connect_with(running, takes);
        if running.settings.device().is_none()
            && let Some(exporters) =
                running.cuda.as_ref().and_then(|cuda| cuda.device_of_exporter(&connected))
        {
            gst::info!(CAT, imp = self, "Reading on GPU {exporters}, which holds the exporter's frames");
            if let Some(cuda) = cuda::open_on(&self.cuda, exporters) {
                drop(connected);
                running.cuda = Some(cuda);
                connected = self.connect_with(running, takes);
            }
        }
        let reader = connected.map_err(|error| match errors::of_connect(&error, &running.endpoint) {
            Some(message) => {
                self.post_error_message(message);
                gst::FlowError::Error
            }
            None => gst::FlowError::Flushing,
        })?;
        self.note(&reader);
        Ok(reader)
    }

    /// Connects with the current CUDA context, if there is one.
    fn connect_with(&self, running: &Running, takes: Takes) -> Result<Reader, ConnectError> {
        let Running { interrupt, endpoint, settings, cuda, .. } = running;
        let keeps = self.negotiated.read().downstream.keeps;
        // Two more than downstream keeps: one on its way downstream and one on its way back.
        let max_held = match keeps {
            0 => settings.config.max_held,
            keeps => settings.config.max_held.max(keeps.saturating_add(2)).max(MIN_HELD),
        };
        // The last frame is held while the next one comes.
        let max_held = match (max_held, settings.resend_last()) {
            (1, Some(_)) => 2,
            (max_held, _) => max_held,
        };
        let config = settings
            .config
            .clone()
            .name(self.reader_name())
            .policy(settings.policy.into())
            .max_held(max_held.min(frameshare::MAX_CREDIT))
            .reconnect(settings.on_disconnect == FrameshareSrcOnDisconnect::Wait)
            .gpu(cuda.as_ref().map(|cuda| cuda.engine().clone()))
            .host_fallback(takes == Takes::Both)
            .fence(settings.fence.kind())
            .keep_files(self.passes_files_on());
        gst::debug!(CAT, imp = self, "Connecting to {endpoint}");
        Reader::connect(endpoint, config, interrupt)
    }

    /// Returns whether the pipeline passes the files of memory on to other processes. Each of them
    /// stays open then.
    fn passes_files_on(&self) -> bool {
        let is_passer = |element: gst::Element| element.type_().name() == "GstUnixFdSink";
        pipeline::elements(self.obj().upcast_ref()).into_iter().any(is_passer)
    }

    pub(super) fn note_connection(&self, running: &Running) {
        running.reader.iter().for_each(|reader| self.note(reader));
    }

    fn note(&self, reader: &Reader) {
        let stats = reader.stats();
        gst::info!(CAT, imp = self, "Session {:x} of process {}", stats.session, stats.exporter_pid);
        *lock(&self.key_unit_requests) = reader.key_unit_requests();
        self.figures.session.store(stats.session, Relaxed);
        self.figures.exporter.store(stats.exporter_pid, Relaxed);
        self.figures.credit.store(stats.credit, Relaxed);
    }
}
