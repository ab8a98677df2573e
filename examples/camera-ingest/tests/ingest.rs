// SPDX-License-Identifier: MIT OR Apache-2.0

//! A site of four cameras with all roles: one process of each kind is killed or stopped, and the
//! RTSP server starts again with another size. The numbers in the recorded frames tell what was
//! lost.

mod support;

use frameshare::{
    Policy,
    reader::{Config, Frames, ReadError},
};
use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};
use support::{Cameras, Recording, Site, runs, wait_for};

/// Frames of an RTSP camera and of the file, in a loop.
const LOOP: u32 = 600;

/// The patterns count to 2^32.
const NO_LOOP: u32 = u32::MAX;

const CAMERAS: [&str; 4] = ["cam0", "cam1", "cam2", "cam3"];

fn config(port: u16) -> String {
    format!(
        r#"
hang-timeout = 4
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

/// A lossless reader of one stream, which counts.
struct Witness {
    received: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    thread: thread::JoinHandle<Result<(), String>>,
}

impl Witness {
    fn start(stream: &str) -> Self {
        let config = Config::default().policy(Policy::Lossless).max_held(16);
        let mut frames = Frames::open(stream, config).expect("the stream is there");
        let (received, stop) = (Arc::<AtomicU64>::default(), Arc::<AtomicBool>::default());
        let (count, is_over) = (received.clone(), stop.clone());
        let read = move || {
            let mut last = None;
            while !is_over.load(Relaxed) {
                let frame = match frames.next_within(Duration::from_millis(200)) {
                    Ok(Some(frame)) => frame,
                    Ok(None) => continue,
                    Err(ReadError::Stopped(_)) if is_over.load(Relaxed) => break,
                    Err(error) => return Err(error.to_string()),
                };
                let number = frame.descriptor().sequence.0;
                if frame.lost_before() > 0 || last.is_some_and(|last| number != last + 1) {
                    return Err(format!("frame {number} came after frame {last:?}"));
                }
                last = Some(number);
                count.fetch_add(1, Relaxed);
            }
            Ok(())
        };
        Self { received, stop, thread: thread::spawn(read) }
    }

    /// Waits for further frames: the stream goes on.
    fn wait_for_more(&self, site: &Site) {
        let now = self.received.load(Relaxed);
        wait_for(
            "the witness reads on",
            || site.log(),
            || (self.received.load(Relaxed) > now + 10).then_some(()),
        );
    }

    fn end(self) -> Result<(), String> {
        self.stop.store(true, Relaxed);
        self.thread.join().expect("no panic")
    }
}

#[test]
fn killed_and_stopped_processes_disturb_no_other() {
    let sizes = |cam1| {
        ["cam0/main=320x180@10".to_owned(), "cam0/sub=160x90@10".to_owned(), format!("cam1/main={cam1}@10")]
    };
    let start = |port, cam1| Cameras::start(port, LOOP, &sizes(cam1).each_ref().map(String::as_str));
    let cameras = start(0, "320x180");
    let port = cameras.port;
    let mut site = Site::start(tempfile::tempdir().expect("a folder"), &config(port));
    for (camera, recorder) in CAMERAS.iter().zip(["record-1", "record-1", "record-2", "record-2"]) {
        site.wait_for_report(recorder, camera, "running");
        site.wait_for_report("motion-1", camera, "running");
    }
    for camera in ["cam1", "cam3"] {
        // PyTorch is there or not: the role says which.
        wait_for(
            "the model runs or is off",
            || site.log(),
            || {
                let process = site.process("model-1")?;
                let condition = process["reports"][camera]["condition"].as_str()?.to_owned();
                ["running", "off"].contains(&condition.as_str()).then_some(())
            },
        );
    }
    site.wait_for_report("wall", "cam0", "running");
    let witness = Witness::start(&site.stream("cam3.video"));
    witness.wait_for_more(&site);

    let mut expected = BTreeMap::new();
    for process in ["capture-cam2", "decode-cam0", "model-1", "wall"] {
        match process {
            "decode-cam0" => site.kill_by_page(process),
            _ => site.signal(process, "-KILL"),
        }
        site.wait_for_restarts(process, 1);
        expected.insert(process, "killed by signal 9");
        witness.wait_for_more(&site);
    }
    site.wait_for_report("record-2", "cam2", "running");

    // A recorder that stands still for a second loses nothing: units wait for it.
    site.signal("record-2", "-STOP");
    thread::sleep(Duration::from_secs(1));
    site.signal("record-2", "-CONT");
    witness.wait_for_more(&site);

    // One that stands still for longer is killed by the supervisor.
    site.signal("motion-1", "-STOP");
    site.wait_for_restarts("motion-1", 1);
    expected.insert("motion-1", "killed by signal 9");

    site.signal("record-1", "-KILL");
    site.wait_for_restarts("record-1", 1);
    expected.insert("record-1", "killed by signal 9");
    for camera in ["cam0", "cam1"] {
        site.wait_for_report("record-1", camera, "running");
    }

    drop(cameras);
    site.wait_for_report("capture-cam1", "cam1", "failed");
    let cameras = start(port, "256x144");
    for camera in ["cam0", "cam1"] {
        site.wait_for_report(&format!("capture-{camera}"), camera, "running");
        site.wait_for_report("record-1", camera, "running");
    }
    for camera in CAMERAS {
        site.wait_for_report("motion-1", camera, "running");
    }
    witness.wait_for_more(&site);
    witness.wait_for_more(&site);

    // Every restart is accounted for, and there is no other.
    for process in site.processes() {
        let name = process["name"].as_str().expect("a name");
        let restarts = process["restarts"].as_u64();
        assert_eq!(restarts, Some(expected.contains_key(name).into()), "{process}\n{}", site.log());
        assert_eq!(process["last_exit"].as_str(), expected.get(name).copied(), "{process}");
    }
    let log = site.log();
    let witnessed = witness.received.load(Relaxed);
    witness.stop.store(true, Relaxed);
    let (folder, status) = site.stop();
    assert!(status.success(), "{status}\n{log}");
    assert_eq!(witness.end(), Ok(()), "{log}");
    drop(cameras);
    check_recordings(&folder.path().join("recordings"), witnessed, &log);
}

fn check_recordings(folder: &Path, witnessed: u64, log: &str) {
    let of = |camera: &str| Recording::all(&folder.join(camera));
    let [cam0, cam1, cam2, cam3] = CAMERAS.map(of);
    let describe = |recordings: &[Recording]| {
        let segments =
            recordings.iter().map(|each| (each.file.display(), runs(std::slice::from_ref(each), LOOP)));
        segments.map(|segment| format!("{segment:?}\n")).collect::<String>() + log
    };
    for segment in [&cam0, &cam1, &cam2, &cam3].into_iter().flatten() {
        assert!(segment.frames.is_sorted_by(|a, b| a.1 < b.1), "{segment:?}");
    }
    // Nothing of cam3 was killed.
    let [whole] = runs(&cam3, NO_LOOP)[..] else { panic!("{}", describe(&cam3)) };
    assert!(whole.frames as u64 >= witnessed, "{whole:?}, and the witness read {witnessed}");
    // cam2 has begun anew once, and its second run is there from its first frame on.
    let [_, second] = runs(&cam2, NO_LOOP)[..] else { panic!("{}", describe(&cam2)) };
    assert_eq!(second.first, 0, "{}", describe(&cam2));
    // The recorder of the others was killed once, and their server once.
    for camera in [&cam0, &cam1] {
        let found = runs(camera, LOOP);
        assert!(found.len() <= 3, "{}", describe(camera));
        assert!(camera.iter().any(|segment| segment.has_audio), "{}", describe(camera));
    }
    let widths = |camera: &[Recording]| camera.iter().map(|segment| segment.width).collect::<Vec<_>>();
    assert!(widths(&cam0).iter().all(|width| *width == 320), "{}", describe(&cam0));
    assert!(
        widths(&cam1).is_sorted_by(|a, b| a >= b) && widths(&cam1).ends_with(&[256]),
        "{}",
        describe(&cam1)
    );
    check_results(&cam3, log);
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
            assert!(is_there, "no frame at {position} of {}\n{log}", segment.file.display());
            count += 1;
        }
    }
    assert!(count > 50, "{count} results\n{log}");
}
