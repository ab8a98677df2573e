use super::*;
use crate::meta::FrameshareMeta;

fn there_and_back(buffer: &gst::BufferRef) -> gst::Buffer {
    let mut copy = gst::Buffer::new();
    let metas = parse(&serialize(buffer, None, false)).unwrap();
    metas.add_to(copy.make_mut(), true).unwrap();
    copy
}

fn with(metas: impl FnOnce(&mut gst::BufferRef)) -> gst::Buffer {
    gst::init().unwrap();
    let mut buffer = gst::Buffer::with_size(320 * 240 * 2).unwrap();
    metas(buffer.make_mut());
    buffer
}

fn time_code(fps: (i32, i32), daily_jam: Option<&glib::DateTime>) -> gst_video::ValidVideoTimeCode {
    gst_video::ValidVideoTimeCode::new(
        gst::Fraction::new(fps.0, fps.1),
        daily_jam,
        gst_video::VideoTimeCodeFlags::DROP_FRAME,
        10,
        11,
        12,
        13,
        0,
    )
    .unwrap()
}

#[test]
fn a_buffer_without_metas_has_no_bytes() {
    assert!(serialize(&with(|_| {}), None, false).is_empty());
    assert_eq!(parse(&[]), Ok(Metas::default()));
}

#[test]
fn the_video_meta_crosses_without_its_planes() {
    let buffer = with(|buffer| {
        let flags = gst_video::VideoFrameFlags::INTERLACED;
        let (offsets, strides) = ([0, 352 * 256], [352, 352]);
        let mut meta = gst_video::VideoMeta::add_full(
            buffer,
            flags,
            gst_video::VideoFormat::Nv12,
            320,
            240,
            &offsets,
            &strides,
        )
        .unwrap();
        meta.set_alignment(&gst_video::VideoAlignment::new(0, 16, 0, 32, &[0; 4])).unwrap();
    });
    let metas = parse(&serialize(&buffer, None, false)).unwrap();
    let video = metas.video().unwrap();
    assert_eq!((video.format(), video.width, video.height), (gst_video::VideoFormat::Nv12, 320, 240));
    assert_eq!(video.flags(), gst_video::VideoFrameFlags::INTERLACED);
    let alignment = video.alignment().unwrap();
    assert_eq!((alignment.padding_bottom(), alignment.padding_right()), (16, 32));
    assert!(there_and_back(&buffer).meta::<gst_video::VideoMeta>().is_none());
}

#[test]
fn a_video_meta_that_says_no_more_than_the_caps_has_no_bytes() {
    gst::init().unwrap();
    let format = gst_video::VideoFormat::Nv12;
    let info = gst_video::VideoInfo::builder(format, 320, 240).build().unwrap();
    let crosses = |width: u32, padding: u32, flags, moved| {
        let buffer = with(|buffer| {
            let stride = (width + padding) as i32;
            let (offsets, strides) = ([0, stride as usize * 240], [stride, stride]);
            let mut meta =
                gst_video::VideoMeta::add_full(buffer, flags, format, width, 240, &offsets, &strides)
                    .unwrap();
            meta.set_alignment(&gst_video::VideoAlignment::new(0, 0, 0, padding, &[0; 4])).unwrap();
        });
        assert!(!serialize(&buffer, None, moved).is_empty(), "without caps all of it is news");
        !serialize(&buffer, Some(&info), moved).is_empty()
    };
    let (none, interlaced) = (gst_video::VideoFrameFlags::empty(), gst_video::VideoFrameFlags::INTERLACED);
    assert!(!crosses(320, 0, none, false));
    assert!(crosses(336, 0, none, false));
    assert!(crosses(320, 0, interlaced, false));
    assert!(crosses(320, 32, none, false));
    assert!(!crosses(320, 32, none, true), "a copy has no alignment");
}

