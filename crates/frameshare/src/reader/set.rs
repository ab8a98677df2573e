// SPDX-License-Identifier: MIT OR Apache-2.0

//! Many streams in one thread.

use super::{Config, HELD_PATIENCE, Item, OpenError, ReadError, Reader};
use crate::{
    Endpoint, Interrupt,
    sys::{Epoll, Interest, Timeout},
};
use std::{
    collections::{BTreeMap, VecDeque},
    io, mem,
    time::{Duration, Instant},
};

/// The number of a reader in its set; never used again for another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReaderKey(u64);

/// Readers of many streams, waited for together by one thread.
///
/// Readers take turns, with at most one item each, so a fast stream delays no other. A reader
/// that ends with an error stays in the set, without further items, until it is removed.
///
/// Each reader's descriptor is registered once, so the cost of a wait grows with the number of
/// readers that have items, not with the number of all.
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
    entries: BTreeMap<ReaderKey, Entry>,
    /// Readers that may have an item, in turns. Keys of removed readers are skipped.
    pending: VecDeque<ReaderKey>,
    /// Number of turns until every reader that was pending at the last poll has had one.
    turns: usize,
    /// A reader got an item although all others may have had to wait for a poll.
    needs_poll: bool,
    /// Readers whose descriptors are not registered yet.
    unregistered: Vec<ReaderKey>,
    poller: Option<Poller>,
    next_key: u64,
}

#[derive(Debug)]
struct Entry {
    reader: Reader,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// It may have an item.
    Pending,
    /// It has none until its descriptor is readable.
    Waiting,
    /// It returned an error.
    Ended,
}

/// The descriptors that a set waits for.
#[derive(Debug)]
struct Poller {
    epoll: Epoll,
    /// The registered interrupt: that of the last call.
    interrupt: Option<Interrupt>,
    /// The numbers of the last events.
    found: Vec<u64>,
}

/// The number of the interrupt's events; others are keys.
const INTERRUPT: u64 = u64::MAX;

impl ReaderSet {
    /// Adds a reader, or the reader of [`Frames`](super::Frames).
    pub fn add(&mut self, reader: impl Into<Reader>) -> ReaderKey {
        let key = ReaderKey(self.next_key);
        self.next_key += 1;
        self.entries.insert(key, Entry { reader: reader.into(), state: State::Pending });
        self.pending.push_back(key);
        self.unregistered.push(key);
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
        let reader = self.entries.remove(&key)?.reader;
        self.unregistered.retain(|other| *other != key);
        if let Some(poller) = &self.poller {
            poller.epoll.remove(&reader);
        }
        Some(reader)
    }

    /// Returns a reader, for statistics and requests.
    pub fn get(&self, key: ReaderKey) -> Option<&Reader> {
        self.entries.get(&key).map(|entry| &entry.reader)
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
    /// The error of epoll(7), such as a lack of memory or descriptors for it;
    /// [`ReadError::Held`] if a wait without limit has lasted for 5 s, in which every reader held
    /// all frames that it may. Errors of a reader are returned as its last item.
    pub fn next(
        &mut self,
        timeout: Option<Duration>,
        interrupt: &Interrupt,
    ) -> io::Result<Option<(ReaderKey, Result<Item, ReadError>)>> {
        let is_endless = timeout.is_none();
        let timeout = Timeout::after(timeout);
        let mut has_waited = false;
        loop {
            if interrupt.is_set() {
                return Ok(None);
            }
            if self.needs_poll {
                self.poll(Timeout::after(Some(Duration::ZERO)), interrupt)?;
            }
            if let Some(item) = self.take() {
                return Ok(Some(item));
            }
            if has_waited && timeout.is_over() {
                return Ok(None);
            }
            if is_endless && let Some(held) = self.held_by_all() {
                let begin = Instant::now();
                self.poll(Timeout::after(Some(HELD_PATIENCE)), interrupt)?;
                if self.held_by_all() == Some(held) && begin.elapsed() >= HELD_PATIENCE {
                    return Err(io::Error::other(ReadError::Held { held }));
                }
            } else {
                self.poll(timeout, interrupt)?;
            }
            has_waited = true;
        }
    }

    /// Number of frames held, if every reader holds all that it may. Ended readers do not count.
    fn held_by_all(&self) -> Option<u32> {
        let mut held = 0;
        for Entry { reader, .. } in self.entries.values().filter(|entry| entry.state != State::Ended) {
            held += reader.holds_all().then(|| reader.held())?;
        }
        (held > 0).then_some(held)
    }

    /// Returns the item of the next reader that has one.
    fn take(&mut self) -> Option<(ReaderKey, Result<Item, ReadError>)> {
        while let Some(key) = self.pending.pop_front() {
            // Readers mostly have no second item: the poll that would let others have their turn
            // is left out until one does.
            let has_turn = self.turns > 0;
            self.turns = self.turns.saturating_sub(1);
            let Some(entry) = self.entries.get_mut(&key) else { continue };
            let Some(item) = entry.take() else { continue };
            self.needs_poll = !has_turn;
            match (entry.state, &self.poller) {
                (State::Pending, _) => self.pending.push_back(key),
                // The descriptor of a lost connection stays readable.
                (_, Some(poller)) => poller.epoll.remove(&entry.reader),
                (_, None) => {}
            }
            return Some((key, item));
        }
        None
    }

    /// Sleeps until a reader may have an item, and marks all that may.
    fn poll(&mut self, timeout: Timeout, interrupt: &Interrupt) -> io::Result<()> {
        let poller = match &mut self.poller {
            Some(poller) => poller,
            none => none.insert(Poller { epoll: Epoll::new()?, interrupt: None, found: Vec::new() }),
        };
        while let Some(key) = self.unregistered.last() {
            if let Some(entry) = self.entries.get(key).filter(|entry| entry.state != State::Ended) {
                poller.epoll.add(&entry.reader, key.0, Interest::InputUntilRead)?;
            }
            self.unregistered.pop();
        }
        for key in poller.wait(timeout, interrupt)? {
            let Some(entry) = self.entries.get_mut(&key) else { continue };
            if entry.state == State::Waiting {
                entry.state = State::Pending;
                self.pending.push_back(key);
            }
        }
        (self.turns, self.needs_poll) = (self.pending.len(), false);
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
                self.state = State::Waiting;
                None
            }
            Err(error) => {
                self.state = State::Ended;
                Some(Err(error))
            }
        }
    }
}

