// SPDX-License-Identifier: MIT OR Apache-2.0

//! Capture and decoding: sessions with cameras, decoded streams and their readers.

mod common;

use common::{Place, Process, Server, wait};
use frameshare::{
    Endpoint, Policy,
    observer::{Observer, Snapshot},
    reader::{Config, Frames},
};
use gst::prelude::*;
use rustix::process::Signal;
use std::{
    fs,
    os::unix::{fs::PermissionsExt, process::CommandExt},
    path::Path,
    process::Command,
    time::Duration,
};

const LIMIT: Duration = Duration::from_secs(60);

/// Returns the state of a stream, once there is one that fits.
fn observe(stream: &str, what: &str, fits: impl Fn(&Snapshot) -> bool) -> Snapshot {
    let endpoint = Endpoint::at(stream).unwrap();
    wait(what, || {
        let observer = Observer::connect(&endpoint, LIMIT).ok()?;
        Some(observer.latest().clone()).filter(|snapshot| fits(snapshot))
    })
}

fn has(snapshot: &Snapshot, part: &str) -> bool {
    snapshot.format.as_ref().is_some_and(|format| format.caps.contains(part))
}

fn reader(stream: &str) -> Frames {
    let config = Config::default().policy(Policy::Latest).connection_timeout(Some(LIMIT));
    Frames::open(stream, config).unwrap()
}

/// Reads so many frames and returns their sessions.
fn read(frames: &mut Frames, count: usize) -> Vec<u64> {
    let next = |_| frames.next_within(LIMIT).unwrap().expect("a frame in time").session();
    let mut sessions: Vec<_> = (0..count).map(next).collect();
    sessions.dedup();
    sessions
}

#[test]
fn camera_is_received_again_with_another_size() {
    let place = Place::new();
    let mut server = Server::start(0, "--frames 20 cam/main=320x240@10");
    place.configure(&format!("[cameras]\ncam0 = '{}'\n", server.url("cam/main")));
    let mut capture = place.start("capture cam0");
    capture.expect("cam0: running: H.264 320x240");
    let mut frames = reader(&place.stream("cam0.video"));
    let session = read(&mut frames, 5);

    server.kill();
    capture.expect("next attempt in ");
    let port = server.port;
    let server = Server::start(port, "--frames 20 cam/main=160x120@10");
    capture.expect("cam0: running: H.264 160x120");
    observe(&place.stream("cam0.video"), "new size", |snapshot| has(snapshot, "width=(int)160"));
    // The reader kept its connection.
    assert_eq!(read(&mut frames, 5), session);
    capture.stop();
    assert_eq!(server.process.text().matches("play ").count(), 1, "{}", server.process.text());
    assert_eq!(place.left(), Vec::<String>::new());
}

#[test]
fn camera_without_data_is_connected_again() {
    let place = Place::new();
    let server = Server::start(0, "--frames 20 cam/main=64x64@10");
    place.configure(&format!("[cameras]\ncam0 = '{}'\n", server.url("cam/main")));
    let mut capture = place.start("capture cam0");
    capture.expect("cam0: running");
    server.process.signal(Signal::STOP);
    capture.expect("cam0: failed: no video for 10 s");
    server.process.signal(Signal::CONT);
    capture.expect_times("cam0: running", 2);
    capture.stop();
}

#[test]
fn all_readers_share_one_session_with_the_camera() {
    let place = Place::new();
    let server = Server::start(0, "--audio --frames 20 cam/main=64x64@10 cam/sub=32x32@10");
    let url = |path| server.url(path);
    place.configure(&format!(
        "[cameras]\ncam0 = {{ main = '{}', sub = '{}' }}\n",
        url("cam/main"),
        url("cam/sub")
    ));
    let mut capture = place.start("capture cam0");
    let mut decode = place.start("decode cam0");
    capture.expect("cam0: running: main: H.264 64x64; sub: H.264 32x32");
    for stream in ["cam0.video", "cam0.sub", "cam0.audio", "cam0"] {
        let mut readers = [reader(&place.stream(stream)), reader(&place.stream(stream))];
        readers.iter_mut().for_each(|frames| _ = read(frames, 3));
    }
    let frames = observe(&place.stream("cam0"), "decoded frames", |snapshot| snapshot.format.is_some());
    assert_eq!(frames.format.unwrap().video.unwrap().width, 32, "the sub-stream is decoded");
    capture.stop();
    decode.stop();
    let text = server.process.text();
    assert_eq!((text.matches("cam/main").count(), text.matches("cam/sub").count()), (1, 1), "{text}");
}

