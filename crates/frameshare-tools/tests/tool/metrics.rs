// SPDX-License-Identifier: MIT OR Apache-2.0

//! `metrics`, read over HTTP.

use crate::{export, parse, read, run_tool, tool};
use frameshare_tests::process::{PATIENCE, TestRun, wait_until};
use rustix::process::{Pid, Signal, kill_process};
use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    process::{Child, Stdio},
};

/// A running `frameshare metrics`.
struct Server {
    child: Child,
    address: String,
}

impl Server {
    fn start(run: &TestRun) -> Self {
        let mut command = tool(run, "metrics --listen 127.0.0.1:0 --json");
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let value = parse("metrics", &line);
        Self { child, address: value["listening"].as_str().unwrap().to_owned() }
    }

    /// Returns head and body of an answer.
    fn request(&self, what: &str) -> (String, String) {
        let mut connection = TcpStream::connect(&self.address).unwrap();
        connection.set_read_timeout(Some(PATIENCE)).unwrap();
        write!(connection, "{what} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        connection.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.to_owned(), body.to_owned())
    }

    fn metrics(&self) -> String {
        let (head, body) = self.request("GET /metrics");
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
        assert!(head.contains("application/openmetrics-text"), "{head}");
        assert!(body.ends_with("# EOF\n"), "{body}");
        body
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the value of a metric, given with its labels.
fn value(metrics: &str, name: &str) -> Option<f64> {
    let line = metrics.lines().find(|line| line.starts_with(&format!("{name} ")))?;
    Some(line.rsplit(' ').next().unwrap().parse().unwrap())
}

#[test]
fn metrics_follow_streams_and_readers() {
    let run = TestRun::new();
    let server = Server::start(&run);
    assert!(server.metrics().contains("frameshare_build_info{version=\""));
    let mut exporter = export(&run, "");
    let _reader = read(&run, "--max-held 2");
    let labels = r#"stream="s",reader="1",name="peer",policy="latest""#;
    let mut metrics = String::new();
    wait_until("a taken frame", || {
        metrics = server.metrics();
        value(&metrics, &format!("frameshare_frame_age_seconds_count{{{labels}}}")) > Some(0.0)
    });
    let stream = |metric: &str| value(&metrics, &format!("frameshare_stream_{metric}{{stream=\"s\"}}"));
    let reader = |metric: &str| value(&metrics, &format!("frameshare_reader_{metric}{{{labels}}}"));
    assert_eq!((stream("up"), stream("readers")), (Some(1.0), Some(1.0)), "{metrics}");
    assert!(stream("frames_published_total").is_some_and(|frames| frames > 0.0), "{metrics}");
    assert!(stream("last_frame_age_seconds").is_some_and(|age| age < 60.0), "{metrics}");
    assert!(stream("slots") >= stream("free_slots") && stream("backlog_bytes") == Some(0.0), "{metrics}");
    for metric in ["frames_sent_total", "frames_lost_total", "frames_held", "lag_frames"] {
        assert!(reader(metric).is_some(), "{metric} is missing:\n{metrics}");
    }
    let bucket = |bound: &str| {
        value(&metrics, &format!("frameshare_frame_age_seconds_bucket{{le=\"{bound}\",{labels}}}"))
    };
    assert!(metrics.contains("# TYPE frameshare_frame_age_seconds histogram"), "{metrics}");
    assert!(bucket("+Inf").is_some_and(|frames| frames > 0.0), "{metrics}");
    assert!(bucket("0.0001") <= bucket("5.0") && bucket("5.0") <= bucket("+Inf"), "{metrics}");

    // A stopped exporter is not up, and has no other metrics; a dead one is not there.
    exporter.suspend();
    let metrics = server.metrics();
    assert_eq!(value(&metrics, "frameshare_stream_up{stream=\"s\"}"), Some(0.0), "{metrics}");
    assert!(!metrics.contains("frameshare_reader_frames_held{"), "{metrics}");
    exporter.kill();
    assert!(!server.metrics().contains("stream=\"s\""));
}

#[test]
fn silent_client_does_not_delay_others() {
    let run = TestRun::new();
    let server = Server::start(&run);
    let silent = TcpStream::connect(&server.address).unwrap();
    let mut half = TcpStream::connect(&server.address).unwrap();
    half.write_all(b"GET /met").unwrap();
    server.metrics();
    assert!(server.request("GET /").0.contains(" 404 "));
    assert!(server.request("POST /metrics").0.contains(" 405 "));
    drop((silent, half));
}

#[test]
fn taken_address_is_an_error_and_signal_ends_server() {
    let run = TestRun::new();
    let mut server = Server::start(&run);
    let second = run_tool(&run, &format!("metrics --listen {}", server.address));
    assert_eq!(second.status, 1);
    assert!(second.stderr.contains("another address is set by --listen"), "{}", second.stderr);
    assert_eq!(run_tool(&run, "metrics --listen nowhere").status, 2);
    kill_process(Pid::from_child(&server.child), Signal::INT).unwrap();
    let mut status = None;
    wait_until("the end of the server", || {
        status = server.child.try_wait().unwrap();
        status.is_some()
    });
    assert_eq!(status.and_then(|status| status.code()), Some(0));
}
