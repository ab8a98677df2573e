// SPDX-License-Identifier: MIT OR Apache-2.0

//! Many readers in one set.

use crate::stream::{Stream, until};
use frameshare::{
    Policy,
    reader::{Item, ReadError, Reader, ReaderKey, ReaderSet},
};
use std::{thread, time::Duration};

const LIMIT: Option<Duration> = Some(Duration::from_secs(20));

/// Returns the next frame's reader and number.
fn next_frame(set: &mut ReaderSet, stream: &Stream) -> (ReaderKey, u64) {
    loop {
        let (key, item) = set.next(LIMIT, &stream.interrupt).unwrap().expect("no frame within 20 s");
        if let Item::Frame(frame) = item.unwrap() {
            return (key, frame.descriptor().sequence.0);
        }
    }
}

#[test]
fn fast_stream_delays_no_other() {
    let streams = [Stream::new(), Stream::new()];
    let exporters = [streams[0].exporter(), streams[1].exporter()];
    let mut set = ReaderSet::default();
    let keys = [0, 1].map(|index| set.add(streams[index].reader(Policy::Lossless)));
    let publish = |index: usize| streams[index].publish(&exporters[index], 1).unwrap();
    // The first stream always has two more frames.
    (0..3).for_each(|_| _ = publish(0));
    assert_eq!(next_frame(&mut set, &streams[0]), (keys[0], 1));
    for round in 2..100 {
        publish(0);
        publish(1);
        let mut found = [0, 1].map(|_| next_frame(&mut set, &streams[0]).0);
        found.sort();
        assert_eq!(found, keys, "round {round}");
    }
}

#[test]
fn readers_are_removed_and_their_keys_not_reused() {
    let stream = Stream::new();
    let exporter = stream.exporter();
    let mut set = ReaderSet::default();
    let keys = [(); 3].map(|()| set.add(stream.reader(Policy::Lossless)));
    stream.publish(&exporter, 1).unwrap();
    assert_eq!(next_frame(&mut set, &stream).0, keys[0]);
    assert!(set.remove(keys[0]).is_some() && set.remove(keys[0]).is_none());
    assert_eq!([(); 2].map(|()| next_frame(&mut set, &stream).0), [keys[1], keys[2]]);
    assert!(set.add(stream.reader(Policy::Latest)) > keys[2] && set.get(keys[1]).is_some());
    assert_eq!((set.len(), set.is_empty()), (3, false));
}

#[test]
fn timeout_and_interrupt_end_wait() {
    let stream = Stream::new();
    let _exporter = stream.exporter();
    let mut set = ReaderSet::default();
    assert!(set.next(Some(Duration::ZERO), &stream.interrupt).unwrap().is_none());
    set.add(stream.reader(Policy::Latest));
    assert!(set.next(Some(Duration::from_millis(5)), &stream.interrupt).unwrap().is_none());
    thread::scope(|scope| {
        scope.spawn(|| stream.interrupt.set());
        assert!(set.next(None, &stream.interrupt).unwrap().is_none());
    });
}

#[test]
fn reader_error_is_returned_once() {
    let stream = Stream::new();
    let exporter = stream.exporter();
    let mut set = ReaderSet::default();
    let key = set.add(stream.reader(Policy::Latest));
    drop(exporter);
    let (found, item) = set.next(LIMIT, &stream.interrupt).unwrap().unwrap();
    assert!(found == key && matches!(item, Err(ReadError::Stopped(_))), "{item:?}");
    assert!(set.next(Some(Duration::from_millis(5)), &stream.interrupt).unwrap().is_none());
}

#[test]
fn opened_stream_may_start_later() {
    let stream = Stream::new();
    let mut set = ReaderSet::default();
    let key = set.open(stream.endpoint.path().to_str().unwrap()).unwrap();
    assert!(set.next(Some(Duration::from_millis(5)), &stream.interrupt).unwrap().is_none());
    let exporter = stream.exporter();
    let connected = set.next(LIMIT, &stream.interrupt).unwrap().unwrap();
    assert!(connected.0 == key && matches!(connected.1, Ok(Item::Reconnected)));
    until(|| exporter.reader_count() == 1);
    stream.publish(&exporter, 1).unwrap();
    assert_eq!(next_frame(&mut set, &stream), (key, 1));
    assert_eq!(set.get(key).map(Reader::stats).unwrap().reconnects, 0);
}

