// SPDX-License-Identifier: MIT OR Apache-2.0

//! Setup: properties, errors before the first frame, negotiation.

use super::*;

#[test]
fn properties_have_the_documented_defaults() {
    init();
    let sink = gst::ElementFactory::make("framesharesink").build().unwrap();
    assert_eq!(sink.property::<Option<String>>("stream"), None);
    assert_eq!(sink.property::<Option<String>>("socket-path"), None);
    assert_eq!(sink.property::<u32>("max-slots"), 512);
    assert_eq!(sink.property::<u32>("max-held-limit"), 16);
    for property in ["wait-for-connection", "encoded", "any-caps"] {
        assert!(!sink.property::<bool>(property), "{property}");
    }
    assert_eq!(sink.property::<u64>("reader-timeout"), 5_000_000_000);
    assert_eq!(sink.property::<u64>("max-queued-bytes"), 256 << 20);
    assert_eq!(sink.property::<u64>("max-queued-time"), 2_000_000_000);
    assert!(!sink.property::<bool>("queue-for-other-users"));
    assert_eq!(sink.property::<i64>("max-lateness"), -1);
    assert_eq!(sink.property::<u64>("fence-timeout"), 2_000_000_000);
    assert_eq!(sink.property::<u64>("max-retired-bytes"), 2 << 30);
    assert_eq!(sink.property::<u32>("socket-mode"), 0o600);
    for property in ["allowed-uids", "allowed-gids"] {
        assert!(sink.property::<gst::Array>(property).is_empty());
    }
    assert_eq!(sink.property::<u32>("num-clients"), 0);
    assert_eq!(sink.property::<String>("history"), "1");
    assert!(sink.property::<bool>("sync"));
    assert!(!sink.property::<bool>("enable-last-sample"));
    for (property, nick) in [("lossless-readers", "own-uid"), ("slow-readers", "auto")] {
        let value = sink.property_value(property);
        assert_eq!(glib::EnumValue::from_value(&value).unwrap().1.nick(), nick);
    }
    for spec in sink.list_properties().iter().filter(|spec| spec.owner_type() == sink.type_()) {
        assert!(spec.blurb().is_some_and(|blurb| blurb.len() > 10), "{}", spec.name());
    }
}

#[test]
fn sink_without_stream_name_names_the_property() {
    init();
    let sink = gst::ElementFactory::make("framesharesink").build().unwrap();
    let bus = gst::Bus::new();
    sink.set_bus(Some(&bus));
    assert!(sink.set_state(gst::State::Paused).is_err());
    let (error, text) = error_on(&bus);
    assert!(error.matches(gst::ResourceError::Settings), "{error:?}");
    assert!(text.contains("stream"), "{text}");
    sink.set_state(gst::State::Null).unwrap();
}

#[test]
fn invalid_names_and_paths_are_errors() {
    init();
    for (property, value) in [
        ("stream", "a/b"),
        ("stream", ""),
        ("socket-path", "/nonexistent/folder/s"),
        ("socket-path", "/tmp/"),
    ] {
        let sink = gst::ElementFactory::make("framesharesink").property(property, value).build().unwrap();
        let bus = gst::Bus::new();
        sink.set_bus(Some(&bus));
        assert!(sink.set_state(gst::State::Paused).is_err(), "{property}={value}");
        assert!(error_on(&bus).1.len() > 20);
        sink.set_state(gst::State::Null).unwrap();
    }
}

#[test]
fn allowed_uids_are_numeric_and_need_a_socket_path() {
    let folder = tempfile::tempdir().unwrap();
    let sink = element(&folder.path().join("s"), &[("allowed-uids", "<1, 65534>"), ("socket-mode", "0660")]);
    let uids: Vec<u32> =
        sink.property::<gst::Array>("allowed-uids").iter().map(|id| id.get().unwrap()).collect();
    assert_eq!((uids, sink.property::<u32>("socket-mode")), (vec![1, 65534], 0o660));
    sink.set_state(gst::State::Paused).unwrap();
    sink.set_state(gst::State::Null).unwrap();

    sink.set_property("socket-path", None::<&str>);
    sink.set_property("stream", "others");
    let bus = gst::Bus::new();
    sink.set_bus(Some(&bus));
    assert!(sink.set_state(gst::State::Paused).is_err());
    let (error, text) = error_on(&bus);
    assert!(error.matches(gst::ResourceError::Settings), "{error:?}");
    assert!(text.contains("socket-path"), "{text}");
    sink.set_state(gst::State::Null).unwrap();
}

