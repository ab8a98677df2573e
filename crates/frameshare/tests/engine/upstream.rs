// SPDX-License-Identifier: MIT OR Apache-2.0

//! Upstream events: permission, order, limits.

use crate::stream::{Stream, until};
use frameshare::{
    Policy,
    exporter::{Config, Exporter, Notice},
    upstream::{Navigation, Qos, UpstreamError, UpstreamEvent, UpstreamKinds},
};
use std::{
    sync::{Arc, Mutex, mpsc},
    time::Duration,
};

type Events = Arc<Mutex<Vec<(u64, UpstreamEvent)>>>;

const QOS: UpstreamEvent = UpstreamEvent::Qos(Qos { proportion: 1.5, jitter: 20_000_000, time: 7 });

fn press(key: i32) -> UpstreamEvent {
    UpstreamEvent::Navigation(Navigation::new("key-press").field("key", key.to_string()))
}

/// An exporter that collects events.
fn collecting(stream: &Stream, upstream: UpstreamKinds) -> (Exporter, Events) {
    let events = Events::default();
    let collected = events.clone();
    let note = move |notice| {
        if let Notice::Upstream { reader, event } = notice {
            collected.lock().unwrap().push((reader.id, event));
        }
    };
    let config = Config::default().upstream(upstream);
    (Exporter::bind(&stream.endpoint, config, note).unwrap(), events)
}

#[test]
fn accepted_events_arrive_in_order_with_their_reader() {
    let stream = Stream::new();
    let (exporter, events) = collecting(&stream, UpstreamKinds::ALL);
    let readers = [(); 2].map(|()| stream.reader(Policy::Latest));
    let mut expected = Vec::new();
    for (reader, id) in readers.iter().zip(1..) {
        assert_eq!(reader.upstream().accepted(), UpstreamKinds::ALL);
        for event in [QOS, press(1), press(2)] {
            reader.upstream().send(&event).unwrap();
            expected.push((id, event));
            until(|| events.lock().unwrap().len() == expected.len());
        }
    }
    assert_eq!(*events.lock().unwrap(), expected);
    let stats = exporter.stats().readers;
    assert!(stats.iter().all(|stats| (stats.upstream_events, stats.upstream_dropped) == (3, 0)), "{stats:?}");
    // The next connection needs a handle of its own.
    let [first, _] = readers;
    let handle = first.upstream();
    drop(first);
    assert_eq!(handle.send(&QOS), Err(UpstreamError::NotConnected));
}

#[test]
fn no_event_is_accepted_by_default() {
    let stream = Stream::new();
    let (_exporter, events) = collecting(&stream, Config::default().upstream);
    let reader = stream.reader(Policy::Latest);
    assert_eq!(reader.upstream().accepted(), UpstreamKinds::default());
    for event in [QOS, press(1)] {
        assert_eq!(reader.upstream().send(&event), Err(UpstreamError::NotAccepted));
    }
    assert_eq!(*events.lock().unwrap(), []);
}

#[test]
fn each_kind_is_accepted_by_itself() {
    let stream = Stream::new();
    for (navigation, accepted, refused) in [(true, press(1), QOS), (false, QOS, press(1))] {
        let kinds = UpstreamKinds { qos: !navigation, navigation };
        let (_exporter, events) = collecting(&stream, kinds);
        let reader = stream.reader(Policy::Latest);
        assert_eq!(reader.upstream().send(&refused), Err(UpstreamError::NotAccepted));
        reader.upstream().send(&accepted).unwrap();
        until(|| events.lock().unwrap().len() == 1);
        assert_eq!(events.lock().unwrap()[0].1, accepted);
    }
}

#[test]
fn invalid_and_too_many_events_are_not_sent() {
    let stream = Stream::new();
    let (exporter, events) = collecting(&stream, UpstreamKinds::ALL);
    let reader = stream.reader(Policy::Latest);
    let nan = UpstreamEvent::Qos(Qos { proportion: f64::NAN, jitter: 0, time: 0 });
    assert_eq!(reader.upstream().send(&nan), Err(UpstreamError::Invalid));
    let sent = (0..1000).filter(|key| match reader.upstream().send(&press(*key)) {
        Ok(()) => true,
        Err(error) => {
            assert_eq!(error, UpstreamError::TooMany);
            false
        }
    });
    let sent = sent.count();
    assert!((200..1000).contains(&sent), "{sent}");
    until(|| events.lock().unwrap().len() == sent);
    assert_eq!(exporter.reader_count(), 1);
}

/// Events of readers leave room for the other notices of a handler that blocks.
#[test]
fn blocked_handler_still_gets_reports_of_readers() {
    let stream = Stream::new();
    let (release, blocked) = mpsc::channel::<()>();
    let blocked = Mutex::new(blocked);
    let counts = Arc::<Mutex<(usize, usize)>>::default();
    let counted = counts.clone();
    let note = move |notice| {
        let _ = blocked.lock().unwrap().recv();
        let mut counts = counted.lock().unwrap();
        match notice {
            Notice::Upstream { .. } => counts.0 += 1,
            Notice::ReaderRemoved { .. } => counts.1 += 1,
            _ => {}
        }
    };
    let config = Config::default().upstream(UpstreamKinds::ALL);
    let exporter = Exporter::bind(&stream.endpoint, config, note).unwrap();
    const READERS: usize = 30;
    for number in 1..=READERS {
        let reader = stream.reader(Policy::Latest);
        let sent = (0..).take_while(|key| reader.upstream().send(&press(*key)).is_ok()).count() as u64;
        until(|| exporter.stats().readers.iter().any(|reader| reader.upstream_events >= sent));
        drop(reader);
        until(|| exporter.reader_count() == 0 && exporter.stats().readers_total == number as u64);
    }
    drop(release);
    until(|| counts.lock().unwrap().1 == READERS);
    std::thread::sleep(Duration::from_millis(50));
    let (events, _) = *counts.lock().unwrap();
    assert!((100..=513).contains(&events), "{events}");
}
