// SPDX-License-Identifier: MIT OR Apache-2.0

//! One run of the sink: opening of the stream, its end, its close.

use super::{imp::FrameshareSink, input::Input, log::CAT, stats, stream::Stream};
use crate::{
    ffi::base_sink::{PacedSinkImpl, preroll, without_preroll_lock},
    sync::lock,
};
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
        let settings = self.settings.read().clone();
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
        self.pacing.reset();
        self.arrival.forget();
        let stream = Arc::new(Stream::new(exporter, gpu, &settings, history));
        self.input.set(Input::new(stream.clone(), &self.settings));
        *lock(&self.stream) = Some(stream);
        // Readers that connected before are counted.
        self.obj().notify("num-clients");
        Ok(())
    }

    /// Closes the stream. Readers keep the frames that they hold.
    pub(super) fn close(&self) {
        let input = self.input.clear();
        self.pacing.reset();
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

impl FrameshareSink {
    /// Runs a wait of `render` or `wait_event`, which changes of state and flushes interrupt.
    pub(super) fn wait<R>(&self, stream: &Stream, wait: impl FnOnce() -> R) -> R {
        self.wait_for(stream, false, wait)
    }

    /// The same; a change of the property interrupts it, too, if it is `for_reader`.
    pub(super) fn wait_for<R>(&self, stream: &Stream, for_reader: bool, wait: impl FnOnce() -> R) -> R {
        let begun = stream.waiting.begin(for_reader);
        without_preroll_lock(self, || {
            let result = wait();
            drop(begun);
            result
        })
    }
}

impl PacedSinkImpl for FrameshareSink {
    fn is_paced(&self) -> bool {
        self.obj().is_sync() && self.pacing.waits()
    }

    /// Handles a gap, or the end of the stream, which is answered when this returns.
    fn wait_event(&self, event: &gst::Event) -> Result<(), gst::FlowError> {
        if let gst::EventView::Gap(gap) = event.view() {
            self.input.with(|input| self.forward_gap(input, gap));
        }
        let (Some(stream), gst::EventView::Eos(_)) = (self.stream(), event.view()) else { return Ok(()) };
        self.end(&stream);
        let timeout = self.settings.read().drain_timeout;
        let begin = Instant::now();
        loop {
            preroll(self, event.upcast_ref())?;
            let left = timeout.saturating_sub(begin.elapsed());
            match self.wait(&stream, || stream.exporter.drain(Wait::For(left))) {
                Ok(true) => break,
                Ok(false) => {
                    gst::warning!(CAT, imp = self, "lossless readers did not finish within {timeout:?}");
                    break;
                }
                Err(_) => {}
            }
        }
        Ok(())
    }
}
