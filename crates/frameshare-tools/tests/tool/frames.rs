// SPDX-License-Identifier: MIT OR Apache-2.0

//! `watch`, `hz` and `disconnect`.

use crate::{TOOL, admit_other_user, export, json, parse, read, run_as_other_user, run_tool, tool};
use frameshare_tests::{
    process::{Process, TestRun, wait_until},
    skip::is_root,
};
use serde_json::Value;
use std::{
    io::{BufRead, BufReader},
    process::Stdio,
};

fn lines(command: &str, stdout: &str) -> Vec<Value> {
    stdout.lines().map(|line| parse(command, line)).collect()
}

fn start(run: &TestRun, arguments: &str) -> Process {
    run.command(&format!("{TOOL} {arguments}"))
}

/// Waits until the stream `s` has this number of readers.
fn wait_for_readers(run: &TestRun, number: usize) {
    wait_until("the readers", || {
        json(run, "info s")["readers"].as_array().is_some_and(|readers| readers.len() == number)
    });
}

#[test]
fn watch_prints_line_for_each_frame() {
    let run = TestRun::new();
    let mut exporter = export(&run, "");
    let ran = run_tool(&run, "watch s -n 20 --json");
    assert_eq!((ran.status, ran.stderr.as_str()), (0, ""));
    let frames = lines("watch", &ran.stdout);
    assert_eq!(frames.len(), 20);
    let mut last = 0;
    for frame in &frames {
        let sequence = frame["sequence"].as_u64().unwrap();
        let lost = frame["lost"].as_u64().unwrap();
        // A busy machine may lose frames; each is counted.
        assert!(last == 0 || sequence == last + 1 + lost, "{frames:?}");
        assert!(frame["age"].as_f64().is_some_and(|age| age < 60.0) && frame["size"] == 5000, "{frame}");
        assert_eq!(frame["flags"], Value::Array(Vec::new()), "{frame}");
        last = sequence;
    }
    let text = run_tool(&run, "watch s -n 3").stdout;
    assert!(text.lines().count() == 3 && text.lines().all(|line| line.contains(" ms  5000 bytes")), "{text}");

    // Without a number it watches until the exporter ends: an error if that is killed.
    let watch = start(&run, "watch s --json");
    wait_for_readers(&run, 1);
    exporter.kill();
    let error = watch.expect_failure();
    assert!(error.contains("crashed or killed"), "{error}");
}

#[test]
fn hz_prints_rate_and_histogram() {
    let run = TestRun::new();
    let _exporter = export(&run, "");
    let ran = run_tool(&run, "hz s -n 2 --json");
    assert_eq!((ran.status, ran.stderr.as_str()), (0, ""));
    let [first, second, end] = &lines("hz", &ran.stdout)[..] else { panic!("{}", ran.stdout) };
    for period in [first, second] {
        assert!(period["rate"].as_f64().is_some_and(|rate| rate > 0.0), "{period}");
    }
    let classes = end["histogram"].as_array().unwrap();
    let counted: u64 = classes.iter().map(|class| class["count"].as_u64().unwrap()).sum();
    let frames = first["frames"].as_u64().unwrap() + second["frames"].as_u64().unwrap();
    assert!(counted > 0 && counted < frames, "{}", ran.stdout);
    let text = run_tool(&run, "hz s -n 1").stdout;
    assert!(text.contains(" frames/s  every ") && text.contains("\ntime between frames\n"), "{text}");
}

/// A live stream without frames, too: the wait for a frame ends.
#[test]
fn interrupt_ends_commands_with_success() {
    let run = TestRun::new();
    for (exporter, arguments) in [("--fps 100", "watch s"), ("--fps 100", "hz s"), ("--readers 9", "watch s")]
    {
        let _exporter = export(&run, exporter);
        let mut watch = start(&run, arguments);
        wait_for_readers(&run, 1);
        let is_hz = arguments == "hz s";
        // Two frames in a row give the histogram a first entry.
        while is_hz && !watch.next_line().contains(" every ") {}
        watch.interrupt();
        let outcome = watch.expect_success();
        assert_eq!(outcome.stderr, "", "{arguments}");
        assert_eq!(is_hz, outcome.lines.iter().any(|line| line.contains("time between")));
    }
}

