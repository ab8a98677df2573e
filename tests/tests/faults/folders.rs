// SPDX-License-Identifier: MIT OR Apache-2.0

//! The folder of named streams where users share it, as /run/frameshare with the mode 1777.

use crate::{folder, is_root};
use frameshare_tests::{
    process::{Process, TestRun},
    repeat::times,
};
use serde_json::json;
use std::{
    fs,
    os::unix::fs::{MetadataExt, lchown, symlink},
};

const NOBODY: &str = "setpriv --reuid 65534 --regid 65534 --clear-groups";
const OTHER: &str = "setpriv --reuid 65533 --regid 65533 --clear-groups";
const ROOT: &str = "setpriv --reuid 0";

/// Returns a run whose folder of named streams is shared by users.
fn shared() -> TestRun {
    let run = TestRun::new();
    run.open_to_others();
    folder(&run, "frameshare", 0, 0o1777);
    run
}

fn export(run: &TestRun, user: &str) -> Process {
    let mut exporter = run.peer_by(user, "export --stream s --frames 100000000 --fps 500 --readers 0");
    exporter.wait_for("open");
    exporter
}

#[test]
fn users_of_shared_folder_read_their_own_streams() {
    if !is_root("users_of_shared_folder_read_their_own_streams") {
        return;
    }
    let run = shared();
    let (roots, nobodys) = (export(&run, ROOT), export(&run, NOBODY));
    for (user, mode) in [(0, 0o040700), (65534, 0o040700)] {
        let found = fs::symlink_metadata(run.path(&format!("frameshare/{user}"))).unwrap();
        assert_eq!((found.uid(), found.mode()), (user, mode));
    }
    let read = |user: &str, options: &str| {
        run.peer_by(user, &format!("read --stream s --verify yes --frames 20 --timeout-ms 60000 {options}"))
    };
    for (user, options, exporter) in [
        (ROOT, "", &roots),
        (NOBODY, "", &nobodys),
        (ROOT, "--exporter-uid 65534", &nobodys),
        (NOBODY, "--exporter-uid 65534", &nobodys),
    ] {
        let mut reader = read(user, options);
        assert_eq!(reader.wait_for("connected")["exporter"], exporter.pid(), "{user} {options}");
        reader.expect_success();
    }
    let error = read(OTHER, "--exporter-uid 65534").expect_failure();
    assert!(error.contains("permission denied"), "{error}");
    for (user, names) in [(ROOT, json!([["s", true]])), (NOBODY, json!([["s", true]])), (OTHER, json!([]))] {
        assert_eq!(run.peer_by(user, "list").wait_for("streams")["names"], names, "{user}");
    }
    let source = run.gst("framesharesrc stream=s exporter-uid=65534 num-buffers=20 ! fakesink");
    source.expect_success();
}

#[test]
fn squatter_of_user_folder_is_named() {
    if !is_root("squatter_of_user_folder_is_named") {
        return;
    }
    let run = shared();
    fs::create_dir(run.path("trap")).unwrap();
    let fails = |what: &str| {
        for command in ["export --stream s --readers 0", "read --stream s", "observe --stream s", "list"] {
            let error = run.peer_by(ROOT, command).expect_failure();
            assert!(error.contains(what) && error.contains("65534"), "{command}: {error}");
        }
    };
    // A stream of the squatter in it does not change that.
    folder(&run, "frameshare/0", 65534, 0o777);
    let path = run.path("frameshare/0/s.sock").display().to_string();
    let mut squatter = run.peer_by(
        NOBODY,
        &format!("export --socket {path} --frames 100000000 --fps 500 --readers 0 --socket-mode 666 --allowed-uids 0"),
    );
    squatter.wait_for("open");
    fails("belongs to user 65534");
    drop(squatter);
    fs::remove_dir_all(run.path("frameshare/0")).unwrap();

    symlink(run.path("trap"), run.path("frameshare/0")).unwrap();
    lchown(run.path("frameshare/0"), Some(65534), None).unwrap();
    fails("symbolic link");
    fs::remove_file(run.path("frameshare/0")).unwrap();
    fs::write(run.path("frameshare/0"), "").unwrap();
    lchown(run.path("frameshare/0"), Some(65534), None).unwrap();
    fails("is a file");
    assert_eq!(fs::read_dir(run.path("trap")).unwrap().count(), 0);
}

/// The attacker replaces the folder all the time until the exporter owns it.
#[test]
fn exporter_racing_squatter_opens_own_folder_or_none() {
    if !is_root("exporter_racing_squatter_opens_own_folder_or_none") {
        return;
    }
    let run = shared();
    folder(&run, "trap", 0, 0o755);
    let script = "while :; do mkdir -m 777 frameshare/0; rmdir frameshare/0; ln -s ../trap frameshare/0; \
                  rm -f frameshare/0; done 2>/dev/null";
    fs::write(run.path("squat.sh"), script).unwrap();
    let _squatter = run.command(&format!("{NOBODY} sh squat.sh"));
    for _ in 0..times(20) {
        let mut exporter = run.peer_by(ROOT, "export --stream s --frames 100000000 --fps 500 --readers 0");
        if exporter.find_event("open").is_some() {
            let found = fs::symlink_metadata(run.path("frameshare/0")).unwrap();
            assert_eq!((found.uid(), found.mode()), (0, 0o040700));
            assert!(run.path("frameshare/0/s.sock").exists());
            drop(exporter);
            fs::remove_dir_all(run.path("frameshare/0")).unwrap();
        } else {
            let error = exporter.expect_failure();
            assert!(error.contains("user 65534") || error.contains("No such file"), "{error}");
        }
        assert_eq!(fs::read_dir(run.path("trap")).unwrap().count(), 0);
    }
}
