// SPDX-License-Identifier: MIT OR Apache-2.0

//! Frames as an iterator, with the defaults of an application.

use super::{Config, ConnectError, Frame, Item, ReadError, Reader};
use crate::{Endpoint, EndpointError, Interrupt};
use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd},
    time::Duration,
};

/// The reason why a stream could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The text is neither a name nor a path.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// No exporter admitted the reader.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// A descriptor could not be made.
    #[error("cannot open a stream: {0}")]
    Io(#[from] io::Error),
}

/// Opens a stream by its name or path ([`Endpoint::find`]), waiting up to 5 s for its exporter.
///
/// The defaults are those of an application that wants recent frames: policy `latest` with the
/// newest frame, which never delays the exporter; and a search without limit for the next exporter
/// when this one ends. [`Frames::open`] takes other ones.
///
/// ```no_run
/// for frame in frameshare::open("cam0")? {
///     let frame = frame?;
///     let luma = frame.plane(0)?;
///     println!("frame {}: {}x{}", frame.descriptor().sequence, luma.width, luma.height);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`OpenError`] if the text is invalid, or no exporter admits the reader in time.
pub fn open(stream: &str) -> Result<Frames, OpenError> {
    let mut frames = Frames::open(stream, Config::default().reconnect(true))?;
    frames.reader.set_connection_timeout(None);
    Ok(frames)
}

/// The frames of a stream, as a blocking iterator.
///
/// It ends with the stream, and goes on if the stream does; it ends with an error. Events, formats
/// and reconnections are passed over: [`Frame::format`] has the format of each frame, and a
/// [`Reader`] yields every [`Item`]. Used from one thread at a time; the frames may go to any
/// thread.
#[derive(Debug)]
pub struct Frames {
    reader: Reader,
    interrupt: Interrupt,
    has_ended: bool,
    /// The iterator has returned an error after which nothing follows.
    has_failed: bool,
}

impl Frames {
    /// Opens a stream by its name or path with a configuration of its own.
    ///
    /// ```no_run
    /// # use frameshare::{Policy, reader::{Config, Frames}};
    /// let frames = Frames::open("cam0", Config::default().policy(Policy::Lossless).max_held(8))?;
    /// # Ok::<(), frameshare::reader::OpenError>(())
    /// ```
    ///
    /// # Errors
    /// As [`open`].
    pub fn open(stream: &str, config: Config) -> Result<Self, OpenError> {
        let interrupt = Interrupt::new()?;
        let reader = Reader::connect(&Endpoint::find(stream)?, config, &interrupt)?;
        Ok(Self { reader, interrupt, has_ended: false, has_failed: false })
    }

    /// As [`Frames::open`], but returns at once, without waiting for the exporter: for event loops.
    /// The first frames come when it is found, within
    /// [`connection_timeout`](Config#structfield.connection_timeout).
    ///
    /// # Errors
    /// [`OpenError`] if the text or the configuration is invalid.
    pub fn start(stream: &str, config: Config) -> Result<Self, OpenError> {
        let reader = Reader::start(&Endpoint::find(stream)?, config)?;
        Ok(Self { reader, interrupt: Interrupt::new()?, has_ended: false, has_failed: false })
    }

    /// Returns the next frame; `None` if none came within the timeout, or the stream has ended
    /// ([`Frames::has_ended`]).
    ///
    /// # Errors
    /// As [`Reader::next`].
    pub fn next_within(&mut self, timeout: Duration) -> Result<Option<Frame>, ReadError> {
        self.advance(Some(timeout))
    }

    /// Returns the next frame if it has arrived. Never sleeps. After `None`, the descriptor of
    /// [`AsFd`] becomes readable when more arrives; see [`Reader::try_next`].
    ///
    /// # Errors
    /// As [`Reader::next`].
    pub fn try_next(&mut self) -> Result<Option<Frame>, ReadError> {
        loop {
            let item = self.reader.try_next()?;
            if let Some(found) = self.select(item) {
                return Ok(found);
            }
        }
    }

    /// Returns whether the stream has ended and not continued since.
    pub fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// A handle that ends waits for frames from other threads: they return
    /// [`ReadError::Interrupted`] while it is set. It takes a lock, so a signal handler must not
    /// set it.
    pub fn interrupt(&self) -> Interrupt {
        self.interrupt.clone()
    }

    /// The reader, for statistics and requests.
    pub fn reader(&self) -> &Reader {
        &self.reader
    }

    /// Returns the reader, for all items instead of frames alone.
    pub fn into_reader(self) -> Reader {
        self.reader
    }

    fn advance(&mut self, timeout: Option<Duration>) -> Result<Option<Frame>, ReadError> {
        let timeout = crate::sys::Timeout::after(timeout);
        loop {
            let item = self.reader.next(timeout.left(), &self.interrupt)?;
            if let Some(found) = self.select(item) {
                return Ok(found);
            }
        }
    }

    /// Returns the frame of an item; `Some(None)` without another to wait for, `None` for items
    /// that are passed over.
    fn select(&mut self, item: Option<Item>) -> Option<Option<Frame>> {
        self.has_ended = match item {
            None => return Some(None),
            Some(Item::EndOfStream) => true,
            Some(Item::Event(_)) => self.has_ended,
            Some(Item::Frame(_) | Item::Format(_) | Item::Reconnected) => false,
        };
        match item {
            Some(Item::Frame(frame)) => Some(Some(frame)),
            Some(Item::EndOfStream) => Some(None),
            _ => None,
        }
    }
}

impl Iterator for Frames {
    type Item = Result<Frame, ReadError>;

    /// Waits for the next frame. `None` at the end of the stream, and after an error other than
    /// [`ReadError::Interrupted`] and [`ReadError::Held`].
    fn next(&mut self) -> Option<Self::Item> {
        if self.has_failed {
            return None;
        }
        let next = self.advance(None);
        self.has_failed =
            matches!(&next, Err(error) if !matches!(error, ReadError::Interrupted | ReadError::Held { .. }));
        next.transpose()
    }
}

impl AsFd for Frames {
    /// As [`Reader::wake_fd`].
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.reader.wake_fd()
    }
}

impl AsRawFd for Frames {
    /// As [`Reader::wake_fd`].
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl AsFd for Reader {
    /// As [`Reader::wake_fd`].
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake_fd()
    }
}

impl AsRawFd for Reader {
    /// As [`Reader::wake_fd`].
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl From<Frames> for Reader {
    fn from(frames: Frames) -> Self {
        frames.into_reader()
    }
}
