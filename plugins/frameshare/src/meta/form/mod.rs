// SPDX-License-Identifier: MIT OR Apache-2.0

//! Typed form of GStreamer's structures, caps and values.
//!
//! GStreamer's own form is text, and its parsers recurse as deep as a text nests, unescape quoted
//! texts and parse them again, and raise criticals. No text of a peer reaches them: the writer
//! sends each value by its type, the reader builds it by its type. The form is a sequence of
//! [postcard](https://postcard.jamesmunns.com/wire-format) items:
//!
//! | item | content |
//! | --- | --- |
//! | structure | name, number of fields, then for each field its name and its value |
//! | caps | whether they are ANY, number of structures, then for each its features and the structure |
//! | value | one [`Node`], followed by the data that the node announces: bytes, elements, a structure or caps |
//!
//! Values nest at most [`MAX_DEPTH`] deep. A value of any other type cannot be sent.

mod read;
mod write;

pub(crate) use crate::ffi::typed_value::is_type_name;
pub(super) use crate::ffi::typed_value::of_named_type;
pub(crate) use read::Reader;
pub(super) use read::{are_of_one_type, fraction};
pub(crate) use write::{Unwritable, Writer};

use super::budget::OverBudget;
use serde::{Deserialize, Serialize};

/// Maximum depth of lists, arrays, structures and caps inside each other.
const MAX_DEPTH: usize = 16;
/// Maximum number of fields of one structure: GStreamer searches all of them for each new one.
const MAX_FIELDS: u32 = 1024;
/// Maximum length of the name of a structure, field, feature or type, in bytes.
pub(crate) const MAX_NAME: usize = 256;

/// The reason why a peer's bytes are refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Invalid {
    #[error("cut short or damaged")]
    Malformed,
    #[error("impossible {0}")]
    Impossible(&'static str),
    #[error(transparent)]
    OverBudget(#[from] OverBudget),
}

/// One value, or the head of one.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
enum Node<'a> {
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
    /// Julian day.
    Date(u32),
    DateTime(DateTime),
    /// A buffer of this many bytes, which follow.
    Buffer(u64),
    /// A sample: whether caps follow, whether a structure follows, and the number of bytes that
    /// follow these.
    Sample(bool, bool, u64),
    /// This many values follow.
    List(u32),
    Array(u32),
    Structure,
    Caps,
}

/// A GstDateTime. Each field except the offset needs the ones before it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct DateTime {
    /// Offset from UTC in minutes; present with the hour.
    offset: i16,
    year: i32,
    month: Option<u8>,
    day: Option<u8>,
    /// Hour and minute.
    time: Option<(u8, u8)>,
    /// Microseconds of the minute.
    micros: Option<u32>,
}

/// Whether `name` can name a structure. GStreamer takes no other name but with a critical; 0.10's
/// names of raw caps raise a warning.
pub(crate) fn is_structure_name(name: &str) -> bool {
    name.len() <= MAX_NAME
        && name.starts_with(|c: char| c.is_ascii_alphabetic())
        && name.bytes().all(|c| c.is_ascii_alphanumeric() || b"/-_.:+".contains(&c))
        && !name.starts_with("video/x-raw-")
        && !name.starts_with("audio/x-raw-")
}

/// Whether `name` can name a field or tag.
pub(crate) fn is_field_name(name: &str) -> bool {
    (1..=MAX_NAME).contains(&name.len()) && name.bytes().all(|c| c.is_ascii_graphic())
}

/// Whether `name` can name a feature of caps (letters, a colon, a letter, letters and digits:
/// `gst_caps_feature_name_is_valid`).
pub(crate) fn is_feature_name(name: &str) -> bool {
    let Some((domain, feature)) = name.split_once(':') else { return false };
    name.len() <= MAX_NAME
        && !domain.is_empty()
        && feature.starts_with(|c: char| c.is_ascii_alphabetic())
        && domain.bytes().all(|c| c.is_ascii_alphabetic())
        && feature.bytes().all(|c| c.is_ascii_alphanumeric())
}

#[cfg(test)]
mod tests;
