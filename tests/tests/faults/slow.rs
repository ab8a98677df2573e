// SPDX-License-Identifier: MIT OR Apache-2.0

//! A slow reader beside fast ones.

use crate::{HELD_UP_MS, NEVER_MS, Stream, assert_all_read, find_notice};

/// At a frame a second it loses nearly all of them; those that it gets are whole.
#[test]
fn slow_latest_reader_does_not_affect_lossless() {
    let mut stream = Stream::start(&format!("--fps 500 --readers 3 --reader-timeout-ms {NEVER_MS}"));
    let witnesses = [(); 2].map(|()| stream.read("--policy lossless"));
    let mut slow = stream.read("--policy latest --sleep-ms 1000");
    slow.wait_for("first");
    stream.wait_for_frames(1000);
    let pid = slow.pid();
    let (outcome, _run) = stream.end();
    let summary = outcome.summary();
    assert!(summary["longest_wait_ms"].as_u64() < Some(HELD_UP_MS), "{summary}");
    assert!(find_notice(&outcome, "blocking", pid).is_none());
    for witness in witnesses {
        assert_all_read(witness, &summary["published"]);
    }
    let slow = slow.expect_success().summary();
    assert_eq!(slow["bad"], 0, "{slow}");
    assert!(slow["lost"].as_u64() > Some(500), "{slow}");
}
