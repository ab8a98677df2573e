// SPDX-License-Identifier: MIT OR Apache-2.0

//! Both elements in processes of their own, as users start them.
//!
//! Received frames are compared with the exporter's frame by frame. The image changes everywhere
//! from frame to frame, and the same pipeline without the elements gives the expected checksums.

mod devices;
mod events;
mod killed;
mod messages;
mod refused;
mod unixfd;
mod uris;

/// A moving zone plate: every pixel changes from frame to frame.
const PICTURE: &str = "pattern=zone-plate kx2=20 ky2=20 kt=7 kxt=3";
const NV12: &str = "video/x-raw,format=NV12,width=320,height=240,framerate=100/1";
const NV12_SIZE: usize = 320 * 240 * 3 / 2;

/// Checksums of the frames of `videotestsrc`.
fn expected(run: &TestRun, frames: usize) -> Vec<String> {
    run.gst(&format!(
        "videotestsrc num-buffers={frames} {PICTURE} ! {NV12} ! filesink location=expected.raw"
    ))
    .expect_success();
    let sums = checksums(&run.read("expected.raw"), NV12_SIZE);
    assert_eq!(sums.len(), frames);
    assert!(sums.windows(2).all(|pair| pair[0] != pair[1]), "two successive frames are equal");
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
    let run = TestRun::new();
    let expected = expected(&run, 200);
    let exporter = run.gst(&format!(
        "videotestsrc num-buffers=200 {PICTURE} ! {NV12} ! \
         framesharesink stream=s wait-for-connection=true sync=false"
    ));
    let reader = run.gst(
        "framesharesrc stream=s connection-timeout=60000000000 policy=lossless ! filesink location=read.raw",
    );
    reader.expect_success();
    exporter.expect_success();
    assert!(checksums(&run.read("read.raw"), NV12_SIZE) == expected);
}

#[test]
fn concurrent_readers_of_all_kinds_receive_same_frames() {
    let run = TestRun::new();
    let expected = expected(&run, 200);
    let readers = [
        run.peer("read --stream s --policy lossless --sum yes"),
        run.peer("read --stream s --policy latest --sum yes"),
        run.peer("read --stream s --policy latest --sum yes --sleep-ms 60 --max-held 2"),
    ];
    let file = run.gst(
        "framesharesrc stream=s connection-timeout=60000000000 policy=lossless ! filesink location=read.raw",
    );
    let exporter = run.gst(&format!(
        "videotestsrc num-buffers=200 is-live=true {PICTURE} ! {NV12} ! framesharesink stream=s"
    ));
    exporter.expect_success();
    file.expect_success();
    let outcomes = readers.map(|reader| reader.expect_success());
    for outcome in &outcomes {
        let received = check_frames(outcome, &expected);
        assert_eq!(outcome.summary()["end"], "eos");
        assert!(received > 10, "{received} frames received");
    }
    let [lossless, _, slow] = &outcomes;
    assert_eq!(lossless.summary()["lost"], 0);
    assert!(slow.summary()["lost"].as_u64() > Some(50), "a reader of 16 frames/s loses some of 100/s");
    // Frames before the element joined are missing, and none after that.
    let read = checksums(&run.read("read.raw"), NV12_SIZE);
    assert!(!read.is_empty() && expected.ends_with(&read));
}

/// The negative control, without the source's copies, is in the source's own tests, which can turn
/// them off.
#[test]
fn encoder_holding_fifty_frames_does_not_stop_stream() {
    let run = TestRun::new();
    let exporter = run.gst(&format!(
        "videotestsrc num-buffers=150 {PICTURE} ! {NV12} ! \
         framesharesink stream=s wait-for-connection=true sync=false"
    ));
    // x264enc accepts NV12 directly, so it keeps the shared frames themselves.
    let reader = run.gst(
        "framesharesrc stream=s connection-timeout=60000000000 policy=lossless max-held=4 ! x264enc ! \
         video/x-h264,stream-format=byte-stream,alignment=au ! multifilesink location=frame%03d",
    );
    reader.expect_success();
    exporter.expect_success();
    assert!(run.path("frame149").exists() && !run.path("frame150").exists());
}

