// SPDX-License-Identifier: MIT OR Apache-2.0

//! Encoded video: readers that join or lose frames between two key frames, with real codecs.

use super::{media::has, *};
use frameshare_tests::random::Random;
use gst_video::UpstreamForceKeyUnitEvent;

/// A short video with motion in every frame, and noise that hides no missing reference.
const VIDEO: &str =
    "videotestsrc pattern=ball motion=sweep ! video/x-raw,format=I420,width=96,height=64,framerate=30/1";

/// An encoded video: its caps, and its buffers in order.
struct Video {
    caps: String,
    buffers: Vec<gst::Buffer>,
}

impl Video {
    /// Encodes `frames` frames.
    fn encode(frames: usize, encoder: &str) -> Self {
        let source = VIDEO.replacen("videotestsrc", &format!("videotestsrc num-buffers={frames}"), 1);
        let end = "fakesink name=end sync=false enable-last-sample=false";
        let reader = Reader::watch(launch(&format!("{source} ! {encoder} ! {end}")));
        let (mut buffers, mut caps) = (Vec::new(), None);
        loop {
            match reader.next() {
                Arrival::Buffer(buffer, found) => {
                    buffers.push(buffer);
                    caps = caps.or(found);
                }
                Arrival::Event(event) if event.type_() == gst::EventType::Eos => break,
                Arrival::Event(_) => {}
            }
        }
        // Some parsers send tags before the segment.
        reader.order.lock().unwrap().violations.clear();
        assert_eq!(buffers.len(), frames, "{encoder}: one access unit a buffer");
        Self { caps: caps.unwrap().to_string(), buffers }
    }

    /// H.264 in access units, with a key frame every 90 frames.
    fn h264(frames: usize, options: &str) -> Self {
        Self::encode(
            frames,
            &format!(
                "x264enc threads=1 key-int-max=90 {options} ! video/x-h264,stream-format=avc,alignment=au"
            ),
        )
    }

    fn is_key(&self, index: usize) -> bool {
        !self.buffers[index].flags().contains(gst::BufferFlags::DELTA_UNIT)
    }

    /// Returns the last key frame up to a buffer.
    fn key_before(&self, index: usize) -> usize {
        (0..=index).rev().find(|index| self.is_key(*index)).unwrap()
    }

    /// Returns the frames that the buffers from `first` on decode to, by the decoder alone.
    fn decoded_from(&self, first: usize, decoder: &str) -> Vec<Vec<u8>> {
        let mut harness = gst_check::Harness::new_parse(decoder);
        harness.set_src_caps(self.caps.parse().unwrap());
        for buffer in &self.buffers[first..] {
            harness.push(buffer.clone()).unwrap();
        }
        harness.push_event(gst::event::Eos::new());
        let frames = std::iter::from_fn(|| harness.try_pull());
        frames.map(|frame| bytes(&frame)).collect()
    }

    fn exporter(&self, properties: &str) -> Exporter {
        Exporter::with(
            &self.caps,
            &format!("encoded=true wait-for-connection=false slow-readers=wait {properties}"),
        )
    }
}

/// Returns a reader that decodes.
fn decoding(exporter: &Exporter, properties: &str, decoder: &str) -> Reader {
    Reader::watch(launch(&format!(
        "framesharesrc socket-path={} connection-timeout=20000000000 {properties} ! {decoder} ! \
         fakesink name=end sync=false enable-last-sample=false",
        exporter.path.display()
    )))
}

/// Returns all buffers up to the end of the stream.
fn all_buffers(reader: &Reader) -> Vec<gst::Buffer> {
    let mut buffers = Vec::new();
    loop {
        match reader.next() {
            Arrival::Buffer(buffer, _) => buffers.push(buffer),
            Arrival::Event(event) if event.type_() == gst::EventType::Eos => return buffers,
            Arrival::Event(_) => {}
        }
    }
}

