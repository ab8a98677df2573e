// SPDX-License-Identifier: MIT OR Apache-2.0

//! Upstream events and readers of another user.

use super::*;

/// The events could make the stream worse for its other readers.
#[test]
fn reader_of_another_user_sends_no_upstream_events() {
    if !is_root("reader_of_another_user_sends_no_upstream_events") {
        return;
    }
    let run = TestRun::new();
    run.open_to_others();
    let mut exporter = run.peer(&format!(
        "export --socket s.sock --socket-mode 666 --allowed-uids 65534 --frames 100000000 --size 1000 \
         --until {UNTIL} --fps 200 --readers 0 --accept-qos yes --accept-navigation yes"
    ));
    exporter.wait_for("progress");
    let stream = Stream { exporter, run };
    let nobody = "setpriv --reuid 65534 --regid 65534 --clear-groups";
    let mut other = stream.run.peer_by(nobody, "read --socket s.sock --quiet yes --press other");
    let refused = other.wait_for("pressed");
    for kind in ["navigation", "qos"] {
        let text = refused[kind].as_str().expect("an error");
        assert!(text.contains("accepts no upstream events"), "{refused}");
    }
    // One that sends them nevertheless is disconnected.
    let attack = format!("reader {} upstream-not-accepted", stream.run.path("s.sock").display());
    let attacker = stream.run.path("hostile");
    let attacked = stream.run.command(&format!("{nobody} {} {attack}", attacker.display()));
    let attacked = attacked.expect_success();
    assert_eq!(attacked.events("done")[0]["fate"], "CutOff");
    let mut own = stream.run.peer("read --socket s.sock --quiet yes --press own");
    let sent = own.wait_for("pressed");
    assert!(sent["navigation"].is_null() && sent["qos"].is_null(), "{sent}");
    let (mut exporter, run) = (stream.exporter, stream.run);
    let (mut navigation, mut qos) = (0, 0);
    while (navigation, qos) != (1, 1) {
        let content = exporter.wait_for("upstream")["content"].as_str().expect("a text").to_owned();
        assert!(!content.contains("other"), "{content}");
        navigation += usize::from(content.contains("Text(\"own\")"));
        qos += usize::from(content.contains("Qos"));
    }
    let (outcome, _run) = Stream { exporter, run }.end();
    assert_eq!(outcome.events("upstream").len(), 2);
    for reader in [other, own] {
        reader.finish();
    }
}
