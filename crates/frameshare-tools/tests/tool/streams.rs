// SPDX-License-Identifier: MIT OR Apache-2.0

//! `list` and `info`.

use crate::{TOOL, export, json, parse, ran, read, run_tool, tool};
use frameshare_tests::process::{TestRun, wait_until};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, listen, socket_with},
};
use serde_json::Value;
use std::{
    fs,
    os::fd::OwnedFd,
    path::Path,
    process::{Command, Stdio},
};

fn keys(value: &Value) -> Vec<&str> {
    value.as_object().expect("an object").keys().map(String::as_str).collect()
}

#[test]
fn live_streams_are_listed_and_dead_ones_are_not() {
    let run = TestRun::new();
    assert_eq!(json(&run, "list"), Value::Array(Vec::new()));
    assert!(run_tool(&run, "list").stdout.contains("no streams: start one with `gst-launch-1.0"));

    let mut exporter = export(&run, "--caps video/x-raw,format=GRAY8,width=100,height=50");
    let _reader = read(&run, "");
    let streams = json(&run, "list");
    let stream = &streams[0];
    assert_eq!(streams.as_array().map(Vec::len), Some(1), "{streams}");
    assert_eq!(
        keys(stream),
        ["caps", "exporter", "memory", "published", "rate", "readers", "socket", "stream"]
    );
    assert_eq!((&stream["stream"], &stream["readers"]), (&"s".into(), &1.into()));
    assert_eq!(stream["exporter"], serde_json::json!({ "pid": exporter.pid(), "program": "peer" }));
    // A busy machine may publish nothing for a moment.
    wait_until("a rate", || json(&run, "list")[0]["rate"].as_f64().is_some_and(|rate| rate > 1.0));
    let text = run_tool(&run, "list").stdout;
    let row = text.lines().nth(1).unwrap();
    assert!(row.starts_with(&format!("s       {} peer", exporter.pid())), "{text}");
    assert!(row.ends_with(" 1"), "{text}");

    exporter.kill();
    assert_eq!(json(&run, "list"), Value::Array(Vec::new()));
}

/// A stopped process answers nothing; its stream is listed with the reason, beside the others.
#[test]
fn stopped_exporter_is_listed_with_its_error() {
    let run = TestRun::new();
    let exporter = export(&run, "");
    let mut other = run.peer(&format!("export --socket {} --size 100 --readers 1", run.socket("t")));
    other.wait_for("open");
    exporter.suspend();
    let streams = json(&run, "list");
    assert!(streams[0]["error"].as_str().unwrap().contains("stopped, or hangs"), "{streams}");
    assert_eq!((&streams[1]["stream"], &streams[1]["memory"]), (&"t".into(), &"host".into()), "{streams}");
    let text = run_tool(&run, "list").stdout;
    assert!(text.contains("\ns: the exporter at "), "{text}");
}

#[test]
fn streams_of_other_folders_are_found_by_name() {
    let [run, other] = [(); 2].map(|()| TestRun::new());
    let _exporter = export(&other, "");
    assert_eq!(run_tool(&run, "info s").status, 3);
    let path = other.path("frameshare");
    for arguments in ["list", "info s"] {
        let ran = ran(tool(&run, arguments).env("FRAMESHARE_PATH", &path));
        assert_eq!(ran.status, 0, "{}", ran.stderr);
        assert!(ran.stdout.contains(&other.socket("s")), "{}", ran.stdout);
    }
    assert_eq!(run_tool(&run, &format!("info {}", other.socket("s"))).status, 0);
}