/// Lets `count` readers join at random moments of a stream, and compares what they decode.
fn readers_decode_from_their_first_buffer(video: &Video, decoder: &str, count: usize, seed: u64) {
    let mut random = Random::new(seed);
    let mut exporter = video.exporter("max-slots=256");
    let mut moments: Vec<usize> =
        (0..count).map(|_| 1 + random.below(video.buffers.len() as u64 - 2) as usize).collect();
    moments.sort_unstable();
    let mut readers = Vec::new();
    for (index, buffer) in video.buffers.iter().enumerate() {
        for moment in moments.extract_if(.., |moment| *moment == index) {
            readers.push((moment, decoding(&exporter, "policy=lossless", decoder)));
            exporter.wait_for_readers(readers.len() as u32);
        }
        exporter.push(buffer.clone());
    }
    exporter.event(gst::event::Eos::new());
    for (moment, reader) in readers {
        let key = video.key_before(moment - 1);
        let expected = video.decoded_from(key, decoder);
        let got: Vec<_> = all_buffers(&reader).iter().map(|frame| bytes(frame)).collect();
        // Some decoders send tags before the segment.
        reader.order.lock().unwrap().violations.clear();
        assert_eq!(expected.len(), video.buffers.len() - key, "the decoder outputs every frame");
        let same = expected.iter().zip(&got).take_while(|(one, other)| one == other).count();
        assert!(
            got == expected,
            "joined at {moment}, key frame {key}: {same} of {} and {} frames are the same",
            got.len(),
            expected.len()
        );
    }
}

#[test]
fn joining_readers_decode_h264_from_first_buffer() {
    if !has(&["x264enc", "avdec_h264"]) {
        return;
    }
    for (seed, options) in ["bframes=0 tune=zerolatency", "bframes=3 b-adapt=false"].into_iter().enumerate() {
        let video = Video::h264(300, options);
        assert!(
            video.is_key(0) && !video.is_key(1) && (0..300).filter(|index| video.is_key(*index)).count() < 10
        );
        readers_decode_from_their_first_buffer(&video, "avdec_h264", 25, 40 + seed as u64);
    }
}

#[test]
fn joining_readers_decode_other_codecs_from_first_buffer() {
    for (encoder, caps, decoder) in [
        (
            "x265enc key-int-max=40 speed-preset=ultrafast option-string=open-gop=0 ! h265parse",
            "video/x-h265,stream-format=hvc1,alignment=au",
            "avdec_h265 max-threads=1",
        ),
        ("vp8enc keyframe-max-dist=40 deadline=1 threads=1", "video/x-vp8", "vp8dec"),
        ("av1enc keyframe-max-dist=40 cpu-used=8 threads=1", "video/x-av1", "av1dec"),
    ] {
        let elements = [encoder, decoder].map(|element| element.split(' ').next().unwrap());
        if !has(&elements) {
            continue;
        }
        let video = Video::encode(100, &format!("{encoder} ! {caps}"));
        let keys = (0..100).filter(|index| video.is_key(*index)).count();
        assert!((2..20).contains(&keys), "{encoder}: {keys} key frames");
        readers_decode_from_their_first_buffer(&video, decoder, 8, 50);
    }
}

