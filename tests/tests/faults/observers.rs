// SPDX-License-Identifier: MIT OR Apache-2.0

//! Observers beside readers, and their requests to disconnect readers.

use crate::{Stream, assert_all_read, find_notice, is_root, times};
use frameshare::{
    Endpoint,
    observer::{ObserveError, Observer},
};
use frameshare_protocol::{
    limits::{MAX_SNAPSHOT, MIN_INTERVAL_MS},
    message::{Observe, Payload, Rights, ToExporter, ToReader},
};
use frameshare_tests::{
    process::{PATIENCE, TestRun, wait_until},
    raw::{Channel, Listener, Offer, Seals, encoded, memfd},
};
use std::{
    fs,
    os::fd::{AsFd, OwnedFd},
    thread,
    time::{Duration, Instant},
};

/// Some thousands of connections, as fast as four threads can make them: beyond 1,000 a second on
/// an idle machine. Each is served, and the reader gets every frame.
#[test]
fn thousands_of_observers_cost_lossless_reader_no_frame() {
    const THREADS: usize = 4;
    // Another thread of the exporter closes connections, and a user may have 256 unclosed ones: the
    // observers wait for a thread that a busy machine delays.
    const MAX_OPEN: usize = 128;
    const ROUND: usize = 16;
    let mut stream = Stream::start("--fps 500 --readers 1");
    let reader = stream.read("--policy lossless");
    stream.wait_for_frames(100);
    let endpoint = Endpoint::at(stream.run.path("frameshare/s.sock")).unwrap();
    let files = format!("/proc/{}/fd", stream.exporter.pid());
    let has_closed = || fs::read_dir(&files).expect("the exporter runs").count() < MAX_OPEN;
    let connections = times(1000);
    let start = Instant::now();
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for number in 0..connections {
                    if number % ROUND == 0 {
                        wait_until("the exporter closes connections", has_closed);
                    }
                    let observer = Observer::connect(&endpoint, PATIENCE);
                    let observer = observer.unwrap_or_else(|error| panic!("connection {number}: {error}"));
                    assert_eq!(observer.latest().readers.len(), 1);
                }
            });
        }
    });
    println!("{} connections in {:?}", THREADS * connections, start.elapsed());
    stream.wait_for_frames(100);
    let (outcome, _run) = stream.end();
    assert_eq!((outcome.events("refused").len(), outcome.events("added").len()), (0, 1));
    assert_eq!(outcome.events("blocking").len(), 0);
    assert_all_read(reader, &outcome.summary()["published"]);
}

#[test]
fn observer_that_receives_nothing_is_closed() {
    let stream = Stream::start("--fps 100 --readers 0");
    let channel = Channel::connect(&stream.run.path("frameshare/s.sock")).unwrap();
    let observe = Observe { name: "deaf".into(), interval_ms: MIN_INTERVAL_MS };
    channel.send(&encoded(ToExporter::Observe(observe).encode()), &[]).unwrap();
    assert!(channel.awaits_end(PATIENCE), "the exporter keeps it");
    let mut messages = Vec::new();
    while let Ok(Some((packet, _))) = channel.receive(PATIENCE) {
        messages.push(ToReader::decode(&packet).unwrap());
    }
    let [ToReader::Snapshot { .. }, ToReader::Goodbye { text, .. }] = &messages[..] else {
        panic!("{messages:?}")
    };
    assert!(text.contains("does not receive"), "{text}");
    let (outcome, _run) = stream.end();
    let refused = find_notice(&outcome, "refused", std::process::id()).unwrap();
    assert!(refused["why"].as_str().unwrap().contains("\"deaf\""), "{refused}");
}

const NOBODY: &str = "setpriv --reuid 65534 --regid 65534 --clear-groups";

