// SPDX-License-Identifier: MIT OR Apache-2.0
use super::*;
use gst::prelude::*;

const ALL: u64 = 1 << 30;

fn decode(event: &frameshare::Event) -> Result<Option<Incoming>, EventError> {
    super::decode(event, &Budget::new(ALL))
}

fn round_trip(event: &gst::Event) -> gst::Event {
    let encoded = encode(event).unwrap().unwrap();
    match decode(&encoded).unwrap().unwrap() {
        Incoming::Event(event) => event,
        incoming => panic!("{incoming:?}"),
    }
}

fn noise(size: usize) -> Vec<u8> {
    let mut state = 7_u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    (0..size).map(|_| next()).collect()
}

fn tags() -> gst::TagList {
    let mut list = gst::TagList::new();
    let content = list.make_mut();
    content.set_scope(gst::TagScope::Global);
    let mode = gst::TagMergeMode::Append;
    content.add::<gst::tags::Title>(&"Ein \"Käse\"; (string) \\ {x}\n", mode);
    content.add::<gst::tags::Artist>(&"one", mode);
    content.add::<gst::tags::Artist>(&"two", mode);
    content.add::<gst::tags::Bitrate>(&u32::MAX, mode);
    content.add::<gst::tags::Duration>(&gst::ClockTime::from_seconds(3), mode);
    content.add::<gst::tags::GeoLocationLatitude>(&-12.345_678_901_234_5, mode);
    content.add::<gst::tags::DateTime>(
        &gst::DateTime::from_iso8601_string("2024-02-29T12:13:14Z").unwrap(),
        mode,
    );
    content.add::<gst::tags::Date>(&glib::Date::from_dmy(3, glib::DateMonth::May, 1999).unwrap(), mode);
    list
}

#[test]
fn tags_of_all_types_and_both_scopes_survive() {
    gst::init().unwrap();
    let mut list = tags();
    let back = round_trip(&gst::event::Tag::new(list.clone()));
    let gst::EventView::Tag(back) = back.view() else { panic!("{back:?}") };
    assert_eq!((back.tag(), back.tag().scope()), (list.as_ref(), gst::TagScope::Global));
    list.make_mut().set_scope(gst::TagScope::Stream);
    let (global, stream) = (encode(&gst::event::Tag::new(tags())), encode(&gst::event::Tag::new(list)));
    assert_ne!(global.unwrap().unwrap().kind, stream.unwrap().unwrap().kind);
}

#[test]
fn cover_art_of_a_megabyte_survives_byte_by_byte() {
    gst::init().unwrap();
    let data = noise(1 << 20);
    let image = gst::Buffer::from_slice(data.clone());
    let caps = gst::Caps::builder("image/jpeg").field("width", 1000).build();
    let info = gst::Structure::builder("GstTagImageInfo").field("n", 3).build();
    let sample = gst::Sample::builder().buffer(&image).caps(&caps).info(info.clone()).build();
    let mut list = gst::TagList::new();
    list.make_mut().add::<gst::tags::Image>(&sample, gst::TagMergeMode::Append);
    let encoded = encode(&gst::event::Tag::new(list)).unwrap().unwrap();
    assert!(encoded.payload.len() < data.len() + 1000, "the image takes {} bytes", encoded.payload.len());
    let Some(Incoming::Event(back)) = decode(&encoded).unwrap() else { panic!() };
    let gst::EventView::Tag(back) = back.view() else { panic!("{back:?}") };
    let image = back.tag().get::<gst::tags::Image>().unwrap();
    let image = image.get();
    assert!(image.buffer().unwrap().map_readable().unwrap().as_slice() == data);
    assert_eq!(image.caps(), Some(caps.as_ref()));
    assert_eq!(image.info(), Some(info.as_ref()));
}

#[test]
fn custom_events_survive_and_keep_their_kind() {
    gst::init().unwrap();
    let fields = gst::Structure::builder("app/thing")
        .field("text", "a \"b\" {c}")
        .field("list", gst::List::new([1, 2]))
        .field("inner", gst::Structure::builder("inner").field("x", 0.1).build())
        .field("caps", "video/x-raw, width=3".parse::<gst::Caps>().unwrap())
        .build();
    for event in [
        gst::event::CustomDownstream::new(fields.clone()),
        gst::event::CustomBoth::new(fields.clone()),
        gst::event::CustomDownstreamSticky::new(fields.clone()),
    ] {
        let back = round_trip(&event);
        assert_eq!((back.type_(), back.structure()), (event.type_(), Some(fields.as_ref())));
    }
    let sticky = |name: &str| {
        let event = gst::event::CustomDownstreamSticky::new(gst::Structure::new_empty(name));
        encode(&event).unwrap().unwrap()
    };
    assert!(sticky("a").sticky && sticky("a").kind != sticky("b").kind);
}