#[test]
fn reader_with_many_frames_lets_others_have_their_turn() {
    let streams = [Stream::new(), Stream::new(), Stream::new()];
    let exporters = [streams[0].exporter(), streams[1].exporter(), streams[2].exporter()];
    let mut set = ReaderSet::default();
    let keys = [0, 1, 2].map(|index| set.add(streams[index].reader(Policy::Lossless)));
    // All sleep but the first, which has a frame at each of its turns.
    let publish = |stream: usize| _ = streams[stream].publish(&exporters[stream], 1).unwrap();
    (0..2).for_each(|_| publish(0));
    for round in 0..50 {
        for late in [1, 2] {
            [0, 0, late].into_iter().for_each(publish);
            let found = [(); 3].map(|()| next_frame(&mut set, &streams[0]).0);
            assert!(found.contains(&keys[late]), "round {round}: {found:?}");
        }
    }
}

/// The descriptor of a lost connection stays readable.
#[test]
fn ended_reader_ends_no_wait_of_others() {
    let streams = [Stream::new(), Stream::new()];
    let exporter = streams[0].exporter();
    let mut set = ReaderSet::default();
    let ended = [(); 3].map(|()| {
        let exporter = streams[1].exporter();
        let key = set.add(streams[1].reader(Policy::Latest));
        drop(exporter);
        let (found, item) = set.next(LIMIT, &streams[1].interrupt).unwrap().unwrap();
        assert!(found == key && item.is_err(), "{item:?}");
        key
    });
    let live = set.add(streams[0].reader(Policy::Latest));
    // None of the ended readers has an event: the wait lasts until the publication.
    thread::scope(|scope| {
        scope.spawn(|| {
            until(|| exporter.reader_count() == 1);
            streams[0].publish(&exporter, 1).unwrap();
        });
        assert_eq!(next_frame(&mut set, &streams[0]), (live, 1));
    });
    assert!(ended.map(|key| set.remove(key)).iter().all(Option::is_some));
    streams[0].publish(&exporter, 1).unwrap();
    assert_eq!(next_frame(&mut set, &streams[0]), (live, 2));
}

#[test]
fn removed_reader_may_join_another_set_while_its_frames_arrive() {
    let stream = Stream::new();
    let exporter = stream.exporter();
    let mut sets = [ReaderSet::default(), ReaderSet::default()];
    let mut key = sets[0].add(stream.reader(Policy::Lossless));
    let stays = sets[0].add(stream.reader(Policy::Latest));
    for round in 1..20_u64 {
        stream.publish(&exporter, 1).unwrap();
        let (from, to) = ((round as usize + 1) % 2, round as usize % 2);
        // Before and after the frame was taken, in turns: pending, or waiting.
        if round % 3 == 0 {
            assert_eq!(next_of(&mut sets[from], key, &stream), round);
            let empty = sets[from].next(Some(Duration::ZERO), &stream.interrupt).unwrap();
            assert!(empty.is_none_or(|(of, _)| of == stays));
        }
        let reader = sets[from].remove(key).unwrap();
        assert!(sets[from].get(key).is_none());
        key = sets[to].add(reader);
        if round % 3 != 0 {
            assert_eq!(next_of(&mut sets[to], key, &stream), round);
        }
    }
}

/// Returns the number of this reader's next frame.
fn next_of(set: &mut ReaderSet, key: ReaderKey, stream: &Stream) -> u64 {
    loop {
        let (found, sequence) = next_frame(set, stream);
        if found == key {
            return sequence;
        }
    }
}

#[test]
fn wait_follows_the_interrupt_of_each_call() {
    let stream = Stream::new();
    let _exporter = stream.exporter();
    let mut set = ReaderSet::default();
    set.add(stream.reader(Policy::Latest));
    for _ in 0..3 {
        let interrupts = [(); 2].map(|()| frameshare::Interrupt::new().unwrap());
        for interrupt in &interrupts {
            thread::scope(|scope| {
                scope.spawn(|| interrupt.set());
                assert!(set.next(None, interrupt).unwrap().is_none());
            });
        }
    }
}
