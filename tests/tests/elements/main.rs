// SPDX-License-Identifier: MIT OR Apache-2.0

//! Both elements in processes of their own, as users start them.
//!
//! Received frames are compared with the exporter's frame by frame. The image changes everywhere
//! from frame to frame, and the same pipeline without the elements gives the expected checksums.

mod gone;
mod refused;
#[allow(dead_code, reason = "the tests of faults use the rest of it")]
mod stage;

use stage::{Outcome, Stage, sums};

/// A moving zone plate: every pixel changes from frame to frame.
const PICTURE: &str = "pattern=zone-plate kx2=20 ky2=20 kt=7 kxt=3";
const NV12: &str = "video/x-raw,format=NV12,width=320,height=240,framerate=100/1";
const NV12_SIZE: usize = 320 * 240 * 3 / 2;

/// Checksums of the frames of `videotestsrc`.
fn expected(stage: &Stage, frames: usize) -> Vec<String> {
    stage
        .gst(&format!(
            "videotestsrc num-buffers={frames} {PICTURE} ! {NV12} ! filesink location=expected.raw"
        ))
        .finish_well();
    let sums = sums(&stage.read("expected.raw"), NV12_SIZE);
    assert_eq!(sums.len(), frames);
    assert!(sums.windows(2).all(|pair| pair[0] != pair[1]), "the picture stands still");
    sums
}

/// Checks the checksums that a peer printed, and returns their number.
fn check_frames(outcome: &Outcome, expected: &[String]) -> usize {
    let frames = outcome.events("frame");
    for frame in &frames {
        let sequence = frame["sequence"].as_u64().unwrap() as usize;
        assert_eq!(frame["sum"].as_str().unwrap(), expected[sequence - 1], "frame {sequence}");
        assert_eq!(frame["good"], true, "the gap before frame {sequence} is not counted");
    }
    frames.len()
}

#[test]
fn lossless_reader_receives_every_frame_unchanged() {
    let stage = Stage::new();
    let expected = expected(&stage, 200);
    let exporter = stage.gst(&format!(
        "videotestsrc num-buffers=200 {PICTURE} ! {NV12} ! \
         framesharesink stream=s wait-for-connection=true sync=false"
    ));
    let reader = stage.gst("framesharesrc stream=s policy=lossless ! filesink location=read.raw");
    reader.finish_well();
    exporter.finish_well();
    assert!(sums(&stage.read("read.raw"), NV12_SIZE) == expected);
}

#[test]
fn concurrent_readers_of_all_kinds_receive_same_frames() {
    let stage = Stage::new();
    let expected = expected(&stage, 200);
    let readers = [
        stage.peer("read --stream s --policy lossless --sum yes"),
        stage.peer("read --stream s --policy latest --sum yes"),
        stage.peer("read --stream s --policy latest --sum yes --sleep-ms 60 --max-held 2"),
    ];
    let file = stage.gst("framesharesrc stream=s policy=lossless ! filesink location=read.raw");
    let exporter = stage.gst(&format!(
        "videotestsrc num-buffers=200 is-live=true {PICTURE} ! {NV12} ! framesharesink stream=s"
    ));
    exporter.finish_well();
    file.finish_well();
    let outcomes = readers.map(|reader| reader.finish_well());
    for outcome in &outcomes {
        let received = check_frames(outcome, &expected);
        assert_eq!(outcome.summary()["end"], "eos");
        assert!(received > 10, "{received} frames received");
    }
    let [lossless, _, slow] = &outcomes;
    assert_eq!(lossless.summary()["lost"], 0);
    assert!(slow.summary()["lost"].as_u64() > Some(50), "a reader of 16 frames/s loses some of 100/s");
    // Frames before the element joined are missing, and none after that.
    let read = sums(&stage.read("read.raw"), NV12_SIZE);
    assert!(!read.is_empty() && expected.ends_with(&read));
}

/// The negative control, without the source's copies, is in the source's own tests, which can turn
/// them off.
#[test]
fn encoder_holding_fifty_frames_does_not_stop_stream() {
    let stage = Stage::new();
    let exporter = stage.gst(&format!(
        "videotestsrc num-buffers=150 {PICTURE} ! {NV12} ! \
         framesharesink stream=s wait-for-connection=true sync=false"
    ));
    // x264enc accepts NV12 directly, so it keeps the shared frames themselves.
    let reader = stage.gst(
        "framesharesrc stream=s policy=lossless max-held=4 ! x264enc ! \
         video/x-h264,stream-format=byte-stream,alignment=au ! multifilesink location=frame%03d",
    );
    reader.finish_well();
    exporter.finish_well();
    assert!(stage.path("frame149").exists() && !stage.path("frame150").exists());
}