#[test]
fn decoder_works_only_while_frames_are_read() {
    let place = Place::new();
    let server = Server::start(0, "--frames 20 cam/main=64x64@10");
    place.configure(&format!("[cameras]\ncam0 = '{}'\n", server.url("cam/main")));
    let capture = place.start("capture cam0");
    let mut decode = place.start("decode cam0");
    let units = place.stream("cam0.video");
    capture.expect("cam0: running");
    decode.expect("cam0: off: no reader");
    assert_eq!(observe(&units, "units", |_| true).readers.len(), 0);
    let mut frames = reader(&place.stream("cam0"));
    read(&mut frames, 5);
    decode.expect("cam0: running: ");
    assert_eq!(observe(&units, "units", |_| true).readers.len(), 1);
    drop(frames);
    decode.expect_times("cam0: off: no reader", 2);
    observe(&units, "end of the decoder", |snapshot| snapshot.readers.is_empty());
    // It starts again, with another exporter of the units, too.
    let mut frames = reader(&place.stream("cam0"));
    read(&mut frames, 5);
    drop(capture);
    let _capture = place.start("capture cam0");
    read(&mut frames, 5);
    decode.stop();
}

/// Reads all units of a stream.
struct AllUnits {
    frames: Frames,
    last: Option<u64>,
}

impl AllUnits {
    fn open(stream: &str) -> Self {
        let config = Config::default().policy(Policy::Lossless).connection_timeout(Some(LIMIT));
        Self { frames: Frames::open(stream, config).unwrap(), last: None }
    }

    /// Reads so many units without a gap.
    fn expect(&mut self, count: usize) {
        for _ in 0..count {
            let unit = self.frames.next_within(LIMIT).unwrap().expect("a unit in time");
            let sequence = unit.descriptor().sequence.0;
            assert!(self.last.is_none_or(|last| sequence == last + 1), "{sequence} after {:?}", self.last);
            self.last = Some(sequence);
        }
    }
}

#[test]
fn killed_decoder_costs_units_nothing() {
    let place = Place::new();
    let server = Server::start(0, "--frames 20 cam/main=64x64@10");
    place.configure(&format!("[cameras]\ncam0 = '{}'\n", server.url("cam/main")));
    let _capture = place.start("capture cam0");
    let decode = place.start("decode cam0");
    // It decodes until it is killed.
    let mut frames = reader(&place.stream("cam0"));
    read(&mut frames, 2);
    let mut units = AllUnits::open(&place.stream("cam0.video"));
    units.expect(5);
    drop(decode); // with SIGKILL
    units.expect(10);
}

#[test]
fn recorder_that_pauses_for_seconds_loses_no_unit() {
    let place = Place::new();
    place.configure("[cameras]\ncam0 = 'pattern:ball?width=64&height=64&rate=20'\n");
    let _capture = place.start("capture cam0");
    let stream = place.stream("cam0.video");
    let mut units = AllUnits::open(&stream);
    units.expect(1);
    // More than the engine's default of two seconds, less than the ten seconds of encoded streams.
    let is_late = |snapshot: &Snapshot| snapshot.readers.first().is_some_and(|reader| reader.waiting > 45);
    observe(&stream, "late reader", is_late);
    units.expect(100);
}

#[test]
fn login_is_sent_to_the_camera_and_shown_nowhere() {
    let place = Place::new();
    let server = Server::start(0, "--login admin:hunter2 --frames 20 cam/main=64x64@10");
    let url = server.url("cam/main");
    let start = |password: &str, config: &str| {
        place.configure(config);
        let mut command = place.command("capture cam0");
        Process::start(command.env("CAM0_PASSWORD", password))
    };
    let config = format!("[cameras.cam0]\nmain = '{url}'\nuser = 'admin'\npassword-env = 'CAM0_PASSWORD'\n");
    let capture = start("hunter3", &config);
    capture.expect("cam0: failed: ");
    assert!(!capture.text().contains("hunter3"), "{}", capture.text());
    drop(capture);
    for config in [config, format!("[cameras]\ncam0 = '{}'\n", url.replace("//", "//admin:hunter2@"))] {
        let mut capture = start("hunter2", &config);
        capture.expect("cam0: running: H.264 64x64");
        capture.stop();
        assert!(!capture.text().contains("hunter2"), "{}", capture.text());
    }
}

