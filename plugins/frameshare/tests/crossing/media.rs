//! What is no raw video: sound, encoded video, bytes of any kind and size.

use super::*;

/// Runs a pipeline to its end and returns what its sink `end` got, in one piece.
fn collected(description: &str) -> Vec<Vec<u8>> {
    init();
    let pipeline = gst::parse::launch(description).unwrap().downcast::<gst::Pipeline>().unwrap();
    let reader = Reader::watch(pipeline);
    collect(&reader)
}

/// Where two streams differ, in short.
fn difference(expected: &[Vec<u8>], got: &[Vec<u8>]) -> String {
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

/// All buffers until the end of the stream.
fn collect(reader: &Reader) -> Vec<Vec<u8>> {
    let mut buffers = Vec::new();
    loop {
        match reader.next() {
            Arrival::Buffer(buffer, _) => buffers.push(bytes(&buffer)),
            Arrival::Event(event) if event.type_() == gst::EventType::Eos => return buffers,
            Arrival::Event(_) => {}
        }
    }
}

/// What a stream is at the end of `upstream`, and what of it comes out of a `framesharesrc ! downstream`.
fn both(upstream: &str, downstream: &str) -> (Vec<Vec<u8>>, Vec<Vec<u8>>, u64) {
    let end = "fakesink name=end sync=false enable-last-sample=false";
    let expected = collected(&format!("{upstream} ! {downstream} {end}"));
    let folder = tempfile::tempdir().unwrap();
    let exporter = gst::parse::launch(&format!(
        "{upstream} ! framesharesink name=sink sync=false wait-for-connection=true any-caps=true socket-path={}/s",
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
fn sound_crosses_sample_by_sample() {
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
fn encoded_video_crosses_byte_by_byte_in_all_its_forms() {
    if !has(&["x264enc", "h264parse", "avdec_h264"]) {
        return;
    }
    let encoder = "videotestsrc num-buffers=60 pattern=ball ! video/x-raw,width=160,height=120,framerate=30/1 ! \
                   x264enc threads=1 key-int-max=10 ! h264parse";
    for form in [
        "video/x-h264,stream-format=avc,alignment=au",
        "video/x-h264,stream-format=byte-stream,alignment=au",
        "video/x-h264,stream-format=byte-stream,alignment=nal",
    ] {
        let (expected, got, _) = both(&format!("{encoder} ! {form}"), "identity !");
        assert!(expected.len() >= 60 && expected == got, "{form}: {}", difference(&expected, &got));
    }
    // And decoded behind the source: codec_data has crossed.
    let (expected, got, _) =
        both(&format!("{encoder} ! video/x-h264,stream-format=avc,alignment=au"), "avdec_h264 !");
    assert!(expected.len() == 60 && expected == got);
}

/// A header in the caps, a header in the buffers, and sizes that change.
#[test]
fn compressed_sound_with_stream_headers_crosses() {
    if !has(&["vorbisenc", "vorbisdec"]) {
        return;
    }
    let encoder =
        "audiotestsrc num-buffers=80 ! audio/x-raw,rate=44100,channels=2 ! audioconvert ! vorbisenc";
    let (expected, got, _) = both(encoder, "vorbisdec !");
    assert!(expected.len() > 10 && expected == got);
}

#[test]
fn pictures_of_changing_size_cross() {
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

/// Buffers that grow and shrink, of one memory and of many; a bigger one than any before gets bigger slots.
#[test]
fn bytes_of_any_size_and_number_of_memories_cross() {
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
fn streams_without_caps_cross_where_anything_goes() {
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
fn opus_keeps_its_clipping() {
    if !has(&["opusenc", "opusdec", "audiotestsrc"]) {
        return;
    }
    let upstream = "audiotestsrc num-buffers=30 ! audio/x-raw,rate=48000,channels=1 ! opusenc";
    let (expected, got, _) = both(upstream, "opusdec !");
    let bytes = |all: &[Vec<u8>]| all.iter().map(Vec::len).sum::<usize>();
    assert_eq!((bytes(&expected), bytes(&got)), (61_440, 61_440));
    assert!(expected == got, "{}", difference(&expected, &got));
}
