// SPDX-License-Identifier: MIT OR Apache-2.0

//! Form of events and of the values in them: kinds, nodes, limits and rules of names.
//!
//! Exporters carry an event as a kind and bytes. The bytes are a sequence of
//! [postcard](https://postcard.jamesmunns.com/wire-format) items:
//!
//! | item | content |
//! | --- | --- |
//! | tag | name, number of values, the values |
//! | structure | name, number of fields, then for each field its name and its value |
//! | caps | whether they are ANY, number of structures, then for each its features and the structure |
//! | value | one [`Node`], followed by the data that the node announces: bytes, elements, a structure or caps |
//!
//! The engine reads them into values of its own, the elements into GStreamer's. A kind's form never
//! changes; a new form gets a new number, and a reader ignores unknown numbers.

pub mod meta;

use serde::{Deserialize, Serialize};

/// Kinds of events. 2, 3, 5, 6 and those with bit 31 contained GStreamer's text form.
pub mod kind {
    /// [`StreamStart`](super::StreamStart).
    pub const STREAM_START: u32 = 0;
    /// [`Gap`](super::Gap).
    pub const GAP: u32 = 4;
    /// Tags of the stream.
    pub const STREAM_TAGS: u32 = 7;
    /// Tags of the medium with all its streams.
    pub const GLOBAL_TAGS: u32 = 8;
    /// The structure of a `custom-downstream` event.
    pub const CUSTOM: u32 = 9;
    /// The structure of a `custom-both` event.
    pub const CUSTOM_BOTH: u32 = 10;
    /// The exporter's segment.
    pub const SEGMENT: u32 = 11;
    /// The time in ns by which frames are published later than their presentation times say.
    pub const LATENCY: u32 = 12;
    /// The upper two bits of the kinds of `custom-downstream-sticky` events.
    const CUSTOM_STICKY: u32 = 0b01 << 30;
    const UPPER_BITS: u32 = 0b11 << 30;

    /// Returns the kind of sticky custom events of a name, of which readers get the newest: FNV-1a,
    /// in 30 bits.
    pub fn custom_sticky(name: &str) -> u32 {
        let mix = |hash: u32, byte: u8| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
        name.bytes().fold(0x811c_9dc5, mix) & !UPPER_BITS | CUSTOM_STICKY
    }

    /// Returns whether a kind is one of sticky custom events.
    pub fn is_custom_sticky(kind: u32) -> bool {
        kind & UPPER_BITS == CUSTOM_STICKY
    }
}

/// Maximum depth of lists, arrays, structures and caps inside each other.
pub const MAX_DEPTH: usize = 16;
/// Maximum number of fields of one structure: GStreamer searches all of them for each new one.
pub const MAX_FIELDS: u32 = 1024;
/// Maximum number of features of one structure of caps.
pub const MAX_FEATURES: u32 = 64;
/// Maximum length of the name of a structure, field, feature or type, in bytes.
pub const MAX_NAME: usize = 256;
/// Maximum length of a stream id in bytes.
const MAX_STREAM_ID: usize = 4096;

/// The start of a stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamStart {
    /// The stream's id, not empty.
    pub id: String,
    /// GstStreamFlags.
    pub flags: u32,
    /// The group that the stream belongs to, a number of the exporter's process.
    pub group: Option<u32>,
}

impl StreamStart {
    /// Checks the id.
    ///
    /// # Errors
    /// The name of the invalid part.
    pub fn check(&self) -> Result<(), &'static str> {
        let id = &self.id;
        check(!id.is_empty() && id.len() <= MAX_STREAM_ID && !id.contains('\0'), "stream id")
    }
}

/// A time without frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gap {
    /// Its start, in ns of `CLOCK_MONOTONIC`.
    pub pts: u64,
    /// Its duration in ns.
    pub duration: Option<u64>,
    /// GstGapFlags.
    pub flags: u32,
}

impl Gap {
    /// Checks the times: all ones mean none.
    ///
    /// # Errors
    /// The name of the invalid part.
    pub fn check(&self) -> Result<(), &'static str> {
        check(self.pts != u64::MAX && self.duration != Some(u64::MAX), "time")
    }
}

