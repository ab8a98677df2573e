// SPDX-License-Identifier: MIT OR Apache-2.0

//! Exit statuses and errors.

use crate::{admit_other_user, run_as_other_user, run_tool, tool};
use frameshare_tests::{process::TestRun, skip::is_root};
use std::{io, process::Stdio};

#[test]
fn errors_have_statuses_and_say_what_to_do() {
    let run = TestRun::new();
    for (arguments, status, text) in [
        ("", 2, "Usage: frameshare"),
        ("info", 2, "<STREAM>"),
        ("inof cam0", 2, "unrecognized subcommand"),
        ("info .hidden", 2, "give a name such as cam0, or the path of a socket"),
        ("info /", 2, "is not the path of a file"),
        ("info cam0", 3, "`frameshare list` lists the streams"),
        ("info ./cam0.sock", 3, "no exporter at ./cam0.sock"),
    ] {
        let ran = run_tool(&run, arguments);
        assert_eq!((ran.status, ran.stdout.as_str()), (status, ""), "{arguments}: {}", ran.stderr);
        assert!(ran.stderr.contains(text), "{arguments}: {}", ran.stderr);
    }
    let help = run_tool(&run, "--help");
    assert_eq!(help.status, 0);
    assert!(help.stdout.contains("Exit status: 0 success") && help.stdout.contains("Examples:"));
}

#[test]
fn stream_of_another_user_is_permission_denied() {
    if !is_root("stream_of_another_user_is_permission_denied") {
        return;
    }
    let run = TestRun::new();
    admit_other_user(&run);
    let mut exporter = run.peer("export --socket s.sock --socket-mode 600");
    exporter.wait_for("open");
    let ran = run_as_other_user(&run, "info ./s.sock");
    assert_eq!(ran.status, 4, "{}", ran.stderr);
    assert!(ran.stderr.contains("run this as the exporter's user"), "{}", ran.stderr);
}

#[test]
fn stream_in_folder_of_another_user_is_permission_denied() {
    if !is_root("stream_in_folder_of_another_user_is_permission_denied") {
        return;
    }
    let run = TestRun::new();
    admit_other_user(&run);
    let ran = run_as_other_user(&run, "publish ./s.sock");
    assert_eq!((ran.status, ran.stdout.as_str()), (4, ""), "{}", ran.stderr);
}

#[test]
fn closed_output_is_no_error() {
    let run = TestRun::new();
    let (reader, writer) = io::pipe().unwrap();
    drop(reader);
    let output = tool(&run, "list").stdout(writer).stderr(Stdio::piped()).output().unwrap();
    assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(0), &b""[..]));
}
