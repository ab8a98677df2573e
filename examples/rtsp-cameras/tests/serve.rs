// SPDX-License-Identifier: MIT OR Apache-2.0

//! The cameras answer: the first request of RTSP lists what they can do.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    process::{Command, Stdio},
};

#[test]
fn cameras_answer_when_they_are_ready() {
    let mut server = Command::new(env!("CARGO_BIN_EXE_rtsp-cameras"))
        .args(["--port", "0", "--frames", "10", "cam0/main=64x64@10"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let address = line.trim().strip_prefix("ready rtsp://").unwrap_or_else(|| panic!("{line}"));
    let mut connection = TcpStream::connect(address).unwrap();
    let request = format!("DESCRIBE rtsp://{address}/cam0/main RTSP/1.0\r\nCSeq: 1\r\n\r\n");
    connection.write_all(request.as_bytes()).unwrap();
    let mut answer = [0; 15];
    connection.read_exact(&mut answer).unwrap();
    server.kill().unwrap();
    server.wait().unwrap();
    assert_eq!(String::from_utf8_lossy(&answer), "RTSP/1.0 200 OK");
}