#[test]
fn info_shows_format_readers_and_incidents() {
    let run = TestRun::new();
    let exporter = export(&run, "--lossless-readers none");
    let reader = read(&run, "--max-held 3");
    run.peer(&format!("read --socket {} --policy lossless", run.socket("s"))).expect_failure();
    let mut info = json(&run, "info s");
    wait_until("all readers are known", || {
        info = json(&run, "info s");
        info["incidents"].as_array().is_some_and(|incidents| !incidents.is_empty())
    });
    let expected = "caps ended exporter free_slots generations gpu incidents last_published_age limits memory \
        memory_why observers published rate readers readers_total retired_bytes slot_size slots socket video \
        backlog_bytes copies";
    let mut expected: Vec<_> = expected.split_whitespace().collect();
    expected.sort_unstable();
    assert_eq!(keys(&info), expected);
    assert_eq!(info["exporter"]["pid"], exporter.pid());
    assert_eq!(info["limits"]["lossless_readers"], "none");
    let found = &info["readers"][0];
    assert_eq!((&found["pid"], &found["policy"]), (&reader.pid().into(), &"latest".into()));
    assert_eq!((&found["credit"], &found["memory"]), (&3.into(), &"host".into()));
    // There is no GPU memory that it could fail to read.
    assert_eq!(found["cannot_adopt"], serde_json::Value::Null);
    assert_eq!(info["incidents"][0]["reason"], "LosslessNotGranted");
    wait_until("a frame is taken", || {
        info = json(&run, "info s");
        info["readers"][0]["ages"]["frames"].as_u64() > Some(0)
    });
    let ages = &info["readers"][0]["ages"];
    let ranges = ages["ranges"].as_array().unwrap();
    assert_eq!(ranges.iter().filter_map(|range| range["frames"].as_u64()).sum::<u64>(), ages["frames"]);
    assert_eq!((&ranges[0]["up_to"], &ranges[15]["up_to"]), (&0.0001.into(), &serde_json::Value::Null));

    let text = run_tool(&run, "info s").stdout;
    for part in [
        format!("process {} (peer)", exporter.pid()),
        format!("(process {}, user ", reader.pid()),
        " was refused: ".to_owned(),
        "of 3 frames".to_owned(),
        " after their publication on average, 99 of 100 ".to_owned(),
    ] {
        assert!(text.contains(&part), "{part:?} is missing:\n{text}");
    }
}

/// Caps are any text of the exporter.
#[test]
fn text_of_peers_does_not_reach_terminal() {
    let run = TestRun::new();
    let _exporter = export(&run, "--caps x/\u{1b}]0;title\u{7}\u{202e}\u{9b}31m");
    let [text, list, json] =
        ["info s", "list", "info s --json"].map(|arguments| run_tool(&run, arguments).stdout);
    for output in [&text, &list, &json] {
        let unsafe_text = output.contains(|c: char| c != '\n' && (c.is_control() || c == '\u{202e}'));
        assert!(!unsafe_text, "{output:?}");
    }
    assert!(text.contains(r"x/\u{1b}]0;title\u{7}\u{202e}\u{9b}31m"), "{text}");
    let value = parse("info", &json);
    assert_eq!(value["caps"], "x/\u{1b}]0;title\u{7}\u{202e}\u{9b}31m");
}

/// In a pseudo-terminal.
#[test]
fn headings_are_bold_unless_no_color_is_set() {
    let run = TestRun::new();
    let list = |no_color: &str| {
        let mut command = Command::new("script");
        command.args(["-qec", &format!("{TOOL} list"), "/dev/null"]);
        ran(command.env("XDG_RUNTIME_DIR", run.path("")).env("NO_COLOR", no_color)).stdout
    };
    assert!(list("").contains("\u{1b}[1mSTREAM"));
    let plain = list("1");
    assert!(plain.contains("STREAM") && !plain.contains('\u{1b}'), "{plain:?}");
    // Nor in a pipe.
    assert!(!run_tool(&run, "list").stdout.contains('\u{1b}'));
}

/// A socket of a program that answers nothing, and its connections.
struct Silent(OwnedFd, Vec<OwnedFd>);

impl Silent {
    fn bind(path: &Path) -> Self {
        let kind = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let socket = socket_with(kind.0, kind.1, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC, None).unwrap();
        bind(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
        listen(&socket, 16).unwrap();
        Self(socket, Vec::new())
    }

    /// Returns whether a client waits for an answer now.
    fn is_asked(&mut self) -> bool {
        while let Ok(connection) = accept_with(&self.0, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC) {
            self.1.push(connection);
        }
        let is_open = |connection: &OwnedFd| {
            let mut fds = [PollFd::new(connection, PollFlags::IN)];
            poll(&mut fds, Some(&Timespec::default())).unwrap();
            !fds[0].revents().contains(PollFlags::HUP)
        };
        self.1.retain(is_open);
        !self.1.is_empty()
    }
}

/// Exporters are asked all at once: those that do not answer take no longer together than one.
#[test]
fn silent_exporters_are_asked_at_once() {
    let run = TestRun::new();
    let _exporter = export(&run, "");
    let folder = run.path("crowd");
    fs::create_dir(&folder).unwrap();
    let mut silent: Vec<_> = (0..200).map(|n| Silent::bind(&folder.join(format!("x{n}.sock")))).collect();
    for arguments in ["list --json", "top -n 1 --json"] {
        let mut command = tool(&run, arguments);
        command.env("FRAMESHARE_PATH", &folder).stdout(Stdio::piped());
        let lister = command.spawn().unwrap();
        // At one moment, clients of all of them wait.
        wait_until("requests to all", || silent.iter_mut().all(Silent::is_asked));
        let output = lister.wait_with_output().unwrap();
        assert!(output.status.success(), "{arguments}");
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains("\"s\"") && text.contains("x199"), "{text}");
    }
}
