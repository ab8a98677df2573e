// SPDX-License-Identifier: MIT OR Apache-2.0
use super::*;

fn all_values() -> Structure {
    let inner = Structure::new("inner").field("text", "(\"a\\\"; {b}");
    let caps = Caps::Structures(vec![CapsStructure {
        any_features: false,
        features: vec!["memory:CUDAMemory".into()],
        structure: Structure::new("video/x-raw")
            .field("width", Value::IntRange { min: 2, max: 64, step: 2 })
            .field("framerate", Value::FractionRange { min: (1, 1), max: (30, 1) }),
    }]);
    let time = DateTime {
        offset: 330,
        year: 2024,
        month: Some(2),
        day: Some(29),
        time: Some((12, 13)),
        micros: Some(14_250_000),
    };
    Structure::new("all/of.them")
        .field("bool", true)
        .field("int", i32::MIN)
        .field("uint", u32::MAX)
        .field("int64", i64::MIN)
        .field("uint64", u64::MAX)
        .field("float", 0.1_f32)
        .field("double", -1e300)
        .field("text", "K\u{e4}se \u{1f9c0}")
        .field("none", Value::Text(None))
        .field("fraction", Value::Fraction { numerator: 30000, denominator: 1001 })
        .field("bitmask", Value::Bitmask(u64::MAX))
        .field("range", Value::Int64Range { min: -1, max: 1 << 40, step: 1 })
        .field("enum", Value::Enum { name: "GstFormat".into(), value: 3 })
        .field("flags", Value::Flags { name: "GstSegmentFlags".into(), value: 5 })
        .field("flag-set", Value::FlagSet { name: "GstFlagSet".into(), flags: 1, mask: 1 })
        .field("date", Value::Date(738_945))
        .field("time", time)
        .field("buffer", vec![1_u8, 2, 3])
        .field("list", Value::List(vec![1.into(), 2.into()]))
        .field("array", Value::Array(vec![Value::Array(vec![1.5.into()])]))
        .field("sample", Value::Sample { caps: Some(Caps::Any), info: Some(inner.clone()), bytes: vec![7] })
        .field("structure", inner)
        .field("caps", caps)
}

const SEGMENT: Segment = Segment {
    origin: 1000,
    rate: 2.0,
    applied_rate: 1.0,
    start: 10,
    stop: Some(900),
    offset: 0,
    time: 3,
    base: 5,
};

#[test]
fn segment_turns_clock_into_timestamps() {
    assert_eq!((SEGMENT.timestamp(1005), SEGMENT.stream_time(1005)), (10, 3));
    assert_eq!((SEGMENT.timestamp(1105), SEGMENT.stream_time(1105)), (210, 203));
    assert_eq!(SEGMENT.timestamp(1000), 0);
}

fn custom(structure: Structure) -> Content {
    Content::Custom { structure, delivery: Delivery::InOrder }
}

#[test]
fn every_content_is_read_as_written() {
    let tag = |name: &str, values: &[Value]| Tag { name: name.into(), values: values.to_vec() };
    for (content, sticky) in [
        (Content::StreamStart { id: "a/b".into(), flags: 1, group: Some(7) }, true),
        (
            Content::Tags { scope: TagScope::Global, tags: vec![tag("artist", &["a".into(), "b".into()])] },
            true,
        ),
        (Content::Tags { scope: TagScope::Stream, tags: vec![tag("x", &[]), tag("y", &[1.into()])] }, true),
        (Content::Gap { pts: 5, duration: Some(7), flags: 1 }, false),
        (Content::Segment(SEGMENT), true),
        (custom(all_values()), false),
        (Content::Custom { structure: all_values(), delivery: Delivery::Both }, false),
        (Content::Custom { structure: all_values(), delivery: Delivery::Sticky }, true),
    ] {
        let event = content.to_event().unwrap();
        assert_eq!((event.content().as_ref(), event.sticky), (Ok(&content), sticky), "{content:?}");
        // No part of it is an event, and nothing may follow it.
        for end in 0..event.payload.len() {
            let cut = Event { payload: event.payload[..end].to_vec(), ..event.clone() };
            assert_ne!(cut.content(), Ok(content.clone()), "{end}");
        }
        let longer = Event { payload: [&event.payload[..], &[0]].concat(), ..event };
        assert!(longer.content().is_err(), "{content:?}");
    }
}

#[test]
fn sticky_events_of_two_names_have_two_kinds() {
    let kind = |name: &str| {
        let structure = Structure::new(name);
        Content::Custom { structure, delivery: Delivery::Sticky }.to_event().unwrap().kind
    };
    assert_ne!(kind("a"), kind("b"));
}

#[test]
fn invalid_content_is_refused_on_both_sides() {
    let field = |value: Value| custom(Structure::new("a").field("b", value));
    let nested =
        |depth: usize| (0..depth).fold(Structure::new("a"), |inner, _| Structure::new("a").field("b", inner));
    assert!(custom(nested(8)).to_event().is_ok());
    for content in [
        Content::Unknown,
        Content::Withdrawn,
        Content::Tags { scope: TagScope::Stream, tags: Vec::new() },
        Content::Tags { scope: TagScope::Stream, tags: vec![Tag { name: "a b".into(), values: Vec::new() }] },
        Content::StreamStart { id: String::new(), flags: 0, group: None },
        Content::StreamStart { id: "x".repeat(4097), flags: 0, group: None },
        Content::Gap { pts: u64::MAX, duration: None, flags: 0 },
        Content::Segment(Segment { rate: 0.0, ..SEGMENT }),
        Content::Segment(Segment { applied_rate: f64::NAN, ..SEGMENT }),
        Content::Segment(Segment { base: u64::MAX, ..SEGMENT }),
        Content::Segment(Segment { stop: Some(9), ..SEGMENT }),
        Content::Segment(Segment { stop: Some(u64::MAX), ..SEGMENT }),
        custom(Structure::new("")),
        custom(Structure::new("video/x-raw-rgb")),
        custom(Structure::new("a").field("\u{e4}", 1)),
        custom(nested(100)),
        field(Value::Text(Some("a\0b".into()))),
        field(Value::Fraction { numerator: 1, denominator: 0 }),
        field(Value::IntRange { min: 1, max: 4, step: 2 }),
        field(Value::FractionRange { min: (2, 1), max: (1, 1) }),
        field(Value::Date(0)),
        field(Value::Enum { name: String::new(), value: 0 }),
    ] {
        assert!(matches!(content.to_event(), Err(EventError::Invalid { .. })), "{content:?}");
    }
    let read = |kind, payload: &[u8]| Event { kind, sticky: false, payload: payload.to_vec() }.content();
    // Few bytes that announce many values.
    let many = [&b"\x01a\x01\x01b\x14\xff\xff\xff\xff\x0f"[..], &[0; 140_000]].concat();
    assert_eq!(
        read(kind::CUSTOM, &many),
        Err(EventError::Invalid { kind: kind::CUSTOM, what: "number of values" })
    );
    assert_eq!(
        read(kind::CUSTOM, b"\x01a\x01\x01b\x12\xff\xff\x03"),
        Err(EventError::Malformed { kind: kind::CUSTOM })
    );
    assert_eq!(read(kind::GAP, b"\x01"), Err(EventError::Malformed { kind: kind::GAP }));
    assert_eq!((read(77, b"x"), read(kind::GAP, b"")), (Ok(Content::Unknown), Ok(Content::Withdrawn)));
}
