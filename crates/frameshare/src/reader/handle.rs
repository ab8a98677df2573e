// SPDX-License-Identifier: MIT OR Apache-2.0

//! Handle to a reader, for threads beside the one that uses it.

use super::{Reader, Stats, lease::KeyUnitRequests};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A handle to a reader for other threads than the one that uses it: no call waits for the reader,
/// and the reader waits for none.
///
/// It serves all connections of the reader, and can outlive it.
#[derive(Clone, Debug)]
pub struct ReaderHandle(Arc<Mutex<Known>>);

/// The state of the reader after its last item, or its last change of connection.
#[derive(Debug)]
struct Known {
    stats: Stats,
    key_unit_requests: KeyUnitRequests,
}

impl Known {
    fn of(reader: &Reader) -> Self {
        Self { stats: reader.stats(), key_unit_requests: reader.key_unit_requests() }
    }
}

impl ReaderHandle {
    pub(super) fn new(reader: &Reader) -> Self {
        Self(Arc::new(Mutex::new(Known::of(reader))))
    }

    /// Stores the present state of the reader.
    pub(super) fn update(&self, reader: &Reader) {
        *self.lock() = Known::of(reader);
    }

    // Held for a copy only.
    fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Statistics as of the reader's last item, with the present number of held frames.
    pub fn stats(&self) -> Stats {
        let known = self.lock();
        Stats { held: known.key_unit_requests.held(), ..known.stats.clone() }
    }

    /// As [`Reader::request_key_unit`].
    pub fn request_key_unit(&self) {
        let requests = self.lock().key_unit_requests.clone();
        requests.send();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Endpoint, Interrupt, Wait,
        exporter::{self, Exporter, Purpose},
        fence::Written,
        reader::{Config, Frame, HELD_PATIENCE, Item, ReadError},
    };
    use std::{
        sync::atomic::{AtomicBool, Ordering},
        thread,
        time::{Duration, Instant},
    };
    use tempfile::TempDir;

    const LONG: Option<Duration> = Some(Duration::from_secs(60));

    fn open(config: Config) -> (TempDir, Exporter, Reader, Interrupt) {
        let folder = tempfile::tempdir().unwrap();
        let endpoint = Endpoint::at(folder.path().join("s")).unwrap();
        let interrupt = Interrupt::new().unwrap();
        let exporter = Exporter::bind(&endpoint, exporter::Config::default(), drop).unwrap();
        let reader = Reader::connect(&endpoint, config, &interrupt).unwrap();
        (folder, exporter, reader, interrupt)
    }

    fn publish(exporter: &Exporter) {
        let slot = exporter.acquire(8, Purpose::Copy, Wait::Forever).unwrap();
        exporter.publish(exporter::Frame::new(&slot, 8, Written::Cpu), Wait::Forever).unwrap();
    }

