// SPDX-License-Identifier: MIT OR Apache-2.0

//! `metrics`, read over HTTP.

use crate::{TOOL, export, parse, read, run_tool, tool};
use frameshare_tests::process::{PATIENCE, TestRun, wait_until};
use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process, prlimit};
use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    process::{Child, Command, Stdio},
};

/// A running `frameshare metrics`.
struct Server {
    child: Child,
    address: String,
}

impl Server {
    fn start(run: &TestRun) -> Self {
        Self::start_with(run, "")
    }

    fn start_with(run: &TestRun, options: &str) -> Self {
        let mut command = tool(run, &format!("metrics --listen 127.0.0.1:0 --json {options}"));
        Self::of(&mut command)
    }

    fn of(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let value = parse("metrics", &line);
        Self { child, address: value["listening"].as_str().unwrap().to_owned() }
    }

    /// Returns head and body of an answer.
    fn request(&self, what: &str) -> (String, String) {
        self.request_with(what, "Host: localhost\r\n")
    }

    fn connect(&self) -> TcpStream {
        let connection = TcpStream::connect(&self.address).unwrap();
        connection.set_read_timeout(Some(PATIENCE)).unwrap();
        connection.set_write_timeout(Some(PATIENCE)).unwrap();
        connection
    }

    fn request_with(&self, what: &str, headers: &str) -> (String, String) {
        let mut connection = self.connect();
        write!(connection, "{what} HTTP/1.1\r\n{headers}Connection: close\r\n\r\n").unwrap();
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

/// Checks a text in Prometheus' format by its own tool.
fn check_by_promtool(text: &str) {
    let mut command = Command::new("promtool");
    let command = command.args(["check", "metrics"]).stdin(Stdio::piped()).stderr(Stdio::piped());
    let mut promtool = match command.spawn() {
        Ok(promtool) => promtool,
        Err(error) => {
            return eprintln!("SKIP promtool: {error}: install prometheus to check the format by it");
        }
    };
    promtool.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = promtool.wait_with_output().unwrap();
    assert!(output.status.success(), "{}\n{text}", String::from_utf8_lossy(&output.stderr));
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

    // The same in Prometheus' own format.
    let (head, plain) = server.request_with("GET /metrics", "Host: localhost\r\nAccept: text/plain\r\n");
    assert!(head.contains("content-type: text/plain; version=0.0.4"), "{head}");
    assert!(plain.contains("# TYPE frameshare_stream_frames_published_total counter"), "{plain}");
    assert_eq!(value(&plain, "frameshare_stream_up{stream=\"s\"}"), Some(1.0), "{plain}");
    check_by_promtool(&plain);

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
fn idle_connections_end_neither_server_nor_scrapes() {
    let run = TestRun::new();
    let server = Server::start(&run);
    // Fewer descriptors than connections: each of them gives way to the next.
    let files = Rlimit { current: Some(64), maximum: Some(64) };
    prlimit(Some(Pid::from_child(&server.child)), Resource::Nofile, files).unwrap();
    let idle: Vec<_> = (0..200).map(|_| server.connect()).collect();
    assert!(server.request("GET /").0.starts_with("HTTP/1.1 404 "));
    drop(idle);
    wait_until("descriptors", || server.request("GET /metrics").0.starts_with("HTTP/1.1 200 "));
    // A server that starts with few keeps some for its own work.
    let mut limited = Command::new("sh");
    limited.args(["-c", "ulimit -n 64 && exec \"$0\" metrics --listen 127.0.0.1:0 --json", TOOL]);
    limited.current_dir(run.path("")).env("XDG_RUNTIME_DIR", run.path(""));
    let server = Server::of(&mut limited);
    let idle: Vec<_> = (0..200).map(|_| server.connect()).collect();
    server.metrics();
    drop(idle);
    // More connections than the server admits, none of which says anything.
    let server = Server::start(&run);
    let idle: Vec<_> = (0..400).map(|_| server.connect()).collect();
    server.metrics();
    let is_closed = |mut connection: &TcpStream| {
        connection.set_nonblocking(true).unwrap();
        matches!(connection.read(&mut [0]), Ok(0))
    };
    assert!(is_closed(&idle[0]) && !is_closed(&idle[399]), "the oldest ones give way");
}

#[test]
fn announced_bodies_and_unread_answers_delay_no_scrape() {
    let run = TestRun::new();
    let server = Server::start(&run);
    let mut clients = Vec::new();
    for _ in 0..100 {
        let mut body = server.connect();
        body.write_all(b"POST /metrics HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n")
            .unwrap();
        let mut unread = server.connect();
        unread.set_nonblocking(true).unwrap();
        let request = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(1000);
        let _ = unread.write(&request).unwrap();
        clients.extend([body, unread]);
    }
    server.metrics();
    drop(clients);
}

#[test]
fn headers_without_end_are_refused() {
    let run = TestRun::new();
    let server = Server::start(&run);
    for (begin, more) in [("X: ", "x".repeat(4096)), ("", "X: x\r\n".repeat(500))] {
        let mut endless = server.connect();
        write!(endless, "GET /metrics HTTP/1.1\r\nHost: localhost\r\n{begin}").unwrap();
        // Beyond the buffers of the sockets.
        let refused = (0..16 << 10).any(|_| endless.write_all(more.as_bytes()).is_err());
        assert!(refused, "64 MiB of headers were received");
    }
    server.metrics();
}

#[test]
fn foreign_host_is_refused() {
    let run = TestRun::new();
    let server = Server::start(&run);
    for host in ["evil.example", "evil.example:9463", "127.0.0.1.evil.example"] {
        let (head, body) = server.request_with("GET /metrics", &format!("Host: {host}\r\n"));
        assert!(head.starts_with("HTTP/1.1 403 ") && !body.contains("build_info"), "{head}\n{body}");
    }
    for host in [&server.address, "localhost", "127.0.0.1", "[::1]:9463"] {
        let (head, _) = server.request_with("GET /metrics", &format!("Host: {host}\r\n"));
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    }
    let named = Server::start_with(&run, "--host cameras.example");
    let (head, _) = named.request_with("GET /metrics", "Host: cameras.example:9463\r\n");
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
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
