// SPDX-License-Identifier: MIT OR Apache-2.0

//! Threads and descriptors of processes with many streams.

use frameshare::{Endpoint, observer::Observer};
use frameshare_tests::{
    census::{Census, descriptors, threads},
    process::{Process, TestRun, wait_until},
};
use std::{fs, time::Duration};

const STREAMS: usize = 64;
const READERS: usize = 3;
/// Descriptors of a process with exporters besides those of its streams and readers: the service
/// threads' set, their wake-ups and timer, one of a thread that waits, the wake-up page.
const OF_PROCESS: usize = 5;
/// Descriptors of an exporter with one slot: listening socket, lock file, folder, metadata, slot.
const OF_EXPORTER: usize = 5;
/// Descriptors of an exporter for each reader: control socket, wake-up socket, process.
const OF_READER: usize = 3;
/// Threads of a process: the main thread, the service thread, one more after a turn that may block,
/// and one that the census always counts.
const THREADS: usize = 4;

fn options(run: &TestRun, streams: usize) -> String {
    run.socket("any");
    format!("--folder {} --streams {streams}", run.path("frameshare").display())
}

fn open_files(process: &Process) -> usize {
    descriptors(process.pid()).expect("the process exists")
}

fn assert_at_most(most: usize, what: &str, count: impl Fn() -> usize) {
    wait_until(&format!("at most {most} {what}"), || count() <= most);
    println!("{what}: {}", count());
}

#[test]
fn streams_of_one_process_share_threads_and_fit_1024_files() {
    let run = TestRun::new();
    let until = run.path("until");
    let share = format!("share {} --readers {READERS} --until {}", options(&run, STREAMS), until.display());
    let mut exporter = run.peer_by("prlimit --nofile=1024:", &share);
    let before = exporter.wait_for("open")["files_before"].as_u64().expect("a number") as usize;
    let running = || threads(exporter.pid()).expect("the process exists");
    let alone = before + OF_PROCESS + STREAMS * OF_EXPORTER;
    assert_at_most(alone, "files without readers", || open_files(&exporter));
    assert_at_most(THREADS, "threads without readers", running);

    let gather = format!("gather {}", options(&run, STREAMS));
    // One after another: descriptors that readers have not received yet count against the limit.
    let connected = || {
        let mut reader = run.peer(&gather);
        reader.wait_for("connected");
        reader
    };
    let mut readers = Vec::from_iter((0..READERS).map(|_| connected()));
    readers.iter_mut().for_each(|reader| drop(reader.wait_for("complete")));
    let most = alone + STREAMS * READERS * OF_READER;
    assert_at_most(most, "files with readers", || open_files(&exporter));
    assert_at_most(THREADS, "threads with readers", || threads(exporter.pid()).expect("the process exists"));
    for reader in &readers {
        assert_at_most(2, "threads of a reader", || threads(reader.pid()).expect("the process exists"));
        println!("files of a reader: {}", open_files(reader));
    }
    fs::write(until, "").expect("the folder is writable");
    exporter.wait_for("closed");
}

/// Four processes with 25 readers each, of the default settings.
#[test]
fn stream_serves_100_readers_with_default_settings() {
    const PROCESSES: usize = 4;
    const COPIES: usize = 25;
    let run = TestRun::new();
    let until = run.path("until");
    let readers = PROCESSES * COPIES;
    let share = format!("share {} --readers {readers} --until {}", options(&run, 1), until.display());
    let mut exporter = run.peer_by("prlimit --nofile=1024:", &share);
    let before = exporter.wait_for("open")["files_before"].as_u64().expect("a number") as usize;
    let gather = format!("gather {} --copies {COPIES} --max-held 0", options(&run, 1));
    let mut gathering = Vec::from_iter((0..PROCESSES).map(|_| run.peer(&gather)));
    exporter.wait_for("published");
    gathering.iter_mut().for_each(|reader| drop(reader.wait_for("complete")));
    // Two more slots than one: the frame that the readers hold, and the kept one.
    let most = before + OF_PROCESS + OF_EXPORTER + 2 + readers * OF_READER;
    assert_at_most(most, "files with 100 readers", || open_files(&exporter));
    let endpoint = Endpoint::at(run.socket("cam0")).unwrap();
    let mut observer = Observer::connect(&endpoint, Duration::from_secs(60)).unwrap();
    let snapshot = observer.snapshot().unwrap();
    assert_eq!(snapshot.readers.len(), readers);
    assert!(snapshot.readers.iter().all(|reader| reader.credit >= 2 && reader.lost == 0));
    fs::write(until, "").expect("the folder is writable");
    exporter.wait_for("closed");
}

/// A hundred events before each frame, some of which find many others unread: a lossless reader
/// gets all of them in order. Neither side keeps them, nor does a source, which does not know them.
#[test]
fn lossless_reader_gets_200_000_events_in_order() {
    const EVENTS: u64 = 100;
    const FRAMES: u64 = 200_000 / EVENTS;
    /// Default of `max-slots`.
    const MAX_SLOTS: usize = 512;
    /// An allocator keeps some memory.
    const GROWTH_KB: u64 = 4096;
    let run = TestRun::new();
    let mut exporter = run.peer(&format!(
        "export --stream s --frames 100000000 --until end --size 1000 --readers 2 --event-bytes 100 --events {EVENTS}"
    ));
    exporter.wait_for("open");
    let reader = run.peer("read --stream s --policy lossless --verify yes --quiet yes");
    let source = run.gst("framesharesrc stream=s policy=lossless ! fakesink sync=false");
    exporter.wait_for("progress");
    let processes = [exporter.pid(), reader.pid(), source.pid()];
    // The number of slots depends on the speed of releases.
    let census = |pid| Census::in_run(pid, &run).with_slots_up_to(MAX_SLOTS).with_kilobytes(GROWTH_KB);
    let before = processes.map(census);
    while exporter.wait_for("progress")["published"].as_u64() < Some(100 + FRAMES) {}
    for (before, pid) in before.iter().zip(processes) {
        before.assert_no_growth(pid, &run);
    }
    fs::write(run.path("end"), "").expect("the folder is ours");
    let published = exporter.expect_success().summary()["published"].as_u64().expect("a number");
    let summary = reader.expect_success().summary();
    assert_eq!(
        (&summary["events"], &summary["frames"], &summary["bad"], &summary["end"]),
        (&(EVENTS * published).into(), &published.into(), &0.into(), &"eos".into()),
        "{summary}"
    );
    source.expect_success();
}

/// The child has none of its parent's threads, and the parent goes on, even with the name of a
/// stream of which the child has descriptors.
#[test]
fn forked_child_serves_streams_of_its_own() {
    let run = TestRun::new();
    let until = run.path("until");
    let mut exporter = run.peer(&format!("fork {} --until {}", options(&run, 2), until.display()));
    exporter.wait_for("open");
    let pids = [0, 1].map(|stream| {
        let endpoint = Endpoint::at(run.socket(&format!("cam{stream}"))).unwrap();
        let mut pid = None;
        // The first stream may be between its exporters.
        wait_until("the stream", || {
            let observer = Observer::connect(&endpoint, Duration::from_secs(60));
            pid = observer.ok().and_then(|mut observer| Some(observer.snapshot().ok()?.exporter.pid));
            pid.is_some()
        });
        pid.unwrap()
    });
    assert_eq!(pids[0], exporter.pid());
    assert_ne!(pids[1], exporter.pid());
    fs::write(until, "").expect("the folder is writable");
    exporter.expect_success();
}