#[test]
fn blocking_reader_is_reported_on_the_bus() {
    let info = video_info(gst_video::VideoFormat::Gray8, 8, 8);
    let mut sink = Sink::new(
        &info.to_caps().unwrap().to_string(),
        &[("reader-timeout", "6000000000"), ("max-queued-bytes", "0")],
    );
    let bus = gst::Bus::new();
    sink.element().set_bus(Some(&bus));
    let mut reader = sink.reader(Policy::Lossless, 1);
    sink.push(gst::Buffer::from_slice(noise(1, info.size())));
    let _held = next_frame(&mut reader);
    sink.push(gst::Buffer::from_slice(noise(2, info.size())));
    let next = |name| {
        let message = bus.timed_pop_filtered(gst::ClockTime::from_seconds(10), &[gst::MessageType::Element]);
        let structure = message.expect("an element message").structure().unwrap().to_owned();
        assert_eq!(structure.name(), name);
        assert_eq!(structure.get::<u32>("pid").unwrap(), std::process::id());
        assert_eq!(structure.get::<&str>("policy").unwrap(), "lossless");
        structure
    };
    let blocked = next("framesharesink-reader-blocking").get::<u64>("blocked-for").unwrap();
    assert!(blocked >= 1_000_000_000, "{blocked}");
    let cut_off = next("framesharesink-reader-cut-off");
    assert_eq!(cut_off.get::<&str>("reason").unwrap(), "too-slow");
    assert!(cut_off.get::<&str>("why").unwrap().contains("reader timeout"));
    // A reader that disconnects by itself causes no message.
    drop(sink.reader(Policy::Latest, 1));
    let quiet = bus.timed_pop_filtered(gst::ClockTime::from_mseconds(100), &[gst::MessageType::Element]);
    assert!(quiet.is_none(), "{quiet:?}");
}

#[test]
fn socket_in_use_error_names_its_owner() {
    let first = Sink::new("video/x-raw,format=GRAY8,width=4,height=4,framerate=30/1", &[]);
    let second = element(&first.folder.path().join("s"), &[]);
    let bus = gst::Bus::new();
    second.set_bus(Some(&bus));
    assert!(second.set_state(gst::State::Paused).is_err());
    let (error, text) = error_on(&bus);
    assert!(error.matches(gst::ResourceError::Busy), "{error:?}");
    assert!(text.contains(&std::process::id().to_string()), "{text}");
    second.set_state(gst::State::Null).unwrap();
}

#[test]
fn start_and_stop_leak_no_descriptors_or_files() {
    init();
    let folder = tempfile::tempdir().unwrap();
    let sink = element(&folder.path().join("s"), &[]);
    let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let cycle = || {
        sink.set_state(gst::State::Paused).unwrap();
        assert!(folder.path().join("s").exists());
        sink.set_state(gst::State::Ready).unwrap();
        assert!(!folder.path().join("s").exists());
    };
    cycle();
    let before = descriptors();
    for _ in 0..200 {
        cycle();
    }
    // Other tests of this process also open and close descriptors: a leak would be at least 200.
    assert!(descriptors() < before + 150);
    sink.set_state(gst::State::Null).unwrap();
}

#[test]
fn raw_media_is_accepted_and_properties_admit_the_rest() {
    init();
    let folder = tempfile::tempdir().unwrap();
    let sink = element(&folder.path().join("s"), &[]);
    let encoded = ["video/x-h264,stream-format=avc,alignment=au", "image/jpeg", "audio/x-opus", "meta/x-klv"];
    sink.set_state(gst::State::Ready).unwrap();
    let pad = sink.static_pad("sink").unwrap();
    let accepts = |caps: &str| pad.query_accept_caps(&caps.parse().unwrap());
    for caps in [
        "video/x-raw,format=NV12,width=16,height=16,framerate=30/1",
        "video/x-raw(format:Interlaced),format=NV12,width=16,height=16,framerate=30/1,interlace-mode=alternate",
        "audio/x-raw,format=S16LE,rate=48000,channels=2,layout=interleaved",
        "video/x-bayer,format=bggr,width=16,height=16,framerate=30/1",
    ] {
        assert!(accepts(caps), "{caps}");
    }
    assert!(encoded.iter().all(|caps| !accepts(caps)));
    for caps in ["application/x-thing", "video/x-raw(memory:GLMemory),format=RGBA,width=16,height=16"] {
        assert!(!accepts(caps), "{caps}");
    }
    sink.set_property("encoded", true);
    assert!(encoded.iter().all(|caps| accepts(caps)) && !accepts("application/x-thing"));
    sink.set_property("encoded", false);
    sink.set_property("any-caps", true);
    assert!(encoded.iter().all(|caps| accepts(caps)) && accepts("application/x-thing"));
    assert!(pad.query_caps(None).is_any());
    sink.set_state(gst::State::Null).unwrap();
}