impl Poller {
    /// Sleeps until a reader's descriptor or the interrupt is readable. Returns the keys of the
    /// readers.
    fn wait(
        &mut self,
        timeout: Timeout,
        interrupt: &Interrupt,
    ) -> io::Result<impl Iterator<Item = ReaderKey> + use<'_>> {
        if !self.interrupt.as_ref().is_some_and(|registered| registered.is_the_same(interrupt)) {
            if let Some(before) = mem::take(&mut self.interrupt) {
                self.epoll.remove(&before);
            }
            self.epoll.add(interrupt, INTERRUPT, Interest::InputUntilRead)?;
            self.interrupt = Some(interrupt.clone());
        }
        self.epoll.wait(&mut self.found, timeout)?;
        Ok(self.found.drain(..).filter(|number| *number != INTERRUPT).map(ReaderKey))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Wait,
        exporter::{self, Purpose},
        fence::Written,
    };

    #[test]
    fn endless_wait_of_full_readers_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let interrupt = Interrupt::new().unwrap();
        let mut set = ReaderSet::default();
        let exporters: Vec<_> = ["a", "b"]
            .map(|name| {
                let endpoint = Endpoint::at(folder.path().join(name)).unwrap();
                let exporter =
                    exporter::Exporter::bind(&endpoint, exporter::Config::default(), drop).unwrap();
                set.add(Reader::connect(&endpoint, Config::default().max_held(1), &interrupt).unwrap());
                exporter
            })
            .into();
        let mut frames = Vec::new();
        for exporter in &exporters {
            let slot = exporter.acquire(8, Purpose::Copy, Wait::Forever).unwrap();
            exporter.publish(exporter::Frame::new(&slot, 8, Written::Cpu), Wait::Forever).unwrap();
        }
        for _ in 0..2 {
            let (_, item) = set.next(Some(Duration::from_secs(60)), &interrupt).unwrap().unwrap();
            frames.push(item.unwrap());
        }
        assert!(set.next(Some(2 * HELD_PATIENCE), &interrupt).unwrap().is_none());
        let error = set.next(None, &interrupt).unwrap_err();
        assert!(error.to_string().contains("holds 2 frames"), "{error}");
        // One of them may hold another frame.
        frames.pop();
        let setting = interrupt.clone();
        let waiting = std::thread::spawn(move || {
            std::thread::sleep(3 * HELD_PATIENCE);
            setting.set();
        });
        assert!(set.next(None, &interrupt).unwrap().is_none());
        waiting.join().unwrap();
    }

    /// The descriptor of a lost connection stays readable: registered, it would end every wait.
    #[test]
    fn ended_reader_is_not_polled() {
        let folder = tempfile::tempdir().unwrap();
        let endpoint = Endpoint::at(folder.path().join("s")).unwrap();
        let interrupt = Interrupt::new().unwrap();
        let bind = || exporter::Exporter::bind(&endpoint, exporter::Config::default(), drop).unwrap();
        let connect = || Reader::connect(&endpoint, Config::default(), &interrupt).unwrap();
        let (mut set, mut exporter) = (ReaderSet::default(), bind());
        // The second one ends before its descriptor is registered.
        for is_registered in [true, false] {
            let key = set.add(connect());
            if is_registered {
                assert!(set.next(Some(Duration::ZERO), &interrupt).unwrap().is_none());
            }
            drop(exporter);
            let (found, item) = set.next(Some(Duration::from_secs(60)), &interrupt).unwrap().unwrap();
            assert!(found == key && item.is_err(), "{item:?}");
            assert!(set.next(Some(Duration::ZERO), &interrupt).unwrap().is_none());
            let mut found = Vec::new();
            let poller = set.poller.as_ref().unwrap();
            poller.epoll.wait(&mut found, Timeout::after(Some(Duration::ZERO))).unwrap();
            assert_eq!(found, []);
            exporter = bind();
        }
    }
}
