// SPDX-License-Identifier: MIT OR Apache-2.0

//! Descriptors of a FUSE file whose server answers neither GETATTR nor FLUSH
//! (tests/src/bin/hostile/fuse.rs).
//!
//! Exporter and reader stop in time. The process itself cannot exit, nor be killed, until the
//! server ends: the server is killed first, and every variable that holds a victim or an attacker
//! is declared before that of the server, so that a test that panics ends the server first, too.

use super::{WITH_PASSRIGHTS, WITHOUT_PASSRIGHTS};
use frameshare_tests::{
    process::{Process, TestRun},
    skip::skip,
};
use std::{fs, path::Path};

/// The attacks on exporters with such a file (`hostile`).
pub const AGAINST_EXPORTERS: [&str; 3] = ["fuse-over-wake", "fuse-over-control", "fuse-unread"];

/// Returns whether the file can be served; reports the test as skipped if not.
pub fn can_serve(test: &str) -> bool {
    let opened = fs::File::options().read(true).write(true).open("/dev/fuse");
    let reason = match opened {
        Err(error) => format!("/dev/fuse: {error}"),
        Ok(_) if !rustix::process::geteuid().is_root() => "root is needed".into(),
        Ok(_) if !may_mount() => "no mount can be private here, as in a chroot".into(),
        Ok(_) => return true,
    };
    skip(&format!("hostile/{test}"), &reason);
    false
}

/// Returns whether private mounts can be made.
fn may_mount() -> bool {
    let arguments = ["--mount", "--propagation", "private", "true"];
    std::process::Command::new("unshare").args(arguments).output().is_ok_and(|output| output.status.success())
}

/// Starts a server whose file attackers open in the folder of the socket that they attack.
pub fn server(run: &TestRun, socket: &Path) -> Process {
    let program = env!("CARGO_BIN_EXE_hostile");
    let folder = socket.parent().expect("a socket lies in a folder");
    let mut server =
        run.command(&format!("unshare --mount --propagation private {program} fuse {}", folder.display()));
    server.wait_for("serving");
    server
}

/// Starts an attack with the file.
fn attack_by(kind: &str, name: &str, run: &TestRun, path: &Path) -> Process {
    run.hostile(&format!("{kind} {} {name} stay", path.display()))
}

/// Waits until a thread of a process waits for the server.
fn wait_until_blocked(server: &mut Process, pid: u32) {
    loop {
        let thread = server.wait_for("blocked")["thread"].as_u64().expect("a number");
        if Path::new(&format!("/proc/{pid}/task/{thread}")).exists() {
            return;
        }
    }
}

/// The kernel releases descriptors that the exporter never received without FLUSH, so nothing
/// blocks there.
fn exporter_stops(kernel: &str) {
    for name in AGAINST_EXPORTERS {
        let run = TestRun::new();
        let path = run.path("s.sock");
        let mut exporter = run.peer_by(
            kernel,
            "export --socket s.sock --frames 100000000 --size 20000 --fps 300 --until end --readers 0",
        );
        exporter.wait_for("open");
        let mut attacker;
        let mut server = server(&run, &path);
        attacker = attack_by("reader", name, &run, &path);
        let done = attacker.wait_for("done");
        println!("{name}: {done}");
        assert!(kernel == WITH_PASSRIGHTS || done["refused"] == false, "{name}: {done}");
        run.peer("read --socket s.sock --frames 5 --timeout-ms 60000").expect_success();
        fs::write(run.path("end"), "").expect("the folder is ours");
        exporter.wait_for("stopped");
        server.kill();
        exporter.expect_success();
        attacker.kill();
    }
}

/// Starts a reader with `start` against every descriptor that blocks, and lets `check` judge it
/// before the server ends.
fn reading_stops(start: impl Fn(&TestRun) -> Process, check: impl Fn(&str, &mut Process)) -> Vec<String> {
    let stop = |name| {
        let run = TestRun::new();
        let path = run.path("s.sock");
        let (mut reader, mut attacker);
        let mut server = server(&run, &path);
        attacker = attack_by("exporter", name, &run, &path);
        attacker.wait_for("open");
        reader = start(&run);
        let done = attacker.wait_for("done");
        println!("{name}: {done}");
        assert_eq!((&done["gave_up"], &done["refused"]), (&true.into(), &false.into()), "{name}: {done}");
        check(name, &mut reader);
        wait_until_blocked(&mut server, reader.pid());
        server.kill();
        let stderr = reader.expect_failure();
        attacker.kill();
        format!("{name}: {stderr}")
    };
    ["fuse-as-queue", "fuse-as-wake", "fuse-as-slot", "fuse-as-dma-buf", "fuse-as-payload"].map(stop).into()
}

fn reader_stops(kernel: &str) {
    let start = |run: &TestRun| run.peer_by(kernel, "read --socket s.sock --timeout-ms 2000 --hold 1");
    // A reader whose connection fails reports the reason, and has nothing to stop.
    reading_stops(start, |name, reader| {
        if ["fuse-as-slot", "fuse-as-dma-buf", "fuse-as-payload"].contains(&name) {
            reader.wait_for("stopped");
        }
    });
}

fn source_stops(kernel: &str) {
    let pipeline = "framesharesrc socket-path=s.sock connection-timeout=2000000000 ! fakesink sync=false";
    let start = |run: &TestRun| run.gst_by(kernel, pipeline);
    for stderr in reading_stops(start, |_, source| source.wait_until_stopped()) {
        assert!(stderr.contains("ERROR") && !stderr.contains("panicked"), "{stderr}");
    }
}

#[test]
fn exporter_stops_after_descriptor_of_silent_fuse_server() {
    if can_serve("exporter_stops_after_descriptor_of_silent_fuse_server") {
        exporter_stops(WITH_PASSRIGHTS);
        exporter_stops(WITHOUT_PASSRIGHTS);
    }
}

#[test]
fn reader_stops_after_descriptor_of_silent_fuse_server() {
    if can_serve("reader_stops_after_descriptor_of_silent_fuse_server") {
        reader_stops(WITH_PASSRIGHTS);
        reader_stops(WITHOUT_PASSRIGHTS);
    }
}

#[test]
fn source_stops_after_descriptor_of_silent_fuse_server() {
    if can_serve("source_stops_after_descriptor_of_silent_fuse_server") {
        source_stops(WITH_PASSRIGHTS);
        source_stops(WITHOUT_PASSRIGHTS);
    }
}