#[test]
fn unwritable_event_is_reported_and_not_sent() {
    gst::init().unwrap();
    let object = gst::Bus::new();
    let fields = gst::Structure::builder("app").field("n", 1).field("bus", object).build();
    let event = gst::event::CustomDownstream::new(fields);
    assert_eq!(encode(&event).unwrap_err(), EventError::Unwritable("\"bus\"".into()));
    for event in [
        gst::event::Caps::new(&gst::Caps::new_empty_simple("x/y")),
        gst::event::Segment::new(&gst::FormattedSegment::<gst::ClockTime>::new()),
        gst::event::FlushStop::new(true),
        gst::event::Eos::new(),
        gst::event::CustomDownstream::new(gst::Structure::new_empty(FORCE_KEY_UNIT)),
    ] {
        assert!(encode(&event).unwrap().is_none(), "{event:?}");
    }
}

#[test]
fn a_stream_keeps_its_id_its_flags_and_its_group() {
    gst::init().unwrap();
    let group = gst::GroupId::next();
    let event =
        gst::event::StreamStart::builder("a/b:c").group_id(group).flags(gst::StreamFlags::SPARSE).build();
    let Some(Incoming::StreamStart(start)) = decode(&encode(&event).unwrap().unwrap()).unwrap() else {
        panic!()
    };
    assert_eq!((start.id.as_str(), start.flags), ("a/b:c", gst::StreamFlags::SPARSE.bits()));
    assert_eq!(start.group, event.structure().unwrap().get("group-id").ok());
    assert!(start.group.is_some());
}

#[test]
fn tags_that_this_process_does_not_know_are_left_out() {
    gst::init().unwrap();
    let text = |name: &str| {
        let mut bytes = write(&(name, 1_u32));
        let mut value = Writer::default();
        value.value(&"x".to_value()).unwrap();
        bytes.append(&mut value.0);
        bytes
    };
    let payload = text("no-such-tag");
    let Some(Incoming::Event(event)) = decode(&sticky(kind::STREAM_TAGS, payload)).unwrap() else { panic!() };
    let gst::EventView::Tag(event) = event.view() else { panic!() };
    assert_eq!(event.tag().n_tags(), 0);
    // A known tag, but of another type.
    for bad in ["bitrate", "image", "", "x\0y"] {
        assert!(decode(&sticky(kind::STREAM_TAGS, text(bad))).is_err(), "{bad:?}");
    }
}

/// Every input is accepted or refused, and GStreamer's own checks find nothing.
#[test]
fn hostile_bytes_are_refused() {
    gst::init().unwrap();
    glib::log_set_always_fatal(
        glib::LogLevels::LEVEL_ERROR | glib::LogLevels::LEVEL_CRITICAL | glib::LogLevels::LEVEL_WARNING,
    );
    let custom =
        gst::Structure::builder("app").field("a", "b").field("c", gst::List::new([1.5, 2.0])).build();
    let sound = [
        encode(&gst::event::Tag::new(tags())).unwrap().unwrap(),
        encode(&gst::event::StreamStart::new("id")).unwrap().unwrap(),
        encode(&gst::event::CustomDownstreamSticky::new(custom)).unwrap().unwrap(),
        encode_gap(Gap { pts: 5, duration: Some(6), flags: 0 }),
    ];
    let mut refused = 0;
    let mut try_it = |kind, payload: Vec<u8>| {
        let event = frameshare::Event { kind, sticky: false, payload };
        refused += usize::from(decode(&event).is_err());
    };
    for event in &sound {
        for kind in [
            kind::STREAM_START,
            kind::STREAM_TAGS,
            kind::GLOBAL_TAGS,
            kind::GAP,
            kind::CUSTOM,
            kind::CUSTOM_BOTH,
            kind::custom_sticky("a"),
        ] {
            try_it(kind, event.payload.clone());
        }
        for length in 0..event.payload.len() {
            try_it(event.kind, event.payload[..length].to_vec());
        }
        for at in 0..event.payload.len() {
            for change in [0x01, 0x20, 0x80, 0xff] {
                let mut payload = event.payload.clone();
                payload[at] ^= change;
                try_it(event.kind, payload);
            }
            let mut zero = event.payload.clone();
            zero[at] = 0;
            try_it(event.kind, zero);
        }
    }
    assert!(refused > 500, "{refused} refused");
    assert!(decode(&passing(77, vec![1])).unwrap().is_none());
}

