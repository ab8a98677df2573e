// SPDX-License-Identifier: MIT OR Apache-2.0

//! `doctor`: the machine, and what it predicts for a reader compared with what one gets.

use crate::{Ran, TOOL, admit_other_user, export, parse, ran, read, run_as_other_user, run_tool, tool};
use frameshare::{
    Endpoint, MemoryKind,
    observer::{Observer, Rights, Snapshot},
};
use frameshare_tests::{
    process::{PATIENCE, TestRun},
    raw::{Listener, show_snapshot},
    skip::{is_root, skip},
};
use serde_json::Value;
use std::{
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::Path,
    process::Command,
    thread,
};

/// The checks of a run.
struct Report(Vec<Value>);

impl Report {
    fn of(ran: &Ran) -> Self {
        let report = parse("doctor", &ran.stdout);
        let checks = report["checks"].as_array().expect("checks").clone();
        let levels = ["ok", "warning", "error"];
        let worst = checks.iter().map(|check| levels.iter().position(|level| check["level"] == *level));
        assert_eq!(report["level"], levels[worst.max().flatten().expect("checks")]);
        for check in &checks {
            assert_eq!(check["remedy"].is_null(), check["level"] == "ok", "{check}");
        }
        Self(checks)
    }

    /// Returns the level and text of the check of a subject that contains a text.
    #[track_caller]
    fn find(&self, subject: &str, part: &str) -> (&str, &str) {
        let matches = |check: &&Value| {
            check["subject"] == subject && check["text"].as_str().is_some_and(|text| text.contains(part))
        };
        let found = self.0.iter().find(matches);
        let found = found.unwrap_or_else(|| panic!("no {subject} with {part:?}: {:#?}", self.0));
        (found["level"].as_str().unwrap(), found["text"].as_str().unwrap())
    }

    #[track_caller]
    fn assert(&self, level: &str, subject: &str, part: &str) {
        assert_eq!(self.find(subject, part).0, level, "{subject} {part}");
    }
}

/// Without GStreamer, whose first start takes seconds.
fn doctor(run: &TestRun, stream: &str) -> Command {
    let mut command = tool(run, &format!("doctor {stream} --json"));
    command.env("PATH", run.path("")).env_remove("CUDA_MPS_PIPE_DIRECTORY");
    command
}

fn check(run: &TestRun, stream: &str) -> (i32, Report) {
    let ran = ran(&mut doctor(run, stream));
    (ran.status, Report::of(&ran))
}

#[test]
fn doctor_reports_kernel_limits_and_folders() {
    let run = TestRun::new();
    let (status, report) = check(&run, "");
    assert_eq!(status, 0);
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    report.assert("ok", "kernel", release.trim());
    report.assert("ok", "kernel", "memory files with seals: yes");
    for feature in ["SO_PEERPIDFD", "SO_PASSRIGHTS", "futex_waitv", "/dev/udmabuf"] {
        report.find("kernel", feature);
    }
    report.find("/dev/shm", "event fences");
    report.assert("ok", "user", &format!("user {},", rustix::process::geteuid().as_raw()));
    report.assert("ok", "folder", "is made by the first exporter");
    report.assert("ok", "gstreamer", "gst-inspect-1.0 is not installed");
    let text = run_tool(&run, "doctor").stdout;
    assert!(
        text.lines().all(|line| ["ok ", "warning ", "error ", "   "].iter().any(|it| line.starts_with(it)))
    );
}

#[test]
fn low_limits_and_bad_folders_are_warnings() {
    let run = TestRun::new();
    let mut command = Command::new("prlimit");
    command.args(["--nofile=100", "--fsize=1048576", TOOL, "doctor", "--json"]).current_dir(run.path(""));
    command.env("XDG_RUNTIME_DIR", run.path("")).env("FRAMESHARE_PATH", "relative:/nowhere/at/all");
    let limited = ran(&mut command);
    assert_eq!(limited.status, 0, "{}", limited.stderr);
    let report = Report::of(&limited);
    report.assert("warning", "limits", "open files (ulimit -n): 100,");
    report.assert("warning", "limits", "file size (ulimit -f): 1.0 MiB");
    report.assert("warning", "folder", "/nowhere/at/all is not searched: No such file");
    report.assert("warning", "folder", "relative is not searched: the path is relative");

    let relative = ran(doctor(&run, "").env("XDG_RUNTIME_DIR", "run"));
    Report::of(&relative).assert("warning", "folder", "is no absolute path");
}