/// Frames between a key frame of an open GOP and the one before it in the output need both GOPs. A
/// reader that joins decodes every frame from the second key frame on.
#[test]
fn joining_reader_decodes_open_gops_from_second_key_frame() {
    if !has(&["x264enc", "avdec_h264"]) {
        return;
    }
    let decoder = "avdec_h264 max-threads=1";
    let video = Video::h264(300, "bframes=3 b-adapt=false option-string=open-gop=1");
    let pts = |index: usize| video.buffers[index].pts().unwrap();
    let keys: Vec<usize> = (0..300).filter(|index| video.is_key(*index)).collect();
    let leads = |key: &usize| (*key..300).any(|index| pts(index) < pts(*key));
    assert!(keys.len() > 3 && keys[1..].iter().any(leads), "the GOPs of {keys:?} are closed");
    let reference = video.decoded_from(0, decoder);
    let mut exporter = video.exporter("max-slots=256");
    let joins = [keys[1] + 10, keys[2] - 5];
    let mut readers = Vec::new();
    for (index, buffer) in video.buffers.iter().enumerate() {
        if joins.contains(&index) {
            readers.push(decoding(&exporter, "policy=lossless", decoder));
            exporter.wait_for_readers(readers.len() as u32);
        }
        exporter.push(buffer.clone());
    }
    exporter.event(gst::event::Eos::new());
    for reader in readers {
        let got: Vec<_> = all_buffers(&reader).iter().map(|frame| bytes(frame)).collect();
        reader.order.lock().unwrap().violations.clear();
        let clean = (0..300).filter(|index| pts(*index) >= pts(keys[2])).count();
        let [first, second] =
            [keys[1], keys[2]].map(|key| (0..300).filter(|at| pts(*at) >= pts(key)).count());
        assert!(got.len() > second && got.len() <= first + 3, "{} frames", got.len());
        assert!(got[got.len() - clean..] == reference[300 - clean..], "damaged behind the second key frame");
    }
}

/// Nothing is kept of a GOP beyond `max-gop-bytes`: the reader starts at the next key frame, which
/// upstream is asked for.
#[test]
fn joining_reader_of_gop_over_limit_starts_at_next_key_frame() {
    if !has(&["x264enc", "avdec_h264"]) {
        return;
    }
    let video = Video::h264(200, "bframes=0 tune=zerolatency");
    let join = video.key_before(150) - 5;
    let (kept, next) = (video.key_before(join), video.key_before(join + 5));
    assert!(kept + 10 < join && next == join + 5, "{kept} {join} {next}");
    for (limit, first) in [(32 << 20, kept), (1000, next)] {
        let mut exporter = video.exporter(&format!("max-gop-bytes={limit}"));
        video.buffers[..join].iter().for_each(|buffer| exporter.push(buffer.clone()));
        while exporter.harness.try_pull_upstream_event().is_some() {}
        let reader = decoding(&exporter, "policy=lossless", "avdec_h264");
        exporter.wait_for_readers(1);
        video.buffers[join..].iter().for_each(|buffer| exporter.push(buffer.clone()));
        exporter.event(gst::event::Eos::new());
        let got: Vec<_> = all_buffers(&reader).iter().map(|frame| bytes(frame)).collect();
        assert!(got == video.decoded_from(first, "avdec_h264"), "{limit}: {} frames", got.len());
        let events = std::iter::from_fn(|| exporter.harness.try_pull_upstream_event());
        let asked = events.filter(|event| UpstreamForceKeyUnitEvent::parse(event).is_ok()).count();
        assert_eq!(asked > 0, first == next, "{limit}: {asked} requests");
    }
}

/// A source that outlives its exporter gets no delta unit of the next one before a key frame.
#[test]
fn reconnected_reader_starts_at_key_frame_of_next_exporter() {
    if !has(&["x264enc", "avdec_h264"]) {
        return;
    }
    let video = Video::h264(200, "bframes=0 tune=zerolatency");
    let key = video.key_before(150);
    let decoder = "avdec_h264 max-threads=1";
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let start = || {
        let properties = "encoded=true wait-for-connection=false slow-readers=wait";
        let mut exporter = Exporter::at(&path, properties);
        exporter.harness.set_src_caps(video.caps.parse().unwrap());
        exporter
    };
    let mut exporter = start();
    let reader = decoding(&exporter, "policy=lossless on-disconnect=wait", decoder);
    exporter.wait_for_readers(1);
    let first = video.decoded_from(0, decoder);
    video.buffers[..20].iter().for_each(|buffer| exporter.push(buffer.clone()));
    let mut got: Vec<_> = (0..20).map(|_| bytes(&reader.buffer())).collect();
    assert!(got == first[..20], "the first exporter's frames");
    drop(exporter);
    let mut exporter = start();
    exporter.wait_for_readers(1);
    video.buffers[key - 5..].iter().for_each(|buffer| exporter.push(buffer.clone()));
    exporter.event(gst::event::Eos::new());
    got = all_buffers(&reader).iter().map(|frame| bytes(frame)).collect();
    assert!(got == video.decoded_from(key, decoder), "{} frames after the restart", got.len());
}

