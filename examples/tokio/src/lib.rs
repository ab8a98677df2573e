// SPDX-License-Identifier: MIT OR Apache-2.0

//! Frames of frameshare in tokio: an adapter to copy.
//!
//! The crate `frameshare` depends on no runtime. Its readers have one descriptor for their whole
//! life, which tokio polls, and [`Frames::try_next`], which never sleeps.
//!
//! # Safety
//!
//! tokio requires that a registered descriptor stays open and the same: it is owned.
#![allow(unsafe_code)]

use frameshare::reader::{Config, Frame, Frames, OpenError, ReadError};
use std::{
    io,
    os::fd::{AsFd, OwnedFd},
};
use tokio::io::{Interest, unix::AsyncFd};

/// The frames of a stream, to be awaited. Frames may be sent to other tasks and threads.
#[derive(Debug)]
pub struct AsyncFrames {
    /// A duplicate of the reader's descriptor.
    ready: AsyncFd<OwnedFd>,
    frames: Frames,
}

impl AsyncFrames {
    /// Opens a stream by its name or path, without waiting for its exporter. The reader searches
    /// for the next exporter when this one ends.
    ///
    /// # Errors
    /// [`OpenError`] if the text is invalid, or a descriptor cannot be made.
    ///
    /// # Panics
    /// As [`AsyncFrames::new`].
    pub fn open(stream: &str) -> Result<Self, OpenError> {
        let config = Config::default().reconnect(true).connection_timeout(None);
        Ok(Self::new(Frames::start(stream, config)?)?)
    }

    /// Registers a reader with the runtime.
    ///
    /// # Errors
    /// The error of epoll_ctl(2).
    ///
    /// # Panics
    /// Outside of a runtime whose I/O is enabled.
    pub fn new(frames: Frames) -> io::Result<Self> {
        let fd = frames.as_fd().try_clone_to_owned()?;
        // SAFETY: an `OwnedFd` stays open, and is the same descriptor, while it is owned.
        let ready = unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) };
        Ok(Self { ready: ready?, frames })
    }

    /// Returns the next frame; `None` at the end of the stream. No frame is lost if the future is
    /// dropped.
    ///
    /// # Errors
    /// As [`Frames::try_next`].
    pub async fn next(&mut self) -> Result<Option<Frame>, ReadError> {
        loop {
            // Frames that have arrived need no poll. Only the guard's readiness is cleared below:
            // a frame that arrives after the guard was made is not missed.
            match self.frames.try_next()? {
                Some(frame) => return Ok(Some(frame)),
                None if self.frames.has_ended() => return Ok(None),
                None => {}
            }
            let mut ready = self.ready.readable().await.map_err(ReadError::Io)?;
            match self.frames.try_next()? {
                Some(frame) => return Ok(Some(frame)),
                None => ready.clear_ready(),
            }
        }
    }

    /// The reader, for statistics.
    pub fn get_ref(&self) -> &Frames {
        &self.frames
    }
}
