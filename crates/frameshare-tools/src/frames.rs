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
use std::time::Duration;

/// A `latest` reader that delays no other.
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
    /// Joins a stream as a reader without a GPU: the exporter copies frames on one to host memory.
    pub fn join(stream: &str) -> Result<Self, Error> {
        let endpoint = find(stream)?;
        let interrupt = signals::interrupt()?;
        // A reader waits for an exporter that is not there; an observer fails at once.
        drop(Observer::connect(&endpoint, TIMEOUT)?);
        let config = Config::default().max_held(1).connection_timeout(Some(TIMEOUT));
        let reader = Reader::connect(&endpoint, config, &interrupt)?;
        Ok(Self { reader, interrupt })
    }

    /// Waits for the next frame.
    pub fn next(&mut self, timeout: Option<Duration>) -> Result<Step, Error> {
        loop {
            match self.reader.next(timeout, &self.interrupt) {
                Ok(Some(Item::Frame(frame))) => return Ok(Step::Frame(frame)),
                Ok(Some(Item::EndOfStream)) => return Ok(Step::End),
                Ok(Some(_)) => {}
                Ok(None) => return Ok(Step::Timeout),
                Err(ReadError::Interrupted | ReadError::Stopped(_)) => return Ok(Step::End),
                Err(error) => return Err(error.into()),
            }
        }
    }
}