/// Parts of a frame in separate buffers: headers and slices belong to their key frame.
#[test]
fn joining_readers_decode_h264_in_parts_from_first_buffer() {
    if !has(&["x264enc", "h264parse", "avdec_h264"]) {
        return;
    }
    let video = Video::h264(120, "tune=zerolatency");
    let parser =
        "h264parse config-interval=-1 ! capsfilter caps=video/x-h264,stream-format=byte-stream,alignment=nal";
    let mut harness = gst_check::Harness::new_parse(parser);
    harness.set_src_caps(video.caps.parse().unwrap());
    video.buffers.iter().for_each(|buffer| assert!(harness.push(buffer.clone()).is_ok()));
    harness.push_event(gst::event::Eos::new());
    let parts: Vec<gst::Buffer> = std::iter::from_fn(|| harness.try_pull()).collect();
    let caps = "video/x-h264,stream-format=byte-stream,alignment=nal,width=96,height=64,framerate=30/1";
    assert!(parts.len() > 120, "{} parts", parts.len());
    let decoder = "h264parse ! avdec_h264";
    let mut exporter = Exporter::with(caps, "encoded=true wait-for-connection=false slow-readers=wait");
    let joins = [100, parts.len() - 10];
    let mut readers = Vec::new();
    for (index, part) in parts.iter().enumerate() {
        if joins.contains(&index) {
            readers.push(decoding(&exporter, "policy=lossless", decoder));
            exporter.wait_for_readers(readers.len() as u32);
        }
        exporter.push(part.clone());
    }
    exporter.event(gst::event::Eos::new());
    let keys: Vec<usize> = (0..120).filter(|index| video.is_key(*index)).collect();
    for reader in readers {
        let got: Vec<_> = all_buffers(&reader).iter().map(|frame| bytes(frame)).collect();
        let expected = keys.iter().map(|key| video.decoded_from(*key, "avdec_h264"));
        assert!(expected.into_iter().any(|expected| expected == got), "{} frames", got.len());
    }
}

#[test]
fn joining_reader_gets_last_mjpeg_frame() {
    if !has(&["jpegenc"]) {
        return;
    }
    let video = Video::encode(30, "jpegenc");
    assert!((0..30).all(|index| video.is_key(index)));
    let mut exporter = video.exporter("");
    video.buffers[..20].iter().for_each(|buffer| exporter.push(buffer.clone()));
    let reader = Reader::new(&exporter.path);
    exporter.wait_for_readers(1);
    video.buffers[20..].iter().for_each(|buffer| exporter.push(buffer.clone()));
    exporter.event(gst::event::Eos::new());
    let got: Vec<_> = all_buffers(&reader).iter().map(|frame| bytes(frame)).collect();
    let expected: Vec<_> = video.buffers[19..].iter().map(|frame| bytes(frame)).collect();
    assert!(got == expected, "{} frames", got.len());
}

