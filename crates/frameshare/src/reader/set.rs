// SPDX-License-Identifier: MIT OR Apache-2.0

//! Many streams in one thread.

use super::{Config, Item, OpenError, ReadError, Reader};
use crate::{
    Endpoint, Interrupt,
    sys::{Timeout, is_ready, wait},
};
use rustix::event::{PollFd, PollFlags};
use std::{
    io,
    time::{Duration, Instant},
};

/// The number of a reader in its set; never used again for another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReaderKey(u64);

/// Readers of many streams, waited for together by one thread.
///
/// Each round takes at most one item of each reader, so a fast stream delays no other. A reader
/// that ends with an error stays in the set, without further items, until it is removed.
///
/// ```no_run
/// # use frameshare::{Interrupt, reader::{Item, ReaderSet}};
/// let mut cameras = ReaderSet::default();
/// let keys = ["cam0", "cam1"].map(|name| cameras.open(name));
/// let interrupt = Interrupt::new()?;
/// while let Some((key, item)) = cameras.next(None, &interrupt)? {
///     if let Ok(Item::Frame(frame)) = item {
///         println!("{key:?}: frame {}", frame.descriptor().sequence);
///     }
/// }
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug, Default)]
pub struct ReaderSet {
    entries: Vec<Entry>,
    /// The next entry of this round.
    cursor: usize,
    next_key: u64,
}

#[derive(Debug)]
struct Entry {
    key: ReaderKey,
    reader: Reader,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// It may have an item.
    Pending,
    /// It has none until its descriptor is readable, or this time.
    Waiting(Option<Instant>),
    /// It returned an error.
    Ended,
}

impl ReaderSet {
    /// Adds a reader, or the reader of [`Frames`](super::Frames).
    pub fn add(&mut self, reader: impl Into<Reader>) -> ReaderKey {
        let key = ReaderKey(self.next_key);
        self.next_key += 1;
        self.entries.push(Entry { key, reader: reader.into(), state: State::Pending });
        key
    }

    /// Adds the stream of a name or path, as [`open`](super::open) without waiting for its
    /// exporter: [`Item::Reconnected`] comes when it is there.
    ///
    /// # Errors
    /// [`OpenError`] if the text is invalid.
    pub fn open(&mut self, stream: &str) -> Result<ReaderKey, OpenError> {
        let config = Config::default().reconnect(true).connection_timeout(None);
        Ok(self.add(Reader::start(&Endpoint::find(stream)?, config)?))
    }

    /// Removes a reader.
    pub fn remove(&mut self, key: ReaderKey) -> Option<Reader> {
        let index = self.entries.iter().position(|entry| entry.key == key)?;
        if index < self.cursor {
            self.cursor -= 1;
        }
        Some(self.entries.remove(index).reader)
    }

    /// Returns a reader, for statistics and requests.
    pub fn get(&self, key: ReaderKey) -> Option<&Reader> {
        self.entries.iter().find(|entry| entry.key == key).map(|entry| &entry.reader)
    }

    /// Number of readers.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns whether it has no readers.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the next item of any reader, in turns; `None` if none came within the timeout
    /// (`None`: no timeout), and while the interrupt is set.
    ///
    /// # Errors
    /// The error of poll(2). Errors of a reader are returned as its last item.
    pub fn next(
        &mut self,
        timeout: Option<Duration>,
        interrupt: &Interrupt,
    ) -> io::Result<Option<(ReaderKey, Result<Item, ReadError>)>> {
        let timeout = Timeout::after(timeout);
        let mut has_polled = false;
        loop {
            if interrupt.is_set() {
                return Ok(None);
            }
            while let Some(entry) = self.entries.get_mut(self.cursor) {
                self.cursor += 1;
                if let Some(item) = entry.take() {
                    return Ok(Some((entry.key, item)));
                }
            }
            // The round is over. Readers that had an item may have another one.
            self.cursor = 0;
            let is_pending = self.entries.iter().any(|entry| entry.state == State::Pending);
            if has_polled && timeout.is_over() && !is_pending {
                return Ok(None);
            }
            has_polled = true;
            self.poll(if is_pending { Timeout::after(Some(Duration::ZERO)) } else { timeout }, interrupt)?;
        }
    }

    /// Sleeps until a reader may have an item, and marks all that may.
    fn poll(&mut self, timeout: Timeout, interrupt: &Interrupt) -> io::Result<()> {
        let due = self.entries.iter().filter_map(|entry| match entry.state {
            State::Waiting(due) => due,
            State::Pending | State::Ended => None,
        });
        let timeout = due.map(Timeout::At).fold(timeout, Timeout::min);
        let is_waiting = |entry: &Entry| matches!(entry.state, State::Waiting(_));
        let waiting = self.entries.iter().filter(|entry| is_waiting(entry));
        let fds = waiting.map(|entry| PollFd::from_borrowed_fd(entry.reader.wake_fd(), PollFlags::IN));
        let mut fds = fds.collect::<Vec<_>>();
        fds.push(PollFd::new(interrupt, PollFlags::IN));
        wait(&mut fds, timeout)?;
        let ready = fds.iter().map(is_ready).collect::<Vec<_>>();
        let waiting = self.entries.iter_mut().filter(|entry| is_waiting(entry));
        for (entry, is_ready) in waiting.zip(ready) {
            let State::Waiting(due) = entry.state else { continue };
            if is_ready || due.is_some_and(|due| due <= Instant::now()) {
                entry.state = State::Pending;
            }
        }
        Ok(())
    }
}

impl Entry {
    /// Returns the reader's next item, if it has one.
    fn take(&mut self) -> Option<Result<Item, ReadError>> {
        if self.state != State::Pending {
            return None;
        }
        match self.reader.try_next() {
            Ok(Some(item)) => Some(Ok(item)),
            Ok(None) => {
                let due = self.reader.ask_again().and_then(|time| Instant::now().checked_add(time));
                self.state = State::Waiting(due);
                None
            }
            Err(error) => {
                self.state = State::Ended;
                Some(Err(error))
            }
        }
    }
}
