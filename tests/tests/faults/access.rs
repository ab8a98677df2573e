// SPDX-License-Identifier: MIT OR Apache-2.0

//! Permission to read a stream.

use crate::{folder, is_root};
use frameshare_tests::process::{PATIENCE, Process, TestRun};
use std::{
    fs,
    os::unix::fs::PermissionsExt,
    thread,
    time::{Duration, Instant},
};

const NOBODY: &str = "setpriv --reuid 65534 --regid 65534 --clear-groups";
/// The same user with an additional group.
const MEMBER: &str = "setpriv --reuid 65534 --regid 65534 --groups 4242";

/// Returns a folder that other users may enter, and a stream in it with these options, which ends
/// when it is dropped.
fn stream(options: &str) -> (TestRun, Process) {
    let run = TestRun::new();
    run.open_to_others();
    let mut exporter = run.peer(&format!(
        "export --socket s.sock --frames 100000000 --fps 500 --size 20000 --readers 0 {options}"
    ));
    exporter.wait_for("open");
    (run, exporter)
}

const READ: &str = "read --socket s.sock --verify yes --frames 20 --timeout-ms 60000";

fn mode(run: &TestRun, path: &str) -> u32 {
    fs::metadata(run.path(path)).unwrap().permissions().mode() & 0o777
}

#[test]
fn named_stream_denies_other_users() {
    if !is_root("named_stream_denies_other_users") {
        return;
    }
    let run = TestRun::new();
    run.open_to_others();
    let mut exporter = run.peer("export --stream s --frames 100000000 --fps 500 --readers 0");
    exporter.wait_for("open");
    assert_eq!((mode(&run, "frameshare"), mode(&run, "frameshare/s.sock")), (0o700, 0o600));
    let error = run.peer_by(NOBODY, "read --stream s --timeout-ms 60000").expect_failure();
    assert!(error.contains("permission denied"), "{error}");
    // Others may enter the folder: the socket is closed to them.
    fs::set_permissions(run.path("frameshare"), fs::Permissions::from_mode(0o755)).unwrap();
    let error = run.peer_by(NOBODY, "read --stream s --timeout-ms 60000").expect_failure();
    assert!(error.contains("permission denied"), "{error}");
    exporter.kill();
    run.peer("export --stream s --frames 1 --readers 0").expect_success();
    // A folder of another user, or one that others could have written to, is not used.
    let refused = |what: &str| {
        let error = run.peer("export --stream s").expect_failure();
        assert!(error.contains(what), "{error}");
    };
    fs::set_permissions(run.path("frameshare"), fs::Permissions::from_mode(0o770)).unwrap();
    refused("chmod go-w");
    fs::set_permissions(run.path("frameshare"), fs::Permissions::from_mode(0o700)).unwrap();
    std::os::unix::fs::chown(run.path("frameshare"), Some(65534), None).unwrap();
    refused("user 65534");
}

/// The mode of the socket denies access first, then the exporter does.
#[test]
fn other_users_are_refused_with_reason() {
    if !is_root("other_users_are_refused_with_reason") {
        return;
    }
    let (run, _exporter) = stream("");
    assert_eq!(mode(&run, "s.sock"), 0o600);
    let error = run.peer_by(NOBODY, READ).expect_failure();
    assert!(error.contains("permission denied"), "{error}");

    let (run, mut exporter) = stream("--socket-mode 666 --allowed-uids 12345 --allowed-gids 4242");
    assert_eq!(mode(&run, "s.sock"), 0o666);
    // The refusal may come before or after the Hello. Of many attempts the exporter reports some.
    for _ in 0..10 {
        let reader = run.peer_by(NOBODY, READ);
        let pid = reader.pid();
        let error = reader.expect_failure();
        assert!(error.contains("permission denied") && error.contains("65534"), "{error}");
        let refused = exporter.wait_for("refused");
        assert_eq!((&refused["pid"], &refused["uid"]), (&pid.into(), &65534.into()));
    }
}