    fn next_frame(reader: &mut Reader, interrupt: &Interrupt) -> Frame {
        match reader.next(LONG, interrupt) {
            Ok(Some(Item::Frame(frame))) => frame,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn handle_has_statistics_while_reader_waits() {
        let (_folder, exporter, mut reader, interrupt) = open(Config::default().max_held(3));
        let handle = reader.handle();
        assert_eq!((handle.stats().credit, handle.stats().received), (3, 0));
        for _ in 0..2 {
            publish(&exporter);
        }
        let frame = next_frame(&mut reader, &interrupt);
        let mut known = |received, held| {
            assert_eq!((handle.stats().received, handle.stats().held), (received, held));
            assert_eq!(handle.stats(), reader.handle().stats());
        };
        known(1, 1);
        drop(frame);
        known(1, 0);
        thread::scope(|scope| {
            let waiting = scope.spawn(|| reader.next(None, &interrupt));
            // The reader is in use: only a handle has them.
            assert_eq!((handle.stats().received, handle.stats().held), (1, 0));
            handle.request_key_unit();
            interrupt.set();
            assert!(matches!(waiting.join().unwrap(), Err(ReadError::Interrupted)));
        });
        drop(reader);
        assert_eq!((handle.stats().received, handle.stats().held), (1, 0));
        handle.request_key_unit();
    }

    #[test]
    fn handle_follows_reader_to_next_exporter() {
        let (folder, exporter, mut reader, interrupt) = open(Config::default().reconnect(true));
        let handle = reader.handle();
        publish(&exporter);
        let frame = next_frame(&mut reader, &interrupt);
        let session = handle.stats().session;
        drop(exporter);
        assert!(reader.next(Some(Duration::ZERO), &interrupt).unwrap().is_none());
        // The frame is of the former connection.
        assert_eq!((handle.stats().session, handle.stats().credit, handle.stats().held), (session, 0, 0));
        let endpoint = Endpoint::at(folder.path().join("s")).unwrap();
        let _exporter = Exporter::bind(&endpoint, exporter::Config::default(), drop).unwrap();
        assert!(matches!(reader.next(LONG, &interrupt), Ok(Some(Item::Reconnected))));
        let stats = handle.stats();
        assert!(stats.session != session && stats.credit > 0 && stats.reconnects == 1, "{stats:?}");
        drop(frame);
    }

    #[test]
    fn endless_wait_of_full_reader_is_an_error() {
        let (_folder, exporter, mut reader, interrupt) = open(Config::default().max_held(1));
        for _ in 0..2 {
            publish(&exporter);
        }
        let held = next_frame(&mut reader, &interrupt);
        assert!(reader.holds_all());
        // A wait with a limit has none.
        assert!(reader.next(Some(2 * HELD_PATIENCE), &interrupt).unwrap().is_none());
        for _ in 0..2 {
            let begin = Instant::now();
            let error = reader.next(None, &interrupt).unwrap_err();
            assert!(matches!(error, ReadError::Held { held: 1 }), "{error}");
            assert!(begin.elapsed() >= HELD_PATIENCE && !error.is_exporter_gone());
        }
        drop(held);
        assert!(!reader.holds_all());
        publish(&exporter);
        drop(next_frame(&mut reader, &interrupt));
        // With room for a frame it waits.
        thread::scope(|scope| {
            let waiting = scope.spawn(|| reader.next(None, &interrupt));
            thread::sleep(3 * HELD_PATIENCE);
            publish(&exporter);
            assert!(matches!(waiting.join().unwrap(), Ok(Some(Item::Frame(_)))));
        });
    }

    /// Each event ends a wait of the reader, and none that of a caller who passes over events.
    #[test]
    fn events_do_not_prolong_wait_of_full_reader() {
        let (_folder, exporter, mut reader, interrupt) = open(Config::default().max_held(1));
        publish(&exporter);
        let _held = next_frame(&mut reader, &interrupt);
        let (begin, is_told) = (Instant::now(), AtomicBool::new(false));
        let error = thread::scope(|scope| {
            scope.spawn(|| {
                while !is_told.load(Ordering::SeqCst) {
                    let event = crate::Event { kind: 1, sticky: false, payload: Vec::new() };
                    exporter.send_event(event).unwrap();
                    thread::sleep(HELD_PATIENCE / 10);
                }
            });
            let error = loop {
                match reader.next(None, &interrupt) {
                    Ok(Some(Item::Event(_))) if begin.elapsed() < LONG.unwrap() => {}
                    other => break other.err(),
                }
            };
            is_told.store(true, Ordering::SeqCst);
            error.unwrap()
        });
        assert!(matches!(error, ReadError::Held { held: 1 }), "{error}");
    }

    #[test]
    fn frame_dropped_during_wait_is_followed_by_next() {
        let (_folder, exporter, mut reader, interrupt) =
            open(Config::default().max_held(1).policy(crate::Policy::Lossless));
        publish(&exporter);
        let held = next_frame(&mut reader, &interrupt);
        thread::scope(|scope| {
            let publishing = scope.spawn(|| publish(&exporter));
            let dropping = scope.spawn(move || drop(held));
            let next = loop {
                match reader.next(None, &interrupt) {
                    Err(ReadError::Held { .. }) => {}
                    next => break next,
                }
            };
            assert!(matches!(next, Ok(Some(Item::Frame(_)))), "{next:?}");
            publishing.join().unwrap();
            dropping.join().unwrap();
        });
    }
}
