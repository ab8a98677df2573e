// SPDX-License-Identifier: MIT OR Apache-2.0

//! Media besides raw video: audio, encoded video, buffers of any content and size.

use super::*;

/// Runs a pipeline to its end and returns the buffers of its sink `end`.
pub(super) fn collected(description: &str) -> Vec<Vec<u8>> {
    init();
    let pipeline = gst::parse::launch(description).unwrap().downcast::<gst::Pipeline>().unwrap();
    let reader = Reader::watch(pipeline);
    collect(&reader)
}

/// Returns a short description of the difference of two streams.
pub(super) fn difference(expected: &[Vec<u8>], got: &[Vec<u8>]) -> String {
    let sizes = |all: &[Vec<u8>]| all.iter().map(Vec::len).take(12).collect::<Vec<_>>();
    let first = expected.iter().zip(got).position(|(one, other)| one != other);
    format!(
        "{} and {} buffers, {:?} and {:?}, first at {first:?}",
        expected.len(),
        got.len(),
        sizes(expected),
        sizes(got)
    )
}

/// Returns all buffers up to the end of the stream.
pub(super) fn collect(reader: &Reader) -> Vec<Vec<u8>> {
    let mut buffers = Vec::new();
    loop {
        match reader.next() {
            Arrival::Buffer(buffer, _) => buffers.push(bytes(&buffer)),
            Arrival::Event(event) if event.type_() == gst::EventType::Eos => return buffers,
            Arrival::Event(_) => {}
        }
    }
}

/// Returns the buffers of `upstream`, those received through `framesharesrc ! downstream`, and the
/// number of copies.
fn both(upstream: &str, downstream: &str) -> (Vec<Vec<u8>>, Vec<Vec<u8>>, u64) {
    let end = "fakesink name=end sync=false enable-last-sample=false";
    let expected = collected(&format!("{upstream} ! {downstream} {end}"));
    let folder = tempfile::tempdir().unwrap();
    let exporter = gst::parse::launch(&format!(
        "{upstream} ! framesharesink name=sink sync=false wait-for-connection=true any-caps=true \
         socket-path={}/s",
        folder.path().display()
    ));
    let exporter = exporter.unwrap().downcast::<gst::Pipeline>().unwrap();
    let reader = gst::parse::launch(&format!(
        "framesharesrc socket-path={}/s policy=lossless connection-timeout=20000000000 ! {downstream} {end}",
        folder.path().display()
    ));
    let reader = Reader::watch(reader.unwrap().downcast().unwrap());
    exporter.set_state(gst::State::Playing).unwrap();
    let got = collect(&reader);
    let stats = exporter.by_name("sink").unwrap().property::<gst::Structure>("stats");
    exporter.set_state(gst::State::Null).unwrap();
    (expected, got, stats.get("copies").unwrap())
}

pub(super) fn has(elements: &[&str]) -> bool {
    init();
    let missing = elements.iter().find(|name| gst::ElementFactory::find(name).is_none());
    if let Some(name) = missing {
        use std::io::Write;
        let _ = writeln!(
            std::io::stdout(),
            "SKIP {}: no {name} here",
            std::thread::current().name().unwrap_or("")
        );
    }
    missing.is_none()
}

#[test]
fn raw_audio_is_delivered_unchanged() {
    for caps in [
        "audio/x-raw,format=S16LE,rate=48000,channels=2",
        "audio/x-raw,format=F64LE,rate=8000,channels=1",
        "audio/x-raw,format=S24LE,rate=44100,channels=6,channel-mask=(bitmask)0x3f",
    ] {
        let upstream = format!("audiotestsrc freq=441 num-buffers=60 samplesperbuffer=999 ! {caps}");
        let (expected, got, _) = both(&upstream, "identity !");
        assert!(expected.len() == 60 && expected == got, "{caps}: {}", difference(&expected, &got));
    }
}