/// With the reason that exporters and readers give.
#[test]
fn folder_that_others_can_write_is_an_error() {
    let run = TestRun::new();
    let folder = run.path("frameshare");
    fs::create_dir(&folder).unwrap();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).unwrap();
    let ran = ran(&mut doctor(&run, ""));
    assert_eq!((ran.status, ran.stderr.as_str()), (1, "frameshare: 1 of the checks failed\n"));
    Report::of(&ran).assert("error", "folder", "can be written by other users (mode 0777): run chmod go-w");
}

#[test]
fn plugin_of_other_version_is_a_warning() {
    let run = TestRun::new();
    let inspect = |script: &str| {
        fs::write(run.path("script"), format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(run.path("script"), fs::Permissions::from_mode(0o755)).unwrap();
        // As in `admit_other_user`: a child that another test forks holds no copy open.
        let copied = Command::new("cp").arg(run.path("script")).arg(run.path("gst-inspect-1.0")).status();
        assert!(copied.expect("cp starts").success());
        check(&run, "").1
    };
    let version = "[ $1 = --version ] && echo 'GStreamer 1.26.2' && exit;";
    let own = env!("CARGO_PKG_VERSION");
    let report = inspect(&format!("{version} echo '  Version    {own}'; echo '  Filename   /lib/x.so'"));
    report.assert("ok", "gstreamer", "GStreamer 1.26.2");
    report.assert("ok", "gstreamer", &format!("plugin frameshare {own}, /lib/x.so"));
    let report = inspect(&format!("{version} echo '  Version    {own}-1a2b3c4+'"));
    report.assert("ok", "gstreamer", &format!("plugin frameshare {own}-1a2b3c4+"));
    let report = inspect(&format!("{version} echo '  Version    0.0.9'"));
    report.assert("warning", "gstreamer", "plugin frameshare 0.0.9");
    inspect(&format!("{version} exit 1")).assert("warning", "gstreamer", "is not found");
    inspect("exit 1").assert("warning", "gstreamer", "gst-inspect-1.0 failed");
}

/// Nine slots, less those of the exporter, are too few for two readers of four. The exporter
/// publishes nothing, so that it holds no further slot.
#[test]
fn predicted_credit_is_what_reader_gets() {
    let run = TestRun::new();
    let _exporter = export(&run, "--max-slots 9 --lossless-readers none --readers 9");
    let (status, report) = check(&run, "s");
    assert_eq!(status, 0);
    report.assert("ok", "memory", "a reader here gets them in place");
    report.assert("ok", "policy", "latest only: the exporter admits no lossless reader");
    let predict = || {
        let (status, report) = check(&run, "s");
        let (level, text) = report.find("credit", "a reader here may hold ");
        let words = text.split(" may hold ").nth(1).unwrap();
        let frames: u64 = words.split(' ').next().unwrap().parse().unwrap();
        assert_eq!((status == 0, level == "ok"), (frames > 0, frames > 0), "{text}");
        frames
    };
    let _first = read(&run, "--max-held 4");
    let predicted = predict();
    assert!((1..4).contains(&predicted), "{predicted}");
    let _second = read(&run, "--max-held 4");
    let info = crate::json(&run, "info s");
    assert_eq!(info["readers"][1]["credit"], predicted);
    assert_eq!(predict(), 0);
    let refused = run.peer(&format!("read --socket {}", run.socket("s"))).expect_failure();
    assert!(refused.contains("promised to other readers"), "{refused}");
    check(&run, "s").1.assert("ok", "incident", "a connection was refused: all 9 slots are promised");
}

#[test]
fn silent_stopped_and_missing_streams_are_distinguished() {
    let run = TestRun::new();
    let (status, report) = check(&run, "s");
    assert_eq!(status, 3);
    report.assert("error", "stream", "no exporter at ");
    let exporter = export(&run, "--readers 9");
    let (status, report) = check(&run, "s");
    assert_eq!(status, 0);
    report.assert("warning", "frames", "none yet");
    report.assert("ok", "namespace", "the exporter is in this PID namespace");
    exporter.suspend();
    let (status, report) = check(&run, "s");
    assert_eq!(status, 1);
    report.assert("error", "stream", "stopped, or hangs");
}

/// The file of a killed exporter, which another one replaces.
#[test]
fn killed_exporter_and_missing_socket_are_distinguished() {
    let run = TestRun::new();
    let mut exporter = export(&run, "--readers 9");
    exporter.kill();
    let (status, report) = check(&run, "s");
    assert_eq!(status, 3);
    report.find("stream", "mode 0600");
    let error = report.0.iter().find(|check| check["level"] == "error").expect("an error");
    assert!(error["remedy"].as_str().unwrap().contains("which the next exporter replaces"), "{error}");
    let _next = export(&run, "");
    assert_eq!(check(&run, "s").0, 0);
}

/// As in a container: the exporter is process 1 or 2 of its own namespace.
#[test]
fn exporter_of_other_pid_namespace_is_named() {
    if !is_root("exporter_of_other_pid_namespace_is_named") {
        return;
    }
    let run = TestRun::new();
    let options = "--frames 100000000 --fps 100 --size 5000 --readers 0";
    let command = format!("export --socket {} {options}", run.socket("s"));
    let mut exporter = run.peer_by("unshare --pid --fork --kill-child", &command);
    exporter.wait_for("open");
    let (status, report) = check(&run, "s");
    assert_eq!(status, 0);
    let (_, text) = report.find("namespace", "another PID namespace, as process ");
    assert!(text.contains("timeline fences work between them"), "{text}");
}

#[test]
fn other_user_learns_its_rights() {
    if !is_root("other_user_learns_its_rights") {
        return;
    }
    let run = TestRun::new();
    admit_other_user(&run);
    let as_other = |stream: &str| {
        let ran = run_as_other_user(&run, &format!("doctor --json {stream}"));
        (ran.status, Report::of(&ran))
    };
    let serve = |socket: &str, options: &str| {
        let options = format!("export --socket {socket} --frames 100000000 --fps 100 --readers 0 {options}");
        let mut exporter = run.peer(&options);
        exporter.wait_for("open");
        exporter
    };
    let _closed = serve("closed.sock", "--socket-mode 600");
    let (status, report) = as_other("./closed.sock");
    assert_eq!(status, 4);
    report.assert("error", "stream", "permission denied");
    let _unlisted = serve("unlisted.sock", "--socket-mode 666");
    let (status, report) = as_other("./unlisted.sock");
    assert_eq!(status, 4);
    report.assert("error", "stream", "refused by the exporter");
    let _open = serve("open.sock", "--socket-mode 666 --allowed-uids 65534 --max-slots 40");
    let (_, report) = as_other("./open.sock");
    report.assert("ok", "policy", "lossless is for the exporter's user and root");
    report.assert("ok", "memory", "a reader here gets them in place");
    // A quarter of the slots is the exporter's user's.
    report.assert("ok", "credit", "may hold 16 frames");
}

/// Returns the report on a stream with this snapshot.
fn examine(run: &TestRun, snapshot: &Snapshot, rights: Rights, driver: Option<&Path>) -> Report {
    let path = run.path("shown.sock");
    let _ = fs::remove_file(&path);
    let listener = Listener::bind(&path).unwrap();
    thread::scope(|scope| {
        let shown = scope.spawn(|| show_snapshot(&listener, snapshot, rights).unwrap());
        let mut command = doctor(run, "./shown.sock");
        if let Some(driver) = driver {
            command.env("LD_LIBRARY_PATH", driver).env("SIMCUDA_DEVICES", "2");
        }
        let report = Report::of(&ran(&mut command));
        shown.join().unwrap();
        report
    })
}

fn snapshot_of_gpu_stream(run: &TestRun, gpu: [u8; 16]) -> (Snapshot, Rights) {
    let _exporter = export(run, "");
    let observer = Observer::connect(&Endpoint::at(run.socket("s")).unwrap(), PATIENCE).unwrap();
    let snapshot = Snapshot { memory: MemoryKind::Vmm, gpu: Some(gpu), ..observer.latest().clone() };
    (snapshot, observer.rights())
}

#[test]
fn mean_wait_above_a_millisecond_is_named() {
    let run = TestRun::new();
    let (mut snapshot, rights) = snapshot_of_gpu_stream(&run, [7; 16]);
    for (waited, level) in [(3_000_000, None), (93_000_000, Some("warning"))] {
        (snapshot.counters.published, snapshot.counters.waited) = (3, waited);
        let report = examine(&run, &snapshot, rights, None);
        let named = report.0.iter().find(|check| check["text"].as_str().unwrap().contains("they wait"));
        assert_eq!(named.map(|check| check["level"].as_str().unwrap()), level);
        if level.is_some() {
            report.find("frames", "they wait 31.0 ms on average");
        }
    }
}

#[test]
fn gpu_stream_is_copied_for_reader_without_gpu() {
    let run = TestRun::new();
    let (snapshot, rights) = snapshot_of_gpu_stream(&run, [7; 16]);
    let report = examine(&run, &snapshot, rights, None);
    report.assert("ok", "memory", "frames are in vmm memory");
    report.assert("ok", "memory", "a reader without a GPU gets copies in host memory");
}

/// On the simulated driver, with two GPUs that reach each other.
#[test]
fn gpu_stream_is_shared_with_trusted_user_on_its_gpu() {
    let run = TestRun::new();
    let library = Path::new(TOOL).with_file_name("libsimcuda.so");
    if !library.exists() {
        return skip(
            "gpu_stream_is_shared_with_trusted_user_on_its_gpu",
            "the simulated driver is not built",
        );
    }
    fs::create_dir(run.path("driver")).unwrap();
    symlink(library, run.path("driver/libcuda.so.1")).unwrap();
    let driver = run.path("driver");
    let ran = ran(doctor(&run, "").env("LD_LIBRARY_PATH", &driver).env("SIMCUDA_DEVICES", "2"));
    let report = Report::of(&ran);
    report.assert("ok", "gpu", "CUDA driver for CUDA ");
    report.assert("ok", "mps", "not used");
    let (_, text) = report.find("gpu", "0 ");
    assert!(text.contains("memory vmm, pool, legacy; fences timeline, event"), "{text}");
    let uuid = text.split("(GPU-").nth(1).and_then(|text| text.split(')').next()).unwrap().replace('-', "");
    let uuid = u128::from_str_radix(&uuid, 16).unwrap().to_be_bytes();

    let (snapshot, rights) = snapshot_of_gpu_stream(&run, uuid);
    let report = examine(&run, &snapshot, rights, Some(&driver));
    let (level, text) = report.find("memory", "a reader on GPU 0 ");
    assert!(level == "ok" && text.contains("gets them in place, with timeline fences"), "{text}");
    let untrusted = Rights { may_have_gpu_memory: false, ..rights };
    let report = examine(&run, &snapshot, untrusted, Some(&driver));
    let (level, text) = report.find("memory", "a reader on GPU 0 ");
    assert!(level == "warning" && text.contains("not trusted with GPU memory"), "{text}");
    let report = examine(&run, &Snapshot { gpu: Some([7; 16]), ..snapshot }, rights, Some(&driver));
    let (level, text) = report.find("memory", "a reader on GPU 1 ");
    assert!(level == "warning" && text.contains("cannot read the exporter's GPU"), "{text}");
}
