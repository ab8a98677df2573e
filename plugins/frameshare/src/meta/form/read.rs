// SPDX-License-Identifier: MIT OR Apache-2.0

//! Bytes of a peer to values, each charged to the budget before it is built.

use super::Invalid;
use crate::ffi::typed_value;
use crate::meta::budget::Charge;
use frameshare::event::form::{
    DateTime, MAX_DEPTH, MAX_FEATURES, MAX_FIELDS, Node, is_feature_name, is_field_name, is_structure_name,
};
use glib::prelude::*;
use serde::Deserialize;

type Result<T> = std::result::Result<T, Invalid>;

/// Reads a form from bytes of a peer.
#[derive(Debug)]
pub(crate) struct Reader<'a, 'c> {
    rest: &'a [u8],
    charge: &'c mut Charge,
}

impl<'a, 'c> Reader<'a, 'c> {
    pub fn new(bytes: &'a [u8], charge: &'c mut Charge) -> Self {
        Self { rest: bytes, charge }
    }

    /// Whether all bytes have been read.
    pub fn is_at_end(&self) -> bool {
        self.rest.is_empty()
    }

    /// Charges one item of the caller's.
    pub fn item(&mut self, payload: usize) -> Result<()> {
        Ok(self.charge.item(payload)?)
    }

    /// Plain data that allocates nothing.
    pub fn plain<T: Deserialize<'a>>(&mut self) -> Result<T> {
        let (content, rest) = postcard::take_from_bytes(self.rest).map_err(|_| Invalid::Malformed)?;
        self.rest = rest;
        Ok(content)
    }

    /// A structure.
    pub fn structure(&mut self) -> Result<gst::Structure> {
        self.structure_at(0)
    }

    /// Caps.
    pub fn caps(&mut self) -> Result<gst::Caps> {
        self.caps_at(0)
    }

    /// A value.
    pub fn value(&mut self) -> Result<glib::SendValue> {
        self.value_at(0)
    }

    /// A name that glib keeps, which must pass `is_name`.
    pub fn name(&mut self, is_name: fn(&str) -> bool, what: &'static str) -> Result<&'a str> {
        let name = self.plain::<&str>()?;
        if !is_name(name) {
            return Err(Invalid::Impossible(what));
        }
        self.charge.name(name)?;
        Ok(name)
    }

    /// Charges a name that glib keeps.
    pub fn intern(&mut self, name: &str) -> Result<()> {
        Ok(self.charge.name(name)?)
    }

    fn structure_at(&mut self, depth: usize) -> Result<gst::Structure> {
        if depth > MAX_DEPTH {
            return Err(Invalid::Impossible("nesting"));
        }
        self.item(0)?;
        let name = self.name(is_structure_name, "name of a structure")?;
        let count = self.plain::<u32>()?;
        if count > MAX_FIELDS {
            return Err(Invalid::Impossible("number of fields"));
        }
        let mut structure = gst::Structure::new_empty(name);
        for _ in 0..count {
            let name = self.name(is_field_name, "name of a field")?;
            let value = self.value_at(depth + 1)?;
            structure.set_value(name, value);
        }
        Ok(structure)
    }

    fn caps_at(&mut self, depth: usize) -> Result<gst::Caps> {
        let (is_any, count) = self.plain::<(bool, u32)>()?;
        self.item(0)?;
        if is_any {
            return Ok(gst::Caps::new_any());
        }
        let mut caps = gst::Caps::new_empty();
        let content = caps.make_mut();
        for _ in 0..count {
            let features = self.features()?;
            content.append_structure_full(self.structure_at(depth)?, Some(features));
        }
        Ok(caps)
    }

    fn features(&mut self) -> Result<gst::CapsFeatures> {
        let (is_any, count) = self.plain::<(bool, u32)>()?;
        if count > MAX_FEATURES {
            return Err(Invalid::Impossible("number of features"));
        }
        let mut features = if is_any { gst::CapsFeatures::new_any() } else { gst::CapsFeatures::new_empty() };
        for _ in 0..count {
            let name = self.name(is_feature_name, "name of a feature")?;
            if !is_any && !features.contains(name) {
                self.item(0)?;
                features.add(name);
            }
        }
        Ok(features)
    }

    fn value_at(&mut self, depth: usize) -> Result<glib::SendValue> {
        if depth > MAX_DEPTH {
            return Err(Invalid::Impossible("nesting"));
        }
        let node = self.plain::<Node<'a>>()?;
        self.item(0)?;
        node.check().map_err(Invalid::Impossible)?;
        match node {
            Node::Text(Some(text)) => {
                self.item(text.len())?;
                Ok(text.to_send_value())
            }
            Node::Buffer(size) => self.buffer(size).map(glib::SendValue::from_owned),
            Node::Sample(has_caps, has_info, size) => {
                let caps = has_caps.then(|| self.caps_at(depth + 1)).transpose()?;
                let info = has_info.then(|| self.structure_at(depth + 1)).transpose()?;
                let buffer = self.buffer(size)?;
                let sample = gst::Sample::builder().buffer(&buffer);
                let sample = sample.caps_if_some(caps.as_ref()).info_if_some(info).build();
                Ok(glib::SendValue::from_owned(sample))
            }
            Node::List(count) => {
                let list = gst::List::from_values(self.elements(count, depth)?);
                Ok(glib::SendValue::from_owned(list))
            }
            Node::Array(count) => {
                let array = gst::Array::from_values(self.elements(count, depth)?);
                Ok(glib::SendValue::from_owned(array))
            }
            Node::Structure => Ok(glib::SendValue::from_owned(self.structure_at(depth + 1)?)),
            Node::Caps => Ok(glib::SendValue::from_owned(self.caps_at(depth + 1)?)),
            leaf => of_leaf(leaf).ok_or(Invalid::Impossible("value")),
        }
    }

    fn buffer(&mut self, size: u64) -> Result<gst::Buffer> {
        let bytes = usize::try_from(size).ok().and_then(|size| self.rest.split_at_checked(size));
        let (bytes, rest) = bytes.ok_or(Invalid::Malformed)?;
        self.item(bytes.len())?;
        self.rest = rest;
        Ok(gst::Buffer::from_slice(bytes.to_vec()))
    }

    fn elements(&mut self, count: u32, depth: usize) -> Result<Vec<glib::SendValue>> {
        let mut values = Vec::new();
        for _ in 0..count {
            values.push(self.value_at(depth + 1)?);
        }
        are_of_one_type(&values).then_some(values).ok_or(Invalid::Impossible("list of several types"))
    }
}