/// One value, or the head of one.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the variants are GStreamer's types")]
pub enum Node<'a> {
    Bool(bool),
    Int(i32),
    Uint(u32),
    Int64(i64),
    Uint64(u64),
    Float(f32),
    Double(f64),
    Text(Option<&'a str>),
    Fraction(i32, i32),
    Bitmask(u64),
    /// Minimum, maximum, step.
    IntRange(i32, i32, i32),
    Int64Range(i64, i64, i64),
    /// Minimum and maximum.
    FractionRange((i32, i32), (i32, i32)),
    /// Type and value.
    Enum(&'a str, i32),
    Flags(&'a str, u32),
    /// Type, flags, mask.
    FlagSet(&'a str, u32, u32),
    /// Days: 1 is the first of January of the year 1.
    Date(u32),
    DateTime(DateTime),
    /// This many bytes follow.
    Buffer(u64),
    /// Whether caps follow, whether a structure follows, and the number of bytes that follow these.
    Sample(bool, bool, u64),
    /// This many values follow.
    List(u32),
    Array(u32),
    Structure,
    Caps,
}

impl Node<'_> {
    /// Checks a value that is one node long, by the rules of GStreamer's types, which only know
    /// whether a named type exists.
    ///
    /// # Errors
    /// The name of the invalid part.
    pub fn check(&self) -> Result<(), &'static str> {
        let fraction =
            |(numerator, denominator): (i32, i32)| check(denominator > 0 && numerator > i32::MIN, "fraction");
        match *self {
            Self::Text(Some(text)) => check(!text.contains('\0'), "text"),
            Self::Fraction(numerator, denominator) => fraction((numerator, denominator)),
            Self::FractionRange(min, max) => {
                fraction(min).and_then(|()| fraction(max))?;
                let product = |(a, _): (i32, i32), (_, b): (i32, i32)| i64::from(a) * i64::from(b);
                check(product(min, max) < product(max, min), "range")
            }
            Self::IntRange(min, max, step) => {
                check(min < max && step > 0 && min % step == 0 && max % step == 0, "range")
            }
            Self::Int64Range(min, max, step) => {
                check(min < max && step > 0 && min % step == 0 && max % step == 0, "range")
            }
            Self::Enum(name, _) | Self::Flags(name, _) | Self::FlagSet(name, ..) => {
                check(is_field_name(name), "name of a type")
            }
            // Up to the year 9999.
            Self::Date(day) => check((1..=3_652_059).contains(&day), "date"),
            Self::DateTime(time) => time.check(),
            _ => Ok(()),
        }
    }
}

/// A date, with the parts of it that are known: each except the offset needs those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DateTime {
    /// Offset from UTC in minutes; meaningful with the hour.
    pub offset: i16,
    /// 1 to 9999.
    pub year: i32,
    /// 1 to 12.
    pub month: Option<u8>,
    /// 1 to 31.
    pub day: Option<u8>,
    /// Hour and minute.
    pub time: Option<(u8, u8)>,
    /// Microseconds of the minute.
    pub micros: Option<u32>,
}

impl DateTime {
    fn check(&self) -> Result<(), &'static str> {
        let Self { year, month, day, time, micros, .. } = *self;
        let is_valid = (1..=9999).contains(&year)
            && month.is_none_or(|month| (1..=12).contains(&month))
            && day.is_none_or(|day| month.is_some() && (1..=31).contains(&day))
            && time.is_none_or(|(hour, minute)| day.is_some() && hour < 24 && minute < 60)
            && micros.is_none_or(|micros| time.is_some() && micros < 60_000_000);
        check(is_valid, "date")
    }
}

/// Returns whether `name` can name a structure. GStreamer takes no other name but with a critical;
/// 0.10's names of raw caps raise a warning.
pub fn is_structure_name(name: &str) -> bool {
    name.len() <= MAX_NAME
        && name.starts_with(|c: char| c.is_ascii_alphabetic())
        && name.bytes().all(|c| c.is_ascii_alphanumeric() || b"/-_.:+".contains(&c))
        && !name.starts_with("video/x-raw-")
        && !name.starts_with("audio/x-raw-")
}

/// Returns whether `name` can name a field or tag.
pub fn is_field_name(name: &str) -> bool {
    (1..=MAX_NAME).contains(&name.len()) && name.bytes().all(|c| c.is_ascii_graphic())
}

/// Returns whether `name` can name a feature of caps (letters, a colon, a letter, letters and
/// digits: `gst_caps_feature_name_is_valid`).
pub fn is_feature_name(name: &str) -> bool {
    let Some((domain, feature)) = name.split_once(':') else { return false };
    name.len() <= MAX_NAME
        && !domain.is_empty()
        && feature.starts_with(|c: char| c.is_ascii_alphabetic())
        && domain.bytes().all(|c| c.is_ascii_alphabetic())
        && feature.bytes().all(|c| c.is_ascii_alphanumeric())
}

fn check(is_valid: bool, what: &'static str) -> Result<(), &'static str> {
    if is_valid { Ok(()) } else { Err(what) }
}
