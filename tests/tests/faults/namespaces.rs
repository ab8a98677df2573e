// SPDX-License-Identifier: MIT OR Apache-2.0

//! Peers in other user namespaces, as in rootless containers (unshare(1)).

use crate::{folder, is_root};
use frameshare_tests::{
    process::{Process, TestRun},
    skip,
};
use std::process::Command;

const NOBODY: &str = "setpriv --reuid 65533 --regid 65533 --clear-groups";
const OTHER: &str = "setpriv --reuid 65532 --regid 65532 --clear-groups";
/// The number of users without a mapping.
const OVERFLOW: &str = "65534";

/// Returns a run that other users may enter, or none where users cannot make namespaces.
fn run(test: &str) -> Option<TestRun> {
    if !is_root(test) {
        return None;
    }
    let line = format!("{NOBODY} unshare -U --map-current-user true");
    let mut words = line.split_whitespace();
    let made = Command::new(words.next().unwrap()).args(words).output();
    if !made.is_ok_and(|made| made.status.success()) {
        skip::skip(&format!("faults/{test}"), "this machine lets users make no user namespaces");
        return None;
    }
    let run = TestRun::new();
    run.open_to_others();
    Some(run)
}

fn export(run: &TestRun, user: &str, options: &str) -> Process {
    let mut exporter =
        run.peer_by(user, &format!("export --frames 100000000 --fps 500 --size 20000 --readers 0 {options}"));
    exporter.wait_for("open");
    exporter
}

fn read(run: &TestRun, user: &str, options: &str) -> Process {
    run.peer_by(user, &format!("read --verify yes --frames 20 --timeout-ms 60000 {options}"))
}

fn explains(error: &str) -> bool {
    error.contains(OVERFLOW) && error.contains("user namespace does not map") && error.contains("keep-id")
}

#[test]
fn same_user_reads_across_user_namespaces() {
    let Some(run) = run("same_user_reads_across_user_namespaces") else { return };
    for (outside, inside) in [
        ("setpriv --reuid 0", "unshare -U --map-root-user".to_owned()),
        (NOBODY, format!("{NOBODY} unshare -U --map-current-user")),
    ] {
        let options = "--socket x/s.sock";
        folder(&run, "x", if outside == NOBODY { 65533 } else { 0 }, 0o755);
        for (exporter, reader) in [(outside, &*inside), (&*inside, outside)] {
            let _exporter = export(&run, exporter, options);
            read(&run, reader, &format!("{options} --policy lossless")).expect_success();
        }
        std::fs::remove_dir_all(run.path("x")).unwrap();
    }
}

#[test]
fn unmapped_user_is_refused_with_explanation() {
    let Some(run) = run("unmapped_user_is_refused_with_explanation") else { return };
    let open = "--socket s.sock --socket-mode 666 --allowed-uids 65533,65532";
    // The exporter's namespace has no number for the reader.
    let exporter = export(&run, "unshare -U --map-root-user", open);
    let error = read(&run, OTHER, "--socket s.sock").expect_failure();
    assert!(explains(&error) && error.contains("the exporter's"), "{error}");
    drop(exporter);
    // The reader's namespace has no number for the exporter.
    let _exporter = export(&run, "setpriv --reuid 0", open);
    let inside = format!("{OTHER} unshare -U --map-current-user");
    let error = read(&run, &inside, "--socket s.sock").expect_failure();
    assert!(explains(&error) && error.contains("this user"), "{error}");
    let error = run.peer_by(&inside, "observe --socket s.sock").expect_failure();
    assert!(explains(&error), "{error}");
    read(&run, OTHER, "--socket s.sock").expect_success();
}

/// An exporter without a number of its own has the one of every other such user.
#[test]
fn unmapped_exporter_admits_no_unmapped_reader() {
    let Some(run) = run("unmapped_exporter_admits_no_unmapped_reader") else { return };
    folder(&run, "x", 65533, 0o755);
    let _exporter =
        export(&run, &format!("{NOBODY} unshare -U"), "--socket x/s.sock --socket-mode 666 --allowed-uids 5");
    let error = read(&run, OTHER, "--socket x/s.sock").expect_failure();
    assert!(explains(&error), "{error}");
}

#[test]
fn overflow_user_is_refused_in_configuration() {
    let Some(run) = run("overflow_user_is_refused_in_configuration") else { return };
    let inside = "unshare -U --map-root-user";
    for field in ["allowed-uids", "allowed-gids", "trusted-uids"] {
        let options = format!("export --socket s.sock --socket-mode 666 --{field} 12345,{OVERFLOW}");
        let error = run.peer_by(inside, &options).expect_failure();
        assert!(error.contains(&field.replace('-', "_")) && error.contains(OVERFLOW), "{error}");
        let sink =
            format!("videotestsrc ! framesharesink socket-path=s.sock socket-mode=0666 {field}=<{OVERFLOW}>");
        let error = run.gst_by(inside, &sink).expect_failure();
        assert!(error.contains(&format!("{field} contains {OVERFLOW}")), "{error}");
    }
    let error = read(&run, inside, &format!("--socket s.sock --exporter-uid {OVERFLOW}")).expect_failure();
    assert!(error.contains("exporter_uid") && error.contains(OVERFLOW), "{error}");
}
