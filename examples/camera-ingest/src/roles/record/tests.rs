// SPDX-License-Identifier: MIT OR Apache-2.0

//! Recorder with real streams, which a GStreamer pipeline in this process encodes and shares.

use super::{
    camera, files,
    proof::{self, Counts, Prover},
};
use crate::{
    config::{Access, Camera, Config, Decode, Groups, Model, Policies, Recording, Source, Wall},
    report::Reporter,
    results::{Keyed, Publisher, Value, time_of},
    roles::{Context, testing},
};
use frameshare::{Interrupt, Policy, reader};
use gst::prelude::*;
use std::{
    fs,
    path::{Path, PathBuf},
    sync::Mutex,
    thread,
    time::{Duration, Instant},
};

/// Time limit of each wait; only a hang exceeds it.
const PATIENCE: Duration = Duration::from_secs(60);

struct Site {
    folder: tempfile::TempDir,
    config: Config,
    stop: Interrupt,
}

impl Site {
    /// A site with one camera, whose name is a path: its streams are sockets in the folder.
    fn new(segment: Duration) -> Self {
        testing::init();
        let folder = tempfile::tempdir().unwrap();
        let camera = Camera {
            name: folder.path().join("cam0").to_str().unwrap().to_owned(),
            main: Source::File("unused".into()),
            sub: None,
            decode: Decode::Never,
            zones: Vec::new(),
            record: true,
            motion: true,
            model: false,
            policies: Policies { record: Policy::Lossless, motion: Policy::Latest, model: Policy::Latest },
        };
        let recording = Recording {
            folder: folder.path().to_owned(),
            segment,
            max_age: None,
            max_bytes: None,
            reserve: None,
        };
        let model = Model { program: "none".into(), device: None };
        let wall = Wall { listen: ([127, 0, 0, 1], 0).into() };
        let groups = Groups { capture: 1, decode: 1, record: 4, motion: 4, model: 4 };
        let access = Access::default();
        let config =
            Config { cameras: vec![camera], recording, model, wall, groups, access, hang_timeout: None };
        Self { folder, config, stop: Interrupt::new().unwrap() }
    }

    fn camera(&self) -> &Camera {
        &self.config.cameras[0]
    }

    /// Records while `what` runs.
    fn record<T>(&self, what: impl FnOnce() -> T) -> T {
        let reporter = Reporter::of_environment();
        let context = Context {
            config: &self.config,
            cameras: &self.config.cameras,
            reporter,
            stop: self.stop.clone(),
        };
        thread::scope(|scope| {
            let recorder = scope.spawn(|| camera::record(self.camera(), &context));
            let stop = StopOnDrop(&self.stop);
            let result = what();
            drop(stop);
            recorder.join().unwrap().unwrap();
            result
        })
    }

    fn files(&self, ending: &str) -> Vec<PathBuf> {
        files::list(&self.folder.path().join("cam0"), ending).unwrap_or_default()
    }
}

/// Ends the recorder when a test fails, too.
struct StopOnDrop<'a>(&'a Interrupt);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.set();
    }
}