/// Whether all values have the type of the first one: a list or array of GStreamer takes no others
/// but with a critical.
pub(crate) fn are_of_one_type(values: &[glib::SendValue]) -> bool {
    let mut kinds = values.iter().filter_map(|value| basic_type(value));
    kinds.next().is_none_or(|first| kinds.all(|other| other == first))
}

/// The type of a value, or of the first element of a list or array; none where that is empty.
fn basic_type(value: &glib::Value) -> Option<glib::Type> {
    if let Ok(list) = value.get::<gst::ListRef<'_>>() {
        return list.first().and_then(|first| basic_type(first));
    }
    if let Ok(array) = value.get::<gst::ArrayRef<'_>>() {
        return array.first().and_then(|first| basic_type(first));
    }
    Some(value.type_())
}

/// The value of a checked node that is one node long; none where GStreamer has no such value.
fn of_leaf(node: Node<'_>) -> Option<glib::SendValue> {
    Some(match node {
        Node::Bool(value) => value.to_send_value(),
        Node::Int(value) => value.to_send_value(),
        Node::Uint(value) => value.to_send_value(),
        Node::Int64(value) => value.to_send_value(),
        Node::Uint64(value) => value.to_send_value(),
        Node::Float(value) => value.to_send_value(),
        Node::Double(value) => value.to_send_value(),
        Node::Text(text) => text.to_send_value(),
        Node::Fraction(numerator, denominator) => fraction((numerator, denominator))?.to_send_value(),
        Node::Bitmask(bits) => gst::Bitmask(bits).to_send_value(),
        Node::IntRange(min, max, step) => gst::IntRange::<i32>::with_step(min, max, step).to_send_value(),
        Node::Int64Range(min, max, step) => gst::IntRange::<i64>::with_step(min, max, step).to_send_value(),
        Node::FractionRange(min, max) => {
            gst::FractionRange::new(fraction(min)?, fraction(max)?).to_send_value()
        }
        Node::Enum(name, number) => typed_value::to_enum(name, number)?,
        Node::Flags(name, bits) => typed_value::to_flags(name, bits)?,
        Node::FlagSet(name, flags, mask) => typed_value::to_flag_set(name, flags, mask)?,
        Node::Date(julian) => glib::Date::from_julian(julian).ok()?.to_send_value(),
        Node::DateTime(time) => date_time(time)?.to_send_value(),
        Node::Buffer(_)
        | Node::Sample(..)
        | Node::List(_)
        | Node::Array(_)
        | Node::Structure
        | Node::Caps => return None,
    })
}

/// A fraction as GStreamer takes it: with a positive denominator, and a numerator that can be
/// negated.
pub(crate) fn fraction((numerator, denominator): (i32, i32)) -> Option<gst::Fraction> {
    (denominator > 0 && numerator > i32::MIN).then(|| gst::Fraction::new(numerator, denominator))
}

fn date_time(time: DateTime) -> Option<gst::DateTime> {
    let DateTime { offset, year, month, day, time, micros } = time;
    let wide = |value: Option<u8>| value.map(i32::from);
    let (hour, minute) = time.unzip();
    let offset = hour.map(|_| f32::from(offset) / 60.0);
    let seconds = micros.map(|micros| f64::from(micros) / 1e6);
    gst::DateTime::new(offset, year, wide(month), wide(day), wide(hour), wide(minute), seconds).ok()
}