#[test]
fn watch_ends_quietly_when_its_output_is_closed() {
    let run = TestRun::new();
    let _exporter = export(&run, "");
    let mut watch = tool(&run, "watch s").stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(watch.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let output = watch.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(0), &b""[..]), "{line}");
}

/// Joining takes the credit of one frame; observing takes none.
#[test]
fn watch_without_credit_is_refused_and_info_is_not() {
    let run = TestRun::new();
    // Frames begin with the reader: one that is being written when it joins lessens its credit.
    let _exporter = export(&run, "--max-slots 6 --readers 1");
    let _reader = read(&run, "--max-held 4");
    let ran = run_tool(&run, "watch s -n 1");
    assert_eq!((ran.status, ran.stdout.as_str()), (1, ""), "{}", ran.stderr);
    assert!(ran.stderr.contains("give the exporter more slots (max-slots)"), "{}", ran.stderr);
    assert_eq!(json(&run, "info s")["incidents"][0]["reason"], "NoCreditLeft");
}

#[test]
fn end_of_stream_ends_watch() {
    let run = TestRun::new();
    let _exporter = run.peer(&format!("export --socket {} --frames 10 --readers 1", run.socket("s")));
    wait_until("the stream", || run_tool(&run, "info s").status == 0);
    let ran = run_tool(&run, "watch s");
    assert_eq!((ran.status, ran.stderr.as_str()), (0, ""));
    assert!(!ran.stdout.is_empty());
}

#[test]
fn readers_are_disconnected_by_number_or_name() {
    let run = TestRun::new();
    let _exporter = export(&run, "");
    let readers = [(); 3].map(|()| read(&run, ""));
    let ambiguous = run_tool(&run, "disconnect s peer");
    assert_eq!(ambiguous.status, 2);
    assert!(
        ambiguous.stderr.contains("readers 1, 2, 3 are named \"peer\": give the number"),
        "{}",
        ambiguous.stderr
    );
    for (reader, missing) in [("7", "the stream has no reader 7"), ("cam", "`frameshare info STREAM` lists")]
    {
        let ran = run_tool(&run, &format!("disconnect s {reader}"));
        assert_eq!(ran.status, 3);
        assert!(ran.stderr.contains(missing), "{}", ran.stderr);
    }
    assert_eq!(run_tool(&run, "disconnect s 1").stdout, "reader 1 of s is disconnected\n");
    assert_eq!(json(&run, "disconnect s 2"), serde_json::json!({ "disconnected": 2 }));
    wait_for_readers(&run, 1);
    assert_eq!(run_tool(&run, "disconnect s peer").stdout, "reader 3 of s is disconnected\n");
    for reader in readers {
        let summary = reader.finish().summary();
        assert!(summary["end"].as_str().unwrap().contains("(frameshare)"), "{summary}");
    }
}

#[test]
fn other_user_may_not_disconnect_readers() {
    if !is_root("other_user_may_not_disconnect_readers") {
        return;
    }
    let run = TestRun::new();
    admit_other_user(&run);
    let options = "--frames 100000000 --fps 100 --readers 0 --socket-mode 666 --allowed-uids 65534";
    let mut exporter = run.peer(&format!("export --socket s.sock {options}"));
    exporter.wait_for("open");
    let mut reader = run.peer("read --socket s.sock --quiet yes");
    reader.wait_for("connected");
    let ran = run_as_other_user(&run, "disconnect ./s.sock 1");
    assert_eq!(ran.status, 4, "{}", ran.stderr);
    assert!(ran.stderr.contains("only the exporter's user and root"), "{}", ran.stderr);
    assert!(!reader.has_exited());
}
