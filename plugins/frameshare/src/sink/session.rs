// SPDX-License-Identifier: MIT OR Apache-2.0

//! One run of the sink: opening of the stream, its end, its close.

use super::{
    imp::{FrameshareSink, Input},
    log::CAT,
    stats,
    stream::Stream,
};
use crate::{ffi::base_sink::PacedSinkImpl, sync::lock};
use frameshare::{Wait, exporter::Exporter};
use gst::{prelude::*, subclass::prelude::*};
use gst_base::prelude::*;
use std::{
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Instant,
};

impl FrameshareSink {
    /// Opens the stream for readers.
    pub(super) fn open(&self) -> Result<(), gst::ErrorMessage> {
        let settings = lock(&self.settings).clone();
        let endpoint = settings.endpoint()?;
        let history = settings
            .history()
            .map_err(|error| gst::error_msg!(gst::ResourceError::Settings, ("{}", error)))?;
        let sink = self.obj().downgrade();
        let observer = move |notice| {
            if let Some(sink) = sink.upgrade() {
                sink.imp().notice(notice);
            }
        };
        let gpu = self.find_gpu(&settings)?;
        let context = gpu.as_ref().ok().map(|gpu| gpu.engine.clone());
        let exporter = Exporter::bind(&endpoint, settings.config(context), observer)
            .map_err(|error| crate::errors::bind(&error))?;
        gst::info!(CAT, imp = self, "sharing at {endpoint}");
        self.post_sharing(&settings, &endpoint);
        match &gpu {
            Ok(_) => gst::info!(CAT, imp = self, "GPU memory: {:?}", exporter.stats().memory),
            Err(why) => gst::debug!(CAT, imp = self, "no GPU memory: {why:?}"),
        }
        *lock(&self.input) = Input::default();
        *lock(&self.stream) = Some(Arc::new(Stream::new(exporter, gpu, &settings, history)));
        // Readers that connected before are counted.
        self.obj().notify("num-clients");
        Ok(())
    }

    /// Closes the stream. Readers keep the frames that they hold.
    pub(super) fn close(&self) {
        let input = std::mem::take(&mut *lock(&self.input));
        let stream = lock(&self.stream).take();
        self.has_refused_encoded.store(false, Relaxed);
        drop(input);
        if let Some(stream) = stream {
            gst::info!(CAT, imp = self, "stopping after {:?}", stats::stats(Some(&stream), self.is_paced()));
            stream.slots.close();
            stream.end_span();
            let had_gpu = stream.gpu().is_some();
            drop(stream);
            self.context.clear();
            if had_gpu {
                crate::cuda::settle();
            }
            self.obj().notify("num-clients");
        }
    }
}

impl PacedSinkImpl for FrameshareSink {
    /// Frames of a live upstream are published when they arrive, unless `sync` is set.
    fn is_paced(&self) -> bool {
        let is_set = lock(&self.settings).sync;
        self.obj().is_sync() && is_set.unwrap_or_else(|| self.input().is_live != Some(true))
    }

    /// Handles a gap, or the end of the stream, which is answered when this returns.
    fn wait_event(&self, event: &gst::Event) -> Result<(), gst::FlowError> {
        if let gst::EventView::Gap(gap) = event.view() {
            self.forward_gap(gap);
        }
        let (Some(stream), gst::EventView::Eos(_)) = (self.stream(), event.view()) else { return Ok(()) };
        self.end(&stream);
        let timeout = lock(&self.settings).drain_timeout;
        let begin = Instant::now();
        loop {
            let left = timeout.saturating_sub(begin.elapsed());
            match stream.exporter.drain(Wait::For(left)) {
                Ok(true) => break,
                Ok(false) => {
                    gst::warning!(CAT, imp = self, "lossless readers did not finish within {timeout:?}");
                    break;
                }
                Err(_) => self.obj().wait_preroll()?,
            };
        }
        Ok(())
    }
}