/// The link succeeds, and the error names the property. With the capsfilter, upstream's caps are
/// known before data flows.
#[test]
fn excluded_media_links_then_fails_naming_property() {
    init();
    let encoded = ["video/x-h264", "audio/mpeg"].map(|media| (media, "encoded=true", true));
    for (media, property, links) in
        encoded.into_iter().chain([("application/x-thing", "any-caps=true", false)])
    {
        for upstream in [format!("appsrc ! capsfilter caps={media}"), format!("appsrc caps={media}")] {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("s");
            let text = format!("{upstream} ! framesharesink socket-path={}", path.display());
            let Ok(pipeline) = gst::parse::launch(&text) else {
                assert!(!links, "{upstream}");
                continue;
            };
            let pipeline = pipeline.downcast::<gst::Pipeline>().unwrap();
            let started = pipeline.set_state(gst::State::Playing);
            assert_eq!(started.is_err(), upstream.contains("capsfilter"), "{upstream}");
            let text = error_on(&pipeline.bus().unwrap()).1;
            assert!(text.contains(media) && text.contains(property), "{text}");
            pipeline.set_state(gst::State::Null).unwrap();
        }
    }
}

#[test]
fn refused_encoded_media_posts_one_warning_a_session() {
    init();
    let folder = tempfile::tempdir().unwrap();
    let sink = element(&folder.path().join("s"), &[]);
    let pad = sink.static_pad("sink").unwrap();
    let accepts = |caps: &str| pad.query_accept_caps(&caps.parse().unwrap());
    // Without a bus the warning is not lost, but posted by the next refusal.
    assert!(!accepts("video/x-h264"));
    let bus = gst::Bus::new();
    sink.set_bus(Some(&bus));
    for _session in 0..2 {
        sink.set_state(gst::State::Paused).unwrap();
        for _ in 0..3 {
            assert!(!accepts("video/x-h264"));
        }
        assert!(accepts("video/x-raw,format=GRAY8,width=4,height=4,framerate=30/1"));
        sink.set_state(gst::State::Ready).unwrap();
        let warnings =
            std::iter::from_fn(|| bus.pop_filtered(&[gst::MessageType::Warning])).collect::<Vec<_>>();
        let [warning] = &warnings[..] else { panic!("{warnings:?}") };
        let gst::MessageView::Warning(warning) = warning.view() else { unreachable!() };
        let text = warning.error().to_string();
        assert!(text.contains("video/x-h264") && text.contains("encoded=true"), "{text}");
    }
    sink.set_state(gst::State::Null).unwrap();
}

/// A late pad links, and its error names the property.
#[test]
fn encoded_pad_that_appears_later_fails_naming_property() {
    if ["x264enc", "h264parse", "matroskamux", "matroskademux"].iter().any(|name| {
        init();
        gst::ElementFactory::find(name).is_none()
    }) {
        return skip("encoded_pad_that_appears_later", "no elements for the clip");
    }
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let recorder = launch(&format!(
        "videotestsrc num-buffers=3 ! x264enc ! h264parse ! matroskamux ! filesink location={}",
        path("clip")
    ));
    recorder.set_state(gst::State::Playing).unwrap();
    wait_for_eos(&recorder);
    recorder.set_state(gst::State::Null).unwrap();
    let pipeline = launch(&format!(
        "filesrc location={} ! matroskademux ! framesharesink socket-path={}",
        path("clip"),
        path("s")
    ));
    pipeline.set_state(gst::State::Playing).unwrap();
    let text = error_on(&pipeline.bus().unwrap()).1;
    assert!(text.contains("video/x-h264") && text.contains("encoded=true"), "{text}");
    pipeline.set_state(gst::State::Null).unwrap();
}

