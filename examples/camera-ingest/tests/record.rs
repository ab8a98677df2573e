// SPDX-License-Identifier: MIT OR Apache-2.0

//! The recorder in a process of its own: killed, and with a full disk.

mod common;
mod support;

use common::{Place, Process, wait};
use rustix::process::Signal;
use std::{
    fs::{self, File},
    io::Write,
    path::{Path, PathBuf},
    process::Command,
};
use support::{Recording, Witness, compare, numbers_of};

const CONFIG: &str = r#"
[cameras]
cam0 = "pattern:snow?width=320&height=180&rate=10"
[defaults]
motion = false
[recording]
folder = "recordings"
segment = "2s"
"#;

fn names(folder: &Path, ending: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut found: Vec<_> = entries.filter(|path| path.to_string_lossy().ends_with(ending)).collect();
    found.sort();
    found
}

/// Returns whether the segment that is being written has some frames already.
fn has_frames(folder: &Path) -> bool {
    let part = names(folder, ".part").pop();
    part.and_then(|part| fs::metadata(part).ok()).is_some_and(|part| part.len() > 20_000)
}

#[test]
fn killed_recorder_leaves_a_readable_segment() {
    let place = Place::new();
    place.configure(CONFIG);
    let mut capture = place.start("capture cam0");
    let mut recorder = place.start("record cam0");
    // The witness gets no unit that the recorder missed.
    recorder.expect("running");
    let witness = Witness::start(&place.stream("cam0.video"), &place.path("cam0.h264"));
    let folder = place.path("recordings/cam0");
    wait("second segment with some frames", || {
        let is_second = !names(&folder, ".mkv").is_empty();
        (is_second && has_frames(&folder)).then_some(())
    });
    recorder.signal(Signal::KILL);
    recorder.wait();
    assert_eq!(names(&folder, ".part").len(), 1);
    let mut recorder = place.start("record cam0");
    recorder.expect("running");
    wait("third segment", || (names(&folder, ".mkv").len() >= 3).then_some(()));
    recorder.stop();
    let sent = numbers_of(&witness.end());
    capture.stop();
    assert_eq!(names(&folder, ".part"), Vec::<PathBuf>::new());
    let recordings = Recording::all(&folder);
    assert!(recordings.iter().all(|segment| !segment.frames.is_empty()), "{recordings:?}");
    // Nothing is missing but the units of the time without a recorder. Those since the last key
    // unit are there twice then.
    let found = compare(&Recording::numbers(&recordings), &sent);
    assert!(found.missing.len() <= 1 && found.repeated <= 1 && found.foreign.is_empty(), "{found:?}");
}

/// A recorder whose folder is a disk of its own of this size, and that disk as seen from outside.
fn on_disk(place: &Place, size: &str) -> (Process, PathBuf) {
    let folder = place.path("recordings");
    fs::create_dir(&folder).unwrap();
    let record = place.command("record cam0");
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--mount", "sh", "-c"]);
    command.arg(format!("mount -t tmpfs -o size={size} tmpfs \"$0\" && exec \"$@\"")).arg(&folder);
    command.arg(record.get_program()).args(record.get_args());
    for (name, value) in record.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    let recorder = Process::start(&mut command);
    let disk = Path::new("/proc").join(recorder.pid().to_string()).join("root");
    let disk = disk.join(folder.strip_prefix("/").unwrap());
    (recorder, disk)
}

fn has_namespaces() -> bool {
    let try_it = Command::new("unshare").args(["--user", "--map-root-user", "--mount", "true"]).status();
    try_it.is_ok_and(|status| status.success())
}

/// Writes a file until the disk is full.
fn fill(disk: &Path) -> PathBuf {
    let path = disk.join("filler");
    let mut file = File::create(&path).unwrap();
    while file.write_all(&[1; 4096]).is_ok() {}
    path
}

#[test]
fn full_disk_is_reported_and_recording_goes_on_with_room() {
    if !has_namespaces() {
        println!("SKIP camera-ingest/full-disk: this machine lets users make no namespaces");
        return;
    }
    let place = Place::new();
    place.configure(CONFIG);
    let mut capture = place.start("capture cam0");
    let (mut recorder, disk) = on_disk(&place, "6m");
    recorder.expect("running");
    let cam0 = disk.join("cam0");
    // A recorder removes a segment without any frame.
    wait("first segment with some frames", || has_frames(&cam0).then_some(()));
    let filler = fill(&disk);
    let report = recorder.expect("failed");
    assert!(report.contains("No space left") || report.contains("no space"), "{report}");
    let before = names(&cam0, "").len();
    fs::remove_file(filler).unwrap();
    recorder.expect_times("running", 2);
    // The units that did not fit are counted, with the file that lacks them.
    recorder.expect("units in ");
    wait("another segment", || (names(&cam0, ".mkv").len() > before).then_some(()));
    // Segments of before and after can be read, while the disk is still there.
    let found = Recording::all(&cam0);
    assert!(found.iter().filter(|segment| !segment.frames.is_empty()).count() >= 2, "{found:?}");
    recorder.stop();
    capture.stop();
}

#[test]
fn oldest_segments_make_room_on_a_small_disk() {
    if !has_namespaces() {
        println!("SKIP camera-ingest/small-disk: this machine lets users make no namespaces");
        return;
    }
    let place = Place::new();
    place.configure(&format!("{CONFIG}max-age = \"never\"\n"));
    let mut capture = place.start("capture cam0");
    let (mut recorder, disk) = on_disk(&place, "64m");
    recorder.expect("running");
    // Recordings of a camera that is no longer configured. A tenth of the disk is the reserve.
    let [oldest, next] = ["2001", "2002"].map(|year| disk.join(format!("old/{year}-02-03T04-05-06.mkv")));
    fs::create_dir(oldest.parent().unwrap()).unwrap();
    fs::write(&oldest, vec![1; 28 << 20]).unwrap();
    fs::write(&next, vec![1; 28 << 20]).unwrap();
    wait("room by a deletion", || (!oldest.exists()).then_some(()));
    recorder.expect("deletes the oldest segments");
    let recorded = || names(&disk.join("cam0"), ".mkv").len();
    let before = recorded();
    wait("another segment", || (recorded() > before).then_some(()));
    assert!(next.exists(), "no more is deleted than has to be");
    assert!(!recorder.text().contains("failed"), "{}", recorder.text());
    recorder.stop();
    capture.stop();
}
