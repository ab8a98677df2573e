// SPDX-License-Identifier: MIT OR Apache-2.0

//! Frames of a stream, until it ends or SIGINT or SIGTERM arrives.

use crate::{
    error::Error,
    signals,
    stream::{TIMEOUT, find},
};
use frameshare::{
    Interrupt,
    observer::Observer,
    reader::{Config, Frame, Item, ReadError, Reader},
};
use std::time::{Duration, Instant};

/// A reader of a stream.
#[derive(Debug)]
pub struct Frames {
    reader: Reader,
    interrupt: Interrupt,
}

/// The next step of a stream.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "nearly every step is a frame")]
pub enum Step {
    Frame(Frame),
    /// No frame came in time.
    Timeout,
    /// The stream has ended, or a signal arrived.
    End,
}

impl Frames {
    /// Joins a stream as a `latest` reader that delays no other and takes the credit of one frame.
    pub fn join(stream: &str) -> Result<Self, Error> {
        Self::join_with(stream, Config::default().max_held(1))
    }

    /// Joins a stream as a reader without a GPU: the exporter copies frames on one to host memory.
    pub fn join_with(stream: &str, config: Config) -> Result<Self, Error> {
        let endpoint = find(stream)?;
        let interrupt = signals::interrupt()?;
        // A reader waits for an exporter that is not there; an observer fails at once.
        drop(Observer::connect(&endpoint, TIMEOUT)?);
        let config = config.connection_timeout(Some(TIMEOUT));
        let reader = Reader::connect(&endpoint, config, &interrupt)?;
        Ok(Self { reader, interrupt })
    }

    /// Waits for the next frame.
    pub fn next(&mut self, timeout: Option<Duration>) -> Result<Step, Error> {
        loop {
            match self.next_item(timeout) {
                Ok(Some(Item::Frame(frame))) => return Ok(Step::Frame(frame)),
                Ok(Some(Item::EndOfStream)) => return Ok(Step::End),
                Ok(Some(_)) => {}
                Ok(None) => return Ok(Step::Timeout),
                Err(ReadError::Interrupted | ReadError::Stopped(_)) => return Ok(Step::End),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Waits for the next item.
    pub fn next_item(&mut self, timeout: Option<Duration>) -> Result<Option<Item>, ReadError> {
        self.reader.next(timeout, &self.interrupt)
    }
}

/// Returns the newest frame of a stream; an error if none comes in time.
pub fn newest(stream: &str, limit: Duration) -> Result<Frame, Error> {
    let mut frames = Frames::join(stream)?;
    let deadline = Instant::now() + limit;
    match frames.next(Some(deadline.saturating_duration_since(Instant::now())))? {
        Step::Frame(frame) => Ok(frame),
        Step::Timeout => Err(Error::NoFrame { stream: stream.to_owned(), limit }),
        Step::End => Err(Error::Ended { stream: stream.to_owned() }),
    }
}
