// SPDX-License-Identifier: MIT OR Apache-2.0

//! Search for an exporter: stopped ones, failing ones, children that keep a dead one's socket open.

use crate::{HELD_UP_MS, Stream};
use frameshare::{
    Endpoint, Interrupt, Reason,
    reader::{Config, Item, ReadError, Reader},
};
use frameshare_protocol::message::ToReader;
use frameshare_test_pipelines::Pipeline;
use frameshare_tests::process::{PATIENCE, TestRun};
use frameshare_tests::raw::{Listener, Offer};
use rustix::process::{Pid, Signal, kill_process};
use std::{
    thread,
    time::{Duration, Instant},
};

/// Longer than 5 s, the default timeout of a connection.
const LONG: Duration = Duration::from_secs(6);
const HELD_UP: Duration = Duration::from_millis(HELD_UP_MS);

fn connect(run: &TestRun, path: &str, reconnect: bool) -> (Reader, Interrupt) {
    let interrupt = Interrupt::new().unwrap();
    let endpoint = Endpoint::at(run.path(path)).unwrap();
    let config = Config::default().reconnect(reconnect).connection_timeout(Some(PATIENCE));
    (Reader::connect(&endpoint, config, &interrupt).unwrap(), interrupt)
}

#[test]
fn polling_reader_notices_killed_exporter() {
    let Stream { mut exporter, run } = Stream::start("--fps 500 --readers 1");
    let (mut reader, interrupt) = connect(&run, "frameshare/s.sock", false);
    while !matches!(reader.next(Some(PATIENCE), &interrupt), Ok(Some(Item::Frame(_)))) {}
    exporter.kill();
    let deadline = Instant::now() + PATIENCE;
    let error = loop {
        assert!(Instant::now() < deadline, "polling shows no end");
        match reader.next(Some(Duration::ZERO), &interrupt) {
            Ok(_) => thread::sleep(Duration::from_millis(1)),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, ReadError::Gone { .. }), "{error}");
}

#[test]
fn readers_wait_for_stopped_exporter() {
    let Stream { exporter, run } = Stream::start("--fps 500 --readers 0");
    exporter.suspend();
    let patient = ["connected", "connected"]
        .map(|_| run.peer("read --stream s --verify yes --quiet yes --frames 20 --timeout-ms 600000"));
    let pipeline = run.gst("framesharesrc stream=s connection-timeout=-1 num-buffers=20 ! fakesink");
    let begin = Instant::now();
    let error = run.peer("read --stream s --timeout-ms 500").expect_failure();
    assert!(error.contains("has not answered"), "{error}");
    let error = run.gst("framesharesrc stream=s connection-timeout=500000000 ! fakesink").expect_failure();
    assert!(error.contains("has not answered") && error.contains("connection-timeout"), "{error}");
    thread::sleep(LONG.saturating_sub(begin.elapsed()));
    exporter.resume();
    for reader in patient {
        assert_eq!(reader.expect_success().summary()["bad"], 0);
    }
    pipeline.expect_success();
}

#[test]
fn searching_pipelines_reach_null_at_once() {
    let Stream { mut exporter, run } = Stream::start("--fps 500 --readers 0");
    let description = format!(
        "framesharesrc socket-path={} on-disconnect=wait connection-timeout=-1 ! appsink name=output sync=false",
        run.socket("s")
    );
    let start = || {
        let pipeline = Pipeline::new(&description);
        pipeline.play();
        pipeline
    };
    let stop = |pipeline: &Pipeline| {
        let begin = Instant::now();
        pipeline.stop();
        assert!(begin.elapsed() < HELD_UP, "NULL took {:?}", begin.elapsed());
    };
    let reading = start();
    let output = reading.appsink("output");
    assert!(output.try_pull_sample(gst::ClockTime::try_from(PATIENCE).ok()).is_some(), "no frame came");
    // During the handshake with a stopped exporter.
    exporter.suspend();
    let joining = start();
    thread::sleep(Duration::from_millis(300));
    stop(&joining);
    // During the search for the successor of a killed one.
    exporter.kill();
    while output.try_pull_sample(gst::ClockTime::from_mseconds(300)).is_some() {}
    stop(&reading);
}

/// The child has the listener as well as the lock on the name: no exporter can follow before it
/// ends.
#[test]
fn readers_wait_until_forked_child_frees_name() {
    let Stream { mut exporter, run } = Stream::start("--fps 500 --readers 1 --fork yes");
    let (mut steady, interrupt) = connect(&run, "frameshare/s.sock", true);
    let child = exporter.wait_for("child")["pid"].as_i64().and_then(|pid| Pid::from_raw(pid as i32));
    while !matches!(steady.next(Some(PATIENCE), &interrupt), Ok(Some(Item::Frame(_)))) {}
    exporter.kill();
    let joining = run.peer("read --stream s --verify yes --quiet yes --frames 20 --timeout-ms 600000");
    let lost = Instant::now();
    while lost.elapsed() < LONG {
        let item = steady.next(Some(Duration::from_millis(100)), &interrupt).unwrap();
        assert!(!matches!(item, Some(Item::Reconnected)));
    }
    kill_process(child.unwrap(), Signal::KILL).expect("the child exists");
    // The name is in use until the kernel has ended the child.
    let export = || run.peer("export --stream s --frames 100000000 --fps 500 --readers 0");
    let killed = Instant::now();
    let _exporter = loop {
        let mut exporter = export();
        if exporter.find_event("open").is_some() {
            break exporter;
        }
        assert!(killed.elapsed() < PATIENCE, "the name does not become free");
    };
    assert_eq!(joining.expect_success().summary()["bad"], 0);
    while !matches!(steady.next(Some(PATIENCE), &interrupt).unwrap(), Some(Item::Reconnected)) {}
}

/// Accepts a reader twice: ends its connection with `reason`, then waits for its return.
fn comes_back(reason: Reason, reconnect: bool) -> (bool, Option<ReadError>) {
    let run = TestRun::new();
    let listener = Listener::bind(&run.path("s.sock")).unwrap();
    thread::scope(|scope| {
        let exporter = scope.spawn(|| {
            let mut first = Offer::new(4, 1, 1).unwrap().send(&listener, PATIENCE).unwrap();
            first.send_message(&ToReader::Goodbye { reason, text: "a test".into() }, None).unwrap();
            drop(first);
            Offer::new(4, 1, 1).unwrap().send(&listener, Duration::from_secs(2)).ok()
        });
        let (mut reader, interrupt) = connect(&run, "s.sock", reconnect);
        let end = reader.next(Some(Duration::from_secs(2)), &interrupt);
        let second = exporter.join().unwrap();
        match end {
            Ok(Some(Item::Reconnected)) => (second.is_some(), None),
            Ok(item) => panic!("{item:?}"),
            Err(error) => (second.is_some(), Some(error)),
        }
    })
}

#[test]
fn failed_exporter_is_retried_and_eviction_is_final() {
    for reason in [Reason::Failed, Reason::Stopped] {
        assert!(matches!(comes_back(reason, true), (true, None)), "{reason:?}");
        assert!(matches!(comes_back(reason, false), (false, Some(_))), "{reason:?}");
    }
    for reason in [Reason::TooSlow, Reason::LimitExceeded, Reason::Violation, Reason::PermissionDenied] {
        let end = comes_back(reason, true);
        let is_evicted =
            matches!(&end, (false, Some(ReadError::CutOff { reason: found, .. })) if *found == reason);
        assert!(is_evicted, "{reason:?}: {end:?}");
    }
}