#[test]
fn crop_and_bars_and_captions_cross() {
    let copy = there_and_back(&with(|buffer| {
        gst_video::VideoCropMeta::add(buffer, (1, 2, 3, 4));
        gst_video::VideoCaptionMeta::add(buffer, gst_video::VideoCaptionType::Cea708Raw, &[1, 2, 3]);
        gst_video::VideoAFDMeta::add(
            buffer,
            1,
            gst_video::VideoAFDSpec::AtscA53,
            gst_video::VideoAFDValue::_169TopAligned,
        );
        gst_video::VideoBarMeta::add(buffer, 1, true, 5, 6);
    }));
    assert_eq!(copy.meta::<gst_video::VideoCropMeta>().unwrap().rect(), (1, 2, 3, 4));
    let caption = copy.meta::<gst_video::VideoCaptionMeta>().unwrap();
    assert_eq!(
        (caption.caption_type(), caption.data()),
        (gst_video::VideoCaptionType::Cea708Raw, &[1, 2, 3][..])
    );
    let afd = copy.meta::<gst_video::VideoAFDMeta>().unwrap();
    assert_eq!((afd.field(), afd.spec()), (1, gst_video::VideoAFDSpec::AtscA53));
    assert_eq!(afd.afd(), gst_video::VideoAFDValue::_169TopAligned);
    let bar = copy.meta::<gst_video::VideoBarMeta>().unwrap();
    assert_eq!((bar.field(), bar.is_letterbox(), bar.bar_data1(), bar.bar_data2()), (1, true, 5, 6));
}

#[test]
fn hundreds_of_regions_cross_with_their_parameters_in_order() {
    let copy = there_and_back(&with(|buffer| {
        for index in 0..500 {
            let mut region = gst_video::VideoRegionOfInterestMeta::add(buffer, "face", (index, 2, 3, 4));
            region.set_id(index as i32);
            region.set_parent_id(-1);
            region.add_param(gst::Structure::builder("detection").field("confidence", 0.5).build());
            region.add_param(gst::Structure::builder("label").field("name", "a \"quoted\" one").build());
        }
    }));
    let regions = copy.iter_meta::<gst_video::VideoRegionOfInterestMeta>().collect::<Vec<_>>();
    assert_eq!(regions.len(), 500);
    for (index, region) in regions.iter().enumerate() {
        assert_eq!((region.roi_type(), region.rect()), ("face", (index as u32, 2, 3, 4)));
        assert_eq!((region.id(), region.parent_id()), (index as i32, -1));
        assert_eq!(region.param("detection").unwrap().get::<f64>("confidence"), Ok(0.5));
        assert_eq!(region.param("label").unwrap().get::<String>("name").unwrap(), "a \"quoted\" one");
    }
}

#[test]
fn time_codes_and_reference_timestamps_cross() {
    gst::init().unwrap();
    let jam = glib::DateTime::from_utc(2025, 2, 3, 4, 5, 6.5).unwrap();
    let ntp: gst::Caps = "timestamp/x-ntp".parse().unwrap();
    for jam in [None, Some(&jam)] {
        let copy = there_and_back(&with(|buffer| {
            gst_video::VideoTimeCodeMeta::add(buffer, &time_code((30000, 1001), jam));
            gst::ReferenceTimestampMeta::add(buffer, &ntp, gst::ClockTime::from_seconds(7), None);
        }));
        let copied = copy.meta::<gst_video::VideoTimeCodeMeta>().unwrap().tc();
        assert_eq!(copied.to_string(), time_code((30000, 1001), None).to_string());
        assert_eq!(copied.flags(), gst_video::VideoTimeCodeFlags::DROP_FRAME);
        assert_eq!(copied.latest_daily_jam().as_ref(), jam);
        let reference = copy.meta::<gst::ReferenceTimestampMeta>().unwrap();
        assert_eq!(reference.reference_owned(), ntp);
        assert_eq!((reference.timestamp(), reference.duration()), (gst::ClockTime::from_seconds(7), None));
    }
}