#[test]
fn allowed_users_and_groups_read_without_lossless() {
    if !is_root("allowed_users_and_groups_read_without_lossless") {
        return;
    }
    for (allowed, who) in [
        ("--allowed-uids 12345,65534", NOBODY),
        ("--allowed-gids 12345,65534", NOBODY),
        ("--allowed-gids 4242", MEMBER),
    ] {
        let (run, _exporter) = stream(&format!("--socket-mode 666 {allowed}"));
        let summary = run.peer_by(who, READ).expect_success().summary();
        assert_eq!((&summary["frames"], &summary["bad"]), (&20.into(), &0.into()), "{allowed}");
        // Permission to read does not include the policy `lossless`.
        let error = run.peer_by(who, &format!("{READ} --policy lossless")).expect_failure();
        assert!(error.contains("does not let this reader be lossless"), "{error}");
    }
    let (run, _exporter) = stream("--socket-mode 666 --allowed-uids 65534 --lossless-readers all");
    let summary = run.peer_by(NOBODY, &format!("{READ} --policy lossless")).expect_success().summary();
    assert_eq!(summary["lost"], 0);
}

/// Readers of other users leave room for those of the exporter's own user, however many there are.
#[test]
fn other_users_leave_credit_for_exporter_user() {
    if !is_root("other_users_leave_credit_for_exporter_user") {
        return;
    }
    let (run, _exporter) = stream("--socket-mode 666 --allowed-uids 65534 --max-slots 16");
    let read = "read --socket s.sock --max-held 4 --quiet yes --timeout-ms 60000";
    let mut others = Vec::new();
    let refusal = loop {
        assert!(others.len() < 16, "there is credit without end");
        let mut other = run.peer_by(NOBODY, read);
        match other.find_event("connected") {
            Some(_) => others.push(other),
            None => break other.expect_failure(),
        }
    };
    assert!(refusal.contains("all 16 slots are promised") && refusal.contains("own user"), "{refusal}");
    assert!(others.len() >= 2, "others get most");
    let mut own = run.peer(read);
    let credit = own.wait_for("connected")["credit"].as_u64();
    // The exporter may hold one of the four reserved slots.
    assert!(credit >= Some(3), "{credit:?}");
}

/// Between bind and chmod a socket denies access that it grants a moment later.
#[test]
fn new_socket_denying_permission_is_retried() {
    if !is_root("new_socket_denying_permission_is_retried") {
        return;
    }
    let (run, _exporter) = stream("--socket-mode 666 --allowed-uids 65534");
    let set_mode = |mode| {
        fs::set_permissions(run.path("s.sock"), fs::Permissions::from_mode(mode)).unwrap();
    };
    set_mode(0o600);
    let reader = run.peer_by(NOBODY, READ);
    // Independent of the reader's start-up time.
    for _ in 0..20 {
        thread::sleep(Duration::from_millis(100));
        set_mode(0o600);
    }
    set_mode(0o666);
    assert_eq!(reader.expect_success().summary()["bad"], 0);
    set_mode(0o600);
    thread::sleep(Duration::from_millis(2500));
    let begin = Instant::now();
    let error = run.peer_by(NOBODY, READ).expect_failure();
    assert!(error.contains("permission denied"), "{error}");
    assert!(begin.elapsed() < PATIENCE / 2, "it is final");
}