#[test]
fn latest_reader_decodes_clean_frames_after_loss() {
    if !has(&["x264enc", "avdec_h264"]) {
        return;
    }
    let decoder = "avdec_h264 max-threads=1";
    let video = Video::h264(200, "bframes=0 tune=zerolatency");
    let reference = video.decoded_from(0, decoder);
    let mut exporter = video.exporter("");
    let reader = decoding(&exporter, "policy=latest max-queued=2 max-held=16", decoder);
    exporter.wait_for_readers(1);
    let gate = Arc::new(Mutex::new(()));
    let closed = gate.clone();
    let end = reader.pipeline.by_name("end").unwrap().static_pad("sink").unwrap();
    end.add_probe(gst::PadProbeType::BUFFER, move |_, _| {
        drop(closed.lock().unwrap());
        gst::PadProbeReturn::Ok
    });
    let queued = |exporter: &Exporter| {
        let stats = exporter.harness.element().unwrap().property::<gst::Structure>("stats");
        let readers = stats.get::<gst::Array>("readers").unwrap();
        readers[0].get::<gst::Structure>().unwrap().get::<u32>("queued").unwrap()
    };
    let mut standstill = None;
    for (index, buffer) in video.buffers.iter().enumerate() {
        // The reader stands still for ten frames in the middle of a GOP, and keeps up with others.
        match index {
            30 => standstill = Some(gate.lock().unwrap()),
            40 => standstill = None,
            _ => {}
        }
        exporter.push(buffer.clone());
        if standstill.is_none() {
            wait_until("the reader has taken all frames", || queued(&exporter) == 0);
        }
    }
    exporter.event(gst::event::Eos::new());
    let got: Vec<_> = all_buffers(&reader).iter().map(|frame| bytes(frame)).collect();
    let mut at = 0;
    let mut resumed = Vec::new();
    for frame in &got {
        let found = reference[at..].iter().position(|expected| expected == frame);
        let skipped = found.unwrap_or_else(|| panic!("a damaged frame after frame {at}"));
        if skipped > 0 {
            resumed.push(at + skipped);
        }
        at += skipped + 1;
    }
    assert_eq!(at, 200);
    let key = (40..200).find(|index| video.is_key(*index)).unwrap();
    assert_eq!(resumed, [key], "it resumed at the next key frame, {} frames in all", got.len());
}

