// SPDX-License-Identifier: MIT OR Apache-2.0

//! Seek in the exporter's pipeline, with real elements and a recording reader.

use super::*;

const FRAMES: usize = 50;

/// Returns a pipeline that shares a file of raw frames at its own rate; each frame is filled with
/// its number.
fn clip(folder: &Path) -> gst::Pipeline {
    let clip = (0..FRAMES).flat_map(|number| [number as u8; GRAY_SIZE]).collect::<Vec<_>>();
    std::fs::write(folder.join("clip.raw"), clip).unwrap();
    let pipeline = gst::parse::launch(&format!(
        "filesrc location={0}/clip.raw ! rawvideoparse format=gray8 width=16 height=8 framerate=25/1 ! \
         framesharesink name=sink socket-path={0}/s wait-for-connection=true",
        folder.display()
    ));
    pipeline.unwrap().downcast().unwrap()
}

#[test]
fn seek_is_a_discontinuity_and_recording_continues() {
    init();
    if gst::ElementFactory::find("rawvideoparse").is_none() {
        use std::io::Write;
        let _ = writeln!(std::io::stdout(), "SKIP seek_is_a_discontinuity: no rawvideoparse here");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let exporter = clip(folder.path());
    let reader = gst::parse::launch(&format!(
        "framesharesrc socket-path={0}/s policy=lossless connection-timeout=20000000000 ! tee name=t \
         t. ! queue ! filesink location={0}/record async=false sync=false \
         t. ! queue ! fakesink name=end async=false sync=false enable-last-sample=false",
        folder.path().display()
    ));
    let reader = Reader::watch(reader.unwrap().downcast().unwrap());
    exporter.set_state(gst::State::Playing).unwrap();

    let mut frames = Vec::new();
    let take = |reader: &Reader| {
        let (buffer, _, events) = reader.next_buffer();
        let flush = |event: &gst::Event| {
            matches!(event.type_(), gst::EventType::FlushStart | gst::EventType::FlushStop)
        };
        assert!(!events.iter().any(flush), "{events:?}");
        (bytes(&buffer)[0], buffer.flags().contains(gst::BufferFlags::DISCONT), buffer.pts().unwrap())
    };
    for _ in 0..8 {
        frames.push(take(&reader));
    }
    let there = gst::ClockTime::from_mseconds(40 * 30);
    exporter.seek_simple(gst::SeekFlags::FLUSH | gst::SeekFlags::ACCURATE, there).unwrap();
    while frames.last().is_none_or(|(number, ..)| *number != FRAMES as u8 - 1) {
        frames.push(take(&reader));
    }
    reader.next_event(gst::EventType::Eos);
    let recorded = || reader.pipeline.bus().unwrap().pop_filtered(&[gst::MessageType::Eos]).is_some();
    let begin = Instant::now();
    while !recorded() {
        assert!(begin.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(1));
    }
    exporter.set_state(gst::State::Null).unwrap();

    let jumps = frames.windows(2).filter(|pair| pair[1].0 != pair[0].0 + 1).collect::<Vec<_>>();
    let [jump] = jumps[..] else { panic!("expected one jump: {frames:?}") };
    assert_eq!(jump[1].0, 30, "frames continue at the seek position");
    for pair in frames.windows(2) {
        assert_eq!(pair[1].1, pair[1].0 == 30, "expected a discontinuity at the jump only: {frames:?}");
        // In running time no frame goes backward; after the jump, the frame interval is unchanged.
        let step = pair[1].2.checked_sub(pair[0].2).expect("timestamps increase");
        if pair[1].0 != 30 {
            let off = step.absdiff(gst::ClockTime::from_mseconds(40));
            assert!(off < gst::ClockTime::from_mseconds(5), "{step}");
        }
    }
    // The file has all frames, including those before the seek.
    let record = std::fs::read(folder.path().join("record")).unwrap();
    let expected = frames.iter().flat_map(|(number, ..)| [*number; GRAY_SIZE]).collect::<Vec<_>>();
    assert!(record == expected, "{} bytes instead of {}", record.len(), expected.len());
}