/// An upstream element with a choice, such as a camera, gets raw caps only.
#[test]
fn linked_sink_offers_raw_media_only() {
    init();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let pipeline = launch(&format!("identity ! framesharesink name=sink socket-path={}", path.display()));
    let sink = pipeline.by_name("sink").unwrap();
    let offers = || {
        let caps = sink.static_pad("sink").unwrap().query_caps(None);
        let jpeg = gst::Caps::new_empty_simple("image/jpeg");
        (caps.can_intersect(&gst::Caps::new_empty_simple("video/x-raw")), caps.can_intersect(&jpeg))
    };
    assert_eq!(offers(), (true, true), "while the pipeline is built");
    pipeline.set_state(gst::State::Ready).unwrap();
    assert_eq!(offers(), (true, false));
    pipeline.set_state(gst::State::Paused).unwrap();
    assert_eq!(offers(), (true, false));
    pipeline.set_state(gst::State::Ready).unwrap();
    sink.set_property("encoded", true);
    assert_eq!(offers(), (true, true));
    pipeline.set_state(gst::State::Null).unwrap();
}

/// As in `nvv4l2decoder ! framesharesink`: the link succeeds, and the error names the missing
/// element. With the capsfilter, upstream's caps are known before data flows; without it, they are
/// not.
#[test]
fn foreign_memory_upstream_links_then_fails_with_remedy() {
    init();
    for (feature, advice) in [("memory:NVMM", "nvvideoconvert"), ("memory:GLMemory", "gldownload")] {
        let caps = format!("caps=video/x-raw({feature}),format=RGBA,width=16,height=16,framerate=30/1");
        for upstream in [format!("appsrc ! capsfilter {caps}"), format!("appsrc {caps}")] {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("s");
            let pipeline = launch(&format!("{upstream} ! framesharesink socket-path={}", path.display()));
            let started = pipeline.set_state(gst::State::Playing);
            assert_eq!(started.is_err(), upstream.contains("capsfilter"), "{upstream}");
            let text = error_on(&pipeline.bus().unwrap()).1;
            assert!(text.contains(feature) && text.contains(advice), "{text}");
            pipeline.set_state(gst::State::Null).unwrap();
        }
    }
}

#[test]
fn foreign_memory_while_playing_fails_with_remedy() {
    init();
    let folder = tempfile::tempdir().unwrap();
    let sink = element(&folder.path().join("s"), &[]);
    let bus = gst::Bus::new();
    sink.set_bus(Some(&bus));
    sink.set_state(gst::State::Playing).unwrap();
    let pad = sink.static_pad("sink").unwrap();
    pad.send_event(gst::event::StreamStart::new("x"));
    let caps = "video/x-raw(memory:NVMM),format=RGBA,width=16,height=16,framerate=30/1";
    assert!(!pad.send_event(gst::event::Caps::new(&caps.parse().unwrap())));
    assert!(error_on(&bus).1.contains("nvvideoconvert"));
    sink.set_state(gst::State::Null).unwrap();
}

#[test]
fn unshareable_memory_error_names_the_converter() {
    init();
    let folder = tempfile::tempdir().unwrap();
    let sink = element(&folder.path().join("s"), &[("any-caps", "true")]);
    let bus = gst::Bus::new();
    sink.set_bus(Some(&bus));
    sink.set_state(gst::State::Playing).unwrap();
    let pad = sink.static_pad("sink").unwrap();
    pad.send_event(gst::event::StreamStart::new("x"));
    let caps = "video/x-raw(memory:GLMemory),format=RGBA,width=16,height=16,framerate=30/1";
    assert!(!pad.send_event(gst::event::Caps::new(&caps.parse().unwrap())));
    assert!(error_on(&bus).1.contains("gldownload"));
    sink.set_state(gst::State::Null).unwrap();
}

