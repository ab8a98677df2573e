// SPDX-License-Identifier: MIT OR Apache-2.0

//! Readers that leave descriptors unreceived. The kernel counts these against the exporter's user.

use crate::{Stream, assert_all_read, folder, is_root};
use frameshare::{
    Endpoint, Interrupt, Policy,
    reader::{Config, Item, Reader},
};
use frameshare_protocol::message::ToExporter;
use frameshare_tests::process::{Process, TestRun, wait_until};
use frameshare_tests::raw::{Channel, encoded, hello};
use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

const SILENT: usize = 100;
const HOLDING: usize = 60;
const CLOSED: usize = 400;

/// Joins and never receives anything.
fn join_silently(path: &Path) -> Channel {
    loop {
        // The backlog may be full until the exporter has accepted some connections.
        if let Ok(channel) = Channel::connect(path) {
            channel.send(&encoded(ToExporter::Hello(hello(Policy::Latest, 1)).encode()), &[]).unwrap();
            return channel;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Joins, receives nothing, and sends what ends the connection.
fn join_and_violate_protocol(path: &Path) -> Channel {
    let channel = join_silently(path);
    // It fails if the exporter has refused the reader already.
    let _ = channel.send(b"no message", &[]);
    assert!(channel.awaits_end(Duration::from_secs(60)), "the exporter does not end it");
    channel
}

/// Joins, takes one frame, and receives nothing from then on.
fn join_and_hold(path: &Path) -> (Reader, Item) {
    let interrupt = Interrupt::new().unwrap();
    let config = Config::default().policy(Policy::Latest).max_held(1);
    let mut reader = Reader::connect(&Endpoint::at(path).unwrap(), config, &interrupt).unwrap();
    loop {
        match reader.next(Some(Duration::from_secs(60)), &interrupt).unwrap() {
            Some(frame @ Item::Frame(_)) => return (reader, frame),
            Some(_) => {}
            None => panic!("no frame in time"),
        }
    }
}

/// Starts an exporter as an ordinary user without other processes, with this limit of open files:
/// root is exempt from it. Returns its socket too.
fn ordinary_exporter(user: u32, files: u32, options: &str) -> (Stream, PathBuf) {
    let run = TestRun::new();
    run.open_to_others();
    folder(&run, "theirs", user, 0o755);
    let ordinary =
        format!("prlimit --nofile={files}:{files} setpriv --reuid {user} --regid {user} --clear-groups");
    let socket = run.path("theirs/s.sock");
    let export = format!(
        "export --socket {} --socket-mode 666 --frames 100000000 --fps 300 --size 20000 --readers 1 --until end \
         --allowed-uids 65534 {options}",
        socket.display()
    );
    let mut exporter = run.peer_by(&ordinary, &export);
    exporter.wait_for("open");
    (Stream { exporter, run }, socket)
}

/// Starts a reader as a user.
fn join(stream: &Stream, socket: &Path, user: u32, options: &str) -> Process {
    let by = format!("setpriv --reuid {user} --regid {user} --clear-groups");
    let read = format!("read --socket {} --verify yes --quiet yes --max-held 2 {options}", socket.display());
    let mut reader = stream.run.peer_by(&by, &read);
    reader.wait_for("connected");
    reader
}

#[test]
fn unreceived_descriptors_disconnect_no_honest_reader() {
    if !is_root("unreceived_descriptors_disconnect_no_honest_reader") {
        return;
    }
    let user = 4_100_000 + std::process::id();
    let (mut stream, socket) = ordinary_exporter(user, 1024, "--max-slots 256");
    let lossless = join(&stream, &socket, user, "--policy lossless");
    let latest = join(&stream, &socket, 65534, "--policy latest");

    let silent: Vec<_> = (0..SILENT).map(|_| join_silently(&socket)).collect();
    let holding: Vec<_> = (0..HOLDING).map(|_| join_and_hold(&socket)).collect();
    stream.wait_for_frames(1000);
    let late = join(&stream, &socket, 65534, "--policy latest --frames 100");
    late.expect_success();
    stream.wait_for_frames(200);
    let honest = [lossless.pid(), latest.pid()];

    fs::write(stream.run.path("end"), "").unwrap();
    let latest = latest.expect_success().summary();
    assert_eq!((&latest["bad"], &latest["end"]), (&0.into(), &"eos".into()), "{latest}");
    let (outcome, _run) = (stream.exporter.expect_success(), stream.run);
    assert_all_read(lossless, &outcome.summary()["published"]);
    for removed in outcome.events("removed") {
        let early = honest.iter().any(|pid| removed["pid"] == *pid)
            && removed["why"].to_string().contains("hung up (");
        assert!(!early, "{removed}");
    }
    drop((silent, holding));
}

#[test]
fn unreceived_descriptors_of_closed_connections_are_bounded() {
    if is_root("unreceived_descriptors_of_closed_connections_are_bounded") {
        closed_connections_are_bounded(1024);
    }
}

/// With a high limit of open files the exporter still keeps few sockets open for closed
/// connections.
#[test]
fn unreceived_descriptors_are_bounded_under_high_file_limit() {
    if is_root("unreceived_descriptors_are_bounded_under_high_file_limit") {
        closed_connections_are_bounded(16384);
    }
}

/// Descriptors that a peer was sent and has not received stay in flight when its connection ends,
/// until it closes its end. The late reader runs as a user without any.
fn closed_connections_are_bounded(files: u32) {
    let user = 4_200_000 + 100_000 * (files / 1024) + std::process::id();
    let (mut stream, socket) = ordinary_exporter(user, files, "");
    let lossless = join(&stream, &socket, user, "--policy lossless");

    let mut closed: Vec<_> = (0..CLOSED).map(|_| join_and_violate_protocol(&socket)).collect();
    stream.wait_for_frames(300);
    // One refusal a second is reported for each process: the first was not necessarily this one.
    std::thread::sleep(Duration::from_millis(1500));
    closed.push(join_and_violate_protocol(&socket));
    join(&stream, &socket, 65534, "--policy latest --frames 100").expect_success();
    stream.wait_for_frames(200);
    // The descriptors are freed with the peers' ends.
    drop(closed);
    let (path, interrupt) = (Endpoint::at(&socket).unwrap(), Interrupt::new().unwrap());
    wait_until("a reader of this process is admitted again", || {
        Reader::connect(&path, Config::default(), &interrupt).is_ok()
    });

    fs::write(stream.run.path("end"), "").unwrap();
    let (outcome, _run) = (stream.exporter.expect_success(), stream.run);
    assert_all_read(lossless, &outcome.summary()["published"]);
    let refused = outcome.events("refused");
    assert!(refused.iter().any(|line| line.to_string().contains("unreceived")), "{refused:?}");
}

/// The exporter's process has few files left, which the unreceived messages of one reader occupy.
#[test]
fn reader_leaving_messages_unread_is_evicted() {
    let run = TestRun::new();
    let script = "export --stream s --frames 100000000 --fps 500 --size 20000 --readers 1 --until end --event-bytes 100000";
    let mut exporter = run.peer_by("prlimit --nofile=100:", script);
    exporter.wait_for("open");
    let mut stream = Stream { exporter, run };
    let witness = stream.read("--policy lossless --max-held 2");
    let path = stream.run.path("frameshare/s.sock");
    let silent = join_silently(&path);
    stream.wait_for_frames(3000);
    let (outcome, _run) = stream.end();
    assert_all_read(witness, &outcome.summary()["published"]);
    let removed = outcome.events("removed");
    assert!(
        removed
            .iter()
            .any(|line| line["pid"] == std::process::id() && line["why"].to_string().contains("unread")),
        "{removed:?}"
    );
    drop(silent);
}
