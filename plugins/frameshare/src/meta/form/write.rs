// SPDX-License-Identifier: MIT OR Apache-2.0

//! Values to bytes.

use crate::ffi::typed_value;
use frameshare::event::form::{
    DateTime, MAX_DEPTH, MAX_FIELDS, Node, is_feature_name, is_field_name, is_structure_name,
};
use glib::prelude::*;
use serde::Serialize;

/// Names the field or type that has no form.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} cannot be sent")]
pub(crate) struct Unwritable(pub String);

type Result = std::result::Result<(), Unwritable>;

/// Builds the bytes of a form.
#[derive(Debug, Default)]
pub(crate) struct Writer(pub Vec<u8>);

impl Writer {
    /// Appends plain data.
    pub fn plain(&mut self, content: &impl Serialize) {
        // Cannot fail: plain data into a growing buffer.
        self.0 = postcard::to_extend(content, std::mem::take(&mut self.0)).unwrap_or_default();
    }

    /// Appends a structure.
    pub fn structure(&mut self, structure: &gst::StructureRef) -> Result {
        self.structure_at(structure, 0)
    }

    /// Appends caps.
    pub fn caps(&mut self, caps: &gst::CapsRef) -> Result {
        self.caps_at(caps, 0)
    }

    /// Appends a value.
    pub fn value(&mut self, value: &glib::Value) -> Result {
        self.value_at(value, 0)
    }

    fn structure_at(&mut self, structure: &gst::StructureRef, depth: usize) -> Result {
        let unwritable = |what: &str| Unwritable(format!("{:?}", shorten(what)));
        let name = structure.name();
        let fits = depth <= MAX_DEPTH && structure.n_fields() <= MAX_FIELDS as usize;
        if !fits || !is_structure_name(name) {
            return Err(unwritable(name));
        }
        self.plain(&(name.as_str(), structure.n_fields() as u32));
        structure.iter().try_for_each(|(name, value)| {
            if !is_field_name(name) {
                return Err(unwritable(name));
            }
            self.plain(&name.as_str());
            self.value_at(value, depth + 1).map_err(|_| unwritable(name))
        })
    }

    fn caps_at(&mut self, caps: &gst::CapsRef, depth: usize) -> Result {
        let count = if caps.is_any() { 0 } else { caps.size() };
        self.plain(&(caps.is_any(), count as u32));
        caps.iter_with_features().take(count).try_for_each(|(structure, features)| {
            let names: Vec<_> = features.iter().map(|name| name.as_str()).collect();
            if let Some(name) = names.iter().find(|name| !is_feature_name(name)) {
                return Err(Unwritable(format!("{:?}", shorten(name))));
            }
            self.plain(&(features.is_any(), names));
            self.structure_at(structure, depth)
        })
    }

    fn value_at(&mut self, value: &glib::Value, depth: usize) -> Result {
        if depth > MAX_DEPTH {
            return Err(Unwritable(format!("a value {depth} levels deep")));
        }
        let elements = |node: Node<'_>, values: &[glib::SendValue], writer: &mut Self| {
            writer.plain(&node);
            values.iter().try_for_each(|value| writer.value_at(value, depth + 1))
        };
        if let Some(node) = leaf(value) {
            self.plain(&node);
            Ok(())
        } else if let Ok(list) = value.get::<gst::List>() {
            elements(Node::List(list.len() as u32), &list, self)
        } else if let Ok(array) = value.get::<gst::Array>() {
            elements(Node::Array(array.len() as u32), &array, self)
        } else if let Ok(Some(structure)) = value.get::<Option<gst::Structure>>() {
            self.plain(&Node::Structure);
            self.structure_at(&structure, depth + 1)
        } else if let Ok(Some(caps)) = value.get::<Option<gst::Caps>>() {
            self.plain(&Node::Caps);
            self.caps_at(&caps, depth + 1)
        } else if let Ok(Some(buffer)) = value.get::<Option<gst::Buffer>>() {
            let bytes = buffer.map_readable().map_err(|_| Unwritable("an unreadable buffer".into()))?;
            self.plain(&Node::Buffer(bytes.len() as u64));
            self.0.extend_from_slice(&bytes);
            Ok(())
        } else if let Ok(Some(sample)) = value.get::<Option<gst::Sample>>() {
            self.sample(&sample, depth)
        } else {
            Err(Unwritable(format!("a value of type {}", value.type_())))
        }
    }

    fn sample(&mut self, sample: &gst::SampleRef, depth: usize) -> Result {
        let unreadable = || Unwritable("a sample without bytes".into());
        let buffer = sample.buffer().ok_or_else(unreadable)?;
        let bytes = buffer.map_readable().map_err(|_| unreadable())?;
        let (caps, info) = (sample.caps(), sample.info());
        self.plain(&Node::Sample(caps.is_some(), info.is_some(), bytes.len() as u64));
        caps.map_or(Ok(()), |caps| self.caps_at(caps, depth + 1))?;
        info.map_or(Ok(()), |info| self.structure_at(info, depth + 1))?;
        self.0.extend_from_slice(&bytes);
        Ok(())
    }
}

