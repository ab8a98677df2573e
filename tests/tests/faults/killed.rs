// SPDX-License-Identifier: MIT OR Apache-2.0

//! Killed readers: their frames return, and other readers are not affected.

use crate::{HELD_UP_MS, NEVER_MS, Stream, UNTIL, assert_all_read, find_notice, moment, times};
use frameshare_tests::process::{Process, TestRun};
use rustix::process::{Pid, Signal, kill_process};
use std::{thread, time::Duration};

/// The surviving readers of these tests.
fn survivors(stream: &Stream) -> [Process; 3] {
    [(); 3].map(|()| stream.read("--policy lossless"))
}

#[test]
fn hundred_killed_readers_do_not_affect_others() {
    let mut stream = Stream::start(&format!("--fps 1000 --readers 3 --reader-timeout-ms {NEVER_MS}"));
    let survivors = survivors(&stream);
    // From before the connection to the middle of their frames; the hoarding ones die with all
    // their credit in use.
    let kinds =
        ["--policy lossless", "--policy lossless --hoard 4", "--policy latest", "--policy latest --hoard 4"];
    let kills = times(100);
    for number in 0..kills {
        let kind = kinds[number % kinds.len()];
        let mut victim = stream.run.peer(&format!("read --stream s --quiet yes {kind}"));
        if number % 10 == 9 {
            victim.wait_for(if kind.contains("hoard") { "hoarding" } else { "first" });
        } else {
            thread::sleep(moment(number, Duration::from_millis(20)));
        }
        victim.kill();
    }
    // The exporter has noticed the end of all of them.
    let joining = stream.read("--policy lossless --frames 1");
    joining.expect_success();
    stream.exporter.wait_for("removed");
    let (outcome, _run) = stream.end();
    let summary = outcome.summary();
    assert!(summary["longest_wait_ms"].as_u64() < Some(HELD_UP_MS), "{summary}");
    let (added, removed) = (outcome.events("added").len(), outcome.events("removed").len());
    // At least those that the test waited for.
    assert!(added > kills / 10, "{added} of {kills} readers were admitted");
    assert!(removed >= added - 3, "{removed} of {added} readers were removed");
    for survivor in survivors {
        assert_all_read(survivor, &summary["published"]);
    }
}

/// The same without pidfd, as for a peer in another PID namespace before Linux 6.5.
#[test]
fn forked_child_without_pidfd_keeps_no_frames_of_dead_reader() {
    let run = TestRun::new();
    let without = format!("{} pidfd --", env!("CARGO_BIN_EXE_without"));
    let export = format!(
        "export --stream s --frames 100000000 --size 20000 --until {UNTIL} --fps 500 --readers 2 --reader-timeout-ms {NEVER_MS}"
    );
    let mut exporter = run.peer_by(&without, &export);
    exporter.wait_for("open");
    let mut stream = Stream { exporter, run };
    let survivor = stream.read("--policy lossless");
    let mut victim = stream.read("--policy lossless --hoard 4 --fork yes");
    let child = victim.wait_for("child")["pid"].as_i64().and_then(|pid| Pid::from_raw(pid as i32)).unwrap();
    victim.wait_for("hoarding");
    // Long enough for the exporter to poll the lock while the reader lives.
    thread::sleep(Duration::from_secs(1));
    let pid = victim.pid();
    victim.kill();
    stream.wait_for_notice("removed", pid);
    stream.wait_for_frames(200);
    let (outcome, _run) = stream.end();
    kill_process(child, Signal::KILL).expect("the child exists");
    assert_all_read(survivor, &outcome.summary()["published"]);
}

/// A dead reader's socket stays open in a forked child, and never hangs up.
#[test]
fn forked_child_keeps_no_frames_of_dead_reader() {
    let mut stream = Stream::start(&format!("--fps 500 --readers 4 --reader-timeout-ms {NEVER_MS}"));
    let survivors = survivors(&stream);
    let mut victim = stream.read("--policy lossless --hoard 4 --fork yes");
    let child = victim.wait_for("child")["pid"].as_i64().and_then(|pid| Pid::from_raw(pid as i32)).unwrap();
    victim.wait_for("hoarding");
    // The stream soon stops, for lack of credit.
    thread::sleep(Duration::from_millis(50));
    let pid = victim.pid();
    victim.kill();
    stream.wait_for_frames(200);
    let (outcome, _run) = stream.end();
    kill_process(child, Signal::KILL).expect("the child exists");
    let summary = outcome.summary();
    assert!(summary["longest_wait_ms"].as_u64() < Some(HELD_UP_MS), "{summary}");
    assert!(find_notice(&outcome, "removed", pid).is_some());
    for survivor in survivors {
        assert_all_read(survivor, &summary["published"]);
    }
}
