// SPDX-License-Identifier: MIT OR Apache-2.0

//! The treatment of slow lossless readers, and of joining ones.

use super::{
    imp::FrameshareSink,
    input::Input,
    kinds::{self, Export},
    log::CAT,
};
use frameshare::exporter::{History, SlowReaders};
use gst::subclass::prelude::*;
use gst_base::prelude::*;

impl FrameshareSink {
    /// Applies the treatment of slow and of joining readers that suits upstream, its caps and the
    /// present properties.
    pub(super) fn treat_readers(&self, input: &mut Input) {
        let (is_paced, is_live) = (self.obj().is_sync(), self.pacing.is_live());
        let Input { stream, settings, media, pace, .. } = input;
        let settings = settings.refresh(&self.settings);
        let treatment = match settings.slow_readers {
            // A surface in place cannot wait: it is its decoder's.
            _ if stream.export == Export::InPlace || stream.has_device_layout() => SlowReaders::Wait,
            kinds::SlowReaders::Disconnect => SlowReaders::QueueThenDisconnect,
            kinds::SlowReaders::Auto if is_live => SlowReaders::QueueThenDisconnect,
            kinds::SlowReaders::Auto | kinds::SlowReaders::Wait if is_live || is_paced => {
                SlowReaders::QueueThenWait
            }
            // Upstream can wait, and no clock does not.
            kinds::SlowReaders::Auto | kinds::SlowReaders::Wait => SlowReaders::Wait,
        };
        // While the stream waits for a connection, a joining reader gets the next frame at once.
        let keeps = media.info().is_some() && !settings.wait_for_connection;
        let kept = if keeps { stream.history } else { History::default() };
        if pace.apply(stream, treatment, kept) {
            gst::debug!(CAT, imp = self, "{treatment:?}, {kept:?} (live: {is_live}, sync: {is_paced})");
        }
    }
}