#[test]
fn encoded_video_is_delivered_unchanged_in_every_form() {
    if !has(&["x264enc", "h264parse", "avdec_h264"]) {
        return;
    }
    let encoder = "videotestsrc num-buffers=60 pattern=ball ! \
                   video/x-raw,width=160,height=120,framerate=30/1 ! x264enc threads=1 key-int-max=10 ! \
                   h264parse";
    for form in [
        "video/x-h264,stream-format=avc,alignment=au",
        "video/x-h264,stream-format=byte-stream,alignment=au",
        "video/x-h264,stream-format=byte-stream,alignment=nal",
    ] {
        let (expected, got, _) = both(&format!("{encoder} ! {form}"), "identity !");
        assert!(expected.len() >= 60 && expected == got, "{form}: {}", difference(&expected, &got));
    }
    // Decoding after the source also works: codec_data is preserved.
    let (expected, got, _) =
        both(&format!("{encoder} ! video/x-h264,stream-format=avc,alignment=au"), "avdec_h264 !");
    assert!(expected.len() == 60 && expected == got);
}

/// A header in the caps, a header in the buffers, and changing sizes.
#[test]
fn encoded_audio_keeps_its_stream_headers() {
    if !has(&["vorbisenc", "vorbisdec"]) {
        return;
    }
    let encoder =
        "audiotestsrc num-buffers=80 ! audio/x-raw,rate=44100,channels=2 ! audioconvert ! vorbisenc";
    let (expected, got, _) = both(encoder, "vorbisdec !");
    assert!(expected.len() > 10 && expected == got);
}

#[test]
fn images_of_changing_size_are_delivered() {
    if !has(&["jpegenc"]) {
        return;
    }
    let (expected, got, copies) = both(
        "videotestsrc num-buffers=30 pattern=snow ! video/x-raw,width=64,height=48 ! pngenc",
        "identity !",
    );
    assert_eq!(expected.len(), got.len());
    assert_eq!(copies, 30);
}

/// Buffers of changing size, with one memory and with many; a buffer larger than all before gets
/// larger slots.
#[test]
fn buffers_of_any_size_and_memory_count_are_delivered() {
    let mut exporter = Exporter::with("application/x-thing", "any-caps=true");
    let reader = Reader::new(&exporter.path);
    let sizes = [10, 4097, 0, 1, 70_000, 4096, 3_000_001, 5, 3_000_000, 9_000_000, 12];
    for (seed, size) in sizes.into_iter().enumerate() {
        for parts in [1, 3, 20] {
            let content = noise(seed as u64, size);
            let mut buffer = gst::Buffer::new();
            for part in content.chunks(size.div_ceil(parts).max(1)) {
                buffer.get_mut().unwrap().append_memory(gst::Memory::from_slice(part.to_vec()));
            }
            exporter.push(buffer);
            let (buffer, caps, _) = reader.next_buffer();
            assert!(bytes(&buffer) == content, "{size} bytes in {parts} parts");
            assert_eq!(caps.unwrap().to_string(), "application/x-thing");
        }
    }
}

#[test]
fn stream_without_caps_is_delivered_with_any_caps() {
    init();
    let folder = tempfile::tempdir().unwrap();
    let content = noise(9, 100_000);
    std::fs::write(folder.path().join("file"), &content).unwrap();
    let upstream = format!("filesrc location={}/file blocksize=3000", folder.path().display());
    let (expected, got, _) = both(&upstream, "identity !");
    assert!(expected.concat() == content && got.concat() == content, "{} bytes", got.concat().len());
}

#[test]
fn non_interleaved_audio_arrives_usable() {
    if !has(&["audioconvert", "audiotestsrc"]) {
        return;
    }
    for channels in [1, 2, 6] {
        let upstream = format!(
            "audiotestsrc num-buffers=20 ! audioconvert ! \
             audio/x-raw,format=F32LE,rate=48000,channels={channels},layout=non-interleaved"
        );
        let downstream = "audioconvert ! audio/x-raw,layout=interleaved !";
        let (expected, got, _) = both(&upstream, downstream);
        assert!(expected == got, "{channels} channels: {}", difference(&expected, &got));
    }
}

#[test]
fn opus_keeps_its_clipping_meta() {
    if !has(&["opusenc", "opusdec", "audiotestsrc"]) {
        return;
    }
    let upstream = "audiotestsrc num-buffers=30 ! audio/x-raw,rate=48000,channels=1 ! opusenc";
    let (expected, got, _) = both(upstream, "opusdec !");
    let bytes = |all: &[Vec<u8>]| all.iter().map(Vec::len).sum::<usize>();
    assert_eq!((bytes(&expected), bytes(&got)), (61_440, 61_440));
    assert!(expected == got, "{}", difference(&expected, &got));
}
