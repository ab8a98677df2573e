// SPDX-License-Identifier: MIT OR Apache-2.0

//! The files for systemd: they are valid, and their pipelines share streams.

use frameshare_tests::{
    process::{Process, TestRun},
    skip,
};
use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
};

fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/services").join(name)
}

fn unit() -> String {
    fs::read_to_string(example("frameshare@.service")).unwrap()
}

/// Returns whether a program of systemd is missing; reports the test as skipped if it is.
fn lacks(program: &str, test: &str) -> bool {
    let lacks = Command::new(program).arg("--version").output().is_err();
    if lacks {
        skip::skip(&format!("services/{test}"), &format!("{program} is missing (package systemd)"));
    }
    lacks
}

/// Returns the complaints of `systemd-analyze verify` about a unit.
fn complaints(unit: &str) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("frameshare@cam0.service");
    fs::write(&path, unit).unwrap();
    let output = Command::new("systemd-analyze").arg("verify").arg(&path).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    // It also complains about the machine's other units.
    let lines = text.lines().filter(|line| line.contains("frameshare@")).map(str::to_owned);
    lines.chain((!output.status.success()).then(|| format!("{}: {text}", output.status))).collect()
}

#[test]
fn unit_is_valid() {
    if lacks("systemd-analyze", "unit_is_valid") {
        return;
    }
    assert_eq!(complaints(&unit()), Vec::<String>::new());
    for (right, wrong) in [
        ("RuntimeDirectory=", "RuntimeFolder="),
        ("KillSignal=SIGINT", "KillSignal=SIGNONE"),
        ("/usr/bin/gst-launch-1.0", "/usr/bin/gst-launch-0.1"),
    ] {
        let text = unit();
        assert!(text.contains(right));
        assert!(!complaints(&text.replace(right, wrong)).is_empty(), "{wrong}");
    }
}

/// Returns whether a unit gives its service no more rights than `systemd-analyze security` rates
/// as OK, which is below 5.0; 3.0 here.
fn is_confined(name: &str, unit: &str) -> bool {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    fs::write(&path, unit).unwrap();
    let mut command = Command::new("systemd-analyze");
    let command = command.args(["security", "--offline=true", "--threshold=30", "--no-pager"]).arg(&path);
    command.output().unwrap().status.success()
}

/// Without each of the larger restrictions, the rating is worse than the limit.
#[test]
fn units_are_confined() {
    // Version 250 and newer rate files.
    let help = Command::new("systemd-analyze").arg("--help").output();
    let can_rate = help.is_ok_and(|help| String::from_utf8_lossy(&help.stdout).contains("--offline"));
    if !can_rate {
        return skip::skip(
            "services/units_are_confined",
            "systemd-analyze (package systemd) is missing or old",
        );
    }
    let is_unit = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "service");
    let files = fs::read_dir(example("")).unwrap().map(|file| file.unwrap().path());
    let units: Vec<_> = files.filter(is_unit).collect();
    assert_eq!(units.len(), 3, "{units:?}");
    for path in units {
        let (name, unit) = (path.file_name().unwrap().to_str().unwrap(), fs::read_to_string(&path).unwrap());
        assert!(
            is_confined(name, &unit),
            "{name}: systemd-analyze security --offline=true tells what is missing"
        );
        for restriction in ["CapabilityBoundingSet=", "SystemCallFilter=@system-service"] {
            assert!(unit.contains(&format!("\n{restriction}\n")), "{name}");
            let without = unit.replace(&format!("\n{restriction}\n"), "\n");
            assert!(!is_confined(name, &without), "{name} without {restriction}");
        }
        assert!(!unit.contains("RuntimeDirectory=frameshare\n"), "{name} takes the folder of all users");
    }
}

#[test]
fn tmpfiles_make_shared_folder() {
    if lacks("systemd-tmpfiles", "tmpfiles_make_shared_folder")
        || !skip::is_root("services/tmpfiles_make_shared_folder")
    {
        return;
    }
    let root = tempfile::tempdir().unwrap();
    let output = Command::new("systemd-tmpfiles")
        .arg(format!("--root={}", root.path().display()))
        .args(["--create".as_ref(), example("frameshare.conf").as_os_str()])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let found = fs::metadata(root.path().join("run/frameshare")).unwrap();
    assert_eq!(found.permissions().mode(), 0o041777);
}

/// Starts the unit's command as systemd does for an instance, with the run's folder for /run.
fn start(run: &TestRun, instance: &str) -> Process {
    fs::create_dir_all(run.path(&format!("frameshare-services/{instance}"))).unwrap();
    let unit = unit();
    let command = unit.lines().find_map(|line| line.strip_prefix("ExecStart=")).unwrap();
    let command = command
        .replace("%t", &run.path("").display().to_string())
        .replace("%i", instance)
        .replace("$SOURCE", "videotestsrc is-live=true")
        .replace("$ACCESS", "socket-mode=0666 allowed-uids=<1000,1001>");
    assert!(!command.contains(['%', '$']), "{command}");
    run.command(&command)
}

fn read(run: &TestRun, instance: &str) -> Process {
    run.gst(&format!(
        "framesharesrc socket-path={} connection-timeout=60000000000 num-buffers=5 ! fakesink",
        run.path(&format!("frameshare-services/{instance}/{instance}.sock")).display()
    ))
}

#[test]
fn end_of_one_service_keeps_others_sockets() {
    let run = TestRun::new();
    let (first, _second) = (start(&run, "first"), start(&run, "second"));
    read(&run, "first").expect_success();
    read(&run, "second").expect_success();
    first.interrupt();
    first.expect_success();
    // As systemd removes the RuntimeDirectory.
    fs::remove_dir_all(run.path("frameshare-services/first")).unwrap();
    read(&run, "second").expect_success();
}