#[test]
fn custom_metas_cross_and_are_made_known() {
    gst::init().unwrap();
    gst::meta::CustomMeta::register("FrameshareTestCustom", &["video", "size"]);
    let buffer = with(|buffer| {
        let mut meta = gst::meta::CustomMeta::add(buffer, "FrameshareTestCustom").unwrap();
        meta.mut_structure().set("answer", 42_u64);
        meta.mut_structure().set("text", "with, a comma; and more");
    });
    let copy = there_and_back(&buffer);
    let meta = gst::meta::CustomMeta::from_buffer(&copy, "FrameshareTestCustom").unwrap();
    assert_eq!(meta.structure().get::<u64>("answer"), Ok(42));
    assert_eq!(meta.structure().get::<String>("text").unwrap(), "with, a comma; and more");

    let unknown = Item::Custom {
        name: "FrameshareTestUnknown".into(),
        tags: vec!["audio".into()],
        structure: "FrameshareTestUnknown, a=(int)1;".into(),
    };
    let mut copy = gst::Buffer::new();
    Metas(vec![unknown]).add_to(copy.make_mut(), true).unwrap();
    let meta = gst::meta::CustomMeta::from_buffer(&copy, "FrameshareTestUnknown").unwrap();
    assert_eq!(meta.structure().get::<i32>("a"), Ok(1));
    assert_eq!(meta.tags().iter().map(|tag| tag.to_string()).collect::<Vec<_>>(), ["audio"]);
}

/// GStreamer makes the types of most of its metas when it first needs them. Under a name that is taken it cannot, and
/// everyone who asks for that meta waits for ever.
#[test]
fn names_that_gstreamer_will_need_are_left_to_it() {
    gst::init().unwrap();
    for name in ["GstVideoCodecAlphaMeta", "GstFrameshareTestMetaAPI", "GObjectiveMeta", "GTestMeta"] {
        let item = Item::Custom { name: name.into(), tags: Vec::new(), structure: format!("{name};") };
        let mut copy = gst::Buffer::new();
        assert!(Metas(vec![item]).add_to(copy.make_mut(), true).is_err(), "{name}");
        assert!(!gst::meta::CustomMeta::is_registered(name), "{name}");
        assert!(glib::Type::from_name(name).is_none(), "{name}");
    }
    for name in ["GroundTruthMeta", "Gsomething", "NvSomething"] {
        assert!(!is_reserved(name), "{name}");
    }
}

#[test]
fn what_belongs_to_one_stream_or_one_memory_stays() {
    let parent = with(|_| {});
    let buffer = with(|buffer| {
        let frame =
            crate::meta::Frame { session: 1, sequence: 2, lost_before: 3, published: 4, used_on: None };
        FrameshareMeta::add(buffer, frame);
        gst::meta::ParentBufferMeta::add(buffer, &parent);
    });
    assert!(serialize(&buffer, None, false).is_empty());
}

fn refused(item: Item) -> bool {
    gst::init().unwrap();
    let what = item.what();
    let bytes = postcard::to_extend(&vec![item], vec![VERSION]).unwrap();
    let mut buffer = gst::Buffer::new();
    match parse(&bytes) {
        Err(error) => error == MetaError::Impossible(what),
        Ok(metas) => metas.add_to(buffer.make_mut(), true) == Err(MetaError::Impossible(what)),
    }
}

