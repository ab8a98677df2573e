// SPDX-License-Identifier: MIT OR Apache-2.0

//! Frames in GPU memory, on the simulated driver: the exporter copies them to host memory.

use crate::{TOOL, images::Image, json, recordings::frames, run_tool};
use frameshare_tests::{
    process::{PATIENCE, TestRun, wait_until},
    raw::Channel,
    skip::skip,
};
use rustix::io::{FdFlags, fcntl_setfd};
use serde_json::json as value;
use std::{
    fs,
    os::{
        fd::{AsFd, AsRawFd},
        unix::fs::symlink,
    },
    path::Path,
    process::{Child, Command, Stdio},
};

/// An exporter of GPU memory, which publishes until it is dropped. Every byte of a frame is that
/// of its number.
struct GpuExporter(Child, Channel);

impl GpuExporter {
    /// Starts it, unless the programs are not built.
    fn start(run: &TestRun, caps: &str, size: usize) -> Option<Self> {
        let [program, library] =
            ["gpu-engine", "libsimcuda.so"].map(|name| Path::new(TOOL).with_file_name(name));
        if !program.exists() || !library.exists() {
            return None;
        }
        fs::create_dir(run.path("driver")).unwrap();
        symlink(library, run.path("driver/libcuda.so.1")).unwrap();
        let (ours, theirs) = Channel::pair().unwrap();
        fcntl_setfd(&theirs, FdFlags::empty()).unwrap();
        let mut command = Command::new(program);
        command.args(["--peer", &theirs.as_fd().as_raw_fd().to_string()]).stdout(Stdio::null());
        let child = command.env("LD_LIBRARY_PATH", run.path("driver")).spawn().unwrap();
        let exporter = Self(child, ours);
        exporter.command(&value!({ "Bind": {
            "path": run.socket("s"), "device": 0, "in_host": false, "trusted_uids": [], "queues": false, "keeps_last": false, "seed": 1,
        } }));
        exporter.command(&value!({ "Format": { "caps": caps } }));
        let publish = value!({ "Publish": {
            "frames": 100_000_000, "size": size, "pace_us": 5000, "slow": "Never", "says": "Truth",
            "unwritten": false, "copy": false, "load": 0, "drain": false, "metadata": 0, "count_from": 0,
        } });
        exporter.send(&publish);
        Some(exporter)
    }

    /// Sends a command of this kind of peer, with the number of the message.
    fn send(&self, command: &serde_json::Value) {
        self.1.send(value!([0, { "Own": command }]).to_string().as_bytes(), &[]).unwrap();
    }

    fn command(&self, command: &serde_json::Value) {
        self.send(command);
        let (reply, _) = self.1.receive(PATIENCE).unwrap().expect("a reply");
        let reply = String::from_utf8(reply).unwrap();
        assert!(reply.contains("Done"), "{command}: {reply}");
    }
}

impl Drop for GpuExporter {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn byte_of(sequence: u64) -> u8 {
    1 + (sequence % 251) as u8
}

#[test]
fn gpu_frames_are_shown_recorded_and_counted_as_copies() {
    let run = TestRun::new();
    let caps = "video/x-raw, format=(string)GRAY8, width=(int)64, height=(int)50";
    let Some(_exporter) = GpuExporter::start(&run, caps, 64 * 50) else {
        return skip(
            "gpu_frames_are_shown_recorded_and_counted_as_copies",
            "gpu-engine or the simulated driver is not built",
        );
    };
    assert_eq!(json(&run, "info s")["memory"], "vmm");
    let report = json(&run, "snapshot s s.png");
    let image = Image::decode(&run.read("s.png"));
    let expected = byte_of(report["sequence"].as_u64().unwrap());
    assert_eq!(image.size, (64, 50));
    assert!(image.pixels.iter().all(|pixel| *pixel == [expected; 3]), "{report}: {:?}", image.pixels[0]);

    // The copies are shown while a reader gets them.
    let _watch = run.command(&format!("{TOOL} watch s --json"));
    wait_until("a reader", || json(&run, "info s")["readers"][0]["copied"] == true);
    let text = run_tool(&run, "info s").stdout;
    assert!(text.contains("frames are copied for it: it reads without a GPU"), "{text}");
    wait_until("a rate of copies", || {
        let table = json(&run, "top -n 1");
        let copies = |of: &serde_json::Value| of["copies"].as_f64().is_some_and(|copies| copies > 0.0);
        copies(&table["streams"][0]) && copies(&table["streams"][0]["readers"][0])
    });
    let copies = &json(&run, "info s")["copies"][0];
    assert!(copies["reason"] == "download" && copies["frames"].as_u64() > Some(0), "{copies}");
    let doctor = run_tool(&run, "doctor s").stdout;
    assert!(
        doctor.contains("the exporter has copied frames: ") && doctor.contains(" for download"),
        "{doctor}"
    );
    let table = run_tool(&run, "top -b -n 1").stdout;
    assert!(table.contains(" latest copied "), "{table}");

    assert_eq!(json(&run, "record s s.rec -n 20")["frames"], 20);
    for frame in frames(&run.path("s.rec")) {
        let expected = byte_of(frame.head["sequence"].as_u64().unwrap());
        assert!(
            frame.body.len() == 64 * 50 && frame.body.iter().all(|byte| *byte == expected),
            "{}",
            frame.head
        );
    }
}