#[test]
fn only_capture_reads_passwords() {
    let place = Place::new();
    let server = Server::start(0, "--login admin:hunter2 --frames 20 cam/main=64x64@10");
    let (url, password) = (server.url("cam/main"), place.path("cam0.password"));
    place.configure(&format!(
        "[cameras.cam0]\nmain = '{url}'\nuser = 'admin'\npassword-file = 'cam0.password'\n\
         [recording]\nfolder = 'recordings'\n[wall]\nlisten = '127.0.0.1:0'\n"
    ));
    let output = place.command("capture cam0").output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && error.contains("cam0.password"), "{error}");
    fs::write(&password, "hunter2").unwrap();
    let capture = place.start("capture cam0");
    capture.expect("cam0: running: H.264 64x64");
    // As if it were readable by the user of capture alone.
    fs::remove_file(&password).unwrap();
    let (wall, decode) = (place.start("wall"), place.start("process decode-cam0"));
    wall.expect("http://");
    decode.expect("cam0: off: no reader");
    let (record, motion) = (place.start("record cam0"), place.start("process motion-1"));
    record.expect("cam0: running");
    motion.expect("cam0: running");
    decode.expect("cam0: running: ");
}

#[test]
fn reader_is_named_after_its_role_and_camera() {
    let place = Place::new();
    let server = Server::start(0, "--frames 20 cam/main=64x64@10");
    place.configure(&format!("[cameras]\ncam0 = '{}'\n", server.url("cam/main")));
    let (_capture, _decode) = (place.start("capture cam0"), place.start("decode cam0"));
    let _motion = place.start("motion cam0");
    let is_named = |name: &'static str| {
        move |snapshot: &Snapshot| snapshot.readers.iter().any(|reader| reader.name == name)
    };
    observe(&place.stream("cam0.video"), "decoder", is_named("camera-ingest decode/cam0"));
    observe(&place.stream("cam0"), "motion detection", is_named("camera-ingest motion cam0"));
}

/// Makes a file with one second of video.
fn make_clip(path: &Path, encoder: &str) {
    play(&format!(
        "videotestsrc num-buffers=10 ! video/x-raw,width=64,height=64,framerate=10/1 ! {encoder} \
         ! matroskamux ! filesink location={}",
        path.display()
    ));
}

/// Plays a pipeline to its end.
fn play(description: &str) {
    gst::init().unwrap();
    let pipeline = gst::parse::launch(description).unwrap().downcast::<gst::Pipeline>().unwrap();
    pipeline.set_state(gst::State::Playing).unwrap();
    let end = [gst::MessageType::Eos, gst::MessageType::Error];
    let message = pipeline.bus().unwrap().timed_pop_filtered(gst::ClockTime::from_seconds(60), &end).unwrap();
    pipeline.set_state(gst::State::Null).unwrap();
    assert_eq!(message.type_(), gst::MessageType::Eos, "{description}: {message:?}");
}

#[test]
fn rounds_of_a_file_follow_each_other_and_keep_distances() {
    // With B-frames, units come in another order than that of display.
    for encoder in ["x264enc", "x264enc bframes=3 b-adapt=false b-pyramid=true"] {
        let place = Place::new();
        make_clip(&place.path("clip.mkv"), &format!("{encoder} ! h264parse"));
        place.configure("[cameras]\ncam0 = 'clip.mkv'\n");
        let mut capture = place.start("capture cam0");
        let mut units = AllUnits::open(&place.stream("cam0.video")).frames;
        let mut rounds: Vec<Vec<u64>> = Vec::new();
        let mut sessions = Vec::new();
        for _ in 0..35 {
            let unit = units.next_within(LIMIT).unwrap().expect("a unit in time");
            sessions.push(unit.session());
            if unit.descriptor().flags & frameshare::flags::DELTA_UNIT == 0 {
                rounds.push(Vec::new());
            }
            rounds.last_mut().expect("a key unit first").push(unit.descriptor().pts.expect("a time"));
        }
        capture.stop();
        sessions.dedup();
        assert_eq!(sessions.len(), 1);
        rounds.iter_mut().for_each(|round| round.sort());
        let period = Duration::from_millis(100);
        for times in &rounds[..3] {
            let distances: Vec<_> =
                times.windows(2).map(|pair| Duration::from_nanos(pair[1] - pair[0])).collect();
            assert_eq!(distances, [period; 9], "{encoder}: {rounds:?}");
        }
        for pair in rounds.windows(2) {
            assert!(pair[1][0] >= pair[0][pair[0].len() - 1] + 100_000_000, "{encoder}: {rounds:?}");
        }
    }
}