#[test]
fn values_that_gstreamer_would_break_on_are_refused() {
    let video = Video { format: 23, width: 320, height: 240, flags: 0, alignment: None };
    let alignment = Alignment { top: 0, bottom: 0, left: 0, right: 0, masks: [0; 4] };
    assert!(!refused(Item::Video(video.clone())));
    assert!(refused(Item::Video(Video { format: 0, ..video.clone() })));
    assert!(refused(Item::Video(Video { format: 99_999, ..video.clone() })));
    assert!(refused(Item::Video(Video { width: 0, ..video.clone() })));
    for bad in [
        Alignment { top: u32::MAX, ..alignment.clone() },
        Alignment { masks: [6, 0, 0, 0], ..alignment.clone() },
        Alignment { masks: [u32::MAX; 4], ..alignment },
    ] {
        assert!(refused(Item::Video(Video { alignment: Some(bad), ..video.clone() })));
    }

    let code =
        TimeCode { fps: (25, 1), flags: 0, time: [1, 2, 3], frames: 4, field_count: 0, daily_jam: None };
    assert!(!refused(Item::TimeCode(code.clone())));
    for bad in [
        TimeCode { fps: (25, 0), ..code.clone() },
        TimeCode { fps: (i32::MIN, -1), ..code.clone() },
        TimeCode { time: [1, 60, 3], ..code.clone() },
        TimeCode { frames: u32::MAX, ..code.clone() },
        TimeCode { daily_jam: Some("yesterday\0".into()), ..code.clone() },
        TimeCode { daily_jam: Some("yesterday".into()), ..code },
    ] {
        assert!(refused(Item::TimeCode(bad.clone())), "{bad:?}");
    }

    let custom = |name: &str, structure: &str| Item::Custom {
        name: name.into(),
        tags: Vec::new(),
        structure: structure.into(),
    };
    for (field, spec, value) in
        [(2, 1, 0), (0, 3, 2), (0, -1, 2), (0, 0, 0), (0, 1, 1), (0, 1, 16), (0, 1, -1)]
    {
        assert!(refused(Item::ActiveFormat { field, spec, value }), "{field} {spec} {value}");
    }
    assert!(refused(Item::Bar { field: 2, is_letterbox: true, first: 0, second: 0 }));
    let tagged = |tags| Item::Custom { name: "abc".into(), tags, structure: "abc;".into() };
    assert!(refused(tagged(vec!["t".repeat(MAX_TAG + 1)])));
    assert!(refused(tagged(vec![String::new(); MAX_TAGS + 1])));
    assert!(refused(custom("a b", "a b;")));
    assert!(refused(custom("GstVideoMeta", "GstVideoMeta;")));
    assert!(refused(custom("GstElement", "GstElement;")));
    assert!(refused(custom("FrameshareTestOne", "FrameshareTestTwo;")));
    assert!(refused(custom("FrameshareTestOne", "FrameshareTestOne, a=")));
    assert!(refused(custom("FrameshareTestOne", &"[".repeat(100_000))));
    assert!(refused(Item::ReferenceTimestamp {
        reference: "timestamp/x-ntp".into(),
        timestamp: u64::MAX,
        duration: None
    }));
    assert!(refused(Item::ReferenceTimestamp { reference: "no caps".into(), timestamp: 1, duration: None }));
    assert!(refused(Item::Caption { kind: 1, data: Vec::new() }));
    assert!(refused(Item::Caption { kind: 99, data: vec![1] }));
}

#[test]
fn a_wrong_item_does_not_cost_the_others() {
    gst::init().unwrap();
    let bad = Item::ReferenceTimestamp { reference: "no caps".into(), timestamp: 1, duration: None };
    let mut buffer = gst::Buffer::new();
    assert!(Metas(vec![bad, Item::Crop([1, 2, 3, 4])]).add_to(buffer.make_mut(), true).is_err());
    assert!(buffer.meta::<gst_video::VideoCropMeta>().is_some());
}

