// SPDX-License-Identifier: MIT OR Apache-2.0
use super::*;
use crate::meta::FrameshareMeta;

fn parse(bytes: &[u8]) -> Result<Metas, MetaError> {
    super::parse(bytes, &Budget::new(u64::MAX))
}

/// The bytes of one item and what follows it.
fn bytes_of(item: Item<'_>, rest: impl FnOnce(&mut Writer)) -> Vec<u8> {
    let mut writer = Writer(vec![VERSION]);
    writer.plain(&item);
    rest(&mut writer);
    writer.0
}

fn custom(name: &str, tags: &[&str]) -> Vec<u8> {
    bytes_of(Item::Custom { tags: tags.len() as u32 }, |writer| {
        tags.iter().for_each(|tag| writer.plain(tag));
        writer.plain(&(name, 0_u32));
    })
}

fn add(bytes: &[u8]) -> Result<gst::Buffer, MetaError> {
    let mut buffer = gst::Buffer::new();
    parse(bytes)?.add_to(buffer.make_mut(), true, true, &Dropped::default()).map(|()| buffer)
}

/// The metas of a buffer, without caps that some of them would repeat.
fn bytes_of_metas(buffer: &gst::BufferRef) -> Vec<u8> {
    serialize(buffer, None, false, &Dropped::default())
}

fn there_and_back(buffer: &gst::BufferRef) -> gst::Buffer {
    let mut copy = gst::Buffer::new();
    let metas = parse(&bytes_of_metas(buffer)).unwrap();
    metas.add_to(copy.make_mut(), true, true, &Dropped::default()).unwrap();
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
    assert!(bytes_of_metas(&with(|_| {})).is_empty());
    assert!(parse(&[]).unwrap().metas.is_empty());
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
    let metas = parse(&bytes_of_metas(&buffer)).unwrap();
    let video = metas.video().unwrap();
    assert_eq!((video.format(), video.width, video.height), (gst_video::VideoFormat::Nv12, 320, 240));
    assert_eq!(video.flags(), gst_video::VideoFrameFlags::INTERLACED);
    let alignment = video.alignment().unwrap();
    assert_eq!((alignment.padding_bottom(), alignment.padding_right()), (16, 32));
    assert!(there_and_back(&buffer).meta::<gst_video::VideoMeta>().is_none());
}

#[test]
fn format_of_meta_that_readers_do_not_know_is_that_of_caps() {
    gst::init().unwrap();
    let info = gst_video::VideoInfo::builder(gst_video::VideoFormat::Nv12, 320, 240).build().unwrap();
    let video = |format| Video { format, width: 320, height: 256, flags: 0, alignment: None };
    let [nv12, yuy2] = [gst_video::VideoFormat::Nv12, gst_video::VideoFormat::Yuy2].map(IntoGlib::into_glib);
    assert_eq!(named(video(99_999), Some(&info)), video(nv12));
    assert_eq!(named(video(yuy2), Some(&info)), video(yuy2));
    assert_eq!(named(video(99_999), None), video(99_999));
}

#[test]
fn redundant_video_meta_has_no_bytes() {
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
        assert!(
            !serialize(&buffer, None, moved, &Dropped::default()).is_empty(),
            "without caps all of it is news"
        );
        !serialize(&buffer, Some(&info), moved, &Dropped::default()).is_empty()
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

    let unknown = bytes_of(Item::Custom { tags: 1 }, |writer| {
        writer.plain(&"audio");
        let structure = gst::Structure::builder("FrameshareTestUnknown").field("a", 1).build();
        writer.structure(&structure).unwrap();
    });
    let copy = add(&unknown).unwrap();
    let meta = gst::meta::CustomMeta::from_buffer(&copy, "FrameshareTestUnknown").unwrap();
    assert_eq!(meta.structure().get::<i32>("a"), Ok(1));
    assert_eq!(meta.tags().iter().map(|tag| tag.to_string()).collect::<Vec<_>>(), ["audio"]);
}

