// SPDX-License-Identifier: MIT OR Apache-2.0

//! `record` and `play`: frames cross a file byte for byte, with their times.

use crate::{TOOL, export, json, parse, run_tool};
use frameshare_tests::process::{TestRun, wait_until};
use serde_json::Value;
use std::{fs, path::Path};

/// An entry of a file, parsed by the table in docs/tool.md: kind, head, body, first byte.
pub struct Chunk {
    kind: u64,
    pub head: Value,
    pub body: Vec<u8>,
    at: usize,
}

const FRAME: u64 = 3;

fn chunks(file: &Path) -> Vec<Chunk> {
    let bytes = fs::read(file).unwrap();
    assert_eq!(bytes[..20], *b"frameshare-rec\r\n\x01\0\0\0");
    let (mut at, mut chunks) = (20, Vec::new());
    while at < bytes.len() {
        let number = |from: usize, length: usize| {
            bytes[at + from..at + from + length]
                .iter()
                .rev()
                .fold(0, |word: u64, byte| word << 8 | u64::from(*byte))
        };
        let (head, body) = (number(4, 4) as usize, number(8, 8) as usize);
        let start = at + 24;
        chunks.push(Chunk {
            kind: number(0, 4),
            head: serde_json::from_slice(&bytes[start..start + head]).unwrap(),
            body: bytes[start + head..start + head + body].to_vec(),
            at,
        });
        at = start + head + body;
    }
    chunks
}

pub fn frames(file: &Path) -> Vec<Chunk> {
    chunks(file).into_iter().filter(|chunk| chunk.kind == FRAME).collect()
}

fn number(chunk: &Chunk, field: &str) -> i128 {
    chunk.head[field].as_i64().unwrap_or_else(|| panic!("{field}: {}", chunk.head)).into()
}

/// The reader of the played stream verifies the content of the exporter's frames.
#[test]
fn recorded_frames_are_played_byte_for_byte() {
    let run = TestRun::new();
    let options = "--frames 150 --fps 200 --size 70001 --event-bytes 100";
    let mut exporter = run.peer(&format!("export --socket {} {options}", run.socket("s")));
    exporter.wait_for("open");
    let report = json(&run, "record s first.rec --lossless");
    assert_eq!(report["frames"], 150);
    assert_eq!((&report["lost"], &report["bytes"]), (&0.into(), &(150 * 70001).into()));
    exporter.expect_success();

    let reading = format!("read --socket {} --policy lossless --verify yes --quiet yes", run.socket("t"));
    let reader = run.peer(&reading);
    let player = run.command(&format!("{TOOL} play first.rec t --readers 2 --json"));
    wait_until("the stream", || run_tool(&run, "info t").status == 0);
    let second = run.command(&format!("{TOOL} record t second.rec --lossless"));
    let played = parse("play", &player.expect_success().lines[0]);
    assert_eq!((&played["frames"], &played["bytes"]), (&150.into(), &(150 * 70001).into()));
    let summary = reader.finish().summary();
    assert_eq!((&summary["frames"], &summary["lost"]), (&150.into(), &0.into()), "{summary}");
    second.expect_success();

    // Without the format and the events before the first frame, which a joining reader gets anew.
    let (first, second) = (frames(&run.path("first.rec")), frames(&run.path("second.rec")));
    assert_eq!((first.len(), second.len()), (150, 150));
    for (one, other) in first.iter().zip(&second) {
        assert!(one.body == other.body, "frame {} differs", one.head["sequence"]);
        for field in ["sequence", "flags", "duration", "planes", "metadata", "pts", "media_offset"] {
            assert_eq!(one.head[field], other.head[field], "{field}");
        }
    }
    let kinds = |file: &str| chunks(&run.path(file)).iter().map(|chunk| chunk.kind).collect::<Vec<_>>();
    assert_eq!(kinds("first.rec"), kinds("second.rec"));
    assert_eq!(kinds("first.rec")[..1], [1]);
    assert_eq!(kinds("first.rec").last(), Some(&5));
    assert!(kinds("first.rec").iter().filter(|kind| **kind == 2).count() >= 149);
}

/// Caps, segment and times of the elements cross, too.
#[test]
fn recording_of_pipeline_is_played_to_pipeline() {
    let run = TestRun::new();
    let video = "videotestsrc num-buffers=40 pattern=ball ! video/x-raw,format=NV12,width=320,height=50";
    run.gst(&format!("-q {video} ! filesink location=made")).expect_success();
    let sink = run.gst(&format!("-q {video} ! framesharesink stream=s wait-for-connection=true sync=false"));
    wait_until("the stream", || run_tool(&run, "info s").status == 0);
    assert_eq!(json(&run, "record s clip.rec --lossless")["frames"], 40);
    sink.expect_success();
    let source = run.gst("-q framesharesrc stream=t policy=lossless ! filesink location=read");
    let player = run.command(&format!("{TOOL} play clip.rec t --readers 2"));
    wait_until("the stream", || run_tool(&run, "info t").status == 0);
    let again = run.command(&format!("{TOOL} record t again.rec --lossless"));
    source.expect_success();
    player.expect_success();
    again.expect_success();
    let (made, read) = (run.read("made"), run.read("read"));
    assert!(made == read, "the bytes differ: {} for {}", read.len(), made.len());
    let (first, second) = (frames(&run.path("clip.rec")), frames(&run.path("again.rec")));
    assert_eq!((first.len(), second.len()), (40, 40));
    let shift = number(&second[0], "pts") - number(&first[0], "pts");
    for (one, other) in first.iter().zip(&second) {
        assert!(one.body == other.body, "frame {} differs", one.head["sequence"]);
        assert_eq!(number(other, "pts") - number(one, "pts"), shift);
        // Never early.
        assert!(number(other, "published") - number(one, "published") >= shift);
    }
}