#[test]
fn foreign_exporter_in_shared_folder_is_refused() {
    if !is_root("foreign_exporter_in_shared_folder_is_refused") {
        return;
    }
    let run = TestRun::new();
    run.open_to_others();
    folder(&run, "open", 0, 0o1777);
    folder(&run, "closed", 65534, 0o755);
    let export = |user: &str, path: &str| {
        let options = "--socket-mode 666 --allowed-uids 65533,65534 --frames 100000000 --fps 500 --readers 0";
        let mut exporter = run.peer_by(user, &format!("export --socket {path} --size 20000 {options}"));
        exporter.wait_for("open");
        exporter
    };
    let read = |user: &str, path: &str, options: &str| {
        let arguments = format!("read --socket {path} --verify yes --frames 20 --timeout-ms 60000 {options}");
        run.peer_by(user, &arguments)
    };
    const ROOT: &str = "setpriv --reuid 0";
    const OTHER: &str = "setpriv --reuid 65533 --regid 65533 --clear-groups";

    let exporter = export(NOBODY, "open/s.sock");
    let error = read(ROOT, "open/s.sock", "").expect_failure();
    assert!(error.contains("65534") && error.contains("user 0") && error.contains("/open"), "{error}");
    let error = read(OTHER, "open/s.sock", "").expect_failure();
    assert!(error.contains("65534") && error.contains("65533"), "{error}");
    let error = read(NOBODY, "open/s.sock", "--exporter-uid 0").expect_failure();
    assert!(error.contains("65534") && error.contains("user 0"), "{error}");
    read(ROOT, "open/s.sock", "--exporter-uid 65534").expect_success();
    read(NOBODY, "open/s.sock", "").expect_success();
    let source = |properties: &str| {
        let path = run.path("open/s.sock").display().to_string();
        run.gst(&format!("framesharesrc socket-path={path} num-buffers=20 {properties} ! fakesink"))
    };
    let error = source("").expect_failure();
    assert!(error.contains("65534") && error.contains("exporter-uid"), "{error}");
    source("exporter-uid=65534").expect_success();
    drop(exporter);

    // Root is trusted everywhere, and so are the users that root put in charge of a folder.
    let exporter = export(ROOT, "open/root.sock");
    read(NOBODY, "open/root.sock", "").expect_success();
    drop(exporter);
    let _exporter = export(NOBODY, "closed/s.sock");
    read(ROOT, "closed/s.sock", "").expect_success();
    read(OTHER, "closed/s.sock", "").expect_success();
}

/// With `reconnect` the reader waits while another user's exporter runs.
#[test]
fn reconnecting_reader_waits_for_expected_user() {
    if !is_root("reconnecting_reader_waits_for_expected_user") {
        return;
    }
    let run = TestRun::new();
    run.open_to_others();
    folder(&run, "open", 0, 0o777);
    let export = |user: &str| {
        let options = "--socket-mode 666 --allowed-uids 65534 --frames 100000000 --fps 500 --readers 0";
        let mut exporter = run.peer_by(user, &format!("export --socket open/s.sock {options}"));
        exporter.wait_for("open");
        exporter
    };
    let clear = || {
        for name in ["s.sock", "s.sock.lock"] {
            let _ = fs::remove_file(run.path("open").join(name));
        }
    };
    let first = export("setpriv --reuid 0");
    let mut reader =
        run.peer("read --socket open/s.sock --quiet yes --reconnect yes --timeout-ms 60000 --exporter-uid 0");
    reader.wait_for("first");
    drop(first);
    clear();
    let other = export(NOBODY);
    thread::sleep(Duration::from_millis(500));
    drop(other);
    clear();
    let own = export("setpriv --reuid 0");
    assert_eq!(reader.wait_for("reconnected")["exporter"], own.pid());
}

/// The same with the elements, as in the README.
#[test]
fn sink_admits_allowed_users_only() {
    if !is_root("sink_admits_allowed_users_only") {
        return;
    }
    let run = TestRun::new();
    run.open_to_others();
    let sink = |allowed: u32| {
        run.gst(&format!(
            "--gst-debug=framesharesink:2 --gst-debug-no-color videotestsrc is-live=true ! video/x-raw,framerate=100/1 ! \
             framesharesink socket-path=s.sock socket-mode=0666 allowed-uids=<{allowed}>"
        ))
    };
    let source = || {
        let plugins = run.path("plugins");
        let registry = "/dev/null";
        run.command(&format!(
            "{NOBODY} env GST_PLUGIN_PATH={} GST_REGISTRY={registry} gst-launch-1.0 -q framesharesrc socket-path=s.sock \
             connection-timeout=60000000000 num-buffers=20 ! fakesink",
            plugins.display()
        ))
    };
    let exporter = sink(65534);
    source().expect_success();
    drop(exporter);
    let exporter = sink(12345);
    let reader = source();
    let pid = reader.pid();
    let error = reader.expect_failure();
    assert!(error.contains("permission denied") && error.contains("allowed-uids"), "{error}");
    let log = exporter.kill_for_stderr();
    assert!(log.contains(&pid.to_string()) && log.contains("65534"), "{log}");
}