/// The node of a value that is one node long.
fn leaf(value: &glib::Value) -> Option<Node<'_>> {
    let kind = value.type_();
    Some(match kind {
        glib::Type::BOOL => Node::Bool(value.get().ok()?),
        glib::Type::I32 => Node::Int(value.get().ok()?),
        glib::Type::U32 => Node::Uint(value.get().ok()?),
        glib::Type::I64 => Node::Int64(value.get().ok()?),
        glib::Type::U64 => Node::Uint64(value.get().ok()?),
        glib::Type::F32 => Node::Float(value.get().ok()?),
        glib::Type::F64 => Node::Double(value.get().ok()?),
        glib::Type::STRING => Node::Text(value.get().ok()?),
        _ if kind == gst::Fraction::static_type() => {
            let (numerator, denominator) = value.get::<gst::Fraction>().ok()?.into();
            Node::Fraction(numerator, denominator)
        }
        _ if kind == gst::Bitmask::static_type() => Node::Bitmask(value.get::<gst::Bitmask>().ok()?.0),
        _ if kind == gst::IntRange::<i32>::static_type() => {
            let range = value.get::<gst::IntRange<i32>>().ok()?;
            Node::IntRange(range.min(), range.max(), range.step())
        }
        _ if kind == gst::IntRange::<i64>::static_type() => {
            let range = value.get::<gst::IntRange<i64>>().ok()?;
            Node::Int64Range(range.min(), range.max(), range.step())
        }
        _ if kind == gst::FractionRange::static_type() => {
            let range = value.get::<gst::FractionRange>().ok()?;
            Node::FractionRange(range.min().into(), range.max().into())
        }
        _ if kind == glib::Date::static_type() => {
            Node::Date(value.get::<Option<glib::Date>>().ok()??.julian())
        }
        _ if kind == gst::DateTime::static_type() => {
            date_time(&value.get::<Option<gst::DateTime>>().ok()??).map(Node::DateTime)?
        }
        _ => return of_named_type(value),
    })
}

fn of_named_type(value: &glib::Value) -> Option<Node<'_>> {
    typed_value::enum_of(value)
        .map(|(name, number)| Node::Enum(name, number))
        .or_else(|| typed_value::flags_of(value).map(|(name, bits)| Node::Flags(name, bits)))
        .or_else(|| {
            typed_value::flag_set_of(value).map(|(name, flags, mask)| Node::FlagSet(name, flags, mask))
        })
}

/// A time with an offset beyond 12 hours is sent in UTC: `gst_date_time_new` takes no such offset.
fn date_time(time: &gst::DateTime) -> Option<DateTime> {
    const LIMIT: f32 = 12.0;
    if time.time_zone_offset().is_some_and(|offset| offset.abs() > LIMIT) {
        return time
            .to_utc()
            .ok()
            .filter(|utc| utc.time_zone_offset() == Some(0.0))
            .and_then(|utc| date_time(&utc));
    }
    let small = |value: Option<i32>| value.and_then(|value| u8::try_from(value).ok());
    let micros = |second: i32| u32::try_from(second * 1_000_000 + time.microsecond().unwrap_or(0)).ok();
    Some(DateTime {
        offset: (time.time_zone_offset().unwrap_or(0.0) * 60.0).round() as i16,
        year: time.year(),
        month: small(time.month()),
        day: small(time.day()),
        time: small(time.hour()).zip(small(time.minute())),
        micros: time.second().and_then(micros),
    })
}

fn shorten(text: &str) -> String {
    text.chars().take(64).collect()
}
