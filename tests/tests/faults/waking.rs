// SPDX-License-Identifier: MIT OR Apache-2.0

//! Readers that sleep, spin when a frame is expected, or always spin: either side ends at any
//! moment.

use crate::{Stream, assert_all_read, moment};
use frameshare_tests::process::Process;
use std::{thread, time::Duration};

const SHARES: [u32; 3] = [0, 10, 100];

/// Starts a stream of 60 frames a second with a reader of each share.
fn stream() -> (Stream, [Process; 3]) {
    let stream = Stream::start("--fps 60 --readers 3");
    let readers = SHARES.map(|spin| stream.read(&format!("--policy lossless --spin {spin}")));
    (stream, readers)
}

#[test]
fn reader_with_each_share_gets_every_frame_and_the_end() {
    let (mut stream, readers) = stream();
    stream.wait_for_frames(60);
    let (outcome, _run) = stream.end();
    for reader in readers {
        assert_all_read(reader, &outcome.summary()["published"]);
    }
}

/// Before, during and after a spin.
#[test]
fn exporter_killed_at_any_moment_ends_reader_with_each_share() {
    for number in 0..4 {
        let (Stream { mut exporter, run: _run }, mut readers) = stream();
        for reader in &mut readers {
            reader.wait_for("first");
        }
        // The rhythm of the stream is known after eight frames.
        thread::sleep(Duration::from_millis(300) + moment(number, Duration::from_millis(17)));
        exporter.kill();
        for reader in readers {
            let summary = reader.finish().summary();
            assert!(summary["end"].as_str().unwrap().contains("exited without closing"), "{summary}");
            assert_eq!((&summary["bad"], &summary["lost"]), (&0.into(), &0.into()), "{summary}");
        }
    }
}

#[test]
fn reader_killed_with_each_share_affects_no_other() {
    let (mut stream, readers) = stream();
    let survivor = stream.read("--policy lossless --spin 10");
    for (number, mut reader) in readers.into_iter().enumerate() {
        reader.wait_for("first");
        thread::sleep(Duration::from_millis(200) + moment(number, Duration::from_millis(17)));
        let pid = reader.pid();
        reader.kill();
        stream.wait_for_notice("removed", pid);
    }
    stream.wait_for_frames(20);
    let (outcome, _run) = stream.end();
    // The survivor has joined last, and may have missed the first frames.
    let summary = survivor.expect_success().summary();
    assert_eq!((&summary["lost"], &summary["bad"], &summary["end"]), (&0.into(), &0.into(), &"eos".into()));
    assert!(summary["frames"].as_u64() <= outcome.summary()["published"].as_u64(), "{summary}");
}