#[test]
fn truncated_recording_is_played_up_to_last_complete_frame() {
    let run = TestRun::new();
    let _exporter = export(&run, "--fps 200");
    assert_eq!(json(&run, "record s whole.rec -n 20 --lossless")["frames"], 20);
    let all = frames(&run.path("whole.rec"));
    let bytes = run.read("whole.rec");
    fs::write(run.path("cut.rec"), &bytes[..all[12].at + 1000]).unwrap();
    let socket = run.socket("t");
    let mut reader = run.peer(&format!("read --socket {socket} --policy lossless --verify yes --quiet yes"));
    let player = run.command(&format!("{TOOL} play cut.rec t --fast --readers 1"));
    reader.wait_for("connected");
    let error = player.expect_failure();
    assert!(error.contains("cannot play cut.rec: it ends within the entry at byte"), "{error}");
    assert!(error.contains("behind 12 complete frames: its recorder was killed"), "{error}");
    assert_eq!(reader.finish().summary()["frames"], 12);

    // A recorder that is killed leaves such a file, one that is interrupted a complete one.
    let mut killed = run.command(&format!("{TOOL} record s killed.rec"));
    run.wait_for_bytes("killed.rec");
    killed.kill();
    let error = run_tool(&run, "play killed.rec t --fast");
    assert_eq!(error.status, 1);
    assert!(error.stderr.contains("complete frames"), "{}", error.stderr);
    let interrupted = run.command(&format!("{TOOL} record s interrupted.rec"));
    run.wait_for_bytes("interrupted.rec");
    interrupted.interrupt();
    assert_eq!(interrupted.expect_success().stderr, "");
    assert_eq!(run_tool(&run, "play interrupted.rec t --fast").status, 0);
}

/// The file is complete up to the exporter's death.
#[test]
fn recording_of_killed_exporter_is_complete_and_an_error() {
    let run = TestRun::new();
    let mut exporter = export(&run, "");
    let recorder = run.command(&format!("{TOOL} record s s.rec"));
    run.wait_for_bytes("s.rec");
    exporter.kill();
    let error = recorder.expect_failure();
    assert!(error.contains("crashed or killed"), "{error}");
    assert_eq!(run_tool(&run, "play s.rec t --fast").status, 0);
}

#[test]
fn recordings_that_cannot_be_written_or_read_are_errors() {
    let run = TestRun::new();
    let _exporter = export(&run, "");
    fs::write(run.path("old.rec"), "something else").unwrap();
    for (arguments, status, text) in [
        ("record s old.rec", 1, "old.rec exists: --force replaces it"),
        ("record s /nowhere/s.rec", 1, "cannot write /nowhere/s.rec: No such file"),
        ("record s /dev/full --force", 1, "cannot write /dev/full: No space left"),
        ("record none s.rec", 3, "`frameshare list` lists the streams"),
        ("play none.rec t", 1, "cannot play none.rec: No such file"),
        ("play . t", 1, "cannot play .: "),
        ("play old.rec t", 1, "it is no recording of frameshare"),
        ("play old.rec .t", 2, "give a name such as cam0"),
        ("record s", 2, "<FILE>"),
    ] {
        let ran = run_tool(&run, arguments);
        assert_eq!((ran.status, ran.stdout.as_str()), (status, ""), "{arguments}: {}", ran.stderr);
        assert!(ran.stderr.contains(text), "{arguments}: {}", ran.stderr);
    }
    assert_eq!(run.read("old.rec"), b"something else");
    assert_eq!(run_tool(&run, "record s old.rec --force -n 2").status, 0);
    assert_eq!(frames(&run.path("old.rec")).len(), 2);
    let text = run_tool(&run, "record s timed.rec -d 0.3").stdout;
    assert!(text.starts_with("timed.rec: ") && text.contains(" frames, "), "{text}");
    let busy = run_tool(&run, "play timed.rec s");
    assert_eq!(busy.status, 1);
    assert!(busy.stderr.contains("in use"), "{}", busy.stderr);
}

/// Times go on, and the first frame of a further round is a discontinuity.
#[test]
fn loop_plays_again_until_interrupted() {
    let run = TestRun::new();
    let exporter = export(&run, "--fps 200");
    assert_eq!(json(&run, "record s s.rec -n 5 --lossless")["frames"], 5);
    drop(exporter);
    let player = run.command(&format!("{TOOL} play s.rec t --loop --readers 1"));
    wait_until("the stream", || run_tool(&run, "info t").status == 0);
    assert_eq!(json(&run, "record t looped.rec -n 17 --lossless")["frames"], 17);
    player.interrupt();
    assert_eq!(player.expect_success().stderr, "");
    let formats = chunks(&run.path("looped.rec")).iter().filter(|chunk| chunk.kind == 1).count();
    assert_eq!(formats, 1, "a further round repeats the format");
    let (one, looped) = (frames(&run.path("s.rec")), frames(&run.path("looped.rec")));
    assert_eq!(looped[0].head["sequence"], 1);
    for (index, frame) in looped.iter().enumerate() {
        assert!(frame.body == one[index % 5].body, "frame {index} differs");
        let is_first = index > 0 && index % 5 == 0;
        assert_eq!(number(frame, "flags") & 4 != 0, is_first, "frame {index}");
        let is_later = |before: &Chunk| number(frame, "published") > number(before, "published");
        assert!(index == 0 || is_later(&looped[index - 1]), "frame {index}");
    }
}
