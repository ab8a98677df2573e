// SPDX-License-Identifier: MIT OR Apache-2.0

//! The sink while the decoder in front of it changes.

use crate::sink::{log::CAT, stream::Stream};
use gst::prelude::*;
use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

/// The longest wait for the surfaces that readers hold. A reader that holds one for longer may find
/// it cleared.
const LONGEST_WAIT: Duration = Duration::from_secs(1);

impl Stream {
    /// Listens to what goes into the decoder in front of this pad of the sink, if there is one.
    pub(in crate::sink) fn listen_to_decoder(self: &Arc<Self>, sink: &gst::Pad) {
        let (stream, pad) = (Arc::downgrade(self), sink.downgrade());
        self.decoder.listen(sink, move || {
            if let (Some(stream), Some(sink)) = (stream.upgrade(), pad.upgrade()) {
                stream.take_surfaces_back(&sink);
                stream.finish_change();
            }
        });
    }

    /// Waits until readers have released all surfaces.
    fn take_surfaces_back(&self, sink: &gst::Pad) {
        let begin = Instant::now();
        while self.surfaces.are_read(&self.exporter) {
            if sink.pad_flags().contains(gst::PadFlags::FLUSHING) {
                return;
            }
            if begin.elapsed() > LONGEST_WAIT {
                gst::warning!(CAT, "readers still hold surfaces of a decoder that may clear them now");
                return;
            }
            // Nothing announces the end of a device's work.
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Waits, while the decoder is changing, until all frames so far are in their slots.
    pub(in crate::sink) fn finish_change(&self) {
        if self.decoder.is_changing()
            && let Some(gpu) = self.gpu()
            && let Err(error) = gpu.finish_writes()
        {
            gst::warning!(CAT, "frames of a decoder that changes may be incomplete: {error}");
        }
    }
}
