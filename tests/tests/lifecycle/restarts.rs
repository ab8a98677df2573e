// SPDX-License-Identifier: MIT OR Apache-2.0

//! Exporters that end and start again under their readers.

const OTHER_CAPS: &str =
    "video/x-raw, format=(string)RGB, width=(int)32, height=(int)16, framerate=(fraction)50/1";
const OTHER_SIZE: usize = 32 * 16 * 3;

/// Takes frames up to the first one of another session, and returns that one.
fn next_session(reader: &Reader, before: u64) -> Arrival {
    loop {
        let arrival = reader.next().expect("the stream goes on");
        if arrival.session != before {
            return arrival;
        }
        assert!(!arrival.is_discont || arrival.lost_before > 0, "{:?}", arrival.sequence);
    }
}

#[test]
fn readers_go_on_with_next_exporter_and_its_caps() {
    let run = TestRun::new();
    let first = Exporter::start(&run, "s");
    let readers = ["lossless", "latest"]
        .map(|policy| Reader::start(&run, "s", &format!("on-disconnect=wait policy={policy}")));
    first.wait_for_readers(2);
    first.push_frames(0, 1..=30);
    let sessions = readers.each_ref().map(|reader| {
        let frame = reader.next().expect("a frame");
        assert_eq!(frame.sequence, 1 + frame.lost_before);
        frame.session
    });
    // It is stopped, not ended: without an EOS.
    drop(first);

    let second = Exporter::start(&run, "s");
    second.wait_for_readers(2);
    second.set_caps(OTHER_CAPS);
    (1..=29).for_each(|number| second.push(frame(1, number, OTHER_SIZE)));
    for (reader, before) in readers.iter().zip(sessions) {
        let resumed = next_session(reader, before);
        assert!(resumed.is_discont);
        assert_eq!(resumed.sequence, 1 + resumed.lost_before);
        assert_eq!(resumed.caps.to_string(), OTHER_CAPS);
        assert!(resumed.bytes == frame(1, resumed.sequence, OTHER_SIZE));
        // A discontinuity is marked once.
        let next = reader.next().expect("a frame");
        assert_eq!(next.session, resumed.session);
        assert_eq!(
            (next.is_discont, next.sequence),
            (next.lost_before > 0, resumed.sequence + 1 + next.lost_before)
        );
    }
    // A `latest` reader with all its credit in use loses a new frame; it must get this one.
    second.wait_until_published(29);
    second.wait_for_credit();
    second.push(frame(1, 30, OTHER_SIZE));
    // After an end of stream the reader does not wait for another exporter.
    let ended = std::thread::spawn(move || {
        second.end();
        second
    });
    let [lossless, latest] = readers.map(|reader| reader.rest());
    assert_eq!(lossless.len(), 28);
    assert_eq!(latest.last().map(|frame| frame.sequence), Some(30));
    ended.join().unwrap();
}

/// Negative control of `on-disconnect=wait`.
#[test]
fn reader_without_wait_fails_at_exporter_end() {
    let run = TestRun::new();
    let first = Exporter::start(&run, "s");
    let reader =
        run.gst(&format!("framesharesrc socket-path={} policy=lossless ! fakesink", run.socket("s")));
    first.wait_for_readers(1);
    first.push_frames(0, 1..=30);
    drop(first);
    let second = Exporter::start(&run, "s");
    let error = reader.expect_failure();
    assert!(error.contains("on-disconnect=wait"), "{error}");
    assert_eq!(second.readers(), 0);
}

/// Frames a second.
const RATE: u64 = 25;

fn camera(run: &TestRun) -> Process {
    run.gst(&format!(
        "videotestsrc is-live=true ! video/x-raw,format=GRAY8,width=64,height=48,framerate={RATE}/1 ! \
         framesharesink socket-path={}",
        run.socket("s")
    ))
}

#[test]
fn next_exporter_is_read_within_a_second_of_kill() {
    let run = TestRun::new();
    let mut exporter = camera(&run);
    let here = Reader::start(&run, "s", "on-disconnect=wait");
    let process = run.gst(&format!(
        "framesharesrc socket-path={} on-disconnect=wait connection-timeout=-1 num-buffers=60 ! \
         filesink location=read.raw",
        run.socket("s")
    ));
    let mut session = here.next().expect("a frame").session;
    let mut missed = Vec::new();
    for _ in 0..3 {
        for _ in 0..5 {
            assert_eq!(here.next().expect("a frame").session, session);
        }
        exporter.kill();
        exporter = camera(&run);
        let resumed = next_session(&here, session);
        assert!(resumed.is_discont);
        missed.push(resumed.sequence - 1);
        session = resumed.session;
    }
    // Other load may delay a reader by a second once.
    missed.sort_unstable();
    assert!(missed[1] < RATE && missed[2] < 10 * RATE, "it missed {missed:?} frames");
    process.expect_success();
    assert_eq!(run.read("read.raw").len(), 60 * SIZE);
}

/// Fewer than the compared runs.
const FRAMES: u64 = 10;

#[test]
fn reader_keeps_no_resources_of_past_exporters() {
    let run = TestRun::new();
    let reader = run.peer(&format!(
        "read --socket {} --policy lossless --reconnect yes --timeout-ms 60000 --quiet yes",
        run.socket("s")
    ));
    let pid = reader.pid();
    let mut settled = None;
    for number in 1..=20_u64 {
        let exporter = Exporter::start(&run, "s");
        exporter.wait_for_readers(1);
        exporter.push_frames(0, 1..=FRAMES);
        exporter.wait_until_published(FRAMES);
        match &settled {
            None if number == 5 => settled = Some(Census::in_run(pid, &run).with_slots(FRAMES as usize)),
            Some(before) => before.assert_no_growth(pid, &run),
            None => {}
        }
        if number == 20 {
            exporter.end();
        }
    }
    let outcome = reader.expect_success();
    assert_eq!(outcome.events("reconnected").len(), 19);
    assert_eq!(outcome.summary()["lost"], 0);
}

#[test]
fn frames_of_last_exporter_stay_whole_during_next() {
    let run = TestRun::new();
    let first = Exporter::start(&run, "s");
    let reader = Reader::start(&run, "s", "on-disconnect=wait policy=lossless max-held=8");
    first.wait_for_readers(1);
    first.push_frames(0, 1..=3);
    let kept = [(); 3].map(|()| reader.sample().expect("a frame"));
    drop(first);

    let second = Exporter::start(&run, "s");
    second.wait_for_readers(1);
    second.push_frames(1, 1..=40);
    let ended = std::thread::spawn(move || {
        second.end();
        second
    });
    let arrivals = reader.rest();
    assert_eq!(check(1, &arrivals), Vec::from_iter(1..=40));
    assert!(arrivals.iter().all(|arrival| arrival.caps.to_string() == CAPS));
    for (index, sample) in kept.iter().enumerate() {
        let map = sample.buffer().expect("a buffer").map_readable().expect("it can be read");
        assert!(map.as_slice() == frame(0, index as u64 + 1, SIZE), "frame {}", index + 1);
    }
    ended.join().unwrap();
}

use frameshare_test_pipelines::{Arrival, CAPS, Exporter, Reader, SIZE, check, frame};
use frameshare_tests::{
    census::Census,
    process::{Process, TestRun},
};