#[test]
fn format_changes_are_delivered_in_order_with_frames() {
    let info = video_info(gst_video::VideoFormat::Gray8, 8, 8);
    let mut sink = Sink::new(&info.to_caps().unwrap().to_string(), &[]);
    let mut reader = sink.reader(Policy::Lossless, 4);
    let first = noise(1, info.size());
    sink.push(gst::Buffer::from_slice(first.clone()));
    let bigger = video_info(gst_video::VideoFormat::I420, 64, 36);
    sink.harness.push_event(gst::event::Caps::new(&bigger.to_caps().unwrap()));
    let second = noise(2, bigger.size());
    sink.push(gst::Buffer::from_slice(second.clone()));

    let format = |item| match item {
        Item::Format(format) => format,
        item => panic!("expected a format, got {item:?}"),
    };
    assert!(matches!(next(&mut reader), Item::Event(_)), "the stream-start");
    let video = format(next(&mut reader)).video.clone().unwrap();
    assert_eq!((video.format.as_str(), video.width, video.height), ("GRAY8", 8, 8));
    let frame = next_frame(&mut reader);
    assert_eq!(
        picture(&info, &bytes(&frame), frame.descriptor().used_planes()),
        picture(&info, &first, &default_planes(&info))
    );
    drop(frame);
    let changed = format(next(&mut reader));
    assert_eq!(changed.caps.parse::<gst::Caps>().unwrap(), bigger.to_caps().unwrap());
    let frame = next_frame(&mut reader);
    let planes = frame.descriptor().used_planes().to_vec();
    assert_eq!(
        picture(&bigger, &bytes(&frame), &planes),
        picture(&bigger, &second, &default_planes(&bigger))
    );
}

#[test]
fn buffers_without_caps_need_any_caps() {
    init();
    for (any_caps, expected) in
        [(false, Err(gst::FlowError::NotNegotiated)), (true, Ok(gst::FlowSuccess::Ok))]
    {
        let folder = tempfile::tempdir().unwrap();
        let sink =
            element(&folder.path().join("s"), &[("any-caps", if any_caps { "true" } else { "false" })]);
        let pad = sink.static_pad("sink").unwrap();
        sink.set_state(gst::State::Playing).unwrap();
        pad.send_event(gst::event::StreamStart::new("x"));
        pad.send_event(gst::event::Segment::new(&gst::FormattedSegment::<gst::format::Bytes>::new()));
        assert_eq!(pad.chain(gst::Buffer::from_slice([1, 2, 3])), expected);
        sink.set_state(gst::State::Null).unwrap();
    }
}

/// Upstream that has the choice takes NV12; upstream that has none keeps its format.
#[test]
fn upstream_with_a_choice_takes_a_compact_format() {
    init();
    let folder = tempfile::tempdir().unwrap();
    let format = |upstream: &str| {
        let path = folder.path().join("s");
        let pipeline =
            launch(&format!("{upstream} ! framesharesink name=sink socket-path={}", path.display()));
        pipeline.set_state(gst::State::Paused).unwrap();
        assert!(pipeline.state(gst::ClockTime::from_seconds(10)).0.is_ok(), "{upstream}");
        let pad = pipeline.by_name("sink").unwrap().static_pad("sink").unwrap();
        let caps = pad.current_caps().unwrap();
        pipeline.set_state(gst::State::Null).unwrap();
        caps.structure(0).unwrap().get::<String>("format").unwrap()
    };
    for (upstream, expected) in [
        ("videotestsrc", "NV12"),
        ("videotestsrc ! identity", "NV12"),
        ("videotestsrc ! video/x-raw,width=64", "NV12"),
        ("videotestsrc ! video/x-raw,width=64 ! videoconvert", "NV12"),
        ("videotestsrc ! video/x-raw,format={GRAY16_LE,GRAY8,I420,RGBA}", "I420"),
        // From here on, upstream has a format.
        ("videotestsrc ! video/x-raw,format=I420_10LE", "I420_10LE"),
        ("videotestsrc ! video/x-raw,format=I420_10LE ! videoconvert", "I420_10LE"),
        ("videotestsrc ! video/x-raw,format=UYVY ! videoconvert", "UYVY"),
        ("videotestsrc ! video/x-raw,format=ARGB64 ! videoconvert ! videoscale", "ARGB64"),
        ("videotestsrc ! video/x-raw,format={GRAY8,GRAY16_LE}", "GRAY8"),
        ("videotestsrc ! video/x-raw,format={GRAY16_LE,BGRx}", "BGRx"),
    ] {
        assert_eq!(format(upstream), expected, "{upstream}");
    }
}
