// SPDX-License-Identifier: MIT OR Apache-2.0

use super::*;
use frameshare::Video;
use std::io::{self, Read};

fn frame(sequence: u64) -> RecordedFrame {
    RecordedFrame {
        sequence,
        published: u64::MAX - sequence,
        pts: Some(1 << 60),
        duration: Some(33_333_333),
        media_offset: Some(sequence),
        flags: 1 << 63 | 4,
        lost: sequence - 1,
        planes: vec![Plane { offset: 1 << 40, stride: -512 }, Plane { offset: 3, stride: 7 }],
        metadata: vec![1, 2, 3],
        bytes: (0..=255).cycle().take(1000 + sequence as usize).collect(),
        ..RecordedFrame::default()
    }
}

fn entries() -> Vec<Entry> {
    let video = Video { format: "NV12".into(), width: 64, height: 48 };
    vec![
        Entry::Event(Event { kind: 0, sticky: true, payload: vec![9; 70_000] }),
        Entry::Format(Format { caps: "video/x-raw, format=NV12".into(), video: Some(video) }),
        Entry::Frame(frame(1)),
        Entry::Event(Event { kind: 7, sticky: false, payload: Vec::new() }),
        Entry::Format(Format { caps: "x/\u{1b}\"".into(), video: None }),
        Entry::Frame(RecordedFrame::default()),
        Entry::Frame(frame(2)),
        Entry::EndOfStream,
    ]
}

fn recorded() -> Vec<u8> {
    let mut recorder = Recorder::new(Vec::new()).unwrap();
    for entry in entries() {
        match entry {
            Entry::Format(format) => recorder.format(&format).unwrap(),
            Entry::Event(event) => recorder.event(&event).unwrap(),
            Entry::Frame(frame) => recorder.frame(&frame).unwrap(),
            Entry::EndOfStream => recorder.end_of_stream().unwrap(),
        }
    }
    assert_eq!((recorder.frames, recorder.bytes, recorder.lost), (3, 1001 + 1002, 1));
    recorder.finish().unwrap()
}

/// Returns the entries up to the end or the damage.
fn read(file: &[u8]) -> (Vec<Entry>, Option<Damage>) {
    let mut entries = Vec::new();
    let mut recording = match Recording::new(file) {
        Ok(recording) => recording,
        Err(damage) => return (entries, Some(damage)),
    };
    loop {
        match recording.next() {
            Ok(Some(entry)) => entries.push(entry),
            Ok(None) => return (entries, None),
            Err(damage) => return (entries, Some(damage)),
        }
    }
}

#[test]
fn entries_are_read_as_recorded() {
    let (found, damage) = read(&recorded());
    assert_eq!(found, entries());
    assert!(damage.is_none(), "{damage:?}");
}

/// At every byte.
#[test]
fn truncated_file_gives_complete_entries_and_error() {
    let file = recorded();
    let all = entries();
    for length in 0..file.len() {
        let (found, damage) = read(&file[..length]);
        assert_eq!(found, all[..found.len()], "{length}");
        let frames = found.iter().filter(|entry| matches!(entry, Entry::Frame(_))).count() as u64;
        match damage {
            Some(Damage::NoRecording) => assert!(length < MAGIC.len() + 4),
            Some(Damage::Truncated { at, frames: found }) => {
                assert!(at <= length as u64 && found == frames, "{length}");
            }
            other => panic!("{length}: {other:?}"),
        }
    }
}

#[test]
fn changed_bytes_are_found() {
    let file = recorded();
    let all = entries();
    for at in 0..file.len() {
        let mut changed = file.clone();
        changed[at] ^= 0x10;
        let (found, damage) = read(&changed);
        assert_eq!(found, all[..found.len()], "{at}");
        assert!(damage.is_some(), "{at}");
    }
}

#[test]
fn other_files_and_versions_are_refused() {
    assert!(matches!(read(b"").1, Some(Damage::NoRecording)));
    assert!(matches!(read(&[0; 100]).1, Some(Damage::NoRecording)));
    let mut newer = recorded();
    newer[MAGIC.len()] = 2;
    assert!(matches!(read(&newer).1, Some(Damage::Version { found: 2 })));
    let mut lengths = recorded();
    lengths[MAGIC.len() + 4 + 8..][..8].copy_from_slice(&u64::MAX.to_le_bytes());
    assert!(read(&lengths).1.is_some());
}

/// Its checksums are right, and it is not read before its length is known to be possible.
#[test]
fn endless_body_is_refused_before_it_is_read() {
    let body = |length: u64| {
        let mut file = recorded();
        file.truncate(MAGIC.len() + 4);
        let mut fixed = [kind::EVENT.to_le_bytes(), 2_u32.to_le_bytes()].concat();
        fixed.extend(length.to_le_bytes());
        let sum = write::checksum(&[&fixed, b"{}"]);
        file.extend(fixed);
        file.extend(sum.to_le_bytes());
        file.extend([0; 4]);
        file.extend(b"{}");
        let endless = file.chain(io::repeat(0));
        Recording::new(endless).unwrap().next().unwrap_err().to_string()
    };
    for length in [MAX_BODY + 1, 40 << 30, u64::MAX] {
        assert!(body(length).contains("longer than 1 GiB"), "{length}");
    }
    assert!(body(5).contains("its checksum differs"));
}