/// GStreamer registers the types of most of its metas on first use. If the name is taken, the
/// registration fails, and each user of that meta blocks forever.
/// SYNC: the engine's `event::Meta` has the same items.
#[test]
fn metas_of_the_engine_are_metas_of_buffers_and_back() {
    use frameshare::event::{Meta, Structure, Value};
    let nested = Value::Structure(Structure::new("values").field("deep", true));
    let detector = Structure::new("engine-detector").field("model", "v3").field("score", 0.5);
    let detector = detector.field("boxes", Value::List(vec![1.into(), 2.into()])).field("extra", nested);
    let params = vec![Structure::new("score").field("value", 0.5)];
    let region = Meta::Region { kind: "face".into(), id: 1, parent: 0, rect: [1, 2, 3, 4], params };
    let metas = [Meta::Custom(detector), region, Meta::Crop([0, 2, 300, 200])];
    gst::init().unwrap();
    let buffer = add(&Meta::to_metadata(&metas).unwrap()).unwrap();
    let custom = gst::meta::CustomMeta::from_buffer(&buffer, "engine-detector").unwrap();
    assert_eq!(custom.structure().get::<f64>("score"), Ok(0.5));
    assert_eq!(buffer.meta::<gst_video::VideoRegionOfInterestMeta>().unwrap().roi_type(), "face");
    let back = Meta::of_metadata(&bytes_of_metas(&buffer)).unwrap();
    assert_eq!(back, metas);
    // The engine passes over the kinds that it only names.
    let all = with(|buffer| {
        gst_video::VideoCaptionMeta::add(buffer, gst_video::VideoCaptionType::Cea708Raw, &[1, 2, 3]);
        gst_video::VideoTimeCodeMeta::add(buffer, &time_code((30000, 1001), None));
        let reference = gst::Caps::builder("timestamp/x-unix").build();
        gst::ReferenceTimestampMeta::add(buffer, &reference, gst::ClockTime::SECOND, None);
        gst_video::VideoMeta::add(
            buffer,
            gst_video::VideoFrameFlags::INTERLACED,
            gst_video::VideoFormat::Gray8,
            320,
            240,
        )
        .unwrap();
        gst_video::VideoCropMeta::add(buffer, (1, 2, 3, 4));
    });
    let found = Meta::of_metadata(&bytes_of_metas(&all)).unwrap();
    for name in ["caption", "timecode", "video"] {
        assert!(found.contains(&Meta::Other(name)), "{name}: {found:?}");
    }
    let is_reference = |meta: &&Meta| matches!(meta, Meta::ReferenceTimestamp { .. });
    let reference = found.iter().find(is_reference).expect("the reference timestamp crosses");
    let again = add(&Meta::to_metadata(std::slice::from_ref(reference)).unwrap()).unwrap();
    let again = again.meta::<gst::ReferenceTimestampMeta>().unwrap();
    assert_eq!(again.timestamp(), gst::ClockTime::SECOND);
    assert_eq!(again.reference().to_string(), "timestamp/x-unix");
    assert!(found.contains(&Meta::Crop([1, 2, 3, 4])));
}

#[test]
fn names_that_gstreamer_will_need_are_left_to_it() {
    gst::init().unwrap();
    for name in ["GstVideoCodecAlphaMeta", "GstFrameshareTestMetaAPI", "GObjectiveMeta", "GTestMeta"] {
        assert!(add(&custom(name, &[])).is_err(), "{name}");
        assert!(!gst::meta::CustomMeta::is_registered(name), "{name}");
        assert!(glib::Type::from_name(name).is_none(), "{name}");
    }
    for name in ["GroundTruthMeta", "Gsomething", "NvSomething"] {
        assert!(!is_reserved(name), "{name}");
    }
}

#[test]
fn metas_of_one_stream_or_memory_do_not_cross() {
    let parent = with(|_| {});
    let buffer = with(|buffer| {
        let frame = crate::meta::FrameInfo {
            session: 1,
            sequence: 2,
            lost_before: 3,
            published: 4,
            used_on: None,
            repeats: 0,
        };
        FrameshareMeta::add(buffer, frame);
        gst::meta::ParentBufferMeta::add(buffer, &parent);
    });
    assert!(bytes_of_metas(&buffer).is_empty());
}

fn refused(item: Item<'_>) -> bool {
    gst::init().unwrap();
    add(&bytes_of(item, |_| ())).is_err_and(|error| error == MetaError::Impossible(name_of(&item)))
}