/// Users that may read may observe; only the exporter's user and root may disconnect readers.
#[test]
fn other_users_observe_if_allowed_and_disconnect_nobody() {
    if !is_root("other_users_observe_if_allowed_and_disconnect_nobody") {
        return;
    }
    let start = |options: &str| {
        let run = TestRun::new();
        run.open_to_others();
        let mut exporter = run.peer(&format!(
            "export --socket s.sock --frames 100000000 --fps 500 --size 20000 --readers 0 --socket-mode 666 {options}"
        ));
        exporter.wait_for("open");
        (run, exporter)
    };
    let (run, _exporter) = start("--allowed-uids 12345");
    let error = run.peer_by(NOBODY, "observe --socket s.sock").expect_failure();
    assert!(error.contains("user 65534 may not read this stream"), "{error}");

    let (run, mut exporter) = start("--allowed-uids 65534");
    let mut reader = run.peer("read --socket s.sock --policy lossless --verify yes --quiet yes");
    reader.wait_for("connected");
    let mut observer = run.peer_by(NOBODY, "observe --socket s.sock --disconnect 1");
    let snapshot = observer.wait_for("snapshot");
    assert_eq!(snapshot["exporter"], exporter.pid());
    assert_eq!(snapshot["readers"], serde_json::json!([[1, reader.pid()]]));
    let error = observer.expect_failure();
    assert!(error.contains("only the exporter's user and root"), "{error}");
    // The reader is still there for the exporter's own user.
    let mut observer = run.peer("observe --socket s.sock --disconnect 1");
    let asker = observer.pid();
    assert_eq!(observer.wait_for("snapshot")["readers"][0][1], reader.pid());
    observer.wait_for("disconnected");
    observer.expect_success();
    let by = format!("disconnected by process {asker} (peer)");
    let summary = reader.finish().summary();
    assert!(summary["end"].as_str().unwrap().contains(&by), "{summary}");
    let removed = exporter.wait_for("removed");
    assert_eq!((&removed["why"], &removed["reason"]), (&by.into(), &"Disconnected".into()));
}

/// Returns the error of an observer whose request is answered with this packet and descriptor.
fn answered_with(packet: &[u8], fd: Option<OwnedFd>) -> ObserveError {
    let run = TestRun::new();
    let path = run.path("x.sock");
    let listener = Listener::bind(&path).unwrap();
    thread::scope(|scope| {
        let exporter = scope.spawn(|| {
            let channel = listener.accept(PATIENCE).unwrap();
            channel.receive(PATIENCE).unwrap();
            let fds: Vec<_> = fd.iter().map(AsFd::as_fd).collect();
            channel.send(packet, &fds).unwrap();
            channel
        });
        let observer = Observer::connect(&Endpoint::at(&path).unwrap(), PATIENCE);
        drop(exporter.join().unwrap());
        observer.expect_err("the answer is invalid")
    })
}

#[test]
fn invalid_answers_are_errors_of_observer() {
    let snapshot =
        |payload| encoded(ToReader::Snapshot { request: 0, rights: Rights::default(), payload }.encode());
    let sealed = |size, seals: Seals| {
        let fd = memfd(size).unwrap();
        seals.put_on(&fd).unwrap();
        Some(fd)
    };
    let mut later = snapshot(Payload::Inline(Vec::new()));
    later[4] += 1;
    let welcome = Offer::new(2, 4, 1).unwrap().welcome;
    for (packet, fd, expected) in [
        (vec![0; 99], None, "does not use the frameshare protocol"),
        (later, None, "version mismatch"),
        (snapshot(Payload::Inline(vec![0xff; 99])), None, "invalid snapshot"),
        (snapshot(Payload::Sealed(4096)), None, "wrong number of descriptors"),
        (snapshot(Payload::Inline(Vec::new())), sealed(4096, Seals::SizeAndWrites), "wrong number"),
        (snapshot(Payload::Sealed(4096)), sealed(4096, Seals::None), "sealed against shrinking"),
        (snapshot(Payload::Sealed(4096)), sealed(4096, Seals::Size), "sealed against writing"),
        (snapshot(Payload::Sealed(8192)), sealed(4096, Seals::SizeAndWrites), "instead of 8192"),
        (snapshot(Payload::Sealed(4096)), sealed(4096, Seals::SizeAndWrites), "invalid snapshot"),
        (snapshot(Payload::Sealed(MAX_SNAPSHOT + 1)), None, "invalid snapshot"),
        (encoded(ToReader::Skipped { before: frameshare::Sequence(1) }.encode()), None, "another kind"),
        (encoded(ToReader::Welcome(welcome).encode()), None, "wrong number of descriptors"),
        (Vec::new(), None, "connection to the exporter lost"),
    ] {
        let error = answered_with(&packet, fd).to_string();
        assert!(error.contains(expected), "{error:?} does not contain {expected:?}");
    }
}

#[test]
fn silent_exporter_is_not_waited_for_longer_than_asked() {
    let run = TestRun::new();
    let path = run.path("x.sock");
    let _listener = Listener::bind(&path).unwrap();
    let error = Observer::connect(&Endpoint::at(&path).unwrap(), Duration::from_millis(50)).unwrap_err();
    assert!(matches!(error, ObserveError::NotAnswering { .. }), "{error}");
}
