// SPDX-License-Identifier: MIT OR Apache-2.0
use super::*;
use crate::ffi::typed_value;
use crate::meta::budget::Budget;
use frameshare::event::form::{DateTime, MAX_DEPTH, MAX_NAME, Node};
use gst::prelude::*;

fn back(structure: &gst::Structure) -> Result<gst::Structure, Invalid> {
    let mut writer = Writer::default();
    writer.structure(structure).unwrap();
    let mut charge = Budget::new(1 << 20).charge();
    let mut reader = Reader::new(&writer.0, &mut charge);
    let structure = reader.structure()?;
    assert!(reader.is_at_end());
    Ok(structure)
}

fn value(node: &Node<'_>, rest: &[u8]) -> Result<glib::SendValue, Invalid> {
    gst::init().unwrap();
    let mut writer = Writer::default();
    writer.plain(node);
    writer.0.extend_from_slice(rest);
    Reader::new(&writer.0, &mut Budget::new(1 << 20).charge()).value()
}

#[test]
fn values_of_all_types_survive() {
    gst::init().unwrap();
    crate::meta::register();
    let inner = gst::Structure::builder("inner").field("text", "(\"a\\\"; {b}").build();
    let caps = gst::Caps::builder("video/x-raw")
        .features(["memory:CUDAMemory", "meta:GstVideoOverlayComposition"])
        .field("width", gst::IntRange::<i32>::with_step(2, 64, 2))
        .field("framerate", gst::FractionRange::new((1, 1), (30, 1)))
        .field("format", gst::List::new(["NV12", "I420"]))
        .build();
    let flag_set = glib::Type::from_name("GstVideoMultiviewFlagsSet").unwrap();
    let structure = gst::Structure::builder("all/of.them")
        .field("bool", true)
        .field("int", i32::MIN)
        .field("uint", u32::MAX)
        .field("int64", i64::MIN)
        .field("uint64", u64::MAX)
        .field("float", 0.1_f32)
        .field("double", -1e300)
        .field("text", "Käse \u{1f9c0}")
        .field("empty", "")
        .field("none", None::<String>)
        .field("fraction", gst::Fraction::new(30000, 1001))
        .field("bitmask", gst::Bitmask(u64::MAX))
        .field("range", gst::IntRange::<i64>::new(-1, 1 << 40))
        .field("enum", gst::Format::Time)
        .field("flags", gst::SegmentFlags::RESET | gst::SegmentFlags::SKIP)
        .field("flag-set", typed_value::to_flag_set(flag_set.name(), 1, 0xffff_ffff).unwrap())
        .field("date", glib::Date::from_dmy(29, glib::DateMonth::February, 2024).unwrap())
        .field("time", gst::DateTime::from_iso8601_string("2024-02-29T12:13:14.25+05:30").unwrap())
        .field("year", gst::DateTime::from_y(1999).unwrap())
        .field("buffer", gst::Buffer::from_slice([1_u8, 2, 3]))
        .field("list", gst::List::new([1, 2]))
        .field("array", gst::Array::new([gst::Array::new([1.5]), gst::Array::new([2.5])]))
        .field("nothing", gst::List::default())
        .field("structure", inner)
        .field("caps", caps)
        .field("any", gst::Caps::new_any())
        .build();
    let back = back(&structure).unwrap();
    assert_eq!(back.n_fields(), structure.n_fields());
    for (name, value) in structure.iter() {
        let other = back.value(name).unwrap();
        assert_eq!(other.type_(), value.type_(), "{name}");
        // Buffers are the same only if they are one.
        if name != "buffer" {
            assert!(GstValueExt::eq(&**value, other), "{name}: {value:?} and {other:?}");
        }
    }
    let buffer = back.get::<gst::Buffer>("buffer").unwrap();
    assert_eq!(buffer.map_readable().unwrap().as_slice(), [1, 2, 3]);
}

#[test]
fn time_beyond_twelve_hours_of_utc_is_sent_in_utc() {
    gst::init().unwrap();
    let time = glib::DateTime::from_iso8601("2024-02-29T12:13:14+13:00", None).unwrap();
    let time = gst::DateTime::from_g_date_time(time);
    let structure = back(&gst::Structure::builder("a").field("time", time).build()).unwrap();
    let time = structure.get::<gst::DateTime>("time").unwrap();
    assert_eq!((time.day(), time.hour(), time.time_zone_offset()), (Some(28), Some(23), Some(0.0)));
}

