// SPDX-License-Identifier: MIT OR Apache-2.0

//! A site of four cameras with all roles: one process of each kind is killed or stopped, and the
//! RTSP server starts again with another size. The numbers in the recorded frames tell what was
//! lost.

mod common;
mod support;

use common::Server;

use rustix::process::Signal;
use std::{collections::BTreeMap, fs, path::Path, slice};
use support::{Recording, Site, Witness, compare, numbers_of, runs};

/// Frames of an RTSP camera and of the file, in a loop.
const LOOP: u32 = 600;

const CAMERAS: [&str; 4] = ["cam0", "cam1", "cam2", "cam3"];

fn config(port: u16) -> String {
    format!(
        r#"
hang-timeout = 10
[cameras]
cam0 = {{ main = "rtsp://127.0.0.1:{port}/cam0/main", sub = "rtsp://127.0.0.1:{port}/cam0/sub" }}
cam1 = {{ main = "rtsp://127.0.0.1:{port}/cam1/main", model = true }}
cam2 = "pattern:smpte?width=320&height=180&rate=10"
cam3 = {{ main = "pattern:ball?width=320&height=180&rate=10", model = true }}
[groups]
record = 2
[recording]
folder = "recordings"
segment = "5s"
[wall]
listen = "127.0.0.1:0"
"#
    )
}

/// Starts the RTSP server, with cam1 of this size.
fn serve(port: u16, cam1: &str) -> Server {
    let cameras = format!("cam0/main=320x180@10 cam0/sub=160x90@10 cam1/main={cam1}@10");
    Server::start(port, &format!("--audio --frames {LOOP} {cameras}"))
}

#[test]
fn killed_and_stopped_processes_disturb_no_other() {
    let cameras = serve(0, "320x180");
    let port = cameras.port;
    let mut site = Site::start(&config(port));
    for (camera, recorder) in CAMERAS.iter().zip(["record-1", "record-1", "record-2", "record-2"]) {
        site.wait_for_report(recorder, camera, &["running"]);
        site.wait_for_report("motion-1", camera, &["running"]);
    }
    for camera in ["cam1", "cam3"] {
        // PyTorch is there or not: the role says which.
        site.wait_for_report("model-1", camera, &["running", "off"]);
    }
    site.wait_for_report("wall", "cam0", &["running"]);
    let witnesses = CAMERAS.map(|camera| {
        let stream = site.place.stream(&format!("{camera}.video"));
        Witness::start(&stream, &site.place.path(&format!("{camera}.h264")))
    });
    let wait_for_all = || witnesses.iter().for_each(|witness| witness.wait_for_more(10));
    wait_for_all();

    let mut expected = BTreeMap::new();
    for process in ["capture-cam2", "decode-cam0", "model-1", "wall"] {
        match process {
            "decode-cam0" => site.kill_by_page(process),
            _ => site.signal(process, Signal::KILL),
        }
        site.wait_for_restarts(process, 1);
        expected.insert(process, "killed by signal 9");
        wait_for_all();
    }
    site.wait_for_report("record-2", "cam2", &["running"]);

    // A recorder that stands still for a moment loses nothing: units wait for it.
    site.signal("record-2", Signal::STOP);
    witnesses[3].wait_for_more(3);
    site.signal("record-2", Signal::CONT);
    wait_for_all();

    // One that stands still for longer is killed by the supervisor.
    site.signal("motion-1", Signal::STOP);
    site.wait_for_restarts("motion-1", 1);
    expected.insert("motion-1", "killed by signal 9");

    site.signal("record-1", Signal::KILL);
    site.wait_for_restarts("record-1", 1);
    expected.insert("record-1", "killed by signal 9");
    for camera in ["cam0", "cam1"] {
        site.wait_for_report("record-1", camera, &["running"]);
    }

    drop(cameras);
    site.wait_for_report("capture-cam1", "cam1", &["failed"]);
    let _cameras = serve(port, "256x144");
    for camera in ["cam0", "cam1"] {
        site.wait_for_report(&format!("capture-{camera}"), camera, &["running"]);
        site.wait_for_report("record-1", camera, &["running"]);
    }
    for camera in CAMERAS {
        site.wait_for_report("motion-1", camera, &["running"]);
    }
    wait_for_all();
    // Reports are up to two seconds old: these units are of the new size.
    site.wait_for_units("record-1", "cam1", 40.0);

    // Every restart is accounted for, and there is no other.
    for process in site.processes() {
        let name = process["name"].as_str().expect("a name");
        let restarts = process["restarts"].as_u64();
        assert_eq!(restarts, Some(expected.contains_key(name).into()), "{process}");
        assert_eq!(process["last_exit"].as_str(), expected.get(name).copied(), "{process}");
    }
    let log = site.log();
    let place = site.stop();
    let sent = witnesses.map(|witness| numbers_of(&witness.end()));
    check_recordings(&place.path("recordings"), &sent, &log);
}

fn check_recordings(folder: &Path, sent: &[Vec<u32>; 4], log: &str) {
    let recordings = CAMERAS.map(|camera| Recording::all(&folder.join(camera)));
    for (index, recording) in recordings.iter().enumerate() {
        let found = compare(&Recording::numbers(recording), &sent[index]);
        let segments: Vec<_> = recording.iter().map(|segment| runs(slice::from_ref(segment), LOOP)).collect();
        // Only the recorder of the first two cameras was killed, once.
        let most = if index < 2 { 1 } else { 0 };
        let is_complete = found.missing.len() <= most && found.repeated <= most && found.foreign.is_empty();
        assert!(is_complete, "{}: {found:?} in {segments:?}\n{log}", CAMERAS[index]);
        // The times are those of the camera, which has equal ones when its machine is late.
        assert!(
            recording.iter().all(|segment| segment.frames.is_sorted_by(|a, b| a.1 <= b.1)),
            "{recording:?}"
        );
        assert_eq!(recording.iter().any(|segment| segment.has_audio), index < 2, "{recording:?}");
    }
    let [cam0, cam1, _, cam3] = &recordings;
    let widths = |camera: &[Recording]| camera.iter().map(|segment| segment.width).collect::<Vec<_>>();
    assert!(widths(cam0).iter().all(|width| *width == 320), "{:?}", widths(cam0));
    assert!(widths(cam1).is_sorted_by(|a, b| a >= b) && widths(cam1).ends_with(&[256]), "{:?}", widths(cam1));
    check_results(cam3, log);
}

/// Each result is that of a recorded frame, by its position.
fn check_results(recordings: &[Recording], log: &str) {
    let mut count = 0;
    for segment in recordings {
        let Ok(lines) = fs::read_to_string(segment.file.with_extension("jsonl")) else { continue };
        for line in lines.lines() {
            let line: serde_json::Value = serde_json::from_str(line).expect("JSON lines");
            let position = line["position"].as_f64().expect("a position");
            // MKV has times in ms.
            let is_there = segment.frames.iter().any(|(_, time)| (time - position).abs() < 0.002);
            // A frame of a raw source that a late encoder left out has results, and no unit: the
            // numbers jump there, or the segment ends.
            let is_left_out = segment
                .frames
                .windows(2)
                .any(|pair| pair[0].1 < position && position < pair[1].1 && pair[1].0 > pair[0].0 + 1)
                || segment.frames.last().is_some_and(|(_, end)| *end < position);
            assert!(is_there || is_left_out, "no frame at {position} of {}\n{log}", segment.file.display());
            count += 1;
        }
    }
    assert!(count > 50, "{count} results\n{log}");
}
