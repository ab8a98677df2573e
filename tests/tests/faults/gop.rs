// SPDX-License-Identifier: MIT OR Apache-2.0

//! Kept units, requests for key units, and readers of another user.

use super::*;

/// A reader could keep the memory of each copy that it gets.
#[test]
fn reader_of_another_user_gets_no_kept_units_unless_trusted() {
    if !is_root("reader_of_another_user_gets_no_kept_units_unless_trusted") {
        return;
    }
    for (trusted, gets_kept_units) in [("", false), ("--trusted-uids 65534", true)] {
        let run = TestRun::new();
        run.open_to_others();
        // The only key unit is the first one.
        let mut exporter = run.peer(&format!(
            "export --socket s.sock --socket-mode 666 --allowed-uids 65534 --frames 100000000 --size 1000 \
             --until {UNTIL} --fps 200 --lossless-readers all --readers 0 --gop 100000000 {trusted}"
        ));
        exporter.wait_for("progress");
        let stream = Stream { exporter, run };
        let read = "read --socket s.sock --verify yes --quiet yes --policy lossless";
        let mut own = stream.run.peer(read);
        assert_eq!(own.wait_for("first")["sequence"], 1);
        let nobody = "setpriv --reuid 65534 --regid 65534 --clear-groups";
        let mut other = stream.run.peer_by(nobody, read);
        let first = other.wait_for("first")["sequence"].as_u64().expect("a number");
        // Without a key unit it starts after two seconds.
        assert_eq!(first == 1, gets_kept_units, "{trusted}: {first}");
        assert!(gets_kept_units || first > 300, "{first}");
        let (outcome, _run) = stream.end();
        assert!(outcome.events("KeyUnitWanted").is_empty(), "another user's reader asked the encoder");
        for reader in [own, other] {
            let summary = reader.expect_success().summary();
            assert_eq!((&summary["lost"], &summary["bad"]), (&0.into(), &0.into()), "{summary}");
        }
    }
}

/// Key units that one reader requests make the stream worse for the others.
#[test]
fn requests_of_another_user_do_not_reach_the_encoder() {
    if !is_root("requests_of_another_user_do_not_reach_the_encoder") {
        return;
    }
    let nobody = "setpriv --reuid 65534 --regid 65534 --clear-groups";
    for (user, is_asked) in [(nobody, false), ("env", true)] {
        let run = TestRun::new();
        run.open_to_others();
        let mut exporter = run.peer(&format!(
            "export --socket s.sock --socket-mode 666 --allowed-uids 65534 --frames 100000000 --size 1000 \
             --until {UNTIL} --fps 200 --readers 0 --gop 10"
        ));
        exporter.wait_for("progress");
        let stream = Stream { exporter, run };
        let read = "read --socket s.sock --verify yes --quiet yes --request-key-units yes --frames 100";
        stream.run.peer_by(user, read).expect_success();
        let (outcome, _run) = stream.end();
        let asked = outcome.events("KeyUnitWanted").len();
        assert_eq!(asked > 0, is_asked, "{user}: {asked} requests");
    }
}