#[test]
fn new_caps_reach_reader_before_their_frames() {
    let run = TestRun::new();
    let part = |width: u32, format: &str| {
        format!(
            "videotestsrc num-buffers=30 {PICTURE} ! \
             video/x-raw,format={format},width={width},height=240,framerate=100/1 ! c."
        )
    };
    let parts = [part(320, "NV12"), part(640, "NV12"), part(160, "RGBA")].join(" ");
    let exporter = run
        .gst(&format!("concat name=c ! framesharesink stream=s wait-for-connection=true sync=false {parts}"));
    let peer = run.peer("read --stream s --policy lossless");
    let outcome = peer.expect_success();
    exporter.expect_success();
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
    let run = TestRun::new();
    let part = |width: u32| {
        format!(
            "videotestsrc num-buffers=30 ! video/x-raw,format=NV12,width={width},height=240,framerate=100/1 ! c."
        )
    };
    let parts = [part(320), part(640)].join(" ");
    let exporter = run
        .gst(&format!("concat name=c ! framesharesink stream=s wait-for-connection=true sync=false {parts}"));
    let reader = run.gst(
        "framesharesrc stream=s connection-timeout=60000000000 policy=lossless ! filesink location=read.raw",
    );
    reader.expect_success();
    exporter.expect_success();
    assert_eq!(run.read("read.raw").len(), 30 * (320 + 640) * 240 * 3 / 2);
}

#[test]
fn decoded_clip_is_received_unchanged() {
    let run = TestRun::new();
    // A size for which the decoder pads its frames.
    run
        .gst(&format!(
            "videotestsrc num-buffers=60 {PICTURE} ! video/x-raw,format=I420,width=338,height=190,framerate=100/1 ! \
             x264enc ! h264parse ! qtmux ! filesink location=video.mp4"
        ))
        .expect_success();
    let clip = "filesrc location=video.mp4 ! qtdemux ! h264parse ! avdec_h264";
    // videoconvert before each file gives both the same layout.
    let to_file = "videoconvert ! video/x-raw,format=RGB ! filesink location";
    run.gst(&format!("{clip} ! {to_file}=expected.raw")).expect_success();
    let exporter = run.gst(&format!("{clip} ! framesharesink stream=s wait-for-connection=true sync=false"));
    run.gst(&format!(
        "framesharesrc stream=s connection-timeout=60000000000 policy=lossless ! {to_file}=read.raw"
    ))
    .expect_success();
    exporter.expect_success();
    let expected = run.read("expected.raw");
    assert!(!expected.is_empty() && run.read("read.raw") == expected);
}

#[test]
fn late_reader_starts_with_newest_frame() {
    let run = TestRun::new();
    let _exporter =
        run.gst(&format!("videotestsrc is-live=true {PICTURE} ! {NV12} ! framesharesink stream=s"));
    run.peer("read --stream s --frames 50").expect_success();
    let late = run.peer("read --stream s --policy lossless --frames 5").expect_success();
    let frames = late.events("frame");
    assert!(frames[0]["sequence"].as_u64() > Some(50));
    assert_eq!(late.summary()["lost"], 0);
}

/// A video sink drops frames more than 5 ms late; fpsdisplaysink counts rendered and dropped
/// frames. On a busy machine some frames may be late. With wrong timestamps all frames are.
#[test]
fn synchronized_sink_renders_frames() {
    const ATTEMPTS: usize = 8;
    let run = TestRun::new();
    let clip = NV12.replace("100/1", "30/1");
    let _exporter = run.gst(&format!("videotestsrc is-live=true ! {clip} ! framesharesink stream=s"));
    run.peer("read --stream s --frames 1").expect_success();
    let pipeline = "framesharesrc stream=s latency=500000000 num-buffers=100 ! queue ! \
         fpsdisplaysink silent=false video-sink=fakevideosink text-overlay=false sync=true";
    let mut results = Vec::new();
    let renders = |results: &mut Vec<String>| {
        let outcome = run.gst_verbose(pipeline).expect_success();
        assert!(!outcome.stderr.contains("CRITICAL"), "{}", outcome.stderr);
        let last =
            outcome.lines.iter().rfind(|line| line.contains("rendered: ")).expect("the sink reports counts");
        let count = |word: &str| {
            let rest = last.split(word).nth(1).expect("the line names it");
            rest.split(',').next().and_then(|number| number.trim().parse::<u32>().ok()).expect("a number")
        };
        results.push(last.clone());
        count("rendered: ") >= 70 && count("dropped: ") <= 5
    };
    assert!((0..ATTEMPTS).any(|_| renders(&mut results)), "{results:#?}");
}

use frameshare_tests::{
    content::checksums,
    process::{Outcome, TestRun},
};
