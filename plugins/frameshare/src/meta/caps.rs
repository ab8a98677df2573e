// SPDX-License-Identifier: MIT OR Apache-2.0

//! Caps of a stream from the text that describes its format.
//!
//! The text comes from a peer, so GStreamer's parser never sees it (see [`form`](super::form)).
//! This one takes fixed caps of one structure, as `gst_caps_to_string` of GStreamer 1.22 and 1.26
//! writes them:
//!
//! ```text
//! caps      = name ["(" feature {"," feature} ")"] {"," field "=" value} [";"]
//! value     = ["(" type ")"] (scalar | "<" value {"," value} ">")
//! scalar    = word | quoted text
//! ```
//!
//! Types are the basic ones, `fraction`, `bitmask`, `buffer`, and enums and sets of flags that this
//! process knows. Arrays nest at most [`MAX_DEPTH`] deep. GStreamer interns the names of
//! structures, fields and features for the life of the process, so they are charged first.

use super::{
    budget::Budget,
    form::{self, Invalid, is_feature_name, is_field_name, is_structure_name},
};
use glib::prelude::*;
use std::borrow::Cow;

/// Maximum length of the text in bytes: a control message has no room for more.
const MAX_TEXT: usize = 64 * 1024;
/// Words for caps of no or of any structure.
const SPECIAL: [&str; 3] = ["ANY", "EMPTY", "NONE"];
/// Maximum depth of arrays inside each other.
const MAX_DEPTH: usize = 4;
/// Maximum number of fields and of features.
const MAX_FIELDS: usize = 256;

/// Returns the fixed caps of a text. Fails if it is not one structure of fixed values, or if its
/// names exceed the budget.
pub(crate) fn parse(text: &str, budget: &Budget) -> Result<gst::Caps, Invalid> {
    if text.len() > MAX_TEXT || text.contains('\0') {
        return Err(Invalid::Impossible("length"));
    }
    let mut names = budget.charge();
    let mut scanner = Scanner { rest: text };
    let is_name = |word: &str| is_structure_name(word) && !SPECIAL.contains(&word);
    let name = scanner.word(is_name).ok_or(Invalid::Impossible("name"))?;
    names.name(name)?;
    let mut structure = gst::Structure::new_empty(name);
    let features = scanner.features().ok_or(Invalid::Impossible("feature"))?;
    features.iter().flatten().try_for_each(|feature| names.name(feature))?;
    while scanner.accept(',') {
        let (name, value) = scanner.field().ok_or(Invalid::Malformed)?;
        if !is_sane(structure.name(), name, &value) || structure.n_fields() >= MAX_FIELDS {
            return Err(Invalid::Impossible("field"));
        }
        names.name(name)?;
        structure.set_value(name, value);
    }
    scanner.accept(';');
    scanner.skip_space();
    let mut caps = gst::Caps::new_empty();
    caps.make_mut().append_structure_full(structure, features.map(gst::CapsFeatures::new));
    (scanner.rest.is_empty() && caps.is_fixed()).then_some(caps).ok_or(Invalid::Malformed)
}

/// Returns whether a field can have this value: GStreamer divides by sizes, rates and ratios, and
/// raises a critical if a divisor is not positive.
fn is_sane(structure: &str, field: &str, value: &glib::Value) -> bool {
    if let Ok(fraction) = value.get::<gst::Fraction>() {
        fraction.numer() > 0 || (fraction.numer() == 0 && field != "pixel-aspect-ratio")
    } else if let Ok(number) = value.get::<i32>() {
        let divides = ["width", "height", "rate", "channels", "views"].contains(&field);
        !divides || number > 0 || (number == 0 && !structure.ends_with("/x-raw"))
    } else {
        true
    }
}

#[derive(Debug)]
struct Scanner<'a> {
    rest: &'a str,
}

impl<'a> Scanner<'a> {
    fn skip_space(&mut self) {
        self.rest = self.rest.trim_start_matches(|c: char| c.is_ascii_whitespace());
    }

