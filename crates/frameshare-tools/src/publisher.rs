// SPDX-License-Identifier: MIT OR Apache-2.0

//! An exporter of frames in host memory, until SIGINT or SIGTERM arrives.

use crate::{error::Error, signals, stream::invalid};
use frameshare::{
    Endpoint, Interrupt, Wait,
    exporter::{AcquireError, Config, Exporter, History, PublishError, SlowReaders, VideoExporterError},
};
use std::time::Duration;

/// Maximum time that the end of the stream waits for lossless readers.
const DRAIN: Duration = Duration::from_secs(10);
/// Interval at which the number of readers is checked.
const TURN: Duration = Duration::from_millis(10);

/// Returns the endpoint of a new stream.
pub fn named(text: &str) -> Result<Endpoint, Error> {
    Endpoint::of_text(text).map_err(invalid)
}

#[derive(Debug)]
pub struct Publisher {
    pub exporter: Exporter,
    pub interrupt: Interrupt,
}

/// Returns the configuration of a stream that waits for its lossless readers, until a signal.
pub fn config(interrupt: &Interrupt) -> Config {
    Config::default()
        .slow_readers(SlowReaders::Wait)
        .history(History::Frames(1))
        .interrupt(Some(interrupt.clone()))
}

impl Publisher {
    /// Opens a stream of frames of any media.
    pub fn open(stream: &str) -> Result<Self, Error> {
        let (endpoint, interrupt) = (named(stream)?, signals::interrupt()?);
        let exporter = Exporter::bind(&endpoint, config(&interrupt), |_| ())?;
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

    /// Ends the stream once lossless readers have its frames.
    pub fn end(&self) -> Result<(), Error> {
        self.exporter.end_of_stream();
        // A signal ends the wait.
        let _ = self.exporter.drain(Wait::For(DRAIN));
        Ok(())
    }
}

/// Returns the result of a wait; `None` after a signal.
pub fn until_signal<T>(result: Result<T, impl Into<VideoExporterError>>) -> Result<Option<T>, Error> {
    match result.map_err(Into::into) {
        Ok(found) => Ok(Some(found)),
        Err(
            VideoExporterError::Acquire(AcquireError::Interrupted)
            | VideoExporterError::Publish(PublishError::Interrupted),
        ) => Ok(None),
        Err(error) => Err(error.into()),
    }
}
