// SPDX-License-Identifier: MIT OR Apache-2.0

//! Readers that wake, divert and outnumber the sleepers of the wake-up page, as the same and as
//! another user than the reader whose wake-ups are watched.

use frameshare_tests::{
    process::{Process, TestRun},
    skip,
};
use std::fs;

const OTHER_USER: &str = "setpriv --reuid 4001 --regid 4001 --clear-groups";
/// Wake-ups after whose loss a reader uses its socket only.
const MAX_MISSED: u64 = 3;

/// Attacks a reader until it has frames enough. Returns its number of lost wake-ups.
fn missed_under(attack: &str, attacker_by: &str) -> u64 {
    let run = TestRun::new();
    run.open_to_others();
    let mut exporter = run.peer(
        "export --socket s.sock --socket-mode 666 --allowed-uids 4001 --frames 100000000 --size 20000 --fps 300 --until end --readers 0",
    );
    exporter.wait_for("open");
    let reader = run.peer(
        "read --socket s.sock --policy lossless --verify yes --quiet yes --frames 1000 --timeout-ms 60000",
    );
    let (hostile, path) = (run.path("hostile"), run.path("s.sock"));
    let start =
        || run.command(&format!("{attacker_by} {} reader {} {attack}", hostile.display(), path.display()));
    // 1,000 frames take 3.3 s, and each attack half a second.
    for _ in 0..3 {
        let attackers = [start(), start()];
        attackers.into_iter().for_each(|attacker| drop(attacker.expect_success()));
    }
    let summary = reader.expect_success().summary();
    assert_eq!((&summary["frames"], &summary["lost"], &summary["bad"]), (&1000.into(), &0.into(), &0.into()));
    assert!(summary["futex_sleeps"].as_u64() > Some(0), "{attack}: {summary}");
    fs::write(run.path("end"), "").expect("the folder is ours");
    let exporter = exporter.expect_success();
    assert!(exporter.summary()["longest_wait_ms"].as_u64() < Some(4000), "{}", exporter.summary());
    summary["missed_wakes"].as_u64().expect("a number")
}

#[test]
fn readers_of_one_user_survive_diverted_wake_ups() {
    const TEST: &str = "hostile/readers_of_one_user_survive_diverted_wake_ups";
    if !skip::is_root(TEST) || !skip::has_futex_waitv(TEST) {
        return;
    }
    // The attack works, which makes it the control of the next test; and it ends.
    assert!((1..=MAX_MISSED).contains(&missed_under("wake-divert", "env")));
    for attack in ["wake-storm", "wake-crowd"] {
        assert!(missed_under(attack, "env") <= MAX_MISSED, "{attack}");
    }
}

#[test]
fn readers_of_another_user_lose_no_wake_up() {
    const TEST: &str = "hostile/readers_of_another_user_lose_no_wake_up";
    if !skip::is_root(TEST) || !skip::has_futex_waitv(TEST) {
        return;
    }
    for attack in ["wake-storm", "wake-divert", "wake-crowd"] {
        // A reader that gets no CPU takes a wake-up for a lost one, which is rare.
        let mut missed = Vec::new();
        while missed.len() < 2 && !missed.contains(&0) {
            missed.push(missed_under(attack, OTHER_USER));
        }
        assert!(missed.contains(&0), "{attack}: {missed:?}");
    }
}

/// On a kernel without futex_waitv (before Linux 5.16), on either side.
#[test]
fn reader_without_futex_waitv_sleeps_on_its_socket() {
    const WITHOUT_FUTEXES: &str = concat!(env!("CARGO_BIN_EXE_without"), " futex_waitv --");
    let run = TestRun::new();
    let mut exporter = run.peer_by(WITHOUT_FUTEXES, "export --stream s --frames 300 --fps 300 --readers 2");
    exporter.wait_for("open");
    let read = |by: &str| {
        run.peer_by(by, "read --stream s --policy lossless --verify yes --quiet yes --timeout-ms 60000")
    };
    let sleeps = |reader: Process| {
        let summary = reader.expect_success().summary();
        assert_eq!((&summary["frames"], &summary["lost"]), (&300.into(), &0.into()), "{summary}");
        summary["futex_sleeps"].as_u64().expect("a number")
    };
    let readers = [read(WITHOUT_FUTEXES), read("env")];
    let [without, with] = readers.map(sleeps);
    exporter.expect_success();
    assert_eq!(without, 0);
    // Control.
    if skip::has_futex_waitv("hostile/reader_without_futex_waitv_sleeps_on_its_socket") {
        assert!(with > 0, "no sleep on the futex");
    }
}
