// SPDX-License-Identifier: MIT OR Apache-2.0

//! An exporter of frames in host memory, until SIGINT or SIGTERM arrives.

use crate::{error::Error, signals, stream::invalid};
use frameshare::{
    Endpoint, Interrupt,
    exporter::{
        AcquireError, Config, Exporter, Frame, History, PublishError, Slot, SlowReaders, VideoExporterError,
    },
};
use std::{ops::ControlFlow, time::Duration};

/// Maximum time that the end of the stream waits for lossless readers.
const DRAIN: Duration = Duration::from_secs(10);
/// Interval at which the number of readers is checked.
const TURN: Duration = Duration::from_millis(10);

/// Silence after which a joining reader gets the last frame.
const HISTORY: Duration = Duration::from_millis(250);

/// Returns the endpoint of a new stream.
pub fn named(text: &str) -> Result<Endpoint, Error> {
    Endpoint::of_text(text).map_err(invalid)
}

#[derive(Debug)]
pub struct Publisher {
    pub exporter: Exporter,
    pub interrupt: Interrupt,
}

impl Publisher {
    /// Opens a stream that waits for its lossless readers.
    pub fn open(stream: &str) -> Result<Self, Error> {
        let endpoint = named(stream)?;
        let interrupt = signals::interrupt()?;
        let config = Config::default().slow_readers(SlowReaders::Wait).history(History::Last(HISTORY));
        let exporter = Exporter::bind(&endpoint, config, |_| ())?;
        exporter.use_host_memory(true);
        Ok(Self { exporter, interrupt })
    }

    /// Waits for so many readers, or for a signal.
    pub fn wait_for_readers(&self, readers: usize) -> Result<(), Error> {
        while self.exporter.reader_count() < readers && !self.sleep(TURN) {}
        Ok(())
    }

    /// Waits for a time, and returns whether a signal came before.
    pub fn sleep(&self, time: Duration) -> bool {
        signals::wait(&self.interrupt, time)
    }

    /// Returns a slot whose bytes are filled; `None` after a signal.
    pub fn slot(&self, size: u64, fill: impl FnOnce(&mut [u8])) -> Result<Option<Slot>, Error> {
        match self.exporter.filled(size, &self.interrupt, fill) {
            Ok(slot) => Ok(Some(slot)),
            Err(VideoExporterError::Acquire(AcquireError::Interrupted)) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Publishes a frame. Breaks at a signal.
    pub fn publish(&self, frame: Frame<'_>) -> Result<ControlFlow<()>, Error> {
        match self.exporter.publish(frame, &self.interrupt) {
            Ok(_) => Ok(ControlFlow::Continue(())),
            Err(PublishError::Interrupted) => Ok(ControlFlow::Break(())),
            Err(error) => Err(VideoExporterError::from(error).into()),
        }
    }

    /// Ends the stream once lossless readers have its frames.
    pub fn end(&self) -> Result<(), Error> {
        self.exporter.end_of_stream();
        // A signal ends the wait.
        let _ = self.exporter.drain(DRAIN, &self.interrupt);
        Ok(())
    }
}
