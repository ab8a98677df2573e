// SPDX-License-Identifier: MIT OR Apache-2.0

//! Frames of frameshare in async-io, the reactor of smol: an adapter to copy.
//!
//! The crate `frameshare` depends on no runtime. Its readers have one descriptor for their whole
//! life, which the reactor polls, and [`Frames::try_next`], which never sleeps.

use async_io::Async;
use frameshare::reader::{Config, Frame, Frames, OpenError, ReadError};
use std::{
    io,
    os::fd::{AsFd, OwnedFd},
};

/// The frames of a stream, to be awaited. Frames may be sent to other tasks and threads.
#[derive(Debug)]
pub struct AsyncFrames {
    /// A duplicate of the reader's descriptor.
    ready: Async<OwnedFd>,
    frames: Frames,
}

impl AsyncFrames {
    /// Opens a stream by its name or path, without waiting for its exporter. The reader searches
    /// for the next exporter when this one ends.
    ///
    /// # Errors
    /// [`OpenError`] if the text is invalid, or a descriptor cannot be made.
    pub fn open(stream: &str) -> Result<Self, OpenError> {
        let config = Config::default().reconnect(true).connection_timeout(None);
        Ok(Self::new(Frames::start(stream, config)?)?)
    }

    /// Registers a reader with the reactor.
    ///
    /// # Errors
    /// The error of the system call.
    pub fn new(frames: Frames) -> io::Result<Self> {
        let ready = Async::new_nonblocking(frames.as_fd().try_clone_to_owned()?)?;
        Ok(Self { ready, frames })
    }

    /// Returns the next frame; `None` at the end of the stream. No frame is lost if the future is
    /// dropped.
    ///
    /// # Errors
    /// As [`Frames::try_next`].
    pub async fn next(&mut self) -> Result<Option<Frame>, ReadError> {
        loop {
            match self.frames.try_next()? {
                Some(frame) => return Ok(Some(frame)),
                None if self.frames.has_ended() => return Ok(None),
                None => self.ready.readable().await.map_err(ReadError::Io)?,
            }
        }
    }

    /// The reader, for statistics.
    pub fn get_ref(&self) -> &Frames {
        &self.frames
    }
}