    /// Takes a character, and white space before it, if it is next.
    fn accept(&mut self, next: char) -> bool {
        self.skip_space();
        let rest = self.rest.strip_prefix(next);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    /// Takes a word without escapes that `is_word` accepts.
    fn word(&mut self, is_word: impl Fn(&str) -> bool) -> Option<&'a str> {
        self.skip_space();
        let end = self.rest.find(|c: char| !is_plain(c)).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        is_word(word).then_some(word)
    }

    /// Returns the features in parentheses, `Some(None)` if there are none.
    fn features(&mut self) -> Option<Option<Vec<&'a str>>> {
        if !self.accept('(') {
            return Some(None);
        }
        let mut features = Vec::new();
        loop {
            let name = self.word(is_feature_name)?;
            if features.len() >= MAX_FIELDS {
                return None;
            }
            if !features.contains(&name) {
                features.push(name);
            }
            if self.accept(')') {
                return Some(Some(features));
            }
            self.accept(',').then_some(())?;
        }
    }

    /// A name, an equals sign and a value.
    fn field(&mut self) -> Option<(&'a str, glib::SendValue)> {
        let name = self.word(is_field_name)?;
        self.accept('=').then_some(())?;
        Some((name, self.value(None, MAX_DEPTH)?))
    }

    /// Returns a value, of the type that is named here or else of `outer`.
    fn value(&mut self, outer: Option<&'a str>, depth: usize) -> Option<glib::SendValue> {
        let mut kind = outer;
        if self.accept('(') {
            kind = Some(self.word(|word| !word.is_empty())?);
            self.accept(')').then_some(())?;
        }
        if self.accept('<') {
            return self.array(kind, depth.checked_sub(1)?);
        }
        let (text, is_quoted) = self.scalar()?;
        match kind {
            Some(kind) => typed(kind, &text),
            None if is_quoted => Some(text.to_send_value()),
            None => Some(guess(&text)),
        }
    }

    fn array(&mut self, kind: Option<&'a str>, depth: usize) -> Option<glib::SendValue> {
        let mut values = Vec::new();
        if !self.accept('>') {
            loop {
                values.push(self.value(kind, depth)?);
                if self.accept('>') {
                    break;
                }
                self.accept(',').then_some(())?;
            }
        }
        // Inside another array GStreamer does not write the type of an empty one.
        if values.is_empty() && depth + 1 < MAX_DEPTH {
            return None;
        }
        form::are_of_one_type(&values).then(|| glib::SendValue::from_owned(gst::Array::from_values(values)))
    }

    /// A word or a quoted text without its escapes, and whether it was quoted.
    fn scalar(&mut self) -> Option<(Cow<'a, str>, bool)> {
        self.skip_space();
        let is_quoted = self.rest.starts_with('"');
        let text = self.rest.strip_prefix('"').unwrap_or(self.rest);
        let mut was_escaped = false;
        let end = text.find(|c: char| {
            let is_escaped = was_escaped;
            was_escaped = c == '\\' && !is_escaped;
            let ends = if is_quoted { c == '"' } else { c != '\\' && !is_plain(c) };
            !is_escaped && ends
        });
        let end = if is_quoted { end? } else { end.unwrap_or(text.len()) };
        let (text, rest) = text.split_at(end);
        self.rest = if is_quoted { rest.strip_prefix('"')? } else { rest };
        // GStreamer writes an empty text in quotes.
        (is_quoted || !text.is_empty()).then_some(())?;
        Some((unescape(text)?, is_quoted))
    }
}

/// Returns whether GStreamer writes a text with this character without quotes.
fn is_plain(c: char) -> bool {
    c.is_ascii_alphanumeric() || "_-+/:.".contains(c)
}