fn wait_for<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = condition() {
            return found;
        }
        assert!(Instant::now() < deadline, "not within {PATIENCE:?}: {what}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// Returns a source of H.264, with a key frame each 10 frames, 30 frames a second. A recorder gets
/// all of them, however late it is.
fn video(frames: usize, width: u32, stream: &str) -> String {
    format!(
        "videotestsrc is-live=true num-buffers={frames} ! video/x-raw,width={width},height=90,framerate=30/1 \
         ! x264enc tune=zerolatency speed-preset=ultrafast key-int-max=10 ! h264parse \
         ! framesharesink socket-path={stream} encoded=true wait-for-connection=true \
         max-queued-time=60000000000"
    )
}

/// Plays a pipeline to its end, and leaves its streams open until it is dropped.
fn play(description: &str) -> Playing {
    let playing = paused(description);
    playing.0.set_state(gst::State::Playing).unwrap();
    playing
}

/// Makes a pipeline that is played later.
fn paused(description: &str) -> Playing {
    Playing(gst::parse::launch(description).unwrap().downcast::<gst::Pipeline>().unwrap())
}

/// Changes the buffers behind an element.
fn probe(playing: &Playing, element: &str, change: impl FnMut(&mut gst::BufferRef) + Send + 'static) {
    let pad = playing.0.by_name(element).unwrap().static_pad("src").unwrap();
    let change = Mutex::new(change);
    pad.add_probe(gst::PadProbeType::BUFFER, move |_, info| {
        if let Some(gst::PadProbeData::Buffer(buffer)) = &mut info.data {
            change.lock().unwrap()(buffer.make_mut());
        }
        gst::PadProbeReturn::Ok
    });
}

struct Playing(gst::Pipeline);

impl Playing {
    fn wait(&self) {
        let kinds = [gst::MessageType::Eos, gst::MessageType::Error];
        let message = self.0.bus().unwrap().timed_pop_filtered(gst::ClockTime::from_seconds(60), &kinds);
        let message = message.expect("the pipeline ends");
        assert_eq!(message.type_(), gst::MessageType::Eos, "{message:?}");
    }
}

impl Drop for Playing {
    fn drop(&mut self) {
        let _ = self.0.set_state(gst::State::Null);
    }
}

/// Units of a recording's track: time, and whether each is a key unit. Fewer if the file is cut.
fn units(file: &Path, track: &str) -> Vec<(gst::ClockTime, bool)> {
    let description = format!(
        "filesrc location={} ! matroskademux name=demux demux.{track} ! appsink name=out sync=false",
        file.display()
    );
    let pipeline = gst::parse::launch(&description).unwrap().downcast::<gst::Pipeline>().unwrap();
    let out = pipeline.by_name("out").unwrap().downcast::<gst_app::AppSink>().unwrap();
    pipeline.set_state(gst::State::Playing).unwrap();
    let mut units = Vec::new();
    while let Ok(sample) = out.pull_sample() {
        let buffer = sample.buffer().unwrap();
        units.push((buffer.pts().unwrap(), !buffer.flags().contains(gst::BufferFlags::DELTA_UNIT)));
    }
    pipeline.set_state(gst::State::Null).unwrap();
    units
}

#[test]
fn all_units_are_in_segments_that_begin_with_key_units() {
    const FRAMES: usize = 75;
    let site = Site::new(Duration::from_secs(1));
    site.record(|| {
        let playing = play(&video(FRAMES, 160, &site.camera().encoded()));
        wait_for("a first file", || site.files(files::PART).into_iter().next());
        playing.wait();
        wait_for("the last segment", || site.files(files::PART).is_empty().then_some(()));
    });
    let segments = site.files(files::SEGMENT);
    let found: Vec<_> = segments.iter().map(|file| units(file, "video_0")).collect();
    assert_eq!(found.iter().map(Vec::len).sum::<usize>(), FRAMES, "{segments:?}");
    // 2.5 s at 30 frames a second; a key unit each third of a second.
    assert_eq!(found.iter().map(Vec::len).collect::<Vec<_>>(), [30, 30, 15]);
    for units in found {
        assert_eq!(units[0], (gst::ClockTime::ZERO, true));
        assert!(units.is_sorted_by(|a, b| a.0 < b.0));
    }
}

#[test]
fn units_without_a_time_and_with_the_same_time_are_recorded() {
    const FRAMES: usize = 75;
    let site = Site::new(Duration::from_secs(60));
    site.record(|| {
        let description = video(FRAMES, 160, &site.camera().encoded());
        let playing =
            paused(&description.replace("! framesharesink", "! identity name=times ! framesharesink"));
        let mut times = vec![None];
        probe(&playing, "times", move |buffer| {
            let same = times.last().copied().flatten();
            times.push(buffer.pts());
            match times.len() % 10 {
                3 => {
                    buffer.set_pts(None);
                    buffer.set_dts(None);
                }
                6 | 7 => buffer.set_pts(same),
                _ => {}
            }
        });
        playing.0.set_state(gst::State::Playing).unwrap();
        wait_for("a first file", || site.files(files::PART).into_iter().next());
        playing.wait();
        wait_for("the segment", || site.files(files::PART).is_empty().then_some(()));
    });
    let found = units(&site.files(files::SEGMENT)[0], "video_0");
    assert_eq!(found.len(), FRAMES, "{found:?}");
}

#[test]
fn times_that_go_back_begin_a_segment() {
    let site = Site::new(Duration::from_secs(60));
    site.record(|| {
        let description = video(40, 160, &site.camera().encoded());
        let playing =
            paused(&description.replace("! framesharesink", "! identity name=times ! framesharesink"));
        let mut number = 0;
        probe(&playing, "times", move |buffer| {
            number += 1;
            if number > 20 {
                let back = gst::ClockTime::from_mseconds(600);
                buffer.set_pts(buffer.pts().map(|time| time.saturating_sub(back)));
                buffer.set_dts(buffer.dts().map(|time| time.saturating_sub(back)));
            }
        });
        playing.0.set_state(gst::State::Playing).unwrap();
        wait_for("a first file", || site.files(files::PART).into_iter().next());
        playing.wait();
        wait_for("the last segment", || site.files(files::PART).is_empty().then_some(()));
    });
    let found: Vec<_> = site.files(files::SEGMENT).iter().map(|file| units(file, "video_0").len()).collect();
    assert_eq!(found, [20, 20]);
}

#[test]
fn restarted_camera_of_another_size_begins_a_segment() {
    let site = Site::new(Duration::from_secs(60));
    site.record(|| {
        for width in [160, 192] {
            let playing = play(&video(20, width, &site.camera().encoded()));
            wait_for("a file", || site.files(files::PART).into_iter().next());
            playing.wait();
            wait_for("a segment", || site.files(files::PART).is_empty().then_some(()));
        }
    });
    let counts =
        site.files(files::SEGMENT).iter().map(|file| units(file, "video_0").len()).collect::<Vec<_>>();
    assert_eq!(counts, [20, 20]);
}

#[test]
fn unfinished_segment_with_audio_is_readable() {
    let site = Site::new(Duration::from_secs(60));
    let copy = site.folder.path().join("copy.mkv");
    site.record(|| {
        let audio = format!(
            "audiotestsrc is-live=true samplesperbuffer=160 ! audio/x-raw,rate=8000,channels=1 ! alawenc \
             ! framesharesink socket-path={} encoded=true",
            site.camera().audio()
        );
        let _playing = play(&format!("{} {audio}", video(100_000, 160, &site.camera().encoded())));
        // As after SIGKILL: the file is not finished. Its first cluster may end anywhere.
        wait_for("both tracks in an unfinished file", || {
            let part = site.files(files::PART).pop()?;
            fs::copy(part, &copy).ok()?;
            let discovered = fs::read(&copy).ok()?;
            let has_audio = discovered.windows(6).any(|bytes| bytes == b"A_MS/A" || bytes == b"A_PCM/");
            (has_audio && units(&copy, "video_0").len() > 30 && units(&copy, "audio_0").len() > 20)
                .then_some(())
        });
    });
    assert!(units(&copy, "video_0")[0].1);
}

#[test]
fn results_are_beside_the_segment_by_the_time_of_their_unit() {
    let site = Site::new(Duration::from_secs(60));
    let times = site.record(|| {
        let publisher = Publisher::open(&site.camera().motion_results(), &site.stop).unwrap();
        let stamped = video(100_000, 160, &site.camera().encoded())
            .replace("! framesharesink", "! identity name=stamp ! framesharesink");
        let playing = play(&stamped);
        let clock = gst::Caps::new_empty_simple("timestamp/x-unix");
        probe(&playing, "stamp", move |buffer| {
            let time =
                gst::ClockTime::from_nseconds(1_700_000_000_000_000_000 + buffer.pts().unwrap().nseconds());
            gst::ReferenceTimestampMeta::add(buffer, &clock, time, gst::ClockTime::NONE);
        });
        let frames = reader::Frames::open(&site.camera().encoded(), reader::Config::default()).unwrap();
        wait_for("a file", || site.files(files::PART).into_iter().next());
        let mut times = Vec::new();
        for frame in frames.skip(20).take(10) {
            let frame = frame.unwrap();
            let time = time_of(&frame).expect("units carry their time");
            times.push(time);
            publisher.publish(&Keyed::of(&frame, Value { time, ..Value::default() })).unwrap();
        }
        wait_for("all results", || {
            let file = site.files(files::RESULTS).pop()?;
            (fs::read_to_string(file).ok()?.lines().count() == times.len()).then_some(())
        });
        times
    });
    let segment = units(&site.files(files::SEGMENT)[0], "video_0");
    let lines = fs::read_to_string(&site.files(files::RESULTS)[0]).unwrap();
    for (line, time) in lines.lines().zip(times) {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        assert_eq!((line["time"].as_u64(), line["source"].as_str()), (Some(time), Some("motion")));
        // MKV has times in ms.
        let position = line["position"].as_f64().unwrap();
        let is_unit =
            |(pts, _): &(gst::ClockTime, bool)| (pts.nseconds() as f64 / 1e9 - position).abs() < 0.002;
        assert!(segment.iter().any(is_unit), "no unit at {position}: {segment:?}");
    }
}

#[test]
fn silence_ends_no_segment() {
    const FRAMES: usize = 40;
    let site = Site::new(Duration::from_secs(60));
    site.record(|| {
        let description = video(FRAMES, 160, &site.camera().encoded());
        let playing =
            paused(&description.replace("! framesharesink", "! identity name=pause ! framesharesink"));
        let mut number = 0;
        probe(&playing, "pause", move |_| {
            number += 1;
            // A delta unit is next: a key unit comes every ten.
            if number == 15 {
                thread::sleep(Duration::from_secs(4));
            }
        });
        playing.0.set_state(gst::State::Playing).unwrap();
        wait_for("a first file", || site.files(files::PART).into_iter().next());
        playing.wait();
        wait_for("the segment", || site.files(files::PART).is_empty().then_some(()));
    });
    let segments = site.files(files::SEGMENT);
    let found: Vec<_> = segments.iter().map(|file| units(file, "video_0").len()).collect();
    assert_eq!(found, [FRAMES], "{segments:?}");
}

#[test]
fn unit_that_a_file_lacks_is_found() {
    let site = Site::new(Duration::from_secs(60));
    site.record(|| {
        let playing = play(&video(40, 160, &site.camera().encoded()));
        wait_for("a first file", || site.files(files::PART).into_iter().next());
        playing.wait();
        wait_for("the segment", || site.files(files::PART).is_empty().then_some(()));
    });
    let file = site.files(files::SEGMENT).pop().unwrap();
    let times = units(&file, "video_0").into_iter();
    let mut given: Vec<_> = times.map(|(time, is_key)| (time.nseconds(), is_key)).collect();
    let prove = |given: &[proof::Given]| {
        let mut prover = Prover::start().unwrap();
        prover.prove(file.clone(), given.to_vec());
        wait_for("the proof", || prover.next()).counts
    };
    assert_eq!(prove(&given), Counts { received: 40, written: 40, decodable: 40 });
    // The other nine units of its group depend on it.
    given.insert(11, (given[10].0 + 15_000_000, false));
    assert_eq!(prove(&given), Counts { received: 41, written: 40, decodable: 31 });
}
