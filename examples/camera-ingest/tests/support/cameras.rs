// SPDX-License-Identifier: MIT OR Apache-2.0

//! The RTSP server with numbered frames.

use std::{
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
};

/// A running server; killed on drop.
pub struct Cameras {
    process: Child,
    pub port: u16,
}

impl Cameras {
    /// Starts the server on a port, 0 for a free one, and waits until clients can connect.
    pub fn start(port: u16, frames: u32, cameras: &[&str]) -> Self {
        let program = Path::new(env!("CARGO_BIN_EXE_camera-ingest")).with_file_name("rtsp-cameras");
        assert!(program.exists(), "no {}: cargo build --package rtsp-cameras", program.display());
        let mut process = Command::new(program)
            .args(["--audio", "--port", &port.to_string(), "--frames", &frames.to_string()])
            .args(cameras)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("rtsp-cameras starts");
        let mut lines = BufReader::new(process.stdout.take().expect("it is piped")).lines();
        let ready = lines.next().expect("the server is ready").expect("a text");
        let port = ready.rsplit(':').next().and_then(|port| port.parse().ok());
        // Its later lines are not read: the pipe takes them.
        std::thread::spawn(move || lines.count());
        Self { process, port: port.unwrap_or_else(|| panic!("no port in {ready:?}")) }
    }
}

impl Drop for Cameras {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