/// `\123` is a byte in octal digits, any other escaped character stands for itself.
fn unescape(text: &str) -> Option<Cow<'_, str>> {
    if !text.contains('\\') {
        return Some(text.into());
    }
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte != b'\\' {
            bytes.push(byte);
            continue;
        }
        let (octal, digits) = octal(rest);
        rest = &rest[digits..];
        match octal {
            Some(byte) => bytes.push(byte),
            None => {
                let (&byte, after) = rest.split_first()?;
                bytes.push(byte);
                rest = after;
            }
        }
    }
    let text = String::from_utf8(bytes).ok()?;
    (!text.contains('\0')).then_some(text.into())
}

/// Returns the byte of three octal digits, and the number of characters that they take.
fn octal(bytes: &[u8]) -> (Option<u8>, usize) {
    let Some([a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7']) = bytes.first_chunk() else {
        return (None, 0);
    };
    (Some((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0')), 3)
}

/// The value of a text of the named type.
fn typed(kind: &str, text: &str) -> Option<glib::SendValue> {
    Some(match kind {
        "int" | "i" | "gint" => integer(text).and_then(|n| i32::try_from(n).ok())?.to_send_value(),
        "uint" | "u" | "guint" => integer(text).and_then(|n| u32::try_from(n).ok())?.to_send_value(),
        "int64" | "gint64" => integer(text).and_then(|n| i64::try_from(n).ok())?.to_send_value(),
        "uint64" | "guint64" => integer(text).and_then(|n| u64::try_from(n).ok())?.to_send_value(),
        "float" | "f" | "gfloat" => single(floating(text)?)?.to_send_value(),
        "double" | "d" | "gdouble" => floating(text)?.to_send_value(),
        "boolean" | "bool" | "b" | "gboolean" => boolean(text)?.to_send_value(),
        "string" | "str" | "s" | "gchararray" => text.to_send_value(),
        "fraction" | "GstFraction" => fraction(text)?.to_send_value(),
        "bitmask" | "GstBitmask" => {
            gst::Bitmask(integer(text).and_then(|n| u64::try_from(n).ok())?).to_send_value()
        }
        "buffer" | "GstBuffer" => glib::SendValue::from_owned(gst::Buffer::from_slice(hexadecimal(text)?)),
        named => form::of_named_type(named, text)?,
    })
}

/// The value of a text without a type, by GStreamer's order: integer, floating point, fraction,
/// boolean, text.
fn guess(text: &str) -> glib::SendValue {
    ["int", "double", "fraction", "boolean"]
        .iter()
        .find_map(|kind| typed(kind, text))
        .unwrap_or_else(|| text.to_send_value())
}

/// A number in decimal digits, or hexadecimal ones behind `0x`.
fn integer(text: &str) -> Option<i128> {
    match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => u64::from_str_radix(digits, 16).ok().map(i128::from),
        None => text.parse::<i64>().map(i128::from).or_else(|_| text.parse::<u64>().map(i128::from)).ok(),
    }
}

/// A finite number in digits.
fn floating(text: &str) -> Option<f64> {
    let is_number = text.bytes().all(|c| c.is_ascii_digit() || b"+-.eE".contains(&c));
    is_number.then(|| text.parse::<f64>().ok()).flatten().filter(|number| number.is_finite())
}

/// Converts to single precision, unless the number is beyond its range.
fn single(number: f64) -> Option<f32> {
    let single = number as f32;
    single.is_finite().then_some(single)
}

fn boolean(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "t" | "yes" => Some(true),
        "false" | "f" | "no" => Some(false),
        _ => None,
    }
}

fn fraction(text: &str) -> Option<gst::Fraction> {
    let (numerator, denominator) = text.split_once('/').unwrap_or((text, "1"));
    form::fraction((numerator.parse().ok()?, denominator.parse().ok()?))
}

/// Parses bytes of two digits each; at least one, since GStreamer writes an empty buffer as nothing
/// that it can read again.
fn hexadecimal(text: &str) -> Option<Vec<u8>> {
    if text.is_empty() {
        return None;
    }
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
    let (pairs, []) = text.as_bytes().as_chunks::<2>() else { return None };
    pairs.iter().map(|[high, low]| Some(digit(*high)? << 4 | digit(*low)?)).collect()
}

#[cfg(test)]
mod tests;