#[test]
fn structures_nest_up_to_the_limit_and_deeper_ones_stay_behind() {
    gst::init().unwrap();
    let nested = |depth: usize| {
        let inner = gst::Structure::new_empty("a");
        (0..depth).fold(inner, |inner, _| gst::Structure::builder("a").field("b", inner).build())
    };
    let fits = (1..100).take_while(|depth| Writer::default().structure(&nested(*depth)).is_ok()).count();
    assert!((4..=MAX_DEPTH).contains(&fits), "{fits}");
    assert_eq!(back(&nested(fits)).unwrap(), nested(fits));
}

#[test]
fn values_that_gstreamer_would_break_on_are_refused() {
    for node in [
        Node::Fraction(1, 0),
        Node::Fraction(1, -1),
        Node::Fraction(i32::MIN, 1),
        Node::IntRange(2, 1, 1),
        Node::IntRange(1, 4, 2),
        Node::IntRange(0, 4, 0),
        Node::Int64Range(0, i64::MAX, i64::MIN),
        Node::FractionRange((1, 1), (1, 1)),
        Node::FractionRange((1, 0), (1, 1)),
        Node::Enum("GstFormat", 99),
        Node::Enum("GstElement", 0),
        Node::Enum("no-such-type", 0),
        Node::Enum("a\0b", 0),
        Node::Flags("GstFormat", 1),
        Node::Flags("GstSegmentFlags", 1 << 31),
        Node::FlagSet("GstSegmentFlags", 0, 0),
        Node::Date(0),
        Node::Date(u32::MAX),
        Node::Text(Some("a\0b")),
        Node::Buffer(u64::MAX),
        Node::Buffer(1),
        Node::Sample(true, false, 0),
        Node::List(u32::MAX),
        Node::Structure,
        Node::Caps,
    ] {
        assert!(value(&node, &[]).is_err(), "{node:?}");
    }
    let time = DateTime { offset: 0, year: 2024, month: Some(2), day: None, time: None, micros: None };
    assert!(value(&Node::DateTime(time), &[]).is_ok());
    for bad in [
        DateTime { year: 0, ..time },
        DateTime { year: 10_000, ..time },
        DateTime { month: Some(13), ..time },
        DateTime { day: Some(30), ..time },
        DateTime { time: Some((1, 1)), ..time },
        DateTime { day: Some(1), time: Some((24, 1)), ..time },
        DateTime { day: Some(1), micros: Some(0), ..time },
        DateTime { day: Some(1), time: Some((1, 1)), micros: Some(60_000_000), ..time },
        DateTime { day: Some(1), time: Some((1, 1)), offset: 721, ..time },
    ] {
        assert!(value(&Node::DateTime(bad), &[]).is_err(), "{bad:?}");
    }
}

#[test]
fn list_of_several_types_is_refused() {
    let list = |nodes: &[Node<'_>]| {
        let mut writer = Writer::default();
        nodes.iter().for_each(|node| writer.plain(node));
        value(&Node::List(2), &writer.0)
    };
    assert!(list(&[Node::Int(1), Node::Int(2)]).is_ok());
    assert_eq!(
        list(&[Node::Int(1), Node::Uint(2)]).unwrap_err(),
        Invalid::Impossible("list of several types")
    );
    // The type of an array is that of its first element.
    assert!(list(&[Node::Int(1), Node::Array(0)]).is_ok());
    assert!(list(&[Node::Array(1), Node::Int(1), Node::Int(2)]).is_ok());
    assert!(list(&[Node::Array(1), Node::Int(1), Node::Bool(true)]).is_err());
}

#[test]
fn names_that_gstreamer_complains_of_are_refused() {
    gst::init().unwrap();
    for (name, field) in [
        ("", "a"),
        ("1a", "a"),
        ("a b", "a"),
        ("a\0", "a"),
        ("video/x-raw-yuv", "a"),
        ("a", ""),
        ("a", "b\0"),
        ("a", "b c"),
        (&"a".repeat(MAX_NAME + 1), "a"),
        ("a", &"a".repeat(MAX_NAME + 1)),
    ] {
        let mut writer = Writer::default();
        writer.plain(&(name, 1_u32, field, Node::Bool(true)));
        let mut charge = Budget::new(1 << 20).charge();
        let error = Reader::new(&writer.0, &mut charge).structure().unwrap_err();
        assert!(matches!(error, Invalid::Impossible(_)), "{name:?} {field:?}: {error}");
    }
}