#[test]
fn requests_for_key_units_reach_upstream() {
    let mut exporter =
        Exporter::with("video/x-h264", "encoded=true wait-for-connection=false max-gop-bytes=0");
    let is_request = |event: &gst::Event| UpstreamForceKeyUnitEvent::parse(event).is_ok();
    let requests = |exporter: &mut Exporter| {
        let begin = Instant::now();
        while begin.elapsed() < PATIENCE {
            while let Some(event) = exporter.harness.try_pull_upstream_event() {
                if is_request(&event) {
                    return true;
                }
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        false
    };
    let buffer = |flags| {
        let mut buffer = gst::Buffer::from_slice([1; 100]);
        buffer.get_mut().unwrap().set_flags(flags);
        buffer
    };
    exporter.push(buffer(gst::BufferFlags::DELTA_UNIT));
    let reader = Reader::new(&exporter.path);
    assert!(requests(&mut exporter), "the reader joined between two key units");
    std::thread::sleep(Duration::from_millis(1100));
    exporter.push(buffer(gst::BufferFlags::empty()));
    reader.buffer();
    let event = UpstreamForceKeyUnitEvent::builder().build();
    assert!(reader.pipeline.by_name("end").unwrap().static_pad("sink").unwrap().push_event(event));
    assert!(requests(&mut exporter), "downstream of the reader asked");
}

/// Applications of readers do not control the exporter's pipeline, and late ones skip their own
/// frames only.
#[test]
fn other_upstream_events_stay_in_the_reader() {
    let mut exporter = Exporter::with("video/x-h264", "encoded=true wait-for-connection=false");
    exporter.push(gst::Buffer::from_slice([1; 100]));
    let reader = Reader::new(&exporter.path);
    reader.buffer();
    while exporter.harness.try_pull_upstream_event().is_some() {}
    let pad = reader.pipeline.by_name("end").unwrap().static_pad("sink").unwrap();
    pad.push_event(gst_video::NavigationEvent::new_key_press("Left").build());
    let late = gst::event::Qos::new(gst::QOSType::Underflow, 2.0, 1_000_000, gst::ClockTime::SECOND);
    pad.push_event(late);
    // Negative control, behind the others: a request for a key unit crosses.
    let mut delta = gst::Buffer::from_slice([2; 100]);
    delta.get_mut().unwrap().set_flags(gst::BufferFlags::DELTA_UNIT);
    exporter.push(delta);
    reader.buffer();
    pad.push_event(UpstreamForceKeyUnitEvent::builder().build());
    wait_until("a request for a key unit", || {
        let event = exporter.harness.try_pull_upstream_event();
        event.is_some_and(|event| {
            assert!(!matches!(event.type_(), gst::EventType::Navigation | gst::EventType::Qos), "{event:?}");
            UpstreamForceKeyUnitEvent::parse(&event).is_ok()
        })
    });
}

/// Audio beside an encoded video: every buffer stands for itself.
#[test]
fn audio_is_neither_kept_nor_requested() {
    let caps = "audio/x-opus,channel-mapping-family=0,channels=1,rate=48000";
    let mut exporter = Exporter::with(caps, "encoded=true wait-for-connection=false slow-readers=wait");
    let buffer = |value: u8, flags| {
        let mut buffer = gst::Buffer::from_slice([value; 50]);
        buffer.get_mut().unwrap().set_flags(flags);
        buffer
    };
    // Some demuxers mark no audio buffer as a delta unit, some all but the first.
    for flags in [gst::BufferFlags::empty(), gst::BufferFlags::DELTA_UNIT] {
        (0..3).for_each(|value| exporter.push(buffer(value, flags)));
        let reader = Reader::new(&exporter.path);
        exporter.wait_for_readers(1);
        (3..6).for_each(|value| exporter.push(buffer(value, flags)));
        let got: Vec<_> = (0..3).map(|_| bytes(&reader.buffer())[0]).collect();
        assert_eq!(got, [3, 4, 5], "{flags:?}");
        drop(reader);
        exporter.wait_for_readers(0);
    }
    while let Some(event) = exporter.harness.try_pull_upstream_event() {
        assert!(UpstreamForceKeyUnitEvent::parse(&event).is_err(), "{event:?}");
    }
}

/// Lets a reader join at a buffer of a stream that began 10 s ago, and returns all that it gets:
/// the buffers with their running times, which are none outside of the segment.
fn joined(video: &Video, at: usize, pipeline: &str) -> Vec<(gst::Buffer, Option<gst::ClockTime>)> {
    let mut exporter = video.exporter("max-slots=256");
    let began = gst::SystemClock::obtain().time() - gst::ClockTime::from_seconds(10);
    exporter.harness.element().unwrap().set_base_time(began);
    let mut segment = gst::FormattedSegment::<gst::ClockTime>::new();
    segment.set_start(video.buffers[0].pts());
    exporter.event(gst::event::Segment::new(&segment));
    video.buffers[..at].iter().for_each(|buffer| exporter.push(buffer.clone()));
    let reader = Reader::watch(launch(&format!(
        "framesharesrc socket-path={} policy=lossless connection-timeout=20000000000 ! {pipeline}",
        exporter.path.display()
    )));
    exporter.wait_for_readers(1);
    video.buffers[at..].iter().for_each(|buffer| exporter.push(buffer.clone()));
    exporter.event(gst::event::Eos::new());
    let (mut all, mut segment) = (Vec::new(), gst::FormattedSegment::<gst::ClockTime>::new());
    loop {
        match reader.next() {
            Arrival::Buffer(buffer, _) => {
                let running = buffer.pts().and_then(|pts| segment.to_running_time(pts));
                all.push((buffer, running));
            }
            Arrival::Event(event) => match event.view() {
                gst::EventView::Segment(event) => segment = event.segment().downcast_ref().cloned().unwrap(),
                gst::EventView::Eos(_) => return all,
                _ => {}
            },
        }
    }
}

/// Checks that buffers have the distances of the same units of the video, in both times.
fn assert_distances(video: &Video, first: usize, buffers: &[(gst::Buffer, Option<gst::ClockTime>)]) {
    assert_eq!(buffers.len(), video.buffers.len() - first);
    let times = |buffer: &gst::Buffer| (buffer.pts().unwrap(), buffer.dts().unwrap());
    let distances = |buffers: Vec<(gst::ClockTime, gst::ClockTime)>| {
        let ns = |time: gst::ClockTime| i128::from(time.nseconds());
        let pairs = buffers.windows(2);
        pairs.map(|two| (ns(two[1].0) - ns(two[0].0), ns(two[1].1) - ns(two[0].1))).collect::<Vec<_>>()
    };
    let sent = distances(video.buffers[first..].iter().map(times).collect());
    assert_eq!(distances(buffers.iter().map(|(buffer, _)| times(buffer)).collect()), sent);
}

#[test]
fn recorder_gets_units_from_before_its_start_in_time() {
    if !has(&["x264enc"]) {
        return;
    }
    let video = Video::h264(120, "bframes=3 b-adapt=false");
    let all = joined(&video, 60, "fakesink name=end sync=false enable-last-sample=false");
    assert_distances(&video, 0, &all);
    assert!(all[0].0.dts() < Some(gst::ClockTime::from_mseconds(1)), "{:?}", all[0].0.dts());
    assert!(all.iter().all(|(buffer, running)| *running == buffer.pts()));
}

/// As those of AVI files and elementary streams: a wrong time would be worse than none.
#[test]
fn units_with_decoding_times_only_get_no_presentation_time() {
    if !has(&["x264enc"]) {
        return;
    }
    let mut video = Video::h264(60, "bframes=2 b-adapt=false");
    video.buffers.iter_mut().skip(1).step_by(2).for_each(|buffer| buffer.make_mut().set_pts(None));
    let all = joined(&video, 30, "fakesink name=end sync=false enable-last-sample=false");
    let has_times = |buffer: &gst::Buffer| buffer.pts().is_some();
    let found: Vec<_> = all.iter().map(|(buffer, _)| has_times(buffer)).collect();
    let sent: Vec<_> = video.buffers.iter().map(has_times).collect();
    assert_eq!(found, sent);
    // GstBaseSink would drop the first ones, whose decoding times precede the segment.
    assert!(all.iter().skip(4).all(|(buffer, _)| buffer.dts().is_some()));
}

/// Nothing is delayed for a sink that waits for the clock: older units precede its segment.
#[test]
fn viewer_gets_units_from_before_its_start_outside_of_segment() {
    if !has(&["x264enc", "avdec_h264"]) {
        return;
    }
    let video = Video::h264(120, "bframes=3 b-adapt=false");
    let all = joined(&video, 60, "identity name=end ! avdec_h264 ! fakesink sync=true");
    assert_distances(&video, 0, &all);
    assert!(all.iter().all(|(_, running)| running.is_none()), "all units are older than the reader");
}

/// No image depends on another one: a slow stream shows its last one at once.
#[test]
fn kept_image_is_shown_now_without_a_decoder() {
    let mut exporter = Exporter::with(
        "image/jpeg,width=16,height=8,framerate=0/1",
        "encoded=true wait-for-connection=false",
    );
    exporter.push(gst::Buffer::from_slice([7; 100]));
    let reader = Reader::watch(launch(&format!(
        "framesharesrc socket-path={} ! fakesink name=end sync=true enable-last-sample=false",
        exporter.path.display()
    )));
    assert_eq!(bytes(&reader.buffer())[0], 7);
}

/// Where units before the segment would be lost, and moved ones be late or out of step.
#[test]
fn reader_begins_with_next_key_unit_where_older_ones_do_not_fit() {
    if !has(&["x264enc", "avdec_h264"]) {
        return;
    }
    let video = Video::h264(120, "bframes=3 b-adapt=false");
    let key = (1..120).find(|index| video.is_key(*index)).unwrap();
    for pipeline in [
        "fakesink name=end  videotestsrc num-buffers=1 ! fakesink",
        "fakesink name=end sync=true",
        "tee name=end ! queue ! matroskamux ! fakesink  end. ! queue ! avdec_h264 ! fakesink sync=true",
    ] {
        let all = joined(&video, 60, pipeline);
        assert_distances(&video, key, &all);
    }
}