#[test]
fn damaged_bytes_are_refused() {
    let buffer = with(|buffer| {
        gst_video::VideoCropMeta::add(buffer, (1, 2, 3, 4));
        gst_video::VideoRegionOfInterestMeta::add(buffer, "face", (1, 2, 3, 4));
        gst_video::VideoTimeCodeMeta::add(buffer, &time_code((30000, 1001), None));
        gst_video::VideoCaptionMeta::add(buffer, gst_video::VideoCaptionType::Cea708Raw, &[1, 2, 3]);
    });
    let bytes = serialize(&buffer, None, false);
    assert_eq!(parse(&[9]), Err(MetaError::Version(9)));
    for length in 1..bytes.len() {
        assert_eq!(parse(&bytes[..length]), Err(MetaError::Malformed), "{length}");
    }
    assert_eq!(parse(&[bytes.clone(), vec![0]].concat()), Err(MetaError::Malformed));
    // A count of items that cannot be there.
    assert_eq!(parse(&[VERSION, 0xff, 0xff, 0xff, 0xff, 0x0f]), Err(MetaError::Malformed));
    // Any byte may be anything: nothing but an error or other metas may come of it.
    for index in 0..bytes.len() {
        for value in 0..=255 {
            let mut damaged = bytes.clone();
            damaged[index] = value;
            if let Ok(metas) = parse(&damaged) {
                let _ = metas.add_to(gst::Buffer::new().make_mut(), true);
            }
        }
    }
}

/// What GStreamer 1.24 and later write for a meta of this name and content.
fn in_its_own_form(name: &str, content: &[u8]) -> Vec<u8> {
    let total = (4 + 4 + name.len() + 1 + 1 + content.len()) as u32;
    let mut bytes = [total.to_le_bytes(), (name.len() as u32).to_le_bytes()].concat();
    bytes.extend(name.bytes().chain([0, 0]).chain(content.iter().copied()));
    bytes
}

#[test]
fn what_gstreamer_writes_itself_is_looked_at_first() {
    assert!(newer::is_sound(&in_its_own_form("GstAudioMeta", &[1, 2, 3])));
    let good = in_its_own_form("Meta", &[]);
    for length in 0..good.len() {
        assert!(!newer::is_sound(&good[..length]), "{length}");
    }
    for bad in
        [in_its_own_form("", &[]), in_its_own_form("a\0b", &[]), in_its_own_form(&"x".repeat(300), &[])]
    {
        assert!(!newer::is_sound(&bad), "{bad:?}");
    }
    let mut long_name = good.clone();
    long_name[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
    assert!(!newer::is_sound(&long_name));
}

/// What this GStreamer writes for a custom meta that says `n=7`; nothing where it cannot.
fn written_by_gstreamer(name: &str) -> Option<Vec<u8>> {
    gst::meta::CustomMeta::register(name, &[]);
    let mut buffer = gst::Buffer::new();
    gst::meta::CustomMeta::add(buffer.make_mut(), name).unwrap().mut_structure().set("n", 7);
    let mut bytes = None;
    buffer.foreach_meta(|meta| {
        bytes = newer::write(&meta);
        ControlFlow::Continue(())
    });
    assert_eq!(bytes.is_some(), gst::version() >= (1, 24, 0, 0));
    bytes
}

#[test]
fn what_the_same_gstreamer_wrote_is_read_and_what_another_one_wrote_is_not() {
    gst::init().unwrap();
    let name = "frameshare-test-newer";
    let data = written_by_gstreamer(name).unwrap_or_else(|| in_its_own_form("GstAudioMeta", &[0; 40]));
    assert!(newer::is_sound(&data), "{data:?}");
    let read = |version| {
        let mut bytes = vec![VERSION];
        bytes.extend(postcard::to_allocvec(&vec![Item::Other { version, data: data.clone() }]).unwrap());
        let mut buffer = gst::Buffer::new();
        parse(&bytes).unwrap().add_to(buffer.make_mut(), true).unwrap();
        let meta = gst::meta::CustomMeta::from_buffer(&buffer, name).ok();
        meta.map(|meta| meta.structure().get::<i32>("n").unwrap())
    };
    let (major, minor, micro, nano) = newer::version();
    assert_eq!(read((major, minor, micro + 1, nano)), None);
    let here = read((major, minor, micro, nano));
    assert_eq!(here, (gst::version() >= (1, 24, 0, 0)).then_some(7));
}