/// The event of a structure that nests `depth` structures in each other.
fn nested(depth: usize) -> Result<Option<Incoming>, EventError> {
    const STRUCTURE: u8 = 22;
    let head = |bytes: &mut Vec<u8>| bytes.extend_from_slice(&[1, b'a', 1, 1, b'b']);
    let mut bytes = Vec::new();
    head(&mut bytes);
    for _ in 0..depth {
        bytes.push(STRUCTURE);
        head(&mut bytes);
    }
    bytes.extend_from_slice(&[0, 1]);
    decode(&passing(kind::CUSTOM, bytes))
}

#[test]
fn nested_structures_are_refused_beyond_the_limit() {
    gst::init().unwrap();
    assert!(matches!(nested(3), Ok(Some(_))));
    for depth in [16, 1000, 40_000, 200_000] {
        assert_eq!(nested(depth).unwrap_err(), EventError::Impossible(kind::CUSTOM, "nesting"), "{depth}");
    }
}

/// Texts that GStreamer's parser recursed on, or raised a critical for, have no meaning in the
/// present kinds.
#[test]
fn text_of_earlier_kinds_is_ignored() {
    gst::init().unwrap();
    let deep = format!("a, b={}", "(a\")".repeat(50_000));
    for text in [deep.as_str(), "a, c=(taglist)\"x\"", "a, b=1;"] {
        for kind in [2, 3, 5, 6, 1 << 31] {
            assert!(decode(&passing(kind, text.into())).unwrap().is_none());
        }
        assert!(decode(&passing(kind::CUSTOM, text.into())).is_err(), "{text:.40}");
    }
}

#[test]
fn event_is_charged_while_it_exists() {
    gst::init().unwrap();
    let budget = Budget::new(3 << 20);
    let event = |name: &str| {
        let fields = gst::Structure::builder(name).field("data", "x".repeat(1 << 20)).build();
        super::decode(&encode(&gst::event::CustomDownstreamSticky::new(fields)).unwrap().unwrap(), &budget)
    };
    let first = event("frameshare-first").unwrap();
    let second = event("frameshare-second").unwrap();
    assert_eq!(event("frameshare-third").unwrap_err(), EventError::OverBudget(OverBudget { limit: 3 << 20 }));
    drop(first);
    event("frameshare-third").unwrap();
    drop(second);
    assert!(budget.used() < 1 << 20, "names alone stay charged: {}", budget.used());
}

/// A tag, value or field of a byte or two is charged its size in memory.
#[test]
fn tiny_items_are_charged_more_than_their_bytes() {
    gst::init().unwrap();
    let budget = Budget::new(1 << 20);
    let empty = write(&("title", 0_u32)).repeat(1 << 20);
    let tags = super::decode(&sticky(kind::STREAM_TAGS, empty), &budget).unwrap_err();
    assert_eq!(tags, EventError::OverBudget(OverBudget { limit: 1 << 20 }));
    let mut values = write(&("track-number", 1_u32 << 20));
    values.extend([2, 1].repeat(1 << 20));
    let values = super::decode(&sticky(kind::STREAM_TAGS, values), &budget).unwrap_err();
    assert_eq!(values, EventError::OverBudget(OverBudget { limit: 1 << 20 }));
    assert_eq!(budget.used(), 0);
}

/// GStreamer appends to its lists in place: the time is linear in the number of values.
#[test]
fn thousands_of_values_of_one_tag_are_read() {
    gst::init().unwrap();
    let mut writer = Writer::default();
    writer.plain(&("artist", 16_000_u32));
    (0..16_000).for_each(|number| writer.value(&format!("artist {number}").to_value()).unwrap());
    let Ok(Some(Incoming::Event(event))) = decode(&sticky(kind::STREAM_TAGS, writer.0)) else { panic!() };
    let gst::EventView::Tag(event) = event.view() else { panic!() };
    assert_eq!(event.tag().size::<gst::tags::Artist>(), 16_000);
}

#[test]
fn impossible_timelines_are_refused() {
    gst::init().unwrap();
    let segment = gst::FormattedSegment::<gst::ClockTime>::new();
    let good = *Timeline::of(&segment, 0).unwrap();
    let is_refused = |segment| decode(&sticky(kind::SEGMENT, write(&segment))).is_err();
    assert!(!is_refused(good));
    assert!(is_refused(frameshare::event::Segment { rate: f64::NAN, ..good }));
    assert!(is_refused(frameshare::event::Segment { origin: u64::MAX, ..good }));
}