#[test]
fn new_caps_reach_reader_before_their_frames() {
    let stage = Stage::new();
    let part = |width: u32, format: &str| {
        format!(
            "videotestsrc num-buffers=30 {PICTURE} ! \
             video/x-raw,format={format},width={width},height=240,framerate=100/1 ! c."
        )
    };
    let parts = [part(320, "NV12"), part(640, "NV12"), part(160, "RGBA")].join(" ");
    let exporter = stage
        .gst(&format!("concat name=c ! framesharesink stream=s wait-for-connection=true sync=false {parts}"));
    let peer = stage.peer("read --stream s --policy lossless");
    let outcome = peer.finish_well();
    exporter.finish_well();
    let formats = outcome.events("format");
    assert_eq!(formats.len(), 3, "{formats:?}");
    let mut size = 0;
    for line in &outcome.lines {
        let line = serde_json::from_str::<serde_json::Value>(line).unwrap();
        match line["event"].as_str() {
            Some("format") => {
                let caps = line["caps"].as_str().unwrap();
                let width = [(160, "160"), (320, "320"), (640, "640")]
                    .iter()
                    .find(|(_, text)| caps.contains(&format!("width=(int){text}")))
                    .unwrap()
                    .0;
                size = if caps.contains("NV12") { width * 240 * 3 / 2 } else { width * 240 * 4 };
            }
            Some("frame") => assert_eq!(line["size"], size),
            _ => {}
        }
    }
}

#[test]
fn new_caps_pass_through_source() {
    let stage = Stage::new();
    let part = |width: u32| {
        format!(
            "videotestsrc num-buffers=30 ! video/x-raw,format=NV12,width={width},height=240,framerate=100/1 ! c."
        )
    };
    let parts = [part(320), part(640)].join(" ");
    let exporter = stage
        .gst(&format!("concat name=c ! framesharesink stream=s wait-for-connection=true sync=false {parts}"));
    let reader = stage.gst("framesharesrc stream=s policy=lossless ! filesink location=read.raw");
    reader.finish_well();
    exporter.finish_well();
    assert_eq!(stage.read("read.raw").len(), 30 * (320 + 640) * 240 * 3 / 2);
}

#[test]
fn decoded_clip_is_received_unchanged() {
    let stage = Stage::new();
    // A size for which the decoder pads its frames.
    stage
        .gst(&format!(
            "videotestsrc num-buffers=60 {PICTURE} ! video/x-raw,format=I420,width=338,height=190,framerate=100/1 ! \
             x264enc ! h264parse ! qtmux ! filesink location=film.mp4"
        ))
        .finish_well();
    let film = "filesrc location=film.mp4 ! qtdemux ! h264parse ! avdec_h264";
    // videoconvert before each file gives both the same layout.
    let to_file = "videoconvert ! video/x-raw,format=RGB ! filesink location";
    stage.gst(&format!("{film} ! {to_file}=expected.raw")).finish_well();
    let exporter =
        stage.gst(&format!("{film} ! framesharesink stream=s wait-for-connection=true sync=false"));
    stage.gst(&format!("framesharesrc stream=s policy=lossless ! {to_file}=read.raw")).finish_well();
    exporter.finish_well();
    let expected = stage.read("expected.raw");
    assert!(!expected.is_empty() && stage.read("read.raw") == expected);
}

#[test]
fn late_reader_starts_with_newest_frame() {
    let stage = Stage::new();
    let _exporter =
        stage.gst(&format!("videotestsrc is-live=true {PICTURE} ! {NV12} ! framesharesink stream=s"));
    stage.peer("read --stream s --frames 50").finish_well();
    let late = stage.peer("read --stream s --policy lossless --frames 5").finish_well();
    let frames = late.events("frame");
    assert!(frames[0]["sequence"].as_u64() > Some(50));
    assert_eq!(late.summary()["lost"], 0);
}

/// A video sink drops frames more than 5 ms late; fpsdisplaysink counts rendered and dropped
/// frames. On a busy machine some frames may be late. With wrong timestamps all frames are.
#[test]
fn synchronized_sink_renders_frames() {
    const ATTEMPTS: usize = 8;
    let stage = Stage::new();
    let film = NV12.replace("100/1", "30/1");
    let _exporter = stage.gst(&format!("videotestsrc is-live=true ! {film} ! framesharesink stream=s"));
    stage.peer("read --stream s --frames 1").finish_well();
    let pipeline = "framesharesrc stream=s latency=500000000 num-buffers=100 ! queue ! \
         fpsdisplaysink silent=false video-sink=fakevideosink text-overlay=false sync=true";
    let mut told = Vec::new();
    let shows_them = |told: &mut Vec<String>| {
        let outcome = stage.gst_verbose(pipeline).finish_well();
        assert!(!outcome.stderr.contains("CRITICAL"), "{}", outcome.stderr);
        let last = outcome
            .lines
            .iter()
            .rfind(|line| line.contains("rendered: "))
            .expect("the sink says what it did");
        let count = |word: &str| {
            let rest = last.split(word).nth(1).expect("the line names it");
            rest.split(',').next().and_then(|number| number.trim().parse::<u32>().ok()).expect("a number")
        };
        told.push(last.clone());
        count("rendered: ") >= 70 && count("dropped: ") <= 5
    };
    assert!((0..ATTEMPTS).any(|_| shows_them(&mut told)), "{told:#?}");
}