#[test]
fn h265_is_shared_decoded_and_recorded() {
    gst::init().unwrap();
    let missing =
        ["x265enc", "avdec_h265"].into_iter().find(|name| gst::ElementFactory::find(name).is_none());
    if let Some(missing) = missing {
        eprintln!("SKIP cameras/h265_is_shared_decoded_and_recorded: element {missing} is missing");
        return;
    }
    let place = Place::new();
    make_clip(&place.path("clip.mkv"), "x265enc key-int-max=5 ! h265parse");
    place.configure(
        "[cameras]\ncam0 = 'clip.mkv'\n[defaults]\nmotion = false\n\
         [recording]\nfolder = 'recordings'\nsegment = '1s'\n",
    );
    let (mut capture, decode) = (place.start("capture cam0"), place.start("decode cam0"));
    let mut record = place.start("record cam0");
    capture.expect("cam0: running: H.265 64x64");
    // A decoder without readers stops, and then says so instead.
    let mut frames = reader(&place.stream("cam0"));
    read(&mut frames, 5);
    decode.expect("dec_h265");
    drop(frames);
    let segments = || {
        let entries = fs::read_dir(place.path("recordings/cam0")).into_iter().flatten().flatten();
        let paths = entries.map(|entry| entry.path());
        paths.filter(|path| path.extension().is_some_and(|ending| ending == "mkv")).collect::<Vec<_>>()
    };
    let segment = wait("segment", || segments().pop());
    // As the camera made it: the elements refuse other media.
    play(&format!(
        "filesrc location={} ! matroskademux ! h265parse ! avdec_h265 ! fakesink",
        segment.display()
    ));
    record.stop();
    capture.stop();
}

#[test]
fn pattern_is_shared_raw_and_encoded() {
    let place = Place::new();
    place.configure("[cameras]\ncam0 = 'pattern:ball?width=64&height=48&rate=10'\ncam1 = 'pattern:none'\n");
    let mut capture = place.start("capture");
    capture.expect("cam0: running: raw 64x48, encoded here for recording");
    capture.expect("cam1: failed: videotestsrc has no pattern 'none'");
    read(&mut reader(&place.stream("cam0")), 3);
    read(&mut reader(&place.stream("cam0.video")), 3);
    let frames = observe(&place.stream("cam0"), "frames", |snapshot| snapshot.format.is_some());
    assert_eq!(frames.format.unwrap().video.unwrap().height, 48);
    assert_eq!(
        frames.counters.copies.iter().map(|copy| copy.count).sum::<u64>(),
        0,
        "frames are shared in place"
    );
    let mut decode = place.start("decode cam0");
    decode.expect("cam0: off: no work for decode");
    decode.stop();
    capture.stop();
}

/// Environment variable of the process that [`reader_of_another_user`] is.
const STREAM: &str = "CAMERA_INGEST_TEST_STREAM";
const OTHER_USER: u32 = 64_321;

/// Reads a frame, in a process of another user.
#[test]
fn reader_of_another_user() {
    if let Ok(stream) = std::env::var(STREAM) {
        read(&mut reader(&stream), 1);
    }
}

#[test]
fn streams_are_for_the_users_of_the_configuration() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIP cameras/streams_are_for_the_users_of_the_configuration: needs root");
        return;
    }
    let place = Place::new();
    // Others may enter the folders, and start a copy of this program. Another process copies: a
    // child that another test forks meanwhile would hold the copy open for writing (`ETXTBSY`).
    for folder in ["", "run"] {
        fs::set_permissions(place.path(folder), fs::Permissions::from_mode(0o755)).unwrap();
    }
    let copied = Command::new("cp").arg(std::env::current_exe().unwrap()).arg(place.path("reader")).status();
    assert!(copied.unwrap().success());
    let can_read = || {
        let mut reader = Command::new(place.path("reader"));
        reader.args(["--exact", "reader_of_another_user"]).env(STREAM, place.stream("cam0"));
        reader.uid(OTHER_USER).current_dir("/").output().unwrap()
    };
    let camera = "[cameras]\ncam0 = 'pattern:ball?width=64&height=64&rate=10'\n";
    place.configure(&format!("{camera}[access]\nusers = [{OTHER_USER}]\n"));
    let mut capture = place.start("capture");
    capture.expect("cam0: running");
    let output = can_read();
    assert!(output.status.success(), "{output:?}");
    capture.stop();
    place.configure(&format!("{camera}[access]\nusers = [{}]\n", OTHER_USER + 1));
    let capture = place.start("capture");
    capture.expect("cam0: running");
    let output = can_read();
    assert!(
        !output.status.success() && format!("{output:?}").contains(&OTHER_USER.to_string()),
        "{output:?}"
    );
}
