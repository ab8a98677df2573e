// SPDX-License-Identifier: MIT OR Apache-2.0

//! `resend-last`: repetitions of the last frame.

use super::*;
use gstframeshare::FrameshareMeta;

fn repeating(path: &Path, properties: &str) -> Reader {
    Reader::watch(launch(&format!(
        "framesharesrc name=source socket-path={} policy=lossless resend-last=20000000 \
         connection-timeout=20000000000 {properties} ! fakesink name=end sync=false enable-last-sample=false",
        path.display()
    )))
}

fn numbers(buffer: &gst::BufferRef) -> (u64, u64, u64) {
    let meta = buffer.meta::<FrameshareMeta>().expect("the buffer has a meta");
    (meta.sequence(), meta.repeats(), meta.lost_before())
}

/// Returns the repetitions before the next frame, and that frame.
fn until_next(reader: &Reader, sequence: u64) -> (Vec<gst::Buffer>, gst::Buffer) {
    let mut repeats = Vec::new();
    loop {
        let buffer = reader.buffer();
        match numbers(&buffer) {
            (found, 0, _) => {
                assert_eq!(found, sequence);
                return (repeats, buffer);
            }
            _ => repeats.push(buffer),
        }
    }
}

#[test]
fn last_frame_is_repeated_with_its_numbers_until_the_next() {
    for credit in [1, 2, 4] {
        let mut exporter = Exporter::new(GRAY);
        let reader = repeating(&exporter.path, &format!("max-held={credit}"));
        let mut held_here = 0;
        for sequence in 1..=3 {
            let mut buffer = gst::Buffer::from_slice([sequence as u8; GRAY_SIZE]);
            buffer.make_mut().set_pts(gst::ClockTime::from_mseconds(40) * sequence);
            exporter.push(buffer);
            let (repeats, frame) = until_next(&reader, sequence);
            // A repetition that this test had not taken yet when the frame arrived.
            held_here += u64::from(!repeats.is_empty());
            drop(repeats);
            assert_eq!(bytes(&frame), [sequence as u8; GRAY_SIZE]);
            let mut last = frame.pts();
            for repeats in 1..=3 {
                let buffer = reader.buffer();
                assert_eq!(numbers(&buffer), (sequence, repeats, 0), "credit {credit}");
                assert_eq!(bytes(&buffer), [sequence as u8; GRAY_SIZE]);
                assert!(buffer.pts() > last, "{:?} after {last:?}", buffer.pts());
                last = buffer.pts();
            }
        }
        // The repetitions hold one lease: frames go on in place.
        let stats = reader.pipeline.by_name("source").unwrap().property::<gst::Structure>("stats");
        assert!(stats.get::<u64>("copied-for-credit").unwrap() <= held_here, "credit {credit}: {stats}");
        assert_eq!(stats.get::<u32>("credit"), Ok(credit.max(2)));
        assert!(stats.get::<u64>("repeated").unwrap() >= 9);
    }
}

/// The exporter is killed, and its last frame is still pushed while the source waits for another.
#[test]
fn last_frame_is_repeated_while_the_exporter_is_missing() {
    let mut exporter = Exporter::new(GRAY);
    let reader = repeating(&exporter.path, "on-disconnect=wait");
    exporter.push_value(7);
    until_next(&reader, 1);
    let (path, folder) = (exporter.path.clone(), exporter._folder.take());
    drop(exporter);
    for _ in 0..10 {
        let buffer = reader.buffer();
        assert_eq!((bytes(&buffer), numbers(&buffer).0), (vec![7; GRAY_SIZE], 1));
    }
    let mut next = Exporter::at(&path, "");
    next.harness.set_src_caps(GRAY.parse().unwrap());
    next.push_value(8);
    let (_, frame) = until_next(&reader, 1);
    assert_eq!(bytes(&frame), [8; GRAY_SIZE]);
    drop(folder);
}

/// A repeated sound or unit would be wrong, and without the property nothing is repeated.
#[test]
fn other_media_are_not_repeated() {
    for (caps, properties, resend) in [
        ("audio/x-raw,format=S16LE,rate=48000,channels=2,layout=interleaved", "", 20_000_000_u64),
        ("video/x-h264,stream-format=byte-stream,alignment=au", "encoded=true", 20_000_000),
        (GRAY, "", 0),
    ] {
        let mut exporter = Exporter::with(caps, properties);
        let reader = repeating(&exporter.path, &format!("resend-last={resend}"));
        for sequence in 1..=3 {
            exporter.push_value(9);
            assert_eq!(numbers(&reader.buffer()), (sequence, 0, 0), "{caps}");
            std::thread::sleep(Duration::from_millis(60));
        }
    }
}