#[test]
fn values_that_gstreamer_would_break_on_are_refused() {
    let video = Video { format: 23, width: 320, height: 240, flags: 0, alignment: None };
    let alignment = Alignment { top: 0, bottom: 0, left: 0, right: 0, masks: [0; 4] };
    assert!(!refused(Item::Video(video)));
    assert!(refused(Item::Video(Video { format: 0, ..video })));
    assert!(refused(Item::Video(Video { format: 99_999, ..video })));
    assert!(refused(Item::Video(Video { width: 0, ..video })));
    for bad in [
        Alignment { top: u32::MAX, ..alignment },
        Alignment { masks: [6, 0, 0, 0], ..alignment },
        Alignment { masks: [u32::MAX; 4], ..alignment },
    ] {
        assert!(refused(Item::Video(Video { alignment: Some(bad), ..video })));
    }

    let code =
        TimeCode { fps: (25, 1), flags: 0, time: [1, 2, 3], frames: 4, field_count: 0, daily_jam: None };
    assert!(!refused(Item::TimeCode(code)));
    for bad in [
        TimeCode { fps: (25, 0), ..code },
        TimeCode { fps: (i32::MIN, -1), ..code },
        TimeCode { time: [1, 60, 3], ..code },
        TimeCode { frames: u32::MAX, ..code },
        TimeCode { daily_jam: Some("yesterday\0"), ..code },
        TimeCode { daily_jam: Some("yesterday"), ..code },
    ] {
        assert!(refused(Item::TimeCode(bad)), "{bad:?}");
    }

    for (field, spec, value) in
        [(2, 1, 0), (0, 3, 2), (0, -1, 2), (0, 0, 0), (0, 1, 1), (0, 1, 16), (0, 1, -1)]
    {
        assert!(refused(Item::ActiveFormat { field, spec, value }), "{field} {spec} {value}");
    }
    assert!(refused(Item::Bar { field: 2, is_letterbox: true, first: 0, second: 0 }));
    let is_impossible =
        |bytes: &[u8]| matches!(add(bytes), Err(MetaError::Impossible(_) | MetaError::Malformed));
    assert!(is_impossible(&custom("abc", &[&"t".repeat(MAX_TAG + 1)])));
    assert!(is_impossible(&custom("abc", &["a\0b"])));
    assert!(is_impossible(&custom("abc", &[""; MAX_TAGS as usize + 1])));
    for name in ["a b", "GstVideoMeta", "GstElement", "", "-", "x"] {
        assert!(is_impossible(&custom(name, &[])), "{name}");
    }
    let reference = |timestamp, caps: &gst::Caps| {
        bytes_of(Item::ReferenceTimestamp { timestamp, duration: None }, |writer| writer.caps(caps).unwrap())
    };
    let ntp = gst::Caps::new_empty_simple("timestamp/x-ntp");
    assert!(!is_impossible(&reference(1, &ntp)));
    assert!(is_impossible(&reference(u64::MAX, &ntp)));
    assert!(is_impossible(&reference(1, &gst::Caps::new_any())));
    assert!(is_impossible(&reference(1, &gst::Caps::new_empty())));
    let region = |kind, params| {
        let item = Item::RegionOfInterest { kind, id: 0, parent: 0, rect: [0; 4], params };
        bytes_of(item, |writer| (0..params).for_each(|_| writer.plain(&("a", 0_u32))))
    };
    assert!(!is_impossible(&region("face", 1)));
    assert!(is_impossible(&region("", 1)));
    assert!(is_impossible(&region("a\0b", 1)));
    assert!(is_impossible(&region("face", MAX_PARAMS + 1)));
    assert!(refused(Item::Caption { kind: 1, data: &[] }));
    assert!(refused(Item::Caption { kind: 99, data: &[1] }));
}

#[test]
fn meta_that_cannot_be_added_does_not_cost_the_others() {
    gst::init().unwrap();
    let mut bytes = custom("GstVideoMeta", &[]);
    bytes.extend_from_slice(&bytes_of(Item::Crop([1, 2, 3, 4]), |_| ())[1..]);
    let mut buffer = gst::Buffer::new();
    assert!(parse(&bytes).unwrap().add_to(buffer.make_mut(), true, true, &Dropped::default()).is_err());
    assert!(buffer.meta::<gst_video::VideoCropMeta>().is_some());
}

#[test]
fn metas_are_charged_while_their_buffer_exists() {
    gst::init().unwrap();
    let budget = Budget::new(1 << 20);
    let crops = |count: usize| {
        let crop = &bytes_of(Item::Crop([1, 2, 3, 4]), |_| ())[1..];
        [&[VERSION], crop.repeat(count).as_slice()].concat()
    };
    let held: Vec<_> = (0..3)
        .map(|_| {
            let mut buffer = gst::Buffer::new();
            super::parse(&crops(1000), &budget)
                .unwrap()
                .add_to(buffer.make_mut(), true, true, &Dropped::default())
                .unwrap();
            buffer
        })
        .collect();
    assert!(budget.used() >= 3000 * 64, "{}", budget.used());
    let error = super::parse(&crops(2000), &budget).unwrap_err();
    assert_eq!(error, MetaError::OverBudget(OverBudget { limit: 1 << 20 }));
    drop(held);
    assert_eq!(budget.used(), 0);
    super::parse(&crops(2000), &budget).unwrap();
}

#[test]
fn damaged_bytes_are_refused() {
    let buffer = with(|buffer| {
        gst_video::VideoCropMeta::add(buffer, (1, 2, 3, 4));
        gst_video::VideoRegionOfInterestMeta::add(buffer, "face", (1, 2, 3, 4));
        gst_video::VideoTimeCodeMeta::add(buffer, &time_code((30000, 1001), None));
        gst_video::VideoCaptionMeta::add(buffer, gst_video::VideoCaptionType::Cea708Raw, &[1, 2, 3]);
    });
    let bytes = bytes_of_metas(&buffer);
    assert_eq!(parse(&[9]).unwrap_err(), MetaError::Version(9));
    let lengths = (1..bytes.len()).filter(|length| parse(&bytes[..*length]).is_ok());
    assert_eq!(lengths.count(), 4, "nothing, or the items before one that is cut short");
    assert_eq!(parse(&[bytes.clone(), vec![99]].concat()).unwrap_err(), MetaError::Malformed);
    // Any byte may be anything: nothing but an error or other metas may come of it.
    for index in 0..bytes.len() {
        for value in 0..=255 {
            let mut damaged = bytes.clone();
            damaged[index] = value;
            if let Ok(metas) = parse(&damaged) {
                let _ = metas.add_to(gst::Buffer::new().make_mut(), true, true, &Dropped::default());
            }
        }
    }
}
