// SPDX-License-Identifier: MIT OR Apache-2.0

//! Abstract sockets: access without a file mode, ownership of the name, and squatters.

use crate::is_root;
use frameshare_tests::{
    process::{Process, TestRun},
    repeat::times,
};
use rustix::process::geteuid;

const ROOT: &str = "setpriv --reuid 0";
const ALLOWED: &str = "setpriv --reuid 4001 --regid 4001 --clear-groups";
const OTHER: &str = "setpriv --reuid 4002 --regid 4002 --clear-groups";

/// Returns a name that no other test has: all processes of the machine share them.
fn name(test: &str) -> String {
    format!("@frameshare-{test}-{}", std::process::id())
}

fn export(run: &TestRun, user: &str, name: &str, options: &str) -> Process {
    let mut exporter = run.peer_by(
        user,
        &format!("export --socket {name} --frames 100000000 --fps 500 --size 20000 --readers 0 {options}"),
    );
    exporter.wait_for("open");
    exporter
}

fn read(run: &TestRun, user: &str, name: &str, options: &str) -> Process {
    let read = format!("read --socket {name} --verify yes --frames 20 --timeout-ms 60000 {options}");
    run.peer_by(user, &read)
}

#[test]
fn bind_of_abstract_name_is_its_lock() {
    let (run, name) = (TestRun::new(), name("lock"));
    let own = format!("--exporter-uid {}", geteuid().as_raw());
    for _ in 0..times(5) {
        let mut exporter = export(&run, "env", &name, "");
        let error = run.peer(&format!("export --socket {name}")).expect_failure();
        assert!(error.contains(&format!("process {}", exporter.pid())), "{error}");
        let reader = read(&run, "env", &name, &format!("{own} --policy lossless"));
        reader.expect_success();
        // The kernel releases the name of a killed process.
        exporter.kill();
    }
    assert!(!run.path(&name).exists());
    // Of several that start at once, one gets it.
    let starting: Vec<_> = (0..4)
        .map(|_| run.peer(&format!("export --socket {name} --frames 100000000 --fps 100 --readers 0")))
        .collect();
    let mut open = Vec::new();
    for mut exporter in starting {
        if exporter.find_event("open").is_some() {
            open.push(exporter);
        }
    }
    assert_eq!(open.len(), 1);
}

#[test]
fn reconnecting_reader_finds_next_abstract_exporter() {
    let (run, name) = (TestRun::new(), name("reconnect"));
    let mut exporter = export(&run, "env", &name, "");
    let user = geteuid().as_raw();
    let mut reader = run.peer(&format!(
        "read --socket {name} --exporter-uid {user} --quiet yes --reconnect yes --timeout-ms 60000"
    ));
    reader.wait_for("first");
    exporter.kill();
    let next = export(&run, "env", &name, "");
    assert_eq!(reader.wait_for("reconnected")["exporter"], next.pid());
}

#[test]
fn abstract_exporter_admits_allowed_users_only() {
    if !is_root("abstract_exporter_admits_allowed_users_only") {
        return;
    }
    let (run, name) = (TestRun::new(), name("access"));
    run.open_to_others();
    let _exporter = export(&run, ROOT, &name, "--allowed-uids 4001");
    read(&run, ALLOWED, &name, "--exporter-uid 0").expect_success();
    let error = read(&run, OTHER, &name, "--exporter-uid 0").expect_failure();
    assert!(error.contains("user 4002 may not read"), "{error}");
    let error = read(&run, ALLOWED, &name, "--exporter-uid 0 --policy lossless").expect_failure();
    assert!(error.contains("does not let this reader be lossless"), "{error}");
    run.peer_by(ALLOWED, &format!("observe --socket {name}")).wait_for("snapshot");
    let error = run.peer_by(OTHER, &format!("observe --socket {name}")).expect_failure();
    assert!(error.contains("user 4002 may not read"), "{error}");
}

#[test]
fn squatter_of_abstract_name_is_refused() {
    if !is_root("squatter_of_abstract_name_is_refused") {
        return;
    }
    let (run, name) = (TestRun::new(), name("squat"));
    run.open_to_others();
    let squatter = export(&run, OTHER, &name, "--allowed-uids 4001,0");
    for (user, expected) in [(ALLOWED, 4001), (ALLOWED, 0), (ROOT, 0)] {
        let error = read(&run, user, &name, &format!("--exporter-uid {expected}")).expect_failure();
        assert!(error.contains("4002") && error.contains(&format!("user {expected} alone")), "{error}");
    }
    let error = run.peer_by(ALLOWED, &format!("observe --socket {name}")).expect_failure();
    assert!(error.contains("4002") && error.contains("4001 or 0"), "{error}");
    let error = run.peer(&format!("export --socket {name}")).expect_failure();
    assert!(error.contains(&squatter.pid().to_string()) && error.contains("user 4002"), "{error}");
    read(&run, ALLOWED, &name, "--exporter-uid 4002").expect_success();
}

#[test]
fn abstract_reader_needs_exporter_uid() {
    let (run, name) = (TestRun::new(), name("needs"));
    let error = run.peer(&format!("read --socket {name}")).expect_failure();
    assert!(error.contains("exporter_uid"), "{error}");
    let error = run.gst(&format!("framesharesrc socket-path={name} ! fakesink")).expect_failure();
    assert!(error.contains("set exporter-uid"), "{error}");
    let error = run.peer(&format!("export --socket {name} --socket-mode 666")).expect_failure();
    assert!(error.contains("socket_mode is 0666"), "{error}");
    let sink = format!("videotestsrc ! framesharesink socket-path={name} socket-mode=0666");
    let error = run.gst(&sink).expect_failure();
    assert!(error.contains("socket-mode is 0666"), "{error}");
    let error = run.peer("read --socket @a/b").expect_failure();
    assert!(error.contains("abstract socket") && error.contains("a/b"), "{error}");
}

/// Elements, by property and by URI; the sink starts again at once.
#[test]
fn elements_share_over_abstract_socket() {
    let (run, name) = (TestRun::new(), name("elements"));
    let user = geteuid().as_raw();
    for _ in 0..3 {
        let sink = run.gst(&format!("videotestsrc is-live=true ! framesharesink socket-path={name}"));
        let timeout = 60_000_000_000_u64;
        let properties = format!("exporter-uid={user} connection-timeout={timeout}");
        run.gst(&format!("framesharesrc socket-path={name} {properties} num-buffers=5 ! fakesink"))
            .expect_success();
        let uri =
            format!("frameshare://{name}?exporter-uid={user}&connection-timeout={timeout}&num-buffers=5");
        run.gst(&format!("urisourcebin uri={uri} ! fakesink")).expect_success();
        sink.interrupt();
        sink.expect_success();
    }
}
